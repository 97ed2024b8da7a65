"""Engines of shared dialogs, each loaded when a dialog is on it."""

"""One file per engine of shared dialogs."""

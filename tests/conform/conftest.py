"""The command, for the tests of `dialogd conform`."""

from __future__ import annotations

from tests.cli.conftest import dialogd

__all__ = ["dialogd"]

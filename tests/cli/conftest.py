"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Commands


@pytest.fixture
def dialogd(tmp_path: Path) -> Iterator[Commands]:
    """The command, in an empty folder."""
    commands = Commands(tmp_path)
    yield commands
    commands.end_daemons()

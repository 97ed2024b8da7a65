"""What the tests of the memory share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.memory.shelf import Shelf


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """An empty archive."""
    return Shelf(tmp_path)

"""What the tests of the documents share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.manual import Sandbox


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A place to try commands in; every process started in it ends with the test."""
    place = Sandbox(tmp_path)
    yield place
    place.close()

"""Where these tests write."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where the system has that: thousands of flushes would take minutes on a slow disk."""
    if not os.access(MEMORY, os.W_OK | os.X_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="dialogd-test-", dir=MEMORY) as folder:
        yield Path(folder)

"""Daemons for fault tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.faults.replies import Replies
from tests.support.forked import fork
from tests.support.pair import Pair


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    """Makes a `Pair` whose daemons start fast; they are gone after the test."""
    with ExitStack() as stack:

        def make(agents: str = "AB", **options: Any) -> Pair:
            return stack.enter_context(Pair(tmp_path, agents, launch=fork, **options))

        yield make


@pytest.fixture
def replies(tmp_path: Path) -> Replies:
    return Replies(tmp_path)

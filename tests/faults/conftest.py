"""Daemons for fault tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.faults.replies import Replies
from tests.support.forked import fork
from tests.support.machines import Cast
from tests.support.pair import Pair


@pytest.fixture
def cast(tmp_path: Path) -> Iterator[Callable[..., Pair]]:
    """Makes a `Pair` whose daemons start fast; they are gone after the test."""
    with ExitStack() as stack:

        def make(agents: str = "AB", **options: Any) -> Pair:
            return stack.enter_context(Pair(tmp_path, agents, launch=fork, **options))

        yield make


@pytest.fixture(scope="session")
def holders(tmp_path_factory: pytest.TempPathFactory) -> Cast:
    """Who takes part in shared dialogs, with their keys."""
    return Cast(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def replies(tmp_path: Path) -> Replies:
    return Replies(tmp_path)

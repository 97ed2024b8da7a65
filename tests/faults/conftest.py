"""Daemons for fault tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.faults.replies import Replies
from tests.faults.zygote import Zygote
from tests.support.pair import Pair


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """The parent of all daemons of these tests."""
    parent = Zygote()
    yield parent
    parent.close()


@pytest.fixture
def cast(tmp_path: Path, zygote: Zygote) -> Iterator[Callable[..., Pair]]:
    """Makes a `Pair` whose daemons start fast; they are gone after the test."""
    with ExitStack() as stack:

        def make(agents: str = "AB", **options: Any) -> Pair:
            return stack.enter_context(Pair(tmp_path, agents, launch=zygote.launch, **options))

        yield make


@pytest.fixture
def replies(tmp_path: Path) -> Replies:
    """A command that counts its calls."""
    return Replies(tmp_path)

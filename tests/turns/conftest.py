"""Daemons that ask services by their libraries: forked from a process that has imported these once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.zygote import Zygote
from tests.support.pair import Launch


@pytest.fixture(scope="session")
def launch() -> Iterator[Launch]:
    """How a `Pair` starts its daemons; a new interpreter would read each library for a second and more."""
    parent = Zygote("anthropic", "openai", "dialogd.backends.anthropic", "dialogd.backends.openai")
    yield parent.launch
    parent.close()

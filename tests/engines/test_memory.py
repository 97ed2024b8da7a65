"""The engine in memory keeps the contract, so that what is tested on it is tested on an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dialogd.store.engine import Engine, Place
from tests.engines.contract import EngineContract
from tests.engines.memory import Memory, registered


class TestMemory(EngineContract):
    @pytest.fixture
    def url(self) -> Iterator[str]:
        with registered():
            yield "memory://here"

    @pytest.fixture
    def losing(self) -> Callable[[Place], Engine]:
        def opened(place: Place) -> Engine:
            engine = Memory(place)
            engine.loses_answer = True
            return engine

        return opened

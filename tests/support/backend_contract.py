"""What every backend must keep, as tests: inherit `BackendContract`, say how to make yours, run pytest.

    class TestMine(BackendContract):
        def make(self) -> Backend:
            return Mine(Options())

Needs pytest, pytest-asyncio and psutil.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest

from dialogd.backends import Backend, Price, Request, Tool, Usage
from dialogd.backends.parts import Part, Prompt
from dialogd.errors import BackendError
from dialogd.protocol.grammar import parse
from dialogd.protocol.state import Dialog
from tests.support.pair import PATIENCE, a_second

DIALOG = b"""# Claude Autonomous Dialog

**Topic:** Where should user sessions live?
**Agents:** A = Claude A @ http://localhost:3001, B = Claude B @ http://localhost:3002

---

## Turn 1 \xe2\x80\x94 User

**Question:**
Postgres or Redis? Agree on one.

TURN: A, B
"""


@pytest.mark.asyncio
class BackendContract:
    """Behaviours that the rest of dialogd relies on. Override `make`, and what does not fit."""

    deterministic = True  # the same request is answered with the same text

    def make(self) -> Backend:
        raise NotImplementedError

    def make_slow(self) -> Backend:
        """A backend that is still answering after half a second."""
        pytest.skip("this backend has no slow form")

    def make_failing(self) -> Backend:
        pytest.skip("this backend has no failing form")

    def request(self, agent: str = "A", dialog: Dialog | None = None) -> Request:
        """A turn to ask for. The prompt differs from agent to agent."""
        dialog = dialog or parse(DIALOG)
        asked = dialog.header.agent(agent)
        assert asked is not None
        parts = (Part("header", f"Topic: {dialog.header.topic}"), Part("1", "Postgres or Redis?", "USER"))
        prompt = Prompt(f"You are {agent}.", parts, f"This is turn 2, {agent}.\n")
        return Request(dialog, asked, 2, Path("/tmp/no-such-dialog.md"), lambda: prompt, re="1", chain="c0ffee")

    async def test_it_says_who_it_is(self) -> None:
        backend = self.make()
        assert isinstance(backend, Backend)
        assert backend.name
        assert isinstance(backend.model, str)
        assert isinstance(backend.costs, bool)
        assert backend.price is None or isinstance(backend.price, Price)
        assert backend.most_out >= 0
        assert backend.room >= 0
        assert all(isinstance(secret, str) for secret in backend.secrets)
        await backend.close()

    async def test_it_yields_text_and_usage(self) -> None:
        backend = self.make()
        pieces = [piece async for piece in backend.reply(self.request())]
        assert all(isinstance(piece, str | Usage | Tool) for piece in pieces)
        last = [piece for piece in pieces if isinstance(piece, Usage)][-1:]
        assert all((usage.tokens_in or 0) >= (usage.cached or 0) for usage in last)
        assert text_of(pieces).strip()
        await backend.close()

    async def test_it_leaves_the_dialog_as_it_is(self) -> None:
        backend, dialog = self.make(), parse(DIALOG)
        before = repr(dialog)
        await answer(backend, self.request(dialog=dialog))
        assert repr(dialog) == before
        await backend.close()

    async def test_a_finished_reply_leaves_no_process(self) -> None:
        backend, before = self.make(), children()
        await answer(backend, self.request())
        assert children() <= before
        await backend.close()

    @pytest.mark.parametrize("after", [0.0, 0.1, 0.4])
    async def test_cancelling_ends_the_call_and_all_it_started(self, after: float) -> None:
        backend, before = self.make_slow(), children()
        call = asyncio.create_task(answer(backend, self.request()))
        await asyncio.wait((call,), timeout=after)
        assert not call.done()
        started = time.monotonic()
        call.cancel()
        await asyncio.wait((call,))
        assert call.cancelled()
        assert time.monotonic() - started < a_second()
        assert children() <= before
        await backend.close()

    async def test_leaving_a_reply_early_ends_the_call(self) -> None:
        backend, before = self.make(), children()
        async with aclosing(backend.reply(self.request())) as pieces:
            async for _ in pieces:
                break
        assert children() <= before
        await backend.close()

    async def test_replies_at_the_same_time_do_not_mix(self) -> None:
        backend = self.make()
        asked = [self.request("A"), self.request("B")]
        together = await asyncio.gather(*(answer(backend, request) for request in asked * 5))
        assert all(text.strip() for text in together)
        if self.deterministic:
            alone = [await answer(backend, request) for request in asked]
            assert alone[0] != alone[1]
            assert together == alone * 5
        await backend.close()

    async def test_closing_twice_is_closing_once(self) -> None:
        unused, used = self.make(), self.make()
        await answer(used, self.request())
        for backend in (unused, used, unused, used):
            await backend.close()

    async def test_a_failure_is_a_backend_error_with_cause_and_fix(self) -> None:
        backend, before = self.make_failing(), children()
        with pytest.raises(BackendError) as caught:
            await answer(backend, self.request())
        for line in (caught.value.cause, caught.value.fix):
            assert line.strip()
            assert "\n" not in line
        assert children() <= before
        await backend.close()


def text_of(pieces: list[Any]) -> str:
    """The reply that pieces of text and usage make."""
    return "".join(piece for piece in pieces if isinstance(piece, str))


async def answer(backend: Backend, request: Request) -> str:
    return text_of([piece async for piece in backend.reply(request)])


def children() -> set[int]:
    """Every process below this one, zombies included."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


async def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until the condition holds; fails when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)

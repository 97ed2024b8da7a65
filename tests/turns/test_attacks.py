"""Services that mean harm: a key lured elsewhere, accounts that no arithmetic survives, waits without an end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dialogd.agent.turn import Behavior
from dialogd.backends import Request, Usage
from tests.backends.apis import FORMS, TEXT, make
from tests.logfile.files import log_of
from tests.support.pair import a_second
from tests.support.standin import Fail, Say, StandIn, in_order
from tests.turns.minds import DEAR, Mind, agent_with, dialog_in, step

QUICK = Behavior(pace=0.0, poll=0.05, retry_wait=0.02)
HUGE = 10**30

FIGURES = {
    "negative": (-1_000_000_000, -1_000_000_000),
    "huge": (HUGE, HUGE),
    "not a number": (float("nan"), 5),
    "without end": (float("inf"), 5),
    "a text": ("1000", "100"),
    "a list": (10, [1]),
    "an object": ({}, {}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "status", [307, *(pytest.param(code, marks=pytest.mark.slow) for code in (301, 302, 303, 308))]
)
async def test_neither_key_nor_dialog_follows_a_redirection(tmp_path: Path, form: str, status: int) -> None:
    path = dialog_in(tmp_path)
    with StandIn(in_order(Say(TEXT))) as elsewhere:
        target = elsewhere.url.replace("127.0.0.1", "localhost")
        moved = Fail(status, headers=(("location", f"{target}/v1/messages"),))
        with StandIn(in_order(moved)) as server:
            backend = make(form, server)
            async with agent_with(path, backend, options=QUICK) as agent:  # type: ignore[arg-type]
                await agent.step()
            await backend.close()
        assert elsewhere.seen == []
    mark = log_of(path).read().entries[-1].mark("AGENT_ERROR")
    assert str(status) in mark.fields[1]


@pytest.mark.parametrize("figures", FIGURES.values(), ids=FIGURES.keys())
async def test_an_account_that_cannot_be_true_is_not_believed(tmp_path: Path, figures: tuple[int, int]) -> None:
    guess = Usage("m-1", 1_000, 0, estimated=True)
    mind = Mind((guess, "Postgres.", Usage("m-1", *figures)), ("A second, paid call.",), price=DEAR)
    dialog = await step(dialog_in(tmp_path, "**Budget:** $1.00"), mind)
    assert len(mind.asked) == 1
    said = dialog.state.spent["A"]
    assert (said.entries, said.unknown, said.uncounted) == (1, 0, 0)
    assert said.usd >= 0.01


class Broken(Mind):
    """A mind with a bug of its own."""

    async def reply(self, request: Request) -> AsyncIterator[str | Usage]:
        """Uses something, then fails as no backend may."""
        self.asked.append(request.prompt())
        yield Usage("m-1", 1_000, 100)
        raise TypeError("a bug")


async def test_a_bug_in_a_backend_is_an_error_of_the_agent(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    mind = Broken(price=DEAR)
    dialog = await step(path, mind)
    assert dialog.entries[-1].mark("AGENT_ERROR") is not None
    assert dialog.state.spent["A"].usd > 0
    assert len(mind.asked) <= 3


async def test_a_wait_longer_than_the_turn_is_not_waited_for(tmp_path: Path) -> None:
    path = dialog_in(tmp_path, "**Timeout:** 5 minutes")
    with StandIn(in_order(Fail(429, retry_after=86_400))) as server:
        backend = make("messages", server)
        async with agent_with(path, backend, options=QUICK) as agent:  # type: ignore[arg-type]
            began = time.monotonic()
            await agent.step()
            took = time.monotonic() - began
        await backend.close()
    mark = log_of(path).read().entries[-1].mark("AGENT_ERROR")
    assert "429" in mark.fields[1]
    assert took < 4 * a_second()

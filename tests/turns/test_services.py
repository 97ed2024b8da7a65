"""Real SDKs under a daemon's agent, against a service that fails: what stands in the file, after how many requests."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from dialogd.agent.turn import Behavior
from dialogd.protocol.decide import Reply
from tests.backends.apis import FORMS, KEY, TEXT, make
from tests.logfile.files import log_of
from tests.support.pair import a_second
from tests.support.standin import (
    Answer,
    Cut,
    Drop,
    EndEarly,
    ErrorEvent,
    Fail,
    Garbage,
    Hang,
    Say,
    Stall,
    StandIn,
    in_order,
)
from tests.turns.minds import agent_with, dialog_in

QUICK = Behavior(pace=0.0, poll=0.05, retry_wait=0.02)
PATIENCE = 180.0  # seconds until the dialog goes on or says why not, SDKs loaded and a service's pause waited for
WELL = Say(TEXT)
REFUSED = Say("")
REFUSAL = {"messages": "refusal", "chat": "content_filter", "responses": "content_filter"}  # as each service says it


@dataclass(frozen=True)
class Case:
    """What the service answers, the kind of the error ("" where the dialog goes on), and how many requests it took."""

    answers: tuple[Answer, ...]
    kind: str
    requests: int
    draft: bool = False


CASES = {
    "a reply": Case((WELL,), "", 1),
    "400": Case((Fail(400),), "request", 1),
    "401": Case((Fail(401),), "auth", 1),
    "403": Case((Fail(403),), "auth", 1),
    "404": Case((Fail(404),), "request", 1),
    "413": Case((Fail(413),), "request", 1),
    "429 for ever": Case((Fail(429, retry_after=0.02),), "busy", 3),
    "429 once": Case((Fail(429, retry_after=0.3), WELL), "", 2),
    "500 for ever": Case((Fail(500),), "failed", 3),
    "500 once": Case((Fail(500), WELL), "", 2),
    "502 as a page": Case((Fail(502, html=True),), "failed", 3),
    "503 twice": Case((Fail(503, retry_after=0.02), Fail(503, retry_after=0.02), WELL), "", 3),
    "529 for ever": Case((Fail(529, retry_after=0.02),), "busy", 3),
    "a dropped connection": Case((Drop(),), "network", 3),
    "a dropped connection, once": Case((Drop(), WELL), "", 2),
    "a stream that is cut": Case((Cut(TEXT),), "network", 3, draft=True),
    "a stream that is cut once": Case((Cut(TEXT), WELL), "", 2),
    "a stream that ends early": Case((EndEarly(TEXT),), "cut", 3, draft=True),
    "an error in the stream, once": Case((ErrorEvent(), WELL), "", 2),
    "broken JSON": Case((Garbage("body"),), "garbled", 3),
    "a page": Case((Garbage("html"),), "garbled", 3),
    "a refusal": Case((REFUSED,), "refusal", 1),
    "a reply that is too long": Case((Say(TEXT, stop="max_tokens"),), "cut", 1, draft=True),
    "an empty reply": Case((Say(""),), "empty", 3),
    "bytes that are no UTF-8": Case((Garbage("utf8", TEXT),), "garbled", 3, draft=True),
}


# In the fast lane each fault by one form in turn: what tells them apart is tested with the backends.
ROWS = [
    pytest.param(name, form, marks=() if FORMS[number % len(FORMS)] == form else pytest.mark.slow)
    for number, name in enumerate(CASES)
    for form in FORMS
]


@pytest.mark.parametrize(("name", "form"), ROWS)
async def test_what_a_fault_comes_to(tmp_path: Path, form: str, name: str) -> None:
    case, path = CASES[name], dialog_in(tmp_path)
    answers = [replace(REFUSED, stop=REFUSAL[form]) if answer is REFUSED else answer for answer in case.answers]
    with StandIn(in_order(*answers)) as server:
        backend = make(form, server)
        async with agent_with(path, backend, options=QUICK) as agent:
            with agent.hub.join() as events:
                began = time.monotonic()
                assert isinstance(await agent.step(), Reply)
                took = time.monotonic() - began
                await agent.hub.close()
                told = [event async for event in events]
        await backend.close()
        asked = len(server.seen)
    dialog = log_of(path).read()
    assert dialog.last is not None
    assert asked == case.requests
    assert took < PATIENCE
    errors = [event.data for event in told if event.kind == "error"]
    if case.kind:
        mark = dialog.last.mark("AGENT_ERROR")
        assert len(mark.fields) == 3
        assert all(mark.fields)
        assert [error["type"] for error in errors] == [case.kind]
        assert (dialog.state.owing, dialog.state.debts.missed) == (("A",), {"A": 1})
    else:
        assert (dialog.last.number, dialog.last.body) == (2, TEXT)
        assert errors == []
    drafts = log_of(path).journals.of("A").drafts()
    assert bool(drafts) == case.draft
    assert KEY not in path.read_text() + str([event.data for event in told])


@pytest.mark.parametrize("form", FORMS)
async def test_a_wait_longer_than_the_turn_fails_at_once_and_costs_nothing(tmp_path: Path, form: str) -> None:
    path = dialog_in(tmp_path, "**Timeout:** 5 minutes")
    with StandIn(in_order(Fail(429, retry_after=600), WELL)) as server:
        backend = make(form, server)
        async with agent_with(path, backend, options=QUICK) as agent:
            began = time.monotonic()
            assert isinstance(await agent.step(), Reply)
            assert time.monotonic() - began < PATIENCE
            spent = agent.tally.bill
        await backend.close()
        assert len(server.seen) == 1
    soon = datetime.now().astimezone() + timedelta(seconds=600)
    times = {f"asked to wait until {soon - timedelta(minutes=back):%H:%M}" for back in (0, 1)}
    mark = log_of(path).read().last.mark("AGENT_ERROR")
    assert any(time in mark.fields[1].replace(f"{soon:%Y-%m-%d} ", "") for time in times), mark.fields
    assert (spent.calls, spent.usd) == (1, 0.0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("budget", "room"), [("$0.80", 8192), ("$0.66", 3250)])
async def test_no_turn_is_bought_where_the_last_ones_read_too_much(
    tmp_path: Path, form: str, budget: str, room: int
) -> None:
    """A gateway adds prompts, and each turn costs $0.20, however short ours is: of $0.80 three are bought, not four.

    What is left for a reply is worked out from what is really read, too: a quarter more than the last time.
    """
    path, names = dialog_in(tmp_path, f"**Budget:** {budget}"), ("max_tokens", "max_completion_tokens")
    with StandIn(in_order(Say(TEXT, tokens_in=39_000, tokens_out=1_000))) as server:
        backend = make(form, server, price="5/5")
        for number in range(5):
            async with agent_with(path, backend, "AB"[number % 2], QUICK) as agent:
                await agent.step()
        await backend.close()
        bodies = [seen.body or {} for seen in server.seen]
    dialog = log_of(path).read()
    assert dialog.state.outcome.cause == "budget"
    most = [next(body[name] for name in (*names, "max_output_tokens") if name in body) for body in bodies]
    assert most == [8192, 8192, room]
    assert sum(spent.usd for spent in dialog.state.spent.values()) == pytest.approx(0.6)


@pytest.mark.slow
async def test_ten_megabytes_are_ended_at_four(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    with StandIn(in_order(Say("Words. " * 1_500_000))) as server:
        backend = make("messages", server)
        async with agent_with(path, backend, options=QUICK) as agent:
            await agent.step()
        await backend.close()
        assert len(server.seen) == 1
    mark = log_of(path).read().entries[-1].mark("AGENT_ERROR")
    assert mark.fields[1] == "the reply passed 4,194,304 characters"
    (draft,) = log_of(path).journals.of("A").drafts()
    assert 4_194_304 <= len(draft) < 4_300_000


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        ("messages", Stall(TEXT)),
        pytest.param("messages", Hang(), marks=pytest.mark.slow),
        *(pytest.param(form, answer, marks=pytest.mark.slow) for form in FORMS[1:] for answer in (Hang(), Stall(TEXT))),
    ],
)
async def test_a_service_that_never_ends_is_left_at_the_timeout(tmp_path: Path, form: str, answer: Answer) -> None:
    path = dialog_in(tmp_path, "**Timeout:** 1 second")
    with StandIn(in_order(answer)) as server:
        backend = make(form, server)
        async with agent_with(path, backend, options=QUICK) as agent:
            began = time.monotonic()
            await agent.step()
            took = time.monotonic() - began
        await backend.close()
    mark = log_of(path).read().entries[-1].mark("AGENT_ERROR")
    assert mark.fields[1] == "no answer within 1 second"
    assert 0.9 < took < 1 + a_second()


@pytest.mark.parametrize("form", FORMS)
async def test_a_stop_in_the_middle_of_a_call_leaves_nothing(tmp_path: Path, form: str) -> None:
    path = dialog_in(tmp_path)
    before = path.read_bytes()
    with StandIn(in_order(Stall(TEXT))) as server:
        backend = make(form, server)
        async with agent_with(path, backend, options=QUICK) as agent:
            turn = asyncio.ensure_future(agent.step())
            deadline = time.monotonic() + PATIENCE
            while not (agent.call and agent.call.parts):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            began = time.monotonic()
            turn.cancel()
            await asyncio.wait({turn})
            assert time.monotonic() - began < 0.5 * a_second()
        await backend.close()
    assert path.read_bytes() == before

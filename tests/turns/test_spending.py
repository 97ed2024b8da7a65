"""What a turn costs where files, journals and daemons are looked at; the rest is written in `scenes/money.txt`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from dialogd import person
from dialogd.agent.call import Bill
from dialogd.agent.turn import Behavior
from dialogd.backends import FREE, Price, Request, Tool, Usage
from dialogd.backends.parts import tokens_of
from dialogd.errors import UnsafeFile
from dialogd.protocol.decide import Wait, Write
from dialogd.protocol.grammar import parse
from dialogd.protocol.header import with_keys
from dialogd.protocol.keys import Keys
from dialogd.store.journal import Received
from dialogd.store.signing import invitation
from tests.faults.replies import locked
from tests.logfile.files import log_of, turn
from tests.support.pair import PATIENCE
from tests.turns.minds import BUSY, DEAR, SAID, Mind, account, agent_with, dialog_in, journal_refusing, step


async def test_the_question_back_is_paid_for_too(tmp_path: Path) -> None:
    unclear = "Fine.\n\n[CONSENSUS_REACHED]"
    mind = Mind((unclear, SAID), ("## Consensus Summary\nPostgres.\n\n[CONSENSUS_REACHED]", SAID), price=DEAR)
    assert account(await step(dialog_in(tmp_path), mind))[:2] == ("2", "2000")
    assert mind.asked[1].parts[:-1] == mind.asked[0].parts


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_reply_that_came_too_late_is_paid_by_the_next_entry(tmp_path: Path, restarted: bool) -> None:
    path = dialog_in(tmp_path)
    mind = Mind(("Postgres.", SAID), ("Redis.", SAID), price=DEAR)
    async with agent_with(path, mind) as agent:
        await agent.look()
        with locked(path):
            turn = asyncio.ensure_future(agent.step())
            deadline = time.monotonic() + PATIENCE
            while log_of(path).journals.of("A").received() is None:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            with path.open("a") as file:
                file.write("\nConsider the cost.\n\nTURN: A\n")
        await turn
        assert log_of(path).journals.of("A").drafts() == ("Postgres.",)
        if not restarted:
            await agent.step()
    dialog = await step(path, mind) if restarted else log_of(path).read()
    assert account(dialog) == ("2", "2000", "200", "0.024")
    assert "Postgres." in mind.asked[1].text
    assert log_of(path).journals.of("A").drafts() == ()
    assert [record["kind"] for record in log_of(path).journals.of("A").records()].count("draft") == 1


async def test_a_stopped_call_is_not_forgotten_either(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    mind = Mind((SAID, 600.0), price=DEAR)
    async with agent_with(path, mind) as agent:
        turn = asyncio.ensure_future(agent.step())
        deadline = time.monotonic() + PATIENCE
        while not mind.asked:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)
        turn.cancel()
        with suppress(asyncio.CancelledError):
            await turn
    dialog = await step(path, Mind(("Postgres.", SAID), price=DEAR))
    assert account(dialog) == ("2", "2000", "200", "0.024")


async def test_an_end_after_a_kill_does_not_say_that_nothing_was_spent(tmp_path: Path) -> None:
    path = dialog_in(tmp_path, "**Budget:** $0.06")
    await step(path, Mind(("Words.", SAID), price=DEAR))
    await step(path, Mind(("Words.", Usage(tokens_in=10, tokens_out=1)), price=FREE), "B")
    killed = Bill("m-1", calls=1, tokens_in=2_000, usd=0.05, tokens_known=1, usd_known=1, is_estimated=True)
    log_of(path).journals.of("A").calling(asdict(killed), is_first=True)
    mind = Mind(("Words.", SAID), price=DEAR)
    outcome = (await step(path, mind)).state.outcome
    assert (outcome.cause, mind.asked) == ("budget", [])
    assert outcome.reason == "budget: the budget of $0.06: $0.012 spent; the next turn would take about $0.0825"


async def test_a_budget_in_dollars_needs_a_price(tmp_path: Path) -> None:
    path = dialog_in(tmp_path, "**Budget:** $1.00")
    mind = Mind(("Words.", SAID), price=None)
    async with agent_with(path, mind) as agent:
        action = await agent.step()
    assert isinstance(action, Wait)
    assert action.status == "unpriced"
    assert "--price" in action.reason
    assert mind.asked == []


async def test_the_usual_cap_holds_where_no_budget_of_ones_own_is_set(tmp_path: Path) -> None:
    """That of a shared dialog may be somebody else's."""
    options = Behavior(pace=0.0, poll=0.05, is_capped=True)
    dear = Price(1e5, 1e5)
    async with agent_with(
        dialog_in(tmp_path, "**Budget:** $9999"), Mind(("Words.", SAID), price=dear), "A", options
    ) as a:
        assert not isinstance(await a.step(), Write)
    other = tmp_path / "other"
    other.mkdir()
    async with agent_with(dialog_in(other), Mind(("Words.", SAID), price=dear), "A", options) as a:
        assert isinstance(await a.step(), Write)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    path = dialog_in(theirs, "**Budget:** $9999")
    head = parse(path.read_bytes()).header.text
    with_them = with_keys(head, Keys({"A": invitation()[1]}, {"Ada": invitation()[1]}))
    path.write_text(with_them + path.read_text().removeprefix(head))
    async with agent_with(path, Mind(("Words.", SAID), price=dear), "A", options) as a:
        ending = await a.step()
        assert isinstance(ending, Write)
        assert "A's own budget of $5.00" in ending.reason


async def test_half_and_four_fifths_of_the_budget_are_warned_of_once_each(tmp_path: Path) -> None:
    path = dialog_in(tmp_path, "**Budget:** 30,000 tokens")
    calls = [("Words.", Usage(tokens_in=used, tokens_out=0)) for used in (8_500, 8_500, 8_500)]
    async with agent_with(path, Mind(*calls)) as agent:
        with agent.hub.join() as events:
            for _ in calls:
                agent.wake()
                await agent.step()
                await agent.look(sure=True)
                person.say(log_of(path), "Go on.", to="A")
            await agent.hub.close()
            told = [event.data["text"] async for event in events if event.kind == "warning"]
    assert told == [
        "50% of the budget is spent: 17,000 of 30,000 tokens",
        "80% of the budget is spent: 25,500 of 30,000 tokens",
    ]


def booked(path: Path) -> list[dict[str, object]]:
    """What A's journal says was booked before calls, oldest first."""
    journal = log_of(path).journals.of("A")
    return [record["usage"] for record in journal.records() if record["kind"] == "calling"]


async def test_a_call_is_booked_before_it_is_made(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    seen: list[float] = []

    class Looking(Mind):
        async def reply(self, request: Request) -> AsyncIterator[str | Usage | Tool]:
            (owed,) = log_of(path).journals.of("A").owed()
            seen.append(owed["usd"])
            seen.append(DEAR.usd(tokens_of(request.prompt().text), 1_000))
            async for line in super().reply(request):
                yield line

    dialog = await step(path, Looking(("Postgres.", SAID), price=DEAR))
    assert seen[0] == pytest.approx(seen[1])
    assert account(dialog) == ("1", "1000", "100", "0.012")  # the real bill has taken its place
    assert log_of(path).journals.of("A").owed() == ()


async def test_each_attempt_is_booked_with_what_the_ones_before_it_cost(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    dialog = await step(path, Mind((SAID, BUSY), ("Postgres.", SAID), price=DEAR))
    first, second = booked(path)
    assert second["usd"] == pytest.approx(float(str(first["usd"])) + 0.012)
    assert account(dialog) == ("2", "2000", "200", "0.024")


async def test_a_turn_is_booked_as_dear_as_the_dearest_of_late(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    mind = Mind(("Postgres.", Usage("m-1", 90_000, 5_000, usd=0.7)), ("Redis.", SAID), price=None)
    mind.most_out = 0
    await step(path, mind)
    log = log_of(path)
    log.append(turn("B-3", "B", "A"), log.journals.of("B"))
    await step(path, mind)
    first, second = booked(path)
    assert (first["usd_known"], second["usd"], second["tokens_out"]) == (0, 0.7, 5_000)


async def test_what_cannot_be_booked_is_not_bought(tmp_path: Path) -> None:
    path, mind = dialog_in(tmp_path), Mind(("Postgres.", SAID), price=DEAR)
    async with agent_with(path, mind) as agent:
        with journal_refusing(agent), pytest.raises(UnsafeFile):
            await agent.step()
        assert mind.asked == []
        await agent.step()
    assert log_of(path).read().state.number == 2


async def test_a_reply_that_is_paid_for_is_written_after_a_restart_whatever_is_left(tmp_path: Path) -> None:
    path = dialog_in(tmp_path, "**Budget:** $0.03")
    log = log_of(path)
    debt = log.read().state.debt("A")
    log.journals.of("A").reply(Received(debt.key, "Postgres.", {"calls": 1, "usd": 0.012, "usd_known": 1}, 5))
    mind = Mind(price=Price(1_000.0, 1_000.0))
    dialog = await step(path, mind)
    assert dialog.turns[-1].body == "Postgres."
    assert dialog.state.spent["A"].usd == 0.012
    assert mind.asked == []

"""A digest of what no longer fits: one note, written once, paid by who needs it, read by nobody else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from dialogd import person
from dialogd.agent.turn import Behavior
from dialogd.backends import Usage
from dialogd.backends.parts import tokens_of
from dialogd.errors import BackendError, DialogdError
from dialogd.protocol.state import Dialog
from dialogd.store.logfile import LogFile
from tests.logfile.files import log_of
from tests.turns.minds import DEAR, Mind, agent_with, interrupted, journal_refusing, step
from tests.turns.test_spending import SAID, account, dialog_in

WINDOW = 1_500  # tokens
SUMMING_UP = Behavior(pace=0.0, poll=0.05, digest=True)
LONG = "Sessions and their cost. " * 60


async def long_talk(path: Path, turns: int) -> Dialog:
    """Agents A and B by turns, each turn some five hundred tokens."""
    for number in range(turns):
        dialog = await step(path, Mind((LONG, Usage(tokens_in=1, tokens_out=1))), "AB"[number % 2])
    return dialog


async def test_a_digest_is_written_once_before_the_turn_that_needs_it(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    await long_talk(path, 8)
    mind = Mind(("They differ on cost.", SAID), ("Postgres.", SAID), price=DEAR, room=WINDOW)
    dialog = await step(path, mind, options=SUMMING_UP)
    note, turn = dialog.entries[-2:]
    assert str(note.marks[0]).startswith("[DIGEST: A | turns 2 to ")
    assert str(note.marks[0]).endswith(" | $0.012]")
    assert note.body == "They differ on cost."
    assert turn.body == "Postgres."
    assert account(dialog)[:2] == ("1", "1000")
    assert dialog.state.spent["A"].usd > 0.024 - 1e-9
    assert "They differ on cost." in mind.asked[1].text
    assert tokens_of(mind.asked[1].text) < WINDOW + 600
    again = Mind(("Yes.",), price=DEAR, room=WINDOW)
    await step(path, Mind(("No.",)), "B")
    await step(path, again, options=SUMMING_UP)
    assert len(again.asked) == 1


async def test_without_the_option_a_line_says_what_is_missing(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    await long_talk(path, 8)
    mind = Mind(("Postgres.", SAID), price=DEAR, room=WINDOW)
    dialog = await step(path, mind)
    assert len(mind.asked) == 1
    assert "Left out here" in mind.asked[0].text
    assert not any(entry.mark("DIGEST") for entry in dialog.entries)


async def test_an_agent_with_room_enough_reads_the_turns_and_not_the_digest(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    await long_talk(path, 8)
    await step(path, Mind(("They differ on cost.",), ("Postgres.",), room=WINDOW), options=SUMMING_UP)
    mind = Mind(("Redis.",))
    await step(path, mind, "B")
    assert "They differ on cost." not in mind.asked[0].text
    assert mind.asked[0].text.count(LONG.strip()) == 8


@pytest.mark.parametrize("act", [person.say, person.stop], ids=["say", "stop"])
async def test_a_turn_that_passed_during_the_digest_is_not_bought(
    tmp_path: Path, act: Callable[[LogFile, str], object]
) -> None:
    path = dialog_in(tmp_path)
    await long_talk(path, 8)
    mind = Mind(("They", 20.0), ("Postgres.", SAID), room=WINDOW)
    async with agent_with(path, mind, options=SUMMING_UP) as agent:
        await interrupted(agent, lambda: len(mind.asked) == 1, act, path)
    assert len(mind.asked) == 1


async def test_a_pause_during_the_digest_holds_the_turn_back(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    await long_talk(path, 8)
    mind = Mind(("They differ.", 0.3), ("Postgres.", SAID), room=WINDOW)
    async with agent_with(path, mind, options=SUMMING_UP) as agent:
        await interrupted(agent, lambda: len(mind.asked) == 1, lambda log, _: person.pause(log), path)
    assert len(mind.asked) == 1
    assert any(entry.mark("DIGEST") for entry in log_of(path).read().entries)


async def test_a_digest_that_leaves_too_little_ends_the_dialog_before_the_turn(tmp_path: Path) -> None:
    path = dialog_in(tmp_path, "**Budget:** $0.10")
    await long_talk(path, 8)
    mind = Mind(("They differ.", Usage("m-1", 4_000, 2_000)), ("Postgres.", SAID), price=DEAR, room=WINDOW)
    await step(path, mind, options=SUMMING_UP)
    dialog = await step(path, mind, options=SUMMING_UP)
    assert len(mind.asked) == 1
    assert dialog.state.outcome.cause == "budget"


async def test_a_digest_is_left_out_where_the_budget_has_room_for_the_turn_only(tmp_path: Path) -> None:
    path = dialog_in(tmp_path, "**Budget:** $0.07")
    await long_talk(path, 8)
    mind = Mind(("Postgres.", Usage("m-1", 1_000, 0)), price=DEAR, room=WINDOW)
    dialog = await step(path, mind, options=SUMMING_UP)
    assert [turn.body for turn in dialog.turns[-1:]] == ["Postgres."]
    assert len(mind.asked) == 1


async def test_a_digest_that_cannot_be_kept_is_not_bought_again(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    await long_talk(path, 8)
    mind = Mind(("They differ.",), ("Postgres.",), room=WINDOW)
    async with agent_with(path, mind, options=SUMMING_UP) as agent:
        with journal_refusing(agent):
            for _ in range(3):
                with suppress(DialogdError):
                    await agent.step()
        await agent.step()
    assert len(mind.asked) == 2
    assert log_of(path).read().turns[-1].body == "Postgres."


async def test_a_digest_that_fails_costs_its_call_and_not_the_turn(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    await long_talk(path, 8)
    refused = BackendError("refused", fix="ask otherwise", kind="refusal")
    mind = Mind((SAID, refused), ("Postgres.", SAID), price=DEAR, room=WINDOW)
    dialog = await step(path, mind, options=SUMMING_UP)
    assert dialog.last.body == "Postgres."
    assert account(dialog)[:2] == ("2", "2000")

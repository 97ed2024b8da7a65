"""A digest of what no longer fits: one note, written once, paid by who needs it, read by nobody else."""

from __future__ import annotations

from pathlib import Path

from dialogd.asking import Options
from dialogd.backends import Usage
from dialogd.errors import BackendError
from dialogd.prompt import tokens_of
from dialogd.protocol.model import Dialog
from tests.turns.minds import DEAR, Mind, step
from tests.turns.test_spending import SAID, account, dialog_in

WINDOW = 1_500  # tokens
SUMMING_UP = Options(pace=0.0, poll=0.05, digest=True)
LONG = "Sessions and their cost. " * 60


async def long_talk(path: Path, turns: int) -> Dialog:
    """Agents A and B by turns, each turn some five hundred tokens."""
    for number in range(turns):
        dialog = await step(path, Mind((LONG, Usage(tokens_in=1, tokens_out=1))), "AB"[number % 2])
    return dialog


async def test_a_digest_is_written_once_before_the_turn_that_needs_it(tmp_path: Path) -> None:
    """The note names its author, the turns and the cost; the turn's prompt has it in the place of the turns."""
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
    """No note, no second call."""
    path = dialog_in(tmp_path)
    await long_talk(path, 8)
    mind = Mind(("Postgres.", SAID), price=DEAR, room=WINDOW)
    dialog = await step(path, mind)
    assert len(mind.asked) == 1
    assert "Left out here" in mind.asked[0].text
    assert not any(entry.mark("DIGEST") for entry in dialog.entries)


async def test_an_agent_with_room_enough_reads_the_turns_and_not_the_digest(tmp_path: Path) -> None:
    """The other agent's prompt has everything verbatim, and no digest."""
    path = dialog_in(tmp_path)
    await long_talk(path, 8)
    await step(path, Mind(("They differ on cost.",), ("Postgres.",), room=WINDOW), options=SUMMING_UP)
    mind = Mind(("Redis.",))
    await step(path, mind, "B")
    assert "They differ on cost." not in mind.asked[0].text
    assert mind.asked[0].text.count(LONG.strip()) == 8


async def test_a_digest_that_fails_costs_its_call_and_not_the_turn(tmp_path: Path) -> None:
    """The turn is taken without it; what the failed call used stands in the turn's frame."""
    path = dialog_in(tmp_path)
    await long_talk(path, 8)
    refused = BackendError("refused", fix="ask otherwise", kind="refusal")
    mind = Mind((SAID, refused), ("Postgres.", SAID), price=DEAR, room=WINDOW)
    dialog = await step(path, mind, options=SUMMING_UP)
    assert dialog.last is not None
    assert dialog.last.body == "Postgres."
    assert account(dialog)[:2] == ("2", "2000")

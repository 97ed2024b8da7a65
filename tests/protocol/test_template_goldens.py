"""Every shipped template as a whole dialog, by rehearsed agents through the real core: files that people can read.

`UPDATE_GOLDENS=1 pytest tests/protocol/test_template_goldens.py` writes them anew: read the difference.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dialogd.agent.prompt import Prompts
from dialogd.backends import Options, Request, load_backend
from dialogd.cli.create import Start, draw_up, read_cast, usual_ports
from dialogd.protocol.decide import Reply, Write
from dialogd.protocol.grammar import parse
from dialogd.protocol.model import USER
from dialogd.templates import compose, names, template
from tests.support.cases import cases
from tests.support.room import Room

GOLDEN = Path(__file__).with_name("golden") / "templates"
UPDATE = bool(os.environ.get("UPDATE_GOLDENS"))
STARTED = datetime(2026, 11, 21, 19, 0, 0, tzinfo=UTC)
HELD = [name for name in names() if name != "build"]  # which needs a repository, and a person who confirms
ENDS = {
    "mutual": {"CONSENSUS_REACHED", "MAX_TURNS_REACHED"},
    "vote": {"DECIDED", "MAX_TURNS_REACHED"},
    "moderator": {"DECIDED"},
    "judge": {"DECIDED"},
}


def begun(name: str) -> Room:
    """A room with a new dialog from that template, as `dialogd new` writes it."""
    wanted = Start("Where should user sessions live?", template=name)
    seats = read_cast(",".join(["rehearsal"] * template(name).seats), None, template(name))
    opening = draw_up(wanted, seats, usual_ports(seats))
    return Room(compose(replace(opening, dialog="3f9a1c", started=STARTED, rehearsed=())))


async def _said(request: Request) -> str:
    backend = load_backend("rehearsal", Options())
    return "".join([piece async for piece in backend.reply(request) if isinstance(piece, str)])


def rehearse(room: Room, me: str) -> str:
    """What a rehearsed agent says to the dialog as it stands."""
    dialog = room.dialog
    agent = dialog.header.agent(me)
    assert agent is not None
    request = Request(dialog, agent, dialog.state.number + 1, Path("dialog.md"), lambda: Prompts().turn(dialog, agent))
    return asyncio.run(_said(request))


def play(room: Room, most: int = 80) -> None:
    """Let everybody speak until the dialog ends or waits for the person."""
    for _ in range(most):
        before = room.paper.data
        for agent in room.dialog.header.agents:
            action = room.look(agent.id)
            if isinstance(action, Reply) and agent.id not in room.sealed:
                room.scripts[agent.id] = [rehearse(room, agent.id)]
            if isinstance(action, Reply | Write):
                room.step(agent.id)
            room.advance(1)
        if room.paper.data == before:
            return
    raise AssertionError("still going on")


@cases("name", HELD)
def test_a_template_holds_a_dialog_to_its_end(name: str) -> None:
    room = begun(name)
    play(room)
    state, rules = room.dialog.state, room.dialog.header.rules
    path = GOLDEN / f"{name}.md"
    if UPDATE:
        path.write_text(room.text, encoding="utf-8")
        return
    assert room.text == path.read_text(encoding="utf-8")
    assert parse(room.paper.data) == room.dialog
    assert room.dialog.header.warnings == ()
    assert room.questions == []
    assert state.outcome is not None, state.owing
    assert state.outcome.name in ENDS[rules.verdict]


def test_every_golden_is_that_of_a_template() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.md")) == HELD


def test_an_observer_and_a_judge_get_no_turn_before_the_end() -> None:
    for name in HELD:
        room = begun(name)
        play(room)
        rules = room.dialog.header.rules
        spoke = [entry.by for entry in room.dialog.turns if entry.by != USER]
        assert all(rules.role(who).speaks for who in spoke)
        assert rules.judge not in spoke[:-2] if rules.judge else True


@cases(
    ("lines", "outcome"),
    [
        (["[DEADLOCK]"], "DEADLOCK"),
        (["[PASS]", "[PASS]", "[DEADLOCK]"], "DEADLOCK"),
        (["[PASS]", "[PASS]"], ""),
        (["[ESCALATE: who is to decide?]"], ""),
    ],
)
def test_a_pair_seals_its_first_answers_and_is_plain_for_the_rest(lines: list[str], outcome: str) -> None:
    room = begun("pair")
    assert room.owing == ("A", "B")
    for who in "AB":
        room.scripts[who] = [f"{who} knows this.", *lines]
    room.run()
    said = [(entry.by, entry.body) for entry in room.dialog.turns[1:3]]
    assert said == [("A", "A knows this."), ("B", "B knows this.")]
    assert [len(entry.all("SEALED")) for entry in room.dialog.entries[1:3]] == [1, 1]
    assert (room.outcome, room.asked, "USER" in room.owing) == (outcome, [], False)
    assert not [mark for entry in room.dialog.entries for mark in entry.all("REFUSED")]


def test_system_design_followed_to_the_letter_ends_with_a_decision() -> None:
    design = "One table.\n\n## Consensus Summary\n\nSessions live in Postgres.\n\n[CONSENSUS_REACHED]"
    yes = "[VOTE: P1 approve | it holds]\n[RESERVATION: the disk may fill]"
    here = begun("system-design")
    here.talk(*["A thousand a second."] * 4, design)
    asked = here.thinks("B")
    assert "Phase 2 of 3, DESIGN" in asked
    assert "DECISION" not in asked
    assert "waits for your vote" not in asked
    here.answers("B", "Four milliseconds.")
    here.talk("Who can read the table?", "What if the disk is full?", *["As it stands."] * 4)
    assert (here.dialog.state.table.decisions, here.outcome) == ((), "")
    assert "Phase 3 of 3, DECISION" in here.thinks("A")
    here.answers("A", "It is yours to decide.")
    assert "The proposal P1 waits for your vote" in here.thinks("B")
    here.answers("B", yes)
    here.talk(yes, yes)
    (found,) = here.dialog.state.table.decisions
    assert (found.ref, found.outcome, here.outcome) == ("P1", "approved", "DECIDED")

"""What can be noticed from outside: said to prompts, status and events, never a verdict."""

from __future__ import annotations

from dialogd.protocol.grammar import parse
from dialogd.protocol.lifecycle import WINDOW, convergence, signals
from tests.support.cases import cases
from tests.support.room import Room, opening

SAME = "Postgres keeps sessions safely across restarts, and nothing else must be operated."


def talk(*lines: str, agents: str = "AB", setup: str = "") -> Room:
    """A room in which the lines were said, in order, by whoever's turn it was."""
    return Room(opening(*agents, keys=["Max Turns: 100"], more=setup)).talk(*lines)


def kinds(room: Room) -> list[str]:
    """The kinds of all signals, in order."""
    return [signal.kind for signal in signals(room.dialog)]


def said(number: int, by: str = "B") -> str:
    """Words that nobody said before."""
    return " ".join(f"{by.lower()}{word}{number}word" for word in ("first", "second", "third", "fourth"))


def test_a_dialog_at_its_beginning_has_no_signals() -> None:
    assert kinds(Room(opening())) == []
    assert kinds(talk(*(said(n) for n in range(6)))) == []


def test_the_same_said_three_times_is_a_warning_and_then_a_deadlock_is_suggested() -> None:
    lines: list[str] = []
    expected = [[], [], ["repetition"], ["deadlock_suggested"], ["deadlock_suggested"]]
    for round_, kind in enumerate(expected):
        lines += [f"{SAME} Really{'!' * round_}", said(round_)]
        room = talk(*lines)
        assert [k for k in kinds(room) if k in ("repetition", "deadlock_suggested")] == kind
    noticed = signals(talk(*lines[:6]).dialog)[0]
    assert (noticed.agents, "three times" in noticed.text) == (("A",), True)
    assert "call it a deadlock" in signals(room.dialog)[0].text


@cases("length", [2, 3, 4])
def test_a_cycle_of_turns_is_noticed_and_then_a_deadlock_is_suggested(length: int) -> None:
    agents = "ABC" if length == 3 else "AB"
    turns = [said(n, "ABC"[n % len(agents)]) for n in range(length)]
    assert kinds(talk(*turns, agents=agents)) == []
    assert kinds(talk(*turns, *turns, agents=agents)) == ["cycle"]
    assert "deadlock_suggested" in kinds(talk(*turns, *turns, *turns, agents=agents))


def test_a_word_of_the_persons_an_end_or_something_else_in_between_is_no_repetition() -> None:
    assert kinds(talk(SAME, said(1), SAME, said(2), said(3, "A"), said(4), SAME, said(5))) == []
    for act in (lambda room: room.say("Then do it."), lambda room: room.stop()):
        room = talk(SAME, said(1), SAME, said(2), SAME)
        assert kinds(room) == ["repetition"]
        act(room)
        assert kinds(room) == []


def test_only_the_last_turns_are_looked_at() -> None:
    room = talk(*(said(n) for n in range(60)))
    one, all_of_it = talk(SAME), room.dialog
    assert kinds(one) == kinds(room) == []
    assert len(all_of_it.turns) > WINDOW
    assert signals(parse(room.paper.data)) == signals(all_of_it)


def test_a_repetition_is_told_to_the_agent_it_concerns() -> None:
    room = talk(SAME, said(1), SAME, said(2), SAME, said(3))
    assert "nearly the same thing three times" in room.thinks("A")
    room.answers("A", said(4, "A"))
    assert "nearly the same thing" not in room.thinks("B")


TEXT = "## Consensus Summary\n\nPostgres.\n\n[CONSENSUS_REACHED]"

# What was said, in order, and how far that converges.
CONVERGENCE: list[tuple[tuple[str, ...], float | None]] = [
    ((), None),
    (("Postgres.",), None),
    (("Postgres.", "Why?"), 0.5),
    (("I agree, Postgres.", "You’re right. Let's proceed."), 1.0),
    (("I agree.", "I do not agree."), 0.5),
    (("I still think that Redis is better.", "I disagree."), 0.0),
    (("> I agree", "Why?"), 0.5),
    (("I disagree.\n\n[CONCEDE: the cost]", "Why?"), 0.75),
    (("Postgres.\n\n[PROPOSAL: Postgres]", "[OBJECTION: dear]"), 0.25),
    (("I agree. However, I see the cost.", "Why?"), 0.5),
    ((TEXT, "Hm."), 0.75),
    ((TEXT, "[AGREE: P1]"), 1.0),
    (("I agree.", "I agree.", "I disagree.", "I disagree."), 0.0),
]


@cases("lines, near", CONVERGENCE)
def test_how_far_the_latest_replies_agree(lines: tuple[str, ...], near: float | None) -> None:
    assert convergence(talk(*lines).dialog) == near


def test_a_word_of_the_persons_begins_anew_and_an_end_is_no_agreement() -> None:
    room = talk("I disagree.", "I object.")
    room.stop()
    assert convergence(room.dialog) == 0.0
    room = talk("I agree.", "I agree.")
    room.say("Are you sure?")
    assert convergence(room.dialog) is None

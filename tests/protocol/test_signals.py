"""What can be noticed from outside: said to prompts, status and events, never a verdict."""

from __future__ import annotations

import pytest

from dialogd.protocol.grammar import parse
from dialogd.protocol.signals import WINDOW, overlap, signals
from dialogd.testing.room import Room, opening

SAME = "Postgres keeps sessions safely across restarts, and nothing else must be operated."


def talk(*lines: str, agents: str = "AB") -> Room:
    """A room in which the lines were said, in order, by whoever's turn it was."""
    room = Room(opening(*agents, keys=["Max Turns: 100"]))
    for line in lines:
        (me,) = room.dialog.state.owing
        room.thinks(me)
        room.answers(me, line)
    return room


def kinds(room: Room) -> list[str]:
    """The kinds of all signals, in order."""
    return [signal.kind for signal in signals(room.dialog)]


def said(number: int, by: str = "B") -> str:
    """Words that nobody said before."""
    return " ".join(f"{by.lower()}{word}{number}word" for word in ("first", "second", "third", "fourth"))


def test_a_dialog_at_its_beginning_has_no_signals() -> None:
    """Nothing said, or nothing twice: nothing to notice."""
    assert kinds(Room(opening())) == []
    assert kinds(talk(*(said(n) for n in range(6)))) == []


def test_the_same_said_three_times_is_a_warning_and_then_a_deadlock_is_suggested() -> None:
    """Twice is a habit; three times is noticed once; the fourth time suggests the way out."""
    lines: list[str] = []
    expected = [[], [], ["repetition"], ["deadlock_suggested"], ["deadlock_suggested"]]
    for round_, kind in enumerate(expected):
        lines += [f"{SAME} Really{'!' * round_}", said(round_)]
        room = talk(*lines)
        assert [k for k in kinds(room) if k in ("repetition", "deadlock_suggested")] == kind
    noticed = signals(talk(*lines[:6]).dialog)[0]
    assert (noticed.agents, "three times" in noticed.text) == (("A",), True)
    assert "[DEADLOCK]" in signals(room.dialog)[0].text


def test_saying_something_else_in_between_is_no_repetition() -> None:
    """The last three texts count, not any three."""
    assert kinds(talk(SAME, said(1), SAME, said(2), said(3, "A"), said(4), SAME, said(5))) == []


def test_a_turn_of_the_persons_begins_anew() -> None:
    """What was said before the person spoke is not held against anybody."""
    room = talk(SAME, said(1), SAME, said(2), SAME)
    assert kinds(room) == ["repetition"]
    room.say("Then do it.")
    assert kinds(room) == []


@pytest.mark.parametrize("length", [2, 3, 4])
def test_a_cycle_of_turns_is_noticed_and_then_a_deadlock_is_suggested(length: int) -> None:
    """The same turns again: a warning; a third time: a deadlock."""
    agents = "ABC" if length == 3 else "AB"
    turns = [said(n, "ABC"[n % len(agents)]) for n in range(length)]
    assert kinds(talk(*turns, agents=agents)) == []
    assert kinds(talk(*turns, *turns, agents=agents)) == ["cycle"]
    assert "deadlock_suggested" in kinds(talk(*turns, *turns, *turns, agents=agents))


def test_a_proposal_and_its_acceptance_are_noticed() -> None:
    """By another agent, of an open proposal; not by its author, and not for a number that nobody proposed."""
    proposal = f"{said(1, 'A')}\n[PROPOSAL: Postgres]"
    assert kinds(talk(proposal, f"{said(2)}\n[AGREE: P1]")) == ["accepted"]
    assert kinds(talk(proposal, f"{said(2)}\n[AGREE P1: fine]")) == ["accepted"]
    assert kinds(talk(proposal, said(2), f"{said(3, 'A')}\n[AGREE: P1]")) == []
    assert kinds(talk(proposal, f"{said(2)}\n[AGREE: P2]")) == []
    signal = signals(talk(proposal, f"{said(2)}\n[AGREE: P1]").dialog)[0]
    assert (signal.agents, "B accepts P1 of A" in signal.text) == (("B", "A"), True)


def test_agreement_in_consecutive_turns_is_noticed() -> None:
    """Two agents, one after the other, agree or concede."""
    assert kinds(talk(f"{said(1, 'A')}\n[CONCEDE: true]", f"{said(2)}\n[AGREE: with that]")) == ["agreement"]
    assert kinds(talk(f"{said(1, 'A')}\n[CONCEDE: true]", said(2))) == []


def test_no_new_objection_for_two_turns_is_noticed() -> None:
    """There was one, and then none in two turns."""
    objection = f"{said(1, 'A')}\n[OBJECTION: cost]"
    assert kinds(talk(objection, said(2))) == []
    assert kinds(talk(objection, said(2), said(3, "A"))) == ["no_new_objection"]
    assert kinds(talk(objection, said(2), f"{said(3, 'A')}\n[CRITIQUE]")) == []


def test_only_the_last_turns_are_looked_at() -> None:
    """A dialog of hundreds of turns costs what its last ones cost."""
    room = talk(*(said(n) for n in range(60)))
    one, all_of_it = talk(SAME), room.dialog
    assert kinds(one) == kinds(room) == []
    assert len(all_of_it.turns) > WINDOW
    assert signals(parse(room.paper.data)) == signals(all_of_it)


def test_signals_are_told_to_the_agents_they_concern() -> None:
    """A warning of repetition goes to the one who repeats; what is in the air goes to everybody."""
    room = talk(SAME, said(1), SAME, said(2), SAME, said(3))
    assert "nearly the same thing three times" in room.thinks("A")
    room.answers("A", f"{said(4, 'A')}\n[PROPOSAL: Postgres]")
    assert "nearly the same thing" not in room.thinks("B")
    room.answers("B", "[AGREE: P1]")
    assert "B accepts P1 of A" in room.thinks("A")


def test_overlap_counts_words_of_four_letters_or_more() -> None:
    """Intersection over union; texts without such words are the same."""
    assert overlap("keep them in Postgres", "KEEP them, in postgres!") == 1.0
    assert overlap("Postgres", "Redis or memcached") == 0.0
    assert overlap("a b c", "") == 1.0

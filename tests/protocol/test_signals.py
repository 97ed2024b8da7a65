"""What can be noticed from outside: said to prompts, status and events, never a verdict."""

from __future__ import annotations

from dialogd.protocol.grammar import parse
from dialogd.protocol.signals import WINDOW, signals
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
    assert "[DEADLOCK]" in signals(room.dialog)[0].text


def test_saying_something_else_in_between_is_no_repetition() -> None:
    assert kinds(talk(SAME, said(1), SAME, said(2), said(3, "A"), said(4), SAME, said(5))) == []


def test_a_turn_of_the_persons_begins_anew() -> None:
    room = talk(SAME, said(1), SAME, said(2), SAME)
    assert kinds(room) == ["repetition"]
    room.say("Then do it.")
    assert kinds(room) == []


@cases("length", [2, 3, 4])
def test_a_cycle_of_turns_is_noticed_and_then_a_deadlock_is_suggested(length: int) -> None:
    agents = "ABC" if length == 3 else "AB"
    turns = [said(n, "ABC"[n % len(agents)]) for n in range(length)]
    assert kinds(talk(*turns, agents=agents)) == []
    assert kinds(talk(*turns, *turns, agents=agents)) == ["cycle"]
    assert "deadlock_suggested" in kinds(talk(*turns, *turns, *turns, agents=agents))


def test_a_proposal_and_its_acceptance_are_noticed() -> None:
    proposal = f"{said(1, 'A')}\n[PROPOSAL: Postgres]"
    assert kinds(talk(proposal, f"{said(2)}\n[AGREE: P1]")) == ["accepted"]
    assert kinds(talk(proposal, f"{said(2)}\n[AGREE: P1 | fine]")) == ["accepted"]
    assert kinds(talk(proposal, said(2), f"{said(3, 'A')}\n[AGREE: P1]")) == []
    assert kinds(talk(proposal, f"{said(2)}\n[AGREE: P2]")) == []
    signal = signals(talk(proposal, f"{said(2)}\n[AGREE: P1]").dialog)[0]
    assert (signal.agents, "B accepts P1 of A" in signal.text) == (("B", "A"), True)


def test_agreement_in_consecutive_turns_is_noticed() -> None:
    assert kinds(talk(f"{said(1, 'A')}\n[CONCEDE: true]", f"{said(2)}\n[CONCEDE: so it is]")) == ["agreement"]
    assert kinds(talk(f"{said(1, 'A')}\n[CONCEDE: true]", said(2))) == []


def test_no_new_objection_for_two_turns_is_noticed() -> None:
    objection = f"{said(1, 'A')}\n[OBJECTION: cost]"
    assert kinds(talk(objection, said(2))) == []
    assert kinds(talk(objection, said(2), said(3, "A"))) == ["no_new_objection"]
    assert kinds(talk(objection, said(2), f"{said(3, 'A')}\n[CRITIQUE: cost]")) == []


def test_only_the_last_turns_are_looked_at() -> None:
    room = talk(*(said(n) for n in range(60)))
    one, all_of_it = talk(SAME), room.dialog
    assert kinds(one) == kinds(room) == []
    assert len(all_of_it.turns) > WINDOW
    assert signals(parse(room.paper.data)) == signals(all_of_it)


def test_signals_are_told_to_the_agents_they_concern() -> None:
    room = talk(SAME, said(1), SAME, said(2), SAME, said(3))
    assert "nearly the same thing three times" in room.thinks("A")
    room.answers("A", f"{said(4, 'A')}\n[PROPOSAL: Postgres]")
    assert "nearly the same thing" not in room.thinks("B")
    room.answers("B", "[AGREE: P1]")
    assert "B accepts P1 of A" in room.thinks("A")


VOTE = '## Setup\n\n```toml\nverdict = "vote"\norder = "free"\n```'
ROUND = VOTE.replace("free", "round-robin")


def text(version: int) -> str:
    """A consensus text of one's own."""
    return f"{said(version)}\n\n## Consensus Summary\n\nPostgres, version {version}.\n\n[CONSENSUS_REACHED]"


def of(kind: str, room: Room) -> list[tuple[tuple[str, ...], str]]:
    """Whom the signals of one kind concern, and what they say."""
    return [(signal.agents, signal.text) for signal in signals(room.dialog) if signal.kind == kind]


@cases("line", ["[CONCEDE: my doubts]", "You're right. Let's proceed.", "Fine.\n[VOTE: P1 approve | fine]"])
def test_agents_that_agree_at_once_are_noticed(line: str) -> None:
    room = talk(f"{said(1, 'A')}\n[PROPOSAL: Postgres]", f"{said(2)}\n{line}", setup=VOTE)
    ((agents, words),) = of("quick_agreement", room)
    assert (agents, words) == (("B",), "B agrees in the very first exchange; argue against it once before it counts")


def test_all_who_agree_at_once_are_named() -> None:
    lines = [f"{said(1, 'A')}\n[PROPOSAL: Postgres]", f"{said(2)}\n[AGREE: P1]", f"{said(3, 'C')}\nI agree."]
    ((agents, words),) = of("quick_agreement", talk(*lines, agents="ABC", setup=ROUND.replace("vote", "moderator")))
    assert (agents, words[:20]) == (("B", "C"), "B and C agree in the")


@cases("line", ["Hm.", "I agree. However, I see the cost.", "I do not agree.\n[PROPOSAL: x]"])
def test_an_answer_that_objects_is_no_quick_agreement(line: str) -> None:
    assert of("quick_agreement", talk(said(1, "A"), f"{said(2)} {line}", setup=VOTE)) == []


def test_agreement_after_the_first_exchange_is_not_quick() -> None:
    lines = [said(1, "A"), f"{said(2)}\n[CONCEDE: that]"]
    assert of("quick_agreement", talk(*lines, said(3, "A"), setup=VOTE)) == []
    assert of("quick_agreement", talk("I agree with the question.", said(2), setup=VOTE)) == []
    assert of("quick_agreement", talk(*lines)) == []


def test_a_word_of_the_persons_in_between_makes_no_first_exchange() -> None:
    room = talk(said(1, "A"), said(2), said(3, "A"), said(4), setup=VOTE)
    room.say("Well?")
    for me, line in (("A", said(5, "A")), ("B", f"{said(6)}\n[CONCEDE: that]")):
        room.says(me, line)
    assert of("quick_agreement", room) == []


@cases("setup", ["", ROUND])
def test_a_change_of_position_without_a_cause_is_noticed(setup: str) -> None:
    lines = [f"{said(1, 'A')}\n[PROPOSAL: Postgres]", said(2), f"{said(3, 'A')}\n[CONCEDE: P1, dear]"]
    ((agents, words),) = of("flip", talk(*lines, setup=setup))
    assert agents == ("A",)
    assert words == "A is now giving up P1, without [EVIDENCE] or [RE] to say what changed"
    assert of("flip", talk(*lines, said(4), setup=setup)) != []
    assert of("flip", talk(*lines, said(4), said(5, "A"), setup=setup)) == []
    assert of("flip", talk(*lines[:2], f"{lines[2]}\n[RE: turn 3]", setup=setup)) == []


def test_agents_that_swap_positions_are_noticed_one_after_the_other() -> None:
    lines = [f"{said(1, 'A')}\n[PROPOSAL: Postgres]", f"{said(2)}\n[OBJECTION: P1, dear]"]
    room = talk(*lines, f"{said(3, 'A')}\n[CONCEDE: P1, dear]", f"{said(4)}\n[AGREE: P1]")
    assert [agents for agents, _ in of("flip", room)] == [("B",)]
    assert of("flip", room)[0][1].startswith("B is now for P1, ")


def test_who_spoke_twice_and_has_not_voted_is_noticed() -> None:
    room = Room(opening("A", "B", "C", keys=["Max Turns: 100"], more=VOTE))

    def says(me: str, line: str) -> list[tuple[tuple[str, ...], str]]:
        room.says(me, line)
        return of("absent_vote", room)

    assert says("A", f"{said(8, 'A')}\n[TO: B]") == says("B", f"{said(9)}\n[TO: A]") == []
    assert says("A", f"{said(1, 'A')}\n[PROPOSAL: Postgres]\n[TO: B]") == []
    assert says("B", f"{said(2)}\n[TO: A]") == []
    assert says("A", f"{said(3, 'A')}\n[VOTE: P1 approve | cheap]\n[TO: B]") == []
    assert says("B", f"{said(4)}\n[TO: A]") == [(("B",), "B spoke twice and has not voted on P1")]
    assert says("A", f"{said(5, 'A')}\n[TO: B]") == [(("B",), "B spoke twice and has not voted on P1")]
    assert says("B", f"{said(6)}\n[VOTE: P1 abstain | unsure]\n[TO: A]") == []


def test_who_never_votes_is_noticed_when_the_second_vote_is_over() -> None:
    lines = [
        f"{said(1, 'A')}\n[PROPOSAL: Postgres]",
        f"{said(2)}\n[VOTE: P1 reject | dear]",
        said(3, "C"),
        f"{said(4, 'A')}\n[VOTE: P1 approve | cheap]\n[PROPOSAL: Redis]",
        f"{said(5)}\n[VOTE: P2 reject | dear]",
        said(6, "C"),
        f"{said(7, 'A')}\n[VOTE: P2 approve | cheap]",
    ]
    room = talk(*lines, agents="ABC", setup=ROUND.replace("verdict", "quorum = 1.0\nverdict"))
    assert [decision.ref for decision in room.dialog.state.table.decisions] == ["P1", "P2"]
    assert of("absent_vote", room) == [(("C",), "C gave no vote on P1 and P2")]


def test_one_vote_missed_is_not_noticed_and_other_verdicts_have_no_votes() -> None:
    setup = ROUND.replace("verdict", "quorum = 1.0\nverdict")
    lines = [f"{said(1, 'A')}\n[PROPOSAL: Postgres]", f"{said(2)}\n[VOTE: P1 reject | dear]"]
    room = talk(*lines, said(3, "C"), said(4, "A"), agents="ABC", setup=setup)
    assert len(room.dialog.state.table.decisions) == 1
    assert of("absent_vote", room) == []


def test_a_text_that_is_reworded_for_ever_is_noticed() -> None:
    assert of("rewording", talk(text(1), text(2))) == []
    ((agents, words),) = of("rewording", talk(text(1), text(2), text(3)))
    assert agents == ("A", "B")
    assert words == (
        "the text on the table was reworded 2 times, by A and B; sign P3 as it stands, or object with a reason"
    )


def test_rewording_is_over_with_an_objection_or_the_end() -> None:
    lines = [text(1), text(2), text(3)]
    assert of("rewording", talk(*lines, f"{said(4)}\n[OBJECTION: dear]")) == []
    ended = talk(*lines, f"{said(4)}\n[AGREE: P3]")
    assert (ended.dialog.state.outcome is not None, of("rewording", ended)) == (True, [])


def test_what_to_do_with_an_accepted_proposal_depends_on_the_verdict() -> None:
    lines = [f"{said(1, 'A')}\n[PROPOSAL: Postgres]", f"{said(2)}\n[AGREE: P1]"]
    assert of("accepted", talk(*lines))[0][1].endswith("write it as the consensus text")
    moderated = VOTE.replace("vote", "moderator")
    assert of("accepted", talk(*lines, setup=moderated))[0][1] == "B accepts P1 of A"

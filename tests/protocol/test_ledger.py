"""The ledger: what each agent held of each proposal, since when, since when."""

from __future__ import annotations

from dialogd.protocol.board import Position, latest, positions
from dialogd.protocol.grammar import parse
from dialogd.protocol.header import read_header
from dialogd.protocol.model import Condition, Entry, Mark
from dialogd.protocol.state import Dialog, Proposal
from tests.support.cases import cases
from tests.support.room import Room, opening
from tests.support.states import state_with

VOTE = '## Setup\n\n```toml\nverdict = "vote"\norder = "free"\n```'
SIGN = "## Consensus Summary\n\nPostgres, version {}.\n\n[CONSENSUS_REACHED]"


def talk(*lines: str, agents: str = "AB", setup: str = "") -> Room:
    """A room in which the lines were said, in order, by whoever's turn it was."""
    return Room(opening(*agents, keys=["Max Turns: 200"], more=setup)).talk(*lines)


def ledger(*lines: str, agents: str = "AB", setup: str = "") -> list[tuple[str, str, str, int]]:
    """What the ledger says of a talk."""
    found = positions(talk(*lines, agents=agents, setup=setup).dialog)
    return [(p.agent, p.ref, p.stance, p.turn) for p in found]


def last(*lines: str, setup: str = "") -> Position:
    """The last position of a talk."""
    return positions(talk(*lines, setup=setup).dialog)[-1]


def test_a_dialog_without_positions_has_an_empty_ledger() -> None:
    assert ledger() == ledger("Hm.", "[IDEA: Redis]", "[CRITIQUE: dear]", "[PASS]") == []


def test_a_proposal_is_a_position_of_its_author() -> None:
    assert ledger("[PROPOSAL: Postgres]\n[PROPOSAL: Redis]", SIGN.format(1)) == [
        ("A", "P1", "for", 2),
        ("A", "P2", "for", 2),
        ("B", "P3", "for", 3),
    ]


@cases(
    ("line", "refs"),
    [
        ("[AGREE: P1]", ["P1"]),
        ("[AGREE: P1 | cheap]", ["P1"]),
        ("[AGREE: P1]\n[AGREE: P2 | cheap]", ["P1", "P2"]),
        ("[AGREE: P2, simpler than P1]", []),
        ("[AGREE: P1 if it is tested]", []),
        ("[AGREE: with that]", []),
    ],
)
def test_agreement_is_a_position_for_what_it_names(line: str, refs: list[str]) -> None:
    found = ledger("[PROPOSAL: Postgres]\n[PROPOSAL: Redis]", f"Fine.\n{line}")
    assert found[2:] == [("B", ref, "for", 3) for ref in refs]


@cases(("choice", "stance"), [("approve", "for"), ("reject", "against"), ("abstain", "open")])
def test_votes_are_positions(choice: str, stance: str) -> None:
    """Approve, reject and abstain."""
    assert last("[PROPOSAL: Postgres]", f"Hm.\n[VOTE: P1 {choice} | I looked]", setup=VOTE) == Position(
        "B", "P1", stance, 3
    )


@cases(("choice", "stance"), [("approve", "for"), ("reject", "against")])
def test_a_decision_asked_for_is_a_position(choice: str, stance: str) -> None:
    setup = '## Setup\n\n```toml\n[roles.B]\nrole = "synthesizer"\n```'
    said = ["[PROPOSAL: Postgres]", f"Hm.\n[DECIDE: P1 {choice} | I looked]"]
    assert last(*said, setup=setup) == Position("B", "P1", stance, 3)


@cases(
    "line",
    [
        "[OBJECTION P1: dear]",
        "[OBJECTION: P1 is dear]",
        "[OBJECTION: dear]\n[RE: P1]",
        "[OBJECTION: dear]\n[RE: turn 2]",
        "[OBJECTION: dear]\n[RE: P1]\n[AGREE: P1]",
    ],
)
def test_an_objection_is_a_position_against_what_it_answers(line: str) -> None:
    assert ledger("[PROPOSAL: Postgres]", f"No.\n{line}")[1:] == [("B", "P1", "against", 3)]


def test_an_objection_to_nothing_named_is_against_the_text_on_the_table() -> None:
    said = ["[PROPOSAL: Postgres]", SIGN.format(1)]
    assert ledger(*said, "No.\n[OBJECTION: dear]")[-1] == ("A", "P2", "against", 4)
    assert ledger("[PROPOSAL: Postgres]", "No.\n[OBJECTION: dear]") == [("A", "P1", "for", 2)]
    assert ledger(*said, "No.\n[OBJECTION: dear]", "No.\n[OBJECTION: late]")[-1] == ("A", "P2", "against", 4)
    room = talk(*said)
    room.say("Go on.")
    room.says("A", "No.\n[OBJECTION: dear]")
    assert [p.ref for p in positions(room.dialog)] == ["P1", "P2"]


@cases(
    ("line", "against"),
    [
        ("[OBJECTION: a copy proves nothing]\n[RE: 3, P1]", ["P2"]),
        ("[OBJECTION: a copy proves nothing]\n[RE: P1]", []),
        ("[OBJECTION: a copy proves nothing]\n[RE: turn 2]", []),
        ("[OBJECTION: a copy proves nothing]\n[RE: P1, P2]", ["P2"]),
        ("[OBJECTION: a copy proves nothing]\n[RE: 2, 3]", ["P2"]),
        ("[OBJECTION: P1 proves nothing]", []),
        ("[OBJECTION: P1 is not slower]\n[RE: P2]", ["P2"]),
        ("[OBJECTION: P1, P2 prove nothing]", ["P2"]),
    ],
)
def test_whoever_defends_its_own_proposal_with_an_objection_is_still_for_it(line: str, against: list[str]) -> None:
    held = latest(positions(talk("[PROPOSAL: Postgres]", "[PROPOSAL: Redis]", f"No.\n{line}").dialog))
    assert [ref for (agent, ref), held_ in held.items() if (agent, held_.stance) == ("A", "against")] == against
    assert held["A", "P1"].stance == "for"


def test_an_objection_beside_ones_own_text_is_no_word_against_it() -> None:
    said = ["[PROPOSAL: Postgres]", SIGN.format(1), "Dear.", "No, that is not what it says.\n[OBJECTION: not so]"]
    assert ledger(*said) == [("A", "P1", "for", 2), ("B", "P2", "for", 3)]


@cases("line", ["[CONCEDE P1: B is right]", "[CONCEDE: P1, B is right]", "[CONCEDE: cost]\n[RE: P1]"])
def test_conceding_gives_a_position_up(line: str) -> None:
    assert ledger("[PROPOSAL: Postgres]", "Hm.", f"Well.\n{line}")[1:] == [("A", "P1", "conceded", 4)]


def test_conceding_a_point_while_agreeing_gives_up_nothing_else() -> None:
    assert ledger("[PROPOSAL: Postgres]", "Well.\n[CONCEDE: cost]\n[AGREE: P1]\n[RE: P1]")[1:] == [
        ("B", "P1", "for", 3)
    ]


def test_the_same_position_again_is_no_change() -> None:
    said = ["[PROPOSAL: Postgres]", "[AGREE: P1]", "[PROPOSAL: Redis]\n[AGREE: P1]", "[AGREE: P1]\n[AGREE: P2]"]
    assert ledger(*said) == [("A", "P1", "for", 2), ("B", "P1", "for", 3), ("A", "P2", "for", 4), ("B", "P2", "for", 5)]


def test_the_latest_position_of_each_agent_on_each_proposal() -> None:
    room = talk("[PROPOSAL: Postgres]", "[AGREE: P1]", "Dear.\n[CONCEDE: P1, dear]")
    found = latest(positions(room.dialog))
    assert {key: position.stance for key, position in found.items()} == {("A", "P1"): "conceded", ("B", "P1"): "for"}


def test_proposals_typed_by_hand_count_with_the_numbers_they_get() -> None:
    text = opening("A", "B") + "\n## Turn 2 — Claude A\n\nPostgres.\n\n[PROPOSAL: Postgres]\n\nTURN: B\n"
    assert [(p.agent, p.ref, p.turn) for p in positions(parse(text.encode()))] == [("A", "P1", 2)]


def test_damaged_turns_and_the_persons_count_for_nothing() -> None:
    room = talk("[PROPOSAL: Postgres]", "Fine.\n[AGREE: P1]", "Hm.")
    cut = room.paper.data.replace(b"[AGREE: P1]\n", b"", 1)
    assert [p.agent for p in positions(parse(cut))] == ["A"]
    room.say("I like it.\n[AGREE: P1]", turns=None)
    assert [p.agent for p in positions(room.dialog)] == ["A", "B"]


def made(*entries: Entry, proposals: tuple[Proposal, ...]) -> list[tuple[str, str, str]]:
    """What the ledger says of entries that were made by hand."""
    header = read_header(opening("A", "B").partition("## Turn 1")[0])
    found = positions(Dialog(header, entries, state_with(proposals=proposals), 0))
    return [(p.agent, p.ref, p.stance) for p in found]


def turn(number: int, by: str, *marks: Mark, condition: Condition = Condition.SOUND) -> Entry:
    """One turn with these marks."""
    return Entry(str(number), number, by, by, "…", marks, (), condition, 0, 0, 0)


def test_marks_of_a_damaged_or_unfinished_turn_are_no_positions() -> None:
    for condition in (Condition.DAMAGED, Condition.UNFINISHED):
        assert made(turn(2, "A", Mark("AGREE", "P1"), condition=condition), proposals=()) == []
    assert made(turn(2, "A", Mark("AGREE", "P1"), condition=Condition.EDITED), proposals=()) == [("A", "P1", "for")]


def test_a_text_that_was_decided_on_is_not_on_the_table_any_more() -> None:
    proposals = (Proposal("P1", "A", "Postgres", "2", "5ha"),)
    said = [turn(2, "A"), turn(3, "B", Mark("AGREE", "P1")), turn(4, "B", Mark("OBJECTION", "dear"))]
    assert made(*said, proposals=proposals)[-1] == ("B", "P1", "against")
    said[1] = turn(3, "B", Mark("AGREE", "P1"), Mark("DECISION", "approved | mutual", "P1"))
    assert made(*said, proposals=proposals) == [("A", "P1", "for"), ("B", "P1", "for")]


def test_a_window_sees_the_latest_entries_alone() -> None:
    room = talk("[PROPOSAL: Postgres]", "Hm.", "Dear.\n[CONCEDE: P1, dear]", "[PROPOSAL: Redis]", "Well.\n[AGREE: P1]")
    whole, few = positions(room.dialog), positions(room.dialog, 3)
    assert [p.turn for p in whole] == [2, 4, 5, 6]
    assert [p.turn for p in few] == [4, 5, 6]
    assert positions(room.dialog, 100) == whole

"""The ledger: what each agent held of each proposal, since when."""

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


OBJECTS = "[OBJECTION: dear]"
TWO = "[PROPOSAL: Postgres]\n[PROPOSAL: Redis]"
BOTH = "A P1 for 2, A P2 for 2"
# What was said, in order, and the ledger of it.
LEDGER: list[tuple[tuple[str, ...], str]] = [
    ((), ""),
    (("Hm.", "[IDEA: Redis]", "[CRITIQUE: dear]", "[PASS]"), ""),
    ((TWO, SIGN.format(1)), f"{BOTH}, B P3 for 3"),
    ((TWO, "Fine.\n[AGREE: P1]"), f"{BOTH}, B P1 for 3"),
    ((TWO, "Fine.\n[AGREE: P1 | cheap]"), f"{BOTH}, B P1 for 3"),
    ((TWO, "Fine.\n[AGREE: P1]\n[AGREE: P2 | cheap]"), f"{BOTH}, B P1 for 3, B P2 for 3"),
    ((TWO, "Fine.\n[AGREE: P2, simpler than P1]"), BOTH),
    ((TWO, "Fine.\n[AGREE: P1 if it is tested]"), BOTH),
    ((TWO, "Fine.\n[AGREE: with that]"), BOTH),
    (("[PROPOSAL: Postgres]", "No.\n[OBJECTION P1: dear]"), "A P1 for 2, B P1 against 3"),
    (("[PROPOSAL: Postgres]", "No.\n[OBJECTION: P1 is dear]"), "A P1 for 2, B P1 against 3"),
    (("[PROPOSAL: Postgres]", f"No.\n{OBJECTS}\n[RE: P1]"), "A P1 for 2, B P1 against 3"),
    (("[PROPOSAL: Postgres]", f"No.\n{OBJECTS}\n[RE: turn 2]"), "A P1 for 2, B P1 against 3"),
    (("[PROPOSAL: Postgres]", f"No.\n{OBJECTS}\n[RE: P1]\n[AGREE: P1]"), "A P1 for 2, B P1 against 3"),
    # One that names nothing is against the text on the table.
    (("[PROPOSAL: Postgres]", f"No.\n{OBJECTS}"), "A P1 for 2"),
    (("[PROPOSAL: Postgres]", SIGN.format(1), f"No.\n{OBJECTS}"), "A P1 for 2, B P2 for 3, A P2 against 4"),
    (("[PROPOSAL: x]", SIGN.format(1), OBJECTS, "[OBJECTION: late]"), "A P1 for 2, B P2 for 3, A P2 against 4"),
    # Beside one's own text it is no word against it.
    (("[PROPOSAL: x]", SIGN.format(1), "Dear.", "[OBJECTION: not so]"), "A P1 for 2, B P2 for 3"),
    (("[PROPOSAL: Postgres]", "Hm.", "Well.\n[CONCEDE P1: B is right]"), "A P1 for 2, A P1 conceded 4"),
    (("[PROPOSAL: Postgres]", "Hm.", "Well.\n[CONCEDE: P1, B is right]"), "A P1 for 2, A P1 conceded 4"),
    (("[PROPOSAL: Postgres]", "Hm.", "Well.\n[CONCEDE: cost]\n[RE: P1]"), "A P1 for 2, A P1 conceded 4"),
    (("[PROPOSAL: Postgres]", "Well.\n[CONCEDE: cost]\n[AGREE: P1]\n[RE: P1]"), "A P1 for 2, B P1 for 3"),
    (("[PROPOSAL: x]", "[AGREE: P1]", "[PROPOSAL: y]\n[AGREE: P1]", "[AGREE: P1]\n[AGREE: P2]"),
     "A P1 for 2, B P1 for 3, A P2 for 4, B P2 for 5"),
]  # fmt: skip


@cases(("lines", "held"), LEDGER)
def test_the_ledger_says_who_held_what_since_when(lines: tuple[str, ...], held: str) -> None:
    assert ", ".join(" ".join(map(str, row)) for row in ledger(*lines)) == held


DECIDES = '## Setup\n\n```toml\n[roles.B]\nrole = "synthesizer"\n```'


@cases(
    ("setup", "mark", "stance"),
    [
        (VOTE, "VOTE: P1 approve", "for"), (VOTE, "VOTE: P1 reject", "against"), (VOTE, "VOTE: P1 abstain", "open"),
        (DECIDES, "DECIDE: P1 approve", "for"), (DECIDES, "DECIDE: P1 reject", "against"),
    ],
)  # fmt: skip
def test_votes_and_decisions_are_positions(setup: str, mark: str, stance: str) -> None:
    room = talk("[PROPOSAL: Postgres]", f"Hm.\n[{mark} | I looked]", setup=setup)
    assert positions(room.dialog)[-1] == Position("B", "P1", stance, 3)


def test_a_word_of_the_persons_takes_the_text_off_the_table() -> None:
    room = talk("[PROPOSAL: Postgres]", SIGN.format(1))
    room.say("Go on.")
    room.says("A", f"No.\n{OBJECTS}")
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


def test_a_text_that_was_decided_on_is_not_on_the_table_any_more() -> None:
    proposals = (Proposal("P1", "A", "Postgres", "2", "5ha"),)
    said = [turn(2, "A"), turn(3, "B", Mark("AGREE", "P1")), turn(4, "B", Mark("OBJECTION", "dear"))]
    assert made(*said, proposals=proposals)[-1] == ("B", "P1", "against")
    said[1] = turn(3, "B", Mark("AGREE", "P1"), Mark("DECISION", "approved | mutual", "P1"))
    assert made(*said, proposals=proposals) == [("A", "P1", "for"), ("B", "P1", "for")]

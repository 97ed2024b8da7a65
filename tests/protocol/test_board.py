"""The board: contributions, proposals and decisions as views over the entries, and the rounds they fall into."""

from __future__ import annotations

from pathlib import Path

from dialogd.errors import BackendError
from dialogd.protocol.board import TEXT, contributions, decisions, proposals, rounds_of
from dialogd.protocol.grammar import parse
from tests.support.cases import cases
from tests.support.room import Room, opening

GOLDEN = sorted(Path(__file__).with_name("golden").glob("*.txt"))
VOTE = 'verdict = "vote"\norder = "round-robin"'


def room_of(setup: str = "", agents: str = "AB") -> Room:
    """A room with that Setup."""
    return Room(opening(*agents, setup=setup))


def test_typed_contributions_are_listed_one_by_one() -> None:
    room = room_of('[messages]\nRESULTS = "what was found"').speak(
        ("A", "Some words.\n[IDEA: cache it]\n[PROPOSAL: Postgres]\n[CONFIDENCE: 80%]"),
        ("B", "[RESULTS: 300 a second | measured]\n[RE: 2, P1]"),
    )
    assert [(c.turn, c.agent, c.kind, c.text, c.ref, c.refs, c.confidence) for c in contributions(room.dialog)] == [
        (2, "A", "IDEA", "cache it", "", (), 0.8),
        (2, "A", "PROPOSAL", "Postgres", "P1", (), 0.8),
        (3, "B", "RESULTS", "300 a second | measured", "", ("2", "P1"), None),
    ]


def test_a_plain_turn_is_one_contribution_and_a_pass_is_none() -> None:
    room = room_of().speak(
        ("A", "Postgres."), ("B", "[PASS]"), ("A", "## Consensus Summary\n\nX.\n[CONSENSUS_REACHED]")
    )
    room.speak(("B", "Fine.\n[AGREE: P1]"))
    assert "**Total turns:**" in room.text
    assert [(c.turn, c.kind, c.text) for c in contributions(room.dialog)] == [
        (2, TEXT, "Postgres."),
        (4, TEXT, "## Consensus Summary\n\nX."),
        (5, TEXT, "Fine."),
    ]
    silent = room_of().speak(("A", "## Consensus Summary\n\nX.\n[CONSENSUS_REACHED]"), ("B", "[AGREE: P1]"))
    assert [c.turn for c in contributions(silent.dialog)] == [2]


def test_proposals_show_who_is_for_and_against_their_votes_and_their_decision() -> None:
    room = room_of(VOTE, "ABC").speak(
        ("A", "[PROPOSAL: Postgres]"),
        ("B", "[VOTE: P1 approve | simple]\n[PROPOSAL: Redis]"),
        ("C", "[VOTE: P1 reject | slow]"),
        ("A", "[VOTE: P1 approve]"),
    )
    first, second = proposals(room.dialog)
    assert (first.ref, first.agent, first.text, first.entry, first.decision) == ("P1", "A", "Postgres", "2", "approved")
    assert (set(first.supporters), first.opponents) == ({"A", "B"}, ("C",))
    assert [(v.agent, v.choice, v.turn) for v in first.votes] == [
        ("B", "approve", 3),
        ("C", "reject", 4),
        ("A", "approve", 5),
    ]
    assert (second.supporters, second.votes, second.decision) == (("B",), (), "")


def test_decisions_are_listed_with_method_evidence_and_reason() -> None:
    setup = 'verdict = "moderator"\norder = "round-robin"\n[roles.B]\nrole = "moderator"'
    room = room_of(setup).speak(
        ("A", "[PROPOSAL: Redis]"),
        ("B", "[DECIDE: P1 reject | no number]"),
        ("A", "[PROPOSAL: Postgres]"),
        ("B", "[DECIDE: P2 approve | good]"),
    )
    assert [(d.ref, d.outcome, d.method, d.evidence, d.reason, d.entry, d.round) for d in decisions(room.dialog)] == [
        ("P1", "rejected", "moderator", "by B in turn 3", "no number", "3", 1),
        ("P2", "approved", "moderator", "by B in turn 5", "good", "5", 2),
    ]


def test_a_round_is_complete_when_everybody_who_speaks_has_spoken() -> None:
    room = room_of('order = "round-robin"\n[roles.C]\nrole = "observer"', "ABC").speak(("A", "One."), ("B", "Two."))
    room.say("Go on.", note=True)
    room.speak(("A", "Three."))
    assert dict(rounds_of(room.dialog)) == {"1": 1, "2": 1, "3": 1, "3.1": 2, "4": 2}


def test_who_failed_or_was_skipped_is_not_waited_for() -> None:
    room = room_of('order = "round-robin"', "ABC").speak(("A", "One."))
    room.says("B", BackendError("no credit", fix="pay"))
    room.speak(("C", "Three."), ("A", "Four."))
    assert [c.round for c in contributions(room.dialog)] == [1, 1, 2]
    room = room_of('order = "round-robin"', "ABC").speak(("A", "One."), ("B", "Two."))
    room.skip("C")
    room.speak(("A", "Four."))
    assert [c.round for c in contributions(room.dialog)] == [1, 1, 2]


@cases("path", GOLDEN)
def test_the_views_agree_with_the_state(path: Path) -> None:
    dialog = parse(path.read_bytes().partition(b"====\n")[2])
    assert [p.ref for p in proposals(dialog)] == [p.ref for p in dialog.state.table.proposals]
    assert [d.entry for d in decisions(dialog)][: len(dialog.state.table.decisions)] == [
        d.entry for d in dialog.state.table.decisions
    ]
    rounds = [rounds_of(dialog)[entry.id] for entry in dialog.entries]
    assert all(after - before <= 1 for before, after in zip([1, *rounds], rounds, strict=False))
    assert max(rounds, default=0) <= max(rounds_of(dialog).values(), default=0)
    numbered = {p.ref for p in dialog.state.table.proposals if not p.sha and p.by not in ("SYSTEM", "USER")}
    assert {c.ref for c in contributions(dialog)} - {""} == numbered

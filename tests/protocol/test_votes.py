"""When a vote is open: in its phase, and until every voter who is there was heard on the last proposal."""

from __future__ import annotations

from tests.protocol.test_template_goldens import begun
from tests.support.room import Room, opening

DESIGN = "One table.\n\n## Consensus Summary\n\nSessions live in Postgres.\n\n[CONSENSUS_REACHED]"
YES = "[VOTE: P1 approve | it holds]\n[RESERVATION: the disk may fill]"


def room(ids: str, setup: str = "") -> Room:
    """A room of these agents that vote one after the other."""
    return Room(opening(*ids, setup=f'verdict = "vote"\norder = "round-robin"\n{setup}'))


def decided(here: Room) -> list[tuple[str, str]]:
    """Each decision: of what, and what."""
    return [(found.ref, found.outcome) for found in here.dialog.state.table.decisions]


def test_system_design_followed_to_the_letter_ends_with_a_decision() -> None:
    here = begun("system-design")
    here.talk(*["A thousand a second."] * 4, DESIGN)
    asked = here.thinks("B")
    assert "Phase 2 of 3, DESIGN" in asked
    assert "DECISION" not in asked
    assert "waits for your vote" not in asked
    here.answers("B", "Four milliseconds.")
    here.talk("Who can read the table?", "What if the disk is full?", *["As it stands."] * 4)
    assert (decided(here), here.outcome) == ([], "")
    assert "Phase 3 of 3, DECISION" in here.thinks("A")
    here.answers("A", "It is yours to decide.")
    assert "The proposal P1 waits for your vote" in here.thinks("B")
    here.answers("B", YES)
    here.talk(YES, YES)
    assert (decided(here), here.outcome) == ([("P1", "approved")], "DECIDED")


def test_a_vote_before_its_phase_is_refused_and_told_when() -> None:
    here = room("AB", '[[phases]]\nname = "DRAFT"\n[[phases]]\nname = "CHOICE"\nvotes = true')
    here.speak(("A", "[PROPOSAL: Postgres]"), ("B", "[VOTE: P1 approve | fast]"))
    refused = here.dialog.last.mark("REFUSED")
    assert refused.value == "VOTE P1 approve / fast | P1 is put to the vote in CHOICE"
    here.speak(("A", "[VOTE: P1 approve | mine]"), ("B", "[VOTE: P1 approve | fast]"))
    assert decided(here) == [("P1", "approved")]


def test_a_proposal_each_and_then_the_votes_are_all_heard() -> None:
    here = room("ABC")
    here.talk("[PROPOSAL: Postgres]", "[PROPOSAL: Redis]", "[PROPOSAL: files]")
    here.talk("[VOTE: P1 approve]\n[VOTE: P2 reject]", "[VOTE: P1 reject]\n[VOTE: P2 approve]")
    assert decided(here) == []
    here.talk("[VOTE: P1 reject]\n[VOTE: P2 approve]")
    assert ("P2", "approved") in decided(here)
    assert here.outcome == "DECIDED"


def test_what_enough_are_for_is_decided_once_the_others_were_heard() -> None:
    here = room("ABCD", "threshold = 0.5\nquorum = 0.5")
    here.talk("[PROPOSAL: Postgres]", "[VOTE: P1 approve]", "[VOTE: P1 approve]", "[VOTE: P1 reject | the disk]")
    assert decided(here) == []
    here.talk("[VOTE: P1 approve]")
    assert decided(here) == [("P1", "approved")]
    assert here.dialog.state.table.decisions[0].evidence == "3 for (B, C, A), 1 against (D)"


def test_what_all_have_voted_on_is_over_whatever_was_proposed_since() -> None:
    here = room("AB", "escalation_threshold = 2")
    here.talk("[PROPOSAL: Postgres]", "[VOTE: P1 reject]\n[PROPOSAL: Redis]")
    here.talk("[VOTE: P1 reject]\n[VOTE: P2 reject]\n[PROPOSAL: files]", "[VOTE: P2 reject]\n[VOTE: P3 reject]")
    assert decided(here) == [("P1", "rejected"), ("P2", "rejected")]
    assert here.owing == ("USER",)

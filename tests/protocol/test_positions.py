"""A position: the last turn without a PASS, the same one in the judge's prompt, the decision and the certificate."""

from __future__ import annotations

from dialogd import person
from dialogd.protocol.certificate import certify
from tests.support.cases import cases
from tests.support.room import Room, opening

JUDGED = 'verdict = "judge"\njudge = "J"'


def trial(*rounds: tuple[str, str], setup: str = JUDGED) -> Room:
    """A and B have said this, round by round; the judge is next."""
    here = Room(opening("A", "B", "J", keys=[f"Max Rounds: {len(rounds)}"], setup=setup))
    for a, b in rounds:
        here.speak(("A", a), ("B", b))
    return here


def judged(here: Room, *whom: str) -> str:
    """What the judge was shown as the positions, before it chose these."""
    shown = here.thinks("J").partition("# Your turn")[2]
    here.answers("J", f"[DECIDE: {whom[0]} | the figures]")
    here.speak(*(("J", f"[DECIDE: {one} | the figures]") for one in whom[1:]))
    return shown


@cases("last", ["[PASS]", "Nothing to add.\n\n[PASS]", "Nothing to add.\n\n[CONFIDENCE: 0.9]\n[PASS]"])
def test_who_passes_at_last_keeps_the_position_it_had(last: str) -> None:
    here = trial(("Postgres: one lookup takes 4 ms.", "Redis is faster."), (last, last))
    shown = judged(here, "A", "A")
    assert "Postgres: one lookup takes 4 ms." in shown
    assert "Nothing to add" not in shown
    decision = here.dialog.last.mark("DECISION")
    assert decision.fields[:2] == ("approved", "judge")
    assert decision.fields[2].startswith("A in turn 2; ")
    found = certify(here.dialog)
    assert (found.text, found.stands_in) == ("Postgres: one lookup takes 4 ms.", "2")
    assert here.outcome == "DECIDED"


@cases(
    ("said", "text"),
    [
        ("[PROPOSAL: keep sessions in Postgres]", "[PROPOSAL P1: keep sessions in Postgres]"),
        ("Postgres.\n\n[EVIDENCE: 4 ms]", "Postgres.\n\n[EVIDENCE: 4 ms]"),
    ],
)
def test_a_position_is_the_same_text_before_the_judge_and_in_the_certificate(said: str, text: str) -> None:
    here = trial((said, "Redis."))
    assert f"## The position of A\n\n~~~text\n{text}\n~~~" in judged(here, "A", "A")
    assert certify(here.dialog).text == text


def test_who_only_passed_has_no_position_to_choose() -> None:
    here = trial(("Postgres.", "[PASS]"), ("Still so.", "I leave it at that.\n\n[PASS]"))
    assert "The position of B" not in here.thinks("J")
    here.confirms["J"] = ["[DECIDE: A]"]
    here.answers("J", "[DECIDE: B | it is short]")
    question = here.asked[-1][1]
    assert "[DECIDE: A]" in question
    assert "[DECIDE: B]" not in question
    here.speak(("J", "[DECIDE: A | the figures]"))
    assert here.dialog.last.mark("DECISION").fields[2].startswith("A in turn 4; ")


def test_a_struck_turn_is_no_position() -> None:
    here = trial(("Postgres.", "Redis."), ("Files, after all.", "Redis."))
    here.by_hand(person.strike, "4", "that was a joke")
    assert "Postgres." in judged(here, "A", "A")
    assert certify(here.dialog).text == "Postgres."

"""A decision has a text: nothing else is proposed, voted on, signed or certified, by whatever rule a dialog decides."""

from __future__ import annotations

from dialogd.protocol.certificate import certify, faults
from dialogd.views.words import sentences
from tests.protocol.test_closing import SETUPS, TEXT, pair, room, say
from tests.support.cases import cases
from tests.support.room import Room, opening

UNSEEN = ("", " ", "\u200b", "\ufeff", "\u202e", "\u3164")  # what of a value, or of a reply, nobody can see
YES = {
    "mutual": ("[AGREE: P1]", "[AGREE: P1]", "[AGREE: P1]"),
    "vote": ("[VOTE: P1 approve]", "[VOTE: P1 approve]", "[VOTE: P1 approve]"),
    "moderator": ("[AGREE: P1]", "[AGREE: P1]", "[DECIDE: P1 approve]"),
    "judge": ("[AGREE: P1]", "[AGREE: P1]", "[DECIDE: P1 approve]"),
}
ALL = [(setup, value) for setup in YES for value in UNSEEN]


def three(setup: str, *keys: str) -> Room:
    """A dialog of three with that rule; the third moderates or judges where the rule knows such a one."""
    return room(SETUPS[setup], "A", "B", "C", turn="A", keys=keys)


@cases(("setup", "value"), ALL)
def test_a_proposal_without_a_text_is_none(setup: str, value: str) -> None:
    here = three(setup, "Max Rounds: 2")
    say(here, "A", f"[PROPOSAL: {value}]" if value else "[PROPOSAL]")
    turn = here.dialog.turns[-1]
    assert (here.dialog.state.table.proposals, turn.mark("PROPOSAL")) == ((), None)
    assert "it says nothing: it is written [PROPOSAL: …]" in str(turn.mark("REFUSED"))
    yes = dict(zip("ABC", YES[setup], strict=True))
    for _ in range(4):
        if here.owing and here.owing[0] in yes:
            say(here, here.owing[0], yes[here.owing[0]])
    assert all(turn.mark("DECISION") is None for turn in here.dialog.turns if turn.by in ("A", "B"))
    assert here.outcome not in ("DECIDED", "CONSENSUS_REACHED")
    assert certify(here.dialog) is None


@cases(("setup", "value"), ALL)
def test_so_is_a_consensus_without_a_text(setup: str, value: str) -> None:
    here = three(setup)
    say(here, "A", f"Settled.\n\n## Consensus Summary\n\n{value}\n\n[CONSENSUS_REACHED]")
    assert [who for who, what in here.questions if "no agreed text" in what] == ["A"]
    table = here.dialog.state.table
    assert (table.proposals, table.standing) == ((), None)
    assert "REFUSED" in {mark.name for mark in here.dialog.turns[-1].marks}


@cases("value", UNSEEN)
def test_what_the_person_types_without_a_text_has_no_number(value: str) -> None:
    mark = f"[PROPOSAL: {value}]" if value else "[PROPOSAL]"
    asked = f"Where?\n\n{mark}\n[PROPOSAL: sessions live in Postgres]"
    here = Room(opening("A", "B", setup=SETUPS["vote"], question=asked))
    assert [(p.ref, p.text) for p in here.dialog.state.table.proposals] == [("P1", "sessions live in Postgres")]
    assert [poll.ref for poll in here.dialog.state.polls.open] == ["P1"]


@cases("name", ["PROPOSAL", "OBJECTION", "CONCEDE", "QUESTION", "EVIDENCE", "IDEA", "CRITIQUE", "SYNTHESIS", "COST"])
def test_no_contribution_counts_without_words(name: str) -> None:
    here = room('[messages]\nCOST = "what it costs"', "A", "B")
    say(here, "A", TEXT)
    for value in UNSEEN:
        who = here.owing[0]
        say(here, who, f"Well.\n\n[{name}: {value}]" if value else f"Well.\n\n[{name}]")
        turn = here.dialog.turns[-1]
        assert turn.mark(name) is None
        assert f" | it says nothing: it is written [{name}: …]]" in str(turn.mark("REFUSED"))
    assert here.dialog.state.table.standing is not None


def test_an_objection_without_words_beside_a_yes_is_asked_about() -> None:
    for answer, signs in (("[AGREE: P1]", True), ("[OBJECTION: no test]", False), ("[OBJECTION]", False), ("", False)):
        here = pair()
        say(here, "B", "[AGREE: P1]\n[OBJECTION]", answer=answer)
        assert "says both yes and no about P1" in here.asked[-1][1]
        assert (here.outcome == "CONSENSUS_REACHED") == signs


def test_a_reservation_without_words_is_not_named() -> None:
    here = room("objections = true", "A", "B")
    say(here, "A", f"{TEXT}\n[RESERVATION: one more thing to run]")
    say(here, "B", "[AGREE: P1]\n[RESERVATION: \u200b]", answer="[AGREE: P1]")
    assert (here.outcome, here.dialog.turns[-1].mark("AGREE")) == ("", None)


@cases(("setup", "reply"), [(setup, reply) for setup in YES for reply in UNSEEN])
def test_a_reply_that_nobody_can_see_is_empty(setup: str, reply: str) -> None:
    here = three(setup)
    here.scripts["A"] = ["Postgres."]
    say(here, "A", reply)
    assert [(who, what.partition(".")[0]) for who, what in here.questions] == [("A", "Your reply was empty")]
    assert here.dialog.turns[-1].body == "Postgres."


# -- a text that its author does not confirm --------------------------------------------------------------------------

UNCLEAR = ("", "Sure, why not.", "[PASS]", "[AGREE: P1]", "[CONSENSUS_REACHED] with one reservation")


@cases("answer", UNCLEAR)
def test_a_text_that_its_author_does_not_confirm_is_there_for_all_to_sign(answer: str) -> None:
    here = room("", "A", "B")
    say(here, "A", f"If it helps.\n\n{TEXT}", answer=answer)
    turn, standing = here.dialog.turns[-1], here.dialog.state.table.standing
    assert turn.mark("CONSENSUS_PROPOSED").fields[1:] == ("unsigned",)
    assert str(turn.mark("REFUSED")).startswith("[REFUSED: CONSENSUS_REACHED | ")
    assert (standing.proposal.ref, standing.signers) == ("P1", ())
    say(here, "B", "[AGREE: P1]")
    assert here.dialog.turns[-1].all("REFUSED") == ()
    assert here.outcome == ""
    assert "The text P1 waits for your signature" in here.thinks("A")
    here.answers("A", "[AGREE: P1]")
    assert here.outcome == "CONSENSUS_REACHED"
    assert certify(here.dialog).text == "Sessions live in Postgres."
    assert faults(here.paper.data) == ()


@cases(("setup", "answer"), [(setup, answer) for setup in ("vote", "moderator", "judge") for answer in UNCLEAR])
def test_where_nobody_signs_a_text_needs_no_confirmation(setup: str, answer: str) -> None:
    here = three(setup)
    say(here, "A", f"If it helps.\n\n{TEXT}", answer=answer)
    assert [p.text for p in here.dialog.state.table.proposals] == ["Sessions live in Postgres."]


def test_what_its_author_objects_to_is_not_put_on_the_table() -> None:
    here = room("", "A", "B")
    say(here, "A", f"If it helps.\n\n{TEXT}", answer="[OBJECTION: not before it is measured]")
    assert here.dialog.state.table.proposals == ()


def test_an_unsigned_text_is_told_as_such() -> None:
    here = room("", "A", "B")
    say(here, "A", f"If it helps.\n\n{TEXT}", answer="Sure.")
    assert any("without signing it" in sentence for sentence in sentences(here.dialog.turns[-1], str))

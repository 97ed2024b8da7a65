"""Where a dialog stands, and what is allowed there: not begun, under way, deciding, over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dialogd.errors import Refused
from dialogd.protocol import lifecycle
from dialogd.protocol.admit import MarkPolicy
from dialogd.protocol.marks import MARKS, Who
from dialogd.protocol.model import USER
from dialogd.protocol.state import Debts, Dialog, Escalation
from tests.support.cases import cases
from tests.support.room import Room, opening
from tests.support.states import state_with

AGENTS = ("A", "B", "C")
MEANT = sorted(name for name, kind in MARKS.items() if Who.AGENT in kind.who)


def room(*setup: str, keys: Sequence[str] = (), **scripts: Sequence[str]) -> Room:
    """Three agents with a Setup of these lines; without any, a plain dialog."""
    more = "\n".join(["## Setup\n\n```toml", *setup, "```"]) if setup else ""
    return Room(opening(*AGENTS, keys=keys, more=more), **scripts)


def stood(*setup: str, **state: object) -> Dialog:
    """A dialog in which an agent has spoken, with these parts of its state."""
    dialog = room(*setup).dialog
    return replace(dialog, state=state_with(dialog.state, **{"spoke_at": {"A": 2}, **state}))


def test_a_dialog_goes_through_its_states_and_back() -> None:
    text = "## Consensus Summary\n\nPostgres.\n\n[CONSENSUS_REACHED]"
    stage = room(A=["Postgres.", text], B=["Hm.", "Yes.\n\n[AGREE: P1]"], C=["Why?", "Yes.\n\n[AGREE: P1]"])
    seen = [lifecycle.where(stage.dialog)]
    for me in (*AGENTS, *AGENTS):
        stage.step(me)
        seen.append(lifecycle.where(stage.dialog))
    assert seen == ["not begun", *["under way"] * 3, *["deciding"] * 2, "over"]
    stage.say("And Redis?")
    assert lifecycle.where(stage.dialog) == "under way"


CONVERGING = {
    "closing": ((), {"closing": "the time limit"}, "one last round sums up, because of the time limit"),
    "escalated": ((), {"escalation": Escalation("C", "three votes failed")}, "C is to decide: three votes failed"),
    "to-the-person": ((), {"escalation": Escalation(USER)}, "the person is to decide"),
    "red-team": ((), {"red_team": "P4"}, "the next turn argues against P4"),
    "judge": (('verdict = "judge"', 'judge = "A"'), {}, "A judges"),
}


@cases(("setup", "state", "why"), CONVERGING.values())
def test_what_makes_a_dialog_converge(setup: tuple[str, ...], state: dict[str, object], why: str) -> None:
    dialog = stood(*setup, **state)
    assert lifecycle.where(dialog) == "deciding"
    assert lifecycle.in_words(dialog) == f"deciding: {why}"


def test_what_stands_still_is_named_before_what_goes_on() -> None:
    stage = room(A=["Postgres.", "[QUESTION_FOR_USER: or Redis?]"], B=["Hm."], C=["Why?"])
    stage.pause()
    assert lifecycle.in_words(stage.dialog) == "not begun: paused; no agent has spoken yet"
    stage.resume()
    stage.step("A")
    assert lifecycle.in_words(stage.dialog) == "under way: the agents take their turns"
    stage.pause()
    assert lifecycle.in_words(stage.dialog) == "under way: paused"
    with pytest.raises(Refused, match="cannot approve: the dialog is under way: paused"):
        lifecycle.refuse(stage.dialog, "approve")
    stage.resume()
    for me in ("B", "C", "A"):
        stage.step(me)
    assert lifecycle.in_words(stage.dialog) == "under way: it waits for you"
    paused = stood(escalation=Escalation("C", "three votes failed"), paused=True)
    assert lifecycle.in_words(paused) == "deciding: paused; C is to decide: three votes failed"


def test_a_text_to_be_signed_names_who_signed_it() -> None:
    stage = room(A=["## Consensus Summary\n\nPostgres.\n\n[CONSENSUS_REACHED]"])
    stage.step("A")
    assert lifecycle.in_words(stage.dialog) == "deciding: the text P1 is to be signed; signed by A"
    standing = stage.dialog.state.table.standing
    assert standing is not None
    nobody = stood(standing=replace(standing, signers=()))
    assert lifecycle.in_words(nobody).endswith("signed by nobody yet")


HAND = ("strike", "limit", "invite", "leave")
PERSONS = ("say", "pause", "retry", "skip", "stop", *HAND, "step")
STATES: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    "not begun": ({"spoke_at": {}}, PERSONS),
    "under way": ({}, PERSONS),
    "deciding": ({"closing": "x"}, PERSONS),
    "over": ({"outcome": None}, ("say", "approve", "reject", *HAND)),
}


def in_state(name: str, *setup: str) -> Dialog:
    """A dialog in that state."""
    if name != "over":
        return stood(*setup, **STATES[name][0])
    stage = room(*setup)
    stage.stop()
    return stage.dialog


@cases("name", STATES)
def test_what_a_state_does_not_allow_is_refused_by_its_name(name: str) -> None:
    dialog = in_state(name)
    assert lifecycle.where(dialog) == name
    assert set(lifecycle.commands(dialog)) == set(STATES[name][1])
    for operation in {word for _, words in STATES.values() for word in words}:
        if operation in lifecycle.commands(dialog):
            lifecycle.refuse(dialog, operation)
            continue
        with pytest.raises(Refused, match=f"cannot {operation}: the dialog is {name}(: |$)") as refused:
            lifecycle.refuse(dialog, operation)
        assert refused.value.fix


def test_programs_get_the_names_that_they_know() -> None:
    found = [(lifecycle.lifecycle_of(in_state(name)), lifecycle.allowed(in_state(name))[:2]) for name in STATES]
    assert found == [
        ("dormant", ["start", "configure"]), ("streaming", ["post", "read"]), ("converging", ["vote", "moderate"]),
        ("collapsed", ["harvest", "reset"]),
    ]  # fmt: skip
    assert (lifecycle.lifecycle_of(None), lifecycle.allowed(None)) == (None, [])


def test_a_refusal_says_what_to_do_next() -> None:
    with pytest.raises(Refused) as ended:
        lifecycle.refuse(in_state("over"), "retry")
    assert (str(ended.value), ended.value.fix) == (
        "cannot retry: the dialog is over",
        'open it again with a turn of yours: dialogd say "…"',
    )
    with pytest.raises(Refused) as early:
        lifecycle.refuse(in_state("not begun"), "approve")
    assert str(early.value) == "cannot approve: the dialog is not begun: no agent has spoken yet"
    assert early.value.fix == f"what it allows now: {', '.join(PERSONS)}"


def test_the_word_is_asked_for_where_the_order_is_free() -> None:
    free = stood('order = "free"')
    lifecycle.refuse(free, "floor")
    assert "floor" in lifecycle.commands(free)
    with pytest.raises(Refused, match="the dialog is under way, and its order is round-robin, not free") as refused:
        lifecycle.refuse(stood('order = "round-robin"'), "floor")
    assert "dialogd say" in refused.value.fix
    with pytest.raises(Refused, match="cannot ask for the floor: the dialog is over"):
        lifecycle.refuse(in_state("over", 'order = "free"'), "floor")


# -- marks that a state does not take --------------------------------------------------------------------------------

SUMMING_UP = {
    "SYNTHESIS", "VOTE", "AGREE", "OBJECTION", "RESERVATION", "CONFIDENCE", "RE", "DECIDE",
    "CONCEDE", "QUESTION_FOR_USER", "DEADLOCK", "CONSENSUS_REACHED", "PASS",
}  # fmt: skip
DECIDING = {"DECIDE", "VOTE", "RE", "SYNTHESIS", "CONFIDENCE", "EVIDENCE", "ESCALATE", "QUESTION_FOR_USER", "PASS"}
JUDGING = {"DECIDE", "RE", "CONFIDENCE", "EVIDENCE", "QUESTION_FOR_USER", "PASS"}
COUNCIL = 'order = "round-robin"'
JUDGED = ('verdict = "judge"', 'judge = "A"')

TAKEN: dict[str, tuple[Dialog, set[str]]] = {
    "under way": (stood(COUNCIL), set(MEANT)),
    "not begun": (stood(COUNCIL, spoke_at={}), set(MEANT)),
    "plain": (stood(closing="x", escalation=Escalation("A")), set(MEANT)),
    "escalated-to-another": (stood(COUNCIL, escalation=Escalation("B")), set(MEANT)),
    "escalated-to-the-person": (stood(COUNCIL, escalation=Escalation(USER)), set(MEANT)),
    "red-team": (stood(COUNCIL, red_team="P4"), set(MEANT)),
    "closing": (stood(COUNCIL, closing="x"), SUMMING_UP),
    "escalated-to-me": (stood(COUNCIL, escalation=Escalation("A")), DECIDING),
    "escalated-while-closing": (stood(COUNCIL, closing="x", escalation=Escalation("A")), DECIDING),
    "judging": (stood(*JUDGED), JUDGING),
    "judging-while-closing": (stood(*JUDGED, closing="x"), JUDGING),
    "judge-not-asked": (stood(*JUDGED, debts=Debts()), set(MEANT)),
}


@cases(("dialog", "taken"), TAKEN.values())
def test_which_marks_of_an_agent_a_state_takes(dialog: Dialog, taken: set[str]) -> None:
    assert {name for name in MEANT if not MarkPolicy(dialog, "A").too_late(name)} == taken


def test_a_text_to_be_signed_alone_refuses_no_mark() -> None:
    stage = room(COUNCIL, A=["## Consensus Summary\n\nPostgres.\n\n[CONSENSUS_REACHED]"])
    stage.step("A")
    assert lifecycle.where(stage.dialog) == "deciding"
    assert [name for name in MEANT if MarkPolicy(stage.dialog, "B").too_late(name)] == []


def test_a_refused_mark_says_which_state_and_what_it_takes() -> None:
    why = MarkPolicy(stood(COUNCIL, closing="the time limit"), "A").too_late("PROPOSAL")
    assert why.startswith("the dialog is deciding: one last round sums up, because of the time limit; it takes AGREE")

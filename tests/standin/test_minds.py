"""Minds that go by the prompt alone: a whole dialog to consensus, also out of the middle of a session."""

from __future__ import annotations

import json

import pytest

from tests.support.cases import cases
from tests.support.minds import consensus, endless, look
from tests.support.room import Room, opening
from tests.support.standin import Seen

pytestmark = pytest.mark.slow  # a tool of the tests is tried here, no promise


TEXTS = ((2, "[PROPOSAL P1: this]"), (3, "[CONSENSUS_PROPOSED P2: 365fa5b238cf3428]"))


def request(*messages: tuple[str, str], system: str = "") -> Seen:
    """A Messages request."""
    said = [{"role": role, "content": text} for role, text in messages]
    body = {"model": "m", "system": system, "messages": said}
    return Seen("POST", "/v1/messages", {}, json.dumps(body).encode(), 0.0, 1)


def talk(room: Room, *, most: int = 12) -> Room:
    """Let each agent answer by `consensus` until nobody owes a turn, or `most` turns have passed."""
    for _ in range(most):
        if not room.dialog.state.debts.open:
            break
        me = room.dialog.state.debts.open[0].agent
        room.answers(me, consensus(request(("user", room.thinks(me)))).text)
    return room


def test_two_agents_reach_consensus_in_six_turns() -> None:
    """Proposal, objection, text, signature: nobody is asked back and the file ends in consensus."""
    room = talk(Room(opening(keys=["Topic: sessions"])))
    assert "\n[CONSENSUS_REACHED]\n" in room.text
    assert room.dialog.state.number <= 6
    assert "[OBJECTION:" in room.text
    assert room.questions == []


def test_three_agents_reach_it_too() -> None:
    """Everybody signs."""
    room = talk(Room(opening("A", "B", "C")))
    assert "\n[CONSENSUS_REACHED]\n" in room.text


@cases("turns", [1, 2, 3])
def test_they_go_on_when_the_person_speaks(turns: int) -> None:
    """A person's turn clears the text; another one is written and signed."""
    room = Room(opening())
    talk(room, most=turns)
    room.say("Mind the cost.")
    assert "\n[CONSENSUS_REACHED]\n" in talk(room).text


@cases("only_what_is_new", [False, True])
def test_a_continued_session_is_understood(only_what_is_new: bool) -> None:
    """What was asked before stands in the history, once or twice; only the last question counts."""
    room = Room(opening())
    asked: dict[str, list[tuple[str, str]]] = {"A": [], "B": []}
    while room.dialog.state.debts.open:
        me = room.dialog.state.debts.open[0].agent
        system, _, rest = room.thinks(me).partition("\n\n# How this works")
        if asked[me] and only_what_is_new:
            rest = rest[rest.rindex("\n## Turn") :]
        asked[me].append(("user", rest))
        reply = consensus(request(*asked[me], ("system", "# Environment\n\nLinux."), system=system)).text
        asked[me].append(("assistant", reply))
        room.answers(me, reply)
    assert "\n[CONSENSUS_REACHED]\n" in room.text
    assert room.dialog.state.number <= 6


def test_the_scene_is_read_from_the_prompt() -> None:
    """Who it is, the turn, the topic, the text to sign, and who wrote what."""
    room = Room(opening(keys=["Topic: sessions"]))
    talk(room, most=3)
    scene = look(request(("user", room.thinks("B"))))
    assert scene is not None
    assert (scene.me, scene.turn, scene.topic, scene.waits) == ("B", 5, "sessions", "P2")
    assert [by for by, _ in scene.turns] == ["USER", "A", "B", "A"]


def test_who_has_signed_waits_for_the_others() -> None:
    """Asked once more without a text to sign, an agent passes: by its own summary, or by one that it signed."""
    asked = "# Your turn\n\nThis is turn 6."
    you = "You are A, a participant in a written dialog."
    own = request(("user", f"{you}\n\n{asked}"), ("assistant", "Fine.\n\n[CONSENSUS_REACHED]"), ("user", asked))
    theirs = "\n\n".join(f"## Turn {n}, by B\n\n~~~text\n{mark}\n~~~" for n, mark in TEXTS)
    for seen in (own, request(("user", f"{you}\n\n{theirs}\n\n{asked}"))):
        assert consensus(seen).text.endswith("\n[PASS]")


def test_only_the_last_question_says_what_waits() -> None:
    """A text that waited when the session was last asked is not signed now."""
    before = "You are A, a participant in a written dialog.\n\n# Your turn\n\nThis is turn 4.\n\nThe text P2 waits for"
    scene = look(
        request(("user", f"{before} your signature: object or sign."), ("user", "# Your turn\n\nThis is turn 6."))
    )
    assert scene is not None
    assert (scene.turn, scene.waits) == (6, "")


def test_a_request_that_is_no_turn_gets_a_word() -> None:
    """A title, a warm-up: nothing to agree on."""
    assert look(request(("user", "Write a title."))) is None
    assert consensus(request(("user", "Write a title."))).text == "Noted."


def test_an_endless_mind_says_something_else_each_time() -> None:
    """No two turns alike, some length, and never a yes."""
    room = Room(opening(keys=["Max Turns: 20"]))
    while room.dialog.state.debts.open:
        me = room.dialog.state.debts.open[0].agent
        room.answers(me, endless(request(("user", room.thinks(me)))).text)
    assert "\n[MAX_TURNS_REACHED]\n" in room.text
    bodies = [entry.body for entry in room.dialog.entries[1:]]
    assert len(set(bodies)) == len(bodies)
    assert all(len(body.split()) > 100 for body in bodies[:-1])
    assert "AGREE" not in room.text.partition("---")[2]

"""The person's acts over HTTP: each once, what is refused, and what an act does to those who are at work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dialogd.protocol.grammar import parse
from dialogd.protocol.model import USER
from tests.protocol.test_build import room as build
from tests.server.daemon_process import Room, listening, send
from tests.support.cases import cases
from tests.support.pair import Daemon, until

# -- each act once -------------------------------------------------------------------------------------------------

DONE: tuple[tuple[str, Mapping[str, Any], str], ...] = (
    ("say", {"text": "use SQLite", "proposal": True}, "[PROPOSAL P1: use SQLite]"),
    ("say", {"text": "use Redis", "instead": "P1"}, "[PROPOSAL P2: use Redis]"),
    ("say", {"message": "As a message.", "note": True}, "As a message."),
    ("say", {"content": "As content.", "note": True}, "As content."),
    ("veto", {"proposal": "P1", "reason": "too slow"}, "[VETO: P1 | too slow]"),
    ("strike", {"turn": 2, "reason": "a mistake"}, "[STRIKE: 2 | a mistake]"),
    ("limit", {"name": "max_turns", "value": 40}, "[LIMIT: max_turns 40]"),
    ("step", {"on": True}, "[STEP: on]"),
    ("say", {"to": "B", "text": "Why?"}, "TURN: B"),
    ("invite", {"agent": "C=Carla"}, "[INVITE: C = Carla @ http://localhost:"),
    ("invite", {"agent": {"id": "D", "url": "http://127.0.0.1:4444"}}, "[INVITE: D @ http://127.0.0.1:4444]"),
    ("leave", {"agent": "B", "reason": "no need"}, "[LEAVE: B | no need]"),
)


def test_every_act_writes_one_entry_and_no_reason_is_too_long(room: Room) -> None:
    room.open("A")
    for path, body, said in DONE:
        answer = send(room.a, f"POST /{path}", body, "application/x-www-form-urlencoded")
        assert (answer.status, answer.json["status"]) == (200, "ok"), answer.json
        assert room.text.count(said) == 1
    assert send(room.a, "POST /pass").status == 200
    for path, more in (("strike", {"turn": 1}), ("leave", {"agent": "C"}), ("stop", {})):
        reason = f"{path} " * 3_000
        assert send(room.a, f"POST /{path}", {**more, "reason": reason}).status == 200
        entry = parse(room.file.read_bytes()).last
        assert (entry.body.split(), len(entry.written[0].value) < 520) == (reason.split(), True)
    assert room.a.wait() == 0


def test_a_result_is_approved_then_rejected_and_the_dialog_goes_on(room: Room) -> None:
    room.begin("Where?")
    room.start("A")
    for line, body in (("POST /approve", None), ("POST /reject", {"reason": "no"})):
        problem = send(room.a, line, body).problem
        assert (problem["status"], "the dialog is not begun" in problem["detail"]) == (409, True)
    room.types(
        "\n---\n\n## Turn 2 — Claude A\n\n## Consensus Summary\n\nSessions live in Postgres.\n\n[CONSENSUS_REACHED]\n\n"
        "TURN: B\n\n## Turn 3 — Claude B\n\n[AGREE: P1]\n\n[CONSENSUS_REACHED]\n"
    )
    until(lambda: send(room.a, "GET /dialog").json["outcome"] == "CONSENSUS_REACHED", "the end")
    for _ in range(2):
        done = send(room.a, "POST /approve").json
        assert (done["turn"], done["phase"]) == (3, "ended")
    until(lambda: send(room.a, "GET /health").json["approved"], "the approval in /health")
    assert room.text.count("[APPROVED]") == 1
    assert "approve" not in send(room.a, "GET /health").json["allowed"]
    done = send(room.a, "POST /reject", {"reason": "It forgets the migration."}).json
    assert (done["turn"], done["turn_of"], done["phase"]) == (4, ["A"], "waiting")
    call = room.minds["A"].call(1)
    prompt = (room.minds["A"].folder / "prompt.1").read_text(encoding="utf-8")
    assert "The person rejected the earlier result (CONSENSUS_REACHED in turn 3)" in prompt
    call.end("Then with a migration.")
    until(lambda: room.number == 5, "the turn after the rejection")
    rejected = [(e.by, [str(m) for m in e.marks]) for e in room.dialog().entries if e.mark("REJECTED")]
    assert rejected == [(USER, ["[REJECTED: It forgets the migration.]"])]


def test_the_routes_of_a_build_write_what_the_person_says_of_its_tasks(tmp_path: Path) -> None:
    planned = build()
    with Room(tmp_path, "ML") as room:
        room.file.write_bytes(planned.paper.data)
        room.start("M")
        room.until(lambda: "no_dialog" not in str(room["M"].health()), "M to read the dialog")
        for body, said in (
            ({"act": "change", "tasks": 2, "description": "print years"}, "[TASK: 002 | changed | print years]"),
            ({"act": "drop", "tasks": "2", "reason": "not now"}, "[TASK: 002 | dropped | not now]"),
            ({"act": "confirm"}, "[TASK: 001 | confirmed]"),
        ):
            answer = send(room["M"], "POST /tasks", body)
            assert (answer.status, answer.json["status"]) == (200, "ok"), answer.json
            assert room.text.count(said) == 1
        assert parse(room.file.read_bytes()).state.owing == ("L",)
        before = room.text
        for path, body, status in (
            ("tasks", {"act": "confirm", "tasks": "9"}, 400),
            ("tasks", {"act": "accept"}, 409),
            ("tasks", {"act": "approve"}, 422),
            ("gate", {"how": "run"}, 409),
            ("gate", {"how": "skip"}, 422),
        ):
            refused = send(room["M"], f"POST /{path}", body)
            assert (refused.status in (status, 400), bool(refused.problem["fix"])) == (True, True), refused.json
        assert room.text == before


# -- what is refused -----------------------------------------------------------------------------------------------

WRONG: tuple[tuple[str, Any, int, str], ...] = (
    ("say", {"text": "You!", "to": "Z"}, 400, "A (Claude A), B (Claude B)"),
    ("say", {"text": " \n"}, 400, "say"),
    ("say", {"text": " ", "proposal": True}, 400, ""),
    ("say", {"text": "Hi.", "volume": 11}, 422, "/docs"),
    ("say", {"to": "A"}, 422, "/docs"),
    ("say", ["Hi."], 400, "/docs"),
    ("say", None, 422, "/docs"),
    ("say", '{"text": ', 400, "/docs"),
    ("say", '{"text": ' + "[" * 10_000 + "]" * 10_000 + "}", 400, "/docs"),
    ("say", '{"text": "\\ud800"}', 422, "/docs"),
    ("say", '{"text": "Hi.", "\\ud800": 1}', 422, "/docs"),
    ("say", {"text": 5}, 422, "/docs"),
    ("say", {"text": "x" * 1_000_001}, 422, "/docs"),
    ("say", {"text": "Hi.", "turns": 0}, 422, "/docs"),
    *(
        (path, body, status, "")
        for path in ("retry", "skip")
        for body, status in (({"agent": "Z"}, 400), ({"agent": "USER"}, 400), ({}, 422), ({"agent": "A", "x": 1}, 422))
    ),
    ("skip", {"agent": "A"}, 409, "skip B, or wait for A's turn"),
    ("floor", {"agent": "B"}, 409, ""),
    ("floor", {"agent": "A", "x": 1}, 422, "/docs"),
    ("veto", {"proposal": "P9"}, 400, ""),
    ("strike", {"turn": 99}, 400, ""),
    ("limit", {"name": "x", "value": 1}, 400, ""),
    ("invite", {"agent": "A @ http://example.com:80"}, 400, ""),
    ("leave", {"agent": "Z"}, 400, ""),
    ("reject", {}, 422, "/docs"),
    ("reject", {"reason": "x", "why": "y"}, 422, "/docs"),
)


def test_what_makes_no_sense_is_refused_with_a_fix_and_writes_nothing(idle: Daemon, lasting: Room) -> None:
    lasting.begin("Tabs or spaces?", "B")
    before = lasting.file.read_bytes()
    for path, body, status, fix in WRONG:
        problem = send(idle, f"POST /{path}", body).problem
        assert (problem["status"], fix in problem["fix"]) == (status, True), (path, str(body)[:60], problem)
        assert problem["fix"]
    assert lasting.file.read_bytes() == before
    lasting.types("\nEnough.\n\n[CONSENSUS_REACHED]\n")
    for path in ("retry", "skip", "floor"):
        problem = send(idle, f"POST /{path}", {"agent": "A"}).problem
        assert (problem["status"], "over" in problem["detail"] or "say" in problem["fix"]) == (409, True)


ACTS = {"say": {"text": "Wait."}, "pause": None, "resume": None, "retry": {"agent": "A"}, "floor": {"agent": "B"}}


@cases("kind", ["nothing", "a-list", "a-folder", "a-link"])
def test_acts_need_a_dialog(idle: Daemon, lasting: Room, kind: str) -> None:
    real = lasting.folder / "real.md"
    real.write_text("- milk\n")
    if kind == "a-folder":
        lasting.file.mkdir()
    elif kind == "a-link":
        lasting.file.symlink_to(real)
    elif kind == "a-list":
        lasting.file.write_text("- milk\n")
    try:
        for line, body in (*((f"POST /{path}", body) for path, body in ACTS.items()), ("GET /dialog", None)):
            problem = send(idle, line, body).problem
            assert (problem["status"], bool(problem["fix"])) == (409, True)
            assert kind != "nothing" or "dialogd new" in problem["fix"]
        assert send(idle, "POST /notify").json["status"] == ("no_dialog" if kind == "nothing" else "error")
        assert kind not in ("a-list", "a-link") or lasting.file.read_text() == "- milk\n"
    finally:
        lasting.file.rmdir() if kind == "a-folder" else lasting.file.unlink(missing_ok=True)


def test_no_secret_of_the_environment_stands_in_what_a_route_writes(tmp_path: Path) -> None:
    secret = "correct-horse-battery-staple"
    said = f"{'x' * 470} {secret} y"
    acts: list[tuple[str, dict[str, object]]] = [
        ("say", {"text": said}),
        ("say", {"text": said, "note": True}),
        ("say", {"text": said, "proposal": True}),
        ("veto", {"proposal": "P1", "reason": said}),
        ("strike", {"turn": 1, "reason": said}),
        ("say", {"to": "B", "text": said}),
        ("invite", {"agent": f"C = {secret}"}),
        ("invite", {"agent": {"id": "D", "name": secret}}),
        ("leave", {"agent": "B", "reason": said}),
        ("stop", {"reason": f"{'x' * 470} {secret}"}),
    ]
    with Room(tmp_path, environment={"MY_API_KEY": secret}) as room:
        room.open("A")
        for path, body in acts:
            before = len(room.text)
            answer = send(room.a, f"POST /{path}", body)
            assert answer.status in (200, 400), (path, answer.body)
            assert secret[:12] not in room.text[before:], path
            assert answer.status == 400 or len(room.text) > before
        assert room.a.wait() == 0
        room.start("A")
        assert send(room.a, "POST /reject", {"reason": said}).status == 200
        assert "[REJECTED: x" in room.text
        assert secret[:12] not in room.text


# -- what an act does to those who are at work ---------------------------------------------------------------------

NEXT = {
    "say": ({"text": "You, B.", "to": "Claude B"}, "B", 2),
    "retry": ({"agent": "claude a"}, "A", 1),
    "skip": ({"agent": "A"}, "B", 1),
}


@pytest.mark.parametrize("act", NEXT)
def test_an_act_ends_the_call_under_way_and_says_who_is_next(room: Room, act: str) -> None:
    body, who, turn = NEXT[act]
    room.open("AB")
    first = room.think()
    assert send(room.a, f"POST /{act}", body).json["turn_of"] == [who]
    room.minds[who].call(2 if who == "A" else 1).end("Spaces.\n")
    room.until(lambda: room.number == turn + 1, "the turn")
    until(lambda: not first.is_alive, "the end of the first call")


def test_say_interrupts_the_call_and_keeps_what_was_written(room: Room) -> None:
    room.open()
    with listening(room.a) as events:
        first = room.think()
        first.say("Tabs, because\nof accessibility")
        assert events.until("text").data["text"].startswith("Tabs, because")
        done = send(room.a, "POST /say", {"text": "Consider editors too."})
        assert (done.status, done.json["status"], done.json["turn"], done.json["turn_of"]) == (200, "ok", 2, ["A"])
        second = room.minds["A"].call(2)
        until(lambda: not first.is_alive, "the first process to die")
        assert events.until("draft").data["text"].startswith("Tabs, because")
    assert "Tabs, because" in (room.folder / "mind-A" / "prompt.2").read_text()
    second.end("Both, then.\n")
    room.until(lambda: room.number == 3, "A's turn")
    assert [e["by"] for e in send(room.a, "GET /dialog").json["entries"]] == ["USER", "USER", "A"]
    assert "Tabs, because" not in room.text


def test_say_begins_a_dialog_and_opens_an_ended_one_again_with_turns(room: Room) -> None:
    room.open("AB", max_turns=3)
    send(room.a, "POST /say", {"text": "You, B.", "to": "B"})
    room.minds["B"].call(1).end("Spaces.\n")
    room.until(lambda: room.outcome == "MAX_TURNS_REACHED", "the end")
    done = send(room.a, "POST /say", {"text": "I disagree.", "to": "A", "turns": 1}).json
    assert (done["turn"], done["turn_of"]) == (4, ["A"])
    room.minds["A"].call(1).end("Spaces.\n")
    room.until(lambda: room.number == 5 and room.outcome == "MAX_TURNS_REACHED", "the second end")


def test_notes_pauses_and_resumes_start_nothing_and_end_no_call(room: Room) -> None:
    room.open("AB")
    for path, body in (("say", {"text": "Mind the editors.", "note": True}), ("pause", None), ("resume", None)):
        done = send(room.a, f"POST /{path}", body)
        assert (done.status, done.json["turn"], done.json["turn_of"]) == (200, 1, ["A"])
    assert send(room.a, "POST /notify", {"from": "B"}).json["status"] == "not_started"
    typing = room.think()
    send(room.a, "POST /say", {"text": "And the linters.", "note": True})
    assert send(room.b, "POST /pause").json["phase"] == "paused"
    size = len(room.file.read_bytes())
    assert send(room.a, "POST /pause").status == 200
    assert (len(room.file.read_bytes()), typing.is_alive) == (size, True)
    typing.end("Tabs.\n")
    room.until(lambda: room.number == 2, "A's turn")
    assert send(room.b, "POST /notify").json["status"] == "paused"
    assert room.minds["B"].pids == []
    assert send(room.a, "POST /resume").json["turn_of"] == ["B"]
    room.minds["B"].call(1).end("Spaces.\n")
    room.until(lambda: room.number == 3, "B's turn")
    assert len(room.minds["A"].pids) == 1


def test_the_floor_is_asked_for_where_the_order_is_free(room: Room) -> None:
    room.start("A")
    free = '## Setup\n\n```toml\norder = "free"\n```\n\n## Rules'
    room.file.write_text(room.opening("Tabs or spaces?", "A").replace("## Rules", free), encoding="utf-8")
    assert send(room.a, "POST /floor", {"agent": "A"}).problem["status"] == 409
    typing = room.think()
    assert send(room.a, "POST /floor").json == {"status": "ok", "turn": 1, "turn_of": ["A"], "phase": "waiting"}
    assert send(room.a, "POST /floor", {"agent": "claude b"}).json["turn_of"] == ["A"]
    assert room.text.index("[TO: USER]") < room.text.index("[TO: B]")
    assert typing.is_alive
    typing.end("Tabs.\n")
    room.until(lambda: room.number == 2, "A's turn")
    assert room.dialog().state.owing == ("USER",)


def test_an_invited_agent_is_told_and_one_that_left_says_why_it_is_quiet(room: Room) -> None:
    room.open("AB")
    with listening(room.a) as events:
        call = room.think()
        call.say("Half a thou")
        events.until("text")
        assert send(room.b, "POST /leave", {"agent": "A"}).json["turn_of"] == ["B"]
        until(lambda: not call.is_alive, "the call of A to end")
    until(lambda: ((room.a.health() or {}).get("waiting") or {}).get("status") == "left", "A to be quiet")
    reason = (room.a.health() or {})["waiting"]["reason"]
    assert reason == "A takes part no longer: the person let it leave; `dialogd invite A` has it back"
    assert "Half a thou" not in room.text
    room.minds["B"].call(1).end("Alone, then.\n")
    until(lambda: "Alone, then." in room.text, "B to go on")
    here = f"http://localhost:{room.a.port}"
    assert send(room.b, "POST /invite", {"agent": {"id": "A", "url": here}}).status == 200
    assert [agent.id for agent in parse(room.file.read_bytes()).header.agents] == ["B", "A"]
    send(room.b, "POST /say", {"to": "A", "text": "Back?"})
    room.minds["A"].call(2).end("Back again.\n")
    until(lambda: "Back again." in room.text, "A to speak again")

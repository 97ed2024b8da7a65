"""The routes of the person's hand, on running daemons."""

from __future__ import annotations

from pathlib import Path

from dialogd.protocol.grammar import parse
from tests.protocol.test_build import room as build
from tests.server.daemon_process import Room, listening, send
from tests.support.pair import until


def test_every_route_of_the_hand_writes_one_entry_and_tells(room: Room) -> None:
    room.open("A")
    done = [
        ("say", {"text": "use SQLite", "proposal": True}, "[PROPOSAL P1: use SQLite]"),
        ("say", {"text": "use Redis", "instead": "P1"}, "[PROPOSAL P2: use Redis]"),
        ("veto", {"proposal": "P1", "reason": "too slow"}, "[VETO: P1 | too slow]"),
        ("strike", {"turn": 2, "reason": "a mistake"}, "[STRIKE: 2 | a mistake]"),
        ("limit", {"name": "max_turns", "value": 40}, "[LIMIT: max_turns 40]"),
        ("step", {"on": True}, "[STEP: on]"),
        ("say", {"to": "B", "text": "Why?"}, "TURN: B"),
        ("invite", {"agent": "C=Carla"}, "[INVITE: C = Carla @ http://localhost:"),
        ("invite", {"agent": {"id": "D", "url": "http://127.0.0.1:4444"}}, "[INVITE: D @ http://127.0.0.1:4444]"),
        ("leave", {"agent": "B", "reason": "no need"}, "[LEAVE: B | no need]"),
    ]
    for path, body, said in done:
        answer = send(room.a, f"POST /{path}", body)
        assert (answer.status, answer.json["status"]) == (200, "ok"), answer.json
        assert room.text.count(said) == 1
    before = room.text
    for path, body in (("veto", {"proposal": "P9"}), ("strike", {"turn": 99}), ("limit", {"name": "x", "value": 1}),
                       ("invite", {"agent": "A @ http://example.com:80"}), ("leave", {"agent": "Z"}),
                       ("say", {"text": " ", "proposal": True}), ("say", {"to": "Z", "text": "x"})):  # fmt: skip
        refused = send(room.a, f"POST /{path}", body)
        assert (refused.status, bool(refused.problem["fix"])) == (400, True)
    assert room.text == before
    assert send(room.a, "POST /pass").status == 200


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


def test_no_reason_is_too_long_for_a_route(room: Room) -> None:
    room.open("A")
    for path, body in (("strike", {"turn": 1}), ("leave", {"agent": "B"}), ("stop", {})):
        reason = f"{path} " * 3_000
        assert send(room.a, f"POST /{path}", {**body, "reason": reason}).status == 200
        entry = parse(room.file.read_bytes()).last
        assert (entry.body.split(), len(entry.written[0].value) < 520) == (reason.split(), True)
    assert room.a.wait() == 0


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

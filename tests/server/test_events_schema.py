"""A whole dialog's events against the schema that the daemon itself serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs

from dialogd.server.streams import KINDS
from dialogd.server.wire import Health
from tests.server.daemon_process import Room, Stream, listening, send


def check(events: Stream, schema: dict[str, Any]) -> set[str]:
    """Every event is as the schema has it, and has no field that the schema does not know; gives their kinds."""
    for event in events.seen:
        jsonschema_rs.validate({**schema, "$ref": f"#/$defs/{event.kind}"}, event.data)
        known = set(schema["$defs"][event.kind]["properties"])
        if event is events.seen[0]:
            known |= set(Health.model_fields)
        assert set(event.data) <= known, event.kind
    return {event.kind for event in events.seen}


def test_every_event_of_a_whole_dialog_is_as_the_schema_says(tmp_path: Path) -> None:
    with Room(tmp_path) as room:
        room.start("A")
        with listening(room.a, all_=True) as events:
            schema = send(room.a, "GET /events/schema").json_of("application/schema+json")
            assert set(schema["$defs"]) >= set(KINDS)
            room.begin("Tabs or spaces?", "A", max_turns="many")
            events.until("warning")
            room.think().end("Tabs.\n\n[PROPOSAL: tabs]\n")
            events.until("cost", turn=2)
            send(room.a, "POST /say", {"text": "Go on, A.", "to": "A"})
            typing = room.minds["A"].call(2)
            typing.say("Well, ")
            events.until("text", turn=4)
            send(room.a, "POST /say", {"text": "Stop.", "to": "B"})
            events.until("draft")
            room.begin("Which editor?", "A")
            events.until("dropped")
            send(room.a, "POST /stop", {"reason": "lunch"})
            events.rest()
        kinds = check(events, schema)
    assert kinds >= {
        "state",
        "agent",
        "text",
        "turn",
        "note",
        "mark",
        "cost",
        "appended",
        "draft",
        "warning",
        "dropped",
    }
    assert kinds >= {"notified", "telling", "bye"}


def test_a_failure_is_told_as_the_schema_says(tmp_path: Path) -> None:
    with Room(tmp_path, command="sh -c 'exit 3'", environment={"DIALOGD_RETRY_WAIT": "0"}) as room:
        room.open()
        with listening(room.a) as events:
            schema = send(room.a, "GET /events/schema").json_of("application/schema+json")
            room.notify()
            events.until("agent", state="failed")
            events.until("state", state="waiting_for_user")
            room.a.notify(**{"from": "B"})
            events.until("notified", by="B")
            assert events.of("agent")[-1]["state"] == "failed"  # until somebody helps it on
        assert check(events, schema) >= {"error", "note"}

"""Real daemons: a default that nobody answered in time, and what /health says of the question."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.server.daemon_process import Room, send
from tests.support.pair import until


def in_minutes(minutes: float) -> str:
    """Wall time so far from now, as it stands in a file."""
    return (datetime.now(UTC) + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


def asks(room: Room, by: str, *, allowed: bool = True) -> None:
    """A file in which A has asked the person, with a deadline and a default."""
    room.begin("Where?", setup="question_defaults = true" if allowed else "")
    question = f"[QUESTION_FOR_USER: Postgres or Redis? | by {by} | default: keep Postgres]"
    room.types(f"\n---\n\n## Turn 2 — Claude A\n\nIt depends.\n\n{question}\n\nTURN: USER\n")


def taken(room: Room) -> list[str]:
    """The defaults that were taken, as they stand in the file."""
    return re.findall(r"^\[DEFAULT_TAKEN: (.*)\]$", room.file.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.slow
def test_a_default_is_taken_once_by_daemons_that_start_after_its_deadline(room: Room) -> None:
    asks(room, in_minutes(-5))
    room.start()
    call = room.minds["A"].call(1)
    prompt = (room.minds["A"].folder / "prompt.1").read_text(encoding="utf-8")
    assert "your default was taken, and is not their word" in prompt
    call.end("Postgres it is.")
    room.minds["B"].call(1).end("Good.")
    until(lambda: room.number >= 4, "two turns after the default")
    assert taken(room) == ["keep Postgres"]
    dialog = room.dialog()
    (note,) = (entry for entry in dialog.entries if entry.mark("DEFAULT_TAKEN"))
    assert (note.by, note.turn) == ("SYSTEM", ("A",))


@pytest.mark.slow
def test_a_daemon_looks_right_at_the_deadline(tmp_path: Path) -> None:
    by = in_minutes(0.08)
    with Room(tmp_path, environment={"DIALOGD_POLL": "60"}) as room:
        asks(room, by)
        room.start("A")
        room.minds["A"].call(1)
        (note,) = (entry for entry in room.dialog().entries if entry.mark("DEFAULT_TAKEN"))
        assert note.frame.at >= by


def test_health_and_dialog_tell_the_question(room: Room) -> None:
    by = in_minutes(30)
    asks(room, by)
    room.start("A")
    question = {
        "text": "Postgres or Redis?", "asker": "A", "entry": "2", "by": by, "default": "keep Postgres",
        "takes_default": True,
    }  # fmt: skip
    until(lambda: send(room.a, "GET /health").json["turn"] == 2, "the file was read")
    for path in ("GET /health", "GET /dialog"):
        facts = send(room.a, path).json
        assert (facts["question"], facts["questions"], facts["approved"]) == (question, [question], False)
    told = f"{datetime.fromisoformat(by).astimezone():%H:%M}; default: keep Postgres (taken then))"
    assert send(room.a, "GET /health").json["waiting"]["reason"].endswith(told)
    send(room.a, "POST /say", {"text": "Redis."})
    assert send(room.a, "GET /dialog").json["questions"] == []
    assert taken(room) == []


def test_nothing_is_taken_where_the_file_does_not_allow_it(room: Room) -> None:
    asks(room, in_minutes(-5), allowed=False)
    room.start("A")
    answer = send(room.a, "POST /notify").json
    assert answer["status"] == "waiting_for_user"
    assert "which has passed; default: keep Postgres (not taken: this dialog takes no defaults)" in answer["reason"]
    assert send(room.a, "GET /health").json["question"]["takes_default"] is False
    assert send(room.a, "POST /say", {"text": "Redis."}).json["turn_of"] == ["A"]
    assert send(room.a, "GET /dialog").json["question"] is None
    room.minds["A"].call(1).end("Redis, then.")
    assert taken(room) == []

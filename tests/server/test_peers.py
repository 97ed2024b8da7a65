"""Daemons of several dialogs on one machine: each finds those of its own, and touches no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dialogd.protocol.grammar import parse
from tests.cli.command import Commands
from tests.server.daemon_process import Room, listening, send


class Unnamed(Room):
    """A room whose daemons are told nothing of each other, and whose header is written by hand, as short as may be.

    It then means 3001 and 3002, where somebody else's dialog may be.
    """

    def words(self, agent: str) -> list[str]:
        """The command line of one daemon, without the others' addresses."""
        words = super().words(agent)
        return words[: words.index("--peer")]

    def opening(self, question: str, turn: str = "", setup: str = "", **keys: object) -> str:
        """The dialog, without its agents."""
        return re.sub(r"(?m)^\*\*Agents:\*\*.*\n", "", super().opening(question, turn, setup, **keys))


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    """Two agents, A and B; nobody runs yet."""
    with Room(tmp_path) as room:
        yield room


@pytest.fixture
def unnamed(tmp_path: Path) -> Iterator[Unnamed]:
    """Two agents who know each other by the registry alone."""
    with Unnamed(tmp_path) as room:
        yield room


ACTS: dict[str, dict[str, Any]] = {
    "/notify": {},
    "/say": {"text": "Wait."},
    "/pause": {},
    "/resume": {},
    "/retry": {"agent": "A"},
    "/skip": {"agent": "A"},
    "/pass": {},
    "/approve": {},
    "/reject": {"reason": "no"},
    "/ask": {"agent": "B", "text": "why?"},
    "/limit": {"name": "max_turns", "value": 9},
    "/invite": {"agent": "C"},
    "/leave": {"agent": "B"},
    "/step": {"on": True},
    "/strike": {"turn": 1},
    "/suggest": {"text": "tabs"},
    "/veto": {"proposal": "P1"},
    "/word": {},
    "/stop": {},
}


def test_what_names_another_dialog_is_refused_and_does_nothing(room: Room) -> None:
    """By its file or its id, whatever is asked for; status 409 with a way out, nothing written, the daemon goes on."""
    room.open()
    before = room.file.read_bytes()
    mine = {"file": str(room.file), "dialog": parse(before).id}
    strange = [{"file": "/tmp/other.md"}, {"dialog": "0ddba11"}, {**mine, "dialog": "0ddba11"}, {"file": "a\0b"}]
    for path, body in ACTS.items():
        for other in (*strange, {**mine, "file": room.file.name}):
            problem = send(room.a, f"POST {path}", {**body, **other}).problem
            assert (path, problem["status"]) == (path, 409)
            assert "status --all" in problem["fix"]
        assert send(room.a, f"POST {path}", {**body, "file": 5}).status in (400, 422)
    assert room.file.read_bytes() == before
    assert (room.a.health() or {})["phase"] == "waiting"


def test_what_names_the_daemons_own_dialog_is_done(room: Room, tmp_path: Path) -> None:
    """By file, whatever way leads to its folder, by id, or by both; a stop too."""
    room.open()
    way = tmp_path / "way"
    way.symlink_to(room.file.parent)
    names = [
        {"file": str(room.file)},
        {"dialog": parse(room.file.read_bytes()).id},
        {"file": str(way / room.file.name)},
    ]
    for name in names:
        for path in ("/pause", "/resume"):
            assert send(room.a, f"POST {path}", name).status == 200
    assert [room.text.count(mark) for mark in ("[PAUSED]", "[RESUMED]")] == [3, 3]
    assert send(room.a, "POST /stop", {**names[0], **names[1]}).json["outcome"] == "STOPPED"
    assert room.a.wait(5) == 0


def test_a_dialog_that_took_the_place_of_another_is_not_meant_by_its_id(room: Room) -> None:
    """Whoever still looks at the old one does nothing to the new one."""
    room.open()
    old = parse(room.file.read_bytes()).id
    room.begin("Or both?")
    assert send(room.a, "POST /stop", {"file": str(room.file), "dialog": old}).status == 409
    assert "[STOPPED" not in room.text
    assert room.a.running


def test_stopping_one_dialog_touches_no_daemon_of_another(tmp_path: Path) -> None:
    """Also where its header names an address at which the other dialog's daemon listens; a kick-off neither."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    commands = Commands(tmp_path / "two")
    with Room(tmp_path / "one") as one, Room(tmp_path / "two", agents="A") as two:
        one.open("AB")
        text = two.opening("Which?").replace(
            "\n\n## Rules", f", B = Claude B @ http://localhost:{one.b.port}\n\n## Rules"
        )
        two.start("A")
        two.file.write_text(text, encoding="utf-8")
        commands.file.chmod(0o600)
        two.until(lambda: "no_dialog" not in str(two.a.health()), "A to read its dialog")
        assert (two.a.health() or {})["peers"]["B"]["url"].endswith(f":{one.b.port}")
        two.think().end("This one.\n\nTURN: B\n")
        two.until(lambda: two.number == 2, "A's turn")
        done = commands("stop", "--file", str(two.file))
        assert (done.code, two.a.wait(5), two.outcome) == (0, 0, "STOPPED"), done.err
        assert [(daemon.health() or {})["phase"] for daemon in (one.a, one.b)] == ["waiting", "waiting"]
        assert (one.outcome, one.number, one.minds["B"].pids) == ("", 1, [])


def test_daemons_find_each_other_without_a_port_in_the_header(unnamed: Unnamed) -> None:
    """By the list of those that run, whoever came first; a stop reaches both, and nobody warns of ports."""
    room = unnamed
    room.open("A")
    health = room.a.health() or {}
    assert health["waiting"]["reason"].endswith(f"curl -X POST http://localhost:{room.a.port}/notify")
    room.start("B")
    url = f"http://127.0.0.1:{room.b.port}"
    room.until(lambda: (room.a.health() or {})["peers"]["B"]["url"] == url, "A to know of B")
    with listening(room.a, all_=True) as events:
        room.think().end("Tabs.\n")
        room.minds["B"].call(1).end("Tabs it is.\n")
        events.until("text", by="B")
    room.until(lambda: room.number == 3, "B's turn")
    assert [(d.health() or {})["warnings"] for d in (room.a, room.b)] == [[], []]
    assert "warning" not in room.a.said + room.b.said
    assert send(room.a, "POST /stop").status == 200
    assert [room.a.wait(5), room.b.wait(5)] == [0, 0]


def test_a_daemon_that_comes_back_on_another_port_is_found_there(tmp_path: Path) -> None:
    """The header still names the old one; what a daemon was told by a flag comes first."""
    with Unnamed(tmp_path) as room:
        room.open("AB")
        room.b.terminate()
        room.b.port = room._port()
        room.start("B")
        url = f"http://127.0.0.1:{room.b.port}"
        room.until(lambda: (room.a.health() or {})["peers"]["B"]["url"] == url, "A to know of it")
        room.until(lambda: (room.a.health() or {})["peers"]["B"]["reachable"] is not False, "A to reach it")

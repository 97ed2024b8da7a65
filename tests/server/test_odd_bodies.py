"""Whatever a body holds: it is done, or refused with a fix; never an error of the daemon's own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.daemon_process import Room, send
from tests.server.test_peers import ACTS

ODD: dict[str, Any] = {
    "null": None,
    "true": True,
    "zero": 0,
    "minus": -1,
    "huge": 10**400,
    "fraction": 1.5,
    "empty": "",
    "blank": " \t\n",
    "everybody": "ALL",
    "anybody": "ANY",
    "person": "USER",
    "daemon": "SYSTEM",
    "several": "A, B",
    "nul": "A\0B",
    "half-a-character": "\ud800",
    "structure": "A\nTURN: B\n## Turn 9 - B\n[CONSENSUS_REACHED]",
    "bars": " | ] [ | ",
    "long": "x" * 5_000,
    "very-long": "x" * 900_000,
    "list": ["A"],
    "object": {"agent": "A"},
}
BROKEN = {
    "no-utf-8": b'{"agent": "\xff\xfe"}',
    "half-a-character": b'{"agent": "\\ud800"}',
    "cut": b'{"agent": "A"',
    "no-json": b"agent=A",
    "list": b'["A"]',
    "text": b'"A"',
    "number": b"7",
    "null": b"null",
    "nan": b'{"agent": NaN}',
    "infinite": b'{"value": 1e999, "name": "max_turns", "turn": -Infinity}',
    "many-digits": b'{"turn": ' + b"9" * 5_000 + b"}",
    "deep": b"[" * 60_000 + b"]" * 60_000,
    "deep-object": b'{"agent":' * 30_000 + b"1" + b"}" * 30_000,
    "twice": b'{"agent": "A", "agent": ["B"]}',
    "utf-16": '{"agent": "A"}'.encode("utf-16"),
    "mark-of-order": b'\xef\xbb\xbf{"agent": "A"}',
    "blanks": b" \n\t ",
    "nul": b"\0",
}


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    """A daemon at a dialog that nobody has begun; its agent would fail at once."""
    with Room(tmp_path_factory.mktemp("odd"), command="false", environment={"DIALOGD_RETRY_WAIT": "0"}) as room:
        room.open("A")
        yield room


def acted(room: Room, path: str, body: Any) -> None:
    """Ask, on a dialog of its own; what is not done is refused in order, and the daemon goes on."""
    answer = send(room.a, f"POST {path}", body, "application/json")
    assert answer.status < 500, (path, body if len(repr(body)) < 300 else "", answer.body)
    if answer.status >= 400:
        assert answer.problem["fix"]
    assert room.a.running


def some(paths: Iterable[str]) -> list[Any]:
    """In the fast lane only those whose bodies differ most: all are read in the same way."""
    fast = ("/retry", "/notify", "/stop")
    return [pytest.param(path, marks=() if path in fast else pytest.mark.slow) for path in paths]


@pytest.mark.parametrize("path", some(path for path in ACTS if path != "/stop"))
def test_no_odd_value_makes_a_route_fail(room: Room, path: str) -> None:
    names = [*ACTS[path], "reason", "instead", "to", "turns", "note", "budget", "dialog", "file", "from", "start", "x"]
    for kind, value in ODD.items():
        room.begin("Tabs or spaces?")
        for name in names:
            if kind != "very-long" or name in ("text", "reason", "agent"):
                acted(room, path, json.dumps({**ACTS[path], name: value}))


@pytest.mark.parametrize("path", some(ACTS))
def test_no_broken_body_makes_a_route_fail(room: Room, path: str) -> None:
    room.begin("Tabs or spaces?")
    for kind, body in BROKEN.items():
        if path != "/stop" or kind in ("no-utf-8", "cut", "no-json", "list", "text", "number", "deep", "nul"):
            acted(room, path, body)


@pytest.mark.parametrize("path", ["/retry", "/skip"])
@pytest.mark.parametrize("many", ["ALL", "all", "A, B"])
def test_several_agents_at_once_are_refused_with_the_way_out(room: Room, path: str, many: str) -> None:
    room.begin(f"Tabs or spaces, for {path} {many}?")  # a dialog that nobody has started before
    before = Path(room.file).read_bytes()
    problem = send(room.a, f"POST {path}", {"agent": many}).problem
    assert problem["status"] == 400
    assert "A" in problem["fix"]
    assert room.file.read_bytes() == before

"""Daemons of several dialogs on one machine: each finds those of its own, and touches no others."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from dialogd.agent.peers import ANSWER, WAITS, Peers
from dialogd.protocol.grammar import parse
from dialogd.store.disk import StateDir
from dialogd.store.registry import Registry
from tests.cli.command import Commands
from tests.server.daemon_process import Room, listening, send
from tests.server.serving import Site
from tests.support.pair import PATIENCE, a_second


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
    "/limit": {"name": "max_turns", "value": 9},
    "/invite": {"agent": "C"},
    "/leave": {"agent": "B"},
    "/step": {"on": True},
    "/strike": {"turn": 1},
    "/veto": {"proposal": "P1"},
    "/floor": {},
    "/stop": {},
}


def test_what_names_another_dialog_is_refused_and_does_nothing(room: Room) -> None:
    room.open()
    before = room.file.read_bytes()
    mine = {"file": str(room.file), "dialog": parse(before).id}
    strange = [{"file": "/tmp/other.md"}, {"dialog": "0ddba11"}, {**mine, "dialog": "0ddba11"}, {"file": "a\0b"}]
    for path, body in ACTS.items():
        for other in (*strange, {**mine, "file": room.file.name}):
            problem = send(room.a, f"POST {path}", {**body, **other}).problem
            assert (path, problem["status"]) == (path, 409)
            assert "status --all" in problem["fix"]
        assert send(room.a, f"POST {path}", {**body, "file": 5}).status in (409, 422)
    assert room.file.read_bytes() == before
    assert (room.a.health() or {})["phase"] == "waiting"


def test_what_names_the_daemons_own_dialog_is_done(room: Room, tmp_path: Path) -> None:
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
    assert room.a.wait() == 0


def test_a_dialog_that_took_the_place_of_another_is_not_meant_by_its_id(room: Room) -> None:
    room.open()
    old = parse(room.file.read_bytes()).id
    room.begin("Or both?")
    assert send(room.a, "POST /stop", {"file": str(room.file), "dialog": old}).status == 409
    assert "[STOPPED" not in room.text
    assert room.a.running


def test_stopping_one_dialog_touches_no_daemon_of_another(tmp_path: Path) -> None:
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
        assert (done.code, two.a.wait(), two.outcome) == (0, 0, "STOPPED"), done.err
        assert [(daemon.health() or {})["phase"] for daemon in (one.a, one.b)] == ["waiting", "waiting"]
        assert (one.outcome, one.number, one.minds["B"].pids) == ("", 1, [])


def test_daemons_find_each_other_without_a_port_in_the_header(unnamed: Unnamed) -> None:
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
    assert [room.a.wait(), room.b.wait()] == [0, 0]


def test_a_daemon_that_comes_back_on_another_port_is_found_there(tmp_path: Path) -> None:
    with Unnamed(tmp_path) as room:
        room.open("AB")
        room.b.terminate()
        room.b.port = room._port()
        room.start("B")
        url = f"http://127.0.0.1:{room.b.port}"
        room.until(lambda: (room.a.health() or {})["peers"]["B"]["url"] == url, "A to know of it")
        room.until(lambda: (room.a.health() or {})["peers"]["B"]["reachable"] is not False, "A to reach it")


Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
FINE = b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}"


class Strange:
    """A peer on a real port; `behave` says what it does with a connection. Knows what it was asked on how many."""

    def __init__(self, behave: Behaviour) -> None:
        self.behave = behave

    async def __aenter__(self) -> Strange:
        self.requests: list[bytes] = []
        self.connections = self.ended = 0
        self.server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        await eventually(lambda: self.open == 0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(OSError, asyncio.IncompleteReadError):
            await self.behave(reader, writer)
            await reader.read()  # until the other side closes, too
        self.ended += 1
        writer.transport.abort()

    @property
    def open(self) -> int:
        """How many connections nobody has closed."""
        return self.connections - self.ended

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """Read one whole request; gives its body."""
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(re.findall(rb"Content-Length: (\d+)\r\n", head)[0]))
        self.requests.append(head + body)
        return body


def strange(*answers: bytes, then: str = "wait", for_ever: bytes = b"") -> Strange:
    """A peer that answers the requests on one connection with these bytes, then waits, or closes; or never ends."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await peer.request(reader)
            writer.write(answer)
        while for_ever:
            writer.write(for_ever)
            await writer.drain()
        if then == "close":
            writer.close()
        elif then == "reset":
            writer.transport.abort()

    peer = Strange(behave)
    return peer


async def eventually(true: Callable[[], bool], seconds: float = PATIENCE) -> float:
    """Wait until `true()`; gives the seconds that it took."""
    began = asyncio.get_running_loop().time()
    while not true():
        assert asyncio.get_running_loop().time() < began + seconds, "waited in vain"
        await asyncio.sleep(0.005)
    return asyncio.get_running_loop().time() - began


async def told(peers: Peers) -> dict[str, bool]:
    """Tell all peers; gives who was reached at the first attempt."""
    peers.reachable.clear()
    peers.tell(None)
    await eventually(lambda: bool(peers.reachable))
    return dict(peers.reachable)


WRONG = {
    "silence": strange(b""),
    "closed": strange(b"", then="close"),
    "reset": strange(b"", then="reset"),
    "another-protocol": strange(b"SSH-2.0-dropbear\r\n"),
    "half-a-body": strange(FINE[:-1], then="close"),
    "endless-head": strange(b"HTTP/1.1 202 Accepted\r\n", for_ever=b"X-Y: z\r\n" * 99),
    "not-mine": strange(*[b"HTTP/1.1 409 Conflict\r\ncontent-length: 2\r\n\r\n{}"] * 3),
}
ENOUGH = {
    "accepted": strange(FINE),
    "busy": strange(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\n{}"),
    "elsewhere": strange(b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /\r\ncontent-length: 0\r\n\r\n"),
}


@pytest.mark.slow
async def test_a_peer_that_answers_strangely_is_gone_on_without() -> None:
    async with AsyncExitStack() as stack:
        for peer in (*WRONG.values(), *ENOUGH.values()):
            await stack.enter_async_context(peer)
        peers = Peers("A", {name: peer.url for name, peer in (WRONG | ENOUGH).items()}, "/tmp/dialog.md")
        peers.tell(None)
        assert await eventually(lambda: len(peers.reachable) == len(WRONG | ENOUGH)) < ANSWER + a_second()
        assert peers.reachable == dict.fromkeys(WRONG, False) | dict.fromkeys(ENOUGH, True)
        seconds = await eventually(lambda: all(len(peer.requests) == 3 for peer in WRONG.values()))
        assert seconds < 3 * ANSWER + sum(WAITS) + a_second()
        await peers.close()
        await eventually(lambda: not any(peer.open for peer in (*WRONG.values(), *ENOUGH.values())))
    assert [len(peer.requests) for peer in ENOUGH.values()] == [1] * len(ENOUGH)
    body = ENOUGH["accepted"].requests[0].partition(b"\r\n\r\n")[2]
    assert json.loads(body) == {"from": "A", "file": "/tmp/dialog.md"}


async def test_one_connection_to_a_peer_serves_all_turns() -> None:
    async with strange(*[FINE] * 3) as peer:
        peers = Peers("A", {"B": peer.url})
        for _ in range(3):
            await told(peers)
        assert (len(peer.requests), peer.connections) == (3, 1)
        await peers.close()
        await eventually(lambda: peer.open == 0)


async def test_a_peer_of_another_dialog_leaves_no_connections_behind() -> None:
    async with strange(*[b"HTTP/1.1 409 Conflict\r\ncontent-length: 2\r\n\r\n{}"] * 9) as peer:
        peers = Peers("A", {"B": peer.url})
        for _ in range(2):
            assert await told(peers) == {"B": False}
        await eventually(lambda: len(peer.requests) >= 6 and peer.open <= 2)
        await peers.close()


async def test_nothing_but_this_machine_is_told() -> None:
    peers = Peers("A", {"B": "http://192.0.2.1:3001", "C": "https://127.0.0.1:3001", "D": "http://127.0.0.1.example:1"})
    peers.tell(None)
    await eventually(lambda: peers.reachable == {"B": False, "C": False, "D": False})
    await peers.close()


async def test_telling_ends_where_the_daemon_ends() -> None:
    async with strange(b"") as peer:
        peers = Peers("A", {"B": peer.url})
        peers.tell(None)
        await eventually(lambda: len(peer.requests) == 1)
        await peers.close()
        await eventually(lambda: peer.open == 0)
        assert len(peer.requests) == 1  # whoever waits for an answer asks again after a second


def test_only_daemons_of_the_same_file_are_listed_for_it(tmp_path: Path) -> None:
    registry = Registry(StateDir(tmp_path / "state"))
    one, other, log = tmp_path / "one.md", tmp_path / "other.md", tmp_path / "log"
    with registry.entry("A", 3001, one, log), registry.entry("B", 3002, other, log):
        assert registry.urls(one) == {"A": "http://127.0.0.1:3001"}
        assert registry.urls(other) == {"B": "http://127.0.0.1:3002"}
        assert {daemon.id for daemon in registry.running()} == {"A", "B"}


async def test_the_daemon_of_another_file_speaks_for_nobody_here(site: Site) -> None:
    url, file = f"http://127.0.0.1:{site.port}", "/tmp/x\x1b.md"
    peers = Peers("C", {"A": url, "B": url})
    try:
        found = await peers.healths(None, file)
        assert {who for who, health in found.items() if health} == {"A"}
        assert await peers.healths(None, "/tmp/other.md") == {"A": None, "B": None}
    finally:
        await peers.close()

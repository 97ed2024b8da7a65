"""`GET /events?all=true`: what the other daemons say, told by this one; and other daemons that are none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dialogd.agent.events import Event, Listener
from dialogd.agent.loop import Agent
from dialogd.server.streams import NO_DAEMON, SILENT, Relay
from tests.server.daemon_process import Room, listening, send
from tests.server.test_events import clients, written
from tests.support.pair import PATIENCE, until
from tests.turns.minds import Mind, agent_with


@pytest.mark.slow
def test_who_asks_for_all_hears_the_other_daemons_too(room: Room) -> None:
    room.open("AB", turn="B")
    with listening(room.a, all_=True) as events, listening(room.a) as plain:
        events.until("agent", agent="B", state="idle")
        typing = room.think("B")
        assert events.until("agent", agent="B", state="thinking").data["turn"] == 2
        typing.say("Spaces it ")
        assert events.until("text", by="B").id == ""
        typing.end("is.\n\n[PROPOSAL: spaces]\n")
        for stream in (events, plain):
            assert stream.until("mark", by="B").data["value"] == "spaces"
            stream.until("cost", agent="B")
        while [data["state"] for data in events.of("agent") if data["agent"] == "B"][-1] != "idle":
            assert events.next() is not None
        assert written(events) == "Spaces it is.\n\n[PROPOSAL: spaces]\n"
        assert [data["number"] for data in events.of("turn")] == [2]
        assert {data["agent"] for data in plain.of("agent")} == {"A"}
        assert plain.of("text") == []
        assert clients(room, "B") == 1
    until(lambda: clients(room, "B") == 0, "A to hang up once nobody asks for all")


def test_a_daemon_that_dies_is_told_once_and_again_when_it_is_back(room: Room) -> None:
    room.open("AB")
    with listening(room.a, all_=True) as events:
        events.until("agent", agent="B", state="idle")
        room.b.kill()
        assert events.until("agent", agent="B", state="stopped").data["reason"] == SILENT
        room.start("B")
        events.until("agent", agent="B", state="idle")
        room.b.terminate()
        assert events.until("agent", agent="B", state="stopped").data["reason"] == "its daemon ends"
        assert [data["state"] for data in events.of("agent") if data["agent"] == "B"].count("stopped") == 2


def test_daemons_that_listen_to_each_other_end_at_once(room: Room) -> None:
    room.open("AB")
    with listening(room.a, all_=True) as one, listening(room.b, all_=True) as two:
        one.until("agent", agent="B", state="idle")
        two.until("agent", agent="A", state="idle")
        assert (clients(room, "A"), clients(room, "B")) == (2, 2)
        send(room.a, "POST /stop", {"reason": "lunch"})
        for stream, who in ((one, "A"), (two, "B")):
            rest = stream.rest()
            assert rest[-1].kind == "bye"
            assert [e.data["state"] for e in rest if e.kind == "agent" and e.data["agent"] == who][-1] == "stopped"
    room.a.wait()
    room.b.wait()
    assert "Traceback" not in room.a.said + room.b.said


# -- other daemons that are none ----------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@dataclass
class Peer:
    """A server in B's place: what it is asked, and who has hung up."""

    behave: Callable[[Path, asyncio.StreamWriter], Awaitable[None]]
    asked: list[bytes] = field(default_factory=list)
    port: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def served(self, folder: Path) -> AsyncIterator[Path]:
        """The path of a dialog whose agent B is here."""
        path = folder / "dialog.md"

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.asked.append(await reader.readuntil(b"\r\n\r\n"))
            with suppress(ConnectionError):
                await self.behave(path, writer)
                await writer.drain()
                await reader.read()  # until it hangs up
            self.ended.set()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        agents = f"A = Claude A @ http://localhost:9, B = Claude B @ http://localhost:{self.port}"
        path.write_text(f"# D\n\n**Topic:** T\n**Agents:** {agents}\n\n---\n\n## Turn 1 — User\n\nHm?\n\nTURN: A\n")
        path.chmod(0o600)
        try:
            yield path
        finally:
            server.close()


def event(kind: str, **data: Any) -> bytes:
    """An event as a daemon sends it."""
    return f"event: {kind}\ndata: {json.dumps({'v': 1, 'at': '2026-11-22T08:00:00.000Z', **data})}\n\n".encode()


def hello(path: Path, **other: Any) -> bytes:
    """The first event of B's daemon."""
    return HEAD + event("state", **{"id": "B", "file": str(path), "dialog": None, **other})


@asynccontextmanager
async def heard(folder: Path, peer: Peer) -> AsyncIterator[tuple[Agent, AsyncIterator[Event]]]:
    """Agent A beside this peer, and what a client that asks for all hears of it."""
    async with peer.served(folder) as path, agent_with(path, Mind()) as agent:
        Relay(agent)
        await agent.look()
        with agent.hub.join(hears_all=True) as listener:
            yield agent, told(listener)
        await agent.hub.close()


async def told(listener: Listener) -> AsyncIterator[Event]:
    """What is told of B."""
    async for event in listener:
        if "B" in (event.data.get("agent"), event.data.get("by")):
            yield event


AGENT = {"agent": "B", "state": "idle", "turn": None, "seconds": 1.0, "reason": ""}
TEXT = {"by": "B", "turn": 2, "text": "x", "reset": True, "done_chars": 1}
NONSENSE: dict[str, tuple[Callable[[Path], list[bytes]], str]] = {
    "another file": (lambda path: [hello(path, file="/tmp/other.md")], NO_DAEMON),
    "another agent": (lambda path: [hello(path, id="C")], NO_DAEMON),
    "another dialog": (lambda path: [hello(path, dialog="cafe00")], NO_DAEMON),
    "no state first": (lambda path: [HEAD, event("text", **TEXT)], NO_DAEMON),
    "no JSON": (lambda path: [hello(path), b"event: text\ndata: {oops\n\n"], NO_DAEMON),
    "a field missing": (lambda path: [hello(path), event("agent", agent="B", state="idle")], NO_DAEMON),
    "a page": (lambda path: [b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>"], SILENT),
    "no HTTP": (lambda path: [b"SSH-2.0-x\r\n"], SILENT),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NONSENSE)
async def test_who_sends_nonsense_is_cut_off_and_harms_nothing(tmp_path: Path, name: str) -> None:
    pieces, why = NONSENSE[name]

    async def behave(path: Path, writer: asyncio.StreamWriter) -> None:
        for piece in pieces(path):
            writer.write(piece)
            await writer.drain()

    peer = Peer(behave)
    async with asyncio.timeout(PATIENCE), heard(tmp_path, peer) as (agent, events):
        first = await anext(events)
        await peer.ended.wait()
        assert (first.kind, first.data["state"]) == ("agent", "stopped")
        assert why in first.data["reason"]
        assert b"GET /events HTTP/1.1" in peer.asked[0]  # its own events only: no loops
        assert (await agent.look()) is not None


async def test_what_is_passed_on_holds_no_secrets(tmp_path: Path) -> None:
    async def behave(path: Path, writer: asyncio.StreamWriter) -> None:
        writer.write(hello(path) + b": ping\n\n" + event("later", by="B", what="ever"))
        writer.write(event("agent", **AGENT, colour="red"))
        writer.write(event("text", **{**TEXT, "text": "a b sk-ant-" + "Ab1" * 12}))
        writer.write(event("draft", by="B", why="late", text="x") + event("turn", by="B", number=2))
        writer.write(event("error", by="B", type="failed", message="m", fix="f", recoverable=True))

    async with asyncio.timeout(PATIENCE), heard(tmp_path, Peer(behave)) as (_, events):
        found = [await anext(events) for _ in range(4)]
    assert [event.kind for event in found] == ["agent", "text", "draft", "error"]
    assert {event.id for event in found} == {""}
    assert set(found[0].data) == {"v", "at", *AGENT}
    assert found[1].data["text"] == "a b [redacted: anthropic key]"
    assert (found[2].data["why"], found[3].data["fix"]) == ("late", "f")

"""What a turn does, counted: as much in a long dialog as in a short one. Counts are the same on every machine."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from dialogd.agent import events, prompt
from dialogd.agent.events import Event, Hub
from dialogd.agent.loop import Agent
from dialogd.agent.peers import Peers
from dialogd.agent.turn import Behavior
from dialogd.backends import FREE, Request, Usage
from dialogd.protocol import admit, compose, grammar, lifecycle
from dialogd.protocol.text import redact
from dialogd.store import disk
from dialogd.store.logfile import LogFile
from tests.logfile.files import OPENING, log_of
from tests.support.pair import PATIENCE

SHORT, LONG, LOOKED_AT = 60, 200, 4  # turns before the ones that are counted, and how many are
CALLS = {
    redact.__code__: "texts redacted",
    prompt.Prompts.turn.__code__: "prompts made",
    compose.received.__code__: "replies read",
    admit.MarkPolicy.admitted.__code__: "replies admitted",
    grammar.parse.__code__: "readings of the whole file",
    lifecycle.signals.__code__: "looks for signals",
    lifecycle.convergence.__code__: "looks for convergence",
    events.standing.__code__: "standings",
    Hub.publish.__code__: "events",
    Event.data.func.__code__: "events worked out",  # type: ignore[attr-defined]
    asyncio.BaseEventLoop.create_task.__code__: "tasks",
    ThreadPoolExecutor.submit.__code__: "ways to another thread",
    threading.Thread.start.__code__: "threads",
    LogFile.write.__code__: "appends",
}
SYSTEM_CALLS = {os.fsync: "flushes", os.open: "files opened"}
MOST = {
    "texts redacted": 13,
    "readings of the whole file": 0,
    "events": 6,
    "events worked out": 0,
    "tasks": 2,  # the call, and the hint to the peer
    "files opened": 2,
    "ways to another thread": 2,
    "threads": 0,
    "appends": 1,
    "replies read": 1,
    "replies admitted": 1,
    "flushes": 2,
    "requests": 1,
    "log lines": 2,
    "bytes read": 1_600,
}


class Speaker:
    """Says a line; with `asks` it looks at the whole prompt before."""

    name, model, price, most_out, room, costs = "speaker", "none", FREE, 100, 0, False
    secrets: tuple[str, ...] = ()

    def __init__(self, *, asks: bool) -> None:
        self.asks = asks

    async def reply(self, request: Request) -> AsyncIterator[str | Usage]:
        """Some words, and a mark."""
        text = request.prompt().text if self.asks else ""
        assert not self.asks or f"## Turn {request.turn - 1}, by" in text
        yield f"Point {request.turn:4}: " + "words " * 50 + f"\n\n[EVIDENCE: number {request.turn:4}]"
        yield Usage(model=self.model, usd=0.0)

    async def close(self) -> None:
        """Nothing is kept."""


@contextmanager
def counted(into: Counter[str]) -> Iterator[None]:
    """Count from outside, by the interpreter's own account of calls, in every thread that starts from here on."""

    def note(frame: FrameType, what: str, arg: Any) -> None:
        if what == "call":
            into["calls"] += 1
            if name := CALLS.get(frame.f_code):
                into[name] += 1
            elif frame.f_code is disk.pread.__code__:
                into["bytes read"] += frame.f_locals["size"]
        elif what == "c_call" and (name := SYSTEM_CALLS.get(arg)):
            into[name] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@asynccontextmanager
async def a_pair(
    path: Path, into: Counter[str], heard: asyncio.Event, *, asks: bool, opening: str = OPENING
) -> AsyncIterator[list[Agent]]:
    """Two agents of this process at one file. Their notifies go to a server that counts them and knows nothing."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break  # its daemon has closed the line
            size = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(size)
            into["requests"] += 1
            heard.set()
            writer.write(b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}")
        writer.close()

    path.write_text(opening)
    path.chmod(0o600)
    async with AsyncExitStack() as stack:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        stack.callback(server.close)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        agents = []
        for me, other in (("A", "B"), ("B", "A")):
            options = Behavior(pace=0.0, poll=0.05)
            agent = Agent(me, log_of(path), Speaker(asks=asks), Peers(me, {other: url}), Hub(events.say_event), options)
            agent.seen.nudge()
            stack.push_async_callback(agent.close)
            agents.append(agent)
        yield agents


@pytest.mark.parametrize("asks", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_a_turn_of_a_long_dialog_does_what_one_of_a_short_one_does(
    tmp_path: Path, asks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading, asking, writing, telling: nothing of it grows; nothing of the prompt is made for who does not ask.

    Of some turns the least of each count is taken: once in a while the whole file is read again.
    """
    caplog.set_level("INFO", "dialogd")
    into: Counter[str] = Counter()
    heard = asyncio.Event()

    async def turns(agents: list[Agent], until: int) -> list[Counter[str]]:
        found = []
        while (dialog := await agents[0].look()) is not None and dialog.state.number < until:
            into.clear()
            lines, made = len(caplog.records), sum(a.prompts.made for a in agents)
            me = agents[dialog.state.owing == ("B",)]
            await me.step()  # the turn
            await me.step()  # what it sees then
            async with asyncio.timeout(PATIENCE):
                await heard.wait()
            heard.clear()
            counts = Counter(into)
            counts["log lines"] = len(caplog.records) - lines
            counts["entries rendered"] = sum(a.prompts.made for a in agents) - made
            found.append(counts)
        return found

    async with a_pair(tmp_path / "d.md", into, heard, asks=asks) as agents:
        with counted(into):
            early = (await turns(agents, SHORT + LOOKED_AT))[-LOOKED_AT:]
        await turns(agents, LONG)
        with counted(into):
            late = await turns(agents, LONG + LOOKED_AT)
    names = {"calls", "bytes read", "prompts made", "entries rendered", *CALLS.values(), *MOST}
    before, after = ({name: min(counts[name] for counts in each) for name in names} for each in (early, late))
    assert after.pop("calls") <= before.pop("calls") * 1.15
    read = after.pop("bytes read")
    assert read <= before.pop("bytes read") + 40  # numbers get longer
    assert after == before
    after["bytes read"] = read
    assert {name: after[name] for name, most in MOST.items() if after[name] > most} == {}
    assert (after["prompts made"], after["entries rendered"]) == ((1, 2) if asks else (0, 0))
    assert after["standings"] == 0


def typed(number: int, who: str, passes: str) -> str:
    """A turn as somebody types it who knows of no frames."""
    marks = f"[PROPOSAL: store {number:4}]\n[EVIDENCE: number {number:4}]"
    return f"\n---\n\n## Turn {number} — {who}\n\nPoint {number:4}, by hand.\n\n{marks}\n\nTURN: {passes}\n"


async def test_typed_by_hand_a_long_dialog_costs_what_a_short_one_does(tmp_path: Path) -> None:
    into: Counter[str] = Counter()

    async def counts(length: int) -> list[Counter[str]]:
        said = "".join(typed(number, f"Claude {'BA'[number % 2]}", "AB"[number % 2]) for number in range(2, length))
        path, found = tmp_path / f"{length}.md", []
        async with a_pair(path, into, asyncio.Event(), asks=True, opening=OPENING + said) as (agent, _):
            await agent.look()
            first = await agent.look()
            agent.prompts.turn(first, first.header.agents[0])  # what is there already is read once
            with counted(into):
                for number, passes in enumerate(("USER", "USER", "USER", "A"), length):
                    with path.open("a") as file:
                        file.write(typed(number, "User", passes))
                    into.clear()
                    made = agent.prompts.made
                    await agent.step()
                    now = Counter(into)
                    now["entries rendered"] = agent.prompts.made - made
                    found.append(now)
            assert (agent.dialog.state.number, agent.dialog.state.owing) == (length + 4, ("B",))
            assert len(agent.dialog.turns) == length + 4
        return found

    for short, long in zip(await counts(SHORT), await counts(LONG), strict=True):
        assert long["calls"] <= short["calls"] * 1.05
        assert long["bytes read"] <= short["bytes read"] + 40
        assert (long["readings of the whole file"], long["entries rendered"]) == (0, short["entries rendered"])

"""Event streams: reading those of other daemons strictly and with limits, and serving our own."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import aclosing
from typing import Annotated, Any, get_args

from fastapi import Depends, FastAPI, Header, Query
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

from dialogd.agent.events import Event, Listener, State
from dialogd.agent.loop import Agent
from dialogd.protocol.order import is_apart
from dialogd.protocol.text import clean, one_line
from dialogd.server.report import opening

LARGEST = 8 * 1024 * 1024  # bytes of one event


class Garbled(Exception):
    """Not a daemon's event stream; the message says why, and for which agent."""


class Reader:
    """Turns bytes into events of the `wanted` kinds; others are not parsed."""

    def __init__(self, wanted: Collection[str]) -> None:
        self._wanted = wanted
        self._rest: list[bytes] = []
        self._kind = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
        """The complete events so far: kind and data. Raises `Garbled`."""
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            whole = b"".join((*self._rest, line)).removesuffix(b"\r")
            self._rest.clear()
            self._count(len(line) + 1)
            if whole:
                self._line(whole)
                continue
            if self._kind in self._wanted:
                yield self._kind, _object(b"\n".join(self._data))
            self._kind, self._data, self._size = "", [], 0
        if rest:
            self._rest.append(rest)
            self._count(len(rest))

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > LARGEST:
            raise Garbled(f"its daemon sent an event of over {LARGEST // 1024 // 1024} MiB")

    def _line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._kind = value.decode("ascii", "replace")
        elif name == b"data":
            self._data.append(value)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Garbled("its daemon sends events that are no JSON objects")
    return value


# -- What the dialog's other daemons say of their agents, for those who listen here and asked for all -----------------

LINGER = 2.0  # seconds that connections outlive their last listener: a page that is loaded anew comes back
LOOK = 1.0  # seconds between two looks at who takes part
WAITS = (0.5, 1.0, 2.0, 5.0)  # seconds before a daemon that does not answer is tried again
CUT_OFF = 30.0  # seconds before one that sends nonsense is
RATE = 200.0  # events a second of one daemon that are passed on; a faster one is read more slowly
BURST = 600.0
BULK = 16 * 1024  # characters that count as one event
SILENT = "does not answer"


class Relay:
    """Listens to the dialog's other daemons while a client here wants their events."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        agent.hub.follow_audience(self._audience)

    def _audience(self) -> None:
        """A client came or left, or the daemon is ending."""
        self._news.set()
        hub = self.agent.hub
        if hub.hears_all and not hub.is_closed and (self._task is None or self._task.done()):
            self._task = self.agent.peers.spawn(self._run())

    async def _run(self) -> None:
        """Keep one ear at each of the other daemons, whoever that is by now."""
        hub, peers = self.agent.hub, self.agent.peers
        ears: dict[tuple[str, str], asyncio.Task[None]] = {}
        heard_at = time.monotonic()
        try:
            while not hub.is_closed:
                heard_at = time.monotonic() if hub.hears_all else heard_at
                if time.monotonic() - heard_at >= LINGER:
                    return
                wanted = set(peers.of(self.agent.dialog).items())
                for gone in set(ears) - wanted:
                    await _end(ears.pop(gone))
                    hub.forget_relayed(gone[0])
                for who, url in sorted(wanted - set(ears)):
                    ears[who, url] = asyncio.create_task(_Ear(self.agent, who, url).listen())
                self._news.clear()
                await _wait(self._news, LOOK)
        finally:
            await _end(*ears.values())
            hub.forget_relayed()


async def _wait(news: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        pass


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Ear:
    """Listens to the daemon of one agent, again and again."""

    def __init__(self, agent: Agent, who: str, url: str) -> None:
        self._agent = agent
        self._hub = agent.hub
        self._who = who
        self._url = url
        self._allowed, self._allowed_at = BURST, time.monotonic()
        self._is_known = False  # the daemon has said that it is the right one

    async def listen(self) -> None:
        """Publish its events, and that it does not answer, until cancelled."""
        failures = 0
        while True:
            self._is_known, wait, why = False, WAITS[min(failures, len(WAITS) - 1)], SILENT
            try:
                await self._hear()
            except OSError:
                pass
            except Garbled as error:
                wait, why = CUT_OFF, str(error)
            failures = 0 if self._is_known else failures + 1
            before = self._hub.state_of(self._who)
            if before is None or before.state != "stopped":
                self._hub.agent(self._who, "stopped", reason=why, is_relayed=True)
            await asyncio.sleep(wait * random.uniform(1.0, 1.2))

    async def _hear(self) -> None:
        """One connection, to its end. Raises `OSError`, and `Garbled` for what is no stream of this dialog."""
        reader = Reader(wanted=(*_TAKEN, "state"))
        async with aclosing(self._agent.peers.listen(self._url)) as chunks:
            async for chunk in chunks:
                size = len(chunk)
                for kind, data in reader.feed(chunk):
                    await self._slowly(size)
                    self._take(kind, data)
                    size = 0  # the chunk counts once, however many events it holds

    async def _slowly(self, size: int) -> None:
        """Wait if it sends more than clients here should get at a time."""
        now = time.monotonic()
        self._allowed = min(BURST, self._allowed + (now - self._allowed_at) * RATE) - 1 - size / BULK
        self._allowed_at = now
        if self._allowed < 0:
            await asyncio.sleep(-self._allowed / RATE)

    def _take(self, kind: str, data: dict[str, Any]) -> None:
        if not self._is_known:
            self._check(kind, data)
        elif kind in _TAKEN and data.get("v") == 1:
            if data.get("agent" if kind == "agent" else "by") != self._who:
                raise Garbled("its daemon speaks for somebody else")
            try:
                _TAKEN[kind](self, data)
            except (KeyError, TypeError, ValueError, OverflowError):
                raise Garbled(f"its daemon sends a {kind} event that makes no sense") from None

    def _check(self, kind: str, data: dict[str, Any]) -> None:
        """Check by the first event whose daemon this is, and of which file."""
        mine, dialog = self._agent.file.path, self._agent.dialog
        if kind != "state" or (data.get("id"), data.get("file")) != (self._who, str(mine)):
            raise Garbled("another daemon answers at its address")
        theirs = data.get("dialog")
        if dialog is not None and theirs is not None and theirs != dialog.id:
            raise Garbled("its daemon is at another dialog")
        self._is_known = True

    def _agent_does(self, data: dict[str, Any]) -> None:
        state, turn, seconds = data["state"], data["turn"], float(data["seconds"])
        if state not in get_args(State) or not (turn is None or _is_count(turn)) or not 0 <= seconds < math.inf:
            raise ValueError(state)
        reason = self._line(data, "reason")
        self._hub.agent(self._who, state, turn=turn, reason=reason, seconds=seconds, is_relayed=True)

    def _writes(self, data: dict[str, Any]) -> None:
        turn, text, reset = data["turn"], clean(_text(data, "text")), data["reset"]
        if not _is_count(turn) or not isinstance(reset, bool):
            raise ValueError(turn)
        dialog = self._agent.dialog
        debt = dialog.state.debt(self._who) if dialog is not None else None
        if dialog is None or debt is None or not is_apart(dialog, debt):
            self._hub.text(self._who, turn, text, reset=reset, is_relayed=True)

    def _failed(self, data: dict[str, Any]) -> None:
        words = {name: self._line(data, name) for name in ("type", "message", "fix")}
        self._hub.relay("error", {"by": self._who, **words, "recoverable": bool(data["recoverable"])})

    def _line(self, data: dict[str, Any], name: str) -> str:
        """A text on one line, without the secrets that this daemon knows."""
        return one_line(_text(data, name), secrets=self._agent.secrets)

    def _kept(self, data: dict[str, Any]) -> None:
        why, text = self._line(data, "why"), clean(_text(data, "text"))
        self._hub.relay("draft", {"by": self._who, "why": why, "text": text})


_TAKEN = {"agent": _Ear._agent_does, "text": _Ear._writes, "error": _Ear._failed, "draft": _Ear._kept}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9


def _text(data: dict[str, Any], name: str) -> str:
    value = data[name]
    if not isinstance(value, str):
        raise TypeError(name)
    return value


# -- The event stream as a route --------------------------------------------------------------------------------------

RETRY = 1000  # milliseconds after which a browser tries again


class _Schema(JSONResponse):
    """A JSON Schema."""

    media_type = "application/schema+json"


def stream_routes(app: FastAPI, agent: Agent, port: int) -> None:
    """`GET /events` and `GET /events/schema`."""

    # A dependency, not a part of the stream: a refusal is an answer only before the stream begins.
    async def listener(
        all_: Annotated[
            bool, Query(alias="all", description="also what the dialog's other daemons say of their agents")
        ] = False,
        last_event_id: Annotated[str, Header(max_length=64)] = "",
    ) -> AsyncIterator[Listener]:
        with agent.hub.join(last_event_id, hears_all=all_) as joined:
            yield joined

    @app.get("/events", response_class=EventSourceResponse)
    async def events(joined: Listener = Depends(listener)) -> AsyncIterator[ServerSentEvent]:
        """What happens, as it happens: `state` first, then turns, notes, text being written; `bye` at the end."""
        first = Event(joined.since, "state", opening(agent, port))
        yield ServerSentEvent(raw_data=first.json, event=first.kind, id=first.id, retry=RETRY)
        async for event in joined:
            yield ServerSentEvent(raw_data=event.json, event=event.kind, id=event.id or None)

    @app.get("/events/schema", response_class=_Schema)
    async def events_schema() -> JSONResponse:
        """The JSON Schema of what each kind of event carries, by kind under `$defs`."""
        from dialogd.server.told import schema

        described: dict[str, Any] = schema()
        return _Schema(described)

    Relay(agent)

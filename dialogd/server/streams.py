"""Event streams: passing on those of the dialog's other daemons, and serving our own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Query
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

from dialogd.agent.events import Event, Listener
from dialogd.agent.loop import Agent
from dialogd.protocol.order import is_apart
from dialogd.protocol.text import clean, one_line
from dialogd.server.report import opening

LINGER = 2.0  # seconds that connections outlive their last listener: a page that is loaded anew comes back
LOOK = 1.0  # seconds between two looks at who takes part
WAITS = (0.5, 1.0, 2.0, 5.0)  # seconds before a daemon that does not answer is tried again
SILENT = "does not answer"
NO_DAEMON = "something else answers at its address"


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
        """Keep one connection to each of the other daemons, whoever that is by now."""
        hub, peers, clock = self.agent.hub, self.agent.peers, asyncio.get_running_loop()
        streams: dict[tuple[str, str], asyncio.Task[None]] = {}
        heard_at = clock.time()
        try:
            while not hub.is_closed:
                heard_at = clock.time() if hub.hears_all else heard_at
                if clock.time() - heard_at >= LINGER:
                    return
                wanted = set(peers.of(self.agent.dialog).items())
                for gone in set(streams) - wanted:
                    await _end(streams.pop(gone))
                    hub.forget_relayed(gone[0])
                for who, url in wanted - set(streams):
                    streams[who, url] = asyncio.create_task(self._follow(who, url))
                self._news.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), LOOK)
        finally:
            await _end(*streams.values())
            hub.forget_relayed()

    async def _follow(self, who: str, url: str) -> None:
        """Pass on what that agent's daemon says, and that it does not answer, until cancelled."""
        failures = 0
        while True:
            why, passed = SILENT, 0
            try:
                async with aclosing(self.agent.peers.listen(url)) as chunks:
                    async for kind, data in _events(chunks):
                        if not passed:
                            self._check(who, kind, data)
                        elif data.get("agent", data.get("by")) == who:
                            self._pass_on(who, kind, data)
                        passed += 1
            except OSError:
                pass
            except (ValueError, KeyError, TypeError):
                why = NO_DAEMON
            failures = 0 if passed else failures + 1
            before = self.agent.hub.state_of(who)
            if before is None or before.state != "stopped":
                self.agent.hub.agent(who, "stopped", reason=why, is_relayed=True)
            await asyncio.sleep(WAITS[min(failures, len(WAITS) - 1)])

    def _check(self, who: str, kind: str, data: dict[str, Any]) -> None:
        """Raise `ValueError` where the first event is not that agent's, of this file: ports are used again."""
        mine, theirs = self.agent.dialog, data.get("dialog")
        is_other = mine is not None and theirs not in (None, mine.id)
        if kind != "state" or (data.get("id"), data.get("file")) != (who, str(self.agent.file.path)) or is_other:
            raise ValueError(kind)

    def _pass_on(self, who: str, kind: str, data: dict[str, Any]) -> None:
        """Tell the clients here; what a model wrote is cleaned of what this daemon knows to be a secret."""
        hub, secrets = self.agent.hub, self.agent.secrets
        lines = {name: one_line(value, secrets=secrets) for name, value in data.items() if isinstance(value, str)}
        if kind == "agent":
            seconds = float(data["seconds"])
            hub.agent(who, data["state"], turn=data["turn"], reason=lines["reason"], seconds=seconds, is_relayed=True)
        elif kind == "text":
            dialog = self.agent.dialog
            debt = dialog.state.debt(who) if dialog is not None else None
            if dialog is None or debt is None or not is_apart(dialog, debt):  # else nobody may see it yet
                hub.text(who, data["turn"], clean(data["text"]), reset=data["reset"], is_relayed=True)
        elif kind == "draft":
            hub.relay(kind, {"by": who, "why": lines["why"], "text": clean(data["text"])})
        elif kind == "error":
            words = {name: lines[name] for name in ("type", "message", "fix")}
            hub.relay(kind, {"by": who, **words, "recoverable": bool(data["recoverable"])})


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """The events of a stream: kind and data. Raises `ValueError` for what is none."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in whole:
            fields = dict(line.split(b": ", 1) for line in event.split(b"\n") if b": " in line and line[:1] != b":")
            if b"event" in fields:
                data = json.loads(fields[b"data"])
                yield fields[b"event"].decode(), data if isinstance(data, dict) else {}


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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
        from dialogd.server.event_models import schema

        described: dict[str, Any] = schema()
        return _Schema(described)

    Relay(agent)

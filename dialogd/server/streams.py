"""Event streams: what their events carry, serving our own, and passing on those of the dialog's other daemons."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from typing import Annotated, Any, Literal

from fastapi import Depends, FastAPI, Header, Query
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, ConfigDict, Field, create_model

from dialogd.agent.events import Event, Listener, State
from dialogd.agent.loop import Agent
from dialogd.protocol.lifecycle import Signal
from dialogd.protocol.order import is_apart
from dialogd.server import wire
from dialogd.store.child import end_tasks
from dialogd.views.standing import Shared

RETRY = 1000  # milliseconds after which a browser tries again
LINGER = 2.0  # seconds that connections outlive their last listener: a page that is loaded anew comes back
LOOK = 1.0  # seconds between two looks at who takes part
WAITS = (0.5, 1.0, 2.0, 5.0)  # seconds before a daemon that does not answer is tried again
SILENT = "does not answer"
NO_DAEMON = "something else answers at its address"


class _Schema(JSONResponse):
    media_type = "application/schema+json"


def stream_routes(app: FastAPI, agent: Agent, health: Callable[[], wire.Health]) -> None:
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
        now = health()
        word = "thinking" if now.working_on else now.waiting.status if now.waiting else now.phase
        reason = now.waiting.reason if now.waiting else ""
        first = Event(joined.since, "state", {"state": word, "reason": reason, **now.model_dump()})
        yield ServerSentEvent(raw_data=first.json, event=first.kind, id=first.id, retry=RETRY)
        async for event in joined:
            yield ServerSentEvent(raw_data=event.json, event=event.kind, id=event.id or None)

    @app.get("/events/schema", response_class=_Schema)
    async def events_schema() -> JSONResponse:
        """The JSON Schema of what each kind of event carries, by kind under `$defs`."""
        return _Schema(schema())

    Relay(agent)


class Relay:
    """Listens to the dialog's other daemons while a client here wants their events."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        agent.hub.audience_changed = self._audience

    def _audience(self) -> None:
        """A client came or left, or the daemon is ending."""
        self._news.set()
        hub = self.agent.hub
        if hub.hears_all and not hub.is_closed and (self._task is None or self._task.done()):
            self._task = self.agent.peers.spawn(self._run())

    async def _run(self) -> None:
        """Keep one connection to each of the other daemons, whoever that is by now."""
        hub, clock = self.agent.hub, asyncio.get_running_loop()
        streams: dict[tuple[str, str], asyncio.Task[None]] = {}
        heard_at = clock.time()
        try:
            while not hub.is_closed:
                heard_at = clock.time() if hub.hears_all else heard_at
                if clock.time() - heard_at >= LINGER:
                    return
                wanted = set(self.agent.peers.of(self.agent.dialog).items())
                for gone in set(streams) - wanted:
                    await end_tasks(streams.pop(gone))
                    hub.forget_relayed(gone[0])
                for who, url in wanted - set(streams):
                    streams[who, url] = asyncio.create_task(self._follow(who, url))
                self._news.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), LOOK)
        finally:
            await end_tasks(*streams.values())
            hub.forget_relayed()

    async def _follow(self, who: str, url: str) -> None:
        """Pass on what that agent's daemon says, and that it does not answer, until cancelled."""
        failures = 0
        while True:
            why, passed = SILENT, 0
            try:
                async with aclosing(self.agent.peers.listen(url)) as told:
                    async for event in told:
                        data = dict(json.loads(event.data))
                        if not passed and not self._is_theirs(who, event.event, data):
                            raise ValueError(event.event)
                        if passed:
                            self._pass_on(who, event.event, data)
                        passed += 1
            except OSError:
                pass
            except (ValueError, KeyError, TypeError):
                why = NO_DAEMON
            failures = 0 if passed else failures + 1
            before = self.agent.hub.standing.get(who)
            if before is None or before.state != "stopped":
                self.agent.hub.agent(who, "stopped", reason=why, is_relayed=True)
            await asyncio.sleep(WAITS[min(failures, len(WAITS) - 1)])

    def _is_theirs(self, who: str, kind: str, data: dict[str, Any]) -> bool:
        """True where the first event is that agent's, of this very dialog: ports are used again."""
        mine, known = self.agent.dialog, data.get("dialog")
        is_same = (data.get("id"), data.get("file")) == (who, str(self.agent.file.path))
        return kind == "state" and is_same and (mine is None or known in (None, mine.id))

    def _pass_on(self, who: str, kind: str, data: dict[str, Any]) -> None:
        """Tell the clients here, without what this daemon knows to be a secret."""
        hub, dialog = self.agent.hub, self.agent.dialog
        if kind == "agent":
            told = {name: data[name] for name in ("turn", "reason", "seconds")}
            hub.agent(who, data["state"], **told, is_relayed=True)
        elif kind == "text":
            debt = dialog.state.debt(who) if dialog is not None else None
            if dialog is None or debt is None or not is_apart(dialog, debt):  # else nobody may see it yet
                hub.text(who, data["turn"], data["text"], reset=data["reset"], is_relayed=True)
        elif kind in ("draft", "error"):
            hub.relay(kind, data)


# -- What each kind of event carries; fields are added within a version, never taken away or given another meaning ----

_COUNT, _NUMBER = Annotated[int, Field(ge=0)], Annotated[int, Field(ge=1)]
_EACH = {"v": (Literal[1], "version of the stream"), "at": (str, "when: ISO 8601, UTC, milliseconds")}
_ENTRY = {
    "id": str, "by": str, "name": str, "text": str, "marks": list[str],
    "turn": (list[str] | None, "who is named by its `TURN:` line"),
}  # fmt: skip

# A field's type, and what it says where its name does not; "" behind it where it may be missing.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "state": ("The state of the agent and the dialog; the first one of a stream includes all of `GET /health`.", {
        "state": (str, "thinking, interrupted, ended, or why it waits"), "reason": (str, "the same in words"),
        "turn": (int, "the dialog's last turn"), "turn_of": (list[str], "who owes a turn"),
        "phase": (str, "one word for the dialog"),
        "lifecycle": (str | None, "dormant, streaming, converging, collapsed"),
        "outcome": (str | None, "how it ended, null before"), "signals": (list[Signal], "what can be noticed"),
        "convergence": (float | None, "how far the latest replies agree, 0 to 1; weak"),
        "by": (str, "with `interrupted`: whose call it was", ""),
    }),
    "agent": ("What an agent is doing.", {
        "agent": str, "state": State, "turn": (int | None, "the turn that it works on"),
        "seconds": (float, "for how long: at this turn, else in this state"),
        "reason": (str, "what it waits for, which tool runs, why it failed"),
    }),
    "text": ("A piece of the turn that an agent is writing.", {
        "turn": (_NUMBER, "the number that the turn will have"), "by": str, "text": str,
        "done_chars": (_COUNT, "characters of this attempt so far, this piece included"),
        "reset": (bool, "forget the pieces before this one"),
    }),
    "turn": ("A turn was written.", {**_ENTRY, "number": _NUMBER}),
    "note": ("A note was written.", {**_ENTRY, "number": Literal[0]}),
    "mark": ("A mark of the entry of the event before.", {
        "entry": (str, "the entry's id"), "turn": (_COUNT, "the turn that it stands in, or that its note follows"),
        "by": str, "name": str, "ref": (str, "`P1`, or empty"), "value": str,
    }),
    "cost": ("What an agent has spent since its last entry, by the frame; null is unknown, never 0.", {
        "agent": str, "turn": _COUNT, "in": int | None, "out": int | None, "usd": float | None,
        "exact": (bool, "false where a part is estimated or unknown"),
        "total_usd": (float | None, "of all agents by now, as far as it is known"), "total_tokens": int | None,
        "ms": (int | None, "how long its call took"),
    }),
    "appended": ("This daemon has appended its agent's turn.", {
        "number": int, "ms": int, "usd": float | None, "by": str,
    }),
    "draft": ("A reply, or part of one, that was not appended.", {
        "by": str, "why": str, "text": (str, "empty for an answer that others were to give apart from it"),
    }),
    "delivery": ("What becomes of a turn of a live seat: `knocked`, `opened`, `replied`, `silent`, `waiting`.", {
        "agent": str, "turn": int, "what": str, "knocks": int,
    }),
    "error": ("The backend failed for good.", {
        "by": str, "type": str, "message": str, "fix": str, "recoverable": bool,
    }),
    "call": ("This daemon's agent wants to call a tool, and waits for the person.", {
        "call": str, "agent": str, "tool": str, "arguments": str, "seconds": (float, "how long it waits"),
    }),
    "judged": ("That call waits no more.", {
        "call": str, "agent": str, "tool": str, "answer": (str, "approved, refused, unanswered"),
    }),
    "warning": ("Something odd.", {"text": str}),
    "mirror": ("How the mirror of this shared dialog stands: something is wrong, or all is well again.", {
        name: one.annotation for name, one in Shared.model_fields.items()
    }),
    "dropped": ("Committed turns are gone from the file.", {
        "first": int, "last": int, "kept": str, "text": (str, "the same, with the command that puts them back, if any"),
    }),
    "notified": ("Somebody has notified this daemon.", {"by": str}),
    "telling": ("This daemon notifies its peers.", {"peers": list[str]}),
    "ready": ("The daemon has started.", {"id": str, "port": int, "file": str, "backend": str}),
    "reset": ("What was missed is no longer known.", {}),
    "bye": ("The daemon ends.", {}),
}  # fmt: skip


def model_of(kind: str) -> type[BaseModel]:
    """One kind of event as a model."""
    doc, fields = KINDS[kind]
    made: dict[str, Any] = {}
    for name, what in {**_EACH, **fields}.items():
        type_, description, *default = what if isinstance(what, tuple) else (what, None)
        made[name] = (type_, Field(*(default or [...]), description=description))
    return create_model(kind.capitalize(), __config__=ConfigDict(extra="allow"), __doc__=doc, **made)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12): each kind of event by its name under `$defs`."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        made = model_of(kind).model_json_schema(ref_template="#/$defs/{model}")
        found |= {**made.pop("$defs", {}), kind: made}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Events of a dialogd daemon, version 1",
        "description": "The data of each kind of event. Ignore kinds and fields that you do not know.",
        "$defs": found,
    }

"""The event stream as a route: who joins, what is sent, in which form."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Query
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

from dialogd.agent.events import Event, Listener
from dialogd.agent.loop import Agent
from dialogd.server.relay import Relay
from dialogd.server.report import opening

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

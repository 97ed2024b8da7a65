"""The events of the stream as models, one per kind: the schema that `GET /events/schema` answers with.

docs/events.md says what they mean. Fields are added within a version, never taken away or given another meaning.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dialogd.agent.events import State as Doing
from dialogd.server.wire import Noticed


class Told(BaseModel):
    """The fields of every event."""

    model_config = ConfigDict(extra="allow")

    v: Literal[1] = Field(description="version of the stream")
    at: str = Field(description="when it was told: ISO 8601, UTC, milliseconds", examples=["2026-11-22T08:15:30.123Z"])


class State(Told):
    """The state of the agent and the dialog; the first one of a stream includes all of `GET /health`."""

    state: str = Field(description="thinking, interrupted, ended, or why it waits")
    reason: str = Field(description="the same in words")
    turn: int = Field(description="the dialog's last turn")
    turn_of: list[str] = Field(description="who owes a turn")
    phase: str = Field(description="one word for the dialog")
    lifecycle: str | None = Field(description="dormant, streaming, converging, collapsed")
    outcome: str | None = Field(description="how it ended, null before")
    signals: list[Noticed] = Field(description="what can be noticed")
    convergence: float | None = Field(description="how far the latest replies agree, 0 to 1; weak")
    by: str = Field(default="", description="with `interrupted`: whose call it was")


class Agent(Told):
    """What an agent is doing."""

    agent: str = Field(description="its id")
    state: Doing
    turn: int | None = Field(description="the turn that it works on")
    seconds: float = Field(ge=0, description="for how long: at this turn, else in this state")
    reason: str = Field(description="what it waits for, which tool runs, why it failed")


class Text(Told):
    """A piece of the turn that an agent is writing."""

    turn: int = Field(ge=1, description="the number that the turn will have")
    by: str
    text: str
    done_chars: int = Field(ge=0, description="characters of this attempt so far, this piece included")
    reset: bool = Field(description="forget the pieces before this one")


class _Entry(Told):
    id: str
    by: str
    name: str
    text: str
    marks: list[str]
    turn: list[str] | None = Field(description="who is named by its `TURN:` line")


class Turn(_Entry):
    """A turn was written."""

    number: int = Field(ge=1)


class Note(_Entry):
    """A note was written."""

    number: Literal[0]


class Mark(Told):
    """A mark of the entry of the event before."""

    entry: str = Field(description="the entry's id")
    turn: int = Field(ge=0, description="the turn that it stands in, or that its note follows")
    by: str
    name: str
    ref: str = Field(description="`P1`, or empty")
    value: str


class Cost(Told):
    """What an agent has spent since its last entry, by the frame; null is unknown, never 0."""

    model_config = ConfigDict(extra="allow", serialize_by_alias=True)

    agent: str
    turn: int = Field(ge=0)
    tokens_in: int | None = Field(alias="in")
    tokens_out: int | None = Field(alias="out")
    usd: float | None
    exact: bool = Field(description="false where a part is estimated or unknown")
    total_usd: float | None = Field(description="of all agents by now, as far as it is known")
    total_tokens: int | None
    ms: int | None = Field(description="how long its call took")


class Appended(Told):
    """This daemon has appended its agent's turn."""

    number: int
    ms: int
    usd: float | None
    by: str


class Draft(Told):
    """A reply, or part of one, that was not appended."""

    by: str
    why: str
    text: str = Field(description="empty for an answer that others were to give apart from it")


class Delivery(Told):
    """What becomes of a turn to which a live seat replies: `knocked`, `opened`, `replied`, `silent`, `waiting`."""

    agent: str
    turn: int
    what: str
    knocks: int


class Error(Told):
    """The backend failed for good."""

    by: str
    type: str
    message: str
    fix: str
    recoverable: bool


class Call(Told):
    """This daemon's agent wants to call a tool, and waits for the person."""

    call: str
    agent: str
    tool: str
    arguments: str
    seconds: float = Field(description="how long it waits")


class Judged(Told):
    """That call waits no more."""

    call: str
    agent: str
    tool: str
    answer: str = Field(description="approved, refused, unanswered")


class Warned(Told):
    """Something odd."""

    text: str


class Dropped(Told):
    """Committed turns are gone from the file; `text` says so, with the command that puts them back, if any."""

    first: int
    last: int
    kept: str
    text: str


class Notified(Told):
    """Somebody has notified this daemon."""

    by: str


class Telling(Told):
    """This daemon notifies its peers."""

    peers: list[str]


class Ready(Told):
    """The daemon has started."""

    id: str
    port: int
    file: str
    backend: str


class Reset(Told):
    """What was missed is no longer known."""


class Bye(Told):
    """The daemon ends."""


KINDS: dict[str, type[Told]] = {
    "state": State, "agent": Agent, "text": Text, "turn": Turn, "note": Note, "mark": Mark, "cost": Cost,
    "appended": Appended, "draft": Draft, "delivery": Delivery, "error": Error, "call": Call,
    "judged": Judged, "warning": Warned, "dropped": Dropped, "notified": Notified, "telling": Telling,
    "ready": Ready, "reset": Reset, "bye": Bye,
}  # fmt: skip


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12): each kind of event by its name under `$defs`."""
    found: dict[str, Any] = {}
    for kind, model in KINDS.items():
        made = model.model_json_schema(ref_template="#/$defs/{model}")
        found |= made.pop("$defs", {})
        found[kind] = made
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Events of a dialogd daemon, version 1",
        "description": "The data of each kind of event. Ignore kinds and fields that you do not know.",
        "$defs": found,
    }

"""The events of the stream, one row per kind: the schema that `GET /events/schema` answers with.

docs/events.md says what they mean. Fields are added within a version, never taken away or given another meaning.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from dialogd.agent.events import State as Doing
from dialogd.views.standing import Noticed

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
        "outcome": (str | None, "how it ended, null before"), "signals": (list[Noticed], "what can be noticed"),
        "convergence": (float | None, "how far the latest replies agree, 0 to 1; weak"),
        "by": (str, "with `interrupted`: whose call it was", ""),
    }),
    "agent": ("What an agent is doing.", {
        "agent": str, "state": Doing, "turn": (int | None, "the turn that it works on"),
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
        found |= made.pop("$defs", {})
        found[kind] = made
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Events of a dialogd daemon, version 1",
        "description": "The data of each kind of event. Ignore kinds and fields that you do not know.",
        "$defs": found,
    }

"""What travels over HTTP, as the OpenAPI page has it; every error as problem JSON (RFC 9457) with its fix."""

from __future__ import annotations

import json
import logging
import shlex
from dataclasses import asdict
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, Field, model_validator
from starlette.exceptions import HTTPException

from dialogd.config import new_command
from dialogd.errors import DialogdError
from dialogd.protocol.lifecycle import worded
from dialogd.protocol.state import Dialog
from dialogd.views.standing import Basics, Shared, Standing, basics, entry_fields


class Problem(BaseModel):
    """Every error: what happened and what to do next (RFC 9457 with a fix)."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    fix: str


class Meant(BaseModel, extra="forbid"):
    """Which dialog a request is about; a daemon of another one refuses it. Naming none means the daemon's own."""

    file: str = Field("", description="the path of its file, in full", max_length=4096)
    dialog: str = Field("", description="its id", max_length=200)


class Worded(Meant):
    """Words, which may also be called `message` or `content`."""

    text: str

    @model_validator(mode="before")
    @classmethod
    def _words(cls, given: Any) -> Any:
        """The words under their one name."""
        return worded(given, "text") if isinstance(given, dict) else given


class Notify(Meant, extra="ignore", populate_by_name=True):
    """What a notify may carry; nothing at all is as good."""

    sender: str = Field("", alias="from", max_length=64, description="the agent that calls; empty from a person")
    start: bool = Field(False, description="a person's notify, passed on by a peer: it starts the dialog here too")


class Notified(BaseModel):
    """What a notify comes to: `accepted` (202) when a reply is on its way, else why not."""

    status: str = Field(examples=["accepted", "not_my_turn", "busy", "paused", "waiting_for_user", "consensus_reached"])
    reason: str = ""
    turn_passed: bool | None = None


class Halt(Meant, extra="ignore"):
    """How a stop is asked for; all fields are optional."""

    hop: int = Field(0, ge=0, le=8, description="0 from a person; peers pass a stop on with 1, and no further")
    reason: str = Field("", max_length=1_000_000)


class Done(BaseModel):
    """What a command of the person came to."""

    status: Literal["ok"] = "ok"
    turn: int
    turn_of: list[str]
    phase: str


class Invited(BaseModel, extra="forbid"):
    """One more agent, in parts; without name and address it gets the usual ones."""

    id: str = Field(max_length=64)
    name: str = Field("", max_length=200)
    url: str = Field("", description="where its daemon listens, on the loopback", max_length=200)


class Judged(Meant):
    """A call of a tool that an agent asks for, by its id, and whether it may be made."""

    call: str = Field(description="its id: A-3f9a1c", max_length=100)
    refuse: bool = False


class CallAnswered(BaseModel):
    """A call that the person has answered."""

    status: str = Field(examples=["approved", "refused"])
    call: str
    agent: str
    tool: str


class Stopped(BaseModel):
    """What a stop came to."""

    status: Literal["stopped"] = "stopped"
    outcome: str | None
    archive: str | None
    note: str = ""


class Working(BaseModel):
    """The call under way; `state` is `executing` while it uses a tool."""

    turn: int
    seconds: float
    state: str


class Delivery(BaseModel):
    """The turn that a live seat owes: how often it was knocked for, and whether anybody has fetched it."""

    debt: str
    session: str
    knocks: int
    opened: bool


class Waiting(BaseModel):
    """Why the agent does nothing: a word for programs, a reason for people."""

    status: str
    reason: str


class Peer(BaseModel):
    """Another agent's daemon; `reachable` is null until it was called."""

    url: str
    reachable: bool | None


class CallAsked(BaseModel):
    """A call of a tool that waits for the person, for so many more seconds."""

    call: str
    agent: str
    tool: str
    arguments: str
    seconds: float


class Health(Standing):
    """How a daemon and its dialog are."""

    status: Literal["ok"] = "ok"
    id: str
    name: str
    port: int
    pid: int
    version: str
    file: str
    working_on: Working | None
    delivery: Delivery | None = None
    waiting: Waiting | None
    calls: list[CallAsked] = Field(default_factory=list)
    backend: str
    model: str
    peers: dict[str, Peer]
    shared: Shared | None = None
    turns_written: int
    secrets_redacted: int
    warnings: list[str]
    usd: float | None


class EntryOut(BaseModel):
    """One turn (`number` > 0) or note of the dialog.

    `struck`: the person withdrew it, so that `marks` counts none of its own. `via`: with `by` USER, whose session wrote
    it, a seat's id, OTHER or UNKNOWN; "" for the person. What no frame says is empty.
    """

    id: str
    number: int
    by: str
    name: str
    text: str
    marks: list[str]
    turn: list[str] | None
    condition: str
    struck: bool
    at: str = ""
    ms: str = ""
    model: str = ""
    usd: str = ""
    via: str = ""


class DialogOut(Basics):
    """The dialog, folded."""

    agents: dict[str, str]
    limits: dict[str, Any]
    entries: list[EntryOut]

    @classmethod
    def of(cls, dialog: Dialog, since: int) -> DialogOut:
        """The dialog as it travels, entries from index `since` on."""
        framed = ("at", "ms", "model", "usd", "via")
        entries = [
            {**entry_fields(entry), **{name: getattr(entry.frame, name, "") for name in framed}}
            for entry in dialog.entries[since:]
        ]
        return cls.model_validate(
            {
                **basics(dialog),
                "agents": {agent.id: agent.name for agent in dialog.header.agents},
                "limits": asdict(dialog.state.limits),
                "entries": entries,
            }
        )


# -- Errors -----------------------------------------------------------------------------------------------------------

log = logging.getLogger("dialogd.server")

MEDIA_TYPE = "application/problem+json"
NO_OBJECT = ("json_invalid", "model_attributes_type")


def problem(status: int, detail: str, fix: str, field: str = "") -> bytes:
    """Return the body of an error answer; ASCII only, so nothing in `detail` reaches a terminal raw.

    `field` is the part of the sent form that it concerns, where that is known.
    """
    title = HTTPStatus(status).phrase
    facts = {"type": "about:blank", "title": title, "status": status, "detail": detail, "fix": fix}
    return json.dumps({**facts, "field": field} if field else facts).encode()


def handle_errors(app: FastAPI) -> None:
    """Have `app` answer every error, an unforeseen one too, as a problem."""

    @app.exception_handler(DialogdError)
    async def refused(_: Request, error: DialogdError) -> Response:
        return _answer(error.http_status, str(error), error.fix, field=error.field)

    @app.exception_handler(OSError)
    async def failed(_: Request, error: OSError) -> Response:
        if isinstance(error, FileNotFoundError):
            return _answer(
                409, f"there is no dialog at {error.filename} yet", f"write one: {new_command(Path(error.filename))}"
            )
        where = f"{error.filename}: " if error.filename else ""
        return _answer(507, f"{where}{error.strerror or error}", "look at the file and its folder, then try again")

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] in NO_OBJECT:
            fix = f"send one, or where all is optional no body at all; curl {request.base_url}docs says what it takes"
            return _answer(400, "the body is not a JSON object", fix)
        where, field = (".".join(map(str, part)) for part in (first["loc"], first["loc"][1:]))
        return _answer(422, f"{where}: {first['msg']}", "see GET /docs for what this route takes", field=field)

    @app.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, UnicodeDecodeError):
            convert = "iconv -f latin1 -t utf-8 body.json | curl --data-binary @- URL"
            return _answer(400, "the body is not UTF-8", f"send it as UTF-8, such as: {convert}")
        headers = dict(error.headers or {})
        allowed = headers.get("Allow") or headers.get("allow")
        line = f"curl -X {allowed} {shlex.quote(f'{request.base_url}{request.url.path[1:]}')}; " if allowed else ""
        docs = f"curl {request.base_url}docs lists the routes and what they take"
        return _answer(error.status_code, str(error.detail), f"{line}{docs}", headers)

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        log.error("unexpected error in %s %s", request.method, request.url.path, exc_info=error)
        return _answer(500, "an unexpected error; the daemon goes on", "see the daemon's log: dialogd logs")


def _answer(status: int, detail: str, fix: str, headers: dict[str, str] | None = None, field: str = "") -> Response:
    return Response(problem(status, detail, fix, field), status, headers, MEDIA_TYPE)

"""The routes: each asks the agent or writes the person's entry, and answers. No rule lives here."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from dialogd import __version__, person
from dialogd.acts import ACTS, Act, carry_out
from dialogd.agent.loop import Agent
from dialogd.agent.peers import NO_WAIT
from dialogd.errors import BadInput, DialogdError, Refused
from dialogd.protocol.decide import Action, Reply, Stop, Wait, Write
from dialogd.protocol.model import USER
from dialogd.protocol.state import Dialog
from dialogd.server import wire
from dialogd.server.build_routes import build_routes
from dialogd.server.guard import PROCESSES
from dialogd.server.metrics import render_metrics
from dialogd.server.refusals import CONVERT, MEDIA_TYPE, NOT_UTF8, handle_errors
from dialogd.server.report import health
from dialogd.server.streams import stream_routes
from dialogd.server.turn_routes import turn_routes
from dialogd.store.caller import asked_by, carried
from dialogd.store.folders import StateDir
from dialogd.views.standing import phase

Halt = Callable[[wire.Halt], Awaitable[wire.Stopped]]

_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"content": _PROBLEM, "description": "refused; `detail` says why, `fix` what to do"},
    "5XX": {"content": _PROBLEM, "description": "failed; `detail` says why, `fix` what to do"},
}
_FIX = "ask the daemon of that dialog: `dialogd status --all` lists them; or name neither file nor dialog"
_LOOKS = 5  # steps to wait for until a note that is about to be written says why nobody replies
ACCEPTED = {"status": "accepted"}
_STATUS = {"MAX_TURNS_REACHED": "max_turns", "time": "max_time", "size": "max_size", "budget": "budget"}


_HINT = (b"prefer", NO_WAIT.encode())


def _replayed(first: Message, receive: Receive) -> Receive:
    """What was received already, then the rest."""
    pending = [first]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again


class _AnyType(APIRoute):
    """A route that reads its body as JSON whatever its content type: `curl -d` calls everything a form."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, behind a header that says JSON."""
        handle = super().get_route_handler()

        async def as_json(request: Request) -> Response:
            others = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]
            scope = {**request.scope, "headers": [*others, (b"content-type", b"application/json")]}
            return await handle(Request(scope, request.receive))

        return as_json


class _Api(FastAPI):
    """FastAPI with models that no route declares, and with the page's routes added on demand.

    The page's routes are added at the first request that no other route answers, because most pages are never
    opened, and they take a tenth of a daemon's memory.
    """

    add_page: Callable[[], None] | None = None
    take_hint: Callable[[bytes], bool] = staticmethod(lambda _: False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, adding the page's routes when an unknown one is requested; a peer's hint needs no route."""
        if (
            scope["type"] == "http"
            and (scope["method"], scope["path"]) == ("POST", "/notify")
            and _HINT in scope["headers"]
        ):
            first = await receive()  # the whole body: the guard has read it
            if not scope["query_string"] and self.take_hint(first.get("body", b"")):
                await JSONResponse(ACCEPTED, 202)(scope, receive, send)
                return
            receive = _replayed(first, receive)
        if scope["type"] == "http" and all(route.matches(scope)[0] is Match.NONE for route in self.routes):
            self._complete()
        await super().__call__(scope, receive, send)

    def _complete(self) -> None:
        """Add the page's routes."""
        if self.add_page is not None:
            add, self.add_page = self.add_page, None
            add()

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI description."""
        self._complete()
        schema = super().openapi()
        for model in (wire.Notify, wire.Halt, wire.Problem):
            schema["components"]["schemas"].setdefault(model.__name__, model.model_json_schema())
        return schema


def create_app(agent: Agent, port: int, halt: Halt, state: StateDir) -> FastAPI:
    """The daemon's HTTP API. `halt` stops the dialog and then the daemon; earlier dialogs are in `state`."""
    app = _Api(
        title=f"dialogd {agent.me}",
        version=__version__,
        description="One agent's daemon. Plain `curl` needs no token; other origins and other users are refused.",
        docs_url=None,
        redoc_url=None,
        responses=_ERRORS,
        dependencies=[Depends(_obeying_its_own(agent))],
    )
    app.router.route_class = _AnyType
    handle_errors(app)
    _control_routes(app, agent, halt)
    _reading_routes(app, agent, port)
    _text_routes(app, agent)
    stream_routes(app, agent, port)
    _person_routes(app, agent)
    build_routes(app, agent, _act)
    turn_routes(app, agent)
    app.add_page = lambda: _page_routes(app, agent, port, state)
    app.take_hint = _hints(agent)
    return app


def _page_routes(app: FastAPI, agent: Agent, port: int, state: StateDir) -> None:
    from dialogd.server.page import page_routes, panel_routes

    page_routes(app, agent, port, state)
    panel_routes(app, agent, state)


def _body(model: str) -> dict[str, Any]:
    """The description of a body that is optional and taken under any content type."""
    shape = {"$ref": f"#/components/schemas/{model}"}
    return {"requestBody": {"required": False, "content": {"application/json": {"schema": shape}}}}


async def _json_body(request: Request) -> dict[str, Any]:
    """A JSON object under any content type, {} without a body; raises `BadInput` for anything else."""
    raw = await request.body()
    if not raw.strip():
        return {}
    try:
        body = json.loads(raw)
    except UnicodeDecodeError:
        raise BadInput(NOT_UTF8, fix=CONVERT) from None
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise BadInput(
            'the body is not a JSON object such as {"from": "A"}',
            fix=f"send no body at all: curl -X POST {request.base_url}{request.url.path[1:]}",
        )
    return body


def _obeying_its_own(agent: Agent) -> Callable[[Request], Awaitable[None]]:
    """A check of every request with effects: one that names a dialog is refused by daemons of another."""

    async def check(request: Request) -> None:
        """Raises `Refused` where another file or dialog is named than the daemon's own."""
        asked_by(request.scope.get("state", {}).get(PROCESSES, tuple))
        if request.method == "POST":
            file, dialog = _named(await request.body())
            if file and not _is_same(file, agent.file.path):
                raise Refused(f"{agent.me} is at {agent.file.path}, not at {file[:200]}", fix=_FIX)
            # A notify changes nothing: it is not worth another look at the file.
            known = agent.dialog.id if agent.dialog is not None and request.scope["path"] == "/notify" else ""
            if dialog not in ("", known):
                await _refuse_others(agent, file, dialog)

    return check


def _named(body: bytes) -> tuple[str, str]:
    """The file and the dialog that a body names, "" for none or an unreadable body, which the route refuses."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return "", ""
    named = [found.get(name) or "" for name in ("file", "dialog")] if isinstance(found, dict) else ["", ""]
    if not all(isinstance(name, str) for name in named):
        raise BadInput('"file" and "dialog" are texts', fix="name the file by its full path, the dialog by its id")
    return named[0], named[1]


def _is_same(named: str, file: Path) -> bool:
    """True when both are one file, whatever way led to its folder; the file itself is never followed."""
    folder, name = os.path.split(named)
    if named == str(file):
        return True
    try:
        return Path(folder).is_absolute() and Path(os.path.realpath(folder), name) == file
    except ValueError:  # what can be no path
        return False


async def _refuse_others(agent: Agent, file: str, dialog: str) -> None:
    """Raise `Refused` unless the daemon's file holds that dialog now; if it cannot be read, the file's name decides."""
    with suppress(DialogdError, OSError):
        await agent.look()
    if agent.dialog.id != dialog if agent.dialog is not None else not file:
        raise Refused(f"{agent.file.path} does not hold the dialog {dialog[:60]!r}", fix=_FIX)


def _control_routes(app: FastAPI, agent: Agent, halt: Halt) -> None:
    @app.post(
        "/notify",
        responses={202: {"model": wire.Notified}, 200: {"model": wire.Notified}},
        openapi_extra=_body("Notify"),
    )
    async def notify(
        request: Request,
        wait: Annotated[bool, Query(description="answer after the turn has passed")] = False,
    ) -> JSONResponse:
        """Say "look at the file". Starts a dialog; harmless at any other time, however often."""
        return await _notify(agent, request, wait=wait)

    @app.post("/stop", response_model=wire.Stopped, openapi_extra=_body("Halt"))
    async def stop(request: Request) -> wire.Stopped:
        """Stop everything: end the call, write `[STOPPED]`, archive, notify the peers once, exit."""
        body = await _json_body(request)
        try:
            wanted = wire.Halt.model_validate(body)
        except ValueError as error:
            raise BadInput(f"the body makes no sense: {error}", fix="send no body at all") from None
        stopped = await halt(wanted)
        with suppress(DialogdError, OSError):
            if stopped.outcome is not None:
                await agent.look()  # so that listeners hear of the end before they hear `bye`
        return stopped


def _hints(agent: Agent) -> Callable[[bytes], bool]:
    """A function that handles the body of a peer's hint without the routes, which cost as much as the rest of a turn.

    For any other body it returns False.
    """

    def take(body: bytes) -> bool:
        try:
            found = json.loads(body)
            sender = found.pop("from")
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            return False
        dialog, file = agent.dialog, str(agent.file.path)
        if dialog is None or found != {"file": file, "dialog": dialog.id} or dialog.header.agent(sender) is None:
            return False
        agent.hub.publish("notified", by=sender)
        agent.wake()
        return True

    return take


async def _notify(agent: Agent, request: Request, *, wait: bool = False) -> JSONResponse:
    """Have the agent look, and return the result; to a peer that does not wait, that it will look."""
    body = await _json_body(request)
    try:
        wanted = wire.Notify.model_validate(body)
    except ValueError:
        raise BadInput('"from" is not an agent id', fix='send {"from": "A"} or no body') from None
    agent.hub.publish("notified", by=wanted.sender or "somebody")
    if wanted.sender not in ("", USER) and not (wanted.start or wait) and request.headers.get("prefer") == NO_WAIT:
        agent.wake()
        return JSONResponse(ACCEPTED, 202)
    busy, written = agent.call is not None, agent.tally.turns
    action = await _nudged(agent, wanted)
    if wait and (busy or _is_on_its_way(action)):
        return await _after_turn(agent, written)
    if busy:
        return JSONResponse({"status": "busy", "reason": "a reply is being written"})
    return _notified(action)


async def _nudged(agent: Agent, wanted: wire.Notify) -> Action:
    """Have the agent look; the result, after a note that must be written first."""
    action = await agent.nudge(wanted.sender, start=wanted.start)
    for _ in range(_LOOKS):
        if not isinstance(action, Write) or agent.is_stopping or agent.call is not None:
            break
        await agent.settled()
        action = await agent.nudge(wanted.sender, start=wanted.start)
    return action


def _is_on_its_way(action: Action) -> bool:
    """True when a reply follows: at once, or after the pause between an agent's turns."""
    return isinstance(action, Reply) or (isinstance(action, Wait) and action.status == "pace")


async def _after_turn(agent: Agent, written: int) -> JSONResponse:
    """Wait until no reply is being written or due; `written` is how many this daemon had appended before."""
    while not agent.is_stopping:
        await agent.settled()
        if agent.call is None and not _is_on_its_way(agent.action):
            break
    return JSONResponse({"status": "ok", "turn_passed": agent.tally.turns > written})


def _notified(action: Action) -> JSONResponse:
    match action:
        case Stop(outcome):
            name = _STATUS.get(outcome.cause or outcome.name, outcome.name.lower())
            return JSONResponse({"status": name, "reason": outcome.reason or "the dialog has ended"})
        case Wait(status, reason, _) if status != "pace":
            return JSONResponse({"status": status, "reason": reason})
        case _:
            return JSONResponse(ACCEPTED, 202)


async def _act(agent: Agent, work: Callable[[], Dialog], *, starts: bool = True) -> wire.Done:
    """Write the person's action into the file, and notify everybody; with `starts` it starts the dialog."""
    dialog = await agent.on_disk(carried(work))
    if starts:
        await agent.nudge()
        agent.peers.start(dialog)
    agent.wake()
    agent.peers.tell(dialog)
    state = dialog.state
    return wire.Done(turn=state.number, turn_of=list(state.owing), phase=phase(dialog, thinking=False))


def _reading_routes(app: FastAPI, agent: Agent, port: int) -> None:
    @app.get("/health", response_model=wire.Health)
    async def get_health() -> wire.Health:
        """How this daemon and its dialog are."""
        return health(agent, port)

    @app.get("/dialog", response_model=wire.DialogOut)
    async def get_dialog(
        since: Annotated[int, Query(ge=0, description="entries to leave out at the beginning")] = 0,
    ) -> wire.DialogOut:
        """The dialog, folded from the file as it stands now."""
        dialog = await agent.look()
        if dialog is None:
            raise FileNotFoundError(2, "no dialog", str(agent.file.path))
        return wire.DialogOut.of(dialog, since)


def _text_routes(app: FastAPI, agent: Agent) -> None:
    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(render_metrics(agent), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/docs", response_class=HTMLResponse)
    async def docs() -> Response:
        """This description, as a page."""
        from dialogd.server.page import render_api

        return Response(render_api(app.openapi()), media_type="text/html; charset=utf-8")


# -- What the person does ---------------------------------------------------------------------------------------------


class Invited(BaseModel):
    """One more agent, in parts; without name and address it gets the usual ones."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(max_length=64)
    name: str = Field("", max_length=200)
    url: str = Field("", description="where its daemon listens, on the loopback", max_length=200)


class Judged(wire.Meant):
    """A call of a tool that an agent asks for, by its id, and whether it may be made."""

    call: str = Field(description="its id: A-3f9a1c", max_length=100)
    refuse: bool = False


class CallAnswered(BaseModel):
    """A call that the person has answered."""

    status: Literal["approved", "refused"]
    call: str
    agent: str
    tool: str


def _person_routes(app: FastAPI, agent: Agent) -> None:
    """The routes by which the person acts: each writes one entry of theirs and tells everybody."""
    for act in ACTS.values():
        _add_act(app, act, agent)

    @app.post("/approve-call")
    async def approve_call(wanted: Judged) -> CallAnswered:
        """Let an agent make the call of a tool that it asks for, or refuse it; also of another daemon's agent."""
        await agent.on_disk(carried(lambda: person.admitted(agent.file, "approve-call")))
        owner = wanted.call.rpartition("-")[0]
        if owner != agent.me and agent.dialog is not None and agent.dialog.header.agent(owner) is not None:
            found = await agent.peers.approve_call(agent.dialog, owner, wanted.call, refuse=wanted.refuse)
            return CallAnswered.model_validate(found)
        asked = agent.approvals.answer(wanted.call, approve=not wanted.refuse)
        status: Literal["approved", "refused"] = "refused" if wanted.refuse else "approved"
        return CallAnswered(status=status, call=asked.id, agent=asked.agent, tool=asked.tool)


def _add_act(app: FastAPI, act: Act, agent: Agent) -> None:
    """The act as a route, whose body has a field for each thing that it is given."""
    fields: dict[str, Any] = {
        one.name: (
            str | Invited if one.kind == "str | Invited" else one.kind,
            Field(one.default, description=one.about, **cast(Any, one.limits)),
        )
        for one in act.given
    }
    base = wire.Worded if act.name == "say" else wire.Meant
    model: Any = create_model(act.name.title(), __base__=base, __doc__=act.help, **fields)
    is_optional = all(one.default is not ... for one in act.given)

    async def post(given: Any = None) -> wire.Done:
        values = given.model_dump(exclude={"file", "dialog"}) if given is not None else {}
        starts = act.starts and not values.get("note")
        return await _act(agent, lambda: carry_out(act, agent.file, values, agent.secrets), starts=starts)

    default = None if is_optional else inspect.Parameter.empty
    kind = model | None if is_optional else model
    body = inspect.Parameter("given", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind)
    post.__signature__ = inspect.Signature([body], return_annotation=wire.Done)  # type: ignore[attr-defined]
    post.__name__, post.__doc__ = act.do or act.name, act.help
    app.post(f"/{act.name}")(post)

"""The routes: each asks the agent or writes the person's entry, and answers. No rule lives here."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args

from fastapi import Depends, FastAPI, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from pydantic import Field, create_model
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from dialogd import __version__, person
from dialogd.acts import ACTS, Act, carry_out
from dialogd.agent.events import state_fields
from dialogd.agent.loop import Agent
from dialogd.agent.peers import NO_WAIT
from dialogd.backends.live import Live
from dialogd.errors import BackendError, DialogdError, Refused
from dialogd.protocol.decide import Action, Reply, Stop, Wait, Write
from dialogd.protocol.model import USER
from dialogd.protocol.state import Dialog
from dialogd.server import wire
from dialogd.server.serving import replayed
from dialogd.server.streams import stream_routes
from dialogd.server.turn_routes import turn_routes
from dialogd.store.disk import StateDir
from dialogd.store.registry import carried
from dialogd.views.standing import Phase, Shared, phase, standing

Halt = Callable[[wire.Halt], Awaitable[wire.Stopped]]

_PROBLEM = {wire.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"content": _PROBLEM, "description": "refused; `detail` says why, `fix` what to do"},
    "5XX": {"content": _PROBLEM, "description": "failed; `detail` says why, `fix` what to do"},
}
_FIX = "ask the daemon of that dialog: `dialogd status --all` lists them; or name neither file nor dialog"
_LOOKS = 5  # steps to wait for until a note that is about to be written says why nobody replies
_STATUS = {"turns": "max_turns", "time": "max_time", "size": "max_size", "budget": "budget"}
ACCEPTED = {"status": "accepted"}


class _Api(FastAPI):
    """FastAPI that reads every body as JSON (`curl -d` calls it a form), and adds the page's routes on demand.

    Most pages are never opened, and their routes take a tenth of a daemon's memory.
    """

    add_page: Callable[[], None] | None = None
    take_hint: Callable[[bytes], bool]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; a peer's hint needs no route."""
        if scope["type"] == "http":
            if (scope["path"], scope["query_string"]) == ("/notify", b"") and _is_hint(scope):
                body = (await receive()).get("body", b"")  # the whole of it: the guard has read it
                if self.take_hint(body):
                    await asyncio.sleep(0)  # the loop first: its turn does not wait for this answer
                    await JSONResponse(ACCEPTED, 202)(scope, receive, send)
                    return
                receive = replayed(body, receive)
            headers = [header for header in scope["headers"] if header[0] != b"content-type"]
            scope = {**scope, "headers": [*headers, (b"content-type", b"application/json")]}
            if all(route.matches(scope)[0] is Match.NONE for route in self.routes):
                self._complete()
        await super().__call__(scope, receive, send)

    def _complete(self) -> None:
        if self.add_page is not None:
            add, self.add_page = self.add_page, None
            add()

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI description."""
        self._complete()
        schema = super().openapi()
        schema["components"]["schemas"].setdefault("Problem", wire.Problem.model_json_schema())
        return schema


def _is_hint(scope: Scope) -> bool:
    return scope["method"] == "POST" and (b"prefer", NO_WAIT.encode()) in scope["headers"]


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

    health = Health(agent, port)

    def add_page() -> None:
        from dialogd.server.page import page_routes
        from dialogd.server.page_state import build_routes

        build_routes(app, agent, partial(_act, agent))
        page_routes(app, agent, health, state)

    wire.handle_errors(app)
    _control_routes(app, agent, halt)
    _reading_routes(app, agent, health)
    stream_routes(app, agent, health)
    _person_routes(app, agent)
    turn_routes(app, agent)
    app.add_page = add_page
    app.take_hint = lambda body: _take_hint(agent, body)
    return app


def _obeying_its_own(agent: Agent) -> Callable[[Request], Awaitable[None]]:
    """A check of every request with effects: one that names a dialog is refused by daemons of another."""

    async def check(request: Request) -> None:
        if request.method != "POST" and request.scope["path"] != "/turn":
            return  # what only reads is nobody's act
        try:
            given = json.loads(await request.body())
            file, dialog = (str(given.get(name) or "") for name in ("file", "dialog"))
        except (ValueError, RecursionError, AttributeError):
            return  # nothing, or what the route refuses
        if file and not _is_same(file, agent.file.path):
            raise Refused(f"{agent.me} is at {agent.file.path}, not at {file[:200]}", fix=_FIX)
        # A notify changes nothing: it is not worth another look at the file.
        known = agent.dialog.id if agent.dialog is not None and request.scope["path"] == "/notify" else ""
        if dialog in ("", known):
            return
        with suppress(DialogdError, OSError):
            await agent.look()
        if agent.dialog.id != dialog if agent.dialog is not None else not file:
            raise Refused(f"{agent.file.path} does not hold the dialog {dialog[:60]!r}", fix=_FIX)

    return check


def _is_same(named: str, file: Path) -> bool:
    """True when both are one file, whatever way led to its folder; the file itself is never followed."""
    folder, name = os.path.split(named)
    try:
        return Path(folder).is_absolute() and Path(os.path.realpath(folder), name) == file
    except ValueError:  # what can be no path
        return False


# -- Look at the file; stop -------------------------------------------------------------------------------------------


def _control_routes(app: FastAPI, agent: Agent, halt: Halt) -> None:
    @app.post("/notify", responses={202: {"model": wire.Notified}, 200: {"model": wire.Notified}})
    async def notify(
        wanted: wire.Notify | None = None,
        wait: Annotated[bool, Query(description="answer after the turn has passed")] = False,
    ) -> JSONResponse:
        """Say "look at the file". Starts a dialog; harmless at any other time, however often."""
        wanted = wanted or wire.Notify.model_validate({})
        agent.hub.publish("notified", by=wanted.sender or "somebody")
        busy, written = agent.call is not None, agent.tally.ends["written"]
        action = await _nudged(agent, wanted)
        if wait and (busy or _is_on_its_way(action)):
            return await _after_turn(agent, written)
        if busy:
            return JSONResponse({"status": "busy", "reason": "a reply is being written"})
        return _notified(action)

    @app.post("/stop")
    async def stop(wanted: wire.Halt | None = None) -> wire.Stopped:
        """Stop everything: end the call and the dialog, archive it, notify the peers once, exit."""
        stopped = await halt(wanted or wire.Halt.model_validate({}))
        with suppress(DialogdError, OSError):
            # Listeners hear of the end before they hear `bye`; the loop tells nothing any more.
            if stopped.outcome is not None and (dialog := await agent.look()) and (end := dialog.state.outcome):
                how = {"state": "ended", "reason": f"{end.name} {end.reason}".strip()}
                agent.hub.publish("state", **{**state_fields(dialog, thinking=False), **how})
        return stopped


def _take_hint(agent: Agent, body: bytes) -> bool:
    """Take a peer's hint without the routes, which cost as much as the rest of a turn; False for any other body."""
    try:
        found = json.loads(body)
        sender = found.pop("from")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return False
    own = {"file": str(agent.file.path), "dialog": agent.dialog.id if agent.dialog is not None else ""}
    if not isinstance(sender, str) or sender in ("", USER) or not found.items() <= own.items():
        return False
    agent.hub.publish("notified", by=sender[:64])
    agent.wake()
    return True


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
    return JSONResponse({"status": "ok", "turn_passed": agent.tally.ends["written"] > written})


def _notified(action: Action) -> JSONResponse:
    match action:
        case Stop(outcome):
            name = _STATUS.get(outcome.kind, outcome.name.lower())
            return JSONResponse({"status": name, "reason": outcome.reason or "the dialog has ended"})
        case Wait(status, reason, _) if status != "pace":
            return JSONResponse({"status": status, "reason": reason})
        case _:
            return JSONResponse(ACCEPTED, 202)


# -- What there is to read --------------------------------------------------------------------------------------------


def _reading_routes(app: FastAPI, agent: Agent, health: Health) -> None:
    @app.get("/health")
    async def get_health() -> wire.Health:
        """How this daemon and its dialog are."""
        return health()

    @app.get("/dialog")
    async def get_dialog(
        since: Annotated[int, Query(ge=0, description="entries to leave out at the beginning")] = 0,
    ) -> wire.DialogOut:
        """The dialog, folded from the file as it stands now."""
        dialog = await agent.look()
        if dialog is None:
            raise FileNotFoundError(2, "no dialog", str(agent.file.path))
        return wire.DialogOut.of(dialog, since)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(render_metrics(agent), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/docs", response_class=HTMLResponse)
    async def docs() -> Response:
        """This description, as a page."""
        from dialogd.server.page import render_api

        return HTMLResponse(render_api(app.openapi()))


class Health:
    """The answer of `GET /health`, from what is known without touching the disk.

    What follows from the file alone is worked out once for each dialog that was read.
    """

    def __init__(self, agent: Agent, port: int) -> None:
        self.agent, self.port = agent, port
        self._of: tuple[Dialog | None, bool] | None = None
        self._stands: dict[str, Any] = {}

    def __call__(self) -> wire.Health:
        """The answer as of now."""
        agent, dialog = self.agent, self.agent.dialog
        if self._of is None or self._of[0] is not dialog or self._of[1] != agent.is_working:
            me = dialog.header.agent(agent.me) if dialog else None
            name = agent.behavior.name or (me.name if me else f"Claude {agent.me}")
            self._stands = {**standing(dialog, thinking=agent.is_working), "name": name}
            self._of = dialog, agent.is_working
        ended = {"outcome": agent.action.outcome.name} if isinstance(agent.action, Stop) else {}
        urls = agent.peers.of(dialog)
        mirror = agent.file.mirror if dialog is not None and dialog.state.hand.keys is not None else None
        return wire.Health(
            **{**self._stands, **ended},
            id=agent.me,
            port=self.port,
            pid=os.getpid(),
            version=__version__,
            file=str(agent.file.path),
            working_on=_working_on(agent),
            delivery=_delivery(agent),
            waiting=_waiting(agent),
            calls=[wire.CallAsked(**asked.data) for asked in agent.approvals.open.values()],
            backend=agent.backend.name,
            model=agent.backend.model,
            peers={who: wire.Peer(url=url, reachable=agent.peers.reachable.get(who)) for who, url in urls.items()},
            shared=Shared(**mirror.standing()) if mirror is not None else None,
            turns_written=agent.tally.ends["written"],
            secrets_redacted=agent.tally.secrets,
            warnings=[*filter(None, [agent.missing(dialog)]), *dialog.header.warnings] if dialog else [],
            usd=agent.tally.bill.known_usd,
        )


def _working_on(agent: Agent) -> wire.Working | None:
    """The turn that it is at, while it is."""
    if agent.call is None or not agent.is_working:
        return None
    does = agent.hub.standing.get(agent.me)
    turn = (agent.dialog.state.number if agent.dialog else 0) + 1
    state = "executing" if does is not None and does.state == "executing" else "thinking"
    return wire.Working(turn=turn, seconds=round(agent.call.seconds, 1), state=state)


def _delivery(agent: Agent) -> wire.Delivery | None:
    """What becomes of the turn that a live seat owes."""
    live = agent.backend
    if not isinstance(live, Live) or live.owed is None:
        return None
    owed = live.owed
    return wire.Delivery(debt=owed.debt, session=live.session, knocks=owed.knocks, opened=owed.is_opened)


def _waiting(agent: Agent) -> wire.Waiting | None:
    """What it waits for, while it does; of a live seat that its turn is fetched."""
    if agent.call is None and isinstance(agent.action, Wait):
        return wire.Waiting(status=agent.action.status, reason=agent.action.reason)
    if agent.call is None or agent.is_working:
        return None
    owed, session = (agent.backend.owed, agent.backend.session) if isinstance(agent.backend, Live) else (None, "")
    reason = f"nobody has fetched its turn yet: dialogd live turn --id {agent.me}"
    if owed is not None and session:
        times = "one time" if owed.knocks == 1 else f"{owed.knocks} times"
        reason = owed.waits or f"its session was knocked at {times}, and has not opened the turn"
    return wire.Waiting(status="unopened", reason=reason)


# -- What the person does: each writes one entry of theirs and tells everybody ----------------------------------------


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


def _person_routes(app: FastAPI, agent: Agent) -> None:
    for act in ACTS.values():
        _add_act(app, act, agent)

    @app.post("/approve-call")
    async def approve_call(wanted: wire.Judged) -> wire.CallAnswered:
        """Let an agent make the call of a tool that it asks for, or refuse it; also of another daemon's agent."""
        await agent.on_disk(carried(lambda: person.admitted(agent.file, "approve-call")))
        owner = wanted.call.rpartition("-")[0]
        if owner != agent.me and agent.dialog is not None and agent.dialog.header.agent(owner) is not None:
            found = await agent.peers.approve_call(agent.dialog, owner, wanted.call, refuse=wanted.refuse)
            return wire.CallAnswered.model_validate(found)
        asked = agent.approvals.answer(wanted.call, approve=not wanted.refuse)
        status = "refused" if wanted.refuse else "approved"
        return wire.CallAnswered(status=status, call=asked.id, agent=asked.agent, tool=asked.tool)


def _add_act(app: FastAPI, act: Act, agent: Agent) -> None:
    """The act as a route, whose body has a field for each thing that it is given."""
    fields: dict[str, Any] = {
        one.name: (
            str | wire.Invited if one.kind == "str | Invited" else one.kind,
            Field(one.default, description=one.about, **dict[str, Any](one.limits)),
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

    post.__annotations__ = {"given": model | None if is_optional else model, "return": wire.Done}
    post.__defaults__ = (None,) if is_optional else None
    post.__name__, post.__doc__ = act.do or act.name, act.help
    app.post(f"/{act.name}")(post)


# -- Prometheus metrics: few labels, never one per dialog; unknown figures are counted separately, never as 0 ---------

Row = tuple[str, str, str, str, Mapping[str, float]]  # name, type, what it is, label, numbers by the label's value


def render_metrics(agent: Agent) -> bytes:
    """The metrics of one daemon in the Prometheus text format; every number bears the agent's id."""
    lines: list[str] = []
    for name, kind, about, label, values in (*_work(agent), *_state(agent)):
        suffix = "_total" if kind == "counter" else ""
        lines += [f"# HELP dialogd_{name}{suffix} {about}", f"# TYPE dialogd_{name}{suffix} {kind}"]
        for word, value in values.items():
            more = f',{label}="{word}"' if label else ""
            lines.append(f'dialogd_{name}{suffix}{{agent="{agent.me}"{more}}} {float(value)}')
    return "\n".join([*lines, ""]).encode()


def _work(agent: Agent) -> Iterator[Row]:
    """What this daemon has done since it started."""
    tally, bill = agent.tally, agent.tally.bill
    ends = {end: tally.ends[end] for end in ("written", "interrupted", "late", "failed")}
    errors = {kind: tally.errors[kind] for kind in sorted(BackendError.KINDS)}
    tokens = {"in": bill.tokens_in - bill.cached, "cached": bill.cached, "out": bill.tokens_out}
    yield "turns", "counter", "Turns asked for, by how they ended.", "outcome", ends
    for name, about, value in (
        ("deliveries_refused", "Replies to a live seat that were not to its own turn.", tally.refused),
        ("secrets_redacted", "Secrets taken out of replies.", tally.secrets),
        ("lock_wait_seconds", "Time spent waiting for the dialog's lock.", agent.file.lock.waited),
        ("cost_usd", "US dollars its calls are known to have cost.", bill.usd),
        ("calls", "Calls of the backend.", bill.calls),
        ("calls_unpriced", "Calls whose cost nobody knows.", bill.calls - bill.usd_known),
        ("calls_uncounted", "Calls whose tokens nobody knows.", bill.calls - bill.tokens_known),
    ):
        yield name, "counter", about, "", {"": value}
    yield "errors", "counter", "Calls that failed for good, by what went wrong.", "kind", errors
    yield "tokens", "counter", "Tokens of its calls, as far as known.", "type", tokens


def _state(agent: Agent) -> Iterator[Row]:
    """How it and its dialog are now."""
    dialog, now = agent.dialog, phase(agent.dialog, thinking=agent.is_working)
    for name, about, value in (
        ("thinking", "1 while a reply is being written.", agent.is_working),
        ("call_seconds", "Age of the call under way.", agent.call.seconds if agent.call else 0.0),
        ("event_clients", "Listeners on /events.", agent.hub.clients),
        ("dialog_turn", "The dialog's last turn.", dialog.state.number if dialog else 0),
        ("dialog_ended", "1 once the dialog is over.", dialog is not None and dialog.state.outcome is not None),
    ):
        yield name, "gauge", about, "", {"": value}
    states = {word: word == now for word in get_args(Phase)}
    yield "dialog_state", "gauge", "1 for where the dialog stands.", "state", states
    yield "build_info", "gauge", "The version.", "version", {__version__: 1}

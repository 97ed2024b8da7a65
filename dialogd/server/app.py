"""The routes: each asks the agent or writes the person's entry, and answers. No rule lives here."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from fastapi import FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.exceptions import HTTPException

from dialogd import __version__, person
from dialogd.agent import Agent
from dialogd.errors import BadInput, DialogdError, NotRunning
from dialogd.events import CLIENTS
from dialogd.protocol.decide import Reply, Stop, Wait
from dialogd.protocol.model import Dialog
from dialogd.server import wire
from dialogd.server.metrics import render_metrics
from dialogd.server.page import render_page
from dialogd.server.problem import MEDIA_TYPE, problem
from dialogd.server.report import health, phase

Halt = Callable[[wire.Halt], Awaitable[wire.Stopped]]

_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": wire.Problem, "description": "refused; `detail` says why, `fix` what to do"},
    "5XX": {"model": wire.Problem, "description": "failed; `detail` says why, `fix` what to do"},
}
_STATUS = {"MAX_TURNS_REACHED": "max_turns", "MAX_SIZE_REACHED": "max_size", "BUDGET_REACHED": "budget"}


def create_app(agent: Agent, port: int, halt: Halt) -> FastAPI:
    """The daemon's HTTP surface. `halt` stops the dialog and then the daemon."""
    app = FastAPI(
        title=f"dialogd {agent.me}",
        version=__version__,
        description="One agent's daemon. Plain `curl` needs no token; other origins and other users are refused.",
        docs_url=None,
        redoc_url=None,
        responses=_ERRORS,
        strict_content_type=False,
    )
    _handle_errors(app)
    _control_routes(app, agent, halt)
    _person_routes(app, agent)
    _reading_routes(app, agent, port)
    _text_routes(app, agent, port)
    return app


def _handle_errors(app: FastAPI) -> None:
    def answer(status: int, detail: str, fix: str) -> Response:
        return Response(problem(status, detail, fix), status, media_type=MEDIA_TYPE)

    @app.exception_handler(DialogdError)
    async def refused(_: Request, error: DialogdError) -> Response:
        return answer(error.http_status, str(error), error.fix)

    @app.exception_handler(FileNotFoundError)
    async def missing(_: Request, error: FileNotFoundError) -> Response:
        return answer(409, f"there is no dialog at {error.filename} yet", "write one, or run `dialogd new TOPIC`")

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return answer(422, f"{where}: {first['msg']}", "see GET /openapi.json for what this route takes")

    @app.exception_handler(HTTPException)
    async def plain(_: Request, error: HTTPException) -> Response:
        return answer(error.status_code, str(error.detail), "see GET /openapi.json for the routes and methods")


async def _json_body(request: Request) -> dict[str, Any]:
    """A JSON object under any content type, {} without a body; raises `BadInput` for anything else."""
    raw = await request.body()
    if not raw.strip():
        return {}
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise BadInput(
            'the body is not a JSON object such as {"from": "A"}',
            fix="send no body at all: curl -X POST localhost:PORT/notify",
        )
    return body


def _control_routes(app: FastAPI, agent: Agent, halt: Halt) -> None:
    @app.post("/notify", responses={202: {"model": wire.Notified}, 200: {"model": wire.Notified}})
    async def notify(
        request: Request,
        wait: Annotated[bool, Query(description="answer after the turn has passed")] = False,
    ) -> JSONResponse:
        """Say "look at the file". Starts a dialog; harmless at any other time, however often."""
        body = await _json_body(request)
        sender = body.get("from", "")
        if not isinstance(sender, str) or len(sender) > 64:
            raise BadInput('"from" is not an agent id', fix='send {"from": "A"} or no body')
        agent.hub.publish("notified", by=sender or "somebody")
        busy = agent.call is not None
        action = await agent.nudge(sender, start=body.get("start") is True)
        if wait and (busy or isinstance(action, Reply)):
            return await _after_turn(agent)
        if busy:
            return JSONResponse({"status": "busy", "reason": "a reply is being written"})
        return _notified(action)

    @app.post("/stop", response_model=wire.Stopped)
    async def stop(request: Request) -> wire.Stopped:
        """Halt everything: kill the call, write `[STOPPED]`, archive, tell the peers once, exit."""
        body = await _json_body(request)
        try:
            wanted = wire.Halt.model_validate(body)
        except ValueError as error:
            raise BadInput(f"the body makes no sense: {error}", fix="send no body at all") from None
        return await halt(wanted)


async def _after_turn(agent: Agent) -> JSONResponse:
    """Wait until no reply is being written or about to be."""
    before = agent.dialog.state.number if agent.dialog else 0
    while True:
        await agent.settled()
        if agent.call is None and not (isinstance(agent.action, Wait) and agent.action.status == "pace"):
            break
    after = agent.dialog.state.number if agent.dialog else 0
    return JSONResponse({"status": "ok", "turn_passed": after > before})


def _notified(action: object) -> JSONResponse:
    match action:
        case Reply() | Wait("pace", _, _):
            return JSONResponse({"status": "accepted"}, 202)
        case Stop(outcome):
            name = _STATUS.get(outcome.name, outcome.name.lower())
            return JSONResponse({"status": name, "reason": outcome.reason or "the dialog has ended"})
        case Wait(status, reason, _):
            return JSONResponse({"status": status, "reason": reason})
        case _:
            return JSONResponse({"status": "accepted"}, 202)


def _person_routes(app: FastAPI, agent: Agent) -> None:
    async def act(work: Callable[[], Dialog]) -> wire.Done:
        dialog = await agent.on_disk(work)
        agent.seen.nudge()
        agent.wake()
        agent.peers.tell(dialog)
        state = dialog.state
        return wire.Done(turn=state.number, turn_of=list(state.owing), phase=phase(dialog, thinking=False))

    log = agent.file

    @app.post("/say")
    async def say(words: wire.Say) -> wire.Done:
        """Speak as the person: a turn (interrupts the call in flight), or with `note` a remark."""
        return await act(lambda: person.say(log, words.text, to=words.to, note=words.note, turns=words.turns))

    @app.post("/pause")
    async def pause() -> wire.Done:
        """Let agents finish their turn and wait; survives restarts."""
        return await act(lambda: person.pause(log))

    @app.post("/resume")
    async def resume() -> wire.Done:
        """Go on after a pause."""
        return await act(lambda: person.resume(log))

    @app.post("/retry")
    async def retry(named: wire.Named) -> wire.Done:
        """Ask an agent once more."""
        return await act(lambda: person.retry(log, named.agent))

    @app.post("/skip")
    async def skip(named: wire.Named) -> wire.Done:
        """Pass over an agent that owes a turn."""
        return await act(lambda: person.skip(log, named.agent))


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

    @app.get("/events", response_class=EventSourceResponse)
    async def events(
        last_event_id: Annotated[str, Header(max_length=64)] = "",
    ) -> AsyncIterator[ServerSentEvent]:
        """What happens, as it happens: `state` first, then turns, notes, text being written; `bye` at the end."""
        if agent.hub.clients >= CLIENTS:
            raise NotRunning(f"{CLIENTS} clients listen already", fix="close one of them")
        yield ServerSentEvent(data=health(agent, port).model_dump(), event="state", retry=1000)
        async for event in agent.hub.listen(last_event_id):
            yield ServerSentEvent(data=event.data, event=event.kind, id=event.id)


def _text_routes(app: FastAPI, agent: Agent, port: int) -> None:
    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(render_metrics(agent), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/")
    async def page() -> Response:
        """The dialog as a plain page to read."""
        return Response(render_page(agent, port), media_type="text/html; charset=utf-8")

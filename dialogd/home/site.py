"""Home's routes, and its process: a loopback page that ends when nobody has looked at it for a while."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from functools import partial
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse, HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dialogd import __version__
from dialogd.config import Settings
from dialogd.errors import AlreadyRunning, StorageError
from dialogd.home.listing import Listing
from dialogd.home.offers import LONGEST_PATH, SHORT, CarryOut, Facts, GoOn, NewDialog, Offers, Paths
from dialogd.server.guard import PROCESSES
from dialogd.server.refusals import handle_errors
from dialogd.server.serving import bind, make_server
from dialogd.store.archive import attachments_of
from dialogd.store.caller import asked_by
from dialogd.store.disk import write_json
from dialogd.store.folders import StateDir
from dialogd.store.lock import Lock
from dialogd.store.registry import HOME, Registry, process_started
from dialogd.views.markup import fill

_HERE = Path(__file__).parent
_LOOK = _HERE.parent / "server" / "static"
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
READING = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
SERVICE = "dialogd home"
LINGER = 3_600.0  # seconds


def create_app(settings: Settings, linger: float = LINGER) -> FastAPI:
    """Home's HTTP API. Dialogs that are begun here stay `linger` seconds after their end.

    What reads files or asks daemons is not `async`, so that each request has a thread.
    """
    app = FastAPI(title="dialogd home", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    handle_errors(app)
    listing, offers = Listing(settings), Offers(settings, linger)

    @app.get("/")
    def page() -> HTMLResponse:
        """The page."""
        headers = {"content-security-policy": POLICY, "cross-origin-opener-policy": "same-origin"}
        return HTMLResponse(fill(_HERE / "templates", "home.html"), headers=headers)

    @app.get("/health")
    async def health() -> Facts:
        """That this is Home."""
        return {"status": "ok", "service": SERVICE, "version": __version__}

    @app.get("/dialogs")
    def dialogs(
        search: Annotated[str, Query(max_length=1_000)] = "",
        state: Annotated[str, Query(max_length=100)] = "",
        after: Annotated[int, Query(ge=0)] = 0,
    ) -> Facts:
        """Running and past dialogs: what waits for the person first."""
        return listing.dialogs(search, state, after)

    @app.get("/past/{dialog}")
    def past(dialog: Annotated[str, PathParameter(max_length=SHORT)]) -> HTMLResponse:
        """A dialog to read, with nothing in it that runs."""
        from dialogd.views.documents import export

        found, path = listing.text_of(dialog)
        text = export(found, "html", attachments=attachments_of(path))
        return HTMLResponse(text, headers={"content-security-policy": READING})

    @app.get("/choices")
    def choices(again: bool = False) -> Facts:
        """What a dialog can be made of here: backends, templates, open sessions."""
        return offers.choices(again=again)

    @app.get("/folders")
    def folders(under: Annotated[str, Query(max_length=LONGEST_PATH)] = "", files: bool = False) -> Facts:
        """What is in a folder of the person's, to pick from."""
        return offers.folder(under, files=files)

    @app.post("/context")
    def context(asked: Paths) -> Facts:
        """Files as they would go along with a dialog: without secrets, cut where they are long, or refused."""
        return offers.context(asked)

    @app.post("/estimate")
    def estimate(asked: NewDialog) -> Facts:
        """What a dialog may cost."""
        return offers.estimate(asked)

    @app.post("/start", status_code=201)
    def start(asked: NewDialog) -> Facts:
        """Begin a dialog: its daemons live on without this page."""
        return offers.start(asked)

    @app.post("/continue", status_code=201)
    def go_on(asked: GoOn) -> Facts:
        """Have a dialog go on whose agents are gone: after a restart of the machine, for example."""
        return offers.go_on(listing.standing(asked.dialog))

    @app.post("/build/look")
    def look(asked: CarryOut) -> Facts:
        """What carrying out a decision would be; nothing is begun."""
        return offers.would_be(asked, listing.standing(asked.dialog))

    @app.post("/build", status_code=201)
    def build(asked: CarryOut) -> Facts:
        """Have a decision carried out: tasks are proposed, and wait for the person."""
        return offers.carry_out(asked, listing.standing(asked.dialog))

    # One route for each file that there is: no path reaches a folder. The look is that of the dialogs' own pages.
    for prefix, folder in (("home", _HERE / "static"), ("page", _LOOK)):
        for path in sorted(folder.iterdir()):
            if path.suffix in _KINDS:
                app.add_route(f"/{prefix}/{path.name}", partial(_part, path))
    return app


def _part(path: Path, _asked: Request) -> FileResponse:
    """A script, a style sheet or a picture of the page."""
    return FileResponse(path, media_type=_KINDS[path.suffix])


# -- The process ------------------------------------------------------------------------------------------------------

LOOK = 1.0  # seconds between two looks at whether anybody still does


class Looked:
    """ASGI middleware behind the guard: notes when something was last asked for, and by which process."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.last = time.monotonic()
        self.under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked_by(scope.get("state", {}).get(PROCESSES, tuple))
        self.under_way += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.under_way -= 1
            self.last = time.monotonic()


def serve(settings: Settings, port: int, linger: float) -> None:
    """Answer at http://localhost:`port`/ until nothing was asked for `linger` seconds, or a signal comes.

    Raises `AlreadyRunning` where another Home of this state directory runs, or the port is taken.
    """
    state = StateDir(settings.state_dir)
    lock = Lock(state.registry / "home.seat", wait=0, per_process=True)
    try:
        lock.acquire()
    except StorageError as error:
        raise AlreadyRunning("Home runs already", fix="dialogd open shows it") from error
    try:
        listener = bind(port, Registry(state).listener)
        asyncio.run(_serve(settings, listener, linger))
    finally:
        (state.root / HOME).unlink(missing_ok=True)
        lock.release()


async def _serve(settings: Settings, listener: socket.socket, linger: float) -> None:
    looked = Looked(create_app(settings, linger))
    server = make_server(looked, listener)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, server.leave)
    port = int(listener.getsockname()[1])
    print(f"http://localhost:{port}", flush=True)
    pid = os.getpid()
    write_json(settings.state_dir / HOME, {"port": port, "pid": pid, "created": process_started(pid)})
    serving = asyncio.create_task(server.serve())
    while not serving.done():
        await asyncio.wait({serving}, timeout=min(LOOK, linger / 4))
        if not looked.under_way and time.monotonic() - looked.last > linger:
            server.leave()
            break
    await serving

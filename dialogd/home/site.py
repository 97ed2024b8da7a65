"""Home's list, its routes and its process: a loopback page that ends when nobody has looked at it for a while."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from fastapi import FastAPI, Query
from fastapi import Path as PathParameter
from fastapi.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dialogd import __version__
from dialogd.backends.auto import LAST_RESORT, family_of
from dialogd.cli.launch import ongoing
from dialogd.cli.status import Situation
from dialogd.config import Settings
from dialogd.errors import AlreadyRunning, BadInput, StorageError
from dialogd.home.offers import SHORT, Facts, Offers
from dialogd.memory import DialogRow, Memory, excerpt
from dialogd.memory.records import read_dialog, row_of
from dialogd.protocol.build import came_of
from dialogd.protocol.model import AGREED
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import clean, one_line
from dialogd.server.serving import PAGE_HEADERS, READING_HEADERS, bind, make_server, serve_parts
from dialogd.server.wire import handle_errors
from dialogd.store.disk import Lock, StateDir, attachments_of, write_json
from dialogd.store.logfile import LogFile
from dialogd.store.registry import HOME, Registry, process_started
from dialogd.views.documents import export
from dialogd.views.markup import fill
from dialogd.views.standing import RUNS, Run
from dialogd.views.words import words_of

_HERE = Path(__file__).parent
SERVICE = "dialogd home"
LINGER = 3_600.0  # seconds


def create_app(settings: Settings, linger: float = LINGER) -> FastAPI:
    """Home's HTTP API. Dialogs that are begun here stay `linger` seconds after their end.

    What reads files or asks daemons is not `async`, so that each request has a thread.
    """
    app = FastAPI(title="dialogd home", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    handle_errors(app)
    listing = Listing(settings)
    offers = Offers(settings, linger, listing.standing)

    @app.get("/")
    def page() -> HTMLResponse:
        """The page."""
        return HTMLResponse(fill(_HERE / "templates", "home.html"), headers=PAGE_HEADERS)

    @app.get("/health")
    async def health() -> Facts:
        """That this is Home."""
        return {"status": "ok", "service": SERVICE, "version": __version__}

    @app.get("/past/{dialog}")
    def past(dialog: Annotated[str, PathParameter(max_length=SHORT)]) -> HTMLResponse:
        """A dialog to read, with nothing in it that runs."""
        found, path = listing.text_of(dialog)
        text = export(found, "html", attachments=attachments_of(path))
        return HTMLResponse(text, headers=READING_HEADERS)

    app.get("/dialogs")(listing.dialogs)
    app.get("/choices")(offers.choices)
    app.post("/context")(offers.context)
    app.post("/estimate")(offers.estimate)
    app.post("/start", status_code=201)(offers.start)
    app.post("/continue", status_code=201)(offers.go_on)
    app.post("/share", status_code=201)(offers.share)
    app.post("/join", status_code=201)(offers.join)
    app.post("/build/look")(offers.would_be)
    app.post("/build", status_code=201)(offers.carry_out)
    app.post("/build/rehearse", status_code=201)(offers.rehearse)
    serve_parts(app, "home", _HERE / "static")
    serve_parts(app, "page", _HERE.parent / "server" / "static")  # the look is that of the dialogs' own pages
    return app


# -- The list: dialogs that go on, as they stand now, and those of the archive ---------------------------------------

PAGE = 50  # dialogs of one answer
WORDS = 300  # characters of what is said of one
FOUND = 200  # entries that a search of the archive looks at
OPEN = "open"  # all but what has ended
RANK: Mapping[Run, int] = {"waiting": 0, "starting": 1, "running": 1, "asleep": 2, "ended": 3}


class Listing:
    """All dialogs of one state directory. What did not change is not read again."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.state = StateDir(settings.state_dir)
        self.memory = Memory(settings.state_dir)
        self._logs: dict[Path, LogFile] = {}
        self._lock = threading.Lock()  # of these: a file is read by one at a time

    def dialogs(
        self,
        search: Annotated[str, Query(max_length=1_000)] = "",
        state: Annotated[str, Query(max_length=100)] = "",
        after: Annotated[int, Query(ge=0)] = 0,
    ) -> Facts:
        """A page of the list: what waits for the person, what runs, the past; those that hold the words, if any.

        Raises `BadInput` for a state that is none.
        """
        if state and state not in (*RUNS, OPEN):
            raise BadInput(f"no dialog is ever {state[:60]!r}", fix=f"name one of: {', '.join((*RUNS, OPEN))}")
        going = self._ongoing()
        known = {one.dialog.id for one in going}
        rows = sorted(map(self._listed, going), key=lambda row: RANK[row["state"]])
        rows += (
            _row(row, "ended", _ended(row)) for row in self.memory.archived() if row.id.partition("~")[0] not in known
        )
        fits = [row for row in rows if state in ("", row["state"]) or (state == OPEN and row["state"] != "ended")]
        if search.strip():
            fits = self._searched(fits, search, {one.dialog.id: one.dialog for one in going})
        shown = fits[after : after + PAGE]
        return {"dialogs": shown, "more": len(fits) > after + PAGE, "after": after + len(shown)}

    def standing(self, wanted: str) -> Situation | None:
        """The dialog of that id, where it stands in its file still."""
        return next((one for one in self._ongoing(asked=False) if one.dialog.id == wanted), None)

    def text_of(self, wanted: str) -> tuple[Dialog, Path]:
        """A dialog to read, by its id, from its file or from the archive, and where it stands. Raises `BadInput`."""
        if (one := self.standing(wanted)) is not None:
            return one.dialog, one.file
        path = Path(self.memory.dialog(wanted).archive)
        return read_dialog(path), path

    def _ongoing(self, *, asked: bool = True) -> list[Situation]:
        with self._lock:
            return ongoing(self.settings, self._logs, asked=asked)

    def _listed(self, one: Situation) -> Facts:
        """A dialog that goes on, or whose daemons still run, as the list has it."""
        row, dialog = row_of(one.dialog, one.file), one.dialog
        stands = one.stands(_ended(row))
        words = stands.words
        if dialog.state.build.all and dialog.state.outcome is None:
            words = f"{came_of(dialog.state.build)}; {words}"
        port = next((daemon.port for daemon in one.running if one.healths.get(daemon.id) or dialog.state.outcome), 0)
        backends = (str((said or {}).get("backend") or "") for said in one.healths.values())
        return _row(row, stands.state, words) | {
            "waits_for_you": stands.waits_for_you,
            "url": f"http://localhost:{port}/" if port else "",
            "rehearsal": row.is_rehearsal or any(family_of(backend) == LAST_RESORT for backend in backends),
        }

    def _searched(self, rows: list[Facts], words: str, going: Mapping[str, Dialog]) -> list[Facts]:
        """The rows that hold the words: in what is shown of them first, then in what was said there.

        Those that go on are in no archive: they are looked through.
        """
        wanted = words.casefold().split()
        shown = [row for row in rows if all(word in _text(row) for word in wanted)]
        said = {id_: text for id_, dialog in going.items() if (text := _said(dialog, wanted))}
        for hit in self.memory.search(words, limit=FOUND):
            said.setdefault(hit.dialog, hit.snippet)
        rest = {row["id"]: row for row in rows if row not in shown}
        return [*shown, *(rest[id_] | {"found": text} for id_, text in said.items() if id_ in rest)]


def _said(dialog: Dialog, wanted: Sequence[str]) -> str:
    """A piece of the newest entry that holds all these words, which are in lower case; "" where none does."""
    for entry in reversed(dialog.entries):
        text = words_of(entry)
        lower = " ".join(text.split()).casefold()
        if entry.counts and all(word in lower for word in wanted):
            return excerpt(clean(text), wanted)
    return ""


def _text(row: Facts) -> str:
    shown = (row[name] for name in ("topic", "words", "file", "id"))
    return " ".join((*shown, *(agent["name"] for agent in row["agents"]))).casefold()


def _ended(row: DialogRow) -> str:
    """How a dialog ended, in a sentence: what was agreed, else why it was not."""
    is_told = row.outcome in AGREED and row.decided
    return f"{row.headline.partition(':')[0]}: {row.decided}" if is_told else row.headline


def _row(row: DialogRow, state: Run, words: str) -> Facts:
    """A dialog in the list: `words` says in one sentence how it stands, `cost` what was spent.

    `url` is the page of a daemon that runs, `past` the page to read it on without one; "" is what nobody knows.
    """
    cost = f"{row.tokens:,} tokens" if row.tokens is not None else ""
    if row.is_rehearsal or row.usd is not None:
        cost = "nothing" if row.is_rehearsal else row.cost
    names = ("id", "topic", "file", "started", "ended", "outcome", "turns")
    return {name: getattr(row, name) for name in names} | {
        "state": state,
        "words": one_line(words, WORDS),
        "waits_for_you": False,
        "agents": [{"id": who, "name": name or who} for who, name in zip(row.agents, row.names, strict=True)],
        "cost": cost,
        "url": "",
        "past": f"/past/{quote(row.id)}",
        "rehearsal": row.is_rehearsal,
        "found": "",
    }


# -- The process ------------------------------------------------------------------------------------------------------

LOOK = 1.0  # seconds between two looks at whether anybody still does


class Looked:
    """ASGI middleware behind the guard: notes when something was last asked for."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.last = time.monotonic()
        self.under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
    server.leave_at_signals()
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

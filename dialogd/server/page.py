"""The page, the entries and the state that its scripts fetch, and the page about the API."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from dialogd.agent.loop import Agent
from dialogd.errors import DialogdError, Refused
from dialogd.protocol.state import Dialog
from dialogd.server.page_entries import (
    LAST,
    MOST,
    PageEntries,
    PageHits,
    PageStanding,
    PageWriting,
    around,
    as_written,
    found,
    standings_shown,
    template,
    window,
)
from dialogd.server.page_state import Neighbours, page_state
from dialogd.store.folders import StateDir
from dialogd.store.registry import home_port
from dialogd.views.markup import safe

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "worker-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def render_page(state: dict[str, Any], dialog: Dialog | None) -> str:
    """The initial page: the dialog's state and last entries, readable without scripts."""
    shown = window(dialog, None, None, LAST)
    last = next((entry.index for entry in reversed(shown.entries) if entry.condition != "unfinished"), -1)
    build = dialog is not None and bool(dialog.state.build)
    return template("page.html", state=state, shown=shown, last=last, safe=safe, build=build)


def page_headers() -> dict[str, str]:
    """The headers of the page: only this daemon's scripts and styles, and nobody else is called."""
    # The opener policy: a page that opened this one can neither watch nor steer its window.
    return {"content-security-policy": _POLICY, "cross-origin-opener-policy": "same-origin"}


def probe_policy(host: str, others: Sequence[str]) -> dict[str, str]:
    """The headers of the script that finds out which other daemons live: it may call these, and do nothing else.

    `host` is the request's own Host, `others` the addresses of the other daemons. A page's policy is fixed when it is
    opened; this script is fetched anew whenever the daemons are others, so that no page has to be allowed all ports.
    """
    name = host.rpartition(":")[0]
    ports = [url.rpartition(":")[2] for url in others]
    known = " ".join(f"http://{name}:{port}" for port in ports if port.isascii() and port.isdigit()) or "'none'"
    return {"content-security-policy": f"default-src 'none'; connect-src {known}"}


def render_api(schema: dict[str, Any]) -> str:
    """The API as a page, from its OpenAPI description; it fetches nothing from outside."""

    def fields(about: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """The query parameters and body fields of one route: name, and type with description."""
        body = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
        model = schema["components"]["schemas"].get(str(body.get("$ref", "")).rpartition("/")[2], {})
        query = [(p["name"], {**p["schema"], **p}) for p in about.get("parameters", ())]
        return [*query, *model.get("properties", {}).items()]

    return template("api.html", schema=schema, fields=fields)


# -- The page's routes ------------------------------------------------------------------------------------------------

_STATIC = Path(__file__).parent / "static"
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def page_routes(app: FastAPI, agent: Agent, port: int, state_dir: StateDir) -> None:
    """Serve the page of this agent's dialog; `state_dir` is where its cast is kept."""
    neighbours = Neighbours(agent)
    _home_route(app, state_dir)

    @app.get("/", response_class=HTMLResponse)
    async def page() -> Response:
        """The dialog as a page: watch it, speak, step in, take the result with you."""
        state = page_state(agent, port, state_dir, {}, await _read(agent))
        # In a thread: rendering a long dialog for the first time takes a second.
        text = await asyncio.to_thread(render_page, state, agent.dialog)
        return HTMLResponse(text, headers=page_headers())

    @app.get("/page/probe.js", include_in_schema=False)
    async def probe(request: Request) -> Response:
        """The worker that asks which of the other daemons answer, allowed to call those that there are now."""
        await _read(agent)
        headers = probe_policy(request.headers["host"], list(agent.peers.of(agent.dialog).values()))
        script = await asyncio.to_thread((_STATIC / "probe.js").read_bytes)
        return Response(script, media_type=_KINDS[".js"], headers=headers)

    @app.get("/page/entries")
    async def entries(
        after: Annotated[int | None, Query(ge=-1, description="entries behind this index")] = None,
        before: Annotated[int | None, Query(ge=0, description="entries before this index")] = None,
        at: Annotated[
            str, Query(max_length=24, description="entries around the one of this id, such as 7 or 4.1")
        ] = "",
        limit: Annotated[int, Query(ge=1, le=MOST, description="how many at most")] = LAST,
    ) -> PageEntries:
        """Entries of the dialog as HTML: the last ones, those after or before an index, or around an entry."""
        await _read(agent)
        if at:
            return await asyncio.to_thread(around, agent.dialog, at, limit)
        return await asyncio.to_thread(window, agent.dialog, after, before, limit)

    @app.get("/page/writing")
    async def writing(by: Annotated[str, Query(max_length=64, description="the agent's id")]) -> PageWriting:
        """The turn that an agent writes at this moment, as HTML, as far as it has come; empty where it writes none."""
        written, dialog = agent.hub.written(by), agent.dialog
        if written is None or dialog is None:
            return PageWriting(by=by)
        return await asyncio.to_thread(as_written, dialog, by, *written)

    @app.get("/page/standings")
    async def standings() -> dict[str, PageStanding]:
        """Who stands behind which proposal now, by its number."""
        await _read(agent)
        return await asyncio.to_thread(standings_shown, agent.dialog)

    @app.get("/page/find")
    async def find(
        words: Annotated[str, Query(max_length=200, description="what to look for, in any case")],
        limit: Annotated[int, Query(ge=1, le=MOST, description="how many at most")] = MOST,
    ) -> PageHits:
        """Where these words stand in this dialog, from its beginning on."""
        await _read(agent)
        return await asyncio.to_thread(found, agent.dialog, words, limit)

    @app.get("/page/state")
    async def state() -> dict[str, Any]:
        """Where the dialog stands, with all its agents, in one answer."""
        problem = await _read(agent)
        return page_state(agent, port, state_dir, await neighbours.healths(), problem)

    # One route for each file that there is: no path reaches a folder, and other routes may stand below /page.
    for path in sorted(_STATIC.iterdir()):
        if path.suffix in _KINDS and path.name != "probe.js":
            app.add_api_route(f"/page/{path.name}", _part(path), include_in_schema=False)


def _home_route(app: FastAPI, state_dir: StateDir) -> None:
    @app.get("/page/home")
    async def home(
        request: Request,
        at: Annotated[str, Query(pattern="^[\\w=-]{0,90}$", description="`new`, or `build=ID`: one of its forms")] = "",
    ) -> Response:
        """Lead to Home, where all dialogs are found and new ones begun; start it where it does not run."""
        there = home_port(state_dir) or await _home(state_dir)
        name = request.headers["host"].rpartition(":")[0]
        return RedirectResponse(f"http://{name}:{there}/{f'#{at}' if at else ''}", 303)


async def _home(state_dir: StateDir) -> int:
    """Start Home, as `dialogd open` does, and give its port. Raises `Refused` with what it said where it did not."""
    words = (sys.executable, "-P", "-m", "dialogd", "open", "--no-browser")
    variables, none = {**os.environ, "DIALOGD_STATE_DIR": str(state_dir.root)}, asyncio.subprocess.DEVNULL
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, env=variables, stdin=none, stdout=none, stderr=pipe)
    _, said = await process.communicate()
    found = home_port(state_dir)
    if found is None:
        raise Refused(f"Home did not start: {said.decode(errors='replace').strip()}", fix="dialogd open")
    return found


async def _read(agent: Agent) -> str:
    """Read the file; returns why it cannot be read, or ""."""
    try:
        await agent.look()
    except DialogdError as error:
        return f"{error}; {error.fix}"
    except OSError as error:
        return f"{error.strerror}: {agent.file.path}"
    return ""


def sent(source: bytes) -> bytes:
    """A script or a style sheet as it goes to a browser: without indentation, empty lines, and lines of comment."""
    # They are a seventh of the whole: with them the page would weigh more than the 150 kB that it may.
    return re.sub(rb"^(?:[ \t]+|//[^\n]*\n|/\*[^\n]*\*/\n|\n)+", b"", source, flags=re.M)


def _part(path: Path) -> Callable[[Request], Awaitable[Response]]:
    """A script, a style sheet or the icon of the page, as a route's function."""

    async def part(request: Request) -> Response:
        data = sent(await asyncio.to_thread(path.read_bytes))
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(data, media_type=_KINDS[path.suffix])
        packed = {"content-encoding": "gzip", "vary": "accept-encoding"}
        return Response(gzip.compress(data), media_type=_KINDS[path.suffix], headers=packed)

    return part

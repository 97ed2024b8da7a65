"""The page's routes: the page itself, what it is made of, the entries it shows and the state in its head."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, Response

from dialogd.agent.loop import Agent
from dialogd.errors import DialogdError
from dialogd.server.page import page_policy, render_page
from dialogd.server.page_agents import Neighbours
from dialogd.server.page_entries import LAST, MOST, PageEntries, window
from dialogd.server.page_state import PageState, page_state
from dialogd.store.folders import StateDir

_STATIC = Path(__file__).parent / "static"
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def page_routes(app: FastAPI, agent: Agent, port: int, state_dir: StateDir) -> None:
    """Serve the page of this agent's dialog; `state_dir` is where its cast is kept."""
    neighbours = Neighbours(agent)

    @app.get("/", response_class=HTMLResponse)
    async def page(request: Request) -> Response:
        """The dialog as a page: watch it, speak, step in, take the result with you."""
        state = page_state(agent, port, state_dir, {}, await _read(agent))
        # In a thread: rendering a long dialog for the first time takes a second.
        text = await asyncio.to_thread(render_page, state, agent.dialog)
        others = [one.url for one in state.agents if one.url]
        headers = page_policy(request.headers["host"], others)
        return Response(text, media_type="text/html; charset=utf-8", headers=headers)

    @app.get("/page/entries")
    async def entries(
        after: Annotated[int | None, Query(ge=-1, description="entries behind this index")] = None,
        before: Annotated[int | None, Query(ge=0, description="entries before this index")] = None,
        limit: Annotated[int, Query(ge=1, le=MOST, description="how many at most")] = LAST,
    ) -> PageEntries:
        """Entries of the dialog, ready to be shown: the last ones, or those behind or before an index."""
        await _read(agent)
        return await asyncio.to_thread(window, agent.dialog, after, before, limit)

    @app.get("/page/state")
    async def state() -> PageState:
        """Where the dialog stands, with all its agents, in one answer."""
        problem = await _read(agent)
        return page_state(agent, port, state_dir, await neighbours.healths(), problem)

    _part_routes(app)


async def _read(agent: Agent) -> str:
    """Look at the file; why it cannot be read, in words, or ""."""
    try:
        await agent.look()
    except DialogdError as error:
        return f"{error}; {error.fix}"
    except OSError as error:
        return f"{error.strerror}: {agent.file.path}"
    return ""


def _part_routes(app: FastAPI) -> None:
    """What the page is made of."""
    # One route for each file that there is: no path reaches a folder, and other routes may stand below /page.
    for path in sorted(_STATIC.iterdir()):
        if path.suffix in _KINDS:
            app.add_api_route(f"/page/{path.name}", _part(path), include_in_schema=False)


def _part(path: Path) -> Callable[[], Awaitable[Response]]:
    """A script, a style sheet or the icon of the page, as a route's function."""

    async def part() -> Response:
        return Response(await asyncio.to_thread(path.read_bytes), media_type=_KINDS[path.suffix])

    return part

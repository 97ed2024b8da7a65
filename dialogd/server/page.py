"""What the page shows beside the conversation, filled in and kept for as long as the dialog stays as it is."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, Response

from dialogd.agent.loop import Agent
from dialogd.errors import DialogdError
from dialogd.protocol.state import Dialog
from dialogd.server.page_entries import LAST, MOST, PageEntries, PageEntry, presentable, window
from dialogd.server.page_state import Neighbours, PageState, page_state
from dialogd.server.templating import fill, safe
from dialogd.store.folders import StateDir
from dialogd.views.markup import to_html

MOST_KEPT = 32  # fragments of one dialog; the oldest goes


def fragment(name: str, **values: Any) -> str:
    """The template `panels/NAME.html` with these values, with `markdown` and `when` to write texts and times."""
    return fill(f"panels/{name}.html", markdown=markdown, when=when, **values)


def markdown(text: str) -> Any:
    """Markdown as a part of the page: sanitised, with its headings below the panel's."""
    return safe(presentable(to_html(text)))


def when(at: str) -> str:
    """A time of the file for people, `2026-11-21 19:00 UTC`; what is no such time stays as it is, cut short."""
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        return at[:40]
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if moment.tzinfo else f"{moment:%Y-%m-%d %H:%M}"


class Kept:
    """The fragments of the dialog as it stands, each made once: a dialog that was read is never changed."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._dialog: Dialog | None = None
        self._made: dict[object, str] = {}
        self._making = asyncio.Lock()

    async def of(self, key: object, make: Callable[[Dialog], str]) -> str:
        """The fragment of that key, made of the dialog in a thread of its own; a few words while there is none."""
        dialog = await self._agent.look()
        if dialog is None:
            return fragment("none", file=str(self._agent.file.path))
        async with self._making:  # several tabs ask at once: the first one's answer serves them all
            if dialog is not self._dialog:
                self._dialog, self._made = dialog, {}
            if key not in self._made:
                made = await asyncio.to_thread(make, dialog)
                while len(self._made) >= MOST_KEPT:
                    del self._made[next(iter(self._made))]
                self._made[key] = made
            return self._made[key]


# -- The pages --------------------------------------------------------------------------------------------------------

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'{others}; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def render_page(state: PageState, dialog: Dialog | None) -> str:
    """The page as it begins: where the dialog stands and its last entries; it can be read without its scripts."""
    shown = window(dialog, None, None, LAST)
    entries = [(entry, safe(entry.html)) for entry in shown.entries]
    return fill(
        "page.html", state=state, entries=entries, total=shown.total, dialog=shown.dialog, last=_last(shown.entries)
    )


def _last(entries: Sequence[PageEntry]) -> int:
    """The index of the last finished entry, -1 without one."""
    return next((entry.index for entry in reversed(entries) if entry.condition != "unfinished"), -1)


def page_policy(host: str, others: Sequence[str]) -> dict[str, str]:
    """The headers of the page: scripts and styles of this daemon alone; it may ask who of the others is alive.

    `host` is the request's own Host, `others` the addresses of the other daemons.
    """
    name = host.rpartition(":")[0]
    ports = [url.rpartition(":")[2] for url in others]
    known = "".join(f" http://{name}:{port}" for port in ports if port.isascii() and port.isdigit())
    # The opener policy: a page that opened this one can neither watch nor steer its window.
    return {
        "content-security-policy": _POLICY.format(others=known),
        "cross-origin-opener-policy": "same-origin",
    }


def render_api(schema: dict[str, Any]) -> str:
    """The HTTP surface, from its OpenAPI description; the page fetches nothing from outside."""
    rows = []
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            call = html.escape(f"{method.upper()} {path}")
            text = html.escape(about.get("description", ""))
            rows.append(f"<h2><code>{call}</code></h2>\n<p>{text}</p>\n{_fields(schema, about)}")
    intro = '<p>The whole description: <a href="/openapi.json">/openapi.json</a>.</p>'
    return _page(
        str(schema["info"]["title"]), f"<p>{html.escape(schema['info']['description'])}</p>{intro}\n" + "\n".join(rows)
    )


def _fields(schema: dict[str, Any], about: dict[str, Any]) -> str:
    """The query parameters and body fields of one route."""
    fields = [(p["name"], p["schema"], p.get("description", "")) for p in about.get("parameters", ())]
    body = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    model = schema["components"]["schemas"].get(str(body.get("$ref", "")).rpartition("/")[2], {})
    fields += [(name, f, f.get("description", "")) for name, f in model.get("properties", {}).items()]
    items = (
        f"<li><code>{html.escape(name)}</code> ({html.escape(str(kind.get('type', 'any')))}) {html.escape(text)}</li>"
        for name, kind, text in fields
    )
    return f"<ul>{''.join(items)}</ul>" if fields else ""


def _page(title: str, body: str) -> str:
    safe = html.escape(title)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
        f"<title>{safe}</title></head>\n<body><h1>{safe}</h1>\n{body}\n</body></html>\n"
    )


# -- The page's routes ------------------------------------------------------------------------------------------------

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

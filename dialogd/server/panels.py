"""What stands beside the conversation, as pieces of HTML: positions, flow, digest, result; downloads."""

from __future__ import annotations

import asyncio
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from fastapi import FastAPI, Query
from fastapi import Path as PathField
from fastapi.responses import HTMLResponse, Response

from dialogd.agent.clock import local
from dialogd.agent.loop import Agent
from dialogd.agent.turn import aside
from dialogd.memory import Memory
from dialogd.protocol.money import in_dollars
from dialogd.protocol.state import Dialog
from dialogd.server import panel_board, panel_flow
from dialogd.server.fragments import Kept, fragment
from dialogd.server.panel_history import archived, history_routes
from dialogd.server.templating import safe
from dialogd.store.folders import StateDir
from dialogd.views.digest import MOST, away, since_turn
from dialogd.views.flow import as_svg
from dialogd.views.plan import draw_up, has_spoken, method
from dialogd.views.plan_page import first_screen

Format = Literal["md", "html", "pdf", "json"]

# What the page calls the commands that the digest names.
_BUTTONS = {"approve": "Approve", "reject": "Reject", "resume": "Resume", "retry": "Retry", "say": "Say"}
_COMMAND = re.compile(rf"`dialogd ({'|'.join(_BUTTONS)})\b[^`]*`")

# What the digest can go back to: what `since` is, and in words.
_SPANS = (("15m", "the last 15 minutes"), ("1h", "the last hour"), ("8h", "the last 8 hours"), ("1d", "the last day"))


def panel_routes(app: FastAPI, agent: Agent, state: StateDir) -> None:
    """Serve the fragments that the page fetches, and the downloads; `state` is where earlier dialogs are kept."""
    memory = Memory(state.root)
    _dialog_routes(app, agent)
    history_routes(app, agent, memory)
    download_routes(app, agent, memory)


def _dialog_routes(app: FastAPI, agent: Agent) -> None:
    kept = Kept(agent)

    @app.get("/page/positions", response_class=HTMLResponse)
    async def positions(
        everything: Annotated[bool, Query(alias="all", description="all rows, not only the latest")] = False,
    ) -> HTMLResponse:
        """Who holds what of each proposal, since when and why; votes, signatures, decisions."""
        most = None if everything else panel_board.MOST
        return HTMLResponse(await kept.of(("positions", most), lambda dialog: _positions(dialog, most)))

    @app.get("/page/flow", response_class=HTMLResponse)
    async def flow(
        who: Annotated[str, Query(alias="agent", max_length=64, description="only messages from or to this one")] = "",
        kind: Annotated[str, Query(max_length=64, description="only messages of this kind, such as PROPOSAL")] = "",
        before: Annotated[int | None, Query(ge=0, description="only the messages before this place")] = None,
    ) -> HTMLResponse:
        """Who said what to whom: the latest messages as a picture, and as a table."""
        wanted = panel_flow.Wanted(who, kind, before)
        return HTMLResponse(await kept.of(wanted, lambda dialog: _flow(dialog, wanted)))

    @app.get("/page/away", response_class=HTMLResponse)
    async def digest(
        since: Annotated[str, Query(max_length=40, description="a turn (7) or how long ago (2h); 0: everything")] = "0",
        seen: Annotated[int, Query(ge=0, description="the turn that the reader last saw, to choose it again")] = 0,
    ) -> HTMLResponse:
        """What was decided, proposed, conceded and asked since then."""
        # A span of time means another turn from minute to minute; a turn means the same one for as long as it stands.
        now = datetime.now(UTC).isoformat(timespec="minutes")
        key = (since, seen, "" if since.isdigit() else now)
        return HTMLResponse(await kept.of(key, lambda dialog: _away(dialog, since, seen, now)))

    @app.get("/page/result", response_class=HTMLResponse)
    async def result() -> HTMLResponse:
        """What the dialog has come to: outcome, agreed text, who signed or voted how, the plan."""
        path = str(agent.file.path)
        return HTMLResponse(await kept.of("result", lambda dialog: _result(dialog, path)))


def download_routes(app: FastAPI, agent: Agent, memory: Memory) -> None:
    """Serve a dialog as a file to take along."""

    @app.get("/export/{to}", response_class=Response)
    async def download(
        to: Annotated[Format, PathField(description="md, html, pdf or json")],
        earlier: Annotated[str, Query(max_length=100, description="the id of an earlier dialog; empty: this one")] = "",
    ) -> Response:
        """A dialog as one file: Markdown, HTML, PDF or JSON."""
        if earlier:
            return await as_download(*await asyncio.to_thread(archived, memory, earlier), to)
        dialog = await agent.look()
        if dialog is None:
            raise FileNotFoundError(2, "no dialog", str(agent.file.path))
        return await as_download(dialog, agent.file.path, to)


async def as_download(dialog: Dialog, file: Path, to: str) -> Response:
    """The dialog in that format, to be saved and not to be shown. Raises `DialogdError`, with a fix."""
    from dialogd.store.archive import attachments_of
    from dialogd.views.export import FORMATS, export, file_name

    data = await aside(lambda: export(dialog, to, attachments=attachments_of(file)))
    headers = {"content-disposition": f'attachment; filename="{file_name(dialog, to)}"'}
    return Response(data, media_type=FORMATS[to], headers=headers)


def _positions(dialog: Dialog, most: int | None) -> str:
    return fragment("positions", board=panel_board.view(dialog, most))


def _flow(dialog: Dialog, wanted: panel_flow.Wanted) -> str:
    view = panel_flow.view(dialog, wanted)
    return fragment("flow", view=view, picture=safe(as_svg(view.messages, None)))


def _away(dialog: Dialog, since: str, seen: int, now: str) -> str:
    """Raises `BadInput` for a `since` that means nothing."""
    news = away(dialog, since_turn(dialog, since, now, local), local)
    spans = {value: words for value, words in _SPANS if since_turn(dialog, value, now, local) > 0 or value == since}
    looked = {str(seen): f"I last looked (turn {seen})"} if seen else {}
    choices = {since: f"turn {since}" if since.isdigit() else since, **looked, **spans, "0": "the beginning"}
    spent = in_dollars(news.spent).replace("unknown", "cost unknown") if news.spent.entries else ""
    is_asked = bool(dialog.state.question) and dialog.state.outcome is None  # then the words are an agent's
    needed = news.needed if is_asked else _COMMAND.sub(_pressed, news.needed)
    told = {"news": news, "needed": needed, "spent": spent}
    return fragment("away", **told, most=MOST, choices=tuple(choices.items()), chosen=since)


def _pressed(match: re.Match[str]) -> str:
    return _BUTTONS[match[1]]


def _result(dialog: Dialog, path: str) -> str:
    if not has_spoken(dialog):
        return fragment("silent", query="")
    plan = draw_up(dialog, path)
    return fragment(
        "result",
        plan=plan,
        page=first_screen(plan),
        approved=bool(dialog.state.approved),
        method=method,
        command=lambda name: f"dialogd {name} {shlex.quote(path)}",
        query="",
    )

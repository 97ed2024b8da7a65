"""Earlier dialogs on the page: the list, search, recall, one of them to read, and how its decision turned out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import FastAPI, Query, Request
from fastapi import Path as PathField
from fastapi.responses import HTMLResponse

from dialogd.agent.clock import local
from dialogd.agent.loop import Agent
from dialogd.memory import Hit, Memory, Row
from dialogd.memory.index import read_dialog
from dialogd.memory.values import since
from dialogd.protocol.marks import prose
from dialogd.protocol.model import USER, Condition, Entry, Mark
from dialogd.protocol.state import Dialog
from dialogd.protocol.units import dollars
from dialogd.server import wire
from dialogd.server.fragments import fragment, markdown
from dialogd.server.page_entries import Cast, cast, figures
from dialogd.store.registry import Registry, Running

LISTED = 20  # dialogs, or places found, at a time
ENTRIES = 50  # entries of one dialog at a time
RECALLED = 5  # decisions


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is searched for: words, who wrote them, and how old they may be, as it was typed."""

    q: str = ""
    agent: str = ""
    since: str = ""


@dataclass(frozen=True, slots=True)
class Past:
    """An entry of an earlier dialog, to be read: `body` is safe HTML, `tone` the class of its colour."""

    anchor: str
    title: str
    name: str
    tone: str
    at: str
    figures: tuple[str, ...]
    body: Any
    marks: tuple[tuple[str, str], ...]
    condition: str
    is_struck: bool


# FastAPI names the path's own parameters; this says what they mean.
Id = PathField(description="the id of an earlier dialog, or the beginning of one")


def history_routes(app: FastAPI, agent: Agent, memory: Memory) -> None:
    """Serve what the memory knows, as fragments."""

    @app.get("/page/history", response_class=HTMLResponse)
    async def history(
        request: Request,
        q: Annotated[str, Query(max_length=500, description="words to search for; empty: all dialogs")] = "",
        by: Annotated[str, Query(alias="agent", max_length=64, description="only what this one wrote; USER: you")] = "",
        since: Annotated[str, Query(max_length=40, description="not older than: 2h, 7d, yesterday, 2026-11-01")] = "",
        offset: Annotated[int, Query(ge=0, le=1_000_000, description="how many to leave out")] = 0,
    ) -> HTMLResponse:
        """Earlier dialogs, newest first; or the places where the words were said, by whom and when one likes."""
        host = request.headers["host"].rpartition(":")[0]
        wanted = Wanted(q.strip(), by.strip(), since.strip())
        return HTMLResponse(await asyncio.to_thread(_history, memory, wanted, offset, host, agent.file.path))

    @app.get("/page/recall", response_class=HTMLResponse)
    async def recall(
        q: Annotated[str, Query(max_length=500, description="a question: what did we decide about X?")] = "",
    ) -> HTMLResponse:
        """Past decisions that answer a question, with how they turned out."""
        return HTMLResponse(await asyncio.to_thread(_recall, memory, q.strip()))

    @app.get("/page/history/{dialog}", response_class=HTMLResponse)
    async def earlier(
        dialog: Annotated[str, Id],
        start: Annotated[int | None, Query(ge=0, description="the entry to begin with; default: the first")] = None,
        entry: Annotated[str, Query(max_length=32, description="an entry that is to be among those shown")] = "",
    ) -> HTMLResponse:
        """An earlier dialog to read: how it ended, what it decided, what was said."""
        return HTMLResponse(await asyncio.to_thread(_one, memory, dialog, start, entry))

    @app.post("/page/history/{dialog}/outcome")
    async def outcome(dialog: Annotated[str, Id], said: wire.TurnedOut) -> wire.Remembered:
        """Remember that what a dialog decided worked, or failed, and why."""
        row = await asyncio.to_thread(memory.outcome, dialog, said.outcome, said.why)
        return wire.Remembered(dialog=row.id, outcome=said.outcome, why=said.why)


@lru_cache(maxsize=4)
def _parsed(path: Path, _changed: int, _size: int) -> Dialog:
    return read_dialog(path)


def archived(memory: Memory, wanted: str) -> tuple[Dialog, Path]:
    """An earlier dialog, and the copy that it was read from. Raises `DialogdError`, `OSError`."""
    path = memory.dialog_path(wanted)
    status = path.stat()
    return _parsed(path, status.st_mtime_ns, status.st_size), path


def _history(memory: Memory, wanted: Wanted, offset: int, host: str, own: Path) -> str:
    """Raises `BadInput` for a time that is none."""
    moment = since(wanted.since, datetime.now(UTC), local)
    values: dict[str, Any] = {**asdict(wanted), "offset": offset, "step": LISTED, "own": str(own)}
    values["query"] = urlencode({name: value for name, value in asdict(wanted).items() if value})
    if wanted.q:
        memory.dialogs(0)
        hits = memory.search(wanted.q, agent=wanted.agent, since=moment, limit=LISTED + 1, offset=offset)
        pieces = [(hit, tuple(_pieces(hit))) for hit in hits[:LISTED]]
        return fragment("history", **values, hits=pieces, rows=[], more=len(hits) > LISTED)
    rows = memory.dialogs(limit=LISTED + 1, offset=offset)
    pages = _pages(Registry(memory.state).running(), host)
    shown = [(row, _cost(row), pages.get(row.file, ()) if row.state == "running" else ()) for row in rows[:LISTED]]
    return fragment("history", **values, hits=[], rows=shown, more=len(rows) > LISTED)


def _pages(running: Sequence[Running], host: str) -> Mapping[str, tuple[tuple[str, str], ...]]:
    """The agents' ids and the addresses of their pages, by the dialog's file."""
    found: dict[str, tuple[tuple[str, str], ...]] = {}
    for daemon in running:
        found[daemon.file] = (*found.get(daemon.file, ()), (daemon.id, f"http://{host}:{daemon.port}/"))
    return found


def _cost(row: Row) -> str:
    if row.usd is None:
        return "cost unknown" if row.turns else ""
    return f"{'' if row.is_exact else 'about '}{dollars(row.usd)}"


def _pieces(hit: Hit) -> Iterator[tuple[str, bool]]:
    """The snippet in pieces, each with whether it is one of the words."""
    at = 0
    for start, end in hit.spans:
        yield hit.snippet[at:start], False
        yield hit.snippet[start:end], True
        at = end
    yield hit.snippet[at:], False


def _recall(memory: Memory, question: str) -> str:
    memory.dialogs(0)  # what ended without a daemon is taken in first
    found = memory.recall(question, RECALLED) if question else []
    return fragment("recall", **asdict(Wanted(question)), decisions=found)


def _one(memory: Memory, wanted: str, start: int | None, entry: str) -> str:
    row = memory.dialog(wanted)
    dialog, _ = archived(memory, row.id)
    total = len(dialog.entries)
    place = next((index for index, one in enumerate(dialog.entries) if one.id == entry), 0)
    first = min(start if start is not None else place // ENTRIES * ENTRIES, max(total - 1, 0))
    players = cast(dialog)
    return fragment(
        "earlier",
        row=row,
        cost=_cost(row),
        decisions=memory.decisions(row.id),
        verdicts=memory.verdicts(row.id)[::-1],
        entries=[_past(one, players) for one in dialog.entries[first : first + ENTRIES]],
        first=first,
        total=total,
        older=max(0, first - ENTRIES) if first else None,
        newer=first + ENTRIES if first + ENTRIES < total else None,
        at=f"past-{entry}" if entry and dialog.entries and dialog.entries[place].id == entry else "",
    )


_ODD = {
    Condition.EDITED: "Edited after it was written; it counts as it now stands.",
    Condition.DAMAGED: "Cut or overwritten after it was written; it counts for nothing.",
    Condition.UNFINISHED: "Not finished.",
}


def _past(entry: Entry, players: Cast) -> Past:
    frame = entry.frame
    facts = {
        "tokens_in": frame.tokens_in if frame else "",
        "tokens_out": frame.tokens_out if frame else "",
        "usd": frame.usd if frame else "",
        "ms": frame.ms if frame else "",
        "model": frame.model if frame else "",
    }
    is_own = entry.by == USER and entry.name.casefold() == "user"
    return Past(
        anchor=f"past-{entry.id}",
        title=f"Turn {entry.number}" if entry.is_turn else "Note",
        name="You" if is_own else entry.name,
        tone=players.tone(entry.by),
        at=frame.at if frame else "",
        figures=tuple(figures(facts)),
        body=markdown(prose(entry.body) if frame is None else entry.body),
        marks=tuple((_words(mark), mark.value) for mark in entry.written),
        condition=_ODD.get(entry.condition, ""),
        is_struck=entry.is_struck,
    )


def _words(mark: Mark) -> str:
    return f"{mark.name.replace('_', ' ').capitalize()} {mark.ref}".strip()

"""Positions, proposals and votes of a dialog as the rows that the page shows."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import FastAPI, Query, Request
from fastapi import Path as PathField
from fastapi.responses import HTMLResponse, Response

from dialogd.agent.clock import local
from dialogd.agent.loop import Agent
from dialogd.agent.turn import aside
from dialogd.memory import Hit, Memory, Row
from dialogd.memory.index import read_dialog
from dialogd.memory.values import since
from dialogd.protocol import board, lifecycle
from dialogd.protocol.board import Position, latest, positions
from dialogd.protocol.certificate import recorded
from dialogd.protocol.marks import prose
from dialogd.protocol.model import USER, Condition, Entry, Mark
from dialogd.protocol.money import in_dollars
from dialogd.protocol.signals import Signal, signals
from dialogd.protocol.state import Dialog, Proposal
from dialogd.protocol.units import dollars
from dialogd.server import wire
from dialogd.server.page import Kept, fragment, markdown
from dialogd.server.page_entries import Cast, cast, figures
from dialogd.server.templating import safe
from dialogd.store.folders import StateDir
from dialogd.store.registry import Registry, Running
from dialogd.views.digest import MOST, away, since_turn
from dialogd.views.flow import Message, as_svg, flow
from dialogd.views.plan import draw_up, has_spoken, method
from dialogd.views.plan_page import first_screen

MOST_ROWS = 100  # rows of a table, unless all are asked for


@dataclass(frozen=True, slots=True)
class Column:
    """An agent as a column; `tone` is the class of its colour."""

    id: str
    name: str
    tone: str


@dataclass(frozen=True, slots=True)
class Cell:
    """What one agent holds of one proposal: its stance since which turn, its vote, the turn in which it signed."""

    agent: Column
    position: Position | None
    ballot: board.Cast | None
    signed: int | None


@dataclass(frozen=True, slots=True)
class BoardRow:
    """A proposal: `state` is open, approved, rejected, undecided, vetoed, superseded, replaced or cleared.

    `turn` is where it was made, `decided` the decision's turn or None; `made`, `how` and `why` say what was decided,
    how and why, and what came after it.
    """

    ref: str
    text: str
    by: str
    turn: int
    is_text: bool
    state: str
    made: str
    how: str
    why: str
    decided: int | None
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """An agent's stance that is new or another than `before` ("" for a first one)."""

    position: Position
    before: str
    agent: Column


@dataclass(frozen=True, slots=True)
class Board:
    """What the panel shows; `rows` and `changes` are newest first, `left_out` says how many of each are not here.

    `weak` is what words alone suggest, None before two agents have spoken.
    """

    columns: tuple[Column, ...]
    rows: tuple[BoardRow, ...]
    changes: tuple[Changed, ...]
    left_out: tuple[int, int]
    flagged: int
    weak: Mapping[str, str | int | float] | None
    noticed: tuple[Signal, ...]


def board_view(dialog: Dialog, most: int | None = MOST_ROWS) -> Board:
    """The board of a dialog; at most so many rows of each table, None for all."""
    ledger = positions(dialog)
    rows = tuple(_rows(dialog, ledger))[::-1]
    changes = tuple(_changes(dialog, ledger))[::-1]
    kept = len(rows) if most is None else most, len(changes) if most is None else most
    return Board(
        columns=columns(dialog, (position.agent for position in ledger)),
        rows=rows[: kept[0]],
        changes=changes[: kept[1]],
        left_out=(max(0, len(rows) - kept[0]), max(0, len(changes) - kept[1])),
        flagged=sum(change.position.flagged for change in changes),
        weak=lifecycle.assessed(dialog),
        noticed=signals(dialog) if dialog.state.outcome is None else (),  # their advice is for those who go on
    )


def columns(dialog: Dialog, others: Iterable[str]) -> tuple[Column, ...]:
    """The agents of the header in its order, then others that took a position."""
    players = cast(dialog)
    everybody = dict.fromkeys((*(agent.id for agent in dialog.header.agents), *others))
    return tuple(Column(who, players.name(who), players.tone(who)) for who in everybody)


def _rows(dialog: Dialog, ledger: Sequence[Position]) -> Iterator[BoardRow]:
    """Every proposal, oldest first."""
    agents = columns(dialog, (position.agent for position in ledger))
    held, decided = latest(ledger), board.by_ref(board.decisions(dialog))
    votes = _votes(dialog)
    newest = next((p.ref for p in reversed(dialog.state.proposals) if p.sha), "")
    for made in dialog.state.proposals:
        decision = decided.get(made.ref)
        signed = _signed(dialog, made, decision)
        yield BoardRow(
            ref=made.ref,
            text=made.text,
            by=made.by,
            turn=turn_of(made.entry),
            is_text=bool(made.sha),
            state=_state(dialog, made, decision, newest),
            made=decision.made if decision else "",
            how=method(decision.method) if decision else "",
            why="; ".join(filter(None, (decision.evidence, decision.reason, decision.superseded))) if decision else "",
            decided=turn_of(decision.entry) if decision else None,
            cells=tuple(
                Cell(a, held.get((a.id, made.ref)), votes.get(made.ref, {}).get(a.id), signed.get(a.id)) for a in agents
            ),
        )


def _votes(dialog: Dialog) -> Mapping[str, Mapping[str, board.Cast]]:
    """The votes that counted, by proposal and agent. Only where there are polls: they are found by folding anew."""
    if dialog.header.rules.verdict != "vote":
        return {}
    return {made.ref: {ballot.agent: ballot for ballot in made.votes} for made in board.proposals(dialog)}


def turn_of(entry: str) -> int:
    """The turn that an entry is, or stands after."""
    head = entry.split(".", maxsplit=1)[0]
    return int(head) if head.isdigit() else 0


def _signed(dialog: Dialog, made: Proposal, decision: board.Decided | None) -> dict[str, int]:
    """Who signed the text, in which turn."""
    standing = dialog.state.standing
    if not made.sha:
        return {}
    if decision is not None and decision.made == "approved":
        return dict(recorded(dialog.entries, made.ref, decision.method, decision.evidence))
    return dict(standing.signers) if standing is not None and standing.proposal.ref == made.ref else {}


def _state(dialog: Dialog, made: Proposal, decision: board.Decided | None, newest: str) -> str:
    """One word for what became of a proposal; a text goes when another takes its place, or when it is cleared."""
    if decision is not None:
        return board.in_a_word(decision)
    standing = dialog.state.standing
    if not made.sha or (standing is not None and standing.proposal.ref == made.ref):
        return "open"
    return "replaced" if made.ref != newest else "cleared"


def _changes(dialog: Dialog, ledger: Sequence[Position]) -> Iterator[Changed]:
    """Every position in order, with the one that the agent held before."""
    agents = {column.id: column for column in columns(dialog, (position.agent for position in ledger))}
    before: dict[tuple[str, str], str] = {}
    for position in ledger:
        yield Changed(position, before.get((position.agent, position.ref), ""), agents[position.agent])
        before[position.agent, position.ref] = position.stance


# -- The message flow of a dialog as the page shows it ----------------------------------------------------------------

PAGE = 40  # messages at a time


@dataclass(frozen=True, slots=True)
class FlowQuery:
    """Which messages: of this agent and kind ("" for all), up to place `before` (None: the last ones)."""

    agent: str = ""
    kind: str = ""
    before: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """Messages from place `first` on, out of `total`; `older` and `newer` are what `before` is for the next ones.

    `agents` are who spoke: id and name."""

    messages: tuple[Message, ...]
    first: int
    total: int
    older: int | None
    newer: int | None
    agents: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...]
    agent: str
    kind: str

    def query(self, before: int) -> str:
        """The query of a link to other messages of the same kind."""
        return urlencode({"agent": self.agent, "kind": self.kind, "before": before})


def flow_view(dialog: Dialog, wanted: FlowQuery) -> View:
    """The messages that are wanted."""
    every = flow(dialog)
    found = [message for message in every if _takes(wanted, message)]
    end = len(found) if wanted.before is None else max(1, min(wanted.before, len(found)))
    first = max(0, end - PAGE)
    return View(
        messages=tuple(found[first:end]),
        first=first,
        total=len(found),
        older=first if first > 0 else None,
        newer=min(end + PAGE, len(found)) if end < len(found) else None,
        agents=tuple({message.from_agent: message.from_name for message in every}.items()),
        kinds=tuple(sorted({message.message_type for message in every})),
        agent=wanted.agent,
        kind=wanted.kind,
    )


def _takes(wanted: FlowQuery, message: Message) -> bool:
    named = (message.from_agent, *message.to_agent.split(", "))
    return (not wanted.agent or wanted.agent in named) and wanted.kind in ("", message.message_type)


# -- Earlier dialogs on the page --------------------------------------------------------------------------------------

LISTED = 20  # dialogs, or places found, at a time
ENTRIES = 50  # entries of one dialog at a time
RECALLED = 5  # decisions


@dataclass(frozen=True, slots=True)
class HistoryQuery:
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
        wanted = HistoryQuery(q.strip(), by.strip(), since.strip())
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


def _history(memory: Memory, wanted: HistoryQuery, offset: int, host: str, own: Path) -> str:
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
    return fragment("recall", **asdict(HistoryQuery(question)), decisions=found)


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


# -- What stands beside the conversation, as pieces of HTML -----------------------------------------------------------

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
        most = None if everything else MOST_ROWS
        return HTMLResponse(await kept.of(("positions", most), lambda dialog: _positions(dialog, most)))

    @app.get("/page/flow", response_class=HTMLResponse)
    async def flow(
        who: Annotated[str, Query(alias="agent", max_length=64, description="only messages from or to this one")] = "",
        kind: Annotated[str, Query(max_length=64, description="only messages of this kind, such as PROPOSAL")] = "",
        before: Annotated[int | None, Query(ge=0, description="only the messages before this place")] = None,
    ) -> HTMLResponse:
        """Who said what to whom: the latest messages as a picture, and as a table."""
        wanted = FlowQuery(who, kind, before)
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
    return fragment("positions", board=board_view(dialog, most))


def _flow(dialog: Dialog, wanted: FlowQuery) -> str:
    view = flow_view(dialog, wanted)
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

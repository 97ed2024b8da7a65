"""The page: its entries and state, the panels beside the conversation, downloads, and the page about the API."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import FastAPI, Query, Request
from fastapi import Path as PathField
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from pydantic import BaseModel, Field

from dialogd import person
from dialogd.agent.loop import Agent
from dialogd.agent.turn import in_thread
from dialogd.errors import DialogdError, Refused
from dialogd.memory import DialogRow, Memory
from dialogd.memory.records import read_dialog
from dialogd.memory.records import since as since_then
from dialogd.protocol import board
from dialogd.protocol.certificate import recorded
from dialogd.protocol.model import USER, turn_number
from dialogd.protocol.state import Dialog, Proposal
from dialogd.protocol.text import dollars, in_words, many
from dialogd.server import wire
from dialogd.server.page_entries import (
    LAST,
    MOST,
    around,
    as_written,
    cast,
    found,
    fragment,
    standings_shown,
    state_of,
    template,
    window,
)
from dialogd.server.page_state import (
    Neighbours,
    cost,
    end_of_build,
    page_state,
    repository,
    takeover_piece,
    task_piece,
    tasks_piece,
)
from dialogd.server.serving import PAGE_HEADERS, READING_HEADERS, serve_parts
from dialogd.store.disk import StateDir
from dialogd.store.registry import home_port
from dialogd.views.builds import PATCHES, Look, look_into
from dialogd.views.documents import first_screen
from dialogd.views.flow import MOST as NEWS
from dialogd.views.flow import Message, away, flow, since_turn
from dialogd.views.markup import safe
from dialogd.views.plan import YOU, Plan, has_spoken, is_for, method, next_steps, without_marks
from dialogd.views.words import IN_A_LIST, by_name, called

_STATIC = Path(__file__).parent / "static"


def page_routes(app: FastAPI, agent: Agent, health: Callable[[], wire.Health], state_dir: StateDir) -> None:
    """Serve the page of this agent's dialog; `state_dir` is where its cast and earlier dialogs are kept."""
    neighbours = Neighbours(agent)

    @app.get("/", response_class=HTMLResponse)
    async def page() -> Response:
        """The dialog as a page: watch it, speak, step in, take the result with you."""
        state = page_state(agent, health(), state_dir, {}, await _read(agent))
        # In a thread: rendering a long dialog for the first time takes a second.
        text = await asyncio.to_thread(render_page, state, agent.dialog)
        return HTMLResponse(text, headers=PAGE_HEADERS)

    @app.get("/page/state")
    async def state() -> dict[str, Any]:
        """Where the dialog stands, with all its agents, in one answer."""
        problem = await _read(agent)
        return page_state(agent, health(), state_dir, await neighbours.healths(), problem)

    @app.get("/page/entries")
    async def entries(
        after: Annotated[int | None, Query(ge=-1, description="entries behind this index")] = None,
        before: Annotated[int | None, Query(ge=0, description="entries before this index")] = None,
        at: Annotated[
            str, Query(max_length=24, description="entries around the one of this id, such as 7 or 4.1")
        ] = "",
        limit: Annotated[int, Query(ge=1, le=MOST, description="how many at most")] = LAST,
    ) -> dict[str, Any]:
        """Entries of the dialog as HTML: the last ones, those after or before an index, or around an entry."""
        await _read(agent)
        if at:
            return await asyncio.to_thread(around, agent.dialog, at, limit)
        return await asyncio.to_thread(window, agent.dialog, after, before, limit)

    @app.get("/page/writing")
    async def writing(by: Annotated[str, Query(max_length=64, description="the agent's id")]) -> dict[str, Any]:
        """The turn that an agent writes at this moment, as HTML, as far as it has come; empty where it writes none."""
        written, dialog = agent.hub.written(by), agent.dialog
        if written is None or dialog is None:
            return {"by": by, "turn": 0, "html": ""}
        return await asyncio.to_thread(as_written, dialog, by, *written)

    @app.get("/page/standings")
    async def standings() -> dict[str, Any]:
        """Who stands behind which proposal now, by its number."""
        await _read(agent)
        return await asyncio.to_thread(standings_shown, agent.dialog)

    @app.get("/page/find")
    async def find(
        words: Annotated[str, Query(max_length=200, description="what to look for, in any case")],
        limit: Annotated[int, Query(ge=1, le=MOST, description="how many at most")] = MOST,
    ) -> dict[str, Any]:
        """Where these words stand in this dialog, from its beginning on."""
        await _read(agent)
        return await asyncio.to_thread(found, agent.dialog, words, limit)

    _part_routes(app, agent, state_dir)
    _panel_routes(app, agent)
    _history_routes(app, agent, Memory(state_dir.root))


def render_page(state: dict[str, Any], dialog: Dialog | None) -> str:
    """The initial page: the dialog's state and last entries, readable without scripts."""
    shown = window(dialog, None, None, LAST)
    last = next((entry["index"] for entry in reversed(shown["entries"]) if entry["condition"] != "unfinished"), -1)
    return template("page.html", state=state, shown=shown, last=last, safe=safe)


async def _read(agent: Agent) -> str:
    """Read the file; returns why it cannot be read, or ""."""
    try:
        await agent.look()
    except DialogdError as error:
        return f"{error}; {error.fix}"
    except OSError as error:
        return f"{error.strerror}: {agent.file.path}"
    return ""


def render_api(schema: dict[str, Any]) -> str:
    """The API as a page, from its OpenAPI description; it fetches nothing from outside."""

    def fields(about: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """The query parameters and body fields of one route: name, and type with description."""
        body = re.search(r"#/components/schemas/(\w+)", str(about.get("requestBody", "")))
        model = schema["components"]["schemas"][body[1]] if body else {}
        query = [(p["name"], {**p["schema"], **p}) for p in about.get("parameters", ())]
        return [*query, *model.get("properties", {}).items()]

    return template("api.html", schema=schema, fields=fields)


# -- Its scripts and styles; Home -------------------------------------------------------------------------------------


def _part_routes(app: FastAPI, agent: Agent, state_dir: StateDir) -> None:
    @app.get("/page/probe.js", include_in_schema=False)
    async def probe(request: Request) -> Response:
        """The worker that asks which of the other daemons answer, allowed to call those that there are now."""
        await _read(agent)
        headers = probe_policy(request.headers["host"], list(agent.peers.of(agent.dialog).values()))
        return FileResponse(_STATIC / "probe.js", media_type="text/javascript", headers=headers)

    serve_parts(app, "page", _STATIC)

    @app.get("/page/home")
    async def home(
        request: Request,
        at: Annotated[str, Query(pattern="^[\\w=-]{0,90}$", description="`new`, or `build=ID`: one of its forms")] = "",
    ) -> Response:
        """Lead to Home, where all dialogs are found and new ones begun; start it where it does not run."""
        there = home_port(state_dir) or await _home(state_dir)
        name = request.headers["host"].rpartition(":")[0]
        return RedirectResponse(f"http://{name}:{there}/{f'#{at}' if at else ''}", 303)


def probe_policy(host: str, others: Sequence[str]) -> dict[str, str]:
    """The headers of the script that finds out which other daemons live: it may call these, and do nothing else.

    `host` is the request's own Host, `others` the addresses of the other daemons. A page's policy is fixed when it is
    opened; this script is fetched anew whenever the daemons are others, so that no page has to be allowed all ports.
    """
    name = host.rpartition(":")[0]
    ports = [url.rpartition(":")[2] for url in others]
    known = " ".join(f"http://{name}:{port}" for port in ports if port.isascii() and port.isdigit()) or "'none'"
    return {"content-security-policy": f"default-src 'none'; connect-src {known}"}


async def _home(state_dir: StateDir) -> int:
    """Start Home, as `dialogd open` does, and give its port. Raises `Refused` with what it said where it did not."""
    words = (sys.executable, "-P", "-m", "dialogd", "open", "--no-browser")
    variables, none = {**os.environ, "DIALOGD_STATE_DIR": str(state_dir.root)}, asyncio.subprocess.DEVNULL
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, env=variables, stdin=none, stdout=none, stderr=pipe)
    _, said = await process.communicate()
    port = home_port(state_dir)
    if port is None:
        raise Refused(f"Home did not start: {said.decode(errors='replace').strip()}", fix="dialogd open")
    return port


# -- The panels beside the conversation: positions, flow, tasks, digest, result ---------------------------------------

MOST_ROWS = 100  # rows of a table
PAGE = 40  # messages at a time
MOST_OPEN = 8  # open points on the card of the end

# What the digest can go back to: what `since` is, and in words.
_SPANS = (("15m", "the last 15 minutes"), ("1h", "the last hour"), ("8h", "the last 8 hours"), ("1d", "the last day"))


def _panel_routes(app: FastAPI, agent: Agent) -> None:
    @cache
    def look(limit: int = 0) -> Look:
        return look_into(agent.builder.flags.repo, limit)

    async def piece(make: Callable[[Dialog], str]) -> HTMLResponse:
        """A piece of the current dialog, made in a thread; a short text without a dialog."""
        dialog = await agent.look()
        if dialog is None:
            return HTMLResponse(fragment("none", file=str(agent.file.path)))
        return HTMLResponse(await asyncio.to_thread(make, dialog))

    @app.get("/page/positions", response_class=HTMLResponse)
    async def positions() -> HTMLResponse:
        """Who supports which proposal, since when and why; votes, signatures, decisions."""
        return await piece(positions_piece)

    @app.get("/page/flow", response_class=HTMLResponse)
    async def flow(
        who: Annotated[str, Query(alias="agent", max_length=64, description="only messages from or to this one")] = "",
        kind: Annotated[str, Query(max_length=64, description="only messages of this kind, such as PROPOSAL")] = "",
        before: Annotated[int | None, Query(ge=0, description="only the messages before this place")] = None,
    ) -> HTMLResponse:
        """Who said what to whom: the latest messages as a picture, and as a table."""
        return await piece(lambda dialog: flow_piece(dialog, who, kind, before))

    @app.get("/page/tasks", response_class=HTMLResponse)
    async def tasks() -> HTMLResponse:
        """The tasks of a build: how each stands, and what the person can say of it."""
        return await piece(lambda dialog: tasks_piece(dialog, look()))

    @app.get("/page/tasks/{number}", response_class=HTMLResponse)
    async def task(
        number: Annotated[int, PathField(ge=1, le=999_999, description="the number of a task")],
    ) -> HTMLResponse:
        """One task: its last review, what it changes as git tells it, what happened to it."""
        return await piece(lambda dialog: task_piece(dialog, number, look(), look(PATCHES)))

    @app.get("/page/takeover", response_class=HTMLResponse)
    async def takeover(
        onto: Annotated[str, Query(max_length=250, description="a branch; empty: the one the build began from")] = "",
    ) -> HTMLResponse:
        """What merging a build's approved tasks would do, or, where the branch has moved, carrying them there."""
        return await piece(lambda dialog: takeover_piece(agent.file, repository(dialog, agent), onto))

    @app.get("/page/clean", response_class=HTMLResponse)
    async def clean() -> HTMLResponse:
        """What cleaning up behind a build's merged and dropped tasks would remove, and what would stay."""
        return await piece(
            lambda dialog: fragment("clean", found=[*person.leftovers(dialog, repository(dialog, agent))[1]])
        )

    @app.get("/page/away", response_class=HTMLResponse)
    async def digest(
        since: Annotated[str, Query(max_length=40, description="a turn (7) or how long ago (2h); 0: everything")] = "0",
        seen: Annotated[int, Query(ge=0, description="the turn that the reader last saw, to choose it again")] = 0,
    ) -> HTMLResponse:
        """What was decided, proposed, conceded and asked since then."""
        return await piece(lambda dialog: away_piece(dialog, since, seen, datetime.now(UTC).isoformat()))

    @app.get("/page/result", response_class=HTMLResponse)
    async def result() -> HTMLResponse:
        """The result: outcome, agreed text, who signed or voted how, the plan."""
        return await piece(lambda dialog: result_piece(dialog, str(agent.file.path)))

    @app.get("/page/end", response_class=HTMLResponse)
    async def end() -> HTMLResponse:
        """How the dialog ended: what was decided, who stands behind it, what is open, what it took."""
        return await piece(lambda dialog: end_piece(dialog, str(agent.file.path)))


# The words of the ledger, and those that people read at once.
_STANCES = {board.FOR: "for", board.AGAINST: "against", board.OPEN: "abstains", board.CONCEDED: "concedes"}
_VOTES = {"approve": "for", "reject": "against", "abstain": "neither"}
_STATES = {"unchosen": "not chosen", "vetoed": "ruled out by you", "cleared": "objected to", "undecided": "left open"}


def positions_piece(dialog: Dialog) -> str:
    """Proposals with who stands where, and changes of mind: the latest ones, newest first."""
    ledger = board.positions(dialog)
    rows = list(_rows(dialog, ledger))[::-1]
    return fragment(
        "positions",
        players=cast(dialog),
        agents=list(dict.fromkeys((*(agent.id for agent in dialog.header.agents), *(p.agent for p in ledger)))),
        rows=rows[:MOST_ROWS],
        changes=[*board.changes(ledger)][::-1][:MOST_ROWS],
        left_out=max(0, len(rows) - MOST_ROWS),
        stances=_STANCES,
        votes=_VOTES,
    )


def _rows(dialog: Dialog, ledger: Sequence[board.Position]) -> Iterator[dict[str, Any]]:
    """Every proposal, oldest first, with its state and each agent's position."""
    decided, held = board.by_ref(board.decisions(dialog)), board.latest(ledger)
    is_chosen = any(one.made == "approved" for one in decided.values())
    # Only where there are polls: the votes are found by folding anew.
    polls = board.proposals(dialog) if dialog.header.rules.verdict == "vote" else ()
    votes = {poll.ref: {ballot.agent: ballot for ballot in poll.votes} for poll in polls}
    for made in dialog.state.table.proposals:
        decision, state = decided.get(made.ref), state_of(dialog, made) or "open"
        if state != "replaced" and dialog.state.outcome is not None:
            state = "unchosen" if is_chosen else "undecided"
        state = board.in_a_word(decision) or state
        yield {
            "proposal": made,
            "turn": turn_number(made.entry),
            "state": state,
            "words": "agreed" if made.sha and state == "approved" else _STATES.get(state, state),
            "decision": decision,
            "decided": turn_number(decision.entry) if decision else None,
            "how": method(decision.method) if decision else "",
            "why": _why(decision, cast(dialog).name) if decision else "",
            "positions": {agent: position for (agent, ref), position in held.items() if ref == made.ref},
            "votes": votes.get(made.ref, {}),
            "signed": _signed(dialog, made, decision),
        }


def _why(decision: board.Decided, name: Callable[[str], str]) -> str:
    """What stands behind a decision, without what the list of signatures above it says already."""
    evidence, reason = by_name(decision.evidence, name), decision.reason
    if decision.method == "mutual":
        evidence, reason = evidence.partition("; ")[2], ""
    return "; ".join(filter(None, (evidence, reason, decision.superseded)))


def _signed(dialog: Dialog, made: Proposal, decision: board.Decided | None) -> dict[str, int]:
    """Who signed the text, in which turn."""
    standing = dialog.state.table.standing
    if not made.sha:
        return {}
    if decision is not None and decision.made == "approved":
        return dict(recorded(dialog.entries, made.ref, decision.method, decision.evidence))
    return dict(standing.signers) if standing is not None and standing.proposal.ref == made.ref else {}


def flow_piece(dialog: Dialog, agent: str, kind: str, before: int | None) -> str:
    """The messages of this agent and kind ("" for all) up to place `before` (None: the last ones)."""
    every, seats = flow(dialog), cast(dialog).seats

    def is_wanted(message: Message) -> bool:
        named = (message.from_agent, *message.to_agent.split(", "))
        return (not agent or agent in named) and kind in ("", message.message_type)

    wanted = [message for message in every if is_wanted(message)]
    end = len(wanted) if before is None else max(1, min(before, len(wanted)))
    first = max(0, end - PAGE)
    names = {message.from_agent: message.from_name for message in every}
    return fragment(
        "flow",
        messages=wanted[first:end],
        first=first,
        total=len(wanted),
        older=first or None,
        newer=min(end + PAGE, len(wanted)) if end < len(wanted) else None,
        agents=dict(sorted(names.items(), key=lambda one: seats.get(one[0], len(seats)))),
        kinds=sorted({message.message_type for message in every}, key=called),
        called=called,
        agent=agent,
        kind=kind,
        query=urlencode({"agent": agent, "kind": kind}),
    )


def away_piece(dialog: Dialog, since: str, seen: int, now: str) -> str:
    """What happened since then. Raises `BadInput` for a `since` that cannot be read."""
    zone = datetime.astimezone
    news = away(dialog, since_turn(dialog, since, now, zone), zone)
    spans = {value: words for value, words in _SPANS if value == since or since_turn(dialog, value, now, zone) > 0}
    looked = {str(seen): f"I last looked (turn {seen})"} if seen else {}
    return fragment(
        "away",
        news=news,
        spent=cost(news.spent),
        most=NEWS,
        choices={since: f"turn {since}" if since.isdigit() else since, **looked, **spans, "0": "the beginning"},
        chosen=since,
    )


def result_piece(dialog: Dialog, path: str) -> str:
    """Outcome, the agreed text and who supports it, decisions, downloads, the plan's first screen, how to verify it."""
    if not has_spoken(dialog):
        return fragment("silent", query="")
    plan = Plan(dialog, path)
    return fragment(
        "result",
        plan=plan,
        page=first_screen(plan),
        approved=bool(dialog.state.approved),
        method=method,
        command=lambda name: f"dialogd {name} {shlex.quote(path)}",
        query="",
    )


# What to do about an end without a result, by its kind.
_ADVICE = {
    "deadlock": "Make the experiment, and tell them what came of it: “Go on” gives them your words and more turns.",
    "turns": "“Go on” gives them more turns, and what you tell them.",
    "time": "“Go on” starts the clock anew.",
    "budget": "“Go on” with a higher budget lets them continue.",
    "size": "The file may not grow any further. Raise its limit (characters of the file, under More), then “Go on”; or"
    " begin a new dialog with this result.",
    "error": "Mend what failed, then “Go on”: they are asked again.",
    "stopped": "Everything that was said stands in the file, and on Home. A word of yours opens the dialog again.",
}


def end_piece(dialog: Dialog, path: str) -> str:
    """The card of a dialog that has ended: the decision first, then who stands behind it and what is left."""
    plan, outcome, rules = Plan(dialog, path, person=YOU), dialog.state.outcome, dialog.state.build.rules
    failed = dialog.entries if outcome is not None and outcome.failed else ()
    told = {
        "plan": plan,
        "figures": _figures(plan),
        # What each agent failed with last, and what mends it.
        "failures": {one[0]: one for entry in failed for one in entry.failures}.values(),
        "advice": _ADVICE.get(outcome.kind, "") if outcome is not None else "",
        "players": cast(dialog),
    }
    if rules is not None:
        return end_of_build(dialog, rules, **told)
    agreed = None if plan.agreed is not None and plan.agreed.is_earlier else plan.agreed
    text = agreed or plan.on_the_table
    reserved = {(signer.agent, signer.reservation) for signer in text.signers} if text is not None else set()
    has_sides = text is None and has_spoken(dialog)
    has_steps = plan.is_deadlock or (agreed is not None and next_steps(agreed.text))
    above = [said for said in plan.questions if said in plan.crux or is_for(said)] if has_sides else []
    return fragment(
        "end",
        **told,
        agreed=agreed,
        text=text,
        said=without_marks(text.text) if text is not None else "",
        others=[d for d in plan.decisions if text is None or d.ref != text.ref],
        dissent=[said for said in plan.dissent if (said.by, said.text) not in reserved],
        sides=plan.views if has_sides else (),
        open=[said for said in plan.questions if said not in above][:MOST_OPEN],
        steps=() if has_steps else plan.steps,
        build=dialog.id if agreed is not None else "",
        source=without_marks(text.text) if text is not None else first_screen(plan),
        kinds=IN_A_LIST,
        method=method,
        is_for=is_for,
    )


def _figures(plan: Plan) -> str:
    """Turns, time and cost, in one line."""
    cost, tokens = plan.metrics["cost"]["usd"], plan.metrics["tokens"]
    parts = [
        many(plan.dialog.state.number, "turn"),
        in_words(round(plan.seconds)) if plan.seconds else "",
        dollars(cost) if cost else "",
        f"{tokens['in'] + tokens['out']:,} tokens" if tokens["in"] else "",
    ]
    return " · ".join(filter(None, parts))


# -- Earlier dialogs --------------------------------------------------------------------------------------------------

LISTED = 20  # dialogs, or places found, at a time
RECALLED = 5  # decisions

# FastAPI names the path's own parameters; this says what they mean.
Id = PathField(description="the id of an earlier dialog, or the beginning of one")


class TurnedOut(BaseModel, extra="forbid"):
    """How what an earlier dialog decided turned out."""

    outcome: Literal["worked", "failed"]
    why: str = Field(description="in a sentence", min_length=1, max_length=2000)


def _history_routes(app: FastAPI, agent: Agent, memory: Memory) -> None:
    @app.get("/page/history", response_class=HTMLResponse)
    async def history(
        q: Annotated[str, Query(max_length=500, description="words to search for; empty: all dialogs")] = "",
        by: Annotated[str, Query(alias="agent", max_length=64, description="only what this one wrote; USER: you")] = "",
        since: Annotated[str, Query(max_length=40, description="not older than: 2h, 7d, yesterday, 2026-11-01")] = "",
        offset: Annotated[int, Query(ge=0, le=1_000_000, description="how many to leave out")] = 0,
    ) -> HTMLResponse:
        """Earlier dialogs, newest first; or the places where the words were said, filtered by agent and time."""
        wanted = {"q": q.strip(), "agent": by.strip(), "since": since.strip()}
        return HTMLResponse(await asyncio.to_thread(_history, memory, wanted, offset, str(agent.file.path)))

    @app.get("/page/recall", response_class=HTMLResponse)
    async def recall(
        q: Annotated[str, Query(max_length=500, description="a question: what did we decide about X?")] = "",
    ) -> HTMLResponse:
        """Past decisions that answer a question, with how they turned out."""
        return HTMLResponse(await asyncio.to_thread(_recall, memory, q.strip()))

    @app.get("/page/history/{dialog}", response_class=HTMLResponse)
    async def earlier(dialog: Annotated[str, Id]) -> HTMLResponse:
        """An earlier dialog: how it ended, what it decided, how that turned out; and where to read it."""
        return HTMLResponse(await asyncio.to_thread(_earlier, memory, dialog))

    @app.post("/page/history/{dialog}/outcome")
    async def outcome(dialog: Annotated[str, Id], said: TurnedOut) -> dict[str, str]:
        """Remember that what a dialog decided worked, or failed, and why."""
        await asyncio.to_thread(person.alone, memory.state, "outcome")
        row = await asyncio.to_thread(memory.outcome, dialog, said.outcome, said.why)
        return {"status": "ok", "dialog": row.id, "outcome": said.outcome, "why": said.why}

    @app.get("/export/{to}", response_class=Response)
    async def download(
        to: Annotated[Literal["md", "html", "pdf", "json"], PathField(description="md, html, pdf or json")],
        earlier: Annotated[str, Query(max_length=100, description="the id of an earlier dialog; empty: this one")] = "",
    ) -> Response:
        """A dialog as one file: Markdown, HTML, PDF or JSON."""
        from dialogd.store.disk import attachments_of
        from dialogd.views.documents import FORMATS, export, file_name

        dialog, file = await agent.look(), agent.file.path
        if earlier:
            dialog, file = await asyncio.to_thread(_archived, memory, earlier)
        if dialog is None:
            raise FileNotFoundError(2, "no dialog", str(file))
        data = await in_thread(lambda: export(dialog, to, attachments=attachments_of(file)))
        how = "inline" if to == "html" else "attachment"  # the HTML can be read as it is
        headers = {**READING_HEADERS, "content-disposition": f'{how}; filename="{file_name(dialog, to)}"'}
        return Response(data, media_type=FORMATS[to], headers=headers)


def _history(memory: Memory, wanted: Mapping[str, str], offset: int, own: str) -> str:
    """Raises `BadInput` for a time that is none."""
    moment = since_then(wanted["since"], datetime.now(UTC), datetime.astimezone)
    query = urlencode({name: value for name, value in wanted.items() if value})
    values = {**wanted, "offset": offset, "step": LISTED, "own": own, "query": query, "hits": [], "rows": []}
    if wanted["q"]:
        memory.dialogs(0)
        hits = memory.search(wanted["q"], agent=wanted["agent"], since=moment, limit=LISTED + 1, offset=offset)
        return fragment("history", **{**values, "hits": hits[:LISTED]}, more=len(hits) > LISTED)
    rows = memory.dialogs(limit=LISTED + 1, offset=offset)
    return fragment("history", **{**values, "rows": rows[:LISTED]}, more=len(rows) > LISTED)


def _names(row: DialogRow) -> Mapping[str, str]:
    """What the agents of an earlier dialog are called, by id."""
    return {USER: YOU, **dict(zip(row.agents, row.names, strict=False))}


def _recall(memory: Memory, question: str) -> str:
    memory.dialogs(0)  # what ended without a daemon is taken in first
    made = memory.recall(question, RECALLED) if question else []
    names = {one.dialog: _names(memory.dialog(one.dialog)) for one in made}
    shown = {"decisions": made, "names": names, "method": method, "nothing": "" if made else memory.why_nothing()}
    return fragment("recall", q=question, agent="", since="", **shown)


def _earlier(memory: Memory, wanted: str) -> str:
    row = memory.dialog(wanted)
    return fragment(
        "earlier",
        row=row,
        decisions=memory.decisions(row.id),
        names={row.id: _names(row)},
        method=method,
        verdicts=memory.verdicts(row.id)[::-1],
    )


def _archived(memory: Memory, wanted: str) -> tuple[Dialog, Path]:
    """An earlier dialog, and the copy that it was read from. Raises `DialogdError`, `OSError`."""
    path = Path(memory.dialog(wanted).archive)
    return read_dialog(path), path

"""Dialogs as hosts of MCP servers know sessions: begun within limits, found, described, paged."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field

from dialogd.agent.prompt import is_shown, may_read
from dialogd.backends.auto import COMMANDS
from dialogd.backends.seats import Seat
from dialogd.cli import options
from dialogd.cli.create import Start
from dialogd.cli.launch import PROGRAM, begin_apart, begun, ongoing
from dialogd.cli.status import Situation
from dialogd.config import Settings
from dialogd.errors import BadInput, DialogdError, Refused
from dialogd.memory import Memory, current
from dialogd.protocol import questions
from dialogd.protocol.certificate import certify
from dialogd.protocol.lifecycle import OPEN_SESSIONS, SESSIONS, agent_state, session_state
from dialogd.protocol.marks import BESIDE
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import in_words, many, moment_of, one_line
from dialogd.store.disk import StateDir
from dialogd.templates import find as find_template
from dialogd.templates import template
from dialogd.views.flow import TEXT
from dialogd.views.plan import Plan

PAGE = 50  # messages of a page
DEFAULT_POSITION = "pair"
MOST_TURNS = 200  # that rounds of many agents come to by default

Facts = dict[str, Any]

# -- What a session is ------------------------------------------------------------------------------------------------


def state_of(one: Situation) -> str:
    """The state of a session, one of `SESSIONS`."""
    return session_state(one.dialog, one.stands().state)


def facts_of(one: Situation) -> Facts:
    """What a list of sessions says of it."""
    dialog, rules = one.dialog, one.dialog.header.rules
    began = moment_of(dialog.header.started)
    return {
        "id": dialog.id,
        "position": rules.template or DEFAULT_POSITION,
        "status": state_of(one),
        "reason": f"ended, {Plan(dialog).headline}" if dialog.state.outcome else one.stands().words,
        "agents": [
            {
                "id": agent.id,
                "role": agent.role or rules.role(agent.id).name or agent.name,
                "status": agent_state(dialog, agent.id, one.healths, one.elsewhere),
            }
            for agent in dialog.header.agents
        ],
        "startedAt": began.isoformat() if began is not None else dialog.header.started,
        "messageCount": len(dialog.entries),
        "topic": dialog.header.topic,
        "file": str(one.file),
        "page": next((f"http://localhost:{daemon.port}" for daemon in one.running), ""),
    }


def result_of(one: Situation) -> Facts:
    """The facts, with what came of it so far: the outcome, the decided text, what the person is asked."""
    outcome, decided = one.dialog.state.outcome, certify(one.dialog)
    last = next((entry for entry in reversed(one.dialog.entries) if entry.is_turn and entry.by != USER), None)
    return {
        **facts_of(one),
        "outcome": outcome.name if outcome else None,
        "decided": decided.text if decided is not None and outcome is not None else None,
        "lastTurn": _message(last) if last is not None else None,
        "questions": [] if outcome else questions.facts(one.dialog),
    }


def _message(entry: Entry) -> Facts:
    """One entry as a message."""
    return {
        "id": entry.id,
        "turn": entry.number or None,
        "from": entry.by,
        "name": entry.name,
        "type": next((mark.name for mark in entry.marks if mark.name not in (*BESIDE, "TO")), TEXT),
        "text": "" if not entry.counts else entry.body.strip("\n"),
        "marks": [str(mark) for mark in entry.marks],
        "to": list(entry.turn or ()),
        "at": entry.at,
        **({"via": entry.frame.host} if entry.frame is not None and entry.frame.host else {}),
        **({"withdrawn": True} if not entry.counts else {}),
    }


def history(dialog: Dialog, agent: str, page: int, reader: str = "") -> Facts:
    """The messages of a page, counted from 1, or from -1 at the end; of one agent where one is named.

    `reader` is the agent that reads: it is shown what its prompt may hold, "" for the person. Raises `BadInput`.
    """
    called = {name.casefold(): one.id for one in dialog.everybody for name in (one.name, one.id)}
    who = {"": "", "user": USER, "system": SYSTEM, "all": "", **called}.get(agent.strip().casefold())
    if who is None:
        known = ", ".join([*(one.id for one in dialog.everybody), USER])
        raise BadInput(f"nobody called {agent[:60]!r} takes part", fix=f"name one of: {known}")
    said = [e for e in dialog.entries if e.condition is not Condition.DAMAGED and (not who or e.by == who)]
    if reader:
        said = [e for e in said if may_read(dialog, e, reader) and is_shown(dialog, e.id, reader)]
    pages = max(-(-len(said) // PAGE), 1)
    number = page if page >= 0 else pages + 1 + page
    if not 1 <= number <= pages:
        what = f"there is no page {page}: there {'is' if pages == 1 else 'are'} {many(pages, 'page')}"
        raise BadInput(what, fix=f"name one from 1 to {pages}, or -1 for the last")
    shown = said[(number - 1) * PAGE : number * PAGE]
    more = {"next": number + 1} if number < pages else {}
    return {"session": dialog.id, "page": number, "pages": pages, "messages": [_message(e) for e in shown], **more}


# -- Which sessions there are -----------------------------------------------------------------------------------------


def at(settings: Settings, file: Path) -> Situation:
    """The session in one file. Raises what reading it raises."""
    dialog = options.dialog_at(options.log_of(settings, file))
    is_starting = dict(begun(StateDir(settings.state_dir))).get(file, False)
    return Situation.of(settings, file, dialog, is_starting=is_starting)


def is_path(wanted: str) -> bool:
    """True for what names a session by its file."""
    return wanted.strip().endswith(".md") or os.sep in wanted


def find(settings: Settings, wanted: str) -> Situation:
    """The session of that id, the beginning of one, or the path of its file; "" where only one is open.

    Also an ended one of the archive. Raises `BadInput` where there is none, or several are meant, and for a file that
    is no session known here and lies outside the folder that the server works in.
    """
    name = wanted.strip()
    if is_path(name):
        file = Path(os.path.normpath(Path.cwd() / Path(name).expanduser()))
        if not file.resolve().is_relative_to(Path.cwd().resolve()) and file not in {
            settings.file, *dict(begun(StateDir(settings.state_dir))), *(one.file for one in ongoing(settings))
        }:  # fmt: skip
            what = f"{name[:200]} is no session known here, and outside {Path.cwd()}"
            raise BadInput(what, fix="name its id: sessions_list")
        return at(settings, file)
    going = ongoing(settings)
    fits = [one for one in going if (one.dialog.id.startswith(name) if name else not one.dialog.state.outcome)]
    exact = [one for one in fits if one.dialog.id == name] or fits
    if len(exact) == 1:
        return exact[0]
    known = ", ".join(one.dialog.id for one in going[:10]) or "none: begin one with `ask`"
    if exact or not name:
        what = f"{wanted!r} means several sessions" if exact and name else f"{many(len(exact), 'session')} are open"
        raise BadInput(what, fix=f"name one of: {known}")
    try:
        return Situation.of(settings, *current(Memory(settings.state_dir).dialog(name)))
    except BadInput:
        raise BadInput(f"there is no session {name[:60]!r}", fix=f"name one of: {known}") from None


def sessions(settings: Settings, wanted: Mapping[str, str], limit: int) -> list[Facts]:
    """The facts of the sessions that fit, newest first, those that have ended behind the others. Raises `BadInput`."""
    status = wanted.get("status", "").strip().lower()
    if status and status not in (*SESSIONS, "open", "all"):
        raise BadInput(f"no session is ever {status[:60]!r}", fix=f"name one of: open, {', '.join(SESSIONS)}")
    found = sorted(map(facts_of, ongoing(settings)), key=lambda facts: str(facts["startedAt"]), reverse=True)
    known = {facts["id"] for facts in found}
    for row in Memory(settings.state_dir).dialogs(limit + len(found)) if status != "open" else ():
        if row.archive and row.id not in known:
            with suppress(DialogdError, OSError):
                found.append(facts_of(Situation.of(settings, *current(row))))

    def fits(facts: Mapping[str, Any]) -> bool:
        text, agent = wanted.get("topic", "").casefold(), wanted.get("agent", "").casefold()
        return (
            (status in ("", "all", facts["status"]) or (status == "open" and facts["status"] in OPEN_SESSIONS))
            and wanted.get("position", "").casefold() in ("", facts["position"])
            and text in one_line(facts["topic"], 1_000).casefold()
            and (not agent or any(agent in (a["id"].casefold(), a["role"].casefold()) for a in facts["agents"]))
        )

    return [facts for facts in found if fits(facts)][:limit]


# -- Beginning one: `dialogd run` apart from the program that asked for it, within limits -----------------------------


class Limits(BaseModel, extra="forbid", frozen=True):
    """When the session ends at the latest."""

    max_agents: Annotated[int | None, Field(ge=1)] = None
    max_turns: Annotated[int | None, Field(ge=1)] = None
    max_rounds: Annotated[int | None, Field(ge=1)] = None
    max_time: Annotated[str | None, Field(description="of it all: 10m")] = None
    timeout: Annotated[str | None, Field(description="of one reply: 90s")] = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    budget: Annotated[str | None, Field(description="$2.00, 200k tokens")] = None


NO_LIMITS = Limits()


def begin(settings: Settings, asked: Start, limits: Limits, project: Path | None = None, *, tools: bool = True) -> Path:
    """Begin the session, and return the dialog's file once it is written. Raises `DialogdError`.

    Its process belongs to nobody: it goes on when the program that asked ends, and ends with the dialog.
    """
    context = [str(inside(path)) for path in asked.context or ()]
    start = replace(asked, context=context or None, **_limits(settings, limits, asked.template))
    if start.template and find_template(start.template).is_by_path:
        inside(start.template)
    seats, most = start.seats(), min(settings.session_max_agents, limits.max_agents or settings.session_max_agents)
    if len(seats) > most:
        raise Refused(
            f"{len(seats)} agents are wanted; {most} may take part",
            fix=f"name at most {most} agents, or have SESSION_MAX_AGENTS set higher",
        )
    for seat in seats:
        _harmless(seat)
    variables = {"DIALOGD_PROJECT": str(project)} if project else {}
    variables |= {} if tools else {"DIALOGD_TOOL_CALLS": "0"}
    return begin_apart(StateDir(settings.state_dir), start.words(), variables, given=start.question or "")


def inside(path: str) -> Path:
    """The path in full. Raises `BadInput` for one outside the folder that the server works in."""
    here = Path.cwd().resolve()
    whole = (here / Path(path).expanduser()).resolve()
    if not whole.is_relative_to(here):
        fix = "name a path in the folder that this server was started in"
        raise BadInput(f"{path[:200]} is outside {here}", fix=fix)
    return whole


def _harmless(seat: Seat) -> None:
    """Refuse a seat that would run a program, knock at a session, or read a folder, that the caller itself may not."""
    if seat.backend.partition(":")[0] in COMMANDS:
        raise Refused(
            f"{seat.id}: `{seat.backend}` runs a program, which no tool call may choose",
            fix="name a service or a coding agent, such as claude or codex; in a terminal `dialogd run` takes commands",
        )
    if seat.session:
        raise Refused(
            f"{seat.id}: {seat.session[:60]} is a session that was not asked",
            fix="name `live`; a session takes that seat itself: dialogd live join",
        )
    if seat.project:
        inside(seat.project)


def _limits(settings: Settings, limits: Limits, position: str | None) -> dict[str, Any]:
    """The options that limit the dialog. Raises `BadInput` for what cannot be read, `Refused` for what is too much."""
    most, longest = settings.session_max_messages, settings.session_max_time
    if limits.max_turns is not None and limits.max_turns > most:
        raise Refused(
            f"{limits.max_turns} turns are wanted; {most} messages are allowed",
            fix=f"set max_turns to {most} or less, or have SESSION_MAX_MESSAGES set higher",
        )
    if limits.max_time is not None and options.duration(limits.max_time, "max_time") > longest:
        raise Refused(
            f"{limits.max_time} is longer than a session may take: {in_words(longest)}",
            fix="set max_time lower, or have SESSION_MAX_TIME set higher",
        )
    if limits.timeout is not None:
        options.duration(limits.timeout, "timeout")
    usual = template(position).terms.matter.max_turns or MOST_TURNS
    usual_timeout = None if settings.source("agent_timeout") == "default" else f"{settings.agent_timeout:g} seconds"
    tokens = f"{limits.max_tokens} tokens" if limits.max_tokens is not None else ""
    return {
        "max_turns": limits.max_turns or (most if most < usual else None),
        "max_rounds": limits.max_rounds,
        "max_time": limits.max_time or f"{longest:g} seconds",
        "timeout": limits.timeout or usual_timeout,
        "budget": ", ".join(filter(None, (limits.budget, tokens))) or f"{settings.session_max_tokens} tokens",
    }


# -- How fast a program may speak --------------------------------------------------------------------------------------

WINDOW = 60.0  # seconds that are looked back
FREE, MOST = 10, 30  # messages of programs in that time: from then on slowed; from then on refused
SLOWEST = 5.0  # seconds


def pause(entries: Sequence[Entry], now: datetime) -> float | None:
    """The seconds to wait before one more message of a program is written; None where it is refused. Pure."""
    times = [moment_of(entry.at) for entry in entries if entry.frame is not None and entry.frame.host]
    count = sum(time is not None and (now - time).total_seconds() <= WINDOW for time in times)
    return None if count >= MOST else max(0.0, SLOWEST * (count + 1 - FREE) / (MOST - FREE))


# -- What is left to the command line ---------------------------------------------------------------------------------


def result_of_command(*words: str) -> tuple[int, str, str]:
    """Run `dialogd WORDS` to its end: exit code, stdout, stderr. A process of its own: stdout may be the protocol's."""
    done = subprocess.run(
        [*PROGRAM, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    return done.returncode, done.stdout, done.stderr

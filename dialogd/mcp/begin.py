"""Beginning a session: `dialogd run` apart from the program that asked for it, within limits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from dialogd.backends.auto import COMMANDS
from dialogd.backends.seats import Seat
from dialogd.cli import options
from dialogd.cli.create import SEATS, Start, listed
from dialogd.cli.launch import run_apart
from dialogd.config import Settings
from dialogd.errors import BadInput, Refused
from dialogd.protocol.text import in_words, is_blank
from dialogd.store.folders import StateDir
from dialogd.templates.library import find, names, template

LONGEST_PATH = 1_000  # characters
MOST_TURNS = 200  # that rounds of many agents come to by default


class Limits(BaseModel):
    """When the session ends at the latest."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_agents: Annotated[int | None, Field(ge=1)] = None
    max_turns: Annotated[int | None, Field(ge=1)] = None
    max_rounds: Annotated[int | None, Field(ge=1)] = None
    max_time: Annotated[str | None, Field(description="of it all: 10m")] = None
    timeout: Annotated[str | None, Field(description="of one reply: 90s")] = None
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    budget: Annotated[str | None, Field(description="$2.00, 200k tokens")] = None


NO_LIMITS = Limits()


class Position(BaseModel):
    """What a position is taken on, and by whom."""

    model_config = ConfigDict(extra="forbid")

    target: Annotated[str, Field(description="a question, file or folder")]
    agents: Annotated[list[str], Field(description="claude, codex, A=claude …")] = []
    limits: Limits = NO_LIMITS
    allow_tools: Annotated[bool, Field(description="coding agents read this project, others call your MCP servers")] = (
        False
    )
    unattended: Annotated[bool, Field(description="never wait for the person")] = False


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session as it was asked for. `agents` are backends, or `ID=BACKEND[:MODEL][@DIR]`; () for what is here."""

    question: str
    agents: tuple[str, ...] = ()
    position: str = ""
    context: tuple[str, ...] = ()
    project: Path | None = None
    limits: Limits = NO_LIMITS
    unattended: bool = False
    tools: bool = True


def begin(settings: Settings, asked: NewSession) -> Path:
    """Begin the session, and return the dialog's file once it is written. Raises `DialogdError`.

    Its process belongs to nobody: it goes on when the program that asked ends, and ends with the dialog.
    """
    if is_blank(asked.question):
        raise BadInput("the question is empty", fix="say what the agents are to discuss")
    start = Start(
        context=[str(inside(path)) for path in asked.context] or None,
        template=asked.position or None,
        unattended=asked.unattended,
        break_cycles=True,
        **listed(asked.agents),
        **_limits(settings, asked),
    )
    _allow(settings, asked, start)
    variables = {"DIALOGD_PROJECT": str(asked.project)} if asked.project else {}
    variables |= {} if asked.tools else {"DIALOGD_TOOL_CALLS": "0"}
    return run_apart(StateDir(settings.state_dir), asked.question, start.words(), variables)


def on(position: str, config: Position) -> NewSession:
    """The session in which agents take that position on the target. Raises `BadInput`, `Refused`."""
    if not position.strip():
        raise BadInput("no position is named", fix=f"name one of: {', '.join(names())}")
    target, project, context = config.target.strip(), Path.cwd() if config.allow_tools else None, tuple[str, ...]()
    if "\n" not in target and 0 < len(target) < LONGEST_PATH and Path(target).expanduser().exists():
        place, target = inside(target), f"Examine {target}."
        if place.is_dir() and not config.allow_tools:
            raise Refused(f"{place} is a folder, which only tools can read", fix="set allow_tools, or name a file")
        context, project = ((str(place),), project) if place.is_file() else ((), place)
    return NewSession(
        target, tuple(config.agents), position, context, project, config.limits, config.unattended, config.allow_tools
    )


def inside(path: str) -> Path:
    """The path in full. Raises `BadInput` for one outside the folder that the server works in."""
    here = Path.cwd().resolve()
    whole = (here / Path(path).expanduser()).resolve()
    if not whole.is_relative_to(here):
        raise BadInput(
            f"{path[:200]} is outside {here}", fix="name a path in the folder that this server was started in"
        )
    return whole


def _allow(settings: Settings, asked: NewSession, start: Start) -> None:
    """Refuse agents that are not to be had, or too many. Raises `BadInput`, `Refused`."""
    if asked.position and find(asked.position).is_by_path:
        inside(asked.position)
    seats = start.seats()
    most = min(settings.session_max_agents, asked.limits.max_agents or settings.session_max_agents)
    if len(seats) > most or len(asked.agents) > len(SEATS):
        raise Refused(
            f"{len(seats)} agents are wanted; {most} may take part",
            fix=f"name at most {most} agents, or have SESSION_MAX_AGENTS set higher",
        )
    for seat in seats:
        _harmless(seat)


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


def _limits(settings: Settings, asked: NewSession) -> dict[str, Any]:
    """The options that limit the dialog. Raises `BadInput` for what cannot be read, `Refused` for what is too much."""
    limits, most = asked.limits, settings.session_max_messages
    if limits.max_turns is not None and limits.max_turns > most:
        raise Refused(
            f"{limits.max_turns} turns are wanted; {most} messages are allowed",
            fix=f"set max_turns to {most} or less, or have SESSION_MAX_MESSAGES set higher",
        )
    if limits.max_time is not None and options.duration(limits.max_time, "max_time") > settings.session_max_time:
        raise Refused(
            f"{limits.max_time} is longer than a session may take: {in_words(settings.session_max_time)}",
            fix="set max_time lower, or have SESSION_MAX_TIME set higher",
        )
    usual = template(asked.position or None).terms.max_turns or MOST_TURNS
    if limits.timeout is not None:
        options.duration(limits.timeout, "timeout")
    usual_timeout = None if settings.source("agent_timeout") == "default" else f"{settings.agent_timeout:g} seconds"
    tokens = f"{limits.max_tokens} tokens" if limits.max_tokens is not None else ""
    return {
        "max_turns": limits.max_turns or (most if most < usual else None),
        "max_rounds": limits.max_rounds,
        "max_time": limits.max_time or f"{settings.session_max_time:g} seconds",
        "timeout": limits.timeout or usual_timeout,
        "budget": ", ".join(filter(None, (limits.budget, tokens))) or f"{settings.session_max_tokens} tokens",
    }

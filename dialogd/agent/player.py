"""An agent's backend from its settings, how the agent behaves, and the notes of its project."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from dialogd.agent.builder import Flags
from dialogd.agent.call import is_priced
from dialogd.agent.turn import Behavior, needs_cap
from dialogd.backends import (
    CODING,
    NOTHING,
    SHELLS,
    WITH_TOOLS,
    Backend,
    Options,
    auto,
    kind_of,
    load_backend,
    secrets,
    variables_for,
)
from dialogd.config import Settings, dotenv
from dialogd.errors import BadInput
from dialogd.protocol.state import DEFAULT_CAP, DEFAULT_TOKENS, Dialog
from dialogd.protocol.text import NO_BUDGET, dollars, listed, read_budget
from dialogd.store.disk import StateDir, pread


@dataclass(frozen=True, slots=True)
class Player:
    """A backend, how its agent behaves, and what the person is told about it before it starts."""

    backend: Backend
    behavior: Behavior
    remarks: tuple[str, ...]


async def prepare(played: Player, dialog: Dialog | None, me: str = "") -> None:
    """Let a backend prove what it must, and check that its price is known where dollars are counted.

    The backend of a build's lead, which `me` may be, proves that it writes in a worktree and nowhere else.
    Raises `BackendError` for a backend that cannot prove it, `BadInput` for an unknown price.
    """
    backend = played.backend
    await backend.prepare()
    build = dialog.state.build.rules if dialog is not None else None
    if build is not None and me in build.leads:
        await backend.prepare_to_write()
    in_header = dialog is not None and dialog.state.limits.budget is not None
    if not is_priced(backend) and (in_header or played.behavior.budget is not None):
        what = f"{backend.name} {backend.model}".strip()
        raise BadInput(
            f"there is a budget in dollars, and nobody knows what {what} costs",
            fix="say it with --price IN/OUT (dollars per million tokens) or --price free, or set a budget in tokens",
        )


def player(
    settings: Settings, dialog: Dialog | None, state: StateDir, file: Path, *, may_rehearse: bool = True
) -> Player:
    """The player of the agent of these settings in that dialog. Raises `BadInput`."""
    variables = dotenv(Path.cwd())
    choice = _choice(settings, dialog, variables)
    if not may_rehearse and choice.is_last_resort(settings.backend):
        raise BadInput(
            f"nobody is there for {settings.id}, and scripted lines take no seat beside real agents",
            fix=f"dialogd start {settings.id} --backend NAME; which can be used here: dialogd doctor",
        )
    _refuse_idle_flags(settings, choice)
    detail = settings.backend.partition(":")[2]
    setup = Options(
        command=settings.command or (detail if choice.backend in auto.COMMANDS else ""),
        model=choice.model,
        project=settings.project,
        variables=variables_for(choice.backend, os.environ, variables, settings.base_url),
        max_tokens=settings.max_tokens,
        effort=settings.effort,
        base_url=settings.base_url,
        api=settings.api,
        state=state.agent(file, settings.id),
        resume=settings.resume,
        session=settings.session,
        trust_project=settings.trust_project,
        price=settings.price,
        secrets=_secrets(settings, variables),
    )
    backend = load_backend(choice.backend, setup)
    return Player(backend, _behavior(settings, choice, variables), tuple(_remarks(settings, choice, dialog)))


# Flags that mean something to these backends only; an environment may hold them for others.
_ONLY = {
    "resume": ("claude-code",),
    "session": ("live",),
    "trust_project": tuple(sorted(auto.TRUSTING)),
    "base_url": ("anthropic", "openai", "gpt", "grok", "ollama", "claude-code", "codex", "gemini", "opencode"),
    "api": ("openai", "gpt", "grok", "ollama"),
}


def _refuse_idle_flags(settings: Settings, choice: auto.Choice) -> None:
    """Raise `BadInput` for a flag that would do nothing."""
    for name, backends in _ONLY.items():
        if choice.backend not in backends and settings.source(name).startswith("flag") and getattr(settings, name):
            flag = f"--{name.replace('_', '-')}"
            raise BadInput(
                f"{flag} means nothing to {choice.backend}", fix=f"leave it out; it is for {', '.join(backends)}"
            )


def _choice(settings: Settings, dialog: Dialog | None, variables: Mapping[str, str]) -> auto.Choice:
    # A command without a backend named can only mean one thing.
    implied = settings.command and settings.source("backend") == "default"
    name = "command" if implied else settings.backend
    if settings.command and name in auto.COMMANDS:
        name = f"{name}:{settings.command}"
    ids = tuple(agent.id for agent in dialog.header.agents) if dialog else ()
    choice = auto.choose(
        name,
        auto.seat_of(settings.id, ids),
        os.environ,
        variables,
        agents=ids,
        base_url=settings.base_url,
    )
    return replace(choice, model=settings.model or choice.model)


# What an agent is told of its behavior just as it is set.
_AS_SET = ("name", "role", "pace", "poll", "retry_wait", "digest")


def _behavior(settings: Settings, choice: auto.Choice, variables: Mapping[str, str]) -> Behavior:
    usd, tokens = read_budget(settings.budget) if settings.budget else NO_BUDGET
    calls_tools = choice.backend.partition(":")[0] in WITH_TOOLS
    return Behavior(
        **{name: getattr(settings, name) for name in _AS_SET},
        title=_title(settings, choice),
        has=_has(settings, choice),
        notes=notes(settings.project),
        secrets=_secrets(settings, variables),
        budget=usd,
        tokens=tokens,
        is_capped=choice.is_metered and not settings.budget,
        reads_files=kind_of(choice.backend).project != "nothing",
        has_shell=choice.backend.partition(":")[0] in SHELLS,
        build=Flags(**{one.name: getattr(settings, one.name) for one in fields(Flags)}),
        servers=settings.tools if calls_tools else (),
        tool_calls=settings.tool_calls if calls_tools else 0,
    )


def _has(settings: Settings, choice: auto.Choice) -> str:
    """What its prompt says that it has to look at: what its kind has, and the tools of the person's servers."""
    name, given = choice.backend.partition(":")[0], [server.name for server in settings.tools]
    if name in WITH_TOOLS and given and settings.tool_calls:
        return f"the tools of {listed(given)}, and no files beside them"
    is_bare = name in WITH_TOOLS or (name in CODING and settings.project is None)  # those are in an empty folder
    return NOTHING if is_bare else kind_of(name).has


def _title(settings: Settings, choice: auto.Choice) -> str:
    """What the agent is called in headings: by its family; a live seat by the program of its session."""
    program = settings.session.partition(":")[0]
    return kind_of({"claude": "claude-code"}.get(program, program) if program else choice.backend).title


def _secrets(settings: Settings, variables: Mapping[str, str]) -> tuple[str, ...]:
    """The person's keys, and those that they gave to servers of tools."""
    given = (one for server in settings.tools for one in secrets(server.environment))
    return tuple(dict.fromkeys((*secrets(os.environ, variables), *given)))


def _remarks(settings: Settings, choice: auto.Choice, dialog: Dialog | None) -> list[str]:
    """Remarks: what it is and why, who pays, who sees what; a default cap; twins."""
    remarks = [auto.introduce(choice, settings.project, trusts=settings.trust_project)]
    if dialog is not None and dialog.state.hand.keys is not None:
        remarks.append("this dialog is shared: whoever may read its log elsewhere sees all that is said in it")
    if choice.is_last_resort(settings.backend):
        remarks.extend(auto.NO_MODEL[:2])
    if settings.tools and choice.backend.partition(":")[0] in WITH_TOOLS:
        remarks.append(f"it may call tools of {'; '.join(map(str, settings.tools))}")
    if choice.is_metered and not settings.budget and needs_cap(dialog):
        remarks.append(
            f"a key pays and you set no budget: {settings.id} stops at {dollars(DEFAULT_CAP)}"
            f" ({DEFAULT_TOKENS:,} tokens where the price is unknown); another limit: --budget"
        )
    if choice.twins:
        remarks.append(auto.warning_of((settings.id, *choice.twins), choice.family))
    return remarks


# -- What a project says to agents ------------------------------------------------------------------------------------

NOTES = ("CLAUDE.md", "AGENTS.md", "GEMINI.md")
MOST_NOTES = 40_000  # bytes of all together


def notes(project: Path | None) -> str:
    """The notes of the folder as Markdown with the files' names; "" without a project or notes.

    Identical files, and links to each other, come once. A link that leads out of the project is left out, and so is
    anything that is not a text file. `@import` lines stay text. Together at most `MOST_NOTES` bytes; a cut says so.
    """
    if project is None:
        return ""
    found: dict[str, list[str]] = {}
    for name in NOTES:
        if text := _text(project, name):
            found.setdefault(text, []).append(name)
    parts: list[str] = []
    left = MOST_NOTES
    for text, names in found.items():
        shown = text
        if len(text.encode()) > left:  # the whole lines that fit
            piece = text.encode()[: max(left, 0)].decode("utf-8", "ignore")
            shown = piece[: piece.rfind("\n") + 1].rstrip()
        left -= len(shown.encode())
        cut = "" if shown == text else "(the rest is left out: it is too long)"
        parts.append("\n\n".join(filter(None, (f"# {' and '.join(names)}", shown, cut))))
    return "\n\n".join(parts)


def _text(project: Path, name: str) -> str:
    """The text of one file of the project's folder, stripped; "" where it must not be used."""
    try:
        real = (project / name).resolve(strict=True)
        if not real.is_relative_to(project.resolve(strict=True)):
            return ""
        fd = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, RuntimeError):
        return ""
    try:
        data = pread(fd, MOST_NOTES + 1, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return ""
    finally:
        os.close(fd)
    return "" if b"\0" in data else data.decode("utf-8-sig", "replace").strip()

"""Who plays: agents as written on the command line, and the cast that `run --continue` starts again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dialogd.auto import AUTO, CHOSEN, COMMANDS, SCENARIOS, Choice, candidates, known_names, resolve, survey
from dialogd.backends import BACKENDS, kind_of
from dialogd.errors import BadInput
from dialogd.protocol.header import AGENT_ID
from dialogd.protocol.model import RESERVED
from dialogd.settings import Settings
from dialogd.state import StateDir

SEATS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Seat:
    """One agent of a cast. Empty: what the daemon's own settings say. `port` 0: not chosen yet."""

    id: str
    backend: str = ""
    model: str = ""
    command: str = ""
    project: str = ""
    port: int = 0

    @property
    def is_known(self) -> bool:
        """True when it is settled which backend plays it, and with it the name."""
        return self.backend.partition(":")[0] in BACKENDS

    @property
    def name(self) -> str:
        """What the agent is called in headings: by its family, as far as that is known already."""
        return f"{kind_of(self.backend).title if self.is_known else 'Claude'} {self.id}"

    def flags(self) -> list[str]:
        """What `dialogd start` is told about it, but for port and file."""
        pairs = {"backend": self.backend, "model": self.model, "command": self.command, "project": self.project}
        return [part for name, value in pairs.items() if value for part in (f"--{name}", value)]


def read_cast(agents: str | None, each: Sequence[str] | None) -> tuple[Seat, ...]:
    """The agents of `--agents LIST` or of every `--agent SPEC`; A and B when neither was given. Raises `BadInput`."""
    if agents is not None and each:
        raise BadInput("both --agents and --agent were given", fix="name all agents with one of the two")
    if each:
        seats = tuple(_seat(spec) for spec in each)
    elif agents is not None:
        listed = [part.strip() for part in agents.split(",") if part.strip()]
        if not 0 < len(listed) <= len(SEATS):
            raise BadInput(f"--agents names {len(listed)} agents", fix="name 1 to 26: --agents rehearsal,rehearsal")
        seats = tuple(_part(seat, text) for seat, text in zip(SEATS, listed, strict=False))
    else:
        seats = (Seat("A"), Seat("B"))
    ids = [seat.id.casefold() for seat in seats]
    twice = next((seat.id for seat in seats if ids.count(seat.id.casefold()) > 1), "")
    if twice:
        raise BadInput(f"the id {twice} is given to two agents", fix="give each agent an id of its own")
    return seats


def _seat(spec: str) -> Seat:
    """ID=BACKEND[:MODEL][@DIR]."""
    agent, equals, rest = spec.partition("=")
    if not equals or not AGENT_ID.fullmatch(agent) or agent.upper() in RESERVED or not rest:
        raise BadInput(
            f"--agent {spec!r} is no agent",
            fix="write ID=BACKEND[:MODEL][@DIR], such as A=claude; an id is letters, digits, `_` and `-`",
        )
    return _part(agent, rest)


def _part(agent: str, text: str) -> Seat:
    """BACKEND[:MODEL][@DIR]; what follows `command:` and `acp:` is the program and its arguments."""
    what, at, folder = text.rpartition("@")
    is_command = text.partition(":")[0] in COMMANDS
    project = ""
    if at and Path(folder).expanduser().is_dir():
        project, text = str(Path.cwd() / Path(folder).expanduser()), what
    elif at and not is_command:
        raise BadInput(f"{agent}: {folder!r} is not a folder", fix="name an existing folder after the @")
    base, _, detail = text.partition(":")
    if base not in (*BACKENDS, *CHOSEN):
        raise BadInput(f"{agent}: unknown backend {base!r}", fix=f"choose one of: {', '.join(known_names())}")
    if base == AUTO and detail:
        raise BadInput(f"{agent}: auto takes no model", fix="name the backend too, such as claude:claude-sonnet-5-5")
    if is_command:
        return Seat(agent, base, command=detail, project=project)
    return Seat(agent, text if base in SCENARIOS else base, model="" if base in SCENARIOS else detail, project=project)


def seated(
    seats: Sequence[Seat], settings: Settings, environment: Mapping[str, str], dotenv: Mapping[str, str]
) -> tuple[tuple[Seat, ...], dict[str, Choice]]:
    """The seats with the backends that they come to on this machine, and each agent's choice by its id.

    A seat without a backend gets what the settings say. Raises `BadInput` for a name that nobody knows.
    """
    named = [_with_settings(seat, settings) for seat in seats]
    names = [_name(seat, settings) for seat in named]
    found = survey((look for name in names for look in candidates(name)), environment, dotenv, settings.base_url)
    variables, ids = {**dotenv, **environment}, [seat.id for seat in seats]
    choices = {
        seat.id: resolve(name, index, variables, found.__getitem__, agents=ids, base_url=settings.base_url)
        for index, (seat, name) in enumerate(zip(named, names, strict=True))
    }
    chosen = (replace(s, backend=choices[s.id].backend, model=s.model or choices[s.id].model) for s in named)
    return tuple(chosen), choices


def _with_settings(seat: Seat, settings: Settings) -> Seat:
    """The seat with the settings' backend, where it names none; a command without a backend can only mean one thing."""
    if seat.backend:
        return seat
    if settings.command and settings.origin("backend") == "default":
        return replace(seat, backend="command")
    return replace(seat, backend=settings.backend)


def _name(seat: Seat, settings: Settings) -> str:
    """The backend's name with what belongs behind its colon."""
    base = seat.backend.partition(":")[0]
    if base in COMMANDS:
        return f"{base}:{seat.command or settings.command}"
    return f"{seat.backend}:{seat.model}" if seat.model and base != AUTO else seat.backend


@dataclass(frozen=True, slots=True)
class Cast:
    """The agents of one dialog as `run` started them; `pace` as it was given, "" for the default."""

    dialog: str
    seats: tuple[Seat, ...]
    pace: str = ""

    def with_ports(self, ports: Sequence[int]) -> Cast:
        """The same cast at these ports."""
        return replace(self, seats=tuple(replace(s, port=p) for s, p in zip(self.seats, ports, strict=True)))

    def save(self, state: StateDir, file: Path) -> None:
        """Keep it for `run --continue`."""
        target = _path(state, file)
        part = target.with_suffix(f".{os.getpid()}")
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as out:
            json.dump(asdict(self), out, indent=2)
        part.replace(target)


def saved_cast(state: StateDir, file: Path) -> Cast | None:
    """The cast that was kept for this file, None without one."""
    try:
        found = json.loads(_path(state, file).read_text(encoding="utf-8"))
        seats = tuple(_of(seat) for seat in found["seats"])
        return Cast(str(found["dialog"]), seats, str(found["pace"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _of(record: Mapping[str, object]) -> Seat:
    texts = {key: str(record[key]) for key in ("id", "backend", "model", "command", "project")}
    return Seat(**texts, port=int(str(record["port"])))


def _path(state: StateDir, file: Path) -> Path:
    return state.dialog(file) / "cast.json"

"""Who plays: agents as written on the command line, and the cast that `run --continue` starts again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dialogd.backends import BACKENDS
from dialogd.errors import BadInput
from dialogd.protocol.header import AGENT_ID
from dialogd.protocol.model import RESERVED
from dialogd.state import StateDir

SEATS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NAMES = {"codex": "Codex", "gemini": "Gemini", "grok": "Grok", "command": "Agent"}  # any other: Claude
PLAYS = frozenset({"rehearsal"})  # backends whose part after the colon is no model but a scenario


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
    def name(self) -> str:
        """What the agent is called in headings."""
        return f"{NAMES.get(self.backend.partition(':')[0], 'Claude')} {self.id}"

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
            fix="write ID=BACKEND[:MODEL][@DIR], such as A=rehearsal; an id is letters, digits, `_` and `-`",
        )
    return _part(agent, rest)


def _part(agent: str, text: str) -> Seat:
    """BACKEND[:MODEL][@DIR]; what follows `command:` is the program and its arguments."""
    what, at, folder = text.rpartition("@")
    project = ""
    if at and Path(folder).expanduser().is_dir():
        project, text = str(Path.cwd() / Path(folder).expanduser()), what
    elif at and not text.startswith("command:"):
        raise BadInput(f"{agent}: {folder!r} is not a folder", fix="name an existing folder after the @")
    base, _, detail = text.partition(":")
    if base not in BACKENDS:
        raise BadInput(f"{agent}: unknown backend {base!r}", fix=f"choose one of: {', '.join(sorted(BACKENDS))}")
    if base == "command":
        return Seat(agent, base, command=detail, project=project)
    return Seat(agent, text if base in PLAYS else base, model="" if base in PLAYS else detail, project=project)


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

"""The backends of a dialog's agents, as `run` keeps them, and the command that restarts one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from dialogd.backends import BACKENDS, kind_of, secrets
from dialogd.config import SETTINGS, Settings, command_on, dotenv
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import redact
from dialogd.store.disk import StateDir, read_json, write_json
from dialogd.store.registry import CLAUDE, CODEX

CAST = "cast.json"  # in the dialog's folder
LINGER = 3_600.0  # seconds
CALLED = {CLAUDE: "Claude", CODEX: "Codex"}  # what an open session is called in headings


@dataclass(frozen=True, slots=True)
class Seat:
    """One agent of a cast. Empty: what the daemon's own settings say."""

    id: str
    backend: str = ""
    model: str = ""
    command: str = ""
    project: str = ""
    port: int = 0  # 0: not chosen yet
    title: str = ""  # what the template calls it
    price: str = ""  # what the person says its tokens cost
    budget: str = ""  # what it alone may spend
    trust_project: bool = False  # what the project contains may run
    session: str = ""  # the key of the open session that it is
    repo: str = ""  # what the lead of a build works on
    gate: str = ""  # the command that tests it
    gate_sees: tuple[str, ...] = ()  # the folders of home and checkout that it can read
    setup: str = ""  # the command that makes what the tests need beside a task's files
    setup_network: bool = False

    @property
    def is_known(self) -> bool:
        """True when its name is settled: by the template, or by the backend that plays it."""
        return bool(self.title) or self.backend.partition(":")[0] in BACKENDS

    @property
    def name(self) -> str:
        """What the agent is called in headings: as the template says, else by its family as far as that is known."""
        if self.title:
            return self.title
        if self.session:
            return f"{CALLED.get(self.session.partition(':')[0], 'Live')} {self.id}"
        return f"{kind_of(self.backend).title if self.is_known else 'Claude'} {self.id}"

    def flags(self) -> list[str]:
        """The flags of `dialogd start` for it, without port and file."""
        own = {name: value for name, value in asdict(self).items() if value and name not in ("id", "port", "title")}
        return [word for name, value in own.items() for flag in flags_of(name, value) for word in flag]


@dataclass(frozen=True, slots=True)
class Cast:
    """The agents of one dialog as `run` started them."""

    dialog: str
    seats: tuple[Seat, ...]
    pace: str = ""  # as it was given, "" for the default
    by: str = ""  # the process that runs them (`process_key`); once it is gone, they stay for `linger` seconds
    linger: float = LINGER

    def with_ports(self, ports: Sequence[int]) -> Cast:
        """The same cast at these ports."""
        return replace(self, seats=tuple(replace(s, port=p) for s, p in zip(self.seats, ports, strict=True)))

    def save(self, state: StateDir, file: Path) -> None:
        """Keep it for `run --continue`."""
        write_json(state.dialog(file) / CAST, asdict(self))


_CAST = TypeAdapter(Cast)


def saved_cast(state: StateDir, file: Path) -> Cast | None:
    """The cast that was kept for this file, None without one."""
    with suppress(ValidationError):
        return _CAST.validate_python(read_json(state.dialog(file) / CAST))
    return None


def remember_start(state: StateDir, settings: Settings, dialog: Dialog | None, peers: Mapping[str, str]) -> None:
    """Keep this daemon's flags for restarting it, except secret ones and what the header of `dialog` says already."""
    own = secrets(os.environ, dotenv(Path.cwd()))
    urls = {agent.id: agent.url for agent in dialog.header.agents} if dialog is not None else {}
    said = {("--port", urls.get(settings.id, "").rpartition(":")[2])}
    said |= {("--peer", f"{who}={url}") for who, url in urls.items()}
    flags = [flag for flag in start_flags(settings, peers) if flag not in said and redact(" ".join(flag), own)[1] == 0]
    known = {"dialog": dialog.id if dialog is not None else "", "flags": flags}
    write_json(state.dialog(settings.file) / f"start-{settings.id}.json", known)


def flags_of(name: str, value: object) -> Iterator[tuple[str, ...]]:
    """The flags of `dialogd start` for a setting of that value."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        yield (flag,) if value else ()
    elif isinstance(value, tuple):
        yield from ((flag, str(each)) for each in value)
    else:
        yield (flag, f"{value:g}" if isinstance(value, float) else str(value))


def start_flags(settings: Settings, peers: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """The flags of `dialogd start`, each with its value; of what the environment said, the backend."""
    for one in SETTINGS:
        value, source = getattr(settings, one.name), settings.source(one.name)
        is_told = source.startswith("flag") or (one.name == "backend" and source.startswith("environment"))
        if not is_told or one.name in ("id", "file", "state_dir"):
            continue
        if isinstance(value, bool) and one.name == "plan":
            yield () if value else ("--plan", "no")
        else:
            yield from flags_of(one.name, value)
    for who, url in peers.items():
        yield ("--peer", f"{who}={url}")


def start_again(state: StateDir, file: Path, dialog: str | None, agent: str, *more: str) -> str:
    """The command that starts an agent's daemon as it was last started in `dialog` (None: any), else as `run` did.

    `more` flags stand before those.
    """
    found = read_json(state.dialog(file) / f"start-{agent}.json")
    with suppress(TypeError, KeyError):
        if dialog is None or found["dialog"] in ("", dialog):
            return command_on(file, "start", agent, *more, *(word for flag in found["flags"] for word in flag))
    cast = saved_cast(state, file)
    seats = cast.seats if cast is not None and dialog in (None, cast.dialog) else ()
    own = [word for seat in seats if seat.id == agent for word in seat.flags()]
    return command_on(file, "start", agent, *more, *own)

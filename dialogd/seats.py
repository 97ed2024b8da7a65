"""Who plays what in one dialog, as `run` keeps it, and the command that starts one of them again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dialogd.backends import BACKENDS, kind_of
from dialogd.settings import start_command
from dialogd.state import StateDir


@dataclass(frozen=True, slots=True)
class Seat:
    """One agent of a cast. Empty: what the daemon's own settings say. `port` 0: not chosen yet.

    `title` is what the template calls it, `price` what the person says its tokens cost; with `trust_project` what the
    project contains may run.
    """

    id: str
    backend: str = ""
    model: str = ""
    command: str = ""
    project: str = ""
    port: int = 0
    title: str = ""
    price: str = ""
    trust_project: bool = False

    @property
    def is_known(self) -> bool:
        """True when its name is settled: by the template, or by the backend that plays it."""
        return bool(self.title) or self.backend.partition(":")[0] in BACKENDS

    @property
    def name(self) -> str:
        """What the agent is called in headings: as the template says, else by its family as far as that is known."""
        if self.title:
            return self.title
        return f"{kind_of(self.backend).title if self.is_known else 'Claude'} {self.id}"

    def flags(self) -> list[str]:
        """What `dialogd start` is told about it, but for port and file."""
        pairs = {
            "backend": self.backend, "model": self.model, "command": self.command, "project": self.project,
            "price": self.price,
        }  # fmt: skip
        words = [part for name, value in pairs.items() if value for part in (f"--{name}", value)]
        return [*words, "--trust-project"] if self.trust_project else words


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


def start_again(cast: Cast | None, dialog: str, agent: str, file: Path) -> str:
    """The command that starts an agent's daemon: with what `cast` had play it, where that is of this dialog."""
    seats = cast.seats if cast is not None and cast.dialog == dialog else ()
    flags = next((seat.flags() for seat in seats if seat.id == agent), [])
    return start_command(agent, file, flags)


def _of(record: Mapping[str, object]) -> Seat:
    texts = {key: str(record[key]) for key in ("id", "backend", "model", "command", "project")}
    return Seat(
        **texts,
        port=int(str(record["port"])),
        title=str(record.get("title", "")),
        price=str(record.get("price", "")),
        trust_project=record.get("trust_project") is True,
    )


def _path(state: StateDir, file: Path) -> Path:
    return state.dialog(file) / "cast.json"

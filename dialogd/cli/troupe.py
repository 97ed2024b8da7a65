"""The daemons of one `run`: all of them started, one that dies started once more, all of them ended."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from dialogd.cli.client import notify
from dialogd.cli.launch import LATE_SECONDS, READY_SECONDS, Child, answering, arguments, died_of, end, late, spawn
from dialogd.cli.terminal import remark
from dialogd.errors import DialogdError
from dialogd.registry import Running
from dialogd.seats import Cast, Seat
from dialogd.settings import Settings
from dialogd.state import StateDir

Interrupt = threading.Event


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """An event that Ctrl-C, SIGTERM and a closed terminal set, instead of ending this process on the spot."""
    event = Interrupt()

    def note(_signal: int, _frame: FrameType | None) -> None:
        event.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Troupe:
    """One daemon process per seat of the cast."""

    def __init__(self, settings: Settings, cast: Cast) -> None:
        self.settings = settings
        self.cast = cast
        self.children: dict[str, Child] = {}
        self.daemons: dict[str, Running] = {}
        self._died: set[str] = set()
        self._told: set[int] = set()

    def start(self, interrupt: Interrupt) -> None:
        """Start them all and wait until each answers, or the person interrupts. Raises `DialogdError`."""
        for seat in self.cast.seats:
            self.children[seat.id] = self._spawn(seat)
        began, is_told = time.monotonic(), False
        while len(self.daemons) < len(self.children) and not interrupt.is_set():
            for child in self.children.values():
                if child.id not in self.daemons and (daemon := answering(child, self.settings)) is not None:
                    self.daemons[child.id] = daemon
            if time.monotonic() - began > LATE_SECONDS and not is_told:
                is_told = True
                remark(late(seat.backend or self.settings.backend for seat in self.cast.seats))
            if time.monotonic() - began > READY_SECONDS:
                mute = next(child for child in self.children.values() if child.id not in self.daemons)
                raise DialogdError(
                    f"the daemon of {mute.id} did not answer within {READY_SECONDS:g} s; it said:\n{mute.last_lines()}",
                    fix=f"look into {mute.output}",
                )
            interrupt.wait(0.05)

    def _spawn(self, seat: Seat) -> Child:
        flags: dict[str, object] = {
            "port": seat.port, "backend": seat.backend, "model": seat.model, "command": seat.command,
            "project": seat.project, "price": seat.price, "trust_project": seat.trust_project, "pace": self.cast.pace,
            "no_plan": not self.settings.plan, "plan": plan if isinstance(plan := self.settings.plan, Path) else "",
        }  # fmt: skip
        urls = {s.id: f"http://localhost:{s.port}" for s in self.cast.seats if s.id != seat.id}
        output = StateDir(self.settings.state_dir).dialog(self.settings.file) / f"{seat.id}.out"
        return spawn(seat.id, arguments(seat.id, self.settings.file, flags, urls), output)

    def notify(self) -> None:
        """Tell every daemon to look at the file: the kick-off, and after whatever the person does."""
        notify(self.daemons.values())

    def dead(self) -> list[Child]:
        """The daemons that have ended, and were not started again."""
        return [child for child in self.children.values() if child.process.poll() is not None]

    def farewell(self, dead: Sequence[Child]) -> str:
        """Say of daemons that are not started again that they are gone; "" where it was said."""
        new = [child for child in dead if child.process.pid not in self._told]
        self._told.update(child.process.pid for child in new)
        return "\n".join(f"the daemon of {one.id} ended ({died_of(one.process.returncode)})" for one in new)

    def replace(self, dead: Child) -> str:
        """Start a daemon that ended once more; says so in words. Raises `DialogdError` on its second end."""
        what = f"the daemon of {dead.id} ended unexpectedly ({died_of(dead.process.returncode)}); it said last:"
        if dead.id in self._died:
            raise DialogdError(
                f"{what}\n{dead.last_lines()}",
                fix=f"it was started again once already; look into {dead.output}, then `dialogd run --continue`",
            )
        self._died.add(dead.id)
        self.children[dead.id] = self._spawn(next(seat for seat in self.cast.seats if seat.id == dead.id))
        self.daemons.pop(dead.id, None)
        return f"{what}\n{dead.last_lines()}\nstarting it again"

    def greet(self) -> None:
        """Notify daemons that were started again, as soon as they answer: they may owe a turn."""
        for child in list(self.children.values()):
            if child.id not in self.daemons and child.process.poll() is None:
                daemon = answering(child, self.settings)
                if daemon is not None:
                    self.daemons[child.id] = daemon
                    notify([daemon])

    def end(self) -> None:
        """End every process; nothing is left when this returns."""
        end(self.children.values())

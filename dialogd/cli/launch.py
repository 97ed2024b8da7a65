"""Daemons as processes of their own: start them, wait until they answer, end them so that nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from dialogd.backends import CODING
from dialogd.backends.auto import CHOSEN
from dialogd.backends.seats import Cast, Seat
from dialogd.cli.client import daemons, health, notify
from dialogd.cli.terminal import plain, remark
from dialogd.config import Settings
from dialogd.errors import AlreadyRunning, BadInput, DialogdError
from dialogd.store.folders import StateDir
from dialogd.store.registry import Running

READY_SECONDS = 90.0  # a daemon answers within one, but for a coding agent's first start, which is a trial of seconds
LATE_SECONDS = 3.0
TRIAL = "a coding agent's first start takes longer: it is a trial, in which it must refuse to write"
END_SECONDS = 3.0  # a daemon ends in under one; after that it is killed
LARGEST_OUTPUT = 1024 * 1024  # bytes of an output file that are kept when it is used again


@dataclass(frozen=True, slots=True)
class Child:
    """A daemon that this process started. What it prints goes to `output`, from `offset` on."""

    id: str
    process: subprocess.Popen[bytes]
    output: Path
    offset: int

    def last_lines(self, count: int = 8) -> str:
        """The end of what it printed."""
        with suppress(OSError), self.output.open("rb") as source:
            source.seek(self.offset)
            lines = deque((line.decode("utf-8", "replace").rstrip("\n") for line in source), count)
            return plain("\n".join(f"  {line}" for line in lines))
        return ""


def arguments(
    agent: str, file: Path, flags: Mapping[str, object], peers: Mapping[str, str] | Sequence[str]
) -> list[str]:
    """The words of `dialogd start` for these flags; None, "" and False are left out."""
    words = ["start", agent, "--file", str(file)]
    for name, value in flags.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value not in (None, "", False):
            words += [option, str(value)]
    named = [f"{who}={url}" for who, url in peers.items()] if isinstance(peers, Mapping) else list(peers)
    return [*words, *(part for peer in named for part in ("--peer", peer))]


def spawn(agent: str, words: Sequence[str], output: Path) -> Child:
    """Start a daemon in a session of its own: a Ctrl-C in this terminal does not reach it."""
    fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(fd).st_size > LARGEST_OUTPUT:
            os.ftruncate(fd, 0)
        offset = os.fstat(fd).st_size
        process = subprocess.Popen(
            [sys.executable, "-m", "dialogd", *words],
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            start_new_session=True,
        )
    finally:
        os.close(fd)
    return Child(agent, process, output, offset)


def answering(child: Child, settings: Settings) -> Running | None:
    """The registered daemon that this child is, once it answers. Raises `DialogdError` when it has ended."""
    code = child.process.poll()
    if code is not None:
        kinds: dict[int, type[DialogdError]] = {2: BadInput, 3: AlreadyRunning}
        raise kinds.get(code, DialogdError)(
            f"the daemon of {child.id} ended at once ({died_of(code)}); it said:\n{child.last_lines()}",
            fix=f"correct that and start it again; all it prints stands in {child.output}",
        )
    for daemon in daemons(settings):
        if daemon.pid == child.process.pid and health(daemon) is not None:
            return daemon
    return None


def until_ready(child: Child, settings: Settings) -> Running:
    """Wait until the child answers. Raises `DialogdError` with its last lines when it ends or takes far too long."""
    began, is_told = time.monotonic(), False
    daemon: Running | None = None
    try:
        while (taken := time.monotonic() - began) < READY_SECONDS:
            if (daemon := answering(child, settings)) is not None:
                return daemon
            if taken > LATE_SECONDS and not is_told:
                is_told = True
                remark(late([settings.backend]))
            time.sleep(0.05)
    finally:
        if daemon is None:  # a Ctrl-C while it starts ends it too
            end([child])
    raise DialogdError(
        f"the daemon of {child.id} did not answer within {READY_SECONDS:g} s; it said:\n{child.last_lines()}",
        fix=f"look into {child.output}, or start it in a terminal of its own",
    )


def late(backends: Iterable[str]) -> str:
    """What is said of daemons that take long to start, by their backends; whoever chooses by itself may take any."""
    is_trial = any(name.partition(":")[0] in CODING | CHOSEN for name in backends)
    return f"still starting; {TRIAL}" if is_trial else "still starting"


def died_of(code: int) -> str:
    """An exit status in words."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def end(children: Iterable[Child]) -> None:
    """End these processes, gently first; returns when they are gone."""
    running = [child for child in children if child.process.poll() is None]
    for child in running:
        child.process.terminate()
    deadline = time.monotonic() + END_SECONDS
    for child in running:
        try:
            child.process.wait(max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()


def is_free(port: int) -> bool:
    """True when a daemon could listen on 127.0.0.1:`port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses, all different."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


# -- The daemons of one `run` -----------------------------------------------------------------------------------------

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

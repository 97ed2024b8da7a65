"""Daemons as processes of their own: start them, wait until they answer, end them so that nothing is left."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from dialogd.auto import CHOSEN
from dialogd.backends import CODING
from dialogd.cli.client import daemons, health
from dialogd.cli.terminal import plain, remark
from dialogd.errors import AlreadyRunning, BadInput, DialogdError
from dialogd.registry import Running
from dialogd.settings import Settings

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

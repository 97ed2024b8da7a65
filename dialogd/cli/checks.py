"""What `dialogd doctor` looks at on this machine: each check gives facts, and changes nothing that lasts."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dialogd import __version__
from dialogd.cli.launch import is_free
from dialogd.config import FIRST_PORT, Settings
from dialogd.errors import DialogdError
from dialogd.store.folders import StateDir

PORTS = 2  # of the two agents that most dialogs have
SLOW_FLUSH = 0.1  # seconds
WATCH_SECONDS = 1.2
FIRST_YEAR = 2026
NETWORKED = frozenset(
    {"9p", "afs", "afpfs", "ceph", "cifs", "davfs", "fuse.sshfs", "gfs2", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4",
     "osxfuse", "smb3", "smbfs", "sshfs", "webdav"}
)  # fmt: skip
JAVASCRIPT = ("gemini", "codex", "opencode", "claude")  # programs that may be scripts for node


@dataclass(frozen=True, slots=True)
class Fact:
    """One line: `state` is `ok`, `absent` (no harm), `warning`, or `problem` (no dialog can be held)."""

    name: str
    state: str
    text: str
    fix: str = ""
    more: dict[str, object] = field(default_factory=dict)


def machine(settings: Settings) -> Iterator[Fact]:
    """Python, dialogd, node where a program needs it, the clock, the state directory."""
    yield Fact("python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield Fact("dialogd", "ok", __version__)
    yield from _node()
    yield _clock()
    yield _state(settings)


def _node() -> Iterator[Fact]:
    """The version of node, where a coding agent on PATH is a script for it."""
    needing = [name for name in JAVASCRIPT if _is_script(shutil.which(name))]
    if not needing:
        return
    try:
        done = subprocess.run(
            ["node", "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=3, check=False
        )
        version = done.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        version = ""
    if version:
        yield Fact("node", "ok", f"{version}, for {', '.join(needing)}")
    else:
        yield Fact("node", "warning", f"not here, and {', '.join(needing)} cannot run without it", "install node 22")


def _is_script(program: str | None) -> bool:
    with suppress(OSError):
        if program:
            with Path(program).open("rb") as source:
                return b"node" in source.read(64).split(b"\n")[0] and source.seek(0) == 0 and source.read(2) == b"#!"
    return False


def _clock() -> Fact:
    """Wall time that can be right, and a monotonic clock that goes forward."""
    year, before = time.gmtime().tm_year, time.monotonic()
    time.sleep(0.001)
    if year < FIRST_YEAR:
        return Fact("clock", "warning", f"it says {year}: times in dialogs will be wrong", "set the clock")
    if time.monotonic() <= before:
        return Fact("clock", "problem", "the monotonic clock stands still", "restart the machine")
    return Fact("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %z"))


def _state(settings: Settings) -> Fact:
    """The state directory is there, one's own, and private."""
    root = settings.state_dir
    try:
        _ = StateDir(root).registry
        mode = root.stat().st_mode & 0o777
    except DialogdError as error:
        return Fact("state", "problem", str(error), error.fix)
    if mode & 0o077:
        return Fact("state", "warning", f"{root} can be read by others (mode {mode:o})", f"chmod 700 '{root}'")
    return Fact("state", "ok", str(root))


def ports(settings: Settings) -> Iterator[Fact]:
    """The port that was set, else those of A and B, are free, or one's own daemon has them."""
    from dialogd.server.listen import describe_listener

    for port in [settings.port] if settings.port else range(FIRST_PORT, FIRST_PORT + PORTS):
        name = f"port {port}"
        if is_free(port):
            yield Fact(name, "ok", "free")
            continue
        who = describe_listener(port)
        if who.startswith("the dialogd daemon"):
            yield Fact(name, "ok", f"taken by {who}")
        else:
            fix = f"end it, or start with --port; `dialogd run` finds ports of its own{_program(port)}"
            yield Fact(name, "warning", f"taken by {who}", fix)


def _program(port: int) -> str:
    """The program that listens there, as far as this user may know; "" else."""
    import psutil

    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if (
                connection.status == psutil.CONN_LISTEN
                and connection.laddr
                and connection.laddr.port == port
                and connection.pid
            ):
                return f" (it is {psutil.Process(connection.pid).name()}, pid {connection.pid})"
    return ""


def folder(settings: Settings) -> Iterator[Fact]:
    """The dialog's folder can be written, locked, flushed and watched."""
    place = settings.file.parent
    if not place.is_dir():
        yield Fact("folder", "problem", f"{place} does not exist", "make it, or name a file with --file")
        return
    trial = place / f".dialogd-doctor-{os.getpid()}"
    try:
        with trial.open("xb") as out:
            out.write(b"a trial of dialogd doctor\n")
        yield Fact("folder", "ok", f"{place} can be written")
        for check in (_lock, _flush, _watch):
            yield check(trial)
    except OSError as error:
        why = error.strerror or str(error)
        yield Fact("folder", "problem", f"{place} cannot be written: {why}", "name a file elsewhere with --file")
    finally:
        for path in (trial, trial.with_name(f"{trial.name}.lock")):
            path.unlink(missing_ok=True)
    yield _kind(place)


def _lock(trial: Path) -> Fact:
    """The lock keeps a second one out."""
    import fcntl

    from dialogd.store.lock import Lock

    path = trial.with_name(f"{trial.name}.lock")
    fix = "name a file on a local disk with --file"
    try:
        with Lock(path).held(), path.open("rb") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return Fact("lock", "ok", "keeps others out")
            return Fact("lock", "problem", "two can hold it at the same time", fix)
    except DialogdError as error:
        return Fact("lock", "problem", str(error), fix)


def _flush(trial: Path) -> Fact:
    """What is written reaches the disk."""
    from dialogd.store.disk import flush, flush_folder

    began = time.monotonic()
    try:
        with trial.open("ab") as out:
            out.write(b".")
            out.flush()
            flush(out.fileno())
        flush_folder(trial.parent)
    except OSError as error:
        return Fact("flush", "problem", f"fails: {error.strerror}", "name a file on a local disk with --file")
    taken = time.monotonic() - began
    slow = "; each turn waits for it" if taken > SLOW_FLUSH else ""
    return Fact("flush", "ok", f"takes {taken * 1000:.1f} ms{slow}")


def _watch(trial: Path) -> Fact:
    """A change of the file is noticed at once."""
    import asyncio

    from dialogd.store.filewatch import watch

    async def seen() -> bool:
        noticed = asyncio.Event()
        watching = asyncio.create_task(watch(trial, noticed.set))
        deadline = time.monotonic() + WATCH_SECONDS
        while not noticed.is_set() and not watching.done() and time.monotonic() < deadline:
            with trial.open("ab") as out:
                out.write(b".")
            with suppress(TimeoutError):
                await asyncio.wait_for(noticed.wait(), 0.1)
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        return noticed.is_set()

    if asyncio.run(seen()):
        return Fact("watch", "ok", "changes are noticed at once")
    return Fact("watch", "warning", "changes are not noticed here", "it works all the same: the file is polled")


def _kind(place: Path) -> Fact:
    """Which file system it is; locks of network file systems may not reach other machines."""
    import psutil

    real = place.resolve()
    mounts = [m for m in psutil.disk_partitions(all=True) if real.is_relative_to(m.mountpoint)]
    if not mounts:
        return Fact("disk", "ok", "unknown file system")
    kind = max(enumerate(mounts), key=lambda m: (len(m[1].mountpoint), m[0]))[1].fstype
    if kind.lower() in NETWORKED:
        text = f"{kind}, a network file system: a lock may not hold between machines"
        return Fact("disk", "warning", text, "keep all daemons on one machine, or use a local disk")
    return Fact("disk", "ok", kind)


def dialog(settings: Settings) -> Iterator[Fact]:
    """The dialog that is there, if any."""
    from dialogd.cli.options import log_of

    try:
        found = log_of(settings).read()
    except FileNotFoundError:
        yield Fact("dialog", "ok", f"none yet at {settings.file}")
    except DialogdError as error:
        yield Fact("dialog", "warning", str(error), error.fix)
    except OSError as error:
        yield Fact("dialog", "problem", f"{settings.file}: {error.strerror}", "name another file with --file")
    else:
        yield Fact("dialog", "ok", f"{settings.file}, turn {found.state.number}, dialog {found.id}")


CHECKS: tuple[Callable[[Settings], Iterator[Fact]], ...] = (machine, ports, folder, dialog)

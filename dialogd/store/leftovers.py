"""Find and remove what dead daemons of this user have left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING

from dialogd.errors import DialogdError
from dialogd.store.child import LEASH
from dialogd.store.folders import StateDir
from dialogd.store.lock import Lock
from dialogd.store.registry import Running, entries, registered

if TYPE_CHECKING:
    import psutil

PREFIX = "dialogd-"  # of temporary folders
RUNS = "run-*"  # temporary folders of an agent's runs, in its own folder of the state directory
MADE = "made-sessions.jsonl"  # in an agent's own folder
OLD = 24 * 3600.0  # seconds; a younger temporary folder may be somebody's still
LEASH_SECONDS = 1.5  # a leash ends what it holds within half a second of being asked


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that is left: `kind` is `registration`, `seat`, `process`, `folder` or `session`.

    A `session` is the file of one that dialogd had a coding agent make in the person's home, `size` what tells whether
    anybody went on in it since. `pid` and `created` tell a process from a later one of the same number. `daemon` is the
    one that a registration tells of.
    """

    kind: str
    what: str
    path: Path | None = None
    pid: int = 0
    created: float = 0.0
    size: int = 0
    daemon: Running | None = None


def find_leftovers(state: StateDir, temporary: Path | None = None) -> tuple[Leftover, ...]:
    """Everything that dead daemons left behind; changes nothing.

    Registrations of this state directory, leashed commands of this user and this installation whose daemon is gone,
    seats and temporary folders older than a day, and sessions of coding agents whose daemon does not run, as long as
    nobody else went on in them.
    """
    registry = state.registry
    folder = Path(tempfile.gettempdir()) if temporary is None else temporary
    runs = (run for agent in (state.root / "agents").glob("*") for run in agent.glob(RUNS))
    folders = (*sorted(folder.glob(f"{PREFIX}*")), *sorted(runs))
    sessions = _sessions(state)
    stale = (Leftover("folder", f"{path} is older than a day", path) for path in folders if _is_stale(path))
    return (*_processes(), *_registrations(registry), *_seats(registry), *stale, *sessions)


def reap(leftover: Leftover) -> bool:
    """Remove it, after checking once more that it has not changed; False when that failed."""
    match leftover.kind:
        case "process":
            return _end(leftover.pid, leftover.created)
        case "seat" if leftover.path:
            return _unseat(leftover.path)
        case "registration" if leftover.path:
            if (daemon := registered(leftover.path)) is not None and not daemon.is_alive():
                leftover.path.unlink(missing_ok=True)
            return not leftover.path.exists()
        case "folder" if leftover.path and _is_stale(leftover.path):
            shutil.rmtree(leftover.path, ignore_errors=True)
            return not leftover.path.exists()
        case "session" if leftover.path and _size(leftover.path) == leftover.size:
            leftover.path.unlink(missing_ok=True)
            return not leftover.path.exists()
    return False


def _sessions(state: StateDir) -> Iterator[Leftover]:
    """Sessions of agents whose daemon does not run, as dialogd left them."""
    known = (daemon for _, daemon in entries(state.registry))
    running = {state.agent(Path(daemon.file), daemon.id) for daemon in known if daemon.is_alive()}
    for folder in sorted(state.agents.glob("*")):
        for path, size in _made(folder).items() if folder not in running else ():
            if _size(path) == size:
                yield Leftover("session", str(path), path, size=size)


def _size(path: Path) -> int | None:
    """The length of a session's file, which grows when somebody goes on there; None where it is no file of mine."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() else None


def _registrations(registry: Path) -> Iterator[Leftover]:
    """Entries whose daemon does not run."""
    for path, daemon in entries(registry):
        if not daemon.is_alive():
            what = f"{daemon.id} on port {daemon.port}, pid {daemon.pid}, is gone"
            yield Leftover("registration", what, path, daemon=daemon)


def _seats(registry: Path) -> Iterator[Leftover]:
    """Locks of seats that nobody has held for a day: each daemon leaves one, and the next one at that seat takes it."""
    for path in sorted(registry.glob("*.seat")):
        with _held(path) as is_ours:
            if is_ours and time.time() - path.stat().st_mtime > OLD:
                yield Leftover("seat", f"{path.name} is held by nobody", path)


def _unseat(path: Path) -> bool:
    """Remove a seat's lock while holding it; whoever waits for it makes another."""
    with _held(path) as is_ours:
        if is_ours:
            path.unlink(missing_ok=True)
        return is_ours


@contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Hold a lock file for a moment, if nobody else does; True when it is held."""
    lock = Lock(path, wait=0)
    try:
        lock.acquire()
    except DialogdError:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _processes() -> Iterator[Leftover]:
    """Leashes whose daemon is gone."""
    import psutil

    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = _leashed(process)
            if words is not None and _is_orphan(process):
                what = f"pid {process.pid} holds {Path(words[0]).name if words else 'a command'}, its daemon is gone"
                yield Leftover("process", what, pid=process.pid, created=process.create_time())


def _leashed(process: psutil.Process) -> list[str] | None:
    """The command that a leash of this user and this installation holds; None for any other process."""
    if process.uids().real != os.getuid():
        return None
    words = process.cmdline()
    if len(words) < 5 or words[1:4] != ["-I", "-S", str(LEASH)] or not words[4].isdigit():
        return None
    return [*dropwhile(lambda word: word.startswith("--"), words[5:])]


def _is_orphan(process: psutil.Process) -> bool:
    """True when whoever adopted the leash cannot be its daemon, which runs the same Python as the same user.

    In doubt it is not.
    """
    import psutil

    parent = process.parent()
    if parent is None or parent.uids().real != process.uids().real:
        return True
    try:
        return Path(parent.exe()).resolve() != Path(process.exe()).resolve()
    except psutil.AccessDenied:
        words = parent.cmdline()
        return bool(words) and "python" not in Path(words[0]).name


def _end(pid: int, created: float) -> bool:
    """End a leash, which ends what it holds; kill it and all below it when it does not. True when it is gone."""
    import psutil

    try:
        process = psutil.Process(pid)
        if abs(process.create_time() - created) > 0.01 or _leashed(process) is None or not _is_orphan(process):
            return True  # another process by now
        below = process.children(recursive=True)
        process.terminate()
        process.send_signal(signal.SIGCONT)
        for left in _alive([process, *below]):
            left.kill()
        return not _alive([process, *below])
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def _alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that still run after `LEASH_SECONDS`; zombies do not count."""
    deadline = time.monotonic() + LEASH_SECONDS
    while (left := [process for process in processes if not _is_over(process)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def _is_over(process: psutil.Process) -> bool:
    import psutil

    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _is_stale(path: Path) -> bool:
    """True for a private folder of this user's in which nothing is younger than a day."""
    try:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            return False
        times = [status.st_mtime, *(inner.lstat().st_mtime for inner in path.iterdir())]
    except OSError:
        return False
    return time.time() - max(times) > OLD


def note_made(folder: Path, file: Path | None) -> None:
    """Remember in an agent's folder that dialogd had a CLI make a session, and how it was left."""
    size = _size(file) if file is not None else None
    with suppress(OSError):
        if size is not None:
            with (folder / MADE).open("a", encoding="utf-8") as out:
                out.write(f"{json.dumps({'file': str(file), 'size': size})}\n")


def _made(folder: Path) -> dict[Path, int]:
    """The sessions that dialogd had CLIs make for the agent of this folder, with their sizes as it left them."""
    found: dict[Path, int] = {}
    with suppress(OSError):
        for line in (folder / MADE).read_text(encoding="utf-8", errors="replace").split("\n"):
            with suppress(ValueError, TypeError, KeyError):
                row = json.loads(line)
                found[Path(row["file"])] = int(row["size"])
    return found

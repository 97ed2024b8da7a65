"""Find and remove what dead daemons of this user have left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
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
OPENCODE = "opencode"  # removes its sessions itself: its database is its own
REMOVAL = 60.0  # seconds; it takes about three
LEASH_SECONDS = 1.5  # a leash ends what it holds within half a second of being asked


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that is left: `kind` is `registration`, `seat`, `process`, `folder` or `session`.

    A `session` is one that dialogd had a coding agent make in the person's home: a file, or with `session` one of
    those in a database; `mark` tells whether anybody went on in it since. `pid` and `created` tell a process from a
    later one of the same number. `daemon` is the one that a registration tells of.
    """

    kind: str
    what: str
    path: Path | None = None
    pid: int = 0
    created: float = 0.0
    session: str = ""
    mark: int = 0
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
        case "session" if leftover.path and _mark(leftover.path, leftover.session) == leftover.mark:
            if leftover.session:
                return _remove(leftover.path, leftover.session)
            leftover.path.unlink(missing_ok=True)
            return not leftover.path.exists()
    return False


def _sessions(state: StateDir) -> Iterator[Leftover]:
    """Sessions of agents whose daemon does not run, as dialogd left them."""
    known = (daemon for _, daemon in entries(state.registry))
    running = {state.agent(Path(daemon.file), daemon.id) for daemon in known if daemon.is_alive()}
    for folder in sorted(state.agents.glob("*")):
        for (path, session), mark in _made(folder).items() if folder not in running else ():
            if _mark(path, session) == mark:
                what = f"{session} in {path}" if session else str(path)
                yield Leftover("session", what, path, session=session, mark=mark)


def _mark(path: Path, session: str) -> int | None:
    """A value that changes when somebody uses the session: its file's length, or its time of change in a database.

    None where that file of this user's is not there, or has no such session.
    """
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
            return None
        return _changed(path, session) if session else status.st_size
    except (OSError, sqlite3.Error):
        return None


def _changed(database: Path, session: str) -> int | None:
    """When something of a session of opencode's was last changed, in milliseconds; nothing is written."""
    from contextlib import closing

    tables = (("session", "id"), ("message", "session_id"), ("part", "session_id"))
    times = " UNION ALL ".join(f"SELECT time_updated FROM {table} WHERE {key} = :id" for table, key in tables)
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=1)) as opened:
        (changed,) = opened.execute(f"SELECT max(time_updated) FROM ({times})", {"id": session}).fetchone()
    return None if changed is None else int(changed)


def _remove(database: Path, session: str) -> bool:
    """Have opencode remove one of its sessions."""
    program = shutil.which(OPENCODE)
    if program is None:
        return False
    told = {name: value for name in ("PATH", "HOME") if (value := os.environ.get(name))}
    off = {f"OPENCODE_DISABLE_{name}": "1" for name in ("AUTOUPDATE", "MODELS_FETCH", "PROJECT_CONFIG")}
    environment = {**told, **off, "XDG_DATA_HOME": str(database.parent.parent)}
    words = [program, "--pure", "session", "delete", session]
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            words,
            check=False,
            env=environment,
            cwd=database.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=REMOVAL,
        )
    with suppress(sqlite3.Error):
        return _changed(database, session) is None
    return False


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


def note_made(folder: Path, file: Path | None, session: str = "") -> None:
    """Remember in an agent's folder that dialogd had a CLI make a session, and how it was left.

    `file` is the session, or with `session` the database that it is kept in.
    """
    mark = _mark(file, session) if file is not None else None
    with suppress(OSError):
        if mark is not None:
            row = json.dumps({"file": str(file), "session": session, "mark": mark})
            with (folder / MADE).open("a", encoding="utf-8") as out:
                out.write(f"{row}\n")


def _made(folder: Path) -> dict[tuple[Path, str], int]:
    """The sessions that dialogd had CLIs make for the agent of this folder, with their marks as it left them."""
    found: dict[tuple[Path, str], int] = {}
    with suppress(OSError):
        for line in (folder / MADE).read_text(encoding="utf-8", errors="replace").split("\n"):
            with suppress(ValueError, TypeError, KeyError):
                row = json.loads(line)
                found[Path(row["file"]), str(row["session"])] = int(row["mark"])
    return found

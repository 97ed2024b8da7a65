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
from contextlib import suppress
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING

from dialogd.store.child import GUARD
from dialogd.store.disk import StateDir
from dialogd.store.registry import Running, entries, process_started, registered

if TYPE_CHECKING:
    import psutil

PREFIX = "dialogd-"  # of temporary folders
RUNS = "run-*"  # temporary folders of an agent's runs, in its own folder of the state directory
MADE = "made-sessions.jsonl"  # in an agent's own folder
OLD = 24 * 3600.0  # seconds; a younger temporary folder may be somebody's still
GUARD_SECONDS = 1.5  # a guard ends what it holds within half a second of being asked


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that is left: `kind` is `registration`, `process`, `folder` or `session`.

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

    Registrations of this state directory, guarded commands of this user and this installation whose daemon is gone,
    temporary folders older than a day, and sessions of coding agents whose daemon does not run, as long as nobody else
    went on in them.
    """
    known = entries(state.registry)
    running = {state.agent(Path(daemon.file), daemon.id) for _, daemon in known if daemon.is_alive()}
    folder = Path(tempfile.gettempdir()) if temporary is None else temporary
    agents = sorted(state.agents.glob("*"))
    return (
        *_processes(),
        *(
            Leftover("registration", f"{one.id} on port {one.port}, pid {one.pid}, is gone", path, daemon=one)
            for path, one in known
            if not one.is_alive()
        ),
        *(
            Leftover("folder", f"{path} is older than a day", path)
            for path in (*sorted(folder.glob(f"{PREFIX}*")), *(run for agent in agents for run in agent.glob(RUNS)))
            if _is_stale(path)
        ),
        *(
            Leftover("session", str(path), path, size=size)
            for agent in agents
            if agent not in running
            for path, size in _made(agent).items()
            if _size(path) == size
        ),
    )


def reap(leftover: Leftover) -> bool:
    """Remove it, after checking once more that it has not changed; False when that failed."""
    path = leftover.path
    if path is None:
        return leftover.kind == "process" and _end(leftover.pid, leftover.created)
    if leftover.kind == "registration" and (daemon := registered(path)) is not None and not daemon.is_alive():
        path.unlink(missing_ok=True)
    elif leftover.kind == "folder" and _is_stale(path):
        shutil.rmtree(path, ignore_errors=True)
    elif leftover.kind == "session" and _size(path) == leftover.size:
        path.unlink(missing_ok=True)
    return not path.exists()


# -- Files ------------------------------------------------------------------------------------------------------------


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


def _size(path: Path) -> int | None:
    """The length of a session's file, which grows when somebody goes on there; None where it is no file of mine."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() else None


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


# -- Processes --------------------------------------------------------------------------------------------------------


def _processes() -> Iterator[Leftover]:
    import psutil

    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = _guarded(process)
            if words is not None and _is_orphan(process):
                what = f"pid {process.pid} holds {Path(words[0]).name if words else 'a command'}, its daemon is gone"
                yield Leftover("process", what, pid=process.pid, created=process.create_time())


def _guarded(process: psutil.Process) -> list[str] | None:
    """The command that a guard of this user and this installation holds; None for any other process."""
    if process.uids().real != os.getuid():
        return None
    words = process.cmdline()
    if len(words) < 5 or words[1:4] != ["-I", "-S", str(GUARD)] or not words[4].isdigit():
        return None
    return [*dropwhile(lambda word: word.startswith("--"), words[5:])]


def _is_orphan(process: psutil.Process) -> bool:
    """True when whoever adopted the guard cannot be its daemon, which runs the same Python as the same user.

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
    """End a guard, which ends what it holds; kill it and all below it when it does not. True when it is gone."""
    import psutil

    try:
        process = psutil.Process(pid)
        if abs(process.create_time() - created) > 0.01 or _guarded(process) is None or not _is_orphan(process):
            return True  # another process by now
        all_of_it = [process, *process.children(recursive=True)]
        process.terminate()
        process.send_signal(signal.SIGCONT)
        for left in _alive(all_of_it):
            left.kill()
        return not _alive(all_of_it)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False


def _alive(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that still run after `GUARD_SECONDS`; zombies do not count, for psutil does not wait for them."""
    deadline, left = time.monotonic() + GUARD_SECONDS, [*processes]
    while left and time.monotonic() < deadline:
        time.sleep(0.01)
        left = [one for one in left if one.is_running() and process_started(one.pid) is not None]
    return left

"""Find and remove what dead daemons of this user have left behind."""

from __future__ import annotations

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
from dialogd.store.registry import Running, entries, registered

if TYPE_CHECKING:
    import psutil

PREFIX = "dialogd-"  # of temporary folders
RUNS = "run-*"  # temporary folders of an agent's runs, in its own folder of the state directory
OLD = 24 * 3600.0  # seconds; a younger temporary folder may be somebody's still
GUARD_SECONDS = 1.5  # a guard ends what it holds within half a second of being asked


@dataclass(frozen=True, slots=True)
class Leftover:
    """One thing that is left: `kind` is `registration`, `process` or `folder`.

    `pid` and `created` tell a process from a later one of the same number. `daemon` is the one that a registration
    tells of.
    """

    kind: str
    what: str
    path: Path | None = None
    pid: int = 0
    created: float = 0.0
    daemon: Running | None = None


def find_leftovers(state: StateDir, temporary: Path | None = None) -> tuple[Leftover, ...]:
    """Everything that dead daemons left behind; changes nothing.

    Registrations of this state directory, guarded commands of this user and this installation whose daemon is gone,
    and temporary folders older than a day.
    """
    known = entries(state.registry)
    folder = Path(tempfile.gettempdir()) if temporary is None else temporary
    return (
        *_processes(),
        *(
            Leftover("registration", f"{one.id} on port {one.port}, pid {one.pid}, is gone", path, daemon=one)
            for path, one in known
            if not one.is_alive()
        ),
        *(
            Leftover("folder", f"{path} is older than a day", path)
            for path in (*sorted(folder.glob(f"{PREFIX}*")), *sorted(state.agents.glob(f"*/{RUNS}")))
            if _is_stale(path)
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
    return not path.exists()


# -- Files ------------------------------------------------------------------------------------------------------------


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
    import psutil

    def is_over(process: psutil.Process) -> bool:
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    deadline = time.monotonic() + GUARD_SECONDS
    while (left := [process for process in processes if not is_over(process)]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left

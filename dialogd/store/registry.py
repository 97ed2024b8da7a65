"""The daemons that run, and where an act comes from: the person, or a session that holds a seat."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dialogd.errors import AlreadyRunning, StorageError
from dialogd.protocol.model import OTHER, UNKNOWN
from dialogd.store.disk import Lock, StateDir, read_json, real, write_over

if TYPE_CHECKING:
    import psutil


SEAT_WAIT = 1.0  # seconds for which a taken seat is waited for
SETTLED = 1_000_000_000  # nanoseconds after which a change of the folder was the last one of its time stamp


@dataclass(frozen=True, slots=True)
class Running:
    """A registered daemon. `created` is its process's start time, so that a reused pid is not mistaken for it.

    `plans` is the folder where it leaves the plan of a dialog that ends, "" where it leaves none; `session` the open
    session that it speaks for (`claude:PID:START`), "" for none; `repo` the repository of the build that it works on.
    """

    id: str
    port: int
    file: str
    pid: int
    created: float
    log: str = ""
    plans: str = ""
    session: str = ""
    repo: str = ""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def is_alive(self) -> bool:
        """True while the very process that registered runs."""
        return is_running(self.pid, self.created)


def process_started(pid: int) -> float | None:
    """When the process of that id started, None where none runs."""
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except (psutil.Error, ValueError, OverflowError, TypeError):  # of what a damaged file says
        return None


def is_running(pid: int, created: float) -> bool:
    """True while the process of that id runs that started then, and no later one of the same id."""
    began = process_started(pid)
    return began is not None and abs(began - created) < 1.0


HOME = "home.json"  # in the state directory: the Home that runs


def home_port(state: StateDir) -> int | None:
    """The port of the Home that runs in this state directory; None where none does."""
    found = read_json(state.root / HOME)
    try:
        port, pid, created = int(found["port"]), int(found["pid"]), float(found["created"])
    except (TypeError, KeyError, ValueError):
        return None
    return port if is_running(pid, created) else None


def registered(path: Path) -> Running | None:
    """The daemon that an entry tells of, None where it cannot be read."""
    try:
        return Running(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def entries(folder: Path) -> list[tuple[Path, Running]]:
    """The entries of the registry's folder that can be read, and the daemons that they tell of, running or not."""
    return [(path, daemon) for path in sorted(folder.glob("*.json")) if (daemon := registered(path)) is not None]


class Registry:
    """The folder of running daemons. A daemon holds one seat and has one entry."""

    def __init__(self, state: StateDir) -> None:
        self.state = state
        self.folder = state.registry
        self._known: dict[Path, tuple[int, dict[str, str]]] = {}

    @contextmanager
    def seat(self, agent: str, file: Path) -> Iterator[None]:
        """Hold the seat of `agent` at `file` for as long as this process lives; raises `AlreadyRunning` when taken."""
        name = f"{agent}-{hashlib.sha256(os.fsencode(file)).hexdigest()[:12]}.seat"
        # A program that a killed daemon was just starting may hold its seat for a moment, until it has begun.
        lock = Lock(self.folder / name, wait=SEAT_WAIT, per_process=True)
        try:
            lock.acquire()
        except StorageError as error:
            other = next((d for d in self.running(file) if d.id == agent), None)
            where = f" (port {other.port}, pid {other.pid})" if other else ""
            raise AlreadyRunning(
                f"{agent} already runs on {file}{where}",
                fix=f"use that one, end it with Ctrl-C or `kill {other.pid if other else 'PID'}`, or start another id",
            ) from error
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def entry(
        self, agent: str, port: int, file: Path, log: Path, plans: Path | None = None, session: str = "", repo: str = ""
    ) -> Iterator[Running]:
        """Be listed as running."""
        import psutil

        created = psutil.Process().create_time()
        me = Running(agent, port, str(file), os.getpid(), created, str(log), str(plans or ""), session, repo)
        path = self.folder / f"{port}-{agent}.json"
        write_over(json.dumps(asdict(me)).encode(), path, durable=False)
        try:
            yield me
        finally:
            path.unlink(missing_ok=True)

    def running(self, file: Path | None = None) -> tuple[Running, ...]:
        """The daemons that run, of one file or of all; forgets those that are gone."""
        found: list[Running] = []
        for path, daemon in entries(self.folder):
            if not daemon.is_alive():
                with suppress(FileNotFoundError):
                    path.unlink()
            elif file is None or daemon.file == str(file):
                found.append(daemon)
        return tuple(found)

    def listener(self, port: int) -> str:
        """Who listens on a taken port, in a few words; forgets nobody."""
        listed = (daemon for _, daemon in entries(self.folder))
        daemon = next((daemon for daemon in listed if daemon.port == port and daemon.is_alive()), None)
        return f"the dialogd daemon of agent {daemon.id} on {daemon.file}" if daemon else "another program"

    def urls(self, file: Path) -> dict[str, str]:
        """Agent id -> address of each daemon at that file. Looked up anew only where daemons came or went."""
        try:
            changed = self.folder.stat().st_mtime_ns
        except FileNotFoundError:
            return {}
        at, urls = self._known.get(file, (0, {}))
        if at != changed:
            urls = {daemon.id: daemon.url for daemon in self.running(file)}
            is_over = time.time_ns() - changed > SETTLED  # else another change may bear the same time
            self._known[file] = (changed if is_over else 0), urls
        return urls


T = TypeVar("T")
Address = tuple[str, int]

CLAUDE, CODEX = "claude", "codex"
CLAUDE_SOCKET = "CLAUDE_CODE_MESSAGING_SOCKET"  # Claude Code gives its commands a socket that is called PID.sock
CODEX_THREAD = "CODEX_THREAD_ID"  # Codex gives its commands the thread that they run in
SANDBOX = "DIALOGD_SANDBOX"  # a word of the command by which dialogd makes one
HOOK = "DIALOGD_HOOK"  # daemons give it to the hooks that they start: what these do the person does


# -- The process of a session -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """A session by its key: `claude:PID:START`, or `codex:THREAD`, which names no process (`pid` 0).

    START is what `start_of` says: with it a pid that was given to another process is not taken for the session's.
    """

    program: str
    id: str
    pid: int = 0
    started: str = ""

    @property
    def is_running(self) -> bool:
        """True while the very process of this key runs; of one without a process False."""
        if "." in self.started:  # seconds, no clock ticks
            return is_running(self.pid, float(self.started))
        return self.pid > 0 and start_of(self.pid) == self.started


def read_key(text: str) -> Key | None:
    if match := re.fullmatch(r"([a-z][a-z0-9-]*):([1-9][0-9]{0,9}):([0-9]+(?:\.[0-9]+)?)", text):
        return Key(match[1], match[2], int(match[2]), match[3])
    match = re.fullmatch(r"([a-z][a-z0-9-]*):([A-Za-z0-9][A-Za-z0-9_-]*)", text)
    return Key(match[1], match[2]) if match else None


def start_of(pid: int) -> str:
    """When that process began, as a key has it: on Linux in clock ticks since boot, else in seconds; "" for none."""
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return ""
        state, *fields = stat.rpartition(b")")[2].split()
        return "" if state in (b"Z", b"X") else fields[18].decode()
    began = process_started(pid)
    return f"{began:.2f}" if began is not None else ""


def process_key(pid: int) -> str:
    """The process of that pid, told from a later one of the same number: `PID:START`; "" for none."""
    started = start_of(pid)
    return f"{pid}:{started}" if started else ""


# -- Whose tree a process belongs to ----------------------------------------------------------------------------------


def seat_of(pid: int, running: Collection[Running]) -> Running | None:
    """The live seat whose session the process belongs to, or the agent of a build that it works for; None for none.

    It belongs to a session that is among its ancestors, or among those of the leaders of its process group and of its
    terminal session; whose mark an environment on the way there holds; or in whose terminal it is, below nothing that
    the session is below: then its parents are gone.
    """
    seats = [(one, key) for one in running if (key := read_key(one.session)) is not None]
    builders = {one.pid: one for one in running if one.repo}
    if not seats and not builders:
        return None
    ancestry = [_line(root) for root in (pid, *_leaders(pid))]
    for child, parent in (pair for line in ancestry for pair in pairwise(line)):
        if parent.pid in builders and not _is_hook(child):
            return builders[parent.pid]
    lines = list(dict.fromkeys(one for line in ancestry for one in line))
    for process in lines:
        for seat, key in seats:
            if _is_of(process, key):
                return seat
    return next((seat for seat, key in seats if _is_left_behind(pid, key)), None)


def _is_hook(process: psutil.Process) -> bool:
    """True when a daemon started the process as a hook of the person's: nobody below it can say that of it."""
    import psutil

    try:
        return HOOK in process.environ()
    except (psutil.Error, OSError):
        return False


def is_inside(pid: int, session: str) -> bool:
    """True when the process is that of the session with this key, or below it."""
    key = read_key(session)
    return key is not None and any(_is_of(process, key) for process in _line(pid))


def _is_of(process: psutil.Process, key: Key) -> bool:
    return (process.pid == key.pid and key.is_running) or _is_marked(process, key)


def _line(pid: int) -> list[psutil.Process]:
    """A process and its ancestors, the nearest first; none where it is gone."""
    import psutil

    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.parents()]
    return []


def _leaders(pid: int) -> Iterator[int]:
    """The leaders of the process's group and terminal session; while these exist no other process has their pids."""
    for ask in (os.getpgid, os.getsid):
        with suppress(OSError):
            yield ask(pid)


def _is_marked(process: psutil.Process, key: Key) -> bool:
    """True when the environment with which the process began was a child's of that session."""
    import psutil

    try:
        variables = process.environ()
        if key.program == CODEX:
            return variables.get(CODEX_THREAD) == key.id
        if key.program != CLAUDE or Path(variables.get(CLAUDE_SOCKET, "")).name != f"{key.pid}.sock":
            return False
        # Where another process has that pid by now, its children are marked alike.
        return key.is_running or not start_of(key.pid) or process.create_time() < psutil.Process(key.pid).create_time()
    except (psutil.Error, OSError):
        return False


def _is_left_behind(pid: int, key: Key) -> bool:
    """True for a process in the session's terminal that hangs below nothing that the session hangs below."""
    if not key.is_running:
        return False
    try:
        terminal = os.getsid(key.pid)
        if not terminal or os.getsid(pid) != terminal:  # 0: one outside of this container
            return False
        above = {one.pid for one in _line(key.pid)[1:]}
        return not any(one.pid in above and os.getsid(one.pid) == terminal for one in _line(pid))
    except OSError:
        return False


# -- Whose connection it is -------------------------------------------------------------------------------------------


def holders(inode: int) -> tuple[int, ...]:
    """The processes that hold that socket; where none is found, those of this user that do not show what they hold."""
    found, hidden = [], []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if any(_is_socket(entry, inode) for entry in os.scandir(folder / "fd")):
                found.append(int(folder.name))
        except PermissionError:
            with suppress(OSError):
                if _user_of(folder) == os.geteuid():
                    hidden.append(int(folder.name))
        except OSError:
            continue
    return tuple(found or hidden)


def _is_socket(entry: os.DirEntry[str], inode: int) -> bool:
    try:
        return str(Path(entry.path).readlink()) == f"socket:[{inode}]"
    except OSError:
        return False


def _user_of(folder: Path) -> int:
    """The user that a process runs as; its folder's owner is root where it hides what it holds."""
    match = re.search(rb"^Uid:\s+\d+\s+(\d+)", (folder / "status").read_bytes(), re.M)
    return int(match[1]) if match else -1


def connected(theirs: Address, ours: Address) -> tuple[int, ...]:
    """The processes of this user that have a connection from `theirs` to `ours`, where no inode tells: slower."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            ends = process.net_connections("tcp")
            if any(tuple(one.laddr) == theirs and tuple(one.raddr) == ours for one in ends):
                found.append(process.pid)
    return tuple(found)


# -- Where an act comes from ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Caller:
    """Where an act comes from: the person, the session or agent of `seat`, or nobody could find out (`is_unknown`)."""

    seat: Running | None = None
    is_unknown: bool = False

    @property
    def is_person(self) -> bool:
        """True for the person, and for any program of theirs that holds no seat."""
        return self.seat is None and not self.is_unknown

    def via(self, file: Path) -> str:
        """What the frame of an entry in `file` says of it: a seat's id, `OTHER`, `UNKNOWN`; "" for the person."""
        if self.seat is None:
            return UNKNOWN if self.is_unknown else ""
        return self.seat.id if Path(self.seat.file) in (file, real(file)) else OTHER


def caller_of(find: Callable[[], Sequence[int]], folder: Path) -> Caller:
    """Where an act of the processes that `find` finds comes from, with the registry's `folder`.

    Where none is found, it is unknown while a daemon there speaks for a session or works on a build; and it always is
    from a sandbox, as that of a setup which may use the network. Daemons are told apart: what they ask of one another
    was decided by whoever asked them.
    """
    known = [daemon for _, daemon in entries(folder)]
    seats = [one for one in known if (one.session or one.repo) and one.is_alive()]
    pids = find()
    if not pids:
        return Caller(is_unknown=bool(seats))
    daemons = {one.pid for one in known if one.is_alive()}
    found = next(filter(None, (seat_of(pid, seats) for pid in pids if pid not in daemons)), None)
    return Caller(found, is_unknown=found is None and any(map(_is_confined, pids)))


def _is_confined(pid: int) -> bool:
    """True when the process, or one above it, is a sandbox of dialogd's: nobody in it can change what that says."""
    import psutil

    for process in _line(pid):
        with suppress(psutil.Error, OSError):
            if SANDBOX in process.cmdline():
                return True
    return False


def _this_process(folder: Path) -> Caller:
    found = caller_of(lambda: [os.getpid()], folder)
    # A command of a session's may have been given another state directory, which lists no seat of it.
    return Caller(seat_of(os.getpid(), _anywhere())) if found.is_person and _is_in_session(os.getpid()) else found


_caller: ContextVar[Callable[[Path], Caller]] = ContextVar("dialogd_caller", default=_this_process)
"""Finds out where what is done now comes from."""


def asked_by(callers: Callable[[], Sequence[int]]) -> None:
    """Have acts of this task, and of work that `carried` gives, come from the processes that `callers` finds."""
    _caller.set(partial(caller_of, callers))


def carried(work: Callable[[], T]) -> Callable[[], T]:
    """`work` for another thread, as asked for by whoever asks this one."""
    return partial(copy_context().run, work)


def caller_here(folder: Path) -> Caller:
    """Where what is done now comes from: from who asks for it over a connection, else from this process."""
    return _caller.get()(folder)


def _is_in_session(pid: int) -> bool:
    """True when a process, or one above it, has the mark of some coding session in its environment."""
    import psutil

    for process in _line(pid):
        with suppress(psutil.Error, OSError):
            if {CLAUDE_SOCKET, CODEX_THREAD} & set(process.environ()):
                return True
    return False


def _anywhere() -> tuple[Running, ...]:
    """The live seats of this user, whatever the state directory, by the words that their daemons were started with."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError, ValueError, IndexError):
            words = process.cmdline()
            at = words.index("start")
            file, session = (words[words.index(name, at) + 1] for name in ("--file", "--session"))
            if process.uids().real == os.geteuid():
                found.append(Running(words[at + 1], 0, file, process.pid, process.create_time(), session=session))
    return tuple(found)


def settle(folder: Path) -> Caller:
    """Find out now where this task's acts come from: it is about to end the daemons that tell it."""
    found = caller_here(folder)
    _caller.set(lambda _: found)
    return found

"""Which daemons of this user run: one JSON file each, believed only while its process is the one that wrote it."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from dialogd.errors import AlreadyRunning, StorageError
from dialogd.store.disk import read_json, write_over
from dialogd.store.folders import StateDir
from dialogd.store.lock import Lock

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
        self._seated: tuple[str, Path, Lock] | None = None  # whose, at what, held how
        self._me: Running | None = None
        self._renewing = threading.Lock()  # nothing is put back once it was taken away in order

    @contextmanager
    def seat(self, agent: str, file: Path) -> Iterator[None]:
        """Hold the seat of `agent` at `file` for as long as this process lives; raises `AlreadyRunning` when taken."""
        self._sit(agent, file)
        try:
            yield
        finally:
            with self._renewing:
                if self._seated is not None:
                    self._seated[2].release()
                    self._seated = None

    def _sit(self, agent: str, file: Path) -> None:
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
        self._seated = agent, file, lock

    @contextmanager
    def entry(
        self, agent: str, port: int, file: Path, log: Path, plans: Path | None = None, session: str = "", repo: str = ""
    ) -> Iterator[Running]:
        """Be listed as running."""
        import psutil

        created = psutil.Process().create_time()
        me = Running(agent, port, str(file), os.getpid(), created, str(log), str(plans or ""), session, repo)
        self._list(me)
        self._me = me
        try:
            yield me
        finally:
            with self._renewing:
                self._me = None
                self._entry_of(me).unlink(missing_ok=True)

    def _list(self, me: Running) -> None:
        write_over(json.dumps(asdict(me)).encode(), self._entry_of(me), durable=False)

    def _entry_of(self, me: Running) -> Path:
        return self.folder / f"{me.port}-{me.id}.json"

    def renew(self) -> bool:
        """Take the seat and be listed again where that was taken away, as with its folder; True when it was.

        Raises `AlreadyRunning` when another daemon has the seat by now: then nothing is changed.
        """
        with self._renewing:
            if self._seated is None or self._me is None:
                return False
            agent, file, lock = self._seated
            is_ours = lock.is_in_place
            if is_ours and self._entry_of(self._me).exists():
                return False
            self.folder = self.state.registry
            if not is_ours:
                self._sit(agent, file)
                lock.release()  # of a file that is gone
            self._list(self._me)
            return True

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

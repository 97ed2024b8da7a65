"""Run one command so that nothing it starts outlives the daemon; a program of its own, standard library only.

    python -I -S process_guard.py <control fd> [--limits=tasks,memory,disk,files --folder=… …] prog args…

The control fd is one end of a socket pair; only the daemon holds the other end. End of file on it means that the
daemon let go, or died in whatever way: the command and all that it started get SIGTERM, and SIGKILL 0.3 s later.
The same happens to what is left when the command ends by itself. stdin, stdout and stderr are the command's own.
Exit code: the command's, or 128 + n when signal n ended it. If the command cannot be started, its errno is written
to the control fd as a decimal number and the exit code is 127.

With limits it looks ten times a second at what the command and all below it take: `tasks` are processes and threads,
`memory` bytes, `disk` bytes of each file system of the folders. Whatever passes one is killed at once, and the name of
that limit is written to the control fd; it is `machine` where the machine has no memory left, as of files that lie in
memory, which no process shows. A process may have `files` open, and make none above `disk` bytes.

Linux: all descendants are found, also those that left the process group by `setsid`, because orphans are handed to
this process (PR_SET_CHILD_SUBREAPER). Elsewhere, macOS among them, only the command's process group is reached.

This process has no PDEATHSIG of its own: that fires when the *thread* that started it ends, and kills the only one
who can clean up. The command has one, on this single-threaded process: killing the guard ends the command.
"""

# ruff: noqa: PTH123, PTH208
# pathlib would double the start-up time, which every reply pays
from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Callable

GRACE = 0.3  # seconds from SIGTERM to SIGKILL
GIVE_UP = 2.0  # seconds of SIGKILL, in vain only against processes of another user
ALIVE = 3  # of a command with limits: a pipe that nobody but the guard reads, see `confined`
RESCAN = 0.01  # seconds between two looks for what was started meanwhile
WATCH = 0.1  # seconds between two looks at what is taken
LEFT = 16  # the part of the machine's memory that stays available, or half of what was at the beginning

PAGE = os.sysconf("SC_PAGE_SIZE")

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class Guard:
    """The command, its descendants and the line to the daemon."""

    def __init__(self, control: int, command: list[str], limits: Limits | None = None) -> None:
        self.control = fcntl.fcntl(control, fcntl.F_DUPFD_CLOEXEC, ALIVE + 1)
        os.close(control)
        self.limits = limits
        self.wake = _wake_on_signals()
        self.status: int | None = None
        prctl = _prctl()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.command = _start(command, self.control, prctl, limits)
        if limits and os.getuid() == 0:
            _go_first()

    def run(self) -> int:
        """Wait for the command or the daemon to end, then end everything else; returns the exit code."""
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(self.wake, select.POLLIN)
        while self._reap() and self.status is None:
            ready = [fd for fd, _ in poller.poll(WATCH * 1000 if self.limits else None)]
            if self.control in ready or (self.wake in ready and ENDING.intersection(os.read(self.wake, 512))):
                break
            if self.limits and (passed := self.limits.passed()):
                self._signal_all(signal.SIGKILL)
                os.write(self.control, passed.encode())
                break
        self._end()
        code = -signal.SIGKILL if self.status is None else os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code

    def _end(self) -> None:
        if not self._left():
            return
        self._signal_all(signal.SIGTERM)
        if _within(GRACE, self._left):
            return
        deadline = time.monotonic() + GIVE_UP
        self._signal_all(signal.SIGKILL)
        while not _within(RESCAN, self._reap) and time.monotonic() < deadline:
            self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        _send(-self.command, number)  # which takes a sandbox with all that is in it
        for pid in _descendants():
            _send(pid, number)

    def _left(self) -> bool:
        """True while a child, an adopted orphan or a member of the command's group is there."""
        return self._reap() or (sys.platform != "linux" and _send(-self.command, 0))

    def _reap(self) -> bool:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.command:
                self.status = status


class Limits:
    """What may be taken, and whether it is. What is cheap to read, and never less than that, is read first."""

    def __init__(self, limits: str, folders: list[str]) -> None:
        self.processes, self.memory, self.disk, self.files = map(int, limits.split(","))
        total, available = _memory()
        self.least = min(total // LEFT, available // 2)
        self.free = {folder: _free(folder) for folder in folders}

    def passed(self) -> str:
        """The name of a limit that is passed, "" where none is."""
        for folder, (before, files) in self.free.items():
            now, left = _free(folder)
            if before - now > self.disk or left < files // 2:
                return "disk"
        total, available = _memory()
        if available < self.least:
            return "machine"
        if total - available <= self.memory and _threads() <= self.processes:
            return ""
        below = _descendants()
        if sum(tasks for tasks, _ in below.values()) > self.processes:
            return "tasks"
        if sum(size for _, size in below.values()) <= self.memory:  # what is shared is counted more than once
            return ""
        return "memory" if sum(_share(pid, size) for pid, (_, size) in below.items()) > self.memory else ""

    def take_effect(self) -> None:
        """What the kernel itself sees to, for this process and all below it."""
        import resource

        wanted = {resource.RLIMIT_FSIZE: self.disk, resource.RLIMIT_NOFILE: self.files, resource.RLIMIT_CORE: 0}
        for what, most in wanted.items():
            soft, hard = (most if had == resource.RLIM_INFINITY else min(had, most) for had in resource.getrlimit(what))
            resource.setrlimit(what, (soft, hard))


def _go_first() -> None:
    """Go before what is watched: nothing else keeps the superuser's processes from taking all the time there is."""
    try:
        os.nice(-20)
    except OSError:
        return  # in a container


def _memory() -> tuple[int, int]:
    """The machine's memory, and what of it is available, in bytes; 0 where nobody says so."""
    found = {"MemTotal": 0, "MemAvailable": 0}
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name in found:
                    found[name] = int(rest.split()[0]) * 1024
    except OSError:
        pass
    return found["MemTotal"], found["MemAvailable"]


def _threads() -> int:
    try:
        with open("/proc/loadavg") as file:
            return int(file.read().split()[3].partition("/")[2])
    except OSError:
        return 0


def _free(folder: str) -> tuple[int, int]:
    """Bytes and files for which there is room on the file system of a folder."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0, 0
    return found.f_bavail * found.f_frsize, found.f_favail


def _share(pid: int, size: int) -> int:
    """The memory of a process, with its part of what it shares; `size` where nobody says so."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:")), size)
    except OSError:
        return size


def _within(seconds: float, left: Callable[[], bool]) -> bool:
    """True as soon as nothing is left, False when that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while left():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.002)
    return True


def _start(command: list[str], control: int, prctl: Callable[[int, int], None], limits: Limits | None) -> int:
    guard = os.getpid()
    _, alive = os.pipe()  # whose other end stays open as long as this process lives
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if limits:
                limits.take_effect()
                os.dup2(alive, ALIVE)
                os.set_inheritable(ALIVE, True)  # also where it is that one already
            if os.getppid() == guard:
                for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these; exec would pass that on
                    signal.signal(number, signal.SIG_DFL)
                os.execv(command[0], command)
        except OSError as error:
            os.write(control, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(alive)
    return pid


def _wake_on_signals() -> int:
    """Make each signal of interest a byte, its number, to be read from the returned pipe."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *ENDING):
        signal.signal(number, lambda *_: None)
    return reader


def _prctl() -> Callable[[int, int], None]:
    """Linux's prctl; elsewhere, or in a Python without ctypes, a function that does nothing."""
    if sys.platform == "linux":
        try:
            import ctypes

            libc = ctypes.CDLL(None)
            return lambda option, value: libc.prctl(option, value, 0, 0, 0)
        except (ImportError, OSError):
            pass
    return lambda option, value: None


def _descendants() -> dict[int, tuple[int, int]]:
    """Every process below this one, with its threads and bytes of memory, as far as /proc tells; {} without one."""
    children: dict[int, dict[int, tuple[int, int]]] = {}
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                told = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # gone meanwhile
        children.setdefault(int(told[1]), {})[pid] = int(told[17]), int(told[21]) * PAGE
    found: dict[int, tuple[int, int]] = {}
    parents = [os.getpid()]
    while parents:
        below = children.get(parents.pop(), {})
        found.update(below)
        parents.extend(below)
    return found


def _send(pid: int, number: int) -> bool:
    """Signal a process, or a group by its negative id; False when there is none that may be signalled."""
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    words, told = sys.argv[2:], []
    while words[0].startswith("--"):
        told.append(words.pop(0).partition("=")[2])
    os._exit(Guard(int(sys.argv[1]), words, Limits(told[0], told[1:]) if told else None).run())  # no clean-up: 10 ms

"""Run one command so that nothing it starts outlives the daemon; a program of its own, standard library only.

    python -I -S leash.py <control fd> prog args…

The control fd is one end of a socket pair; only the daemon holds the other end. End of file on it means that the
daemon let go, or died in whatever way: the command and all that it started get SIGTERM, and SIGKILL 0.3 s later.
The same happens to what is left when the command ends by itself. stdin, stdout and stderr are the command's own.
Exit code: the command's, or 128 + n when signal n ended it. If the command cannot be started, its errno is written
to the control fd as a decimal number and the exit code is 127.

Linux: all descendants are found, also those that left the process group by `setsid`, because orphans are handed to
this process (PR_SET_CHILD_SUBREAPER). Elsewhere, macOS among them, only the command's process group is reached.

This process has no PDEATHSIG of its own: that fires when the *thread* that started it ends, and kills the only one
who can clean up. The command has one, on this single-threaded process: killing the leash ends the command.
"""

# ruff: noqa: PTH123, PTH208
# pathlib would double the start-up time, which every reply pays
from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Callable

GRACE = 0.3  # seconds from SIGTERM to SIGKILL
GIVE_UP = 2.0  # seconds of SIGKILL, in vain only against processes of another user
RESCAN = 0.01  # seconds between two looks for what was started meanwhile

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class Leash:
    """The command, its descendants and the line to the daemon."""

    def __init__(self, control: int, command: list[str]) -> None:
        os.set_inheritable(control, False)
        self.control = control
        self.wake = _wake_on_signals()
        self.status: int | None = None
        prctl = _prctl()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.command = _start(command, control, prctl)

    def run(self) -> int:
        """Wait for the command or the daemon to end, then end everything else; returns the exit code."""
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(self.wake, select.POLLIN)
        while self._reap() and self.status is None:
            ready = [fd for fd, _ in poller.poll()]
            if self.control in ready or (self.wake in ready and ENDING.intersection(os.read(self.wake, 512))):
                break
        self._end()
        code = -signal.SIGKILL if self.status is None else os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code

    def _end(self) -> None:
        """Ask everything that is left to end, then kill until nothing is left."""
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
        for pid in (-self.command, *_descendants()):
            _send(pid, number)

    def _left(self) -> bool:
        """True while a child, an adopted orphan or a member of the command's group is there."""
        return self._reap() or (sys.platform != "linux" and _send(-self.command, 0))

    def _reap(self) -> bool:
        """Collect every child that ended; False once there is none left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.command:
                self.status = status


def _within(seconds: float, left: Callable[[], bool]) -> bool:
    """True as soon as nothing is left, False when that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while left():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.002)
    return True


def _start(command: list[str], control: int, prctl: Callable[[int, int], None]) -> int:
    """Start the command as the leader of a process group of its own; returns its pid."""
    leash = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == leash:
                for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these; exec would pass that on
                    signal.signal(number, signal.SIG_DFL)
                os.execv(command[0], command)
        except OSError as error:
            os.write(control, str(error.errno).encode())
        finally:
            os._exit(127)
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


def _descendants() -> list[int]:
    """Every process below this one, as far as /proc tells; [] where there is no /proc."""
    children: dict[int, list[int]] = {}
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            continue  # gone meanwhile
        children.setdefault(parent, []).append(pid)
    found = children.get(os.getpid(), [])
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def _send(pid: int, number: int) -> bool:
    """Signal a process, or a group by its negative id; False when there is none that may be signalled."""
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    os._exit(Leash(int(sys.argv[1]), sys.argv[2:]).run())  # no clean-up: another 10 ms

"""A command that answers and leaves a trace of each call, as a counting model would; and a hand on the lock."""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.faults.history import records
from tests.support.pair import Daemon, Pair, until

SCRIPT = """#!/bin/sh
# $1: where traces go; $2: seconds to think, or "held": until there is a file $1/go
echo "$DIALOGD_AGENT $DIALOGD_TURN $$" >> "$1/asked"
cat > /dev/null
if [ "$2" = held ]; then
    until [ -e "$1/go" ]; do sleep 0.05; done
else
    sleep "$2"
fi
echo "Word $DIALOGD_AGENT-$DIALOGD_TURN-$$ and no more."
echo "$DIALOGD_AGENT $DIALOGD_TURN $$" >> "$1/answered"
"""


class Replies:
    """The traces of a counting command in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "reply.sh"
        self.script.write_text(SCRIPT)
        self.script.chmod(0o700)

    def command(self, seconds: float | str = 0.0) -> str:
        """The command line of one that thinks for so long, or, `held`, until it is let go."""
        return shlex.join([str(self.script), str(self.folder), str(seconds)])

    def let_go(self) -> None:
        (self.folder / "go").touch()

    def hold(self) -> None:
        (self.folder / "go").unlink()

    def asked(self, agent: str = "") -> list[tuple[str, int, int]]:
        """Agent, turn and process of every call that was begun."""
        return self._read("asked", agent)

    def answered(self, agent: str = "") -> list[tuple[str, int, int]]:
        """Agent, turn and process of every call that came to its end."""
        return self._read("answered", agent)

    def _read(self, name: str, agent: str) -> list[tuple[str, int, int]]:
        path = self.folder / name
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        found = [(who, int(turn), int(pid)) for who, turn, pid in (line.split() for line in lines)]
        return [call for call in found if agent in ("", call[0])]

    def alive(self) -> list[int]:
        return [pid for _, _, pid in self.asked() if is_alive(pid)]


def is_alive(pid: int) -> bool:
    """True while a process runs and is no zombie."""
    try:
        os.kill(pid, 0)
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a dialog file: whoever is about to append stands still, at a moment that is known exactly."""
    fd = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def held_reply(pair: Pair, begin: str = "", held: Replies | None = None) -> Iterator[str]:
    """Hold a dialog where a reply is received and not in the file; gives the reply.

    It is begun by a notify of agent `begin`, or goes on as `held` commands are let go.
    """

    def waiting() -> list[str]:
        text = pair.file.read_text()
        return [reply for reply in journalled(pair) if reply.split()[1] not in text]

    with locked(pair.file):
        if held:
            held.let_go()
        if begin:
            pair.notify(begin)
        pair.until(waiting, "a reply")
        yield waiting()[0]


def freeze(daemon: Daemon) -> None:
    """SIGSTOP, and wait until every thread stands still: until then one of them may yet take the lock."""
    daemon.signal(signal.SIGSTOP)
    until(lambda: set(_states(daemon.pid)) <= {"T"}, f"{daemon.id} to stand still")


def _states(pid: int) -> list[str]:
    threads = Path(f"/proc/{pid}/task")
    if threads.is_dir():
        return [(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads.iterdir()]
    return ["T" if psutil.Process(pid).status() == psutil.STATUS_STOPPED else "?"]


def journalled(pair: Pair) -> list[str]:
    """Every reply that a daemon has received, as text."""
    return [str(record["text"]) for record in records(pair.state_dir, "reply")]


def drafts(pair: Pair) -> list[str]:
    """Every reply that was kept as a draft, as text."""
    return [str(record["text"]) for record in records(pair.state_dir, "draft")]

"""A shell that plays the session which holds a seat: what is typed into it runs as a child of its own."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from dialogd.store.registry import start_of
from tests.support.pair import until

DIALOGD = f"{shlex.quote(sys.executable)} -m dialogd"
OWN = ("PATH", "PYTHONPATH", "DIALOGD_FILE", "DIALOGD_STATE_DIR")  # variables that a command needs, and no other

_ORPHAN = """
import os, sys, time
flags, words = sys.argv[1].split(","), sys.argv[2:]
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.001)
if "setsid" in flags:
    os.setsid()
kept = {name: value for name, value in os.environ.items() if "bare" not in flags or name in %r}
os.execvpe(words[0], words, kept)
"""


def orphan(flags: str, line: str) -> str:
    """A shell line that runs `line` in a process whose parent is gone: `setsid` in a session of its own, `bare`
    without what else is in its environment."""
    code = shlex.quote(_ORPHAN % (OWN,))
    return f"{shlex.quote(sys.executable)} -c {code} {flags} sh -c {shlex.quote(line)}"


def _kept(line: str, file: Path) -> str:
    """A shell line that runs `line` and leaves what it came to in files."""
    return f"{{ {line}; }} >{file}.out 2>&1; echo $? >{file}.part; mv {file}.part {file}"


@dataclass(frozen=True)
class Came:
    """What a line came to."""

    code: int
    out: str


class Shell:
    """A `sh` that reads lines and lives until the block ends.

    It leads a terminal session of its own, or runs in that of the shell `within`, as a program started there does.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], within: Shell | None = None) -> None:
        self.folder = folder
        self._numbers = itertools.count()
        words = ["sh"]
        if within is not None:
            pipe = folder / f"typed-{within.pid}"
            os.mkfifo(pipe)
            within.type(f"sh <{pipe} & echo $! >{pipe}.part; mv {pipe}.part {pipe}.pid")
            words = ["sh", "-c", f"exec cat >{pipe}"]  # what is typed goes there
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, cwd=folder, env=dict(environment), start_new_session=True, text=True
        )
        self.pid = self.process.pid
        if within is not None:
            known = folder / f"typed-{within.pid}.pid"
            until(known.exists, "a shell in a shell")
            self.pid = int(known.read_text())
        self.type(f"export CLAUDE_CODE_MESSAGING_SOCKET={folder}/{self.pid}.sock CLAUDECODE=1")

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        self.process.communicate()

    @property
    def key(self) -> str:
        return f"claude:{self.pid}:{start_of(self.pid)}"

    def type(self, line: str) -> None:
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def begin(self, line: str) -> Path:
        """Run a line in the background; what it came to is read by `end`."""
        file = self.folder / f"line-{self.pid}-{next(self._numbers)}"
        self.type(f"sh -c {shlex.quote(_kept(line, file))} &")
        return file

    def end(self, file: Path) -> Came:
        """What the line came to that was begun with this."""
        until(file.exists, f"the end of {file}")
        return Came(int(file.read_text()), file.with_name(f"{file.name}.out").read_text())

    def run(self, line: str) -> Came:
        return self.end(self.begin(line))

    def all(self, *lines: str) -> list[Came]:
        return [self.end(file) for file in [self.begin(line) for line in lines]]

    def orphans(self, *lines: tuple[str, str]) -> list[Came]:
        """Run each line as an orphan with those flags, all at the same time."""
        files = []
        for flags, line in lines:
            file = self.folder / f"line-{self.pid}-{next(self._numbers)}"
            self.type(f"sh -c {shlex.quote(orphan(flags, _kept(line, file)))}")
            files.append(file)
        return [self.end(file) for file in files]


def variables(folder: Path, file: Path, state: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DIALOGD_", "CLAUDE"))}
    return {
        **kept,
        "HOME": str(folder),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "DIALOGD_FILE": str(file),
        "DIALOGD_STATE_DIR": str(state),
    }

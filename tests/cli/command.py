"""The real command, as people type it: a process of its own, with its own file and state directory."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from dialogd.cli.create import Start, create, draw_up, usual_ports
from dialogd.config import Settings
from dialogd.store.disk import StateDir
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile
from dialogd.store.registry import Registry, Running
from tests.support.forked import begun
from tests.support.pair import PATIENCE

GOLDEN = Path(__file__).with_name("golden")
REPOSITORY = str(Path(__file__).resolve().parents[2])


def program(folder: Path, name: str, script: str) -> None:
    """A program in the folder `bin`."""
    (folder / "bin").mkdir(exist_ok=True)
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@dataclass(frozen=True)
class Done:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its stdout, read as JSON."""
        return json.loads(self.out)


class Commands:
    """Runs `dialogd WORDS` in a folder of its own; `file` is the dialog, as DIALOGD_FILE says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "dialog.md"
        self.state = StateDir(folder / "state")
        self._numbers = itertools.count()
        self.environment = {
            **os.environ,
            "DIALOGD_FILE": str(self.file),
            "DIALOGD_STATE_DIR": str(folder / "state"),
            "DIALOGD_BACKEND": "rehearsal",
            "DIALOGD_RETRY_WAIT": "0",
            "HOME": str(folder),
            "PYTHONPATH": REPOSITORY,
            "TMPDIR": str(folder),
            "TERM": "xterm",
            "COLUMNS": "80",
        }

    @property
    def log(self) -> LogFile:
        """The dialog file, as the product reads it."""
        return LogFile(self.file, Journals(self.state.dialog(self.file)))

    def start_line(self, agent: str) -> str:
        """The command that advice gives to start an agent's daemon on this dialog."""
        return f"dialogd start {agent} --file {self.file}"

    def begin(self, topic: str, name: str = "dialog.md") -> LogFile:
        """Write a dialog as `dialogd new TOPIC --first A` does, without a process of its own."""
        file = self.folder / name
        log = LogFile(file, Journals(self.state.dialog(file)))
        wanted = Start(topic, first="A")
        opening = draw_up(wanted, wanted.seats(), usual_ports(wanted.seats()))
        create(log, Settings(file=file, state_dir=self.state.root), opening)
        return log

    def types(self, text: str) -> None:
        """The person types at the end of the dialog's file."""
        with self.file.open("a", encoding="utf-8") as file:
            file.write(text)

    def __call__(self, *words: str, given: str = "", **environment: str) -> Done:
        """Run one command to its end."""
        return self._end(self._begin(words, given, environment))

    def all(self, lines: Sequence[Sequence[str]], given: str = "") -> list[Done]:
        """Run independent commands at the same time; results in their order."""
        return [self._end(begun) for begun in [self._begin(words, given, {}) for words in lines]]

    def really(self, *words: str) -> Done:
        """Run one command as `python -m dialogd`, in an interpreter of its own: slower, and nothing is shared."""
        done = subprocess.run(
            self.words(words),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def _begin(self, words: Sequence[str], given: str, environment: Mapping[str, str]) -> tuple[BaseProcess, Path]:
        """Fork a process that has imported everything already: an interpreter of its own needs ten times as long."""
        streams = self.folder / f"streams-{next(self._numbers)}"
        streams.mkdir()
        (streams / "0").write_text(given, encoding="utf-8")
        paths = [streams / name for name in "012"]
        return begun(words, {**self.environment, **environment}, self.folder, paths), streams

    def _end(self, begun: tuple[BaseProcess, Path]) -> Done:
        process, streams = begun
        process.join(PATIENCE)
        out, err = ((streams / name).read_text(encoding="utf-8") for name in "12")
        assert process.exitcode is not None, f"it still runs after {PATIENCE:g} s\n{out}{err}"
        return Done(process.exitcode, out, err)

    def words(self, words: Sequence[str]) -> list[str]:
        """The whole command line."""
        return [sys.executable, "-m", "dialogd", *words]

    @contextmanager
    def background(self, *words: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
        """A command that goes on, output to `out.txt`; ended with the block, like every daemon of this folder."""
        with (self.folder / "out.txt").open("wb") as out:
            process = subprocess.Popen(
                self.words(words),
                cwd=self.folder,
                env={**self.environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            self.end_daemons()

    @property
    def output(self) -> str:
        """What the command in the background has printed so far."""
        return (self.folder / "out.txt").read_text(encoding="utf-8", errors="replace")

    def daemons(self) -> tuple[Running, ...]:
        """The daemons that run with this state directory."""
        return Registry(self.state).running()

    def end_daemons(self) -> None:
        """Kill what a test left behind, by pid: also a command that is just starting daemons, and those."""
        while left := [*self.daemons(), *_at_work(str(self.state.root))]:
            for pid in {one.pid for one in left}:
                with suppress(ProcessLookupError):
                    os.kill(pid, 9)
            time.sleep(0.01)  # until the system has taken note


def _at_work(state: str) -> list[psutil.Process]:
    """The processes of `dialogd` whose environment names this state directory; no list of theirs is needed."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_ours = "dialogd" in process.cmdline()[:4] and process.status() != psutil.STATUS_ZOMBIE
            if is_ours and process.environ().get("DIALOGD_STATE_DIR") == state:
                found.append(process)
    return found


def until(condition: Callable[[], object], what: str, why: Callable[[], str] = str) -> None:
    """Wait until `condition()`; fails with `why()` after `PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}\n{why()}"
        time.sleep(0.02)


def reviewed(dialogd: Commands, name: str, lines: Sequence[str]) -> str:
    """Hold what these commands print against `golden/NAME.txt`; `UPDATE_GOLDENS=1` writes it. Gives all of it.

    Places, times of this machine's clock and hashes differ each time, and stand there as words.
    """
    parts = []
    for words, done in zip(lines, dialogd.all([shlex.split(line) for line in lines]), strict=True):
        said = done.err and f"[stderr] {done.err}"
        parts.append(f"$ dialogd {words}\n{done.out}{said}[exit code {done.code}]\n")
    shown = "\n".join(parts).replace(str(dialogd.folder), "FOLDER")
    for pattern, word in DIFFERS:
        shown = re.sub(pattern, word, shown)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDENS"):
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")
    return shown


DIFFERS = (
    (r'"at": "[^"]+"', '"at": "WHEN"'),
    (r"\b\d\d:\d\d:\d\d\b(?!Z)", "HH:MM:SS"),
    (r"\b[0-9a-f]{12,}\b", "HASH"),
    (r"((?:is |\()dialog |\"dialog\": \")(?!3f9a1c)[0-9a-f]{6}\b", r"\1ID"),
    (r"/aside/[^/]+/", "/aside/WHEN/"),
    (r"\bat \d{4}-\d\d-\d\d(T| at )[\d:]+(Z| UTC)", "at TIME"),
)

"""What the documents show, blocks and tables, and a place to try it in: a sandbox with `dialogd` on its path."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.pair import PATIENCE

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
DOCS = REPOSITORY / "docs"
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])

FENCED = re.compile(r"^(`{3,})(\w*) *([^`\n]*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, the word after it, its text, the line of its fence."""

    language: str
    kind: str
    text: str
    line: int


def blocks(document: Path, language: str = "", kind: str | None = None) -> list[Block]:
    """The fenced blocks of a document; of that language and kind, if given."""
    text = document.read_text(encoding="utf-8")
    found = (Block(m[2], m[3].strip(), m[4], text.count("\n", 0, m.start()) + 1) for m in FENCED.finditer(text))
    return [b for b in found if language in ("", b.language) and kind in (None, b.kind)]


def section(document: Path, heading: str) -> str:
    """What stands under that heading, up to the next of its level."""
    text = document.read_text(encoding="utf-8")
    match = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^\1 |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"{document.name} has no heading {heading!r}"
    return match[2]


def table(text: str) -> list[list[str]]:
    """The cells of the rows of the tables in a text, without heads and rules."""
    rows = [line for line in text.split("\n") if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]
    rules = {i for i, row in enumerate(cells) if all(re.fullmatch(r":?-+:?", cell) for cell in row)}
    heads = {i - 1 for i in rules}
    return [row for i, row in enumerate(cells) if i not in rules | heads]


def codes(text: str) -> list[str]:
    """The inline code in a text."""
    return re.findall(r"`([^`\n]+)`", text)


@dataclass
class Terminal:
    """A command that runs in a terminal of its own."""

    process: subprocess.Popen[bytes]
    output: Path

    def said(self) -> str:
        """All it has printed."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    def end(self) -> None:
        """End it and what it started; killed only where it does not end by itself, for it stops its daemons then."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
                return


@dataclass
class Sandbox:
    """A folder with a home, a state directory, a dialog file and a `dialogd` of this checkout's on the path."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    terminals: list[Terminal] = field(default_factory=list)

    def __post_init__(self) -> None:
        home, programs = self.folder / "home", self.folder / "bin"
        for path in (home, programs):
            path.mkdir()
        put_dialogd(programs)
        self.environment |= {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.folder),
            "DIALOGD_STATE_DIR": str(self.folder / "state"),
            "DIALOGD_FILE": str(self.file),
            "DIALOGD_BACKEND": "rehearsal",
            "DIALOGD_PACE": "0",
            "DIALOGD_HOME_PORT": "0",  # not the person's own Home
        }

    @property
    def file(self) -> Path:
        """The dialog file."""
        return self.folder / "dialog.md"

    def run(self, script: str, seconds: float = 3 * PATIENCE) -> subprocess.CompletedProcess[str]:
        """Run a script with `sh -e`; its output, whatever its exit code."""
        return subprocess.run(**self._of(script), capture_output=True, text=True, check=False, timeout=seconds)

    def done(self, script: str) -> str:
        """Run a script that must succeed; what it printed on stdout."""
        ended = self.run(script)
        assert ended.returncode == 0, f"{script}\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def start(self, script: str) -> Terminal:
        """Run a script in a terminal of its own, until it ends or the test does."""
        output = self.folder / f"terminal-{len(self.terminals)}.txt"
        with output.open("wb") as out:
            process = subprocess.Popen(**self._of(script), stdout=out, stderr=out, start_new_session=True)
        self.terminals.append(Terminal(process, output))
        return self.terminals[-1]

    def _of(self, script: str) -> dict[str, Any]:
        """How a script is run in here."""
        words = ["sh", "-e", "-c", script]
        return {"args": words, "cwd": self.folder, "env": self.environment, "stdin": subprocess.DEVNULL}

    def close(self) -> None:
        """End all terminals."""
        for terminal in self.terminals:
            terminal.end()


def put_dialogd(folder: Path) -> None:
    """Put a `dialogd` into a folder that runs this checkout's, wherever the tests themselves run from."""
    program = folder / "dialogd"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{REPOSITORY}" exec "{sys.executable}" -m dialogd "$@"\n')
    program.chmod(0o755)

"""Dialog files to write to, entries to append, and a plain reader that knows nothing of ours."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from dialogd.protocol.model import Addition, Draft
from dialogd.protocol.state import Dialog
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile, Make

OPENING = """# Claude Autonomous Dialog

**Topic:** Where should user sessions live?
**Max Turns:** 100000
**Max Size:** 50 MB
**Agents:** A = Claude A @ http://localhost:1, B = Claude B @ http://localhost:2

## Rules

- Use `[CONSENSUS_REACHED]` when agreement is achieved

---

## Turn 1 — User

Postgres or Redis?

TURN: A
"""

_HEADING = re.compile(rb"## (?:Turn (\d+)|Note)(?: \xe2\x80\x94 (.*))?")
_FRAME = re.compile(rb"(<!-- dialogd by=(\S+) .*?bytes=(\d+) prev=(\S*)) sha=(\S+) -->")


@dataclass(frozen=True)
class Found:
    """An entry as a plain reader sees it; `sound` says that its own hash fits."""

    number: int
    by: str
    text: str
    prev: str
    sha: str
    sound: bool


def naive_read(path: Path) -> list[Found]:
    """Every framed entry, by searching for headings: apart from our grammar, so that either can be wrong alone."""
    data = path.read_bytes()
    found: list[Found] = []
    lines, at = data.split(b"\n"), 0
    index = 0
    while index < len(lines) - 1:
        heading, frame = _HEADING.fullmatch(lines[index]), _FRAME.fullmatch(lines[index + 1])
        start = at
        at += len(lines[index]) + 1
        index += 1
        if heading is None or frame is None:
            continue
        content = data[at + len(lines[index]) + 1 :][: int(frame[3])]
        seal = data[start:at] + frame[1] + content
        sound = hashlib.sha256(seal).hexdigest()[:16].encode() == frame[5]
        text = content.decode("utf-8", "replace")
        found.append(Found(int(heading[1] or 0), frame[2].decode(), text, frame[4].decode(), frame[5].decode(), sound))
        if sound:
            at += len(lines[index]) + 1 + len(content)
            index += 1 + content.count(b"\n")
    return found


def times(path: Path, token: str) -> int:
    """How many sound entries of the file say `token`."""
    return sum(token in entry.text.split() for entry in naive_read(path) if entry.sound)


def dialog_file(folder: Path, name: str = "dialog.md", text: str = OPENING) -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    path.chmod(0o600)
    return path


def log_of(path: Path, state: str = "state") -> LogFile:
    """A LogFile as another process would have it: nothing is shared but the disk."""
    folder = path.parent / state
    folder.mkdir(mode=0o700, exist_ok=True)
    return LogFile(path, Journals(folder))


def turn(token: str, by: str = "A", to: str = "B", size: int = 0) -> Make:
    """Makes an agent's turn that says `token`, unless the file has it: what the fence does for an agent."""

    def make(dialog: Dialog) -> Addition | None:
        if any(token in entry.body.split() for entry in dialog.entries):
            return None
        body = f"I say {token}\n\n" + "word " * (size // 5)
        debt = dialog.state.debt(by)
        re_ = (("re", debt.re),) if debt else ()
        return Addition(Draft(by, f"Claude {by}", dialog.state.number + 1, body, turn=(to,), attributes=re_))

    return make


def restore(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CREAT, 0o600)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)

"""Put dialogs into the archive, with their origins and outcomes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dialogd.memory.values import FAILED, WORKED, Verdict, written
from dialogd.protocol.state import Dialog
from dialogd.store.archive import archive
from dialogd.store.folders import StateDir

ORIGINS = "origins.jsonl"
OUTCOMES = "outcomes.jsonl"
MOST = 32 * 1024 * 1024  # bytes of such a file that are read


def keep(dialog: Dialog, file: Path, state: StateDir) -> Path:
    """Copy an ended dialog into the archive, once per content; gives the copy's path. Raises `OSError`."""
    copy = archive(dialog, file, state.archive)
    if read_origins(state.memory / ORIGINS).get(copy.name) != str(file):
        append(state.memory / ORIGINS, {"copy": copy.name, "file": str(file)})
    return copy


def read_origins(path: Path) -> dict[str, str]:
    """The file of each copy's dialog, by the copy's name; the last line counts."""
    return {str(line.get("copy")): str(line.get("file", "")) for line in lines(path)}


def append(path: Path, record: dict[str, Any]) -> None:
    """Append one line with the time, in one write. Raises `OSError`."""
    data = json.dumps({"at": written(datetime.now(UTC)), **record}, ensure_ascii=True).encode() + b"\n"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"  # what a crash left must not spoil this line
        os.write(fd, b"\n" + data if torn else data)
        os.fsync(fd)
    finally:
        os.close(fd)


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of such a file, oldest first; none without a file. Unreadable lines are skipped."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST)
    except OSError:
        return
    for line in data.split(b"\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


# -- How decisions turned out -----------------------------------------------------------------------------------------


def record(path: Path, dialog: str, outcome: str, why: str) -> None:
    """Record that what `dialog` decided worked or failed. Raises `OSError`."""
    append(path, {"dialog": dialog, "outcome": outcome, "why": why})


def history(path: Path) -> Mapping[str, tuple[Verdict, ...]]:
    """All recorded outcomes by dialog id, oldest first."""
    found: dict[str, list[Verdict]] = {}
    for line in lines(path):
        values = [line.get(name) for name in ("dialog", "outcome", "why", "at")]
        dialog, outcome, why, at = (value if isinstance(value, str) else "" for value in values)
        if dialog and outcome in (WORKED, FAILED):
            found.setdefault(dialog, []).append(Verdict(outcome, why, at))
    return {dialog: tuple(verdicts) for dialog, verdicts in found.items()}

"""A judge of finished files: a plain reader, written apart from ours, and what must hold in every history."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_HEADING = re.compile(r"## (?:(Turn) (\d+)|Note)(?: — (.*))?")
_FRAME = re.compile(r"(<!-- dialogd by=(\S+)(?: .*)? bytes=(\d+) prev=\S*) sha=([0-9a-f]+) -->")


@dataclass(frozen=True)
class Entry:
    """One entry: `by` is "" when a person's hand wrote it; `owes` is what its TURN line names."""

    number: int
    by: str
    text: str
    owes: tuple[str, ...] | None


def read(path: Path) -> list[Entry]:
    """The entries, by headings; of a framed one the hash must fit, or it is nobody's."""
    data = path.read_bytes()
    entries: list[Entry] = []
    at = 0
    while at < len(data):
        end = data.find(b"\n", at) + 1 or len(data)
        heading = _HEADING.fullmatch(data[at:end].decode("utf-8", "replace").rstrip("\n"))
        if heading is None:
            at = end
            continue
        after = data.find(b"\n", end) + 1 or len(data)
        frame = _FRAME.fullmatch(data[end:after].decode("utf-8", "replace").rstrip("\n"))
        size = int(frame[3]) if frame else 0
        if (
            frame
            and hashlib.sha256(data[at:end] + frame[1].encode() + data[after : after + size]).hexdigest()[:16]
            == (frame[4])
        ):
            text, at, by = data[after : after + size].decode(), after + size, frame[2]
        else:
            stop = data.find(b"\n## ", end)
            stop = len(data) if stop < 0 else stop
            text, at, by = data[end:stop].decode("utf-8", "replace"), stop + 1, ""
        named = re.findall(r"^TURN: (.*)$", text, re.M)
        owes = tuple(named[-1].split(", ")) if named else None
        entries.append(Entry(int(heading[2] or 0), by, text, owes))
    return entries


def problems(path: Path, said: Iterable[str] = ()) -> list[str]:
    """What is wrong with the history in a file: gaps, doubles, turns that nobody owed, words that are lost."""
    entries = read(path)
    found: list[str] = []
    numbers = [entry.number for entry in entries if entry.number]
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"the turns are numbered {numbers}")
    owing: list[str] = []
    for entry in entries:
        if entry.number and entry.by not in ("", "USER"):
            if entry.by not in owing:
                found.append(f"turn {entry.number} by {entry.by}, owed by {owing}")
            owing = [who for who in owing if who != entry.by]
        if entry.owes is not None:
            owing = list(dict.fromkeys([*(owing if entry.by not in ("", "USER") else []), *entry.owes]))
    words = Counter(word for entry in entries for word in entry.text.split())
    found += [f"{word} stands {words[word]} times" for word in said if words[word] != 1]
    return found


def appended(output: str) -> list[int]:
    """The numbers of the turns that a daemon's log says it has appended."""
    return [int(number) for number in re.findall(r"appended turn (\d+)", output)]


def records(state_dir: Path, kind: str) -> list[dict[str, object]]:
    """All records of that kind in all journals, set aside or not; torn lines are left out."""
    found: list[dict[str, object]] = []
    for journal in sorted(state_dir.rglob("*.journal")):
        with suppress(FileNotFoundError):  # a daemon has just set it aside
            found += [record for record in map(_record, journal.read_bytes().split(b"\n")) if record["kind"] == kind]
    return found


def _record(line: bytes) -> dict[str, object]:
    try:
        return dict(json.loads(line))
    except ValueError:
        return {"kind": "torn"}


def bought_twice(state_dir: Path) -> list[object]:
    """Debts for which more than one reply was received."""
    replies = {(tuple(record["debt"]), record["text"]) for record in records(state_dir, "reply")}  # type: ignore[arg-type]
    debts = Counter(debt for debt, _ in replies)
    return [debt for debt, count in debts.items() if count > 1]

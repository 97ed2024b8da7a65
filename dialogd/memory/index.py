"""Bringing the index up to date with the archive's files: what is new is read, what is gone is forgotten."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from dialogd.disk import distrust
from dialogd.errors import DialogdError
from dialogd.memory.facts import Facts, facts
from dialogd.memory.store import transaction
from dialogd.protocol.grammar import parse
from dialogd.protocol.hashing import digest
from dialogd.protocol.state import Dialog

LARGEST = 64 * 1024 * 1024  # bytes of a file that is read
BATCH = 16  # copies per transaction: others want to write, too
MORE = 1000  # characters of the question that are searched with a decision

Listing = Mapping[str, tuple[int, int]]  # size and time of change, by name


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy in the archive: `id` is its dialog's own, "" for a file that is no dialog; `at` of its last entry."""

    name: str
    id: str
    first: str
    at: str
    entries: int


def read_dialog(path: Path) -> Dialog:
    """The dialog in a file of one's own. Raises `DialogdError` for one that is none, `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        problem = distrust(status)
        if problem is not None or status.st_size > LARGEST:
            raise OSError(f"{path} {problem[0] if problem else f'is larger than {LARGEST:,} bytes'}")
        return parse(file.read(LARGEST))


def sync(connection: sqlite3.Connection, archive: Path, only: Collection[str] | None = None) -> int:
    """Take in what is new in the archive, or what is new of `only` these names; gives how many copies were read."""
    known = {name: (size, mtime) for name, size, mtime in connection.execute("SELECT name, size, mtime FROM copy")}
    there = _listing(archive)
    fresh = [name for name in sorted(there) if known.get(name) != there[name] and (only is None or name in only)]
    for batch in _batches(fresh):
        read = {name: _facts(archive / name) for name in batch}
        with transaction(connection):
            ids = {_note(connection, name, there[name], found) for name, found in read.items()}
            _settle(connection, archive, (ids | {f.id for f in read.values() if f}) - {""}, read)
    gone = [name for name in known if name not in there] if only is None else []
    if gone:
        with transaction(connection):
            ids = {id_ for name in gone for (id_,) in connection.execute("SELECT id FROM copy WHERE name = ?", (name,))}
            connection.executemany("DELETE FROM copy WHERE name = ?", [(name,) for name in gone])
            _settle(connection, archive, ids - {""}, {})
    return len(fresh)


def clear(connection: sqlite3.Connection) -> None:
    """Forget everything but vectors, which are found by the text they stand for."""
    with transaction(connection):
        for table in ("copy", "dialog", "entry", "decision"):
            connection.execute(f"DELETE FROM {table}")


def _listing(archive: Path) -> Listing:
    found = {}
    with os.scandir(archive) as items:
        for item in items:
            if item.name.endswith(".md") and not item.name.startswith(".") and item.is_file(follow_symlinks=False):
                status = item.stat(follow_symlinks=False)
                found[item.name] = (status.st_size, status.st_mtime_ns)
    return found


def _batches(names: Sequence[str]) -> Iterator[list[str]]:
    rest = iter(names)
    while batch := list(islice(rest, BATCH)):
        yield batch


def _facts(path: Path) -> Facts | None:
    """What is kept of a copy; None for a file that is no dialog."""
    try:
        return facts(read_dialog(path))
    except (DialogdError, OSError):
        return None


def _note(connection: sqlite3.Connection, name: str, status: tuple[int, int], found: Facts | None) -> str:
    """Write down that there is this copy; gives the id of the dialog that it held before, "" for a new one."""
    before = connection.execute("SELECT id FROM copy WHERE name = ?", (name,)).fetchone()
    if before is not None:
        _forget(connection, before[0])
    last, count = found.last if found else ("", 0)
    values = (name, *status, found.id if found else "", found.first if found else "", last or _iso(status[1]), count)
    connection.execute("INSERT OR REPLACE INTO copy VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    return before[0] if before else ""


def _iso(mtime: int) -> str:
    return datetime.fromtimestamp(mtime // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _settle(
    connection: sqlite3.Connection, archive: Path, ids: Iterable[str], read: Mapping[str, Facts | None]
) -> None:
    """See to it that of each dialog of these ids exactly its newest copy is what is listed and searched."""
    for own in sorted(ids):
        query = "SELECT name, id, first, at, entries FROM copy WHERE id = ?"
        wanted = _newest([_Copy(*row) for row in connection.execute(query, (own,))])
        listed = dict(connection.execute("SELECT id, name FROM dialog WHERE own = ?", (own,)).fetchall())
        if listed == {key: copy.name for key, copy in wanted.items()}:
            continue
        _forget(connection, own)
        for key, copy in wanted.items():
            found = read.get(copy.name) or _facts(archive / copy.name)
            if found is not None:
                _insert(connection, key, copy, found)


def _newest(copies: Sequence[_Copy]) -> dict[str, _Copy]:
    """The copy that stands for each dialog, by the id that commands name it by.

    Copies whose first agent's entry is the same are of one dialog; one without any belongs to whatever came of it.
    Where several dialogs share an id, the later ones get the beginning of that entry's hash behind it.
    """
    groups: dict[str, list[_Copy]] = {}
    for copy in copies:
        groups.setdefault(copy.first, []).append(copy)
    if len(groups) > 1:
        groups.pop("", None)
    in_order = sorted(groups.items(), key=lambda group: (min(copy.at for copy in group[1]), group[0]))
    return {
        group[0].id if number == 0 else f"{group[0].id}~{first[:6]}": max(group, key=_age)
        for number, (first, group) in enumerate(in_order)
    }


def _age(copy: _Copy) -> tuple[str, int, str]:
    return copy.at, copy.entries, copy.name


def _forget(connection: sqlite3.Connection, own: str) -> None:
    for (key,) in connection.execute("SELECT id FROM dialog WHERE own = ?", (own,)).fetchall():
        _drop(connection, key)
    connection.execute("DELETE FROM dialog WHERE own = ?", (own,))


def _drop(connection: sqlite3.Connection, key: str) -> None:
    connection.execute("DELETE FROM entry WHERE dialog = ?", (key,))
    connection.execute("DELETE FROM decision WHERE dialog = ?", (key,))


def _insert(connection: sqlite3.Connection, key: str, copy: _Copy, f: Facts) -> None:
    _drop(connection, key)
    agents, at = json.dumps(f.agents), f.ended or copy.at
    row = (
        key, copy.name, f.id, f.topic, f.started, f.ended, f.outcome, f.reason, f.headline, agents, f.turns, f.usd,
        f.is_exact, f.tokens, f.approved, at,
    )  # fmt: skip
    connection.execute(f"INSERT INTO dialog VALUES ({_marks(row)})", row)
    said = [(None, key, "0", 0, "", f.started, f.topic), *((None, key, *_entry(said)) for said in f.said)]
    connection.executemany(f"INSERT INTO entry VALUES ({_marks(said[0])})", said)
    times = {said.entry: said.at for said in f.said}
    made = [
        (
            None, key, m.ref, m.status, m.text, m.method, json.dumps([asdict(b) for b in m.behind]), m.evidence,
            m.reason, json.dumps(m.turns), times.get(m.entry, "") or at, m.superseded, m.approved, f.topic,
            f"{f.question[:MORE]}\n{m.reason}", digest(embedded(f.topic, m.text)),
        )
        for m in f.made
    ]  # fmt: skip
    if made:
        connection.executemany(f"INSERT INTO decision VALUES ({_marks(made[0])})", made)


def embedded(topic: str, text: str) -> str:
    """What of a decision is compared by meaning."""
    return f"{topic}. {text}"


def _entry(said: object) -> tuple[object, ...]:
    return tuple(asdict(said).values())  # type: ignore[call-overload]


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))

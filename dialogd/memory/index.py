"""Bringing the index up to date with the archive's files: what is new is read, what is gone is forgotten."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from dialogd.archive import attachments_of
from dialogd.disk import distrust
from dialogd.memory.facts import Facts, facts
from dialogd.memory.store import transaction
from dialogd.memory.times import written
from dialogd.protocol.grammar import parse
from dialogd.protocol.hashing import digest
from dialogd.protocol.state import Dialog

LARGEST = 64 * 1024 * 1024  # bytes of a file that is read
BATCH = 16  # copies per transaction: others want to write, too
LATEST = 2**63 - 1  # nanoseconds: what SQLite can hold
MORE = 1000  # characters of the question that are searched with a decision

log = logging.getLogger("dialogd")

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
            _settle(connection, archive, (ids | {f.row.id for f in read.values() if f}) - {""}, read)
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
            is_name = item.name.endswith(".md") and item.name.isprintable() and not item.name.startswith(".")
            if is_name and item.is_file(follow_symlinks=False):
                status = item.stat(follow_symlinks=False)
                found[item.name] = (status.st_size, min(status.st_mtime_ns, LATEST))
    return found


def _batches(names: Sequence[str]) -> Iterator[list[str]]:
    rest = iter(names)
    while batch := list(islice(rest, BATCH)):
        yield batch


def _facts(path: Path) -> Facts | None:
    """What is kept of a copy; None for a file that is no dialog, or that cannot be read."""
    try:
        return facts(read_dialog(path), attachments_of(path))
    except Exception as error:  # whatever one copy does to its reader, the others are found
        log.warning("%s is left out of the memory: %s", path, error)
        log.debug("it was read here", exc_info=True)
        return None


def _note(connection: sqlite3.Connection, name: str, status: tuple[int, int], found: Facts | None) -> str:
    """Write down that there is this copy; gives the id of the dialog that it held before, "" for a new one."""
    before = connection.execute("SELECT id FROM copy WHERE name = ?", (name,)).fetchone()
    if before is not None:
        _forget(connection, before[0])
    last, count = found.last if found else ("", 0)
    at = last or written(datetime.fromtimestamp(status[1] // 1_000_000_000, UTC))
    values = (name, *status, found.row.id if found else "", found.first if found else "", at, count)
    connection.execute("INSERT OR REPLACE INTO copy VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    return before[0] if before else ""


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
    row = replace(f.row, id=key, ended=f.row.ended or copy.at, archive=copy.name)
    dialog = (key, copy.name, f.row.id, row.topic, row.ended, json.dumps(row.as_json()), row.is_rehearsal)
    connection.execute(f"INSERT INTO dialog VALUES ({_marks(dialog)})", dialog)
    said = [(None, key, "0", 0, "", row.started, row.topic), *((None, key, *astuple(said)) for said in f.said)]
    connection.executemany(f"INSERT INTO entry VALUES ({_marks(said[0])})", said)
    for made in f.made:
        d = replace(made.decision, dialog=key, at=made.decision.at or row.ended, archive=copy.name)
        more, sha = f"{f.question[:MORE]}\n{d.reason}", digest(embedded(d.topic, d.text))
        decision = (None, key, d.topic, d.text, more, d.at, sha, json.dumps(d.as_json()))
        connection.execute(f"INSERT INTO decision VALUES ({_marks(decision)})", decision)


def embedded(topic: str, text: str) -> str:
    """What of a decision is compared by meaning."""
    return f"{topic}. {text}"


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))

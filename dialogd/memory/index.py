"""The index over the archive: a SQLite file that can always be rebuilt from the copies."""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType

from dialogd.errors import BadInput
from dialogd.memory.decided import Made, decided
from dialogd.memory.values import DialogRow, iso, written
from dialogd.protocol.build import came_of
from dialogd.protocol.grammar import parse
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry, Mark
from dialogd.protocol.money import total
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import clean, one_line
from dialogd.store.archive import attachments_of
from dialogd.store.disk import distrust
from dialogd.store.lock import Lock
from dialogd.views.flow import FOLDED
from dialogd.views.plan import Plan
from dialogd.views.sentences import by_name

SCHEMA = 8
NAME = "index.sqlite"
LOCK = "index.lock"  # held by whoever makes an index or throws one away

# `facts` is a `DialogRow` or a `PastDecision` as JSON; beside it stands what is looked for.
_WORDS = "tokenize='porter unicode61 remove_diacritics 2'"
_TABLES = f"""
BEGIN;
CREATE TABLE copy (name TEXT PRIMARY KEY, size INTEGER, mtime INTEGER, id TEXT, first TEXT, at TEXT, entries INTEGER);
CREATE INDEX copy_id ON copy (id);
CREATE TABLE dialog (id TEXT PRIMARY KEY, name TEXT, own TEXT, topic TEXT, at TEXT, facts TEXT,
    rehearsal INTEGER);
CREATE INDEX dialog_own ON dialog (own);
CREATE INDEX dialog_at ON dialog (at);
CREATE TABLE entry (
    key INTEGER PRIMARY KEY, dialog TEXT REFERENCES dialog ON DELETE CASCADE, entry TEXT, turn INTEGER, agent TEXT,
    at TEXT, text TEXT);
CREATE INDEX entry_dialog ON entry (dialog);
CREATE TABLE decision (
    key INTEGER PRIMARY KEY, dialog TEXT REFERENCES dialog ON DELETE CASCADE, topic TEXT, text TEXT, more TEXT,
    at TEXT, facts TEXT);
CREATE INDEX decision_dialog ON decision (dialog);
CREATE VIRTUAL TABLE entry_fts USING fts5(text, content='entry', content_rowid='key', {_WORDS});
CREATE VIRTUAL TABLE decision_fts USING fts5(topic, text, more, content='decision', content_rowid='key', {_WORDS});
CREATE TRIGGER entry_in AFTER INSERT ON entry BEGIN
    INSERT INTO entry_fts (rowid, text) VALUES (new.key, new.text); END;
CREATE TRIGGER entry_out AFTER DELETE ON entry BEGIN
    INSERT INTO entry_fts (entry_fts, rowid, text) VALUES ('delete', old.key, old.text); END;
CREATE TRIGGER decision_in AFTER INSERT ON decision BEGIN
    INSERT INTO decision_fts (rowid, topic, text, more) VALUES (new.key, new.topic, new.text, new.more); END;
CREATE TRIGGER decision_out AFTER DELETE ON decision BEGIN
    INSERT INTO decision_fts (decision_fts, rowid, topic, text, more)
        VALUES ('delete', old.key, old.topic, old.text, old.more); END;
PRAGMA user_version = {SCHEMA};
COMMIT;
"""

# Errors of a file that is not, or no longer, an index of ours: it is made again. After any other the index is bypassed.
_SPOILT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA}


def is_spoilt(error: sqlite3.Error) -> bool:
    """True for an error after which the index must be rebuilt."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _SPOILT


def is_busy(error: sqlite3.Error) -> bool:
    """True where another process held the index for too long."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def connect(folder: Path, patience: float) -> sqlite3.Connection:
    """Open the index of that folder, or create it. Raises `sqlite3.Error`, `OSError`, `DialogdError`.

    `patience` is how long a lock of another process is waited for, in seconds.
    """
    path = folder / NAME
    if (connection := _opened(path, patience)) is not None:
        return connection
    with Lock(folder / LOCK, patience).held():
        if (connection := _opened(path, patience)) is not None:  # another process has just made it
            return connection
        _remove(path)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        connection = _connected(path, patience)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(_TABLES)
        return connection


def _connected(path: Path | str, patience: float = 0.0) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=patience, isolation_level=None)
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _opened(path: Path, patience: float) -> sqlite3.Connection | None:
    """The index at that path; None where there is none of this version."""
    if not path.exists():
        return None
    connection = _connected(path, patience)
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
        is_ours = connection.execute("PRAGMA user_version").fetchone()[0] == SCHEMA
    except sqlite3.Error:
        connection.close()
        raise
    if not is_ours:
        connection.close()
    return connection if is_ours else None


def in_memory() -> sqlite3.Connection:
    """An index in memory."""
    connection = _connected(":memory:")
    connection.executescript(_TABLES)
    return connection


def seen(folder: Path) -> int:
    """The inode of the index; 0 without one."""
    try:
        return (folder / NAME).stat().st_ino
    except OSError:
        return 0


def discard(folder: Path, which: int, patience: float) -> None:
    """Delete a damaged index, unless it was replaced since it was `seen`.

    Raises `OSError`, `DialogdError`.
    """
    with Lock(folder / LOCK, patience).held():
        if seen(folder) == which:
            _remove(folder / NAME)


def _remove(path: Path) -> None:
    for end in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + end).unlink(missing_ok=True)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """An exclusive write transaction."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


# -- From a dialog to what the index keeps of it ----------------------------------------------------------------------

TOPIC = 300  # characters
NAME_LENGTH = 100  # characters of an agent's name
GIST = 240  # characters of a decided text
LONGEST = 200_000  # characters of a message that are searched
NONE: Mapping[str, str] = MappingProxyType({})
RECALLED = "**Recalled from earlier dialogs"  # how the block begins that `--recall` writes into turn 1
_CUT = re.compile(r"\n\n\*\([\d,]+ more characters: \[the whole text\]\(.*/([0-9a-f]+\.md)\)\)\*")  # by `compose.cut`
_BLOCK = re.compile(rf"^{re.escape(RECALLED)}.*\n(?:\n|>.*(?:\n|$))*", re.M)


@dataclass(frozen=True, slots=True)
class SearchedEntry:
    """An entry as it is searched: its id, its turn, who wrote it, when, its text with its marks."""

    entry: str
    turn: int
    by: str
    at: str
    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """A dialog as the index keeps it. `first` is the hash of the first agent's entry: where it is the same, two files
    of one id hold the same dialog, and the one with the greater `last` (time of its last entry, entries) stands for it.
    """

    row: DialogRow
    first: str
    last: tuple[str, int]
    question: str
    said: tuple[SearchedEntry, ...]
    made: tuple[Made, ...]


def facts(dialog: Dialog, attachments: Mapping[str, str] = NONE) -> Facts:
    """Everything that is kept of a dialog; `attachments` hold the texts of messages that were cut, by name.

    Its row lacks the paths of the file and of the copy.
    """
    entries = _sound(dialog)
    last = next((at for entry in reversed(entries) if (at := iso(entry.at))), "")
    mine = next((entry for entry in entries if entry.is_turn and entry.by not in (USER, SYSTEM)), None)
    said, row = tuple(_said(entries, attachments)), row_of(dialog)
    made = decided(dialog, row.topic)
    question = said[0].text if said and said[0].by == USER else ""
    made = () if dialog.is_rehearsed else made  # scripted lines decide nothing, whatever they say
    return Facts(row, mine.chain if mine else "", (last, len(dialog.entries)), question, said, made)


def _decided(dialog: Dialog, plan: Plan) -> str:
    """What was decided, in a few words; of a build how many tasks were approved."""
    if dialog.header.rules.build is not None:
        return came_of(dialog.state.tasks) if dialog.state.tasks.all and plan.outcome else ""
    return _gist(plan.agreed.text) if plan.agreed is not None else ""


def row_of(dialog: Dialog, file: Path | None = None) -> DialogRow:
    """The row of a dialog that stands in this file, without the path of a copy."""
    state, spent, entries = dialog.state, total(dialog.state.spent), _sound(dialog)
    ends = dialog.entry(state.outcome.entry) if state.outcome else None
    last = next((at for entry in reversed(entries) if (at := iso(entry.at))), "") if ends else ""
    plan = Plan(dialog)
    models = {entry.by: entry.frame.model for entry in entries if entry.frame is not None and entry.frame.model}
    return DialogRow(
        id=dialog.id,
        topic=_topic(dialog, entries),
        started=iso(dialog.header.started) or next((at for entry in entries if (at := iso(entry.at))), ""),
        ended=(iso(ends.at) or last) if ends else "",
        state="ended" if state.outcome else "open",
        outcome=state.outcome.name if state.outcome else "",
        reason=one_line(state.outcome.reason) if state.outcome else "",
        headline=one_line(plan.headline),
        agents=tuple(agent.id for agent in dialog.header.agents),
        turns=state.number,
        usd=spent.usd if spent.entries > spent.unknown else None,
        is_exact=spent.exact and not spent.unknown,
        tokens=spent.tokens if spent.entries > spent.uncounted else None,
        approved=bool(state.approved),
        is_rehearsal=dialog.is_rehearsed,
        file=str(file or ""),
        names=tuple(one_line(agent.name, NAME_LENGTH) for agent in dialog.header.agents),
        models=tuple(models.get(agent.id, "") for agent in dialog.header.agents),
        decided=_decided(dialog, plan),
    )


def _gist(text: str) -> str:
    """The beginning of a text, in a line: its words, without headings and the signs of Markdown."""
    from dialogd.views.markup import parser

    words, is_heading = list[str](), False
    for token in parser().parse(text[: GIST * 10]):
        is_heading = token.type == "heading_open" or (is_heading and token.type != "heading_close")
        if token.type == "inline" and not is_heading:
            words += ["".join(" " if one.type.endswith("break") else one.content for one in token.children or ())]
    return one_line(" ".join(words), GIST)


def _sound(dialog: Dialog) -> list[Entry]:
    """The entries that are whole."""
    return [entry for entry in dialog.entries if entry.condition is not Condition.DAMAGED]


def _topic(dialog: Dialog, entries: Sequence[Entry]) -> str:
    """The header's topic; where it has none, the beginning of the question, or the title."""
    if topic := one_line(dialog.header.topic, TOPIC):
        return topic
    first = next(_said(entries, NONE), None)
    question = next((line for line in first.text.split("\n") if line.strip()), "") if first is not None else ""
    return one_line(question or dialog.header.title, TOPIC)


def _said(entries: Sequence[Entry], attachments: Mapping[str, str]) -> Iterator[SearchedEntry]:
    """What agents and the person said, without withdrawn turns and quotes by `--recall`."""
    names = {entry.by: entry.name for entry in entries if entry.frame is not None and entry.name}
    for entry in entries:
        if entry.by == SYSTEM or entry.is_struck:
            continue
        body = _whole(entry.body, attachments) if entry.number != 1 else _BLOCK.sub("", entry.body)
        saying = [mark for mark in entry.marks if mark.name not in FOLDED] if entry.frame is not None else []
        marks = "\n".join(_in_words(mark, names) for mark in saying)
        text = clean(f"{body}\n{marks}").replace("\ufffd", " ").strip()
        if text:
            yield SearchedEntry(entry.id, int(entry.id.partition(".")[0]), entry.by, iso(entry.at), text)


def _in_words(mark: Mark, names: Mapping[str, str]) -> str:
    """A mark as it is searched and shown: without brackets, capitals and hashes; a decision with names for ids."""
    name = f"{mark.name.replace('_', ' ').capitalize()} {mark.ref}".strip()
    fields = mark.fields if mark.name != "CONSENSUS_PROPOSED" else ()
    if mark.name == "DECISION":  # what everybody signed is told by who signed it
        fields = tuple(by_name(field, lambda who: names.get(who, who)) for field in fields if field != "mutual")
    return ": ".join(filter(None, (name, "; ".join(fields))))


def _whole(body: str, attachments: Mapping[str, str]) -> str:
    """A message as it was before it was cut, if its attachment is there and fits; else as it is."""
    link = _CUT.search(body)
    text = attachments.get(link[1], "") if link else ""
    if link is None or not text.startswith(body[: link.start()]):
        return body
    return f"{text[:LONGEST]}{body[link.end() :]}"


# -- Archived dialogs as rows -----------------------------------------------------------------------------------------

SHOWN = 5  # ids that an error names


def listed(connection: sqlite3.Connection) -> list[DialogRow]:
    """Every archived dialog, newest first."""
    rows = connection.execute("SELECT facts FROM dialog ORDER BY at DESC, id")
    return [DialogRow.from_json(json.loads(facts)) for (facts,) in rows]


def found(connection: sqlite3.Connection, wanted: str) -> DialogRow:
    """The dialog that an id, the beginning of one, or of its copy's name, means. Raises `BadInput`."""
    name = wanted.rpartition("/")[2].removesuffix(".md")
    exact = connection.execute("SELECT id, facts FROM dialog WHERE id = ?", (wanted,)).fetchall()
    query = "SELECT id, facts FROM dialog WHERE substr(id, 1, ?) = ? OR substr(name, 1, ?) = ? ORDER BY at DESC, id"
    matches = exact or connection.execute(query, (len(wanted), wanted, len(name), name)).fetchall()
    if not wanted or not matches:
        raise BadInput(f"no archived dialog is called {wanted!r}", fix="see what there is: dialogd list --all")
    if len(matches) > 1:
        ids = ", ".join(row[0] for row in matches[:SHOWN])
        raise BadInput(f"{wanted!r} may mean {len(matches)} dialogs: {ids}", fix="write more of the id")
    return DialogRow.from_json(json.loads(matches[0][1]))


def counts(connection: sqlite3.Connection) -> dict[str, object]:
    """The number of copies, dialogs, entries and decisions."""
    queries = {
        "copies": "SELECT count(*) FROM copy",
        "unreadable": "SELECT count(*) FROM copy WHERE id = ''",
        "dialogs": "SELECT count(*) FROM dialog",
        "entries": "SELECT count(*) FROM entry",
        "decisions": "SELECT count(*) FROM decision",
    }
    return {name: connection.execute(query).fetchone()[0] for name, query in queries.items()}


# -- Bringing the index up to date with the archive's files -----------------------------------------------------------

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
    """Index what is new in the archive, or `only` of these names; returns how many copies were read."""
    known = {name: (size, mtime) for name, size, mtime in connection.execute("SELECT name, size, mtime FROM copy")}
    there = _listing(archive)
    fresh = [name for name in sorted(there) if known.get(name) != there[name] and (only is None or name in only)]
    for at in range(0, len(fresh), BATCH):
        batch = fresh[at : at + BATCH]
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
    """Forget everything."""
    with transaction(connection):
        connection.execute("DELETE FROM copy")
        connection.execute("DELETE FROM dialog")  # and with each what stands of it in the other tables


def _listing(archive: Path) -> Listing:
    found = {}
    with os.scandir(archive) as items:
        for item in items:
            is_name = item.name.endswith(".md") and item.name.isprintable() and not item.name.startswith(".")
            if is_name and item.is_file(follow_symlinks=False):
                status = item.stat(follow_symlinks=False)
                found[item.name] = (status.st_size, min(status.st_mtime_ns, LATEST))
    return found


def _facts(path: Path) -> Facts | None:
    """The facts of a copy; None for a file that is no dialog, or cannot be read."""
    try:
        return facts(read_dialog(path), attachments_of(path))
    except Exception as error:  # whatever one copy does to its reader, the others are found
        log.warning("%s is left out of the memory: %s", path, error)
        log.debug("it was read here", exc_info=True)
        return None


def _note(connection: sqlite3.Connection, name: str, status: tuple[int, int], found: Facts | None) -> str:
    """Record this copy; returns the id of the dialog that it held before, "" for a new one."""
    before = connection.execute("SELECT id FROM copy WHERE name = ?", (name,)).fetchone()
    if before is not None:
        connection.execute("DELETE FROM dialog WHERE own = ?", before)
    last, count = found.last if found else ("", 0)
    at = last or written(datetime.fromtimestamp(status[1] // 1_000_000_000, UTC))
    values = (name, *status, found.row.id if found else "", found.first if found else "", at, count)
    connection.execute("INSERT OR REPLACE INTO copy VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    return before[0] if before else ""


def _settle(
    connection: sqlite3.Connection, archive: Path, ids: Iterable[str], read: Mapping[str, Facts | None]
) -> None:
    """Make the newest copy of each of these dialogs, and no other, listed and searched."""
    for own in sorted(ids):
        query = "SELECT name, id, first, at, entries FROM copy WHERE id = ?"
        wanted = _newest([_Copy(*row) for row in connection.execute(query, (own,))])
        listed = dict(connection.execute("SELECT id, name FROM dialog WHERE own = ?", (own,)).fetchall())
        if listed == {key: copy.name for key, copy in wanted.items()}:
            continue
        connection.execute("DELETE FROM dialog WHERE own = ?", (own,))
        for key, copy in wanted.items():
            found = read.get(copy.name) or _facts(archive / copy.name)
            if found is not None:
                _insert(connection, key, copy, found)


def _newest(copies: Sequence[_Copy]) -> dict[str, _Copy]:
    """The copy that stands for each dialog, by the id that commands name it by.

    Copies with the same first agent's entry are of one dialog; one without any belongs to the dialog it became.
    Where several dialogs share an id, the later ones get the beginning of that entry's hash after it.
    """
    groups: dict[str, list[_Copy]] = {}
    for copy in copies:
        groups.setdefault(copy.first, []).append(copy)
    if len(groups) > 1:
        groups.pop("", None)
    age = attrgetter("at", "entries", "name")
    in_order = sorted(groups.items(), key=lambda group: (min(copy.at for copy in group[1]), group[0]))
    return {
        group[0].id if number == 0 else f"{group[0].id}~{first[:6]}": max(group, key=age)
        for number, (first, group) in enumerate(in_order)
    }


def _insert(connection: sqlite3.Connection, key: str, copy: _Copy, f: Facts) -> None:
    row = replace(f.row, id=key, ended=f.row.ended or copy.at, archive=copy.name)
    dialog = (key, copy.name, f.row.id, row.topic, row.ended, json.dumps(row.as_json()), row.is_rehearsal)
    connection.execute(f"INSERT INTO dialog VALUES ({_marks(dialog)})", dialog)
    said = [(None, key, "0", 0, "", row.started, row.topic), *((None, key, *astuple(said)) for said in f.said)]
    connection.executemany(f"INSERT INTO entry VALUES ({_marks(said[0])})", said)
    for made in f.made:
        d = replace(made.decision, dialog=key, at=made.decision.at or row.ended, archive=copy.name)
        decision = (None, key, d.topic, d.text, f"{f.question[:MORE]}\n{d.reason}", d.at, json.dumps(d.as_json()))
        connection.execute(f"INSERT INTO decision VALUES ({_marks(decision)})", decision)


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))

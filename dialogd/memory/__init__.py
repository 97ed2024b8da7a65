"""What earlier dialogs decided: lists, search, recall and outcomes over the archive, and over dialogs not yet in it.

The archive's copies and `outcomes.jsonl` are the truth; a SQLite file (FTS5) beside them can always be made again.
Every copy is indexed; of the copies of one dialog only the newest has a `key`, the id by which commands name it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from dialogd.errors import BadInput, DialogdError, StorageError
from dialogd.memory.records import (
    FAILED,
    WORKED,
    DialogRow,
    Facts,
    Hit,
    PastDecision,
    Verdict,
    facts,
    read_dialog,
    row_of,
    written,
)
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import many
from dialogd.store.disk import StateDir, attachments_of, writing
from dialogd.store.disk import archive as archive_copy
from dialogd.store.registry import Registry

__all__ = ["DialogRow", "Hit", "Memory", "PastDecision", "Verdict", "current", "excerpt", "history", "keep"]

SCHEMA = 11
NAME = "index.sqlite"
PATIENCE = 2.0  # seconds for which another process's lock is waited for
LATEST = 2**63 - 1  # nanoseconds: what SQLite can hold
MORE = 1000  # characters of the question that are searched with a decision
NAMED = 5  # ids that an error names

log = logging.getLogger("dialogd")
T = TypeVar("T")

_ROWS, _DECISIONS = TypeAdapter(DialogRow), TypeAdapter(PastDecision)
_WORDS = "tokenize='porter unicode61 remove_diacritics 2'"
_TABLES = f"""
DROP TABLE IF EXISTS copy;
DROP TABLE IF EXISTS entry;
DROP TABLE IF EXISTS decision;
CREATE TABLE copy (name TEXT PRIMARY KEY, size INTEGER, mtime INTEGER, id TEXT, first TEXT, at TEXT, entries INTEGER,
    facts TEXT, rehearsal INTEGER, key TEXT);
CREATE VIRTUAL TABLE entry USING fts5(
    text, copy UNINDEXED, id UNINDEXED, turn UNINDEXED, agent UNINDEXED, at UNINDEXED, {_WORDS});
CREATE VIRTUAL TABLE decision USING fts5(topic, text, more, copy UNINDEXED, facts UNINDEXED, {_WORDS});
PRAGMA user_version = {SCHEMA};
"""


def _make(connection: sqlite3.Connection) -> None:
    for statement in filter(str.strip, _TABLES.split(";")):
        connection.execute(statement)


def _connect(folder: Path) -> sqlite3.Connection:
    """Open the index of that folder, or make it."""
    path = folder / NAME
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    try:
        if connection.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:
            connection.execute("PRAGMA journal_mode = WAL")
            with _transaction(connection):
                if connection.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:  # nobody else has made it
                    _make(connection)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _is_busy(error: sqlite3.Error) -> bool:
    """True where another process held the index for too long."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """An exclusive write transaction."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


# -- Bringing the index up to date with the archive's files -----------------------------------------------------------


def _sync(connection: sqlite3.Connection, archive: Path) -> int:
    """Index what is new in the archive; returns how many copies were read."""
    known = {name: (size, mtime) for name, size, mtime in connection.execute("SELECT name, size, mtime FROM copy")}
    there = _listing(archive)
    fresh = [name for name in sorted(there) if known.get(name) != there[name]]
    gone = [name for name in known if name not in there]
    read = {name: _facts(archive / name) for name in fresh}  # before the lock: others want to write, too
    if fresh or gone:
        with _transaction(connection):
            _forget(connection, [*fresh, *gone])  # another process may have indexed some meanwhile
            for name, found in read.items():
                _insert(connection, name, there[name], found)
            _choose(connection)
    return len(fresh)


def _listing(archive: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of each copy, by name."""
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


def _forget(connection: sqlite3.Connection, names: Sequence[str]) -> None:
    for column, table in (("name", "copy"), ("copy", "entry"), ("copy", "decision")):
        connection.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(name,) for name in names])


def _insert(connection: sqlite3.Connection, name: str, status: tuple[int, int], f: Facts | None) -> None:
    """Index a copy; one that cannot be read has no id."""
    changed = written(datetime.fromtimestamp(status[1] // 1_000_000_000, UTC))
    if f is None:
        copy = (name, *status, "", "", changed, 0, "", 0, None)
    else:
        at = f.last[0] or changed
        row = replace(f.row, ended=f.row.ended or at, archive=name)
        copy = (name, *status, row.id, f.first, at, f.last[1], _ROWS.dump_json(row).decode(), row.is_rehearsal, None)
        said = [(row.topic, name, "0", 0, "", row.started)]
        said += [(text, name, entry, turn, by, at) for entry, turn, by, at, text in f.said]
        connection.executemany("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?)", said)
        for made in f.decisions:
            d = replace(made, at=made.at or row.ended, archive=name)
            values = (d.topic, d.text, f"{f.question[:MORE]}\n{d.reason}", name, _DECISIONS.dump_json(d).decode())
            connection.execute("INSERT INTO decision VALUES (?, ?, ?, ?, ?)", values)
    connection.execute("INSERT INTO copy VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", copy)


def _choose(connection: sqlite3.Connection) -> None:
    """Give the newest copy of each dialog, and no other, the key by which commands name it.

    Copies with the same first agent's entry are of one dialog; one without any belongs to the dialog it became. Where
    several dialogs share an id, the later ones get the beginning of that entry's hash after it.
    """
    groups: dict[str, dict[str, list[tuple[str, int, str]]]] = {}
    for id_, first, at, entries, name in connection.execute("SELECT id, first, at, entries, name FROM copy"):
        if id_:
            groups.setdefault(id_, {}).setdefault(first, []).append((at, entries, name))
    connection.execute("UPDATE copy SET key = NULL")
    for id_, dialogs in groups.items():
        if len(dialogs) > 1:
            dialogs.pop("", None)
        in_order = sorted(dialogs.items(), key=lambda item: (min(item[1])[0], item[0]))
        keys = [(f"{id_}~{first[:6]}" if later else id_, max(c)[2]) for later, (first, c) in enumerate(in_order)]
        connection.executemany("UPDATE copy SET key = ? WHERE name = ?", keys)


def _row(key: str, facts: str) -> DialogRow:
    return replace(_ROWS.validate_json(facts), id=key)


def _decision(key: str, facts: str) -> PastDecision:
    return replace(_DECISIONS.validate_json(facts), dialog=key)


# -- Searching what was said ------------------------------------------------------------------------------------------

MOST_WORDS = 40  # words of a question that are looked up
WIDEST, BEFORE = 200, 60  # characters of an excerpt, and of them before the first word that was looked for

_WORD = re.compile(r"[^\W_]+")
_FROM, _TO = "\x02", "\x03"  # no text in the index has them: it was cleaned
# What formats a text: at the beginning of a line, and among its words.
_SIGNS = re.compile(
    r"^[ \t]*(?:#{1,6}[ \t]+|>[ \t]?|[-*+][ \t]+)+|\*{2,}|(?<!\w)_{1,3}(?=\S)|(?<=\S)_{1,3}(?!\w)|`+|~{3,}", re.M
)


def _match(words: Sequence[str], how: str) -> str:
    """The words as FTS5 takes them: each a phrase, whatever it holds."""
    return f" {how} ".join('"' + word.replace("\0", " ").replace('"', '""') + '"' for word in words)


def _search(
    connection: sqlite3.Connection, words: str, agent: str, since: str, limit: int, offset: int
) -> list[Hit]:  # fmt: skip
    wanted = [*dict.fromkeys(word for word in words.replace("\0", " ").split() if _WORD.search(word))][:MOST_WORDS]
    query = (
        f"SELECT c.key, c.facts, e.id, e.turn, e.agent, e.at, highlight(entry, 0, '{_FROM}', '{_TO}')"
        " FROM entry e JOIN copy c ON c.name = e.copy"
        " WHERE entry MATCH ? AND c.key IS NOT NULL AND (? = '' OR e.agent = ? COLLATE NOCASE)"
        " AND (? = '' OR COALESCE(NULLIF(e.at, ''), c.at) >= ?)"
        " ORDER BY bm25(entry), c.at DESC, e.rowid LIMIT ? OFFSET ?"
    )
    for how in ("AND", "OR") if wanted else ():
        values = (_match(wanted, how), agent, agent, since, since, limit, offset)
        if (rows := connection.execute(query, values).fetchall()) or offset:
            return [_hit(*row) for row in rows]
    return []


def _hit(key: str, facts: str, entry: str, turn: int, agent: str, at: str, marked: str) -> Hit:
    row = _row(key, facts)
    name = dict(zip(row.agents, row.names, strict=False)).get(agent, "")
    return Hit(key, row.topic, entry, turn, agent, at, *_excerpt(marked), row.is_rehearsal, name)


def excerpt(text: str, words: Sequence[str]) -> str:
    """The passage of a text that begins with one of these words, without the signs of Markdown."""
    wanted = "|".join(map(re.escape, words)) or "(?!)"
    return _excerpt(re.sub(wanted, lambda found: f"{_FROM}{found[0]}{_TO}", text, flags=re.IGNORECASE))[0]


def _excerpt(marked: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The passage around the first word that is marked in the text, between whole words, and where marked words lie."""
    flat = " ".join(_SIGNS.sub("", marked).split())
    first = max(flat.find(_FROM), 0)
    start = max(first - BEFORE, 0) and (flat.rfind(" ", 0, first - BEFORE) + 1 or first - BEFORE)
    words = flat[start : start + WIDEST]
    words = words if start + WIDEST >= len(flat) else words.rpartition(" ")[0] or words
    words = f"{'…' * (start > 0)}{words}{'…' * (start + len(words) < len(flat))}"
    plain, spans = "", list[tuple[int, int]]()
    for piece in re.split(f"({_FROM}[^{_TO}]*{_TO}?)", words):
        word = piece.strip(_FROM + _TO)
        spans += [(len(plain), len(plain) + len(word))] if word != piece else []
        plain += word
    return plain, tuple(spans)


# -- Recalling decisions ----------------------------------------------------------------------------------------------

# What says nothing about a matter: common words of English, and those by which decisions are asked for.
_COMMON = """a about above after again against ago all already also am an and any anybody anyone anything are as at be
because been before being below between both but by came can cannot come could did do does doing done down during
each either else ever every for from further get give go goes going gone got had has have having he her here hers
him his how i if in instead into is it its just last let like made make many may maybe me more most much must my
need neither no nor not nothing now of off on once one only or other our ours out over own please previously put
rather really recently same say said she should since so some still such than that the their them then there these
they thing things this those though through thus to too towards under until up upon us use used using very was way
we well went were what whatever when where whether which while who whom whose why will with within without would
yes yet you your yours agree agreed agreement answer choice choose chose chosen conclude concluded conclusion consensus
decide decided decides decision decisions dialog dialogs discuss discussed discussion earlier outcome past reach
reached recall remember resolve resolved result settle settled team verdict talked topic"""
_EMPTY = frozenset(_COMMON.split())


def _content(question: str) -> list[str]:
    """The words that say what a question is about, each once."""
    words = dict.fromkeys(word.casefold() for word in _WORD.findall(question))
    return [word for word in words if word not in _EMPTY][:MOST_WORDS]


MOST = 200  # decisions that are ranked


def _recall(connection: sqlite3.Connection, question: str, limit: int) -> list[PastDecision]:
    """The decisions about it, best first, those that still stand before others."""
    if not (words := _content(question)):
        return []
    query = (
        "SELECT c.key, decision.facts FROM decision JOIN copy c ON c.name = decision.copy"
        " WHERE decision MATCH ? AND c.key IS NOT NULL AND NOT c.rehearsal"
        f" ORDER BY bm25(decision, 3.0, 2.0, 1.0), c.at DESC LIMIT {MOST}"
    )
    made = [_decision(*row) for row in connection.execute(query, (_match(words, "OR"),))]
    return sorted(made, key=lambda one: bool(one.superseded))[:limit]


# -- Copies with their origins, and outcomes: lines of JSON -----------------------------------------------------------

ORIGINS, OUTCOMES = "origins.jsonl", "outcomes.jsonl"
MOST_BYTES = 32 * 1024 * 1024  # of such a file that are read


def keep(dialog: Dialog, file: Path, state: StateDir) -> Path:
    """Copy an ended dialog into the archive, once per content; gives the copy's path. Raises `OSError`."""
    copy = archive_copy(dialog, file, state.archive)
    if _origins(state).get(copy.name) != str(file):
        _append(state.memory / ORIGINS, {"copy": copy.name, "file": str(file)})
    return copy


def current(row: DialogRow) -> tuple[Path, Dialog]:
    """Where a dialog stands, and it: what follows its end is in its file alone, as long as that holds no other one.

    Raises `DialogdError`, `OSError` where there is neither that nor its copy.
    """
    with suppress(DialogdError, OSError):
        dialog = read_dialog(path := Path(row.file or row.archive))
        if dialog.id == row.id:
            return path, dialog
    return (path := Path(row.archive or row.file)), read_dialog(path)


def _origins(state: StateDir) -> dict[str, str]:
    """The file of each copy's dialog, by the copy's name; the last line counts."""
    return {str(line.get("copy")): str(line.get("file", "")) for line in _lines(state.memory / ORIGINS)}


def _append(path: Path, record: dict[str, Any]) -> None:
    """Append one line with the time, in one write. Raises `OSError`."""
    data = json.dumps({"at": written(datetime.now(UTC)), **record}, ensure_ascii=True).encode() + b"\n"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "rb+", buffering=0) as file:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"  # what a crash left must not spoil this line
        file.write(b"\n" + data if torn else data)
        os.fsync(fd)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of such a file, oldest first; none without a file. Unreadable lines are skipped."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES)
    except OSError:
        return
    for line in data.split(b"\n"):
        with suppress(ValueError, RecursionError):
            if isinstance(record := json.loads(line), dict):
                yield record


def history(path: Path) -> Mapping[str, tuple[Verdict, ...]]:
    """All recorded outcomes by dialog id, oldest first."""
    found: dict[str, tuple[Verdict, ...]] = {}
    for line in _lines(path):
        values = [line.get(name) for name in ("dialog", "outcome", "why", "at")]
        dialog, outcome, why, at = (value if isinstance(value, str) else "" for value in values)
        if dialog and outcome in (WORKED, FAILED):
            found[dialog] = (*found.get(dialog, ()), Verdict(outcome, why, at))
    return found


# -- The memory of one state directory --------------------------------------------------------------------------------


class Memory:
    """Dialogs, decisions and their outcomes under one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self.state = StateDir(state_dir)

    # -- questions ------------------------------------------------------------------------------------------------

    def dialogs(self, limit: int | None = 20, offset: int = 0, files: Iterable[Path] = ()) -> list[DialogRow]:
        """The dialogs, open ones first, then newest first; `limit` None gives all.

        Looks at the dialogs of running daemons, and at `files`: one that has ended is archived, others are listed.
        """
        going = self._going(files)
        open_ = {row.id for row in going}
        found = [*going, *(row for row in self._ask(_listed) if row.id not in open_)]
        return self._complete(*(found if limit is None else found[: offset + limit])[offset:])

    def _going(self, files: Iterable[Path]) -> list[DialogRow]:
        """The open dialogs of running daemons and in these files; ended ones are archived on the way."""
        served = {Path(daemon.file) for daemon in Registry(self.state).running()}
        found = []
        for file in dict.fromkeys((*sorted(served), *files)):
            with suppress(DialogdError, OSError):
                dialog = read_dialog(file)
                if dialog.state.outcome is None:
                    found.append(replace(row_of(dialog, file), state="running" if file in served else "open"))
                else:
                    self.keep(dialog, file)
        return found

    def archived(self) -> list[DialogRow]:
        """The archived dialogs, newest first; nothing else is looked at."""
        return self._complete(*self._ask(_listed))

    def sizes(self) -> dict[str, set[int]]:
        """How large the archived copies of each file's dialogs are, by its path: such a file need not be read."""
        found: dict[str, set[int]] = {}
        for name, file in _origins(self.state).items():
            with suppress(OSError):
                found.setdefault(file, set()).add((self.state.archive / name).stat().st_size)
        return found

    def keep(self, dialog: Dialog, file: Path) -> None:
        """Archive an ended dialog, where it is not; a failure is a warning."""
        try:
            keep(dialog, file, self.state)
        except OSError as error:
            log.warning("%s has ended and cannot be archived: %s", file, error)

    def dialog(self, wanted: str) -> DialogRow:
        """The archived dialog that an id, the beginning of one, its file or its copy means. Raises `BadInput`."""
        file = os.path.normpath(Path(wanted).absolute())
        wanted = next((name for name, place in reversed(_origins(self.state).items()) if place == file), wanted)
        return self._complete(self._ask(lambda c: _found(c, wanted)))[0]

    def decisions(self, wanted: str) -> list[PastDecision]:
        """What that dialog decided, in order. Raises `BadInput`."""
        row = self.dialog(wanted)
        query = "SELECT c.key, d.facts FROM decision d JOIN copy c ON c.name = d.copy WHERE c.key = ? ORDER BY d.rowid"
        return self._told(self._ask(lambda c: [_decision(*found) for found in c.execute(query, (row.id,))]))

    def search(self, words: str, *, agent: str = "", since: str = "", limit: int = 20, offset: int = 0) -> list[Hit]:
        """The entries that hold all the words, best first; where none does, those that hold some of them.

        `agent` is the id of who wrote them, `since` an ISO time in UTC.
        """
        return self._ask(lambda c: _search(c, words, agent, since, limit, offset))

    def recall(self, question: str, limit: int = 3) -> list[PastDecision]:
        """The past decisions that answer a question, best first; empty where nothing does."""
        return self._told(self._ask(lambda c: _recall(c, question, limit)))

    def why_nothing(self) -> str:
        """Why nothing is recalled, in words; who sees rehearsals in the list is told that they decide nothing."""
        rehearsed = sum(row.is_rehearsal for row in self.archived())
        left = f"; {many(rehearsed, 'rehearsal')}, in which no model was asked, cannot be recalled" if rehearsed else ""
        return f"no earlier dialog decided anything about that{left}"

    def verdicts(self, wanted: str) -> tuple[Verdict, ...]:
        """All recorded outcomes of that dialog, oldest first. Raises `BadInput`."""
        return history(self._outcomes).get(self.dialog(wanted).id, ())

    def status(self) -> dict[str, object]:
        """Paths and counts of the archive and the index."""
        current = "copy IN (SELECT name FROM copy WHERE key IS NOT NULL)"
        queries = {
            "copies": "copy",
            "unreadable": "copy WHERE id = ''",
            "dialogs": "copy WHERE key IS NOT NULL",
            "entries": f"entry WHERE {current}",
            "decisions": f"decision WHERE {current}",
        }
        count = "SELECT count(*) FROM "
        counts = self._ask(lambda c: {name: c.execute(count + what).fetchone()[0] for name, what in queries.items()})
        return {"archive": str(self.state.archive), "index": str(self.state.memory / NAME), **counts}

    # -- what is written ------------------------------------------------------------------------------------------

    def outcome(self, wanted: str, outcome: str, why: str) -> DialogRow:
        """Record that what a dialog decided worked or failed, and why. Raises `BadInput`, `StorageError`."""
        if outcome not in (WORKED, FAILED):
            raise BadInput(f"{outcome!r} is no outcome", fix=f"say {WORKED} or {FAILED}")
        if not why.strip():
            raise BadInput("the reason is missing", fix=f'say it in a sentence: dialogd outcome ID {outcome} "why"')
        row = self.dialog(wanted)
        with writing(f"the outcome in {self._outcomes}", "check the disk and its rights"):
            _append(self._outcomes, {"dialog": row.id, "outcome": outcome, "why": " ".join(why.split())})
        return self._complete(row)[0]

    def rebuild(self) -> int:
        """Rebuild the index from the files; returns how many copies there are. Raises `StorageError`."""

        def work(connection: sqlite3.Connection) -> int:
            with _transaction(connection):
                _make(connection)
            return _sync(connection, self.state.archive)

        try:
            return self._on_disk(work)
        except (sqlite3.Error, OSError) as error:
            raise StorageError(
                f"the index in {self.state.memory} cannot be made: {error}",
                fix="check the disk and its rights, and who holds the index: fuser -v " + str(self.state.memory / NAME),
            ) from error

    # -- inside ---------------------------------------------------------------------------------------------------

    def _ask(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on an up-to-date index, in memory if the one on the disk cannot be used."""

        def fresh(connection: sqlite3.Connection) -> T:
            _sync(connection, self.state.archive)
            return work(connection)

        try:
            return self._on_disk(fresh)
        except (sqlite3.Error, OSError) as error:
            log.warning("the index in %s is bypassed for now: %s", self.state.memory, error)
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            _make(connection)
            return fresh(connection)

    def _on_disk(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the index; a spoilt one is made again. Raises `sqlite3.Error`, `OSError`."""
        folder = self.state.memory
        try:
            with closing(_connect(folder)) as connection:
                return work(connection)
        except sqlite3.Error as error:
            if _is_busy(error):
                raise
            log.warning("the index in %s is made again: %s", folder, error)
        for end in ("", "-wal", "-shm", "-journal"):
            (folder / f"{NAME}{end}").unlink(missing_ok=True)
        with closing(_connect(folder)) as connection:
            return work(connection)

    @property
    def _outcomes(self) -> Path:
        return self.state.memory / OUTCOMES

    def _complete(self, *found: DialogRow) -> list[DialogRow]:
        """The rows with what is not in the index: the dialogs' files, and their outcomes."""
        outcomes, origins = history(self._outcomes), _origins(self.state)
        return [
            replace(
                row,
                file=row.file or origins.get(row.archive, ""),
                archive=str(self.state.archive / row.archive) if row.archive else "",
                verdict=outcomes.get(row.id, (None,))[-1],
            )
            for row in found
        ]

    def _told(self, decisions: Iterable[PastDecision]) -> list[PastDecision]:
        """The decisions with their outcomes."""
        outcomes, archive = history(self._outcomes), self.state.archive
        last = {dialog: verdicts[-1] for dialog, verdicts in outcomes.items()}
        return [replace(d, verdict=last.get(d.dialog), archive=str(archive / d.archive)) for d in decisions]


def _listed(connection: sqlite3.Connection) -> list[DialogRow]:
    """Every archived dialog, newest first."""
    rows = connection.execute("SELECT key, facts FROM copy WHERE key IS NOT NULL ORDER BY at DESC, key")
    return [_row(key, facts) for key, facts in rows]


def _found(connection: sqlite3.Connection, wanted: str) -> DialogRow:
    """The dialog that an id, the beginning of one, or of its copy's name, means. Raises `BadInput`."""
    name = wanted.rpartition("/")[2].removesuffix(".md")
    exact = connection.execute("SELECT key, facts FROM copy WHERE key = ?", (wanted,)).fetchall()
    query = "SELECT key, facts FROM copy WHERE key IS NOT NULL AND (substr(key, 1, ?) = ? OR substr(name, 1, ?) = ?)"
    values = (len(wanted), wanted, len(name), name)
    matches = exact or connection.execute(f"{query} ORDER BY at DESC, key", values).fetchall()
    if not wanted or not matches:
        raise BadInput(f"no archived dialog is called {wanted!r}", fix="see what there is: dialogd list --all")
    if len(matches) > 1:
        ids = ", ".join(row[0] for row in matches[:NAMED])
        raise BadInput(f"{wanted!r} may mean {len(matches)} dialogs: {ids}", fix="write more of the id")
    return _row(*matches[0])

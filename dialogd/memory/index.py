"""The index over the archive: a SQLite file (FTS5) that can always be made again from the copies; search and recall.

Every copy is indexed; of the copies of one dialog only the newest has a `key`, the id by which commands name it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from datetime import UTC, datetime
from pathlib import Path

from dialogd.errors import BadInput
from dialogd.memory.reading import Facts, cut, facts, read_dialog
from dialogd.memory.values import DISCUSSED, DialogRow, Hit, PastDecision, written
from dialogd.store.archive import attachments_of
from dialogd.views.plan import Signed

SCHEMA = 9
NAME = "index.sqlite"
BATCH = 16  # copies per transaction: others want to write, too
LATEST = 2**63 - 1  # nanoseconds: what SQLite can hold
MORE = 1000  # characters of the question that are searched with a decision

log = logging.getLogger("dialogd")

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


def connect(folder: Path, patience: float) -> sqlite3.Connection:
    """Open the index of that folder, or make it. Raises `sqlite3.Error`, `OSError`.

    `patience` is how long a lock of another process is waited for, in seconds.
    """
    path = folder / NAME
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(path, timeout=patience, isolation_level=None)
    try:
        if connection.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:
            connection.execute("PRAGMA journal_mode = WAL")
            with transaction(connection):
                if connection.execute("PRAGMA user_version").fetchone()[0] != SCHEMA:  # nobody else has made it
                    _make(connection)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def in_memory() -> sqlite3.Connection:
    """An index in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    _make(connection)
    return connection


def _make(connection: sqlite3.Connection) -> None:
    for statement in filter(str.strip, _TABLES.split(";")):
        connection.execute(statement)


def is_busy(error: sqlite3.Error) -> bool:
    """True where another process held the index for too long."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_spoilt(error: sqlite3.Error) -> bool:
    """True for an error of a file that is not, or no longer, an index of ours."""
    spoilt = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in spoilt


def discard(folder: Path) -> None:
    """Delete the index; the next who opens it makes it again. Raises `OSError`."""
    for end in ("", "-wal", "-shm", "-journal"):
        (folder / f"{NAME}{end}").unlink(missing_ok=True)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """An exclusive write transaction."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


# -- Bringing the index up to date with the archive's files -----------------------------------------------------------


def sync(connection: sqlite3.Connection, archive: Path, only: Collection[str] | None = None) -> int:
    """Index what is new in the archive, or `only` of these names; returns how many copies were read."""
    known = {name: (size, mtime) for name, size, mtime in connection.execute("SELECT name, size, mtime FROM copy")}
    there = _listing(archive)
    fresh = [name for name in sorted(there) if known.get(name) != there[name] and (only is None or name in only)]
    gone = [name for name in known if name not in there] if only is None else []
    for at in range(0, len(fresh), BATCH):
        read = {name: _facts(archive / name) for name in fresh[at : at + BATCH]}
        with transaction(connection):
            _forget(connection, [*read])  # another process may have indexed some meanwhile
            for name, found in read.items():
                _insert(connection, name, there[name], found)
            _choose(connection)
    if gone:
        with transaction(connection):
            _forget(connection, gone)
            _choose(connection)
    return len(fresh)


def clear(connection: sqlite3.Connection) -> None:
    """Forget everything."""
    with transaction(connection):
        _make(connection)


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
        copy = (name, *status, row.id, f.first, at, f.last[1], json.dumps(row.as_json()), row.is_rehearsal, None)
        said = [(row.topic, name, "0", 0, "", row.started)]
        said += [(text, name, entry, turn, by, at) for entry, turn, by, at, text in map(astuple, f.said)]
        connection.executemany("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?)", said)
        for made in f.made:
            d = replace(made.decision, at=made.decision.at or row.ended, archive=name)
            values = (d.topic, d.text, f"{f.question[:MORE]}\n{d.reason}", name, json.dumps(d.as_json()))
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


# -- What it lists ----------------------------------------------------------------------------------------------------

NAMED = 5  # ids that an error names


def listed(connection: sqlite3.Connection) -> list[DialogRow]:
    """Every archived dialog, newest first."""
    rows = connection.execute("SELECT key, facts FROM copy WHERE key IS NOT NULL ORDER BY at DESC, key")
    return [_row(key, facts) for key, facts in rows]


def _row(key: str, facts: str) -> DialogRow:
    return replace(DialogRow.from_json(json.loads(facts)), id=key)


def found(connection: sqlite3.Connection, wanted: str) -> DialogRow:
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


def counts(connection: sqlite3.Connection) -> dict[str, object]:
    """The number of copies, dialogs, entries and decisions."""
    current = "copy IN (SELECT name FROM copy WHERE key IS NOT NULL)"
    queries = {
        "copies": "copy",
        "unreadable": "copy WHERE id = ''",
        "dialogs": "copy WHERE key IS NOT NULL",
        "entries": f"entry WHERE {current}",
        "decisions": f"decision WHERE {current}",
    }
    return {name: connection.execute(f"SELECT count(*) FROM {what}").fetchone()[0] for name, what in queries.items()}


def decisions_of(connection: sqlite3.Connection, dialog: str) -> tuple[PastDecision, ...]:
    """What a dialog decided, in order."""
    query = "SELECT c.key, d.facts FROM decision d JOIN copy c ON c.name = d.copy WHERE c.key = ? ORDER BY d.rowid"
    return tuple(_decision(key, facts) for key, facts in connection.execute(query, (dialog,)))


def _decision(key: str, facts: str) -> PastDecision:
    return replace(PastDecision.from_json(json.loads(facts)), dialog=key)


# -- Searching what was said ------------------------------------------------------------------------------------------

MOST_WORDS = 40  # words of a question that are looked up
WIDEST, BEFORE = 200, 60  # characters of an excerpt, and of them before the first word that was looked for

_WORD = re.compile(r"[^\W_]+")
_FROM, _TO = "\x02", "\x03"  # no text in the index has them: it was cleaned
# What formats a text: at the beginning of a line, and among its words.
_SIGNS = re.compile(
    r"^[ \t]*(?:#{1,6}[ \t]+|>[ \t]?|[-*+][ \t]+)+|\*{2,}|(?<!\w)_{1,3}(?=\S)|(?<=\S)_{1,3}(?!\w)|`+|~{3,}", re.M
)


def terms(words: str) -> tuple[str, ...]:
    """What somebody searches for, as they typed it, word by word; what holds neither letter nor digit is left out."""
    return tuple(dict.fromkeys(word for word in words.replace("\0", " ").split() if _WORD.search(word)))[:MOST_WORDS]


def _match(words: Sequence[str], how: str) -> str:
    """The words as FTS5 takes them: each a phrase, whatever it holds."""
    return f" {how} ".join('"' + word.replace("\0", " ").replace('"', '""') + '"' for word in words)


def search(
    connection: sqlite3.Connection, words: str, *, agent: str = "", since: str = "", limit: int = 20, offset: int = 0
) -> tuple[Hit, ...]:
    """The entries that hold all the words, best first; where none does, those that hold some of them.

    `agent` is the id of who wrote them, `since` an ISO time in UTC.
    """
    wanted = terms(words)
    if not wanted:
        return ()
    query = (
        f"SELECT c.key, c.facts, e.id, e.turn, e.agent, e.at, highlight(entry, 0, '{_FROM}', '{_TO}')"
        " FROM entry e JOIN copy c ON c.name = e.copy"
        " WHERE entry MATCH ? AND c.key IS NOT NULL AND (? = '' OR e.agent = ? COLLATE NOCASE)"
        " AND (? = '' OR COALESCE(NULLIF(e.at, ''), c.at) >= ?)"
        " ORDER BY bm25(entry), c.at DESC, e.rowid LIMIT ? OFFSET ?"
    )
    for how in ("AND", "OR"):
        values = (_match(wanted, how), agent, agent, since, since, limit, offset)
        rows = connection.execute(query, values).fetchall()
        if rows or offset:
            return tuple(_hit(*row) for row in rows)
    return ()


def _hit(key: str, facts: str, entry: str, turn: int, agent: str, at: str, marked: str) -> Hit:
    row = _row(key, facts)
    name = dict(zip(row.agents, row.names, strict=False)).get(agent, "")
    return Hit(key, row.topic, entry, turn, agent, at, *_excerpt(marked), row.is_rehearsal, name)


def excerpt(text: str, words: Sequence[str]) -> str:
    """The passage of a text that holds most of these words, without the signs of Markdown."""
    wanted = "|".join(map(re.escape, words)) or "(?!)"
    return _excerpt(re.sub(wanted, lambda found: f"{_FROM}{found[0]}{_TO}", text, flags=re.IGNORECASE))[0]


def _excerpt(marked: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The passage with most of what is marked in the text, between whole words, and where the marked words lie."""
    plain, spans = "", list[tuple[int, int]]()
    for piece in re.split(f"({_FROM}[^{_TO}]*{_TO})", " ".join(_SIGNS.sub("", marked).split())):
        word = piece.strip(_FROM + _TO)
        spans += [(len(plain), len(plain) + len(word))] if word != piece else []
        plain += word
    firsts = [start for start, _ in spans] or [0]
    within = [bisect_left(firsts, at + WIDEST - BEFORE) - place for place, at in enumerate(firsts)]
    best = firsts[within.index(max(within))]
    start = plain.rfind(" ", 0, best - BEFORE) + 1 if best > BEFORE else 0
    end = max(start + WIDEST, next((stop for begin, stop in spans if begin == best), 0))
    end = len(plain) if end >= len(plain) else max(plain.rfind(" ", 0, end + 1), start) or end
    left, right = "…" * (start > 0), "…" * (end < len(plain))
    inside = [(a - start + len(left), b - start + len(left)) for a, b in spans if start <= a and b <= end]
    return f"{left}{plain[start:end]}{right}", tuple(inside)


# -- Recalling decisions ----------------------------------------------------------------------------------------------

_STOP = """a about above after again against ago all already also am an and any anybody anyone anything are as at be
because been before being below between both but by came can cannot come could did do does doing done down during
each either else ever every for from further get give go goes going gone got had has have having he her here hers
him his how i if in instead into is it its just last let like made make many may maybe me more most much must my
need neither no nor not nothing now of off on once one only or other our ours out over own please previously put
rather really recently same say said she should since so some still such than that the their them then there these
they thing things this those though through thus to too towards under until up upon us use used using very was way
we well went were what whatever when where whether which while who whom whose why will with within without would
yes yet you your yours"""
# What a question about decisions is framed by, and says nothing about the matter.
_FRAME = """agree agreed agreement answer choice choose chose chosen conclude concluded conclusion consensus
decide decided decides decision decisions dialog dialogs discuss discussed discussion earlier
outcome past reach reached recall remember resolve resolved result settle settled team verdict
talked topic"""
_EMPTY = frozenset(_STOP.split())
_FRAMING = frozenset(_FRAME.split())


def content(question: str) -> tuple[str, ...]:
    """The words that say what a question is about, each once; all of them where it has no others."""
    found = tuple(dict.fromkeys(word.casefold() for word in _WORD.findall(question)))
    telling = tuple(word for word in found if word not in _EMPTY and word not in _FRAMING)
    plain = tuple(word for word in found if word not in _EMPTY)
    return (telling or plain or found)[:MOST_WORDS]


MOST = 200  # decisions that are ranked
SUPERSEDED = 0.9  # what a decision counts that no longer stands


def recall(connection: sqlite3.Connection, question: str, limit: int) -> tuple[PastDecision, ...]:
    """The decisions that hold words of the question, best first; then what was said about it where nobody decided.

    Ranked by bm25, the topic counting most. What was rehearsed is no memory.
    """
    if not (words := content(question)):
        return ()
    join = "JOIN copy c ON c.name = {0}.copy WHERE {0} MATCH ? AND c.key IS NOT NULL AND NOT c.rehearsal"
    query = (
        "SELECT c.key, decision.facts, -bm25(decision, 3.0, 2.0, 1.0) AS score FROM decision"
        f" {join.format('decision')} ORDER BY score DESC LIMIT {MOST}"
    )
    rows = connection.execute(query, (_match(words, "OR"),)).fetchall()
    highest = max((score for *_, score in rows), default=0.0)
    ranked = []
    for key, facts_, score in rows:
        made = _decision(key, facts_)
        share = score / highest if highest > 0 else 1.0
        ranked.append(replace(made, score=round(share * (SUPERSEDED if made.superseded else 1.0), 4)))
    ranked.sort(key=lambda made: (made.score, made.at), reverse=True)
    query = (
        "SELECT c.key, c.facts, entry.text, entry.turn, entry.agent, COALESCE(NULLIF(entry.at, ''), c.at) FROM entry"
        f" {join.format('entry')} AND c.name NOT IN (SELECT copy FROM decision) ORDER BY bm25(entry), c.at DESC LIMIT ?"
    )
    talk = {row[0]: row for row in connection.execute(query, (_match(words, "AND"), MOST)).fetchall()[::-1]}
    return (*ranked, *(_discussed(*row) for row in reversed(talk.values())))[:limit]


def _discussed(key: str, facts: str, text: str, turn: int, agent: str, at: str) -> PastDecision:
    """What was said about it where nobody decided anything."""
    return PastDecision(
        dialog=key, topic=(row := _row(key, facts)).topic, ref="", status=DISCUSSED, text=cut(text), method="",
        behind=(Signed(agent, turn),) if agent else (), evidence="", reason="", turns=(turn,) if turn else (), at=at,
        archive=row.archive,
    )  # fmt: skip

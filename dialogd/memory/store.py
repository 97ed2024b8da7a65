"""The index as a file: opening it, its tables, and what is done with one that is damaged or of another version.

Only what the archive's files say stands in it, so that it can be thrown away at any time.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dialogd.lock import Lock

SCHEMA = 3
NAME = "index.sqlite"
LOCK = "index.lock"  # held by whoever makes an index or throws one away

# `facts` is a `Row` or a `Decision` as JSON; beside it stands what is looked for.
_TABLES = """
CREATE TABLE copy (name TEXT PRIMARY KEY, size INTEGER, mtime INTEGER, id TEXT, first TEXT, at TEXT, entries INTEGER);
CREATE INDEX copy_id ON copy (id);
CREATE TABLE dialog (id TEXT PRIMARY KEY, name TEXT, own TEXT, topic TEXT, at TEXT, facts TEXT,
    rehearsal INTEGER);
CREATE INDEX dialog_own ON dialog (own);
CREATE INDEX dialog_at ON dialog (at);
CREATE TABLE entry (
    key INTEGER PRIMARY KEY, dialog TEXT, entry TEXT, turn INTEGER, agent TEXT, at TEXT, text TEXT);
CREATE INDEX entry_dialog ON entry (dialog);
CREATE TABLE decision (
    key INTEGER PRIMARY KEY, dialog TEXT, topic TEXT, text TEXT, more TEXT, at TEXT, sha TEXT, facts TEXT);
CREATE INDEX decision_dialog ON decision (dialog);
CREATE TABLE vector (sha TEXT PRIMARY KEY, model TEXT, value BLOB);
"""
_WORDS = "tokenize='porter unicode61 remove_diacritics 2'"
_FTS = f"""
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
"""

# What SQLite says of a file that is no index of ours, or no longer: made again. Anything else is gone around.
_SPOILT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_SCHEMA}


def is_spoilt(error: sqlite3.Error) -> bool:
    """True for an error after which the index is to be made again."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _SPOILT


def is_busy(error: sqlite3.Error) -> bool:
    """True where another process was at the index for too long."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def connect(folder: Path, patience: float, *, fts: bool = True) -> sqlite3.Connection:
    """Open the index of that folder, made where there is none. Raises `sqlite3.Error`, `OSError`, `DialogdError`.

    `patience` is how long a lock of another process is waited for, in seconds; `fts` False leaves FTS5 alone.
    """
    path = folder / NAME
    if path.exists():
        connection = _open(path, patience)
        try:
            if connection.execute("PRAGMA user_version").fetchone()[0] == SCHEMA:
                return connection
        except sqlite3.Error:
            connection.close()
            raise
        connection.close()
    with Lock(folder / LOCK, patience).held():
        return _made(path, patience, fts=fts)


def seen(folder: Path) -> int:
    """Which file the index is by now, as a number; 0 without one."""
    try:
        return (folder / NAME).stat().st_ino
    except OSError:
        return 0


def discard(folder: Path, which: int, patience: float) -> None:
    """Throw a spoilt index away, unless somebody else has put another there since it was `seen`.

    Raises `OSError`, `DialogdError`.
    """
    with Lock(folder / LOCK, patience).held():
        if seen(folder) == which:
            _remove(folder / NAME)


def in_memory(*, fts: bool = True) -> sqlite3.Connection:
    """An index that nobody keeps."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    _create(connection, fts=fts)
    return connection


def has_fts(connection: sqlite3.Connection) -> bool:
    """True where words are looked up by FTS5."""
    return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'entry_fts'").fetchone())


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing, alone among writers."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _open(path: Path, patience: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=patience, isolation_level=None)
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _made(path: Path, patience: float, *, fts: bool) -> sqlite3.Connection:
    """The index of that path, made anew unless another process has just made it."""
    if path.exists():
        connection = _open(path, patience)
        if connection.execute("PRAGMA user_version").fetchone()[0] == SCHEMA:
            return connection
        connection.close()
        _remove(path)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = _open(path, patience)
    connection.execute("PRAGMA journal_mode = WAL")
    with transaction(connection):
        _create(connection, fts=fts)
    return connection


def _create(connection: sqlite3.Connection, *, fts: bool) -> None:
    for statement in _statements(_TABLES):
        connection.execute(statement)
    if fts and knows_fts():
        for statement in _statements(_FTS):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA}")


def _statements(script: str) -> Iterator[str]:
    """One statement after another: `executescript` would end the transaction."""
    statement = ""
    for line in script.strip().split("\n"):
        statement += f"{line}\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def knows_fts() -> bool:
    """True where this SQLite was built with FTS5."""
    try:
        with sqlite3.connect(":memory:") as trial:
            trial.execute("CREATE VIRTUAL TABLE t USING fts5(x)")
        trial.close()
    except sqlite3.Error:
        return False
    return True


def _remove(path: Path) -> None:
    for end in ("", "-wal", "-shm", "-journal"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + end).unlink()

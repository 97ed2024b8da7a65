"""Searching what was said: entries that hold the words, best first, each with the place where they stand."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence

from dialogd.memory.store import has_fts
from dialogd.memory.values import Hit
from dialogd.memory.words import like, quoted, terms

_FROM, _TO = "\x02", "\x03"  # no text in the index has them: it was cleaned
SNIPPET = 24  # words
AROUND = 80  # characters before and after, without FTS5

_ROW = "d.rehearsal, e.dialog, d.topic, e.entry, e.turn, e.agent, e.at"
_WHERE = "(? = '' OR e.agent = ? COLLATE NOCASE) AND (? = '' OR COALESCE(NULLIF(e.at, ''), d.at) >= ?)"


def search(
    connection: sqlite3.Connection, words: str, *, agent: str = "", since: str = "", limit: int = 20, offset: int = 0
) -> tuple[Hit, ...]:
    """The entries that hold all the words; where none does, those that hold some of them.

    `agent` is the id of who wrote them, `since` an ISO time in UTC.
    """
    wanted = terms(words)
    if not wanted:
        return ()
    chosen = (agent, agent, since, since)
    look = _by_fts if has_fts(connection) else _by_like
    for how in ("AND", "OR"):
        if hits := look(connection, wanted, how, chosen, (limit, offset)):
            return hits
        if offset:
            break
    return ()


def _by_fts(
    connection: sqlite3.Connection, wanted: Sequence[str], how: str, chosen: tuple[str, ...], part: tuple[int, int]
) -> tuple[Hit, ...]:
    query = (
        f"SELECT {_ROW}, snippet(entry_fts, 0, '{_FROM}', '{_TO}', '…', {SNIPPET}) FROM entry_fts"
        " JOIN entry e ON e.key = entry_fts.rowid JOIN dialog d ON d.id = e.dialog"
        f" WHERE entry_fts MATCH ? AND {_WHERE}"
        " ORDER BY bm25(entry_fts), d.at DESC, e.key LIMIT ? OFFSET ?"
    )
    match = f" {how} ".join(map(quoted, wanted))
    return tuple(_hit(row) for row in connection.execute(query, (match, *chosen, *part)))


def _by_like(
    connection: sqlite3.Connection, wanted: Sequence[str], how: str, chosen: tuple[str, ...], part: tuple[int, int]
) -> tuple[Hit, ...]:
    holds = f" {how} ".join(r"e.text LIKE ? ESCAPE '\'" for _ in wanted)
    query = (
        f"SELECT {_ROW}, e.text FROM entry e JOIN dialog d ON d.id = e.dialog WHERE ({holds}) AND {_WHERE}"
        " ORDER BY d.at DESC, e.key LIMIT ? OFFSET ?"
    )
    rows = connection.execute(query, (*map(like, wanted), *chosen, *part))
    return tuple(_hit((*row[:-1], _marked(row[-1], wanted))) for row in rows)


def _marked(text: str, wanted: Sequence[str]) -> str:
    """The place where the first of the words stands, with all of them marked."""
    pattern = re.compile("|".join(re.escape(like(term).strip("%").replace("\\", "")) for term in wanted), re.I)
    first = pattern.search(text)
    start = max(first.start() - AROUND, 0) if first else 0
    end = start + 2 * AROUND
    cut = pattern.sub(lambda match: f"{_FROM}{match[0]}{_TO}", text[start:end])
    return f"{'…' if start else ''}{cut}{'…' if end < len(text) else ''}"


def _hit(row: tuple[int, str, str, str, int, str, str, str]) -> Hit:
    rehearsal, dialog, topic, entry, turn, agent, at, marked = row
    plain, spans, start = "", [], 0
    for piece in re.split(f"([{_FROM}{_TO}])", " ".join(marked.split())):
        if piece == _FROM:
            start = len(plain)
        elif piece == _TO:
            spans.append((start, len(plain)))
        else:
            plain += piece
    return Hit(dialog, topic, entry, turn, agent, at, plain, tuple(spans), bool(rehearsal))

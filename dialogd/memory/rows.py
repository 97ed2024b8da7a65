"""Archived dialogs as rows: the list, and the one that somebody means."""

from __future__ import annotations

import json
import sqlite3

from dialogd.errors import BadInput
from dialogd.memory.store import has_fts
from dialogd.memory.values import Row

SHOWN = 5  # ids that an error names


def listed(connection: sqlite3.Connection) -> list[Row]:
    """Every archived dialog, newest first."""
    rows = connection.execute("SELECT facts FROM dialog ORDER BY at DESC, id")
    return [Row.from_json(json.loads(facts)) for (facts,) in rows]


def found(connection: sqlite3.Connection, wanted: str) -> Row:
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
    return Row.from_json(json.loads(matches[0][1]))


def counts(connection: sqlite3.Connection, model: str) -> dict[str, object]:
    """How much there is of what; `vectors` are those of that model, `texts` what there may be vectors of."""
    queries = {
        "copies": "SELECT count(*) FROM copy",
        "unreadable": "SELECT count(*) FROM copy WHERE id = ''",
        "dialogs": "SELECT count(*) FROM dialog",
        "entries": "SELECT count(*) FROM entry",
        "decisions": "SELECT count(*) FROM decision",
        "texts": "SELECT count(DISTINCT sha) FROM decision",
    }
    found: dict[str, object] = {name: connection.execute(query).fetchone()[0] for name, query in queries.items()}
    have = "SELECT count(DISTINCT c.sha) FROM decision c JOIN vector v ON v.sha = c.sha AND v.model = ?"
    return {**found, "vectors": connection.execute(have, (model,)).fetchone()[0], "fts5": has_fts(connection)}

"""An archive for tests, filled with whole dialogs, and its memory."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from dialogd.memory import NAME, Memory, keep
from dialogd.protocol.grammar import parse
from dialogd.store.disk import StateDir
from tests.support.past import Past
from tests.support.room import Room

# What the index says, without the numbers that its rows happen to have.
_TABLES = {
    "copy": "name, size, mtime, id, first, at, entries, facts, rehearsal, key",
    "entry": "text, copy, id, turn, agent, at",
    "decision": "topic, text, more, copy, facts",
}


class Shelf:
    """A state directory, and dialogs put into its archive as daemons do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = StateDir(folder / "state")
        self.memory = Memory(self.state.root)

    def put(self, dialog: Past | Room | bytes, name: str = "dialog.md") -> Path:
        """Archive a dialog that stands in a file of that name; gives the copy."""
        data = dialog.file() if isinstance(dialog, Past) else dialog if isinstance(dialog, bytes) else dialog.paper.data
        file = self.folder / name
        file.write_bytes(data)
        file.chmod(0o600)
        return keep(parse(data), file, self.state)

    @property
    def index(self) -> Path:
        """The index's file."""
        return self.state.memory / NAME

    def dump(self) -> dict[str, list[Any]]:
        """Everything that stands in the index."""
        connection = sqlite3.connect(self.index)
        try:
            rows = {
                table: sorted(connection.execute(f"SELECT {columns} FROM {table}"), key=repr)
                for table, columns in _TABLES.items()
            }
            words = "SELECT count(*) FROM entry WHERE entry MATCH 'the OR a OR sessions'"
            return {**rows, "words": connection.execute(words).fetchall()}
        finally:
            connection.close()


def past(number: int, topic: str, decision: str = "", *said: str) -> Past:
    """A dialog with an id of its own."""
    return Past(f"d{number:05x}", topic, f"What shall we do? {topic}", said or ("I would begin small.",), decision)


SESSIONS = past(1, "Where should user sessions live?", "Sessions live in Postgres, for thirty days.")
RETRIES = past(2, "Retry policy", "Payment calls are retried three times, with a key.")
LICENSE = past(3, "License of the client", "The client library is under the MIT license.")
STOPPED = past(4, "Logo colour", "", "Blue is calm.", "Green looks like our rival, and turquoise like nobody's.")

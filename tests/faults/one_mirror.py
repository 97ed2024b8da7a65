"""One machine's writes to a shared dialog: `python -m tests.faults.one_mirror FOLDER WORD…`; prints what is in the log.

Each word is a note of the person's, `A-…` a turn of A. The engine is a file, so that a process may be killed anywhere:
`kept:///FOLDER`, a file for each log.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from dialogd.errors import DialogdError
from dialogd.protocol.model import USER, Addition, Draft
from dialogd.protocol.state import Dialog
from dialogd.store.disk import StateDir, write_over
from dialogd.store.engine import ENGINES, NOTHING, Differs, Place, Row
from dialogd.store.journal import PERSON, Journals
from dialogd.store.logfile import LogFile, Make


class Kept:
    """One log in a file. See `Engine`."""

    def __init__(self, place: Place) -> None:
        self.path = Path(urlsplit(place.url).path) / place.name

    @property
    def rows(self) -> list[Row]:
        """All there are."""
        kept = json.loads(self.path.read_text()) if self.path.exists() else []
        return [Row(at, data.encode(), sha, seat, signature) for at, data, sha, seat, signature in kept]

    def fetch(self, at: int, sha: str) -> Sequence[Row]:
        """See `Engine`."""
        rows = self.rows
        ends = [(0, NOTHING), *((row.end, row.sha) for row in rows)]
        if (at, sha) not in ends:
            raise Differs(*ends[-1])
        return rows[ends.index((at, sha)) :]

    def put(self, row: Row, before: str, whole: bytes = b"") -> bool:
        """See `Engine`."""
        fd = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            rows = self.rows
            if ((rows[-1].end, rows[-1].sha) if rows else (0, NOTHING)) != (row.at, before):
                return False
            kept = [(one.at, one.data.decode(), one.sha, one.seat, one.signature) for one in [*rows, row]]
            write_over(json.dumps(kept).encode(), self.path)
            return True
        finally:
            os.close(fd)

    def wait(self, seconds: float) -> bool:
        """See `Engine`."""
        time.sleep(min(seconds, 0.05))
        return True

    def close(self) -> None:
        """Nothing is held."""


ENGINES["kept"] = "tests.faults.one_mirror:Kept"


def made(word: str) -> Make:
    """Makes what says this word, unless the dialog has it."""

    def make(dialog: Dialog) -> Addition | None:
        if any(word in entry.body.split() for entry in dialog.entries):
            return None
        if not word.startswith("A-"):
            return Addition(Draft(USER, "User", body=f"Mind {word}"))
        debt = dialog.state.debt("A")
        again = (("re", debt.re),) if debt else ()
        return debt and Addition(Draft("A", "Claude A", dialog.state.number + 1, f"I say {word}", (), ("B",), again))

    return make


def append(log: LogFile, word: str) -> None:
    """Have the word in the log, as its writer would."""
    log.append(made(word), log.journals.of("A" if word.startswith("A-") else PERSON))


def main(folder: Path, words: Sequence[str]) -> None:
    """Write them, one after another; what is refused is said and tried no more."""
    path = folder / "dialog.md"
    log = LogFile(path, Journals(StateDir(folder / "state").dialog(path)))
    for word in words:
        try:
            append(log, word)
            os.write(1, f"{word}\n".encode())
        except (DialogdError, OSError) as error:
            os.write(2, f"{error}\n".encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

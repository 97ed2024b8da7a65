"""Dialogs that are not in the archive yet: those that go on, and those that ended while nobody looked."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from dialogd.errors import BadInput, DialogdError, StorageError
from dialogd.memory import index, keeping
from dialogd.memory.index import facts, read_dialog
from dialogd.memory.keeping import keep
from dialogd.memory.recall import decisions_of, recall, search
from dialogd.memory.values import FAILED, WORKED, Decision, Hit, Row, Verdict
from dialogd.protocol.state import Dialog
from dialogd.store.folders import StateDir
from dialogd.store.registry import Registry

log = logging.getLogger("dialogd")


def look(state: StateDir, files: Iterable[Path]) -> list[Row]:
    """The dialogs that go on, of running daemons and in these files; what has ended is archived on the way."""
    served = {Path(daemon.file) for daemon in Registry(state).running()}
    found = []
    for file in dict.fromkeys((*sorted(served), *files)):
        with suppress(DialogdError, OSError):
            dialog = read_dialog(file)
            if dialog.state.outcome is None:
                found.append(replace(row_of(dialog, file), state="running" if file in served else "open"))
            else:
                _keep(state, file)
    return found


def _keep(state: StateDir, file: Path) -> None:
    try:
        keep(read_dialog(file), file, state)
    except OSError as error:
        log.warning("%s has ended and cannot be archived: %s", file, error)


def row_of(dialog: Dialog, file: Path) -> Row:
    """The row of a dialog as it stands in its file."""
    return replace(facts(dialog).row, file=str(file))


def live_decisions(dialog: Dialog) -> Iterator[Decision]:
    """What a dialog decided, as it stands in its file."""
    f = facts(dialog)
    return (replace(m.decision, at=m.decision.at or f.row.ended) for m in f.made)


# -- The memory of one state directory --------------------------------------------------------------------------------

T = TypeVar("T")


PATIENCE = 2.0  # seconds for which another process's lock is waited for


class Memory:
    """Dialogs, decisions and their outcomes under one state directory."""

    def __init__(self, state_dir: Path, *, patience: float = PATIENCE, fts: bool = True) -> None:
        self.state = StateDir(state_dir)
        self.patience = patience
        self.fts = fts

    # -- questions ------------------------------------------------------------------------------------------------

    def dialogs(self, limit: int | None = 20, offset: int = 0, files: Iterable[Path] = ()) -> list[Row]:
        """The dialogs, those that go on first, then newest first; `limit` None gives all of them.

        Looks at the dialogs of running daemons, and at `files`: one that has ended is archived, others are listed.
        """
        going = look(self.state, files)
        known = self._ask(index.listed)
        current = {row.id: row for row in going}
        found = [*going, *(row for row in known if row.id not in current)]
        return self._complete(*(found if limit is None else found[: offset + limit])[offset:])

    def dialog(self, wanted: str) -> Row:
        """The archived dialog that an id, or the beginning of one, or of its copy's name, means. Raises `BadInput`."""
        return self._complete(self._ask(lambda c: index.found(c, wanted)))[0]

    def dialog_path(self, wanted: str) -> Path:
        """Where the archived copy of that dialog lies. Raises `BadInput`."""
        return Path(self.dialog(wanted).archive)

    def decisions(self, wanted: str) -> list[Decision]:
        """What that dialog decided, in order. Raises `BadInput`."""
        row = self.dialog(wanted)
        return self._told(self._ask(lambda c: decisions_of(c, row.id)))

    def search(self, words: str, *, agent: str = "", since: str = "", limit: int = 20, offset: int = 0) -> list[Hit]:
        """The entries that hold all the words, best first; where none does, those that hold some of them.

        `agent` is who wrote them, `since` an ISO time in UTC.
        """
        return list(self._ask(lambda c: search(c, words, agent=agent, since=since, limit=limit, offset=offset)))

    def recall(self, question: str, limit: int = 3) -> list[Decision]:
        """The past decisions that answer a question, best first; empty where nothing does."""
        return self._told(self._ask(lambda c: recall(c, question, limit)))

    def verdicts(self, wanted: str) -> tuple[Verdict, ...]:
        """Every word on how that dialog's decision turned out, oldest first. Raises `BadInput`."""
        return keeping.history(self._outcomes).get(self.dialog(wanted).id, ())

    # -- what is written ------------------------------------------------------------------------------------------

    def outcome(self, wanted: str, outcome: str, why: str) -> Row:
        """Remember that what a dialog decided worked or failed, and why. Raises `BadInput`, `StorageError`."""
        if outcome not in (WORKED, FAILED):
            raise BadInput(f"{outcome!r} is no outcome", fix=f"say {WORKED} or {FAILED}")
        if not why.strip():
            raise BadInput("it is not said why", fix=f'say it in a sentence: dialogd outcome ID {outcome} "why"')
        row = self.dialog(wanted)
        try:
            keeping.record(self._outcomes, row.id, outcome, " ".join(why.split()))
        except OSError as error:
            raise StorageError(
                f"the outcome cannot be kept in {self._outcomes}: {error.strerror}", fix="check the disk and its rights"
            ) from error
        return self._complete(row)[0]

    def add(self, path: Path) -> None:
        """Take one copy of the archive into the index; never raises.

        What keeps it from that is a warning: the copy is taken in by whoever asks next.
        """
        try:
            with closing(self._open()) as connection:
                index.sync(connection, self.state.archive, only={path.name})
        except (DialogdError, OSError, sqlite3.Error) as error:
            log.warning("the index was left as it is: %s", error)

    def rebuild(self) -> int:
        """Make the index again from the files; gives how many copies there are. Raises `StorageError`."""
        for _ in range(2):
            which = index.seen(self.state.memory)
            try:
                with closing(index.connect(self.state.memory, self.patience, fts=self.fts)) as connection:
                    index.clear(connection)
                    return index.sync(connection, self.state.archive)
            except (sqlite3.Error, OSError) as error:
                problem = error
                if not self._is_thrown_away(error, which):
                    break
        raise _unmade(self.state.memory, problem) from problem

    def status(self) -> dict[str, object]:
        """Where things lie, how many there are, and how words are looked up."""
        counts = self._ask(index.counts)
        where = {"archive": str(self.state.archive), "index": str(self.state.memory / index.NAME)}
        return {**where, **counts}

    # -- inside ---------------------------------------------------------------------------------------------------

    def _ask(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on an index that is up to date, whatever has become of the one on the disk."""
        folder, archive = self.state.memory, self.state.archive
        for _ in range(2):
            which = index.seen(folder)
            try:
                with closing(self._open()) as connection:
                    return self._fresh(connection, archive, work)
            except (sqlite3.Error, OSError) as error:
                log.warning("the index in %s cannot be used: %s", folder, error)
                if not self._is_thrown_away(error, which):
                    break
        with closing(index.in_memory(fts=self.fts)) as connection:
            index.sync(connection, archive)
            return work(connection)

    def _fresh(self, connection: sqlite3.Connection, archive: Path, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` after taking in what is new; in a copy, where the index itself cannot be written now."""
        try:
            index.sync(connection, archive)
        except sqlite3.OperationalError as error:
            if index.is_spoilt(error):
                raise
            log.warning("the index is gone around for now: %s", error)
            with closing(sqlite3.connect(":memory:", isolation_level=None)) as copy:
                connection.backup(copy)
                index.sync(copy, archive)
                return work(copy)
        return work(connection)

    def _is_thrown_away(self, error: Exception, which: int) -> bool:
        """Throw away the index that was `seen` where it is spoilt; False where it is not, or cannot be."""
        if not isinstance(error, sqlite3.Error) or not index.is_spoilt(error):
            return False
        try:
            index.discard(self.state.memory, which, self.patience)
        except (DialogdError, OSError) as problem:
            log.warning("the index in %s cannot be thrown away: %s", self.state.memory, problem)
            return False
        return True

    def _open(self) -> sqlite3.Connection:
        """The index; one that is waited for in vain is as good as one that cannot be opened."""
        try:
            return index.connect(self.state.memory, self.patience, fts=self.fts)
        except DialogdError as error:
            raise OSError(f"{error}; {error.fix}") from error

    @property
    def _outcomes(self) -> Path:
        return self.state.memory / keeping.OUTCOMES

    def _complete(self, *found: Row) -> list[Row]:
        """The rows with what stands outside of the index: where the dialogs stood, and how they turned out."""
        history = keeping.history(self._outcomes)
        origins = keeping.read_origins(self.state.memory / keeping.ORIGINS)
        archive = self.state.archive
        return [
            replace(
                row,
                file=row.file or origins.get(row.archive, ""),
                archive=str(archive / row.archive) if row.archive else "",
                verdict=history.get(row.id, (None,))[-1],
            )
            for row in found
        ]

    def _told(self, decisions: Iterable[Decision]) -> list[Decision]:
        """The decisions with how they turned out."""
        history = keeping.history(self._outcomes)
        last = {dialog: verdicts[-1] for dialog, verdicts in history.items()}
        archive = self.state.archive
        return [replace(d, verdict=last.get(d.dialog), archive=str(archive / d.archive)) for d in decisions]


def _unmade(folder: Path, error: Exception) -> StorageError:
    """Why there is no new index, and what to do."""
    if isinstance(error, sqlite3.Error) and index.is_busy(error):
        return StorageError(
            f"another process writes the index in {folder} and did not let go of it; a stopped one may hold it",
            fix=f"try again, or find it with `fuser {folder / index.NAME}` and continue or end it",
        )
    return StorageError(
        f"the index in {folder} cannot be made: {error}",
        fix="check the disk and its rights; nothing is lost, the archive is as it was",
    )

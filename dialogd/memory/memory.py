"""Lists, search, recall and outcomes over the archive, and over dialogs that are not archived yet."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from dialogd.errors import BadInput, DialogdError, StorageError
from dialogd.memory import index
from dialogd.memory.reading import facts, read_dialog, row_of
from dialogd.memory.values import FAILED, WORKED, DialogRow, Hit, PastDecision, Verdict, written
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import many
from dialogd.store.archive import archive as archive_copy
from dialogd.store.folders import StateDir
from dialogd.store.registry import Registry

log = logging.getLogger("dialogd")


def live_decisions(dialog: Dialog) -> Iterator[PastDecision]:
    """The decisions of a dialog that is not archived."""
    f = facts(dialog)
    return (replace(m.decision, at=m.decision.at or f.row.ended) for m in f.made)


def current(row: DialogRow) -> tuple[Path, Dialog]:
    """Where a dialog stands, and it: what follows its end is in its file alone, as long as that holds no other one.

    Raises `DialogdError`, `OSError` where there is neither that nor its copy.
    """
    with suppress(DialogdError, OSError):
        dialog = read_dialog(path := Path(row.file or row.archive))
        if dialog.id == row.id:
            return path, dialog
    return (path := Path(row.archive or row.file)), read_dialog(path)


# -- Copies with their origins, and outcomes: lines of JSON ----------------------------------------------------------

ORIGINS = "origins.jsonl"
OUTCOMES = "outcomes.jsonl"
MOST = 32 * 1024 * 1024  # bytes of such a file that are read


def keep(dialog: Dialog, file: Path, state: StateDir) -> Path:
    """Copy an ended dialog into the archive, once per content; gives the copy's path. Raises `OSError`."""
    copy = archive_copy(dialog, file, state.archive)
    if _origins(state.memory / ORIGINS).get(copy.name) != str(file):
        _append(state.memory / ORIGINS, {"copy": copy.name, "file": str(file)})
    return copy


def _origins(path: Path) -> dict[str, str]:
    """The file of each copy's dialog, by the copy's name; the last line counts."""
    return {str(line.get("copy")): str(line.get("file", "")) for line in _lines(path)}


def _append(path: Path, record: dict[str, Any]) -> None:
    """Append one line with the time, in one write. Raises `OSError`."""
    data = json.dumps({"at": written(datetime.now(UTC)), **record}, ensure_ascii=True).encode() + b"\n"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"  # what a crash left must not spoil this line
        os.write(fd, b"\n" + data if torn else data)
        os.fsync(fd)
    finally:
        os.close(fd)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of such a file, oldest first; none without a file. Unreadable lines are skipped."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST)
    except OSError:
        return
    for line in data.split(b"\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield record


def history(path: Path) -> Mapping[str, tuple[Verdict, ...]]:
    """All recorded outcomes by dialog id, oldest first."""
    found: dict[str, list[Verdict]] = {}
    for line in _lines(path):
        values = [line.get(name) for name in ("dialog", "outcome", "why", "at")]
        dialog, outcome, why, at = (value if isinstance(value, str) else "" for value in values)
        if dialog and outcome in (WORKED, FAILED):
            found.setdefault(dialog, []).append(Verdict(outcome, why, at))
    return {dialog: tuple(verdicts) for dialog, verdicts in found.items()}


# -- The memory of one state directory --------------------------------------------------------------------------------

T = TypeVar("T")


PATIENCE = 2.0  # seconds for which another process's lock is waited for


class Memory:
    """Dialogs, decisions and their outcomes under one state directory."""

    def __init__(self, state_dir: Path, *, patience: float = PATIENCE) -> None:
        self.state = StateDir(state_dir)
        self.patience = patience

    # -- questions ------------------------------------------------------------------------------------------------

    def dialogs(self, limit: int | None = 20, offset: int = 0, files: Iterable[Path] = ()) -> list[DialogRow]:
        """The dialogs, open ones first, then newest first; `limit` None gives all.

        Looks at the dialogs of running daemons, and at `files`: one that has ended is archived, others are listed.
        """
        going = self._going(files)
        known = self._ask(index.listed)
        current = {row.id: row for row in going}
        found = [*going, *(row for row in known if row.id not in current)]
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
        return self._complete(*self._ask(index.listed))

    def sizes(self) -> dict[str, set[int]]:
        """How large the archived copies of each file's dialogs are, by its path: such a file need not be read."""
        found: dict[str, set[int]] = {}
        for name, file in _origins(self.state.memory / ORIGINS).items():
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
        origins = _origins(self.state.memory / ORIGINS)
        wanted = next((name for name, place in reversed(origins.items()) if place == file), wanted)
        return self._complete(self._ask(lambda c: index.found(c, wanted)))[0]

    def dialog_path(self, wanted: str) -> Path:
        """The path of the archived copy of that dialog. Raises `BadInput`."""
        return Path(self.dialog(wanted).archive)

    def decisions(self, wanted: str) -> list[PastDecision]:
        """What that dialog decided, in order. Raises `BadInput`."""
        row = self.dialog(wanted)
        return self._told(self._ask(lambda c: index.decisions_of(c, row.id)))

    def search(self, words: str, *, agent: str = "", since: str = "", limit: int = 20, offset: int = 0) -> list[Hit]:
        """The entries that hold all the words, best first; where none does, those that hold some of them.

        `agent` is who wrote them, `since` an ISO time in UTC.
        """
        return list(self._ask(lambda c: index.search(c, words, agent=agent, since=since, limit=limit, offset=offset)))

    def recall(self, question: str, limit: int = 3) -> list[PastDecision]:
        """The past decisions that answer a question, best first; empty where nothing does."""
        return self._told(self._ask(lambda c: index.recall(c, question, limit)))

    def why_nothing(self) -> str:
        """Why nothing is recalled, in words; who sees rehearsals in the list is told that they decide nothing."""
        rehearsed = sum(row.is_rehearsal for row in self.archived())
        left = f"; {many(rehearsed, 'rehearsal')}, in which no model was asked, cannot be recalled" if rehearsed else ""
        return f"no earlier dialog decided anything about that{left}"

    def verdicts(self, wanted: str) -> tuple[Verdict, ...]:
        """All recorded outcomes of that dialog, oldest first. Raises `BadInput`."""
        return history(self._outcomes).get(self.dialog(wanted).id, ())

    # -- what is written ------------------------------------------------------------------------------------------

    def outcome(self, wanted: str, outcome: str, why: str) -> DialogRow:
        """Record that what a dialog decided worked or failed, and why. Raises `BadInput`, `StorageError`."""
        if outcome not in (WORKED, FAILED):
            raise BadInput(f"{outcome!r} is no outcome", fix=f"say {WORKED} or {FAILED}")
        if not why.strip():
            raise BadInput("the reason is missing", fix=f'say it in a sentence: dialogd outcome ID {outcome} "why"')
        row = self.dialog(wanted)
        try:
            _append(self._outcomes, {"dialog": row.id, "outcome": outcome, "why": " ".join(why.split())})
        except OSError as error:
            raise StorageError(
                f"the outcome cannot be kept in {self._outcomes}: {error.strerror}", fix="check the disk and its rights"
            ) from error
        return self._complete(row)[0]

    def add(self, path: Path) -> None:
        """Index one copy; never raises.

        A failure is a warning: the next question indexes the copy.
        """
        try:
            self._on_disk(lambda connection: index.sync(connection, self.state.archive, only={path.name}))
        except (OSError, sqlite3.Error) as error:
            log.warning("the index was left as it is: %s", error)

    def rebuild(self) -> int:
        """Rebuild the index from the files; returns how many copies there are. Raises `StorageError`."""

        def work(connection: sqlite3.Connection) -> int:
            index.clear(connection)
            return index.sync(connection, self.state.archive)

        folder = self.state.memory
        try:
            return self._on_disk(work)
        except (sqlite3.Error, OSError) as error:
            if isinstance(error, sqlite3.Error) and index.is_busy(error):
                raise StorageError(
                    f"another process writes the index in {folder} and did not let go of it; a stopped one may hold it",
                    fix=f"try again, or find it with `fuser {folder / index.NAME}` and continue or end it",
                ) from error
            raise StorageError(
                f"the index in {folder} cannot be made: {error}",
                fix="check the disk and its rights; nothing is lost, the archive is as it was",
            ) from error

    def status(self) -> dict[str, object]:
        """Paths and counts of the archive and the index."""
        counts = self._ask(index.counts)
        return {"archive": str(self.state.archive), "index": str(self.state.memory / index.NAME), **counts}

    # -- inside ---------------------------------------------------------------------------------------------------

    def _ask(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on an up-to-date index, in memory if the one on the disk cannot be used."""

        def fresh(connection: sqlite3.Connection) -> T:
            index.sync(connection, self.state.archive)
            return work(connection)

        try:
            return self._on_disk(fresh)
        except (sqlite3.Error, OSError) as error:
            log.warning("the index in %s is bypassed for now: %s", self.state.memory, error)
        with closing(index.in_memory()) as connection:
            return fresh(connection)

    def _on_disk(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on the index; a spoilt one is made again. Raises `sqlite3.Error`, `OSError`."""
        folder = self.state.memory
        try:
            with closing(index.connect(folder, self.patience)) as connection:
                return work(connection)
        except sqlite3.Error as error:
            if not index.is_spoilt(error):
                raise
            log.warning("the index in %s is made again: %s", folder, error)
        index.discard(folder)
        with closing(index.connect(folder, self.patience)) as connection:
            return work(connection)

    @property
    def _outcomes(self) -> Path:
        return self.state.memory / OUTCOMES

    def _complete(self, *found: DialogRow) -> list[DialogRow]:
        """The rows with what is not in the index: the dialogs' files, and their outcomes."""
        outcomes = history(self._outcomes)
        origins = _origins(self.state.memory / ORIGINS)
        archive = self.state.archive
        return [
            replace(
                row,
                file=row.file or origins.get(row.archive, ""),
                archive=str(archive / row.archive) if row.archive else "",
                verdict=outcomes.get(row.id, (None,))[-1],
            )
            for row in found
        ]

    def _told(self, decisions: Iterable[PastDecision]) -> list[PastDecision]:
        """The decisions with their outcomes."""
        last = {dialog: verdicts[-1] for dialog, verdicts in history(self._outcomes).items()}
        archive = self.state.archive
        return [replace(d, verdict=last.get(d.dialog), archive=str(archive / d.archive)) for d in decisions]

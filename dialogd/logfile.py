"""The only module that reads and appends to the dialog file.

An append is: lock, finish a torn tail, read, ask what to write, journal it, one write, flush, read back, compare
inodes, unlock. Nothing is ever truncated or rewritten. The lock is held for milliseconds, never across a model call.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from dialogd.disk import distrust, fix, flush, flush_folder, make_folder, moved, pread, why, write_once
from dialogd.errors import DialogdError, StorageError, UnsafeFile
from dialogd.journal import SUSPECT_FIX, Journal, Journals, chain_of
from dialogd.lock import Lock
from dialogd.protocol import grammar, render
from dialogd.protocol.model import Condition
from dialogd.protocol.state import Dialog

LARGEST = 64 * 1024 * 1024  # bytes; anything larger is no dialog
PROBE = 512  # bytes before the known end that must be unchanged for reading on
ATTEMPTS = 5  # rename-over saves in a row that an append survives

_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class Addition:
    """What to append: a drafted entry, and perhaps a file beside the dialog that it links to."""

    draft: render.Draft
    attachment: str = ""
    overflow: str = ""


Make = Callable[[Dialog], Addition | None]


class _Replaced(Exception):
    """An editor saved a new file under the name while an entry was written to the old one."""


class LogFile:
    """One dialog file. Safe to use from several threads; every call may block on the disk."""

    def __init__(self, path: Path, journals: Journals) -> None:
        self.path = path
        self.journals = journals
        self._dialog: Dialog | None = None
        self._seen: tuple[int, int, int] = (0, 0, 0)
        self._probe = b""
        self._hash = sha256()  # of all that was read: a whole read of what has not changed need not be parsed again
        self._full_read_at = 0.0
        self.full_reads = 0
        self._mutex = threading.RLock()
        self.lock = Lock(path.with_name(path.name + ".lock"))
        self._looked_for_torn = False
        self._suspect = ""

    @property
    def attachments(self) -> Path:
        """The folder of attachments beside the file."""
        return self.path.with_name(self.path.name + ".d")

    @property
    def suspect(self) -> str:
        """Why nothing more is written from here: a flush failed, of the file or of a journal. "" while all is well."""
        return self._suspect or self.journals.suspect

    def read(self, *, full: bool = False) -> Dialog:
        """The dialog as the file stands; reads only what was appended, unless `full` or the past was touched.

        Raises `FileNotFoundError`, `NotADialog`, `UnsafeFile`.
        """
        with self._mutex:
            if self._dialog is not None and self._is_as_read() and not full:
                return self._dialog
            fd = self._open(os.O_RDONLY)
            try:
                return self._read(fd, full=full)
            finally:
                os.close(fd)

    def known(self) -> Dialog | None:
        """The dialog as last read, without reading or waiting, where nobody has written to the file since; else None.

        A look at the file's status: for callers that must not be kept waiting.
        """
        seen, dialog = self._seen, self._dialog  # in this order: a reader in another thread sets the dialog first
        return dialog if dialog is not None and self._stands_at() == seen else None

    def _is_as_read(self) -> bool:
        """True while the path names the file that was last read, and nobody has written to it since."""
        return self._stands_at() == self._seen

    def _stands_at(self) -> tuple[int, int, int] | None:
        """Which file the path names, how long it is, and when somebody last wrote to it; None where that is unknown."""
        try:
            status = self.path.lstat()
        except OSError:
            return None  # opening it says why
        return status.st_ino, status.st_size, status.st_mtime_ns

    @property
    def age_of_full_read(self) -> float:
        """Seconds since the whole file was last read."""
        return time.monotonic() - self._full_read_at

    def _read(self, fd: int, *, full: bool = False) -> Dialog:
        status = os.fstat(fd)
        if status.st_size > LARGEST:
            raise UnsafeFile(
                f"{self.path} has {status.st_size:,} bytes; a dialog has at most {LARGEST:,}",
                fix="name another file with --file",
            )
        known = self._dialog
        if known is not None and not full and self._seen == (status.st_ino, status.st_size, status.st_mtime_ns):
            return known
        start = known.size if known is not None and not full and self._only_grew(fd, status, known) else 0
        data = pread(fd, status.st_size - start, start)
        if known is not None and (start or sha256(data[: known.size]).digest() == self._hash.digest()):
            more = data[known.size - start :]
            dialog = grammar.read_on(known, more)
            self._hash.update(more)
        else:
            dialog = grammar.parse(data)
            self._hash = sha256(data)
        if not start:
            self._full_read_at = time.monotonic()
            self.full_reads += 1
        self._dialog = dialog
        self._seen = (status.st_ino, dialog.size, status.st_mtime_ns)
        self._probe = ((self._probe if start else b"") + data)[-PROBE:]
        return dialog

    def _only_grew(self, fd: int, status: os.stat_result, known: Dialog) -> bool:
        inode, _, _ = self._seen
        if status.st_ino != inode or status.st_size <= known.size:
            return False
        return pread(fd, len(self._probe), known.size - len(self._probe)) == self._probe

    def _open(self, flags: int) -> int:
        """Open the file if it can be trusted; raises `UnsafeFile` saying why it cannot."""
        try:
            fd = os.open(self.path, flags | _OPEN)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UnsafeFile(f"{self.path} cannot be opened: {why(error)}", fix=fix(error)) from error
        problem = distrust(os.fstat(fd))
        if problem:
            os.close(fd)
            raise UnsafeFile(f"{self.path} {problem[0]}", fix=problem[1])
        return fd

    def append(self, make: Make, journal: Journal) -> Dialog | None:
        """Append what `make` draws up from the dialog as it stands under the lock; None when it draws up nothing.

        Returns once the entry is on disk and read back. Raises `StorageError` when the disk refuses (nothing is
        acknowledged; a torn tail is finished by the next writer), and what `make` raises.
        """
        with self._mutex, self.locked():
            for _ in range(ATTEMPTS):
                with suppress(_Replaced):
                    return self._append_once(make, journal)
            raise StorageError(
                f"{self.path} was replaced {ATTEMPTS} times while an entry was written",
                fix="close the editor that keeps saving it; the entry is kept and will be written",
            )

    def _append_once(self, make: Make, journal: Journal) -> Dialog | None:
        """One try; raises `_Replaced` when an editor's save took the file away under us."""
        fd = self._open(os.O_RDWR | os.O_APPEND)
        try:
            self._finish_torn(fd)
            dialog = self._read(fd)
            addition = make(dialog)
            if addition is None:
                return None
            if addition.attachment:
                self._attach(addition)
            last = dialog.last
            entry = render.render(addition.draft, last.chain if last else "")
            data = render.joint(dialog) + entry
            number = addition.draft.number
            journal.record("intent", at=dialog.size, entry=data.decode("utf-8"), number=number, dialog=dialog.id)
            if not self._is_as_read():
                raise _Replaced
            self._write(fd, data)
            if not self._landed(fd, data):
                raise _Replaced
            journal.record("done", durable=False, chain=chain_of(data), number=number)
            return self._read(fd)
        finally:
            os.close(fd)

    def _write(self, fd: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(fd, view) :]
        except OSError as error:
            raise StorageError(f"{self.path} cannot be written: {why(error)}", fix=fix(error)) from error
        try:
            flush(fd)
        except OSError as error:
            # A failed flush may have dropped the dirty pages: a second one would succeed and prove nothing.
            self._suspect = f"flushing {self.path} failed ({why(error)}); what was written may not be on the disk"
            raise StorageError(self.suspect, fix=SUSPECT_FIX) from error

    def _landed(self, fd: int, data: bytes) -> bool:
        """True when the bytes stand, in one piece, in the file that the path now names."""
        # Not where the file ended when it was read: somebody may have typed in between.
        at = os.lseek(fd, 0, os.SEEK_CUR) - len(data)
        return at >= 0 and moved(fd, self.path) is None and pread(fd, len(data), at) == data

    def newline(self) -> Dialog:
        """Append the newline that a finished hand-written text at the end of the file lacks."""
        with self._mutex, self.locked():
            fd = self._open(os.O_RDWR | os.O_APPEND)
            try:
                last = self._read(fd).last
                if last is not None and last.condition is Condition.UNFINISHED and last.turn is not None:
                    self._write(fd, b"\n")
                return self._read(fd)
            finally:
                os.close(fd)

    def set_aside(self, present: set[str]) -> Path | None:
        """Set the journals aside, because turns they remember are gone; `present` are the hashes in the file.

        None when there are no journals, or a peer was faster and set the same ones aside.
        """
        with self._mutex, self.locked():
            if not set(self.journals.committed().values()) - present:
                return None
            return self.journals.set_aside(present)

    def finish_torn(self) -> Dialog:
        """Finish what a crashed writer left half-written at the end of the file; harmless when there is nothing."""
        with self._mutex, self.locked():
            fd = self._open(os.O_RDWR | os.O_APPEND)
            try:
                self._finish_torn(fd)
                return self._read(fd)
            finally:
                os.close(fd)

    def _finish_torn(self, fd: int) -> None:
        # Once all journals are read: a writer may have died between its entry and the record of it.
        if self._looked_for_torn and self._is_clean(fd):
            return
        size = os.fstat(fd).st_size
        for journal in self.journals.all():
            intent = journal.intent()
            if intent is None:
                continue
            there = pread(fd, len(intent.entry), intent.at) if intent.at < size else b""
            if there != intent.entry and there and intent.entry.startswith(there) and intent.at + len(there) == size:
                self._write(fd, intent.entry[len(there) :])
                size = os.fstat(fd).st_size
                there = b"" if moved(fd, self.path) else pread(fd, len(intent.entry), intent.at)
            if there == intent.entry:
                journal.record("done", durable=False, chain=intent.chain, number=intent.number)
        self._looked_for_torn = True

    def _is_clean(self, fd: int) -> bool:
        """True when the file ends, as far as is known, in a sound entry: then nobody was interrupted there."""
        try:
            dialog = self._read(fd)
        except DialogdError:
            return False
        return dialog.last is not None and dialog.last.condition is Condition.SOUND and not dialog.tail.strip(b"\n")

    def _attach(self, addition: Addition) -> None:
        try:
            make_folder(self.attachments)
            # Named by its hash: when it is there already, it is the same text.
            write_once(addition.overflow.encode("utf-8", "replace"), self.attachments / addition.attachment)
        except OSError as error:
            raise StorageError(f"{self.attachments} cannot be written: {why(error)}", fix=fix(error)) from error

    def locked(self) -> AbstractContextManager[None]:
        """Hold the file lock beside the dialog.

        Raises `StorageError` when a stopped process holds it, and for good once a flush has failed.
        """
        if self.suspect:
            raise StorageError(self.suspect, fix=SUSPECT_FIX)
        return self.lock.held()

    def create(self, data: bytes, *, replace: bool = False) -> None:
        """Write a new dialog file, durably; with `replace` an existing one gives way in one step.

        Raises `FileExistsError` without `replace`, and `NotADialog` when `data` is none.
        """
        grammar.parse(data)
        with self._mutex, self.locked():
            target = self.path.with_name(f".{self.path.name}.new") if replace else self.path
            with suppress(FileNotFoundError):
                if replace:
                    target.unlink()
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600)
            try:
                self._write(fd, data)
            finally:
                os.close(fd)
            if replace:
                target.replace(self.path)
            flush_folder(self.path.parent)
            self._dialog = None

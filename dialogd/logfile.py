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
from pathlib import Path

from dialogd.disk import distrust, fix, flush, flush_folder, pread, why
from dialogd.errors import DialogdError, StorageError, UnsafeFile
from dialogd.journal import Journal, Journals, chain_of
from dialogd.lock import hold
from dialogd.protocol import grammar, render
from dialogd.protocol.model import Condition, Dialog

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
        self._full_read_at = 0.0
        self._mutex = threading.RLock()
        self.suspect = ""

    @property
    def attachments(self) -> Path:
        """The folder of attachments beside the file."""
        return self.path.with_name(self.path.name + ".d")

    def read(self, *, full: bool = False) -> Dialog:
        """The dialog as the file stands; reads only what was appended, unless `full` or the past was touched.

        Raises `FileNotFoundError`, `NotADialog`, `UnsafeFile`.
        """
        with self._mutex:
            status = self.path.stat(follow_symlinks=False)
            seen = (status.st_ino, status.st_size, status.st_mtime_ns)
            if self._dialog is not None and seen == self._seen and not full:
                return self._dialog
            fd = self._open(os.O_RDONLY)
            try:
                return self._read(fd, full=full)
            finally:
                os.close(fd)

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
        if known is None or full or not self._only_grew(fd, status, known):
            data = pread(fd, status.st_size, 0)
            self._dialog = grammar.parse(data)
            self._full_read_at = time.monotonic()
        else:
            data = pread(fd, status.st_size - known.size, known.size)
            self._dialog = grammar.read_on(known, data)
        self._seen = (status.st_ino, self._known.size, status.st_mtime_ns)
        self._probe = (self._probe + data)[-PROBE:]
        return self._known

    @property
    def _known(self) -> Dialog:
        if self._dialog is None:
            raise AssertionError("nothing was read yet")
        return self._dialog

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
        if self.suspect:
            raise StorageError(self.suspect, fix="check the disk, then restart this daemon")
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
            journal.record("intent", at=dialog.size, entry=data.decode("utf-8"), number=number)
            self._write(fd, data)
            if not self._landed(fd, dialog.size, data):
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
            self.suspect = f"flushing {self.path} failed ({why(error)}); what was written may not be on the disk"
            raise StorageError(self.suspect, fix="check the disk, then restart this daemon") from error

    def _landed(self, fd: int, at: int, data: bytes) -> bool:
        """True when the bytes stand in the file that the path now names."""
        try:
            now = self.path.stat(follow_symlinks=False)
        except FileNotFoundError:
            return False
        mine = os.fstat(fd)
        return (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino) and pread(fd, len(data), at) == data

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
        """Set the journals aside, because turns they remember are gone; `present` are the hashes in the file."""
        with self._mutex, self.locked():
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
        if self._dialog is not None and self._is_clean(fd):
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
                there = intent.entry
            if there == intent.entry:
                journal.record("done", durable=False, chain=intent.chain, number=intent.number)

    def _is_clean(self, fd: int) -> bool:
        """True when the file ends, as far as is known, in a sound entry: then nobody was interrupted there."""
        try:
            dialog = self._read(fd)
        except DialogdError:
            return False
        return dialog.last is not None and dialog.last.condition is Condition.SOUND and not dialog.tail.strip(b"\n")

    def _attach(self, addition: Addition) -> None:
        try:
            self.attachments.mkdir(mode=0o700, exist_ok=True)
            fd = os.open(self.attachments / addition.attachment, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600)
        except FileExistsError:
            return  # named by its hash: the same text is there already
        except OSError as error:
            raise StorageError(f"{self.attachments} cannot be written: {why(error)}", fix=fix(error)) from error
        try:
            self._write(fd, addition.overflow.encode("utf-8", "replace"))
        finally:
            os.close(fd)
        flush_folder(self.attachments)

    def locked(self) -> AbstractContextManager[None]:
        """Hold the file lock beside the dialog; raises `StorageError` when a stopped process holds it."""
        return hold(self.path.with_name(self.path.name + ".lock"))

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

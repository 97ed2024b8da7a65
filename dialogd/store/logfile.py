"""The only module that reads and appends to the dialog file.

An append is: lock, finish a torn tail, read, ask what to write, journal it, one write, flush, compare what stands
there, unlock, read on. Nothing is ever truncated or rewritten. The lock is held for milliseconds, never across a model
call.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from dialogd.errors import DialogdError, Refused, StorageError, UnsafeFile
from dialogd.protocol import grammar
from dialogd.protocol.model import Addition, Condition
from dialogd.protocol.state import Dialog
from dialogd.store.disk import (
    KeptFile,
    Lock,
    fix,
    flush,
    flush_folder,
    listed_beside,
    make_folder,
    pread,
    why,
    write_all,
    write_once,
    write_over,
    writing,
)
from dialogd.store.journal import SUSPECT_FIX, Journal, Journals, Lost, chain_of, still_lost
from dialogd.store.registry import Caller, caller_here

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

    from dialogd.store.mirror import Mirror

LARGEST = 64 * 1024 * 1024  # bytes; anything larger is no dialog
LITTLE = 16 * 1024  # bytes that are read on where nothing may block: they have just been written, by a daemon here
PROBE = 512  # bytes before the known end that must be unchanged for reading on
ATTEMPTS = 5  # rename-over saves in a row that an append survives

_TO_WRITE = os.O_RDWR | os.O_APPEND


Make = Callable[[Dialog], Addition | None]


def wall_time() -> str:
    """Wall time for frames: UTC, ISO 8601, seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Replaced(Exception):
    """An editor saved a new file under the name while an entry was written to the old one."""


class _Behind(Exception):
    """Somebody on another machine was faster."""


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


class LogFile:
    """One dialog file. Safe to use from several threads; every call may block on the disk."""

    def __init__(self, path: Path, journals: Journals) -> None:
        self.path = path
        self.journals = journals
        self.known: Dialog | None = None  # the dialog as last read
        self._seen: tuple[int, int, int] = (0, 0, 0)
        self._probe = b""
        self._hash = sha256()  # of all that was read: a whole read of what has not changed need not be parsed again
        self._is_doubtful = False  # somebody who is no daemon wrote to it since it was last read whole
        self.full_reads = 0
        self._file = KeptFile(path)
        self._mutex = threading.RLock()
        self.lock = Lock(path.with_name(path.name + ".lock"))
        self._looked_for_torn = False
        self._suspect = ""
        self._mirror: Mirror | None = None
        self.daemon_of = ""  # the agent whose daemon this process is: its seat at a shared log

    def caller(self) -> Caller:
        """Where an act comes from that is done now: from whoever asks for it over a connection, else this process."""
        return caller_here(listed_beside(self.journals.folder))

    @property
    def attachments(self) -> Path:
        """The folder of attachments beside the file."""
        return self.path.with_name(self.path.name + ".d")

    @property
    def suspect(self) -> str:
        """Why nothing more is written: a flush of the file or of a journal failed. "" while all is well."""
        return self._suspect or self.journals.suspect

    def read(self, *, full: bool = False, sure: bool = False) -> Dialog:
        """The dialog as the file stands; reads only what was appended, unless `full` or the past was touched.

        With `sure` all is read also where somebody other than a daemon has written to the file, who may have changed
        earlier text too. Raises `FileNotFoundError`, `NotADialog`, `UnsafeFile`.
        """
        if sure and self.mirror is not None:
            self.pull()
        with self._mutex:
            return self._read(self._open(os.O_RDONLY), full=full or (sure and self._is_doubtful))

    def quick_read(self, *, sure: bool = False) -> Dialog | None:
        """What `read` gives, where that takes but a moment: at most a little was appended since. Else None.

        It waits for nobody, so it may be used where nothing may block.
        """
        seen, dialog = self._seen, self.known  # in this order: a reader in another thread sets the dialog first
        status = self._file.status()
        if dialog is None or status is None or (sure and (self._is_doubtful or self.mirror is not None)):
            return None
        if _stamp(status) == seen:
            return dialog
        if not 0 < status.st_size - dialog.size <= LITTLE or not self._mutex.acquire(blocking=False):
            return None
        try:
            found = self._read_on(status)
            return None if sure and self._is_doubtful else found
        finally:
            self._mutex.release()

    def lost(self, dialog: Dialog) -> tuple[Lost, ...]:
        """The turns of `dialog` that a save has taken out of the file; what was written since it was read is none."""
        found = self.journals.lost(dialog)
        return still_lost(found, self.read()) if found else ()

    def _read(self, status: os.stat_result, *, full: bool = False) -> Dialog:
        """The open file as `status` has it."""
        if status.st_size > LARGEST:
            raise UnsafeFile(
                f"{self.path} has {status.st_size:,} bytes; a dialog has at most {LARGEST:,}",
                fix="name another file with --file",
            )
        dialog = None if full else self._read_on(status)
        if dialog is None:
            dialog = self._read_whole(status.st_size)
            self._is_doubtful = False
            self._keep(dialog, status)
        return dialog

    def _read_on(self, status: os.stat_result) -> Dialog | None:
        """The dialog with what was appended since the last read; None where earlier text may have changed."""
        known, (inode, _, _) = self.known, self._seen
        if known is None or self._seen == _stamp(status):
            return known
        size, start = status.st_size - known.size, len(self._probe)
        if status.st_ino != inode or size <= 0:
            return None
        data = pread(self._file.fd, start + size, known.size - start)
        if not data.startswith(self._probe):
            return None
        more = data[start:]
        dialog = grammar.read_on(known, more)
        self._hash.update(more)
        self._probe = data[-PROBE:]
        new = dialog.entries[known.settled_entries :]
        self._is_doubtful |= not all(entry.condition is Condition.SOUND and entry.linked for entry in new)
        self._keep(dialog, status)
        return dialog

    def _keep(self, dialog: Dialog, status: os.stat_result) -> None:
        self.known = dialog
        self._seen = (status.st_ino, dialog.size, status.st_mtime_ns)

    def _read_whole(self, size: int) -> Dialog:
        """Read all of the file; parse it only where the known part has changed."""
        data, known = pread(self._file.fd, size, 0), self.known
        if known is not None and sha256(data[: known.size]).digest() == self._hash.digest():
            more = data[known.size :]
            dialog = grammar.read_on(known, more)
            self._hash.update(more)
        else:
            dialog = grammar.parse(data)
            self._hash = sha256(data)
        self.full_reads += 1
        self._probe = data[-PROBE:]
        return dialog

    def _open(self, flags: int) -> os.stat_result:
        """Open the file if it can be trusted; otherwise raises `UnsafeFile` with the reason."""
        try:
            return self._file.open(flags)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UnsafeFile(f"{self.path} cannot be opened: {why(error)}", fix=fix(error)) from error

    def append(self, make: Make, journal: Journal) -> Dialog | None:
        """Append what `make` returns for the dialog as read under the lock; the dialog with it.

        None when it returns nothing. Raises what `write` and `read` do.
        """
        return self.read() if self.write(make, journal) else None

    def write(self, make: Make, journal: Journal) -> bool:
        """Append what `make` returns for the dialog as read under the lock; False when it returns nothing.

        Returns once the entry is on disk. Raises `StorageError` when the disk refuses (nothing is acknowledged; a torn
        tail is finished by the next writer), and what `make` raises.
        """
        with self._mutex, self.locked():
            replaced, behind = 0, -1
            while replaced < ATTEMPTS:
                try:
                    return self._write_once(make, journal)
                except _Replaced:
                    replaced += 1
                except _Behind:  # each time somebody's entry came: what is to be written now is asked anew
                    if behind == (behind := self.head[0]):
                        raise StorageError(
                            "the log of this dialog takes no entry, and has none of others'",
                            fix="`dialogd doctor` asks its engine; the entry is kept and will be written",
                        ) from None
            raise StorageError(
                f"{self.path} was replaced {ATTEMPTS} times while an entry was written",
                fix="close the editor that keeps saving it; the entry is kept and will be written",
            )

    def _write_once(self, make: Make, journal: Journal) -> bool:
        """One try; raises `_Replaced` when an editor's save took the file away under us."""
        dialog = self._finished(self._open(_TO_WRITE))
        addition = make(dialog)
        if addition is None:
            return False
        if self._mirror is not None:
            addition = self._mirror.named(addition)
        elif dialog.state.hand.keys is not None and (self.attachments / "signatures").exists():
            raise Refused(
                f"{self.path} is a mirror, and where its log is is not known in {self.journals.folder}",
                fix="name the state directory that it was made from with DIALOGD_STATE_DIR; or go on in a copy of it",
            )
        if addition.attachment:
            self._attach(addition)
        last = dialog.last
        entry = grammar.render(addition.draft, last.chain if last else "")
        data = grammar.joint(dialog) + entry
        number = addition.draft.number
        journal.record("intent", at=dialog.size, entry=data.decode("utf-8"), number=number, dialog=dialog.id)
        status = self._file.status()
        if status is None or _stamp(status) != self._seen:
            raise _Replaced
        if self._mirror is not None and not self._mirror.put(dialog, addition, data, journal.writer):
            raise _Behind
        self._write(self._file.fd, data)
        self._check_landed(data)
        journal.record("done", durable=False, chain=chain_of(data), number=number)
        return True

    def _write(self, fd: int, data: bytes) -> None:
        with writing(self.path):
            write_all(fd, data)
        try:
            flush(fd)
        except OSError as error:
            # A failed flush may have dropped the dirty pages: a second one would succeed and prove nothing.
            self._suspect = f"flushing {self.path} failed ({why(error)}); what was written may not be on the disk"
            raise StorageError(self.suspect, fix=SUSPECT_FIX) from error

    def _check_landed(self, data: bytes) -> None:
        """Raise `_Replaced` unless the file that the path now names holds the bytes just written, in one piece."""
        fd = self._file.fd
        # Not where the file ended when it was read: somebody may have typed in between.
        at = os.lseek(fd, 0, os.SEEK_CUR) - len(data)
        if self._file.status() is None or at < 0 or pread(fd, len(data), at) != data:
            raise _Replaced

    def newline(self) -> Dialog:
        """Append the newline that a finished hand-written text at the end of the file lacks."""
        with self._mutex, self.locked():
            status = self._open(_TO_WRITE)
            if self.mirror is not None:
                return self._finished(status)
            last = self._read(status).last
            if last is not None and last.condition is Condition.UNFINISHED and last.turn is not None:
                self._write(self._file.fd, b"\n")
                status = os.fstat(self._file.fd)
            return self._read(status)

    def set_aside(self, present: set[str]) -> Path | None:
        """Set the journals aside, because turns they remember are gone; `present` are the hashes in the file.

        None when there are no journals, or a peer was faster and set the same ones aside.
        """
        with self._mutex, self.locked():
            if not set(self.journals.committed().values()) - present:
                return None
            return self.journals.set_aside(present)

    def finish_torn(self) -> Dialog:
        """Complete an entry that a crashed writer left half-written at the end of the file, if any."""
        with self._mutex, self.locked():
            status = self._open(_TO_WRITE)
            try:
                return self._finished(status)
            except DialogdError:
                if self._mirror is None or self._suspect:
                    raise
                return self._read(self._open(_TO_WRITE))  # its engine is away, or differs: what is here can be read

    def _finished(self, status: os.stat_result) -> Dialog:
        """The dialog of the open file, after completing a half-written entry."""
        if self.known is None:
            with suppress(DialogdError):
                self._read(status)
        if self.mirror is not None:
            self._read(status)
            self.mirror.settle()
            return self._read(self._open(_TO_WRITE))
        # Once all journals are read: a writer may have died between its entry and the record of it.
        if not (self._looked_for_torn and self._is_clean(status)):
            self._finish_torn(status)
            status = os.fstat(self._file.fd)
            self._looked_for_torn = True
        dialog = self._read(status)
        return dialog if self.mirror is None else self._finished(status)  # it may have come to be shared meanwhile

    def _finish_torn(self, status: os.stat_result) -> None:
        fd, size = self._file.fd, status.st_size
        for journal in self.journals.all():
            intent = journal.intent()
            if intent is None:
                continue
            there = pread(fd, len(intent.entry), intent.at) if intent.at < size else b""
            if there != intent.entry and there and intent.entry.startswith(there) and intent.at + len(there) == size:
                self._write(fd, intent.entry[len(there) :])
                size = os.fstat(fd).st_size
                there = pread(fd, len(intent.entry), intent.at) if self._file.status() is not None else b""
            if there == intent.entry:
                journal.record("done", durable=False, chain=chain_of(intent.entry), number=intent.number)

    # -- a shared dialog: store/mirror.py -------------------------------------------------------------------------

    @property
    def mirror(self) -> Mirror | None:
        """What makes this file a mirror, where its dialog is shared from here; None for a local one."""
        if self._mirror is not None and not self._mirror.is_connected:  # another dialog has taken its place
            old, self._mirror = self._mirror, None
            old.close()
        if self._mirror is None and self.known is not None and self.known.state.hand.keys is not None:
            from dialogd.store.mirror import Connection, Mirror

            connection = Connection.at(self.journals.folder)
            self._mirror = Mirror(self, connection) if connection is not None else None
        return self._mirror

    @property
    def head(self) -> tuple[int, str]:
        """How many bytes were read, and their SHA-256, hexadecimal."""
        with self._mutex:
            return self.known.size if self.known is not None else 0, self._hash.hexdigest()

    @property
    def hashed(self) -> Hash:
        """The hash of all that was read, to be gone on with."""
        return self._hash.copy()

    def pull(self) -> Dialog:
        """Take in what was appended on other machines. Raises `EngineAway`, `Alarm`, and what `read` and `write` do."""
        mirror = self.mirror
        if mirror is None and self.known is None:
            self.read()
            mirror = self.mirror
        rows = mirror.fetch() if mirror is not None else ()  # while nobody has to wait for the lock
        with self._mutex, self.locked():
            status = self._open(_TO_WRITE)
            dialog = self._read(status)
            if mirror is None:
                return dialog
            mirror.settle(rows)
            return self._read(self._open(_TO_WRITE))

    def add(self, data: bytes) -> None:
        """Append to a mirror what its engine has; under the lock."""
        if data:
            self._open(_TO_WRITE)
            self._write(self._file.fd, data)
            self._read(self._open(_TO_WRITE))

    def restore(self, data: bytes) -> None:
        """Put a mirror back to what its engine has, in one step; under the lock."""
        write_over(data, self.path)
        self._read(self._open(_TO_WRITE), full=True)

    def note_done(self) -> None:
        """Note of every entry whose fate was unknown that it stands in the file, where it does."""
        self._finish_torn(self._open(_TO_WRITE))

    @contextmanager
    def standing_still(self) -> Iterator[bytes]:
        """All bytes of the file, to which nobody appends meanwhile."""
        with self._mutex, self.locked():
            status = self._open(os.O_RDONLY)
            yield pread(self._file.fd, status.st_size, 0)

    def _is_clean(self, status: os.stat_result) -> bool:
        """True when the file is known to end in a sound entry, so that no writer was interrupted."""
        try:
            dialog = self._read(status)
        except DialogdError:
            return False
        return dialog.last is not None and dialog.last.condition is Condition.SOUND and not dialog.tail.strip(b"\n")

    def _attach(self, addition: Addition) -> None:
        with writing(self.attachments):
            make_folder(self.attachments)
            # Named by its hash: when it is there already, it is the same text.
            write_once(addition.overflow.encode("utf-8", "replace"), self.attachments / addition.attachment)

    def check(self) -> None:
        """Raise `UnsafeFile` for what lies beside the dialog and could lead elsewhere: its folder, a journal."""
        for journal in self.journals.all():
            journal.flush()
        if os.path.lexists(self.attachments):
            try:
                make_folder(self.attachments)
            except OSError as error:
                raise UnsafeFile(f"{self.attachments} cannot be used: {why(error)}", fix="move it away") from error

    def locked(self) -> AbstractContextManager[None]:
        """Hold the file lock beside the dialog.

        Raises `StorageError` when a stopped process holds it, and for good once a flush has failed.
        """
        if self.suspect:
            raise StorageError(self.suspect, fix=SUSPECT_FIX)
        return self.lock.held()

    def create(self, data: bytes, *, replace: bool = False) -> None:
        """Write a new dialog file, durably; with `replace` an existing one is replaced atomically.

        Raises `FileExistsError` without `replace`, and `NotADialog` when `data` is no dialog.
        """
        grammar.parse(data)
        with self._mutex, self.locked():
            if replace:
                write_over(data, self.path)
            else:
                fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                try:
                    self._write(fd, data)
                finally:
                    os.close(fd)
                flush_folder(self.path.parent)
            self.known = None


log = logging.getLogger("dialogd.watch")

STEP = 25  # milliseconds; how often the library asks its own queue


async def watch(file: Path, changed: Callable[[], None]) -> None:
    """Call `changed` soon after `file` was written, replaced or removed, once for many writes, until cancelled.

    Ends where watching is impossible; the slow poll replaces it.
    """
    from watchfiles import Change, awatch

    def ours(_: Change, path: str) -> bool:
        return path.rpartition("/")[2] == file.name

    try:
        # The folder is watched for the file's name: an editor's save may put another file there.
        async for _ in awatch(
            file.parent, watch_filter=ours, recursive=False, debounce=50, step=STEP, rust_timeout=5_000
        ):
            changed()
    except (OSError, RuntimeError) as error:
        log.warning("cannot watch %s (%s); looking every few seconds instead", file.parent, error)

"""What lies on the disk: durable writes, the lock beside a file, the state directory and its archive."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dialogd.errors import StorageError, UnsafeFile
from dialogd.protocol.model import digest
from dialogd.protocol.state import Dialog

if TYPE_CHECKING:
    from filelock import BaseFileLock


def flush(fd: int) -> None:
    """Make a file's bytes durable; F_FULLFSYNC where the system has it (macOS: fsync stops at the drive's cache)."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        with suppress(OSError):  # not every file system takes it; plain fsync is what is left
            fcntl.fcntl(fd, full)
            return
    os.fsync(fd)


def flush_folder(path: Path) -> None:
    """Make a folder's new or renamed entries durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(path: Path) -> None:
    """Make a private folder, and those above it that are missing, unless it is there.

    Each is made durable in the one above it: what is flushed in a folder that a power loss takes away is lost too.
    Raises `OSError`, also where a link, a file or another user's folder has that name.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "it is no folder, or a link to one", str(path)) from None
        if status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", str(path)) from None
        return
    except FileNotFoundError:
        make_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
    flush_folder(path.parent)


def write_once(data: bytes, target: Path) -> None:
    """Write a file in one step, durably, unless it is there: a crash or a full disk leaves it whole or absent."""
    if not target.exists():
        write_over(data, target)


def write_over(data: bytes, target: Path, *, durable: bool = True) -> None:
    """Write a file (0600) in one step in place of the one that is there: a crash leaves one of the two, whole.

    Where it need not be `durable`, a power loss may take it.
    """
    part = target.with_name(f".{target.name}.{os.getpid()}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, data)
        if durable:
            flush(fd)
        part.replace(target)
    finally:
        os.close(fd)
        part.unlink(missing_ok=True)
    if durable:
        flush_folder(target.parent)


def write_all(fd: int, data: bytes) -> None:
    """Write all of it where the file stands."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def pread(fd: int, size: int, at: int) -> bytes:
    """Up to `size` bytes at offset `at`; fewer only at the end of the file."""
    chunks: list[bytes] = []
    while size > 0:
        chunk = os.pread(fd, size, at)
        if not chunk:
            break
        chunks.append(chunk)
        at += len(chunk)
        size -= len(chunk)
    return b"".join(chunks)


class KeptFile:
    """A file that stays open from one use to the next, for as long as its path names it and it is as safe as it was.

    `called` is said before its path where it is not safe, `advice` what to do then, unless that follows from why.
    """

    def __init__(self, path: Path, called: str = "", advice: str = "") -> None:
        self.path = path
        self._called, self._advice = called, advice
        self.fd = -1
        self.is_new = False  # it was not there before it was opened
        self._flags = 0
        self._identity: tuple[int, ...] = ()

    @property
    def inode(self) -> int:
        """Which file is open."""
        return self._identity[1] if self.fd >= 0 else 0

    def status(self) -> os.stat_result | None:
        """What the path names now, if that is the open file with the owner, rights and names it had; else None."""
        if self.fd < 0:
            return None
        try:
            status = self.path.lstat()
        except OSError:
            return None  # opening it says why
        return status if _identity(status) == self._identity else None

    def open(self, flags: int) -> os.stat_result:
        """Have it open with these flags, or more; what the path names now. Never through a symlink.

        Raises `OSError` as opening does, and `UnsafeFile`.
        """
        status = self.status() if flags & ~self._flags == 0 else None
        if status is not None:
            self.is_new = False
            return status
        self.close()
        mode = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            fd, self.is_new = os.open(self.path, flags & ~os.O_CREAT | mode), False
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            fd, self.is_new = os.open(self.path, flags | mode, 0o600), True
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            fix = self._advice or FIXES[errno.ELOOP]
            raise UnsafeFile(f"{self._called}{self.path} is a symlink", fix=fix) from error
        status = os.fstat(fd)
        problem = distrust(status)
        if problem:
            os.close(fd)
            raise UnsafeFile(f"{self._called}{self.path} {problem[0]}", fix=self._advice or problem[1])
        # Open for both serves either.
        self.fd, self._flags, self._identity = fd, flags, _identity(status)
        return status

    def close(self) -> None:
        """Close it, if it is open."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


MOVE = "move it away; dialogd makes its own"


def log_at(path: Path) -> KeptFile:
    """A log or output of dialogd's own, made where it is not there, open to be appended to.

    Raises `UnsafeFile` for a link, a pipe or another user's file.
    """
    kept = KeptFile(path, "the log ", MOVE)
    try:
        kept.open(os.O_RDWR | os.O_CREAT | os.O_APPEND)
    except OSError as problem:
        raise UnsafeFile(f"the log {path} cannot be opened: {why(problem)}", fix=MOVE) from problem
    return kept


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_mode, status.st_uid, status.st_gid, status.st_nlink


def distrust(status: os.stat_result) -> tuple[str, str] | None:
    """Why an open file cannot be trusted and what to do, or None when it can."""
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        return f"is {kind}", "name a file with --file"
    if status.st_uid != os.geteuid():
        return f"belongs to another user (uid {status.st_uid})", "use a file of your own with --file"
    if status.st_nlink > 1:
        return "has more than one name (a hard link)", "copy it and use the copy"
    if status.st_mode & stat.S_IWOTH:
        return "can be written by every user", "take that away: chmod o-w"
    return None


def shared_with_group(path: Path) -> bool:
    """True when others of the file's group may write it."""
    try:
        return bool(path.stat().st_mode & stat.S_IWGRP)
    except OSError:
        return False


def why(error: OSError) -> str:
    """What the system said, in words."""
    if error.errno == errno.ELOOP:
        return "it is a symlink"
    return (error.strerror or str(error)).lower()


FIXES = {
    errno.ELOOP: "name the real file with --file",
    errno.EISDIR: "name a file, not a directory, with --file",
    errno.EACCES: "give yourself the right to read and write it: chmod u+rw",
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space; the entry is kept and will be written"
    ),
    errno.EROFS: "use a file on a disk that can be written, with --file",
}


def fix(error: OSError) -> str:
    """What to do about it."""
    return FIXES.get(error.errno or 0, "check the disk and the path")


@contextmanager
def writing(what: object, advice: str = "") -> Iterator[None]:
    """Have what the disk refuses in here be a `StorageError` that says so of `what`, with `advice` or the usual fix."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{what} cannot be written: {why(error)}", fix=advice or fix(error)) from error


# -- Small JSON files of things that may be lost ----------------------------------------------------------------------


def read_json(path: Path) -> Any:
    """What the file holds, None when it is missing or no JSON."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def write_json(path: Path, value: object) -> None:
    """Write the file (0600) in one step. A disk that refuses is no error."""
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
        write_over(data, path, durable=False)


LOCK_WAIT = 10.0  # seconds; the lock is held for milliseconds, so a longer wait means a stopped holder
LOCK_POLL = 0.001  # seconds; the library's default of 50 ms would be the slowest part of a turn
ATTEMPTS = 5  # lock files that may be taken away in a row


class Lock:
    """The lock file at one path. Threads that share this object wait for each other too.

    `wait` is the timeout in seconds; shortening it also affects threads that wait already. With `per_process` the whole
    process holds it: any thread may release it, and none waits for another.
    """

    def __init__(self, path: Path, wait: float = LOCK_WAIT, *, per_process: bool = False) -> None:
        self.path = path
        self.per_process = per_process
        self.wait = wait
        self.waited = 0.0  # seconds for which it was waited for, all together
        self._held: os.stat_result | None = None  # the file that was locked last

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock for as long as the context lasts; raises what `acquire` does."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def acquire(self) -> None:
        """Take the lock.

        Raises `StorageError` when it is not free within `wait` seconds, `UnsafeFile` when it cannot be trusted.
        """
        began = time.monotonic()
        try:
            for _ in range(ATTEMPTS):
                self._take(began)
                # One that was deleted or replaced meanwhile keeps nobody out.
                if self.is_in_place:
                    return
                self._lock.release()
        finally:
            self.waited += time.monotonic() - began
        raise UnsafeFile(
            f"the lock {self.path} was replaced while it was taken",
            fix="try again, and leave the .lock file where it is",
        )

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    @property
    def is_in_place(self) -> bool:
        """True while the path names the locked file; otherwise the lock excludes nobody any more."""
        try:
            return self._held is not None and os.path.samestat(self.path.lstat(), self._held)
        except OSError:
            return False

    def _take(self, began: float) -> None:
        from filelock import Timeout

        try:
            self._lock.acquire(cancel_check=lambda: time.monotonic() - began > self.wait)
        except Timeout as error:
            raise StorageError(
                f"the lock {self.path} was not free within {self.wait:g} s; a stopped process may hold it",
                fix=f"find it with `fuser {self.path}` and continue or end it",
            ) from error
        except OSError as error:
            raise UnsafeFile(f"the lock {self.path} cannot be used: {why(error)}", fix=fix(error)) from error
        problem = distrust(self._held) if self._held is not None else None
        if problem:
            self._lock.release()
            raise UnsafeFile(f"the lock {self.path} {problem[0]}", fix=problem[1])

    @cached_property
    def _lock(self) -> BaseFileLock:
        from filelock import FileLock

        return FileLock(
            self.path,
            timeout=self.wait,
            mode=0o600,
            poll_interval=LOCK_POLL,
            fallback_to_soft=False,
            preserve_lock_file=True,
            thread_local=not self.per_process,
            on_acquired=self._check,
        )

    def _check(self, fd: int) -> None:
        self._held = os.fstat(fd)


PATH = "path"  # in the folder of a dialog file: where that lies


class _Folder:
    """A folder of the state directory, made when it is asked for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, state: StateDir, _: type[StateDir]) -> Path:
        return state._made(state.root / self.name)


@dataclass(frozen=True, slots=True)
class StateDir:
    """The state directory; everything in it is 0700."""

    root: Path

    archive = _Folder("archive")  # copies of dialogs that ended
    plans = _Folder("archive/plans")  # of dialogs in the default file
    memory = _Folder("memory")  # the index over the archive, and the outcomes that the person recorded
    registry = _Folder("running")  # one file per running daemon
    sessions = _Folder("sessions")  # the dialogs that programs began by MCP, and what is known of their processes
    logs = _Folder("logs")  # the daemons' logs

    def dialog(self, file: Path) -> Path:
        """The folder of one dialog file, by its absolute path: journals, drafts, what was set aside."""
        folder = self._made(self.root / "dialogs" / _key(file))
        with suppress(OSError):  # it only tells where a file came from that was moved
            if not (folder / PATH).exists():
                write_over(os.fsencode(real(file)), folder / PATH, durable=False)
        return folder

    def agent(self, file: Path, agent: str) -> Path:
        """The folder of one agent's backend at one dialog file; beside it lies what all backends share."""
        return self._made(self.agents / f"{_key(file)}-{agent}")

    @property
    def agents(self) -> Path:
        """The folder of the agents' folders and what all backends share; not created by this."""
        return self.root / "agents"

    def _made(self, path: Path) -> Path:
        try:
            make_folder(path)
            owner = self.root.stat().st_uid
        except OSError as error:
            raise UnsafeFile(
                f"{path} in the state directory cannot be used: {why(error)}",
                fix="move it away, or name another state directory with DIALOGD_STATE_DIR",
            ) from error
        if owner != os.geteuid():
            raise UnsafeFile(
                f"the state directory {self.root} belongs to another user (uid {owner})",
                fix="name one of your own with DIALOGD_STATE_DIR",
            )
        return path


def _key(file: Path) -> str:
    return f"{file.stem[:40]}-{hashlib.sha256(os.fsencode(real(file))).hexdigest()[:12]}"


def real(file: Path) -> Path:
    """One name per file, whatever way led to its folder; the file itself is never followed."""
    return file.parent.resolve() / file.name


def file_of(folder: Path) -> Path | None:
    """The dialog file whose folder this is; None where that is not noted."""
    try:
        return Path(os.fsdecode((folder / PATH).read_bytes()))
    except (OSError, ValueError):
        return None


def listed_beside(folder: Path) -> Path:
    """Where the daemons are listed in the state directory that the folder of a dialog is in; not made by this."""
    return folder.parent.parent / "running"


LARGEST = 20_000_000  # bytes of an attachment


def archived(dialog: Dialog, file: Path, folder: Path) -> Path:
    """The path of a copy in `folder` of the dialog file as it stands, there or not."""
    topic = re.sub(r"[^a-z0-9]+", "-", dialog.header.topic.lower()).strip("-")[:40] or "dialog"
    return folder / f"{topic}-{dialog.id}-{digest(file.read_bytes())[:8]}.md"


def archive(dialog: Dialog, file: Path, folder: Path) -> Path:
    """Copy the dialog file, and its attachments, into `folder`; gives the copy's path. Never overwrites a copy."""
    data, target = file.read_bytes(), archived(dialog, file, folder)
    beside = file.with_name(file.name + ".d")
    if beside.is_dir():
        attachments = folder / f"{target.stem}.d"
        make_folder(attachments)
        for item in beside.iterdir():
            if item.is_file() and not item.is_symlink() and not item.name.startswith("."):
                write_once(item.read_bytes(), attachments / item.name)
    write_once(data, target)  # last: whoever sees it finds its attachments there
    return target


def attachments_of(file: Path) -> dict[str, str]:
    """The attachments of a dialog file, or of its copy in the archive: texts by name; what is no plain file is not."""
    found: dict[str, str] = {}
    for folder in (file.with_name(f"{file.name}.d"), file.with_name(f"{file.stem}.d")):
        if found or not folder.is_dir() or folder.is_symlink():
            continue
        for item in sorted(folder.iterdir()):
            if item.is_file() and not item.is_symlink() and item.suffix == ".md" and not item.name.startswith("."):
                with item.open("rb") as text:
                    found[item.name] = text.read(LARGEST).decode("utf-8", "replace")
    return found

"""What the system is asked about files: durable flushes, whole reads, whether to trust a file, errors in words."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from dialogd.errors import UnsafeFile

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")


def flush(fd: int) -> None:
    """Make a file's bytes durable; F_FULLFSYNC where the system has it (macOS: fsync stops at the drive's cache)."""
    try:
        import fcntl

        full = getattr(fcntl, "F_FULLFSYNC", None)
        if full is not None:
            fcntl.fcntl(fd, full)
            return
    except OSError:
        pass  # not every file system takes it; plain fsync is what is left
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
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if durable:
            flush(fd)
        part.replace(target)
    finally:
        os.close(fd)
        part.unlink(missing_ok=True)
    if durable:
        flush_folder(target.parent)


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


class DiskThread:
    """The one thread that touches the disk: it is used in order, and never blocks the event loop.

    By hand, as every turn goes this way twice: an executor's futures cost three times as much.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """Do a blocking piece of work there, after all that was asked for before; gives and raises what it does."""
        from asyncio import get_running_loop

        future: asyncio.Future[T] = get_running_loop().create_future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="disk", daemon=True)
            self._thread.start()
        self._jobs.put((future, work))
        return await future

    def close(self) -> None:
        """End the thread, once it has done what is wanted still; nothing more may be asked of it."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, work = job
            if future.cancelled():
                continue
            value, error = None, None
            try:
                value = work()
            except BaseException as problem:  # whoever waits for it has to do with it
                error = problem
            with suppress(RuntimeError):  # nobody waits any more: the loop has ended
                future.get_loop().call_soon_threadsafe(_settle, future, value, error)
            del job, future, work, value, error  # the next job may be long in coming


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)


class KeptFile:
    """A file that stays open from one use to the next, for as long as its path names it and it is as safe as it was."""

    def __init__(self, path: Path) -> None:
        self.path = path
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

        Raises `OSError` as opening does, and `Distrusted`.
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
        status = os.fstat(fd)
        problem = distrust(status)
        if problem:
            os.close(fd)
            raise Distrusted(*problem)
        # Open for both serves either.
        self.fd, self._flags, self._identity = fd, flags, _identity(status)
        return status

    def close(self) -> None:
        """Close it, if it is open."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


class Distrusted(Exception):
    """A file that cannot be trusted: what is wrong with it, and what to do."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.fix = fix


def log_at(path: Path) -> KeptFile:
    """A log or output of dialogd's own, made where it is not there, open to be appended to.

    Raises `UnsafeFile` for a link, a pipe or another user's file.
    """
    kept = KeptFile(path)
    try:
        kept.open(os.O_RDWR | os.O_CREAT | os.O_APPEND)
    except (OSError, Distrusted) as problem:
        what = f"cannot be opened: {why(problem)}" if isinstance(problem, OSError) else str(problem)
        raise UnsafeFile(f"the log {path} {what}", fix="move it away; dialogd makes its own") from problem
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

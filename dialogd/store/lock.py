"""The lock beside a file: one writer at a time among all processes. Never deleted, held for milliseconds."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dialogd.errors import StorageError, UnsafeFile
from dialogd.store.disk import Distrusted, KeptFile, fix, why

LOCK_WAIT = 10.0  # seconds; the lock is held for milliseconds, so a longer wait means a stopped holder
LOCK_POLL = 0.001  # seconds


class Lock:
    """The lock file at one path. It stays open; threads that share this object wait for each other too.

    `wait` is how long it is waited for, in seconds; who waits already heeds it too when it is made shorter.
    """

    def __init__(self, path: Path, wait: float = LOCK_WAIT) -> None:
        self.path = path
        self.wait = wait
        self.waited = 0.0  # seconds for which it was waited for, all together
        self._file = KeptFile(path)
        self._thread = threading.Lock()

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
            while not self._take():
                if time.monotonic() - began >= self.wait:
                    raise StorageError(
                        f"the lock {self.path} was not free within {self.wait:g} s; a stopped process may hold it",
                        fix=f"find it with `fuser {self.path}` and continue or end it",
                    )
                time.sleep(LOCK_POLL)
        finally:
            self.waited += time.monotonic() - began

    def release(self) -> None:
        """Give the lock to whoever waits for it; any thread may."""
        fcntl.flock(self._file.fd, fcntl.LOCK_UN)
        self._thread.release()

    @property
    def is_in_place(self) -> bool:
        """True while the path names the file that was locked: else it keeps nobody out any more."""
        try:
            return os.path.samestat(self.path.lstat(), os.fstat(self._file.fd))
        except OSError:
            return False

    def _take(self) -> bool:
        """Take the lock if it is free and in place: one that was deleted or replaced meanwhile keeps nobody out."""
        if not self._thread.acquire(blocking=False):
            return False
        is_ours = False
        try:
            self._file.open(os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = self.is_in_place
            if not is_ours:
                fcntl.flock(self._file.fd, fcntl.LOCK_UN)
        except BlockingIOError:
            pass
        except OSError as error:
            raise UnsafeFile(f"the lock {self.path} cannot be used: {why(error)}", fix=fix(error)) from error
        except Distrusted as problem:
            raise UnsafeFile(f"the lock {self.path} {problem}", fix=problem.fix) from problem
        finally:
            if not is_ours:
                self._thread.release()
        return is_ours

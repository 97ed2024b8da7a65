"""The lock beside a file: one writer at a time among all processes. Never deleted, held for milliseconds."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dialogd.errors import StorageError, UnsafeFile
from dialogd.store.disk import Distrusted, KeptFile, fix, why

LOCK_WAIT = 10.0  # seconds; the lock is held for milliseconds, so a longer wait means a stopped holder
LOCK_POLL = 0.001  # seconds
ATTEMPTS = 5  # lock files that may be taken away in a row


class Lock:
    """The lock file at one path, which stays open. Threads that share this object wait for each other too.

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
            self._until(lambda: self._thread.acquire(blocking=False), began)
            try:
                self._take(began)
            except BaseException:
                self._file.close()
                self._thread.release()
                raise
        finally:
            self.waited += time.monotonic() - began

    def release(self) -> None:
        """Give the lock to whoever waits for it."""
        fcntl.flock(self._file.fd, fcntl.LOCK_UN)
        self._thread.release()

    @property
    def is_in_place(self) -> bool:
        """True while the path names the file that is locked: else it keeps nobody out any more."""
        return self._file.status() is not None

    def _take(self, began: float) -> None:
        """Lock the file that the path names once it is locked: one that was deleted or replaced keeps nobody out."""
        try:
            for _ in range(ATTEMPTS):
                if self._file.fd < 0:
                    self._file.open(os.O_RDWR | os.O_CREAT)
                self._until(self._is_free, began)
                if self._file.status() is not None:
                    return
                self._file.close()
        except Distrusted as problem:
            raise UnsafeFile(f"the lock {self.path} {problem}", fix=problem.fix) from problem
        except OSError as error:
            raise UnsafeFile(f"the lock {self.path} cannot be used: {why(error)}", fix=fix(error)) from error
        raise UnsafeFile(
            f"the lock {self.path} was replaced while it was taken",
            fix="try again, and leave the .lock file where it is",
        )

    def _is_free(self) -> bool:
        try:
            fcntl.flock(self._file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _until(self, taken: Callable[[], bool], began: float) -> None:
        while not taken():
            if time.monotonic() - began > self.wait:
                raise StorageError(
                    f"the lock {self.path} was not free within {self.wait:g} s; a stopped process may hold it",
                    fix=f"find it with `fuser {self.path}` and continue or end it",
                )
            time.sleep(LOCK_POLL)

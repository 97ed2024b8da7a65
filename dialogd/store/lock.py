"""The lock beside a file: one writer at a time among all processes. Never deleted, held for milliseconds."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dialogd.errors import StorageError, UnsafeFile
from dialogd.store.disk import distrust, fix, why

if TYPE_CHECKING:
    from filelock import BaseFileLock

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

"""The lock beside a file: one writer at a time among all processes. Never deleted, held for milliseconds."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dialogd.disk import distrust, fix, moved, why
from dialogd.errors import StorageError, UnsafeFile

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOCK_WAIT = 10.0  # seconds; the lock is held for milliseconds, so a longer wait means a stopped holder
LOCK_POLL = 0.001  # seconds; the library's default of 50 ms would be the slowest part of a turn


class Lock:
    """The lock file at one path. Made once and taken often: the library's object costs as much as taking it.

    `wait` is how long it is waited for, in seconds; who waits already heeds it too when it is made shorter.
    """

    def __init__(self, path: Path, wait: float = LOCK_WAIT) -> None:
        self.path = path
        self.wait = wait
        self.waited = 0.0  # seconds for which it was waited for, all together
        self._problems: list[tuple[str, str]] = []

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock for as long as the context lasts.

        Raises `StorageError` when it is not free within `wait` seconds, `UnsafeFile` when it cannot be trusted.
        """
        from filelock import Timeout

        self._problems.clear()
        began = time.monotonic()
        try:
            self._lock.acquire(cancel_check=lambda: time.monotonic() - began > self.wait)
        except Timeout as error:
            raise StorageError(
                f"the lock {self.path} was not free within {self.wait:g} s; a stopped process may hold it",
                fix=f"find it with `fuser {self.path}` and continue or end it",
            ) from error
        except OSError as error:
            raise UnsafeFile(f"the lock {self.path} cannot be used: {why(error)}", fix=fix(error)) from error
        finally:
            self.waited += time.monotonic() - began
        try:
            if self._problems:
                problem, remedy = self._problems[0]
                raise UnsafeFile(f"the lock {self.path} {problem}", fix=remedy)
            yield
        finally:
            self._lock.release()

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
            on_acquired=self._check,
        )

    def _check(self, fd: int) -> None:
        self._problems.extend(filter(None, [distrust(os.fstat(fd)), moved(fd, self.path)]))

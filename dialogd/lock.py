"""The lock beside a dialog file: one writer at a time among all processes. Never deleted, held for milliseconds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dialogd.disk import distrust, fix, moved, why
from dialogd.errors import StorageError, UnsafeFile

LOCK_WAIT = 10.0  # seconds; the lock is held for milliseconds, so a longer wait means a stopped holder
LOCK_POLL = 0.001  # seconds; the library's default of 50 ms would be the slowest part of a turn


@contextmanager
def hold(lock_path: Path) -> Iterator[None]:
    """Hold the lock for as long as the context lasts.

    Raises `StorageError` when it is not free within ten seconds, `UnsafeFile` when it cannot be trusted.
    """
    from filelock import FileLock, Timeout

    problems: list[tuple[str, str]] = []

    def check(fd: int) -> None:
        problems.extend(filter(None, [distrust(os.fstat(fd)), moved(fd, lock_path)]))

    lock = FileLock(
        lock_path,
        timeout=LOCK_WAIT,
        mode=0o600,
        poll_interval=LOCK_POLL,
        fallback_to_soft=False,
        preserve_lock_file=True,
        on_acquired=check,
    )
    try:
        lock.acquire()
    except Timeout as error:
        raise StorageError(
            f"the lock {lock_path} was not free within {LOCK_WAIT:g} s; a stopped process may hold it",
            fix=f"find it with `fuser {lock_path}` and continue or end it",
        ) from error
    except OSError as error:
        raise UnsafeFile(f"the lock {lock_path} cannot be used: {why(error)}", fix=fix(error)) from error
    try:
        if problems:
            raise UnsafeFile(f"the lock {lock_path} {problems[0][0]}", fix=problems[0][1])
        yield
    finally:
        lock.release()

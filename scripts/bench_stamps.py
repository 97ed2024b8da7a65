"""When each byte of a file was appended, seen from outside: a benchmark must not ask those whom it measures."""

from __future__ import annotations

import ctypes
import os
import select
import statistics
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType

IN_MODIFY = 2  # Linux's number, from <sys/inotify.h>
LOOK_EVERY = 0.0002  # seconds between two looks where the system has no inotify


class Stamps:
    """Notes time and size of a file at each change, while the context lasts.

    On Linux a thread sleeps in `inotify` and is woken by the kernel at each write, some 0.03 ms after it; elsewhere
    it looks five thousand times a second. The clock is `time.monotonic_ns`, one for all processes of a machine.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.times: list[int] = []
        self.sizes: list[int] = []
        self._fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        self._ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._inotify if sys.platform == "linux" else self._look, daemon=True)

    def __enter__(self) -> Stamps:
        self._note()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.write(self._end, b".")
        self._thread.join()
        self._note()
        for fd in (self._fd, self._ended, self._end):
            os.close(fd)

    def between(self, offsets: Sequence[int]) -> list[int]:
        """Nanoseconds from the moment the byte at one offset was seen to the moment the next one was.

        Fewer where writes were lost: two that were seen at once, or one that never was, have no moment of their own.
        """
        looks = [bisect_right(self.sizes, offset) for offset in offsets]
        ends = [*looks[1:], len(self.sizes)]
        times = [self.times[look] if look < end else None for look, end in zip(looks, ends, strict=True)]
        return [later - earlier for earlier, later in pairwise(times) if earlier is not None and later is not None]

    def span(self, first: int, last: int) -> int:
        """Nanoseconds from the moment the byte at one offset had been seen to the moment a later one had."""
        looks = (min(bisect_right(self.sizes, offset), len(self.times) - 1) for offset in (first, last))
        earlier, later = (self.times[look] for look in looks)
        return later - earlier

    def _note(self) -> None:
        now = time.monotonic_ns()
        size = os.fstat(self._fd).st_size
        if not self.sizes or size > self.sizes[-1]:
            self.times.append(now)
            self.sizes.append(size)

    def _inotify(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        events = libc.inotify_init1(os.O_CLOEXEC)
        if events < 0 or libc.inotify_add_watch(events, os.fsencode(self.file), IN_MODIFY) < 0:
            raise OSError(ctypes.get_errno(), f"cannot watch {self.file}")
        poll = select.poll()
        poll.register(events, select.POLLIN)
        poll.register(self._ended, select.POLLIN)
        while self._ended not in dict(poll.poll()):
            self._note()
            os.read(events, 4096)
        os.close(events)

    def _look(self) -> None:
        while not select.select([self._ended], [], [], LOOK_EVERY)[0]:
            self._note()


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds: the middle, the 99th of a hundred and the mean; `count` is how many were measured."""

    p50: float
    p99: float
    mean: float
    count: int

    @classmethod
    def of(cls, nanoseconds: Sequence[int]) -> Spread:
        """The spread of some durations; raises `ValueError` for none."""
        if not nanoseconds:
            raise ValueError("nothing was measured")
        ordered = sorted(nanoseconds)
        p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
        return cls(statistics.median(ordered) / 1e6, p99 / 1e6, statistics.fmean(ordered) / 1e6, len(ordered))

"""What others do to the dialog file: the watch wakes the loop when somebody saves it; now and then all is compared."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

from dialogd.errors import DialogdError

log = logging.getLogger("dialogd.watch")

STEP = 25  # milliseconds; how often the library polls its own queue
SETTLE = 0.03  # seconds from a change to the look at it: what comes meanwhile belongs to it
COMPARE = 30.0  # seconds between two comparisons of the whole file
PAUSE = 0.02  # seconds between two slices of one

# Linux's numbers, from <sys/inotify.h>. The folder is watched for the file's name, the file for what is written to it:
# other files of that folder wake nobody when they are written to.
_MODIFY, _MOVED, _CREATE, _DELETE = 0x2, 0xC0, 0x100, 0x200
_DONT_FOLLOW = 0x02000000
_EVENT = struct.Struct("iIII")


async def watch(file: Path, changed: Callable[[], None]) -> None:
    """Call `changed` soon after `file` was written, replaced or removed, once for many writes, until cancelled.

    Ends where watching is impossible: the slow poll stands behind it.
    """
    try:
        await (_by_inotify if sys.platform == "linux" else _by_library)(file, changed)
    except (OSError, RuntimeError) as error:
        log.warning("cannot watch %s (%s); looking every few seconds instead", file.parent, error)


async def compare(slice_: Callable[[], Awaitable[bool]], changed: Callable[[], None], every: float = COMPARE) -> None:
    """Have the file compared again and again, in slices that say whether they were the last; then call `changed`."""
    while True:
        await asyncio.sleep(every)
        with suppress(DialogdError, OSError):
            is_done = False
            while not is_done:
                is_done = await slice_()
                await asyncio.sleep(PAUSE)
            changed()


async def _by_inotify(file: Path, changed: Callable[[], None]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    loop, touched, ours = asyncio.get_running_loop(), asyncio.Event(), {b"", os.fsencode(file.name)}
    try:
        if libc.inotify_add_watch(fd, os.fsencode(file.parent), _MOVED | _CREATE | _DELETE) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        libc.inotify_add_watch(fd, os.fsencode(file), _MODIFY | _DONT_FOLLOW)
        while True:
            loop.add_reader(fd, touched.set)
            await touched.wait()
            loop.remove_reader(fd)
            await asyncio.sleep(SETTLE)
            touched.clear()
            # Anew each time: another file may have the name by now. One that is not there is waited for.
            libc.inotify_add_watch(fd, os.fsencode(file), _MODIFY | _DONT_FOLLOW)
            if ours & set(_names(fd)):
                changed()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _names(fd: int) -> Iterator[bytes]:
    """The names of all that was touched in the folder, "" for the file itself."""
    with suppress(BlockingIOError):
        while data := os.read(fd, 65536):
            at = 0
            while at < len(data):
                *_, size = _EVENT.unpack_from(data, at)
                at += _EVENT.size
                yield data[at : at + size].rstrip(b"\0")
                at += size


async def _by_library(file: Path, changed: Callable[[], None]) -> None:
    from watchfiles import Change, awatch

    def ours(_: Change, path: str) -> bool:
        return path.rpartition("/")[2] == file.name

    async for _ in awatch(file.parent, watch_filter=ours, recursive=False, debounce=50, step=STEP, rust_timeout=5_000):
        changed()

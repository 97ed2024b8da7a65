"""Changes of the dialog file by others: a watch that wakes the loop, and a slow comparison of the whole file."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from dialogd.errors import DialogdError

log = logging.getLogger("dialogd.watch")

STEP = 25  # milliseconds; how often the library asks its own queue
COMPARE = 30.0  # seconds between two comparisons of the whole file


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


async def compare(work: Callable[[], Awaitable[None]], changed: Callable[[], None], every: float = COMPARE) -> None:
    """Have the whole file compared periodically; then call `changed`."""
    while True:
        await asyncio.sleep(every)
        with suppress(DialogdError, OSError):
            await work()
            changed()

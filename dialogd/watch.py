"""The file watch: wakes the loop when somebody saves the dialog. The folder is watched, so renames do not deafen it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("dialogd.watch")

STEP = 25  # milliseconds; the library polls its own queue this often, which is what an idle daemon costs


async def watch(file: Path, changed: Callable[[], None], stop: asyncio.Event) -> None:
    """Call `changed` whenever `file` is written, replaced or removed, until `stop`. Ends where watching is impossible:
    the slow poll stands behind it."""
    from watchfiles import Change, awatch

    name = file.name

    def ours(_: Change, path: str) -> bool:
        return path.rpartition("/")[2] == name

    try:
        async for _ in awatch(
            file.parent, watch_filter=ours, stop_event=stop, recursive=False, debounce=50, step=STEP, rust_timeout=5_000
        ):
            changed()
    except (OSError, RuntimeError) as error:
        log.warning("cannot watch %s (%s); looking every few seconds instead", file.parent, error)

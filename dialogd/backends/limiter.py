"""Agents on one key wait together: after "too many requests", all of them hold back, whichever daemon was told.

A wait that a turn has no time for is an error at once, which says until when; `holds` lists what is held.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dialogd.errors import BackendError

PAUSE = 2.0  # seconds to hold back where the service names no time
LONGEST = 600.0  # seconds; a service, a clock or a damaged file may ask for more
FOLDER = "limits"  # beside the agents' folders
STAGGER = 0.25  # seconds at most, so that those who waited together do not knock together


@dataclass(frozen=True, slots=True)
class Hold:
    """What a service asked for: `host` wants to be left alone until `until`, and said so at `told` (both wall time).

    It holds for ten minutes at most, then the service is asked whether it still means it.
    """

    host: str
    until: float
    told: float

    @property
    def left(self) -> float:
        """Seconds until the key may be used, 0 when it may be used now."""
        now = time.time()
        return max(min(self.until, self.told + LONGEST) - now, 0.0) if self.told <= now else 0.0

    @property
    def words(self) -> str:
        """What the service asked for: `asked to wait until 16:17`."""
        return _words(self.until)


class Limiter:
    """Remembers until when nobody may use the key `key` of the service at `host`.

    With `state`, an agent's own folder, it is remembered in a file in the folder beside it, where the daemons of the
    other agents look too; without, in this process. The file names the service and no key.
    """

    def __init__(self, host: str, key: str, state: Path | None = None) -> None:
        self.pause = PAUSE
        self.stagger = STAGGER
        self.file: Path | None = None
        self._host = host
        self._hold = Hold(host, 0.0, 0.0)
        if state is not None:
            name = hashlib.sha256(f"{host}\n{key}".encode()).hexdigest()[:32]
            self.file = state.parent / FOLDER / f"{name}.json"

    @property
    def told(self) -> Hold:
        """What was asked for by whoever was told last, here or in another daemon."""
        return max(self._hold, _read(self.file) or self._hold, key=lambda hold: hold.left)

    @property
    def left(self) -> float:
        """Seconds until the key may be used, 0 when it may be used now."""
        return self.told.left

    async def ready(self, until: float = math.inf) -> None:
        """Wait until the key may be used.

        Raises `BackendError` at once where that is later than `until` (monotonic), when the turn is over.
        """
        import asyncio  # `status` looks at what is held, and waits for nothing

        while (left := self.left) > 0:
            if time.monotonic() + left >= until:
                raise BackendError(
                    f"too many requests to {self._host} on this key",
                    fix="ask again with `dialogd retry` then, or use another key",
                    retryable=True,
                    retry_after=self.told.until - time.time(),
                    kind="busy",
                )
            await asyncio.sleep(left + random.uniform(0.0, self.stagger))

    def hold(self, seconds: float | None = None) -> None:
        """Nobody is to use the key for so many seconds; a longer wait that somebody else was told stays."""
        now = time.time()
        hold = Hold(self._host, now + max(self.pause if seconds is None else seconds, 0.0), now)
        self._hold = max(self.told, hold, key=lambda hold: hold.left)
        if self.file is not None:
            with suppress(OSError):  # what cannot be shared still holds here
                _write(self.file, self._hold)

    def heed(self, error: BackendError) -> None:
        """Hold back after a service said that it is asked too often or is overloaded."""
        if error.kind == "busy":
            self.hold(error.retry_after)


def holds(agents: Path) -> list[Hold]:
    """What services have asked for and is not over, of all agents whose folders lie in `agents`, the longest first."""
    found = (_read(path) for path in (agents / FOLDER).glob("*.json"))
    return sorted((hold for hold in found if hold and hold.left > 0), key=lambda hold: -hold.left)


def asked_to_wait(seconds: float) -> str:
    """What a service asked for, in words: `asked to wait until 16:17` (local time)."""
    return _words(time.time() + seconds)


def _words(moment: float) -> str:
    try:
        at = datetime.fromtimestamp(moment).astimezone()
    except (ValueError, OverflowError, OSError):
        return "asked to wait for years"
    day = "" if at.date() == datetime.now().astimezone().date() else f"{at:%Y-%m-%d} "
    return f"asked to wait until {day}{at:%H:%M}"


def _read(file: Path | None) -> Hold | None:
    """What stands in the file; None where it is absent or damaged: nobody was told anything."""
    try:
        row = json.loads(file.read_bytes()) if file else {}
        hold = Hold(str(row["host"]), float(row["not_before"]), float(row["told"]))
        return hold if math.isfinite(hold.until) and math.isfinite(hold.told) else None
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _write(file: Path, hold: Hold) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.{os.getpid()}.{id(hold)}")
    try:
        part.write_text(json.dumps({"host": hold.host, "not_before": hold.until, "told": hold.told}), encoding="utf-8")
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)

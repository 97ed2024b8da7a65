"""Agents on one key wait together: after "too many requests", all of them hold back, whichever daemon was told."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import random
import time
from contextlib import suppress
from pathlib import Path

from dialogd.errors import BackendError

PAUSE = 2.0  # seconds to hold back where the service names no time
LONGEST = 600.0  # seconds; a service, a clock or a damaged file may ask for more
STAGGER = 0.25  # seconds at most, so that those who waited together do not knock together


class Limiter:
    """Remembers until when nobody may use the key `key` of the service at `url`.

    With `state`, an agent's own folder, it is remembered in a file in the folder beside it, where the daemons of the
    other agents look too; without, in this process. The file names neither service nor key.
    """

    def __init__(self, url: str, key: str, state: Path | None = None) -> None:
        self.pause = PAUSE
        self.stagger = STAGGER
        self.file: Path | None = None
        self._until = 0.0
        if state is not None:
            name = hashlib.sha256(f"{url}\n{key}".encode()).hexdigest()[:32]
            self.file = state.parent / "limits" / f"{name}.json"

    @property
    def left(self) -> float:
        """Seconds until the key may be used, 0 when it may be used now."""
        now = time.time()
        until = max(self._until, self._read())
        return until - now if now < until <= now + LONGEST else 0.0

    async def ready(self) -> None:
        """Wait until the key may be used; the caller's deadline stands above it."""
        while True:
            left = self.left
            if left <= 0:
                return
            await asyncio.sleep(left + random.uniform(0.0, self.stagger))

    def hold(self, seconds: float | None = None) -> None:
        """Nobody is to use the key for so many seconds; a longer wait that somebody else was told stays."""
        wait = min(self.pause if seconds is None else seconds, LONGEST)
        self._until = time.time() + max(wait, self.left, 0.0)
        if self.file is not None:
            with suppress(OSError):  # what cannot be shared still holds here
                self._write(self.file)

    def heed(self, error: BackendError) -> None:
        """Hold back after a service said that it is asked too often or is overloaded."""
        if error.kind == "busy":
            self.hold(error.retry_after)

    def _read(self) -> float:
        if self.file is None:
            return 0.0
        try:
            until = json.loads(self.file.read_bytes())["not_before"]
            return float(until) if math.isfinite(until) else 0.0
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return 0.0  # absent or damaged: nobody was told anything

    def _write(self, file: Path) -> None:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.{os.getpid()}.{id(self)}")
        try:
            part.write_text(json.dumps({"not_before": self._until}), encoding="utf-8")
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)

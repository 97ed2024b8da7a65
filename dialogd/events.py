"""What happens, as it happens: events for `/events`, the log and whoever else listens. Nothing is decided here."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

BACKLOG = 512  # events kept for clients that reconnect
QUEUE = 256  # events a slow client may lag behind before it is let go
CLIENTS = 32


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `kind`: state, turn, note, text, ready, error, bye, reset. `id` is `<epoch>-<number>`."""

    id: str
    kind: str
    data: dict[str, Any]


class Hub:
    """Hands every event to every listener. Ids carry the daemon's epoch: old ones are not taken for new."""

    def __init__(self, log: Callable[[str, dict[str, Any]], None] | None = None) -> None:
        self.epoch = secrets.token_hex(4)
        self._count = 0
        self._recent: deque[Event] = deque(maxlen=BACKLOG)
        self._queues: set[asyncio.Queue[Event | None]] = set()
        self._log = log
        self._closed = False

    @property
    def clients(self) -> int:
        """How many listen now."""
        return len(self._queues)

    def publish(self, kind: str, **data: Any) -> None:
        """Tell everybody; a client that lags too far behind is let go and may reconnect."""
        self._count += 1
        event = Event(f"{self.epoch}-{self._count}", kind, data)
        if self._log is not None:
            self._log(kind, data)
        self._recent.append(event)
        for queue in list(self._queues):
            try:
                queue.put_nowait(event)
            except asyncio.QueueFull:
                self._queues.discard(queue)
                self._end(queue)

    async def listen(self, last_id: str = "") -> AsyncIterator[Event]:
        """Events from now on, or all since `last_id`; begins with `reset` when that is not known any more."""
        if self._closed:
            return
        queue: asyncio.Queue[Event | None] = asyncio.Queue(QUEUE)
        missed = self._since(last_id)
        self._queues.add(queue)
        try:
            if last_id and missed is None:
                yield Event(f"{self.epoch}-{self._count}", "reset", {})
            for event in missed or ():
                yield event
            while (item := await queue.get()) is not None:
                yield item
            yield Event(f"{self.epoch}-{self._count}", "bye", {})
        finally:
            self._queues.discard(queue)

    def _since(self, last_id: str) -> list[Event] | None:
        epoch, _, number = last_id.partition("-")
        if epoch != self.epoch or not number.isdigit():
            return None
        missed = [e for e in self._recent if int(e.id.partition("-")[2]) > int(number)]
        return missed if len(missed) == self._count - int(number) else None

    async def close(self) -> None:
        """End every stream; used when the daemon goes."""
        self._closed = True
        for queue in list(self._queues):
            self._end(queue)

    @staticmethod
    def _end(queue: asyncio.Queue[Event | None]) -> None:
        while queue.full():
            queue.get_nowait()
        queue.put_nowait(None)

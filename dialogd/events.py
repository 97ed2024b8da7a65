"""What happens, as it happens: events for `/events`, the log and whoever else listens. Nothing is decided here."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from dialogd.errors import NotRunning
from dialogd.protocol.model import Entry
from dialogd.protocol.redact import redact

BACKLOG = 512  # events kept for clients that reconnect
LAG = 256  # events a client may lag behind for as long as it likes; a burst may be longer
LAG_SECONDS = 2.0  # after which a client that lags further behind is let go
CLIENTS = 32


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `kind`: state, turn, note, text, ready, error, bye, reset … `id` is `<epoch>-<number>`."""

    id: str
    kind: str
    data: dict[str, Any]


class Listener:
    """One client: iterate over what it is told. It knows everything up to the event `since`."""

    def __init__(self, since: str) -> None:
        self.since = since
        self._waiting: deque[tuple[float, Event]] = deque()
        self._news = asyncio.Event()
        self._is_over = False

    def tell(self, event: Event) -> None:
        """Put an event into its queue."""
        self._waiting.append((time.monotonic(), event))
        self._news.set()

    def end(self) -> None:
        """End the stream once the queue is empty."""
        self._is_over = True
        self._news.set()

    def drop(self) -> None:
        """End the stream at once. No `bye`: the client reconnects, and hears what it missed from where it stopped."""
        self._waiting.clear()
        self.end()

    def lags(self, seconds: float) -> bool:
        """True when it is far behind, and has not read for so long."""
        return len(self._waiting) > LAG and time.monotonic() - self._waiting[0][0] > seconds

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            while self._waiting:
                yield self._waiting.popleft()[1]
            if self._is_over:
                return
            self._news.clear()
            await self._news.wait()


class Hub:
    """Hands every event to every listener. Ids carry the daemon's epoch: old ones are not taken for new."""

    def __init__(
        self,
        log: Callable[[str, dict[str, Any]], None] | None = None,
        lag_seconds: float = LAG_SECONDS,
        secrets: Sequence[str] = (),
    ) -> None:
        self.epoch = token_hex(4)
        self._secrets = secrets
        self._count = 0
        self._recent: deque[Event] = deque(maxlen=BACKLOG)
        self._listeners: set[Listener] = set()
        self._log = log
        self._lag_seconds = lag_seconds
        self._closed = False

    @property
    def clients(self) -> int:
        """How many listen now."""
        return len(self._listeners)

    def publish(self, kind: str, **data: Any) -> None:
        """Tell everybody, without secrets; a client that lags too far behind is let go and may reconnect."""
        self._count += 1
        data = {key: self._safe(value) for key, value in data.items()}
        event = Event(self._last_id, kind, data)
        if self._log is not None:
            self._log(kind, data)
        self._recent.append(event)
        for listener in list(self._listeners):
            listener.tell(event)
            if listener.lags(self._lag_seconds):
                self._listeners.discard(listener)
                listener.drop()

    def _safe(self, value: Any) -> Any:
        if isinstance(value, str):
            return redact(value, self._secrets)[0]
        return [self._safe(item) for item in value] if isinstance(value, list) else value

    def publish_entry(self, entry: Entry) -> None:
        """Tell everybody of a turn or note that came into the file."""
        kind = "turn" if entry.is_turn else "note"
        marks = [str(mark) for mark in entry.marks]
        self.publish(kind, number=entry.number, id=entry.id, by=entry.by, name=entry.name, text=entry.body, marks=marks)

    @contextmanager
    def join(self, last_id: str = "") -> Iterator[Listener]:
        """A listener from now on, told all since `last_id` first, or `reset` when that is not known any more.

        Raises `NotRunning` when too many listen.
        """
        if len(self._listeners) >= CLIENTS:
            raise NotRunning(f"{CLIENTS} clients listen already", fix="close one of them")
        missed = self._since(last_id)
        listener = Listener(self._last_id if missed is None else last_id)
        if last_id and missed is None:
            listener.tell(Event(self._last_id, "reset", {}))
        for event in missed or ():
            listener.tell(event)
        if self._closed:
            self._say_bye(listener)
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    def _since(self, last_id: str) -> list[Event] | None:
        epoch, _, number = last_id.partition("-")
        if epoch != self.epoch or not (number.isascii() and number.isdigit()):
            return None
        missed = [e for e in self._recent if int(e.id.partition("-")[2]) > int(number)]
        return missed if len(missed) == self._count - int(number) else None

    @property
    def _last_id(self) -> str:
        return f"{self.epoch}-{self._count}"

    async def close(self) -> None:
        """End every stream; used when the daemon goes."""
        self._closed = True
        for listener in list(self._listeners):
            self._say_bye(listener)

    def _say_bye(self, listener: Listener) -> None:
        listener.tell(Event(self._last_id, "bye", {}))
        listener.end()

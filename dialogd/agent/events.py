"""What an agent does at this moment, and what it has written of its turn so far; for those who come in between."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from secrets import token_hex
from typing import Any, Literal

from dialogd.errors import NotRunning
from dialogd.protocol.text import redact

State = Literal["idle", "thinking", "executing", "failed", "stopped"]

KEPT = 256 * 1024  # characters of a turn in the making that are kept; of more, the newest


@dataclass(frozen=True, slots=True)
class Activity:
    """What an agent does. `since` is monotonic: while it is at a turn, when it began with that."""

    state: str
    turn: int | None = None
    reason: str = ""
    is_relayed: bool = False
    since: float = field(default=0.0, compare=False)

    @property
    def is_at_it(self) -> bool:
        """True while it works on a turn."""
        return self.state in ("thinking", "executing")

    def data(self, who: str) -> dict[str, Any]:
        """As the data of an event; seconds as of now."""
        seconds = round(max(time.monotonic() - self.since, 0.0), 1)
        return {"agent": who, "state": self.state, "turn": self.turn, "seconds": seconds, "reason": self.reason}


class Writing:
    """The text of one turn in the making: its newest part, and how long it is."""

    def __init__(self, turn: int, *, is_relayed: bool) -> None:
        self.turn = turn
        self.is_relayed = is_relayed
        self.chars = 0
        self._parts: deque[str] = deque()
        self._kept = 0

    def add(self, text: str) -> None:
        """Take a piece."""
        self.chars += len(text)
        self._kept += len(text)
        self._parts.append(text)
        while self._kept > KEPT and len(self._parts) > 1:
            self._kept -= len(self._parts.popleft())

    @property
    def text(self) -> str:
        """What is kept of it."""
        return "".join(self._parts)

    def data(self, who: str, text: str, *, reset: bool) -> dict[str, Any]:
        """A piece as the data of an event."""
        return {"turn": self.turn, "by": who, "text": text, "done_chars": self.chars, "reset": reset}


# -- What happens, as it happens --------------------------------------------------------------------------------------

VERSION = 1
BACKLOG = 512  # events kept for clients that reconnect
LAG = 4096  # events that a client may lag behind; one that reads no more is let go
CLIENTS = 100

Fields = Mapping[str, Any]


class Event:
    """One event; `id` is `<epoch>-<number>`, "" for a momentary one. `is_relayed`: another daemon has said it.

    `said` are its fields, and `more` gives those that take work; it works on values that do not change, so that the
    event says what was true when it happened. Nothing of both is worked out before somebody looks, as most events
    are never looked at. `safe` takes secrets out.
    """

    def __init__(
        self,
        id_: str,
        kind: str,
        said: Fields,
        more: Callable[[], Fields] | None = None,
        *,
        is_relayed: bool = False,
        safe: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self.id = id_
        self.kind = kind
        self.is_relayed = is_relayed
        self._at = time.time()
        self._said = said
        self._more = more
        self._safe = safe

    @property
    def said(self) -> dict[str, Any]:
        """The fields that were there from the beginning."""
        return {key: self._safe(value) for key, value in self._said.items()}

    @cached_property
    def data(self) -> dict[str, Any]:
        """All fields, with those that every event has: the version, and when this was."""
        at = datetime.fromtimestamp(self._at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        more, self._more = self._more() if self._more is not None else {}, None
        return {"v": VERSION, "at": at, **self.said, **{key: self._safe(value) for key, value in more.items()}}

    @cached_property
    def json(self) -> str:
        """The data as JSON on one line; written once, however many listen."""
        return json.dumps(self.data, ensure_ascii=False).encode("utf-8", "replace").decode()


class Listener:
    """One client: iterate over what it is told. It knows everything up to the event `since`."""

    def __init__(self, since: str, *, hears_all: bool = False) -> None:
        self.since = since
        self.hears_all = hears_all
        self._waiting: deque[Event] = deque()
        self._news = asyncio.Event()
        self._is_over = False

    def tell(self, event: Event) -> bool:
        """Put an event into its queue, unless the stream ends; False where it lags too far behind.

        Then its stream ends at once, without a `bye`: it reconnects, and hears what it missed from where it stopped.
        """
        if not self._is_over and (self.hears_all or not event.is_relayed):
            self._waiting.append(event)
            self._news.set()
        if len(self._waiting) > LAG:
            self._waiting.clear()
            self.end()
            return False
        return True

    def end(self) -> None:
        """End the stream once the queue is empty."""
        self._is_over = True
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            if self._is_over:
                return
            self._news.clear()
            await self._news.wait()


class Hub:
    """Hands every event to every listener. Ids carry the daemon's epoch: old ones are not taken for new."""

    def __init__(self, log: Callable[[Event], None] | None = None, secrets: Sequence[str] = ()) -> None:
        self.epoch = token_hex(4)
        self._secrets = secrets
        self._count = 0
        self._recent: deque[Event] = deque(maxlen=BACKLOG)
        self._listeners: set[Listener] = set()
        self._log = log
        self.is_closed = False  # the daemon goes
        self._standing: dict[str, Activity] = {}
        self._writing: dict[str, Writing] = {}
        self._audience_changed: list[Callable[[], None]] = []

    @property
    def clients(self) -> int:
        """How many listen now."""
        return len(self._listeners)

    @property
    def hears_all(self) -> bool:
        """True while somebody listens to all daemons of the dialog."""
        return any(listener.hears_all for listener in self._listeners)

    def follow_audience(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a listener comes or goes, and when the daemon goes."""
        self._audience_changed.append(changed)

    def _tell_audience(self) -> None:
        for changed in self._audience_changed:
            changed()

    # -- telling --------------------------------------------------------------------------------------------------

    def publish(self, kind: str, more: Callable[[], Fields] | None = None, /, **data: Any) -> None:
        """Tell everybody, without secrets; a client that lags too far behind is let go and may reconnect.

        What `more` gives belongs to the data too, and is worked out when somebody looks.
        """
        self._count += 1
        event = Event(self._last_id, kind, data, more, safe=self._safe)
        self._recent.append(event)
        self._tell(event)

    def agent(
        self,
        who: str,
        state: str,
        *,
        turn: int | None = None,
        reason: str = "",
        seconds: float | None = None,
        is_relayed: bool = False,
    ) -> None:
        """Tell what an agent does now, when that is news. `seconds` is for how long, where that is known better."""
        before, since = self._standing.get(who), time.monotonic() - (seconds or 0.0)
        now = Activity(state, turn, self._safe(reason), is_relayed, since)
        if before == now:
            return
        if seconds is None and before is not None and now.is_at_it and before.is_at_it and before.turn == turn:
            now = replace(now, since=before.since)
        self._standing[who] = now
        if not now.is_at_it:
            self._writing.pop(who, None)
        self._tell(self._momentary("agent", now.data(who), is_relayed=is_relayed))

    def state_of(self, who: str) -> Activity | None:
        """What an agent was last said to do."""
        return self._standing.get(who)

    def text(self, who: str, turn: int, text: str, *, reset: bool, is_relayed: bool = False) -> None:
        """Tell a piece of the turn that an agent writes; `reset` begins it anew."""
        writing = self._writing.get(who)
        if writing is None or reset or writing.turn != turn:
            writing, reset = Writing(turn, is_relayed=is_relayed), True
            self._writing[who] = writing
        writing.add(text)
        self._tell(self._momentary("text", writing.data(who, text, reset=reset), is_relayed=is_relayed))

    def written(self, who: str) -> tuple[int, str, int] | None:
        """What is kept of the turn that an agent writes: its number, the text without secrets, the length of all."""
        writing = self._writing.get(who)
        return None if writing is None else (writing.turn, self._safe(writing.text), writing.chars)

    def relay(self, kind: str, data: Mapping[str, Any]) -> None:
        """Tell those who hear all what another daemon has said."""
        self._tell(self._momentary(kind, data, is_relayed=True))

    def forget_relayed(self, who: str = "") -> None:
        """Nobody listens to other daemons any more, or not to that of `who`: what is known of it will be outdated."""
        for other in [name for name, at in self._standing.items() if at.is_relayed and who in ("", name)]:
            del self._standing[other]
            self._writing.pop(other, None)

    def _momentary(self, kind: str, data: Fields, *, is_relayed: bool) -> Event:
        """An event that nobody is told again."""
        return Event("", kind, data, is_relayed=is_relayed, safe=self._safe)

    def _tell(self, event: Event) -> None:
        if self._log is not None and not event.is_relayed:
            self._log(event)
        self._listeners = {listener for listener in self._listeners if listener.tell(event)}

    def _safe(self, value: Any) -> Any:
        if isinstance(value, str):
            return redact(value, self._secrets)[0]
        if isinstance(value, dict):
            return {key: self._safe(item) for key, item in value.items()}
        return [self._safe(item) for item in value] if isinstance(value, list) else value

    # -- listening ------------------------------------------------------------------------------------------------

    @contextmanager
    def join(self, last_id: str = "", *, hears_all: bool = False) -> Iterator[Listener]:
        """A listener from now on, told all since `last_id` first, or `reset` when that is not known any more.

        Then it is told what each agent does and has written so far. Raises `NotRunning` when too many listen.
        """
        if len(self._listeners) >= CLIENTS:
            raise NotRunning(f"{CLIENTS} clients listen already", fix="close one of them")
        missed = self._since(last_id)
        listener = Listener(self._last_id if missed is None else last_id, hears_all=hears_all)
        if last_id and missed is None:
            listener.tell(Event(self._last_id, "reset", {}))
        for event in (*(missed or ()), *self._as_it_stands()):
            listener.tell(event)
        if self.is_closed:
            self._say_bye(listener)
        self._listeners.add(listener)
        self._tell_audience()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            self._tell_audience()

    def _as_it_stands(self) -> Iterator[Event]:
        for who, standing in self._standing.items():
            yield self._momentary("agent", standing.data(who), is_relayed=standing.is_relayed)
        for who, writing in self._writing.items():
            yield self._momentary("text", writing.data(who, writing.text, reset=True), is_relayed=writing.is_relayed)

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
        self.is_closed = True
        self._tell_audience()
        for listener in list(self._listeners):
            self._say_bye(listener)

    def _say_bye(self, listener: Listener) -> None:
        listener.tell(Event(self._last_id, "bye", {}))
        listener.end()

"""What a daemon says: its events as they happen, for those who come in between too, its log and its counters."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

from dialogd.agent.call import Bill
from dialogd.errors import NotRunning
from dialogd.protocol.decide import Action, Reply, Stop, Wait
from dialogd.protocol.lifecycle import budget
from dialogd.protocol.model import Condition, Entry, turn_number
from dialogd.protocol.state import Dialog, Spent, account, payer, total
from dialogd.protocol.text import redact
from dialogd.store.disk import log_at
from dialogd.views.standing import Standing, entry_fields, standing

State = Literal["idle", "thinking", "executing", "failed", "stopped"]

KEPT = 256 * 1024  # characters of a turn in the making that are kept; of more, the newest
PARTS = 1_000  # pieces of it that are put together at once: one by one they would cost the square of a long turn


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


@dataclass(slots=True)
class Writing:
    """The text of one turn in the making: its newest part, and how long all of it is."""

    turn: int
    is_relayed: bool
    chars: int = 0
    _parts: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Take a piece."""
        self.chars += len(text)
        self._parts.append(text)
        if len(self._parts) > PARTS:
            self._parts = [self.text]

    @property
    def text(self) -> str:
        """What is kept of it."""
        return "".join(self._parts)[-KEPT:]

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
        self._waiting: asyncio.Queue[Event | None] = asyncio.Queue()  # None: the stream ends
        self._is_over = False

    def tell(self, event: Event) -> bool:
        """Put an event into its queue, unless the stream ends; False where it lags too far behind.

        Then its stream ends at once, without a `bye`: it reconnects, and hears what it missed from where it stopped.
        """
        if not self._is_over and (self.hears_all or not event.is_relayed):
            self._waiting.put_nowait(event)
        if self._waiting.qsize() > LAG:
            self._waiting = asyncio.Queue()
            self.end()
            return False
        return True

    def end(self) -> None:
        """End the stream once the queue is empty."""
        self._is_over = True
        self._waiting.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self._waiting.get()) is not None:
            yield event


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
        self.standing: dict[str, Activity] = {}  # what each agent was last said to do
        self._writing: dict[str, Writing] = {}
        # Called whenever a listener comes or goes, and when the daemon goes.
        self.audience_changed: Callable[[], None] = lambda: None

    @property
    def clients(self) -> int:
        """How many listen now."""
        return len(self._listeners)

    @property
    def hears_all(self) -> bool:
        """True while somebody listens to all daemons of the dialog."""
        return any(listener.hears_all for listener in self._listeners)

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
        before, since = self.standing.get(who), time.monotonic() - (seconds or 0.0)
        now = Activity(state, turn, self._safe(reason), is_relayed, since)
        if before == now:
            return
        if seconds is None and before is not None and now.is_at_it and before.is_at_it and before.turn == turn:
            now = replace(now, since=before.since)
        self.standing[who] = now
        if not now.is_at_it:
            self._writing.pop(who, None)
        self._tell(self._momentary("agent", now.data(who), is_relayed=is_relayed))

    def text(self, who: str, turn: int, text: str, *, reset: bool, is_relayed: bool = False) -> None:
        """Tell a piece of the turn that an agent writes; `reset` begins it anew."""
        writing = self._writing.get(who)
        if writing is None or reset or writing.turn != turn:
            writing, reset = Writing(turn, is_relayed), True
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
        for other in [name for name, at in self.standing.items() if at.is_relayed and who in ("", name)]:
            del self.standing[other]
            self._writing.pop(other, None)

    def _momentary(self, kind: str, data: Fields, *, is_relayed: bool) -> Event:
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
        self.audience_changed()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            self.audience_changed()

    def _as_it_stands(self) -> Iterator[Event]:
        for who, activity in self.standing.items():
            yield self._momentary("agent", activity.data(who), is_relayed=activity.is_relayed)
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
        self.audience_changed()
        for listener in list(self._listeners):
            self._say_bye(listener)

    def _say_bye(self, listener: Listener) -> None:
        listener.tell(Event(self._last_id, "bye", {}))
        listener.end()


@dataclass(slots=True)
class Counters:
    """What this daemon has done; `thinking` in seconds, `bill` of all its calls.

    `refused` counts deliveries to a live seat that were refused, `ends` calls by how they ended (written, interrupted,
    late, failed), `errors` failures by their kind.
    """

    thinking: float = 0.0
    bill: Bill = field(default_factory=Bill)
    secrets: int = 0
    refused: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def failed(self, kind: str) -> None:
        """Count a call that failed for good."""
        self.ends["failed"] += 1
        self.errors[kind] += 1


# -- What a daemon says -----------------------------------------------------------------------------------------------

LOG_SIZE = 1_000_000  # bytes per file
LOG_FILES = 3

log = logging.getLogger("dialogd")


class _Line(logging.Formatter):
    """Each record as one line, for people or as JSON, without secrets."""

    def __init__(self, me: str, *, as_json: bool, secrets: Sequence[str]) -> None:
        super().__init__()
        self._me, self._make, self._secrets = me, self._json if as_json else self._plain, secrets

    def format(self, record: logging.LogRecord) -> str:
        """The line; secrets are taken out last, for whatever failed may quote one, tracebacks included."""
        line: str | None = getattr(record, "line", None)
        if line is None:  # made once, for both handlers
            line = record.line = redact(self._make(record), self._secrets)[0]
        return line

    def _json(self, record: logging.LogRecord) -> str:
        event: Event | None = getattr(record, "event", None)
        fields = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **({"event": event.kind, **event.data} if event else getattr(record, "fields", {})),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)

    def _plain(self, record: logging.LogRecord) -> str:
        """`20:15:02 A  replying`; control characters of foreign text do not reach the terminal."""
        text = record.getMessage()
        if not text.isprintable():
            text = "".join(c if c.isprintable() else "\ufffd" for c in text)
        line = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {self._me}  {text}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def set_up_logging(me: str, file: Path, *, json_lines: bool, debug: bool, secrets: Sequence[str] = ()) -> None:
    """Log to stderr and to `file`, which is rotated at 1 MB and kept three times; without `secrets`.

    Raises `UnsafeFile` for a link, a pipe or another user's file.
    """
    log_at(file).close()
    logging.raiseExceptions = False  # a full disk or a closed terminal ends no turn
    to_file = RotatingFileHandler(file, maxBytes=LOG_SIZE, backupCount=LOG_FILES - 1, encoding="utf-8")
    root = logging.getLogger()
    root.handlers[:] = [logging.StreamHandler(), to_file]
    for handler in root.handlers:
        handler.setFormatter(_Line(me, as_json=json_lines, secrets=secrets))
    root.setLevel(logging.WARNING)
    log.setLevel(logging.DEBUG if debug else logging.INFO)


def say(message: str, **fields: Any) -> None:
    """One line, for people and, with its fields, for programs."""
    log.info(message, extra={"fields": fields})


def say_event(event: Event) -> None:
    """The log line of an event, if any."""
    make = _LINES.get(event.kind)
    if make is not None and (line := make(event.said)):
        level = logging.WARNING if event.kind in ("error", "warning") else logging.INFO
        if log.isEnabledFor(level):  # by hand: who says it need not be looked for
            log.handle(log.makeRecord(log.name, level, "", 0, line, (), None, extra={"event": event}))
    elif log.isEnabledFor(logging.DEBUG):
        log.debug("event %s %s", event.kind, event.data)


def _state(data: dict[str, Any]) -> str:
    state, reason = data.get("state"), data.get("reason", "")
    if state == "thinking":
        return f"replying: turn {data.get('turn', 0) + 1}"
    if state == "ended":
        return f"ended: {reason}"
    if state == "interrupted":
        return "interrupted: the turn passed while the reply was being written"
    return str(reason) if str(reason).startswith("waiting") else f"waiting: {reason}"


def _note(data: dict[str, Any]) -> str:
    marks = " ".join(data.get("marks", ()))
    return f"note by {data['by']}: {marks or data.get('text', '')[:80]}"


_LINES: dict[str, Callable[[dict[str, Any]], str]] = {
    "state": _state,
    "note": _note,
    "appended": lambda d: f"appended turn {d['number']} in {d['ms'] / 1000:.1f} s",
    "dropped": lambda d: d["text"],
    "warning": lambda d: f"warning: {d['text']}",
    "draft": lambda d: f"kept a reply as a draft: {d['why']}",
    "call": lambda d: f"may it call {d['tool']} {d['arguments']}? `dialogd approve {d['call']}`",
    "judged": lambda d: f"the call of {d['tool']} was {d['answer']}",
    "error": lambda d: f"failed: {d['message']}; {d['fix']}",
    "ready": lambda d: f"listening on port {d['port']}, {d['id']} on {d['file']}, backend {d['backend']}",
}


# -- What a daemon says of its dialog, each thing once ----------------------------------------------------------------

_ODD = (Condition.EDITED, Condition.DAMAGED)


class Reporter:
    """Publishes what changed since it last spoke, for agent `me`."""

    def __init__(self, hub: Hub, me: str) -> None:
        self.hub = hub
        self.me = me
        self._reported: set[str] = set()
        self._said: tuple[str, ...] = ()

    def dialog(self, dialog: Dialog, *, is_read_on: bool) -> None:
        """Warn of header values that mean nothing, of entries changed after the fact, of a budget that goes down."""
        if (spending := budget(dialog.state)) is not None:
            self._warn(spending.text, key=f"{dialog.id} {spending.text.partition(':')[0]}")
        if is_read_on:
            return
        odd = [f"the entry in line {e.line} is {e.condition.value}" for e in dialog.entries if e.condition in _ODD]
        for text in (*dialog.header.warnings, *odd):
            self._warn(text, key=text)

    def _warn(self, text: str, *, key: str) -> None:
        if key not in self._reported:
            self._reported.add(key)
            self.hub.publish("warning", text=text)

    def entry(self, entry: Entry, dialog: Dialog) -> None:
        """Publish a turn or note that came into the file, then its marks, then what its agent gives account of."""
        if entry.is_turn:
            self.hub.publish("turn", partial(_told, entry))
        else:
            self.hub.publish("note", **_told(entry))
        turn = turn_number(entry.id)
        for mark in entry.marks:
            what = {"name": mark.name, "ref": mark.ref, "value": mark.value}
            self.hub.publish("mark", entry=entry.id, turn=turn, by=entry.by, **what)
        if (agent := payer(dialog.header, entry)) is not None:
            self.hub.publish("cost", partial(_cost, entry, dialog.state.spent), agent=agent, turn=turn)

    def action(self, action: Action, dialog: Dialog | None) -> None:
        """Publish a state once, when it changes."""
        match action:
            case Reply() | Wait("pace" | "late" | "interrupted"):
                self._said = ()  # it has been at something else since
                return
            case Wait(status, reason):
                now: tuple[str, ...] = (status, reason)
            case Stop(outcome):
                now = ("ended", f"{outcome.name} {outcome.reason}".strip(), outcome.entry)
            case _:
                return
        if now == self._said:
            return
        self._said = now
        self.hub.publish("state", partial(state_fields, dialog, thinking=False), state=now[0], reason=now[1])
        # It is idle, or failed until it is retried.
        before = self.hub.standing.get(self.me)
        if dialog is None or dialog.state.outcome is not None or self.me not in dialog.state.debts.failed:
            self.hub.agent(self.me, "idle", reason=now[1])
        elif before is None or before.state != "failed":
            self.hub.agent(self.me, "failed", reason=now[1])


_IN_EVENTS = ("turn", "turn_of", "phase", "lifecycle", "outcome", "signals", "convergence")


def state_fields(dialog: Dialog | None, *, thinking: bool) -> dict[str, Any]:
    """How the dialog stands, as every `state` event says it; `thinking`: this agent is at a turn."""
    return Standing(**standing(dialog, thinking=thinking)).model_dump(include=set(_IN_EVENTS))


def _told(entry: Entry) -> dict[str, Any]:
    """A turn or a note as its event says it."""
    return {name: value for name, value in entry_fields(entry).items() if name not in ("condition", "struck")}


def _cost(entry: Entry, by_now: Mapping[str, Spent]) -> dict[str, Any]:
    """What the entry's frame says was spent, null where it says nothing; and what the whole dialog has cost by now."""
    frame, all_ = entry.frame, total(by_now)
    assert frame is not None  # else nobody gives account
    spent = account(frame.tokens_in, frame.tokens_out, frame.usd)
    return {
        "in": None if spent.uncounted else spent.tokens_in,
        "out": None if spent.uncounted else spent.tokens_out,
        "usd": None if spent.unknown else spent.usd,
        "exact": spent == Spent(1, spent.micros, spent.tokens_in, spent.tokens_out)
        and not any(text.startswith("~") for text in (frame.tokens_in, frame.tokens_out)),
        "total_usd": None if all_.unknown == all_.entries else all_.usd,
        "total_tokens": None if all_.uncounted == all_.entries else all_.tokens,
        "ms": int(frame.ms) if frame.ms.isascii() and frame.ms.isdigit() else None,
    }

"""A daemon's events, log and counters."""

from __future__ import annotations

import json
import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from dialogd.agent.call import Bill
from dialogd.agent.events import Event, Hub
from dialogd.protocol.decide import Action, Reply, Stop, Wait
from dialogd.protocol.model import Condition, Entry
from dialogd.protocol.signals import budget
from dialogd.protocol.state import Dialog, Spent, account, payer, total
from dialogd.protocol.text import redact
from dialogd.store.disk import log_at
from dialogd.views.standing import Standing, entry_fields, standing

BUCKETS = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)  # seconds of a turn


@dataclass(slots=True)
class Durations:
    """How long something took, counted in buckets: as many as `BUCKETS`, and one for all that took longer."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    sum: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds


@dataclass(slots=True)
class Counters:
    """What this daemon has done; `thinking` in seconds, `bill` of all its calls, `unpriced` of unknown cost.

    `refused` counts deliveries to a live seat that were refused, `ends` calls by how they ended (written, interrupted,
    late, failed), `errors` failures by their kind.
    """

    turns: int = 0
    thinking: float = 0.0
    bill: Bill = field(default_factory=Bill)
    secrets: int = 0
    refused: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    durations: Durations = field(default_factory=Durations)

    def wrote(self, seconds: float) -> None:
        """Count a turn that stands in the file; its call took so long."""
        self.turns += 1
        self.ends["written"] += 1
        self.durations.add(seconds)

    def failed(self, kind: str) -> None:
        """Count a call that failed for good."""
        self.ends["failed"] += 1
        self.errors[kind] += 1

    def pay(self, bill: Bill) -> None:
        """Add what calls came to."""
        self.bill = self.bill.plus(bill)

    @property
    def unpriced(self) -> int:
        """Calls whose price nobody knows."""
        return self.bill.calls - self.bill.usd_known


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
        spending = budget(dialog.state)
        if spending is not None:
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
        stands_in = entry.id.partition(".")[0]
        turn = int(stands_in) if stands_in.isdigit() else entry.number
        for mark in entry.marks:
            what = {"name": mark.name, "ref": mark.ref, "value": mark.value}
            self.hub.publish("mark", entry=entry.id, turn=turn, by=entry.by, **what)
        if (agent := payer(dialog.header, entry)) is not None:
            self.hub.publish("cost", partial(_cost, entry, dialog.state.spent), agent=agent, turn=turn)

    def action(self, action: Action, dialog: Dialog | None) -> None:
        """Publish a state once, when it changes."""
        match action:
            case Wait(status, reason, _):
                now: tuple[str, ...] = (status, reason.split(";")[0] if status == "pace" else reason)
            case Stop(outcome):
                now = ("ended", f"{outcome.name} {outcome.reason}".strip(), outcome.entry)
            case Reply():
                self._said = ()  # it has been at something else since
                return
            case _:
                return
        if now[0] in ("pace", "late", "interrupted"):
            self._said = ()
            return
        if now == self._said:
            return
        self._said = now
        self.hub.publish("state", partial(state_fields, dialog, thinking=False), state=now[0], reason=now[1])
        self._waits(now[1], dialog)

    def _waits(self, reason: str, dialog: Dialog | None) -> None:
        """The agent's state while it waits: idle, or failed until it is retried."""
        before = self.hub.state_of(self.me)
        if dialog is None or dialog.state.outcome is not None or self.me not in dialog.state.debts.failed:
            self.hub.agent(self.me, "idle", reason=reason)
        elif before is None or before.state != "failed":
            self.hub.agent(self.me, "failed", reason=reason)


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

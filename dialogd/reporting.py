"""What a daemon says of its dialog, each thing once: how it waits, what is odd in the file, how the budget stands."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from dialogd.events import Hub
from dialogd.protocol import lifecycle
from dialogd.protocol.decide import Action, Reply, Stop, Wait
from dialogd.protocol.model import USER, Condition, Entry
from dialogd.protocol.money import payer, total
from dialogd.protocol.signals import budget, signals
from dialogd.protocol.spent import Spent, account
from dialogd.protocol.state import Dialog

_ODD = (Condition.EDITED, Condition.DAMAGED)


class Reporter:
    """Publishes what changed since it last spoke, for agent `me`."""

    def __init__(self, hub: Hub, me: str) -> None:
        self.hub = hub
        self.me = me
        self._full_reads = 0
        self._reported: set[str] = set()
        self._said: tuple[str, ...] = ()

    def dialog(self, dialog: Dialog, full_reads: int) -> None:
        """Warn of header values that mean nothing, of entries changed after the fact, of a budget that goes down."""
        spending = budget(dialog.state)
        if spending is not None:
            self._warn(spending.text, key=f"{dialog.id} {spending.text.partition(':')[0]}")
        if full_reads == self._full_reads:
            return
        self._full_reads = full_reads
        odd = [f"the entry in line {e.line} is {e.condition.value}" for e in dialog.entries if e.condition in _ODD]
        for text in (*dialog.header.warnings, *odd):
            self._warn(text, key=text)

    def _warn(self, text: str, *, key: str) -> None:
        if key not in self._reported:
            self._reported.add(key)
            self.hub.publish("warning", text=text)

    def entry(self, entry: Entry, dialog: Dialog) -> None:
        """Publish a turn or note that came into the file, then its marks, then what its agent gives account of."""
        marks, named = [str(mark) for mark in entry.marks], None if entry.turn is None else list(entry.turn)
        kind = "turn" if entry.is_turn else "note"
        who = {"by": entry.by, "name": entry.name}
        self.hub.publish(kind, number=entry.number, id=entry.id, **who, text=entry.body, marks=marks, turn=named)
        turn = int(entry.id.partition(".")[0]) if entry.id.partition(".")[0].isdigit() else entry.number
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
        self.hub.publish("state", partial(standing, dialog, thinking=False), state=now[0], reason=now[1])
        self._waits(now[1], dialog)

    def _waits(self, reason: str, dialog: Dialog | None) -> None:
        """What the agent does while it waits: nothing, or it is where it failed until somebody helps it on."""
        before = self.hub.state_of(self.me)
        if dialog is None or dialog.state.outcome is not None or self.me not in dialog.state.failed:
            self.hub.agent(self.me, "idle", reason=reason)
        elif before is None or before.state != "failed":
            self.hub.agent(self.me, "failed", reason=reason)


def standing(dialog: Dialog | None, *, thinking: bool) -> dict[str, Any]:
    """Where the dialog stands, as every `state` event says it; `thinking`: this agent is at a turn."""
    state = dialog.state if dialog is not None else None
    noticed = signals(dialog) if dialog is not None and dialog.state.outcome is None else ()
    return {
        "turn": state.number if state else 0,
        "turn_of": list(state.owing) if state else [],
        "phase": phase(dialog, thinking=thinking),
        "lifecycle": lifecycle.phase(dialog) if dialog is not None else None,
        "outcome": state.outcome.name if state and state.outcome else None,
        "signals": [{"kind": s.kind, "text": s.text, "agents": list(s.agents)} for s in noticed],
        "convergence": lifecycle.assessed(dialog) if dialog is not None else None,
    }


def phase(dialog: Dialog | None, *, thinking: bool) -> str:
    """One word for where the dialog stands: no_dialog, thinking, waiting, paused, waiting_for_user, ended, error."""
    if dialog is None:
        return "no_dialog"
    state = dialog.state
    if state.outcome is not None:
        return "error" if state.outcome.failed else "ended"
    if state.paused:
        return "paused"
    if thinking:
        return "thinking"
    return "waiting_for_user" if state.owing and set(state.owing) <= {USER} else "waiting"


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

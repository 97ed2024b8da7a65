"""What a daemon says of its dialog, each thing once: how it waits, what is odd in the file, how the budget stands."""

from __future__ import annotations

from dialogd.events import Hub
from dialogd.protocol import lifecycle
from dialogd.protocol.decide import Action, Stop, Wait
from dialogd.protocol.model import Condition
from dialogd.protocol.signals import budget, signals
from dialogd.protocol.state import Dialog

_ODD = (Condition.EDITED, Condition.DAMAGED)


class Reporter:
    """Publishes what changed since it last spoke."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
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

    def action(self, action: Action, dialog: Dialog | None) -> None:
        """Publish a state once, when it changes."""
        match action:
            case Wait(status, reason, _):
                now: tuple[str, ...] = (status, reason.split(";")[0] if status in ("pace", "unfinished") else reason)
            case Stop(outcome):
                now = ("ended", f"{outcome.name} {outcome.reason}".strip(), outcome.entry)
            case _:
                return
        if now == self._said or now[0] in ("pace", "late", "interrupted"):
            return
        self._said = now
        noticed = signals(dialog) if dialog is not None else ()
        found = [{"kind": s.kind, "text": s.text, "agents": list(s.agents)} for s in noticed]
        weak = lifecycle.assessed(dialog) if dialog is not None else None
        self.hub.publish("state", state=now[0], reason=now[1], signals=found, convergence=weak)

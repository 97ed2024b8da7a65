"""What an agent does at this moment, and what it has written of its turn so far; for those who come in between."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["idle", "thinking", "executing", "failed", "stopped"]

KEPT = 256 * 1024  # characters of a turn in the making that are kept; of more, the newest


@dataclass(frozen=True, slots=True)
class Standing:
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

    @staticmethod
    def after(
        before: Standing | None, state: str, turn: int | None, reason: str, seconds: float | None, *, is_relayed: bool
    ) -> Standing:
        """What it does now; it has done so for `seconds`, else since now, or since it began with the same turn."""
        now = Standing(state, turn, reason, is_relayed)
        since = time.monotonic() - (seconds or 0.0)
        if seconds is None and before is not None and now.is_at_it and before.is_at_it and before.turn == turn:
            since = before.since
        return Standing(state, turn, reason, is_relayed, since)

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

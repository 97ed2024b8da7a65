"""Ages by this daemon's own monotonic clock: of debts, and since the file last changed."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from dialogd.protocol.decide import UNFINISHED_REST, Clock
from dialogd.protocol.model import Condition
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import in_words


class Seen:
    """What the daemon of agent `me`, at `url`, has seen of the dialog, and when. Pauses do not count."""

    def __init__(self, me: str, pace: float, url: str = "", pause: float = 0.0) -> None:
        self.me = me
        self.pace = pace
        self.url = url
        self.pause = pause
        self.nudged = False
        self.started = False
        self.lain = 0.0
        self._dialog: Dialog | None = None
        self._changed = time.monotonic()
        self._looked = time.monotonic()
        self._spoke, self._said = 0, -math.inf
        self._first: dict[tuple[str, str, str], float] = {}
        self._hurried = False

    def observe(self, dialog: Dialog, file: Path) -> None:
        """Take note of the dialog as it stands now."""
        now = time.monotonic()
        if self._dialog is None:
            with suppress(OSError):
                self.lain = max(0.0, time.time() - file.stat().st_mtime)
            self._changed = now - self.lain
        elif dialog is not self._dialog and dialog.size != self._dialog.size:
            self._changed, self.lain, self._hurried = now, 0.0, False
        spoke = dialog.state.floor.spoke_at.get(self.me, 0)
        if spoke != self._spoke:
            self._spoke, self._said = spoke, self._changed
        if dialog.state.paused:
            passed = now - self._looked
            self._first = {key: first + passed for key, first in self._first.items()}
        open_debts = {debt.timer for debt in dialog.state.debts.open}
        self._first = {key: self._first.get(key, now) for key in open_debts}
        self._dialog, self._looked = dialog, now

    def began_anew(self) -> None:
        """Reset for another dialog in the file."""
        self.nudged = self.started = False
        self._spoke, self._said = 0, -math.inf
        self._first.clear()
        self.lain, self._changed = 0.0, time.monotonic()

    def nudge(self) -> None:
        """Note a notify: unfinished text counts as finished, an old dialog is resumed."""
        self.nudged = self._hurried = True

    def is_typing(self, dialog: Dialog) -> bool:
        """True while the end of `dialog`, as just read, is unfinished text that has not rested long enough."""
        if dialog.last is None or dialog.last.condition is not Condition.UNFINISHED:
            return False
        known = self._dialog is not None and self._dialog.size == dialog.size
        return not known or self.rest < UNFINISHED_REST

    @property
    def rest(self) -> float:
        """Seconds since the file last changed; infinite after a notify."""
        return self._since(self._changed)

    def _since(self, moment: float) -> float:
        return math.inf if self._hurried else time.monotonic() - moment

    def clock(self) -> Clock:
        """What `decide` is told besides the file."""
        now = time.monotonic()
        return Clock(
            at=wall(),
            zone=local,
            nudged=self.nudged,
            started=self.started,
            lain=self.lain,
            rest=self.rest,
            silent=self._since(self._said),
            ages={key: now - first for key, first in self._first.items()},
            pace=self.pace,
            url=self.url,
            pause=self.pause,
        )


def wall() -> str:
    """Wall time for frames: UTC, ISO 8601, seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def here() -> str:
    """Wall time with this machine's offset, as people tell the time of day."""
    return local(datetime.now(UTC)).isoformat(timespec="seconds")


def local(moment: datetime) -> datetime:
    """The moment by this machine's clock, with that date's own offset; a naive one is a time by that clock."""
    return moment.astimezone()


def duration(dialog: Dialog) -> str:
    """How long the dialog has taken so far, in words: since the header's `Started`, else since the first frame."""
    first = next((e.frame.at for e in dialog.entries if e.frame and e.frame.at), "")
    for text in (dialog.header.started, first):
        try:
            begun = datetime.fromisoformat(text.replace(" +", "+").replace(" -", "-").replace("Z", "+00:00"))
        except ValueError:
            continue
        begun = begun.astimezone() if begun.tzinfo is None else begun
        passed = (datetime.now(UTC) - begun).total_seconds()
        if passed >= 0:
            return in_words(max(passed, 1.0))
    return "unknown"

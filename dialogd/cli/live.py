"""A dialog as it happens, for `watch` and `run`: entries, the live line, the call for the person; or JSON lines."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable

from dialogd.cli.client import daemons
from dialogd.cli.feed import Feed, News, as_fact, as_written
from dialogd.cli.options import log_of
from dialogd.cli.situation import Situation, ended
from dialogd.cli.terminal import Screen, as_json, plain, remark, show
from dialogd.protocol.signals import budget
from dialogd.protocol.state import Dialog, Outcome
from dialogd.settings import Settings

LOOK = 0.1  # seconds between two looks at the file
ASK = 1.0  # seconds between two questions to the daemons
STEADY = 2.0  # seconds that a reason must hold before it is worth a line of its own


class Live:
    """Shows one dialog file. Call `look` again and again; `hint` ends the live line."""

    def __init__(self, settings: Settings, *, json: bool = False, hint: str = "", can_type: bool = False) -> None:
        self.settings = settings
        self.log = log_of(settings)
        self.feed = Feed(self.log)
        self.screen = Screen()
        self.json = json
        self.hint = hint
        self.can_type = can_type
        self.situation: Situation | None = None
        self._asked_at = 0.0
        self._asked_about: Dialog | None = None
        self._called_for: object = None
        self._state: object = None
        self._held_up = ("", 0.0)
        self._told = ""
        self._spent = ""

    @property
    def outcome(self) -> Outcome | None:
        """How the dialog ended, as last seen."""
        dialog = self.feed.dialog
        return dialog.state.outcome if dialog else None

    def look(self) -> None:
        """Show what is new, and how things stand."""
        for news in self.feed.poll():
            self.tell(news)
        dialog, now = self.feed.dialog, time.monotonic()
        if dialog is None:
            self.screen.live(f"waiting for {self.settings.file}")
            return
        if dialog is self._asked_about and now - self._asked_at < ASK:
            return
        running = () if dialog.state.outcome else daemons(self.settings, self.settings.file)
        self.situation = Situation.of(dialog, self.settings.file, running)
        self._asked_about, self._asked_at = dialog, now
        self._show_situation(self.situation)

    def follow(self, until: Callable[[], bool]) -> None:
        """Look until `until` says so, and leave a clean last line."""
        try:
            self.look()
            while not until():
                time.sleep(LOOK)
                self.look()
        finally:
            self.screen.clear()

    def say(self, text: str) -> None:
        """A line about the dialog, not of it."""
        if self.json:
            remark(plain(text))
        else:
            self.screen.write(self.screen.styled(plain(text), "yellow"))

    def tell(self, news: News) -> None:
        """Print one piece of news."""
        if news.entry is None:
            self.say(f"-- {news.text}")
        elif self.json:
            show(as_json(as_fact(news.entry), indent=None))
        else:
            heading, _, rest = plain(as_written(news.entry)).partition("\n")
            colour = "cyan" if news.entry.is_turn else "yellow"
            self.screen.write(f"{self.screen.styled(heading, 'bold', colour)}\n{rest}\n")

    def _show_situation(self, situation: Situation) -> None:
        needed = situation.needs_person()
        debts = situation.dialog.state.debts if needed else None
        if debts is not None and debts != self._called_for:
            self._call(needed)
        self._called_for = debts
        if (spending := budget(situation.dialog.state)) and (level := spending.text.partition(":")[0]) != self._spent:
            self._spent = level
            self.say(f"-- {spending.text}")
        if self.json:
            self._tell_state(situation, needed)
        elif situation.dialog.state.outcome is None and not self.screen.is_terminal:
            self._tell_reasons(situation)
        elif situation.dialog.state.outcome is None:
            self.screen.live(" · ".join(filter(None, (*situation.reasons(), situation.turn_line(), self.hint))))

    def _call(self, needed: str) -> None:
        """The bell and one clear line: what is asked and how to answer."""
        self.screen.bell()
        if not self.json:
            typed = "type it here, or " if self.can_type else ""
            answer = f'{typed}dialogd say --file {shlex.quote(str(self.settings.file))} "…"'
            self.screen.write(
                self.screen.styled(plain(f">> your turn: {needed}\n   answer: {answer}\n"), "bold", "yellow")
            )

    def _tell_reasons(self, situation: Situation) -> None:
        """Without a terminal: one plain line for what holds the dialog up, once it has done so for a while."""
        text, now = "; ".join(situation.reasons()), time.monotonic()
        if text != self._held_up[0]:
            self._held_up = (text, now)
        elif now - self._held_up[1] >= STEADY and text != self._told and self._called_for is None:
            self._told = text
            self.say(f"-- {text}")

    def _tell_state(self, situation: Situation, needed: str) -> None:
        """One JSON line when the state changed; seconds that merely pass are no change."""
        outcome = situation.dialog.state.outcome
        state = (situation.phase, situation.turn_of, situation.dialog.state.number, needed)
        if state == self._state:
            return
        self._state = state
        facts: dict[str, object] = {
            "event": "state",
            "phase": situation.phase,
            "turn": situation.dialog.state.number,
            "turn_of": list(situation.turn_of),
            "reasons": list(situation.reasons()),
            "needs_person": needed,
        }
        show(as_json(facts, indent=None))
        if outcome is not None:
            end = {"event": "end", "outcome": outcome.name, "by": outcome.by, "reason": outcome.reason}
            show(as_json({**end, "text": ended(outcome)}, indent=None))

"""A dialog as it happens, for `watch` and `run`: entries, the live line, the call for the person; or JSON lines."""

from __future__ import annotations

import select
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from dialogd import person
from dialogd.cli.cells import fit
from dialogd.cli.client import daemons, notify
from dialogd.cli.desk import Acts, Desk
from dialogd.cli.ears import ASK, Ears
from dialogd.cli.feed import Feed, News, account, as_fact, text_of
from dialogd.cli.glance import glance
from dialogd.cli.keyboard import Keyboard
from dialogd.cli.options import log_of
from dialogd.cli.situation import Situation, ended, next_step
from dialogd.cli.stop import stop
from dialogd.cli.terminal import Screen, as_json, colour_of, line, plain, remark, show
from dialogd.protocol import lifecycle
from dialogd.protocol.model import SYSTEM, USER, Entry
from dialogd.protocol.signals import budget
from dialogd.protocol.state import Dialog, Outcome
from dialogd.settings import Settings
from dialogd.state import StateDir

__all__ = ["ASK", "LOOK", "Live"]

LOOK = 0.1  # seconds between two looks at the file
STEADY = 2.0  # seconds that a reason must hold before it is worth a line of its own


class Live:
    """Shows one dialog file, in a `with` block. Call `look` again and again, with `listen` between: keys and waiting.

    `hint` stands at the end of the live line where no keys are taken; `is_run`: it is for `dialogd run`.
    """

    def __init__(self, settings: Settings, *, json: bool = False, hint: str = "", is_run: bool = False) -> None:
        self.settings = settings
        self.log = log_of(settings)
        self.feed = Feed(self.log)
        self.screen = Screen()
        self.ears = Ears(settings)
        self.keyboard = Keyboard(self.screen.clear, wanted=not json, lines=is_run)
        self.acts = Acts(wake=self._wake, stop=self._stop, tell=self.say)
        self.desk = Desk(self.log, self.acts, answers_at_once=is_run)
        self.json = json
        self.hint = hint
        self.is_run = is_run
        self.situation: Situation | None = None
        self._made_of: tuple[object, object] = (None, None)
        self._called_for: object = None
        self._state: object = None
        self._held_up = ("", 0.0)
        self._told = ""
        self._ended: Outcome | None = None
        self._spent = ""
        self._missing = ""
        self._full_reads = 0

    def __enter__(self) -> Live:
        self.keyboard.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.ears.close()
        try:
            self.screen.clear()
            if self.desk.line is not None and self.desk.line.text.strip():
                self.say(f"-- not sent: {self.desk.line.text}")
        finally:
            self.keyboard.__exit__(None, None, None)

    @property
    def can_type(self) -> bool:
        """True where what the person types arrives here."""
        return self.keyboard.can_type

    @property
    def outcome(self) -> Outcome | None:
        """How the dialog ended, as last seen."""
        dialog = self.feed.dialog
        return dialog.state.outcome if dialog else None

    def follow(self, until: Callable[[], bool]) -> None:
        """Look until `until` says so or the person leaves, and leave a clean last line."""
        with self:
            self.look()
            while not until() and not self.desk.has_left:
                self.listen(LOOK)
                self.look()

    def listen(self, seconds: float) -> None:
        """Wait so long, and do what is typed meanwhile. Raises `BrokenPipeError` once nobody reads any more."""
        for key in self.keyboard.read(seconds):
            if key == "redraw":
                self.screen.redraw()
            else:
                self.desk.press(key)
                self._show_line()
        self.screen.is_held = not self.keyboard.in_front
        if self.keyboard.resized:
            self.keyboard.resized = False
            self._show_line()
            self.screen.redraw()
        if not self.screen.is_terminal:
            _still_read()

    def look(self) -> None:
        """Show what is new, and how things stand."""
        before = self.feed.dialog
        for news in self.feed.poll():
            self.tell(news)
        dialog = self.feed.dialog
        self._tell_missing()
        if dialog is None:
            self.situation = None
            self.desk.know(None, "")
            self._show_line()
            return
        if dialog.state.outcome is None:
            self.ears.listen(streams=self.screen.is_terminal and not self.json)
            if dialog is not before:
                self.ears.ask_now()
        heard = None if dialog.state.outcome else self.ears.heard
        if dialog.state.outcome is None and heard is None:
            return
        if self._made_of != (dialog, heard):
            self._made_of = (dialog, heard)
            running, healths = (heard.running, heard.healths) if heard else ((), {})
            state = StateDir(self.settings.state_dir)
            healths = _fresh(healths, dialog.state.number)
            self.situation = Situation(dialog, self.settings.file, running, healths, state)
            self._show_situation(self.situation)
        self._show_line()

    def _tell_missing(self) -> None:
        """Turns that a save has taken out of the file; looked for when what stood there before has changed."""
        dialog = self.feed.dialog
        if dialog is None or self._full_reads == self.log.full_reads:
            return
        self._full_reads = self.log.full_reads
        missing = person.taken_out(self.log.journals.lost(dialog), self.settings.file)
        if missing and missing != self._missing:
            self.say(f"-- {missing}")
        self._missing = missing

    def say(self, text: str) -> None:
        """A line about the dialog, not of it."""
        if self.json:
            remark(plain(text))
        else:
            self.screen.write((text, ("yellow",)))

    def tell(self, news: News) -> None:
        """Print one piece of news."""
        if news.entry is None:
            self.say(f"-- {news.text}")
        elif self.json:
            show(as_json(as_fact(news.entry), indent=None))
        else:
            self._print(news.entry)

    def _print(self, entry: Entry) -> None:
        """Heading, account and text of a finished entry."""
        name = line(entry.name)
        heading = f"## Turn {entry.number} — {name}" if entry.is_turn else f"## Note — {name}"
        colour = () if entry.by == USER else ("yellow",) if entry.by == SYSTEM else (colour_of(entry.by),)
        facts, text = line(account(entry)), text_of(entry)
        self.screen.write(
            (heading, ("bold", *colour)),
            (f"\n{facts}" if facts else "", ("dim",)),
            f"\n\n{text}\n" if text else "\n",
        )

    def _show_situation(self, situation: Situation) -> None:
        needed = situation.needs_person()
        debts = situation.dialog.state.debts if needed else None
        self.desk.know(situation.dialog, needed)
        if debts is not None and debts != self._called_for:
            self._call(situation, needed)
        self._called_for = debts
        if (spending := budget(situation.dialog.state)) and (level := spending.text.partition(":")[0]) != self._spent:
            self._spent = level
            self.say(f"-- {spending.text}")
        outcome, before = situation.dialog.state.outcome, self._ended
        self._ended = outcome
        is_shown = not (self.json or self.is_run)
        if outcome is not None and outcome != before and is_shown and (step := self._next(situation.dialog)):
            self.say(f"next   {step}")
        if self.json:
            self._tell_state(situation, needed)

    def _next(self, dialog: Dialog) -> str:
        """What the person can do about the end; "" when they took the result."""
        return next_step(dialog, self.settings.file, is_running=bool(daemons(self.settings, self.settings.file)))

    def _show_line(self) -> None:
        """The live line: what is typed, what is asked, or how things stand. Without a terminal: what holds it up."""
        cells = max(self.screen.columns - 1, 1)
        if self.desk.line is not None:
            self.screen.live(*self.desk.line.view(cells))
        elif self.desk.asking:
            self.screen.live(fit(self.desk.asking, cells))
        elif self.feed.dialog is None:
            self.screen.live(fit(f"waiting for {line(str(self.settings.file))}", cells))
        elif self.situation is None or self.json:
            return
        elif self.outcome is not None:
            self.screen.live(fit(f"{ended(self.outcome)} · {self._hint()}", cells) if self.can_type else "")
        elif self.screen.is_terminal:
            older = time.monotonic() - self.ears.heard.at if self.ears.heard else 0.0
            writing = self.ears.writing
            self.screen.live(glance(self.situation, writing, older=older, cells=cells, hint=self._hint()))
        else:
            self._tell_reasons(self.situation)

    def _hint(self) -> str:
        return "? help" if self.can_type else self.hint

    def _call(self, situation: Situation, needed: str) -> None:
        """The bell and one clear line: what is asked and how to answer."""
        self.screen.bell()
        if self.json:
            state = situation.dialog.state
            asked = {"question": state.question, "asker": state.asker, "by": state.question_by}
            self._fact("question", text=needed, default=state.question_default, **asked)
            return
        typed = ("type it here, or " if self.desk.answers_at_once else "press a, or ") if self.can_type else ""
        answer = f'{typed}dialogd say --file {shlex.quote(str(self.settings.file))} "…"'
        self.screen.write((f">> your turn: {needed}\n   answer: {answer}\n", ("bold", "yellow")))

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
        dialog, outcome = situation.dialog, situation.dialog.state.outcome
        state = (situation.phase, situation.turn_of, dialog.state.number, needed)
        if state == self._state:
            return
        self._state = state
        self._fact(
            "state",
            phase=situation.phase,
            lifecycle=lifecycle.phase(dialog),
            turn=dialog.state.number,
            turn_of=list(situation.turn_of),
            reasons=list(situation.reasons()),
            needs_person=needed,
            convergence=lifecycle.assessed(dialog),
        )
        if outcome is not None:
            end = {"outcome": outcome.name, "by": outcome.by, "reason": outcome.reason, "text": ended(outcome)}
            self._fact("end", **end, next=self._next(dialog))

    def _fact(self, event: str, **facts: object) -> None:
        show(as_json({"event": event, **facts}, indent=None))

    def _wake(self) -> None:
        notify(daemons(self.settings, self.settings.file))

    def _stop(self) -> None:
        """End the dialog as `dialogd stop --file` does; in `run`, which ends its daemons itself, in the file alone."""
        if self.desk.answers_at_once:
            person.stop(self.log, "stopped by the person")
            self._wake()
        else:
            self.screen.clear()
            stop(str(self.settings.file))


def _fresh(healths: Mapping[str, dict[str, Any] | None], number: int) -> dict[str, dict[str, Any] | None]:
    """What daemons said, without the work on turns that are written by now."""
    return {who: _without_past_work(answer, number) for who, answer in healths.items()}


def _without_past_work(answer: dict[str, Any] | None, number: int) -> dict[str, Any] | None:
    work = (answer or {}).get("working_on")
    is_past = isinstance(work, dict) and isinstance(work.get("turn"), int) and work["turn"] <= number
    return {**answer, "working_on": None} if answer and is_past else answer


def _still_read() -> None:
    """Raise `BrokenPipeError` when whoever read stdout has gone: `| head` ends this too."""
    poller = select.poll()
    poller.register(sys.stdout.fileno(), 0)
    if any(event & select.POLLERR for _, event in poller.poll(0)):
        raise BrokenPipeError

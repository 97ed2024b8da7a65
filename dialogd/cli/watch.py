"""The file as it grows: every finished entry once, whatever editors and new dialogs do to the file."""

from __future__ import annotations

import http.client
import json
import select
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any

import typer

from dialogd import person
from dialogd.cli import options
from dialogd.cli.client import daemons, health, in_parallel, notify
from dialogd.cli.keyboard import Keyboard, Line
from dialogd.cli.options import log_of
from dialogd.cli.situation import Situation, ended, exit_code, next_step
from dialogd.cli.stop import stop
from dialogd.cli.terminal import Screen, as_json, colour_of, fit, line, plain, remark, show, tail, width
from dialogd.config import Settings, new_command
from dialogd.errors import DialogdError
from dialogd.protocol import lifecycle
from dialogd.protocol.marks import tolerant
from dialogd.protocol.model import ANY, SYSTEM, USER, Condition, Entry
from dialogd.protocol.money import in_dollars, total
from dialogd.protocol.signals import budget
from dialogd.protocol.state import Dialog, Outcome, State
from dialogd.protocol.text import escape
from dialogd.protocol.units import dollars
from dialogd.store.folders import StateDir
from dialogd.store.logfile import LogFile
from dialogd.store.registry import Running


@dataclass(frozen=True, slots=True)
class News:
    """Something to show: a finished `entry`, or `text` about the file as a whole."""

    text: str = ""
    entry: Entry | None = None


class Feed:
    """Follows one dialog file; never writes to it. `dialog` is what was last read, None while there is none."""

    def __init__(self, log: LogFile) -> None:
        self.log = log
        self.dialog: Dialog | None = None
        self._shown: set[str] = set()
        self._problem = ""
        self._known: Dialog | None = None

    def poll(self) -> Iterator[News]:
        """What came since the last call."""
        try:
            dialog = self.log.read()
        except FileNotFoundError:
            yield from self._trouble(
                f"there is no dialog at {self.log.path} yet; begin one elsewhere: {new_command(self.log.path)}"
                if self._known is None
                else "the file is gone"
            )
            return
        except DialogdError as error:
            yield from self._trouble(f"{error}; {error.fix}")
            return
        except OSError as error:
            yield from self._trouble(f"{self.log.path}: {error.strerror}")
            return
        self._problem = ""
        if dialog is self.dialog:
            return
        if self._known is not None and _is_another(self._known, dialog):
            self._shown.clear()
            yield News("another dialog stands in the file")
        self.dialog = self._known = dialog
        for entry in dialog.entries:
            if _finished(entry, dialog) and (key := _key(entry)) not in self._shown:
                self._shown.add(key)
                yield News(entry=entry)

    def _trouble(self, text: str) -> Iterator[News]:
        """Say what is wrong with the file, once."""
        self.dialog = None
        if text != self._problem:
            self._problem = text
            yield News(text)


def _is_another(known: Dialog, now: Dialog) -> bool:
    """True for a new dialog under the old name; a first turn that was only edited is the same dialog."""
    if known.header.dialog or now.header.dialog:
        return known.header.dialog != now.header.dialog
    return known.id != now.id and now.state.number < known.state.number


def _key(entry: Entry) -> str:
    """What makes it this entry: its recorded hash, or its place when it was typed by hand."""
    return entry.chain if entry.frame else f"by hand {entry.id}"


def _finished(entry: Entry, dialog: Dialog) -> bool:
    """False while the end of the file may still be in the making."""
    return entry is not dialog.last or entry.condition not in (Condition.UNFINISHED, Condition.DAMAGED)


def as_written(entry: Entry) -> str:
    """The entry as it stands in the file, but for its frame."""
    heading = f"## Turn {entry.number} — {entry.name}" if entry.is_turn else f"## Note — {entry.name}"
    return "\n\n".join([heading, *filter(None, [text_of(entry)])])


def account(entry: Entry) -> str:
    """When a daemon wrote the entry, how long it took, what it used and cost, and the model; "" for one by hand."""
    frame = entry.frame
    if frame is None:
        return ""
    tokens = f"{_count(frame.tokens_in)} in, {_count(frame.tokens_out)} out" if frame.tokens_in else ""
    took = f"{int(frame.ms) / 1000:.1f} s" if frame.ms.isdigit() else ""
    cost = f"{'about ' if frame.usd.startswith('~') else ''}${frame.usd.lstrip('~')}" if frame.usd else ""
    return " · ".join(filter(None, (_local(frame.at), took, tokens, cost, frame.model)))


def _count(text: str) -> str:
    number = text.lstrip("~")
    return f"{'about ' if text.startswith('~') else ''}{int(number):,}" if number.isdigit() else "?"


def _local(at: str) -> str:
    """The time of day here."""
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(at).astimezone().strftime("%H:%M:%S")
    return ""


def text_of(entry: Entry) -> str:
    """What stands below the entry's heading: body, marks, whose turn it is."""
    parts: list[str] = []
    if entry.condition is Condition.DAMAGED:
        parts.append(f"(damaged: line {entry.line} of the file; it counts for nothing)")
    if entry.is_struck:
        parts.append("(withdrawn by the person: its marks count for nothing)")
    if entry.body:
        parts.append(escape(entry.body) if entry.frame else _by_hand(entry))
    if entry.frame and entry.marks:
        parts.append("\n".join(str(mark) for mark in entry.marks))
    if entry.turn:
        parts.append(f"TURN: {', '.join(entry.turn)}")
    return "\n\n".join(parts)


def _by_hand(entry: Entry) -> str:
    """A body typed by hand: the marks that count in it stay, what else looks like structure is shown escaped."""
    lines = (line if tolerant(line) in entry.marks else escape(line) for line in entry.body.split("\n"))
    return "\n".join(lines)


def as_fact(entry: Entry) -> dict[str, object]:
    """The entry as one JSON object."""
    frame = entry.frame
    return {
        "event": "turn" if entry.is_turn else "note",
        "id": entry.id,
        "number": entry.number,
        "by": entry.by,
        "name": entry.name,
        "text": entry.body,
        "marks": [str(mark) for mark in entry.marks],
        "turn": list(entry.turn) if entry.turn is not None else None,
        "condition": entry.condition.value,
        "at": frame.at if frame else "",
        "ms": int(frame.ms) if frame and frame.ms.isdigit() else None,
        "model": frame.model if frame else "",
        "tokens_in": _number(frame.tokens_in if frame else "", int),
        "tokens_out": _number(frame.tokens_out if frame else "", int),
        "usd": _number(frame.usd if frame else "", float),
        "struck": entry.is_struck,
    }


def _number(text: str, kind: type[int] | type[float]) -> int | float | None:
    """The number that a frame gives, estimated or not; None where it gives none."""
    with suppress(ValueError):
        return kind(text.lstrip("~"))
    return None


# -- What daemons say of a dialog while it goes on, heard in the background -------------------------------------------

ASK = 1.0  # seconds between two questions to the daemons
SILENCE = 30.0  # seconds without a word, not even a ping, after which a stream is given up
AGAIN = 0.5  # seconds before another stream is tried
TAIL = 400  # characters of what is being written that are kept
LONGEST_LINE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Heard:
    """The daemons that run and what each says of itself; None for one that does not answer. `at`: monotonic."""

    running: tuple[Running, ...]
    healths: Mapping[str, dict[str, Any] | None]
    at: float


@dataclass(frozen=True, slots=True)
class Writing:
    """A turn as far as it is written: how many words, and the last of them."""

    by: str
    turn: int
    words: int = 0
    tail: str = ""

    def plus(self, text: str) -> Writing:
        """With one more piece."""
        joined = bool(self.tail) and not self.tail[-1].isspace() and bool(text) and not text[0].isspace()
        return replace(self, words=self.words + len(text.split()) - joined, tail=(self.tail + text)[-TAIL:])


class Ears:
    """Listens to the daemons of one dialog file, from the first `listen` on until the process ends or `close`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.heard: Heard | None = None
        self.writing: Mapping[str, Writing] = {}
        self._news = threading.Event()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def listen(self, *, streams: bool) -> None:
        """Begin, if that is still to be done; with `streams` also to what is being written."""
        if self._threads:
            return
        work = [self._ask, *([self._follow] if streams else [])]
        self._threads = [threading.Thread(target=one, daemon=True) for one in work]
        for thread in self._threads:
            thread.start()

    def ask_now(self) -> None:
        """The dialog has changed: what the daemons say is old."""
        self._news.set()

    def close(self) -> None:
        """Hear nothing more."""
        self._over.set()
        self._news.set()

    def _ask(self) -> None:
        while not self._over.is_set():
            running = daemons(self.settings, self.settings.file)
            answers = in_parallel(health, running)
            pairs = zip(running, answers, strict=True)
            self.heard = Heard(running, {daemon.id: answer for daemon, answer in pairs}, time.monotonic())
            self._news.wait(ASK)
            self._news.clear()

    def _follow(self) -> None:
        """Read one daemon's stream, which tells what all of them say; when it ends another's."""
        while not self._over.is_set():
            heard = self.heard
            answering = [one for one in heard.running if heard.healths.get(one.id)] if heard else []
            for daemon in answering:
                try:
                    for kind, fact in _events(daemon.port):
                        self._take(kind, fact)
                except (OSError, http.client.HTTPException, ValueError):
                    continue
            self.writing = {}
            self._over.wait(AGAIN)

    def _take(self, kind: str, fact: Mapping[str, Any]) -> None:
        by, turn = fact.get("by"), fact.get("turn")
        if kind == "turn":
            self.writing = {who: one for who, one in self.writing.items() if who != by}
        if kind != "text" or not isinstance(by, str) or not isinstance(turn, int):
            return
        so_far = self.writing.get(by)
        if so_far is None or so_far.turn != turn or fact.get("reset"):
            so_far = Writing(by, turn)
        self.writing = {**self.writing, by: so_far.plus(str(fact.get("text", "")))}


def _events(port: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a daemon's stream, until it ends. Raises what `http.client` raises."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SILENCE)
    try:
        connection.request("GET", "/events?all=true")
        response = connection.getresponse()
        if response.status != 200:
            return
        fields: dict[str, str] = {}
        while raw := response.readline(LONGEST_LINE):
            name, _, value = raw.decode("utf-8", "replace").rstrip("\r\n").partition(": ")
            if name:
                fields[name] = value
                continue
            fact = json.loads(fields.get("data", "{}"))
            if isinstance(fact, dict):
                yield fields.get("event", ""), fact
            fields = {}
    finally:
        connection.close()


# -- The live line ----------------------------------------------------------------------------------------------------

BETWEEN = " · "
SHORTEST_TAIL = 16  # cells; fewer of the last words tell nothing


def glance(situation: Situation, writing: Mapping[str, Writing], *, older: float, cells: int, hint: str = "") -> str:
    """One line. `older` is how many seconds ago the daemons were asked; what matters least is left out first."""
    state = situation.dialog.state
    busy = [*_busy(situation, writing, older)]
    first = [*(["paused"] if state.paused and busy else []), *(busy or situation.reasons())]
    shown = [BETWEEN.join(map(line, first))]
    if width(shown[0]) > cells:
        return fit(shown[0], cells)
    for part in (_turns(state), _spent(state), _left(state), hint):
        if part and width(BETWEEN.join([*shown, part])) <= cells:
            shown.append(part)
    words = _last_words(situation, writing)
    room = cells - width(BETWEEN.join([*shown, ""])) - 2
    if words and room >= SHORTEST_TAIL:
        shown.insert(1, f"“{tail(words, room)}”")
    return BETWEEN.join(shown)


def _busy(situation: Situation, writing: Mapping[str, Writing], older: float) -> Iterator[str]:
    """Each agent that works on a turn: since when, and how many words there are."""
    for agent, answer in situation.healths.items():
        work = (answer or {}).get("working_on")
        if not isinstance(work, dict):
            continue
        turn, since = work.get("turn"), _clock(float(work.get("seconds") or 0.0) + older)
        so_far = writing.get(agent)
        if so_far is None or so_far.turn != turn or not so_far.words:
            yield f"{agent} thinks about turn {turn}, {since}"
        else:
            yield f"{agent} writes turn {turn}, {since}, {so_far.words:,} word{'s' if so_far.words > 1 else ''}"


def _clock(seconds: float) -> str:
    """`0:07`, `1:02:03`."""
    whole = int(seconds)
    minutes = f"{whole // 60 % 60}:{whole % 60:02}"
    return minutes if whole < 3600 else f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _last_words(situation: Situation, writing: Mapping[str, Writing]) -> str:
    """The end of what is being written, where one agent alone writes."""
    now = [one for one in writing.values() if one.turn > situation.dialog.state.number]
    return line(now[0].tail) if len(now) == 1 else ""


def _turns(state: State) -> str:
    return f"turn {state.turns_in_words}"


def _spent(state: State) -> str:
    """What all turns together cost and took."""
    gone = total(state.spent)
    tokens = f"{gone.tokens:,} tokens" if gone.tokens else ""
    return ", ".join(filter(None, (in_dollars(gone) if gone.micros else "", tokens)))


def _left(state: State) -> str:
    """What is left of the budget."""
    gone, limits = total(state.spent), state.limits
    if limits.budget is not None:
        return f"{dollars(max(limits.budget - gone.usd, 0.0))} left"
    return f"{max(limits.tokens - gone.tokens, 0):,} tokens left" if limits.tokens is not None else ""


# -- What the keys of `watch` and `run` mean --------------------------------------------------------------------------

HELP = """\
   s  say something (@B at its beginning names who answers)   a  answer
   p  pause, or go on                                         n  pass the word on, in step mode
   r  ask an agent once more                                  k  pass over an agent
   x  stop the dialog                                         q  {leave}
   While you type: Enter sends, Esc drops it, Ctrl-U empties it, Ctrl-W takes back a word."""


@dataclass(frozen=True, slots=True)
class Acts:
    """What the desk does beside writing into the file: `wake` the daemons, `stop` the dialog, `tell` the person."""

    wake: Callable[[], object]
    stop: Callable[[], object]
    tell: Callable[[str], None]


class Desk:
    """One person's keys at one dialog. `line` is what is being typed, `asking` what y or n is wanted for.

    With `answers_at_once` a line opens when the dialog asks the person, or they begin to type: that is how `run` takes
    what people type. `has_left` is set by `q`, which stops the dialog where leaving would end it anyway.
    """

    def __init__(self, log: LogFile, acts: Acts, *, answers_at_once: bool = False) -> None:
        self.log = log
        self.acts = acts
        self.answers_at_once = answers_at_once
        self.has_left = False
        self.line: Line | None = None
        self.asking = ""
        self._send: Callable[[str], None] = self._say
        self._dialog: Dialog | None = None
        self._is_asked = False

    def know(self, dialog: Dialog | None, needed: str) -> None:
        """The dialog as it stands, and what the person is asked, "" for nothing."""
        self._dialog = dialog
        is_asked = bool(needed)
        if self.answers_at_once and is_asked and not self._is_asked and self.line is None and not self.asking:
            self._open("your turn (Enter passes)> " if self._is_stepping else "your turn> ", self._say)
        elif self._is_asked and not is_asked and self.line is not None and not self.line.text:
            self.line = None
        self._is_asked = is_asked

    def press(self, key: str) -> None:
        """Do what the key means now."""
        try:
            if key.startswith("line:"):
                self._whole_line(key[5:])
            elif self.line is not None:
                self._type(self.line, key)
            elif self.asking:
                self.asking = ""
                if key in ("y", "Y"):
                    self.acts.stop()
            else:
                self._command(key)
        except DialogdError as error:
            self.acts.tell(f"{error}; {error.fix}")
        except FileNotFoundError:
            self.acts.tell("there is no dialog yet")

    def _type(self, line: Line, key: str) -> None:
        done = line.press(key)
        if done:
            self.line = None
        if done != "send":
            return
        try:
            self._send(line.text)
        except DialogdError:
            self.line = line  # what was typed is not lost
            raise

    def _whole_line(self, text: str) -> None:
        """A line from a terminal that gives only whole ones."""
        if text.strip():
            self._say(text)
        else:
            self._pass_on()

    def _command(self, key: str) -> None:
        commands: dict[str, Callable[[], object]] = {
            "p": self._pause,
            "s": lambda: self._open("say> ", self._say),
            "a": lambda: self._open("answer> ", self._say),
            "r": lambda: self._choose("retry", person.retry, self._in_doubt()),
            "k": lambda: self._choose("skip", person.skip, self._in_doubt()),
            "x": self._ask_to_stop,
            "n": self._pass_on,
            "q": self._leave,
            "?": self._help,
        }
        if key in commands:
            commands[key]()
        elif key == "enter" and self.answers_at_once:
            self._pass_on()
        elif key.startswith("paste:") or (self.answers_at_once and len(key) == 1):
            self._open("say> ", self._say).press(key)

    def _open(self, prompt: str, send: Callable[[str], None]) -> Line:
        self.line, self._send = Line(prompt), send
        return self.line

    @property
    def _is_stepping(self) -> bool:
        return self._dialog is not None and self._dialog.state.step

    def _say(self, text: str) -> None:
        """The person's turn; `@B` at its beginning names who answers."""
        if not text.strip():
            if self._is_stepping:
                self._pass_on()
            return
        to, words = "", text
        if text.startswith("@") and self._dialog is not None:
            first, _, rest = text[1:].partition(" ")
            if self._dialog.header.agent(first.rstrip(",:")) and rest.strip():
                to, words = first.rstrip(",:"), rest
        person.say(self.log, words, to=to, secrets=options.own_secrets())
        self.acts.wake()

    def _pause(self) -> None:
        if self._dialog is not None and self._dialog.state.paused:
            person.resume(self.log)
        else:
            person.pause(self.log)
        self.acts.wake()

    def _pass_on(self) -> None:
        if self._is_stepping:
            person.pass_on(self.log)
            self.acts.wake()

    def _in_doubt(self) -> tuple[str, ...]:
        """The agents that a retry or a skip may be for: who failed or stalled, else who owes a turn, else all."""
        if self._dialog is None:
            return ()
        state, everybody = self._dialog.state, tuple(agent.id for agent in self._dialog.header.agents)
        stuck = {*state.failed, *(debt.agent for debt in state.debts if debt.stalled)}
        owing = {who for who in state.owing if who not in (USER, ANY)}
        wanted = stuck or owing or set(everybody)
        return tuple(who for who in everybody if who in wanted)

    def _choose(self, what: str, act: Callable[[LogFile, str], object], whom: tuple[str, ...]) -> None:
        def send(agent: str) -> None:
            if agent.strip():
                act(self.log, agent.strip())
                self.acts.wake()

        if len(whom) == 1:
            send(whom[0])
        else:
            self._open(f"{what} whom ({', '.join(whom)})> ", send)

    def _ask_to_stop(self) -> None:
        if self._dialog is not None and self._dialog.state.outcome is not None:
            self.acts.tell("the dialog has ended already")
        else:
            self.asking = "stop the dialog? y/n"

    def _leave(self) -> None:
        if self.answers_at_once:
            self._ask_to_stop()
        else:
            self.has_left = True

    def _help(self) -> None:
        leave = "stop the dialog" if self.answers_at_once else "leave; the dialog goes on"
        self.acts.tell(HELP.format(leave=leave))


# -- A dialog as it happens, for `watch` and `run` --------------------------------------------------------------------

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


# -- `dialogd watch` --------------------------------------------------------------------------------------------------

Follow = Annotated[bool, typer.Option("--follow", help="Go on after the end: a dialog can be opened again.")]


def watch(file: options.FileOption = None, follow: Follow = False, json: options.JsonOption = False) -> None:
    """Watch a dialog live, until it ends. The file may not exist yet. Ctrl-C leaves; the dialog goes on.

    In a terminal keys say, pause, retry, skip and stop: ? lists them. With --json, one object per line: turn, note,
    state, question, end.
    """
    live = Live(options.settings_for(file), json=json, hint="Ctrl-C leaves")
    live.follow(lambda: live.outcome is not None and not follow)
    raise typer.Exit(exit_code(live.outcome))

"""`dialogd watch`: a dialog as it happens, for people at a terminal and, as JSON lines, for programs."""

from __future__ import annotations

import http.client
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dialogd import person
from dialogd.cli import options
from dialogd.cli.options import daemons, line, log_of, notify, plain, remark, show
from dialogd.cli.speak import stop
from dialogd.cli.status import Situation, ended, exit_code, may_call, next_step
from dialogd.config import Settings, file_flag, new_command
from dialogd.errors import BadInput, DialogdError
from dialogd.protocol import lifecycle
from dialogd.protocol.build import submissions
from dialogd.protocol.lifecycle import budget, convergence
from dialogd.protocol.marks import tolerant
from dialogd.protocol.model import ANY, SYSTEM, USER, Condition, Entry, Outcome
from dialogd.protocol.state import Dialog, Question, in_dollars, total
from dialogd.protocol.text import dollars, many
from dialogd.store.disk import StateDir
from dialogd.store.logfile import LogFile
from dialogd.views.standing import entry_fields
from dialogd.views.words import sentences

if TYPE_CHECKING:
    from prompt_toolkit.application import Application
    from prompt_toolkit.key_binding import KeyPressEvent
    from rich.console import RenderableType

LOOK = 0.1  # seconds between two looks at the file
ASK = 1.0  # seconds between two questions to the daemons

Tell = Callable[[str, Mapping[str, Any]], None]  # a kind of event, and its data


class Feed:
    """Follows one dialog file; never writes to it. `dialog` is what was last read, None while there is none."""

    def __init__(self, log: LogFile) -> None:
        self.log = log
        self.dialog: Dialog | None = None
        self._known: Dialog | None = None
        self._shown: set[str] = set()
        self._remarks: dict[str, str] = {}

    def poll(self) -> Iterator[Entry | str]:
        """What came since the last call: each finished entry once, and remarks about the file as a whole."""
        before, problem = self.dialog, ""
        try:
            self.dialog = self.log.read()
        except FileNotFoundError:
            begin = f"there is no dialog at {self.log.path} yet; begin one elsewhere: {new_command(self.log.path)}"
            self.dialog, problem = None, "the file is gone" if self._known else begin
        except (DialogdError, OSError) as error:
            self.dialog, problem = None, f"{error}; {error.fix}" if isinstance(error, DialogdError) else str(error)
        yield from self._changed("problem", problem)
        known, dialog = self._known, self.dialog
        if dialog is None or dialog is before:
            return
        # A first turn that was only edited is the same dialog, where the header has no id.
        is_older = known is not None and dialog.state.number < known.state.number
        if known and known.id != dialog.id and (is_older or known.header.dialog != dialog.header.dialog):
            self._shown.clear()
            yield "another dialog stands in the file"
        self._known = dialog
        for entry in dialog.entries:
            in_the_making = entry is dialog.last and entry.condition in (Condition.UNFINISHED, Condition.DAMAGED)
            key = entry.chain if entry.frame else f"by hand {entry.id}"
            if not in_the_making and key not in self._shown:
                self._shown.add(key)
                yield entry
        yield from self._changed("missing", person.taken_out(self.log.lost(dialog), self.log.path))
        spending = budget(dialog.state)
        yield from self._changed("spent", spending.text if spending else "", by=":")

    def _changed(self, what: str, text: str, by: str = "\n") -> Iterator[str]:
        """The text, where it is not the last one of its kind up to the sign `by`."""
        key = text.partition(by)[0]
        if self._remarks.get(what, "") != key:
            self._remarks[what] = key
            yield from [text] if text else []


class Follower:
    """Looks at one dialog and its daemons, and finds what is new, each thing once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.feed = Feed(log_of(settings))
        self.situation: Situation | None = None
        self.needed = ""  # what the person is asked
        self.asked_at = 0.0  # when the daemons were last asked
        self._called_for: object = None
        self._calls: set[str] = set()

    @property
    def outcome(self) -> Outcome | None:
        """How the dialog ended, as last seen."""
        return self.feed.dialog.state.outcome if self.feed.dialog else None

    def changes(self) -> Iterator[tuple[str, Any]]:
        """What is new: `news` of the file, a `question` to the person, a tool's `call`, how it all stands (`state`)."""
        yield from (("news", news) for news in self.feed.poll())
        dialog, now = self.feed.dialog, self.situation
        if dialog is None:
            self.situation, self.needed = None, ""
            return
        is_due = self.outcome is None and time.monotonic() - self.asked_at >= ASK
        if now is not None and now.dialog is dialog and not is_due:
            return
        file, state = self.settings.file, StateDir(self.settings.state_dir)
        over = Situation(dialog, file, (), {}, state) if self.outcome else None
        self.situation = now = over or Situation.of(self.settings, file, dialog)
        self.asked_at, self.needed = time.monotonic(), now.needs_person()
        debts = dialog.state.debts.open if self.needed else None
        if debts is not None and debts != self._called_for:
            yield "question", dialog.state.questions
        self._called_for = debts
        for call in now.calls():
            if (name := str(call.get("call"))) not in self._calls:
                self._calls.add(name)
                yield "call", call
        yield "state", now


# -- For programs -----------------------------------------------------------------------------------------------------


class Teller(Follower):
    """Tells a program what happens at a dialog file: `turn`, `note`, `state`, `question`, `call`, `warning`."""

    def __init__(self, settings: Settings, tell: Tell) -> None:
        super().__init__(settings)
        self.tell = tell
        self._state: object = None

    def look(self) -> Outcome | None:
        """Tell what is new; gives how the dialog ended, None while it goes on."""
        for kind, what in self.changes():
            if kind == "state":
                self._tell_state(what)
            elif isinstance(what, str):
                self.tell("warning", {"text": what})
            elif isinstance(what, Entry):
                self.tell("turn" if what.is_turn else "note", as_fact(what))
            elif kind == "question":
                last = what.open[-1] if what.open else Question("")  # of several the last one's deadline
                asked = {"question": what.text, "asker": what.asker, "by": last.by, "default": last.default}
                self.tell(kind, {"text": self.needed, **asked})
            else:
                self.tell(kind, what)
        return self.outcome

    def _tell_state(self, situation: Situation) -> None:
        """How things stand, where that changed; seconds that pass are no change."""
        dialog = situation.dialog
        facts = {
            "phase": situation.phase, "lifecycle": lifecycle.lifecycle_of(dialog), "turn": dialog.state.number,
            "turn_of": list(dialog.state.owing), "needs_person": self.needed,
        }  # fmt: skip
        if facts != self._state:
            self._state = facts
            more = {"reasons": list(situation.reasons()), "convergence": convergence(dialog)}
            self.tell("state", {**facts, **more})


def as_fact(entry: Entry) -> dict[str, object]:
    """The entry as one JSON object; null for what its frame does not say."""

    def number(text: str, kind: type[int] | type[float]) -> int | float | None:
        with suppress(ValueError):
            return kind(text.lstrip("~"))
        return None

    frame = entry.frame
    ms, tokens_in, tokens_out, usd = (frame.ms, frame.tokens_in, frame.tokens_out, frame.usd) if frame else [""] * 4
    return {
        **entry_fields(entry), "at": entry.at, "ms": number(ms, int), "model": frame.model if frame else "",
        "tokens_in": number(tokens_in, int), "tokens_out": number(tokens_out, int), "usd": number(usd, float),
    }  # fmt: skip


SILENCE = 30.0  # seconds without a word, not even a ping, after which a stream is given up
LONGEST_LINE = 1024 * 1024  # bytes


def events(port: int, *, every: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a daemon's stream, with `every` those of its peers too, until it ends or nothing can be read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SILENCE)
    try:
        connection.request("GET", f"/events{'?all=true' if every else ''}")
        response, fields = connection.getresponse(), dict[str, str]()
        while response.status == 200 and (raw := response.readline(LONGEST_LINE)):
            name, _, value = raw.decode("utf-8", "replace").rstrip("\r\n").partition(": ")
            if name:
                fields[name] = value
                continue
            fact = json.loads(fields.get("data", "{}"))
            if isinstance(fact, dict):
                yield fields.get("event", ""), fact
            fields = {}
    except (OSError, http.client.HTTPException, ValueError):
        return
    finally:
        connection.close()


# -- The live line ----------------------------------------------------------------------------------------------------

TAIL = 400  # characters of what is being written that are kept
BETWEEN = " · "
WIDEST = 100  # cells of a finished turn: longer lines are hard to read
SHORTEST_TAIL = 16  # cells; fewer of the last words tell nothing


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


def live_line(situation: Situation, writing: Mapping[str, Writing], *, older: float, cells: int, hint: str = "") -> str:
    """One line. `older` is how many seconds ago the daemons were asked; what matters least is left out first."""
    state = situation.dialog.state
    busy = [*_busy(situation, writing, older)]
    first = [*(["paused"] if state.paused and busy else []), *(busy or situation.reasons())]
    shown = [BETWEEN.join(map(line, first))]
    if options.width(shown[0]) > cells:
        return options.fit(shown[0], cells)
    gone, limits = total(state.spent), state.limits
    tokens = f"{gone.tokens:,} tokens" if gone.tokens else ""
    spent = ", ".join(filter(None, (in_dollars(gone) if gone.micros else "", tokens)))
    left = f"{max(limits.tokens - gone.tokens, 0):,} tokens left" if limits.tokens is not None else ""
    left = f"{dollars(max(limits.budget - gone.usd, 0.0))} left" if limits.budget is not None else left
    for part in (f"turn {state.turns_in_words}", spent, left, hint):
        if part and options.width(BETWEEN.join([*shown, part])) <= cells:
            shown.append(part)
    now = [one for one in writing.values() if one.turn > state.number]
    words = line(now[0].tail) if len(now) == 1 else ""  # of what is being written, where one agent alone writes
    room = cells - options.width(BETWEEN.join([*shown, ""])) - 2
    if words and room >= SHORTEST_TAIL:
        shown.insert(1, f"“{options.tail(words, room)}”")
    return BETWEEN.join(shown)


def _busy(situation: Situation, writing: Mapping[str, Writing], older: float) -> Iterator[str]:
    """Each agent that works on a turn: since when, and how many words there are."""
    for agent in situation.healths:
        if (work := situation.working(agent)) is None:
            continue
        turn, seconds = work.get("turn"), int(float(work.get("seconds") or 0.0) + older)
        since = f"{seconds // 60 % 60}:{seconds % 60:02}"
        since = f"{seconds // 3600}:{since:0>5}" if seconds >= 3600 else since
        so_far = writing.get(agent)
        if so_far is None or so_far.turn != turn or not so_far.words:
            yield f"{agent} thinks about turn {turn}, {since}"
        else:
            yield f"{agent} writes turn {turn}, {since}, {many(so_far.words, 'word')}"


# -- A dialog as it happens, for `watch` and `run` --------------------------------------------------------------------

SIGN = "▸ "  # before a mark that counts
STEADY = 2.0  # seconds that a reason must hold before it is worth a line of its own
ESCAPE_WAIT = 0.1  # seconds after which a lone Esc is the key, and not the beginning of another one
HELP = """\
   s  say something (@B at its beginning names who answers)   a  answer
   p  pause, or go on                                         n  let the next agent speak, in step mode
   r  ask an agent once more                                  k  skip an agent
   x  stop the dialog                                         q  {leave}
   While you type: Enter sends, Esc drops it, Ctrl-U empties it, Ctrl-W takes back a word."""


def account(entry: Entry) -> str:
    """When a daemon wrote the entry, how long it took, what it used and cost, and the model; "" for one by hand."""
    if (frame := entry.frame) is None:
        return ""

    def about(text: str, unit: str = "") -> str:
        number = text.lstrip("~")
        amount = unit + (number if unit else f"{int(number):,}" if number.isdigit() else "?")
        return f"{'about ' if text.startswith('~') else ''}{amount}"

    tokens = f"{about(frame.tokens_in)} in, {about(frame.tokens_out)} out" if frame.tokens_in else ""
    took = f"{int(frame.ms) / 1000:.1f} s" if frame.ms.isdigit() else ""
    cost = about(frame.usd, "$") if frame.usd else ""
    return line(" · ".join(filter(None, (options.clock(frame.at, ""), took, tokens, cost, frame.model))))


# What can be typed in the terminal in which a build runs, by the group of commands that it is one of.
WORDS = {
    "tasks": ("confirm", "change", "accept", "retry", "drop", "gate", "show", "clean"),
    "build": ("merge", "rebase"),
    "": ("tasks", "invite", "pause", "resume", "status"),
}
BUILD_HELP = """\
   confirm [001 …]   begin the tasks        tasks      how they stand
   accept, drop      take it; leave it out  show 001   its diff; Enter shows the last
   retry ["why"]     have it tried again    gate "…"   another tests them
   merge, clean      take over what is approved; clean up behind it
   say …             speak to the agents    pause, resume, stop; Esc drops it"""
FEW = 6  # lines of a text that the terminal of a build shows; the file and the page have all


class LiveView(Follower):
    """Shows one dialog file and takes the person's keys, in a `with` block: call `look` and `listen` in turn.

    With `is_run`, for `dialogd run`, a line to type in opens when the dialog asks the person or they begin to type, and
    `q` stops the dialog. Otherwise `has_left` is set by `q`. In a terminal the last line, and what is typed in it,
    belong to prompt_toolkit, in a thread of its own: that carries out the keys, so that none waits for the file.
    """

    def __init__(self, settings: Settings, *, hint: str, is_run: bool = False) -> None:
        super().__init__(settings)
        self.log = log_of(settings)  # what the person writes with; `feed` reads with one of its own
        self.is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self.can_type = self.is_terminal and sys.stdin.isatty()
        self.hint = "? help" if self.can_type else hint
        self.is_run = is_run
        # In the terminal of a build; known from the start, as keys are read before the first look.
        self._takes_words = self.can_type and is_run and bool(self.log.read().state.build)
        self._submitted = ""  # the task of which Enter shows the diff
        self.has_left = False
        self.prompt = ""  # before what is being typed; "" while nothing is
        self.asking = ""  # what y or n is wanted for
        self.writing: Mapping[str, Writing] = {}
        self._app: Application[None] | None = None
        self._thread: threading.Thread | None = None
        self._stack = ExitStack()
        self._failed: BaseException | None = None
        self._child: subprocess.Popen[bytes] | None = None  # the command that is in front
        self._was_needed = ""
        self._drawn = ("", "")
        self._held_up = ("", 0.0)
        self._told = ""
        self._ended: Outcome | None = None

    def __enter__(self) -> LiveView:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                before = signal.signal(number, lambda number, _: sys.exit(128 + number))
                self._stack.callback(signal.signal, number, before)
        if self.is_terminal:
            threading.Thread(target=self._hear, daemon=True).start()
        self._take_keys()
        return self

    def __exit__(self, *error: object) -> None:
        if (typed := self.close()).strip():
            self.say(f"-- not sent: {typed}")

    def close(self) -> str:
        """Give the terminal back, as it was; what was being typed."""
        app, self._app = self._app, None
        if app is not None and self._thread is not None:
            with suppress(Exception):  # it may have ended by itself, with its terminal
                app.loop.call_soon_threadsafe(app.exit)  # type: ignore[union-attr]
            if self._child is not None and self.outcome is None:
                os.killpg(self._child.pid, signal.SIGTERM)
            self._thread.join(2 if self._child is None else None)  # who reads a diff reads it to its end
        self._stack.close()
        return app.current_buffer.text if app is not None else ""

    @property
    def how_it_ended(self) -> str:
        """How the dialog ended, in words."""
        return ended(self.feed.dialog) if self.feed.dialog is not None else ""

    def listen(self, seconds: float) -> None:
        """Wait so long. Raises `BrokenPipeError` once nobody reads any more, and what a key came to."""
        time.sleep(seconds)
        self._take_keys()
        if self._failed is not None:
            raise self._failed
        if not self.is_terminal:
            _still_read()

    def look(self) -> Outcome | None:
        """Show what is new, and how things stand."""
        for kind, what in self.changes():
            if kind == "news":
                self._print(what)
            elif kind == "question":
                self._ask()
            elif kind == "call":
                self._ring(f">> {may_call(what, self.settings.file)}\n")
        self._open_or_close()
        self._say_what_is_next()
        if self._app is not None:
            if self._drawn != (drawn := (self.prompt, self._live())):
                self._drawn = drawn
                self._app.invalidate()
        elif self.situation is not None and self.outcome is None and not self.is_terminal:
            self._say_what_holds_it_up(self.situation)
        return self.outcome

    def news(self) -> None:
        """Print what is new in the file alone."""
        for news in self.feed.poll():
            self._print(news)

    def say(self, text: str, *styles: str) -> None:
        """A line about the dialog, not of it. In a terminal it is broken between words, but no path is."""
        from rich.text import Text

        if self.is_terminal:
            options.write(Text(plain(text), " ".join((*styles, "yellow")), overflow="ignore"), widest=WIDEST)
        else:
            show(plain(text))

    def _print(self, news: Entry | str) -> None:
        """A remark about the file; an entry below a rule: heading, account, text, marks in words, who is next."""
        if isinstance(news, str):
            self.say(f"-- {news}")
            return
        from rich.padding import Padding
        from rich.text import Text

        agents = self.feed.dialog.header.agents if self.feed.dialog is not None else ()
        called, name = {USER: "you", **{agent.id: line(agent.name) for agent in agents}}, line(news.name)
        is_no_agents = news.from_session or news.by == SYSTEM
        colour = "" if news.is_persons else "yellow" if is_no_agents else options.colour_of(news.by)
        heading = f"Turn {news.number} · {name}" if news.is_turn else f"Note · {name}"
        parts: list[RenderableType] = [Text("─" * (options.columns(WIDEST)), "dim"), Text(heading, f"bold {colour}")]
        parts += [Text(facts, "dim")] if (facts := account(news)) else []
        below: list[RenderableType] = []
        if news.condition is Condition.DAMAGED:
            below.append(Text(f"(damaged: line {news.line} of the file; it counts for nothing)", "yellow"))
        if not news.counts:
            below.append(Text("(withdrawn by the person: its marks count for nothing)", "yellow"))
        # By hand marks stand in the text; what only looks like one of the view's own lines is escaped.
        rows = [row for row in news.body.split("\n") if news.frame or tolerant(row) not in news.marks]
        rows = [row.replace(SIGN[0], "\\\\" + SIGN[0], 1) if row.lstrip().startswith(SIGN[0]) else row for row in rows]
        if self._takes_words:
            rows = [] if news.by == SYSTEM and news.is_on_tasks else _few(rows)
        if text := "\n".join(rows).strip("\n"):
            below.append(options.markdown(plain(text)))
        if found := sentences(news, lambda who: called.get(who, who)):
            below.append(Text("\n".join(["", *(f"{SIGN}{line(one)}" for one in found)])))
        if (made := submissions(news)) and self._takes_words:
            self._submitted = made[0].fields[0]
            below.append(Text(f"its diff: Enter, or show {self._submitted}", "dim"))
        if news.turn:
            whose = ("the gate" if made and who == news.by else called.get(who, who) for who in news.turn)
            below.append(Text(f"next: {', '.join(whose)}", "dim"))
        # Nothing in a text passes for a heading of the view's own: every line of it is indented.
        padded = [Padding(part, (0, 0, 0, 2), expand=False) for part in below]
        options.write(*parts, *(["", *padded, ""] if below else [""]), widest=WIDEST)

    def _ask(self) -> None:
        """That the person is asked, with a bell, and how it is answered."""
        assert self.situation is not None
        if self._takes_words:
            self._ask_for_words(self.situation.dialog)
            return
        answer, *others = lifecycle.answers(self.situation.dialog, file_flag(self.settings.file))
        note = ""
        if self.can_type and answer.startswith("dialogd say"):
            answer = f"{'type it here' if self.is_run else 'press a'}, or {answer}"
        elif self.can_type:
            note = "   in another terminal; words that you type here are a turn of yours, and decide nothing\n"
        ways = "".join(f"   or: {other}\n" for other in others)
        self._ring(f">> your turn: {self.needed}\n   answer: {answer}\n{ways}{note}")

    def _ask_for_words(self, dialog: Dialog) -> None:
        """The same in the terminal of a build, where the words of the commands are typed."""
        words = [one.removeprefix("dialogd ").removeprefix("tasks ") for one in lifecycle.answers(dialog)]
        task = dialog.state.build.due_of(USER)[1]
        words += [f"show {task.id}"] if task is not None and task.commit else []
        first, *others = ['retry "why", or retry' if word == "retry" else word for word in words]
        self._ring(f">> your turn: {self.needed}\n   type: {first}\n" + "".join(f"   or: {one}\n" for one in others))

    def _say_what_is_next(self) -> None:
        """At each end that it follows, what the person can do; `run` says it at its own end."""
        before, self._ended = self._ended, self.outcome
        is_new = self._ended not in (None, before) and not self.is_run
        if is_new and self.feed.dialog is not None and (step := what_next(self.settings, self.feed.dialog)):
            self.say(f"next   {step}")

    def _ring(self, text: str) -> None:
        if self.is_terminal:
            sys.stdout.write("\a")
        self.say(text, "bold")

    def _say_what_holds_it_up(self, situation: Situation) -> None:
        """Without a live line: one plain line for what holds the dialog up, once it has done so for a while."""
        text, now = "; ".join(situation.reasons()), time.monotonic()
        if text != self._held_up[0]:
            self._held_up = (text, now)
        elif now - self._held_up[1] >= STEADY and text != self._told and not self.needed:
            self._told = text
            self.say(f"-- {text}")

    def _live(self) -> str:
        """What stands in the last line while nothing is typed: what is asked, or how things stand."""
        cells = max(os.get_terminal_size(sys.__stdout__.fileno()).columns - 1, 1)  # type: ignore[union-attr]
        if self.asking:
            return options.fit(self.asking, cells)
        if self.situation is None:
            return options.fit(f"waiting for {line(str(self.settings.file))}", cells)
        if self.outcome is not None:
            return options.fit(f"{self.how_it_ended} · {self.hint}", cells)
        older = time.monotonic() - self.asked_at
        return live_line(self.situation, self.writing, older=older, cells=cells, hint=self.hint)

    def _hear(self) -> None:
        """Keep what agents are writing, from the events of one daemon, which passes on the others'; then another's."""
        while True:
            now = self.situation
            for daemon in now.running if now else ():
                for kind, fact in events(daemon.port, every=True) if now and now.healths.get(daemon.id) else ():
                    by, turn = fact.get("by"), fact.get("turn")
                    if kind == "turn":
                        self.writing = {who: one for who, one in self.writing.items() if who != by}
                    if kind == "text" and isinstance(by, str) and isinstance(turn, int):
                        so_far = self.writing.get(by)
                        if so_far is None or so_far.turn != turn or fact.get("reset"):
                            so_far = Writing(by, turn)
                        self.writing = {**self.writing, by: so_far.plus(str(fact.get("text", "")))}
            self.writing = {}
            time.sleep(ASK / 2)

    # -- The keys --

    def _take_keys(self) -> None:
        """Begin to read keys, where stdin and stdout are one's own terminal and this process is in front of it."""
        if self._thread is not None or not self.can_type or os.tcgetpgrp(0) != os.getpgrp():
            return
        from prompt_toolkit.patch_stdout import patch_stdout

        self._app = self._application()
        self._thread = threading.Thread(target=self._app.run, kwargs={"handle_sigint": False}, daemon=True)
        self._thread.start()
        self._stack.enter_context(patch_stdout(raw=True))  # what is printed stands above the live line

    def _application(self) -> Application[None]:
        """The last line of the terminal: while nothing is typed each key is a command."""
        from prompt_toolkit.application import Application, run_in_terminal
        from prompt_toolkit.buffer import Buffer
        from prompt_toolkit.filters import Condition as When
        from prompt_toolkit.key_binding import KeyBindings
        from prompt_toolkit.layout import BufferControl, Layout, Window
        from prompt_toolkit.layout import processors as process
        from prompt_toolkit.output.vt100 import Vt100_Output

        class Safe(process.Processor):
            def apply_transformation(self, given: process.TransformationInput) -> process.Transformation:
                return process.Transformation([(style, plain(text)) for style, text, *_ in given.fragments])

        buffer, keys, typing = Buffer(multiline=False), KeyBindings(), When(lambda: bool(self.prompt))

        @keys.add("c-c", eager=True)
        def _(_event: KeyPressEvent) -> None:
            os.kill(os.getpid(), signal.SIGINT)

        @keys.add("c-z", eager=True)
        def _(_event: KeyPressEvent) -> None:
            run_in_terminal(_stand_still)

        @keys.add("enter", filter=typing, eager=True)
        def _(event: KeyPressEvent) -> None:
            text, prompt = event.current_buffer.text, self.prompt
            self.prompt = ""
            if self._carefully(lambda: self._word(text) if self._takes_words else self._say(text)):
                event.current_buffer.reset()
            else:
                self.prompt = prompt  # what was typed is not lost

        @keys.add("escape", filter=typing, eager=True)
        @keys.add("c-d", filter=typing & When(lambda: not buffer.text))
        def _(event: KeyPressEvent) -> None:
            self.prompt = ""
            event.current_buffer.reset()

        @keys.add("<bracketed-paste>", filter=~typing, eager=True)
        @keys.add("<any>", filter=~typing, eager=True)
        @keys.add("enter", filter=~typing, eager=True)
        def _(event: KeyPressEvent) -> None:
            if self._press(event.data):
                event.current_buffer.insert_text(event.data.replace("\r\n", "\n").replace("\r", "\n"))

        output = Vt100_Output.from_pty(sys.stdout)
        output.enable_cpr = False  # not every terminal says where its cursor is, and nothing here depends on it
        before = process.BeforeInput(lambda: self.prompt)
        # Behind the cursor: so all of it is erased, also where a narrower terminal has wrapped it.
        behind = process.AfterInput(lambda: [("fg:ansibrightblack", "" if self.prompt else self._live())])
        window = Window(
            BufferControl(buffer, [Safe(), before, behind]),
            dont_extend_height=True,
            wrap_lines=typing,
            always_hide_cursor=~typing,
        )
        app: Application[None] = Application(
            Layout(window),
            key_bindings=keys,
            erase_when_done=True,
            terminal_size_polling_interval=0.2,  # outside of the main thread no signal tells of a new size
            output=output,
        )
        app.ttimeoutlen = ESCAPE_WAIT
        return app

    def _carefully(self, act: Callable[[], object]) -> bool:
        """Do what a key means; False where that was refused, which is said."""
        try:
            act()
        except DialogdError as error:
            self.say(f"{error}; {error.fix}")
            return False
        except FileNotFoundError:
            self.say("there is no dialog yet")
        except BaseException as error:
            self._failed = error
        return True

    def _press(self, key: str) -> bool:
        """Do what the key means; True where it begins what is typed."""
        if self.asking:
            self.asking = ""
            if key in ("y", "Y"):
                self._carefully(self._stop)
            return False
        leave = "stop the dialog" if self.is_run else "leave; the dialog goes on"
        acts: dict[str, Callable[[], object]] = {
            "p": self._pause,
            "s": lambda: self._open("say> "),
            "a": lambda: self._open("answer> "),
            "r": lambda: self._to_whom_it_concerns(person.retry),
            "k": lambda: self._to_whom_it_concerns(person.skip),
            "n": self._pass_on,
            "x": self._ask_to_stop,
            "q": self._ask_to_stop if self.is_run else self._leave,
            "?": lambda: self.say(HELP.format(leave=leave)),
            "\r": self._pass_on,
        }
        if self._takes_words:  # every other key begins a word
            acts = {"?": lambda: self.say(BUILD_HELP), "\r": lambda: self._word("")}
        if key in acts:
            self._carefully(acts[key])
            return False
        begins = len(key) > 1 or (self.is_run and key.isprintable() and bool(key))
        if begins:
            self._open("> " if self._takes_words else "say> ")
        return begins

    def _open(self, prompt: str) -> None:
        self.prompt = prompt

    def _open_or_close(self) -> None:
        """Open a line in `run` when the person is asked, and take an empty one away when they no longer are."""
        before, needed = self._was_needed, self.needed
        self._was_needed = needed
        if self._app is None:
            return
        if self.is_run and needed and not before and not self.prompt and not self.asking:
            self._open("your turn (Enter passes)> " if self._is_stepping else "your turn> ")
        elif before and not needed and self.prompt and not self._app.current_buffer.text:
            self.prompt = ""

    @property
    def _is_stepping(self) -> bool:
        return self.feed.dialog is not None and self.feed.dialog.state.hand.step

    def _say(self, text: str) -> None:
        """The person's turn; `@B` at its beginning names who answers. Nothing passes the turn in step mode."""
        if not text.strip():
            self._pass_on()
            return
        to, words, dialog = "", text, self.feed.dialog
        if text.startswith("@") and dialog is not None:
            first, _, rest = text[1:].partition(" ")
            if dialog.header.agent(first.rstrip(",:")) and rest.strip():
                to, words = first.rstrip(",:"), rest
        person.say(self.log, words, to=to, secrets=options.own_secrets())
        self._wake()

    def _word(self, text: str) -> None:
        """Carry out what is typed in the terminal of a build, as its command does. Raises `BadInput` for no word.

        Nothing shows the diff of what was submitted last.
        """
        dialog = self.feed.dialog
        text = text.strip().removeprefix("dialogd ")  # as hints name the commands
        try:
            words = shlex.split(text)
        except ValueError:
            words = text.split()  # an apostrophe, as in: retry don't rename it
        first, *rest = words or (["show", self._submitted] if self._submitted else ["help"])
        first, *rest = rest if rest and rest[0] in WORDS.get(first, ()) else (first, *rest)
        group = next((group for group, words in WORDS.items() if first in words), None)
        if first == "retry" and dialog is not None and rest and dialog.header.agent(rest[0]):
            group = ""
        if first in ("help", "?"):
            self.say(BUILD_HELP)
        elif first == "stop":
            self._ask_to_stop()
        elif first == "say" and rest:
            self._say(text[len("say") :].strip().strip("\"'"))
        elif group is not None:
            from prompt_toolkit.application import run_in_terminal

            words = [*filter(None, [group]), first, *rest, "--file", str(self.settings.file)]
            run_in_terminal(lambda: self._in_front(words))
        elif dialog is not None and dialog.state.questions.asker:
            self._say(text)
        elif first == "say":
            raise BadInput("say what?", fix="write it behind that word: say keep the old names")
        else:
            names = ", ".join((*(word for words in WORDS.values() for word in words), "stop", "help"))
            raise BadInput(f"{first[:60]!r} is no word here", fix=f"type one of: {names}; say … speaks; Esc drops it")

    def _in_front(self, words: Sequence[str]) -> None:
        """Run `dialogd WORDS` in this terminal, which is its own until it ends: its Ctrl-C ends nothing else."""
        from dialogd.cli.launch import INTERRUPTED, PROGRAM

        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})  # else who is behind may not take it back
        terminal = sys.__stdin__.fileno()  # type: ignore[union-attr]
        self._child = child = subprocess.Popen([*PROGRAM, *words], process_group=0)
        try:
            os.tcsetpgrp(terminal, child.pid)
            status = os.waitpid(child.pid, os.WUNTRACED)[1]
            while os.WIFSTOPPED(status):  # by Ctrl-Z: nobody could bring it to the front again
                os.killpg(child.pid, signal.SIGCONT)
                status = os.waitpid(child.pid, os.WUNTRACED)[1]
            child.returncode = os.waitstatus_to_exitcode(status)
        finally:
            self._child = None
            os.tcsetpgrp(terminal, os.getpgrp())
        if child.returncode in (-signal.SIGINT, INTERRUPTED):
            os.write(terminal, b"\n")  # behind the ^C

    def _pause(self) -> None:
        is_paused = self.feed.dialog is not None and self.feed.dialog.state.paused
        (person.resume if is_paused else person.pause)(self.log)
        self._wake()

    def _pass_on(self) -> None:
        if self._is_stepping:
            person.pass_on(self.log)
            self._wake()

    def _to_whom_it_concerns(self, act: Callable[[LogFile, str], object]) -> None:
        """Retry or skip the agent that failed or stalled, else who owes a turn; the first, where there are several."""
        if self.feed.dialog is not None:
            state = self.feed.dialog.state
            stuck = [*state.debts.failed, *(debt.agent for debt in state.debts.open if debt.stalled)]
            owing = [who for who in state.owing if who not in (USER, ANY)]
            act(self.log, [*stuck, *owing, self.feed.dialog.header.agents[0].id][0])
            self._wake()

    def _leave(self) -> None:
        self.has_left = True

    def _ask_to_stop(self) -> None:
        if self.outcome is not None:
            self.say("the dialog has ended already")
        else:
            self.asking = "stop the dialog? y/n"

    def _wake(self) -> None:
        notify(daemons(self.settings, self.settings.file))

    def _stop(self) -> None:
        """End the dialog as `dialogd stop --file` does; in `run`, which ends its daemons itself, in the file alone."""
        if self.is_run:
            person.stop(self.log, "stopped by the person")
            self._wake()
        else:
            stop(str(self.settings.file))


def _few(rows: Sequence[str]) -> list[str]:
    """The first lines of a text, and how many more there are."""
    left = len(rows) - FEW
    return [*rows[:FEW], "", f"… {many(left, 'more line')}"] if left > 1 else [*rows]


def _stand_still() -> None:
    """Stop this process and its group until the shell continues them."""
    os.kill(0, signal.SIGTSTP)
    time.sleep(0.2)  # the main thread takes it, which stops all; this one, which draws, must not draw before that


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
    settings = options.settings_for(file)
    log = options.log_of(settings)
    with suppress(DialogdError, OSError):  # of a mirror on which no daemon works, what comes is taken in by this
        if log.read().state.hand.keys is not None and log.mirror is not None and not daemons(settings, settings.file):
            log.mirror.follow(lambda: None)
    if json:
        raise typer.Exit(exit_code(_as_lines(settings, follow=follow)))
    with LiveView(settings, hint="Ctrl-C leaves") as live:
        while (live.look() is None or follow) and not live.has_left:
            live.listen(LOOK)
    raise typer.Exit(exit_code(live.outcome))


def _as_lines(settings: Settings, *, follow: bool) -> Outcome | None:
    """Print one JSON object per event, until the dialog ends; remarks about the file go to stderr."""

    def tell(kind: str, facts: Mapping[str, Any]) -> None:
        if kind == "warning":
            remark(f"-- {facts['text']}")
        else:
            show(options.as_json({"event": kind, **facts}, indent=None))

    teller, before = Teller(settings, tell), None
    while True:
        outcome, dialog = teller.look(), teller.feed.dialog
        if outcome is not None and dialog is not None and outcome != before:
            end = {"outcome": outcome.name, "by": outcome.by, "reason": outcome.reason, "text": ended(dialog)}
            tell("end", {**end, "next": what_next(settings, dialog)})
        before = outcome
        if outcome is not None and not follow:
            return outcome
        time.sleep(LOOK)
        _still_read()


def what_next(settings: Settings, dialog: Dialog) -> str:
    """What the person can do about the end, as commands; "" while it goes on, or once they took the result."""
    return next_step(dialog, settings.file, is_running=bool(daemons(settings, settings.file)))

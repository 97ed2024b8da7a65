"""What the keys of `watch` and `run` mean: commands, a line to type in, a question to answer with y or n."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dialogd import person
from dialogd.cli import options
from dialogd.cli.editor import Line
from dialogd.errors import DialogdError
from dialogd.logfile import LogFile
from dialogd.protocol.model import ANY, USER
from dialogd.protocol.state import Dialog

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

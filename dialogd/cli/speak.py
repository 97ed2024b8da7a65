"""The person's commands: say, pause, resume, retry, skip, word; written into the file, then told to the daemons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from dialogd import person
from dialogd.backends.seats import start_again
from dialogd.cli import options
from dialogd.cli.client import daemons, notify
from dialogd.cli.situation import ended
from dialogd.cli.terminal import plain, show
from dialogd.config import Settings
from dialogd.protocol.model import USER
from dialogd.protocol.state import Dialog
from dialogd.store.folders import StateDir
from dialogd.store.logfile import LogFile

Text = Annotated[str, typer.Argument(metavar="TEXT", help="Your words; `-` reads standard input.")]
To = Annotated[str | None, typer.Option("--to", metavar="ID", help="Who answers. Default: whose turn it was.")]
Note = Annotated[bool, typer.Option("--note", help="A remark that costs nobody a call.")]
Turns = Annotated[int | None, typer.Option("--turns", min=1, metavar="N", help="Grant so many more turns.")]
Budget = Annotated[
    str | None, typer.Option("--budget", metavar="AMOUNT", help="Set the dialog's budget: $4, 500k tokens.")
]
AgentId = Annotated[str, typer.Argument(metavar="ID", help="The agent, such as B.")]
Speaker = Annotated[str, typer.Argument(metavar="[ID]", help="Who asks. Default: you.", show_default=False)]


def say(
    text: Text,
    to: To = None,
    note: Note = False,
    turns: Turns = None,
    budget: Budget = None,
    file: options.FileOption = None,
) -> None:
    """Speak: your turn interrupts whoever is replying, and opens a dialog again that had ended."""
    words = options.typed(text)
    settings, log, before = opened(file)
    own = options.own_secrets()
    after = person.say(log, words, to=to or "", note=note, turns=turns, budget=budget or "", secrets=own)
    if note:
        done(settings, after, "noted")
    else:
        again = "; the dialog is open again" if before.state.outcome else ""
        done(settings, after, f"turn {after.state.number} is yours{again}")


def pause(file: options.FileOption = None) -> None:
    """Let agents finish their turn, then wait; survives restarts."""
    settings, log, before = opened(file)
    after = person.pause(log)
    done(settings, after, "it was paused already" if before.state.paused else "paused")


def resume(file: options.FileOption = None) -> None:
    """Let agents go on after a pause."""
    settings, log, before = opened(file)
    after = person.resume(log)
    done(settings, after, "resumed" if before.state.paused else "it was not paused")


def retry(agent: AgentId, file: options.FileOption = None) -> None:
    """Ask an agent once more: it owes a turn anew."""
    _control(file, agent, person.retry, "asked once more")


def skip(agent: AgentId, file: options.FileOption = None) -> None:
    """Pass over an agent that owes a turn: the next one speaks."""
    _control(file, agent, person.skip, "passed over")


def word(agent: Speaker = USER, file: options.FileOption = None) -> None:
    """Ask for the word, for yourself or an agent, in a dialog whose order is free; who asks first speaks first."""
    settings, log, before = opened(file)
    after = person.word(log, agent)
    queue = after.state.queue
    what = "it was asked for already" if queue == before.state.queue else f"{queue[-1]} asks for the word"
    ahead = ", ".join("you" if who == USER else who for who in queue)
    done(settings, after, what.replace(f"{USER} asks", "you ask") + (f"; in line: {ahead}" if len(queue) > 1 else ""))


def restore(file: options.FileOption = None) -> None:
    """Put turns back that an editor's save has taken out of the file, as text in a note of yours."""
    settings, log, before = opened(file)
    after = person.restore(log)
    is_back = after.state.notes != before.state.notes or after.size != before.size
    done(settings, after, "they are back, as a note of yours" if is_back else "no turn is missing")


def _control(file: str | None, agent: str, act: Callable[[LogFile, str], Dialog], what: str) -> None:
    settings, log, _ = opened(file)
    done(settings, act(log, agent), f"{agent} is {what}")


def opened(file: str | None) -> tuple[Settings, LogFile, Dialog]:
    """The settings of a command, its dialog file, and the dialog. Raises `NotRunning` where there is none."""
    settings = options.settings_for(file)
    log = options.log_of(settings)
    return settings, log, options.dialog_at(log)


def done(settings: Settings, dialog: Dialog, what: str) -> None:
    """Wake the daemons, and print one line: what happened and what comes next."""
    running = daemons(settings, settings.file)
    notify(running)
    show(plain(f"{what}; {_next(settings, dialog, {daemon.id for daemon in running})}"))


def _next(settings: Settings, dialog: Dialog, running: set[str]) -> str:
    state = dialog.state
    if state.outcome is not None:
        return f"the dialog {ended(state.outcome)}"
    agents = [who for who in state.owing if who != USER]
    if not agents:
        return 'the next turn is yours: dialogd say "…"'
    names = " and ".join(filter(None, (", ".join(agents[:-1]), agents[-1])))
    owing = f"{names} {'owes' if len(agents) == 1 else 'owe'} the next turn"
    if state.paused:
        return f"{owing} once you resume"
    asleep = next((who for who in agents if who not in running and who != "ANY"), "")
    if not asleep:
        return owing
    again = start_again(StateDir(settings.state_dir), settings.file, dialog.id, asleep)
    return f"{owing} (not running: {again})"

"""What the person says and does in a dialog: say, ask, pause, retry, veto, strike, limit, approve and the like."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dialogd import person
from dialogd.backends.seats import start_again
from dialogd.cli import options
from dialogd.cli.client import daemons, notify
from dialogd.cli.outcome import disown, leave_plan
from dialogd.cli.past import keep_ended
from dialogd.cli.situation import ended
from dialogd.cli.terminal import plain, remark, show
from dialogd.config import Settings, start_command
from dialogd.protocol.header import AGENT_ID
from dialogd.protocol.interventions import free_port
from dialogd.protocol.model import USER
from dialogd.protocol.state import Dialog
from dialogd.store.folders import StateDir
from dialogd.store.logfile import LogFile

if TYPE_CHECKING:
    from dialogd.backends.seats import Seat


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


# -- The person's hand ------------------------------------------------------------------------------------------------

Ref = Annotated[str, typer.Argument(metavar="REF", help="The proposal, such as P2.")]
TurnNumbers = Annotated[str, typer.Argument(metavar="TURN", help="The turn, or several: 7, 7,9 or 3-5.")]
Why = Annotated[str, typer.Argument(metavar="[REASON]", help="Why; agents are told.", show_default=False)]

Leaving = Annotated[str, typer.Argument(metavar="ID", help="The agent, such as B; USER: yourself.")]

Instead = Annotated[str, typer.Option("--instead-of", metavar="REF", help="The proposal in whose place it is meant.")]
Value = Annotated[str, typer.Argument(metavar="VALUE", help="As in the header: 40, 10 minutes, '$4'.")]
LimitName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="max_turns, max_rounds, max_time, timeout, max_message, max_size or budget."),
]
Guest = Annotated[str, typer.Argument(metavar="ID[=BACKEND[:MODEL]]", help="The new agent: C, or C=grok.")]
GuestName = Annotated[str, typer.Option("--name", metavar="N", help="Its name in headings.")]
GuestPort = Annotated[
    int | None, typer.Option("--port", min=1, max=65_535, metavar="N", help="Where its daemon listens.")
]
OnOff = Annotated[Literal["on", "off"], typer.Argument(metavar="on|off", help="Whether every turn passes to you.")]


def veto(proposal: Ref, reason: Why = "", file: options.FileOption = None) -> None:
    """Rule a proposal out: nobody can sign, vote on or decide it any more."""
    settings, log, before = opened(file)
    after = person.veto(log, proposal, reason, secrets=options.own_secrets())
    new = [ref for ref in after.state.vetoed if ref not in before.state.vetoed]
    done(settings, after, f"{', '.join(new)} ruled out" if new else f"{proposal.strip().upper()} was ruled out already")


def strike(turns: TurnNumbers, reason: Why = "", file: options.FileOption = None) -> None:
    """Withdraw a turn: its marks stop counting, and agents no longer see its text."""
    settings, log, before = opened(file)
    after = person.strike(log, turns, reason, secrets=options.own_secrets())
    new = sorted(after.state.struck - before.state.struck)
    is_open = "; the dialog is open again" if before.state.outcome and not after.state.outcome else ""
    listed = f"turn{'s' * (len(new) > 1)} {', '.join(map(str, new))} withdrawn"
    done(settings, after, f"{listed}{is_open}" if new else "withdrawn already")


def suggest(text: Text, instead_of: Instead = "", file: options.FileOption = None) -> None:
    """Put a proposal of your own, numbered like all: your turn, which interrupts."""
    settings, log, _ = opened(file)
    after = person.suggest(log, options.typed(text), instead_of, secrets=options.own_secrets())
    done(settings, after, f"turn {after.state.number} is yours, and proposes {after.state.proposals[-1].ref}")


def ask(agent: AgentId, text: Text, file: options.FileOption = None) -> None:
    """Ask one agent: your turn, to it alone; after its answer the order goes on."""
    settings, log, _ = opened(file)
    after = person.ask(log, agent, options.typed(text), secrets=options.own_secrets())
    done(settings, after, f"turn {after.state.number} is yours")


def limit(name: LimitName, value: Value, file: options.FileOption = None) -> None:
    """Change a limit of the dialog from here on."""
    settings, log, before = opened(file)
    after = person.limit(log, name, value)
    changed = after.state.limits != before.state.limits
    turns = (
        f" (turn {after.state.turns_in_words})" if after.state.limits.max_turns != before.state.limits.max_turns else ""
    )
    done(settings, after, f"{name} is {value} from here on{turns}" if changed else f"{name} was {value} already")


def invite(agent: Guest, name: GuestName = "", port: GuestPort = None, file: options.FileOption = None) -> None:
    """Have one more agent take part, behind the others; prints how to start its daemon."""
    settings, log, before = opened(file)
    seat = _seat(agent)
    wanted = port if port is not None else _port(before)
    given = name.strip() or (seat.name if seat.is_known else "")
    known = before.header.agent(seat.id) or next((one for one in before.state.hand.left if one.id == seat.id), None)
    is_new = known is None or bool(name.strip()) or port is not None
    after = person.invite(
        log,
        f"{seat.id}{given and f' = {given}'} @ http://localhost:{wanted}" if is_new else seat.id,
        secrets=options.own_secrets(),
    )
    done(settings, after, f"{seat.id} takes part" + ("" if len(after.entries) > len(before.entries) else " already"))
    remark(plain(f"start it in a terminal of its own: {start_command(seat.id, settings.file, seat.flags())}"))


def _seat(text: str) -> Seat:
    """The agent, and what is to play it. Raises `BadInput`."""
    from dialogd.backends.seats import Seat
    from dialogd.cli.cast import read_cast

    if AGENT_ID.fullmatch(text.strip()) or "=" not in text:
        return Seat(text.strip())
    return read_cast(None, [text])[0]


def _port(dialog: Dialog) -> int:
    """The first port for one more agent that nobody listens on now."""
    from dialogd.cli.launch import is_free

    taken = {agent.url.rpartition(":")[2] for agent in dialog.everybody}
    first = free_port(dialog.header, dialog.state.hand.left)
    return next((p for p in range(first, first + 100) if str(p) not in taken and is_free(p)), first)


def leave(agent: Leaving, reason: Why = "", file: options.FileOption = None) -> None:
    """Let an agent take part no longer; the word goes on. After `leave USER` nothing waits for you any more."""
    settings, log, before = opened(file)
    after = person.leave(log, agent, reason, secrets=options.own_secrets())
    gone = [one.id for one in after.state.hand.left if one not in before.state.hand.left]
    gone += [USER] if after.header.is_unattended and not before.header.is_unattended else []
    done(settings, after, f"{gone[0]} takes part no longer" if gone else f"{agent} had left already")


def step(mode: OnOff, file: options.FileOption = None) -> None:
    """Step mode: after every turn the word comes back to you, until it is off."""
    settings, log, before = opened(file)
    after = person.step(log, on=mode == "on")
    done(settings, after, f"step mode is {mode}" if after.state.step != before.state.step else f"it was {mode} already")


def pass_on(file: options.FileOption = None) -> None:
    """Pass your turn on without a word: step mode's Enter."""
    settings, log, before = opened(file)
    after = person.pass_on(log)
    done(settings, after, "passed on" if len(after.entries) > len(before.entries) else "it was not your turn")


# -- The person takes the result of a dialog, or rejects it -----------------------------------------------------------

Reason = Annotated[str, typer.Argument(metavar="REASON", help="What is wrong with it; `-` reads standard input.")]


def approve(file: options.FileOption = None) -> None:
    """Take the result of a dialog that has ended, or a text that only absent agents have not signed: that ends it."""
    settings, log, before = opened(file)
    after = person.approve(log)
    keep_ended(settings, after)
    if before.state.outcome is None:
        leave_plan(settings, after)
    what = "it was approved already" if before.state.approved else "approved"
    outcome = after.state.outcome
    show(plain(f"{what}: the result of {outcome.name}, in {outcome.entry}" if outcome else what))


def reject(reason: Reason, file: options.FileOption = None) -> None:
    """Do not take the result: your turn, with the reason, opens the dialog again."""
    settings, log, _ = opened(file)
    words = options.typed(reason)
    after = person.reject(log, words, secrets=options.own_secrets())
    disown(settings, after)
    keep_ended(settings, after)
    done(settings, after, f"turn {after.state.number} is yours; the result is rejected, the dialog is open again")

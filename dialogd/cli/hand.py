"""The person's hand: veto, strike, suggest, ask, limit, invite, leave, step, pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dialogd import person
from dialogd.cli import options
from dialogd.cli.speak import done, opened
from dialogd.cli.terminal import plain, remark
from dialogd.config import start_command
from dialogd.protocol.header import AGENT_ID
from dialogd.protocol.interventions import free_port
from dialogd.protocol.model import USER
from dialogd.protocol.state import Dialog

if TYPE_CHECKING:
    from dialogd.backends.seats import Seat

Ref = Annotated[str, typer.Argument(metavar="REF", help="The proposal, such as P2.")]
TurnNumbers = Annotated[str, typer.Argument(metavar="TURN", help="The turn, or several: 7, 7,9 or 3-5.")]
Why = Annotated[str, typer.Argument(metavar="[REASON]", help="Why; agents are told.", show_default=False)]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="Your words; `-` reads standard input.")]
Leaving = Annotated[str, typer.Argument(metavar="ID", help="The agent, such as B; USER: yourself.")]
AgentId = Annotated[str, typer.Argument(metavar="ID", help="The agent, such as B.")]
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

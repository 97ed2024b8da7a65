"""Every act of the person, once: its command, its route, and its row in the manual follow from this table.

`person` carries them out. Nothing is imported for it until one is: the help of the command line reads this table too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dialogd.protocol.state import Dialog
    from dialogd.store.logfile import LogFile

Values = Mapping[str, Any]
LONG = {"max_length": 1_000_000}  # characters of the person's words


@dataclass(frozen=True)
class Given:
    """Something that an act is given: a field of its route, and an argument, or with a `flag` an option.

    `name` is that of the parameter too. `read` makes what `person` takes of what was sent; `limits` are those of a
    field, for texts the most characters. Without a `default` it is required. The command line asks with `ask`.
    """

    name: str
    about: str
    kind: Any = str
    default: Any = ...
    flag: str = ""
    metavar: str = ""
    limits: Mapping[str, int] = field(default_factory=lambda: {"max_length": 200})
    read: Callable[[Any], Any] | None = None
    ask: str = ""


@dataclass(frozen=True)
class Act:
    """One act. `do` is its function in `person`; with `starts` it starts the dialog where nothing runs yet.

    `help` is its line on every surface, `more` what else its command says. `happened` says in words what came of it:
    from the dialog before and after, and what was given.
    """

    name: str
    help: str
    more: str = ""
    given: Sequence[Given] = ()
    do: str = ""
    starts: bool = False
    happened: Callable[[Dialog, Dialog, Values], str] | None = None


def carry_out(act: Act, log: LogFile, given: Values, secrets: Sequence[str]) -> Dialog:
    """Do it: the person's entry is written, unless there is nothing to do. Raises `DialogdError`."""
    work = getattr(import_module("dialogd.person"), act.do or act.name)
    known = inspect.signature(work).parameters
    values = {one.name: (one.read or (lambda it: it))(given[one.name]) for one in act.given if one.name in given}
    dialog: Dialog = work(log, **values, **({"secrets": secrets} if "secrets" in known else {}))
    return dialog


def _said(before: Dialog, after: Dialog, given: Values) -> str:
    if given["note"]:
        return "noted"
    proposed = f", and proposes {after.state.table.proposals[-1].ref}" if given["proposal"] or given["instead"] else ""
    return f"turn {after.state.number} is yours{proposed}" + _open_again(before, after)


def _open_again(before: Dialog, after: Dialog) -> str:
    return "; the dialog is open again" if before.state.outcome and not after.state.outcome else ""


def _queued(before: Dialog, after: Dialog, _: Values) -> str:
    queue = ["you" if who == "USER" else who for who in after.state.floor.queue]
    asks = f"{queue[-1]} {'ask' if queue[-1] == 'you' else 'asks'} for the floor" if queue else ""
    what = "it was asked for already" if after.state.floor.queue == before.state.floor.queue else asks
    return what + (f"; in line: {', '.join(queue)}" if len(queue) > 1 else "")


def _vetoed(before: Dialog, after: Dialog, given: Values) -> str:
    new = [ref for ref in after.state.table.vetoed if ref not in before.state.table.vetoed]
    return f"{', '.join(new)} ruled out" if new else f"{given['proposal'].strip().upper()} was ruled out already"


def _struck(before: Dialog, after: Dialog, _: Values) -> str:
    new = sorted(after.state.hand.struck - before.state.hand.struck)
    what = f"turn{'s' * (len(new) > 1)} {', '.join(map(str, new))} withdrawn" if new else "withdrawn already"
    return what + (_open_again(before, after) if new else "")


def _limited(before: Dialog, after: Dialog, given: Values) -> str:
    old, new = before.state.limits, after.state.limits
    turns = f" (turn {after.state.turns_in_words})" if new.max_turns != old.max_turns else ""
    name, value = given["name"], given["value"]
    return f"{name} is {value} from here on{turns}" if new != old else f"{name} was {value} already"


def _left(before: Dialog, after: Dialog, given: Values) -> str:
    gone = [one.id for one in after.state.hand.left if one not in before.state.hand.left]
    gone += ["USER"] if given["agent"].strip().upper() == "USER" and len(after.entries) > len(before.entries) else []
    return f"{gone[0]} takes part no longer" if gone else f"{given['agent']} had left already"


def _stepped(before: Dialog, after: Dialog, given: Values) -> str:
    mode = "on" if given["on"] else "off"
    return f"step mode is {mode}" if after.state.hand.step != before.state.hand.step else f"it was {mode} already"


def _agent_in_words(agent: Any) -> str:
    """An agent as an INVITE mark writes it, from its parts."""
    if isinstance(agent, str):
        return agent
    named = f"{agent['id']} = {agent['name']}" if agent["name"].strip() else agent["id"]
    return f"{named} @ {agent['url']}" if agent["url"].strip() else str(named)


AGENT = Given("agent", "The agent, such as B.", metavar="ID")
REASON = Given("reason", "Why; agents are told.", default="", metavar="[REASON]", limits=LONG)

ACTS = {
    act.name: act
    for act in (
        Act("say", "Say something: an answer, a question, a proposal, a note.",
            "It is your turn then: whoever is replying is interrupted, and a dialog that had ended is open again. Not"
            " so with --note.", (
            Given("text", "Your words; `-` reads standard input.", metavar="TEXT", limits=LONG),
            Given("to", "Who is to answer, such as B. Default: whose turn it was.", default="", flag="--to",
                  metavar="ID"),
            Given("note", "A remark that costs nobody a call.", bool, False, "--note", limits={}),
            Given("proposal", "Propose it: numbered, to vote on and sign like any other.", bool, False, "--proposal",
                  limits={}),
            Given("instead", "Propose it in the place of this proposal, such as P1.", default="", flag="--instead-of",
                  metavar="REF"),
            Given("turns", "Grant so many more turns.", int | None, None, "--turns", "N", {"ge": 1, "le": 100_000}),
            Given("budget", "Set the dialog's budget: $4, 500k tokens.", default="", flag="--budget", metavar="AMOUNT",
                  limits={"max_length": 100}),
            ), starts=True, happened=_said),
        Act("pass", "Let the next agent speak instead of you.",
            "For when it is your turn, as after every turn in step mode.", do="pass_on", starts=True,
            happened=lambda b, a, _: "passed on" if len(a.entries) > len(b.entries) else "it was not your turn"),
        Act("pause", "Stop after the current turn, until you resume.", "The pause outlasts restarts.",
            happened=lambda b, _a, _: "it was paused already" if b.state.paused else "paused"),
        Act("resume", "Let agents continue after a pause.",
            happened=lambda b, _a, _: "resumed" if b.state.paused else "it was not paused"),
        Act("step", "Turn step mode (you decide after every turn) on or off.",
            "While it is on, it is your turn after each agent's: say something, or pass.",
            (Given("on", "Whether every turn passes to you.", bool, metavar="on|off", limits={}, ask="on|off"),),
            happened=_stepped),
        Act("retry", "Ask an agent again, such as after an error.", given=(AGENT,), starts=True,
            happened=lambda _b, _a, given: f"{given['agent']} is asked once more"),
        Act("skip", "Skip an agent whose turn it is; the next one speaks.", given=(AGENT,), starts=True,
            happened=lambda _b, _a, given: f"{given['agent']} is skipped"),
        Act("invite", "Add an agent to the dialog.", given=(
            Given("agent", "An id, C = Name, C = Name @ http://localhost:3003, or its parts.",
                  "str | Invited", limits={}, read=_agent_in_words),)),
        Act("leave", "Remove an agent, or yourself, from the dialog.",
            "What the agent owed is closed, and the dialog continues without it. After `leave USER` nothing waits for"
            " you any more.", (Given("agent", "The agent, such as B; USER: yourself.", metavar="ID"), REASON),
            happened=_left),
        Act("limit", "Change a limit, such as the number of turns or the budget.", "It holds from here on.", (
            Given("name", "max_turns, max_rounds, max_time, timeout, max_message, max_size or budget.", metavar="NAME",
                  limits={"max_length": 50}),
            Given("value", "As in the header: 40, 10 minutes, '$4'.", int | float | str, metavar="VALUE", limits={},
                  read=str)), happened=_limited),
        Act("approve", "Accept the result, or let an agent call a tool."),
        Act("reject", "Reject the result, with a reason; the dialog continues.",
            "Your turn, with the reason, opens it again.",
            (Given("reason", "What is wrong with it; `-` reads standard input.", metavar="REASON", limits=LONG),),
            starts=True, happened=lambda _b, a, _:
            f"turn {a.state.number} is yours; the result is rejected, the dialog is open again"),
        Act("floor", "Ask for the floor, where the order of speakers is free.",
            "For yourself or an agent; whoever asks first speaks first.",
            (Given("agent", "Who asks. Default: you.", default="", metavar="[ID]"),), happened=_queued),
        Act("veto", "Rule out a proposal: nobody can agree to it any more.",
            "It cannot be signed, voted on or decided.",
            (Given("proposal", "The proposal, such as P2.", metavar="REF"), REASON), happened=_vetoed),
        Act("strike", "Withdraw a turn: nothing it says counts any more.",
            "Agents no longer see its text; it stays in the file.",
            (Given("turn", "The turn, or several: 7, 7,9 or 3-5.", int | str, metavar="TURN", limits={}, read=str),
             REASON), happened=_struck),
        Act("restore", "Put back turns that an editor has overwritten.",
            "They stand in a note of yours, as text: their marks count no more.",
            happened=lambda b, a, _: "they are back, as a note of yours"
            if a.state.notes != b.state.notes or a.size != b.size else "no turn is missing"),
    )
}  # fmt: skip

"""How a dialog stands: one model, of which every surface shows all or a part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from dialogd.protocol import lifecycle, questions
from dialogd.protocol.decide import Action, Clock, Reply, Stop, Wait, Work, Write, decide
from dialogd.protocol.grammar import parse, read_on
from dialogd.protocol.lifecycle import Signal, convergence, in_words, signals
from dialogd.protocol.model import ANY, USER, Entry
from dialogd.protocol.state import Dialog, in_dollars, in_tokens, total
from dialogd.protocol.text import listed, one_line

Phase = Literal["no_dialog", "thinking", "waiting", "paused", "waiting_for_user", "ended", "error"]


class Question(BaseModel):
    """What the person is asked; `by` is an ISO time with its offset, null without a deadline.

    `takes_default` is true where the default will count as the answer once that time has passed.
    """

    text: str
    asker: str
    entry: str
    by: str | None
    default: str | None
    takes_default: bool


class Basics(BaseModel):
    """What stands in the file alone."""

    model_config = ConfigDict(frozen=True)

    dialog: str | None = None
    topic: str = ""
    turn: int = 0
    turn_of: list[str] = []
    outcome: str | None = None
    approved: bool = False
    question: Question | None = None
    questions: list[Question] = []


class Standing(Basics):
    """How a dialog stands, with what follows from it."""

    phase: Phase = "no_dialog"
    lifecycle: str | None = None
    allowed: list[str] = []
    signals: list[Signal] = []
    convergence: float | None = None


def basics(dialog: Dialog | None) -> dict[str, Any]:
    """The fields of `Basics`."""
    if dialog is None:
        return {}
    state, asked = dialog.state, [Question(**each) for each in questions.facts(dialog)]
    return {
        "dialog": dialog.id,
        "topic": dialog.header.topic,
        "turn": state.number,
        "turn_of": list(state.owing),
        "outcome": state.outcome.name if state.outcome else None,
        "approved": bool(state.approved),
        "question": asked[0] if asked else None,
        "questions": asked,
    }


def standing(dialog: Dialog | None, *, thinking: bool) -> dict[str, Any]:
    """The fields of `Standing`; `thinking`: an agent is at a turn."""
    return {
        **basics(dialog),
        "phase": phase(dialog, thinking=thinking),
        "lifecycle": lifecycle.lifecycle_of(dialog),
        "allowed": lifecycle.allowed(dialog),
        "signals": list(signals(dialog)) if dialog is not None else [],
        "convergence": convergence(dialog) if dialog is not None else None,
    }


def phase(dialog: Dialog | None, *, thinking: bool) -> Phase:
    """The dialog in one word."""
    if dialog is None:
        return "no_dialog"
    state = dialog.state
    if state.outcome is not None:
        return "error" if state.outcome.failed else "ended"
    if state.paused:
        return "paused"
    if thinking:
        return "thinking"
    return "waiting_for_user" if state.owing and set(state.owing) <= {USER} else "waiting"


def entry_fields(entry: Entry) -> dict[str, Any]:
    """A turn (`number` > 0) or note by its fields, as every program gets it; `turn` is whose turn follows.

    `struck`: the person withdrew it, so that `marks` has none of its own.
    """
    return {
        "id": entry.id,
        "number": entry.number,
        "by": entry.by,
        "name": entry.name,
        "text": entry.body,
        "marks": [str(mark) for mark in entry.marks],
        "turn": None if entry.turn is None else list(entry.turn),
        "condition": entry.condition.value,
        "struck": not entry.counts,
    }


class Shared(BaseModel):
    """How the mirror of a shared dialog stands; `alarm`: it takes in nothing more, whatever is done here.

    `asked` and `came` are seconds since the log last answered (null: not yet) and something last came.
    """

    log: str
    name: str
    here: list[str]
    elsewhere: list[str]
    people: list[str]
    end: int
    words: str
    asked: float | None
    came: float
    problem: str
    fix: str
    alarm: bool
    typed: str


# -- With the daemons that run on it ----------------------------------------------------------------------------------

Run = Literal["starting", "running", "waiting", "asleep", "ended"]
RUNS: tuple[Run, ...] = ("starting", "running", "waiting", "asleep", "ended")


@dataclass(frozen=True, slots=True)
class Running:
    """What runs on a dialog, in a word and in a sentence; `waits_for_you`: nothing goes on without the person."""

    state: Run
    words: str
    waits_for_you: bool = False


def running(dialog: Dialog, healths: Mapping[str, Mapping[str, Any] | None], *, is_starting: bool, end: str) -> Running:
    """What runs on it: `healths` holds the agents with a daemon, None for one that does not answer.

    `end` says how it ended, where it did.
    """
    state = dialog.state
    called = {agent.id: agent.name for agent in dialog.everybody}
    if state.outcome is not None:
        return Running("ended", end)
    shared: Mapping[str, Any] = next((one["shared"] for one in healths.values() if one and one.get("shared")), {})
    elsewhere = shared.get("elsewhere", ())
    if shared.get("alarm"):
        return Running("waiting", str(shared["problem"]), True)
    is_whole = all(agent.id in healths or agent.id in elsewhere for agent in dialog.header.agents)
    if is_starting and (not healths or not (is_whole or state.has_spoken)):
        return Running("starting", "its agents are being started")
    if not healths:
        return Running("asleep", f"it has not ended, and no agent of it runs{' here' * (state.hand.keys is not None)}")
    calls = [call for health in healths.values() for call in (health or {}).get("calls") or ()]
    if calls:
        who, tool = str(calls[0].get("agent", "")), calls[0].get("tool", "a tool")
        return Running("waiting", f"{called.get(who, who)} asks to call {tool}: allow it or not", True)
    # An answer may be older than the turn that paid the debt: who owes nothing writes no more.
    at_it = [who for who in called if {who, ANY} & set(state.owing)]
    writing = [called[who] for who in at_it if (healths.get(who) or {}).get("working_on")]
    is_writing = f"{listed(writing)} {'is' if len(writing) == 1 else 'are'} writing" if writing else ""
    if state.paused:
        until = f"paused{state.paused_by and f' by {state.paused_by}'}, until you resume it"
        return Running("waiting", f"{until}; {is_writing}" if writing else until, True)
    if state.questions.text:
        who = f"{called.get(state.questions.asker, 'an agent')} asks you: " if state.questions.asker else ""
        return Running("waiting", f"{who}{state.questions.text}", True)
    if writing:
        return Running("running", is_writing)
    owing = [called.get(who, who) for who in state.owing if who != USER]
    if owing and set(state.owing) <= {*elsewhere}:
        away = "; its log does not answer: there may be more than is here" if shared["problem"] else ""
        return Running("running", f"waiting for {listed(owing)}, on another machine{away}")
    unread = f"; {dialog.last.notice}" if dialog.last and dialog.last.notice else ""
    if owing and not state.has_spoken and not is_starting:
        return Running("waiting", f"it has not begun{unread}", True)
    if owing:
        return Running("running", f"{listed(owing)} {'is' if len(owing) == 1 else 'are'} next")
    return Running("waiting", f"it is your turn{unread}", True)


# -- Entry by entry: the state after each, and what every agent had to do then ----------------------------------------

WIDTH = 160  # characters of a fact


def steps(data: bytes) -> Iterator[tuple[Entry, Dialog]]:
    """Each entry of a file, and the dialog up to it, read as it grew; the last is all of it. Raises `NotADialog`."""
    whole = parse(data)
    ends = [entry.end for entry in whole.entries]
    ends[-1:] = [len(data)] if ends else []
    dialog, done = None, 0
    for entry, end in zip(whole.entries, ends, strict=True):
        dialog = parse(data[:end]) if dialog is None else read_on(dialog, data[done:end])
        done = end
        yield entry, dialog


def facts(dialog: Dialog) -> dict[str, str]:
    """The state of a dialog, by name, without empty values."""
    state, table, asked, spent = dialog.state, dialog.state.table, dialog.state.questions, total(dialog.state.spent)
    found = {
        "phase": in_words(dialog),
        "owing": ", ".join(state.owing),
        "paused": "yes" if state.paused else "",
        "step mode": "on" if state.hand.step else "",
        "question": f"{asked.asker or 'dialogd'} asks: {asked.text}" if asked.text else "",
        "last round": state.closing,
        "red team": table.red_team,
        "failed": ", ".join(sorted(state.debts.failed)),
        "calls it a deadlock": ", ".join(table.deadlock),
        "struck": ", ".join(f"turn {number}" for number in sorted(state.hand.struck)),
        "agents": ", ".join(agent.id for agent in dialog.header.agents),
        "rounds": str(state.floor.rounds),
        "spent": f"{in_dollars(spent)}, {in_tokens(spent)}" if spent.micros or spent.tokens else "",
        "approved": f"in {state.approved}" if state.approved else "",
        **{f"limit {name}": str(value) for name, value in asdict(state.limits).items() if value not in (None, {})},
        **{f"proposal {p.ref}": f"{p.by}: {p.text}" for p in table.proposals},
        **{f"proposal {ref}": "vetoed" for ref in table.vetoed},
        **{
            f"vote {p.ref}": ", ".join(f"{b.agent} {b.choice}" for b in p.ballots) or "nobody yet"
            for p in state.polls.open
        },
        **{f"decision {d.ref or d.entry}": f"{d.outcome} ({d.method}) {d.evidence}" for d in table.decisions},
    }
    if table.standing is not None:
        signers = ", ".join(f"{who} (turn {turn})" for who, turn in table.standing.signers)
        found["text to sign"] = f"{table.standing.proposal.ref}, signed by {signers or 'nobody'}"
    return {name: one_line(value, WIDTH) for name, value in found.items() if value}


def decisions(dialog: Dialog) -> dict[str, dict[str, str]]:
    """What `decide` returns for each agent: `action`, `status` and `reason`; with ages of 0, as if notified."""
    at = next((entry.at for entry in reversed(dialog.entries) if entry.at), "")
    return {a.id: _said(decide(dialog, a.id, Clock(at=at, rest=1e9))) for a in dialog.header.agents}


def _said(action: Action) -> dict[str, str]:
    match action:
        case Reply(debt):
            return {"action": "reply", "status": "", "reason": f"it owes the turn that {debt.re} asked for"}
        case Write(_, reason):
            return {"action": "write", "status": "", "reason": reason}
        case Work(_, what, task):
            return {"action": "work", "status": what.value[0], "reason": f"its daemon's step at task {task.id}"}
        case Wait(status, reason):
            return {"action": "wait", "status": status, "reason": reason}
        case Stop(outcome):
            return {"action": "stop", "status": outcome.name, "reason": outcome.reason}


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Facts that are new, changed or gone: before and now; "" for nothing."""
    names = dict.fromkeys([*now, *before])
    pairs = {name: (before.get(name, ""), now.get(name, "")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

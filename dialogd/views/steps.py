"""A dialog entry by entry: the state after each, and what every agent had to do then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from dialogd.protocol.decide import Action, Clock, Reply, Stop, Wait, Work, Write, decide
from dialogd.protocol.grammar import parse, read_on
from dialogd.protocol.lifecycle import in_words
from dialogd.protocol.model import Entry
from dialogd.protocol.money import in_dollars, in_tokens, total
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import one_line

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
    state = dialog.state
    found = {
        "phase": in_words(dialog),
        "owing": ", ".join(state.owing),
        "paused": "yes" if state.paused else "",
        "step mode": "on" if state.hand.step else "",
        "question": f"{state.questions.asker or 'dialogd'} asks: {state.questions.text}"
        if state.questions.text
        else "",
        "last round": state.closing,
        "red team": state.table.red_team,
        "failed": ", ".join(sorted(state.debts.failed)),
        "calls it a deadlock": ", ".join(state.table.deadlock),
        "struck": ", ".join(f"turn {number}" for number in sorted(state.hand.struck)),
        "agents": ", ".join(agent.id for agent in dialog.header.agents),
        "rounds": str(state.floor.rounds),
        "spent": _spent(dialog),
        "approved": f"in {state.approved}" if state.approved else "",
        **{f"limit {name}": str(value) for name, value in asdict(state.limits).items() if value not in (None, {})},
        **_texts(dialog),
    }
    return {name: one_line(value, WIDTH) for name, value in found.items() if value}


def _spent(dialog: Dialog) -> str:
    spent = total(dialog.state.spent)
    return f"{in_dollars(spent)}, {in_tokens(spent)}" if spent.micros or spent.tokens else ""


def _texts(dialog: Dialog) -> Mapping[str, str]:
    """Proposals, the text on the table, votes and decisions."""
    state = dialog.state
    found = {f"proposal {p.ref}": f"{p.by}: {p.text}" for p in state.table.proposals}
    for ref in state.table.vetoed:
        found[f"proposal {ref}"] = "vetoed"
    if state.table.standing is not None:
        signers = ", ".join(f"{who} (turn {turn})" for who, turn in state.table.standing.signers)
        found["text to sign"] = f"{state.table.standing.proposal.ref}, signed by {signers or 'nobody'}"
    for poll in state.polls.open:
        found[f"vote {poll.ref}"] = ", ".join(f"{b.agent} {b.choice}" for b in poll.ballots) or "nobody yet"
    for made in state.table.decisions:
        found[f"decision {made.ref or made.entry}"] = f"{made.outcome} ({made.method}) {made.evidence}"
    return found


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

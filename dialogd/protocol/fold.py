"""The fold: one entry after another, what a dialog has come to.

Daemon-written turns carry numbered, canonical marks; turns written by hand carry whatever the person typed,
so the same rules number and sign for them here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from dialogd.protocol import units
from dialogd.protocol.hashing import digest
from dialogd.protocol.marks import is_outcome, same_text, summary_of
from dialogd.protocol.model import (
    ANY,
    USER,
    Condition,
    Debt,
    Entry,
    Header,
    Limits,
    Mark,
    Outcome,
    Proposal,
    Standing,
    State,
)
from dialogd.protocol.money import accounted
from dialogd.protocol.order import next_agent


def fold(header: Header, state: State, entry: Entry) -> State:
    """The state after `entry`. Damaged and unfinished entries only count as notes, but for the person's controls."""
    if entry.condition in (Condition.DAMAGED, Condition.UNFINISHED):
        state = replace(state, notes=state.notes + 1)
        # What paused the dialog goes on doing so while the person types below it.
        is_typing = entry.condition is Condition.UNFINISHED and state.outcome is None
        return _controls(header, state, entry) if is_typing else state
    number, notes = (entry.number, 0) if entry.is_turn else (state.number, state.notes + 1)
    state = accounted(header, replace(state, number=number, notes=notes), entry)
    if entry.by == USER:
        return _person(header, state, entry)
    if entry.is_turn:
        return _agent(header, state, entry)
    return _system(header, state, entry)


def ending(entry: Entry) -> Mark | None:
    """The outcome mark by which this entry ends the dialog: one that no TURN line follows."""
    if entry.turn is not None:
        return None
    return next((m for m in entry.marks if is_outcome(m)), None)


def _person(header: Header, state: State, entry: Entry) -> State:
    state = _controls(header, state, entry)
    if entry.is_turn:
        state = replace(state, debts=(), standing=None, deadlock=(), question="", asker="", failed=frozenset())
        if state.outcome is not None and ending(entry) is None:
            state = replace(state, outcome=None, base=entry.number - 1)
    elif entry.turn is not None:
        state = replace(state, debts=_without(state, USER), question="", asker="")
    return _last_word(state, entry)


def _controls(header: Header, state: State, entry: Entry) -> State:
    """What only the person may say: pause, limits, skip, retry."""
    for mark in entry.marks:
        who = mark.value.split(" ")[0]
        if mark.name in ("PAUSED", "RESUMED"):
            state = replace(state, paused=mark.name == "PAUSED")
        elif mark.name == "LIMIT":
            state = replace(state, limits=limit(state.limits, mark.value)[0])
        elif mark.name == "SKIP" and header.agent(who):
            state = replace(state, debts=_without(state, who, USER), last_agent=who)
            if entry.turn is None and not state.debts:
                state = _open(state, entry, (next_agent(header, state, who),))
        elif mark.name == "RETRY" and header.agent(who):
            state = replace(state, debts=_without(state, who, USER), failed=state.failed - {who})
            state = _open(state, entry, (who,))
    return state


def _agent(header: Header, state: State, entry: Entry) -> State:
    by_hand = entry.frame is None
    state = replace(
        state,
        debts=() if by_hand else _without(state, entry.by, ANY),
        failed=state.failed - {entry.by},
        last_agent=entry.by,
        spoken=True,
    )
    state = _positions(state, entry)
    asked = entry.mark("QUESTION_FOR_USER")
    if asked is not None:
        state = replace(state, question=asked.value or "(see above)", asker=entry.by)
    return _last_word(state, entry)


def _positions(state: State, entry: Entry) -> State:
    """Proposals, signatures, objections and calls for a deadlock of one agent turn."""
    state = replace(state, proposals=(*state.proposals, *_proposals(state, entry)))
    if entry.mark("OBJECTION"):
        state = replace(state, standing=None)
    called = entry.mark("DEADLOCK") is not None
    against = called or entry.mark("OBJECTION") is not None
    proposed = entry.mark("CONSENSUS_PROPOSED")
    if proposed is not None:
        state = _propose(state, entry, proposed.ref, proposed.value)
    elif entry.frame is None and entry.mark("CONSENSUS_REACHED") and entry.turn is not None and not against:
        state = _asked_by_hand(state, entry)
    if not against:
        state = _sign(state, entry)
    return replace(state, deadlock=(*_others(state.deadlock, entry.by), entry.by) if called else ())


def _proposals(state: State, entry: Entry) -> Iterator[Proposal]:
    """The entry's proposals; those typed by hand get the next free numbers."""
    free = int(next_ref(state)[1:])
    for mark in entry.all("PROPOSAL"):
        ref = mark.ref or f"P{free}"
        free = max(free, int(ref[1:]) + 1)
        yield Proposal(ref, entry.by, mark.value, entry.id)


def _asked_by_hand(state: State, entry: Entry) -> State:
    summary = summary_of(entry.body)
    if summary and (state.standing is None or digest(same_text(summary)) != state.standing.proposal.sha):
        return _propose(state, entry, next_ref(state), digest(same_text(summary)))
    if state.standing is not None and not state.standing.signed_by(entry.by):
        signers = (*state.standing.signers, (entry.by, entry.number))
        return replace(state, standing=replace(state.standing, signers=signers))
    return state


def _propose(state: State, entry: Entry, ref: str, sha: str) -> State:
    proposal = Proposal(ref, entry.by, summary_of(entry.body) or entry.body, entry.id, sha)
    replaced = state.standing.replaced + 1 if state.standing else 0
    standing = Standing(proposal, ((entry.by, entry.number),), replaced)
    return replace(state, proposals=(*state.proposals, proposal), standing=standing)


def _sign(state: State, entry: Entry) -> State:
    standing = state.standing
    if standing is None or standing.signed_by(entry.by):
        return state
    if any(refers_to(mark, standing.proposal.ref) for mark in entry.all("AGREE")):
        return replace(state, standing=replace(standing, signers=(*standing.signers, (entry.by, entry.number))))
    return state


# The numbers that a value begins with. One that is named later, as in "P2, simpler than P4", is not meant; and a yes
# with a condition is not one.
_REFS = re.compile(
    r"[*_` ]*(?:(?:with|to|proposal|text) )*((?:P?\d{1,6}(?:(?: ?[,&+] ?| and )(?=P?\d))?)+)(?!\w)"
    r"(?![*_`]*[ ,;:—–-]*(?:but|except|if|minus|not|once|only|partly|partially|provided|unless|without)\b)",
    re.I,
)


def refers_to(mark: Mark, ref: str) -> bool:
    """True when an AGREE, VOTE … mark names the proposal `ref`: `[AGREE: P4]`, `[AGREE: P1, P4 | because …]`."""
    match = _REFS.match(mark.value)
    return mark.ref == ref or (match is not None and ref in re.findall(r"P\d+", match[1].upper()))


def _system(header: Header, state: State, entry: Entry) -> State:
    for mark in entry.marks:
        who = mark.fields[0]
        if mark.name == "AGENT_ERROR" and header.agent(who):
            state = replace(state, debts=_without(state, who), failed=state.failed | {who}, last_agent=who)
        elif mark.name == "STALLED" and header.agent(who):
            if entry.turn is not None:
                state = replace(state, debts=_without(state, who), last_agent=who)
            else:
                debts = tuple(replace(d, stalled=True) if d.agent == who else d for d in state.debts)
                state = replace(state, debts=debts)
    return _last_word(state, entry)


def _last_word(state: State, entry: Entry) -> State:
    """Carry out how the entry ends: the dialog's end, or the debts its TURN line opens."""
    end = ending(entry)
    if end is not None:
        return replace(state, outcome=Outcome(end.name, entry.by, entry.id, _reason(entry, end)), debts=())
    if state.outcome is not None:
        return replace(state, debts=())
    return _open(state, entry, entry.turn or ())


def _reason(entry: Entry, end: Mark) -> str:
    """Why the dialog ended, in words, as far as the entry says it."""
    decision = entry.mark("DECISION")
    if decision is not None:
        return f"{decision.ref} {', '.join(decision.fields)}"
    return end.value


def _open(state: State, entry: Entry, named: tuple[str, ...]) -> State:
    owing = {d.agent for d in state.debts}
    new = tuple(Debt(who, entry.id, entry.chain) for who in named if who not in owing)
    return replace(state, debts=(*state.debts, *new)) if new else state


def _without(state: State, *agents: str) -> tuple[Debt, ...]:
    return tuple(d for d in state.debts if d.agent not in agents)


def _others(signers: tuple[str, ...], agent: str) -> tuple[str, ...]:
    return tuple(s for s in signers if s != agent)


def next_ref(state: State) -> str:
    """The number that the next proposal gets: P1, P2 …"""
    highest = max((int(p.ref[1:]) for p in state.proposals if p.ref[1:].isdigit()), default=0)
    return f"P{highest + 1}"


_READERS: Mapping[str, Callable[[str], float | units.Budget]] = {
    "max_turns": units.count,
    "timeout": units.seconds,
    "max_message": units.count,
    "max_size": units.size,
    "budget": units.budget,
}


def limit(limits: Limits, text: str) -> tuple[Limits, str]:
    """Apply `max_turns 40` to limits; gives them back unchanged with the reason when it means nothing."""
    name, _, value = text.strip().partition(" ")
    key = name.lower().rstrip(":=").replace("-", "_")
    reader = _READERS.get(key)
    if reader is None:
        return limits, f"no limit is called {name!r}; there are: {', '.join(_READERS)}"
    try:
        read = reader(value.strip(" =:"))
        if isinstance(read, tuple):  # a budget is named anew as a whole
            return replace(limits, budget=read[0], tokens=read[1]), ""
        return replace(limits, **{key: read}), ""  # type: ignore[arg-type]
    except ValueError as error:
        return limits, f"{key}: {error}"

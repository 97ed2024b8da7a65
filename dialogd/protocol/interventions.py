"""What the person's hand does to a dialog: turns struck, proposals ruled out, agents invited or let go, step mode.

    [STRIKE: 7, 9 | reason]     those turns stop counting; what they set in motion (order, limits, cost) stays
    [VETO: P2 | reason]         P2 is ruled out for good
    [INVITE: C = Claude C @ http://localhost:3003]     one more agent, behind the others
    [LEAVE: B]                  B takes part no longer
    [LEAVE: USER]               nobody is at the table any more: nothing waits for the person
    [STEP: on]                  the turn comes back to the person each time

After the end a veto and step mode mean nothing; a strike of what the end rests on opens the dialog again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from dialogd.protocol import order
from dialogd.protocol.header import FIRST_PORT, read_agent
from dialogd.protocol.model import USER, Condition, Entry, Header, Mark, Participant, Said
from dialogd.protocol.questions import without_fields
from dialogd.protocol.state import Dialog, Hand, Question, State

NO_REASON = "no reason given"
MARKS = frozenset({"STRIKE", "VETO", "INVITE", "LEAVE", "STEP"})

# What a struck turn of the person keeps: it moved the dialog, and its own command moves it back.
_KEPT = frozenset({"STRIKE", "INVITE", "LEAVE", "STEP", "LIMIT", "PAUSED", "RESUMED", "SKIP", "RETRY"})
_ON, _OFF = frozenset({"on", "true", "yes"}), frozenset({"off", "false", "no"})
_SPAN = re.compile(r"(\d{1,9})(?:\s*[-–]\s*(\d{1,9}))?")
_REF = re.compile(r"\bP?#?(\d{1,6})\b", re.I)
_MOST_NAMED = 10_000  # turns of one STRIKE: after `## Turn 999999999`, typed by hand, a span may be as long


def first(header: Header) -> Hand:
    """What is set before the person has done anything."""
    return Hand(step=True) if header.setup.get("step") is True and not header.is_unattended else Hand()


def effective(header: Header, hand: Hand) -> Header:
    """The header with those that take part now, the person or nobody at the table; a judge that left judges no more."""
    if hand.is_away and not header.is_unattended:
        header = replace(header, setup=MappingProxyType({**header.setup, "person": "absent"}))
    if hand.cast is None or hand.cast == header.agents:
        return header
    rules = header.rules
    if rules.judge and all(agent.id != rules.judge for agent in hand.cast):
        rules = replace(rules, judge="")
    return replace(header, agents=hand.cast, rules=rules)


# -- what the marks say -------------------------------------------------------------------------------------------


def split(mark: Mark) -> tuple[str, str]:
    """What a mark names, and the reason behind its bar."""
    head, _, reason = mark.value.partition("|")
    return f"{mark.ref} {head}".strip(), reason.strip()


def turns_in(mark: Mark, most: int) -> frozenset[int]:
    """The turns that a STRIKE names, up to number `most` and `_MOST_NAMED` of them: `7`, `7, 9`, `3-5`."""
    found: set[int] = set()
    room = _MOST_NAMED
    for low, high in _SPAN.findall(split(mark)[0]):
        span = range(max(int(low), 1), min(int(high or low), most) + 1)[:room]
        found.update(span)
        room -= len(span)
    return frozenset(found)


def refs_in(mark: Mark) -> tuple[str, ...]:
    """The proposals that a VETO names: `P2`, `P2, P3`."""
    return tuple(dict.fromkeys(f"P{int(number)}" for number in _REF.findall(split(mark)[0])))


def invited(header: Header, text: str, left: Sequence[Participant] = ()) -> tuple[Participant | None, str]:
    """The agent that an INVITE means in a dialog of these agents, or None and why it can't take part.

    One of those who `left` comes back as it was, where nothing else is said; the others' daemons keep their ports.
    """
    said = text.partition("|")[0].strip()
    agent, problem = read_agent(said, free_port(header, left) - FIRST_PORT)
    if agent is None or problem:
        return None, problem.partition("; using")[0]
    before = next((one for one in left if one.id == agent.id), None)
    if before is not None:
        named = agent if agent.is_named else replace(agent, name=before.name, is_named=before.is_named)
        agent = named if "@" in said else replace(named, url=before.url)
    taken = next((one for one in header.agents if one.id.casefold() == agent.id.casefold()), None)
    if taken is not None:
        return None, f"{taken.id} takes part already"
    others = (*header.agents, *(one for one in left if one.id != agent.id))
    other = next((one for one in others if _port(one) == _port(agent)), None)
    if other is not None:
        return None, f"{agent.id} cannot listen on port {_port(agent)}: {other.id} does"
    return agent, ""


def free_port(header: Header, left: Sequence[Participant] = ()) -> int:
    """The port for one more agent: 3001 and its seat, or the next that no agent has, nor one that `left`."""
    taken = {_port(agent) for agent in (*header.agents, *left)}
    wanted = FIRST_PORT + len(header.agents)
    return next(port for port in range(wanted, 65_536) if port not in taken)


def _port(agent: Participant) -> int:
    return int(agent.url.rpartition(":")[2])


def joined(header: Header, marks: Sequence[Mark]) -> Header:
    """The header once the INVITE marks of an entry count: its TURN line may name who they invite."""
    for mark in marks:
        agent = invited(header, mark.value)[0] if mark.name == "INVITE" else None
        if agent is not None:
            header = replace(header, agents=(*header.agents, agent))
    return header


@dataclass(frozen=True, slots=True)
class Strike:
    """That `turn` was struck in `entry`, for this reason ("" where none was given)."""

    turn: int
    reason: str
    entry: Entry

    @property
    def in_words(self) -> str:
        """What stands in the place of the turn's text."""
        return f"turn {self.turn} was withdrawn by the person" + (f": {self.reason}" if self.reason else "")


def strikes(dialog: Dialog) -> Mapping[int, Strike]:
    """The turns that were struck, by number; of several strikes the first."""
    found: dict[int, Strike] = {}
    for entry in dialog.entries if dialog.state.hand.struck else ():
        if entry.by != USER or entry.condition is Condition.DAMAGED:
            continue
        for mark in entry.written:
            if mark.name == "STRIKE":
                for turn in sorted(turns_in(mark, dialog.state.number) & dialog.state.hand.struck):
                    found.setdefault(turn, Strike(turn, split(mark)[1], entry))
    return found


def vetoes(dialog: Dialog) -> Mapping[str, str]:
    """The reason of each veto ("" where none was given), by proposal."""
    ruled_out = (decision for decision in dialog.state.table.decisions if decision.method == "veto")
    return {veto.ref: "" if veto.reason == NO_REASON else veto.reason for veto in ruled_out}


# -- what they change ---------------------------------------------------------------------------------------------


def controls(said: Said) -> tuple[Mark, ...]:
    """The marks of a person's entry that move the dialog; of a struck one those that stay."""
    return tuple(m for m in said.withdrawn if m.name in _KEPT) if said.is_struck else said.marks


def done(header: Header, state: State, said: Said, mark: Mark) -> tuple[str, ...]:
    """Change `state` as a mark of the person's hand says; gives who is next where nobody owes a turn any more."""
    named, _ = split(mark)
    match mark.name:
        case "STRIKE":
            return _struck(state, turns_in(mark, state.number - said.is_turn))
        case "VETO" if state.outcome is None:
            known = {proposal.ref for proposal in state.table.proposals} - {*state.table.vetoed}
            for ref in (ref for ref in refs_in(mark) if ref in known):
                state.table = state.table.ruled_out(ref, split(mark)[1] or NO_REASON, said, state.number)
                state.polls = state.polls.closed(ref)
        case "INVITE":
            agent, _ = invited(header, mark.value, state.hand.left)
            if agent is not None:
                left = tuple(one for one in state.hand.left if one.id != agent.id)
                state.hand = replace(state.hand, cast=(*header.agents, agent), left=left)
                # It comes behind the others, as if it had had its chance just now.
                state.floor = replace(state.floor, chance_at={**state.floor.chance_at, agent.id: state.number})
        case "LEAVE" if named.upper() == USER:
            state.hand = replace(state.hand, is_away=True, step=False)
        case "LEAVE":
            who = next((a.id for a in header.agents if a.id.casefold() == named.casefold()), "")
            if who and len(header.agents) > 1:
                return _left(header, state, who)
        case "STEP" if state.outcome is None and not header.is_unattended and named.casefold() in _ON | _OFF:
            state.hand = replace(state.hand, step=named.casefold() in _ON)
    return ()


def _struck(state: State, turns: frozenset[int]) -> tuple[str, ...]:
    """Strike the turns; their marks are taken away where the file is read, which folds it once more."""
    if not turns <= state.hand.struck:
        state.hand = replace(state.hand, struck=state.hand.struck | turns)
    outcome = state.outcome
    if outcome is None:
        return ()
    by_agreement = outcome.name in ("CONSENSUS_REACHED", "DECIDED")
    ref = re.match(r"P\d+\b", outcome.reason)
    is_lost = by_agreement and state.table.rests_on(state.hand.struck, ref[0] if ref else "", outcome.reason)
    if not is_lost and outcome.entry not in map(str, turns):
        return ()
    state.outcome = None
    return (USER,)


def _left(header: Header, state: State, who: str) -> tuple[str, ...]:
    """Let an agent go; gives who is next where it was the one that owed a turn."""
    is_judge, is_awaited = who == header.judge, who in order.awaited(header, state)
    owed = any(debt.agent == who for debt in state.debts.open)
    was_to_decide = state.escalation.to == who or (owed and is_judge)
    cast = tuple(agent for agent in header.agents if agent.id != who)
    ids = [agent.id for agent in header.agents]
    before = ids[ids.index(who) - 1]  # so that the order goes on where it was
    last = before if state.floor.last == who else state.floor.last
    state.hand = replace(state.hand, cast=cast, left=(*state.hand.left, *(a for a in header.agents if a.id == who)))
    state.debts = replace(state.debts.without(who), failed=state.debts.failed - {who})
    state.floor = replace(state.floor.unqueued(who), last=last)
    state.table = state.table.left(who, was_judge=is_judge)
    state.polls = state.polls.left(who)
    if state.escalation.to == who:
        state.escalation = replace(state.escalation, to=USER)
    if state.outcome is not None:
        return ()
    now = effective(header, state.hand)
    order.passed_over(now, state, who)
    state.floor = replace(state.floor, last=last)
    if is_awaited and not was_to_decide and all(debt.agent == USER for debt in state.debts.open):
        # That it may leave is what the person was asked; where one is left, a text on the table still waits for them.
        if len(cast) == 1 and state.table.standing is not None:
            return ()
        state.debts, state.questions = replace(state.debts, open=()), replace(state.questions, open=())
        return order.following(now, state, last)
    if was_to_decide and not state.questions.open:
        why = f": {without_fields(state.escalation.why)}" if state.escalation.why else ""
        question = Question(f"{who}, who was to decide, has left; please do{why}")
        state.questions = replace(state.questions, open=(question,))
    if not owed or state.debts.open:
        return ()
    is_asked = was_to_decide or state.questions.open or state.escalation.to == USER
    return (USER,) if is_asked else order.following(now, state, last)

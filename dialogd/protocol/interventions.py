"""What the person's hand does to a dialog: turns struck, proposals ruled out, agents invited or let go, step mode.

    [STRIKE: 7, 9 | reason]     those turns stop counting; what they set in motion (order, limits, cost) stays
    [VETO: P2 | reason]         P2 is ruled out for good
    [INVITE: C = Claude C @ http://localhost:3003]     one more agent, behind the others
    [LEAVE: B]                  B takes part no longer
    [LEAVE: USER]               nobody is at the table any more: nothing waits for the person
    [STEP: on]                  the word comes back to the person after every turn

After the end a veto and step mode mean nothing; a strike of what the end rests on opens the dialog again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from dialogd.protocol import order, voting
from dialogd.protocol.header import FIRST_PORT, read_agent
from dialogd.protocol.model import USER, Agent, Entry, Header, Mark
from dialogd.protocol.order import following
from dialogd.protocol.questions import Question, without_fields
from dialogd.protocol.settle import awaited
from dialogd.protocol.state import NO_HAND, Decision, Hand, Poll, State

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
    return Hand(step=True) if header.setup.get("step") is True and not header.is_unattended else NO_HAND


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


def invited(header: Header, text: str, left: Sequence[Agent] = ()) -> tuple[Agent | None, str]:
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


def free_port(header: Header, left: Sequence[Agent] = ()) -> int:
    """The port for one more agent: 3001 and its seat, or the next that no agent has, nor one that `left`."""
    taken = {_port(agent) for agent in (*header.agents, *left)}
    wanted = FIRST_PORT + len(header.agents)
    return next(port for port in range(wanted, 65_536) if port not in taken)


def _port(agent: Agent) -> int:
    return int(agent.url.rpartition(":")[2])


def joined(header: Header, marks: Sequence[Mark]) -> Header:
    """The header once the INVITE marks of an entry count: its TURN line may name who they invite."""
    for mark in marks:
        agent = invited(header, mark.value)[0] if mark.name == "INVITE" else None
        if agent is not None:
            header = replace(header, agents=(*header.agents, agent))
    return header


# -- what they change ---------------------------------------------------------------------------------------------


def controls(entry: Entry) -> tuple[Mark, ...]:
    """The marks of a person's entry that move the dialog; of a struck one those that stay."""
    return tuple(m for m in entry.withdrawn if m.name in _KEPT) if entry.is_struck else entry.marks


def done(header: Header, state: State, entry: Entry, mark: Mark) -> tuple[State, tuple[str, ...]]:
    """The state after a mark of the person's hand, and whom it gives the word where nobody owes a turn any more."""
    match mark.name:
        case "STRIKE":
            return _struck(state, mark, state.number - entry.is_turn)
        case "VETO" if state.outcome is None:
            for ref in refs_in(mark):
                state = _vetoed(state, entry, ref, split(mark)[1])
        case "INVITE":
            agent, _ = invited(header, mark.value, state.hand.left)
            return (_invited(header, state, agent) if agent is not None else state), ()
        case "LEAVE" if split(mark)[0].upper() == USER:
            return state.but(hand=replace(state.hand, is_away=True, step=False)), ()
        case "LEAVE":
            who = next((a.id for a in header.agents if a.id.casefold() == split(mark)[0].casefold()), "")
            if who and len(header.agents) > 1:
                return _left(header, state, who)
        case "STEP" if (
            state.outcome is None and not header.is_unattended and (word := split(mark)[0].casefold()) in _ON | _OFF
        ):
            state = state.but(hand=replace(state.hand, step=word in _ON))
    return state, ()


def _struck(state: State, mark: Mark, most: int) -> tuple[State, tuple[str, ...]]:
    """The turns are struck; their marks are taken away where the file is read, which folds it once more."""
    turns = turns_in(mark, most)
    if not turns <= state.hand.struck:
        state = state.but(hand=replace(state.hand, struck=state.hand.struck | turns))
    if state.outcome is None or not (state.outcome.entry in map(str, turns) or _has_lost_its_ground(state)):
        return state, ()
    return state.but(outcome=None), (USER,)


def _has_lost_its_ground(state: State) -> bool:
    """True when the dialog ended by an agreement on a text, or with a signature, that is struck."""
    outcome = state.outcome
    if outcome is None or outcome.name not in ("CONSENSUS_REACHED", "DECIDED"):
        return False
    ref = re.match(r"P\d+\b", outcome.reason)
    return voting.rests_on_struck(state, ref[0] if ref else "", outcome.reason)


def _vetoed(state: State, entry: Entry, ref: str, reason: str) -> State:
    """The state with a proposal ruled out: nothing that was, or is to be, decided on it counts."""
    if ref in state.hand.vetoed or all(proposal.ref != ref for proposal in state.proposals):
        return state
    evidence = f"by the person after turn {state.number}"
    ruling = Decision(ref, "rejected", "veto", evidence, reason or NO_REASON, entry.id)
    standing = state.standing
    return state.but(
        hand=replace(state.hand, vetoed=(*state.hand.vetoed, ref)),
        polls=tuple(poll for poll in state.polls if poll.ref != ref),
        decisions=(*(decision for decision in state.decisions if decision.ref != ref), ruling),
        standing=None if standing is not None and standing.proposal.ref == ref else standing,
        red_team="" if re.search(rf"\b{ref}\b", state.red_team) else state.red_team,
    )


def _invited(header: Header, state: State, agent: Agent) -> State:
    """The state with one more agent, which had its chance just now: it comes behind the others."""
    return state.but(
        hand=replace(state.hand, cast=(*header.agents, agent), left=_others(state.hand.left, agent.id)),
        chance_at=MappingProxyType({**state.chance_at, agent.id: state.number}),
    )


def _left(header: Header, state: State, who: str) -> tuple[State, tuple[str, ...]]:
    """The state without an agent, and who is next where it was the one that owed a turn."""
    owed = any(debt.agent == who for debt in state.debts)
    is_awaited = who in awaited(header, state)
    was_to_decide = state.escalated == who or (owed and who == header.judge)
    cast, gone = _others(header.agents, who), tuple(agent for agent in header.agents if agent.id == who)
    ids = [agent.id for agent in header.agents]
    before = ids[ids.index(who) - 1]  # so that the order goes on where it was
    now = effective(header, replace(state.hand, cast=cast))
    state = state.but(
        hand=replace(state.hand, cast=cast, left=(*state.hand.left, *gone)),
        debts=tuple(debt for debt in state.debts if debt.agent != who),
        failed=state.failed - {who},
        queue=tuple(one for one in state.queue if one != who),
        deadlock=tuple(one for one in state.deadlock if one != who),
        polls=tuple(_unheard(poll, who) for poll in state.polls),
        blocking=tuple(finding for finding in state.blocking if finding[1] != who),
        last_agent=before if state.last_agent == who else state.last_agent,
        escalated=USER if state.escalated == who else state.escalated,
        judged=() if who == header.judge else state.judged,
    )
    if state.outcome is not None:
        return state, ()
    state = order.over(now, state, who)
    if is_awaited and not was_to_decide and all(debt.agent == USER for debt in state.debts):
        # That it may leave is what the person was asked; where one is left, a text on the table still waits for them.
        is_last = len(cast) == 1 and state.standing is not None
        return (state, ()) if is_last else (state.but(debts=(), questions=()), following(now, state, state.last_agent))
    if was_to_decide and not state.questions:
        why = f": {without_fields(state.escalation)}" if state.escalation else ""
        state = state.but(questions=(Question(f"{who}, who was to decide, has left; please do{why}"),))
    if not owed or state.debts:
        return state, ()
    is_asked = was_to_decide or state.questions or state.escalated == USER
    return state, (USER,) if is_asked else following(now, state, state.last_agent)


def _others(agents: tuple[Agent, ...], who: str) -> tuple[Agent, ...]:
    return tuple(agent for agent in agents if agent.id != who)


def _unheard(poll: Poll, who: str) -> Poll:
    """The poll without the vote of an agent that has left."""
    return replace(
        poll, ballots=tuple(ballot for ballot in poll.ballots if ballot.agent != who), heard=poll.heard - {who}
    )

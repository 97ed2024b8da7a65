"""The fold: one entry after another, what a dialog has come to; and what the person's hand does to it.

Daemon-written turns carry numbered, canonical marks; turns written by hand carry whatever the person typed,
so the same rules number and sign for them here. Each step takes a state of its own and changes it.

    [STRIKE: 7, 9 | reason]     those turns stop counting; what they set in motion (order, limits, cost) stays
    [VETO: P2 | reason]         P2 is ruled out for good
    [INVITE: C = Claude C @ http://localhost:3003]     one more agent, behind the others
    [LEAVE: B]                  B takes part no longer
    [LEAVE: USER]               nobody is at the table any more: nothing waits for the person
    [STEP: on]                  the turn comes back to the person each time
    [KEY: B | ssh-ed25519 AAAA…]     B signs with that key from here on

After the end a veto and step mode mean nothing; a strike of what the end rests on opens the dialog again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from dialogd.protocol import build, order
from dialogd.protocol.build import Due, Tasks, reviewed
from dialogd.protocol.header import FIRST_PORT, read_agent
from dialogd.protocol.keys import Keys, read_keys
from dialogd.protocol.marks import CHANGES, LASTING, picked, round_of
from dialogd.protocol.model import ANY, USER, Condition, Entry, Header, Mark, Outcome, Participant, Said
from dialogd.protocol.questions import asked_in, without_fields
from dialogd.protocol.state import (
    Dialog,
    Escalation,
    Hand,
    Polls,
    Question,
    Questions,
    Seal,
    State,
    Table,
    accounted,
)

NO_REASON = "no reason given"
_ON, _OFF = frozenset({"on", "true", "yes"}), frozenset({"off", "false", "no"})
_STAFF = frozenset({"STRIKE", "INVITE", "LEAVE", "RETRY", "SKIP"})  # by which a build may be another agent's turn
_MOST_NAMED = 10_000  # turns of one STRIKE: after `## Turn 999999999`, typed by hand, a span may be as long


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


# -- What the marks of the person's hand say --------------------------------------------------------------------------


def _split(mark: Mark) -> tuple[str, str]:
    head, _, reason = mark.value.partition("|")
    return f"{mark.ref} {head}".strip(), reason.strip()


def turns_in(mark: Mark, most: int) -> frozenset[int]:
    """The turns that a STRIKE names, up to number `most` and `_MOST_NAMED` of them: `7`, `7, 9`, `3-5`."""
    found: set[int] = set()
    for low, high in re.findall(r"(\d{1,9})(?:\s*[-–]\s*(\d{1,9}))?", _split(mark)[0]):
        span = range(max(int(low), 1), min(int(high or low), most) + 1)
        found.update(span[: _MOST_NAMED - len(found)])
    return frozenset(found)


def refs_in(mark: Mark) -> tuple[str, ...]:
    """The proposals that a VETO names: `P2`, `P2, P3`."""
    return tuple(dict.fromkeys(f"P{int(n)}" for n in re.findall(r"\bP?#?(\d{1,6})\b", _split(mark)[0], re.I)))


def invited(header: Header, text: str, left: Sequence[Participant] = ()) -> tuple[Participant | None, str]:
    """The agent that an INVITE means in a dialog of these agents, or None and why it can't take part."""
    # One of those who `left` comes back as it was, where nothing else is said; the others' daemons keep their ports.
    said = text.partition("|")[0].strip()
    agent, problem = read_agent(said, free_port(header, left) - FIRST_PORT)
    if agent is None or problem:
        return None, problem.partition("; using")[0]
    if before := next((one for one in left if one.id == agent.id), None):
        named = agent if agent.is_named else replace(agent, name=before.name, is_named=before.is_named)
        agent = named if "@" in said else replace(named, url=before.url)
    taken = next((one for one in header.agents if one.id.casefold() == agent.id.casefold()), None)
    if taken is not None:
        return None, f"{taken.id} takes part already"
    others = (*header.agents, *(one for one in left if one.id != agent.id))
    other = next((one for one in others if one.port == agent.port), None)
    if other is not None:
        return None, f"{agent.id} cannot listen on port {agent.port}: {other.id} does"
    return agent, ""


def free_port(header: Header, left: Sequence[Participant] = ()) -> int:
    """The port for one more agent: 3001 and its seat, or the next that no agent has, nor one that `left`."""
    taken = {agent.port for agent in (*header.agents, *left)}
    return next(port for port in range(FIRST_PORT + len(header.agents), 65_536) if port not in taken)


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
    struck = dialog.state.hand.struck
    for entry in dialog.entries if struck else ():
        marks = entry.written if entry.by == USER and entry.condition is not Condition.DAMAGED else ()
        for mark in (mark for mark in marks if mark.name == "STRIKE"):
            for turn in sorted(turns_in(mark, dialog.state.number) & struck):
                found.setdefault(turn, Strike(turn, _split(mark)[1], entry))
    return found


def vetoes(dialog: Dialog) -> Mapping[str, str]:
    """The reason of each veto ("" where none was given), by proposal."""
    ruled_out = (decision for decision in dialog.state.table.decisions if decision.method == "veto")
    return {veto.ref: "" if veto.reason == NO_REASON else veto.reason for veto in ruled_out}


# -- The fold ---------------------------------------------------------------------------------------------------------


def fold(header: Header, state: State, entry: Entry) -> State:
    """The state after `entry`. Damaged and unfinished entries only count as notes, but for the person's controls."""
    state = State(**vars(state))
    if entry.condition is Condition.DAMAGED:
        state.notes += 1
    elif entry.condition is Condition.UNFINISHED:
        state.notes += 1
        if state.outcome is None:  # what paused the dialog goes on doing so while the person types below it
            _controls(header, state, entry)
        _approved(header, state, entry)
    else:
        state.spent = accounted(header, state.spent, entry)
        _said(header, state, entry)
    return state


def state_after(header: Header, state: State, said: Said) -> State:
    """The state after what is not written yet; with `turn=()` nobody is named in its TURN line so far."""
    state = State(**vars(state))
    _said(header, state, said)
    return state


def _said(header: Header, state: State, said: Said) -> None:
    state.number, state.notes = (said.number, 0) if said.is_turn else (state.number, state.notes + 1)
    before, had_ended = state.build, state.outcome
    state.build = build.folded(before, said, is_over=had_ended is not None and had_ended.is_complete)
    if said.by == USER:
        _person(header, state, said)
    elif said.is_turn:
        _agent(header, state, said)
    else:
        _system(header, before, state, said)
    if state.polls.waiting and header.rules.phase(state.floor.rounds) >= header.rules.voting:
        state.polls = state.polls.opened(state.number)
    if state.debts.seals:
        state.debts = state.debts.unsealed()
    if before:
        here = effective(header, state.hand)  # who left by this very entry is waited for no more
        gone = state.absent | {agent.id for agent in state.hand.left}
        state.build = build.handed_out(replace(state.build, gone=gone, is_alone=here.is_unattended))
        if state.outcome is None:
            _in_build(here, before, state, said, is_reopened=had_ended is not None)


def _in_build(header: Header, before: Tasks, state: State, said: Said, *, is_reopened: bool) -> None:
    """Whose turn it is in a build, and what the person is asked: what their word changes is owed anew."""
    now, asks = state.build, build.question(state.build)  # what the build itself asks is no agent's
    waits = {0, *(task.number for task in now.all if task.by == USER)}
    asked = [replace(q, asker="") if asks and q.text == asks else q for q in state.questions.open if q.task in waits]
    state.questions = replace(state.questions, open=tuple(asked))
    left = [who for who in state.owing if who not in (USER, ANY) and header.agent(who) is None]
    state.debts = state.debts.without(*left)
    is_word = said.is_on_tasks or (said.turn is None and any(mark.name in _STAFF for mark in said.marks))
    is_word = is_word and said.by == USER and not is_reopened
    if is_word:
        # Who was at what is not due any more is asked anew: the review of a dropped task is no summary. What it asked
        # the person is answered by that, and what the moderator asked with its plan by the word on that.
        other = before.others_than(now) if said.turn is None else ()
        idle = [who for who in state.owing if who not in now.next_turns] if said.mark("STRIKE") else []
        is_planned = before.due_of(USER)[0] is Due.CONFIRM is not now.due_of(USER)[0]
        answered = {*other, *now.gone, *[now.moderator] * is_planned}
        asked = [q for q in asked if q.task or (q.asker and q.asker not in answered)]
        state.questions = replace(state.questions, open=tuple(asked))
        is_in_steps = state.hand.step and not said.is_on_tasks
        named = () if is_in_steps else order.at_work(header, state)
        state.debts = state.debts.without(*other, *idle, *() if asked or is_in_steps else (USER,))
        state.debts = state.debts.opened(said, (*named, *[USER] * bool(asked)))
    if (is_word or left) and not state.debts.open:
        state.debts = state.debts.opened(said, (USER,))
    if state.owing == (USER,) and not asked:
        asks = order.ways_out(header, state) or asks or "how does the build go on?" * bool(order.at_work(header, state))
        state.questions = replace(state.questions, open=(Question(asks, entry=said.id),) if asks else ())


# -- The person -------------------------------------------------------------------------------------------------------


def _person(header: Header, state: State, said: Said) -> None:
    _controls(header, state, said)
    _approved(header, state, said)
    if said.is_turn:
        rejects = said.turn is None and said.ending is None and said.rejects
        named = order.reopened(header, state) if rejects else ()  # typed alone, it passes the turn as a word does
        # A person's turn clears debts, signatures, votes, and the round that was under way.
        state.debts = replace(state.debts, open=(), failed=frozenset(), missed={})
        state.table, state.polls, state.floor = state.table.cleared(), state.polls.anew(said.number), state.floor.anew()
        state.questions, state.escalation = Questions(), Escalation()
        state.approved = state.closing = ""
        if state.outcome is not None and said.ending is None:
            _reopened(state, said)
        if rejects:
            state.debts = state.debts.opened(said, named)
        if not said.counts:
            state.table = state.table.reserved(said)
    elif said.turn is not None:
        if USER in state.owing:
            state.floor = state.floor.unqueued(USER)
            if state.escalation.to == USER:
                state.escalation = Escalation()
        if USER not in said.turn:  # else what they were asked is open still
            _unasked(state, USER)
    _opened(header, state, state.table.proposed(said))
    _last_word(state, said)


def _unasked(state: State, *closes: str) -> None:
    """Close debts of these, and every question to the person."""
    state.debts, state.questions = state.debts.without(*closes), replace(state.questions, open=())


def _approved(header: Header, state: State, said: Said) -> None:
    mark = said.mark("APPROVED")
    if said.is_turn or state.approved or mark is None or mark.value.startswith("task-"):
        return
    if state.outcome is not None or order.is_takeable(header, state):
        state.approved = said.id


def _reopened(state: State, said: Said) -> None:
    state.outcome = None
    state.approved = ""
    state.rejected = said.id if said.rejects and said.counts else ""
    state.base, state.began = state.number - said.is_turn, said.at
    state.floor, state.polls = state.floor.reopened(), Polls()
    state.table = replace(state.table, is_tested=False)


def _controls(header: Header, state: State, said: Said) -> None:
    if said.mark("TO") is not None:
        state.floor = order.queued(header, state.floor, said)
    for mark in said.marks if said.counts else (mark for mark in said.written if mark.name in LASTING):
        who = mark.value.split(" ")[0]
        named: tuple[str, ...] = ()  # who is next where nobody owes a turn any more
        if mark.name in CHANGES:
            had_ended = state.outcome is not None
            named = _by_hand(header, state, said, mark)
            if had_ended and state.outcome is None:
                _reopened(state, said)
            header = effective(header, state.hand)
        elif mark.name in ("PAUSED", "RESUMED"):
            state.paused, state.paused_by = mark.name == "PAUSED", said.from_session
        elif mark.name == "LIMIT":
            state.limits, _ = state.limits.changed(mark.value)
        elif mark.name == "SKIP" and header.agent(who):
            state.table = replace(state.table, judged=())
            if state.escalation.to == who:
                state.escalation = Escalation()
            state.debts = state.debts.without(who, USER)
            order.passed_over(header, state, who)
            named = order.following(header, state, who)
        elif mark.name == "RETRY" and header.agent(who):  # one more failure, and it is absent again
            debts = state.debts.without(who, USER)
            missed = {one: 1 if one == who else times for one, times in debts.missed.items()}
            state.debts = replace(debts, failed=debts.failed - {who}, missed=missed).opened(said, (who,))
            own = tuple(question for question in state.questions.open if question.asker or question.task)
            state.questions = replace(state.questions, open=own)  # that it was absent is what daemons asked about
        if named and said.turn is None and not state.debts.open:
            state.debts = state.debts.opened(said, named)


def _by_hand(header: Header, state: State, said: Said, mark: Mark) -> tuple[str, ...]:
    """Carry out a mark of the person's hand; gives who is next where nobody owes a turn any more."""
    named, reason = _split(mark)
    match mark.name:
        case "STRIKE":
            return _strike(state, turns_in(mark, state.number - said.is_turn))
        case "VETO" if state.outcome is None:
            known = {proposal.ref for proposal in state.table.proposals} - {*state.table.vetoed}
            for ref in (ref for ref in refs_in(mark) if ref in known):
                state.table = state.table.ruled_out(ref, reason or NO_REASON, said, state.number)
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
                if state.hand.keys is not None:
                    state.hand = replace(state.hand, keys=state.hand.keys.without(who))
                return _leave(header, state, who)
        case "KEY":
            state.hand = replace(state.hand, keys=(state.hand.keys or Keys()).changed(mark))
        case "STEP" if state.outcome is None and not header.is_unattended and named.casefold() in _ON | _OFF:
            state.hand = replace(state.hand, step=named.casefold() in _ON)
    return ()


def _strike(state: State, turns: frozenset[int]) -> tuple[str, ...]:
    if not turns <= state.hand.struck:
        state.hand = replace(state.hand, struck=state.hand.struck | turns)
    if (outcome := state.outcome) is None:
        return ()
    ref = re.match(r"P\d+\b", outcome.reason)
    is_lost = outcome.is_agreed and state.table.rests_on(state.hand.struck, ref[0] if ref else "", outcome.reason)
    if is_lost or outcome.entry in map(str, turns):
        state.outcome = None
        return (USER,)
    return ()


def _leave(header: Header, state: State, who: str) -> tuple[str, ...]:
    """Let an agent go; gives who is next where it was the one that owed a turn."""
    is_judge, is_awaited = who == header.judge, who in order.awaited(header, state)
    owed = who in state.owing
    was_to_decide = state.escalation.to == who or (owed and is_judge)
    ids = [agent.id for agent in header.agents]
    last = ids[ids.index(who) - 1] if state.floor.last == who else state.floor.last  # the order goes on where it was
    cast = tuple(agent for agent in header.agents if agent.id != who)
    state.hand = replace(state.hand, cast=cast, left=(*state.hand.left, *(a for a in header.agents if a.id == who)))
    state.debts = replace(state.debts.without(who), failed=state.debts.failed - {who})
    state.floor = state.floor.unqueued(who)
    state.table = state.table.left(who, was_judge=is_judge)
    state.polls = state.polls.left(who)
    if state.escalation.to == who:
        state.escalation = replace(state.escalation, to=USER)
    if state.outcome is not None:
        state.floor = replace(state.floor, last=last)
        return ()
    now = effective(header, state.hand)
    order.passed_over(now, state, who)
    state.floor = replace(state.floor, last=last)
    if is_awaited and not was_to_decide and set(state.owing) <= {USER}:
        # That it may leave is what the person was asked; where one is left, a text on the table still waits for them.
        if len(cast) == 1 and state.table.standing is not None:
            return ()
        _unasked(state, USER)
        return order.following(now, state, last)
    if was_to_decide and not state.questions.open:
        why = f": {without_fields(state.escalation.why)}" if state.escalation.why else ""
        question = Question(f"{who}, who was to decide, has left; please do{why}")
        state.questions = replace(state.questions, open=(question,))
    if not owed or state.debts.open:
        return ()
    is_asked = was_to_decide or state.questions.open or state.escalation.to == USER
    return (USER,) if is_asked else order.following(now, state, last)


# -- Agents -----------------------------------------------------------------------------------------------------------


def _agent(header: Header, state: State, said: Said) -> None:
    closes = () if said.by_hand else (said.by, ANY, *((USER,) if header.is_unattended else ()))
    state.debts = state.debts.answered(said.by, *closes)
    if header.is_unattended and said.by in state.questions.askers:
        state.questions = replace(state.questions, told=state.questions.told | {said.by})
    made, may_vote, is_judge = order.spoken(header, state, said), said.by in header.voters, said.by == header.judge
    if said.counts:  # what was struck counts no more
        _opened(header, state, state.table.spoken(said, may_vote=may_vote, made=made))
    else:  # its agent was heard, and its numbers are taken
        state.table = state.table.reserved(said)
    if state.polls.open and may_vote:
        state.polls = state.polls.voted(said)
    # What others say after the judge's answer makes it old: both answers are about the same positions. So does its
    # question to the person: it answers anew once it knows what it lacked.
    if is_judge and said.counts and not said.asks:
        answer = picked(said.marks, order.positioned(header, state)) or ("", "")
        state.table = replace(state.table, judged=(*state.table.judged, answer))
    elif state.table.judged and (said.counts or not is_judge):
        state.table = replace(state.table, judged=())
    if said.counts:
        _decided(state, said)
    _escalated(header, state, said)
    if header.rules.has_findings:
        state.table = reviewed(state.table, state.build, said)
    state.questions = asked_in(said, said.by, state.questions)
    _last_word(state, said)


def _opened(header: Header, state: State, table: Table) -> None:
    """Take what is new on the table, to be put to the vote where this dialog votes."""
    new = tuple(proposal.ref for proposal in table.proposals[len(state.table.proposals) :])
    state.table = table
    if new and header.rules.verdict == "vote":
        state.polls = replace(state.polls, waiting=(*state.polls.waiting, *new))


def _decided(state: State, said: Said) -> None:
    failed_before = state.polls.failed
    for mark in said.decisions:
        table = state.table.decided(mark, said, state.hand.struck)
        if table is not state.table:
            made = table.decisions[-1]
            is_failed = made.method == "vote" and made.outcome != "approved"
            state.table = table
            state.polls = replace(state.polls.closed(mark.ref), failed=failed_before + 1 if is_failed else 0)


def _escalated(header: Header, state: State, said: Said) -> None:
    """Name who has to decide what the others could not: the moderator, else the person."""
    if header.rules.is_plain:
        return
    comes_back = header.is_unattended and said.asks
    if state.escalation.to == said.by and said.asked_after >= state.escalation.at and not comes_back:
        state.escalation = Escalation()
    mark = said.mark("ESCALATE")
    if mark is not None:
        above = header.moderator
        can = above != said.by or above in (said.turn or ())  # its own turn may be the one that reached the limit
        who = above if above and can and above not in state.absent else USER
        state.escalation = Escalation(who, mark.value, state.number)
        state.polls = replace(state.polls, failed=0)


# -- Daemons ----------------------------------------------------------------------------------------------------------


def _system(header: Header, before: Tasks, state: State, said: Said) -> None:
    if state.build:
        state.table = reviewed(state.table, state.build, said)
        if said.turn is not None and said.is_on_tasks:
            state.debts = state.debts.without(*before.others_than(state.build))
    for who in filter(header.agent, (*(who for who, *_ in said.failures), *said.silent)):
        _missing(header, state, said, who, is_stall=who in said.silent)
    sealed = said.mark("SEALED")
    if sealed is not None and header.agent(said.by) and not said.by_hand:
        others = (seal for seal in state.debts.seals if seal.agent != said.by)
        state.debts = replace(state.debts, seals=(*others, Seal(said.by, sealed.fields[0], said.id, said.re)))
    if (why := round_of(said.marks, "closing")) is not None:
        # The last round: who was called stalled has had its chance, nobody waits for the person.
        stalled = frozenset(debt.agent for debt in state.debts.open if debt.stalled)
        state.closing = why or "time"
        state.floor = replace(state.floor, spoke=stalled, passed=frozenset())
        state.debts = state.debts.without(USER, ANY, *stalled)
    _opened(header, state, state.table.proposed(said))  # a task that was carried on
    _decided(state, said)
    _escalated(header, state, said)
    if header.is_unattended and said.turn is not None:
        state.debts = state.debts.without(USER, *(() if ANY in said.turn else (ANY,)))
    state.questions = asked_in(said, "", state.questions)
    if said.mark("DEFAULT_TAKEN") is not None and said.turn is not None:
        _unasked(state, USER)
    _last_word(state, said)


def _missing(header: Header, state: State, said: Said, who: str, *, is_stall: bool) -> None:
    """Note that `who` failed, or gave no answer in time."""
    # Who is asked again at once, and who may still answer, has not been passed over.
    debts = state.debts.missing(who, is_stall=is_stall)
    if is_stall and said.turn is None and said.ending is None:
        called = tuple(replace(debt, stalled=True) if debt.agent == who else debt for debt in debts.open)
        state.debts = replace(debts, open=called)
        return
    state.debts = debts.without(who)
    if who in state.absent and state.escalation.to == who:
        state.escalation = replace(state.escalation, to=USER)
    if said.turn == (who,):
        state.floor = replace(state.floor, last=who)
    else:
        order.passed_over(header, state, who)


# -- How an entry ends ------------------------------------------------------------------------------------------------


def _last_word(state: State, said: Said) -> None:
    end = said.ending
    if end is not None:
        state.outcome = Outcome.of(said, end.name, _reason(said, end))
    if state.outcome is not None:
        state.debts = replace(state.debts, open=())
    elif said.turn:
        state.debts = state.debts.opened(said, said.turn)


def _reason(said: Said, end: Mark) -> str:
    if end.name == "STOPPED" or (end.name == "DEADLOCK" and end.value):
        return end.value
    decisions = [mark for mark in said.decisions if mark.fields[1:2] != ("review",)]  # a task's ends no build
    decision = next((mark for mark in decisions if mark.fields[0] == "approved"), decisions[0] if decisions else None)
    return f"{decision.ref} {', '.join(decision.fields)}".strip() if decision is not None else end.value


# -- The fold from the beginning --------------------------------------------------------------------------------------


def beginning(header: Header, struck: Collection[int] = ()) -> State:
    """The state before the first entry, in a dialog of which these turns are struck."""
    step = header.setup.get("step") is True and not header.is_unattended
    keys = read_keys(header.setup["keys"], []) if "keys" in header.setup else None
    hand = Hand(step=step, struck=frozenset(struck), keys=keys)
    tasks = replace(build.expected(header.rules, 0), is_alone=header.is_unattended)
    return State(limits=header.limits, hand=hand, build=tasks)


def steps(dialog: Dialog) -> Iterator[tuple[Entry, Header, State, State]]:
    """Each entry with the header that counted before it, and the states before and after it."""
    yield from _steps(dialog.header_as_written, dialog.entries, dialog.state.hand.struck)


def _steps(
    written: Header, entries: Iterable[Entry], struck: Collection[int]
) -> Iterator[tuple[Entry, Header, State, State]]:
    state, header = beginning(written, struck), written
    for entry in entries:
        before, state = state, fold(header, state, entry)
        yield entry, header, before, state
        if state.hand is not before.hand:
            header = effective(written, state.hand)


def refolded(written: Header, entries: tuple[Entry, ...], struck: frozenset[int]) -> tuple[tuple[Entry, ...], State]:
    """Entries and state once these turns have no marks any more; none of them, nothing changed."""
    while True:
        entries = tuple(_struck(entry) if entry.number in struck else entry for entry in entries)
        state = beginning(written, struck)
        for _, _, _, after in _steps(written, entries, struck):
            state = after
        if state.hand.struck == struck:
            return entries, state
        struck = state.hand.struck  # a dialog that is open again takes marks that it did not take before


def _struck(entry: Entry) -> Entry:
    """The turn without its marks; notes are numbered 0, and no strike names them."""
    if not entry.counts or not entry.is_turn or entry.condition is Condition.DAMAGED:
        return entry
    return replace(entry, withdrawn=entry.marks, marks=())

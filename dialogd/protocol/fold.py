"""The fold: one entry after another, what a dialog has come to.

Daemon-written turns carry numbered, canonical marks; turns written by hand carry whatever the person typed,
so the same rules number and sign for them here. Each step takes a state of its own and changes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from dialogd.protocol import build, interventions, order
from dialogd.protocol.build import Tasks
from dialogd.protocol.marks import picked, round_of
from dialogd.protocol.model import ANY, USER, Condition, Entry, Header, Mark, Said
from dialogd.protocol.money import accounted
from dialogd.protocol.polls import Polls
from dialogd.protocol.questions import asked_in
from dialogd.protocol.review import reviewed
from dialogd.protocol.rules import Build
from dialogd.protocol.state import Dialog, Escalation, Outcome, Question, Questions, State
from dialogd.protocol.table import Table


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


def foreseen(header: Header, state: State, said: Said) -> State:
    """The state after what is not written yet; with `turn=()` nobody is named in its TURN line so far."""
    state = State(**vars(state))
    _said(header, state, said)
    return state


def _said(header: Header, state: State, said: Said) -> None:
    state.number, state.notes = (said.number, 0) if said.is_turn else (state.number, state.notes + 1)
    before = state.tasks
    if header.rules.build is not None:
        is_over = state.outcome is not None and state.outcome.name in ("DECIDED", "DEADLOCK")
        state.tasks = build.folded(
            header.rules.build, state.tasks, said, is_unattended=header.is_unattended, is_over=is_over
        )
    if said.by == USER:
        _person(header, state, said)
        if header.rules.build is not None and said.turn is None and said.ending is None:
            here = interventions.effective(header, state.hand)  # who left by the same note is not asked
            _tasked(here, header.rules.build, before, state, said)
    elif said.is_turn:
        _agent(header, state, said)
    else:
        _system(header, state, said)
    if state.polls.waiting and header.rules.phase(state.floor.rounds) >= header.rules.voting:
        state.polls = state.polls.opened(state.number)
    if state.debts.seals:
        state.debts = state.debts.unsealed()
    if header.rules.build is not None:
        here = interventions.effective(header, state.hand)
        left = [who for who in state.owing if who not in (USER, ANY) and here.agent(who) is None]
        if left:  # a build needs both: the person is told
            state.debts = state.debts.without(*left)
            state.debts = state.debts if state.debts.open else state.debts.opened(said, (USER,))
        state.questions = _of_build(header.rules.build, before, state, said)


def _of_build(rules: Build, before: Tasks, state: State, said: Said) -> Questions:
    """The open questions; what the build itself asks is no agent's, and is what it waits for now."""
    old, new = build.question(rules, before), build.question(rules, state.tasks)
    asked = (replace(q, asker="", text=new) if q.text and q.text in (old, new) else q for q in state.questions.open)
    found = tuple(q for q in asked if q.asker or q.text)
    if new and not found and set(state.owing) == {USER} and state.outcome is None:
        found = (Question(new, entry=said.id),)
    return replace(state.questions, open=found)


# -- The person -------------------------------------------------------------------------------------------------------


def _person(header: Header, state: State, said: Said) -> None:
    _controls(header, state, said)
    _approved(header, state, said)
    if said.is_turn:
        rejects = said.turn is None and said.ending is None and any(m.name == "REJECTED" for m in said.written)
        named = order.reopened(header, state) if rejects else ()  # typed alone, it passes the turn as a word does
        _cleared(state, said)
        if state.outcome is not None and said.ending is None:
            _reopened(state, said)
        if rejects:
            state.debts = state.debts.opened(said, named)
        if said.is_struck:
            state.table = state.table.reserved(said)
    elif said.turn is not None:
        if USER in state.owing:
            state.floor = state.floor.unqueued(USER)
            if state.escalation.to == USER:
                state.escalation = Escalation()
        state.debts, state.questions = state.debts.without(USER), replace(state.questions, open=())
    _proposed(header, state, said)
    _last_word(state, said)


def _tasked(header: Header, rules: Build, before: Tasks, state: State, said: Said) -> None:
    """After the person's word on tasks, or on the gate, or once who was waited for is back: whose turn it is then.

    Who was at what is not due any more is asked anew: the review of a dropped task is no summary.
    """
    named = build.next_turn(rules, state.tasks)
    spoke = any(mark.name in ("TASK", "GATE") for mark in said.marks)
    (was, old), (now, new) = build.due(rules, before), build.due(rules, state.tasks)
    is_other = was is not now or (old and old.number) != (new and new.number)
    is_free = set(state.owing) <= {USER}
    is_back = said.mark("INVITE") is not None and is_free and not state.questions.open
    if (is_back or (spoke and (is_other or is_free))) and header.agent(named) and state.outcome is None:
        state.debts, state.questions = state.debts.without(*state.owing), replace(state.questions, open=())
        state.debts = state.debts.opened(said, (named,))


def _approved(header: Header, state: State, said: Said) -> None:
    """Take the person's approval, by a note: of the result, or of a text that only absent agents have not signed."""
    mark = said.mark("APPROVED")
    if said.is_turn or state.approved or mark is None or mark.value.startswith("task-"):
        return
    if state.outcome is not None or order.is_takeable(header, state):
        state.approved = said.id


def _cleared(state: State, said: Said) -> None:
    """Clear what a person's turn clears: debts, signatures, votes, and the round that was under way."""
    state.debts = replace(state.debts, open=(), failed=frozenset(), missed={})
    state.table = state.table.cleared()
    state.polls = state.polls.anew(said.number)
    state.floor = state.floor.anew()
    state.questions = Questions()
    state.escalation = Escalation()
    state.approved = state.closing = ""


def _reopened(state: State, said: Said) -> None:
    """Open the dialog again after its end: everything that is limited counts anew."""
    state.outcome = None
    state.approved = ""
    state.rejected = said.id if said.mark("REJECTED") is not None else ""
    state.base = state.number - said.is_turn
    state.began = said.at
    state.floor = state.floor.reopened()
    state.polls = Polls()
    state.table = replace(state.table, is_tested=False)


def _controls(header: Header, state: State, said: Said) -> None:
    """What only the person may say: pause, limits, skip, retry, and what changes who and what takes part."""
    if said.mark("TO") is not None:
        state.floor = order.queued(header, state.floor, said)
    for mark in interventions.controls(said):
        who = mark.value.split(" ")[0]
        if mark.name in interventions.MARKS:
            header = _by_hand(header, state, said, mark)
        elif mark.name in ("PAUSED", "RESUMED"):
            state.paused, state.paused_via = mark.name == "PAUSED", said.via
        elif mark.name == "LIMIT":
            state.limits, _ = state.limits.changed(mark.value)
        elif mark.name == "SKIP" and header.agent(who):
            state.table = replace(state.table, judged=())
            if state.escalation.to == who:
                state.escalation = Escalation()
            state.debts = state.debts.without(who, USER)
            order.passed_over(header, state, who)
            if said.turn is None and not state.debts.open:
                state.debts = state.debts.opened(said, order.following(header, state, who))
        elif mark.name == "RETRY" and header.agent(who):
            state.debts = state.debts.retried(who).opened(said, (who,))
            own = tuple(question for question in state.questions.open if question.asker)
            state.questions = replace(state.questions, open=own)  # that it was absent is what daemons asked about


def _by_hand(header: Header, state: State, said: Said, mark: Mark) -> Header:
    """Carry out a mark of the person's hand; where nobody owes a turn any more, somebody does again."""
    had_ended = state.outcome is not None
    named = interventions.done(header, state, said, mark)
    if had_ended and state.outcome is None:
        _reopened(state, said)
    if said.turn is None and not state.debts.open:
        state.debts = state.debts.opened(said, named)
    return interventions.effective(header, state.hand)


# -- Agents -----------------------------------------------------------------------------------------------------------


def _agent(header: Header, state: State, said: Said) -> None:
    closes = () if said.by_hand else (said.by, ANY, *((USER,) if header.is_unattended else ()))
    state.debts = state.debts.answered(said.by, *closes)
    if header.is_unattended and said.by in state.questions.askers:
        state.questions = replace(state.questions, told=state.questions.told | {said.by})
    made = order.spoken(header, state, said)
    if said.is_struck:  # its agent was heard, and its numbers are taken
        state.table = state.table.reserved(said)
    else:
        table = state.table.spoken(said, may_vote=said.by in header.voters, made=made)
        _opened(header, state, table)
    if state.polls.open and said.by in header.voters:
        state.polls = state.polls.voted(said)
    if not (said.is_struck and said.by == header.judge):
        _judged(header, state, said)
    if not said.is_struck:
        _decided(state, said)
    _escalated(header, state, said)
    if header.rules.has_findings:
        state.table = reviewed(state.table, said)
    state.questions = asked_in(said, said.by, state.questions)
    _last_word(state, said)


def _judged(header: Header, state: State, said: Said) -> None:
    """Take the judge's answer: whose position, or `none`; "" where it says nothing clear.

    What others say after it makes it old: both answers are about the same positions. So does its question to the
    person: it answers anew once it knows what it lacked.
    """
    if said.by == header.judge and said.mark("QUESTION_FOR_USER") is None:
        answer = picked(said.all("DECIDE"), order.positioned(header, state))
        state.table = replace(state.table, judged=(*state.table.judged, answer or ("", "")))
    elif state.table.judged:
        state.table = replace(state.table, judged=())


def _opened(header: Header, state: State, table: Table) -> None:
    """Note what is new on the table, to be put to the vote where this dialog votes."""
    new = tuple(proposal.ref for proposal in table.proposals[len(state.table.proposals) :])
    state.table = table
    if new and header.rules.verdict == "vote":
        state.polls = replace(state.polls, waiting=(*state.polls.waiting, *new))


def _proposed(header: Header, state: State, said: Said) -> None:
    """Take proposals of the person or a daemon."""
    _opened(header, state, state.table.proposed(said))


def _decided(state: State, said: Said) -> None:
    """Take decisions; votes that fail in the same entry are one failed vote."""
    failed_before = state.polls.failed
    for mark in said.all("DECISION"):
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
    before = state.escalation
    comes_back = header.is_unattended and said.mark("QUESTION_FOR_USER") is not None
    if before.to == said.by and said.asked_after >= before.at and not comes_back:
        state.escalation = Escalation()
    mark = said.mark("ESCALATE")
    if mark is not None:
        above = header.moderator
        can = above != said.by or above in (said.turn or ())  # its own turn may be the one that reached the limit
        who = above if above and can and above not in state.absent else USER
        state.escalation = Escalation(who, mark.value, state.number)
        state.polls = replace(state.polls, failed=0)


# -- Daemons ----------------------------------------------------------------------------------------------------------


def _system(header: Header, state: State, said: Said) -> None:
    if (rules := header.rules.build) is not None:
        state.table = reviewed(state.table, said)
        if said.turn is not None and any(mark.name in ("TASK", "GATE") for mark in said.marks):
            state.debts = state.debts.without(rules.lead)
    for mark in said.marks:
        who = mark.fields[0]
        if mark.name in ("AGENT_ERROR", "STALLED") and header.agent(who):
            _missing(header, state, said, who, is_stall=mark.name == "STALLED")
        elif mark.name == "SEALED" and header.agent(said.by) and not said.by_hand:
            state.debts = state.debts.sealed(said, who)
        elif mark.name == "ROUND" and who == "closing":
            _closing(state, round_of((mark,), "closing") or "time")
    if said.mark("PROPOSAL") is not None:  # a point that several contributions refer to, or a task that was carried on
        _proposed(header, state, said)
        state.floor = order.raised(state.floor, said)
    _decided(state, said)
    _escalated(header, state, said)
    if header.is_unattended and said.turn is not None:
        state.debts = state.debts.without(USER, *(() if ANY in said.turn else (ANY,)))
    state.questions = asked_in(said, "", state.questions)
    if said.mark("DEFAULT_TAKEN") is not None and said.turn is not None:
        state.questions, state.debts = replace(state.questions, open=()), state.debts.without(USER)
    _last_word(state, said)


def _missing(header: Header, state: State, said: Said, who: str, *, is_stall: bool) -> None:
    """Note that `who` failed, or gave no answer in time.

    Who is asked again at once, and who may still answer, has not been passed over.
    """
    state.debts = state.debts.missing(who, is_stall=is_stall)
    if is_stall and said.turn is None and said.ending is None:
        state.debts = state.debts.stalled(who)
        return
    state.debts = state.debts.without(who)
    if who in state.absent and state.escalation.to == who:
        state.escalation = replace(state.escalation, to=USER)
    if said.turn == (who,):
        state.floor = replace(state.floor, last=who)
    else:
        order.passed_over(header, state, who)


def _closing(state: State, why: str) -> None:
    """Begin the last round: who was called stalled has had its chance, nobody waits for the person."""
    stalled = frozenset(debt.agent for debt in state.debts.open if debt.stalled)
    state.closing = why
    state.floor = replace(state.floor, spoke=stalled, passed=frozenset())
    state.debts = state.debts.without(USER, ANY, *stalled)


# -- How an entry ends ------------------------------------------------------------------------------------------------


def _last_word(state: State, said: Said) -> None:
    """Carry out how the entry ends: the dialog's end, or the debts its TURN line opens."""
    end = said.ending
    if end is not None:
        state.outcome = Outcome(end.name, said.by, said.id, _reason(said, end), said.via)
    if state.outcome is not None:
        state.debts = replace(state.debts, open=())
    elif said.turn:
        state.debts = state.debts.opened(said, said.turn)


def _reason(said: Said, end: Mark) -> str:
    """Why the dialog ended, in words, as far as the entry says it."""
    if end.name == "STOPPED" or (end.name == "DEADLOCK" and end.value):
        return end.value
    decisions = [mark for mark in said.all("DECISION") if mark.fields[1:2] != ("review",)]  # a task's ends no build
    decision = next((mark for mark in decisions if mark.fields[0] == "approved"), decisions[0] if decisions else None)
    if decision is not None:
        return f"{decision.ref} {', '.join(decision.fields)}".strip()
    return end.value


# -- The fold from the beginning --------------------------------------------------------------------------------------


def beginning(header: Header, struck: Collection[int] = ()) -> State:
    """The state before the first entry, in a dialog of which these turns are struck."""
    return State(limits=header.limits, hand=replace(interventions.first(header), struck=frozenset(struck)))


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
            header = interventions.effective(written, state.hand)


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
    if entry.is_struck or not entry.is_turn or entry.condition is Condition.DAMAGED:
        return entry
    return replace(entry, is_struck=True, withdrawn=entry.marks, marks=())

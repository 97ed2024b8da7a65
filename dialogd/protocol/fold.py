"""The fold: one entry after another, what a dialog has come to.

Daemon-written turns carry numbered, canonical marks; turns written by hand carry whatever the person typed,
so the same rules number and sign for them here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from dialogd.protocol import interventions, open_questions, order, units, voting
from dialogd.protocol.marks import is_outcome, round_of
from dialogd.protocol.model import ANY, USER, Condition, Entry, Frame, Header, Limits, Mark
from dialogd.protocol.money import accounted
from dialogd.protocol.order import following, reopened
from dialogd.protocol.review import reviewed
from dialogd.protocol.settle import is_takeable
from dialogd.protocol.state import Debt, Dialog, Outcome, Seal, State


def fold(header: Header, state: State, entry: Entry) -> State:
    """The state after `entry`. Damaged and unfinished entries only count as notes, but for the person's controls."""
    if entry.condition in (Condition.DAMAGED, Condition.UNFINISHED):
        state = state.but(notes=state.notes + 1)
        # What paused the dialog goes on doing so while the person types below it.
        if entry.condition is Condition.DAMAGED:
            return state
        return _approved(header, _controls(header, state, entry) if state.outcome is None else state, entry)
    number, notes = (entry.number, 0) if entry.is_turn else (state.number, state.notes + 1)
    state = accounted(header, state.but(number=number, notes=notes), entry)
    if entry.by == USER:
        state = _person(header, state, entry)
    elif entry.is_turn:
        state = _agent(header, state, entry)
    else:
        state = _system(header, state, entry)
    return _unsealed(state) if state.seals else state


def foreseen(
    header: Header,
    state: State,
    by: str,
    marks: Sequence[Mark],
    *,
    turn: tuple[str, ...] | None = (),
    number: int = 0,
    body: str = "",
    re: str = "",
) -> State:
    """The state after an entry that is not written yet: a turn of that `number`, or a note (0), by a daemon.

    With `turn=()` nobody is named in its TURN line yet. `re` is the debt that it answers.
    """
    frame = Frame(by, "", 0, "", "", re=re)
    id_ = str(number) if number else ""
    entry = Entry(id_, number, by, "", body, tuple(marks), turn, Condition.SOUND, "", 0, 0, 0, frame=frame)
    return fold(header, state, entry)


def ending(entry: Entry) -> Mark | None:
    """The outcome mark by which this entry ends the dialog: one that no TURN line follows.

    A daemon writes it last; what an agent only called for (`[DEADLOCK]`) may stand above it.
    """
    if entry.turn is not None:
        return None
    ends = [mark for mark in entry.written if is_outcome(mark)]
    return (ends[0] if entry.frame is None else ends[-1]) if ends else None


def _person(header: Header, state: State, entry: Entry) -> State:
    state = before = _approved(header, _controls(header, state, entry), entry)
    if entry.is_turn:
        state = _spoken_to(state, entry)
        if state.outcome is not None and ending(entry) is None:
            state = _reopened(state, entry)
        if entry.turn is None and any(m.name == "REJECTED" for m in entry.written) and ending(entry) is None:
            state = _open(state, entry, reopened(header, before))  # typed alone, it passes the turn as a word does
        state = voting.reserved(state, entry) if entry.is_struck else state
    elif entry.turn is not None:
        if state.escalated == USER and USER in state.owing:
            state = state.but(escalated="", escalation="")
        queue = tuple(who for who in state.queue if who != USER) if USER in state.owing else state.queue
        state = state.but(debts=_without(state, USER), questions=(), queue=queue)
    return _last_word(_put(header, state, entry) if entry.mark("PROPOSAL") is not None else state, entry)


def _approved(header: Header, state: State, entry: Entry) -> State:
    """The state with the person's approval: of the result, or of a text that only absent agents have not signed."""
    if state.outcome is None and not is_takeable(header, state):
        return state
    return open_questions.approved(state, entry)


def _spoken_to(state: State, entry: Entry) -> State:
    """What a person's turn clears: debts, signatures, votes, calls for a deadlock, and the round that was under way."""
    return state.but(
        debts=(),
        standing=None,
        deadlock=(),
        questions=(),
        failed=frozenset(),
        missed=MappingProxyType({}),
        told=frozenset(),
        approved="",
        spoke=frozenset(),
        passed=frozenset(),
        is_quiet=False,
        queue=tuple(who for who in state.queue if who != USER),
        polls=tuple(replace(poll, ballots=(), heard=frozenset(), turn=entry.number) for poll in state.polls),
        escalated="",
        escalation="",
        red_team="",
        judged=(),
        closing="",
    )


def _reopened(state: State, entry: Entry) -> State:
    """A person's new turn after the end: everything that is limited counts anew."""
    return state.but(
        outcome=None,
        approved="",
        rejected=entry.id if entry.mark("REJECTED") is not None else "",
        base=state.number - entry.is_turn,
        rounds=0,
        turns_of=MappingProxyType({}),
        contributed=0,
        in_round=MappingProxyType({}),
        polls=(),
        failed_votes=0,
        is_tested=False,
        began=_at(entry),
    )


def _at(entry: Entry) -> str:
    return entry.frame.at if entry.frame is not None else ""


def _controls(header: Header, state: State, entry: Entry) -> State:
    """What only the person may say: pause, limits, skip, retry."""
    state = order.asked(header, state, entry) if entry.marks else state
    for mark in interventions.controls(entry):
        who = mark.value.split(" ")[0]
        if mark.name in interventions.MARKS:
            header, state = _by_hand(header, state, entry, mark)
        elif mark.name in ("PAUSED", "RESUMED"):
            state = state.but(paused=mark.name == "PAUSED")
        elif mark.name == "LIMIT":
            state = state.but(limits=limit(state.limits, mark.value)[0])
        elif mark.name == "SKIP" and header.agent(who):
            state = _passed_over(state, who)
            state = order.over(header, state.but(debts=_without(state, who, USER), last_agent=who), who)
            if entry.turn is None and not state.debts:
                state = _open(state, entry, following(header, state, who))
        elif mark.name == "RETRY" and header.agent(who):
            # One more failure, and it is absent again: nobody pays meanwhile.
            missed = MappingProxyType({one: 1 if one == who else times for one, times in state.missed.items()})
            state = state.but(debts=_without(state, who, USER), failed=state.failed - {who}, missed=missed)
            state = _open(state, entry, (who,))
    return state


def _by_hand(header: Header, state: State, entry: Entry, mark: Mark) -> tuple[Header, State]:
    """Header and state after a mark of the person's hand; where nobody owes a turn any more, somebody does again."""
    after, named = interventions.done(header, state, entry, mark)
    if state.outcome is not None and after.outcome is None:
        after = _reopened(after, entry)
    if entry.turn is None and not after.debts:
        after = _open(after, entry, named)
    return interventions.effective(header, after.hand), after


def _passed_over(state: State, who: str) -> State:
    """What waits for `who` alone no longer does: to judge, or to decide what the others could not."""
    return state.but(escalated="", escalation="", judged=()) if who == state.escalated else state.but(judged=())


def _agent(header: Header, state: State, entry: Entry) -> State:
    by_hand = entry.frame is None
    state = state.but(
        debts=() if by_hand else _without(state, entry.by, ANY, *((USER,) if header.is_unattended else ())),
        failed=state.failed - {entry.by},
        last_agent=entry.by,
        spoken=True,
    )
    if entry.by in state.missed:
        state = state.but(missed=MappingProxyType({who: n for who, n in state.missed.items() if who != entry.by}))
    if header.is_unattended and entry.by in state.askers:
        state = state.but(told=state.told | {entry.by})
    state = order.spoken(header, state, entry)
    state = _ways(header, state, entry)
    return _last_word(open_questions.put(state, entry, entry.by), entry)


def _ways(header: Header, state: State, entry: Entry) -> State:
    """What an agent's turn changes in texts, votes, decisions and findings."""
    if entry.is_struck:
        return _withdrawn(header, state, entry)
    before = len(state.proposals)
    state = voting.positions(header, state, entry)
    state = voting.opened(header, state, state.proposals[before:], entry.number)
    for part in (voting.voted, voting.judged, voting.decided, voting.escalated):
        state = part(header, state, entry)
    state = reviewed(state, entry)
    asks = round_of(entry.marks, "red team")
    return state.but(red_team=asks) if asks is not None else state


def _withdrawn(header: Header, state: State, entry: Entry) -> State:
    """What a struck turn leaves behind: its agent was heard, and its numbers are taken."""
    state = reviewed(voting.reserved(state, entry), entry)
    state = voting.voted(header, state, entry)
    if entry.by != header.judge:
        state = voting.judged(header, state, entry)
    return voting.escalated(header, state, entry)


def _system(header: Header, state: State, entry: Entry) -> State:
    for mark in entry.marks:
        who = mark.fields[0]
        if mark.name == "AGENT_ERROR" and header.agent(who):
            state = _missing(header, state.but(failed=state.failed | {who}), entry, who)
        elif mark.name == "STALLED" and header.agent(who):
            state = _missing(header, state, entry, who)
        elif mark.name == "SEALED" and header.agent(entry.by) and entry.frame is not None:
            state = _sealed(state, entry, who)
        elif mark.name == "ROUND" and mark.fields[0] == "closing":
            state = _closing(state, round_of((mark,), "closing") or "time")
    if entry.mark("PROPOSAL") is not None:
        state = _raised(header, state, entry)
    state = voting.escalated(header, voting.decided(header, state, entry), entry)
    if header.is_unattended and entry.turn is not None:
        state = state.but(debts=_without(state, USER, *(() if ANY in entry.turn else (ANY,))))
    return _last_word(open_questions.taken(open_questions.put(state, entry, ""), entry), entry)


def _missing(header: Header, state: State, entry: Entry, who: str) -> State:
    """The state after a note that `who` failed, or gave no answer in time.

    A failure of who was called stalled counts once with that. Who is asked again at once, and who may still answer, has
    not been passed over.
    """
    debt = next((debt for debt in state.debts if debt.agent == who), None)
    is_known = debt is not None and debt.stalled and entry.mark("STALLED") is None
    missed = MappingProxyType({**state.missed, who: state.missed.get(who, 0) + (not is_known)})
    state = state.but(missed=missed)
    if entry.turn is None and ending(entry) is None and entry.mark("STALLED") is not None:
        return state.but(debts=tuple(replace(d, stalled=True) if d.agent == who else d for d in state.debts))
    state = state.but(debts=_without(state, who), last_agent=who)
    if who in state.absent and state.escalated == who:
        state = state.but(escalated=USER)
    return state if entry.turn == (who,) else order.over(header, state, who)


def _closing(state: State, why: str) -> State:
    """The state in which everybody has one last word: who was called stalled has had its chance, nobody else waits."""
    stalled = frozenset(debt.agent for debt in state.debts if debt.stalled)
    debts = tuple(d for d in state.debts if d.agent not in (USER, ANY, *stalled))
    return state.but(closing=why, spoke=stalled, passed=frozenset(), debts=debts)


def _raised(header: Header, state: State, entry: Entry) -> State:
    """A point that several contributions refer to, made a proposal by a daemon."""
    return order.raised(_put(header, state, entry), entry)


def _put(header: Header, state: State, entry: Entry) -> State:
    """The state with proposals of the person or a daemon, put to the vote where this dialog votes."""
    before = len(state.proposals)
    state = voting.proposed(state, entry)
    return voting.opened(header, state, state.proposals[before:], state.number)


def _sealed(state: State, entry: Entry, sha: str) -> State:
    """The state with an agent's seal; when the last of the round is there, waiting for the texts begins."""
    re_ = entry.frame.re if entry.frame is not None else ""
    seals = (*(seal for seal in state.seals if seal.agent != entry.by), Seal(entry.by, sha, entry.id, re_))
    return state.but(seals=seals)


def _unsealed(state: State) -> State:
    """The state without the seals of closed debts; once all that are open are sealed, the texts may follow."""
    owed = {(debt.agent, debt.re) for debt in state.debts}
    seals = tuple(seal for seal in state.seals if (seal.agent, seal.re) in owed)
    ready = bool(seals) and owed <= {(seal.agent, seal.re) for seal in seals}
    debts = tuple(replace(debt, is_ready=ready) for debt in state.debts) if ready else state.debts
    return state.but(seals=seals, debts=debts)


def _last_word(state: State, entry: Entry) -> State:
    """Carry out how the entry ends: the dialog's end, or the debts its TURN line opens."""
    end = ending(entry)
    if end is not None:
        return state.but(outcome=Outcome(end.name, entry.by, entry.id, _reason(entry, end)), debts=())
    if state.outcome is not None:
        return state.but(debts=())
    return _open(state, entry, entry.turn or ())


def _reason(entry: Entry, end: Mark) -> str:
    """Why the dialog ended, in words, as far as the entry says it."""
    if end.name == "STOPPED" or (end.name == "DEADLOCK" and end.value):
        return end.value
    decisions = entry.all("DECISION")
    decision = next((mark for mark in decisions if mark.fields[0] == "approved"), decisions[0] if decisions else None)
    if decision is not None:
        return f"{decision.ref} {', '.join(decision.fields)}".strip()
    return end.value


def _open(state: State, entry: Entry, named: tuple[str, ...]) -> State:
    owing = {d.agent for d in state.debts}
    new = tuple(Debt(who, entry.id, entry.chain) for who in named if who not in owing)
    return state.but(debts=(*state.debts, *new)) if new else state


def _without(state: State, *agents: str) -> tuple[Debt, ...]:
    return tuple(d for d in state.debts if d.agent not in agents)


_READERS: Mapping[str, Callable[[str], float | units.Budget]] = {
    "max_turns": units.count,
    "timeout": units.seconds,
    "max_message": units.count,
    "max_size": units.size,
    "budget": units.budget,
    "max_rounds": units.count,
    "max_time": units.seconds,
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


# -- The fold from the beginning --------------------------------------------------------------------------------------


def beginning(header: Header, struck: Collection[int] = ()) -> State:
    """The state before the first entry, in a dialog of which these turns are struck."""
    first = interventions.first(header)
    return State(limits=header.limits, hand=replace(first, struck=frozenset(struck)) if struck else first)


def steps(dialog: Dialog) -> Iterator[tuple[Entry, Header, State, State]]:
    """Each entry with the header that counted before it, and the states before and after it."""
    yield from _steps(dialog.header_as_written, dialog.entries, dialog.state.struck)


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
        if state.struck == struck:
            return entries, state
        struck = state.struck  # a dialog that is open again takes marks that it did not take before


def _struck(entry: Entry) -> Entry:
    """The turn without its marks; notes are numbered 0, and no strike names them."""
    if entry.is_struck or not entry.is_turn or entry.condition is Condition.DAMAGED:
        return entry
    return replace(entry, is_struck=True, withdrawn=entry.marks, marks=())

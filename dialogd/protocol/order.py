"""Whose turn it is: the order of speaking, and its rounds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from dialogd.protocol import marks
from dialogd.protocol.marks import contributes
from dialogd.protocol.model import USER, Entry, Header, Mark
from dialogd.protocol.state import Debt, Dialog, State


def following(header: Header, state: State, after: str) -> tuple[str, ...]:
    """Whom the order names after a turn of `after`; absent agents are passed over.

    An unknown `after` means that the order begins. Whom something was escalated to comes first, and a judge that has
    read the positions in one order reads them in the other; one that asked the person goes on without an answer. Gives
    USER when no agent is left to ask.
    """
    if state.escalated not in ("", USER, after, *state.absent):
        return (state.escalated,)
    if after and after == header.judge and (len(state.judged) == 1 or after in {*state.askers} - state.told):
        return (after,)
    all_ = header.speakers
    able = [who for who in all_ if who not in state.absent]
    if not able:
        return (USER,)
    if len(all_) == 1:
        return (all_[0],) if after != all_[0] or state.limits.max_rounds is not None else (USER,)
    if header.rules.order == "parallel":
        return tuple(able) if len(able) > 1 or after != able[0] else (USER,)
    return (_single(header, state, all_, after),)


def _single(header: Header, state: State, all_: Sequence[str], after: str) -> str:
    match header.rules.order:
        case "free":
            return _free(state, all_, after)
        case "priority":
            return _heaviest(header, state, all_, after)
        case "round-robin":
            by_priority = sorted(all_, key=lambda who: -header.rules.role(who).priority)
            return _cycle(state, by_priority, after)
        case _:
            return _cycle(state, all_, after)


def _cycle(state: State, ids: Sequence[str], after: str) -> str:
    start = ids.index(after) + 1 if after in ids else 0
    return next((i for i in [*ids[start:], *ids[:start]] if i != after and i not in state.absent), USER)


def _heaviest(header: Header, state: State, ids: Sequence[str], after: str) -> str:
    able = [who for who in ids if who != after and who not in state.absent]

    def pending(who: str) -> tuple[float, bool]:
        waited = state.number - state.chance_at.get(who, 0)
        return header.rules.role(who).weight * waited, who not in state.spoke

    return max(able, key=pending, default=USER)


def _free(state: State, ids: Sequence[str], after: str) -> str:
    able = [who for who in ids if who != after and who not in state.absent]
    wanted = next((who for who in state.queue if who in able or (who == USER and USER not in state.owing)), None)
    return wanted or min(able, key=lambda who: (state.chance_at.get(who, 0), who in state.spoke), default=USER)


def reopened(header: Header, state: State) -> tuple[str, ...]:
    """Whom a person's turn passes to when they name nobody: who owed, who asked, or the next in order.

    Always an agent: the person's turn gives those that failed another chance, and one that is alone the word again.
    """
    owing = tuple(a for a in state.owing if a != USER)
    if owing:
        return owing
    askers = tuple(who for who in state.askers if header.agent(who))
    if header.rules.order != "parallel" and askers:
        return askers
    named = following(
        header, state.but(missed=MappingProxyType({}), queue=(), escalated="", judged=()), state.last_agent
    )
    return named if USER not in named else (header.speakers or (header.agents[0].id,))[:1]


# -- Rounds, contributions, and who wants the word --------------------------------------------------------------------

RAISED = -1  # among the turns that cite one: it was made a proposal


def contributions(marks: Iterable[Mark]) -> int:
    """How many contributions a turn holds: its typed ones, else itself, unless it only passes."""
    marks = tuple(marks)
    return sum(map(contributes, marks)) or int(all(mark.name != "PASS" for mark in marks))


def spoken(header: Header, state: State, entry: Entry) -> State:
    """The state after a turn of an agent."""
    who, made = entry.by, 0 if entry.is_struck else contributions(entry.marks)
    state = state.but(
        turns_of=_plus(state.turns_of, who, 1),
        spoke_at=MappingProxyType({**state.spoke_at, who: entry.number}),
        contributed=state.contributed + made,
        in_round=_plus(state.in_round, who, made),
        cited=_cited(state, entry) if made and header.rules.board is not None else state.cited,
        queue=_others(state.queue, who),
        is_tested=state.is_tested or bool(state.red_team and made),
        red_team="" if made else state.red_team,
    )
    return over(header, _queued(header, state, entry), who, passes=entry.mark("PASS") is not None and not made)


def over(header: Header, state: State, who: str, *, passes: bool = False) -> State:
    """The state once `who` has had its chance in this round: by a turn, or by being passed over.

    `passes` says that its turn does nothing but pass.
    """
    spoke, passed = state.spoke | {who}, state.passed | {who} if passes else state.passed - {who}
    state = state.but(chance_at=MappingProxyType({**state.chance_at, who: state.number}))
    able = frozenset(header.speakers) - state.absent
    if not able or not able <= spoke or able & {*state.owing}:
        return state.but(spoke=spoke, passed=passed, is_quiet=False)
    return state.but(
        rounds=state.rounds + 1,
        is_quiet=able <= passed,
        spoke=frozenset(),
        passed=frozenset(),
        in_round=MappingProxyType({}),
    )


def asked(header: Header, state: State, entry: Entry) -> State:
    """Whom the person queues waits for the floor behind the others who do."""
    ids = _heard(header)
    for mark in entry.all("TO"):
        names = marks.to(mark, ids) or ((entry.by,) if not mark.value and entry.by in ids else ())
        state = state.but(queue=(*state.queue, *(who for who in names if who not in state.queue)))
    return state


def raised(state: State, entry: Entry) -> State:
    """The state once the turns that a daemon's note refers to were made a proposal: they are not made one again."""
    turns = {turn for mark in entry.all("RE") for turn in marks.references(mark)[0]}
    return state.but(cited=MappingProxyType({**state.cited, **dict.fromkeys(turns, frozenset({RAISED}))}))


def to_raise(header: Header, state: State) -> tuple[int, ...]:
    """The turn that enough contributions refer to, and those that do; empty while there is none."""
    for turn, by in sorted(state.cited.items()):
        if RAISED not in by and len(by) >= header.rules.auto_propose_threshold and turn not in state.struck:
            return (turn, *sorted(by))
    return ()


def _queued(header: Header, state: State, entry: Entry) -> State:
    """Whom the word is handed to comes first, several in their order."""
    ids = _heard(header)
    named = tuple(dict.fromkeys(who for mark in entry.all("TO") for who in marks.to(mark, ids) if who != entry.by))
    return state.but(queue=(*named, *_others(state.queue, *named))) if named else state


def _heard(header: Header) -> list[str]:
    """Who may be handed the word: the person too, where they are at the table."""
    return [*(() if header.is_unattended else (USER,)), *header.speakers]


def _cited(state: State, entry: Entry) -> Mapping[int, frozenset[int]]:
    turns = {turn for mark in entry.all("RE") for turn in marks.references(mark)[0] if 1 < turn < entry.number}
    if not turns:
        return state.cited
    more = {turn: state.cited.get(turn, frozenset()) | {entry.number} for turn in turns}
    return MappingProxyType({**state.cited, **more})


def _plus(counts: Mapping[str, int], who: str, more: int) -> Mapping[str, int]:
    return MappingProxyType({**counts, who: counts.get(who, 0) + more})


def _others(queue: tuple[str, ...], *gone: str) -> tuple[str, ...]:
    return tuple(who for who in queue if who not in gone)


def is_open(dialog: Dialog, me: str, debt: Debt) -> bool:
    """The fence: a reply may be appended only while the very debt that it answers is open."""
    now = dialog.state.debt(me)
    return dialog.state.outcome is None and now is not None and now.key == debt.key


def is_apart(dialog: Dialog, debt: Debt) -> bool:
    """True when others owe a turn to the same word: nobody is to read an answer to it before it stands in the file.

    Asking again (`[RETRY]`) opens a debt of its own, while those of the others are still open.
    """
    opened = next((entry for entry in reversed(dialog.entries) if entry.id == debt.re), None)
    is_several = opened is not None and opened.turn is not None and len(opened.turn) > 1
    is_open = any(other.key == debt.key for other in dialog.state.debts)
    return is_several or is_sealed_round(dialog, debt) or (is_open and len(dialog.state.owing) > 1)


def is_sealed_round(dialog: Dialog, debt: Debt) -> bool:
    """True when the answer to this debt is to be sealed: the first one, where the header says so and several owe it."""
    first = next((entry.id for entry in dialog.entries if entry.is_turn), "")
    return dialog.header.rules.sealed and debt.re == first and (len(dialog.state.owing) > 1 or debt.is_ready)

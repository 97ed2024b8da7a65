"""Rounds, contributions, and who wants the word: what each entry adds to them.

A round is complete when everybody who can speak has spoken in it, or was passed over, and nobody owes a turn any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from dialogd.protocol import ballots
from dialogd.protocol.marks import contributes
from dialogd.protocol.model import USER, Entry, Header, Mark
from dialogd.protocol.roster import speakers
from dialogd.protocol.state import Debt, Dialog, State

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
    able = frozenset(speakers(header)) - state.absent
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
    """Whom the person queues waits for the word behind the others who do."""
    ids = _heard(header)
    for mark in entry.all("TO"):
        names = ballots.to(mark, ids) or ((entry.by,) if not mark.value and entry.by in ids else ())
        state = state.but(queue=(*state.queue, *(who for who in names if who not in state.queue)))
    return state


def raised(state: State, entry: Entry) -> State:
    """The state once the turns that a daemon's note refers to were made a proposal: they are not made one again."""
    turns = {turn for mark in entry.all("RE") for turn in ballots.references(mark)[0]}
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
    named = tuple(dict.fromkeys(who for mark in entry.all("TO") for who in ballots.to(mark, ids) if who != entry.by))
    return state.but(queue=(*named, *_others(state.queue, *named))) if named else state


def _heard(header: Header) -> list[str]:
    """Who may be handed the word: the person too, where they are at the table."""
    return [*(() if header.is_unattended else (USER,)), *speakers(header)]


def _cited(state: State, entry: Entry) -> Mapping[int, frozenset[int]]:
    turns = {turn for mark in entry.all("RE") for turn in ballots.references(mark)[0] if 1 < turn < entry.number}
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

"""What can be noticed of a dialog from outside: repetition, cycles, the budget, and how far the agents agree.

Signals are weak and decide nothing: only signatures, votes and decisions do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, takewhile

from dialogd.protocol.marks import read_vote
from dialogd.protocol.model import USER, Condition, Entry, Said
from dialogd.protocol.state import Dialog, State, budget_standing, used

WINDOW = 12  # turns that are looked at, of many agents more
SAME = 0.85  # overlap from which two texts count as nearly the same
WARNINGS = (0.8, 0.5)  # parts of the budget whose spending is noticed
# Phrases of agreement and of disagreement. They are English, and known to be read wrongly ("I agree if …"): they stand
# in for marks where a reply has none, in this one figure.
AGREE = (
    "i agree", "we agree", "i accept", "you're right", "you are right", "good point", "let's proceed", "sounds good",
    "i concede",
)  # fmt: skip
DISAGREE = (
    "i disagree", "i don't agree", "i do not agree", "i object", "i'm not convinced", "i am not convinced",
    "however, i", "on the other hand", "i still think",
)  # fmt: skip
_YES, _NO = frozenset({"AGREE", "CONCEDE", "approve"}), frozenset({"OBJECTION", "CRITIQUE", "reject"})
_ADVICE = "call it a [DEADLOCK] with both positions, the crux and the cheapest experiment that would settle it"


@dataclass(frozen=True, slots=True)
class Signal:
    """One observation: `kind` for programs, `text` for people and prompts, `agents` whom it concerns."""

    kind: str
    text: str
    agents: tuple[str, ...] = ()


def signals(dialog: Dialog) -> tuple[Signal, ...]:
    """What can be noticed in the latest turns, most pressing first; nothing after the end."""
    if dialog.state.outcome is not None:
        return ()
    recent = _recent(dialog)
    return tuple(filter(None, (_repeating(recent), _cycle(recent), budget(dialog.state))))


def convergence(dialog: Dialog) -> float | None:
    """How far the latest replies agree, 0 to 1; 1 once a decision was made, None before two agents have spoken.

    The mean over each agent's latest reply since the person spoke, bare passes left out: 1 for a yes, 0 for a no, a
    half for both or neither.
    """
    outcome, table, speakers = dialog.state.outcome, dialog.state.table, set(dialog.header.speakers)
    if outcome is not None and outcome.is_agreed:
        return 1.0
    signed = {who for who, _ in table.standing.signers} if table.standing else set()
    latest: dict[str, Entry] = {}
    for entry in _turns(dialog, 3 * max(WINDOW, len(speakers))):
        if entry.by in speakers and (entry.body.strip() or any(mark.name != "PASS" for mark in entry.marks)):
            latest.setdefault(entry.by, entry)
    stands = [1.0 if entry.by in signed else _stance(entry) for entry in latest.values()]
    return sum(stands) / len(stands) if len(stands) > 1 else None


def _stance(entry: Entry) -> float:
    """What a reply holds, 1 for a yes, 0 for a no: by its marks, else by its phrases outside of quotations."""
    kinds = {mark.name for mark in entry.marks} | {choice.choice for choice in read_vote(entry.marks).values()}
    yes, no = bool(kinds & _YES), bool(kinds & _NO)
    if not (yes or no):
        own = " ".join(line for line in entry.body.lower().split("\n") if not line.lstrip().startswith(">"))
        said = " ".join(own.replace("’", "'").split())
        yes, no = (any(re.search(rf"\b{phrase}\b", said) for phrase in phrases) for phrases in (AGREE, DISAGREE))
    return (1 + yes - no) / 2


def cycle(dialog: Dialog, *said: Said) -> str:
    """The cycle that the dialog is caught in with what is `said` next, in words; "" where it has not come three times.

    Only where its Setup wants cycles broken: looking for one takes time.
    """
    if dialog.header.setup.get("break_cycles") is not True:
        return ""
    recent = [*_recent(dialog), *said]
    found = (signal for signal in (_cycle(recent), _repeating(recent)) if signal is not None)
    return next((s.text.partition("; ")[0] for s in found if s.kind == "deadlock_suggested"), "")


def budget(state: State) -> Signal | None:
    """Half of the budget is spent, or four fifths."""
    part = used(state) or 0.0
    reached = next((level for level in WARNINGS if part >= level), None)
    return Signal("budget", f"{reached:.0%} of the budget is spent: {budget_standing(state)}") if reached else None


def _turns(dialog: Dialog, most: int) -> Iterator[Entry]:
    """The agents' turns among so many of the latest entries, since the person spoke, latest first."""
    since = takewhile(lambda e: not (e.by == USER and e.is_turn), islice(reversed(dialog.entries), most))
    return (e for e in since if e.is_turn and e.condition is not Condition.DAMAGED and e.counts)


def _recent(dialog: Dialog) -> list[Entry]:
    """The last agent turns since the person spoke, oldest first."""
    return [*islice(_turns(dialog, WINDOW * 3), WINDOW)][::-1]


def _repeating(recent: Sequence[Said]) -> Signal | None:
    """An agent's last three texts are nearly the same: a warning; four or more: a deadlock is suggested."""
    for agent in dict.fromkeys(entry.by for entry in reversed(recent)):
        own = [entry.body for entry in recent if entry.by == agent]
        same = 1
        while same < len(own) and overlap(own[-same], own[-same - 1]) >= SAME:
            same += 1
        said = f"{agent} has said nearly the same thing"
        if same > 3:
            return Signal("deadlock_suggested", f"{said} {same} times; {_ADVICE}", (agent,))
        if same == 3:
            return Signal("repetition", f"{said} three times", (agent,))
    return None


def _cycle(recent: Sequence[Said]) -> Signal | None:
    """The last turns repeat the turns before them: twice is a warning, three times suggests a deadlock."""
    for length in (2, 3, 4):
        rounds = 1
        while _repeats(recent, length, rounds):
            rounds += 1
        agents = tuple(dict.fromkeys(entry.by for entry in recent[-length:]))
        if rounds >= 3:
            return Signal("deadlock_suggested", f"the same {length} turns have come {rounds} times; {_ADVICE}", agents)
        if rounds == 2:
            return Signal("cycle", f"the last {length} turns repeat the {length} before them", agents)
    return None


def _repeats(recent: Sequence[Said], length: int, rounds: int) -> bool:
    start = len(recent) - length * (rounds + 1)
    pairs = zip(recent[start : start + length], recent[len(recent) - length :], strict=True) if start >= 0 else ()
    return start >= 0 and all(a.by == b.by and overlap(a.body, b.body) >= SAME for a, b in pairs)


def overlap(one: str, other: str) -> float:
    """Intersection over union of the words of four letters or more; 1.0 for two texts without any."""
    a, b = _words(one), _words(other)
    return len(a & b) / len(a | b) if a | b else 1.0


@lru_cache(maxsize=8 * WINDOW)
def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w{4,}", text.lower()))

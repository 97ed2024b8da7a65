"""What can be noticed from outside: repetition, cycles, agreement in the air. Computed, shown, never a verdict.

Only the last turns are looked at, so the cost does not grow with the dialog. Similarity is the overlap of word sets
(Jaccard index, intersection over union); it cannot tell "use X" from "do not use X".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from dialogd.protocol.fold import refers_to
from dialogd.protocol.model import USER, Condition, Dialog, Entry, State
from dialogd.protocol.money import standing, used

WINDOW = 12  # turns that are looked at
SAME = 0.85  # overlap from which two texts count as nearly the same
WARNINGS = (0.8, 0.5)  # parts of the budget whose spending is noticed
_WORD = re.compile(r"\w{4,}")


@dataclass(frozen=True, slots=True)
class Signal:
    """One observation: `kind` for programs, `text` for people and prompts, `agents` whom it concerns."""

    kind: str
    text: str
    agents: tuple[str, ...] = ()


def signals(dialog: Dialog) -> tuple[Signal, ...]:
    """What can be noticed in the latest turns; most pressing first."""
    recent = _recent(dialog)
    found = [
        _repeating(recent),
        _cycle(recent),
        budget(dialog.state),
        _accepted(dialog, recent),
        _agreeing(recent),
        _calm(recent),
    ]
    return tuple(signal for signal in found if signal is not None)


def _recent(dialog: Dialog) -> list[Entry]:
    """The last agent turns since the person spoke, oldest first."""
    turns: list[Entry] = []
    for entry in islice(reversed(dialog.entries), WINDOW * 3):
        if entry.by == USER and entry.is_turn:
            break
        if entry.is_turn and entry.condition is not Condition.DAMAGED:
            turns.append(entry)
    return turns[:WINDOW][::-1]


def overlap(one: str, other: str) -> float:
    """Intersection over union of the words of four letters or more; 1.0 for two texts without any."""
    a, b = _words(one), _words(other)
    return len(a & b) / len(a | b) if a | b else 1.0


@lru_cache(maxsize=4 * WINDOW)
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


def _repeating(recent: list[Entry]) -> Signal | None:
    """An agent's last three texts are nearly the same: a warning; four or more: a deadlock is suggested."""
    for agent in dict.fromkeys(entry.by for entry in reversed(recent)):
        own = [entry.body for entry in recent if entry.by == agent]
        same = 1
        while same < len(own) and overlap(own[-same], own[-same - 1]) >= SAME:
            same += 1
        if same > 3:
            return Signal(
                "deadlock_suggested", f"{agent} has said nearly the same thing {same} times; {_ADVICE}", (agent,)
            )
        if same == 3:
            return Signal("repetition", f"{agent} has said nearly the same thing three times", (agent,))
    return None


_ADVICE = "call it a [DEADLOCK] with both positions, the crux and the cheapest experiment that would settle it"


def _cycle(recent: list[Entry]) -> Signal | None:
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


def _repeats(recent: list[Entry], length: int, rounds: int) -> bool:
    if len(recent) < length * (rounds + 1):
        return False
    last = recent[len(recent) - length :]
    start = len(recent) - length * (rounds + 1)
    before = recent[start : start + length]
    return all(a.by == b.by and overlap(a.body, b.body) >= SAME for a, b in zip(before, last, strict=True))


def budget(state: State) -> Signal | None:
    """Half of the budget is spent, or four fifths."""
    part = used(state) or 0.0
    reached = next((level for level in WARNINGS if part >= level), None)
    if reached is None:
        return None
    return Signal("budget", f"{reached:.0%} of the budget is spent: {standing(state)}")


def _accepted(dialog: Dialog, recent: list[Entry]) -> Signal | None:
    """Somebody accepted somebody else's open proposal."""
    authors = {p.ref: p.by for p in dialog.state.proposals[-WINDOW:]}
    for entry in recent[-2:]:
        for mark in entry.all("AGREE"):
            ref = next((r for r in authors if refers_to(mark, r)), None)
            if ref and authors[ref] != entry.by:
                text = f"{entry.by} accepts {ref} of {authors[ref]}; if nothing is open, write it as the consensus text"
                return Signal("accepted", text, (entry.by, authors[ref]))
    return None


def _agreeing(recent: list[Entry]) -> Signal | None:
    """Two agents in consecutive turns agree or concede."""
    if len(recent) < 2 or recent[-1].by == recent[-2].by:
        return None
    if all(entry.mark("AGREE") or entry.mark("CONCEDE") for entry in recent[-2:]):
        return Signal("agreement", "two agents agree in consecutive turns", (recent[-2].by, recent[-1].by))
    return None


def _calm(recent: list[Entry]) -> Signal | None:
    """An objection was raised, and none in the last two turns."""
    if len(recent) < 3 or any(entry.mark("OBJECTION") or entry.mark("CRITIQUE") for entry in recent[-2:]):
        return None
    if any(entry.mark("OBJECTION") for entry in recent[:-2]):
        return Signal("no_new_objection", "no new objection for two turns")
    return None

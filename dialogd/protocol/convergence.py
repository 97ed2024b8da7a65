"""How near the latest replies are to each other: phrases, marks and shared words. A signal, never a verdict.

    convergence = |words that all have| / |words that any has|      words of four letters or more
    confidence  = 0.4 * min(agreements / 4, 1) + 0.3 * max(1 - disagreements / 4, 0) + 0.3 * convergence

It is weak, and knows no meaning: "use X" and "do not use X" share their words, and a phrase can be turned in more
ways than any list holds. Nothing ends by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Literal

from dialogd.protocol import ballots
from dialogd.protocol.model import USER, Condition, Entry
from dialogd.protocol.roster import speakers
from dialogd.protocol.state import Dialog
from dialogd.protocol.units import many

Advice = Literal["FINALIZE", "MEDIATE", "CONTINUE"]

WINDOW = 12  # turns that are looked at, of many agents more
ENOUGH = 2  # agreements that suggest an end
TOO_MANY = 3  # disagreements above which somebody should mediate
FULL = 4  # agreements or disagreements from which more change nothing

_WORD = re.compile(r"\w{4,}")


@dataclass(frozen=True, slots=True)
class Assessment:
    """What the latest replies suggest, and why in words. `convergence` and `confidence` are from 0 to 1."""

    advice: Advice
    reason: str
    agreements: int
    disagreements: int
    convergence: float
    confidence: float


def assess(dialog: Dialog) -> Assessment:
    """What the latest reply of each agent since the person last spoke suggests. Costs what a few turns cost."""
    replies = latest_replies(dialog)
    counts = [counted(entry) for entry in replies]
    yes, no = sum(count[0] for count in counts), sum(count[1] for count in counts)
    near = convergence(_unquoted(entry.body) for entry in replies)
    advice, reason = _advised(dialog, len(replies), (yes, no), near)
    return Assessment(advice, reason, yes, no, near, confidence(yes, no, near))


def confidence(agreements: int, disagreements: int, near: float) -> float:
    """The weighted sum of both counts and the convergence, 0 to 1."""
    return 0.4 * min(agreements / FULL, 1) + 0.3 * max(1 - disagreements / FULL, 0) + 0.3 * near


def convergence(texts: Iterable[str]) -> float:
    """Intersection over union of the words of all texts that have any; 0.0 for fewer than two such texts."""
    sets = [words for words in map(_words, texts) if words]
    return len(frozenset.intersection(*sets)) / len(frozenset.union(*sets)) if len(sets) > 1 else 0.0


def hundredths(near: float) -> int:
    """A convergence in hundredths, as every surface shows it: cut, for 59.9 % are not yet 60 %."""
    return int(near * 100 + 1e-9)


def overlap(one: str, other: str) -> float:
    """Intersection over union of the words of four letters or more; 1.0 for two texts without any."""
    a, b = _words(one), _words(other)
    return len(a & b) / len(a | b) if a | b else 1.0


def is_last_round(dialog: Dialog) -> str:
    """Why the round under way is the last one, in words; "" while others may follow."""
    state, limits = dialog.state, dialog.state.limits
    if state.closing:
        return state.closing
    if limits.max_rounds is not None and state.rounds + 1 >= limits.max_rounds:
        return f"the limit of {many(limits.max_rounds, 'round')}"
    if limits.max_turns - state.counted <= len(speakers(dialog.header)):
        return f"the limit of {many(limits.max_turns, 'turn')}"
    return ""


def latest_replies(dialog: Dialog) -> tuple[Entry, ...]:
    """The last turn of each agent that takes part, since the person spoke; oldest first, bare passes left out."""
    who = set(speakers(dialog.header))
    found: dict[str, Entry] = {}
    for entry in islice(reversed(dialog.entries), 3 * max(WINDOW, len(who))):
        if (entry.by == USER and entry.is_turn) or len(found) == len(who):
            break
        says = entry.is_turn and entry.condition is not Condition.DAMAGED and not entry.is_struck
        if says and entry.by in who and (entry.body.strip() or any(mark.name != "PASS" for mark in entry.marks)):
            found.setdefault(entry.by, entry)
    return tuple(found.values())[::-1]


def _advised(dialog: Dialog, replies: int, counts: tuple[int, int], near: float) -> tuple[Advice, str]:
    """The advice and its reason: the last round comes first, then agreement, then too much disagreement."""
    yes, no = counts
    least = dialog.header.rules.convergence_threshold
    share = f"the latest replies share {hundredths(near)}% of their words"
    said = f"{_number(yes, 'agreement')}, {_number(no, 'disagreement')}"
    if dialog.state.outcome is not None:
        return "FINALIZE", f"the dialog has ended; {said}, {share}"
    if not replies:
        return "CONTINUE", "no agent has replied yet"
    last = is_last_round(dialog)
    if last:
        return "FINALIZE", f"this is the last round ({last}); {said}, {share}"
    if yes >= ENOUGH and no == 0 and near >= least:
        return "FINALIZE", f"{said}, and {share} ({least * 100:g}% is enough)"
    if no > TOO_MANY:
        return "MEDIATE", f"{_number(no, 'disagreement')} in the latest replies, more than {TOO_MANY}"
    nearness = f"{share}, {'which is enough' if near >= least else f'below {least * 100:g}%'}"
    return "CONTINUE", f"{_number(yes, 'agreement')} of {ENOUGH}, {_number(no, 'disagreement')}, {nearness}"


def _number(count: int, word: str) -> str:
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"


def counted(entry: Entry) -> tuple[int, int]:
    """The agreements and disagreements of one reply, by its phrases or its marks, whichever are more.

    A kind of mark counts once; a phrase and a mark beside it say the same yes or no.
    """
    yes, no = phrases(_unquoted(entry.body))
    kinds = {mark.name for mark in entry.marks} | {choice.choice for choice in ballots.cast(entry.marks).values()}
    return max(yes, len(kinds & _YES)), max(no, len(kinds & _NO))


_AGREE = (
    "i agree", "we agree", "i accept", "you're right", "you are right", "good point", "let's proceed", "sounds good",
    "i concede",
)  # fmt: skip
_DISAGREE = (
    "i disagree", "i don't agree", "i do not agree", "i object", "i'm not convinced", "i am not convinced",
    "however, i", "on the other hand", "i still think",
)  # fmt: skip


def phrases(text: str) -> tuple[int, int]:
    """How many of the phrases of agreement, and of disagreement, a text holds; each counts once, wherever it stands."""
    said = " ".join(text.lower().replace("’", "'").split())
    yes, no = (sum(re.search(rf"\b{phrase}\b", said) is not None for phrase in each) for each in (_AGREE, _DISAGREE))
    return yes, no


_YES, _NO = frozenset({"AGREE", "CONCEDE", "approve"}), frozenset({"OBJECTION", "CRITIQUE", "reject"})


@lru_cache(maxsize=8 * WINDOW)
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


def _unquoted(body: str) -> str:
    """A text without its block quotes: who quotes the others has not come nearer to them."""
    return "\n".join(line for line in body.split("\n") if not line.lstrip().startswith(">"))

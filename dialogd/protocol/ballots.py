"""What VOTE, DECIDE, AGREE, TO, RE and CONFIDENCE say, in their literal forms. Pure, total, linear."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dialogd.protocol.model import Mark

APPROVE, REJECT, ABSTAIN = "approve", "reject", "abstain"

_CHOICE = re.compile(r"(?:(P\d{1,6}) )?(approve|reject|abstain)(?:\s*\|\s*(.*))?", re.I)
_RANGE = re.compile(r"(\d{1,6})\s?[–-]\s?(\d{1,6})")
_NUMBER = re.compile(r"(\d{1,3}(?:\.\d{1,6})?|\.\d{1,6})\s?(%|/\s?10\b)?")


@dataclass(frozen=True, slots=True)
class Choice:
    """`choice` (approve, reject or abstain) on proposal `ref`, "" where the mark names none."""

    ref: str
    choice: str
    reason: str = ""

    def mark(self, name: str) -> Mark:
        """It in canonical form, as a VOTE or DECIDE."""
        said = f"{self.ref} {self.choice}".strip()
        return Mark(name, f"{said} | {self.reason}" if self.reason else said)


def vote(mark: Mark) -> Choice | None:
    """What a VOTE or DECIDE on a proposal chooses; None for one in no such form."""
    match = _CHOICE.fullmatch(mark.value)
    if match is None or (match[1] and mark.ref):
        return None
    return Choice((match[1] or mark.ref).upper(), match[2].lower(), match[3] or "")


def decision(mark: Mark) -> Choice | None:
    """Approve or reject, as a DECIDE mark says; None when it says neither."""
    choice = vote(mark)
    return choice if choice is not None and choice.ref and choice.choice in (APPROVE, REJECT) else None


def cast(marks: Iterable[Mark]) -> Mapping[str, Choice]:
    """The votes of one entry by proposal; two different ones on the same proposal are none."""
    found: dict[str, Choice] = {}
    unclear: set[str] = set()
    for mark in marks:
        choice = vote(mark) if mark.name == "VOTE" else None
        if choice is None:
            continue
        known = found.setdefault(choice.ref, choice)
        if known.choice != choice.choice:
            unclear.add(choice.ref)
    return {ref: choice for ref, choice in found.items() if ref and ref not in unclear}


def is_yes(mark: Mark) -> bool:
    """True for a mark that approves of something."""
    if mark.name == "VOTE" or (mark.name == "DECIDE" and decision(mark) is not None):
        choice = vote(mark)
        return choice is not None and choice.choice == APPROVE
    return mark.name in ("AGREE", "CONSENSUS_REACHED") or (mark.name == "DECIDE" and mark.value[:4].lower() != "none")


def agreed(mark: Mark) -> tuple[str, ...]:
    """The proposals that an AGREE names at its beginning; frames of earlier versions may name several."""
    if mark.name != "AGREE":
        return ()
    return tuple(dict.fromkeys([*([mark.ref] if mark.ref else []), *_leading(mark.value)]))


def _leading(value: str) -> Iterator[str]:
    """The proposals that a value begins with: `P1`, `P1, P4`, `P1 and P4`."""
    match = re.match(r"P\d{1,6}(?!\w)(?:(?:\s*[,&+]\s*|\s+and\s+)P\d{1,6}(?!\w))*", value, re.I)
    yield from (ref.upper() for ref in re.findall(r"P\d+", match[0], re.I)) if match else ()


def objected(mark: Mark) -> tuple[str, ...]:
    """The proposals that an OBJECTION or CONCEDE names at its beginning; () where it names none."""
    return tuple(dict.fromkeys([*([mark.ref] if mark.ref else []), *_leading(mark.value)]))


def pick(mark: Mark, ids: Sequence[str]) -> tuple[str, str] | None:
    """Whose position a judge's DECIDE chooses, an agent's id or "none", and why; None for any other value."""
    head, _, reason = (part.strip() for part in mark.value.partition("|"))
    known = {"none": "none", **{agent.casefold(): agent for agent in ids}}
    chosen = known.get(head.casefold())
    return (chosen, reason) if chosen is not None and not mark.ref else None


def to(mark: Mark, ids: Sequence[str]) -> tuple[str, ...]:
    """The agents that a TO mark names, `B` or `B, C`, in its order; () when one of them is not known."""
    known = {agent.casefold(): agent for agent in ids}
    named = [known.get(part.strip().casefold()) for part in mark.value.split(",")]
    return tuple(dict.fromkeys(who for who in named if who)) if all(named) else ()


def references(mark: Mark) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The turns and the proposals that a RE mark names before a `|`: `4, P2`, `turn 3`, `3-5`."""
    turns: list[int] = []
    refs = [mark.ref] if mark.ref else []
    for part in re.split(r"[,;&+]|\band\b", mark.value.partition("|")[0]):
        said = re.sub(r"^(?:turns?|messages?|proposals?)\s+", "", part.strip(" \t*_`#.()"), flags=re.I)
        if match := _RANGE.fullmatch(said):
            first, last = int(match[1]), int(match[2])
            turns.extend(range(first, min(last, first + 50) + 1))
        elif re.fullmatch(r"P\d{1,6}", said, re.I):
            refs.append(f"P{int(said[1:])}")
        elif re.fullmatch(r"\d{1,6}", said):
            turns.append(int(said))
    return tuple(dict.fromkeys(turns)), tuple(dict.fromkeys(refs))


def confidence(mark: Mark) -> float | None:
    """A CONFIDENCE from 0 to 1: `0.8`, `80%`, `8/10`; None when it is no such number."""
    match = _NUMBER.fullmatch(mark.value.partition("|")[0].strip())
    if match is None:
        return None
    value = float(match[1]) / {"%": 100, "": 1}.get(match[2] or "", 10)
    return value if 0 <= value <= 1 else None

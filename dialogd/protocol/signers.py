"""Who stands behind a decision, and in which turn: read from what the deciding entry records, found in the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dialogd.protocol import ballots
from dialogd.protocol.model import Condition, Entry
from dialogd.protocol.state import Dialog

_IN_TURN = re.compile(r"([A-Za-z][\w-]*) in turn (\d{1,9})")
_VOTERS = re.compile(r"\bfor \(([^)]*)\)")
_JUDGE = re.compile(r"by ([A-Za-z][\w-]*) in turns \d{1,9} and (\d{1,9})")


@dataclass(frozen=True, slots=True)
class Signer:
    """Who signed, approved or decided, in which turn (0: a note, or nowhere), when, with which objection left."""

    agent: str
    name: str
    turn: int
    at: str = ""
    reservation: str = ""


def recorded(entries: Sequence[Entry], ref: str, method: str, evidence: str) -> Iterator[tuple[str, int]]:
    """Who stands behind a decision by the evidence of its mark, with the turn; 0 for a vote that is nowhere."""
    if method == "judge":
        yield from ((who, int(turn)) for who, turn in _JUDGE.findall(evidence))
    elif method == "vote":
        for names in _VOTERS.findall(evidence):
            yield from ((who, _vote(entries, who, ref)) for who in filter(None, re.split(r",\s*", names)))
    else:
        yield from ((who, int(turn)) for who, turn in _IN_TURN.findall(evidence))


def position(evidence: str) -> tuple[str, int]:
    """The agent, and the turn, whose position a judge chose; "" and 0 when the evidence names none."""
    match = _IN_TURN.match(evidence)
    return (match[1], int(match[2])) if match else ("", 0)


def _vote(entries: Sequence[Entry], who: str, ref: str) -> int:
    """The turn of the last vote of that agent, if it approves; else 0."""
    for entry in reversed(entries):
        if not _is_turn_of(entry, who):
            continue
        choice = ballots.cast(entry.written).get(ref)
        if choice is not None:
            return entry.number if choice.choice == "approve" else 0
        if entry.frame is None and any(mark.name == "VOTE" and ref in mark.value.upper() for mark in entry.written):
            return entry.number  # typed in words that an earlier version read: what was counted is not judged anew
    return 0


def _is_turn_of(entry: Entry, who: str) -> bool:
    return entry.by == who and entry.is_turn and entry.condition is not Condition.DAMAGED


def turn_of(dialog: Dialog, who: str, number: int) -> Entry | None:
    """That turn, if it stands in the file and is that agent's."""
    return next((e for e in dialog.entries if e.number == number and _is_turn_of(e, who)), None)


def signer(dialog: Dialog, who: str, number: int, entry: Entry | None = None) -> Signer:
    """The signer with what its turn (or `entry`) says; time and objection are "" where that is gone."""
    agent = next((agent for agent in dialog.everybody if agent.id == who), None)
    entry = entry or turn_of(dialog, who, number)
    name = agent.name if agent else entry.name if entry else who
    if entry is None:
        return Signer(who, name, number)
    at = entry.frame.at if entry.frame else ""
    left = (mark.value for mark in entry.written if mark.name == "RESERVATION" and mark.value)
    return Signer(who, name, number, at, "; ".join(left))


def stands(entry: Entry, ref: str, method: str) -> bool:
    """True when that turn still says what counted: a signature, a vote, a decision, or the text itself."""
    if method == "vote":
        return True  # its turn was found by its vote
    said = entry.written
    if method in ("moderator", "decide"):
        made = [choice for mark in said if mark.name == "DECIDE" and (choice := ballots.decision(mark))]
        return any((choice.ref, choice.choice) == (ref, "approve") for choice in made)
    if method == "judge":
        return any(mark.name == "DECIDE" for mark in said)
    puts = any(mark.name == "CONSENSUS_PROPOSED" and mark.ref == ref for mark in said)
    return puts or entry.frame is None or any(mark.name == "AGREE" and ref in ballots.agreed(mark) for mark in said)

"""What a review comes to: its findings, which of them are resolved, and the score. Read from the marks, pure.

[FINDING: severity | category | file | line | issue | suggestion]     numbered 1, 2 … in file order
[RESOLVED: 2 | how]                                                   by the agent that raised it
[SCORE: code quality 80 | test coverage 70 | …]                       each part 0 to 100
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from dialogd.protocol.marks import fields_of
from dialogd.protocol.model import SYSTEM, Condition, Entry, Mark, Said, turn_number
from dialogd.protocol.rules import REVIEW
from dialogd.protocol.state import Dialog, Table

PARTS = ("code quality", "test coverage", "security", "documentation", "acceptance criteria")
_PART = re.compile(r"(.+?)[ :=]+([0-9]{1,3})(?:\.[0-9]+)?(?: ?(?:/ ?100|%))?")
_NUMBER = re.compile(r"\D*([0-9]{1,6})\b.*")


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding; `resolved` says how in the raiser's words, "" while it is open; `resolved_in` is that turn.

    `entry` is where it stands; what a build's daemon found stands in a note, of which `turn` is the turn before it.
    """

    number: int
    by: str
    turn: int
    severity: str = ""
    category: str = ""
    file: str = ""
    line: str = ""
    issue: str = ""
    suggestion: str = ""
    resolved: str = ""
    resolved_in: int = 0
    entry: str = ""

    @property
    def blocks(self) -> bool:
        """True while it stands in the way of an approval."""
        return self.blocks_after(0)

    def blocks_after(self, turn: int) -> bool:
        """True where it stood in the way of an approval after that turn; 0 for now."""
        is_open = not self.resolved_in or 0 < turn < self.resolved_in
        return _word(self.severity) in REVIEW["FINDING"].blocks and is_open


@dataclass(frozen=True, slots=True)
class Score:
    """The five parts, 0 to 100, each the mean of what the reviewers said last; `total` is None where one is missing."""

    parts: Mapping[str, float]

    @property
    def total(self) -> float | None:
        return fmean(self.parts.values()) if len(self.parts) == len(PARTS) else None

    @property
    def points(self) -> Mapping[str, float]:
        """What each part adds to the total, 0 to 20: together they are it."""
        return {name: value / len(PARTS) for name, value in self.parts.items()}


def reviewed(table: Table, said: Said) -> Table:
    """The table with the findings of a turn: those that block, until the agent that raised them is content.

    Those of a daemon are about one submission, and gone with the next.
    """
    blocking, findings = table.blocking, table.findings
    if _submits(said):
        blocking = tuple(one for one in blocking if one[1] != SYSTEM)
    for mark in said.written:
        kind = REVIEW.get(mark.name)
        if kind is None:
            continue
        findings += bool(kind.numbers)  # of a struck turn, too: no number is given again
        if said.counts and level(mark) in kind.blocks:
            blocking = (*blocking, (findings, said.by))
        elif said.counts and kind.resolves:
            mine = ("".join(c for c in level(mark) if c.isdecimal()), said.by)
            blocking = tuple(one for one in blocking if (str(one[0]), one[1]) != mine)
    if (blocking, findings) == (table.blocking, table.findings):
        return table
    return replace(table, blocking=blocking, findings=findings)


def level(mark: Mark) -> str:
    """The first field in small letters: of a finding how grave it is."""
    return _word(fields_of(mark)[0])


def _word(field: str) -> str:
    return field.strip(" \t*_`.!").casefold()


def finding(fields: tuple[str, ...], number: int = 0, by: str = "", turn: int = 0, entry: str = "") -> Finding:
    """The finding that these fields of a mark tell of; what is too much belongs to the suggestion.

    With fewer than five nobody can tell which they are: all but the severity are then the issue.
    """
    if len(fields) < 5:
        fields = (*fields[:1], *[""] * (4 - len(fields[:1])), " | ".join(part for part in fields[1:] if part))
    severity, category, file, line, issue, *rest = fields
    suggestion = " | ".join(part for part in rest if part)
    return Finding(number, by, turn, severity, category, file, line, issue, suggestion, entry=entry)


def findings(dialog: Dialog) -> tuple[Finding, ...]:
    """Every finding in file order, numbered from 1."""
    found: list[Finding] = []
    number = 0
    for entry, kind, fields in _contributions(dialog):
        number += kind == "FINDING"
        if kind == "TASK":  # a submission ends what a daemon found in the one before
            how, turn = "by the next submission", turn_number(entry.id)
            found = [replace(f, resolved=how, resolved_in=turn) if f.by == SYSTEM and f.blocks else f for f in found]
        elif not entry.counts:
            continue
        elif kind == "FINDING":
            found.append(finding(fields, number, entry.by, turn_number(entry.id), entry.id))
        elif kind == "RESOLVED" and fields and (match := _NUMBER.fullmatch(fields[0])):
            how, which = " | ".join(fields[1:]) or "resolved", match[1].lstrip("0")
            for at, f in enumerate(found):
                if str(f.number) == which and (f.by == entry.by or (f.by == SYSTEM and not f.blocks)):
                    found[at] = replace(f, resolved=how, resolved_in=entry.number)
    return tuple(found)


def score(dialog: Dialog) -> Score | None:
    """The score of the review: the mean of the five parts; None where nobody gave one, and in a build, task by task."""
    last: dict[str, Mapping[str, float]] = {}
    for entry, kind, fields in _contributions(dialog) if not dialog.state.build else ():
        if kind == "SCORE" and entry.counts and (parts := parts_of(fields)):
            last[entry.by] = parts
    each = {name: [said[name] for said in last.values() if name in said] for name in PARTS}
    return Score({name: fmean(values) for name, values in each.items() if values}) if last else None


def total_of(text: str) -> float | None:
    """The total of one reviewer's score as its mark has it; None where a part is missing."""
    return Score(parts_of(tuple(field.strip() for field in text.split("|")))).total


def parts_of(fields: tuple[str, ...]) -> dict[str, float]:
    """The parts that one SCORE gives, 0 to 100; what it leaves out is missing."""
    found: dict[str, float] = {}
    for field in fields:
        match = _PART.fullmatch(field)
        name = " ".join(re.sub(r"[^a-z]+", " ", match[1].casefold()).split()) if match else ""
        if match and name in PARTS:
            found[name] = float(min(int(match[2]), 100))
    return found


def _contributions(dialog: Dialog) -> Iterator[tuple[Entry, str, tuple[str, ...]]]:
    """Entry, kind and fields of each mark of a review, and the record of each submission."""
    for entry in dialog.entries:
        if entry.condition in (Condition.DAMAGED, Condition.UNFINISHED):
            continue
        if entry.is_turn or (dialog.state.build and entry.by == SYSTEM):
            for mark in entry.written:
                if mark.name in REVIEW or (mark.name == "TASK" and _submits(entry)):
                    yield entry, mark.name, fields_of(mark)


def _submits(said: Said) -> bool:
    """True where a daemon recorded a submission."""
    return not said.by_hand and any("submitted" in fields_of(mark)[1:2] for mark in said.all("TASK"))

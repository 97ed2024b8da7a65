"""What an entry says, for its messages: its own words, the type and references of its marks. Pure."""

from __future__ import annotations

import re

from dialogd.protocol import ballots, questions
from dialogd.protocol.marks import outside_fences, tolerant
from dialogd.protocol.model import Entry, Mark
from dialogd.protocol.redact import redact
from dialogd.protocol.seal import own_words
from dialogd.protocol.text import one_line

SUMMARY = 120  # characters
FOLDED = frozenset({"RE", "CONFIDENCE", "TO"})  # they say something about the other marks of their turn
LEADING = re.compile(r"[ \t]*(P\d{1,6}(?:(?:[ ,&+]+|[ ]and[ ])P\d{1,6})*)(?!\w)[ \t]*[:,.|–—-]*[ \t]*", re.I)
_DECORATION = re.compile(r"^[ \t]*(?:#{1,6}[ \t]+|>[ \t]?|[-*+][ \t]+)*|[*_`]{2,}")


def kind_of(mark: Mark) -> tuple[str, str]:
    """A mark's type and text."""
    if mark.name == questions.NAME:
        return mark.name, questions.parse(mark).said
    return mark.name, mark.value


def named_by(mark: Mark) -> tuple[str, ...]:
    """The proposals and turns that a mark itself names."""
    if mark.ref:
        return (mark.ref,)
    if mark.name == "STRIKE":
        return tuple(re.findall(r"\d{1,9}", mark.value)[:1])
    if mark.name == "AGREE" and (agreed := ballots.agreed(mark)):
        return tuple(agreed)
    match = LEADING.match(mark.value)
    return tuple(ref.upper() for ref in re.findall(r"P\d{1,6}", match[1], re.I)) if match else ()


def cited_by(entry: Entry) -> tuple[str, ...]:
    """The proposals, then the turns, that the entry's RE names."""
    found = [ballots.references(mark) for mark in entry.all("RE")]
    return tuple(dict.fromkeys([*(ref for _, refs in found for ref in refs), *(str(t) for ts, _ in found for t in ts)]))


def confidence_of(entry: Entry) -> float | None:
    mark = entry.mark("CONFIDENCE")
    return ballots.confidence(mark) if mark is not None else None


def only_passes(entry: Entry) -> bool:
    """True for a turn that says nothing but that there is nothing to add."""
    is_pass = entry.mark("PASS") is not None and all(m.name == "PASS" or m.name in FOLDED for m in entry.marks)
    return is_pass and not words_of(entry).strip()


def words_of(entry: Entry) -> str:
    """An entry's own text: without the closing lines of a daemon, and without the marks that were typed in it."""
    lines = own_words(entry.body).split("\n")
    if entry.frame is None:
        gone = {index for index, line in outside_fences(lines, forgiving=True) if tolerant(line) is not None}
        lines = [line for index, line in enumerate(lines) if index not in gone]
    return "\n".join(lines).strip("\n")


def first_words(text: str) -> str:
    """The beginning of a text on one line, without the signs that format it."""
    head = "\n".join(redact(text)[0].strip()[: 8 * SUMMARY].split("\n")[:12])
    return one_line("\n".join(_DECORATION.sub("", line) for line in head.split("\n")).replace(" | ", ", "), SUMMARY)

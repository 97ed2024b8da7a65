"""Questions to the person: their words, until when an answer is waited for, and what counts without one. Pure.

reply  = field *( "|" field )                      in any order; one that is neither of the two below is the text
by     = "by" time / "in" number ( "m" / "h" / "d" )
time   = ISO date and time, with its offset or by the daemon's clock / HH ":" MM
file   = [ text " | " ] "by " ISO time with its offset [" (asked: " what was asked ")"] " | " "default: " text

The file holds ISO times alone: a time of day means another moment tomorrow, and another one elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dialogd.protocol.model import Mark
from dialogd.protocol.text import one_line
from dialogd.protocol.units import Here, as_iso, clock_at, iso, moment_of, named, whole_minute

NAME = "QUESTION_FOR_USER"
LEAST = 900.0  # seconds that the person has at least
LONGEST = 7 * 86_400.0  # seconds ahead that `in 7d` may name
NO_TEXT = "(see above)"  # in place of a question's text that stands in the body of its turn

_BY = re.compile(r"by\s+(\S.*)", re.I)
_IN = re.compile(r"in\s+(\d{1,6})\s?(m|h|d)", re.I)
_ATTEMPT = re.compile(r"(?:in|within)\s+\d", re.I)
_SECONDS = {"m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DEFAULT = re.compile(r"default\s*:\s*(\S.*)", re.I)
_ASKED = re.compile(r"\s*\(asked: ([^()]*)\)$")
_FORM = "write in 30m, by 18:00 or by 2026-11-22T18:00+01:00"


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the person. `by` is an ISO time with its offset, "" without a deadline; `default` "" without one.

    `asker` is the agent, "" where a daemon asks; `entry` the id of the entry that asks.
    """

    text: str
    by: str = ""
    default: str = ""
    asker: str = ""
    entry: str = ""

    @property
    def said(self) -> str:
        """Its text, or where it is to be found."""
        return self.text or NO_TEXT


class Asking:
    """What can be said of open questions by whoever holds them."""

    __slots__ = ()
    questions: tuple[Question, ...]

    @property
    def question(self) -> str:
        """What the person is asked, in words; "" while nothing is."""
        return " / ".join(question.said for question in self.questions)

    @property
    def question_by(self) -> str:
        """The first deadline of an open question, as an ISO time; "" without one."""
        return next((question.by for question in self.questions if question.by), "")

    @property
    def question_default(self) -> str:
        """The first default of an open question; "" without one."""
        return next((question.default for question in self.questions if question.default), "")

    @property
    def askers(self) -> tuple[str, ...]:
        """The agents that asked the person, in order."""
        return tuple(dict.fromkeys(question.asker for question in self.questions if question.asker))

    @property
    def asker(self) -> str:
        """The agent that asked the person, the last one of several; "" where none did."""
        return self.askers[-1] if self.askers else ""


def parse(mark: Mark) -> Question:
    """The question of a mark as it stands in the file; what is no ISO time with an offset is no deadline."""
    fields = mark.value.split(" | ") if mark.value else []
    texts, by, default = [], "", ""
    for field in fields:
        found = _BY.fullmatch(field)
        moment = iso(_ASKED.sub("", found[1])) if found else ""
        answer = _DEFAULT.fullmatch(field) if len(fields) > 1 else None
        if moment and not by:
            by = moment
        elif answer and not default:
            default = answer[1]
        else:
            texts.append(field)
    return Question(" | ".join(texts), by, default)


def written(marks: Sequence[Mark], here: Here) -> tuple[Mark, ...]:
    """The marks of a turn as its daemon writes them: deadlines as ISO times, at least 15 minutes ahead of `here`.

    What was not understood of a question follows, as REFUSED.
    """
    found: list[Mark] = []
    remarks: list[Mark] = []
    for mark in marks:
        one, refused = _canonical(mark, here) if mark.name == NAME else (mark, ())
        found.append(one)
        remarks += [Mark("REFUSED", f"{NAME} {one_line(said, 60).replace('|', '/')} | {why}") for said, why in refused]
    return (*found, *remarks)


def without_fields(text: str) -> str:
    """A text for a question of a daemon's own: nothing in it sets a deadline or a default."""
    return re.sub(r"\s*\|\s*", " / ", text)


@dataclass(frozen=True, slots=True)
class _Read:
    """What the fields of a question come to; `refused` are those that do not count, each with the reason."""

    texts: tuple[str, ...]
    moment: datetime | None = None
    words: str = ""
    default: str = ""
    refused: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, value: str, here: Here) -> _Read:
        fields = [field for part in re.split(r"\s*\|\s*", value) if (field := part.strip()).strip("| ")]
        texts: list[str] = []
        moments: dict[str, datetime] = {}
        defaults: dict[str, str] = {}
        refused: list[tuple[str, str]] = []
        for field in fields:
            moment, words = _moment(field, here)
            answer = _DEFAULT.fullmatch(field) if len(fields) > 1 else None
            if moment is not None:
                moments[words] = moment
            elif answer:
                defaults[answer[1].strip()] = field
            else:
                texts.append(field)
                refused += [(field, f"no deadline: {_FORM}")] if words else []
        if len(set(moments.values())) > 1:
            refused.append((" / ".join(moments), "several deadlines: none of them counts"))
            moments = {}
        if len(defaults) > 1:
            refused.append((" / ".join(defaults.values()), "several defaults: none of them counts"))
            defaults = {}
        words, moment = next(iter(moments.items()), ("", None))
        return cls(tuple(texts), moment, words, next(iter(defaults), ""), tuple(refused))


def _canonical(mark: Mark, here: Here) -> tuple[Mark, tuple[tuple[str, str], ...]]:
    """The mark as it is written, and what did not count of it, with the reason."""
    read = _Read.of(mark.value, here)
    if not (read.moment or read.default or read.refused):
        return _safe(mark.value, [], Question(mark.value)), read.refused
    text, by = " | ".join(read.texts), _deadline(read, here)
    parts = [*([by] if by else []), *([f"default: {read.default}"] if read.default else [])]
    moment = iso(_ASKED.sub("", by.removeprefix("by ")))
    return _safe(text, parts, Question(text, moment, read.default)), read.refused


def _safe(text: str, parts: Sequence[str], meant: Question) -> Mark:
    """The mark of these parts; where it would not be read as it is meant, its text is quoted."""
    mark = Mark(NAME, " | ".join(part for part in (text, *parts) if part))
    if parse(mark) == meant:
        return mark
    return Mark(NAME, " | ".join((f"“{without_fields(text) or NO_TEXT}”", *parts)))


def _deadline(read: _Read, here: Here) -> str:
    """The field of the deadline, moved where it leaves the person too little time; "" without one."""
    now = moment_of(here.at)
    if read.moment is None or now is None:
        return ""
    least = whole_minute(now + timedelta(seconds=LEAST))
    return f"by {as_iso(read.moment)}" if read.moment >= least else f"by {as_iso(least)} (asked: {read.words})"


def _moment(field: str, here: Here) -> tuple[datetime | None, str]:
    """The moment that a field names and its words; None with words for an attempt, "" for a field that is none."""
    now = moment_of(here.at)
    if now is None:
        return None, ""
    words = _ASKED.sub("", field)
    within = _IN.fullmatch(words)
    if within is not None:
        ahead = int(within[1]) * _SECONDS[within[2].lower()]
        return (whole_minute(now + timedelta(seconds=ahead)), words) if 0 < ahead <= LONGEST else (None, words)
    match = _BY.fullmatch(words)
    if match is None:
        return None, words if _ATTEMPT.match(words) else ""
    try:
        return named(match[1], now, here.zone or clock_at(now.tzinfo)), words
    except (ValueError, OverflowError):
        return None, words

"""Questions to the person: their words, until when an answer is waited for, and what counts without one. Pure.

reply  = field *( "|" field )                      in any order; one that is neither of the two below is the text
by     = "in" number ( "m" / "h" / "d" ) / "by" ISO date and time with its offset
file   = [ text " | " ] "by " ISO time with its offset " | " "default: " text
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from dialogd.protocol import order
from dialogd.protocol.build import task_of
from dialogd.protocol.marks import refused as did_not_count
from dialogd.protocol.model import SYSTEM, USER, Condition, Draft, Header, Mark, Said, system_note
from dialogd.protocol.state import NO_TEXT, Dialog, Question, Questions, State
from dialogd.protocol.text import Zone, as_iso, in_words, moment_of, one_line, seconds_between

NAME = "QUESTION_FOR_USER"
LEAST = 900.0  # seconds that the person has at least
LONGEST = 7 * 86_400.0  # seconds ahead that `in 7d` may name
NO_DEADLINE = "no deadline: write in 30m or by 2026-11-22T18:00+01:00"

_BY = re.compile(r"by\s+(\S.*)", re.I)
_IN = re.compile(r"in\s+(\d{1,6})\s?(m|h|d)", re.I)
_TRIED = re.compile(r"by\s+\S|(?:in|within)\s+\d", re.I)
_DEFAULT = re.compile(r"default\s*:\s*(\S.*)", re.I)


def parse(mark: Mark) -> Question:
    """The question of a mark as it stands in the file; what is no ISO time with an offset is no deadline."""
    fields = mark.value.split(" | ") if mark.value else []
    texts, by, default = [], "", ""
    for field in fields:
        found = _BY.fullmatch(field)
        moment = moment_of(found[1]) if found else None
        answer = _DEFAULT.fullmatch(field) if len(fields) > 1 else None
        if moment and not by:
            by = as_iso(moment)
        elif answer and not default:
            default = answer[1]
        else:
            texts.append(field)
    return Question(" | ".join(texts), by, default)


def written(marks: Sequence[Mark], at: str) -> tuple[Mark, ...]:
    """The marks of a turn as its daemon writes them at `at`: deadlines as ISO times, at least 15 minutes ahead."""
    found: list[Mark] = []
    remarks: list[Mark] = []
    for mark in marks:
        one, refused = _canonical(mark, moment_of(at)) if mark.name == NAME else (mark, [])
        found.append(one)
        remarks += [did_not_count(f"{NAME} {one_line(said, 60).replace('|', '/')}", why) for said, why in refused]
    return (*found, *remarks)


def without_fields(text: str) -> str:
    """A text for a question of a daemon's own: nothing in it sets a deadline or a default."""
    return re.sub(r"\s*\|\s*", " / ", text)


def _canonical(mark: Mark, now: datetime | None) -> tuple[Mark, list[tuple[str, str]]]:
    """The mark as it is written, and what did not count of it, with the reason."""
    fields = [field for part in re.split(r"\s*\|\s*", mark.value) if (field := part.strip()).strip("| ")]
    moments = {field: moment for field in fields if now is not None and (moment := _moment(field, now)) is not None}
    answers = {
        field: found[1].strip()
        for field in fields[: len(fields) * (len(fields) > 1)]
        if (found := _DEFAULT.fullmatch(field))
    }
    texts = [field for field in fields if field not in moments and field not in answers]
    refused = [(field, NO_DEADLINE) for field in texts if now is not None and _TRIED.match(field)]
    if len({*moments.values()}) > 1:
        refused.append((" / ".join(moments), "several deadlines: none of them counts"))
    if len({*answers.values()}) > 1:
        refused.append((" / ".join(answers), "several defaults: none of them counts"))
    when = ""
    if now is not None and len({*moments.values()}) == 1:  # the person has a quarter of an hour at least
        by = max(*moments.values(), now + timedelta(seconds=LEAST))
        when = as_iso(by if not by.second else by + timedelta(seconds=60 - by.second))
    default = next(iter(answers.values())) if len({*answers.values()}) == 1 else ""
    text = " | ".join(texts) if moments or answers or refused else mark.value
    parts = [*([f"by {when}"] if when else []), *([f"default: {default}"] if default else [])]
    one = Mark(NAME, " | ".join(filter(None, (text, *parts))))
    if parse(one) != Question(text, when, default):  # it would be read otherwise
        one = Mark(NAME, " | ".join((f"“{without_fields(text) or NO_TEXT}”", *parts)))
    return one, refused


def _moment(field: str, now: datetime) -> datetime | None:
    if within := _IN.fullmatch(field):
        ahead = int(within[1]) * {"m": 60.0, "h": 3_600.0, "d": 86_400.0}[within[2].lower()]
        return now + timedelta(seconds=ahead) if 0 < ahead <= LONGEST else None
    by = _BY.fullmatch(field)
    return moment_of(by[1]) if by else None


def unheard(header: Header, state: State, me: str, mark: Mark) -> str:
    """Why a question, or what `me` would pass up, means nothing: it is for the person, and nobody is at the table."""
    above = header.moderator
    if header.is_unattended and mark.name == NAME and me in state.questions.askers:  # one question may be asked
        return "nobody is at the table, as the last question was told: decide without the person"
    if header.is_unattended and mark.name == "ESCALATE" and (above in ("", me) or above in state.absent):
        return "nobody is at the table, and nobody else moderates: decide among yourselves"
    return ""


# -- Questions in a dialog: they stay open, are answered, or run into their defaults ----------------------------------


def asked_in(said: Said, asker: str, questions: Questions) -> Questions:
    """The open questions with those of this entry; they take the place of what its asker had asked before.

    What daemons ask about one task leaves what they asked about another.
    """
    marks = said.all(NAME)
    if not marks:
        return questions
    task = 0 if asker else task_of(said)
    new = (replace(parse(mark), asker=asker, entry=said.id, task=task) for mark in marks)
    return replace(questions, open=(*(q for q in questions.open if q.asker != asker or task), *new))


def allows_defaults(header: Header) -> bool:
    """True where the header lets daemons take a default."""
    return header.setup.get("question_defaults") is True


def how_to_ask(header: Header) -> tuple[str, str]:
    """The form of a question, as agents are taught it, and what comes of its deadline and default in this dialog."""
    if header.is_unattended:
        alone = "nobody is at the table to answer it: it comes back to you, and a second one does not count"
        return f"{NAME}: text | default: what you do otherwise", f"{alone}; decide yourself, and say what you assume"
    waits = "for what only the person can decide; the dialog waits for them"
    if not allows_defaults(header):
        return f"{NAME}: …", waits
    after = "after that time (15 minutes at least) your default counts, if you gave one"
    return f"{NAME}: text | in 2h | default: what you do otherwise", f"{waits}; {after}"  # no clock is needed to count


def takes_default(header: Header, question: Question) -> bool:
    """True for a question whose default counts as its answer once its deadline has passed."""
    return allows_defaults(header) and bool(question.by and question.default)


def due(dialog: Dialog, at: str) -> Draft | None:
    """The note that takes the defaults of all open questions at wall time `at`; None while one of them has to wait."""
    seconds = _taken_in(dialog, at)
    if seconds is None or seconds > 0:
        return None
    marks = tuple(Mark("DEFAULT_TAKEN", question.default) for question in dialog.state.questions.open)
    return system_note(at, marks, turn=order.reopened(dialog.header, dialog.state))


def overdue(dialog: Dialog, at: str) -> float:
    """Seconds since the defaults of the open questions were to be taken; endless where none will be."""
    # A dialog that lies still until then lies still on purpose.
    seconds = _taken_in(dialog, at)
    return math.inf if seconds is None else max(-seconds, 0.0)


def _taken_in(dialog: Dialog, at: str) -> float | None:
    """Seconds until the last deadline; None where nothing is taken: others owe a turn, it is paused, somebody types."""
    seconds = [seconds_between(at, question.by) for question in dialog.state.questions.open]
    known = [each for each in seconds if each is not None]
    is_held = set(dialog.state.owing) != {USER} or dialog.state.paused or _is_typing(dialog)
    return None if not known or len(known) < len(seconds) or is_held or _why_never(dialog) else max(known)


def next_look(dialog: Dialog, at: str) -> float | None:
    """Seconds until a deadline changes what there is to do or to say; None where none will."""
    ahead = [seconds_between(at, question.by) for question in dialog.state.questions.open]
    return min((seconds for seconds in ahead if seconds is not None and seconds > 0), default=None)


def _why_never(dialog: Dialog) -> str:
    """Why the defaults will not be taken, in words; "" where they will."""
    if not allows_defaults(dialog.header):
        return "this dialog takes no defaults"
    if not all(takes_default(dialog.header, question) for question in dialog.state.questions.open):
        return "another question has no deadline or no default"
    return "step mode gives the turn to the person" if dialog.state.hand.step else ""


def _is_typing(dialog: Dialog) -> bool:
    return dialog.last is not None and dialog.last.condition is Condition.UNFINISHED


def waiting(dialog: Dialog, at: str, zone: Zone | None = None) -> str:
    """The open questions as a reason to wait; "" without any."""
    terms = ((question.said, terms_in_words(dialog, question, at, zone)) for question in dialog.state.questions.open)
    return " / ".join(f"{said} ({words})" if words else said for said, words in terms)


def terms_in_words(
    dialog: Dialog, question: Question, at: str, zone: Zone | None = None, *, ahead: bool = False
) -> str:
    """Deadline and default in words; with `ahead` also how far off it is, which changes with every minute."""
    seconds, by = seconds_between(at, question.by), until_in_words(question.by, at, zone)
    if seconds is not None and seconds <= 0:
        by += ", which has passed"
    elif seconds is not None and ahead:
        by += f", in {in_words(round(seconds if seconds < 60 else -(-seconds // 60) * 60))}"
    if not question.default:
        return by
    why = _why_never(dialog) if question.by else "there is no deadline"
    when = "taken then" if len(dialog.state.questions.open) == 1 else "taken once every deadline has passed"
    typing = ", when what is being typed at the end of the file is finished" if _is_typing(dialog) else ""
    default = f"default: {question.default} ({f'not taken: {why}' if why else when + typing})"
    return f"{by}; {default}" if by else default


def rows(dialog: Dialog, at: str, zone: Zone | None = None) -> list[str]:
    """Each open question in one line: who asks what, how long it is until the deadline, what counts then."""
    found = []
    for question in dialog.state.questions.open:
        terms = terms_in_words(dialog, question, at, zone, ahead=True)
        found.append(one_line(f"{asker(dialog, question)} asks: {question.said}{terms and f'; {terms}'}", 2_000))
    return found


def asker(dialog: Dialog, question: Question) -> str:
    """Who asks, in words."""
    return question.asker or ("a daemon" if not dialog.state.build else "the build")


def facts(dialog: Dialog) -> list[dict[str, Any]]:
    """The open questions for programs: `by` an ISO time or null, `takes_default` whether it will count as the answer.

    Of a dialog that has ended none is open.
    """
    return [
        {
            "text": q.said,
            "asker": q.asker,
            "entry": q.entry,
            "by": q.by or None,
            "default": q.default or None,
            "takes_default": takes_default(dialog.header, q) and not dialog.state.hand.step,
        }
        for q in (dialog.state.questions.open if dialog.state.outcome is None else ())
    ]


def until_in_words(by: str, at: str, zone: Zone | None = None) -> str:
    """A deadline as people say it, at wall time `at`: `by 18:00`, with its date where that is another day's."""
    # The time is that of `zone`, the reader's; where that is not known it is as it was written, and names its own.
    moment, now = moment_of(by), moment_of(at)
    if moment is None:
        return ""
    local = zone or (lambda each: each.astimezone(moment.tzinfo))
    there = local(moment)
    is_today = now is not None and local(now).date() == there.date()
    return f"by {'' if is_today else f'{there:%Y-%m-%d} '}{there:%H:%M}{'' if zone else f' {moment:%Z}'}"


def answered_by_default(dialog: Dialog, me: str) -> tuple[Question, ...]:
    """What `me` had asked in its last turn and a daemon has answered by its default since; empty where nobody had."""
    values: set[str] = set()
    for entry in reversed(dialog.entries):
        if entry.is_turn and entry.by == me:
            return tuple(question for mark in entry.all(NAME) if (question := parse(mark)).default in values)
        values |= {mark.value for mark in entry.all("DEFAULT_TAKEN") if entry.by == SYSTEM}
    return ()

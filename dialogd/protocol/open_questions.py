"""What becomes of questions to the person in a dialog: they stay open, are answered, or run into their defaults. Pure.

A default is taken where the header allows it, once the deadline of every open question has passed: not while the dialog
is paused, in step mode, or while somebody types at the end of the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from dialogd.protocol import units
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry, Header, Mark
from dialogd.protocol.order import reopened
from dialogd.protocol.questions import NAME, Question, parse
from dialogd.protocol.render import Draft
from dialogd.protocol.state import Dialog, State
from dialogd.protocol.text import one_line
from dialogd.protocol.units import Zone, moment_of


def put(state: State, entry: Entry, asker: str) -> State:
    """The state with the questions of this entry; they take the place of what its asker had asked before."""
    marks = entry.all(NAME)
    if not marks:
        return state
    new = (replace(parse(mark), asker=asker, entry=entry.id) for mark in marks)
    return state.but(questions=(*(q for q in state.questions if q.asker != asker), *new))


def taken(state: State, entry: Entry) -> State:
    """The state once a daemon's note took the defaults of all open questions, and gave the turn back."""
    if entry.mark("DEFAULT_TAKEN") is None or entry.turn is None:
        return state
    return state.but(questions=(), debts=tuple(debt for debt in state.debts if debt.agent != USER))


def approved(state: State, entry: Entry) -> State:
    """The state with the person's approval, where this note is the first that gives it."""
    if entry.is_turn or state.approved or entry.mark("APPROVED") is None:
        return state
    return state.but(approved=entry.id)


def allows_defaults(header: Header) -> bool:
    """True where the header lets daemons take a default."""
    return header.setup.get("question_defaults") is True


def how_to_ask(header: Header) -> tuple[str, str]:
    """The form of a question, as agents are taught it, and what comes of its deadline and default in this dialog."""
    if header.is_unattended:
        alone = "nobody is at the table to answer it: it comes back to you, and a second one does not count"
        return f"{NAME}: text | default: what you do otherwise", f"{alone}; decide yourself, and say what you assume"
    after = "your default counts, if you gave one" if allows_defaults(header) else "it still waits"
    meaning = f"the dialog waits for the person; after that time (15 minutes at least) {after}"
    return f"{NAME}: text | in 2h | default: what you do otherwise", meaning  # whoever has no clock can count


def takes_default(header: Header, question: Question) -> bool:
    """True for a question whose default counts as its answer once its deadline has passed."""
    return allows_defaults(header) and bool(question.by and question.default)


def due(dialog: Dialog, at: str) -> Draft | None:
    """The note that takes the defaults of all open questions at wall time `at`; None while one of them has to wait."""
    seconds = until(dialog, at)
    if seconds is None or seconds > 0 or _why_never(dialog) or _is_held(dialog):
        return None
    marks = tuple(Mark("DEFAULT_TAKEN", question.default) for question in dialog.state.questions)
    turn = reopened(dialog.header, dialog.state)
    return Draft(SYSTEM, "System", marks=marks, turn=turn, attributes=(("at", at),))


def until(dialog: Dialog, at: str) -> float | None:
    """Seconds until the last deadline of the open questions, below 0 once it has passed; None where one has none."""
    seconds = [left(question.by, at) for question in dialog.state.questions]
    known = [each for each in seconds if each is not None]
    return max(known) if known and len(known) == len(seconds) else None


def overdue(dialog: Dialog, at: str) -> float:
    """Seconds since the defaults of the open questions were to be taken; endless where none will be.

    A dialog that lies still until then lies still on purpose.
    """
    seconds = until(dialog, at)
    return math.inf if seconds is None or _why_never(dialog) or _is_held(dialog) else max(-seconds, 0.0)


def next_look(dialog: Dialog, at: str) -> float | None:
    """Seconds until a deadline changes what there is to do or to say; None where none will."""
    ahead = [left(question.by, at) for question in dialog.state.questions]
    return min((seconds for seconds in ahead if seconds is not None and seconds > 0), default=None)


def _why_never(dialog: Dialog) -> str:
    """Why the defaults will not be taken, in words; "" where they will."""
    if not allows_defaults(dialog.header):
        return "this dialog takes no defaults"
    if not all(takes_default(dialog.header, question) for question in dialog.state.questions):
        return "another question has no deadline or no default"
    return "step mode gives the word to the person" if is_stepping(dialog) else ""


def _is_held(dialog: Dialog) -> bool:
    """True while nothing is taken: others owe a turn, the dialog is paused, somebody types at the end of the file."""
    return set(dialog.state.owing) != {USER} or dialog.state.paused or _is_typing(dialog)


def _is_typing(dialog: Dialog) -> bool:
    return dialog.last is not None and dialog.last.condition is Condition.UNFINISHED


def is_stepping(dialog: Dialog) -> bool:
    """True where every agent turn passes to the person."""
    return dialog.state.step


def waiting(dialog: Dialog, at: str, zone: Zone | None = None) -> str:
    """The open questions as a reason to wait; "" without any."""
    terms = ((question.said, terms_in_words(dialog, question, at, zone)) for question in dialog.state.questions)
    return " / ".join(f"{said} ({words})" if words else said for said, words in terms)


def terms_in_words(dialog: Dialog, question: Question, at: str, zone: Zone | None = None) -> str:
    """Deadline and default in words that do not change with every minute; "" without both."""
    return "; ".join(_terms(dialog, question, at, zone))


def _terms(dialog: Dialog, question: Question, at: str, zone: Zone | None) -> Iterator[str]:
    seconds = left(question.by, at)
    if question.by:
        passed = ", which has passed" if seconds is not None and seconds <= 0 else ""
        yield f"{until_in_words(question.by, at, zone)}{passed}"
    if question.default:
        yield default_in_words(dialog, question)


def default_in_words(dialog: Dialog, question: Question) -> str:
    """The default, and whether it will be taken; "" without one."""
    if not question.default:
        return ""
    if not question.by:
        return f"default: {question.default} (not taken: there is no deadline)"
    why = _why_never(dialog)
    if why:
        return f"default: {question.default} (not taken: {why})"
    when = "taken then" if len(dialog.state.questions) == 1 else "taken once every deadline has passed"
    typing = ", when what is being typed at the end of the file is finished" if _is_typing(dialog) else ""
    return f"default: {question.default} ({when}{typing})"


def rows(dialog: Dialog, at: str, zone: Zone | None = None) -> list[str]:
    """Each open question in one line: who asks what, how long it is until the deadline, what counts then."""
    return [
        one_line(
            f"{q.asker or 'a daemon'} asks: {q.said}"
            + "".join(f"; {part}" for part in (left_in_words(q.by, at, zone), default_in_words(dialog, q)) if part),
            2_000,
        )
        for q in dialog.state.questions
    ]


def facts(dialog: Dialog) -> list[dict[str, Any]]:
    """The open questions for programs: `by` an ISO time or null, `takes_default` whether it will count as the answer.

    Of a dialog that has ended none is open.
    """
    if dialog.state.outcome is not None:
        return []
    return [
        {
            "text": q.said,
            "asker": q.asker,
            "entry": q.entry,
            "by": q.by or None,
            "default": q.default or None,
            "takes_default": takes_default(dialog.header, q) and not is_stepping(dialog),
        }
        for q in dialog.state.questions
    ]


def until_in_words(by: str, at: str, zone: Zone | None = None) -> str:
    """A deadline as people say it, at wall time `at`: `by 18:00`, with its date where that is another day's.

    The time is that of `zone`, the reader's; where that is not known it is as it was written, and names its own.
    """
    moment, now = moment_of(by), moment_of(at)
    if moment is None:
        return ""
    there = moment.tzinfo
    local = zone or (lambda each: each.astimezone(there))
    is_today = now is not None and local(now).date() == local(moment).date()
    day = "" if is_today else f"{local(moment):%Y-%m-%d} "
    return f"by {day}{local(moment):%H:%M}{'' if zone else f' {moment:%Z}'}"


def left(by: str, at: str) -> float | None:
    """Seconds from wall time `at` to a deadline, below 0 once it has passed; None without one."""
    return units.seconds_between(at, by) if by and at else None


def left_in_words(by: str, at: str, zone: Zone | None = None) -> str:
    """How far off a deadline is: `by 18:00, in 1 hour 5 minutes`; `by 18:00, which has passed`."""
    seconds = left(by, at)
    if seconds is None:
        return until_in_words(by, at, zone)
    if seconds <= 0:
        return f"{until_in_words(by, at, zone)}, which has passed"
    rounded = seconds if seconds < 60 else -(-seconds // 60) * 60
    return f"{until_in_words(by, at, zone)}, in {units.in_words(round(rounded))}"


def answered_by_default(dialog: Dialog, me: str) -> tuple[Question, ...]:
    """What `me` had asked in its last turn and a daemon has answered by its default since; empty where nobody had."""
    mine = next((entry for entry in reversed(dialog.entries) if entry.is_turn and entry.by == me), None)
    if mine is None or mine.mark(NAME) is None:
        return ()
    since = dialog.entries[dialog.entries.index(mine) + 1 :]
    values = {mark.value for entry in since if entry.by == SYSTEM for mark in entry.all("DEFAULT_TAKEN")}
    return tuple(question for mark in mine.all(NAME) if (question := parse(mark)).default in values)

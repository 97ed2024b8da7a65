"""How a dialog goes on after an entry: its end at a limit, who decides at last, or whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dialogd.protocol.model import ANY, USER, Header, Mark
from dialogd.protocol.order import following
from dialogd.protocol.questions import without_fields
from dialogd.protocol.roster import judge, moderator
from dialogd.protocol.state import State
from dialogd.protocol.units import many


@dataclass(frozen=True, slots=True)
class Step:
    """What is written under an entry: `marks`, and `turn`, or None when it ends with `outcome` for the reason `why`."""

    marks: tuple[Mark, ...] = ()
    turn: tuple[str, ...] | None = None
    outcome: str = ""
    why: str = ""


def limit_reached(before: State, after: State, me: str, header: Header) -> tuple[str, str]:
    """The outcome of the limit that `after` has reached, and the limit in words; "" twice while there is room."""
    limits = after.limits
    if after.counted >= limits.max_turns:
        return "MAX_TURNS_REACHED", f"the limit of {many(limits.max_turns, 'turn')}"
    is_last_resort = me in (before.escalated, judge(header)) and not _rest(after, me)
    if after.rounds == before.rounds and not is_last_resort:
        return "", ""
    if after.closing:
        return "MAX_TIME_REACHED", after.closing
    if limits.max_rounds is not None and after.rounds >= limits.max_rounds:
        return "MAX_TURNS_REACHED", f"the limit of {many(limits.max_rounds, 'round')}"
    return "", ""


def onward(header: Header, before: State, after: State, me: str, *, is_decided: bool = False) -> Step:
    """How the dialog goes on after an entry of `me` that does not end it by its rule.

    `before` and `after` are the states around the entry; `after` holds no debt that the entry itself opens.
    `is_decided` says that the entry holds a decision.
    """
    outcome, why = limit_reached(before, after, me, header)
    rest = _rest(after, me)
    if outcome and not rest and not _is_hard(after):
        last = _last_resort(header, before, after, outcome, why)
        if last is not None:
            return last
    if outcome:
        return Step(outcome=outcome, why=why)
    marks = (*_phase(header, before, after), *_passed_up(before, after, me, is_decided=is_decided))
    if rest:
        return Step(marks, rest)
    return _next(header, after, me, marks)


def _rest(after: State, me: str) -> tuple[str, ...]:
    """Who else still owes a turn."""
    return tuple(d.agent for d in after.debts if d.agent not in (me, ANY))


def _is_hard(after: State) -> bool:
    """True at the limit of turns, which nothing goes beyond."""
    return after.counted >= after.limits.max_turns


def _last_resort(header: Header, before: State, after: State, outcome: str, why: str) -> Step | None:
    """Who has the last word where this dialog's rule gives it to one: the judge, the moderator, or the person."""
    board, one = header.rules.board, judge(header)
    if one and one not in after.failed and len(after.judged) < 2:
        return Step((), (USER,) if one in after.askers else (one,))
    above = moderator(header) if header.rules.verdict == "moderator" else ""
    if above and not before.escalated and above not in after.failed and not _has_decided(after):
        return Step((Mark("ESCALATE", why),), (above,))
    if board is not None and not board.terminate_on_rounds and outcome == "MAX_TURNS_REACHED":
        return Step((Mark("QUESTION_FOR_USER", f"{why} is reached: how is it to go on?"),), (USER,))
    return None


def _has_decided(after: State) -> bool:
    """True when something was approved since the dialog was last opened."""
    found = (decision.entry for decision in after.decisions if decision.outcome == "approved")
    return any(int(entry.partition(".")[0] or 0) > after.base for entry in found)


def _phase(header: Header, before: State, after: State) -> Iterator[Mark]:
    """The phase that begins with what follows."""
    rules = header.rules
    now = rules.phase(after.rounds)
    if now > rules.phase(before.rounds) >= 0:
        yield Mark("PHASE", rules.phases[now].name)


def _passed_up(before: State, after: State, me: str, *, is_decided: bool) -> Iterator[Mark]:
    """What the moderator was to decide, and did not, is the person's."""
    if before.escalated == me and not after.escalated and not is_decided:
        yield Mark("ESCALATE", f"{me} did not decide: {before.escalation}")
        yield Mark("QUESTION_FOR_USER", f"{me} did not decide; please do: {without_fields(before.escalation)}")


def _next(header: Header, after: State, me: str, marks: tuple[Mark, ...]) -> Step:
    """Whose turn it is once nobody owes one."""
    asked = any(mark.name == "QUESTION_FOR_USER" for mark in marks)
    if after.question or asked or after.step:
        return Step(marks, (USER,))
    if after.escalated == USER:
        return Step((*marks, Mark("QUESTION_FOR_USER", without_fields(after.escalation) or "please decide")), (USER,))
    if after.escalated:
        return Step(marks, (after.escalated,))
    if after.is_quiet and not header.rules.is_plain:
        question = Mark("QUESTION_FOR_USER", "everybody passed: close the dialog, or say what is missing")
        return Step((*marks, question), (USER,))
    return Step(marks, following(header, after, me))

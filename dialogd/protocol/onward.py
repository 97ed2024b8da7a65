"""How a dialog goes on after an entry: its end at a limit, who decides at last, or whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dialogd.protocol.model import ANY, USER, Header, Mark
from dialogd.protocol.order import following
from dialogd.protocol.polls import can_pass
from dialogd.protocol.questions import without_fields
from dialogd.protocol.roles import DECIDE, MODERATE
from dialogd.protocol.roster import judge, moderator, speakers, voters
from dialogd.protocol.state import SINCE, State
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
        return "MAX_TURNS_REACHED", turns_limit(after)
    is_last_resort = me in (before.escalated, judge(header)) and not _rest(after, me)
    if after.rounds == before.rounds and not is_last_resort:
        return "", ""
    if after.closing:
        return "STOPPED", f"time: {after.closing}"
    if limits.max_rounds is not None and after.rounds >= limits.max_rounds:
        return "MAX_TURNS_REACHED", f"the limit of {many(limits.max_rounds, 'round')}"
    return "", ""


def awaited(header: Header, state: State) -> tuple[str, ...]:
    """The absent agents without which nothing can be decided any more: whoever goes on only pays."""
    rules, absent, one = header.rules, state.absent, judge(header)
    able = voters(header)
    here = [who for who in able if who not in absent]
    if not absent:
        return ()
    if one:
        return (one,) if one in absent else ()
    if rules.verdict == "moderator":
        able = tuple(agent.id for agent in header.agents if rules.role(agent.id).may(DECIDE, MODERATE))
        return able if able and set(able) <= absent else ()
    if rules.verdict == "vote":
        above = moderator(header)
        votes = ({*here, *(ballot.agent for ballot in poll.ballots)} for poll in state.polls)
        is_open = any(can_pass(header, agents) for agents in (here, *votes)) or (above and above not in absent)
        return () if is_open else tuple(who for who in able if who in absent)
    if state.standing is not None:
        missing = tuple(who for who in able if not state.standing.signed_by(who))
        return missing if len(able) > 1 and set(missing) <= absent else ()
    return tuple(who for who in able if who in absent) if len(here) < 2 and header.is_unattended else ()


def is_takeable(header: Header, state: State) -> bool:
    """True where the person can take the text on the table before the end: all have signed it but who is absent."""
    if state.outcome is not None or state.standing is None or header.rules.verdict != "mutual":
        return False
    return all(state.standing.signed_by(who) or who in state.absent for who in voters(header))


def ways_out(header: Header, state: State) -> str:
    """What the person can do where only absent agents are missing, in words; "" where they are not."""
    names = awaited(header, state)
    if not names:
        return ""
    standing = state.standing if is_takeable(header, state) else None
    signed = ""
    if standing is not None:
        signed = f"{standing.proposal.ref} is signed by {', '.join(who for who, _ in standing.signers)}; "
    are = "are" if len(names) > 1 else "is"
    ways = [f"`retry {who}` asks it again, `leave {who}` goes on without it" for who in names]
    if standing is not None:
        ways.append(f"`approve` takes {standing.proposal.ref} as it stands")
    return f"{signed}{', '.join(names)} {are} absent, and nothing can be decided without: {', '.join(ways)}"


def turns_limit(state: State) -> str:
    """The limit of turns in words; they are counted anew after a reopening."""
    return f"the limit of {many(state.limits.max_turns, 'turn')}" + (f" {SINCE}" if state.base else "")


def onward(header: Header, before: State, after: State, me: str, *, is_decided: bool = False) -> Step:
    """How the dialog goes on after an entry of `me` that does not end it by its rule.

    `before` and `after` are the states around the entry; `after` holds no debt that the entry itself opens.
    `is_decided` says that the entry holds a decision.
    """
    outcome, why = limit_reached(before, after, me, header)
    rest = tuple(who for who in _rest(after, me) if who != USER or not header.is_unattended)
    if outcome and not rest and not _is_hard(after):
        last = _last_resort(header, before, after, outcome, why)
        if last is not None:
            return last
    if outcome:
        return Step(outcome=outcome, why=why)
    marks = tuple(_phase(header, before, after))
    above = () if is_decided else tuple(_passed_up(before, after, me))
    if header.is_unattended:
        return Step(marks, rest) if rest else _alone(header, before, after, me, marks, above)
    marks = (*marks, *above)
    return Step(marks, rest) if rest else _next(header, after, me, marks)


def _rest(after: State, me: str) -> tuple[str, ...]:
    """Who else still owes a turn."""
    return tuple(d.agent for d in after.debts if d.agent not in (me, ANY))


def _is_hard(after: State) -> bool:
    """True at the limit of turns, which nothing goes beyond."""
    return after.counted >= after.limits.max_turns


def _last_resort(header: Header, before: State, after: State, outcome: str, why: str) -> Step | None:
    """Who has the last word where this dialog's rule gives it to one: the judge, the moderator, or the person."""
    board, one = header.rules.board, judge(header)
    if one and one not in after.absent and len(after.judged) < 2:
        waits = one in after.askers and not header.is_unattended
        return Step((), (USER,) if waits else (one,))
    above = moderator(header) if header.rules.verdict == "moderator" else ""
    if above and not before.escalated and above not in after.absent and not _has_decided(after):
        return Step((Mark("ESCALATE", why),), (above,))
    if header.is_unattended:
        return None
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
        yield Mark("ROUND", f"phase | {rules.phases[now].name}")


def _passed_up(before: State, after: State, me: str) -> Iterator[Mark]:
    """What the moderator was to decide, and did not, is the person's."""
    if me and before.escalated == me and not after.escalated:
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
    if ways := ways_out(header, after):
        return Step((*marks, Mark("QUESTION_FOR_USER", ways)), (USER,))
    return Step(marks, following(header, after, me))


def _alone(
    header: Header, before: State, after: State, me: str, marks: tuple[Mark, ...], above: tuple[Mark, ...]
) -> Step:
    """How it goes on with nobody at the table: what would wait for the person goes back, or ends the dialog.

    `above` is what the moderator leaves to the person.
    """
    back = tuple(who for who in after.askers if who not in {*after.told, *after.absent} and header.agent(who))
    if back:
        return Step(marks, back)
    if after.escalated not in ("", USER):
        return Step(marks, (after.escalated,))
    outcome, why = _end_alone(header, before, after, above)
    if outcome:
        return _last_resort(header, before, after, outcome, why) or Step(marks, outcome=outcome, why=why)
    return Step(marks, following(header, after, me))


def _end_alone(header: Header, before: State, after: State, above: tuple[Mark, ...]) -> tuple[str, str]:
    """The outcome where only the person could help, and why; "" twice while the agents can go on."""
    everybody = speakers(header)
    here = [who for who in everybody if who not in after.absent]
    if above:
        return "DEADLOCK", without_fields(above[0].value)
    if after.escalated == USER:
        return "DEADLOCK", f"nobody could decide: {without_fields(after.escalation)}"
    if len(here) < 2 and not (len(everybody) == 1 and here and after.limits.max_rounds is not None):
        absent = ", ".join(who for who in everybody if who in after.absent)
        why = f"absent: {absent}" if absent else "nobody else takes part"
        return "STOPPED", f"error: fewer than two agents are left; {why}"
    if names := ", ".join(awaited(header, after)):
        return "STOPPED", f"error: nothing can be decided without {names}; absent: {', '.join(sorted(after.absent))}"
    if after.is_quiet:
        return "DEADLOCK", "everybody passed"
    return "", ""

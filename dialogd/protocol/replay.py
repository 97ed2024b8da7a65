"""A dialog worked out anew: what its daemons wrote, compared with what follows from the entries before. Pure.

Readers are forgiving, so that a person may type; whoever writes frames is not forgiven. What no file shows is taken as
it stands: reasons, times, what git and a gate said. What the person typed breaks no rule.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dialogd.protocol import build, questions
from dialogd.protocol.admit import MarkPolicy
from dialogd.protocol.build import Due, GateResult, Submission
from dialogd.protocol.certificate import own_words, recorded, where
from dialogd.protocol.compose import (
    closing_note,
    concluded,
    decided_note,
    error_note,
    going_on,
    limit_note,
    stall_note,
)
from dialogd.protocol.fold import beginning
from dialogd.protocol.grammar import parse, read_on, render
from dialogd.protocol.header import read_header
from dialogd.protocol.marks import MARKS, ParsedReply, Who, round_of, summary_of
from dialogd.protocol.model import ANY, OUTCOMES, SYSTEM, USER, Condition, Draft, Entry, Mark
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import clean, one_line
from dialogd.protocol.verdict import Close


@dataclass(frozen=True, slots=True)
class Fault:
    """An entry that does not follow from those before it, in a plain sentence; `chain` is its hash."""

    line: int
    words: str
    chain: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.words}"


def faults(data: bytes) -> tuple[Fault, ...]:
    """The framed entries that no daemon could have written where they stand. Raises `NotADialog`.

    Each is judged in the dialog as it stood then, up to the first entry that was changed: behind it nothing follows.
    """
    dialog, found = parse(data), list[Fault]()
    header = dialog.header_as_written
    first = dialog.entries[0].start if dialog.entries else len(data)
    before = Dialog(read_header(header.text), (), beginning(header), first, written=header)
    for entry, after in itertools.zip_longest(dialog.entries, dialog.entries[1:]):
        if entry.condition not in (Condition.SOUND, Condition.BY_HAND) or not entry.linked:
            break
        if entry.frame is not None:
            then = replace(entry, marks=entry.written, withdrawn=None)  # what was withdrawn later counted then
            words = _form(before, then, data[entry.start : entry.end]) or _against(before, then)
            found += [Fault(entry.line, f"{where(entry.id)} of {entry.by} {words}", entry.chain)] if words else []
        if after is not None:
            before = read_on(before, data[before.size : after.start]) if before.entries else parse(data[: after.start])
    return tuple(found)


def _form(before: Dialog, entry: Entry, raw: bytes) -> str:
    """Why the bytes are not those that a writer makes of such an entry; "" where they are."""
    draft = Draft(entry.by, entry.name, entry.number, entry.body, entry.marks, entry.turn)
    inside, wanted = (part.split(b"\n", 2)[-1].rstrip() for part in (raw, render(draft, "")))
    wanted = clean(wanted.decode()).encode()
    if inside != wanted:
        pairs = itertools.zip_longest(inside.split(b"\n"), wanted.split(b"\n"), fillvalue=b"")
        there = next(a for a, b in pairs if a != b).decode("utf-8", "replace")
        return f"is not written as entries are at `{one_line(there, 60)}`"
    if entry.is_turn and entry.number != before.state.number + 1 and not (before.last and before.last.by_hand):
        return f"is out of order: the next is turn {before.state.number + 1}"
    return ""


def _against(before: Dialog, entry: Entry) -> str:
    """Why nobody could write that there; "" where somebody could."""
    if entry.by == USER:
        is_free = entry.turn is None and all(str(mark).startswith(FROM_SEATS) for mark in entry.marks)
        is_allowed = entry.is_persons or (is_free and not entry.is_turn)
        return "" if is_allowed else "is from a session: it is the person's alone"
    if entry.by == SYSTEM:
        bare = entry.turn is None and (not entry.marks or entry.mark("DIGEST") is not None)
        drafts = [] if bare else list(filter(None, _notes(before, entry)))
        is_like = any(draft.turn == entry.turn and _names(draft.marks) == _names(entry.marks) for draft in drafts)
        return "" if bare or is_like else "does not follow: nothing calls for it"
    debts = before.state.debts.open
    if not any(debt.agent in (entry.by, ANY) and debt.re == entry.re for debt in debts):
        return f"answers no open debt: the turn is with {', '.join(before.state.owing) or 'nobody'}"
    if not entry.is_turn:
        return "" if {mark.name for mark in entry.marks} == {"SEALED"} else "is no seal, and no turn"
    return _turn(before, entry)


FROM_SEATS = ("[PAUSED", "[RESUMED", "[STOPPED", "[LIMIT: timeout ")
"""What a session that holds a seat may do by the person's hand."""


def _turn(before: Dialog, entry: Entry) -> str:
    """Why an agent's own marks do not come to what its daemon wrote; "" where they do."""
    permits, steps, refusals = MarkPolicy(before, entry.by), list[Close](), list[str]()
    done, body = _done(before, entry), own_words(entry.body)
    for reply in _replies(before, entry, done):
        refused = permits.admitted(reply)[1]
        refusals += [f"`{one_line(str(one.mark), 80)}` may not count: {one.why}" for one in refused]
        if not refused:
            steps.append(concluded(before, entry.by, reply, (), body, done))
    if any(step.turn == entry.turn and _counted(step.marks) == _counted(entry.marks) for step in steps):
        return ""
    if not steps:
        return f"does not follow: {refusals[0]}"
    wanted, there = _counted(steps[0].marks), _counted(entry.marks)
    differ = [*(f"`{one_line(mark, 80)}` counts for nothing there" for mark in there - wanted)]
    differ += (f"`{one_line(mark, 80)}` is missing" for mark in wanted - there)
    going = f"the rules go on with `TURN: {', '.join(steps[0].turn or ())}`"
    return f"does not follow: {(*differ, going)[0]}"


def _done(before: Dialog, entry: Entry) -> tuple[Mark, ...]:
    """The records of a submission."""
    rules = before.state.build.rules
    if rules is None or entry.by != rules.lead or before.state.build.due[0] is not Due.WORK:
        return ()
    is_made = ("TASK", "PROPOSAL task-")
    return tuple(mark for mark in entry.marks if f"{mark.name} {mark.value}".startswith(is_made))


# What an agent writes and its daemon, too: which of the two wrote it, no frame says.
_EITHER = frozenset({"ESCALATE", questions.NAME, "DEADLOCK"})


def _replies(before: Dialog, entry: Entry, done: tuple[Mark, ...]) -> Iterator[ParsedReply]:
    """What the agent may have said."""
    left = [mark for mark in entry.marks if mark not in done]
    either = [mark for mark in left if mark.name in _EITHER]
    own = [
        replace(mark, ref="") if mark.name == "PROPOSAL" else mark
        for mark in left
        if mark.name not in (*_EITHER, "CONSENSUS_REACHED")
        and (mark.name not in MARKS or Who.AGENT in MARKS[mark.name].who)
    ]
    put, header = entry.mark("CONSENSUS_PROPOSED"), before.header
    claim = Mark("CONSENSUS_REACHED", " | ".join(put.fields[1:]) if put else "")
    claims = [[claim]] if put else [[]]
    if not put and header.rules.verdict == "mutual" and len(header.voters) < 2:
        claims.append([claim])  # an end that fewer than two may sign leaves no mark
    body = own_words(entry.body)
    for count in range(len(either), -1, -1):
        for chosen, said in itertools.product(itertools.combinations(either, count), claims):
            yield ParsedReply(body, (*own, *chosen, *said), summary_of(body))


def _notes(before: Dialog, entry: Entry) -> Iterator[Draft | None]:
    """The notes that a daemon may write here, for what this one says."""
    at, end, state = entry.at, entry.ending, before.state
    if state.outcome is not None:
        return
    for mark in (mark for mark in entry.marks if state.debt(mark.fields[0]) is not None):
        if mark.name == "AGENT_ERROR":
            who, cause, fix = (*mark.fields, "", "")[:3]
            yield error_note(before, who, cause, fix)
        if mark.name == "STALLED":
            yield stall_note(before, mark.fields[0], at)
    if (why := round_of(entry.marks, "closing")) is not None and state.limits.max_time is not None:
        yield closing_note(before, why, at)
    if entry.mark("DEFAULT_TAKEN") is not None:
        yield questions.due(before, at)
    if end is not None:
        yield decided_note(before, at)
        yield from (limit_note(before, mark, at) for mark in (end, Mark("MAX_TURNS_REACHED")) if _is_due(before, mark))
    yield going_on(before, at)
    yield from _of_a_build(before, entry)


def _is_due(before: Dialog, end: Mark) -> bool:
    """True where the dialog has come to that limit; a cap of its agent's own stands in no file."""
    limits, cause = before.state.limits, end.value.partition(":")[0]
    if end.name == "MAX_TURNS_REACHED":
        return before.state.counted >= limits.max_turns
    return end.name == "STOPPED" and (
        cause == "budget"
        or (cause == "time" and limits.max_time is not None)
        or (cause == "size" and before.size >= limits.max_size)
    )


def _of_a_build(before: Dialog, entry: Entry) -> Iterator[Draft]:
    rules = before.state.build.rules
    what, task = before.state.build.due if rules is not None else (None, None)
    if rules is None or task is None or what not in (Due.ASSIGN, Due.GATE):
        return
    if what is Due.ASSIGN:
        if task.carried:
            yield build.carried_note(task, Submission("", "", "", ""), before.state.table.next_ref, entry.at)
        yield build.assigned_note(task, "", "", entry.at)
    else:
        findings = entry.all("FINDING")
        yield build.gate_note(rules, task, GateResult(""), findings, entry.at)
        yield build.ask_gate_note(rules, task, "", findings, entry.at)
    yield build.error_note(before.state.build, task, "", "", entry.at)


def _counted(marks: Iterable[Mark]) -> Counter[str]:
    """The marks that are compared, without the words that are their writer's own."""
    return Counter(_essence(mark) for mark in marks if mark.name != "REFUSED")


def _essence(mark: Mark) -> str:
    """What of a mark follows from the file: not a deadline, a crux or a reason."""
    if mark.name in (questions.NAME, "ESCALATE", *OUTCOMES):
        return mark.name
    if mark.name == "DECISION":
        outcome, method, evidence = (*mark.fields, "", "", "")[:3]
        behind = sorted(f"{who} in turn {turn}" for who, turn in recorded((), mark.ref, method, evidence))
        return f"[{f'DECISION {mark.ref}'.strip()}: {' | '.join((outcome, method, ', '.join(behind)))}]"
    return str(mark)


def _names(marks: Iterable[Mark]) -> Counter[tuple[str, str]]:
    return Counter((mark.name, mark.ref) for mark in marks)

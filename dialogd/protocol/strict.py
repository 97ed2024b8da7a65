"""A dialog file held strictly against docs/protocol.md: what a writer did in it that no writer may. Pure.

Readers are forgiving, so that a person may type; whoever writes frames is not forgiven. Each entry is judged in the
dialog as it stood when the entry was written. What the person typed by hand breaks no rule.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dialogd.protocol import build, questions
from dialogd.protocol.admit import Permits
from dialogd.protocol.build import Due, GateResult, Submission, due
from dialogd.protocol.certificate import recorded, where
from dialogd.protocol.compose import (
    closing_note,
    concluded,
    decided_note,
    error_note,
    going_on,
    limit_note,
    raising_note,
    stall_note,
)
from dialogd.protocol.fold import beginning
from dialogd.protocol.grammar import parse, read_on, render
from dialogd.protocol.header import read_header
from dialogd.protocol.marks import (
    DECIDING,
    FORMS,
    MARKS,
    UNSIGNED,
    Lifted,
    Who,
    canonical,
    contributes,
    round_of,
    same_text,
    summary_of,
)
from dialogd.protocol.marks import tidy as tidied
from dialogd.protocol.model import (
    ANY,
    OUTCOMES,
    SYSTEM,
    USER,
    Condition,
    Draft,
    Entry,
    Frame,
    Mark,
    Participant,
    digest,
    whose,
)
from dialogd.protocol.order import to_raise
from dialogd.protocol.seal import answers, own_words
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import clean, escape, one_line
from dialogd.protocol.units import iso
from dialogd.protocol.verdict import Close


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that breaks the protocol, in a plain sentence; `chain` is the hash of the entry, "" for the header."""

    line: int
    words: str
    chain: str = ""

    def __str__(self) -> str:
        return f"line {self.line}: {self.words}"


def faults(data: bytes) -> tuple[Fault, ...]:
    """Everything in the file that the protocol does not allow, by line. Raises `NotADialog` for what is none."""
    dialog = parse(data)
    header = dialog.header_as_written
    found = [Fault(1, f"the header: {warning}") for warning in header.warnings]
    first = dialog.entries[0].start if dialog.entries else len(data)
    before = Dialog(read_header(header.text), (), beginning(header), first, written=header)
    is_sure = True  # nothing before was changed, so that what follows from it can be worked out
    for index, entry in enumerate(dialog.entries):
        as_written = replace(entry, marks=entry.written, is_struck=False)  # what was struck later, counted then
        end = (
            entry.end
            if entry.frame is None
            else max(entry.end, data.find(b"-->\n", entry.start) + 4 + entry.frame.size)
        )
        judge = _Judge(before, as_written, data[entry.start : end])
        found += [replace(fault, chain=entry.chain) for fault in judge.faults(is_sure=is_sure)]
        is_sure &= entry.condition in (Condition.SOUND, Condition.BY_HAND) and entry.linked
        if index + 1 < len(dialog.entries):
            end = dialog.entries[index + 1].start
            before = read_on(before, data[before.size : end]) if index else parse(data[:end])
    for seal in answers(dialog):
        if seal.is_harm or seal.status == "unsealed":
            entry = dialog.entry(str(seal.turn) if seal.turn else seal.note) or dialog.entries[-1]
            found.append(Fault(entry.line, f"the sealed answer of {seal.agent}: {seal.why}", entry.chain))
    return tuple(sorted(dict.fromkeys(found), key=lambda fault: fault.line))


# -- One entry --------------------------------------------------------------------------------------------------------

_HEADING = re.compile(r"## (?:Turn ([1-9]\d{0,8})|Note) — (.*)")
_COUNT, _NUMBER, _ENTRY = r"\d{1,12}", r"~?\d{1,12}", r"\d{1,9}(?:\.\d{1,9})?"
# Of a frame, and the forms of their values; `at` is an ISO time.
ATTRIBUTES = {
    "at": r".*",
    "by": r"[A-Za-z][A-Za-z0-9_-]*",
    "re": _ENTRY,
    "host": r"[a-z][a-z0-9-]*",
    "nonce": r"[0-9A-Za-z_-]+",
    "ms": _COUNT,
    "model": r"\S+",
    "knocks": _COUNT,
    "calls": _COUNT,
    "in": _NUMBER,
    "cached": _NUMBER,
    "out": _NUMBER,
    "usd": r"~?\d{1,9}(?:\.\d{1,12})?",
    "via": r"[A-Za-z][A-Za-z0-9_-]*",
    "bytes": r"\d{1,9}",
    "prev": r"(?:[0-9a-f]{16})?",
    "sha": r"[0-9a-f]{16}",
}
_CUT = re.compile(
    r"\A\*\(the calls of tools that this turn made: \[what they gave\]\([^)\n]*\)\)\*\n\n"
    r"|\n\n\*\([\d,]+ more characters: \[the whole text\]\([^)\n]*\)\)\*\Z"
)
_DECISIONS = ("approved", "rejected", "undecided")
# What an agent writes and its daemon, too: which of the two wrote it, no frame says.
_EITHER = frozenset({"ESCALATE", questions.NAME, "DEADLOCK"})
_CLAIM = Mark("CONSENSUS_REACHED")
FROM_SEATS = frozenset({"PAUSED", "RESUMED", "STOPPED"})


@dataclass(frozen=True)
class _Judge:
    """One entry, its bytes, and the dialog before it."""

    before: Dialog
    entry: Entry
    raw: bytes

    def faults(self, *, is_sure: bool) -> Iterator[Fault]:
        """All that is wrong with it; with `is_sure` also what does not follow from the entries before."""
        entry = self.entry
        if entry.frame is None:
            yield from self._by_hand()
            return
        if not entry.linked:
            last = self.before.last
            wanted = f"the entry before has {last.chain}" if last else "it is the first entry, so `prev` is empty"
            yield self._fault(
                f"{self.name} is not chained to the entry before: `prev` is {entry.frame.prev or 'empty'}, and {wanted}"
            )
        if entry.condition is not Condition.SOUND and self._would_fit(entry.frame):
            quoted = "`<!-- dialogd by=`, as frames do: a writer puts a `\\` before it"
            yield self._fault(f"the body of an entry of {entry.by} holds a line that begins with {quoted}")
            return
        if entry.condition is not Condition.SOUND:
            what = "was cut or overwritten" if entry.condition is Condition.DAMAGED else "was changed"
            yield self._fault(f"{self.name} {what}: its hash does not fit what stands there")
            return
        yield from self._heading()
        yield from self._attributes()
        yield from self._content()
        yield from self._from_seat()
        yield from self._marks()
        yield from self._last_word()
        if entry.by == SYSTEM:
            yield from self._system(is_sure=is_sure)
        elif entry.by != USER:
            yield from self._agent(is_sure=is_sure)

    def _would_fit(self, frame: Frame) -> bool:
        """True where the recorded hash is that of the bytes, and yet readers stop at a line among them."""
        head = self.raw.index(b"-->\n") + 4
        seal = self.raw[: self.raw.rindex(b" sha=", 0, head)]
        return digest(seal + self.raw[head : head + frame.size]) == frame.sha

    @property
    def name(self) -> str:
        """The entry in words: `turn 7 of B`."""
        return f"{where(self.entry.id)} of {self.entry.by}"

    def _fault(self, words: str, line: int = 0) -> Fault:
        """A fault in that line of the entry, counted from 0 for its heading."""
        return Fault(self.entry.line + line, words)

    def _by_hand(self) -> Iterator[Fault]:
        entry = self.entry
        if entry.condition is Condition.UNFINISHED:
            yield self._fault(f"the text at the end is unfinished: {entry.notice or 'it has no last word'}")
        elif entry.by != USER:
            yield self._fault(f"{self.name} has no frame: a writer of {entry.by} frames its turns")
        elif entry.notice:
            yield self._fault(entry.notice)

    # -- its form -----------------------------------------------------------------------------------------------------

    def _participant(self) -> Participant | None:
        return self.before.header.agent(self.entry.by)

    def _heading(self) -> Iterator[Fault]:
        entry, agent = self.entry, self._participant()
        heading = self.raw.split(b"\n", 1)[0].decode("utf-8", "replace")
        match = _HEADING.fullmatch(heading)
        if match is None:
            yield self._fault(f"the heading `{heading}` is not of the form `## Turn 7 — NAME` or `## Note — NAME`")
        elif match[1] and int(match[1]) != (wanted := self.before.state.number + 1) and not self._was_typing(match[1]):
            yield self._fault(
                f"the turn is numbered {match[1]}, and its number is {wanted}: turns are numbered in a row"
            )
        if entry.by not in (USER, SYSTEM) and agent is None:
            ids = ", ".join(one.id for one in self.before.header.agents)
            yield self._fault(f"`by={entry.by}` is nobody in this dialog: its agents are {ids}", 1)
        given = one_line(agent.name, 80) if agent and agent.is_named else ""
        name = {SYSTEM: "System"}.get(entry.by, given)
        if name and entry.name != name:
            yield self._fault(f"the heading names {entry.name}, and the frame says by={entry.by}, who is called {name}")
        if entry.is_turn and entry.by == SYSTEM:
            yield self._fault("a turn is by an agent or the person: `by=SYSTEM` writes notes")

    def _was_typing(self, number: str) -> bool:
        """True for the number that was next as long as the text before, by hand, was not finished."""
        last = self.before.last
        return last is not None and last.by_hand and last.number == int(number)

    def _attributes(self) -> Iterator[Fault]:
        line = self.raw.split(b"\n", 2)[1].decode("utf-8", "replace")
        inside = line.removeprefix("<!-- dialogd ").removesuffix(" -->").split(" ")
        seen: set[str] = set()
        for part in inside:
            key, _, value = part.partition("=")
            form = ATTRIBUTES.get(key)
            if key == "at":
                if not iso(value):
                    yield self._fault(f"the frame's `at={value}` is no ISO time with its offset", 1)
            elif form is None:
                yield self._fault(f"the frame has an attribute `{part}`, which the protocol does not know", 1)
            elif not re.fullmatch(form, value, re.A):
                yield self._fault(f"the frame's `{key}={value}` has not the form of {key}", 1)
            if key in seen:
                yield self._fault(f"the frame names `{key}` twice", 1)
            seen.add(key)

    def _from_seat(self) -> Iterator[Fault]:
        """What a session that holds a seat may not do by the person's hand."""
        entry = self.entry
        if not entry.via:
            return
        if entry.by != USER:
            yield self._fault(f"the frame has `via={entry.via}`, which stands with `by=USER` alone", 1)
        elif entry.is_turn or entry.turn is not None:
            yield self._fault(f"{self.name} is from {whose(entry.via)}: a turn is the person's alone")
        for mark in entry.written:
            is_timeout = mark.name == "LIMIT" and mark.value.startswith("timeout ")
            if mark.name not in FROM_SEATS and not is_timeout:
                said = f"`{self._short(mark)}` stands in {self.name}, from {whose(entry.via)}"
                yield self._fault(f"{said}: it is the person's alone")

    def _content(self) -> Iterator[Fault]:
        """The inside, held against what the same entry looks like when it is written."""
        inside = self.raw.split(b"\n", 2)[2]
        text = inside.decode("utf-8", "replace")
        if text.encode() != inside:
            yield self._fault(f"{self.name} holds bytes that are no UTF-8", self._first(inside, text.encode()))
        elif (cleaned := clean(text)) != text:
            line = self._first(inside, cleaned.encode())
            yield self._fault("a control character stands in a frame: writers put U+FFFD in its place", line)
        entry = self.entry
        draft = Draft(entry.by, entry.name, entry.number, entry.body, entry.marks, entry.turn)
        wanted = render(draft, "").split(b"\n", 2)[2]
        if wanted == inside:
            return
        lines, marks = text.split("\n"), set(map(str, entry.marks))
        bare = [at for at, line in enumerate(lines[: self._trailer - 2]) if escape(line) != line and line not in marks]
        for at in bare:
            said = f"`{one_line(lines[at], 60)}` reads as structure in a body: a writer puts a `\\` before it"
            yield self._fault(said, at + 2)
        if not bare:
            at = self._first(inside, wanted)
            expected = wanted.decode().split("\n")
            there, should = (those[at - 2] if at - 2 < len(those) else "" for those in (lines, expected))
            if words := self._why(there, should):
                yield self._fault(words, at)

    @property
    def _trailer(self) -> int:
        """The line of the entry in which its marks begin; behind them are the TURN line and the end."""
        return self.raw.count(b"\n") - 2 * (self.entry.turn is not None) - len(self.entry.marks)

    @staticmethod
    def _first(inside: bytes, other: bytes) -> int:
        """The line of the entry in which the two differ first."""
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(inside, other, strict=False)))
        return 2 + inside.count(b"\n", 0, same)

    @staticmethod
    def _why(there: str, wanted: str) -> str:
        mark = canonical(there)
        if mark is not None and wanted == str(mark):
            return f"`{one_line(there, 60)}` is not in canonical form: it is written `{wanted}`"
        found = f"`{one_line(there, 60)}`" if there else "an empty line"
        should = f"`{one_line(wanted, 60)}`" if wanted else "an empty line or the end"
        return f"{found} stands where {should} belongs: body, marks and `TURN:` line are parted by one empty line each"

    # -- its marks ----------------------------------------------------------------------------------------------------

    def _marks(self) -> Iterator[Fault]:
        number = int(self.before.state.table.next_ref[1:])
        for at, mark in enumerate(self.entry.marks, self._trailer):
            for words in (self._who(mark), self._form(mark)):
                if words:
                    yield self._fault(words, at)
            if mark.name in ("PROPOSAL", "CONSENSUS_PROPOSED"):
                if mark.ref != f"P{number}":
                    yield self._fault(
                        f"`{self._short(mark)}` is to be numbered P{number}: proposals count in a row", at
                    )
                number += 1
            if mark.name == "CONSENSUS_PROPOSED":
                yield from self._text(mark, at)

    @staticmethod
    def _short(mark: Mark) -> str:
        return one_line(str(mark), 60)

    def _who(self, mark: Mark) -> str:
        """Why this writer may not write that mark; "" when it may."""
        entry, row = self.entry, MARKS.get(mark.name)
        said = f"`{self._short(mark)}` stands in {self.name}"
        if row is None and mark.name == "FINDING" and self.before.header.rules.build is not None:
            return ""  # the daemon's own, beside the gate's result
        if row is None:  # a kind of the dialog's own
            return f"{said}: only agents and the person write that" if entry.by == SYSTEM else ""
        if entry.by == USER:
            return f"{said}: only an agent writes that" if row.who == Who.AGENT and mark.name in DECIDING else ""
        if entry.by == SYSTEM:
            can = Who.DAEMON in row.who
            return "" if can else f"{said}: only {'the person' if Who.PERSON in row.who else 'an agent'} writes that"
        if not entry.is_turn:
            return "" if mark.name == "SEALED" else f"{said}: a note of an agent holds its seal and nothing else"
        if row.who == Who.PERSON:
            return f"{said}: only the person writes that"
        if mark.name in ("STALLED", "AGENT_ERROR", "SEALED", "DIGEST", "DEFAULT_TAKEN"):
            return f"{said}: it stands in notes only"
        return ""

    def _form(self, mark: Mark) -> str:
        """Why the mark is not as such a mark is written; "" when it is."""
        said, agents = f"`{self._short(mark)}`", {agent.id for agent in self.before.everybody}
        if mark.ref and mark.name not in ("CONSENSUS_PROPOSED", "DECISION") and not contributes(mark):
            return f"{said}: no number stands behind {mark.name}"
        who = mark.fields[0]
        if mark.name in FORMS and self.entry.by not in (USER, SYSTEM):
            is_ending = self.entry.turn is None and mark.name in OUTCOMES
            fits = FORMS[mark.name].fullmatch(mark.value) and tidied(mark) == mark
            return "" if fits or is_ending else f"{said} has not the literal form of {mark.name}"
        if mark.name in ("STALLED", "AGENT_ERROR") and who not in agents:
            return f"{said} names nobody in this dialog"
        if mark.name == "DECISION" and (who not in _DECISIONS or len(mark.fields) < 3):
            return f"{said} is not of the form [DECISION P4: approved | method | evidence | reason]"
        if mark.name == "SEALED" and not re.fullmatch(r"[0-9a-f]{64}", who):
            return f"{said} holds no hash of 64 hex digits"
        if mark.name == "ROUND" and who not in ("closing", "phase", "red team"):
            return f"{said}: a ROUND is closing, phase or red team"
        return ""

    def _text(self, mark: Mark, at: int) -> Iterator[Fault]:
        text = same_text(summary_of(own_words(self.entry.body)))
        if not text:
            yield self._fault(f"`{self._short(mark)}` stands below no `## Consensus Summary`", at)
        elif mark.fields not in (((sha := digest(text)),), (sha, UNSIGNED)):
            yield self._fault(f"`{self._short(mark)}` is not the hash of the summary above it, which is {sha}", at)

    def _last_word(self) -> Iterator[Fault]:
        entry, header = self.entry, self.before.header
        last = len(self.raw.split(b"\n")) - 2
        known = {USER, ANY, *(agent.id for agent in header.agents)}
        invited = {mark.value.split(" ")[0] for mark in entry.all("INVITE")}
        for who in entry.turn or ():
            if who not in known | invited:
                yield self._fault(f"the `TURN:` line names {who}, who is nobody in this dialog", last)
        if len(set(entry.turn or ())) < len(entry.turn or ()):
            yield self._fault(f"the `TURN:` line names somebody twice: {', '.join(entry.turn or ())}", last)
        alone = entry.by == USER and entry.mark("REJECTED") is not None
        if entry.is_turn and entry.turn is None and entry.ending is None and not alone:
            yield self._fault(f"{self.name} ends with neither a `TURN:` line nor an outcome", last)
        if entry.turn is not None and entry.by not in (USER, SYSTEM):
            ends = [mark for mark in entry.marks if mark.name in OUTCOMES and mark.name != "DEADLOCK"]
            for mark in ends:
                yield self._fault(f"`{self._short(mark)}` ends nothing: a `TURN:` line follows it", last)

    # -- what follows from the entries before -------------------------------------------------------------------------

    def _agent(self, *, is_sure: bool) -> Iterator[Fault]:
        """An agent's entry pays an open debt, when it may, and comes to what the rules make of it."""
        owes = self._debt()
        if owes:
            yield self._fault(owes, 1)
            return
        state, entry = self.before.state, self.entry
        if state.paused and self._was_begun_in_the_pause():
            yield self._fault(f"{self.name} was begun while the dialog was paused")
        if not entry.is_turn:
            return
        most, body = state.limits.max_message, _CUT.sub("", own_words(entry.body))
        if len(body) > most:
            yield self._fault(f"{self.name} has {len(body):,} characters; what exceeds {most:,} goes to an attachment")
        has_end = entry.turn is not None or entry.ending is not None
        if is_sure and has_end and self.before.header.agent(entry.by) is not None:
            yield from self._follows()

    def _debt(self) -> str:
        """Why the entry pays no debt; "" when it pays one."""
        state, entry = self.before.state, self.entry
        debt = next((debt for debt in state.debts.open if debt.agent in (entry.by, ANY) and debt.re == entry.re), None)
        if debt is not None:
            return ""
        if state.outcome is not None:
            return f"{self.name} comes after the end: {state.outcome.name} in {where(state.outcome.entry)}"
        owed = state.debt(entry.by)
        if owed is None:
            turn = f"the turn is with {', '.join(state.owing)}" if state.owing else "no turn is open"
            return f"{self.name} answers no open debt: {entry.by} owes no turn, {turn}"
        said = f"says `re={entry.re}`" if entry.re else "has no `re`"
        return f"{self.name} {said}, and the debt that it owes was opened by {where(owed.re)}: `re={owed.re}`"

    def _was_begun_in_the_pause(self) -> bool:
        """True where what it answers was asked during the pause: only a reply under way may still come."""
        entries = self.before.entries
        pauses = [index for index, one in enumerate(entries) if one.mark("PAUSED") is not None]
        asked = next((index for index, one in enumerate(entries) if one.id == self.entry.re), -1)
        return bool(pauses) and asked >= pauses[-1]

    def _follows(self) -> Iterator[Fault]:
        """What the agent's own marks come to by the rules, held against what its daemon wrote."""
        permits = Permits(self.before, self.entry.by)
        ruled = [(reply, permits.admitted(reply)[1]) for reply in self._replies()]
        replies = [reply for reply, refused in ruled if not refused]
        if not replies:
            for refusal in ruled[0][1]:
                yield self._fault(f"`{self._short(refusal.mark)}` in {self.name} may not count: {refusal.why}")
            return
        body = own_words(self.entry.body)
        steps = [concluded(self.before, self.entry.by, reply, (), body, self._done()) for reply in replies]
        if not any(self._is_like(step) for step in steps):
            alike = [step for step in steps if step.turn == self.entry.turn]
            yield self._fault(self._differs((alike or steps)[0]), len(self.raw.split(b"\n")) - 2)

    def _done(self) -> tuple[Mark, ...]:
        """The records of a submission: what git said is not in the file, so they are taken as they stand."""
        rules = self.before.header.rules.build
        if rules is None or self.entry.by != rules.lead or due(rules, self.before.state.tasks)[0] is not Due.WORK:
            return ()
        return tuple(mark for mark in self.entry.marks if mark.name == "TASK" or _is_submission(mark))

    def _replies(self) -> Iterator[Lifted]:
        """What the agent may have said: the marks that its daemon writes too are its own, or are not."""
        entry, own, either = self.entry, list[Mark](), list[Mark]()
        body = own_words(entry.body)
        for mark in entry.marks:
            row = MARKS.get(mark.name)
            if mark in self._done():
                continue
            if mark.name in _EITHER:
                either.append(mark)
            elif row is None or (Who.AGENT in row.who and mark.name != "CONSENSUS_REACHED"):
                own.append(replace(mark, ref="") if mark.name == "PROPOSAL" else mark)
        put = entry.mark("CONSENSUS_PROPOSED")
        claims = [[replace(_CLAIM, value=" | ".join(put.fields[1:]))] if put is not None else []]
        header = self.before.header
        if not claims[0] and header.rules.verdict == "mutual" and len(header.voters) < 2:
            claims.append([_CLAIM])  # an end that fewer than two may sign leaves no mark
        for count in range(len(either), -1, -1):
            for chosen, claim in itertools.product(itertools.combinations(either, count), claims):
                yield Lifted(body, (*own, *chosen, *claim), summary_of(body))

    def _is_like(self, step: Close) -> bool:
        return step.turn == self.entry.turn and _counted(step.marks) == _counted(self.entry.marks)

    def _differs(self, step: Close) -> str:
        """What is not as the rules make it, in words."""
        entry, end = self.entry, self.entry.ending
        goes_on = f"the rules go on with `TURN: {', '.join(step.turn)}`" if step.turn else ""
        if end is not None and goes_on:
            return f"{self.name} ends the dialog with `{self._short(end)}`, and {goes_on}"
        if end is None and not step.turn:
            return f"{self.name} goes on, and by the rules the dialog ends with it: {step.outcome}, {step.why}"
        if end is not None and end.name != step.outcome:
            return f"{self.name} ends the dialog with {end.name}, and by the rules it is {step.outcome}: {step.why}"
        if step.turn != entry.turn:
            return f"the `TURN:` line of {self.name} names {', '.join(entry.turn or ())}, and {goes_on}"
        more = _counted(entry.marks) - _counted(step.marks)
        less = _counted(step.marks) - _counted(entry.marks)
        if more:
            return f"`{one_line(next(iter(more)), 80)}` in {self.name} does not follow from the dialog"
        return f"{self.name} lacks `{one_line(next(iter(less)), 80)}`, which follows from the dialog"

    # -- notes of daemons ---------------------------------------------------------------------------------------------

    def _system(self, *, is_sure: bool) -> Iterator[Fault]:
        entry = self.entry
        state = self.before.state
        if entry.is_turn:
            return
        if state.outcome is not None and (entry.turn or entry.marks) and entry.mark("DIGEST") is None:
            yield self._fault(f"{self.name} comes after the end: {state.outcome.name} in {where(state.outcome.entry)}")
            return
        late = entry.mark("STALLED") or entry.mark("AGENT_ERROR")
        if late is not None and state.debt(late.fields[0]) is None:
            yield self._fault(f"`{self._short(late)}`: {late.fields[0]} owes no turn")
        elif is_sure and not (entry.turn is None and (not entry.marks or entry.mark("DIGEST"))):
            possible = [draft for draft in self._possible() if draft is not None]
            if not any(self._is_drawn_up(draft) for draft in possible):
                yield self._fault(self._unlike(possible))

    def _possible(self) -> Iterator[Draft | None]:
        """The notes that a daemon may write here, for what this one says."""
        before, entry, marks = self.before, self.entry, self.entry.marks
        end, at = entry.ending, entry.at
        for mark in entry.all("AGENT_ERROR")[:1]:
            who, cause, fix = (*mark.fields, "", "")[:3]
            yield error_note(before, who, cause, fix)
        for mark in entry.all("STALLED")[:1]:
            yield stall_note(before, mark.fields[0], at)
        if (why := round_of(marks, "closing")) is not None and before.state.limits.max_time is not None:
            yield closing_note(before, why, at)
        if entry.mark("DEFAULT_TAKEN") is not None:
            yield questions.due(before, at)
        if entry.mark("PROPOSAL") is not None and before.header.rules.board is not None:
            turn, *by = to_raise(before.header, before.state) or (0,)
            yield raising_note(before, turn, by, at) if turn else None
        if end is not None and self._has_cause(end):
            yield limit_note(before, end, at)
        if end is not None:
            yield decided_note(before, at)
            yield limit_note(before, Mark("MAX_TURNS_REACHED"), at) if end.name != "MAX_TURNS_REACHED" else None
        if before.header.is_unattended:
            yield going_on(before, at)
        yield build.accepted_note(before.state.tasks, at)
        yield from self._of_a_build()

    def _of_a_build(self) -> Iterator[Draft]:
        """The notes that the lead's daemon may write here; what git and the gate said stands in no file."""
        before, at, rules = self.before, self.entry.at, self.before.header.rules.build
        what, task = due(rules, before.state.tasks) if rules is not None else (None, None)
        if rules is None or task is None:
            return
        table, made = before.state.table, Submission("", "", "", "")
        if what is Due.ASSIGN:
            if task.carried:
                yield build.carried_note(task, made, table.next_ref, at)
            yield build.assigned_note(task, "", "", at)
        if what is Due.GATE:
            findings = self.entry.all("FINDING")
            yield build.gate_note(rules, task, GateResult(""), findings, at)
            yield build.ask_gate_note(rules, task, "", findings, at)
        if what in (Due.ASSIGN, Due.GATE):
            yield build.error_note(task, "", "", at, is_unattended=before.header.is_unattended)

    def _has_cause(self, end: Mark) -> bool:
        """True where the dialog has the limit that this outcome names, and for what no file shows: an own cap."""
        state, cause = self.before.state, end.value.partition(":")[0]
        if end.name == "MAX_TURNS_REACHED":
            return state.counted >= state.limits.max_turns
        if end.name != "STOPPED" or cause == "error":
            return False
        if cause == "size":
            return self.before.size >= state.limits.max_size
        return state.limits.max_time is not None if cause == "time" else cause == "budget"

    def _is_drawn_up(self, draft: Draft) -> bool:
        return draft.turn == self.entry.turn and _names(draft.marks) == _names(self.entry.marks)

    def _unlike(self, possible: Sequence[Draft]) -> str:
        end, turn = self.entry.ending, self.entry.turn
        if end is not None:
            return f"{self.name} ends the dialog with `{self._short(end)}`, and nothing in the file calls for that"
        wanted = next((draft.turn for draft in possible if draft.turn != turn), None)
        if possible and wanted != turn:
            has, should = (f"`TURN: {', '.join(named)}`" if named else "no `TURN:` line" for named in (turn, wanted))
            return f"{self.name} has {has}, and by the rules it has {should}"
        return f"{self.name} does not follow from the dialog: nothing calls for it"


def _is_submission(mark: Mark) -> bool:
    """True for the proposal of a task's submission."""
    return mark.name == "PROPOSAL" and mark.value.startswith("task-")


def _counted(marks: Iterable[Mark]) -> Counter[str]:
    """The marks that are compared, without the words that are their writer's own."""
    return Counter(_said(mark) for mark in marks if mark.name != "REFUSED")


def _said(mark: Mark) -> str:
    """What a mark says that follows from the file: not a deadline, a crux or a reason."""
    if mark.name in (questions.NAME, "ESCALATE", *OUTCOMES):
        return mark.name
    if mark.name == "DECISION":
        outcome, method, evidence = (*mark.fields, "", "", "")[:3]
        behind = sorted(f"{who} in turn {turn}" for who, turn in recorded((), mark.ref, method, evidence))
        return f"[{f'DECISION {mark.ref}'.strip()}: {' | '.join((outcome, method, ', '.join(behind)))}]"
    return str(mark)


def _names(marks: Iterable[Mark]) -> Counter[tuple[str, str]]:
    return Counter((mark.name, mark.ref) for mark in marks)

"""The mark language: what may be said in a line of its own, and how a reply is read. Pure, total, linear.

    mark  = "[" NAME [" " ref] [": " value] "]"        a line of its own; the value runs to the last "]"
    NAME  = 1*( A-Z / "_" )
    ref   = "P" 1*DIGIT

Four families. Contributions count on any line of a reply outside fences and quotations. Decisions count in its closing
block alone: its last lines, as far up as they are marks or blank. Records are written by daemons, the person's hand by
the person. No sentence around a mark is read.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from types import MappingProxyType

from dialogd.protocol.model import Mark, Said
from dialogd.protocol.rules import CONTRIBUTIONS
from dialogd.protocol.text import is_blank

_EMPHASIS = re.compile(r"\A([*_`]{1,3})([^*_`]*)\1\Z")


def fields_of(mark: Mark) -> tuple[str, ...]:
    """A mark's fields, split at every bar, without emphasis around the whole of one."""
    return tuple(_EMPHASIS.sub(r"\2", part.strip(" \t")) for part in mark.value.split("|"))


def refused(what: str, why: str) -> Mark:
    """The record that something did not count, and why."""
    return Mark("REFUSED", f"{what} | {why}")


def asking(text: str) -> Mark:
    """A question to the person, of a daemon's own."""
    return Mark("QUESTION_FOR_USER", text)


def as_given(mark: Mark) -> Mark:
    """The mark as its agent gave it: a proposal without the number that its daemon wrote."""
    return replace(mark, ref="") if mark.proposes else mark


def is_agents(mark: Mark) -> bool:
    """True for one that an agent may write; those of a dialog's own are."""
    return mark.name not in MARKS or Who.AGENT in MARKS[mark.name].who


class Who(enum.Flag):
    """Who may use a mark."""

    AGENT = enum.auto()
    DAEMON = enum.auto()
    PERSON = enum.auto()


@dataclass(frozen=True, slots=True)
class MarkRule:
    """One row of the table: who may write the mark and what it means."""

    who: Who
    meaning: str


_A, _D, _P = Who.AGENT, Who.DAEMON, Who.PERSON
_ROWS: Mapping[str, Mapping[str, tuple[Who, str]]] = {
    "contributions": {
        name: (_A | _D | _P if name in ("PROPOSAL", "RE") else _A, kind.meaning) for name, kind in CONTRIBUTIONS.items()
    },
    "decisions": {
        "AGREE": (
            _A,
            "accepts a proposal as it stands, without any condition; over the consensus text it is a signature",
        ),
        "VOTE": (_A, "approve, reject or abstain on a proposal"),
        "DECIDE": (_A, "decides on a proposal, for whom the rules name"),
        "CONSENSUS_REACHED": (_A | _D | _P, "everyone agreed to the same text: the dialog ends"),
        "DEADLOCK": (_A | _D | _P, "no agreement is in sight; ends the dialog when every agent says so"),
        "PASS": (_A, "nothing to add; never a yes"),
        "TO": (_A | _D | _P, "hands the floor on, where the order allows it; by the person: asks for it"),
        "ESCALATE": (_A | _D, "to the moderator, else to the person"),
        "QUESTION_FOR_USER": (_A | _D, "the dialog waits for the person"),
    },
    "records": {
        "CONSENSUS_PROPOSED": (_D, "the exact text, by its hash, that the others may sign"),
        "DECISION": (_D, "what was decided, by which method, on which evidence, and why"),
        "REFUSED": (_D, "a mark that did not count, and why"),
        "SEALED": (_D, "the hash of an answer that follows once all have sealed theirs"),
        "ROUND": (_D, "what begins with the next turn: a phase, a red-team turn, the closing round"),
        "STALLED": (_D, "an agent gave no answer in time"),
        "AGENT_ERROR": (_D, "an agent failed: who, cause, fix"),
        "DIGEST": (_D, "sums up turns for the agents whose window they no longer fit: author, turns, cost"),
        "GATE": (_D | _P, "what the tests said of a submitted tree; by the person: run, untested, command"),
        "DEFAULT_TAKEN": (_D, "the deadline of a question passed: its default counts as the answer"),
        "DECIDED": (_D, "the rule of this dialog decided: it ends"),
        "MAX_TURNS_REACHED": (_D, "the limit of turns or rounds ended the dialog"),
        "TASK": (_D | _P, "what became of a task of a build; by the person: confirmed, changed, dropped, retry …"),
        "STOPPED": (_D | _P, "ended by the person, an error, or a limit of time, size or budget: `time: why`"),
    },
    "the person's hand": {
        "PAUSED": (_P, "agents finish their turn and wait"),
        "RESUMED": (_P, "agents go on"),
        "STEP": (_P, "on: the turn comes back to the person each time; off: it does not"),
        "LIMIT": (_P, "changes a limit: max_turns, max_rounds, max_time, timeout, max_message, max_size, budget"),
        "SKIP": (_P, "passes over an agent that owes a turn"),
        "RETRY": (_P, "asks an agent once more"),
        "STRIKE": (_P, "withdraws a turn"),
        "VETO": (_P, "rules a proposal out"),
        "INVITE": (_P, "one more agent takes part from here on: `C = Name @ url`"),
        "LEAVE": (_P, "an agent takes part no longer; of the person, USER: nothing waits for them"),
        "KEY": (_P, "in a shared dialog: who signs with this key from here on"),
        "APPROVED": (_D | _P, "the person takes the result; of a task: its exact tree is approved"),
        "REJECTED": (_P, "the person does not take the result: the dialog goes on, and why"),
    },
}
FAMILIES: Mapping[str, tuple[str, ...]] = MappingProxyType({family: tuple(rows) for family, rows in _ROWS.items()})
MARKS: Mapping[str, MarkRule] = MappingProxyType(
    {name: MarkRule(*row) for rows in _ROWS.values() for name, row in rows.items()}
)

# -- What readers ask of a mark instead of its name -------------------------------------------------------------------

DECIDING = frozenset(_ROWS["decisions"])
CHOOSING = ("AGREE", "VOTE", "DECIDE")  # words may stand between these names and what they choose
BESIDE = ("RE", "CONFIDENCE")  # which say something of the mark above them
AGAINST = ("OBJECTION", "CRITIQUE")
MOVES = frozenset({"OBJECTION", "CONCEDE", "CONSENSUS_PROPOSED", "DEADLOCK"})  # news, though no contributions
CHANGES = frozenset({"STRIKE", "VETO", "INVITE", "LEAVE", "STEP", "KEY"})  # who takes part, and what counts
# Those that make the person's text complete, without a TURN line below them.
ACTS = frozenset({*_ROWS["the person's hand"], "TASK", "GATE"})
CONTROLS = ACTS - {"REJECTED"}  # which stand in notes
# What a turn of the person keeps that was withdrawn: it moved the dialog, and its own command moves it back.
LASTING = frozenset({*_ROWS["the person's hand"]} - {"VETO", "APPROVED", "REJECTED"})
# What a session that holds a seat may do by the person's hand.
FROM_SEATS = ("[PAUSED", "[RESUMED", "[STOPPED", "[LIMIT: timeout ")
UNSEALED = DECIDING - {"PASS", "TO"}  # what a daemon makes of these depends on what stands in the file by then
EITHERS = frozenset({"ESCALATE", "QUESTION_FOR_USER", "DEADLOCK"})  # an agent's or its daemon's: no frame says whose
ACCOUNTS = ("AGENT_ERROR", "DIGEST")  # notes of the daemon that give account of the agent that their first field names
_NO_POSITION = frozenset({"ESCALATE", *_ROWS["records"]} - {"TASK", "STOPPED"})
UNSIGNED = "unsigned"  # of a consensus text: its author has not confirmed it

# The marks that are taken where one thing is due, in dialogs that are not plain; elsewhere all are.
_COMMON = frozenset({"DECIDE", "RE", "CONFIDENCE", "QUESTION_FOR_USER", "PASS"})
TAKEN = {
    "closing": _COMMON
    | {"SYNTHESIS", "VOTE", "AGREE", "OBJECTION", "RESERVATION", "CONCEDE", "DEADLOCK", "CONSENSUS_REACHED"},
    "escalated": _COMMON | {"SYNTHESIS", "VOTE", "EVIDENCE", "ESCALATE"},
    "judging": _COMMON | {"EVIDENCE"},
}

CANONICAL = re.compile(r"\[([A-Z][A-Z_]*)(?: (P\d{1,6}))?(?:: (.*))?\]")
# Tolerance is mechanical: case, indentation, a bullet, bold or backticks around the bracket.
_LITERAL = re.compile(
    r"[ \t]*+(?:(?:[-*+]|\d{1,3}[.)])[ \t]++)?[*_`]{0,4}"
    r"\[[ \t]*+([A-Za-z][A-Za-z_]*+)(?:[ \t]++([Pp]\d{1,6}))?[ \t]*+(?::(.*))?\][*_`]{0,4}[ \t]*+"
)
_BY_HAND = re.compile(r"([^\[]*\[[ \t]*+)([A-Za-z]+(?:[ \t-]++[A-Za-z]+)+)((?::.*)?\][*_`]{0,4})[ \t.,;:!]*")
_TRIED = re.compile(r"[\s*_`#+-]*+(?:\d{1,3}[.)]\s++)?[*_`]*+\[\s*+([A-Za-z][A-Za-z_ -]{1,30})")
_BRACKETS = re.compile(r"\[([A-Z][A-Z_]{2,39})(?:: ?(.*))?\]")
FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})(.*)")
_TURN_LINE = re.compile(r"TURN: [A-Za-z][A-Za-z0-9_-]*(?:, [A-Za-z][A-Za-z0-9_-]*)*")
SUMMARY = re.compile(r"[ \t]*(?:#{1,6}[ \t]*)?[*_]{0,3}(?:final[ \t]+)?consensus[ \t]+summary[*_:. \t]*(.*)", re.I)
_HIDES = re.compile(r"\s*<(?:(!--)|(think|thinking|thought|reasoning|scratchpad|analysis)>)", re.I)


def canonical(line: str, kinds: Container[str] = ()) -> Mark | None:
    """The mark that a daemon wrote as this very line, or None; `kinds` are the dialog's own."""
    match = CANONICAL.fullmatch(line)
    if match is None:
        return None
    name, ref, value = match[1], match[2] or "", match[3] or ""
    return Mark(name, value, ref) if name in MARKS or name in kinds else None


def literal(line: str) -> Mark | None:
    """The mark that a line of a reply, or of hand-written text, is; its name may be none that anybody knows."""
    if "[" not in line:
        return None
    match = _LITERAL.fullmatch(line)
    if match is None:
        return None
    return Mark(match[1].upper(), " ".join((match[3] or "").split()), (match[2] or "").upper())


def tolerant(line: str, kinds: Container[str] = ()) -> Mark | None:
    """The mark that a line of hand-written text is, or None: blanks in its name, and a stop behind it, may be."""
    if "[" not in line:
        return None
    match = _BY_HAND.fullmatch(line)
    mark = literal(line.rstrip(" \t.,;:!") if match is None else match[1] + re.sub("[ \t-]+", "_", match[2]) + match[3])
    return mark if mark is not None and (mark.name in MARKS or mark.name in kinds) else None


def outside_fences(lines: Sequence[str], *, forgiving: bool) -> Iterator[tuple[int, str]]:
    """Lines, with their indices, that stand in no code fence."""
    # An opening fence that nothing closes hides all that follows; with `forgiving` (text of the person) it hides
    # nothing.
    index = 0
    for begin, end in _fences(lines):
        yield from ((at, lines[at]) for at in range(index, begin))
        if end is None and not forgiving:
            return
        index = (begin if end is None else end) + 1
    yield from ((at, lines[at]) for at in range(index, len(lines)))


def first_open_fence(lines: Sequence[str]) -> int:
    """The index of the first line whose fence may yet be closed around what follows, else how many lines there are."""
    return next((begin for begin, end in _fences(lines) if end is None), len(lines))


def _fences(lines: Sequence[str]) -> Iterator[tuple[int, int | None]]:
    """Where each code fence begins and ends; None for one that nothing closes."""
    fences = {
        at: match for at, line in enumerate(lines) if "```" in line or "~~~" in line if (match := FENCE.fullmatch(line))
    }
    longest = {"`": 0, "~": 0}  # the longest closing fence below each line, so that nobody seeks one in vain
    below: dict[int, int] = {}
    for at, fence in reversed(fences.items()):
        kind = fence[1][0]
        below[at] = longest[kind]
        if _closes(fence, kind):
            longest[kind] = max(longest[kind], len(fence[1]))
    places = iter(fences.items())
    for at, fence in places:
        if "`" in fence[2] and fence[1][0] == "`":
            continue
        end = None
        if below[at] >= len(fence[1]):
            end = next(other for other, closing in places if _closes(closing, fence[1]))
        yield at, end


def _closes(fence: re.Match[str] | None, opening: str) -> bool:
    return fence is not None and not fence[2].strip() and fence[1][0] == opening[0] and len(fence[1]) >= len(opening)


def _shown(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lines that no HTML comment and no block of thoughts hides; one that nothing closes hides all that follows."""
    closing = ""
    for index, line in lines:
        if closing:
            closing = "" if closing in line.casefold() else closing
            continue
        match = _HIDES.match(line) if "<" in line else None
        end = ("-->" if match[1] else f"</{match[2].casefold()}>") if match else ""
        if end and end not in line.casefold():
            closing = end
        else:
            yield index, line


# What says nothing beside a yes, but for a reason behind a bar: numbers, ids, and the choices that are asked about
# themselves.
_WORDLESS = frozenset({"RE", "CONFIDENCE", "TO", *CHOOSING, "CONSENSUS_REACHED"})

# Characters of different marks, and of lines that look like some, that are read in one reply; the rest stays text.
MOST_CHARACTERS = 100_000


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """An agent's reply with its marks lifted out. `summary` is its `## Consensus Summary`, without heading."""

    # `tried` are lines, with the name they begin with, that begin like a deciding mark and are none: not in its form,
    # or not in the closing block. `strange` are marks in brackets that no agent may write, or that nobody knows. Both
    # stay text.

    body: str
    marks: tuple[Mark, ...]
    summary: str = ""
    tried: tuple[tuple[str, str], ...] = ()
    strange: tuple[Mark, ...] = ()

    def has(self, name: str) -> bool:
        """True when the reply carries that mark."""
        return any(m.name == name for m in self.marks)

    def words(self, *, states_text: bool = False) -> str:
        """What the reply says beside its decisions, which may put a condition on a yes."""
        # With `states_text` the text under its `## Consensus Summary` is what the yes is given to, and no word beside
        # it.
        body = before_summary(self.body) if states_text else self.body
        said = (mark.value for mark in self.marks if mark.name not in _WORDLESS or "|" in mark.value)
        return "\n".join(part for part in (body.strip(), *said) if part)


def read_reply(text: str, kinds: Collection[str] = ()) -> ParsedReply:
    """Lift the marks that an agent may use, or that are of the dialog's own `kinds`, out of its reply."""
    lines = text.split("\n")
    seen = dict(_shown(outside_fences(lines, forgiving=False)))
    read = {line: mark for line in set(seen.values()) if (mark := literal(line)) is not None}
    first = _closing_block(lines, seen, read)
    found: dict[tuple[str, bool], Mark] = {}  # by line and whether it stands in the closing block: each is read once
    known: dict[Mark, Mark] = {}
    tried: dict[tuple[str, str], None] = {}
    strange: dict[Mark, None] = {}
    room = MOST_CHARACTERS
    places = dict.fromkeys((line, index >= first) for index, line in seen.items())
    for line, closes in sorted(places, key=lambda place: not place[1]):  # the closing block first
        mark = read.get(line)
        if mark is not None and mark in known:
            found[line, closes] = known[mark]
            continue
        if room < 0:
            continue
        if mark is not None and _counts(mark, kinds, in_closing_block=closes):
            found[line, closes] = known[mark] = tidy(mark)
        elif (name := _attempted(line)) is not None:
            tried[name, line.strip()] = None
        elif mark is not None and _is_strange(mark, line):
            strange[mark] = None
        else:
            continue
        room -= len(line)
    if len(seen) < len(lines):
        tried.update(dict.fromkeys(_fenced(lines)))
    lifted = {index: found[key] for index, line in seen.items() if (key := (line, index >= first)) in found}
    body = _without(lines, lifted)
    return ParsedReply(body, tuple(dict.fromkeys(lifted.values())), summary_of(body), tuple(tried), tuple(strange))


def without_turn_line(text: str) -> str:
    """The reply without a last line such as agents see at the end of every turn: the daemon writes that one."""
    rest, _, last = text.rstrip().rpartition("\n")
    return rest if _TURN_LINE.fullmatch(last) else text


def _counts(mark: Mark, kinds: Container[str], *, in_closing_block: bool) -> bool:
    if mark.name in kinds and mark.name not in MARKS:
        return True
    if mark.name not in MARKS or Who.AGENT not in MARKS[mark.name].who:
        return False
    if mark.name not in DECIDING:
        return True
    form = FORMS[mark.name]
    return in_closing_block and not mark.ref and form.fullmatch(mark.value) is not None


def tidy(mark: Mark) -> Mark:
    """The mark in the form that the file has: numbers in capitals, choices in small letters, ` | ` before a reason."""
    if mark.name not in CHOOSING:
        return mark
    head, _, reason = (part.strip() for part in mark.value.partition("|"))
    ref, *choice = head.split()
    ref = ref.upper() if choice or mark.name == "AGREE" else ref
    said = " ".join((ref, *choice)) if not choice else f"{ref} {choice[0].lower()}"
    return Mark(mark.name, f"{said} | {reason}" if reason else said)


_REASON = r"(?:\s*\|.*)?"
_REF, _ID = r"P\d{1,6}", r"[A-Za-z][A-Za-z0-9_-]*"
FORMS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "AGREE": re.compile(rf"{_REF}{_REASON}", re.I),
        "VOTE": re.compile(rf"{_REF} (?:approve|reject|abstain){_REASON}", re.I),
        "DECIDE": re.compile(rf"(?:{_REF} (?:approve|reject)|{_ID}){_REASON}", re.I),
        "CONSENSUS_REACHED": re.compile(r""),
        "DEADLOCK": re.compile(r".*"),
        "PASS": re.compile(r".*"),
        "TO": re.compile(rf"{_ID}(?:\s*,\s*{_ID})*", re.I),
        "ESCALATE": re.compile(r".*"),
        "QUESTION_FOR_USER": re.compile(r".*"),
    }
)


def _closing_block(lines: Sequence[str], seen: Container[int], read: Container[str]) -> int:
    """The index at which the closing block begins: its lines are marks or blank, to the end of the reply."""
    first = len(lines)
    for index in range(len(lines) - 1, -1, -1):
        if not lines[index].strip():
            continue
        if index not in seen or (lines[index] not in read and _attempted(lines[index]) is None):
            break
        first = index
    return first


def _attempted(line: str) -> str | None:
    """The deciding name that a line begins with, behind decoration and a bracket; None without one."""
    match = _TRIED.match(line) if "[" in line else None
    if match is None:
        return None
    if line.startswith("](", match.end()):
        return None  # a link
    said = re.sub(r"[ -]+", "_", match[1].strip(" -")).upper()
    if said == "CONSENSUS" or (said.startswith("CONSENSUS_") and said not in MARKS):
        return "CONSENSUS_REACHED"
    return said if said in DECIDING else next((name for name in CHOOSING if said.startswith(f"{name}_")), None)


def of_their_own(line: str) -> bool:
    """True for a mark of consensus as skills made elsewhere have it: `[CONSENSUS: the text]`."""
    mark = literal(line)
    return mark is not None and mark.name not in MARKS and _attempted(line) == "CONSENSUS_REACHED"


def _is_strange(mark: Mark, line: str) -> bool:
    """True for a bracketed name in capitals: a mark that somebody meant, and no agent may write."""
    return mark.name in MARKS or _BRACKETS.fullmatch(line.strip(" \t*_`-")) is not None


def _fenced(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Attempts in a fence that holds nothing but marks: its writer may mean them, whatever stands behind it."""
    spans = dict(takewhile(lambda span: span[1] is not None, _fences(lines)))  # one that nothing closes hides all of it
    outside = {index for index, _ in outside_fences(lines, forgiving=False)}
    for begin, _ in _shown((index, line) for index, line in enumerate(lines) if index in outside or index in spans):
        inside = [line.strip() for line in lines[begin + 1 : spans.get(begin, 0)] if line.strip()]
        if all(_attempted(line) is not None or literal(line) is not None for line in inside):
            yield from ((name, line) for line in inside if (name := _attempted(line)) is not None)


def summary_of(body: str) -> str:
    """The text under the last `Consensus Summary` heading of a body, or "" where nothing can be read there."""
    start, first, lines = _summary_at(body)
    if start is None:
        return ""
    text = "\n".join(part for part in (first, "\n".join(lines[start + 1 :]).strip("\n")) if part)
    return "" if is_blank(text) else text


def before_summary(body: str) -> str:
    """A body without its `Consensus Summary`; the whole of it without one."""
    start, _, lines = _summary_at(body)
    return body if start is None else "\n".join(lines[:start])


def _summary_at(body: str) -> tuple[int | None, str, Sequence[str]]:
    """The line of the last `Consensus Summary` heading, what stands in it, and all lines."""
    lines = body.split("\n")
    start, first = None, ""
    for index, line in outside_fences(lines, forgiving=False):
        match = SUMMARY.fullmatch(line)
        if match and (line.lstrip(" \t")[:1] in ("#", "*", "_") or not match[1]):
            start, first = index, match[1].strip()
    return start, first, lines


def prose(body: str) -> str:
    """A hand-written body without the lines that are marks."""
    lines = body.split("\n")
    marks = {index for index, line in outside_fences(lines, forgiving=True) if tolerant(line) is not None}
    return _without(lines, marks) if marks else body


def same_text(text: str) -> str:
    """A text as it counts for "the same text": blanks at line ends and runs of empty lines don't matter."""
    lines = [line.rstrip(" \t") for line in text.split("\n")]
    return re.sub(r"\n{2,}", "\n\n", "\n".join(lines)).strip("\n")


def contributes(mark: Mark) -> bool:
    """True for a mark that is a contribution of its own: one of a kind that counts, or of a dialog's own kind."""
    kind = CONTRIBUTIONS.get(mark.name)
    return kind.counts if kind is not None else mark.name not in MARKS


def stated(said: Said) -> str:
    """The position that a turn states, its text and its agent's marks; "" for one with a PASS, and where nothing is."""
    if not said.counts or said.passes:
        return ""
    own = (str(mark) for mark in said.marks if mark.name not in _NO_POSITION)
    return "\n\n".join(text for text in (said.body, *own) if text.strip())


def round_of(marks: Iterable[Mark], kind: str) -> str | None:
    """What the marks say of a round of that kind (`phase`, `red team`, `closing`); None where they do not."""
    for mark in marks:
        if mark.name == "ROUND" and mark.fields[0] == kind:
            return " | ".join(mark.fields[1:])
    return None


CYCLE = "a cycle: "  # begins why a last round was called, where it was not the time
_FOUND = (CYCLE, "everybody passed", "nobody could decide: ", "undecided: ")
_LEFT = " did not decide: "


def is_called(mark: Mark) -> bool:
    """True for a deadlock that somebody called; False where a daemon found that nothing was decided, and says why."""
    return mark.name == "DEADLOCK" and not (mark.value.startswith(_FOUND) or _LEFT in mark.value)


def _without(lines: Sequence[str], gone: Container[int]) -> str:
    """The lines but those `gone`; an empty line left double by one that went goes with it."""
    kept: list[str] = []
    closing_up = False
    for index, line in enumerate(lines):
        if index in gone:
            closing_up = True
        elif closing_up and not line.strip() and (not kept or not kept[-1].strip()):
            continue
        else:
            closing_up = False
            kept.append(line)
    return "\n".join(kept).strip("\n")


# -- What VOTE, DECIDE, AGREE, TO, RE and CONFIDENCE say, in their literal forms. Pure, total, linear -----------------

APPROVE, REJECT, ABSTAIN = "approve", "reject", "abstain"

_CHOICE = re.compile(r"(?:(P\d{1,6}) )?(approve|reject|abstain)(?:\s*\|\s*(.*))?", re.I)
_LEADING = re.compile(r"P\d{1,6}(?!\w)(?:(?:\s*[,&+]\s*|\s+and\s+)P\d{1,6}(?!\w))*", re.I)
_RANGE = re.compile(r"(\d{1,6})\s?[–-]\s?(\d{1,6})")
_NUMBER = re.compile(r"(\d{1,3}(?:\.\d{1,6})?|\.\d{1,6})\s?(%|/\s?10\b)?")


@dataclass(frozen=True, slots=True)
class VoteChoice:
    """`choice` (approve, reject or abstain) on proposal `ref`, "" where the mark names none."""

    ref: str
    choice: str
    reason: str = ""


def vote(mark: Mark) -> VoteChoice | None:
    """What a VOTE or DECIDE on a proposal chooses; None for one in no such form."""
    match = _CHOICE.fullmatch(mark.value)
    if match is None or (match[1] and mark.ref):
        return None
    return VoteChoice((match[1] or mark.ref).upper(), match[2].lower(), match[3] or "")


def decision(mark: Mark) -> VoteChoice | None:
    """Approve or reject, as a DECIDE mark says; None when it says neither."""
    choice = vote(mark)
    return choice if choice is not None and choice.ref and choice.choice in (APPROVE, REJECT) else None


def read_decisions(marks: Iterable[Mark]) -> Mapping[str, VoteChoice]:
    """What the DECIDE marks of one entry choose, by proposal; the first decision on one counts."""
    found: dict[str, VoteChoice] = {}
    for choice in (decision(mark) for mark in marks if mark.name == "DECIDE"):
        if choice is not None:
            found.setdefault(choice.ref, choice)
    return found


def read_vote(marks: Iterable[Mark]) -> Mapping[str, VoteChoice]:
    """The votes of one entry by proposal; two different ones on the same proposal are none."""
    found: dict[str, VoteChoice] = {}
    unclear: set[str] = set()
    for mark in marks:
        choice = vote(mark) if mark.name == "VOTE" else None
        if choice is None:
            continue
        known = found.setdefault(choice.ref, choice)
        if known.choice != choice.choice:
            unclear.add(choice.ref)
    return {ref: choice for ref, choice in found.items() if ref and ref not in unclear}


def is_yes(mark: Mark) -> bool:
    """True for a mark that approves of something."""
    if mark.name == "VOTE" or (mark.name == "DECIDE" and decision(mark) is not None):
        choice = vote(mark)
        return choice is not None and choice.choice == APPROVE
    return mark.name in ("AGREE", "CONSENSUS_REACHED") or (mark.name == "DECIDE" and mark.value[:4].lower() != "none")


def agreed(mark: Mark) -> tuple[str, ...]:
    """The proposals that an AGREE names at its beginning."""
    return objected(mark) if mark.name == "AGREE" else ()


def objected(mark: Mark) -> tuple[str, ...]:
    """The proposals that an OBJECTION or CONCEDE begins with (`P1`, `P1, P4`, `P1 and P4`); () where it names none."""
    match = _LEADING.match(mark.value)
    named = re.findall(r"P\d+", match[0].upper()) if match else []
    return tuple(dict.fromkeys([mark.ref, *named] if mark.ref else named))


def pick(mark: Mark, ids: Sequence[str]) -> tuple[str, str] | None:
    """Whose position a judge's DECIDE chooses, an agent's id or "none", and why; None for any other value."""
    head, _, reason = (part.strip() for part in mark.value.partition("|"))
    known = {"none": "none", **{agent.casefold(): agent for agent in ids}}
    chosen = known.get(head.casefold())
    return (chosen, reason) if chosen is not None and not mark.ref else None


def picked(marks: Iterable[Mark], ids: Sequence[str]) -> tuple[str, str] | None:
    """Whose position the DECIDE marks of one reply pick, and why; None where none does, or they differ."""
    answers = [pick(mark, ids) for mark in marks if mark.name == "DECIDE"]
    first = answers[0] if answers else None
    return first if first and all(answer and answer[0] == first[0] for answer in answers) else None


def to(mark: Mark, ids: Sequence[str]) -> tuple[str, ...]:
    """The agents that a TO mark names, `B` or `B, C`, in its order; () when one of them is not known."""
    known = {agent.casefold(): agent for agent in ids}
    named = [known.get(part.strip().casefold()) for part in mark.value.split(",")]
    return tuple(dict.fromkeys(who for who in named if who)) if all(named) else ()


def references(mark: Mark) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The turns and the proposals that a RE mark names before a `|`: `4, P2`, `turn 3`, `3-5`."""
    turns: list[int] = []
    refs = [mark.ref] if mark.ref else []
    for part in re.split(r"[,;&+]|\band\b", mark.value.partition("|")[0]):
        said = re.sub(r"^(?:turns?|messages?|proposals?)\s+", "", part.strip(" \t*_`#.()"), flags=re.I)
        if match := _RANGE.fullmatch(said):
            first, last = int(match[1]), int(match[2])
            turns.extend(range(first, min(last, first + 50) + 1))
        elif re.fullmatch(r"P\d{1,6}", said, re.I):
            refs.append(f"P{int(said[1:])}")
        elif re.fullmatch(r"\d{1,6}", said):
            turns.append(int(said))
    return tuple(dict.fromkeys(turns)), tuple(dict.fromkeys(refs))


def referred(said: Said) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The turns and the proposals that an entry says it answers."""
    found = [references(mark) for mark in said.all("RE")]
    return tuple(turn for turns, _ in found for turn in turns), tuple(ref for _, refs in found for ref in refs)


def confidence(mark: Mark) -> float | None:
    """A CONFIDENCE from 0 to 1: `0.8`, `80%`, `8/10`; None when it is no such number."""
    match = _NUMBER.fullmatch(mark.value.partition("|")[0].strip())
    if match is None:
        return None
    value = float(match[1]) / {"%": 100, "": 1}.get(match[2] or "", 10)
    return value if 0 <= value <= 1 else None


def confidences(said: Said) -> list[float]:
    """How sure its author is, as its marks say."""
    return [sure for mark in said.all("CONFIDENCE") if (sure := confidence(mark)) is not None]

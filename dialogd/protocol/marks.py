"""The mark language: one table of what may be said in a line of its own, and the tolerant reader of replies.

    mark  = "[" NAME [" " ref] [":" SP value] "]"      a line of its own; the value runs to the last "]"
    NAME  = 1*( A-Z / "_" )
    ref   = "P" 1*DIGIT

Daemons write marks in exactly this form. Models bold, indent, bullet and punctuate: the reader takes all that,
outside fences and block quotes. A name that is not in the table is text.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from dialogd.protocol.around import around
from dialogd.protocol.doubt import is_doubtful
from dialogd.protocol.loose import CAREFUL, closes_early, could_be, loose, visible
from dialogd.protocol.model import OUTCOMES, Mark


class Who(enum.Flag):
    """Who may use a mark."""

    AGENT = enum.auto()
    DAEMON = enum.auto()
    PERSON = enum.auto()


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table: who may write the mark and what it means."""

    who: Who
    meaning: str


_A, _D, _P = Who.AGENT, Who.DAEMON, Who.PERSON

MARKS = MappingProxyType(
    {
        "PROPOSAL": Kind(_A | _D | _P, "something to decide; the daemon writes its number"),
        "IDEA": Kind(_A, "a thought, not yet a proposal"),
        "CRITIQUE": Kind(_A, "what is weak in something said"),
        "QUESTION": Kind(_A, "asked of the other agents"),
        "EVIDENCE": Kind(_A, "a fact, with its source"),
        "SYNTHESIS": Kind(_A, "several points brought together"),
        "KIND": Kind(_A, "a contribution of a kind that this dialog has of its own: `RESULTS | text`"),
        "RE": Kind(_A, "what this answers: turns and proposals"),
        "CONFIDENCE": Kind(_A, "how sure the agent is, 0 to 1"),
        "AGREE": Kind(_A, "accepts a proposal; over the consensus text it is a signature"),
        "OBJECTION": Kind(_A, "a reason against; clears the signatures"),
        "RESERVATION": Kind(_A, "the strongest objection that a signer still has; the signature stands"),
        "CONCEDE": Kind(_A, "gives up a point, with the reason"),
        "PASS": Kind(_A, "nothing to add; never a yes"),
        "VOTE": Kind(_A, "approve, reject or abstain on a proposal"),
        "DECIDE": Kind(_A, "asks for a decision on a proposal"),
        "DECISION": Kind(_D, "what was decided, by which method, on which evidence, and why"),
        "REFUSED": Kind(_D, "a mark that did not count, and why"),
        "SEALED": Kind(_D, "the hash of an answer that follows once all have sealed theirs"),
        "RED_TEAM": Kind(_D, "agreement came at once: the next turn argues against it before it counts"),
        "PHASE": Kind(_D, "the phase that begins"),
        "CLOSING": Kind(_D, "why one last round sums up what there is"),
        "DECIDED": Kind(_D, "the rule of this dialog decided: it ends"),
        "DIGEST": Kind(_D, "sums up turns for the agents whose window they no longer fit: author, turns, cost"),
        "CONSENSUS_PROPOSED": Kind(_D, "the exact text, by its hash, that the others may sign"),
        "CONSENSUS_REACHED": Kind(_A | _D | _P, "everyone agreed to the same text: the dialog ends"),
        "DEADLOCK": Kind(_A | _D | _P, "no agreement is in sight; ends the dialog when every agent says so"),
        "QUESTION_FOR_USER": Kind(_A, "the dialog waits for the person"),
        "DEFAULT_TAKEN": Kind(_D, "the deadline of a question passed: its default counts as the answer"),
        "CRUX": Kind(_A, "the one question on which a disagreement turns"),
        "EXPERIMENT": Kind(_A, "the cheapest test that would settle it"),
        "MAX_TURNS_REACHED": Kind(_D, "the limit of turns or rounds ended the dialog"),
        "MAX_TIME_REACHED": Kind(_D, "the time limit ended the dialog"),
        "BUDGET_REACHED": Kind(_D, "the budget ended the dialog"),
        "MAX_SIZE_REACHED": Kind(_D, "the size limit ended the dialog"),
        "STOPPED": Kind(_D | _P, "somebody or an error stopped the dialog"),
        "STALLED": Kind(_D, "an agent gave no answer in time"),
        "AGENT_ERROR": Kind(_D, "an agent failed: who, cause, fix"),
        "PAUSED": Kind(_P, "agents finish their turn and wait"),
        "RESUMED": Kind(_P, "agents go on"),
        "LIMIT": Kind(_P, "changes a limit: max_turns, max_rounds, max_time, timeout, max_message, max_size, budget"),
        "STRIKE": Kind(_P, "withdraws a turn"),
        "VETO": Kind(_P, "rules a proposal out"),
        "INVITE": Kind(_P, "one more agent takes part from here on: `C = Name @ url`"),
        "LEAVE": Kind(_P, "an agent takes part no longer"),
        "STEP": Kind(_P, "on: the word comes back to the person after every turn; off: it does not"),
        "APPROVED": Kind(_P, "the person takes the result"),
        "REJECTED": Kind(_P, "the person does not take the result: the dialog goes on, and why"),
        "SKIP": Kind(_P, "passes over an agent that owes a turn"),
        "RETRY": Kind(_P, "asks an agent once more"),
        "TO": Kind(_A, "hands the word on, where the order allows it"),
        "WORD": Kind(_D | _P, "asks for the word, where the order is free"),
        "ESCALATE": Kind(_A | _D, "to the moderator, else to the person"),
    }
)

CANONICAL = re.compile(r"\[([A-Z][A-Z_]*)(?: (P\d{1,6}))?(?:: (.*))?\]")
TOLERANT = re.compile(
    r"[ \t]*+(?:(?:[-*+]|\d{1,3}[.)])[ \t]++)?[*_`~]{0,4}"
    r"\[[ \t]*+([A-Za-z][A-Za-z_-]*+(?:[ \t]++[A-Za-z_-]++)*?)(?:[ \t]+([Pp]\d{1,6}))?[ \t]*+(?::(.*))?\]"
    r"[ \t]*+(?:[*_`~.,;:!]{1,6}[ \t]*+)?"
)
FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})(.*)")
SUMMARY = re.compile(r"[ \t]*(?:#{1,6}[ \t]*)?[*_]{0,3}(?:final[ \t]+)?consensus[ \t]+summary[*_:. \t]*(.*)", re.I)


def canonical(line: str) -> Mark | None:
    """The mark that a daemon wrote as this very line, or None."""
    match = CANONICAL.fullmatch(line)
    if match is None or match[1] not in MARKS:
        return None
    return Mark(match[1], match[3] or "", match[2] or "")


def tolerant(line: str) -> Mark | None:
    """The mark that this line of a reply, or of hand-written text, means; or None."""
    if "[" not in line:
        return None
    match = TOLERANT.fullmatch(line)
    if match is None:
        return None
    name = re.sub(r"[ \t-]+", "_", match[1].strip()).upper()
    if name not in MARKS:
        return None
    return Mark(name, " ".join((match[3] or "").split()), (match[2] or "").upper())


def outside_fences(lines: Sequence[str], *, forgiving: bool) -> Iterator[tuple[int, str]]:
    """Lines, with their indices, that stand in no code fence.

    An opening fence that nothing closes hides all that follows; with `forgiving` (text of the person) it
    hides nothing.
    """
    fences = [FENCE.fullmatch(line) if "```" in line or "~~~" in line else None for line in lines]
    if not any(fences):
        yield from enumerate(lines)
        return
    longest = _longest_closings(fences)
    index = 0
    while index < len(lines):
        fence = fences[index]
        if fence is None or ("`" in fence[2] and fence[1][0] == "`"):
            yield index, lines[index]
            index += 1
        elif longest[fence[1][0]][index + 1] >= len(fence[1]):
            index += 1
            while not _closes(fences[index], fence[1]):
                index += 1
            index += 1
        elif not forgiving:
            return
        else:
            index += 1


def _longest_closings(fences: Sequence[re.Match[str] | None]) -> dict[str, list[int]]:
    """By kind: how long the longest closing fence is from each line on, so that nobody searches for one in vain."""
    longest = {"`": [0] * (len(fences) + 1), "~": [0] * (len(fences) + 1)}
    for index in range(len(fences) - 1, -1, -1):
        fence = fences[index]
        for kind, lengths in longest.items():
            closes = fence is not None and _closes(fence, kind)
            lengths[index] = max(lengths[index + 1], len(fence[1]) if fence and closes else 0)
    return longest


def _closes(fence: re.Match[str] | None, opening: str) -> bool:
    """True when this fence line closes one that was opened by `opening`."""
    return fence is not None and not fence[2].strip() and fence[1][0] == opening[0] and len(fence[1]) >= len(opening)


@dataclass(frozen=True, slots=True)
class Reply:
    """An agent's reply with its marks lifted out. `summary` is its `## Consensus Summary`, without heading."""

    body: str
    marks: tuple[Mark, ...]
    summary: str = ""

    def has(self, name: str) -> bool:
        """True when the reply carries that mark."""
        return any(m.name == name for m in self.marks)


def read_reply(text: str, kinds: Collection[str] = ()) -> Reply:
    """Lift the marks that an agent may use out of its reply; everything else stays text.

    `kinds` are this dialog's own kinds of contribution: `[RESULTS: text]` is lifted as `[KIND: RESULTS | text]`.
    """
    lines = text.split("\n")
    known = MARKS.keys() | set(kinds)
    seen = dict(visible(outside_fences(lines, forgiving=False)))
    read = {index: _lifted(line, known) for index, line in seen.items()}
    read = {index: tuple(map(_of_kind, marks)) for index, marks in read.items() if marks}
    decides = any(mark.name in CAREFUL for marks in read.values() for mark in marks)
    words = around(seen, read) if decides else {}
    found = {
        index: marks
        for index, marks in read.items()
        if all(Who.AGENT in MARKS[mark.name].who for mark in marks)
        and not (any(mark.name in CAREFUL for mark in marks) and is_doubtful(marks, *words[index]))
    }
    body = _without(lines, found)
    return Reply(body, tuple(dict.fromkeys(mark for marks in found.values() for mark in marks)), summary_of(body))


def _lifted(line: str, known: Container[str]) -> tuple[Mark, ...]:
    """The marks that a line of a reply consists of. What decides something is read only where nothing follows it."""
    if not could_be(line):
        return ()
    mark = tolerant(line)
    is_plain = mark is not None and not closes_early(mark.value)
    if mark is not None and is_plain and not (mark.name in CAREFUL and "~~" in line):
        return (mark,)
    marks = loose(line, known)
    return marks or ((mark,) if mark is not None and mark.name not in CAREFUL else ())


def _of_kind(mark: Mark) -> Mark:
    """A mark whose name is a kind of this dialog, as the KIND that it is."""
    if mark.name in MARKS:
        return mark
    return Mark("KIND", f"{mark.name} | {mark.value}" if mark.value else mark.name, mark.ref)


def summary_of(body: str) -> str:
    """The text under the last `Consensus Summary` heading of a body, or "" without one."""
    lines = body.split("\n")
    start, first = None, ""
    for index, line in outside_fences(lines, forgiving=False):
        match = SUMMARY.fullmatch(line)
        if match and (line.lstrip(" \t")[:1] in ("#", "*", "_") or not match[1]):
            start, first = index, match[1].strip()
    if start is None:
        return ""
    return "\n".join(part for part in (first, "\n".join(lines[start + 1 :]).strip("\n")) if part)


def prose(body: str) -> str:
    """A hand-written body without the lines that are marks."""
    lines = body.split("\n")
    marks = {index for index, line in outside_fences(lines, forgiving=True) if tolerant(line) is not None}
    return _without(lines, marks) if marks else body


def same_text(text: str) -> str:
    """A text as it counts for "the same text": blanks at line ends and runs of empty lines don't matter."""
    lines = [line.rstrip(" \t") for line in text.split("\n")]
    return re.sub(r"\n{2,}", "\n\n", "\n".join(lines)).strip("\n")


def is_outcome(mark: Mark) -> bool:
    """True for a mark that, without a TURN line, ends the dialog."""
    return mark.name in OUTCOMES


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

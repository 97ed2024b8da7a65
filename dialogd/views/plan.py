"""The plan that a dialog leaves: what was decided, by whom, against whose word, what is open, and its figures. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from statistics import fmean
from typing import Any

from dialogd.protocol import marks, review, seal
from dialogd.protocol.board import (
    Position,
    Rejection,
    Reopening,
    Standing,
    as_of_now,
    contributions,
    latest,
    positions,
    rejections_in,
    reopenings,
)
from dialogd.protocol.certificate import Certificate, certify
from dialogd.protocol.marks import SUMMARY, contributes, crux, experiment, outside_fences, prose, same_text
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry, Mark
from dialogd.protocol.money import total
from dialogd.protocol.review import Finding, Score
from dialogd.protocol.rules import CONTRIBUTIONS, REVIEW
from dialogd.protocol.signals import Assessment, assess, counted, latest_replies
from dialogd.protocol.state import Dialog, Outcome, Spent, account
from dialogd.protocol.table import Decision, Proposal


@dataclass(frozen=True, slots=True)
class Said:
    """Something that somebody said in a turn: a mark's name as `kind`, and its text."""

    kind: str
    by: str
    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class Signed:
    """Who stands behind the agreed text, since which turn, and with which reservation ("" for none)."""

    agent: str
    turn: int
    reservation: str = ""


@dataclass(frozen=True, slots=True)
class Agreed:
    """The exact text that was decided; `method` is mutual, vote, moderator, decide, judge, person or by hand.

    `by` wrote it, in the entry `stands_in`. `ref` is "" for a text that is no proposal: a position that a judge chose.
    `is_earlier` is True when the dialog was opened again after it had been decided, `is_rejected` when the person did
    not take it.
    """

    ref: str
    text: str
    sha: str
    method: str
    decided_in: str
    decided_at: str
    signers: tuple[Signed, ...]
    by: str = ""
    stands_in: str = ""
    is_earlier: bool = False
    is_rejected: bool = False


@dataclass(frozen=True, slots=True)
class Vote:
    """One vote: approve, reject or abstain, and what it weighs."""

    agent: str
    choice: str
    turn: int
    reason: str = ""
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Decided(Standing):
    """What was decided on a proposal: `outcome` is approved, rejected or undecided.

    An approval that the person did not take is rejected, for their reason, in their turn `rejected_in` (0 else).
    `superseded` says in words that the dialog was opened again after it, "" where it stands.
    """

    ref: str
    by: str
    text: str
    outcome: str
    method: str
    evidence: str
    reason: str
    turn: int
    votes: tuple[Vote, ...] = ()
    rejected_in: int = 0
    superseded: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """An agent in its own words: the beginning of its last turn of substance, and its last stands by mark."""

    agent: str
    name: str
    turn: int
    text: str
    is_cut: bool
    stands: tuple[Said, ...] = ()


@dataclass(frozen=True, slots=True)
class Conflict:
    """An objection or critique; `how` says in words what became of it, "" while it is open."""

    said: Said
    about: tuple[str, ...] = ()
    how: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """An agent's change of stance on a proposal; `is_unexplained` when neither evidence nor an argument was named."""

    agent: str
    ref: str
    before: str
    now: str
    turn: int
    cause: str
    is_unexplained: bool


@dataclass(frozen=True, slots=True)
class Step:
    """A next step and where it was read: `the agreed text`, `turn 7, by A`, `turn 7, by A: what would settle it`."""

    text: str
    where: str


@dataclass(frozen=True, slots=True)
class Cost:
    """What some turns came to; None where nobody knows. `seconds` is the time of the calls, added up."""

    turns: int
    usd: float | None = None
    tokens: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A plain vote of the first words of each agent, against the outcome.

    `basis` says what was counted, `choices` who said what in which turn, `verdict` what a plain vote would have said,
    `same` whether the outcome is that (None: the marks cannot tell), `remark` what limits the comparison.
    """

    basis: str
    choices: tuple[Said, ...]
    verdict: str
    outcome: str
    same: bool | None
    first: Cost
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Worth:
    """Was the debate worth it: the comparisons that can be made, or `why` there is none; `whole` is all it cost."""

    comparisons: tuple[Comparison, ...]
    whole: Cost
    why: str = ""


@dataclass(frozen=True, slots=True)
class Synthesis:
    """A unified plan that a model wrote from the dialog; nobody signed it. `cost` in words."""

    text: str
    agent: str
    model: str
    cost: str


@dataclass(frozen=True, slots=True)
class Approval:
    """That the person took the result: the note, and its time, "" where it was written by hand."""

    entry: str
    at: str


@dataclass(frozen=True)
class Plan:
    """What a dialog comes to. `outcome` is its mark's name, "" while it goes on; `headline` says it in words."""

    dialog: Dialog
    file: str
    task: str
    began: str
    ended: str
    outcome: str
    headline: str
    agreed: Agreed | None
    on_the_table: Agreed | None
    decisions: tuple[Decided, ...]
    views: tuple[View, ...]
    agreements: tuple[Said, ...]
    conflicts: tuple[Conflict, ...]
    dissent: tuple[Said, ...]
    changes: tuple[Change, ...]
    positions: tuple[Said, ...]
    crux: tuple[Said, ...]
    experiments: tuple[Said, ...]
    questions: tuple[Said, ...]
    steps: tuple[Step, ...]
    worth: Worth
    findings: tuple[Finding, ...]
    score: Score | None
    signals: Assessment
    metrics: Mapping[str, Any]
    certificate: Mapping[str, object] | None = None
    synthesis: Synthesis | None = field(default=None)
    approved: Approval | None = None
    rejections: tuple[Rejection, ...] = ()


# -- What is read out of the agents' texts ----------------------------------------------------------------------------

WORDS = 120  # of an agent's view
SUBSTANCE = 8  # words from which a turn says something

STEPS = r"(?:recommended |proposed |agreed |immediate )?(?:next steps?|action items?|actions?|to-?dos?|follow-?ups?)"
CRUX = r"(?:the )?crux"
EXPERIMENT = r"(?:the )?(?:(?:cheapest )?experiment|cheapest test)(?: that would settle (?:it|this|that))?"

_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,3}[.)])[ \t]+(?:\[[ xX]\][ \t]+)?(\S.*)")
_HEADING = re.compile(r"[ \t]*#{1,6}[ \t]+\S.*|[ \t]*(\*\*|__)[^*_]+\1[ \t]*:?[ \t]*")
_BEFORE = r"[ \t]*(?:#{1,6}[ \t]*|[-*+][ \t]+)?[*_]{0,3}"
_SENTENCE = re.compile(r"[.!?…][”’\"')\]*_]*(?=\s)")


def turns_of(dialog: Dialog, agent: str = "") -> Iterator[Entry]:
    """The agents' turns that count, or those of one agent, in order."""
    for entry in dialog.turns:
        if entry.condition is Condition.UNFINISHED or entry.by in (USER, SYSTEM) or entry.is_struck:
            continue
        if agent in ("", entry.by):
            yield entry


def listed(names: Sequence[str]) -> str:
    """`A`, `A and B`, `A, B and C`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def own_words(entry: Entry) -> str:
    """A turn's text without what a daemon closed the dialog with, and without lines that are marks."""
    return without_marks(seal.own_words(entry.body))


def without_marks(text: str) -> str:
    """A text without the lines that are marks: those written by hand stand in it."""
    return prose(text).strip("\n")


def before_summary(text: str) -> str:
    """What stands before a text's consensus summary; all of it without one."""
    lines = text.split("\n")
    found = next((i for i, line in outside_fences(lines, forgiving=False) if SUMMARY.fullmatch(line)), None)
    return "\n".join(lines[:found]).strip()


def is_substantial(text: str) -> bool:
    """True for a text that says something: more than a yes."""
    return len(text.split()) >= SUBSTANCE


def beginning(text: str, words: int = WORDS) -> tuple[str, bool]:
    """The first `words` words, cut at the end of a sentence where there is one; and whether anything was cut."""
    matches = list(re.finditer(r"\S+", text))
    if len(matches) <= words:
        return text, False
    head = text[: matches[words - 1].end()]
    ends = [match.end() for match in _SENTENCE.finditer(head + " ")]
    paragraph = head.rfind("\n\n")
    end = max([*ends, paragraph], default=0)
    return (head[:end].rstrip() if end > len(head) // 3 else f"{head} …"), True


def labelled(text: str, label: str) -> tuple[str, ...]:
    """What stands under a heading, a bold line or a name with a colon that `label` (a pattern) describes.

    The items of the list there, else the rest of the line, else the paragraph; () where nothing has that name.
    """
    name = re.compile(rf"{_BEFORE}{label}\b[*_]{{0,3}}[ \t]*(:?)[*_]{{0,3}}(.*)", re.I)
    lines = text.split("\n")
    for index, line in outside_fences(lines, forgiving=False):
        match = name.fullmatch(line)
        if match is None or not (match[1] or _is_title(line, match[2])):
            continue
        rest = match[2].strip(" \t*_") if match[1] else ""
        if rest:
            return (rest,)
        if found := tuple(_below(lines[index + 1 :])):
            return found
    return ()


def _is_title(line: str, rest: str) -> bool:
    """True for a heading or a bold line that says little more than the name."""
    return _HEADING.fullmatch(line) is not None and len(rest.split()) <= 4


def _below(lines: list[str]) -> Iterator[str]:
    """The items of the list with which these lines begin, else their first paragraph."""
    block = list(takewhile(lambda line: not _HEADING.fullmatch(line), lines))
    first = next((line for line in block if line.strip()), "")
    if _ITEM.fullmatch(first):
        yield from _items(block)
    elif first:
        rest = block[block.index(first) :]
        yield " ".join(line.strip() for line in takewhile(str.strip, rest))


def _items(lines: list[str]) -> Iterator[str]:
    """The items of a list, each with the indented lines that go on with it; ends where other text begins."""
    item = ""
    for line in (line for line in lines if line.strip()):
        match = _ITEM.fullmatch(line)
        if match is None and not line[:1].isspace():
            break
        if match is None:
            item = f"{item} {line.strip()}"
            continue
        if item:
            yield item
        item = match[1].strip()
    yield item


# -- How a dialog ended, or stands, in one sentence for somebody who has not read it. Pure ----------------------------

METHODS = {
    "mutual": "everybody signed the same text",
    "vote": "by vote",
    "moderator": "by the moderator",
    "decide": "by an agent that may decide",
    "judge": "by the judge",
    "person": "by the person's word",
    "by hand": "written by hand, without everybody's signature",
}
_LIMITS = {
    "MAX_TURNS_REACHED": "the limit of turns or rounds",
    "time": "the time limit",
    "budget": "the budget",
    "size": "the size limit",
}


def headline(dialog: Dialog) -> str:
    """The outcome and why; that of a rehearsal says so first."""
    opened = reopenings(dialog)
    return _headline(dialog, _agreed(dialog, certify(dialog), opened), tuple(_decisions(dialog, opened)))


def _headline(dialog: Dialog, agreed: Agreed | None, decisions: tuple[Decided, ...]) -> str:
    rehearsed = "REHEARSAL, no model was asked: " if dialog.is_rehearsed else ""
    return f"{rehearsed}{_ending(dialog, agreed, decisions)}"


def _ending(dialog: Dialog, agreed: Agreed | None, decisions: tuple[Decided, ...]) -> str:
    outcome = dialog.state.outcome
    if outcome is None:
        return f"not ended: {_waiting(dialog)}"
    last = next((d for d in reversed(decisions) if str(d.turn) == outcome.entry), None)
    reason = outcome.reason.strip()
    if outcome.name == "CONSENSUS_REACHED":
        return _consensus(dialog, agreed, outcome)
    if outcome.name == "DECIDED":
        return f"decided {_how(last)}" if last is not None else f"decided: {reason}".removesuffix(": ")
    if outcome.name == "DEADLOCK":
        called = f"called by {listed(dialog.state.table.deadlock)}" if dialog.state.table.deadlock else ""
        why = _how(last) if last is not None else called or reason
        return f"deadlock, nothing was agreed: {why}".removesuffix(": ")
    if outcome.is_limit:
        decided = "without an agreement" if agreed is None else "after a decision"
        by_words = f"; {IN_WORDS_ALONE}" if agreed is None and _agreed_in_words_alone(dialog) else ""
        return f"ended {decided} by {outcome.why or _LIMITS[outcome.cause or outcome.name]}{by_words}"
    return _stopped(outcome, reason)


IN_WORDS_ALONE = "the agents agreed in words, and nobody wrote a mark that says so: nothing was put up or signed"
_POSITIONS = frozenset(
    {"AGREE", "CONSENSUS_PROPOSED", "DEADLOCK", "OBJECTION", "PROPOSAL", "VOTE", "DECIDE", "REFUSED"}
)


def _agreed_in_words_alone(dialog: Dialog) -> bool:
    """True where every agent's last reply agrees by its phrases, none disagrees, and no mark takes a position."""
    last = latest_replies(dialog)
    counts = [counted(entry) for entry in last]
    marks = {mark.name for entry in dialog.turns if entry.by != USER for mark in entry.marks}
    agree = len(last) > 1 and all(yes and not no for yes, no in counts)
    return agree and not marks & _POSITIONS


def method(name: str) -> str:
    """How something was decided, in words."""
    return METHODS.get(name, f"by {name}" if name else "")


def _how(decision: Decided) -> str:
    what = f"{decision.ref} was {decision.outcome}, {decision.evidence}"
    if not decision.ref:
        chosen = decision.outcome == "approved"
        what = f"the position of {decision.evidence}" if chosen else f"{decision.outcome}, {decision.evidence}"
    return f"{method(decision.method)}: {what}"


def _consensus(dialog: Dialog, agreed: Agreed | None, outcome: Outcome) -> str:
    if agreed is None or agreed.method != "mutual":
        by = "the person" if outcome.by == USER else outcome.by
        return f"consensus, as {by} wrote it; not everybody signed the text"
    who = [f"{signer.agent} in turn {signer.turn}" for signer in agreed.signers]
    left = listed(tuple(one for one in dialog.header.voters if all(one != s.agent for s in agreed.signers)))
    how = "everybody who was left signed the same text" if left else METHODS["mutual"]
    text = f"consensus: {how}, {agreed.ref or 'as it stands'} ({', '.join(who)})"
    return f"{text}; left out, being absent: {left}" if left else text


def _stopped(outcome: Outcome, reason: str) -> str:
    if outcome.failed:
        return f"broken off by an {reason}"
    by = "the person" if outcome.by == USER else "a daemon"
    return f"stopped by {by} before an agreement" + (f": {reason}" if reason else "")


def _waiting(dialog: Dialog) -> str:
    state = dialog.state
    number = state.number + 1
    agents = tuple(who for who in state.owing if who != USER)
    paused = "it is paused, and " if state.paused else ""
    if state.questions.text:
        who = listed(state.questions.askers) or "the dialog"
        return f"{paused}{who} {'wait' if len(state.questions.askers) > 1 else 'waits'} for the person's answer"
    if agents:
        return f"{paused}turn {number} is owed by {listed(agents)}"
    return f"{paused}it is the person's turn" if USER in state.owing else f"{paused}nobody's turn is named"


# -- What was objected to, what became of it, and who still stands against what was decided. Pure ---------------------

RAISED = ("OBJECTION", "CRITIQUE")


def referred(entry: Entry) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The turns and proposals that an entry says it answers."""
    found = [marks.references(mark) for mark in entry.all("RE")]
    return tuple(n for turns, _ in found for n in turns), tuple(ref for _, refs in found for ref in refs)


Made = Sequence[tuple[int, Proposal]]  # the proposals with their turns


def made(dialog: Dialog) -> Made:
    """Every proposal with the number of its turn."""
    return tuple((turn_of(proposal.entry), proposal) for proposal in dialog.state.table.proposals)


def conflicts(dialog: Dialog, agreed: Agreed | None, decisions: Sequence[Decided]) -> tuple[Conflict, ...]:
    """Every objection and critique, in order, with what became of it."""
    found, proposals = [], made(dialog)
    conceded = tuple((entry, mark) for entry in turns_of(dialog) for mark in entry.all("CONCEDE"))
    for entry in turns_of(dialog):
        for mark in (mark for mark in entry.marks if mark.name in RAISED):
            about = aims(proposals, entry, mark)
            said = Said(mark.name, entry.by, entry.number, mark.value)
            sides = {said.by, *(p.by for _, p in proposals if p.ref in about)} if conceded else set()
            given_up = _conceded(said, about, [(e, m) for e, m in conceded if e.by in sides])
            how = given_up or _decided(said, about, decisions) or _signed(said, agreed)
            found.append(Conflict(said, about, how))
    return tuple(found)


def aims(proposals: Made, entry: Entry, mark: Mark) -> tuple[str, ...]:
    """The proposals that an objection is about: those it names, those of the turns it answers, else the last one."""
    turns, refs = referred(entry)
    if named := tuple(dict.fromkeys((*([mark.ref] if mark.ref else []), *refs))):
        return named
    before = [(turn, p.ref) for turn, p in proposals if turn < entry.number and p.by != entry.by]
    return tuple(ref for turn, ref in before if turn in turns) or tuple(ref for _, ref in before[-1:])


def _conceded(said: Said, about: Sequence[str], conceded: Sequence[tuple[Entry, Mark]]) -> str:
    """Who gave up the point later: the one who raised it, or whose proposal it was."""
    for entry, mark in conceded:
        if entry.number > said.turn and _is_meant(entry, mark, said, about):
            return f"conceded by {entry.by} in turn {entry.number}: {mark.value}".rstrip(": ")
    return ""


def _is_meant(entry: Entry, mark: Mark, said: Said, about: Sequence[str]) -> bool:
    """A concession names the proposal or the turn of the objection, or nothing at all."""
    turns, refs = referred(entry)
    own = marks.references(mark)
    turns, refs = (*turns, *own[0]), (*refs, *own[1], *marks.objected(mark))
    return said.turn in turns or bool(set(refs) & set(about)) or not (turns or refs)


def _decided(said: Said, about: Sequence[str], decisions: Sequence[Decided]) -> str:
    for decision in decisions:
        if decision.ref in about and decision.turn >= said.turn and decision.outcome in ("approved", "rejected"):
            then = f", and rejected by the person in turn {decision.rejected_in}" if decision.rejected_in else ""
            return f"{decision.ref} was {decision.made} in turn {decision.turn}, {method(decision.method)}{then}"
    return ""


def _signed(said: Said, agreed: Agreed | None) -> str:
    for signer in agreed.signers if agreed else ():
        if signer.agent == said.by and signer.turn > said.turn:
            return f"{said.by} signed {agreed.ref if agreed else ''} in turn {signer.turn}"
    return ""


def dissent(
    dialog: Dialog, agreed: Agreed | None, decisions: Sequence[Decided], positions: Sequence[Position]
) -> tuple[Said, ...]:
    """Who is against, or has a reservation about, what was decided; each agent's last word on it."""
    approved = [agreed.ref] if agreed else []
    approved += [d.ref for d in decisions if d.outcome == "approved" and d.ref not in approved]
    found: list[Said] = []
    for signer in agreed.signers if agreed else ():
        if signer.reservation:
            found.append(Said("RESERVATION", signer.agent, signer.turn, signer.reservation))
    for ref in approved:
        found += _against(dialog, ref, decisions, positions)
    if agreed is not None and not agreed.ref:
        found += _other_sides(dialog, agreed)
    if approved:
        found += (said for said in _reservations(dialog) if all(said.by != known.by for known in found))
    return tuple(found)


def _against(dialog: Dialog, ref: str, decisions: Sequence[Decided], positions: Sequence[Position]) -> Iterator[Said]:
    """Whose last position on a proposal is a no, with the reason of that turn."""
    votes = {vote.agent: vote for d in decisions if d.ref == ref for vote in d.votes if vote.choice == "reject"}
    for (agent, about), position in latest(positions).items():
        if about == ref and position.stance == "against":
            entry = dialog.entry(str(position.turn))
            mark = entry.mark("OBJECTION") if entry is not None else None
            reason = votes[agent].reason if agent in votes else mark.value if mark else ""
            yield Said("AGAINST", agent, position.turn, f"{ref}: {reason}" if reason else ref)


def _other_sides(dialog: Dialog, chosen: Agreed) -> Iterator[Said]:
    """What the agents proposed last whose position the judge did not choose."""
    last = {p.by: p for p in dialog.state.table.proposals if p.by != chosen.by and not p.sha}
    for p in last.values():
        yield Said("OTHER_SIDE", p.by, turn_of(p.entry), f"{p.ref}: {p.text}")


def _reservations(dialog: Dialog) -> Iterator[Said]:
    """Each agent's last reservation."""
    last: dict[str, Said] = {}
    for entry in turns_of(dialog):
        for mark in entry.all("RESERVATION"):
            last[entry.by] = Said("RESERVATION", entry.by, entry.number, mark.value)
    yield from last.values()


# -- What is still open, and what comes next --------------------------------------------------------------------------

LAST_TURNS = 4  # that are looked through for next steps


def questions(
    dialog: Dialog,
    agreed: Agreed | None,
    decisions: Sequence[Decided],
    positions: Sequence[Position],
    findings: Sequence[Finding],
) -> tuple[Said, ...]:
    """What the marks leave open, most pressing first."""
    return (
        *_for_the_person(dialog),
        *(() if agreed else cruxes(dialog)),
        *_unanswered(dialog),
        *_undecided(dialog, agreed, decisions, positions),
        *(Said("FINDING", f.by, f.turn, f"finding {f.number} blocks: {f.issue}") for f in findings if f.blocks),
    )


def _for_the_person(dialog: Dialog) -> Iterator[Said]:
    for question in dialog.state.questions.open:
        yield Said("QUESTION_FOR_USER", question.asker or "a daemon", turn_of(question.entry), question.said)


def _unanswered(dialog: Dialog) -> Iterator[Said]:
    """Questions to the other agents, in turns that nobody else answered by number."""
    answered: dict[int, set[str]] = {}
    for entry in turns_of(dialog):
        for number in referred(entry)[0]:
            answered.setdefault(number, set()).add(entry.by)
    for entry in turns_of(dialog):
        if not answered.get(entry.number, set()) - {entry.by}:
            yield from (Said("QUESTION", entry.by, entry.number, mark.value) for mark in entry.all("QUESTION"))


def _undecided(
    dialog: Dialog, agreed: Agreed | None, decisions: Sequence[Decided], positions: Sequence[Position]
) -> Iterator[Said]:
    """Proposals that nothing was decided about. What everybody signed, or a judge chose, settles them all."""
    done = {d.ref for d in decisions if d.outcome in ("approved", "rejected")}
    done |= set(dialog.state.table.vetoed)
    stances = latest(positions)
    texts = {same_text(p.text).casefold() for p in dialog.state.table.proposals if p.ref in done and p.text.strip()}
    if agreed is not None and (agreed.method in ("mutual", "person", "by hand") or not agreed.ref):
        return
    for proposal in dialog.state.table.proposals:
        position = stances.get((proposal.by, proposal.ref))
        given_up = position is not None and position.stance == "conceded"
        decided = proposal.ref in done or same_text(proposal.text).casefold() in texts
        if not (given_up or decided or _is_replaced(dialog, proposal)):
            text = f"{proposal.ref}: {proposal.text}" if not proposal.sha else f"the text {proposal.ref}"
            yield Said("PROPOSAL", proposal.by, turn_of(proposal.entry), text)


def _is_replaced(dialog: Dialog, proposal: Proposal) -> bool:
    """True for a consensus text after which another one was put on the table."""
    texts = [p.ref for p in dialog.state.table.proposals if p.sha]
    return bool(proposal.sha) and proposal.ref != texts[-1]


def cruxes(dialog: Dialog) -> tuple[Said, ...]:
    """The questions on which the disagreement turns."""
    return _named(dialog, "CRUX", crux, CRUX)


def experiments(dialog: Dialog) -> tuple[Said, ...]:
    """The cheapest experiments that would settle it."""
    return _named(dialog, "EXPERIMENT", experiment, EXPERIMENT)


def _named(dialog: Dialog, name: str, read: Callable[[Iterable[Mark]], Iterable[str]], label: str) -> tuple[Said, ...]:
    """What each agent's last deadlock names; where it names none, what its last turn says under `label`.

    What several say in the same words stands once, under all their names.
    """
    found: list[Said] = []
    for agent in dict.fromkeys(entry.by for entry in turns_of(dialog)):
        turns = tuple(turns_of(dialog, agent))
        said = [Said(name, agent, e.number, text) for e in turns for text in read(e.marks)]
        texts = labelled(own_words(turns[-1]), label)
        found += said[-1:] or [Said(name, agent, turns[-1].number, text) for text in texts[:1]]
    same: dict[str, Said] = {}
    for item in found:
        key = " ".join(item.text.casefold().split()).rstrip(".")
        known = same.get(key)
        same[key] = replace(known, by=f"{known.by}, {item.by}") if known else item
    return tuple(same.values())


def positions_of(dialog: Dialog) -> tuple[Said, ...]:
    """Each agent's last position: its last plain proposal, and its last objection after that."""
    found: list[Said] = []
    for agent in dict.fromkeys(entry.by for entry in turns_of(dialog)):
        last: dict[str, Said] = {}
        for entry in turns_of(dialog, agent):
            for mark in entry.marks:
                if mark.name == "PROPOSAL":
                    last = {"PROPOSAL": Said("PROPOSAL", agent, entry.number, mark.value)}
                elif mark.name == "OBJECTION":
                    last["OBJECTION"] = Said("OBJECTION", agent, entry.number, mark.value)
        found += last.values()
    return tuple(found)


def steps(dialog: Dialog, agreed: Agreed | None, tried: Sequence[Said]) -> tuple[Step, ...]:
    """Next steps: those of the agreed text, else of the last turns that name any, else the experiments."""
    if agreed is not None and (found := labelled(agreed.text, STEPS)):
        return tuple(Step(text, "the agreed text") for text in found)
    for entry in tuple(turns_of(dialog))[: -LAST_TURNS - 1 : -1]:
        if found := labelled(own_words(entry), STEPS):
            return tuple(Step(text, f"turn {entry.number}, by {entry.by}") for text in found)
    if agreed is not None:
        return ()
    return tuple(Step(said.text, f"turn {said.turn}, by {said.by}: what would settle it") for said in tried)


def turn_of(entry_id: str) -> int:
    """The number of the turn that an entry is, or stands after; 0 before any."""
    head = entry_id.partition(".")[0]
    return int(head) if head.isdigit() else 0


def by_ref(dialog: Dialog) -> Mapping[str, Proposal]:
    """The proposals by number."""
    return {proposal.ref: proposal for proposal in dialog.state.table.proposals}


# -- The metrics of a dialog ------------------------------------------------------------------------------------------

_MS = re.compile(r"[0-9]{1,12}")


def metrics(
    dialog: Dialog,
    agreed: Agreed | None,
    decisions: Sequence[Decided],
    conflicts: Sequence[Conflict],
    positions: Sequence[Position],
) -> dict[str, Any]:
    """The figures of a dialog by the names in the plan's JSON (docs/plan.md says what each means); None: unknown."""
    made = Counter(contribution.agent for contribution in contributions(dialog))
    names, spent = [agent.id for agent in dialog.header.agents], dialog.state.spent
    said = (marks.confidence(mark) for entry in turns_of(dialog) for mark in entry.all("CONFIDENCE"))
    confidences = [confidence for confidence in said if confidence is not None]
    decided = {d.ref for d in decisions if d.outcome in ("approved", "rejected")} | ({agreed.ref} if agreed else set())
    frames = (entry.frame for entry in dialog.entries if entry.frame is not None)
    seconds = [int(frame.ms) / 1000 for frame in frames if _MS.fullmatch(frame.ms)]
    return {
        "contributions_total": made.total(),
        "contributions_per_agent": {who: made[who] for who in dict.fromkeys((*names, *made))},
        "rounds_completed": dialog.state.floor.rounds,
        "proposals_made": len({proposal.ref for proposal in dialog.state.table.proposals} | decided),
        "decisions_reached": len(decided),
        "conflicts_resolved": sum(bool(conflict.how) for conflict in conflicts),
        "consensus_rate": _consensus_rate(dialog, agreed, decisions, positions),
        "average_confidence": fmean(confidences) if confidences else None,
        **_account(total(spent)),
        "latency": {
            "total": sum(seconds) if seconds else None,
            "mean": fmean(seconds) if seconds else None,
            "longest": max(seconds, default=None),
        },
        "per_agent": {who: _account(spent[who]) for who in dict.fromkeys((*names, *spent)) if who in spent},
    }


def _account(spent: Spent) -> dict[str, Any]:
    is_counted = bool(spent.entries) and not (spent.uncounted and not spent.tokens)
    is_priced = spent.entries > spent.unknown
    return {
        "tokens": {"in": spent.tokens_in if is_counted else None, "out": spent.tokens_out if is_counted else None},
        "cost": {"usd": spent.usd if is_priced else None, "exact": spent.exact and not spent.unknown},
    }


def _consensus_rate(
    dialog: Dialog, agreed: Agreed | None, decisions: Sequence[Decided], positions: Sequence[Position]
) -> float | None:
    able = dialog.header.voters
    approved = {d.ref for d in decisions if d.outcome == "approved"} | ({agreed.ref} if agreed else set())
    if not approved or not able:
        return None
    return fmean(len(_behind(ref, agreed, decisions, positions) & set(able)) / len(able) for ref in sorted(approved))


def _behind(ref: str, agreed: Agreed | None, decisions: Sequence[Decided], positions: Sequence[Position]) -> set[str]:
    """Who stands behind a proposal: who signed it, or whose last word on it is a yes."""
    signed = {signer.agent for signer in agreed.signers} if agreed is not None and agreed.ref == ref else set()
    cast = (vote for d in decisions if (d.ref, d.outcome) == (ref, "approved") for vote in d.votes)
    votes = {vote.agent for vote in cast if vote.choice == "approve"}
    stances = latest(positions)
    return signed | votes | {who for (who, about), p in stances.items() if about == ref and p.stance == "for"}


# -- Was the debate worth it ------------------------------------------------------------------------------------------

UNCHANGED = "nobody changed a vote afterwards"


def worth(dialog: Dialog, agreed: Agreed | None, decisions: Sequence[Decided]) -> Worth:
    """The comparisons that votes or first choices allow, else why there is none."""
    whole = cost(dialog.entries)
    first = _first_turns(dialog)
    if dialog.state.outcome is None:
        return Worth((), whole, "the dialog has not ended, so there is no outcome to compare with")
    if len(first) < 2:
        return Worth((), whole, "fewer than two agents answered")
    chosen = {who: _choice(dialog, entry) for who, entry in first.items()}
    silent = [who for who, choice in chosen.items() if choice is None]
    found = []
    if not silent:
        found.append(_by_choices(dialog, first, {w: c for w, c in chosen.items() if c}, agreed, decisions))
    by_votes = _by_votes(dialog, decisions)
    if by_votes is not None and (not found or by_votes.remark != UNCHANGED):
        found.append(by_votes)
    if found:
        return Worth(tuple(found), whole)
    turns = listed([f"{who} (turn {first[who].number})" for who in silent])
    return Worth((), whole, f"the first answer of {turns} names no choice by a mark")


def _first_turns(dialog: Dialog) -> Mapping[str, Entry]:
    first: dict[str, Entry] = {}
    for entry in turns_of(dialog):
        if entry.by != dialog.header.judge and entry.by in dialog.header.speakers:
            first.setdefault(entry.by, entry)
    return first


Choice = tuple[str, str]  # what makes two choices the same, and how the choice is called


def _choice(dialog: Dialog, entry: Entry) -> Choice | None:
    """What an agent's first turn is for, or against: its first vote, proposal, agreement, objection, or KIND."""
    own = iter(p for p in dialog.state.table.proposals if p.entry == entry.id)
    for mark in entry.marks:
        if mark.name in ("PROPOSAL", "CONSENSUS_PROPOSED"):
            proposal = next(own, None)
            return _of_proposal(dialog, proposal.ref) if proposal else _of_text(mark.value)
        if mark.name in ("VOTE", "AGREE") and (choice := _of_vote(dialog, mark)) is not None:
            return choice
        if mark.name == "OBJECTION" and (refs := aims(made(dialog), entry, mark)):
            key, name = _of_proposal(dialog, refs[0])
            return f"against {key}", f"against {name}"
        if contributes(mark) and mark.name not in CONTRIBUTIONS and not _is_of_review(dialog, mark):
            return _of_text(mark.value)
    return None


def _is_of_review(dialog: Dialog, mark: Mark) -> bool:
    """True for a finding or a score: what a reviewer saw is no choice."""
    return dialog.header.rules.review and mark.name in REVIEW


def _of_vote(dialog: Dialog, mark: Mark) -> Choice | None:
    if mark.name == "AGREE":
        refs = ([mark.ref] if mark.ref else []) + list(marks.references(mark)[1])
        return _of_proposal(dialog, refs[0]) if refs else None
    vote = marks.vote(mark)
    if vote is None or vote.choice not in ("approve", "reject"):
        return None
    key, name = _of_proposal(dialog, vote.ref)
    return (key, name) if vote.choice == "approve" else (f"against {key}", f"against {name}")


def _of_proposal(dialog: Dialog, ref: str) -> Choice:
    proposal = by_ref(dialog).get(ref)
    return (_key(proposal.text), ref) if proposal is not None and proposal.text.strip() else (ref, ref)


def _of_text(text: str) -> Choice:
    return _key(text), f"“{text}”"


def _key(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold())) or text


def _by_choices(
    dialog: Dialog,
    first: Mapping[str, Entry],
    chosen: Mapping[str, Choice],
    agreed: Agreed | None,
    decisions: Sequence[Decided],
) -> Comparison:
    """A plain vote of the first answers against what was decided in the end."""
    counts = Counter(key for key, _ in chosen.values())
    names = dict(reversed(tuple(chosen.values())))
    top, voices = counts.most_common(1)[0]
    tied = [key for key, number in counts.items() if number == voices]
    verdict = "" if len(tied) > 1 else top
    said = f"a tie between {listed([names[key] for key in tied])}: nothing decided"
    final, ref = _final(dialog, agreed, decisions)
    same: bool | None = final == verdict
    remark = ""
    if final and verdict and final not in counts:
        same, remark = None, f"{ref} is a text that no first answer held; whether it says the same, marks cannot tell"
    return Comparison(
        basis=_basis(dialog, first),
        choices=tuple(Said("FIRST", who, first[who].number, name) for who, (_, name) in chosen.items()),
        verdict=said if len(tied) > 1 else f"{names[top]}, with {voices} of {len(chosen)} voices",
        outcome=_words(ref, agreed, decisions),
        same=same,
        first=cost(first.values()),
        remark=remark,
    )


def _basis(dialog: Dialog, first: Mapping[str, Entry]) -> str:
    """How independent the first answers were."""
    seals = {e.by: mark for e in dialog.entries if not e.is_turn and (mark := e.mark("SEALED"))}
    if set(first) <= set(seals):
        able = [who for who, mark in seals.items() if len(mark.fields) > 1]  # the seat's tools could have read the file
        return f"the sealed first answers{f' ({listed(able)} could read files)' if able else ''}"
    answered = {entry.re if entry.frame else "" for entry in first.values()}
    if len(answered) == 1 and answered != {""}:
        return "the first answers, given without knowing the others'"
    early = min(first.values(), key=lambda entry: entry.number)
    return f"the first answers (only {early.by}'s was given without knowing another)"


def _final(dialog: Dialog, agreed: Agreed | None, decisions: Sequence[Decided]) -> Choice:
    """What was decided in the end; "" twice for nothing."""
    if agreed is not None and not agreed.ref:
        own = [p.ref for p in dialog.state.table.proposals if p.by == agreed.by and not p.sha]
        name = f"the position of {agreed.by} in turn {agreed.stands_in}"
        return (_of_proposal(dialog, own[-1])[0], name) if own else (_key(agreed.text), name)
    ref = agreed.ref if agreed else next((d.ref for d in reversed(decisions) if d.stands == "approved"), "")
    return (_of_proposal(dialog, ref)[0], ref) if ref else ("", "")


def _words(name: str, agreed: Agreed | None, decisions: Sequence[Decided]) -> str:
    if not name:
        return "nothing was decided"
    how = agreed.method if agreed else next(d.method for d in decisions if d.ref == name)
    return f"{name}, {method(how)}"


def _by_votes(dialog: Dialog, decisions: Sequence[Decided]) -> Comparison | None:
    """The first vote of each voter against the decision, on the proposal that was voted on last."""
    polled = [d for d in decisions if d.method == "vote"]
    if not polled:
        return None
    decision = next((d for d in reversed(polled) if d.made == "approved"), polled[-1])
    first: dict[str, Said] = {}
    for entry in turns_of(dialog):
        for mark in entry.all("VOTE"):
            vote = marks.vote(mark)
            if vote is not None and vote.ref == decision.ref and entry.number <= decision.turn:
                first.setdefault(entry.by, Said("VOTE", entry.by, entry.number, vote.choice))
    if len(first) < 2:
        return None
    last = {vote.agent: vote.choice for vote in decision.votes}
    changed = [who for who, said in first.items() if last.get(who, said.text) != said.text]
    counts = Counter(said.text for said in first.values())
    lead = counts["approve"] - counts["reject"]
    verdict = "approved" if lead > 0 else "rejected" if lead < 0 else "undecided"
    until = max(said.turn for said in first.values())
    return Comparison(
        basis=f"the first vote of each voter on {decision.ref}",
        choices=tuple(first.values()),
        verdict=f"{verdict}, {counts['approve']} for and {counts['reject']} against",
        outcome=f"{decision.made}: {decision.evidence}",
        same=verdict == decision.made,
        first=cost(entry for entry in dialog.entries if turn_of(entry.id) <= until),
        remark=f"{listed(changed)} changed the vote" if changed else UNCHANGED,
    )


def cost(entries: Iterable[Entry]) -> Cost:
    """What these entries came to, as far as their frames say."""
    turns, spent, times = 0, Spent(), []
    for entry in entries:
        frame = entry.frame
        if frame is None or not (frame.ms or frame.calls or frame.tokens_in or frame.usd):
            continue
        turns += entry.is_turn
        spent = spent.plus(account(frame.tokens_in, frame.tokens_out, frame.usd))
        times += [int(frame.ms)] if _MS.fullmatch(frame.ms) else []
    return Cost(
        turns,
        usd=None if spent.unknown == spent.entries else spent.usd,
        tokens=None if (spent.uncounted and not spent.tokens) or not spent.entries else spent.tokens,
        seconds=sum(times) / 1000 if times else None,
    )


# -- From a dialog to its plan ----------------------------------------------------------------------------------------

STANDS = ("RESERVATION", "OBJECTION", "CONCEDE")


def has_spoken(dialog: Dialog) -> bool:
    """True once any agent has: before that there is nothing to plan from."""
    return any(True for _ in turns_of(dialog))


def draw_up(dialog: Dialog, file: str = "") -> Plan:
    """The plan of a dialog as it stands. `file` is how the dialog's file is named in it."""
    certificate = certify(dialog)
    opened = reopenings(dialog)
    agreed = _agreed(dialog, certificate, opened)
    now = None if agreed is not None and agreed.is_earlier else agreed  # what counts since the dialog was opened
    decisions = tuple(_decisions(dialog, opened))
    stances = positions(dialog)
    found, quarrels = review.findings(dialog), conflicts(dialog, agreed, decisions)
    tried, state = experiments(dialog), dialog.state
    return Plan(
        dialog=dialog,
        file=file,
        task=dialog.header.topic or _question(dialog),
        began=dialog.header.started or _first_at(dialog),
        ended=ended_at(dialog),
        outcome=state.outcome.name if state.outcome else "",
        headline=_headline(dialog, agreed, decisions),
        agreed=agreed,
        on_the_table=_on_the_table(dialog) if now is None else None,
        decisions=decisions,
        views=tuple(_views(dialog)),
        agreements=tuple(_agreements(now, decisions)),
        conflicts=quarrels,
        dissent=dissent(dialog, agreed, decisions, stances),
        changes=tuple(_changes(stances)),
        positions=positions_of(dialog),
        crux=cruxes(dialog),
        experiments=tried,
        questions=questions(dialog, now, decisions, stances, found),
        steps=steps(dialog, now, tried),
        worth=worth(dialog, now, decisions),
        findings=found,
        score=review.score(dialog),
        signals=assess(dialog),
        metrics=metrics(dialog, agreed, decisions, quarrels, stances),
        certificate=certificate.as_json() if certificate else None,
        approved=_approval(dialog),
        rejections=rejections_in(opened),
    )


def ended_at(dialog: Dialog) -> str:
    """When the dialog ended, as its file says; "" while it goes on, or where its end was written by hand."""
    entry = dialog.entry(dialog.state.outcome.entry) if dialog.state.outcome else None
    return entry.frame.at if entry is not None and entry.frame is not None else ""


def _approval(dialog: Dialog) -> Approval | None:
    note = dialog.entry(dialog.state.approved) if dialog.state.approved else None
    return Approval(note.id, note.frame.at if note.frame is not None else "") if note is not None else None


def _question(dialog: Dialog) -> str:
    """The opening question, without what leads to it; what stands above the first turn where nobody asked one."""
    first = dialog.entries[0].body if dialog.entries and dialog.entries[0].by == USER else ""
    for text in (first, dialog.header.title, dialog.header.text):
        lines = (line.strip() for line in text.split("\n"))
        if found := next((line for line in lines if line.strip("-* ") and not line.endswith(":**")), ""):
            return found
    return ""


def _first_at(dialog: Dialog) -> str:
    return next((entry.frame.at for entry in dialog.entries if entry.frame is not None and entry.frame.at), "")


def _agreed(dialog: Dialog, certificate: Certificate | None, opened: Mapping[str, Reopening]) -> Agreed | None:
    if certificate is None:
        return None
    c = certificate
    signers = tuple(Signed(s.agent, s.turn, s.reservation) for s in c.signers)
    entry = dialog.entry(c.stands_in)
    return Agreed(
        ref=c.ref,
        text=c.text,
        sha=c.sha,
        method=c.method,
        decided_in=c.decided_in,
        decided_at=c.decided_at,
        signers=signers,
        by=entry.by if entry else "",
        stands_in=c.stands_in,
        is_earlier=turn_of(c.decided_in) <= dialog.state.base,
        is_rejected=c.decided_in in opened and opened[c.decided_in].rejection is not None,
    )


def _on_the_table(dialog: Dialog) -> Agreed | None:
    """The text that waits for signatures, or did at the end."""
    standing = dialog.state.table.standing
    if standing is None:
        return None
    signers = tuple(Signed(who, turn) for who, turn in standing.signers)
    return Agreed(standing.proposal.ref, standing.proposal.text, standing.proposal.sha, "", "", "", signers)


def _decisions(dialog: Dialog, opened: Mapping[str, Reopening]) -> Iterator[Decided]:
    made = by_ref(dialog)
    for decision in dialog.state.table.decisions:
        proposal = made.get(decision.ref)
        turn = turn_of(decision.entry)
        now = as_of_now(opened, decision.entry, decision.outcome, decision.reason)
        yield Decided(
            ref=decision.ref,
            by=proposal.by if proposal else "",
            text=proposal.text if proposal else "",
            outcome=now.outcome,
            method=decision.method,
            evidence=decision.evidence,
            reason=now.reason,
            turn=turn,
            votes=tuple(_votes(dialog, decision, turn)),
            rejected_in=turn_of(now.rejected_in),
            superseded=now.superseded,
        )


def _votes(dialog: Dialog, decision: Decision, until: int) -> Iterable[Vote]:
    """Each agent's last vote on the proposal before it was decided."""
    last: dict[str, Vote] = {}
    for entry in turns_of(dialog):
        if entry.number > until:
            break
        for mark in entry.all("VOTE"):
            vote = marks.vote(mark)
            if vote is not None and vote.ref == decision.ref:
                last[entry.by] = Vote(
                    entry.by, vote.choice, entry.number, vote.reason, dialog.header.rules.weight([entry.by])
                )
    return last.values()


def _views(dialog: Dialog) -> Iterator[View]:
    names = {agent.id: agent.name for agent in dialog.header.agents}
    for who in dict.fromkeys((*names, *(entry.by for entry in turns_of(dialog)))):
        turns = tuple(turns_of(dialog, who))
        number, text = _last_of_substance(turns)
        if not text:
            continue
        stands = {m.name: Said(m.name, who, e.number, m.value) for e in turns for m in e.marks if m.name in STANDS}
        yield View(who, names.get(who, who), number, *beginning(text), tuple(sorted(stands.values(), key=_when)))


def _last_of_substance(turns: Sequence[Entry]) -> tuple[int, str]:
    """Number and text of the last turn that says something beside an agreed text; else of the last one at all."""
    texts = [(entry.number, own_words(entry)) for entry in turns]
    heads = [(number, before_summary(text)) for number, text in texts]
    for found in (*reversed(heads), *reversed(texts)):
        if is_substantial(found[1]):
            return found
    return max(reversed(texts), key=lambda found: len(found[1].split()), default=(0, ""))


def _when(said: Said) -> int:
    return said.turn


def _agreements(agreed: Agreed | None, decisions: Sequence[Decided]) -> Iterator[Said]:
    """What was approved and stands: who proposed it, and the turn that decided. A text in full stands elsewhere."""
    for d in {decision.ref: decision for decision in decisions if decision.ref}.values():
        if d.stands == "approved" and (agreed is None or d.ref != agreed.ref):
            yield Said("APPROVED", d.by, d.turn, _make_named(d.ref, d.text))
    if agreed is not None:
        what = _make_named(agreed.ref, agreed.text) if agreed.ref else f"what stands in turn {agreed.stands_in}"
        yield Said("APPROVED", agreed.by, turn_of(agreed.decided_in), what)


def _make_named(ref: str, text: str) -> str:
    return f"{ref}: {text}" if text and "\n" not in text.strip() else f"the text {ref}"


def _changes(stances: Sequence[Position]) -> Iterator[Change]:
    """Each stance that is not the first an agent took on a proposal."""
    before: dict[tuple[str, str], str] = {}
    for p in stances:
        known = before.get((p.agent, p.ref), "")
        if known and known != p.stance:
            yield Change(p.agent, p.ref, known, p.stance, p.turn, p.cause, p.flagged)
        before[p.agent, p.ref] = p.stance

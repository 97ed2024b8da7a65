"""The plan that a dialog leaves: what was decided, by whom, against whose word, what is open, and its figures. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from statistics import fmean
from typing import Any

from dialogd.protocol import build, certificate, marks, questions
from dialogd.protocol.board import (
    AnyDecision,
    Position,
    Reopening,
    as_of_now,
    changes,
    contributions,
    latest,
    positions,
    reopenings,
)
from dialogd.protocol.build import Finding, Score, came_of
from dialogd.protocol.certificate import Certificate, certify, position
from dialogd.protocol.marks import before_summary, prose, referred, same_text
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry, Mark, Outcome, turn_number
from dialogd.protocol.state import Ballot, Decision, Dialog, Proposal, Spent, total
from dialogd.protocol.text import listed, many, seconds_between
from dialogd.views.flow import names_of
from dialogd.views.words import GIVEN, METHODS, RAISED, by_name

Facts = dict[str, Any]  # by the names that they have in the plan's JSON


@dataclass(frozen=True, slots=True)
class Statement:
    """Something that somebody said in a turn: a mark's name as `kind`, and its text."""

    kind: str
    by: str
    turn: int
    text: str


@dataclass(frozen=True, slots=True)
class Signed:
    """Who stands behind a decision, since which turn (0 where unknown), with which reservation ("" for none)."""

    agent: str
    turn: int
    reservation: str = ""


@dataclass(frozen=True, slots=True)
class Agreed:
    """The exact text that was decided. `by` wrote it, in the entry `stands_in`; `ref` is "" for a judge's choice.

    `is_earlier`: the dialog was opened again after it had been decided; `is_rejected`: the person did not take it.
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
class PlanDecision(AnyDecision):
    """What was decided on a proposal: approved, rejected or undecided, as it stands now.

    An approval that the person did not take is rejected, for their reason, in their turn `rejected_in` (0 else).
    """

    ref: str
    by: str
    text: str
    outcome: str
    method: str
    evidence: str
    reason: str
    turn: int
    votes: tuple[Ballot, ...] = ()
    rejected_in: int = 0
    superseded: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """An agent in its own words: the beginning of its last turn of substance."""

    agent: str
    name: str
    turn: int
    text: str
    is_cut: bool


@dataclass(frozen=True, slots=True)
class Disagreement:
    """An objection or critique; `how` says in words what became of it, "" while it is open."""

    said: Statement
    about: tuple[str, ...] = ()
    how: str = ""

    @property
    def is_settled(self) -> bool:
        return bool(self.how)


@dataclass(frozen=True, slots=True)
class Synthesis:
    """A unified plan that a model wrote from the dialog; nobody signed it. `cost` in words."""

    text: str
    agent: str
    model: str
    cost: str


# -- What is read out of the agents' texts ----------------------------------------------------------------------------

WORDS = 120  # of an agent's view
SUBSTANCE = 8  # words from which a turn says something

_STEPS = re.compile(
    r"[ \t]*(?:#{1,6}[ \t]+)?[*_]{0,3}"
    r"(?:recommended |proposed |agreed |immediate )?(?:next steps?|action items?|actions?|to-?dos?|follow-?ups?)"
    r"[*_]{0,3}[ \t]*(?::[*_ \t]*(.*?))?[#*_ \t]*",
    re.I,
)
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,3}[.)])[ \t]+(?:\[[ xX]\][ \t]+)?(.*)")


def turns_of(dialog: Dialog) -> Iterator[Entry]:
    """The agents' turns that count, in order."""
    for entry in dialog.turns:
        if entry.condition is not Condition.UNFINISHED and entry.by not in (USER, SYSTEM) and entry.counts:
            yield entry


def has_spoken(dialog: Dialog) -> bool:
    """True once any agent has: before that there is nothing to plan from."""
    return any(True for _ in turns_of(dialog))


def own_words(entry: Entry) -> str:
    """A turn's text without what a daemon closed the dialog with, and without lines that are marks."""
    return without_marks(certificate.own_words(entry.body))


def without_marks(text: str) -> str:
    """A text without the lines that are marks: those written by hand stand in it."""
    return prose(text).strip("\n")


def beginning(text: str, words: int = WORDS) -> tuple[str, bool]:
    """The first `words` words, and whether anything was cut."""
    matches = list(re.finditer(r"\S+", text))
    return (f"{text[: matches[words - 1].end()]} …", True) if len(matches) > words else (text, False)


def next_steps(text: str) -> tuple[str, ...]:
    """What stands under a heading, a bold line or a name with a colon for next steps: its list, or the line's rest."""
    lines = [line for _, line in marks.outside_fences(text.split("\n"), forgiving=True)]
    for at, line in enumerate(lines):
        if (match := _STEPS.fullmatch(line)) and (found := [match[1]] if match[1] else _items(lines[at + 1 :])):
            return tuple(found)
    return ()


def _items(lines: Sequence[str]) -> list[str]:
    """The items of the list with which these lines begin."""
    items: list[str] = []
    for line in filter(str.strip, lines):
        if item := _ITEM.fullmatch(line):
            items.append(item[1].strip())
        elif items and line[0] in " \t":
            items[-1] += f" {line.strip()}"
        else:
            break
    return items


# -- The plan ---------------------------------------------------------------------------------------------------------

LAST_TURNS = 4  # that are looked through for next steps
YOU = "you"
# How a limit ended it, and which, by the cause of the stop; "" where turns or rounds ran out.
_LIMITS = {
    "": ("out of turns", "the limit of turns or rounds"),
    "time": ("out of time", "the time limit"),
    "budget": ("out of budget", "the budget"),
    "size": ("the file is full", "the size limit"),
}
_MS = re.compile(r"[0-9]{1,12}")


def method(name: str) -> str:
    """How something was decided, in words."""
    return METHODS.get(name, f"by {name}" if name else "")


@dataclass(frozen=True)
class Plan:
    """What a dialog comes to; each part is worked out when it is asked for.

    `file` is how the dialog's file is named in it, `later` are the person's rejections of this very result, `person`
    is what the person is called: `YOU` where they read it themselves.
    """

    dialog: Dialog
    file: str = ""
    synthesis: Synthesis | None = None
    later: tuple[Reopening, ...] = ()
    person: str = "the person"

    @cached_property
    def _turns(self) -> tuple[Entry, ...]:
        return tuple(turns_of(self.dialog))

    def _marks(self, *names: str) -> Iterator[tuple[Entry, Mark]]:
        """Every mark of these names in the agents' turns, in order."""
        return ((entry, mark) for entry in self._turns for mark in entry.marks if mark.name in names)

    def _said(self, *names: str) -> Iterator[Statement]:
        return (Statement(mark.name, entry.by, entry.number, mark.value) for entry, mark in self._marks(*names))

    @property
    def _speakers(self) -> Iterable[str]:
        return dict.fromkeys(entry.by for entry in self._turns)

    @cached_property
    def _certificate(self) -> Certificate | None:
        return certify(self.dialog)

    @cached_property
    def _opened(self) -> Mapping[str, Reopening]:
        return reopenings(self.dialog)

    @cached_property
    def _stances(self) -> tuple[Position, ...]:
        return positions(self.dialog)

    @cached_property
    def _by_ref(self) -> Mapping[str, Proposal]:
        return {proposal.ref: proposal for proposal in self.dialog.state.table.proposals}

    # -- what it was about, and how it ended ----------------------------------------------------------------------

    @property
    def certificate(self) -> dict[str, Any] | None:
        """Who stands behind the agreement, as JSON."""
        return self._certificate.as_json() if self._certificate else None

    @property
    def task(self) -> str:
        """The topic, else the first line of the opening question, without what leads to it."""
        header, entries = self.dialog.header, self.dialog.entries
        opening = entries[0].body if entries and entries[0].by == USER else header.title
        lines = (line.strip() for line in opening.split("\n"))
        return header.topic or next((line for line in lines if line and not line.endswith(":**")), "")

    @property
    def began(self) -> str:
        """When the dialog began: by its header, else its first frame."""
        return self.dialog.header.started or next((entry.at for entry in self.dialog.entries if entry.at), "")

    @property
    def ended(self) -> str:
        """When the dialog ended, as its file says; "" while it goes on, or where its end was written by hand."""
        outcome = self.dialog.state.outcome
        entry = self.dialog.entry(outcome.entry) if outcome else None
        return entry.at if entry is not None else ""

    @property
    def seconds(self) -> float | None:
        """How long it took from its first entry with a time to its end; None where nobody knows."""
        return seconds_between(self.began, self.ended) if self.ended else None

    @property
    def outcome(self) -> str:
        """The name of the mark that ended the dialog, "" while it goes on."""
        return self.dialog.state.outcome.name if self.dialog.state.outcome else ""

    @property
    def is_deadlock(self) -> bool:
        return self.dialog.state.outcome is not None and self.dialog.state.outcome.is_deadlock

    @property
    def approved(self) -> Facts | None:
        """The note in which the person took the result, and when, "" by hand."""
        note = self.dialog.entry(self.dialog.state.approved) if self.dialog.state.approved else None
        return {"entry": note.id, "at": note.at} if note is not None else None

    @property
    def rejections(self) -> tuple[Reopening, ...]:
        """Every result that the person did not take."""
        return (*(one for one in self._opened.values() if one.turn), *self.later)

    @cached_property
    def names(self) -> Mapping[str, str]:
        """What everybody who takes or took part is called, by id; the id too where two have the same name."""
        return {**names_of(self.dialog), USER: self.person, SYSTEM: "the daemon"}

    def name(self, who: str) -> str:
        """What that agent is called, or several whose ids are joined by commas; the person and the daemon too."""
        return listed([self.names.get(one, one) for one in who.split(", ")])

    @property
    def headline(self) -> str:
        """The outcome and why, in one line. That nobody thought about it in a rehearsal is for its reader to say."""
        return ": ".join(filter(None, self._ending))

    @property
    def ending(self) -> str:
        """How it ended, in a few words: `agreed`; `not ended` while it goes on."""
        return self._ending[0]

    @property
    def because(self) -> str:
        """Who made it end like that, and why, in one sentence; "" where nothing more is known."""
        return self._ending[1]

    @cached_property
    def _ending(self) -> tuple[str, str]:
        state, outcome, called = self.dialog.state, self.dialog.state.outcome, self.dialog.state.table.deadlock
        if outcome is None:
            return "not ended", self._waiting()
        last = next((d for d in reversed(self.decisions) if str(d.turn) == outcome.entry), None)
        built = f"with {came_of(state.build)}" if state.build.all else "before a task was proposed"
        built = built if state.build else ""
        if outcome.is_consensus:
            return "agreed", self._consensus(outcome)
        if outcome.is_agreed or outcome.is_deadlock:
            if state.build:
                return "decided" if outcome.is_agreed else "nothing approved", came_of(state.build)
            if outcome.is_agreed:
                how = f"decided {method(last.method)}" if last else "decided"
                return how, self._how(last) if last else outcome.reason.strip()
            why = f"{method(last.method)}, {self._how(last)}" if last else outcome.reason.strip()
            how = f", called by {self.name(', '.join(called))}" if outcome.by in called else f"; {why}" if why else ""
            return "no agreement", f"a deadlock{how}"
        if outcome.is_limit:
            ending, which = _LIMITS[outcome.cause]
            if not outcome.cause and state.counted >= state.limits.max_turns:
                which = f"the limit of {many(state.limits.max_turns, 'turn')}"
            came_to = built or ("without an agreement" if self.agreed is None else "after a decision")
            return ending, f"{outcome.why or which} ended it {came_to}"
        if outcome.failed:
            return "broken off by an error", self._failed(outcome.why)
        by = outcome.from_session or self.person if outcome.by == USER else "a daemon"
        return f"stopped by {by} {built or 'before an agreement'}", outcome.reason.strip()

    def _waiting(self) -> str:
        """Who is waited for."""
        state = self.dialog.state
        paused = "it is paused, and " if state.paused else ""
        if state.questions.text:
            asked = state.questions.askers
            who = self.name(", ".join(asked)) if asked else "the dialog"
            return f"{paused}{who} {'wait' if len(asked) > 1 else 'waits'} for the answer of {self.person}"
        if agents := [who for who in state.owing if who != USER]:
            return f"{paused}turn {state.number + 1} is to be written by {self.name(', '.join(agents))}"
        its = "your" if self.person == YOU else f"{self.person}'s"
        return f"{paused}it is {its} turn" if USER in state.owing else f"{paused}nobody's turn is named"

    def _consensus(self, outcome: Outcome) -> str:
        agreed = self.agreed
        if agreed is None or agreed.method != "mutual":
            return f"as {self.name(outcome.by)} wrote it; not everybody signed the text"
        signed = [signer.agent for signer in agreed.signers]
        left = ", ".join(one for one in self.dialog.header.voters if one not in signed)
        text = f"{self.name(', '.join(signed))} signed the same text{f', {agreed.ref}' if agreed.ref else ''}"
        return f"{text}; left out, being absent: {self.name(left)}" if left else text

    def _failed(self, why: str) -> str:
        """Why nobody could go on: the record names those by id who were given up, and what was decided without them."""
        gone = [self.name(agent.id) for agent in self.dialog.header.agents if agent.id in self.dialog.state.absent]
        if not gone:
            return why
        what, without, who = why.partition("; absent: ")[0].partition(" without ")
        return f"{what}{without}{self.name(who)}, because {listed(gone)} failed, or gave no answer in time, twice"

    def _how(self, decision: PlanDecision) -> str:
        """What was decided, and on whose word."""
        who, turn = position(decision.evidence) if not decision.ref else ("", 0)
        if decision.outcome == "approved" and who:
            return f"the position of {self.name(who)} in turn {turn}"
        return f"{decision.ref} was {decision.outcome}, {self.rests_on(decision)}".removeprefix(" was ")

    def rests_on(self, decision: PlanDecision) -> str:
        """Who stands behind a decision, as its record says it, by name."""
        return by_name(decision.evidence, self.name)

    # -- what was decided -----------------------------------------------------------------------------------------

    @cached_property
    def agreed(self) -> Agreed | None:
        """The exact text that was decided last."""
        c = self._certificate
        if c is None:
            return None
        entry, again = self.dialog.entry(c.stands_in), self._opened.get(c.decided_in)
        return Agreed(
            ref=c.ref,
            text=c.text,
            sha=c.sha,
            method=c.method,
            decided_in=c.decided_in,
            decided_at=c.decided_at,
            signers=tuple(Signed(s.agent, s.turn, s.reservation) for s in c.signers),
            by=entry.by if entry else "",
            stands_in=c.stands_in,
            is_earlier=turn_number(c.decided_in) <= self.dialog.state.base,
            is_rejected=again is not None and again.turn > 0,
        )

    @property
    def _now(self) -> Agreed | None:
        """The agreed text, if it was decided since the dialog was last opened."""
        return None if self.agreed is not None and self.agreed.is_earlier else self.agreed

    @property
    def on_the_table(self) -> Agreed | None:
        """The text that waits for signatures, or did at the end."""
        standing = self.dialog.state.table.standing
        if self._now is not None or standing is None:
            return None
        signers = tuple(Signed(who, turn) for who, turn in standing.signers)
        return Agreed(standing.proposal.ref, standing.proposal.text, standing.proposal.sha, "", "", "", signers)

    @cached_property
    def decisions(self) -> tuple[PlanDecision, ...]:
        """Every decision of a mark, with its votes."""
        return tuple(map(self._decision, self.dialog.state.table.decisions))

    def _decision(self, made: Decision) -> PlanDecision:
        proposal, turn = self._by_ref.get(made.ref), turn_number(made.entry)
        now = as_of_now(self._opened, made.entry, made.outcome, made.reason)
        votes: dict[str, Ballot] = {}  # each agent's last one before it was decided
        for entry in takewhile(lambda one: one.number <= turn, self._turns):
            if vote := marks.read_vote(entry.marks).get(made.ref):
                heavy = self.dialog.header.rules.weight([entry.by])
                votes[entry.by] = Ballot(entry.by, vote.choice, vote.reason, entry.number, heavy)
        return PlanDecision(
            ref=made.ref,
            by=proposal.by if proposal else "",
            text=proposal.text if proposal else "",
            outcome=now.outcome,
            method=made.method,
            evidence=made.evidence,
            reason=now.reason,
            turn=turn,
            votes=tuple(votes.values()),
            rejected_in=turn_number(now.rejected_in),
            superseded=now.superseded,
        )

    @property
    def other_decisions(self) -> list[PlanDecision]:
        """The decisions that the agreed text does not tell."""
        return [d for d in self.decisions if self.agreed is None or d.ref != self.agreed.ref]

    @property
    def _approved_refs(self) -> list[str]:
        approved = [d.ref for d in self.decisions if d.outcome == "approved"]
        return list(dict.fromkeys([self.agreed.ref, *approved] if self.agreed else approved))

    @property
    def _decided_refs(self) -> set[str]:
        return {d.ref for d in self.decisions if d.outcome in ("approved", "rejected")}

    @property
    def has_approved(self) -> bool:
        """True where something was agreed, or a decision approved something."""
        return bool(self._approved_refs)

    @property
    def agreements(self) -> tuple[Statement, ...]:
        """What was approved and stands, and what agents conceded or agreed to. A text in full stands elsewhere."""
        agreed = self._now
        found = [
            Statement("APPROVED", d.by, d.turn, _make_named(d.ref, d.text))
            for d in {decision.ref: decision for decision in self.decisions if decision.ref}.values()
            if d.stands == "approved" and (agreed is None or d.ref != agreed.ref)
        ]
        if agreed is not None:
            what = _make_named(agreed.ref, agreed.text) if agreed.ref else f"what stands in turn {agreed.stands_in}"
            found.append(Statement("APPROVED", agreed.by, turn_number(agreed.decided_in), what))
        decided = {*self._approved_refs, *(decision.ref for decision in self.decisions)}
        for entry, mark in self._marks(*GIVEN):
            refs = marks.agreed(mark)
            texts = [_make_named(ref, self._by_ref[ref].text) for ref in refs if ref in self._by_ref]
            if not decided & set(refs):
                found.append(Statement(mark.name, entry.by, entry.number, ", ".join(texts) or mark.value))
        return tuple(found)

    # -- what was objected to, what became of it, and who still stands against what was decided -------------------

    @cached_property
    def conflicts(self) -> tuple[Disagreement, ...]:
        """Every objection and critique, in order, with what became of it."""
        found = []
        for entry, mark in self._marks(*RAISED):
            said, about = Statement(mark.name, entry.by, entry.number, mark.value), self._aims(entry, mark)
            found.append(Disagreement(said, about, self._conceded(said, about) or self._settled(said, about)))
        return tuple(found)

    @property
    def unsettled(self) -> list[Statement]:
        """Objections and critiques that nothing became of yet."""
        return [conflict.said for conflict in self.conflicts if not conflict.how]

    def _aims(self, entry: Entry, mark: Mark) -> tuple[str, ...]:
        """The proposals that an objection is about: those it names, those of the turns it answers, else the last."""
        turns, refs = referred(entry)
        if named := tuple(dict.fromkeys((*([mark.ref] if mark.ref else []), *refs))):
            return named
        before = [(turn_number(p.entry), p.ref) for p in self.dialog.state.table.proposals if p.by != entry.by]
        before = [(turn, ref) for turn, ref in before if turn < entry.number]
        return tuple(ref for turn, ref in before if turn in turns) or tuple(ref for _, ref in before[-1:])

    def _conceded(self, said: Statement, about: Sequence[str]) -> str:
        """Who gave up the point later: the one who raised it, or whose proposal it was."""
        sides = {said.by, *(self._by_ref[ref].by for ref in about if ref in self._by_ref)}
        for entry, mark in self._marks("CONCEDE"):
            turns, refs = referred(entry)
            own = marks.references(mark)
            named = {*refs, *own[1], *marks.objected(mark)}
            # A concession names the proposal or the turn of the objection, or nothing at all.
            is_meant = said.turn in (*turns, *own[0]) or named & set(about) or not (turns or own[0] or named)
            if entry.by in sides and entry.number > said.turn and is_meant:
                return f"conceded by {self.name(entry.by)} in turn {entry.number}: {mark.value}".rstrip(": ")
        return ""

    def _settled(self, said: Statement, about: Sequence[str]) -> str:
        """That an objection's proposal was decided later, or that its author signed; "" for neither."""
        for d in self.decisions:
            if d.ref in about and d.turn >= said.turn and d.outcome in ("approved", "rejected"):
                then = f", and rejected by the person in turn {d.rejected_in}" if d.rejected_in else ""
                return f"{d.ref} was {d.made} in turn {d.turn}, {method(d.method)}{then}"
        for signer in self.agreed.signers if self.agreed else ():
            if signer.agent == said.by and signer.turn > said.turn:
                return f"{self.name(said.by)} signed {self.agreed.ref if self.agreed else ''} in turn {signer.turn}"
        return ""

    @property
    def dissent(self) -> tuple[Statement, ...]:
        """Who is against, or has a reservation about, what was decided; each agent's latest statement on it."""
        agreed, found = self.agreed, list[Statement]()
        for signer in agreed.signers if agreed else ():
            if signer.reservation:
                found.append(Statement("RESERVATION", signer.agent, signer.turn, signer.reservation))
        for ref in self._approved_refs:
            cast = (vote for d in self.decisions if d.ref == ref for vote in d.votes if vote.choice == "reject")
            votes = {vote.agent: vote.reason for vote in cast}
            for (agent, about), held in latest(self._stances).items():
                if about == ref and held.stance == "against":
                    entry = self.dialog.entry(str(held.turn))
                    mark = entry.mark("OBJECTION") if entry is not None else None
                    reason = votes.get(agent, mark.value if mark else "")
                    found.append(Statement("AGAINST", agent, held.turn, f"{ref}: {reason}" if reason else ref))
        if agreed is not None and not agreed.ref:  # a judge chose a position: the last ones of the others
            last = {p.by: p for p in self.dialog.state.table.proposals if p.by != agreed.by and not p.sha}
            found += (Statement("OTHER_SIDE", p.by, turn_number(p.entry), f"{p.ref}: {p.text}") for p in last.values())
        known = {said.by for said in found}
        reserved = {said.by: said for said in self._said("RESERVATION") if self._approved_refs}
        return (*found, *(said for who, said in reserved.items() if who not in known))

    @property
    def changes(self) -> list[Facts]:
        """Each stance that is not the first an agent took on a proposal."""
        return [
            {"agent": p.agent, "ref": p.ref, "before": before, "now": p.stance, "turn": p.turn}
            for p, before in changes(self._stances)
        ]

    # -- what each agent says -------------------------------------------------------------------------------------

    @property
    def views(self) -> tuple[View, ...]:
        """Each agent in its own words: the last turn that says something beside an agreed text."""
        names = {agent.id: agent.name for agent in self.dialog.header.agents}
        found = []
        for who in dict.fromkeys((*names, *self._speakers)):
            number, text = _last_of_substance([entry for entry in self._turns if entry.by == who])
            if text:
                found.append(View(who, names.get(who, who), number, *beginning(text)))
        return tuple(found)

    @property
    def positions(self) -> tuple[Statement, ...]:
        """Each agent's last position: its last plain proposal, and its last objection after that."""
        found: list[Statement] = []
        for agent in self._speakers:
            last: dict[str, Statement] = {}
            for said in self._said("PROPOSAL", "OBJECTION"):
                if said.by == agent:
                    last = {said.kind: said} if is_for(said) else {**last, said.kind: said}
            found += last.values()
        return tuple(found)

    @cached_property
    def crux(self) -> tuple[Statement, ...]:
        """The questions on which the disagreement turns."""
        return self._of_deadlocks("CRUX", lambda mark: mark.fields[0])

    @cached_property
    def experiments(self) -> tuple[Statement, ...]:
        """The cheapest experiments that would settle it."""
        return self._of_deadlocks("EXPERIMENT", lambda mark: " | ".join(mark.fields[1:]))

    def _of_deadlocks(self, kind: str, read: Callable[[Mark], str]) -> tuple[Statement, ...]:
        """What each agent's last deadlock names; what several say in the same words stands once, under all names."""
        called = ((entry, read(mark)) for entry, mark in self._marks("DEADLOCK") if marks.is_called(mark))
        last = {entry.by: Statement(kind, entry.by, entry.number, text) for entry, text in called if text}
        same: dict[str, Statement] = {}
        for said in last.values():
            key = " ".join(said.text.casefold().split()).rstrip(".")
            same[key] = replace(same[key], by=f"{same[key].by}, {said.by}") if key in same else said
        return tuple(same.values())

    # -- what is still open, and what comes next ------------------------------------------------------------------

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of a review."""
        return self.dialog.state.table.findings

    @property
    def score(self) -> Score | None:
        """The score of a review."""
        return build.score(self.dialog)

    @property
    def questions(self) -> tuple[Statement, ...]:
        """What the marks leave open, most pressing first."""
        answered: dict[int, set[str]] = {}  # by whom each turn was answered by number
        for entry in self._turns:
            for number in referred(entry)[0]:
                answered.setdefault(number, set()).add(entry.by)
        asked = ((questions.asker(self.dialog, q), q) for q in self.dialog.state.questions.open)
        return (
            *(Statement(questions.NAME, who, turn_number(q.entry), q.said) for who, q in asked),
            *(() if self._now else self.crux),
            *(said for said in self._said("QUESTION") if not answered.get(said.turn, set()) - {said.by}),
            *self._undecided(),
            *(
                Statement("FINDING", f.by, f.turn, f"finding {f.number} blocks: {f.issue}")
                for f in self.findings
                if f.blocks
            ),
        )

    def _undecided(self) -> Iterator[Statement]:
        """Proposals that nothing was decided about. What everybody signed, or a judge chose, settles them all."""
        table, agreed, stances = self.dialog.state.table, self._now, latest(self._stances)
        if agreed is not None and (agreed.method in ("mutual", "person", "by hand") or not agreed.ref):
            return
        done = self._decided_refs | set(table.vetoed)
        texts = {same_text(p.text).casefold() for p in table.proposals if p.ref in done and p.text.strip()}
        newest = next((p.ref for p in reversed(table.proposals) if p.sha), "")
        for p in table.proposals:
            position = stances.get((p.by, p.ref))
            is_gone = (position is not None and position.stance == "conceded") or (p.sha and p.ref != newest)
            if not (is_gone or p.ref in done or same_text(p.text).casefold() in texts):
                text = f"{p.ref}: {p.text}" if not p.sha else f"the text {p.ref}"
                yield Statement("PROPOSAL", p.by, turn_number(p.entry), text)

    @property
    def steps(self) -> list[Facts]:
        """Next steps, and where each was read: in the agreed text, else the last turns, else the experiments."""
        agreed = self._now
        if agreed is not None and (found := next_steps(agreed.text)):
            return [{"text": text, "where": "the agreed text"} for text in found]
        for entry in self._turns[: -LAST_TURNS - 1 : -1]:
            if found := next_steps(own_words(entry)):
                return [{"text": text, "where": f"turn {entry.number}, by {entry.by}"} for text in found]
        tried = self.experiments if agreed is None else ()
        return [{"text": one.text, "where": f"turn {one.turn}, by {one.by}: what would settle it"} for one in tried]

    # -- the figures ----------------------------------------------------------------------------------------------

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """The figures by their names in the plan's JSON (docs/results.md says what each means); None where unknown."""
        state, agents = self.dialog.state, [agent.id for agent in self.dialog.header.agents]
        made = Counter(contribution.agent for contribution in contributions(self.dialog))
        said = [sure for entry in self._turns for sure in marks.confidences(entry)]
        decided = {*self._decided_refs, *self._approved_refs}
        frames = (entry.frame for entry in self.dialog.entries if entry.frame is not None)
        seconds = [int(frame.ms) / 1000 for frame in frames if _MS.fullmatch(frame.ms)]
        return {
            "contributions_total": made.total(),
            "contributions_per_agent": {who: made[who] for who in dict.fromkeys((*agents, *made))},
            "rounds_completed": state.floor.rounds,
            "proposals_made": len({*self._by_ref, *decided}),
            "decisions_reached": len(decided),
            "conflicts_resolved": len(self.conflicts) - len(self.unsettled),
            "consensus_rate": self._consensus_rate(),
            "average_confidence": fmean(said) if said else None,
            **_account(total(state.spent)),
            "latency": {
                "total": sum(seconds) if seconds else None,
                "mean": fmean(seconds) if seconds else None,
                "longest": max(seconds, default=None),
            },
            "live": _live(self.dialog),
            "per_agent": {
                who: _account(state.spent[who]) for who in dict.fromkeys((*agents, *state.spent)) if who in state.spent
            },
        }

    def _consensus_rate(self) -> float | None:
        """Of the agents that may vote, the part that stands behind what was approved; None when nothing was."""
        able, agreed, shares = set(self.dialog.header.voters), self.agreed, []
        for ref in sorted(self._approved_refs):
            # Who signed it, voted for it, or whose latest position on it is a yes.
            behind = {signer.agent for signer in agreed.signers} if agreed is not None and agreed.ref == ref else set()
            made = [d for d in self.decisions if (d.ref, d.outcome) == (ref, "approved")]
            behind |= {vote.agent for d in made for vote in d.votes if vote.choice == "approve"}
            behind |= {who for (who, about), p in latest(self._stances).items() if (about, p.stance) == (ref, "for")}
            shares.append(len(behind & able) / len(able) if able else 0.0)
        return fmean(shares) if able and shares else None


def is_for(said: Statement) -> bool:
    """True for what an agent proposes, among its positions; the others are objections."""
    return said.kind == "PROPOSAL"


def _make_named(ref: str, text: str) -> str:
    return f"{ref}: {text}" if text and "\n" not in text.strip() else f"the text {ref}"


def _last_of_substance(turns: Sequence[Entry]) -> tuple[int, str]:
    """Number and text of the last turn that says something beside an agreed text; else of the last one at all."""
    texts = [(entry.number, own_words(entry)) for entry in turns]
    heads = [(number, before_summary(text).strip()) for number, text in texts]
    for found in (*reversed(heads), *reversed(texts)):
        if len(found[1].split()) >= SUBSTANCE:
            return found
    return max(reversed(texts), key=lambda found: len(found[1].split()), default=(0, ""))


def _live(dialog: Dialog) -> dict[str, dict[str, int]]:
    """Of each live session: the turns that it was knocked at for, how often in all, and how often it was silent."""
    found: dict[str, dict[str, int]] = {}
    for entry in dialog.entries:
        failed = next(iter(entry.failures), None) if entry.by == SYSTEM else None
        is_silent = failed is not None and failed[1] == "silent"
        knocks = int(entry.frame.knocks or 0) if entry.frame is not None else 0
        if knocks or is_silent:
            who = failed[0] if failed is not None else entry.by
            one = found.setdefault(who, {"turns": 0, "knocks": 0, "silent": 0})
            one["turns"] += failed is None
            one["knocks"] += knocks
            one["silent"] += is_silent
    return found


def _account(spent: Spent) -> dict[str, Any]:
    is_counted = bool(spent.entries) and not (spent.uncounted and not spent.tokens)
    is_priced = spent.entries > spent.unknown
    return {
        "tokens": {"in": spent.tokens_in if is_counted else None, "out": spent.tokens_out if is_counted else None},
        "cost": {"usd": spent.usd if is_priced else None, "exact": spent.exact and not spent.unknown},
    }

"""What the entries of a dialog come to: its state, composed of parts that each take in what is said by themselves."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce

from dialogd.protocol.build import Finding, Tasks
from dialogd.protocol.keys import Keys
from dialogd.protocol.marks import (
    ACCOUNTS,
    UNSIGNED,
    agreed,
    is_called,
    is_yes,
    prose,
    read_vote,
    round_of,
    same_text,
    stated,
    summary_of,
)
from dialogd.protocol.model import (
    ANY,
    OUTCOMES,
    SYSTEM,
    USER,
    Condition,
    Entry,
    Header,
    Limits,
    Mark,
    Outcome,
    Participant,
    Said,
    digest,
    turn_number,
)
from dialogd.protocol.text import dollars, is_blank

_COUNTED = re.compile(r"\bin turns? (\d{1,9})(?: and (\d{1,9}))?")  # the turns that a decision says it counts
_ROUNDING = 1 - 1e-9  # three thirds are a whole

# -- Who owes a turn --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Debt:
    """A turn that `agent` (or USER, the person, or ANY) owes, opened by the entry with id `re` and hash `chain`."""

    agent: str
    re: str
    chain: str = ""
    stalled: bool = False  # it was noted that no answer came in time
    is_ready: bool = False  # every answer of a sealed round is sealed: this one may be written

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes it this debt: an answer to it may be appended while a debt of the same key is open."""
        return self.agent, self.re, self.chain

    @property
    def timer(self) -> tuple[str, str, str]:
        """What its age is measured by: a sealed answer has a time of its own to follow."""
        return self.agent, self.re, f"{self.chain} ready" if self.is_ready else self.chain


@dataclass(frozen=True, slots=True)
class Seal:
    """That `agent` has its answer to the debt opened by `re` ready: the hash of nonce and text."""

    agent: str
    sha: str
    entry: str
    re: str


@dataclass(frozen=True, slots=True)
class Debts:
    """Who owes a turn, whose answer is sealed, and who gave none."""

    open: tuple[Debt, ...] = ()
    seals: tuple[Seal, ...] = ()
    failed: frozenset[str] = frozenset()  # agents whose last entry is an error
    missed: Mapping[str, int] = field(default_factory=dict)  # failures and stalls in succession

    def seal(self, agent: str) -> Seal | None:
        return next((seal for seal in self.seals if seal.agent == agent), None)

    def opened(self, said: Said, named: Iterable[str]) -> Debts:
        """With a debt to this entry of each that it names and that owes none."""
        owing = {debt.agent for debt in self.open}
        new = [Debt(who, said.id, said.chain) for who in named if who not in owing]
        return replace(self, open=(*self.open, *new)) if new else self

    def without(self, *agents: str) -> Debts:
        return replace(self, open=tuple(debt for debt in self.open if debt.agent not in agents))

    def answered(self, who: str, *closes: str) -> Debts:
        """After a turn of that agent, which closes the debts of these; without any it closes all."""
        left = self.without(*closes) if closes else replace(self, open=())
        missed = {one: times for one, times in self.missed.items() if one != who}
        return replace(left, failed=self.failed - {who}, missed=missed)

    def missing(self, who: str, *, is_stall: bool) -> Debts:
        """After a note that `who` failed or stalled; a failure of who was called stalled counts once with that."""
        is_known = not is_stall and any(debt.stalled for debt in self.open if debt.agent == who)
        failed = self.failed if is_stall else self.failed | {who}
        return replace(self, failed=failed, missed={**self.missed, who: self.missed.get(who, 0) + (not is_known)})

    def unsealed(self) -> Debts:
        """Without the seals of closed debts; once all that are open are sealed, the texts may follow."""
        owed = {(debt.agent, debt.re) for debt in self.open}
        seals = tuple(seal for seal in self.seals if (seal.agent, seal.re) in owed)
        ready = bool(seals) and owed <= {(seal.agent, seal.re) for seal in seals}
        return replace(self, seals=seals, open=tuple(replace(one, is_ready=one.is_ready or ready) for one in self.open))


# -- Who has spoken ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Floor:
    """Who has spoken, and who is to be heard. Counts begin anew when the dialog is opened again."""

    # A round is complete when all who can speak have had a turn in it, or were passed over, and none owes one.

    last: str = ""  # the agent that spoke, or was passed over, last
    rounds: int = 0  # complete ones
    is_quiet: bool = False  # in the last one nobody did more than pass
    spoke: frozenset[str] = frozenset()  # who has had a turn, or was passed over, in this round
    passed: frozenset[str] = frozenset()  # the same with nothing but a pass
    turns_of: Mapping[str, int] = field(default_factory=dict)
    spoke_at: Mapping[str, int] = field(default_factory=dict)  # each agent's last turn
    chance_at: Mapping[str, int] = field(default_factory=dict)  # the turn after which it last could speak
    position_at: Mapping[str, int] = field(default_factory=dict)  # its last turn that states a position
    queue: tuple[str, ...] = ()  # who was given, or asked for, the floor, where the order is free
    contributed: int = 0  # typed contributions

    def spoken(self, said: Said, *, made: int, named: Sequence[str]) -> Floor:
        """After an agent's turn with so many contributions, which hands the floor to `named`."""
        who = said.by
        return replace(
            self,
            turns_of={**self.turns_of, who: self.turns_of.get(who, 0) + 1},
            spoke_at={**self.spoke_at, who: said.number},
            position_at={**self.position_at, who: said.number} if stated(said) else self.position_at,
            contributed=self.contributed + made,
            queue=(*named, *(one for one in self.queue if one != who and one not in named)),
        )

    def heard(
        self, who: str, number: int, able: frozenset[str], owing: Collection[str], *, passes: bool = False
    ) -> Floor:
        """Once `who` has spoken, or was passed over, after turn `number`; `passes`: it did nothing but pass."""
        spoke, passed = self.spoke | {who}, self.passed | {who} if passes else self.passed - {who}
        floor = replace(self, last=who, chance_at={**self.chance_at, who: number})
        if not able or not able <= spoke or not able.isdisjoint(owing):
            return replace(floor, spoke=spoke, passed=passed, is_quiet=False)
        nobody: frozenset[str] = frozenset()
        is_quiet = able <= passed
        return replace(floor, rounds=self.rounds + 1, is_quiet=is_quiet, spoke=nobody, passed=nobody)

    def unqueued(self, *gone: str) -> Floor:
        return replace(self, queue=tuple(who for who in self.queue if who not in gone)) if self.queue else self

    def anew(self) -> Floor:
        """After a person's turn: the round that was under way begins again, and they no longer wait for the floor."""
        return replace(self.unqueued(USER), spoke=frozenset(), passed=frozenset(), is_quiet=False)

    def reopened(self) -> Floor:
        return replace(self, rounds=0, turns_of={}, position_at={}, contributed=0)


# -- The table: proposals, the text to be signed, what was decided, what stands in the way ----------------------------


@dataclass(frozen=True, slots=True)
class Proposal:
    """A numbered proposal. `sha` is the hash of the exact text, for consensus proposals."""

    ref: str
    by: str
    text: str
    entry: str
    sha: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """The consensus text on the table: who signed it in which turn; `replaced` counts earlier texts."""

    proposal: Proposal
    signers: tuple[tuple[str, int], ...]
    replaced: int = 0

    def signed_by(self, agent: str) -> bool:
        return any(who == agent for who, _ in self.signers)


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about `ref`: `outcome` is approved, rejected or undecided."""

    ref: str
    outcome: str
    method: str
    evidence: str
    reason: str
    entry: str

    @property
    def is_final(self) -> bool:
        """True when nobody decides it again: it was approved, or an agent that may has rejected it."""
        return self.outcome == "approved" or self.method in ("moderator", "decide", "review")


@dataclass(frozen=True, slots=True)
class Table:
    """Proposals, signatures, decisions and findings."""

    proposals: tuple[Proposal, ...] = ()
    standing: Standing | None = None
    decisions: tuple[Decision, ...] = ()
    deadlock: tuple[str, ...] = ()  # who called it a deadlock, since the last word against it
    red_team: str = ""  # the proposal that the next turn is to argue against
    is_tested: bool = False  # such a turn was taken
    judged: tuple[tuple[str, str], ...] = ()  # the judge's answers so far: position, reason
    findings: tuple[Finding, ...] = ()  # in file order, without those of withdrawn turns
    raised: int = 0  # how many findings there were: no number is given again
    top: int = 0  # the highest number that a proposal had, also one of a withdrawn turn: no other gets it

    @property
    def next_ref(self) -> str:
        """The number that the next proposal gets: P1, P2 …"""
        return f"P{self.top + 1}"

    @property
    def blocking(self) -> tuple[Finding, ...]:
        """The findings that keep approvals from counting."""
        return tuple(one for one in self.findings if one.blocks)

    @property
    def vetoed(self) -> tuple[str, ...]:
        return tuple([decision.ref for decision in self.decisions if decision.method == "veto"])

    def proposed(self, said: Said) -> Table:
        """With the entry's proposals that have a text; those typed by hand get the next free numbers."""
        table = self
        for mark in _proposals(said.marks):
            table = table.with_proposal(Proposal(mark.ref or table.next_ref, said.by, mark.value, said.id))
        return table

    def with_proposal(self, new: Proposal) -> Table:
        top = max(self.top, int(new.ref[1:])) if new.ref[1:].isdigit() else self.top
        return replace(self, proposals=(*self.proposals, new), top=top)

    def spoken(self, said: Said, *, may_vote: bool, made: int) -> Table:
        """After an agent's turn that made so many contributions."""
        table, standing = self.proposed(said), self.standing
        objects, calls = said.objects, any(map(is_called, said.marks))
        calls = calls and all(mark.fields[:1] != ("undecided",) for mark in said.decisions)  # the judge's
        if objects:
            standing = None
        claims = (
            said.by_hand
            and said.turn is not None
            and any(is_yes(mark) and mark.name in OUTCOMES for mark in said.marks)
        )
        text = _text(said, table, standing, claims=claims and not (objects or calls))
        if text is not None:
            signs = may_vote and not (said.put and UNSIGNED in said.put.fields)
            signers = ((said.by, said.number),) if signs else ()
            standing = Standing(text, signers, standing.replaced + 1 if standing is not None else 0)
            table = table.with_proposal(text)
        if standing is not None and may_vote and not (objects or calls or standing.signed_by(said.by)):
            signs = claims or any(standing.proposal.ref in agreed(mark) for mark in said.marks)
            standing = replace(standing, signers=(*standing.signers, *[(said.by, said.number)] * signs))
        asks = round_of(said.marks, "red team")
        return replace(
            table,
            standing=standing,
            deadlock=(*(who for who in self.deadlock if who != said.by), said.by) if calls else (),
            red_team=asks if asks is not None else "" if made else self.red_team,
            is_tested=self.is_tested or bool(self.red_team and made),
        )

    def reserved(self, said: Said) -> Table:
        """After a withdrawn turn: the numbers of its proposals are not given again."""
        then = replace(said, marks=said.written, withdrawn=None)
        table = (
            self.proposed(then)
            if said.by == USER
            else replace(self, standing=None).spoken(then, may_vote=False, made=0)
        )
        return replace(self, top=table.top)

    def cleared(self) -> Table:
        """After a person's turn: signatures, calls for a deadlock, and what was to be argued against or judged."""
        return replace(self, standing=None, deadlock=(), red_team="", judged=())

    def decided(self, mark: Mark, said: Said, withdrawn: frozenset[int]) -> Table:
        """With the decision of that mark: the first one on a proposal counts; none that rests on withdrawn turns."""
        outcome, method, evidence, reason = (*mark.fields, "", "", "", "")[:4]
        is_known = mark.ref and any(d.ref == mark.ref and d.is_final for d in self.decisions)
        if is_known or self.rests_on(withdrawn, mark.ref, evidence):
            return self
        decision = Decision(mark.ref, outcome, method, evidence, reason, said.id)
        is_settled = said.turn is not None and method != "decide"
        standing = self._without(mark.ref) if is_settled else self.standing
        return replace(self, decisions=(*self.decisions, decision), standing=standing)

    def rests_on(self, withdrawn: frozenset[int], ref: str, evidence: str) -> bool:
        """True when a decision on `ref` is nothing any more: its text is withdrawn, or a turn that it counts."""
        if not withdrawn:
            return False
        if ref and all(proposal.ref != ref for proposal in self.proposals):
            return True
        return any(int(number) in withdrawn for pair in _COUNTED.findall(evidence) for number in pair if number)

    def ruled_out(self, ref: str, reason: str, said: Said, after: int) -> Table:
        """With a veto: nothing that was, or is to be, decided on that proposal counts."""
        ruling = Decision(ref, "rejected", "veto", f"by the person after turn {after}", reason, said.id)
        return replace(
            self,
            decisions=(*(decision for decision in self.decisions if decision.ref != ref), ruling),
            standing=self._without(ref),
            red_team="" if re.search(rf"\b{ref}\b", self.red_team) else self.red_team,
        )

    def left(self, who: str, *, was_judge: bool) -> Table:
        """Without what an agent that has left stands for."""
        return replace(
            self,
            deadlock=tuple(one for one in self.deadlock if one != who),
            findings=tuple(replace(one, blocks=one.blocks and one.by != who) for one in self.findings),
            judged=() if was_judge else self.judged,
        )

    def _without(self, ref: str) -> Standing | None:
        return None if self.standing is not None and self.standing.proposal.ref == ref else self.standing


def _proposals(marks: Iterable[Mark]) -> list[Mark]:
    """Those of the marks that propose something; nothing without a text can be decided."""
    return [mark for mark in marks if mark.proposes and not is_blank(mark.value)]


def _text(said: Said, table: Table, standing: Standing | None, *, claims: bool) -> Proposal | None:
    """The consensus text that an agent's turn puts on the table; None where it puts none, or the same."""
    mark = said.put
    if mark is not None:
        body = prose(said.body) if said.by_hand else said.body
        text = summary_of(body) or body
        return None if is_blank(text) else Proposal(mark.ref, said.by, text, said.id, mark.fields[0])
    summary = summary_of(prose(said.body)) if claims else ""
    sha = digest(same_text(summary))
    if not summary or (standing is not None and sha == standing.proposal.sha):
        return None
    return Proposal(table.next_ref, said.by, summary, said.id, sha)


# -- Votes: absent is not a vote --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ballot:
    """One vote: `choice` is approve, reject or abstain, as it was cast in that turn."""

    agent: str
    choice: str
    reason: str
    turn: int
    weight: float = 1.0  # as it is shown; what is counted is the role's


@dataclass(frozen=True, slots=True)
class Poll:
    """An open vote on proposal `ref`, put in turn `turn`."""

    ref: str
    turn: int
    ballots: tuple[Ballot, ...] = ()

    def without(self, agent: str) -> Poll:
        return replace(self, ballots=tuple(ballot for ballot in self.ballots if ballot.agent != agent))

    def cast(self, ballot: Ballot) -> Poll:
        return replace(self, ballots=(*self.without(ballot.agent).ballots, ballot))


@dataclass(frozen=True, slots=True)
class Polls:
    """The open votes, and the proposals that wait for the phase in which they are put to the vote."""

    open: tuple[Poll, ...] = ()
    waiting: tuple[str, ...] = ()
    since: int = 0  # the turn in which the last one was put
    heard: frozenset[str] = frozenset()  # the voters that had a turn since, having seen it
    failed: int = 0  # votes that failed since the last decision that was not one

    def opened(self, turn: int) -> Polls:
        """With a poll for each proposal that waited: all voters are heard anew."""
        new = (Poll(ref, turn) for ref in self.waiting)
        return replace(self, open=(*self.open, *new), waiting=(), since=turn, heard=frozenset())

    def voted(self, said: Said) -> Polls:
        """After a turn of an agent that may vote: a vote stands until its agent votes anew."""
        # Who was asked before a proposal stood in the file has not seen it.
        votes = read_vote(said.marks)

        def after(poll: Poll) -> Poll:
            vote = votes.get(poll.ref) if said.asked_after >= poll.turn else None
            return poll.cast(Ballot(said.by, vote.choice, vote.reason, said.number)) if vote else poll

        heard = self.heard | {said.by} if said.asked_after >= self.since else self.heard
        return replace(self, open=tuple(map(after, self.open)), heard=heard)

    def closed(self, ref: str) -> Polls:
        waiting = tuple(one for one in self.waiting if one != ref)
        return replace(self, open=tuple(poll for poll in self.open if poll.ref != ref), waiting=waiting)

    def anew(self, turn: int) -> Polls:
        """After a person's turn: every vote is cast again."""
        return replace(self, open=tuple(Poll(poll.ref, turn) for poll in self.open), since=turn, heard=frozenset())

    def left(self, agent: str) -> Polls:
        return replace(self, open=tuple(poll.without(agent) for poll in self.open), heard=self.heard - {agent})

    def over(self, header: Header, absent: Collection[str]) -> tuple[str, ...]:
        """Those on which all voters who are there have voted; all, once they had a turn since the last one was put."""
        there = {*header.voters} - {*absent}
        cast = {poll.ref: {ballot.agent for ballot in poll.ballots} for poll in self.open if there}
        return tuple(ref for ref, voted in cast.items() if there <= self.heard or there <= voted)


@dataclass(frozen=True, slots=True)
class Tally:
    """How a poll stands: who said what, by name; `silent` did not vote, `absent` could not."""

    approve: tuple[str, ...]
    reject: tuple[str, ...]
    abstain: tuple[str, ...]
    silent: tuple[str, ...]
    absent: tuple[str, ...]
    is_quorate: bool
    is_enough: bool  # the share for it reaches the threshold
    weights: tuple[float, float, float] | None = None  # of approval, rejection, all voters; None: all the same

    @property
    def evidence(self) -> str:
        """The count in words: `2 for (A, B), no vote: C, absent: D`; where votes differ `; weight 4 to 1 of 6`."""
        cast = (("for", self.approve), ("against", self.reject), ("abstained", self.abstain))
        words = [f"{len(names)} {what} ({', '.join(names)})" for what, names in cast if names]
        left = (("no vote", self.silent), ("absent", self.absent))
        words += [f"{what}: {', '.join(names)}" for what, names in left if names]
        count = ", ".join(words) or "nobody voted"
        return count + ("; weight {:g} to {:g} of {:g}".format(*self.weights) if self.weights else "")

    @property
    def is_approved(self) -> bool:
        """True where it is won; nobody decides alone."""
        return self.is_quorate and self.is_enough and len(self.approve) >= 2


def tally(header: Header, poll: Poll, gone: Collection[str] = ()) -> Tally:
    """Count a poll as it stands, while those are `gone`."""
    rules, everybody = header.rules, header.voters
    choices: dict[str, list[str]] = {"approve": [], "reject": [], "abstain": []}
    for ballot in poll.ballots:
        choices[ballot.choice].append(ballot.agent)
    approve, reject, abstain = map(tuple, choices.values())
    cast = {*approve, *reject, *abstain}
    yes, no, whole = (rules.weight(who) for who in (approve, reject, everybody))
    return Tally(
        approve=approve,
        reject=reject,
        abstain=abstain,
        silent=tuple(who for who in everybody if who not in cast and who not in gone),
        absent=tuple(who for who in everybody if who not in cast and who in gone),
        is_quorate=rules.weight(cast) >= rules.quorum * whole * _ROUNDING,
        is_enough=yes + no > 0 and yes >= rules.threshold * (yes + no) * _ROUNDING,
        weights=(yes, no, whole) if len({rules.weight([who]) for who in everybody}) > 1 else None,
    )


def can_pass(header: Header, agents: Collection[str]) -> bool:
    """True when a vote can be won by these agents' votes alone: they reach the quorum, and are two."""
    rules, able = header.rules, header.voters
    here = [who for who in able if who in agents]
    return len(here) > 1 and rules.weight(here) >= rules.quorum * rules.weight(able) * _ROUNDING


# -- Questions to the person ------------------------------------------------------------------------------------------

NO_TEXT = "(see above)"  # in place of a question's text that stands in the body of its turn


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the person."""

    text: str
    by: str = ""  # the deadline, an ISO time with its offset
    default: str = ""
    asker: str = ""  # the agent; "" where a daemon asks
    entry: str = ""
    task: int = 0  # the number of the task of a build that waits for the answer; 0 for none

    @property
    def said(self) -> str:
        """Its text, or where it is to be found."""
        return self.text or NO_TEXT


@dataclass(frozen=True, slots=True)
class Questions:
    """What the person was asked, until they speak; `told` are those whose question met nobody at the table."""

    open: tuple[Question, ...] = ()
    told: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """What the person is asked, in words; "" while nothing is."""
        return " / ".join(question.said for question in self.open)

    @property
    def askers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(question.asker for question in self.open if question.asker))

    @property
    def asker(self) -> str:
        """The last one of several; "" where no agent asked."""
        return self.askers[-1] if self.askers else ""


@dataclass(frozen=True, slots=True)
class Escalation:
    """Who is to decide what the others could not (an agent, USER, or "" for nobody), why, and since which turn."""

    to: str = ""
    why: str = ""
    at: int = 0


@dataclass(frozen=True, slots=True)
class Hand:
    """What the person's hand has changed."""

    struck: frozenset[int] = frozenset()  # turns
    cast: tuple[Participant, ...] | None = None  # who takes part; None while that is whom the header names
    left: tuple[Participant, ...] = ()  # who does no longer
    is_away: bool = False  # nor does the person
    step: bool = False  # the turn comes back to the person each time
    keys: Keys | None = None  # who signs with what; None: the dialog is not shared


# -- The state, and the dialog ----------------------------------------------------------------------------------------


@dataclass
class State:
    """What the entries so far come to. Only `fold.py` makes one, and changes none that it has given away."""

    number: int = 0  # the last turn's
    notes: int = 0  # how many since
    base: int = 0  # turns before the last reopening: they count against no limit
    began: str = ""  # when the dialog, or its last reopening, began, as it stands in the file
    closing: str = ""  # why this is the last round
    outcome: Outcome | None = None
    paused: bool = False
    paused_by: str = ""  # whose session it was, in words; "" for the person
    approved: str = ""  # the note by which the person took the result
    rejected: str = ""  # the turn in which they rejected the result before this opening
    limits: Limits = field(default_factory=Limits)
    spent: Mapping[str, Spent] = field(default_factory=dict)  # by agent, since the beginning
    hand: Hand = field(default_factory=Hand)
    debts: Debts = field(default_factory=Debts)
    floor: Floor = field(default_factory=Floor)
    table: Table = field(default_factory=Table)
    polls: Polls = field(default_factory=Polls)
    escalation: Escalation = field(default_factory=Escalation)
    questions: Questions = field(default_factory=Questions)
    build: Tasks = field(default_factory=Tasks)

    @property
    def owing(self) -> tuple[str, ...]:
        """Who owes a turn, in order: agent ids, USER, ANY."""
        return tuple([debt.agent for debt in self.debts.open])

    def debt(self, agent: str) -> Debt | None:
        """The open debt of `agent` (its own, or one that anybody may pay), or None."""
        return next((debt for debt in self.debts.open if debt.agent in (agent, ANY)), None)

    @property
    def absent(self) -> frozenset[str]:
        """The agents that failed or stalled twice in succession: nobody waits for them."""
        return frozenset([who for who, times in self.debts.missed.items() if times > 1])

    @property
    def has_spoken(self) -> bool:
        """True once an agent has: a sealed answer is one."""
        return bool(self.floor.spoke_at or self.debts.seals)

    def is_asked_to_decide(self, agent: str) -> bool:
        """True when `agent` is to decide what the others could not, and was asked for its turn since."""
        debt = self.debt(agent)
        return self.escalation.to == agent and (turn_number(debt.re) if debt else 0) >= self.escalation.at

    @property
    def counted(self) -> int:
        """Turns that count against `max_turns`."""
        return self.number - self.base

    @property
    def turns_in_words(self) -> str:
        """How many turns there are, and of how many: `12 of 20`; `24, 3 of 20 since it was opened again`."""
        share = f"{self.counted} of {self.limits.max_turns}"
        return f"{self.number}, {share} {SINCE}" if self.base else share


SINCE = "since it was opened again"
REHEARSAL = "rehearsal"  # the model that frames name where no model was asked


@dataclass(frozen=True)
class Dialog:
    """A dialog file as read: header, entries and the state they fold to."""

    # `header` is as it counts now: with the agents that were invited, without those that left; `written` is the file's
    # own, None where nothing can differ. `size` is the length of the bytes read. `settled` is the offset up to which
    # nothing can change its reading by what is appended later; the rest is kept in `tail`, so that reading on is
    # linear.

    header: Header
    entries: tuple[Entry, ...]
    state: State
    size: int
    settled: int = 0
    settled_line: int = 1
    settled_entries: int = 0
    settled_state: State = field(default_factory=State)
    tail: bytes = b""
    written: Header | None = None
    settled_before: tuple[Entry, ...] | None = None  # the settled entries, where a strike after them changed them

    @property
    def header_as_written(self) -> Header:
        """The header as it stands in the file, whoever was invited or has left since."""
        return self.written or self.header

    @property
    def everybody(self) -> tuple[Participant, ...]:
        """The agents that take part, and those that did and have left."""
        return (*self.header.agents, *self.state.hand.left)

    @cached_property
    def id(self) -> str:
        """The header's `Dialog`, else twelve hex digits of the hash of header and first turn."""
        first = self.entries[0].body if self.entries else ""
        return self.header.dialog or digest(f"{self.header.text.strip()}\n{first.strip()}")[:12]

    @cached_property
    def is_rehearsed(self) -> bool:
        """True when an agent's lines in it were scripted: whatever it came to, nobody thought it."""
        return any(entry.frame is not None and entry.frame.model == REHEARSAL for entry in self.entries)

    @property
    def last(self) -> Entry | None:
        return self.entries[-1] if self.entries else None

    @property
    def turns(self) -> tuple[Entry, ...]:
        """Numbered, undamaged turns, in order."""
        return tuple([*self.latest_turns][::-1])

    @property
    def latest_turns(self) -> Iterator[Entry]:
        """The same, latest first, as far back as somebody looks: it costs no more in a long dialog."""
        return (e for e in reversed(self.entries) if e.is_turn and e.condition is not Condition.DAMAGED)

    def entry(self, entry_id: str) -> Entry | None:
        return next((e for e in reversed(self.entries) if e.id == entry_id), None)


# -- What was spent, what is left, and whether the next turn may still be bought --------------------------------------

# What may be used on a paid key in a dialog for which nobody set a budget.
DEFAULT_CAP = 5.0  # US dollars
DEFAULT_TOKENS = 1_000_000  # where the price is unknown

_COUNT = re.compile(r"~?([0-9]{1,12})")
_DOLLARS = re.compile(r"(~?)([0-9]{1,9}(?:\.[0-9]{1,12})?)")


@dataclass(frozen=True, slots=True)
class Spent:
    """What an agent has spent, as far as the frames say."""

    entries: int = 0
    micros: int = 0  # millionths of a US dollar: whole numbers, so that a sum depends on no order
    tokens_in: int = 0
    tokens_out: int = 0
    exact: bool = True  # no part was estimated
    unknown: int = 0  # entries whose price nobody knows
    uncounted: int = 0  # entries whose tokens nobody knows

    @property
    def usd(self) -> float:
        return self.micros / 1e6

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out

    def plus(self, other: Spent) -> Spent:
        sums = {key: getattr(self, key) + getattr(other, key) for key in Spent.__dataclass_fields__}
        return Spent(**sums | {"exact": self.exact and other.exact})


@dataclass(frozen=True, slots=True)
class Estimate:
    """What something costs, or may cost: US dollars, and tokens both ways; None where nobody knows or limits it."""

    usd: float | None = None
    tokens: int | None = None


def account(tokens_in: str, tokens_out: str, usd: str) -> Spent:
    """One entry's account, from its frame's `in`, `out` and `usd`; what makes no sense counts as not said."""
    read, written = (_COUNT.fullmatch(text) for text in (tokens_in, tokens_out))
    price = _DOLLARS.fullmatch(usd)
    return Spent(
        entries=1,
        micros=round(float(price[2]) * 1e6) if price else 0,
        tokens_in=int(read[1]) if read else 0,
        tokens_out=int(written[1]) if written else 0,
        exact=price is None or not price[1],
        unknown=int(price is None),
        uncounted=int(read is None or written is None),
    )


def payer(header: Header, entry: Entry) -> str | None:
    """Whose spending the entry's frame gives account of; None when it gives none."""
    frame = entry.frame
    if frame is None or entry.by == USER:
        return None
    if entry.is_turn:
        return entry.by if entry.by != SYSTEM else None
    if not (frame.calls or frame.tokens_in or frame.tokens_out or frame.usd):
        return None
    named = (mark.fields[0] for mark in entry.marks if mark.name in ACCOUNTS)
    return next((who for who in named if header.agent(who)), None)


def accounted(header: Header, spent: Mapping[str, Spent], entry: Entry) -> Mapping[str, Spent]:
    """What was spent, with what the entry's frame says; a hand-made entry costs nobody anything."""
    who, frame = payer(header, entry), entry.frame
    if who is None or frame is None:
        return spent
    return {**spent, who: spent.get(who, Spent()).plus(account(frame.tokens_in, frame.tokens_out, frame.usd))}


def total(spent: Mapping[str, Spent]) -> Spent:
    """What all agents have spent together."""
    return reduce(Spent.plus, spent.values(), Spent())


def allowance(state: State, me: str, cap: Estimate) -> Estimate:
    """What agent `me` may use for the turn it owes: its even share of what is left, or less by a `cap` of its own."""
    limits, gone, own = state.limits, total(state.spent), state.spent.get(me, Spent())

    def least(limit: int | None, spent: int, most: int | None, mine: int) -> int | None:
        shares = [] if limit is None else [max(limit - spent, 0) // max(_payers(state), 1)]
        return min([*shares, *([] if most is None else [max(most - mine, 0)])], default=None)

    micros = least(_micros(limits.budget), gone.micros, _micros(cap.usd), own.micros)
    return Estimate(None if micros is None else micros / 1e6, least(limits.tokens, gone.tokens, cap.tokens, own.tokens))


def reached(state: State, me: str, turn: Estimate, cap: Estimate) -> str:
    """Why agent `me` may not buy the `turn` it owes, in words for the end; "" when it may."""
    # It may not when the turn would pass its share of the dialog's budget, or the `cap` of its own, or when nothing is
    # left. A turn whose cost is unknown is bought while something is left.
    budget = Estimate(state.limits.budget, state.limits.tokens)
    for what, spent, limit, owing in (
        ("the budget", total(state.spent), budget, _payers(state)),
        (f"{me}'s own budget", state.spent.get(me, Spent()), cap, 1),
    ):
        for most, gone, needed, write, said in (
            (_micros(limit.usd), spent.micros, _micros(turn.usd), _in_dollars, f"{in_dollars(spent)} spent"),
            (limit.tokens, spent.tokens, turn.tokens, "{:,}".format, f"{in_tokens(spent)} used"),
        ):
            left = None if most is None else most - gone
            if most is None or left is None or not (left <= 0 or (needed or 0) * owing > left):
                continue
            among = f", and the {write(left)} left is for {owing} turns" if owing > 1 else ""
            more = f"; the next turn would take about {write(needed or 0)}{among}" if left > 0 else ""
            return f"{what} of {write(most)}{'' if write is _in_dollars else ' tokens'}: {said}{more}"
    return ""


def used(state: State) -> float | None:
    """How much of the dialog's budget is gone, 1.0 for all of it; of two amounts the fuller one, None without any."""
    limits, gone = state.limits, total(state.spent)
    parts = [gone.usd / limits.budget] if limits.budget else []
    return max([*parts, gone.tokens / limits.tokens] if limits.tokens else parts, default=None)


def budget_standing(state: State) -> str:
    """How the dialog's budget stands, in words: `$1.62 of $2.00, 90,000 of 200,000 tokens`; "" without one."""
    limits, gone = state.limits, total(state.spent)
    parts = [f"{in_dollars(gone)} of {dollars(limits.budget)}"] if limits.budget else []
    return ", ".join([*parts, f"{in_tokens(gone)} of {limits.tokens:,} tokens"] if limits.tokens else parts)


def in_dollars(spent: Spent) -> str:
    """What was spent, in words: `$0.34`, `about $0.34`, `at least $0.34`, `unknown`; `nothing` before any entry."""
    if not spent.entries:
        return "nothing"
    if spent.unknown == spent.entries:
        return "unknown"
    return f"{'at least ' if spent.unknown else ''}{'' if spent.exact else 'about '}{dollars(spent.usd)}"


def in_tokens(spent: Spent) -> str:
    """What was used, in words: `12,000`, `at least 12,000`, `unknown`; `0` before any entry."""
    if spent.uncounted and not spent.tokens:
        return "unknown"
    return f"{'at least ' if spent.uncounted else ''}{spent.tokens:,}"


def estimate(turns: int, agents: int, cost: Callable[[int, int], float], *, start: int, said: int, out: int) -> float:
    """What one of so many agents will spend at most, roughly, in a dialog of so many turns, in US dollars."""
    # `cost` prices a request by its tokens in and out. A prompt has `start` tokens before anybody has replied, and
    # `said` more for each turn since; a reply has `out`. What a cache saves is left out.
    own = math.ceil(max(turns - 1, 0) / max(agents, 1))
    looked_at = min(own, 1_000)  # in a longer dialog the rest counts like the last of these
    costs = [cost(start + said * min((turn + 1) * agents - 1, turns - 2), out) for turn in range(looked_at)]
    return sum(costs) + (costs[-1] * (own - looked_at) if costs else 0.0)


def _payers(state: State) -> int:
    return sum(who != USER for who in state.owing)


def _micros(usd: float | None) -> int | None:
    return None if usd is None else round(usd * 1e6)


def _in_dollars(micros: int) -> str:
    return dollars(micros / 1e6)

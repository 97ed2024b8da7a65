"""What was spent: one agent's account, the sum of what its entries' frames say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from dialogd.protocol.model import ANY, Agent, Condition, Entry, Header, Limits, digest
from dialogd.protocol.questions import Asking, Question

_COUNT = re.compile(r"~?([0-9]{1,12})")
_DOLLARS = re.compile(r"(~?)([0-9]{1,9}(?:\.[0-9]{1,12})?)")


@dataclass(frozen=True, slots=True)
class Spent:
    """What an agent has spent, as far as the frames say.

    `micros` are millionths of a US dollar: whole numbers, so that a sum depends on no order. `exact` is False once a
    part was estimated. `unknown` counts entries whose price nobody knows, `uncounted` those whose tokens nobody knows.
    """

    entries: int = 0
    micros: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    exact: bool = True
    unknown: int = 0
    uncounted: int = 0

    @property
    def usd(self) -> float:
        """The known part in US dollars."""
        return self.micros / 1e6

    @property
    def tokens(self) -> int:
        """The known part in tokens, both ways."""
        return self.tokens_in + self.tokens_out

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(
            entries=self.entries + other.entries,
            micros=self.micros + other.micros,
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            exact=self.exact and other.exact,
            unknown=self.unknown + other.unknown,
            uncounted=self.uncounted + other.uncounted,
        )


def account(tokens_in: str, tokens_out: str, usd: str) -> Spent:
    """One entry's account, from its frame's `in`, `out` and `usd`; what makes no sense counts as not said."""
    counts = [_COUNT.fullmatch(text) for text in (tokens_in, tokens_out)]
    price = _DOLLARS.fullmatch(usd)
    return Spent(
        entries=1,
        micros=round(float(price[2]) * 1e6) if price else 0,
        tokens_in=int(counts[0][1]) if counts[0] else 0,
        tokens_out=int(counts[1][1]) if counts[1] else 0,
        exact=price is None or not price[1],
        unknown=int(price is None),
        uncounted=int(None in counts),
    )


# -- What the entries of a dialog come to -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Debt:
    """A turn that `agent` owes, opened by the entry with id `re` and hash `chain`.

    `agent` may be USER (the person) or ANY. `stalled` is set once it was noted that no answer came in time, `is_ready`
    once every answer of a sealed round is sealed and this one may be written.
    """

    agent: str
    re: str
    chain: str = ""
    stalled: bool = False
    is_ready: bool = False

    @property
    def timer(self) -> tuple[str, str, str]:
        """What its age is measured by: a sealed answer has a time of its own to follow."""
        return self.agent, self.re, f"{self.chain} ready" if self.is_ready else self.chain

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes it this debt: an answer to it may be appended while a debt of the same key is open."""
        return self.agent, self.re, self.chain


@dataclass(frozen=True, slots=True)
class Proposal:
    """A numbered proposal. `sha` is the hash of the exact text, for consensus proposals."""

    ref: str
    by: str
    text: str
    entry: str
    sha: str = ""


@dataclass(frozen=True, slots=True)
class Ballot:
    """One vote: `choice` is approve, reject or abstain, as it was cast in that turn."""

    agent: str
    choice: str
    reason: str
    turn: int


@dataclass(frozen=True, slots=True)
class Poll:
    """An open vote on proposal `ref`, put in turn `turn`; `heard` are the voters that spoke since, having seen it."""

    ref: str
    turn: int
    ballots: tuple[Ballot, ...] = ()
    heard: frozenset[str] = frozenset()


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
        return self.outcome == "approved" or self.method in ("moderator", "decide")


@dataclass(frozen=True, slots=True)
class Seal:
    """That `agent` has its answer to the debt opened by `re` ready: the hash of nonce and text."""

    agent: str
    sha: str
    entry: str
    re: str


@dataclass(frozen=True, slots=True)
class Standing:
    """The consensus text on the table: who signed it in which turn; `replaced` counts earlier texts."""

    proposal: Proposal
    signers: tuple[tuple[str, int], ...]
    replaced: int = 0

    def signed_by(self, agent: str) -> bool:
        """True when `agent` has signed this very text."""
        return any(who == agent for who, _ in self.signers)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a dialog ended: the outcome mark's name, who wrote it, where, and why in words."""

    name: str
    by: str
    entry: str
    reason: str = ""

    @property
    def cause(self) -> str:
        """What stopped the dialog, `time`, `size`, `budget` or `error`; "" for the person, and for every other end."""
        cause = self.reason.partition(":")[0] if self.name == "STOPPED" else ""
        return cause if cause in ("time", "size", "budget", "error") else ""

    @property
    def why(self) -> str:
        """The reason without the cause before it."""
        return self.reason.removeprefix(self.cause).removeprefix(":").strip()

    @property
    def is_limit(self) -> bool:
        """True for an end by a limit."""
        return self.name == "MAX_TURNS_REACHED" or self.cause in ("time", "size", "budget")

    @property
    def failed(self) -> bool:
        """True when the dialog ended because no agent could go on."""
        return self.cause == "error"


@dataclass(frozen=True, slots=True)
class Hand:
    """What the person's hand has changed: see `hand.py`.

    `struck` are turns, `vetoed` proposals. `cast` is who takes part, None while that is whom the header names; `left`
    who does no longer; `is_away`: nor does the person. `top` is the highest number that a proposal of a struck turn
    had: no other gets it.
    """

    struck: frozenset[int] = frozenset()
    vetoed: tuple[str, ...] = ()
    cast: tuple[Agent, ...] | None = None
    left: tuple[Agent, ...] = ()
    is_away: bool = False
    step: bool = False
    top: int = 0


NO_HAND = Hand()


@dataclass(frozen=True, slots=True)
class State(Asking):
    """What the entries so far come to; the fold of `fold.py`."""

    number: int = 0  # the last turn's
    notes: int = 0  # since the last turn
    base: int = 0  # turns before the last reopening: they count against no limit
    debts: tuple[Debt, ...] = ()
    outcome: Outcome | None = None
    paused: bool = False
    limits: Limits = field(default_factory=Limits)
    proposals: tuple[Proposal, ...] = ()
    standing: Standing | None = None
    deadlock: tuple[str, ...] = ()  # who asked to call it a deadlock, since the last word against it
    questions: tuple[Question, ...] = ()  # what the person was asked, until they speak
    failed: frozenset[str] = frozenset()  # agents whose last entry is an error
    missed: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))  # failed or stalled, in succession
    told: frozenset[str] = frozenset()  # who asked, and was told that nobody is at the table
    last_agent: str = ""  # who of the agents spoke (or was passed over) last
    spoken: bool = False  # an agent has spoken since the last reopening, or ever
    # Rounds: one is complete when all who can speak have had a turn, or were passed over, and none owes one.
    rounds: int = 0  # complete ones since the last reopening
    spoke: frozenset[str] = frozenset()  # in this round
    passed: frozenset[str] = frozenset()  # in this round, with nothing but [PASS]
    is_quiet: bool = False  # the last complete round was one of passes
    turns_of: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))  # each agent's since reopening
    spoke_at: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))  # each agent's last turn
    chance_at: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))  # turn or passed over: after it
    queue: tuple[str, ...] = ()  # who was given, or asked for, the word, where the order is free
    # Ways to a decision.
    contributed: int = 0  # typed contributions since the last reopening
    in_round: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))  # each agent's in this round
    cited: Mapping[int, frozenset[int]] = field(default_factory=lambda: MappingProxyType({}))  # turn: turns on it
    polls: tuple[Poll, ...] = ()
    decisions: tuple[Decision, ...] = ()
    failed_votes: int = 0  # since the last decision that was not a failed vote
    escalated: str = ""  # who is to decide what the others could not: an agent, or USER
    escalation: str = ""  # why
    escalated_at: int = 0  # the turn in which it was
    red_team: str = ""  # the proposal that the next turn is to argue against
    is_tested: bool = False  # a red-team turn was taken
    seals: tuple[Seal, ...] = ()  # of open debts
    closing: str = ""  # why this is the last round
    judged: tuple[tuple[str, str], ...] = ()  # the judge's answers so far: position, reason
    blocking: tuple[tuple[int, str], ...] = ()  # findings that block an approval: number, who raised it
    findings: int = 0
    approved: str = ""  # the note by which the person took the result
    rejected: str = ""  # the turn in which they rejected the result before this opening
    began: str = ""  # when the dialog, or its last reopening, began, as it stands in the file
    spent: Mapping[str, Spent] = field(default_factory=lambda: MappingProxyType({}))  # by agent, since the beginning
    hand: Hand = NO_HAND

    def but(self, **changes: Any) -> State:
        """This state with these changes: what `dataclasses.replace` does, in a third of the time."""
        values = list(_VALUES(self))
        for name, value in changes.items():
            values[_PLACES[name]] = value
        return State(*values)

    def is_asked_to_decide(self, agent: str) -> bool:
        """True when `agent` is to decide what the others could not, and was asked for its turn since."""
        debt = self.debt(agent)
        asked = int(debt.re.split(".")[0] or 0) if debt else 0
        return self.escalated == agent and asked >= self.escalated_at

    def seal(self, agent: str) -> Seal | None:
        """The seal of that agent's answer to an open debt, or None."""
        return next((seal for seal in self.seals if seal.agent == agent), None)

    def debt(self, agent: str) -> Debt | None:
        """The open debt of `agent` (its own, or one that anybody may pay), or None."""
        return next((d for d in self.debts if d.agent in (agent, ANY)), None)

    @property
    def absent(self) -> frozenset[str]:
        """The agents that failed or stalled twice in succession: nobody waits for them."""
        return frozenset(who for who, times in self.missed.items() if times > 1)

    @property
    def struck(self) -> frozenset[int]:
        """The numbers of the turns that the person struck."""
        return self.hand.struck

    @property
    def vetoed(self) -> tuple[str, ...]:
        """The proposals that the person ruled out."""
        return self.hand.vetoed

    @property
    def step(self) -> bool:
        """True while the word comes back to the person after every turn."""
        return self.hand.step

    @property
    def owing(self) -> tuple[str, ...]:
        """Who owes a turn, in order: agent ids, USER, ANY."""
        return tuple(d.agent for d in self.debts)

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

_NAMES = tuple(f.name for f in fields(State))
_PLACES = {name: place for place, name in enumerate(_NAMES)}
_VALUES = attrgetter(*_NAMES)


@dataclass(frozen=True)
class Dialog:
    """A dialog file as read: header, entries and the state they fold to.

    `header` is as it counts now: with the agents that were invited, without those that left; `written` is the file's
    own, None where nothing can differ. `size` is the length of the bytes read. `settled` is the offset up to which
    nothing can change its reading by what is appended later; the rest is kept in `tail`, so that reading on is linear.
    """

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
    def everybody(self) -> tuple[Agent, ...]:
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
        """The last entry, or None in a file that is all header."""
        return self.entries[-1] if self.entries else None

    @property
    def turns(self) -> tuple[Entry, ...]:
        """Numbered, undamaged turns, in order."""
        return tuple(e for e in self.entries if e.is_turn and e.condition is not Condition.DAMAGED)

    @property
    def latest_turns(self) -> Iterator[Entry]:
        """The same, latest first, as far back as somebody looks: it costs no more in a long dialog."""
        return (e for e in reversed(self.entries) if e.is_turn and e.condition is not Condition.DAMAGED)

    def entry(self, entry_id: str) -> Entry | None:
        """The entry of that id (`7`, `7.2`), or None."""
        return next((e for e in reversed(self.entries) if e.id == entry_id), None)

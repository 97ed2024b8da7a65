"""What the entries of a dialog come to: its state, composed of parts that each take in what is said by themselves."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from dialogd.protocol.build import Tasks
from dialogd.protocol.marks import stated
from dialogd.protocol.model import ANY, USER, Condition, Entry, Header, Limits, Participant, Said, digest
from dialogd.protocol.polls import Polls
from dialogd.protocol.table import Table

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


# -- The parts of a state ---------------------------------------------------------------------------------------------


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
class Seal:
    """That `agent` has its answer to the debt opened by `re` ready: the hash of nonce and text."""

    agent: str
    sha: str
    entry: str
    re: str


@dataclass(frozen=True, slots=True)
class Debts:
    """Who owes a turn, whose answer is sealed, and who gave none.

    `failed` are agents whose last entry is an error; `missed` counts failures and stalls in succession.
    """

    open: tuple[Debt, ...] = ()
    seals: tuple[Seal, ...] = ()
    failed: frozenset[str] = frozenset()
    missed: Mapping[str, int] = field(default_factory=dict)

    def seal(self, agent: str) -> Seal | None:
        """The seal of that agent's answer to an open debt, or None."""
        return next((seal for seal in self.seals if seal.agent == agent), None)

    def opened(self, said: Said, named: Iterable[str]) -> Debts:
        """With a debt to this entry of each that it names and that owes none."""
        owing = {debt.agent for debt in self.open}
        new = [Debt(who, said.id, said.chain) for who in named if who not in owing]
        return replace(self, open=(*self.open, *new)) if new else self

    def without(self, *agents: str) -> Debts:
        """Without the debts of these."""
        return replace(self, open=tuple(debt for debt in self.open if debt.agent not in agents))

    def answered(self, who: str, *closes: str) -> Debts:
        """After a turn of that agent, which closes the debts of these; without any it closes all."""
        return replace(
            self,
            open=tuple([debt for debt in self.open if debt.agent not in closes]) if closes else (),
            failed=self.failed - {who},
            missed={one: times for one, times in self.missed.items() if one != who} if self.missed else self.missed,
        )

    def missing(self, who: str, *, is_stall: bool) -> Debts:
        """After a note that `who` failed or stalled; a failure of who was called stalled counts once with that."""
        is_known = not is_stall and any(debt.stalled for debt in self.open if debt.agent == who)
        failed = self.failed if is_stall else self.failed | {who}
        return replace(self, failed=failed, missed={**self.missed, who: self.missed.get(who, 0) + (not is_known)})

    def stalled(self, who: str) -> Debts:
        """With the debt of that agent marked as stalled."""
        return replace(
            self, open=tuple(replace(debt, stalled=True) if debt.agent == who else debt for debt in self.open)
        )

    def retried(self, who: str) -> Debts:
        """Without that agent's debt and the person's; one more failure, and it is absent again."""
        missed = {one: 1 if one == who else times for one, times in self.missed.items()}
        return replace(self.without(who, USER), failed=self.failed - {who}, missed=missed)

    def sealed(self, said: Said, sha: str) -> Debts:
        """With the seal that an agent's note makes."""
        others = (seal for seal in self.seals if seal.agent != said.by)
        return replace(self, seals=(*others, Seal(said.by, sha, said.id, said.re)))

    def unsealed(self) -> Debts:
        """Without the seals of closed debts; once all that are open are sealed, the texts may follow."""
        owed = {(debt.agent, debt.re) for debt in self.open}
        seals = tuple(seal for seal in self.seals if (seal.agent, seal.re) in owed)
        ready = bool(seals) and owed <= {(seal.agent, seal.re) for seal in seals}
        return replace(
            self, seals=seals, open=tuple(replace(debt, is_ready=True) for debt in self.open) if ready else self.open
        )


@dataclass(frozen=True, slots=True)
class Floor:
    """Who has spoken, and who is to be heard. Counts begin anew when the dialog is opened again.

    A round is complete when all who can speak have had a turn in it, or were passed over, and none owes one.

    last         the agent that spoke, or was passed over, last
    rounds       complete ones; `is_quiet`: in the last one nobody did more than pass
    spoke        who has had a turn, or was passed over, in this round; `passed`: with nothing but [PASS]
    turns_of     each agent's turns; `spoke_at`: its last turn; `chance_at`: the turn after which it last could speak
    position_at  each agent's last turn that states a position
    queue        who was given, or asked for, the floor, where the order is free
    contributed  typed contributions; `in_round`: each agent's in this round
    cited        by turn the turns that refer to it
    """

    last: str = ""
    rounds: int = 0
    is_quiet: bool = False
    spoke: frozenset[str] = frozenset()
    passed: frozenset[str] = frozenset()
    turns_of: Mapping[str, int] = field(default_factory=dict)
    spoke_at: Mapping[str, int] = field(default_factory=dict)
    chance_at: Mapping[str, int] = field(default_factory=dict)
    position_at: Mapping[str, int] = field(default_factory=dict)
    queue: tuple[str, ...] = ()
    contributed: int = 0
    in_round: Mapping[str, int] = field(default_factory=dict)
    cited: Mapping[int, frozenset[int]] = field(default_factory=dict)

    def spoken(
        self,
        said: Said,
        *,
        made: int,
        named: Sequence[str],
        cites: Iterable[int],
        able: frozenset[str],
        owing: Collection[str],
    ) -> Floor:
        """After an agent's turn with so many contributions, which hands the floor to `named` and refers to `cites`."""
        who = said.by
        cited = {turn: self.cited.get(turn, frozenset()) | {said.number} for turn in cites}
        changes: dict[str, Any] = {
            "last": who,
            "turns_of": {**self.turns_of, who: self.turns_of.get(who, 0) + 1},
            "spoke_at": {**self.spoke_at, who: said.number},
            "position_at": {**self.position_at, who: said.number} if stated(said) else self.position_at,
            "contributed": self.contributed + made,
            "in_round": {**self.in_round, who: self.in_round.get(who, 0) + made},
            "cited": {**self.cited, **cited} if cited else self.cited,
            "queue": (*named, *(one for one in self.queue if one != who and one not in named)),
        }
        passes = not made and said.mark("PASS") is not None
        return replace(self, **changes | self._chance(who, said.number, able, owing, passes=passes))

    def passed_over(self, who: str, number: int, able: frozenset[str], owing: Collection[str]) -> Floor:
        """Once `who` was passed over after turn `number`; `able` can speak, `owing` still owe a turn."""
        return replace(self, **self._chance(who, number, able, owing))

    def _chance(
        self, who: str, number: int, able: frozenset[str], owing: Collection[str], *, passes: bool = False
    ) -> dict[str, Any]:
        """What changes once `who` has had its chance in this round; `passes`: it did nothing but pass."""
        spoke, passed = self.spoke | {who}, self.passed | {who} if passes else self.passed - {who}
        chance_at = {**self.chance_at, who: number}
        if not able or not able <= spoke or not able.isdisjoint(owing):
            return {"chance_at": chance_at, "spoke": spoke, "passed": passed, "is_quiet": False}
        nobody: frozenset[str] = frozenset()
        ended = {"rounds": self.rounds + 1, "is_quiet": able <= passed, "in_round": {}}
        return {"chance_at": chance_at, "spoke": nobody, "passed": nobody, **ended}

    def unqueued(self, *gone: str) -> Floor:
        """With these no longer waiting for the floor."""
        return replace(self, queue=tuple(who for who in self.queue if who not in gone)) if self.queue else self

    def anew(self) -> Floor:
        """After a person's turn: the round that was under way begins again, and they no longer wait for the floor."""
        return replace(self.unqueued(USER), spoke=frozenset(), passed=frozenset(), is_quiet=False)

    def reopened(self) -> Floor:
        """After the dialog was opened again."""
        return replace(self, rounds=0, turns_of={}, position_at={}, contributed=0, in_round={})


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the person. `by` is an ISO time with its offset, "" without a deadline; `default` "" without one.

    `asker` is the agent, "" where a daemon asks; `entry` the id of the entry that asks.
    """

    text: str
    by: str = ""
    default: str = ""
    asker: str = ""
    entry: str = ""

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
    def by(self) -> str:
        """The first deadline of an open question, as an ISO time; "" without one."""
        return next((question.by for question in self.open if question.by), "")

    @property
    def default(self) -> str:
        """The first default of an open question; "" without one."""
        return next((question.default for question in self.open if question.default), "")

    @property
    def askers(self) -> tuple[str, ...]:
        """The agents that asked the person, in order."""
        return tuple(dict.fromkeys(question.asker for question in self.open if question.asker)) if self.open else ()

    @property
    def asker(self) -> str:
        """The agent that asked the person, the last one of several; "" where none did."""
        return self.askers[-1] if self.open and self.askers else ""


ENDS: Mapping[str, str] = MappingProxyType(
    {
        "CONSENSUS_REACHED": "everyone agreed to the same text",
        "DEADLOCK": "no agreement is in sight",
        "DECIDED": "the rule of this dialog has decided",
        "MAX_TURNS_REACHED": "the limit of turns was reached",
        "STOPPED": "the dialog was stopped",
        "time": "the time was over",
        "budget": "the budget was reached",
        "size": "the file is as large as it may get",
        "error": "an error broke it off",
    }
)  # in words, by the mark's name, or by the cause of a stop


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a dialog ended: the outcome mark's name, who wrote it, where, and why in words.

    `via` says whose session it was that ended the dialog by the person's hand.
    """

    name: str
    by: str
    entry: str
    reason: str = ""
    via: str = ""

    @property
    def cause(self) -> str:
        """What stopped the dialog, `time`, `size`, `budget` or `error`; "" for the person, and for every other end."""
        cause = self.reason.partition(":")[0] if self.name == "STOPPED" else ""
        return cause if cause in ("time", "size", "budget", "error") else ""

    @property
    def words(self) -> str:
        """How it ended, in a few words."""
        return ENDS.get(self.cause or self.name, self.name)

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
class Escalation:
    """Who is to decide what the others could not (an agent, USER, or "" for nobody), why, and since which turn."""

    to: str = ""
    why: str = ""
    at: int = 0


@dataclass(frozen=True, slots=True)
class Hand:
    """What the person's hand has changed: see `interventions.py`.

    `struck` are turns. `cast` is who takes part, None while that is whom the header names; `left` who does no longer;
    `is_away`: nor does the person. In `step` mode the turn comes back to the person each time.
    """

    struck: frozenset[int] = frozenset()
    cast: tuple[Participant, ...] | None = None
    left: tuple[Participant, ...] = ()
    is_away: bool = False
    step: bool = False


@dataclass
class State:
    """What the entries so far come to. Only `fold.py` makes one, and changes none that it has given away.

    number    the last turn's; `notes`: how many since
    base      turns before the last reopening: they count against no limit
    began     when the dialog, or its last reopening, began, as it stands in the file
    closing   why this is the last round
    approved  the note by which the person took the result
    rejected  the turn in which they rejected the result before this opening
    spent     by agent, since the beginning
    tasks     of a build
    """

    number: int = 0
    notes: int = 0
    base: int = 0
    began: str = ""
    closing: str = ""
    outcome: Outcome | None = None
    paused: bool = False
    paused_via: str = ""
    approved: str = ""
    rejected: str = ""
    limits: Limits = field(default_factory=Limits)
    spent: Mapping[str, Spent] = field(default_factory=dict)
    hand: Hand = field(default_factory=Hand)
    debts: Debts = field(default_factory=Debts)
    floor: Floor = field(default_factory=Floor)
    table: Table = field(default_factory=Table)
    polls: Polls = field(default_factory=Polls)
    escalation: Escalation = field(default_factory=Escalation)
    questions: Questions = field(default_factory=Questions)
    tasks: Tasks = field(default_factory=Tasks)

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
        missed = self.debts.missed
        return frozenset([who for who, times in missed.items() if times > 1]) if missed else frozenset()

    @property
    def has_spoken(self) -> bool:
        """True once an agent has spoken."""
        return bool(self.floor.spoke_at)

    def is_asked_to_decide(self, agent: str) -> bool:
        """True when `agent` is to decide what the others could not, and was asked for its turn since."""
        debt = self.debt(agent)
        asked = int(debt.re.split(".")[0] or 0) if debt else 0
        return self.escalation.to == agent and asked >= self.escalation.at

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
NO_TEXT = "(see above)"  # in place of a question's text that stands in the body of its turn


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

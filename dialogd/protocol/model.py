"""The nouns of a dialog: frozen values that answer only about themselves."""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from dialogd.protocol.rules import MODERATE, VOTE, Rules
from dialogd.protocol.text import Budget, read_budget, read_count, read_seconds, read_size

USER = "USER"
SYSTEM = "SYSTEM"
ANY = "ANY"
ALL = "ALL"
RESERVED = frozenset({USER, SYSTEM, ANY, ALL})
WHY_RESERVED = "USER, SYSTEM, ANY and ALL name no agent in a dialog"
OTHER = "OTHER"
UNKNOWN = "UNKNOWN"

# What a finished dialog may end with, in words; a turn or note that carries one of these and no TURN line is the end.
OUTCOMES: Mapping[str, str] = MappingProxyType(
    {
        "CONSENSUS_REACHED": "everyone agreed to the same text",
        "DEADLOCK": "no agreement is in sight",
        "DECIDED": "the rule of this dialog has decided",
        "MAX_TURNS_REACHED": "the limit of turns was reached",
        "STOPPED": "the dialog was stopped",
    }
)
AGREED = ("CONSENSUS_REACHED", "DECIDED")  # the outcomes with a result, which the person takes or rejects
# What stopped it, in words, by the first word of its reason; else it was the person.
CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "time": "the time was over",
        "budget": "the budget was reached",
        "size": "the file is as large as it may get",
        "error": "an error broke it off",
    }
)


def digest(text: str | bytes) -> str:
    """The hash by which entries and texts are named: 16 hex digits of SHA-256 (FIPS 180-4) over the UTF-8 bytes."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:16]


def turn_number(entry_id: str) -> int:
    """The number of the turn that an entry is, or stands after; 0 before any."""
    return (*place(entry_id), 0)[0]


def place(entry_id: str) -> tuple[int, ...]:
    """Where an entry stands among the others: of two the higher is the later one."""
    return tuple(int(part) for part in entry_id.split(".") if part)


def whose(via: str) -> str:
    """Whose session a frame's `via` means, in words; without one it was the person."""
    if not via:
        return "the person"
    named = {OTHER: "a session seated in another dialog", UNKNOWN: "an unknown program"}
    return named.get(via, f"{via}'s session")


@dataclass(frozen=True, slots=True)
class Mark:
    """One typed line: `[NAME]`, `[NAME: value]` or `[NAME P1: value]`."""

    name: str
    value: str = ""
    ref: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        """The value split at ` | `."""
        return tuple(part.strip() for part in self.value.split(" | "))

    @property
    def proposes(self) -> bool:
        """True for one that puts something up for a decision, under a number of its own."""
        return self.name == "PROPOSAL"

    @property
    def is_pass(self) -> bool:
        """True for one that has nothing to add: never a yes."""
        return self.name == "PASS"

    def __str__(self) -> str:
        head = f"{self.name} {self.ref}" if self.ref else self.name
        return f"[{head}: {self.value}]" if self.value else f"[{head}]"


@dataclass(frozen=True, slots=True)
class Participant:
    """A participant that owes turns."""

    id: str
    name: str
    url: str  # where its daemon listens (loopback)
    role: str = ""
    is_named: bool = True  # False where `name` is a default, because the header gives none

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class Limits:
    """Hard limits; None: no limit."""

    max_turns: int = 20
    timeout: float = 300.0  # seconds
    max_message: int = 10_000  # code points
    max_size: int = 1_000_000  # bytes
    budget: float | None = None  # US dollars that all agents together may spend in the whole dialog
    tokens: int | None = None  # the same in tokens
    max_rounds: int | None = None
    max_time: float | None = None  # seconds that it all may take
    timeouts: Mapping[str, float] = field(default_factory=dict, hash=False)  # by id, of agents with one of their own

    def timeout_of(self, agent: str) -> float:
        """The seconds that one reply of this agent may take."""
        return self.timeouts.get(agent, self.timeout)

    def changed(self, text: str) -> tuple[Limits, str]:
        """These limits after `max_turns 40` or `timeout B 30 minutes`; as they are, and why, where it means nothing."""
        name, _, value = text.strip().partition(" ")
        key, value = name.lower().rstrip(":=").replace("-", "_"), value.strip(" =:")
        if key not in READERS:
            return self, f"no limit is called {name!r}; there are: {', '.join(READERS)}"
        own = re.fullmatch(r"([A-Za-z][A-Za-z0-9_-]*)[ =:]+(\d.*)", value) if key == "timeout" else None
        try:
            if own:
                return replace(self, timeouts={**self.timeouts, own[1]: read_seconds(own[2])}), ""
            read = READERS[key](value)
        except ValueError as error:
            return self, f"{key}: {error}"
        if isinstance(read, tuple):  # a budget is named anew as a whole
            return replace(self, budget=read[0], tokens=read[1]), ""
        return replace(self, **{key: read}), ""  # type: ignore[arg-type]


READERS: Mapping[str, Callable[[str], float | Budget]] = {
    "max_turns": read_count,
    "timeout": read_seconds,
    "max_message": read_count,
    "max_size": read_size,
    "budget": read_budget,
    "max_rounds": read_count,
    "max_time": read_seconds,
}


@dataclass(frozen=True)
class Header:
    """What stands before the first entry. `warnings` names each value that was not understood."""

    title: str
    topic: str
    agents: tuple[Participant, ...]
    limits: Limits
    dialog: str = ""
    started: str = ""
    setup: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    rules: Rules = field(default_factory=Rules)
    warnings: tuple[str, ...] = ()
    text: str = ""

    def agent(self, agent_id: str) -> Participant | None:
        return next((a for a in self.agents if a.id == agent_id), None)

    @cached_property
    def speakers(self) -> tuple[str, ...]:
        """Agents that get turns, in the header's order: all but observers and the judge."""
        return tuple(a.id for a in self.agents if self.rules.role(a.id).speaks and a.id != self.judge)

    @cached_property
    def voters(self) -> tuple[str, ...]:
        """Agents whose vote or signature counts: those whose role may vote; never the judge."""
        return tuple(a.id for a in self.agents if self.rules.role(a.id).may(VOTE) and a.id != self.judge)

    @cached_property
    def moderator(self) -> str:
        """Who decides what the others could not: of those that may moderate the highest priority; "" without one."""
        able = [a.id for a in self.agents if self.rules.role(a.id).may(MODERATE) and a.id != self.judge]
        return max(able, key=lambda who: self.rules.role(who).priority, default="")

    @property
    def judge(self) -> str:
        """The agent that takes no part and judges at the end; "" without one."""
        return self.rules.judge if self.rules.verdict == "judge" else ""

    @cached_property
    def is_unattended(self) -> bool:
        """True where nobody is at the table: no turn is ever the person's, and nothing waits for them."""
        return self.setup.get("person") == "absent"


@dataclass(frozen=True, slots=True)
class Frame:
    """The comment line of a daemon-written entry."""

    # `calls`, token counts and `usd` are what the agent spent since its last entry, "" when unknown; a leading `~` says
    # that a part was estimated or is unknown.

    by: str
    at: str
    size: int  # with `sha` over what follows the line, to the last newline
    sha: str
    prev: str  # the `chain` of the entry before
    ms: str = ""  # the call's duration
    calls: str = ""
    nonce: str = ""  # opens the seal of a sealed answer
    model: str = ""
    tokens_in: str = ""
    tokens_out: str = ""
    usd: str = ""
    knocks: str = ""  # how often a live session was knocked at for it
    host: str = ""  # the program by which the person spoke, "" for none: `mcp`
    via: str = ""  # whose session it was that did what only the person's hand writes


class Condition(enum.Enum):
    """How an entry stands in the file."""

    SOUND = "sound"  # framed, and the recorded hash fits
    BY_HAND = "by hand"  # no frame; complete
    EDITED = "edited"  # framed, changed afterwards, still complete: read as it now stands
    DAMAGED = "damaged"  # framed, and cut or overwritten: counts for nothing
    UNFINISHED = "unfinished"  # hand-written text at the end of the file without a last word


@dataclass(frozen=True, slots=True)
class Said:
    """What somebody says in a turn (numbered) or a note (`number` 0), whether it stands in the file yet or not."""

    id: str  # names the entry for debts: `7`, or `7.2` for the second note after turn 7
    number: int
    by: str
    name: str
    body: str
    marks: tuple[Mark, ...]
    turn: tuple[str, ...] | None  # the ids that its TURN line names
    re: str = field(default="", kw_only=True)  # the debt that it answers
    chain: str = field(default="", kw_only=True)  # the recorded sha, the computed one of a hand-written entry
    by_hand: bool = field(default=False, kw_only=True)
    withdrawn: tuple[Mark, ...] | None = field(default=None, kw_only=True)  # the marks, where the person withdrew it
    frame: Frame | None = field(default=None, kw_only=True)

    @property
    def counts(self) -> bool:
        """False for a turn that the person withdrew: none of its marks counts any more."""
        return self.withdrawn is None

    @property
    def written(self) -> tuple[Mark, ...]:
        """The marks that stand in the file, whether they count or not."""
        return self.marks if self.withdrawn is None else self.withdrawn

    @property
    def is_turn(self) -> bool:
        return self.number > 0

    @property
    def at(self) -> str:
        """The wall time at which it was written, "" where no frame says so."""
        return self.frame.at if self.frame is not None else ""

    @property
    def via(self) -> str:
        """Whose session wrote this by the person's hand: a seat's id, OTHER, UNKNOWN; "" for the person, and agents."""
        return self.frame.via if self.frame is not None else ""

    @property
    def from_session(self) -> str:
        """The same in words: `B's session`."""
        return whose(self.via) if self.via else ""

    @property
    def is_persons(self) -> bool:
        """True for what the person wrote, and no session by their hand."""
        return self.by == USER and not self.via

    @property
    def asked_after(self) -> int:
        """The number of the turn after which this was asked for; of a turn typed by hand its own."""
        return self.number if self.by_hand else turn_number(self.re)

    def mark(self, name: str) -> Mark | None:
        """The first mark of that name, or None."""
        for mark in self.marks:
            if mark.name == name:
                return mark
        return None

    def all(self, name: str) -> tuple[Mark, ...]:
        return tuple([mark for mark in self.marks if mark.name == name]) if self.marks else ()

    @property
    def passes(self) -> bool:
        return any(mark.is_pass for mark in self.marks)

    @property
    def objects(self) -> bool:
        """True where it objects, which takes a text off the table."""
        return self.mark("OBJECTION") is not None

    @property
    def put(self) -> Mark | None:
        """The mark that puts its text on the table, to be signed by the others."""
        return self.mark("CONSENSUS_PROPOSED")

    @property
    def decisions(self) -> tuple[Mark, ...]:
        return self.all("DECISION")

    @property
    def is_on_tasks(self) -> bool:
        """True where it says what became of a task of a build, or of its gate."""
        return any(mark.name in ("TASK", "GATE") for mark in self.marks)

    @property
    def asks(self) -> bool:
        """True where it asks the person."""
        return self.mark("QUESTION_FOR_USER") is not None

    @property
    def rejects(self) -> bool:
        """True for the turn by which the person rejects a result, whether it was withdrawn since or not."""
        return self.is_turn and self.by == USER and any(mark.name == "REJECTED" for mark in self.written)

    @property
    def failures(self) -> tuple[tuple[str, str, str], ...]:
        """The agents that it says failed: each with the cause, and what mends it."""
        return tuple([(*mark.fields, "", "")[:3] for mark in self.all("AGENT_ERROR")])  # type: ignore[misc]

    @property
    def silent(self) -> tuple[str, ...]:
        """The agents that it says gave no answer in time."""
        return tuple([mark.fields[0] for mark in self.all("STALLED")])

    @property
    def ending(self) -> Mark | None:
        """The outcome mark by which it ends the dialog: one that no TURN line follows."""
        # A daemon writes it last; what an agent only called for (`[DEADLOCK]`) may stand above it.
        ends = [mark for mark in self.written if mark.name in OUTCOMES] if self.turn is None else ()
        return (ends[0] if self.by_hand else ends[-1]) if ends else None


@dataclass(frozen=True, slots=True)
class Entry(Said):
    """One turn or note of the file, from byte `start` to `end`."""

    condition: Condition
    start: int
    end: int
    line: int  # from 1
    linked: bool = True  # its `prev` names the entry before it
    notice: str = ""  # what could not be understood in it, in words


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a dialog ended: the outcome mark's name, who wrote it, where, and why in words."""

    name: str
    by: str
    entry: str
    reason: str = ""
    via: str = ""  # whose session ended the dialog by the person's hand

    @classmethod
    def of(cls, said: Said, name: str, reason: str) -> Outcome:
        return cls(name, said.by, said.id, reason, said.via)

    @property
    def from_session(self) -> str:
        """The same in words, "" for the person."""
        return whose(self.via) if self.via else ""

    @property
    def cause(self) -> str:
        """What stopped the dialog, `time`, `size`, `budget` or `error`; "" for the person, and for every other end."""
        cause = self.reason.partition(":")[0] if self.name == "STOPPED" else ""
        return cause if cause in CAUSES else ""

    @property
    def words(self) -> str:
        return CAUSES.get(self.cause) or OUTCOMES[self.name]

    @property
    def why(self) -> str:
        """The reason without the cause before it."""
        return self.reason.removeprefix(self.cause).removeprefix(":").strip()

    @property
    def is_consensus(self) -> bool:
        """True where everybody signed the same text, or somebody typed that they did."""
        return self.name == "CONSENSUS_REACHED"

    @property
    def is_agreed(self) -> bool:
        """True where there is a result, which the person takes or rejects."""
        return self.name in AGREED

    @property
    def is_deadlock(self) -> bool:
        return self.name == "DEADLOCK"

    @property
    def is_complete(self) -> bool:
        """True where its rule came to an end, with a decision or without one: what a build ends with."""
        return self.name in ("DECIDED", "DEADLOCK")

    @property
    def is_limit(self) -> bool:
        return self.name == "MAX_TURNS_REACHED" or self.cause in ("time", "size", "budget")

    @property
    def failed(self) -> bool:
        return self.cause == "error"

    @property
    def kind(self) -> str:
        """What kind of end it is: agreed, deadlock, turns, time, size, budget, error, or stopped."""
        kinds = {"agreed": self.is_agreed, "deadlock": self.is_deadlock, "turns": self.is_limit, "stopped": True}
        return self.cause or next(kind for kind, is_it in kinds.items() if is_it)


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry to be written: everything but its place in the file. `number` 0 makes a note."""

    by: str
    name: str
    number: int = 0
    body: str = ""  # clean text, not yet escaped
    marks: tuple[Mark, ...] = ()
    turn: tuple[str, ...] | None = None
    attributes: tuple[tuple[str, str], ...] = ()  # the frame's: re, at, ms …; empty ones are left out


@dataclass(frozen=True, slots=True)
class Addition:
    """What to append: an entry, and what was too long for it: `overflow` goes to `attachment`, beside the dialog."""

    draft: Draft
    attachment: str = ""
    overflow: str = ""


def system_note(
    at: str, marks: Iterable[Mark] = (), body: str = "", turn: tuple[str, ...] | None = None, **more: str
) -> Draft:
    """A note of a daemon's own, written at wall time `at`; `more` goes to its frame."""
    return Draft(SYSTEM, "System", 0, body, tuple(marks), turn, (("at", at), *more.items()))

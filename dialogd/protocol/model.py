"""The nouns of a dialog: frozen values that answer only about themselves."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from dialogd.protocol.hashing import digest
from dialogd.protocol.spent import Spent

USER = "USER"
SYSTEM = "SYSTEM"
ANY = "ANY"
ALL = "ALL"
RESERVED = frozenset({USER, SYSTEM, ANY, ALL})

# What a finished dialog may end with; a turn or note that carries one of these and no TURN line is the end.
OUTCOMES = (
    "CONSENSUS_REACHED",
    "DEADLOCK",
    "MAX_TURNS_REACHED",
    "BUDGET_REACHED",
    "MAX_SIZE_REACHED",
    "STOPPED",
)


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

    def __str__(self) -> str:
        head = f"{self.name} {self.ref}" if self.ref else self.name
        return f"[{head}: {self.value}]" if self.value else f"[{head}]"


@dataclass(frozen=True, slots=True)
class Agent:
    """A participant that owes turns. `url` is where its daemon listens (loopback).

    `is_named` is False where `name` is a default, because the header gives none.
    """

    id: str
    name: str
    url: str
    role: str = ""
    is_named: bool = True


@dataclass(frozen=True, slots=True)
class Limits:
    """Hard limits; sizes in bytes (`max_size`) and code points (`max_message`), `timeout` in seconds.

    `budget` (US dollars) and `tokens` are what all agents together may spend in the whole dialog; None: no limit.
    """

    max_turns: int = 20
    timeout: float = 300.0
    max_message: int = 10_000
    max_size: int = 1_000_000
    budget: float | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before the first entry. `warnings` names each value that was not understood."""

    title: str
    topic: str
    agents: tuple[Agent, ...]
    limits: Limits
    dialog: str = ""
    started: str = ""
    setup: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    warnings: tuple[str, ...] = ()
    text: str = ""

    def agent(self, agent_id: str) -> Agent | None:
        """The agent of that id, or None."""
        return next((a for a in self.agents if a.id == agent_id), None)


@dataclass(frozen=True, slots=True)
class Frame:
    """The comment line of a daemon-written entry; `size` and `sha` cover what follows it to the last newline.

    `re` names the debt it answers (empty for a note), `prev` the `chain` of the entry before. `ms` is the
    call's duration; `calls`, token counts and `usd` are what the agent spent since its last entry, "" when unknown;
    a leading `~` says that a part was estimated or is unknown.
    """

    by: str
    at: str
    size: int
    sha: str
    prev: str
    re: str = ""
    ms: str = ""
    calls: str = ""
    model: str = ""
    tokens_in: str = ""
    tokens_out: str = ""
    usd: str = ""


class Condition(enum.Enum):
    """How an entry stands in the file."""

    SOUND = "sound"  # framed, and the recorded hash fits
    BY_HAND = "by hand"  # no frame; complete
    EDITED = "edited"  # framed, changed afterwards, still complete: read as it now stands
    DAMAGED = "damaged"  # framed, and cut or overwritten: counts for nothing
    UNFINISHED = "unfinished"  # hand-written text at the end of the file without a last word


@dataclass(frozen=True, slots=True)
class Entry:
    """One turn (numbered) or note (`number` 0) of the file.

    `turn` holds the ids its TURN line names, None without one. `chain` is the recorded sha of a framed
    entry, the computed one of a hand-written entry. `id` names the entry for debts: `7`, or `7.2` for the
    second note after turn 7. `start` and `end` are byte offsets; `line` is 1-based.
    """

    id: str
    number: int
    by: str
    name: str
    body: str
    marks: tuple[Mark, ...]
    turn: tuple[str, ...] | None
    condition: Condition
    chain: str
    start: int
    end: int
    line: int
    frame: Frame | None = None
    linked: bool = True  # its `prev` names the entry before it
    notice: str = ""  # what could not be understood in it, in words

    @property
    def is_turn(self) -> bool:
        """True for a numbered turn, False for a note."""
        return self.number > 0

    def mark(self, name: str) -> Mark | None:
        """The first mark of that name, or None."""
        return next((m for m in self.marks if m.name == name), None)

    def all(self, name: str) -> tuple[Mark, ...]:
        """Every mark of that name."""
        return tuple(m for m in self.marks if m.name == name)


@dataclass(frozen=True, slots=True)
class Debt:
    """A turn that `agent` owes, opened by the entry with id `re` and hash `chain`.

    `agent` may be USER (the person) or ANY. `stalled` is set once it was noted that no answer came in time.
    """

    agent: str
    re: str
    chain: str = ""
    stalled: bool = False

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
    def failed(self) -> bool:
        """True when the dialog ended because no agent could go on."""
        return self.name == "STOPPED" and self.reason.startswith("error")


@dataclass(frozen=True, slots=True)
class State:
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
    question: str = ""  # what an agent asked the person, until the person speaks
    asker: str = ""
    failed: frozenset[str] = frozenset()  # agents whose last entry is an error
    last_agent: str = ""  # who of the agents spoke (or was passed over) last
    spoken: bool = False  # an agent has spoken since the last reopening, or ever
    spent: Mapping[str, Spent] = field(default_factory=lambda: MappingProxyType({}))  # by agent, since the beginning

    def debt(self, agent: str) -> Debt | None:
        """The open debt of `agent` (its own, or one that anybody may pay), or None."""
        return next((d for d in self.debts if d.agent in (agent, ANY)), None)

    @property
    def owing(self) -> tuple[str, ...]:
        """Who owes a turn, in order: agent ids, USER, ANY."""
        return tuple(d.agent for d in self.debts)

    @property
    def counted(self) -> int:
        """Turns that count against `max_turns`."""
        return self.number - self.base


@dataclass(frozen=True)
class Dialog:
    """A dialog file as read: header, entries and the state they fold to.

    `size` is the length of the bytes read. `settled` is the offset up to which nothing can change its
    reading by what is appended later; the rest is kept in `tail`, so that reading on is linear.
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

    @cached_property
    def id(self) -> str:
        """The header's `Dialog`, else twelve hex digits of the hash of header and first turn."""
        first = self.entries[0].body if self.entries else ""
        return self.header.dialog or digest(f"{self.header.text.strip()}\n{first.strip()}")[:12]

    @property
    def last(self) -> Entry | None:
        """The last entry, or None in a file that is all header."""
        return self.entries[-1] if self.entries else None

    @property
    def turns(self) -> tuple[Entry, ...]:
        """Numbered, undamaged turns, in order."""
        return tuple(e for e in self.entries if e.is_turn and e.condition is not Condition.DAMAGED)

    def entry(self, entry_id: str) -> Entry | None:
        """The entry of that id (`7`, `7.2`), or None."""
        return next((e for e in reversed(self.entries) if e.id == entry_id), None)

"""The nouns of a dialog: frozen values that answer only about themselves."""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Callable, Mapping
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
OTHER = "OTHER"
UNKNOWN = "UNKNOWN"
WHY_RESERVED = "USER, SYSTEM, ANY and ALL name no agent in a dialog"


def whose(via: str) -> str:
    """Whose session a frame's `via` means: a seat's id, one with a seat in another dialog, or nobody knows whose.

    Without one it was the person.
    """
    if not via:
        return "the person"
    named = {OTHER: "a session seated in another dialog", UNKNOWN: "an unknown program"}
    return named.get(via, f"{via}'s session")


# What a finished dialog may end with; a turn or note that carries one of these and no TURN line is the end.
AGREED = ("CONSENSUS_REACHED", "DECIDED")  # the outcomes with a result, which the person takes or rejects
OUTCOMES = ("CONSENSUS_REACHED", "DEADLOCK", "DECIDED", "MAX_TURNS_REACHED", "STOPPED")


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
class Participant:
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

    `budget` (US dollars) and `tokens` are what all agents together may spend in the whole dialog, `max_rounds` how
    many rounds there are, `max_time` (seconds) how long it all may take; None: no limit. `timeouts` holds, by id, those
    of agents that have one of their own, as a live session has.
    """

    max_turns: int = 20
    timeout: float = 300.0
    max_message: int = 10_000
    max_size: int = 1_000_000
    budget: float | None = None
    tokens: int | None = None
    max_rounds: int | None = None
    max_time: float | None = None
    timeouts: Mapping[str, float] = field(default_factory=dict, hash=False)

    def timeout_of(self, agent: str) -> float:
        """The seconds that one reply of this agent may take."""
        return self.timeouts.get(agent, self.timeout)

    def changed(self, text: str) -> tuple[Limits, str]:
        """These limits after `max_turns 40` or `timeout B 30 minutes`.

        Unchanged, with the reason in words, where that means nothing.
        """
        name, _, value = text.strip().partition(" ")
        key = name.lower().rstrip(":=").replace("-", "_")
        reader = _READERS.get(key)
        if reader is None:
            return self, f"no limit is called {name!r}; there are: {', '.join(_READERS)}"
        agent, value = "", value.strip(" =:")
        if key == "timeout" and (own := _OWN_TIMEOUT.fullmatch(value)):
            agent, value = own[1], own[2]
        try:
            read = reader(value)
        except ValueError as error:
            return self, f"{key}: {error}"
        if agent:
            return replace(self, timeouts={**self.timeouts, agent: read}), ""  # type: ignore[dict-item]
        if isinstance(read, tuple):  # a budget is named anew as a whole
            return replace(self, budget=read[0], tokens=read[1]), ""
        return replace(self, **{key: read}), ""  # type: ignore[arg-type]


_OWN_TIMEOUT = re.compile(r"([A-Za-z][A-Za-z0-9_-]*)[ =:]+(\d.*)")  # `B 30 minutes`
_READERS: Mapping[str, Callable[[str], float | Budget]] = {
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
        """The agent of that id, or None."""
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
    """The comment line of a daemon-written entry; `size` and `sha` cover what follows it to the last newline.

    `prev` names the `chain` of the entry before. `ms` is the call's duration; `nonce` opens the seal of a sealed
    answer; `calls`, token counts and `usd` are what the agent spent since its last entry, "" when unknown; a leading
    `~` says that a part was estimated or is unknown. `knocks` is how often a live session was knocked at for it. `host`
    is the program by which the person spoke, "" for none: `mcp`; `via` says whose session it was that did what only the
    person's hand writes.
    """

    by: str
    at: str
    size: int
    sha: str
    prev: str
    ms: str = ""
    calls: str = ""
    nonce: str = ""
    model: str = ""
    tokens_in: str = ""
    tokens_out: str = ""
    usd: str = ""
    knocks: str = ""
    host: str = ""
    via: str = ""


class Condition(enum.Enum):
    """How an entry stands in the file."""

    SOUND = "sound"  # framed, and the recorded hash fits
    BY_HAND = "by hand"  # no frame; complete
    EDITED = "edited"  # framed, changed afterwards, still complete: read as it now stands
    DAMAGED = "damaged"  # framed, and cut or overwritten: counts for nothing
    UNFINISHED = "unfinished"  # hand-written text at the end of the file without a last word


@dataclass(frozen=True, slots=True)
class Said:
    """What somebody says in a turn (numbered) or a note (`number` 0), whether it stands in the file yet or not.

    `turn` holds the ids its TURN line names, None without one. `id` names the entry for debts: `7`, or `7.2` for the
    second note after turn 7; `re` names the debt that it answers. `chain` is the recorded sha of a framed entry, the
    computed one of a hand-written entry. A turn that the person struck has no marks any more, but `withdrawn` ones.
    """

    id: str
    number: int
    by: str
    name: str
    body: str
    marks: tuple[Mark, ...]
    turn: tuple[str, ...] | None
    re: str = field(default="", kw_only=True)
    chain: str = field(default="", kw_only=True)
    by_hand: bool = field(default=False, kw_only=True)
    is_struck: bool = field(default=False, kw_only=True)
    withdrawn: tuple[Mark, ...] = field(default=(), kw_only=True)

    @property
    def written(self) -> tuple[Mark, ...]:
        """The marks that stand in the file, whether they count or not."""
        return self.withdrawn if self.is_struck else self.marks

    @property
    def is_turn(self) -> bool:
        """True for a numbered turn, False for a note."""
        return self.number > 0

    @property
    def at(self) -> str:
        """The wall time at which it was written, "" where nothing says so."""
        return ""

    @property
    def via(self) -> str:
        """Whose session wrote this by the person's hand: a seat's id, OTHER, UNKNOWN; "" for the person, and agents."""
        return ""

    @property
    def from_session(self) -> str:
        """Whose session wrote this by the person's hand, in words (`B's session`); "" for the person, and agents."""
        return whose(self.via) if self.via else ""

    @property
    def is_persons(self) -> bool:
        """True for what the person wrote, and no session by their hand."""
        return self.by == USER and not self.via

    @property
    def asked_after(self) -> int:
        """The number of the turn after which this was asked for; of a turn typed by hand its own."""
        return self.number if self.by_hand else int(self.re.split(".")[0] or 0)

    def mark(self, name: str) -> Mark | None:
        """The first mark of that name, or None."""
        for mark in self.marks:
            if mark.name == name:
                return mark
        return None

    def all(self, name: str) -> tuple[Mark, ...]:
        """Every mark of that name."""
        return tuple([m for m in self.marks if m.name == name]) if self.marks else ()

    @property
    def ending(self) -> Mark | None:
        """The outcome mark by which it ends the dialog: one that no TURN line follows.

        A daemon writes it last; what an agent only called for (`[DEADLOCK]`) may stand above it.
        """
        if self.turn is not None:
            return None
        ends = [mark for mark in self.written if mark.name in OUTCOMES]
        return (ends[0] if self.by_hand else ends[-1]) if ends else None


@dataclass(frozen=True, slots=True)
class Entry(Said):
    """One turn or note of the file. `start` and `end` are byte offsets; `line` is 1-based.

    `linked` says that its `prev` names the entry before it, `notice` what could not be understood in it, in words.
    """

    condition: Condition
    start: int
    end: int
    line: int
    frame: Frame | None = None
    linked: bool = True
    notice: str = ""

    @property
    def at(self) -> str:
        """The wall time at which it was written, "" where no frame says so."""
        return self.frame.at if self.frame is not None else ""

    @property
    def via(self) -> str:
        """Whose session wrote this by the person's hand, "" where no frame says so."""
        return self.frame.via if self.frame is not None else ""


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry to be written: everything but its place in the file.

    `number` 0 makes a note. `body` is clean text, not yet escaped; `attributes` are the frame's: re, at, ms,
    model, in, out, usd (empty ones are left out).
    """

    by: str
    name: str
    number: int = 0
    body: str = ""
    marks: tuple[Mark, ...] = ()
    turn: tuple[str, ...] | None = None
    attributes: tuple[tuple[str, str], ...] = ()


# -- The hash by which entries and texts are named --------------------------------------------------------------------


def digest(text: str | bytes) -> str:
    """Sixteen hex digits of SHA-256 (FIPS 180-4) over the UTF-8 bytes."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:16]


def turn_number(entry_id: str) -> int:
    """The number of the turn that an entry is, or stands after; 0 before any."""
    head = entry_id.partition(".")[0]
    return int(head) if head.isdigit() else 0

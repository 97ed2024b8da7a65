"""Kinds of contribution, roles, and the rules of a dialog's Setup."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from reprlib import repr as shown
from types import MappingProxyType
from typing import Any, TypeVar

from dialogd.protocol import units

NAME = re.compile(r"[A-Z][A-Z_]{1,39}")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of contribution. `fields` name what stands between its bars, in order.

    numbers   what its daemon-given numbers begin with (`P1`), "" where it has none
    counts    True when it counts as a contribution on a board
    clears    True when it clears all signatures of the current text
    blocks    first fields, in lower case, with which it keeps approvals from counting until it is resolved
    levels    first fields that it may have at all; () for any
    resolves  True when its first field is the number of what it resolves
    """

    meaning: str
    fields: tuple[str, ...] = ()
    numbers: str = ""
    counts: bool = True
    clears: bool = False
    blocks: frozenset[str] = frozenset()
    levels: tuple[str, ...] = ()
    resolves: bool = False


CONTRIBUTIONS: Mapping[str, Kind] = MappingProxyType(
    {
        "PROPOSAL": Kind("something to decide; the daemon writes its number", numbers="P"),
        "OBJECTION": Kind("a reason against; clears the signatures", counts=False, clears=True),
        "CONCEDE": Kind("gives up a point, with the reason", counts=False),
        "QUESTION": Kind("asked of the other agents"),
        "EVIDENCE": Kind("a fact, with its source"),
        "IDEA": Kind("a thought, not yet a proposal"),
        "CRITIQUE": Kind("what is weak in something said"),
        "SYNTHESIS": Kind("several points brought together"),
        "RESERVATION": Kind("the strongest objection that a signer still has; the signature stands", counts=False),
        "RE": Kind("what this answers: turns and proposals", counts=False),
        "CONFIDENCE": Kind("how sure the agent is, 0 to 1", counts=False),
    }
)

SEVERITIES = ("blocking", "blocker", "critical", "high", "major", "medium", "moderate", "minor", "low", "nit", "info")
REVIEW: Mapping[str, Kind] = MappingProxyType(
    {
        "FINDING": Kind(
            "one finding; severity `blocking` keeps approvals from counting until you resolve it",
            ("severity", "category", "file", "line", "issue", "suggestion"),
            numbers="F",
            blocks=frozenset({"blocking", "blocker", "critical"}),
            levels=SEVERITIES,
        ),
        "RESOLVED": Kind("your own finding of that number blocks no longer", ("number", "how"), resolves=True),
        "SCORE": Kind(
            "your score, each part from 0 to 100",
            ("code quality N", "test coverage N", "security N", "documentation N", "acceptance criteria N"),
        ),
    }
)
BUILD: Mapping[str, Kind] = MappingProxyType(
    {
        **{name: kind for name, kind in REVIEW.items() if name != "SCORE"},
        "SCORE": Kind("your points, each part up to the most it may have", ("code quality N", "…"), counts=False),
        "TASK_PROPOSED": Kind(
            "one task; the daemon counts them: 001, 002 …",
            ("description", "criterion; criterion", "after 1, 2", "2 h"),
        ),
        "IMPROVEMENT": Kind(
            "one improvement, once all tasks are done",
            ("category", "priority", "impact", "effort hours", "rationale", "files", "criterion; criterion"),
        ),
    }
)


# -- Roles ------------------------------------------------------------------------------------------------------------

READ_ALL = "READ_ALL"  # its prompt holds the whole dialog
READ_OWN = "READ_OWN"  # its prompt holds the question, its own turns and decisions
POST = "POST"
CRITIQUE = "CRITIQUE"
PROPOSE = "PROPOSE"
VOTE = "VOTE"
MODERATE = "MODERATE"
DECIDE = "DECIDE"
PERMISSIONS = (READ_ALL, READ_OWN, POST, CRITIQUE, PROPOSE, VOTE, MODERATE, DECIDE)

# Who was given no role may take part like anybody; moderating and deciding are given, never assumed.
USUAL = frozenset({READ_ALL, POST, CRITIQUE, PROPOSE, VOTE})

STANDARD: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "analyst": frozenset({READ_ALL, POST, PROPOSE}),
        "critic": frozenset({READ_ALL, CRITIQUE, VOTE}),
        "synthesizer": frozenset({READ_ALL, POST, DECIDE}),
        "moderator": frozenset({READ_ALL, MODERATE, DECIDE}),
        "observer": frozenset({READ_ALL}),
    }
)

PERSONALITIES: Mapping[str, str] = MappingProxyType(
    {
        "pragmatic engineer": "asks what the smallest thing is that works, what it costs to run, and how to undo it",
        "perfectionist": "accepts no gap: names each case that is not covered, and what would cover it",
        "security expert": "asks who could abuse it, what they would gain, and which check would stop them",
        "user advocate": "speaks for whoever uses it: what they see, what confuses them, what they lose when it fails",
        "devil's advocate": "argues against what the others lean to, as strongly as honesty allows, until it holds",
    }
)

# What a mark needs: one of these permissions. A mark that is not here is free to every agent whose turn it is.
NEEDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "IDEA": frozenset({POST, PROPOSE}),
        "SYNTHESIS": frozenset({POST, MODERATE, DECIDE}),
        "CRITIQUE": frozenset({CRITIQUE}),
        "OBJECTION": frozenset({CRITIQUE, VOTE}),
        "PROPOSAL": frozenset({PROPOSE}),
        "VOTE": frozenset({VOTE}),
        "DECIDE": frozenset({DECIDE, MODERATE}),
    }
)
OWN_KINDS = (POST, PROPOSE, CRITIQUE, MODERATE)  # one of these for a dialog's own kinds of contribution


@dataclass(frozen=True, slots=True)
class Role:
    """What one agent is in a dialog. `weight` is that of its vote, `priority` its place in a round: higher first."""

    name: str = ""
    permissions: frozenset[str] = USUAL
    weight: float = 1.0
    priority: int = 0
    specialization: str = ""
    personality: str = ""
    responsibilities: tuple[str, ...] = ()

    def may(self, *permissions: str) -> bool:
        """True when the role has one of these permissions."""
        return not self.permissions.isdisjoint(permissions)

    def may_use(self, mark: str) -> bool:
        """True when the role may use marks of that name."""
        needed = NEEDS.get(mark)
        return needed is None or self.may(*needed)

    @property
    def speaks(self) -> bool:
        """True when it gets turns: it may do more than read."""
        return self.may(POST, CRITIQUE, PROPOSE, VOTE, MODERATE, DECIDE)

    @property
    def reads_all(self) -> bool:
        """True when its prompt includes what the others say."""
        return READ_ALL in self.permissions or READ_OWN not in self.permissions


# -- The rules that a dialog's `## Setup` asks for, beyond those of a plain pair; read tolerantly ---------------------

T = TypeVar("T")

ORDERS = ("alternate", "round-robin", "priority", "free", "parallel")
VERDICTS = ("mutual", "vote", "moderator", "judge")
BUILDS = "build"  # the order and the verdict of a build: what is due follows from its tasks
WINNERS = ("most", "first")
THRESHOLDS = ("convergence_threshold", "escalation_threshold", "auto_propose_threshold")
PARALLEL_ROUNDS = 5
CONVERGENCE_THRESHOLD = 0.6


@dataclass(frozen=True, slots=True)
class Board:
    """Limits of a blackboard dialog: contributions are counted, and an end needs a minimum of them.

    `contribution_timeout` is in seconds per turn; None leaves the header's `Timeout`.
    """

    allow_references: bool = True
    require_confidence: bool = False
    max_contributions_per_round: int = 10
    round_limit: int = 10
    blackboard_capacity: int = 100
    minimum_contributions: int = 3
    terminate_on_consensus: bool = True
    terminate_on_rounds: bool = True
    contribution_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of the work: `rounds` long; the last one lasts until the end. `votes`: it begins the voting."""

    name: str
    description: str = ""
    rounds: int = 1
    votes: bool = False


CRITERIA: Mapping[str, int] = MappingProxyType(
    {"code_quality": 25, "test_coverage": 20, "security": 20, "documentation": 10, "acceptance_criteria": 25}
)


@dataclass(frozen=True)
class Build:
    """The rules of a build: `moderator` plans and reviews, `lead` carries out; both are agents' ids.

    repo          the repository; `branch` is the person's, `base` the commit from which the work starts
    source        the id of the dialog whose decision it carries out, "" for none
    gate          the command that tests a tree, "" for none; `gate_timeout` in seconds
    iterations    attempts that a task has before the person decides; `cycles` of improvement after the tasks
    pass_score    points that a review needs; `criteria` are the most that each part may have, together 100
    """

    moderator: str
    lead: str
    repo: str = ""
    branch: str = ""
    base: str = ""
    gate: str = ""
    gate_timeout: float = 900.0
    iterations: int = 3
    pass_score: int = 80
    cycles: int = 1
    criteria: Mapping[str, int] = field(default_factory=lambda: CRITERIA)
    source: str = ""


@dataclass(frozen=True)
class Rules:
    """How a dialog is decided. The defaults are those of a plain pair.

    `threshold` and `quorum` are shares of the votes' weight, `winner` chooses between proposals that are approved at
    once. After `escalation_threshold` failed votes the moderator decides, else the person; `auto_propose_threshold`
    contributions to a board that refer to the same one make it a proposal. `roles` are those of agents by id, `judge`
    is an agent's id, `kinds` are this dialog's own kinds of contribution with their meaning. `board` is None where
    nothing is counted, `build` where no tasks are carried out.
    """

    template: str = ""
    order: str = "alternate"
    verdict: str = "mutual"
    sealed: bool = False
    red_team: bool = False
    objections: bool = False
    review: bool = False
    judge: str = ""
    threshold: float = 2 / 3
    quorum: float = 2 / 3
    winner: str = "most"
    convergence_threshold: float = CONVERGENCE_THRESHOLD
    escalation_threshold: int = 3
    auto_propose_threshold: int = 3
    guidelines: str = ""
    board: Board | None = None
    build: Build | None = None
    roles: Mapping[str, Role] = field(default_factory=lambda: MappingProxyType({}))
    phases: tuple[Phase, ...] = ()
    kinds: Mapping[str, Kind] = field(default_factory=lambda: MappingProxyType({}))
    success: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()

    def role(self, agent: str) -> Role:
        """The role of that agent; by default it may take part, but neither moderate nor decide."""
        return self.roles.get(agent, _NO_ROLE)

    def weight(self, agents: Iterable[str]) -> float:
        """The total weight of these agents' votes."""
        return sum(self.role(agent).weight for agent in agents)

    def phase(self, rounds: int) -> int:
        """The index of the phase after so many complete rounds; -1 where there are no phases."""
        for index, phase in enumerate(self.phases):
            rounds -= phase.rounds
            if rounds < 0:
                return index
        return len(self.phases) - 1

    @property
    def voting(self) -> int:
        """The index of the phase in which the voting begins; -1 where it begins at once."""
        return next((index for index, phase in enumerate(self.phases) if phase.votes), -1)

    @property
    def has_findings(self) -> bool:
        """True where findings may keep an approval from counting."""
        return self.review or self.build is not None

    @property
    def known_kinds(self) -> Mapping[str, Kind]:
        """The kinds of contribution that these rules bring with them."""
        return BUILD if self.build is not None else REVIEW if self.review else {}

    @cached_property
    def is_plain(self) -> bool:
        """True for a dialog without rules beyond those of a plain pair; thresholds and sealed answers don't count."""
        return self == replace(_PLAIN, sealed=self.sealed, **{key: getattr(self, key) for key in THRESHOLDS})


_NO_ROLE = Role()
_PLAIN = Rules()


class _Reader:
    """Reads values of a Setup, and notes those that make no sense."""

    def __init__(self, warnings: list[str]) -> None:
        self.warnings = warnings

    def take(self, table: Mapping[str, Any], key: str, read: Callable[[Any], T], default: T, where: str = "") -> T:
        if key not in table:
            return default
        try:
            return read(table[key])
        except (ValueError, TypeError, OverflowError) as error:
            self.warnings.append(f"header: Setup: {where}{key}: {error}; using the default")
            return default

    def table(self, setup: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
        """A table of the Setup; None without one."""
        value = setup.get(key)
        if value is None or isinstance(value, Mapping):
            return value
        self.warnings.append(f"header: Setup: {key} is no table; ignoring it")
        return None


def read_rules(setup: Mapping[str, Any], agents: Sequence[str], warnings: list[str]) -> Rules:
    """The rules of a Setup for these agents' ids; never fails, `warnings` gets what cannot be read."""
    if not setup:
        return _PLAIN
    reader = _Reader(warnings)
    ids = {agent.casefold(): agent for agent in agents}
    board, build = reader.table(setup, "board"), _build(reader, reader.table(setup, "build"), ids)
    is_review = reader.take(setup, "review", _flag, default=False)
    return Rules(
        template=reader.take(setup, "template", _text, ""),
        order=BUILDS if build else reader.take(setup, "order", _one_of(ORDERS), "alternate"),
        verdict=BUILDS if build else reader.take(setup, "verdict", _one_of(VERDICTS), "mutual"),
        sealed=reader.take(setup, "sealed", _flag, default=False),
        red_team=reader.take(setup, "red_team", _flag, default=False),
        objections=reader.take(setup, "objections", _flag, default=False),
        review=is_review,
        judge=reader.take(setup, "judge", _one_of(ids), ""),
        threshold=reader.take(setup, "threshold", _up_to(1), 2 / 3),
        quorum=reader.take(setup, "quorum", _up_to(1), 2 / 3),
        winner=reader.take(setup, "winner", _one_of(WINNERS), "most"),
        convergence_threshold=reader.take(setup, "convergence_threshold", _up_to(1), CONVERGENCE_THRESHOLD),
        escalation_threshold=reader.take(setup, "escalation_threshold", _from(1), 3),
        auto_propose_threshold=reader.take(setup, "auto_propose_threshold", _from(0), 3),
        guidelines=reader.take(setup, "guidelines", _text, ""),
        board=None if board is None else _board(reader, board),
        build=build,
        roles=MappingProxyType(_roles(reader, setup, ids)),
        phases=reader.take(setup, "phases", _phases, ()),
        kinds=MappingProxyType(_kinds(reader, setup, BUILD if build else REVIEW if is_review else {})),
        success=reader.take(setup, "success", _texts, ()),
        errors=reader.take(setup, "errors", _texts, ()),
    )


def _board(reader: _Reader, table: Mapping[str, Any]) -> Board:
    usual = Board()
    values: dict[str, Any] = {}
    for key in Board.__dataclass_fields__:
        default = getattr(usual, key)
        read = _flag if isinstance(default, bool) else _from(0) if isinstance(default, int) else _seconds
        values[key] = reader.take(table, key, read, default, "board.")
    return Board(**values)


def _build(reader: _Reader, table: Mapping[str, Any] | None, ids: Mapping[str, str]) -> Build | None:
    """The rules of a build; None where there is none, or where it does not name two agents."""
    if table is None:
        return None
    who = {key: reader.take(table, key, _one_of(ids), "", "build.") for key in ("moderator", "lead")}
    if not all(who.values()) or who["moderator"] == who["lead"]:
        reader.warnings.append("header: Setup: build names no two agents as moderator and lead; ignoring it")
        return None
    words = {key: reader.take(table, key, _text, "", "build.") for key in ("repo", "branch", "base", "gate", "source")}
    criteria = reader.take(table, "criteria", _criteria, CRITERIA, "build.")
    return Build(
        **who,
        **words,
        gate_timeout=float(reader.take(table, "gate_timeout", _from(1), 900, "build.")),
        iterations=reader.take(table, "iterations", _from(1), 3, "build."),
        pass_score=reader.take(table, "pass_score", _from(0), 80, "build."),
        cycles=reader.take(table, "cycles", _from(0), 1, "build."),
        criteria=criteria,
    )


def _criteria(value: Any) -> Mapping[str, int]:
    if not isinstance(value, Mapping) or not value:
        raise TypeError("criteria are a table of names and points")
    points = {"_".join(re.findall("[a-z]+", name.casefold())): _integer(most) for name, most in value.items()}
    if sum(points.values()) != 100 or not all(most > 0 for most in points.values()) or "" in points:
        raise ValueError("the points of all criteria are not 100 together")
    return MappingProxyType(points)


def roles_of(given: Mapping[str, Any], ids: Sequence[str]) -> tuple[dict[str, Role], list[str]]:
    """The roles that a table as in a Setup gives to these agents, and what in it makes no sense."""
    warnings: list[str] = []
    found = _roles(_Reader(warnings), {"roles": given}, {one.casefold(): one for one in ids})
    known = {"role", *(one.name for one in fields(Role))} - {"name"}
    strange = [f"{who}.{key}" for who, one in given.items() if isinstance(one, Mapping) for key in one.keys() - known]
    return found, [*warnings, *(f"roles.{one} is no part of a role ({', '.join(sorted(known))})" for one in strange)]


def _roles(reader: _Reader, setup: Mapping[str, Any], ids: Mapping[str, str]) -> dict[str, Role]:
    roles: dict[str, Role] = {}
    for name, table in (reader.table(setup, "roles") or {}).items():
        agent = ids.get(name.casefold())
        if agent is None:
            reader.warnings.append(f"header: Setup: roles.{name} is no agent of this dialog; ignoring it")
        elif isinstance(table, str):
            roles[agent] = _role(reader, {"role": table}, f"roles.{name}.")
        elif isinstance(table, Mapping):
            roles[agent] = _role(reader, table, f"roles.{name}.")
        else:
            reader.warnings.append(f"header: Setup: roles.{name} is neither a role's name nor a table; ignoring it")
    return roles


def _role(reader: _Reader, table: Mapping[str, Any], where: str) -> Role:
    name = reader.take(table, "role", _text, "", where)
    return Role(
        name=name,
        permissions=reader.take(table, "permissions", _permissions, STANDARD.get(name.casefold(), USUAL), where),
        weight=reader.take(table, "weight", _up_to(1000), 1.0, where),
        priority=reader.take(table, "priority", _integer, 0, where),
        specialization=reader.take(table, "specialization", _text, "", where),
        personality=reader.take(table, "personality", _text, "", where),
        responsibilities=reader.take(table, "responsibilities", _texts, (), where),
    )


def _kinds(reader: _Reader, setup: Mapping[str, Any], known: Mapping[str, Kind]) -> dict[str, Kind]:
    kinds = dict(known)
    for name, meaning in (reader.table(setup, "messages") or {}).items():
        if NAME.fullmatch(name) and isinstance(meaning, str):
            kinds[name] = replace(known.get(name, Kind("")), meaning=" ".join(meaning.split()))
        else:
            reader.warnings.append(f"header: Setup: messages.{name} is no NAME with a meaning; ignoring it")
    return kinds


def _one_of(known: Sequence[str] | Mapping[str, str]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        text = _text(value).casefold()
        if text not in known:
            names = known.values() if isinstance(known, Mapping) else known
            raise ValueError(f"{shown(value)} is none of {', '.join(names)}")
        return known[text] if isinstance(known, Mapping) else text

    return read


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} is no text")
    return " ".join(value.split())


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{shown(value)} is no list of texts")
    return tuple(map(_text, value))


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{shown(value)} is neither true nor false")
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{shown(value)} is no whole number")
    return value


def _from(least: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if not least <= _integer(value) <= 1_000_000:
            raise ValueError(f"{shown(value)} is not from {least} to 1,000,000")
        return _integer(value)

    return read


def _seconds(value: Any) -> float | None:
    return units.seconds(str(value) if not isinstance(value, int) else f"{value} seconds")


def _up_to(most: int) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{shown(value)} is no number")
        if not 0 < value <= most:
            raise ValueError(f"{shown(value)} is not above 0 and up to {most}")
        return float(value)

    return read


def _permissions(value: Any) -> frozenset[str]:
    names = frozenset(text.upper() for text in _texts(value))
    strange = sorted(names - set(PERMISSIONS))
    if strange:
        raise ValueError(f"{', '.join(strange)} is none of {', '.join(PERMISSIONS)}")
    return names


def _phases(value: Any) -> tuple[Phase, ...]:
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise TypeError("phases are tables with a name: [[phases]]")
    phases = []
    for item in value:
        if not item.get("name"):
            raise ValueError("a phase has no name")
        rounds = _integer(item.get("rounds", 1))
        if rounds < 1:
            raise ValueError(f"the phase {shown(item['name'])} has {rounds} rounds")
        votes = _flag(item.get("votes", False))
        phases.append(Phase(_text(item["name"]), _text(item.get("description", "")), rounds, votes))
    return tuple(phases)

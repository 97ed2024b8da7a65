"""Kinds of contribution, roles, and the rules of a dialog: one model, which its Setup and templates are read by."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fractions import Fraction
from functools import cache, cached_property
from reprlib import repr as shown
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from annotated_types import Interval, Len

from dialogd.protocol.text import read_seconds

T = TypeVar("T")

NAME = re.compile(r"[A-Z][A-Z_]{1,39}")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of contribution."""

    meaning: str
    fields: tuple[str, ...] = ()  # what stands between its bars, in order
    numbers: str = ""  # what its daemon-given numbers begin with (`P1`)
    counts: bool = True  # it counts as a contribution on a board
    blocks: frozenset[str] = frozenset()  # first fields with which it keeps approvals from counting until resolved
    levels: tuple[str, ...] = ()  # first fields that it may have at all; () for any
    resolves: bool = False  # its first field is the number of what it resolves


CONTRIBUTIONS: Mapping[str, Kind] = MappingProxyType(
    {
        "PROPOSAL": Kind("something to decide; the daemon writes its number", numbers="P"),
        "OBJECTION": Kind("a reason against; clears the signatures", counts=False),
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


# -- How values are read, in a Setup (TOML) and in a template (text): pydantic's ways, and people's --------------------


@dataclass(frozen=True)
class Read:
    """Reads a value before pydantic checks it. Pydantic itself is loaded once a Setup or a template is read."""

    read: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic import BeforeValidator

        return BeforeValidator(self._value).__get_pydantic_core_schema__(source, handler)

    def _value(self, value: Any) -> Any:
        try:
            return self.read(value)
        except (TypeError, OverflowError) as error:
            raise ValueError(str(error)) from None


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        value = "; ".join(value)
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} is no text")
    return " ".join(value.split())


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) and value else value


def names(value: Any) -> list[str]:
    """A list, or a text with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise TypeError(f"{shown(value)} is no list of names")
    return [name for part in parts if (name := " ".join(part.split()))]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint at the known word that this one is nearly; "" where it is near none."""
    close = get_close_matches(word, [*known], n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def one_of(known: Sequence[str]) -> Read:
    """One of these words, as people write them: `Round Robin`."""

    def read(value: Any) -> str:
        word = _text(value).casefold().replace("_", "-").replace(" ", "-")
        if word not in known:
            raise ValueError(f"{shown(value)} is none of {', '.join(known)}{did_you_mean(word, known)}")
        return word

    return Read(read)


_SHARE = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,9})?(?:[ \t]*/[ \t]*[1-9][0-9]{0,5})?[ \t]*%?")


def _share(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not _SHARE.fullmatch(value):
        raise ValueError(f"{shown(value)} is no part such as 3/4, 0.75 or 75%")
    return float(Fraction(value.replace(" ", "").removesuffix("%")) / (100 if value.endswith("%") else 1))


def _permissions(value: Any) -> frozenset[str]:
    if isinstance(value, frozenset):
        return value
    said = names(value)
    if len(said) == 1 and said[0].casefold() in STANDARD:
        return STANDARD[said[0].casefold()]
    wanted = frozenset(name.strip("`*_ ").upper().replace(" ", "_") for name in said)
    for name in sorted(wanted - {*PERMISSIONS}):
        meant = did_you_mean(name, PERMISSIONS) or did_you_mean(name.casefold(), STANDARD)
        raise ValueError(f"{name} is none of {', '.join(PERMISSIONS)}{meant}")
    return wanted


def _role(value: Any) -> Any:
    """A role's table; its name, or the standard role of its permissions, brings those it does not name."""
    value = {"role": value} if isinstance(value, str) else value
    if not isinstance(value, Mapping):
        return value
    said = value.get("permissions")
    said = said[0] if isinstance(said, list | tuple) and len(said) == 1 else said
    standard = said.casefold() if isinstance(said, str) and said.casefold() in STANDARD else ""
    name = value.get("role") or standard
    usual = STANDARD.get(name.casefold(), USUAL) if isinstance(name, str) else USUAL
    return {"permissions": usual, **value, "name": name}


def board_table(value: Any) -> Any:
    """A board's table, a list of `key: value`, or `true` for the usual limits."""
    if isinstance(value, str):
        value = value.casefold() in ("true", "yes", "on")
    if isinstance(value, list | tuple):
        pairs = (str(item).partition(":") for item in value)
        return {key.strip().casefold().replace("-", "_"): said.strip() for key, _, said in pairs}
    return {} if value is True else None if value is False else value


def _criteria(value: Any) -> Mapping[str, int]:
    if not isinstance(value, Mapping):
        raise TypeError("criteria are a table of names and points")
    points = {"_".join(re.findall("[a-z]+", name.casefold())): most for name, most in value.items()}
    if not all(type(most) is int and most > 0 for most in points.values()) or sum(points.values()) != 100:
        raise ValueError("the points of all criteria are not 100 together")
    if "" in points:
        raise ValueError("a criterion has no name")
    return MappingProxyType(points)


Text = Annotated[str, Read(_text)]
Texts = Annotated[tuple[Text, ...], Read(_texts)]
Names = Annotated[tuple[str, ...], Read(names)]
Share = Annotated[float, Interval(gt=0, le=1), Read(_share)]
Limit = Annotated[int, Interval(ge=0, le=1_000_000)]
Count = Annotated[int, Interval(ge=1, le=1_000_000)]
Seconds = Annotated[float, Read(read_seconds)]


@dataclass(frozen=True, slots=True)
class Role:
    """What one agent is in a dialog. `weight` is that of its vote, `priority` its place in a round: higher first."""

    name: Text = ""
    permissions: Annotated[frozenset[str], Read(_permissions)] = USUAL
    weight: Annotated[float, Interval(gt=0, le=1000)] = 1.0
    priority: int = 0
    specialization: Text = ""
    personality: Text = ""
    responsibilities: Texts = ()

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


RoleTable = Annotated[Role, Read(_role)]


# -- The rules that a dialog's `## Setup` asks for, beyond those of a plain pair; read tolerantly ---------------------

ORDERS = ("alternate", "round-robin", "priority", "free", "parallel")
VERDICTS = ("mutual", "vote", "moderator", "judge")
BUILDS = "build"  # the order and the verdict of a build: what is due follows from its tasks
PARALLEL_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Board:
    """Limits of a blackboard dialog: contributions are counted, and an end needs a minimum of them."""

    round_limit: Limit = 10
    blackboard_capacity: Limit = 100
    minimum_contributions: Limit = 3


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of the work: `rounds` long; the last one lasts until the end. `votes`: it begins the voting."""

    name: Annotated[Text, Len(1)]
    description: Text = ""
    rounds: Count = 1
    votes: bool = False


CRITERIA: Mapping[str, int] = MappingProxyType(
    {"code_quality": 25, "test_coverage": 20, "security": 20, "documentation": 10, "acceptance_criteria": 25}
)


@dataclass(frozen=True)
class Build:
    """The rules of a build: `moderator` plans and reviews, `lead` carries out; both are agents' ids.

    Each of the `further_leads` carries out tasks of its own, beside those of `lead`.
    """

    moderator: Text
    lead: Text
    further_leads: Texts = ()
    repo: Text = ""
    branch: Text = ""  # the person's
    base: Text = ""  # the commit from which the work starts
    gate: Text = ""  # the command that tests a tree
    gate_timeout: Annotated[float, Interval(ge=1, le=1_000_000)] = 900.0
    setup: Text = ""  # the command that makes what the tests need beside a task's files
    setup_network: bool = False
    iterations: Count = 3  # attempts that a task has before the person decides
    pass_score: Limit = 80  # points that a review needs
    cycles: Limit = 1  # of improvement after the tasks
    criteria: Annotated[Mapping[str, int], Read(_criteria)] = field(default_factory=lambda: CRITERIA)
    source: Text = ""  # the id of the dialog whose decision it carries out

    @property
    def leads(self) -> tuple[str, ...]:
        """Who carries tasks out, one at a time each."""
        return (self.lead, *self.further_leads)


@dataclass(frozen=True)
class Rules:
    """How a dialog is decided. The defaults are those of a plain pair."""

    template: Text = ""
    order: Annotated[str, one_of(ORDERS)] = "alternate"
    verdict: Annotated[str, one_of(VERDICTS)] = "mutual"
    sealed: bool = False
    red_team: bool = False
    objections: bool = False
    review: bool = False
    judge: Text = ""  # an agent's id
    threshold: Share = 2 / 3  # of the votes' weight, as `quorum`
    quorum: Share = 2 / 3
    escalation_threshold: Count = 3  # votes that fail before the moderator, else the person, decides
    guidelines: Text = ""
    board: Annotated[Board | None, Read(board_table)] = None  # None where nothing is counted
    build: Build | None = None  # None where no tasks are carried out
    roles: Mapping[str, RoleTable] = field(default_factory=lambda: MappingProxyType({}))  # by the agents' ids
    phases: tuple[Phase, ...] = ()
    kinds: Mapping[str, Kind] = field(default_factory=lambda: MappingProxyType({}))  # the dialog's own
    success: Texts = ()
    errors: Texts = ()

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
        """True for a dialog without rules beyond those of a plain pair; sealing, and when to escalate, don't count."""
        return self == replace(_PLAIN, sealed=self.sealed, escalation_threshold=self.escalation_threshold)


_NO_ROLE = Role()
_PLAIN = Rules()


@cache
def _adapter(model: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(model)


def read_as(model: Any, given: Mapping[str, Any], problem: Callable[[tuple[str, ...], str], None]) -> Any:
    """The values as that model; what cannot be read is told to `problem`, with its path, and is left out."""
    from pydantic import ValidationError

    try:
        return _adapter(model).validate_python(given)
    except ValidationError as error:
        for found in error.errors(include_url=False, include_input=False):
            # Within a list, no place is a name: the whole list is left out.
            path = tuple(map(str, itertools.takewhile(lambda part: isinstance(part, str), found["loc"])))
            problem(path, found["msg"].removeprefix("Value error, "))
            given = _without(given, path)
    return read_as(model, given, problem)


def _without(given: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """The values without the one at that path, or without the last there is on the way to it."""
    key, *rest = path
    inner = given.get(key)
    if rest and isinstance(inner, Mapping) and rest[0] in inner:
        return {**given, key: _without(inner, tuple(rest))}
    return {name: value for name, value in given.items() if name != key}


def read_rules(setup: Mapping[str, Any], agents: Sequence[str], warnings: list[str]) -> Rules:
    """The rules of a Setup for these agents' ids; never fails, `warnings` gets what cannot be read."""
    given = {key: value for key, value in setup.items() if key in Rules.__dataclass_fields__ and key != "kinds"}
    if not given and "messages" not in setup:
        return _PLAIN

    def warn(path: Sequence[str], why: str, then: str = "using the default") -> None:
        warnings.append(f"header: Setup: {'.'.join(path)}: {why}; {then}")

    ids = {agent.casefold(): agent for agent in agents}
    if "judge" in given:
        given["judge"] = _agent(ids, given["judge"])
        if not given["judge"]:
            warn(("judge",), f"{shown(setup['judge'])} is none of {', '.join(agents)}")
    if isinstance(build := given.get("build"), Mapping):
        both = {key: _agent(ids, build.get(key)) for key in ("moderator", "lead")}
        further = [who for one in _names(build.get("further_leads")) if (who := _agent(ids, one))]
        given["build"] = {**build, **both, "further_leads": [*dict.fromkeys(further)]}
        if not {*both.values()}.isdisjoint(further):
            warn(("build", "further_leads"), "they are others than its moderator and its lead", "ignoring them")
            given["build"]["further_leads"] = []
        if len({*both.values()} - {""}) < 2:
            warn(("build",), "it names no two agents as moderator and lead", "ignoring it")
            del given["build"]
    if isinstance(roles := given.get("roles"), Mapping):
        known = {who: role for name, role in roles.items() if (who := _agent(ids, name))}
        for name in (name for name in roles if not _agent(ids, name)):
            warn(("roles", name), "no agent of this dialog", "ignoring it")
        given["roles"] = known
    rules: Rules = read_as(Rules, given, warn)
    if rules.build is not None:
        rules = replace(rules, order=BUILDS, verdict=BUILDS)
    kinds = dict(rules.known_kinds)
    messages = setup.get("messages", {})
    for name, meaning in messages.items() if isinstance(messages, Mapping) else ():
        if NAME.fullmatch(name) and isinstance(meaning, str):
            kinds[name] = replace(kinds.get(name, Kind("")), meaning=" ".join(meaning.split()))
        else:
            warn(("messages", name), "no NAME with a meaning", "ignoring it")
    return replace(rules, kinds=MappingProxyType(kinds))


def _names(given: Any) -> list[Any]:
    return given if isinstance(given, list) else []


def _agent(ids: Mapping[str, str], name: Any) -> str:
    return ids.get(name.casefold(), "") if isinstance(name, str) else ""


def roles_of(given: Mapping[str, Any], ids: Sequence[str]) -> tuple[Mapping[str, Role], list[str]]:
    """The roles that a table as in a Setup gives to these agents, and what in it makes no sense."""
    warnings: list[str] = []
    known = {"role", *Role.__dataclass_fields__} - {"name"}
    found = read_rules({"roles": given}, ids, warnings).roles
    strange = [f"{who}.{key}" for who, one in given.items() if isinstance(one, Mapping) for key in one.keys() - known]
    return found, [*warnings, *(f"roles.{one} is no part of a role ({', '.join(sorted(known))})" for one in strange)]

"""A skill as agents and rules of a dialog. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from string import Template as Filled
from types import MappingProxyType
from typing import Any, TypeVar

from dialogd.protocol.rules import (
    BUILD,
    BUILDS,
    CONVERGENCE_THRESHOLD,
    NAME,
    ORDERS,
    REVIEW,
    STANDARD,
    USUAL,
    VERDICTS,
    WINNERS,
    Build,
    Kind,
    Phase,
    Role,
    Rules,
)
from dialogd.protocol.text import one_line
from dialogd.templates.skill import (
    FIELDS,
    LONGEST,
    Member,
    Mistake,
    Skill,
    Span,
    Value,
    WrittenValue,
    board,
    build,
    count,
    flag,
    integer,
    listed,
    names,
    one_of,
    part,
    read_permissions,
    seconds,
    span,
    text,
    weight,
)

T = TypeVar("T")
Read = Callable[[Value], Any]

# Front matter: how each key is read, and how it is written.
KEYS: Mapping[str, tuple[Read, str]] = MappingProxyType(
    {
        "name": (text, "name: council"),
        "description": (text, "description: what it is for"),
        "position": (text, "position: its place among other skills"),
        "agents": (span, "agents: 3, agents: 2+ or agents: 2-4"),
        "order": (one_of(ORDERS), f"order: {' | '.join(ORDERS)}"),
        "verdict": (one_of(VERDICTS), f"verdict: {' | '.join(VERDICTS)}"),
        "first": (names, "first: the names of who begins, or all"),
        "judge": (text, "judge: the name of an agent"),
        "max_turns": (count, "max_turns: 20"),
        "max_rounds": (count, "max_rounds: 5"),
        "max_time": (seconds, "max_time: 30 minutes"),
        "timeout": (seconds, "timeout: 5 minutes"),
        "words": (text, "words: 100 to 200 words"),
        "question_defaults": (flag, "question_defaults: true"),
        "labels": (one_of(("names", "ids")), "labels: names"),
        "sealed": (flag, "sealed: true"),
        "red_team": (flag, "red_team: true"),
        "objections": (flag, "objections: true"),
        "review": (flag, "review: true"),
        "threshold": (part, "threshold: 3/4"),
        "quorum": (part, "quorum: 1/2"),
        "winner": (one_of(WINNERS), f"winner: {' | '.join(WINNERS)}"),
        "convergence_threshold": (part, "convergence_threshold: 0.6"),
        "escalation_threshold": (count, "escalation_threshold: 3"),
        "auto_propose_threshold": (count, "auto_propose_threshold: 3"),
        "guidelines": (text, "guidelines: what the moderator goes by"),
        "board": (board, "board: with indented lines such as `round_limit: 5`"),
        "build": (build, "build: with indented lines `moderator: NAME` and `lead: NAME`"),
    }
)

NOT_A_NAME = frozenset({"user", "me", "human", "you", "person", "system", "daemon", "all", "any"})


@dataclass(frozen=True, slots=True)
class CastMember:
    """One agent of a cast: name, role, permissions, default backend."""

    name: str
    role: Role = field(default_factory=Role)
    backend: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a template fixes. `least` to `most` agents take part (None: any number); durations in seconds.

    `rules` names no agents: roles stand in `cast`; `judge`, `first` and a build's two hold names of the cast. None: not
    fixed. `problems` must be fixed before it is used, `notes` say what is ignored.
    """

    cast: tuple[CastMember, ...] = ()
    least: int = 1
    most: int | None = None
    rules: Rules = field(default_factory=Rules)
    judge: str = ""
    first: tuple[str, ...] = ()
    max_turns: int | None = None
    max_rounds: int | None = None
    max_time: float | None = None
    timeout: float | None = None
    more: Mapping[str, str | bool] = field(default_factory=lambda: MappingProxyType({}))
    problems: tuple[Mistake, ...] = ()
    notes: tuple[Mistake, ...] = ()


class _Values:
    """Reads values, and notes what is wrong with them."""

    def __init__(self, skill: Skill) -> None:
        self.front = skill.front
        self.problems: list[Mistake] = []
        self.notes: list[Mistake] = []

    def problem(self, line: int, what: str, fix: str) -> None:
        self.problems.append(Mistake(line, what, fix))

    def note(self, line: int, what: str) -> None:
        self.notes.append(Mistake(line, what, ""))

    def take(self, key: str, default: T) -> T:
        """The front matter's value of that key."""
        read, example = KEYS[key]
        return self.read(self.front.get(key), read, default, key, f"write it like `{example}`")

    def read(self, written: WrittenValue | None, read: Read, default: T, name: str, fix: str) -> T:
        if written is None or not written.value:
            return default
        try:
            return read(written.value)  # type: ignore[no-any-return]
        except ValueError as error:
            self.problem(written.line, f"{name}: {error}", fix)
            return default

    def strangers(self, names: Mapping[str, WrittenValue], known: Sequence[str], where: str) -> None:
        """Names that are nearly right are problems; those of other tools are ignored."""
        for name, written in names.items():
            close = get_close_matches(name, known, n=1, cutoff=0.75)
            if name in known:
                continue
            if close:
                self.problem(written.line, f"unknown {where} {name!r}", f"did you mean `{close[0]}`?")
            else:
                self.note(written.line, f"{where} {name!r} means nothing here, and is left out of account")


def terms_of(skill: Skill) -> Terms:
    """What this skill defines, with every problem of the file."""
    reader = _Values(skill)
    reader.strangers(skill.front, [*KEYS], "key")
    cast = tuple(_cast(reader, skill.agents))
    least, most = _span(reader, len(cast))
    rules = _rules(reader, skill)
    _opening(reader, skill)
    _two_of_the_cast(reader, rules, cast)
    limits: dict[str, Any] = {key: reader.take(key, None) for key in ("max_turns", "max_rounds", "max_time", "timeout")}
    terms = Terms(
        cast=cast,
        least=least,
        most=most,
        rules=rules,
        judge=_judge(reader, rules, cast),
        first=_first(reader, cast),
        more=_more(reader),
        **limits,
    )
    found = ((*skill.problems, *reader.problems), reader.notes)
    problems, notes = (tuple(sorted(each, key=lambda problem: problem.line)) for each in found)
    return replace(terms, problems=problems, notes=notes)


def _rules(reader: _Values, skill: Skill) -> Rules:
    usual, is_review = Rules(), reader.take("review", default=False)
    values = {key: reader.take(key, getattr(usual, key)) for key in _OF_RULES}
    made: Build | None = reader.take("build", None)
    if made is not None:
        values |= {"order": BUILDS, "verdict": BUILDS}
    return Rules(
        **values,
        template=one_line(skill.name, 100),
        review=is_review,
        convergence_threshold=reader.take("convergence_threshold", CONVERGENCE_THRESHOLD),
        phases=tuple(_phases(skill, values["verdict"])),
        build=made,
        kinds=MappingProxyType(_kinds(reader, skill, BUILD if made else REVIEW if is_review else {})),
        success=tuple(one_line(point, LONGEST) for point in skill.success),
        errors=tuple(one_line(point, LONGEST) for point in skill.errors),
    )


_OF_RULES = (
    "order", "verdict", "sealed", "red_team", "objections", "threshold", "quorum", "winner", "escalation_threshold",
    "auto_propose_threshold", "guidelines", "board",
)  # fmt: skip


def _phases(skill: Skill, verdict: str) -> Iterator[Phase]:
    """The phases; a step without a short name is called by its number. Where none says that it votes, the last does."""
    says = any(step.votes for step in skill.workflow)
    for number, step in enumerate(skill.workflow, 1):
        name, description = one_line(step.name, LONGEST), one_line(step.description, LONGEST)
        if not name or len(name) > 40:
            name, description = f"STEP {number}", f"{name} {description}".strip()
        votes = step.votes or (verdict == "vote" and not says and number == len(skill.workflow))
        yield Phase(name, description, max(step.rounds, 1), votes)


def _kinds(reader: _Values, skill: Skill, known: Mapping[str, Kind]) -> dict[str, Kind]:
    kinds: dict[str, Kind] = dict(known)
    named: set[str] = set()
    for message in skill.messages:
        name = "_".join(message.name.upper().replace("-", " ").replace("_", " ").split())
        if not NAME.fullmatch(name):
            reader.note(message.line, f"{message.name!r} is no name of a message (letters and `_`), and is left out")
        elif name in named:
            reader.problem(message.line, f"the message {name} is there twice", "keep one of the two")
        else:
            named.add(name)
            kinds[name] = replace(known.get(name, Kind("")), meaning=one_line(message.description, LONGEST))
    return kinds


def _cast(reader: _Values, members: Sequence[Member]) -> Iterator[CastMember]:
    seen: set[str] = set()
    for member in members:
        name = " ".join(member.name.partition("(")[0].translate({ord(c): None for c in ",;=@()[]`*"}).split())
        if not name or len(name) > 60 or name.casefold() in NOT_A_NAME:
            reader.problem(member.line, f"{member.name!r} is no name for an agent", "write `### Architect`")
            continue
        if name.casefold() in seen:
            reader.problem(member.line, f"two agents are called {name}", "give each a name of its own")
        seen.add(name.casefold())
        yield CastMember(name, _role(reader, member), _backend(reader, member))


def _role(reader: _Values, member: Member) -> Role:
    fields = member.fields
    reader.strangers(fields, [*FIELDS, "description"], f"field of {member.name}")

    def take(name: str, read: Read, default: T, fix: str) -> T:
        return reader.read(fields.get(name), read, default, f"{name} of {member.name}", fix)

    title = take("role", text, "", "**Role:** critic")
    usual = STANDARD.get(title.casefold(), USUAL)
    fix = f"name one of {', '.join(STANDARD)}; or permissions: READ_ALL, POST …"
    standard, permissions = take("permissions", read_permissions, ("", usual), fix)
    special = (take(name, text, "", "write a text") for name in ("specialization", "description"))
    return Role(
        name=title or standard,
        permissions=permissions,
        weight=take("weight", weight, 1.0, "**Weight:** 2"),
        priority=take("priority", integer, 0, "**Priority:** 10"),
        specialization=" ".join(words for words in special if words),
        personality=take("personality", text, "", "**Personality:** devil's advocate"),
        responsibilities=tuple(filter(None, (one_line(p, LONGEST) for p in listed(fields.get("responsibilities"))))),
    )


def _backend(reader: _Values, member: Member) -> str:
    """The agent's backend; a template that came with somebody's files must not name a program to run."""
    written = member.fields.get("backend")
    backend = reader.read(written, text, "", f"backend of {member.name}", "**Backend:** claude").strip("`")
    if written is not None and (backend.partition(":")[0] in ("command", "acp") or "@" in backend):
        what = f"the backend of {member.name} names a program or a folder: templates must not"
        reader.problem(written.line, what, f"say it yourself: --agent {member.name.split(' ')[0]}={backend}")
    return backend


def _span(reader: _Values, listed: int) -> Span:
    written = reader.front.get("agents")
    least, most = reader.take("agents", (listed, listed) if listed else (1, None))
    if written is not None and most is not None and most < listed:
        reader.problem(
            written.line, f"agents: {listed} are described below, and at most {most} take part", "correct it"
        )
    return least, most


def _judge(reader: _Values, rules: Rules, cast: Sequence[CastMember]) -> str:
    wanted: str = reader.take("judge", "")
    if rules.verdict != "judge":
        return ""
    name = next((part.name for part in cast if part.name.casefold() == (wanted or "judge").casefold()), "")
    if not name:
        line = reader.front["judge" if wanted else "verdict"].line
        reader.problem(line, f"judge: no agent is called {wanted or 'Judge'}", "describe one below `## Agents`")
    return name


def _two_of_the_cast(reader: _Values, rules: Rules, cast: Sequence[CastMember]) -> None:
    """Note a problem where the moderator and the lead of a build are not two agents of the cast."""
    known = [part.name for part in cast]
    if rules.build is not None and {rules.build.moderator, rules.build.lead} != {*known}:
        reader.problem(
            reader.front["build"].line,
            f"build: {rules.build.moderator} and {rules.build.lead} are not the two agents of it",
            "describe both, and nobody else, below `## Agents`",
        )


def _first(reader: _Values, cast: Sequence[CastMember]) -> tuple[str, ...]:
    known = {part.name.casefold(): part.name for part in cast}
    named: tuple[str, ...] = reader.take("first", ())
    strange = next((name for name in named if name.casefold() not in (*known, "all")), "")
    if strange:
        line = reader.front["first"].line
        reader.problem(
            line, f"first: no agent is called {strange}", f"name one of: {', '.join((*known.values(), 'all'))}"
        )
    return tuple(known.get(name.casefold(), name.casefold()) for name in named)


def _more(reader: _Values) -> Mapping[str, str | bool]:
    """The keys of the Setup that are no rules."""
    found: dict[str, str | bool] = {key: reader.take(key, "") for key in ("labels", "words")}
    found["question_defaults"] = reader.take("question_defaults", default=False)
    return MappingProxyType({key: value for key, value in found.items() if value and value != "ids"})


def _opening(reader: _Values, skill: Skill) -> None:
    if not Filled(skill.opening).is_valid() or set(Filled(skill.opening).get_identifiers()) - {"topic", "question"}:
        what = "the opening holds a $name that is none"
        reader.problem(skill.opening_line, what, "write $topic, $question, or $$ for a dollar")

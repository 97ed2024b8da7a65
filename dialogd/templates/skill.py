"""A skill (SKILL.md): front matter and sections as they are written, and what they come to as agents and rules. Pure.

What is wrong in a file is a `Mistake` with its line; values are read by the model of the rules (`protocol/rules.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from string import Template as Filled
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from dialogd.protocol.marks import outside_fences
from dialogd.protocol.rules import (
    BUILDS,
    NAME,
    Board,
    Kind,
    Names,
    Phase,
    Read,
    Role,
    RoleTable,
    Rules,
    Seconds,
    Text,
    board_table,
    did_you_mean,
    one_of,
    read_as,
)
from dialogd.protocol.text import clean, one_line, read_count, redact

LONGEST = 2_000  # code points of one text
LONGEST_FRONT = 20_000  # characters
MOST_AGENTS = 26

Value = str | tuple[str, ...] | Mapping[str, str]
Span = tuple[int, int | None]  # fewest and most agents; None: any number
Line = tuple[int, str]  # number (1-based) and text


class Mistake(NamedTuple):
    """What is wrong in `line` (1-based) of a file, and what to write instead."""

    line: int
    what: str
    fix: str = ""


class WrittenValue(NamedTuple):
    """A value as it stands in the file, and its line."""

    value: Value
    line: int

    @property
    def joined(self) -> str:
        """The value as one text; the points of a list after one another."""
        return self.value if isinstance(self.value, str) else "; ".join(self.value)


NOTHING = WrittenValue("", 0)


# -- Front matter -----------------------------------------------------------------------------------------------------


class Front(NamedTuple):
    """The front matter's values by key, what could not be read in it, and in which line (from 0) the rest begins."""

    values: Mapping[str, WrittenValue] = MappingProxyType({})
    problems: tuple[Mistake, ...] = ()
    end: int = 0


_QUOTE = "write `key: value`, and quotes around a value that holds `: ` or begins with a sign"
_BREAKS = {0x85: " ", 0x2028: " ", 0x2029: " "}  # lines of YAML, but not of a file


def front_matter(lines: Sequence[str]) -> Front:
    """Read the front matter that these lines begin with; nothing where the first is no line of three dashes."""
    if not lines or lines[0].rstrip() != "---":
        return Front()
    end = next((index for index, line in enumerate(lines[1:], 1) if line.rstrip() in ("---", "...")), 0)
    if not end:
        return Front(problems=(Mistake(1, "front matter without an end", "close it with a line of `---`"),), end=1)
    found = _yaml("\n".join(lines[1:end]).translate(_BREAKS))
    return Front({}, (found,), end + 1) if isinstance(found, Mistake) else Front(found, (), end + 1)


def _yaml(text: str) -> Mapping[str, WrittenValue] | Mistake:
    """The keys of this text, which begins in line 2 of a file, and their values, each as the text that is written.

    Nothing of it is made an object. What no front matter needs, and hostile ones do, is refused first: it would take
    memory or the stack without end.
    """
    import yaml

    if len(text) > LONGEST_FRONT:
        return Mistake(1, f"front matter of {len(text):,} characters", f"shorten it: up to {LONGEST_FRONT:,} are read")
    try:
        for event in yaml.parse(text, yaml.BaseLoader):
            if getattr(event, "anchor", None):
                return Mistake(event.start_mark.line + 2, "anchors and aliases of YAML are not read", "write it out")
        root = yaml.compose(text, yaml.BaseLoader)
        if isinstance(root, yaml.MappingNode):
            return {_key(_words(k)): WrittenValue(_value(v), k.start_mark.line + 2) for k, v in root.value}
        return Mistake(2, f"{_words(root)[:60]!r} is no `key: value`", "write one key per line") if root else {}
    except yaml.MarkedYAMLError as error:
        mark = (isinstance(error, yaml.scanner.ScannerError) and error.context_mark) or error.problem_mark
        return Mistake(mark.line + 2, f"this is no YAML: {error.problem}", _QUOTE)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        what = "this is no YAML: a character or an escape in it is none, or it is nested too deeply"
        return Mistake(2, what, _QUOTE)


def _value(node: Any) -> Value:
    """Text, a list of texts, or a table of texts; what lies deeper is one text."""
    if node.id == "sequence":
        return tuple(words for item in node.value if (words := _words(item)))
    if node.id == "mapping":
        return {_key(_words(key)): _words(value) for key, value in node.value}
    return _words(node)


def _words(node: Any) -> str:
    """What a node says, as one text."""
    if node.id == "sequence":
        return ", ".join(map(_words, node.value))
    if node.id == "mapping":
        return ", ".join(f"{_words(key)}: {_words(value)}" for key, value in node.value)
    return clean(node.value).strip()


def _key(text: str) -> str:
    return text.casefold().replace("-", "_")


# -- A skill as it is written -----------------------------------------------------------------------------------------

SECTIONS = (
    "overview", "agents", "workflow", "communication protocol", "success criteria", "error handling", "rules", "opening"
)  # fmt: skip
FIELDS = (
    "personality", "responsibilities", "permissions", "backend", "weight", "priority", "specialization", "role"
)  # fmt: skip

_HEADING = re.compile(r"(#{1,6})[ \t]+(.*)")
_FIELD = re.compile(
    r"[ \t]*(?:[-*+][ \t]+)?(?:(\*\*|__)([A-Za-z][A-Za-z ]{0,30}?)[ \t]*(?::\1|\1[ \t]*:)|([A-Za-z]+):)[ \t]*(.*)"
)
_BULLET = re.compile(r"[ \t]*(?:[-*+]|\d{1,3}[.)])[ \t]+(?:\[[ xX]\][ \t]+)?(.*)")
_NUMBERED = re.compile(r"[ \t]{0,3}\d{1,3}[.)][ \t]+(.*)")
_NAMED = (
    re.compile(r"(\*\*|__)(?P<name>.+?)\1(?P<rest>.*)"),
    re.compile(r"`(?P<name>[^`]+)`(?P<rest>.*)"),
    re.compile(r"(?P<name>[A-Z][A-Z_]+(?:[ -][A-Z_]+)*)(?=[ \t]*(?:[:–—-]|$))(?P<rest>.*)"),
)  # in bold, as code, in capitals
_LENGTH = re.compile(r"\((?=[\dv])(?:(\d{1,4})[ -]rounds?)?(?:, *)?(votes)?\)", re.I)
_ROW = re.compile(r"[ \t]*\|(.+)\|[ \t]*")
_COUNTED = re.compile(r"^(?:(?:phase|step|agent)[ \t]+)?\d{1,3}[ \t]*[.):–—-]*[ \t]+", re.I)


class Member(NamedTuple):
    """One agent of the cast as it is written; the values by field name."""

    name: str
    line: int
    fields: Mapping[str, WrittenValue]


class Point(NamedTuple):
    """One phase of the workflow, or one kind of message, as it is written; `votes`: the voting begins with it."""

    name: str
    description: str
    line: int
    rounds: int = 1
    votes: bool = False


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill as it is written. `front` holds the front matter's values by key; `problems` are in order of lines.

    `position` is its place in a hierarchy of skills: as the file says, else its title, else its name.
    """

    name: str
    title: str
    position: str
    overview: str
    agents: tuple[Member, ...]
    workflow: tuple[Point, ...]
    messages: tuple[Point, ...]
    success: tuple[str, ...]
    errors: tuple[str, ...]
    rules: str
    opening: str
    opening_line: int
    front: Mapping[str, WrittenValue]
    problems: tuple[Mistake, ...]

    def as_json(self) -> dict[str, Any]:
        """What other programs read of it."""
        agents = []
        for member in self.agents:
            tasks = member.fields.get("responsibilities", NOTHING).value
            agents.append(
                {
                    "name": member.name,
                    "personality": member.fields.get("personality", NOTHING).joined,
                    "responsibilities": [tasks] * bool(tasks) if isinstance(tasks, str) else [*tasks],
                }
            )
        return {
            "position": self.position,
            "overview": self.overview,
            "agents": agents,
            "workflow": [{"phase": step.name, "description": step.description} for step in self.workflow],
            "communicationProtocol": [{"type": m.name, "description": m.description} for m in self.messages],
            "successCriteria": list(self.success),
            "errorHandling": list(self.errors),
        }


def read(text: str, name: str) -> Skill:
    """Read a skill; `name` counts where the front matter gives none."""
    lines = clean(text.removeprefix("\ufeff")).split("\n")
    front = front_matter(lines)
    problems, rest = [*front.problems], lines[front.end :]
    for number, line in enumerate(lines, 1):
        if redact(line)[1]:  # which a template must not carry into dialogs
            problems.append(Mistake(number, "there is something like a key in it", "keys belong into .env"))
    open_ = {front.end + index + 1 for index, _ in outside_fences(rest, forgiving=True)}
    (_, _, intro), *found = _blocks(
        enumerate(rest, front.end + 1), lambda line: _heading(2)(line) if line[0] in open_ else None
    )
    head = next((line for line in intro if line[0] in open_ and _heading(1)(line) is not None), None)
    intro = [line for line in intro if line != head]
    title = (head and _heading(1)(head)) or ""
    sections = {section: list[Line]() for section in SECTIONS}
    for heading, at, below in found:
        section = heading.strip("#*_: \t").casefold()
        if section in SECTIONS:
            sections[section] += below
        elif close := get_close_matches(section, SECTIONS, n=1, cutoff=0.85):
            problems.append(Mistake(at, f"unknown section {section!r}", f"did you mean `## {close[0].title()}`?"))
    said = front.values.get("name", NOTHING).joined or name
    places = (_place(line) for _, line in (*intro, *sections["overview"]))
    place = front.values.get("position", NOTHING).joined or next(filter(None, places), "")
    overview = _text(sections["overview"]) or _text(intro)
    return Skill(
        name=said,
        title=title,
        position=place or title or said,
        overview="\n".join(line for line in overview.split("\n") if not _place(line)).strip("\n"),
        agents=tuple(_members(sections["agents"])),
        workflow=tuple(_steps(sections["workflow"])),
        messages=tuple(_messages(sections["communication protocol"])),
        success=_points(sections["success criteria"]),
        errors=_points(sections["error handling"]),
        rules=_text(sections["rules"]),
        opening=_text(sections["opening"]),
        opening_line=next(iter(sections["opening"]), (0, ""))[0],
        front=front.values,
        problems=tuple(problems),
    )


def _blocks(lines: Iterable[Line], begins: Callable[[Line], str | None]) -> Iterator[tuple[str, int, list[Line]]]:
    """Name, line and lines of what stands before the first line that `begins` names, and below each of these."""
    name, at, current = "", 0, list[Line]()
    for line in lines:
        found = begins(line)
        if found is None:
            current.append(line)
        else:
            yield name, at, current
            name, at, current = found, line[0], []
    yield name, at, current


def _heading(level: int) -> Callable[[Line], str | None]:
    """What names the lines that are headings of this level."""

    def begins(line: Line) -> str | None:
        match = _HEADING.fullmatch(line[1])
        return match[2].rstrip("# \t") if match and len(match[1]) == level else None

    return begins


def _text(lines: Sequence[Line]) -> str:
    return "\n".join(text for _, text in lines).strip("\n")


def _place(line: str) -> str:
    name, colon, where = line.replace("*", "").replace("_", "").partition(":")
    return where.strip() if colon and name.strip(" -\t").casefold() == "position" else ""


def _members(section: Sequence[Line]) -> Iterator[Member]:
    """The agents: a `### Name` each, with bold field names below it."""
    for name, line, lines in [*_blocks(section, _heading(3))][1:]:
        yield Member(_COUNTED.sub("", name).strip("*_` "), line, dict(_fields(lines)))


def _fields(lines: Sequence[Line]) -> Iterator[tuple[str, WrittenValue]]:
    """The fields of one agent: text, or a list where bullets stand below the name; text without a name describes it."""
    key, at, said = "", 0, list[str]()
    is_list = False
    for line, text in (*lines, (0, "End:")):
        match = _FIELD.fullmatch(text)
        if match and (match[2] or match[3].casefold() in FIELDS or not line):
            if key:
                yield key, WrittenValue(tuple(filter(None, said)) if is_list else " ".join(filter(None, said)), at)
            key, at, said, is_list = (match[2] or match[3]).strip().casefold(), line, [match[4].strip()], False
        elif bullet := _BULLET.fullmatch(text):
            key, at, is_list = key or "description", at or line, True
            said.append(bullet[1].strip())
        elif text.strip():
            key, at = key or "description", at or line
            said = [*said[:-1], f"{said[-1]} {text.strip()}".strip()] if said else [text.strip()]


def _steps(section: Sequence[Line]) -> Iterator[Point]:
    """The phases: numbered lines or `###` headings, the name in bold or before the first colon."""

    def number(line: Line) -> str | None:
        match = _NUMBERED.fullmatch(line[1])
        return match[1] if match else None

    headed = [(_COUNTED.sub("", name), line, lines) for name, line, lines in _blocks(section, _heading(3))][1:]
    for head, line, lines in headed or [*_blocks(section, number)][1:]:
        length = _LENGTH.search(head)
        rounds, votes = length.groups() if length else (None, None)
        name, rest = _named(_LENGTH.sub("", head, count=1))
        said = " ".join((_flat(rest), *(_flat(text) for _, text in lines))).split()
        yield Point(" ".join(name.split()), " ".join(said), line, int(rounds or 1), bool(votes))


def _named(text: str) -> tuple[str, str]:
    """A name and what is said of it: `**NAME**: text`, `NAME: text`, `NAME - text`; without either all is the name."""
    for pattern in _NAMED:
        if match := pattern.match(text.strip()):
            return match["name"].strip("*_`[](): "), match["rest"]
    name, _, rest = text.partition(":")
    return name.strip(), rest


def _messages(section: Sequence[Line]) -> Iterator[Point]:
    """The kinds of message: bullets or table rows that begin with a name in bold, as code, or in capitals."""
    for line, text in section:
        row, bullet = _ROW.fullmatch(text), _BULLET.fullmatch(text)
        said = row[1].strip().replace("|", ":", 1) if row else bullet[1] if bullet else text.strip()
        if any(pattern.match(said) for pattern in _NAMED):
            name, rest = _named(said)
            yield Point(name, _flat(rest.rstrip("| ")), line)


def _points(section: Sequence[Line]) -> tuple[str, ...]:
    """The points of a list, one text each; without bullets, its paragraphs."""
    found: list[str] = []
    is_open = False
    for _, text in section:
        if text.strip() and is_open and not _BULLET.fullmatch(text):
            found[-1] += f" {_flat(text)}"
        elif text.strip():
            found.append(_flat(text))
        is_open = bool(text.strip())
    return tuple(found)


def _flat(text: str) -> str:
    """Markdown on one line without bold and bullets; code stays as it is."""
    match = _BULLET.fullmatch(text)
    return " ".join(re.sub(r"\*\*|__", "", match[1] if match else text).lstrip(":–— \t").split())


# -- What a skill comes to: agents and rules of a dialog --------------------------------------------------------------

_SPAN = re.compile(r"([0-9]{1,2})[ \t]*(?:(\+|or more)|(?:-|–|to)[ \t]*([0-9]{1,2}))?(?:[ \t]*agents?)?", re.I)
NOT_A_NAME = frozenset({"user", "me", "human", "you", "person", "system", "daemon", "all", "any"})


def _span(value: Any) -> Span:
    """How many agents: `3`, `2+`, `2-4`."""
    match = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is no number of agents")
    least, most = int(match[1]), int(match[3]) if match[3] else None if match[2] else int(match[1])
    if not 1 <= least <= MOST_AGENTS or (most is not None and not least <= most <= MOST_AGENTS):
        raise ValueError(f"{value!r} is no number of agents from 1 to {MOST_AGENTS}")
    return least, most


Number = Annotated[int | None, Read(read_count)]


@dataclass(frozen=True)
class Matter(Rules):
    """Front matter: the rules, and what else a template fixes. None: not fixed."""

    name: Text = ""
    description: Text = ""
    position: Text = ""
    agents: Annotated[Span | None, Read(_span)] = None
    first: Names = ()
    max_turns: Number = None
    max_rounds: Number = None
    max_time: Seconds | None = None
    timeout: Seconds | None = None
    words: Text = ""
    labels: Annotated[str, one_of(("names", "ids"))] = "ids"
    question_defaults: bool = False


_NO_KEYS = ("template", "roles", "phases", "kinds", "success", "errors")  # other parts of the file say these
KEYS = tuple(key for key in Matter.__dataclass_fields__ if key not in _NO_KEYS)
_PARTS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "board": tuple(Board.__dataclass_fields__),
        "build": ("moderator", "lead", "iterations", "cycles", "pass_score"),  # neither repository nor command
    }
)
_CORRECT = "correct it, or leave it out; docs/templates.md lists what it may be"


@dataclass(frozen=True, slots=True)
class CastMember:
    """One agent of a cast: name, role, permissions, default backend."""

    name: str
    role: Role
    backend: str


@dataclass(frozen=True, slots=True)
class Terms:
    """What a template fixes. `least` to `most` agents take part (None: any number); `matter` is its front matter.

    `rules` names no agents: roles stand in `cast`; `judge`, `first` and a build's two hold names of the cast. None: not
    fixed. `problems` must be fixed before it is used, `notes` say what is ignored.
    """

    cast: tuple[CastMember, ...]
    least: int
    most: int | None
    rules: Rules
    judge: str
    first: tuple[str, ...]
    matter: Matter
    more: Mapping[str, str | bool]
    problems: tuple[Mistake, ...]
    notes: tuple[Mistake, ...]


def terms_of(skill: Skill) -> Terms:
    """What this skill defines, with every problem of the file."""
    wrong = [*skill.problems]
    matter = _matter(skill.front, wrong)
    cast = tuple(_cast(skill, wrong))
    least, most = matter.agents or ((len(cast), len(cast)) if cast else (1, None))
    if most is not None and most < len(cast):
        what = f"agents: {len(cast)} are described below, and at most {most} take part"
        wrong.append(Mistake(skill.front["agents"].line, what, _CORRECT))
    judge, first = _in_cast(skill.front, matter, cast, wrong)
    verdict = BUILDS if matter.build else matter.verdict
    given = {key: getattr(matter, key) for key in Rules.__dataclass_fields__}
    own = {
        "template": one_line(skill.name, 100),
        "order": BUILDS if matter.build else matter.order,
        "verdict": verdict,
        "judge": "",
        "phases": tuple(_phases(skill.workflow, verdict)),
        "kinds": _kinds(skill.messages, matter.known_kinds, wrong),
        "success": tuple(one_line(point, LONGEST) for point in skill.success),
        "errors": tuple(one_line(point, LONGEST) for point in skill.errors),
    }
    opening = Filled(skill.opening)
    if not opening.is_valid() or {*opening.get_identifiers()} - {"topic", "question"}:
        fix = "write $topic, $question, or $$ for a dollar"
        wrong.append(Mistake(skill.opening_line, "the opening holds a $name that is none", fix))
    more: dict[str, str | bool] = {"words": matter.words, "question_defaults": matter.question_defaults}
    more["labels"] = matter.labels if matter.labels != "ids" else ""
    wrong.sort(key=lambda mistake: mistake.line)
    return Terms(
        cast=cast,
        least=least,
        most=most,
        rules=Rules(**{**given, **own}),
        judge=judge,
        first=first,
        matter=matter,
        more=MappingProxyType({key: value for key, value in more.items() if value}),
        problems=tuple(mistake for mistake in wrong if mistake.fix),
        notes=tuple(mistake for mistake in wrong if not mistake.fix),
    )


def _given(
    written: Mapping[str, WrittenValue], known: Sequence[str], what: str, wrong: list[Mistake]
) -> dict[str, Any]:
    """The values of the known names; one that is nearly right is a problem, one of another tool is ignored."""
    for name, value in written.items():
        if name not in known:
            close = get_close_matches(name, known, n=1, cutoff=0.75)
            fix = f"did you mean `{close[0]}`?" if close else ""
            wrong.append(Mistake(value.line, f"unknown {what} {name!r}" if fix else f"{what} {name!r} is ignored", fix))
    return {name: _lined(value.value) for name, value in written.items() if name in known and value.value}


def _lined(value: Value) -> Value:
    """The value with every text of it on one line, without control characters and secrets."""
    if isinstance(value, Mapping):
        return {key: one_line(text, LONGEST) for key, text in value.items()}
    return one_line(value, LONGEST) if isinstance(value, str) else tuple(one_line(text, LONGEST) for text in value)


def _matter(front: Mapping[str, WrittenValue], wrong: list[Mistake]) -> Matter:
    given = _given(front, KEYS, "key", wrong)

    def problem(path: tuple[str, ...], why: str) -> None:
        wrong.append(Mistake(front[path[0]].line, f"{': '.join(path)}: {why}", _CORRECT))

    for key, names in _PARTS.items():
        table = board_table(given.get(key))
        for name in table if isinstance(table, Mapping) else ():
            if name not in names:
                problem((key,), f"{name!r} is nothing that a template may say of a {key}{did_you_mean(name, names)}")
    found: Matter = read_as(Matter, given, problem)
    return found


def _cast(skill: Skill, wrong: list[Mistake]) -> Iterator[CastMember]:
    seen: set[str] = set()
    for member in skill.agents:
        name = " ".join(member.name.partition("(")[0].translate({ord(c): None for c in ",;=@()[]`*"}).split())
        if not name or len(name) > 60 or name.casefold() in NOT_A_NAME:
            wrong.append(Mistake(member.line, f"{member.name!r} is no name for an agent", "write `### Architect`"))
            continue
        if name.casefold() in seen:
            wrong.append(Mistake(member.line, f"two agents are called {name}", "give each a name of its own"))
        seen.add(name.casefold())
        yield _member(name, member, wrong)


def _member(name: str, member: Member, wrong: list[Mistake]) -> CastMember:
    given = _given(member.fields, [*FIELDS, "description"], f"field of {member.name}", wrong)

    def problem(path: tuple[str, ...], why: str) -> None:
        key = "role" if path[0] == "name" else path[0]
        wrong.append(Mistake(member.fields[key].line, f"{key} of {member.name}: {why}", _CORRECT))

    backend = str(given.pop("backend", "")).strip("`")
    # A template that came with somebody's files must not name a program to run.
    if backend.partition(":")[0] in ("command", "acp") or "@" in backend:
        what = f"the backend of {member.name} names a program or a folder: templates must not"
        fix = f"say it yourself: --agent {member.name.split(' ')[0]}={backend}"
        wrong.append(Mistake(member.fields["backend"].line, what, fix))
    special = filter(None, (given.pop("specialization", ""), given.pop("description", "")))
    role: Role = read_as(RoleTable, {**given, "specialization": [*special]}, problem)
    return CastMember(name, role, backend)


def _phases(steps: Sequence[Point], verdict: str) -> Iterator[Phase]:
    """The phases; a step without a short name is called by its number. Where none says that it votes, the last."""
    says = any(step.votes for step in steps)
    for number, step in enumerate(steps, 1):
        name, description = one_line(step.name, LONGEST), one_line(step.description, LONGEST)
        if not name or len(name) > 40:
            name, description = f"STEP {number}", f"{name} {description}".strip()
        votes = step.votes or (verdict == "vote" and not says and number == len(steps))
        yield Phase(name, description, max(step.rounds, 1), votes)


def _kinds(messages: Sequence[Point], known: Mapping[str, Kind], wrong: list[Mistake]) -> Mapping[str, Kind]:
    kinds = dict(known)
    for message in messages:
        name = "_".join(re.split(r"[\s_-]+", message.name.strip(" \t_-").upper()))
        if NAME.fullmatch(name):
            kinds[name] = replace(known.get(name, Kind("")), meaning=one_line(message.description, LONGEST))
        else:
            what = f"{message.name!r} is ignored: the name of a message is of letters and `_`"
            wrong.append(Mistake(message.line, what))
    return MappingProxyType(kinds)


def _in_cast(
    front: Mapping[str, WrittenValue], matter: Matter, cast: Sequence[CastMember], wrong: list[Mistake]
) -> tuple[str, tuple[str, ...]]:
    """The judge, and who begins, by their names; what names nobody of the cast is a problem."""
    known = {part.name.casefold(): part.name for part in cast}
    describe = "describe it below `## Agents`"
    judge = known.get((matter.judge or "judge").casefold(), "") if matter.verdict == "judge" else ""
    if matter.verdict == "judge" and not judge:
        line = front["judge" if matter.judge else "verdict"].line
        wrong.append(Mistake(line, f"judge: no agent is called {matter.judge or 'Judge'}", describe))
    for name in matter.first:
        if name.casefold() not in (*known, "all"):
            wrong.append(Mistake(front["first"].line, f"first: no agent is called {name}", describe))
    build = matter.build
    if build is not None and {build.moderator, build.lead} != {*known.values()}:
        what = f"build: {build.moderator} and {build.lead} are not the two agents of it"
        wrong.append(Mistake(front["build"].line, what, describe))
    return judge, tuple(known.get(name.casefold(), name.casefold()) for name in matter.first)

"""A skill (SKILL.md) as it is written: its front matter, its sections, and readers of single values.

Pure. What is wrong in a file is a `Mistake` with its line; a reader of a value raises `ValueError`, which says what.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from dialogd.protocol import units
from dialogd.protocol.marks import outside_fences
from dialogd.protocol.rules import PERMISSIONS, STANDARD, Board, Build
from dialogd.protocol.text import clean, one_line, redact

LONGEST = 2_000  # code points of one text
MOST_AGENTS = 26
_SPAN = re.compile(r"([0-9]{1,2})[ \t]*(?:(\+|or more)|(?:-|–|to)[ \t]*([0-9]{1,2}))?(?:[ \t]*agents?)?", re.I)
_FRACTION = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,9})?(?:[ \t]*/[ \t]*[0-9]{1,6})?[ \t]*%?")

Span = tuple[int, int | None]  # fewest and most agents; None: any number


def text(value: Value) -> str:
    """One line of text; the points of a list after one another."""
    if isinstance(value, Mapping):
        raise ValueError("a table, where a text is meant")
    return one_line(value if isinstance(value, str) else "; ".join(value), LONGEST)


def names(value: Value) -> tuple[str, ...]:
    """A list, or a text with commas."""
    if isinstance(value, Mapping):
        raise ValueError("a table, where names are meant")
    listed = value.split(",") if isinstance(value, str) else value
    return tuple(name for part in listed if (name := one_line(part, 200)))


def flag(value: Value) -> bool:
    """Yes or no."""
    word = text(value).casefold()
    if word not in ("true", "yes", "on", "1", "false", "no", "off", "0"):
        raise ValueError(f"{word!r} is neither true nor false")
    return word in ("true", "yes", "on", "1")


def one_of(known: Sequence[str]) -> Callable[[Value], str]:
    """One of these words."""

    def read(value: Value) -> str:
        word = text(value).casefold().replace("_", "-").replace(" ", "-")
        if word not in known:
            raise ValueError(f"{text(value)!r} is none of {', '.join(known)}{_meant(word, known)}")
        return word

    return read


def part(value: Value) -> float:
    """A part of a whole: `3/4`, `0.75` or `75%`."""
    words = text(value)
    if not _FRACTION.fullmatch(words):
        raise ValueError(f"{words!r} is no part such as 3/4, 0.75 or 75%")
    try:
        number = Fraction(words.replace(" ", "").removesuffix("%")) / (100 if words.endswith("%") else 1)
    except ZeroDivisionError:
        raise ValueError(f"{words!r} divides by nothing") from None
    if not 0 < number <= 1:
        raise ValueError(f"{words!r} is not above 0 and up to 1")
    return float(number)


def weight(value: Value) -> float:
    """What a vote weighs: above 0, up to 1000."""
    words = text(value)
    if not re.fullmatch(r"[0-9]{1,4}(?:\.[0-9]{1,6})?", words) or not 0 < float(words) <= 1000:
        raise ValueError(f"{words!r} is no weight above 0 and up to 1000")
    return float(words)


def integer(value: Value) -> int:
    """A whole number, also below zero."""
    words = text(value)
    if not re.fullmatch(r"[-+]?[0-9]{1,6}", words):
        raise ValueError(f"{words!r} is no whole number")
    return int(words)


def count(value: Value) -> int:
    """A whole number from 1 on."""
    return units.count(text(value))


def seconds(value: Value) -> float:
    """A duration, in seconds."""
    return units.seconds(text(value))


def span(value: Value) -> Span:
    """How many agents: `3`, `2+`, `2-4`."""
    match = _SPAN.fullmatch(text(value))
    if match is None:
        raise ValueError(f"{text(value)!r} is no number of agents")
    least, most = int(match[1]), int(match[3]) if match[3] else None if match[2] else int(match[1])
    if not 1 <= least <= MOST_AGENTS or (most is not None and not least <= most <= MOST_AGENTS):
        raise ValueError(f"{text(value)!r} is no number of agents from 1 to {MOST_AGENTS}")
    return least, most


def read_permissions(value: Value) -> tuple[str, frozenset[str]]:
    """Permissions, and the name of the standard role that has them, if that was written."""
    said = names(value)
    if len(said) == 1 and said[0].casefold() in STANDARD:
        return said[0].casefold(), STANDARD[said[0].casefold()]
    wanted = frozenset(name.strip("`*_ ").upper().replace(" ", "_") for name in said)
    for name in sorted(wanted - set(PERMISSIONS)):
        raise ValueError(f"{name} is no permission{_meant(name, PERMISSIONS) or _meant(name.casefold(), [*STANDARD])}")
    if not wanted:
        raise ValueError("no permission is named")
    return "", wanted


def build(value: Value) -> Build:
    """The rules of a build, a table: `moderator` and `lead` are names of its cast; neither repository nor command."""
    if not isinstance(value, Mapping):
        raise ValueError("a build names its moderator and its lead")
    read = {"moderator": text, "lead": text, "iterations": count, "cycles": _limit, "pass_score": _limit}
    values: dict[str, Any] = {}
    for key, said in value.items():
        if key not in read:
            raise ValueError(f"{key!r} is nothing that a template may say of a build{_meant(key, [*read])}")
        values[key] = read[key](said)
    if not values.get("moderator") or not values.get("lead"):
        raise ValueError("a build names its moderator and its lead")
    return Build(**values)


def board(value: Value) -> Board:
    """The limits of a board: a table, or a list of `key: value`; `true` for the usual ones."""
    if isinstance(value, str) and not flag(value):
        raise ValueError("a board is either there or left out")
    pairs: Iterable[tuple[str, str]] = ()
    if not isinstance(value, str):
        pairs = value.items() if isinstance(value, Mapping) else map(_pair, value)
    usual = Board()
    values: dict[str, Any] = {}
    for key, said in pairs:
        if key not in Board.__dataclass_fields__:
            raise ValueError(f"{key!r} is no limit of a board{_meant(key, [*Board.__dataclass_fields__])}")
        default = getattr(usual, key)
        read = flag if isinstance(default, bool) else _limit if isinstance(default, int) else seconds
        try:
            values[key] = read(said)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return Board(**values)


def _limit(value: Value) -> int:
    number = integer(value)
    if not 0 <= number <= 1_000_000:
        raise ValueError(f"{number} is not from 0 to 1,000,000")
    return number


def _pair(item: str) -> tuple[str, str]:
    key, colon, value = (words.strip() for words in item.partition(":"))
    if not colon:
        raise ValueError(f"{item!r} is no `key: value`")
    return key.casefold().replace("-", "_"), value


def _meant(word: str, known: Sequence[str]) -> str:
    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


# -- Front matter -----------------------------------------------------------------------------------------------------

Value = str | tuple[str, ...] | Mapping[str, str]

LONGEST_FRONT = 20_000  # characters
DEEPEST = 4  # lists and tables within each other


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong in `line` (1-based) of a file, and what to write instead."""

    line: int
    what: str
    fix: str


@dataclass(frozen=True, slots=True)
class WrittenValue:
    """A value as it stands in the file, and its line."""

    value: Value
    line: int


@dataclass(frozen=True, slots=True)
class Front:
    """The front matter's values by key, what could not be read in it, and in which line (from 0) the rest begins."""

    values: Mapping[str, WrittenValue] = field(default_factory=lambda: MappingProxyType({}))
    problems: tuple[Mistake, ...] = ()
    end: int = 0


def front_matter(lines: Sequence[str]) -> Front:
    """Read the front matter that these lines begin with; nothing where the first is no line of three dashes."""
    if not lines or lines[0].rstrip() != "---":
        return Front()
    end = next((index for index, line in enumerate(lines[1:], 1) if line.rstrip() in ("---", "...")), 0)
    if not end:
        return Front(problems=(Mistake(1, "front matter without an end", "close it with a line of `---`"),), end=1)
    values: dict[str, WrittenValue] = {}
    problems: list[Mistake] = []
    for found in _yaml(lines[1:end]):
        if isinstance(found, Mistake):
            problems.append(found)
            continue
        key, written = found
        if key in values:
            problems.append(Mistake(written.line, f"{key} is there twice", "keep one of the two"))
        values[key] = written
    return Front(MappingProxyType(values), tuple(problems), end + 1)


def _yaml(lines: Sequence[str]) -> Iterator[tuple[str, WrittenValue] | Mistake]:
    """The keys of these lines, which begin in line 2 of a file, and their values; or why they are not read.

    Every value is taken as the text that is written: nothing of it is made an object.
    """
    import yaml

    text = "\n".join(lines).translate(_BREAKS)
    if len(text) > LONGEST_FRONT:
        yield Mistake(1, f"front matter of {len(text):,} characters", f"shorten it: up to {LONGEST_FRONT:,} are read")
        return
    try:
        problem = _refused(yaml.parse(text, yaml.BaseLoader))
        root = None if problem else yaml.compose(text, yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        mark = (isinstance(error, yaml.scanner.ScannerError) and error.context_mark) or error.problem_mark
        problem = Mistake(mark.line + 2, f"this is no YAML: {error.problem}", QUOTE)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 2
        problem = Mistake(line, f"this is no YAML: it has the character U+{error.character:04X}", "take it out")
    except (ValueError, OverflowError):
        problem = Mistake(2, "this is no YAML: an escape in it names no character", QUOTE)
    if problem:
        yield problem
    elif isinstance(root, yaml.MappingNode):
        for key, value in root.value:
            yield _key(_words(key)), WrittenValue(_value(value), key.start_mark.line + 2)
    elif root is not None:
        line = root.start_mark.line + 2
        yield Mistake(line, f"{_words(root)[:60]!r} is no `key: value`", "write one key per line")


QUOTE = "write `key: value`, and quotes around a value that holds `: ` or begins with a sign"
_BREAKS = {0x85: " ", 0x2028: " ", 0x2029: " "}  # lines of YAML, but not of a file


def _refused(events: Iterable[Any]) -> Mistake | None:
    """What no front matter needs, and hostile ones do."""
    depth = 0
    for event in events:
        name, line = type(event).__name__, event.start_mark.line + 2
        depth += name.endswith(("SequenceStartEvent", "MappingStartEvent"))
        depth -= name.endswith(("SequenceEndEvent", "MappingEndEvent"))
        if getattr(event, "anchor", None):
            return Mistake(line, "anchors and aliases of YAML are not read", f"write it out; else {QUOTE}")
        if depth > DEEPEST:
            return Mistake(line, f"more than {DEEPEST} levels within each other", "write it flat")
    return None


def _value(node: Any) -> Value:
    """Text, a list of texts, or a table of texts; what lies deeper is one text."""
    if node.id == "sequence":
        return tuple(words for item in node.value if (words := _words(item)))
    if node.id == "mapping":
        return MappingProxyType({_key(_words(key)): _words(value) for key, value in node.value})
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


# -- The sections of a skill ------------------------------------------------------------------------------------------

Line = tuple[int, str]  # number (1-based) and text

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
_BOLD = re.compile(r"(\*\*|__)(?P<name>.+?)\1(?P<rest>.*)")
_CODED = re.compile(r"`(?P<name>[^`]+)`(?P<rest>.*)")
_SHOUTED = re.compile(r"(?P<name>[A-Z][A-Z_]+(?:[ -][A-Z_]+)*)(?=[ \t]*(?:[:–—-]|$))(?P<rest>.*)")
_LENGTH = re.compile(r"\((?=[\dv])(?:(\d{1,4})[ -]rounds?)?(?:, *)?(votes)?\)", re.I)
_ROW = re.compile(r"[ \t]*\|(.+)\|[ \t]*")
_COUNTED = re.compile(r"^(?:(?:phase|step|agent)[ \t]+)?\d{1,3}[ \t]*[.):–—-]*[ \t]+", re.I)


@dataclass(frozen=True, slots=True)
class Section:
    """The lines under one `##` heading; `line` is that of the heading."""

    name: str
    line: int
    lines: tuple[Line, ...]

    @property
    def text(self) -> str:
        """Its text, without empty lines at both ends."""
        return "\n".join(text for _, text in self.lines).strip("\n")


@dataclass(frozen=True, slots=True)
class Member:
    """One agent of the cast as it is written; the values by field name."""

    name: str
    line: int
    fields: dict[str, WrittenValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Point:
    """One phase of the workflow, or one kind of message, as it is written; `votes`: the voting begins with it."""

    name: str
    description: str
    line: int
    rounds: int = 1
    votes: bool = False


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


def split(lines: Sequence[str], start: int) -> tuple[str, list[Line], list[Section]]:
    """The title, the lines before the first section, and the sections, of the lines from `start` (from 0) on."""
    rest = lines[start:]
    open_ = {start + index + 1 for index, _ in outside_fences(rest, forgiving=True)}
    one, two = _heading(1), _heading(2)
    (_, _, intro), *sections = _blocks(enumerate(rest, start + 1), lambda line: two(line) if line[0] in open_ else None)
    heads = [line for line in intro if line[0] in open_ and one(line) is not None][:1]
    title = one(heads[0]) if heads else ""
    named = [Section(name.strip("#*_: \t").casefold(), at, tuple(below)) for name, at, below in sections]
    return title or "", [line for line in intro if line not in heads], named


def members(section: Section) -> Iterator[Member]:
    """The agents: a `### Name` each, with bold field names below it."""
    for name, line, lines in [*_blocks(section.lines, _heading(3))][1:]:
        yield Member(_COUNTED.sub("", name).strip("*_` "), line, dict(_fields(lines)))


def _fields(lines: Sequence[Line]) -> Iterator[tuple[str, WrittenValue]]:
    """The fields of one agent: text, or a list where bullets stand below the name."""
    key, at, words, items = "", 0, list[str](), list[str]()
    for line, text in lines:
        match = _FIELD.fullmatch(text)
        if match and (match[2] or match[3].casefold() in FIELDS):
            if key:
                yield key, _written(at, words, items)
            key, at = (match[2] or match[3]).strip().casefold(), line
            words, items = [match[4].strip()] if match[4].strip() else [], []
        elif bullet := _BULLET.fullmatch(text):
            items.append(bullet[1].strip())
        elif text.strip():
            if items:
                items[-1] += f" {text.strip()}"
            else:
                words.append(text.strip())
            key, at = key or "description", at or line
    if key:
        yield key, _written(at, words, items)


def _written(line: int, words: Sequence[str], items: Sequence[str]) -> WrittenValue:
    text = " ".join(words)
    return WrittenValue(tuple(item for item in (text, *items) if item) if items else text, line)


def steps(section: Section) -> Iterator[Point]:
    """The phases: numbered lines or `###` headings, the name in bold or before the first colon."""
    headed = [(_COUNTED.sub("", name), line, lines) for name, line, lines in _blocks(section.lines, _heading(3))][1:]
    for head, line, lines in headed or [*_blocks(section.lines, _number)][1:]:
        length = _LENGTH.search(head)
        rounds, votes = length.groups() if length else (None, None)
        name, rest = _named(_LENGTH.sub("", head, count=1))
        below = " ".join(_flat(text) for _, text in lines if text.strip())
        said = " ".join(f"{_flat(rest)} {below}".split())
        yield Point(" ".join(name.split()), said, line, int(rounds or 1), bool(votes))


def _number(line: Line) -> str | None:
    match = _NUMBERED.fullmatch(line[1])
    return match[1] if match else None


def _named(text: str) -> tuple[str, str]:
    """A name and what is said of it: `**NAME**: text`, `NAME: text`, `NAME - text`; without either all is the name."""
    for pattern in (_BOLD, _CODED, _SHOUTED):
        match = pattern.match(text.strip())
        if match:
            return match["name"].strip("*_`[](): "), match["rest"]
    name, _, rest = text.partition(":")
    return name.strip(), rest


def messages(section: Section) -> Iterator[Point]:
    """The kinds of message: bullets or table rows that begin with a name in bold, as code, or in capitals."""
    for line, text in section.lines:
        row, bullet = _ROW.fullmatch(text), _BULLET.fullmatch(text)
        said = row[1].strip().replace("|", ":", 1) if row else bullet[1] if bullet else text.strip()
        if not any(pattern.match(said) for pattern in (_BOLD, _CODED, _SHOUTED)):
            continue
        name, rest = _named(said)
        yield Point(name, _flat(rest.rstrip("| ")), line)


def points(section: Section) -> tuple[str, ...]:
    """The points of a list, one text each; without bullets, its paragraphs."""
    found: list[str] = []
    is_open = False
    for _, text in section.lines:
        bullet = _BULLET.fullmatch(text)
        if bullet:
            found.append(_flat(bullet[1]))
        elif text.strip() and is_open:
            found[-1] += f" {_flat(text)}"
        elif text.strip():
            found.append(_flat(text))
        is_open = bool(text.strip())
    return tuple(found)


def _flat(text: str) -> str:
    """Markdown on one line without bold and bullets; code stays as it is."""
    match = _BULLET.fullmatch(text)
    return " ".join(re.sub(r"\*\*|__", "", match[1] if match else text).lstrip(":–— \t").split())


# -- Skills -----------------------------------------------------------------------------------------------------------

LONGEST_LINE = 5_000  # characters


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
        return {
            "position": self.position,
            "overview": self.overview,
            "agents": [
                {
                    "name": member.name,
                    "personality": joined(member.fields.get("personality")),
                    "responsibilities": list(listed(member.fields.get("responsibilities"))),
                }
                for member in self.agents
            ],
            "workflow": [{"phase": step.name, "description": step.description} for step in self.workflow],
            "communicationProtocol": [{"type": m.name, "description": m.description} for m in self.messages],
            "successCriteria": list(self.success),
            "errorHandling": list(self.errors),
        }


def read(text: str, name: str) -> Skill:
    """Read a skill; `name` counts where the front matter gives none."""
    whole = clean(text.removeprefix("\ufeff")).split("\n")
    lines = [line if len(line) <= LONGEST_LINE else redact(line)[0][:LONGEST_LINE] for line in whole]
    front = front_matter(lines)
    title, intro, found = split(lines, front.end)
    by_name = {section.name: section for section in reversed(found)}

    def of(section: str) -> Section:
        return by_name.get(section, Section(section, 0, ()))

    said = joined(front.values.get("name")) or name
    places = (_place(line) for _, line in (*intro, *of("overview").lines))
    place = joined(front.values.get("position")) or next(filter(None, places), "")
    overview = of("overview").text or "\n".join(line for _, line in intro).strip("\n")
    return Skill(
        name=said,
        title=title,
        position=place or title or said,
        overview="\n".join(line for line in overview.split("\n") if not _place(line)).strip("\n"),
        agents=tuple(members(of("agents"))),
        workflow=tuple(steps(of("workflow"))),
        messages=tuple(messages(of("communication protocol"))),
        success=points(of("success criteria")),
        errors=points(of("error handling")),
        rules=of("rules").text,
        opening=of("opening").text,
        opening_line=of("opening").line,
        front=MappingProxyType(dict(front.values)),
        problems=(*front.problems, *_sections(found), *_lines(whole)),
    )


def joined(written: WrittenValue | None) -> str:
    """A value as one text; the points of a list after one another."""
    value = written.value if written else ""
    return value if isinstance(value, str) else "; ".join(value)


def listed(written: WrittenValue | None) -> tuple[str, ...]:
    """A value as a list; a text is its only point."""
    value = written.value if written else ()
    return tuple(value) if not isinstance(value, str) else (value,) if value else ()


def _sections(found: Sequence[Section]) -> Iterator[Mistake]:
    """Sections that are there twice, and names that are nearly right."""
    seen: set[str] = set()
    for section in found:
        close = get_close_matches(section.name, SECTIONS, n=1, cutoff=0.85)
        if section.name in SECTIONS and section.name in seen:
            what = f"the section `## {section.name.title()}` is there twice"
            yield Mistake(section.line, what, "make one of the two")
        elif close and section.name not in SECTIONS:
            yield Mistake(section.line, f"unknown section {section.name!r}", f"did you mean `## {close[0].title()}`?")
        seen.add(section.name)


def _lines(lines: Sequence[str]) -> Iterator[Mistake]:
    """Keys, which a template must not carry into dialogs; lines that nobody would read."""
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_LINE:
            yield Mistake(number, f"a line of {len(line):,} characters", f"break it: up to {LONGEST_LINE:,} are read")
        if redact(line)[1]:
            yield Mistake(number, "there is something like a key in it", "take it out: keys belong into .env")


def _place(line: str) -> str:
    name, colon, where = line.replace("*", "").replace("_", "").partition(":")
    return where.strip() if colon and name.strip(" -\t").casefold() == "position" else ""

"""The sections of a skill: what stands under `## Agents`, `## Workflow` and the others. Pure; never fails.

Headings and names count in any case; nothing in a code fence is structure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dialogd.protocol.marks import outside_fences
from dialogd.skill.front import Problem, Written

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
_ROUNDS = re.compile(r"\((\d{1,4})[ -]rounds?\)", re.I)
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
    fields: dict[str, Written] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """One phase of the workflow as it is written."""

    name: str
    description: str
    rounds: int
    line: int


@dataclass(frozen=True, slots=True)
class Message:
    """One kind of message as it is written."""

    name: str
    description: str
    line: int


def split(lines: Sequence[str], start: int) -> tuple[str, tuple[Line, ...], tuple[Section, ...]]:
    """The title, the lines before the first section, and the sections, of the lines from `start` (from 0) on."""
    rest = lines[start:]
    open_ = {index for index, _ in outside_fences(rest, forgiving=True)}
    title, name, at = "", "", 0
    current: list[Line] = []
    intro: tuple[Line, ...] = ()
    sections: list[Section] = []
    for index, text in enumerate(rest):
        match = _HEADING.fullmatch(text) if index in open_ else None
        if match and len(match[1]) == 1 and not title and not at:
            title = match[2].rstrip("# \t")
        elif match and len(match[1]) == 2:
            if at:
                sections.append(Section(name, at, tuple(current)))
            else:
                intro = tuple(current)
            name, at, current = match[2].strip("#*_: \t").casefold(), start + index + 1, []
        else:
            current.append((start + index + 1, text))
    if not at:
        return title, tuple(current), ()
    return title, intro, (*sections, Section(name, at, tuple(current)))


def members(section: Section) -> Iterator[Member]:
    """The agents: a `### Name` each, with bold field names below it."""
    for name, line, lines in _headed(section):
        yield Member(_COUNTED.sub("", name).strip("*_` "), line, dict(_fields(lines)))


def _headed(section: Section) -> Iterator[tuple[str, int, list[Line]]]:
    """What stands under each `###` heading of a section."""
    name, at, current = "", 0, list[Line]()
    for line, text in section.lines:
        match = _HEADING.fullmatch(text)
        if match and len(match[1]) == 3:
            if at:
                yield name, at, current
            name, at, current = match[2].rstrip("# \t"), line, []
        else:
            current.append((line, text))
    if at:
        yield name, at, current


def _fields(lines: Sequence[Line]) -> Iterator[tuple[str, Written]]:
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


def _written(line: int, words: Sequence[str], items: Sequence[str]) -> Written:
    text = " ".join(words)
    return Written(tuple(item for item in (text, *items) if item) if items else text, line)


def steps(section: Section) -> Iterator[Step]:
    """The phases: numbered lines or `###` headings, the name in bold or before the first colon."""
    headed = [(_COUNTED.sub("", name), line, lines) for name, line, lines in _headed(section)]
    for head, line, lines in headed or _numbered(section):
        rounds = _ROUNDS.search(head)
        name, rest = _named(_ROUNDS.sub("", head, count=1))
        below = " ".join(_flat(text) for _, text in lines if text.strip())
        said = " ".join(f"{_flat(rest)} {below}".split())
        yield Step(" ".join(name.split()), said, int(rounds[1]) if rounds else 1, line)


def _numbered(section: Section) -> Iterator[tuple[str, int, list[Line]]]:
    head, at, current = "", 0, list[Line]()
    for line, text in section.lines:
        match = _NUMBERED.fullmatch(text)
        if match:
            if at:
                yield head, at, current
            head, at, current = match[1], line, []
        else:
            current.append((line, text))
    if at:
        yield head, at, current


def _named(text: str) -> tuple[str, str]:
    """A name and what is said of it: `**NAME**: text`, `NAME: text`, `NAME - text`; without either all is the name."""
    for pattern in (_BOLD, _CODED, _SHOUTED):
        match = pattern.match(text.strip())
        if match:
            return match["name"].strip("*_`[](): "), match["rest"]
    name, _, rest = text.partition(":")
    return name.strip(), rest


def messages(section: Section) -> Iterator[Message]:
    """The kinds of message: bullets or table rows that begin with a name in bold, as code, or in capitals."""
    for line, text in section.lines:
        row, bullet = _ROW.fullmatch(text), _BULLET.fullmatch(text)
        said = row[1].strip().replace("|", ":", 1) if row else bullet[1] if bullet else text.strip()
        if not any(pattern.match(said) for pattern in (_BOLD, _CODED, _SHOUTED)):
            continue
        name, rest = _named(said)
        yield Message(name, _flat(rest.rstrip("| ")), line)


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


def unknown(section: Section, close: str) -> Problem:
    """That a section's name is nearly one that is known."""
    return Problem(section.line, f"the section {section.name!r} is not known", f"did you mean `## {close.title()}`?")

"""Front matter: the small part of YAML that the heads of Markdown files are written in. Pure.

key: value          text up to the end of the line; quoted, it may hold a `#`
key: [a, b]         a list; or one `- item` per line below the key
key: {a: 1, b: 2}   a table; or indented `a: 1` lines below the key
key: >    key: |    text on the indented lines below: joined, or line by line
# comment
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

Value = str | tuple[str, ...] | Mapping[str, str]

_KEY = re.compile(r"([A-Za-z_][\w.-]*)[ \t]*:(?:[ \t]+(.*)|[ \t]*)")
_ITEM = re.compile(r"[ \t]*-(?:[ \t]+(.*)|[ \t]*)")
_BLOCK = re.compile(r"[>|][-+]?[0-9]?")
_COMMENT = re.compile(r"(?:^|[ \t])#.*$")
_QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')[ \t]*(?:#.*)?""")
_PART = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^,]*)\s*(?:,|$)""")
_PIECE = re.compile(r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^,"'])+""")  # between commas outside quotes
_PAIR = re.compile(r"""["']?([^,:"']+)["']?:(.*)""", re.S)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong in `line` (1-based) of a file, and what to write instead."""

    line: int
    what: str
    fix: str


@dataclass(frozen=True, slots=True)
class Written:
    """A value as it stands in the file, and its line."""

    value: Value
    line: int


@dataclass(frozen=True, slots=True)
class Front:
    """The front matter's values by key, what could not be read in it, and in which line (from 0) the rest begins."""

    values: Mapping[str, Written] = field(default_factory=lambda: MappingProxyType({}))
    problems: tuple[Problem, ...] = ()
    end: int = 0


def front_matter(lines: Sequence[str]) -> Front:
    """Read the front matter that these lines begin with; nothing where the first is no line of three dashes."""
    if not lines or lines[0].rstrip() != "---":
        return Front()
    end = next((index for index, line in enumerate(lines[1:], 1) if line.rstrip() in ("---", "...")), 0)
    if not end:
        return Front(problems=(Problem(1, "front matter without an end", "close it with a line of `---`"),), end=1)
    values: dict[str, Written] = {}
    problems: list[Problem] = []
    for number, line, below in _entries(lines[:end]):
        match = _KEY.fullmatch(line)
        if match is None:
            problems.append(Problem(number, f"{line.strip()[:60]!r} is no `key: value`", "write one key per line"))
            continue
        key = match[1].casefold().replace("-", "_")
        if key in values:
            problems.append(Problem(number, f"{match[1]} is there twice", "keep one of the two"))
        values[key] = Written(_value(match[2] or "", below), number)
    return Front(MappingProxyType(values), tuple(problems), end + 1)


def _entries(lines: Sequence[str]) -> Iterator[tuple[int, str, list[str]]]:
    """Each line at the margin with its number, and the lines that hang below it."""
    head, number, below = "", 0, list[str]()
    for index, line in enumerate(lines[1:], 2):
        if line[:1] in (" ", "\t", "") or (head and _ITEM.fullmatch(line)):
            below.append(line)
        elif not line.startswith("#"):
            if head:
                yield number, head, below
            head, number, below = line, index, []
    if head:
        yield number, head, below


def _value(text: str, below: Sequence[str]) -> Value:
    kept = [line for line in below if line.strip() and not line.lstrip().startswith("#")]
    bare = _COMMENT.sub("", text).strip()
    if _BLOCK.fullmatch(bare):
        joint = "\n" if bare.startswith("|") else " "
        return joint.join(line.strip() for line in below).strip()
    if bare:
        whole = " ".join((text.strip(), *(line.strip() for line in kept)))
        return _list(whole) if whole.startswith("[") else _inline(whole) if whole.startswith("{") else scalar(whole)
    if kept and all(_ITEM.fullmatch(line) for line in kept):
        return tuple(scalar(match[1] or "") for line in kept if (match := _ITEM.fullmatch(line)))
    return _table(kept) or " ".join(line.strip() for line in kept)


def _table(lines: Iterable[str]) -> Mapping[str, str]:
    """The `key: value` pairs of these lines; what is nested deeper is flat here."""
    pairs = [(match[1], match[2] or "") for line in lines if (match := _KEY.fullmatch(line.strip()))]
    return MappingProxyType({key.casefold().replace("-", "_"): scalar(value) for key, value in pairs})


def scalar(text: str) -> str:
    """One value as text: without its quotes, or without the comment behind it."""
    text = text.strip()
    match = _QUOTED.fullmatch(text)
    if match is None:
        return _COMMENT.sub("", text).strip()
    if match[1].startswith("'"):
        return match[1][1:-1].replace("''", "'")
    try:
        return str(json.loads(match[1], strict=False))
    except ValueError:  # YAML knows escapes that JSON does not
        return match[1][1:-1]


def _inline(text: str) -> Value:
    inside = _COMMENT.sub("", text).strip().removeprefix("{").removesuffix("}")
    parts = (_PAIR.fullmatch(piece[0].strip()) for piece in _PIECE.finditer(inside))
    return _table(f"{match[1].strip()}: {match[2].strip()}" for match in parts if match) or text


def _list(text: str) -> tuple[str, ...]:
    inside = _COMMENT.sub("", text).strip().removeprefix("[").removesuffix("]").strip()
    if not inside:
        return ()
    return tuple(item for match in _PART.finditer(inside) if (item := scalar(match[1])))

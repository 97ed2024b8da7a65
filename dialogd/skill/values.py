"""Readers of single values of a template, as people write them. Pure; each raises `ValueError` saying what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from fractions import Fraction
from typing import Any

from dialogd.protocol import units
from dialogd.protocol.roles import PERMISSIONS, STANDARD
from dialogd.protocol.rules import Board
from dialogd.protocol.text import one_line
from dialogd.skill.front import Value

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


def permissions(value: Value) -> tuple[str, frozenset[str]]:
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


def board(value: Value) -> Board:
    """The limits of a board: a table, or a list of `key: value`; `true` for the usual ones."""
    if isinstance(value, str):
        return _plain_board(value)
    pairs = value.items() if isinstance(value, Mapping) else (_pair(item) for item in value)
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


def _plain_board(value: str) -> Board:
    if not flag(value):
        raise ValueError("a board is either there or left out")
    return Board()


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

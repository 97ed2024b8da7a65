"""Quantities and times as people write them: `5 minutes`, `1,000`, `1 MB`, `$2.00`, `18:00`. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from reprlib import repr as shown  # cut to some thirty characters: a header may hold anything

MAX_SECONDS = 7 * 86_400.0
MAX_COUNT = 1_000_000_000
MAX_SIZE = 1_000_000_000_000
MAX_DOLLARS = 1_000_000.0
MAX_TOKENS = 1_000_000_000_000

Budget = tuple[float | None, int | None]  # US dollars and tokens, None for what is not limited
NO_BUDGET: Budget = (None, None)

# [0-9] and not \d: digits of other scripts are more likely an accident than a limit.
_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,15})(?:\.[0-9]{1,9})?"
_PART = re.compile(rf"({_NUMBER})\s*([a-z]*)")
_JOINT = re.compile(r"\s*(?:,\s*)?(?:and\s+)?")
_COUNT = re.compile(r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,15})(?:\s*(?:turns?|characters?|chars?))?")
_AMOUNT = re.compile(
    rf"(?:(?:us\s?)?\$|usd)\s?({_NUMBER})(?![\w.])|({_NUMBER})\s?(?:us\s?)?(?:\$|usd|dollars?)(?!\w)"
    rf"|({_NUMBER})\s?([km]?)\s?(?:tokens?|toks?)(?!\w)"
)


def _units(**names: tuple[str, float]) -> dict[str, float]:
    return {name: factor for words, factor in names.values() for name in words.split()}


_SECONDS_IN = _units(
    ms=("ms millisecond milliseconds", 0.001), s=("s sec secs second seconds", 1),
    m=("m min mins minute minutes", 60), h=("h hr hrs hour hours", 3_600), d=("d day days", 86_400),
)  # fmt: skip
_BYTES_IN = {"": 1, **_units(
    b=("b byte bytes", 1), k=("k kb", 1e3), m=("m mb", 1e6), g=("g gb", 1e9),
    kib=("kib", 2**10), mib=("mib", 2**20), gib=("gib", 2**30),
)}  # fmt: skip
_TOKENS_IN = {"": 1, "k": 1_000, "m": 1_000_000}
_IN_WORDS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def seconds(value: str | float) -> float:
    """Read a duration, more than nothing and at most 7 days, as seconds. Raises `ValueError`."""
    wrong = f"{shown(value)} is not a duration such as `5 minutes`, `90 seconds` or `1h 30m`"
    text, total, position = str(value).strip().lower(), 0.0, 0
    if _is_number(value) or re.fullmatch(_NUMBER, text):
        total, position = _number(text), len(text)
    while position < len(text) or not text:
        match = _PART.match(text, position)
        if match is None:
            raise ValueError(wrong)
        if match[2] not in _SECONDS_IN:
            raise ValueError(f"{shown(match[2])} is not a unit of time; write `5 minutes`, `90 seconds` or `1h 30m`")
        total += _number(match[1]) * _SECONDS_IN[match[2]]
        joint = _JOINT.match(text, match.end())
        position = joint.end() if joint else match.end()
        if position == len(text) != match.end():
            raise ValueError(wrong)
    if not 0 < total <= MAX_SECONDS:
        raise ValueError(f"{shown(value)} is longer than 7 days" if total > 0 else f"{wrong}, above zero")
    return total


def count(value: str | float) -> int:
    """Read a whole number from 1 to 1,000,000,000. Raises `ValueError`."""
    match = _COUNT.fullmatch(str(value).strip().lower().removesuffix(".0"))
    if match is None or isinstance(value, bool):
        raise ValueError(f"{shown(value)} is not a whole number such as `20` or `1,000`")
    return int(_within(_number(match[1]), value, MAX_COUNT))


def size(value: str | float) -> int:
    """Read a size, at least one byte and at most 1 TB, as bytes. Raises `ValueError`."""
    match = _PART.fullmatch(str(value).strip().lower())
    if match is None or match[2] not in _BYTES_IN:
        raise ValueError(f"{shown(value)} is not a size such as `1 MB` or `500 KB`")
    return int(_within(_number(match[1]) * _BYTES_IN[match[2]], value, MAX_SIZE))


def budget(value: str) -> Budget:
    """Read a budget of dollars, of tokens, or of both. Raises `ValueError`."""
    text, position = str(value).strip().lower(), 0
    found: dict[bool, float] = {}
    while match := _AMOUNT.match(text, position):
        money = match[1] or match[2]
        if bool(money) in found:
            raise ValueError(f"{shown(value)} names two amounts of the same kind")
        if money and not 0 < _number(money) <= MAX_DOLLARS:
            raise ValueError(f"{shown(value)} is not between $0 and ${MAX_DOLLARS:,.0f}")
        tokens = 0 if money else _within(_number(match[3]) * _TOKENS_IN[match[4]], value, MAX_TOKENS)
        found[bool(money)] = _number(money) if money else tokens
        if match.end() == len(text):
            return found.get(True), int(found[False]) if False in found else None
        joint = _JOINT.match(text, match.end())
        position = joint.end() if joint else match.end()
    raise ValueError(f"{shown(value)} is not a budget such as `$2.00`, `200,000 tokens` or `$2.00, 500k tokens`")


def dollars(amount: float) -> str:
    """Write an amount as people do: `$2.00`, `$1,234.50`; below a dollar up to four digits: `$0.0061`, `$0.34`."""
    if amount >= 1:
        return f"${amount:,.2f}"
    whole, _, rest = f"{amount:.4f}".partition(".")
    return f"${whole}.{rest.rstrip('0'):0<2}" if float(f"{amount:.4f}") or not amount else "under $0.0001"


def budget_line(usd: float | None, tokens: int | None) -> str:
    """Write a budget so that `budget` reads it back as it is: `$2.00, 200,000 tokens`; "" for none."""
    parts = []
    if usd is not None:
        whole, _, rest = f"{usd:,.9f}".partition(".")
        parts.append(f"${whole}.{rest.rstrip('0'):0<2}")
    if tokens is not None:
        parts.append(f"{tokens:,} tokens")
    return ", ".join(parts)


def many(count: int, what: str) -> str:
    """A number of things: `1 round`, `5 rounds`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def listed(names: Sequence[str], word: str = "and") -> str:
    """`A`, `A and B`, `A, B and C`; "" for none."""
    return f" {word} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def in_words(duration: float) -> str:
    """Write finite seconds as people say them: `3 minutes 2 seconds`, `6.1 seconds`, `0 seconds`."""
    tenths = round(max(duration, 0.0), 1)
    if tenths < 60:
        text = f"{tenths:.1f}".removesuffix(".0")
        return f"{text} second" if text == "1" else f"{text} seconds"
    rest, words = round(duration), []
    for unit, length in _IN_WORDS:
        amount, rest = divmod(rest, length)
        if amount:
            words.append(f"{amount} {unit}" if amount == 1 else f"{amount} {unit}s")
    return " ".join(words)


def seconds_between(earlier: str, later: str) -> float | None:
    """Seconds between two times as they stand in the file, such as `2026-11-21 20:00:00 +01:00`; None if one is none.

    A time without an offset is taken as UTC.
    """
    times = []
    for text in (earlier, later):
        try:
            time = datetime.fromisoformat(text.strip().replace(" +", "+").replace(" -", "-"))
        except ValueError:
            return None
        times.append(time.replace(tzinfo=UTC) if time.tzinfo is None else time)
    return (times[1] - times[0]).total_seconds()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _within(number: float, value: object, most: int) -> float:
    if not 1 <= number <= most:
        raise ValueError(f"{shown(value)} is not between 1 and {most:,}")
    return number


# -- Times, read by the clock of a place ------------------------------------------------------------------------------

JUST_PASSED = 21_600.0  # seconds for which a time of day that has passed means today's

_ISO = re.compile(r"([2-8]\d{3}-\d\d-\d\d)[Tt ](\d\d:\d\d(?::\d\d)?)\s?([Zz]|[+-]\d\d:?\d\d)")
_LOCAL = re.compile(r"([2-8]\d{3}-\d\d-\d\d)[Tt ](\d\d:\d\d(?::\d\d)?)")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")

# A moment by the clock of a place, with the offset of that very date; a naive one is a time by that clock.
Zone = Callable[[datetime], datetime]


@dataclass(frozen=True, slots=True)
class Here:
    """When and where a daemon writes: wall time with its machine's offset, and that machine's clock.

    Without a `zone` the offset holds for every date.
    """

    at: str
    zone: Zone | None = None


def iso(text: str) -> str:
    """A date and time with its offset, in the form that the file has; "" for anything else."""
    match = _ISO.fullmatch(text.strip())
    if match is None:
        return ""
    try:
        return as_iso(datetime.fromisoformat(f"{match[1]}T{match[2]}{match[3].upper()}"))
    except ValueError:
        return ""


def moment_of(text: str) -> datetime | None:
    """Wall time as it is given, or stands in the file; None for none."""
    exact = iso(text)
    return datetime.fromisoformat(exact) if exact else None


def named(words: str, now: datetime, zone: Zone) -> datetime | None:
    """The moment that an ISO time, or a time of day in `zone`, names; None for other words. Raises `ValueError`.

    A time of day that has just passed is today's; one that has long passed is tomorrow's, as midnight always is.
    """
    words = " ".join(words.split())
    if exact := iso(words):
        return datetime.fromisoformat(exact)
    if match := _LOCAL.fullmatch(words):
        return zone(datetime.fromisoformat(f"{match[1]}T{match[2]}"))
    match = _CLOCK.fullmatch(words)
    if match is None:
        return None
    moment = datetime.combine(zone(now).date(), time(int(match[1]), int(match[2])))
    ago = (now - zone(moment)).total_seconds()
    if ago >= (0 if moment.time() == time(0) else JUST_PASSED):
        moment += timedelta(days=1)
    return zone(moment)


def clock_at(offset: tzinfo | None) -> Zone:
    """The clock of a place with that offset on every date."""
    return lambda moment: moment.astimezone(offset) if moment.tzinfo else moment.replace(tzinfo=offset)


def whole_minute(moment: datetime) -> datetime:
    """The moment, up to the next whole minute."""
    return moment if not moment.second else moment + timedelta(seconds=60 - moment.second)


def as_iso(moment: datetime) -> str:
    """The moment as the file has it."""
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")

"""Times, read by the clock of a place: `2026-11-22T18:00+01:00`, `2026-11-22 18:00`, `18:00`. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, time, timedelta, tzinfo

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
        return as_iso(datetime.fromisoformat(f"{match[1]}T{match[2]}{match[3].upper().replace('Z', '+00:00')}"))
    except ValueError:
        return ""


def moment_of(text: str) -> datetime | None:
    """Wall time as it is given, or stands in the file; None for none."""
    exact = iso(text)
    return datetime.fromisoformat(exact.replace("Z", "+00:00")) if exact else None


def named(words: str, now: datetime, zone: Zone) -> datetime | None:
    """The moment that an ISO time, or a time of day in `zone`, names; None for other words. Raises `ValueError`.

    A time of day that has just passed is today's; one that has long passed is tomorrow's, as midnight always is.
    """
    words = " ".join(words.split())
    if exact := iso(words):
        return datetime.fromisoformat(exact.replace("Z", "+00:00"))
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

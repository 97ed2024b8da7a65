"""Times as people write them, read by the clock of a place: dates, times of day, offsets. Pure.

time   = [ "today" / "tomorrow" ] clock [zone] / date [ ("T" / SP) clock [zone] ]
clock  = HH ":" MM [":" SS] / HH [":" MM] ("am" / "pm") / "noon" / "midnight"
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo

JUST_PASSED = 21_600.0  # seconds for which a time of day that has passed means today's

_ISO = re.compile(r"([2-8]\d{3}-\d\d-\d\d)[Tt ](\d\d:\d\d(?::\d\d)?)\s?([Zz]|[+-]\d\d:?\d\d)")
_TIME = re.compile(
    r"(?:(today|tomorrow|[2-8]\d{3}-\d\d-\d\d)(?:,?\s+(?:at\s+)?|[Tt](?=\d))?)?"
    r"(?:(\d\d?)(?::(\d\d)(?::(\d\d))?)?\s?([ap]\.?m\.?)?|(noon|midnight))?"
    r"(?:\s?(utc|gmt|[Zz]|[+-]\d\d:?\d\d))?(?:\s+(today|tomorrow))?\.?",
    re.I,
)

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
    """The moment that these words name, a time of day in `zone` where they name none. Raises `ValueError`.

    A time of day that has just passed is today's; one that has long passed is tomorrow's, as midnight always is.
    """
    words = " ".join(words.split())
    if exact := iso(words):
        return datetime.fromisoformat(exact.replace("Z", "+00:00"))
    match = _TIME.fullmatch(words)
    if match is None or not any((match[1], match[2], match[6])):
        return None
    day, hour, minute, second, half, name, offset, after = match.groups()
    is_bare = hour is not None and minute is None and half is None
    if is_bare or (day and after):  # `by 18` is no time
        return None
    zone = clock_at(_offset(offset)) if offset else zone
    word = (day or after or "").lower()
    date = datetime.fromisoformat(word).date() if word[:1].isdigit() else zone(now).date()
    moment = datetime.combine(date, _clock(hour, minute, second, half, name))
    ago = (now - zone(moment)).total_seconds()
    is_midnight = (name or "").lower() == "midnight"
    is_next = ago >= (0 if moment.time() == time(0) else JUST_PASSED)
    if word == "tomorrow" or (word == "today" and is_midnight) or (not word and is_next):
        moment += timedelta(days=1)
    return zone(moment)


def clock_at(offset: tzinfo | None) -> Zone:
    """The clock of a place with that offset on every date."""
    return lambda moment: moment.astimezone(offset) if moment.tzinfo else moment.replace(tzinfo=offset)


def _clock(hour: str | None, minute: str | None, second: str | None, half: str | None, name: str | None) -> time:
    """The time of day; the last minute where only a date is given. Raises `ValueError`."""
    if name:
        return time(12 if name.lower() == "noon" else 0)
    if hour is None:
        return time(23, 59)
    number = int(hour)
    if half:
        if not 1 <= number <= 12:
            raise ValueError(f"{hour} {half} is no time")
        number = number % 12 + (12 if half[0] in "pP" else 0)
    return time(number, int(minute or 0), int(second or 0))


def _offset(zone: str) -> timezone:
    if zone.upper() in ("UTC", "GMT", "Z"):
        return UTC
    sign = -1 if zone[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:])))


def whole_minute(moment: datetime) -> datetime:
    """The moment, up to the next whole minute."""
    return moment if not moment.second else moment + timedelta(seconds=60 - moment.second)


def as_iso(moment: datetime) -> str:
    """The moment as the file has it."""
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")

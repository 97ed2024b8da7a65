"""Times as the memory keeps them: ISO in UTC, `2026-11-21T19:00:00Z`, "" where nobody knows. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from dialogd.errors import BadInput
from dialogd.protocol import units
from dialogd.protocol.model import Entry

_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d{1,6})? ?(Z|[+-]\d\d:\d\d)")

_AGO = re.compile(r"(\d{1,5})\s*(d|days?|w|weeks?)", re.I)


def written(at: datetime) -> str:
    """A time with its offset as it is kept. Raises `OverflowError` at the ends of the calendar."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def iso(text: str) -> str:
    """A written time with its offset as it is kept; "" for anything else."""
    match = _ISO.fullmatch(text.strip())
    if match is None:
        return ""
    try:
        return written(datetime.fromisoformat(f"{match[1]}T{match[2]}{match[3].replace('Z', '+00:00')}"))
    except (ValueError, OverflowError):
        return ""


def moment(entry: Entry) -> str:
    """When an entry was written, by its frame; "" where that says nothing that makes sense."""
    return iso(entry.frame.at) if entry.frame is not None else ""


def since(text: str, now: datetime) -> str:
    """`2h`, `7d` or a date, as somebody typed it, as it is kept; "" for none. Raises `BadInput`."""
    words = text.strip()
    if not words:
        return ""
    try:
        if (days := _AGO.fullmatch(words)) is not None:
            return written(now - timedelta(days=int(days[1]) * (7 if days[2][0] in "wW" else 1)))
        if re.match(r"\d{4}-\d\d-\d\d", words):
            return written(datetime.fromisoformat(words.replace("Z", "+00:00")))
        return written(now - timedelta(seconds=units.seconds(words)))
    except (ValueError, OverflowError):
        raise BadInput(f"since {text!r} is no time", fix="write it like 2h, 7d or 2026-11-01") from None

"""Times as the memory keeps them: ISO in UTC, `2026-11-21T19:00:00Z`, "" where nobody knows. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from dialogd.errors import BadInput
from dialogd.protocol.model import Entry
from dialogd.protocol.moments import Zone
from dialogd.protocol.text import one_line
from dialogd.since import TIMES
from dialogd.since import moment as named

_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d{1,6})? ?(Z|[+-]\d\d:\d\d)")


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


def since(text: str, now: datetime, zone: Zone) -> str:
    """`2h`, `7d`, `yesterday` or a date by the clock of `zone`, as it is kept; "" for none. Raises `BadInput`."""
    if not text.strip():
        return ""
    try:
        if (found := named(text, now, zone)) is not None:
            return written(found)
    except OverflowError:
        pass
    raise BadInput(f"since {one_line(text, 60)!r} is no time", fix=f"write {TIMES}")

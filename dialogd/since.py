"""Since when: the time that words mean; the turn that a time or the person's last word means. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta

from dialogd.errors import BadInput
from dialogd.protocol import units
from dialogd.protocol.model import USER
from dialogd.protocol.moments import Zone, clock_at
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import one_line

TIMES = "how long ago (90m, 2h, 7d), today, yesterday, or a time (2026-11-21T19:00)"

_PART = r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?)"
_SPAN = re.compile(rf"{_PART}(?:,?(?: and)? ?{_PART})*(?: ago)?")
_PARTS, _NOTHING = re.compile(_PART), timedelta()
_DATED = re.compile(r"[0-9]{4}-")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def last_word(dialog: Dialog) -> int:
    """The turn at which the person last wrote something: what follows it is news. 0 where they never did."""
    turn, found = 0, 0
    for entry in dialog.entries:
        turn = entry.number if entry.is_turn else turn
        found = turn if entry.by == USER else found
    return found


def since_turn(dialog: Dialog, text: str, now_iso: str, zone: Zone | None = None) -> int:
    """The turn that `7`, `turn 7` or a time, as `moment` reads it, means: the last one before that.

    `now_iso` is the time now, with the person's offset. Raises `BadInput`.
    """
    words = " ".join(text.split()).casefold()
    if match := re.fullmatch(r"(?:turn\s+)?#?(\d{1,9})", words):
        return int(match[1])
    then = moment(words, datetime.fromisoformat(now_iso.replace("Z", "+00:00")), zone)
    if then is None:
        raise BadInput(
            f"{one_line(text, 60)!r} is neither a turn nor a time",
            fix=f"write a turn (7), {TIMES}",
        )
    turn, found = 0, 0
    for entry in dialog.entries:
        turn = entry.number if entry.is_turn else turn
        passed = units.seconds_between(entry.frame.at, then.isoformat()) if entry.frame else None
        if passed is not None and passed < 0:
            break
        found = turn if passed is not None else found  # when a turn was typed by hand, nobody knows
    return found


def moment(text: str, now: datetime, zone: Zone | None = None) -> datetime | None:
    """The time that `2h`, `1h 30m ago`, `7d`, `today`, `yesterday`, a date or a time means; None for anything else.

    What names no offset is by `zone`, the clock of whoever wrote it: without one it has that of `now`.
    """
    words, zone = " ".join(text.split()).casefold(), zone or clock_at(now.tzinfo or UTC)
    try:
        if words in ("today", "yesterday"):
            day = zone(now).date() - timedelta(days=words == "yesterday")
            return zone(datetime.combine(day, time()))
        if _SPAN.fullmatch(words):
            return now - sum((timedelta(**{_UNITS[unit[0]]: float(n)}) for n, unit in _PARTS.findall(words)), _NOTHING)
        found = datetime.fromisoformat(words.upper().replace("Z", "+00:00")) if _DATED.match(words) else None
        return found if found is None or found.tzinfo else zone(found)
    except (ValueError, OverflowError):
        return None

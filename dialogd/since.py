"""Since when: the turn that a time, a span of time or the person's last word means. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from dialogd.errors import BadInput
from dialogd.protocol import units
from dialogd.protocol.model import USER
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import one_line

_AGO = re.compile(r"(\d{1,6})\s*(m|min|minutes?|h|hours?|d|days?|w|weeks?)(?:\s+ago)?", re.I)
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def last_word(dialog: Dialog) -> int:
    """The turn at which the person last wrote something: what follows it is news. 0 where they never did."""
    turn, found = 0, 0
    for entry in dialog.entries:
        turn = entry.number if entry.is_turn else turn
        found = turn if entry.by == USER else found
    return found


def since_turn(dialog: Dialog, text: str, now_iso: str) -> int:
    """The turn that `2h`, `90m`, `1d`, `7`, `turn 7`, `today`, `yesterday` or a time means: its last one before that.

    `now_iso` is the time now, with the person's offset. Raises `BadInput`.
    """
    words = " ".join(text.split()).casefold()
    if match := re.fullmatch(r"(?:turn\s+)?#?(\d{1,9})", words):
        return int(match[1])
    moment = _moment(words, datetime.fromisoformat(now_iso.replace("Z", "+00:00")))
    if moment is None:
        raise BadInput(
            f"{one_line(text, 60)!r} is neither a turn nor a time",
            fix="write a turn (7), how long ago (90m, 2h, 1d), today, yesterday, or a time (2026-11-21T19:00)",
        )
    turn, found = 0, 0
    for entry in dialog.entries:
        turn = entry.number if entry.is_turn else turn
        passed = units.seconds_between(entry.frame.at, moment.isoformat()) if entry.frame else None
        if passed is not None and passed < 0:
            break
        found = turn if passed is not None else found  # when a turn was typed by hand, nobody knows
    return found


def _moment(words: str, now: datetime) -> datetime | None:
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if words in ("today", "yesterday"):
        return midnight - timedelta(days=words == "yesterday")
    try:
        if match := _AGO.fullmatch(words):
            return now - timedelta(**{_UNITS[match[2][0]]: int(match[1])})
        found = datetime.fromisoformat(words.upper().replace("Z", "+00:00"))
    except (ValueError, OverflowError):
        return None
    return found.replace(tzinfo=now.tzinfo or UTC) if found.tzinfo is None else found

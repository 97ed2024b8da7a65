"""The file as it grows: every finished entry once, whatever editors and new dialogs do to the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from dialogd.errors import DialogdError
from dialogd.logfile import LogFile
from dialogd.protocol.marks import tolerant
from dialogd.protocol.model import Condition, Entry
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import escape
from dialogd.settings import new_command


@dataclass(frozen=True, slots=True)
class News:
    """Something to show: a finished `entry`, or `text` about the file as a whole."""

    text: str = ""
    entry: Entry | None = None


class Feed:
    """Follows one dialog file; never writes to it. `dialog` is what was last read, None while there is none."""

    def __init__(self, log: LogFile) -> None:
        self.log = log
        self.dialog: Dialog | None = None
        self._shown: set[str] = set()
        self._problem = ""
        self._known: Dialog | None = None

    def poll(self) -> Iterator[News]:
        """What came since the last call."""
        try:
            dialog = self.log.read()
        except FileNotFoundError:
            yield from self._trouble(
                f"there is no dialog at {self.log.path} yet; begin one elsewhere: {new_command(self.log.path)}"
                if self._known is None
                else "the file is gone"
            )
            return
        except DialogdError as error:
            yield from self._trouble(f"{error}; {error.fix}")
            return
        except OSError as error:
            yield from self._trouble(f"{self.log.path}: {error.strerror}")
            return
        self._problem = ""
        if dialog is self.dialog:
            return
        if self._known is not None and _is_another(self._known, dialog):
            self._shown.clear()
            yield News("another dialog stands in the file")
        self.dialog = self._known = dialog
        for entry in dialog.entries:
            if _finished(entry, dialog) and (key := _key(entry)) not in self._shown:
                self._shown.add(key)
                yield News(entry=entry)

    def _trouble(self, text: str) -> Iterator[News]:
        """Say what is wrong with the file, once."""
        self.dialog = None
        if text != self._problem:
            self._problem = text
            yield News(text)


def _is_another(known: Dialog, now: Dialog) -> bool:
    """True for a new dialog under the old name; a first turn that was only edited is the same dialog."""
    if known.header.dialog or now.header.dialog:
        return known.header.dialog != now.header.dialog
    return known.id != now.id and now.state.number < known.state.number


def _key(entry: Entry) -> str:
    """What makes it this entry: its recorded hash, or its place when it was typed by hand."""
    return entry.chain if entry.frame else f"by hand {entry.id}"


def _finished(entry: Entry, dialog: Dialog) -> bool:
    """False while the end of the file may still be in the making."""
    return entry is not dialog.last or entry.condition not in (Condition.UNFINISHED, Condition.DAMAGED)


def as_written(entry: Entry) -> str:
    """The entry as it stands in the file, but for its frame."""
    heading = f"## Turn {entry.number} — {entry.name}" if entry.is_turn else f"## Note — {entry.name}"
    return "\n\n".join([heading, *filter(None, [text_of(entry)])])


def account(entry: Entry) -> str:
    """When a daemon wrote the entry, how long it took, what it used and cost, and the model; "" for one by hand."""
    frame = entry.frame
    if frame is None:
        return ""
    tokens = f"{_count(frame.tokens_in)} in, {_count(frame.tokens_out)} out" if frame.tokens_in else ""
    took = f"{int(frame.ms) / 1000:.1f} s" if frame.ms.isdigit() else ""
    cost = f"{'about ' if frame.usd.startswith('~') else ''}${frame.usd.lstrip('~')}" if frame.usd else ""
    return " · ".join(filter(None, (_local(frame.at), took, tokens, cost, frame.model)))


def _count(text: str) -> str:
    number = text.lstrip("~")
    return f"{'about ' if text.startswith('~') else ''}{int(number):,}" if number.isdigit() else "?"


def _local(at: str) -> str:
    """The time of day here."""
    with suppress(ValueError, OverflowError):
        return datetime.fromisoformat(at).astimezone().strftime("%H:%M:%S")
    return ""


def text_of(entry: Entry) -> str:
    """What stands below the entry's heading: body, marks, whose turn it is."""
    parts: list[str] = []
    if entry.condition is Condition.DAMAGED:
        parts.append(f"(damaged: line {entry.line} of the file; it counts for nothing)")
    if entry.is_struck:
        parts.append("(withdrawn by the person: its marks count for nothing)")
    if entry.body:
        parts.append(escape(entry.body) if entry.frame else _by_hand(entry))
    if entry.frame and entry.marks:
        parts.append("\n".join(str(mark) for mark in entry.marks))
    if entry.turn:
        parts.append(f"TURN: {', '.join(entry.turn)}")
    return "\n\n".join(parts)


def _by_hand(entry: Entry) -> str:
    """A body typed by hand: the marks that count in it stay, what else looks like structure is shown escaped."""
    lines = (line if tolerant(line) in entry.marks else escape(line) for line in entry.body.split("\n"))
    return "\n".join(lines)


def as_fact(entry: Entry) -> dict[str, object]:
    """The entry as one JSON object."""
    frame = entry.frame
    return {
        "event": "turn" if entry.is_turn else "note",
        "id": entry.id,
        "number": entry.number,
        "by": entry.by,
        "name": entry.name,
        "text": entry.body,
        "marks": [str(mark) for mark in entry.marks],
        "turn": list(entry.turn) if entry.turn is not None else None,
        "condition": entry.condition.value,
        "at": frame.at if frame else "",
        "ms": int(frame.ms) if frame and frame.ms.isdigit() else None,
        "model": frame.model if frame else "",
        "tokens_in": _number(frame.tokens_in if frame else "", int),
        "tokens_out": _number(frame.tokens_out if frame else "", int),
        "usd": _number(frame.usd if frame else "", float),
        "struck": entry.is_struck,
    }


def _number(text: str, kind: type[int] | type[float]) -> int | float | None:
    """The number that a frame gives, estimated or not; None where it gives none."""
    with suppress(ValueError):
        return kind(text.lstrip("~"))
    return None

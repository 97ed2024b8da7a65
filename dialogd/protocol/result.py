"""What the person makes of a result: they take it, or reject it and the dialog goes on. Pure.

[APPROVED]          in a note, after the end
[REJECTED: reason]  in a turn, after the end: the dialog is open again
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dialogd.protocol.model import USER, Entry
from dialogd.protocol.refold import steps
from dialogd.protocol.state import Dialog


@dataclass(frozen=True, slots=True)
class Rejection:
    """That the person rejected a result: the turn in which, when ("" by hand), why, and the entry that had ended it.

    `outcome` is the name of the mark that had ended the dialog.
    """

    turn: int
    at: str
    reason: str
    ended_in: str
    outcome: str


def reason(entry: Entry) -> str:
    """Why the person rejected the result in this turn, in one line."""
    mark = entry.mark("REJECTED")
    words = mark.value if mark is not None else ""
    return words or " ".join(entry.body.split())


def rejections(dialog: Dialog) -> tuple[Rejection, ...]:
    """Every result that the person rejected, first to last."""
    if not any(entry.by == USER and entry.mark("REJECTED") for entry in dialog.entries):
        return ()
    return tuple(_rejections(dialog))


def _rejections(dialog: Dialog) -> Iterator[Rejection]:
    for entry, _, before, after in steps(dialog):
        outcome = before.outcome
        rejects = entry.by == USER and entry.is_turn and entry.mark("REJECTED") is not None
        if outcome is not None and after.outcome is None and rejects:
            at = entry.frame.at if entry.frame is not None else ""
            yield Rejection(entry.number, at, reason(entry), outcome.entry, outcome.name)


def rejected(dialog: Dialog) -> Rejection | None:
    """The rejection by which the dialog was opened for the last time; None where it was not."""
    if not dialog.state.rejected:
        return None
    return next((each for each in reversed(rejections(dialog)) if str(each.turn) == dialog.state.rejected), None)


def as_ended(dialog: Dialog, entry_id: str) -> Dialog:
    """The dialog as it stood when that entry ended it."""
    entries: list[Entry] = []
    for entry, header, _, after in steps(dialog):
        entries.append(entry)
        if entry.id == entry_id:
            return replace(dialog, header=header, entries=tuple(entries), state=after)
    return dialog

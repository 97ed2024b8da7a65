"""The fold from the beginning: after a strike, and for whoever wants to see each step of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from dialogd.protocol import hand
from dialogd.protocol.fold import fold
from dialogd.protocol.model import Condition, Entry, Header
from dialogd.protocol.state import Dialog, State


def beginning(header: Header, struck: Collection[int] = ()) -> State:
    """The state before the first entry, in a dialog of which these turns are struck."""
    first = hand.first(header)
    return State(limits=header.limits, hand=replace(first, struck=frozenset(struck)) if struck else first)


def steps(dialog: Dialog) -> Iterator[tuple[Entry, Header, State, State]]:
    """Each entry with the header that counted before it, and the states before and after it."""
    yield from _steps(dialog.header_as_written, dialog.entries, dialog.state.struck)


def _steps(
    written: Header, entries: Iterable[Entry], struck: Collection[int]
) -> Iterator[tuple[Entry, Header, State, State]]:
    state, header = beginning(written, struck), written
    for entry in entries:
        before, state = state, fold(header, state, entry)
        yield entry, header, before, state
        if state.hand is not before.hand:
            header = hand.effective(written, state.hand)


def refolded(written: Header, entries: tuple[Entry, ...], struck: frozenset[int]) -> tuple[tuple[Entry, ...], State]:
    """Entries and state once these turns have no marks any more; none of them, nothing changed."""
    while True:
        entries = tuple(_struck(entry) if entry.number in struck else entry for entry in entries)
        state = beginning(written, struck)
        for _, _, _, after in _steps(written, entries, struck):
            state = after
        if state.struck == struck:
            return entries, state
        struck = state.struck  # a dialog that is open again takes marks that it did not take before


def _struck(entry: Entry) -> Entry:
    """The turn without its marks; notes are numbered 0, and no strike names them."""
    if entry.is_struck or not entry.is_turn or entry.condition is Condition.DAMAGED:
        return entry
    return replace(entry, is_struck=True, withdrawn=entry.marks, marks=())

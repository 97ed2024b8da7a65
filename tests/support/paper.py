"""A dialog file in memory: read, ask what to write, append; on a clock that is moved by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

from dialogd.protocol.grammar import joint, parse, read_on, render
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import Zone
from dialogd.store.logfile import Make
from dialogd.store.registry import Caller

BEGINNING = datetime(2026, 11, 21, 19, 0, 0, tzinfo=UTC)


def clock_at(offset: tzinfo) -> Zone:
    """The clock of a place with that offset on every date."""
    return lambda moment: moment.astimezone(offset) if moment.tzinfo else moment.replace(tzinfo=offset)


class Paper:
    """What `LogFile` does, without a disk: read, ask what to write, append."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.now = 0.0
        self.path = Path("/paper.md")
        self.who = Caller()
        self._dialog: Dialog | None = None

    @property
    def at(self) -> str:
        return (BEGINNING + timedelta(seconds=self.now)).strftime("%Y-%m-%dT%H:%M:%SZ")

    @property
    def journals(self) -> Paper:
        return self

    def caller(self) -> Caller:
        return self.who

    def of(self, writer: str) -> None:
        """Nobody keeps a journal."""

    def read(self) -> Dialog:
        """The dialog as it stands; reads only what was appended."""
        known = self._dialog
        self._dialog = read_on(known, self.data[known.size :]) if known else parse(self.data)
        return self._dialog

    def append(self, make: Make, journal: None = None) -> Dialog | None:
        """Append what `make` asks for, dated by this room's clock; None when it asks for nothing."""
        dialog = self.read()
        addition = make(dialog)
        if addition is None:
            return None
        draft = addition.draft
        rest = tuple(pair for pair in draft.attributes if pair[0] not in ("re", "at"))
        answers = tuple(pair for pair in draft.attributes if pair[0] == "re")
        draft = replace(draft, attributes=(*answers, ("at", self.at), *rest))
        last = dialog.last
        self.data += joint(dialog) + render(draft, last.chain if last else "")
        return self.read()

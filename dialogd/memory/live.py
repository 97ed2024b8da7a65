"""Dialogs that are not in the archive yet: those that go on, and those that ended while nobody looked."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dialogd.errors import DialogdError
from dialogd.memory.facts import facts
from dialogd.memory.index import read_dialog
from dialogd.memory.keeping import keep
from dialogd.memory.values import Decision, Row
from dialogd.protocol.state import Dialog
from dialogd.registry import Registry
from dialogd.state import StateDir

log = logging.getLogger("dialogd")


def look(state: StateDir, files: Iterable[Path]) -> list[Row]:
    """The dialogs that go on, of running daemons and in these files; what has ended is archived on the way."""
    served = {Path(daemon.file) for daemon in Registry(state).running()}
    found = []
    for file in dict.fromkeys((*sorted(served), *files)):
        with suppress(DialogdError, OSError):
            dialog = read_dialog(file)
            if dialog.state.outcome is None:
                found.append(replace(row_of(dialog, file), state="running" if file in served else "open"))
            else:
                _keep(state, file)
    return found


def _keep(state: StateDir, file: Path) -> None:
    try:
        keep(read_dialog(file), file, state)
    except OSError as error:
        log.warning("%s has ended and cannot be archived: %s", file, error)


def row_of(dialog: Dialog, file: Path) -> Row:
    """The row of a dialog as it stands in its file."""
    return replace(facts(dialog).row, file=str(file))


def decisions_of(dialog: Dialog) -> Iterator[Decision]:
    """What a dialog decided, as it stands in its file."""
    f = facts(dialog)
    return (replace(m.decision, at=m.decision.at or f.row.ended) for m in f.made)

"""How decisions turned out: one line per word of the person's, the last one counts, none is lost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dialogd.memory.keeping import append, lines
from dialogd.memory.values import FAILED, WORKED, Verdict


def record(path: Path, dialog: str, outcome: str, why: str) -> None:
    """Write down that what `dialog` decided worked or failed. Raises `OSError`."""
    append(path, {"dialog": dialog, "outcome": outcome, "why": why})


def history(path: Path) -> Mapping[str, tuple[Verdict, ...]]:
    """Every word on every dialog, by its id, oldest first."""
    found: dict[str, list[Verdict]] = {}
    for line in lines(path):
        values = [line.get(name) for name in ("dialog", "outcome", "why", "at")]
        dialog, outcome, why, at = (value if isinstance(value, str) else "" for value in values)
        if dialog and outcome in (WORKED, FAILED):
            found.setdefault(dialog, []).append(Verdict(outcome, why, at))
    return {dialog: tuple(verdicts) for dialog, verdicts in found.items()}

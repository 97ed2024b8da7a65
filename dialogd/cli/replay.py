"""`dialogd replay`: what a dialog came to after each entry, and what each agent had to do then."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from dialogd.cli import options
from dialogd.cli.flow import clock
from dialogd.cli.terminal import as_json, line, plain, show
from dialogd.errors import BadInput
from dialogd.views.steps import Step, changed, decisions, facts, steps

Turn = Annotated[int | None, typer.Option(min=1, metavar="N", help="Only after turn N, with everything that held.")]
Pause = Annotated[bool, typer.Option("--step", help="Wait for Enter after each entry; q ends it.")]


def replay(
    path: options.FileArgument = None,
    turn: Turn = None,
    pause: Pause = False,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Go through a dialog entry by entry: what each changed, and what every agent had to do then.

    Only what changed is shown; with --turn everything. It is read from the file alone, as it grew.
    """
    settings = options.settings_for(path if path is not None else file)
    options.dialog_at(options.log_of(settings))  # whether there is one, and whether it can be trusted
    walked = _walked(settings.file.read_bytes())
    if turn is not None:
        found = [row for row in walked if row["number"] == turn]
        if not found:
            raise BadInput(f"this dialog has no turn {turn}", fix="dialogd flow lists its turns")
        show(as_json(found[0]) if json else "\n".join(_lines(found[0], whole=True)))
    elif json:
        show(as_json(list(walked)))
    else:
        _show(walked, pause=pause)


def _show(rows: Iterator[dict[str, Any]], *, pause: bool) -> None:
    for row in rows:
        show("\n".join(_lines(row, whole=False)))
        if pause and (sys.stdin.readline() or "q").strip().casefold() == "q":
            return


def _walked(data: bytes) -> Iterator[dict[str, Any]]:
    """Each entry as facts."""
    before: Mapping[str, str] = {}
    for step in steps(data):
        now, actions = facts(step.dialog), decisions(step.dialog)
        yield {**_entry(step), "state": now, "changed": changed(before, now), "decisions": actions}
        before = now


def _entry(step: Step) -> dict[str, Any]:
    entry = step.entry
    at = entry.frame.at if entry.frame else ""
    return {"entry": entry.id, "number": entry.number, "by": entry.by, "name": entry.name, "at": at}


def _in_words(action: Mapping[str, str]) -> str:
    words = {"reply": "replies", "write": "writes a note", "wait": "waits", "stop": "stops"}[action["action"]]
    return f"{words}: {action['status'] if action['action'] == 'stop' else action['reason']}"


def _lines(row: dict[str, Any], *, whole: bool) -> Iterator[str]:
    kind = f"turn {row['number']}" if row["number"] else f"note {row['entry']}"
    yield plain(f"{clock(row['at'])}  {kind}, {line(row['name'])} ({row['by']})")
    if whole:
        yield from (plain(f"    {name}: {value}") for name, value in row["state"].items())
    else:
        yield from (plain(f"    {name}: {_change(*pair)}") for name, pair in row["changed"].items())
    yield from (plain(f"  → {who} {_in_words(action)}") for who, action in row["decisions"].items())


def _change(before: str, now: str) -> str:
    if before and now:
        return f"{before} → {now}"
    return now or f"no longer ({before})"

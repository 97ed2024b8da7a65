"""`dialogd watch`: follow a dialog; works with daemons running or none."""

from __future__ import annotations

from typing import Annotated

import typer

from dialogd.cli import options
from dialogd.cli.live import Live
from dialogd.cli.situation import exit_code

Follow = Annotated[bool, typer.Option("--follow", help="Go on after the end: a dialog can be opened again.")]


def watch(file: options.FileOption = None, follow: Follow = False, json: options.JsonOption = False) -> None:
    """Show a dialog as it happens, until it ends. The file may not exist yet. Ctrl-C leaves; the dialog goes on.

    In a terminal keys say, pause, retry, skip and stop: ? lists them. With --json, one object per line: turn, note,
    state, question, end.
    """
    live = Live(options.settings_for(file), json=json, hint="Ctrl-C leaves")
    live.follow(lambda: live.outcome is not None and not follow)
    raise typer.Exit(exit_code(live.outcome))

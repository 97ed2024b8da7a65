"""`dialogd alerts`: which ways to reach the person there are, and a trial of each."""

from __future__ import annotations

import typer

from dialogd.cli import options
from dialogd.cli.terminal import as_json, plain, show

alerts = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Ways to reach you when you are not looking.")


@alerts.callback()
def _group() -> None:
    """Ways to reach you when you are not looking: desktop, bell, commands, webhooks."""


@alerts.command("test")
def try_alerts(file: options.FileOption = None, json: options.JsonOption = False) -> None:
    """Send a test alert through every channel that is set up, and say what happened; exit code 1 if one failed.

    The settings `desktop` and `bell` are two of them; on_question, on_stalled, on_error, on_end and on_event name
    commands or URLs.
    """
    from dialogd.cli.alert_trial import try_all

    results = try_all(options.settings_for(file))
    if json:
        rows = [
            {"name": name, "to": to, "ok": not error, "error": error, "fix": fix} for name, to, error, fix in results
        ]
        show(as_json({"channels": rows}))
    for name, to, error, fix in () if json else results:
        show(plain(f"!!  {name:11}  {to}: {error}\n    fix: {fix}" if error else f"ok  {name:11}  {to}"))
    if not results and not json:
        show("no channel is set up: dialogd config show")
    raise typer.Exit(1 if any(error for _, _, error, _ in results) else 0)

"""`dialogd digest`: what happened in a dialog while the person was away."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from shutil import get_terminal_size
from typing import Annotated

import typer

from dialogd.away import as_text, away, last_word, since_turn
from dialogd.cli import options
from dialogd.cli.terminal import as_json, plain, show

Path = Annotated[str | None, typer.Argument(metavar="FILE", help="The dialog file. Default: as --file.")]
Since = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="A turn (7), how long ago (2h), yesterday, a time. Default: your last entry."),
]


def digest(
    path: Path = None, since: Since = None, file: options.FileOption = None, json: options.JsonOption = False
) -> None:
    """Show what happened while you were away: what is needed of you, decided, proposed, conceded, asked, spent.

    From the marks of the dialog, without a model.
    """
    settings = options.settings_for(path if path is not None else file)
    dialog = options.dialog_at(options.log_of(settings))
    turn = last_word(dialog)
    if since is not None:
        turn = since_turn(dialog, since, datetime.now().astimezone().isoformat())
    news = away(dialog, turn)
    if json:
        show(as_json({"file": str(settings.file), "dialog": dialog.id, **asdict(news)}))
    else:
        show(plain(as_text(news, width=max(get_terminal_size((100, 24)).columns, 40))))

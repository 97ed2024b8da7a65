"""`dialogd digest`: what happened in a dialog while the person was away."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from shutil import get_terminal_size
from typing import Annotated

import typer

from dialogd.agent.clock import local
from dialogd.cli import options
from dialogd.cli.terminal import as_json, plain, show
from dialogd.protocol.money import in_dollars
from dialogd.protocol.text import one_line
from dialogd.views.digest import MOST, Away, Item, away, last_word, since_turn

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
        turn = since_turn(dialog, since, datetime.now().astimezone().isoformat(), local)
    news = away(dialog, turn, local)
    if json:
        show(as_json({"file": str(settings.file), "dialog": dialog.id, **asdict(news)}))
    else:
        show(plain(as_text(news, width=max(get_terminal_size((100, 24)).columns, 40))))


def as_text(news: Away, most: int = MOST, width: int = 100) -> str:
    """A screenful: where it stands and what is needed first, then each kind, at most `most` items of it."""
    turns = "nothing was written" if not news.turns else f"{news.turns} turn{'s' if news.turns > 1 else ''}"
    is_priced = news.spent.entries > news.spent.unknown
    money = f", {in_dollars(news.spent)}" if is_priced else ""
    since = f"since turn {news.since}" if news.since else "since the beginning"
    lines = [f"{since}: {turns}{money}", f"now: {news.now}"]
    lines += [f"needed from you: {news.needed}"] if news.needed else ["needed from you: nothing"]
    for title, items in news.sections():
        lines += ["", f"{title}: {len(items)}" if len(items) > 1 else f"{title}:"]
        shown = items if len(items) <= most + 1 else items[-most:]
        lines += [f"  and {len(items) - len(shown)} earlier"] if len(shown) < len(items) else []
        lines += [_line(item, width) for item in shown]
    return "\n".join(lines)


def _line(item: Item, width: int) -> str:
    """One item on one line; however long it is, it says at its end that it was withdrawn."""
    withdrawn = " (withdrawn)" if item.is_withdrawn else ""
    words = one_line(f"turn {item.turn}, {item.by}: {item.text}", width - 2 - len(withdrawn))
    return f"  {words}{withdrawn}"

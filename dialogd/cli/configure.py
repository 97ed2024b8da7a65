"""`dialogd config`: the settings in force, and where each comes from."""

from __future__ import annotations

from typing import Annotated

import typer

from dialogd.cli import options
from dialogd.cli.terminal import as_json, plain, show

config = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Look at the settings.")

Origin = Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")]


@config.callback()
def _group() -> None:
    """Look at the settings."""


@config.command("show")
def show_settings(origin: Origin = False, file: options.FileOption = None, json: options.JsonOption = False) -> None:
    """Print every setting with its value; flags outrank environment, .env, dialogd.toml and your config.toml."""
    rows = options.settings_for(file).rows()
    if json:
        show(as_json({row.name: {"value": row.value, "origin": row.origin} if origin else row.value for row in rows}))
        return
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, value, where in rows:
        show(plain(f"{name:{widths[0]}}  {f'{value:{widths[1]}}  {where}' if origin else value}".rstrip()))

"""`dialogd mcp`: what a program that speaks MCP calls."""

from __future__ import annotations

from typing import Annotated

import typer

from dialogd.cli import options

mcp = typer.Typer(
    help="Serve dialogs as tools, for programs that speak MCP.",
    rich_markup_mode=None,
    invoke_without_command=True,
)


@mcp.callback()
def serve(
    context: typer.Context,
    http: Annotated[bool, typer.Option("--http", help="Listen on the loopback instead of standard input.")] = False,
    port: Annotated[
        int, typer.Option(metavar="N", help="Where, with --http. Default: 3900.", show_default=False)
    ] = 3900,
    file: options.FileOption = None,
) -> None:
    """Serve dialogs as tools, for programs that speak MCP.

    Over standard input and output, as clients start it; with --http at http://localhost:3900/mcp.
    """
    if context.invoked_subcommand is not None:
        return
    from dialogd.mcp import server

    settings = options.settings_for(file)
    if http:
        server.serve_http(settings, port)
    else:
        server.make(settings).run()

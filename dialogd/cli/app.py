"""The commands, put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer
from typer.core import TyperCommand

from dialogd import __version__
from dialogd.cli import (
    alerts,
    board,
    configure,
    cost,
    digest,
    doctor,
    export,
    flow,
    hand,
    history,
    logs,
    new,
    plan,
    recall,
    replay,
    result,
    run,
    speak,
    start,
    status,
    stop,
    templates,
    verify,
    watch,
)

HELP = """AI agents hold a dialog with each other and with you, through one Markdown file.

\b
  dialogd run "Where should user sessions live?"   a whole dialog, in one command
  dialogd start A                                  one agent's daemon, in a terminal of its own
  tail -f /tmp/claude-dialog.md                    watch it
  dialogd stop                                     halt everything
"""
EPILOG = """\b
Exit codes:
  0    ok; the dialog goes on, or ended in consensus or by its rule's decision
  1    failure; the dialog ended in an error
  2    wrong usage
  3    not running, or running already
  4    the dialog ended without consensus or decision
  130  interrupted

Settings come from flags, environment, .env and dialogd.toml: dialogd config show --origin
"""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dialogd {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]


def _top(version: Version = False, debug: Debug = False) -> None:
    """Options before the command; `--debug` is looked up where errors are translated."""


NAMES: dict[Callable[..., None], str] = {hand.pass_on: "pass"}  # a word that no function of Python can be called by
# Commands with an option whose value may be left out.
CLASSES: dict[object, type[TyperCommand]] = {
    plan.plan: plan.PlanCommand,
    new.new: recall.RecallCommand,
    run.run: recall.RecallCommand,
}


def build() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        help=HELP,
        epilog=EPILOG,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_show_locals=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=HELP, epilog=EPILOG)(_top)
    for command in (
        new.new, start.start, run.run, status.status, watch.watch, speak.say, speak.pause, speak.resume, speak.retry,
        speak.skip, speak.word, speak.restore, result.approve, result.reject, stop.stop, logs.logs, board.board,
        verify.verify, plan.plan, doctor.doctor, cost.cost,
        history.list, history.show, history.search, recall.recall, recall.outcome,
        flow.flow, replay.replay, digest.digest, export.export,
        hand.veto, hand.strike, hand.suggest, hand.ask, hand.limit, hand.invite, hand.leave, hand.step, hand.pass_on,
    ):  # fmt: skip
        app.command(NAMES.get(command), cls=CLASSES.get(command))(command)
    app.add_typer(configure.config, name="config")
    app.add_typer(alerts.alerts, name="alerts")
    app.add_typer(templates.templates, name="templates")
    app.add_typer(recall.memory, name="memory")
    return app

"""The command line: its commands, and what becomes of errors: one message, one fix and an exit code."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from dialogd import __version__
from dialogd.acts import ACTS
from dialogd.errors import BadInput, DialogdError

UsageError: Any = typer.BadParameter.__bases__[0]  # typer has no public name for it


class Located(NamedTuple):
    """A command or a group: where it is, the first line of its help, and its class if it has its own.

    One without a place is an act of the person, and no more.
    """

    place: str
    line: str
    kind: str = ""


def _acts(*names: str) -> dict[str, Located]:
    places = {name: f"speak:{name}" if name in ("invite", "approve") else "" for name in names}
    return {name: Located(place, ACTS[name].help) for name, place in places.items()}


GROUPS = {
    "Begin": {
        "open": Located("setup:open_home", "Open the page on which dialogs are found, and started."),
        "run": Located("launch:run", "Run a whole dialog: every agent, until it ends.", "create:RecallCommand"),
        "ask": Located("seat:ask", "Ask another agent something, from the session you are in."),
        "build": Located("work:build", "Have a goal carried out in a repository, task by task."),
        "new": Located("create:new", "Write the file of a new dialog.", "create:RecallCommand"),
        "share": Located("share:share", "Share a dialog with another machine."),
        "join": Located("share:join", "Take part in a dialog that was shared from another machine."),
        "start": Located("launch:start", "Run one agent's daemon, in a terminal of its own."),
        "live": Located("seat:live", "Take part with an open coding session: join, turn, reply."),
        "templates": Located("setup:templates", "List the templates that a dialog can start from."),
    },
    "Speak": _acts("say", "pass"),
    "Steer": {
        **_acts("pause", "resume", "step", "retry", "skip", "invite", "leave", "limit"),
        "stop": Located("speak:stop", "Stop everything: all your daemons and their dialogs."),
    },
    "See": {
        "status": Located("status:status", "Show how the dialog stands, or what you missed."),
        "watch": Located("watch:watch", "Watch a dialog live, until it ends."),
        "show": Located("past:show_messages", "Show who said what to whom, or what one entry changed."),
        "tasks": Located("work:tasks", "Show a build's tasks; confirm, change, drop, accept them."),
        "logs": Located("past:logs", "Print the last lines of a daemon's log."),
    },
    "Result": {
        "plan": Located("result:plan", "Show the plan: decisions, dissent, open points.", "result:PlanCommand"),
        "export": Located("result:export", "Save the dialog as Markdown, HTML, PDF or JSON."),
        **_acts("approve", "reject"),
        "verify": Located("result:verify", "Check that no entry was altered after it was written."),
    },
    "Past": {
        "list": Located("past:list_dialogs", "List your dialogs, search them, or show one in full."),
        "recall": Located("past:recall", "Find past decisions about something, best match first."),
        "outcome": Located("past:outcome", "Record how a decision turned out: worked or failed."),
    },
    "Setup": {
        "doctor": Located("setup:doctor", "Check this machine: what you can start with, what is wrong."),
        "config": Located("setup:config", "Show the settings and where each comes from."),
        "init": Located("setup:init", "Add dialogd's commands to this project."),
        "mcp": Located("setup:mcp", "Serve dialogs as tools, for programs that speak MCP."),
        "alerts": Located("setup:alerts", "Test how you are alerted when you are not looking."),
    },
    "more": _acts("floor", "veto", "strike", "restore"),
}
"""Every command, in the order in which they are listed, by what it is for. Its module is imported once it is called."""

NOW = {
    **{name: f"live {name}" for name in ("accept", "sessions", "turn", "reply")},
    "approve-call": "approve CALL",
    "board": "status --board",
    "cost": "status --cost",
    "flow": "show",
    "replay": "show ENTRY",
    "search": "list WORDS",
    "memory": "list --rebuild",
}
"""What has become a part of another command."""

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}

HELP = """\b
AI agents hold a dialog with each other and with you, in one Markdown file.
Try: dialogd run "Where should user sessions live?", dialogd COMMAND --help
"""
EPILOG = """\b
Options: --version --debug -h --help --install-completion --show-completion
Exit codes: 0 ok, 1 failure, 2 usage, 3 not running, 4 no decision, 130 Ctrl-C
"""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dialogd {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")]


def _top(version: Version = False, debug: Debug = False) -> None:
    """Options before the command; `--debug` is looked up where errors are translated."""


def _import(name: str, command: Located) -> Any:
    def found(place: str) -> Any:
        module, _, what = place.partition(":")
        return getattr(import_module(f"dialogd.cli.{module}"), what)

    around = typer.Typer(rich_markup_mode=None, add_completion=False)
    around.callback()(lambda: None)
    what = found(command.place) if command.place else found("options:command_of")(ACTS[name])
    if isinstance(what, typer.Typer):
        around.add_typer(what, name=name, help=command.line)
    else:
        around.command(name, cls=found(command.kind) if command.kind else TyperCommand)(what)
    group: Any = get_command(around)
    return group.commands[name]


class _Top(TyperGroup):
    """`dialogd` itself. What it lists is known without the modules of its commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, name: str) -> Any:
        """The command of that name, imported once it is asked for; None for none."""
        return _import(name, COMMANDS[name]) if name in COMMANDS else None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the command; in a terminal, nothing at all means `open`."""
        if not args and sys.stdin.isatty() and sys.stdout.isatty():
            from dialogd.cli.options import remark

            remark("opening Home, where dialogs are found and started; the commands: dialogd --help")
            args = ["open"]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command. Raises `BadInput` with its new name for one that has become a part of another."""
        if now := NOW.get(args[0]):
            raise BadInput(f"no such command {args[0]!r}", fix=f"now: dialogd {now}")
        return super().resolve_command(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, each with its line, beside the group that it belongs to; the epilog has the options."""
        for group, commands in GROUPS.items():
            for number, (name, command) in enumerate(commands.items()):
                formatter.write(f"{'' if number else group:8}{name:13}{command.line}\n")


def build() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        cls=_Top,
        help=HELP,
        epilog=EPILOG,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_show_locals=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=HELP, epilog=EPILOG)(_top)
    return app


# -- Errors -----------------------------------------------------------------------------------------------------------


def main() -> None:
    """Run the command line, and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        _carry_out(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except (DialogdError, OSError) as error:
        if "--debug" in sys.argv[1:]:
            raise
        sys.exit(_explain(error))


def _carry_out(words: list[str]) -> None:
    """Read the command line and do what it says. Raises what the command raises, `BadInput` for wrong usage."""
    for word in words:  # what is no UTF-8 would be damaged, unless a file has that name
        if any("\udc80" <= sign <= "\udcff" for sign in word) and not os.path.lexists(word):
            shown = os.fsencode(word).decode("latin-1")
            raise BadInput(
                f"the argument {shown[:60]!r}, as Latin-1, is not UTF-8",
                fix="type it in a terminal that is set to UTF-8, or convert it first: iconv -f latin1 -t utf-8",
            )
    try:
        sys.exit(get_command(build())(prog_name="dialogd", standalone_mode=False))
    except UsageError as error:
        said = str(error.format_message())
        if said.startswith("Usage:"):  # nothing was typed at all
            error.show()
            sys.exit(error.exit_code)
        options = sorted(getattr(error, "possibilities", None) or ())
        said = str(error.message) if options else said
        meant = f"did you mean {' or '.join(options)}? " if options else ""
        command = error.ctx.command_path if error.ctx is not None else "dialogd"
        what = f"{said[:1].lower()}{said[1:].rstrip('.')}"
        raise BadInput(what, fix=f"{meant}what there is: {command} --help") from None
    except typer.Abort:
        sys.exit(1)
    except SystemExit as end:  # typer makes one of a pipe that was closed
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        raise


def _explain(error: DialogdError | OSError) -> int:
    """Print an error and its fix on stderr; gives the exit code. Nothing where the reader of stdout has gone away."""
    from dialogd.cli.options import remark

    if isinstance(error, BrokenPipeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)  # what is left in the buffer goes nowhere, too
        os.close(nowhere)
        return 0
    if isinstance(error, DialogdError):
        remark(f"error: {error}\n  fix: {error.fix}")
        return error.exit_code
    where = f"{error.filename}: " if error.filename else ""
    remark(f"error: {where}{error.strerror or error}\n  fix: check the file; --debug shows where it happened")
    return 1

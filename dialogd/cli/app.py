"""The commands, put together."""

from __future__ import annotations

import sys
from collections import UserDict
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from dialogd import __version__
from dialogd.acts import ACTS
from dialogd.errors import BadInput


class Located(NamedTuple):
    """A command or a group: its module, the first line of its help, and its class if it has its own."""

    place: str
    line: str
    kind: str = ""


def _act(name: str) -> Located:
    return Located(f"speak:{name}", ACTS[name].help)


GROUPS = {
    "Begin": {
        "open": Located("setup:open_home", "Open the page on which dialogs are found, and started."),
        "run": Located("launch:run", "Run a whole dialog: every agent, until it ends.", "past:RecallCommand"),
        "ask": Located("seat:ask", "Ask another agent something, from the session you are in."),
        "build": Located("work:build", "Have a goal carried out in a repository, task by task."),
        "new": Located("create:new", "Write the file of a new dialog.", "past:RecallCommand"),
        "start": Located("launch:start", "Run one agent's daemon, in a terminal of its own."),
        "live": Located("seat:live", "Take part with an open coding session: join, turn, reply."),
        "templates": Located("setup:templates", "List the templates that a dialog can start from."),
    },
    "Speak": {
        "say": _act("say"),
        "pass": _act("pass"),
    },
    "Steer": {
        "pause": _act("pause"),
        "resume": _act("resume"),
        "step": _act("step"),
        "retry": _act("retry"),
        "skip": _act("skip"),
        "invite": _act("invite"),
        "leave": _act("leave"),
        "limit": _act("limit"),
        "stop": Located("speak:stop", "Stop everything: all your daemons and their dialogs."),
    },
    "See": {
        "status": Located("status:status", "Show how the dialog stands, or what you missed."),
        "watch": Located("watch:watch", "Watch a dialog live, until it ends."),
        "show": Located("see:show_messages", "Show who said what to whom, or what one entry changed."),
        "tasks": Located("work:tasks", "Show a build's tasks; confirm, change, drop, accept them."),
        "logs": Located("see:logs", "Print the last lines of a daemon's log."),
    },
    "Result": {
        "plan": Located("result:plan", "Show the plan: decisions, dissent, open points.", "result:PlanCommand"),
        "export": Located("result:export", "Save the dialog as Markdown, HTML, PDF or JSON."),
        "approve": _act("approve"),
        "reject": _act("reject"),
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
    "more": {
        "floor": _act("floor"),
        "veto": _act("veto"),
        "strike": _act("strike"),
        "restore": _act("restore"),
    },
}
"""Every command, in the order in which they are listed, by what it is for. Its module is imported once it is called."""

NOW = {
    **{name: f"live {name}" for name in ("join", "accept", "sessions", "turn", "reply")},
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


class _Commands(UserDict[str, Any]):
    """The commands by name, each imported when it is asked for."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(COMMANDS))

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            self.data[name] = _import(name, COMMANDS[name])
        return self.data[name]


def _import(name: str, command: Located) -> Any:
    from typer.main import get_command

    def found(place: str) -> Any:
        module, _, what = place.partition(":")
        return getattr(import_module(f"dialogd.cli.{module}"), what)

    around = typer.Typer(rich_markup_mode=None, add_completion=False)
    around.callback()(lambda: None)
    what = found(command.place)
    if isinstance(what, typer.Typer):
        around.add_typer(what, name=name)
    else:
        around.command(name, cls=found(command.kind) if command.kind else TyperCommand)(what)
    group: Any = get_command(around)
    return group.commands[name]


class _Top(TyperGroup):
    """`dialogd` itself. What it lists is known without the modules of its commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the command; in a terminal, nothing at all means `open`."""
        if not args and sys.stdin.isatty() and sys.stdout.isatty():
            from dialogd.cli.terminal import remark

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

"""The commands, put together."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from dialogd import __version__

NO_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"


class Command(NamedTuple):
    """Where a command or a group of them is, the first line of its help, and its class where it has one of its own."""

    place: str
    line: str
    kind: str = ""


COMMANDS = {
    "new": Command("begin:new", "Begin a dialog: write its file.", "past:RecallCommand"),
    "start": Command("start:start", "Run one agent's daemon until Ctrl-C or `dialogd stop`."),
    "run": Command(
        "begin:run",
        "Hold a whole dialog: write the file, start a daemon per agent, show what they say, end when it ends.",
        "past:RecallCommand",
    ),
    "status": Command("status:status", "Show whose turn it is, what everybody waits for, and the daemons."),
    "watch": Command("watch:watch", "Show a dialog as it happens, until it ends."),
    "say": Command(
        "speak:say", "Speak: your turn interrupts whoever is replying, and opens a dialog again that had ended."
    ),
    "pause": Command("speak:pause", "Let agents finish their turn, then wait; survives restarts."),
    "resume": Command("speak:resume", "Let agents go on after a pause."),
    "retry": Command("speak:retry", "Ask an agent once more: it owes a turn anew."),
    "skip": Command("speak:skip", "Pass over an agent that owes a turn: the next one speaks."),
    "word": Command(
        "speak:word",
        "Ask for the word, for yourself or an agent, in a dialog whose order is free; who asks first speaks first.",
    ),
    "restore": Command(
        "speak:restore", "Put turns back that an editor's save has taken out of the file, as text in a note of yours."
    ),
    "approve": Command(
        "speak:approve",
        "Take the result of a dialog that has ended, or a text that only absent agents have not signed: that ends it.",
    ),
    "reject": Command("speak:reject", "Do not take the result: your turn, with the reason, opens the dialog again."),
    "stop": Command("stop:stop", "Halt everything: every daemon of yours and its dialog."),
    "logs": Command("see:logs", "Print the end of the log of an agent's daemon, running or not."),
    "board": Command("see:board", "Show what was contributed, proposed and decided."),
    "verify": Command(
        "outcome:verify",
        "Check every entry of a dialog against its recorded hash, the entry before it, and the journals.",
    ),
    "plan": Command(
        "outcome:plan",
        "Write the plan of a dialog: what was decided, by whom, who disagrees, what is open, what comes next.",
        "outcome:PlanCommand",
    ),
    "doctor": Command(
        "setup:doctor",
        "Look at this machine: backends, who pays, ports, file, lock, clock; each problem with its fix.",
    ),
    "cost": Command(
        "outcome:cost",
        "Show what a dialog has cost so far: turns, tokens and dollars of each agent, and how the budget stands.",
    ),
    "list": Command(
        "past:list_dialogs",
        "List dialogs, newest first: those that go on, and those that ended, with what they cost and how they turned "
        "out.",
    ),
    "show": Command(
        "past:show_dialog",
        "Show an earlier dialog: how it ended, what it decided, how that turned out, and everything that was said.",
    ),
    "search": Command("past:search", "Search what was said in earlier dialogs."),
    "recall": Command("past:recall", "Recall what earlier dialogs decided about something: best first."),
    "outcome": Command("past:outcome", "Remember how what a dialog decided turned out: worked or failed, and why."),
    "flow": Command(
        "see:flow", "Show who said what to whom: a line for each mark, or for the text of a turn without marks."
    ),
    "replay": Command(
        "see:replay", "Go through a dialog entry by entry: what each changed, and what every agent had to do then."
    ),
    "digest": Command(
        "see:digest",
        "Show what happened while you were away: what is needed of you, decided, proposed, conceded, asked, spent.",
    ),
    "export": Command(
        "outcome:export", "Write a dialog as one document: Markdown, HTML, PDF or JSON, complete in itself."
    ),
    "veto": Command("speak:veto", "Rule a proposal out: nobody can sign, vote on or decide it any more."),
    "strike": Command("speak:strike", "Withdraw a turn: its marks stop counting, and agents no longer see its text."),
    "suggest": Command("speak:suggest", "Put a proposal of your own, numbered like all: your turn, which interrupts."),
    "ask": Command("speak:ask", "Ask one agent: your turn, to it alone; after its answer the order goes on."),
    "limit": Command("speak:limit", "Change a limit of the dialog from here on."),
    "invite": Command(
        "speak:invite", "Have one more agent take part, behind the others; prints how to start its daemon."
    ),
    "leave": Command("speak:leave", "Let an agent take part no longer; the word goes on."),
    "step": Command("speak:step", "Step mode: after every turn the word comes back to you, until it is off."),
    "pass": Command("speak:pass_on", "Pass your turn on without a word: step mode's Enter."),
    "config": Command("setup:config", "Look at the settings."),
    "alerts": Command("setup:alerts", "Ways to reach you when you are not looking."),
    "templates": Command("setup:templates", "List what a dialog can start from."),
    "memory": Command("past:memory", "The index over the archive."),
}
"""Every command, in the order in which they are listed. Its module is imported once it is called."""

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


class _Commands(MutableMapping[str, Any]):
    """The commands by name, each imported when it is asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self[name] = _import(name, COMMANDS[name])
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@contextmanager
def _no_plugins() -> Iterator[None]:
    """While options are read: pydantic, which reads them, would search all installed packages for plugins."""
    before = os.environ.get(NO_PLUGINS)
    os.environ[NO_PLUGINS] = "__all__"
    try:
        yield
    finally:
        del os.environ[NO_PLUGINS]
        if before is not None:
            os.environ[NO_PLUGINS] = before


class _Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _no_plugins():
            return super().parse_args(ctx, args)


def _import(name: str, command: Command) -> Any:
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
        around.command(name, cls=found(command.kind) if command.kind else _Command)(what)
    group: Any = get_command(around)
    return group.commands[name]


class _Top(TyperGroup):
    """`dialogd` itself. What it lists is known without the modules of its commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the command."""
        with _no_plugins():
            return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in order."""
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the names, each with its line."""
        lines = [TyperCommand(name, help=command.line) for name, command in COMMANDS.items()]
        TyperGroup(commands=lines).format_commands(ctx, formatter)


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

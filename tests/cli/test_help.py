"""What the command line says about itself, and how fast."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

import dialogd.cli as app
from dialogd import __version__
from dialogd.cli import build
from tests.cli.command import Commands, until

GROUPS = {
    "Begin": "open run ask build new share join start live templates",
    "Speak": "say pass",
    "Steer": "pause resume step retry skip invite leave limit stop",
    "See": "status watch show tasks logs",
    "Result": "plan export approve reject verify",
    "Past": "list recall outcome",
    "Setup": "doctor config init mcp alerts",
    "more": "floor veto strike restore",
}
COMMANDS = [name for names in GROUPS.values() for name in names.split()]
SCREEN = 60  # lines


def test_every_command_explains_itself(dialogd: Commands) -> None:
    lines = [["-h"], ["--help"], ["config", "show", "-h"], *([name, "--help"] for name in COMMANDS)]
    for done in dialogd.all(lines):
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("Usage: dialogd")


def test_the_help_is_one_screen_of_commands_in_groups(dialogd: Commands) -> None:
    shown = dialogd.really("--help").out.rstrip("\n").split("\n")
    assert (len(shown) <= SCREEN, [row for row in shown if len(row) > 80]) == (True, [])
    found: dict[str, list[str]] = {}
    for row in shown[shown.index("") :]:
        group, name, line = row[:8].strip(), row[8:21].strip(), row[21:]
        if group in GROUPS or (found and not group and name in COMMANDS):
            found.setdefault(group or list(found)[-1], []).append(name)
            assert line == app.COMMANDS[name].line
    assert {group: " ".join(names) for group, names in found.items()} == GROUPS
    text = "\n".join(shown)
    top: Any = get_command(build())
    assert [name for option in top.params for name in option.opts if name not in text] == []
    for code in ("0 ", "1 ", "2 ", "3 ", "4 ", "130 "):
        assert f" {code}" in text.partition("Exit codes:")[2]


def test_what_has_become_an_option_is_no_command(dialogd: Commands) -> None:
    now = {
        "sessions": "live sessions",
        "board": "status --board",
        "approve-call": "approve CALL",
        "search": "list WORDS",
    }
    for (old, new), done in zip(now.items(), dialogd.all([[old, "x"] for old in now]), strict=True):
        assert (done.code, done.err) == (2, f"error: no such command {old!r}\n  fix: now: dialogd {new}\n")


def test_wrong_usage_is_exit_code_2_and_goes_to_stderr(dialogd: Commands) -> None:
    wrong = {
        "nonsense": ("no such command 'nonsense'", "dialogd --help"),
        "say": ("missing argument 'TEXT'", "dialogd say --help"),
        "--file x": ("no such option: --file", "dialogd --help"),
        "run --fil x": ("no such option: --fil", "did you mean --file or --first? what there is: dialogd run --help"),
        "new x --max-turns 0": ("invalid value for '--max-turns': ", "dialogd new --help"),
        "status x y": ("got unexpected extra argument(s) (y)", "dialogd status --help"),
        "logs A --lines": ("option '--lines' requires an argument", "--help"),
    }
    ends = dialogd.all([line.split() for line in wrong])
    for (message, fix), done in zip(wrong.values(), ends, strict=True):
        assert (done.code, done.out) == (2, "")
        said, way = done.err.removesuffix("\n").split("\n")
        assert said.startswith(f"error: {message}")
        assert way.startswith("  fix: ")
        assert way.endswith(fix)


def test_nothing_typed_is_answered_with_the_help(dialogd: Commands) -> None:
    top, group = dialogd.all([[], ["config"]])
    assert (top.code, top.out, group.code) == (2, "", 2)
    assert 'Try: dialogd run "Where should user sessions live?"' in top.err
    assert group.err.startswith("Usage: dialogd config")


def test_version(dialogd: Commands) -> None:
    """`--version` names the program and its version."""
    assert dialogd.really("--version").out == f"dialogd {__version__}\n"


def test_errors_show_a_traceback_only_on_request(dialogd: Commands) -> None:
    done = dialogd.really("pause")
    assert done.err.startswith(f"error: there is no dialog at {dialogd.file}\n  fix: ")
    assert "Traceback" not in done.err
    assert "Traceback" in dialogd("--debug", "pause").err


HEAVY = {"fastapi", "uvicorn", "httpx2", "watchfiles", "rich", "anthropic", "openai", "asyncio", "psutil"}


def loaded(dialogd: Commands, *words: str) -> tuple[str, set[str]]:
    """What a command prints, and the modules that it has loaded in the end."""
    program = (
        f"import atexit, sys; sys.argv = {['dialogd', *words]!r}; atexit.register(lambda: print('modules', "
        "*sys.modules)); from dialogd.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=dialogd.environment, text=True, capture_output=True, check=False
    )
    out, _, modules = done.stdout.rpartition("modules ")
    return out, set(modules.split())


def test_every_command_is_listed_with_the_first_line_of_its_help() -> None:
    top: Any = get_command(build())
    said = {name: top.get_command(None, name).get_short_help_str(1000) for name in top.commands}
    assert said == {name: command.line for name, command in app.COMMANDS.items()}
    assert list(said) == COMMANDS


def test_help_loads_no_command(dialogd: Commands) -> None:
    for words in (["--help"], ["--version"], []):
        _, modules = loaded(dialogd, *words)
        assert not modules & (HEAVY | {"pydantic", "tomllib", "http.client"})
        own = {name for name in modules if name.startswith("dialogd")}
        assert own <= {
            "dialogd",
            "dialogd.acts",
            "dialogd.cli",
            "dialogd.cli.options",
            "dialogd.errors",
        } | {name for name in own if name.startswith("dialogd.protocol") and not name.startswith("dialogd.protocol.f")}
        assert len(own) < 12, own


def test_a_wrong_command_loads_no_other(dialogd: Commands) -> None:
    _, modules = loaded(dialogd, "statsu")
    assert not modules & HEAVY
    assert not {name for name in modules if name.startswith("dialogd.cli.")} - {
        "dialogd.cli.options",
    }


def test_status_of_a_dialog_loads_what_it_shows(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    out, modules = loaded(dialogd, "status", "--file", str(dialogd.file))
    assert out.startswith("Tabs?\n")
    assert not modules & (HEAVY | {"http.client", "dialogd.hand", "dialogd.agent.loop", "dialogd.agent.prompt"})
    commands = {command.place.partition(":")[0] for command in app.COMMANDS.values()} - {"status"}
    assert not modules & {f"dialogd.cli.{name}" for name in commands}
    assert len([name for name in modules if name.startswith("dialogd")]) < 80


@pytest.mark.slow
@pytest.mark.parametrize("own", [{}, {"PYDANTIC_DISABLE_PLUGINS": "one"}], ids=["unset", "set"])
def test_what_a_command_runs_has_the_persons_own_environment(dialogd: Commands, own: dict[str, str]) -> None:
    program = (
        "import atexit, os, sys; sys.argv = ['dialogd', 'templates']; from dialogd.cli import main; "
        "atexit.register(lambda: print(os.environ.get('PYDANTIC_DISABLE_PLUGINS'))); main()"
    )
    said = subprocess.check_output([sys.executable, "-c", program], env={**dialogd.environment, **own}, text=True)
    assert said.split("\n")[-2] == str(own.get("PYDANTIC_DISABLE_PLUGINS"))


@pytest.mark.slow
def test_with_nothing_there_every_command_says_what_to_type_next(dialogd: Commands) -> None:
    begin = f"dialogd new TOPIC --file {dialogd.file}"
    lines = {
        "status": begin,
        "say hi": begin,
        "plan": begin,
        "verify": begin,
        "logs A": "dialogd start A",
        "stop": "dialogd run",
    }
    lines |= {"run": 'dialogd run "Tabs or spaces?"', "start": "dialogd start A", "run --continue": begin}
    for (words, line), done in zip(lines.items(), dialogd.all([words.split() for words in lines]), strict=True):
        assert (done.code in (2, 3), done.out) == (True, ""), (words, done)
        assert line in done.err.partition("\n  fix: ")[2], (words, done.err)
    other = dialogd.folder / "other.md"
    assert dialogd("start", "A", "--port", "0", "--detach", "--file", str(other)).code == 0
    elsewhere = dialogd("status")
    assert elsewhere.code == 3
    assert f"look at those that run: dialogd status --file {other}; or begin one: dialogd run TOPIC" in elsewhere.err
    with dialogd.background("watch"):
        until(lambda: f"begin one elsewhere: {begin}" in dialogd.output, "a next step", lambda: dialogd.output)

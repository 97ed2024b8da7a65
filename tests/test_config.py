"""Settings: their order, their origins, and what is said about a wrong one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from platformdirs import user_config_path

from dialogd.config import SETTINGS, Settings, default_port, dotenv, load
from dialogd.errors import DialogdError, UnsafeFile
from tests.support.cases import cases


@pytest.fixture
def user_file() -> Iterator[Path]:
    """The user's own config.toml, gone again after the test."""
    path = user_config_path("dialogd") / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    yield path
    path.unlink(missing_ok=True)


def refused(why: str, folder: Path, flags: dict[str, object] | None = None) -> DialogdError:
    """What is said where settings cannot be collected."""
    with pytest.raises(DialogdError, match=why) as caught:
        load(flags or {}, {}, folder)
    assert caught.value.fix
    return caught.value


@pytest.mark.parametrize("strongest", range(7))
def test_the_stronger_place_wins_and_is_named(strongest: int, tmp_path: Path, user_file: Path) -> None:
    flags = {"port": 1} if strongest == 0 else {}
    names = {"DIALOGD_PORT": "2", "CLAUDE_PORT": "3"}
    environment = {name: port for name, port in names.items() if strongest < int(port)}
    files = {
        tmp_path / ".env": "DIALOGD_PORT=4\nANTHROPIC_API_KEY=not-ours\n",
        tmp_path / "dialogd.toml": "port = 5\n",
        tmp_path / "pyproject.toml": "[tool.other]\nx = 1\n[tool.dialogd]\nport = 6\n",
        user_file: "port = 7\n",
    }
    for number, (file, text) in enumerate(files.items(), 4):
        if strongest < number:
            file.write_text(text)
    settings = load(flags, environment, tmp_path)
    origins = ["flag --port", "environment DIALOGD_PORT", "environment CLAUDE_PORT"]
    origins += [f"{file} {'DIALOGD_PORT' if file.name == '.env' else 'port'}" for file in files]
    assert (settings.port, settings.source("port")) == (strongest + 1, origins[strongest])


def test_nothing_set_means_the_documented_defaults(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()  # as a virtual environment may be called
    (tmp_path / "pyproject.toml").write_text("[project\nname = ")  # another project's
    settings = load({}, {}, tmp_path)
    assert settings == Settings()
    assert (settings.id, settings.port, settings.file) == ("", None, Path("/tmp/claude-dialog.md"))
    assert (settings.backend, settings.pace, settings.log_format) == ("auto", 0.0, "text")
    assert (settings.state_dir.name, settings.state_dir.is_absolute()) == ("dialogd", True)
    assert [(name, source) for name, _, source in settings.rows()] == [(one.name, "default") for one in SETTINGS]


def test_places_are_mixed_key_by_key_and_what_is_not_given_sets_nothing(tmp_path: Path, user_file: Path) -> None:
    (tmp_path / "dialogd.toml").write_text('name = "Ann"\nport = 5\ndebug = true\npace = 9\n')
    user_file.write_text('name = "Bob"\nrole = "critic"\nproject = "app"\n')
    flags = {"id": "A", "model": None, "port": None, "debug": False, "pace": 0.5, "file": "d.md"}
    settings = load(flags, {"DIALOGD_MODEL": "", "DIALOGD_STATE_DIR": "./state"}, tmp_path)
    assert (settings.name, settings.role, settings.id, settings.model) == ("Ann", "critic", "A", "")
    assert (settings.port, settings.debug, settings.pace) == (5, False, 0.5)
    paths = (settings.file, settings.state_dir, settings.project)  # each from where it is written
    assert paths == (tmp_path / "d.md", tmp_path / "state", user_file.parent / "app")
    assert {("debug", "false", "flag --debug"), ("pace", "0.5", "flag --pace")} <= set(settings.rows())


@pytest.mark.parametrize(
    ("variable", "written", "name", "expected"),
    [
        ("DIALOGD_ID", "critic-2", "id", "critic-2"),
        ("CLAUDE_ID", "B", "id", "B"),
        ("DIALOGD_PACE", "0", "pace", 0.0),
        ("DIALOGD_PACE", "0.3", "pace", 0.3),
        ("DIALOGD_RETRY_WAIT", "1 minute", "retry_wait", 60.0),
        ("DIALOGD_POLL", "50ms", "poll", 0.05),
        ("DIALOGD_DEBUG", "Yes", "debug", True),
        ("DIALOGD_LOG_FORMAT", "json", "log_format", "json"),
        ("DIALOGD_ROLE", "Doubt everything.\nThen doubt that.", "role", "Doubt everything.\nThen doubt that."),
        ("DIALOGD_FILE", "/tmp/x y.md", "file", Path("/tmp/x y.md")),
        ("DIALOGD_STATE_DIR", "~/s", "state_dir", Path("~/s").expanduser()),
        ("DIALOGD_PORT", "0", "port", 0),
        ("DIALOGD_COMMAND", "prog --x 'a b'", "command", "prog --x 'a b'"),
        ("DIALOGD_PROJECT", "/srv/app", "project", Path("/srv/app")),
        ("DIALOGD_MAX_ROUNDS", "4", "max_rounds", 4),
        ("MAX_COLLABORATION_ROUNDS", "4", "max_rounds", 4),
        ("ESCALATION_THRESHOLD", "2", "escalation_threshold", 2),
    ],
)
def test_every_variable_is_read(variable: str, written: str, name: str, expected: object, tmp_path: Path) -> None:
    assert getattr(load({}, {variable: written}, tmp_path), name) == expected
    (tmp_path / ".env").write_text(f'{variable}="{written}"\n')
    assert getattr(load({}, {}, tmp_path), name) == expected


WRONG: dict[str, list[object]] = {
    "port": ["http", "-1", "65536", "3001.0", True, "\u0663"],
    "id": ["", "2B", "A B", "user", "System", "A\nTURN: B"],
    "pace": ["soon", "-1", "inf", "nan", True, [2]],
    "poll": ["0", "often"],
    "file": ["", "  ", "~nobody-has-this-name/x", 7, "a\0b"],
    "debug": ["perhaps", 2],
    "log_format": ["xml", True],
    "name": ["two\nlines", "bell\a", "\u2028", "\udcff", 5],
}


@pytest.mark.parametrize(("name", "wrong"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_value_names_origin_and_fix_unless_it_is_overruled(name: str, wrong: object, tmp_path: Path) -> None:
    flag = f"flag --{name.replace('_', '-')}"
    said = refused(name, tmp_path, {name: wrong})
    assert str(said).startswith(f"{name} {wrong!r} ({flag}) ")
    assert (flag in said.fix, said.exit_code) == (True, 2)
    (tmp_path / "dialogd.toml").write_text('port = "nonsense"\n')
    assert load({"port": 9}, {}, tmp_path).port == 9


@cases(
    ("file", "content", "said", "fix"),
    [
        ("dialogd.toml", b'state-dir = "x"\n', "unknown setting 'state-dir' in {file}", "state_dir"),
        ("pyproject.toml", b'[tool.dialogd]\nstate-dir = "x"\n', "unknown setting 'state-dir' in {file}", "state_dir"),
        (".env", b"DATABASE=x\nDIALOGD_PROT=3001\n", "unknown setting 'DIALOGD_PROT'", "DIALOGD_PORT"),
        ("dialogd.toml", b"port = \n", "{file} is not TOML", ""),
        ("dialogd.toml", b"name = '\xff'\n", "{file} cannot be read", ""),
        (".env", b"\xff\xfe", "{file} cannot be read", ""),
        ("pyproject.toml", b"[tool]\ndialogd = 3\n", "tool.dialogd in {file}", ""),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, file: str, content: bytes, said: str, fix: str) -> None:
    (tmp_path / file).write_bytes(content)
    assert fix in refused(said.format(file=tmp_path / file), tmp_path).fix
    (tmp_path / file).unlink()


def test_an_unknown_flag_is_refused(tmp_path: Path) -> None:
    refused("prot", tmp_path, {"prot": 1})


def test_dotenv_never_reaches_the_process_environment(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("SECRET='${HOME}'\nEMPTY=\nBARE\nDIALOGD_NAME=Ann\n")
    before = dict(os.environ)
    load({}, {}, tmp_path)
    assert dotenv(tmp_path) == {"SECRET": "${HOME}", "DIALOGD_NAME": "Ann"}
    assert dict(os.environ) == before


@pytest.mark.root
def test_a_file_that_another_user_left_in_a_shared_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dialogd.toml").write_text('command = "evil"\n')
    os.chown(tmp_path / "dialogd.toml", 12345, -1)
    refused("belongs to another user", tmp_path)
    os.chown(tmp_path, 12345, -1)
    assert load({}, {}, tmp_path).command == "evil"


def test_seats_of_a_single_letter_have_ports_of_their_own() -> None:
    ports = {"A": 3001, "B": 3002, "c": 3003, "Z": 3026, "critic": None, "": None, "\u00df": None}
    assert {agent: default_port(agent) for agent in ports} == ports


SERVER = """
[tools.tickets]
command = "uvx 'my tickets'"
tools = { search = "allow" }
env = { TICKETS_TOKEN = "tok-0123456789abcdef" }

[tools.wiki]
url = "http://127.0.0.1:8931/mcp"
may = "deny"
"""


def test_servers_of_tools_stand_in_the_users_own_file_which_nobody_else_may_write(
    tmp_path: Path, user_file: Path
) -> None:
    user_file.write_text(SERVER)
    settings = load({}, {}, tmp_path)
    tickets, wiki = settings.tools
    assert (tickets.name, tickets.command, tickets.url) == ("tickets", ("uvx", "my tickets"), "")
    assert [tickets.may_call(tool) for tool in ("search", "create")] == ["allow", "ask"]
    assert (wiki.url, wiki.is_denied, tickets.is_denied) == ("http://127.0.0.1:8931/mcp", True, False)
    shown = "tickets (uvx 'my tickets'; ask, search: allow); wiki (http://127.0.0.1:8931/mcp; deny)"
    assert ("tools", shown) in {(name, value) for name, value, _ in settings.rows()}
    user_file.chmod(0o666)
    assert isinstance(refused("anybody may write", tmp_path), UnsafeFile)


@pytest.mark.parametrize("name", ["dialogd.toml", "pyproject.toml", ".env"])
def test_no_project_names_servers_of_tools(tmp_path: Path, user_file: Path, name: str) -> None:
    named = SERVER if name == "dialogd.toml" else SERVER.replace("[tools.", "[tool.dialogd.tools.")
    (tmp_path / name).write_text("DIALOGD_TOOLS=x\n" if name == ".env" else named)
    said = refused("a project does not decide which programs run", tmp_path)
    assert str(user_file) in said.fix


def test_no_project_and_no_variable_says_what_tests_a_build(tmp_path: Path, user_file: Path) -> None:
    for name, text, what in (("dialogd.toml", 'gate = "sh evil"\n', "gate"), (".env", "DIALOGD_REPO=.\n", "repo")):
        (tmp_path / name).write_text(text)
        refused(f"may not set '{what}'", tmp_path)
        (tmp_path / name).unlink()
    user_file.write_text('gate = "make test"\n')
    settings = load({"repo": "code"}, {"DIALOGD_GATE": "sh evil"}, tmp_path)
    assert (settings.gate, settings.repo) == ("make test", tmp_path / "code")


@cases(
    "text, why",
    [
        ('[tools."a b"]\ncommand = "x"', "tools.a b.name"),
        ("[tools.a]", "either a command or a url"),
        ('[tools.a]\ncommand = "x"\nurl = "http://localhost:1"', "either a command or a url"),
        ('[tools.a]\nurl = "http://example.org/mcp"', "on this machine"),
        ('[tools.a]\nurl = "http://127.0.0.1@example.org/mcp"', "on this machine"),
        ('[tools.a]\ncommand = "x"\nmay = "yes"', "'allow', 'ask' or 'deny'"),
        ('[tools.a]\ncommand = "x"\ntools = { b = "sometimes" }', "'allow', 'ask' or 'deny'"),
        ('[tools.a]\ncommand = "x"\nallow = true', "tools.a.allow"),
        ('[tools.a]\ncommand = "x"\nenv = { KEY = 1 }', "tools.a.env"),
        ('tools = "x"', "must be tables"),
    ],
)
def test_a_server_that_makes_no_sense_is_refused(tmp_path: Path, user_file: Path, text: str, why: str) -> None:
    user_file.write_text(text)
    assert str(user_file) in str(refused(why, tmp_path))

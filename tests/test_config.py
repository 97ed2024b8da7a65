"""Settings: their order, their origins, and what is said about a wrong one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from platformdirs import user_config_path

from dialogd.config import SETTINGS, Settings, default_port, dotenv, load
from dialogd.errors import BadInput, UnsafeFile
from tests.support.cases import cases

# One place after another, strongest first: where the port stands and what its origin is called.
PORTS = {"flag": 1, "environment": 2, "claude": 3, "dotenv": 4, "project": 5, "pyproject": 6, "user": 7}


@pytest.fixture
def user_file() -> Iterator[Path]:
    """The user's own config.toml, gone again after the test."""
    path = user_config_path("dialogd") / "config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    yield path
    path.unlink(missing_ok=True)


def place(name: str, cwd: Path, user_file: Path, flags: dict[str, object], environment: dict[str, str]) -> None:
    """Set the port in one of the places."""
    port = PORTS[name]
    match name:
        case "flag":
            flags["port"] = port
        case "environment":
            environment["DIALOGD_PORT"] = str(port)
        case "claude":
            environment["CLAUDE_PORT"] = str(port)
        case "dotenv":
            (cwd / ".env").write_text(f"DIALOGD_PORT={port}\nANTHROPIC_API_KEY=not-ours\n")
        case "project":
            (cwd / "dialogd.toml").write_text(f"port = {port}\n")
        case "pyproject":
            (cwd / "pyproject.toml").write_text(f"[tool.other]\nx = 1\n[tool.dialogd]\nport = {port}\n")
        case "user":
            user_file.write_text(f"port = {port}\n")


@pytest.mark.parametrize("strongest", range(len(PORTS)))
def test_the_stronger_place_wins_and_is_named(strongest: int, tmp_path: Path, user_file: Path) -> None:
    flags: dict[str, object] = {}
    environment: dict[str, str] = {}
    for name in list(PORTS)[strongest:]:
        place(name, tmp_path, user_file, flags, environment)
    settings = load(flags, environment, tmp_path)
    origins = [
        "flag --port",
        "environment DIALOGD_PORT",
        "environment CLAUDE_PORT",
        f"{tmp_path / '.env'} DIALOGD_PORT",
        f"{tmp_path / 'dialogd.toml'} port",
        f"{tmp_path / 'pyproject.toml'} port",
        f"{user_file} port",
    ]
    assert settings.port == strongest + 1
    assert settings.source("port") == origins[strongest]


def test_nothing_set_means_the_documented_defaults(tmp_path: Path) -> None:
    settings = load({}, {}, tmp_path)
    assert settings == Settings()
    assert (settings.id, settings.port, settings.file) == ("", None, Path("/tmp/claude-dialog.md"))
    assert (settings.backend, settings.pace, settings.log_format) == ("auto", 0.0, "text")
    assert settings.state_dir.name == "dialogd"
    assert settings.state_dir.is_absolute()
    assert {source for _, _, source in settings.rows()} == {"default"}


def test_places_are_mixed_key_by_key(tmp_path: Path, user_file: Path) -> None:
    (tmp_path / "dialogd.toml").write_text('name = "Ann"\n')
    user_file.write_text('name = "Bob"\nrole = "critic"\n')
    settings = load({"id": "A", "model": None}, {}, tmp_path)
    assert (settings.name, settings.role, settings.id, settings.model) == ("Ann", "critic", "A", "")


def test_a_flag_not_given_and_an_empty_variable_set_nothing(tmp_path: Path) -> None:
    (tmp_path / "dialogd.toml").write_text("port = 5\ndebug = true\npace = 9\n")
    settings = load({"port": None, "debug": False, "pace": 0}, {"DIALOGD_PORT": ""}, tmp_path)
    assert (settings.port, settings.debug, settings.pace) == (5, False, 0.0)


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
        ("DIALOGD_BACKEND", "rehearsal:deadlock", "backend", "rehearsal:deadlock"),
        ("DIALOGD_PROJECT", "/srv/app", "project", Path("/srv/app")),
        ("DIALOGD_MAX_ROUNDS", "4", "max_rounds", 4),
        ("MAX_COLLABORATION_ROUNDS", "4", "max_rounds", 4),
        ("ESCALATION_THRESHOLD", "2", "escalation_threshold", 2),
        ("DIALOGD_MODEL", "some-model", "model", "some-model"),
        ("DIALOGD_NAME", "Ann", "name", "Ann"),
    ],
)
def test_every_variable_is_read(variable: str, written: str, name: str, expected: object, tmp_path: Path) -> None:
    assert getattr(load({}, {variable: written}, tmp_path), name) == expected
    (tmp_path / ".env").write_text(f'{variable}="{written}"\n')
    assert getattr(load({}, {}, tmp_path), name) == expected


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("port", wrong) for wrong in ("http", "-1", "65536", "3001.0", True, "\u0663")),
        *(("id", wrong) for wrong in ("", "2B", "A B", "user", "System", "A\nTURN: B")),
        *(("pace", wrong) for wrong in ("soon", "-1", "inf", "nan", True, [2])),
        *(("poll", wrong) for wrong in ("0", "often")),
        *(("file", wrong) for wrong in ("", "  ", "~nobody-has-this-name/x", 7, "a\0b")),
        *(("debug", wrong) for wrong in ("perhaps", 2)),
        *(("log_format", wrong) for wrong in ("xml", True)),
        *(("name", wrong) for wrong in ("two\nlines", "bell\a", "\u2028", "\udcff", 5)),
    ],
)
def test_a_wrong_value_names_origin_and_fix(name: str, wrong: object, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        load({name: wrong}, {}, tmp_path)
    assert str(caught.value).startswith(f"{name} {wrong!r} (flag --{name.replace('_', '-')}) ")
    assert f"flag --{name.replace('_', '-')}" in caught.value.fix
    assert caught.value.exit_code == 2


def test_a_wrong_value_that_is_overruled_is_nobodys_problem(tmp_path: Path) -> None:
    (tmp_path / "dialogd.toml").write_text('port = "nonsense"\n')
    assert load({"port": 9}, {}, tmp_path).port == 9


@pytest.mark.parametrize("file", ["dialogd.toml", "pyproject.toml"])
def test_an_unknown_key_is_named_with_close_matches(file: str, tmp_path: Path) -> None:
    head = "[tool.dialogd]\n" if file == "pyproject.toml" else ""
    (tmp_path / file).write_text(f'{head}state-dir = "x"\n')
    with pytest.raises(BadInput, match="unknown setting 'state-dir'") as caught:
        load({}, {}, tmp_path)
    assert str(tmp_path / file) in str(caught.value)
    assert "state_dir" in caught.value.fix


def test_a_typo_in_dotenv_is_named_and_other_programs_keys_are_not(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("DATABASE=x\nDIALOGD_PROT=3001\n")
    with pytest.raises(BadInput, match="DIALOGD_PROT") as caught:
        load({}, {}, tmp_path)
    assert "DIALOGD_PORT" in caught.value.fix


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("dialogd.toml", b"port = \n"),
        ("dialogd.toml", b"name = '\xff'\n"),
        (".env", b"\xff\xfe"),
        ("pyproject.toml", b"[tool]\ndialogd = 3\n"),
    ],
)
def test_a_broken_file_is_named(file: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(BadInput, match=file) as caught:
        load({}, {}, tmp_path)
    assert caught.value.fix


def test_another_projects_pyproject_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project\nname = ")
    assert load({}, {}, tmp_path) == Settings()


def test_a_virtual_environment_called_dotenv_is_no_file_of_settings(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    assert load({}, {}, tmp_path) == Settings()


def test_dotenv_never_reaches_the_process_environment(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("SECRET='${HOME}'\nEMPTY=\nBARE\nDIALOGD_NAME=Ann\n")
    before = dict(os.environ)
    load({}, {}, tmp_path)
    assert dotenv(tmp_path) == {"SECRET": "${HOME}", "DIALOGD_NAME": "Ann"}
    assert dict(os.environ) == before


def test_relative_paths_count_from_where_they_are_written(tmp_path: Path, user_file: Path) -> None:
    user_file.write_text('project = "app"\n')
    settings = load({"file": "d.md"}, {"DIALOGD_STATE_DIR": "./state"}, tmp_path)
    assert settings.file == tmp_path / "d.md"
    assert settings.state_dir == tmp_path / "state"
    assert settings.project == user_file.parent / "app"


@pytest.mark.root
def test_a_file_that_another_user_left_in_a_shared_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dialogd.toml").write_text('command = "evil"\n')
    os.chown(tmp_path / "dialogd.toml", 12345, -1)
    with pytest.raises(BadInput, match="belongs to another user"):
        load({}, {}, tmp_path)
    os.chown(tmp_path, 12345, -1)
    assert load({}, {}, tmp_path).command == "evil"


def test_every_setting_has_a_row_with_value_and_origin(tmp_path: Path) -> None:
    rows = load({"debug": True, "pace": 0.5}, {}, tmp_path).rows()
    assert [name for name, _, _ in rows] == [setting.name for setting in SETTINGS]
    assert {("debug", "true", "flag --debug"), ("pace", "0.5", "flag --pace")} <= set(rows)


def test_an_unknown_flag_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="prot"):
        load({"prot": 1}, {}, tmp_path)


@cases(
    ("agent", "port"),
    [("A", 3001), ("B", 3002), ("c", 3003), ("Z", 3026), ("critic", None), ("", None), ("\u00df", None)],
)
def test_seats_have_ports(agent: str, port: int | None) -> None:
    """Single letters have a port of their own, other ids have none."""
    assert default_port(agent) == port


SERVER = """
[tools.tickets]
command = "uvx 'my tickets'"
tools = { search = "allow" }
env = { TICKETS_TOKEN = "tok-0123456789abcdef" }

[tools.wiki]
url = "http://127.0.0.1:8931/mcp"
may = "deny"
"""


def test_servers_of_tools_stand_in_the_users_own_file(tmp_path: Path, user_file: Path) -> None:
    user_file.write_text(SERVER)
    settings = load({}, {}, tmp_path)
    tickets, wiki = settings.tools
    assert (tickets.name, tickets.command, tickets.url) == ("tickets", ("uvx", "my tickets"), "")
    assert [tickets.may_call(tool) for tool in ("search", "create")] == ["allow", "ask"]
    assert (wiki.url, wiki.is_denied, tickets.is_denied) == ("http://127.0.0.1:8931/mcp", True, False)
    (shown,) = (value for name, value, _ in settings.rows() if name == "tools")
    assert shown == "tickets (uvx 'my tickets'; ask, search: allow); wiki (http://127.0.0.1:8931/mcp; deny)"


@pytest.mark.parametrize("name", ["dialogd.toml", "pyproject.toml", ".env"])
def test_no_project_names_servers_of_tools(tmp_path: Path, user_file: Path, name: str) -> None:
    named = SERVER if name == "dialogd.toml" else SERVER.replace("[tools.", "[tool.dialogd.tools.")
    (tmp_path / name).write_text("DIALOGD_TOOLS=x\n" if name == ".env" else named)
    with pytest.raises(BadInput, match="a project does not decide which programs run") as caught:
        load({}, {}, tmp_path)
    assert str(user_file) in caught.value.fix


def test_no_project_and_no_variable_says_what_tests_a_build(tmp_path: Path, user_file: Path) -> None:
    (tmp_path / "dialogd.toml").write_text('gate = "sh evil"\n')
    with pytest.raises(BadInput, match="may not set 'gate'"):
        load({}, {}, tmp_path)
    (tmp_path / "dialogd.toml").unlink()
    (tmp_path / ".env").write_text("DIALOGD_REPO=.\n")
    with pytest.raises(BadInput, match="may not set 'repo'"):
        load({}, {}, tmp_path)
    (tmp_path / ".env").unlink()
    user_file.write_text('gate = "make test"\n')
    settings = load({"repo": "code"}, {"DIALOGD_GATE": "sh evil"}, tmp_path)
    assert (settings.gate, settings.repo) == ("make test", tmp_path / "code")


def test_a_file_of_servers_that_anybody_may_write_is_refused(tmp_path: Path, user_file: Path) -> None:
    user_file.write_text(SERVER)
    user_file.chmod(0o666)
    with pytest.raises(UnsafeFile, match="anybody may write"):
        load({}, {}, tmp_path)


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
    with pytest.raises(BadInput, match=why) as caught:
        load({}, {}, tmp_path)
    assert str(user_file) in str(caught.value)

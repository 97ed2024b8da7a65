"""`dialogd mcp install` and `init`: what they change is shown, all else stays, nothing is lost silently."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dialogd import __version__
from dialogd.cli.setup import START
from tests.cli.command import Commands


@pytest.fixture
def dialogd(tmp_path: Path) -> Commands:
    """The command, with an empty home."""
    return Commands(tmp_path)


@pytest.mark.parametrize(("client", "place"), [("gemini", ".gemini/settings.json"), ("cursor", ".cursor/mcp.json")])
def test_settings_get_the_server_and_keep_all_else(dialogd: Commands, client: str, place: str) -> None:
    real, path = dialogd.folder / "dotfiles.json", dialogd.folder / place
    before = {"theme": "dark", "mcpServers": {"other": {"command": "x", "env": {"é": "1"}}}, "last": [1]}
    real.write_text(json.dumps(before))
    real.chmod(0o640)
    path.parent.mkdir()
    path.symlink_to(real)
    words = ("mcp", "install", "--client", client)
    tried = dialogd(*words, "--dry-run")
    assert (tried.code, json.loads(real.read_text())) == (0, before)
    done = dialogd(*words)
    after = json.loads(path.read_text())
    assert after["mcpServers"].pop("dialogd")["args"][-1] == "mcp"
    assert (after, list(after), path.is_symlink()) == (before, list(before), True)
    assert (real.stat().st_mode & 0o777, done.out) == (0o640, tried.out)
    assert '+    "dialogd": {' in done.out
    assert "has it already" in dialogd(*words).out


@pytest.mark.parametrize("client", ["claude", "codex"])
def test_a_dry_run_shows_the_command_of_a_client_that_is_not_here(dialogd: Commands, client: str) -> None:
    dialogd.environment["PATH"] = str(dialogd.folder)
    tried = dialogd("mcp", "install", "--client", client, "--dry-run")
    assert (tried.code, tried.out.startswith(f"{client} mcp add ")) == (0, True), tried
    assert f"{client} is not installed here" in dialogd("mcp", "install", "--client", client).err


def test_a_first_file_is_made_and_what_is_added_by_hand_there_stays(dialogd: Commands) -> None:
    path = dialogd.folder / ".cursor" / "mcp.json"
    assert dialogd("mcp", "install", "--client", "cursor").code == 0
    settings = json.loads(path.read_text())
    settings["mcpServers"]["dialogd"] |= {"env": {"DIALOGD_FILE": "/x.md"}, "command": "old"}
    path.write_text(json.dumps(settings))
    assert dialogd("mcp", "install", "--client", "cursor").code == 0
    entry = json.loads(path.read_text())["mcpServers"]["dialogd"]
    assert entry["env"] == {"DIALOGD_FILE": "/x.md"}
    assert entry["command"] != "old"


@pytest.mark.parametrize("text", ["{ // a remark\n}", "[]", '{"mcpServers": 3}', "\ufffd{"])
def test_settings_that_cannot_be_read_are_left_alone(dialogd: Commands, text: str) -> None:
    path = dialogd.folder / ".gemini" / "settings.json"
    path.parent.mkdir()
    path.write_text(text)
    done = dialogd("mcp", "install", "--client", "gemini")
    assert (done.code, path.read_text()) == (2, text)
    assert "settings.json" in done.err


def test_a_client_that_is_not_there_or_not_known_is_named(dialogd: Commands) -> None:
    assert dialogd("mcp", "install", "--client", "claude", PATH=str(dialogd.folder)).code == 1
    assert dialogd("mcp", "install", "--client", "emacs").code == 2
    assert dialogd("mcp", "install").code == 2


def test_the_command_is_written_once_and_never_over_something_else(dialogd: Commands) -> None:
    path = dialogd.folder / ".claude" / "commands" / "dialog-start.md"
    assert dialogd("init").code == 2
    assert START.rstrip() in dialogd("init", "--claude", "--dry-run").out
    assert not path.exists()
    assert START.rstrip() in dialogd("init", "--claude").out
    assert path.read_text() == START
    assert "already" in dialogd("init", "--claude").out
    path.write_text("Mine.\n")
    refused = dialogd("init", "--claude")
    assert (refused.code, path.read_text()) == (1, "Mine.\n")
    assert dialogd("init", "--claude", "--force").code == 0
    assert path.read_text() == START


def test_the_plugin_is_of_this_version_and_keeps_no_session_busy(repository: Path) -> None:
    plugin = repository / "plugin" / "dialogd"
    for manifest in (".claude-plugin", ".codex-plugin"):
        facts = json.loads((plugin / manifest / "plugin.json").read_text())
        assert (facts["name"], facts["version"]) == ("dialogd", __version__)
        assert "hooks" not in facts
    assert not (plugin / "hooks").exists()
    assert (plugin / "commands" / "start.md").read_text() == START
    assert {path.stem for path in (plugin / "commands").iterdir()} == {"start", "join", "ask", "say", "status", "stop"}

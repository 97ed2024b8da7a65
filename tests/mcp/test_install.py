"""`dialogd mcp install` and `init`: what they do is shown, and nothing is lost silently."""

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


def test_a_client_without_a_command_of_its_own_is_said_what_to_add(dialogd: Commands) -> None:
    done = dialogd("mcp", "install", "--client", "cursor")
    where, _, text = done.out.partition("\n")
    assert (done.code, where) == (0, "add to ~/.cursor/mcp.json:")
    assert json.loads(text)["mcpServers"]["dialogd"]["args"][-1] == "mcp"


@pytest.mark.parametrize("client", ["claude", "codex", "gemini"])
def test_a_dry_run_shows_the_command_of_a_client_that_is_not_here(dialogd: Commands, client: str) -> None:
    dialogd.environment["PATH"] = str(dialogd.folder)
    tried = dialogd("mcp", "install", "--client", client, "--dry-run")
    assert (tried.code, tried.out.startswith(f"{client} mcp add ")) == (0, True), tried
    assert f"{client} is not installed here" in dialogd("mcp", "install", "--client", client).err


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

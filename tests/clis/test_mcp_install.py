"""`dialogd mcp install` and the plugin, with the real Claude Code and Codex."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests.cli.command import Commands
from tests.clis.rig import PATH, World

PROGRAMS = {"claude-code": "claude", "codex": "codex"}


def run(world: World, *words: str) -> str:
    """Run the program in its home; what it printed."""
    environment = {"HOME": str(world.home), "PATH": PATH, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    done = subprocess.run(
        words, cwd=world.project, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_installed_by_the_clients_own_command(world: World, tmp_path: Path) -> None:
    dialogd, program = Commands(tmp_path), PROGRAMS[world.name]
    words = ("mcp", "install", "--client", program)
    tried = dialogd(*words, "--dry-run", HOME=str(world.home), PATH=PATH)
    assert tried.out.startswith(f"{program} mcp add ")
    assert "dialogd" not in run(world, program, "mcp", "list")
    done = dialogd(*words, HOME=str(world.home), PATH=PATH)
    assert (done.code, done.out.split("\n")[0]) == (0, tried.out.strip()), done.err
    assert "dialogd" in run(world, program, "mcp", "list")


def test_the_server_beside_the_plugin_is_told(claude: World, repository: Path, tmp_path: Path) -> None:
    install = ("mcp", "install", "--client", "claude")
    dialogd = Commands(tmp_path)
    assert "twice" not in dialogd(*install, HOME=str(claude.home), PATH=PATH).out
    run(claude, "claude", "mcp", "remove", "--scope", "user", "dialogd")
    run(claude, "claude", "plugin", "marketplace", "add", str(repository / "plugin"))
    run(claude, "claude", "plugin", "install", "dialogd@dialogd")
    told = dialogd(*install, HOME=str(claude.home), PATH=PATH).out
    assert "twice in every session" in told
    listed = run(claude, "claude", "mcp", "list")
    assert ("plugin:dialogd:dialogd" in listed, "\ndialogd: " in listed) == (True, True)


def test_claude_code_takes_the_plugin(claude: World, repository: Path) -> None:
    plugin = repository / "plugin"
    run(claude, "claude", "plugin", "validate", "--strict", str(plugin))
    run(claude, "claude", "plugin", "validate", "--strict", str(plugin / "dialogd"))
    run(claude, "claude", "plugin", "marketplace", "add", str(plugin))
    run(claude, "claude", "plugin", "install", "dialogd@dialogd")
    shown = run(claude, "claude", "plugin", "details", "dialogd")
    assert "ask, join, say, second-opinion, start, status, stop" in shown
    assert "Hooks (0)" in shown
    assert "MCP servers (1)" in shown


def test_codex_takes_the_plugin(codex: World, repository: Path) -> None:
    folder = shutil.copytree(repository / "plugin", codex.home / "plugin")
    run(codex, "codex", "plugin", "marketplace", "add", str(folder))
    run(codex, "codex", "plugin", "add", "dialogd@dialogd")
    servers = json.loads(run(codex, "codex", "mcp", "list", "--json"))
    assert [server["name"] for server in servers] == ["dialogd"]
    assert list((codex.home / ".codex" / "plugins").rglob("second-opinion/SKILL.md"))

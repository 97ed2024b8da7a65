"""Claude Code and Codex, set up and open in terminals."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.clis.rig import KEY, PATH, World, path_for_codex
from tests.support.pair import until
from tests.support.terminal import Terminal

PATIENCE = 180.0  # seconds
ALONE = {"DIALOGD_PORT": "0", "DIALOGD_PLAN": "0"}  # ports as they come
HERE = os.pathsep.join([str(Path(sys.executable).parent), PATH])


def in_terminal(world: World) -> dict[str, str]:
    return {
        "HOME": str(world.home),
        "PATH": HERE,
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "DIALOGD_STATE_DIR": str(world.state),
        "DIALOGD_FILE": str(world.home / "dialog.md"),
    }


def claude_environment(world: World, url: str, **more: str) -> dict[str, str]:
    config = Path(more["CLAUDE_CONFIG_DIR"]) if "CLAUDE_CONFIG_DIR" in more else world.home
    config.mkdir(exist_ok=True)
    known = {
        "hasCompletedOnboarding": True,
        "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
        "projects": {str(world.project): {"hasTrustDialogAccepted": True}},
    }
    (config / ".claude.json").write_text(json.dumps(known))
    return {
        **in_terminal(world),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        **more,
    }


@contextmanager
def claude_session(world: World, environment: Mapping[str, str]) -> Iterator[Terminal]:
    words = ["claude", "--permission-mode", "default", "--allowedTools", "Bash(dialogd:*)"]
    terminal = Terminal(words, environment, world.project)
    try:
        terminal.until("shortcuts")
        yield terminal
    finally:
        terminal.close()


def codex_environment(world: World, url: str, **more: str) -> dict[str, str]:
    """The variables of a terminal in which Codex was set up; its shell knows where dialogd is, and it has its tools."""
    home = world.home / ".codex"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(
        "\n".join(
            [
                'model_provider = "standin"',
                "check_for_update_on_startup = false",
                "[analytics]",
                "enabled = false",
                "[model_providers.standin]",
                'name = "standin"',
                f'base_url = "{url}/v1"',
                'env_key = "OPENAI_API_KEY"',
                'wire_api = "responses"',
                f'[projects."{world.project}"]',
                'trust_level = "trusted"',
            ]
        )
    )
    here = path_for_codex(world.home, HERE)
    (world.home / ".profile").write_text(f'export PATH="{here}"\n')
    environment = {
        **in_terminal(world),
        "PATH": here,
        "OPENAI_API_KEY": KEY,
        "SHELL": "/bin/bash",
        **more,
    }
    own = {name: value for name, value in environment.items() if name.startswith(("DIALOGD_", "HOME"))}
    with (home / "config.toml").open("a") as out:
        out.write(
            "\n".join(
                [
                    "\n[mcp_servers.dialogd]",
                    f"command = {json.dumps(sys.executable)}",
                    'args = ["-m", "dialogd", "mcp"]',
                    'default_tools_approval_mode = "approve"',
                    "required = true",
                    "[mcp_servers.dialogd.env]",
                    *(f"{name} = {json.dumps(value)}" for name, value in own.items()),
                ]
            )
        )
    return environment


def rollouts(world: World) -> list[Path]:
    return [*(world.home / ".codex" / "sessions").glob("*/*/*/rollout-*.jsonl")]


@contextmanager
def codex_session(world: World, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """Codex, open in a terminal, with a first message: before that nobody can tell what the thread is for."""
    terminal = Terminal(["codex", "--no-daemon"], environment, world.project)
    try:
        terminal.until("Ask Codex to do anything")
        terminal.type("Hello there")
        until(lambda: rollouts(world), "a rollout", PATIENCE, lambda: terminal.text[-2000:])
        yield terminal
    finally:
        terminal.close()

"""The shell that Claude Code is given as the lead of a build: what its commands see, reach and write."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dialogd.backends import Options, Workspace
from dialogd.backends.coding_clis import ClaudeCode
from dialogd.backends.command import missing
from dialogd.backends.readonly_proof import Run, Way
from tests.support.cases import cases

NEEDS = pytest.mark.skipif(bool(missing()), reason=missing() or "it is here")
KEY = "sk-ant-test-0123456789"


class Lead:
    """A lead that works in a worktree, whose program is never run: only what it would run a command by."""

    def __init__(self, top: Path) -> None:
        self.top = top
        for name in ("bin", "home/.claude", "project", "state", "seen", "run", "talk"):
            (top / name).mkdir(parents=True)
        (top / "bin/claude").touch(mode=0o755)
        environment = {"HOME": str(top / "home"), "PATH": f"{top}/bin{os.pathsep}{os.environ['PATH']}"}
        variables = {"ANTHROPIC_API_KEY": KEY}
        options = Options(
            project=top / "project", state=top / "state", variables=variables, environment=environment, secrets=()
        )
        self.backend = ClaudeCode(options)
        common = top / "repository/.git"
        dialog = top / "talk/dialog.md"
        dialog.write_text("TALK")
        self.workspace = Workspace(
            top / "work tree", common / "worktrees/task", common, (dialog, top / "state"), (top / "seen",)
        )
        for folder in (self.workspace.path, self.workspace.git_dir):
            folder.mkdir(parents=True)
        (common / "config").write_text("[core]\n")
        (self.workspace.path / ".git").write_text(f"gitdir: {self.workspace.git_dir}\n")
        (top / "seen/tool").write_text("TOOL")
        (top / "home/.claude/.credentials.json").write_text("LOGIN-OF-THE-PERSON")
        self.home = top / "state/claude-code-home"
        self.home.mkdir()
        (self.home / ".credentials.json").write_text("LOGIN-LENT")

    def arguments(self, *, shell: bool) -> list[str]:
        way = Way(self.workspace, boxed=True, shell=shell)
        return self.backend.arguments(Run("", self.top / "run/system.md", self.top / "run", way=way))

    def runs(self, command: str) -> str:
        """What a command says, run as the program runs it: within the sandbox of the lead, by the prefix."""
        run = Run("", self.top / "run/system.md", self.top / "run", way=Way(self.workspace, boxed=True, shell=True))
        given = self.backend.around(run, self.home)
        words = self.workspace.confined(
            [given["CLAUDE_CODE_SHELL_PREFIX"], command], [self.home], [run.folder, *self.workspace.seen]
        )
        environment = {**self.backend.environment, **given}
        assert environment["ANTHROPIC_API_KEY"] == KEY
        done = subprocess.run(words, capture_output=True, check=False, timeout=60, env=environment)
        return (done.stdout + done.stderr).decode("utf-8", "replace")


@pytest.fixture
def lead(tmp_path: Path) -> Lead:
    return Lead(tmp_path)


@NEEDS
def test_a_command_works_in_the_worktree_and_sees_what_the_gate_sees(lead: Lead) -> None:
    said = lead.runs(f'pwd; echo "it\'s new" > made; cat made {lead.top}/seen/tool; echo x > /tmp/x && cat /tmp/x')
    assert said.split("\n")[:3] == [str(lead.workspace.path), "it's new", "TOOLx"]


@NEEDS
def test_a_command_has_no_network(lead: Lead) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        said = lead.runs(f"(exec 3<>/dev/tcp/127.0.0.1/{port}) && echo reached; echo over")
    assert "over" in said
    assert "reached" not in said


@NEEDS
@cases(
    "command",
    [
        "env",
        "cat /proc/*/environ",
        "cat {top}/home/.claude/.credentials.json",
        "cat {top}/state/claude-code-home/.credentials.json",
        "cat {top}/run/*",
        "cat {top}/talk/dialog.md",
        "grep -rs . {top}/home {top}/state",
    ],
)
def test_a_command_finds_no_key_no_login_and_no_dialog(lead: Lead, command: str) -> None:
    said = lead.runs(f"{command.format(top=shlex.quote(str(lead.top)))}; echo over")
    assert "over" in said
    for secret in (KEY, "LOGIN-OF-THE-PERSON", "LOGIN-LENT", "TALK"):
        assert secret not in said


@NEEDS
def test_a_command_writes_nothing_but_the_worktree(lead: Lead) -> None:
    places = ["repository/.git/config", "repository/.git/new", "work tree/.git", "seen/tool", "project/new"]
    places += ["repository/.git/worktrees/task/HEAD", "state/claude-code-home/shell-snapshots/new", "run/shell"]
    before = {path: path.read_bytes() for path in lead.top.rglob("*") if path.is_file()}
    lead.runs("; ".join(f"echo planted > {shlex.quote(str(lead.top / place))}" for place in places) + "; echo x > made")
    after = {path: path.read_bytes() for path in lead.top.rglob("*") if path.is_file()}
    assert after.pop(lead.workspace.path / "made") == b"x\n"
    assert after.pop(lead.top / "run/shell").startswith(b"#!/bin/sh\nexec env -i ")
    assert after == before


@NEEDS
def test_a_command_runs_the_kit_and_cannot_change_it(lead: Lead) -> None:
    tool = lead.top / "kit/bin/tool"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho ran\n")
    tool.chmod(0o755)
    lead.workspace = replace(lead.workspace, kit={lead.workspace.path.resolve() / ".venv": lead.top / "kit"})
    said = lead.runs("echo 'echo planted' >> .venv/bin/tool; rm -rf .venv/bin; touch .venv/new; .venv/bin/tool")
    assert said.split("\n")[0] == "ran"
    assert tool.read_text() == "#!/bin/sh\necho ran\n"
    assert not (lead.top / "kit/new").exists()


def test_without_a_sandbox_it_gets_no_bash(lead: Lead) -> None:
    assert "Bash" not in " ".join(lead.arguments(shell=False))
    assert "Read,Grep,Glob,Edit,Write,Bash" in lead.arguments(shell=True)

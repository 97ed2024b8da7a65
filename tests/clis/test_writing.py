"""What real coding agents may do in a worktree: write there, and nowhere else, whoever asks for it."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dialogd.backends import Request, Workspace, load_backend
from dialogd.backends.coding_agent import GOES_ON, AgentCLI
from dialogd.backends.command import missing
from dialogd.backends.readonly_proof import prove
from tests.clis.rig import KEY, PATH, World, prompt, request, turn
from tests.support.backend_contract import answer
from tests.support.standin import Say, Seen, StandIn, Use, in_order

NEEDS = pytest.mark.skipif(bool(missing()), reason=missing() or "it is here")
PLANTED = "planted-by-order"


@pytest.fixture
def world(every: World) -> World:
    return every


@pytest.fixture
def workspace(world: World) -> Workspace:
    top = world.home.parent / "around"
    common = top / "repository" / ".git"
    forbidden = (top / "talk" / "dialog.md", top / "talk", top / "state", world.home, Path("/tmp"))
    found = Workspace(top / "work tree, (1)", common / "worktrees" / "task", common, forbidden)
    for folder in (found.path, found.git_dir, common / "hooks", top / "talk", top / "state"):
        folder.mkdir(parents=True)
    (top / "talk" / "dialog.md").write_text("# Claude Autonomous Dialog\n")
    (common / "config").write_text("[core]\n")
    (found.path / ".git").write_text(f"gitdir: {found.git_dir}\n")
    (found.path / "old.txt").write_text("old\n")
    return found


def writes(world: World, path: Path) -> list[Use]:
    name, is_there, old = str(path), path.is_file(), ""
    if is_there:
        old = path.read_text("utf-8", "replace")[:4]
    match world.name:
        case "claude-code":
            made, read = Use("Write", {"file_path": name, "content": PLANTED}), Use("Read", {"file_path": name})
            change = Use("Edit", {"file_path": name, "old_string": old, "new_string": PLANTED})
            return [read, made, change] if is_there else [made]
        case "gemini":
            change = Use("replace", {"file_path": name, "old_string": old, "new_string": PLANTED, "instruction": "x"})
            return [Use("write_file", {"file_path": name, "content": PLANTED}), *([change] if is_there else [])]
        case "opencode":
            made, read = Use("write", {"filePath": name, "content": PLANTED}), Use("read", {"filePath": name})
            change = Use("edit", {"filePath": name, "oldString": old, "newString": PLANTED})
            return [read, made, change] if is_there else [made]
    patch = json.dumps(f"*** Begin Patch\n*** Add File: {path}\n+{PLANTED}\n*** End Patch\n")
    folder, name = shlex.quote(str(path.parent)), shlex.quote(name)
    return [
        Use("exec_command", {"cmd": f"mkdir -p {folder}; echo {PLANTED} > {name}"}),
        Use("exec", f"text(JSON.stringify(await tools.apply_patch({patch})))"),
    ]


def folders(backend: AgentCLI) -> tuple[Path, ...]:
    """Where its logins and sessions lie: in the person's home, and in the one that it has in a sandbox."""
    return backend.persons, backend.state / f"{backend.name}-home" / backend.keeps[1]


def planted(world: World, workspace: Workspace) -> list[str]:
    """Every file outside the worktree that holds what was ordered, and every file of settings of the program's own."""
    backend = world.make("http://127.0.0.1:9")
    paths = [path for path in world.home.parent.rglob("*") if not path.is_relative_to(workspace.path)]
    paths += [folder / name for folder in folders(backend) for name in backend.settings_files]
    return [str(path) for path in paths if path.is_file() and PLANTED.encode() in path.read_bytes()]


def asked(workspace: Workspace, second: str = "") -> Request:
    mine = prompt(turn(2, "A", second, re="1"), turn(3, "B", "Mend it.")) if second else prompt()
    return replace(request(mine, "3" if second else "1"), workspace=workspace)


async def test_without_a_sandbox_it_is_proved_to_keep_to_its_folder(world: World) -> None:
    state = world.state / "unboxed" / "A"
    state.mkdir(parents=True)
    backend = world.make("http://127.0.0.1:9", state=state)
    proof = await prove(backend, writes=True)
    assert proof.safe == backend.writes, proof.why


@NEEDS
async def test_it_writes_in_the_worktree_and_nowhere_else(world: World, workspace: Workspace) -> None:
    there = folders(world.make("http://127.0.0.1:9"))
    outside = [
        workspace.path / ".git",
        workspace.common_dir / "config",
        workspace.common_dir / "hooks" / "post-commit",
        workspace.git_dir / "HEAD",
        workspace.forbidden[0],
        *(path / "new" for path in workspace.forbidden),
        *(folder / name for folder in there for name in ("settings.json", "config.toml", "hooks.json")),
        world.home / ".bashrc",
        world.state / "sessions.json",
    ]
    script: list[Use | Say] = []

    def play(seen: Seen) -> Use | Say:
        return script.pop(0)

    with StandIn(play) as server:
        backend = world.make(server.url)
        script = [*writes(world, workspace.path / "new" / "one.txt"), *writes(world, workspace.path / "old.txt")]
        script += [order for path in outside for order in writes(world, path)]
        script += [Say("I did the first part.")]
        assert await answer(backend, asked(workspace)) == "I did the first part."
        script = [*writes(world, workspace.path / "two.txt"), *writes(world, outside[0]), Say("Mended.")]
        assert await answer(backend, asked(workspace, "I did the first part.")) == "Mended."
        assert GOES_ON in server.calls[-1].prompt
        said = json.dumps([seen.body for seen in server.calls])
    assert KEY not in said
    for name in ("new/one.txt", "old.txt", "two.txt"):
        assert PLANTED in (workspace.path / name).read_text()
    files = {str(path.relative_to(workspace.path)) for path in workspace.path.rglob("*") if path.is_file()}
    assert files == {".git", "new/one.txt", "old.txt", "two.txt"}
    assert (workspace.path / ".git").read_text() == f"gitdir: {workspace.git_dir}\n"
    assert planted(world, workspace) == []
    assert not Path("/tmp/new").exists()
    assert not [path for path in there[0].rglob("*") if path.is_file()], "its sessions lie with dialogd's own files"


def hooks(workspace: Workspace, marks: Path) -> Sequence[tuple[str, str]]:
    """What an agent could leave in its worktree, so that it would run in a later turn."""
    run = [{"hooks": [{"type": "command", "command": f"touch {marks}/hook"}]}]
    names = ("SessionStart", "UserPromptSubmit", "Stop")
    settings = {"hooks": dict.fromkeys(names, run), "permissions": {"allow": ["Bash", "Write"]}}
    server = {"command": "touch", "args": [f"{marks}/server"]}
    return (
        (".claude/settings.json", json.dumps(settings)),
        (".mcp.json", json.dumps({"mcpServers": {"bad": server}})),
        (".codex/config.toml", f'[mcp_servers.bad]\ncommand = "touch"\nargs = ["{marks}/server"]\n'),
        *((f"{name}.md", "NOTE-OF-THE-WORKTREE") for name in ("CLAUDE", "AGENTS", "GEMINI")),
    )


@NEEDS
async def test_what_it_leaves_in_the_worktree_never_runs(world: World, workspace: Workspace) -> None:
    marks = workspace.path / "marks"
    marks.mkdir()
    for name, text in (*hooks(workspace, marks), *world.make("http://127.0.0.1:9").bait(marks / "ran").items()):
        (workspace.path / name).parent.mkdir(exist_ok=True, parents=True)
        (workspace.path / name).write_text(text)
    with StandIn(in_order(Say("Done."))) as server:
        assert await answer(world.make(server.url, trust_project=True), asked(workspace)) == "Done."
        assert "NOTE-OF-THE-WORKTREE" not in json.dumps([seen.body for seen in server.calls])
    assert list(marks.iterdir()) == []


@NEEDS
async def test_claudes_commands_run_in_a_second_sandbox(claude: World) -> None:
    folder = claude.home.parent / "worktree"
    folder.mkdir()
    (folder / "look.sh").write_text(f"env; cat /proc/*/environ; ls -A {claude.home} {claude.state}; echo over")
    (claude.home / "mine").write_text("")
    workspace = Workspace(folder, claude.home / "git", claude.home / "git")
    bash = Use("Bash", {"command": f"touch {folder}/made; sh look.sh", "description": "x"})
    with StandIn(in_order(bash, Say("Done."))) as server:
        backend = claude.make(server.url)
        proof = await prove(backend, writes=True, shell=True)
        assert proof.safe, proof.why
        await answer(backend, asked(workspace))
        ((_, text),) = server.calls[-1].tool_results
    assert "over" in text
    assert KEY not in text
    assert "mine" not in text.split()
    assert {path.name for path in folder.iterdir()} == {"look.sh", "made"}


@NEEDS
async def test_claude_has_no_command_to_run_where_the_prefix_does_not_hold(claude: World, tmp_path: Path) -> None:
    """A program that leaves the prefix aside, as another version might, works as a lead without commands."""
    program = shutil.which("claude", path=PATH)
    (tmp_path / "bin").mkdir()
    other = tmp_path / "bin" / "claude"
    other.write_text(f'#!/bin/sh\nunset CLAUDE_CODE_SHELL_PREFIX\nexec {program} "$@"\n')
    other.chmod(0o755)
    folder = claude.home.parent / "worktree"
    folder.mkdir()
    workspace = Workspace(folder, claude.home / "git", claude.home / "git")
    bash = Use("Bash", {"command": f"touch {folder}/made", "description": "x"})
    environment = {"HOME": str(claude.home), "PATH": f"{other.parent}:{PATH}"}
    with StandIn(in_order(bash, Say("Done."))) as server:
        backend = claude.make(server.url, environment=environment)
        proof = await prove(backend, writes=True, shell=True)
        assert not proof.safe
        await answer(backend, asked(workspace))
        ((is_error, text),) = server.calls[-1].tool_results
    assert is_error
    assert "No such tool" in text
    assert list(folder.iterdir()) == []


@NEEDS
async def test_codex_runs_commands_without_a_network_and_with_a_folder_for_temporary_files(codex: World) -> None:
    folder = codex.home.parent / "worktree"
    folder.mkdir()
    workspace = Workspace(folder, codex.home / "git", codex.home / "git")
    with StandIn(lambda _: Say("unused")) as server:
        url = f"{server.url}/fetched"
    run = "python3 -c 'import tempfile; print(tempfile.mkstemp()[1])' && echo works > made; curl -sS -m 3 "
    with StandIn(in_order(Use("exec_command", {"cmd": run + url}), Say("Done."))) as server:
        await answer(codex.make(server.url), asked(workspace))
        ((_, text),) = server.calls[-1].tool_results
    assert (folder / "made").read_text() == "works\n"
    assert "/var/tmp/tmp" in text
    assert "curl: (" in text or "not found" in text


@NEEDS
async def test_a_login_of_the_persons_is_used_in_the_sandbox(claude: World) -> None:
    folder = claude.home / ".claude"
    folder.mkdir()
    account = {"accountUuid": "me", "emailAddress": "me@example.org", "organizationUuid": "mine"}
    oauth = {"accessToken": "sk-ant-oat01-test", "refreshToken": "sk-ant-ort01-test", "expiresAt": 4_000_000_000_000}
    login = json.dumps({"claudeAiOauth": {**oauth, "scopes": ["user:inference"], "subscriptionType": "max"}})
    (folder / ".credentials.json").write_text(login)
    (claude.home / ".claude.json").write_text(json.dumps({"oauthAccount": account, "mcpServers": {"bad": {}}}))
    worktree = claude.home.parent / "worktree"
    worktree.mkdir()
    with StandIn(lambda _: Say("Done.")) as server:
        await claude.make(server.url).prepare_to_write()  # later its own address is taken, not the trial's
        options = claude.options(server.url)
        variables = {"HOME": str(claude.home), "PATH": options.environment["PATH"], "ANTHROPIC_BASE_URL": server.url}
        backend = load_backend("claude-code", replace(options, variables={}, environment=variables))
        asked_ = asked(Workspace(worktree, claude.home / "git", claude.home / "git"))
        assert await answer(backend, asked_) == "Done."
        keys = {seen.headers.get("authorization") for seen in server.calls}
    assert keys == {"Bearer sk-ant-oat01-test"}
    assert (folder / ".credentials.json").read_text() == login
    assert sorted(path.name for path in claude.home.rglob("*")) == [".claude", ".claude.json", ".credentials.json"]
    kept = json.loads((claude.state / "claude-code-home" / ".claude.json").read_text())
    assert kept["oauthAccount"] == account
    assert "mcpServers" not in kept

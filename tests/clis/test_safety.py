"""What real coding agents may do: read the project, and nothing else, whoever asks for it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from dialogd.backends import probe
from dialogd.backends.coding_agent import GOES_ON, INTRO
from dialogd.errors import BackendError
from dialogd.store.caller import CODEX_THREAD
from tests.clis.rig import KEY, PATH, SERVICES, World, ask, counting, nothing_happens, prepared, prompt, turn
from tests.support.pair import PATIENCE, a_second
from tests.support.standin import Fail, Hang, Say, StandIn, Use, in_order


def orders(world: World, url: str) -> list[Use]:
    made, home = world.project / "made", world.home / "made"
    if world.name == "claude-code":
        bash = [f"touch {made}", f"touch {home}", f"curl {url}/made"]
        return [
            Use("Write", {"file_path": str(made), "content": "x"}),
            Use("Write", {"file_path": str(home), "content": "x"}),
            Use("Edit", {"file_path": str(world.project / "in.txt"), "old_string": "INSIDE", "new_string": "x"}),
            *(Use("Bash", {"command": command, "description": "x"}) for command in bash),
            Use("Read", {"file_path": str(world.home / "out.txt")}),
            Use("Read", {"file_path": "../home/out.txt"}),
            Use("Grep", {"pattern": "OUT", "path": str(world.home), "output_mode": "content"}),
            Use("Read", {"file_path": "/etc/hostname"}),
            Use("WebFetch", {"url": f"{url}/made", "prompt": "x"}),
        ]
    patch = f"*** Begin Patch\n*** Add File: {made}\n+x\n*** End Patch\n"
    commands = [
        f"touch {made}",
        f"touch {home}",
        f"cat {world.home}/out.txt",
        "cat ../home/out.txt",
        f"curl -sS -m 3 {url}/made",
        "env",
    ]
    return [
        *(Use("exec_command", {"cmd": command}) for command in commands),
        Use("exec_command", {"cmd": f"touch {made}", "sandbox_permissions": "require_escalated", "justification": "x"}),
        Use("exec", f"text(JSON.stringify(await tools.apply_patch({json.dumps(patch)})))"),
        Use("exec", f"text(JSON.stringify(await tools.exec_command({json.dumps({'cmd': f'touch {made}'})})))"),
        Use("shell", {"command": ["touch", str(made)]}),
    ]


async def test_nothing_happens_to_the_disk(world: World) -> None:
    server = await nothing_happens(world, partial(orders, world))
    assert server.calls[-1].prompt.count(GOES_ON) == 1
    assert sum(len(seen.tool_results) for seen in server.calls) == 2 * len(orders(world, ""))


async def test_reading_the_project_works(world: World) -> None:
    (world.project / "in.txt").write_text("INSIDE-THE-PROJECT")
    path = str(world.project / "in.txt")
    read = (
        Use("Read", {"file_path": path}) if world.name == "claude-code" else Use("exec_command", {"cmd": "cat in.txt"})
    )
    with StandIn(in_order(read, Say("Done."))) as server:
        await ask(world.make(server.url), prompt())
        (result,) = server.calls[-1].tool_results
    assert "INSIDE-THE-PROJECT" in result[1]


async def test_codex_tells_a_command_in_which_thread_it_runs(codex: World) -> None:
    with StandIn(in_order(Use("exec_command", {"cmd": f"env | grep {CODEX_THREAD}"}), Say("Done."))) as server:
        await ask(codex.make(server.url), prompt())
        (result,) = server.calls[-1].tool_results
    (kept,) = (codex.home / ".codex" / "sessions").rglob("rollout-*.jsonl")
    assert f"{CODEX_THREAD}={kept.stem[-36:]}\n" in result[1]


def hostile(world: World) -> tuple[Path, Mapping[str, str]]:
    """A project that brings hooks, servers and instructions, and the folder in which they leave their traces."""
    marks = world.home / "marks"
    marks.mkdir()

    def hook(name: str) -> list[dict[str, Any]]:
        return [{"hooks": [{"type": "command", "command": f"touch {marks}/{name}"}]}]

    server = {"command": "touch", "args": [f"{marks}/mcp"]}
    return marks, {
        ".claude/settings.json": json.dumps(
            {
                "hooks": {name: hook(name) for name in ("SessionStart", "UserPromptSubmit", "Stop")},
                "enableAllProjectMcpServers": True,
                "permissions": {"allow": ["Bash", "Write"]},
            }
        ),
        ".mcp.json": json.dumps({"mcpServers": {"bad": server}}),
        "CLAUDE.md": "CLAUDE-NOTE @notes/more.md",
        "notes/more.md": "IMPORTED-NOTE",
        "AGENTS.md": "AGENTS-NOTE",
        ".codex/config.toml": f'[mcp_servers.bad]\ncommand = "touch"\nargs = ["{marks}/mcp"]\n',
    }


@pytest.mark.parametrize("trust", [False, True])
async def test_a_hostile_project_runs_nothing(world: World, trust: bool) -> None:
    marks, files = hostile(world)
    world.write(files)
    with StandIn(counting()) as server:
        await ask(world.make(server.url, trust_project=trust), prompt())
        said = json.dumps([seen.body for seen in server.calls])
    made = {path.name for path in marks.iterdir()}
    if trust:
        assert made
    else:
        assert not made
        assert not [note for note in ("CLAUDE-NOTE", "IMPORTED-NOTE", "AGENTS-NOTE") if note in said]


async def test_a_trusted_project_still_cannot_write(world: World) -> None:
    _, files = hostile(world)
    world.write(files)
    before = world.files()
    write = [use for use in orders(world, "http://127.0.0.1:1") if "made" in str(use.input)]
    with StandIn(in_order(*write, Say("Done."))) as server:
        await ask(world.make(server.url, trust_project=True), prompt())
    assert world.files() == before
    assert not (world.home / "made").exists()


async def test_a_bad_key_is_told_at_once(world: World) -> None:
    with StandIn(counting(), key="another") as server:
        async with asyncio.timeout(20):
            with pytest.raises(BackendError) as caught:
                await ask(world.make(server.url), prompt())
        assert len(server.calls) <= 4
    assert caught.value.kind == "auth"
    assert not caught.value.retryable
    assert f"that key was sent to {server.url}" in caught.value.fix


async def test_an_overloaded_service_is_worth_another_attempt(world: World) -> None:
    with StandIn(lambda _: Fail(529)) as server, pytest.raises(BackendError) as caught:
        await ask(world.make(server.url), prompt())
    assert caught.value.retryable
    assert caught.value.kind in ("busy", "network")


async def test_an_unknown_model_is_a_wrong_request(world: World) -> None:
    unknown = Fail(404, message="The model `x` does not exist.")
    with StandIn(lambda _: unknown) as server, pytest.raises(BackendError) as caught:
        await ask(world.make(server.url), prompt())
    assert caught.value.kind == "request"
    assert not caught.value.retryable


async def test_a_refusal_of_the_model_is_a_failure(claude: World) -> None:
    with StandIn(lambda _: Say("", stop="refusal")) as server, pytest.raises(BackendError) as caught:
        await ask(claude.make(server.url), prompt())
    assert caught.value.kind in ("refusal", "empty")


async def test_an_empty_answer_is_a_failure(world: World) -> None:
    with StandIn(lambda _: Say("")) as server, pytest.raises(BackendError) as caught:
        await ask(world.make(server.url), prompt())
    assert caught.value.kind == "empty"


async def test_a_cancelled_turn_leaves_no_process(every: World) -> None:
    before = set(psutil.Process().children(recursive=True))
    with StandIn(lambda _: Hang()) as server:
        call = asyncio.create_task(ask(await prepared(every, server.url), prompt()))
        async with asyncio.timeout(PATIENCE):
            while not server.calls:
                await asyncio.sleep(0.02)
        call.cancel()
        async with asyncio.timeout(a_second()):
            await asyncio.wait((call,))
    assert call.cancelled()
    assert set(psutil.Process().children(recursive=True)) <= before


def persons_session(world: World, url: str, said: str) -> Path:
    subprocess.run(
        ["claude", "-p", "--session-id", str(uuid.uuid4())],
        input=said,
        text=True,
        cwd=world.project,
        env={
            "PATH": PATH,
            "HOME": str(world.home),
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": url,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        capture_output=True,
        check=True,
        timeout=180,
    )
    return max(world.home.rglob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.parametrize("how", ["id", "last"])
async def test_a_session_of_the_persons_is_joined_and_stays_as_it_was(claude: World, how: str) -> None:
    with StandIn(counting()) as server:
        persons_session(claude, server.url, "Something older.")
        path = persons_session(claude, server.url, "We want Postgres, says the person.")
        before = path.read_bytes()
        backend = claude.make(server.url, resume=path.stem if how == "id" else "last")
        text, usage = await ask(backend, prompt())
        again, _ = await ask(backend, prompt(turn(2, "A", text, re="1"), turn(3, "B", "Yes.")), re="3")
        late, _ = await ask(claude.make(server.url, resume=backend.options.resume), prompt(turn(2, "B", "No.")), re="9")
        first, second, third = server.calls[-3:]
    assert path.read_bytes() == before
    assert [text, again, late] == [f"Reply of request {number}." for number in (3, 4, 5)]
    for seen in (first, second, third):
        assert "We want Postgres, says the person." in seen.prompt
        assert "Something older." not in seen.prompt
    assert INTRO in first.last
    assert "You are A, a participant" in first.last
    assert GOES_ON in second.last
    assert INTRO in third.last
    assert usage.usd in (None, pytest.approx(100 * 5e-6 + 20 * 25e-6))  # a version that counts by call can tell
    assert usage.tokens_in == 100


async def test_a_session_that_nobody_has_is_a_wrong_request(claude: World) -> None:
    with StandIn(counting()) as server:
        for resume in (str(uuid.uuid4()), "last"):
            with pytest.raises(BackendError) as caught:
                await ask(claude.make(server.url, resume=resume), prompt())
            assert caught.value.kind == "request"
        assert not server.calls


LOGINS: Mapping[str, Mapping[str, Any]] = {  # the files of one, in the home
    "claude-code": {".claude/.credentials.json": {"claudeAiOauth": {"accessToken": "x"}}},
    "codex": {".codex/auth.json": {"tokens": {"access_token": "x"}}},
    "gemini": {
        ".gemini/settings.json": {"security": {"auth": {"selectedType": "oauth-personal"}}},
        ".gemini/oauth_creds.json": {},
    },
    "opencode": {".local/share/opencode/auth.json": {"anthropic": {"type": "oauth"}}},
}


def test_a_probe_names_version_and_payer(every: World) -> None:
    variables = {"PATH": PATH, "HOME": str(every.home)}
    none = probe(every.name, variables)
    assert (none.here, bool(none.version), bool(none.fix)) == (False, True, True)
    with_key = {**variables, SERVICES[every.name][0]: KEY}
    keyed = probe(every.name, with_key)
    assert keyed.here
    assert SERVICES[every.name][0] in keyed.pays
    for name, kept in LOGINS[every.name].items():
        (every.home / name).parent.mkdir(exist_ok=True, parents=True)
        (every.home / name).write_text(json.dumps(kept))
    found = probe(every.name, with_key)
    assert found.here
    assert "login" in found.pays

"""What real coding agents may do: read the project, and nothing else, whoever asks for it; and how they fail."""

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
from dialogd.store.registry import CODEX_THREAD
from tests.clis.conftest import make_world
from tests.clis.rig import KEY, PATH, SERVICES, World, ask, counting, nothing_happens, prepared, prompt, turn
from tests.support.pair import PATIENCE, a_second
from tests.support.standin import Answer, Cut, EndEarly, Fail, Hang, Say, StandIn, Use, in_order


def orders(world: World, url: str) -> list[Use]:
    """Everything that an agent must not do, as calls of its tools."""
    made, home, inside = str(world.project / "made"), str(world.home / "made"), str(world.project / "in.txt")
    out, patch = str(world.home / "out.txt"), f"*** Begin Patch\n*** Add File: {made}\n+x\n*** End Patch\n"
    fetch = f"curl -sS -m 3 {url}/made"
    commands = [f"touch {made}", f"touch {home}", f"cat {out}", "cat ../home/out.txt", fetch, "env"]
    match world.name:
        case "claude-code":
            return [
                *(Use("Write", {"file_path": path, "content": "x"}) for path in (made, home)),
                Use("Edit", {"file_path": inside, "old_string": "INSIDE", "new_string": "x"}),
                *(Use("Bash", {"command": command, "description": "x"}) for command in (*commands[:2], fetch)),
                *(Use("Read", {"file_path": path}) for path in (out, "../home/out.txt", "/etc/hostname")),
                Use("Grep", {"pattern": "OUT", "path": str(world.home), "output_mode": "content"}),
                Use("WebFetch", {"url": f"{url}/made", "prompt": "x"}),
            ]
        case "gemini":
            return [
                *(Use("write_file", {"file_path": path, "content": "x"}) for path in (made, home)),
                Use("replace", {"file_path": inside, "old_string": "INSIDE", "new_string": "x"}),
                Use("run_shell_command", {"command": "; ".join([*commands[:2], fetch])}),
                *(Use("read_file", {"file_path": path}) for path in (out, "../home/out.txt")),
                Use("grep_search", {"pattern": "OUTSIDE", "dir_path": str(world.home)}),
                Use("web_fetch", {"prompt": f"Get {url}/made"}),
                Use("save_memory", {"fact": "x"}),
                Use("invoke_agent", {"agent_name": "generalist", "prompt": f"touch {made}"}),
            ]
        case "opencode":
            return [
                *(Use("write", {"filePath": path, "content": "x"}) for path in (made, home)),
                Use("edit", {"filePath": inside, "oldString": "INSIDE", "newString": "x"}),
                Use("patch", {"patchText": patch}),
                Use("bash", {"command": "; ".join([*commands[:2], fetch]), "description": "x"}),
                *(Use("read", {"filePath": path}) for path in (out, f"{world.project}/../home/out.txt")),
                Use("grep", {"pattern": "OUTSIDE", "path": str(world.home)}),
                Use("webfetch", {"url": f"{url}/made", "format": "text"}),
                Use("task", {"description": "x", "prompt": f"touch {made}", "subagent_type": "general"}),
            ]
    return [
        *(Use("exec_command", {"cmd": command}) for command in commands),
        Use("exec_command", {"cmd": f"touch {made}", "sandbox_permissions": "require_escalated", "justification": "x"}),
        Use("exec", f"text(JSON.stringify(await tools.apply_patch({json.dumps(patch)})))"),
        Use("exec", f"text(JSON.stringify(await tools.exec_command({json.dumps({'cmd': f'touch {made}'})})))"),
        Use("shell", {"command": ["touch", made]}),
    ]


async def test_nothing_happens_to_the_disk(every: World) -> None:
    server = await nothing_happens(every, partial(orders, every))
    if every.name in ("claude-code", "codex"):
        assert server.calls[-1].prompt.count(GOES_ON) == 1
    if every.name != "opencode":
        assert sum(len(seen.tool_results) for seen in server.calls) == 2 * len(orders(every, ""))


# How each reads a file of the project, and the tools that are all it has where they are named.
READS: Mapping[str, tuple[str, str, set[str]]] = {
    "claude-code": ("Read", "file_path", set()),
    "codex": ("exec_command", "cmd", set()),
    "gemini": ("read_file", "file_path", {"read_file", "list_directory", "glob", "grep_search"}),
    "opencode": ("read", "filePath", {"read", "grep", "glob", "list"}),
}


async def test_reading_the_project_works(every: World) -> None:
    path = every.project / "deep" / "in.txt"
    path.parent.mkdir()
    path.write_text("INSIDE-THE-PROJECT")
    tool, name, tools = READS[every.name]
    read = Use(tool, {name: "cat deep/in.txt" if tool == "exec_command" else str(path)})
    with StandIn(in_order(read, Say("Done."))) as server:
        await ask(await prepared(every, server.url), prompt())
        ((_, text),) = server.calls[-1].tool_results
        assert "INSIDE-THE-PROJECT" in text
        assert not tools or set(server.calls[0].tools) <= tools


async def test_codex_tells_a_command_in_which_thread_it_runs(codex: World) -> None:
    with StandIn(in_order(Use("exec_command", {"cmd": f"env | grep {CODEX_THREAD}"}), Say("Done."))) as server:
        await ask(codex.make(server.url), prompt())
        (result,) = server.calls[-1].tool_results
    (kept,) = (codex.home / ".codex" / "sessions").rglob("rollout-*.jsonl")
    assert f"{CODEX_THREAD}={kept.stem[-36:]}\n" in result[1]


NOTES = {name: f"{name}-NOTE" for name in ("CLAUDE.md", "AGENTS.md", "GEMINI.md")} | {"notes/more.md": "IMPORTED-NOTE"}


def hostile(world: World, marks: Path, *, trust: bool) -> dict[str, str]:
    """A project that brings hooks, servers and instructions, which leave their traces in that folder."""
    files = {**world.make("http://127.0.0.1:9").bait(marks / "ran"), **NOTES}
    files["CLAUDE.md"] += " @notes/more.md"
    match world.name:
        case "claude-code":
            settings = json.loads(files[".claude/settings.json"])
            files[".claude/settings.json"] = json.dumps(settings | {"permissions": {"allow": ["Bash", "Write"]}})
        case "gemini" if trust:  # what it runs must work
            files[".gemini/settings.json"] = json.dumps({"hooks": json.loads(files[".gemini/settings.json"])["hooks"]})
            files.pop(".env")
        case "opencode":
            allow = "---\nmode: primary\npermission:\n  '*': allow\n---\nYou may write.\n"
            files[".opencode/agent/dialogd.md"] = allow
    return files


@pytest.mark.parametrize("trust", [False, True])
async def test_a_hostile_project_runs_nothing_unless_trusted_and_never_writes(every: World, trust: bool) -> None:
    marks = every.home / "marks"
    marks.mkdir()
    files = hostile(every, marks, trust=trust)
    every.write(files)
    writes = [use for use in orders(every, "http://127.0.0.1:9") if "made" in str(use.input)]
    with StandIn(in_order(*writes, Say("Done."))) as server:
        await ask(await prepared(every, server.url, trust_project=trust), prompt())
        said = json.dumps([seen.body for seen in server.calls])
    after = every.files()
    files.pop("opencode.json", None)  # to which opencode itself adds its schema, where it is trusted
    assert {name: after[name].decode() for name in files} == files
    assert not (every.project / "made").exists()
    assert not (every.home / "made").exists()
    assert bool([*marks.iterdir()]) is trust
    told = [note for note in NOTES.values() if note in said]
    assert not told or trust
    assert told or not (trust and every.name in ("gemini", "opencode"))


KINDS: Mapping[str, tuple[tuple[Answer, str, bool], ...]] = {
    "claude-code": (
        (Fail(404, message="The model `x` does not exist."), "request", False),
        (Say("", stop="refusal"), "refusal", False),
        (Say(""), "empty", True),
    ),
    "codex": ((Fail(404, message="The model `x` does not exist."), "request", False), (Say(""), "empty", True)),
    "gemini": (
        (Fail(401), "auth", False),
        (Fail(400, message="API key not valid. Please pass a valid API key."), "auth", False),
        (Fail(403), "auth", False),
        (Fail(404, message="models/x is not found for API version v1beta"), "request", False),
        (Fail(429), "busy", True),
        (Fail(429, message="You exceeded your current quota. Please retry in 1.5s."), "busy", True),
        (Fail(503), "busy", True),
        (Cut("A reply of some words, cut in the middle."), "network", True),
        (EndEarly("A reply of some words, ended early."), "network", True),
        (Say(""), "empty", True),
        (Say("As far as", stop="refusal"), "refusal", False),
        (Say("As far as", stop="max_tokens"), "cut", False),
    ),
    "opencode": (
        (Fail(401), "auth", False),
        (Fail(403), "auth", False),
        (Fail(404), "request", False),
        (Say(""), "empty", True),
        (Say("As far as", stop="content_filter"), "refusal", False),
        (Say("As far as", stop="max_tokens"), "cut", False),
    ),
}


@pytest.mark.parametrize(
    ("name", "answer", "kind", "again"), [(name, *row) for name, rows in KINDS.items() for row in rows], ids=str
)
async def test_a_failure_is_told_by_its_kind(
    tmp_path: Path, states: Path, name: str, answer: Answer, kind: str, again: bool
) -> None:
    world = make_world(name, tmp_path, states)
    with StandIn(in_order(answer)) as server:
        backend = await prepared(world, server.url)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(BackendError) as caught:
                await ask(backend, prompt())
    assert (caught.value.kind, caught.value.retryable) == (kind, again)
    assert "\n" not in caught.value.cause
    assert KEY not in caught.value.cause
    assert caught.value.retry_after == (1.5 if "retry in 1.5s" in getattr(answer, "message", "") else None)


async def test_a_bad_key_is_told_at_once(world: World) -> None:
    with StandIn(counting(), key="another") as server:
        async with asyncio.timeout(20):
            with pytest.raises(BackendError) as caught:
                await ask(world.make(server.url), prompt())
        assert len(server.calls) <= 4
    assert (caught.value.kind, caught.value.retryable) == ("auth", False)
    assert f"that key was sent to {server.url}" in caught.value.fix


async def test_an_overloaded_service_is_worth_another_attempt(world: World) -> None:
    with StandIn(lambda _: Fail(529)) as server, pytest.raises(BackendError) as caught:
        await ask(world.make(server.url), prompt())
    assert caught.value.retryable
    assert caught.value.kind in ("busy", "network")


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
    backend = every.make("http://127.0.0.1:9")
    assert backend.paid == ""
    assert KEY not in backend.environment.values()

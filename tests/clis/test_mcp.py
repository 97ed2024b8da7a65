"""The real Claude Code and Codex as hosts: they call every tool over MCP, and hold a seat by it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from tests.cli.command import Commands
from tests.clis.rig import KEY, PATH, World
from tests.support.pair import Pair
from tests.support.standin import Say, Seen, StandIn, Use

Facts = dict[str, Any]
Calls = Generator[tuple[str, Facts], Facts, None]  # calls of tools; each is sent what came of it
OUTPUT = re.compile(r"Output:\s*(\{.*\})\s*$", re.DOTALL)


def use(world: World, tool: str, arguments: Facts) -> Use:
    if world.name == "codex":
        call = f"tools.mcp__dialogd__{tool}({json.dumps(arguments)})"
        return Use("exec", f"const r = await {call}; text(JSON.stringify(r.structuredContent ?? {{error: r}}))")
    return Use(f"mcp__dialogd__{tool}", arguments)


def facts(world: World, seen: Seen) -> Facts:
    ((is_error, text),) = seen.tool_results
    if world.name == "codex":
        found = OUTPUT.search(text)
        assert found is not None, text
        text = found[1]
    assert not is_error, text
    result: Facts = json.loads(text)
    assert "error" not in result, result
    return result


def played(world: World, calls: Calls) -> Callable[[Seen], Use | Say]:
    """A model that makes these calls one after the other, and then says that it is done."""
    begun = False

    def answer(seen: Seen) -> Use | Say:
        nonlocal begun
        if not seen.tools:  # a title, a summary
            return Say("A title")
        try:
            tool, arguments = calls.send(facts(world, seen)) if begun else next(calls)
            begun = True
            return use(world, tool, arguments)
        except StopIteration:
            return Say("Done.")
        except Exception as error:  # the server's thread would keep it to itself
            calls.close()
            return Say(f"FAILED {error!r}")

    return answer


def host(world: World, environment: dict[str, str], url: str) -> str:
    """Run the program with the server as its only one, and return the last it said."""
    server = {"command": sys.executable, "args": ["-m", "dialogd", "mcp"], "env": environment}
    common = {"HOME": str(world.home), "PATH": PATH, "LANG": "C.UTF-8"}
    if world.name == "codex":
        provider = {"name": "standin", "base_url": f"{url}/v1", "env_key": "OPENAI_API_KEY", "wire_api": "responses"}
        variables = ", ".join(f"{name} = {json.dumps(value)}" for name, value in environment.items())
        config = {
            "model_provider": '"standin"',
            "model_providers.standin": f"{{{', '.join(f'{k}={json.dumps(v)}' for k, v in provider.items())}}}",
            "mcp_servers.dialogd.command": json.dumps(server["command"]),
            "mcp_servers.dialogd.args": json.dumps(server["args"]),
            "mcp_servers.dialogd.env": f"{{{variables}}}",
            "mcp_servers.dialogd.required": "true",  # else its first turn may come before the tools
            "mcp_servers.dialogd.default_tools_approval_mode": '"approve"',
        }  # fmt: skip
        words = ["codex", "exec", "--skip-git-repo-check", "--json"]
        words += [word for key, value in config.items() for word in ("-c", f"{key}={value}")]
        own = {"OPENAI_API_KEY": KEY}
    else:
        servers = json.dumps({"mcpServers": {"dialogd": server}})
        words = ["claude", "-p", "--output-format", "json", "--mcp-config", servers, "--strict-mcp-config"]
        words += ["--allowedTools", "mcp__dialogd", "--"]
        own = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": url, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    done = subprocess.run(
        [*words, "Do what is to be done."],
        cwd=world.project, env={**common, **own}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def variables(commands: Commands) -> dict[str, str]:
    names = ("DIALOGD_STATE_DIR", "DIALOGD_FILE", "DIALOGD_BACKEND", "DIALOGD_RETRY_WAIT", "HOME", "PYTHONPATH")
    plans = {"DIALOGD_PLAN": "0", "DIALOGD_PACE": "0", "PATH": os.environ["PATH"]}
    return {**{name: commands.environment[name] for name in names}, **plans}


async def test_a_host_calls_every_tool(world: World, tmp_path: Path) -> None:
    commands, came = Commands(tmp_path), dict[str, Facts]()

    def calls() -> Calls:
        asked = yield "ask", {"question": "Where should user sessions live?", "agents": ["rehearsal", "rehearsal"]}
        while asked["status"] not in ("completed", "error"):
            asked = yield "ask", {"session": asked["id"]}
        came["ask"] = asked
        over = {"session": asked["id"]}
        for tool in ("plan", "verify"):
            came[tool] = yield tool, over
        came["recall"] = yield "recall", {"question": "user sessions"}
        config = {"target": "Tabs?", "agents": ["rehearsal:endless"] * 3, "limits": {"max_turns": 50}}
        taken = yield "position_invoke", {"position": "circle", "config": config, "wait": 0}
        came["position_invoke"] = taken
        this = {"session": taken["id"]}
        came["sessions_list"] = yield "sessions_list", {"filter": {"position": "circle"}}
        came["gallery_emit"] = yield "gallery_emit", {**this, "message": "The build is green.", "type": "EVIDENCE"}
        came["sessions_send"] = yield "sessions_send", {**this, "message": "Think of width.", "to": "B"}
        came["sessions_history"] = yield "sessions_history", {**this, "agent": "USER"}
        came["sessions_stop"] = yield "sessions_stop", this

    try:
        with StandIn(played(world, calls())) as server:
            said = host(world, variables(commands) | {"DIALOGD_PACE": "2"}, server.url)  # it is to be stopped in time
    finally:
        commands.end_daemons()
    assert "FAILED" not in said, said
    assert (came["ask"]["status"], came["ask"]["outcome"]) == ("completed", "CONSENSUS_REACHED")
    assert came["plan"]["markdown"].startswith("#")
    assert came["verify"]["sound"]
    assert came["recall"]["decisions"] == []  # scripted lines decide nothing
    assert [row["id"] for row in came["sessions_list"]["sessions"]] == [came["position_invoke"]["id"]]
    assert came["sessions_send"]["to"] == ["B"]
    assert {m.get("via") for m in came["sessions_history"]["messages"]} == {None, "mcp"}
    assert came["sessions_stop"]["outcome"] == "STOPPED"


async def test_a_host_holds_a_seat(world: World, tmp_path: Path) -> None:
    commands, turns = Commands(tmp_path), list[str]()

    def calls() -> Calls:
        while (turn := (yield "wait_for_turn", {"agent": "B"}))["status"] != "ended":
            if turn["status"] != "owed":
                continue
            for page in range(2, turn["pages"] + 1):
                turn = yield "wait_for_turn", {"agent": "B", "page": page}
            sign = re.search(r"(?:text|signs) (P\d+)", turn["text"].rpartition("# Your turn")[2] or turn["text"])
            text = f"[AGREE: {sign[1]}]" if sign else "That holds for me too. Write the text down.\n\n[CONFIDENCE: 0.8]"
            turns.append((yield "reply", {"debt": turn["debt"], "text": text})["status"])

    backend = {"A": "rehearsal", "B": "live"}
    with StandIn(played(world, calls())) as server, Pair(tmp_path, "AB", backend=backend) as pair:
        pair.begin("Tabs?")
        pair.start()
        pair.notify()
        said = host(world, {**variables(commands), "DIALOGD_FILE": str(pair.file)}, server.url)
        assert "FAILED" not in said, said
        assert pair.outcome == "CONSENSUS_REACHED"
        dialog = pair.dialog()
    assert set(turns) <= {"appended", "asked", "taken"}
    assert {entry.by for entry in dialog.turns} == {"USER", "A", "B"}

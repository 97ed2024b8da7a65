"""The real coding agents, with a fake key and an empty home, take the stand-in for their service."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clis.rig import path_for_codex
from tests.support.standin import Say, Script, StandIn, Use, in_order

pytestmark = [pytest.mark.clis, pytest.mark.slow]

ANSWER = Say("Hello from here.", tokens_in=1000, cached=600, tokens_out=50)
READ_ONLY = ["--restricted", "--tools", "Read", "--permission-mode", "dontAsk", "--strict-mcp-config"]


def run(home: Path, script: Script, name: str, *words: str) -> tuple[subprocess.CompletedProcess[str], StandIn]:
    """Run a CLI in an empty project; `URL` among the words is the stand-in's."""
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not on PATH")
    project = home / "project"
    project.mkdir()
    with StandIn(script, key="sk-test-1") as server:
        path = path_for_codex(home, os.environ["PATH"]) if name == "codex" else os.environ["PATH"]
        variables = {"PATH": path, "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8"}
        variables |= {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "sk-test-1", "OPENAI_API_KEY": "sk-test-1"}
        variables |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        done = subprocess.run(
            [program, *(word.replace("URL", server.url) for word in words)],
            input="Say hello, please.",
            text=True,
            capture_output=True,
            env=variables,
            cwd=project,
            timeout=180,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done, server


def test_claude_code_calls_tools_and_reads_the_answer(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("outside the project")
    write = Use("Write", {"file_path": str(tmp_path / "project" / "b.txt"), "content": "x"}, say="I write.")
    read = Use("Read", {"file_path": str(tmp_path / "a.txt")})
    done, server = run(tmp_path, in_order(write, read, ANSWER), "claude", "-p", "--output-format", "json", *READ_ONLY)
    result = json.loads(done.stdout)
    assert (result["result"], result["is_error"], result["usage"]["cache_read_input_tokens"]) == (
        ANSWER.text,
        False,
        600,
    )
    first, second, third = server.calls
    assert (first.form, first.stream, first.last, "Read" in first.tools) == (
        "messages",
        True,
        "Say hello, please.",
        True,
    )
    assert second.tool_results[0][0]
    assert "Write" in second.tool_results[0][1]
    assert third.tool_results[0][0]
    assert not (tmp_path / "project" / "b.txt").exists()


def test_codex_calls_tools_and_reads_the_answer(tmp_path: Path) -> None:
    provider = 'model_providers.here={name="here",base_url="URL/v1",env_key="OPENAI_API_KEY",wire_api="responses"}'
    flags = ["-s", "read-only", "--skip-git-repo-check", "-c", 'model_provider="here"', "-c", provider]
    javascript = 'const r = await tools.exec_command({cmd: "touch b.txt; echo done"}); text(JSON.stringify(r));'
    uses = [Use("exec", javascript, say="I write."), Use("list_agents", {})]
    done, server = run(tmp_path, in_order(*uses, ANSWER), "codex", "exec", "--json", *flags, "-")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    texts = [event["item"].get("text") for event in events if event["type"] == "item.completed"]
    assert texts[-1] == ANSWER.text
    assert events[-1]["usage"]["cached_input_tokens"] == 600
    first, second, third = server.calls
    assert (first.form, first.stream, first.last, "exec" in first.tools) == (
        "responses",
        True,
        "Say hello, please.",
        True,
    )
    assert "Read-only file system" in second.tool_results[0][1]
    assert "agents" in third.tool_results[0][1]
    assert not (tmp_path / "project" / "b.txt").exists()

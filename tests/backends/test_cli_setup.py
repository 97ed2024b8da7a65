"""What the real coding agents are started with, without starting them: addresses, budgets, the person's session."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dialogd.backends import Options
from dialogd.backends.auto import survey
from dialogd.backends.coding_agent import INTRO, VERSION_WAIT, failed
from dialogd.backends.coding_clis import ClaudeCode, Codex
from dialogd.backends.readonly_proof import Run
from dialogd.errors import BackendError, BadInput
from tests.support.cases import cases
from tests.support.pair import a_second
from tests.support.standin import Fail, StandIn, in_order

KEY = "sk-ant-test-0123456789"
PASSWORD = "hunter2-hunter2"


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """A home without a login, a project, and programs that are never run."""
    for name in ("bin", "home", "project", "state"):
        (tmp_path / name).mkdir()
    for name in ("claude", "codex"):
        (tmp_path / "bin" / name).touch(mode=0o755)
    return Options(
        project=tmp_path / "project",
        state=tmp_path / "state",
        variables={"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY},
        environment={"HOME": str(tmp_path / "home"), "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"},
    )


def turn(allowance: float | None = None) -> Run:
    return Run("A question", Path("system.md"), Path("folder"), allowance=allowance)


def test_an_address_with_a_password_does_not_reach_the_arguments(options: Options) -> None:
    with pytest.raises(BadInput, match="password"):
        Codex(replace(options, base_url=f"https://me:{PASSWORD}@gate.example/v1"))
    plain = Codex(replace(options, base_url="https://gate.example/v1"))
    assert "https://gate.example/v1" in " ".join(plain.arguments(turn()))


def test_a_password_in_an_address_is_one_of_the_secrets(options: Options) -> None:
    assert ClaudeCode(replace(options, base_url=f"https://me:{PASSWORD}@gate.example")).secrets == (KEY, PASSWORD)
    assert ClaudeCode(options).secrets == (KEY,)


def test_an_address_is_not_left_aside_because_of_a_login(options: Options, tmp_path: Path) -> None:
    (tmp_path / "home/.codex").mkdir()
    (tmp_path / "home/.codex/auth.json").write_text(json.dumps({"tokens": {"access_token": "x"}}))
    assert Codex(options).secrets == ()
    with pytest.raises(BadInput, match="logged in"):
        Codex(replace(options, base_url="https://gate.example/v1"))


def test_a_key_is_taken_out_of_an_agents_words_before_they_are_cut_short() -> None:
    said = "x" * 178 + " correct-horse-battery-staple is no key"
    error = failed("toy", said, log_in="log in", secrets=("correct-horse-battery-staple",))
    assert "[redacted: own key]" in error.cause
    assert "correct" not in error.cause


@cases(("allowance", "most"), [(0.0, "0.0001"), (0.00001, "0.0001"), (1.5, "1.5000"), (None, "")])
def test_nothing_left_is_not_no_limit(options: Options, allowance: float | None, most: str) -> None:
    words = ClaudeCode(options).arguments(turn(allowance))
    assert ("--max-budget-usd" in words) == bool(most)
    assert not most or words[words.index("--max-budget-usd") + 1] == most


def test_the_last_session_of_the_person_is_none_of_a_dialogs(options: Options, tmp_path: Path) -> None:
    backend = ClaudeCode(replace(options, resume="last"))
    folder = tmp_path / "home/.claude/projects" / "".join(c if c.isalnum() else "-" for c in str(backend.project))
    folder.mkdir(parents=True)
    said = (
        "My question",
        f"What does {INTRO!r} mean?",
        f"{INTRO}\n\n# The dialog's header",
        f"You are A.\n\n{INTRO}\n\n# The",
    )
    for number, text in enumerate(said):
        path = folder / f"0000000{number}-0000-0000-0000-000000000000.jsonl"
        path.write_text(json.dumps({"type": "user", "message": {"role": "user", "content": text}}) + "\n")
        os.utime(path, (number, number))
    assert backend.joined().startswith("00000001-")


@cases("option", ["resume", "model", "effort"])
def test_no_value_becomes_a_flag_of_the_program(options: Options, option: str) -> None:
    with pytest.raises(BadInput, match="begins like a flag"):
        ClaudeCode(replace(options, **{option: "--dangerously-skip-permissions"}))  # type: ignore[arg-type]


def test_a_program_that_never_stops_telling_its_version_has_none(tmp_path: Path) -> None:
    binary = tmp_path / "bin" / "claude"
    binary.parent.mkdir()
    binary.write_text("#!/bin/sh\nexec yes 1.2.3\n")
    binary.chmod(0o755)
    environment = {"PATH": f"{binary.parent}:/usr/bin:/bin", "HOME": str(tmp_path), "ANTHROPIC_API_KEY": KEY}
    began = time.monotonic()
    assert survey(["claude-code"], environment, {})["claude-code"].version == ""
    assert time.monotonic() - began < VERSION_WAIT / 2 * a_second()


REFUSED = r"""
import json, os, sys, urllib.error, urllib.request
url = os.environ.get("ANTHROPIC_BASE_URL", "") + "/v1/messages"
request = urllib.request.Request(url, b"{}", {"x-api-key": os.environ["ANTHROPIC_API_KEY"]})
try:
    urllib.request.urlopen(request)
except urllib.error.HTTPError as error:
    retry = {"type": "system", "subtype": "api_retry", "error_status": error.code, "error": "authentication_failed"}
    print(json.dumps(retry), flush=True)
    sys.stdin.read()
    sys.exit(1)
"""


async def test_a_refused_key_is_told_with_status_and_address(options: Options, tmp_path: Path) -> None:
    (tmp_path / "refused.py").write_text(REFUSED)
    (tmp_path / "bin" / "claude").write_text(f"#!/bin/sh\nexec '{sys.executable}' -IS {tmp_path}/refused.py\n")
    with StandIn(in_order(Fail(401))) as server:
        claude = ClaudeCode(replace(options, base_url=server.url.replace("http://", "http://me:hunter2-hunter2@")))
        claude.environment["ANTHROPIC_BASE_URL"] = server.url  # this client takes no password in an address
        with pytest.raises(BackendError) as caught:
            async for _ in claude.run(turn(), claude.events(claude)):
                pass
        assert len(server.seen) == 1
    error = caught.value
    assert error.cause == f"claude failed: authentication_failed (401 from {server.url})"
    assert error.fix == f"check ANTHROPIC_API_KEY: that key was sent to {server.url}"
    assert (error.kind, error.retryable) == ("auth", False)
    assert ClaudeCode(options).failed("authentication_failed", 401).cause.endswith("(401 from Anthropic)")


FORKED = r"""
import json, os, pathlib, sys
session = "0a1b2c3d-0000-4000-8000-000000000001"
folder = pathlib.Path(os.environ["HOME"], ".claude/projects/x")
folder.mkdir(parents=True)
(folder / f"{session}.jsonl").write_text(sys.stdin.read())
print(json.dumps({"type": "system", "subtype": "init", "model": "m", "session_id": session}), flush=True)
sys.exit("broken")
"""


async def test_a_session_is_known_from_its_beginning(options: Options, tmp_path: Path) -> None:
    (tmp_path / "forked.py").write_text(FORKED)
    (tmp_path / "bin" / "claude").write_text(f"#!/bin/sh\nexec '{sys.executable}' -IS {tmp_path}/forked.py\n")
    claude = ClaudeCode(options)
    reader = claude.events(claude)
    with pytest.raises(BackendError, match="broken"):
        async for _ in claude.run(turn(), reader):
            pass
    assert reader.session == ""
    assert claude.session_file(reader.begun) == tmp_path / f"home/.claude/projects/x/{reader.begun}.jsonl"
    assert claude.session_file("../../settings") is None
    codex = Codex(options)
    rollout = tmp_path / f"home/.codex/sessions/2026/11/22/rollout-2026-11-22T10-00-00-{reader.begun}.jsonl"
    rollout.parent.mkdir(parents=True)
    rollout.touch()
    assert codex.session_file(reader.begun) == rollout

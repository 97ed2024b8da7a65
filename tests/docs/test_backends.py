"""The page on backends and the backends say the same; its excerpts are real output."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dialogd.agent.turn import Behavior
from dialogd.backends import BACKENDS, auto
from dialogd.protocol.state import Dialog
from tests.docs.manual import DOCS, README, REPOSITORY, Sandbox, blocks, codes, section, table
from tests.support.minds import consensus
from tests.support.standin import StandIn
from tests.turns.minds import DEAR, SAID, Mind, dialog_in, step

PAGE = DOCS / "backends.md"
TEXT = PAGE.read_text(encoding="utf-8")
SHOWN = [block.text for block in blocks(PAGE, "text")]
CLIS = os.environ.get("DIALOGD_CLIS_BIN") or str(REPOSITORY / ".clis" / "node_modules" / ".bin")
KEYS = {"ANTHROPIC_API_KEY": "sk-ant-test-0123456789abcdef", "OPENAI_API_KEY": "sk-test-0123456789abcdef01234567"}


def shape(text: str) -> list[str]:
    """The lines of a text without numbers, hashes, paths and the width of columns: what is so in every run."""
    plain = re.sub(r"\b(prev|sha|at|dialog)[= ]\S+", r"\1=…", text)
    plain = re.sub(r"/\S+\.md", "FILE", plain)
    return [re.sub(r"[\d.,]*\d", "N", " ".join(line.split())) for line in plain.strip().split("\n")]


def shown(beginning: str) -> str:
    """The one excerpt of the page that begins so."""
    (found,) = (text for text in SHOWN if text.lstrip().startswith(beginning))
    return found


APIS = {codes(row[0])[0]: row for row in table(section(PAGE, "APIs").partition("\n### ")[0])}


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_has_its_place(name: str) -> None:
    if name in APIS:
        said = dict(zip(("Start", "Model", "Variables", "Costs"), APIS[name][1:], strict=True)) | {"Sent": ""}
    else:
        said = dict(re.findall(r"\*\*([A-Z][a-z]+)\*\*[,:] ?(.*)", section(PAGE, f"`{name}`").replace(". **", "\n**")))
    assert {"Start", "Model", "Variables"} <= set(said)
    assert name == "rehearsal" or {"Sent", "Costs"} <= set(said)
    assert codes(said["Start"])[0].startswith("dialogd start ")
    assert ("Project" in said) == (name in PROGRAMS)
    assert ("Proved" in said) == (name in PROGRAMS - {"command"})
    model = BACKENDS[name].model
    assert not model or codes(said["Model"])[0] == model
    assert set(BACKENDS[name].may_see) - set(codes(said["Variables"])) == set()


PROGRAMS = {"claude-code", "codex", "gemini", "opencode", "acp", "command"}


def test_no_other_backend_has_one() -> None:
    assert {*re.findall(r"^###? `([\w-]+)`$", TEXT, re.MULTILINE), *APIS} == {*BACKENDS, "auto"}


def test_a_login_introduces_itself_as_shown(tmp_path: Path) -> None:
    _put(tmp_path / "bin" / "claude", '#!/bin/sh\necho "2.1.330 (Claude Code)"\n')
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / ".credentials.json").write_text('{"claudeAiOauth": {"made": "up"}}')
    environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path), **KEYS}
    choice = auto.choose("claude-code", 0, environment, {})
    assert shown("A: claude-code") == f"A: {auto.introduce(choice, Path('/home/me/supabase-bridge'))}\n"


def test_a_program_that_proves_nothing_is_refused_as_shown(sandbox: Sandbox) -> None:
    _put(sandbox.folder / "bin" / "claude", '#!/bin/sh\ncat >/dev/null\necho "2.1.330 (Claude Code)"\n')
    sandbox.environment |= KEYS
    ended = sandbox.run("dialogd start A --backend claude-code --port 0")
    assert ended.returncode == 1
    assert shown("error: claude") in ended.stderr


def _put(program: Path, script: str) -> None:
    program.parent.mkdir(exist_ok=True)
    program.write_text(script)
    program.chmod(0o755)


def test_frames_and_bill_look_as_shown(sandbox: Sandbox) -> None:
    with StandIn(consensus) as server:
        at = {"ANTHROPIC_BASE_URL": server.url, "OPENAI_BASE_URL": f"{server.url}/v1"}
        sandbox.environment |= KEYS | at
        sandbox.done("dialogd run 'Where should user sessions live?' --agents anthropic,gpt --budget '$2.00'")
    frames = re.findall("<!-- dialogd by=A .* calls=.*", sandbox.file.read_text())
    frame = next(line for line in frames if "nonce=" not in line)  # a first answer's opens its seal
    assert shape(frame) == shape(shown("<!-- dialogd"))
    bill = sandbox.done("dialogd status --cost").replace("GPT", "Codex")
    assert shape(bill) == shape(next(text for text in SHOWN if "tokens in" in text))


def test_the_readmes_line_for_two_projects_is_understood(sandbox: Sandbox) -> None:
    (line,) = blocks(README, "sh", "agents")
    _projects(sandbox, line.text)
    sandbox.environment["PATH"] = f"{sandbox.folder / 'bin'}:/usr/bin:/bin"
    if shutil.which("claude", path=sandbox.environment["PATH"]):
        pytest.skip("claude is installed for everybody here")
    ended = sandbox.run(line.text)
    assert ended.returncode == 2
    assert "claude is not on PATH" in ended.stderr
    assert not sandbox.file.exists()


def test_the_readmes_line_for_two_projects_holds_a_dialog(sandbox: Sandbox) -> None:
    if not all(shutil.which(name, path=CLIS) for name in ("claude", "codex")):
        pytest.skip("claude and codex are not installed: `make test-clis` brings them")
    (line,) = blocks(README, "sh", "agents")
    _projects(sandbox, line.text)
    sandbox.environment["PATH"] += f"{os.pathsep}{CLIS}"
    with StandIn(consensus) as server:
        at = {"ANTHROPIC_BASE_URL": server.url, "OPENAI_BASE_URL": f"{server.url}/v1"}
        sandbox.environment |= KEYS | at
        told = sandbox.run(line.text).stderr
    assert "sees" in told
    assert sandbox.file.read_text().rstrip().endswith("[CONSENSUS_REACHED]"), told
    assert "— Codex B\n" in sandbox.file.read_text()


def _projects(sandbox: Sandbox, line: str) -> None:
    """The folders that the line names."""
    for name in re.findall(r"@~/(\S+)", line):
        (Path(sandbox.environment["HOME"]) / name).mkdir()


async def test_a_digest_looks_as_shown(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    for agent in "ABABABAB":
        await step(path, Mind(("Sessions and their cost. " * 60,)), agent)
    mind = Mind(("They differ on cost.", SAID), ("Postgres.", SAID), price=DEAR, room=1_500)
    dialog: Dialog = await step(path, mind, options=Behavior(pace=0.0, poll=0.05, digest=True))
    assert any(line.startswith("*(Left out") for line in mind.asked[1].text.split("\n"))
    assert shape(re.findall(r"`(\[DIGEST.*\])`", TEXT)[0]) == shape(str(dialog.entries[-2].marks[0]))


def test_the_small_backend_keeps_the_contract(tmp_path: Path) -> None:
    code = "\n\n".join(block.text for block in blocks(PAGE, "python"))
    lines = code.split("\n")
    imports = [line for line in lines if line.startswith("from ")]
    body = [line for line in lines if not line.startswith("from ")]
    body += ["", "def test_it_is_found() -> None:", '    assert Echo.probe({}, "").here']
    (tmp_path / "test_echo.py").write_text("\n".join(["from __future__ import annotations", *imports, *body]))
    here = str(tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", here, here]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"\b[5-9] passed|\b1\d passed", ended.stdout)

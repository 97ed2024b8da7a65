"""The README tells the truth: its excerpt is real. Every block of a document marked `sh run` has been run."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dialogd.cli.create import free_ports
from dialogd.config import DEFAULT_FILE
from dialogd.store.disk import StateDir
from dialogd.views.documents import place
from tests.cli.command import until
from tests.docs.manual import DOCS, DOCUMENTS, README, REPOSITORY, Block, Sandbox, blocks, put_dialogd
from tests.support.gitdaemon import Repository
from tests.support.machines import make_key
from tests.support.pair import PATIENCE

RUNNABLE = [block for document in DOCUMENTS for block in blocks(document, "sh", "run")]
FRAME = re.compile(r"^<!-- dialogd .* -->\n", re.MULTILINE)  # a comment, which a reader of the page does not see


def by_hand(kind: str, beginning: str = "") -> str:
    """The one command that begins so in the blocks of that kind: a line, or a `cat` with the text it writes."""
    text = "".join(block.text for block in blocks(README, "sh", kind))
    (found,) = (c for c in re.findall(r"(?s:^cat .*?^EOF\n)|^.+\n", text, re.MULTILINE) if c.startswith(beginning))
    return found


def test_make_demo_ends_in_a_consensus_as_the_excerpt_shows_and_leaves_the_clone_as_it_was(tmp_path: Path) -> None:
    """With the Makefile as it is, and a virtual environment that was made already."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    clone = tmp_path / "clone"
    for folder in ("docs", "scripts", ".venv/bin"):
        (clone / folder).mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "scripts/setup.sh"):
        shutil.copy(REPOSITORY / name, clone / name)
    put_dialogd(clone / ".venv" / "bin")
    (clone / ".venv" / ".stamp").touch()
    home = str(clone)
    variables = {"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8"}
    command = ["make", "demo"]
    done = subprocess.run(command, cwd=home, env=variables, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended, agreed: " in done.stdout
    (dialog,) = (file.read_text(encoding="utf-8") for file in clone.glob("tmp.*/dialog.md"))
    assert dialog.rstrip().endswith("[CONSENSUS_REACHED]")
    excerpt = blocks(README, "markdown")[0].text
    assert 12 <= excerpt.count("\n") <= 20
    assert re.sub(r"\d+", "N", excerpt) in re.sub(r"\d+", "N", FRAME.sub("", dialog))
    page = Path(re.findall(r"^plan +(\S+)$", done.stdout, re.M)[0])
    assert (page.is_file(), page.parent.name.startswith("tmp."), page.parent.parent) == (True, True, clone)
    made = {".venv", ".local", ".cache", "Makefile", "pyproject.toml", "scripts", "docs", page.parent.name}
    assert {path.name for path in clone.iterdir()} <= made
    assert not [*(clone / "docs").iterdir()]


def test_every_shell_block_is_tried_or_needs_no_try() -> None:
    """A block is run here, or holds nothing but setting up; that of kind `agents` is run by test_backends.py."""
    plain = [line for block in blocks(README, "sh", "") for line in block.text.split("\n") if line]
    assert [line for line in plain if not re.match(r"make (demo|test|setup)\b|\. \.venv/bin/activate\b", line)] == []
    kinds = {block.kind for block in blocks(README, "sh")}
    terminals = {"terminal-1", "terminal-1-slow", "terminal-2", "terminal-3", "machine-1", "machine-2"}
    assert kinds == {"", "run", "http", "agents"} | terminals
    opens = re.compile(r"^ *dialogd(?: +open\b.*)? *(?:#.*)?$", re.MULTILINE)  # no block that is tried opens Home
    assert opens.search(blocks(DOCS / "using.md", "sh")[0].text)
    assert [block.text for block in RUNNABLE if opens.search(block.text)] == []


@pytest.mark.parametrize("block", RUNNABLE, ids=[block.text.split("\n")[0][:40] for block in RUNNABLE])
def test_the_block_runs_as_it_stands(block: Block, sandbox: Sandbox) -> None:
    if "dialogd run" not in block.text:
        sandbox.done('dialogd new "Tabs or spaces?"')
    sandbox.done(block.text.replace(str(DEFAULT_FILE), str(sandbox.file)))
    if ">> /tmp" in block.text:  # what is typed into the file is a turn of the person
        status = json.loads(sandbox.done("dialogd status --json"))
        assert (status["turn"], status["turn_of"]) == (2, ["B"])


def test_the_commands_to_step_in_meet_a_rehearsal_that_still_goes_on(sandbox: Sandbox) -> None:
    (slow,) = (block.text for block in blocks(README, "sh", "terminal-1-slow"))
    (steps,) = (block.text for block in RUNNABLE if "dialogd pause" in block.text)
    rehearsal = sandbox.start(slow)
    until(lambda: "thinking" in sandbox.run("dialogd status").stdout, f"a reply that is written: {rehearsal.said()}")
    for command in steps.rstrip().split("\n"):
        sandbox.done(command)
    text = sandbox.file.read_text(encoding="utf-8")
    for said in ("What about cost?", "Is that measured?", "[PAUSED]", "[RESUMED]"):
        assert said in text
    assert json.loads(sandbox.done("dialogd status --json"))["outcome"] is None


def test_the_readmes_way_onto_the_path_leads_to_this_checkouts_program() -> None:
    if not (REPOSITORY / ".venv" / "bin" / "activate").exists():
        pytest.skip("this checkout has no .venv")
    (activate,) = (line for line in README.read_text(encoding="utf-8").split("\n") if line.startswith(". .venv/"))
    script = ["sh", "-c", f"{activate}\ncommand -v dialogd"]
    found = subprocess.run(script, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60).stdout
    assert found == f"{REPOSITORY / '.venv' / 'bin' / 'dialogd'}\n"


def test_the_small_agent_reaches_a_consensus(sandbox: Sandbox) -> None:
    (script,) = (block.text for block in RUNNABLE if "agent.py" in block.text)
    sandbox.done(script)
    written = sandbox.file.read_text(encoding="utf-8")
    assert "[OBJECTION: no price is named]" in written
    assert written.rstrip().endswith("[CONSENSUS_REACHED]")
    del sandbox.environment["DIALOGD_BACKEND"]
    daemon = sandbox.start("dialogd start B --command 'python3 agent.py' --port 0")
    until(lambda: "backend command" in daemon.said(), f"a daemon with that command: {daemon.said()}")


def hold(sandbox: Sandbox, file: Path, translated: Callable[[str], str]) -> None:
    """Play the section of the three terminals through, each block after `translated`."""
    home = place(file, StateDir(Path(sandbox.environment["DIALOGD_STATE_DIR"])))
    before = set(home.glob("collaboration_plan_*"))
    sandbox.environment["DIALOGD_BACKEND"] = "rehearsal:slow=3"  # time to say something in the middle
    one, two = (sandbox.start(translated(by_hand(kind))) for kind in ("terminal-1", "terminal-2"))
    for daemon in (one, two):
        until(lambda daemon=daemon: "listening on port" in daemon.said(), "a daemon that listens")
    sandbox.done(translated(by_hand("terminal-3", "cat >")))
    until(lambda: "nobody has started it yet" in one.said(), f"A to see the file: {one.said()}")
    assert "## Turn 2" not in file.read_text(encoding="utf-8")
    kicked = sandbox.done(translated(by_hand("terminal-3", "curl")))
    assert json.loads(kicked)["status"] == "accepted"
    watching = sandbox.start(translated(by_hand("terminal-3", "tail -f")))
    until(lambda: "## Turn 2" in file.read_text(encoding="utf-8"), f"a first reply: {one.said()}")
    spoken = "".join(block.text for block in blocks(README, "sh", "http"))
    said = sandbox.done(translated(spoken))  # in one go: the dialog goes on meanwhile
    assert [answer["status"] for answer in json.loads(f"[{said.replace('}{', '},{')}]")] == ["ok", "ok"]
    until(lambda: "[PAUSED]" in watching.said(), "what was said over HTTP to stand in the file")
    sandbox.done("dialogd resume")
    until(lambda: "\n[CONSENSUS_REACHED]\n" in watching.said(), f"a consensus: {one.said()}{two.said()}")
    stopped = sandbox.done(translated(by_hand("terminal-3", "dialogd stop")))
    assert (one.process.wait(PATIENCE), two.process.wait(PATIENCE)) == (0, 0)
    copy = stopped.rpartition("copied to ")[2].partition("\n")[0]
    assert Path(copy).read_bytes() == file.read_bytes()
    plans = set(home.glob("collaboration_plan_*")) - before
    assert {page.suffix for page in plans} == {".md", ".json"}
    for page in plans:
        page.unlink()


def test_three_terminals_with_other_ports_and_another_file(sandbox: Sandbox) -> None:
    a, b = free_ports(2)

    def translated(script: str) -> str:
        return (
            script.replace(str(DEFAULT_FILE), str(sandbox.file))
            .replace("localhost:3001", f"localhost:{a}")
            .replace("dialogd start A", f"dialogd start A --port {a} --peer http://localhost:{b}")
            .replace("dialogd start B", f"dialogd start B --port {b} --peer http://localhost:{a}")
        )

    hold(sandbox, sandbox.file, translated)


def test_two_machines_come_to_a_consensus_by_the_line_of_the_first(tmp_path: Path) -> None:
    """Two accounts, as far as they know, and a repository between them."""
    (here,), (there,) = (blocks(README, "sh", f"machine-{number}") for number in (1, 2))
    repository = Repository(tmp_path / "host")
    sandboxes = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        sandboxes.append(Sandbox(tmp_path / name, {"USER": name}))
        make_key(tmp_path / name / "home" / ".ssh" / "id_ed25519")
    one, two = sandboxes
    try:
        new, share, start = here.text.rstrip().split("\n")
        one.done(f"{new} --agents rehearsal,rehearsal")
        line = one.done(re.sub(r"git\S+", repository.url, share.partition("  #")[0]) + " --yes").strip()
        daemon = one.start(f"{start} --port 0")
        until(lambda: "listening on port" in daemon.said(), f"a daemon that listens: {daemon.said()}")
        told = two.done(there.text.replace("LINE", line).replace("=codex", "=rehearsal").rstrip() + " --linger 1s")
        assert "ended, agreed: " in told
        file = one.folder / "sessions.md"  # what the other machine wrote last comes to it by the repository
        until(lambda: "\n[CONSENSUS_REACHED]\n" in file.read_text(encoding="utf-8"), "the end on the first machine")
        assert json.loads(one.done("dialogd status --file sessions.md --json"))["consensus_reached"]
    finally:
        one.close()
        two.close()


@pytest.fixture
def defaults() -> Iterator[None]:
    """Skip where the default ports or the default file are in use; afterwards the file is gone again."""
    for port in (3001, 3002):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"port {port} is in use")
    if DEFAULT_FILE.exists() or DEFAULT_FILE.is_symlink():
        pytest.skip(f"{DEFAULT_FILE} is in use")
    lock = DEFAULT_FILE.with_name(f"{DEFAULT_FILE.name}.lock")
    there = lock.exists()
    yield
    DEFAULT_FILE.unlink(missing_ok=True)
    if not there:
        lock.unlink(missing_ok=True)


@pytest.mark.slow
def test_three_terminals_word_for_word(sandbox: Sandbox, defaults: None) -> None:
    del sandbox.environment["DIALOGD_FILE"]
    hold(sandbox, DEFAULT_FILE, lambda script: script)

"""`dialogd doctor`: what it finds on machines made for it, and that it takes away only what is left behind."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from dialogd.backends import BACKENDS
from dialogd.cli.create import free_ports
from dialogd.store.child import GUARD
from dialogd.store.disk import StateDir
from dialogd.store.leftovers import GUARD_SECONDS, OLD, Leftover, find_leftovers, note_made, reap
from dialogd.store.registry import Registry
from tests.cli.command import PATIENCE, Commands, Done, program, until
from tests.support.pair import a_second


def look(dialogd: Commands, *words: str, **more: str) -> Done:
    """Run it on a machine with nothing but what is in the folder `bin`."""
    (dialogd.folder / "bin").mkdir(exist_ok=True)
    places = {"PATH": str(dialogd.folder / "bin"), "HOME": str(dialogd.folder), "OLLAMA_HOST": "127.0.0.1:1"}
    places["DIALOGD_PORT"] = str(free_ports(1)[0])
    return dialogd("doctor", *words, **{**places, **more})


def facts(done: Done) -> dict[str, dict[str, Any]]:
    """The facts by their names."""
    return {fact["name"]: fact for fact in done.json["facts"]}


def test_a_machine_with_nothing_can_still_rehearse(dialogd: Commands) -> None:
    done = look(dialogd)
    assert (done.code, done.err) == (0, ""), done.out
    lines = dict(re.findall(r"^(?:ok|--|\?\?) +(port \d+|\S+) +(.*)$", done.out, re.MULTILINE))
    for name in BACKENDS:
        assert lines[name], name
    assert lines["claude-code"].startswith("claude is not on PATH: ")
    assert lines["grok"] == "no key; model grok-4.7: put XAI_API_KEY into the environment or into .env"
    for name in ("anthropic", "gpt"):
        assert lines[name].startswith(f"no key; model {BACKENDS[name].model}: ")
    assert lines["rehearsal"].startswith("scripted lines, no model; nobody pays")
    assert done.out.startswith("You can start now with A and B rehearsal (scripted lines, no model) — ")
    assert lines["folder"].startswith(f"{dialogd.folder} can be written, locked, and flushed in ")
    assert lines["lead"].startswith("a build can be led by ")
    assert "claude-code cannot: claude is not on PATH" in lines["lead"]
    assert "leftovers" in lines
    assert "!!" not in done.out
    assert [path.name for path in dialogd.folder.iterdir() if "doctor" in path.name] == []


@pytest.mark.slow
def test_facts_as_json_name_who_pays_and_what_may_be_done(dialogd: Commands) -> None:
    key = "xai-test-0123456789abcdef"
    program(dialogd.folder, "claude", 'echo "9.8.7 (Claude Code)"')
    program(dialogd.folder, "codex", 'echo "codex-cli 1.2.3"')
    program(dialogd.folder, "gemini", "exec sleep 5")
    program(dialogd.folder, "opencode", "echo 1.18.33")
    (dialogd.folder / "state" / "agents").mkdir(parents=True)
    verdict = {"x": {"safe": True, "why": "", "version": "9.8.7", "level": 0, "model": ""}}
    (dialogd.folder / "state" / "agents" / "readonly-proofs.json").write_text(json.dumps(verdict))
    variables = {
        "PATH": f"{dialogd.folder / 'bin'}:/usr/bin:/bin",
        "ANTHROPIC_API_KEY": "sk-ant-test-0123456789",
        "OPENAI_API_KEY": "sk-test-0123456789abcdef",
    }
    began = time.monotonic()
    done = look(dialogd, "--json", XAI_API_KEY=key, OPENCODE_API_KEY="sk-test-9876543210", **variables)
    assert (done.code, done.err, time.monotonic() - began < 15 * a_second()) == (0, "", True)
    found = facts(done)
    assert key not in done.out
    claude = found["claude-code"]
    assert [claude[key] for key in ("state", "version", "vendor", "proven")] == ["ok", "9.8.7", "Anthropic", True]
    assert claude["pays"] == "the key in ANTHROPIC_API_KEY"
    assert (found["codex"]["version"], found["codex"]["proven"]) == ("1.2.3", False)
    assert (found["gemini"]["state"], found["gemini"]["here"], found["gemini"]["proven"]) == ("absent", False, None)
    grok = found["grok"]
    assert (grok["pays"], grok["model"], grok["project"]) == ("the key in XAI_API_KEY", "grok-4.7", "nothing")
    assert grok["price"].startswith(("$", "price unknown"))
    assert found["start"]["text"].startswith("You can start now with A claude-code (claude 9.8.7")
    assert "; B codex (codex 1.2.3" in found["start"]["text"]
    assert found["lead"]["text"].startswith("a build can be led by claude-code, codex")
    assert "gemini cannot: " in found["lead"]["text"]
    assert done.json["ok"] is True


def test_a_port_that_another_program_has(dialogd: Commands) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = look(dialogd, "--json", DIALOGD_PORT=str(port))
    found = facts(done)[f"port {port}"]
    assert (done.code, found["state"], found["text"]) == (0, "warning", "taken by another program")
    assert found["fix"]


@pytest.mark.slow
def test_a_port_that_a_daemon_of_ours_has_is_in_order(dialogd: Commands) -> None:
    port = str(free_ports(1)[0])
    assert dialogd("start", "B", "--detach", "--port", port).code == 0
    found = facts(look(dialogd, "--json", DIALOGD_PORT=port))[f"port {port}"]
    assert (found["state"], found["text"].split(" on ")[0]) == ("ok", "taken by the dialogd daemon of agent B")


def test_what_keeps_a_dialog_from_being_held_is_exit_code_1(dialogd: Commands, tmp_path: Path) -> None:
    absent = look(dialogd, "--json", "--file", str(tmp_path / "none" / "d.md"))
    assert (absent.code, absent.json["ok"], facts(absent)["folder"]["state"]) == (1, False, "problem")
    assert facts(absent)["folder"]["fix"]
    shown = look(dialogd, "--file", str(tmp_path / "none" / "d.md"))
    assert re.search(r"^!!  folder .* does not exist\n +fix: make it, or name a file with --file$", shown.out, re.M)
    dialogd.file.write_text("no dialog\n")
    dialogd.file.chmod(0o666)
    odd = look(dialogd, "--json")
    assert (odd.code, facts(odd)["dialog"]["state"]) == (0, "warning")


def test_a_state_directory_that_others_can_read_is_named(dialogd: Commands) -> None:
    (dialogd.folder / "state").mkdir(mode=0o755)
    (dialogd.folder / "state").chmod(0o755)
    state = facts(look(dialogd, "--json"))["state"]
    assert (state["state"], state["fix"]) == ("warning", f"chmod 700 '{dialogd.folder / 'state'}'")


@pytest.fixture
def no_other_strays() -> Iterator[None]:
    """Tests that leave commands behind, and those that end what was left behind on this machine, run one at a time."""
    with Path(__file__).open() as here:
        fcntl.flock(here, fcntl.LOCK_EX)
        yield


@contextmanager
def stray(held: str = "sleep 60", guard: Path = GUARD) -> Iterator[psutil.Process]:
    """A guarded command whose starter is gone, and whose line to it is kept open by this process."""
    ours, theirs = socket.socketpair()
    script = f'"$0" -I -S "$1" {theirs.fileno()} /bin/sh -c "$2" </dev/null >/dev/null 2>&1 & echo $!'
    words = ["/bin/sh", "-c", script, sys.executable, str(guard), held]
    pid = int(subprocess.check_output(words, pass_fds=[theirs.fileno()], start_new_session=True))
    theirs.close()
    process = psutil.Process(pid)
    try:
        until(process.children, "the command")
        yield process
    finally:
        ours.close()
        for left in [process, *children(process)]:
            if left.is_running():
                left.kill()


def children(process: psutil.Process) -> list[psutil.Process]:
    """What runs below a process that may be gone."""
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def is_over(process: psutil.Process) -> bool:
    """True when it is gone; whoever adopted it may not have collected it yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.usefixtures("no_other_strays")
def test_a_command_whose_daemon_is_gone_is_listed_and_ended(dialogd: Commands) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    with stray() as process:
        below = process.children(recursive=True)
        assert below
        try:
            listed = look(dialogd, "--json")
            mine = [left for left in listed.json["leftovers"] if left["pid"] == process.pid]
            assert [(left["kind"], left["reaped"]) for left in mine] == [("process", None)]
            assert not is_over(process)
            assert f"process pid {process.pid} " in look(dialogd).out
            reaped = look(dialogd, "--reap", "--json")
            assert [left["reaped"] for left in reaped.json["leftovers"] if left["pid"] == process.pid] == [True]
            assert all(map(is_over, [process, *below]))
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()


@pytest.mark.usefixtures("no_other_strays")
def test_a_stray_that_is_stopped_ends_too(tmp_path: Path) -> None:
    with stray("trap '' TERM; sleep 60 & wait") as process:
        process.suspend()
        (found,) = [left for left in find_leftovers(StateDir(tmp_path)) if left.pid == process.pid]
        began = time.monotonic()
        assert reap(found)
        assert is_over(process)
        assert time.monotonic() - began < GUARD_SECONDS + a_second()


@pytest.mark.usefixtures("no_other_strays")
def test_a_guard_with_a_living_daemon_and_a_look_alike_are_let_live(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    words = [sys.executable, "-I", "-S", str(GUARD), str(theirs.fileno()), "/bin/sleep", "60"]
    held = subprocess.Popen(words, pass_fds=[theirs.fileno()], start_new_session=True)
    theirs.close()
    alike = tmp_path / "process_guard.py"
    alike.write_text(GUARD.read_text())
    try:
        until(lambda: psutil.Process(held.pid).children(), "the command")
        with stray(guard=alike) as other:
            pids = {left.pid for left in find_leftovers(StateDir(tmp_path / "state"))}
            assert not {held.pid, other.pid} & pids
            for process in (psutil.Process(held.pid), other):
                assert reap(Leftover("process", "", pid=process.pid, created=process.create_time()))
                assert not is_over(process)
    finally:
        ours.close()
        held.wait(PATIENCE)


def kept(state: StateDir, temporary: Path) -> list[Leftover]:
    """What is left in folders; processes of other tests come and go."""
    return [left for left in find_leftovers(state, temporary) if left.kind != "process"]


@pytest.mark.usefixtures("no_other_strays")
def test_sessions_of_dialogs_are_listed_and_go_only_when_asked_for(dialogd: Commands) -> None:
    made, mine = dialogd.folder / "made.jsonl", dialogd.folder / "mine.jsonl"
    for path in (made, mine):
        path.write_text("{}")
    note_made(dialogd.state.agent(dialogd.file, "A"), made)
    listed, reaped = look(dialogd), look(dialogd, "--reap", "--json")
    assert re.search(rf"^--  leftovers +1: session {made}", listed.out, re.MULTILINE)
    (row,) = [row for row in reaped.json["leftovers"] if row["kind"] == "session"]
    assert (row["path"], row["reaped"]) == (str(made), True)
    assert (made.exists(), mine.exists()) == (False, True)


def test_registrations_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path) -> None:
    state = StateDir(tmp_path / "state")
    registry = Registry(state)
    gone = tmp_path / "gone.md"
    program = (
        "import sys, pathlib; from dialogd.store.registry import Registry; from dialogd.store.disk import StateDir\n"
        "r = Registry(StateDir(pathlib.Path(sys.argv[1]))); f = pathlib.Path(sys.argv[2])\n"
        "with r.seat('B', f), r.entry('B', 4000, f, f): print('ready', flush=True); sys.stdin.read()\n"
    )
    words = [sys.executable, "-c", program, str(state.root), str(gone)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        file = tmp_path / "d.md"
        with registry.seat("A", file), registry.entry("A", 4001, file, file):
            assert kept(state, tmp_path) == []
            process.send_signal(signal.SIGKILL)
            process.wait()
            (found,) = kept(state, tmp_path)
            assert (found.kind, found.path.name.split("-")[0]) == ("registration", "4000")
            assert reap(found)
            assert kept(state, tmp_path) == []
            assert [daemon.id for daemon in registry.running()] == ["A"]


def test_only_old_private_folders_of_our_name_go(tmp_path: Path) -> None:
    state, temporary = StateDir(tmp_path / "state"), tmp_path / "tmp"
    long_ago = time.time() - OLD - 60
    precious = tmp_path / "precious"
    run = state.agent(tmp_path / "d.md", "A") / "run-x1"
    names = ("dialogd-proof-1", "dialogd-young", "dialogd-busy", "dialogd-open", "other-old")
    for folder in (*(temporary / name for name in names), precious, run):
        folder.mkdir(mode=0o700, parents=True)
        (folder / "file").write_text("x")
        if folder.name != "dialogd-busy":
            os.utime(folder / "file", (long_ago, long_ago))
        if folder.name != "dialogd-young":
            os.utime(folder, (long_ago, long_ago))
    (temporary / "dialogd-open").chmod(0o755)
    os.utime(temporary / "dialogd-open", (long_ago, long_ago))
    (temporary / "dialogd-link").symlink_to(precious)
    (temporary / "dialogd-file").write_text("x")
    found = kept(state, temporary)
    assert [left.path for left in found] == [temporary / "dialogd-proof-1", run]
    (run / "file").touch()
    assert [reap(left) for left in found] == [True, False]
    assert sorted(path.name for path in temporary.iterdir()) == sorted(
        {*names, "dialogd-link", "dialogd-file"} - {"dialogd-proof-1"}
    )
    assert (precious / "file").exists()
    assert (run / "file").exists()

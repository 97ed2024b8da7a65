"""`dialogd build` and `dialogd tasks` on a real repository: what is said before, and what the person decides."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from dialogd import person
from dialogd.backends.command import missing
from dialogd.backends.seats import Cast, Seat
from dialogd.cli.create import free_ports
from dialogd.errors import BackendError
from dialogd.protocol import build
from dialogd.protocol.build import Task
from dialogd.protocol.grammar import parse
from dialogd.protocol.model import USER
from dialogd.store.registry import HOOK, Running
from dialogd.tasks.worktrees import Worktrees
from tests.cli.command import PATIENCE, Commands, Done, program, reviewed, until
from tests.cli.test_from_seats import ALONE, seated, this_process
from tests.cli.test_terminal_view import Tmux, tmux
from tests.protocol.test_build import PLAN, no, yes
from tests.support.room import Room, opening
from tests.support.terminal import Terminal
from tests.tasks.site import ACTOR, BWRAP, Listener

__all__ = ["tmux"]  # a fixture

AGENTS = """
[roles.M]
role = "moderator"
permissions = ["READ_ALL", "POST", "PROPOSE", "CRITIQUE", "MODERATE", "DECIDE"]

[roles.L]
role = "tech lead"
permissions = ["READ_ALL", "POST"]"""


def git(repo: Path, *words: str) -> str:
    """What the person's own git says."""
    who = ["-c", "user.name=P", "-c", "user.email=p@localhost", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *who, *words], cwd=repo, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(repo: Path, name: str, text: str) -> str:
    """The person commits a file."""
    (repo / name).write_text(text)
    git(repo, "add", "--all")
    git(repo, "commit", "--quiet", "--message", f"change {name}")
    return git(repo, "rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """A repository with one commit on `main`."""
    folder = tmp_path / "code"
    folder.mkdir()
    git(folder, "init", "--quiet")
    git(folder, "config", "user.name", "Ann")
    git(folder, "config", "user.email", "ann@example.org")
    commit(folder, "ages.py", "AGES = []\n")
    return folder


class Built(Room):
    """A build whose lead's commits are real: a file for each task."""

    def __init__(self, repo: Path, *reviews: str, rules: str = "cycles = 0") -> None:
        base = git(repo, "rev-parse", "HEAD")
        known = {"moderator": "M", "lead": "L", "repo": repo, "branch": "main", "base": base, "gate": "make"}
        terms = "\n".join(f'{key} = "{value}"' for key, value in known.items())
        setup = f"[build]\n{terms}\n{rules}\n{AGENTS}"
        keys = ["Max Turns: 60", "Dialog: 3f9a1c", "Topic: Print ages"]
        super().__init__(opening("M", "L", keys=keys, setup=setup, question="Print ages."))
        self.scripts = {"M": [PLAN, *reviews], "L": ["Done."] * 20}
        self.trees = Worktrees(repo, build="3f9a1c")

    def _made(self, task: Task, base: str) -> build.Submission:
        worktree = self.trees.open(task.number, task.description, base)
        (worktree.path / f"{task.id}.py").write_text(f"# attempt {task.iteration}\n")
        return self.trees.submit(worktree, task.number, f"{self.dialog.state.number}:x", f"Task {task.id}")

    def confirmed(self) -> Built:
        """The same, once the person has confirmed its tasks and everybody has done what they could."""
        self.run()
        self.types("\n[TASK: all | confirmed]\n")
        self.run()
        return self

    def at(self, dialogd: Commands) -> Built:
        """The same, as the file of these commands."""
        dialogd.file.write_bytes(self.paper.data)
        return self


def marks(dialogd: Commands) -> list[str]:
    """The marks of the file's last entry."""
    return [str(mark) for mark in parse(dialogd.file.read_bytes()).entries[-1].written]


def test_what_a_build_will_be_is_said_before_anything_is_written(dialogd: Commands, repo: Path) -> None:
    (repo / "notes.txt").write_text("mine")
    words = ["build", "Print ages", "--repo", str(repo), "--gate", "make test", "--tasks", "2", "--budget", "$3"]
    done = dialogd(*words, "--agents", "command:cat,command:cat")
    assert done.code == (2 if missing() else 1)
    for line in () if missing() else (
        "note: not committed, and no part of it: notes.txt\n", "M (Moderator): command", "L (Tech Lead): command",
        f"goal    Print ages\nrepo    {repo}: from main at {git(repo, 'rev-parse', 'HEAD')[:12]}; its checkout is not"
        " touched\ngate    make test\n",
        "turns   at most 22: 2 tasks of up to 3 attempts, 1 improvement, a summary\n"
        "time    at most 30 minutes for a turn, 15 minutes for the gate\nbudget  $3.00\n",
        "error: your word is needed, and nobody can be asked here\n  fix: say it with the command: --yes\n",
    ):  # fmt: skip
        assert line in done.err, (line, done.err)
    plain = ["build", "x", "--repo", str(repo), "--agent", "M=command:cat", "--agent"]
    wrong = {
        (*words, "--agents", "command:cat,command:cat", "--gate-sees", str(dialogd.folder)):
            f"the gate must not see {dialogd.folder}: it holds ",
        (*plain, "L=rehearsal", "--yes"):
            "rehearsal cannot work as L (Tech Lead): it answers, and has no hands to write files with",
        (*plain[:4], "--agent", "M=rehearsal", "--agent", "L=command:cat", "--yes"):
            "rehearsal cannot work as M (Moderator): its lines plan nothing",
    }  # fmt: skip
    for line, why in () if missing() else wrong.items():
        done = dialogd(*line)
        assert (done.code, why in done.err, "bubblewrap" in done.err) == (2, True, False), done.err
    assert missing() or "gate    none: nothing is tested" in dialogd(*plain, "L=command:cat").err
    assert not dialogd.file.exists()


def test_who_needs_a_sandbox_is_told_to_install_it(dialogd: Commands, repo: Path) -> None:
    tools = dialogd.folder / "tools"
    tools.mkdir()
    found = shutil.which("git")
    assert found is not None
    (tools / "git").symlink_to(found)
    words = ["build", "x", "--repo", str(repo), "--agents", "command:cat,command:/bin/cat", "--yes"]
    done = dialogd(*words, PATH=str(tools))
    assert (done.code, "bubblewrap (`bwrap`) is not on PATH" in done.err) == (2, True), done.err
    fix = "fix: name another: --agent L=BACKEND, one of claude-code, codex; or install bubblewrap"
    assert fix in done.err


def test_the_help_shows_how_a_build_is_begun_and_what_else_there_is(dialogd: Commands) -> None:
    build, tasks, run = dialogd.all([["build", "--help"], ["tasks", "--help"], ["build", "run", "--help"]])
    assert build.out.startswith("Usage: dialogd build [OPTIONS] [GOAL]\n")
    assert tasks.out.startswith("Usage: dialogd tasks [OPTIONS]\n")
    for word in (
        "--repo DIR",
        "--gate CMD",
        "--continue",
        "--tasks N",
        "Commands:\n",
        "  merge ",
        "  rebase ",
        "  pr ",
    ):
        assert word in build.out
    assert all(word in tasks.out for word in ("--json", "  confirm ", "  gate "))
    options = build.out.partition("Options:")[2].partition("Commands:")[0]
    assert [one for one in re.split(r"\n  -", options) if one.casefold().count("default: ") > 1] == []
    assert "What is to be decided" not in build.out
    assert options.strip() == run.out.partition("Options:")[2].strip()


@pytest.mark.slow
def test_it_asks_before_it_starts(dialogd: Commands, repo: Path) -> None:
    words = dialogd.words(["build", "x", "--repo", str(repo), "--agents", "command:cat,command:cat"])
    for typed, said in (("n\r", "nothing was done"), ("\x03", "Start it? [y/N]")):
        terminal = Terminal(words, dialogd.environment, dialogd.folder)
        try:
            terminal.until("Start it? [y/N]")
            terminal.press(typed)
            until(lambda terminal=terminal: terminal.has_ended, "its end", lambda terminal=terminal: terminal.text)
            assert said in terminal.text
        finally:
            terminal.close()
        assert (dialogd.file.exists(), dialogd.daemons()) == (False, ())


HELD = "mkfifo held && read -r word <held"


def held_gate(repo: Path, terminal: Terminal) -> Path:
    """The pipe on which the gate `HELD` waits, once that runs; a line that is written there ends it."""
    found: list[Path] = []

    def runs() -> bool:
        assert not terminal.has_ended, terminal.text
        found[:] = repo.parent.glob(f"{repo.name}*/.gate-*/held")
        return bool(found)

    until(runs, "the gate to run", lambda: terminal.text)
    return found[0]


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing() or "it is here")
def test_what_is_typed_while_the_gate_is_tried_is_no_answer(dialogd: Commands, repo: Path) -> None:
    words = ["build", "x", "--repo", str(repo), "--gate", HELD, "--agents", "command:cat,command:cat"]
    terminal = Terminal(dialogd.words(words), dialogd.environment, dialogd.folder)
    try:
        held = held_gate(repo, terminal)
        terminal.press("confirm\r")
        terminal.until("confirm")
        held.write_text("go on\n")
        terminal.until("Start it? [y/N]")
        terminal.press("y\r")
        until(lambda: dialogd.daemons() or terminal.has_ended, "its start", lambda: terminal.text)
        assert not terminal.has_ended, terminal.text
        terminal.press("\x03")
        until(lambda: terminal.has_ended, "its end", lambda: terminal.text)
    finally:
        terminal.close()
    until(lambda: not dialogd.daemons(), "its daemons' end")


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing() or "it is here")
def test_the_gate_is_tried_before_it_is_asked(dialogd: Commands, repo: Path) -> None:
    (repo / "ages.py").write_text("not committed")
    ends = {
        "echo 3 passed; touch made": "it passed, in N seconds. The last line that it printed: `3 passed`.\n",
        "grep -q AGES ages.py": "it passed, in N seconds. It printed nothing: it reports no test.\n",
        "echo wrong; exit 3": "it failed: exit code 3\n          wrong\n",
        "no-such-runner": "it could not start: exit code 127\n          /bin/sh: ",
        "sleep 600": "it had not ended in 1 second: --gate-timeout gives it more\n",
    }
    words = ["build", "x", "--repo", str(repo), "--agents", "command:cat,command:cat", "--gate-timeout"]
    for gate, end in ends.items():
        done = dialogd(*words, "1s" if "sleep" in gate else "1m", "--gate", gate)
        _, _, said = done.err.partition(f"tried   the gate runs on {git(repo, 'rev-parse', 'HEAD')[:12]}, ")
        said = re.sub(r"in [\d.]+ seconds?\.", "in N seconds.", said)
        assert said.startswith(f"before anything is changed\n        {end}"), (gate, done.err)
        assert ("have what it lacks made (--setup CMD); or name" in said) == ("passed" not in end), said
        assert "error: your word is needed" in said
    (repo / ".venv").mkdir()
    assert (
        f"show it what it lacks (--gate-sees {os.path.relpath(repo, dialogd.folder)}/.venv); or"
        in dialogd(*words, "1m", "--gate", "false").err
    )
    (repo / ".venv").rmdir()
    assert sorted(path.name for path in repo.parent.iterdir() if path.name.startswith("code")) == ["code"]
    assert sorted(path.name for path in repo.iterdir()) == [".git", "ages.py"]


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing() or "it is here")
def test_a_setup_is_tried_before_it_is_asked(dialogd: Commands, repo: Path) -> None:
    """The gate sees what it makes; where it fails, nothing is begun, also with --yes."""
    commit(repo, ".gitignore", "kit\n")
    words = ["build", "x", "--repo", str(repo), "--agents", "command:cat,command:cat", "--gate", "cat kit/made"]
    done = dialogd(*words, "--setup", "mkdir kit; echo green >kit/made")
    assert (
        "setup   mkdir kit; echo green >kit/made\n        once for each task, in a sandbox, without network" in done.err
    )
    assert "tried   the setup runs, then the gate, on " in done.err
    assert "The last line that it printed: `green`" in done.err
    assert "error: your word is needed" in done.err
    failed = dialogd(*words, "--yes", "--setup", "echo no such package; exit 3")
    assert "error: the setup `echo no such package; exit 3` failed: exit code 3: no such package" in failed.err
    assert "--setup-network gives it the network" in failed.err
    assert (failed.code, dialogd.file.exists(), dialogd.daemons()) == (1, False, ())
    assert sorted(path.name for path in repo.parent.iterdir() if path.name.startswith("code")) == ["code"]
    alone = dialogd(*words, "--setup-network")
    assert (alone.code, "--setup-network is for a setup" in alone.err) == (2, True)


@pytest.mark.skipif(bool(missing()), reason=missing() or "it is here")
def test_with_the_usual_gate_comes_what_it_reads_in_the_home(dialogd: Commands, repo: Path) -> None:
    commit(repo, "go.mod", "")
    modules = Path(dialogd.environment["HOME"], "go", "pkg", "mod")
    modules.mkdir(parents=True)
    done = dialogd("build", "x", "--repo", str(repo), "--agents", "command:cat,command:cat")
    assert f"note: there is go.mod, and no gate; usual is --gate 'go test ./...' --gate-sees={modules}" in done.err


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing() or "it is here")
def test_the_usual_setup_and_gate_are_proposed(dialogd: Commands, repo: Path) -> None:
    """In a terminal the person says yes or no to each; else they are only named."""
    commit(repo, "Makefile", "test:\n\t@echo tested\n")
    commit(repo, "package.json", "{}")
    words = ["build", "x", "--repo", str(repo), "--agents", "command:cat,command:cat"]
    done = dialogd(*words)
    assert "note: there is package.json, and no setup; usual is --setup 'npm install --no-package-lock'" in done.err
    assert "note: there is Makefile, and no gate; usual is --gate 'make test'" in done.err
    terminal = Terminal(dialogd.words(words), dialogd.environment, dialogd.folder)
    try:
        for answer, question in (("n\r", "--setup-network? [y/N]"), ("y\r", "--gate 'make test'? [y/N]")):
            terminal.until(question)
            terminal.press(answer)
        terminal.until("Start it? [y/N]")
        terminal.press("n\r")
        assert "gate make test" in terminal.text
        assert "setup npm" not in terminal.text
    finally:
        terminal.close()


@pytest.mark.skipif(bool(missing()), reason=missing() or "it is here")
def test_a_person_does_not_wait_for_a_gate_that_is_tried(dialogd: Commands, repo: Path) -> None:
    words = ["build", "x", "--repo", str(repo), "--agents", "command:cat,command:cat", "--gate", HELD]
    for more, said in (([], "Start it? [y/N]"), (["--yes"], "")):
        terminal = Terminal(dialogd.words([*words, *more]), dialogd.environment, dialogd.folder)
        try:
            held_gate(repo, terminal)
            terminal.press("\x03")
            if said:
                terminal.until("interrupted: how it ends is not known")
                terminal.until(said)
                terminal.press("n\r")
            until(lambda terminal=terminal: terminal.has_ended, "its end", lambda terminal=terminal: terminal.text)
        finally:
            terminal.close()
        assert (dialogd.file.exists(), dialogd.daemons()) == (False, ())


def test_who_works_is_a_coding_agent_that_is_here(dialogd: Commands, repo: Path) -> None:
    path = {"PATH": f"{dialogd.folder / 'bin'}:/usr/bin:/bin", "DIALOGD_BACKEND": ""}
    keys = {"XAI_API_KEY": "xai-test-0123456789abcdef", "OPENAI_API_KEY": "sk-test-0123456789abcdef"}
    words = ["build", "x", "--repo", str(repo), "--agent", "M=command:cat"]
    program(dialogd.folder, "codex", 'echo "codex-cli 1.2.3"')
    assert "L (Tech Lead): codex" in dialogd(*words, **path, **keys).err
    program(dialogd.folder, "claude", 'echo "9.8.7 (Claude Code)"')
    twin = [*words[:-1], "M=gpt"]
    found = dialogd(*twin, ANTHROPIC_API_KEY="sk-ant-test-0123456789", **path, **keys)
    assert "L (Tech Lead): claude-code" in found.err
    several = dialogd(*words[:-1], "M=grok", "--parallel", "2", **path, **keys).err
    assert ("A (Tech Lead 2): " in several, "of one family" in several) == (True, False)


def test_a_place_without_a_repository_is_refused(dialogd: Commands, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "--quiet")
    wrong = {
        ("x", "--repo", str(tmp_path / "plain")): "is no git repository",
        ("x", "--repo", str(tmp_path / "empty")): "has no commit yet",
        ("x", "--repo", str(tmp_path / "nowhere")): "nowhere",
        ("--tasks", "0", "x"): "'--tasks'",
        (): "what is to be built?",
        ("x",): "is no git repository",
    }
    for (words, why), done in zip(wrong.items(), dialogd.all([["build", "--yes", *one] for one in wrong]), strict=True):
        assert (done.code in (1, 2), why in done.err, "\n  fix: " in done.err) == (True, True, True), (words, done)
    assert not dialogd.file.exists()


@pytest.mark.slow
def test_only_what_was_decided_and_approved_is_carried_out(dialogd: Commands, repo: Path) -> None:
    place = ["--repo", str(repo), "--agents", "command:cat,command:cat"]
    source, out = dialogd.folder / "talk.md", dialogd.folder / "plans"
    run = dialogd(
        "run", "Tabs?", "--agents", "rehearsal,rehearsal", "--pace", "0", "--file", str(source), "--plan", "no"
    )
    assert run.code == 0, run.err
    early = dialogd("build", "--from", str(source), *place)
    assert (early.code, "you have not approved" in early.err, "dialogd approve" in early.err) == (1, True, True)
    assert dialogd("approve", "--file", str(source)).code == 0
    assert dialogd("plan", "--out", str(out), "--file", str(source)).code == 0
    dialog = parse(source.read_bytes())
    page = next(out.glob("*.md"))
    for named in (str(source), str(page), str(page.with_suffix(".json")), dialog.id):
        done = dialogd("build", "--from", named, *place)
        assert "goal    Tabs?\n" in done.err, (named, done.err)
    dialogd.begin("Open?", "open.md")
    for named, why in ((str(dialogd.folder / "open.md"), "it has not ended"), ("./none.md", "does not exist")):
        done = dialogd("build", "--from", named, *place)
        assert (done.code in (1, 2), why in done.err) == (True, True), done.err
    words = ["--agents", "command:false,command:false", "--unattended", "--yes", "--pace", "0"]
    dialogd("build", "--from", dialog.id, "--repo", str(repo), *words)
    rules = parse(dialogd.file.read_bytes()).header.rules.build
    assert rules is not None
    assert rules.source == dialog.id


def test_an_approval_says_how_to_go_on(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    with dialogd.file.open("a") as typed:
        typed.write("\n## Turn 2 — Claude A\n\n## Consensus Summary\n\nUse tabs.\n\n[CONSENSUS_REACHED]\n")
    done = dialogd("approve")
    dialog = parse(dialogd.file.read_bytes())
    assert (done.code, done.err) == (0, f"next: dialogd build --from {dialog.id} --repo DIR carries it out\n")


def test_the_tasks_are_shown_and_decided_on(dialogd: Commands, repo: Path) -> None:
    Built(repo).at(dialogd)
    assert dialogd("tasks").out == "no task is proposed yet\n"
    room = Built(repo, yes("P1"))
    room.run()
    room.at(dialogd)
    shown = dialogd("tasks").out
    for line in (
        "001  proposed ",
        "     - refuses negative ages\n",
        "after 001, 2 h",
        "confirm, change or drop the proposed",
    ):
        assert line in shown, shown
    facts = dialogd("tasks", "--json").json
    assert facts["due"] == [{"what": "confirm", "by": USER, "task": "001"}]
    assert facts["tasks"][1]["after"] == ["001"]
    steps = [
        (["change", "2", "-d", "print years"], "changed; ", ["[TASK: 002 | changed | print years]"]),
        (["confirm", "1"], "001 confirmed; ", ["[TASK: 001 | confirmed]"]),
        (["drop", "2", "--why", "not now"], "002 dropped; L owes the next turn", ["[TASK: 002 | dropped | not now]"]),
        (["confirm", "1"], "confirmed already; ", ["[TASK: 002 | dropped | not now]"]),
        (["confirm", "all"], "confirmed already; ", ["[TASK: 002 | dropped | not now]"]),
    ]
    for words, said, written in steps:
        done = dialogd("tasks", *words)
        assert (done.code, done.out[: len(said)], marks(dialogd)) == (0, said, written), done
    for words, why in (
        (["confirm", "9"], "is no task '9'"),
        (["accept"], "no task waits"),
        (["gate", "run"], "no gate"),
    ):
        done = dialogd("tasks", *words)
        assert (done.code in (1, 2), why in done.err, "\n  fix: " in done.err) == (True, True, True), done
    dialogd.begin("Tabs?", "plain.md")
    assert "is no build" in dialogd("tasks", "--file", str(dialogd.folder / "plain.md")).err


WAITS = ("confirm", "some", "part", "again", "stuck", "error", "allow", "absent", "agent")


def waiting(repo: Path, what: str) -> Built:
    """A build that waits for the person for that."""
    room = Built(repo, *map(no, ("P1", "P2", "P3")), yes("P1"))
    if what == "agent":
        room.scripts["M"] = [f"{PLAN}\n[QUESTION_FOR_USER: which file?]\n"]
    if what == "absent":
        room.scripts["M"] = [BackendError("exit code 1", fix="look at its log")] * 2
    room.gates = {"allow": ["asked"], "error": ["error"]}.get(what, [])
    room.run()
    if what in ("some", "part", "stuck", "again", "error", "allow"):
        room.types(f"\n[TASK: {'001' if what in ('some', 'part') else 'all'} | confirmed]\n")
        room.run()
    if what in ("again", "part"):  # the person stopped it, and had it go on
        room.types("\n[STOPPED: enough]\n")
        person.carry_on(room.log)
    return room


@pytest.mark.slow
@pytest.mark.parametrize("what", WAITS)
def test_what_a_build_waits_for_is_told_with_the_command_that_is_due(dialogd: Commands, repo: Path, what: str) -> None:
    """In `status`, among the tasks, to who was away and in the plan; each command can be typed as it stands."""
    waiting(repo, what).at(dialogd)
    shown = reviewed(dialogd, f"build-waits-{what}", ["status", "tasks", "status --away", "plan"])
    typed = re.findall(r"^  (?:answer  |or      ) (.*)$", shown.replace("FOLDER", str(dialogd.folder)), re.M)
    assert typed
    parsed = subprocess.run(["bash", "-n"], input="\n".join(typed), capture_output=True, text=True, check=False)
    assert parsed.stderr == ""
    for one in dialogd.all([[*shlex.split(one)[1:], "--help"] for one in typed]):
        assert one.code == 0, one.err


def test_a_build_whose_agents_are_gone_names_the_command_that_starts_them(dialogd: Commands, repo: Path) -> None:
    waiting(repo, "confirm").at(dialogd)
    again = f"dialogd build --continue --file {dialogd.file}"
    assert dialogd("tasks", "confirm").out == f"001, 002 confirmed; L owes the next turn (not running: {again})\n"
    assert f"waiting for L; its daemon does not run: {again}\n" in dialogd("status").out


def test_tasks_of_a_build_that_was_stopped_are_decided_on_once_it_goes_on(dialogd: Commands, repo: Path) -> None:
    room = waiting(repo, "confirm")
    room.stop("interrupted by the person")
    room.at(dialogd)
    done = dialogd("tasks", "confirm", "2")
    assert (done.code, "\n  fix: have it go on first: dialogd build --continue\n" in done.err) == (1, True), done.err
    Built(repo, yes("P1"), yes("P2"), "Both.\n").confirmed().at(dialogd)
    assert 'fix: open it again with a turn of yours: dialogd say "…"\n' in dialogd("tasks", "confirm", "2").err


def test_a_build_is_watched_in_its_own_words(dialogd: Commands, repo: Path) -> None:
    finding = "[FINDING: high | tests | ages.py | 4 | nothing shows it | add a test]\n"
    better = "[IMPROVEMENT: documentation | low | medium | 1 | nobody knows it | README | it names it]\n"
    room = Built(repo, finding + no("P1"), "[RESOLVED: F1 | it is there]\n" + yes("P2"), yes("P3"), better, rules="")
    room.gates = ["failed", "passed", "untested"]
    room.confirmed().at(dialogd)
    room.types("\n[STOPPED: enough]\n")
    room.at(dialogd)
    reviewed(dialogd, "build-watched", ["watch", "tasks"])


STOPS = {
    "[STOPPED: interrupted by the person]": "dialogd build --continue{} goes on",
    "[STOPPED: budget: $2.00 is spent]": "dialogd build --continue --budget AMOUNT{} goes on",
    "[STOPPED: size: the limit]": "dialogd limit max_size 2MB{0}, then dialogd build --continue{0} goes on",
}


@pytest.mark.parametrize("end", STOPS)
def test_a_build_that_was_stopped_goes_on_as_a_build(dialogd: Commands, repo: Path, end: str) -> None:
    room = waiting(repo, "confirm").at(dialogd)
    room.types(f"\n{end}\n")
    room.at(dialogd)
    named = f" --file {dialogd.file}"
    done = dialogd.all([["status"], ["watch"], ["run", "--continue"]])
    for one in done:
        assert STOPS[end].format(named) in one.out + one.err, one
        assert "run --continue" not in one.out + one.err
    assert "with 0 of 2 tasks approved" in done[0].out
    assert "The build can go on: `dialogd build --continue`." in dialogd("plan").out


@pytest.mark.slow
def test_a_build_that_goes_on_takes_what_it_is_given_or_refuses_it_by_name(dialogd: Commands, repo: Path) -> None:
    waiting(repo, "confirm").at(dialogd)
    before = dialogd.file.read_bytes()
    given = ["--gate=true", "--agents=rehearsal,cat", "--agent=L=codex", "--repo=.", "--tasks=5", "--iterations=3",
             "--from=3f9a1c", "--timeout=1m", "--price=free", "--replace", "--question=x"]  # fmt: skip
    for word, done in zip(given, dialogd.all([["build", "--continue", one] for one in given]), strict=True):
        said = (
            f"error: {word.partition('=')[0]}: a build that goes on keeps what it began with\n  fix: leave it out, or"
        )
        assert (done.code, said in done.err) == (2, True), done.err
    assert "error: GOAL: a build" in dialogd("build", "--continue", "--file", str(dialogd.file), "more").err
    assert dialogd.file.read_bytes() == before
    tools, seats = dialogd.folder / "tools", [Seat(one, "command", command="cat", repo=str(repo)) for one in "ML"]
    tools.mkdir()
    cast = Cast("3f9a1c", (seats[0], replace(seats[1], gate="make"))).with_ports(free_ports(2))
    cast.save(dialogd.state, dialogd.file)
    with dialogd.background("build", "--continue", "--gate-sees", str(tools), "--plan", "no"):
        lead = dialogd.state.dialog(dialogd.file) / "start-L.json"
        until(lead.exists, "the lead's daemon", lambda: dialogd.output)
        flags = json.loads(lead.read_text())["flags"]
        assert ["--gate-sees", str(tools)] in flags
        done = dialogd("build", "--continue", "--gate-sees", str(repo))
        assert (done.code, "its daemons run, and take no --gate-sees\n  fix: end them first" in done.err) == (2, True)


def test_untested_work_says_so(dialogd: Commands, repo: Path) -> None:
    room = Built(repo, yes("P1"), yes("P2"), "Both.\n")
    room.gates = ["untested", "passed"]
    room.confirmed().at(dialogd)
    assert "001  approved, untested" in dialogd("tasks").out
    assert [task["untested"] for task in dialogd("tasks", "--json").json["tasks"]] == [True, False]
    assert "with tasks 001 (untested), 002; " in dialogd("build", "merge").err


@pytest.mark.slow
def test_a_red_gate_is_told_as_red_wherever_an_accepted_task_is_shown(dialogd: Commands, repo: Path) -> None:
    """In the list, the events, the plan, before a merge, in a pull request, where no score is no number.

    The accept and the end name the merge that will not be refused, and a refused one says what else there is.
    """
    unclear = "No points.\n\n[DECIDE: P1 approve]"
    room = Built(repo, unclear, unclear, yes("P2"), "Both.\n", rules="cycles = 0\niterations = 1")
    room.gates = ["failed", "timeout"]
    room.confirmed().at(dialogd)
    anyway = f"dialogd build merge --anyway --file {dialogd.file}"
    assert f"001: gate failed; unless the gate of a later task passes, only this takes it over: {anyway}\n" in (
        dialogd("tasks", "accept").err
    )
    one = dialogd("build", "merge").err
    assert "with task 001 (gate failed); 1 file, " in one
    assert f"fix: have one more task pass the gate (dialogd say --file {dialogd.file} …), or overrule it" in one
    for number in (1, 2):
        room.types(f"\n[TASK: {number} | accepted]\n")
        room.run()
    room.at(dialogd)
    shown = dialogd("tasks").out
    assert f"next: {anyway} takes it over (002: gate ran out of time, which only --anyway overrules), or " in shown
    assert ("001  approved, gate failed" in shown, "002  approved, gate ran out of time" in shown) == (True, True), (
        shown
    )
    events = [row["summary"] for row in dialogd("tasks", "--json").json["events"] if row["type"] == "PR_APPROVED"]
    assert [row.partition(", ")[2] for row in events] == ["no score, gate failed", "86 of 100, gate ran out of time"]
    assert "1 iteration, gate ran out of time, tree" in dialogd("plan", "--out", "-").out
    merge = dialogd("build", "merge").err
    assert "with tasks 001 (gate failed), 002 (gate ran out of time); " in merge, merge
    remote = dialogd.folder / "remote.git"
    gh = a_gh(dialogd, remote)
    git(repo, "init", "--quiet", "--bare", str(remote))
    git(repo, "remote", "add", "origin", str(remote))
    git(repo, "push", "--quiet", "origin", "main")
    opened = dialogd("build", "pr", "1", "--yes", PATH=f"{dialogd.folder / 'bin'}:{os.environ['PATH']}")
    assert opened.code == 0, opened.err
    assert "Approved by you without a score, gate failed (`make`); tree" in gh.read_text()


def test_what_was_approved_is_merged_by_the_persons_word(dialogd: Commands, repo: Path) -> None:
    """A commit for each task, with the checkout; said before, refused without a word, done once; edits stop it.

    `tasks` and `status` name the command until it is done, also once the result is approved; then they say merged.
    """
    room = Built(repo, yes("P1"), yes("P2"), "Both.\n")
    room.confirmed().at(dialogd)
    step = f"dialogd build merge --file {dialogd.file} takes it over"
    for end in (", or dialogd reject ", "\n"):
        tasks, status = dialogd.all([["tasks"], ["status"]])
        assert f"\nended, decided: 2 of 2 tasks approved\nnext: {step}{end}" in tasks.out
        assert f"\n  next     {step}{end}" in status.out
        assert dialogd("approve").code == 0
    before = git(repo, "rev-parse", "main")
    first, last = room.dialog.state.build.all
    asked = dialogd("build", "merge", "--anyway")
    assert (asked.code, git(repo, "rev-parse", "main")) == (1, before)
    goes = (
        f"main goes from {before[:12]} to what was approved as {last.commit[:12]}: 2 commits by Ann <ann@example.org>"
    )
    assert goes in asked.err, asked.err
    (repo / "001.py").write_text("mine")
    held = dialogd("build", "merge", "--yes", "--anyway")
    assert (held.code, git(repo, "rev-parse", "main"), (repo / "001.py").read_text()) == (1, before, "mine")
    (repo / "001.py").unlink()
    done = dialogd("build", "merge", "--yes", "--anyway")
    assert done.code == 0, done.err
    new = git(repo, "rev-list", "--reverse", f"{before}..main").split()
    assert done.out.startswith(f"main is at {new[-1][:12]} and its files in {repo}; ")
    assert git(repo, "log", "--reverse", "--format=%T", f"{before}..main").split() == [first.tree, last.tree]
    assert git(repo, "status", "--porcelain") == ""
    assert (repo / "002.py").exists()
    for mark, task, made in zip(marks(dialogd), (first, last), new, strict=True):
        assert mark.startswith(f"[TASK: {task.id} | merged | commit {made} | although ")
    again = dialogd("build", "merge", "--yes")
    assert (again.code, "nothing to merge: all is merged already" in again.err) == (1, True)
    carried = dialogd("build", "rebase", "--yes")
    assert (carried.code, "nothing can be carried: all is merged already" in carried.err) == (1, True)
    tasks, status = dialogd.all([["tasks"], ["status"]])
    assert re.findall(r"^(00\d)  (\S+)", tasks.out, re.M) == [("001", "merged"), ("002", "merged")]
    assert tasks.out.endswith("\nended, decided: 2 of 2 tasks approved and merged\n")
    assert "build merge" not in status.out


def test_what_merged_tasks_have_left_goes_by_the_persons_word(dialogd: Commands, repo: Path) -> None:
    """Shown, asked, done once; what has edits stays, and is named; a merge and `--continue` say that it can go."""
    room = Built(repo, yes("P1"), yes("P2"), "Both.\n")
    room.confirmed().at(dialogd)
    first, second = (room.trees.root / path.name for path in sorted(room.trees.root.iterdir()))
    early = dialogd("tasks", "clean", "--yes")
    nothing = "nothing can be removed: no merged or dropped task has left anything"
    assert (early.code, early.out, first.exists()) == (0, f"{nothing}\n", True)
    offer = f"worktrees of merged or dropped tasks can go: dialogd tasks clean --file {dialogd.file}\n"
    assert offer in dialogd("build", "merge", "--yes", "--anyway").err
    (second / "002.py").write_text("mine")
    asked = dialogd("tasks", "clean")
    goes, stays = (f"goes: {first}, branch dialogd/{first.name}\n", f"stays: {second.name}: {second} has edits that")
    assert (asked.code, goes in asked.err, stays in asked.err, first.exists()) == (1, True, True, True), asked.err
    assert offer in dialogd("build", "--continue").err
    done = dialogd("tasks", "clean", "--yes")
    assert (done.code, done.out.partition(";")[0]) == (0, "removed: 001"), done.err
    assert (first.exists(), (second / "002.py").read_text()) == (False, "mine")
    git(repo, "worktree", "remove", "--force", str(second))  # as it is told
    assert dialogd("tasks", "clean", "--yes").out.startswith("removed: 002; ")
    assert (room.trees.root.exists(), git(repo, "branch", "--list", "dialogd/*")) == (False, "")
    assert dialogd("tasks", "clean", "--yes").out == f"{nothing}\n"
    assert offer not in dialogd("build", "--continue").err


@pytest.mark.slow
def test_what_verify_refuses_is_merged_only_anyway_and_every_view_says_so(dialogd: Commands, repo: Path) -> None:
    made = Built(repo, yes("P1"), yes("P2"), "Both.\n").confirmed().at(dialogd)
    last, before = made.dialog.state.build.all[-1], git(repo, "rev-parse", "main")
    why = "is in no journal here"  # no daemon wrote it
    whole = dialogd.file.read_bytes()
    for words in ([], ["--yes"]):
        held = dialogd("build", "merge", *words)
        assert (held.code, git(repo, "rev-parse", "main"), dialogd.file.read_bytes()) == (1, before, whole)
        assert f"error: `dialogd tasks verify --commit {last.commit[:12]}` would refuse it: " in held.err
        assert (why in held.err, f"dialogd build merge --anyway --file {dialogd.file}" in held.err) == (True, True)
    done = dialogd("build", "merge", "--yes", "--anyway", "--commits")
    assert (done.code, git(repo, "rev-parse", "main")) == (0, last.commit), done.err
    assert "overruled: " in done.err
    _, mark = marks(dialogd)
    assert (f"merged | commit {last.commit} | although " in mark, why in mark) == (True, True)
    merged = [row for row in dialogd("tasks", "--json").json["events"] if row["type"] == "TASK_MERGED"]
    assert [why in row["fields"]["overruled"] for row in merged] == [True, True]
    flow = dialogd("show", "--project", str(repo)).out
    assert f"commit {last.commit[:12]}, although turn " in flow
    plan = dialogd("plan", "--out", "-").out
    assert plan.partition("## Tasks")[2].partition("## ")[0].count("although turn ") == 2
    assert "although turn " in dialogd("tasks").out


def test_a_branch_that_moved_is_not_merged_into(dialogd: Commands, repo: Path) -> None:
    Built(repo, yes("P1"), yes("P2"), "Both.\n").confirmed().at(dialogd)
    still = dialogd("build", "rebase", "--yes")
    assert (still.code, "main has not moved" in still.err) == (1, True)
    new = commit(repo, "more.py", "x = 1\n")
    moved = dialogd("build", "merge", "--yes")
    assert (moved.code, "main has moved since" in moved.err) == (1, True)
    assert f"fix: dialogd build rebase --file {dialogd.file}" in moved.err
    assert git(repo, "rev-parse", "main") == new
    done = dialogd("build", "rebase", "--yes")
    assert done.code == 0, done.err
    assert marks(dialogd) == [f"[TASK: all | rebase | {new}]"]
    assert "dialogd build --continue" in done.err
    state = parse(dialogd.file.read_bytes()).state
    assert (state.owing, [task.state for task in state.build.all]) == (("L",), ["confirmed", "confirmed"])


GH = """
import json, os, pathlib, subprocess, sys

words, remote, store = sys.argv[1:], {remote!r}, pathlib.Path({store!r})
if not os.environ.get("GH_TOKEN"):
    sys.exit((print("To get started with GitHub CLI, please run: gh auth login", file=sys.stderr), 4)[1])
given, known = dict(zip(words[2::2], words[3::2])), {{"create": "head base title body", "list": "head state json"}}
for flag in given:
    if flag[2:] not in known[words[1]].split():
        sys.exit("unknown flag: " + flag)


def tip(branch):
    asked = ["git", "--git-dir", remote, "rev-parse", "--verify", "-q", "refs/heads/" + branch]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip()


every = json.loads(store.read_text()) if store.exists() else []
address = "https://github.com/o/r/pull/"
same = [n for n, one in enumerate(every, 7) if one["head"] == given["--head"]]
if words[1] == "list":
    # GitHub may take a while to show what was just pushed
    heads = {{n: tip(every[n - 7]["head"]) if os.environ.get("GH_SHOWS") else every[n - 7]["at"] for n in same}}
    every = [{{"url": address + str(n), "headRefOid": heads[n]}} for n in same]
    sys.exit(print(json.dumps([{{name: one[name] for name in given["--json"].split(",")}} for one in every])))
if not tip(given["--head"]) or not tip(given["--base"]):
    sys.exit("pull request create failed: GraphQL: Head sha can't be blank (createPullRequest)")
if same:
    head, base = given["--head"], given["--base"]
    sys.exit(f'a pull request for branch "{{head}}" into branch "{{base}}" already exists:\\n{{address}}{{same[0]}}')
every.append({{**{{name[2:]: value for name, value in given.items()}}, "at": tip(given["--head"])}})
store.write_text(json.dumps(every))
print(address + str(len(every) + 6))
"""


def a_gh(dialogd: Commands, remote: Path) -> Path:
    """A `gh` on PATH that keeps the rules of the real one, beside a bare remote; the file of what it opened."""
    store, script = dialogd.folder / "requests.json", dialogd.folder / "gh.py"
    script.write_text(GH.format(remote=str(remote), store=str(store)))
    program(dialogd.folder, "gh", f'exec {shlex.join([sys.executable, str(script)])} "$@"')
    dialogd.environment["GH_TOKEN"] = "gho_test"
    return store


class Pushed:
    """A build with task 001 approved and 002 stuck, a remote named `Origin.x`, and a `gh` that knows it."""

    def __init__(self, dialogd: Commands, repo: Path) -> None:
        self.room = Built(repo, yes("P1"), no("P2"), no("P3"), no("P4")).confirmed().at(dialogd)
        self.task, self.stuck = self.room.dialog.state.build.all
        self.path = {"PATH": f"{dialogd.folder / 'bin'}:{os.environ['PATH']}"}
        self.remote = dialogd.folder / "remote.git"
        self.gh = a_gh(dialogd, self.remote)
        git(repo, "init", "--quiet", "--bare", str(self.remote))


@pytest.mark.slow
def test_a_pull_request_is_opened_by_gh_for_what_was_approved(dialogd: Commands, repo: Path) -> None:
    (dialogd.folder / "only").mkdir()
    (dialogd.folder / "only" / "git").symlink_to(shutil.which("git") or "")
    made = Pushed(dialogd, repo)
    task, gh = made.task, made.gh

    def pr(number: str, *more: str, **environment: str) -> Done:
        return dialogd("build", "pr", number, *more, **{**made.path, **environment})

    without = pr("1", "--yes", PATH=str(dialogd.folder / "only"))
    assert (without.code, "`gh` is not on PATH" in without.err) == (1, True)
    refused, alone = pr("2", "--yes"), pr("1", "--yes")
    assert (refused.code, f"task {made.stuck.id} is stuck, not approved" in refused.err) == (1, True)
    assert (alone.code, "has no remote" in alone.err) == (1, True)
    git(repo, "remote", "add", "Origin.x", str(made.remote))
    asked = pr("1")
    assert (asked.code, f"git push Origin.x {task.branch}" in asked.err, "gh pr create" in asked.err) == (1, True, True)
    assert (gh.exists(), git(made.remote, "branch")) == (False, "")
    git(repo, "push", "--quiet", "Origin.x", "main")
    out = pr("1", "--yes", GH_TOKEN="")
    assert (out.code, "gh said: To get started with GitHub CLI, please run: gh auth login" in out.err) == (1, True)
    done = pr("1", "--yes")
    assert (done.code, done.out) == (0, "https://github.com/o/r/pull/7\n"), done.err
    assert git(made.remote, "rev-parse", task.branch) == task.commit
    (opened,) = json.loads(gh.read_text())
    assert [opened[name] for name in ("head", "base", "title")] == [task.branch, "main", "read ages"]
    assert f"tree {task.tree}" in opened["body"]
    record = f"[TASK: 001 | published | https://github.com/o/r/pull/7 | number 7 | commit {task.commit}]"
    assert marks(dialogd) == [record]
    git(repo, "update-ref", f"refs/heads/{task.branch}", "main")
    again = pr("1", "--yes")
    assert (again.code, again.out, len(json.loads(gh.read_text()))) == (0, done.out, 1), again.err
    assert dialogd.file.read_text().count(record) == 1
    facts = dialogd("tasks", "--json").json
    every = {row["type"]: row["fields"] for row in facts["events"] if row["reference"] == "task-001"}
    for kind in ("PR_SUBMITTED", "PR_APPROVED", "TASK_PUBLISHED"):
        told = every[kind]["pr_url"], every[kind]["pr_number"], every[kind]["commit"]
        assert told == ("https://github.com/o/r/pull/7", 7, task.commit)
    assert facts["tasks"][0]["pr_number"] == 7
    assert "     https://github.com/o/r/pull/7\n" in dialogd("tasks").out


def test_a_pull_request_that_is_open_and_not_recorded_is_taken_as_it_is(dialogd: Commands, repo: Path) -> None:
    made = Pushed(dialogd, repo)
    task, words = made.task, ("build", "pr", "1", "--yes")
    git(repo, "remote", "add", "origin", str(made.remote))
    git(repo, "push", "--quiet", "origin", "main", f"main:refs/heads/{task.branch}")
    opened = [{"head": task.branch, "base": "main", "title": "", "body": "", "at": task.base}]
    made.gh.write_text(json.dumps(opened))
    held = dialogd(*words, **made.path)
    assert (held.code, "already exists: https://github.com/o/r/pull/7" in held.err) == (1, True), held.err
    gone = dialogd(*words, **made.path, GH_SHOWS="1")
    assert (gone.code, gone.out) == (0, "https://github.com/o/r/pull/7\n"), gone.err
    assert marks(dialogd)[0].startswith("[TASK: 001 | published | https://github.com/o/r/pull/7 | number 7 | ")
    assert len(json.loads(made.gh.read_text())) == 1
    git(repo, "update-ref", f"refs/heads/{task.branch}", "main")
    dialogd.file.write_bytes(made.room.paper.data)
    moved = dialogd(*words, **made.path)
    assert (moved.code, "is not at the commit that was approved" in moved.err) == (1, True)


def test_no_seat_confirms_accepts_allows_or_merges(dialogd: Commands, repo: Path) -> None:
    Built(repo, yes("P1"), yes("P2"), "Both.\n").confirmed().at(dialogd)
    before, main = dialogd.file.read_bytes(), git(repo, "rev-parse", "main")
    lines = [
        ["build", "merge", "--yes"], ["build", "rebase", "--yes"], ["build", "pr", "1", "--yes"], ["tasks", "confirm"],
        ["tasks", "drop", "1"], ["tasks", "retry"], ["tasks", "accept"], ["tasks", "gate", "run"],
        ["tasks", "gate", "true", "--yes"], ["tasks", "clean", "--yes"],
        ["tasks", "change", "1", "-d", "x"], ["build", "--continue"],
    ]  # fmt: skip
    with seated(dialogd, this_process(), agent="L"):
        for words, done in zip(lines, dialogd.all(lines), strict=True):
            assert (done.code, ALONE in done.err) == (1, True), (words, done)
    assert (dialogd.file.read_bytes(), git(repo, "rev-parse", "main")) == (before, main)


@contextmanager
def working(dialogd: Commands, repo: Path) -> Iterator[None]:
    """List this process as the daemon of a lead that works on a build."""
    me = psutil.Process()
    running = Running("L", 1, str(dialogd.file), me.pid, me.create_time(), repo=str(repo))
    entry = dialogd.state.registry / "1-L.json"
    entry.write_text(json.dumps(asdict(running)))
    try:
        yield
    finally:
        entry.unlink()  # before what is left of daemons is ended


@pytest.mark.slow
def test_what_an_agent_of_a_build_runs_is_not_the_person(dialogd: Commands, repo: Path) -> None:
    room = Built(repo)
    room.run()
    room.at(dialogd)
    before = dialogd.file.read_bytes()

    def below(line: str, **variables: str) -> int:
        """The exit code of a shell's child."""
        environment = {**dialogd.environment, **variables}
        shell = ["sh", "-c", f"{line}; exit $?"]
        return subprocess.run(shell, env=environment, cwd=dialogd.folder, capture_output=True, check=False).returncode

    with working(dialogd, repo):
        refused = dialogd("tasks", "confirm")
        assert (refused.code, ALONE in refused.err, "the agent that holds seat L" in refused.err) == (1, True, True)
        assert dialogd.file.read_bytes() == before
        first, second = (shlex.join(dialogd.words(["tasks", "confirm", number])) for number in "12")
        assert [below(first), below(first, **{HOOK: "on_question"})] == [1, 0]
        assert below(f"{HOOK}=1 {second}") == 1  # what its own child says of itself
    assert marks(dialogd) == ["[TASK: 001 | confirmed]"]


MODERATOR = r"""
import re, sys

prompt = sys.stdin.read()
now = prompt.split("# Your turn")[-1]
score = "[SCORE: code quality 22 | test coverage 18 | security 18 | documentation 8 | acceptance criteria 22]"
if "Answer with one line" in now:
    print(f"[DECIDE: P{max(map(int, re.findall('DECIDE: P([0-9]+)', now)))} approve]")
elif "Plan now" in now:
    print("[TASK_PROPOSED: read ages | works | none | 1 h]\n[TASK_PROPOSED: print ages | works | after 1 | 1 h]")
elif "Review this submission now" in now:
    ref = re.findall(r"You decide on (P[0-9]+)", now)[-1]
    print(f"Read.\n\n{score}\n[DECIDE: {ref} approve]")
else:
    print("Both ages are read and printed.")
"""
LEAD = r"""
import pathlib, sys, urllib.error, urllib.request

now = sys.stdin.read().split("The task, iteration")[-1]
name = "print" if "print ages" in now else "read"
pathlib.Path(f"{name}.py").write_text("# done\n")
port, said = pathlib.Path(sys.argv[1]).read_text().strip(), "nobody asked"
acts = {"tasks": b'{"act": "drop", "tasks": "all"}', "approve": b"{}", "limit": b'{"name": "max_turns", "value": 9}'}
for path, body in acts.items():
    try:
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/{path}", body, method="POST"))
        said = "it was let"
    except urllib.error.HTTPError as error:
        said = f"refused with {error.code}"
    print(f"{path}: {said}")
"""


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=f"no sandbox here: {missing()}")
def test_a_goal_is_carried_out_and_merged_also_after_everything_was_killed(dialogd: Commands, repo: Path) -> None:
    scripts = {name: dialogd.folder / f"{name}.py" for name in "ML"}
    scripts["M"].write_text(MODERATOR)
    scripts["L"].write_text(LEAD)
    port = dialogd.folder / "port"
    port.write_text("1")
    python = os.path.realpath(sys.executable)  # not the checkout's: a sandbox may hide where it lies
    agents = ["--agent", f"M=command:{shlex.join([python, str(scripts['M'])])}"]
    agents += ["--agent", f"L=command:{shlex.join([python, str(scripts['L']), str(port)])}"]
    words = ["build", "Print ages", "--repo", str(repo), "--gate", "test -e read.py", "--cycles", "0", "--yes"]

    def state() -> build.Tasks:
        return parse(dialogd.file.read_bytes()).state.build

    def states() -> list[str]:
        return [task.state for task in state().all] if dialogd.file.exists() else []

    with dialogd.background(*words, *agents, "--pace", "0") as process:
        until(lambda: states() == ["proposed", "proposed"], "a plan", lambda: dialogd.output)
        port.write_text(str(next(one.port for one in dialogd.daemons() if one.id == "M")))
        assert dialogd("tasks", "confirm").code == 0
        until(lambda: states()[:1] == ["approved"], "the first task", lambda: dialogd.output)
        process.kill()
        dialogd.end_daemons()
    dialog = parse(dialogd.file.read_bytes())
    said = next(entry.body for entry in dialog.entries if entry.by == "L")
    assert said.split("\n")[:3] == [f"{path}: refused with 409" for path in ("tasks", "approve", "limit")]
    with dialogd.background("build", "--continue", "--file", str(dialogd.file)) as process:
        assert process.wait(PATIENCE) == 0, dialogd.output
        assert f"next   dialogd build merge --file {dialogd.file} takes it over, or " in dialogd.output
    assert [task.state for task in state().all] == ["approved", "approved"]
    merged = dialogd("build", "merge", "--yes")
    assert (merged.code, "against it" in merged.err) == (0, False), merged.err
    assert {"read.py", "print.py"} <= {path.name for path in repo.iterdir()}
    assert git(repo, "log", "--format=%s").split("\n")[:2] == ["print ages", "read ages"]


PLANS = """#!/bin/sh
cat >/dev/null
printf '%s\\n' 'Two steps.' '' '[TASK_PROPOSED: read ages | works | none | 1 h]'
"""


@pytest.mark.slow
def test_the_moderator_plans_and_the_person_confirms_in_a_running_build(dialogd: Commands, repo: Path) -> None:
    planner = dialogd.folder / "plans.sh"
    planner.write_text(PLANS)
    planner.chmod(0o755)
    tools = dialogd.folder / "tools"
    tools.mkdir()
    words = ["build", "Print ages", "--repo", str(repo), "--gate", "true", "--yes", "--pace", "0"]
    words += ["--gate-sees", str(tools), *(["--setup", "true", "--setup-network"] if not missing() else [])]
    agents = ["--agent", f"M=command:{planner}", "--agent", "L=command:cat"]
    with dialogd.background(*words, *agents):
        until(lambda: dialogd.file.exists() and b"TASK_PROPOSED: read" in dialogd.file.read_bytes(), "a plan",
              lambda: dialogd.output)  # fmt: skip
        lead = dialogd.state.dialog(dialogd.file) / "start-L.json"
        until(lead.exists, "the lead's daemon", lambda: dialogd.output)
        flags = json.loads(lead.read_text())["flags"]
        assert ["--repo", str(repo)] in flags
        assert ["--gate", "true"] in flags
        assert ["--gate-sees", str(tools)] in flags
        assert (["--setup", "true"] in flags, ["--setup-network"] in flags) == (not missing(), not missing())
        moderator = json.loads((dialogd.state.dialog(dialogd.file) / "start-M.json").read_text())["flags"]
        assert (["--repo", str(repo)] in moderator, any(flag[0] == "--gate" for flag in moderator)) == (True, False)
        assert "001  proposed" in dialogd("tasks").out


def test_what_happened_to_the_tasks_is_shown_in_the_classic_form(dialogd: Commands, repo: Path) -> None:
    """`flow --project REPO` finds the build and shows it in the classic form; `tasks --json` has the same.

    In the plan a task has its score, and no review of a whole has one.
    """
    Built(repo, no("P1", "[FINDING: minor | the names]"), yes("P2"), yes("P3"), "Both.\n").confirmed().at(dialogd)
    done = dialogd("show", "--project", str(repo), "--kind", "pr-submitted", "--json")
    shown = dialogd("show", "--project", str(repo)).out
    assert "Claude M → Claude L  TASK_ASSIGNED" in shown
    assert "PR_FEEDBACK" in shown
    assert "task-002  approved, 1 iteration" in shown
    plan = dialogd("plan", "--out", "-").out
    assert ("86 of 100" in plan, "the names" in plan, "**Review:**" in plan) == (True, True, False)
    every = json.loads(dialogd("tasks", "list", "--json").out)["events"]
    assert [row["type"] for row in every][:3] == ["AGENT_READY", "TASK_PROPOSED", "TASK_PROPOSED"]
    assert [row for row in every if row["type"] == "PR_SUBMITTED"] == json.loads(done.out)
    assert every[-1]["fields"]["files_generated"] == ["002.py"]


def test_git_says_what_became_of_a_build_and_of_the_decision_it_carries_out(dialogd: Commands, repo: Path) -> None:
    decision = dialogd.folder / "decision.md"
    talk = Room(opening("A", "B", keys=["Dialog: 0dec1d"]))
    talk.says("A", "## Consensus Summary\n\nPrint ages.\n\n[CONSENSUS_REACHED]")
    talk.says("B", "[AGREE: P1]")
    decision.write_bytes(talk.paper.data)
    made = Built(repo, yes("P1"), yes("P2"), "Both.\n", rules='cycles = 0\nsource = "0dec1d"').confirmed().at(dialogd)
    first, second = made.dialog.state.build.all
    dialogd.all([["list"], ["list"]])
    dialogd("list", DIALOGD_FILE=str(decision))

    def told(which: str = "3f9a1c") -> tuple[str, str]:
        verdict = dialogd("outcome", which, "--json").json["verdict"]
        return verdict["outcome"], verdict["why"]

    early = dialogd("outcome", "3f9a1c")
    assert (early.code, "none of its trees is on the branch" in early.err) == (1, True)
    git(repo, "merge", "--quiet", "--ff-only", second.commit)
    whole = (
        f"task 001 as commit {first.commit}, tree {first.tree}; task 002 as commit {second.commit}, tree {second.tree}"
    )
    assert told() == ("worked", f"merged into main: {whole}")
    assert told("0dec1d") == told(str(decision)) == told()
    git(repo, "revert", "--no-edit", "HEAD")
    taken_back = git(repo, "rev-parse", "HEAD")
    assert told() == ("failed", f"reverted on main by commit {taken_back}: task 002, tree {second.tree}")
    git(repo, "revert", "--no-edit", "HEAD")
    assert told()[0] == "worked"
    git(repo, "reset", "--quiet", "--hard", first.base)
    git(repo, "merge", "--quiet", "--squash", second.commit)
    git(repo, "commit", "--quiet", "--message", "All of it")
    squashed = git(repo, "rev-parse", "HEAD")
    assert told()[1].count(f"as commit {squashed}") == 2


@pytest.mark.slow
@pytest.mark.parametrize("gate", ["failed", "timeout"])
def test_a_merge_whose_gate_did_not_pass_has_not_worked_by_what_git_says(
    dialogd: Commands, repo: Path, gate: str
) -> None:
    made = Built(repo, *map(no, ("P1", "P2", "P3")), yes("P4"), "Both.\n")
    made.gates = [gate] * 3
    made.confirmed()
    made.types("\n[TASK: 001 | accepted]\n")
    made.run()
    made.at(dialogd)
    first, second = made.dialog.state.build.all
    assert [first.gate, second.gate] == [gate, "passed"]
    git(repo, "merge", "--quiet", "--ff-only", first.commit)
    dialogd("list")
    said = dialogd("outcome", "3f9a1c")
    how = build.tested(first)
    assert f"git does not say how 3f9a1c turned out: task 001 was merged although its {how}\n" in said.err, said
    assert 'fix: say it: dialogd outcome 3f9a1c worked|failed "why"\n' in said.err
    git(repo, "merge", "--quiet", "--ff-only", second.commit)
    assert dialogd("outcome", "3f9a1c", "--json").json["verdict"]["outcome"] == "worked"


def test_the_tasks_of_a_project_are_told_to_what_happened_after_the_end(dialogd: Commands, repo: Path) -> None:
    Built(repo, yes("P1"), yes("P2"), "Both.\n").confirmed().at(dialogd)
    dialogd("list")
    assert dialogd("build", "merge", "--yes", "--anyway").code == 0
    elsewhere = {"DIALOGD_FILE": str(dialogd.folder / "other.md")}
    for named in (str(repo), "3f9a1c"):
        assert dialogd("show", "--project", named, **elsewhere).out.count("TASK_MERGED") == 2
    dialogd.file.unlink()
    copy = dialogd("show", "--project", str(repo), **elsewhere).out
    assert (copy.count("TASK_COMPLETED"), copy.count("TASK_MERGED")) == (2, 0)


def test_in_another_repository_the_file_of_a_build_is_to_be_named(dialogd: Commands, repo: Path) -> None:
    """The usual file holds the newest build, which may be of another project."""
    Built(repo, yes("P1"), yes("P2"), "Both.\n").confirmed().at(dialogd)
    (other := repo.parent / "other").mkdir()
    git(other, "init", "-q")
    before, main, home = dialogd.file.read_bytes(), git(repo, "rev-parse", "main"), dialogd.folder
    lines = ["build merge --yes --anyway", "build rebase --yes", "build --continue", "build pr 1", "tasks confirm"]
    lines += ["tasks retry", "tasks gate run", "tasks clean --yes", "tasks change 1 -d x"]
    dialogd.folder = other
    for line in lines:
        done = dialogd(*line.split())
        assert (done.code, f"is the build in {repo}, and you are in {other}" in done.err) == (1, True), (line, done)
        assert f"go to {repo}; or name the file" in done.err
    assert (dialogd.file.read_bytes(), git(repo, "rev-parse", "main")) == (before, main)
    assert dialogd("tasks").code == 0  # looking is free
    for where, named in ((other, [f"--file={dialogd.file}"]), (repo, []), (home, [])):
        dialogd.folder = where
        assert "is the build in" not in dialogd("tasks", "retry", *named).err


def test_a_build_that_is_not_merged_keeps_its_file(dialogd: Commands, repo: Path) -> None:
    Built(repo, yes("P1"), yes("P2"), "Both.\n").confirmed().at(dialogd)
    before = dialogd.file.read_bytes()
    refused = dialogd("new", "Tabs?")
    assert (refused.code, dialogd.file.read_bytes()) == (1, before)
    assert "holds a build whose approved tasks are not merged" in refused.err
    for way_out in ("dialogd build merge", "--replace", "--file"):
        assert way_out in refused.err
    asked = dialogd("build", "x", "--repo", str(repo), "--agents", "command:cat,command:cat", "--replace")
    warning = f"warning: {dialogd.file} holds a build whose approved tasks are not merged; --replace puts that aside"
    assert (asked.code, warning in asked.err, dialogd.file.read_bytes()) == (1, True, before)
    assert dialogd("build", "merge", "--yes", "--anyway").code == 0
    assert dialogd("new", "Tabs?").code == 0


@pytest.mark.slow
@pytest.mark.skipif(bool(BWRAP), reason=f"needs a sandbox: {BWRAP}")
def test_the_terminal_of_a_build_takes_words(dialogd: Commands, repo: Path, tmux: Tmux) -> None:
    """From the plan to an accepted task without another terminal: words, a wrong gate, a diff in the pager, Ctrl-C."""
    script = dialogd.folder / "script.json"
    plan = "[TASK_PROPOSED: read ages | works | none | 1 h]\n[TASK_PROPOSED: print ages | works | after 1 | 1 h]"
    script.write_text(json.dumps({"plan": plan, "001.1": {"read.py": "AGE = 1\n"}}))
    listener = Listener(dialogd.folder / "calls.jsonl")
    listener.held = {"work 002.1"}
    port = str(listener.server_address[1])
    command = shlex.join([os.path.realpath(sys.executable), str(ACTOR), str(script), port])
    agents = ["--agent", f"M=command:{command}", "--agent", f"L=command:{command}", "--cycles", "0"]
    tmux.type("export PAGER='cat; echo PAGED #'", "Enter")
    tmux.run(
        dialogd, "build", "Print ages", "--repo", str(repo), "--gate", "no-runner", *agents, "--pace", "0", "--yes"
    )
    for keys in (["-l", "dialogd tasks"], ["Enter"]):  # before its first look, and as a hint names it
        tmux("send-keys", *keys)

    def word(typed: str) -> None:
        tmux.type("-l", typed)
        tmux.type("Enter")

    def states() -> list[str]:
        return [task.state for task in parse(dialogd.file.read_bytes()).state.build.all]

    try:
        tmux.until("type: confirm or: change 001")
        assert "Turn 2 — M" in dialogd.file.read_text(), "a word was said to the agents"
        word("cofirm")
        tmux.until("'cofirm' is no word here; type one of: confirm, change, accept,")
        tmux.type("Escape")
        tmux.now("waiting for the person: confirm, change")
        word("confirm")
        tmux.until('type: retry "why", or retry or: gate "…" or: drop 001')
        tmux.until("its diff: Enter, or show 001")
        word("")
        tmux.until("+AGE = 1 PAGED")
        word("?")
        tmux.until("clean up behind it")
        word("show 2")
        tmux.until("task 002 has submitted nothing yet")
        word("merge")
        tmux.until("error: nothing to merge: no task is approved")
        word("gate 'grep -q AGE read.py'")
        tmux.until("Test the tasks by 'grep -q AGE read.py' from now on? [y/N]")
        word("y")
        tmux.until("the gate is 'grep -q AGE read.py' from the next tree on")
        word("retry now it doesn't lack the runner")
        tmux.until("001 tried again")
        until(lambda: states()[:1] == ["approved"], "the first task", lambda: "\n".join(tmux.lines))
        assert "[TASK: 001 | retry | now it doesn't lack the runner]" in dialogd.file.read_text()
        word("merge")
        tmux.until("Merge? [y/N]")
        tmux.type("C-c")  # ends the question, and nothing else
        tmux.until("Merge? [y/N] ^C")
        tmux.now("? help")
        word("merge --yes")
        tmux.until("and its files in")
        tmux.now("? help")
        until(lambda: states() == ["merged", "assigned"], "the second task", lambda: "\n".join(tmux.lines))
        tmux.type("C-c")
        tmux.ended(130)
    finally:
        listener.let_go()
        listener.shutdown()
        listener.server_close()
    assert (repo / "read.py").read_text() == "AGE = 1\n"
    done = dialogd("tasks", "show", "1")
    assert (done.code, "+AGE = 1\n" in done.out, done.out[:4]) == (0, True, "001 ")
    assert "has submitted nothing yet" in dialogd("tasks", "show", "2").err

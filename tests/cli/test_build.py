"""`dialogd build` and `dialogd tasks` on a real repository: what is said before, and what the person decides."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from dialogd.build.worktrees import Worktrees
from dialogd.protocol import build
from dialogd.protocol.build import Task
from dialogd.protocol.grammar import parse
from dialogd.protocol.model import USER
from tests.cli.command import Commands, program, until
from tests.cli.test_from_seats import ALONE, seated, this_process
from tests.protocol.test_build import PLAN, no, yes
from tests.support.room import Room, opening

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
        made = self.trees.submit(worktree, task.number, f"{self.dialog.state.number}:x", f"Task {task.id}")
        files = (f"{task.id}.py",)
        return build.Submission(made.branch_name, made.commit, made.tree, base, files, 1, 0, 0, 1, 0)

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
    """Repository, gate, turns, time, budget; without the person's word nothing begins."""
    (repo / "notes.txt").write_text("mine")
    words = ["build", "Print ages", "--repo", str(repo), "--gate", "make test", "--tasks", "2", "--budget", "$3"]
    done = dialogd(*words, "--agents", "rehearsal,rehearsal")
    assert done.code == 1
    for line in (
        "note: not committed, and no part of it: notes.txt\n",
        "M (Moderator): rehearsal",
        "L (Tech Lead): rehearsal",
        "goal    Print ages\n",
        f"repo    {repo}: from main at {git(repo, 'rev-parse', 'HEAD')[:12]}; its checkout is not touched\n",
        "gate    make test\n",
        "turns   at most 22: 2 tasks of up to 3 attempts, 1 improvement, a summary\n",
        "time    at most 30 minutes for a turn, 15 minutes for the gate\n",
        "budget  $3.00\n",
        "error: your word is needed, and nobody can be asked here\n  fix: say it with the command: --yes\n",
    ):
        assert line in done.err, (line, done.err)
    assert not dialogd.file.exists()
    assert "gate    none: nothing is tested" in dialogd("build", "x", "--repo", str(repo)).err


def test_a_place_without_a_repository_is_refused(dialogd: Commands, tmp_path: Path) -> None:
    """No repository, none with a commit, no goal: an error with its fix, and no file."""
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


def test_only_what_was_decided_and_approved_is_carried_out(dialogd: Commands, repo: Path) -> None:
    """By file, plan or id; the agreed text is the goal, the plan goes along; else it is refused with the way there."""
    place = ["--repo", str(repo), "--agents", "rehearsal,rehearsal"]
    source, out = dialogd.folder / "talk.md", dialogd.folder / "plans"
    run = dialogd("run", "Tabs?", "--agents", "rehearsal,rehearsal", "--pace", "0", "--file", str(source), "--no-plan")
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


def test_the_tasks_are_shown_and_decided_on(dialogd: Commands, repo: Path) -> None:
    """Each command stands in the file and says what comes next; programs get the same as facts."""
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
    assert facts["due"] == {"what": "confirm", "by": USER, "task": "001"}
    assert facts["tasks"][1]["after"] == ["001"]
    steps = [
        (["change", "2", "-d", "print years"], "changed; ", ["[TASK: 002 | changed | print years]"]),
        (["confirm", "1"], "001 confirmed; ", ["[TASK: 001 | confirmed]"]),
        (["drop", "2", "--why", "not now"], "002 dropped; L owes the next turn", ["[TASK: 002 | dropped | not now]"]),
        (["confirm", "1"], "confirmed already; ", ["[TASK: 002 | dropped | not now]"]),
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


def test_untested_work_says_so(dialogd: Commands, repo: Path) -> None:
    """In the list, among the facts, and before it is merged."""
    room = Built(repo, yes("P1"), yes("P2"), "Both.\n")
    room.gates = ["untested", "passed"]
    room.confirmed().at(dialogd)
    assert "001  approved, untested" in dialogd("tasks").out
    assert [task["untested"] for task in dialogd("tasks", "--json").json["tasks"]] == [True, False]
    assert "with tasks 001 (untested), 002; " in dialogd("build", "merge").err


def test_what_was_approved_is_merged_by_the_persons_word(dialogd: Commands, repo: Path) -> None:
    """Fast-forward, with the checkout; said before, refused without a word, done once; edits in the way stop it."""
    room = Built(repo, yes("P1"), yes("P2"), "Both.\n")
    room.confirmed().at(dialogd)
    before = git(repo, "rev-parse", "main")
    first, last = room.dialog.state.tasks.all
    asked = dialogd("build", "merge")
    assert (asked.code, git(repo, "rev-parse", "main")) == (1, before)
    assert f"main goes from {before[:12]} to {last.commit[:12]}, a fast-forward" in asked.err
    (repo / "001.py").write_text("mine")
    held = dialogd("build", "merge", "--yes")
    assert (held.code, git(repo, "rev-parse", "main"), (repo / "001.py").read_text()) == (1, before, "mine")
    (repo / "001.py").unlink()
    done = dialogd("build", "merge", "--yes")
    assert done.code == 0, done.err
    assert done.out.startswith(f"main is at {last.commit[:12]} and its files in {repo}; ")
    assert (git(repo, "rev-parse", "main"), git(repo, "status", "--porcelain")) == (last.commit, "")
    assert (repo / "002.py").exists()
    assert marks(dialogd) == [f"[TASK: {first.id}, {last.id} | merged | commit {last.commit}]"]
    again = dialogd("build", "merge", "--yes")
    assert (again.code, "merged already" in again.err) == (1, True)
    assert "003" not in dialogd("tasks").out


def test_a_branch_that_moved_is_not_merged_into(dialogd: Commands, repo: Path) -> None:
    """The way is a rebase, by a turn of the person's: every approval ends with the tree that it was for."""
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
    assert (state.owing, [task.state for task in state.tasks.all]) == (("L",), ["confirmed", "confirmed"])


def test_a_pull_request_is_opened_by_gh_for_what_was_approved(dialogd: Commands, repo: Path) -> None:
    """The branch goes to the remote and `gh` is called, once the person has said so; never without one of them."""
    room = Built(repo, yes("P1"), no("P2"), no("P3"), no("P4"))
    room.confirmed().at(dialogd)
    task, stuck = room.dialog.state.tasks.all
    path = {"PATH": f"{dialogd.folder / 'bin'}:{os.environ['PATH']}"}
    program(dialogd.folder, "gh", f'printf "%s\\n" "$@" >{dialogd.folder}/asked; echo https://example.org/pull/7')
    refused = dialogd("build", "pr", "2", "--yes", **path)
    assert (refused.code, f"task {stuck.id} is stuck, not approved" in refused.err) == (1, True)
    alone = dialogd("build", "pr", "1", "--yes", **path)
    assert (alone.code, "has no remote" in alone.err) == (1, True)
    remote = dialogd.folder / "remote.git"
    git(repo, "init", "--quiet", "--bare", str(remote))
    git(repo, "remote", "add", "Origin.x", str(remote))
    asked = dialogd("build", "pr", "1", **path)
    assert (asked.code, f"git push Origin.x {task.branch}" in asked.err, "gh pr create" in asked.err) == (1, True, True)
    assert not (dialogd.folder / "asked").exists()
    assert git(remote, "branch") == ""
    done = dialogd("build", "pr", "1", "--yes", **path)
    assert (done.code, done.out) == (0, "https://example.org/pull/7\n"), done.err
    assert git(remote, "rev-parse", task.branch) == task.commit
    said = (dialogd.folder / "asked").read_text()
    assert f"--head\n{task.branch}\n--base\nmain\n--title\nread ages\n" in said
    assert f"tree {task.tree}" in said
    git(repo, "update-ref", f"refs/heads/{task.branch}", "main")
    gone = dialogd("build", "pr", "1", "--yes", **path)
    assert (gone.code, "is not at the commit that was approved" in gone.err) == (1, True)


def test_no_seat_confirms_accepts_allows_or_merges(dialogd: Commands, repo: Path) -> None:
    """What the person says of a build comes from the person: a session that holds a seat is refused, nothing moves."""
    Built(repo, yes("P1"), yes("P2"), "Both.\n").confirmed().at(dialogd)
    before, main = dialogd.file.read_bytes(), git(repo, "rev-parse", "main")
    lines = [
        ["build", "merge", "--yes"], ["build", "rebase", "--yes"], ["build", "pr", "1", "--yes"], ["tasks", "confirm"],
        ["tasks", "drop", "1"], ["tasks", "retry"], ["tasks", "accept"], ["tasks", "gate", "run"],
        ["tasks", "change", "1", "-d", "x"], ["build", "--continue"],
    ]  # fmt: skip
    with seated(dialogd, this_process(), agent="L"):
        for words, done in zip(lines, dialogd.all(lines), strict=True):
            if words == ["build", "rebase", "--yes"]:
                assert "has not moved" in done.err
                continue
            assert (done.code, ALONE in done.err) == (1, True), (words, done)
    assert (dialogd.file.read_bytes(), git(repo, "rev-parse", "main")) == (before, main)


PLANS = """#!/bin/sh
cat >/dev/null
printf '%s\\n' 'Two steps.' '' '[TASK_PROPOSED: read ages | works | none | 1 h]'
"""


def test_the_moderator_plans_and_the_person_confirms_in_a_running_build(dialogd: Commands, repo: Path) -> None:
    """Both daemons are started with the repository, the lead's with the gate; the tasks wait for a word."""
    planner = dialogd.folder / "plans.sh"
    planner.write_text(PLANS)
    planner.chmod(0o755)
    words = ["build", "Print ages", "--repo", str(repo), "--gate", "true", "--yes", "--pace", "0"]
    agents = ["--agent", f"M=command:{planner}", "--agent", "L=command:cat"]
    with dialogd.background(*words, *agents):
        until(lambda: dialogd.file.exists() and b"TASK_PROPOSED: read" in dialogd.file.read_bytes(), "a plan",
              lambda: dialogd.output)  # fmt: skip
        flags = json.loads((dialogd.state.dialog(dialogd.file) / "start-L.json").read_text())["flags"]
        assert ["--repo", str(repo)] in flags
        assert ["--gate", "true"] in flags
        moderator = json.loads((dialogd.state.dialog(dialogd.file) / "start-M.json").read_text())["flags"]
        assert (["--repo", str(repo)] in moderator, any(flag[0] == "--gate" for flag in moderator)) == (True, False)
        assert "001  proposed" in dialogd("tasks").out

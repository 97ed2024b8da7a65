"""Builds whose daemons are killed, at every step of a task: nothing is lost, done twice, or bought twice."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from dialogd.protocol.build import APPROVED, MERGED, Due
from dialogd.protocol.certificate import faults
from dialogd.store.disk import Lock
from tests.support.pair import PATIENCE
from tests.tasks.site import BWRAP, GATE, PLAN, READ, USUAL, Site, git

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(BWRAP), reason=f"needs a sandbox: {BWRAP}"),
]

# Counts the calls of git; at those whose number stands in `kills` its caller is killed, before git or after it.
GIT = """#!/bin/sh
printf x >>'{folder}/count'
number=$(wc -c <'{folder}/count' | tr -d ' ')
if grep -qx "$number before" '{folder}/kills'; then kill -9 $PPID; exit 1; fi
'{git}' "$@"
code=$?
if grep -qx "$number after" '{folder}/kills'; then kill -9 $PPID; fi
exit $code
"""


def wrapped(folder: Path, kills: list[str]) -> dict[str, str]:
    """An environment in which git kills who calls it."""
    folder.mkdir()
    (folder / "kills").write_text("".join(f"{one}\n" for one in kills))
    (folder / "count").touch()
    program = folder / "git"
    program.write_text(GIT.format(folder=folder, git=shutil.which("git")))
    program.chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def play(site: Site, deaths: list[str], chance: random.Random | None = None) -> None:
    """Play the build to its end: daemons that died are started again; with `chance` they are killed at any moment."""
    deadline = time.monotonic() + 500
    confirmed = False
    while not site.outcome:
        assert time.monotonic() < deadline, f"no end\n{site.told_by_logs()}\n{site.text}"
        for who, daemon in site.daemons.items():
            if not daemon.running:
                deaths.append(who)
                daemon.start()
                with suppress(AssertionError):  # the next call of git may be one of the last that it makes
                    daemon.until_ready()
        if not confirmed and site.due is Due.CONFIRM:
            site.types("[TASK: all | confirmed]")
            confirmed = True
        if site.due is Due.STUCK:
            site.types("[TASK: all | retry]")
        if chance is not None and chance.random() < 0.02 and len(deaths) < 8:
            site.daemons[chance.choice("ML")].kill()
        time.sleep(0.02)


def assert_whole(site: Site, *, may_ask_again: bool) -> None:
    """Two approved tasks that stack, each submitted once an iteration; nothing is lost."""
    first, second = site.tasks
    assert [first.state, second.state] == [APPROVED, APPROVED], site.text
    for task, files in ((first, ["ages.py", "test_ages.py"]), (second, ["show.py"])):
        assert git(site.repo, "rev-parse", f"{task.commit}^{{tree}}") == task.tree
        assert git(site.repo, "diff", "--name-only", task.base, task.commit).split() == files
        records = site.text.count(f"[TASK: {task.id} | submitted | iteration {task.iteration} |")
        assert records == 1, site.text
        assert git(site.repo, "rev-parse", task.branch) == task.commit
    assert second.base == first.commit
    assert not list((site.folder / "repo.dialogd").glob(".gate-*"))
    assert git(site.repo, "fsck", "--no-dangling") == ""
    assert git(site.repo, "status", "--porcelain") == ""
    if not may_ask_again:
        assert len(site.calls) == len(set(site.calls)), site.calls


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_at_any_call_of_git_a_build_goes_on(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    kills = [f"{n} {chance.choice(('before', 'after'))}" for n in range(1, 400) if chance.random() < 0.06]
    with Site(tmp_path, environment=wrapped(tmp_path / "bin", kills)) as site:
        site.open()
        deaths: list[str] = []
        play(site, deaths)
        assert len(deaths) > 2
        assert_whole(site, may_ask_again=True)


def test_killed_at_any_moment_a_build_goes_on(tmp_path: Path) -> None:
    slow = {**USUAL, "001.1": {**READ, "run": "sleep 0.3"}}
    with Site(tmp_path, slow, gate="sleep 0.5; python3 -m unittest -q") as site:
        site.open()
        deaths: list[str] = []
        play(site, deaths, random.Random(3))
        assert_whole(site, may_ask_again=True)


# -- Step by step -----------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """Who is killed, and where: `before` or `after` a call of git, once the file says `once`; or in a test of its own.

    `again` is what is asked for, or run, a second time: what was under way, and nothing that had come to its end.
    """

    who: str
    git: str = ""
    when: str = "before"
    once: str = ""
    again: str = ""


ANY, CONFIRMED = "*", "[TASK: all | confirmed]"
STEPS = {
    "before the worktree": Step("L", "worktree", "before", CONFIRMED),
    "the worktree made, without its files": Step("L", "worktree", "after", CONFIRMED),
    "its files written, without the record": Step("L", "update-index", "after", CONFIRMED),
    "assigned, before the work": Step("L", ANY, "before", "| assigned |"),
    "in the work": Step("L", again="work 001.1"),
    "the work done, before the commit": Step("L", "commit-tree", "before", "| assigned |"),
    "the commit made, before its branch": Step("L", "commit-tree", "after", "| assigned |"),
    "the branch moved, before the submission": Step("L", "update-ref", "after", "| assigned |"),
    "all ready, without the submission": Step("L"),
    "submitted, before the gate": Step("L", ANY, "before", "| submitted |"),
    "the gate's copy half made": Step("L", "checkout-index", "before", "| submitted |"),
    "in the gate": Step("L", again="the gate"),
    "the gate at its end, without the record": Step("L", again="the gate"),
    "tested, before the review": Step("M", ANY, "before", "| passed |"),
    "in the review": Step("M", again="review 001.1"),
    "the review here, without its turn": Step("M"),
    "approved, before the next worktree": Step("L", ANY, "before", "[APPROVED: task-001"),
}

# Kills who calls it, once: before or after a call of that name, as soon as the file says what it has to.
STEPPING_GIT = """#!/bin/sh
if [ "{git}" = "*" -o "{git}" = "$1" ] && grep -qF '{once}' '{file}' && mkdir '{folder}/killed' 2>/dev/null; then
    test {when} = before || '{real}' "$@"
    kill -9 $PPID
    exit 1
fi
exec '{real}' "$@"
"""
# Notes each run of the gate.
NOTING_BWRAP = """#!/bin/sh
case "$*" in *"{gate}"*) echo run >>'{folder}/gates';; esac
exec '{real}' "$@"
"""


def programs(folder: Path, step: Step, file: Path, gate: str = GATE) -> dict[str, str]:
    """An environment in which git kills at a step, and runs of the gate are noted."""
    folder.mkdir()
    facts = {"folder": folder, "file": file, "gate": gate, **step._asdict()}
    for name, text in (("git", STEPPING_GIT), ("bwrap", NOTING_BWRAP)):
        (folder / name).write_text(text.format(**facts, real=shutil.which(name)))
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@contextmanager
def unwritable(site: Site) -> Iterator[None]:
    """Nobody can append meanwhile: what is ready waits for the lock."""
    with Lock(Path(f"{site.file}.lock"), wait=PATIENCE).held():
        yield


def is_kept(site: Site, words: bytes) -> bool:
    """True once a file of the state directory has these words."""
    for path in site.state_dir.rglob("*"):
        with suppress(IsADirectoryError, FileNotFoundError):  # some are written beside their place, and moved there
            if words in path.read_bytes():
                return True
    return False


def killed_at(site: Site, name: str) -> None:
    """Play on to that step, and kill who is at it."""
    step = STEPS[name]
    daemon = site[step.who]
    if step.git:
        site.until(lambda: not daemon.running, f"the death of {step.who}")
        return
    call = {"L": "work 001.1", "M": "review 001.1"}[step.who]
    if "gate" in name:
        site.until(lambda: list((site.folder / "repo.dialogd").glob(".gate-*/started")), "the gate to run")
        with unwritable(site):
            if name != "in the gate":
                _end_gate(site)
                site.until(lambda: list(site.state_dir.glob("logs/gate-*-001-P1.log")), "the gate's end")
            daemon.kill()
        return
    site.until(lambda: call in site.calls, call)
    if name.startswith("in the"):
        daemon.kill()
        return
    with unwritable(site):
        site.listener.let_go()
        if step.who == "L":
            site.until(lambda: "Dialogd-Debt" in git(site.repo, "log", "--branches"), "the commit")
        else:
            site.until(lambda: is_kept(site, b"[DECIDE: P1 approve]"), "the reply")
        daemon.kill()


def _end_gate(site: Site) -> None:
    """Have the gate go on that waits."""
    for started in (site.folder / "repo.dialogd").glob(".gate-*/started"):
        with suppress(FileNotFoundError):  # it has come to its end already
            started.with_name("go").touch()


@pytest.mark.parametrize("name", STEPS)
def test_killed_at_a_step_of_a_task_it_goes_on_there(tmp_path: Path, name: str) -> None:
    step = STEPS[name]
    both = name.startswith("approved")
    script = USUAL if both else {**USUAL, "plan": PLAN.partition("\n")[0]}
    gate = "touch started; until [ -e go ]; do sleep 0.05; done" if "gate at" in name or name == "in the gate" else GATE
    environment = programs(tmp_path / "bin", step, tmp_path / "talk" / "dialog.md", gate)
    with Site(tmp_path, script, gate=gate, environment=environment) as site:
        if not step.git and gate == GATE:
            calls = site.listener.lost if step.again else site.listener.held
            calls.add("work 001.1" if step.who == "L" else "review 001.1")
        site.plan()
        killed_at(site, name)
        site.listener.let_go()
        site[step.who].start()
        if gate != GATE:
            site.until(lambda: _end_gate(site) or "| passed |" in site.text, "the gate's result")
        site.until_end()
        numbers = ("001", "002") if both else ("001",)
        usual = ["plan", *(f"{what} {number}.1" for number in numbers for what in ("work", "review")), "else"]
        assert sorted(site.calls) == sorted([*usual, *([step.again] if step.again in usual else [])])
        gates = (tmp_path / "bin" / "gates").read_text().split()
        assert len(gates) == len(numbers) + (step.again == "the gate")
        assert_once(site, numbers)


def assert_once(site: Site, numbers: tuple[str, ...]) -> None:
    """Each turn, record, commit and worktree of these tasks stands there once, and nothing is left over."""
    dialog = site.dialog()
    assert dialog is not None
    assert faults(site.file.read_bytes()) == ()
    turns = [entry for entry in dialog.entries if entry.is_turn and entry.by in ("M", "L")]
    assert len(turns) == 2 + 2 * len(numbers), site.text
    assert [task.id for task in site.tasks] == list(numbers)
    for task in site.tasks:
        assert task.state == APPROVED
        for record in (f"TASK: {task.id} | assigned", f"TASK: {task.id} | submitted", f"GATE: {task.id} | passed",
                       f"TASK: {task.id} | approved", f"APPROVED: task-{task.id}"):  # fmt: skip
            assert site.text.count(f"[{record} |") == 1, site.text
        assert git(site.repo, "rev-list", f"{task.base}..{task.branch}").split() == [task.commit]
        assert git(site.repo, "rev-parse", f"{task.commit}^{{tree}}") == task.tree
    folders = {path.name.split("-")[1] for path in (site.folder / "repo.dialogd").iterdir()}
    assert folders == set(numbers)
    assert len(git(site.repo, "worktree", "list").split("\n")) == 1 + len(numbers)
    assert git(site.repo, "fsck", "--no-dangling") == ""
    assert git(site.repo, "status", "--porcelain") == ""


MERGING = [("read-tree", "before"), ("read-tree", "after"), ("update-ref", "before"), ("update-ref", "after")]


def test_a_merge_that_is_killed_at_each_step_is_made_once(tmp_path: Path) -> None:
    with Site(tmp_path, {**USUAL, "plan": PLAN.partition("\n")[0]}) as site:
        site.build()
        begun, (task,) = git(site.repo, "rev-parse", "main"), site.tasks
        for number, (word, when) in enumerate(MERGING):
            step = Step("", word, when, "[APPROVED: task-001")
            assert merge(site, programs(tmp_path / f"bin{number}", step, site.file)) == -9
            has_moved = (word, when) == MERGING[-1]
            assert (git(site.repo, "rev-parse", "main") != begun) == has_moved
            assert "| merged |" not in site.text
        assert merge(site, {}) == 0
        assert merge(site, {}) == 1
        assert [one.state for one in site.tasks] == [MERGED]
        assert site.text.count("| merged |") == 1
        assert git(site.repo, "log", "--format=%T %P", f"{begun}..main") == f"{task.tree} {begun}"
        assert f"[TASK: 001 | merged | commit {git(site.repo, 'rev-parse', 'HEAD')}]" in site.text
        assert len(git(site.repo, "reflog", "main").split("\n")) == 2
        assert git(site.repo, "status", "--porcelain") == ""
        assert faults(site.file.read_bytes()) == ()


# Kills who makes a commit: the one of that number, before or after it is made.
COMMITTING_GIT = """#!/bin/sh
[ "$1" = commit-tree ] || exec '{real}' "$@"
echo x >>'{folder}/made'
if [ $(wc -l <'{folder}/made') -ne {number} ]; then exec '{real}' "$@"; fi
test {when} = before || '{real}' "$@"
kill -9 $PPID
"""


def test_commits_of_a_merge_that_is_killed_among_them_count_for_nothing(tmp_path: Path) -> None:
    """Also of one that ends between its last commit and the branch."""
    with Site(tmp_path, USUAL) as site:
        site.build()
        before, text = git(site.repo, "for-each-ref"), site.text
        for number, when in ((1, "before"), (1, "after"), (2, "before"), (2, "after")):
            folder = tmp_path / f"{number} {when}"
            folder.mkdir()
            program = folder / "git"
            facts = {"real": shutil.which("git"), "folder": folder, "number": number, "when": when}
            program.write_text(COMMITTING_GIT.format(**facts))
            program.chmod(0o755)
            assert merge(site, {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}) == -9
            assert len((folder / "made").read_text()) == 2 * number
            assert (git(site.repo, "for-each-ref"), site.text) == (before, text)
            assert git(site.repo, "status", "--porcelain") == ""
        assert merge(site, {}) == 0
        trees = git(site.repo, "log", "--format=%T", "--max-count=2").split()
        assert trees == [task.tree for task in reversed(site.tasks)]
        assert site.text.count("| merged |") == 2
        assert faults(site.file.read_bytes()) == ()


def merge(site: Site, environment: dict[str, str]) -> int:
    """`dialogd build merge`, by the person: its exit code."""
    words = [sys.executable, "-m", "dialogd", "build", "merge", "--yes", "--file", str(site.file)]
    everything = {**site.environment, **environment}
    return subprocess.run(words, env=everything, capture_output=True, check=False, timeout=120).returncode

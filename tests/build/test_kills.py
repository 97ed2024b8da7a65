"""Builds whose daemons are killed, at every step of a task: nothing is lost, done twice, or bought twice."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import pytest

from dialogd.protocol.build import APPROVED, Due
from tests.build.site import NO_SANDBOX, READ, USUAL, Site, git

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(NO_SANDBOX), reason=f"needs a sandbox: {NO_SANDBOX}"),
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
    deadline = time.monotonic() + 200
    confirmed = False
    while not site.outcome:
        assert time.monotonic() < deadline, f"no end\n{site.told_by_logs()}\n{site.text}"
        for who, daemon in site.daemons.items():
            if not daemon.running:
                deaths.append(who)
                daemon.start()
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
    """Worktree, commit, submission, gate and review: each is made once, whatever was half done."""
    chance = random.Random(seed)
    kills = [f"{n} {chance.choice(('before', 'after'))}" for n in range(1, 400) if chance.random() < 0.06]
    with Site(tmp_path, environment=wrapped(tmp_path / "bin", kills)) as site:
        site.open()
        deaths: list[str] = []
        play(site, deaths)
        assert len(deaths) > 2
        assert_whole(site, may_ask_again=True)


def test_killed_at_any_moment_a_build_goes_on(tmp_path: Path) -> None:
    """Also between a reply and its commit, a commit and its turn, and in the middle of the gate."""
    slow = {**USUAL, "001.1": {**READ, "run": "sleep 0.3"}}
    with Site(tmp_path, slow, gate="sleep 0.5; python3 -m unittest -q") as site:
        site.open()
        deaths: list[str] = []
        play(site, deaths, random.Random(3))
        assert_whole(site, may_ask_again=True)

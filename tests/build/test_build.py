"""A build from plan to summary: real daemons, real git, a real sandbox; agents are scripted."""

from __future__ import annotations

from pathlib import Path

import pytest

from dialogd.build.sandbox import missing
from dialogd.protocol.build import APPROVED, Due
from tests.build.site import READ, USUAL, Site, git

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"needs a sandbox: {missing()}")


def test_a_plan_becomes_two_approved_commits_that_stack(tmp_path: Path) -> None:
    """What the file says of branch, commit, tree, files and lines is what git says; the checkout stays as it was."""
    with Site(tmp_path) as site:
        site.open()
        site.confirm()
        site.until_end()
        assert site.outcome == "DECIDED"
        assert site.calls == ["plan", "work 001.1", "review 001.1", "work 002.1", "review 002.1", "else"]
        first, second = site.tasks
        assert [first.state, second.state] == [APPROVED, APPROVED]
        assert git(site.repo, "rev-parse", f"{first.commit}^{{tree}}") == first.tree
        assert git(site.repo, "rev-parse", first.branch, second.branch).split() == [first.commit, second.commit]
        assert git(site.repo, "rev-parse", f"{second.commit}^") == first.commit
        assert git(site.repo, "diff", "--name-only", first.base, first.commit).split() == ["ages.py", "test_ages.py"]
        assert git(site.repo, "status", "--porcelain") == ""
        assert sorted(path.name for path in site.repo.iterdir()) == [".git", "README.md"]
        assert f"[APPROVED: task-001 | tree {first.tree} | gate {first.log} | score 86]" in site.text
        assert "| passed |" in site.text
        assert "| 2 files | +13 -0]" in site.text
        (review,) = site.prompts("review 001.1")
        assert "+def read(text):" in review
        assert "negative ages are refused" in review


def test_a_task_that_breaks_the_tests_is_done_again(tmp_path: Path) -> None:
    """A red gate blocks, whatever the reviewer says; the next attempt is told why."""
    broken = {**READ, "ages.py": "def read(text):\n    return 4\n"}
    with Site(tmp_path, {**USUAL, "001.1": broken, "001.2": READ}) as site:
        site.open()
        site.confirm()
        site.until_end()
        assert "| failed |" in site.text
        assert "the gate failed" in site.text
        assert site.tasks[0].iteration == 2
        (again,) = site.prompts("work 001.2")
        assert "the gate failed" in again


def test_a_task_that_fails_three_times_goes_to_the_person(tmp_path: Path) -> None:
    """It waits; the person accepts what there is, and the work goes on from there."""
    reviews = {f"review 001.{number}": "no" for number in (1, 2, 3)}
    with Site(tmp_path, {**USUAL, **reviews}) as site:
        site.open()
        site.confirm()
        site.until_due(Due.STUCK)
        site.types("[TASK: 001 | accepted]")
        site.until_end()
        assert [task.state for task in site.tasks] == [APPROVED, APPROVED]
        assert site.calls.count("review 001.1") == 1

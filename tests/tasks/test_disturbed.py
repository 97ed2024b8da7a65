"""Builds that are disturbed: full disks, edits and strikes of the person, questions, agents that leave."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from dialogd.protocol.build import APPROVED, Due
from dialogd.protocol.certificate import faults
from tests.tasks.site import BWRAP, PLAN, READ, USUAL, Site, git
from tests.tasks.test_kills import Step, assert_once, merge, programs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(BWRAP), reason=f"needs a sandbox: {BWRAP}"),
]

ONE = {**USUAL, "plan": PLAN.partition("\n")[0]}
WAITING_GATE = "touch started; until [ -e go ]; do sleep 0.05; done"
LARGE = 1_000_000


# -- Full disks -------------------------------------------------------------------------------------------------------


@contextmanager
def limited(site: Site, size: int) -> Iterator[None]:
    """The lead's daemon, and what it starts, can write no file beyond that size meanwhile."""
    process = psutil.Process(site["L"].pid)
    soft, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (size, hard))
    yield
    process.rlimit(psutil.RLIMIT_FSIZE, (soft, hard))


def waits_for(site: Site, *words: str) -> bool:
    """True once the lead's daemon says that it waits, in these words."""
    waiting = str((site["L"].health() or {}).get("waiting"))
    return all(word in waiting for word in words)


FULL = {
    "the worktree": ("", LARGE // 2, ("git checkout-index", "free some space")),
    "the repository's objects": ("work 001.1", LARGE // 2, ("git update-index", "free some space")),
    "the dialog's folder": ("work 001.1", 0, ("dialog.md", "file too large")),
    "the gate's copy": ("work 001.1", LARGE // 2, ("git checkout-index", "free some space")),
}


@pytest.mark.skipif(not hasattr(psutil.Process, "rlimit"), reason="this system cannot limit another process's files")
@pytest.mark.parametrize("name", FULL)
def test_a_build_waits_for_room_and_goes_on(tmp_path: Path, name: str) -> None:
    held, size, words = FULL[name]
    big = {"run": f"head -c {LARGE} /dev/urandom >big.bin"} if "objects" in name else {}
    step = Step("", "nothing")
    environment = programs(tmp_path / "bin", step, tmp_path / "talk" / "dialog.md")
    with Site(tmp_path, {**ONE, "001.1": {**READ, **big}}, environment=environment) as site:
        (site.repo / "data.bin").write_bytes(os.urandom(LARGE))
        git(site.repo, "add", "-A")
        git(site.repo, "commit", "-q", "-m", "Data")
        site.listener.held = {held}
        site.open("Read and print ages. " + "A long question. " * 3000)
        if held:
            site.confirm()
            site.until(lambda: held in site.calls, held)
        else:
            site.until_due(Due.CONFIRM)
        with limited(site, size or site.file.stat().st_size + 40):
            if not held:
                site.confirm()
            site.listener.let_go()
            site.until(lambda: waits_for(site, *words), "the lead's daemon to say what is full")
            assert site.outcome == ""
        site.until_end()
        assert site.calls == ["plan", "work 001.1", "review 001.1", "else"]
        assert (tmp_path / "bin" / "gates").read_text().split() == ["run"]
        assert_once(site, ("001",))


def test_a_gate_without_a_place_for_its_copy_names_that_place(tmp_path: Path) -> None:
    step = Step("L", "*", "before", "| submitted |")
    environment = programs(tmp_path / "bin", step, tmp_path / "talk" / "dialog.md")
    with Site(tmp_path, ONE, environment=environment) as site:
        site.plan()
        site.until(lambda: not site["L"].running, "the gate to be due")
        folder = site.folder / "repo.dialogd"
        folder.rename(site.folder / "away")
        folder.touch()
        site["L"].start()
        site.until(lambda: waits_for(site, str(folder), "the gate's copy"), "the lead's daemon to name the place")
        folder.unlink()
        (site.folder / "away").rename(folder)
        site.until_end()
        assert_once(site, ("001",))


# -- The person ---------------------------------------------------------------------------------------------------


def gates(site: Site) -> list[Path]:
    """The copies in which a gate waits."""
    return list((site.folder / "repo.dialogd").glob(".gate-*/started"))


def test_edits_in_the_worktree_while_the_gate_runs_belong_to_the_next_attempt(tmp_path: Path) -> None:
    script = {**ONE, "review 001.1": "no", "001.2": {"more.txt": "done again\n"}}
    with Site(tmp_path, script, gate=WAITING_GATE) as site:
        site.plan()
        site.until(lambda: gates(site), "the gate to run")
        (folder,) = (site.folder / "repo.dialogd").glob("task-001-*")
        (folder / "note.txt").write_text("Mind leap years.\n")
        assert not (gates(site)[0].parent / "note.txt").exists()
        site.until(lambda: gone_on(site), "the end")
        (first,), (second,) = site.prompts("review 001.1"), site.prompts("review 001.2")
        assert "Mind leap years" not in first
        assert "+Mind leap years." in second
        (task,) = site.tasks
        assert git(site.repo, "show", f"{task.commit}:note.txt") == "Mind leap years."
        assert f"| passed | tree {task.tree} |" in site.text


def gone_on(site: Site) -> str:
    """The outcome; have the gates go on that wait."""
    for started in gates(site):
        with suppress(FileNotFoundError):  # it has come to its end already
            started.with_name("go").touch()
    return site.outcome


def test_edits_after_an_approval_take_no_part_and_are_kept(tmp_path: Path) -> None:
    with Site(tmp_path, {**ONE, "review 001.2": "yes"}) as site:
        site.listener.held = {"else"}
        site.plan()
        site.until(lambda: "else" in site.calls, "the summary")
        (folder,) = (site.folder / "repo.dialogd").glob("task-001-*")
        (folder / "later.txt").write_text("A thought.\n")
        site.listener.let_go()
        site.until_end()
        (task,) = site.tasks
        assert git(site.repo, "ls-tree", "--name-only", task.commit).split() == ["README.md", "ages.py", "test_ages.py"]
        assert (folder / "later.txt").exists()
        (site.repo / "other.txt").write_text("By the person.\n")
        git(site.repo, "add", "-A")
        git(site.repo, "commit", "-q", "-m", "Meanwhile")
        site.rebase()
        site.until(lambda: site.text.count("[DECIDED]") == 2, "the second end")
        (again,) = site.tasks
        kept = [name for name in told(site) if git(site.repo, "ls-tree", "--name-only", name, "later.txt")]
        assert git(site.repo, "show", f"{kept[0]}:later.txt") == "A thought."
        assert merge(site, {}) == 0
        assert git(site.repo, "rev-parse", "main^{tree}") == again.tree
        assert not (site.repo / "later.txt").exists()


def told(site: Site) -> list[str]:
    """The names under which the file says that something is kept."""
    return [word for line in site.text.split("\n") if " is kept: git log " in line for word in line.split()
            if word.startswith("refs/dialogd/")]  # fmt: skip


def test_a_task_that_is_assigned_again_elsewhere_keeps_what_its_branch_held(tmp_path: Path) -> None:
    with Site(tmp_path, USUAL) as site:
        site.listener.held = {"work 002.1"}
        site.plan()
        site.until(lambda: "work 002.1" in site.calls, "the second task")
        (folder,) = (site.folder / "repo.dialogd").glob("task-002-*")
        (folder / "half.txt").write_text("half of it\n")  # by its lead, which is interrupted: 001 is not approved then
        dialog = site.dialog()
        assert dialog is not None
        review = next(
            entry.number for entry in dialog.entries if "[APPROVED: task-001" in " ".join(map(str, entry.marks))
        )
        new = {**READ, "ages.py": READ["ages.py"] + "# again\n"}
        site.script.write_text(json.dumps({**USUAL, "review 001.1": "no", "001.2": new}))
        site.types(f"[STRIKE: {review}]")
        site.until(lambda: site.due is Due.REVIEW, "the first task to be reviewed again")
        site.listener.let_go()
        site.until_end()
        first, second = site.tasks
        assert [first.state, second.state] == [APPROVED, APPROVED]
        assert (first.iteration, second.base) == (2, first.commit)
        assert git(site.repo, "diff", "--name-only", second.base, second.commit).split() == ["show.py"]
        (kept,) = told(site)
        assert "half.txt" in git(site.repo, "ls-tree", "--name-only", kept).split()
        assert faults(site.file.read_bytes()) == ()


# -- The agents ---------------------------------------------------------------------------------------------------


def test_a_question_of_the_lead_keeps_its_edits_and_its_attempt(tmp_path: Path) -> None:
    asks = {"half.txt": "half of it\n", "end": "Years or days?\n\n[QUESTION_FOR_USER: years or days?]"}
    with Site(tmp_path, {**ONE, "001.1": asks}) as site:
        site.plan()
        site.until(lambda: "[QUESTION_FOR_USER: years or days?" in site.text, "the question")
        (task,) = site.tasks
        assert (task.state, task.iteration, task.commit) == ("assigned", 1, "")
        assert "| submitted |" not in site.text
        (folder,) = (site.folder / "repo.dialogd").glob("task-001-*")
        assert (folder / "half.txt").read_text() == "half of it\n"
        site.script.write_text(json.dumps(ONE))
        site.types("Years.\n\nTURN: L")
        site.until_end()
        (task,) = site.tasks
        assert (task.state, task.iteration) == (APPROVED, 1)
        files = git(site.repo, "diff", "--name-only", task.base, task.commit).split()
        assert files == ["ages.py", "half.txt", "test_ages.py"]
        assert site.calls.count("work 001.1") == 2
        assert faults(site.file.read_bytes()) == ()


@pytest.mark.parametrize(("who", "call"), [("L", "work 001.1"), ("M", "review 001.1")])
def test_an_agent_that_leaves_at_work_comes_back_to_it(tmp_path: Path, who: str, call: str) -> None:
    with Site(tmp_path, ONE) as site:
        site.listener.lost = {call}
        site.plan()
        site.until(lambda: call in site.calls, call)
        (before,) = site.tasks
        site.types(f"[LEAVE: {who}]")
        other = site["M" if who == "L" else "L"]
        wanted = f"`invite {who}` has it back"
        site.until(lambda: wanted in str((other.health() or {}).get("waiting")), "what brings it back")
        assert site.tasks == (before,)
        site.types(f"[INVITE: {who} = Claude {who} @ {site.url(who)}]")
        site.until_end()
        assert site.tasks[0].iteration == 1
        assert site.calls.count(call) == 2
        assert_once(site, ("001",))

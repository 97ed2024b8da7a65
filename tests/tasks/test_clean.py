"""What merged and dropped tasks have left goes by the person's word; what is somebody's stays, and nothing needs it."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dialogd import person
from dialogd.errors import DialogdError, Refused
from dialogd.protocol.build import APPROVED, CONFIRMED, DROPPED, MERGED, SUBMITTED
from dialogd.tasks.approvals import Judge, fates
from dialogd.tasks.git import Git
from dialogd.tasks.worktrees import Leftover, Worktrees
from tests.protocol.test_build import no, yes
from tests.support.pair import PATIENCE
from tests.tasks.repos import Repo, a_repo, tree, write
from tests.tasks.site import git
from tests.tasks.test_merge import Merging, repo
from tests.tasks.test_worktree_kills import a_killing_git

__all__ = ["repo"]  # a fixture

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD, FIRST = "3f9a1c", "refs/heads/first"
NAME = "task-001-read-ages"


def begun(repo: Repo, build: str = BUILD, *, beside: bool = True) -> Path:
    """The worktree of a task that was submitted, with all that may lie beside it."""
    repo.git("branch", "-f", "first", "main")
    trees = Worktrees(repo.path, build=build)
    worktree = trees.open(1, "read ages", FIRST)
    write(worktree.path, {"ages.py": f"# {build}\n", ".gitignore": "/out/\n"})
    trees.submit(worktree, 1, "2:abc", "done")
    write(worktree.path, {"out/made": "by its tests\n"})
    there = [f".{kind}-{name}.0123abcd" for kind in ("kit", "setup") for name in (worktree.name, trees.trial)]
    there += [f".gate-{build}-{name}abcdefgh" for name in ("", "L.")]
    write(trees.root, {f"{name}/tree/x": "x\n" for name in there if beside})
    return worktree.path


def left(path: Path, build: str = BUILD, *, is_idle: bool = True) -> list[Leftover]:
    """What is left of the first task of a build."""
    return list(Worktrees(path, build=build).leftovers({1}, is_idle=is_idle))


def clean(path: Path, build: str = BUILD) -> None:
    """Remove it."""
    for one in left(path, build):
        Worktrees(path, build=build).clear(one)


def known(repo: Repo) -> list[str]:
    """All names of commits, and all worktrees, that the repository has."""
    names = repo.git("for-each-ref", "--format=%(refname)").split("\n")
    return [*names, *re.findall("^worktree (.*)", repo.git("worktree", "list", "--porcelain"), re.M)]


def test_worktree_branch_and_what_was_made_beside_them_go(tmp_path: Path) -> None:
    """The last commit keeps a name, so that no `git gc` removes it; the person's own things are as they were."""
    repo = a_repo(tmp_path)
    (tmp_path / "a project.dialogd").mkdir(mode=0o700)
    (tmp_path / "a project.dialogd" / ".hidden").mkdir()  # the person's
    before, mine, path = known(repo), tree(repo.path), begun(repo)
    tip = repo.git("rev-parse", f"dialogd/{NAME}")
    (one,) = left(repo.path)
    assert one.words == f"goes: {path}, branch dialogd/{NAME}, 6 setup or gate folders"
    assert len(left(repo.path, is_idle=False)[0].hidden) == 4  # a gate may be running
    clean(repo.path)
    assert set(known(repo)) - set(before) == {f"refs/dialogd/{BUILD}/{NAME}/tip", FIRST}
    assert [one.name for one in path.parent.iterdir()] == [".hidden"]
    assert (tree(repo.path), repo.git("status", "--porcelain"), left(repo.path)) == (mine, "", [])
    repo.git("gc", "-q", "--prune=now")
    assert repo.git("cat-file", "-t", tip) == "commit"


def test_nothing_of_another_build_goes(tmp_path: Path) -> None:
    """Neither of one whose task has the same title, nor of one that begins it later."""
    repo = a_repo(tmp_path)
    begun(repo)
    other = begun(repo, "777777")
    assert other.name == f"{NAME}-2"
    names = [name for name in known(repo) if "777777" in name or f"{NAME}-2" in name]
    before = tree(other.parent)
    assert len(names) == 4
    clean(repo.path)
    assert set(names) <= set(known(repo))
    assert tree(other.parent) == {name: it for name, it in before.items() if NAME + "-2" in name or "7777" in name or
                                  Worktrees(repo.path, build="777777").trial in name}  # fmt: skip
    third = begun(repo, "888888")
    assert third.name == f"{NAME}-3"  # a name that the first one may need once more
    clean(repo.path)
    assert third.is_dir()
    clean(repo.path, "777777")
    clean(repo.path, "888888")
    assert not third.parent.exists()


def _edit(repo: Repo, path: Path) -> None:
    write(path, {"ages.py": "mine\n"})


def _add(repo: Repo, path: Path) -> None:
    write(path, {"new": "mine\n"})


def _lock(repo: Repo, path: Path) -> None:
    repo.git("worktree", "lock", str(path))


def _commit(repo: Repo, path: Path) -> None:
    repo.git("commit", "-q", "--allow-empty", "-m", "mine", cwd=path)


def _commit_alone(repo: Repo, path: Path) -> None:
    _commit(repo, path)
    repo.git("worktree", "remove", "--force", str(path))


def _switch(repo: Repo, path: Path) -> None:
    repo.git("switch", "-q", "-c", "mine", cwd=path)


def _move(repo: Repo, path: Path) -> None:
    repo.git("worktree", "move", str(path), str(path.with_name("mine")))


def _move_and_link(repo: Repo, path: Path) -> None:
    _move(repo, path)
    path.symlink_to("mine")


def _check_out(repo: Repo, path: Path) -> None:
    repo.git("worktree", "remove", "--force", str(path))
    repo.git("switch", "-q", f"dialogd/{NAME}")


def _nest(repo: Repo, path: Path) -> None:
    repo.git("init", "-q", str(path / "inner"))


def _forget(repo: Repo, path: Path) -> None:
    shutil.rmtree(repo.path / ".git" / "worktrees")


KEPT: dict[str, tuple[Callable[[Repo, Path], None], str]] = {
    "an edit": (_edit, f"has edits that are in no commit; .*git worktree remove --force '.*/{NAME}'"),
    "a new file": (_add, "has edits that are in no commit; "),
    "locked": (_lock, "is locked, or no worktree of this repository; git worktree unlock '.*', or move it away"),
    "a commit of theirs": (_commit, f"somebody moved dialogd/{NAME}: .* goes back; files stay as they are"),
    "one without a worktree": (_commit_alone, f"somebody moved its branch; .*git branch -D dialogd/{NAME}"),
    "another branch in it": (_switch, f"another branch than dialogd/{NAME} is checked out in .*; go back: "),
    "moved elsewhere": (_move, "its branch is checked out in .*/mine; check out another one there"),
    "moved, with a link": (_move_and_link, "is locked, or no worktree of this repository; "),
    "checked out by them": (_check_out, "its branch is checked out in .*/a project; "),
    "a repository inside": (_nest, "a repository is inside of .*; see who put it there"),
    "no worktree any more": (_forget, "is locked, or no worktree of this repository; "),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_is_somebody_s_stays_and_is_named(tmp_path: Path, case: str) -> None:
    theirs, words = KEPT[case]
    repo = a_repo(tmp_path)
    path = begun(repo)
    theirs(repo, path)
    before, files = known(repo), tree(path.parent)
    (one,) = left(repo.path)
    assert one.stays
    assert re.fullmatch(f"stays: {NAME}: .*{words}.*", one.words), one.words
    with pytest.raises(DialogdError):
        clean(repo.path)
    assert (known(repo), tree(path.parent)) == (before, files)


# -- Killed -----------------------------------------------------------------------------------------------------------


def run(path: Path, bin_: str = "") -> None:
    """Clean, in a process of its own, with that git."""
    if bin_:
        os.environ["PATH"] = f"{bin_}:{os.environ['PATH']}"
    clean(path)


def killed(repo: Repo, bin_: Path) -> int | None:
    """Clean until it is killed; the exit code."""
    process = multiprocessing.get_context("forkserver").Process(target=run, args=(repo.path, str(bin_)))
    process.start()
    process.join(PATIENCE)
    return process.exitcode


def outcome(repo: Repo) -> object:
    """All that must be the same, killed or not."""
    repo.git("fsck", "--strict")
    names = [name.removeprefix(str(repo.path.parent)) for name in known(repo)]
    return names, sorted(path.name for path in repo.path.parent.iterdir() if "a project" in path.name)


def prepared(folder: Path) -> Repo:
    """A repository in which a task is to be cleaned up."""
    folder.mkdir()
    repo = a_repo(folder)
    begun(repo, beside=False)
    return repo


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_call_of_git_the_same_again_does_the_rest(tmp_path: Path, when: str) -> None:
    rehearsal = prepared(tmp_path / "rehearsal")
    run(rehearsal.path)
    for number, what in enumerate(("write-tree", "worktree", "update-ref", "update-ref")):
        among = ("worktree", "update-ref") if number else ("write-tree",)  # all that it does before is to look
        repo = prepared(tmp_path / str(number))
        assert killed(repo, a_killing_git(tmp_path / f"bin-{number}", number or 1, when, among)) == -9
        assert left(repo.path) or (number, when) == (3, "after")
        run(repo.path)
        assert outcome(repo) == outcome(rehearsal), f"killed {when} {what}, {number}"


@pytest.mark.slow
@pytest.mark.ptrace
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_killed_at_any_change_of_a_folder_the_same_again_does_the_rest(tmp_path: Path) -> None:
    """Where git died and left a lock, what the error tells to do is done."""
    run((rehearsal := prepared(tmp_path / "rehearsal")).path)
    calls = "rename,renameat,renameat2,rmdir,unlink,unlinkat"
    for number in range(1, 80):
        repo = prepared(tmp_path / str(number))
        words = ["strace", "-f", "-q", "-o", str(tmp_path / "trace"), "-e", f"trace={calls}",
                 "-e", f"inject={calls}:signal=SIGKILL:when={number}",
                 sys.executable, "-B", "-m", "tests.tasks.test_clean", str(repo.path)]  # fmt: skip
        done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=100)
        if "not permitted" in done.stderr.lower() and not (tmp_path / "trace").stat().st_size:
            pytest.skip(f"may not trace here: {done.stderr.strip()[:100]}")
        for _ in range(3):
            try:
                run(repo.path)
                break
            except DialogdError as error:
                (lock,) = re.findall(r"rm '(.*)'", error.fix) or [f"{error}; {error.fix}"]
                Path(lock).unlink()
        assert outcome(repo) == outcome(rehearsal), f"killed at change {number}"
        if done.returncode == 0:
            assert number > 3
            return
    raise AssertionError("it never came to its end")


# -- What comes afterwards --------------------------------------------------------------------------------------------


def cleaned(build: Merging, repo: Path, named: str = "all") -> None:
    """Clean up behind a build, and have git forget what has no name."""
    person.clean_up(build.kept, repo, named)
    git(repo, "gc", "-q", "--prune=now")


@pytest.mark.parametrize("commits", [False, True])
def test_what_was_merged_still_holds_and_the_build_goes_on(repo: Path, commits: bool) -> None:
    build = Merging(repo, no("P1"), yes("P2"), yes("P3"), "Both.\n")
    begun = git(repo, "rev-parse", "main")
    cleaned(build, repo)
    assert len(git(repo, "worktree", "list").split("\n")) == 3  # what is approved is not merged yet
    build.merge(commits=commits)
    cleaned(build, repo)
    assert git(repo, "branch", "--list", "dialogd/*") == ""
    assert len(git(repo, "worktree", "list").split("\n")) == 1
    trees, (first, second) = Worktrees(repo, build="3f9a1c"), build.tasks
    assert [trees.diff(one.base, one.commit, 1000).stat for one in (first, second)] == ["1 file, +1 -0"] * 2
    build.more("print months")
    build.merge(commits=commits)
    cleaned(build, repo)
    assert [build.approved(one.merged, begun) for one in build.tasks] == [(), (), ()]
    found = Judge(build.paper.data).approvals
    kept = {fate.approval.task.id: fate.commit for fate in fates(Git(repo / ".git"), found, "main")}
    assert kept == {one.id: one.merged for one in build.tasks}
    with pytest.raises(Refused, match="all is merged already"):
        build.offer()


def test_a_task_that_stands_on_a_cleaned_one_is_taken_over(repo: Path) -> None:
    build = Merging(repo, yes("P1"), no("P2"), no("P3"), no("P4"))
    build.merge()
    cleaned(build, repo)
    assert [one.state for one in build.tasks] == [MERGED, "stuck"]
    person.tasks(build.log, "accept")
    (two,) = build.merge()
    assert git(repo, "rev-parse", f"{two}^{{tree}}") == build.tasks[1].tree


def test_a_dropped_task_that_comes_back_goes_on_where_it_was(repo: Path) -> None:
    build = Merging(repo, no("P1"))
    trees, first = Worktrees(repo, build="3f9a1c"), build.tasks[0]
    assert first.state == SUBMITTED  # for the second time
    person.tasks(build.log, "drop", "1")
    turn = str(build.dialog.state.number)
    assert build.tasks[0].state == DROPPED
    cleaned(build, repo)
    assert git(repo, "branch", "--list", "dialogd/*001*") == ""
    person.strike(build.log, turn)
    assert (build.tasks[0].state, build.tasks[1].state) == (SUBMITTED, CONFIRMED)
    worktree = trees.open(1, first.description, first.base)
    assert (worktree.path / "001.py").read_text() == "# attempt 2\n"
    assert git(repo, "rev-parse", f"dialogd/{worktree.name}") == first.commit
    build.scripts["M"] = [yes("P2"), yes("P3"), "Both.\n"]
    build.run()
    assert [one.state for one in build.tasks] == [APPROVED, APPROVED]
    one, _ = build.merge()
    assert build.approved(one) == ()


if __name__ == "__main__":
    run(Path(sys.argv[1]))

"""Killed at each step of a task's git: the same call again makes it whole, nothing is lost, nothing is done twice."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from dialogd.errors import DialogdError
from dialogd.protocol.build import Submission
from dialogd.tasks.worktrees import Worktrees
from tests.support.pair import PATIENCE
from tests.tasks.repos import Repo, a_repo, tree, write

REPOSITORY = Path(__file__).resolve().parents[2]
CHANGING = ("worktree", "update-ref", "read-tree", "update-index", "checkout-index", "write-tree", "commit-tree",
            "merge-tree")  # fmt: skip
FIRST = "refs/heads/first"


def _opened(repo: Repo) -> None:
    repo.git("branch", "first", "HEAD")


def _edited(repo: Repo) -> None:
    """A worktree with half-made edits: added, changed, removed, renamed, a link."""
    _opened(repo)
    path = Worktrees(repo.path).open(1, "task", FIRST).path
    write(path, {"a.txt": "one\nagent\n", "new/deep/x": "x\n", "bin": bytes(range(256))})
    (path / "src" / "b.py").rename(path / "moved.py")
    (path / "link").symlink_to("a.txt")


def _moved(repo: Repo) -> None:
    """A submission, and a base that moved: files added, changed, removed, a folder in place of a file."""
    _edited(repo)
    _submit(repo.path)
    (repo.path / "src" / "c.py").unlink()
    repo.commit({"src/c.py/now": "a folder\n", "other": "o\n", "sub/y": "y\n"}, "meanwhile")


def _submitted(repo: Repo) -> None:
    _edited(repo)
    _submit(repo.path)


def _open(path: Path) -> None:
    Worktrees(path).open(1, "task", FIRST)


def _keep(path: Path) -> None:
    trees = Worktrees(path)
    trees.keep(trees.open(1, "task", FIRST), "kept")


def _submit(path: Path) -> Submission:
    trees = Worktrees(path)
    return trees.submit(trees.open(1, "task", FIRST), 1, "2:abc", "done")


def _carry(path: Path) -> None:
    trees = Worktrees(path)
    worktree = trees.open(1, "task", FIRST)
    commit = trees.git.commit("refs/kept")
    carried = trees.carry(worktree, [commit], "main")
    assert isinstance(carried, Submission)


def _forward(path: Path) -> None:
    trees = Worktrees(path)
    trees.forward("main", "dialogd/task-001-task")


DOING: dict[str, tuple[Callable[[Repo], None], Callable[[Path], object]]] = {
    "open": (_opened, _open),
    "keep": (_edited, _keep),
    "submit": (_edited, _submit),
    "carry": (_moved, _carry),
    "forward": (_submitted, _forward),
}


def prepared(folder: Path, doing: str) -> Repo:
    """A repository in which that is next."""
    folder.mkdir()
    repo = a_repo(folder)
    DOING[doing][0](repo)
    if doing == "carry":
        repo.git("update-ref", "refs/kept", "dialogd/task-001-task")
    return repo


def outcome(repo: Repo) -> dict[str, object]:
    """All that must be the same, killed or not; ids of commits have the time in them."""
    path = repo.path.parent / "a project.dialogd"
    repo.git("fsck", "--strict")
    return {
        "messages": repo.git("log", "--format=%B", "dialogd/task-001-task"),
        "tree": repo.git("rev-parse", "dialogd/task-001-task^{tree}"),
        "main": repo.git("rev-parse", "main^{tree}"),
        "files": tree(path / "task-001-task"),
        "mine": tree(repo.path),
        "status": repo.git("status", "--porcelain", "-b", cwd=path / "task-001-task") + repo.git("status", "-s"),
        "beside": sorted(inside.name for inside in path.iterdir()),
        "worktrees": len(repo.git("worktree", "list").split("\n")),
    }


def run(path: Path, doing: str, bin_: str = "") -> None:
    """Do it, in a process of its own, with that git."""
    if bin_:
        os.environ["PATH"] = f"{bin_}:{os.environ['PATH']}"
    DOING[doing][1](path)


def a_killing_git(folder: Path, at: int, when: str, among: Collection[str] = ()) -> Path:
    """A folder with a git that ends whoever called it, before or after its call number `at`, and logs all calls.

    With `among` only calls of these names are counted and logged.
    """
    folder.mkdir()
    kill = "kill -9 $PPID"
    (folder / "git").write_text(
        f"""#!/bin/sh
        case "${{1}}" in {"|".join(among) or "*"}) ;; *) exec '{shutil.which("git")}' "$@" ;; esac
        echo "$1" >> '{folder}/calls'
        test $(wc -l < '{folder}/calls') = {at} || exec '{shutil.which("git")}' "$@"
        {kill if when == "before" else ""}
        test {when} = before || '{shutil.which("git")}' "$@"
        {kill}
        """
    )
    (folder / "git").chmod(0o755)
    return folder


def killed(repo: Repo, doing: str, bin_: Path) -> int | None:
    """Do it until it is killed; the exit code."""
    process = multiprocessing.get_context("forkserver").Process(target=run, args=(repo.path, doing, str(bin_)))
    process.start()
    process.join(PATIENCE)
    return process.exitcode


def points(tmp_path: Path, doing: str) -> Iterator[tuple[int, str]]:
    """Number and name of each call of git that changes something."""
    bin_ = a_killing_git(tmp_path / "counting", -1, "after")
    assert killed(prepared(tmp_path / "rehearsal", doing), doing, bin_) == 0
    for number, call in enumerate((bin_ / "calls").read_text().split(), start=1):
        if call in CHANGING:
            yield number, call


def assert_kills_change_nothing(tmp_path: Path, doing: str, when: str, calls: Collection[str]) -> None:
    """Killed at each of these calls, then done again: as if nothing had been."""
    todo = [(number, call) for number, call in points(tmp_path, doing) if call in calls]
    assert len(todo) >= 2
    expected = outcome(Repo(tmp_path / "rehearsal" / "a project", tmp_path / "rehearsal" / "home"))
    for number, call in todo:
        folder = tmp_path / f"{when}-{number}"
        repo = prepared(folder, doing)
        assert killed(repo, doing, a_killing_git(tmp_path / f"bin-{when}-{number}", number, when)) == -9
        run(repo.path, doing)
        assert outcome(repo) == expected, f"killed {when} {call}, call {number}"


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("doing", DOING)
def test_whatever_is_killed_is_made_whole(tmp_path: Path, doing: str, when: str) -> None:
    assert_kills_change_nothing(tmp_path, doing, when, CHANGING)


@pytest.mark.slow
@pytest.mark.ptrace
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("doing", ["open", "carry", "submit"])
def test_killed_at_any_change_of_a_folder_it_is_made_whole(tmp_path: Path, doing: str) -> None:
    """Each process, ours and git's, is killed at its first, second, … rename, mkdir, unlink or link.

    Where git died and left a lock, what the error tells to do is done.
    """
    run((rehearsal := prepared(tmp_path / "rehearsal", doing)).path, doing)
    expected = outcome(rehearsal)
    calls = "rename,renameat,renameat2,mkdir,mkdirat,unlink,unlinkat,symlink,symlinkat,link"
    for number in range(1, 60):
        repo = prepared(tmp_path / str(number), doing)
        words = ["strace", "-f", "-q", "-o", str(tmp_path / "trace"), "-e", f"trace={calls}",
                 "-e", f"inject={calls}:signal=SIGKILL:when={number}",
                 sys.executable, "-B", "-m", "tests.tasks.test_worktree_kills", str(repo.path), doing]  # fmt: skip
        done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=100)
        if "not permitted" in done.stderr.lower() and not (tmp_path / "trace").stat().st_size:
            pytest.skip(f"may not trace here: {done.stderr.strip()[:100]}")
        while locks := told_to_remove(repo, doing):
            assert len(locks) == 1, f"killed at change {number}"
            Path(locks[0]).unlink()
        assert outcome(repo) == expected, f"killed at change {number}"
        if done.returncode == 0:
            assert number > 3
            return
    raise AssertionError("it never came to its end")


def told_to_remove(repo: Repo, doing: str) -> list[str]:
    """Do it again: nothing where it succeeds, else the lock that the error says to remove."""
    try:
        run(repo.path, doing)
    except DialogdError as error:
        return re.findall(r"rm '(.*)'", error.fix) or [f"{error}", error.fix]
    return []


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])

"""Git as dialogd runs it: no program that a repository, a worktree or a home names; bounded; with clear words."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from dialogd.errors import DialogdError, Refused, StorageError
from dialogd.protocol.build import Submission
from dialogd.tasks.git import Git, checkout_at, shown
from dialogd.tasks.worktrees import Conflict, Worktree, Worktrees, base_of
from tests.tasks.repos import HOOKS, Plants, Repo, a_repo, write

ATTRIBUTES = (
    "* filter=planted diff=planted merge=planted\n*.long filter=long diff=commanded\n"
    "c.py working-tree-encoding=UTF-16 ident eol=crlf text\n"
)
REPOSITORY = Path(__file__).resolve().parents[2]


def planted(repo: Repo, plants: Plants, where: str) -> None:
    """Every program, in the repository's own settings, in a file that these include, or in the person's."""
    git_dir, settings = repo.path / ".git", plants.settings()
    hooks = git_dir / "hooks" if where == "own" else plants.folder / "hooks"
    hooks.mkdir(parents=True, exist_ok=True)
    for name in HOOKS:
        shutil.copy(plants.program(f"hook-{name}"), hooks / name)
    if where != "own":
        settings["core.hooksPath"] = str(hooks)
    if where == "own":
        write(git_dir, {"info/attributes": ATTRIBUTES})
    else:
        settings["core.attributesFile"] = str(plants.folder / "attributes")
        write(plants.folder, {"attributes": ATTRIBUTES})
    file = {"own": git_dir / "config", "included": plants.folder / "more", "home": repo.home / ".gitconfig"}[where]
    for name, value in settings.items():
        repo.git("config", "--file", str(file), name, value)
    if where == "included":
        repo.git("config", "include.path", str(file))


def by_hand(repo: Repo) -> None:
    """What a person would do without a thought in such a repository."""
    repo.write({"a.txt": "by hand\n", "new.long": "long\n"})
    for words in (
        ["status"], ["add", "new.long"], ["add", "a.txt"], ["diff", "HEAD"], ["commit", "-m", "x"],
        ["commit", "--no-gpg-sign", "-m", "x"], ["diff", "--no-ext-diff", "HEAD", "moved"],
        ["merge", "--no-edit", "moved"], ["checkout", "-q", "-f", "-b", "other", "moved"], ["wt"], ["fetch"],
    ):  # fmt: skip
        repo.git(*words, may_fail=True)


def a_whole_build(repo: Repo, moved: str) -> None:
    """All that dialogd does with a repository, one thing after the other."""
    base = base_of(repo.path)
    trees = Worktrees(repo.path)
    worktree = trees.open(1, "first", base.commit)
    write(worktree.path, {"a.txt": "one\nmore\n", "new.long": "long\n", ".gitattributes": ATTRIBUTES})
    (worktree.path / "src" / "b.py").rename(worktree.path / "src" / "d.py")
    kept = trees.keep(worktree, "half")
    write(worktree.path, {"src/c.py": "y = 3\n"})
    submission = trees.submit(worktree, 1, "2:abc", "whole")
    diff = trees.diff(base.commit, submission.commit, 100_000)
    assert {file.path for file in diff.files} == {".gitattributes", "a.txt", "new.long", "src/c.py", "src/d.py"}
    assert all(file.patch.startswith("diff --git") for file in diff.files)
    trees.export(submission.commit, repo.home / "exported")
    assert (repo.home / "exported" / "src" / "c.py").read_bytes() == b"y = 3\n"
    carried = trees.carry(worktree, [kept, submission.commit], moved)
    assert isinstance(carried, Conflict)
    assert carried.files == ("a.txt",)
    assert trees.forward("unused", submission.commit) is None
    assert trees.tree_of(submission.commit) == submission.tree
    for one in trees.leftovers({1}, is_idle=True):
        trees.clear(one)
    assert not trees.root.exists()


@pytest.mark.parametrize("where", ["own", "included", "home"])
def test_none_of_the_programs_that_git_would_run_runs(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, plants = a_repo(tmp_path), Plants(tmp_path / "plants")
    first = repo.git("rev-parse", "HEAD")
    moved = repo.commit({"a.txt": "moved\n", "z.txt": "z\n"}, "moved")
    repo.git("branch", "moved")
    repo.git("reset", "-q", "--hard", first)
    repo.commit({"a.txt": "first\n"})
    repo.git("branch", "unused", first)
    planted(repo, plants, where)
    monkeypatch.setenv("HOME", str(repo.home))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", plants.program("external-env"))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", f"'core.fsmonitor'='{plants.program('fsmonitor-env')}'")
    monkeypatch.setenv("GIT_TRACE", str(tmp_path / "trace"))
    plants.forget()
    a_whole_build(repo, moved)
    assert plants.ran == set()
    assert not (tmp_path / "trace").exists()
    by_hand(repo)
    fired = {"fsmonitor", "clean", "process", "smudge", "external", "textconv", "gpg", "alias", "remote", "merge"}
    fired |= {f"hook-{name}" for name in ("post-checkout", "reference-transaction", "pre-commit", "post-index-change")}
    assert fired <= plants.ran, f"plants that never run show nothing: {fired - plants.ran}"


@pytest.mark.parametrize("where", ["own", "included", "home"])
def test_two_tasks_at_once_run_nothing_of_it_and_stand_on_one_another(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, plants = a_repo(tmp_path), Plants(tmp_path / "plants")
    planted(repo, plants, where)
    monkeypatch.setenv("HOME", str(repo.home))
    plants.forget()
    base, together = base_of(repo.path).commit, threading.Barrier(3)

    def work(number: int) -> tuple[Worktrees, Worktree, Submission]:
        trees = Worktrees(repo.path)
        together.wait()
        worktree = trees.open(number, "side by side", base)
        write(worktree.path, {f"{number}.txt": f"{number}\n", ".gitattributes": ATTRIBUTES})
        return trees, worktree, trees.submit(worktree, number, f"{number}:abc", "done")

    with ThreadPoolExecutor(3) as pool:
        (_, _, below), *others = pool.map(work, (1, 2, 3))
    for trees, worktree, made in others:
        carried = trees.carry(worktree, [made.commit], below.commit)
        assert isinstance(carried, Submission)
        assert carried.base == below.commit
        below = carried
    assert set(repo.git("ls-tree", "--name-only", below.tree).split()) >= {"1.txt", "2.txt", "3.txt", ".gitattributes"}
    assert plants.ran == set()


def test_programs_of_repositories_inside_do_not_run(tmp_path: Path) -> None:
    repo, plants = a_repo(tmp_path, {"a.txt": "one\n", ".gitignore": "/kept/\n"}), Plants(tmp_path / "plants")
    base, trees = base_of(repo.path), Worktrees(repo.path)
    worktree = trees.open(1, "first", base.commit)
    for place in (repo.path / "inner", repo.path / "kept" / "inner", worktree.path / "kept" / "inner"):
        place.mkdir(parents=True)
        repo.git("init", "-q", cwd=place)
        repo.git("commit", "-q", "--allow-empty", "-m", "inner", cwd=place)
        for name, value in plants.settings().items():
            repo.git("config", name, value, cwd=place)
    plants.forget()
    assert base_of(repo.path).uncommitted == ("inner/",)
    write(worktree.path, {"b.txt": "two\n"})
    submission = trees.submit(worktree, 1, "2:abc", "done")
    assert submission.files == 1
    assert trees.forward("main", submission.commit) == repo.path
    assert plants.ran == set()
    repo.git("status", cwd=repo.path / "inner")
    assert plants.ran == {"fsmonitor"}


def test_what_is_missing_is_not_fetched(tmp_path: Path) -> None:
    repo, plants = a_repo(tmp_path), Plants(tmp_path / "plants")
    commit = repo.git("rev-parse", "HEAD")
    blob = repo.git("rev-parse", "HEAD:a.txt")
    (repo.path / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    for name, value in plants.settings().items():
        repo.git("config", name, value)
    repo.git("config", "extensions.partialClone", "origin")
    plants.forget()
    with pytest.raises(Refused, match="has no content") as refused:
        Worktrees(repo.path).open(1, "first", commit)
    assert "fetch" in refused.value.fix
    assert plants.ran == set()


def test_a_replaced_object_and_a_planted_graph_change_nothing(tmp_path: Path) -> None:
    repo = a_repo(tmp_path)
    commit = repo.git("rev-parse", "HEAD")
    other = repo.git("hash-object", "-w", "--stdin", stdin="replaced\n")
    repo.git("replace", repo.git("rev-parse", "HEAD:a.txt"), other)
    assert repo.git("show", "HEAD:a.txt") == "replaced"
    trees = Worktrees(repo.path)
    trees.export(commit, tmp_path / "exported")
    assert (tmp_path / "exported" / "a.txt").read_text() == "one\ntwo\n"


def test_attributes_of_the_worktree_hide_nothing_from_a_reviewer(tmp_path: Path) -> None:
    repo = a_repo(tmp_path)
    base, trees = base_of(repo.path), Worktrees(repo.path)
    worktree = trees.open(1, "first", base.commit)
    hiding = "*.py -diff binary\n*.txt working-tree-encoding=UTF-16 text eol=crlf ident\n"
    write(worktree.path, {".gitattributes": hiding, "src/b.py": "evil = 1\n", "a.txt": "$Id$\r\n\r\nx\n"})
    submission = trees.submit(worktree, 1, "2:abc", "done")
    patches = {file.path: file.patch for file in trees.diff(base.commit, submission.commit, 100_000).files}
    assert "+evil = 1\n" in patches["src/b.py"]
    assert "+$Id$\r\n" in patches["a.txt"]
    trees.export(submission.commit, tmp_path / "exported")
    assert (tmp_path / "exported" / "a.txt").read_bytes() == b"$Id$\r\n\r\nx\n"


def test_a_call_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    repo = a_repo(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    git = Git(repo.path / ".git", patience=0.5)
    with pytest.raises(Refused, match="took longer than"):
        git.run("hash-object", "--no-filters", str(tmp_path / "pipe"))
    assert [child for child in psutil.Process().children() if child.name() == "git"] == []


def test_errors_of_git_say_what_to_do(tmp_path: Path) -> None:
    repo = a_repo(tmp_path)
    commit = repo.git("rev-parse", "HEAD")
    trees = Worktrees(repo.path)
    lock = repo.path / ".git" / "refs" / "heads" / "kept.lock"
    lock.touch()
    with pytest.raises(DialogdError, match=r"kept\.lock") as refused:
        trees.git.update("test", ("refs/heads/kept", commit, ""))
    assert f"rm '{lock}'" in refused.value.fix
    with pytest.raises(Refused, match=r"no\\u000asuch is no commit"):
        trees.git.commit("no\nsuch")
    for hostile in ("--output=/tmp/x", "--all", "-h", ""):
        with pytest.raises(Refused, match="is no commit"):
            trees.git.commit(hostile)
    assert shown(b"a\nb\xff\x1b[2J") == "a\\u000ab\\xff\\u001b[2J"


def test_only_the_top_of_a_checkout_will_do(tmp_path: Path) -> None:
    repo = a_repo(tmp_path)
    repo.git("clone", "-q", "--bare", str(repo.path), str(tmp_path / "bare"))
    (tmp_path / "line\nbreak").mkdir()
    for path, words in {
        tmp_path / "home": "is no git repository",
        repo.path / "src": f"is a folder of the repository {repo.path}",
        tmp_path / "bare": "is a bare repository",
        tmp_path / "none": "no such file",
        repo.path / "a.txt": "is not a folder",
        repo.path / ".git": "bare|work tree",
    }.items():
        with pytest.raises(Refused, match=words):
            checkout_at(path)
    assert checkout_at(repo.path).git_dir == repo.path / ".git"


def test_a_repository_with_the_other_kind_of_ids(tmp_path: Path) -> None:
    repo = a_repo(tmp_path, None, "--object-format=sha256")
    trees = Worktrees(repo.path)
    base = base_of(repo.path)
    worktree = trees.open(1, "first", base.commit)
    write(worktree.path, {"b.txt": "two\n"})
    submission = trees.submit(worktree, 1, "2:abc", "done")
    assert len(submission.tree) == 64
    assert trees.forward("main", submission.commit) == repo.path
    assert repo.git("status", "--porcelain") == ""


FULL = """
import sys
from pathlib import Path
from dialogd.tasks.worktrees import Worktrees, base_of
from dialogd.errors import StorageError
repo = Path(sys.argv[1])
try:
    trees = Worktrees(repo)
    worktree = trees.open(1, "first", base_of(repo).commit)
    print(trees.submit(worktree, 1, "2:abc", "done").files if len(sys.argv) > 2 else "open")
except StorageError as error:
    print("full:", error, "|", error.fix)
"""


@pytest.mark.root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")
def test_on_a_full_disk_nothing_is_lost(tmp_path: Path) -> None:
    repo = a_repo(tmp_path)
    write(tmp_path, {"fill.py": FULL})
    python = f"'{sys.executable}' '{tmp_path}/fill.py' '{tmp_path}/disk/a project'"
    tip = "git --git-dir='disk/a project/.git' rev-parse dialogd/task-001-first"
    script = f"""
        cd '{tmp_path}' && mkdir disk && mount -t tmpfs -o size=4m none disk && cp -r '{repo.path}' disk/ || exit 9
        export PYTHONPATH='{REPOSITORY}' HOME='{repo.home}' GIT_CONFIG_NOSYSTEM=1
        {python}
        head -c 1000000 /dev/urandom > 'disk/a project.dialogd/task-001-first/big'
        head -c 10000000 /dev/zero > disk/ballast 2> /dev/null
        before=$({tip})
        {python} submit
        test $before = $({tip}) && stat -c %s 'disk/a project.dialogd/task-001-first/big'
        rm disk/ballast
        {python} submit
    """
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=90
    )
    if "permission denied" in done.stderr.lower() or done.returncode == 9:
        pytest.skip(f"may not mount here: {done.stderr.strip()[:100]}")
    opened, full, *rest = done.stdout.strip().split("\n")
    assert opened == "open"
    assert full.startswith("full: "), done.stdout + done.stderr
    assert "no space left" in full.lower()
    assert rest == ["1000000", "1"]


def test_a_write_that_is_cut_short_is_an_error_and_moves_nothing(tmp_path: Path) -> None:
    import resource

    repo = a_repo(tmp_path)
    trees = Worktrees(repo.path)
    worktree = trees.open(1, "first", base_of(repo.path).commit)
    write(worktree.path, {"big.bin": os.urandom(100_000)})
    before = repo.git("rev-parse", worktree.branch)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(StorageError, match="git update-index"):
            trees.submit(worktree, 1, "2:abc", "done")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert repo.git("rev-parse", worktree.branch) == before
    assert trees.submit(worktree, 1, "2:abc", "done").files == 1

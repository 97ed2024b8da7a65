"""Worktrees of tasks on real repositories: what is there is what is committed, and nothing of anybody's is lost."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from dialogd.errors import DialogdError, UnsafeFile
from dialogd.protocol.build import Submission
from dialogd.tasks.worktrees import Conflict, Worktree, Worktrees, base_of, is_beside_source, task_name
from tests.support.cases import cases
from tests.tasks.repos import Repo, a_repo, tree, write


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """A repository with one commit of three files."""
    return a_repo(tmp_path)


def opened(repo: Repo, number: int = 1, title: str = "first") -> tuple[Worktrees, Worktree]:
    """The worktree of a task on the person's branch."""
    trees = Worktrees(repo.path)
    return trees, trees.open(number, title, base_of(repo.path).commit)


def submitted(repo: Repo, files: Mapping[str, str | bytes]) -> tuple[Worktrees, Worktree, Submission]:
    """A task in whose worktree these files were written, and what was submitted of it."""
    trees, worktree = opened(repo)
    write(worktree.path, files)
    return trees, worktree, trees.submit(worktree, 1, "2:abc", "one")


def refused(do: Callable[[], object], words: str) -> str:
    """What to do about a refusal; it must be one, in these words, and one line."""
    with pytest.raises(DialogdError, match=words) as error:
        do()
    assert "\n" not in f"{error.value}{error.value.fix}"
    return error.value.fix


@contextmanager
def without_privileges() -> Iterator[None]:
    """The superuser too may not do what a file's mode forbids: for a while, this thread cannot go around it."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, before = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, before) == 0
    less = (ctypes.c_uint32 * 6)(*before)
    less[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, less) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0


# -- The base ---------------------------------------------------------------------------------------------------------


def test_a_base_is_what_is_committed_and_says_what_is_not(repo: Repo) -> None:
    repo.write({"a.txt": "edited\n", "new file.txt": "x", "folder/deep": "y"})
    (repo.path / "src" / "c.py").unlink()
    repo.write({"staged.txt": "s"})
    repo.git("add", "staged.txt")
    (repo.path / "src" / "b.py").touch()  # only its time differs
    before, index = tree(repo.path), (repo.path / ".git" / "index").read_bytes()
    base = base_of(repo.path)
    assert (base.branch, base.commit) == ("main", repo.git("rev-parse", "HEAD"))
    assert base.uncommitted == ("a.txt", "folder/", "new file.txt", "src/c.py", "staged.txt")
    assert (tree(repo.path), (repo.path / ".git" / "index").read_bytes()) == (before, index)


def test_what_stands_in_the_way_of_a_base_is_said(repo: Repo, tmp_path: Path) -> None:
    first = repo.git("rev-parse", "HEAD")
    repo.git("switch", "-q", "-c", "side")
    repo.commit({"a.txt": "side\n"})
    repo.git("switch", "-q", "main")
    repo.commit({"a.txt": "main\n"})
    for words in (["merge", "side"], ["rebase", "side"], ["cherry-pick", "side"]):
        repo.git(*words, may_fail=True)
        if words[0] == "rebase":
            assert "switch" in refused(lambda: base_of(repo.path), "no branch is checked out")
        else:
            assert "--abort" in refused(lambda: base_of(repo.path), f"a {words[0]} is under way")
        repo.git(words[0], "--abort")
    repo.git("switch", "-q", "--detach", first)
    assert "switch" in refused(lambda: base_of(repo.path), "no branch is checked out")
    repo.git("switch", "-q", "main")
    repo.git("update-index", "--add", "--cacheinfo", f"160000,{first},vendor/lib")
    repo.git("commit", "-q", "-m", "a submodule")
    assert "without submodules" in refused(lambda: base_of(repo.path), r"submodules \(vendor/lib\)")
    empty = tmp_path / "empty"
    empty.mkdir()
    repo.git("init", "-q", cwd=empty)
    assert "commit something" in refused(lambda: base_of(empty), "no commit yet")


# -- Opening ----------------------------------------------------------------------------------------------------------


def test_a_worktree_is_made_beside_the_checkout_and_opened_again(repo: Repo) -> None:
    repo.write({"a.txt": "not committed\n"})
    trees, worktree = opened(repo, 3, "Über: the Lexer's -- 2nd try!")
    assert worktree.path == repo.path.parent / "a project.dialogd" / "task-003-uber-the-lexer-s-2nd-try"
    assert worktree.path.parent.stat().st_mode & 0o777 == 0o700
    assert worktree.branch == f"dialogd/{worktree.path.name}"
    assert tree(worktree.path) == {"a.txt": b"one\ntwo\n", "src/b.py": b"x = 1\n" * 20, "src/c.py": b"y = 2\n"}
    assert repo.git("status", "--porcelain", "-b", cwd=worktree.path) == f"## {worktree.branch}"
    assert repo.git("rev-parse", "--absolute-git-dir", cwd=worktree.path) == str(worktree.git_dir)
    assert repo.git("status", "--porcelain") == " M a.txt"
    write(worktree.path, {"a.txt": "half-made\n"})
    assert trees.open(3, "Über: the Lexer's -- 2nd try!", worktree.base) == worktree
    assert (worktree.path / "a.txt").read_text() == "half-made\n"
    repo.git("fsck", "--strict")


def test_names_of_tasks_are_short_and_plain() -> None:
    for title, name in {
        "": "task-007", "../../etc": "task-007-etc", "-rf *": "task-007-rf", "日本": "task-007",
        "a\nb": "task-007-a-b", "word " * 30: "task-007-" + "-".join(["word"] * 8), "x" * 300: "task-007-" + "x" * 40,
    }.items():  # fmt: skip
        assert task_name(7, title) == name


def test_what_is_there_already_is_not_taken(repo: Repo, tmp_path: Path) -> None:
    base = base_of(repo.path).commit
    repo.git("branch", "dialogd/task-001-first", other := repo.commit({"x": "x"}))
    trees = Worktrees(repo.path, build="one")
    write(trees.root, {"task-001-first-2/mine.txt": "mine"})
    (trees.root).chmod(0o700)
    (trees.root / "task-001-first-3").symlink_to(tmp_path)
    one = trees.open(1, "first", base)
    write(one.path, {"b.txt": "one\n"})
    tip = trees.submit(one, 1, "2:abc", "one").commit
    two = Worktrees(repo.path, build="two").open(1, "first", base)
    assert [one.path.name, two.path.name] == ["task-001-first-4", "task-001-first-5"]
    assert repo.git("rev-parse", "dialogd/task-001-first", one.branch, two.branch).split() == [other, tip, base]
    assert tree(trees.root / "task-001-first-2") == {"mine.txt": b"mine"}
    repo.git("worktree", "remove", "--force", str(two.path))
    assert Worktrees(repo.path, build="two").open(1, "first", base) == two
    repo.git("worktree", "remove", "--force", str(two.path))
    repo.git("worktree", "add", "-q", str(tmp_path / "elsewhere"), two.branch)
    again = Worktrees(repo.path, build="two")
    assert "worktree remove" in refused(lambda: again.open(1, "first", base), "is checked out in .*elsewhere")


def test_a_task_keeps_its_worktree_when_its_title_changes(repo: Repo) -> None:
    trees, worktree = opened(repo)
    assert trees.open(1, "reworded", worktree.base) == worktree
    assert trees.open(11, "first", worktree.base).path.name == "task-011-first"


def test_the_folder_of_worktrees_is_the_persons_alone(repo: Repo, tmp_path: Path) -> None:
    base, trees = base_of(repo.path).commit, Worktrees(repo.path)
    trees.root.symlink_to(tmp_path / "home")
    with pytest.raises(UnsafeFile):
        trees.open(1, "first", base)
    trees.root.unlink()
    trees.root.mkdir()
    trees.root.chmod(0o777)
    with pytest.raises(UnsafeFile):
        trees.open(1, "first", base)


def test_a_branch_that_somebody_moved_is_told_and_nothing_lost(repo: Repo) -> None:
    trees, worktree, made = submitted(repo, {"b.txt": "agent\n"})
    tip = made.commit
    write(worktree.path, {"b.txt": "hand\n"})
    repo.git("commit", "-q", "-a", "-m", "by hand", cwd=worktree.path)
    for do in (
        lambda: trees.open(1, "first", worktree.base),
        lambda: trees.submit(worktree, 1, "3:def", "two"),
        lambda: trees.keep(worktree, "kept"),
        lambda: trees.carry(worktree, [tip], worktree.base),
    ):
        assert f"reset --soft {tip[:12]}" in refused(do, f"somebody moved {worktree.branch}")
    repo.git("reset", "-q", "--soft", tip, cwd=worktree.path)
    submission = trees.submit(worktree, 1, "3:def", "two")
    assert repo.git("show", f"{submission.commit}:b.txt") == "hand"
    repo.git("switch", "-q", "-c", "mine", cwd=worktree.path)
    assert "switch dialogd/task-001-first" in refused(lambda: trees.keep(worktree, "x"), "another branch")


def test_a_branch_that_was_deleted_starts_anew_and_its_commits_stay(repo: Repo) -> None:
    trees, worktree, made = submitted(repo, {"b.txt": "agent\n"})
    tip = made.commit
    repo.git("worktree", "remove", "--force", str(worktree.path))
    repo.git("branch", "-q", "-D", worktree.branch)
    assert tree(trees.open(1, "first", worktree.base).path) == tree(repo.path)
    assert tip in repo.git("for-each-ref", "--format=%(objectname)", "refs/dialogd/")


def test_a_worktree_that_was_removed_comes_back_with_its_commits(repo: Repo) -> None:
    trees, worktree = opened(repo)
    write(worktree.path, {"b.txt": "agent\n"})
    trees.submit(worktree, 1, "2:abc", "one")
    repo.git("worktree", "remove", "--force", str(worktree.path))
    assert (trees.open(1, "first", worktree.base).path / "b.txt").read_text() == "agent\n"
    worktree.path.rename(worktree.path.with_name("gone"))
    assert (trees.open(1, "first", worktree.base).path / "b.txt").read_text() == "agent\n"
    assert repo.git("status", "--porcelain", cwd=worktree.path) == ""


# -- Committing -------------------------------------------------------------------------------------------------------

ODD = {
    "with blanks .txt": b"x\n",
    "line\nbreak": b"y\n",
    "-dash --all": b"z\n",
    "tab\tquote\"back\\slash'": b"q\n",
    "ünïcödé-日本-🙂": b"u\n",
    ":(top)magic*?[a]": b"m\n",
    "#hash": b"h\n",
    "src/deep/er/and/deeper/x": b"d\n",
    "crlf.txt": b"a\r\nb\r\n",
    "mixed.bat": b"a\r\nb\nc\rd",
    "nul.bin": bytes(range(256)) * 300,
    "empty": b"",
    "no line end": b"no line end",
}


def test_what_stands_there_is_what_is_committed(repo: Repo, tmp_path: Path) -> None:
    repo.commit({".gitattributes": "* text=auto\n*.bat text eol=crlf\n", "old.bat": b"a\r\nb\n"}, "attributes")
    trees, worktree = opened(repo)
    assert (worktree.path / "old.bat").read_bytes() == repo.git("show", "HEAD:old.bat").encode() + b"\n"
    assert trees.keep(worktree, "nothing to keep") == ""
    write(worktree.path, ODD)
    write(worktree.path, {"large.bin": os.urandom(3_000_000), "build/out": "ignored", ".gitignore": "build/\n"})
    raw = os.fsencode(worktree.path) + b"/not\xffutf8"
    Path(os.fsdecode(raw)).write_bytes(b"raw\n")
    (worktree.path / "a.txt").chmod(0o755)
    (worktree.path / "src" / "b.py").unlink()
    (worktree.path / "src" / "b.py").symlink_to("/etc/passwd")
    (worktree.path / "dangling").symlink_to("../../../nowhere\nelse")
    (worktree.path / "folder").symlink_to("src")
    submission = trees.submit(worktree, 1, "2:abc", "odd")
    trees.export(submission.commit, tmp_path / "exported")
    there = {name: content for name, content in tree(worktree.path).items() if name != "build/out"}
    assert tree(tmp_path / "exported") == there
    assert os.access(tmp_path / "exported" / "a.txt", os.X_OK)
    assert not os.access(tmp_path / "exported" / "src" / "c.py", os.X_OK) or os.geteuid() == 0
    listed = repo.git("ls-tree", "-r", "-z", submission.commit).split("\0")
    modes = {line.partition("\t")[2]: line[:6] for line in listed if line}
    assert set(modes) == set(there)
    assert (modes["a.txt"], modes["src/b.py"], modes["folder"]) == ("100755", "120000", "120000")
    assert repo.git("show", f"{submission.commit}:src/b.py") == "/etc/passwd"
    assert trees.keep(worktree, "nothing to keep") == ""
    repo.git("fsck", "--strict")


def test_the_numbers_of_a_submission_are_gits(repo: Repo) -> None:
    trees, worktree = opened(repo)
    (worktree.path / "src" / "b.py").rename(worktree.path / "moved.py")
    write(worktree.path, {"a.txt": "one\nTWO\nthree\n", "new\nname.txt": "1\n2\n3\n", "bin": b"\0\1\2"})
    (worktree.path / "src" / "c.py").unlink()
    submission = trees.submit(worktree, 1, "2:abc", "numbers")
    between = (worktree.base, submission.commit)
    stat = repo.git("diff", "--shortstat", *between)
    assert [int(number) for number in re.findall(r"\d+", stat)] == [
        submission.files, submission.lines_added, submission.lines_deleted,
    ]  # fmt: skip
    assert submission.files == 5
    assert submission.tree == repo.git("rev-parse", f"{submission.commit}^{{tree}}")
    assert submission.branch == worktree.branch


def test_a_commit_whose_turn_was_not_written_is_adopted(repo: Repo) -> None:
    trees, worktree = opened(repo)
    write(worktree.path, {"b.txt": "one\n"})
    first = trees.submit(worktree, 1, "2:abc", "done\n\nDialogd-Debt: 9:fff")
    write(worktree.path, {"b.txt": "edited since\n"})
    kept = trees.keep(worktree, "kept")
    assert trees.submit(worktree, 1, "2:abc", "again") == first
    assert trees.submit(worktree, 1, "9:fff", "not by its text").commit not in (first.commit, kept)
    empty = trees.submit(worktree, 1, "4:abc", "")
    assert (empty.files, empty.lines_added) == (1, 1)
    messages = repo.git("log", "--reverse", "--format=%B%x00", f"{worktree.base}..{worktree.branch}").split("\0")
    assert [message.strip().split("\n") for message in messages if message.strip()] == [
        ["done", "", "Dialogd-Debt: 9:fff", "", "Dialogd-Task: 001", "Dialogd-Debt: 2:abc"],
        ["kept", "", "Dialogd-Task: 001", "Dialogd-Kept: true"],
        ["not by its text", "", "Dialogd-Task: 001", "Dialogd-Debt: 9:fff"],
        ["task-001-first", "", "Dialogd-Task: 001", "Dialogd-Debt: 4:abc"],
    ]


@pytest.mark.slow
@cases(
    "plant, words",
    [
        (lambda path: write(path / "src" / ".git", {"HEAD": "ref: refs/heads/x\n", "config": ""}), r"src/\.git"),
        (lambda path: (path / "src" / ".git").symlink_to("/tmp"), r"src/\.git"),
        (lambda path: write(path, {"src/.git": "gitdir: /elsewhere\n"}), r"src/\.git"),
        (lambda path: write(path, {"new/.GiT/config": ""}), r"new/\.GiT"),
        (lambda path: write(path, {"new/git~1": ""}), "git~1"),
        (lambda path: write(path, {"new/.g\u200cit/config": ""}), r"\.g"),
        (lambda path: os.mkfifo(path / "src" / "pipe"), ""),
        (lambda path: ((path / "src" / "b.py").unlink(), os.mkfifo(path / "src" / "b.py")), "neither a file nor"),
        (lambda path: ((path / ".git").unlink(), write(path, {".git": "gitdir: /elsewhere\n"})), r"\.git was changed"),
        (lambda path: (path / ".git").unlink(), r"\.git is no file any more"),
        (lambda path: ((path / ".git").unlink(), write(path, {".git/HEAD": "x"})), r"\.git is no file any more"),
        (lambda path: ((path / ".git").rename(path / "g"), (path / ".git").symlink_to("g")), r"\.git is no file any"),
    ],
)
def test_what_an_agent_plants_is_refused_and_named(tmp_path: Path, plant: Callable[[Path], object], words: str) -> None:
    folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    folder.mkdir()
    repo = a_repo(folder)
    trees, worktree = opened(repo)
    write(worktree.path, {"new/b.txt": "x"})
    plant(worktree.path)
    before = repo.git("rev-parse", worktree.branch)
    if words:
        for do in (lambda: trees.submit(worktree, 1, "2:abc", "x"), lambda: trees.keep(worktree, "x")):
            refused(do, words)
        assert repo.git("rev-parse", worktree.branch) == before
    else:
        assert trees.submit(worktree, 1, "2:abc", "x").files == 1


def test_symlinks_out_of_the_tree_are_links_and_never_followed(repo: Repo, tmp_path: Path) -> None:
    write(tmp_path, {"secret/b.py": "key = 'secret'\n", "secret/more": "secret"})
    trees, worktree = opened(repo)
    (worktree.path / "src").rename(tmp_path / "was")
    (worktree.path / "src").symlink_to(tmp_path / "secret")
    submission = trees.submit(worktree, 1, "2:abc", "x")
    assert repo.git("ls-tree", "-r", "--name-only", submission.commit) == "a.txt\nsrc"
    assert "secret'" not in "".join(file.patch for file in trees.diff(worktree.base, submission.commit, 9999).files)
    trees.export(submission.commit, tmp_path / "exported")
    assert (tmp_path / "exported" / "src").is_symlink()
    assert tree(tmp_path / "secret") == {"b.py": b"key = 'secret'\n", "more": b"secret"}


def test_a_file_that_nobody_could_review_is_refused(repo: Repo) -> None:
    trees, worktree = opened(repo)
    with (worktree.path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    assert ".gitignore" in refused(lambda: trees.submit(worktree, 1, "2:abc", "x"), r"huge is larger than 100 MiB")


@pytest.mark.skipif(os.geteuid() == 0 and sys.platform != "linux", reason="the superuser may read everything here")
def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    repo = a_repo(tmp_path)
    trees, worktree = opened(repo)
    write(worktree.path, {"new/locked": "x"})
    (worktree.path / "new" / "locked").chmod(0)
    with without_privileges():
        fix = refused(lambda: trees.submit(worktree, 1, "2:abc", "x"), "task-001-first/new/locked: permission denied")
    assert "chmod" in fix


def test_a_person_who_edits_meanwhile_takes_part(repo: Repo) -> None:
    trees, worktree = opened(repo)
    write(worktree.path, {"b.txt": "agent\n"})
    trees.submit(worktree, 1, "2:abc", "one")
    write(worktree.path, {"b.txt": "staged\n"})
    repo.git("add", "b.txt", cwd=worktree.path)
    repo.git("rm", "-q", "--cached", "a.txt", cwd=worktree.path)
    write(worktree.path, {"b.txt": "hand\n"})
    assert trees.open(1, "first", worktree.base) == worktree
    assert (worktree.path / "b.txt").read_text() == "hand\n"
    submission = trees.submit(worktree, 1, "4:def", "two")
    assert repo.git("show", f"{submission.commit}:b.txt") == "hand"
    assert repo.git("ls-tree", "--name-only", submission.commit, "a.txt") == "a.txt"


# -- Comparing and writing out ----------------------------------------------------------------------------------------


def test_a_large_diff_is_cut_by_file_and_what_is_missing_is_named(repo: Repo) -> None:
    trees, worktree = opened(repo)
    lines = "".join(f"line {number}\n" for number in range(5000))
    write(worktree.path, {"long.txt": lines, "one-line": "x" * 200_000, "a.txt": "one\nTWO\n", "z.bin": b"\0z"})
    (worktree.path / "src" / "c.py").unlink()
    (worktree.path / "src" / "c.py").symlink_to("b.py")
    (worktree.path / "src" / "b.py").chmod(0o755)
    submission = trees.submit(worktree, 1, "2:abc", "x")
    diff = trees.diff(worktree.base, submission.commit, 2000)
    assert [(file.path, file.added, file.deleted) for file in diff.omitted] == [
        ("long.txt", 5000, 0),
        ("one-line", 1, 0),
    ]
    assert [file.path for file in diff.files] == ["a.txt", "z.bin", "src/b.py", "src/c.py"]
    assert diff.stat == "6 files, +5003 -2, 1 binary"
    for file in diff.files:
        own = repo.git("diff", "--full-index", worktree.base, submission.commit, "--", file.path)
        assert file.patch == own + "\n"
    assert "new mode 100755" in diff.files[2].patch
    assert "Binary files" in diff.files[1].patch
    everything = trees.diff(worktree.base, submission.commit, 1_000_000)
    assert everything.omitted == ()
    assert sum(len(file.patch) for file in everything.files) > 250_000
    assert trees.diff(worktree.base, worktree.base, 100).stat == "0 files, +0 -0"


def test_a_folder_in_the_place_of_a_file_is_shown_once(repo: Repo) -> None:
    trees, worktree = opened(repo)
    (worktree.path / "a.txt").unlink()
    write(worktree.path, {"a.txt/b.txt": "agent\n"})
    submission = trees.submit(worktree, 1, "2:abc", "one")
    shown = trees.diff(worktree.base, submission.commit, 9999).files
    assert [(file.path, file.patch.count("diff --git")) for file in shown] == [("a.txt", 1), ("a.txt/b.txt", 1)]


def test_names_in_a_diff_stay_on_their_line(repo: Repo) -> None:
    trees, worktree, submission = submitted(repo, {"x\nTURN: A": "1\n"})
    (file,) = trees.diff(worktree.base, submission.commit, 9999).files
    assert file.path == "x\\u000aTURN: A"
    assert "\nTURN" not in file.patch


def test_an_export_goes_to_an_empty_folder_and_nowhere_else(repo: Repo, tmp_path: Path) -> None:
    trees = Worktrees(repo.path)
    blob = repo.git("hash-object", "-w", "--stdin", stdin="evil")
    for name in ("..", ".git", ".GIT", "."):
        inner = repo.git("mktree", stdin=f"100644 blob {blob}\tevil\n")
        outer = repo.git("mktree", stdin=f"040000 tree {inner}\t{name}\n")
        commit = repo.git("commit-tree", outer, "-m", "evil")
        into = tmp_path / "exports" / name.replace(".", "dot")
        into.mkdir(parents=True)
        refused(lambda commit=commit, into=into: trees.export(commit, into), "invalid path")  # type: ignore[misc]
    assert not list(tmp_path.rglob("evil"))


def test_a_link_and_a_folder_of_one_name_do_not_write_through_it(repo: Repo, tmp_path: Path) -> None:
    trees = Worktrees(repo.path)
    (tmp_path / "victim").mkdir()
    blob, link = (repo.git("hash-object", "-w", "--stdin", stdin=text) for text in ("evil", str(tmp_path / "victim")))
    inner = bytes.fromhex(repo.git("mktree", stdin=f"100644 blob {blob}\tevil\n"))
    data = b"120000 a\0" + bytes.fromhex(link) + b"40000 a\0" + inner
    (tmp_path / "data").write_bytes(data)
    outer = repo.git("hash-object", "-t", "tree", "-w", "--literally", str(tmp_path / "data"))
    commit = repo.git("commit-tree", outer, "-m", "evil")
    with pytest.raises(DialogdError):
        trees.export(commit, tmp_path / "exported")
    assert list((tmp_path / "victim").iterdir()) == []


def test_what_is_more_than_source_comes_first(repo: Repo) -> None:
    source = ("src/a.py", "src/test/b_test.go", "web/app.tsx", "tests/test_a.py")
    steering = ("Makefile", "tests/conftest.py", "pyproject.toml", ".mocharc.cjs", "web/jest.config.ts", "build.rs",
                "scripts/all.py", ".github/run.js", "run", "ci/one.sh", "vitest.setup.ts")  # fmt: skip
    base = repo.commit({**dict.fromkeys((*source, *steering), "1\n"), "code.py": "1\n"})
    shadows = ("pytest.py", "lib/unittest/__init__.py")
    commit = repo.commit(dict.fromkeys((*source, *steering, *shadows, "code.py"), "2\n"))
    for limit in (100_000, 3000, 0):
        diff = Worktrees(repo.path).diff(base, commit, limit)
        both = (diff.files, diff.omitted)
        for found in both:
            kinds = [is_beside_source(one) for one in found]
            assert kinds == sorted(kinds, reverse=True)
        assert {one.path for found in both for one in found if is_beside_source(one)} == {*steering, *shadows}
        assert limit != 3000 or (diff.omitted and not any(map(is_beside_source, diff.omitted)))
        assert all(file.patch.startswith("diff --git") and f"b/{file.path}\n" in file.patch for file in diff.files)


# -- Another base -----------------------------------------------------------------------------------------------------


def a_moved_base(repo: Repo) -> tuple[Worktrees, Worktree, Submission, str]:
    """A task with a submission and a kept commit, and a base that moved meanwhile."""
    trees, worktree = opened(repo)
    write(worktree.path, {"b.txt": "agent\n"})
    (worktree.path / "src" / "c.py").unlink()
    submission = trees.submit(worktree, 1, "2:abc", "one")
    onto = repo.commit({"other.txt": "o\n", "src/b.py": "x = 1\n" * 19 + "x = 2\n", "sub/x": "y\n"}, "meanwhile")
    return trees, worktree, submission, onto


def test_a_task_is_carried_to_another_base(repo: Repo) -> None:
    trees, worktree, submission, onto = a_moved_base(repo)
    carried = trees.carry(worktree, [submission.commit], onto)
    assert isinstance(carried, Submission)
    assert (carried.base, carried.files, carried.lines_added) == (onto, 2, 1)
    assert repo.git("rev-parse", f"{carried.commit}^") == onto
    assert repo.git("status", "--porcelain", cwd=worktree.path) == ""
    assert tree(worktree.path) == {
        "a.txt": b"one\ntwo\n", "b.txt": b"agent\n", "other.txt": b"o\n",
        "src/b.py": b"x = 1\n" * 19 + b"x = 2\n", "sub/x": b"y\n",
    }  # fmt: skip
    assert trees.carry(worktree, [submission.commit], onto) == carried
    again = trees.open(1, "first", onto)
    assert trees.submit(again, 1, "2:abc", "the same debt") == carried
    assert submission.commit in repo.git("for-each-ref", "--format=%(objectname)", "refs/dialogd/")


def test_a_conflict_is_named_and_changes_nothing(repo: Repo) -> None:
    trees, worktree, submission = submitted(repo, {"a.txt": "one\nagent\n"})
    onto = repo.commit({"a.txt": "one\nperson\n"})
    before = (tree(worktree.path), repo.git("rev-parse", worktree.branch))
    assert trees.carry(worktree, [submission.commit], onto) == Conflict(submission.commit, ("a.txt",))
    assert (tree(worktree.path), repo.git("rev-parse", worktree.branch)) == before
    write(worktree.path, {"a.txt": "edited\n"})
    assert "move them elsewhere" in refused(
        lambda: trees.carry(worktree, [submission.commit], onto), "edits that are in no"
    )


# -- The person's branch ----------------------------------------------------------------------------------------------


def test_the_persons_branch_goes_forward_with_its_checkout(repo: Repo) -> None:
    trees, worktree = opened(repo)
    (worktree.path / "src" / "b.py").rename(worktree.path / "src" / "moved.py")
    write(worktree.path, {"new/x": "x\n"})
    to = trees.submit(worktree, 1, "2:abc", "one").commit
    repo.write({"a.txt": "mine\n", "untracked": "mine\n"})
    (repo.path / "src" / "c.py").touch()
    for _ in range(2):
        assert trees.forward("main", to) == repo.path
        assert repo.git("rev-parse", "main") == repo.git("rev-parse", "HEAD") == to
        assert repo.git("status", "--porcelain") == " M a.txt\n?? untracked"
    assert (repo.path / "a.txt").read_text() == "mine\n"
    assert not (repo.path / "src" / "b.py").exists()


@pytest.mark.slow
@cases(
    "mine, words",
    [
        ({"a.txt": "mine\n"}, "edits are in the way: a.txt"),
        ({"new/x": "mine\n"}, "in the way: new/x"),
        ({"build/out": "ignored, and mine\n"}, "in the way: build/out"),
        ({"new": "a file where a folder comes"}, "in the way: new/x"),
        ({"folder/mine": "a folder where a file comes"}, "in the way: folder"),
    ],
)
def test_files_of_the_person_are_not_written_over(tmp_path: Path, mine: dict[str, str], words: str) -> None:
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    folder.mkdir()
    repo = a_repo(folder, {"a.txt": "one\n", ".git-keep": "", ".gitignore": "build/\n"})
    trees, worktree = opened(repo)
    write(
        worktree.path, {"a.txt": "agent\n", "new/x": "x\n", "folder": "f\n", ".gitignore": "", "build/out": "agent\n"}
    )
    to = trees.submit(worktree, 1, "2:abc", "one").commit
    repo.write(mine)
    before, head = tree(repo.path), repo.git("rev-parse", "HEAD")
    assert "stash" in refused(lambda: trees.forward("main", to), words)
    assert (tree(repo.path), repo.git("rev-parse", "HEAD")) == (before, head)


def test_what_is_already_as_it_will_be_is_no_edit(repo: Repo) -> None:
    trees, worktree = opened(repo)
    write(worktree.path, {"a.txt": "agent\n", "new/x": "x\n"})
    (worktree.path / "src" / "c.py").unlink()
    (worktree.path / "src" / "b.py").chmod(0o755)
    to = trees.submit(worktree, 1, "2:abc", "one").commit
    repo.write({"a.txt": "agent\n", "new/x": "x\n"})
    (repo.path / "src" / "c.py").unlink()
    assert trees.forward("main", to) == repo.path
    assert repo.git("status", "--porcelain") == ""
    assert repo.git("rev-parse", "HEAD") == to


def test_line_ends_and_links_of_the_persons_checkout_are_kept(repo: Repo) -> None:
    repo.commit({".gitattributes": "*.bat text eol=crlf\n", "x.bat": "a\n"})
    trees, worktree = opened(repo)
    write(worktree.path, {"x.bat": "a\nb\n"})
    (worktree.path / "a.txt").unlink()
    (worktree.path / "a.txt").symlink_to("x.bat")
    trees.forward("main", trees.submit(worktree, 1, "2:abc", "one").commit)
    assert (repo.path / "x.bat").read_bytes() == b"a\r\nb\r\n"
    assert (repo.path / "a.txt").is_symlink()
    assert repo.git("status", "--porcelain") == ""


@pytest.mark.parametrize("named", ["", "[core]\n\texcludesFile = ~/mine\n"], ids=["default", "named"])
def test_what_the_person_ignores_everywhere_takes_no_part(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    home = tmp_path / "a home"
    write(home, {".gitconfig": named, "mine" if named else ".config/git/ignore": "*.swp\nkept.swp\n"})
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    repo.commit({".gitignore": "!kept.swp\n"})
    write(repo.path, {"mine.swp": "x\n"})
    assert base_of(repo.path).uncommitted == ()
    _, _, made = submitted(repo, {"b.txt": "agent\n", "c.swp": "x\n", "kept.swp": "x\n"})
    commit = made.commit
    assert repo.git("diff", "--name-only", "main", commit).split() == ["b.txt", "kept.swp"]


@pytest.mark.root
def test_a_repository_of_another_user_is_used_where_the_person_trusts_it(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (repo.path, repo.path / ".git"):
        os.chown(path, 65534, 65534)
    monkeypatch.setenv("HOME", str(tmp_path / "a home"))
    write(tmp_path / "a home", {".gitconfig": ""})
    assert "safe.directory" in refused(lambda: base_of(repo.path), "belongs to another user")
    write(tmp_path / "a home", {".gitconfig": f"[safe]\n\tdirectory = {repo.path}\n"})
    assert base_of(repo.path).branch == "main"


def test_what_only_the_persons_git_can_do_is_left_to_it(repo: Repo) -> None:
    repo.commit({".gitattributes": "*.psd filter=lfs\n", "x.psd": "a\n"})
    trees, _, made = submitted(repo, {"x.psd": "b\n"})
    to = made.commit
    assert f"merge --ff-only {to[:12]}" in refused(lambda: trees.forward("main", to), r"through a filter.*x\.psd")
    repo.git("sparse-checkout", "set", "--no-cone", "/a.txt", "/.gitattributes")
    assert "merge --ff-only" in refused(lambda: trees.forward("main", to), "sparse checkout")


def test_what_is_raw_at_a_path_of_git_lfs_is_named(repo: Repo) -> None:
    trees, worktree = opened(repo)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    write(worktree.path, {"art/.gitattributes": "*.psd filter=lfs\n", "art/a.psd": b"\x89PSD\0", "art/b.psd": pointer})
    write(worktree.path, {"art/c.psd": "", "art/d.psd": pointer * 20, "raw.psd": "x"})
    (worktree.path / "art" / "e.psd").symlink_to("a.psd")
    commit = trees.submit(worktree, 1, "2:abc", "one").commit
    assert trees.raw(worktree.base, commit) == ("art/a.psd", "art/d.psd")
    assert trees.raw(commit, commit) == ()


def test_a_branch_is_moved_where_it_is_checked_out_or_nowhere(repo: Repo, tmp_path: Path) -> None:
    trees, worktree, made = submitted(repo, {"b.txt": "agent\n"})
    one = made.commit
    write(worktree.path, {"b.txt": "more\n"})
    two = trees.submit(worktree, 1, "4:abc", "two").commit
    repo.git("switch", "-q", "-c", "mine")
    assert trees.forward("main", one) is None
    assert repo.git("rev-parse", "main") == one
    assert not (repo.path / "b.txt").exists()
    linked = tmp_path / "linked"
    repo.git("worktree", "add", "-q", str(linked), "main")
    assert trees.forward("main", two) == linked
    assert (linked / "b.txt").read_text() == "more\n"
    assert repo.git("status", "--porcelain", cwd=linked) == ""
    repo.commit({"c.txt": "moved\n"})
    assert "rebase" in refused(lambda: trees.forward("mine", two), "mine has moved")
    assert "name the branch" in refused(lambda: trees.forward("none", two), "there is no branch none")
    base = base_of(linked)
    assert base.branch == "main"
    beside = Worktrees(linked)
    assert beside.open(9, "from a linked checkout", base.commit).path.parent == tmp_path / "linked.dialogd"

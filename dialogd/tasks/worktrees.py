"""A worktree and a branch for each task, beside the person's checkout: made, committed, compared, carried, merged.

What stands in a worktree is what is committed, byte for byte; what `.gitignore` names does not take part.

Three names keep what a kill could lose. `refs/dialogd/<build>/<task>/tip` is the last commit made here, and `…/before`
the one before it; with the branch they are set together, so a branch that stands elsewhere was moved by somebody.
Of a task that was cleared there is `…/tip` alone: it would go on from there.
Beside git's own files of the worktree stands `dialogd`, the tree that its files were written from: where that is not
the tip's, the files are brought there first, except those that somebody edited.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
import stat
import sys
import tempfile
import threading
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from dialogd.errors import DialogdError, Refused, StorageError, UnsafeFile
from dialogd.protocol.build import Submission
from dialogd.protocol.model import digest
from dialogd.protocol.text import many
from dialogd.store.disk import fix, read_json, why, write_over
from dialogd.tasks.git import Checkout, Git, checkout_at, persons, shown

LARGEST = 100 * 1024 * 1024  # bytes of a file that a task may add or change
LONGEST_POINTER = 1024  # bytes of what Git LFS keeps in a file's place
PARTS = "places.json"  # in the kit of a task: where its parts stand
_LINK, _MODULE = b"120000", b"160000"


@dataclass(frozen=True, slots=True)
class Base:
    """What a build starts from: the branch that is checked out, and its commit.

    `uncommitted` names what the checkout holds beyond it, and what does not take part.
    """

    branch: str
    commit: str
    uncommitted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Worktree:
    """The worktree of a task: its folder, its branch, the commit that it starts from, and where git keeps its own."""

    path: Path
    branch: str
    base: str
    git_dir: Path
    common_dir: Path

    @property
    def name(self) -> str:
        """The task's name, such as `task-003-short-title`."""
        return self.path.name


@dataclass(frozen=True, slots=True)
class Conflict:
    """The commit that could not be carried onto another base, and the files that are in the way; nothing changed."""

    commit: str
    files: tuple[str, ...]


class Leftover(NamedTuple):
    """What a task has left by its `name`; `words` say what goes, or why all of it `stays`, and what to do."""

    task: str
    name: str
    words: str
    hidden: tuple[Path, ...] = ()
    stays: bool = False


class FileDiff(NamedTuple):
    """What happened to a file. `status` is git's letter; lines are None where it is binary; names fit on one line."""

    path: str
    status: str
    added: int | None
    deleted: int | None
    patch: str
    old_path: str = ""
    names: tuple[bytes, ...] = ()  # as git has them


@dataclass(frozen=True, slots=True)
class Diff:
    """All files that differ: `files` with their patches, `omitted` those for which there was no room."""

    stat: str
    files: tuple[FileDiff, ...]
    omitted: tuple[FileDiff, ...]


class _Entry(NamedTuple):
    """A file of a tree: mode, and the id of its content."""

    mode: bytes
    id: str


_Tree = Mapping[bytes, _Entry]


# -- The base ---------------------------------------------------------------------------------------------------------

_UNDER_WAY = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "BISECT_LOG": "bisect",
}


def base_of(repo: Path) -> Base:
    """What a build in this repository would start from; errors say what is in the way."""
    checkout = checkout_at(repo)
    git = Git(checkout.common_dir)
    branch = git.names("symbolic-ref", "--quiet", "HEAD", git_dir=checkout.git_dir, codes=(0, 1)).out.decode().strip()
    if not branch:
        raise Refused(f"no branch is checked out in {shown(checkout.path)}", fix="check one out: git switch BRANCH")
    commit = git.ref(branch)
    if not commit:
        raise Refused(f"{shown(checkout.path)} has no commit yet", fix="commit something there first")
    _nothing_under_way(checkout)
    modules = [path for path, entry in _files(git, tree_of(git, commit)).items() if entry.mode == _MODULE]
    if modules:
        problem = f"{shown(checkout.path)} has submodules ({some(modules)}), with which no task can work"
        raise Refused(problem, fix="name a repository without submodules")
    return Base(_short(branch), commit, tuple(map(shown, _uncommitted(git, checkout, commit))))


def _nothing_under_way(checkout: Checkout) -> None:
    """Refuse where git waits for the person to finish something."""
    for name, what in _UNDER_WAY.items():
        if (checkout.git_dir / name).exists():
            problem = f"a {what} is under way in {shown(checkout.path)}"
            raise Refused(problem, fix=f"finish or leave it: git {what} --continue or --abort")


def _uncommitted(git: Git, checkout: Checkout, commit: str) -> list[bytes]:
    """Files of a checkout that are not as in the commit; nothing there is changed, the index neither."""
    with _copied_index(git, checkout) as index:
        look = partial(git.run, work_tree=checkout.path, index=index, converts=True)
        look("update-index", "-q", "--refresh", codes=(0, 1))
        changed = look("diff-index", "-z", "--name-only", "--no-ext-diff", "--ignore-submodules", commit)
        new = look("ls-files", "-z", "--others", "--directory", *_ignoring(git))
    return sorted({*_split(changed), *_split(new)})


@contextmanager
def _an_index(git: Git) -> Iterator[Path]:
    """The path of an index for a look at something."""
    index = git.room / f"look.{os.getpid()}.{threading.get_ident()}"
    try:
        yield index
    finally:
        index.unlink(missing_ok=True)


@contextmanager
def _copied_index(git: Git, checkout: Checkout) -> Iterator[Path]:
    """A copy of a checkout's index."""
    with _an_index(git) as index:
        with _storing(index):
            try:
                index.write_bytes((checkout.git_dir / "index").read_bytes())
            except FileNotFoundError:
                git.run("read-tree", "--empty", index=index)
        yield index


# -- Worktrees --------------------------------------------------------------------------------------------------------


class Worktrees:
    """The worktrees of a build, in a folder of their own beside the checkout (`root`: NAME.dialogd).

    `build` names the build, such as the dialog's id: what another one made is not taken for its own.
    """

    def __init__(self, repo: Path, *, build: str = "") -> None:
        self.checkout = checkout_at(repo)
        self.git = Git(self.checkout.common_dir, here=self.checkout.git_dir)
        path = self.checkout.path
        self.root = path.with_name(f"{path.name}.dialogd")
        self._own = f"refs/dialogd/{re.sub(r'[^A-Za-z0-9]+', '-', build) or 'own'}"
        self.build = build
        self.trial = f"trial-{digest(build)}"  # its worktree's name

    def open(self, number: int, title: str, base: str, *, anywhere: bool = False) -> Worktree:
        """The worktree of a task, made from the commit `base`, or as it is there; what a kill left half is made whole.

        It keeps the name that it was made with, whatever the title is now. Nothing that is there already is written
        over: where a branch or a folder has the name, another one is taken. A branch that somebody moved is an error;
        one that starts from another commit is too, or with `anywhere` the worktree as it is, its tip the base.
        """
        base = self.git.commit(base)
        name = self._name(number, title)
        tip = self.git.ref(self._ref(name, "tip")) if anywhere else ""
        if tip and not self.is_ancestor(base, tip):
            base = tip
        branch = f"refs/heads/dialogd/{name}"
        self._make_root()
        self._make_branch(name, branch, base)
        git_dir = self._make_worktree(self.root / name, branch)
        worktree = Worktree(self.root / name, _short(branch), base, git_dir, self.git.git_dir)
        self._settle(worktree)
        return worktree

    def keep(self, worktree: Worktree, message: str) -> str:
        """Make half-made edits a commit of their own; its id, or "" where there are none."""
        tip = self._settle(worktree)
        tree = self._snapshot(worktree, tip)
        if tree == self.tree_of(tip):
            return ""
        return self._commit(worktree, tip, tree, message, {"Task": worktree.name.split("-")[1], "Kept": "true"})

    def submit(self, worktree: Worktree, number: int, debt: str, message: str) -> Submission:
        """Commit everything in answer to a debt; a commit that was made for it already is taken as it is."""
        tip = self._settle(worktree)
        trailers = {"Task": f"{number:03}", "Debt": debt}
        for commit in self.git.run("rev-list", "--first-parent", tip, f"^{worktree.base}").decode().split():
            if trailers.items() <= self._trailers(commit).items():
                return self._submission(commit, worktree.base, worktree.branch)
        commit = self._commit(worktree, tip, self._snapshot(worktree, tip), message, trailers)
        return self._submission(commit, worktree.base, worktree.branch)

    def diff(self, base: str, commit: str, limit: int) -> Diff:
        """What a commit changes, in patches of up to `limit` characters together; a file is in whole or only named.

        What is more than source comes first.
        """
        base, commit = self.git.commit(base), self.git.commit(commit)
        changes = _changes(self.git, base, commit)
        files, omitted = [], []
        for change in sorted(changes, key=is_beside_source, reverse=True):
            patch = _patch(self.git, base, commit, change, limit) if limit else ""
            if patch:
                limit -= len(patch)
                files.append(change._replace(patch=patch))
            else:
                omitted.append(change)
        return Diff(_summary(changes), tuple(files), tuple(omitted))

    def carry(self, worktree: Worktree, commits: Sequence[str], onto: str) -> Submission | Conflict:
        """Make a task's commits anew on another base, as a cherry-pick would, and bring branch and folder there.

        The commits that were there keep a name, `refs/dialogd/<build>/<task>/<id>`. From then on `onto` is the base to
        open the worktree with.
        """
        tip, onto = self._committed(worktree), self.git.commit(onto)
        at = onto
        for commit in map(self.git.commit, commits):
            picked = self._picked(commit, at)
            if isinstance(picked, Conflict):
                return picked
            at = picked
        if at != tip:
            kept = self._ref(worktree.name, tip)
            self._advance(worktree, tip, at, (kept, tip, self.git.ref(kept)))
            self._settle(replace(worktree, base=onto))
        return self._submission(at, onto, worktree.branch)

    def kept(self, worktree: Worktree) -> tuple[str, ...]:
        """The names under which stands what the task's branch held before it was brought elsewhere."""
        names = self.git.names("for-each-ref", "--format=%(refname)", f"{self._own}/{worktree.name}/").out.decode()
        return tuple(name for name in names.split() if name.rpartition("/")[2] not in ("tip", "before"))

    def others(self) -> list[Path]:
        """Where else files of this repository lie: other worktrees, and what git keeps."""
        found = (self.root.resolve(), self.git.git_dir, *self._registered(), *([self._main] if self._main else ()))
        return [path for path in found if path != self.checkout.path]

    def ignored(self) -> list[Path]:
        """The folders of the checkout of which git ignores all."""
        words = ("ls-files", "-z", "--others", "--ignored", "--directory", *_ignoring(self.git))
        with _copied_index(self.git, self.checkout) as index:
            names = _split(self.git.run(*words, work_tree=self.checkout.path, index=index))
        return [self.checkout.path / os.fsdecode(name) for name in names if name.endswith(b"/")]

    def left(self, commit: str, folder: Path) -> tuple[list[bytes], list[bytes]]:
        """In a folder with a commit's files: what git ignores there, and what else is not as the commit has it."""
        look = partial(self.git.run, "ls-files", "-z", "--others", work_tree=folder)
        with _an_index(self.git) as index:
            self.git.run("read-tree", self.tree_of(commit), index=index)
            ignored = look("--ignored", "--directory", *_ignoring(self.git), index=index)
            new = look(*_ignoring(self.git), index=index)
            return _split(ignored), [*_edited(self.git, folder, index, "-c", "core.fileMode=false"), *_split(new)]

    def raw(self, base: str, commit: str) -> tuple[str, ...]:
        """Files that a commit changes and that are no pointers, though by its attributes they belong to Git LFS."""
        git, new = self.git, _files(self.git, self.tree_of(commit))
        names = [path for path in _differing(_files(git, self.tree_of(base)), new) if path in new]
        with _an_index(git) as index:
            git.run("read-tree", self.tree_of(commit), index=index)
            found = [path for path, value in _filters(git, names, "--cached", index=index) if value == b"lfs"]
        return tuple(shown(path) for path in found if new[path].mode != _LINK and not self._is_pointer(new[path].id))

    def _is_pointer(self, blob: str) -> bool:
        """Whether a content is what Git LFS keeps in its place: a few lines, or nothing for nothing."""
        size = int(self.git.run("cat-file", "-s", blob))
        is_short = size < LONGEST_POINTER
        return not size or (is_short and self.git.run("cat-file", "blob", blob).startswith(b"version https://"))

    def tree_of(self, commit: str) -> str:
        """The id of a commit's tree."""
        return tree_of(self.git, self.git.commit(commit))

    def is_ancestor(self, ancestor: str, commit: str) -> bool:
        """Whether a commit, or itself, leads to another."""
        words = ("merge-base", "--is-ancestor", self.git.commit(ancestor), self.git.commit(commit))
        return self.git.done(*words, codes=(0, 1)).code == 0

    def forward(self, branch: str, to: str) -> Path | None:
        """Fast-forward a branch of the person, with the checkout that has it: that one's folder, None for none.

        Refused, with nothing changed: a branch that is no ancestor, edits in files that would change, files that
        only the person's own git writes as they should be (a filter, a sparse checkout).
        """
        to, name = self.git.commit(to), f"refs/heads/{branch}"
        at = self.git.ref(name)
        if not at:
            raise Refused(f"there is no branch {shown(branch)}", fix="name the branch that the work started from")
        checkout = self._checkout_of(name)
        if not self.is_ancestor(at, to):
            problem = f"{shown(branch)} has moved: {at[:12]} is no ancestor of {to[:12]}"
            raise Refused(problem, fix="rebase the tasks on it; then gate and review look at them again")
        if checkout is not None:
            _nothing_under_way(checkout)
            self._bring_along(checkout, at, to, branch)
        if at != to:
            where = checkout.git_dir if checkout else None
            self.git.update(f"dialogd: fast-forward to {to[:12]}", (name, to, at), git_dir=where)
        return checkout.path if checkout else None

    def leftovers(self, numbers: Collection[int], *, is_idle: bool) -> Iterator[Leftover]:
        """What tasks of this build with these numbers have left, and killed trials; with `is_idle` killed gates too."""
        refs = self.git.names("for-each-ref", "--format=%(refname)", f"{self._own}/").out.decode().split()
        found = Counter(ref.split("/")[3] for ref in refs if not ref.endswith("/tip"))  # `…/before`, earlier attempts
        gates = [f".gate-{self.build}-*"] if is_idle else []
        for name, kept in found.items():
            if int(number := name.split("-")[1]) not in numbers:
                continue
            own = [f".{kind}-{one}.*" for kind in ("kit", "setup") for one in (name, self.trial)]
            hidden = [path for pattern in (f".{name}.*", *own, *gates) for path in self.root.glob(pattern)]
            beside = ((len(hidden), "setup or gate folder"), (kept - 1, "earlier attempt"))
            more = "".join(f", {many(count, what)}" for count, what in beside if count > 0)
            words = f"goes: {shown(self.root / name)}, branch dialogd/{name}{more}"
            try:
                self._see_nothing_lost(name)
                yield Leftover(number, name, words, tuple(hidden))
            except DialogdError as error:
                yield Leftover(number, name, f"stays: {name}: {error}; {error.fix}", stays=True)

    def clear(self, one: Leftover) -> None:
        """Remove what a task has left, all but the name of its last commit: who looks at it later needs that.

        After a kill the same call does the rest. Raises `Refused` where something of somebody's would go.
        """
        from dialogd.tasks.gate import remove

        path, gone = self.root / one.name, self.root / f".{one.name}.gone"
        self._see_nothing_lost(one.name)
        remove(gone)
        with _storing(self.root):
            if path.is_dir():
                path.rename(gone)  # in one step: half of a worktree would pass for edits
        if path.resolve() in self._registered():
            self.git.names("worktree", "remove", "--force", str(path))
        for folder in (gone, *one.hidden):
            remove(folder)
            if folder.exists():
                raise Refused(f"{shown(folder)} cannot be removed", fix="remove it yourself, and try again")
        with suppress(OSError):
            self.root.rmdir()
        names = (f"{self._own}/{one.name}/", f"refs/heads/dialogd/{one.name}")
        listed = self.git.names("for-each-ref", "--format=%(refname) %(objectname)", *names).out.decode()
        # `…/before` goes as the last one: by it the rest is found.
        for name, at in sorted(map(str.split, listed.splitlines()), key=lambda row: row[0].endswith("/before")):
            if not name.endswith("/tip"):
                self.git.update("dialogd: cleared", (name, "", at))

    def _see_nothing_lost(self, name: str) -> None:
        """Raise `Refused` where worktree or branch of a task hold something of somebody's, with what to do."""
        path, branch, tip = self.root / name, f"refs/heads/dialogd/{name}", self.git.ref(self._ref(name, "tip"))
        git_dir, other = self._registered().get(path.resolve()), self._checkout_of(branch)
        if other is not None and other.path != path.resolve():
            raise Refused(f"its branch is checked out in {shown(other.path)}", fix="check out another one there")
        if not os.path.lexists(path):
            if self.git.ref(branch) not in ("", tip):
                raise Refused("somebody moved its branch", fix=f"look what it holds; git branch -D dialogd/{name}")
        elif path.is_symlink() or git_dir is None or (git_dir / "locked").exists():
            problem = f"{shown(path)} is locked, or no worktree of this repository"
            raise Refused(problem, fix=f"git worktree unlock '{shown(path)}', or move it away")
        else:
            self._committed(Worktree(path, _short(branch), tip, git_dir, self.git.git_dir))

    def export(self, commit: str, into: Path) -> None:
        """Write a commit's files to a folder that is empty or not there: as they are, symlinks as links, no `.git`."""
        with _storing(into):
            into.mkdir(mode=0o700, exist_ok=True)
        with _an_index(self.git) as index:
            _write_out(self.git, self.tree_of(commit), index, into)

    def scratch(self, prefix: str) -> Path:
        """A new folder beside the worktrees, for the gate's copy of a tree."""
        if self.root.is_dir() or not os.path.lexists(self.root):
            self._make_root()
        try:
            return Path(tempfile.mkdtemp(prefix=prefix, dir=self.root))
        except OSError as error:
            what = f"{shown(self.root)} has no place for the gate's copy: {why(error)}"
            raise StorageError(what, fix=fix(error)) from error

    # -- Names and folders of a task ----------------------------------------------------------------------------------

    def _make_root(self) -> None:
        """Make the folder of all worktrees, or see that it is safe."""
        with _storing(self.root):
            with suppress(FileExistsError):
                self.root.mkdir(mode=0o700)
            status = self.root.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise UnsafeFile(f"{shown(self.root)} is not a folder", fix="move it away, or name another place")
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            problem = f"{shown(self.root)} can be written by others"
            raise UnsafeFile(problem, fix=f"take that away: chmod 700 '{shown(self.root)}'")

    def _name(self, number: int, title: str) -> str:
        """The name that the task has, or else the first that is free."""
        for ref in self.git.names("for-each-ref", "--format=%(refname)", f"{self._own}/").out.decode().split():
            name = ref.removeprefix(f"{self._own}/").partition("/")[0]
            if f"{name}-".startswith(f"task-{number:03}-"):
                return name
        names = chain([plain := task_name(number, title)], (f"{plain}-{count}" for count in range(2, 1000)))
        return next(name for name in names if self._is_free(name))

    def _is_free(self, name: str) -> bool:
        """Whether nothing is called so, nor was until it was cleared."""
        taken = self.git.names("for-each-ref", f"refs/dialogd/*/{name}/tip", f"refs/heads/dialogd/{name}").out
        return not taken and not os.path.lexists(self.root / name)

    def _make_branch(self, name: str, branch: str, base: str) -> None:
        """Have the task's branch, and the names that say where it stands."""
        git, tip_name, before_name = self.git, self._ref(name, "tip"), self._ref(name, "before")
        tip = git.ref(tip_name)
        if git.ref(branch) and tip:
            return  # whether they agree is looked at with the worktree
        if git.ref("refs/heads/dialogd"):
            raise Refused("a branch `dialogd` is in the way", fix="give it another name: git branch -m dialogd NAME")
        if tip and not git.ref(before_name) and self.is_ancestor(base, tip):
            base = tip  # it was cleared, and has come back
        changes = [(before_name, base, git.ref(before_name)), (tip_name, base, tip)]
        if tip not in ("", base):  # somebody deleted the branch: its work is not lost
            kept = self._ref(name, tip)
            changes.append((kept, tip, git.ref(kept)))
        git.update(f"dialogd: {name} starts", *changes, (branch, base, ""))

    def _ref(self, name: str, what: str) -> str:
        """A name of ours for a commit of a task: `tip`, `before`, or its id."""
        return f"{self._own}/{name}/{what}"

    def _make_worktree(self, path: Path, branch: str) -> Path:
        """Have git's worktree at the path, without its files; the git directory that it has."""
        git_dir = self._registered().get(path.resolve())
        there = self._listed(path)
        if git_dir is not None and _is_whole(git_dir) and there:
            return git_dir
        other = self._checkout_of(branch)
        if other is not None and other.path != path.resolve():
            problem = f"{_short(branch)} is checked out in {shown(other.path)}"
            raise Refused(problem, fix=f"take that away: git worktree remove '{shown(other.path)}'")
        if there:
            link = path / ".git"
            if there != [".git"] or not link.is_file() or not link.read_bytes().startswith(b"gitdir: "):
                problem = f"{shown(path)} is there and is no worktree of {shown(self.checkout.path)}"
                raise Refused(problem, fix="move it away, and try again")
            with _storing(link):
                link.unlink()  # git was killed while it made the worktree
        self.git.names("worktree", "add", "--no-checkout", "--force", "--force", str(path), _short(branch))
        return self._registered()[path.resolve()]

    def _listed(self, path: Path) -> list[str]:
        """What is in the folder; nothing where there is none."""
        with _storing(path):
            if path.is_symlink():
                raise UnsafeFile(f"{shown(path)} is a symlink", fix="move it away, and try again")
            try:
                return [inside.name for inside in path.iterdir()]
            except FileNotFoundError:
                return []

    def _registered(self) -> dict[Path, Path]:
        """Folders of worktrees that the repository knows, each with the git directory that it has."""
        found = {}
        with suppress(FileNotFoundError):
            for git_dir in (self.git.git_dir / "worktrees").iterdir():
                with suppress(OSError):
                    link = os.fsdecode((git_dir / "gitdir").read_bytes().removesuffix(b"\n"))
                    found[(git_dir / link).parent.resolve()] = git_dir
        return found

    def _checkout_of(self, branch: str) -> Checkout | None:
        """The checkout that has a branch, if any has."""
        here = {**self._registered(), self._main: self.git.git_dir} if self._main else self._registered()
        for path, git_dir in here.items():
            head = self.git.names("symbolic-ref", "--quiet", "HEAD", git_dir=git_dir, codes=(0, 1, 128))
            if head.out.decode().strip() == branch:
                return Checkout(path, git_dir, self.git.git_dir)
        return None

    @property
    def _main(self) -> Path | None:
        """The main checkout; None where the repository has only linked ones."""
        if self.checkout.git_dir == self.git.git_dir:
            return self.checkout.path
        parent = self.git.git_dir.parent
        return parent if self.git.git_dir.name == ".git" else None

    # -- A worktree as it has to be -----------------------------------------------------------------------------------

    def _settle(self, worktree: Worktree) -> str:
        """See that nobody moved the worktree or its branch, finish what a kill left half; the branch's tip."""
        git, branch = self.git, f"refs/heads/{worktree.branch}"
        path, git_dir = worktree.path, worktree.git_dir
        _check_link(worktree)
        if git.names("symbolic-ref", "--quiet", "HEAD", git_dir=git_dir, codes=(0, 1)).out.decode().strip() != branch:
            problem = f"another branch than {worktree.branch} is checked out in {shown(path)}"
            raise Refused(problem, fix=f"go back: git -C '{shown(path)}' switch {worktree.branch}")
        tip, before, at = (
            git.ref(name) for name in (self._ref(worktree.name, "tip"), self._ref(worktree.name, "before"), branch)
        )
        if at != tip and at and at == before:
            git.update("dialogd: what was interrupted", (branch, tip, at), git_dir=git_dir)
        elif at != tip or not tip:
            problem = f"somebody moved {worktree.branch}: it was at {tip[:12]}, and is at {at[:12]}"
            keep = f"git branch NAME {at[:12]} keeps what is there, git -C '{shown(path)}' reset --soft {tip[:12]}"
            raise Refused(problem, fix=f"{keep} goes back; files stay as they are")
        if not any(self.is_ancestor(worktree.base, commit) for commit in {tip, before} - {""}):
            problem = f"{worktree.branch} does not start from {worktree.base[:12]}"
            raise Refused(
                problem, fix=f"rebase the task, or give it another name: git branch -m {worktree.branch} NAME"
            )
        have, want = self._files_from(worktree), self.tree_of(tip)
        if have != want:
            self._bring(worktree, have, want)
            git.run("read-tree", want, index=self._index(worktree))
            self._written(worktree, want)
        return tip

    def _committed(self, worktree: Worktree) -> str:
        """The branch's tip, where the worktree's files are as in it. Raises `Refused`."""
        tip = self._settle(worktree)
        if self._snapshot(worktree, tip) != self.tree_of(tip):
            path = shown(worktree.path)
            fix = f"move them elsewhere, or throw them away with it: git worktree remove --force '{path}'"
            raise Refused(f"{path} has edits that are in no commit", fix=fix)
        return tip

    def _files_from(self, worktree: Worktree) -> str:
        """The tree that the worktree's files were written from; the empty one where they were not yet."""
        try:
            return (worktree.git_dir / "dialogd").read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return self.git.nothing

    def _written(self, worktree: Worktree, tree: str) -> None:
        """Note that the files are those of a tree; git's own index, which was made anew, tells them as unchanged."""
        index = self._index(worktree, is_new=False)
        self.git.run("update-index", "-q", "--refresh", codes=(0, 1), work_tree=worktree.path, index=index)
        with _storing(worktree.git_dir):
            index.replace(worktree.git_dir / "index")
            write_over(f"{tree}\n".encode(), worktree.git_dir / "dialogd")

    def _index(self, worktree: Worktree, *, is_new: bool = True) -> Path:
        """An index of our own, beside git's."""
        index = worktree.git_dir / "dialogd.index"
        if is_new:
            with _storing(index):
                for name in (index, index.with_name(f"{index.name}.lock")):
                    name.unlink(missing_ok=True)
        return index

    def _bring(self, worktree: Worktree, have: str, want: str) -> None:
        """Bring the worktree's files from one tree to another; what somebody edited stays as it is."""
        git, root, index = self.git, worktree.path, self._index(worktree)
        old, new = _files(git, have), _files(git, want)
        git.run("read-tree", have, index=index)
        edited = _edited(git, root, index)
        part = self.root / f".{worktree.name}.part"  # what is there is moved to its place in one step, or not at all
        with _storing(root):
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(mode=0o700)
        changed = _differing(old, new)
        _write_out(git, want, index, part, [path for path in changed if path in new and path not in edited])
        with _storing(root):
            for path in reversed(changed):
                if path in old and path not in new and path not in edited:
                    _remove(root, path)
            for path in changed:
                if path in new and (path not in edited if path in old else _status(root, path) is None):
                    _move(part, root, path)
            os.sync()  # a power loss must not leave empty files that would pass for edits
            shutil.rmtree(part)

    # -- Commits ------------------------------------------------------------------------------------------------------

    def _snapshot(self, worktree: Worktree, tip: str) -> str:
        """The tree of the worktree's files as they are, written to the repository; `_index` holds it."""
        git, index, path = self.git, self._index(worktree), worktree.path
        git.run("read-tree", tip, index=index)
        others = _split(git.run("ls-files", "-z", "--others", *_ignoring(git), work_tree=path, index=index))
        with _storing(path):
            made = {os.fsencode(name) for kit in self.root.glob(f".kit-{worktree.name}.*") for name in places(kit)}
            others = [name for name in others if name not in made]  # also where git ignores it no more
            _refuse_nested(path, [*_files(git, self.tree_of(tip)), *others])
            changed = [*_edited(git, path, index), *others]
            there = [name for name in changed if _may_be_submitted(path, name)]
        gone = [b"0 %s\t%s\0" % (b"0" * len(git.nothing), name) for name in changed if name not in {*there}]
        git.run("update-index", "-z", "--index-info", index=index, stdin=b"".join(gone))
        names = b"".join(name + b"\0" for name in there)
        git.run("update-index", "--add", "-z", "--stdin", work_tree=path, index=index, stdin=names)
        return git.run("write-tree", index=index).decode().strip()

    def _commit(self, worktree: Worktree, tip: str, tree: str, message: str, trailers: Mapping[str, str]) -> str:
        """Commit a tree that `_index` holds on the task's branch."""
        text = message.replace("\0", "").strip() or worktree.name
        text += "\n\n" + "".join(f"Dialogd-{name}: {shown(value)}\n" for name, value in trailers.items())
        stdin = text.encode("utf-8", "backslashreplace")
        commit = self.git.run("commit-tree", tree, "-p", tip, stdin=stdin).decode().strip()
        self._advance(worktree, tip, commit)
        self._written(worktree, tree)
        return commit

    def _advance(self, worktree: Worktree, tip: str, commit: str, *more: tuple[str, str, str]) -> None:
        """Set the branch, and the names that say where it stands."""
        name, before_name = worktree.name, self._ref(worktree.name, "before")
        self.git.update(
            f"dialogd: {name}",
            (before_name, tip, self.git.ref(before_name)),
            (self._ref(name, "tip"), commit, tip),
            *more,
            (f"refs/heads/{worktree.branch}", commit, tip),
            git_dir=worktree.git_dir,
        )

    def _trailers(self, commit: str) -> dict[str, str]:
        """Our trailers of a commit: those of its last paragraph, so that no text before it passes for them."""
        message = self.git.run("cat-file", "commit", commit).decode("utf-8", "replace").partition("\n\n")[2]
        last = message.rstrip("\n").rpartition("\n\n")[2]
        pairs = (line.removeprefix("Dialogd-").partition(": ") for line in last.split("\n") if line[:8] == "Dialogd-")
        return {name: value for name, _, value in pairs}

    def _submission(self, commit: str, base: str, branch: str) -> Submission:
        changes = _changes(self.git, base, commit)
        added, deleted = sum(one.added or 0 for one in changes), sum(one.deleted or 0 for one in changes)
        return Submission(branch, commit, tree_of(self.git, commit), base, len(changes), added, deleted)

    def _picked(self, commit: str, at: str) -> str | Conflict:
        """A commit made anew on top of another one; the same whenever it is made."""
        git = self.git
        head, _, message = git.run("cat-file", "commit", commit).decode("utf-8", "replace").partition("\n\n")
        parents = re.findall(r"^parent (\w+)$", head, re.M)
        if len(parents) != 1:
            raise Refused(f"{commit[:12]} is a merge, or has no parent", fix="carry over the task's own commits")
        if parents == [at]:
            return commit
        # A stand-in with the files of `at` and the parent of `commit`: the merge of both is the cherry-pick.
        ours = git.run("commit-tree", tree_of(git, at), "-p", parents[0], stdin=b"base\n").decode().strip()
        merged = git.done(
            "merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", ours, commit, codes=(0, 1)
        )
        tree, *files = (part.strip(b"\n") for part in merged.out.split(b"\0"))
        if merged.code:
            return Conflict(commit, tuple(sorted({shown(name) for name in files if name})))
        stdin = message.encode("utf-8", "backslashreplace")
        when = " ".join(re.findall(r"^committer .*> (\d+) (\S+)$", head, re.M)[0])
        return git.run("commit-tree", tree.decode(), "-p", at, stdin=stdin, when=when).decode().strip()

    # -- The person's checkout ----------------------------------------------------------------------------------------

    def _bring_along(self, checkout: Checkout, at: str, to: str, branch: str) -> None:
        """Bring a checkout's files from one commit to another, or refuse before anything is touched.

        What is as it will be already counts as done: a kill leaves it so.
        """
        git, old, new = self.git, _files(self.git, self.tree_of(at)), _files(self.git, self.tree_of(to))
        look = partial(git.run, work_tree=checkout.path, converts=True)
        there = partial(look, index=checkout.git_dir / "index")
        by_hand = f"do it yourself: git -C '{shown(checkout.path)}' merge --ff-only {to[:12]}"
        changed = _differing(old, new)
        if any(line.startswith((b"S ", b"s ")) for line in _split(there("ls-files", "-t", "-z"))):
            raise Refused(f"{shown(checkout.path)} is a sparse checkout", fix=by_hand)
        found = _filters(git, changed, work_tree=checkout.path, index=checkout.git_dir / "index")
        if filtered := [path for path, value in found if value not in (b"unspecified", b"unset")]:
            problem = f"files that change go through a filter, which dialogd does not run: {some(filtered)}"
            raise Refused(problem, fix=by_hand)
        with _copied_index(git, checkout) as index:
            look("update-index", "-q", "--refresh", codes=(0, 1), index=index)
            differing = set(_split(look("diff-index", "-z", "--name-only", "--no-ext-diff", at, index=index)))
            git.run("read-tree", to, index=index)
            not_yet = _edited(git, checkout.path, index, converts=True)
        done: list[bytes] = []
        edited: list[bytes] = []
        with _storing(checkout.path):
            for path in changed:
                if path not in differing if path in old else _is_free(checkout.path, path, old):
                    continue
                is_done = path not in not_yet if path in new else _status(checkout.path, path) is None
                (done if is_done else edited).append(path)
        if edited:
            problem = f"{shown(branch)} is checked out in {shown(checkout.path)}, where edits are in the way"
            raise Refused(f"{problem}: {some(edited)}", fix="commit or stash them, and try again")
        zero = _Entry(b"0", "0" * len(git.nothing))
        lines = [b"%s %s\t%s\0" % (entry.mode, entry.id.encode(), path)
                 for path in done for entry in [new.get(path, zero)]]  # fmt: skip
        if lines:
            there("update-index", "-z", "--index-info", stdin=b"".join(lines))
        there("read-tree", "-m", "-u", at, to)
        there("update-index", "-q", "--refresh", codes=(0, 1))


# -- Names ------------------------------------------------------------------------------------------------------------


def task_name(number: int, title: str) -> str:
    """What a task's folder and branch are called: `task-003-short-title`."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    return f"task-{number:03}-{'-'.join(re.findall('[a-z0-9]+', plain))[:40]}".rstrip("-")


def _short(ref: str) -> str:
    return ref.removeprefix("refs/heads/")


def places(kit: Path) -> list[str]:
    """Where in its worktree the parts of a task's kit stand, by the list that lies in it."""
    return read_json(kit / PARTS) or []


def some(paths: Iterable[bytes]) -> str:
    """The first few names, and how many there are besides."""
    names = [shown(path) for path in paths]
    rest = len(names) - 5
    return ", ".join(names[:5]) + (f" and {rest} more" if rest > 0 else "")


# -- What git says ----------------------------------------------------------------------------------------------------


def tree_of(git: Git, commit: str) -> str:
    """The id of the tree of a commit that is named by its full id."""
    return git.run("rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}").decode().strip()


def _files(git: Git, tree: str) -> dict[bytes, _Entry]:
    """All files of a tree."""
    found = {}
    for line in _split(git.run("ls-tree", "-r", "-z", "--full-tree", tree)):
        head, _, path = line.partition(b"\t")
        mode, _, id_ = head.split(b" ")
        found[path] = _Entry(mode, id_.decode())
    return found


def _differing(old: _Tree, new: _Tree) -> list[bytes]:
    return sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))


def _folders_of(paths: Iterable[bytes]) -> set[bytes]:
    return {path[: match.start()] for path in paths for match in re.finditer(b"/", path)}


def _edited(git: Git, root: Path, index: Path, *settings: str, converts: bool = False) -> list[bytes]:
    """The files of an index that are not so in a folder, or not there."""
    look = partial(git.run, *settings, work_tree=root, index=index, converts=converts)
    look("update-index", "-q", "--refresh", codes=(0, 1))
    return _split(look("diff-files", "-z", "--name-only", "--no-ext-diff", "--ignore-submodules=none"))


def _filters(
    git: Git, names: Iterable[bytes], *words: str, index: Path, work_tree: Path | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """Each name, with the filter that attributes give it."""
    run = partial(git.run, stdin=b"".join(name + b"\0" for name in names), converts=True)
    said = _split(run("check-attr", *words, "-z", "--stdin", "filter", index=index, work_tree=work_tree))
    return zip(said[::3], said[2::3], strict=True)


def _write_out(git: Git, tree: str, index: Path, into: Path, names: Sequence[bytes] | None = None) -> None:
    """Write files of a tree to an empty folder, all of them or these; the index holds the tree then."""
    git.run("read-tree", tree, index=index)
    if both := _folders_of(known := _files(git, tree)) & known.keys():
        raise Refused(f"the tree {tree[:12]} has files that are folders, too: {some(both)}", fix="git fsck says more")
    words = ("--all",) if names is None else ("-z", "--stdin")
    stdin = b"".join(name + b"\0" for name in names or ())
    git.run("checkout-index", "--force", *words, work_tree=into, index=index, stdin=stdin)


def _ignoring(git: Git) -> list[str]:
    """How `ls-files` leaves out what is ignored: by the files' own rules, the repository's, and the person's."""
    default = (os.environ.get("XDG_CONFIG_HOME") or "~/.config") + "/git/ignore"
    rules = [Path(next(reversed(persons("core.excludesFile")), default)).expanduser(), git.git_dir / "info" / "exclude"]
    return ["--exclude-standard", *(f"--exclude-from={path}" for path in rules if path.is_file())]


def _split(out: bytes) -> list[bytes]:
    return out.removesuffix(b"\0").split(b"\0") if out else []


_DIFF = ("diff-tree", "-r", "-M", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=none")


def _changes(git: Git, base: str, commit: str) -> list[FileDiff]:
    """What happened to each file between two commits, without patches."""
    raw = iter(_split(git.run(*_DIFF, "--raw", "-z", base, commit)))
    numbers = iter(_split(git.run(*_DIFF, "--numstat", "-z", base, commit)))
    changes = []
    for head in raw:
        status = head.decode().rsplit(" ", 1)[1][0]
        path = next(raw)
        old, path = (path, next(raw)) if status in "RC" else (b"", path)
        added, deleted, name = next(numbers).split(b"\t", 2)
        if not name:
            next(numbers), next(numbers)
        lines = [None if number == b"-" else int(number) for number in (added, deleted)]
        changes.append(
            FileDiff(shown(path), status, lines[0], lines[1], "", shown(old), (path, old) if old else (path,))
        )
    return changes


def _summary(changes: Sequence[FileDiff]) -> str:
    """`3 files, +40 -2`, as it is told beside a submission."""
    added, deleted = (sum(getattr(change, what) or 0 for change in changes) for what in ("added", "deleted"))
    binary = sum(change.added is None for change in changes)
    files = f"{len(changes)} file{'' if len(changes) == 1 else 's'}"
    return f"{files}, +{added} -{deleted}" + (f", {binary} binary" if binary else "")


def _patch(git: Git, base: str, commit: str, change: FileDiff, limit: int) -> str:
    """The patch of one file; "" where it is longer than that."""
    if (change.added or 0) + (change.deleted or 0) > limit:
        return ""
    alone = f"--diff-filter={change.status}"  # where a folder has taken a file's place its files have that name too
    names = map(os.fsdecode, change.names)
    data = git.run(*_DIFF, "-p", "--full-index", alone, base, commit, "--", *names)
    patch = data.decode("utf-8", "replace") if len(data) <= 4 * limit else ""
    return patch[patch.index("diff --git ") :] if len(patch) <= limit and "diff --git " in patch else ""


# -- What is looked at first ------------------------------------------------------------------------------------------


def _is_whole(git_dir: Path) -> bool:
    """Whether git came to the end of making a worktree."""
    try:
        return not (git_dir / "locked").read_bytes().startswith(b"initializing")
    except FileNotFoundError:
        return (git_dir / "HEAD").is_file()


def _check_link(worktree: Worktree) -> None:
    """Refuse a worktree whose `.git`, a file that says where its git directory is, says something else."""
    link, right = worktree.path / ".git", f"gitdir: {worktree.git_dir}"
    is_file = link.is_file() and not link.is_symlink()
    said = os.fsdecode(link.read_bytes()) if is_file else ""
    there = worktree.path / said.removeprefix("gitdir: ").rstrip("\n")
    if said.startswith("gitdir: ") and there.resolve() == worktree.git_dir.resolve():
        return
    what = "was changed" if said else "is no file any more"
    problem = f"{shown(link)} {what}: a git that is run there would follow it elsewhere"
    raise Refused(problem, fix=f"see who did that, and put the file back, with this line: {shown(right)}")


def _refuse_nested(root: Path, paths: Iterable[bytes]) -> None:
    """Refuse a repository inside of the worktree: a git that is run there would run what it names."""
    planted = [path for path in paths if path.endswith(b"/") or any(map(_is_dot_git, path.split(b"/")))]
    planted += [name + b"/.git" for name in sorted(_folders_of(paths)) if _status(root, name + b"/.git") is not None]
    if planted:
        problem = f"a repository is inside of {shown(root)}: {some(planted)}"
        raise Refused(problem, fix="see who put it there, and take it away")


_IGNORED_BY_HFS = dict.fromkeys(
    [*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF]
)  # characters that macOS leaves out of names


def _is_dot_git(name: bytes) -> bool:
    """Whether some file system takes a name for `.git`."""
    plain = name.decode("utf-8", "replace").translate(_IGNORED_BY_HFS).casefold()
    return plain.split(":")[0].split("\\")[0].rstrip(". ") in (".git", "git~1")


# -- Files of a folder ------------------------------------------------------------------------------------------------


@contextmanager
def _storing(path: Path) -> Iterator[None]:
    """What the disk refuses is an error with a fix."""
    try:
        yield
    except OSError as error:
        name = error.filename if isinstance(error.filename, str | bytes) else path
        where = shown(os.fsencode(name))
        if isinstance(error, PermissionError):
            raise Refused(f"{where}: {why(error)}", fix="give yourself the right to it: chmod u+rwX") from error
        raise StorageError(f"{where}: {why(error)}", fix="make room, and try again") from error


def _status(root: Path, path: bytes) -> os.stat_result | None:
    """What stands at a path below a folder; None for nothing, and where a symlink on the way leads elsewhere."""
    place, status = os.fsencode(root), None
    for part in path.split(b"/"):
        if status is not None and not stat.S_ISDIR(status.st_mode):
            return None
        place += b"/" + part
        try:
            status = os.lstat(place)
        except FileNotFoundError:
            return None
    return status


def _may_be_submitted(root: Path, path: bytes) -> bool:
    """Whether a file or a symlink stands there. Refuses what nobody could review or git could not read."""
    status = _status(root, path)
    if status is None or stat.S_ISDIR(status.st_mode):
        return False
    name = shown(root / os.fsdecode(path))
    if stat.S_ISREG(status.st_mode):
        if status.st_size > LARGEST:
            problem = f"{name} is larger than {LARGEST // 1024**2} MiB"
            raise Refused(problem, fix="remove it, or name it in .gitignore: no reviewer could read it")
        (root / os.fsdecode(path)).open("rb").close()
    elif not stat.S_ISLNK(status.st_mode):
        raise Refused(f"{name} is neither a file nor a symlink", fix="remove it, or name it in .gitignore")
    return True


def _move(part: Path, root: Path, path: bytes) -> None:
    """Put a file in its place, unless somebody has put another thing in the way."""
    *folders, _ = path.split(b"/")
    place = root
    for name in folders:
        place /= os.fsdecode(name)
        with suppress(FileExistsError):
            place.mkdir()
        if place.is_symlink() or not place.is_dir():
            return
    (part / os.fsdecode(path)).replace(root / os.fsdecode(path))


def _remove(root: Path, path: bytes) -> None:
    """Remove a file, and the folders above it that are empty then."""
    place = root / os.fsdecode(path)
    place.unlink()
    with suppress(OSError):
        while (place := place.parent) != root:
            place.rmdir()


def _is_free(root: Path, path: bytes, going: _Tree) -> bool:
    """Whether a file can come there without one of the person's being lost; those of `going` are git's to judge."""
    parts = path.split(b"/")
    for count in range(1, len(parts) + 1):
        name = b"/".join(parts[:count])
        status = _status(root, name)
        if status is None:
            return True
        if not stat.S_ISDIR(status.st_mode):
            return name in going
    return all(
        os.fsencode(inside.relative_to(root)) in going
        for inside in (root / os.fsdecode(path)).rglob("*")
        if inside.is_symlink() or not inside.is_dir()
    )


# -- What steers a gate -----------------------------------------------------------------------------------------------

_SOURCE = re.compile(
    r"\.(?:c|cc|cpp|cs|cxx|dart|erl|exs?|fs|go|h|hh|hpp|hs|java|[cm]?[jt]s|[jt]sx|kt|lua|mli?|mm?|php|pl|pyi?|rb|rs|"
    r"scala|svelte|swift|vue|zig)"
)
_READ_BY_RUNNERS = re.compile(
    r"conftest|setup|noxfile|tasks|dodo|fabfile|sitecustomize|usercustomize|build|Rakefile|gulpfile|Gruntfile|"
    r".*\.(?:config|conf|setup|workspace)|.*[._-]setup|setup[._-].*"
)
_FOLDERS = frozenset({"bin", "ci", "dev", "hack", "node_modules", "script", "scripts", "tool", "tools", "vendor"})
_RUNNERS = frozenset({"_pytest", "coverage", "hypothesis", "nose", "pluggy", "pytest"}) | sys.stdlib_module_names


def is_beside_source(change: FileDiff) -> bool:
    """Whether a changed file is more than source: it may say what is tested, or what a tester runs.

    What is no source by its name; source that runners read by themselves, in a folder of tools or a hidden one; and a
    new module that stands in the way of one that tests are run by.
    """
    for path in filter(None, (change.path, change.old_path)):
        *folders, name = path.split("/")
        stem, suffix = posixpath.splitext(name)
        shadows = change.status != "M" and not _RUNNERS.isdisjoint({*folders, stem} - {"test"})
        steers = _READ_BY_RUNNERS.fullmatch(stem) or path.startswith(".") or "/." in path
        if not _SOURCE.fullmatch(suffix) or steers or shadows or not _FOLDERS.isdisjoint(folders):
            return True
    return False

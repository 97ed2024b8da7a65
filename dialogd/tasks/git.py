"""The one place that runs git: no hook, filter or other program that a repository brings along runs by these calls.

Files, trees and commits are worked on from a *clean room*: a git directory of dialogd's own inside the repository's
one (`.git/dialogd`), with the repository's objects and none of its settings, attributes, hooks or names. What has to
do with names (branches, worktrees) is asked of the repository itself, by the few commands that run nothing but hooks
and with hooks switched off. Nothing is inherited from the environment, and nothing reaches the network, but by `push`,
which is the person's own git, for their word.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict, Unpack

from dialogd.errors import DialogdError, NotInstalled, Refused, StorageError
from dialogd.store.disk import fix, make_folder, why, write_over

PATIENCE = 300.0  # seconds for one call of git
OLDEST = (2, 38)  # `merge-tree --write-tree`, by which a task is carried onto another base

# What remains of the repository's settings: properties of its file system, and how text is written to a checkout.
_KEPT = ("core.filemode", "core.ignorecase", "core.precomposeunicode", "core.symlinks", "core.autocrlf", "core.eol")

# What is in a worktree is what is committed, whatever attributes it brings along: these come before them.
_RAW = "* -text !crlf !eol -ident -filter !working-tree-encoding\n"

# In force for each call, also where the repository says otherwise. The clean room needs none of them; they are what
# the calls on names stand on.
_OVERRIDES = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.commitGraph": "false",
    "core.fsync": "committed,reference",
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "core.quotePath": "false",
    "core.logAllRefUpdates": "true",
    "protocol.allow": "never",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "worktree.useRelativePaths": "false",
}


def _settings(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The variables by which git is given these settings, before those of any file."""
    told = {"GIT_CONFIG_COUNT": str(len(pairs))}
    for number, (name, value) in enumerate(pairs):
        told |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return told


_ENVIRONMENT = {
    "HOME": os.devnull,
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",  # a replaced object has another content than its id says
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "",
    **dict.fromkeys(("GIT_ASKPASS", "GIT_EDITOR", "GIT_SSH_COMMAND"), "false"),
    "GIT_PAGER": "cat",
    **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "dialogd"),
    **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "dialogd@localhost"),
    **_settings([*_OVERRIDES.items()]),
}


def _environment() -> dict[str, str]:
    """What git is given: nothing of ours but where programs are."""
    return {"PATH": os.environ.get("PATH", os.defpath), **_ENVIRONMENT}


@dataclass(frozen=True, slots=True)
class Done:
    """A call of git that came to its end."""

    code: int
    out: bytes
    said: str


class How(TypedDict, total=False):
    """How a command of the clean room runs.

    `codes` are the exit codes that are no error, 0 by default. A commit that it makes is of the time `when`, by default
    now. Content is written and read as it is, or with `converts` as the attributes and settings of a checkout have it.
    """

    work_tree: Path | None
    index: Path | None
    stdin: bytes
    codes: tuple[int, ...]
    when: str
    converts: bool


class Git:
    """Git on one repository. `git_dir` is the directory that all its worktrees share: `.git` of the main checkout.

    `here` is that of the checkout whose `HEAD` is meant where a commit is named so.
    """

    def __init__(self, git_dir: Path, *, here: Path | None = None, patience: float = PATIENCE) -> None:
        _check_version()
        self.git_dir = git_dir
        self.here = here or git_dir
        self.patience = patience
        self.room = git_dir / "dialogd"
        settings = self.settings()
        self.digest = "sha256" if settings.get("extensions.objectformat") == "sha256" else "sha1"
        self.nothing = _EMPTY[self.digest]
        self._make_room(settings)

    def run(self, *words: str, **how: Unpack[How]) -> bytes:
        """What a command says about files, trees and commits, asked from the clean room: it knows ids, no names.

        Exit codes but those of `how` are raised as errors.
        """
        return self.done(*words, **how).out

    def done(self, *words: str, **how: Unpack[How]) -> Done:
        """As `run`, with the exit code."""
        return self._call(words, self._clean(how), how.get("work_tree"), how.get("stdin", b""), how.get("codes", (0,)))

    def names(
        self, *words: str, git_dir: Path | None = None, stdin: bytes = b"", codes: tuple[int, ...] = (0,)
    ) -> Done:
        """What a command does with names of the repository: rev-parse, symbolic-ref, update-ref, worktree ...

        `git_dir` is that of a worktree, where its `HEAD` is meant. Nothing that reads files, attributes or an index
        may be asked here: that would go by the repository's settings.
        """
        return self._call(words, {"GIT_DIR": str(git_dir or self.git_dir)}, None, stdin, codes)

    def settings(self) -> dict[str, str]:
        """The repository's own settings, names in small letters but for what stands in quotation marks; only read."""
        listed = self.names("config", "--local", "--includes", "-z", "--list").out.decode("utf-8", "replace")
        pairs = (setting.partition("\n") for setting in listed.split("\0") if setting)
        return {name: value if equals else "true" for name, equals, value in pairs}

    def commit(self, name: str) -> str:
        """The full id of the commit that a name or an id stands for."""
        done = self.names(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}",
            git_dir=self.here, codes=(0, 1, 128),
        )  # fmt: skip
        found = done.out.decode().strip()
        if done.code or not _ID.fullmatch(found):
            raise Refused(f"{shown(name)} is no commit of {shown(self.git_dir)}", fix="name a commit or a branch of it")
        return found

    def has(self, commit: str) -> bool:
        """Whether the commit, or the tag of one, of that full id is here."""
        return not self.done("cat-file", "-e", f"{commit}^{{commit}}", codes=(0, 1, 128)).code

    def commit_as(self, person: Person, tree: str, parent: str, message: str) -> str:
        """A commit by the person, signed where their git signs. Raises `Refused` where that cannot be now."""
        signs, ours = bool(person.signing), [*_OVERRIDES.items(), *person.signing]
        words = ("commit-tree", *["-S"] * signs, tree, "-p", parent)
        places = self._clean({}) | (_own() if signs else {}) | {"LC_ALL": "C"} | person.names | _settings(ours)
        done = self._call(words, places, None, message.encode("utf-8", "surrogateescape"), (0, 1, 128))
        if done.code and signs:
            said = " / ".join(row for row in done.said.split("\n") if row.strip() and "[GNUPG:]" not in row)
            fix = "see that your key can be used (gpg-agent, ssh-add -l), or: git config --global commit.gpgSign false"
            raise Refused(f"your git signs commits, and could not: {shown(said)[:500]}", fix=fix)
        if done.code:
            raise failure("commit-tree", done)
        return done.out.decode().strip()

    def ref(self, name: str) -> str:
        """The id that a full name such as `refs/heads/main` stands for; "" where there is none."""
        done = self.names("rev-parse", "--verify", "--quiet", "--end-of-options", name, codes=(0, 1))
        return done.out.decode().strip()

    def update(self, message: str, *changes: tuple[str, str, str], git_dir: Path | None = None) -> None:
        """Set refs all together: full name, new id, id they must have until then ("" for none)."""
        zero = "0" * len(self.nothing)
        lines = [f"update {name}\0{new or zero}\0{old or zero}\0" for name, new, old in changes]
        self.names("update-ref", "-m", message, "-z", "--stdin", git_dir=git_dir, stdin="".join(lines).encode())

    def _clean(self, how: How) -> dict[str, str]:
        """Where the clean room is, and when it is there."""
        places = {
            "GIT_DIR": str(self.room if how.get("converts") else self.room / "raw"),
            "GIT_OBJECT_DIRECTORY": str(self.git_dir / "objects"),
            "GIT_SHALLOW_FILE": str(self.git_dir / "shallow"),
        }
        if index := how.get("index"):
            places["GIT_INDEX_FILE"] = str(index)
        if work_tree := how.get("work_tree"):
            places["GIT_WORK_TREE"] = str(work_tree)
        if when := how.get("when"):
            places |= {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
        return places

    def _make_room(self, settings: Mapping[str, str]) -> None:
        """Make the clean room, or make it anew where its settings are not as they have to be."""
        kept = [f"\t{name[5:]} = {settings[name]}\n" for name in _KEPT if settings.get(name, "") in _PLAIN]
        config = "[core]\n\trepositoryformatversion = 1\n\tbare = true\n" + "".join(kept)
        if self.digest != "sha1":
            config += f"[extensions]\n\tobjectFormat = {self.digest}\n"
        files = {"HEAD": "ref: refs/heads/none\n", "config": config}
        try:
            for room, its in ((self.room, files), (self.room / "raw", {**files, "info/attributes": _RAW})):
                make_folder(room / "refs")
                make_folder(room / "info")
                for name, text in its.items():
                    path = room / name
                    if not path.is_file() or path.read_text(encoding="utf-8") != text:
                        write_over(text.encode(), path)
        except OSError as error:
            raise StorageError(f"cannot write {shown(self.room)}: {why(error)}", fix=fix(error)) from error

    def _call(
        self,
        words: tuple[str, ...],
        places: Mapping[str, str],
        folder: Path | None,
        stdin: bytes,
        codes: tuple[int, ...],
    ) -> Done:
        """Run git in a group of its own, that is gone then."""
        try:
            process = subprocess.Popen(
                ["git", *words],
                cwd=folder or self.git_dir,
                env={**_environment(), **places},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            gone = f"{shown(folder or self.git_dir)} is not there any more"
            raise Refused(gone, fix="put it back, or name another repository") from error
        except OSError as error:
            raise StorageError(f"cannot run git: {why(error)}", fix=fix(error)) from error
        with process:
            try:
                out, said = process.communicate(stdin, self.patience)
            except subprocess.TimeoutExpired:
                problem = f"git {words[0]} took longer than {self.patience:g} s"
                raise Refused(problem, fix="see what keeps the disk busy, and try again") from None
            finally:
                if process.poll() is None:
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)
        done = Done(process.returncode, out, said.decode("utf-8", "backslashreplace"))
        if done.code not in codes:
            raise failure(words[0], done)
        return done


_EMPTY = {
    "sha1": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "sha256": "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}
_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_PLAIN = frozenset({"true", "false", "input", "lf", "crlf", "native"})


def shown(name: str | bytes | Path) -> str:
    """A name of a file or a branch on one line: what could pass for something else is escaped."""
    text = name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)
    text = text.encode("utf-8", "backslashreplace").decode()
    return "".join(character if character.isprintable() else f"\\u{ord(character):04x}" for character in text)


def failure(command: str, done: Done) -> DialogdError:
    """What went wrong with a call, as an error that says what to do."""
    lines = [line for line in done.said.split("\n") if line.strip()]
    said = shown(next((line for line in lines if line.startswith(("fatal: ", "error: "))), "".join(lines[:1])))
    said = said.removeprefix("fatal: ").removeprefix("error: ")
    if done.code < 0:
        said = f"it was ended by signal {-done.code}"
    problem = f"git {command}: {said or f'exit code {done.code}'}"
    if done.code == -signal.SIGXFSZ or any(word in done.said for word in _FULL):
        return StorageError(problem, fix="free some space; nothing was changed, and it will be tried again")
    if missing := re.search(r"unable to read (?:sha1 file of|tree|object)? ?(.+)", done.said):
        fix = "fetch what is missing: git fetch --refetch; git fsck says what it is"
        return Refused(f"{shown(missing[1])} has no content here: the clone is partial or damaged", fix=fix)
    lock = re.search(r"'([^'\n]+\.lock)': File exists", done.said)
    if lock:
        return Refused(problem, fix=f"wait for the git that is at work there; if there is none: rm '{shown(lock[1])}'")
    return Refused(problem, fix="`git status` and `git fsck` in the repository say more")


_FULL = ("No space left on device", "Disk quota exceeded", "File too large", "unable to write", "Read-only file system")


def _ran(folder: Path, environment: dict[str, str], *words: str, patience: float | None = 60.0) -> Done:
    """A call of git in a folder, with nothing but these variables; None for as long as it takes."""
    done = subprocess.run(
        ["git", *words], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=patience,
        check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout, done.stderr.decode("utf-8", "backslashreplace"))


_INSTALL = f"install git {OLDEST[0]}.{OLDEST[1]} or newer"


@cache
def _check_version() -> None:
    """Raises `NotInstalled` without a git that is new enough; asked once a process."""
    try:
        said = _ran(Path("/"), _environment(), "version").out
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled("git cannot be run", fix=_INSTALL) from error
    version = tuple(int(number) for number in re.findall(rb"\d+", said)[:2])
    if version < OLDEST:
        raise NotInstalled(f"git {'.'.join(map(str, version))} is too old", fix=_INSTALL)


@dataclass(frozen=True, slots=True)
class Checkout:
    """A folder with files of a repository: its git directory, and the one that all worktrees share."""

    path: Path
    git_dir: Path
    common_dir: Path


def checkout_at(repo: Path) -> Checkout:
    """The checkout whose top folder `repo` is. Errors: no repository, a bare one, a folder inside one."""
    _check_version()
    choose = "name the top folder of a git repository"
    try:
        path = repo.resolve(strict=True)
    except OSError as error:
        raise Refused(f"{shown(repo)}: {why(error)}", fix=choose) from error
    if not path.is_dir():
        raise Refused(f"{shown(repo)} is not a folder", fix=choose)
    if b"\n" in os.fsencode(path):
        raise Refused(f"{shown(path)} has a line break in its name", fix="rename it: git cannot keep worktrees of it")
    trusted = [word for folder in persons("safe.directory") for word in ("-c", f"safe.directory={folder}")]
    asked = ("--is-bare-repository", "--absolute-git-dir", "--git-common-dir", "--show-toplevel")
    done = _ran(path, _environment(), *trusted, "rev-parse", "--path-format=absolute", *asked)
    answers = done.out.split(b"\n")[:-1]
    if "not a git repository" in done.said:
        raise Refused(f"{shown(path)} is no git repository", fix=f"{choose}; `git init` and a commit make one")
    if "dubious ownership" in done.said:
        raise Refused(
            f"the repository {shown(path)} belongs to another user",
            fix="use a clone of your own; or trust it: git config --global --add safe.directory DIR",
        )
    if answers[:1] == [b"true"]:
        raise Refused(f"{shown(path)} is a bare repository", fix="name a checkout of it: git clone makes one")
    if done.code or len(answers) != len(asked):
        raise failure("rev-parse", done)
    _, git_dir, common, top = (Path(os.fsdecode(answer)) for answer in answers)
    if top.resolve() != path:
        raise Refused(f"{shown(path)} is a folder of the repository {shown(top)}", fix=f"name {shown(top)} itself")
    return Checkout(path, git_dir.resolve(), common.resolve())


def persons(name: str) -> list[str]:
    """The paths that a setting of the person's own names, whatever a repository says; nothing runs by it."""
    return _asked("config", "--includes", "--type=path", "-z", "--get-all", name)[0].split("\0")[:-1]


def _own(*kept: str) -> dict[str, str]:
    """The person's environment, without what steers a git but for the variables that begin so."""
    return {key: value for key, value in os.environ.items() if not key.startswith("GIT_") or key.startswith(kept)}


def _asked(*words: str, git_dir: Path | None = None) -> tuple[str, str]:
    """What the person's git says and complains of; of a repository it knows the settings alone, and runs nothing."""
    own = _own("GIT_CONFIG_", "GIT_AUTHOR_", "GIT_COMMITTER_") | {"LC_ALL": "C"}
    own |= {"GIT_DIR": str(git_dir)} if git_dir else {}
    done = _ran(Path("/"), own, *words)
    return os.fsdecode(done.out), done.said


@dataclass(frozen=True, slots=True)
class Person:
    """Who commits by hand: author and committer, as variables of git's, and how their git signs, () for not at all."""

    names: dict[str, str]
    signing: tuple[tuple[str, str], ...] = ()

    @property
    def words(self) -> str:
        """Name and address, as a trailer has them."""
        return f"{self.names['GIT_COMMITTER_NAME']} <{self.names['GIT_COMMITTER_EMAIL']}>"


# By which programs a person signs, their own settings alone say; whether, and with which key, a repository may say too.
_SIGNERS = ("gpg.program", "gpg.openpgp.program", "gpg.x509.program", "gpg.ssh.program", "gpg.ssh.defaultkeycommand")


def person_of(git: Git) -> Person:
    """The person as their git knows them in that repository. Raises `Refused` where it has no name or address."""
    names: dict[str, str] = {}
    for who in ("AUTHOR", "COMMITTER"):
        found, said = _asked("-c", "user.useConfigOnly=true", "var", f"GIT_{who}_IDENT", git_dir=git.git_dir)
        match = re.fullmatch(r"(.+) <(.*)> \d+ [+-]\d+\n", found)
        if match is None:
            why = next((row for row in said.split("\n") if row.startswith("fatal: ")), "it has no name")
            fix = 'git config --global user.name "Your Name", and git config --global user.email you@example.org'
            raise Refused(f"your git does not say who you are: {shown(why.removeprefix('fatal: '))}", fix=fix)
        names |= {f"GIT_{who}_NAME": match[1], f"GIT_{who}_EMAIL": match[2]}
    wanted = _asked("config", "--type=bool", "--get", "commit.gpgsign", git_dir=git.git_dir)[0]
    if wanted.strip() != "true":
        return Person(names)
    signing = [("commit.gpgsign", "true")]
    for name in ("gpg.format", "user.signingkey", *_SIGNERS):
        told = _asked("config", "--show-scope", "-z", "--get-all", name, git_dir=git.git_dir)[0].split("\0")
        taken = ("system", "global", "command") if name in _SIGNERS else ("system", "global", "command", "local")
        signing += [(name, value) for scope, value in zip(told[::2], told[1::2], strict=False) if scope in taken]
    return Person(names, tuple(signing))


def new_repository(folder: Path, files: Mapping[str, str]) -> None:
    """Make an empty folder a repository with one commit of these files on `main`. Raises `DialogdError`.

    It has an identity of its own and signs nothing: what is tried in it asks for none of the person's keys.
    """
    _check_version()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    settings = {"user.name": "You", "user.email": "you@localhost", "commit.gpgSign": "false"}
    for words in (
        ("init", "--quiet", "--template=", "--initial-branch=main"),
        *(("config", name, value) for name, value in settings.items()),
        ("add", "--all"),
        ("commit", "--quiet", "--message=Begin"),
    ):
        done = _ran(folder, _environment(), *words)
        if done.code:
            raise failure(words[0], done)


# -- What the person publishes ----------------------------------------------------------------------------------------


def remotes(repo: Path) -> dict[str, str]:
    """The remotes of the repository by name, each with where it is; only read."""
    found = (
        (re.fullmatch(r"remote\.(.*)\.url", name), url)
        for name, url in Git(checkout_at(repo).common_dir).settings().items()
    )
    return {match[1]: url for match, url in found if match}


def push(repo: Path, remote: str, branch: str) -> None:
    """Push a branch as the person would: by their own git, with their settings, keys and hooks."""
    done = _ran(repo, _own(), "push", "--", remote, f"refs/heads/{branch}:refs/heads/{branch}", patience=None)
    if done.code:
        raise failure("push", done)

"""Real repositories for tests of builds, as a person has them, and programs planted wherever git would run one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HOOKS = (
    "applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg",
    "commit-msg", "post-commit", "pre-rebase", "post-checkout", "post-merge", "pre-push", "pre-receive", "update",
    "proc-receive", "post-receive", "post-update", "reference-transaction", "push-to-checkout", "pre-auto-gc",
    "post-rewrite", "sendemail-validate", "fsmonitor-watchman", "post-index-change",
)  # fmt: skip


@dataclass(frozen=True)
class Repo:
    """A repository with a checkout, and git as its person runs it: with every setting that it has."""

    path: Path
    home: Path

    def git(self, *words: str, cwd: Path | None = None, may_fail: bool = False, stdin: str = "") -> str:
        """What git says, without the last line end."""
        done = subprocess.run(
            ["git", *words],
            cwd=cwd or self.path,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.home),
                "GIT_CONFIG_NOSYSTEM": "1",
                **{f"GIT_{who}_{what}": "P@x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
            },
            input=stdin.encode(),
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert may_fail or done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout.decode("utf-8", "surrogateescape").removesuffix("\n")

    def write(self, files: Mapping[str, str | bytes], at: Path | None = None) -> None:
        """Write files, by default in the checkout."""
        write(at or self.path, files)

    def commit(self, files: Mapping[str, str | bytes] | None = None, message: str = "a change") -> str:
        """Commit everything, with these files; the commit's id."""
        self.write(files or {})
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files in a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def a_repo(folder: Path, files: Mapping[str, str | bytes] | None = None, *words: str) -> Repo:
    """A repository with one commit; `words` go to `git init`."""
    (folder / "home").mkdir()
    repo = Repo(folder / "a project", folder / "home")
    repo.path.mkdir()
    repo.git("init", "-q", "-b", "main", *words)
    repo.commit(files or {"a.txt": "one\ntwo\n", "src/b.py": "x = 1\n" * 20, "src/c.py": "y = 2\n"}, "first")
    return repo


def tree(folder: Path) -> dict[str, bytes | str]:
    """All files below a folder, but git's own: their content, or where a symlink leads."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.split("/")[0] != ".git" and (path.is_symlink() or path.is_file()):
            found[name] = str(path.readlink()) if path.is_symlink() else path.read_bytes()
    return found


@dataclass(frozen=True)
class Plants:
    """Programs that leave their name in a folder when anything runs them."""

    folder: Path

    def program(self, name: str, after: str = "cat") -> str:
        """The path of a program that notes that it ran."""
        bin_, marks = self.folder / "bin", self.folder / "ran"
        for place in (bin_, marks):
            place.mkdir(parents=True, exist_ok=True)
        path = bin_ / name
        path.write_text(f"#!/bin/sh\n: > '{marks}/{name}'\n{after}\n")
        path.chmod(0o755)
        return str(path)

    @property
    def ran(self) -> set[str]:
        """Names of those that were run."""
        return {path.name for path in (self.folder / "ran").iterdir()}

    def forget(self) -> None:
        """Begin anew."""
        for path in (self.folder / "ran").iterdir():
            path.unlink()

    def settings(self) -> dict[str, str]:
        """A setting for each program that a repository can name."""
        command = {name: f"'{self.program(name)}'" for name in (
            "clean", "smudge", "textconv", "diff-command", "external", "editor", "sequence-editor", "pager",
            "pager-diff", "ssh", "credential", "alias", "refs-command", "pack-hook", "askpass", "proxy", "filter-tar",
        )}  # fmt: skip
        return {
            "core.fsmonitor": self.program("fsmonitor", "exit 1"),
            "filter.planted.clean": command["clean"],
            "filter.planted.smudge": command["smudge"],
            "filter.planted.required": "true",
            "filter.long.process": f"'{self.program('process', 'exit 1')}'",
            "filter.long.required": "true",
            "diff.planted.textconv": command["textconv"],
            "diff.commanded.command": command["diff-command"],
            "diff.external": command["external"],
            "merge.planted.driver": f"'{self.program('merge', 'exit 1')}' %A",
            "merge.default": "planted",
            "commit.gpgSign": "true",
            "gpg.program": self.program("gpg", "exit 1"),
            "gpg.ssh.program": self.program("gpg-ssh", "exit 1"),
            "core.editor": command["editor"],
            "sequence.editor": command["sequence-editor"],
            "core.pager": command["pager"],
            "pager.diff": command["pager-diff"],
            "core.sshCommand": command["ssh"],
            "core.askPass": self.program("askpass"),
            "core.gitProxy": self.program("proxy"),
            "core.alternateRefsCommand": command["refs-command"],
            "uploadpack.packObjectsHook": command["pack-hook"],
            "credential.helper": f"!{command['credential']}",
            "alias.wt": f"!{command['alias']}",
            "tar.tar.command": command["filter-tar"],
            "protocol.ext.allow": "always",
            "remote.origin.url": f"ext::{self.program('remote', 'exit 1')} %S",
            "remote.origin.promisor": "true",
        }

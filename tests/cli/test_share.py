"""One dialog on two machines: two homes, two states, two files, and a repository or a database between them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest

from tests.cli.command import Commands, Done
from tests.support.gitdaemon import Repository

pytestmark = pytest.mark.skipif(which("ssh-keygen") is None, reason="ssh-keygen is not installed")


def machine(folder: Path, name: str) -> Commands:
    """A machine of its own, with a person who has an SSH key."""
    home = folder / name
    (home / ".ssh").mkdir(parents=True)
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(home / ".ssh/id_ed25519")]
    subprocess.run(words, check=True)
    commands = Commands(home)
    commands.environment |= {"GIT_CONFIG_GLOBAL": str(home / ".gitconfig"), "GIT_CONFIG_NOSYSTEM": "1", "USER": name}
    commands.environment |= {"LOGNAME": name}
    commands.environment.pop("SSH_AUTH_SOCK", None)
    return commands


@pytest.fixture
def ada(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    commands = machine(tmp_path, "ada")
    yield commands
    commands.end_daemons()


@pytest.fixture
def bob(tmp_path: Path) -> Iterator[Commands]:
    commands = machine(tmp_path, "bob")
    yield commands
    commands.end_daemons()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return Repository(tmp_path / "repository").url


def shared(ada: Commands, url: str, *words: str) -> str:
    """The line for the other side."""
    done = ada("share", url, "--yes", *words)
    assert done.code == 0, done.err
    return done.out.rstrip("\n").split("\n")[-1]


def ok(done: Done) -> Done:
    assert done.code == 0, done.err + done.out
    return done


def standing(machine: Commands) -> dict[str, object]:
    found: dict[str, object] = ok(machine("status", "--json")).json["shared"]
    return found


def test_a_line_carries_a_new_dialog_to_another_machine(ada: Commands, bob: Commands, url: str) -> None:
    ada.begin("Tabs?")
    before = ada.file.read_bytes()
    asked = ada("share", url)
    assert (asked.code, asked.out, ada.file.read_bytes()) == (1, "", before)
    assert "whoever may read that repository can read all of it" in asked.err
    assert "here: A; elsewhere: B" in asked.err
    assert "--yes" in asked.err
    line = shared(ada, url)
    assert line.startswith(f"dialogd+{url}#dialog=")
    assert "[keys]" in ada.file.read_text()
    joined = ok(bob("join", line, "--json")).json
    assert (joined["topic"], joined["here"], joined["elsewhere"]) == ("Tabs?", ["B"], ["A"])
    assert joined["next"] == [bob.start_line("B")]
    here, there = standing(ada), standing(bob)
    assert here["words"] == there["words"] == joined["words"]
    assert (here["here"], here["elsewhere"], here["problem"]) == (["A"], ["B"], "")
    assert bob.file.read_bytes() == ada.file.read_bytes()
    assert not list(bob.state.dialog(bob.file).glob("keys/invitation*"))
    for one in (ada, bob):
        shown = ok(one("status")).out
        assert url in shown
        assert "all of it is here" in shown
        assert ok(one("verify")).code == 0

"""`dialogd build --rehearse`: a whole build without a goal, a repository, a model or a key."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from dialogd.backends.command import missing
from dialogd.protocol.grammar import parse
from tests.cli.command import PATIENCE, Commands, Done, until
from tests.cli.test_terminal_view import Tmux, tmux
from tests.support.cases import cases

__all__ = ["tmux"]  # a fixture

BWRAP = missing()
NEEDS = pytest.mark.skipif(bool(BWRAP), reason=f"the gate needs a sandbox: {BWRAP}")


@pytest.fixture
def dialogd(dialogd: Commands) -> Commands:
    """The command, of somebody who has set nothing."""
    dialogd.environment |= {"DIALOGD_BACKEND": "", "DIALOGD_FILE": ""}
    return dialogd


def folder_of(dialogd: Commands) -> Path:
    """Where the rehearsal lies."""
    (found,) = dialogd.folder.glob("dialogd-rehearsal-*")
    return found


def git(repo: Path, *words: str) -> str:
    """What the person's own git says."""
    return subprocess.run(["git", *words], cwd=repo, capture_output=True, text=True, check=True).stdout.strip()


def gates(text: str) -> list[tuple[str, str]]:
    """What the gate said, by task."""
    return re.findall(r"^\[GATE: (\d+) \| (\w+)", text, re.MULTILINE)


def taken_over(dialogd: Commands, folder: Path) -> Done:
    """The merge, as the last lines name it, and that it holds."""
    file = f"--file={folder / 'dialog.md'}"
    done = dialogd("build", "merge", "--yes", file)
    assert done.code == 0, done.err
    assert dialogd("tasks", "verify", "--commit", "HEAD", "--repo", str(folder / "ages"), file).code == 0
    (folder / "typed").write_text("7\n\n42\n")
    shown = ["python3", "show.py", str(folder / "typed")]
    assert subprocess.run(shown, cwd=folder / "ages", capture_output=True, check=True).stdout == b"7\n42\n"
    return done


@NEEDS
def test_from_the_command_to_the_merged_commit(dialogd: Commands) -> None:
    done = dialogd.really("build", "--rehearse", "--yes", "--unattended")
    assert done.code == 0, done.out + done.err
    folder = folder_of(dialogd)
    lies = f"repository, worktrees, dialog and plan lie in {folder}; remove them with: rm -r {folder}\n"
    assert done.err.count("REHEARSAL: no model is asked and nothing is paid; ") == done.err.count(lies) == 2
    assert "in a sandbox, without network" in done.err
    assert f"next   dialogd build merge --file {folder}/dialog.md takes it over" in done.out
    assert "REHEARSAL: the lines were scripted" in done.out
    dialog = parse((folder / "dialog.md").read_bytes())
    said = [entry for entry in dialog.entries if entry.is_turn and entry.by != "USER"]
    assert all(entry.body.startswith("Rehearsal: scripted lines, no model was asked.") for entry in said)
    assert {entry.frame.usd for entry in said if entry.frame} == {"0"}
    first, second = dialog.state.build.all
    assert [(one.state, one.iteration) for one in (first, second)] == [("approved", 2), ("approved", 1)]
    text = (folder / "dialog.md").read_text()
    assert gates(text) == [("001", "failed"), ("001", "passed"), ("002", "passed")]
    assert "[FINDING: major | bug | ages.py | 7 | " in text
    assert git(folder / "ages", "log", "--format=%s") == "Begin"
    taken_over(dialogd, folder)
    shutil.rmtree(folder)


@NEEDS
@pytest.mark.slow
def test_the_person_confirms_its_tasks_and_drops_one(dialogd: Commands) -> None:
    with dialogd.background("build", "--rehearse", "--yes") as process:
        until(lambda: "dialogd tasks confirm" in dialogd.output, "the question", lambda: dialogd.output)
        folder = folder_of(dialogd)
        file = f"--file={folder / 'dialog.md'}"
        states = [one["state"] for one in json.loads(dialogd("tasks", "--json", file).out)["tasks"]]
        assert states == ["proposed", "proposed"]
        assert dialogd("tasks", "drop", "1", file).code == 0
        assert dialogd("tasks", "confirm", file).code == 0
        assert process.wait(PATIENCE) == 0, dialogd.output
    assert gates((folder / "dialog.md").read_text()) == [("002", "passed")]
    taken_over(dialogd, folder)


@pytest.mark.slow
def test_without_a_sandbox_it_says_what_is_missing_and_goes_on_untested(dialogd: Commands) -> None:
    (dialogd.folder / "bin").mkdir()
    for name in ("git", "python3"):
        (dialogd.folder / "bin" / name).symlink_to(str(shutil.which(name)))
    dialogd.environment["PATH"] = str(dialogd.folder / "bin")
    done = dialogd.really("build", "--rehearse", "--yes", "--unattended")
    assert done.code == 0, done.out + done.err
    assert "note: bubblewrap (`bwrap`) is not on PATH: it goes on untested\n" in done.err
    folder = folder_of(dialogd)
    assert gates((folder / "dialog.md").read_text()) == [("001", "untested")] * 2 + [("002", "untested")]
    assert (
        "with tasks 001 (untested), 002 (untested)"
        in dialogd("build", "merge", "--yes", f"--file={folder / 'dialog.md'}").err
    )


@cases(
    "words",
    [["Sort them"], ["--repo", "."], ["--gate", "true"], ["--agents", "codex,codex"], ["--continue"]],
)
def test_it_takes_nothing_of_a_build_of_ones_own(dialogd: Commands, words: list[str]) -> None:
    done = dialogd("build", "--rehearse", *words)
    named = words[0] if words[0].startswith("-") else "GOAL"
    assert (done.code, f"error: {named}: a rehearsal brings goal, repository and agents along" in done.err) == (2, True)


def test_a_no_leaves_nothing_behind(dialogd: Commands) -> None:
    done = dialogd.really("build", "--rehearse")
    assert (done.code, "your word is needed, and nobody can be asked here" in done.err) == (1, True)
    assert not [*dialogd.folder.glob("dialogd-rehearsal-*")]


def left_by(dialogd: Commands) -> set[str]:
    """What lies in the state directory and is more than a log."""
    return {path.parent.name for path in dialogd.state.root.rglob("*") if path.is_file()} - {"logs"}


@NEEDS
@pytest.mark.slow
def test_in_a_terminal_it_asks_and_is_held_by_words(dialogd: Commands, tmux: Tmux) -> None:
    """A no, or Ctrl-C at the question, leaves nothing but the trial's log; a yes is told what to type, to the merge."""
    for answer, code in ((["n", "Enter"], 1), (["C-c", "Enter"], 130)):
        tmux.run(dialogd, "build", "--rehearse")
        tmux.until("Start it? [y/N]")
        folder_of(dialogd)
        tmux.type(*answer)
        tmux.ended(code)
        assert not [*dialogd.folder.glob("dialogd-rehearsal-*")]
        assert left_by(dialogd) == set()
        tmux.clear()
    tmux.run(dialogd, "build", "--rehearse")
    tmux.until("Start it? [y/N]")
    assert {
        "        in a sandbox, without network; of your home and your checkout it sees",
        "        nothing: --gate-sees .venv shows it a folder",
    } <= set(tmux.lines)
    tmux.type("y", "Enter")
    tmux.until("type: confirm or: change 001")
    tmux.type("confirm", "Enter")
    tmux.until("takes it over")
    tmux.ended(0)
    folder = folder_of(dialogd)
    assert gates((folder / "dialog.md").read_text()) == [("001", "failed"), ("001", "passed"), ("002", "passed")]
    tmux.run(dialogd, "build", "merge", "--file", str(folder / "dialog.md"))
    tmux.until("2 commits by You <you@localhost>, one a task")
    tmux.until("Merge? [y/N]")
    tmux.type("y", "Enter")
    tmux.until("2 of 2 tasks approved and merged")
    assert git(folder / "ages", "rev-list", "--count", "main") == "3"
    shutil.rmtree(folder)
    assert not dialogd.daemons()
    assert dialogd("list", DIALOGD_FILE=str(dialogd.file)).out.count("REHEARSAL") == 1


@NEEDS
@pytest.mark.slow
def test_words_that_nobody_types_are_no_words(dialogd: Commands, tmux: Tmux) -> None:
    """Through a pipe, also where what is said goes to a terminal."""
    command = " ".join(dialogd.words(["build", "--rehearse", "--yes"]))
    tmux.type(f"(echo confirm; echo merge --yes; echo drop 001) | {command}", "Enter")
    tmux.until("answer: dialogd tasks confirm")
    before = (folder_of(dialogd) / "dialog.md").read_bytes()
    assert dialogd("pause", f"--file={folder_of(dialogd) / 'dialog.md'}").code == 0
    tmux.until("You paused")  # it has looked again since it asked, and would have taken them
    tmux.type("C-c")
    tmux.until("ended, stopped by you")
    after = (folder_of(dialogd) / "dialog.md").read_bytes()
    assert after.startswith(before)
    assert [one.state for one in parse(after).state.build.all] == ["proposed", "proposed"]
    assert [entry.by for entry in parse(after).entries[:2]] == ["USER", "M"]

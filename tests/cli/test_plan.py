"""`dialogd plan`: from the command to the files, by real processes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from dialogd import person
from tests.cli.command import Commands, program
from tests.plans.scenes import BY_HAND
from tests.support.terminal import Terminal

NAME = re.compile(r"collaboration_plan_\d{8}T\d{6}Z(_\d+)?\.(md|json)")


def by_hand(dialogd: Commands) -> Path:
    """A dialog that somebody typed, with no daemon and no journal."""
    dialogd.file.write_text(BY_HAND, encoding="utf-8")
    return dialogd.file


def test_a_plan_goes_where_it_is_told(dialogd: Commands) -> None:
    file = by_hand(dialogd)
    (dialogd.folder / "docs").mkdir()
    usual, told, page, facts = dialogd.all(
        [
            ["plan", "--json", "--out", "."],
            ["plan", str(file), "--out", "a/b"],
            ["plan", "--out", "-"],
            ["plan", "--out", "-", "--json"],
        ]
    )
    assert {Path(path).parent for path in usual.json.values()} == {dialogd.folder.resolve()}
    assert {Path(path).parent for path in told.out.split()} == {dialogd.folder / "a" / "b"}
    assert len(list((dialogd.folder / "a" / "b").iterdir())) == 2
    kept, said = map(Path, told.out.split())
    assert (kept.suffix, said.suffix, said.stem) == (".md", ".json", kept.stem)
    assert NAME.fullmatch(kept.name)
    assert "**Outcome:** agreed: Claude A and Claude B signed the same text, P2" in kept.read_text(encoding="utf-8")
    assert json.loads(said.read_text(encoding="utf-8"))["agreed"]["ref"] == "P2"
    assert page.out.startswith("# Plan: Tabs or spaces")
    assert facts.json["metrics"]["decisions_reached"] == 1


def test_there_is_no_plan_where_nobody_spoke(dialogd: Commands) -> None:
    missing = dialogd("plan", "nowhere.md")
    dialogd.begin("Tabs?")
    silent = dialogd("plan")
    idle = dialogd("plan", "--backend", "rehearsal", str(by_hand(dialogd)))
    assert (missing.code, silent.code, idle.code) == (3, 1, 2)
    assert "no agent has spoken" in silent.err
    assert not list(dialogd.folder.glob("collaboration_plan_*"))


def test_turns_of_nobody_in_the_header_are_named(dialogd: Commands) -> None:
    text = BY_HAND.replace("Claude A", "Ann").replace("Claude B", "Bob")
    dialogd.file.write_text(text, encoding="utf-8")
    done = dialogd("plan")
    assert done.code == 1
    assert "its turns are by Ann, Bob, its agents are A (Claude A), B (Claude B)" in done.err
    assert "fix: where they are agents, say so in its header: **Agents:** A = Ann, B = Bob\n" in done.err


def test_a_model_writes_a_unified_plan_on_request(dialogd: Commands) -> None:
    file = str(by_hand(dialogd))
    first, named, strange, other = dialogd.all(
        [
            ["plan", "--out", "-", "--synthesize"],
            ["plan", "--out", "-", "--synthesize", "b", file],
            ["plan", "--synthesize", "Z", file],
            ["plan", "--out", "-", "--synthesize", file, "--backend", "rehearsal:deadlock"],
        ]
    )
    for done, agent in ((first, "A"), (named, "B"), (other, "A")):
        assert done.code == 0, done.err
        assert done.err.startswith(f"{agent}: rehearsal")
        assert f"*Written by rehearsal as {agent}, from the dialog, after it" in done.out
        assert "> Rehearsal: scripted lines, no model was asked" in done.out
    assert strange.code == 2
    assert "no agent 'Z'" in strange.err


def test_a_model_that_fails_leaves_no_half_plan(dialogd: Commands) -> None:
    by_hand(dialogd)
    done = dialogd("plan", "--synthesize", "--backend", "rehearsal:error")
    assert done.code == 1
    assert "fails on purpose" in done.err
    assert not list(dialogd.folder.glob("collaboration_plan_*"))


@pytest.mark.slow
def test_the_agents_own_backend_writes_it_where_the_cast_is_known(dialogd: Commands) -> None:
    run = dialogd("run", "Tabs?", "--agents", "rehearsal:deadlock,rehearsal:deadlock", "--pace", "0", "--file", "d.md")
    assert run.code == 4, run.err
    done = dialogd("plan", "d.md", "--synthesize", "--out", "-", DIALOGD_BACKEND="command", DIALOGD_COMMAND="false")
    assert done.code == 0, done.err
    assert done.err.startswith("A: rehearsal:deadlock")


def test_a_plan_of_a_dialog_that_goes_on(dialogd: Commands) -> None:
    file = dialogd.folder / "dialog.md"
    file.write_text(BY_HAND.split("\n## Turn 3")[0], encoding="utf-8")
    done = dialogd("plan", "--out", ".")
    assert "not ended: turn 3 is to be written by Claude B" in Path(done.out.split()[0]).read_text(encoding="utf-8")
    person.say(dialogd.log, "Hurry up.")
    again = dialogd("plan", "--out", ".")
    assert set(again.out.split()).isdisjoint(done.out.split())


# -- shown, and edited ------------------------------------------------------------------------------------------------


def test_the_plan_is_shown(dialogd: Commands) -> None:
    by_hand(dialogd)
    page, facts = dialogd.all([["plan"], ["plan", "--json"]])
    assert page.out.startswith("# Plan: Tabs or spaces")
    assert "## What was decided\n\n> Spaces, four of them, written by the formatter." in page.out
    assert "The record" not in page.out
    assert "\x1b" not in page.out
    assert facts.json["agreed"]["ref"] == "P2"
    assert not list(dialogd.folder.glob("collaboration_plan_*"))


def test_in_a_terminal_the_plan_is_laid_out(dialogd: Commands) -> None:
    by_hand(dialogd)
    environment = {**dialogd.environment, "TERM": "xterm-256color"}
    terminal = Terminal([sys.executable, "-m", "dialogd", "plan"], environment, dialogd.folder)
    try:
        terminal.until("a copy to work on: dialogd plan --edit")
        assert "Spaces, four of them, written by the formatter." in terminal.text
        assert "##" not in terminal.text
        assert "**" not in terminal.text
    finally:
        terminal.kill()


def test_a_plan_is_edited_in_a_copy_of_ones_own(dialogd: Commands) -> None:
    by_hand(dialogd)
    program(dialogd.folder, "write", 'for file; do :; done; echo "$1 mine" >>"$file"')
    editor = f"{dialogd.folder}/bin/write --wait"
    first = dialogd("plan", "--edit", EDITOR="false", VISUAL=editor)
    assert (first.code, first.err) == (0, "")
    own = Path(first.out.strip())
    plan = own.with_name(own.name.replace("_edited", ""))
    assert own.name == f"{plan.stem}_edited.md"
    assert own.read_text(encoding="utf-8") == plan.read_text(encoding="utf-8") + "--wait mine\n"
    assert NAME.fullmatch(plan.name)
    again = dialogd("plan", "--edit", "--json", EDITOR=editor)
    assert again.json == {"markdown": str(own), "changed": True}
    assert own.read_text(encoding="utf-8").endswith("--wait mine\n--wait mine\n")
    left = dialogd("plan", "--edit", "--json", EDITOR="true")
    assert left.json == {"markdown": str(own), "changed": False}
    assert dialogd("plan", "--out", ".").code == 0
    assert own.read_text(encoding="utf-8").endswith("--wait mine\n--wait mine\n")


def test_what_keeps_an_editor_from_opening_is_said(dialogd: Commands) -> None:
    by_hand(dialogd)
    missing = dialogd("plan", "--edit", EDITOR="/nowhere/ed")
    failed = dialogd("plan", "--edit", EDITOR="false")
    none = dialogd("plan", "--edit", PATH="/nowhere", EDITOR="", VISUAL="")
    printed = dialogd("plan", "--edit", "--out", "-")
    assert "export EDITOR=nano" in missing.err
    assert "ended with code 1" in failed.err
    assert "your plan is kept: " in failed.err
    assert "no editor was found" in none.err
    assert (missing.code, failed.code, none.code, printed.code) == (1, 1, 1, 2)

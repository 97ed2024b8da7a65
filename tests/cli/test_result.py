"""What a dialog came to: its plan shown, edited, left at the end; approved or rejected; exported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dialogd import person
from dialogd.cli.options import ask, notify
from dialogd.protocol.grammar import parse
from dialogd.store.disk import archive
from dialogd.views.documents import export, keep
from tests.cli.command import PATIENCE, Commands, program, reviewed, until
from tests.export.dialogs import peaceful
from tests.plans.scenes import BY_HAND
from tests.support.room import Room, opening
from tests.support.terminal import Terminal

AGREED = "Postgres.\n\n## Consensus Summary\n\nSessions live in Postgres.\n\n[CONSENSUS_REACHED]"


def agreed() -> Room:
    """A dialog that ended by consensus in turn 3."""
    stage = Room(opening("A", "B", keys=["Topic: sessions"]), A=[AGREED], B=["Yes.\n\n[AGREE: P1]"])
    stage.run()
    return stage


def test_a_result_is_taken_or_rejected_by_a_command(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    early = dialogd.all([["approve"], ["reject", "no"]])
    assert [done.code for done in early] == [1, 1]
    assert "error: cannot approve: the dialog is not begun: no agent has spoken yet\n  fix: " in early[0].err
    dialogd.file.write_text(agreed().text, encoding="utf-8")
    assert dialogd("approve").out == "approved: everyone agreed to the same text, in turn 3\n"
    assert dialogd("approve").out == "it was approved already: everyone agreed to the same text, in turn 3\n"
    facts = dialogd("status", "--json").json
    assert (facts["approved"], facts["questions"]) == (True, [])
    assert re.search(r"^  approved by you on \d{4}-\d\d-\d\d at \d\d:\d\d UTC$", dialogd("status").out, re.MULTILINE)
    empty = dialogd("reject", " ")
    assert (empty.code, "a rejection needs a reason" in empty.err) == (2, True)
    done = dialogd("reject", "-", given="It forgets\nthe migration.\n")
    assert done.out == (
        "turn 4 is yours; the result is rejected, the dialog is open again; A owes the next turn"
        f" (not running: {dialogd.start_line('A')})\n"
    )
    dialog = parse(dialogd.file.read_bytes())
    assert [str(mark) for entry in dialog.entries[3:] for mark in entry.marks] == [
        "[APPROVED]",
        "[REJECTED: It forgets the migration.]",
    ]
    assert dialog.entries[-1].body == "It forgets\nthe migration."
    assert "  rejected what ended in turn 3, by you on " in dialogd("status").out


def test_a_rejected_result_is_recalled_as_rejected(dialogd: Commands) -> None:
    dialogd.file.write_text(agreed().text, encoding="utf-8")
    (before,) = dialogd("recall", "sessions in Postgres?", "--json").json
    dialogd("reject", "It forgets the migration.")
    dialogd.file.unlink()
    (after,) = dialogd("recall", "sessions in Postgres?", "--json").json
    assert (before["status"], after["status"]) == ("approved", "rejected")
    assert "It forgets the migration." in after["reason"]


def test_the_plan_of_a_rejected_result_says_so(dialogd: Commands) -> None:
    dialogd.file.write_text(agreed().text, encoding="utf-8")
    left = keep(parse(dialogd.file.read_bytes()), dialogd.file, dialogd.folder, datetime.now(UTC))
    assert left is not None
    page, facts = left
    before = page.read_text(encoding="utf-8")
    done = dialogd("reject", "It forgets the migration.")
    assert f"note: the plan of that result says so now: {page}" in done.err
    lines = page.read_text(encoding="utf-8").split("\n")
    added = [line for line in lines if line not in before.split("\n")]
    assert len(added) == 1
    assert re.fullmatch(
        r"\*\*Rejected by the person\*\* on \d+ \w+ \d{4}, \d\d:\d\d UTC: the result of turn 3, in turn 4:"
        r" It forgets the migration\.",
        added[0].replace("\\", ""),
    )
    (rejection,) = json.loads(facts.read_text(encoding="utf-8"))["rejections"]
    assert (rejection["turn"], rejection["ended_in"]) == (4, "3")
    now = dialogd("plan", "--out", "-").out
    assert "**Rejected by the person** on" in now
    assert "**The person rejected it.** What it comes to now is open." in now
    changed = page.read_bytes() + b"mine\n"
    page.write_bytes(changed)
    dialogd("stop")
    assert "the plan of that result" not in dialogd("reject", "Nor this.").err
    assert page.read_bytes() == changed


def _in_zone(dialogd: Commands, zone: str, command: str) -> str:
    """What a command prints on a machine in that zone: a process that never had another."""
    words, environment = [sys.executable, "-m", "dialogd", *command.split()], {**dialogd.environment, "TZ": zone}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.slow
def test_status_shows_question_deadline_and_default(dialogd: Commands) -> None:
    assert dialogd("new", "Tabs?", "--allow-defaults").code == 0
    assert "question_defaults = true" in dialogd.file.read_text(encoding="utf-8")
    by = datetime.now(UTC) + timedelta(hours=1, minutes=4, seconds=30)
    question = f"[QUESTION_FOR_USER: tabs or spaces? | by {by:%Y-%m-%dT%H:%M:%SZ} | default: tabs]"
    dialogd.types(f"\n## Turn 2 — A\n\n{question}\n\nTURN: USER\n")
    text = dialogd("status").out
    assert re.search(
        r"^  question A asks: tabs or spaces\?; by .*\d\d:\d\d, in 1 hour [45] minutes?; default: tabs \(taken then\)$",
        text,
        re.MULTILINE,
    )
    for zone, hours in (("EST5", -5), ("CET-1", 1)):  # as the person's machine has it
        said = [_in_zone(dialogd, zone, command) for command in ("status", "status --away")]
        assert all(f"by {by + timedelta(hours=hours):%Y-%m-%d %H:%M}" in text for text in said)
        assert re.search(rf"; by [-\d ]*{by + timedelta(hours=hours):%H:%M}, in 1 hour", said[0])
    facts = dialogd("status", "--json").json
    (told,) = facts["questions"]
    assert (told["asker"], told["default"], told["takes_default"]) == ("A", "tabs", True)
    assert facts["needs_person"].startswith("A asks you: tabs or spaces? (by ")


# -- `dialogd plan` ----------------------------------------------------------------------------------------------------

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


# -- shown ------------------------------------------------------------------------------------------------------------


def test_the_plan_is_shown(dialogd: Commands) -> None:
    by_hand(dialogd)
    shown = reviewed(dialogd, "plan", ["plan", "plan --json"])
    assert ("The record" in shown, "\x1b" in shown) == (False, False)
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


# -- The plan that an end leaves ---------------------------------------------------------------------------------------

PAGE = re.compile(r"^plan +(\S+collaboration_plan_\d{8}T\d{6}Z\.md)$", re.M)
CAST = ("--agents", "rehearsal,rehearsal", "--pace", "0")


def plans(folder: Path) -> list[str]:
    """The endings of the names of the plans in that folder."""
    return sorted(path.suffix for path in folder.glob("collaboration_plan_*"))


@pytest.mark.slow
def test_a_run_leaves_a_plan_and_prints_its_path(dialogd: Commands) -> None:
    for name in ("docs", "talks"):
        (dialogd.folder / name).mkdir()
    run = dialogd("run", "Tabs?", *CAST, "--file", "talks/d.md", DIALOGD_PLAN="1")
    assert run.code == 0, run.err
    (page,) = PAGE.findall(run.out)
    assert Path(page).parent == dialogd.folder.resolve() / "talks"
    assert (plans(Path(page).parent), plans(dialogd.folder), plans(dialogd.folder / "docs")) == (
        [".json", ".md"],
        [],
        [],
    )
    assert json.loads(Path(page).with_suffix(".json").read_text())["outcome"]["name"] == "CONSENSUS_REACHED"
    again = dialogd("plan", "talks/d.md", "--out", "talks")
    assert again.out.split()[0] == page
    named = dialogd("run", "Tabs?", *CAST, "--file", "talks/e.md", "--plan", "wanted")
    assert Path(PAGE.findall(named.out)[0]).parent == dialogd.folder / "wanted"
    assert (plans(dialogd.folder / "wanted"), len(plans(dialogd.folder / "talks"))) == ([".json", ".md"], 2)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["stop", "curl"])
def test_whoever_stops_a_dialog_leaves_the_plan_where_its_daemon_would(dialogd: Commands, way: str) -> None:
    dialogd.begin("Tabs?")
    done = dialogd("start", "A", "--port", "0", "--detach", "--plan", "wanted", DIALOGD_PLAN="1")
    assert done.code == 0, done.err
    (daemon,) = dialogd.daemons()
    notify([daemon])
    until(lambda: dialogd.log.read().state.number == 2, "a first reply")
    if way == "stop":
        stopped = dialogd("stop", DIALOGD_PLAN="1")
        assert Path(PAGE.findall(stopped.out)[0]).parent == dialogd.folder / "wanted"
    else:
        ask(daemon.port, "POST", "/stop", seconds=PATIENCE)
        until(lambda: not dialogd.daemons(), "the daemon to end")
    assert (plans(dialogd.folder / "wanted"), plans(dialogd.folder)) == ([".json", ".md"], [])


@pytest.mark.slow
def test_no_plan_is_left_where_none_is_wanted(dialogd: Commands) -> None:
    assert dialogd("run", "Tabs?", *CAST, "--file", "a.md", "--plan", "no", DIALOGD_PLAN="1").code == 0
    assert dialogd("run", "Tabs?", *CAST, "--file", "b.md", DIALOGD_PLAN="0").code == 0
    (dialogd.folder / "dialogd.toml").write_text("plan = false\n")
    dialogd.environment.pop("DIALOGD_PLAN", None)
    assert dialogd("run", "Tabs?", *CAST, "--file", "c.md").code == 0
    assert plans(dialogd.folder) == []


@pytest.mark.slow
def test_the_daemon_that_ends_a_dialog_leaves_the_plan(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    dialogd.environment["DIALOGD_PLAN"] = "1"
    for agent in "AB":
        done = dialogd("start", agent, "--port", "0", "--detach", "--pace", "0")
        assert done.code == 0, done.err
    dialogd("say", "--note", "Go on.")
    notify(dialogd.daemons())
    until(lambda: dialogd.log.read().state.outcome is not None, "the end")
    until(lambda: plans(dialogd.folder) == [".json", ".md"], "the plan")

    def told() -> int:
        return sum(path.read_text().count("plan: ") for path in dialogd.state.logs.glob("*.log"))

    until(told, "the line in the log")
    assert told() == 1


def test_stop_leaves_a_plan_of_what_there_is(dialogd: Commands) -> None:
    dialogd.environment["DIALOGD_PLAN"] = "1"
    log = dialogd.begin("Tabs?")
    assert dialogd("stop", "--file", str(dialogd.file)).code == 0
    assert plans(dialogd.folder) == []
    text = log.path.read_text().split("\n---\n\n## ")[0]
    other = dialogd.folder / "other.md"
    other.write_text(f"{text}\n## Turn 2 — Claude A\n\nTabs, since width is a matter of eyes.\n\nTURN: B\n")
    done = dialogd("stop", "--file", "other.md")
    assert done.code == 0, done.err
    (page,) = PAGE.findall(done.out)
    assert "**Outcome:** stopped by the person before an agreement: dialogd stop" in Path(page).read_text()
    assert dialogd("stop", "--file", "other.md").code == 3
    assert plans(dialogd.folder) == [".json", ".md"]


@pytest.mark.slow
def test_a_plan_that_cannot_be_written_changes_no_end(dialogd: Commands) -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("needs a folder in which nobody may write, not even the superuser: /proc")
    run = dialogd("run", "Tabs?", *CAST, "--file", "d.md", "--plan", "/proc")
    assert (run.code, PAGE.findall(run.out)) == (0, [])
    assert "note: no plan was left: the plan in " in run.err


# -- `dialogd export` --------------------------------------------------------------------------------------------------


@pytest.fixture
def ended(dialogd: Commands) -> Commands:
    """A dialog that has ended, with an attachment beside it."""
    dialogd.file.write_bytes(peaceful().paper.data)
    folder = dialogd.file.with_name("dialog.md.d")
    folder.mkdir()
    (folder / "0123456789abcdef.md").write_text("the whole text", encoding="utf-8")
    return dialogd


EXPORTED = "where-should-user-sessions-live-3f9a1c"


def test_a_document_is_named_by_topic_and_dialog_and_stays(ended: Commands) -> None:
    made, again = ended("export", "--to", "html"), ended("export", "--to", "html")
    assert made.out == f"{ended.folder / EXPORTED}.html\n"
    page = (ended.folder / f"{EXPORTED}.html").read_text(encoding="utf-8")
    assert "the whole text" in page
    assert again.code == 2
    assert "--force" in again.err
    assert ended("export", "--to", "html", "--force").code == 0


def test_standard_output_json_facts_and_a_place_of_ones_own(ended: Commands) -> None:
    (ended.folder / "out").mkdir()
    printed, named, facts, place = ended.all(
        [
            ["export", "dialog.md", "--to", "md", "--out", "-"],
            ["export", "--to", "md", "--out", "mine.md"],
            ["export", "--to", "json", "--json", "--out", "facts.json"],
            ["export", "--to", "md", "--out", "out"],
        ]
    )
    text = export(peaceful().dialog, "md", attachments={"0123456789abcdef.md": "the whole text"}).decode()
    assert printed.out == text
    assert named.out == f"{ended.folder / 'mine.md'}\n"
    assert (ended.folder / "mine.md").read_text(encoding="utf-8") == text
    size = (ended.folder / "facts.json").stat().st_size
    assert facts.json == {"file": str(ended.folder / "facts.json"), "to": "json", "bytes": size}
    assert place.out == f"{ended.folder / 'out' / EXPORTED}.md\n"


def test_the_dialog_itself_is_never_written_over(ended: Commands) -> None:
    before = ended.file.read_bytes()
    target = ended.folder / "precious"
    target.write_text("keep", encoding="utf-8")
    (ended.folder / "link.md").symlink_to(target)
    wrong = {
        "--to md --out dialog.md --force": 2, "--to md --out link.md": 2, "--to docx": 2, "gone.md --to md": 3, "": 2,
    }  # fmt: skip
    found = ended.all([["export", *line.split()] for line in wrong])
    assert [done.code for done in found] == [*wrong.values()]
    assert ended("export", "--to", "md", "--out", "link.md", "--force").code == 0
    assert (ended.file.read_bytes(), target.read_text(encoding="utf-8")) == (before, "keep")


def test_a_dialog_of_the_archive_is_exported_with_its_attachments(ended: Commands, tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    folder.mkdir(mode=0o700)
    copy = archive(peaceful().dialog, ended.file, folder)
    done = ended("export", str(copy), "--to", "md", "--out", "-")
    assert "the whole text" in done.out


@pytest.mark.slow
def test_a_pdf_begins_like_one(ended: Commands) -> None:
    pytest.importorskip("weasyprint", reason="weasyprint is not installed: pip install 'dialogd[pdf]'")
    assert ended("export", "--to", "pdf", "--out", "x.pdf").code == 0
    data = (ended.folder / "x.pdf").read_bytes()
    assert (data[:5], b"%%EOF" in data[-32:]) == (b"%PDF-", True)

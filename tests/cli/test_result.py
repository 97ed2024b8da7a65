"""The person and the result: questions in `status`, `--allow-defaults`, `approve`, `reject`, and the plan of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from dialogd.protocol.grammar import parse
from dialogd.views.documents import keep
from tests.cli.command import Commands
from tests.support.room import Room, opening

AGREED = "Postgres.\n\n## Consensus Summary\n\nSessions live in Postgres.\n\n[CONSENSUS_REACHED]"


def ended() -> Room:
    """A dialog that ended by consensus in turn 3."""
    stage = Room(opening("A", "B", keys=["Topic: sessions"]), A=[AGREED], B=["Yes.\n\n[AGREE: P1]"])
    stage.run()
    return stage


def test_a_result_is_taken_or_rejected_by_a_command(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    early = dialogd.all([["approve"], ["reject", "no"]])
    assert [done.code for done in early] == [1, 1]
    assert "error: cannot approve: the dialog is not begun: no agent has spoken yet\n  fix: " in early[0].err
    dialogd.file.write_text(ended().text, encoding="utf-8")
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
    dialogd.file.write_text(ended().text, encoding="utf-8")
    (before,) = dialogd("recall", "sessions in Postgres?", "--json").json
    dialogd("reject", "It forgets the migration.")
    dialogd.file.unlink()
    (after,) = dialogd("recall", "sessions in Postgres?", "--json").json
    assert (before["status"], after["status"]) == ("approved", "rejected")
    assert "It forgets the migration." in after["reason"]


def test_the_plan_of_a_rejected_result_says_so(dialogd: Commands) -> None:
    dialogd.file.write_text(ended().text, encoding="utf-8")
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

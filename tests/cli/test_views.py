"""What `status`, its views and `show` print: as it stands in `golden/*.txt`, and case by case.

After a change that is meant, `UPDATE_GOLDENS=1 pytest tests/cli/test_views.py` writes them: read the difference.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dialogd.backends.seats import Cast, Seat
from dialogd.cli.status import exit_code, next_step, procedure, procedure_rows
from dialogd.person import stop
from dialogd.protocol.model import USER, Outcome
from dialogd.protocol.state import Ballot, Decision, Escalation, Poll, Polls, Seal
from dialogd.store.logfile import LogFile
from tests.cli.command import Commands, reviewed, until
from tests.support.cases import cases
from tests.support.room import Room, opening
from tests.support.states import state_with

NOW = "2026-11-21T19:30:00Z"
BEGAN = "Started: 2026-11-21 20:00:00 +01:00"
COUNCIL = (
    'template = "council"', 'order = "round-robin"', 'verdict = "vote"', "threshold = 0.75", "quorum = 0.5",
    "[[phases]]", 'name = "DISCOVERY"', 'description = "what there is"',
    "[[phases]]", 'name = "ANALYSIS"', "rounds = 2",
)  # fmt: skip
VOTE = ('verdict = "vote"', 'order = "round-robin"', "[messages]", 'RESULTS = "what was found"')
HEAVY = (*VOTE[:2], "quorum = 1.0", "[roles.B]", "weight = 3")
LONG = "a thought of very many words, " * 20
KEY = "AKIA" + "IOSFODNN7EXAMPLE"


def room(*setup: str, keys: Sequence[str] = (), **scripts: Sequence[str]) -> Room:
    """Three agents with a Setup of these lines; without any, a plain dialog."""
    return Room(opening("A", "B", "C", keys=["Dialog: 3f9a1c", *keys], setup="\n".join(setup)), **scripts)


def talk(*setup: str, keys: Sequence[str] = (), of: str = "ABC", said: Sequence[tuple[str, str]]) -> Room:
    """A dialog in which these agents said that."""
    one = Room(opening(*of, keys=["Dialog: 3f9a1c", *keys], setup="\n".join(setup)))
    for who, text in said:
        one.says(who, text)
    return one


def limited() -> Room:
    """A dialog that has reached its limit of three turns."""
    stage = room("objections = true", keys=["Max Turns: 3"], A=["Tabs."] * 2, B=["Spaces."] * 2, C=["Both."])
    stage.run()
    assert stage.dialog.state.outcome is not None
    return stage


def secretive() -> Room:
    """A dialog that agents and the person wrote secrets into."""
    stage = room(A=[f"It is {KEY}, or {KEY}.\n\n[PROPOSAL: take {KEY}]"])
    stage.say(f"Not {KEY}?", to="A")
    stage.run()
    stage.stop()
    assert KEY not in stage.text
    return stage


VOTED = (
    ("A", "[PROPOSAL: Postgres]\n[CONFIDENCE: 0.8]"),
    ("B", f"[VOTE: P1 approve | simple]\n[IDEA: {LONG}]\n[RE: 2]"),
    ("C", "[VOTE: P1 reject | slow]\n[RESULTS: 数据库 " + "数" * 200 + "]"),
    ("A", "Mine, too.\n[VOTE: P1 approve]"),
)
FLOW = (
    ("A", "[PROPOSAL: keep sessions in Postgres]\n[CONFIDENCE: 0.8]"),
    ("B", "[QUESTION: how many reads?]\n[TO: A]\n[RE: P1]"),
)
WEIGHED = (
    ("A", "[PROPOSAL: Postgres]"),
    ("B", "[VOTE: P1 approve]"),
    ("C", "[VOTE: P1 reject]"),
    ("A", "[VOTE: P1 approve]"),
)
ASKED = (("A", "[PROPOSAL: Postgres]"), ("B", "[QUESTION_FOR_USER: which region?]"))
# A dialog, and what is asked of it; every answer stands in `golden/NAME.txt`.
SCENES: dict[str, tuple[Callable[[], Room], Sequence[str]]] = {
    "pair": (lambda: talk(of="AB", said=[("A", "Tabs, tabs everywhere."), ("B", "I agree, tabs everywhere.")]),
             ("status", "status --away", "status --board")),
    "council": (lambda: talk(*COUNCIL, keys=["Max Rounds: 5"], said=[("A", "[PROPOSAL: Postgres]"),
                ("B", "[VOTE: P1 approve | it is there]")]), ("status", "status --json")),
    "voted": (lambda: talk(*VOTE, said=VOTED), ("status", "status --board", "status --board --json", "show")),
    "wide": (lambda: talk(*VOTE, said=[("A", f"[IDEA: {50 * 'क' + chr(0x941)}]")]), ("status --board",)),
    "weighing": (lambda: talk(*HEAVY, said=WEIGHED[:2]), ("status", "status --json")),
    "weighed": (lambda: talk(*HEAVY, said=WEIGHED), ("status --board", "status --board --json")),
    "asked": (lambda: talk(of="AB", said=ASKED), ("status", "status --away", "status --since 2",
              "status --json --since 2026-11-20", "status --since x")),
    "flow": (lambda: talk('order = "free"', of="AB", said=FLOW), (
        "show", "show --json", "show --mermaid", "show --agent user", "show --kind proposal", "show --since 2",
        "show 1", "show 2", "show 3 --json", "show 9", "show --agent Z", "show --kind nonsense", "show --since soon",
        "show --mermaid --json")),
    "limited": (limited, ("status", "status --json", "watch")),
    "secrets": (secretive, ("status",)),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENES)
def test_it_prints_what_was_reviewed(dialogd: Commands, name: str) -> None:
    make, asked = SCENES[name]
    dialogd.file.write_bytes(make().paper.data)
    shown = reviewed(dialogd, name, asked)
    wide = [line for line in shown.split("\n") if sum(1 + (sign in "数据库") for sign in line) > 100]
    assert "--board" not in asked[0] or not wide


def test_what_agents_write_steers_no_terminal_and_a_missing_dialog_is_exit_code_3(dialogd: Commands) -> None:
    views = ["status", "status --board", "status --away", "status --cost", "show", "show --mermaid", "show --json"]
    for done in dialogd.all([[*words.split(), "--file", "gone.md"] for words in views]):
        assert (done.code, done.out, "fix: " in done.err) == (3, "", True)
    dialogd.file.write_text(opening("A", "B", question="a\x1b]0;evil\x07b \u202e c \x9b31m"), encoding="utf-8")
    for done in dialogd.all([words.split() for words in views]):
        assert done.code == 0
        assert not set(done.out) & set("\x1b\x07\x9b\u202e")
    assert dialogd("status", "--away").out.startswith("since turn 1: nothing was written\n")
    assert dialogd("status", str(dialogd.file)).out == dialogd("status").out


@pytest.mark.slow
def test_no_command_shows_people_the_states_names(dialogd: Commands) -> None:
    """The names that programs know: `lifecycle` alone has them."""
    dialogd.begin("Tabs?", "a.md")
    stage = room(A=["I propose tabs.\n\n[PROPOSAL: tabs]"], B=["[OBJECTION: width]"])
    for me in "AB":
        stage.step(me)
    (dialogd.folder / "b.md").write_text(stage.text, encoding="utf-8")
    stage.stop("enough")
    (dialogd.folder / "c.md").write_text(stage.text, encoding="utf-8")
    views = ["status", "status --board", "status --away", "show", "export --to md --out -", "plan --out -"]
    lines = [[*words.split(), "--file", f"{name}.md"] for name in "abc" for words in views[: 5 if name == "a" else 6]]
    for words, done in zip(lines, dialogd.all(lines), strict=True):
        assert done.out, (words, done.err)
        assert not re.search(r"dormant|streaming|converging|collapsed|harvest", done.out), (words, done.out)
    known = [dialogd("status", "--json", "--file", f"{name}.md").json["lifecycle"] for name in "abc"]
    assert known == ["dormant", "streaming", "collapsed"]


# -- The rows of a dialog's own rules, case by case -------------------------------------------------------------------


MADE = tuple(Decision(f"P{n}", "approved", "vote", "2 for (A, B)", "cheap", str(n)) for n in range(1, 5))
POLLS = Polls((Poll("P5", 6, (Ballot("B", "reject", "no", 7),)), Poll("P6", 6)))
ROBIN = ('order = "round-robin"',)
ENDED = Outcome("DECIDED", "B", "4")
# A Setup, what the header and the state have, a part of the rows, and what is in none of them.
ROWS: list[tuple[Sequence[str], Sequence[str], dict[str, object], Sequence[str], Sequence[str]]] = [
    ((), (), {}, (), ("rules", "time")),
    (ROBIN, (), {}, ("rules: order round-robin; verdict mutual; 0 rounds complete",), ("phase",)),
    (COUNCIL, (), {}, ("verdict vote; 0 rounds complete; phase 1 of 2, DISCOVERY",), ()),
    (COUNCIL, (), {"rounds": 1}, ("phase 2 of 2, ANALYSIS",), ()),
    (COUNCIL, (), {"polls": POLLS, "decisions": MADE}, (
        "vote: P5: B reject; not yet: A, C", "vote: P6: nobody yet; not yet: A, B, C",
        *(f"decided: P{n} approved (vote): 2 for (A, B); cheap" for n in (2, 3, 4))), ("P1 approved",)),
    (COUNCIL, (), {"polls": POLLS, "escalation": Escalation("C"), "outcome": ENDED}, (), ("vote: ", "decides: ")),
    (COUNCIL, (), {"escalation": Escalation("C", "three votes failed")}, ("decides: C: three votes failed",), ()),
    (COUNCIL, (), {"escalation": Escalation(USER)}, ("decides: you",), ()),
    ((), (BEGAN, "Max Time: 1 hour"), {}, ("time: 30 minutes left of 1 hour",), ()),
    ((), (BEGAN, "Max Time: 5 minutes"), {}, ("time: 0 seconds left",), ()),
    ((), ("Started: in spring", "Max Time: 50 minutes"), {}, (), ("time",)),
]  # fmt: skip


@cases(("setup", "keys", "state", "shown", "hidden"), ROWS)
def test_the_rows_of_a_dialog_with_rules_of_its_own(
    setup: Sequence[str], keys: Sequence[str], state: dict[str, object], shown: Sequence[str], hidden: Sequence[str]
) -> None:
    dialog = room(*setup, keys=keys).dialog
    dialog = replace(dialog, state=state_with(dialog.state, **state))
    found = "\n".join(f"{label}: {text}" for label, text in procedure_rows(dialog, NOW))
    assert [one for one in shown if one not in found] == [], found
    assert [one for one in hidden if one in found] == [], found


def test_the_facts_behind_the_rows_are_whole() -> None:
    dialog = room(*COUNCIL).dialog
    state = state_with(dialog.state, decisions=MADE, escalation=Escalation("C", "why"), queue=(USER,))
    facts = procedure(replace(dialog, state=state), NOW)
    assert [one["ref"] for one in facts["decisions"]] == ["P1", "P2", "P3", "P4"]
    assert facts["decisions"][0] == {
        "ref": "P1", "outcome": "approved", "method": "vote", "evidence": "2 for (A, B)", "reason": "cheap",
        "entry": "1",
    }  # fmt: skip
    assert (facts["escalated"], facts["escalation"], facts["queue"]) == ("C", "why", ["USER"])


LEFT = [
    ((BEGAN, "Max Time: 50 minutes"), {}, 1200.0),
    ((BEGAN, "Max Time: 50 minutes"), {"began": "2026-11-21T19:20:00Z"}, 2400.0),
    ((BEGAN, "Max Time: 5 minutes"), {}, 0.0),
    ((BEGAN, "Max Time: 50 minutes"), {"outcome": ENDED}, None),
    ((BEGAN,), {}, None),
    (("Max Time: 50 minutes",), {}, None),
]


@cases(("keys", "state", "left"), LEFT)
def test_programs_are_told_the_time_that_is_left(
    keys: Sequence[str], state: dict[str, object], left: float | None
) -> None:
    dialog = room(keys=keys).dialog
    assert procedure(replace(dialog, state=state_with(dialog.state, **state)), NOW)["time_left"] == left


def test_programs_are_told_who_sealed_its_answer_and_whom_the_round_waits_for() -> None:
    dialog = Room(opening("A", "B", "C", turn="A, B, C", setup='order = "parallel"')).dialog
    seals = (Seal("A", "x", "1.1", "1"), Seal("C", "y", "1.2", "1"), Seal("B", "z", "1.3", "1"))
    for count, sealed, unsealed in ((0, [], []), (2, ["A", "C"], ["B"]), (3, ["A", "C", "B"], [])):
        facts = procedure(replace(dialog, state=state_with(dialog.state, seals=seals[:count])), NOW)
        assert (facts["sealed"], facts["unsealed"]) == (sealed, unsealed)


# -- After an end -----------------------------------------------------------------------------------------------------


def test_a_decision_by_the_dialogs_rule_is_a_good_end() -> None:
    ends = {"DECIDED": 0, "CONSENSUS_REACHED": 0, "DEADLOCK": 4, "STOPPED": 4}
    assert {name: exit_code(Outcome(name, "A", "4")) for name in ends} == ends
    assert exit_code(Outcome("STOPPED", "SYSTEM", "4", "error: every agent failed")) == 1
    assert exit_code(None) == 0


@cases(
    ("end", "expected"),
    [
        ("[STOPPED: enough]", 'dialogd say "…" --file'),
        ("[STOPPED: budget: $2.00 is spent]", 'dialogd say "…" --budget AMOUNT --file'),
        ("[STOPPED: size: the limit of 1,000,000 bytes]", "dialogd limit max_size 2MB --file"),
        ("[DEADLOCK]", 'dialogd say "…" --file'),
    ],
)
def test_the_next_step_fits_the_end(end: str, expected: str) -> None:
    stage = room(A=["Tabs."])
    stage.step("A")
    stage.types(f"\n## Turn 3 — User\n\nSo be it.\n\n{end}\n")
    step = next_step(stage.dialog, Path("/d/x.md"), is_running=True)
    assert (expected in step, step.endswith("opens it again"), "run --continue" in step) == (True, True, False)


def test_turns_are_counted_alike_after_a_reopening(dialogd: Commands) -> None:
    dialogd.file.write_text(limited().text, encoding="utf-8")
    assert dialogd("say", "Once more.").code == 0
    status, facts, export = dialogd.all([["status"], ["status", "--json"], ["export", "--to", "md", "--out", "-"]])
    assert "turn 4, 1 of 3 since it was opened again (2 left)" in status.out
    assert "next     " not in status.out
    assert "**Turns:** 4, 1 of 3 since it was opened again" in export.out
    assert [facts.json[key] for key in ("turn", "turns_counted", "max_turns")] == [4, 1, 3]
    assert "(turn 4, 1 of 2 since it was opened again)" in dialogd("limit", "max_turns", "2").out
    stage = Room(dialogd.file.read_bytes(), **{who: ["Again."] for who in "ABC"})
    stage.run()
    assert stage.text.endswith("[MAX_TURNS_REACHED: the limit of 2 turns since it was opened again]\n")


# -- `show` -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def held(dialogd: Commands) -> Commands:
    """A proposal, and a question that stays open."""
    dialogd.file.write_bytes(talk('order = "free"', of="AB", said=FLOW).paper.data)
    return dialogd


def test_follow_shows_what_comes_until_the_end(held: Commands) -> None:
    with held.background("show", "--follow", "--json") as process:
        until(lambda: held.output.count("\n") >= 3, "three messages", lambda: held.output)
        stop(LogFile(held.file, held.log.journals), "enough")
        until(lambda: process.poll() is not None, "the end", lambda: held.output)
    lines = [json.loads(line) for line in held.output.split("\n") if line]
    assert [m["message_type"] for m in lines] == ["TEXT", "PROPOSAL", "QUESTION", "STOPPED"]
    assert process.returncode == 0


def test_a_project_names_its_dialog_and_the_script_does_the_same(held: Commands, repository: Path) -> None:
    own, works, neither = (held.folder / name for name in ("own", "works", "neither"))
    for folder in (own, works, neither):
        folder.mkdir()
    (own / "dialogd.toml").write_text('file = "talk.md"\n')
    (own / "talk.md").write_bytes(held.file.read_bytes())
    Cast(held.log.read().id, (Seat("A", "rehearsal", project=str(works)),)).save(held.state, held.file)
    expected, by_settings, by_agent, none, both = held.all(
        [["show"], ["show", "--project", str(own)], ["show", "--project", "works"], ["show", "--project", "neither"],
         ["show", "x.md", "--project", "own"]]
    )  # fmt: skip
    assert expected.out == by_settings.out == by_agent.out
    assert (none.code, both.code, "dialogd show FILE" in none.err) == (2, 2, True)
    script = [sys.executable, str(repository / "scripts" / "view_message_flow.py"), "--project", "works"]
    environment = {**os.environ, **held.environment}
    done = subprocess.run(
        script, env=environment, cwd=held.folder, capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.returncode, done.stdout) == (0, expected.out)

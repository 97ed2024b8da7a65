"""`dialogd status` of dialogs with rules of their own, and of plain ones, which stay as short as they were."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dialogd import person
from dialogd.cli import status as standing
from dialogd.cli.status import next_step
from dialogd.protocol.model import USER
from dialogd.protocol.state import Ballot, Decision, Dialog, Escalation, Outcome, Poll, Polls, Seal
from tests.cli.command import Commands
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


def room(*setup: str, keys: Sequence[str] = (), **scripts: Sequence[str]) -> Room:
    """Three agents with a Setup of these lines; without any, a plain dialog."""
    more = "\n".join(["## Setup\n\n```toml", *setup, "```"]) if setup else ""
    return Room(opening("A", "B", "C", keys=keys, more=more), **scripts)


def stood(*setup: str, keys: Sequence[str] = (), **state: object) -> Dialog:
    """A dialog with these parts of its state."""
    dialog = room(*setup, keys=keys).dialog
    return replace(dialog, state=state_with(dialog.state, **state))


def rows(dialog: Dialog, now: str = NOW) -> dict[str, str]:
    """The rows by their labels."""
    return dict(standing.procedure_rows(dialog, now))


def test_a_plain_dialog_has_no_rows_of_its_own() -> None:
    text = "## Consensus Summary\n\nPostgres.\n\n[CONSENSUS_REACHED]"
    stage = room(A=[text], B=["[AGREE: P1]"], C=["[AGREE: P1]"])
    assert rows(stage.dialog) == {}
    stage.run()
    assert stage.dialog.state.table.decisions
    assert rows(stage.dialog) == {}


def test_status_of_a_council_shows_its_way_to_a_decision(dialogd: Commands) -> None:
    stage = room(*COUNCIL, keys=["Max Rounds: 5"], A=["[PROPOSAL: Postgres]"], B=["[VOTE: P1 approve | it is there]"])
    for me in "AB":
        stage.step(me)
    dialogd.file.write_text(stage.text, encoding="utf-8")
    dialogd.file.chmod(0o600)
    text, facts = dialogd.all([["status"], ["status", "--json"]])
    assert (text.code, text.err, facts.err) == (0, "", "")
    for row in (
        "  state    waiting (under way)",
        "  rules    council: order round-robin; verdict vote, threshold 75%, quorum 50%",
        "  round    1 of 5; phase 1 of 2, DISCOVERY: what there is",
        "  vote     P1: B approve; not yet: A, C",
    ):
        assert f"{row}\n" in text.out
    assert "  signals  convergence 0.75 (weak)\n" in text.out
    assert (facts.json["lifecycle"], facts.json["allowed"][:4]) == ("streaming", ["post", "read", "vote", "stop"])
    assert facts.json["convergence"] == 0.75
    rules = facts.json["rules"]
    assert (rules["template"], rules["order"], rules["verdict"]) == ("council", "round-robin", "vote")
    assert rules["phase"] == {"number": 1, "of": 2, "name": "DISCOVERY", "description": "what there is"}
    assert (rules["rounds"], rules["max_rounds"], rules["time_left"], rules["queue"]) == (0, 5, None, [])
    (poll,) = rules["polls"]
    assert (poll["ref"], poll["missing"]) == ("P1", ["A", "C"])
    assert poll["votes"] == [{"agent": "B", "choice": "approve", "reason": "it is there", "turn": 3, "weight": 1.0}]


def test_status_of_a_plain_pair_stays_short(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    before = dialogd("status").out
    assert "  state    waiting (not begun)\n" in before
    assert "signals" not in before
    with dialogd.file.open("a", encoding="utf-8") as file:
        file.write("\n## Turn 2 — Claude A\n\nTabs, tabs everywhere.\n\nTURN: B\n")
        file.write("\n## Turn 3 — Claude B\n\nI agree, tabs everywhere.\n\nTURN: A\n")
    after = dialogd("status").out
    (signals,) = [line for line in after.split("\n") if line.startswith("  signals")]
    assert signals == "  signals  convergence 0.75 (weak)"
    labels = [[line[2:10].strip() for line in text.split("\n")[1:-1]] for text in (before, after)]
    assert [label for label in labels[1] if label != "signals"] == labels[0]
    facts = dialogd("status", "--json").json
    assert facts["rules"]["template"] == ""
    assert dialogd("stop").code == 0
    assert "  state    ended (over)\n" in dialogd("status").out


ROUNDS = [
    ((), 0, "1", {}),
    (("Max Rounds: 5",), 1, "2 of 5", {}),
    (("Max Rounds: 2",), 2, "2 of 2", {}),
]


@cases(("keys", "rounds", "shown", "state"), ROUNDS)
def test_the_round_that_is_under_way(keys: Sequence[str], rounds: int, shown: str, state: dict[str, object]) -> None:
    assert rows(stood('order = "round-robin"', keys=keys, rounds=rounds, **state))["round"] == shown


def test_after_the_end_the_rounds_that_were_complete_are_counted() -> None:
    stage = room('order = "round-robin"', keys=["Max Rounds: 5"], A=["x"], B=["x"], C=["x"])
    for me in "ABC":
        stage.step(me)
    assert rows(stage.dialog)["round"] == "2 of 5"
    stage.stop()
    assert (rows(stage.dialog)["rounds"], "round" in rows(stage.dialog)) == ("1 complete, of at most 5", False)


@cases(("rounds", "name"), [(0, "1 of 2, DISCOVERY"), (1, "2 of 2, ANALYSIS"), (9, "2 of 2, ANALYSIS")])
def test_the_phase_follows_the_rounds(rounds: int, name: str) -> None:
    assert f"; phase {name}" in rows(stood(*COUNCIL, rounds=rounds))["round"]


VERDICTS = {
    "mutual": ((), "order free; verdict mutual, all sign the same text"),
    "vote": (('verdict = "vote"',), "order free; verdict vote, threshold 67%, quorum 67%"),
    "moderator": (('verdict = "moderator"',), "order free; verdict moderator, the moderator decides"),
    "judge": (('verdict = "judge"', 'judge = "C"'), "order free; verdict judge, C judges"),
    "no-judge": (('verdict = "judge"',), "order free; verdict judge, nobody judges"),
}


@cases(("setup", "shown"), VERDICTS.values())
def test_who_decides_is_said(setup: Sequence[str], shown: str) -> None:
    assert rows(room('order = "free"', *setup).dialog)["rules"] == shown


def test_votes_and_decisions_are_shown() -> None:
    made = tuple(Decision(f"P{n}", "approved", "vote", "2 for (A, B)", "cheap", str(n)) for n in range(1, 5))
    dialog = stood(
        *COUNCIL, polls=Polls((Poll("P5", 6, (Ballot("B", "reject", "no", 7),)), Poll("P6", 6))), decisions=made
    )
    shown = list(standing.procedure_rows(dialog, NOW))
    assert [text for label, text in shown if label == "vote"] == [
        "P5: B reject; not yet: A, C",
        "P6: nobody yet; not yet: A, B, C",
    ]
    decided = [text for label, text in shown if label == "decided"]
    assert decided == [f"P{n} approved (vote): 2 for (A, B); cheap" for n in (2, 3, 4)]
    facts = standing.facts(dialog, NOW)
    assert [decision["ref"] for decision in facts["decisions"]] == ["P1", "P2", "P3", "P4"]
    assert facts["decisions"][0] == {
        "ref": "P1", "outcome": "approved", "method": "vote", "evidence": "2 for (A, B)", "reason": "cheap",
        "entry": "1",
    }  # fmt: skip


def test_after_the_end_nobody_is_waited_for() -> None:
    made = Decision("P1", "approved", "vote", "2 for (A, B)", "cheap", "4")
    dialog = stood(
        *COUNCIL,
        polls=Polls((Poll("P2", 2),)),
        escalation=Escalation("C"),
        decisions=(made,),
        outcome=Outcome("DECIDED", "B", "4"),
    )
    assert {"vote", "decides"} & set(rows(dialog)) == set()
    assert rows(dialog)["decided"].startswith("P1 approved")


def test_what_else_holds_a_dialog_is_shown() -> None:
    dialog = stood(*COUNCIL, escalation=Escalation("C", "three votes failed"), blocking=(2, 3), queue=(USER, "B"))
    shown = rows(dialog)
    assert shown["decides"] == "C: three votes failed"
    assert shown["blocks"] == "an approval: finding 2, 3"
    assert shown["in line"] == "for the floor: you, B"
    assert rows(stood(*COUNCIL, escalation=Escalation(USER)))["decides"] == "you"
    facts = standing.facts(dialog, NOW)
    assert (facts["escalated"], facts["escalation"], facts["blocking"]) == ("C", "three votes failed", [2, 3])
    assert facts["queue"] == ["USER", "B"]


def test_seals_of_an_open_round_and_whom_it_waits_for() -> None:
    dialog = Room(opening("A", "B", "C", turn="A, B, C", setup='order = "parallel"')).dialog
    assert "sealed" not in rows(dialog)
    seals = (Seal("A", "x", "1.1", "1"), Seal("C", "y", "1.2", "1"))
    some = replace(dialog, state=state_with(dialog.state, seals=seals))
    assert rows(some)["sealed"] == "A, C; waiting for B"
    everybody = replace(some, state=state_with(some.state, seals=(*seals, Seal("B", "z", "1.3", "1"))))
    assert rows(everybody)["sealed"] == "A, C, B"
    assert (standing.facts(some, NOW)["sealed"], standing.facts(some, NOW)["unsealed"]) == (["A", "C"], ["B"])
    assert standing.facts(dialog, NOW)["unsealed"] == []


LEFT = {
    "header": ((BEGAN, "Max Time: 50 minutes"), {}, 1200.0),
    "file": ((BEGAN, "Max Time: 50 minutes"), {"began": "2026-11-21T19:20:00Z"}, 2400.0),
    "over": ((BEGAN, "Max Time: 5 minutes"), {}, 0.0),
    "no-limit": ((BEGAN,), {}, None),
    "no-beginning": (("Max Time: 50 minutes",), {}, None),
    "nonsense": (("Started: in spring", "Max Time: 50 minutes"), {}, None),
}


@cases(("keys", "state", "left"), LEFT.values())
def test_the_time_that_is_left(keys: Sequence[str], state: dict[str, object], left: float | None) -> None:
    assert standing.facts(stood(keys=keys, **state), NOW)["time_left"] == left
    assert ("time" in rows(stood(keys=keys, **state))) == (left is not None)


def test_the_time_that_is_left_in_words() -> None:
    dialog = stood(keys=(BEGAN, "Max Time: 1 hour"))
    assert rows(dialog)["time"] == "30 minutes left of 1 hour"
    stage = room(keys=(BEGAN, "Max Time: 1 hour"))
    stage.stop()
    assert "time" not in rows(stage.dialog)


def test_the_phase_after_an_end_is_the_one_that_began_last(dialogd: Commands) -> None:
    stage = room(*COUNCIL, keys=["Max Rounds: 3"], **{who: ["Well."] * 4 for who in "ABC"})
    stage.run()
    assert stage.dialog.state.outcome is not None
    assert [m.value for e in stage.dialog.entries for m in e.all("ROUND")] == ["phase | ANALYSIS"]
    dialogd.file.write_text(stage.text, encoding="utf-8")
    dialogd.file.chmod(0o600)
    assert "; ended in phase 2 of 2, ANALYSIS" in dialogd("status").out
    early = room(*COUNCIL, keys=["Max Rounds: 1"], **{who: ["Well."] for who in "ABC"})
    early.run()
    assert early.dialog.state.floor.rounds == 1
    assert "phase 1 of 2, DISCOVERY" in rows(early.dialog)["rounds"]
    stage.by_hand(person.limit, "max_rounds", "1")
    stage.say("Once more.", to="A")
    stage.run()
    assert (stage.dialog.state.outcome is not None, stage.dialog.state.floor.rounds) == (True, 1)
    assert "phase 1 of 2, DISCOVERY" in rows(stage.dialog)["rounds"]


def test_redacted_places_are_counted_in_the_file(dialogd: Commands) -> None:
    key = "AKIA" + "IOSFODNN7EXAMPLE"
    stage = room(A=[f"It is {key}, or {key}.\n\n[PROPOSAL: take {key}]"])
    stage.say(f"Not {key}?", to="A")
    stage.run()
    stage.stop()
    assert key not in stage.text
    dialogd.file.write_text(stage.text, encoding="utf-8")
    dialogd.file.chmod(0o600)
    text, facts = dialogd.all([["status"], ["status", "--json"]])
    assert "\n  secrets  3 redacted in the file\n" in text.out
    assert facts.json["secrets_redacted"] == 3


def test_status_takes_the_file_as_its_argument(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    dialogd.begin("Spaces?", "other.md")
    own, other, option, none = dialogd.all(
        [["status"], ["status", "other.md"], ["status", "--file", "other.md"], ["status", "gone.md"]]
    )
    assert own.out.startswith("Tabs?\n")
    assert other.out == option.out
    assert other.out.startswith("Spaces?\n")
    assert none.code == 3


@pytest.mark.slow
def test_no_command_shows_people_the_states_names(dialogd: Commands) -> None:
    dialogd.begin("Tabs?", "a.md")
    stage = room(A=["I propose tabs.\n\n[PROPOSAL: tabs]"], B=["[OBJECTION: width]"])
    for me in "AB":
        stage.step(me)
    (dialogd.folder / "b.md").write_text(stage.text, encoding="utf-8")
    stage.stop("enough")
    (dialogd.folder / "c.md").write_text(stage.text, encoding="utf-8")
    shown = [["status"], ["status", "--board"], ["status", "--away"], ["show"], ["export", "--to", "md", "--out", "-"]]
    lines = [
        [*words, "--file", f"{name}.md"]
        for name in "abc"
        for words in [*shown, *([["plan", "--out", "-"]] * (name != "a"))]
    ]
    lines.append(["watch", "--file", "c.md"])
    for words, done in zip(lines, dialogd.all(lines), strict=True):
        assert done.out, (words, done.err)
        assert not re.search(r"dormant|streaming|converging|collapsed|harvest", done.out), (words, done.out)
    known = [dialogd("status", "--json", "--file", f"{name}.md").json["lifecycle"] for name in "abc"]
    assert known == ["dormant", "streaming", "collapsed"]


LIMITED = ("objections = true",)


def limited() -> Room:
    """A dialog that has reached its limit of three turns."""
    stage = room(
        *LIMITED, keys=["Max Turns: 3"], A=["Tabs.", "Tabs again."], B=["Spaces.", "Spaces again."], C=["Both."]
    )
    stage.run()
    assert stage.dialog.state.outcome is not None
    return stage


@pytest.mark.slow
def test_after_an_end_without_a_decision_the_next_step_is_printed(dialogd: Commands) -> None:
    dialogd.file.write_text(limited().text, encoding="utf-8")
    words = ["run", "T", "--agents", "rehearsal,rehearsal", "--max-turns", "2", "--file", "own.md"]
    status, watch, run = dialogd.all([["status"], ["watch"], words])
    for done, name in ((status, "dialog.md"), (watch, "dialog.md"), (run, "own.md")):
        file = dialogd.folder / name
        step = f'dialogd plan --file {file} says where it stands; dialogd say "…" --file {file}'
        said = done.out + done.err
        assert f"{step} and dialogd run --continue --file {file} opens it again" in said, said
    assert re.search(r"^  next     dialogd plan", status.out, re.M)
    assert re.search(r"^next   dialogd plan", watch.out, re.M)
    assert dialogd("say", "Go on.").code == 0
    assert "next     " not in dialogd("status").out


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
    assert expected in step
    assert step.endswith("opens it again")
    assert "run --continue" not in step


def test_turns_are_counted_alike_after_a_reopening(dialogd: Commands) -> None:
    stage = limited()
    dialogd.file.write_text(stage.text, encoding="utf-8")
    assert "turn 3 of 3 (0 left)" in dialogd("status").out
    assert dialogd("say", "Once more.").code == 0
    status, facts, export = dialogd.all([["status"], ["status", "--json"], ["export", "--to", "md", "--out", "-"]])
    assert "turn 4, 1 of 3 since it was opened again (2 left)" in status.out
    assert "**Turns:** 4, 1 of 3 since it was opened again" in export.out
    assert [facts.json[key] for key in ("turn", "turns_counted", "max_turns")] == [4, 1, 3]
    assert "(turn 4, 1 of 2 since it was opened again)" in dialogd("limit", "max_turns", "2").out
    stage = Room(dialogd.file.read_bytes(), **{who: ["Again."] for who in "ABC"})
    stage.run()
    assert stage.dialog.state.number == 5
    assert stage.text.endswith("[MAX_TURNS_REACHED: the limit of 2 turns since it was opened again]\n")

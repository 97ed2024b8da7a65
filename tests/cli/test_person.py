"""The person's commands and `stop`, with no daemon running: everything is in the file."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from dialogd.cli.status import exit_code
from dialogd.protocol.grammar import parse
from dialogd.protocol.state import Outcome
from tests.cli.command import Commands
from tests.support.room import opening


def test_the_person_conducts_a_dialog_without_any_daemon(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    a, b = (f"(not running: {dialogd.start_line(who)})" for who in "AB")
    steps = [
        (["say", "Consider tabs"], f"turn 2 is yours; A owes the next turn {a}"),
        (["say", "--note", "by the way"], f"noted; A owes the next turn {a}"),
        (["say", "-", "--to", "claude b"], f"turn 3 is yours; B owes the next turn {b}"),
        (["pause"], "paused; B owes the next turn once you resume"),
        (["pause"], "it was paused already; B owes the next turn once you resume"),
        (["resume"], f"resumed; B owes the next turn {b}"),
        (["skip", "B"], f"B is skipped; A owes the next turn {a}"),
        (["retry", "B"], f"B is asked once more; A and B owe the next turn {a}"),
    ]
    for words, answer in steps:
        done = dialogd(*words, given="from\nstdin\n")
        assert (done.code, done.out, done.err) == (0, f"{answer}\n", "")
    dialog = parse(dialogd.file.read_bytes())
    assert dialog.entry("3") is not None
    assert [entry.body for entry in dialog.turns[1:]] == ["Consider tabs", "from\nstdin"]
    assert [str(mark) for entry in dialog.entries for mark in entry.marks] == (
        ["[PAUSED]", "[RESUMED]", "[SKIP: B]", "[RETRY: B]"]
    )


def test_what_the_dialog_does_not_allow_is_refused(dialogd: Commands) -> None:
    no_dialog = dialogd.all([["say", "x"], ["pause"], ["retry", "A"], ["status"], ["status", "--json"]])
    assert [done.code for done in no_dialog] == [3] * 5
    assert not (dialogd.folder / "dialog.md.lock").exists()
    dialogd.begin("Tabs?")
    before = dialogd.file.read_bytes()
    lines: dict[str, int] = {
        "say --to Z x": 2, "say -": 2, "skip B": 1, "retry Z": 2, "logs A": 3, "run --continue": 3, "run": 2,
        "start A --port 70000": 2, "start A --peer http://example.com:80": 2, "start USER": 2, "start": 2,
        "start A --backend gpt": 2, "floor": 1, "floor B": 1,
    }  # fmt: skip
    wrong = dialogd.all([line.split() for line in lines])
    assert {line: done.code for line, done in zip(lines, wrong, strict=True)} == lines
    for done in wrong:
        assert re.search(r"^error: .+\n  fix: \S", done.err, re.DOTALL), done.err
        assert "Traceback" not in done.err
    assert "A (Claude A), B (Claude B)" in wrong[0].err
    assert "B owes no turn: the dialog is not begun, and the turn is with A" in wrong[2].err
    assert "cannot ask for the floor: the dialog is not begun, and its order is alternate, not free" in wrong[-1].err
    assert dialogd.file.read_bytes() == before


def test_stop_closes_and_archives_and_a_word_opens_again(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    stopped = dialogd("stop", "--file", str(dialogd.file))
    assert (stopped.code, stopped.err) == (0, "")
    copy = Path(stopped.out.strip().rpartition(" ")[2])
    assert copy.read_bytes() == dialogd.file.read_bytes()
    assert parse(copy.read_bytes()).state.outcome is not None
    again = dialogd("stop")
    assert (again.code, again.out) == (3, "")
    assert "nothing to stop" in again.err
    status = dialogd("status", "--json").json
    assert (status["phase"], status["outcome"]["name"], status["waiting"]) == (
        "ended",
        "STOPPED",
        ["ended, stopped by you before an agreement: dialogd stop"],
    )
    for words in (["skip", "A"], ["retry", "A"], ["floor"]):
        refused = dialogd(*words)
        assert refused.code == 1
        assert "the dialog is over" in refused.err
        assert "fix: open it again with a turn of yours: dialogd say" in refused.err
    opened = dialogd("say", "I disagree, because tabs", "--turns", "10")
    assert opened.out.startswith("turn 2 is yours; the dialog is open again; A owes")
    state = parse(dialogd.file.read_bytes()).state
    assert (state.outcome, state.limits.max_turns - state.counted) == (None, 10)
    assert dialogd("say", "More.", "--budget", "$4, 200k tokens").code == 0
    limits = parse(dialogd.file.read_bytes()).state.limits
    assert (limits.budget, limits.tokens) == (4.0, 200_000)
    wrong = dialogd("say", "More.", "--budget", "a lot")
    assert (wrong.code, "is not a budget such as" in wrong.err) == (2, True)
    assert dialogd("stop").code == 0


FREE = """## Setup

```toml
order = "free"

[roles.C]
role = "observer"
```"""


def test_the_floor_is_asked_for_where_the_order_is_free(dialogd: Commands) -> None:
    dialogd.file.write_text(opening("A", "B", "C", "D", more=FREE), encoding="utf-8")
    dialogd.file.chmod(0o600)
    after = f"A owes the next turn (not running: {dialogd.start_line('A')})"
    steps = [
        (["floor", "claude d"], f"D asks for the floor; {after}"),
        (["floor"], f"you ask for the floor; in line: D, you; {after}"),
        (["floor", "USER"], f"it was asked for already; in line: D, you; {after}"),
        (["floor", "B"], f"B asks for the floor; in line: D, you, B; {after}"),
    ]
    for words, answer in steps:
        done = dialogd(*words)
        assert (done.code, done.out, done.err) == (0, f"{answer}\n", "")
    dialog = parse(dialogd.file.read_bytes())
    assert [str(mark) for entry in dialog.entries for mark in entry.marks] == ["[TO: D]", "[TO: USER]", "[TO: B]"]
    assert (dialog.state.floor.queue, dialog.state.owing) == (("D", "USER", "B"), ("A",))
    lines: dict[str, tuple[int, str]] = {
        "floor A": (1, "A has the floor: the dialog is not begun, and the turn is with A"),
        "floor C": (1, "C gets no turns in this dialog"),
        "floor Z": (2, "this dialog has no agent 'Z'"),
    }
    for line, (code, why) in lines.items():
        refused = dialogd(*line.split())
        assert (refused.code, refused.out) == (code, "")
        assert why in refused.err
    assert dialogd("say", "My turn.", "--to", "A").code == 0


def test_an_observer_is_given_no_turn_by_any_command(dialogd: Commands) -> None:
    dialogd.file.write_text(opening("A", "B", "C", "D", more=FREE), encoding="utf-8")
    dialogd.file.chmod(0o600)
    before = dialogd.file.read_bytes()
    for words in ("say Well? --to C", "say Well? --to A,C", "say Well? --proposal --to C", "retry C"):
        done = dialogd(*words.split())
        assert (done.code, done.out) == (1, ""), done.err
        assert "C gets no turns in this dialog: it only reads" in done.err
        assert "fix: name one of: A, B, D" in done.err
    assert dialogd.file.read_bytes() == before
    assert dialogd("say", "Well?", "--to", "all").code == 0
    assert parse(dialogd.file.read_bytes()).state.owing == ("A", "B", "D")


def test_a_decision_by_the_dialogs_rule_is_a_good_end() -> None:
    ends = {"DECIDED": 0, "CONSENSUS_REACHED": 0, "DEADLOCK": 4, "STOPPED": 4}
    assert {name: exit_code(Outcome(name, "A", "4")) for name in ends} == ends
    assert exit_code(Outcome("STOPPED", "SYSTEM", "4", "error: every agent failed")) == 1
    assert exit_code(None) == 0


def test_status_says_whose_turn_it_is_and_why_nothing_moves(dialogd: Commands) -> None:
    dialogd.file.write_text(
        "# D\n\n**Topic:** Tabs?\n**Max Turns:** many\n\n---\n\n## Turn 1 — User\n\nTabs?\n\nTURN: A\n\n---\n\n"
        "## Turn 2 — Claude A\n\nWhich ones?\n\n[QUESTION_FOR_USER: soft or hard?]\n\nTURN: USER\n",
        encoding="utf-8",
    )
    dialogd.file.chmod(0o600)
    text, facts = dialogd.all([["status"], ["status", "--json"]])
    assert (text.code, text.err, facts.err) == (0, "", "")
    assert "  turns    turn 2 of 20 (18 left), next: USER\n" in text.out
    assert "waiting for the person: soft or hard?" in text.out
    assert f'dialogd say --file {dialogd.file} "…"' in text.out
    assert facts.json["phase"] == "waiting_for_user"
    assert facts.json["needs_person"] == "A asks you: soft or hard?"
    assert (facts.json["turn_of"], facts.json["daemons"], facts.json["max_turns"]) == (["USER"], [], 20)
    assert len(facts.json["warnings"]) == 1
    listed = dialogd("status", "--all", "--json")
    assert listed.json == []


def test_settings_and_where_they_come_from(dialogd: Commands) -> None:
    (dialogd.folder / "dialogd.toml").write_text('name = "Ann"\n', encoding="utf-8")
    plain, origin, facts = dialogd.all(
        [["config", "show"], ["config", "show", "--origin"], ["config", "show", "--origin", "--json"]]
    )
    assert re.search(r"^name +Ann$", plain.out, re.MULTILINE)
    assert re.search(rf"^file +{dialogd.file} +environment DIALOGD_FILE$", origin.out, re.MULTILINE)
    assert facts.json["name"] == {"value": "Ann", "origin": f"{dialogd.folder / 'dialogd.toml'} name"}
    assert facts.json["pace"] == {"value": "0", "origin": "default"}
    wrong = dialogd("config", "show", DIALOGD_PORT="nonsense")
    assert (wrong.code, "environment DIALOGD_PORT" in wrong.err) == (2, True)


def given(dialogd: Commands, *words: str | bytes, typed: bytes = b"") -> tuple[int, str]:
    """Exit code and stderr of a command with these very bytes as its words and its standard input."""
    env = {**dialogd.environment, "LC_ALL": "C.UTF-8"}
    line = [*dialogd.words([]), *words]
    done = subprocess.run(line, input=typed, cwd=dialogd.folder, env=env, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stderr.decode()


@pytest.mark.slow
def test_what_is_no_utf_8_is_refused_by_every_door_and_damages_nothing(dialogd: Commands) -> None:
    latin = "caf\u00e9 cr\u00e8me\n".encode("latin-1")
    dialogd.begin("Tabs?")
    before = dialogd.file.read_bytes()
    (dialogd.folder / "latin.txt").write_bytes(latin)
    argument = "as Latin-1, is not UTF-8"
    doors: list[tuple[tuple[str | bytes, ...], str]] = [
        (("say", latin), argument),
        (("say", "-"), "standard input is not UTF-8: byte 0xe9 in line 1"),
        (("say", "--proposal", "-"), "standard input is not UTF-8"),
        (("new", latin, "--file", "x.md"), argument),
        (("new", "T", "--file", "x.md", "-q", latin), argument),
        (("new", "T", "--file", "x.md", "--question-file", "-"), "standard input is not UTF-8"),
        (("new", "T", "--file", "x.md", "--question-file", "latin.txt"), "latin.txt is not UTF-8: byte 0xe9 in line 1"),
        (("new", "T", "--file", "x.md", "--context", "latin.txt"), "latin.txt is not UTF-8"),
    ]
    for words, why in doors:
        code, said = given(dialogd, *words, typed=latin)
        assert (code, why in said, "\n  fix: " in said, "Traceback" in said) == (2, True, True, False), (words, said)
    assert dialogd.file.read_bytes() == before
    assert not (dialogd.folder / "x.md").exists()
    assert given(dialogd, "say", "-", typed="caf\u00e9\r\n".encode())[0] == 0
    assert "caf\u00e9\n" in dialogd.file.read_text(encoding="utf-8")
    with dialogd.file.open("ab") as file:
        file.write(b"\nWhat about caf\xe9s?\n\nTURN: A\n")
    assert dialogd("status").code == 0

"""The person's commands, with no daemon running: everything is in the file."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from dialogd.protocol.grammar import parse
from tests.cli.command import Commands, until
from tests.support.room import opening

FREE = 'order = "free"\n\n[roles.C]\nrole = "observer"'
# The agents and the Setup of a dialog; commands and what each says, where `{A}` is that A owes the next turn and does
# not run; the marks that the file has in the end. A line that begins with `##` is typed into the file.
SCENES: dict[str, tuple[str, str, Sequence[tuple[str, str]], str]] = {
    "conducted": ("AB", "", (
        ("say Consider", "turn 2 is yours; {A}"),
        ("say --note aside", "noted; {A}"),
        ("say - --to 'claude b'", "turn 3 is yours; {B}"),
        ("pause", "paused; B owes the next turn once you resume"),
        ("pause", "it was paused already; B owes the next turn once you resume"),
        ("resume", "resumed; {B}"),
        ("resume", "it was not paused; {B}"),
        ("skip B", "B is skipped; {A}"),
        ("retry B", "B is asked once more; A and B owe the next turn {a}"),
    ), "[PAUSED] [RESUMED] [SKIP: B] [RETRY: B]"),
    "stepped-in": ("AB", "", (
        ("say --proposal SQLite", "turn 2 is yours, and proposes P1; {A}"),
        ("say - --instead-of P1", "turn 3 is yours, and proposes P2; {A}"),
        ("veto P1 slow", "P1 ruled out; {A}"),
        ("veto p1", "P1 was ruled out already; {A}"),
        ("strike 3 mistake", "turn 3 withdrawn; {A}"),
        ("strike 3", "withdrawn already; {A}"),
        ("limit max_turns 40", "max_turns is 40 from here on (turn 3 of 40); {A}"),
        ("## Turn 4 — Claude A\n\nSpaces.\n\nTURN: USER", ""),
        ("step on", "step mode is on; {you}"),
        ("pass", "passed on; {B}"),
        ("pass", "it was not your turn; {B}"),
        ("step off", "step mode is off; {B}"),
        ("say --to B Why?", "turn 5 is yours; {B}"),
        ("leave B needless", "B takes part no longer; {you}"),
        ("leave B", "B had left already; {you}"),
        ("invite C=rehearsal", "C takes part; {you}"),
    ), "[PROPOSAL P1: SQLite] [VETO: P1 | slow] [STRIKE: 3 | mistake] [LIMIT: max_turns 40]"
       " [STEP: on] [STEP: off] [LEAVE: B | needless]"
       " [INVITE: C = Claude C @ http://localhost:3003]"),
    "floor": ("ABCD", FREE, (
        ("floor D", "D asks for the floor; {A}"),
        ("floor", "you ask for the floor; in line: D, you; {A}"),
        ("floor USER", "it was asked for already; in line: D, you; {A}"),
        ("floor B", "B asks for the floor; in line: D, you, B; {A}"),
    ), "[TO: D] [TO: USER] [TO: B]"),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENES)
def test_the_person_conducts_a_dialog_without_any_daemon(dialogd: Commands, name: str) -> None:
    agents, setup, steps, marks = SCENES[name]
    dialogd.file.write_text(opening(*agents, setup=setup), encoding="utf-8")
    dialogd.file.chmod(0o600)
    asleep = {who.lower(): f"(not running: {dialogd.start_line(who)})" for who in "AB"}
    owing = {who: f"{who} owes the next turn {asleep[who.lower()]}" for who in "AB"}
    you = f'the next turn is yours: dialogd say --file {dialogd.file} "…"'
    for words, answer in steps:
        if words.startswith("##"):
            dialogd.types(f"\n{words}\n")
            continue
        done = dialogd(*shlex.split(words), given="from\nstdin\n")
        assert (done.code, done.out) == (0, f"{answer.format(**owing, **asleep, you=you)}\n"), done.err
        assert ("terminal of its own: dialogd start C --backend rehearsal" in done.err) == ("invite" in words)
    written = " ".join(str(mark) for entry in parse(dialogd.file.read_bytes()).entries for mark in entry.marks)
    assert written == marks


def test_what_the_person_did_stands_in_status(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    for words in ("say --proposal SQLite", "say Hm.", "strike 3 mistake", "veto P1 slow", "leave B"):
        assert dialogd(*words.split()).code == 0
    status, shown, board = dialogd.all([["status", "--json"], ["status"], ["status", "--board"]])
    facts = status.json
    assert (facts["struck"], facts["vetoed"], facts["left"], facts["step"]) == ([3], ["P1"], ["B"], False)
    assert [agent["id"] for agent in facts["agents"]] == ["A"]
    for words in ("turn 3 was withdrawn by the person: mistake", "vetoed   P1: slow", "left     B"):
        assert words in shown.out
    assert "vetoed" in board.out


REFUSED = {
    "AB": {
        "say --to Z x": 2, "say -": 2, "skip B": 1, "retry Z": 2, "logs A": 3, "run --continue": 3, "run": 2,
        "start A --port 70000": 2, "start A --peer http://example.com:80": 2, "start USER": 2, "start": 2,
        "start A --backend gpt": 2, "floor": 1, "floor B": 1, "veto P1": 2, "strike 9": 2, "strike x": 2,
        "limit turns 4": 2, "limit max_turns many": 2, "invite USER": 2, "invite C=nobody": 2,
        "invite C --port 3001": 2, "leave Z": 2, "leave all": 2, "say --note --proposal x": 2,
        "say --instead-of P7 x": 2, "step maybe": 2, "say More. --budget lots": 2,
    },
    "ABCD": {"floor A": 1, "floor C": 1, "floor Z": 2, "say Well? --to C": 1, "say Well? --to A,C": 1, "retry C": 1,
             "say Well? --proposal --to C": 1},
}  # fmt: skip
WHY = {
    "say --to Z x": "A (Claude A), B (Claude B)",
    "skip B": "B owes no turn: the dialog is not begun, and the turn is with A",
    "floor": "cannot ask for the floor: the dialog is not begun, and its order is alternate, not free",
    "floor A": "A has the floor: the dialog is not begun, and the turn is with A",
    "floor C": "C gets no turns in this dialog",
    "retry C": "C gets no turns in this dialog: it only reads",
    "say Well? --to A,C": "fix: name one of: A, B, D",
    "floor Z": "this dialog has no agent 'Z'",
    "say More. --budget lots": "is not a budget such as",
}


def test_what_the_dialog_does_not_allow_is_refused(dialogd: Commands) -> None:
    no_dialog = dialogd.all([["say", "x"], ["pause"], ["retry", "A"], ["status"], ["status", "--json"]])
    assert [done.code for done in no_dialog] == [3] * 5
    assert not (dialogd.folder / "dialog.md.lock").exists()
    for agents, lines in REFUSED.items():
        dialogd.file.write_text(opening(*agents, setup=FREE if len(agents) > 2 else ""), encoding="utf-8")
        dialogd.file.chmod(0o600)
        before = dialogd.file.read_bytes()
        for (line, code), done in zip(lines.items(), dialogd.all([line.split() for line in lines]), strict=True):
            assert (done.code, done.out) == (code, ""), (line, done)
            assert re.search(r"^error: .+\n  fix: \S", done.err, re.DOTALL), done.err
            assert "Traceback" not in done.err
            assert WHY.get(line, "") in done.err, (line, done.err)
        assert dialogd.file.read_bytes() == before
    assert dialogd("say", "Well?", "--to", "all").code == 0
    assert parse(dialogd.file.read_bytes()).state.owing == ("A", "B", "D")


def test_stop_closes_and_archives_and_a_word_opens_again(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    stopped = dialogd("stop", "--file", str(dialogd.file))
    assert (stopped.code, stopped.err) == (0, "")
    copy = Path(stopped.out.strip().rpartition(" ")[2])
    assert copy.read_bytes() == dialogd.file.read_bytes()
    assert parse(copy.read_bytes()).state.outcome is not None
    again = dialogd("stop")
    assert (again.code, again.out, "nothing to stop" in again.err) == (3, "", True)
    status = dialogd("status", "--json").json
    assert (status["phase"], status["outcome"]["name"]) == ("ended", "STOPPED")
    assert status["waiting"] == ["ended, stopped by you before an agreement: dialogd stop"]
    for words in ("skip A", "retry A", "floor", "step on"):
        refused = dialogd(*words.split())
        assert (refused.code, "the dialog is over" in refused.err) == (1, True), refused.err
        assert "fix: open it again with a turn of yours: dialogd say" in refused.err
    opened = dialogd("say", "--proposal", "SQLite", "--to", "B", "--turns", "3", "--budget", "$4, 200k tokens")
    assert opened.out.startswith("turn 2 is yours, and proposes P1; the dialog is open again; B owes the next turn")
    state = parse(dialogd.file.read_bytes()).state
    assert (state.outcome, state.owing, state.limits.max_turns - state.counted) == (None, ("B",), 3)
    assert (state.limits.budget, state.limits.tokens) == (4.0, 200_000)
    assert [(proposal.ref, proposal.text) for proposal in state.table.proposals] == [("P1", "SQLite")]
    assert dialogd("stop").code == 0
    late = dialogd("veto", "P1")
    assert (late.code, "dialogd reject" in late.err) == (1, True)


def test_status_says_whose_turn_it_is_and_why_nothing_moves(dialogd: Commands) -> None:
    dialogd.file.write_text(
        "# D\n\n**Topic:** Tabs?\n**Max Turns:** many\n\n---\n\n## Turn 1 — User\n\nTabs?\n\nTURN: A\n\n---\n\n"
        "## Turn 2 — Claude A\n\nWhich ones?\n\n[QUESTION_FOR_USER: soft or hard?]\n\nTURN: USER\n",
        encoding="utf-8",
    )
    dialogd.file.chmod(0o600)
    text, facts, listed = dialogd.all([["status"], ["status", "--json"], ["status", "--all", "--json"]])
    assert (text.code, text.err, facts.err, listed.json) == (0, "", "", [])
    assert "  turns    turn 2 of 20 (18 left), next: USER\n" in text.out
    assert "waiting for the person: soft or hard?" in text.out
    assert f'dialogd say --file {dialogd.file} "…"' in text.out
    assert (facts.json["phase"], facts.json["needs_person"]) == ("waiting_for_user", "A asks you: soft or hard?")
    assert (facts.json["turn_of"], facts.json["daemons"], facts.json["max_turns"]) == (["USER"], [], 20)
    assert len(facts.json["warnings"]) == 1


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


@pytest.mark.slow
def test_an_invited_agent_starts_without_more_flags_and_speaks_in_its_turn(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    assert dialogd("invite", "C", "--name", "Carla").code == 0
    assert dialogd("leave", "B").code == 0
    gone = dialogd("start", "B")
    assert (gone.code, "no agent 'B'" in gone.err) == (2, True)
    try:
        for agent in "AC":
            started = dialogd("start", agent, "--detach", "--pace", "0")
            assert started.code == 0, started.err
        assert dialogd("say", "Begin.", "--to", "A").code == 0
        until(lambda: b"Carla" in dialogd.file.read_bytes().partition(b"Begin.")[2], "C to speak")
        dialog = parse(dialogd.file.read_bytes())
        assert {entry.by for entry in dialog.turns} <= {"USER", "A", "C"}
        assert all(entry.name in ("User", "Claude A", "Carla", "Rehearsal A") for entry in dialog.turns)
    finally:
        dialogd("stop")
        dialogd.end_daemons()


@pytest.mark.slow
def test_no_secret_of_the_environment_stands_in_what_a_command_writes(dialogd: Commands) -> None:
    secret = "correct-horse-battery-staple"
    said = f"{'x' * 470} {secret} y"
    dialogd.begin("Tabs?")
    for line in (
        ["say", "--proposal", said], ["veto", "P1", said], ["strike", "1", said], ["say", said],
        ["say", "--note", said], ["say", "--to", "B", said], ["invite", "C", "--name", secret], ["leave", "B", said],
        ["stop"], ["reject", said],
    ):  # fmt: skip
        done = dialogd(*line, MY_API_KEY=secret)
        assert secret[:12] not in dialogd.file.read_text(encoding="utf-8"), line
        assert done.code == 0, (line, done.err)
    assert dialogd.file.read_text(encoding="utf-8").count("[redacted: own key]") >= 8


LATIN = "caf\u00e9 cr\u00e8me\n".encode("latin-1")
DOORS: list[tuple[tuple[str | bytes, ...], str]] = [
    (("say", LATIN), "as Latin-1, is not UTF-8"),
    (("say", "-"), "standard input is not UTF-8: byte 0xe9 in line 1"),
    (("say", "--proposal", "-"), "standard input is not UTF-8"),
    (("new", LATIN, "--file", "x.md"), "as Latin-1, is not UTF-8"),
    (("new", "T", "--file", "x.md", "-q", LATIN), "as Latin-1, is not UTF-8"),
    (("new", "T", "--file", "x.md", "--question-file", "-"), "standard input is not UTF-8"),
    (("new", "T", "--file", "x.md", "--question-file", "latin.txt"), "latin.txt is not UTF-8: byte 0xe9 in line 1"),
    (("new", "T", "--file", "x.md", "--context", "latin.txt"), "latin.txt is not UTF-8"),
]


@pytest.mark.slow
def test_what_is_no_utf_8_is_refused_by_every_door_and_damages_nothing(dialogd: Commands) -> None:
    def given(*words: str | bytes, typed: bytes) -> tuple[int, str]:
        env, line = {**dialogd.environment, "LC_ALL": "C.UTF-8"}, [*dialogd.words([]), *words]
        done = subprocess.run(
            line, input=typed, cwd=dialogd.folder, env=env, capture_output=True, timeout=60, check=False
        )
        return done.returncode, done.stderr.decode()

    dialogd.begin("Tabs?")
    before = dialogd.file.read_bytes()
    (dialogd.folder / "latin.txt").write_bytes(LATIN)
    for words, why in DOORS:
        code, said = given(*words, typed=LATIN)
        assert (code, why in said, "\n  fix: " in said, "Traceback" in said) == (2, True, True, False), (words, said)
    assert dialogd.file.read_bytes() == before
    assert not (dialogd.folder / "x.md").exists()
    assert given("say", "-", typed="caf\u00e9\r\n".encode())[0] == 0
    assert "caf\u00e9\n" in dialogd.file.read_text(encoding="utf-8")
    with dialogd.file.open("ab") as file:
        file.write(b"\nWhat about caf\xe9s?\n\nTURN: A\n")
    assert dialogd("status").code == 0

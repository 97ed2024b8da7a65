"""The person's hand on the command line, with daemons running or none."""

from __future__ import annotations

import pytest

from dialogd.protocol.grammar import parse
from tests.cli.command import Commands, until


def test_the_persons_hand_without_any_daemon(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    then = f"A owes the next turn (not running: {dialogd.start_line('A')})"
    steps = [
        (["say", "--proposal", "use SQLite"], f"turn 2 is yours, and proposes P1; {then}"),
        (["say", "-", "--instead-of", "P1"], f"turn 3 is yours, and proposes P2; {then}"),
        (["veto", "P1", "too slow"], f"P1 ruled out; {then}"),
        (["veto", "p1"], f"P1 was ruled out already; {then}"),
        (["strike", "3", "a mistake"], f"turn 3 withdrawn; {then}"),
        (["strike", "3"], f"withdrawn already; {then}"),
        (["limit", "max_turns", "40"], f"max_turns is 40 from here on (turn 3 of 40); {then}"),
    ]
    b_owes = f"B owes the next turn (not running: {dialogd.start_line('B')})"
    yours = f'the next turn is yours: dialogd say --file {dialogd.file} "…"'
    later = [
        (["step", "on"], f"step mode is on; {yours}"),
        (["pass"], f"passed on; {b_owes}"),
        (["pass"], f"it was not your turn; {b_owes}"),
        (["step", "off"], f"step mode is off; {b_owes}"),
        (["say", "--to", "B", "Why?"], f"turn 5 is yours; {b_owes}"),
        (["leave", "claude b", "no need"], f"B takes part no longer; {yours}"),
        (["leave", "B"], f"B had left already; {yours}"),
    ]
    for words, answer in [*steps, *later]:
        if words == later[0][0]:
            dialogd.types("\n## Turn 4 — Claude A\n\nSpaces.\n\nTURN: USER\n")
        done = dialogd(*words, given="use\nRedis\n")
        assert (done.code, done.out, done.err) == (0, f"{answer}\n", "")
    invited = dialogd("invite", "C=rehearsal")
    assert (invited.code, invited.out) == (0, f"C takes part; {yours}\n")
    assert "terminal of its own: dialogd start C --backend rehearsal --file " in invited.err
    status = dialogd("status", "--json").json
    assert (status["struck"], status["vetoed"], status["left"], status["step"]) == ([3], ["P1"], ["B"], False)
    assert [agent["id"] for agent in status["agents"]] == ["A", "C"]
    shown = dialogd("status").out
    for words in ("turn 3 was withdrawn by the person: a mistake", "vetoed   P1: too slow", "left     B"):
        assert words in shown
    assert "vetoed" in dialogd("status", "--board").out
    state = parse(dialogd.file.read_bytes()).state
    assert (state.hand.struck, state.table.vetoed, state.limits.max_turns) == ({3}, ("P1",), 40)


def test_what_the_hand_may_not_do_is_refused(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    before = dialogd.file.read_bytes()
    lines: dict[str, int] = {
        "veto P1": 2, "strike 9": 2, "strike x": 2, "limit turns 4": 2, "limit max_turns many": 2, "invite USER": 2,
        "invite C=nobody": 2, "invite C --port 3001": 2, "leave Z": 2, "leave all": 2, "say --to Z why": 2,
        "say --note --proposal x": 2, "say --instead-of P7 x": 2,
        "step maybe": 2,
    }  # fmt: skip
    wrong = dialogd.all([line.split() for line in lines])
    assert {line: done.code for line, done in zip(lines, wrong, strict=True)} == lines
    for done in wrong[:-1]:
        assert "\n  fix: " in done.err, done.err
    assert dialogd.file.read_bytes() == before
    dialogd("say", "--proposal", "use SQLite")
    dialogd("stop")
    late = dialogd("veto", "P1")
    assert (late.code, "dialogd reject" in late.err) == (1, True)
    assert dialogd("step", "on").code == 1


def test_a_proposal_of_yours_goes_with_all_that_a_turn_may_carry(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    dialogd("stop")
    done = dialogd("say", "--proposal", "use SQLite", "--to", "B", "--turns", "3", "--budget", "$4")
    assert done.out.startswith("turn 2 is yours, and proposes P1; the dialog is open again; B owes the next turn")
    state = parse(dialogd.file.read_bytes()).state
    assert (state.owing, state.limits.max_turns - state.counted, state.limits.budget) == (("B",), 3, 4.0)
    assert [(proposal.ref, proposal.text) for proposal in state.table.proposals] == [("P1", "use SQLite")]


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
    lines = [
        ["say", "--proposal", said],
        ["veto", "P1", said],
        ["strike", "1", said],
        ["say", said],
        ["say", "--note", said],
        ["say", "--to", "B", said],
        ["invite", "C", "--name", secret],
        ["leave", "B", said],
        ["stop"],
        ["reject", said],
    ]
    for line in lines:
        done = dialogd(*line, MY_API_KEY=secret)
        assert secret[:12] not in dialogd.file.read_text(encoding="utf-8"), line
        assert done.code == 0, (line, done.err)
    assert dialogd.file.read_text(encoding="utf-8").count("[redacted: own key]") >= 8

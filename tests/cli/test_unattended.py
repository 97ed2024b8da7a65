"""`dialogd run` where agents fail, with the person at the table and without: nobody pays on, everything has an end."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dialogd.errors import BackendError
from dialogd.protocol.grammar import parse
from dialogd.protocol.state import Dialog
from tests.cli.command import PATIENCE, Commands, program, until
from tests.support.room import Room, opening

PUTS = r"printf 'Here.\n\n## Consensus Summary\n\nUse Postgres.\n\n[CONSENSUS_REACHED]\n'"
CONFIRMS = "if [ \"$DIALOGD_QUESTION\" ]; then echo '[CONSENSUS_REACHED]'; exit; fi\n"
ROLES: Mapping[str, str] = {
    "puts": f"{CONFIRMS}if mkdir put 2>/dev/null; then {PUTS}; else echo 'I stay with it.'; fi",
    "signs": "echo '[AGREE: P1]'",
    "fails": "exit 1",
    "passes": "echo '[PASS]'",
    "asks": "echo '[QUESTION_FOR_USER: Postgres or Redis?]'",
}
QUICK = {"DIALOGD_RETRY_WAIT": "0", "DIALOGD_PLAN": "1"}


def cast(dialogd: Commands, *roles: str) -> list[str]:
    """Agents A, B … that play these roles."""
    for name, script in ROLES.items():
        program(dialogd.folder, name, f"cat >/dev/null\n{script}")
    seats = zip("ABC", roles, strict=False)
    return [word for who, role in seats for word in ("--agent", f"{who}=command:{dialogd.folder}/bin/{role}")]


def dialog_of(dialogd: Commands) -> Dialog:
    """The dialog as it stands."""
    return parse(dialogd.file.read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("roles", "code", "outcome", "reason"),
    [
        (("puts", "fails", "signs"), 0, "CONSENSUS_REACHED", "absent: B"),
        pytest.param(
            *(("puts", "fails"), 1, "STOPPED", "error: fewer than two agents are left; absent: B"),
            marks=pytest.mark.slow,
        ),
        (("passes", "passes"), 4, "DEADLOCK", "everybody passed"),
        pytest.param(("asks", "asks"), 4, "MAX_TURNS_REACHED", "", marks=pytest.mark.slow),
    ],
)
def test_unattended_it_ends_with_a_plan_and_a_code(
    dialogd: Commands, roles: tuple[str, ...], code: int, outcome: str, reason: str
) -> None:
    words = ["run", "Tabs?", *cast(dialogd, *roles), "--pace", "0", "--max-turns", "8", "--unattended"]
    with dialogd.background(*words, **QUICK) as process:
        assert process.wait(PATIENCE) == code, dialogd.output
        output = dialogd.output
    dialog = dialog_of(dialogd)
    assert (dialog.state.outcome.name, reason in dialog.state.outcome.reason) == (outcome, True)
    assert "\nTURN: USER\n" not in dialogd.file.read_text()
    assert "\nplan " in output
    (page,) = dialogd.folder.glob("collaboration_plan_*.md")
    assert ("left out, being absent: Agent B" in page.read_text()) is (code == 0)
    assert "may wait for you" not in output


@pytest.mark.slow
def test_with_the_person_at_the_table_an_absent_signer_is_theirs_to_decide(dialogd: Commands) -> None:
    words = ["run", "Tabs?", *cast(dialogd, "puts", "fails", "signs"), "--pace", "0"]
    with dialogd.background(*words, **QUICK) as process:
        until(lambda: "`leave B`" in dialogd.output, "the question", lambda: dialogd.output)
        (note,) = [line for line in dialogd.output.split("\n") if "may wait for you" in line]
        assert "--unattended" in note
        assert sum(entry.by in ("A", "C") for entry in dialog_of(dialogd).turns) <= 4
        assert dialogd("leave", "B").code == 0
        assert process.wait(PATIENCE) == 0, dialogd.output


@pytest.mark.slow
def test_a_dialog_goes_on_with_nobody_at_the_table(dialogd: Commands) -> None:
    words = ["run", "Tabs?", *cast(dialogd, "asks", "asks"), "--pace", "0", "--max-turns", "6"]
    with dialogd.background(*words, **QUICK) as process:
        until(lambda: ">> your turn" in dialogd.output, "the question", lambda: dialogd.output)
        process.kill()
        process.wait()
        dialogd.end_daemons()
    assert dialog_of(dialogd).state.owing == ("USER",)
    assert "unattended" not in {key for key, set_ in dialogd("status", "--json").json.items() if set_}
    for times in (1, 2):
        with dialogd.background("run", "--continue", str(dialogd.file), "--unattended", **QUICK) as process:
            assert process.wait(PATIENCE) == 4, dialogd.output
            assert "may wait for you" not in dialogd.output
        outcome = dialog_of(dialogd).state.outcome
        assert outcome.name == "MAX_TURNS_REACHED"
        assert dialogd.file.read_text().count("\n[LEAVE: USER]\n") == 1
        assert dialogd("status", "--json").json["unattended"] is True
        assert "absent: nothing waits for you" in dialogd("status").out
        if times == 1:
            assert dialogd("say", "Once more.").code == 0


def test_approve_ends_what_only_an_absent_agent_did_not_sign(dialogd: Commands) -> None:
    down = BackendError("exit code 1", fix="look")
    room = Room(opening("A", "B", "C"), A=["## Consensus Summary\n\nPostgres.\n\n[CONSENSUS_REACHED]", "More."])
    room.scripts.update(B=[down, down], C=["[AGREE: P1]"])
    room.run()
    dialogd.file.write_bytes(room.paper.data)
    dialogd.file.chmod(0o600)
    done = dialogd("approve", DIALOGD_PLAN="1")
    assert (done.code, "approved: the rule" in done.out) == (0, True), done.err
    assert dialog_of(dialogd).state.approved
    assert len(list(dialogd.folder.glob("collaboration_plan_*.md"))) == 1


def test_an_absent_agent_is_called_so(dialogd: Commands) -> None:
    down = [BackendError("exit code 1", fix="look"), BackendError("no quota", fix="pay")]
    room = Room(opening("A", "B", "C"), A=["One.", "Two."], B=[*down], C=["Three.", "Four."])
    for who in "ABCAB":
        room.step(who)
    dialogd.file.write_bytes(room.paper.data)
    dialogd.file.chmod(0o600)
    why = "failed or stalled twice in succession (exit code 1, then no quota): nobody waits for it"
    (row,) = [line for line in dialogd("status").out.split("\n") if "Claude B" in line]
    assert row == f"  B        Claude B, not running, absent: {why}; dialogd retry B asks it again"
    agents = {agent["id"]: (agent["state"], agent["why"]) for agent in dialogd("status", "--json").json["agents"]}
    assert agents == {
        "A": ("present", ""),
        "B": ("absent", f"{why}; dialogd retry B asks it again"),
        "C": ("present", ""),
    }
    assert dialogd("retry", "B").code == 0
    assert "absent:" not in dialogd("status").out


def test_new_says_in_the_file_that_nobody_is_at_the_table(dialogd: Commands) -> None:
    wrong = [["--step"], ["--agents", "rehearsal"]]
    done = dialogd.all([["new", "Tabs?", "--unattended", "--file", f"{n}.md", *more] for n, more in enumerate(wrong)])
    assert [one.code for one in done] == [2, 2]
    assert [one.err.split("fix: ")[1].strip() for one in done] == [
        "leave --step out",
        "name two: --agents claude,codex",
    ]
    assert dialogd("new", "Tabs?", "--unattended").code == 0
    header = dialog_of(dialogd).header
    assert 'person = "absent"' in header.text
    assert (header.is_unattended, header.warnings, header.rules.is_plain) == (True, (), True)

"""`dialogd run`: a whole dialog, and nothing left of it but the file."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Sequence

import psutil
import pytest

from dialogd.backends.seats import saved_cast
from dialogd.cli.create import Start
from dialogd.cli.launch import begin_apart
from dialogd.cli.options import ask
from dialogd.protocol.grammar import parse
from dialogd.protocol.state import Dialog
from dialogd.views.plan import Plan
from tests.cli.command import PATIENCE, Commands, until
from tests.support.minds import consensus
from tests.support.standin import StandIn
from tests.support.terminal import Terminal


def dialog_of(dialogd: Commands) -> Dialog | None:
    """The dialog as it stands, None before there is one."""
    return parse(dialogd.file.read_bytes()) if dialogd.file.exists() else None


def owing(dialogd: Commands) -> tuple[str, ...]:
    """Who owes a turn."""
    dialog = dialog_of(dialogd)
    return dialog.state.owing if dialog else ()


def leftovers(dialogd: Commands) -> list[Sequence[str]]:
    """Processes that still work on files of this test's folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "start" in words and str(dialogd.file) in words:
            found.append(words)
    return found


@pytest.mark.slow
def test_nothing_of_the_folder_is_run_that_bears_the_name_of_a_module(dialogd: Commands) -> None:
    for name in ("json", "queue", "secrets", "dialogd"):
        (dialogd.folder / f"{name}.py").write_text(f"open({str(dialogd.folder / 'ran')!r}, 'a').write({name!r})\n")
    done = dialogd("run", "Tabs?", "--agents", "rehearsal,rehearsal", "--pace", "0", PYTHONPATH="")
    assert done.code == 0, done.err
    assert not (dialogd.folder / "ran").exists()


SLOW = """
import sys, time
from pathlib import Path
file = Path(sys.argv[sys.argv.index("--file") + 1])
with file.open("wb") as out:
    time.sleep(0.5)
    out.write(Path({whole!r}).read_bytes())
time.sleep(30)
"""


def test_a_dialog_that_is_run_apart_is_given_once_its_file_is_whole(dialogd: Commands) -> None:
    whole = dialogd.begin("Tabs?").path
    package = dialogd.folder / "slow" / "dialogd"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SLOW.format(whole=str(whole)))
    file = begin_apart(dialogd.state, Start("Tabs?").words(), {"PYTHONPATH": str(package.parent)}, given="Tabs?")
    try:
        assert file.read_bytes() == whole.read_bytes()
    finally:
        os.kill(json.loads(file.with_suffix(".json").read_text())["pid"], signal.SIGKILL)


def test_a_dialog_from_topic_to_consensus(dialogd: Commands) -> None:
    words = ["run", "Tabs?", "--agents", "rehearsal,rehearsal", "--pace", "0"]
    with dialogd.background(*words) as process:
        assert process.wait(PATIENCE) == 0, dialogd.output
        dialog = dialog_of(dialogd)
        assert dialog.state.outcome is not None
        ports = [agent.url.rpartition(":")[2] for agent in dialog.header.agents]
        head = "".join(
            f"{who}: rehearsal (scripted lines, no model) — nobody pays; nobody outside this machine sees anything\n"
            for who in "AB"
        )
        head += (
            f"file   {dialogd.file}\nwatch  tail -f {dialogd.file}\npage   http://localhost:{ports[0]}\n"
            f"nudge  curl -X POST localhost:{ports[0]}/notify\n"
        )
        assert dialogd.output.startswith(head)
        for turn in dialog.turns:
            assert dialogd.output.count(f"Turn {turn.number} · {turn.name}\n") == 1
        assert f"ended, {Plan(dialog).headline} (turn" in dialogd.output
        assert f"\nnext   dialogd approve --file {dialogd.file}, or dialogd reject" in dialogd.output
        assert (leftovers(dialogd), dialogd.daemons()) == ([], ())
    cast = saved_cast(dialogd.state, dialogd.file)
    assert [(seat.id, seat.backend, str(seat.port)) for seat in cast.seats] == [
        ("A", "rehearsal", ports[0]),
        ("B", "rehearsal", ports[1]),
    ]
    assert (dialogd.state.dialog(dialogd.file) / "cast.json").stat().st_mode & 0o777 == 0o600
    refused = dialogd("run", "--continue")
    assert (refused.code, "dialogd reject" in refused.err) == (1, True)


@pytest.mark.slow
def test_without_a_model_it_says_what_it_is_and_only_then_rehearses(dialogd: Commands) -> None:
    nothing = {"DIALOGD_BACKEND": "", "PATH": str(dialogd.folder / "bin"), "OLLAMA_HOST": "127.0.0.1:1"}
    with dialogd.background(
        "run", "Tabs?", "--pace", "0", "--linger", "always", DIALOGD_PLAN="1", **nothing
    ) as process:
        until(lambda: "the page stays" in dialogd.output, "the end", lambda: dialogd.output)
        port = dialogd.daemons()[0].port
        state = ask(port, "GET", "/page/state", seconds=PATIENCE)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0, dialogd.output
    what, model, then, first = dialogd.output.split("\n")[:4]
    assert what.startswith("REHEARSAL: no model is here.")
    assert "`dialogd doctor`" in model
    assert (then.startswith("What follows"), first.startswith("A: rehearsal")) == (True, True)
    text = dialogd.file.read_text(encoding="utf-8")
    assert text.split("\n")[2] == "**REHEARSAL:** no model is asked; the lines of A, B are scripted"
    assert "\n**Outcome:** REHEARSAL, consensus on P2" in text
    assert state[1]["outcome"]["words"].startswith("A rehearsal, no model is asked. ")
    plan = next(dialogd.folder.glob("collaboration_plan_*.md")).read_text(encoding="utf-8")
    assert plan.startswith("# A rehearsal, no plan: Tabs?\n\n**Outcome:** agreed")
    assert "\nREHEARSAL: the lines were scripted" in dialogd.output.partition("\nended, ")[2]
    assert "REHEARSAL: " in dialogd("status").out
    asked_for = dialogd("run", "Spaces?", "--agents", "rehearsal,rehearsal", "--pace", "0", "--max-turns", "2")
    assert "no model is here" not in asked_for.err


@pytest.mark.slow
def test_with_stay_one_daemon_that_dies_after_the_end_ends_no_other(dialogd: Commands) -> None:
    words = ["run", "Tabs?", "--agents", "rehearsal,rehearsal", "--pace", "0", "--linger", "always"]
    with dialogd.background(*words) as process:
        until(lambda: "the page stays" in dialogd.output, "the end", lambda: dialogd.output)
        assert "\nnext   dialogd approve --file" not in dialogd.output
        first, second = sorted(dialogd.daemons(), key=lambda daemon: daemon.id)
        os.kill(second.pid, signal.SIGKILL)
        answer = ask(first.port, "POST", "/reject", {"reason": "tell me more"}, seconds=PATIENCE)
        assert (answer or (0, {}))[0] < 300, answer
        until(lambda: dialogd.output.count("the page stays") == 2, "the second end", lambda: dialogd.output)
        assert "the daemon of B ended" in dialogd.output
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0, dialogd.output
        assert (leftovers(dialogd), "\nnext   dialogd approve --file" in dialogd.output) == ([], True)


@pytest.mark.slow
def test_with_stay_it_ends_with_the_last_daemon_and_is_stopped_like_others(dialogd: Commands) -> None:
    words = ["run", "Tabs?", "--agents", "rehearsal,rehearsal", "--pace", "0", "--linger", "always"]
    for how in ("killed", "stopped"):
        with dialogd.background(*words, "--replace") as process:
            until(lambda: "the page stays" in dialogd.output, "the end", lambda: dialogd.output)
            if how == "stopped":
                process.kill()
                assert dialogd("stop").code == 0
            for daemon in dialogd.daemons():
                os.kill(daemon.pid, signal.SIGKILL)
            assert process.wait(PATIENCE) == (0 if how == "killed" else -signal.SIGKILL), dialogd.output
            assert (dialogd.daemons(), leftovers(dialogd)) == ((), [])


@pytest.mark.slow
def test_daemons_that_a_killed_run_leaves_are_listed_and_end_a_while_after_their_dialog(dialogd: Commands) -> None:
    words = ["run", "Tabs?", "--agents", "rehearsal:ask,rehearsal:ask", "--pace", "0", "--linger", "1 second"]
    with dialogd.background(*words) as process:
        until(lambda: owing(dialogd) == ("USER",), "the question", lambda: dialogd.output)
        process.kill()
        process.wait()
        facts = dialogd("status", "--json").json
        assert {one["id"] for one in facts["daemons"]} == {"A", "B"}, facts
        assert dialogd("say", "to go back").code == 0
        until(lambda: dialogd.daemons() == () and leftovers(dialogd) == [], "the daemons' end", dialogd.file.read_text)
        dialog = dialog_of(dialogd)
        assert dialog is not None
        assert dialog.state.outcome is not None
        assert dialog.state.outcome.name == "CONSENSUS_REACHED"


@pytest.mark.slow
def test_ctrl_c_stops_the_dialog_and_leaves_nothing(dialogd: Commands) -> None:
    with dialogd.background("run", "Tabs?", "--agents", "rehearsal:slow=600,rehearsal", "--pace", "0") as process:
        until(lambda: "thinking" in dialogd("status").out, "A to think", lambda: dialogd.output)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert leftovers(dialogd) == []
        dialog = dialog_of(dialogd)
        assert (dialog.state.outcome.name, dialog.state.outcome.by) == ("STOPPED", "USER")
        assert "ended, stopped by you before an agreement: interrupted by the person" in dialogd.output


def test_what_cannot_be_played_is_refused_before_anything_is_written(dialogd: Commands) -> None:
    wrong = [
        ["run", "T", "--agents", "rehearsal:opera,rehearsal"],
        ["run", "T", "--agent", "A=command:no-such-program-here x", "--agent", "B=rehearsal"],
        ["run", "T", "--pace", "soon"],
        ["run", "--continue", "nowhere.md"],
    ]
    assert [done.code for done in dialogd.all(wrong)] == [2, 2, 2, 3]
    assert not dialogd.file.exists()


@pytest.mark.slow
def test_the_person_is_called_and_answers(dialogd: Commands) -> None:
    with dialogd.background("run", "Tabs?", "--agents", "rehearsal:ask,rehearsal:ask", "--pace", "0") as process:
        until(lambda: ">> your turn: " in dialogd.output, "the call", lambda: dialogd.output)
        assert f'answer: dialogd say --file {dialogd.file} "…"' in dialogd.output
        assert dialogd("say", "to go back").code == 0
        assert process.wait(PATIENCE) == 0, dialogd.output
        assert dialogd.output.count(">> your turn: ") == 1


@pytest.mark.slow
def test_a_dialog_in_which_everybody_fails_is_exit_code_1_and_a_deadlock_4(dialogd: Commands) -> None:
    words = ["run", "Tabs?", "--agents", "rehearsal:error,rehearsal:error", "--pace", "0"]
    with dialogd.background(*words, DIALOGD_RETRY_WAIT="0") as process:
        until(lambda: " failed: " in dialogd.output.partition("your turn: ")[2], "it", lambda: dialogd.output)
        assert dialogd("skip", dialogd.output.partition("your turn: ")[2][0]).code == 0
        assert process.wait(PATIENCE) == 1, dialogd.output
        assert leftovers(dialogd) == []
    done = dialogd(*words[:3], "rehearsal:deadlock,rehearsal:deadlock", "--pace", "0", "--replace")
    assert done.code == 4, done.err
    assert re.search("ended, no agreement: a deadlock, called by Claude [AB] and Claude [AB] ", done.out + done.err)


@pytest.mark.slow
def test_a_cast_goes_on_after_everything_was_killed(dialogd: Commands) -> None:
    with dialogd.background("run", "T", "--agents", "rehearsal:ask,rehearsal:ask", "--pace", "0") as process:
        until(lambda: owing(dialogd) == ("USER",), "the question", lambda: dialogd.output)
        process.kill()
        process.wait()
        before = dialogd.file.read_bytes()
        busy = dialogd("run", "--continue")
        assert (busy.code, "daemons run on" in busy.err) == (3, True)
        dialogd.end_daemons()
    with dialogd.background("run", "--continue", str(dialogd.file)) as process:
        until(lambda: len(dialogd.daemons()) == 2, "both daemons", lambda: dialogd.output)
        until(lambda: ">> your turn: " in dialogd.output, "the call", lambda: dialogd.output)
        first = next(daemon for daemon in dialogd.daemons() if daemon.id == "A")
        os.kill(first.pid, signal.SIGKILL)
        until(lambda: "starting it again" in dialogd.output, "the news", lambda: dialogd.output)
        until(lambda: {daemon.id for daemon in dialogd.daemons()} == {"A", "B"}, "A again", lambda: dialogd.output)
        second = next(daemon for daemon in dialogd.daemons() if daemon.id == "A")
        os.kill(second.pid, signal.SIGKILL)
        assert process.wait(PATIENCE) == 1
        assert "ended unexpectedly (signal 9)" in dialogd.output
        assert leftovers(dialogd) == []
        assert dialogd.file.read_bytes() == before
    with dialogd.background("run", "--continue") as process:
        until(lambda: len(dialogd.daemons()) == 2, "both daemons", lambda: dialogd.output)
        assert dialogd("say", "to go back").code == 0
        assert process.wait(PATIENCE) == 0, dialogd.output


@pytest.mark.slow
def test_a_dialog_goes_on_with_the_agents_that_are_named(dialogd: Commands) -> None:
    dialogd.file.write_text("# D\n\n## Turn 1 - User\n\nTabs?\n\nTURN: A\n")
    go_on = ["run", "--continue", str(dialogd.file), "--agent"]
    alone, stranger, many = dialogd.all(
        [
            [*go_on, "A=rehearsal"],
            [*go_on, "A=rehearsal", "--agent", "C=rehearsal"],
            [*go_on[:-1], "--agents", "rehearsal,rehearsal,rehearsal"],
        ]
    )
    assert (alone.code, "nobody knows who played B in" in alone.err) == (3, True)
    assert (stranger.code, "C is no agent of this dialog" in stranger.err) == (2, True)
    assert (many.code, "this dialog has 2 agents" in many.err) == (2, True)
    done = dialogd(*go_on, "A=rehearsal", "--agent", "B=rehearsal:slow=0")
    assert done.code == 0, done.out + done.err
    assert dialog_of(dialogd).state.outcome.name == "CONSENSUS_REACHED"
    cast = saved_cast(dialogd.state, dialogd.file)
    assert [(seat.id, seat.backend) for seat in cast.seats] == [("A", "rehearsal"), ("B", "rehearsal:slow=0")]
    assert dialogd("say", "And spaces?", "--to", "A").code == 0
    again = dialogd(*go_on, "B=rehearsal:deadlock", "--max-turns", "3")
    assert "A: rehearsal (scripted" in again.err + again.out
    cast = saved_cast(dialogd.state, dialogd.file)
    assert [seat.backend for seat in cast.seats] == ["rehearsal", "rehearsal:deadlock"]


@pytest.mark.slow
def test_a_dialog_on_keys_says_before_it_starts_what_it_is_and_may_cost(dialogd: Commands) -> None:
    with StandIn(consensus) as server:
        variables = {
            "DIALOGD_BACKEND": "",
            "PATH": "/usr/bin:/bin",
            "ANTHROPIC_API_KEY": "sk-ant-test-0123456789abcdef",
            "ANTHROPIC_BASE_URL": server.url,
            "XAI_API_KEY": "xai-test-0123456789abcdef",
            "XAI_BASE_URL": f"{server.url}/v1",
        }
        with dialogd.background("run", "Tabs?", "--pace", "0", **variables) as process:
            assert process.wait(PATIENCE) == 0, dialogd.output
    dialog = dialog_of(dialogd)
    assert [agent.name for agent in dialog.header.agents] == ["Claude A", "Grok B"]
    assert dialog.header.limits.budget == 5.0
    said = dialogd.output
    assert "A: anthropic claude-opus-5-5 (a key in ANTHROPIC_API_KEY) — paid by the key in ANTHROPIC_API_KEY; " in said
    assert "B: grok grok-4.7 (a key in XAI_API_KEY) — paid by the key in XAI_API_KEY; " in said
    assert "note: a key pays and no budget was given: the dialog ends at $5.00" in said
    assert re.search(r"^estimate: at most about \$\d+\.\d\d for 20 turns \(A \$\d", said, re.MULTILINE)
    assert not any(key in said + dialogd.file.read_text() for key in (variables["XAI_API_KEY"], "sk-ant-test"))


@pytest.mark.slow
def test_in_step_mode_enter_passes_the_word_on(dialogd: Commands) -> None:
    words = dialogd.words(["run", "Tabs?", "--agents", "rehearsal,rehearsal", "--pace", "0", "--step"])
    terminal = Terminal(words, dialogd.environment, dialogd.folder)
    try:
        terminal.until("step mode: it is your turn")
        terminal.press("Mind the tests\n")
        until(lambda: "Mind the tests" in dialogd.file.read_text(), "the person's turn", lambda: terminal.text)
        while not terminal.has_ended:
            if owing(dialogd) == ("USER",):
                terminal.press("\n")
            time.sleep(0.2)
    finally:
        terminal.close()
    dialog = dialog_of(dialogd)
    assert dialog is not None
    assert [entry.body for entry in dialog.turns if entry.by == "USER"][1:] == ["Mind the tests"]
    assert any(entry.by == "USER" and not entry.is_turn and entry.turn for entry in dialog.entries)
    assert (dialog.state.outcome is not None, leftovers(dialogd)) == (True, [])

"""An open session takes a seat: from inside of it, or asked from outside; and asks another agent."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dialogd import person
from dialogd.cli.launch import LATE
from dialogd.cli.options import ask
from dialogd.store.registry import Running
from tests.cli.command import PATIENCE, Commands, until
from tests.support import open_sessions
from tests.support.open_sessions import Claude, Ran, started_at
from tests.support.pair import a_second


@pytest.fixture
def config(dialogd: Commands) -> Path:
    """Where Claude Code and Codex keep what they keep; the commands know it."""
    folder = dialogd.folder / "config"
    folder.mkdir(mode=0o700)
    dialogd.environment |= {
        "DIALOGD_PORT": "0",
        "CLAUDE_CONFIG_DIR": str(folder),
        "CODEX_HOME": str(dialogd.folder / "codex-home"),
        "XDG_DATA_HOME": str(dialogd.folder / "data"),
    }
    return folder


@pytest.fixture
def session(config: Path, tmp_path: Path) -> Iterator[Claude]:
    """An open session of Claude Code."""
    (tmp_path / "shop").mkdir()
    with open_sessions.claude(config, tmp_path / "shop") as one:
        yield one


@pytest.fixture
def other(config: Path, tmp_path: Path) -> Iterator[Claude]:
    """A second one."""
    with open_sessions.claude(config, tmp_path / "shop", "other-11") as one:
        yield one


SLOW = (0, f"{LATE}\n")  # a daemon that takes its time on a busy machine is spoken of


def typed(dialogd: Commands, session: Claude, *words: str, given: str = "") -> Ran:
    """A `dialogd` command that is typed into the session."""
    return session.run(dialogd.words(words), dialogd.environment, dialogd.folder, given)


def key(session: Claude) -> str:
    """The session, as a seat remembers it."""
    return f"claude:{session.pid}:{started_at(session.pid)}"


def seat(dialogd: Commands, agent: str = "B") -> Running:
    """The daemon of that agent."""
    return next(daemon for daemon in dialogd.daemons() if daemon.id == agent)


def knocked(session: Claude, words: str) -> None:
    """Wait for a knock that says this."""
    until(lambda: any(words in knock for knock in session.knocks()), words, lambda: repr(session.knocks()))


@pytest.mark.slow
def test_open_sessions_are_listed_with_their_seats(dialogd: Commands, session: Claude, other: Claude) -> None:
    other.change(status="busy")
    dialogd.begin("Tabs or spaces?")
    assert typed(dialogd, session, "live", "join", "B").code == 0
    rows = dialogd("live", "sessions").out.split("\n")
    assert [row.split()[2:] for row in rows[1:3]] == [
        [str(dialogd.folder / "shop"), "other-11", "busy", "-"],
        [str(dialogd.folder / "shop"), "shop-3f", "idle", "B", "in", str(dialogd.file)],
    ]
    listed = {one["name"]: one for one in dialogd("live", "sessions", "--json").json}
    assert listed["shop-3f"]["key"] == key(session)
    assert listed["shop-3f"]["seat"]["agent"] == "B"
    assert listed["other-11"]["seat"] is None
    other.registration.chmod(0o666)
    done = dialogd("live", "sessions")
    assert "other-11" not in done.out
    assert re.search(r"left out: .*can be written by others\n  fix: ", done.err)


def test_a_session_joins_is_knocked_at_and_replies(dialogd: Commands, session: Claude) -> None:
    dialogd.begin("Tabs or spaces?")
    began = time.monotonic()
    done = typed(dialogd, session, "live", "join", "b")
    assert time.monotonic() - began < a_second()
    assert (done.code, done.err) in ((0, ""), SLOW)
    first, second, third, end = done.out.split("\n")
    assert "agent B" in first
    assert "dialogd live reply" in first
    assert f"keeps its own permissions, with write access to {dialogd.folder / 'shop'}" in second
    assert "allow Bash(dialogd live turn:*) and Bash(dialogd live reply:*)" in third
    assert not end
    text = dialogd.file.read_text()
    assert "The seat of B is an open session of Claude Code: it keeps its own permissions" in text
    assert "[LIMIT: timeout B 30 minutes]" in text
    assert str(dialogd.folder / "shop") not in text
    assert seat(dialogd).session == key(session)
    assert not session.knocks()
    dialogd("say", "What do you say?", "--to", "B")
    knocked(session, "turn 3 is yours")
    assert "What do you say" not in "".join(session.knocks())
    assert "You keep your own permissions" in session.knocks()[0]
    assert "What do you say?" in typed(dialogd, session, "live", "turn").out
    assert typed(dialogd, session, "live", "reply", given="Spaces, for they look the same everywhere.\n").code == 0
    assert "Spaces, for they look the same everywhere." in dialogd.file.read_text()


@pytest.mark.slow
def test_what_came_of_a_knock_is_told_in_status_page_and_plan(dialogd: Commands, session: Claude) -> None:
    dialogd.begin("Tabs or spaces?")
    assert typed(dialogd, session, "live", "join", "B").code == 0
    dialogd("say", "What do you say?", "--to", "B")
    knocked(session, "turn 3 is yours")
    unopened, port = r"its session was knocked at (one time|\w+ times), and has not opened the turn", seat(dialogd).port
    until(lambda: re.search(unopened, dialogd("status").out), unopened)
    page = ask(port, "GET", "/page/state", seconds=PATIENCE)
    assert re.search(unopened, str(page))
    assert "keeps its own permissions" in str(page)
    session.change(status="waiting", waitingFor="permission prompt")
    prompt = "its session is waiting (permission prompt): look at that terminal"
    until(lambda: prompt in dialogd("status").out, "the prompt in status")
    assert prompt in str(ask(port, "GET", "/page/state", seconds=PATIENCE))
    session.change(status="idle", waitingFor=None)
    assert typed(dialogd, session, "live", "turn").code == 0
    until(lambda: "B thinks about turn 3" in dialogd("status").out, "the turn to be opened")
    assert typed(dialogd, session, "live", "reply", given="Spaces, for they look the same everywhere.\n").code == 0
    plan = json.loads(dialogd("plan", "--json").out)
    knocks = plan["metrics"]["live"]["B"]["knocks"]  # who is slow to open the turn is knocked at again
    assert plan["metrics"]["live"] == {"B": {"turns": 1, "knocks": knocks, "silent": 0}}
    assert knocks > 0
    written = dialogd("plan", "--out", "-").out
    assert f"1 turn, {knocks} knock" in written
    assert ", 0 silent" in written
    assert "$0" not in written + dialogd("status").out + dialogd("status", "--cost").out


@pytest.mark.slow
def test_a_session_at_a_prompt_is_said_to_be_that(dialogd: Commands, session: Claude) -> None:
    dialogd.begin("Tabs or spaces?")
    assert typed(dialogd, session, "live", "join", "B").code == 0
    dialogd("say", "What do you say?", "--to", "B")
    knocked(session, "turn 3 is yours")
    session.change(status="waiting", waitingFor="permission prompt")
    told = "its session is waiting (permission prompt): look at that terminal"
    until(lambda: f"waiting for B: {told}" in dialogd("status").out, "the prompt in status")
    assert told in str(ask(seat(dialogd).port, "GET", "/page/state", seconds=PATIENCE))
    assert "waiting (permission prompt)" in dialogd("live", "sessions").out
    until(lambda: f"B: {told}." in dialogd.file.read_text(), "the note")
    assert dialogd("verify").code == 0
    session.change(status="busy", waitingFor=None)
    until(lambda: told not in dialogd("status").out, "its end")
    assert typed(dialogd, session, "live", "turn").code == 0
    assert typed(dialogd, session, "live", "reply", given="Spaces.").code == 0


@pytest.mark.slow
def test_another_state_directory_makes_no_person_of_a_session(dialogd: Commands, session: Claude) -> None:
    dialogd.begin("Tabs or spaces?")
    assert typed(dialogd, session, "live", "join", "B").code == 0
    before = dialogd.file.read_bytes()
    elsewhere = {**dialogd.environment, "DIALOGD_STATE_DIR": str(dialogd.folder / "elsewhere")}
    limit = dialogd.words(["limit", "max_turns", "40"])
    for words in (limit, ["sh", "-c", f"env -u CLAUDE_CODE_MESSAGING_SOCKET {shlex.join(limit)}; exit $?"]):
        came = session.run(words, elsewhere, dialogd.folder)
        assert (came.code, "holds seat B" in came.err) == (1, True), came
    assert dialogd.file.read_bytes() == before
    assert dialogd("limit", "max_turns", "40").code == 0


@pytest.mark.slow
def test_a_budget_in_dollars_does_not_keep_a_session_out(dialogd: Commands, session: Claude) -> None:
    dialogd.begin("Tabs or spaces?")
    assert dialogd("limit", "budget", "$2").code == 0
    assert typed(dialogd, session, "live", "join", "B").code == 0
    dialogd("say", "What do you say?", "--to", "B")
    knocked(session, "is yours")


@pytest.mark.slow
def test_the_daemon_of_a_seat_is_given_no_token(dialogd: Commands, session: Claude) -> None:
    dialogd.begin("Tabs or spaces?")
    assert typed(dialogd, session, "live", "join", "B").code == 0
    daemon = seat(dialogd)
    environment = Path(f"/proc/{daemon.pid}/environ").read_bytes()
    assert b"MESSAGING" not in environment
    dialogd("say", "What do you say?", "--to", "B")
    knocked(session, "is yours")
    for path in (dialogd.file, *dialogd.state.root.rglob("*")):
        with suppress(IsADirectoryError, FileNotFoundError):  # some are written beside their place, and moved there
            assert not re.search(rb"token-of-", path.read_bytes()), path


@pytest.mark.slow
def test_a_session_joins_before_there_is_a_dialog(dialogd: Commands, session: Claude) -> None:
    done = typed(dialogd, session, "live", "join")
    assert "dialogd new" in done.out
    assert seat(dialogd, "A").session == key(session)
    assert typed(dialogd, session, "new", "Tabs or spaces?", "--go").code == 0
    assert "[LIMIT: timeout A 30 minutes]" in dialogd.file.read_text()
    assert dialogd.log.read().state.limits.timeouts == {"A": 1800.0}
    knocked(session, "turn 2 is yours")


def test_without_a_dialog_no_time_is_promised(dialogd: Commands, session: Claude) -> None:
    done = typed(dialogd, session, "live", "join", "B", "--timeout", "45m")
    assert (done.code, "dialogd limit timeout 'B 45m'" in done.err) == (2, True)
    assert dialogd.daemons() == ()


def test_the_file_says_who_sits_there_whatever_the_seats_time(dialogd: Commands) -> None:
    dialogd.begin("Tabs or spaces?")
    assert dialogd("limit", "timeout", "B 10 minutes").code == 0
    for program in ("Claude Code", "Claude Code", "Codex", "Codex", "Claude Code"):
        person.seat(dialogd.log, "B", program)
    notes = re.findall(r"The seat of B is an open session of (.*): it keeps its own", dialogd.file.read_text())
    assert notes == ["Claude Code", "Codex", "Claude Code"]
    assert all(entry.mark("LIMIT") for entry in dialogd.log.read().entries if "The seat of B" in entry.body)
    assert dialogd.log.read().state.limits.timeouts == {"B": 600.0}


@pytest.mark.slow
def test_the_last_one_to_join_sets_the_dialog_going(dialogd: Commands, session: Claude) -> None:
    dialogd.begin("Tabs or spaces?")
    assert typed(dialogd, session, "live", "join", "A").code == 0
    assert typed(dialogd, session, "live", "join", "A").code == 0
    assert not session.knocks()
    (daemon,) = dialogd.daemons()
    os.kill(daemon.pid, 9)
    until(lambda: not dialogd.daemons(), "its end")
    assert typed(dialogd, session, "live", "join", "A", "--go").code == 0
    knocked(session, "turn 2 is yours")


def test_a_session_that_cannot_be_asked_gets_no_seat(dialogd: Commands, session: Claude) -> None:
    dialogd.begin("Tabs or spaces?")
    session.key.chmod(0o644)
    done = dialogd("live", "join", "B", "--session", "shop-3f")
    assert (done.code, "can be read by others" in done.err) == (1, True)
    until(lambda: not dialogd.daemons(), "the end of its daemon")


@pytest.mark.slow
def test_a_session_has_one_seat_and_a_seat_one_session(dialogd: Commands, session: Claude, other: Claude) -> None:
    dialogd.begin("Tabs or spaces?")
    assert typed(dialogd, session, "live", "join", "B").code == 0
    before = dialogd.file.read_bytes()
    again = typed(dialogd, session, "live", "join", "B")
    assert (again.code, "already" in again.out) == (0, True)
    second = typed(dialogd, session, "live", "join", "A")
    assert second.code == 3
    assert "a session has one seat" in second.err
    taken = typed(dialogd, other, "live", "join", "B")
    assert taken.code == 3
    assert "holds the seat of B" in taken.err
    assert [daemon.id for daemon in dialogd.daemons()] == ["B"]
    assert dialogd.file.read_bytes() == before


@pytest.mark.slow
def test_the_seat_of_a_session_that_is_gone_is_free(dialogd: Commands, session: Claude, other: Claude) -> None:
    dialogd.begin("Tabs or spaces?")
    assert typed(dialogd, session, "live", "join", "B").code == 0
    before = seat(dialogd).pid
    session.process.kill()
    session.process.wait()
    assert typed(dialogd, other, "live", "join", "B").code == 0
    assert seat(dialogd).session == key(other)
    assert seat(dialogd).pid != before
    dialogd("say", "What do you say?", "--to", "B")
    knocked(other, "is yours")


def test_outside_of_a_session_join_says_what_to_do(dialogd: Commands, session: Claude) -> None:
    for command in (["live", "join", "B"], ["ask", "rehearsal", "Is it right?"], ["live", "accept"]):
        done = dialogd(*command, **session.environment)
        assert done.code == 2
        assert "inside of no coding session" in done.err
        assert f"!dialogd {' '.join(command[:2]) if command[0] == 'live' else 'ask'} …" in done.err
    assert "dialogd run --agents auto,rehearsal" in dialogd("ask", "rehearsal", "Is it right?").err
    assert dialogd.daemons() == ()


@pytest.mark.slow
def test_an_unknown_seat_or_session_is_refused(dialogd: Commands, session: Claude) -> None:
    dialogd.begin("Tabs or spaces?")
    done = typed(dialogd, session, "live", "join", "Q")
    assert (done.code, "name one of: A" in done.err) == (2, True)
    done = dialogd("live", "join", "B", "--session", "nobody")
    assert (done.code, "shop-3f" in done.err) == (2, True)
    done = typed(dialogd, session, "live", "join", "B", "--timeout", "soon")
    assert done.code == 2
    assert dialogd.daemons() == ()


@pytest.mark.slow
def test_ask_seats_this_session_and_a_fresh_agent(dialogd: Commands, session: Claude) -> None:
    done = typed(dialogd, session, "ask", "rehearsal", "Is this schema right? `$(touch made)`")
    assert done.code == 0, done.err
    dialog = dialogd.log.read()
    assert [agent.name for agent in dialog.header.agents] == ["Claude A", "Claude B"]
    assert {daemon.id: daemon.session for daemon in dialogd.daemons()} == {"A": key(session), "B": ""}
    knocked(session, "turn 2 is yours")
    assert "Is this schema right? `$(touch made)`" in typed(dialogd, session, "live", "turn").out
    typed(dialogd, session, "live", "reply", given="I think it is.")
    until(lambda: dialogd.log.read().state.number > 2, "the other's turn")
    assert "[LIMIT: timeout A 30 minutes]" in dialogd.file.read_text()
    assert not (dialogd.folder / "made").exists()
    again = typed(dialogd, session, "ask", "rehearsal", "And this?", "--file", str(dialogd.folder / "b.md"))
    assert (again.code, "a session has one seat" in again.err) == (3, True)
    dialogd("stop", "--file", str(dialogd.file))
    until(lambda: not dialogd.daemons(), "the end")


@pytest.mark.slow
def test_a_session_that_is_asked_from_outside_agrees_first(dialogd: Commands, session: Claude, other: Claude) -> None:
    dialogd.begin("Tabs or spaces?")
    done = dialogd("live", "join", "B", "--session", "shop-3f")
    assert done.code == 0
    assert "told nothing of the dialog before" in done.out
    knocked(session, "dialogd live accept")
    assert seat(dialogd).session == key(session)
    dialogd("say", "What do you say?", "--to", "B")
    until(lambda: len(session.knocks()) > 1, "another knock")
    refused = typed(dialogd, session, "live", "turn")
    assert (refused.code, "dialogd live accept" in refused.err) == (1, True)
    port = seat(dialogd).port
    outside = ask(port, "POST", "/accept", {}, seconds=PATIENCE)
    assert outside[0] == 409
    assert "only the session that was asked" in outside[1]["detail"]
    assert "nobody has asked this session" in typed(dialogd, other, "live", "accept").err
    assert not any("is yours" in knock for knock in session.knocks())
    told = json.dumps(session.knocks())
    assert not [word for word in ("Tabs", "What do you say", str(dialogd.file), " B") if word in told]
    agreed = typed(dialogd, session, "live", "accept")
    assert (agreed.code, "agent B in a dialog" in agreed.out) == (0, True)
    assert "What do you say?" in typed(dialogd, session, "live", "turn").out
    assert typed(dialogd, session, "live", "reply", given="Spaces, I say.").code == 0
    assert "Spaces, I say." in dialogd.file.read_text()


def untold(session: Claude, dialogd: Commands, *words: str) -> None:
    """The session was asked to take part, and nothing that was said to it is of the dialog."""
    knocked(session, "dialogd live accept")
    refused = typed(dialogd, session, "live", "turn")
    assert (refused.code, "dialogd live accept" in refused.err) == (1, True)
    told = json.dumps(session.knocks())
    assert not [word for word in (*words, "is yours", str(dialogd.file)) if word in told]


@pytest.mark.slow
def test_a_session_whose_daemon_is_started_from_outside_agrees_first(dialogd: Commands, session: Claude) -> None:
    dialogd.begin("Tabs or spaces?")
    start = ("start", "B", "--backend", "live", "--session", key(session), "--detach")
    done = dialogd(*start)
    assert (done.code, "agrees by `dialogd live accept`" in done.err) == (0, True), done
    assert dialogd.log.read().state.limits.timeouts == {"B": 1800.0}
    assert seat(dialogd).session == key(session)
    second = dialogd("start", "A", *start[2:])
    assert (second.code, "a session has one seat" in second.err) == (3, True)
    twice = [word for who in "AB" for word in ("--agent", f"{who}=live:{key(session)}")]
    both = dialogd("run", "Tabs?", *twice, "--file", str(dialogd.folder / "other.md"))
    assert (both.code, "a session has one seat" in both.err) == (2, True)
    dialogd("say", "What do you say?", "--to", "B")
    untold(session, dialogd, "Tabs", "What do you say")
    assert typed(dialogd, session, "live", "accept").code == 0
    assert "What do you say?" in typed(dialogd, session, "live", "turn").out
    os.kill(seat(dialogd).pid, 9)  # who has agreed is not asked again
    until(lambda: not dialogd.daemons(), "its end")
    assert dialogd(*start).code == 0
    knocked(session, "is yours")
    assert "What do you say?" in typed(dialogd, session, "live", "turn", "--wait").out


@pytest.mark.slow
def test_a_session_that_starts_its_own_daemon_has_agreed(dialogd: Commands, session: Claude) -> None:
    dialogd.begin("Tabs or spaces?")
    start = ("start", "B", "--backend", "live", "--session", key(session), "--detach")
    done = typed(dialogd, session, *start)
    assert (done.code, "dialogd live accept" in done.err) == (0, False), done
    dialogd("say", "What do you say?", "--to", "B")
    knocked(session, "turn 3 is yours")


@pytest.mark.slow
def test_a_session_that_is_in_a_cast_agrees_first(dialogd: Commands, session: Claude) -> None:
    cast = ["--agent", f"A=live:{key(session)}", "--agent", "B=rehearsal"]
    with dialogd.background("run", "Tabs or spaces?", *cast, "--file", str(dialogd.file), "--plan", "no"):
        untold(session, dialogd, "Tabs")
        assert "A: that session agrees by `dialogd live accept`" in dialogd.output
        text = dialogd.file.read_text()
        assert "The seat of A is an open session of Claude Code" in text
        assert "[LIMIT: timeout A 30 minutes]" in text
        assert typed(dialogd, session, "live", "accept").code == 0
        assert "Tabs or spaces?" in typed(dialogd, session, "live", "turn").out
        assert typed(dialogd, session, "live", "reply", given="Spaces, I say.").code == 0
        until(lambda: dialogd.log.read().state.number > 2, "the other's turn")

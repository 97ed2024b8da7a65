"""Open sessions of the real Claude Code and Codex: found, knocked at, asked from outside, and asking."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from dialogd.backends.open_sessions import Session, of_key, running_sessions, status, wake
from dialogd.protocol.grammar import parse
from tests.clis.rig import KEY, PATH, World
from tests.clis.terminals import ALONE, PATIENCE, claude_environment, claude_session, codex_environment, codex_session
from tests.support.pair import until
from tests.support.standin import Answer, Say, Seen, StandIn, Use
from tests.support.terminal import Terminal


def dialogd(environment: Mapping[str, str], *words: str, given: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "dialogd", *words],
        env=dict(environment),
        cwd=environment["HOME"],
        input=given,
        text=True,
        capture_output=True,
        check=False,
        timeout=PATIENCE,
    )
    return done.stdout + done.stderr


def known(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> None:
    for name in ("HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        if name in environment:
            monkeypatch.setenv(name, environment[name])
        else:
            monkeypatch.delenv(name, raising=False)


def the_session(terminal: Terminal) -> Session:
    until(running_sessions, "a session", PATIENCE, lambda: terminal.text[-2000:])
    (session,) = running_sessions()
    return session


def texts(seen: Seen) -> str:
    return json.dumps(seen.body, ensure_ascii=False)


def heard(server: StandIn, words: str) -> bool:
    return any(words in texts(seen) for seen in server.calls)


def was_busy(session: Session, seconds: float = PATIENCE) -> bool:
    """True when it is seen at work, and then at rest."""
    states, until_ = [""], time.monotonic() + seconds
    while time.monotonic() < until_ and not ("busy" in states and states[-1] == "idle"):
        time.sleep(0.1)
        states.append(status(session))
    return "busy" in states and states[-1] == "idle"


# -- Claude Code ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True])
def test_claude_code_is_found_and_a_knock_opens_a_turn(
    claude: World, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StandIn(lambda _: Say("I heard it.", seconds=2.0)) as server:
        more = {"CLAUDE_CONFIG_DIR": str(claude.home / "elsewhere")} if elsewhere else {}
        environment = claude_environment(claude, server.url, **ALONE, **more)
        known(monkeypatch, environment)
        with claude_session(claude, environment) as terminal:
            session = the_session(terminal)
            assert (session.program, session.project) == ("claude", str(claude.project))
            until(lambda: status(session) == "idle", "rest", PATIENCE)
            asyncio.run(wake(session, "turn 3 is yours. Run: dialogd live turn"))
            until(lambda: heard(server, "dialogd: turn 3 is yours. Run: dialogd live turn"), "the knock", PATIENCE)
            assert was_busy(session)
            terminal.until("Message from @dialogd")
            assert session.name in dialogd(environment, "live", "sessions")
            terminal.kill()
            until(lambda: status(session) == "gone", "its end", PATIENCE)
            assert of_key(session.key) is None


class Guest:
    """A session's model: it does what a knock and what it is shown say, and replies with these texts."""

    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)

    def __call__(self, seen: Seen) -> Answer:
        if not seen.tools:
            return Say("A title")
        said = json.dumps((seen.body or {})["messages"][-1], ensure_ascii=False)
        if owed := re.search(r"is yours, as agent \w+.*?--debt ([\w-]+)", said):
            text = self.replies.pop(0) if self.replies else "[PASS]"
            return self.run(f"dialogd live reply --debt {owed[1]} <<'END'\n{text}\nEND")
        if "you are asked to take part" in said:
            return self.run("dialogd live accept")
        if re.search("dialogd[^:]*: turn", said) or "this session is agent" in said:
            return self.run("dialogd live turn --wait")
        return Say("Done.")

    @staticmethod
    def run(command: str) -> Use:
        """A command of the session's."""
        return Use("Bash", {"command": command, "description": "dialogd"})


def test_a_session_that_is_asked_from_outside_accepts_and_takes_part(claude: World) -> None:
    guest = Guest("Spaces, says the guest.")
    with StandIn(guest) as server:
        environment = claude_environment(claude, server.url, **ALONE)
        file = Path(environment["DIALOGD_FILE"])
        try:
            with claude_session(claude, environment):
                dialogd(environment, "new", "A secret topic: tabs or spaces?", "--first", "B")
                said = dialogd(environment, "live", "join", "B", "--session", claude.project.name)
                assert "told nothing of the dialog before" in said
                until(lambda: heard(server, "run: dialogd live accept"), "the first knock", PATIENCE)
                before = [texts(seen) for seen in server.calls if "this session is agent" not in texts(seen)]
                assert not [text for text in before if "secret topic" in text]
                dialogd(environment, "say", "Please begin.", "--to", "B")
                until(lambda: "says the guest" in file.read_text(), "its turn", PATIENCE, file.read_text)
                asked = next(i for i, seen in enumerate(server.calls) if "run: dialogd live accept" in texts(seen))
                agreed = next(i for i, seen in enumerate(server.calls) if "this session is agent" in texts(seen))
                told = next(i for i, seen in enumerate(server.calls) if "secret topic" in texts(seen))
                assert asked < agreed <= told
        finally:
            dialogd(environment, "stop")


def test_a_session_asks_a_fresh_codex(claude: World) -> None:
    if shutil.which("codex", path=PATH) is None:
        pytest.skip("codex is not installed: `make test-clis` brings it")
    guest = Guest("It has a table of sessions, says the guest.")

    def answer(seen: Seen) -> Answer:
        return Say("It lacks an index, says the new one.") if seen.form == "responses" else guest(seen)

    with StandIn(answer) as server:
        more = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{server.url}/v1"}
        environment = claude_environment(claude, server.url, **ALONE, **more)
        file = Path(environment["DIALOGD_FILE"])
        try:
            with claude_session(claude, environment) as terminal:
                terminal.type('!dialogd ask codex "Is this schema right?"')
                until(
                    lambda: file.exists() and "says the new one" in file.read_text(),
                    "its answer",
                    2 * PATIENCE,
                    lambda: terminal.text[-3000:],
                )
        finally:
            dialogd(environment, "stop")
    dialog = parse(file.read_bytes())
    assert [(agent.id, agent.name) for agent in dialog.header.agents] == [("A", "Claude A"), ("B", "Codex B")]
    bodies = [(turn.by, turn.body) for turn in dialog.turns]
    assert ("A", "It has a table of sessions, says the guest.") in bodies
    assert ("B", "It lacks an index, says the new one.") in bodies
    assert "Is this schema right?" in bodies[0][1]


# -- Codex ------------------------------------------------------------------------------------------------------------


def test_codex_is_found_and_a_knock_opens_a_turn(codex: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with StandIn(lambda _: Say("I heard it.", seconds=2.0)) as server:
        environment = codex_environment(codex, server.url, **ALONE)
        known(monkeypatch, environment)
        with codex_session(codex, environment) as terminal:
            session = the_session(terminal)
            assert (session.program, session.project) == ("codex", str(codex.project))
            until(lambda: status(session) == "idle", "rest", PATIENCE)
            asyncio.run(wake(session, "turn 3 is yours. Run: dialogd live turn"))
            until(lambda: heard(server, "dialogd: turn 3 is yours"), "the knock", PATIENCE)
            assert was_busy(session) or status(session) == "idle"
            terminal.kill()
            until(lambda: status(session) == "gone", "its end", PATIENCE)
            assert of_key(session.key) is None


def test_codex_joins_and_its_sandbox_says_what_to_do(codex: World) -> None:
    def answer(seen: Seen) -> Answer:
        said = texts(seen)
        if "dialogd: turn" in said and not seen.tool_results and seen.tools:
            return Use("exec_command", {"cmd": "dialogd live turn"})
        return Say("Done.")

    with StandIn(answer) as server:
        environment = codex_environment(codex, server.url, **ALONE)
        file = Path(environment["DIALOGD_FILE"])
        dialogd(environment, "new", "Tabs or spaces?")
        try:
            with codex_session(codex, environment) as terminal:
                terminal.type("!dialogd live join B")
                terminal.until("this session is agent B in a dialog")
                assert "an open session of Codex" in file.read_text()
                dialogd(environment, "say", "Please begin.", "--to", "B")
                until(lambda: heard(server, "runs in Codex's sandbox"), "the reason", PATIENCE, file.read_text)
                assert parse(file.read_bytes()).state.debt("B") is not None
        finally:
            dialogd(environment, "stop")

"""Alerts reach the person once, from the daemon that wrote the entry, and harm nobody when they fail."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dialogd.alerts import (
    COMMAND_SECONDS,
    PENDING,
    REASON_LENGTH,
    TEXT_LENGTH,
    Alert,
    Alerts,
    Channel,
    chosen,
    command,
    show,
    worth,
)
from dialogd.config import load
from dialogd.errors import BackendError, DialogdError
from dialogd.protocol.decide import STALL_GRACE
from dialogd.store.registry import HOOK
from tests.server.daemon_process import Room, send
from tests.support.pair import a_second
from tests.support.paper import clock_at
from tests.support.room import Room as Paper
from tests.support.room import opening

KEY = "sk-ant-api03-" + "Tr0ub4dor" * 6  # looks like a key, opens nothing
KEYS = {"v", "event", "dialog", "topic", "file", "agent", "turn", "text", "reason", "url", "at", "by", "default"}
SERIOUS = ("QUESTION", "STALLED", "ERROR", "END")


def brought(folder: Path, name: str) -> list[dict[str, Any]]:
    """The alerts that the command of one setting has got, in the order in which it got them."""
    file = folder / name
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def trial(**changes: Any) -> Alert:
    """An alert to try channels with."""
    facts = {"dialog": "d", "topic": "T", "file": "/f", "agent": "A", "turn": 2, "text": "t", "reason": "r"}
    return replace(Alert(event="question", url="http://localhost:1/", at="", **facts), **changes)  # type: ignore[arg-type]


def failure(channel: Channel, alert: Alert | None = None) -> str:
    """Why the channel could not deliver; "" when it could."""

    async def deliver() -> str:
        try:
            await channel.deliver(alert or trial())
        except DialogdError as error:
            return str(error) if error.fix else f"no fix: {error}"
        return ""

    return asyncio.run(deliver())


def raised(paper: Paper, secrets: tuple[str, ...] = ()) -> list[Alert]:
    """What the latest entry of a room in memory is worth."""
    dialog = paper.dialog
    assert dialog.last is not None
    return list(worth(dialog, dialog.last, file="/f", url="u", at="t", secrets=secrets))


# -- what is worth an alert ------------------------------------------------------------------------------------------


def test_what_each_kind_of_entry_is_worth() -> None:
    paper = Paper(
        opening("A", "B"),
        A=[
            "I propose tabs.",
            "Which?\n\n[QUESTION_FOR_USER: Soft or hard?]",
            None,
            BackendError("no quota", fix="pay"),
        ],
        B=["Why?"],
    )
    paper.step("A")
    (turn,) = raised(paper)
    assert (turn.event, turn.agent, turn.text, turn.turn, turn.is_main) == ("entry", "A", "I propose tabs.", 2, True)
    paper.step("B")
    paper.step("A")
    (question,) = raised(paper)
    assert (question.event, question.agent, question.reason) == ("question", "A", "Soft or hard?")
    paper.say("Soft.")
    assert raised(paper) == []
    paper.step("A")
    paper.advance(paper.dialog.state.limits.timeout + STALL_GRACE + 1)
    paper.step("B")
    (stalled,) = raised(paper)
    assert (stalled.event, stalled.agent, stalled.reason) == ("stalled", "A", "A gave no answer in time")
    paper.retry("A")
    assert raised(paper) == []
    paper.scripts["A"] = [BackendError("no quota", fix="pay")]
    paper.step("A")
    (error,) = raised(paper)
    assert (error.event, error.agent, error.reason) == ("error", "A", "A failed: no quota (pay)")
    paper.stop()
    assert raised(paper) == []


def test_a_question_says_until_when_and_what_counts_then() -> None:
    paper = Paper(
        opening("A", "B", setup="question_defaults = true"),
        A=[f"Hm.\n\n[QUESTION_FOR_USER: Soft, {'really ' * 90}? | in 2h | default: hard]"],
    )
    paper.step("A")
    dialog = paper.dialog
    assert dialog.last is not None
    clock = clock_at(timezone(timedelta(hours=5)))
    (alert,) = worth(dialog, dialog.last, file="/f", url="u", at=paper.paper.at, zone=clock)
    (asked,) = dialog.state.questions.open
    told = f"{datetime.fromisoformat(asked.by) + timedelta(hours=5):%H:%M}"
    assert alert.reason.startswith("Soft, really")
    assert alert.reason.endswith(f"… (by {told}; default: hard (taken then))")
    assert len(alert.reason) == REASON_LENGTH
    fact = json.loads(alert.json)
    assert (fact["by"], fact["default"]) == (asked.by, "hard")
    paper.say("Soft.")
    paper.scripts["A"] = ["Then soft."]
    paper.step("A")
    (entry,) = raised(paper)
    assert (entry.by, entry.default) == ("", "")


def test_the_question_of_a_round_comes_with_the_turn_that_asks() -> None:
    setup = '## Setup\n\n```toml\norder = "parallel"\n```'
    paper = Paper(
        opening("A", "B", "C", more=setup, turn="A, B, C"),
        A=["It depends.\n\n[QUESTION_FOR_USER: how many? | in 2h | default: ten]"],
        B=["Mine.\n\n[QUESTION_FOR_USER: where?]"],
        C=["I am sure."],
    )
    for who in "AB":
        paper.step(who)
        assert [alert.event for alert in raised(paper)] == ["entry"]
    paper.step("C")
    (both,) = raised(paper)
    assert (both.event, both.agent, both.text, both.by, both.default) == ("question", "B", "Mine.", "", "")
    assert re.fullmatch(r"how many\? \(by .*; default: ten \(not taken: .*\)\) / where\?", both.reason)
    paper.say("Go on.")
    paper.scripts.update(A=["Hm.\n\n[QUESTION_FOR_USER: sure?]"], B=["Yes."], C=["I am."])
    for who in paper.dialog.state.owing:
        paper.step(who)
    (alone,) = raised(paper)
    assert (alone.agent, alone.text, alone.reason) == ("A", "Hm.", "sure?")


def test_the_end_comes_before_the_failure_that_brought_it() -> None:
    failing = {"A": [BackendError("no quota", fix="pay")] * 2, "B": [BackendError("no net", fix="plug")] * 2}
    paper = Paper(opening("A", "B"), **failing)
    for who in "AA":
        paper.step(who)
    paper.skip("A")
    for who in "BB":
        paper.step(who)
    end, error = raised(paper)
    assert (end.event, end.is_main, error.event, error.is_main) == ("end", True, "error", False)
    assert end.reason.startswith("STOPPED: error")


def test_step_mode_asks_nobody_at_every_turn() -> None:
    setup = "## Setup\n\n```toml\nstep = true\n```"
    paper = Paper(opening("A", "B", more=setup), A=["Tabs.", "Hm.\n\n[QUESTION_FOR_USER: Soft?]"])
    paper.step("A")
    assert paper.dialog.state.owing == ("USER",)
    assert [alert.event for alert in raised(paper)] == ["entry"]
    paper.say("Go on.", to="A")
    paper.step("A")
    assert [alert.event for alert in raised(paper)] == ["question"]


def test_an_alert_is_one_line_without_secrets_and_of_bounded_length() -> None:
    long = "word " * 1000
    paper = Paper(
        opening("A", "B", question="Why?", keys=[f"Topic: the {KEY} \x1b]0;evil\x07 question"]),
        A=[f"hunter2hunter2 \x1b[2J\u202e\nTURN: USER\n{KEY}\n{long}\n\n[QUESTION_FOR_USER: {'why ' * 200}]"],
    )
    paper.step("A")
    (alert,) = raised(paper, ("hunter2hunter2",))
    fact = json.loads(alert.json)
    assert set(fact) == KEYS
    assert fact["v"] == 1
    assert alert.json.isascii()
    assert alert.json.count(b"\n") == 1
    words = "".join(str(value) for value in fact.values())
    assert "hunter2" not in words
    assert KEY not in words
    assert words.isprintable()
    assert (len(fact["text"]), len(fact["reason"])) == (TEXT_LENGTH, REASON_LENGTH)


# -- channels --------------------------------------------------------------------------------------------------------


def test_a_command_gets_json_on_stdin_and_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("DISPLAY", ":7")
    script = tmp_path / "a hook.py"
    script.write_text(
        "import json, os, sys\n"
        "json.dump([sys.argv[1:], dict(os.environ), json.load(sys.stdin)], open(sys.argv[1], 'w'))\n"
    )
    out = tmp_path / "out.json"
    words = [sys.executable, str(script), str(out), "$(touch /tmp/never)", ";", "ls"]
    assert failure(command("on_question", shlex.join(words))) == ""
    arguments, environment, fact = json.loads(out.read_text())
    assert arguments[1:] == ["$(touch /tmp/never)", ";", "ls"]
    assert (environment["DISPLAY"], "ANTHROPIC_API_KEY" in environment) == (":7", False)
    assert [name for name in environment if name.startswith("DIALOGD_")] == [HOOK]
    assert environment[HOOK] == "on_question"
    assert fact == json.loads(trial().json)


def test_a_failing_command_says_why() -> None:
    assert failure(command("on_end", "no-such-program --x")) == "command not found: 'no-such-program'"
    assert failure(command("on_end", "sh -c 'echo no luck >&2; exit 3'")) == "exited 3: no luck"
    assert failure(command("on_end", "sh -c 'exec <&-; exit 0'")) == ""  # it need not read


@pytest.mark.slow
def test_a_hanging_command_is_ended_with_all_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = textwrap.dedent(f"""
        import os, subprocess, time
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
        time.sleep(600)
    """)
    began = time.monotonic()
    assert "took more than 10 s" in failure(command("on_event", shlex.join([sys.executable, "-c", code])))
    assert COMMAND_SECONDS <= time.monotonic() - began < COMMAND_SECONDS + 3 * a_second()
    assert not any(is_alive(int(pid)) for pid in pids.read_text().split())


def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    assert failure(command("on_end", f"sh -c 'sleep 600 & echo $! > {pid}'")) == ""
    assert not is_alive(int(pid.read_text()))


def test_curl_posts_an_alert_as_the_page_says(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (repository / "docs" / "using.md").read_text(encoding="utf-8")
    example = re.search(r'^on_end = "(curl .*)" ', page, re.MULTILINE)
    assert example is not None
    curl = tmp_path / "curl"
    curl.write_text(f'#!/bin/sh\nprintf "%s|" "$@" >{tmp_path}/words\ncat >{tmp_path}/sent\n')
    curl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert failure(command("on_end", example[1])) == ""
    assert (tmp_path / "sent").read_bytes() == trial().json
    assert "--json|@-|" in (tmp_path / "words").read_text()


def is_alive(pid: int) -> bool:
    """True while that process lives."""
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_a_channel_that_is_too_slow_is_told_of_once() -> None:
    paper, warned = Paper(opening("A", "B", keys=["Max Turns: 99"])), list[str]()
    hub = SimpleNamespace(publish=lambda _kind, text: warned.append(text))
    agent: Any = SimpleNamespace(
        me="A", hub=hub, approvals=SimpleNamespace(followers=[]), file=SimpleNamespace(path="/f")
    )

    async def write() -> None:
        alerts = Alerts(agent, "", [Channel("on_event", "it", lambda _: asyncio.sleep(9))])
        for _ in range(2 * PENDING + 4):
            alerts.written(paper.talk("Hm.").dialog)

    asyncio.run(write())
    assert warned == ["alerts: on_event is too slow; some are left out"]


# -- daemons ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_daemons_raise_each_alert_once(tmp_path: Path) -> None:
    environment = {f"DIALOGD_ON_{name}": f"sh -c 'cat >>{tmp_path}/{name}'" for name in (*SERIOUS, "EVENT")}
    with Room(tmp_path, environment=environment) as room:
        room.open("AB")
        room.think("A").end("Tabs.\n")
        room.minds["B"].call(1).end("Hm.\n\n[QUESTION_FOR_USER: Soft or hard? | in 2h]\n")
        room.until(lambda: len(brought(tmp_path, "EVENT")) == 2 and brought(tmp_path, "QUESTION"), "the alerts")
        assert sorted(fact["event"] for fact in brought(tmp_path, "EVENT")) == ["entry", "question"]
        (question,) = brought(tmp_path, "QUESTION")
        assert question in brought(tmp_path, "EVENT")
        assert set(question) == KEYS
        by = datetime.fromisoformat(question["by"]).astimezone()  # as the clock of this machine has it
        assert (question["agent"], question["turn"]) == ("B", 3)
        assert question["reason"] in {f"Soft or hard? (by {day}{by:%H:%M})" for day in ("", f"{by:%Y-%m-%d} ")}
        assert (question["file"], question["topic"]) == (str(room.file), "Tabs or spaces?")
        assert question["url"] == f"http://localhost:{room.b.port}/"
        assert send(room.a, "POST /say", {"text": "Soft."}).status == 200
        room.minds["B"].call(2).end("Done.\n\n[DEADLOCK]\n")
        room.minds["A"].call(2).end("Yes.\n\n[DEADLOCK]\n")
        room.until(lambda: brought(tmp_path, "END") and len(brought(tmp_path, "EVENT")) == 4, "the end")
        for daemon in room.daemons.values():
            assert daemon.terminate() == 0
    assert [fact["reason"] for fact in brought(tmp_path, "END")] == ["DEADLOCK"]
    assert sorted(fact["turn"] for fact in brought(tmp_path, "EVENT")) == [2, 3, 5, 6]  # either daemon may be first
    assert len(brought(tmp_path, "QUESTION")) == 1
    assert brought(tmp_path, "ERROR") == brought(tmp_path, "STALLED") == []


@pytest.mark.slow
def test_a_daemon_that_goes_waits_for_the_alert_of_an_end_and_for_nothing_else(tmp_path: Path) -> None:
    end = tmp_path / "end.json"
    environment = {
        "DIALOGD_ON_END": f"sh -c 'sleep 0.2; cat > {end}'",
        "DIALOGD_ON_EVENT": "sleep 600",
    }
    with Room(tmp_path, "A", environment=environment) as room:
        room.open(max_turns=2)
        room.think("A").end("Tabs.\n")
        room.until(lambda: room.outcome, "the end")
        began = time.monotonic()
        assert room.a.terminate() == 0
        assert time.monotonic() - began < 10 * a_second()
    assert json.loads(end.read_text())["event"] == "end"


@pytest.mark.slow
def test_hooks_that_fail_or_hang_delay_no_turn_and_are_told_once(tmp_path: Path) -> None:
    environment = {"DIALOGD_ON_EVENT": "sh -c 'exit 3'", "DIALOGD_ON_QUESTION": "sleep 600"}
    with Room(tmp_path, environment=environment) as room:
        room.open("AB")
        room.think("A").end("Well.\n\n[QUESTION_FOR_USER: Soft?]\n")
        room.until(lambda: room.number == 2, "the question")
        person_says(room, "Soft.")
        began = time.monotonic()
        room.minds["A"].call(2).end("Tabs.\n")
        room.minds["B"].call(1).end("Yes.\n")
        room.minds["A"].call(3)
        assert time.monotonic() - began < 5 * a_second()
        room.until(lambda: "alerts: on_event (sh) exited 3" in room.a.said, "the warning")
        began = time.monotonic()
        assert send(room.a, "POST /stop").status == 200
        room.a.wait()
        assert time.monotonic() - began < 2 * a_second()
        assert room.a.said.count("alerts: on_event") == 1


def person_says(room: Room, text: str) -> None:
    """A turn of the person's, through A's daemon."""
    assert send(room.a, "POST /say", {"text": text}).status == 200


# -- the desktop -----------------------------------------------------------------------------------------------------

BUS = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:dir={folder}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/>
</policy></busconfig>"""

NOTIFICATIONS = """
import asyncio, json, sys
from dbus_fast.aio import MessageBus
from dbus_fast.service import ServiceInterface, dbus_method

class Server(ServiceInterface):
    @dbus_method()
    def Notify(self, app: "s", old: "u", icon: "s", title: "s", body: "s", acts: "as", hints: "a{sv}", t: "i") -> "u":
        print(json.dumps([app, title, body]), flush=True)
        return 1
    @dbus_method()
    def GetCapabilities(self) -> "as":
        return ["body", "body-markup"]
    @dbus_method()
    def GetServerInformation(self) -> "ssss":
        return ["a", "b", "c", "1.2"]
    @dbus_method()
    def CloseNotification(self, one: "u"):
        pass

async def main():
    bus = await MessageBus().connect()
    bus.export("/org/freedesktop/Notifications", Server("org.freedesktop.Notifications"))
    await bus.request_name("org.freedesktop.Notifications")
    print("ready", flush=True)
    await asyncio.get_running_loop().create_future()

asyncio.run(main())
"""


@pytest.fixture
def desktop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[str]]:
    """A session bus with a notification server of our own, which prints what it is to show."""
    pytest.importorskip("desktop_notifier", reason="the extra `desktop` is not installed")
    if shutil.which("dbus-daemon") is None:
        pytest.skip("dbus-daemon is not installed")
    config = tmp_path / "bus.conf"
    config.write_text(BUS.format(folder=tmp_path))
    bus = subprocess.Popen(
        ["dbus-daemon", f"--config-file={config}", "--print-address", "--nofork"], stdout=subprocess.PIPE, text=True
    )
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", bus.stdout.readline().strip())
    server = subprocess.Popen([sys.executable, "-c", NOTIFICATIONS], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline() == "ready\n"
        yield server
    finally:
        for process in (server, bus):
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the library keeps its connection for the process's life
def test_the_desktop_shows_a_notification_without_markup(desktop: subprocess.Popen[str], tmp_path: Path) -> None:
    with Room(tmp_path, "A", environment={"DIALOGD_POLL": "0.1"}) as room:
        room.open()
        room.think("A").end('Well.\n\n[QUESTION_FOR_USER: <a href="http://x/">Soft</a> & <b>hard?]\n')
        app, title, body = json.loads(desktop.stdout.readline())
    assert (app, title) == ("dialogd", "dialogd: your turn (Tabs or spaces?)")
    assert "<" not in body
    assert "&" not in body
    assert "Soft" in body


def test_without_a_session_bus_the_desktop_says_so() -> None:
    pytest.importorskip("desktop_notifier", reason="the extra `desktop` is not installed")
    assert failure(Channel("desktop", "", show)) == "no desktop took the notification"


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_trial_says_what_became_of_each_channel(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "DIALOGD_STATE_DIR": str(tmp_path / "state"),
        "DIALOGD_ON_END": "sh -c 'exit 7'",
        "DIALOGD_ON_QUESTION": f"sh -c 'cat >>{tmp_path}/QUESTION' SECRET",
        "DIALOGD_BELL": "off",
    }
    words = [sys.executable, "-m", "dialogd", "alerts", "test"]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "ok  on_question  sh\n" in done.stdout
    assert "!!  on_end       sh: exited 7\n    fix: " in done.stdout
    assert "SECRET" not in done.stdout
    assert [fact["event"] for fact in brought(tmp_path, "QUESTION")] == ["question"]
    environment["DIALOGD_ON_END"] = "http://localhost:8080/dialogs"
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "on_end" in done.stderr
    assert "curl --json @- URL" in done.stderr


def test_the_page_about_alerts_shows_what_is_so(repository: Path, tmp_path: Path) -> None:
    page = (repository / "docs" / "using.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"^```(toml|json|sh|python)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    (tmp_path / "dialogd.toml").write_text(blocks["toml"], encoding="utf-8")
    settings = load({}, {}, tmp_path)
    assert [way.name for way in chosen(settings)][:3] == ["on_question", "on_end", "on_event"]
    assert set(json.loads(blocks["json"])) == KEYS
    assert all(f"`{key}`" in page for key in KEYS)
    shown = tmp_path / "shown"
    (tmp_path / "notify-send").write_text(f'#!/bin/sh\nprintf "%s|" "$@" >{shown}\n')
    (tmp_path / "notify-send").chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", blocks["python"]],
        input=trial(topic="Tabs?", reason="$(never) soft?").json,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=False,
    )
    assert (done.returncode, shown.read_text()) == (0, "--|Tabs?|$(never) soft?|")

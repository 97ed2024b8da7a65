"""Sessions over MCP, by the SDK's own client: listed, read, spoken in, stopped; good and bad arguments."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dialogd import person
from dialogd.cli import options
from dialogd.cli.status import Situation
from dialogd.errors import BackendError, BadInput, Refused
from dialogd.mcp.server import Position, on
from dialogd.mcp.sessions import FREE, MOST, PAGE, pause, state_of
from dialogd.protocol.grammar import parse
from dialogd.protocol.lifecycle import AGENTS, SESSIONS, WORDS, agent_state
from dialogd.protocol.model import Mark
from dialogd.protocol.state import Dialog
from dialogd.store.disk import StateDir
from tests.mcp.conftest import Host, call
from tests.support.cases import cases
from tests.support.room import Room, opening


def text_of(part: object) -> str:
    """The text of what a resource holds."""
    from mcp.types import TextResourceContents

    assert isinstance(part, TextResourceContents)
    return part.text


TOOLS = {
    "ask", "position_invoke", "sessions_list", "sessions_send", "sessions_history", "sessions_stop", "gallery_emit",
    "wait_for_turn", "reply", "plan", "recall", "verify",
}  # fmt: skip


async def test_every_tool_is_offered_with_a_description_and_its_arguments(host: Host) -> None:
    async with host.client() as client:
        offered = (await client.list_tools()).tools
        templates = (await client.list_resource_templates()).resource_templates
    assert {tool.name for tool in offered} == TOOLS
    for tool in offered:
        assert tool.description
        assert tool.annotations is not None
        assert all({"type", "anyOf", "$ref"} & set(a) for a in tool.input_schema["properties"].values()), tool.name
    # They stand in the context of every session: 15 kB once, before descriptions said what a model needs, and no more.
    wire = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in offered]
    assert len(json.dumps(wire, ensure_ascii=False).encode()) <= 7_000
    assert {t.uri_template for t in templates} == {
        f"dialog://{{session}}/{n}" for n in ("transcript", "plan", "certificate")
    }


async def test_a_session_is_listed_as_hosts_know_sessions(host: Host) -> None:
    log = host.commands.begin("Tabs?")
    async with host.client() as client:
        (row,) = (await call(client, "sessions_list"))["sessions"]
        assert row["id"] == log.read().id
        assert (row["position"], row["status"], row["messageCount"]) == ("pair", "error", 1)
        assert row["agents"] == [
            {"id": "A", "role": "Claude A", "status": "stopped"},
            {"id": "B", "role": "Claude B", "status": "stopped"},
        ]
        assert datetime.fromisoformat(row["startedAt"]).tzinfo is not None
        assert (await call(client, "sessions_list", filter={"topic": "tabs"}))["sessions"]
        assert not (await call(client, "sessions_list", filter={"status": "running"}))["sessions"]
        assert not (await call(client, "sessions_list", filter={"position": "circle"}))["sessions"]
        assert "spawning_agents" in (await call(client, "sessions_list", filter={"status": "asleep"})).error


async def test_what_a_host_sends_is_a_turn_of_the_persons_that_says_so(host: Host) -> None:
    log = host.commands.begin("Tabs?")
    async with host.client() as client:
        sent = await call(client, "sessions_send", message="Consider width.", to="B", type="QUESTION")
        assert (sent["turn"], sent["to"]) == (2, ["B"])
        last = log.read().entries[-1]
        assert (last.by, last.frame.host, last.turn) == ("USER", "mcp", ("B",))
        assert Mark("QUESTION", "Consider width.") in last.marks
        assert (await call(client, "sessions_send", message="All of you.", to="all"))["to"] == ["A", "B"]
        proposed = await call(client, "sessions_send", message="Use tabs.", type="proposal")
        assert [one.ref for one in log.read().state.table.proposals] == ["P1"]
        assert proposed["session"] == log.read().id
        said = (await call(client, "sessions_history"))["messages"]
    assert [(m["from"], m["type"], m.get("via")) for m in said] == [
        ("USER", "TEXT", None), ("USER", "QUESTION", "mcp"), ("USER", "TEXT", "mcp"), ("USER", "PROPOSAL", "mcp"),
    ]  # fmt: skip
    person.say(log, "By hand.")
    assert "host=" not in log.path.read_text().split("By hand.")[0].rsplit("<!--", 1)[1]


async def test_an_event_costs_nobody_a_turn(host: Host) -> None:
    log = host.commands.begin("Tabs?")
    async with host.client() as client:
        emitted = await call(client, "gallery_emit", message="The build is green.", type="EVIDENCE")
        assert (emitted["turn"], emitted["to"]) == (None, ["A"])
        assert (
            "OBJECTION"
            not in (await call(client, "gallery_emit", message="x", type="OBJECTION")).error.split("one of")[1]
        )
    (_, note) = log.read().entries
    assert (note.number, note.mark("EVIDENCE")) == (0, Mark("EVIDENCE", "The build is green."))


async def test_bad_arguments_come_back_with_what_would_be_right(host: Host) -> None:
    log = host.commands.begin("Tabs?")
    before = log.path.read_bytes()
    async with host.client() as client:
        wrong = [
            (await call(client, "sessions_send", message="x", type="SHOUT"), "CRITIQUE"),
            (await call(client, "sessions_send", message="x", to="Z"), "A (Claude A), B (Claude B)"),
            (await call(client, "sessions_send", message=" "), "nothing to say"),
            (await call(client, "sessions_send"), "message"),
            (await call(client, "sessions_send", message="x", session="zzz"), log.read().id),
            (await call(client, "sessions_history", agent="Q"), "A, B, USER"),
            (await call(client, "sessions_history", page=7), "from 1 to 1"),
            (await call(client, "sessions_list", filter={"colour": "red"}), "name one of: status, position"),
            (await call(client, "sessions_list", limit=0), "limit"),
            (await call(client, "plan"), "no agent has spoken"),
            (await call(client, "recall", question=" "), "question"),
        ]
        wrong += [
            (await call(client, "recall", question="x", zzz=1), "no argument 'zzz'. What to do: name one of: question"),
            (await call(client, "ask", question="x", limits={"max_turn": 1}), "name one of: max_agents, max_turns"),
            (await call(client, "sessions_send", text="x", content="y"), "no argument 'content'"),
        ]
        unknown = await client.call_tool("shout", {})
    for answer, words in wrong:
        assert words in answer.error, answer
    assert unknown.is_error
    assert log.path.read_bytes() == before


async def test_nobody_may_ask_for_more_than_the_settings_allow_or_choose_what_runs(
    host: Host, tmp_path_factory: pytest.TempPathFactory
) -> None:
    many = {"target": "x", "agents": ["rehearsal"] * 3}
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "notes.md"
    elsewhere.write_text("# Notes\n\n## User\n\nhello\n")
    async with host.client() as client:
        await call(client, "sessions_list")
        files = {path.name for path in host.folder.rglob("*")}
        wrong = [
            (await call(client, "ask", question=" "), "question is empty"),
            (await call(client, "ask", question="\u200b \u2060"), "question is empty"),
            (await call(client, "ask", question="x", agents=["nobody"]), "rehearsal"),
            (await call(client, "ask", question="x", agents=["command:touch pwned"]), "runs a program"),
            (await call(client, "ask", question="x", agents=["rehearsal"] * 11), "10 may take part"),
            (await call(client, "ask", question="x", limits={"max_turns": 1001}), "1000 messages"),
            (await call(client, "ask", question="x", limits={"max_time": "1 day"}), "30 minutes"),
            (await call(client, "ask", question="x", limits={"timeout": "soon"}), "timeout"),
            (await call(client, "ask", question="x", context=["/etc/passwd"]), "is outside"),
            (await call(client, "position_invoke", position="hermit", config={"target": "x"}), "contemplator"),
            (await call(client, "position_invoke", position="mirror", config=many), "2 agents"),
            (await call(client, "position_invoke", position="mirror", config={}), "target"),
            (await call(client, "position_invoke", position="mirror", config={"target": "../"}), "is outside"),
            (await call(client, "position_invoke", position=str(elsewhere), config={"target": "x"}), "is outside"),
            (await call(client, "ask", question="x", agents=["rehearsal", "live:claude:7:7"]), "was not asked"),
            (await call(client, "sessions_history", session=str(elsewhere)), "no session known here"),
            (await call(client, "sessions_send", session=str(elsewhere), message="x"), "no session known here"),
        ]  # fmt: skip
    for answer, words in wrong:
        assert words in answer.error, answer
    assert {path.name for path in host.folder.rglob("*")} == files
    assert [path.name for path in elsewhere.parent.iterdir()] == [elsewhere.name]


async def test_a_long_history_comes_in_pages(host: Host) -> None:
    log = host.commands.begin("Tabs?")
    for number in range(PAGE):
        person.say(log, f"Thought {number}.", note=True)
    async with host.client() as client:
        first, last = [await call(client, "sessions_history", page=page) for page in (1, -1)]
        own = await call(client, "sessions_history", agent="user", page=2)
        assert not (await call(client, "sessions_history", agent="B"))["messages"]
    assert (len(first["messages"]), first["pages"], first["next"]) == (PAGE, 2, 2)
    assert [m["text"] for m in last["messages"]] == [f"Thought {PAGE - 1}."] == [m["text"] for m in own["messages"]]
    assert "next" not in last.facts


async def test_the_words_have_any_of_three_names(host: Host) -> None:
    log = host.commands.begin("Tabs?")
    async with host.client() as client:
        for name in WORDS:
            await call(client, "sessions_send", **{name: "Consider width."})
            await call(client, "gallery_emit", **{name: "It is green."})
            assert [entry.body for entry in log.read().entries[-2:]] == ["Consider width.", "It is green."]


async def test_a_word_of_thanks_undoes_no_agreement(host: Host) -> None:
    log = host.commands.begin("Tabs?")
    log.path.write_text(log.path.read_text() + "\n## Note — User\n\n[CONSENSUS_REACHED]\n")
    ended = log.read().state.outcome
    assert ended is not None
    async with host.client() as client:
        refused = await call(client, "sessions_send", message="Thanks!", session=log.read().id)
        assert "has ended" in refused.error
        assert f"gallery_emit(session={log.read().id!r}" in refused.error
        assert log.read().state.outcome == ended
        await call(client, "gallery_emit", message="Thanks!", session=log.read().id)
    assert (log.read().entries[-1].body, log.read().state.outcome) == ("Thanks!", ended)


async def test_a_server_stops_what_it_began_and_else_only_a_file_that_is_confirmed(host: Host) -> None:
    log = host.commands.begin("Tabs?")
    async with host.client() as client:
        by_id = {"session": log.read().id, "confirm": True}
        unmeant: list[dict[str, object]] = [{}, {"confirm": True}, by_id, {"session": str(log.path)}]
        for named in unmeant:
            refused = await call(client, "sessions_stop", **named)
            assert f"sessions_stop(session={str(log.path)!r}, confirm=true)" in refused.error
            assert "about 'Tabs?'" in refused.error
    assert log.read().state.outcome is None


async def test_a_session_that_is_stopped_is_over_and_kept(host: Host) -> None:
    log = host.commands.begin("Tabs?")
    async with host.client() as client:
        stopped = await call(client, "sessions_stop", session=str(log.path), confirm=True, reason="enough")
        assert (stopped["status"], stopped["outcome"], stopped["stopped"]) == ("completed", "STOPPED", True)
        assert "[STOPPED: enough (by MCP)]" in log.path.read_text()
        assert not (await call(client, "sessions_stop", session=stopped["id"]))["stopped"]
        log.path.unlink()
        assert (await call(client, "sessions_history", session=stopped["id"]))["messages"]
        (row,) = (await call(client, "sessions_list"))["sessions"]
        assert row["id"] == stopped["id"]


async def test_the_whole_file_its_soundness_and_what_was_agreed_can_be_read(host: Host) -> None:
    log = host.commands.begin("Tabs?")
    person.say(log, "Well?")
    async with host.client() as client:
        checked = await call(client, "verify")
        (text,) = (await client.read_resource(f"dialog://{log.read().id}/transcript")).contents
        (agreed,) = (await client.read_resource(f"dialog://{log.read().id}/certificate")).contents
    assert (checked["sound"], len(checked["entries"])) == (True, 2)
    assert text_of(text) == log.path.read_text()
    assert text_of(agreed) == "null"


async def test_too_many_messages_are_refused(host: Host) -> None:
    log = host.commands.begin("Tabs?")
    for number in range(MOST):
        person.say(log, f"Thought {number}.", note=True, host="mcp")
    now = datetime.now(UTC)
    entries = log.read().entries
    assert pause(entries, now) is None
    assert pause(entries[:FREE], now) == 0
    assert 0 < (pause(entries[: FREE + 2], now) or 0) < (pause(entries[:MOST], now) or 0) <= 5
    assert pause(entries, now + timedelta(minutes=2)) == 0
    async with host.client() as client:
        assert "wait a minute" in (await call(client, "sessions_send", message="One more.")).error
    assert len(parse(log.path.read_bytes()).entries) == MOST + 1


async def test_two_that_send_at_once_are_counted_under_the_lock(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    log = host.commands.begin("Tabs?")
    for number in range(FREE + 1):
        person.say(log, f"Thought {number}.", note=True, host="mcp")
    full = len(log.read().entries) + 1
    monkeypatch.setenv("SESSION_MAX_MESSAGES", str(full))
    async with host.client() as one, host.client() as other:
        sent = await asyncio.gather(*(call(client, "sessions_send", message="Me.") for client in (one, other)))
    assert sorted(f"{full} are allowed" in answer.error for answer in sent) == [False, True]
    assert len(log.read().entries) == full


TURN_2 = "\n---\n\n## Turn 2 — Claude A\n\nTabs.\n\nTURN: B\n"
BOTH = {"A": {}, "B": {"working_on": None}}


def ended(mark: str) -> str:
    """A dialog that a person ended with that mark."""
    return opening("A", "B") + f"\n---\n\n## Note — User\n\n{mark}\n"


@cases(
    ("text", "around", "state"),
    [
        (opening("A", "B"), ({}, True), "spawning_agents"),
        (opening("A", "B"), ({"A": {}}, True), "spawning_agents"),
        (opening("A", "B"), (BOTH, True), "running"),
        (opening("A", "B") + TURN_2, ({"A": None}, True), "running"),
        (opening("A", "B") + TURN_2, ({}, False), "error"),
        (ended("[CONSENSUS_REACHED]"), (BOTH, False), "completed"),
        (ended("[DEADLOCK: load | measure]"), ({}, False), "completed"),
        (ended("[STOPPED: enough]"), ({}, False), "completed"),
        (ended("[STOPPED: time: the time limit of 5 minutes]"), ({}, False), "timeout"),
        (ended("[STOPPED: error: every agent failed]"), ({}, False), "error"),
    ],
)
def test_a_sessions_state_follows_from_file_and_daemons(
    text: str, around: tuple[dict[str, Any], bool], state: str
) -> None:
    assert state in SESSIONS
    assert state_of(session(parse(text.encode()), *around)) == state


def session(dialog: Dialog, healths: dict[str, Any], is_starting: bool = False) -> Situation:
    """A session of which daemons say that."""
    return Situation(dialog, Path("d.md"), (), healths, StateDir(Path("/s")), is_starting)


def test_a_session_whose_time_is_over_is_completing_until_its_last_round_is_done() -> None:
    keys = ["Max Time: 5 minutes", "Started: 2026-01-01 00:00:00"]
    here = Room(opening("A", "B", keys=keys), A=["x"] * 3, B=["y"] * 3)
    here.step("A")
    here.advance(10**9)
    here.step("B")
    assert here.dialog.state.closing
    assert state_of(session(here.dialog, BOTH)) == "completing"
    here.run()
    assert state_of(session(here.dialog, BOTH)) == "timeout"


@cases(
    ("working", "state"),
    [
        (None, "idle"),
        ({"turn": 2, "seconds": 1.0, "state": "thinking"}, "thinking"),
        ({"turn": 2, "seconds": 1.0, "state": "executing"}, "executing"),
    ],
)
def test_an_agents_state_follows_from_what_its_daemon_says(working: object, state: str) -> None:
    dialog = parse(opening("A", "B").encode())
    assert state in AGENTS
    assert agent_state(dialog, "A", {"A": {"working_on": working}}) == state
    assert agent_state(dialog, "B", {"A": {"working_on": working}}) == "stopped"
    assert agent_state(dialog, "B", {"A": {"working_on": working}}, ("B",)) == "elsewhere"
    over = parse(ended("[STOPPED: enough]").encode())
    assert agent_state(over, "A", {"A": {"working_on": working}}) == "stopped"
    here = Room(opening("A", "B"), A=[BackendError("overloaded", fix="wait")])
    here.step("A")
    assert agent_state(here.dialog, "A", {"A": {"working_on": working}}) == "failed"


async def test_limits_are_settable_also_by_variables(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    log = host.commands.begin("Tabs?")
    for name, value in (("AGENTS", "2"), ("MESSAGES", "1"), ("TOKENS", "777"), ("TIME", "60")):
        monkeypatch.setenv(f"SESSION_MAX_{name}", value)
    monkeypatch.setenv("AGENT_TIMEOUT", "42")
    monkeypatch.setenv("AGENT_MAX_TOKENS", "1000")
    settings = options.settings_for()
    assert (settings.session_max_tokens, settings.agent_timeout, settings.max_tokens) == (777, 42, 1000)
    async with host.client() as client:
        wrong = [
            (await call(client, "ask", question="x", agents=["rehearsal"] * 3), "SESSION_MAX_AGENTS"),
            (await call(client, "ask", question="x", limits={"max_turns": 2}), "SESSION_MAX_MESSAGES"),
            (await call(client, "ask", question="x", limits={"max_time": "2m"}), "SESSION_MAX_TIME"),
            (await call(client, "sessions_send", message="x"), "SESSION_MAX_MESSAGES"),
        ]
    for answer, words in wrong:
        assert words in answer.error, answer
    assert len(log.read().entries) == 1


def test_a_target_is_a_question_or_a_file_or_folder_of_the_project(host: Host) -> None:
    (host.folder / "schema.sql").write_text("CREATE TABLE t;")
    (host.folder / "src").mkdir()
    asked, project = on("mirror", Position(target="Is it right?"))
    assert (asked.question, asked.context, project) == ("Is it right?", [], None)
    asked, project = on("mirror", Position(target="schema.sql"))
    assert (asked.context, project) == ([str(host.folder / "schema.sql")], None)
    assert on("mirror", Position(target="src", allow_tools=True))[1] == host.folder / "src"
    assert on("mirror", Position(target="Is it right?", allow_tools=True))[1] == host.folder
    with pytest.raises(Refused, match="only tools can read"):
        on("mirror", Position(target="src"))
    with pytest.raises(BadInput, match="outside"):
        on("mirror", Position(target="/etc/hostname"))
    with pytest.raises(BadInput, match="no position"):
        on(" ", Position(target="x"))

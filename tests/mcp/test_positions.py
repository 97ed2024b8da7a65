"""Whole sessions by `ask` and `position_invoke`, with scripted agents in real daemons that outlive their client."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.command import PATIENCE, until
from tests.mcp.conftest import Answer, Host, call
from tests.support.standin import Answer as Standing
from tests.support.standin import Fail, Say, Script, Seen, StandIn

if TYPE_CHECKING:
    from mcp import Client

pytestmark = [pytest.mark.slow]


async def ended(client: Client, answer: Answer) -> Answer:
    """The session once it is over, waited for as the answer says."""
    deadline = time.monotonic() + PATIENCE
    while answer["status"] not in ("completed", "error", "timeout"):
        assert time.monotonic() < deadline, answer
        assert f"ask(session={answer['id']!r})" in answer["next"]
        answer = await call(client, "ask", session=answer["id"])
    return answer


@pytest.mark.parametrize(("position", "agents"), [("contemplator", 1), ("mirror", 2), ("circle", 3)])
async def test_a_position_is_taken_to_its_end(host: Host, position: str, agents: int) -> None:
    told: list[str] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append(message or "")

    async with host.client() as client:
        config = {"target": "Where should sessions live?", "agents": ["rehearsal"] * agents}
        result = await client.call_tool(
            "position_invoke", {"position": position, "config": config}, progress_callback=progress
        )
        begun = Answer(result.structured_content or {}, "" if not result.is_error else str(result.content))
        over = await ended(client, begun)
        assert (over["position"], over["status"]) == (position, "completed")
        assert over["outcome"] in ("CONSENSUS_REACHED", "DECIDED")
        assert over["decided"]
        assert len(over["agents"]) == agents
        assert {agent["status"] for agent in over["agents"]} == {"stopped"}
        assert told, "nobody was told how it goes"
        plan = await call(client, "plan", session=over["id"])
        assert over["decided"].split("\n")[0] in plan["markdown"]
        assert (await call(client, "verify", session=over["id"]))["sound"]


async def test_what_is_begun_outlives_its_client_and_is_listed(host: Host) -> None:
    async with host.client() as client:
        begun = await call(client, "ask", question="Tabs?", agents=["rehearsal", "rehearsal"], wait=0)
        assert begun["status"] in ("initializing", "spawning_agents", "running", "completing")
    async with host.client() as other:
        (row,) = (await call(other, "sessions_list", filter={"topic": "tabs"}))["sessions"]
        assert row["id"] == begun["id"]
        over = await ended(other, begun)
    assert (over["status"], over["outcome"]) == ("completed", "CONSENSUS_REACHED")
    until(lambda: not host.commands.daemons(), "the daemons' end")


async def test_it_recovers_from_an_agents_failure(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIALOGD_PACE", "1")
    async with host.client() as client:
        config = {"target": "Tabs?", "agents": ["rehearsal"] * 3}
        begun = await call(client, "position_invoke", position="circle", config=config, wait=0)
        until(lambda: "## Turn 3" in Path(begun["file"]).read_text(), "B's first turn")
        (victim,) = (daemon for daemon in host.commands.daemons() if daemon.id == "B")
        os.kill(victim.pid, signal.SIGKILL)
        over = await ended(client, begun)
        assert (over["status"], over["outcome"]) == ("completed", "CONSENSUS_REACHED"), over
        said = (await call(client, "sessions_history", session=begun["id"], agent="B"))["messages"]
    assert len(said) > 1, "B never came back"


def failing(times: int) -> Script:
    """A model whose service refuses its first requests, so many of them; then it signs whatever is proposed."""

    def script(seen: Seen) -> Standing:
        asked = re.findall(r"`\[AGREE: (P\d+)", seen.last.rpartition("\n\n")[2])
        proposed = asked or re.findall(r"CONSENSUS_PROPOSED (P\d+)", seen.prompt)
        if seen.number <= times:
            return Fail(400, message="This service has a bad day.")
        signs = "".join(f"[AGREE: {text}]\n[RESERVATION: nobody has counted]" for text in proposed[-1:])
        return Say(signs or "Whatever is simple to look after.")

    return script


async def circle(client: Client, monkeypatch: pytest.MonkeyPatch, service: StandIn, **config: object) -> Answer:
    """A circle of two scripted agents and C, which asks that service."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", service.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test-0123456789abcdef0123456789")
    agents = ["rehearsal", "rehearsal", "anthropic:claude-opus-5-5"]
    config = {"target": "Tabs?", "agents": agents, "limits": {"budget": "$5"}, **config}
    return await call(client, "position_invoke", position="circle", config=config)


async def test_an_agent_that_fails_once_is_asked_again_and_takes_part(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StandIn(failing(1)) as service:
        async with host.client() as client:
            over = await ended(client, await circle(client, monkeypatch, service))
            assert (over["status"], over["outcome"]) == ("completed", "CONSENSUS_REACHED"), over
            checked = await call(client, "verify", session=over["id"])
    text = Path(over["file"]).read_text(encoding="utf-8")
    assert text.count("[AGENT_ERROR: C | ") == 1
    assert "This service has a bad day." in text
    assert len(service.calls) > 1
    assert ", C in turn " in text.rpartition("[DECISION ")[2], text
    assert checked["sound"]


async def test_where_an_agent_keeps_failing_the_host_is_told_what_is_left_to_decide(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StandIn(failing(1000)) as service:
        async with host.client() as client:
            asked = await circle(client, monkeypatch, service)
            for _ in range(10):
                if "sessions_send" in asked["next"]:
                    break
                asked = await call(client, "ask", session=asked["id"])
            assert (asked["status"], asked["outcome"]) == ("running", None), asked
            assert {agent["id"]: agent["status"] for agent in asked["agents"]}["C"] == "failed"
            assert "`leave C`" in asked["reason"] + str(asked["questions"]) + str(asked["lastTurn"]), asked
            stopped = await call(client, "sessions_stop", session=asked["id"])
            assert stopped["status"] == "completed"


async def test_where_nobody_is_there_the_position_completes_with_who_is_left(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StandIn(failing(1000)) as service:
        async with host.client() as client:
            over = await ended(client, await circle(client, monkeypatch, service, unattended=True))
            assert (over["status"], over["outcome"]) == ("completed", "CONSENSUS_REACHED"), over
            assert over["decided"]
            assert "absent: C" in over["reason"], over
            plan = await call(client, "plan", session=over["id"])
    assert len(service.calls) == 2
    assert over["decided"].split("\n")[0] in plan["markdown"]


async def test_limits_stand_in_the_file(host: Host) -> None:
    async with host.client() as client:
        begun = await call(client, "ask", question="Tabs?", agents=["rehearsal"] * 2, limits={"max_turns": 7}, wait=0)
        text = Path(begun["file"]).read_text()
        assert "**Max Turns:** 7" in text
        assert "break_cycles = true" in text
        assert "**Budget:** 50,000 tokens" in text
        assert "**Max Time:** 30 minutes" in text
        await call(client, "sessions_stop", session=begun["id"])


async def test_a_question_to_the_person_comes_back_to_the_host(host: Host) -> None:
    async with host.client() as client:
        asked = await call(client, "ask", question="Tabs?", agents=["rehearsal:ask", "rehearsal:ask"])
        deadline = time.monotonic() + PATIENCE
        while not asked["questions"] and asked["status"] != "completed":
            assert time.monotonic() < deadline, asked
            await asyncio.sleep(0.2)
            asked = await call(client, "ask", session=asked["id"])
        assert asked["questions"], asked
        assert "sessions_send" in asked["next"]
        await call(client, "sessions_send", session=asked["id"], message="Four columns.")
        over = await ended(client, await call(client, "ask", session=asked["id"]))
        assert over["status"] == "completed"


async def test_a_session_that_runs_out_of_time_has_its_closing_round_first(host: Host) -> None:
    async with host.client() as client:
        cast = ["rehearsal:endless", "rehearsal:endless"]
        asked = await call(client, "ask", question="Tabs?", agents=cast, limits={"max_time": "1 second"})
        over = await ended(client, asked)
        assert (over["status"], over["outcome"]) == ("timeout", "STOPPED")
        assert "[ROUND: closing | the time limit of 1 second]" in Path(over["file"]).read_text()
        assert (await call(client, "plan", session=over["id"]))["markdown"]

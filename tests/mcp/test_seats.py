"""A host that takes part itself: it holds a live seat by `wait_for_turn` and `reply`, before real daemons."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from dialogd.cli import options
from dialogd.cli.launch import on_its_own
from dialogd.store.registry import start_of
from tests.mcp.conftest import Answer, Host, call
from tests.support.forked import fork
from tests.support.pair import Pair, until

if TYPE_CHECKING:
    from mcp import Client

SUMMARY = "## Consensus Summary\n\nTabs.\n\n[CONSENSUS_REACHED]"


@pytest.fixture
def room(host: Host, tmp_path: Path) -> Iterator[Pair]:
    """Two live seats, A and B, under the server's own state directory; the dialog is begun, and A owes a turn."""
    with Pair(tmp_path, "AB", launch=fork, backend="live") as room:
        room.begin("Tabs?")
        room.start()
        room.notify()
        yield room


async def settle(client: Client, agent: str, text: str) -> Answer:
    """Answer the turn that a seat owes, and the closing question about it."""
    turn = await call(client, "wait_for_turn", agent=agent)
    assert turn["status"] == "owed", turn
    assert turn["debt"] in turn["next"]
    came = await call(client, "reply", debt=turn["debt"], text=text)
    if came["status"] == "asked":
        question = await call(client, "wait_for_turn", agent=agent)
        form = re.findall(r"`(\[[A-Z][^`]*)`", question["text"].rpartition("\n\n")[2])[0]
        came = await call(client, "reply", debt=question["debt"], text=form)
    return came


async def test_two_hosts_hold_a_dialog_to_its_end(host: Host, room: Pair) -> None:
    async with host.client() as one, host.client() as other:
        waiting = await call(other, "wait_for_turn", agent="B", wait=0)
        assert waiting["status"] in ("not_my_turn", "not_started")  # A is told first that the dialog has begun
        assert waiting["debt"] == ""
        assert "again" in waiting["next"]
        assert (await settle(one, "A", f"I say tabs.\n\n{SUMMARY}"))["status"] == "appended"
        asked = await call(other, "wait_for_turn", agent="b", session=str(room.file))
        assert "I say tabs." in asked["text"]
        assert "never an instruction" not in asked["text"]
        await settle(other, "B", "[AGREE: P1]")
        over = await call(one, "wait_for_turn", agent="A", wait=45)
        assert (over["status"], over["next"]) == ("ended", "It is over.")
        (row,) = (await call(one, "sessions_list"))["sessions"]
        assert row["status"] == "completed"


async def test_who_stops_waiting_has_fetched_nothing(host: Host, room: Pair) -> None:
    from dialogd.mcp.server import Tools

    waiting = asyncio.create_task(Tools(options.settings_for()).wait_for_turn(agent="B"))
    calls = psutil.Process()

    def is_open() -> bool:
        here = (one for one in calls.net_connections("tcp") if one.raddr and one.raddr.port == room["B"].port)
        return any(one.status == psutil.CONN_ESTABLISHED for one in here)

    await asyncio.to_thread(until, is_open, "the question to B's daemon")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with host.client() as client:
        await settle(client, "A", "I say tabs.\n\n[PROPOSAL: tabs]")
        delivery: dict[str, Any] = {}

        def is_owed() -> bool:
            delivery.update((room["B"].health() or {}).get("delivery") or {})
            return bool(delivery.get("debt"))

        await asyncio.to_thread(until, is_owed, "the turn of B")
        await asyncio.to_thread(until, lambda: not is_open(), "the end of the wait")
        health = room["B"].health() or {}
        assert (health["delivery"]["opened"], health["working_on"]) == (False, None), health


async def test_a_reply_that_nobody_waits_for_is_refused(host: Host, room: Pair) -> None:
    before = room.file.read_bytes()
    async with host.client() as client:
        turn = await call(client, "wait_for_turn", agent="A")
        wrong = [
            (await call(client, "reply", debt="A-00000000", text="x"), turn["debt"]),
            (await call(client, "reply", debt="Z-00000000", text="x"), "A in"),
            (await call(client, "reply", debt=turn["debt"], text="  "), "empty"),
            (await call(client, "wait_for_turn"), "several live seats"),
            (await call(client, "wait_for_turn", agent="A", page=9), "page 9"),
            (await call(client, "wait_for_turn", agent="A", wait=46), "45"),
        ]
    for answer, words in wrong:
        assert words in answer.error, answer
    assert room.file.read_bytes() == before


async def test_without_a_live_seat_it_says_how_to_take_one(host: Host) -> None:
    async with host.client() as client:
        assert "--backend live" in (await call(client, "wait_for_turn")).error
        assert "--backend live" in (await call(client, "reply", debt="B-1f3a91c2", text="x")).error


def sit(room: Pair, agent: str, session: str | None = None) -> None:
    """List that seat as held by this session; by default by this very process, which the server is or belongs to."""
    own = f"claude:{os.getpid()}:{start_of(os.getpid())}"
    (entry,) = (room.state_dir / "running").glob(f"*-{agent}.json")
    entry.write_text(json.dumps({**json.loads(entry.read_text()), "session": own if session is None else session}))


@pytest.mark.slow
async def test_what_a_seat_sends_is_its_turn_and_only_while_it_owes_one(host: Host, room: Pair) -> None:
    async with host.client() as client:
        turn = await call(client, "wait_for_turn", agent="A")
        sit(room, "B")
        early = await call(client, "sessions_send", message="Spaces!")
        assert "owes no turn" in early.error
        assert "holds the seat B" in (await call(client, "reply", debt=turn["debt"], text="x")).error
        assert "holds the seat B" in (await call(client, "wait_for_turn", agent="A")).error
        sit(room, "B", "")
        await call(client, "reply", debt=turn["debt"], text="I say tabs.\n\n[PROPOSAL: tabs]")
        sit(room, "B")
        assert "I say tabs." in (await call(client, "wait_for_turn"))["text"]
        assert "SHOUT" in (await call(client, "sessions_send", message="x", type="SHOUT")).error
        sent = await call(client, "sessions_send", message="Why not spaces?", type="QUESTION")
        assert (sent["status"], sent["turn"]) == ("appended", 3)
        emitted = await call(client, "gallery_emit", message="The build is green.")
        assert "for the person alone" in (await call(client, "gallery_emit", message="x", type="IDEA")).error
        stopped = await call(client, "sessions_stop", session=str(room.file), confirm=True)
    dialog = room.dialog()
    spoken = [(entry.by, entry.via) for entry in dialog.entries]
    assert spoken[:4] == [("USER", ""), ("A", ""), ("B", ""), ("USER", "B")]
    assert dialog.entries[2].mark("QUESTION") is not None
    assert emitted["turn"] is None
    assert (stopped["outcome"], dialog.entries[-1].via) == ("STOPPED", "B")


async def test_a_seat_sees_no_answer_of_the_round_before_its_own(host: Host, tmp_path: Path) -> None:
    from mcp import MCPError

    with Pair(tmp_path, "AB", launch=fork, backend="live") as room:
        room.begin("Tabs?", turn="A, B", setup='order = "parallel"')
        room.start()
        room.notify()
        async with host.client() as client:
            turn = await call(client, "wait_for_turn", agent="A")
            await call(client, "reply", debt=turn["debt"], text="I say tabs.")
            assert "I say tabs." in str((await call(client, "sessions_history")).facts)
            sit(room, "B")
            assert "I say tabs." not in str((await call(client, "sessions_history"))["messages"])
            assert "before its own answer" in (await call(client, "plan")).error
            assert "wait_for_turn" in (await call(client, "ask", session=str(room.file), wait=0)).error
            (tmp_path / "link").symlink_to(tmp_path)
            other = str(tmp_path / "link" / room.file.name)
            assert "I say tabs." not in str((await call(client, "sessions_history", session=other))["messages"])
            dialog = room.dialog()
            with pytest.raises(MCPError):
                await client.read_resource(f"dialog://{dialog.id}/transcript")


@pytest.mark.slow
async def test_over_http_a_seat_is_known_by_its_connection(host: Host, room: Pair) -> None:
    from mcp import Client

    sit(room, "B")
    output = host.folder / "apart.out"
    server = on_its_own(host.commands.words(["mcp", "--http", "--port", "0"]), output, host.commands.environment)
    try:
        until(lambda: output.exists() and "/mcp" in output.read_text(), "its address")
        async with Client(output.read_text().strip()) as client:
            assert "owes no turn" in (await call(client, "sessions_send", message="Spaces!")).error
            assert "for the person alone" in (await call(client, "gallery_emit", message="x", type="IDEA")).error
            sit(room, "B", "")
            assert (await call(client, "sessions_send", message="Well?"))["turn"] == 2
    finally:
        os.kill(server, signal.SIGTERM)

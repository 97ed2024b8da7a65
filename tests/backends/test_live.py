"""The `live` backend by itself: when it knocks at a session, when it knocks again, and when it gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dialogd.backends import Delivery, Options, Request, Usage
from dialogd.backends.live import UNASKED, Live
from dialogd.backends.parts import Part, Prompt
from dialogd.errors import BackendError, BadInput, Refused
from dialogd.protocol.grammar import parse
from tests.support import open_sessions
from tests.support.backend_contract import DIALOG
from tests.support.open_sessions import Claude, started_at
from tests.support.pair import PATIENCE, stretched

QUESTION = Part("1", "## Turn 1, by the person\n\nPostgres or Redis?", "USER")


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Claude]:
    folder = tmp_path / "config"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(folder))
    with open_sessions.claude(folder, tmp_path / "shop") as one:
        yield one


def seat(session: Claude, folder: Path, behind: str = "") -> Live:
    """The seat of that session; it looks often, and is soon impatient."""
    live = Live(Options(session=f"claude:{session.pid}:{started_at(session.pid)}{behind}", state=folder))
    live.look, live.deaf, live.rest = 0.02, stretched(0.3), 0.06
    return live


def request(prompt: Prompt, re_: str = "1") -> Request:
    dialog = parse(DIALOG)
    me = dialog.header.agent("A")
    assert me is not None
    return Request(dialog, me, 2, Path("/tmp/no-such-dialog.md"), lambda: prompt, re=re_, chain=f"c0ffee{re_}")


PROMPT = Prompt("You are A.", (Part("header", "Topic: sessions"), QUESTION), "This is turn 2.")


@asynccontextmanager
async def asked(live: Live, turn: Request | None = None) -> AsyncIterator[list[str | Usage | Delivery | BackendError]]:
    """The turn is asked for; the list grows by what comes of it, at last by the error, if any."""
    found: list[str | Usage | Delivery | BackendError] = []

    async def run() -> None:
        try:
            async for piece in live.reply(turn or request(PROMPT)):
                found.append(piece)
        except BackendError as error:
            found.append(error)

    task = asyncio.create_task(run())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], object], what: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)
    assert condition(), what


def deliveries(found: list[str | Usage | Delivery | BackendError]) -> list[tuple[str, int]]:
    return [(one.what, one.knocks) for one in found if isinstance(one, Delivery)]


@pytest.mark.slow
async def test_a_session_is_knocked_at_and_replies(session: Claude, tmp_path: Path) -> None:
    live = seat(session, tmp_path)
    async with asked(live) as found:
        await until(session.knocks, "the knock")
        session.change(status="busy")
        line, *_ = session.knocks()
        assert "turn 2 is yours" in line
        assert "dialogd live turn" in line
        assert "Postgres" not in line
        opened = live.open()
        known = len(session.knocks())  # one, where nothing held this up
        await asyncio.sleep(2 * live.deaf)
        assert len(session.knocks()) == known
        assert live.deliver(opened[0].debt, "Postgres.") == "taken"
        await until(lambda: "Postgres." in found, "the reply")
    knocks = [("knocked", number) for number in range(1, known + 1)]
    assert deliveries(found) == [*knocks, ("opened", known), ("replied", known)]
    assert [one.usd for one in found if isinstance(one, Usage)] == [None, None], "nobody knows what it cost"


async def test_a_knock_that_cannot_be_sent_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    with open_sessions.codex(tmp_path / "codex", tmp_path / "shop") as one:
        live = Live(Options(session=f"codex:{one.thread}", state=tmp_path))
        (one.home / "bin" / "codex").chmod(0o644)
        async with asked(live) as found:
            await until(lambda: found and isinstance(found[-1], BackendError), "the error")
    error = found[-1]
    assert isinstance(error, BackendError)
    assert "ermission denied" in error.cause


async def test_a_reply_that_comes_as_the_seat_gives_up_counts(session: Claude, tmp_path: Path) -> None:
    live = seat(session, tmp_path)
    async with asked(live) as found:
        await until(session.knocks, "the knock")
        opened = live.open()
        knocking = next(one for one in asyncio.all_tasks() if "_wake" in repr(one.get_coro()))
        async with asyncio.timeout(PATIENCE):
            while not knocking.done():
                await asyncio.sleep(0)
        assert live.deliver(opened[0].debt, "Postgres.") == "taken"
        await until(lambda: "Postgres." in found, "the reply")
    assert ("replied", 3) in deliveries(found)


@pytest.mark.slow
async def test_a_session_that_rests_without_a_reply_is_knocked_at_again(session: Claude, tmp_path: Path) -> None:
    live = seat(session, tmp_path)
    async with asked(live) as found:
        await until(lambda: len(session.knocks()) == 2, "the second knock")
        live.open()
        await until(lambda: isinstance(found[-1], BackendError), "the error")
    error = found[-1]
    assert isinstance(error, BackendError)
    assert (error.kind, error.cause, error.retryable) == ("silent", "silent", False)
    assert "dialogd retry" in error.fix
    first, second, third = session.knocks()
    assert "dialogd: turn 2 is yours" in first
    assert "dialogd, the second time: turn 2 is yours, and you have not replied yet" in second
    assert "dialogd, the third and last time: turn 2 is yours" in third
    assert [what for what, _ in deliveries(found)].count("knocked") == len(session.knocks()) == 3
    assert deliveries(found)[-1] == ("silent", 3)
    assert live.owed is None


async def test_a_question_about_a_reply_has_a_knock_of_its_own(session: Claude, tmp_path: Path) -> None:
    live = seat(session, tmp_path)
    for words, more in (("dialogd: a question about your reply", {"question": "Do you mean it?"}),
                        ("dialogd: one more question about your reply", {"question": "Do you? Once more."}),
                        ("is to be written anew", {"lacking": "the text"})):  # fmt: skip
        before = len(session.knocks())
        async with asked(live, replace(request(PROMPT), **more)):
            await until(lambda before=before: len(session.knocks()) > before, "the knock")
            assert words in session.knocks()[before]


@pytest.mark.slow
async def test_a_session_that_waits_for_its_user_is_left_alone(session: Claude, tmp_path: Path) -> None:
    live = seat(session, tmp_path)
    async with asked(live) as found:
        await until(session.knocks, "the knock")
        session.change(status="waiting", waitingFor="permission prompt")
        known = len(session.knocks())
        await until(lambda: ("waiting", known) in deliveries(found), "the word of it")
        assert live.owed.waits == "its session is waiting (permission prompt): look at that terminal"
        live.open()
        assert not live.is_opened, "nobody works on it"
        await asyncio.sleep(2 * live.deaf)
        assert len(session.knocks()) == known
        assert deliveries(found).count(("waiting", known)) == 1
        session.change(status="busy", waitingFor=None)
        await until(lambda: live.is_opened, "the end of its waiting")


async def test_a_session_that_has_ended_is_said_to_be_gone(session: Claude, tmp_path: Path) -> None:
    live = seat(session, tmp_path)
    async with asked(live) as found:
        await until(session.knocks, "the knock")
        session.process.kill()
        session.process.wait()
        await until(lambda: isinstance(found[-1], BackendError), "the error")
    error = found[-1]
    assert isinstance(error, BackendError)
    assert error.kind == "gone"
    assert "dialogd live join" in error.fix


async def test_a_session_that_has_not_agreed_is_told_nothing(session: Claude, tmp_path: Path) -> None:
    live = seat(session, tmp_path, behind=UNASKED)
    async with asked(live):
        await until(session.knocks, "the knock")
        assert "dialogd live accept" in session.knocks()[0]
        assert "turn" not in session.knocks()[0]
        with pytest.raises(Refused, match="not agreed"):
            live.open()
        live.accept()
        assert live.open() is not None
    assert seat(session, tmp_path, behind=UNASKED).is_accepted


async def test_what_is_new_is_shown_to_who_has_read_the_rest(session: Claude, tmp_path: Path) -> None:
    live = seat(session, tmp_path)
    async with asked(live) as found:
        await until(lambda: live.owed is not None, "the turn")
        opened = live.open()
        assert "You are A." in opened[1]
        live.deliver(opened[0].debt, "Postgres.")
        await until(lambda: "Postgres." in found, "the reply")
    mine, other = Part("2", "## Turn 2, by A (you)\n\nPostgres.", "A"), Part("3", "## Turn 3, by B\n\nRedis.", "B")
    text = Part("text-P1", "## The text of P1, in full\n\nKeep both.")
    new_text = Part("text-P2", "## The text of P2, in full\n\nRedis.", re="3")
    later = request(Prompt("You are A.", (*PROMPT.parts, mine, other), "This is turn 4.", (text, new_text)), "3")
    again = seat(session, tmp_path)
    async with asked(again, later):
        await until(lambda: again.owed is not None, "the turn")
        new, whole = again.open(), again.open(full=True)
        for part, is_new in (("Redis.", True), ("Keep both.", True), ("turn 4", True), ("You are A.", False)):
            assert (part in new[1]) == is_new, part
        assert "by A (you)" not in new[1]
        assert all(part in whole[1] for part in ("You are A.", "Postgres or Redis?", "by A (you)", "Redis."))
    stranger = Live(Options(state=tmp_path))  # such as a terminal
    async with asked(stranger, later):
        await until(lambda: stranger.owed is not None, "the turn")
        opened = stranger.open()
        assert "You are A." in opened[1]


def test_a_page_that_is_none_is_refused() -> None:
    async def look() -> None:
        live = Live(Options())
        async with asked(live):
            await until(lambda: live.owed is not None, "the turn")
            with pytest.raises(BadInput, match="no page 2"):
                live.open(2)

    asyncio.run(look())

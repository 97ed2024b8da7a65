"""What was bought is kept: a question back that fails, a person who steps in, a disk that refuses lose no reply."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

from dialogd import person
from dialogd.backends import Request, Tool, Usage
from dialogd.errors import DialogdError
from dialogd.protocol.state import Dialog
from dialogd.store.journal import Received
from tests.logfile.files import log_of
from tests.support.pair import PATIENCE
from tests.support.room import opening
from tests.turns.minds import (
    WRONG,
    Mind,
    agent_with,
    dialog_in,
    interrupted,
    step,
)

UNCLEAR = "Postgres it is.\n\n[CONSENSUS_REACHED]"


async def test_a_failure_is_not_bought_again_while_the_file_refuses_its_note(tmp_path: Path) -> None:
    path, mind = dialog_in(tmp_path), Mind((0.1, WRONG), (0.1, WRONG), (0.1, WRONG))

    def open_to_all(_log: object, _text: str) -> None:
        path.chmod(0o666)

    async with agent_with(path, mind) as agent:
        with suppress(DialogdError):
            await interrupted(agent, lambda: len(mind.asked) == 1, open_to_all, path)
        assert len(mind.asked) == 1
        path.chmod(0o600)
        await agent.step()
    assert len(mind.asked) == 1
    last = log_of(path).read().last
    assert last.mark("AGENT_ERROR")


async def test_a_reply_to_another_question_is_no_reply_to_this_one(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    opened = log_of(path).read().last
    log_of(path).journals.of("A").reply(Received(("A", "1", opened.chain), "Postgres.", {}, 5))
    path.write_text(path.read_text(encoding="utf-8").replace("Postgres or Redis?", "What is for lunch?"))
    mind = Mind(("Soup.",))
    dialog = await step(path, mind)
    assert [entry.body for entry in dialog.turns[1:]] == ["Soup."]
    assert "Postgres." in mind.asked[0].text


async def test_a_reply_is_not_bought_again_where_the_person_cut_turns_during_its_call(tmp_path: Path) -> None:
    path, setup = tmp_path / "dialog.md", '## Setup\n\n```toml\norder = "parallel"\n```'
    before = opening("A", "B", "C", turn="A, B, C", more=setup).encode()
    path.write_bytes(before)
    path.chmod(0o600)
    await step(path, Mind(("From A.",)), "A")

    def cut(_log: object, _text: str) -> None:
        path.write_bytes(before + b"\nsomebody types")

    mind = Mind((0.3, "From B."), ("Bought again.",))
    async with agent_with(path, mind, "B") as agent:
        await interrupted(agent, lambda: len(mind.asked) == 1, cut, path)
        assert path.read_bytes() == before + b"\nsomebody types"
        path.write_bytes(before)
        agent.seen.nudge()  # a dialog cut back to its first turn begins with a notify
        await agent.step()
    assert len(mind.asked) == 1
    assert log_of(path).read().turns[-1].body == "From B."


async def test_a_reply_that_ends_while_the_file_is_looked_at_is_kept_whole(tmp_path: Path) -> None:
    path, disk = dialog_in(tmp_path), threading.Event()

    class Ending(Mind):
        """Ends its reply while the agent waits for the disk."""

        async def reply(self, request: Request) -> AsyncIterator[str | Usage | Tool]:
            """A text without a blank at its end."""
            self.asked.append(request.prompt())
            yield "Redis, after all"
            busy = asyncio.ensure_future(agent.on_disk(lambda: disk.wait(PATIENCE)))
            await asyncio.sleep(0)
            person.say(log_of(path), "Consider the cost.")
            agent.wake()
            for _ in range(5):
                await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.05, disk.set)
            assert not busy.done()

    async with agent_with(path, Ending()) as agent:
        await agent.step()
    assert log_of(path).journals.of("A").drafts() == ("Redis, after all",)


async def test_a_sealed_answer_stands_in_no_file_before_all_are_sealed(tmp_path: Path) -> None:
    path = dialog_in(tmp_path, turn="A, B")
    setup = '## Setup\n\n```toml\nsealed = true\norder = "parallel"\n```\n\n## Rules'
    path.write_text(path.read_text(encoding="utf-8").replace("## Rules", setup), encoding="utf-8")
    dialog = await step(path, Mind(("Postgres, for its backups.",)))
    assert [mark.name for mark in dialog.last.marks] == ["SEALED"]
    assert dialog.state.owing == ("A", "B")
    assert "backups" not in path.read_text(encoding="utf-8")
    received = log_of(path).journals.of("A").received()
    assert received.text == "Postgres, for its backups."


async def test_a_reply_is_read_by_the_kinds_of_its_own_dialog(tmp_path: Path) -> None:
    path, said = dialog_in(tmp_path), "I have looked.\n\n[RESULTS: it holds]\n\nTURN: User"
    async with agent_with(path, Mind((said,), (said,))) as agent:
        await agent.step()
        setup = '## Setup\n\n```toml\n[messages]\nRESULTS = "what was found"\n```\n\n## Rules'
        path.write_text(path.read_text(encoding="utf-8").replace("## Rules", setup), encoding="utf-8")
        person.say(log_of(path), "And again?", to="A")
        agent.wake()
        await agent.step()
    first, second = (entry for entry in log_of(path).read().turns if entry.by == "A")
    assert first.mark("RESULTS") is None
    assert str(second.mark("RESULTS")) == "[RESULTS: it holds]"


async def test_a_save_that_is_read_while_a_look_ends_is_not_overlooked(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)
    async with agent_with(path, Mind(("Postgres, for its backups.\n\nTURN: User",))) as agent:
        await agent.step()
        before = await agent.look()
        turn, is_saved = before.turns[-1], threading.Event()
        person.say(log_of(path), "Consider the cost.")

        def save() -> None:
            data = path.read_bytes()
            path.write_bytes(data[: turn.start] + data[turn.end :])
            agent.file.read()
            is_saved.set()

        looking = asyncio.ensure_future(agent.look())
        await asyncio.sleep(0)
        saving = asyncio.ensure_future(agent.on_disk(save))
        await asyncio.sleep(0)
        assert is_saved.wait(PATIENCE)  # the event loop hears of both at once
        await asyncio.gather(looking, saving)
        now = await agent.look()
        assert now is not None
        assert "restore" in agent.missing(now)


async def test_what_comes_just_after_an_agents_own_turn_is_seen_at_once(tmp_path: Path) -> None:
    path = dialog_in(tmp_path)

    class Person:
        """Speaks as soon as the agent has written its first turn."""

        def written(self, dialog: Dialog) -> None:
            """Say something, once."""
            if len(dialog.turns) == 2:
                person.say(log_of(path), "And what does it cost?", to="A")
                agent.wake()

        def ended(self, dialog: Dialog) -> None:
            """Nothing ends here."""

    async with agent_with(path, Mind(("Postgres.",), ("Nothing.",))) as agent:
        agent.followers.append(Person())
        await agent.step()
        await agent.step()
    assert [(entry.by, entry.body) for entry in log_of(path).read().turns[2:]] == [
        ("USER", "And what does it cost?"),
        ("A", "Nothing."),
    ]

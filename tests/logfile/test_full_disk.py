"""A disk that takes only part of what is written: nothing is acknowledged, nothing lost, nothing written twice."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dialogd.agent.loop import Agent
from dialogd.errors import DialogdError, StorageError
from dialogd.protocol.decide import Action
from tests.logfile.agents import Counting, agent_at
from tests.logfile.files import OPENING, dialog_file, log_of, naive_read, times, turn

LONG = OPENING.replace("Postgres or Redis?", "Postgres or Redis?\n\n" + "A long question. " * 2000)


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: the write that would is cut short, the next one refused (EFBIG)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def step(agent: Agent) -> Action | DialogdError:
    try:
        return await agent.step()
    except DialogdError as error:
        return error


async def entry_size(folder: Path) -> int:
    """Bytes of the entry that A would append, at least: how long the call took may have up to three digits more."""
    folder.mkdir()
    path = dialog_file(folder, text=LONG)
    async with agent_at(path) as agent:
        await agent.step()
        last = agent.file.read().last
    return path.stat().st_size - len(LONG.encode()) - len(last.frame.ms) + 1


async def test_a_reply_for_which_there_was_no_room_is_written_once_there_is(tmp_path: Path) -> None:
    size = await entry_size(tmp_path / "rehearsal")
    before = LONG.encode()
    for room in (*range(0, size, 17), size - 1):
        folder, backend = tmp_path / str(room), Counting()
        folder.mkdir()
        path = dialog_file(folder, text=LONG)
        async with agent_at(path, "A", backend) as agent:
            with files_up_to(len(before) + room):
                await step(agent)
                await step(agent)
            assert path.read_bytes()[: len(before)] == before, room
            assert path.stat().st_size <= len(before) + room, room
            assert times(path, "A-2") == 0, room
            for _ in range(3):
                await step(agent)
            assert times(path, "A-2") == 1, room
            log_of(path).append(turn("later", "B", "A"), agent.file.journals.of("B"))
            await step(agent)
        assert [entry.number for entry in naive_read(path) if entry.sound] == [2, 3, 4], room
        assert backend.asked == [2, 4], room
        assert agent.journal.drafts() == (), room


async def test_a_restart_on_the_full_disk_loses_nothing(tmp_path: Path) -> None:
    size = await entry_size(tmp_path / "rehearsal")
    for room in range(0, size, 61):
        folder, backend = tmp_path / str(room), Counting()
        folder.mkdir()
        path = dialog_file(folder, text=LONG)
        for full in (True, True, False):
            async with agent_at(path, "A", backend) as agent:
                if full:
                    with files_up_to(len(LONG.encode()) + room):
                        await step(agent)
                else:
                    await step(agent)
        assert backend.asked == [2], room
        assert times(path, "A-2") == 1, room


async def test_a_journal_that_has_no_room_keeps_the_dialog_as_it_was(tmp_path: Path) -> None:
    for room in range(0, 900, 37):
        folder, backend = tmp_path / str(room), Counting()
        folder.mkdir()
        path = dialog_file(folder)
        before = path.read_bytes()
        async with agent_at(path, "A", backend) as agent:
            with files_up_to(room):
                await step(agent)
            assert path.read_bytes() == before or room > len(before), room
            for _ in range(3):
                await step(agent)
        assert backend.asked == [2], room
        assert times(path, "A-2") == 1, room
        assert agent.journal.drafts() == (), room


def test_an_attachment_that_has_no_room_is_not_linked(tmp_path: Path) -> None:
    from dialogd.protocol.model import Addition, Draft

    path = dialog_file(tmp_path, text=LONG)
    log = log_of(path)
    whole = "word " * 20_000
    addition = Addition(Draft("A", "Claude A", 2, "see mine", turn=("B",)), "mine.md", whole)
    with files_up_to(60_000), pytest.raises(StorageError):
        log.append(lambda _: addition, log.journals.of("A"))
    assert path.read_bytes() == LONG.encode()
    log.append(lambda _: addition, log.journals.of("A"))
    assert (tmp_path / "dialog.md.d" / "mine.md").read_text() == whole
    assert times(path, "mine") == 1


async def test_a_state_directory_that_vanishes_is_made_anew(tmp_path: Path) -> None:
    path, backend = dialog_file(tmp_path), Counting()
    state = tmp_path / "state"
    async with agent_at(path, "A", backend) as agent:
        await agent.step()
        other = log_of(path, "elsewhere")
        other.append(turn("B-3", "B", "A"), other.journals.of("B"))
        shutil.rmtree(state)
        agent.wake()
        await agent.step()
    assert [entry.number for entry in naive_read(path) if entry.sound] == [2, 3, 4]
    assert [record["kind"] for record in log_of(path).journals.of("A").records()][-3:] == ["reply", "intent", "done"]
    assert state.stat().st_mode & 0o777 == 0o700


def test_after_an_append_without_room_the_file_can_be_read_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    path = dialog_file(tmp_path, text=LONG)
    log = log_of(path)
    with files_up_to(len(LONG.encode()) + 80), pytest.raises(StorageError, match="file too large") as caught:
        log.append(turn("mine"), log.journals.of("A"))
    assert str(path) in str(caught.value)
    assert caught.value.fix
    assert log.read().state.owing == ("A",)
    assert log_of(path).read().state.number == 1


def test_a_journal_that_cannot_be_written_says_what_to_do(tmp_path: Path) -> None:
    path = dialog_file(tmp_path)
    log = log_of(path)
    with files_up_to(10), pytest.raises(StorageError) as full:
        log.append(turn("mine"), log.journals.of("A"))
    assert "free some space" in full.value.fix
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "state").write_text("a file in its place")
    with pytest.raises(StorageError, match="not a directory") as gone:
        log.append(turn("mine"), log.journals.of("A"))
    assert gone.value.fix == "check the disk, or name another DIALOGD_STATE_DIR"

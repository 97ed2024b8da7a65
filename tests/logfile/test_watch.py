"""Others touch the file: the watch says so, once for many writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dialogd.store.logfile import LogFile, watch
from tests.logfile.files import dialog_file, log_of, turn
from tests.support.pair import PATIENCE, stretched

Touch = Callable[[Path], None]


def appended(path: Path) -> None:
    """`>>`."""
    with path.open("ab") as file:
        file.write(b"\n")


def saved_in_place(path: Path) -> None:
    """As nano does."""
    path.write_bytes(path.read_bytes())


def replaced(path: Path) -> None:
    """As vim does."""
    new = path.with_name("new")
    new.write_bytes(path.read_bytes())
    new.replace(path)


def deleted(path: Path) -> None:
    """Gone."""
    path.unlink()


def made(path: Path) -> None:
    """There again."""
    dialog_file(path.parent)


@asynccontextmanager
async def running(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Do it beside what is done here."""
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    try:
        yield
    finally:
        assert not task.done()
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.slow
async def test_each_way_to_touch_the_file_is_noticed_and_nothing_else(tmp_path: Path) -> None:
    path, calls = dialog_file(tmp_path), asyncio.Queue[int]()
    touches: list[Touch] = [appended, replaced, appended, saved_in_place, deleted, made, appended]
    async with running(watch(path, lambda: calls.put_nowait(1))):
        for touch in touches:
            touch(path)
            await asyncio.wait_for(calls.get(), PATIENCE)
            while not calls.empty():
                calls.get_nowait()
        await asyncio.sleep(stretched(0.3))  # one touch may be told in two parts
        while not calls.empty():
            calls.get_nowait()
        other = tmp_path / "other.md"
        for _ in range(3):
            other.write_bytes(b"more")
            await asyncio.sleep(0.05)
        assert calls.empty()


@pytest.mark.slow
async def test_many_writes_in_a_row_are_one_change(tmp_path: Path) -> None:
    path, count = dialog_file(tmp_path), 0

    def changed() -> None:
        nonlocal count
        count += 1

    async with running(watch(path, changed)):
        began = time.monotonic()
        for _ in range(20):
            appended(path)
        took = time.monotonic() - began
        await asyncio.sleep(stretched(0.3))
    assert 1 <= count <= 2 + took / 0.05  # of a row that takes longer than the library waits, each part is a change


def long_log(path: Path) -> LogFile:
    """A dialog of some slices, as it was read."""
    log = log_of(path)
    for number in range(4):
        log.append(turn(f"long-{number}", size=256 * 1024), log.journals.of("A"))
    log.read()
    return log


@pytest.mark.parametrize("typed", ["\nAnd Redis?\n\nTURN: A\n", "\nAnd Red"])
def test_before_a_paid_call_all_is_read_where_somebody_typed(tmp_path: Path, typed: str) -> None:
    log = long_log(dialog_file(tmp_path))
    other = log_of(log.path)
    other.append(turn("theirs", "B", "A"), other.journals.of("B"))
    log.read(sure=True)  # the person has written the question
    other.append(turn("more", "A", "B"), other.journals.of("B"))
    before = log.full_reads
    assert log.read(sure=True).state.number == 7
    assert log.full_reads == before
    edited = log.path.read_bytes().replace(b"Postgres or Redis?", b"Postgres or Mongo?", 1)
    log.path.write_bytes(edited + typed.encode())
    assert log.read().entries[0].body.strip() == "Postgres or Redis?"
    assert log.quick_read(sure=True) is None
    assert log.read(sure=True).entries[0].body.strip() == "Postgres or Mongo?"
    assert log.read(sure=True) is log.quick_read(sure=True)

"""Others touch the file: the watch says so, once for many writes; what is changed without a trace is found as well."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dialogd.store.logfile import LogFile, compare, watch
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


def changed_without_a_trace(path: Path) -> None:
    """A word far above, in the same length, and the time of the last change put back."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(b"Postgres or Redis?"))
        file.write(b"Postgres or Mongo?")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_what_was_changed_without_a_trace_is_found(tmp_path: Path) -> None:
    log = long_log(dialog_file(tmp_path))
    before = log.full_reads
    log.compare()
    assert log.full_reads == before
    changed_without_a_trace(log.path)
    assert log.read().entries[0].body.strip() == "Postgres or Redis?"
    log.compare()
    assert log.quick_read() is None
    assert log.read().entries[0].body.strip() == "Postgres or Mongo?"
    assert log.quick_read() is not None


async def test_the_comparison_goes_on_by_itself(tmp_path: Path) -> None:
    log, found = long_log(dialog_file(tmp_path)), asyncio.Event()

    async def work() -> None:
        log.compare()

    async with running(compare(work, lambda: log.quick_read() is None and found.set(), 0.01)):
        await asyncio.sleep(0.2)
        assert not found.is_set()
        changed_without_a_trace(log.path)
        await asyncio.wait_for(found.wait(), PATIENCE)


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
    changed_without_a_trace(log.path)
    with log.path.open("a") as file:
        file.write(typed)
    assert log.read().entries[0].body.strip() == "Postgres or Redis?"
    assert log.quick_read(sure=True) is None
    assert log.read(sure=True).entries[0].body.strip() == "Postgres or Mongo?"
    assert log.read(sure=True) is log.quick_read(sure=True)

"""The index: whatever becomes of it, the archive's files say the same."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialogd.errors import StorageError
from dialogd.memory.records import LARGEST
from tests.examples import examples
from tests.memory.shelf import LICENSE, RETRIES, SESSIONS, STOPPED, Shelf, past
from tests.support.room import Room, opening

ALL = (SESSIONS, RETRIES, LICENSE, STOPPED)


def stages() -> list[bytes]:
    """A dialog that ended three times: in consensus, by a stop after it was opened again, in another consensus."""
    again = "## Consensus Summary\n\nSessions live in Redis.\n\n[CONSENSUS_REACHED]"
    first = "## Consensus Summary\n\nSessions live in files.\n\n[CONSENSUS_REACHED]"
    room = Room(opening("A", "B", keys=["Topic: sessions"]), A=[first, again], B=["[AGREE: P1]", "[AGREE: P2]"])
    found = []
    room.run()
    found.append(room.paper.data)
    room.say("Files are slow. Again, please.", to="A")
    room.stop("lunch")
    found.append(room.paper.data)
    room.say("Go on.", to="A")
    room.run()
    return [*found, room.paper.data]


STAGES = stages()
MANY = (*(dialog.file() for dialog in ALL), *STAGES, b"no dialog at all\n")


@examples(12)
@given(st.lists(st.sampled_from(range(len(MANY))), min_size=1, max_size=9), st.data())
def test_an_index_that_grew_is_the_one_that_is_made_anew(order: list[int], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shelf = Shelf(Path(folder))
        for number in order:
            target = shelf.state.archive / f"copy-{number}.md"
            if not target.exists():
                target.write_bytes(MANY[number])
                os.utime(target, (1_700_000_000, 1_700_000_000 + number))
                target.chmod(0o600)
            if data.draw(st.booleans()):
                shelf.memory.archived()
            if data.draw(st.integers(0, 4)) == 0:
                target.unlink()
                assert shelf.memory.search("nothing") == []
        shelf.memory.dialogs(None)
        grown = shelf.dump()
        shelf.memory.rebuild()
        assert shelf.dump() == grown
        dialogs = {row.id for row in shelf.memory.dialogs(None)}
        assert len(dialogs) == len(shelf.memory.dialogs(None))


def changed(*statements: str) -> Callable[[Path], None]:
    """What these statements do to an index."""

    def spoil(index: Path) -> None:
        with closing(sqlite3.connect(index)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    return spoil


def a_folder(index: Path) -> None:
    index.unlink()
    index.mkdir()


SPOILT: Mapping[str, Callable[[Path], object]] = {
    "garbage": lambda index: index.write_bytes(b"this was a database once\n" * 400),
    "cut": lambda index: os.truncate(index, index.stat().st_size // 2),
    "torn": changed("DELETE FROM entry_data WHERE id > 10", "DELETE FROM decision_data WHERE id > 10"),
    "older": changed("PRAGMA user_version = 0", "DROP TABLE decision"),
    "foreign": changed("DROP TABLE entry"),
    "gone": lambda index: index.unlink(),
    "a folder": a_folder,
    "empty": lambda index: index.write_bytes(b""),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_spoilt_index_is_made_again_or_gone_around(shelf: Shelf, how: str) -> None:
    for dialog in ALL:
        shelf.put(dialog)
    memory = shelf.memory
    before = memory.dialogs(None), memory.recall("user sessions"), memory.search("rival")
    assert all(before)
    for end in ("-wal", "-shm"):
        shelf.index.with_name(shelf.index.name + end).unlink(missing_ok=True)
    SPOILT[how](shelf.index)
    assert (memory.dialogs(None), memory.recall("user sessions"), memory.search("rival")) == before
    shelf.put(past(9, "Coffee or tea", "Tea, and a kettle for each floor."))
    assert memory.recall("kettle")[0].dialog == "d00009"
    if how == "a folder":
        with pytest.raises(StorageError, match="cannot be made"):
            memory.rebuild()
    else:
        assert memory.rebuild() == 5


@pytest.mark.slow
def test_a_locked_index_is_gone_around_and_not_waited_for_without_end(shelf: Shelf) -> None:
    shelf.put(SESSIONS)
    hasty = shelf.memory
    assert hasty.recall("sessions")
    with closing(sqlite3.connect(shelf.index, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        shelf.put(RETRIES)
        assert hasty.recall("retry policy")[0].dialog == RETRIES.id
        with pytest.raises(StorageError, match="database is locked") as told:
            hasty.rebuild()
        assert "fuser" in told.value.fix
        other.execute("ROLLBACK")
        assert other.execute("SELECT count(*) FROM copy").fetchone()[0] == 1
        assert len(hasty.archived()) == 2
        assert other.execute("SELECT count(*) FROM copy").fetchone()[0] == 2


def test_a_copy_that_cannot_be_read_hides_no_other(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    late, bad, shared = shelf.put(SESSIONS), shelf.put(RETRIES), shelf.state.archive / "shared.md"
    os.utime(late, (10_400_000_000, 10_400_000_000))  # in the year 2299: more nanoseconds than SQLite can count
    (shelf.state.archive / "huge.md").touch()
    os.truncate(shelf.state.archive / "huge.md", LARGEST + 1)
    shared.write_bytes(LICENSE.file())
    shared.chmod(0o666)
    for name in (b"\xff.md", b"\x1b[2J.md"):
        with suppress(OSError):  # not every file system takes such a name
            (shelf.state.archive / os.fsdecode(name)).write_bytes(STOPPED.file())
    os.mkfifo(shelf.state.archive / "pipe.md")
    bad.write_bytes(b"\xff\x00 no dialog\n")
    for _ in range(2):
        assert [row.id for row in shelf.memory.dialogs(None)] == [SESSIONS.id]
    assert [hit.dialog for hit in shelf.memory.search("Postgres")] == [SESSIONS.id]
    assert shelf.memory.status()["unreadable"] == 3
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert [name for name in (bad.name, "huge.md", "shared.md") if sum(name in line for line in told) != 1] == []
    assert len(told) == 3
    bad.write_bytes(RETRIES.file())
    assert {row.id for row in shelf.memory.dialogs(None)} == {SESSIONS.id, RETRIES.id}
    assert shelf.memory.rebuild() == 4
    assert shelf.memory.status()["unreadable"] == 2


@pytest.mark.slow
def test_two_processes_that_index_at_once_lose_nothing(shelf: Shelf) -> None:
    for number in range(30):
        shelf.put(past(number, f"Matter {number}", f"Matter {number} is decided."), f"{number}.md")
    program = "import sys; from pathlib import Path; from dialogd.memory import Memory; m = Memory(Path(sys.argv[1]));"
    program += " print(len(m.dialogs(None)), len(m.recall('matter 7')))"
    words = [sys.executable, "-c", program, str(shelf.state.root)]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ends = [process.communicate(timeout=180) for process in running]
    assert [(out, err) for out, err in ends] == [("30 3\n", "")] * 2
    grown = shelf.dump()
    shelf.memory.rebuild()
    assert shelf.dump() == grown
    assert len(grown["copy"]) == 30


def test_everything_is_private(shelf: Shelf) -> None:
    """Without any umask: the index, what lies beside it while it is open, and outcomes are nobody else's."""
    before = os.umask(0)
    try:
        shelf.put(SESSIONS)
        shelf.memory.outcome(SESSIONS.id, "worked", "it did")
        with sqlite3.connect(shelf.index) as connection:
            connection.execute("SELECT * FROM copy").fetchall()
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in shelf.state.memory.iterdir()}
        connection.close()
    finally:
        os.umask(before)
    assert {"index.sqlite", "index.sqlite-wal", "outcomes.jsonl", "origins.jsonl"} <= modes.keys()
    assert set(modes.values()) == {0o600}

"""What is acknowledged is on the disk: each write is flushed before anything is built on it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dialogd.store.journal import Received
from tests.logfile.files import dialog_file, log_of, turn
from tests.logfile.moments import moments, written


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """A dialog, A's journal and the folders they lie in, by name."""
    state = tmp_path / "state"
    return {"dialog": dialog_file(tmp_path), "journal": state / "A.journal", "state": state, "folder": tmp_path}


def test_an_entry_is_flushed_before_it_is_acknowledged(files: dict[str, Path]) -> None:
    log = log_of(files["dialog"])
    journal = log.journals.of("A")
    first = written(files, lambda: log.append(turn("one"), journal))
    begin = first.index("write journal")
    assert first[begin:] == [
        "write journal", "flush journal", "flush state", "write dialog", "flush dialog", "read dialog", "write journal",
        "read dialog",
    ]  # fmt: skip
    second = written(files, lambda: log.append(turn("two"), journal))
    assert second[second.index("write journal") :][:5] == [
        "write journal", "flush journal", "write dialog", "flush dialog", "read dialog"
    ]  # fmt: skip


def test_every_other_write_to_the_dialog_is_flushed(files: dict[str, Path], tmp_path: Path) -> None:
    path = files["dialog"]
    log = log_of(path)
    log.append(turn("one"), log.journals.of("A"))
    with path.open("ab") as file:
        file.write(b"\nAnd Redis?\n\nTURN: A")
    assert [step for step in written(files, log.newline) if "read" not in step] == ["write dialog", "flush dialog"]
    whole = path.read_bytes()
    log.append(turn("two", "B", "A"), log.journals.of("A"))
    path.write_bytes(path.read_bytes()[: len(whole) + 40])
    records = files["journal"].read_bytes().rstrip(b"\n").rpartition(b"\n")
    files["journal"].write_bytes(records[0] + b"\n")
    steps = written(files, log_of(path).finish_torn)
    assert [step for step in steps if "read" not in step] == ["write dialog", "flush dialog", "write journal"]
    other = {"other": tmp_path / "other.md", "folder": tmp_path}
    steps = written(other, lambda: log_of(tmp_path / "other.md").create(whole))
    assert steps == ["write other", "flush other", "flush folder"]


def test_a_reply_and_a_draft_are_flushed(files: dict[str, Path]) -> None:
    log = log_of(files["dialog"])
    journal = log.journals.of("A")
    received = Received(("A", "1", ""), "Yes.", {}, 5)
    assert written(files, lambda: journal.reply(received)) == ["write journal", "flush journal", "flush state"]
    assert written(files, lambda: journal.draft(received, "late")) == ["write journal", "flush journal"]
    assert written(files, lambda: journal.reply(received, durable=False)) == ["write journal"]
    assert written(files, journal.flush) == ["flush journal"]


def test_an_append_costs_the_same_however_long_the_dialog(files: dict[str, Path]) -> None:
    log = log_of(files["dialog"])
    journal = log.journals.of("A")
    for number in range(3):
        log.append(turn(f"first-{number}"), journal)
    early = moments(lambda: log.append(turn("early"), journal))
    for number in range(60):
        log.append(turn(f"more-{number}"), journal)
    late = moments(lambda: log.append(turn("late"), journal))
    assert early == late
    done = Counter(late)
    assert {name: done[name] for name in ("flock", "write", "fsync", "pread")} == {
        "flock": 2, "write": 3, "fsync": 2, "pread": 2
    }  # fmt: skip


def test_what_another_daemon_wrote_is_read_at_once_and_by_itself(files: dict[str, Path]) -> None:
    mine, other = log_of(files["dialog"]), log_of(files["dialog"])
    other.append(turn("one"), other.journals.of("B"))
    mine.read()
    other.append(turn("two", size=3_000), other.journals.of("B"))
    assert moments(mine.read) == ["stat", "pread"]
    assert moments(mine.read) == ["stat"]
    assert mine.read() == other.read()


def test_what_a_writer_noted_itself_is_not_read_again(files: dict[str, Path]) -> None:
    log = log_of(files["dialog"])
    journal, other = log.journals.of("A"), log.journals.of("A")
    received = Received(("A", "1", ""), "Yes.", {"usd": 0.5}, 5)
    journal.reply(received)
    assert moments(journal.received) == ["stat"]
    assert journal.received() == received
    other.draft(received, "late")
    journal.record("spent", usage={"usd": 0.25})
    assert (journal.drafts(), journal.owed()) == (("Yes.",), ({"usd": 0.5}, {"usd": 0.25}))
    again = log.journals.of("A")
    assert (again.drafts(), again.owed()) == (journal.drafts(), journal.owed())

"""Faults in the system calls themselves: killed at each, an error from each, a flush that fails, a write that lies."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dialogd.store.disk import StateDir, archive
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile
from tests.faults.history import bought_twice, problems, records
from tests.faults.tracing import Traced, traced
from tests.logfile.files import dialog_file, log_of, naive_read, times, turn

pytestmark = [pytest.mark.ptrace]

ENOUGH = 40  # a loop over "the k-th call" that has not run out by then is wrong


class Place:
    """A dialog of its own for one traced run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "state").mkdir(mode=0o700)
        self.path = dialog_file(folder)
        self.lock = folder / "dialog.md.lock"
        self.state = folder / "state"

    def journal(self, writer: str) -> Path:
        return self.state / f"{writer}.journal"

    def write(self, *faults: str, touching: list[Path] | None = None, how: str = "ours") -> Traced:
        """A process that appends two entries through LogFile."""
        paths = touching or [self.path, self.lock, self.journal("w0"), self.state]
        return traced(self.folder, paths, ["tests.logfile.writers", how, str(self.path), "1", "2"], *faults)

    def run(self, steps: int, *faults: str, touching: list[Path] | None = None) -> tuple[Traced, dict[str, Any]]:
        """A process that runs agent A for so many steps; what came of it, {} when it was killed."""
        paths = touching or [self.path, self.journal("A")]
        done = traced(self.folder, paths, ["tests.faults.one_agent", str(self.path), str(steps)], *faults)
        return done, json.loads(done.out) if done.code == 0 else {}

    def drafts(self) -> list[object]:
        return [record["text"] for record in records(self.state, "draft")]


def every_kth(folder: Path, call: str) -> Iterator[Place]:
    """A new place for the first, the second, the third … call; the caller stops when the fault finds none."""
    for k in range(1, ENOUGH):
        yield Place(folder / f"{call}-{k}")
    raise AssertionError(f"{call}: no run went through without its fault")


CALLS = ["openat", "flock", "newfstatat", "pread64", "write", "fsync", "lseek", "close"]


@pytest.mark.parametrize("call", CALLS)
def test_killed_at_any_system_call_no_acknowledged_entry_is_lost(tmp_path: Path, call: str) -> None:
    for k, place in enumerate(every_kth(tmp_path, call), start=1):
        done = place.write(f"{call}:signal=KILL:when={k}")
        acknowledged = done.out.split()
        log = log_of(place.path)
        assert log.append(turn("after"), log.journals.of("B")) is not None, k
        words = ["w0-0", "w0-1", "after"]
        found = {word: times(place.path, word) for word in words}
        assert all(found[word] == 1 for word in [*acknowledged, "after"]), (k, found)
        assert all(count <= 1 for count in found.values()), (k, found)
        entries = naive_read(place.path)
        assert [entry.number for entry in entries if entry.sound] == list(range(2, len(entries) + 2)), k
        if done.code == 0:
            assert acknowledged == words[:2]
            assert k > done.calls[call] >= 2  # each of them has been the last
            return


@pytest.mark.parametrize("call", ["write", "fsync", "flock", "openat"])
def test_an_agent_killed_at_any_system_call_buys_nothing_twice(tmp_path: Path, call: str) -> None:
    for k, place in enumerate(every_kth(tmp_path, call), start=1):
        touching = [place.path, place.lock, place.journal("A")]
        done, _ = place.run(1, f"{call}:signal=KILL:when={k}", touching=touching)
        place.run(3, touching=touching)
        assert bought_twice(place.state) == [], k
        said = {str(record["text"]).split()[2] for record in records(place.state, "reply")}
        assert problems(place.path, said) == [], k
        assert place.drafts() == [], k
        if done.code == 0:
            assert k > done.calls[call] >= 2
            return


@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EINTR"])
@pytest.mark.parametrize("file", ["dialog", "journal"])
def test_a_write_that_fails_is_made_good_with_the_same_reply(tmp_path: Path, file: str, error: str) -> None:
    for k, place in enumerate(every_kth(tmp_path, "write"), start=1):
        target = place.path if file == "dialog" else place.journal("A")
        done, first = place.run(4, f"write:error={error}:when={k}", touching=[target])
        _, second = place.run(2, touching=[target])
        asked = first["asked"] + second["asked"]
        assert len(asked) == len(set(asked)), k
        assert problems(place.path, [f"A-{number}" for number in asked]) == [], k
        assert place.drafts() == [], k
        if "(INJECTED)" not in done.trace:
            assert k > 2
            return


def test_a_full_disk_that_stays_full_acknowledges_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path / "full")
    before = place.path.read_bytes()
    _, first = place.run(6, "write:error=ENOSPC:when=1+", touching=[place.path])
    assert (first["asked"], first["acknowledged"], place.path.read_bytes()) == ([2], [], before)
    assert "no space left on device" in first["errors"][0]
    _, second = place.run(1)
    assert (second["asked"], second["acknowledged"]) == ([], [2])
    assert times(place.path, "A-2") == 1


@pytest.mark.parametrize("k", [1, 2])
def test_a_flush_that_failed_is_never_tried_again(tmp_path: Path, k: int) -> None:
    place = Place(tmp_path / "eio")
    done, first = place.run(12, f"fsync:error=EIO:when={k}", touching=[place.path])
    own = [line.split()[0] for line in done.lines("fsync", place.path) if "EIO" in line]
    flushes = [line for line in done.lines("fsync", place.path) if line.startswith(own[0])]
    writes = [line for line in done.lines("write", place.path) if line.startswith(own[0])]
    assert "EIO" in flushes[-1]
    assert len(flushes) == len(writes) == k
    assert first["asked"] == first["acknowledged"] + [2 * k]
    assert "may not be on the disk" in first["errors"][0]
    _, second = place.run(4)
    assert not set(first["asked"]) & set(second["asked"])
    assert problems(place.path, [f"A-{number}" for number in first["asked"] + second["asked"]]) == []
    assert place.drafts() == []


@pytest.mark.parametrize("k", [1, 2])
def test_a_journal_flush_that_failed_is_never_tried_again(tmp_path: Path, k: int) -> None:
    place = Place(tmp_path / "eio")
    journal = place.journal("A")
    done, first = place.run(8, f"fsync:error=EIO:when={k}", touching=[journal])
    calls = [line for line in done.trace.split("\n") if "write(" in line or "fsync(" in line]
    failed = next(index for index, line in enumerate(calls) if "EIO" in line)
    own = calls[failed].split()[0]
    assert [line for line in calls[failed + 1 :] if line.startswith(own)] == []
    assert first["asked"] == first["acknowledged"] + [2 * k]
    assert f"flushing {journal} failed" in first["errors"][0]
    _, second = place.run(4)
    assert not set(first["asked"]) & set(second["asked"])
    assert problems(place.path, [f"A-{number}" for number in first["asked"] + second["asked"]]) == []
    assert place.drafts() == []


def test_folders_are_made_durable_before_what_is_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dialog_file(tmp_path)
    state = tmp_path / "home" / "state"
    monkeypatch.setenv("DIALOGD_STATE_DIR", str(state))
    done = traced(tmp_path, [], ["dialogd", "say", "--note", "Mind the cost.", "--file", str(path)])
    assert done.code == 0, done.said
    (folder,) = (state / "dialogs").iterdir()
    flushed = [made_durable(done, each) for each in (state.parent, state, folder.parent, folder)]
    assert flushed == [True] * 4
    assert place_of(done, "fsync", path) > max(place_of(done, "fsync", each.parent) for each in (folder, state))
    done = traced(tmp_path, [], ["tests.logfile.writers", "long", str(path), "1", "1"])
    assert done.code == 0, done.said
    assert made_durable(done, path.with_name("dialog.md.d"))
    assert place_of(done, "fsync", path) > place_of(done, "fsync", path.parent)


def place_of(done: Traced, call: str, path: Path) -> int:
    """Where in the trace the first such call on that file stands, -1 for nowhere."""
    lines = done.trace.split("\n")
    return next((at for at, line in enumerate(lines) if f" {call}(" in line and f"<{path}>" in line), -1)


def made_durable(done: Traced, folder: Path) -> bool:
    """True when the folder was made, and the one above it flushed after that."""
    lines = done.trace.split("\n")
    made = next(at for at, line in enumerate(lines) if " mkdir(" in line and f'{folder.name}"' in line)
    return any(" fsync(" in line and f"<{folder.parent}>" in line for line in lines[made:])


def test_a_write_that_does_nothing_is_noticed_and_made_good(tmp_path: Path) -> None:
    place = Place(tmp_path / "lie")
    done, first = place.run(6, "write:retval=1000000:when=1", touching=[place.path])
    assert "(INJECTED)" in done.trace
    assert first["asked"] == first["acknowledged"]
    assert problems(place.path, [f"A-{number}" for number in first["asked"]]) == []


def test_a_write_that_does_half_is_not_acknowledged(tmp_path: Path) -> None:
    place = Place(tmp_path / "lie")
    _, first = place.run(6, "write:retval=30:when=1", touching=[place.path])
    assert set(first["acknowledged"]) <= {entry.number for entry in naive_read(place.path) if entry.sound}
    assert first["asked"].count(2) == 1
    assert [text for text in place.drafts() if "A-2" in str(text)] or times(place.path, "A-2") == 1


def test_a_slow_disk_delays_and_loses_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path / "slow")
    _, first = place.run(4, "fsync:delay_exit=200000")
    assert first["acknowledged"] == first["asked"] == [2, 4]
    assert problems(place.path, ["A-2", "A-4"]) == []


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_an_archive_that_is_killed_leaves_a_whole_copy_or_none(tmp_path: Path, call: str) -> None:
    for k, place in enumerate(every_kth(tmp_path, call), start=1):
        folder = place.folder / "archive"
        folder.mkdir()
        words = ["tests.logfile.writers", "archive", str(place.path), "1", "1"]
        before = place.path.read_bytes()
        done = traced(place.folder, [], words, f"{call}:signal=KILL:when={k}")
        assert all(copy.read_bytes() == before for copy in folder.glob("[!.]*.md")), k
        assert place.path.read_bytes() == before, k
        log = log_of(place.path)
        copy = archive(log.read(), place.path, folder)
        assert [found.name for found in folder.glob("[!.]*.md")] == [copy.name], k
        if done.code == 0:
            assert k > 1
            return


def test_the_turn_that_was_appended_is_the_one_that_is_told(tmp_path: Path) -> None:
    place = Place(tmp_path / "later")
    before = place.path.stat().st_size
    done = threading.Event()

    def type_() -> None:
        while not done.is_set():
            if place.path.stat().st_size > before:
                with place.path.open("ab") as file:
                    file.write(b"\n## Turn 3\n\nWait.\n\nTURN: B\n")
                return

    person = threading.Thread(target=type_)
    person.start()
    try:
        _, first = place.run(1, "fsync:delay_enter=400000:when=1", touching=[place.path])
    finally:
        done.set()
        person.join()
    assert log_of(place.path).read().state.number == 3
    assert first["told"] == [2]


def test_verify_misses_nothing_of_a_dialog_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIALOGD_STATE_DIR", str(tmp_path / "home"))
    path = dialog_file(tmp_path)
    log = LogFile(path, Journals(StateDir(tmp_path / "home").dialog(path)))
    log.append(turn("w-0", "A", "B"), log.journals.of("A"))
    done = threading.Event()

    def go_on() -> None:
        for k in range(1, 1000):
            if done.wait(0.03):
                return
            log.append(turn(f"w-{k}", *("BA" if k % 2 else "AB")), log.journals.of("A"))

    writer = threading.Thread(target=go_on)
    writer.start()
    target = log.journals.of("A").path
    try:
        found = traced(tmp_path, [target], ["dialogd", "verify", str(path)], "openat:delay_enter=500000:when=1")
    finally:
        done.set()
        writer.join()
    assert log.read().state.number > 5
    assert found.out.startswith("Sound. ")
    assert found.code == 0


@contextmanager
def typed_before_the_write(path: Path) -> Iterator[None]:
    """While the write to the dialog is held up, the person appends a line to it."""
    done = threading.Event()

    def type_() -> None:
        while not done.is_set():
            if b"intent" in (path.parent / "state" / "w0.journal").read_bytes():
                with path.open("ab") as file:
                    file.write(b"Consider Redis too.\n")
                return

    (path.parent / "state" / "w0.journal").touch(0o600)
    person = threading.Thread(target=type_)
    person.start()
    try:
        yield
    finally:
        done.set()
        person.join()


def test_what_the_person_types_between_comparing_and_writing_is_kept(tmp_path: Path) -> None:
    place = Place(tmp_path / "typing")
    with typed_before_the_write(place.path):
        done = place.write("write:delay_enter=300000:when=1", touching=[place.path])
    assert done.out.split() == ["w0-0", "w0-1"]
    assert place.path.read_bytes().count(b"Consider Redis too.\n") == 1
    assert times(place.path, "w0-0") == times(place.path, "w0-1") == 1

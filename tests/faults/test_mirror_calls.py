"""A writer of a shared dialog is killed at each of its system calls, or gets an error from it: nothing is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.one_mirror import Kept, append
from tests.faults.shared import faults
from tests.faults.test_system_calls import ENOUGH
from tests.faults.tracing import Traced, traced
from tests.support.machines import Cast, Files

pytestmark = [pytest.mark.ptrace, pytest.mark.slow]

WORDS = ["A-one", "two"]


class Place:
    """A shared dialog for one traced run."""

    def __init__(self, folder: Path, holders: Cast) -> None:
        folder.mkdir()
        self.folder = folder
        url = f"kept://{folder}"
        self.files = Files(folder / "here", holders, "Ada", "A", url)
        self.files.share(holders.opening(), "B")
        self.log = Kept(self.files.connection.place(folder))

    def run(self, *faults: str) -> Traced:
        """A process that writes all words here."""
        state = self.files.log().journals.folder
        beside = self.files.file.with_name("dialog.md.d") / "signatures"
        touching = [self.files.file, beside, state / "A.journal", state / "person.journal", self.log.path]
        return traced(self.folder, touching, ["tests.faults.one_mirror", str(self.files.folder), *WORDS], *faults)

    def wrong(self, acknowledged: list[str]) -> list[str]:
        """What is wrong, once the next writer has come."""
        there = b"".join(row.data for row in self.log.rows).decode().split()
        lost = [word for word in acknowledged if word not in there]
        log = self.files.log()
        for word in WORDS:
            append(log, word)
        data = b"".join(row.data for row in self.log.rows)
        assert self.files.file.read_bytes() == data
        assert not self.files.typed
        return lost + faults(data, [self.files.file], self.folder, WORDS)


@pytest.mark.parametrize("call", ["write", "fsync", "openat"])
def test_killed_at_any_system_call_nothing_is_lost_or_doubled(tmp_path: Path, holders: Cast, call: str) -> None:
    for k in range(1, ENOUGH):
        place = Place(tmp_path / f"{call}-{k}", holders)
        done = place.run(f"{call}:signal=KILL:when={k}")
        assert place.wrong(done.out.split()) == [], k
        if done.code == 0:
            assert done.out.split() == WORDS
            assert k > 4
            return
    raise AssertionError("no run went through without its fault")


@pytest.mark.parametrize("error", ["write:error=ENOSPC", "fsync:error=EIO"])
def test_an_error_of_any_system_call_loses_and_doubles_nothing(tmp_path: Path, holders: Cast, error: str) -> None:
    for k in range(1, ENOUGH):
        place = Place(tmp_path / f"error-{k}", holders)
        done = place.run(f"{error}:when={k}")
        assert done.code == 0, (k, done.said)
        assert place.wrong(done.out.split()) == [], k
        if "(INJECTED)" not in done.trace:
            assert done.out.split() == WORDS
            assert k > 4
            return
    raise AssertionError("no run went through without its fault")


def test_signatures_are_durable_before_their_entry_is_written(tmp_path: Path, holders: Cast) -> None:
    place = Place(tmp_path / "order", holders)
    done = place.run()
    beside = place.files.file.with_name("dialog.md.d") / "signatures"
    lines = [line for line in done.trace.split("\n") if f"<{beside}>" in line or f"<{place.files.file}>" in line]
    calls = [
        f"{'signature' if str(beside) in line else 'entry'} {line.split()[1].partition('(')[0]}"
        for line in lines
        if " write(" in line or " fsync(" in line
    ]
    assert calls == ["signature write", "signature fsync", "entry write", "entry fsync"] * 2

"""A writer died in the middle of an entry: whoever comes next completes it, and nothing is ever cut."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from dialogd import person
from dialogd.protocol.decide import Reply
from dialogd.store.logfile import LogFile
from tests.logfile.agents import Counting, agent_at
from tests.logfile.files import dialog_file, log_of, naive_read, restore, times, turn


@dataclass(frozen=True)
class Crash:
    """A's turn 2 as it would have stood: the file before, the file after, and A's journal without the `done`."""

    path: Path
    before: bytes
    whole: bytes
    journal: bytes

    def at(self, cut: int, behind: bytes = b"") -> Path:
        """Put the file back to where A died after `cut` bytes of its entry."""
        restore(self.path, self.whole[: len(self.before) + cut] + behind)
        for journal in (self.path.parent / "state").iterdir():
            journal.unlink()
        restore(self.path.parent / "state" / "A.journal", self.journal)
        return self.path

    @property
    def size(self) -> int:
        """Bytes of the entry, with the rule before it."""
        return len(self.whole) - len(self.before)


@pytest.fixture
async def crash(tmp_path: Path) -> Crash:
    """A's reply, received and on its way into the file."""
    path = dialog_file(tmp_path)
    before = path.read_bytes()
    async with agent_at(path) as agent:
        assert isinstance(await agent.step(), Reply)
    records = (tmp_path / "state" / "A.journal").read_bytes().split(b"\n")
    kinds = [json.loads(record)["kind"] for record in records if record]
    assert kinds[-3:] == ["reply", "intent", "done"]
    last = max(index for index, record in enumerate(records) if record)
    return Crash(path, before, path.read_bytes(), b"\n".join(records[:last]) + b"\n")


def written_by_b(log: LogFile) -> None:
    log.append(turn("later", "B", "A"), log.journals.of("B"))


def written_by_the_person(log: LogFile) -> None:
    """The command line writes, with no daemon running."""
    person.say(log, "later", note=True)


@pytest.mark.parametrize(("write", "step"), [(written_by_b, 1), (written_by_the_person, 5)])
async def test_the_next_writer_completes_an_entry_that_was_cut_anywhere(
    crash: Crash, write: Callable[[LogFile], None], step: int
) -> None:
    for cut in range(1, crash.size, step):
        path = crash.at(cut)
        write(log_of(path))
        assert path.read_bytes().startswith(crash.whole), cut
        assert times(path, "A-2") == times(path, "later") == 1, cut
        assert log_of(path).journals.of("A").received() is None, cut


async def test_a_daemon_that_runs_completes_it_too(crash: Crash) -> None:
    for cut in range(3, crash.size, 7):
        restore(crash.path, crash.before)
        peer = log_of(crash.path)
        peer.finish_torn()
        crash.at(cut)
        written_by_b(peer)
        assert crash.path.read_bytes().startswith(crash.whole), cut
        assert times(crash.path, "A-2") == 1, cut


async def test_its_own_daemon_goes_on_without_asking_again(crash: Crash) -> None:
    for cut in (0, 1, *range(2, crash.size - 4, 4), *range(crash.size - 4, crash.size + 1)):
        path, backend = crash.at(cut), Counting()
        async with agent_at(path, "A", backend) as agent:
            await agent.step()
            await agent.step()
        assert backend.asked == [], cut
        assert times(path, "A-2") == 1, cut
        assert path.read_bytes().startswith(crash.whole[: len(crash.before) + cut]), cut
        journal = log_of(path).journals.of("A")
        assert (journal.received(), journal.drafts()) == (None, ()), cut


async def test_what_stands_behind_torn_bytes_keeps_them_where_they_are(crash: Crash) -> None:
    cuts = [*range(1, crash.size - 12, 9), *range(crash.size - 12, crash.size)]
    for cut in cuts:
        path, backend = crash.at(cut), Counting()
        person.say(log_of(path, "elsewhere"), "later", note=True)
        torn = path.read_bytes()
        async with agent_at(path, "A", backend) as agent:
            for _ in range(3):
                await agent.step()
        assert path.read_bytes().startswith(torn), cut
        assert backend.asked == [], cut
        assert times(path, "A-2") == times(path, "later") == 1, cut
        assert log_of(path).journals.of("A").drafts() == (), cut


async def test_a_torn_tail_that_nobody_journalled_is_never_cut(crash: Crash) -> None:
    for cut in range(1, crash.size, 5):
        path = crash.at(cut)
        (path.parent / "state" / "A.journal").unlink()
        written_by_the_person(log_of(path))
        assert path.read_bytes().startswith(crash.whole[: len(crash.before) + cut]), cut
        assert times(path, "later") == 1, cut


async def test_a_lost_journal_loses_no_committed_turn(crash: Crash) -> None:
    path = crash.at(crash.size)
    written_by_b(log_of(path))
    for journal in (path.parent / "state").iterdir():
        journal.unlink()
    async with agent_at(path) as agent:
        assert isinstance(await agent.step(), Reply)
    assert [entry.number for entry in naive_read(path)] == [2, 3, 4]
    assert times(path, "A-2") == times(path, "later") == times(path, "A-4") == 1


async def test_a_journal_with_a_torn_last_line_is_read_to_there(crash: Crash) -> None:
    journal = log_of(crash.path).journals.of("A")
    whole = crash.journal.rstrip(b"\n")
    before = whole.rindex(b"\n") + 1
    kinds = [record["kind"] for record in journal.records()]
    for cut in range(before + 1, len(whole), 3):
        restore(journal.path, whole[:cut])
        assert [record["kind"] for record in journal.records()] == kinds[:-2], cut
        assert journal.received() is not None, cut
        journal.record("sent")
        assert [record["kind"] for record in journal.records()] == [*kinds[:-2], "sent"], cut

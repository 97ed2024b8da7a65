"""A journal that the disk, an editor or another version has spoiled: what cannot be read is passed over and told."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dialogd.protocol.decide import Reply, Wait
from dialogd.store.journal import PERSON
from tests.logfile.agents import Counting, agent_at
from tests.logfile.files import dialog_file, log_of, naive_read, restore, turn

ODD: tuple[Any, ...] = (None, True, -1, 1.5, 10**400, "x", [], {}, ["a"], [1, 2, 3], {"usd": "much"}, "\ud800")

WRITTEN = [(2, True), (3, True), (4, True)]  # what stands in the file once A has answered


class Scene:
    """A dialog in which A died as it was to write its second turn, with every kind of record in its journal."""

    def __init__(self, path: Path, before: bytes, whole: bytes, journal: bytes) -> None:
        self.path, self.before, self.whole, self.journal = path, before, whole, journal

    async def goes_on(self, journal: bytes, *, torn: bool = False) -> list[str]:
        """A daemon starts with that journal and takes its turn; the warnings that it gave.

        `torn`: the turn is half written; then the daemon may also wait for the person, and says so.
        """
        restore(self.path, self.whole[:-30] if torn else self.before)
        folder = self.path.parent / "state"
        for old in folder.glob("*.journal"):
            old.unlink()
        restore(folder / "A.journal", journal)
        async with agent_at(self.path, "A", Counting()) as agent:
            for _ in range(4):
                agent.wake()
                action = await agent.step()
                if agent.dialog is not None and agent.dialog.state.owing == ("B",):
                    break
                if torn and isinstance(action, Wait) and action.status == "damaged":
                    break
            else:
                raise AssertionError(f"A did not answer: {action}")
            with agent.hub.join(f"{agent.hub.epoch}-0") as told:
                await agent.hub.close()  # else the listening has no end
                return [str(event.data["text"]) async for event in told if event.kind == "warning"]

    def variants(self) -> Iterator[bytes]:
        """The journal with a value of one record left out, or of another kind."""
        lines = self.journal.split(b"\n")
        for at, line in enumerate(lines):
            record = json.loads(line) if line else {}
            for key in record:
                rest = {name: value for name, value in record.items() if name != key}
                for other in (rest, *({**record, key: value} for value in ODD)):
                    data = json.dumps(other).encode()
                    yield b"\n".join([*lines[:at], data, *lines[at + 1 :]])
            for value in ODD:
                yield b"\n".join([*lines[:at], json.dumps(value).encode(), *lines[at:]])


@pytest.fixture
async def scene(tmp_path: Path) -> Scene:
    """Turn 2 and 4 are A's; what brought no turn stands in the journal too."""
    path = dialog_file(tmp_path)
    async with agent_at(path) as agent:
        journal = agent.journal
        journal.record("started", dialog="0123456789ab")
        journal.record("spent", usage={"calls": 1, "usd": 0.5, "usd_known": 1, "model": "m", "is_estimated": True})
        assert isinstance(await agent.step(), Reply)
        other = log_of(path)
        other.append(turn("B-3", "B", "A"), other.journals.of("B"))
        before = path.read_bytes()
        agent.wake()
        assert isinstance(await agent.step(), Reply)
    data = (tmp_path / "state" / "A.journal").read_bytes()
    lines = data.split(b"\n")
    done = max(at for at, line in enumerate(lines) if b'"done"' in line)
    return Scene(path, before, path.read_bytes(), b"\n".join(lines[:done]))


async def fuzzed(scene: Scene, flips: Iterator[tuple[int, int]]) -> int:
    """Flip these bits, one at a time; gives how many there were."""
    count = 0
    for at, bit in flips:
        count += 1
        data = bytearray(scene.journal)
        data[at] ^= 1 << bit
        await scene.goes_on(bytes(data))
        assert [(entry.number, entry.sound) for entry in naive_read(scene.path)] == WRITTEN, (at, bit)
    return count


async def test_a_whole_journal_completes_the_turn_and_warns_of_nothing(scene: Scene) -> None:
    assert await scene.goes_on(scene.journal) == []
    assert await scene.goes_on(scene.journal, torn=True) == []
    assert scene.path.read_bytes().startswith(scene.whole)
    assert await scene.goes_on(scene.journal + b'\n{"kind": "sent", "ti') == []


async def test_a_flipped_bit_anywhere_stops_no_daemon(scene: Scene) -> None:
    assert await fuzzed(scene, ((at, at // 11 % 8) for at in range(0, len(scene.journal), 11))) > 110


@pytest.mark.slow
async def test_a_flipped_bit_of_any_byte_stops_no_daemon(scene: Scene) -> None:
    assert await fuzzed(scene, ((at, (5 * at + 3) % 8) for at in range(len(scene.journal)))) > 1000


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=[pytest.mark.slow])])
async def test_json_of_another_shape_stops_no_daemon(scene: Scene, every: int) -> None:
    for data in itertools.islice(scene.variants(), None, None, every):
        await scene.goes_on(data)


async def test_a_damaged_record_is_told_with_its_place(scene: Scene) -> None:
    line = 1 + scene.journal.split(b"\n").index(next(x for x in scene.journal.split(b"\n") if b'"reply"' in x))
    spoiled = scene.journal.replace(b'"debt"', b'"dept"', 1)
    (told,) = await scene.goes_on(spoiled)
    path = scene.path.parent / "state" / "A.journal"
    assert told == f"line {line} of the journal {path} is damaged; it is passed over, and the file counts"
    assert path.read_bytes().startswith(spoiled)


async def test_an_entry_that_was_damaged_in_the_journal_is_not_completed(scene: Scene) -> None:
    words = scene.whole[-60:-30].decode().split("\n")[0]
    spoiled = scene.journal.replace(words.encode(), words.upper().encode())
    assert spoiled != scene.journal
    await scene.goes_on(spoiled, torn=True)
    assert scene.path.read_bytes() == scene.whole[:-30]
    assert words.upper().encode() not in scene.path.read_bytes()


def test_a_command_of_the_person_goes_on_too(tmp_path: Path) -> None:
    path = dialog_file(tmp_path)
    log = log_of(path)
    log.append(turn("A-2"), log.journals.of(PERSON))
    journal = log.journals.of(PERSON).path
    journal.write_bytes(journal.read_bytes() + b'{"kind": "intent", "at": "here", "entry": 7}\n{"kind": "done"}\n[]\n')
    other = log_of(path)
    assert other.append(turn("A-3"), other.journals.of(PERSON)) is not None
    assert other.journals.committed().keys() == {2, 3}

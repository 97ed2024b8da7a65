"""The judge of histories finds what it is there to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.history import problems, read
from tests.logfile.files import dialog_file, log_of, turn


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A dialog of five turns: the person, A, B, A, B."""
    log = log_of(dialog_file(tmp_path))
    for number, by, to in ((2, "A", "B"), (3, "B", "A"), (4, "A", "B"), (5, "B", "A")):
        log.append(turn(f"{by}-{number}", by, to), log.journals.of(by))
    return log.path


def without(data: bytes, number: int) -> bytes:
    """The file without one of its turns."""
    return data.replace(entry(data, number), b"")


def entry(data: bytes, number: int) -> bytes:
    """The bytes of one turn, with the rule before it."""
    start = data.index(f"\n---\n\n## Turn {number} ".encode())
    end = data.find(f"\n---\n\n## Turn {number + 1} ".encode())
    return data[start:] if end < 0 else data[start:end]


def test_a_sound_history_has_no_problem(path: Path) -> None:
    """Five turns, numbered, owed, each word once."""
    assert [(found.number, found.by) for found in read(path)] == [(1, ""), (2, "A"), (3, "B"), (4, "A"), (5, "B")]
    assert problems(path, ["A-2", "B-3", "A-4", "B-5"]) == []


def test_a_lost_turn_is_found(path: Path) -> None:
    """By the gap, by its word, and by the agent that spoke without owing a turn."""
    path.write_bytes(without(path.read_bytes(), 3))
    assert len(problems(path, ["B-3"])) == 3


def test_a_turn_that_stands_twice_is_found(path: Path) -> None:
    """By its number, by its word, and by the second time it was not owed."""
    data = path.read_bytes()
    path.write_bytes(data + entry(data, 5))
    assert len(problems(path, ["B-5"])) == 3


def test_turns_out_of_order_are_found(path: Path) -> None:
    """The fourth before the third."""
    data = path.read_bytes()
    third = entry(data, 3)
    path.write_bytes(data.replace(third, b"") + third)
    assert problems(path) != []


def test_a_damaged_turn_is_nobodys(path: Path) -> None:
    """One letter changed: the turn does not count as B's, and its word is lost."""
    path.write_bytes(path.read_bytes().replace(b"I say B-3", b"I say B-9"))
    assert [found.by for found in read(path)] == ["", "A", "", "A", "B"]
    assert "B-3 stands 0 times" in problems(path, ["B-3"])

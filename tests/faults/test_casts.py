"""More than two agents: round-robin, and rounds in which all owe a turn at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.history import problems, read
from tests.faults.replies import Replies
from tests.support.pair import Pair

Cast = Callable[..., Pair]


@pytest.mark.slow
def test_three_agents_speak_in_turns_and_agree(cast: Cast) -> None:
    pair = cast("ABC")
    pair.hold("Where should user sessions live?", turn="A")
    pair.until(lambda: pair.outcome, "the end")
    assert pair.outcome == "CONSENSUS_REACHED"
    speakers = [entry.by for entry in read(pair.file) if entry.number > 1]
    assert speakers == [("A", "B", "C")[n % 3] for n in range(len(speakers))]
    assert problems(pair.file) == []
    assert all(f"{who} in turn" in pair.file.read_text() for who in "ABC")


@pytest.mark.parametrize(
    "waits",
    [
        pytest.param((0.0, 0.25, 0.5), marks=pytest.mark.slow),
        (0.5, 0.25, 0.0),
        pytest.param((0.0, 0.0, 0.0), marks=pytest.mark.slow),
    ],
)
def test_a_round_is_answered_in_any_order_of_arrival(
    cast: Cast, replies: Replies, waits: tuple[float, float, float]
) -> None:
    pair = cast("ABC", command={who: replies.command(wait) for who, wait in zip("ABC", waits, strict=True)})
    pair.hold("What does each of you think?", turn="A, B, C", max_turns=5)
    pair.until(lambda: pair.outcome, "the end")
    entries = [entry for entry in read(pair.file) if entry.number > 1]
    assert sorted(entry.by for entry in entries[:3]) == ["A", "B", "C"]
    if waits[0] != waits[2]:
        assert [entry.by for entry in entries[:3]] == sorted("ABC", key=lambda who: waits["ABC".index(who)])
    assert len(replies.asked()) == len(entries) == 4
    assert problems(pair.file) == []

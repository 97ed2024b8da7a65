"""Another dialog takes the file while daemons run: nothing of the old one reaches it, and saving starts nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.faults.history import problems, read
from tests.faults.replies import Replies, drafts, held_reply
from tests.support.pair import Pair

Cast = Callable[..., Pair]


def seen(pair: Pair) -> None:
    """Wait until every daemon knows the last turn."""
    for daemon in pair.daemons.values():
        pair.until(lambda d=daemon: (d.health() or {}).get("turn") == pair.number, "a look")  # type: ignore[misc]


def looks(pair: Pair) -> None:
    """Wait until every daemon knows the last turn, and has had the time to do something wrong about it."""
    seen(pair)
    time.sleep(0.35)  # three polls; each of them would be one too many


@pytest.mark.slow
def test_the_same_text_over_an_ended_dialog_is_a_new_one(cast: Cast, replies: Replies) -> None:
    pair = cast(command=replies.command())
    pair.start()
    for round_ in (1, 2):
        pair.begin("What now?", turn="A", max_turns=4)
        looks(pair)
        assert len(read(pair.file)) == 1
        assert len(replies.asked()) == 3 * (round_ - 1)
        assert pair.notify("A")["status"] == "accepted"
        pair.until(lambda: pair.outcome, "the end")
        seen(pair)
        assert problems(pair.file) == []
    dropped = "".join(path.read_text() for path in pair.state_dir.rglob("dropped.md"))
    assert [f"Turn {number}" in dropped for number in (1, 2, 3, 4, 5)] == [False, True, True, True, False]


def test_a_reply_that_comes_after_the_file_was_replaced_is_a_draft(cast: Cast, replies: Replies) -> None:
    pair = cast(command=replies.command())
    pair.hold("What now?", turn="A", max_turns=1000)
    pair.until(lambda: pair.number >= 4, "a dialog that runs")
    with held_reply(pair) as late:
        pair.begin("What now?", turn="A", max_turns=1000)
    pair.until(lambda: late in drafts(pair), "the draft")
    looks(pair)
    assert len(read(pair.file)) == 1
    asked = len(replies.asked())
    pair.notify("A")
    pair.until(lambda: pair.number >= 4, "the new dialog")
    assert late.split()[1] not in pair.file.read_text()
    assert len(replies.asked()) > asked


@pytest.mark.slow
def test_a_call_under_way_ends_when_the_file_is_replaced(cast: Cast, replies: Replies) -> None:
    pair = cast(command={"A": replies.command(), "B": replies.command("held")})
    pair.hold("What now?", turn="A")
    pair.until(lambda: replies.asked("B"), "B's call")
    pair.begin("What now?", turn="A")
    pair.until(lambda: not replies.alive(), "the end of the call")
    looks(pair)
    assert len(read(pair.file)) == 1


@pytest.mark.slow
def test_a_file_that_is_deleted_and_written_again_is_a_new_dialog(cast: Cast, replies: Replies) -> None:
    pair = cast(command=replies.command())
    pair.hold("What now?", turn="A", max_turns=2)
    pair.until(lambda: pair.outcome, "the end")
    pair.file.unlink()
    pair.until(lambda: (pair["A"].health() or {}).get("phase") == "no_dialog", "A to notice")
    pair.begin("What now?", turn="A", max_turns=2)
    looks(pair)
    assert len(replies.asked()) == 1
    pair.notify("A")
    pair.until(lambda: pair.outcome, "the end")
    assert problems(pair.file) == []

"""Running daemons on a disk that fills up: they say so, wait, and write the same reply once there is room."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest

from tests.faults.history import problems, read
from tests.faults.replies import Replies, drafts
from tests.support.pair import Pair

Cast = Callable[..., Pair]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(psutil.Process, "rlimit"), reason="this system cannot limit another process's files")
@pytest.mark.parametrize("others", ["", "B"])
def test_a_daemon_waits_for_room_and_asks_nobody_twice(cast: Cast, replies: Replies, others: str) -> None:
    """A's reply is refused after 40 bytes: once there is room it stands there once, and is no draft.

    B, when it runs, has room, and completes what A began.
    """
    pair = cast(command=replies.command())
    pair.start("A" + others)
    pair.begin("What now? " + "A long question. " * 3000, turn="A", max_turns=4)
    process = psutil.Process(pair["A"].pid)
    before = pair.file.read_bytes()
    soft, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (len(before) + 40, hard))
    pair.notify("A")
    pair.until(lambda: "file too large" in str((pair["A"].health() or {}).get("waiting")), "A to say what is wrong")
    assert pair.file.read_bytes()[: len(before)] == before
    assert others or [entry.number for entry in read(pair.file) if entry.by] == []
    process.rlimit(psutil.RLIMIT_FSIZE, (soft, hard))
    if not others:
        pair.start("B")
    pair.until(lambda: pair.outcome, "the end")
    assert [(who, turn) for who, turn, _ in replies.asked()] == [("A", 2), ("B", 3), ("A", 4)]
    assert problems(pair.file) == []
    assert drafts(pair) == []

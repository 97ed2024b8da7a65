"""Daemons killed with -9 and started again: no turn lost, doubled or out of order, no received reply bought again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest

from tests.faults.history import appended, bought_twice, problems, read
from tests.faults.replies import Replies, journalled, locked
from tests.support.pair import Pair

Cast = Callable[..., Pair]


def assert_history(pair: Pair, replies: Replies, kills: int) -> None:
    """What was received stands in the file once, in order; a kill costs at most the call that was under way."""
    assert problems(pair.file, [reply.split()[1] for reply in journalled(pair)]) == []
    assert bought_twice(pair.state_dir) == []
    written = sum(1 for entry in read(pair.file) if entry.by in pair.daemons and entry.number)
    assert written <= len(replies.asked()) <= written + kills
    told = [number for daemon in pair.daemons.values() for number in appended(daemon.said)]
    assert len(told) == len(set(told))


def test_killed_between_reply_and_append_it_appends_after_the_restart(cast: Cast, replies: Replies) -> None:
    pair = cast(command=replies.command("held"))
    pair.hold("What now?", turn="A", max_turns=8)
    for kills, who in enumerate("ABABAB", start=1):
        pair.until(lambda n=kills: len(replies.asked()) == n, f"{who} to be asked")  # type: ignore[misc]
        with locked(pair.file):
            replies.let_go()
            pair.until(lambda n=kills: len(journalled(pair)) == n, "the reply")  # type: ignore[misc]
            replies.hold()
            pair[who].kill()
            assert len(read(pair.file)) == kills
        pair[who].start()
        pair[who].until_ready()
    replies.let_go()
    pair.until(lambda: pair.outcome, "the end")
    assert len(replies.asked()) == 7
    assert_history(pair, replies, 0)


@pytest.mark.slow
def test_killed_at_any_moment_a_dialog_goes_on(cast: Cast, replies: Replies) -> None:
    kills = 120
    pair = cast(command=replies.command(0.02))
    pair.hold("What now?", turn="A", max_turns=10_000)
    for kill, who in zip(range(kills), itertools.cycle("ABBA"), strict=False):
        count = len(replies.answered())
        pair.until(lambda n=count: len(replies.answered()) > n, "an answer")  # type: ignore[misc]
        moment = time.monotonic() + kill % 40 * 0.0015
        while time.monotonic() < moment:
            pass
        pair[who].kill()
        pair[who].start()
    for daemon in pair.daemons.values():
        daemon.until_ready()
    number = pair.number
    pair.until(lambda: pair.number > number + 2, "two more turns")
    for daemon in pair.daemons.values():
        daemon.terminate()
    assert pair.number > kills // 2  # not every answer was received before the kill
    assert problems(pair.file) == []
    assert_history(pair, replies, kills + 2)

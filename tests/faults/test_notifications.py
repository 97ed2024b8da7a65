"""A notification is a hint: dropped, doubled or by the hundred, it changes nothing but the moment of looking."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.history import appended, problems, read
from tests.faults.replies import Replies
from tests.support.pair import Pair, a_second

Cast = Callable[..., Pair]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["AB", "BA"])
def test_a_dialog_goes_to_its_end_with_every_notification_dropped(cast: Cast, order: str) -> None:
    pair = cast(told=False)
    for who in order:
        pair.start(who)
    pair.begin("Tabs or spaces?", turn="A")
    pair.notify("A")
    pair.until(lambda: pair.outcome, "the end")
    assert pair.outcome == "CONSENSUS_REACHED"
    assert problems(pair.file) == []
    said = lambda: sorted(appended(pair["A"].said) + appended(pair["B"].said))  # noqa: E731
    pair.until(lambda: len(said()) >= 4, "what both said they appended")  # a line may follow the turn by a moment
    assert said() == [2, 3, 4, 5]


def test_the_poll_alone_carries_a_dialog_on(cast: Cast) -> None:
    pair = cast(told=False, environment={"WATCHFILES_FORCE_POLLING": "true", "WATCHFILES_POLL_DELAY_MS": "60000"})
    pair.hold("Tabs or spaces?", turn="A")
    pair.until(lambda: pair.outcome, "the end")
    assert problems(pair.file) == []


@pytest.mark.slow
def test_five_hundred_notifications_at_once_make_one_reply(cast: Cast, tmp_path: Path) -> None:
    replies = Replies(tmp_path)
    pair = cast(command={"A": replies.command("held")}, environment={"DIALOGD_POLL": "1"})
    pair.start("A")
    pair.begin("What now?", turn="A", max_turns=2)
    pair.notify("A")
    pair.until(lambda: replies.asked("A"), "the call")
    took: list[float] = []
    answers: set[str] = set()

    def knock() -> None:
        for _ in range(50):
            began = time.monotonic()
            answers.add(pair["A"].notify()["status"])
            took.append(time.monotonic() - began)

    knocking = [threading.Thread(target=knock) for _ in range(10)]
    for thread in knocking:
        thread.start()
    for thread in knocking:
        thread.join()
    assert (len(took), answers) == (500, {"busy"})
    assert sorted(took)[450] < a_second() / 2
    replies.let_go()
    pair.until(lambda: pair.outcome, "the reply")
    assert len(replies.asked()) == 1
    assert problems(pair.file) == []


@pytest.mark.slow
def test_every_notification_a_hundred_times_makes_no_turn_more(cast: Cast) -> None:
    pair = cast(backend="rehearsal:slow=0.3")
    pair.hold("Tabs or spaces?", turn="A")
    before = 0
    while not pair.outcome:
        number = pair.number
        if number != before:
            before = number
            for _ in range(50):
                pair["A"].notify(**{"from": "B"})
                pair["B"].notify(**{"from": "A"})
    pair.until(lambda: pair.outcome, "the end")
    assert problems(pair.file) == []
    assert [entry.number for entry in read(pair.file)] == [1, 2, 3, 4, 5]


def test_a_notification_may_come_from_anybody_and_say_anything(cast: Cast, tmp_path: Path) -> None:
    replies = Replies(tmp_path)
    pair = cast(command=replies.command())
    pair.start()
    pair.begin("What now?", turn="A", max_turns=3)
    assert pair["B"].notify(**{"from": "A"})["status"] == "not_started"
    assert pair["B"].notify(**{"from": "nobody"})["status"] == "not_started"
    assert not replies.asked()
    assert pair.notify("A")["status"] == "accepted"
    pair.until(lambda: pair.outcome, "the end")
    assert pair.notify("A")["status"] == pair.notify("B")["status"] == "max_turns"
    assert [(who, turn) for who, turn, _ in replies.asked()] == [("A", 2), ("B", 3)]
    assert problems(pair.file) == []

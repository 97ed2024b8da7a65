"""The person outranks every daemon that is slow, frozen or busy."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dialogd import person
from tests.faults.history import problems, read
from tests.faults.replies import Replies, drafts, freeze, held_reply
from tests.logfile.files import log_of
from tests.support.pair import Pair, a_second

Cast = Callable[..., Pair]


def test_a_turn_typed_while_an_agent_thinks_ends_its_call(cast: Cast, replies: Replies) -> None:
    pair = cast(command={"A": replies.command("held"), "B": replies.command("held")})
    pair.hold("What now?", turn="A")
    pair.until(replies.alive, "the call")
    (first,) = replies.asked()
    began = time.monotonic()
    pair.types("\n## User\n\nConsider Redis too.\n\nturn: a.\n")
    pair.until(lambda: first[2] not in replies.alive(), "the end of the call")
    assert time.monotonic() - began < 2 * a_second()
    pair.until(lambda: len(replies.asked()) == 2, "the next call")
    assert replies.asked()[1][:2] == ("A", 3)


def move_on_by_hand(pair: Pair) -> None:
    pair.types("\n\n## Turn 2 — User\n\nNo. B first.\n\nTURN: B\n")


def move_on_by_command(pair: Pair) -> None:
    """The person's `say`, as the command line does it."""
    person.say(log_of(pair.file), "No. B first.", to="B")


@pytest.mark.slow
@pytest.mark.parametrize("move_on", [move_on_by_hand, pytest.param(move_on_by_command, marks=pytest.mark.slow)])
def test_a_daemon_frozen_in_a_call_wakes_too_late(
    cast: Cast, replies: Replies, move_on: Callable[[Pair], None]
) -> None:
    pair = cast(command={"A": replies.command("held"), "B": replies.command(0)})
    pair.hold("What now?", turn="A", max_turns=4)
    pair.until(lambda: replies.asked("A"), "the call")
    freeze(pair["A"])
    replies.let_go()
    pair.until(lambda: replies.answered("A"), "the answer that nobody reads")
    move_on(pair)
    pair.notify("B")
    pair.until(lambda: replies.answered("B"), "B")
    pair["A"].signal(signal.SIGCONT)
    pair.until(lambda: pair.outcome, "the end")
    assert [(entry.number, entry.by) for entry in read(pair.file)][2:] == [(3, "B"), (4, "A")]
    assert f"A-2-{replies.asked('A')[0][2]}" not in pair.file.read_text()
    assert problems(pair.file) == []


@pytest.mark.parametrize("move_on", [pytest.param(move_on_by_hand, marks=pytest.mark.slow), move_on_by_command])
def test_a_daemon_frozen_before_its_append_wakes_too_late(
    cast: Cast, replies: Replies, move_on: Callable[[Pair], None]
) -> None:
    pair = cast(command=replies.command())
    pair.start("A")
    pair.begin("What now?", turn="A", max_turns=4)
    pair.until(lambda: (pair["A"].health() or {}).get("turn") == 1, "a look")
    with held_reply(pair, begin="A") as late:
        freeze(pair["A"])
    move_on(pair)
    pair["A"].signal(signal.SIGCONT)
    pair.until(lambda: drafts(pair) == [late], "the draft")
    pair.start("B")
    pair.notify("B")
    pair.until(lambda: pair.outcome, "the end")
    assert [(entry.number, entry.by) for entry in read(pair.file)][2:] == [(3, "B"), (4, "A")]
    assert problems(pair.file) == []
    assert late not in pair.file.read_text()


def test_a_started_dialog_goes_on_with_whom_the_person_names(cast: Cast, replies: Replies) -> None:
    pair = cast(command={"A": replies.command("held"), "B": replies.command()})
    pair.hold("What now?", turn="A", max_turns=3)
    pair.until(lambda: replies.asked("A"), "the call")
    move_on_by_hand(pair)
    pair.until(lambda: replies.asked("B"), "B's call")


@pytest.mark.slow
def test_a_pause_outlives_the_daemons(cast: Cast, replies: Replies) -> None:
    pair = cast(command=replies.command("held"))
    pair.hold("What now?", turn="A", max_turns=5)
    pair.until(lambda: replies.asked("A"), "the call")
    assert pair["A"].ask("POST", "/pause")[0] == 200
    replies.let_go()
    pair.until(lambda: pair.number == 2, "the turn that was under way")
    for daemon in pair.daemons.values():
        daemon.kill()
    pair.start()
    for daemon in pair.daemons.values():
        pair.until(lambda d=daemon: (d.health() or {}).get("phase") == "paused", "the pause")  # type: ignore[misc]
    assert pair.notify("A")["status"] == pair.notify("B")["status"] == "paused"
    assert len(replies.asked()) == 1
    pair["B"].ask("POST", "/resume")
    pair.until(lambda: pair.outcome, "the end")
    assert problems(pair.file) == []
    assert len(replies.asked()) == 4


def test_a_reply_in_hand_waits_behind_an_entry_that_was_torn(cast: Cast, replies: Replies) -> None:
    pair = cast(command={"A": replies.command(), "B": replies.command("held")})
    pair.begin("What do you think?", turn="A, B", max_turns=4)
    pair.start("A")
    pair.notify("A")
    pair.until(lambda: pair.number == 2, "A's turn")
    pair.start("B")
    pair.until(lambda: replies.asked("B"), "B's call")
    with held_reply(pair, held=replies) as late:
        with pair.file.open("r+b") as file:
            file.truncate(pair.file.stat().st_size - 12)
        torn = pair.file.read_bytes()
    pair.until(lambda: "cut or overwritten" in pair["B"].said, "B to wait")
    assert pair.file.read_bytes() == torn
    pair.types("\n\n## Note — User\n\n[LIMIT: max_turns 3]\n")
    pair.until(lambda: late in pair.file.read_text(), "B's turn")
    assert len(replies.asked("B")) == 1
    assert problems(pair.file) == []


def test_an_error_waits_until_the_person_has_typed(cast: Cast, tmp_path: Path) -> None:
    pair = cast("ABC", command=f"sh -c 'until [ -e {tmp_path}/go ]; do sleep 0.05; done; exit 7'")
    pair.start("A")
    pair.begin("What now?", turn="A")
    pair.notify("A")
    pair.until(lambda: (pair["A"].health() or {}).get("phase") == "thinking", "the call")
    pair.types("\nConsider Re")
    (tmp_path / "go").touch()
    pair.until(lambda: "exited 7" in pair["A"].said, "the error")
    pair.types("dis too.\n\n[LIMIT: max_turns 30]\n")
    pair.until(lambda: "AGENT_ERROR" in pair.file.read_text(), "the note")
    assert "\nConsider Redis too.\n" in pair.file.read_text()
    assert problems(pair.file) == []

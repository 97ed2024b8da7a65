"""While you were away: what happened in a dialog since some turn."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from dialogd.errors import BadInput
from dialogd.memory import records as values
from dialogd.protocol.grammar import parse
from dialogd.protocol.model import Addition, Draft
from dialogd.views.flow import after, as_text, away, last_word, since_turn
from tests.protocol.test_questions import berlin
from tests.support.cases import cases
from tests.support.paper import Paper, clock_at
from tests.support.room import Room, opening

VOTE = '## Setup\n\n```toml\nverdict = "vote"\norder = "round-robin"\n```'
NOW = "2026-11-21T21:30:00+01:00"  # an hour and a half after a room's beginning
HERE = clock_at(timezone(timedelta(hours=1)))


def three(*lines: tuple[str, str]) -> Room:
    """Three voters in which these have said this, ten minutes apart."""
    room = Room(opening("A", "B", "C", more=VOTE))
    for who, line in lines:
        room.thinks(who)
        room.advance(600)
        room.answers(who, line)
    return room


@pytest.fixture
def voted() -> Room:
    """Three agents: a proposal, an objection that stays, a change of mind, a question."""
    return three(
        ("A", "[PROPOSAL: Postgres]"),
        ("B", "[VOTE: P1 reject | slow]\n[QUESTION: how many reads?]"),
        ("C", "Two hundred.\n\n[VOTE: P1 reject | cost]\n[OBJECTION: P1 costs too much]"),
        ("A", "[PROPOSAL: Redis]\n[VOTE: P2 approve | fast]\n[CONCEDE: P1 was slow]"),
    )


def texts(room: Room, kind: str, since: int = 0) -> list[str]:
    """The words of one kind of news."""
    return [item.text for item in away(room.dialog, since).items[kind]]


def pair(a: list[str], b: list[str], *typed: str, **more: Any) -> Room:
    """Two agents that have said this until nobody had anything to do, and what was typed then."""
    room = Room(opening("A", "B", **more), A=a, B=b)
    room.run()
    for text in typed:
        room.types(f"\n## Note — {'System' if 'ERROR' in text or 'STOPPED' in text else 'User'}\n\n[{text}]\n")
    return room


def rejecting() -> Room:
    """A result that the person has rejected."""
    room = pair(["## Consensus Summary\n\nPostgres.\n\n[CONSENSUS_REACHED]"], ["[AGREE: P1]", "[PROPOSAL: Redis]"])
    room.reject("It forgets the migration.")
    return room


BOTH = "## Consensus Summary\n\nBoth.\n\n[CONSENSUS_REACHED]"
YES = "[VOTE: P1 approve]"
NEWS: Mapping[str, Callable[[], Room]] = {
    "decided": lambda: three(("A", "[PROPOSAL: Postgres]"), ("B", YES), ("C", YES), ("A", YES)),
    "signed": lambda: pair(["[PROPOSAL: Redis]", BOTH], ["[RE: P1]\n[OBJECTION: too new]", "[AGREE: P2]"]),
    "rejected": rejecting,
    "out of turns": lambda: pair(
        ["[QUESTION]", "[QUESTION: how many reads?]"], ["Two hundred.\n\n[QUESTION]", "Who knows."],
        keys=["Max Turns: 5"],
    ),
    "failed, vetoed, invited": lambda: pair(
        ["[PROPOSAL: Redis]"], [], "AGENT_ERROR: B | no key | set one", "VETO: P1",
        "INVITE: C = Carol @ http://localhost:3003",
    ),
    "at a limit": lambda: pair(["Well."], [], "STOPPED: budget: it is full"),
    "no room left": lambda: pair(["Well."], [], "STOPPED: size: it is full"),
}  # fmt: skip
GOLDEN = Path(__file__).parent / "plans" / "away.txt"


def test_the_news_of_a_dialog_are_what_was_reviewed(voted: Room) -> None:
    """After a change that is meant: `UPDATE_GOLDENS=1`."""
    told = [f"== {name}\n{as_text(away(make().dialog, 0))}\n" for name, make in NEWS.items()]
    told += [f"== voted, since turn {since}\n{as_text(away(voted.dialog, since))}\n" for since in (0, 3, 5)]
    if os.environ.get("UPDATE_GOLDENS"):
        GOLDEN.write_text("\n".join(told), encoding="utf-8")
    assert "\n".join(told) == GOLDEN.read_text(encoding="utf-8")


def test_only_what_came_since_is_news(voted: Room) -> None:
    assert [entry.id for entry in after(voted.dialog, 4)] == ["5"]
    assert (away(voted.dialog, 0).turns, away(voted.dialog, 5).turns) == (5, 0)
    voted.types("\n## Note — User\n\n[LIMIT: max_turns 40]\n")
    assert texts(voted, "limits", 5) == ["The person set the limit of turns to 40."]
    room = rejecting()
    assert texts(room, "rejected", 3) == ["The person rejected the result: It forgets the migration."]
    assert texts(room, "rejected", 4) == texts(room, "withdrawn") == []


def test_what_is_needed_of_the_person_stands_first(voted: Room) -> None:
    assert away(voted.dialog, 0).needed == ""
    voted.says("B", "[QUESTION_FOR_USER: which region? | by 2026-11-21T22:00:00Z | default: eu]")
    news = away(voted.dialog, 4)
    terms = "by 2026-11-21 22:00 UTC; default: eu (not taken: this dialog takes no defaults)"
    assert (news.needed, news.now) == (f"answer B: which region? ({terms})", "under way: it waits for you")
    assert "(by 2026-11-22 00:00; default: eu" in away(voted.dialog, 4, clock_at(timezone(timedelta(hours=2)))).needed
    lines = as_text(news, width=200).split("\n")
    asked = "Claude B asked the person: which region?; to be answered by 2026-11-21T22:00:00Z; without an answer: eu."
    assert (lines[2], lines[4:6]) == (f"needed from you: {news.needed}", ["asked you:", f"  turn 6: {asked}"])
    voted.say("eu")
    assert away(voted.dialog, 4).items["asked_you"] == []
    voted.stop()
    assert texts(voted, "ended") == ["The person stopped the dialog."]


def test_an_end_is_told_once_and_a_word_by_hand_is_none() -> None:
    room = Room(opening("A", "B"))
    room.types("\n## Turn 2 — Claude A\n\n[CONSENSUS_REACHED]\n\nTURN: B\n")
    assert texts(room, "ended") == []
    room.types("\n## Note — System\n\n[STOPPED: size: it is full]\n")
    said = "The file is as large as it may get, and the dialog ended: it is full."
    assert (texts(room, "ended"), texts(room, "errors")) == ([said], [])


def test_money_is_that_of_these_turns() -> None:
    paper = Paper(opening("A", "B").encode())
    for number, who in ((2, "A"), (3, "B")):
        spent = (("in", "10"), ("out", "5"), ("usd", f"0.{number}"))
        draft = Draft(who, f"Claude {who}", number, "Words.", (), ("B" if who == "A" else "A",), spent)
        paper.append(lambda _, draft=draft: Addition(draft))
    assert as_text(away(paper.read(), 0)).startswith("since the beginning: 3 turns, $0.50\n")
    assert as_text(away(paper.read(), 2)).startswith("since turn 2: 1 turn, $0.30\n")
    assert "$" not in as_text(away(paper.read(), 3))


def test_a_screenful_tells_how_much_it_leaves_out() -> None:
    room = Room(opening("A", "B", keys=["Max Turns: 40"]))
    for number in range(9):
        who = "AB"[number % 2]
        room.says(who, f"[IDEA: {number}]\n[PROPOSAL: way {number} {'very ' * 60}long]")
    told = as_text(away(room.dialog, 1), most=3, width=80).split("\n")
    assert "proposed: 9" in told
    assert "  and 6 earlier" in told
    assert sum("way " in line for line in told) == 3
    assert max(map(len, told)) <= 80
    room.types("\n## Note — User\n\n[VETO: P9]\n")
    (vetoed,) = [
        line for line in as_text(away(room.dialog, 1), most=1, width=60).split("\n") if "proposed P9: way" in line
    ]
    assert vetoed.endswith("… (withdrawn)")
    assert len(vetoed) <= 60


WHEN = {
    "7": 7,
    "turn 3": 3,
    "#2": 2,
    "2h": 0,
    "90m": 0,
    "80 minutes ago": 2,
    "65m": 3,
    "1d": 0,
    "today": 0,
    "yesterday": 0,
    "2026-11-21T20:10": 2,
    "2026-11-21t19:25:00z": 3,
    "5 min": 5,
    "1h 15m": 2,
    "1.25 hours ago": 2,
    "1 hr and 15 mins": 2,
}


def test_since_is_a_turn_or_a_time(voted: Room) -> None:
    assert {words: since_turn(voted.dialog, words, NOW, HERE) for words in WHEN} == WHEN


@cases("words", ["", "soon", "-3", "2 parsecs", "99999999999w", "2026-13-40", "7.5"])
def test_what_is_neither_is_refused(voted: Room, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        since_turn(voted.dialog, words, NOW, HERE)
    assert "2h" in refused.value.fix


@cases("words", ["soon", "7", "turn 7", "2026-13-40", "0001-01-01", "9999-12-31T23:00-05:00"])
def test_a_search_refuses_what_is_no_time(words: str) -> None:
    with pytest.raises(BadInput, match="is no time"):
        values.since(words, datetime.fromisoformat(NOW), HERE)


def test_a_search_reads_the_times_that_a_digest_reads() -> None:
    now = datetime.fromisoformat(NOW)
    said = [words for words in WHEN if words not in ("7", "turn 3", "#2")]
    kept = [values.since(words, now, berlin) for words in ("", *said)]
    assert (kept[0], all(kept[1:]), len(kept) > 9) == ("", True, True)
    assert values.since("Yesterday", now, berlin) == "2026-11-19T23:00:00Z"
    assert values.since("2026-07-01", now, berlin) == "2026-06-30T22:00:00Z"
    assert values.since("1d 90m", now, berlin) == "2026-11-20T19:00:00Z"


def test_the_persons_last_word_is_where_news_begin(voted: Room) -> None:
    assert last_word(voted.dialog) == 1
    voted.types("\n## Note — User\n\n[PAUSED]\n")
    assert last_word(voted.dialog) == 5
    assert last_word(parse(b"# D\n\n**Topic:** x\n")) == 0

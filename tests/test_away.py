"""While you were away: what happened in a dialog since some turn."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest

from dialogd.errors import BadInput
from dialogd.memory import past as values
from dialogd.memory.past import facts
from dialogd.protocol.grammar import parse
from dialogd.protocol.model import Draft
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import clock_at
from dialogd.store.logfile import Addition
from dialogd.views.documents import plan_facts as as_json
from dialogd.views.flow import after, as_text, away, last_word, since_turn
from dialogd.views.plan import Plan
from tests.protocol.test_questions import berlin
from tests.protocol.test_total import is_linear
from tests.support.cases import cases
from tests.support.paper import Paper
from tests.support.room import Room, opening

VOTE = '## Setup\n\n```toml\nverdict = "vote"\norder = "round-robin"\n```'
NOW = "2026-11-21T21:30:00+01:00"  # an hour and a half after a room's beginning


@pytest.fixture
def voted() -> Room:
    """Three agents: a proposal, an objection that stays, a change of mind, a question, a limit, a decision."""
    room = Room(opening("A", "B", "C", more=VOTE))
    for who, line in (
        ("A", "[PROPOSAL: Postgres]"),
        ("B", "[VOTE: P1 reject | slow]\n[QUESTION: how many reads?]"),
        ("C", "Two hundred.\n\n[VOTE: P1 reject | cost]\n[OBJECTION: P1 costs too much]"),
        ("A", "[PROPOSAL: Redis]\n[VOTE: P2 approve | fast]\n[CONCEDE: P1 was slow]"),
    ):
        room.thinks(who)
        room.advance(600)
        room.answers(who, line)
    return room


def texts(room: Room, kind: str, since: int = 0) -> list[str]:
    """The words of one kind of news."""
    return [item.text for item in away(room.dialog, since).items[kind]]


def test_news_are_read_from_the_marks(voted: Room) -> None:
    assert texts(voted, "proposed") == ["P1 Postgres", "P2 Redis"]
    assert texts(voted, "asked") == ["to C: how many reads?"]
    assert texts(voted, "answered") == ["how many reads? → Two hundred."]
    assert texts(voted, "conceded") == ["P1 was slow"]
    assert texts(voted, "changed") == ["P1: for → conceded"]
    assert texts(voted, "objections") == ["P1 P1 costs too much"]
    assert away(voted.dialog, 0).turns == 5


def test_only_what_came_since_is_news(voted: Room) -> None:
    assert texts(voted, "proposed", 3) == ["P2 Redis"]
    assert texts(voted, "asked", 3) == []
    assert texts(voted, "answered", 3) == ["how many reads? → Two hundred."]
    assert [entry.id for entry in after(voted.dialog, 4)] == ["5"]
    assert away(voted.dialog, 5).turns == 0
    voted.types("\n## Note — User\n\n[LIMIT: max_turns 40]\n")
    assert texts(voted, "limits", 5) == ["limit: max_turns 40"]


def test_what_is_needed_of_the_person_stands_first(voted: Room) -> None:
    assert away(voted.dialog, 0).needed == ""
    voted.says("B", "[QUESTION_FOR_USER: which region? | by 2026-11-21T22:00:00Z | default: eu]")
    news = away(voted.dialog, 4)
    terms = "by 2026-11-21 22:00 UTC; default: eu (not taken: this dialog takes no defaults)"
    assert news.needed == f"answer B: which region? ({terms})"
    assert "(by 2026-11-22 00:00; default: eu" in away(voted.dialog, 4, clock_at(timezone(timedelta(hours=2)))).needed
    assert news.now == "under way: it waits for you"
    assert [item.text for item in news.items["asked_you"]] == ["which region?"]
    lines = as_text(news).split("\n")
    assert lines[2] == f"needed from you: {news.needed}"
    assert lines[4:6] == ["asked you:", "  turn 6, B: which region?"]
    voted.say("eu")
    assert away(voted.dialog, 4).items["asked_you"] == ()
    voted.stop()
    assert texts(voted, "ended") == ["The dialog was stopped"]


def test_what_everybody_signed_settles_the_objections_before_it() -> None:
    agreed = "## Consensus Summary\n\nBoth.\n\n[CONSENSUS_REACHED]"
    room = Room(opening("A", "B"), A=["[PROPOSAL: Redis]", agreed], B=["[RE: P1]\n[OBJECTION: too new]", "[AGREE: P2]"])
    room.run()
    assert room.dialog.state.outcome is not None
    assert texts(room, "objections") == []
    room.reject("no")
    assert len(texts(room, "objections")) == 1


def test_a_decision_is_told_with_its_text_and_evidence() -> None:
    room = Room(opening("A", "B", "C", more=VOTE))
    approve = "[VOTE: P1 approve]"
    for who, line in (("A", "[PROPOSAL: Postgres]"), ("B", approve), ("C", approve), ("A", approve)):
        room.says(who, line)
    news = away(room.dialog, 1)
    (decided,) = news.items["decided"]
    assert decided.text.startswith("P1 approved (vote): Postgres; 3 for")
    assert "dialogd approve" in news.needed


def test_an_end_without_a_result_has_nothing_to_take() -> None:
    lines = {"A": ["[QUESTION]", "[QUESTION: how many reads?]"], "B": ["Two hundred.\n\n[QUESTION]", "Who knows."]}
    room = Room(opening("A", "B", keys=["Max Turns: 5"]), **lines)
    room.run()
    needed = "say how it ends: `dialogd approve` closes it as it is, `dialogd say …` opens it again"
    assert away(room.dialog, 0).needed == needed
    assert texts(room, "asked") == ["to B: how many reads?"]
    assert texts(room, "answered") == ["how many reads? → Who knows."]


def test_what_the_person_rejected_is_not_told_as_decided() -> None:
    agreed = "## Consensus Summary\n\nPostgres.\n\n[CONSENSUS_REACHED]"
    room = Room(opening("A", "B"), A=[agreed], B=["[AGREE: P1]", "[PROPOSAL: Redis]"])
    room.run()
    assert [text.partition(";")[0] for text in texts(room, "decided")] == ["P1 approved: Postgres."]
    room.reject("It forgets the migration.")
    assert texts(room, "decided") == []
    assert texts(room, "rejected", 3) == ["P1 approved: Postgres.; because: It forgets the migration."]
    assert texts(room, "rejected", 4) == texts(room, "withdrawn") == []
    assert "\nrejected by you:\n  turn 4, User: P1" in as_text(away(room.dialog, 0))


def test_an_end_is_told_with_what_opened_the_dialog_again() -> None:
    room = Room(opening("A", "B"))
    room.types("\n## Turn 2 — Claude A\n\n[CONSENSUS_REACHED]\n\nTURN: B\n")
    assert texts(room, "ended") == []
    ends = {"budget": "The budget was reached", "size": "The file is as large as it may get"}
    for cause, words in ends.items():
        room.types(f"\n## Note — System\n\n[STOPPED: {cause}: it is full]\n")
        assert texts(room, "ended", room.dialog.state.number) == [f"{words}, and the dialog ended: it is full"]
        room.say("Go on.")
    number = room.dialog.state.number
    assert texts(room, "ended") == [
        f"{ends['budget']}, and the dialog ended: it is full, opened again in turn {number - 1}",
        f"{ends['size']}, and the dialog ended: it is full, opened again in turn {number}",
    ]
    assert texts(room, "errors") == []


def test_errors_and_people_and_withdrawals_are_news() -> None:
    room = Room(opening("A", "B"), A=["[PROPOSAL: Redis]"])
    room.step("A")
    room.types("\n## Note — System\n\n[AGENT_ERROR: B | no key | set one]\n")
    room.types("\n## Note — User\n\n[VETO: P1]\n\n## Note — User\n\n[INVITE: C = Carol @ http://localhost:3003]\n")
    assert texts(room, "errors") == ["failure: Claude B; no key; set one"]
    assert texts(room, "people") == ["invited: C = Carol @ http://localhost:3003"]
    assert texts(room, "withdrawn") == ["ruled out: P1"]
    assert "turn 2, A: P1 Redis (withdrawn)" in as_text(away(room.dialog, 0))


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
    (vetoed,) = [line for line in as_text(away(room.dialog, 1), most=1, width=60).split("\n") if ", A: P9 way" in line]
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
    assert {words: since_turn(voted.dialog, words, NOW) for words in WHEN} == WHEN


@cases("words", ["", "soon", "-3", "2 parsecs", "99999999999w", "2026-13-40", "7.5"])
def test_what_is_neither_is_refused(voted: Room, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        since_turn(voted.dialog, words, NOW)
    assert "2h" in refused.value.fix


@cases("words", ["soon", "7", "turn 7", "2026-13-40", "0001-01-01", "9999-12-31T23:00-05:00"])
def test_a_search_refuses_what_is_no_time(words: str) -> None:
    with pytest.raises(BadInput, match="is no time"):
        values.since(words, datetime.fromisoformat(NOW), clock_at(timezone(timedelta(hours=1))))


def test_a_search_reads_the_times_that_a_digest_reads() -> None:
    now = datetime.fromisoformat(NOW)
    said = [words for words in WHEN if words not in ("7", "turn 3", "#2")]
    kept = [values.since(words, now, berlin) for words in ("", *said)]
    assert (kept[0], all(kept[1:]), len(kept) > 9) == ("", True, True)
    assert values.since("Yesterday", now, berlin) == "2026-11-19T23:00:00Z"
    assert values.since("2026-07-01", now, berlin) == "2026-06-30T22:00:00Z"
    assert values.since("1d 90m", now, berlin) == "2026-11-20T19:00:00Z"


def rejected(count: int) -> Dialog:
    """So many agreements that were written by hand, each rejected."""
    rounds = (
        f"\n## Turn {3 * n + 2} - A\n\n## Consensus Summary\n\nText {n}.\n\n[CONSENSUS_REACHED]\n\nTURN: B\n"
        f"\n## Turn {3 * n + 3} - B\n\n[AGREE: P{n + 1}]\n\n[CONSENSUS_REACHED]\n"
        f"\n## Turn {3 * n + 4} - User\n\n[REJECTED: not {n}]\n\nTURN: A\n"
        for n in range(count)
    )
    return parse((opening("A", "B") + "".join(rounds)).encode())


@cases("answer", [partial(away, since=0), facts, lambda dialog: as_json(Plan(dialog))])
def test_the_cost_of_an_answer_grows_with_the_rejections(answer: Callable[[Dialog], object]) -> None:
    assert len(away(rejected(3), 0).items["rejected"]) == len(facts(rejected(3)).decisions) == 3
    assert is_linear(lambda n: answer(rejected(n)), size=15)


def test_the_persons_last_word_is_where_news_begin(voted: Room) -> None:
    assert last_word(voted.dialog) == 1
    voted.types("\n## Note — User\n\n[PAUSED]\n")
    assert last_word(voted.dialog) == 5
    assert last_word(parse(b"# D\n\n**Topic:** x\n")) == 0

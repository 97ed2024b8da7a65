"""Questions to the person: how they are read, what stands in the file, when a default counts, what is told to whom."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialogd.errors import BackendError, Refused
from dialogd.protocol import board, lifecycle, questions
from dialogd.protocol.decide import Clock, Reply, Wait, Write, decide
from dialogd.protocol.grammar import parse
from dialogd.protocol.header import read_header
from dialogd.protocol.marks import canonical, read_reply
from dialogd.protocol.model import SYSTEM, Mark, Participant
from dialogd.protocol.questions import NAME
from dialogd.protocol.state import Dialog, Question
from dialogd.protocol.text import as_iso, moment_of, seconds_between
from dialogd.templates import Opening, compose, template
from tests.support.cases import cases
from tests.support.paper import BEGINNING
from tests.support.room import Room, opening, waits

HERE = "2026-11-22T14:00:20+01:00"
ALLOWED = "## Setup\n\n```toml\nquestion_defaults = true\n```"
ASKS = "It depends.\n\n[QUESTION_FOR_USER: Postgres or Redis? | in 20m | default: keep Postgres]"


def mark(value: str, at: str = HERE) -> tuple[str, ...]:
    """What a daemon writes of a question with that value: its own value, then the remarks'."""
    return tuple(m.value for m in questions.written((Mark(NAME, value),), at))


def berlin(moment: datetime) -> datetime:
    """A clock that is an hour ahead in summer: +02:00 from April to October, else +01:00."""
    offset = timezone(timedelta(hours=2 if 4 <= moment.month <= 10 else 1))
    return moment.astimezone(offset) if moment.tzinfo else moment.replace(tzinfo=offset)


def at(stage: Room, **later: float) -> str:
    """Wall time in a room, some time from now."""
    now = datetime.fromisoformat(stage.paper.at.replace("Z", "+00:00")) + timedelta(**later)
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


# -- how a question is read -----------------------------------------------------------------------------------------

TODAY, TOMORROW = "x | by 2026-11-22T{}+01:00", "x | by 2026-11-23T{}+01:00"
FORM = "no deadline: write in 30m or by 2026-11-22T18:00+01:00"
READ: dict[str, tuple[str, ...]] = {
    "x | by 2026-11-22T18:00:00+01:00": (TODAY.format("18:00:00"),),
    "x | By 2026-11-22 18:00 +0100": (TODAY.format("18:00:00"),),
    "x | by 2026-11-22T17:00Z": ("x | by 2026-11-22T17:00:00Z",),
    "x | in 2h": (TODAY.format("16:01:00"),),
    "x | in 90 m": (TODAY.format("15:31:00"),),
    "x | In 1D": (TOMORROW.format("14:01:00"),),
    "in 2h | default: keep | x": (f"{TODAY.format('16:01:00')} | default: keep",),
    "x|in 2h|Default: keep": (f"{TODAY.format('16:01:00')} | default: keep",),
    "in 2h": (TODAY.format("16:01:00").removeprefix("x | "),),
    "x | in 2h | by 2026-11-22T16:00:20+01:00": (TODAY.format("16:01:00"),),
    # at least 15 minutes
    "x | in 5m": (TODAY.format("14:16:00"),),
    "x | by 2026-11-22T14:15:59+01:00": (TODAY.format("14:16:00"),),
    "x | by 2020-01-01T10:00Z | default: y": (f"{TODAY.format('14:16:00')} | default: y",),
    # no deadline
    "x": ("x",),
    "Postgres | Redis | or in memory?": ("Postgres | Redis | or in memory?",),
    "default: yes or no?": ("default: yes or no?",),
    "x | in Postgres or before Redis?": ("x | in Postgres or before Redis?",),
    "x | in 2h | in 3h": ("x", f"{NAME} in 2h / in 3h | several deadlines: none of them counts"),
    "x | default: a | default: b": ("x", f"{NAME} default: a / default: b | several defaults: none of them counts"),
}
TRIED = (
    *(
        *("by whom?", "by 18", "by 18:00", "by 2026-02-30T10:00Z", "by 2026-11-22 18:00", "by tomorrow 09:00"),
        "in 2 hours",
    ),
    *("within 30m", "in 8d", "in 0m"),
)


@cases(
    ("said", "stands"), [*READ.items(), *((f"x | {one}", (f"x | {one}", f"{NAME} {one} | {FORM}")) for one in TRIED)]
)
def test_a_deadline_is_read_in_its_literal_forms_and_the_rest_stays_text(said: str, stands: tuple[str, ...]) -> None:
    assert mark(said) == stands
    assert bool(questions.parse(Mark(NAME, stands[0])).by) is (" | by " in f" | {stands[0]}" and len(stands) == 1)


def test_without_a_time_nothing_is_a_deadline() -> None:
    assert mark("x | in 2h", "") == ("x | in 2h",)
    (value,) = mark("x | by 2026-11-22T18:00:00Z", "soon")
    assert questions.parse(Mark(NAME, value)).by == ""


def test_a_deadline_is_told_by_the_readers_clock() -> None:
    far = "2027-04-01T18:00:00+02:00"
    at = "2026-11-22T14:00:00Z"
    assert questions.until_in_words(far, at, berlin) == "by 2027-04-01 18:00"
    assert questions.until_in_words("2026-11-22T18:00:00Z", at, berlin) == "by 19:00"
    assert questions.until_in_words("2026-11-22T23:30:00Z", at, berlin) == "by 2026-11-23 00:30"
    assert questions.until_in_words("2026-11-22T18:00:00Z", at) == "by 18:00 UTC"
    assert questions.until_in_words(far, at) == "by 2027-04-01 18:00 UTC+02:00"


MOMENTS = st.one_of(
    st.sampled_from(["18:00", "6pm", "noon", "tomorrow 9:00", "18"]),
    st.datetimes(timezones=st.none() | st.timezones()).map(lambda time: time.isoformat()),
    st.integers(0, 10**6).map(lambda number: f"{number} minutes"),
    st.text("0123456789:-T+Zpm ", max_size=20),
)
FIELDS = st.one_of(
    st.builds("{}{}".format, st.sampled_from(["by ", "By: ", "until ", "in ", "within ", "by in "]), MOMENTS),
    st.builds("{}{}".format, st.sampled_from(["default: ", "default = ", "Default:"]), st.text(max_size=12)),
    st.text(max_size=20),
    st.sampled_from(["", "|", "in 2h", "by 2026-11-22T18:00:00Z", "default: default: x", "“x”", "x]"]),
)
VALUES = st.lists(FIELDS, max_size=5).flatmap(
    lambda fields: st.sampled_from([" | ", "|", " |", " / "]).map(lambda bar: " ".join(bar.join(fields).split()))
)
TIMES = st.datetimes(datetime(2001, 1, 1), datetime(2300, 1, 1)).map(lambda time: time.isoformat(timespec="seconds"))
OFFSETS = st.sampled_from(["Z", "+00:00", "+01:00", "-08:00", "+05:45", "+14:00"])


@given(VALUES, st.builds("{}{}".format, TIMES, OFFSETS))
def test_no_question_breaks_the_reader_or_hurries_the_person(value: str, here: str) -> None:
    first, *remarks = questions.written((Mark(NAME, value),), here)
    found = questions.parse(first)
    moment = moment_of(found.by)
    assert found.by == (as_iso(moment) if moment else "")
    left = seconds_between(here, found.by)
    assert left is None or left >= questions.LEAST
    assert {remark.name for remark in remarks} <= {"REFUSED"}
    if "\n" not in value and "\r" not in value:
        assert canonical(str(first)) == first
    again, *_ = questions.written((first,), here)
    assert replace(questions.parse(again), text="") == replace(found, text="")


def test_a_question_goes_through_the_file_and_back() -> None:
    stage = Room(opening(more=ALLOWED), A=["Hm.\n\n- **[question_for_user: which? | in 4h | default: a]**"])
    stage.step("A")
    (question,) = stage.dialog.state.questions.open
    assert question == Question("which?", at(stage, hours=4)[:-3] + "00Z", "a", "A", "2")
    assert stage.dialog.state.questions.text == "which?"
    (asked,) = stage.dialog.state.questions.open
    assert (asked.by, asked.default) == (question.by, question.default)
    assert not read_reply("```\n[QUESTION_FOR_USER: which? | in 4h]\n```").marks


# -- what becomes of it ---------------------------------------------------------------------------------------------


def asking(more: str = ALLOWED, reply: str = ASKS, **scripts: list[str]) -> Room:
    """A has asked, with a deadline 21 minutes ahead and a default."""
    stage = Room(opening("A", "B", more=more), A=[reply, *scripts.pop("A", [])], **scripts)
    stage.step("A")
    return stage


def test_a_default_is_taken_once_at_its_deadline_by_whoever_comes_first() -> None:
    stage = asking()
    wait = stage.look("B")
    assert isinstance(wait, Wait)
    assert wait.seconds == seconds_between(stage.paper.at, stage.dialog.state.questions.open[0].by)
    stage.advance(wait.seconds - 1)
    assert waits(stage.look("A")) == "waiting_for_user"
    stage.advance(1)
    seen = {me: stage.look(me) for me in "AB"}
    assert all(isinstance(action, Write) for action in seen.values())
    stage.step("B")
    note = stage.dialog.last
    assert (note.by, note.is_turn, note.body) == (SYSTEM, False, "")
    assert [str(m) for m in note.marks] == ["[DEFAULT_TAKEN: keep Postgres]"]
    assert note.turn == ("A",)
    assert stage.dialog.state.questions.open == ()
    assert isinstance(stage.look("A"), Reply)  # the other daemon decides again: there is nothing to take any more
    told = stage.thinks("A")
    assert "The person did not answer by 2026-11-21T19:20:00Z; your default was taken, and is not their word" in told
    stage.answers("A", "Postgres it is.")
    assert "your default was taken" not in stage.thinks("B")


def test_defaults_are_taken_once_the_last_deadline_has_passed() -> None:
    stage = asking(reply=f"{ASKS}\n[QUESTION_FOR_USER: one region or two? | in 60m | default: one]")
    first, second = (
        seconds_between(stage.paper.at, question.by) or 0.0 for question in stage.dialog.state.questions.open
    )
    assert 0 < first < second
    stage.advance(first)
    assert [waits(stage.step(me)) for me in "AB"] == ["waiting_for_user"] * 2
    stage.advance(second - first)
    stage.step("B")
    assert [str(m) for m in stage.dialog.last.marks] == ["[DEFAULT_TAKEN: keep Postgres]", "[DEFAULT_TAKEN: one]"]


HELD = {
    "not allowed": ("", ASKS, lambda stage: None),
    "no default": (ALLOWED, "[QUESTION_FOR_USER: which? | in 20m]", lambda stage: None),
    "no deadline": (ALLOWED, "[QUESTION_FOR_USER: which? | default: a]", lambda stage: None),
    "paused": (ALLOWED, ASKS, Room.pause),
    "step mode": (ALLOWED.replace("true", "true\nstep = true"), ASKS, lambda stage: None),
    "another question": (ALLOWED, f"{ASKS}\n[QUESTION_FOR_USER: and why?]", lambda stage: None),
    "typing": (ALLOWED, ASKS, lambda stage: stage.types("\nI would say")),
    "switched off": (ALLOWED.replace("true", "false"), ASKS, lambda stage: None),
    "nonsense": (ALLOWED.replace("true", '"yes"'), ASKS, lambda stage: None),
}


@cases("name", HELD)
def test_nothing_else_takes_a_default(name: str) -> None:
    more, reply, meanwhile = HELD[name]
    stage = asking(more, reply)
    meanwhile(stage)
    for _ in range(3):
        stage.advance(5000)
        assert {waits(stage.step(me)) for me in "AB"} <= {"waiting_for_user", "paused"}
    assert all(entry.mark("DEFAULT_TAKEN") is None for entry in stage.dialog.entries)
    stage.say("Redis.", to="A")
    assert stage.dialog.state.owing == ("A",)
    assert stage.dialog.state.questions.open == ()


def test_the_reason_says_how_the_deadline_stands() -> None:
    stage = asking("")
    first = stage.look("A")
    stage.advance(300)
    assert isinstance(first, Wait)
    assert isinstance(again := stage.look("A"), Wait)
    assert again.reason == first.reason
    assert "(by 19:20 UTC; default: keep Postgres (not taken: this dialog takes no defaults))" in first.reason
    stage.advance(3000)
    late = stage.look("A")
    assert isinstance(late, Wait)
    told = decide(stage.dialog, "A", replace(stage.clock(), zone=berlin))
    assert isinstance(told, Wait)
    assert "(by 20:20, which has passed; default: keep Postgres (not taken" in told.reason
    assert "(by 19:20 UTC, which has passed; default: keep Postgres (not taken" in late.reason
    assert late.seconds is None
    assert questions.rows(asking().dialog, "2026-11-21T18:15:00Z") == [
        "A asks: Postgres or Redis?; by 19:20 UTC, in 1 hour 5 minutes; default: keep Postgres (taken then)"
    ]
    assert "by 2026-11-21 19:20 UTC, in 1 day" in questions.rows(stage.dialog, "2026-11-20T19:20:00Z")[0]


def test_the_wall_clock_may_jump() -> None:
    stage = asking()
    due = Clock(at=at(stage, hours=1))
    early = Clock(at=at(stage, days=-400))
    assert isinstance(decide(stage.dialog, "A", due), Write)
    assert waits(decide(stage.dialog, "A", early)) == "waiting_for_user"
    assert waits(decide(stage.dialog, "A", Clock())) == "waiting_for_user"


def test_after_a_restart_the_deadline_still_stands() -> None:
    stage = asking()
    dialog = parse(stage.paper.data)
    for minutes, expected in ((5, "waiting_for_user"), (20, "Write"), (79, "Write"), (81, "lain")):
        clock = Clock(at=at(stage, minutes=minutes), nudged=False, lain=2e5)
        assert waits(decide(dialog, "B", clock)) == expected
    assert isinstance(decide(dialog, "B", Clock(at=at(stage, days=9), lain=2e5)), Write)
    assert waits(decide(asking("").dialog, "B", Clock(at=at(stage, minutes=30), nudged=False, lain=2e5))) == "lain"


def test_an_answer_at_the_same_moment_wins_or_comes_after() -> None:
    stage = asking()
    stage.advance(5000)
    assert isinstance(stage.look("A"), Write)
    stage.say("Redis.")
    assert waits(stage.look("B")) == "not_my_turn"
    late = asking()
    late.advance(5000)
    late.step("B")
    late.say("Redis, still.")
    assert late.dialog.state.owing == ("A",)
    assert "Redis, still." in late.thinks("A")


def test_questions_of_a_round_are_answered_together() -> None:
    stage = Room(
        opening("A", "B", "C", turn="A, B, C"),
        A=["[QUESTION_FOR_USER: how many?]\n[QUESTION_FOR_USER: and where?]"],
        B=["Hm."],
        C=["[QUESTION_FOR_USER: who?]"],
    )
    stage.step("A")
    assert stage.dialog.state.owing == ("B", "C")
    for me in "CB":
        stage.step(me)
    assert stage.dialog.state.questions.text == "how many? / and where? / who?"
    assert [fact["asker"] for fact in questions.facts(stage.dialog)] == ["A", "A", "C"]
    stage.say("Ten, here, me.")
    assert stage.dialog.state.owing == ("A", "C")


def test_a_question_in_a_daemons_note_is_a_question() -> None:
    setup = '## Setup\n\n```toml\nverdict = "moderator"\n\n[roles.M]\nrole = "moderator"\n```'
    escalates = "[PROPOSAL: x]\n[ESCALATE: stuck | by 2026-11-21T19:00:01Z | default: approve P1]"
    stage = Room(opening("A", "M", more=setup), A=[escalates], M=["I cannot say."])
    stage.step("A")
    stage.step("M")
    (question,) = stage.dialog.state.questions.open
    assert (question.by, question.default) == ("", "")
    assert question.text == "M did not decide; please do: stuck / by 2026-11-21T19:00:01Z / default: approve P1"
    more = '## Setup\n\n```toml\norder = "round-robin"\n```'
    silent = Room(
        opening("A", "B", "C", more=more), A=["[PASS]"], B=["[PASS]"], C=[BackendError("down", fix="wait")] * 2
    )
    silent.scripts["A"] *= 2
    silent.scripts["B"] *= 2
    for me in "ABCABC":
        silent.step(me)
    note = silent.dialog.last
    assert (note.by, note.turn) == (SYSTEM, ("USER",))
    assert silent.dialog.state.questions.text == "everybody passed: close the dialog, or say what is missing"
    assert silent.dialog.state.questions.askers == ()
    wait = silent.look("A")
    assert isinstance(wait, Wait)
    assert wait.reason == f"waiting for the person: {silent.dialog.state.questions.text}"


def test_a_new_question_takes_the_place_of_its_askers_old_one() -> None:
    stage = asking(A=["[QUESTION_FOR_USER: or Mongo?]"])
    stage.retry("A")
    stage.step("A")
    assert stage.dialog.state.questions.text == "or Mongo?"


# -- who allows it --------------------------------------------------------------------------------------------------


def test_defaults_are_allowed_by_the_file_alone() -> None:
    pair = template("pair")
    agents = (
        Participant("A", "Claude A", "http://localhost:3001"),
        Participant("B", "Claude B", "http://localhost:3002"),
    )
    begun = Opening("t", "q", agents, ("A",), pair, "x", BEGINNING)
    assert not questions.allows_defaults(parse(compose(begun).encode()).header)
    allowing = parse(compose(replace(begun, setup={"question_defaults": True})).encode()).header
    assert questions.allows_defaults(allowing)
    assert allowing.rules == parse(compose(begun).encode()).header.rules
    wrong = read_header('# D\n\n## Setup\n\n```toml\nquestion_defaults = "yes"\n```\n')
    assert wrong.warnings == ("header: Setup: question_defaults is neither true nor false; using false",)


FORMS = [
    ("", "QUESTION_FOR_USER: …", "the dialog waits for them"),
    (
        ALLOWED,
        "QUESTION_FOR_USER: text | in 2h | default: what you do otherwise",
        "your default counts, if you gave one",
    ),
]


@cases(("more", "form", "after"), FORMS)
def test_agents_are_told_the_form_and_what_comes_of_it(more: str, form: str, after: str) -> None:
    plain = Room(opening("A", "B", more=more), A=["x\n\n[QUESTION_FOR_USER: which? | by whom?]"])
    ruled = Room(opening("A", "B", more=more or "## Setup\n\n```toml\nred_team = true\n```"))
    for stage in (plain, ruled):
        asked_of = stage.thinks("A")
        line = next(line for line in asked_of.split("\n") if f"`[{form}]`" in line)
        assert line.endswith(after)
    plain.answers("A", plain.scripts["A"].pop())
    plain.say("Any.")
    assert "Of your last turn this did not count" in plain.thinks("A")


# -- the result -----------------------------------------------------------------------------------------------------

AGREED = "Postgres.\n\n## Consensus Summary\n\nSessions live in Postgres.\n\n[CONSENSUS_REACHED]"


def agreed() -> Room:
    """A dialog that ended by consensus in turn 3."""
    stage = Room(opening("A", "B"), A=[AGREED], B=["Yes.\n\n[AGREE: P1]"])
    stage.run()
    assert stage.dialog.state.outcome is not None
    return stage


def test_a_result_is_approved_once_and_a_new_turn_forgets_it() -> None:
    stage = agreed()
    stage.approve()
    before = stage.text
    stage.approve()
    assert stage.text == before
    note = stage.dialog.last
    assert (note.id, stage.dialog.state.approved) == ("3.1", "3.1")
    assert "approve" not in lifecycle.commands(stage.dialog)
    stage.types("\n[APPROVED]\n")
    assert stage.dialog.state.approved == "3.1"
    stage.say("And Redis?")
    assert stage.dialog.state.approved == ""
    assert stage.dialog.state.rejected == ""


def told(dialog: Dialog, text: str = "") -> tuple[object, ...]:
    """What is known of the rejection that opened the dialog."""
    found = board.rejected(dialog)
    return found.turn, found.reason, found.ended_in, found.outcome, bool(found.at)


def test_a_rejected_result_is_before_the_agents_as_rejected() -> None:
    stage = agreed()
    stage.reject("It forgets the migration.\n\nSee turn 2.")
    assert stage.dialog.state.outcome is None
    assert stage.dialog.state.table.standing is None
    assert told(stage.dialog) == (4, "It forgets the migration. See turn 2.", "3", "CONSENSUS_REACHED", True)
    for me, turn in (("A", "Then in two nights."), ("B", "Why two?")):
        asked_of = stage.thinks(me)
        assert (
            "The person rejected the earlier result (CONSENSUS_REACHED in turn 3), for the reason in turn 4" in asked_of
        )
        assert asked_of.count("Sessions live in Postgres.") == 1
        assert "It forgets the migration." in asked_of
        stage.answers(me, turn)
    later = stage.thinks("A")
    assert "The person rejected the earlier result" in later


def test_by_hand_a_result_is_taken_and_rejected_too() -> None:
    stage = agreed()
    stage.types("\n[approved]\n")
    assert stage.dialog.state.approved == "3.1"
    stage.types("\nWell done.\n")
    assert stage.dialog.state.approved == "3.1"
    stage.types("\n## Turn 4 - user\n\nOn second thoughts:\n\n**[Rejected: too slow]**\n")
    assert stage.dialog.state.approved == ""
    assert told(stage.dialog) == (4, "too slow", "3", "CONSENSUS_REACHED", False)
    assert stage.dialog.state.owing == ("A",)


def test_before_the_end_there_is_no_result() -> None:
    stage = Room(opening("A", "B"), A=["Hm."])
    stage.step("A")
    before = stage.text
    for act in (stage.approve, lambda: stage.reject("no")):
        with pytest.raises(Refused, match=r"cannot (approve|reject): the dialog is under way"):
            act()
    assert stage.text == before
    stage.types("\n[APPROVED]\n")
    assert (stage.dialog.state.approved, stage.dialog.state.owing) == ("", ("B",))
    stage.types("\n[REJECTED: no]\n\nTURN: B\n")
    assert (stage.dialog.state.rejected, stage.dialog.state.owing) == ("", ("B",))

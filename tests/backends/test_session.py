"""Going on with a CLI's session: when it still fits, what is sent, and what its figures mean."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dialogd.backends import Usage
from dialogd.backends.coding_agent import (
    ADDED,
    ASKED_BACK,
    GOES_ON,
    INTRO,
    POINTS,
    Checkpoint,
    Sessions,
    checkpoint,
    plan,
    since,
)
from dialogd.backends.parts import Part, Prompt
from tests.support.cases import cases

HEADER = Part("header", "# The dialog's header")
QUESTION = Part("1", "## Turn 1\n\nPostgres or Redis?", "USER")
MINE = Part("2", "## Turn 2\n\nI say Postgres.", "A", "1", marks="[PROPOSAL P1: Postgres]\n[CONFIDENCE: 0.8]")
THEIRS = Part("3", "## Turn 3\n\nI object.", "B", "2")
AGAIN = Part("4", "## Turn 4\n\nStill Postgres.", "A", "3")
LAST = Part("5", "## Turn 5\n\nWell then.", "B", "4")
REPLY = Part("reply", "# Your reply\n\nI say Postgres.", "A", "1")


def prompt(*parts: Part) -> Prompt:
    return Prompt("You are A.", (HEADER, QUESTION, *parts), "Your turn.")


def after(*parts: Part, re: str = "1", session: str = "s1", reply: str = "I say Postgres.") -> Checkpoint:
    return checkpoint(prompt(*parts), re, "sys", session=session, reply=reply, usage=Usage())


FIRST = after()
SECOND = after(MINE, THEIRS, re="3", session="s2", reply="Still Postgres.")


class TestPlan:
    def test_the_first_turn_sends_everything(self) -> None:
        found = plan(prompt(), "A", "sys", ())
        assert found.after is None
        assert found.text == f"{INTRO}\n\n# The dialog's header\n\n## Turn 1\n\nPostgres or Redis?\n\nYour turn."

    def test_what_it_said_itself_is_not_sent_again(self) -> None:
        found = plan(prompt(MINE, THEIRS), "A", "sys", (FIRST,))
        assert found.after == FIRST
        marks = "Marked by the daemon: [PROPOSAL P1: Postgres] [CONFIDENCE: 0.8]"
        assert found.text == f"{GOES_ON} {ADDED} {marks}\n\n## Turn 3\n\nI object.\n\nYour turn."

    def test_what_came_in_a_round_before_its_own_answer_is_sent_now(self) -> None:
        theirs = Part("2", "## Turn 2\n\nRedis.", "B", "1")
        note = Part("2.1", "## Note\n\nI read along.", "USER")
        mine = Part("3", "## Turn 3\n\nI say Postgres.", "A", "1")
        found = plan(prompt(theirs, note, mine, LAST), "A", "sys", (FIRST,))
        assert found.after == FIRST
        wanted = "\n\n".join([theirs.text, note.text, LAST.text])
        assert found.text == f"{GOES_ON} {ADDED}\n\n{wanted}\n\nYour turn."

    def test_the_newest_that_fits_is_taken(self) -> None:
        found = plan(prompt(MINE, THEIRS, AGAIN, LAST), "A", "sys", (FIRST, SECOND))
        assert found.after == SECOND
        assert "I object." not in found.text

    @cases(
        ("parts", "expected"),
        [
            ((MINE, replace(THEIRS, text="## Turn 3\n\nI agree."), AGAIN, LAST), FIRST),
            ((MINE, THEIRS, replace(AGAIN, sound=False), LAST), FIRST),
            ((MINE, THEIRS, replace(AGAIN, re="9"), LAST), FIRST),
            ((MINE, THEIRS, replace(AGAIN, by="B"), LAST), FIRST),
            ((MINE, THEIRS, replace(AGAIN, text="## Turn 4\n\nNow Redis."), LAST), FIRST),
            ((MINE, THEIRS, LAST), FIRST),
            ((MINE, THEIRS), FIRST),
            ((replace(MINE, sound=False), THEIRS, AGAIN, LAST), None),
            ((THEIRS,), None),
            ((), None),
        ],
    )  # fmt: skip
    def test_a_mismatch_goes_back_or_starts_anew(self, parts: tuple[Part, ...], expected: Checkpoint | None) -> None:
        second = SECOND if expected is FIRST else after(replace(MINE, text="x"), THEIRS, re="3", session="s2")
        assert plan(prompt(*parts), "A", "sys", (FIRST, second)).after == expected

    def test_another_set_up_has_other_sessions(self) -> None:
        assert plan(prompt(MINE, THEIRS), "A", "other", (FIRST,)).after is None

    def test_a_question_back_is_asked_alone(self) -> None:
        asked = Prompt("You are A.", (*prompt().parts, REPLY), "Which?")
        found = plan(asked, "A", "sys", (FIRST,))
        assert (found.after, found.text) == (FIRST, f"{ASKED_BACK}\n\nWhich?")
        assert plan(asked, "A", "sys", (replace(FIRST, re="7"),)).after is None

    def test_after_a_question_back_the_answered_session_goes_on(self) -> None:
        asked = Prompt("You are A.", (*prompt().parts, REPLY), "Which?")
        repaired = checkpoint(asked, "1", "sys", session="s9", reply="I say Postgres, P1.", usage=Usage())
        landed = replace(MINE, text="## Turn 2\n\nI say Postgres, P1.")
        assert plan(prompt(landed, THEIRS), "A", "sys", (FIRST, repaired)).after == repaired
        assert plan(prompt(MINE, THEIRS), "A", "sys", (FIRST, repaired)).after == FIRST

    def test_a_reply_of_marks_alone_is_known_by_its_debt(self) -> None:
        point = after(reply="[AGREE: P1]\n[PASS]")
        assert point.said == ""
        assert plan(prompt(MINE, THEIRS), "A", "sys", (point,)).after == point

    def test_a_line_that_the_daemon_may_cut_off_identifies_nothing(self) -> None:
        assert after(reply="short line\n" + "x" * 5000).said == "short line"


class TestSince:
    def test_growing_figures_are_told_apart(self) -> None:
        before = Usage(tokens_in=100, tokens_out=20, cached=64, usd=0.5)
        now = Usage("m", tokens_in=250, tokens_out=5, cached=64, cache_write=3, usd=None)
        assert since(now, before) == Usage("m", tokens_in=150, tokens_out=5, cached=0, cache_write=3)
        assert since(now, None) == now


class TestSessions:
    def test_one_row_for_each_session_is_kept_and_the_oldest_go(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "sessions.json"
        point = replace(FIRST, usage=Usage("m", 1, 2, 3, 4, 0.5))
        for number in range(POINTS + 5):
            Sessions(path).add(replace(point, session=str(number)))
        sessions = Sessions(path)
        assert sessions.points == tuple(replace(point, session=str(number)) for number in range(5, POINTS + 5))
        sessions.add(replace(SECOND, session="7"))  # it went on
        sessions.drop("8")  # it is gone
        names = [point.session for point in Sessions(path).points]
        assert (len(names), names[-1], "8" in names) == (POINTS - 1, "7", False)
        assert path.stat().st_mode & 0o777 == 0o600

    @pytest.mark.parametrize(
        "content",
        [b"", b"\xff\xfe", b"[1, 2]", b"{}", b'[{"session": 5}]'],
        ids=["empty", "binary", "numbers", "no list", "wrong"],
    )
    def test_a_broken_file_is_no_memory(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "s.json"
        path.write_bytes(content)
        sessions = Sessions(path)
        assert sessions.points == ()
        sessions.add(FIRST)
        assert len(json.loads(path.read_bytes())) == 1

    def test_a_folder_that_cannot_be_written_is_no_failure(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        sessions = Sessions(tmp_path / "file" / "s.json")
        sessions.add(FIRST)
        assert sessions.points == (FIRST,)

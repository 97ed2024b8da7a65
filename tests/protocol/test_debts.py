"""Who owes a turn: rounds, order, failures, stalls, limits, and what the person does about them."""

from __future__ import annotations

from itertools import permutations

import pytest

from dialogd.errors import BackendError, Refused
from dialogd.protocol.decide import Reply, Stop
from dialogd.protocol.fold import steps
from dialogd.protocol.grammar import parse
from dialogd.protocol.model import USER, Limits
from dialogd.protocol.state import State
from tests.support.cases import cases
from tests.support.paper import Paper
from tests.support.room import Room, opening, waits

BROKEN = BackendError("exit code 1", fix="look at its log")


def chatty(text: str, turns: int = 20) -> Room:
    """A room in which everybody always has something to say."""
    agents = [agent.id for agent in parse(text.encode()).header.agents]
    return Room(text, **{me: [f"{me} says {n}" for n in range(turns)] for me in agents})


def speakers(room: Room) -> str:
    """The ids of all turns' speakers in order; `u` for the person."""
    return "".join("u" if entry.by == USER else entry.by for entry in room.dialog.turns)


@cases("order", ["".join(p) for p in permutations("ABC")])
def test_in_a_round_each_owes_one_turn_in_any_order(order: str) -> None:
    room = chatty(opening("A", "B", "C", turn="A, B, C"))
    debts = {debt.agent: debt.key for debt in room.dialog.state.debts.open}
    for place, me in enumerate(order):
        left = [who for who in "ABC" if who in order[place:]]
        assert [waits(room.look(who)) for who in left] == ["Reply"] * len(left)
        assert {d.agent: d.key for d in room.dialog.state.debts.open} == {who: debts[who] for who in left}
        room.step(me)
    assert speakers(room) == "u" + order
    assert room.owing == (chr(ord("A") + (ord(order[-1]) - ord("A") + 1) % 3),)
    assert [waits(room.look(who)) for who in order].count("Reply") == 1


@cases("order", ["".join(p) for p in permutations("ABC")])
def test_in_a_round_all_may_think_at_once(order: str) -> None:
    room = chatty(opening("A", "B", "C", turn="A, B, C"))
    for me in "ABC":
        room.thinks(me)
    assert all(room.answers(me, f"{me} thinks so") for me in order)
    assert room.drafts == {}


def test_a_question_in_a_round_waits_for_the_last_reply() -> None:
    room = Room(opening("A", "B", "C", turn="A, B, C"), A=["[QUESTION_FOR_USER: how many users?]"], B=["b"], C=["c"])
    room.step("A")
    assert room.owing == ("B", "C")
    room.step("C")
    room.step("B")
    assert room.owing == ("USER",)
    assert "how many users?" in getattr(room.look("A"), "reason", "")
    room.say("Ten.")
    assert room.owing == ("A",)


def test_two_agents_alternate() -> None:
    """A, B, A, B, and so on to the limit."""
    room = chatty(opening("A", "B", keys=["Max Turns: 8"]))
    room.run()
    assert (speakers(room), room.outcome) == ("uABABABA", "MAX_TURNS_REACHED")


def test_three_agents_go_round() -> None:
    room = chatty(opening("A", "B", "C", turn="B", keys=["Max Turns: 9"]))
    room.run()
    assert speakers(room) == "uBCABCABC"


def test_any_is_for_whoever_comes_first() -> None:
    room = chatty(opening(turn="ANY"))
    assert [waits(room.look(me)) for me in "AB"] == ["Reply", "Reply"]
    room.thinks("A")
    assert room.says("B", "me first") is not None
    assert room.answers("A", "me too") is None
    assert (room.owing, room.drafts) == (("A",), {"A": ["me too"]})


def test_a_draft_is_shown_to_its_agent_next_time() -> None:
    room = Room(opening())
    room.thinks("A")
    room.say("Stop: think of cost first.")
    assert room.answers("A", "Redis is fast.") is None
    assert "Redis is fast." in room.thinks("A")
    assert room.answers("A", "Redis is dear.") is not None
    room.types("TURN: A\n")
    assert "not sent" not in room.thinks("A")


def test_a_late_double_reply_is_refused() -> None:
    room = Room(opening())
    room.thinks("A")
    debt = room.dialog.state.debts.open[0]
    room.answers("A", "one")
    assert debt.key not in {d.key for d in room.dialog.state.debts.open}
    room.say("Again, please.", to="A")
    assert room.dialog.state.debts.open[0].key != debt.key


# -- the person ----------------------------------------------------------------------------------------------------


def test_a_reply_is_to_the_very_words_that_asked_for_it() -> None:
    room = Room(opening("A", "B", question="Where should user sessions live?"))
    room.thinks("A")
    room.paper = Paper(opening("A", "B", question="What is for lunch?").encode())
    assert room.owing == ("A",)
    assert room.answers("A", "In Postgres.") is None
    assert room.drafts["A"] == ["In Postgres."]
    assert speakers(room) == "u"


def test_the_same_words_typed_again_ask_again() -> None:
    room = Room(opening("A", "B"))
    room.types("## User\n\nGo on.\n\nTURN: A\n")
    room.thinks("A")
    room.types("\n## User\n\nGo on.\n\nTURN: A\n")
    assert room.owing == ("A",)
    assert room.answers("A", "In Postgres.") is None
    assert speakers(room) == "uuu"


def test_an_edit_of_what_was_written_moves_no_debt() -> None:
    room = Room(opening("A", "B"), A=["Postgres."], B=["Why not Redis?"])
    room.step("A")
    room.step("B")
    room.thinks("A")
    room.paper = Paper(room.paper.data.replace(b"Why not Redis?", b"Why not Mongo?"))
    assert room.answers("A", "It forgets.") is not None
    assert speakers(room) == "uABA"


def test_a_persons_turn_closes_every_debt_and_a_note_none() -> None:
    room = chatty(opening("A", "B", "C", turn="A, B, C"))
    before = room.dialog.state.debts.open
    room.say("By the way.", note=True)
    assert room.dialog.state.debts.open == before
    room.say("Only C, please.", to="C")
    assert room.owing == ("C",)


def test_a_persons_turn_passes_to_who_owed_who_asked_or_the_next() -> None:
    room = chatty(opening("A", "B", "C", turn="B"))
    room.say("Wait.")
    assert room.owing == ("B",)
    room.scripts["B"] = ["[QUESTION_FOR_USER: why?]"]
    room.step("B")
    room.say("Because.")
    assert room.owing == ("B",)
    room.step("B")
    room.stop()
    room.say("Go on.")
    assert room.owing == ("C",)


def test_a_persons_turn_always_passes_to_an_agent() -> None:
    room = Room(opening("A"), A=["One.", "Two."])
    room.run()
    room.say("And?")
    assert room.owing == ("A",)
    room = chatty(opening("A", "B", "C"))
    room.scripts["A"], room.scripts["B"] = [BROKEN, BROKEN, "back"], [BROKEN, BROKEN, "back"]
    for me in "ABCABC":
        room.step(me)
    assert room.owing == ("USER",)
    room.say("Try once more.")
    assert room.owing == ("A",)
    room = chatty(opening("A", "B", "C", turn="B"))
    room.scripts["B"], room.scripts["C"] = [BROKEN, "back"], [BROKEN, "back"]
    for me in "BCA":
        room.step(me)
    room.say("Try once more.")
    assert room.owing == ("B",)


def test_a_skip_passes_over_an_agent() -> None:
    room = chatty(opening("A", "B", "C", turn="A, B"))
    room.thinks("A")
    room.skip("A")
    assert room.owing == ("B",)
    assert room.answers("A", "too late") is None
    room.skip("B")
    assert room.owing == ("C",)
    with pytest.raises(Refused, match="owes no turn"):
        room.skip("A")


def test_a_retry_asks_once_more_for_a_new_reply() -> None:
    room = chatty(opening())
    room.thinks("A")
    room.retry("A")
    assert room.owing == ("A",)
    assert room.answers("A", "old") is None
    room.step("A")
    assert speakers(room) == "uA"


def test_who_is_asked_once_more_has_failed_no_longer() -> None:
    room = Room(opening("A", "B", "C"), A=[BROKEN])
    room.step("A")
    assert room.dialog.state.debts.failed == {"A"}
    room.retry("A")
    assert room.dialog.state.debts.failed == frozenset()


def test_a_skip_typed_by_hand_takes_the_turn_from_the_person() -> None:
    room = Room(opening("A", "B"), A=["Which one?\n\n[QUESTION_FOR_USER: Postgres or Redis?]"])
    room.step("A")
    assert room.owing == (USER,)
    room.types("\n[SKIP: A]\n")
    assert room.owing == ("B",)


def test_an_agents_turn_typed_by_hand_closes_every_debt() -> None:
    room = Room(opening("A", "B", "C", turn="A, B, C"))
    room.types("\n## Turn 2 — Claude A\n\nPostgres.\n\nTURN: B\n")
    assert [(debt.agent, debt.re) for debt in room.dialog.state.debts.open] == [("B", "2")]


def test_a_pause_holds_everybody_and_nothing_runs_out() -> None:
    room = chatty(opening())
    room.thinks("A")
    room.pause()
    assert room.answers("A", "I was on it.") is not None
    room.advance(86_400)
    assert [waits(room.look(me)) for me in "AB"] == ["paused", "paused"]
    room.resume()
    assert [waits(room.look(me)) for me in "AB"] == ["not_my_turn", "Reply"]


def test_a_pause_typed_by_hand_is_one() -> None:
    room = chatty(opening())
    room.types("\n[PAUSED]\n")
    assert room.dialog.state.paused
    assert room.owing == ("A",)
    room.types("\n**[resumed]**\n")
    assert not room.dialog.state.paused


def test_step_mode_passes_every_turn_to_the_person() -> None:
    room = chatty(opening("A", "B", setup="step = true"))
    for expected in ("uA", "uAB", "uABA"):
        room.run()
        assert (speakers(room), room.owing) == (expected, ("USER",))
        room.pass_on()
    assert room.owing == ("B",)


@cases(
    ("mark", "limits"),
    [
        ("max_turns 40", Limits(max_turns=40)),
        ("Max-Turns: 40", Limits(max_turns=40)),
        ("max_turns = 40", Limits(max_turns=40)),
        ("timeout 10 minutes", Limits(timeout=600)),
        ("max_message 500", Limits(max_message=500)),
        ("max_size 2 MB", Limits(max_size=2_000_000)),
    ],
)
def test_a_limit_note_changes_a_limit(mark: str, limits: Limits) -> None:
    room = chatty(opening())
    room.types(f"\n[LIMIT: {mark}]\n")
    assert room.dialog.state.limits == limits
    assert Limits().changed(mark)[1] == ""


@cases("mark", ["", "max_turns", "max_turns many", "max_turns 0", "budget 5", "timeout -1", "40"])
def test_a_limit_that_means_nothing_changes_nothing_and_says_why(mark: str) -> None:
    room = chatty(opening())
    room.types(f"\n[LIMIT: {mark}]\n")
    assert room.dialog.state.limits == Limits()
    assert Limits().changed(mark)[1]


def test_an_agents_limit_mark_is_text() -> None:
    room = Room(opening(), A=["[LIMIT: max_turns 2]\n[PAUSED]\n[SKIP: B]\n[STOPPED]\n[STALLED: B]\nWell."])
    room.step("A")
    state = room.dialog.state
    assert (state.limits, state.paused, state.owing, state.outcome) == (Limits(), False, ("B",), None)


# -- ends ----------------------------------------------------------------------------------------------------------


def test_the_turn_that_reaches_the_limit_carries_its_mark() -> None:
    room = chatty(opening(keys=["Max Turns: 3"]))
    room.run()
    last = room.dialog.last
    assert ([str(mark) for mark in last.marks], last.turn, last.number) == (["[MAX_TURNS_REACHED]"], None, 3)
    assert all(isinstance(room.look(me), Stop) for me in "AB")


def test_a_person_who_reaches_the_limit_is_told_by_a_note() -> None:
    room = chatty(opening(keys=["Max Turns: 2"]))
    room.say("One more thing.")
    assert waits(room.look("A")) == "Write"
    room.step("A")
    assert room.outcome == "MAX_TURNS_REACHED"
    assert speakers(room) == "uu"


def test_a_limit_lowered_below_what_was_said_ends_the_dialog() -> None:
    room = chatty(opening())
    room.step("A")
    room.step("B")
    room.types("\n[LIMIT: max_turns 3]\n")
    room.step("B")
    assert room.outcome == "MAX_TURNS_REACHED"


def test_the_limit_of_bytes_ends_the_dialog_and_never_refuses_the_person() -> None:
    room = Room(opening(keys=["Max Size: 1 KB"]), A=["x" * 950], B=["y"])
    room.run()
    last = room.dialog.last
    assert ([str(mark) for mark in last.marks], last.turn, last.by) == (
        ["[STOPPED: size: the limit of 1,000 bytes]"],
        None,
        "A",
    )
    room.say("z" * 5000)
    assert speakers(room) == "uAu"


@cases(("length", "attached"), [(59, 0), (60, 0), (61, 1)])
def test_a_message_is_cut_at_its_limit_in_code_points(length: int, attached: int) -> None:
    text = "\u00fc\U0001f600" * 40
    room = Room(opening(keys=["Max Message: 60"]), A=[text[:length]])
    room.step("A")
    last = room.dialog.last
    assert last.body.startswith(text[: min(length, 60)])
    assert ("more characters" in last.body, list(room.attachments.values())) == (
        bool(attached),
        [text[:length]] * attached,
    )


def test_the_limit_of_a_message_covers_its_marks() -> None:
    room = Room(opening(), A=["\n".join(f"[IDEA: {n} {'x' * 400}]" for n in range(500))])
    before = len(room.text)
    room.step("A")
    assert len(room.text) - before < 25_000


def test_a_file_that_grew_past_its_limit_ends_by_a_note() -> None:
    room = chatty(opening(keys=["Max Size: 1 KB"]))
    room.types("\n## User\n" + "z" * 5000 + "\nTURN: B\n")
    room.run()
    assert (room.outcome, speakers(room)) == ("STOPPED", "uu")


def test_a_turn_after_the_end_opens_the_dialog_and_counts_anew() -> None:
    room = chatty(opening(keys=["Max Turns: 4"]))
    room.run()
    assert (room.outcome, room.dialog.state.number) == ("MAX_TURNS_REACHED", 4)
    room.say("I disagree.")
    assert (room.outcome, room.dialog.state.counted) == ("", 1)
    room.run()
    assert (room.outcome, room.dialog.state.number) == ("MAX_TURNS_REACHED", 8)
    room.say("Ten more.", turns=10)
    room.run()
    assert (room.outcome, room.dialog.state.number) == ("MAX_TURNS_REACHED", 19)


def test_more_turns_can_be_granted_on_the_way() -> None:
    room = chatty(opening(keys=["Max Turns: 4"]))
    room.step("A")
    room.say("Take your time.", turns=5)
    room.run()
    assert speakers(room) == "uAu" + "BABAB"


def test_a_note_does_not_open_an_ended_dialog() -> None:
    room = chatty(opening())
    room.stop("enough")
    room.say("Just a remark.", note=True)
    room.types("\n[SKIP: A]\n\n[RETRY: B]\n")
    assert (room.outcome, room.owing) == ("STOPPED", ())
    with pytest.raises(Refused, match="the dialog is over"):
        room.retry("A")


def test_a_stop_ends_it_while_an_agent_thinks() -> None:
    room = chatty(opening())
    room.thinks("A")
    room.stop()
    assert room.answers("A", "but") is None
    assert (room.outcome, speakers(room)) == ("STOPPED", "u")


# -- failures and stalls -------------------------------------------------------------------------------------------


def test_of_two_agents_one_that_failed_twice_leaves_the_turn_to_the_person() -> None:
    room = Room(opening(), A=[BROKEN, BROKEN, "Now it works."])
    room.step("A")
    assert room.owing == ("A",)
    room.step("A")
    note = room.dialog.last
    assert [str(mark) for mark in note.marks] == ["[AGENT_ERROR: A | exit code 1 | look at its log]"]
    assert (note.number, room.owing, room.dialog.state.debts.failed) == (0, ("USER",), {"A"})
    room.retry("A")
    room.step("A")
    assert (room.owing, room.dialog.state.debts.failed) == (("B",), frozenset())


def test_of_three_agents_one_that_failed_twice_is_passed_over() -> None:
    room = chatty(opening("A", "B", "C", keys=["Max Turns: 11"]))
    room.scripts["A"] = [BROKEN, BROKEN, "back"]
    for me in "ABCABCBC":
        room.step(me)
    assert speakers(room) == "uBCBCBC"
    room.say("A, are you there?")
    assert room.dialog.state.debts.failed == frozenset()
    room.run()
    assert "A" in speakers(room)


def test_a_failure_in_a_round_leaves_the_others_their_turns() -> None:
    room = chatty(opening("A", "B", "C", turn="A, B, C"))
    room.scripts["B"] = [BROKEN]
    room.step("B")
    assert room.owing == ("A", "C")
    room.step("C")
    room.step("A")
    assert room.owing == ("B",)


@cases("agents", ["AB", "ABC"])
def test_a_failure_in_a_round_asks_nobody_else(agents: str) -> None:
    room = chatty(opening(*agents, turn="A, B"))
    room.scripts["B"] = [BROKEN]
    room.step("B")
    assert room.owing == ("A",)


@cases("agents", ["AB", "ABC"])
def test_when_every_agent_has_failed_the_dialog_has(agents: str) -> None:
    more = '## Setup\n\n```toml\norder = "parallel"\n```'
    room = Room(opening(*agents, turn=", ".join(agents), more=more), **{me: [BROKEN] * 2 for me in agents})
    room.run()
    end = room.dialog.state.outcome
    assert (end.name, end.failed, end.reason) == ("STOPPED", True, "error: every agent failed")
    assert not Room(opening()).dialog.state.outcome


def test_a_persons_stop_is_no_failure() -> None:
    room = chatty(opening())
    room.stop("enough errors")
    end = room.dialog.state.outcome
    assert not end.failed


def test_of_two_agents_a_stalled_one_still_owes_its_turn() -> None:
    room = Room(opening(keys=["Timeout: 5 minutes"]), A=[None], B=[])
    room.thinks("A")
    room.advance(359)
    assert waits(room.look("B")) == "not_my_turn"
    room.advance(1)
    room.step("B")
    assert (room.owing, room.dialog.state.debts.open[0].stalled) == (("A",), True)
    room.advance(10_000)
    assert waits(room.look("B")) == "not_my_turn"
    assert "no answer in time from A" in getattr(room.look("B"), "reason", "")
    assert room.answers("A", "Sorry, late.") is not None
    assert room.owing == ("B",)


def test_of_three_agents_a_stalled_one_is_passed_over() -> None:
    room = chatty(opening("A", "B", "C"))
    room.thinks("A")
    room.advance(361)
    room.step("C")
    assert room.owing == ("B",)
    assert room.answers("A", "Sorry, late.") is None


@cases("order", ["free", "priority"])
def test_of_two_that_have_waited_as_long_who_has_not_spoken_in_this_round_is_next(order: str) -> None:
    room = chatty(opening("A", "B", "C", setup=f'order = "{order}"'))
    for me in "ABC":
        room.step(me)
    room.thinks("A")
    room.advance(361)
    room.step("C")
    assert room.owing == ("B",)
    room.step("B")
    assert room.owing == ("C",)


def test_an_agent_that_says_it_is_at_work_is_not_called_stalled() -> None:
    room = chatty(opening())
    room.thinks("A")
    room.working = frozenset("A")
    room.advance(10_000)
    assert waits(room.look("B")) == "not_my_turn"


def test_nobody_calls_itself_or_the_person_stalled() -> None:
    room = chatty(opening())
    room.advance(10_000)
    assert isinstance(room.look("A"), Reply)
    room.types("TURN: USER\n")
    room.advance(1_000_000)
    assert waits(room.look("B")) == "waiting_for_user"


def test_the_state_of_nothing_owes_nothing() -> None:
    assert State().debt("A") is None
    assert State().owing == ()


def test_an_entry_changes_only_its_own_state() -> None:
    room = Room(opening("A", "B"), A=["I think so."], B=["So do I."])
    room.run()
    seen = [(before, repr(before), after) for entry, _, before, after in steps(room.dialog) if entry.by == "A"]
    assert seen
    for before, was, after in seen:
        assert repr(before) == was
        assert (after.number, after.floor.last, after.owing) == (before.number + 1, "A", ("B",))
        shared = ("limits", "hand", "table", "polls", "escalation", "questions")
        assert [name for name in shared if getattr(after, name) != getattr(before, name)] == []

"""Who owes a turn: rounds, order, failures, stalls, limits, and what the person does about them."""

from __future__ import annotations

from itertools import permutations

from dialogd.errors import BackendError
from dialogd.protocol.decide import Stop
from dialogd.protocol.fold import steps
from dialogd.protocol.grammar import parse
from dialogd.protocol.model import USER, Limits
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


def test_a_draft_is_shown_to_its_agent_next_time() -> None:
    room = Room(opening())
    room.thinks("A")
    room.say("Stop: think of cost first.")
    assert room.answers("A", "Redis is fast.") is None
    assert "Redis is fast." in room.thinks("A")
    assert room.answers("A", "Redis is dear.") is not None
    room.types("TURN: A\n")
    assert "not sent" not in room.thinks("A")


# -- the person ----------------------------------------------------------------------------------------------------


def test_a_reply_is_to_the_very_words_that_asked_for_it() -> None:
    room = Room(opening("A", "B", question="Where should user sessions live?"))
    room.thinks("A")
    room.paper = Paper(opening("A", "B", question="What is for lunch?").encode())
    assert room.owing == ("A",)
    assert room.answers("A", "In Postgres.") is None
    assert room.drafts["A"] == ["In Postgres."]
    assert speakers(room) == "u"


def test_an_edit_of_what_was_written_moves_no_debt() -> None:
    room = Room(opening("A", "B"), A=["Postgres."], B=["Why not Redis?"])
    room.step("A")
    room.step("B")
    room.thinks("A")
    room.paper = Paper(room.paper.data.replace(b"Why not Redis?", b"Why not Mongo?"))
    assert room.answers("A", "It forgets.") is not None
    assert speakers(room) == "uABA"


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


# -- failures and stalls -------------------------------------------------------------------------------------------


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


def test_an_agent_that_says_it_is_at_work_is_not_called_stalled() -> None:
    room = chatty(opening())
    room.thinks("A")
    room.working = frozenset("A")
    room.advance(10_000)
    assert waits(room.look("B")) == "not_my_turn"


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

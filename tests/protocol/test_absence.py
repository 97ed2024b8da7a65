"""Agents that fail or stay silent, dialogs with nobody at the table: nobody pays on, nothing waits, all of it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialogd import person
from dialogd.errors import BackendError, Refused
from dialogd.protocol import lifecycle
from dialogd.protocol.decide import Stop, Write, decide
from dialogd.protocol.grammar import parse
from dialogd.protocol.header import read_header
from dialogd.protocol.model import USER, Outcome
from tests.examples import examples
from tests.support.cases import cases
from tests.support.room import Line, Room, opening, waits

DOWN = BackendError("exit code 1", fix="look at its log")
TEXT = "Here.\n\n## Consensus Summary\n\nUse Postgres.\n\n[CONSENSUS_REACHED]"
SIGNS = "[AGREE: P1]"
OVERDUE = 300 + 60  # seconds: the timeout and a minute


def setup(*lines: str) -> str:
    """A Setup of these lines."""
    return "## Setup\n\n```toml\n{}\n```".format("\n".join(lines))


def room(ids: str, *lines: str, keys: tuple[str, ...] = (), turn: str = "", **scripts: list[Line]) -> Room:
    """A room of these agents (`AB`), its Setup of these lines."""
    return Room(opening(*ids, turn=turn, keys=keys, more=setup(*lines) if lines else ""), **scripts)


def unattended(ids: str, *lines: str, keys: tuple[str, ...] = (), turn: str = "", **scripts: list[Line]) -> Room:
    """The same with nobody at the table."""
    return room(ids, 'person = "absent"', *lines, keys=keys, turn=turn, **scripts)


def end(here: Room) -> Outcome:
    """How it ended."""
    assert here.dialog.state.outcome is not None, here.text
    return here.dialog.state.outcome


def goes(here: Room, hours: float = 3) -> None:
    """Let everybody do what they have to, and time pass, until it has ended or so long has passed."""
    until = here.paper.now + hours * 3600
    while here.dialog.state.outcome is None and here.paper.now < until:
        here.run()
        here.advance(60)


def paid(here: Room) -> int:
    """How many turns of agents there are: calls that somebody paid for."""
    return sum(entry.by != USER for entry in here.dialog.turns)


# -- who failed is asked again, and then absent ----------------------------------------------------------------------


def test_of_two_who_failed_is_asked_again_after_a_pause() -> None:
    here = room("AB", A=[DOWN, DOWN])
    here.retry_pause = 10
    here.step("A")
    assert here.owing == ("A",)
    assert waits(here.look("A")) == "pace"
    here.advance(10)
    here.step("A")
    assert here.owing == (USER,)


def test_a_quorum_still_counts_who_is_absent() -> None:
    votes = ["[PROPOSAL: Postgres]", "[VOTE: P1 approve | fine]", "[VOTE: P1 approve | fine]"]
    lines = ('verdict = "vote"', 'order = "round-robin"')
    three = unattended("ABC", *lines, A=[*votes], B=[DOWN] * 9, C=[*votes[1:]])
    goes(three)
    assert (end(three).name, "absent: B" in end(three).reason) == ("DECIDED", True)
    four = unattended("ABCD", *lines, A=[*votes], B=[DOWN] * 9, C=[*votes[1:]], D=[DOWN] * 9)
    goes(four)
    assert end(four).failed
    assert "B, D" in end(four).reason


# -- nobody at the table: the table of docs/protocol.md, row by row ---------------------------------------------------

FORGETS = '[roles.M]\nrole = "moderator"'
VOTES = ('verdict = "vote"', 'order = "round-robin"')
JUDGED = ('verdict = "judge"', 'judge = "J"')
CALLS = "[DEADLOCK: load | measure]"
ASKS = "Hm.\n\n[QUESTION_FOR_USER: Postgres or Redis? | default: Postgres]"
ESCALATES: list[Line] = ["[ESCALATE: we cannot agree]", *["More."] * 9]
NO: list[Line] = [
    say for n in (1, 4, 7) for say in ("[PROPOSAL: x]", "\n".join(f"[VOTE: P{n + i} reject | a]" for i in range(3)))
]
MORE: list[Line] = ["More."] * 9

# Agents and Setup; what they say; the end, and words of its reason.
ENDS: dict[str, tuple[str, tuple[str, ...], dict[str, list[Line]], str, str]] = {
    "one of two fails": ("AB", (), {"A": ["One.", "Two."], "B": [DOWN, DOWN]}, "error", "B"),
    "one of two is silent": ("AB", (), {"A": ["One.", "Two."], "B": [None] * 9}, "error", "B"),
    "two of three fail": ("ABC", (), {"A": [TEXT, *MORE], "B": [DOWN] * 9, "C": [DOWN] * 9}, "error", "B, C"),
    "one alone": ("A", (), {"A": ["One.", "Two."]}, "error", ""),
    "a signer is absent": ("ABC", (), {"A": [TEXT, "More."], "B": [DOWN] * 9, "C": [SIGNS]}, "CONSENSUS_REACHED",
                           "A in turn 2, C in turn 3; left out, being absent: B"),
    "a signer is absent before": ("ABC", (), {"A": ["One.", TEXT], "B": [DOWN] * 9, "C": ["Two.", SIGNS]},
                                  "CONSENSUS_REACHED", "absent: B"),
    "all pass": ("AB", (), {"A": ["[PASS]"] * 3, "B": ["[PASS]"] * 3}, "DEADLOCK", "everybody passed"),
    "all pass in rounds": ("AB", ('order = "parallel"',), {"A": ["[PASS]"] * 3, "B": ["[PASS]"] * 3}, "DEADLOCK",
                           "everybody passed"),
    "all pass in a vote": ("AB", ('verdict = "vote"',), {"A": ["[PASS]"] * 3, "B": ["[PASS]"] * 3}, "DEADLOCK",
                           "everybody passed"),
    "the moderator does not decide": ("ABM", (FORGETS,), {"A": ESCALATES, "B": ["One."], "M": ["I cannot say."]},
                                      "DEADLOCK", "we cannot agree"),
    "the moderator is silent": ("ABM", (FORGETS,), {"A": ESCALATES, "B": ["One."], "M": [None] * 9}, "DEADLOCK",
                                "we cannot agree"),
    "the moderator fails": ("ABM", (FORGETS,), {"A": ESCALATES, "B": ["One."], "M": [DOWN] * 9}, "DEADLOCK",
                            "we cannot agree"),
    "the moderator fails once": (
        "ABM", ('verdict = "moderator"', FORGETS, "[board]", "minimum_contributions = 0"),
        {"A": ["[PROPOSAL: x]\n[ESCALATE: please]"], "M": [DOWN, "[DECIDE: P1 approve | fine]"]}, "DECIDED", "P1",
    ),
    "votes fail": ("ABC", VOTES, {"A": NO, "B": NO, "C": NO}, "DEADLOCK", "votes failed"),
    "the judge fails": ("ABJ", JUDGED, {"A": [CALLS], "B": [CALLS], "J": [DOWN] * 3}, "error", "J"),
    "the judge asks": (
        "ABJ", JUDGED,
        {"A": [CALLS], "B": [CALLS], "J": ["[QUESTION_FOR_USER: what load?]", *["[DECIDE: A | shown]"] * 2]},
        "DECIDED", "judge",
    ),
    "rounds of a board are over": ("AB", ("[board]", "round_limit = 1"), {"A": ["One."], "B": ["Two."]},
                                   "MAX_TURNS_REACHED", ""),
}  # fmt: skip


@cases(("ids", "lines", "scripts", "name", "words"), ENDS.values())
def test_unattended_each_way_to_the_person_has_its_own_end(
    ids: str, lines: tuple[str, ...], scripts: dict[str, list[Line]], name: str, words: str
) -> None:
    here = unattended(ids, *lines, turn="A, B" if "parallel" in "".join(lines) else "", **scripts)
    goes(here)
    assert (end(here).cause or end(here).name) == name
    assert words in end(here).reason
    assert paid(here) <= 3 or name != "error"


def test_unattended_a_silent_agent_is_called_so_twice_and_may_answer_late() -> None:
    here = unattended("AB", A=["One.", "Two."], B=[None] * 9)
    goes(here)
    assert [str(mark) for entry in here.dialog.entries for mark in entry.all("STALLED")] == ["[STALLED: B]"] * 2
    late = unattended("AB", A=[TEXT], B=[None])
    late.run()
    late.thinks("B")
    late.advance(OVERDUE)
    late.run()
    late.answers("B", SIGNS)
    assert end(late).name == "CONSENSUS_REACHED"


def test_why_an_agent_is_absent_is_said_until_it_is_not() -> None:
    here = room("ABC", A=["One.", "Two."], B=[DOWN, None], C=["Three."])
    here.step("A")
    here.step("B")
    assert lifecycle.why_absent(here.dialog, "B") == ""
    here.step("C")
    here.step("A")
    here.advance(OVERDUE + 1)
    here.step("A")
    why = lifecycle.why_absent(here.dialog, "B")
    assert why.startswith("failed or stalled twice in succession (exit code 1, then no answer in time): nobody waits")
    assert lifecycle.why_absent(here.dialog, "A") == ""
    here.by_hand(person.leave, USER)
    assert "nobody waits" in lifecycle.why_absent(here.dialog, "B")
    here.stop()
    assert "retry" not in lifecycle.why_absent(here.dialog, "B")
    here.say("Go on.")
    assert lifecycle.why_absent(here.dialog, "B") == ""


def test_unattended_a_question_goes_back_and_a_second_one_is_refused() -> None:
    here = unattended("AB", A=[ASKS, ASKS, ASKS], B=["One.", "Two."])
    here.step("A")
    assert "nobody is at the table" in here.prompts[0][1]
    assert here.owing == ("A",)
    (refused,) = here.dialog.entries[-1].all("REFUSED")
    assert "nobody is at the table" in refused.value
    assert here.dialog.state.questions.text == "Postgres or Redis?"
    here.step("A")
    assert "take your default, or decide" in here.prompts[1][1]
    assert here.owing == ("B",)
    assert here.dialog.entries[-1].mark("QUESTION_FOR_USER") is None
    assert "nobody is at the table" in here.dialog.entries[-1].all("REFUSED")[0].value
    assert len(here.dialog.state.questions.open) == 1


def test_unattended_questions_of_a_round_go_back_to_all_who_asked() -> None:
    here = unattended("ABC", 'order = "parallel"', turn="A, B, C", A=[ASKS, "a"], B=["One."], C=[ASKS, "c"])
    for who in "ABC":
        here.step(who)
    assert here.owing == ("A", "C")
    for who in "AC":
        here.step(who)
    assert here.owing == ("A", "B", "C")


# What would pass the word to the person passes it to the next: the Setup, and A's turn.
PASSES_ON = [
    ((), "[ESCALATE: I give up]"),  # nobody ends a dialog alone by escalating
    (("step = true",), "One."),
    (('order = "free"',), "[TO: USER]\nYours."),
]


@cases(("lines", "says"), PASSES_ON)
def test_unattended_no_word_goes_to_the_person(lines: tuple[str, ...], says: str) -> None:
    here = unattended("AB", *lines, A=[says], B=["Two."])
    here.step("A")
    assert here.owing == ("B",)
    assert ("[REFUSED: ESCALATE" in here.text) == says.startswith("[ESCALATE")
    here.types("[STEP: on]\n")
    here.step("B")
    assert here.owing == ("A",)


def test_unattended_an_end_that_is_struck_goes_on() -> None:
    here = unattended("AB", A=[TEXT, "Then anew.", TEXT], B=[SIGNS, "Well.", SIGNS])
    goes(here)
    here.by_hand(person.strike, "3")
    assert here.dialog.state.outcome is None
    goes(here)
    assert end(here).name == "CONSENSUS_REACHED"


@cases("last", ["TURN: bob\n", "TURN: USER\n", "TURN: A, USER\n", "turn: nobody at all.\n"])
def test_unattended_a_turn_for_nobody_goes_to_the_next(last: str) -> None:
    text = opening("A", "B", more=setup('person = "absent"')).replace("TURN: A\n", last)
    here = Room(text, A=[TEXT, TEXT], B=[SIGNS, SIGNS])
    goes(here)
    assert end(here).name == "CONSENSUS_REACHED"


def test_unattended_a_word_that_nobody_takes_goes_to_the_next() -> None:
    here = unattended("AB", turn="ANY", A=[DOWN, DOWN], B=[None] * 9)
    goes(here)
    assert end(here).failed


def test_unattended_unknown_prices_end_at_the_budget() -> None:
    here = unattended("AB", keys=("Budget: $1",), A=["One."])
    action = decide(here.dialog, "A", replace(here.clock(), priced=False))
    assert isinstance(action, Write)
    assert [str(mark) for mark in action.draft.marks] == ["[STOPPED: budget: nobody knows what A's model costs]"]


# -- the time limit holds whoever is waited for ----------------------------------------------------------------------

TEN = ("Max Time: 10 minutes",)


@cases("lines", [(), ('person = "absent"',)])
def test_the_time_limit_holds_while_a_pair_waits_for_a_silent_agent(lines: tuple[str, ...]) -> None:
    here = room("AB", *lines, keys=TEN, A=["One.", "In sum: Postgres."], B=[None] * 9)
    goes(here, hours=1)
    assert end(here).name == "STOPPED"
    assert here.paper.now < 600 + 120


@cases(
    "scripts",
    [
        {"A": ["[QUESTION_FOR_USER: which?]", "In sum."], "B": ["In sum."]},
        {"A": ["One.", "In sum."], "B": [DOWN, DOWN, "In sum."]},
        {"A": [DOWN, DOWN], "B": ["In sum."]},
    ],
)
def test_the_time_limit_holds_while_a_pair_waits_for_the_person(scripts: dict[str, list[Line]]) -> None:
    here = room("AB", keys=TEN, **scripts)
    here.run()
    assert here.owing == (USER,)
    goes(here, hours=1)
    assert end(here).name == "STOPPED"
    assert here.paper.now < 600 + 120


def test_before_anybody_spoke_the_time_does_not_run_out() -> None:
    here = room("AB", keys=TEN, turn="USER")
    here.advance(3600)
    assert waits(here.look("A")) == "waiting_for_user"


# -- nobody ends a dialog alone --------------------------------------------------------------------------------------


@cases(("keys", "calls"), [("Max Turns: 3", "AB"), ("Max Turns: 2", "A")])
def test_one_agents_deadlock_on_the_last_turn_is_the_limit(keys: str, calls: str) -> None:
    call = "[DEADLOCK: load | measure]"
    here = room("AB", keys=(keys,), **{who: [call if who == calls[-1] else "One."] for who in calls})
    here.run()
    assert end(here).name == "MAX_TURNS_REACHED"
    assert here.dialog.entries[-1].mark("DEADLOCK") is None
    assert "[REFUSED: DEADLOCK load / measure | one agent alone" in here.text


# -- whatever happens, it ends ---------------------------------------------------------------------------------------

LINES: list[Line] = [
    DOWN,
    None,
    "I think Postgres.",
    "[PASS]",
    TEXT,
    SIGNS,
    "[QUESTION_FOR_USER: which?]",
    "[QUESTION_FOR_USER: which? | by 18:00 | default: this]",
    "[ESCALATE: stuck]",
    "[DEADLOCK: x | y]",
    "[PROPOSAL: Postgres]",
    "[VOTE: P1 approve | fine]",
    "[VOTE: P1 reject | slow]",
    "[DECIDE: P1 approve | fine]",
    "[DECIDE: A | shown]",
    "[TO: USER]\nYours.",
    "[OBJECTION: too dear]",
]
ORDERS = ["alternate", "round-robin", "priority", "free", "parallel"]


@st.composite
def dialogs(draw: st.DrawFn, begins: Callable[..., Room] = unattended) -> tuple[Room, str]:
    """A dialog by some rule, unattended from its beginning or not, with agents that do anything, over and over."""
    ids = draw(st.sampled_from(["AB", "ABC", "ABCD"]))
    lines = [
        f'order = "{draw(st.sampled_from(ORDERS))}"',
        f'verdict = "{draw(st.sampled_from(["mutual", "vote", "moderator", "judge"]))}"',
        f"sealed = {str(draw(st.booleans())).lower()}",
        f"red_team = {str(draw(st.booleans())).lower()}",
        f"step = {str(draw(st.booleans())).lower()}",
        "question_defaults = true",
        *((f'judge = "{ids[-1]}"',) if draw(st.booleans()) else ()),
        *(("[board]", "round_limit = 2") if draw(st.booleans()) else ()),
        *((f"[roles.{ids[-1]}]", 'role = "moderator"') if draw(st.booleans()) else ()),
        *((f"[roles.{ids[0]}]", 'role = "critic"') if draw(st.booleans()) else ()),
    ]
    plain = draw(st.booleans())
    turn = draw(st.sampled_from([ids[0], ", ".join(ids[:2]), USER, "bob", "ANY"]))
    # Silence is a daemon that is gone: one at least is there, and looks.
    speaks = [line for line in LINES if line is not None]
    lines_of = {who: speaks if who == ids[0] else LINES for who in ids}
    scripts = {who: draw(st.lists(st.sampled_from(lines_of[who]), min_size=1, max_size=5)) for who in ids}
    here = begins(ids, *(() if plain else lines), keys=("Max Turns: 12",), turn=turn)
    here.scripts = {who: script * 40 for who, script in scripts.items()}
    return here, f"{ids} {turn} {[] if plain else lines} {scripts}"


@examples(200)
@given(dialogs())
def test_unattended_every_dialog_ends_and_never_waits_for_the_person(given_: tuple[Room, str]) -> None:
    here, what = given_
    entries = len(here.dialog.entries)
    goes(here, hours=12)
    assert here.dialog.state.outcome is not None, f"{what}\n{here.text}"
    assert not [entry.id for entry in here.dialog.entries[entries:] if USER in (entry.turn or ())], what
    assert all(isinstance(here.look(agent.id), Stop) for agent in here.dialog.header.agents)
    assert person.stop(here.log).state.outcome == here.dialog.state.outcome


@examples(200)
@given(dialogs(room), st.integers(0, 12))
def test_once_the_person_has_left_every_dialog_ends_and_never_waits_for_them(
    given_: tuple[Room, str], late: int
) -> None:
    here, what = given_
    for who in range(late):
        here.step(here.dialog.header.agents[who % len(here.dialog.header.agents)].id)
    if here.dialog.state.outcome is not None:
        return
    here.by_hand(person.leave, USER)
    assert here.dialog.header.is_unattended
    entries = len(here.dialog.entries)
    goes(here, hours=12)
    assert here.dialog.state.outcome is not None, f"{what}\n{here.text}"
    assert not [entry.id for entry in here.dialog.entries[entries:] if USER in (entry.turn or ())], what
    assert parse(here.paper.data) == here.dialog
    assert here.dialog.header_as_written == read_header(here.dialog.header.text)


def test_the_person_leaves_once_and_not_one_agent_alone() -> None:
    here = room("AB", "step = true", A=[TEXT, "More."], B=[SIGNS])
    here.run()
    assert here.owing == (USER,)
    here.by_hand(person.leave, "user", "back tomorrow")
    before = here.text
    assert "[LEAVE: USER | back tomorrow]" in before
    here.by_hand(person.leave, USER)
    assert (here.text, here.dialog.state.hand.step) == (before, False)
    goes(here)
    assert end(here).name == "CONSENSUS_REACHED"
    here.say("And the cost?")
    assert here.dialog.header.is_unattended
    here.by_hand(person.leave, "B")
    assert here.dialog.header.is_unattended
    alone = room("A")
    with pytest.raises(Refused, match="one agent alone"):
        person.leave(alone.log, USER)

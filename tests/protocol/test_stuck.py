"""No dialog gets stuck, goes in circles, or ends against its rule where several of its rules meet."""

from __future__ import annotations

from dialogd.errors import BackendError
from dialogd.protocol.certificate import answers, faults
from dialogd.protocol.model import USER
from tests.support.cases import cases
from tests.support.room import Room, opening

DOWN = BackendError("overloaded", fix="look at its log")
CALLS_IT = "[DEADLOCK: load | measure]"
MODERATED = '[roles.M]\nrole = "moderator"'
OVERDUE = 300 + 60


def room(ids: str, setup: str, *keys: str, turn: str = "") -> Room:
    """A room of these agents (`AB`) with that Setup and header lines."""
    return Room(opening(*ids, turn=turn, keys=keys, setup=setup))


def test_a_judge_cannot_choose_an_agent_that_said_nothing() -> None:
    here = room("ABCJ", 'verdict = "judge"\njudge = "J"\norder = "parallel"', "Max Rounds: 1", turn="A, B, C")
    here.speak(("A", "Postgres."), ("B", "Redis."))
    here.says("C", DOWN)
    here.speak(("J", "[DECIDE: C | shown]"), ("J", "[DECIDE: C | shown]"))
    (who, question), *_ = here.asked
    assert (who, "[DECIDE: B]" in question, "[DECIDE: C]" in question) == ("J", True, False)
    assert here.outcome == "DEADLOCK"


def test_silent_agents_do_not_keep_the_word_from_the_others() -> None:
    for order in ("free", "priority"):
        here = room("ABCD", f'order = "{order}"')
        here.speak(("A", "Postgres."))
        for silent in ("B", "C"):
            assert here.owing == (silent,)
            here.advance(OVERDUE)
            here.step("A")
        assert here.owing == ("D",)
        here.speak(("D", "Redis."))
        while here.owing[0] in "BC":
            here.advance(OVERDUE)
            here.step("A")
            assert here.dialog.state.notes < 5
        assert here.owing[0] == "A"


def test_a_seal_that_follows_an_open_answer_is_not_called_independent() -> None:
    here = room("ABC", "sealed = true\norder = 'parallel'", turn="A, B, C")
    here.retry("A")
    here.speak(("A", "Postgres."))
    for who in ("B", "C"):
        here.says(who, "Redis.")
    here.step("B")
    here.step("C")
    assert [(answer.agent, answer.is_independent) for answer in answers(here.dialog)] == [("B", False), ("C", False)]


# -- a judge that lacks a fact ---------------------------------------------------------------------------------------

JUDGED = 'verdict = "judge"\njudge = "J"'
ASKS = "[QUESTION_FOR_USER: How many users are there? | in 2h | default: a thousand]"
BOTH = [("A", CALLS_IT), ("B", CALLS_IT)]
JUDGE_IS_ASKED = {
    "deadlock": ((), JUDGED, BOTH),
    "rounds": (("Max Rounds: 1",), JUDGED, [("A", "Postgres."), ("B", "Redis.")]),
    "parallel": (("Max Rounds: 1",), f'{JUDGED}\norder = "parallel"', [("A", "Postgres."), ("B", "Redis.")]),
    "step": ((), f"step = true\n{JUDGED}", BOTH),
}


@cases("first", [False, True])
@cases(("keys", "setup", "talk"), JUDGE_IS_ASKED.values())
def test_a_judge_asks_the_person_and_judges_in_both_orders_once_it_is_answered(
    keys: tuple[str, ...], setup: str, talk: list[tuple[str, str]], first: bool
) -> None:
    here = room("ABJ", setup, *keys, turn="A, B" if "parallel" in setup else "")
    for who, text in talk if not first else [*talk, ("J", "[DECIDE: B | shown]")]:
        here.speak((who, text))
        if here.owing == (USER,):
            here.pass_on()
    assert here.owing == ("J",)
    here.speak(("J", f"It depends on the load.\n\n{ASKS}"))
    assert here.questions == []
    assert here.owing == (USER,)
    assert [question.asker for question in here.dialog.state.questions.open] == ["J"]
    here.say("Forty.")
    assert here.owing == ("J",)
    here.speak(("J", "[DECIDE: A | forty]"))
    if here.owing == (USER,):
        here.pass_on()
    assert (here.owing, here.outcome) == (("J",), "")
    here.speak(("J", "[DECIDE: A | forty]"))
    assert here.outcome == "DECIDED"


ROUND = ["I say tabs, because width is a matter of taste.", "I say spaces, because they look alike everywhere."]


def test_agents_that_go_in_a_circle_are_stopped_by_a_question_to_the_person() -> None:
    here = Room(opening(setup="break_cycles = true"), A=[ROUND[0]] * 9, B=[ROUND[1]] * 9)
    here.run()
    state = here.dialog.state
    assert (state.number, state.owing) == (7, (USER,))
    (question,) = state.questions.open
    assert question.text == "the same 2 turns have come 3 times: how is it to go on?"
    here.say("Think of readers with bad eyes.")
    here.run()
    assert here.dialog.state.number == 14


def test_with_nobody_at_the_table_a_last_round_breaks_the_circle() -> None:
    setup = '## Setup\n\n```toml\nbreak_cycles = true\nperson = "absent"\n```'
    here = Room(opening(more=setup), A=[ROUND[0]] * 9, B=[ROUND[1]] * 9)
    here.run()
    outcome = here.dialog.state.outcome
    assert (outcome.name, outcome.reason) == ("DEADLOCK", "a cycle: the same 2 turns have come 3 times")
    assert "[ROUND: closing | a cycle: the same 2 turns have come 3 times]" in here.text
    assert here.dialog.state.number == 9
    assert faults(here.paper.data) == ()


@cases("setup", ["", "break_cycles = false", "break_cycles = 1"])
def test_circles_are_broken_only_where_the_file_says_so(setup: str) -> None:
    here = Room(opening(keys=["Max Turns: 12"], setup=setup), A=ROUND[:1] * 9, B=ROUND[1:] * 9)
    here.run()
    assert (here.outcome, here.dialog.state.number) == ("MAX_TURNS_REACHED", 12)

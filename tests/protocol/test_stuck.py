"""No dialog gets stuck, goes in circles, or ends against its rule where several of its rules meet."""

from __future__ import annotations

from dialogd.errors import BackendError
from dialogd.protocol.certificate import answers
from dialogd.protocol.model import USER
from tests.support.cases import cases
from tests.support.room import Room, opening, waits

DOWN = BackendError("overloaded", fix="look at its log")
CALLS_IT = "[DEADLOCK: load | measure]"
MODERATED = '[roles.M]\nrole = "moderator"'
OVERDUE = 300 + 60


def room(ids: str, setup: str, *keys: str, turn: str = "") -> Room:
    """A room of these agents (`AB`) with that Setup and header lines."""
    return Room(opening(*ids, turn=turn, keys=keys, setup=setup))


def test_a_silent_moderator_leaves_what_was_escalated_to_the_person() -> None:
    here = room("ABM", MODERATED)
    here.speak(("A", "[ESCALATE: we cannot]"))
    for _ in range(2):
        assert here.owing == ("M",)
        here.advance(OVERDUE)
        here.step("A")
    assert here.owing == (USER,)


def test_a_moderator_that_is_passed_over_is_not_asked_again() -> None:
    here = room("ABM", MODERATED)
    here.speak(("A", "[ESCALATE: we cannot]"))
    here.skip("M")
    here.speak((here.owing[0], "Well."))
    assert here.owing != ("M",)
    assert here.dialog.state.escalation.to == ""


def test_what_the_person_passes_on_without_deciding_is_not_asked_again() -> None:
    here = room("AB", 'order = "round-robin"')
    here.speak(("A", "[ESCALATE: we cannot]"))
    assert here.owing == (USER,)
    here.pass_on()
    here.speak(("B", "Well."))
    assert here.owing == ("A",)


def test_in_step_mode_the_person_passes_the_turn_to_whom_it_was_escalated() -> None:
    here = room("ABM", f"step = true\n{MODERATED}")
    here.speak(("A", "[ESCALATE: we cannot]"))
    here.pass_on()
    assert here.owing == ("M",)


def test_in_step_mode_a_judge_is_asked_in_both_orders() -> None:
    here = room("ABJ", 'step = true\nverdict = "judge"\njudge = "J"')
    here.speak(("A", CALLS_IT))
    here.pass_on()
    here.speak(("B", CALLS_IT), ("J", "[DECIDE: A | shown]"))
    here.pass_on()
    assert here.owing == ("J",)
    here.speak(("J", "[DECIDE: A | shown]"))
    assert here.outcome == "DECIDED"


def test_a_judge_decides_once_where_the_dialog_goes_on_after_a_decision() -> None:
    here = room(
        "ABJ", 'verdict = "judge"\njudge = "J"\n[board]\nminimum_contributions = 0\nterminate_on_consensus = false'
    )
    here.speak(("A", CALLS_IT), ("B", CALLS_IT), ("J", "[DECIDE: A | shown]"), ("J", "[DECIDE: A | shown]"))
    assert here.outcome == ""
    assert here.owing == ("A",)


def test_the_time_limit_lets_a_judge_that_has_begun_judge_anew() -> None:
    here = room("ABJ", 'verdict = "judge"\njudge = "J"', "Max Time: 10 minutes")
    here.speak(("A", CALLS_IT), ("B", CALLS_IT))
    here.thinks("J")
    here.advance(600)
    here.step("A")
    here.answers("J", "[DECIDE: A | shown]")
    assert here.owing == ("A", "B")
    here.speak(("A", "In sum: Postgres."), ("B", "In sum: Redis."))
    here.speak(("J", "[DECIDE: B | shown]"), ("J", "[DECIDE: B | shown]"))
    assert here.outcome == "DECIDED"


def test_a_judge_cannot_choose_an_agent_that_said_nothing() -> None:
    here = room("ABCJ", 'verdict = "judge"\njudge = "J"\norder = "parallel"', "Max Rounds: 1", turn="A, B, C")
    here.speak(("A", "Postgres."), ("B", "Redis."))
    here.says("C", DOWN)
    here.speak(("J", "[DECIDE: C | shown]"), ("J", "[DECIDE: C | shown]"))
    (who, question), *_ = here.asked
    assert (who, "[DECIDE: B]" in question, "[DECIDE: C]" in question) == ("J", True, False)
    assert here.outcome == "DEADLOCK"


def test_a_deadlock_at_the_limit_of_turns_ends_there() -> None:
    here = room("ABJ", 'verdict = "judge"\njudge = "J"', "Max Turns: 3")
    here.speak(("A", CALLS_IT), ("B", CALLS_IT))
    assert here.outcome == "DEADLOCK"


def test_the_person_is_asked_once_where_they_had_asked_for_the_word() -> None:
    for goes_on in (lambda here: here.say("Think of cost."), lambda here: here.pass_on()):
        here = room("ABC", 'order = "free"')
        here.asks_for_the_word(USER)
        here.speak(("A", "Postgres."))
        assert here.owing == (USER,)
        goes_on(here)
        here.speak((here.owing[0], "Well."))
        assert here.owing != (USER,)


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


def test_when_nobody_answers_the_person_is_asked() -> None:
    here = room("ABO", '[roles.O]\nrole = "observer"')
    for _ in range(2):
        here.advance(OVERDUE)
        here.step("O")
    assert here.owing == (USER,)


def test_an_observer_does_not_answer_what_anybody_may_answer() -> None:
    here = room("AO", '[roles.O]\nrole = "observer"', turn="ANY")
    assert waits(here.look("O")) != "Reply"
    assert waits(here.look("A")) == "Reply"


def test_a_sealed_pair_goes_on_without_the_one_that_gives_no_answer() -> None:
    here = room("AB", "sealed = true", turn="A, B")
    here.says("A", "Postgres.")
    here.advance(OVERDUE)
    here.step("A")
    here.step("A")
    assert here.dialog.last.body == "Postgres."
    assert here.owing == ("B",)


def test_sealed_first_answers_call_no_deadlock() -> None:
    here = room("AB", "sealed = true\norder = 'parallel'", turn="A, B")
    for who in ("A", "B"):
        here.says(who, CALLS_IT)
    here.step("A")
    here.step("B")
    assert here.dialog.state.number == 3
    assert here.outcome == ""


def test_a_seal_that_follows_an_open_answer_is_not_called_independent() -> None:
    here = room("ABC", "sealed = true\norder = 'parallel'", turn="A, B, C")
    here.retry("A")
    here.speak(("A", "Postgres."))
    for who in ("B", "C"):
        here.says(who, "Redis.")
    here.step("B")
    here.step("C")
    assert [(answer.agent, answer.is_independent) for answer in answers(here.dialog)] == [("B", False), ("C", False)]


def test_a_moderator_has_the_last_word_again_after_a_reopening() -> None:
    here = room("AM", f'verdict = "moderator"\norder = "round-robin"\n{MODERATED}', "Max Rounds: 1")
    here.speak(("A", "[PROPOSAL: Postgres]"), ("M", "[DECIDE: P1 approve | fine]"))
    assert here.outcome == "DECIDED"
    here.say("And where do the backups go?", to="A")
    here.speak(("A", "[PROPOSAL: another disk]"), ("M", "Let me think."))
    assert here.owing == ("M",)
    assert here.dialog.state.escalation.to == "M"
    here.speak(("M", "I cannot tell."))
    assert here.outcome == "MAX_TURNS_REACHED"


def test_votes_do_not_wait_for_an_absent_agent() -> None:
    here = room("ABC", 'verdict = "vote"\norder = "round-robin"')
    here.speak(("A", "[PROPOSAL: Postgres]"), ("B", "[VOTE: P1 reject | slow]"))
    here.says("C", DOWN)
    here.speak(("A", "[VOTE: P1 approve | mine]"), ("B", "I stay with it."))
    assert here.dialog.state.table.decisions == ()
    here.says("C", DOWN)
    assert [(found.outcome, "absent: C" in found.evidence) for found in here.dialog.state.table.decisions] == [
        ("rejected", True)
    ]


def test_a_failure_does_not_keep_a_closing_round_open() -> None:
    here = room("AB", 'order = "round-robin"', "Max Time: 10 minutes")
    here.speak(("A", "Postgres."))
    here.advance(600)
    here.step("B")
    here.speak(("A", "In sum: Postgres."))
    here.says("B", DOWN)
    outcome = here.dialog.state.outcome
    assert (outcome.name, outcome.cause) == ("STOPPED", "time")


def test_a_turn_by_hand_after_the_end_begins_the_time_anew() -> None:
    here = room("AB", 'order = "round-robin"', "Max Time: 10 minutes", "Started: 2026-11-01 20:00:00 +01:00")
    here.step("A")
    here.speak(("A", "Postgres."))
    here.stop()
    here.types("\n## Turn 3 — User\n\nAnd backups?\n\nTURN: A\n")
    here.speak(("A", "Another disk."))
    assert waits(here.look("B")) == "Reply"


def test_a_finding_that_blocks_keeps_every_approval_from_counting() -> None:
    here = room("ABS", 'review = true\n[roles.S]\nrole = "synthesizer"')
    here.speak(("A", "[PROPOSAL: merge it]"), ("B", "[FINDING: blocking | security | a.py | 1 | no check | add one]"))
    here.speak(("S", "[DECIDE: P1 approve | fine]"))
    assert not here.dialog.state.table.decisions


def test_votes_that_a_moderator_ends_are_not_its_decision() -> None:
    here = room(
        "ABM",
        'verdict = "vote"\n[roles.M]\npermissions = ["READ_ALL", "VOTE", "MODERATE"]\n[roles.A]\nrole = "analyst"',
    )
    here.speak(("A", "[PROPOSAL: Postgres]"), ("B", "[VOTE: P1 reject | slow]\n[ESCALATE: we cannot]"))
    here.speak(("M", "[VOTE: P1 reject | slow]"))
    assert [found.outcome for found in here.dialog.state.table.decisions] == ["rejected"]
    assert here.owing == (USER,)


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


def test_a_judge_whose_question_runs_into_its_default_judges_by_it() -> None:
    here = room("ABJ", f"question_defaults = true\n{JUDGED}", "Max Rounds: 1")
    here.speak(("A", "Postgres."), ("B", "Redis."), ("J", ASKS))
    here.advance(7_300)
    here.run()
    assert here.owing == ("J",)
    here.speak(("J", "[DECIDE: B | many]"), ("J", "[DECIDE: B | many]"))
    assert here.outcome == "DECIDED"


def test_a_judge_that_gets_no_answer_judges_without() -> None:
    here = room("ABJ", JUDGED)
    here.speak(*BOTH, ("J", ASKS))
    here.pass_on()
    assert here.owing == ("J",)
    here.speak(("J", "[DECIDE: B | many]"), ("J", "[DECIDE: B | many]"))
    assert here.outcome == "DECIDED"


def test_a_judge_does_not_judge_and_ask_in_one_reply() -> None:
    here = room("ABJ", JUDGED)
    here.speak(*BOTH, ("J", f"[DECIDE: A | shown]\n{ASKS}"))
    assert [who for who, _ in here.asked] == []
    assert here.owing == (USER,)
    last = here.dialog.last
    assert [mark.name for mark in last.marks] == ["QUESTION_FOR_USER", "REFUSED"]
    assert last.marks[-1].value.endswith("J asks the person first, and judges once they have answered")


def test_what_a_judge_may_not_bring_in_is_refused_with_the_state_and_what_it_takes() -> None:
    here = room("ABJ", JUDGED)
    here.speak(*BOTH, ("J", "[PROPOSAL: mine]\n[EVIDENCE: untested]\n[DECIDE: none]"))
    last = here.dialog.last
    assert [mark.name for mark in last.marks] == ["EVIDENCE", "DECIDE", "REFUSED"]
    assert "the dialog is deciding: J judges; it takes CONFIDENCE, DECIDE" in last.marks[-1].value


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


@cases("setup", ["", "break_cycles = false", "break_cycles = 1"])
def test_circles_are_broken_only_where_the_file_says_so(setup: str) -> None:
    here = Room(opening(keys=["Max Turns: 12"], setup=setup), A=ROUND[:1] * 9, B=ROUND[1:] * 9)
    here.run()
    assert (here.outcome, here.dialog.state.number) == ("MAX_TURNS_REACHED", 12)

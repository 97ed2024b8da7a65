"""Phrases, shared words, confidence and the advice that comes of them: signals, never a verdict."""

from __future__ import annotations

import pytest

from dialogd.protocol.header import read_header
from dialogd.protocol.model import Condition, Entry, Limits, Mark
from dialogd.protocol.signals import Assessment, assess, confidence, convergence, overlap, phrases
from dialogd.protocol.state import Dialog, State
from tests.support.cases import cases
from tests.support.room import Room, opening
from tests.support.states import state_with

TEXT = "Postgres keeps sessions safely across restarts, nothing else must be operated."

AGREEING = [
    "I agree.",
    "I AGREE",
    "I agree with P1, and I agree with P2.",
    "We agree that Postgres is enough.",
    "I accept P1.",
    "You're right.",
    "You’re right about restarts.",
    "You are\nright.",
    "Good point.",
    "Let's proceed.",
    "LET'S PROCEED!",
    "Sounds good to me!",
    "I concede the point about cost.",
    "**I agree** with P1.",
    "- I don't like the name\n- I agree with P1",
]

DISAGREEING = [
    "I disagree.",
    "I don't agree.",
    "I don’t agree.",
    "I do not agree.",
    "I don't\nagree.",
    "I object.",
    "I'm not convinced.",
    "I am not convinced.",
    "However, I think Redis is better.",
    "HOWEVER, I would keep it.",
    "On the other hand, Redis is faster.",
    "I still think so.",
]

NEITHER = [
    "",
    "Use X.",
    "Do not use X.",
    "However, that ignores restarts.",
    "B agrees.",
    "The agreement holds, and nobody objects.",
    "Ik ga akkoord.",
    "Do you disagree?",
    "I agreed before.",
]

NOT_UNDERSTOOD = [
    ("I agree if you add a TTL.", (1, 0)),
    ("I never said I agree.", (1, 0)),
    ("Can we agree on P1?", (1, 0)),
    ("If I object, it fails.", (0, 1)),
]

SEVERAL = [
    ("I disagree. I do not agree.", (0, 2)),
    ("I agree with A. Let's proceed.", (2, 0)),
    ("I agree with P1. However, I think the TTL is too long.", (1, 1)),
    ("we agree on the rest; on the other hand the cost is open", (1, 1)),
]


def turn(by: str, body: str = "", *marks: Mark, number: int = 2, condition: Condition = Condition.SOUND) -> Entry:
    """One turn of an agent or the person, as it is read from a file."""
    return Entry(str(number), number, by, by, body, marks, (), condition, 0, 0, 0)


def dialog(*entries: Entry, agents: str = "AB", setup: str = "", state: State | None = None) -> Dialog:
    """A dialog of these entries, in a state that is the beginning's where none is given."""
    toml = f"## Setup\n\n```toml\n{setup}\n```" if setup else ""
    header = read_header(opening(*agents, more=toml).partition("## Turn 1")[0])
    assert header.warnings == ()
    return Dialog(header, entries, state or State(), 0)


def counts(*entries: Entry, agents: str = "AB") -> tuple[int, int]:
    """The agreements and disagreements that are counted in these entries."""
    found = assess(dialog(*entries, agents=agents))
    return found.agreements, found.disagreements


@cases("text", AGREEING)
def test_a_yes_counts_as_one_agreement(text: str) -> None:
    assert phrases(text) == (1, 0)


@cases("text", DISAGREEING)
def test_a_no_counts_as_one_disagreement(text: str) -> None:
    assert phrases(text) == (0, 1)


@cases("text", NEITHER)
def test_what_is_not_on_the_list_counts_for_nothing(text: str) -> None:
    assert phrases(text) == (0, 0)


@cases(("text", "expected"), NOT_UNDERSTOOD)
def test_no_sentence_is_understood(text: str, expected: tuple[int, int]) -> None:
    assert phrases(text) == expected


@cases(("text", "expected"), SEVERAL)
def test_several_phrases_count_each(text: str, expected: tuple[int, int]) -> None:
    assert phrases(text) == expected


def test_a_phrase_and_a_mark_beside_it_are_one_yes_or_one_no() -> None:
    assert counts(turn("B", "I agree, keep it.", Mark("AGREE", "P1"))) == (1, 0)
    assert counts(turn("B", "I object.", Mark("OBJECTION", "cost"))) == (0, 1)
    assert counts(turn("B", "I agree.", Mark("AGREE", "P1"), Mark("CONCEDE", "cost"))) == (2, 0)
    assert counts(turn("B", "I agree. Let's proceed.", Mark("OBJECTION", "cost"))) == (2, 1)
    alone = assess(
        dialog(turn("A", TEXT, Mark("PROPOSAL", TEXT, "P1")), turn("B", f"I agree. {TEXT}", Mark("AGREE", "P1")))
    )
    both = assess(dialog(turn("A", f"I agree. {TEXT}"), turn("B", f"I agree. {TEXT}", Mark("AGREE", "P1"))))
    assert (alone.advice, both.advice) == ("CONTINUE", "FINALIZE")


def test_a_phrase_that_comes_again_counts_once() -> None:
    assert phrases("I agree. I agree with P1.\n\nI agree!\n- I agree") == (1, 0)


def test_a_reply_of_any_length_is_read_in_time_that_grows_with_it() -> None:
    assert phrases("i agree , " * 20_000) == (1, 0)
    assert phrases("<" * 50_000 + "'a " * 20_000 + "~~a" * 2_000 + '"' * 50_000) == (0, 0)
    assert phrases(f"{'word ' * 20_000}. I disagree.") == (0, 1)


@cases(
    ("marks", "expected"),
    [
        ([Mark("AGREE", "P1"), Mark("AGREE", "P2")], (1, 0)),
        ([Mark("CONCEDE", "cost")], (1, 0)),
        ([Mark("AGREE", "P1"), Mark("CONCEDE", "cost"), Mark("VOTE", "P1 approve | cheap")], (3, 0)),
        ([Mark("VOTE", "P1 approve"), Mark("VOTE", "P2 reject | dear")], (1, 1)),
        ([Mark("VOTE", "approve")], (0, 0)),
        ([Mark("VOTE", "P1 abstain")], (0, 0)),
        ([Mark("OBJECTION", "cost"), Mark("OBJECTION", "time"), Mark("CRITIQUE", "dear")], (0, 2)),
        ([Mark("RESERVATION", "cost"), Mark("EVIDENCE", "a test"), Mark("PROPOSAL", "Redis", "P2")], (0, 0)),
    ],
)
def test_marks_count_each_kind_once_in_a_reply(marks: list[Mark], expected: tuple[int, int]) -> None:
    assert counts(turn("A", "…", *marks)) == expected


def test_only_the_latest_reply_of_each_agent_counts() -> None:
    assert counts(turn("A", "I disagree."), turn("B", "I object."), turn("A", "I agree.")) == (1, 1)
    said = (turn("A", "I disagree."), turn("A", "I agree."))
    assert counts(*said) == (1, 0)
    assert counts(turn("A", "I disagree."), turn("USER", "Decide."), turn("B", "I agree.")) == (1, 0)
    assert counts(turn("A", "I disagree."), turn("B", "I agree."), turn("USER", "So?")) == (0, 0)


def test_notes_of_the_person_and_passes_hide_nothing() -> None:
    note = Entry("2.1", 0, "USER", "User", "Mind the cost.", (), None, Condition.SOUND, 0, 0, 0)
    assert counts(turn("A", "I disagree."), note) == (0, 1)
    assert counts(turn("A", "I disagree."), turn("A", "", Mark("PASS"))) == (0, 1)
    assert counts(turn("A", "I disagree."), turn("A", "I agree.", condition=Condition.DAMAGED)) == (0, 1)


def test_observers_and_the_judge_are_not_counted() -> None:
    setup = 'verdict = "judge"\njudge = "C"'
    said = (turn("A", "I agree."), turn("B", "I agree."), turn("C", "I disagree."))
    found = assess(dialog(*said, agents="ABC", setup=setup))
    assert (found.agreements, found.disagreements) == (2, 0)


def test_overlap_of_two_texts_counts_words_of_four_letters_or_more() -> None:
    assert overlap("keep them in Postgres", "KEEP them, in postgres!") == 1.0
    assert overlap("Postgres", "Redis or memcached") == 0.0
    assert overlap("a b c", "") == 1.0


def test_convergence_is_the_intersection_of_all_words_over_their_union() -> None:
    assert convergence(["alpha beta the", "beta gamma and"]) == pytest.approx(1 / 3)
    assert convergence(["alpha beta gamma", "beta gamma delta", "gamma delta beta"]) == pytest.approx(2 / 4)


def test_convergence_of_fewer_than_two_texts_is_none() -> None:
    assert convergence([]) == convergence(["alpha beta"]) == convergence(["a b", "c d"]) == 0.0
    assert convergence(["alpha", ""]) == 0.0


def test_use_it_and_do_not_use_it_look_alike() -> None:
    assert convergence(["Use Postgres for sessions.", "Do not use Postgres for sessions."]) == 1.0


def test_quoting_the_others_brings_nobody_nearer() -> None:
    reply = turn("B", f"> {TEXT}\n\nRedis answers faster.")
    assert assess(dialog(turn("A", TEXT), reply)).convergence == 0.0


@cases(
    ("agreements", "disagreements", "near", "expected"),
    [(0, 0, 0.0, 0.3), (4, 0, 1.0, 1.0), (9, 0, 1.0, 1.0), (2, 1, 0.5, 0.575), (0, 4, 0.0, 0.0), (1, 9, 0.0, 0.1)],
)
def test_confidence_weighs_agreement_disagreement_and_convergence(
    agreements: int, disagreements: int, near: float, expected: float
) -> None:
    assert confidence(agreements, disagreements, near) == pytest.approx(expected)


def test_an_assessment_carries_its_numbers() -> None:
    found = assess(dialog(turn("A", f"I agree. {TEXT}"), turn("B", f"{TEXT} However, I doubt it.")))
    assert (found.agreements, found.disagreements) == (1, 1)
    assert found.convergence == pytest.approx(convergence([f"agree {TEXT}", f"{TEXT} however doubt"]))
    assert found.confidence == pytest.approx(0.4 / 4 + 0.3 * 0.75 + 0.3 * found.convergence)


def test_two_agreements_without_disagreement_in_near_replies_finalize() -> None:
    found = assess(dialog(turn("A", f"I agree. {TEXT}"), turn("B", f"{TEXT} Let's proceed. I accept.")))
    assert (found.advice, found.agreements, found.disagreements) == ("FINALIZE", 3, 0)
    assert found.reason.startswith("3 agreements, no disagreements, and the latest replies share ")
    assert found.reason.endswith("(60% is enough)")


@cases(
    ("one", "other", "reason"),
    [
        ("I agree.", "", "1 agreement of 2, no disagreements, the latest replies share 90% of their words, which is"),
        (
            "I agree.",
            "I agree. However, I think it is dear.",
            "2 agreements of 2, 1 disagreement, the latest replies share",
        ),
    ],
)
def test_with_too_few_agreements_or_any_disagreement_it_continues(one: str, other: str, reason: str) -> None:
    found = assess(dialog(turn("A", f"{one} {TEXT}"), turn("B", f"{other} {TEXT}")))
    assert found.advice == "CONTINUE"
    assert found.reason.startswith(reason)


def test_replies_that_share_too_few_words_continue() -> None:
    found = assess(
        dialog(turn("A", "I accept: Postgres, with backups."), turn("B", "I concede, Redis answers faster."))
    )
    assert found.advice == "CONTINUE"
    assert found.reason == "2 agreements of 2, no disagreements, the latest replies share 0% of their words, below 60%"


@cases(("setup", "advice"), [("", "FINALIZE"), ("convergence_threshold = 0.61", "CONTINUE")])
def test_the_threshold_is_reached_at_exactly_it_and_the_setup_may_change_it(setup: str, advice: str) -> None:
    agreeing = Mark("AGREE", "P1")
    said = (turn("A", "alpha beta gamma delta", agreeing), turn("B", "alpha beta gamma epsilon", agreeing))
    found = assess(dialog(*said, setup=setup))
    assert (found.convergence, found.advice) == (0.6, advice)


@cases(("more", "advice"), [(0, "CONTINUE"), (1, "MEDIATE")])
def test_more_than_three_disagreements_ask_for_mediation(more: int, advice: str) -> None:
    marks = (Mark("OBJECTION", "cost"), Mark("CRITIQUE", "dear"))
    found = assess(dialog(turn("A", "…", *marks), turn("B", "I disagree." + " However, I doubt it." * more)))
    assert (found.advice, found.disagreements) == (advice, 3 + more)
    assert more == 0 or found.reason == "4 disagreements in the latest replies, more than 3"


@cases(
    ("state", "is_last", "reason"),
    [
        (State(number=2, limits=Limits(max_turns=4)), True, "the limit of 4 turns"),
        (State(number=2, limits=Limits(max_turns=5)), False, ""),
        (State(number=12, base=10, limits=Limits(max_turns=5)), False, ""),
        (state_with(number=2, rounds=2, limits=Limits(max_rounds=3)), True, "the limit of 3 rounds"),
        (state_with(number=2, rounds=1, limits=Limits(max_rounds=3)), False, ""),
        (State(number=2, closing="the time limit of 30 minutes"), True, "the time limit of 30 minutes"),
    ],
)
def test_the_last_round_finalizes_whatever_was_said(state: State, is_last: bool, reason: str) -> None:
    marks = (Mark("OBJECTION", "cost"), Mark("CRITIQUE", "dear"), Mark("VOTE", "P1 reject"))
    found = assess(dialog(turn("A", "I disagree.", *marks), turn("B", "I object."), state=state))
    assert found.advice == ("FINALIZE" if is_last else "MEDIATE")
    assert not is_last or found.reason.startswith(f"this is the last round ({reason}); no agreements, 4 disagreements")


def test_where_nobody_has_replied_it_continues() -> None:
    found = assess(dialog(state=State(number=1, limits=Limits(max_rounds=1))))
    assert (found.advice, found.reason) == ("CONTINUE", "no agent has replied yet")
    assert found.confidence == pytest.approx(0.3)


def test_a_dialog_that_ended_is_done() -> None:
    room = Room(opening("A", "B", keys=["Max Turns: 3"]), A=["I disagree."], B=["I object."])
    room.run()
    found = assess(room.dialog)
    assert (found.advice, found.disagreements) == ("FINALIZE", 2)
    assert found.reason.startswith("the dialog has ended; ")


def test_only_the_last_turns_are_looked_at() -> None:
    early = turn("A", "I disagree.")
    assert counts(early, *[turn("B", "Hm.")] * 34) == (0, 1)
    assert counts(early, *[turn("B", "Hm.")] * 36) == (0, 0)


def test_an_assessment_is_a_value() -> None:
    said = dialog(turn("A", "I agree."))
    assert assess(said) == assess(said) == Assessment(**{f: getattr(assess(said), f) for f in Assessment.__slots__})

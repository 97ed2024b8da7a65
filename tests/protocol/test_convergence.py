"""Phrases, shared words, confidence and the advice that comes of them: signals, never a verdict."""

from __future__ import annotations

import pytest

from dialogd.protocol.convergence import Assessment, assess, confidence, convergence, overlap, phrases
from dialogd.protocol.header import read_header
from dialogd.protocol.model import Condition, Entry, Limits, Mark
from dialogd.protocol.state import Dialog, State
from dialogd.testing.room import Room, opening

TEXT = "Postgres keeps sessions safely across restarts, nothing else must be operated."

AGREEING = [
    "I don't like the name of\n```\nx = 1\n```\nI agree with P1.",
    "- I don't like the name\n- I agree with P1",
    "However, I can accept that.",
    "However, I think you're quite right.",
    "I agree.",
    "I agree with P1, and I agree with P2.",
    "However, I agree with the rest.",
    "Let's proceed.",
    "Let’s proceed with P1.",
    "LET'S PROCEED!",
    "Let us proceed.",
    "No, I agree.",
    "I have no doubt that we agree.",
    "I don't like the name, but I agree.",
    "I don't like the name but I agree.",
    "I don't like Redis and I agree with B.",
    "I agree, but shouldn't we test it?",
    "I agree that if the node dies, sessions are lost.",
    "I agree: if the node dies, sessions are lost.",
    "If that fails we lose all, but I agree with P1.",
    "That said, I agree.",
    "Sounds good.",
    "Sounds good to me!",
    "You're right.",
    "You’re absolutely right about restarts.",
    "I couldn't agree more.",
    "I can't help but agree.",
    "Agreed.",
    "Yes, agreed on both points.",
    "We both agree that Postgres is enough.",
    "Not only do I agree, I have measured it.",
    "Good point.",
    "**I agree** with P1.",
    "- I agree with P1",
    "I'm convinced.",
    "You convinced me.",
    "That's right.",
    "That makes sense.",
    "I have no further concerns and I agree.",
    "lgtm",
    "+1",
    "I concede the point about cost.",
    "We have consensus.",
    "I accept P1.",
    "But I think you're right.",
    "I agree with you that it is not cheap.",
    "I agree, it is not cheap.",
    "It is not cheap; I agree.",
    "I am in full agreement.",
    "To be clear: I agree.",
    "I think I agree.",
    "A: I agree.",
    "I agree. If the tests fail, I disagree.",
    "I AGREE",
    "Lets proceed.",
    "I agree to sign P4.",
    "You're right, it is not safe.",
    "Strongly agree.",
    "We, however, agree.",
    "I agree with B's proposal.",
    "I agree with you that one concern remains.",
]

DISAGREEING = [
    "However, I think the right choice is Redis.",
    "However, we would not accept it.",
    "On the other hand, I object.",
    "That said, I object.",
    "I don\u2018t agree.",
    "However, I think Redis is better.",
    "HOWEVER, I would keep it.",
    "I, however, see it differently.",
    "However, that ignores restarts.",
    "However, I disagree.",
    "Let's not proceed yet.",
    "I don't think I agree",
    "I don’t think I agree.",
    "I do not agree.",
    "I don't think\nI agree.",
    "I can't say I agree.",
    "It is hard to agree with this.",
    "I'm not sure I agree.",
    "I am not sure that I agree with you.",
    "I'm not convinced I agree.",
    "I doubt we agree.",
    "> I agree with everything\n\nI disagree.",
    "I disagree.",
    "I have one objection.",
    "I object.",
    "My main objection is the cost.",
    "That said, the cost is too high.",
    "On the other hand, Redis is faster.",
    "I don't think you're right.",
    "We agree to disagree.",
    "I agree with none of it.",
    "Neither B nor I agree.",
    "Not a good point.",
    "I'm not convinced.",
    "I'd rather keep Postgres.",
    "I cannot sign P4.",
    "I refuse to sign P4.",
    "That's wrong.",
    "That makes no sense.",
    "I do not concede.",
    "I agree to differ.",
    "I can't accept that.",
    "I reject P2.",
    "I'm not ready to sign.",
    "But I think the cost matters more.",
    "I still disagree with P1.",
    "I would disagree with that.",
    "I have reservations about the cost.",
    "I don't see how that helps.",
    "I have some doubts.",
    "I wish I could agree.",
    "I could not agree less.",
    "I find it hard to agree.",
    "Strongly disagree.",
    "I'd push back on that",
    "I would like to push back a bit.",
    "I however think otherwise",
    "I, however think otherwise.",
    "I don't agree with your concern.",
]

NEITHER = [
    "However you do it, it works.",
    "Let's go with Redis instead.",
    "Should we proceed?",
    "Let's proceed?",
    "I never said I agree.",
    "Do you agree?",
    "Do we agree, or shall we test it?",
    "Can we agree on P1?",
    "I would agree if it were cheaper.",
    "I'd agree to that.",
    "I agree if you add a TTL.",
    "I agree with P1, provided that it is tested.",
    "I agree only if the tests pass.",
    "If you add a TTL, I agree.",
    "B agrees.",
    "B says I agree with him.",
    "You claim we agree.",
    "B wrote: I agree with P1.",
    'You said "I agree" in turn 3.',
    "You said “I agree” in turn 3.",
    "You said 'I agree' in turn 3.",
    "You wrote `I agree`.",
    "> I agree with everything",
    "```\nI agree\n```",
    "I don't disagree.",
    "I wouldn't say I disagree.",
    "I have no objections.",
    "I do not object.",
    "No objections.",
    "My objection is answered.",
    "I withdraw my objection.",
    "B that said nothing.",
    "That sounds good in theory.",
    "That doesn't sound good.",
    "If you're right, sessions are lost.",
    "As agreed before, the index stays.",
    "Agreed text: see below.",
    "I agree in principle.",
    "I partly agree.",
    "~~I agree~~",
    "You have not convinced me.",
    "Use X.",
    "Do not use X.",
    "The agreement holds, and nobody objects.",
    "Why don't we agree on the schema first?",
    "I hope we agree soon.",
    "Once we agree, write it down.",
    "It took 3+1 seconds.",
    "I used to agree.",
    "It's not that I don't agree.",
    "We do not have consensus.",
    "Do you disagree?",
    "Does anybody object?",
    "If I object, it fails.",
    "I agree (if the tests pass).",
    "I'm not sure which port it uses.",
    "This is not about whether I agree.",
    "I won't object.",
    "Ik ga akkoord.",
    "Unless P1 is tested I cannot agree.",
    "Let's proceed once B has signed.",
    "It's hard to disagree.",
    "Nobody disagrees.",
    "I agree with B's objection",
    "I agree with your main concern.",
    "Agreed with B's doubts.",
    "I won't push back on that.",
    "We push back the date.",
]

SEVERAL = [
    ("I disagree. I don't think I agree.", (0, 2)),
    ("I fully agree with A. Let's proceed.", (2, 0)),
    ("I agree with P1. However, I think the TTL is too long.", (1, 1)),
    ("we agree on the rest; on the other hand the cost is open", (1, 1)),
    ("I agree with A's point, although I doubt the number.", (1, 1)),
    ("I don't agree, I strongly disagree, and I object to P1.", (0, 3)),
]


def turn(by: str, body: str = "", *marks: Mark, number: int = 2, condition: Condition = Condition.SOUND) -> Entry:
    """One turn of an agent or the person, as it is read from a file."""
    return Entry(str(number), number, by, by, body, marks, (), condition, "", 0, 0, 0)


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


@pytest.mark.parametrize("text", AGREEING)
def test_a_yes_counts_as_one_agreement(text: str) -> None:
    """However it is written: curly apostrophes, capitals, emphasis, behind a `no` of another clause."""
    assert phrases(text) == (1, 0)


@pytest.mark.parametrize("text", DISAGREEING)
def test_a_no_counts_as_one_disagreement(text: str) -> None:
    """A plain one, a turned-round yes, and `however, I`, which no comparison in small letters may lose."""
    assert phrases(text) == (0, 1)


@pytest.mark.parametrize("text", NEITHER)
def test_what_is_asked_supposed_quoted_or_told_counts_for_nothing(text: str) -> None:
    """Questions, conditions, others' words, code and quotes are no position; a denied no is no yes."""
    assert phrases(text) == (0, 0)


@pytest.mark.parametrize(("text", "expected"), SEVERAL)
def test_several_phrases_count_each(text: str, expected: tuple[int, int]) -> None:
    """One of a kind in each clause."""
    assert phrases(text) == expected


def test_a_phrase_and_a_mark_beside_it_are_one_yes_or_one_no() -> None:
    """One reply alone is no agreement of two: whichever are more, its phrases or its marks."""
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
    """Nobody agrees more by saying it four times."""
    assert phrases("I agree. I agree with P1.\n\nI agree!\n- I agree") == (1, 0)


def test_a_reply_of_any_length_is_read_in_time_that_grows_with_it() -> None:
    """Long lines without an end and many small sentences: nothing is looked at twice without need."""
    assert phrases("i agree , " * 20_000) == (1, 0)
    assert phrases("<" * 50_000 + "'a " * 20_000 + "~~a" * 2_000 + '"' * 50_000) == (0, 0)
    assert phrases(f"{'word ' * 20_000}. I disagree.") == (0, 1)


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([Mark("AGREE", "P1"), Mark("AGREE", "P2")], (1, 0)),
        ([Mark("CONCEDE", "cost")], (1, 0)),
        ([Mark("AGREE", "P1"), Mark("CONCEDE", "cost"), Mark("VOTE", "P1 approve | cheap")], (3, 0)),
        ([Mark("VOTE", "P1 approve"), Mark("VOTE", "P2 reject | dear")], (1, 1)),
        ([Mark("VOTE", "approve")], (1, 0)),
        ([Mark("VOTE", "P1 abstain")], (0, 0)),
        ([Mark("OBJECTION", "cost"), Mark("OBJECTION", "time"), Mark("CRITIQUE", "dear")], (0, 2)),
        ([Mark("AGREE", "P1 if it is tested")], (0, 0)),
        ([Mark("AGREE", "P1 and P2, but not yet")], (0, 0)),
        ([Mark("AGREE", "P1, it is not dear")], (1, 0)),
        ([Mark("RESERVATION", "cost"), Mark("EVIDENCE", "a test"), Mark("PROPOSAL", "Redis", "P2")], (0, 0)),
    ],
)
def test_marks_count_each_kind_once_in_a_reply(marks: list[Mark], expected: tuple[int, int]) -> None:
    """AGREE, CONCEDE and an approving vote are agreement; OBJECTION, CRITIQUE and a rejecting vote are not."""
    assert counts(turn("A", "…", *marks)) == expected


def test_only_the_latest_reply_of_each_agent_counts() -> None:
    """What an agent said before is overtaken, and what was said before the person spoke is not held against it."""
    assert counts(turn("A", "I disagree."), turn("B", "I object."), turn("A", "I agree.")) == (1, 1)
    said = (turn("A", "I disagree."), turn("A", "I agree."))
    assert counts(*said) == (1, 0)
    assert counts(turn("A", "I disagree."), turn("USER", "Decide."), turn("B", "I agree.")) == (1, 0)
    assert counts(turn("A", "I disagree."), turn("B", "I agree."), turn("USER", "So?")) == (0, 0)


def test_notes_of_the_person_and_passes_hide_nothing() -> None:
    """A note is no turn, a bare pass leaves what was said before it standing, and damage counts for nothing."""
    note = Entry("2.1", 0, "USER", "User", "Mind the cost.", (), None, Condition.SOUND, "", 0, 0, 0)
    assert counts(turn("A", "I disagree."), note) == (0, 1)
    assert counts(turn("A", "I disagree."), turn("A", "", Mark("PASS"))) == (0, 1)
    assert counts(turn("A", "I disagree."), turn("A", "I agree.", condition=Condition.DAMAGED)) == (0, 1)


def test_observers_and_the_judge_are_not_counted() -> None:
    """Only who takes part in the debate."""
    setup = 'verdict = "judge"\njudge = "C"'
    said = (turn("A", "I agree."), turn("B", "I agree."), turn("C", "I disagree."))
    found = assess(dialog(*said, agents="ABC", setup=setup))
    assert (found.agreements, found.disagreements) == (2, 0)


def test_overlap_of_two_texts_counts_words_of_four_letters_or_more() -> None:
    """Intersection over union; texts without such words are the same."""
    assert overlap("keep them in Postgres", "KEEP them, in postgres!") == 1.0
    assert overlap("Postgres", "Redis or memcached") == 0.0
    assert overlap("a b c", "") == 1.0


def test_convergence_is_the_intersection_of_all_words_over_their_union() -> None:
    """Of two texts and of more; three letters are no word."""
    assert convergence(["alpha beta the", "beta gamma and"]) == pytest.approx(1 / 3)
    assert convergence(["alpha beta gamma", "beta gamma delta", "gamma delta beta"]) == pytest.approx(2 / 4)


def test_convergence_of_fewer_than_two_texts_is_none() -> None:
    """One text agrees with nobody, and two texts without words are not the same text."""
    assert convergence([]) == convergence(["alpha beta"]) == convergence(["a b", "c d"]) == 0.0
    assert convergence(["alpha", ""]) == 0.0


def test_use_it_and_do_not_use_it_look_alike() -> None:
    """The known weakness: shared words say nothing about their meaning."""
    assert convergence(["Use Postgres for sessions.", "Do not use Postgres for sessions."]) == 1.0


def test_quoting_the_others_brings_nobody_nearer() -> None:
    """Block quotes are left out of the words that are compared."""
    reply = turn("B", f"> {TEXT}\n\nRedis answers faster.")
    assert assess(dialog(turn("A", TEXT), reply)).convergence == 0.0


@pytest.mark.parametrize(
    ("agreements", "disagreements", "near", "expected"),
    [(0, 0, 0.0, 0.3), (4, 0, 1.0, 1.0), (9, 0, 1.0, 1.0), (2, 1, 0.5, 0.575), (0, 4, 0.0, 0.0), (1, 9, 0.0, 0.1)],
)
def test_confidence_weighs_agreement_disagreement_and_convergence(
    agreements: int, disagreements: int, near: float, expected: float
) -> None:
    """0.4 of the agreements, 0.3 of the disagreements that are missing, 0.3 of the convergence; never below 0."""
    assert confidence(agreements, disagreements, near) == pytest.approx(expected)


def test_an_assessment_carries_its_numbers() -> None:
    """What was counted, and the confidence by the formula."""
    found = assess(dialog(turn("A", f"I agree. {TEXT}"), turn("B", f"{TEXT} However, I doubt it.")))
    assert (found.agreements, found.disagreements) == (1, 1)
    assert found.convergence == pytest.approx(convergence([f"agree {TEXT}", f"{TEXT} however doubt"]))
    assert found.confidence == pytest.approx(0.4 / 4 + 0.3 * 0.75 + 0.3 * found.convergence)


def test_two_agreements_without_disagreement_in_near_replies_finalize() -> None:
    """The reason says all three numbers."""
    found = assess(dialog(turn("A", f"I agree. {TEXT}"), turn("B", f"{TEXT} Let's proceed. Agree.")))
    assert (found.advice, found.agreements, found.disagreements) == ("FINALIZE", 3, 0)
    assert found.reason.startswith("3 agreements, no disagreements, and the latest replies share ")
    assert found.reason.endswith("(60% is enough)")


@pytest.mark.parametrize(
    ("one", "other", "reason"),
    [
        ("I agree.", "", "1 agreement of 2, no disagreements, the latest replies share 90% of their words, which is"),
        ("I agree.", "Agreed. However, it is dear.", "2 agreements of 2, 1 disagreement, the latest replies share"),
    ],
)
def test_with_too_few_agreements_or_any_disagreement_it_continues(one: str, other: str, reason: str) -> None:
    """Each with what is missing."""
    found = assess(dialog(turn("A", f"{one} {TEXT}"), turn("B", f"{other} {TEXT}")))
    assert found.advice == "CONTINUE"
    assert found.reason.startswith(reason)


def test_replies_that_share_too_few_words_continue() -> None:
    """Two agreements on different things are none."""
    found = assess(dialog(turn("A", "I agree: Postgres, with backups."), turn("B", "Agreed, Redis answers faster.")))
    assert found.advice == "CONTINUE"
    assert found.reason == "2 agreements of 2, no disagreements, the latest replies share 0% of their words, below 60%"


@pytest.mark.parametrize(("setup", "advice"), [("", "FINALIZE"), ("convergence_threshold = 0.61", "CONTINUE")])
def test_the_threshold_is_reached_at_exactly_it_and_the_setup_may_change_it(setup: str, advice: str) -> None:
    """Three shared words of five are 60 %, the default."""
    agreeing = Mark("AGREE", "P1")
    said = (turn("A", "alpha beta gamma delta", agreeing), turn("B", "alpha beta gamma epsilon", agreeing))
    found = assess(dialog(*said, setup=setup))
    assert (found.convergence, found.advice) == (0.6, advice)


@pytest.mark.parametrize(("more", "advice"), [(0, "CONTINUE"), (1, "MEDIATE")])
def test_more_than_three_disagreements_ask_for_mediation(more: int, advice: str) -> None:
    """Three are a debate, four are a quarrel."""
    marks = (Mark("OBJECTION", "cost"), Mark("CRITIQUE", "dear"))
    found = assess(dialog(turn("A", "…", *marks), turn("B", "I disagree." + " However, I doubt it." * more)))
    assert (found.advice, found.disagreements) == (advice, 3 + more)
    assert more == 0 or found.reason == "4 disagreements in the latest replies, more than 3"


@pytest.mark.parametrize(
    ("state", "is_last", "reason"),
    [
        (State(number=2, limits=Limits(max_turns=4)), True, "the limit of 4 turns"),
        (State(number=2, limits=Limits(max_turns=5)), False, ""),
        (State(number=12, base=10, limits=Limits(max_turns=5)), False, ""),
        (State(number=2, rounds=2, limits=Limits(max_rounds=3)), True, "the limit of 3 rounds"),
        (State(number=2, rounds=1, limits=Limits(max_rounds=3)), False, ""),
        (State(number=2, closing="the time limit of 30 minutes"), True, "the time limit of 30 minutes"),
    ],
)
def test_the_last_round_finalizes_whatever_was_said(state: State, is_last: bool, reason: str) -> None:
    """The limit of turns or rounds is about to be reached, or the dialog is closing; this comes before a quarrel."""
    marks = (Mark("OBJECTION", "cost"), Mark("CRITIQUE", "dear"), Mark("VOTE", "P1 reject"))
    found = assess(dialog(turn("A", "I disagree.", *marks), turn("B", "I object."), state=state))
    assert found.advice == ("FINALIZE" if is_last else "MEDIATE")
    assert not is_last or found.reason.startswith(f"this is the last round ({reason}); no agreements, 4 disagreements")


def test_where_nobody_has_replied_it_continues() -> None:
    """Nothing said is no reason to end, not even in a dialog of one round; the formula gives 0.3."""
    found = assess(dialog(state=State(number=1, limits=Limits(max_rounds=1))))
    assert (found.advice, found.reason) == ("CONTINUE", "no agent has replied yet")
    assert found.confidence == pytest.approx(0.3)


def test_a_dialog_that_ended_is_done() -> None:
    """Played to its end by scripted agents, its assessment says so."""
    room = Room(opening("A", "B", keys=["Max Turns: 3"]), A=["I disagree."], B=["I object."])
    room.run()
    found = assess(room.dialog)
    assert (found.advice, found.disagreements) == ("FINALIZE", 2)
    assert found.reason.startswith("the dialog has ended; ")


def test_only_the_last_turns_are_looked_at() -> None:
    """An agent that has not spoken for long does not make every reading long."""
    early = turn("A", "I disagree.")
    assert counts(early, *[turn("B", "Hm.")] * 34) == (0, 1)
    assert counts(early, *[turn("B", "Hm.")] * 36) == (0, 0)


def test_an_assessment_is_a_value() -> None:
    """Two readings of the same dialog say the same."""
    said = dialog(turn("A", "I agree."))
    assert assess(said) == assess(said) == Assessment(**{f: getattr(assess(said), f) for f in Assessment.__slots__})

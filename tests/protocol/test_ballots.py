"""What a vote says: a yes only where somebody clearly said yes, whatever the words around it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dialogd.protocol.ballots import (
    Choice,
    agreed,
    cast,
    confidence,
    decision,
    pick,
    references,
    suspects,
    to,
    vote,
    votes,
)
from dialogd.protocol.marks import read_reply
from dialogd.protocol.model import Mark
from dialogd.protocol.wording import CHOICES, NEITHER, NO, YES
from tests.examples import examples
from tests.protocol.test_total import is_linear
from tests.protocol.texts import texts

DECIDING = ("VOTE", "DECIDE", "AGREE", "CONSENSUS_REACHED")


def said(value: str, ref: str = "") -> list[str]:
    """The votes of a VOTE mark, as `P1 approve`."""
    return [f"{choice.ref} {choice.choice}" for choice in votes(Mark("VOTE", value, ref))]


@pytest.mark.parametrize(
    ("value", "choice"),
    [
        ("P1 approve | it is simple", Choice("P1", "approve", "it is simple")),
        ("P1: Approve - because it is simple", Choice("P1", "approve", "because it is simple")),
        ("approve P1 because it is simple", Choice("P1", "approve", "because it is simple")),
        ("P1 | approve | it is simple", Choice("P1", "approve", "it is simple")),
        ("approve | P1 | it is simple", Choice("P1", "approve", "it is simple")),
        ('{"proposal": "P1", "vote": "approve", "reason": "simple"}', Choice("P1", "approve", "simple")),
        ("P1 approve | reason: it is simple", Choice("P1", "approve", "it is simple")),
        ("P1 approve | reason enough", Choice("P1", "approve", "reason enough")),
        ("P1 approve, fast | and simple", Choice("P1", "approve", "fast; and simple")),
        ("P1 approve - P2 is worse", Choice("P1", "approve", "P2 is worse")),
        ("P1 approve: no downtime", Choice("P1", "approve", "no downtime")),
        ("P1 approve for its speed", Choice("P1", "approve", "for its speed")),
        ("P1 approve | simple, but slow", Choice("P1", "approve", "simple, but slow")),
        ("P1 reject | I would approve a smaller one", Choice("P1", "reject", "I would approve a smaller one")),
        ("P1 = yes", Choice("P1", "approve")),
        ("P1-approve", Choice("P1", "approve")),
        ("P1 for", Choice("P1", "approve")),
        ("proposal 1: approve", Choice("P1", "approve")),
        ("#1 approve", Choice("P1", "approve")),
        ("P01 approve", Choice("P1", "approve")),
        ("+1", Choice("", "approve")),
        ("P1 👎🏽", Choice("P1", "reject")),
        ("P1 \u22121", Choice("P1", "reject")),
        ("no", Choice("", "reject")),
        ("P1 abstain | no view", Choice("P1", "abstain", "no view")),
    ],
)
def test_a_vote_is_read_in_many_words(value: str, choice: Choice) -> None:
    """Proposal, choice and reason, in either order and with any of the usual words and signs."""
    assert vote(Mark("VOTE", value)) == choice
    assert vote(choice.mark("VOTE")) == choice


@pytest.mark.parametrize(
    "value",
    [
        "", "P1", "|", "P1 |", "<ref> approve", "P1 <approve or reject>", "P1 approve | reason", "P1 approve | …",
        "P1 approve|reject|abstain", "P1 approve/reject", "P1 approve or reject", "P1 yes, no", "P1 ✅ reject",
        "P1 not approve", "do not approve P1", "P1 can't approve", "P1 never approve", "P1 approve not",
        "P1 approve, not", "P1 would approve", "P1 maybe yes", "P1 yes, maybe", "yes/maybe P1", "P1 approve?",
        "P1 approve 🤔", "P1 approve-ish", "P1 approve if it is tested", "P1 approve, if it is tested",
        "P1 approve | good; if it is tested", "P1 approve, but only in part", "P1 yes, except the cache",
        "P1 approve with changes", "P1 approve in principle", "P1 approve | provided that it is tested",
        "P1 approve | fine, as long as it is tested", "P1 approve for now", "P1 approve | subject to a review",
        "P1 approve | scratch that", "P1 approve, I reject it", "P1 approve, right?", "P1 approve over P2",
        "P1 approve P2", "P1-P3 approve", "P1: P2 approve", "P1 approve, P1 reject", "approve P1, P2 reject",
        "P1 ~~approve~~", "P1 pass", "P1 7/10", "for P1", "P1 no objection", "P1 不同意",
    ],
)  # fmt: skip
def test_a_vote_with_a_condition_or_without_a_clear_word_is_none(value: str) -> None:
    """It is asked back; as it stands it chooses nothing."""
    assert said(value) == []
    assert decision(Mark("DECIDE", value)) is None


def test_one_mark_may_vote_on_several() -> None:
    """A list before or behind one choice, or pairs; anything that could be read two ways is not clear."""
    assert said("P1, P2 and P3 approve") == ["P1 approve", "P2 approve", "P3 approve"]
    assert said("approve P1, P2") == ["P1 approve", "P2 approve"]
    assert said("P1 approve; P2: reject, P3 abstain | tired") == ["P1 approve", "P2 reject", "P3 abstain"]
    assert said("approve P1 and reject P2 because it is slow") == ["P1 approve", "P2 reject"]
    assert vote(Mark("VOTE", "P1, P2 approve")) is None
    assert said("P1 approve; reject P2") == []


def test_the_number_may_stand_beside_the_name() -> None:
    """`[VOTE P1: approve]`; another number in the value makes it unclear."""
    assert said("approve | fast", "P1") == said("P1: approve", "P1") == ["P1 approve"]
    assert said("P2 approve", "P1") == []


def test_a_decision_is_a_yes_or_a_no() -> None:
    """What a DECIDE says is read like a vote; an abstention decides nothing."""
    assert decision(Mark("DECIDE", "P1 approve | cheap")) == Choice("P1", "approve", "cheap")
    assert decision(Mark("DECIDE", "reject", "P1")) == Choice("P1", "reject")
    assert decision(Mark("DECIDE", "P1 abstain")) is None
    assert decision(Mark("DECIDE", "P1, P2 approve")) is None


def test_a_signature_has_no_condition() -> None:
    """An AGREE signs what it names, unless anything after the name takes some of it back."""
    meant = ["P4", "p4.", "**P4**", "with P4", "P4 | it is simple", "P4 because it is simple", "yes, P4", "P3, P4"]
    assert [value for value in meant if "P4" not in agreed(Mark("AGREE", value))] == []
    not_meant = [
        "",
        "not P4",
        "P4?",
        "no",
        "P4 disagree",
        "P4 | but only half",
        "P4 in principle",
        "all but P4",
        "P4 if",
    ]
    assert [value for value in not_meant if agreed(Mark("AGREE", value))] == []
    assert agreed(Mark("AGREE", "", "P4")) == agreed(Mark("AGREE", "it is simple", "P4")) == ("P4",)
    assert agreed(Mark("AGREE", "if it is tested", "P4")) == ()


def test_the_votes_of_a_reply_come_together() -> None:
    """Clear ones by proposal; unclear ones in words; a vote without a number goes to the only one that is open."""
    marks = read_reply("[VOTE: P1 approve]\n[VOTE: P2 reject | slow]\n[VOTE: P3 perhaps]\n[VOTE: yes]").marks
    clear, unclear = cast(marks)
    assert {ref: choice.choice for ref, choice in clear.items()} == {"P1": "approve", "P2": "reject"}
    assert unclear == ("[VOTE: P3 perhaps]", "[VOTE: yes]")
    clear, unclear = cast([Mark("VOTE", "yes")], only="P7")
    assert (dict(clear), unclear) == ({"P7": Choice("P7", "approve")}, ())


@pytest.mark.parametrize(
    ("reply", "unclear"),
    [
        ("[VOTE: P1 approve]\n[VOTE: P1 reject]", "P1: both approve and reject"),
        ("[VOTE: P1 approve]\n[VOTE: P1 abstain]\n[VOTE: P1 approve | yes]", "P1: both approve and abstain"),
        ("[VOTE: P1 approve]\n[OBJECTION: P1 leaks]", "P1: approve beside an OBJECTION to it"),
        ("[VOTE: P1 approve]\n[RE: P1]\n[OBJECTION: it leaks]", "P1: approve beside an OBJECTION to it"),
        ("[VOTE: P1 approve] [OBJECTION: P1 leaks]", "P1: approve beside an OBJECTION to it"),
        ("[VOTE: P1 reject]\n[AGREE: P1]", "P1: reject beside an AGREE"),
    ],
)
def test_votes_that_contradict_each_other_cancel(reply: str, unclear: str) -> None:
    """Neither counts, and what is wrong is said; the votes on other proposals stand."""
    clear, said_ = cast([*read_reply(reply).marks, Mark("VOTE", "P2 approve")])
    assert list(clear) == ["P2"]
    assert said_ == (unclear,)


def test_an_objection_to_something_else_leaves_a_vote() -> None:
    """An objection to P2 says nothing about P1; one that names nothing is against the text on the table."""
    for reply in ("[VOTE: P1 approve]\n[OBJECTION: P2 leaks]", "[VOTE: P1 approve]\n[OBJECTION: the cache leaks]"):
        assert list(cast(read_reply(reply).marks)[0]) == ["P1"]


values = st.one_of(
    texts,
    st.lists(
        st.sampled_from(
            ["P1", "P2", "#3", "and", ",", "|", "-", ":", "/", "?", "because", "if", "not", "but", "I", "vote", "to",
             "for", "would", "(", ")", "reason", "is", "simple", "~~", "**", *sorted(NO)[:9], *sorted(NEITHER)[:4]]
        ),
        max_size=9,
    ).map(" ".join),
)  # fmt: skip


@examples(300)
@given(values, st.sampled_from(["", "P1"]))
def test_there_is_no_yes_without_a_word_for_it(value: str, ref: str) -> None:
    """Whatever is written: an approval is read only where a word for it stands."""
    for choice in votes(Mark("VOTE", value, ref)):
        assert choice.choice != "approve" or any(word in value.casefold() for word in (*YES, "for"))


@examples(300)
@given(values, st.lists(st.sampled_from(sorted(CHOICES)), max_size=2), st.integers(0, 20), st.sampled_from(["", "P1"]))
@example("approve | first", [], 0, "P1")
def test_what_was_read_is_read_again(value: str, words: list[str], at: int, ref: str) -> None:
    """A vote in the form that the daemon writes means what it meant as the model wrote it."""
    for choice in votes(Mark("VOTE", f"{value[:at]} {' '.join(words)} {value[at:]}", ref)):
        assert vote(choice.mark("VOTE")) == choice


@examples(200)
@given(
    st.sampled_from(["P1 approve", "approve P1", "P1: yes", "P1 +1", "I vote yes on P1", "P1, P2 approve"]),
    st.sampled_from(
        ["not", "never", "don't", "maybe", "if", "unless", "would", "probably", "partly", "only", "except"]
    ),
    st.integers(0, 5),
    st.sampled_from(["", " | it is simple", " | P2 is worse"]),
)
def test_a_word_of_doubt_among_the_words_takes_the_yes_away(yes: str, doubt: str, at: int, reason: str) -> None:
    """Wherever it stands before the reason."""
    words = yes.split()
    words.insert(min(at, len(words)), doubt)
    assert said(" ".join(words) + reason) == []


@examples(200)
@given(texts)
def test_any_text_can_be_asked_what_it_means(text: str) -> None:
    """Nothing is ever raised, and a question back is short."""
    for name in ("VOTE", "AGREE", "DECIDE", "RE", "TO", "CONFIDENCE"):
        mark = Mark(name, text)
        assert cast([mark])[0].keys() <= {choice.ref for choice in votes(mark)}
        assert agreed(mark) is not None
        pick(mark, ["A", "B"])
        assert set(to(mark, ["A", "B"])) <= {"A", "B"}
        references(mark)
        sure = confidence(mark)
        assert sure is None or 0 <= sure <= 1
    lines = suspects(text, DECIDING, read_reply(text).marks)
    assert len(lines) <= 5
    assert all(len(line) <= 160 for line in lines)


SHAPES: dict[str, Callable[[int], str]] = {
    "words": lambda n: "P1 approve " + "word " * n * 10,
    "refs": lambda n: "P1, " * n * 5 + "approve",
    "choices": lambda n: "yes " * n * 10,
    "pairs": lambda n: "P1 approve, P2 reject; " * n,
    "fillers": lambda n: "I vote " * n * 5,
    "commas": lambda n: "P1 approve" + "," * n * 20,
    "pipes": lambda n: "P1 approve" + " | x" * n * 5,
    "reasons": lambda n: "P1 approve | " + "reason " * n * 5,
    "dots": lambda n: "P1 approve | " + "." * n * 20 + "x",
    "firsts": lambda n: "P1 approve | " + "fix first  " * n * 5 + "x",
    "blanks": lambda n: "P1" + " " * n * 20 + "approve",
    "tags": lambda n: "<b>" * n * 10 + "approve" + "<" * n * 20,
    "ranges": lambda n: "1-2 " * n * 5,
    "digits": lambda n: "1" * n * 20,
    "ids": lambda n: "A, " * n * 5,
    "brackets": lambda n: "] [" * n * 10,
}  # fmt: skip
LINES: dict[str, Callable[[int], str]] = {
    "closing tags": lambda n: "[VOTE: P1 approve]" + "</b>" * n * 10,
    "emoji": lambda n: "✅" * n * 10 + "[VOTE: P1 approve" + "✅" * n * 10,
    "rows of marks": lambda n: "[VOTE: P1 approve] " * n * 3,
    "open brackets": lambda n: "[VOTE: " * n * 5,
    "names": lambda n: "[VOTE A A A " + "a " * n * 10 + "]",
    "escapes": lambda n: "\\[" + "\\_" * n * 10 + "\\]",
    "comments": lambda n: "<!--\n" * n * 5,
    "thoughts": lambda n: "<think>\n</think>\n" * n * 3,
    "labels": lambda n: "my final the a " * n * 5 + "vote: [PASS]",
    "talk of votes": lambda n: "I vote " * n * 5 + "\n" + "[VOTE\n" * n,
    "attempts": lambda n: "I approve of P\nconsensus reached x\nP1: x\n" * n * 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_reading_a_value_is_linear(shape: str) -> None:
    """Four times the text takes about four times as long, whatever the text."""

    def work(n: int) -> None:
        for name in ("VOTE", "AGREE", "RE", "CONFIDENCE", "TO", "DECIDE"):
            mark = Mark(name, SHAPES[shape](n))
            cast([mark])
            agreed(mark)
            references(mark)
            confidence(mark)
            to(mark, ["A", "B"])
            pick(mark, ["A", "B"])

    assert is_linear(work)


@pytest.mark.parametrize("shape", LINES)
def test_looking_for_marks_is_linear(shape: str) -> None:
    """An agent cannot keep a daemon busy by what looks almost like a mark."""

    def work(n: int) -> None:
        reply = read_reply(LINES[shape](n), ["RESULTS"])
        suspects(reply.body, DECIDING, reply.marks)

    assert is_linear(work)


@pytest.mark.parametrize(
    ("value", "picked"),
    [
        ("A | its numbers hold", ("A", "its numbers hold")),
        ("agent b", ("B", "")),
        ("B's position is stronger", ("B", "")),
        ("A, since its numbers hold", ("A", "since its numbers hold")),
        ("**B**: the tests are its", ("B", "the tests are its")),
        ("none | both leave out the cost", ("none", "both leave out the cost")),
        ("neither", ("none", "")),
        ("", None),
        ("A and B", None),
        ("A or B", None),
        ("A, B", None),
        ("not A", None),
        ("a tie", None),
        ("C", None),
        ("A if its numbers hold", None),
        ("A, but only in part", None),
        ("P1 approve", None),
    ],
)
def test_a_judge_picks_one_agent_or_none(value: str, picked: tuple[str, str] | None) -> None:
    """Several, an unknown one, a denied or a conditional one is no answer."""
    assert pick(Mark("DECIDE", value), ["A", "B"]) == picked


def test_the_word_goes_to_those_who_are_named() -> None:
    """In the order of their names; who is unknown is passed over, and an article is no agent."""
    ids = ["A", "B", "claude-c"]
    spoken = [
        "B",
        "@b, A",
        "Claude-C and A",
        "everyone",
        "B: please check",
        "B | A knows more",
        "a colleague",
        "Zoe",
        "",
    ]
    heard = [to(Mark("TO", value), ids) for value in spoken]
    assert heard == [("B",), ("B", "A"), ("claude-c", "A"), tuple(ids), ("B",), ("B",), (), (), ()]


def test_references_are_turns_and_proposals() -> None:
    """Numbers that stand as references, not those of a sentence, a measure or a note."""
    values_ = [
        "3, P1",
        "turns 3 and 4",
        "#3",
        "3-5",
        "P1 (turn 4)",
        "7.2",
        "100% of it",
        "turn 3, where 100 users wait",
    ]
    read = [references(Mark("RE", value)) for value in values_]
    assert read[:4] == [((3,), ("P1",)), ((3, 4), ()), ((3,), ()), ((3, 4, 5), ())]
    assert read[4:] == [((4,), ("P1",)), ((), ()), ((), ()), ((3,), ())]
    assert references(Mark("RE", "3 | not 5", "P2")) == ((3,), ("P2",))
    assert len(references(Mark("RE", "1-999999"))[0]) < 100


def test_confidence_is_a_part_of_one() -> None:
    """As a number, in percent or of ten; anything else is none."""
    values_ = ["0.8", ".8", "0,8", "80%", "85", "8/10", "1", "0", "about 0.7", "0.8 | sure"]
    assert [confidence(Mark("CONFIDENCE", value)) for value in values_] == [
        0.8, 0.8, 0.8, 0.8, 0.85, 0.8, 1, 0, 0.7, 0.8,
    ]  # fmt: skip
    for value in ("", "high", "5", "1.5", "-0.5", "0.8-0.9", "nan", "9/0", "1e3", "101"):
        assert confidence(Mark("CONFIDENCE", value)) is None


def test_the_kinds_of_a_dialog_are_lifted_as_such() -> None:
    """A known mark stays what it is; a kind that nobody named is text."""
    text = "[RESULTS: 40 ms]\n**[ready to share]**\n[Results P1: 9 ms]\n[ESCALATE: no way on]\n[FINDING: x]\n[STOPPED]"
    reply = read_reply(text, ["RESULTS", "READY_TO_SHARE", "ESCALATE", "STOPPED"])
    assert [str(mark) for mark in reply.marks] == [
        "[KIND: RESULTS | 40 ms]",
        "[KIND: READY_TO_SHARE]",
        "[KIND P1: RESULTS | 9 ms]",
        "[ESCALATE: no way on]",
    ]
    assert reply.body == "[FINDING: x]\n[STOPPED]"
    assert [mark.name for mark in read_reply(text).marks] == ["ESCALATE"]


def test_several_marks_on_a_line_are_several() -> None:
    """Where the line is nothing else; what stands behind a mark that decides something keeps it from being read."""
    marks = read_reply("- [AGREE: P4] [RESERVATION: the name], [CONFIDENCE: 0.9].").marks
    assert [str(mark) for mark in marks] == ["[AGREE: P4]", "[RESERVATION: the name]", "[CONFIDENCE: 0.9]"]
    assert read_reply("[AGREE: P4] is not what [B] wants").marks == ()
    assert read_reply("[AGREE: P4] but not [the cache]").marks == ()
    assert [str(mark) for mark in read_reply("[IDEA: use [x]] or [y]").marks] == ["[IDEA: use [x]] or [y]"]


def test_comments_and_thoughts_hide_marks() -> None:
    """What a reader does not see, or a model only thought, says nothing."""
    hidden = "<!--\n[AGREE: P4]\n-->\n<think>\n[AGREE: P4]\n</think>\nWell.\n<THINKING>\n[AGREE: P4]"
    reply = read_reply(hidden)
    assert reply.marks == ()
    assert suspects(reply.body, DECIDING) == ()
    assert read_reply("<!-- x -->\n[AGREE: P4]").has("AGREE")


def test_a_line_that_says_the_same_as_a_mark_asks_for_nothing() -> None:
    """One that says something else is asked about, and names that are not wanted are not looked for."""
    body = "I vote to approve P1: it is small."
    assert suspects(body, ["VOTE"]) == (body,)
    assert suspects(body, ["AGREE", "DECIDE"]) == ()
    assert suspects(body, ["VOTE"], [Mark("VOTE", "P1 approve")]) == ()
    assert suspects(body, ["VOTE"], [Mark("VOTE", "P1 reject")]) == (body,)
    assert suspects(body, ["VOTE"], [Mark("VOTE", "P2 approve")]) == (body,)
    assert suspects("I agree with P4.", ["AGREE"], [Mark("AGREE", "P4")]) == ()
    assert suspects("\n".join(f"I vote for P{i}" for i in range(9)), ["VOTE"]) == tuple(
        f"I vote for P{i}" for i in range(5)
    )

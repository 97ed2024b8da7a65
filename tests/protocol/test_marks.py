"""The mark language: literal forms, the closing block, and what each value says. Total and linear."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from dialogd.protocol.marks import (
    DECIDING,
    FAMILIES,
    FORMS,
    MARKS,
    VoteChoice,
    agreed,
    canonical,
    confidence,
    decision,
    is_yes,
    pick,
    read_reply,
    read_vote,
    references,
    to,
    vote,
)
from dialogd.protocol.model import Mark
from dialogd.protocol.rules import CONTRIBUTIONS
from tests.examples import examples
from tests.support.cases import cases


def marks(text: str, *kinds: str) -> list[str]:
    """The marks of a reply, as the file has them."""
    return [str(mark) for mark in read_reply(text, kinds).marks]


# -- the table -------------------------------------------------------------------------------------------------------


def test_every_mark_stands_in_one_family() -> None:
    names = [name for family in FAMILIES.values() for name in family]
    assert sorted(names) == sorted(MARKS)
    assert len(names) == len(set(names))
    assert set(FAMILIES["contributions"]) == set(CONTRIBUTIONS)
    assert set(FAMILIES["decisions"]) == DECIDING == set(FORMS)


# -- literal forms ---------------------------------------------------------------------------------------------------


@cases(
    "line",
    [
        *("[VOTE: P1 approve]", "[vote: p1 APPROVE]", "  [VOTE: P1 approve]  ", "- [VOTE: P1 approve]"),
        *("* **[VOTE: P1 approve]**", "1. `[VOTE: P1 approve]`", "**`[VOTE: P1 approve]`**", "[ VOTE : P1 approve ]"),
    ],
)
def test_tolerance_is_mechanical(line: str) -> None:
    """Case, indentation, a bullet, bold or backticks around the bracket."""
    assert marks(line) == ["[VOTE: P1 approve]"]


@cases(
    "line",
    [
        *("[VOTE: P1 yes]", "[VOTE: approve P1]", "[VOTE: P1: approve]", "[VOTE P1: approve]"),
        *("[VOTE: P1 approve, it is simple]", "[VOTE: P1, P2 approve]", "[VOTE: P1 zustimmen]", "[VOTE: P1 👍]"),
        *("[VOTE: approve]", "[VOTE: P1 not approve]", "[VOTE: P1 approve].", "[VOTE: P1 approve] ✅"),
        *("[VOTE: P1 approve] [CONFIDENCE: 0.9]", "### [VOTE: P1 approve]", "[VOTE]", "[DECIDE: P1 maybe]"),
        *("[AGREE]", "[AGREE: P1, P2]", "[AGREE: the text]", "[CONSENSUS_REACHED: everybody]"),
    ],
)
def test_what_is_not_in_its_form_is_tried_and_no_mark(line: str) -> None:
    reply = read_reply(f"Well.\n\n{line}")
    assert reply.marks == ()
    assert [said for _, said in reply.tried] == [line]
    assert reply.body == f"Well.\n\n{line}"


@cases(
    "line",
    [
        *("VOTE: P1 approve", "(VOTE: P1 approve)", "【VOTE: P1 approve】", "\\[VOTE: P1 approve\\]"),
        *("I vote [VOTE: P1 approve]", "My vote: [VOTE: P1 approve]", "> [VOTE: P1 approve]"),
        *("| [VOTE: P1 approve] |", "~~[VOTE: P1 approve]~~", "[voters](https://example.org)", "[to do](x)"),
        *("[To do: write it]", "[x] done"),
    ],
)
def test_what_does_not_begin_like_a_mark_is_text(line: str) -> None:
    reply = read_reply(f"Well.\n\n{line}")
    assert (reply.marks, reply.tried, reply.strange) == ((), (), ())


def test_a_reason_is_kept_as_it_is() -> None:
    assert marks("[VOTE: p1 approve|only Postgres survives [a] node loss | really]") == [
        "[VOTE: P1 approve | only Postgres survives [a] node loss | really]"
    ]
    assert marks("[AGREE: p4 | ]") == ["[AGREE: P4]"]


# -- the closing block -----------------------------------------------------------------------------------------------


def test_the_closing_block_is_the_last_lines_as_far_up_as_they_are_marks() -> None:
    assert marks("Text.\n\n[AGREE: P1]\n\n[EVIDENCE: 4 ms]\n[PASS]\n\n") == [
        "[AGREE: P1]",
        "[EVIDENCE: 4 ms]",
        "[PASS]",
    ]


@cases("behind", ["Thanks.", "> a quote", "```\ncode\n```", "---", "TURN B", "- a list"])
def test_above_any_other_line_no_deciding_mark_counts(behind: str) -> None:
    reply = read_reply(f"[EVIDENCE: 4 ms]\n[VOTE: P1 approve]\n\n{behind}")
    assert [str(mark) for mark in reply.marks] == ["[EVIDENCE: 4 ms]"]
    assert reply.tried == (("VOTE", "[VOTE: P1 approve]"),)


def test_contributions_count_on_any_line_outside_fences_and_quotations() -> None:
    text = "[IDEA: a]\n\nTwo.\n[IDEA: a]\n```\n[IDEA: b]\n```\n> [IDEA: c]\n[QUESTION: why?]\n\nThe end."
    reply = read_reply(text)
    assert [str(mark) for mark in reply.marks] == ["[IDEA: a]", "[QUESTION: why?]"]
    assert reply.body == "Two.\n```\n[IDEA: b]\n```\n> [IDEA: c]\n\nThe end."


def test_an_open_fence_hides_all_that_follows() -> None:
    assert marks("```\n[AGREE: P1]\n[IDEA: a]") == []


def test_a_fence_around_marks_alone_is_a_try() -> None:
    assert read_reply("Fine.\n\n```\n[AGREE: P1]\n```").tried == (("AGREE", "[AGREE: P1]"),)
    assert read_reply("```\n[AGREE: P1]\n```\n\nis how it is done.").tried == (("AGREE", "[AGREE: P1]"),)
    assert read_reply("```\nIt said:\n[AGREE: P1]\n```\n\nis how it is done.").tried == ()
    assert read_reply("Fine.\n\n```\nlike this: \n[AGREE: P1]\n```").tried == ()


def test_comments_and_thoughts_hide_marks() -> None:
    reply = read_reply("<!--\n[AGREE: P4]\n-->\n<think>\n[AGREE: P4]\n</think>\nWell.\n<THINKING>\n[AGREE: P4]")
    assert (reply.marks, reply.tried) == ((), ())
    assert marks("<!-- x -->\n[AGREE: P4]") == ["[AGREE: P4]"]


# -- kinds and strangers ---------------------------------------------------------------------------------------------


def test_the_kinds_of_a_dialog_are_marks_of_it() -> None:
    text = "[RESULTS: 40 ms]\n**[ready_to_share]**\n[ESCALATE: no way on]\n[FINDING: x]\n[STOPPED]"
    reply = read_reply(text, ["RESULTS", "READY_TO_SHARE", "ESCALATE", "STOPPED"])
    assert [str(mark) for mark in reply.marks] == ["[RESULTS: 40 ms]", "[READY_TO_SHARE]", "[ESCALATE: no way on]"]
    assert [mark.name for mark in reply.strange] == ["FINDING", "STOPPED"]
    assert reply.body == "[FINDING: x]\n[STOPPED]"


@cases("line", ["[FROBNICATE: x]", "[DONE]", "**[DECISION P1: approved]**", "[PAUSED]"])
def test_a_name_in_capitals_that_no_agent_may_write_is_strange(line: str) -> None:
    reply = read_reply(f"Well.\n{line}")
    assert len(reply.strange) == 1
    assert line in reply.body


# -- what a value says -----------------------------------------------------------------------------------------------


def test_a_vote_names_its_proposal_and_its_choice() -> None:
    assert vote(Mark("VOTE", "P1 approve | simple")) == VoteChoice("P1", "approve", "simple")
    assert vote(Mark("VOTE", "p2 Abstain")) == VoteChoice("P2", "abstain")
    assert [vote(Mark("VOTE", value)) for value in ("", "P1", "P1 yes", "P1 approve but", "approve P1")] == [None] * 5
    assert decision(Mark("DECIDE", "P1 reject | no")) == VoteChoice("P1", "reject", "no")
    assert decision(Mark("DECIDE", "P1 abstain")) is None


def test_two_different_votes_on_one_proposal_are_none() -> None:
    said = [Mark("VOTE", value) for value in ("P1 approve", "P1 approve | x", "P2 approve", "P2 reject", "P3 abstain")]
    assert {ref: choice.choice for ref, choice in read_vote(said).items()} == {"P1": "approve", "P3": "abstain"}


def test_an_agreement_is_to_what_it_names_first() -> None:
    values = ["P4", "p4 | ok", "P1, P4", "P1 and P4", "P4, because it is simple", "not P4", "P44", "P2 | unlike P4", ""]
    assert [agreed(Mark("AGREE", value)) for value in values] == [
        ("P4",),
        ("P4",),
        ("P1", "P4"),
        ("P1", "P4"),
        ("P4",),
        (),
        ("P44",),
        ("P2",),
        (),
    ]


def test_a_judge_picks_one_agent_or_none() -> None:
    ids = ["A", "claude-b"]
    assert pick(Mark("DECIDE", "a | its numbers hold"), ids) == ("A", "its numbers hold")
    assert pick(Mark("DECIDE", "Claude-B"), ids) == ("claude-b", "")
    assert pick(Mark("DECIDE", "NONE | neither"), ids) == ("none", "neither")
    assert [pick(Mark("DECIDE", value), ids) for value in ("", "A and B", "C", "A if", "P1 approve")] == [None] * 5


def test_the_word_goes_to_those_who_are_named() -> None:
    ids = ["A", "B", "claude-c"]
    values = ["B", "b, A", "Claude-C", "B, Z", "a colleague", ""]
    assert [to(Mark("TO", value), ids) for value in values] == [("B",), ("B", "A"), ("claude-c",), (), (), ()]


def test_references_are_turns_and_proposals() -> None:
    assert references(Mark("RE", "3, P1")) == ((3,), ("P1",))
    assert references(Mark("RE", "turns 3 and 4")) == ((3, 4), ())
    assert references(Mark("RE", "3-5 | not 9")) == ((3, 4, 5), ())
    assert references(Mark("RE", "7.2, 100% of it, turn 3 where 100 wait")) == ((), ())
    assert references(Mark("RE", "3", "P2")) == ((3,), ("P2",))
    assert len(references(Mark("RE", "1-999999"))[0]) < 100


def test_confidence_is_a_part_of_one() -> None:
    values = ["0.8", ".8", "80%", "8/10", "1", "0", "0.8 | sure"]
    assert [confidence(Mark("CONFIDENCE", value)) for value in values] == [0.8, 0.8, 0.8, 0.8, 1, 0, 0.8]
    for value in ("", "high", "5", "1.5", "-0.5", "0.8-0.9", "nan", "9/0", "1e3", "101"):
        assert confidence(Mark("CONFIDENCE", value)) is None


# -- any text --------------------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        *("[", "]", "VOTE", "AGREE", "P1", ": ", " approve", " | ", "\n", "```", "**", "- ", "> ", "<think>"),
        *("words", "\u2028"),
    ]
)


@examples(400)
@given(st.lists(PIECES | st.text(max_size=3), max_size=40).map("".join))
def test_any_text_can_be_read(text: str) -> None:
    reply = read_reply(text, ["RESULTS"])
    for mark in reply.marks:
        if mark.name in DECIDING and is_yes(mark):
            last = [line for line in text.split("\n") if line.strip()]
            assert any(mark.name in line.upper() and line.strip(" \t*_`-.0123456789").startswith("[") for line in last)
    assert read_reply(reply.body, ["RESULTS"]).body == reply.body or reply.tried or "[" in reply.body


@examples(200)
@given(st.sampled_from(sorted(DECIDING)), st.text(max_size=30))
def test_what_was_read_is_read_again(name: str, value: str) -> None:
    for mark in read_reply(f"[{name}: {value}]").marks:
        assert read_reply(str(mark)).marks == (mark,)
        assert canonical(str(mark)) == mark


def test_a_mark_that_is_said_again_costs_a_fraction_of_a_new_one() -> None:
    def seconds(text: str) -> float:
        took = []
        for _ in range(3):
            began = time.process_time()
            read_reply(text)
            took.append(time.process_time() - began)
        return min(took)

    same = "[AGREE: P1]\n" * 30_000
    assert read_reply(same).marks == (Mark("AGREE", "P1"),)
    assert seconds(same) * 3 < seconds("\n".join(f"[AGREE: P{number}]" for number in range(30_000)))

"""Consensus is mutual and exact: the same text, signed by every agent; everything less is not the end."""

from __future__ import annotations

import re

from hypothesis import example, given
from hypothesis import strategies as st

from dialogd.protocol.marks import read_reply, same_text, summary_of, tolerant
from dialogd.protocol.model import Mark, digest
from dialogd.protocol.state import Dialog
from tests.examples import examples
from tests.support.cases import cases
from tests.support.room import Room, opening

POSTGRES = "## Consensus Summary\n\nSessions live in Postgres.\n\n[CONSENSUS_REACHED]"
REDIS = "## Consensus Summary\n\nSessions live in Redis.\n\n[CONSENSUS_REACHED]"


def talk(*lines: str, agents: str = "AB") -> Room:
    """A room in which the lines were said, in order, by whoever's turn it was."""
    return Room(opening(*agents)).talk(*lines)


def signers(room: Room) -> str:
    """Who has signed the text on the table; "-" when there is none."""
    standing = room.dialog.state.table.standing
    return "".join(who for who, _ in standing.signers) if standing else "-"


@cases(
    "signature",
    [
        "[AGREE: P1]",
        "**[agree: p1]**",
        "- [AGREE: P1 | it is simpler]",
        "[CONSENSUS_REACHED]",
        "[AGREE: P1]\n[CONSENSUS_REACHED]",
        POSTGRES,
        f"[AGREE: P1]\n\n{POSTGRES}",
        POSTGRES.replace("Postgres.", "Postgres. \t "),
        POSTGRES.replace("\n\nSessions", "\n\n\n\nSessions").replace("Postgres.", "Postgres.\n\n"),
        POSTGRES.replace("## Consensus Summary", "**Consensus Summary:**"),
        POSTGRES.replace("\n", "\r\n"),
    ],
)
def test_two_who_sign_the_same_text_end_the_dialog(signature: str) -> None:
    room = talk("I propose Postgres.", "Why?", POSTGRES, f"Fine.\n\n{signature}")
    state = room.dialog.state
    assert (state.outcome.name, state.outcome.by, state.owing) == ("CONSENSUS_REACHED", "B", ())
    assert state.outcome.reason == "P1 approved, mutual, signed by A in turn 4, B in turn 5"


def test_the_last_signature_brings_the_closing_lines() -> None:
    room = talk(POSTGRES, "Good.\n\n[AGREE: P1]")
    last = room.dialog.last
    assert last.body == (
        "Good.\n\n---\n\n**Total turns:** 3\n**Duration:** 1 second\n"
        "**Outcome:** consensus on P1, signed by A in turn 2, B in turn 3"
    )
    assert [mark.name for mark in last.marks] == ["AGREE", "DECISION", "CONSENSUS_REACHED"]
    assert last.turn is None


@cases(
    ("second", "left"),
    [
        ("[PASS]", "A"),
        ("I agree.", "A"),
        ("I agree with P1. [AGREE: P1]", "A"),
        ("[AGREE]", "A"),
        ("[AGREE: yes]", "A"),
        ("[AGREE: P2]", "A"),
        ("[AGREE: P11]", "A"),
        ("[AGREE: not P1]", "A"),
        ("[AGREE: P2 | it is simpler than P1]", "A"),
        ("[AGREE: P1, but only for reads]", "A"),
        ("[AGREE: P1 if the cache goes]", "A"),
        ("[AGREE: everything except P1]", "A"),
        ("[RE: P1]", "A"),
        ("[VOTE: P1 approve]", "A"),
        ("> [AGREE: P1]", "A"),
        ("> [CONSENSUS_REACHED]", "A"),
        ("```\n[AGREE: P1]\n```", "A"),
        ("~~~~\n[CONSENSUS_REACHED]\n~~~~", "A"),
        ("```\n[AGREE: P1]", "A"),
        ("| [AGREE: P1] |", "A"),
        ("<!-- [AGREE: P1] -->", "A"),
        ("[AGREE: P1](http://x)", "A"),
        ("\\[AGREE: P1]", "A"),
        ("x\u2028[AGREE: P1]", "A"),
        ("x\r[AGREE: P1]", "A"),
        ("x\x85[AGREE: P1]\x85", "A"),
        ("[CONSENSUS_PROPOSED P1: 0]\n[DECISION P1: approved | mutual]", "A"),
        ("[OBJECTION: no]", "-"),
        ("[AGREE: P1]\n[OBJECTION: one thing]", "-"),
        ("[CONSENSUS_REACHED]\n[OBJECTION: one thing]", "-"),
        (f"{POSTGRES}\n[OBJECTION: one thing]", "-"),
        ("[AGREE: P1]\n[DEADLOCK]", "A"),
        ("[CONSENSUS_REACHED]\n[DEADLOCK]", "A"),
        (REDIS, "B"),
        (f"[AGREE: P1]\n\n{REDIS}", "B"),
        (POSTGRES.replace("Postgres.", "Postgres!"), "B"),
        (POSTGRES.replace("Sessions", " Sessions"), "B"),
        (f"{POSTGRES}\n\nAnd one more thing.", "A"),
    ],
)
def test_whatever_is_less_than_a_signature_does_not_end_it(second: str, left: str) -> None:
    room = talk(POSTGRES, second)
    assert (room.outcome, signers(room)) == ("", left)
    assert room.owing == ("A",)


@cases("against", ["[OBJECTION: one thing]", "[DEADLOCK]"])
def test_a_text_that_comes_with_an_objection_is_not_on_the_table(against: str) -> None:
    room = talk(f"{POSTGRES}\n{against}", "[AGREE: P1]")
    assert (room.outcome, signers(room)) == ("", "-")
    assert [mark.name for mark in room.dialog.entries[1].marks] == [against.strip("[]").split(":")[0], "REFUSED"]


def test_a_different_text_replaces_it_and_that_is_counted() -> None:
    room = talk(POSTGRES, REDIS)
    standing = room.dialog.state.table.standing
    assert (standing.proposal.ref, standing.replaced, signers(room)) == ("P2", 1, "B")
    assert "sign P2 as it stands" not in room.thinks("A")
    room.answers("A", POSTGRES)
    assert "replaced 2 times by now, so sign P3 as it stands" in room.thinks("B")
    room.answers("B", "[AGREE: P2]")
    assert (room.outcome, signers(room)) == ("", "A")
    room.says("A", "[AGREE: P3]")
    assert room.outcome == ""
    room.says("B", "[AGREE: P3]")
    assert room.outcome == "CONSENSUS_REACHED"


def test_a_claim_without_a_text_is_asked_back_once_and_then_counts_as_absent() -> None:
    room = Room(opening(), A=["We agree.\n[CONSENSUS_REACHED]", "As I said.\n[CONSENSUS_REACHED]"], B=["Do we?"])
    room.run()
    assert [who for who, _ in room.questions] == ["A"]
    assert "## Consensus Summary" in room.questions[0][1]
    assert [entry.body for entry in room.dialog.entries[1:]] == ["As I said.", "Do we?"]
    assert (room.outcome, [mark.name for mark in room.dialog.entries[1].marks]) == ("", ["REFUSED"])


def test_an_agreed_text_is_never_cut() -> None:
    long = f"{'x' * 300}\n\n{POSTGRES}"
    room = Room(opening(keys=["Max Message: 200"]), A=[long, long], B=["Hm."])
    room.run()
    assert "shorter" in room.questions[0][1]
    assert (signers(room), len(room.attachments)) == ("-", 1)
    assert room.dialog.entries[1].mark("CONSENSUS_REACHED") is None
    assert "never cut" in str(room.dialog.entries[1].mark("REFUSED"))


@cases(
    ("lines", "ended"),
    [
        ([POSTGRES, "[AGREE: P1]"], False),
        ([POSTGRES, "[AGREE: P1]", "Hm."], False),
        ([POSTGRES, "[AGREE: P1]", "[AGREE: P1]"], True),
        ([POSTGRES, "[AGREE: P1]", "Hm.", "Well?", "So?", "[AGREE: P1]"], True),
        ([POSTGRES, "[AGREE: P1]", "[OBJECTION: no]", "[AGREE: P1]", "[AGREE: P1]"], False),
        ([POSTGRES, "[AGREE: P1]", REDIS, "[AGREE: P2]"], False),
        ([POSTGRES, "[AGREE: P1]", REDIS, "[AGREE: P2]", "[AGREE: P2]"], True),
        ([POSTGRES, "[AGREE: P1]", REDIS, "[AGREE: P1]", "[AGREE: P2]"], False),
    ],
)
def test_among_three_all_must_sign(lines: list[str], ended: bool) -> None:
    assert (talk(*lines, agents="ABC").outcome == "CONSENSUS_REACHED") is ended


def test_proposals_are_numbered_by_the_daemon() -> None:
    room = talk("[PROPOSAL: a]\n[PROPOSAL P9: b]", f"[PROPOSAL: c]\n\n{POSTGRES}", "[PROPOSAL: d]")
    assert [(p.ref, p.by) for p in room.dialog.state.table.proposals] == [
        ("P1", "A"),
        ("P2", "A"),
        ("P3", "B"),
        ("P4", "B"),
        ("P5", "A"),
    ]
    standing = room.dialog.state.table.standing
    assert (standing.proposal.ref, standing.proposal.sha) == ("P4", digest("Sessions live in Postgres."))
    assert standing.proposal.text == "Sessions live in Postgres."


def test_turns_by_hand_propose_and_sign_by_the_same_rules() -> None:
    text = opening() + f"\n## Turn 2 — Claude A\n{POSTGRES}\nTURN: B\n"
    assert signers(Room(text)) == "A"
    assert signers(Room(text + "\n## Turn 3 — Claude B\n[AGREE: P1]\nTURN: A\n")) == "AB"
    assert signers(Room(text + "\n## Turn 3 — Claude B\n[CONSENSUS_REACHED]\nTURN: A\n")) == "AB"
    assert signers(Room(text + f"\n## Turn 3 — Claude B\n{REDIS}\nTURN: A\n")) == "B"
    assert signers(Room(text + "\n## Turn 3 — Claude B\n[AGREE: P1]\n[OBJECTION: x]\nTURN: A\n")) == "-"
    assert signers(Room(text + f"\n## Turn 3 — Claude B\n{REDIS}\n[OBJECTION: x]\nTURN: A\n")) == "-"
    assert signers(Room(text + "\n## User\nNo.\nTURN: A\n")) == "-"


# -- a second opinion ----------------------------------------------------------------------------------------------

NASTY = st.sampled_from(
    [
        "Words.",
        "[PASS]",
        POSTGRES,
        REDIS,
        POSTGRES.replace("\n\n", "\n \n"),
        "[CONSENSUS_REACHED]",
        "**[CONSENSUS_REACHED]**",
        "> [CONSENSUS_REACHED]",
        "```\n[CONSENSUS_REACHED]\n```",
        "[AGREE: P1]",
        "[AGREE: P2]",
        "[AGREE: P3, P1]",
        "[AGREE: P2 | better than P1]",
        "[OBJECTION: no]",
        "[AGREE: P1]\n[OBJECTION: no]",
        f"{POSTGRES}\n[OBJECTION: no]",
        f"[AGREE: P1]\n{REDIS}",
        "[AGREE: P2]\n[DEADLOCK]",
        "[PROPOSAL: x]",
        "[CONSENSUS_PROPOSED P1: 0123456789abcdef]",
        "TURN: USER\n[AGREE: P1]",
        "## Turn 9 — Claude B\n\n[CONSENSUS_REACHED]",
    ]
)


def signed_by_everybody(dialog: Dialog) -> bool:
    """A naive recount from the entries alone: have all agents signed one text, since the last word against it?"""
    table: tuple[str, set[str]] | None = None
    for entry in dialog.entries:
        names = [mark.name for mark in entry.marks]
        if entry.by == "USER" or "OBJECTION" in names:
            table = None
        for mark in entry.marks:
            if mark.name == "CONSENSUS_PROPOSED":
                table = (mark.ref, {entry.by})
        if table and "OBJECTION" not in names and "DEADLOCK" not in names:
            for mark in entry.marks:
                refs = [*re.split(r"[, ]+", mark.value.split(" | ")[0]), mark.ref]
                if mark.name == "AGREE" and table[0] in refs:
                    table[1].add(entry.by)
    return table is not None and table[1] == {agent.id for agent in dialog.header.agents}


@examples(800)
@given(st.sampled_from(["AB", "ABC"]), st.lists(NASTY, min_size=2, max_size=14))
@example("AB", [POSTGRES, REDIS, "[AGREE: P2]"])
def test_no_talk_ends_in_consensus_that_not_everybody_signed(agents: str, lines: list[str]) -> None:
    room = Room(opening(*agents))
    for line in lines:
        if room.dialog.state.outcome is not None:
            break
        (me,) = room.owing
        room.says(me, line)
        assert (room.outcome == "CONSENSUS_REACHED") == signed_by_everybody(room.dialog)


@examples(60)
@given(st.lists(NASTY, max_size=12))
def test_one_talker_never_ends_a_dialog(lines: list[str]) -> None:
    room = Room(opening(keys=["Max Turns: 1000"]))
    for line in lines:
        for me, words in (("A", line), ("B", "[PASS]")):
            if room.owing == ("USER",):
                room.pass_on()
            room.says(me, words)
    assert room.outcome == ""


# -- the reader of replies -----------------------------------------------------------------------------------------


@cases(
    ("line", "mark"),
    [
        ("[PROPOSAL: use Postgres]", Mark("PROPOSAL", "use Postgres")),
        ("  [proposal : use   Postgres ]  ", Mark("PROPOSAL", "use Postgres")),
        ("- [PROPOSAL P1: x]", Mark("PROPOSAL", "x", "P1")),
        ("12) **[Agree: P4]**", Mark("AGREE", "P4")),
        ("* `[CONFIDENCE: 0.8]`", Mark("CONFIDENCE", "0.8")),
        ("__[Consensus_Reached]__", Mark("CONSENSUS_REACHED")),
        ("[QUESTION_FOR_USER: why [now]?]", Mark("QUESTION_FOR_USER", "why [now]?")),
        ("[IDEA:]", Mark("IDEA")),
        ("[IDEA: a | b]", Mark("IDEA", "a | b")),
        ("[NOTE: x]", None),
        ("[x]", None),
        ("- [ ] task", None),
        ("~~[PASS]~~", None),
        ("[PASS](http://x)", None),
        ("see [PASS]", None),
        ("[PASS] and more", None),
        ("> [PASS]", None),
        ("[[PASS]]", None),
        ("[PASS", None),
        ("PASS", None),
        ("[]", None),
    ],
)
def test_marks_are_read_in_their_literal_form(line: str, mark: Mark | None) -> None:
    assert tolerant(line) == mark


def test_marks_are_lifted_and_the_rest_stays() -> None:
    reply = read_reply("One.\n\n[IDEA: a]\n\nTwo.\n[IDEA: a]\n```\n[IDEA: b]\n```\n> [IDEA: c]\n[STOPPED]\n\n[PASS]")
    assert reply.body == "One.\n\nTwo.\n```\n[IDEA: b]\n```\n> [IDEA: c]\n[STOPPED]"
    assert [str(mark) for mark in reply.marks] == ["[IDEA: a]", "[PASS]"]
    assert (reply.has("PASS"), reply.has("STOPPED")) == (True, False)


@cases(
    ("body", "summary"),
    [
        ("## Consensus Summary\nA\n\nB", "A\n\nB"),
        ("text\n\n### final consensus summary:\n\nA", "A"),
        ("**Consensus Summary:** A", "A"),
        ("**Consensus Summary**\nA", "A"),
        ("## Consensus Summary\nold\n\n## Consensus Summary\nnew", "new"),
        ("## Consensus Summary\nA\n\n## Next steps\nB", "A\n\n## Next steps\nB"),
        ("Consensus summary\nA", "A"),
        ("```\n## Consensus Summary\nA\n```", ""),
        ("> ## Consensus Summary\nA", ""),
        ("The consensus summary is A", ""),
        ("Consensus summary follows below", ""),
        ("## Consensus Summary", ""),
    ],
)
def test_the_summary_is_what_stands_under_its_heading(body: str, summary: str) -> None:
    assert summary_of(body) == summary


def test_the_same_text_is_the_same_but_for_blanks() -> None:
    assert same_text("a \n\n\n\nb\t\n") == same_text("a\n\nb") == "a\n\nb"
    assert len({same_text(text) for text in ("a\nb", "a\n\nb", " a\nb", "a b", "A\nb")}) == 5


def test_an_ordinary_talk_is_asked_nothing() -> None:
    room = talk(
        "I agree that restarts matter. Once B agrees we can write it down.",
        "I accept that. When the numbers are in I will write [CONSENSUS_REACHED].",
        POSTGRES,
        "I agree with P1 on restarts, but not on cost.\n\nI agree with most of P1's points. I agree with P2 rather.",
        "Please write [AGREE: P1] if you agree.",
        "> [AGREE: P1]\n\nThat is for me to say. No agreement without a price.",
        "The price is none.",
        "[AGREE: P1]",
    )
    assert (room.questions, room.asked, room.outcome) == ([], [], "CONSENSUS_REACHED")

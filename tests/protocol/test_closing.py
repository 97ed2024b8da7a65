"""The closing question: when it is asked, what it names, what its answer may hold, and what no answer leaves."""

from __future__ import annotations

from dialogd.errors import BackendError
from dialogd.protocol import admit
from dialogd.protocol.certificate import answers, faults
from tests.support.cases import cases
from tests.support.room import Room, opening

# What an agent writes beside its yes. An honest one confirms it; one with a condition says so when it is asked.
HONEST = (
    "I do not see why I should not write",
    "If the node dies, sessions survive: that is what convinced me.",
    "No objection from me, unless you count the name.",
    "Ich wüsste nicht, warum ich es nicht unterschreiben sollte.",
    "反対する理由が見当たりません。",
    "Fine.",
)
CONDITIONAL = (
    "This is conditional on the budget being raised.",
    "An example of what I could write:",
    "In principle.",
    "Vorausgesetzt, der Preis steht fest.",
    "前提是预算增加。",
    "B asked me to write this line; I have not made up my mind.",
)
SAYINGS = [(words, True) for words in HONEST] + [(words, False) for words in CONDITIONAL]
TEXT = "We keep them there.\n\n## Consensus Summary\n\nSessions live in Postgres.\n\n[CONSENSUS_REACHED]"

SETUPS = {
    "mutual": "",
    "vote": 'verdict = "vote"',
    "moderator": 'verdict = "moderator"\n[roles]\nC = "moderator"',
    "judge": 'verdict = "judge"\njudge = "C"',
    "parallel": 'order = "parallel"',
    "parallel vote": 'order = "parallel"\nverdict = "vote"',
    "sealed": "sealed = true",
}


def room(setup: str, *agents: str, turn: str = "", keys: tuple[str, ...] = ()) -> Room:
    """A room with that Setup."""
    more = f"## Setup\n\n```toml\n{setup}\n```" if setup else ""
    return Room(opening(*agents, turn=turn, keys=keys, more=more))


def say(here: Room, who: str, text: str, *, answer: str | None = None) -> None:
    """Agent `who` takes its turn with that text, and answers a closing question so, else as it wrote."""
    here.thinks(who)
    here.confirms[who] = [answer] if answer is not None else []
    here.answers(who, text)
    here.confirms[who] = []


def pair() -> Room:
    """A and B, with a text of A's on the table."""
    here = room("", "A", "B")
    say(here, "A", TEXT)
    return here


def in_words(here: Room) -> str:
    """The file's last entry."""
    last = here.dialog.last
    return here.text[last.start :]


# -- honest and conditional yeses ------------------------------------------------------------------------------------


ASKED = {  # what a yes to a text is, by what decides: before it, the reply, the yes that is asked about, the no
    "mutual": (("A", TEXT), ("B", "Fine.\n\n[AGREE: P1]"), "[AGREE: P1]", "[OBJECTION: no test]"),
    "vote": (("A", "[PROPOSAL: x]"), ("B", "Yes.\n\n[VOTE: P1 approve]"), "[VOTE: P1 approve]", "[VOTE: P1 reject]"),
    "moderator": (("A", "[PROPOSAL: x]"), ("C", "Yes.\n\n[DECIDE: P1 approve]"), "[DECIDE: P1 approve]", "[PASS]"),
    "judge": (("A", "Postgres."), ("C", "Well.\n\n[DECIDE: A]"), "[DECIDE: A]", "[DECIDE: none]"),
}


def says_yes(by: str, *answers: str, reply: str = "") -> tuple[Room, str]:
    """Somebody says yes in a dialog that is decided so, and answers the closing question like this; and who it is."""
    (first, words), (who, own), _, _ = ASKED[by]
    here = room(SETUPS[by], *"ABC"[: 3 if who == "C" else 2], turn="A", keys=("Max Rounds: 1",) * (by == "judge"))
    say(here, first, words)
    if who == "C":
        say(here, "B", "Redis.")
    here.thinks(who)
    here.asked.clear()
    here.confirms[who] = list(answers)
    here.answers(who, reply or own)
    return here, who


def is_yes_in(here: Room, by: str) -> bool:
    """True where the last turn's yes stands as a mark."""
    return any(str(mark).startswith(ASKED[by][2][:-1]) for mark in here.dialog.turns[-1].marks)


@cases("by", ASKED)
@cases(("words", "is_meant"), SAYINGS)
def test_a_yes_is_read_as_it_is_meant(by: str, words: str, is_meant: bool) -> None:
    _, _, yes, no = ASKED[by]
    for reply in (f"{words}\n\n{yes}", f"{yes[:-1]} | {words}]"):
        here, who = says_yes(by, yes if is_meant else no, reply=reply)
        assert [one for one, _ in here.asked] == [who]
        assert is_yes_in(here, by) == is_meant
        assert words in in_words(here)


@cases("setup", ["parallel", "parallel vote"])
@cases(("words", "is_meant"), SAYINGS[::3])
def test_a_yes_of_a_round_is_read_as_it_is_meant(setup: str, words: str, is_meant: bool) -> None:
    here = room(SETUPS[setup], "A", "B", turn="A, B")
    votes = setup == "parallel vote"
    say(here, "A", "[PROPOSAL: keep sessions in Postgres]" if votes else TEXT)
    say(here, "B", "[IDEA: a cache]")
    yes, no = ("[VOTE: P1 approve]", "[VOTE: P1 reject]") if votes else ("[AGREE: P1]", "[OBJECTION: as I said]")
    here.thinks("A")
    here.thinks("B")
    here.answers("A", yes if votes else "[EVIDENCE: 4 ms]")
    here.confirms["B"] = [yes if is_meant else no]
    here.answers("B", f"{words}\n\n{yes}")
    assert (here.dialog.state.outcome is not None) == is_meant


@cases(("words", "is_meant"), SAYINGS[::3])
def test_a_sealed_text_is_asked_about_before_it_is_sealed(words: str, is_meant: bool) -> None:
    here = room(SETUPS["sealed"], "A", "B", turn="A, B")
    here.confirms["A"] = ["[CONSENSUS_REACHED]" if is_meant else "[PASS]"]
    for who, text in (("A", f"{words}\n\n{TEXT.partition(chr(10))[2]}"), ("B", "[IDEA: a cache]")):
        here.says(who, text)
    assert [who for who, _ in here.asked] == ["A"]
    here.run()
    assert here.dialog.state.table.standing.signed_by("A") == is_meant  # type: ignore[union-attr]
    assert [answer.status for answer in answers(here.dialog)] == ["fits", "fits"]


# -- when it is asked ------------------------------------------------------------------------------------------------


@cases("reply", ["[AGREE: P1]", "[agree: p1]", "- **[AGREE: P1]**", "  `[AGREE: P1]`\n\n[RE: 2]"])
def test_a_reply_of_bare_marks_is_not_asked_about(reply: str) -> None:
    here = pair()
    say(here, "B", reply)
    assert [who for who, _ in here.asked] == ["A"]
    assert here.dialog.state.outcome is not None


def test_the_question_names_the_proposal_and_every_form() -> None:
    here = pair()
    say(here, "B", "Fine.\n\n[AGREE: P1]")
    assert here.asked[-1][1] == (
        "Your reply signs P1 as it stands, without any condition. Answer with one line, and with no other word:"
        " `[AGREE: P1]`, `[OBJECTION: what must change]` or `[PASS]` (not now; the text stays)."
    )


def test_it_is_asked_once_per_agent_and_proposal() -> None:
    here = room("", "A", "B", "C", turn="A")
    say(here, "A", TEXT)
    say(here, "B", "Fine.\n\n[AGREE: P1]")
    say(here, "C", "Let me think.")
    say(here, "A", "Take your time.")
    asked = len(here.asked)
    say(here, "B", "As I said.\n\n[AGREE: P1]")
    assert len(here.asked) == asked


def test_the_prose_around_a_contribution_asks_nothing() -> None:
    here = pair()
    say(here, "B", "Perhaps:\n\n[EVIDENCE: 4 ms]\n\nIf you like.\n\n[OBJECTION: no test]\n\nThat is all.")
    assert [who for who, _ in here.asked] == ["A"]
    assert here.dialog.state.table.standing is None


def test_confirm_false_leaves_out_the_question_about_words_alone() -> None:
    here = room("confirm = false", "A", "B")
    say(here, "A", TEXT)
    assert here.asked == []
    say(here, "B", "Fine.\n\n[AGREE: P1]\n[OBJECTION: no test]", answer="[AGREE: P1]")
    assert len(here.asked) == 1
    assert here.dialog.state.outcome is not None


@cases(
    "reply",
    [
        "[AGREE: P1]\n\nThat was my last word.",
        "I sign.\n\n[AGREE P1]",
        "I sign.\n\n[AGREE: P1].",
        "I sign.\n\n[AGREE: yes, P1]",
        "I sign.\n\n```\n[AGREE: P1]\n```",
        "```\n[AGREE: P1]\n```\n\nThat is my signature.",
        "I sign.\n\n~~~text\n[RE: 2]\n\n[AGREE: P1]\n~~~\n\nThank you.\n\n```\nx = 1\n```\n[CONFIDENCE: 0.9]",
        "I sign.\n\n## [AGREE: P1]",
        "I sign.\n\n[CONSENSUS_REACHED: with P1]",
        "I sign.\n\n[consensus reached]",
        "I sign.\n\n[AGREE: P1",
    ],
)
def test_a_mark_that_was_tried_is_asked_about(reply: str) -> None:
    here = pair()
    say(here, "B", reply, answer="[AGREE: P1]")
    assert here.asked[-1][0] == "B"
    assert "[AGREE: P1]" in here.asked[-1][1]
    assert here.dialog.state.outcome is not None


@cases(
    "reply",
    [
        "> [AGREE: P1]\n\nwas what you wrote.",
        "You could write `[AGREE: P1]` here.",
        "~~~\nIt ended so:\n[AGREE: P1]\n~~~\n\nI do not know why.",
        "<think>\n```\n[AGREE: P1]\n```\n</think>\n\nNot yet.",
        "<!--\n```\n[AGREE: P1]\n```\n-->\n\nNot yet.",
        "~~[AGREE: P1]~~\n\nNo.",
        "<!--\n[AGREE: P1]\n-->",
        "[vote](https://example.org/vote) is a link.",
        "I agree with P1.",
    ],
)
def test_what_is_quoted_fenced_struck_or_talked_about_is_not_tried(reply: str) -> None:
    here = pair()
    say(here, "B", reply)
    assert [who for who, _ in here.asked] == ["A"]
    assert [who for who, _ in here.dialog.state.table.standing.signers] == ["A"]  # type: ignore[union-attr]


@cases("against", ["[OBJECTION: no test]", "[DEADLOCK: 50 ms | measure it]", "[PASS]"])
def test_marks_that_oppose_each_other_are_asked_about_together(against: str) -> None:
    here = pair()
    say(here, "B", f"[AGREE: P1]\n{against}", answer="")
    assert "both yes and no about P1" in here.asked[-1][1]
    turn = here.dialog.turns[-1]
    assert turn.mark("AGREE") is None
    assert str(turn.mark(against[1:].partition(":")[0].rstrip("]"))) == against
    assert turn.mark("REFUSED") is not None


def test_two_votes_on_one_proposal_are_asked_about() -> None:
    for answer, choices in (("[VOTE: P1 reject]", ["reject"]), ("", []), ("[VOTE: P1 approve]", ["approve"])):
        here = room(SETUPS["vote"], "A", "B", "C", turn="A")
        say(here, "A", "[PROPOSAL: keep sessions in Postgres]")
        say(here, "B", "[VOTE: P1 approve]\n[VOTE: P1 reject]", answer=answer)
        assert [ballot.choice for poll in here.dialog.state.polls.open for ballot in poll.ballots] == choices


def test_a_thousand_attempts_are_one_question_of_a_few_matters() -> None:
    here = room(SETUPS["vote"], "A", "B", "C", turn="A")
    say(here, "A", "\n".join(f"[PROPOSAL: way {number}]" for number in range(40)))
    say(here, "B", "All of it.\n\n" + "\n".join(f"[VOTE: P{number} yes]" for number in range(1, 41)), answer="")
    assert len([one for one, _ in here.asked if one == "B"]) == 1
    assert here.asked[-1][1].count("\n") <= admit.MOST + 2
    assert len(in_words(here)) < 12_000


def test_from_the_second_replacement_on_a_yes_or_an_objection_is_due() -> None:
    here = room("", "A", "B")
    for who, place in (("A", "Postgres"), ("B", "Redis"), ("A", "SQLite")):
        say(here, who, f"## Consensus Summary\n\n{place}.\n\n[CONSENSUS_REACHED]")
    assert here.asked == []
    say(here, "B", "## Consensus Summary\n\nMemory.\n\n[CONSENSUS_REACHED]", answer="[AGREE: P3]")
    assert "Sign P3 as it stands, or object" in here.asked[-1][1]
    assert here.dialog.state.outcome is not None


def test_a_decision_is_due_from_whom_it_was_asked_for() -> None:
    here = room(SETUPS["moderator"] + "\n", "A", "B", "C", turn="A", keys=("Max Rounds: 1",))
    say(here, "A", "[PROPOSAL: keep sessions in Postgres]")
    say(here, "B", "[IDEA: a cache]")
    say(here, "C", "Interesting.")
    say(here, "C", "Very interesting.", answer="[DECIDE: P1 approve]")
    question = here.asked[-1][1]
    assert "[DECIDE: P1 approve]" in question
    assert "[ESCALATE: why you cannot]" in question
    assert here.dialog.state.outcome is not None


def test_a_judge_that_does_not_say_whose_position_holds_is_asked() -> None:
    here = room(SETUPS["judge"], "A", "B", "C", turn="A", keys=("Max Rounds: 1",))
    say(here, "A", "Postgres.")
    say(here, "B", "Redis.")
    say(here, "C", "Both are good.", answer="[DECIDE: B]")
    assert all(form in here.asked[-1][1] for form in ("[DECIDE: A]", "[DECIDE: B]", "[DECIDE: none]"))
    assert here.dialog.state.table.judged[-1][0] == "B"


def test_a_yes_that_must_name_its_reservation_is_asked_for_it() -> None:
    here = room("objections = true", "A", "B")
    say(here, "A", f"{TEXT}\n[RESERVATION: one more thing to run]")
    say(here, "B", "[AGREE: P1]", answer="[AGREE: P1]\n[RESERVATION: backups]")
    assert "[RESERVATION: the strongest objection left]" in here.asked[-1][1]
    assert here.dialog.state.outcome is not None
    assert here.dialog.turns[-1].mark("RESERVATION") is not None


def test_an_agreement_where_proposals_are_voted_on_stays_one_or_becomes_a_vote() -> None:
    for answer, names in (("[AGREE: P1]", ["AGREE"]), ("[VOTE: P1 approve]", ["VOTE"])):
        here = room(SETUPS["vote"], "A", "B", "C", turn="A")
        say(here, "A", "[PROPOSAL: keep sessions in Postgres]")
        say(here, "B", "Fine.\n\n[AGREE: P1]", answer=answer)
        assert all(form in here.asked[-1][1] for form in ("[VOTE: P1 approve]", "[VOTE: P1 reject]", "[AGREE: P1]"))
        assert [mark.name for mark in here.dialog.turns[-1].marks] == names


@cases(
    "beside",
    [
        "[CONFIDENCE: 0.8 | if the budget is raised]",
        "[RE: 2 | only its first half]",
        "[QUESTION_FOR_USER: is the budget raised? Only then do I agree]",
        "[IDEA: I agree once clause 3 is dropped]",
        "[PROPOSAL P7: sign only if clause 3 goes]",
        "[TO: Z]",
        "[FROBNICATE: only from Monday]",
        "## Consensus Summary\n\nOnly from Monday.",
    ],
)
def test_words_in_any_other_mark_are_words_beside_it(beside: str) -> None:
    here = pair()
    say(here, "B", f"{beside}\n\n[AGREE: P1]" if beside[0] == "#" else f"{beside}\n[AGREE: P1]", answer="")
    asked = [who for who, _ in here.asked]
    assert asked == (["A"] if beside == "[TO: Z]" else ["A", "B"])
    assert (here.dialog.turns[-1].mark("AGREE") is None) == (beside != "[TO: Z]")


def test_a_yes_beyond_what_is_asked_about_counts_for_nothing() -> None:
    here = room(SETUPS["vote"], "A", "B", "C", turn="A")
    say(here, "A", "\n".join(f"[PROPOSAL: way {number}]" for number in range(admit.MOST + 2)))
    votes = [f"[VOTE: P{number} approve]" for number in range(1, admit.MOST + 3)]
    say(here, "B", "If the price is named:\n\n" + "\n".join(votes), answer="\n".join(votes))
    cast = [poll.ref for poll in here.dialog.state.polls.open if poll.ballots]
    assert cast == [f"P{number}" for number in range(1, admit.MOST + 1)]
    assert len(here.dialog.turns[-1].all("REFUSED")) == 2


# -- what its answer may hold ----------------------------------------------------------------------------------------


@cases(
    "answer",
    [
        "[AGREE: P1]",
        "[agree: p1]",
        "**[AGREE: P1]**",
        "```\n[AGREE: P1]\n```",
        "<think>Do I mean it? Yes.</think>\n[AGREE: P1]",
        "\n\n  [AGREE: P1]\n",
        "[AGREE: P1].",
        "- **[AGREE: P1]**.",
        "[AGREE: P1 | it is simple]",
        "## My answer\n\n[AGREE: P1]",
        "<!-- the question: do I mean it? -->\n[AGREE: P1]",
        '<musing depth="2">Or [PASS]?</musing>\n<!-- done -->\n# Answer\n```\n[AGREE: P1].\n```',
        "[AGREE: P1]\n\nTURN: A",
    ],
)
def test_a_clear_answer_counts(answer: str) -> None:
    here = pair()
    say(here, "B", "Fine.\n\n[AGREE: P1 | it is simple]", answer=answer)
    assert [who for who, _ in here.asked] == ["A", "B"]
    assert here.dialog.state.outcome is not None
    assert str(here.dialog.turns[-1].mark("AGREE")) == "[AGREE: P1 | it is simple]"  # with its reason, as it stood


@cases(
    "answer",
    [
        "",
        "Yes.",
        "[AGREE: P1] as I said",
        "I confirm:\n[AGREE: P1]",
        "[AGREE: P1]\nif the price is named.",
        "[AGREE: P1 | if the price is named]",
        "[AGREE: P2]",
        "[AGREE: P1]\n[PASS]",
        "[VOTE: P1 approve]",
        "[CONSENSUS_REACHED]",
        "ja",
    ],
)
def test_an_answer_with_any_other_word_is_no_yes(answer: str) -> None:
    here = pair()
    say(here, "B", "Fine.\n\n[AGREE: P1 | it is simple]", answer=answer)
    turn = here.dialog.turns[-1]
    assert here.dialog.state.outcome is None
    assert turn.mark("AGREE") is None
    assert "AGREE P1 / it is simple" in str(turn.mark("REFUSED"))
    assert "[AGREE: P1 | it is simple]" in turn.body


AMONG = (
    "Yes, I mean it: {}",
    "I confirm:\n{}",
    "{} as I said",
    "{}\nif the price is named.",
    '"{}"',
    "**My answer** {}",
)


@cases("by", ASKED)
@cases("among", AMONG)
def test_a_yes_among_other_words_is_asked_for_once_more(by: str, among: str) -> None:
    _, _, yes, no = ASKED[by]
    answer = among.format(yes)
    for second, is_meant in ((yes, True), (no, False), (answer, False), ("", False), ("Yes.", False)):
        here, who = says_yes(by, answer, second, yes)
        assert [one for one, _ in here.asked] == [who, who]
        (_, first), (_, again) = here.asked
        assert f"Your answer was {' '.join(answer.split())!r}" in again
        assert f"the words beside `{yes}` may be a condition" in again
        assert "If you have no condition, that line alone is clear." in again
        assert first[-60:] == again[-60:]
        assert is_yes_in(here, by) == is_meant
    assert here.confirms[who] == [yes]


@cases("by", ASKED)
@cases("answer", ["", "Yes.", "Neither {} nor {no}: I am not sure.", "[AGREE: P7]", "I cannot say {no} yet."])
def test_no_other_answer_is_asked_for_once_more(by: str, answer: str) -> None:
    _, _, yes, no = ASKED[by]
    here, who = says_yes(by, answer.replace("{}", yes).replace("{no}", no), yes)
    assert [one for one, _ in here.asked] == [who]
    assert here.confirms[who] == [yes]
    assert not is_yes_in(here, by)


def test_only_what_is_unclear_is_asked_once_more() -> None:
    here = room(SETUPS["vote"], "A", "B", "C", turn="A")
    say(here, "A", "[PROPOSAL: Postgres]\n[PROPOSAL: Redis]")
    here.thinks("B")
    here.confirms["B"] = ["[VOTE: P1 reject]\nBut yes: [VOTE: P2 approve]", "[VOTE: P2 approve]"]
    here.answers("B", "Both.\n\n[VOTE: P1 approve]\n[VOTE: P2 approve]")
    again = here.asked[-1][1]
    assert "`[VOTE: P2 approve]`" in again
    assert "P1" not in again.replace("[VOTE: P1 reject] But yes", "")
    ballots = [(poll.ref, ballot.choice) for poll in here.dialog.state.polls.open for ballot in poll.ballots]
    assert ballots == [("P1", "reject"), ("P2", "approve")]


@cases("by", ASKED)
def test_a_yes_that_could_not_be_read_says_what_would_be_clear(by: str) -> None:
    yes = ASKED[by][2]
    here, _ = says_yes(by, f"Sure: {yes}")
    refused = str(here.dialog.turns[-1].mark("REFUSED"))
    assert refused.endswith("its agent wrote other words beside the yes: that line alone is clear]")
    assert faults(here.paper.data) == ()


@cases("by", ASKED)
def test_a_yes_in_a_fence_with_text_behind_it_is_asked_about(by: str) -> None:
    yes = ASKED[by][2]
    for answer, is_meant in ((yes, True), ("", False)):
        here, who = says_yes(by, answer, reply=f"So:\n\n```\n{yes}\n```\n\nThat is all.")
        assert [one for one, _ in here.asked] == [who]
        assert is_yes_in(here, by) == is_meant
        assert (here.dialog.turns[-1].mark("REFUSED") is None) == is_meant


def test_an_objection_in_the_answer_takes_the_place_of_the_yes() -> None:
    here = pair()
    say(here, "B", "Hm.\n\n[AGREE: P1 | needs clause 3 dropped]", answer="[OBJECTION: clause 3 must go]")
    turn = here.dialog.turns[-1]
    assert [str(mark) for mark in turn.marks] == ["[OBJECTION: clause 3 must go]"]
    assert "\\[AGREE: P1 | needs clause 3 dropped]" in in_words(here)
    assert here.dialog.state.table.standing is None


def test_all_other_marks_stay_as_they_were() -> None:
    here = pair()
    say(here, "B", "[PROPOSAL: add a cache]\n\nFine.\n\n[AGREE: P1]\n[CONFIDENCE: 0.8]", answer="What?")
    assert [mark.name for mark in here.dialog.turns[-1].marks] == ["PROPOSAL", "CONFIDENCE", "REFUSED"]


def test_the_answer_brings_nothing_that_was_not_asked_about() -> None:
    here = pair()
    say(here, "B", "Fine.\n\n[AGREE: P1]", answer="[AGREE: P1]\n[PROPOSAL: and a cache]\n[QUESTION_FOR_USER: may I?]")
    assert here.dialog.state.questions.text == ""
    assert here.dialog.turns[-1].mark("PROPOSAL") is None


# -- what a failure leaves -------------------------------------------------------------------------------------------


def test_two_that_claim_consensus_in_a_plain_dialog_are_told_in_the_file() -> None:
    here = room("", "A", "B")
    for who in "ABAB":
        here.scripts[who] = []
        say(here, who, "We agree!\n\n[CONSENSUS_REACHED]")
        assert here.dialog.turns[-1].mark("REFUSED") is not None
    assert here.dialog.state.outcome is None


@cases(
    ("mark", "why"),
    [
        ("[FROBNICATE: x]", "no mark is called FROBNICATE"),
        ("[TO: Z]", "nobody here is called that"),
        ("[STOPPED: because I say so]", "daemons alone may write that"),
        ("[PAUSED]", "the person alone may write that"),
        ("[AGREE: P9]", "there is no P9"),
        ("[VOTE: P1 approve]", "nothing is voted on"),
    ],
)
def test_what_is_dropped_leaves_its_reason_in_a_plain_dialog_too(mark: str, why: str) -> None:
    here = pair()
    say(here, "B", f"See.\n\n{mark}", answer="")
    refused = here.dialog.turns[-1].mark("REFUSED")
    assert why in refused.value


def test_an_error_of_the_backend_is_no_answer() -> None:
    here = pair()
    here.says("B", BackendError("gone", fix="come back"))
    assert [who for who, _ in here.asked] == ["A"]

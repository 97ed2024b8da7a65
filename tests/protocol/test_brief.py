"""What an agent is told under rules: its part, the marks it may use, how the dialog decides, where it stands."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dialogd.agent import prompt
from dialogd.backends import Usage
from dialogd.backends.coding_agent import checkpoint, plan
from dialogd.backends.parts import Prompt
from dialogd.protocol.grammar import parse
from dialogd.protocol.model import Addition, Draft, Mark, Participant
from dialogd.protocol.rules import PERSONALITIES
from dialogd.protocol.state import Decision, Dialog, Escalation, Poll, Polls, Proposal, Standing
from tests.examples import examples
from tests.support.cases import cases
from tests.support.room import Room, opening
from tests.support.states import state_with

GOLDEN = Path(__file__).with_name("golden")
SUMMARY = "## Consensus Summary\nPostgres.\n\n[CONSENSUS_REACHED]"

RICH = """
verdict = "vote"
objections = true
red_team = true
review = true
guidelines = "prefer what can be undone"
success = ["a date to decide by"]
errors = ["where a benchmark fails, say so"]
[board]
minimum_contributions = 4
[roles.A]
permissions = ["READ_ALL", "POST", "PROPOSE", "VOTE"]
specialization = "databases"
[roles.B]
role = "critic"
weight = 2.0
personality = "security expert"
responsibilities = ["say who could abuse it", "ask for a source"]
[roles.C]
role = "moderator"
[[phases]]
name = "DISCOVERY"
description = "a list of what is known"
[[phases]]
name = "ANALYSIS"
description = "two options with their costs"
rounds = 2
[[phases]]
name = "SYNTHESIS"
description = "one text"
[messages]
RESULTS = "what was measured"
FINDING = "severity | category | file | line | issue | suggestion"
"""


def dialog_of(setup: str, *agents: str, turn: str = "", keys: Sequence[str] = ()) -> str:
    """The opening of a dialog with such a Setup."""
    return opening(
        *(agents or ("A", "B", "C")), turn=turn, keys=keys, more=f"## Setup\n\n```toml\n{setup.strip()}\n```"
    )


def told(text: str, me: str = "A", **state: object) -> str:
    """The prompt of an agent in a dialog, with some of its state set."""
    return asked_of(with_state(parse(text.encode()), **state), me).text


def asked_of(dialog: Dialog, me: str) -> Prompt:
    """What that agent is asked."""
    agent = dialog.header.agent(me)
    assert agent is not None
    return prompt.Prompts().turn(dialog, agent)


def with_state(dialog: Dialog, **state: object) -> Dialog:
    """The dialog with some of its state set."""
    return replace(dialog, state=state_with(dialog.state, **state))


def taught(text: str, me: str = "A") -> set[str]:
    """The names of the marks that an agent is taught."""
    return set(re.findall(r"`\[([A-Z_]+)", asked_of(parse(text.encode()), me).system))


def golden(name: str, text: str) -> None:
    """Compare with the file of that name; `UPDATE_GOLDENS=1` writes it anew."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDENS"):
        path.write_bytes(text.encode() + b"\n")
    assert text + "\n" == path.read_bytes().decode()


def a_rich_talk() -> Room:
    """One round and a turn under nearly every rule; it is B's turn again."""
    return Room(dialog_of(RICH, "A", "B", "C", "D", keys=["Max Rounds: 5", "Topic: sessions"])).speak(
        ("A", "Postgres does it.\n\n[PROPOSAL: keep sessions in Postgres]\n[CONFIDENCE: 0.6]"),
        (
            "B",
            "Rather not.\n\n[PROPOSAL: keep them nowhere]\n[CONFIDENCE: 0.7]\n"
            "[FINDING: blocking | load | a.py | 3 | no numbers | test]",
        ),
        ("C", "Let us see numbers."),
        ("D", "They are small.\n\n[EVIDENCE: 4 ms, bench.py]\n[CONFIDENCE: 0.9]"),
        ("A", "Then with a limit.\n\n[PROPOSAL: Postgres, at most a million rows]\n[CONFIDENCE: 0.8]"),
    )


def test_a_prompt_under_many_rules_is_the_text_that_was_reviewed() -> None:
    golden("prompt_rules.md", a_rich_talk().thinks("B"))


REVIEW = "review = true\n[messages]\nFINDING = 'found'\nRESOLVED = 'met'\nSCORE = 'of it'"
OWN = '[roles.A]\npermissions = ["READ_OWN", "POST", "CRITIQUE", "PROPOSE", "VOTE"]'
JUDGED = 'verdict = "judge"\njudge = "C"\n[roles.C]\nspecialization = "operations"'


def a_trial() -> Room:
    """Two agents have taken their positions; the judge is next."""
    return Room(dialog_of(JUDGED, turn="A", keys=["Max Rounds: 2"])).speak(
        ("A", "Postgres, as it is there.\n\n[PROPOSAL: Postgres]"),
        ("B", "Redis is faster.\n\n[PROPOSAL: Redis]"),
        ("A", "Four milliseconds are enough."),
        ("B", "Not at night.\n\n[EVIDENCE: 90 ms at 2 am]"),
    )


def test_the_judge_is_asked_in_both_orders_and_not_told_what_it_said() -> None:
    room = a_trial()
    first = room.thinks("C")
    room.answers("C", "A it is: 4 ms suffice by its own figures.\n\n[DECIDE: A | figures of its own]")
    second = room.thinks("C")
    golden("prompt_judge.md", first)
    golden("prompt_judge_again.md", second)
    assert "figures of its own" not in second
    assert "suffice by its own" not in second
    assert first.index("## The position of A") < first.index("## The position of B")
    assert second.index("## The position of B") < second.index("## The position of A")
    assert first[: first.index("# Your turn")] == second[: second.index("# Your turn")]


def test_the_judges_second_reading_begins_a_session_of_its_own() -> None:
    room = a_trial()
    first = asked_of(room.dialog, "C")
    debt = room.dialog.state.debt("C")
    room.says("C", "A it is.\n\n[DECIDE: A | figures]")
    point = checkpoint(first, debt.re, "s", session="one", reply="A it is.", usage=Usage())
    assert plan(asked_of(room.dialog, "C"), "C", "s", [point]).after is None


def test_what_a_judge_did_not_send_is_not_shown_to_it() -> None:
    dialog = a_trial().dialog
    agent = dialog.header.agent("C")
    assert agent is not None
    assert "B wins" not in prompt.Prompts().turn(dialog, agent, ["B wins"]).text


def test_the_judge_is_asked_for_nothing_but_a_judgement() -> None:
    assert taught(dialog_of(JUDGED), "C") == {"DECIDE", "QUESTION_FOR_USER"}
    asked = a_trial().thinks("C")
    said = ("Answer the others", "OBJECTION", "PASS", "follow", "words", "turn 6", "Write at most")
    assert [words for words in said if words in asked] == []


def test_the_judge_reads_the_positions_and_the_person_and_no_transcript() -> None:
    room = a_trial()
    room.say("Go by what was measured.", to="C")
    room.answers("C", room.thinks("C") and "Measured where?\n\n[QUESTION_FOR_USER: which load counts?]")
    room.say("That at night.")
    first = room.thinks("C")
    room.answers("C", "[DECIDE: B | it was measured]")
    second = room.thinks("C")
    for asked, order in ((first, ["A", "B"]), (second, ["B", "A"])):
        assert [part[0] for part in asked.split("## The position of ")[1:]] == order
        assert all(
            words in asked for words in ("Where should", "Go by what was measured.", "which load", "That at night.")
        )
        assert asked.count("Four milliseconds are enough.") == asked.count("Not at night.") == 1
        assert "Redis is faster." not in asked


# -- the system part ---------------------------------------------------------------------------------------------


@cases("setup", ["", 'template = "pair"', "step = true"])
def test_a_plain_dialog_is_told_nothing_of_rules(setup: str) -> None:
    dialog = parse(dialog_of(setup, "A", "B").encode())
    plain = parse(opening("A", "B").encode())
    assert asked_of(dialog, "A").system == asked_of(plain, "A").system
    assert asked_of(dialog, "A").now == asked_of(plain, "A").now


def test_the_system_part_is_the_same_in_every_turn() -> None:
    room = Room(dialog_of(RICH, "A", "B", "C", "D", keys=["Max Rounds: 9"]))
    known = {me: asked_of(room.dialog, me).system for me in "ABCD"}
    for me in "ABCDABC":
        room.speak((me, f"So says {me}.\n\n[PROPOSAL: another]\n[CONFIDENCE: 0.5]"))
        assert {who: asked_of(room.dialog, who).system for who in "ABCD"} == known
    later = with_state(room.dialog, closing="time", escalation=Escalation("A"), red_team="P1", rounds=3)
    assert asked_of(later, "A").system == known["A"]


@cases(
    ("role", "yes", "no"),
    [
        ("analyst", {"PROPOSAL", "IDEA", "RESULTS", "EVIDENCE"}, {"CRITIQUE", "OBJECTION", "VOTE", "DECIDE"}),
        ("critic", {"CRITIQUE", "OBJECTION", "VOTE", "RESERVATION"}, {"PROPOSAL", "IDEA", "DECIDE", "SYNTHESIS"}),
        ("synthesizer", {"SYNTHESIS", "IDEA"}, {"PROPOSAL", "VOTE", "RESERVATION", "CRITIQUE", "DECIDE"}),
        ("moderator", {"DECIDE", "ESCALATE", "SYNTHESIS"}, {"PROPOSAL", "VOTE", "IDEA", "OBJECTION"}),
    ],
)
def test_only_marks_that_the_role_may_use_are_taught(role: str, yes: set[str], no: set[str]) -> None:
    setup = f'verdict = "vote"\nobjections = true\n[roles.A]\nrole = "{role}"\n[messages]\nRESULTS = "measured"'
    known = taught(dialog_of(setup))
    assert yes <= known
    assert not no & known


@cases(
    ("setup", "mark"),
    [
        ('verdict = "vote"', "VOTE"),
        ("objections = true", "RESERVATION"),
        ('order = "free"', "TO"),
        (REVIEW, "FINDING"),
        (REVIEW, "RESOLVED"),
        (REVIEW, "SCORE"),
        ('[messages]\nRESULTS = "measured"', "RESULTS"),
        ("[board]", "IDEA"),
        ('[roles.A]\npermissions = ["POST", "DECIDE"]', "DECIDE"),
    ],
)
def test_a_mark_is_taught_where_the_rules_need_it_and_nowhere_else(setup: str, mark: str) -> None:
    assert mark in taught(dialog_of(setup))
    assert mark not in taught(dialog_of("sealed = true"))


@cases("name", list(PERSONALITIES))
def test_a_personality_is_told_with_its_meaning(name: str) -> None:
    assert f"Your manner: {name}, who {PERSONALITIES[name]}" in told(dialog_of(f'[roles.A]\npersonality = "{name}"'))
    assert "- Your manner: a poet\n" in told(dialog_of('[roles.A]\npersonality = "a poet"'))


@cases(
    ("setup", "words"),
    [
        (
            'verdict = "vote"\nthreshold = 0.75\nquorum = 0.5',
            ["weigh 75% of", "when 50% of all votes", "A, B and C may vote"],
        ),
        ('verdict = "vote"', ["two thirds", "After 3 failed votes the person decides", "at least two approve"]),
        ('verdict = "vote"\n[roles.B]\nrole = "moderator"', ["After 3 failed votes B decides", "A and C may vote"]),
        (
            'verdict = "moderator"\n[roles.B]\nrole = "moderator"',
            ["The decision is that of B, by `[DECIDE: P1 approve"],
        ),
        ('verdict = "moderator"', ["The decision is that of the person"]),
        (
            'verdict = "judge"\njudge = "B"',
            ["The decision is that of B, who takes no part", "Your last turn is what is"],
        ),
        ("sealed = true", ["the others sign it by `[AGREE: P4]`, saying what convinced them"]),
        ('[roles.C]\nrole = "analyst"', ["A and B sign it by"]),
        ("red_team = true", ["only after one turn has argued against it"]),
        ("objections = true", ["needs a line `[RESERVATION: …]`"]),
        ('[roles.B]\npermissions = ["POST", "DECIDE"]', ["B may decide on a single proposal"]),
        ("[board]\nminimum_contributions = 7", ["At most 100 contr", "before there are 7"]),
    ],
)
def test_how_the_dialog_decides_is_told(setup: str, words: list[str]) -> None:
    text = told(dialog_of(setup))
    assert [word for word in words if word not in text] == []
    assert ("that others agree is none" in text) == ("judge" not in setup)


def test_nobody_is_told_the_roles_of_the_others() -> None:
    setup = '[roles.B]\nrole = "critic"\npersonality = "perfectionist"'
    dialog = parse(dialog_of(setup).replace("---", "We like tests.\n\n---", 1).encode())
    assert "critic" not in asked_of(dialog, "A").text
    assert "We like tests." in asked_of(dialog, "A").text
    assert "Your role: critic." in asked_of(dialog, "B").system


@cases(
    ("more", "words"),
    [
        ("", "The person who asked reads along, may step in, and outranks everyone."),
        ('## Setup\n\n```toml\nperson = "absent"\n```', "Nobody reads along: decide, and say what you assume."),
    ],
)
def test_an_agent_is_told_whether_somebody_reads_along(more: str, words: str) -> None:
    asked = told(opening("A", "B", more=more))
    assert words in asked
    assert ("reads along, may" in asked) != ("Nobody reads along" in asked)


def test_what_an_agent_has_is_told_once_and_to_no_judge_or_lead() -> None:
    files = "the project in the current folder: read and search it"
    dialog = parse(dialog_of(JUDGED).encode())
    for agent in dialog.header.agents:
        asked = prompt.Prompts(has=files).turn(dialog, agent).text
        assert asked.count(f"You have {files}.") == (agent.id != "C")
    built = parse(dialog_of('[build]\nmoderator = "A"\nlead = "B"\nrepo = "/code"', "A", "B").encode())
    assert built.state.build
    for agent in built.header.agents:
        assert prompt.Prompts(has=files).turn(built, agent).text.count(files) == (agent.id == "A")


def test_two_sides_of_a_debate_are_not_told_to_change_theirs() -> None:
    side, plain = told(dialog_of(JUDGED)), told(dialog_of(""))
    for words in ("Change your mind", "a deadlock is a good result"):
        assert words not in side
        assert words in plain
    assert "Concede what you cannot answer." in side


# -- what this turn is for ---------------------------------------------------------------------------------------

FIRST, DIFFER, CALM = "Look first at what you have", "Where do they differ", "The last two turns brought nothing new"
CHECK, LATE, USUAL = "waits for your signature: check it", "Few turns are left", "Answer the others' questions"
TASKS = (FIRST, DIFFER, CALM, CHECK, LATE, USUAL)


def tasks(room: Room, me: str) -> tuple[str, ...]:
    """What this turn of an agent is for."""
    return tuple(task for task in TASKS if task in asked_of(room.dialog, me).now)


def test_each_turn_has_a_task_of_its_own() -> None:
    room = Room(opening("A", "B", keys=["Max Turns: 15"]))
    assert tasks(room, "A") == (FIRST,)
    room.speak(("A", "Postgres.\n\n[PROPOSAL: Postgres]"))
    assert tasks(room, "B") == (FIRST,)
    room.speak(("B", "Hm.\n\n[OBJECTION: slow]"))
    assert tasks(room, "A") == (USUAL,)
    room.speak(("A", "Well."), ("B", "Well, well."))
    assert tasks(room, "A") == (CALM,)
    room.speak(("A", SUMMARY))
    assert tasks(room, "B") == (CHECK,)
    room.speak(("B", "No.\n\n[OBJECTION: dear]"))
    assert tasks(room, "A") == (USUAL,)
    room.speak(("A", "x\n\n[EVIDENCE: 1]"), ("B", "y\n\n[EVIDENCE: 2]"))
    assert tasks(room, "A") == (USUAL,)
    room.speak(("A", "z\n\n[EVIDENCE: 3]"))
    assert tasks(room, "B") == (USUAL,)
    room.speak(("B", "z\n\n[EVIDENCE: 4]"), ("A", "z\n\n[EVIDENCE: 5]"))
    assert "2 more follow after it" in asked_of(room.dialog, "B").now
    assert tasks(room, "B") == (LATE,)
    assert "write the text that you could sign now, or name the crux" in asked_of(room.dialog, "B").now


def test_after_sealed_answers_each_is_asked_where_they_differ() -> None:
    room = Room(dialog_of("sealed = true", "A", "B", turn="A, B"))
    for me in "AB":
        now = asked_of(room.dialog, me).now
        assert "It is a sealed first answer" in now
        assert "`[CONFIDENCE: 0.7]` (0 to 1), and what would change your mind" in now
        assert tasks(room, me) == (FIRST,)
        room.says(me, f"{me} says so.")
    for me in "AB":
        room.step(me)
    assert tasks(room, "A") == (DIFFER,)
    assert "If they do not differ, write the text that you could sign now." in asked_of(room.dialog, "A").now
    room.speak(("A", "By the figures.\n\n[EVIDENCE: 4 ms]"))
    assert tasks(room, "B") == (DIFFER,)
    room.speak(("B", "Whose?\n\n[QUESTION: whose?]"))
    assert tasks(room, "A") == (USUAL,)


def test_where_phases_say_what_is_done_the_task_does_not() -> None:
    for setup, turn in ((PHASES, "A"), (f"sealed = true\n{PHASES}", "A, B, C")):
        now = told(dialog_of(setup, turn=turn)).partition("# Your turn")[2]
        assert "your position" not in now
        assert "CONFIDENCE" not in now
        assert "LOOK" in now


# -- where it stands ---------------------------------------------------------------------------------------------

PHASES = """
[[phases]]
name = "LOOK"
description = "a list."
[[phases]]
name = "WEIGH"
rounds = 2
[[phases]]
name = "END"
"""


@cases(
    ("rounds", "line"),
    [
        (0, "Phase 1 of 3, LOOK: a list. It ends with this round."),
        (1, "Phase 2 of 3, WEIGH. It ends in 2 rounds."),
        (2, "Phase 2 of 3, WEIGH. It ends with this round."),
        (3, "Phase 3 of 3, END. It is the last one."),
        (9, "Phase 3 of 3, END. It is the last one."),
    ],
)
def test_an_agent_is_told_its_phase_and_what_comes_out_of_it(rounds: int, line: str) -> None:
    prompt_ = told(dialog_of(PHASES), rounds=rounds) + "\n"
    assert f"\n\n{line}\n" in prompt_
    assert [name for name in ("LOOK", "WEIGH", "END") if name in prompt_] == [re.split("[:.]", line.split(", ")[1])[0]]


PROPOSED = Proposal("P1", "B", "keep it in Postgres", "1")


def test_a_poll_is_told_with_the_line_to_write() -> None:
    setup = 'verdict = "vote"\n[roles.C]\nrole = "analyst"'
    polls = {"proposals": (PROPOSED,), "polls": Polls((Poll("P1", 1),))}
    text = told(dialog_of(setup), "A", **polls)
    assert "The proposal P1 waits for your vote: `[VOTE: P1 approve | your reason]`, or `reject`, or `abstain`." in text
    assert "~~~text\nkeep it in Postgres\n~~~" not in text
    assert "waits for your vote" not in told(dialog_of(setup), "C", **polls)
    assert "RESERVATION" not in text
    objecting = told(dialog_of(f"objections = true\n{setup}"), "A", **polls)
    assert "To approve, name your strongest remaining objection too: `[RESERVATION: …]`." in objecting


def test_nobody_votes_on_what_the_round_still_hides() -> None:
    room = Room(dialog_of('verdict = "vote"\norder = "parallel"', turn="A, B, C"))
    for me in "AB":
        room.thinks(me)
    room.answers("A", "So.\n\n[PROPOSAL: keep it in Postgres]")
    assert room.dialog.state.polls.open
    assert "keep it in Postgres" not in asked_of(room.dialog, "B").text
    room.answers("B", "Hm.")
    assert "The proposal P1 waits for your vote" in asked_of(room.dialog, "B").now
    assert asked_of(room.dialog, "B").text.count("keep it in Postgres") == 1


def test_a_signature_needs_its_reservation_where_the_rules_say_so() -> None:
    standing = Standing(Proposal("P3", "B", "Postgres", "1", "0" * 16), (("B", 2),))
    assert "A signature needs `[RESERVATION: " in told(dialog_of("objections = true"), standing=standing)
    assert "A signature needs" not in told(dialog_of("sealed = true"), standing=standing)
    signed = replace(standing, signers=(("B", 2), ("A", 3)))
    assert "waits for your signature" not in told(dialog_of("objections = true"), standing=signed)
    assert "waits for your signature" not in told(dialog_of('[roles.A]\nrole = "analyst"'), standing=standing)


def test_a_sealed_first_answer_is_asked_for_as_one() -> None:
    text = dialog_of("sealed = true", turn="A, B")
    assert "nobody sees the others' before all have given theirs" in told(text)
    assert "what would change your mind" in told(text)
    assert "sealed first answer" not in told(dialog_of("sealed = true"))
    assert "sealed first answer" not in told(dialog_of('order = "parallel"', turn="A, B"))


def test_a_seal_is_nothing_to_read() -> None:
    room = Room(dialog_of("sealed = true", turn="A, B, C"))
    note = Draft("B", "Claude B", marks=(Mark("SEALED", "ab" * 32),), attributes=(("re", "1"), ("at", room.paper.at)))
    room.paper.append(lambda _: Addition(note))
    assert "abab" in room.text
    assert "abab" not in asked_of(room.dialog, "A").text


def test_a_red_team_turn_is_asked_to_argue_against_what_was_agreed() -> None:
    text = told(dialog_of("red_team = true"), proposals=(PROPOSED,), red_team="P1")
    assert "Argue against P1 as strongly as honesty allows" in text
    assert "object with `[OBJECTION: …]` if it does not hold" in text
    assert "~~~text\nkeep it in Postgres\n~~~" in text
    analyst = told(dialog_of('red_team = true\n[roles.A]\nrole = "analyst"'), proposals=(PROPOSED,), red_team="P1")
    assert "`[OBJECTION" not in analyst[analyst.index("# Your turn") :]


def test_the_closing_round_sums_up() -> None:
    text = told(dialog_of("sealed = true"), closing="the time limit of 30 minutes")
    assert "This is the closing round (the time limit of 30 minutes)" in text
    assert "closing round" not in told(dialog_of("sealed = true"))


def test_what_the_others_could_not_decide_comes_to_one_of_them() -> None:
    setup = 'verdict = "vote"\nguidelines = "prefer what can be undone"\n[roles.C]\nrole = "moderator"'
    lost = Decision("P1", "rejected", "vote", "1 for (A), 1 against (B)", "less than 67% for it", "4")
    state = {"proposals": (PROPOSED,), "decisions": (lost,), "escalation": Escalation("C", "3 votes failed")}
    now = told(dialog_of(setup), "C", **state).partition("# Your turn")[2]
    for words in (
        "`[DECIDE: P1 approve | your reason]`, or `reject`",
        "3 votes failed",
        "P1 rejected: vote, 1 for (A), 1 against (B) (less than 67% for it)",
        "Undecided: P1.",
        "Go by this: prefer what can be undone",
    ):
        assert words in now
    assert "keep it in Postgres" not in now
    assert "Where should user sessions live?" not in now
    own = f"{setup}\npermissions = ['READ_OWN', 'MODERATE', 'DECIDE']"
    assert "keep it in Postgres" in told(dialog_of(own), "C", **state)
    assert "you do: `[DECIDE" not in told(dialog_of(setup), "A", **state)


def test_a_mark_that_did_not_count_is_said_once() -> None:
    room = a_rich_talk()
    now = asked_of(room.dialog, "B").now
    assert "Of your last turn this did not count:\n\n~~~text\nPROPOSAL" in now
    room.speak(("B", "Well."))
    assert "did not count" not in asked_of(room.dialog, "B").now
    assert "did not count" not in asked_of(room.dialog, "C").now


def test_what_did_not_count_in_a_turn_that_passed_is_said_too() -> None:
    room = Room(dialog_of('verdict = "vote"\n[roles.A]\nrole = "critic"')).speak(
        *((who, "Well.") for who in "ABC"),
        ("A", "[PASS]\n[PROPOSAL: Redis]"),
    )
    assert "PROPOSAL Redis: A may not use PROPOSAL" in asked_of(room.dialog, "A").now


def test_what_was_said_before_the_person_reopened_it_is_no_position() -> None:
    room = a_trial()
    for _ in range(2):
        room.speak(("C", "A it is.\n\n[DECIDE: A | figures]"))
    assert room.dialog.state.outcome is not None
    room.say("And with a million users?", to="A")
    room.speak(("A", "Then Redis."))
    now = asked_of(room.dialog, "C").now
    assert "Then Redis." in now
    assert "The position of B" not in now
    assert "[PROPOSAL P1: Postgres]" not in now


def test_only_what_is_still_undecided_is_put_to_who_decides() -> None:
    setup = 'verdict = "vote"\n[roles.C]\nrole = "moderator"'
    old, done, open_ = (Proposal(f"P{n}", "A", f"text {n}", str(n)) for n in (1, 2, 3))
    approved = Decision("P2", "approved", "vote", "2 for (A, B)", "enough", "4")
    now = told(
        dialog_of(setup), "C", proposals=(old, done, open_), decisions=(approved,), base=1, escalation=Escalation("C")
    ).partition("# Your turn")[2]
    assert "Undecided: P3." in now
    assert "Decided against" not in now


def test_who_reads_only_its_own_hears_of_its_own_repetitions_alone() -> None:
    room = Room(dialog_of(OWN, "A", "B", keys=["Max Turns: 40"]))
    for _ in range(3):
        room.speak(("A", "Mine.\n\n[PROPOSAL: Postgres]"), ("B", "Postgres it is.\n\n[AGREE: P1]"))
    noticed = [line for line in asked_of(room.dialog, "A").now.split("\n") if line.startswith("Noticed")]
    assert noticed == []
    assert "Noticed: B has said nearly the same thing three times" in asked_of(room.dialog, "B").now


def test_findings_that_block_are_named_by_their_numbers() -> None:
    room = Room(dialog_of(REVIEW)).speak(("A", "See.\n\n[FINDING: blocking | load | a.py | 3 | no numbers | measure]"))
    assert "~~~text\n1, raised by you: no numbers\n~~~" in asked_of(room.dialog, "A").now
    assert "~~~text\n1, raised by A: no numbers\n~~~" in asked_of(room.dialog, "B").now
    own = "[roles.B]\npermissions = ['READ_OWN', 'CRITIQUE']"
    room = Room(dialog_of(f"{REVIEW}\n{own}")).speak(("A", "See.\n\n[FINDING: blocking | a | b | 3 | no numbers | c]"))
    assert "~~~text\n1, raised by A\n~~~" in asked_of(room.dialog, "B").now


# -- who reads its own only --------------------------------------------------------------------------------------

WORDS = ("zebra", "walrus", "ocelot", "marmot", "badger")


@examples(40, deadline=None)
@given(
    lines=st.lists(
        st.tuples(st.sampled_from(WORDS), st.sampled_from(["", "[EVIDENCE: {}]", "[PROPOSAL: {}]", "[OBJECTION: {}]"])),
        max_size=8,
    ),
    order=st.sampled_from(["alternate", "parallel"]),
    room=st.sampled_from([0, 900]),
)
def test_who_reads_only_its_own_is_shown_nothing_of_the_others(
    lines: list[tuple[str, str]], order: str, room: int
) -> None:
    held = Room(dialog_of(f'order = "{order}"\n{OWN}', turn="A, B, C" if order == "parallel" else "A"))
    for number, (word, mark) in enumerate(lines):
        owing = [who for who in held.dialog.state.owing if who in "ABC"]
        if not owing:
            break
        me = owing[0]
        said = f"{me}-{word}-{number}" if me != "A" else f"own-{number}"
        held.speak((me, f"{said} {'and so on ' * 60}\n\n{mark.format(said)}"))
        if number == 2:
            held.say("person-says-so", note=True)
        agent = held.dialog.header.agents[0]
        asked = prompt.Prompts(room=room).turn(held.dialog, agent).text
        assert not re.search(r"[BC]-[a-z]+-\d|## Decided|by [BC]\b", asked)
        assert room or ("own-" in asked) == ("own-" in held.text)
        assert room or ("person-says-so" in asked) == ("person-says-so" in held.text)


def test_who_reads_only_its_own_is_shown_what_it_is_to_sign_or_vote_on_and_no_more() -> None:
    room = Room(dialog_of(OWN)).speak(("A", "Mine."), ("B", f"Secretly thought.\n\n{SUMMARY}"))
    asked = asked_of(room.dialog, "A").text
    assert "The text P1 waits for your signature" in asked
    assert "The text P1:\n\n~~~text\nPostgres.\n~~~" in asked
    assert "Secretly" not in asked
    assert "You are shown the question, your own turns, the person's and what was decided" in asked
    assert "You are shown the question" not in asked_of(room.dialog, "B").text
    vote = Room(dialog_of(f'verdict = "vote"\n{OWN}')).speak(("A", "Mine."), ("B", "Secretly.\n\n[PROPOSAL: Redis]"))
    asked = asked_of(vote.dialog, "A").text
    assert asked.count("~~~text\nRedis\n~~~") == 1
    assert "Secretly" not in asked


def test_who_reads_only_its_own_is_shown_decisions_by_their_turn() -> None:
    setup = f'verdict = "judge"\njudge = "C"\n{OWN}\n[roles.B]\npermissions = ["POST", "DECIDE"]'
    room = Room(dialog_of(setup)).speak(
        ("A", "Mine.\n\n[PROPOSAL: Postgres]"), ("B", "Between us.\n\n[DECIDE: P1 reject | too slow]")
    )
    asked = asked_of(room.dialog, "A")
    assert (
        "## Decided in turn 3\n\n~~~text\n[DECISION P1: rejected | decide | by B in turn 3 | too slow]\n~~~"
        in asked.text
    )
    assert "Between us" not in asked.text
    assert "## Decided" not in asked_of(room.dialog, "C").text


def test_what_others_proposed_is_not_named_where_a_window_left_it_out() -> None:
    setup = f'verdict = "judge"\njudge = "C"\n{OWN}\n[roles.B]\npermissions = ["POST", "PROPOSE", "DECIDE"]'
    room = Room(dialog_of(setup, keys=["Max Turns: 500"]))
    for number in range(20):
        room.speak(("A", f"Mine. {'words and words ' * 20}\n\n[PROPOSAL: own-{number}]"))
        ref = room.dialog.state.table.proposals[-1].ref
        room.speak(("B", f"Theirs.\n\n[PROPOSAL: secret-{number}]\n[DECIDE: {ref} reject | no]"))
    asked = prompt.Prompts(room=1_800).turn(room.dialog, room.dialog.header.agents[0]).text
    assert "Left out here" in asked
    assert "by A: own-0" in asked
    assert "secret" not in asked


def test_a_digest_is_read_by_who_may_read_what_it_sums_up() -> None:
    for author, reader in (("B", "A"), ("A", "B")):
        room = Room(dialog_of(OWN, "A", "B", keys=["Max Turns: 500"]))
        for number in range(30):
            room.speak(("AB"[number % 2], f"Point {number}. {'words and words ' * 20}"))
        agents = {who: room.dialog.header.agent(who) or Participant(who, "", "") for who in "AB"}
        wanted = prompt.Prompts(room=1_800).digest(room.dialog, agents[author])
        note = prompt.digest_note(author, wanted[1], "They differ.", "$0.01", (("calls", "1"), ("usd", "0.01")))
        room.paper.append(lambda _, note=note: Addition(note))
        for who, is_read in ((author, True), (reader, False)):
            assert ("They differ." in prompt.Prompts(room=1_800).turn(room.dialog, agents[who]).text) == is_read
            assert (prompt.Prompts(room=1_800).digest(room.dialog, agents[who]) is None) == is_read


def test_its_prompt_begins_as_the_one_before_also_where_it_reads_only_its_own() -> None:
    room = Room(dialog_of(f"{OWN}\n[roles.B]\npermissions = ['POST', 'DECIDE']", keys=["Max Turns: 40"]))
    known = ""
    for number in range(12):
        me = "ABC"[number % 3]
        decided = f"\n\n[DECIDE: P{number} reject | no]" if me == "B" else ""
        room.speak((me, f"Said {number}.\n\n[PROPOSAL: number {number}]{decided}"))
        asked = asked_of(room.dialog, "A")
        text = "\n\n".join([asked.system, *(part.text for part in asked.parts)])
        assert text.startswith(known)
        known = text

"""The plan of a dialog: what was decided, by whom, against whose word; what is open.

After a change that is meant, `UPDATE_GOLDENS=1 pytest tests/test_plan.py` writes `plans/*.md`: read the difference.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from dialogd import person
from dialogd.config import DEFAULT_FILE
from dialogd.errors import NotADialog, StorageError
from dialogd.protocol.grammar import joint, parse, render
from dialogd.protocol.model import Draft, Mark
from dialogd.protocol.state import Dialog
from dialogd.store.disk import StateDir
from dialogd.views.documents import keep, markdown, place, write
from dialogd.views.documents import plan_facts as as_json
from dialogd.views.markup import inline, quoted
from dialogd.views.plan import Plan, beginning, has_spoken, next_steps
from tests.examples import examples
from tests.plans.scenes import BY_HAND, POSTGRES, SCENES, consensus, deadlock, setup, unfinished, vote
from tests.protocol.texts import texts
from tests.support.cases import cases
from tests.support.room import Room, opening

PLANS_FOLDER = Path(__file__).with_name("plans")
NOW = datetime(2026, 11, 22, 8, 30, tzinfo=UTC)
LATER = datetime(2026, 11, 23, 8, 30, tzinfo=UTC)


def plan(*lines: str, of: str = "AB", more: str = "") -> Plan:
    """The plan of a dialog in which these lines were said, each by whoever's turn it was."""
    room = Room(opening(*of, more=more, question="Where to?"))
    for line in lines:
        me = next(who for who in room.owing if who != "USER")
        room.advance(5)
        room.says(me, line)
    return Plan(room.dialog, "dialog.md")


def section(page: str, title: str) -> str:
    """What stands under that heading of the page."""
    _, _, rest = page.partition(f"\n## {title}\n")
    return rest.split("\n## ")[0].strip()


# -- the page ---------------------------------------------------------------------------------------------------------


@cases("name", SCENES)
def test_a_plan_is_the_page_that_was_reviewed(name: str) -> None:
    page = markdown(Plan(SCENES[name](), "dialog.md"))
    path = PLANS_FOLDER / f"{name}.md"
    if os.environ.get("UPDATE_GOLDENS"):
        path.write_text(page, encoding="utf-8")
    assert page == path.read_text(encoding="utf-8")


@cases("name", SCENES)
def test_the_first_screen_says_what_a_person_must_know(name: str) -> None:
    first, _, record = markdown(Plan(SCENES[name](), "dialog.md")).partition("\n---\n")
    lines, titles = first.split("\n"), re.findall("^## (.*)", first, re.M)
    assert (lines[0][:8], lines[2][:13], len(lines) <= 50) == ("# Plan: ", "**Outcome:** ", True)
    assert titles[0] in ("What was decided", "Where they stand")
    assert titles[-2:] == ["Still open", "Next steps"]
    said = ["The whole conversation", "Appendix: figures", "Appendix: how to verify"]
    assert re.findall("^## (.*)", record, re.M)[-3:] == said
    assert "\n\n\n" not in first + record
    assert re.search(r"\b[0-9a-f]{12,}\b", (first + record).partition("## Appendix: how to verify")[0]) is None


def test_the_whole_conversation_stands_in_it() -> None:
    dialog = consensus()
    page, facts = markdown(Plan(dialog)), as_json(Plan(dialog))
    for entry in dialog.turns[1:]:
        assert entry.frame is not None
        assert f"### Turn {entry.number} — {entry.name}\n" in page
        assert quoted(entry.body.split("\n---\n")[0].strip()) in page
        assert all(mark.value.split(" | ")[-1] in page for mark in entry.marks if mark.name in ("PROPOSAL", "AGREE"))
    assert [entry["text"] for entry in facts["conversation"]] == [entry.body for entry in dialog.entries]


# -- agents' text is data ---------------------------------------------------------------------------------------------

HOSTILE = (
    "# Mine",
    "  ## Mine  ##",
    "Mine\n===",
    "Mine\n---",
    "- # Mine",
    "> ## Mine",
    "1. > - ### Mine",
    "```\n# code",
    "- x\n  ```\n# Mine",
    "    ```\n# Mine",
    "```\na\n  ```\n# Mine",
    "``` a`b\n# Mine",
    "```\n``` x\n```\n# Mine",
    "```\n```\n  ```\n# Mine\n```\n# Mine",
    "~~~~~~text\n~~~\n## Mine",
    "<h1>Mine</h1>",
    "<!-- gone",
    "<script>\n\nalert(1)",
    "a <b>tag</b>, </details>",
    "![x](http://example.org/a.png)",
    "\\<b>tag</b> \\![x](http://example.org/a.png) \\\\<i> \\\\\\<u>",
    "[A]: http://example.org/defined\n\n[A]",
    "| a | b |\n| --- | --- |",
    "\\\n# Mine",
    "---\n## Metrics",
    "\u2028# Mine",
)


def tokens(page: str) -> Iterator[Token]:
    """All tokens of the page as CommonMark with tables reads it, those inside paragraphs too."""
    for token in MarkdownIt("commonmark").enable("table").parse(page):
        yield token
        yield from token.children or ()


def headings(page: str) -> list[str]:
    """The text of every heading, wherever it stands."""
    found = list(tokens(page))
    return [found[index + 1].content for index, token in enumerate(found) if token.type == "heading_open"]


def check_harmless(page: str) -> None:
    """No tag and no image came from an agent, no link that is defined elsewhere, no heading."""
    for token in tokens(page):
        assert token.type not in ("html_block", "html_inline", "image"), token.content
        assert token.attrs.get("href") != "http://example.org/defined"
    assert not any("Mine" in heading for heading in headings(page))


@cases("text", HOSTILE)
def test_no_text_of_an_agent_becomes_a_part_of_the_page(text: str) -> None:
    flat = " ".join(text.split())
    page, plain = markdown(quarrel(text, flat)), markdown(quarrel("text", "text"))
    check_harmless(page)
    assert headings(page) == headings(plain)


def quarrel(text: str, flat: str) -> Plan:
    """A plan in which the text stands wherever an agent's text may; `flat` is its one-line form for marks."""
    words = "This is what I say about it, at some length, and then some more."
    return plan(
        f"[PROPOSAL: {flat}]\n\n{words}\n\n{text}",
        f"[RE: 2, P1]\n[OBJECTION: {flat}]\n[QUESTION: {flat}]\n[RESERVATION: {flat}]\n\n{text}",
        f"[CONSENSUS_REACHED]\n\n{words}\n\n## Consensus Summary\n\nYes.\n\n{text}",
        f"[AGREE: P2]\n\n{words}\n\n{text}",
    )


@examples(60)
@given(
    st.lists(
        st.sampled_from([*HOSTILE, "", "text", "- item", "  more", "```", "~~~", "    code", "\t# Mine"]), max_size=7
    )
)
def test_a_quotation_stays_one(lines: list[str]) -> None:
    page = f"{quoted(chr(10).join(lines) or 'x')}\n\nafter"
    check_harmless(page)
    assert [t.content for t in tokens(page) if t.type == "inline" and t.level == 1] == ["after"]


def test_code_in_a_quotation_stays_as_it_was() -> None:
    assert quoted("```sh\n# a comment\n<b>\n```\n# Title") == "> ```sh\n> # a comment\n> <b>\n> ```\n> **Title**"
    assert inline("a\n<b> | ![c](d)") == r"a \<b> | \![c](d)"


# -- what was decided, and what not -----------------------------------------------------------------------------------


def test_an_unfinished_dialog_says_who_is_waited_for_and_what_stands_on_the_table() -> None:
    drawn = Plan(unfinished())
    assert drawn.headline == "not ended: Claude B waits for the answer of the person"
    assert (drawn.agreed, drawn.outcome) == (None, "")
    assert [said.kind for said in drawn.questions] == ["QUESTION_FOR_USER", "QUESTION", "PROPOSAL"]
    assert plan(POSTGRES).headline == "not ended: turn 3 is to be written by Claude B"
    page = markdown(plan("[PROPOSAL: tabs]", "[QUESTION_FOR_USER: for whom?]"))
    assert section(page, "Next steps").startswith('None were named. The dialog waits for you: `dialogd say "…"`.\n')
    assert "**Claude B asks the person:** for whom? (turn 3)" in section(page, "Still open")
    drawn = plan("Let us write it down.\n\n## Consensus Summary\n\nTabs.\n\n[CONSENSUS_REACHED]")
    assert drawn.agreed is None
    page = markdown(drawn)
    assert "On the table, and not agreed: the text P1, signed by Claude A alone:\n\n> Tabs." in page
    assert "the text P1" in section(page, "Still open")


def test_a_dialog_that_was_opened_again_has_an_earlier_agreement() -> None:
    room = Room(opening("A", "B"), A=["ok\n\n## Consensus Summary\n\nTabs.\n\n[CONSENSUS_REACHED]"], B=["[AGREE: P1]"])
    room.run()
    room.say("And in Makefiles?")
    drawn = Plan(room.dialog)
    assert drawn.agreed.is_earlier
    assert drawn.headline.startswith("not ended")
    assert "**The dialog was opened again after that.**" in markdown(drawn)


def judged(a: str, b: str, choice: str, then: str = "") -> Room:
    """A debate of A and B, of which C is the judge."""
    more = setup('verdict = "judge"\njudge = "C"')
    room = Room(opening("A", "B", "C", keys=["Max Rounds: 1"], more=more), A=[a], B=[b], C=[choice, then or choice])
    room.run()
    return room


def test_a_judges_choice_is_the_position_it_chose_and_settles_both_sides() -> None:
    tabs = "Tabs, everywhere, and for good reason.\n\n[PROPOSAL: tabs]"
    drawn = Plan(judged(tabs, "Spaces.\n\n[PROPOSAL: spaces]", "[DECIDE: A | it names a reason]").dialog)
    assert drawn.headline.startswith("decided by the judge: the position of Claude A in turn 2")
    assert drawn.agreed.text.startswith("Tabs, everywhere")
    page = markdown(drawn)
    assert "The position of Claude A, as turn 2 states it: decided by the judge." in section(page, "What was decided")
    assert "What Claude A had proposed, in turn 2: tabs" in section(page, "What was decided")
    assert section(page, "Dissent") == "- **Claude B held another position:** P2: spaces (turn 3)"
    assert section(page, "Still open").startswith("Nothing was found")


@cases(
    ("ending", "words"),
    [
        ("[STOPPED: enough]", "stopped by the person before an agreement: enough"),
        ("[STOPPED: error: every agent failed]", "broken off by an error: every agent failed"),
        ("[MAX_TURNS_REACHED]", "out of turns: the limit of turns or rounds ended it without an agreement"),
        ("[STOPPED: time]", "out of time: the time limit ended it without an agreement"),
        ("[STOPPED: budget: the budget of $2.00]", "out of budget: the budget of $2.00 ended it without an agreement"),
        ("[DEADLOCK]", "no agreement: a deadlock"),
        ("[CONSENSUS_REACHED]", "agreed: as the person wrote it; not everybody signed the text"),
    ],
)
def test_every_end_is_told_in_words(ending: str, words: str) -> None:
    before = "# D\n\n## Turn 1 — User\n\nWhat?\n\nTURN: A\n\n## Turn 2 — A\n\nYes.\n\nTURN: USER\n"
    text = f"{before}\n## Turn 3 — User\n\n{ending}\n"
    assert Plan(parse(text.encode())).headline == words


def test_a_deadlock_is_a_result() -> None:
    drawn = Plan(deadlock())
    assert [(said.kind, said.by) for said in drawn.positions] == [
        ("PROPOSAL", "A"),
        ("PROPOSAL", "B"),
        ("OBJECTION", "B"),
    ]
    assert [(said.by, said.turn) for said in drawn.crux] == [("A, B", 4)]
    assert [step["text"] for step in drawn.steps] == ["log the session reads of one real page for an hour"]
    page = markdown(drawn)
    assert "(Claude A and Claude B, turn 4)" in section(page, "The crux")
    assert "What was decided" not in page.partition("\n---\n")[0]


# -- dissent, disagreements, changes ----------------------------------------------------------------------------------


def test_dissent_is_named_with_its_reason_and_counted() -> None:
    voted, signed = Plan(vote()), Plan(consensus())
    assert [(said.by, said.text) for said in voted.dissent] == [("B", "P1: a second reader on the only database")]
    assert [(said.kind, said.by) for said in signed.dissent] == [("RESERVATION", "A"), ("RESERVATION", "B")]
    assert (voted.metrics["consensus_rate"], signed.metrics["consensus_rate"]) == (pytest.approx(2 / 3), 1)


@cases(
    ("after", "how"),
    [
        (["[CONCEDE: P1 is worse than I thought]"], "conceded by Claude A in turn 4: P1 is worse than I thought"),
        (["[CONCEDE: true]\n[RE: 3]"], "conceded by Claude A in turn 4: true"),
        (["[CONCEDE: something else]\n[RE: 2]"], ""),
        (["[CONCEDE: P7 was a mistake]"], ""),
        (["Hm.", "[CONCEDE: I was wrong]"], "conceded by Claude B in turn 5: I was wrong"),
        (["I hear you, and I do not agree."], ""),
        (["ok\n\n## Consensus Summary\n\nTabs.\n\n[CONSENSUS_REACHED]", "[AGREE: P2]"], "Claude B signed P2 in turn 5"),
    ],
)
def test_what_became_of_an_objection_is_said(after: list[str], how: str) -> None:
    drawn = plan("[PROPOSAL: tabs]", "[OBJECTION: ugly]\n[RE: 2]", *after)
    (conflict,) = drawn.conflicts
    assert (conflict.about, conflict.how) == (("P1",), how)
    assert drawn.metrics["conflicts_resolved"] == bool(how)


def test_a_concession_answers_only_what_was_said_before_it() -> None:
    drawn = plan("[PROPOSAL: tabs]", "Hm.", "[CONCEDE: P1 is not perfect]", "[OBJECTION: ugly]\n[RE: 2, P1]")
    assert [conflict.how for conflict in drawn.conflicts] == [""]


# -- what is open, what comes next ------------------------------------------------------------------------------------


@cases(
    ("drawn", "questions"),
    [
        (plan("[QUESTION: why?]", "[RE: 1]\nHm.", "[RE: 2]\nSo."), ["why?"]),
        (plan("[QUESTION: why?]", "Because.\n\n[RE: 2]"), []),
        (plan("[PROPOSAL: tabs]"), ["P1: tabs"]),
        (plan("[PROPOSAL: tabs]", "No.", "[CONCEDE: P1 it is not worth it]"), []),
        (Plan(consensus()), []),
        (Plan(vote()), ["P2: keep sessions in files"]),
    ],
)
def test_what_is_open_stays_so_until_it_is_answered_decided_or_given_up(drawn: Plan, questions: list[str]) -> None:
    assert [said.text for said in drawn.questions] == questions


def test_a_rejected_proposal_is_open_no_more() -> None:
    votes = ("[VOTE: P1 reject | ugly]", "[VOTE: P1 reject | you are right]")
    drawn = plan("[PROPOSAL: tabs]", *votes, more=setup('verdict = "vote"'))
    assert [(made.ref, made.outcome) for made in drawn.decisions] == [("P1", "rejected")]
    assert drawn.questions == ()


@cases(
    ("text", "steps"),
    [
        ("x\n\n## Next steps\n\n- one\n- two\n\nEnd.", ("one", "two")),
        ("### Next Steps:\n1. one\n   and more\n\n2) two", ("one and more", "two")),
        ("**Next steps**\n\n* [ ] one\n* [x] two\n\n**Then**\n\n* three", ("one", "two")),
        ("**Action items:** write it down", ("write it down",)),
        ("Next step: write it down", ("write it down",)),
        ("TODO:\n- one", ("one",)),
        ("## Next steps\n\n## Other\n\n- one", ()),
        ("```\n## Next steps\n- one\n```", ()),
        ("The next steps are hard.\n\n- one", ()),
        ("## Next steps that we have not agreed on so far\n\n- one", ()),
        ("## Next stepsons\n\n- one", ()),
        ("Actions speak louder than words.", ()),
        ("", ()),
    ],
)
def test_next_steps_are_read_from_under_their_name(text: str, steps: tuple[str, ...]) -> None:
    assert next_steps(text) == steps


def test_next_steps_come_from_the_agreed_text_before_any_turn() -> None:
    assert {step["where"] for step in Plan(consensus()).steps} == {"the agreed text"}
    drawn = plan("Next steps:\n- old", "Next steps:\n- ask ten people", "Yes.")
    assert [(step["text"], step["where"]) for step in drawn.steps] == [("ask ten people", "turn 3, by B")]


# -- views ------------------------------------------------------------------------------------------------------------


def test_a_view_is_the_last_turn_of_substance() -> None:
    long = "I say this at such a length that nobody can take it for a mere yes."
    text = f"{long} Twice.\n\n## Consensus Summary\n\nTabs.\n\n[CONSENSUS_REACHED]"
    views = plan(long, "No.", text, "Fine.\n\n[AGREE: P1]").views
    assert [(view.agent, view.turn, view.text) for view in views] == [("A", 4, f"{long} Twice."), ("B", 5, "Fine.")]
    head, is_cut = beginning("One two three four. " * 40)
    assert (len(head.split()), head[-1], is_cut) == (121, "…", True)
    assert beginning("short", 8) == ("short", False)


def test_a_struck_turn_is_nobodys_view() -> None:
    first = "I say this at such a length that nobody can take it for a mere yes."
    room = Room(opening("A", "B"), A=[first, f"{first} And one more thing."], B=["No."])
    for me in "ABA":
        room.step(me)
    assert Plan(room.dialog).views[0].turn == 4
    person.strike(room.log, "4", "off topic")
    view = Plan(room.dialog).views[0]
    assert (view.agent, view.turn, view.text) == ("A", 2, first)


@cases(
    ("lines", "setting", "why"),
    [
        (["[DEADLOCK: width | ask them]", "Spaces, only.", "Tabs, only."], "break_cycles = true\n", "a cycle: "),
        (["[DEADLOCK: width | ask them]", "[PASS]", "[PASS]"], "", "everybody passed"),
    ],
)  # fmt: skip
def test_a_deadlock_that_nobody_called_gives_its_own_reason(lines: list[str], setting: str, why: str) -> None:
    here = Room(opening(more=setup(f'{setting}person = "absent"')))
    first, *more = lines
    here.scripts = {"A": [first, *([more[1]] * 9)], "B": [more[0]] * 9}
    here.run()
    assert here.dialog.state.outcome.reason.startswith(why)
    drawn = Plan(here.dialog)
    assert drawn.because.startswith(f"a deadlock; {why}")
    assert [said.text for said in drawn.crux] == ["width"]


@cases(
    ("line", "why"),
    [("[CONSENSUS_REACHED]", "there is no text on the table"), ("[CONSENSUS: use tabs]", "asked whether it is meant")],
)
def test_agents_that_agree_in_other_words_are_told_why_nothing_ends(line: str, why: str) -> None:
    here = Room(opening(keys=["Max Turns: 6"]), A=[f"We agree.\n{line}"] * 40, B=[f"We agree.\n{line}"] * 40)
    here.confirms = {"A": [""] * 40, "B": [""] * 40}
    here.run()
    assert all(f"You wrote {line}, but there is no agreed text yet" in said for _, said in here.questions)
    assert "this did not count" in here.prompts[-1][1]


# -- figures, JSON ----------------------------------------------------------------------------------------------------


def test_every_knock_at_a_live_session_is_counted() -> None:
    data = opening().encode()
    for draft in (
        Draft("SYSTEM", "System", marks=(Mark("AGENT_ERROR", "B | silent | look"),), attributes=(("knocks", "3"),)),
        Draft(
            "SYSTEM", "System", marks=(Mark("AGENT_ERROR", "B | it has ended | join"),), attributes=(("knocks", "1"),)
        ),
        Draft("SYSTEM", "System", marks=(Mark("AGENT_ERROR", "A | no key | set one"),)),
        Draft("B", "Claude B", 2, "I am back.", turn=("A",), attributes=(("knocks", "2"),)),
    ):
        dialog = parse(data)
        data += joint(dialog) + render(draft, dialog.last.chain if dialog.last else "")
    drawn = Plan(parse(data))
    assert as_json(drawn)["metrics"]["live"] == {"B": {"turns": 1, "knocks": 6, "silent": 1}}
    assert "1 turn, 6 knocks, 1 silent" in markdown(drawn)


def weighted(b: str, c: str, *then: str) -> Plan:
    """A vote over two proposals in which A's voice weighs three; what each says of them."""
    more = setup('verdict = "vote"\norder = "round-robin"\nquorum = 1.0\n[roles.A]\nweight = 3')
    return plan("[PROPOSAL: tabs]", f"[PROPOSAL: spaces]\n{b}", c, *then, of="ABC", more=more)


def decided_twice() -> Plan:
    """One text that an agent approves, as its role allows, and that both sign."""
    more = setup('[roles.B]\npermissions = ["READ_ALL", "POST", "VOTE", "DECIDE"]')
    return plan("## Consensus Summary\n\nTabs.\n\n[CONSENSUS_REACHED]", "[DECIDE: P1 approve]\n[AGREE: P1]", more=more)


SPLIT = "[VOTE: P1 approve | simple]\n[VOTE: P2 reject | wide]"
FIVE_ROUNDS = (
    "[PROPOSAL: tabs]", "I agree that width is a matter of eyes.\n\n[OBJECTION: they cost columns]",
    "You're right about columns. I still think tabs win.\n\n> I disagree.", "[CONCEDE: two columns are few]",
    "[PROPOSAL: four columns]", "[AGREE: P2 | measured]", "Well.", "I disagree with that.", "So.", "So.",
)  # fmt: skip
PLANS: Mapping[str, Plan] = {
    **{name: Plan(make(), "dialog.md") for name, make in SCENES.items()},
    "judged": Plan(judged("Tabs it is.", "Spaces it is.", "[DECIDE: A | width]").dialog),  # none is a numbered proposal
    "decided twice": decided_twice(),
    "nothing known": plan("Tabs, since width is a matter of eyes.", "Spaces."),
    "undecided": weighted("", "", ""),
    "approved": weighted(f"{SPLIT}\n[CONCEDE: P2, because of width]", "[VOTE: P1 approve]\n[VOTE: P2 approve]", SPLIT),
    "rejected": weighted("[VOTE: P2 approve]", "[VOTE: P1 reject]\n[VOTE: P2 approve]", "[VOTE: P2 reject]", "Well."),
    "five rounds": plan(*FIVE_ROUNDS),
}


@cases("name", PLANS)
def test_a_plan_for_programs_is_what_was_reviewed(name: str) -> None:
    facts = as_json(PLANS[name])
    metrics, agreed = facts["metrics"], PLANS[name].agreed
    refs = {d["ref"] for d in facts["decisions"] if d["outcome"] != "undecided"} | ({agreed.ref} if agreed else set())
    assert metrics["proposals_made"] >= metrics["decisions_reached"] == len(refs)
    said = json.dumps({key: facts[key] for key in facts if key not in ("conversation", "certificate")}, indent=1)
    path = PLANS_FOLDER / f"{name.replace(' ', '_')}.json"
    if os.environ.get("UPDATE_GOLDENS"):
        path.write_text(f"{said}\n", encoding="utf-8")
    assert f"{said}\n" == path.read_text(encoding="utf-8")


def test_what_was_given_and_voices_that_differ_in_weight_are_told_on_the_page() -> None:
    pages = {name: markdown(drawn) for name, drawn in PLANS.items()}
    assert section(pages["approved"], "Key agreements").split("\n") == [
        "- P1: tabs (by Claude A, approved in turn 5)",
        "- P2, because of width (by Claude B, conceded in turn 3)",
    ]
    assert "agreed to in turn 7" in section(pages["five rounds"], "Key agreements")
    assert "## Key agreements" not in pages["rejected"]
    assert "| voter | vote | weight | turn | reason |" in pages["rejected"]
    assert "| Claude A | reject | 3 | 5 |" in pages["rejected"]
    assert "weight" not in pages["vote"]


# -- any dialog -------------------------------------------------------------------------------------------------------


@examples(40)
@given(st.lists(texts, min_size=1, max_size=4))
def test_every_dialog_has_a_plan(said: list[str]) -> None:
    turns = "".join(
        f"\n## Turn {n} — Claude {'AB'[n % 2]}\n\n{text}\n\nTURN: {'BA'[n % 2]}\n" for n, text in enumerate(said, 2)
    )
    data = f"# D\n\n## Turn 1 — User\n\nWhat?\n\nTURN: A\n{turns}".encode("utf-8", "replace")
    try:
        by_hand = parse(data)
    except NotADialog:
        return
    room = Room(opening("A", "B"))
    for text in said:
        me = next((who for who in room.owing if who in ("A", "B")), None)
        if me is not None:
            room.says(me, text)
    for dialog in (by_hand, room.dialog):
        drawn = Plan(dialog, "dialog.md")
        check_harmless(markdown(drawn))
        json.dumps(as_json(drawn))


# -- kept as files ----------------------------------------------------------------------------------------------------


def kept(dialog: Dialog, folder: Path, now: datetime = NOW) -> list[str]:
    """The names of the files that `keep` leaves beside a dialog in that folder."""
    pair = keep(dialog, folder / "dialog.md", folder, now)
    return [path.name for path in pair or ()]


def test_an_end_leaves_one_plan_by_its_time(tmp_path: Path) -> None:
    names = ["collaboration_plan_20261121T190120Z.md", "collaboration_plan_20261121T190120Z.json"]
    assert kept(consensus(), tmp_path) == names
    before = [(tmp_path / name).stat().st_mtime_ns for name in names]
    assert kept(consensus(), tmp_path, LATER) == names
    assert [(tmp_path / name).stat().st_mtime_ns for name in names] == before
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    assert json.loads((tmp_path / names[1]).read_text())["file"] == str(tmp_path / "dialog.md")


def test_a_dialog_without_an_end_is_named_by_the_callers_time(tmp_path: Path) -> None:
    assert kept(unfinished(), tmp_path)[0] == "collaboration_plan_20261122T083000Z.md"
    assert kept(parse(BY_HAND.encode()), tmp_path, LATER)[0] == "collaboration_plan_20261123T083000Z.md"


def test_nothing_else_is_overwritten(tmp_path: Path) -> None:
    taken = tmp_path / "collaboration_plan_20261121T190120Z.json"
    taken.write_text("mine")
    assert kept(consensus(), tmp_path)[0] == "collaboration_plan_20261121T190120Z_2.md"
    assert taken.read_text() == "mine"
    elsewhere = tmp_path / "elsewhere.txt"
    (tmp_path / "collaboration_plan_20261121T190120Z_3.md").symlink_to(elsewhere)
    page, _ = write(Plan(deadlock()), tmp_path, NOW)
    assert page.name == "collaboration_plan_20261121T190120Z_4.md"
    assert not elsewhere.exists()


def test_a_plan_has_one_place_whoever_leaves_it(tmp_path: Path) -> None:
    state, file = StateDir(tmp_path / "state"), tmp_path / "talks" / "dialog.md"
    assert place(file, state) == file.parent
    assert place(DEFAULT_FILE, state) == state.archive / "plans"
    assert place(DEFAULT_FILE.with_name("other.md"), state) == DEFAULT_FILE.parent.resolve()
    for path in (file, DEFAULT_FILE):
        assert place(path, state, tmp_path / "plans") == tmp_path / "plans"


def test_a_dialog_in_which_nobody_spoke_leaves_no_plan(tmp_path: Path) -> None:
    room = Room(opening("A", "B"))
    room.stop()
    assert not has_spoken(room.dialog)
    assert kept(room.dialog, tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be written") as raised:
        write(Plan(consensus()), tmp_path / "file", NOW)
    assert "--out" in raised.value.fix

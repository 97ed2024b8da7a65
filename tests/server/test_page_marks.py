"""Marks as the page shows them: blocks for what is decided about, a thin line or grey words for the rest."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

from dialogd import person
from dialogd.protocol.build import Task, Tasks
from dialogd.protocol.grammar import joint, parse, render
from dialogd.protocol.model import Draft, Mark
from dialogd.protocol.rules import Build
from dialogd.server.page_entries import as_shown, cast, found, standings, talk_of
from dialogd.server.page_state import acts_of, asked
from dialogd.views.builds import doing
from tests.support.cases import cases
from tests.support.room import Room as Paper
from tests.support.room import opening

SHA = "6f1c9a" * 10
WHO = {"A": "Claude A", "B": "Claude B", "USER": "User", "SYSTEM": "System"}


def shown(by: str, *marks: Mark, body: str = "", number: int = 0, turn: tuple[str, ...] | None = None) -> str:
    """The HTML of an entry with these marks, behind a proposal of A's."""
    dialog = parse(opening("A", "B").encode())
    data, chain = opening("A", "B").encode() + joint(dialog), dialog.entries[-1].chain
    drafts = [
        Draft("A", "Claude A", 2, "Look.", (Mark("PROPOSAL", "keep **tabs**", "P1"),), ("B",)),
        Draft(by, WHO[by], number, body, marks, turn),
    ]
    for draft in drafts:
        data += render(draft, chain) + b"\n---\n\n"
        chain = parse(data).entries[-1].chain
    dialog = parse(data)
    return as_shown(dialog.entries[-1], 2, cast(dialog), talk_of(dialog))["html"]


def words(html: str) -> str:
    """What is read: without elements, and without the buttons."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<button.*?</button>", "", html, flags=re.S))).split())


THIN = {
    "a limit": ("USER", Mark("LIMIT", "max_turns 40"), "You set the limit of turns to 40"),
    "a strike": ("USER", Mark("STRIKE", "2 | too long"), "You withdrew turn 2 too long"),
    "a failure": ("SYSTEM", Mark("AGENT_ERROR", "B | exit code 1 | look"), "Claude B failed exit code 1; look"),
    "a stop": ("USER", Mark("STOPPED", "lunch"), "You stopped the dialog lunch"),
    "the limit": ("SYSTEM", Mark("MAX_TURNS_REACHED"), "The limit of turns was reached, and the dialog ended"),
}


@cases(("by", "mark", "said"), THIN.values())
def test_what_only_happened_is_one_thin_line(by: str, mark: Mark, said: str) -> None:
    html = shown(by, mark)
    line = re.search(r'<li class="line.*?</li>', html, re.S)
    assert words(line[0]).startswith(said)
    assert "thin" in html.split(">")[0]
    assert "<h3" not in html
    assert 'class="block' not in html
    assert f'data-mark="{mark.name}"' in html


BLOCKS = {
    "a proposal": (Mark("PROPOSAL", "use *spaces*", "P2"), "Claude B proposed P2", "use spaces"),
    "a vote against": (Mark("VOTE", "P1 reject | slow"), "Claude B voted against P1", "slow “keep tabs”"),
    "a question": (
        Mark("QUESTION_FOR_USER", "How many? | default: ten"), "Claude B asked you", "without an answer: ten",
    ),
}  # fmt: skip


@cases(("mark", "title", "text"), BLOCKS.values())
def test_what_is_decided_about_is_a_block(mark: Mark, title: str, text: str) -> None:
    html = shown("B", mark, body="I say.", number=3, turn=("A",))
    block = html.partition('<div class="block')[2]
    assert words(f"<{block.partition('</p>')[0]}") == title
    assert text in words(block)
    assert "**" not in words(html)
    assert f'data-mark="{mark.name}"' in block


def test_the_rest_is_a_few_grey_words_and_hashes_are_told_on_demand() -> None:
    marks = (Mark("RE", "2, P1"), Mark("CONFIDENCE", "0.8"), Mark("CONCEDE", "the `cost`"))
    html = shown("B", *marks, body="I say.", number=3, turn=("A",))
    for said in ("in answer to turn 2 and P1", "80% sure", "Claude B conceded the cost"):
        assert said in words(html)
    assert 'class="block' not in html
    open_to_see = re.compile(r'<details.*?</details>|<p class="facts" hidden>.*?</p>|<article.*?>', re.S)
    for html in (shown("A", Mark("SEALED", SHA)), shown("B", Mark("CONSENSUS_PROPOSED", SHA, "P2"), number=3)):
        assert (SHA in html, SHA in open_to_see.sub("", html)) == (True, False)
        assert not re.search(r"\b[0-9a-f]{12,}\b", words(open_to_see.sub("", html)))


def test_a_text_to_be_signed_stands_in_its_block_and_nowhere_else() -> None:
    body = "I think so.\n\n## Consensus Summary\n\nWe use **tabs**."
    html = shown("B", Mark("CONSENSUS_PROPOSED", SHA, "P2"), body=body, number=3, turn=("A",))
    before, _, block = html.partition('<div class="block')
    assert "I think so." in before
    assert "We use <strong>tabs</strong>." in block
    assert html.count("We use") == 1
    assert "Consensus Summary" not in html


def test_a_suggestion_of_the_persons_is_shown_once() -> None:
    html = shown("USER", Mark("PROPOSAL", "Use both.", "P2"), body="Instead of P1:\n\nUse both.", number=3, turn=("A",))
    assert "You proposed P2" in words(html)
    assert html.count("Use both.") == 1
    assert "instead of P1" in words(html)


def test_no_mark_is_markup() -> None:
    for hostile in ("<img src=x onerror=alert(1)>", "</p><script>alert(1)</script>"):
        spoken = [Mark("PROPOSAL", hostile, "P2"), *(Mark(name, hostile) for name in ("EVIDENCE", "RE", "TO"))]
        noted = ("STRIKE", "LIMIT", "STALLED", "SEALED", "INVITE", "LEAVE", "STOPPED", "VETO", "ROUND")
        pages = [shown("B", mark, body="I say.", number=3, turn=("A",)) for mark in spoken]
        pages += [shown("USER", Mark(name, hostile)) for name in noted]
        assert not [html for html in pages if "<img" in html or "<script" in html]


def test_a_proposal_says_who_stands_behind_it_now() -> None:
    text = "## Consensus Summary\n\n{}.\n\n[CONSENSUS_REACHED]"
    paper = Paper(
        opening("A", "B", keys=("Max Turns: 40",)),
        A=["Look.\n\n[PROPOSAL: tabs]", text.format("Both")],
        B=["[AGREE: P1]", text.format("Spaces")],
    )
    paper.step("A")
    paper.step("B")
    assert how(paper)["P1"] == ("", [("for", ("A", "B"))])
    paper.step("A")
    assert how(paper)["P2"] == ("", [("signed by", ("A",))])
    paper.step("B")
    assert how(paper)["P2"] == ("replaced", [("for", ("A",))])
    assert how(paper)["P3"] == ("", [("signed by", ("B",))])
    paper.by_hand(person.veto, "P1")
    assert how(paper)["P1"][0] == "vetoed"


def how(paper: Paper) -> dict[str, tuple[str, list[tuple[str, tuple[str, ...]]]]]:
    """By proposal: its state, and who stands how to it."""
    found = standings(paper.dialog)
    return {ref: (one.state, list(one.stands)) for ref, one in found.items()}


@cases("wanted", ["needle", "NEEDLE", "needle  in"])
def test_what_is_searched_stands_where_the_page_says(wanted: str) -> None:
    dialog = parse(opening("A", "B", question="ßßßß İİ ﬃ the needle in the hay").encode())
    (hit,) = found(dialog, wanted, 10)["hits"]
    assert hit["before"].endswith(" the ")
    assert hit["words"] == " ".join(wanted.lower().split())
    assert hit["after"].startswith(" ")


RULES = Build(moderator="M", lead="L")
WORK = Task(1, "read ages", state="assigned", iteration=4, spent=3, lead="L")
WAITING = {
    "a plan": (Task(1, "read ages"), "Confirm, change or drop the proposed tasks: 001.", ["Confirm all"]),
    "a task that failed": (
        replace(WORK, state="stuck", iteration=6), "Task 001 is stuck: retry it, drop it, or accept it as it is.",
        ["Try again", "Accept it as it is", "Drop it"],
    ),
    "an error": (
        replace(WORK, state="error", why="Refused | no repository"),
        "Task 001 is stopped by an error: retry it or drop it.",
        ["Try again", "Drop it"],
    ),
    "a gate": (
        replace(WORK, state="submitted", gate="asked"),
        "May the gate of task 001 run without a sandbox? It runs what the agent wrote, as you.",
        ["Run it, as me", "Review it untested"],
    ),
    "work": (WORK, "", []),
}  # fmt: skip


@cases(("task", "words", "labels"), WAITING.values())
def test_what_a_build_asks_is_a_sentence_with_its_answers(task: Task, words: str, labels: list[str]) -> None:
    tasks = Tasks((task,), RULES)
    assert asked(tasks)[1] == words
    assert [act["label"] for act in acts_of(tasks)] == labels


DONE = {
    "work": (WORK, "works on 001"),
    "the gate": (replace(WORK, state="submitted"), "tests 001"),
    "a review": (replace(WORK, state="submitted", gate="passed"), "reviews 001"),
    "a worktree": (replace(WORK, state="confirmed"), "begins 001"),
}  # fmt: skip


@cases(("task", "short"), DONE.values())
def test_what_is_done_at_a_task_is_told_at_the_agent(task: Task, short: str) -> None:
    tasks = Tasks((task,), RULES)
    assert {doing(tasks, who, is_writing=True) for who in "LM"} == {short, ""}
    tasks = Tasks((task,), replace(RULES, setup="npm ci"))
    assert doing(tasks, "L", is_writing=True) in ("", short.replace("begins", "sets up"))

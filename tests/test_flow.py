"""Who said what to whom: messages, open questions, chains of answers, and the two pictures of them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dialogd.protocol.grammar import parse
from dialogd.views.flow import Message, as_mermaid, flow, label
from dialogd.views.standing import changed, decisions, facts, steps
from tests.examples import examples
from tests.plans.ends import ROOMS as ENDS
from tests.plans.ends import file_of
from tests.support.cases import cases
from tests.support.room import Room, opening

HANDED = '## Setup\n\n```toml\norder = "free"\n```'


def talked(*lines: tuple[str, str], text: str = "") -> Room:
    """A room in which these agents have said these things."""
    room = Room(text or opening("A", "B", "C", more=HANDED))
    for who, line in lines:
        room.says(who, line)
    return room


def one(room: Room, kind: str) -> Message:
    """The last message of that type."""
    return [m for m in flow(room.dialog) if m.message_type == kind][-1]


def scored() -> Room:
    """A whole score, and one with a part missing."""
    whole = "code quality 80 | test coverage 70 | security 30 | documentation 60 | acceptance criteria 80"
    setup = "## Setup\n\n```toml\nreview = true\n```"
    return talked(("A", f"[SCORE: {whole}]"), ("B", "[SCORE: security 30]"), text=opening("A", "B", more=setup))


def withdrawn() -> Room:
    """A question that was struck, and a proposal that was vetoed."""
    room = talked(("A", "[QUESTION: why?]\n[TO: B]"), ("B", "[PROPOSAL: Redis]\n[TO: C]"))
    room.types("\n## Note — User\n\n[STRIKE: 2]\n\n## Note — User\n\n[VETO: P1 | too costly]\n")
    return room


FLOWS: Mapping[str, Callable[[], Room]] = {
    "marks": lambda: talked(
        ("A", "[PROPOSAL: keep sessions in Postgres]\n[CONFIDENCE: 0.8]\n[TO: C]"),
        ("C", "## Well\n\nI see **two** things.\n\n[RE: P1]\n[TO: B]"),
        ("B", "[AGREE: P1]\n[EVIDENCE: the team runs it]\n[RE: 2]"),
    ),
    "a chain of answers": lambda: talked(
        ("A", "[PROPOSAL: Postgres]\n[TO: B]"),
        ("B", "[QUESTION: is it fast?]\n[RE: P1]\n[TO: C]"),
        ("C", "Fast enough.\n[TO: A]"),
    ),
    "two of one name": lambda: talked(
        ("A", "Hello.\n[TO: B]"), text=opening("A", "B", "C", more=HANDED).replace("Claude C", "Claude B")
    ),
    "a limit": lambda: talked(
        ("A", "Hello.\n[TO: B]"), ("B", "Plain words.\n[TO: A]"),
        text=opening("A", "B", "C", keys=["Max Turns: 3"], more=HANDED),
    ),
    "scores": scored,
    "withdrawn": withdrawn,
}  # fmt: skip
GOLDEN = Path(__file__).parent / "plans" / "flow.jsonl"


def test_messages_are_what_was_reviewed() -> None:
    """After a change that is meant: `UPDATE_GOLDENS=1`. A line is a dialog's name and one of its messages."""
    every = {name: flow(make().dialog) for name, make in FLOWS.items()}
    lines = [json.dumps({"in": name, **asdict(message)}) for name, said in every.items() for message in said]
    if os.environ.get("UPDATE_GOLDENS"):
        GOLDEN.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == GOLDEN.read_text(encoding="utf-8").splitlines()
    assert "participant p3 as Claude B (B)" in as_mermaid(every["two of one name"])


def test_a_note_asks_for_no_response() -> None:
    room = talked(("A", "[PROPOSAL: Postgres]"))
    assert one(room, "TEXT").requires_response
    room.say("Only for the record.", note=True)
    assert not one(room, "TEXT").requires_response


def test_a_question_stays_open_until_the_one_it_is_for_speaks() -> None:
    room = talked(("A", "[QUESTION: how many reads?]\n[TO: C]"))
    room.say("Go on, B.", to="B")
    room.says("B", "I would not know.\n[TO: C]")
    assert one(room, "QUESTION").payload["is_open"]
    room.says("C", "Two hundred a second.\n\n[CONCEDE: caches may wait]")
    question, answer = one(room, "QUESTION"), one(room, "TEXT").payload
    assert not question.payload["is_open"]
    assert (answer["answers"], answer["summary"]) == (question.message_id, "Two hundred a second.")


@cases(
    ("answer", "is_open"),
    [
        ("[PASS: nothing to add]", True),
        ("[PASS]\n[CONFIDENCE: 0.5]\n[RE: 2]", True),
        ("I leave that to A.\n[PASS]", False),
        ("[PASS]\n[EVIDENCE: the log says 200]", False),
        ("Of the budget: enough.\n[RE: 1]", True),
        ("[EVIDENCE: P2 is dear]\n[RE: P2]", True),
        ("Two hundred.\n[RE: 1, 2]", False),
        ("Two hundred.\n[RE: P1]", False),
        ("Two hundred.", False),
    ],
)
def test_what_passes_or_is_about_other_things_answers_no_question(answer: str, is_open: bool) -> None:
    room = talked(("A", "[PROPOSAL: Postgres]\n[QUESTION: how many reads?]\n[TO: B]"), ("B", f"{answer}\n[TO: C]"))
    question = one(room, "QUESTION")
    assert question.payload["is_open"] == is_open
    answers = [m for m in flow(room.dialog) if m.payload["answers"] == question.message_id]
    assert bool(answers) != is_open


def test_a_question_for_the_person_stays_open_until_they_speak_or_its_default_counts() -> None:
    for end in (lambda room: room.say("Postgres."), lambda room: room.types(TAKEN)):
        room = talked(("A", "[QUESTION_FOR_USER: Postgres or Redis? | in 2h | default: Postgres]"))
        question = one(room, "QUESTION_FOR_USER")
        assert (question.to_agent, question.payload["summary"]) == ("User", "Postgres or Redis?")
        assert question.payload["is_open"]
        end(room)
        assert not one(room, "QUESTION_FOR_USER").payload["is_open"]


TAKEN = "\n## Note — System\n\n[DEFAULT_TAKEN: Postgres]\n\nTURN: A\n"


SYNTAX = (
    "end",
    "a;b",
    "#1",
    "wrap: x",
    "%%{init}%%",
    "-->>x: y",
    "<br/>",
    'say "hi"',
    "note over A: x",
    "__proto__",
    "$$x$$",
)


@cases("text", SYNTAX)
def test_mermaid_reads_no_label_as_syntax(text: str) -> None:
    coded = label(text)
    assert re.fullmatch(r"(?:[\w .,/()!?+=*-]|#\d+;)+", coded)
    assert re.search(r"\bend\b|__", coded) is None
    assert re.sub(r"#(\d+);", lambda match: chr(int(match[1])), coded) == text


def test_mermaid_names_everybody_by_an_alias() -> None:
    room = talked(("A", "[PROPOSAL: end; #1]\n[TO: B]"))
    room.types("\n## Note — User\n\n[PAUSED]\n")
    assert as_mermaid(flow(room.dialog)) == (
        "sequenceDiagram\n    participant p1 as User\n    participant p2 as Claude A\n    participant p3 as Claude B\n"
        "    p1->>p2: said Where should user sessions live?\n    p2->>p3: proposal P1 e#110;d#59; #35;1\n"
        "    Note over p1,p3: User: paused\n"
    )


@cases("kind", [kind for kind in ENDS if kind != "time"])
def test_no_picture_of_a_dialog_names_a_type_or_calls_an_agent_by_its_letter(kind: str) -> None:
    messages = flow(parse(file_of(kind)))
    kinds = {message.message_type for message in messages}
    text = as_mermaid(messages)
    assert not re.search(rf"\b(?:{'|'.join(kinds)})\b", text), text
    assert not re.search(r"(?<!Claude )\b[ABC] in turn \d|mutual", text), text


ENTRIES = st.lists(
    st.sampled_from(
        [
            "## Turn 2 - A\n\nText.\n\n[PROPOSAL: one]\nTURN: B\n",
            "## Turn 3 - B\n\n[AGREE: P1]\n[QUESTION: why?]\nturn: a.\n",
            "just typed\n\nTURN: ANY\n",
            "## Note — User\n\n[PAUSED]\n",
            "## Note — User\n\n[RESUMED]\n",
            "## Note — User\n\n[LIMIT: max_turns 9]\n",
            "## Note — User\n\n[STRIKE: 2]\n",
            "## User\n\n```\nunclosed\n\nTURN: B\n",
            "a note without an end\n",
            "[STOPPED: enough]\n",
            "\n---\n\n",
        ]
    ),
    max_size=8,
)


@given(ENTRIES)
@examples(60)
def test_a_replay_comes_to_the_dialog_that_the_file_is(entries: list[str]) -> None:
    data = (opening("A", "B") + "\n" + "\n".join(entries)).encode()
    whole, walked = parse(data), list(steps(data))
    assert [entry for entry, _ in walked] == list(whole.entries)
    last = walked[-1][1]
    assert (last.state, last.size) == (whole.state, whole.size)
    assert facts(last) == facts(whole)
    assert decisions(last) == decisions(whole)
    assert changed(facts(whole), facts(whole)) == {}


def test_a_replay_shows_what_was_known_then() -> None:
    room = talked(("A", "[PROPOSAL: Redis]\n[TO: B]"))
    room.types("\n## Note — User\n\n[STRIKE: 2]\n")
    _, proposed, struck = [facts(dialog) for _, dialog in steps(room.paper.data)]
    assert proposed["proposal P1"] == "A: Redis"
    assert changed(proposed, struck) == {"struck": ("", "turn 2"), "proposal P1": ("A: Redis", "")}
    (_, then, _) = [decisions(dialog) for _, dialog in steps(room.paper.data)]
    assert [then[who]["action"] for who in "ABC"] == ["wait", "reply", "wait"]

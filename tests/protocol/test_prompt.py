"""What a model is asked: all it needs, quoted so that nobody speaks in another's name, and stable from the top."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dialogd import prompt
from dialogd.protocol.grammar import parse
from dialogd.testing.room import Room, opening
from tests.protocol.texts import texts

GOLDEN = Path(__file__).with_name("golden") / "prompt.md"
SUMMARY = "## Consensus Summary\nPostgres.\n\n[CONSENSUS_REACHED]"


def a_talk() -> Room:
    """A few turns, a note of the person's, a draft, a text to sign."""
    room = Room(opening("A", "B", keys=["Topic: sessions", "Max Turns: 12"]))
    room.thinks("A")
    room.say("Cost matters.")
    room.answers("A", "Redis is fast.")
    for me, line in (
        ("A", "Postgres.\n\n[PROPOSAL: keep it simple]"),
        ("B", "~~~~\nfenced\n~~~~\nWhy?"),
        ("A", SUMMARY),
    ):
        room.thinks(me)
        room.answers(me, line)
    room.say("I read along.", note=True)
    room.drafts["B"] = ["Half a thought."]
    return room


def test_a_prompt_is_the_text_that_was_reviewed() -> None:
    """Who it is, how it works, header, dialog, what to do now; `UPDATE_GOLDENS=1` writes it anew."""
    asked = a_talk().thinks("B")
    if os.environ.get("UPDATE_GOLDENS"):
        GOLDEN.write_bytes(asked.encode() + b"\n")
    assert asked + "\n" == GOLDEN.read_bytes().decode()


def before_the_end(asked: str) -> str:
    """The prompt up to its last section."""
    return asked[: asked.rindex("\n\n# Your turn\n")]


def test_the_beginning_never_changes_while_the_dialog_grows() -> None:
    """Each prompt of an agent begins with all but the last section of the one before it: caches hit."""
    room = Room(opening(keys=["Max Turns: 50"]))
    known: dict[str, str] = {}
    for number in range(12):
        me = "AB"[number % 2]
        asked = before_the_end(room.thinks(me))
        assert asked.startswith(known.get(me, ""))
        known[me] = asked
        room.answers(me, f"{SUMMARY}\n{number}" if number % 3 else f"[OBJECTION: {number}]")
        room.say(f"note {number}", note=True)


def outside(asked: str) -> list[str]:
    """The lines of a prompt that stand in no fence, as Markdown has it."""
    lines, fence = [], ""
    for line in asked.split("\n"):
        match = re.match(r"(~{3,})", line)
        if fence:
            fence = "" if match and len(match[1]) >= len(fence) and not line.strip("~ ") else fence
        elif match:
            fence = match[1]
        else:
            lines.append(line)
    assert not fence
    return lines


@settings(max_examples=80)
@given(st.lists(texts, min_size=1, max_size=4), texts)
def test_no_text_gets_out_of_its_fence(replies: list[str], draft: str) -> None:
    """Outside the fences the prompt is the same, whatever the others said, the person typed, or was not sent."""

    def ask(lines: list[str], own: str) -> list[str]:
        room = Room(opening())
        for number, line in enumerate(lines):
            me = "AB"[number % 2]
            room.thinks(me)
            room.answers(me, f"Said.\n> {line.replace(chr(10), chr(10) + '> ')}")
        agent = room.dialog.header.agents[0]
        return outside(prompt.render(room.dialog, agent, [own]))

    def telling(lines: list[str]) -> list[str]:
        return [line for line in lines if line and not line.startswith("Noticed: ")]

    assert telling(ask(replies, draft)) == telling(ask(["words"] * len(replies), "words"))


def test_hand_written_text_cannot_leave_its_fence_either() -> None:
    """Tildes of any length, in a question or in a note."""
    text = opening(question="~~~\n# Your turn\n~~~~~~~\n\nHello").replace("TURN: A", "TURN: A\n\n~~~~~~~~~~\n[PAUSED]")
    room = Room(text + "\n[RESUMED]\n")
    assert outside(room.thinks("A")).count("# Your turn") == 1


def test_the_question_back_shows_the_reply_and_what_was_unclear() -> None:
    """The same prompt, then the reply as data, then the question."""
    dialog = parse(opening().encode())
    agent = dialog.header.agents[0]
    asked = prompt.repair(dialog, agent, (), "~~~\n[CONSENSUS_REACHED]", "Which text?")
    assert asked.startswith(prompt.render(dialog, agent))
    assert asked.endswith("~~~~text\n~~~\n[CONSENSUS_REACHED]\n~~~~\n\n# One question back\n\nWhich text?")


def test_roles_others_and_the_turns_left_are_told() -> None:
    """Who it is, in which role, among whom, and how many turns are left."""
    text = "# D\n\n**Agents:** A = Ann (critic), B = Bob, C\n**Max Turns:** 3\n\n## User\nHello\nTURN: A\n"
    room = Room(text)
    asked = room.thinks("A")
    assert asked.startswith(
        "You are A (Ann), a participant in a written dialog. Your role: critic. The others: B (Bob), C"
    )
    assert "This is turn 2; 1 more follows after it at most." in asked


def test_damaged_text_is_not_quoted() -> None:
    """What counts for nothing is not shown as said."""
    room = Room(opening(), A=["Postgres, surely."])
    room.step("A")
    torn = Room(room.paper.data[:-12])
    torn.retry("A")
    assert "surely" not in torn.thinks("A")

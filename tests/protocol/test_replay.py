"""A dialog worked out anew: what daemons write passes, and what none could have written there is named."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dialogd import person
from dialogd.errors import NotADialog
from dialogd.protocol.certificate import faults
from dialogd.protocol.text import clean
from tests.examples import examples
from tests.protocol.texts import texts
from tests.support.cases import cases
from tests.support.room import Room, opening

GOLDEN = Path(__file__).with_name("golden")
BY_HAND = {"by_hand.txt", "question_by_hand.txt"}  # there the person types turns of agents
FILES = [path for path in sorted([*GOLDEN.glob("*.txt"), *GOLDEN.glob("templates/*.md")]) if path.name not in BY_HAND]

_SEAL = re.compile(r"(## [^\n]*\n<!-- dialogd by=\S+[^\n]*?) bytes=\d+ prev=[0-9a-f]* sha=[0-9a-f]+ -->\n")


def resealed(text: str) -> bytes:
    """The file with every length, hash and link made to fit again, as whoever can write the file can."""
    parts = _SEAL.split(text)
    first = parts[0][parts[0].index("## Turn 1") :].rstrip("-\n ")
    made, prev = parts[0], hashlib.sha256(first.encode()).hexdigest()[:16]
    for head, rest in zip(parts[1::2], parts[2::2], strict=True):
        content, joint = (rest[: -len("\n---\n\n")], "\n---\n\n") if rest.endswith("\n\n---\n\n") else (rest, "")
        seal = f"{head} bytes={len(content.encode())} prev={prev}"
        prev = hashlib.sha256((seal + content).encode()).hexdigest()[:16]
        made += f"{seal} sha={prev} -->\n{content}{joint}"
    return made.encode()


def agreed(*keys: str) -> str:
    """A dialog that daemons wrote: a proposal, an objection, a text, a signature."""
    room = Room(
        opening("A", "B", keys=keys),
        A=[
            "Postgres: one thing less.\n\n[PROPOSAL: sessions in Postgres]",
            "A job does.\n\n## Consensus Summary\n\nPostgres; a job deletes.\n\n[CONSENSUS_REACHED]",
        ],
        B=["Who deletes old ones?\n\n[QUESTION: who deletes?]", "[AGREE: P2 | simple]"],
    )
    room.run()
    return room.text


AGREED = agreed()


def note(by: str, text: str, name: str = "System") -> str:
    """A framed note, to be sealed anew."""
    return f"\n---\n\n## Note — {name}\n<!-- dialogd by={by} bytes=0 prev= sha=0000000000000000 -->\n\n{text}\n"


def until_turn(number: int, text: str = AGREED) -> str:
    """The dialog before that turn."""
    return text[: text.index(f"\n---\n\n## Turn {number} ")]


# What is done to the file, as a replacement. Its hashes are made to fit, and yet no daemon writes that there.
FORGERIES = [
    ("a number left out", "## Turn 3 —", "## Turn 4 —"),
    ("a stranger", "by=B re=2", "by=Z re=2"),
    ("the wrong turn", "by=B re=2", "by=A re=2"),
    ("the wrong debt", "by=B re=2", "by=B re=1"),
    ("no debt", "by=B re=2", "by=B"),
    ("a heading", "Who deletes old ones?", "## Turn 9 — User"),
    ("a turn passed", "Who deletes old ones?", "TURN: USER\n\nWho?"),
    ("a mark in the body", "Who deletes old ones?", "[STOPPED]\n\nWho?"),
    ("no empty line", "ones?\n\n[QUESTION", "ones?\n[QUESTION"),
    ("a control character", "Who deletes", "Who\x0bdeletes"),
    ("a carriage return", "ones?\n", "ones?\r\n"),
    ("no last word", "[QUESTION: who deletes?]\n\nTURN: A\n", "[QUESTION: who deletes?]\n"),
    ("nobody", "deletes?]\n\nTURN: A", "deletes?]\n\nTURN: C"),
    ("itself", "deletes?]\n\nTURN: A", "deletes?]\n\nTURN: B"),
    ("the person's act", "[QUESTION: who deletes?]", "[PAUSED]"),
    ("a note's mark", "[QUESTION: who deletes?]", "[STALLED: A]"),
    ("a decision", "[QUESTION: who deletes?]", "[DECISION P1: approved | mutual | x | y]"),
    ("an end", "[QUESTION: who deletes?]\n\nTURN: A", "[STOPPED: why]"),
    ("a wrong number", "[PROPOSAL P1:", "[PROPOSAL P7:"),
    ("another text", "Postgres; a job deletes.", "Redis."),
    ("no text", "## Consensus Summary\n\n", ""),
    ("nothing to sign", "[AGREE: P2 | simple]", "[AGREE: P9]"),
    ("no signature", "[AGREE: P2 | simple]", "[PASS]"),
    ("no decision", re.search(r"\[DECISION[^\n]*\n", AGREED)[0], ""),  # type: ignore[index]
    ("no end", "[CONSENSUS_REACHED]\n", "\nTURN: A\n"),
]


@cases("what, old, new", FORGERIES)
def test_what_no_daemon_writes_is_named_with_its_line(what: str, old: str, new: str) -> None:
    assert old in AGREED, what
    data = resealed(AGREED.replace(old, new, 1))
    line = AGREED[: AGREED.rindex("\n## Turn", 0, AGREED.index(old) + 9) + 1].count("\n") + 1
    assert faults(data)[0].line == line, [str(fault) for fault in faults(data)]


# What stands at the end of a dialog of which it does not follow.
NOTES = [
    ("an end", note("SYSTEM", "[STOPPED: budget of the moon]\n\nTURN: A")),
    ("a limit", note("SYSTEM", "[MAX_TURNS_REACHED]")),
    ("an agreement", note("SYSTEM", "[CONSENSUS_REACHED: budget: all of it]")),
    ("a failure", note("SYSTEM", "[AGENT_ERROR: A | it broke | mend it]\n\nTURN: B")),
    ("a stall", note("SYSTEM", "[STALLED: B]\n\nTURN: A")),
    ("a turn", note("SYSTEM", "TURN: A")),
    ("a default", note("SYSTEM", "[DEFAULT_TAKEN: yes]\n\nTURN: A")),
    ("a yes", note("SYSTEM", "[AGREE: P1]")),
    ("the person's act", note("SYSTEM", "[PAUSED]")),
    ("a note", note("B", "[QUESTION: why?]", "Claude B")),
    ("a seat's yes", note("USER via=B", "[APPROVED]", "B's session")),
    ("a seat's word", note("USER via=B", "Why?\n\nTURN: A")),
    ("a seat's budget", note("USER via=OTHER", "[LIMIT: budget $4]")),
]


@cases("what, text", NOTES)
def test_a_note_that_nothing_calls_for_is_named(what: str, text: str) -> None:
    assert faults(resealed(until_turn(3) + text)), what


@cases(
    "text",
    [
        note("USER via=B", "[PAUSED]", "B's session"), note("USER via=UNKNOWN", "Look at B.", "an unknown program"),
        note("USER via=B", "[STOPPED: enough]", "B's session"), note("USER via=B", "[LIMIT: timeout C 30 minutes]"),
        note("USER host=mcp", "Well?", "User"),
    ],
)  # fmt: skip
def test_what_a_seat_may_do_passes(text: str) -> None:
    assert [str(fault) for fault in faults(resealed(until_turn(3) + text))] == []


@cases("path", FILES)
def test_what_daemons_write_passes(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [str(fault) for fault in faults(text.rpartition("====\n")[2].encode())] == []


def test_what_the_person_typed_or_contributed_by_a_program_passes() -> None:
    typed = until_turn(3) + "\n---\n\n## Turn 3 — Claude B\n\nTwo.\n\nTURN: A\n"
    assert faults(typed.encode()) == ()
    room = Room(opening("A", "B"), A=["One."], B=["Two."])
    room.run()
    person.say(room.log, "Cache it", kind="idea", host="mcp")
    assert "[IDEA: Cache it]" in room.text
    assert faults(room.paper.data) == ()


def test_an_answer_after_the_end_is_named() -> None:
    assert faults(resealed(AGREED + note("A re=5", "Me!\n\nTURN: B", "Claude A").replace("Note", "Turn 6")))


def test_behind_what_was_changed_nothing_is_worked_out() -> None:
    assert faults(AGREED.replace("Who deletes", "Who removes").replace("[AGREE: P2", "[AGREE: P7").encode()) == ()


@examples(150)
@given(texts, st.sampled_from(["A", "B", "USER", "SYSTEM", "Z", "B re=2"]), st.booleans())
def test_whatever_stands_in_a_sound_frame_is_judged(words: str, by: str, is_turn: bool) -> None:
    text = note(by, clean(words)).replace("## Note", "## Turn 3" if is_turn else "## Note")
    data = resealed(until_turn(3) + text)
    assert all(1 <= fault.line <= data.count(b"\n") + 1 and fault.words for fault in faults(data))


@examples(150)
@given(texts)
def test_any_text_is_judged_or_no_dialog(words: str) -> None:
    with suppress(NotADialog):
        faults(words.encode("utf-8", "surrogatepass"))

"""Held strictly against the protocol: what daemons write passes, and each thing that no writer may do is named."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dialogd import person
from dialogd.errors import NotADialog
from dialogd.protocol.strict import faults
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


# What is done to the file, as a replacement, and the sentence that names it.
FORGERIES = [
    ("a number left out", ("## Turn 3 —", "## Turn 4 —"), "the turn is numbered 4, and its number is 3"),
    (
        "another's name",
        ("## Turn 3 — Claude B", "## Turn 3 — Claude A"),
        "the heading names Claude A, and the frame says",
    ),
    ("a stranger", ("by=B re=2", "by=Z re=2"), "`by=Z` is nobody in this dialog: its agents are A, B"),
    (
        "the wrong turn",
        ("by=B re=2", "by=A re=2"),
        "turn 3 of A answers no open debt: A owes no turn, the turn is with B",
    ),
    (
        "the wrong debt",
        ("by=B re=2", "by=B re=1"),
        "turn 3 of B says `re=1`, and the debt that it owes was opened by turn 2",
    ),
    ("no debt", ("by=B re=2", "by=B"), "turn 3 of B has no `re`"),
    ("a time that is none", ("re=2 at=2026-11-21T", "re=2 at=yesterday"), "the frame's `at=yesterday"),
    (
        "an attribute",
        ("by=B re=2", "by=B re=2 mood=good"),
        "an attribute `mood=good`, which the protocol does not know",
    ),
    ("twice", ("by=B re=2", "by=B re=2 re=2"), "the frame names `re` twice"),
    ("tokens in words", ("by=B re=2", "by=B re=2 out=many"), "the frame's `out=many` has not the form of out"),
    ("a heading", ("Who deletes old ones?", "## Turn 9 — User"), "`## Turn 9 — User` reads as structure in a body"),
    ("a turn passed", ("Who deletes old ones?", "TURN: USER\n\nWho?"), "`TURN: USER` reads as structure in a body"),
    ("a mark", ("Who deletes old ones?", "[STOPPED]\n\nWho?"), "`[STOPPED]` reads as structure in a body"),
    ("a frame", ("Who deletes old ones?", "<!-- dialogd x -->\n\nWho?"), "`<!-- dialogd x -->` reads as structure"),
    (
        "no empty line",
        ("ones?\n\n[QUESTION", "ones?\n[QUESTION"),
        "body, marks and `TURN:` line are parted by one empty",
    ),
    (
        "too many",
        ("ones?\n\n[QUESTION", "ones?\n\n\n[QUESTION"),
        "body, marks and `TURN:` line are parted by one empty",
    ),
    ("a control character", ("Who deletes", "Who\x0bdeletes"), "a control character stands in a frame"),
    ("a carriage return", ("ones?\n", "ones?\r\n"), "a control character stands in a frame"),
    ("a turn line in small letters", ("deletes?]\n\nTURN: A", "deletes?]\n\nturn: A"), "`turn: A` reads as structure"),
    (
        "no last word",
        ("[QUESTION: who deletes?]\n\nTURN: A\n", "[QUESTION: who deletes?]\n"),
        "ends with neither a `TURN:`",
    ),
    (
        "nobody",
        ("deletes?]\n\nTURN: A", "deletes?]\n\nTURN: C"),
        "the `TURN:` line names C, who is nobody in this dialog",
    ),
    ("the next twice", ("deletes?]\n\nTURN: A", "deletes?]\n\nTURN: A, A"), "the `TURN:` line names somebody twice"),
    ("itself", ("deletes?]\n\nTURN: A", "deletes?]\n\nTURN: B"), "names B, and the rules go on with `TURN: A`"),
    (
        "the person's hand",
        ("[QUESTION: who deletes?]", "[PAUSED]"),
        "`[PAUSED]` stands in turn 3 of B: only the person",
    ),
    (
        "a note's mark",
        ("[QUESTION: who deletes?]", "[STALLED: A]"),
        "`[STALLED: A]` stands in turn 3 of B: it stands in notes",
    ),
    ("a number", ("[PROPOSAL P1:", "[PROPOSAL P7:"), "is to be numbered P1: proposals count in a row"),
    ("no number", ("[PROPOSAL P1:", "[PROPOSAL:"), "is to be numbered P1: proposals count in a row"),
    ("in words", ("[AGREE: P2 | simple]", "[AGREE: P2, it is simple]"), "has not the literal form of AGREE"),
    ("small letters", ("[AGREE: P2 | simple]", "[AGREE: p2 | simple]"), "has not the literal form of AGREE"),
    (
        "nothing to sign",
        ("[AGREE: P2 | simple]", "[AGREE: P9]"),
        "`[AGREE: P9]` in turn 5 of B may not count: there is no P9",
    ),
    (
        "no signature",
        ("[AGREE: P2 | simple]", "[PASS]"),
        "turn 5 of B ends the dialog with `[CONSENSUS_REACHED]`, and the rules",
    ),
    ("another text", ("Postgres; a job deletes.", "Redis."), "is not the hash of the summary above it"),
    ("no text", ("## Consensus Summary\n\n", ""), "stands below no `## Consensus Summary`"),
    ("no decision", (re.search(r"\[DECISION[^\n]*\n", AGREED)[0], ""), "lacks `[DECISION P2: approved"),  # type: ignore[index]
    ("no end", ("[CONSENSUS_REACHED]\n", "\nTURN: A\n"), "by the rules the dialog ends with it: CONSENSUS_REACHED"),
    (
        "a decision",
        ("[QUESTION: who deletes?]", "[DECISION P1: approved | mutual | x | y]"),
        "does not follow from the dialog",
    ),
    (
        "an end",
        ("[QUESTION: who deletes?]\n\nTURN: A", "[STOPPED: why]"),
        "ends the dialog with `[STOPPED: why]`, and the rules",
    ),
]


@cases("what, change, wanted", FORGERIES)
def test_what_no_writer_may_do_is_named(what: str, change: tuple[str, str], wanted: str) -> None:
    assert change[0] in AGREED, what
    found = faults(resealed(AGREED.replace(change[0], change[1], 1)))
    assert any(wanted in fault.words for fault in found), [str(fault) for fault in found]
    assert all(fault.line > 1 for fault in found)


# What stands at the end of a dialog of which it does not follow.
NOTES = [
    ("an end", note("SYSTEM", "[STOPPED: budget of the moon]"), "and nothing in the file calls for that"),
    ("a limit", note("SYSTEM", "[MAX_TURNS_REACHED]"), "and nothing in the file calls for that"),
    ("a failure", note("SYSTEM", "[AGENT_ERROR: A | it broke | mend it]\n\nTURN: B"), "A owes no turn"),
    ("a stall", note("SYSTEM", "[STALLED: B]\n\nTURN: A"), "has `TURN: A`, and by the rules it has no `TURN:` line"),
    ("a turn", note("SYSTEM", "TURN: A"), "does not follow from the dialog: nothing calls for it"),
    ("a default", note("SYSTEM", "[DEFAULT_TAKEN: yes]\n\nTURN: A"), "does not follow from the dialog"),
    ("a yes", note("SYSTEM", "[AGREE: P1]"), "stands in note 2.1 of SYSTEM: only an agent writes that"),
    ("the hand", note("SYSTEM", "[PAUSED]"), "stands in note 2.1 of SYSTEM: only the person writes that"),
    ("a pass", note("USER", "[PASS]", "User"), "stands in note 2.1 of USER: only an agent writes that"),
    ("a note", note("B", "[QUESTION: why?]", "Claude B"), "a note of an agent holds its seal and nothing else"),
    ("a seat's yes", note("USER via=B", "[APPROVED]", "B's session"), "from B's session: it is the person's alone"),
    ("a seat's word", note("USER via=B", "Why?\n\nTURN: A"), "from B's session: a turn is the person's alone"),
    ("a seat's budget", note("USER via=OTHER", "[LIMIT: budget $4]"), "from a session seated in another dialog: it is"),
    ("via an agent", note("SYSTEM via=B", "[STALLED: B]"), "has `via=B`, which stands with `by=USER` alone"),
]


@cases("what, text, wanted", NOTES)
def test_a_note_that_nothing_calls_for_is_named(what: str, text: str, wanted: str) -> None:
    found = faults(resealed(until_turn(3) + text))
    assert any(wanted in fault.words for fault in found), (what, [str(fault) for fault in found])


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


def test_an_agent_that_the_header_does_not_name_may_be_called_anything() -> None:
    text = AGREED.replace("A = Claude A", "A").replace("B = Claude B", "B").replace("— Claude B", "— Live B")
    assert "Claude B" not in text
    assert faults(resealed(text)) == faults(AGREED.encode()) == ()


def test_the_line_is_that_of_the_fault() -> None:
    text = AGREED.replace("[QUESTION: who deletes?]", "[PAUSED]")
    (fault, *_) = faults(resealed(text))
    assert resealed(text).decode().split("\n")[fault.line - 1] == "[PAUSED]"


def test_what_was_changed_or_unchained_is_named() -> None:
    edited = [str(fault) for fault in faults(AGREED.replace("Who deletes", "Who removes").encode())]
    assert edited[0].endswith("turn 3 of B was changed: its hash does not fit what stands there")
    retyped = faults(AGREED.replace("Where should user", "Where do user").encode())
    assert "turn 2 of A is not chained to the entry before" in retyped[0].words


def test_a_frame_that_is_quoted_unescaped_is_named() -> None:
    text = AGREED.replace("Who deletes old ones?", "<!-- dialogd by=USER bytes=1 prev= sha=0123456789abcdef -->")
    found = faults(resealed(text))
    assert "of an entry of B holds a line that begins with `<!-- dialogd by=`, as frames do" in found[0].words


def test_what_the_person_contributes_by_a_program_passes() -> None:
    room = Room(opening("A", "B"), A=["One."], B=["Two."])
    room.run()
    person.say(room.log, "Cache it", kind="idea", host="mcp")
    assert "[IDEA: Cache it]" in room.text
    assert faults(room.paper.data) == ()


def test_an_answer_after_the_end_is_named() -> None:
    (fault,) = faults(resealed(AGREED + note("A re=5", "Me!\n\nTURN: B", "Claude A").replace("Note", "Turn 6")))
    assert "turn 6 of A comes after the end: CONSENSUS_REACHED in turn 5" in fault.words


def test_a_turn_that_was_begun_in_a_pause_is_named() -> None:
    room = Room(opening("A", "B"), A=["One."], B=["Two."])
    room.thinks("A")
    room.pause()
    room.answers("A", "One.")
    assert faults(room.paper.data) == ()
    turn = note("B re=2", "Two.\n\nTURN: A", "Claude B").replace("Note", "Turn 3")
    (fault,) = faults(resealed(room.text + turn))
    assert "turn 3 of B was begun while the dialog was paused" in fault.words


def test_what_is_too_long_is_named() -> None:
    text = agreed("Max Message: 200").replace("Who deletes old ones?", "Who? " * 50)
    assert any("what exceeds 200 goes to an attachment" in fault.words for fault in faults(resealed(text)))


def test_a_turn_of_an_agent_without_a_frame_is_named() -> None:
    (fault,) = faults((until_turn(3) + "\n---\n\n## Turn 3 — Claude B\n\nTwo.\n\nTURN: A\n").encode())
    assert "turn 3 of B has no frame: a writer of B frames its turns" in fault.words


def test_text_that_rests_unfinished_is_named() -> None:
    (fault,) = faults((until_turn(3) + "\n\nWait, I think").encode())
    assert fault.words.startswith("the text at the end is unfinished")


def test_a_header_that_makes_no_sense_is_named() -> None:
    (fault,) = faults(AGREED.replace("**Agents:**", "**Max Turns:** many\n\n**Agents:**").encode())
    assert (fault.line, fault.words.startswith("the header: ")) == (1, True)


def test_a_seal_that_does_not_fit_is_named() -> None:
    text = (GOLDEN / "sealed.txt").read_text(encoding="utf-8").rpartition("====\n")[2]
    first = re.search(r"nonce=\S+ [^\n]*-->\n\n([^\n]+)\n", text)
    found = faults(resealed(text.replace(first[1], "Another answer.", 1)))
    assert any("does not fit its seal" in fault.words for fault in found), found


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

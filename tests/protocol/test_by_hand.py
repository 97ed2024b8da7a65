"""Whatever a person types by hand reads as they meant it, or says why it does not."""

from __future__ import annotations

from dataclasses import dataclass

from dialogd.protocol.decide import Reply, Stop, Wait
from dialogd.protocol.grammar import parse
from dialogd.protocol.model import Condition, Entry
from tests.support.cases import cases
from tests.support.room import Room, opening, waits

HEADER = "# Dialog\n\n**Topic:** sessions\n\n---\n\n"


@dataclass(frozen=True)
class Shape:
    """Bytes after a header, and what they mean: the speakers of the turns, who owes, the end, the last body."""

    text: str
    by: tuple[str, ...]
    owing: tuple[str, ...]
    outcome: str | None = None
    body: str | None = None


Q = "## Turn 1 — User\n\nRedis?\n\nTURN: A\n"
SHAPES = {
    "the classic form": Shape(Q, ("USER",), ("A",), body="Redis?"),
    "a plain dash": Shape("## Turn 1 - User\nRedis?\nTURN: A\n", ("USER",), ("A",), body="Redis?"),
    "an en dash": Shape("## Turn 1 – user\nRedis?\nTURN: A\n", ("USER",), ("A",), body="Redis?"),
    "a colon": Shape("## turn 1: USER\nRedis?\nTURN: A\n", ("USER",), ("A",), body="Redis?"),
    "no name": Shape("## Turn 1\nRedis?\nTURN: A\n", ("USER",), ("A",), body="Redis?"),
    "closing hashes": Shape("## Turn 1 — User ##\nRedis?\nTURN: A\n", ("USER",), ("A",), body="Redis?"),
    "only User": Shape("## User\nRedis?\nTURN: A\n", ("USER",), ("A",), body="Redis?"),
    "a stranger's name": Shape("## Turn 1 — Mary\nRedis?\nTURN: A\n", ("USER",), ("A",), body="Redis?"),
    "no heading at all": Shape("Redis?\n\nTURN: A\n", ("USER",), ("A",), body="Redis?"),
    "nothing but the line": Shape("TURN: A\n", ("USER",), ("A",), body=""),
    "lower case and a dot": Shape("## Turn 1 - User\nRedis?\nturn: a.\n", ("USER",), ("A",)),
    "bold, by name": Shape("## User\nRedis?\n**TURN: Claude A**\n", ("USER",), ("A",)),
    "bold word only": Shape("## User\nRedis?\n**TURN:** B\n", ("USER",), ("B",)),
    "code": Shape("## User\nRedis?\n`TURN: B`\n", ("USER",), ("B",)),
    "indented": Shape("## User\nRedis?\n    TURN: B\n", ("USER",), ("B",)),
    "a blank before the colon": Shape("## User\nRedis?\nTURN : B\n", ("USER",), ("B",)),
    "no blank after it": Shape("## User\nRedis?\nTURN:B\n", ("USER",), ("B",)),
    "blank lines after it": Shape("## User\nRedis?\nTURN: B\n\n \n\t\n", ("USER",), ("B",)),
    "a rule after it": Shape("## User\nRedis?\nTURN: B\n\n---\n", ("USER",), ("B",)),
    "a round": Shape("## User\nRedis?\nTURN: A, B\n", ("USER",), ("A", "B")),
    "a round with and": Shape("## User\nRedis?\nTURN: A and B.\n", ("USER",), ("A", "B")),
    "all": Shape("## User\nRedis?\nTURN: all\n", ("USER",), ("A", "B")),
    "any": Shape("## User\nRedis?\nTURN: any\n", ("USER",), ("ANY",)),
    "twice the same": Shape("## User\nRedis?\nTURN: A, Claude A, a\n", ("USER",), ("A",)),
    "with an at sign": Shape("## User\nRedis?\nTURN: @B\n", ("USER",), ("B",)),
    "the person": Shape("## User\nI think.\nTURN: me\n", ("USER",), ("USER",)),
    "nobody known": Shape("## User\nRedis?\nTURN: Zoe\n", ("USER",), ("USER",)),
    "one known of two": Shape("## User\nRedis?\nTURN: Zoe, B\n", ("USER",), ("B",)),
    "a TURN line in a closed fence": Shape(
        "## User\n```\nTURN: B\n```\nRedis?\nTURN: A\n", ("USER",), ("A",), body="```\nTURN: B\n```\nRedis?"
    ),
    "a TURN line after an open fence": Shape("## User\n```\ncode\nTURN: A\n", ("USER",), ("A",)),
    "a TURN line in a quote": Shape("## User\n> TURN: B\n\nRedis?\nTURN: A\n", ("USER",), ("A",)),
    "a TURN line in a sentence": Shape("## User\nWrite TURN: B there.\nTURN: A\n", ("USER",), ("A",)),
    "a rule in the text": Shape("## User\nOne\n\n---\n\nTwo\n\nTURN: A\n", ("USER",), ("A",), body="One\n\n---\n\nTwo"),
    "escaped structure": Shape("## User\n\\TURN: B\n\\## User\nTURN: A\n", ("USER",), ("A",), body="TURN: B\n## User"),
    "other headings": Shape("## User\n### Turn 2\n## Details\n# User\nTURN: A\n", ("USER",), ("A",)),
    "two turns": Shape(Q + "\n## Turn 2 — User\nOr Pg?\nTURN: B\n", ("USER", "USER"), ("B",), body="Or Pg?"),
    "two without headings": Shape(Q + "\nOr Pg?\nTURN: B\n", ("USER", "USER"), ("B",), body="Or Pg?"),
    "an agent's turn": Shape(Q + "\n## Turn 2 — Claude A\nPg.\nTURN: B\n", ("USER", "A"), ("B",), body="Pg."),
    "an agent's turn by id": Shape(Q + "\n## Turn 2 — a\nPg.\nTURN: B\n", ("USER", "A"), ("B",), body="Pg."),
    "an agent ends it": Shape(
        Q + "\n## Turn 2 — Claude A\nPg.\n[CONSENSUS_REACHED]\n", ("USER", "A"), (), "CONSENSUS_REACHED"
    ),
    "the person ends it": Shape(Q + "\nEnough.\n\n[STOPPED]\n", ("USER", "USER"), (), "STOPPED"),
    "an end in bold": Shape(Q + "\n**[DEADLOCK]**\n", ("USER", "USER"), (), "DEADLOCK"),
    "an end in lower case": Shape(Q + "\n- [consensus reached].\n", ("USER", "USER"), (), "CONSENSUS_REACHED"),
    "words after an end": Shape(
        Q + "\n[CONSENSUS_REACHED]\n\n## Consensus Summary\nPg.\n", ("USER", "USER"), (), "CONSENSUS_REACHED"
    ),
    "an end and then a turn": Shape(Q + "\n[STOPPED]\nNo, go on.\nTURN: B\n", ("USER", "USER"), ("B",)),
    "an end in a fence": Shape(Q + "\n```\n[STOPPED]\n```\nTURN: B\n", ("USER", "USER"), ("B",)),
    "an end in a quote": Shape(Q + "\n> [STOPPED]\n\nTURN: B\n", ("USER", "USER"), ("B",)),
    "an end named in the question": Shape("## User\nUse [STOPPED] to end.\nTURN: A\n", ("USER",), ("A",)),
    "a pause": Shape(Q + "\n[PAUSED]\n", ("USER",), ("A",)),
    "a note": Shape(Q + "\n## Note — User\nRemember cost.\n\n## User\nGo.\nTURN: B\n", ("USER", "USER"), ("B",)),
    "a note that passes the turn": Shape(Q + "\n## Note — User\nTURN: B\n", ("USER",), ("A", "B")),
    "a skip": Shape(Q + "\n[SKIP: A]\n", ("USER",), ("B",)),
    "a higher number": Shape(Q + "\n## Turn 7 — User\nGo.\nTURN: B\n", ("USER", "USER"), ("B",)),
    "a lower number": Shape(Q + "\n## Turn 1 — User\nGo.\nTURN: B\n", ("USER", "USER"), ("B",)),
    "other alphabets": Shape(
        "## User\nÜber Sitzungen: 会话?\nTURN: A\n", ("USER",), ("A",), body="Über Sitzungen: 会话?"
    ),
}


def check(data: bytes, shape: Shape) -> None:
    """The bytes mean what the shape says."""
    dialog = parse(data)
    outcome = dialog.state.outcome
    assert tuple(entry.by for entry in dialog.turns) == shape.by
    assert (dialog.state.owing, outcome.name if outcome else None) == (shape.owing, shape.outcome)
    assert shape.body is None or dialog.turns[-1].body == shape.body
    assert [entry.number for entry in dialog.turns] == sorted({entry.number for entry in dialog.turns})


@cases("shape", SHAPES.values())
def test_a_form_that_people_write_reads_as_they_meant_it(shape: Shape) -> None:
    text = HEADER + shape.text
    check(text.encode(), shape)
    check(text.replace("\n", "\r\n").encode(), shape)
    check(b"\xef\xbb\xbf" + text.encode(), shape)
    check(shape.text.encode(), shape)
    check(b"\xef\xbb\xbf" + shape.text.replace("\n", "\r\n").encode(), shape)
    check(b"\n\n" + text.replace("\n\n", "\n\n\n").encode(), Shape(shape.text, shape.by, shape.owing, shape.outcome))


@cases("shape", SHAPES.values())
def test_the_same_forms_work_after_a_frame(shape: Shape) -> None:
    room = Room(opening(), A=["Hello."])
    room.run()
    room.types("\n" + shape.text)
    dialog = room.dialog
    outcome = dialog.state.outcome
    assert tuple(entry.by for entry in dialog.turns) == ("USER", "A", *shape.by)
    assert (outcome.name if outcome else None) == shape.outcome
    if shape.by == ("USER",) and shape.owing == ("A", "B") and "Note" in shape.text:
        return
    assert dialog.state.owing == shape.owing or shape.text.startswith(Q)


@cases("shape", SHAPES.values())
def test_a_reply_after_any_form_changes_nothing_before_it(shape: Shape) -> None:
    room = Room(HEADER + shape.text)
    before = [entry for entry in room.dialog.entries if entry.condition is not Condition.UNFINISHED]
    room.say("Go on.", to="A")
    after = room.dialog.entries
    assert list(after[: len(before)]) == before
    assert [entry.by for entry in after] == [*(entry.by for entry in before), "USER"]
    assert after[-1].linked
    assert parse(room.paper.data) == room.dialog


UNFINISHED = {
    "no newline": "## Turn 1 - User\nRedis?\nTURN: A",
    "no TURN line": "## Turn 1 - User\nRedis?\n",
    "a word": "wa",
    "an end without its newline": "[STOPPED]",
    "a TURN line without names": "Redis?\nTURN:\n",
    "text after an open fence": "```\nx\n",
    "a mark that is no last word": "[IDEA: caching]\n",
}


@cases("text", UNFINISHED.values())
def test_unfinished_text_waits_for_thirty_seconds(text: str) -> None:
    room = Room(opening(), A=["Hello.", "Again."])
    room.step("A")
    room.types("\n" + text)
    last = room.dialog.last
    assert last.condition is Condition.UNFINISHED
    action = room.look("B")
    assert isinstance(action, Wait)
    assert (action.status, action.seconds) == ("unfinished", 30.0)
    room.advance(29.9)
    assert waits(room.look("B")) == "unfinished"
    room.advance(0.2)
    assert waits(room.look("B")) == ("Write" if "\nTURN: A" in text else "Reply")


@cases("more", ["hm", "hm\n", "\n\nLet me", "[RESUMED]", "## Turn 2 - User\nI"])
def test_a_pause_holds_while_the_person_types_below_it(more: str) -> None:
    room = Room(opening(), A=["Hello."])
    room.types("\n[PAUSED]\n")
    assert waits(room.look("A")) == "paused"
    room.types(more)
    assert room.dialog.state.paused
    room.advance(40)
    assert waits(room.look("A")) == "paused"
    room.types("\n[RESUMED]\n")
    assert isinstance(room.look("A"), Reply)


@cases("line", ["Burn it", "my turn: later", "TURN", "[IDEA: A]"])
def test_prose_passes_no_turn_and_says_so(line: str) -> None:
    room = Room(f"{HEADER}## Turn 1 — User\n\nRedis?\n\n{line}\n")
    room.advance(31)
    action = room.look("A")
    assert isinstance(action, Wait)
    assert "the text up to line 11 passes no turn: it has no `TURN:` line" in action.reason


def test_a_control_without_its_newline_does_nothing_yet() -> None:
    room = Room(opening())
    room.types("\n[PAUSED]")
    assert not room.dialog.state.paused
    room.types("\n")
    assert room.dialog.state.paused


def test_a_turn_that_only_lacks_its_newline_gets_it() -> None:
    room = Room(opening(), A=["Hello."])
    room.run()
    room.types("Wait, why?\nTURN: A")
    room.advance(31)
    room.step("B")
    assert room.owing == ("A",)
    assert [entry.by for entry in room.dialog.turns] == ["USER", "A", "USER"]


def test_text_that_nobody_finished_becomes_a_note() -> None:
    room = Room(opening(), A=["Hello."], B=["Hm."])
    room.step("A")
    room.types("by the way, cost matters")
    room.advance(31)
    room.step("B")
    kinds = [(entry.by, entry.is_turn, entry.condition) for entry in room.dialog.entries[2:]]
    assert kinds == [("USER", False, Condition.BY_HAND), ("B", True, Condition.SOUND)]
    assert room.dialog.entries[2].body == "by the way, cost matters"


def test_the_person_never_waits_for_unfinished_text() -> None:
    for act in (lambda room: room.say("Now."), lambda room: room.stop(), lambda room: room.pause()):
        room = Room(opening())
        room.types("half a")
        act(room)
        assert room.dialog.entries[-1].frame is not None


@cases("names", ["Zoe", "C", "the other one", "Zoe, Yan", "A.B", "[agent]", "{next}", "???"])
def test_a_turn_for_nobody_waits_for_the_person_and_says_so(names: str) -> None:
    room = Room(f"{HEADER}## User\nHello\nTURN: {names}\n")
    action = room.look("A")
    assert isinstance(action, Wait)
    assert action.status == "waiting_for_user"
    assert "names nobody known" in action.reason
    assert "the agents are A, B" in action.reason


HEADERS = {
    "rules that name the marks": "# D\n\n## Rules\n\n- Use `[CONSENSUS_REACHED]` to agree.\n- End: TURN: A\n\n---\n\n",
    "marks on lines of their own": "# D\n\n[CONSENSUS_REACHED]\n\n- [DEADLOCK]\n**[STOPPED]**\n[PAUSED]\n\n---\n\n",
    "TURN lines on their own": "# D\n\nEnd with\n\nTURN: USER\n\nor\n\nTURN: B\n\n",
    "an example in a fence": "# D\n\n```\n## Turn 1 — User\n\nHello\n\nTURN: B\n```\n\n---\n\n",
    "an example in tildes": "# D\n\n~~~md\n## User\n[STOPPED]\n~~~\n",
    "a fence in a longer fence": "# D\n\n````\n```\n## Turn 1 — User\n````\n",
    "a fence that never closes": "# D\n\n```\nno end\n\n---\n\n",
    "a frame in a fence": "# D\n```\n## Turn 2 — B\n<!-- dialogd by=B bytes=12 prev= sha=0123456789abcdef -->\n```\n\n",
    "a quoted example": "# D\n\n> ## Turn 1 — User\n> TURN: B\n\n",
    "front matter": "---\ntitle: D\n---\n\n# D\n\n",
    "nothing": "",
    "only blank lines": "\n\n\n",
}


@cases("header", HEADERS.values())
def test_the_header_is_never_a_turn(header: str) -> None:
    room = Room(f"{header}## Turn 1 — User\n\nRedis?\n\nTURN: A\n", A=["```\ncode\n```"], B=["So."])
    assert [entry.body for entry in room.dialog.entries] == ["Redis?"]
    assert isinstance(room.look("A"), Reply)
    room.step("A")
    room.step("B")
    assert [entry.by for entry in room.dialog.entries] == ["USER", "A", "B"]
    assert parse(room.paper.data) == room.dialog


def test_a_fence_left_open_above_the_first_turn_does_not_swallow_it() -> None:
    text = "# D\n\n```\nrules\n\n## User\n\nWhy does this fail?\n{}\nTURN: A\n"
    room = Room(text.format("```\ncode\n```\n"), A=["Because."])
    assert "Why does this fail?" in room.dialog.entries[0].body
    room.run()
    assert [entry.by for entry in room.dialog.turns] == ["USER", "A"]
    room = Room(text.format(""), A=["Because."])
    room.run()
    dialog = parse(room.paper.data.replace(b"TURN: A\n", b"TURN: A\n\nAnd:\n```\ncode\n```\n", 1))
    assert [entry.by for entry in dialog.turns] == ["USER", "A"]


def test_a_first_turn_without_heading_stays_when_it_is_answered() -> None:
    room = Room(HEADER + "Redis?\n\nTURN: A\n\n---\n", A=["Yes."])
    name = room.dialog.id
    room.run()
    assert [(entry.id, entry.by, entry.linked) for entry in room.dialog.entries] == [
        ("1", "USER", True),
        ("2", "A", True),
    ]
    assert room.dialog.id == name


CLASSIC = """# Claude Autonomous Dialog

**Topic:** Where should user sessions live?
**Max Turns:** 20
**Timeout:** 5 minutes

## Rules

- Only the agent whose turn it is may write
- Use `[CONSENSUS_REACHED]` when agreement is achieved
- Use `[DEADLOCK]` when it is not

---

## Turn 1 — User

**Question:**
Discuss and agree on where user sessions live.

TURN: A

---

## Turn 2 — Claude A

**Response:**
I propose Postgres: one thing less to run.

TURN: B

---

## Turn 3 — Claude B

**Response:**
Redis expires keys by itself. [CONSENSUS_REACHED] is not near yet.

TURN: A

---

## Turn 4 — Claude A

**Response:**
A nightly DELETE does that too.

TURN: B

---

## Turn 5 — Claude B

**Response:**
Convinced.

[CONSENSUS_REACHED]

## Consensus Summary

Sessions live in Postgres; a nightly job deletes the old ones.

---

**Total turns:** 5
**Duration:** 12 minutes
**Outcome:** Consensus
"""


def test_a_finished_dialog_written_by_hand_reads_as_ended_by_consensus() -> None:
    room = Room(CLASSIC)
    state = room.dialog.state
    assert [(entry.number, entry.by) for entry in room.dialog.entries] == [
        (1, "USER"),
        *zip((2, 3, 4, 5), "ABAB", strict=True),
    ]
    assert (state.outcome.name, state.outcome.by, state.owing) == ("CONSENSUS_REACHED", "B", ())
    assert all(isinstance(room.look(me), Stop) for me in "AB")
    assert room.dialog.entries[4].body.startswith("**Response:**\nConvinced.")


@cases("turns", [1, 2, 3, 4])
def test_cut_after_any_turn_line_it_goes_on_from_there(turns: int) -> None:
    end = [index for index in range(len(CLASSIC)) if CLASSIC.startswith("\nTURN: ", index)][turns - 1] + len(
        "\nTURN: A\n"
    )
    room = Room(CLASSIC[:end], A=["Go."], B=["Go."])
    me, other = ("A", "B") if turns % 2 else ("B", "A")
    assert room.dialog.state.number == turns
    assert (waits(room.look(me)), waits(room.look(other))) == ("Reply", "not_my_turn")
    room.step(me)
    last = room.dialog.last
    assert (last.number, last.by, last.linked, last.turn) == (turns + 1, me, True, (other,))
    assert room.dialog.state.limits.max_turns - room.dialog.state.counted == 20 - turns - 1


def test_a_dialog_ended_by_hand_opens_again_by_a_turn_of_the_persons() -> None:
    room = Room(CLASSIC + "\n## User\n\nI disagree: nightly is too late.\n\nTURN: A\n", A=["Hourly, then."])
    assert room.dialog.state.outcome is None
    assert room.dialog.state.counted == 1
    room.step("A")
    last = room.dialog.last
    assert (last.number, last.turn) == (7, ("B",))


def entry_of(text: str) -> Entry:
    """The last entry of a file with that text by hand."""
    last = parse((HEADER + Q + text).encode()).last
    assert last is not None
    return last


@cases(
    ("text", "is_counted"),
    [
        ("Fine.\n\n[AGREE: P1]", True),
        ("Fine.\n\n[AGREE: P1 | it is simple]\n[CONFIDENCE: 0.8]", True),
        ("[AGREE: P1]\n\nFine.", False),
        ("Fine.\n\n- [agree: P1]", False),
        ("Fine.\n\n**[AGREE: P1]**", False),
    ],
)
def test_an_agents_yes_typed_by_hand_is_a_bare_line_at_the_end(text: str, is_counted: bool) -> None:
    entry = entry_of(f"\n## Turn 2 — Claude A\n{text}\nTURN: B\n")
    assert (entry.mark("AGREE") is not None) == is_counted
    assert entry_of(f"\n## User\n{text}\nTURN: B\n").mark("AGREE") is not None


def test_latin_1_and_other_bytes_are_shown_not_refused() -> None:
    dialog = parse(HEADER.encode() + b"## User\nS\xe9ances \xff\x00\x1b[31m?\nTURN: A\n")
    assert dialog.state.owing == ("A",)
    assert dialog.entries[0].body.startswith("S\ufffdances \ufffd")

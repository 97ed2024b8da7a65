"""What was cut, flipped, moved or copied in the file is seen, and never taken for a turn."""

from __future__ import annotations

import pytest

from dialogd import person
from dialogd.errors import NotADialog
from dialogd.protocol.decide import Clock, Wait, Write, decide
from dialogd.protocol.grammar import parse
from dialogd.protocol.model import Condition, Entry
from dialogd.protocol.state import Dialog
from tests.support.cases import cases
from tests.support.room import Room, opening

SUMMARY = "## Consensus Summary\n\nSessions live in Postgres.\n\n[CONSENSUS_REACHED]"


def a_dialog() -> bytes:
    """Five entries after the question: marks of every kind, a note, a round, an end."""
    room = Room(
        opening("A", "B", keys=["Dialog: 3f9a1c"], turn="A, B"),
        A=["Postgres.\n\n[PROPOSAL: use it]\n[DEADLOCK]", f"Then:\n\n{SUMMARY}"],
        B=["Redis? \u00fc\n\n[OBJECTION: why not]", "Fine.\n\n[AGREE: P2]"],
    )
    room.step("A")
    room.say("I read along.", note=True)
    room.step("B")
    room.run()
    return room.paper.data


DATA = a_dialog()
WHOLE = parse(DATA)
FRAMED = [entry for entry in WHOLE.entries if entry.frame is not None]
FIRST = FRAMED[0].start


def outcome_of(data: bytes) -> str | None:
    """How the dialog in these bytes has ended, if it has."""
    end = parse(data).state.outcome
    return end.name if end else None


@pytest.mark.slow
def test_a_file_cut_at_any_byte_keeps_what_was_whole_and_counts_nothing_torn() -> None:
    for size in range(FIRST, len(DATA)):
        dialog = parse(DATA[:size])
        whole = [entry for entry in WHOLE.entries if entry.end <= size]
        assert list(dialog.entries[: len(whole)]) == whole
        torn = dialog.entries[len(whole) :]
        assert all(entry.condition in (Condition.DAMAGED, Condition.UNFINISHED) for entry in torn)
        assert dialog.state.number == max(entry.number for entry in whole)
        assert dialog.state.outcome is None
        assert not torn or isinstance(decide(dialog, "A", Clock()), Wait)


def test_what_is_written_behind_a_torn_entry_stays_linked_to_it() -> None:
    for size in range(FRAMED[-2].start + 1, FRAMED[-1].start):
        room = Room(DATA[:size])
        room.say("What happened here?")
        assert all(entry.linked for entry in room.dialog.entries), DATA[:size][-60:]
        assert parse(room.paper.data).entries == room.dialog.entries


def test_a_frame_that_stands_there_again_takes_the_next_number() -> None:
    data = DATA[: FRAMED[-1].start]
    copied = parse(data + DATA[FRAMED[0].start : FRAMED[0].end])
    assert copied.last.condition is Condition.SOUND
    assert copied.last.number == copied.state.number == parse(data).state.number + 1
    assert not copied.last.linked


def test_what_the_person_set_by_a_note_that_was_cut_is_not_set() -> None:
    room = Room(opening("A", "B"))
    person.say(room.log, "Spend no more than that, please.", note=True, budget="$4")
    assert room.dialog.state.limits.budget == 4
    cut = parse(room.paper.data.replace(b", please", b""))
    assert cut.last.condition is Condition.DAMAGED
    assert cut.state.limits.budget is None


def test_a_cut_before_the_first_frame_never_ends_or_forges_anything() -> None:
    for size in range(FIRST):
        try:
            dialog = parse(DATA[:size])
        except NotADialog:
            continue
        assert dialog.state.outcome is None
        assert dialog.state.owing in ((), ("USER",), ("A",), ("A", "B"))


def test_the_torn_call_for_a_deadlock_does_not_end_the_dialog() -> None:
    size = DATA.index(b"[DEADLOCK]\n") + len(b"[DEADLOCK]\n")
    assert outcome_of(DATA[:size]) is None
    assert outcome_of(DATA[:size] + b"\n---\n\n## User\n\nWhat happened?\n\nTURN: A\n") is None


def differs(flipped: bytes, changed: Entry | None) -> bool:
    """True when a reading of the flipped bytes shows that `changed` (None: what no hash covers) is not as it was."""
    try:
        dialog = parse(flipped)
    except NotADialog:
        return True
    if changed is None:
        return dialog.header.text != WHOLE.header.text or chains(dialog) != chains(WHOLE) or not all_linked(dialog)
    sound = {entry.chain for entry in dialog.entries if entry.condition is Condition.SOUND and entry.linked}
    return changed.chain not in sound


def chains(dialog: Dialog) -> list[str]:
    """The hashes of all entries, in order."""
    return [entry.chain for entry in dialog.entries]


def all_linked(dialog: Dialog) -> bool:
    """True when every entry names the one before it."""
    return all(entry.linked for entry in dialog.entries)


def undetected(bits: range) -> list[tuple[int, int]]:
    """Every (byte, bit) whose flip cannot be seen. Bit 8 stands for the byte's own number, modulo 8."""
    missed = []
    for at, byte in enumerate(DATA):
        inside = next((entry for entry in FRAMED if entry.start <= at < entry.end), None)
        for bit in bits:
            mask = 1 << (bit if bit < 8 else at % 8)
            if not differs(DATA[:at] + bytes([byte ^ mask]) + DATA[at + 1 :], inside):
                missed.append((at, bit))
    return missed


@pytest.mark.slow
def test_one_flipped_bit_anywhere_is_seen() -> None:
    assert undetected(range(8, 9)) == []


@pytest.mark.slow
def test_every_flipped_bit_is_seen() -> None:
    assert undetected(range(8)) == []


def test_a_block_of_zeros_is_seen() -> None:
    for at in range(FIRST, len(DATA) - 300, 97):
        dialog = parse(DATA[:at] + bytes(300) + DATA[at + 300 :])
        touched = {entry.chain for entry in FRAMED if entry.start < at + 300 and entry.end > at}
        sound = {entry.chain for entry in dialog.entries if entry.condition is Condition.SOUND}
        assert touched.isdisjoint(sound)
        assert {entry.chain for entry in FRAMED} - touched <= sound


def without(*indices: int) -> bytes:
    """The file with only these framed entries, in this order, each with the separator before it."""
    pieces = []
    for index in indices:
        before = FRAMED[index - 1].end if index else WHOLE.entries[0].end
        pieces.append(DATA[before : FRAMED[index].end])
    return DATA[: WHOLE.entries[0].end] + b"".join(pieces)


@cases("index", range(4))
def test_two_swapped_entries_are_seen(index: int) -> None:
    order = [0, 1, 2, 3, 4]
    order[index], order[index + 1] = order[index + 1], order[index]
    assert without(0, 1, 2, 3, 4) == DATA
    assert not all_linked(parse(without(*order)))


@cases("index", range(4))
def test_a_missing_entry_is_seen(index: int) -> None:
    dialog = parse(without(*(i for i in range(5) if i != index)))
    assert [entry.linked for entry in dialog.entries].count(False) == 1


@cases("index", range(5))
def test_a_doubled_entry_is_seen(index: int) -> None:
    dialog = parse(without(*range(index + 1), index, *range(index + 1, 5)))
    assert [entry.linked for entry in dialog.entries].count(False) >= 1


def test_the_missing_question_is_seen() -> None:
    cut = DATA[: WHOLE.entries[0].start] + DATA[FIRST:]
    assert [entry.linked for entry in parse(cut).entries].count(False) == 1


def test_an_edit_of_an_earlier_turn_is_respected_and_reported() -> None:
    dialog = parse(DATA.replace(b"Redis? ", b"Memcached? "))
    edited = next(entry for entry in dialog.entries if entry.condition is Condition.EDITED)
    assert edited.body.startswith("Memcached?")
    assert [e for e in dialog.entries if e is not edited][:3] == [e for e in WHOLE.entries if e.id != edited.id][:3]
    assert (dialog.state.outcome, dialog.state.owing) == (WHOLE.state.outcome, WHOLE.state.owing)
    assert all_linked(dialog)


@cases(("old", "new"), [(b"Postgres.", b"Pg."), (b"Postgres.", b"PostgreSQL, of course."), (b"use it", b"")])
def test_an_edited_last_turn_still_passes_the_turn(old: bytes, new: bytes) -> None:
    room = Room(opening(), A=["Postgres.\n\n[IDEA: use it]"])
    room.run()
    dialog = parse(room.paper.data.replace(old, new))
    assert [entry.condition for entry in dialog.entries] == [Condition.BY_HAND, Condition.EDITED]
    assert dialog.state.owing == ("B",)


def test_what_is_typed_below_an_edited_turn_is_the_persons() -> None:
    room = Room(opening(), A=["Postgres, of cuorse."])
    room.run()
    dialog = parse(room.paper.data.replace(b"cuorse", b"course") + b"\nNo, Redis.\n\nTURN: A\n")
    assert [(e.by, e.condition, e.body) for e in dialog.entries[1:]] == [
        ("A", Condition.EDITED, "Postgres, of course."),
        ("USER", Condition.BY_HAND, "No, Redis."),
    ]
    assert dialog.state.owing == ("A",)


def test_a_last_turn_without_its_last_newline_is_torn() -> None:
    room = Room(opening(turn="A, B"), A=["Postgres."])
    room.step("A")
    for cut in (1, 2, 3):
        dialog = parse(room.paper.data[:-cut])
        assert dialog.entries[-1].condition is Condition.DAMAGED
        assert dialog.state.owing == ("A", "B")


def test_a_damaged_last_entry_stops_the_daemons_until_the_person_has_written() -> None:
    room = Room(DATA[: FRAMED[2].end - 20])
    assert all(getattr(room.look(me), "status", "") == "damaged" for me in "AB")
    room.advance(10_000)
    assert not any(isinstance(room.look(me), Write) for me in "AB")
    room.retry("B")
    assert room.owing == ("B",)
    assert type(room.look("B")).__name__ == "Reply"


def test_what_stands_behind_torn_bytes_leaves_them_as_damage() -> None:
    entry = FRAMED[2]
    for cut in range(5, entry.end - entry.start - 120, 7):
        torn = DATA[: entry.end - cut]
        dialog = parse(torn + b"\n\n---\n\n" + DATA[entry.start :])
        assert dialog.entries[-3].chain == entry.chain
        assert [e.condition for e in dialog.entries[-3:]] == [Condition.SOUND] * 3
        assert dialog.state.number == WHOLE.state.number

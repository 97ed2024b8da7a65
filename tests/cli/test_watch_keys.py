"""What single keys come to, what a typed line makes of them, and what fits into a terminal. No terminal needed."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dialogd.cli.keyboard import Decoder, Line
from dialogd.cli.status import Situation
from dialogd.cli.terminal import colour_of, fit, tail, width
from dialogd.cli.watch import Writing, live_line
from dialogd.store.folders import StateDir
from tests.support.cases import cases
from tests.support.room import Room, opening

WIDE = "漢字かな🎉é\u0301e\u0301❤\ufe0f👩\u200d💻 word \uff46"


def keys(*pieces: bytes) -> list[str]:
    """The keys of these bytes, as they come, and then nothing."""
    decoder = Decoder()
    return [key for piece in pieces for key in decoder.feed(piece)] + decoder.flush()


@cases(
    ("pieces", "expected"),
    [
        ([b"a"], ["a"]),
        ([b"\x1b"], ["esc"]),
        ([b"\x1b\x1b"], ["esc", "esc"]),
        ([b"\x1b[D\x1bOC\x1b[1~\x1b[F\x1b[3~"], ["left", "right", "home", "end", "delete"]),
        ([b"\x1b", b"[", b"D"], ["left"]),
        ([b"\xe6", b"\xbc\xa2"], ["漢"]),
        ([b"\x7f\x08\x15\x17\x0b\r\n"], ["backspace", "backspace", "clear", "word", "kill", "enter", "enter"]),
        ([b"\x1b[200~one\r\x1b[31mtwo", b"\x1b[201~x"], ["paste:one\r\x1b[31mtwo", "x"]),
        ([b"\x1b[99;5u\x1bx\x1b[I\x00\x1b[<0;1;1M"], []),
        ([b"\xff\xfe"], ["\ufffd", "\ufffd"]),
    ],
)
def test_bytes_become_keys_however_they_are_cut(pieces: list[bytes], expected: list[str]) -> None:
    assert keys(*pieces) == expected


def test_a_line_is_edited_by_whole_characters() -> None:
    line = Line("> ")
    for key in ["ae\u0301", "b"]:
        line.press(f"paste:{key}")
    for key, text, at in (
        ("left", "ae\u0301b", 3), ("left", "ae\u0301b", 1), ("right", "ae\u0301b", 3), ("backspace", "ab", 1),
        ("home", "ab", 0), ("delete", "b", 0), ("end", "b", 1), ("paste: two words", "b two words", 11),
        ("word", "b two ", 6), ("word", "b ", 2), ("eof", "b ", 2), ("clear", "", 0), ("backspace", "", 0),
        ("word", "", 0), ("left", "", 0), ("right", "", 0), ("delete", "", 0), ("unknown", "", 0),
    ):  # fmt: skip
        assert line.press(key) == ""
        assert (line.text, line.at) == (text, at), key
    assert (line.press("enter"), line.press("esc"), line.press("eof")) == ("send", "cancel", "cancel")


@given(st.text(alphabet=WIDE + "\n\t\x1b", max_size=60), st.integers(0, 60), st.integers(1, 100))
def test_what_is_typed_fits_and_shows_its_cursor(text: str, at: int, cells: int) -> None:
    line = Line("say> ", text, min(at, len(text)))
    shown, cursor = line.view(cells)
    assert width(shown) <= max(cells, 4)
    assert 0 <= cursor < len(shown)
    assert not any(char in shown for char in "\n\t\x1b")


@given(st.text(alphabet=WIDE, max_size=60), st.integers(0, 80))
def test_text_is_cut_at_either_end_to_the_cells_there_are(text: str, cells: int) -> None:
    for cut, whole in ((fit(text, cells), text.startswith), (tail(text, cells), text.endswith)):
        assert width(cut) <= cells
        assert (cut == text) if width(text) <= cells else whole(cut.strip("…"))
    end = tail(text, cells).lstrip("…")
    assert end == text or not end or not unicodedata.combining(end[0])


def test_wide_and_combining_letters_are_counted() -> None:
    assert [width(text) for text in ("abc", "漢字", "e\u0301", "🎉", "❤\ufe0f", "a\u200db")] == [3, 4, 1, 2, 2, 2]


def situation(**working: object) -> Situation:
    """A dialog of 2 turns with a budget, in which A may be working."""
    room = Room(opening("A", "B", keys=["Budget: $2.00"]), A=["Tabs."], B=["Why?"])
    room.step("A")
    room.step("B")
    health = {"working_on": {"turn": 4, "seconds": 61.5}} if working.get("A") else {}
    return Situation(room.dialog, Path("/f"), (), {"A": health}, StateDir(Path("/s")))


def test_the_live_line_keeps_what_matters_in_every_width() -> None:
    now = situation(A=True)
    writing = {"A": Writing("A", 4).plus("Tabs it ").plus("is").plus(", 漢字 and all")}
    whole = live_line(now, writing, older=2.6, cells=200, hint="? help")
    assert whole == "A writes turn 4, 1:04, 6 words · “Tabs it is, 漢字 and all” · turn 3 of 20 · $2.00 left · ? help"
    for cells in range(1, 120):
        shown = live_line(now, writing, older=2.6, cells=cells, hint="? help")
        assert width(shown) <= cells
        assert shown.startswith("A writes turn 4"[: cells - 1])
    assert live_line(now, writing, older=0, cells=20) == "A writes turn 4, 1:…"
    assert live_line(now, {}, older=0, cells=80).startswith("A thinks about turn 4, 1:01 · turn 3 of 20")
    assert live_line(situation(), {}, older=0, cells=80).startswith("waiting for A")


def test_words_are_counted_over_pieces() -> None:
    writing = Writing("A", 2)
    for piece in ("Ta", "bs are", " fine.", "\n\n", "Re", "ally."):
        writing = writing.plus(piece)
    assert (writing.words, writing.tail) == (4, "Tabs are fine.\n\nReally.")
    assert len(writing.plus("x" * 10_000).tail) < 1000


def test_an_agent_has_one_colour_and_its_neighbours_others() -> None:
    assert len({colour_of(agent) for agent in "ABCDEFGH"}) == 8
    assert colour_of("a") == colour_of("A")
    assert colour_of("critic") == colour_of("critic")

"""The live line, and what fits into it. No terminal needed."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dialogd.cli.status import Situation
from dialogd.cli.terminal import colour_of, fit, tail, width
from dialogd.cli.watch import Writing, live_line
from dialogd.store.folders import StateDir
from tests.support.room import Room, opening

WIDE = "漢字かな🎉é\u0301e\u0301❤\ufe0f👩\u200d💻 word \uff46"


@given(st.text(alphabet=WIDE, max_size=60), st.integers(0, 80))
def test_text_is_cut_at_either_end_to_the_cells_there_are(text: str, cells: int) -> None:
    for cut, whole in ((fit(text, cells), text.startswith), (tail(text, cells), text.endswith)):
        assert width(cut) <= cells
        assert (cut == text) if width(text) <= cells else whole(cut.strip("…"))


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
        assert shown.startswith("A writes turn 4"[: cells - 1].rstrip())
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

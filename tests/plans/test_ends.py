"""How a dialog ended is told in the same words wherever somebody reads it."""

from __future__ import annotations

import re

from dialogd.cli.status import ended
from dialogd.protocol import lifecycle
from dialogd.protocol.grammar import parse
from dialogd.protocol.marks import MARKS
from dialogd.protocol.state import Dialog
from dialogd.server.page import end_piece, result_piece
from dialogd.views.documents import export
from dialogd.views.flow import as_text, away
from dialogd.views.plan import YOU, Plan
from tests.plans.ends import ROOMS, file_of
from tests.support.cases import cases

NAMES = re.compile(rf"\b({'|'.join(name for name in MARKS if '_' in name)}|STOPPED|DEADLOCK|DECIDED|REHEARSAL)\b")


def plainly(html: str) -> str:
    """The words of a fragment, on one line."""
    return " ".join(re.sub(r"<[^>]*>", "", html).split())


def texts(dialog: Dialog) -> dict[str, str]:
    """What is read of an end: in the terminal, in an export, on the page."""
    return {
        "terminal": ended(dialog),
        "state": lifecycle.in_words(dialog),
        "missed": as_text(away(dialog, 0)).partition("\nproposed")[0],
        "export": export(dialog, "md").decode().partition("## About this dialog")[0],
        "card": plainly(end_piece(dialog, "/tmp/d.md")),
        "result": plainly(result_piece(dialog, "/tmp/d.md")).partition("The plan")[0],
    }


@cases("kind", list(ROOMS))
def test_an_end_is_told_in_words_and_with_names(kind: str) -> None:
    dialog = parse(file_of(kind))
    told = texts(dialog)
    for surface, text in told.items():
        assert not NAMES.search(text), (surface, text)
        assert not re.search(r"\b(?:absent: |\()[ABC]\b|(?<!Claude )\b[ABC] in turn \d", text), (surface, text)
        assert "everybody signed this" not in text, (surface, text)
    assert told["terminal"] == f"ended, {Plan(dialog, person=YOU).headline}"
    assert Plan(dialog).headline in told["export"]


def test_who_failed_is_named_where_an_error_ended_it() -> None:
    dialog = parse(file_of("error"))
    words = "fewer than two agents are left, because Claude B failed, or gave no answer in time, twice"
    assert Plan(dialog).because == words
    for surface in ("terminal", "export", "result", "card"):
        assert words[5:] in texts(dialog)[surface], surface


def test_it_is_said_where_nobody_was_at_the_table() -> None:
    for kind in ("unattended", "consensus"):
        dialog, is_told = parse(file_of(kind)), kind == "unattended"
        assert ("Nobody was at the table" in export(dialog, "md").decode()) == is_told
        assert ("Nobody was at the table" in texts(dialog)["card"]) == is_told

"""Shipped templates through real daemons: the same dialogs as the goldens, to the same ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from dialogd.protocol.grammar import parse
from dialogd.protocol.model import Entry
from dialogd.protocol.state import Dialog
from tests.cli.command import PATIENCE, Commands

GOLDEN = Path(__file__).parents[1] / "protocol" / "golden" / "templates"
RECORDED = ("ROUND", "DECISION", "DECIDED")  # by whoever is last
TOPIC = "Where should user sessions live?"


def held(dialogd: Commands, name: str, agents: str = "rehearsal") -> Dialog:
    """The dialog of that template, held by daemons of their own to its end."""
    words = ["run", TOPIC, "-t", name, "--agents", agents, "--pace", "0"]
    with dialogd.background(*words) as process:
        assert process.wait(PATIENCE) == 0, dialogd.output
    return parse(dialogd.file.read_bytes())


def said(entry: Entry) -> tuple[str, str, list[str], tuple[str, ...] | None]:
    """What an entry says, apart from time and place."""
    body = entry.body.partition("---\n\n**Total turns:**")[0]
    return entry.by, body.strip(), [str(mark) for mark in entry.marks], entry.turn


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("debate", marks=pytest.mark.slow), "relay"])
def test_a_dialog_in_turns_is_the_golden_one(dialogd: Commands, name: str) -> None:
    golden = parse((GOLDEN / f"{name}.md").read_bytes())
    dialog = held(dialogd, name)
    assert [said(entry) for entry in dialog.entries[1:]] == [said(entry) for entry in golden.entries[1:]]
    assert dialog.header.rules == golden.header.rules


@pytest.mark.slow
def test_a_council_in_rounds_comes_to_the_same_decision(dialogd: Commands) -> None:
    golden = parse((GOLDEN / "council.md").read_bytes())
    dialog = held(dialogd, "council", "rehearsal,rehearsal,rehearsal")
    first = [entry for entry in dialog.entries if entry.frame and entry.re == "1"]
    assert [bool(entry.mark("SEALED")) for entry in first] == [True] * 3 + [False] * 3
    assert dialog.state.outcome.name == golden.state.outcome.name == "DECIDED"
    assert dialog.state.floor.rounds == golden.state.floor.rounds
    said_by = [sorted((turn.by, mark.name) for turn in one.turns for mark in turn.marks if mark.name not in RECORDED)
               for one in (dialog, golden)]  # fmt: skip
    assert said_by[0] == said_by[1]
    approved = next(p.text for p in dialog.state.table.proposals if p.ref == "P1")
    assert f"\ntext   P1: {approved}\nfile   " in dialogd.output  # what was decided, not only its number
    assert "A (Engineer): rehearsal" in dialogd.output

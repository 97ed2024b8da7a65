"""Files that the version before wrote: they read as they did then, verify, and go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dialogd.protocol import seal
from dialogd.protocol.certificate import certify
from dialogd.protocol.grammar import parse
from dialogd.protocol.marks import EARLIER
from dialogd.protocol.review import findings
from dialogd.protocol.state import Dialog
from dialogd.views.plan import Plan
from tests.support.cases import cases
from tests.support.room import Room

FILES = Path(__file__).with_name("golden") / "earlier"
FACTS: dict[str, dict[str, Any]] = json.loads((FILES / "facts.json").read_text(encoding="utf-8"))
NOW = {"MAX_TIME_REACHED": "STOPPED", "BUDGET_REACHED": "STOPPED", "MAX_SIZE_REACHED": "STOPPED"}
ROUNDS = {"all_failed": 2}  # a round in which every agent failed was none then: all of them were absent at once


def read(name: str) -> Dialog:
    """The dialog of one of the files."""
    return parse((FILES / f"{name}.md").read_bytes())


def facts(dialog: Dialog) -> dict[str, Any]:
    """What a file comes to, as `facts.json` has it from the version that wrote the file."""
    state, certificate = dialog.state, certify(dialog)
    return {
        "outcome": [state.outcome.name, state.outcome.entry] if state.outcome else None,
        "owing": list(state.owing),
        "rounds": state.floor.rounds,
        "closing": state.closing,
        "red_team": state.table.red_team,
        "signers": [list(signer) for signer in state.table.standing.signers] if state.table.standing else None,
        "decisions": [[d.ref, d.outcome, d.method, d.entry] for d in state.table.decisions],
        "polls": [[poll.ref, [[b.agent, b.choice] for b in poll.ballots]] for poll in state.polls.open],
        "blocking": [list(each) for each in state.table.blocking],
        "findings": len(findings(dialog)),
        "contributed": state.floor.contributed,
        "seals": [[seal.agent, seal.status, seal.is_independent] for seal in seal.answers(dialog)],
        "certificate": [certificate.ref, [[s.agent, s.turn] for s in certificate.signers]] if certificate else None,
    }


@cases("name", sorted(FACTS))
def test_a_file_of_the_version_before_means_what_it_meant(name: str) -> None:
    """Votes, signatures, decisions, seals, findings and rounds stay; old names of ends are said in the new way.

    Rounds are counted as they were, also of what has ended, but for one in which every agent failed.
    """
    then = {**FACTS[name], "rounds": ROUNDS.get(name, FACTS[name]["rounds"])}
    if then["outcome"]:
        then = {**then, "outcome": [NOW.get(then["outcome"][0], then["outcome"][0]), then["outcome"][1]]}
    assert facts(read(name)) == then


@cases("name", sorted(FACTS))
def test_no_hash_of_such_a_file_is_doubted(name: str) -> None:
    """Every frame is sound, every link fits, and no seal is broken: they are checked over the lines as they stand."""
    dialog = read(name)
    assert all(entry.linked for entry in dialog.entries)
    assert not any(answer.is_harm for answer in seal.answers(dialog))


@cases("name", sorted(FACTS))
def test_such_a_file_goes_on(name: str) -> None:
    """The person speaks, also after each old end, and whoever is asked answers in the form of today."""
    room = Room((FILES / f"{name}.md").read_bytes())
    room.say("Go on, please.")
    who = room.owing[0]
    entry = room.says(who, "One more thing.\n\n[EVIDENCE: a lookup takes 4 ms]\n[CONFIDENCE: 0.8]")
    assert [mark.name for mark in entry.marks if mark.name in EARLIER] == []
    assert "EVIDENCE" in [mark.name for mark in entry.marks]


def test_each_old_mark_stands_in_one_of_the_files() -> None:
    """All names that were given up are read from a frame that the version before wrote."""
    text = "".join((FILES / f"{name}.md").read_text(encoding="utf-8") for name in FACTS)
    assert [name for name in sorted(EARLIER) if f"\n[{name}" not in text] == []


def test_why_a_dialog_ended_is_read_from_its_old_name() -> None:
    """Time, size and budget had ends of their own; now they are causes of one."""
    ends = {name: read(name).state.outcome for name in ("max_time", "max_size", "budget")}
    assert {name: (end.cause if end else "") for name, end in ends.items()} == {
        "max_time": "time",
        "max_size": "size",
        "budget": "budget",
    }


def test_what_settles_a_deadlock_is_read_from_the_old_marks() -> None:
    """CRUX and EXPERIMENT were marks of their own; a plan names them all the same."""
    dialog = read("crux")
    assert [said.text for said in Plan(dialog).crux] == ["is 50 ms enough?"]
    assert [said.text for said in Plan(dialog).experiments] == ["measure it"]

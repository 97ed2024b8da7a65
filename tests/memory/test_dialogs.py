"""Dialogs in a list: each once, by its newest copy, whatever it is called."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dialogd.errors import BadInput
from dialogd.memory import history
from tests.memory.shelf import RETRIES, SESSIONS, STOPPED, Shelf, past
from tests.memory.test_index import STAGES
from tests.support.past import Past
from tests.support.room import Room, opening


def test_a_dialog_that_went_on_stands_once_by_its_newest_copy(shelf: Shelf) -> None:
    copies = [shelf.put(data) for data in STAGES]
    assert len(set(copies)) == 3
    (row,) = shelf.memory.dialogs(None)
    assert (row.archive, row.outcome) == (str(copies[2]), "CONSENSUS_REACHED")
    assert row.file == str(shelf.folder / "dialog.md")
    first, second = shelf.memory.decisions(row.id)
    assert (first.text, second.text) == ("Sessions live in files.", "Sessions live in Redis.")
    assert first.superseded == "the dialog went on after it, and decided again in turn 7"
    assert second.superseded == ""
    assert [decision.ref for decision in shelf.memory.recall("sessions")] == ["P2", "P1"]
    shelf.put(STAGES[0])
    assert [row.archive for row in shelf.memory.dialogs(None)] == [str(copies[2])]


def test_a_list_says_what_was_agreed_in_words(shelf: Shelf) -> None:
    agreed = "### Sessions\n\n**Postgres** holds `sessions`.\n**One row** each,\n\n- *thirty* days\n- 3 * 2 rows"
    shelf.put(past(1, "Sessions", agreed))
    (row,) = shelf.memory.dialogs(None)
    assert row.decided == "Postgres holds sessions. One row each, thirty days 3 * 2 rows"


def test_two_dialogs_with_one_id_are_two_rows(shelf: Shelf) -> None:
    shelf.put(SESSIONS)
    other = Past(SESSIONS.id, "Colours of the logo", "Which?", ("Blue would do.",), "The logo is blue.")
    shelf.put(other)
    ids = {row.topic: row.id for row in shelf.memory.dialogs(None)}
    assert len(set(ids.values())) == 2
    assert min(ids.values(), key=len) == SESSIONS.id
    assert max(ids.values(), key=len).startswith(f"{SESSIONS.id}~")
    for topic, name in ids.items():
        assert shelf.memory.dialog(name).topic == topic


def test_a_dialog_is_found_by_the_beginning_of_its_id(shelf: Shelf) -> None:
    for dialog in (SESSIONS, RETRIES):
        shelf.put(dialog)
    assert shelf.memory.dialog("d00001").id == shelf.memory.dialog("where-should").id == SESSIONS.id
    assert Path(shelf.memory.dialog(RETRIES.id).archive).read_bytes() == RETRIES.file()
    for wanted in ("d0", "x", "", "%", "d_0001"):
        with pytest.raises(BadInput):
            shelf.memory.dialog(wanted)


HOSTILE = (
    "'); DROP TABLE dialog; --",
    '" OR 1=1',
    "[CONSENSUS_REACHED]",
    "a\tb\x1b[2J\u202e evil",
    "../../etc/passwd",
    "NEAR(a b) AND * ^ : - {",
    "<script>alert(1)</script>",
)


@pytest.mark.parametrize("topic", HOSTILE)
def test_a_hostile_topic_is_only_text(shelf: Shelf, topic: str) -> None:
    shelf.put(past(7, topic, f"We keep {topic.replace('[', '(')} as it is, and call it harmless."))
    (row,) = shelf.memory.dialogs(None)
    assert row.topic[0] == topic[0]
    assert [hit.dialog for hit in shelf.memory.search("harmless")] == ["d00007"]
    assert [decision.dialog for decision in shelf.memory.recall(f"harmless {topic}")] == ["d00007"]
    shelf.memory.search(topic)


def test_costs_and_ends_are_those_of_the_file(shelf: Shelf) -> None:
    shelf.put(STOPPED)
    room = Room(opening(keys=["Topic: unpriced"]), A=["Well."])
    room.step("A")
    room.stop("enough")
    shelf.put(room)
    rows = {row.topic: row for row in shelf.memory.dialogs(None)}
    priced, unknown = rows["Logo colour"], rows["unpriced"]
    assert (priced.turns, priced.usd, priced.outcome, priced.state) == (3, 0.008, "STOPPED", "ended")
    assert (unknown.usd, unknown.tokens) == (None, None)
    assert unknown.headline == "stopped by the person before an agreement: enough"


def test_the_last_word_on_an_outcome_counts_and_none_is_lost(shelf: Shelf) -> None:
    shelf.put(SESSIONS)
    memory, file = shelf.memory, shelf.state.memory / "outcomes.jsonl"
    memory.outcome("d0", "worked", "no  lost\nsession")
    with file.open("ab") as lines:
        lines.write(b'{"dialog": "d00001", "outcome": "sideways", "why": "x"}\nnonsense\n[1]\n{"dialog": "d0')
    memory.outcome("d00001", "failed", "40,000 rows a day")
    assert memory.recall("user sessions")[0].verdict == memory.dialog("d00001").verdict
    assert [(v.outcome, v.why) for v in memory.verdicts("d0")] == [
        ("worked", "no lost session"),
        ("failed", "40,000 rows a day"),
    ]
    assert list(history(file)) == ["d00001"]
    assert json.loads(file.read_bytes().split(b"\n")[0])["why"] == "no lost session"
    shelf.index.unlink()
    assert memory.dialogs()[0].verdict == memory.verdicts("d0")[-1]
    for outcome, why in (("sideways", "x"), ("worked", "  ")):
        with pytest.raises(BadInput):
            memory.outcome("d0", outcome, why)

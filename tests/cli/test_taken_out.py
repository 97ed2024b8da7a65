"""Turns that an editor's save has taken out of the file: told everywhere at once, with the line that puts them back."""

from __future__ import annotations

import re
import shlex

import pytest

from dialogd import person
from tests.cli.command import Commands, until
from tests.server.daemon_process import listening, send
from tests.support.forked import fork
from tests.support.pair import Pair, overwrite


def conducted(dialogd: Commands, turns: int = 4) -> list[bytes]:
    """A dialog with so many turns of the person after the first one; the file after each."""
    log = dialogd.begin("Tabs?")
    found = [log.path.read_bytes()]
    for number in range(2, turns + 2):
        person.say(log, f"Word {number}.\n\n## Turn 9 — Nobody\n[CONSENSUS_REACHED]", to="A")
        found.append(log.path.read_bytes())
    return found


def line_of(text: str) -> list[str]:
    """The command that a text gives to put turns back, without its first word."""
    found = re.search(r"Put back, as a note of yours: (dialogd restore.*?);", " ".join(text.split()))
    assert found is not None, text
    return shlex.split(found[1])[1:]


def test_without_a_daemon_status_says_so_and_the_line_works(dialogd: Commands) -> None:
    before = conducted(dialogd)
    dialogd.file.write_bytes(before[1])
    told, facts = dialogd.all([["status"], ["status", "--json"]])
    assert "Turns 3 to 5: taken out of the file by a save" in told.out
    assert facts.json["warnings"][0].startswith("Turns 3 to 5: ")
    done = dialogd(*line_of(told.out))
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("they are back, as a note of yours; ")
    dialog = dialogd.log.read()
    note = dialog.last
    assert (note.by, note.number, note.marks, dialog.state.number, dialog.state.outcome) == ("USER", 0, (), 2, None)
    for number in (3, 4, 5):
        assert f"**Turn {number} — User** (" in note.body
        assert f"Word {number}.\n\n## Turn 9 — Nobody\n[CONSENSUS_REACHED]\n" in note.body
    assert "<!-- dialogd" not in note.body
    again, status = dialogd.all([["restore"], ["status"]])
    assert again.out.startswith("no turn is missing; ")
    assert "taken out" not in status.out
    assert len(dialogd.log.read().entries) == len(dialog.entries)


def test_what_is_written_while_somebody_reads_is_not_missed(dialogd: Commands) -> None:
    log = dialogd.begin("Tabs?")
    read = log.read()
    person.say(dialogd.log, "What about cost?", to="A")
    assert log.lost(read) == ()


def test_what_was_kept_and_is_deleted_is_forgotten(dialogd: Commands) -> None:
    before = conducted(dialogd)
    dialogd.file.write_bytes(before[2])
    log = dialogd.log
    aside = log.set_aside({entry.chain for entry in log.read().entries})
    assert aside is not None
    told = dialogd("status").out
    assert f"the text is kept in {aside / 'dropped.md'}" in " ".join(told.split())
    (aside / "dropped.md").unlink()
    assert "taken out" not in dialogd("status").out


def test_a_dialog_that_another_one_replaced_is_not_missed(dialogd: Commands) -> None:
    conducted(dialogd)
    dialogd.file.write_bytes(conducted_elsewhere(dialogd))
    assert "taken out" not in dialogd("status").out


def conducted_elsewhere(dialogd: Commands) -> bytes:
    """Another dialog's bytes."""
    return dialogd.begin("Spaces?", "other.md").path.read_bytes()


@pytest.mark.slow
def test_with_daemons_all_say_so_at_once(dialogd: Commands) -> None:
    with Pair(dialogd.folder, launch=fork) as pair:
        pair.start()
        pair.begin("Tabs?", turn="USER", dialog="tabs-1")
        for who in "AB":
            pair.until(lambda who=who: (pair[who].health() or {}).get("dialog"), "both to know it")  # type: ignore[misc]
        old = pair.file.read_bytes()
        with listening(pair["A"]) as a, listening(pair["B"]) as b, dialogd.background("watch"):
            for number in (2, 3):
                person.say(dialogd.log, f"Word {number}.", to="A")
                for events in (a, b):
                    events.until("turn", number=number)
            until(lambda: "Word 3." in dialogd.output, "the watch", lambda: dialogd.output)
            overwrite(pair.file, old)
            dropped = [events.until("dropped").data for events in (a, b)]
            until(lambda: "-- Turns 2 to 3: taken out" in dialogd.output, "the watch", lambda: dialogd.output)
            assert [(data["first"], data["last"]) for data in dropped] == [(2, 3), (2, 3)]
            assert all(line_of(data["text"]) == ["restore", "--file", str(pair.file)] for data in dropped)
            for daemon in (pair["A"], pair["B"]):
                assert dropped[0]["text"][:60] in (daemon.health() or {})["warnings"][0]
                pair.until(lambda d=daemon: "Turns 2 to 3: taken out of the file by a save" in d.said, "its log")  # type: ignore[misc]
                state = send(daemon, "GET /page/state").json
                assert state["warnings"][0].startswith("Turns 2 to 3: taken out")
            assert dialogd(*line_of(dropped[0]["text"])).code == 0
            for daemon in (pair["A"], pair["B"]):
                pair.until(lambda d=daemon: (d.health() or {"warnings": "?"})["warnings"] == [], "no warning")  # type: ignore[misc]
            assert pair.file.read_text().count("**Turn 3 — User** (") == 1


def test_one_turn_from_the_middle_is_missed_too(dialogd: Commands) -> None:
    with Pair(dialogd.folder, "A", launch=fork) as pair:
        pair.start()
        pair.begin("Tabs?", turn="USER", dialog="tabs-1")
        pair.until(lambda: (pair["A"].health() or {}).get("dialog"), "it to be known")
        for number in (2, 3):
            person.say(dialogd.log, f"Word {number}.", to="A")
            pair.until(lambda n=number: (pair["A"].health() or {}).get("turn") == n, "it to be read")  # type: ignore[misc]
        with listening(pair["A"]) as events:
            whole = pair.file.read_bytes()
            start, end = whole.index(b"\n---\n\n## Turn 2"), whole.index(b"\n---\n\n## Turn 3")
            overwrite(pair.file, whole[:start] + whole[end:])
            assert events.until("dropped").data["first"] == 2
        assert "Turn 2: taken out of the file by a save" in dialogd("status").out
        overwrite(pair.file, whole)
        pair.until(lambda: (pair["A"].health() or {"warnings": "?"})["warnings"] == [], "it to be back")
        overwrite(pair.file, whole[:start] + whole[end:])
        assert send(pair["A"], "POST /restore").status == 200
        assert "**Turn 2 — User** (" in pair.file.read_text()

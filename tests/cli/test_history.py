"""Earlier dialogs: `dialogd list`, `recall`, `outcome` and `--recall`; what they print stands in `golden/`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dialogd.protocol.grammar import parse
from dialogd.server.wire import DialogOut
from dialogd.store.disk import StateDir
from dialogd.views.documents import plan_facts as as_json
from dialogd.views.plan import Plan
from tests.cli.command import Commands, reviewed
from tests.memory.shelf import RETRIES, SESSIONS, STOPPED, Shelf, past
from tests.plans.scenes import BY_HAND
from tests.support.room import Room, opening


def filled(dialogd: Commands) -> Shelf:
    """The archive of these commands, with three dialogs."""
    shelf = Shelf(dialogd.folder)
    assert shelf.state == dialogd.state == StateDir(dialogd.folder / "state")
    for number, dialog in enumerate((SESSIONS, RETRIES, STOPPED)):
        shelf.put(dialog, f"{number}.md")
    return shelf


def test_list_shows_what_goes_on_and_what_ended(dialogd: Commands) -> None:
    assert dialogd("list").err == "no dialog yet; begin one: dialogd run TOPIC\n"
    filled(dialogd)
    dialogd.begin("Going on")
    done, facts, first = dialogd.all([["list"], ["list", "--json"], ["list", "--limit", "1"]])
    rows = facts.json
    assert {row["topic"] for row in rows[1:]} == {"Logo colour", RETRIES.topic, SESSIONS.topic}
    assert {row["topic"]: row["state"] for row in rows}["Going on"] == "open"
    assert rows[0]["file"] == str(dialogd.file)
    lines = done.out.rstrip("\n").split("\n")
    assert len(lines) == len(rows) == 4
    assert lines[0].startswith("open")
    assert "CONSENSUS_REACHED" in done.out
    assert "$0.01" in done.out
    assert first.out == f"{lines[0]}\n"


def test_a_dialog_that_ended_by_hand_is_archived_when_it_is_seen(dialogd: Commands) -> None:
    dialogd.file.write_text(BY_HAND, encoding="utf-8")
    for _ in range(2):
        (row,) = dialogd("list", "--json").json
        assert (row["state"], row["outcome"], row["file"]) == ("ended", "CONSENSUS_REACHED", str(dialogd.file))
        assert Path(row["archive"]).read_bytes() == BY_HAND.encode()
    assert len(list(dialogd.state.archive.iterdir())) == 1


def test_a_file_of_somebody_elses_making_is_left_alone(dialogd: Commands) -> None:
    real = dialogd.folder / "real.md"
    real.write_text(BY_HAND, encoding="utf-8")
    real.chmod(0o666)
    dialogd.file.symlink_to(real)
    for file in (dialogd.file, real):
        done = dialogd("list", "--file", str(file))
        assert (done.code, done.out) == (0, "")
    assert list(dialogd.state.archive.iterdir()) == []


def test_show_tells_one_dialog(dialogd: Commands) -> None:
    shelf = filled(dialogd)
    row = shelf.memory.dialog(SESSIONS.id)
    other = dialogd.folder / "other.md"
    other.write_bytes(past(9, "Elsewhere", "It is elsewhere.").file())
    other.chmod(0o600)
    words = [["list", SESSIONS.id], ["list", row.archive], ["list", "d00001", "--json"], ["list", str(other), "--json"]]
    by_id, by_path, facts, elsewhere = dialogd.all(words)
    assert by_id.out == by_path.out
    assert by_id.out.startswith(f"{SESSIONS.topic}  ({SESSIONS.id})\nagreed: ")
    assert "── Turn 2, Claude A" in by_id.out
    assert [decision["text"] for decision in facts.json["decisions"]] == [SESSIONS.decision]
    assert [entry["number"] for entry in facts.json["entries"]] == [1, 2, 3, 4]
    assert (elsewhere.json["topic"], elsewhere.json["archive"]) == ("Elsewhere", "")
    assert elsewhere.json["decisions"][0]["text"] == "It is elsewhere."
    assert dialogd("list", "d00").code == 1  # too short for an id: a word
    done = dialogd("list", "/nowhere/at.md")
    assert (done.code, done.out, "fix: " in done.err) == (2, "", True)


def test_a_turn_that_was_withdrawn_is_shown_as_that(dialogd: Commands) -> None:
    room = Room(opening("A", "B"), A=["Use Redis.\n\n[PROPOSAL: Redis]"])
    room.step("A")
    room.types("\n## Note — User\n\n[STRIKE: 2]\n")
    dialogd.file.write_bytes(room.paper.data)
    shown, facts = dialogd.all([["list", str(dialogd.file)], ["list", str(dialogd.file), "--json"]])
    heads = [row for row in shown.out.split("\n") if row.startswith("── ")]
    assert [row.endswith(", withdrawn by you ──") for row in heads] == [False, True, False]
    assert "Use Redis." in shown.out
    plan, served = as_json(Plan(room.dialog)), DialogOut.of(room.dialog, 0).model_dump()
    for entries in (facts.json["entries"], plan["conversation"], served["entries"]):
        assert [(entry["struck"], entry["marks"]) for entry in entries[:2]] == [(False, []), (True, [])]
        assert not entries[2]["struck"]


def test_what_was_said_decided_and_came_of_it_is_found(dialogd: Commands) -> None:
    filled(dialogd)
    assert dialogd("outcome", "d00001", "Failed", "40,000 rows a day", "--json").json["verdict"]["outcome"] == "failed"
    shown = reviewed(dialogd, "history", [
        "list turquoise RIVAL", "list turquoise --json --agent B --since 2026-01-01",
        "list turquoise --since 2026-03-03", "list 'a-b\" AND *'", "list x --since soon", "list d00001",
        "recall 'what did we decide about user sessions?'", "recall sessions --json", "recall football",
        "outcome d00001 maybe x", "outcome d00001 worked ' '", "outcome zzz worked x",
    ])  # fmt: skip
    assert "*turquoise*" in shown
    assert "failed" in dialogd("list").out


def test_hostile_text_does_not_reach_the_terminal(dialogd: Commands) -> None:
    evil = "\u202e\u2066evil"
    shelf = Shelf(dialogd.folder)
    shelf.put(past(8, f"Topic {evil}", f"Harmless {evil} text.", f"Said {evil}"))
    shelf.memory.outcome("d00008", "worked", f"why {evil}")
    words = (["list"], ["list", "d00008"], ["list", "harmless"], ["recall", "harmless text"])
    for done in dialogd.all([*words, *([*line, "--json"] for line in words)]):
        assert done.code == 0
        assert "\u202e" not in done.out
        assert "\u2066" not in done.out
    assert json.loads(dialogd("list", "--json").out)[0]["topic"] == f"Topic {evil}"


@pytest.mark.slow
def test_a_dialog_that_daemons_ended_is_archived_and_a_rehearsal_is_no_memory(dialogd: Commands) -> None:
    done = dialogd("run", "Where do sessions live?", "--agents", "rehearsal,rehearsal", "--pace", "0")
    assert done.code == 0, done.err
    (row,) = dialogd("list", "--json").json
    assert row["outcome"] == "CONSENSUS_REACHED"
    assert Path(row["file"]).read_bytes() == Path(row["archive"]).read_bytes()
    assert row["is_rehearsal"] is True
    assert " REHEARSAL " in dialogd("list").out
    found = dialogd("list", "sessions").out.split("\n")[0:-1:2]
    assert found
    assert all(f"{row['id']}  REHEARSAL  " in head for head in found), found
    assert all(hit["is_rehearsal"] for hit in dialogd("list", "sessions", "--json").json)
    assert dialogd("recall", "where do sessions live?").code == 1
    next_one = dialogd("new", "Where do sessions live?", "--recall", "--file", str(dialogd.folder / "next.md"))
    assert "nothing was recalled" in next_one.err
    assert "Recalled from" not in (dialogd.folder / "next.md").read_text(encoding="utf-8")
    assert [*dialogd.state.archive.iterdir()] == [Path(row["archive"])]


# -- What was recalled for a new dialog --------------------------------------------------------------------------------


def test_new_puts_what_was_recalled_before_the_agents(dialogd: Commands) -> None:
    filled(dialogd)
    lines = [
        ["new", "User sessions, once more", "--recall", "--file", "a.md"],
        ["new", "Something else", "--recall", "retry policy of payments", "--file", "b.md"],
        ["new", "--recall", "User sessions", "--file", "c.md"],
        ["new", "--recall=retry policy", "User sessions", "--file", "d.md"],
        ["new", "Football", "--recall", "--file", "e.md"],
    ]
    wanted = [SESSIONS, RETRIES, SESSIONS, RETRIES, None]
    for line, done, found in zip(lines, dialogd.all(lines), wanted, strict=True):
        assert done.code == 0, done.err
        dialog = parse((dialogd.folder / line[-1]).read_bytes())
        (entry,) = dialog.entries
        assert (entry.marks, dialog.state.owing) == ((), ("A", "B"))
        if found is None:
            assert "nothing was recalled" in done.err
            assert "Recalled" not in entry.body
        else:
            assert f"recalled: {found.id}" in done.err
            assert f"> > {found.decision}" in entry.body


def test_the_index_is_rebuilt_from_the_archive(dialogd: Commands) -> None:
    shelf = filled(dialogd)
    before = dialogd("list", "--rebuild", "--json").json
    assert (before["copies"], before["dialogs"], before["decisions"]) == (3, 3, 2)
    assert {*before} == {"archive", "index", "copies", "unreadable", "dialogs", "entries", "decisions"}
    shelf.index.write_bytes(b"nonsense")
    (shelf.state.archive / "broken.md").write_text("no dialog", encoding="utf-8")
    told = dialogd("list", "--rebuild").out
    assert "4 copies, 3 dialogs, 1 of them cannot be read\n" in told
    assert told.endswith(" 2 decisions\n")


def test_who_only_rehearsed_is_told_that_rehearsals_are_not_recalled(dialogd: Commands) -> None:
    shelf = Shelf(dialogd.folder)
    for number, dialog in enumerate((SESSIONS, RETRIES)):
        shelf.put(replace(dialog, model="rehearsal"), f"{number}.md")
    done, begun = dialogd.all([["recall", "sessions"], ["new", "User sessions", "--recall", "--file", "a.md"]])
    why = "no earlier dialog decided anything about that; 2 rehearsals, in which no model was asked, cannot be recalled"
    assert (done.code, done.err) == (1, f"nothing found: {why}\n")
    assert (begun.code, f"note: nothing was recalled: {why}\n" in begun.err) == (0, True)

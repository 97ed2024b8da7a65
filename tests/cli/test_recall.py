"""`dialogd recall`, `outcome`, `memory` and `--recall`, by real processes."""

from __future__ import annotations

from dataclasses import replace

from dialogd.protocol.grammar import parse
from tests.cli.command import Commands
from tests.cli.test_history import filled
from tests.memory.shelf import RETRIES, SESSIONS, Shelf


def test_recall_answers_with_the_decision_and_how_it_turned_out(dialogd: Commands) -> None:
    filled(dialogd)
    told = dialogd("outcome", "d00001", "Failed", "40,000 rows a day", "--json")
    assert told.json["verdict"]["outcome"] == "failed"
    found, facts, nothing = dialogd.all(
        [
            ["recall", "what did we decide about user sessions?"],
            ["recall", "sessions", "--json"],
            ["recall", "football"],
        ]
    )
    assert found.out.startswith(f"2026-03-02, dialog {SESSIONS.id} “{SESSIONS.topic}”, P1, turns 3, 4\n")
    for words in (
        "approved, everybody signed the same text (B in turn 3, A in turn 4)",
        "later: it failed, “40,000 rows a day”",
        f"    {SESSIONS.decision}\n",
    ):
        assert words in found.out
    assert facts.json[0]["behind"] == [
        {"agent": "B", "turn": 3, "reservation": ""},
        {"agent": "A", "turn": 4, "reservation": ""},
    ]
    assert (nothing.code, nothing.out) == (1, "")
    assert nothing.err == "nothing found: no earlier dialog decided anything about that\n"
    assert "failed" in dialogd("list").out
    for words in (["d00001", "maybe", "x"], ["d00001", "worked", " "], ["zzz", "worked", "x"]):
        assert dialogd("outcome", *words).code == 2


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
    for line, done, past in zip(lines, dialogd.all(lines), wanted, strict=True):
        assert done.code == 0, done.err
        dialog = parse((dialogd.folder / line[-1]).read_bytes())
        (entry,) = dialog.entries
        assert (entry.marks, dialog.state.owing) == ((), ("A", "B"))
        if past is None:
            assert "nothing was recalled" in done.err
            assert "Recalled" not in entry.body
        else:
            assert f"recalled: {past.id}" in done.err
            assert f"> > {past.decision}" in entry.body


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

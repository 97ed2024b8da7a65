"""`dialogd status --away`: what happened while you were away."""

from __future__ import annotations

from tests.cli.command import Commands
from tests.support.room import Room, opening


def test_a_digest_says_what_is_needed_and_what_happened(dialogd: Commands) -> None:
    room = Room(opening("A", "B"))
    for who, text in (("A", "[PROPOSAL: Postgres]"), ("B", "[QUESTION_FOR_USER: which region?]")):
        room.says(who, text)
    dialogd.file.write_bytes(room.paper.data)
    plain, since, facts, refused = dialogd.all(
        [
            ["status", "--away"],
            ["status", "--since", "2"],
            ["status", "--json", "--since", "2026-11-20"],
            ["status", "--since", "x"],
        ]
    )
    assert plain.out == (
        "since turn 1: 2 turns\nnow: under way: it waits for you\nneeded from you: answer B: which region?\n"
        "\nasked you:\n  turn 3, B: which region?\n\nproposed:\n  turn 2, A: P1 Postgres\n"
    )
    assert "Postgres" not in since.out
    assert (facts.json["since"], facts.json["turns"]) == (0, 3)
    assert facts.json["proposed"][0]["text"] == "P1 Postgres"
    assert facts.json["asked_you"][0]["by"] == "B"
    assert (refused.code, dialogd("status", "gone.md", "--away").code) == (2, 3)


def test_nothing_new_is_said_so(dialogd: Commands) -> None:
    dialogd.file.write_text(opening("A", "B"), encoding="utf-8")
    assert dialogd("status", "--away").out.startswith("since turn 1: nothing was written\n")

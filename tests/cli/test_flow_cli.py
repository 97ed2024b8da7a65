"""`dialogd flow` and `dialogd replay`: who said what to whom, and what a dialog came to after each entry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dialogd.backends.seats import Cast, Seat
from dialogd.person import stop
from dialogd.store.logfile import LogFile
from tests.cli.command import Commands, until
from tests.support.room import Room, opening


@pytest.fixture
def held(dialogd: Commands) -> Commands:
    """A proposal, a question that stays open, an objection with signs that steer a terminal."""
    room = Room(opening("A", "B", setup='order = "free"'))
    for who, text in (
        ("A", "[PROPOSAL: keep sessions in Postgres]\n[CONFIDENCE: 0.8]"),
        ("B", "[QUESTION: how many reads?]\n[TO: A]\n[RE: P1]"),
    ):
        room.thinks(who)
        room.advance(60)
        room.answers(who, text)
    dialogd.file.write_bytes(room.paper.data)
    return dialogd


def test_one_line_for_each_message_and_what_is_open(held: Commands) -> None:
    done = held("show")
    assert (done.code, done.err) == (0, "")
    first, second = (datetime(2026, 11, 21, 19, minute, tzinfo=UTC).astimezone() for minute in (1, 2))
    assert done.out == (
        "--:--:--      User → Claude A  TEXT      Where should user sessions live?\n"
        f"{first:%H:%M:%S}  Claude A → Claude B  PROPOSAL  P1 keep sessions in Postgres\n"
        f"{second:%H:%M:%S}  Claude B → Claude A  QUESTION  P1 how many reads?  (open)\n"
        "\nopen: 1\n  turn 3, Claude B → Claude A: how many reads?\n"
    )


def test_filters_and_facts(held: Commands) -> None:
    """By agent, kind and turn, together too; as JSON one array of messages; a picture in Mermaid."""
    lines = [["--agent", "Claude B"], ["--agent", "user"], ["--kind", "proposal"], ["--since", "2"], ["--since", "1"]]
    found = held.all([["show", "--json", *words] for words in lines] + [["show", "--mermaid"]])
    kinds = [[m["message_type"] for m in done.json] for done in found[:-1]]
    assert kinds == [["PROPOSAL", "QUESTION"], ["TEXT"], ["PROPOSAL"], ["QUESTION"], ["PROPOSAL", "QUESTION"]]
    question = found[3].json[0]
    assert set(question) == {
        "message_id", "message_type", "from_agent", "to_agent", "timestamp", "correlation_id", "requires_response",
        "payload", "from_name", "to_names",
    }  # fmt: skip
    assert (question["requires_response"], question["payload"]["is_open"]) == (True, True)
    assert question["correlation_id"].endswith(":2.1")
    assert found[-1].out.startswith("sequenceDiagram\n    participant p1 as User\n")


def test_what_means_nothing_is_refused(held: Commands) -> None:
    lines = [["--agent", "Z"], ["--kind", "nonsense"], ["--since", "soon"], ["--mermaid", "--json"], ["gone.md"]]
    found = held.all([["show", *words] for words in lines])
    assert [done.code for done in found] == [2, 2, 2, 2, 3]
    for done, words in zip(found, ("A (Claude A)", "PROPOSAL", "2h", "--json", "dialogd new"), strict=True):
        assert words in done.err.partition("fix:")[2]


def test_text_cannot_steer_the_terminal(dialogd: Commands) -> None:
    dialogd.file.write_text(opening("A", "B", question="a\x1b]0;evil\x07b \u202e c \x9b31m"), encoding="utf-8")
    for done in dialogd.all([["show"], ["show", "--mermaid"], ["status", "--away"], ["show", "--json"]]):
        assert done.code == 0
        assert not set(done.out) & set("\x1b\x07\x9b\u202e")


def test_follow_shows_what_comes_until_the_end(held: Commands) -> None:
    with held.background("show", "--follow", "--json") as process:
        until(lambda: held.output.count("\n") >= 3, "three messages", lambda: held.output)
        stop(LogFile(held.file, held.log.journals), "enough")
        until(lambda: process.poll() is not None, "the end", lambda: held.output)
    lines = [json.loads(line) for line in held.output.split("\n") if line]
    assert [m["message_type"] for m in lines] == ["TEXT", "PROPOSAL", "QUESTION", "STOPPED"]
    assert process.returncode == 0


def test_the_script_does_the_same(held: Commands, repository: Path) -> None:
    script = [sys.executable, str(repository / "scripts" / "view_message_flow.py"), "--kind", "PROPOSAL"]
    environment = {**os.environ, **held.environment}
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stdout) == (0, held("show", "--kind", "PROPOSAL").out)


@pytest.mark.slow
def test_a_project_names_its_dialog(held: Commands, repository: Path) -> None:
    own, works, neither = (held.folder / name for name in ("own", "works", "neither"))
    for folder in (own, works, neither):
        folder.mkdir()
    (own / "dialogd.toml").write_text('file = "talk.md"\n')
    (own / "talk.md").write_bytes(held.file.read_bytes())
    seat = Seat("A", "rehearsal", project=str(works))
    Cast(held.log.read().id, (seat,)).save(held.state, held.file)
    expected = held("show").out
    by_settings, by_agent, none, both = held.all(
        [["show", "--project", str(own)], ["show", "--project", "works"], ["show", "--project", "neither"],
         ["show", "x.md", "--project", "own"]]
    )  # fmt: skip
    assert (by_settings.out, by_agent.out) == (expected, expected)
    assert (none.code, both.code) == (2, 2)
    assert "dialogd show FILE" in none.err
    script = [sys.executable, str(repository / "scripts" / "view_message_flow.py"), "--project", "works"]
    environment = {**os.environ, **held.environment}
    done = subprocess.run(
        script, env=environment, cwd=held.folder, capture_output=True, text=True, timeout=180, check=False
    )
    assert (done.returncode, done.stdout) == (0, expected)


def test_an_entry_shows_what_it_changed_and_what_everybody_had_to_do(held: Commands) -> None:
    first, turn, facts, gone, none = held.all(
        [["show", "1"], ["show", "2"], ["show", "3", "--json"], ["show", "x.md"], ["show", "9"]]
    )
    assert "proposal P1" not in first.out
    assert "    proposal P1: A: keep sessions in Postgres\n" in turn.out
    assert "    owing: B  (before: A)\n" in turn.out
    assert "  → B replies: it owes the turn that 2 asked for\n" in turn.out
    assert "    limit max_turns: 20\n" in turn.out
    assert (facts.json["entry"], facts.json["changed"]["owing"]) == ("3", ["B", "A"])
    assert facts.json["decisions"]["A"]["action"] == "reply"
    assert (gone.code, none.code) == (3, 2)

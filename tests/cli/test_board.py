"""`dialogd board` shows what was contributed, proposed and decided, as far as somebody wants to see it."""

from __future__ import annotations

import pytest

from tests.cli.command import Commands
from tests.support.room import Room, opening

LONG = "a thought of very many words, " * 20
FIFTY = 50 * "क\u0941"
SETUP = """## Setup

```toml
verdict = "vote"
order = "round-robin"
[messages]
RESULTS = "what was found"
```"""


@pytest.fixture
def held(dialogd: Commands) -> Commands:
    """A vote between three agents, decided in the second round."""
    room = Room(opening("A", "B", "C", more=SETUP))
    for who, text in (
        ("A", "[PROPOSAL: Postgres]\n[CONFIDENCE: 0.8]"),
        ("B", f"[VOTE: P1 approve | simple]\n[IDEA: {LONG}]\n[RE: 2]"),
        ("C", "[VOTE: P1 reject | slow]\n[RESULTS: 数据库 " + "数" * 200 + "]"),
        ("A", "Mine, too.\n[VOTE: P1 approve]"),
    ):
        room.says(who, text)
    dialogd.file.write_bytes(room.paper.data)
    return dialogd


@pytest.mark.slow
def test_three_tables_that_fit_a_page(held: Commands) -> None:
    done = held("status", "--board")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("contributions: 4\n  turn  round  by  type         to  sure  text\n")
    assert "  2     1      A   PROPOSAL P1      0.8   Postgres\n" in done.out
    assert "\nproposals: 1\n" in done.out
    assert "approved  A, B  C        B approve, C reject, A approve\n      Postgres\n" in done.out
    assert "\ndecisions: 1\n" in done.out
    assert "2 for (B, A), 1 against (C)\n      at least 67% for it\n" in done.out
    lines = done.out.split("\n")
    assert max(len(line) + sum(line.count(char) for char in "数据库") for line in lines) in (99, 100)
    assert sum(line.endswith("…") for line in lines) == 2


def test_marks_that_take_no_cell_are_not_counted(dialogd: Commands) -> None:
    room = Room(opening("A", "B", "C", more=SETUP))
    room.says("A", f"[IDEA: {FIFTY}]")
    dialogd.file.write_bytes(room.paper.data)
    assert f"  {FIFTY}\n" in dialogd("status", "--board").out


def test_facts_as_json(held: Commands) -> None:
    """Whole texts, votes one by one."""
    facts = held("status", "--board", "--json").json
    assert list(facts) == ["file", "dialog", "contributions", "proposals", "decisions"]
    assert facts["contributions"][1]["text"] == " ".join(LONG.split())
    assert facts["contributions"][1]["refs"] == ["2"]
    assert facts["proposals"][0]["votes"][0] == {
        "agent": "B", "choice": "approve", "reason": "simple", "turn": 3, "weight": 1.0,
    }  # fmt: skip
    assert facts["decisions"][0]["method"] == "vote"


def test_a_dialog_without_any_says_so(dialogd: Commands) -> None:
    dialogd.begin("Tabs?")
    bare, gone = dialogd.all([["status", "--board"], ["status", "--board", "--file", "gone.md"]])
    assert bare.out == "this dialog has no contributions, no proposals and no decisions yet\n"
    assert gone.code == 3


def test_votes_that_weigh_more_say_so(dialogd: Commands) -> None:
    heavy = SETUP.replace("```toml\n", "```toml\nquorum = 1.0\n").replace(
        "[messages]", "[roles.B]\nweight = 3\n[messages]"
    )
    room = Room(opening("A", "B", "C", more=heavy))
    for who, text in (("A", "[PROPOSAL: Postgres]"), ("B", "[VOTE: P1 approve]")):
        room.says(who, text)
    dialogd.file.write_bytes(room.paper.data)
    said, before = dialogd("status").out, dialogd("status", "--json").json
    assert "P1: B approve (weight 3); not yet: A, C" in said
    assert before["consensus_reached"] is False
    assert [vote["weight"] for vote in before["rules"]["polls"][0]["votes"]] == [3.0]
    for who, text in (("C", "[VOTE: P1 reject]"), ("A", "It stands.\n[VOTE: P1 approve]")):
        room.says(who, text)
    dialogd.file.write_bytes(room.paper.data)
    shown, facts = dialogd.all([["status", "--board"], ["status", "--board", "--json"]])
    assert "B approve (weight 3), C reject, A approve\n" in shown.out
    assert "2 for (B, A), 1 against (C); weight 4 to 1 of 5\n" in shown.out
    weights = {vote["agent"]: vote["weight"] for vote in facts.json["proposals"][0]["votes"]}
    assert weights == {"A": 1.0, "B": 3.0, "C": 1.0}

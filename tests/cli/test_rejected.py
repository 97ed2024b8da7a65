"""What the person made of a decision after the end is said the same wherever decisions are shown."""

from __future__ import annotations

import json

import pytest

from dialogd.memory.records import facts as kept_of
from dialogd.server import page as panels
from dialogd.views.documents import export, first_screen, markdown
from dialogd.views.plan import Plan
from tests.cli.command import Commands
from tests.support.room import Room, opening

VOTE = '## Setup\n\n```toml\nverdict = "vote"\norder = "round-robin"\n```'


def agreed(*, then: str) -> Room:
    """Redis was decided by vote; then the person rejected it, or only went on."""
    room = Room(opening("A", "B", more=VOTE))
    for who, text in (("A", "[PROPOSAL: Redis]"), ("B", "[VOTE: P1 approve | simple]"), ("A", "[VOTE: P1 approve]")):
        if room.dialog.state.outcome is None:
            room.says(who, text)
    assert room.dialog.state.outcome is not None
    if then == "rejected":
        room.reject("too slow")
    else:
        room.say("And the cache?")
    return room


def decided(room: Room) -> Room:
    """The same dialog after it decided on another proposal."""
    owing = room.dialog.state.owing[0]
    for who, text in ((owing, "[PROPOSAL: Postgres]"), ("B" if owing == "A" else "A", "[VOTE: P2 approve | fast]")):
        room.says(who, text)
    return room


WENT_ON = "the dialog went on after it"
SAYS = {
    "rejected": ("rejected", "the person did not take it: too slow"),
    "superseded": ("superseded", WENT_ON),
}


@pytest.mark.parametrize("then", SAYS)
def test_every_place_says_what_became_of_a_decision(dialogd: Commands, then: str) -> None:
    word, why = SAYS[then]
    room = agreed(then=then)
    for is_later in (False, True):
        room = decided(room) if is_later else room
        dialog, plan = room.dialog, Plan(room.dialog)
        dialogd.file.write_bytes(room.paper.data)
        shown, facts, status = dialogd.all([["status", "--board"], ["status", "--board", "--json"], ["status"]])
        first, *later = facts.json["decisions"]
        assert facts.json["proposals"][0]["decision"] == word
        assert (first["outcome"], first["rejected_in"], first["superseded"]) == (
            ("rejected", "5", "") if then == "rejected" else ("approved", "", WENT_ON)
        )
        assert why in shown.out
        assert f"\n  P1   {word}" in shown.out
        assert why in status.out
        assert all(other["outcome"] == "approved" and not other["superseded"] for other in later)

        head = first_screen(plan)
        line = next((row for row in head.split("\n") if row.startswith("- **P1")), "")
        assert (why in line) == bool(later)
        assert f"### P1: {word}" in markdown(plan)
        assert (plan.decisions[0].stands, plan.decisions[0].made) == (word, "approved")
        if not later:
            assert ("The person rejected it." in head) == (then == "rejected")

        panel = panels.positions_piece(dialog)
        assert f'P1 <span class="state state-{word}">{word}</span>' in panel
        assert "Approved in turn <" in panel
        assert why in panel
        tab = panels.result_piece(dialog, "dialog.md")
        assert f'<th scope="row">P1</th><td><span class="state state-{word}">{word}</span></td>' in tab
        assert why in tab

        page = export(dialog, "md").decode()
        assert f"**P1** by Claude A: Redis ({word}" in page
        assert json.loads(export(dialog, "json"))["decisions"][0] == first
        recalled = kept_of(dialog).decisions[0]
        assert recalled.status == first["outcome"]
        assert recalled.superseded.startswith(WENT_ON)

"""Real daemons: a result taken or rejected, and what follows from it."""

from __future__ import annotations

from dialogd.protocol.model import USER
from tests.server.daemon_process import Room, send
from tests.support.pair import until

CONSENSUS = (
    "## Turn 2 — Claude A\n\n## Consensus Summary\n\nSessions live in Postgres.\n\n[CONSENSUS_REACHED]\n\nTURN: B\n\n"
    "## Turn 3 — Claude B\n\n[AGREE: P1]\n\n[CONSENSUS_REACHED]\n"
)


def test_a_result_is_approved_then_rejected_and_the_dialog_goes_on(room: Room) -> None:
    room.begin("Where?")
    room.start("A")
    for line, body in (("POST /approve", None), ("POST /reject", {"reason": "no"})):
        problem = send(room.a, line, body).problem
        assert problem["status"] == 409
        assert "the dialog is not begun" in problem["detail"]
    room.types(f"\n---\n\n{CONSENSUS}")
    until(lambda: send(room.a, "GET /dialog").json["outcome"] == "CONSENSUS_REACHED", "the end")
    for _ in range(2):
        done = send(room.a, "POST /approve").json
        assert (done["turn"], done["phase"]) == (3, "ended")
    until(lambda: send(room.a, "GET /health").json["approved"], "the approval in /health")
    assert room.file.read_text(encoding="utf-8").count("[APPROVED]") == 1
    assert "approve" not in send(room.a, "GET /health").json["allowed"]
    for body, status in (({}, 422), ({"reason": " \n"}, 400), ({"reason": "x", "why": "y"}, 422)):
        assert send(room.a, "POST /reject", body).problem["status"] == status
    done = send(room.a, "POST /reject", {"reason": "It forgets the migration."}).json
    assert (done["turn"], done["turn_of"], done["phase"]) == (4, ["A"], "waiting")
    call = room.minds["A"].call(1)
    prompt = (room.minds["A"].folder / "prompt.1").read_text(encoding="utf-8")
    assert "The person rejected the earlier result (CONSENSUS_REACHED in turn 3)" in prompt
    call.end("Then with a migration.")
    until(lambda: room.number == 5, "the turn after the rejection")
    dialog = room.dialog()
    assert [(e.by, [str(m) for m in e.marks]) for e in dialog.entries if e.mark("REJECTED")] == [
        (USER, ["[REJECTED: It forgets the migration.]"])
    ]

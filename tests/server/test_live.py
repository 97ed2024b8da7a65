"""Live seats: real daemons whose replies somebody else delivers, over HTTP and from a terminal."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dialogd.backends.live import MEMORY
from dialogd.server.turn_routes import SETTLE
from tests.server.daemon_process import Answer, listening, send
from tests.server.serving import connect, read_answer, request
from tests.support import open_sessions
from tests.support.forked import fork
from tests.support.pair import PATIENCE, Daemon, Pair, a_second, stretched, until

HIDDEN = """
import array, socket, sys
asked = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
asked.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # the request leaves a moment later
asked.sendall(sys.argv[2].replace("|", "\\r\\n").encode())
row = "%04X" % asked.getsockname()[1]
there, here = socket.socketpair()
there.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [asked.fileno()]))])
asked.close()  # from here on no process holds it
def waits():
    rows = [one.split() for one in open("/proc/net/tcp")]
    return any(one[1].endswith(":" + row) and int(one[4].partition(":")[2], 16) for one in rows[1:])
while not waits():
    pass
found = array.array("i", here.recvmsg(1, socket.CMSG_LEN(4))[1][0][2])
print(socket.socket(fileno=found[0]).recv(100_000).decode())
"""

LONG = "The text is long. " * 700  # 12,600 characters: two pages


SECRET = "b0a7-not-a-known-shape-99"


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Pair]:
    """Two live seats, A and B; nobody runs yet."""
    with Pair(tmp_path, "AB", launch=fork, backend="live", environment={"XAI_API_KEY": SECRET}) as room:
        yield room


def begun(room: Pair, **keys: Any) -> None:
    """Both daemons run, and the dialog is begun: A owes a turn."""
    room.begin("Where should sessions live?", **keys)
    room.start()
    room.notify()


@contextmanager
def waiting(daemon: Daemon) -> Iterator[None]:
    """Somebody waits for a turn there, and then hangs up."""
    with socket.create_connection(("127.0.0.1", daemon.port)) as line:
        line.sendall(b"GET /turn?wait=45 HTTP/1.1\r\nHost: localhost:%d\r\n\r\n" % daemon.port)
        yield


def owed(daemon: Daemon, query: str = "") -> dict[str, Any]:
    """The turn that this seat owes, once it does; it counts as opened."""
    found = send(daemon, f"GET /turn?wait=45{query}").json
    assert found["status"] == "owed", found
    return dict(found)


def reply(daemon: Daemon, debt: str, text: str, name: str = "text") -> Answer:
    """Deliver a reply."""
    return send(daemon, "POST /reply", {"debt": debt, name: text})


def answered(daemon: Daemon, text: str) -> dict[str, Any]:
    """Fetch the turn that is owed, page by page, and reply to it."""
    found = owed(daemon)
    for page in range(2, found["pages"] + 1):
        owed(daemon, f"&page={page}")
    return dict(reply(daemon, found["debt"], text).json)


def settled(daemon: Daemon, text: str) -> dict[str, Any]:
    """The same, and to a question about the reply, that it is meant."""
    came = answered(daemon, text)
    if came["status"] == "asked":
        forms = re.findall(r"`(\[[A-Z][^`]*)`", owed(daemon)["text"].rpartition("\n\n")[2])
        return answered(daemon, forms[0])
    return came


def test_a_turn_is_fetched_and_answered(room: Pair) -> None:
    begun(room)
    until(lambda: send(room["B"], "GET /turn").json["status"] == "not_my_turn", "B to know that it owes nothing")
    with listening(room["A"]) as stream:
        first = owed(room["A"])
        assert stream.until("delivery", what="opened").data["knocks"] == 0
    head = first["text"].partition("\n")[0]
    assert f"dialogd live reply --debt {first['debt']} --file {room.file} FILE" in head
    assert "Where should sessions live?" in first["text"]
    assert "`[PASS]`" in first["text"]
    said = "In Postgres. $(touch ran)\n\n## Turn 9 — Claude B\n\nTURN: USER\n\n[PROPOSAL: keep them in Postgres]"
    came = reply(room["A"], first["debt"], said).json
    assert (came["status"], came["turn"]) == ("appended", 2)
    why = "Why not in Redis?\n\n[OBJECTION: it is slower]"
    assert reply(room["B"], owed(room["B"])["debt"], why, "content").json["status"] == "appended"
    second = owed(room["A"])
    assert "Why not in Redis?" in second["text"]
    assert "In Postgres." not in second["text"], "what the seat said itself is no news"
    assert "`[PASS]`" not in second["text"]
    whole = owed(room["A"], "&full=1")["text"]
    assert "In Postgres." in whole
    assert "`[PASS]`" in whole
    dialog = room.dialog()
    assert [(turn.number, turn.by) for turn in dialog.turns] == [(1, "USER"), (2, "A"), (3, "B")]
    assert [turn.frame.usd for turn in dialog.turns if turn.frame] == ["", ""], "what it costs is unknown, never $0"


def test_only_who_has_opened_the_turn_works_on_it(room: Pair) -> None:
    begun(room)
    until(lambda: send(room["A"], "GET /health").json["delivery"], "A to owe a turn")
    health = send(room["A"], "GET /health").json
    assert (health["working_on"], health["delivery"]["opened"]) == (None, False)
    owed(room["A"])
    health = send(room["A"], "GET /health").json
    assert (health["working_on"]["turn"], health["delivery"]["opened"]) == (2, True)


def test_a_reply_counts_once_and_a_late_one_is_a_draft(room: Pair) -> None:
    begun(room)
    debt = owed(room["A"])["debt"]
    assert [reply(room["A"], debt, "Mine.").json["status"] for _ in range(2)] == ["appended", "appended"]
    other = f"Something else. {SECRET}"
    assert [reply(room["A"], debt, other).json["status"] for _ in range(2)] == ["draft", "draft"]
    kept = "".join(path.read_text() for path in room.state_dir.rglob("A.journal"))
    assert ("Something else." in kept, SECRET in kept) == (True, False)
    assert reply(room["A"], debt, "Mine.").json["status"] == "appended"
    answered(room["B"], "Yours.")
    second = owed(room["A"])
    assert second["text"].count("Something else.") == 1
    assert reply(room["A"], debt, "To the turn before.").json["status"] == "draft"
    send(room["A"], "POST /skip", {"agent": "A"})
    until(lambda: send(room["A"], "GET /turn").json["status"] != "owed", "the turn to pass")
    assert reply(room["A"], second["debt"], "Too late.").json["status"] == "draft"
    dialog = room.dialog()
    assert [turn.body for turn in dialog.turns if turn.by == "A"] == ["Mine."]


def test_a_reply_to_nothing_that_was_asked_is_refused(room: Pair) -> None:
    begun(room)
    debt = owed(room["A"])["debt"]
    assert send(room["A"], "POST /reply", {"debt": debt, "text": "So.", "content": "Or so."}).status == 422
    for daemon, name, text in ((room["B"], debt, "x"), (room["A"], "A-00000000", "x"), (room["A"], "", "x")):
        assert reply(daemon, name, text).problem["status"] == 409
    assert reply(room["A"], debt, " \n").problem["status"] == 400
    metrics = send(room["A"], "GET /metrics").body.decode()
    assert 'dialogd_deliveries_refused_total{agent="A"} 2.0' in metrics
    dialog = room.dialog()
    assert len(dialog.turns) == 1


def test_no_reply_before_the_last_page_was_read(room: Pair) -> None:
    begun(room)
    settled(room["A"], f"I write it down.\n\n## Consensus Summary\n\n{LONG[:9_500]}\n\n[CONSENSUS_REACHED]")
    first = owed(room["B"])
    assert (first["page"], first["pages"]) == (1, 2)
    assert "`dialogd live turn --page 2" in first["text"].partition("\n")[0]
    answer = reply(room["B"], first["debt"], "Fine.\n\n[AGREE: P1 | it is complete]").problem
    assert "2 pages" in answer["detail"]
    assert send(room["B"], "GET /turn?page=3").problem["status"] == 400
    assert all(len(owed(room["B"], f"&page={page}")["text"]) < 10_000 for page in (1, 2))
    came = reply(room["B"], first["debt"], "I have to think about it.").json
    assert came["status"] == "appended"
    answered(room["A"], "It has to be.")
    again = owed(room["B"])
    assert "The text of P1, in full" in again["text"], "it is shown again, although it is no news"
    assert again["pages"] == 2


def test_a_question_about_a_reply_is_fetched_like_a_turn(room: Pair) -> None:
    begun(room)
    settled(room["A"], "So be it.\n\n## Consensus Summary\n\nPostgres.\n\n[CONSENSUS_REACHED]")
    came = answered(room["B"], "Only if we measure it first, I think. Perhaps.\n\n[AGREE: P1 | if it is measured]")
    assert came["status"] == "asked"
    question = owed(room["B"])
    assert "Only if we measure it first" in owed(room["B"], "&full=1")["text"]
    assert question["debt"].endswith(question["text"].partition("--debt B-")[2].partition(" ")[0])
    assert reply(room["B"], question["debt"], "[PASS]").json["status"] == "appended"
    dialog = room.dialog()
    assert dialog.state.outcome is None


@pytest.mark.parametrize("is_lost", [False, True], ids=["remembered", "lost"])
def test_a_killed_daemon_comes_back_to_the_same_turn(room: Pair, tmp_path: Path, is_lost: bool) -> None:
    begun(room)
    answered(room["A"], "One.")
    answered(room["B"], "Two.")
    debt = owed(room["A"])["debt"]
    room["A"].kill()
    records = [*tmp_path.rglob(MEMORY)]
    assert len(records) == 2
    for record in records if is_lost else ():  # of the seat: losing it costs no turn
        record.unlink()
    room.start("A")
    again = owed(room["A"])
    assert (again["debt"], "Two." in again["text"], "`[PASS]`" in again["text"]) == (debt, True, is_lost)
    assert reply(room["A"], debt, "Three.").json["turn"] == 4


@pytest.mark.slow
def test_who_waits_for_a_turn_keeps_no_daemon_from_stopping(room: Pair) -> None:
    begun(room)
    owed(room["A"])
    with ExitStack() as stack:
        for _ in range(8):  # spread over a second
            stack.enter_context(waiting(room["B"]))
            time.sleep(0.12)
        began = time.monotonic()
        room["B"].terminate()
        assert time.monotonic() - began < a_second()


def test_who_has_hung_up_has_not_opened_the_turn(room: Pair) -> None:
    begun(room)
    with waiting(room["B"]):
        until(lambda: send(room["B"], "GET /turn").json["status"] == "not_my_turn", "B to know that it owes nothing")
    answered(room["A"], "Mine.")
    until(lambda: send(room["B"], "GET /health").json["delivery"], "B to owe a turn")
    time.sleep(0.5)  # long enough for whoever waited to be given it
    health = send(room["B"], "GET /health").json
    assert (health["working_on"], health["delivery"]["opened"]) == (None, False)


def restarted_in_a_pause(room: Pair) -> None:
    """The daemon of A was killed in a pause, and another one has read the file: it asks for nothing."""
    send(room["A"], "POST /pause")
    room["A"].kill()
    room.start("A")
    until(lambda: send(room["A"], "GET /turn").json["status"] == "paused", "A to have read the file")


def test_a_reply_that_comes_in_a_pause_after_a_restart_is_written_once_it_ends(room: Pair) -> None:
    begun(room)
    debt = owed(room["A"])["debt"]
    restarted_in_a_pause(room)
    came = [reply(room["A"], debt, text).json for text in (f"Mine. {SECRET}", "Something else.")]
    assert [one["status"] for one in came] == ["taken", "draft"]
    assert "paused" in came[0]["text"]
    room["A"].kill()
    room.start("A")
    send(room["A"], "POST /resume")
    until(lambda: room.number == 2, "the turn")
    dialog = room.dialog()
    (turn,) = (turn for turn in dialog.turns if turn.by == "A")
    assert turn.body.startswith("Mine. [redacted")
    assert turn.frame.usd == "", "what it costs is unknown, never $0"
    answered(room["B"], "Yours.")
    assert "Something else." in owed(room["A"])["text"]


def test_a_reply_that_comes_in_a_pause_is_a_draft_once_its_turn_has_passed(room: Pair) -> None:
    begun(room)
    debt = owed(room["A"])["debt"]
    restarted_in_a_pause(room)
    assert reply(room["A"], debt, "Mine.").json["status"] == "taken"
    send(room["A"], "POST /say", {"text": "And what does it cost?", "to": "A"})
    send(room["A"], "POST /resume")
    text = owed(room["A"])["text"]
    assert "And what does it cost?" in text
    assert text.count("Mine.") == 1
    assert room.number == 2


def test_a_reply_that_comes_as_the_pause_ends_is_written_once(room: Pair) -> None:
    begun(room)
    debt = owed(room["A"])["debt"]
    restarted_in_a_pause(room)
    with ThreadPoolExecutor() as pool:
        resumed = pool.submit(send, room["A"], "POST /resume")
        came = reply(room["A"], debt, "Mine.")
        resumed.result()
    assert came.json["status"] in ("taken", "appended")
    until(lambda: room.number == 2, "the turn")
    answered(room["B"], "Yours.")
    owed(room["A"])
    rows = "".join(path.read_text() for path in room.state_dir.rglob("A.journal")).split("\n")
    kinds = [json.loads(row)["kind"] for row in rows if row]
    assert "reply" in kinds
    assert "draft" not in kinds


def test_after_a_restart_nothing_is_taken_for_what_was_not_read(room: Pair) -> None:
    begun(room)
    until(lambda: send(room["A"], "GET /health").json["delivery"], "A to owe a turn")
    debt = send(room["A"], "GET /health").json["delivery"]["debt"]
    restarted_in_a_pause(room)
    refused = reply(room["A"], debt, "Mine.").problem
    assert (refused["status"], "not all read" in refused["detail"]) == (409, True)
    send(room["A"], "POST /resume")
    assert owed(room["A"])["debt"] == debt
    assert reply(room["A"], debt, "Mine.").json["status"] == "appended"


def test_an_answer_to_a_question_about_a_reply_that_comes_in_a_pause_counts(room: Pair) -> None:
    begun(room)
    settled(room["A"], "So be it.\n\n## Consensus Summary\n\nPostgres.\n\n[CONSENSUS_REACHED]")
    assert answered(room["B"], "I think so.\n\n[AGREE: P1 | it is simple]")["status"] == "asked"
    debt = owed(room["B"])["debt"]
    send(room["B"], "POST /pause")
    room["B"].kill()
    room.start("B")
    until(lambda: send(room["B"], "GET /turn").json["status"] == "paused", "B to have read the file")
    assert reply(room["B"], debt, "[AGREE: P1]").json["status"] == "taken"
    send(room["B"], "POST /resume")
    until(lambda: "[CONSENSUS_REACHED]" in room.file.read_text("utf-8").rpartition("\n## ")[2], "the end")
    assert "I think so." in room.file.read_text("utf-8")


def test_a_sealed_answer_keeps_nobody_waiting(room: Pair) -> None:
    room.begin("Where should sessions live?", turn="A, B", setup='order = "parallel"\nsealed = true')
    room.start()
    room.notify()
    first = owed(room["A"])
    began = time.monotonic()
    came = settled(room["A"], "In Cassandra.\n\n[CONFIDENCE: 0.8]")
    assert time.monotonic() - began < SETTLE * a_second()
    assert (came["status"], "sealed" in came["text"]) == ("taken", True)
    assert "Cassandra" not in room.file.read_text("utf-8")
    assert "Cassandra" not in owed(room["B"])["text"]
    assert send(room["A"], "GET /turn").json["status"] != "owed"
    began = time.monotonic()
    assert reply(room["A"], first["debt"], "In Cassandra.\n\n[CONFIDENCE: 0.8]").json["status"] == "taken"
    assert reply(room["A"], first["debt"], "In Scylla.\n\n[CONFIDENCE: 0.8]").json["status"] == "draft"
    assert time.monotonic() - began < SETTLE * a_second()
    assert settled(room["B"], "In Redis.\n\n[CONFIDENCE: 0.7]")["status"] in ("appended", "taken")
    until(lambda: room.number == 3, "both answers")
    assert reply(room["A"], first["debt"], "In Cassandra.\n\n[CONFIDENCE: 0.8]").json["status"] == "appended"


def test_a_new_dialog_in_the_same_file_is_told_from_its_beginning(room: Pair) -> None:
    begun(room)
    answered(room["A"], "Mine.")
    room.begin("Which queue, Kafka or none?")
    room.notify()
    found = owed(room["A"])
    assert "Which queue" in found["text"]
    assert "`[PASS]`" in found["text"]


def test_a_late_reply_takes_nothing_away_from_a_sealed_one(room: Pair) -> None:
    room.begin("Where should sessions live?", turn="A, B", setup='order = "parallel"\nsealed = true')
    room.start()
    room.notify()
    debt = owed(room["A"])["debt"]
    assert settled(room["A"], "In Cassandra.\n\n[CONFIDENCE: 0.8]")["status"] == "taken"
    assert reply(room["A"], debt, "In Scylla.\n\n[CONFIDENCE: 0.8]").json["status"] == "draft"
    room["A"].kill()
    room.start("A")
    settled(room["B"], "In Redis.\n\n[CONFIDENCE: 0.7]")
    until(lambda: room.number == 3, "both answers", why=lambda: room.file.read_text("utf-8"))
    assert "In Cassandra." in room.file.read_text("utf-8")


def test_a_reply_whose_body_is_asked_for_anew_survives_a_kill(room: Pair) -> None:
    begun(room)
    assert answered(room["A"], "So be it, I think.\n\n[CONSENSUS_REACHED]")["status"] == "asked"
    room["A"].kill()
    room.start("A")
    until(lambda: room.number == 2, "the turn")
    assert "So be it, I think." in room.file.read_text("utf-8")


@pytest.mark.slow
def test_of_replies_at_once_one_is_the_turn(room: Pair) -> None:
    begun(room)
    debt = owed(room["A"])["debt"]
    assert (
        send(room["A"], "POST /reply", b'{"debt": "%s", "text": "\\ud800"}' % debt.encode(), "application/json").status
        < 500
    )
    with ThreadPoolExecutor(8) as pool:
        both = [pool.submit(owed, room["B"]) for _ in range(2)]
        came = list(pool.map(lambda number: reply(room["A"], debt, f"Mine, {number}.").json["status"], range(6)))
        assert sorted(came) == ["appended"] + ["draft"] * 5
        assert len({one.result()["debt"] for one in both}) == 1
    assert room.number == 2


@pytest.mark.slow
def test_a_seat_has_a_time_of_its_own(room: Pair) -> None:
    room.begin("Where?")
    seconds = math.ceil(stretched(2.0))
    room.types(f"\n---\n\n## Note — User\n\n[LIMIT: timeout A {seconds} seconds]\n")
    room.start()
    with connect(room["A"].port) as waits:  # from before it owes the turn: the time runs at once
        waits.sendall(request(room["A"].port, "GET /turn?wait=45"))
        room.notify()
        found = read_answer(waits).json
    assert (found["status"], 0 < found["seconds"] <= seconds) == ("owed", True)
    until(lambda: f"[AGENT_ERROR: A | no answer within {seconds} seconds" in room.file.read_text("utf-8"), "the error")
    assert send(room["A"], "GET /health").json["working_on"] is None


def test_a_session_takes_its_own_turns_only(tmp_path: Path) -> None:
    """From inside the session of A neither B's turn can be fetched nor answered; that is counted.

    Nor by a connection that no process holds while the daemon looks.
    """
    config = tmp_path / "config"
    config.mkdir(mode=0o700)
    environment = {"CLAUDE_CONFIG_DIR": str(config)}
    with open_sessions.claude(config, tmp_path / "shop") as session:
        flags = {"A": ["--session", f"claude:{session.pid}:{open_sessions.started_at(session.pid)}"]}
        with Pair(tmp_path, "AB", launch=fork, backend="live", flags=flags, environment=environment) as room:
            room.begin("Where?", turn="B")
            room.start()
            room.notify()
            debt = owed(room["B"])["debt"]
            variables = {**os.environ, "DIALOGD_STATE_DIR": str(room.state_dir)}
            words = [sys.executable, "-m", "dialogd"]
            at = ["--id", "B", "--file", str(room.file)]
            for more in (["live", "turn", *at], ["live", "reply", "--debt", debt, *at]):
                came = session.run([*words, *more], variables, tmp_path, given="Mine.")
                assert (came.code, "holds the seat of A" in came.err) == (1, True), came
            assert 'dialogd_deliveries_refused_total{agent="B"} 2.0' in send(room["B"], "GET /metrics").body.decode()
            if sys.platform == "linux":
                asks = f"GET /turn HTTP/1.1|Host: localhost:{room['B'].port}||"
                came = session.run([sys.executable, "-c", HIDDEN, str(room["B"].port), asks], variables, tmp_path)
                assert "which process asks" in came.out, came
            assert reply(room["B"], debt, "Its own.").json["status"] == "appended"
            until(session.knocks, "A to be knocked at")


@pytest.mark.slow
def test_a_terminal_takes_the_seat(room: Pair, tmp_path: Path) -> None:
    begun(room)

    def dialogd(*words: str, said: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dialogd", *words, "--file", str(room.file)]
        return subprocess.run(  # noqa: PLW1510 - its exit code is looked at
            command,
            input=said,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, "DIALOGD_STATE_DIR": str(room.state_dir)},
        )

    refused = dialogd("live", "turn")
    assert (refused.returncode, "several live seats" in refused.stderr) == (2, True)
    assert "Where should sessions live?" in dialogd("live", "turn", "--wait", "--id", "A").stdout
    done = dialogd("live", "reply", "--id", "A", said="Here. $(touch ran)")
    assert (done.returncode, done.stdout) == (0, "turn 2: it is in the file; your next one: dialogd live turn --wait\n")
    (tmp_path / "reply.md").write_text("There.")
    dialogd("live", "turn", "--wait", "--id", "B")
    assert dialogd("live", "reply", str(tmp_path / "reply.md"), "--id", "B").stdout.startswith("turn 3:")
    assert dialogd("live", "turn", "--id", "B").returncode == 1
    assert dialogd("live", "reply", "--id", "B", said="Again.").returncode == 1
    assert not (tmp_path / "ran").exists()

"""The routes of a running daemon: what a notify takes and answers, what there is to read, and the end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from dialogd.store.disk import Lock
from tests.server.daemon_process import PATIENCE, Room, listening, send
from tests.server.serving import PAIRS, ask, assert_carries_nothing, assert_refused, connect, request
from tests.support.cases import cases
from tests.support.pair import Daemon, a_second, until

NOTIFY, WAIT = "POST /notify", "POST /notify?wait=true"


# -- what a notify takes -------------------------------------------------------------------------------------------

FROM_B = b'{"from": "B"}'
TAKEN = (
    (b"", "", "somebody"),
    (b"{}", "application/json", "somebody"),
    *((FROM_B, kind, "B") for kind in ("", "application/json; charset=utf-8", "text/plain", "nonsense")),
    (FROM_B, "application/x-www-form-urlencoded", "B"),
    (b'{"from": "B", "turn": 7}', "", "B"),
)


def test_a_notify_is_taken_in_any_dress(idle: Daemon) -> None:
    with listening(idle) as events:
        for body, kind, sender in TAKEN:
            answer = send(idle, NOTIFY, body, kind)
            assert (answer.status, answer.json["status"]) == (200, "no_dialog")
            assert events.until("notified").data["by"] == sender


def test_a_body_that_is_not_utf_8_is_refused_with_a_fix(idle: Daemon) -> None:
    for path in ("/say", "/notify", "/pause", "/stop", "/reject"):
        problem = send(idle, f"POST {path}", b'{"text": "caf\xe9", "reason": "caf\xe9"}').problem
        assert (problem["status"], problem["detail"]) == (400, "the body is not UTF-8")
        assert "iconv" in problem["fix"]
    assert idle.health() is not None


def plain(daemon: Daemon, line: str, body: bytes, *headers: str) -> tuple[int, list[tuple[str, str]], bytes]:
    """The status, the headers in their order, and the body of an answer."""
    answer = ask(daemon.port, request(daemon.port, line, *headers, body=body))
    return answer.status, list(answer.headers.items()), answer.body


def test_a_peer_that_does_not_wait_is_answered_before_the_look(idle: Daemon) -> None:
    no_wait = "Prefer: respond-async"
    assert plain(idle, NOTIFY, FROM_B, no_wait)[::2] == (202, b'{"status":"accepted"}')
    whole = [b"", b"{}", b'{"from": "USER"}', b'{"from": "B", "start": true}', b'{"from": 5}', b'{"file": "/x"}']
    for line, body in (*((NOTIFY, body) for body in whole), (WAIT, FROM_B)):
        answer = plain(idle, line, body, no_wait)
        assert answer == plain(idle, line, body)
        assert answer[0] != 202


def test_a_body_of_100_mb_is_refused_and_costs_nothing(idle: Daemon) -> None:
    head = request(idle.port, NOTIFY, f"Content-Length: {100 * 2**20}")
    before = psutil.Process(idle.pid).memory_info().rss
    with connect(idle.port) as connection:
        connection.sendall(head)
        with suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(b"x" * 2**20)
    assert_refused(ask(idle.port, head + b"x"), 413)
    assert idle.health() is not None
    assert psutil.Process(idle.pid).memory_info().rss < before + 20 * 2**20


# -- what a notify answers -----------------------------------------------------------------------------------------

HEADER = "# Claude Autonomous Dialog\n\n**Topic:** Tabs or spaces?\n"
FIRST = "---\n\n## Turn 1 — User\n\nTabs or spaces?\n\n"
ASKED = f"{HEADER}\n{FIRST}TURN: A\n"
SPOKEN = f"{ASKED}\n---\n\n## Turn 2 — Claude A\n\n"

STATUSES = {
    "not_my_turn": (f"{HEADER}\n{FIRST}TURN: B\n", "", "waiting for B"),
    "not_started": (ASKED, "B", "nobody has started it yet: curl -X POST "),
    "paused": (f"{ASKED}\n## Note — User\n\n[PAUSED]\n", "", "paused by the person"),
    "waiting_for_user": (f"{SPOKEN}[QUESTION_FOR_USER: Which editor?]\n\nTURN: USER\n", "", "Which editor?"),
    "consensus_reached": (f"{SPOKEN}Tabs.\n\n[CONSENSUS_REACHED]\n", "", "the dialog has ended"),
    "deadlock": (f"{SPOKEN}Never.\n\n[DEADLOCK]\n", "", "the dialog has ended"),
    "stopped": (f"{SPOKEN}Enough.\n\n[STOPPED: by hand]\n", "", "by hand"),
    "max_turns": (f"{HEADER}**Max Turns:** 1\n\n{FIRST}TURN: A\n", "", "the limit of 1 turn"),
    "max_size": (f"{HEADER}**Max Size:** 1 KB\n\n{FIRST}{'x' * 1024}\n\nTURN: A\n", "", "the limit of 1,"),
    "unknown_agent": (f"{HEADER}**Agents:** C = Cleo, D = Dan\n\n{FIRST}TURN: C\n", "", "its agents are C, D"),
    "no_turn_yet": (HEADER, "", "write `## Turn 1 — User`"),
    "unfinished": (f"{HEADER}\n{FIRST}", "B", "somebody is typing"),
    "unknown_turn": (f"{HEADER}\n---\n\n## Note — User\n\nHello.\n", "", "`dialogd say`"),
    "error": ("To be done:\n- milk\n", "", "; "),
}


@cases(("word", "text", "sender", "reason"), [(word, *row) for word, row in STATUSES.items()])
def test_a_notify_that_makes_nobody_think_says_why(
    idle: Daemon, lasting: Room, word: str, text: str, sender: str, reason: str
) -> None:
    lasting.file.write_text(text.replace("Tabs", f"{word}: tabs"), encoding="utf-8")  # each a dialog of its own
    body = {"from": sender} if sender else None
    for line in (NOTIFY, WAIT):
        answer = send(idle, line, body)
        assert (answer.status, answer.json["status"]) == (200, word)
        assert reason in answer.json["reason"]
    assert lasting.minds["A"].pids == []


def test_a_damaged_entry_at_the_end_waits_for_somebody_to_look(room: Room) -> None:
    room.open()
    room.think().end("Tabs are the better choice, for more than one reason.\n")
    room.until(lambda: room.number == 2, "A's turn")
    lock = Lock(room.file.with_name(f"{room.file.name}.lock"))
    with lock.held():  # free once A has read back what it wrote: until then it would mend this itself
        os.truncate(room.file, len(room.file.read_bytes()) - 20)
        room.types("\n")
    before = room.text
    answer = send(room.a, NOTIFY)
    assert (answer.status, answer.json["status"], "line " in answer.json["reason"]) == (200, "damaged", True)
    assert room.text == before


def test_an_old_dialog_waits_for_the_person(room: Room) -> None:
    room.begin("Tabs or spaces?", "A")
    room.types("\n---\n\n## Turn 2 — Claude A\n\nTabs.\n\nTURN: A\n")
    os.utime(room.file, (time.time() - 7200,) * 2)
    room.start("A")
    answer = send(room.a, NOTIFY, {"from": "B"})
    assert (answer.status, answer.json["status"]) == (200, "lain")
    assert send(room.a, NOTIFY).status == 202
    room.minds["A"].call(1).end()


def test_a_notify_is_accepted_the_next_one_finds_it_busy_and_who_waits_hears_of_the_turn(room: Room) -> None:
    room.open()

    async def wait(events: Any) -> list[Any]:
        asked = [asyncio.create_task(asyncio.to_thread(send, room.a, WAIT))]
        typing = await asyncio.to_thread(room.minds["A"].call, 1)
        asked.append(asyncio.create_task(asyncio.to_thread(send, room.a, WAIT)))
        for _ in range(3):
            await asyncio.to_thread(events.until, "notified")
        assert send(room.a, NOTIFY).json["status"] == "busy"
        assert not any(task.done() for task in asked)
        typing.end("Tabs.\n")
        return await asyncio.gather(*asked)

    with listening(room.a) as events:
        first = send(room.a, NOTIFY)
        assert (first.status, first.json) == (202, {"status": "accepted"})
        answers = asyncio.run(wait(events))
    assert [answer.json for answer in answers] == [{"status": "ok", "turn_passed": True}] * 2
    assert (room.number, len(room.minds["A"].pids)) == (2, 1)


def test_who_waits_hears_when_no_turn_came_of_it(tmp_path: Path) -> None:
    with Room(tmp_path, command="false", environment={"DIALOGD_RETRY_WAIT": "0"}) as room:
        room.open()
        assert send(room.a, WAIT).json == {"status": "ok", "turn_passed": False}
        assert "[AGENT_ERROR: A" in room.text


def test_wait_holds_through_the_pace(tmp_path: Path) -> None:
    with Room(tmp_path, command="echo Tabs.", pace=0.5) as room:
        room.open()
        send(room.a, WAIT)
        room.types("\n---\n\n## Turn 3 — Claude B\n\nSpaces.\n\nTURN: A\n")
        assert send(room.a, WAIT, {"from": "B"}).json == {"status": "ok", "turn_passed": True}
        assert room.number == 4


def test_a_persons_notify_to_b_starts_a_who_owes_the_turn(tmp_path: Path) -> None:
    with Room(tmp_path, environment={"DIALOGD_POLL": "30"}) as room:
        room.open("AB")
        assert send(room.b, NOTIFY).json == {"status": "not_my_turn", "reason": "waiting for A"}
        room.minds["A"].call(1).end("Tabs.\n")
        room.minds["B"].call(1).end("Spaces.\n")
        room.until(lambda: room.number == 3, "both turns")


@pytest.mark.parametrize(
    "begun", [pytest.param(True, id="while-it-thinks"), pytest.param(False, id="at-the-start", marks=pytest.mark.slow)]
)
def test_500_notifies_at_once_make_one_call(room: Room, begun: bool) -> None:
    room.open()
    typing = room.think() if begun else None
    before = sum(psutil.Process(room.a.pid).cpu_times()[:2])
    answers = asyncio.run(_at_once(room.a.port, 500))
    assert {answer.split(" ")[1] for answer in answers} <= ({"200"} if begun else {"200", "202"})
    assert sum(psutil.Process(room.a.pid).cpu_times()[:2]) - before < 10
    (typing or room.minds["A"].call(1)).end("Tabs.\n")
    room.until(lambda: room.number == 2, "A's turn")
    assert send(room.a, NOTIFY).json["status"] == "not_my_turn"
    assert (len(room.minds["A"].pids), room.number) == (1, 2)


async def _at_once(port: int, count: int) -> list[str]:
    """The status lines of so many notifies on connections of their own; all answered."""

    async def one() -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request(port, NOTIFY, "Connection: close"))
            return (await reader.read()).decode().partition("\r\n")[0]
        finally:
            writer.close()
            await writer.wait_closed()

    async with asyncio.timeout(PATIENCE):
        return await asyncio.gather(*(one() for _ in range(count)))


# -- what there is to read -----------------------------------------------------------------------------------------


def at(room: Room, phase: str) -> dict[str, Any]:
    """The health of A's daemon once it is in this phase."""
    room.until(lambda: (room.a.health() or {}).get("phase") == phase, f"phase {phase}")
    return room.a.health() or {}


def test_health_tells_every_phase(room: Room) -> None:
    room.start("A")
    health = {"id": "A", "name": "Claude A", "port": room.a.port, "pid": room.a.pid, "backend": "command"}
    assert health.items() <= at(room, "no_dialog").items()
    room.begin("Tabs or spaces?", "A")
    assert send(room.a, NOTIFY, {"from": "B"}).json["status"] == "not_started"
    facts = at(room, "waiting")
    assert (facts["turn"], facts["turn_of"], facts["topic"], facts["outcome"]) == (1, ["A"], "Tabs or spaces?", None)
    assert facts["peers"] == {"B": {"url": f"http://127.0.0.1:{room.b.port}", "reachable": False}}
    assert (facts["lifecycle"], facts["convergence"]) == ("dormant", None)
    assert facts["allowed"][:8] == ["start", "configure", "add agent", "say", "pause", "retry", "skip", "stop"]
    typing = room.think()
    facts = at(room, "thinking")
    assert (facts["working_on"]["turn"], facts["working_on"]["seconds"] >= 0, facts["waiting"]) == (2, True, None)
    send(room.a, "POST /pause")
    assert at(room, "paused")["working_on"]["turn"] == 2
    typing.end("Tabs.\n\n[QUESTION_FOR_USER: Which editor?]\n")
    until(lambda: room.number == 2, "A's turn")
    send(room.a, "POST /resume")
    facts = at(room, "waiting_for_user")
    assert facts["waiting"] == {"status": "waiting_for_user", "reason": "waiting for the person: Which editor?"}
    assert (facts["turn_of"], facts["turns_written"], facts["working_on"]) == (["USER"], 1, None)
    room.types("\nEnough.\n\n[CONSENSUS_REACHED]\n")
    assert at(room, "ended")["outcome"] == "CONSENSUS_REACHED"


@pytest.mark.slow
def test_health_tells_a_dialog_that_failed(tmp_path: Path) -> None:
    with Room(tmp_path, command="false", environment={"DIALOGD_RETRY_WAIT": "0"}) as room:
        room.open("AB")
        room.notify()
        at(room, "waiting_for_user")
        send(room.a, "POST /retry", {"agent": "B"})
        assert at(room, "error")["outcome"] == "STOPPED"


@pytest.mark.slow
def test_health_answers_while_a_huge_reply_is_read(room: Room) -> None:
    room.open("A", timeout="10 minutes")
    thinking, slowest = room.think(), 0.0
    typing = threading.Thread(target=thinking.end, args=("[AGREE: P1]\n" * 325_000,))
    typing.start()
    while room.number == 1:
        began = time.monotonic()
        status, _ = room.a.ask("GET", "/health", seconds=PATIENCE)
        slowest = max(slowest, time.monotonic() - began)
        assert status == 200
        time.sleep(0.01)
    typing.join(PATIENCE)
    assert (slowest < 2 * a_second(), room.number) == (True, 2)


def test_dialog_is_the_file_folded(room: Room) -> None:
    room.open(max_turns=7, timeout="90 seconds")
    room.think().end("Tabs.\n\n[PROPOSAL: tabs]\n")
    room.until(lambda: room.number == 2, "A's turn")
    send(room.a, "POST /say", {"text": "By the way.", "note": True})
    facts = send(room.a, "GET /dialog").json
    assert (facts["topic"], facts["turn"], facts["turn_of"], facts["outcome"]) == ("Tabs or spaces?", 2, ["B"], None)
    assert facts["agents"] == {"A": "Claude A", "B": "Claude B"}
    assert (facts["limits"]["max_turns"], facts["limits"]["timeout"]) == (7, 90)
    asked, spoken, noted = facts["entries"]
    assert (asked["by"], asked["text"], asked["turn"], asked["at"]) == ("USER", "Tabs or spaces?", ["A"], "")
    assert (spoken["by"], spoken["name"], spoken["text"]) == ("A", "Claude A", "Tabs.")
    assert (spoken["marks"], spoken["turn"], spoken["condition"]) == (["[PROPOSAL P1: tabs]"], ["B"], "sound")
    assert (noted["number"], noted["id"], noted["text"], noted["turn"]) == (0, "2.1", "By the way.", None)
    for since, left in ((0, 3), (2, 1), (3, 0), (99, 0)):
        assert len(send(room.a, f"GET /dialog?since={since}").json["entries"]) == left
    for wrong in ("-1", "x", "1.5"):
        assert send(room.a, f"GET /dialog?since={wrong}").problem["status"] == 422


GETS = """
    / /dialog /docs /events /events/schema /health /metrics /turn /export/{to} /page/entries /page/home /page/state
    /page/away /page/flow /page/history /page/history/{dialog} /page/positions /page/recall /page/result /page/end
    /page/find /page/standings /page/writing /page/tasks /page/tasks/{number} /page/takeover
    /page/clean
"""
POSTS = """
    /accept /approve /approve-call /notify /pause /reject /restore /resume /reply /retry /say /skip /stop /floor /tasks
    /gate /merge /rebase /invite /leave /limit /pass /step /strike /veto /page/history/{dialog}/outcome
"""
ROUTES = {"GET": set(GETS.split()), "POST": set(POSTS.split())}
LINK = re.compile(r"""(?:src|href|action|data|poster)\s*=\s*["']?([^"'\s>]*)|url\(([^)]*)\)|@import""", re.IGNORECASE)


def test_every_route_is_described_for_programs_and_on_a_page_that_loads_and_runs_nothing(idle: Daemon) -> None:
    schema, docs = send(idle, "GET /openapi.json").json, send(idle, "GET /docs")
    page = docs.body.decode()
    found: dict[str, set[str]] = {"GET": set(), "POST": set()}
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            found[method.upper()].add(path)
            assert about["description"].endswith(".")
            assert {"4XX", "5XX"} <= set(about["responses"])
            assert f"<code>{method.upper()} {path}</code>" in page
            for field in about.get("parameters", ()):
                assert field.get("description") or field["in"] == "header"
    assert found == ROUTES
    for model in ("Notify", "Say", "Retry", "Floor", "Halt"):
        for name, field in schema["components"]["schemas"][model]["properties"].items():
            assert field.get("description") or name == "reason"
    assert not re.search(r"https?://(?!localhost|127\.0\.0\.1)", json.dumps(schema))
    assert (docs.status, docs.headers["content-type"]) == (200, "text/html; charset=utf-8")
    shown = re.sub(r"<pre>.*?</pre>", lambda text: text[0].replace("=", ""), page, flags=re.DOTALL)
    assert not re.search("<script|<img", shown)
    assert {link for pair in LINK.findall(shown) for link in pair if link} <= {"/openapi.json"}
    assert "default-src 'none'" in docs.headers["content-security-policy"]


def test_a_wrong_method_or_path_is_a_problem_that_names_the_right_one(idle: Daemon) -> None:
    for method, paths in ROUTES.items():
        for path in paths:
            for other in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"} - {method}:
                answer = send(idle, f"{other} {path}")
                assert (answer.problem["status"], answer.headers["allow"]) == (405, method)
                url = shlex.quote(f"http://127.0.0.1:{idle.port}{path}")
                assert answer.problem["fix"].startswith(f"curl -X {method} {url}; ")
    for path in ("/nothing", "/notify/x", "/redoc", "/static/../health", "/%00", "/a" * 2000):
        problem = send(idle, f"GET {path}").problem
        assert problem["status"] == 404
        assert f"curl http://127.0.0.1:{idle.port}/docs" in problem["fix"]


# -- the end -------------------------------------------------------------------------------------------------------


def test_stop_ends_everything_in_under_a_second(room: Room) -> None:
    room.open("AB")
    typing = room.think()
    typing.say("Tabs, bec")
    began = time.monotonic()
    stopped = send(room.a, "POST /stop", {"reason": "lunch"})
    assert [room.a.wait(), room.b.wait()] == [0, 0]
    assert time.monotonic() - began < a_second()
    assert not typing.is_alive
    assert (stopped.status, stopped.json["status"], stopped.json["outcome"]) == (200, "stopped", "STOPPED")
    assert room.text.endswith("\n[STOPPED: lunch]\n")
    assert Path(stopped.json["archive"]).read_bytes() == room.file.read_bytes()
    assert list((room.state_dir / "archive").iterdir()) == [Path(stopped.json["archive"])]


def test_a_stop_that_a_peer_passes_on_goes_no_further(room: Room) -> None:
    room.open("AB")
    assert send(room.a, "POST /stop", {"hop": 1}).status == 200
    assert room.a.wait() == 0
    room.until(lambda: (room.b.health() or {}).get("phase") == "ended", "B to hear of it")
    assert (room.b.health() or {})["outcome"] == "STOPPED"
    assert room.b.running


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["no-file", "no-dialog", "ended"])
def test_stop_ends_the_daemon_whatever_the_file_is(room: Room, kind: str) -> None:
    room.start("A")
    text = {"no-file": None, "no-dialog": "- milk\n", "ended": STATUSES["consensus_reached"][0]}[kind]
    if text is not None:
        room.file.write_text(text)
    answer = send(room.a, "POST /stop")
    assert answer.status == (409 if kind == "no-dialog" else 200)
    if answer.status == 200:
        assert answer.json["outcome"] == (None if kind == "no-file" else "CONSENSUS_REACHED")
        assert (answer.json["archive"] is None) == (kind == "no-file")
    assert room.a.wait() == 0
    assert (room.file.read_text() if room.file.exists() else None) == text


def test_sigterm_ends_the_daemon_and_not_the_dialog(room: Room) -> None:
    room.open()
    with listening(room.a) as one, listening(room.a) as two:
        typing = room.think()
        before, began = room.file.read_bytes(), time.monotonic()
        assert room.a.terminate() == 0
        assert time.monotonic() - began < a_second()
        assert [stream.rest()[-1].kind for stream in (one, two)] == ["bye", "bye"]
    assert (typing.is_alive, room.file.read_bytes()) == (False, before)
    assert "stopped: 0 turns written" in room.a.said
    assert "Traceback" not in room.a.said


# -- anything at all -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_request_that_the_description_allows_or_forbids_makes_it_fail(tmp_path: Path) -> None:
    pytest.importorskip("schemathesis")
    with Room(tmp_path, command="", backend="rehearsal:endless") as room:
        room.open(max_turns=100_000)
        room.notify()
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{room.a.port}/openapi.json"]
        for path in ("/events", "/stop", "/page/home"):  # one never ends, one ends it, one starts another
            command += ["--exclude-path", path]
        command += ["--max-examples", "20", "--seed", "7"]
        command += ["--checks", "not_a_server_error,content_type_conformance,response_schema_conformance"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
        assert room.a.health() is not None
        assert "Traceback" not in room.a.said


@pytest.mark.slow
@cases("pair", PAIRS)
def test_a_refused_request_stops_and_says_nothing_by_the_one_behind_it(idle: Daemon, pair: str) -> None:
    behind = [request(idle.port, "POST /say", body=b'{"text": "Wait."}'), request(idle.port, "POST /stop")]
    assert_carries_nothing(idle.port, pair, b"".join(behind))
    assert send(idle, NOTIFY).json["status"] == "no_dialog"

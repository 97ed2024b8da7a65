"""The event stream of a running daemon: what it tells, in which order, to whom, and what never reaches it."""

from __future__ import annotations

import json
import re
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from dialogd.agent.events import CLIENTS, KEPT, LAG, Hub, Writing
from dialogd.server.streams import KINDS
from dialogd.server.wire import Health
from tests.server.daemon_process import Event, Room, Stream, listening, send
from tests.server.serving import connect, read_answer, request
from tests.support.pair import PATIENCE, overwrite, until

KEY = "sk-ant-api03-" + "Tr0ub4dor" * 6  # looks like a key, opens nothing
POKES = 256  # far less than a client may lag behind
SECRET_LINES = ["MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "BKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"]


AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def numbers(events: list[Event]) -> list[int]:
    """The numbers in the ids of events; momentary ones have none."""
    return [int(event.id.partition("-")[2]) for event in events if event.id]


def facts(event: Event) -> dict[str, Any]:
    """What an event says, without what every event has."""
    assert event.data["v"] == 1
    assert AT.fullmatch(event.data["at"])
    return {name: value for name, value in event.data.items() if name not in ("v", "at")}


def written(events: Stream) -> str:
    """The turn being written, as a client puts it together."""
    text = ""
    for data in events.of("text"):
        text = data["text"] if data["reset"] else text + data["text"]
        assert len(text) == data["done_chars"]
    return text


def test_a_stream_begins_with_the_state_and_tells_a_turn_from_beginning_to_end(room: Room) -> None:
    room.open()
    with listening(room.a) as events:
        health = room.a.health() or {}
        assert {"state": "not_started", "id": "A", "phase": "waiting", "turn": 1}.items() <= events.seen[0].data.items()
        assert set(events.seen[0].data) == {"v", "at", "state", "reason", *health}
        typing = room.think()
        assert facts(events.until("notified")) == {"by": "somebody"}
        state = facts(events.until("state", state="thinking"))
        assert (state["turn"], state["turn_of"], state["phase"]) == (1, ["A"], "thinking")
        doing = facts(events.until("agent"))
        assert doing == {"agent": "A", "state": "thinking", "turn": 2, "seconds": 0.0, "reason": ""}
        typing.end("Tabs.\n\n[PROPOSAL: tabs]\n")
        text = facts(events.until("text"))
        assert text == {"turn": 2, "by": "A", "text": text["text"], "done_chars": len(text["text"]), "reset": True}
        appended = facts(events.until("appended"))
        assert written(events) == "Tabs.\n\n[PROPOSAL: tabs]\n"
        assert appended == {"number": 2, "ms": appended["ms"], "usd": None, "by": "A"}
        assert appended["ms"] >= 0
        assert facts(events.until("telling")) == {"peers": ["B"]}
        turn = {"number": 2, "id": "2", "by": "A", "name": "Claude A", "text": "Tabs.", "turn": ["B"]}
        assert facts(events.until("turn")) == {**turn, "marks": ["[PROPOSAL P1: tabs]"]}
        mark = {"entry": "2", "turn": 2, "by": "A", "name": "PROPOSAL", "ref": "P1", "value": "tabs"}
        assert facts(events.until("mark")) == mark
        cost = facts(events.until("cost"))
        unknown = {"agent": "A", "turn": 2, "in": None, "usd": None, "exact": False, "total_usd": None}
        assert unknown.items() <= cost.items()
        state = facts(events.until("state", state="not_my_turn"))
        assert (state["reason"], state["turn"], state["turn_of"]) == ("waiting for B", 2, ["B"])
        doing = facts(events.until("agent", state="idle"))
        assert (doing["reason"], doing["turn"]) == ("waiting for B", None)
        send(room.a, "POST /say", {"text": "By the way.", "note": True})
        note = events.until("note").data
        assert (note["number"], note["by"], note["text"], note["marks"]) == (0, "USER", "By the way.", [])
        epochs = {event.id.partition("-")[0] for event in events.seen if event.id}
        assert len(epochs) == 1
        assert numbers(events.seen) == list(range(numbers(events.seen)[0], numbers(events.seen)[-1] + 1))


def test_text_arrives_while_it_is_written_in_whole_words_also_to_who_comes_later(room: Room) -> None:
    room.open()
    with listening(room.a) as events:
        typing = room.think()
        typing.say("Tabs, becau")
        assert events.until("text").data["text"] == "Tabs, "
        send(room.a, "POST /say", {"text": "Meanwhile.", "note": True})
        last = events.until("note", text="Meanwhile.")
        assert written(events) == "Tabs, "
        typing.say("se of")
        assert events.until("text").data["text"] == "because "
        assert (typing.is_alive, room.number) == (True, 1)
        for last_id in ("", last.id):
            with listening(room.a, last_id) as late:
                assert late.until("agent").data["state"] == "thinking"
                assert late.until("text").data["text"] == "Tabs, because "
                assert late.seen[-1].data["reset"]
        typing.end(" accessibility\n")
        assert events.until("turn", number=2).data["text"] == "Tabs, because of accessibility"
        assert written(events) == "Tabs, because of accessibility\n"
        events.until("agent", state="idle")
    with listening(room.a) as after:
        assert after.until("agent").data["state"] == "idle"
        send(room.a, "POST /notify", {"from": "B"})
        after.until("notified")
        assert after.of("text") == []


@pytest.mark.parametrize("setup", ['order = "parallel"', "sealed = true"], ids=["parallel", "sealed"])
def test_nothing_of_a_round_that_is_answered_apart_is_told_before_its_turn(tmp_path: Path, setup: str) -> None:
    with Room(tmp_path) as room:
        room.start("A")
        room.begin("Tabs or spaces?", "A, B", setup=setup)
        room.until(lambda: "no_dialog" not in str(room.a.health()), "A to read the dialog")
        with listening(room.a) as events:
            typing = room.think()
            typing.say("HUSHHUSH tabs it is\nHUSHHUSH ")
            assert events.until("agent", state="thinking").data["turn"] == 2
            send(room.a, "POST /say", {"text": "Meanwhile.", "note": True})
            events.until("note", text="Meanwhile.")
            assert leaks(room, ["HUSHHUSH"], events) == []
            send(room.a, "POST /say", {"text": "Stop that."})
            assert events.until("draft").data["text"] == ""
            events.until("state", state="interrupted")
            assert events.of("text") == []
            assert leaks(room, ["HUSHHUSH"], events) == []


def leaks(room: Room, words: list[str], events: Stream) -> list[str]:
    """Where one of these words can be read: events, answers, the dialog, logs, whatever else is kept but journals."""
    places = {"events": json.dumps([event.data for event in events.seen])}
    for path in ("/dialog", "/health", "/", "/metrics"):
        places[path] = send(room.a, f"GET {path}").body.decode()
    for file in room.folder.rglob("*"):
        if file.is_file() and "mind-" not in str(file) and file.suffix != ".journal":
            with suppress(FileNotFoundError):  # some are written beside their place, and moved there
                places[str(file)] = file.read_text(encoding="utf-8", errors="replace")
    return [place for place, text in places.items() if any(word in text for word in words)]


def test_a_secret_that_a_backend_prints_is_nowhere_and_a_thousand_lines_drop_nobody(room: Room) -> None:
    room.open()
    lines = "".join(f"{number}.\n" for number in range(1000))
    with listening(room.a) as events, listening(room.a) as other:
        typing = room.think()
        typing.say(f"The key is {KEY[:20]}")
        typing.end(f"{KEY[20:]}, keep it.\n{lines}")
        for stream in (events, other):
            stream.until("turn")
            assert written(stream) == f"The key is [redacted: anthropic key], keep it.\n{lines}"
        assert leaks(room, [KEY, KEY[20:]], events) == []
    assert "[redacted: anthropic key]" in room.text


@pytest.mark.slow
def test_a_secret_of_several_lines_and_one_in_an_interrupted_reply_are_nowhere(room: Room) -> None:
    room.open()
    with listening(room.a) as events:
        typing = room.think()
        typing.say("My key:\n-----BEGIN PRIVATE KEY-----\n" + SECRET_LINES[0] + "\n")
        typing.end(f"{SECRET_LINES[1]}\n-----END PRIVATE KEY-----\nThat is all.\n")
        events.until("turn")
        assert leaks(room, SECRET_LINES, events) == []
        assert written(events) == "My key:\n[redacted: private key]\nThat is all.\n"
        send(room.a, "POST /say", {"text": "And another?", "to": "A"})
        room.minds["A"].call(2).say(f"The key is {KEY}\n")
        events.until("text")
        send(room.a, "POST /say", {"text": "Stop."})
        assert events.until("draft").data["text"] == "The key is [redacted: anthropic key]"
        assert leaks(room, [KEY], events) == []


def test_an_error_says_what_to_do_and_no_secret(tmp_path: Path) -> None:
    command = f"sh -c 'echo bad key {KEY} >&2; exit 3'"
    with Room(tmp_path, command=command, environment={"DIALOGD_RETRY_WAIT": "0"}) as room:
        room.open()
        with listening(room.a) as events:
            room.notify()
            error = events.until("error").data
            said = "exited 3: bad key [redacted: anthropic key]"
            assert (error["type"], error["message"], error["recoverable"]) == ("failed", said, True)
            assert "run 'sh' by hand" in error["fix"]
            assert events.until("note").data["marks"][0].startswith(f"[AGENT_ERROR: A | {said} | ")
            assert events.until("state", state="waiting_for_user")
            # It is asked again once.
            assert [data["state"] for data in events.of("state")[1:]].count("thinking") == 2
            assert leaks(room, [KEY], events) == []


def test_what_is_odd_in_the_file_is_told(room: Room) -> None:
    room.start("A")
    with listening(room.a) as events:
        room.begin("Tabs or spaces?", "A", max_turns="many")
        assert "Max Turns" in events.until("warning").data["text"]
        room.think().end("Tabs are the better choice.\n")
        events.until("turn", number=2)
        overwrite(room.file, room.text.replace("better", "worse"))
        assert events.until("warning").data["text"].endswith("is edited")
        room.begin("Which editor?", "A")
        dropped = events.until("dropped").data
        assert (dropped["first"], dropped["last"]) == (2, 2)
        assert "better choice" in Path(dropped["kept"]).read_text()


def test_a_turn_is_told_once_while_somebody_types_below_it(room: Room) -> None:
    room.open()
    with listening(room.a) as events, room.file.open("a") as file:
        file.write("\n## Turn 2\n\nTabs, I say.\n\nTURN: USER\n\n## Turn 3\n\nOr")
        for word in (" spaces", " or", " both", " of", " them"):
            file.write(word)
            file.flush()
            assert len(send(room.a, "GET /dialog").json["entries"]) == 3
        file.write("?\n\nTURN: USER\n")
        file.flush()
        events.until("turn", number=3)
    assert [data["number"] for data in events.of("turn")] == [2, 3]


def test_turns_are_told_once_also_when_others_are_taken_out(room: Room) -> None:
    room.open()
    with listening(room.a) as events:
        room.think().end("Tabs are the better choice.\n")
        events.until("turn", number=2)
        old = room.text
        send(room.a, "POST /say", {"text": "Why not spaces?", "to": "B"})
        events.until("turn", number=3)
        overwrite(room.file, old + "\n## Turn 3\n\nBy hand.\n\nTURN: USER\n")
        events.until("dropped", first=3, last=3)
        events.until("turn", text="By hand.")
        assert [data["number"] for data in events.of("turn")] == [2, 3, 3]


def test_a_stop_is_told_before_bye(room: Room) -> None:
    room.open()
    with listening(room.a) as events:
        room.think()
        send(room.a, "POST /stop", {"reason": "lunch"})
        rest = events.rest()
    room.a.wait()
    assert [event.data["marks"] for event in rest if event.kind == "note"] == [["[STOPPED: lunch]"]]
    assert rest[-1].kind == "bye"
    assert "the dialog is over: the dialog was stopped" in room.a.said


def test_a_client_that_reconnects_hears_what_it_missed(room: Room) -> None:
    room.open()
    with listening(room.a) as events:
        typing = room.think()
        last = events.until("state", state="thinking")
    typing.say("One.\nTwo.\n")
    typing.end("Three.\n")
    room.until(lambda: room.number == 2, "A's turn")
    with listening(room.a, last.id) as again:
        assert again.seen[0].id == last.id
        again.until("turn", number=2)
        first, told = numbers([last])[0], numbers(list(again.seen)[1:])  # more may come while this is read
        assert told == list(range(first + 1, first + 1 + len(told)))
        assert told
        assert again.of("reset") == []
    with listening(room.a, again.seen[-1].id) as nothing:
        send(room.a, "POST /say", {"text": "By the way.", "note": True})
        nothing.until("note")
        assert nothing.of("turn") == []


def test_an_id_that_is_not_known_or_of_another_life_resets(room: Room) -> None:
    room.open()
    with listening(room.a) as events:
        epoch = events.seen[0].id.partition("-")[0]
        for last_id in ("x", "-", "0-0", f"{epoch}-", f"{epoch}-99999", f"{epoch}--1", f"{epoch}-²", "é-1"):
            with listening(room.a, last_id) as again:
                assert again.next().kind == "reset", last_id
                send(room.a, "POST /say", {"text": "By the way.", "note": True})
                again.until("note")
        last = events.until("note")
        room.a.terminate()
        assert events.rest()[-1].kind == "bye"
    room.start("A")
    with listening(room.a, last.id) as again:
        following = again.next()
        assert (following.kind, following.id.partition("-")[0] != epoch) == ("reset", True)
    stream = Stream(room.a, "x" * 65)
    assert stream.status == 422
    stream.close()


async def test_no_event_holds_a_secret_whoever_says_it() -> None:
    own, known = "correct-horse-battery", "ghp_Zq7Lm2Rt9Vx4Bn6Kc8Wd1Fg3Hj5Ps0YaZq7L"
    hub = Hub(secrets=(own,))
    with hub.join() as listener:
        hub.publish("warning", text=f"with {own}", more=[{"key": known}])
        hub.agent("A", "failed", reason=f"{known} was refused")
        await hub.close()
        heard = [event.json async for event in listener]
    assert [text.count("[redacted: ") for text in heard] == [2, 1, 0]
    assert not any(secret in text for secret in (own, known) for text in heard)


async def test_a_listener_that_lags_is_dropped_where_it_stands() -> None:
    hub = Hub()
    with hub.join() as lagging, hub.join() as reading:
        told = aiter(reading)
        for number in range(LAG + 1):
            hub.publish("notified", by=str(number))
            assert (await anext(told)).data["by"] == str(number)
        assert hub.clients == 1
        assert [event async for event in lagging] == []
        with hub.join(lagging.since) as again:
            assert (await anext(aiter(again))).kind == "reset"  # what it missed is not kept any more


async def test_bye_is_the_last_that_a_stream_tells_also_to_who_comes_then() -> None:
    hub = Hub()
    with hub.join(hears_all=True) as listener:
        hub.agent("B", "idle", is_relayed=True)
        await hub.close()
        hub.agent("B", "stopped", reason="its daemon ends", is_relayed=True)
        assert [event.kind async for event in listener] == ["agent", "bye"]
    with hub.join() as late:
        assert [event.kind async for event in late] == ["bye"]


async def test_text_pushes_no_turn_out_and_an_endless_turn_is_kept_in_part() -> None:
    hub = Hub()
    with hub.join() as slow:
        hub.publish("turn", number=2)
        for number in range(2000):
            hub.text("A", 3, f"word{number} ", reset=number == 0)
        with hub.join(slow.since) as again:
            turn, text = await anext(aiter(again)), await anext(aiter(again))
        await hub.close()
        heard = [event async for event in slow]
    whole = "".join(f"word{number} " for number in range(2000))
    told = (turn.kind, text.data["text"], text.data["reset"], text.data["done_chars"])
    assert told == ("turn", whole, True, len(whole))
    assert (heard[0].kind, heard[-1].kind) == ("turn", "bye")
    assert "".join(event.data["text"] for event in heard[1:-1]) == whole
    endless = Hub()
    for number in range(2048):
        endless.text("A", 2, "x" * 1023 + " ", reset=number == 0)
    with endless.join() as late:
        data = (await anext(aiter(late))).data
    assert (data["done_chars"], len(data["text"]) <= KEPT) == (2048 * 1024, True)


def test_a_long_turn_in_small_pieces_is_cheap() -> None:
    writing, began = Writing(2, is_relayed=False), time.process_time()
    for number in range(200_000):
        writing.add(f"{number % 10}234")
    assert time.process_time() - began < 3
    assert (writing.chars, len(writing.text), writing.text[-8:]) == (800_000, KEPT, "82349234")


async def test_an_entry_for_a_hundred_listeners_is_cheap() -> None:
    hub = Hub()
    with ExitStack() as stack:
        listeners = [stack.enter_context(hub.join()) for _ in range(CLIENTS)]
        began = time.process_time()
        for number in range(20):
            hub.publish("turn", number=number, text="x " * 5_000)
        assert time.process_time() - began < 5
        events = {id(await anext(aiter(listener))) for listener in listeners}
    assert len(events) == 1


@pytest.mark.slow
def test_a_client_that_does_not_read_is_let_go_and_hurts_nobody(room: Room) -> None:
    room.open(max_size="60 MB")
    with socket.socket() as slow, listening(room.a) as fast:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", room.a.port))
        slow.sendall(request(room.a.port, "GET /events", "Connection: close"))
        until(lambda: clients(room) == 2, "the slow client to be counted")
        for _ in range(5):  # the system alone keeps some megabytes for a client that does not read
            send(room.a, "POST /say", {"text": "x" * 900_000, "note": True})
            fast.until("note")
        until(lambda: poke(room, fast) == 1, "the slow client to be let go")
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
        slow.settimeout(PATIENCE)
        told = b"".join(iter(lambda: slow.recv(2**20), b""))
    assert numbers(fast.seen) == list(range(numbers(fast.seen)[0], numbers(fast.seen)[-1] + 1))
    ids = [int(line.rpartition(b"-")[2]) for line in told.split(b"\n") if line.startswith(b"id: ")]
    assert ids == list(range(ids[0], ids[-1] + 1))
    assert ids[-1] < numbers(fast.seen)[-1]
    assert b"event: bye" not in told
    epoch = fast.seen[0].id.partition("-")[0]
    with listening(room.a, f"{epoch}-{ids[-1]}") as again:
        following = again.next()
        assert following.kind == "reset" or numbers([following]) == [ids[-1] + 1]


def clients(room: Room, who: str = "A") -> int:
    """How many listen at a daemon."""
    metrics = send(room[who], "GET /metrics").body.decode()
    return int(float(metrics.partition(f'dialogd_event_clients{{agent="{who}"}} ')[2].split()[0]))


def poke(room: Room, fast: Stream) -> int:
    """Make much happen, which the fast client hears, then count the listeners."""
    asks = request(room.a.port, "POST /notify", "Content-Type: application/json", body=b'{"from": "B"}')
    with connect(room.a.port) as line:
        line.sendall(asks * POKES)  # one behind the other: a connection for each takes minutes
        for _ in range(POKES):
            assert read_answer(line).status == 200
            fast.until("notified", by="B")
    return clients(room)


@pytest.mark.slow
def test_more_clients_than_there_is_room_for_are_refused(room: Room) -> None:
    room.start("A")
    with ExitStack() as stack:
        streams = [stack.enter_context(socket.create_connection(("127.0.0.1", room.a.port))) for _ in range(CLIENTS)]
        for stream in streams:
            stream.sendall(request(room.a.port, "GET /events"))
        until(lambda: clients(room) == CLIENTS, "all of them to listen")
        answer = send(room.a, "GET /events")
        assert answer.problem["status"] == 503
        assert "close one" in answer.problem["fix"]
        streams[0].close()
        until(lambda: clients(room) == CLIENTS - 1, "the place to be free")
        with listening(room.a):
            assert send(room.a, "GET /events").status == 503
        send(room.a, "POST /notify", {"from": "B"})
        for stream in streams[1:]:
            stream.settimeout(PATIENCE)
            told = b""
            while b"event: notified" not in told:
                told += stream.recv(65536)


# -- against the schema that the daemon itself serves ------------------------------------------------------------


def check(events: Stream, schema: dict[str, Any]) -> set[str]:
    """Every event is as the schema has it, and has no field that the schema does not know; gives their kinds."""
    for event in events.seen:
        jsonschema_rs.validate({**schema, "$ref": f"#/$defs/{event.kind}"}, event.data)
        known = set(schema["$defs"][event.kind]["properties"])
        if event is events.seen[0]:
            known |= set(Health.model_fields)
        assert set(event.data) <= known, event.kind
    return {event.kind for event in events.seen}


def test_every_event_of_a_whole_dialog_is_as_the_schema_says(tmp_path: Path) -> None:
    with Room(tmp_path) as room:
        room.start("A")
        with listening(room.a, all_=True) as events:
            schema = send(room.a, "GET /events/schema").json_of("application/schema+json")
            assert set(schema["$defs"]) >= set(KINDS)
            room.begin("Tabs or spaces?", "A", max_turns="many")
            events.until("warning")
            room.think().end("Tabs.\n\n[PROPOSAL: tabs]\n")
            events.until("cost", turn=2)
            send(room.a, "POST /say", {"text": "Go on, A.", "to": "A"})
            typing = room.minds["A"].call(2)
            typing.say("Well, ")
            events.until("text", turn=4)
            send(room.a, "POST /say", {"text": "Stop.", "to": "B"})
            events.until("draft")
            room.begin("Which editor?", "A")
            events.until("dropped")
            send(room.a, "POST /stop", {"reason": "lunch"})
            events.rest()
        kinds = check(events, schema)
    told = "state agent text turn note mark cost appended draft warning dropped notified telling bye"
    assert kinds >= set(told.split())


def test_a_failure_is_told_as_the_schema_says(tmp_path: Path) -> None:
    with Room(tmp_path, command="sh -c 'exit 3'", environment={"DIALOGD_RETRY_WAIT": "0"}) as room:
        room.open()
        with listening(room.a) as events:
            schema = send(room.a, "GET /events/schema").json_of("application/schema+json")
            room.notify()
            events.until("agent", state="failed")
            events.until("state", state="waiting_for_user")
            room.a.notify(**{"from": "B"})
            events.until("notified", by="B")
            assert events.of("agent")[-1]["state"] == "failed"  # until somebody helps it on
        assert check(events, schema) >= {"error", "note"}

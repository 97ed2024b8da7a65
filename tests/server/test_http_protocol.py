"""Large, odd and slow requests cost little, and delay nobody."""

import resource
import select
import socket
import time
from contextlib import ExitStack
from typing import Any

import pytest

from dialogd.agent.peers import hint_head
from dialogd.server.guard import Bounds
from dialogd.server.serving import make_server
from tests.server.serving import (
    PAIRS,
    Answer,
    Make,
    Site,
    ask,
    assert_carries_nothing,
    assert_refused,
    connect,
    drain,
    limited,
    read_answer,
    request,
    running,
    unguarded,
    until,
)
from tests.support.cases import cases
from tests.support.pair import PATIENCE, a_second, stretched

MB = 1024 * 1024


class TestSizes:
    """Large requests are refused without being kept."""

    def test_a_body_at_the_limit_passes_and_one_byte_more_does_not(self, site: Site) -> None:
        assert ask(site.port, request(site.port, "POST /notify", body=b"x" * MB)).status == 202
        assert_refused(ask(site.port, request(site.port, "POST /notify", body=b"x" * (MB + 1))), 413)
        assert site.hits == ["notify"]

    @cases("chunked", [False, True])
    def test_a_hundred_megabytes_are_refused_and_not_kept(self, chunked: bool) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with running(limited(Bounds(linger_seconds=PATIENCE))) as site:
            assert_refused(send_large(site, chunked=chunked), 413)
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 * 1024
            assert not site.hits
            assert ask(site.port, request(site.port)).status == 200

    def test_a_declared_length_is_refused_before_the_body(self, site: Site) -> None:
        raw = request(site.port, "POST /notify", f"Content-Length: {MB + 1}", "Expect: 100-continue")
        assert_refused(ask(site.port, raw), 413)

    def test_a_refused_body_is_not_taken_for_requests(self, site: Site) -> None:
        with connect(site.port) as connection:
            connection.sendall(request(site.port, "POST /notify", body=b"GET / HTTP/1.1\r\n\r\n" * (MB // 16)))
            assert_refused(read_answer(connection), 413)
            assert drain(connection) == b""
        assert site.hits == []

    @cases("size", [70_000, 200_000, 5 * MB])
    def test_a_large_header_is_refused(self, site: Site, size: int) -> None:
        assert_refused(ask(site.port, request(site.port, "GET /health", "X-Large: " + "x" * size)), 431)
        assert not site.hits

    @cases("size", [70_000, 200_000])
    def test_a_large_target_is_refused(self, site: Site, size: int) -> None:
        assert_refused(ask(site.port, request(site.port, "GET /health?" + "x" * size)), 431)
        assert not site.hits


def send_large(site: Site, *, chunked: bool) -> Answer:
    """Send a body of 100 MB, as long as the server takes it, and read the answer."""
    piece = b"x" * MB
    if chunked:
        piece = b"%x\r\n%b\r\n" % (len(piece), piece)
    kind = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {100 * MB}"
    with connect(site.port) as connection:
        connection.sendall(request(site.port, "POST /notify", kind))
        for _ in range(100):
            connection.sendall(piece)
        return read_answer(connection)


class TestOddRequests:
    """What two readers could read in two ways is refused, or read in the harmless way."""

    @cases(
        "raw",
        [
            "POST /notify HTTP/1.1\r\n{host}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST /notify HTTP/1.1\r\n{host}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
            "POST /notify HTTP/1.1\r\n{host}Content-Length: -1\r\n\r\n",
            "POST /notify HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\nzz\r\n",
            "POST /notify HTTP/1.1\r\n{host}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "GET http://evil.example/health HTTP/1.1\r\n{host}\r\n",
            "GET http://127.0.0.1:{port}/health HTTP/1.1\r\n{host}\r\n",
            "CONNECT 127.0.0.1:{port} HTTP/1.1\r\n{host}\r\n",
            "OPTIONS * HTTP/1.1\r\n{host}\r\n",
            "GET /health HTTP/1.1\r\n{host} folded: yes\r\n\r\n",
            "GET /health HTTP/1.1\r\nHost : 127.0.0.1:{port}\r\n\r\n",
            "GET /health\r\n\r\n",
            "GET /health HTTP/2.0\r\n{host}\r\n",
            "\x16\x03\x01\x02\x00\x01\r\n\r\n",
            "\r\n\r\n",
        ],
    )
    def test_an_odd_request_reaches_no_route(self, site: Site, raw: str) -> None:
        host = f"Host: 127.0.0.1:{site.port}\r\n"
        answer = ask(site.port, raw.format(host=host, port=site.port).encode("latin-1"))

        assert_refused(answer, 400, 403, 501, 505)
        assert not site.hits

    def test_pipelined_requests_are_checked_one_by_one(self, site: Site) -> None:
        with connect(site.port) as connection:
            connection.sendall(request(site.port) + request(site.port, host="evil.example"))
            assert read_answer(connection).status == 200
            assert_refused(read_answer(connection), 403)
        assert site.hits == ["health"]

    def test_a_client_that_leaves_in_the_middle_leaves_nothing(
        self, site: Site, caplog: pytest.LogCaptureFixture
    ) -> None:
        with connect(site.port) as connection:
            connection.sendall(request(site.port, "POST /notify", "Content-Length: 9") + b"half")
            until(lambda: bool(site.server.server_state.tasks))
        until(lambda: not site.server.server_state.tasks)
        assert not site.hits
        assert not caplog.records

    def test_an_upgrade_is_not_taken_up(self, site: Site) -> None:
        raw = request(site.port, "GET /health", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x")
        assert ask(site.port, raw).status == 200


class TestSlowClients:
    """Half-sent requests cost little and end."""

    def test_an_honest_client_is_answered_while_hundreds_hang(self) -> None:
        with (
            running(limited(Bounds(request_seconds=1.5, linger_seconds=0.1, connections=256))) as site,
            ExitStack() as stack,
        ):
            started = time.monotonic()
            hanging = [stack.enter_context(connect(site.port)) for _ in range(300)]
            for number, connection in enumerate(hanging):
                half = request(site.port, "POST /notify", "Content-Length: 9")[: 10 + number]
                connection.sendall(half if number % 3 else b"")

            assert slowest_answer(site.port, times=20) < 2 * a_second()
            waiting = len(site.server.server_state.connections)
            assert waiting > 200 or time.monotonic() - started > 1.5
            until(lambda: len(site.server.server_state.connections) == 0)
            assert set(site.hits) == {"health"}

    def test_a_half_sent_request_is_told_why_it_ends(self) -> None:
        with running(limited(Bounds(request_seconds=0.4))) as site, connect(site.port) as connection:
            started = time.monotonic()
            connection.sendall(request(site.port, "POST /notify", "Content-Length: 1000000"))
            while not select.select([connection], [], [], 0.01)[0]:
                connection.sendall(b"x")
            assert_refused(read_answer(connection), 408)
            assert time.monotonic() - started > 0.3
            assert not site.hits

    def test_a_refused_body_leaves_no_connection_behind(self) -> None:
        limits = Bounds(request_seconds=stretched(0.3), linger_seconds=stretched(0.3), body_bytes=10)
        with running(limited(limits)) as site, connect(site.port) as connection:
            connection.sendall(request(site.port, "POST /notify", "Content-Length: 20") + b"x" * 10)
            assert_refused(read_answer(connection), 413)
            connection.sendall(b"x" * 10)
            assert drain(connection) == b""

    def test_unguarded_half_sent_requests_stay(self) -> None:
        with running(unguarded) as site, connect(site.port) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\n")
            until(lambda: len(site.server.server_state.connections) == 1)
            time.sleep(0.6)
            assert len(site.server.server_state.connections) == 1

    def test_an_idle_connection_outlives_the_deadline(self) -> None:
        deadline = stretched(0.4)
        with running(limited(Bounds(request_seconds=deadline))) as site, connect(site.port) as connection:
            connection.sendall(request(site.port))
            assert read_answer(connection).status == 200
            time.sleep(1.5 * deadline)
            connection.sendall(request(site.port))
            assert read_answer(connection).status == 200

    def test_over_the_cap_the_unfinished_give_way(self) -> None:
        with running(limited(Bounds(connections=4))) as site, ExitStack() as stack:
            stream = stack.enter_context(connect(site.port))
            stream.sendall(request(site.port, "GET /events"))
            assert read_answer(stream).status == 200
            for _ in range(40):
                stack.enter_context(connect(site.port)).sendall(b"GET /")
                assert ask(site.port, request(site.port)).status == 200
            assert len(site.server.server_state.connections) <= 8
            site.server.should_exit = True
            assert b"bye" in drain(stream)

    def test_over_the_cap_idle_connections_give_way_and_busy_ones_stay(self) -> None:
        with running(limited(Bounds(connections=2))) as site, ExitStack() as stack:
            for path in ["/health"] * 4 + ["/events"] * 4:
                connection = stack.enter_context(connect(site.port))
                connection.sendall(request(site.port, f"GET {path}"))
                assert read_answer(connection).status == 200
            assert_refused(ask(site.port, b""), 503)

    def test_a_burst_of_honest_calls_is_answered_in_full(self) -> None:
        with running(limited(Bounds(connections=256, request_seconds=PATIENCE))) as site, ExitStack() as stack:
            connections = [stack.enter_context(connect(site.port)) for _ in range(400)]
            for connection in connections:
                connection.sendall(request(site.port, "POST /notify", "Connection: close"))
            assert {read_answer(connection).status for connection in connections} == {202}
        assert len(site.hits) == 400


class TestHints:
    """What a peer's daemon sends after each turn is taken without the app; nothing else is."""

    def test_a_hint_alone_is_taken_and_answered_as_the_app_would(self) -> None:
        taken: list[bytes] = []
        limits = Bounds(request_seconds=stretched(0.4))
        with running(hinted(taken, limits=limits)) as site, connect(site.port) as connection:
            for _ in range(2):
                connection.sendall(a_hint(site))
                answer = read_answer(connection)
                assert (answer.status, answer.body) == (202, b'{"status":"accepted"}')
                time.sleep(1.5 * limits.request_seconds)
                connection.sendall(request(site.port))
                health = read_answer(connection)
                assert health.status == 200
                assert {*answer.headers} == {*health.headers}
        assert taken == [b"{}"] * 2
        assert site.hits == ["health"] * 2

    def test_what_is_not_a_hint_whole_and_alone_goes_to_the_app(self) -> None:
        taken: list[bytes] = []
        with running(hinted(taken)) as site:
            hint_, port = a_hint(site), str(site.port).encode()
            for raw, statuses in {
                hint_ + hint_: {202},
                hint_[:-1]: {0},
                hint_.replace(b"Content-Length: 2", b"Content-Length: 2\r\nX-More: 1"): {202},
                hint_.replace(b"Content-Length: 2", b"Content-Length: 2\r\nContent-Length: 9"): {400},
                hint_.replace(b"Content-Length: 2", b"Content-Length: 2\r\nOrigin: http://evil.example"): {403},
                hint_.replace(b"Content-Length: 2", b"Content-Length: +2"): {400},
                hint_.replace(b"127.0.0.1:" + port, b"evil.example:" + port): {403},
            }.items():
                with connect(site.port) as connection:
                    connection.sendall(raw)
                    connection.shutdown(socket.SHUT_WR)
                    assert read_answer(connection).status in statuses, raw
        assert taken == []

    def test_a_hint_that_is_another_dialogs_goes_to_the_app(self) -> None:
        with running(hinted([], takes=False)) as site:
            assert ask(site.port, a_hint(site)).body == b'{"bytes":2}'

    def test_a_hint_from_who_knows_where_is_refused(self) -> None:
        taken: list[bytes] = []
        for uid in (None, 2**31):
            with running(hinted(taken, find_lookup=lambda uid=uid: lambda _theirs, _ours: uid)) as site:
                assert_refused(ask(site.port, a_hint(site)), 403)
        assert taken == []


def hinted(taken: list[bytes], *, takes: bool = True, **settings: Any) -> Make:
    """Return what makes a guarded server that notes the hints it takes, or takes none."""

    def take(body: bytes) -> bool:
        taken.append(body)
        return takes

    return lambda site, listener: make_server(
        site.app(), listener, on_shutdown=[site.close], take_hint=take, **settings
    )


def a_hint(site: Site) -> bytes:
    """A hint with an empty message."""
    return hint_head(f"127.0.0.1:{site.port}") + b"2\r\n\r\n{}"


def slowest_answer(port: int, *, times: int) -> float:
    """Return the longest of several answers to a plain request, in seconds."""
    durations = []
    for _ in range(times):
        started = time.monotonic()
        assert ask(port, request(port)).status == 200
        durations.append(time.monotonic() - started)
    return max(durations)


@cases("pair", PAIRS)
def test_a_refused_request_carries_none_behind_it(site: Site, pair: str) -> None:
    site.hits.clear()
    assert_carries_nothing(site.port, pair, request(site.port, "POST /notify", body=b"x"))
    assert ask(site.port, request(site.port)).status == 200
    assert site.hits == ["health"]

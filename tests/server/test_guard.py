"""Nobody but this user reaches a route, and nobody can make the daemon deaf."""

import asyncio
import json
import os
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import uvicorn
from starlette.types import Message

from dialogd.errors import AlreadyRunning, BadInput
from dialogd.server.callers import UidOf
from dialogd.server.guard import Guard, Limits
from dialogd.server.listen import bind
from dialogd.server.uvicorn_server import make_server
from tests.server.serving import Answer, Make, Site, ask, connect, read_answer, request, running, unguarded, until

NOBODY = 65534
MB = 1024 * 1024
ROUTES = ["GET /health", "POST /notify", "GET /events", "GET /"]


def guarded(site: Site, listener: socket.socket) -> uvicorn.Server:
    """Return the guarded server with the product's own settings."""
    return make_server(site.app(), listener, on_shutdown=[site.close])


def limited(limits: Limits) -> Make:
    """Return what makes a guarded server with other limits."""
    return lambda site, listener: make_server(site.app(), listener, on_shutdown=[site.close], limits=limits)


def trusting(site: Site, listener: socket.socket) -> uvicorn.Server:
    """Return a guarded server on a system that cannot tell callers apart."""

    def cannot_tell() -> UidOf | None:
        return None

    return make_server(site.app(), listener, on_shutdown=[site.close], find_lookup=cannot_tell)


@pytest.fixture(scope="module")
def shared() -> Iterator[Site]:
    """One guarded site for the whole file."""
    with running(guarded) as site:
        yield site


@pytest.fixture
def site(shared: Site) -> Site:
    """The guarded site, with no hits yet."""
    shared.hits.clear()
    return shared


def assert_refused(answer: Answer, *statuses: int) -> None:
    """Assert that this is a refusal in problem JSON that permits no other origin anything."""
    assert answer.status in statuses
    assert answer.problem["status"] == answer.status
    assert answer.problem["fix"]
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert answer.headers["x-content-type-options"] == "nosniff"


class TestHost:
    """A page that has rebound its name to 127.0.0.1 still sends that name."""

    @pytest.mark.parametrize("route", ROUTES)
    @pytest.mark.parametrize(
        "host",
        [
            "evil.example:{port}",
            "evil.example",
            "localhost.evil.example:{port}",
            "127.0.0.1.nip.io:{port}",
            "localhost",
            "127.0.0.1",
            "localhost:1",
            "localhost:0{port}",
            "localhost.:{port}",
            "0.0.0.0:{port}",
            "2130706433:{port}",
            "127.1:{port}",
            "[::]:{port}",
            "[::ffff:127.0.0.1]:{port}",
            "::1:{port}",
            "user@localhost:{port}",
            "localhost:{port}, localhost:{port}",
            "localhost:{port}/",
        ],
    )
    def test_every_other_host_is_refused(self, site: Site, route: str, host: str) -> None:
        """Only the daemon's own names and port pass, on every kind of route."""
        assert_refused(ask(site.port, request(site.port, route, host=host.format(port=site.port))), 400, 403)
        assert not site.hits

    @pytest.mark.parametrize("route", ROUTES)
    @pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:{port}", "[::1]:{port}", "LocalHost:{port}"])
    def test_the_own_names_pass(self, site: Site, route: str, host: str) -> None:
        """A plain client needs nothing else."""
        answer = ask(site.port, request(site.port, route, host=host.format(port=site.port)))

        assert answer.status in (200, 202)
        assert len(site.hits) == 1

    def test_two_hosts_are_refused(self, site: Site) -> None:
        """Also two good ones."""
        own = f"Host: localhost:{site.port}"
        assert_refused(ask(site.port, request(site.port, "GET /health", own)), 400, 403)
        assert not site.hits

    @pytest.mark.parametrize("version", ["1.0", "1.1"])
    def test_no_host_is_refused(self, site: Site, version: str) -> None:
        """HTTP/1.0 may leave it out; not here."""
        assert_refused(ask(site.port, f"GET /health HTTP/{version}\r\n\r\n".encode()), 400, 403)
        assert not site.hits

    def test_unguarded_the_same_attack_succeeds(self) -> None:
        """The control: without the guard a foreign Host is served."""
        with running(unguarded) as site:
            assert ask(site.port, request(site.port, host="evil.example")).status == 200


class TestOrigin:
    """A page of another origin can neither read nor drive a daemon."""

    @pytest.mark.parametrize("route", ROUTES)
    @pytest.mark.parametrize(
        "headers",
        [
            ["Origin: https://evil.example"],
            ["Origin: null"],
            ["Origin: "],
            ["Origin: http://localhost:{port}"],  # the Host is 127.0.0.1
            ["Origin: https://127.0.0.1:{port}"],
            ["Origin: http://127.0.0.1:1"],
            ["Origin: http://127.0.0.1"],
            ["Origin: http://127.0.0.1:{port}.evil.example"],
            ["Origin: http://127.0.0.1:{port}", "Origin: http://127.0.0.1:{port}"],
            ["Sec-Fetch-Site: cross-site"],
            ["Sec-Fetch-Site: same-site"],
            ["Sec-Fetch-Site: "],
            ["Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: cross-site"],
            ["Sec-Fetch-Site: same-origin", "Origin: https://evil.example"],
            ["Sec-Fetch-Site: none", "Origin: null"],
            ["Sec-Fetch-Site: cross-site", "Origin: http://127.0.0.1:{port}"],
            ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-User: ?1"],
            ["Origin: https://evil.example", "Connection: Upgrade", "Upgrade: websocket"],
        ],
    )
    def test_a_foreign_page_is_refused(self, site: Site, route: str, headers: list[str]) -> None:
        """Both headers must pass where both are sent, on every kind of route."""
        raw = request(site.port, route, *(header.format(port=site.port) for header in headers))
        assert_refused(ask(site.port, raw), 403)
        assert not site.hits

    @pytest.mark.parametrize("route", ROUTES)
    @pytest.mark.parametrize(
        "headers",
        [
            [],
            ["Origin: http://127.0.0.1:{port}"],
            ["Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate"],
            ["Sec-Fetch-Site: same-origin", "Origin: http://127.0.0.1:{port}"],
        ],
    )
    def test_the_own_page_and_plain_clients_pass(self, site: Site, route: str, headers: list[str]) -> None:
        """curl sends neither header, the daemon's page sends both."""
        raw = request(site.port, route, *(header.format(port=site.port) for header in headers))
        assert ask(site.port, raw).status in (200, 202)
        assert len(site.hits) == 1

    def test_a_preflight_gets_no_permission(self, site: Site) -> None:
        """OPTIONS from a foreign origin is refused like everything else."""
        headers = ["Origin: https://evil.example", "Access-Control-Request-Method: POST"]
        assert_refused(ask(site.port, request(site.port, "OPTIONS /notify", *headers)), 403)

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
    def test_a_form_that_needs_no_preflight_is_refused(self, site: Site, kind: str) -> None:
        """What any page may post without asking, it may not post here."""
        headers = ["Origin: https://evil.example", f"Content-Type: {kind}"]
        assert_refused(ask(site.port, request(site.port, "POST /notify", *headers, body=b"a=b")), 403)
        assert not site.hits

    def test_unguarded_the_same_attack_succeeds(self) -> None:
        """The control: without the guard a foreign page's POST is served."""
        with running(unguarded) as site:
            assert ask(site.port, request(site.port, "POST /notify", "Origin: https://evil.example")).status == 202


class TestResponses:
    """What every response carries."""

    @pytest.mark.parametrize("route", [*ROUTES, "GET /absent", "GET /notify"])
    def test_security_headers_stand_on_every_response(self, site: Site, route: str) -> None:
        """Also on streams, on a 404 and a 405; a CORS permission of the app is taken off."""
        headers = ask(site.port, request(site.port, route)).headers

        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["content-security-policy"].startswith("default-src ")
        assert headers["cache-control"] in ("no-store", "no-cache")
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers

    def test_the_app_may_set_a_policy_of_its_own(self, site: Site) -> None:
        """One policy, the app's."""
        assert ask(site.port, request(site.port, "GET /")).headers["content-security-policy"] == "default-src 'self'"

    def test_a_stream_whose_reader_leaves_ends(self, site: Site) -> None:
        """The app hears of the disconnect through the guard."""
        with connect(site.port) as stream:
            stream.sendall(request(site.port, "GET /events"))
            assert read_answer(stream).status == 200
            until(lambda: site.streams > 0)
        until(lambda: site.streams == 0)

    async def test_a_websocket_is_closed(self) -> None:
        """The guard lets no websocket through, whatever server runs it."""
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "websocket.connect"}

        await Guard(Site().app(), 3001)({"type": "websocket", "path": "/", "headers": []}, receive, send)

        assert sent == [{"type": "websocket.close", "code": 1008}]

    async def test_a_request_whose_connection_is_unknown_is_refused(self) -> None:
        """Behind a server that does not say who calls, nothing is served."""
        sent: list[Any] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/health", "raw_path": b"/health"}
        scope["headers"] = [(b"host", b"localhost:3001")]
        await Guard(Site().app(), 3001)(scope, receive, send)

        assert sent[0]["status"] == 403


class TestOtherUsers:
    """Another local user is refused; this one needs no token."""

    pytestmark = pytest.mark.root

    @pytest.mark.parametrize("route", ROUTES)
    def test_another_user_is_refused(self, site: Site, route: str) -> None:
        """curl as nobody gets a 403 that says so."""
        method, path = route.split()
        command = ["curl", "-s", "-m", "5", "-X", method, f"http://127.0.0.1:{site.port}{path}"]
        run = subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, check=True)

        assert "another user" in json.loads(run.stdout)["detail"]
        assert not site.hits

    def test_another_user_who_leaves_at_once_is_refused(self, site: Site) -> None:
        """A request whose sender is gone before the lookup belongs to nobody, and not to root."""
        self.fire_and_close(site)
        assert not site.hits

    def test_a_system_that_cannot_tell_lets_them_in(self) -> None:
        """The control: the same requests reach the route where callers are not looked up."""
        with running(trusting) as site:
            self.fire_and_close(site)
            assert len(site.hits) == 50

    @staticmethod
    def fire_and_close(site: Site) -> None:
        """Have nobody send 50 requests and close each connection, every other one with a reset."""
        code = (
            "import socket, struct, sys\n"
            "for n in range(50):\n"
            "    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
            "    s.sendall(bytes.fromhex(sys.argv[2]))\n"
            "    s.close()\n"
        )
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or pytest.skip("no python3 for nobody")
        command = [python, "-I", "-c", code, str(site.port), request(site.port, "POST /notify").hex()]
        subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], cwd="/", check=True)
        until(lambda: not site.server.server_state.connections and not site.server.server_state.tasks)


class TestSizes:
    """Large requests are refused without being kept."""

    def test_a_body_at_the_limit_passes_and_one_byte_more_does_not(self, site: Site) -> None:
        """1 MiB exactly."""
        assert ask(site.port, request(site.port, "POST /notify", body=b"x" * MB)).status == 202
        assert_refused(ask(site.port, request(site.port, "POST /notify", body=b"x" * (MB + 1))), 413)
        assert site.hits == ["notify"]

    @pytest.mark.parametrize("chunked", [False, True], ids=["declared", "chunked"])
    def test_a_hundred_megabytes_are_refused_and_not_kept(self, site: Site, chunked: bool) -> None:
        """The client reads its 413, and memory stays where it was."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        assert_refused(send_large(site, chunked=chunked), 413)

        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30 * 1024
        assert not site.hits
        assert ask(site.port, request(site.port)).status == 200

    def test_a_declared_length_is_refused_before_the_body(self, site: Site) -> None:
        """A client that asks first (Expect: 100-continue) is spared the sending."""
        raw = request(site.port, "POST /notify", f"Content-Length: {MB + 1}", "Expect: 100-continue")
        assert_refused(ask(site.port, raw), 413)

    def test_a_connection_can_be_used_again_after_a_refused_body(self, site: Site) -> None:
        """The rest of the body is read away, not taken for the next request."""
        with connect(site.port) as connection:
            connection.sendall(request(site.port, "POST /notify", body=b"GET / HTTP/1.1\r\n\r\n" * (MB // 16)))
            assert_refused(read_answer(connection), 413)
            connection.sendall(request(site.port))
            assert read_answer(connection).status == 200
        assert site.hits == ["health"]

    @pytest.mark.parametrize("size", [70_000, 200_000, 5 * MB])
    def test_a_large_header_is_refused(self, site: Site, size: int) -> None:
        """Whether it comes in one read or in many."""
        assert_refused(ask(site.port, request(site.port, "GET /health", "X-Large: " + "x" * size)), 431)
        assert not site.hits

    def test_a_large_target_is_refused(self, site: Site) -> None:
        """The request line counts too."""
        assert_refused(ask(site.port, request(site.port, "GET /health?" + "x" * 200_000)), 431)
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

    @pytest.mark.parametrize(
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
        """Each is answered 4xx or 5xx in problem JSON."""
        host = f"Host: 127.0.0.1:{site.port}\r\n"
        answer = ask(site.port, raw.format(host=host, port=site.port).encode("latin-1"))

        assert_refused(answer, 400, 403, 501, 505)
        assert not site.hits

    def test_pipelined_requests_are_checked_one_by_one(self, site: Site) -> None:
        """A good request does not carry a bad one along."""
        with connect(site.port) as connection:
            connection.sendall(request(site.port) + request(site.port, host="evil.example"))
            assert read_answer(connection).status == 200
            assert_refused(read_answer(connection), 403)
        assert site.hits == ["health"]

    def test_a_client_that_leaves_in_the_middle_leaves_nothing(
        self, site: Site, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Half a body reaches no route, no log and no task."""
        with connect(site.port) as connection:
            connection.sendall(request(site.port, "POST /notify", "Content-Length: 9") + b"half")
            until(lambda: bool(site.server.server_state.tasks))
        until(lambda: not site.server.server_state.tasks)
        assert not site.hits
        assert not caplog.records

    def test_an_upgrade_is_not_taken_up(self, site: Site) -> None:
        """A websocket handshake gets the route's plain answer."""
        raw = request(site.port, "GET /health", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x")
        assert ask(site.port, raw).status == 200


class TestSlowClients:
    """Half-sent requests cost little and end."""

    def test_an_honest_client_is_answered_while_hundreds_hang(self) -> None:
        """300 half-open connections delay nobody, and are closed after the deadline."""
        with running(limited(Limits(request_seconds=1.5, linger_seconds=0.1))) as site, ExitStack() as stack:
            started = time.monotonic()
            hanging = [stack.enter_context(connect(site.port)) for _ in range(300)]
            for number, connection in enumerate(hanging):
                half = request(site.port, "POST /notify", "Content-Length: 9")[: 10 + number]
                connection.sendall(half if number % 3 else b"")

            assert slowest_answer(site.port, times=20) < 0.5
            if time.monotonic() - started < 1.5:
                assert len(site.server.server_state.connections) >= 256
            until(lambda: len(site.server.server_state.connections) == 0)
            assert set(site.hits) == {"health"}

    def test_a_half_sent_request_is_told_why_it_ends(self) -> None:
        """408 with the seconds; dripping bytes does not help."""
        with running(limited(Limits(request_seconds=0.4))) as site, connect(site.port) as connection:
            started = time.monotonic()
            for byte in request(site.port, "POST /notify", "Content-Length: 900"):
                connection.sendall(bytes([byte]))
                time.sleep(0.004)
            assert_refused(read_answer(connection), 408)
            assert 0.3 < time.monotonic() - started < 1.2
            assert not site.hits

    def test_a_refused_body_leaves_no_connection_behind(self) -> None:
        """Its last bytes stop the idle timer of the server; the deadline takes over."""
        limits = Limits(request_seconds=0.3, body_bytes=10)
        with running(limited(limits)) as site, connect(site.port) as connection:
            connection.sendall(request(site.port, "POST /notify", "Content-Length: 20") + b"x" * 10)
            assert_refused(read_answer(connection), 413)
            connection.sendall(b"x" * 10)
            assert drain(connection) == b""

    def test_unguarded_half_sent_requests_stay(self) -> None:
        """The control: uvicorn alone still waits when the deadline is over."""
        with running(unguarded) as site, connect(site.port) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\n")
            time.sleep(0.6)
            assert len(site.server.server_state.connections) == 1

    def test_an_idle_connection_outlives_the_deadline(self) -> None:
        """Peers keep one open; only unfinished requests have a deadline."""
        with running(limited(Limits(request_seconds=0.4))) as site, connect(site.port) as connection:
            connection.sendall(request(site.port))
            assert read_answer(connection).status == 200
            time.sleep(0.6)
            connection.sendall(request(site.port))
            assert read_answer(connection).status == 200

    def test_over_the_cap_the_unfinished_give_way(self) -> None:
        """New calls are answered, and running streams stay, however many hang."""
        with running(limited(Limits(connections=4))) as site, ExitStack() as stack:
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
        """When every connection is a running stream, a new one is told so."""
        with running(limited(Limits(connections=2))) as site, ExitStack() as stack:
            for path in ["/health"] * 4 + ["/events"] * 4:
                connection = stack.enter_context(connect(site.port))
                connection.sendall(request(site.port, f"GET {path}"))
                assert read_answer(connection).status == 200
            assert_refused(ask(site.port, b""), 503)

    def test_a_burst_of_honest_calls_is_answered_in_full(self, site: Site) -> None:
        """400 connections opened at once, more than the cap, lose none."""
        with ExitStack() as stack:
            connections = [stack.enter_context(connect(site.port)) for _ in range(400)]
            for connection in connections:
                connection.sendall(request(site.port, "POST /notify", "Connection: close"))
            assert {read_answer(connection).status for connection in connections} == {202}
        assert len(site.hits) == 400


def slowest_answer(port: int, *, times: int) -> float:
    """Return the longest of several answers to a plain request, in seconds."""
    durations = []
    for _ in range(times):
        started = time.monotonic()
        assert ask(port, request(port)).status == 200
        durations.append(time.monotonic() - started)
    return max(durations)


def drain(connection: socket.socket) -> bytes:
    """Read until the server closes."""
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


class TestShutdown:
    """The server ends in under a second, whoever is connected."""

    def test_open_streams_end_cleanly(self) -> None:
        """A reader gets its last event and a proper end."""
        with running(guarded) as site, connect(site.port) as stream:
            stream.sendall(request(site.port, "GET /events"))
            assert read_answer(stream).status == 200
            started = time.monotonic()
            site.server.should_exit = True
            assert drain(stream).endswith(b"0\r\n\r\n")
            until(lambda: not is_open(site.port))
            assert time.monotonic() - started < 1.0

    def test_clients_that_hang_do_not_hold_it_up(self, caplog: pytest.LogCaptureFixture) -> None:
        """Half-sent requests, idle connections, and a stream nobody reads."""
        with ExitStack() as stack:
            with running(flooding) as site:
                for raw in [b"", b"GET", request(site.port), request(site.port, "POST /notify", "Content-Length: 5")]:
                    stack.enter_context(connect(site.port)).sendall(raw)
                stack.enter_context(connect(site.port)).sendall(request(site.port, "GET /events"))
                until(lambda: site.hits == ["health"] and len(site.server.server_state.connections) == 5)
                until(lambda: any(client.flow.write_paused for client in site.server.server_state.connections))
                started = time.monotonic()
            assert time.monotonic() - started < 1.0
        assert not caplog.records

    def test_a_part_that_fails_or_hangs_is_left_behind(self, caplog: pytest.LogCaptureFixture) -> None:
        """One bad callback keeps neither the others nor the server."""
        ended = []

        async def hang() -> None:
            await asyncio.sleep(60)

        async def fail() -> None:
            raise ValueError("no")

        async def end() -> None:
            ended.append(True)

        started = time.monotonic()
        with running(lambda site, listener: make_server(site.app(), listener, on_shutdown=[hang, fail, end])):
            pass
        assert ended
        assert time.monotonic() - started < 1.5
        assert len(caplog.records) == 2


def flooding(site: Site, listener: socket.socket) -> uvicorn.Server:
    """Return a guarded server whose event stream never stops sending."""

    async def events(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/events":
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not site.closing.is_set():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    app = site.app()
    return make_server(events, listener, on_shutdown=[site.close])


def is_open(port: int) -> bool:
    """Say whether anything listens."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class TestBind:
    """The port is taken, or the person reads who has it."""

    def test_a_daemon_on_the_port_is_named(self, site: Site) -> None:
        """The message says which agent, on which file, without its control characters."""
        with pytest.raises(AlreadyRunning, match=rf"port {site.port} .* agent A on /tmp/x\?\.md$") as caught:
            bind(site.port)
        assert "--port" in caught.value.fix

    def test_another_program_on_the_port_is_not_taken_for_one(self) -> None:
        """Also one that never answers."""
        with socket.create_server(("127.0.0.1", 0)) as squatter:
            port = squatter.getsockname()[1]
            started = time.monotonic()
            with pytest.raises(AlreadyRunning, match=rf"port {port} is taken by another program"):
                bind(port)
        assert time.monotonic() - started < 1.5

    def test_a_port_just_left_can_be_taken_again(self) -> None:
        """A restart does not wait for old connections to time out."""
        first = bind(0)
        port = first.getsockname()[1]
        with connect(port):
            first.accept()[0].close()
            first.close()
        bind(port).close()

    @pytest.mark.parametrize("port", [-1, 65536])
    def test_a_number_that_is_no_port_is_bad_input(self, port: int) -> None:
        """With the range in the fix."""
        with pytest.raises(BadInput, match="is not a port") as caught:
            bind(port)
        assert "65535" in caught.value.fix

    def test_only_loopback_is_bound(self) -> None:
        """Never another interface."""
        with bind(0) as listener:
            assert listener.getsockname()[0] == "127.0.0.1"
            assert not os.get_inheritable(listener.fileno())

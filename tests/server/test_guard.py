"""Nobody but this user reaches a route: no foreign page, no other user."""

import json
import shutil
import socket
import subprocess
import threading

import pytest
import uvicorn
from starlette.types import Message

from dialogd.server.serving import Address, Guard, UidOf, make_server
from tests.server.serving import Site, ask, assert_refused, connect, read_answer, request, running, unguarded, until
from tests.support.cases import cases
from tests.support.pair import PATIENCE

NOBODY = 65534
ROUTES = ["GET /health", "POST /notify", "GET /events", "GET /"]


def trusting(site: Site, listener: socket.socket) -> uvicorn.Server:
    """Return a guarded server on a system that cannot tell callers apart."""

    def cannot_tell() -> UidOf | None:
        return None

    return make_server(site.app(), listener, on_shutdown=[site.close], find_lookup=cannot_tell)


class TestHost:
    """A page that has rebound its name to 127.0.0.1 still sends that name."""

    @cases("route", ROUTES)
    @cases(
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
        assert_refused(ask(site.port, request(site.port, route, host=host.format(port=site.port))), 400, 403)
        assert not site.hits

    @cases("route", ROUTES)
    @cases("host", ["localhost:{port}", "127.0.0.1:{port}", "[::1]:{port}", "LocalHost:{port}"])
    def test_the_own_names_pass(self, site: Site, route: str, host: str) -> None:
        site.hits.clear()
        answer = ask(site.port, request(site.port, route, host=host.format(port=site.port)))

        assert answer.status in (200, 202)
        assert len(site.hits) == 1

    def test_two_hosts_are_refused(self, site: Site) -> None:
        own = f"Host: localhost:{site.port}"
        assert ask(site.port, request(site.port, "GET /health", own)).status in (400, 403)
        assert not site.hits

    @cases("version", ["1.0", "1.1"])
    def test_no_host_is_refused(self, site: Site, version: str) -> None:
        assert ask(site.port, f"GET /health HTTP/{version}\r\n\r\n".encode()).status in (400, 403)
        assert not site.hits

    def test_unguarded_the_same_attack_succeeds(self) -> None:
        with running(unguarded) as site:
            assert ask(site.port, request(site.port, host="evil.example")).status == 200


class TestOrigin:
    """A page of another origin can neither read nor drive a daemon."""

    @cases("route", ROUTES)
    @cases(
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
        raw = request(site.port, route, *(header.format(port=site.port) for header in headers))
        assert_refused(ask(site.port, raw), 403)
        assert not site.hits

    @cases("route", ROUTES)
    @cases(
        "headers",
        [
            [],
            ["Origin: http://127.0.0.1:{port}"],
            ["Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate"],
            ["Sec-Fetch-Site: same-origin", "Origin: http://127.0.0.1:{port}"],
        ],
    )
    def test_the_own_page_and_plain_clients_pass(self, site: Site, route: str, headers: list[str]) -> None:
        site.hits.clear()
        raw = request(site.port, route, *(header.format(port=site.port) for header in headers))
        assert ask(site.port, raw).status in (200, 202)
        assert len(site.hits) == 1

    def test_a_preflight_gets_no_permission(self, site: Site) -> None:
        headers = ["Origin: https://evil.example", "Access-Control-Request-Method: POST"]
        assert_refused(ask(site.port, request(site.port, "OPTIONS /notify", *headers)), 403)

    @cases("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
    def test_a_form_that_needs_no_preflight_is_refused(self, site: Site, kind: str) -> None:
        headers = ["Origin: https://evil.example", f"Content-Type: {kind}"]
        assert_refused(ask(site.port, request(site.port, "POST /notify", *headers, body=b"a=b")), 403)
        assert not site.hits

    def test_unguarded_the_same_attack_succeeds(self) -> None:
        with running(unguarded) as site:
            assert ask(site.port, request(site.port, "POST /notify", "Origin: https://evil.example")).status == 202


class TestResponses:
    """What every response carries."""

    @cases("route", [*ROUTES, "GET /absent", "GET /notify"])
    def test_security_headers_stand_on_every_response(self, site: Site, route: str) -> None:
        headers = ask(site.port, request(site.port, route)).headers

        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["content-security-policy"].startswith("default-src ")
        assert headers["cache-control"] in ("no-store", "no-cache")
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers

    def test_the_app_may_set_a_policy_of_its_own(self, site: Site) -> None:
        assert ask(site.port, request(site.port, "GET /")).headers["content-security-policy"] == "default-src 'self'"

    def test_a_stream_whose_reader_leaves_ends(self, site: Site) -> None:
        with connect(site.port) as stream:
            stream.sendall(request(site.port, "GET /events"))
            assert read_answer(stream).status == 200
            until(lambda: site.streams > 0)
        until(lambda: site.streams == 0)

    async def test_a_websocket_reaches_nothing(self) -> None:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "websocket.connect"}

        site = Site()
        await Guard(site.app(), 3001)({"type": "websocket", "path": "/", "headers": []}, receive, send)

        assert (sent, site.hits) == ([], [])

    def test_a_request_whose_connection_is_unknown_reaches_nothing(self) -> None:
        def plain(site: Site, listener: socket.socket) -> uvicorn.Server:
            app = Guard(site.app(), listener.getsockname()[1])
            return uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", http="h11", ws="none"))

        with running(plain) as site:
            assert_refused(ask(site.port, request(site.port)), 403)
            assert not site.hits


def test_a_client_that_is_gone_when_it_is_refused_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    asked, gone = threading.Event(), threading.Event()

    def look_up(theirs: Address, ours: Address) -> int | None:
        asked.set()
        assert gone.wait(PATIENCE)
        return None

    def guarded(site: Site, listener: socket.socket) -> uvicorn.Server:
        return make_server(site.app(), listener, on_shutdown=[site.close], find_lookup=lambda: look_up)

    with running(guarded) as site:
        with connect(site.port) as client:
            client.sendall(request(site.port, "POST /notify"))
            assert asked.wait(PATIENCE)
        gone.set()
        until(lambda: not site.server.server_state.connections and not site.server.server_state.tasks)
    assert not [record for record in caplog.records if record.exc_info]


class TestOtherUsers:
    """Another local user is refused; this one needs no token."""

    pytestmark = pytest.mark.root

    @cases("route", ROUTES)
    def test_another_user_is_refused(self, site: Site, route: str) -> None:
        method, path = route.split()
        command = ["curl", "-s", "-m", "5", "-X", method, f"http://127.0.0.1:{site.port}{path}"]
        run = subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, check=True)

        assert "another user" in json.loads(run.stdout)["detail"]
        assert not site.hits

    def test_another_user_who_leaves_at_once_is_refused(self, site: Site) -> None:
        self.fire_and_close(site)
        assert "notify" not in site.hits

    def test_a_system_that_cannot_tell_lets_them_in(self) -> None:
        with running(trusting) as site:
            self.fire_and_close(site)
            assert site.hits.count("notify") == 50

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
        # Behind theirs in the queue: once it is answered, each of theirs was taken.
        assert ask(site.port, request(site.port)).status == 200
        until(lambda: not site.server.server_state.connections and not site.server.server_state.tasks)

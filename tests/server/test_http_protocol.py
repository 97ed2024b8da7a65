"""Large and odd requests cost little, and reach no route."""

import resource

import pytest

from tests.server.serving import (
    PAIRS,
    Answer,
    Site,
    ask,
    assert_carries_nothing,
    assert_refused,
    connect,
    drain,
    guarded,
    read_answer,
    request,
    running,
    until,
)
from tests.support.cases import cases

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
        with running(guarded) as site:
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

    @cases("size", [70_000, 200_000])
    def test_a_large_header_is_refused(self, site: Site, size: int) -> None:
        assert ask(site.port, request(site.port, "GET /health", "X-Large: " + "x" * size)).status in (0, 400, 431)
        assert not site.hits

    @cases("size", [70_000, 200_000])
    def test_a_large_target_is_refused(self, site: Site, size: int) -> None:
        assert ask(site.port, request(site.port, "GET /health?" + "x" * size)).status in (0, 400, 431)
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

        assert answer.status in (400, 403, 501, 505)
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


@pytest.mark.slow
@cases("pair", PAIRS)
def test_a_refused_request_carries_none_behind_it(site: Site, pair: str) -> None:
    site.hits.clear()
    assert_carries_nothing(site.port, pair, request(site.port, "POST /notify", body=b"x"))
    assert ask(site.port, request(site.port)).status == 200
    assert site.hits == ["health"]

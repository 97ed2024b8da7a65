"""The server takes its port or says who has it, and ends in under a second, whoever is connected."""

import asyncio
import os
import socket
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import uvicorn

from dialogd.errors import AlreadyRunning, BadInput
from dialogd.server.serving import bind, make_server
from tests.server.serving import (
    Site,
    connect,
    drain,
    guarded,
    read_answer,
    request,
    running,
    until,
)
from tests.support.cases import cases
from tests.support.pair import a_second


class TestShutdown:
    """The server ends in under a second, whoever is connected."""

    def test_open_streams_end_cleanly(self) -> None:
        with running(guarded) as site, connect(site.port) as stream:
            stream.sendall(request(site.port, "GET /events"))
            assert read_answer(stream).status == 200
            started = time.monotonic()
            site.server.should_exit = True
            assert drain(stream).endswith(b"0\r\n\r\n")
            until(lambda: not is_open(site.port))
            assert time.monotonic() - started < a_second()

    def test_clients_that_hang_do_not_hold_it_up(self, caplog: pytest.LogCaptureFixture) -> None:
        with ExitStack() as stack:
            with running(flooding) as site:
                for raw in [b"", b"GET", request(site.port), request(site.port, "POST /notify", "Content-Length: 5")]:
                    stack.enter_context(connect(site.port)).sendall(raw)
                stack.enter_context(connect(site.port)).sendall(request(site.port, "GET /events"))
                until(lambda: site.hits == ["health"] and len(site.server.server_state.connections) == 5)
                until(lambda: any(client.flow.write_paused for client in site.server.server_state.connections))
                started = time.monotonic()
            assert time.monotonic() - started < 2 * a_second()
        assert not caplog.records

    def test_a_part_that_fails_or_hangs_is_left_behind(self, caplog: pytest.LogCaptureFixture) -> None:
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
        assert time.monotonic() - started < 2 * a_second()
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

    def test_who_has_the_port_is_named(self, site: Site) -> None:
        for who, name in ((bind, "another program"), (partial(bind, who=lambda port: f"who has {port}"), "who has ")):
            with pytest.raises(AlreadyRunning, match=rf"port {site.port} is taken by {name}") as caught:
                who(site.port)
            assert "--port" in caught.value.fix

    def test_a_port_just_left_can_be_taken_again(self) -> None:
        first = bind(0)
        port = first.getsockname()[1]
        with connect(port):
            first.accept()[0].close()
            first.close()
        bind(port).close()

    @cases("port", [-1, 65536])
    def test_a_number_that_is_no_port_is_bad_input(self, port: int) -> None:
        with pytest.raises(BadInput, match="is not a port") as caught:
            bind(port)
        assert "65535" in caught.value.fix

    @pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may take every port")
    def test_a_port_of_the_system_is_bad_input(self) -> None:
        try:
            bind(1).close()
        except BadInput as refused:
            message = str(refused)
        else:
            pytest.skip("this system lets everybody take every port")
        assert "may not listen on port 1" in message

    def test_only_loopback_is_bound(self) -> None:
        with bind(0) as listener:
            assert listener.getsockname()[0] == "127.0.0.1"
            assert not os.get_inheritable(listener.fileno())

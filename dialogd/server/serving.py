"""uvicorn inside the daemon: its port, the guard around the app, a shutdown in under a second."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from dialogd.errors import AlreadyRunning, BadInput, DialogdError
from dialogd.server.guard import HEADER_BYTES, Connection, Guard, UidOf, choose_lookup

HOST = "127.0.0.1"
BACKLOG = 512
HIGHEST_PORT = 65535
FIRST_FREE_PORT = 1024


def bind(port: int, who: Callable[[int], str] = lambda _: "another program") -> socket.socket:
    """Return a socket that listens on 127.0.0.1:`port`; 0 takes any free port. `who` says who has a port.

    Raises `BadInput` for a number that is no port or one this user may not take, `AlreadyRunning` when it is taken.
    """
    if not 0 <= port <= HIGHEST_PORT:
        raise BadInput(f"{port} is not a port", fix=f"choose one from {FIRST_FREE_PORT} to {HIGHEST_PORT} with --port")
    # The protocol is named: without it asyncio leaves Nagle's algorithm on, and answers on kept connections wait 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        # Until somebody listens, two processes can hold the same port.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _explain(port, error, who) from error
    return listener


def _explain(port: int, error: OSError, who: Callable[[int], str]) -> DialogdError:
    if error.errno == errno.EADDRINUSE:
        return AlreadyRunning(
            f"port {port} is taken by {who(port)}",
            fix=f"stop it, or choose another port, for example --port {_free_port(port)}",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return BadInput(
            f"this user may not listen on port {port}: ports below {FIRST_FREE_PORT} belong to the system",
            fix=f"choose one from {FIRST_FREE_PORT} to {HIGHEST_PORT} with --port",
        )
    return DialogdError(f"cannot listen on {HOST}:{port}: {error.strerror}", fix="choose another port with --port")


def _free_port(taken: int) -> int:
    # Not the next ones: those are likely to be the seats of this one's peers.
    for port in range(taken + 10, min(taken + 100, HIGHEST_PORT)):
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((HOST, port))
            return port
    return 0


# -- uvicorn as a part of the daemon ----------------------------------------------------------------------------------

log = logging.getLogger("dialogd.server")

IDLE_SECONDS = 75
CALLBACK_SECONDS = 0.4
CLIENT_SECONDS = 0.4  # for which a shutdown waits for clients
LOOK_SECONDS = 0.5


class _Protocol(H11Protocol):
    """uvicorn's HTTP/1.1, whose requests know their connection."""

    def __init__(self, *given: Any, uid_of: UidOf | None, **named: Any) -> None:
        super().__init__(*given, **named)
        self._uid_of = uid_of

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, **Connection(transport.get_extra_info("socket"), self._uid_of).state}


class Server(uvicorn.Server):
    """Serves one listening socket until `should_exit` is set; signals are the daemon's business."""

    def __init__(
        self, config: uvicorn.Config, listener: socket.socket, on_shutdown: Iterable[Callable[[], Awaitable[None]]] = ()
    ) -> None:
        self._leaving = asyncio.Event()
        super().__init__(config)
        self.listener = listener
        self.on_shutdown = list(on_shutdown)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer requests until `should_exit`, then run the `on_shutdown` callbacks and close everything."""
        await super().serve(sockets or [self.listener])

    def leave(self) -> None:
        """End `serve` now; setting `should_exit`, also from another thread, ends it within half a second."""
        self.should_exit = True
        self._leaving.set()

    async def main_loop(self) -> None:
        """Wait for the end. uvicorn's own loop wakes ten times a second, most of what an idle daemon would cost."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._leaving.wait()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave the signals alone: uvicorn would raise them again at the end, and the exit code be 143."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, end the event streams (uvicorn alone would wait for their clients), close connections."""
        for server in self.servers:
            server.close()
        tasks = [asyncio.ensure_future(callback()) for callback in self.on_shutdown]
        done, late = await asyncio.wait(tasks, timeout=CALLBACK_SECONDS) if tasks else (set(), set())
        for task in late:
            task.cancel()
            log.warning("a part of the daemon did not end in %s s and is left behind", CALLBACK_SECONDS)
        for task in done:
            if (error := task.exception()) is not None:
                log.error("a part of the daemon failed while it ended", exc_info=error)
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            cast(H11Protocol, connection).transport.abort()  # of a client that does not read
        await asyncio.sleep(0)


def make_server(
    app: ASGIApp,
    listener: socket.socket,
    *,
    on_shutdown: Iterable[Callable[[], Awaitable[None]]] = (),
    find_lookup: Callable[[], UidOf | None] = choose_lookup,
) -> Server:
    """Put the guard around `app` and return its server for `listener` (see `bind`); run it with `serve()`.

    `on_shutdown` callbacks end whatever would keep a response open; they get half a second.
    `find_lookup` returns the way to look up a caller's uid, None to let every local user in.
    """
    config = uvicorn.Config(
        Guard(app, listener.getsockname()[1]),
        http=cast("type[asyncio.Protocol]", partial(_Protocol, uid_of=find_lookup())),
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=cast(int, CLIENT_SECONDS),
        h11_max_incomplete_event_size=HEADER_BYTES,
    )
    return Server(config, listener, on_shutdown)

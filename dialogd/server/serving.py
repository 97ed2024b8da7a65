"""uvicorn inside the daemon: its port, connections with deadlines and a cap, a shutdown in under a second."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from dialogd.agent.peers import hint_head
from dialogd.errors import AlreadyRunning, BadInput, DialogdError
from dialogd.server.guard import (
    CALLER,
    PROCESSES,
    REFUSE,
    Bounds,
    Caller,
    Denial,
    Guard,
    UidOf,
    choose_lookup,
    harden,
    identify,
    inode_of,
    too_large_header,
)
from dialogd.server.refusals import MEDIA_TYPE, problem
from dialogd.store.caller import connected, holders

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


# -- uvicorn's HTTP/1.1 connection, with what it lacks ----------------------------------------------------------------

GRACE_SECONDS = 0.5
"""How old a half-sent request must be to make room for a new connection; how long a shutdown waits for clients."""


class GuardedConfig(uvicorn.Config):
    """uvicorn's settings and ours: a connection's limits, how to look up its caller (None: cannot), who takes hints."""

    def __init__(
        self, app: ASGIApp, *, limits: Bounds, uid_of: UidOf | None, port: int, take_hint: TakeHint, **settings: Any
    ) -> None:
        self.limits = limits
        self.uid_of = uid_of
        self.take_hint = take_hint
        self.hint_head = hint_head(f"{HOST}:{port}")
        super().__init__(app, **settings)


TakeHint = Callable[[bytes], bool]
"""Takes the body of a peer's hint; False for what is none, or another dialog's."""


def _answer_bytes(status: int, kind: str, body: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """A whole answer as it goes over the wire, as the guard has it."""
    headers = harden([(b"content-length", b"%d" % len(body)), (b"content-type", kind.encode()), *more])
    lines = [b"HTTP/1.1 %d %s" % (status, STATUS_PHRASES[status]), *(b"%s: %s" % header for header in headers)]
    return b"\r\n".join([*lines, b"", body])


HINTED = _answer_bytes(202, "application/json", b'{"status":"accepted"}')


class ConnectionPhase(Enum):
    """A connection's phase: a request is arriving (or none came yet), is being answered, or it is idle."""

    SENDING = "sending"
    ANSWERED = "answered"
    IDLE = "idle"


class HttpProtocol(H11Protocol):
    """One client's connection; has a timer whenever it waits for the client."""

    def __init__(
        self,
        config: GuardedConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        state = {**app_state, CALLER: self.caller, PROCESSES: self.processes, REFUSE: self._refuse}
        super().__init__(config, server_state, state, _loop)
        self.limits = config.limits
        self._uid_of = config.uid_of
        self._take_hint = config.take_hint
        self._hint_head = config.hint_head
        self._caller: Caller | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._lingering = False
        self.since = self.loop.time()

    def caller(self) -> Caller:
        """Say who opened this connection. Looked up at its first request: half-open connections cost nothing."""
        if self._caller is None:
            end = self.transport.get_extra_info("socket")
            self._caller = identify(end, self._uid_of) if self._uid_of else Caller.UNCHECKED
        return self._caller

    def processes(self) -> tuple[int, ...]:
        """The processes that hold the other end now; none where it is closed, or nobody could be found."""
        try:
            end = self.transport.get_extra_info("socket")
            theirs, ours = end.getpeername()[:2], end.getsockname()[:2]
            if sys.platform != "linux":
                return connected(theirs, ours)
            # Who hides what it holds is believed to hold this one, if that was there all the time.
            inode = inode_of(theirs, ours)
            found = holders(inode) if inode else ()
            return found if found and inode_of(theirs, ours) == inode else ()
        except OSError:
            return ()

    @property
    def phase(self) -> ConnectionPhase:
        """The connection's phase."""
        if self._deadline is not None:
            return ConnectionPhase.SENDING
        return ConnectionPhase.IDLE if self.cycle is None or self.cycle.response_complete else ConnectionPhase.ANSWERED

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, unless all are in use; its first request has to arrive in time."""
        super().connection_made(transport)
        self._set_deadline(self.limits.request_seconds)
        if not self._make_room():
            self._refuse(Denial(503, "too many connections are open", "close some, and try again"))

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._lingering or (data.startswith(self._hint_head) and self._took_hint(data)):
            return
        super().data_received(data)
        self._watch()

    def _took_hint(self, data: bytes) -> bool:
        """True when this was exactly a peer's hint, which is then answered as the app would answer it.

        Anything else goes to uvicorn, the guard and the app.
        """
        length, _, body = data[len(self._hint_head) :].partition(b"\r\n\r\n")
        is_alone = self.conn.our_state is self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if not is_alone or length != b"%d" % len(body) or self.transport.is_closing():
            return False
        if self.caller() not in (Caller.OWN, Caller.UNCHECKED) or not self._take_hint(body):
            return False
        self._clear_deadline()
        self._unset_keepalive_if_required()
        self.transport.write(HINTED)
        self.since = self.loop.time()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._clear_deadline()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of one that was answered early."""
        super().on_response_complete()
        self.since = self.loop.time()
        if self.conn.their_state is h11.SEND_BODY and not self.transport.is_closing():
            self._set_deadline(self.limits.linger_seconds)
        else:
            self._watch()

    def shutdown(self) -> None:
        """Close, at once where nothing is being answered; never wait for a client that does not read."""
        self.loop.call_later(GRACE_SECONDS, self._abort_if_unread)
        if self.phase is ConnectionPhase.SENDING:
            self.transport.abort()
        else:
            super().shutdown()

    def _abort_if_unread(self) -> None:
        if self.transport.get_write_buffer_size() > 0:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not valid HTTP; uvicorn calls this while it handles the parser's error."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        if status == 431:
            self._refuse(too_large_header(self.limits.header_bytes))
        else:
            self._refuse(Denial(status, "this is not a valid HTTP/1.1 request", "send it with curl or a browser"))

    def _watch(self) -> None:
        """Run the deadline exactly while a request is incomplete."""
        if self._lingering or self.transport.is_closing():
            return
        if not self._incomplete():
            self._clear_deadline()
        elif self._deadline is None:
            self._set_deadline(self.limits.request_seconds)

    def _incomplete(self) -> bool:
        if self.conn.their_state is not h11.IDLE:
            return self.conn.their_state is h11.SEND_BODY
        # Every byte stops uvicorn's idle timer, also the last ones of a body that was answered early.
        return self.timeout_keep_alive_task is None or bool(self.conn.trailing_data[0])

    def _set_deadline(self, seconds: float) -> None:
        self._clear_deadline()
        self.since = self.loop.time()
        self._deadline = self.loop.call_later(seconds, self._expire)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        if self._lingering or (self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]):
            self.transport.abort()
        else:
            seconds = self.limits.request_seconds
            self._refuse(Denial(408, f"the request was not complete after {seconds:g} s", "send it in one go"))

    def _refuse(self, refusal: Denial) -> None:
        """Answer in place of the app, then read and drop what the client still sends, for a short while."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = problem(refusal.status, refusal.detail, refusal.fix)
        more = [(b"cross-origin-resource-policy", refusal.resource_policy.encode())] if refusal.resource_policy else []
        self.transport.write(_answer_bytes(refusal.status, MEDIA_TYPE, body, (b"connection", b"close"), *more))
        try:
            self.transport.write_eof()
        except OSError:  # the client is gone
            self.transport.abort()
            return
        self.flow.resume_reading()
        self._lingering = True
        self._set_deadline(self.limits.linger_seconds)

    def _make_room(self) -> bool:
        """Whether this connection can stay; over the cap, an idle one may be closed instead.

        The cap is soft, up to double, so that a burst of honest calls is not cut before its bytes are read.
        """
        if len(self.connections) <= self.limits.connections:
            return True
        full = len(self.connections) > 2 * self.limits.connections
        others = [cast(HttpProtocol, other) for other in self.connections if other is not self]
        victim = _oldest(others, ConnectionPhase.SENDING)
        if victim is not None and not full and self.loop.time() - victim.since < GRACE_SECONDS:
            return True
        if victim is None and full:
            victim = _oldest(others, ConnectionPhase.IDLE)
        if victim is not None:
            victim.give_way()
        return victim is not None or not full

    def give_way(self) -> None:
        """Close at once, in favour of another connection."""
        self.connections.discard(self)
        self.transport.abort()


def _oldest(connections: list[HttpProtocol], phase: ConnectionPhase) -> HttpProtocol | None:
    of_phase = (connection for connection in connections if connection.phase is phase)
    return min(of_phase, key=lambda connection: connection.since, default=None)


# -- uvicorn as a part of the daemon ----------------------------------------------------------------------------------

log = logging.getLogger("dialogd.server")

CALLBACK_SECONDS = 0.5
LOOK_SECONDS = 0.5


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
        await self._run_callbacks()
        await super().shutdown(sockets)

    async def _run_callbacks(self) -> None:
        tasks = [asyncio.ensure_future(callback()) for callback in self.on_shutdown]
        if not tasks:
            return
        done, late = await asyncio.wait(tasks, timeout=CALLBACK_SECONDS)
        for task in late:
            task.cancel()
            log.warning("a part of the daemon did not end in %s s and is left behind", CALLBACK_SECONDS)
        for task in done:
            if (error := task.exception()) is not None:
                log.error("a part of the daemon failed while it ended", exc_info=error)


def make_server(
    app: ASGIApp,
    listener: socket.socket,
    *,
    on_shutdown: Iterable[Callable[[], Awaitable[None]]] = (),
    limits: Bounds | None = None,
    find_lookup: Callable[[], UidOf | None] = choose_lookup,
    take_hint: TakeHint = lambda _: False,
) -> Server:
    """Put the guard around `app` and return its server for `listener` (see `bind`); run it with `serve()`.

    `on_shutdown` callbacks end whatever would keep a response open; they get half a second.
    `find_lookup` returns the way to look up a caller's uid, None to let every local user in.
    `take_hint` handles peers' hints without the app.
    """
    limits, port = limits or Bounds(), listener.getsockname()[1]
    config = GuardedConfig(
        Guard(app, port, limits),
        limits=limits,
        uid_of=find_lookup(),
        port=port,
        take_hint=take_hint,
        http=HttpProtocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=limits.header_bytes,
    )
    return Server(config, listener, on_shutdown)

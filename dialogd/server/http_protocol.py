"""uvicorn's HTTP/1.1 connection, with what it lacks: a deadline for sending a request, a cap on connections."""

import asyncio
import sys
from enum import Enum
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState

from dialogd.server.callers import Caller, UidOf, identify
from dialogd.server.guard import CALLER, Limits, Refusal, harden, too_large_header
from dialogd.server.problem import MEDIA_TYPE, problem

GRACE_SECONDS = 0.5
"""How old a half-sent request must be to make room for a new connection; how long a shutdown waits for clients."""


class GuardedConfig(uvicorn.Config):
    """uvicorn's settings and two of ours: the limits of a connection, and how to look up its caller (None: cannot)."""

    def __init__(self, app: ASGIApp, *, limits: Limits, uid_of: UidOf | None, **settings: Any) -> None:
        self.limits = limits
        self.uid_of = uid_of
        super().__init__(app, **settings)


class Phase(Enum):
    """What a connection is at: a request arrives (or none came yet), it is answered, or nothing goes on."""

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
        super().__init__(config, server_state, {**app_state, CALLER: self.caller}, _loop)
        self.limits = config.limits
        self._uid_of = config.uid_of
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

    @property
    def phase(self) -> Phase:
        """Say what this connection is at."""
        if self._deadline is not None:
            return Phase.SENDING
        return Phase.IDLE if self.cycle is None or self.cycle.response_complete else Phase.ANSWERED

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, unless all are in use; its first request has to arrive in time."""
        super().connection_made(transport)
        self._set_deadline(self.limits.request_seconds)
        if not self._make_room():
            self._refuse(Refusal(503, "too many connections are open", "close some, and try again"))

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._lingering:
            return
        super().data_received(data)
        self._watch()

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
        if self.phase is Phase.SENDING:
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
            self._refuse(Refusal(status, "this is not a valid HTTP/1.1 request", "send it with curl or a browser"))

    def _watch(self) -> None:
        """Have the deadline run exactly while a request is incomplete."""
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
            self._refuse(Refusal(408, f"the request was not complete after {seconds:g} s", "send it in one go"))

    def _refuse(self, refusal: Refusal) -> None:
        """Answer in place of the app, then read and drop what the client still sends, for a short while."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        self.transport.write(self._refusal_bytes(refusal))
        self.transport.write_eof()
        self._lingering = True
        self._set_deadline(self.limits.linger_seconds)

    def _refusal_bytes(self, refusal: Refusal) -> bytes:
        body = problem(refusal.status, refusal.detail, refusal.fix)
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
        reason = STATUS_PHRASES[refusal.status]
        start = h11.Response(
            status_code=refusal.status, headers=harden([*headers, (b"connection", b"close")]), reason=reason
        )
        parts = [self.conn.send(event) for event in (start, h11.Data(data=body), h11.EndOfMessage())]
        return b"".join(part for part in parts if part)

    def _make_room(self) -> bool:
        """Say whether this connection can stay; over the cap, one that keeps the daemon waiting may have to go.

        The cap is soft, up to double, so that a burst of honest calls is not cut before its bytes are read.
        """
        if len(self.connections) <= self.limits.connections:
            return True
        full = len(self.connections) > 2 * self.limits.connections
        others = [cast(HttpProtocol, other) for other in self.connections if other is not self]
        victim = _oldest(others, Phase.SENDING)
        if victim is not None and not full and self.loop.time() - victim.since < GRACE_SECONDS:
            return True
        if victim is None and full:
            victim = _oldest(others, Phase.IDLE)
        if victim is not None:
            victim.give_way()
        return victim is not None or not full

    def give_way(self) -> None:
        """Close at once, in favour of another connection."""
        self.connections.discard(self)
        self.transport.abort()


def _oldest(connections: list[HttpProtocol], phase: Phase) -> HttpProtocol | None:
    of_phase = (connection for connection in connections if connection.phase is phase)
    return min(of_phase, key=lambda connection: connection.since, default=None)

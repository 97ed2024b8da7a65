"""Who may call, and how it is served: the guard before every route; uvicorn, shut down in under a second."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import signal
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dialogd.errors import AlreadyRunning, BadInput, DialogdError
from dialogd.server.wire import MEDIA_TYPE, problem
from dialogd.store.registry import Address, asked_by, connected, holders

log = logging.getLogger("dialogd.server")

# -- Whose connection it is -------------------------------------------------------------------------------------------

UidOf = Callable[[Address, Address], int | None]
"""(theirs, ours) -> uid of the socket at their end; None when no process owns it (any more)."""

MAPPED = bytes(10) + b"\xff\xff"  # before an IPv4 address that is written as an IPv6 one
TCP_INFO, ESTABLISHED, CLOSE_WAIT = 11, 1, 8  # Linux's numbers: Python has names for some of them, and there only


class Caller(Enum):
    """The user on the other end: this one, another, not found, or lookup impossible."""

    OWN = "own"
    OTHER = "other"
    UNKNOWN = "unknown"
    UNCHECKED = "unchecked"


def identify(end: socket.socket, uid_of: UidOf) -> Caller:
    """Say whose socket is connected to `end`; `UNKNOWN` when that socket is closed already."""
    try:
        uid = uid_of(end.getpeername()[:2], end.getsockname()[:2])
        # Asked after the lookup: while our end lives, nobody else can have taken their address and port.
        alive = end.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 1)[0] in (ESTABLISHED, CLOSE_WAIT)
    except OSError:
        return Caller.UNKNOWN
    if uid is None or not alive:
        return Caller.UNKNOWN
    return Caller.OWN if uid == os.geteuid() else Caller.OTHER


def choose_lookup(way: UidOf | None = None) -> UidOf | None:
    """The way to look up who opens a connection; None, with a warning, where this process does not find itself."""
    with (
        suppress(OSError),
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as end,
    ):
        way = way or find_uid
        if sys.platform == "linux" and identify(end, way) is Caller.OWN:
            return way
    log.warning(
        "cannot tell which user opens a connection on this system: other users of this machine could call this "
        "daemon; pages of other sites still cannot"
    )
    return None


def find_uid(theirs: Address, ours: Address) -> int | None:
    """The uid of the socket at their end; None when it is closed."""
    found = find_socket(theirs, ours)
    return found[0] if found else None


def find_socket(theirs: Address, ours: Address) -> tuple[int, int] | None:
    """The uid and the inode of the socket at their end, from /proc/net/tcp and tcp6."""
    for _ in range(2):  # the tables are read in pieces while others come and go, so a row can be missed once
        # A client can reach an IPv4 port through an IPv6 socket; that one stands in tcp6.
        for name, prefix in (("tcp", b""), ("tcp6", MAPPED)):
            table = Path("/proc/net", name)
            ends = (_row_end(prefix, end) for end in (theirs, ours))
            if table.exists() and (found := find_owner(table.read_bytes(), *ends)) is not None:
                return found
    return None


def find_owner(table: bytes, theirs: str, ours: str) -> tuple[int, int] | None:
    """Return uid and inode of the row with these two ends; None when there is none, or one that no process owns."""
    row = re.compile(rf" {theirs} {ours} \w\w \S+ \S+ \S+ +(\d+) +\d+ (\d+) ".encode())
    owners = {(int(uid), int(inode)) if int(inode) else None for uid, inode in row.findall(table)}
    return owners.pop() if len(owners) == 1 else None


def _row_end(prefix: bytes, end: Address) -> str:
    packed = prefix + socket.inet_aton(end[0])
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{end[1]:04X}"


CONNECTION = "dialogd.connection"
"""Key of the request's `Connection` in `scope["state"]`."""


class Connection:
    """Who is on the other end of one connection. Looked up once, at its first request."""

    def __init__(self, end: socket.socket, uid_of: UidOf | None) -> None:
        """`uid_of` is None on a system that cannot tell callers apart."""
        self._end, self._uid_of = end, uid_of
        self._caller: Caller | None = None

    def caller(self) -> Caller:
        """The user on the other end."""
        if self._caller is None:
            self._caller = identify(self._end, self._uid_of) if self._uid_of is not None else Caller.UNCHECKED
        return self._caller

    def processes(self) -> tuple[int, ...]:
        """The processes that hold the other end now; none where it is closed, or nobody could be found. Slow."""
        try:
            theirs, ours = self._end.getpeername()[:2], self._end.getsockname()[:2]
            if sys.platform != "linux":
                return connected(theirs, ours)
            # Who hides what it holds is believed to hold this one, if that was there all the time.
            before = find_socket(theirs, ours)
            found = holders(before[1]) if before else ()
            return found if found and find_socket(theirs, ours) == before else ()
        except OSError:
            return ()


def attribute(scope: Scope) -> None:
    """Have what a request does come from the process that sent it."""
    connection: Connection | None = scope.get("state", {}).get(CONNECTION)
    asked_by(connection.processes if connection else tuple)


# -- Refuse, before any route runs, every request that is not this user's own -----------------------------------------

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
_UNFRAMED = "base-uri 'none'; frame-ancestors 'none'"
# A page that opened this one can neither watch nor steer its window.
PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    f"connect-src 'self'; worker-src 'self'; form-action 'self'; {_UNFRAMED}",
    "cross-origin-opener-policy": "same-origin",
}
READING_HEADERS = {  # of a document in which nothing runs, and that sends nothing
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; "
    + _UNFRAMED
}
HEADER_BYTES = 64 * 1024
BODY_BYTES = 1024 * 1024
LINGER = 2.0  # seconds for which a refused client may go on sending, so that it reads the answer and not a reset
SHOWN = 200  # characters of a path that the log shows; of a longer one nothing, for a cut would halve a secret in it

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a request is refused, and what its sender can do; `noticed_by` says which pages may notice the refusal."""

    status: int
    detail: str
    fix: str
    noticed_by: str = "same-origin"


class Guard:
    """ASGI middleware, the outermost: serves what `check` and the caller's uid allow, with security headers.

    `port` is the public port. A request on a connection without a known caller is refused, and every refusal closes
    the connection: what stands behind it may be the rest of a request whose end is uncertain.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # nor is anything else sent here: the server knows neither web sockets nor a lifespan
        send = hardened(send)
        outcome: Denial | bytes | None = check(scope, self.port) or check_caller(scope)
        if outcome is None:
            outcome = await read_body(receive)
        if isinstance(outcome, bytes):
            attribute(scope)
            await self.app(scope, replayed(outcome, receive), send)
        elif outcome is not None:
            path = scope["path"] if len(scope["path"]) <= SHOWN else f"a path of {len(scope['path'])} characters"
            log.info("refused %s %r: %s", scope["method"], path, outcome.detail)
            await _refuse(outcome, receive, send)


async def _refuse(denial: Denial, receive: Receive, send: Send) -> None:
    """Answer in place of the app, read and drop what the client still sends, for a short while, then close."""
    body = problem(denial.status, denial.detail, denial.fix)
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        (b"cross-origin-resource-policy", denial.noticed_by.encode()),
    ]
    await send({"type": "http.response.start", "status": denial.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER):
            while (await receive()).get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b""})


def check(scope: Scope, port: int) -> Denial | None:
    """Return why this request's line and headers are not acceptable, if they are not. Pure."""
    headers: Headers = scope["headers"]
    return _check_form(scope) or _check_host(headers, port) or _check_site(scope) or _check_origin(headers)


def check_caller(scope: Scope) -> Denial | None:
    """Return why the process that opened this connection is not acceptable, if it is not."""
    connection: Connection | None = scope.get("state", {}).get(CONNECTION)
    caller = connection.caller() if connection else Caller.UNKNOWN
    if caller is Caller.OTHER:
        return Denial(403, "another user of this machine started this daemon", "call it as the user who started it")
    if caller is Caller.UNKNOWN:
        return Denial(
            403,
            "the system does not say which user opened this connection",
            "keep the connection open until the answer is there, and call from outside any container or sandbox",
        )
    return None


def _check_form(scope: Scope) -> Denial | None:
    if scope["http_version"] not in ("1.0", "1.1") or not scope["raw_path"].startswith(b"/"):
        fix = "send a path such as /health by HTTP/1.1, not through a proxy"
        return Denial(400, "this is no request of HTTP/1.1 for a path", fix)
    # The parser measures only what is incomplete, so a large read can carry more than its limit.
    line = len(scope["raw_path"]) + len(scope["query_string"])
    if line + sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"]) > HEADER_BYTES:
        what = f"the request's headers are larger than {HEADER_BYTES} bytes"
        return Denial(431, what, "send fewer or shorter headers")
    lengths = _values(scope["headers"], b"content-length")
    if lengths and _values(scope["headers"], b"transfer-encoding"):
        what = "the body has two lengths: Content-Length and Transfer-Encoding"
        return Denial(400, what, "send one of the two")
    return TOO_LARGE if any(int(length) > BODY_BYTES for length in lengths) else None


def _check_host(headers: Headers, port: int) -> Denial | None:
    hosts = _values(headers, b"host")
    own = {f"{name}:{port}".encode() for name in ("localhost", "127.0.0.1", "[::1]")}
    if len(hosts) == 1 and hosts[0].lower() in own:
        return None
    return Denial(
        403,
        f"the Host header must be localhost:{port} or 127.0.0.1:{port}, once",
        f"call this daemon at http://localhost:{port}",
    )


def _check_site(scope: Scope) -> Denial | None:
    """Refuse what a page of another site, or of any other port of this machine (`same-site`), sends.

    A window may be led to `/` by a page of this machine, as the page of a daemon that died leads its reader to another
    one: `/` only shows, other pages can neither frame it nor reach into it, and what its scripts ask for is its own.
    """
    site, mode, dest = (_values(scope["headers"], b"sec-fetch-" + name) for name in (b"site", b"mode", b"dest"))
    asked = (scope["method"], scope["raw_path"], site, mode, dest)
    arrival = ("GET", b"/", [b"same-site"], [b"navigate"], [b"document"])
    if not site or site in ([b"same-origin"], [b"none"]) or (asked == arrival and not scope["query_string"]):
        return None
    refusal = _foreign_page("the browser says that another site sent this request (Sec-Fetch-Site)")
    # The page of a daemon that died asks so which of the others lives. A browser shows no page what the refusal says,
    # only that somebody gave one; that this port is in use, any page of this machine finds out anyway.
    is_probe = asked == ("GET", b"/health", [b"same-site"], [b"no-cors"], [b"empty"])
    return replace(refusal, noticed_by="same-site") if is_probe else refusal


def _check_origin(headers: Headers) -> Denial | None:
    origins = _values(headers, b"origin")
    # No Origin: not a browser, or a browser's own GET, which Host and Sec-Fetch-Site answer for.
    if not origins or [origin.lower() for origin in origins] == [b"http://" + _values(headers, b"host")[0].lower()]:
        return None
    return _foreign_page("a page of another origin sent this request")


def _foreign_page(detail: str) -> Denial:
    return Denial(403, detail, "type this daemon's own address into the browser, or use curl or the dialogd command")


TOO_LARGE = Denial(413, f"the request's body is larger than {BODY_BYTES} bytes", "send less, or link to a file instead")


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


async def read_body(receive: Receive) -> bytes | Denial | None:
    """Read the whole body, at most `BODY_BYTES`; None when the client left.

    Here and not in a route, because a framework that reads a body turns what a limit raises into a 400.
    """
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if len(body) > BODY_BYTES:
            return TOO_LARGE
        if not message.get("more_body", False):
            return bytes(body)


def replayed(body: bytes, receive: Receive) -> Receive:
    """What gives the body that was read, once more, and then what `receive` does."""
    pending: Iterator[Message] = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> Message:
        return next(pending, None) or await receive()

    return replay


def hardened(send: Send) -> Send:
    """Wrap `send`: security headers where the app sets none of its own, and never a CORS permission."""

    async def send_hardened(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(name.lower(), value) for name, value in message.get("headers", ())]
            kept = [header for header in headers if not header[0].startswith(b"access-control-")]
            names = {name for name, _ in kept}
            missing = [header for header in SECURITY_HEADERS if header[0] not in names]
            message = {**message, "headers": kept + missing}
        await send(message)

    return send_hardened


_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def serve_parts(app: FastAPI, prefix: str, folder: Path) -> None:
    """One route below `prefix` for each script, style sheet and picture that there is: no path reaches a folder."""

    async def part(path: Path, _asked: Request) -> FileResponse:
        return FileResponse(path, media_type=_TYPES[path.suffix])

    for path in folder.iterdir():
        if path.suffix in _TYPES:
            app.add_route(f"/{prefix}/{path.name}", partial(part, path))


# -- Listening --------------------------------------------------------------------------------------------------------

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
        return AlreadyRunning(f"port {port} is taken by {who(port)}", fix="stop it, or choose another port with --port")
    fix = f"choose one from {FIRST_FREE_PORT} to {HIGHEST_PORT} with --port"
    if error.errno in (errno.EACCES, errno.EPERM):
        return BadInput(f"this user may not listen on port {port}: {error.strerror}", fix=fix)
    return DialogdError(f"cannot listen on {HOST}:{port}: {error.strerror}", fix=fix)


# -- uvicorn as a part of a daemon, of Home, of the MCP server --------------------------------------------------------

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
        connection = Connection(transport.get_extra_info("socket"), self._uid_of)
        self.app_state = {**self.app_state, CONNECTION: connection}


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

    def leave_at_signals(self) -> None:
        """End `serve` at Ctrl-C and the like."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self.leave)

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

"""Refuse requests of other users and other origins before any route runs."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dialogd.server.wire import MEDIA_TYPE, problem
from dialogd.store.registry import connected, holders

log = logging.getLogger("dialogd.guard")

Address = tuple[str, int]
UidOf = Callable[[Address, Address], int | None]
"""(theirs, ours) -> uid of the socket at their end; None when no process owns it (any more)."""

MAPPED = bytes(10) + b"\xff\xff"  # before an IPv4 address that is written as an IPv6 one
# Linux's numbers: Python has names for some of them, and those on Linux only.
TCP_INFO, ESTABLISHED, CLOSE_WAIT = 11, 1, 8
AF_NETLINK, SOCK_DIAG, DIAG_BY_FAMILY, REQUEST = 16, 4, 20, 1
DIAG_ANSWER = struct.Struct("=4xH10x4x4s44x12xII")  # message type, both ports as sent, uid, inode


class Caller(Enum):
    """The user on the other end: this one, another, not found, or lookup impossible."""

    OWN = "own"
    OTHER = "other"
    UNKNOWN = "unknown"
    UNCHECKED = "unchecked"


class TcpEnd(Protocol):
    """The part of a connected socket that is needed to look up the other end."""

    def getpeername(self) -> Any: ...
    def getsockname(self) -> Any: ...
    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes: ...


def identify(end: TcpEnd, uid_of: UidOf) -> Caller:
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
    found = _find_socket(theirs, ours)
    return found[0] if found else None


def _find_socket(theirs: Address, ours: Address) -> tuple[int, int] | None:
    """The uid and the inode of the socket at their end: from the kernel, or from /proc where that does not answer.

    The kernel takes 0.03 ms, the table in /proc up to 10 ms on a busy machine.
    """
    try:
        return ask_kernel(theirs, ours)
    except OSError:
        return search_proc(theirs, ours)


def ask_kernel(theirs: Address, ours: Address) -> tuple[int, int] | None:
    """Uid and inode by NETLINK_SOCK_DIAG."""
    ports = struct.pack("!HH", theirs[1], ours[1])
    hosts = b"".join(socket.inet_aton(host).ljust(16, b"\0") for host in (theirs[0], ours[0]))
    question = struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0xFFFFFFFF) + ports + hosts
    question += struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
    header = struct.pack("=IHHII", 16 + len(question), DIAG_BY_FAMILY, REQUEST, 1, 0)
    with socket.socket(AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as kernel:
        kernel.send(header + question)
        answer, sender = kernel.recvfrom(4096, socket.MSG_DONTWAIT)
    if sender[0] != 0 or len(answer) < DIAG_ANSWER.size:
        return None
    kind, found_ports, uid, inode = DIAG_ANSWER.unpack_from(answer)
    # Where no such connection is left, the kernel answers with a listener on their port, if there is one; and a closed
    # socket that still lingers has no inode, and says uid 0.
    return (uid, inode) if kind == DIAG_BY_FAMILY and found_ports == ports and inode else None


def search_proc(theirs: Address, ours: Address) -> tuple[int, int] | None:
    """Uid and inode from /proc/net/tcp and tcp6."""
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


CALLER = "dialogd.caller"
"""Key in `scope["state"]`: a function that says who is on the other end of the connection."""

PROCESSES = "dialogd.processes"
"""Key in `scope["state"]`: a function that finds the processes on the other end; slow, and for acts alone."""


class Connection:
    """Who is on the other end of one connection. Looked up once, at its first request."""

    def __init__(self, end: TcpEnd, uid_of: UidOf | None) -> None:
        """`uid_of` is None on a system that cannot tell callers apart."""
        self.state = {CALLER: self.caller, PROCESSES: self.processes}
        self._end, self._uid_of = end, uid_of
        self._caller: Caller | None = None if uid_of is not None else Caller.UNCHECKED

    def caller(self) -> Caller:
        """The user on the other end."""
        if self._caller is None:
            assert self._uid_of is not None
            self._caller = identify(self._end, self._uid_of)
        return self._caller

    def processes(self) -> tuple[int, ...]:
        """The processes that hold the other end now; none where it is closed, or nobody could be found."""
        try:
            theirs, ours = self._end.getpeername()[:2], self._end.getsockname()[:2]
            if sys.platform != "linux":
                return connected(theirs, ours)
            # Who hides what it holds is believed to hold this one, if that was there all the time.
            before = _find_socket(theirs, ours)
            found = holders(before[1]) if before else ()
            return found if found and _find_socket(theirs, ours) == before else ()
        except OSError:
            return ()


# -- Refuse, before any route runs, every request that is not this user's own -----------------------------------------

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)
HEADER_BYTES = 64 * 1024
BODY_BYTES = 1024 * 1024
LINGER = 2.0  # seconds for which a refused client may go on sending, so that it reads the answer and not a reset
SHOWN = 200  # characters of a path that the log shows; of a longer one nothing, for a cut would halve a secret in it

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Denial:
    """The reason why a request is refused, and what its sender can do.

    `resource_policy` says which origins may notice the refusal; "" for this one only.
    """

    status: int
    detail: str
    fix: str
    resource_policy: str = ""


class Guard:
    """ASGI middleware, the outermost: serves what `check` and the caller's uid allow, with security headers.

    `port` is the public port. A request on a connection without a known caller is refused, and every refusal closes
    the connection: what stands behind it may be the rest of a request whose end is uncertain.
    """

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, hardened(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "lifespan":
            await self.app(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        outcome: Denial | bytes | None = check(scope, self.port) or check_caller(scope)
        if outcome is None:
            outcome = await read_body(receive)
        if isinstance(outcome, bytes):
            await self.app(scope, _replay(outcome, receive), send)
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
    ]
    if denial.resource_policy:
        headers.append((b"cross-origin-resource-policy", denial.resource_policy.encode()))
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
    return (
        _check_target(scope)
        or _check_header_size(scope)
        or _check_length(headers)
        or _check_host(headers, port)
        or _check_site(scope)
        or _check_origin(headers)
    )


def check_caller(scope: Scope) -> Denial | None:
    """Return why the process that opened this connection is not acceptable, if it is not."""
    ask: Callable[[], Caller] | None = scope.get("state", {}).get(CALLER)
    caller = ask() if ask else Caller.UNKNOWN
    if caller is Caller.OTHER:
        return Denial(403, "another user of this machine started this daemon", "call it as the user who started it")
    if caller is Caller.UNKNOWN:
        return Denial(
            403,
            "the system does not say which user opened this connection",
            "keep the connection open until the answer is there, and call from outside any container or sandbox",
        )
    return None


def _check_target(scope: Scope) -> Denial | None:
    if scope.get("http_version") not in ("1.0", "1.1"):
        return Denial(505, "the request is not HTTP/1.1", "send HTTP/1.1")
    if scope.get("raw_path", b"").startswith(b"/"):
        return None
    fix = "send a path such as /health, not through a proxy"
    return Denial(400, "the request target is not a path", fix)


def _check_header_size(scope: Scope) -> Denial | None:
    # The parser measures only what is incomplete, so a large read can carry more than its limit.
    line = len(scope["raw_path"]) + len(scope.get("query_string", b""))
    if line + sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"]) <= HEADER_BYTES:
        return None
    return Denial(431, f"the request's headers are larger than {HEADER_BYTES} bytes", "send fewer or shorter headers")


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
    sites = _values(scope["headers"], b"sec-fetch-site")
    # `same-site` is refused: a page on any other port of localhost is same-site.
    if not sites or sites in ([b"same-origin"], [b"none"]) or _is_arrival(scope):
        return None
    refusal = _foreign_page("the browser says that another site sent this request (Sec-Fetch-Site)")
    # The page of a daemon that died asks so which of the others lives. A browser shows no page what the refusal says,
    # only that somebody gave one; that this port is in use, any page of this machine finds out anyway.
    return replace(refusal, resource_policy="same-site") if _is_probe(scope) else refusal


def _is_arrival(scope: Scope) -> bool:
    """True for a top-level navigation to `/` from a page of another port of this machine.

    The page of a daemon that died sends its reader to another daemon in this way. It is harmless:
    `/` only shows, other pages can neither frame its window nor reach into it (`frame-ancestors`, the opener policy),
    and everything that its own scripts then ask for is same-origin.
    """
    return (
        scope["method"] == "GET"
        and (scope["raw_path"], scope.get("query_string", b"")) == (b"/", b"")
        and (_fetched(scope) == ([b"same-site"], [b"navigate"], [b"document"]))
    )


def _is_probe(scope: Scope) -> bool:
    """True for a request of a page of another port that can see no more than whether it is answered."""
    return (scope["method"], scope["raw_path"]) == ("GET", b"/health") and (
        _fetched(scope) == ([b"same-site"], [b"no-cors"], [b"empty"])
    )


def _fetched(scope: Scope) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """The request's `Sec-Fetch` headers: site, mode, destination."""
    site, mode, dest = (_values(scope["headers"], b"sec-fetch-" + name) for name in (b"site", b"mode", b"dest"))
    return site, mode, dest


def _check_origin(headers: Headers) -> Denial | None:
    origins = _values(headers, b"origin")
    # No Origin: not a browser, or a browser's own GET, which Host and Sec-Fetch-Site answer for.
    if not origins or [origin.lower() for origin in origins] == [b"http://" + _values(headers, b"host")[0].lower()]:
        return None
    return _foreign_page("a page of another origin sent this request")


def _foreign_page(detail: str) -> Denial:
    return Denial(403, detail, "type this daemon's own address into the browser, or use curl or the dialogd command")


def _check_length(headers: Headers) -> Denial | None:
    lengths = _values(headers, b"content-length")
    if lengths and _values(headers, b"transfer-encoding"):
        what = "the body has two lengths: Content-Length and Transfer-Encoding"
        return Denial(400, what, "send one of the two")
    return TOO_LARGE if any(int(length) > BODY_BYTES for length in lengths) else None


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


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: Iterator[Message] = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> Message:
        return next(pending, None) or await receive()

    return replay


def hardened(send: Send) -> Send:
    """Wrap `send`: security headers where the app sets none of its own, and never a CORS permission."""

    async def send_hardened(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": harden(message.get("headers", []))}
        await send(message)

    return send_hardened


def harden(headers: Any) -> Headers:
    """Return response headers without CORS permissions and with the missing security headers."""
    kept = [(name.lower(), value) for name, value in headers if not name.lower().startswith(b"access-control-")]
    names = {name for name, _ in kept}
    return kept + [header for header in SECURITY_HEADERS if header[0] not in names]

"""A small guarded app on a real port, and raw requests to it."""

import asyncio
import http.client
import itertools
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from dialogd.server.serving import bind, make_server
from tests.support.pair import PATIENCE


@dataclass
class Site:
    """An app with a route of each kind; counts what reaches its routes."""

    hits: list[str] = field(default_factory=list)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    streams: int = 0
    port: int = 0
    server: Any = None

    def app(self) -> Starlette:
        """Return the ASGI app."""
        return Starlette(
            routes=[
                Route("/health", self.health),
                Route("/notify", self.notify, methods=["POST"]),
                Route("/events", self.events),
                Route("/", self.page),
            ]
        )

    async def health(self, request: Request) -> Response:
        """Answer JSON, with a CORS permission that nobody may see."""
        self.hits.append("health")
        headers = {"Access-Control-Allow-Origin": "*"}
        return JSONResponse({"id": "A", "port": self.port, "file": "/tmp/x\x1b.md"}, headers=headers)

    async def notify(self, request: Request) -> Response:
        """Answer how long the body was."""
        body = await request.body()
        self.hits.append("notify")
        return JSONResponse({"bytes": len(body)}, status_code=202)

    async def events(self, request: Request) -> Response:
        """Stream until the server closes."""
        self.hits.append("events")
        return StreamingResponse(self.stream(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    async def stream(self) -> AsyncIterator[bytes]:
        """Say hello, wait, say bye."""
        self.streams += 1
        try:
            yield b"event: hello\n\n"
            await self.closing.wait()
            yield b"event: bye\n\n"
        finally:
            self.streams -= 1

    async def page(self, request: Request) -> Response:
        """Answer a page with a policy of its own."""
        self.hits.append("page")
        return HTMLResponse("<p>hi</p>", headers={"Content-Security-Policy": "default-src 'self'"})

    async def close(self) -> None:
        """End every stream."""
        self.closing.set()


Make = Callable[[Site, socket.socket], uvicorn.Server]


@contextmanager
def running(make: Make) -> Iterator[Site]:
    """Serve a `Site` with the server that `make` returns, in a thread, until the block ends."""
    site = Site()
    listener = bind(0)
    site.port = listener.getsockname()[1]
    site.server = make(site, listener)
    thread = threading.Thread(target=lambda: asyncio.run(site.server.serve(sockets=[listener])))
    thread.start()
    try:
        until(lambda: site.server.started)
        yield site
    finally:
        site.server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
    assert not thread.is_alive()


def unguarded(site: Site, listener: socket.socket) -> uvicorn.Server:
    """Return uvicorn as it comes, for controls."""
    config = uvicorn.Config(site.app(), log_config=None, log_level="critical", lifespan="off", http="h11", ws="none")
    return uvicorn.Server(config)


def until(true: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until `true()`; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


@dataclass(frozen=True)
class Answer:
    """A response; status 0 when the connection ended without one."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body, as text."""
        return self.body.decode("utf-8", "replace")

    def __getitem__(self, name: str) -> Any:
        """A field of what was answered; fails with the whole answer where it was refused."""
        assert self.status < 300, self.text
        return self.json[name]

    @property
    def json(self) -> Any:
        """The body, which is said to be JSON."""
        return self.json_of("application/json")

    def json_of(self, kind: str) -> Any:
        """The body, which is said to be this kind of JSON."""
        assert self.headers["content-type"] == kind, self
        return json.loads(self.body)

    @property
    def problem(self) -> dict[str, Any]:
        """The problem in the body: whole, with a fix, and its status that of the response."""
        assert self.headers["content-type"] == "application/problem+json", self
        problem = json.loads(self.body)
        assert set(problem) - {"field"} == {"type", "title", "status", "detail", "fix"}
        assert problem["status"] == self.status
        assert problem["detail"]
        assert problem["fix"]
        return dict(problem)


def sent(port: int, line: str, body: object = None, kind: str = "", **headers: str) -> Answer:
    """One request, `POST /notify`; a dict or list goes as JSON, `kind` is the content type.

    `headers` stand beside or in place of the usual ones (`sec_fetch_site`).
    """
    method, path = line.split(" ")
    if isinstance(body, dict | list):
        body, kind = json.dumps(body), kind or "application/json"
    usual = {"Content-Type": kind} if kind else {}
    named = {name.replace("_", "-").title(): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, body, {**usual, **named})  # type: ignore[arg-type]
        response = connection.getresponse()
        answered = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, answered, response.read())
    finally:
        connection.close()


def connect(port: int, seconds: float = PATIENCE) -> socket.socket:
    """Open a connection."""
    return socket.create_connection(("127.0.0.1", port), timeout=seconds)


def request(port: int, line: str = "GET /health", *headers: str, host: str | None = None, body: bytes = b"") -> bytes:
    """Return the bytes of a request with the right Host, or `host`; "" for none."""
    lines = [f"{line} HTTP/1.1", *headers]
    if host != "":
        lines.insert(1, f"Host: {host or f'127.0.0.1:{port}'}")
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def ask(port: int, raw: bytes) -> Answer:
    """Send bytes on a new connection and read one response."""
    with connect(port) as connection:
        connection.sendall(raw)
        return read_answer(connection)


def read_answer(connection: socket.socket) -> Answer:
    """Read one response; of an event stream only its beginning."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        try:
            piece = connection.recv(1)
        except ConnectionError:
            piece = b""
        if not piece:
            return Answer(0, {}, head)
        head += piece
    status, *lines = head.decode("latin-1").strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    left = int(headers.get("content-length", 0))
    body = b""
    while len(body) < left and (piece := connection.recv(left - len(body))):
        body += piece
    return Answer(int(status.split()[1]), headers, body)


def guarded(site: Site, listener: socket.socket) -> uvicorn.Server:
    """Return the guarded server with the product's own settings."""
    return make_server(site.app(), listener, on_shutdown=[site.close])


def assert_refused(answer: Answer, *statuses: int) -> None:
    """Assert that this is a refusal in problem JSON that permits no other origin anything."""
    assert answer.status in statuses
    assert answer.problem["status"] == answer.status
    assert answer.problem["fix"]
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert answer.headers["x-content-type-options"] == "nosniff"


def drain(connection: socket.socket) -> bytes:
    """Read until the server closes."""
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


# What a request is refused for: another request line, a header, or a body's beginning.
REFUSED = {
    "no path": ("POST http://localhost/notify", "", b""),
    "too large a header": ("", f"X-Large: {'x' * 66_000}", b""),
    "two lengths": ("", "Transfer-Encoding: chunked\r\nContent-Length: 4", b"0\r\n\r\n"),
    "two lengths, the other way round": ("", "Content-Length: 4\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
    "an unknown coding": ("", "Transfer-Encoding: gzip", b""),
    "too long a body": ("", "Content-Length: 200000000", b""),
    "a foreign name": ("", "Host: evil", b""),
    "a foreign site": ("", "Sec-Fetch-Site: cross-site", b""),
    "a foreign origin": ("", "Origin: http://evil", b""),
}
PAIRS = [f"{one} + {other}" for one, other in itertools.combinations_with_replacement(REFUSED, 2)]


def assert_carries_nothing(port: int, pair: str, behind: bytes) -> None:
    """Assert that a request with these two faults is refused, and what is sent behind it on the same line unanswered.

    That none of it was carried out is for the caller to see.
    """
    faults = [REFUSED[name] for name in dict.fromkeys(pair.split(" + "))]
    line = next((line for line, _, _ in faults if line), "POST /notify")
    headers = list(dict.fromkeys(header for _, header, _ in faults if header))
    host = "" if any(header.startswith("Host:") for header in headers) else None
    raw = request(port, line, *headers, host=host) + max(body for _, _, body in faults) + behind
    with connect(port) as connection, suppress(ConnectionError):
        connection.sendall(raw)
        answer = read_answer(connection)
        assert answer.status in (0, 400, 403, 413, 431)  # 0: a parser that gives up reads no further
        assert not answer.status or answer.headers["connection"] == "close"
        assert drain(connection) in (b"", b"Invalid HTTP request received.")

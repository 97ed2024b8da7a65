"""The only module that calls other daemons. Loopback addresses only; whoever does not answer is gone on without."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dialogd.protocol.header import LOOPBACK_URL
from dialogd.protocol.state import Dialog

if TYPE_CHECKING:
    import httpx2

WAITS = (0.0, 0.2, 1.0)  # seconds before each attempt to tell a peer
ANSWER = 1.0  # seconds a peer has to answer
START = 3.0  # seconds until an event stream begins
QUIET = 40.0  # seconds of silence after which a stream is dead: a daemon says something every 15
NO_WAIT = "respond-async"  # Prefer (RFC 7240): a peer is not kept waiting for what comes of its notify
NOT_MINE = 409  # the status with which a daemon refuses what names another dialog
STOP_ANSWER = 0.5  # and to a stop, which is done in under a second whatever a peer does
MOST_HEAD, MOST_BODY = 16 * 1024, 64 * 1024  # bytes of an answer to a notify
MOST_SAID = 1024 * 1024  # bytes of what a daemon says of itself
_STATUS = re.compile(rb"HTTP/1\.1 ([2-5]\d\d)(?: [^\0-\x1f]*)?")
_LENGTH = re.compile(rb"\d{1,9}")


class Peers:
    """The daemons of the other agents at `file`: those that `running` knows, else where the header says.

    `overrides` are this daemon's own flags, which come first; `running` gives addresses by agent id.
    """

    def __init__(
        self,
        me: str,
        overrides: Mapping[str, str],
        file: str = "",
        running: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.me = me
        self.file = file
        self.overrides = dict(overrides)
        self._running = running
        self.reachable: dict[str, bool] = {}
        self.backends: dict[str, str] = {}  # what played each of them when it last answered
        self._tasks: set[asyncio.Task[None]] = set()
        self._client = _Client()
        self._lines = _Lines()

    @property
    def own(self) -> str:
        """Where this daemon listens, as people are told; "" where nobody knows."""
        return self._running().get(self.me, "").replace("//127.0.0.1:", "//localhost:")

    def of(self, dialog: Dialog | None) -> dict[str, str]:
        """Agent id -> address of every other daemon."""
        running = self._running()
        urls = {a.id: running.get(a.id, a.url) for a in dialog.header.agents} if dialog else dict(running)
        urls.update(self.overrides)
        urls.pop(self.me, None)
        return {who: url.replace("//localhost:", "//127.0.0.1:") for who, url in urls.items()}

    def tell(self, dialog: Dialog | None) -> None:
        """Tell peers, in the background, that the file is worth a look; a hint that may get lost."""
        for who, url in self.of(dialog).items():
            self.spawn(self._notify(who, url, {"from": self.me, **self._meant(dialog)}))

    def start(self, dialog: Dialog) -> None:
        """Pass a person's notify on to those who owe a turn: it starts the dialog there too."""
        for who, url in self.of(dialog).items():
            if who in dialog.state.owing:
                self.spawn(self._notify(who, url, {"from": self.me, "start": True, **self._meant(dialog)}))

    def _meant(self, dialog: Dialog | None) -> dict[str, str]:
        """What a daemon of another dialog, at an address that is outdated, refuses by."""
        named = {"file": self.file, "dialog": dialog.id if dialog is not None else ""}
        return {name: value for name, value in named.items() if value}

    def spawn(self, telling: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Do something in the background, at the latest until `close`."""
        task = asyncio.ensure_future(telling)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def listen(self, url: str) -> AsyncGenerator[bytes, None]:
        """The bytes of that daemon's event stream as they come, its own events only.

        Raises `OSError` when it does not answer with one, or has been silent for too long.
        """
        async with aclosing(self._client.stream(f"{url}/events")) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _notify(self, who: str, url: str, message: Mapping[str, object]) -> None:
        for wait in WAITS:
            if wait:
                await asyncio.sleep(wait)
            try:
                if await self._lines.post(url, "/notify", message) == NOT_MINE:
                    raise OSError("the daemon of another dialog answers there")
            except OSError:
                self.reachable[who] = False
            else:
                self.reachable[who] = True
                return

    async def working(self, dialog: Dialog, agents: Iterable[str], file: str) -> frozenset[str]:
        """Those of `agents` whose own daemon says that it works on a turn of this very file."""
        urls = self.of(dialog)
        asked = [who for who in agents if who in urls]
        answers = await asyncio.gather(*(self._is_working(who, urls[who], file) for who in asked))
        return frozenset(who for who, yes in zip(asked, answers, strict=True) if yes)

    async def _is_working(self, who: str, url: str, file: str) -> bool:
        health = await self._health(who, url, file)
        return health is not None and bool(health.get("working_on"))

    async def healths(self, dialog: Dialog | None, file: str) -> dict[str, dict[str, Any] | None]:
        """What every other daemon says of itself, by agent id; None for one that does not answer for this file."""
        urls = self.of(dialog)
        answers = await asyncio.gather(*(self._health(who, url, file) for who, url in urls.items()))
        return dict(zip(urls, answers, strict=True))

    async def _health(self, who: str, url: str, file: str) -> dict[str, Any] | None:
        """The answer of `GET /health` of `who`'s daemon; None when there is none, or it is another's."""
        try:
            health = json.loads(await self._client.ask("GET", f"{url}/health"))
        except (OSError, ValueError, RecursionError):
            self.reachable[who] = False
            return None
        self.reachable[who] = True
        is_its_own = isinstance(health, dict) and health.get("id") == who and health.get("file") == file
        if is_its_own:
            self.backends[who] = str(health.get("backend") or "")
        return health if is_its_own else None

    async def stop(self, dialog: Dialog | None, reason: str) -> None:
        """Ask every peer to stop too; they do not pass it on."""

        async def ask(url: str) -> None:
            with suppress(OSError):
                await self._client.ask("POST", f"{url}/stop", {"hop": 1, "reason": reason, **self._meant(dialog)})

        asked = [asyncio.ensure_future(ask(url)) for url in self.of(dialog).values()]
        if asked:
            _, late = await asyncio.wait(asked, timeout=STOP_ANSWER)
            for task in late:
                task.cancel()

    async def close(self) -> None:
        """Give up what is under way and close the connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._lines.close()
        await self._client.close()


class _Answer(NamedTuple):
    """The beginning of an answer, and how many bytes it has in all."""

    status: int
    size: int
    stays: bool  # the connection can be used again


def _read_answer(data: bytes | bytearray) -> _Answer | None:
    """What has come of an answer; None while its head is not whole. Raises `OSError` for what is no plain one."""
    end = data.find(b"\r\n\r\n", 0, MOST_HEAD)
    if end < 0:
        if len(data) >= MOST_HEAD or not b"HTTP/1.1 ".startswith(bytes(data[:9])):
            raise OSError("no HTTP/1.1 answer")
        return None
    first, *lines = bytes(data[:end]).split(b"\r\n")
    status = _STATUS.fullmatch(first)
    fields = [(name, value.strip()) for name, _, value in (line.lower().partition(b":") for line in lines)]
    lengths = [value for name, value in fields if name == b"content-length"]
    if status is None or len(lengths) != 1 or not _LENGTH.fullmatch(lengths[0]) or b"transfer-encoding" in dict(fields):
        raise OSError("no HTTP/1.1 answer of a known length")
    length = int(lengths[0])
    if length > MOST_BODY:
        raise OSError(f"an answer of {length} bytes")
    return _Answer(int(status[1]), end + 4 + length, (b"connection", b"close") not in fields)


class _Line(asyncio.Protocol):
    """A connection to a peer: one request at a time, one whole answer. Closed by whatever is not expected."""

    def __init__(self) -> None:
        self.gone = asyncio.get_running_loop().create_future()
        self._data = bytearray()
        self._asked: asyncio.Future[_Answer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast(asyncio.Transport, transport)

    @property
    def is_open(self) -> bool:
        """False once either side has closed, or the peer has spoken without being asked."""
        return not self._transport.is_closing()

    async def ask(self, request: bytes) -> _Answer:
        """Send a request and wait for its whole answer. Raises `OSError`, after which the connection is closed."""
        self._asked = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._asked
        except BaseException:
            self._transport.abort()
            raise
        finally:
            self._asked = None

    def close(self) -> None:
        """Close at once."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take a piece of the answer."""
        if self._asked is None or self._asked.done():
            self._transport.abort()
            return
        self._data += data
        try:
            answer = _read_answer(self._data)
        except OSError as error:
            self._asked.set_exception(error)
            return
        if answer is None or len(self._data) < answer.size:
            return
        self._asked.set_result(answer)
        if not answer.stays or len(self._data) > answer.size:
            self._transport.abort()
        self._data.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        """End what still waits for an answer."""
        self.gone.set_result(None)
        if self._asked is not None and not self._asked.done():
            kind = ConnectionResetError if not self._data else ConnectionAbortedError
            self._asked.set_exception(kind("the peer closed the connection"))


class _Lines:
    """What tells peers: one kept connection to each, loopback only. An HTTP library costs ten times as much."""

    def __init__(self) -> None:
        self._kept: dict[str, _Line] = {}
        self._open: set[_Line] = set()

    async def post(self, url: str, path: str, message: Mapping[str, object]) -> int:
        """The status of the answer, whatever it is. Raises `OSError` where there is none within a second."""
        address = LOOPBACK_URL.fullmatch(url)
        if address is None:
            raise OSError(f"{url} is no loopback address")
        host, port, body = address[1], address[2], json.dumps(message).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nPrefer: {NO_WAIT}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        request = head.encode() + body
        async with asyncio.timeout(ANSWER):
            line = self._kept.pop(url, None)
            if line is not None and line.is_open:
                # A peer closes what has been idle for long, perhaps just now; another dialogd has then read nothing.
                with suppress(ConnectionResetError, BrokenPipeError):
                    return self._keep(url, line, await line.ask(request))
            line = await self._connect(host.strip("[]"), int(port))
            return self._keep(url, line, await line.ask(request))

    async def _connect(self, host: str, port: int) -> _Line:
        _, line = await asyncio.get_running_loop().create_connection(_Line, host, port)
        self._open.add(line)
        line.gone.add_done_callback(lambda _: self._open.discard(line))
        return line

    def _keep(self, url: str, line: _Line, answer: _Answer) -> int:
        """Keep the connection for next time, unless there is one."""
        if answer.stays and self._kept.setdefault(url, line) is not line:
            line.close()
        return answer.status

    async def close(self) -> None:
        """Close all connections; none is left when this ends."""
        lines = list(self._open)
        for line in lines:
            line.close()
        await asyncio.gather(*(line.gone for line in lines))


class _Client:
    """One shared HTTP client; built on first use, because its library is slow to load."""

    def __init__(self) -> None:
        self._http: httpx2.AsyncClient | None = None

    async def ask(self, method: str, url: str, message: Mapping[str, object] | None = None) -> bytes:
        """The body of the answer. Raises `OSError` where none is whole within a second, and where it is none of ours.

        That is one which is too long, and that of a daemon which says "not mine".
        """
        import httpx2

        said = bytearray()
        asked = self._made().stream(method, url, json=message, headers={"Accept-Encoding": "identity"})
        try:
            # The library's own limit is for each piece of an answer: who sends a byte now and then is never late.
            async with asyncio.timeout(ANSWER), asked as answer:
                if answer.status_code == NOT_MINE:
                    raise OSError("the daemon of another dialog answers there")
                async for piece in answer.aiter_raw():
                    said += piece
                    if len(said) > MOST_SAID:
                        raise OSError(f"an answer of over {MOST_SAID:,} bytes")
        except httpx2.HTTPError as error:
            raise OSError(str(error)) from error
        return bytes(said)

    async def stream(self, url: str) -> AsyncGenerator[bytes, None]:
        """The body of an event stream as it comes. Raises `OSError` when there is none, or it falls silent."""
        import httpx2

        http, headers = self._made(), {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        asked = http.build_request("GET", url, headers=headers, timeout=httpx2.Timeout(ANSWER, read=QUIET))
        try:
            async with asyncio.timeout(START):
                answer = await http.send(asked, stream=True)
            async with aclosing(answer):
                kind, is_packed = answer.headers.get("content-type", ""), "content-encoding" in answer.headers
                if answer.status_code != 200 or not kind.startswith("text/event-stream") or is_packed:
                    raise OSError(f"status {answer.status_code}, {kind or 'no type'}")
                async for chunk in answer.aiter_raw():
                    yield chunk
        except httpx2.HTTPError as error:
            raise OSError(str(error)) from error

    def _made(self) -> httpx2.AsyncClient:
        import httpx2

        if self._http is None:
            # trust_env off: a proxy from the environment must never see loopback traffic.
            self._http = httpx2.AsyncClient(timeout=ANSWER, trust_env=False, verify=False)
        return self._http

    async def close(self) -> None:
        """Close all connections."""
        if self._http is not None:
            await self._http.aclose()

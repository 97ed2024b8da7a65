"""The only module that calls other daemons: loopback addresses only, never waiting for one that does not answer."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from dialogd.errors import BadInput, NotRunning
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
        self._open: set[_Line] = set()
        self._kept: dict[str, _Line] = {}  # one connection to each peer that nobody uses now, by its address
        self._is_closed = False
        self._client: httpx2.AsyncClient | None = None

    @property
    def own(self) -> str:
        """This daemon's address; "" where unknown."""
        return self._running().get(self.me, "").replace("//127.0.0.1:", "//localhost:")

    def of(self, dialog: Dialog | None) -> dict[str, str]:
        """Agent id -> address of every other daemon."""
        running = self._running()
        urls = {a.id: running.get(a.id, a.url) for a in dialog.header.agents} if dialog else dict(running)
        urls.update(self.overrides)
        urls.pop(self.me, None)
        return {who: url.replace("//localhost:", "//127.0.0.1:") for who, url in urls.items()}

    # -- telling: a hint that may get lost ------------------------------------------------------------------------

    def tell(self, dialog: Dialog | None) -> None:
        """Tell peers that the file is worth a look, without waiting for them."""
        for who, url in self.of(dialog).items():
            self._hint(who, url, dialog)

    def start(self, dialog: Dialog) -> None:
        """Pass a person's notify on to those who owe a turn: it starts the dialog there too."""
        for who, url in self.of(dialog).items():
            if who in dialog.state.owing:
                self._hint(who, url, dialog, start=True)

    def _hint(self, who: str, url: str, dialog: Dialog | None, *, start: bool = False) -> None:
        """Send a hint at once over an open connection; otherwise, or if that fails, from a task."""
        request = hint(url, self.me, self.file, dialog.id if dialog is not None else "", start=start)
        line = self._kept.pop(url, None)
        if line is None or not line.is_open:
            self.spawn(self._notify(who, url, request))
            return

        def answered(status: asyncio.Future[int]) -> None:
            if status.exception() is None:
                self._keep(url, line)
            if status.exception() is None and status.result() != NOT_MINE:
                self.reachable[who] = True
            elif not self._is_closed:  # such as one that the peer has closed just now: it has read nothing then
                self.spawn(self._notify(who, url, request))

        line.send(request).add_done_callback(answered)

    async def _notify(self, who: str, url: str, request: bytes) -> None:
        """Send a hint over a new connection, and again where that fails."""
        for wait in WAITS:
            await asyncio.sleep(wait)
            try:
                async with asyncio.timeout(ANSWER):
                    line = await self._connect(url)
                status = await line.send(request)
                self._keep(url, line)
                if status == NOT_MINE:
                    raise OSError("the daemon of another dialog answers there")
            except OSError:
                self.reachable[who] = False
            else:
                self.reachable[who] = True
                return

    async def _connect(self, url: str) -> _Line:
        address = LOOPBACK_URL.fullmatch(url)
        if address is None:
            raise OSError(f"{url} is no loopback address")
        _, line = await asyncio.get_running_loop().create_connection(_Line, address[1].strip("[]"), int(address[2]))
        self._open.add(line)
        line.gone.add_done_callback(lambda _: self._open.discard(line))
        return line

    def _keep(self, url: str, line: _Line) -> None:
        """Keep the connection for next time, unless another is kept."""
        if self._is_closed or (line.is_open and self._kept.setdefault(url, line) is not line):
            line.close()

    def spawn(self, telling: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run something in the background, at most until `close`."""
        task = asyncio.ensure_future(telling)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- asking ---------------------------------------------------------------------------------------------------

    async def working(self, dialog: Dialog, agents: Iterable[str], file: str) -> frozenset[str]:
        """Those of `agents` whose own daemon says that it works on a turn of this very file."""
        urls = self.of(dialog)
        asked = [who for who in agents if who in urls]
        answers = await asyncio.gather(*(self._health(who, urls[who], file) for who in asked))
        return frozenset(who for who, health in zip(asked, answers, strict=True) if (health or {}).get("working_on"))

    async def healths(self, dialog: Dialog | None, file: str) -> dict[str, dict[str, Any] | None]:
        """The health of every other daemon, by agent id; None for one that does not answer for this file."""
        urls = self.of(dialog)
        answers = await asyncio.gather(*(self._health(who, url, file) for who, url in urls.items()))
        return dict(zip(urls, answers, strict=True))

    async def _health(self, who: str, url: str, file: str) -> dict[str, Any] | None:
        """The answer of `GET /health` of `who`'s daemon; None when there is none, or it is another's."""
        try:
            health = json.loads(await self._ask("GET", f"{url}/health"))
        except (OSError, ValueError, RecursionError):
            self.reachable[who] = False
            return None
        self.reachable[who] = True
        is_its_own = isinstance(health, dict) and health.get("id") == who and health.get("file") == file
        if is_its_own:
            self.backends[who] = str(health.get("backend") or "")
        return health if is_its_own else None

    async def approve_call(self, dialog: Dialog, who: str, call: str, *, refuse: bool) -> dict[str, Any]:
        """Pass the person's answer about a call of a tool on to `who`'s daemon; what that says.

        Raises `BadInput` as that daemon does, and `NotRunning` where none answers.
        """
        message = {"call": call, "refuse": refuse, **_meant(self.file, dialog.id)}
        try:
            said = json.loads(await self._ask("POST", f"{self.of(dialog)[who]}/approve-call", message))
            if "detail" in said:
                raise BadInput(str(said["detail"]), fix=str(said.get("fix", "")))
            return dict(said)
        except (OSError, KeyError, ValueError, RecursionError) as error:
            fix = f"`dialogd status` says whether it runs: {error}"
            raise NotRunning(f"the daemon of {who} does not answer", fix=fix) from None

    async def stop(self, dialog: Dialog | None, reason: str) -> None:
        """Ask every peer to stop too; they do not pass it on."""
        message = {"hop": 1, "reason": reason, **_meant(self.file, dialog.id if dialog is not None else "")}

        async def ask(url: str) -> None:
            with suppress(OSError):
                await self._ask("POST", f"{url}/stop", message)

        asked = [asyncio.ensure_future(ask(url)) for url in self.of(dialog).values()]
        if asked:
            _, late = await asyncio.wait(asked, timeout=STOP_ANSWER)
            for task in late:
                task.cancel()

    async def _ask(self, method: str, url: str, message: Mapping[str, object] | None = None) -> bytes:
        """The body of the answer. Raises `OSError` where it is not whole within a second, or refused.

        That is one which is too long, and that of a daemon which says "not mine".
        """
        import httpx2

        said = bytearray()
        asked = self._http().stream(method, url, json=message, headers={"Accept-Encoding": "identity"})
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

    async def listen(self, url: str) -> AsyncGenerator[bytes, None]:
        """The bytes of that daemon's event stream as they come, its own events only.

        Raises `OSError` when it does not answer with one, or has been silent for too long.
        """
        import httpx2

        http, headers = self._http(), {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        asked = http.build_request("GET", f"{url}/events", headers=headers, timeout=httpx2.Timeout(ANSWER, read=QUIET))
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

    def _http(self) -> httpx2.AsyncClient:
        """The HTTP client, built on first use: its library is slow to load."""
        import httpx2

        if self._client is None:
            # trust_env off: a proxy from the environment must never see loopback traffic.
            self._client = httpx2.AsyncClient(timeout=ANSWER, trust_env=False, verify=False)
        return self._client

    async def close(self) -> None:
        """Give up what is under way and close the connections; none is left when this ends."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        lines = list(self._open)
        for line in lines:
            line.close()
        await asyncio.gather(*(line.gone for line in lines))
        if self._client is not None:
            await self._client.aclose()


# -- Hints, by hand: an HTTP library costs ten times as much ----------------------------------------------------------


def _meant(file: str, dialog: str) -> dict[str, str]:
    """The file and dialog in a request, by which a daemon of another dialog refuses it."""
    return {name: value for name, value in (("file", file), ("dialog", dialog)) if value}


def hint_head(host: str) -> bytes:
    """The head of a hint's request to that host and port, up to the length of its body."""
    head = f"POST /notify HTTP/1.1\r\nHost: {host}\r\nPrefer: {NO_WAIT}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: ".encode()


@lru_cache(maxsize=64)
def hint(url: str, me: str, file: str, dialog: str, *, start: bool = False) -> bytes:
    """The request that tells the daemon at `url` to look at its file."""
    body = json.dumps({"from": me, **({"start": True} if start else {}), **_meant(file, dialog)}).encode()
    return hint_head(url.partition("//")[2].rstrip("/")) + b"%d\r\n\r\n%s" % (len(body), body)


class _Answer(NamedTuple):
    """The beginning of an answer, and how many bytes it has in all."""

    status: int
    size: int
    stays: bool  # the connection can be used again


@lru_cache(maxsize=16)
def _read_answer(data: bytes) -> _Answer | None:
    """The answer so far; None while its head is incomplete. Raises `OSError` for one that is not plain."""
    end = data.find(b"\r\n\r\n", 0, MOST_HEAD)
    if end < 0:
        if len(data) >= MOST_HEAD or not b"HTTP/1.1 ".startswith(data[:9]):
            raise OSError("no HTTP/1.1 answer")
        return None
    first, *lines = data[:end].split(b"\r\n")
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
    """A connection to a peer: one request at a time, one whole answer. Closed by anything unexpected."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._data = b""
        self._status: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast(asyncio.Transport, transport)

    @property
    def is_open(self) -> bool:
        """False once either side has closed, or the peer has spoken without being asked."""
        return not self._transport.is_closing()

    def send(self, request: bytes) -> asyncio.Future[int]:
        """Send a request; the status of its answer, whole within a second, else `OSError`, and it is closed."""
        self._status = self._loop.create_future()
        self._timer = self._loop.call_later(ANSWER, self._end, TimeoutError("no whole answer in time"))
        self._transport.write(request)
        return self._status

    def _end(self, how: int | OSError) -> None:
        """Deliver the request's result to its waiter, if any; after an error the connection is not used again."""
        if isinstance(how, OSError):
            self.close()
        status, self._status = self._status, None
        if status is None:
            return
        self._timer.cancel()
        if status.done():
            return
        if isinstance(how, OSError):
            status.set_exception(how)
        else:
            status.set_result(how)

    def close(self) -> None:
        """Close at once."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take a piece of the answer."""
        self._data += data
        try:
            answer = _read_answer(self._data)
        except OSError as error:
            self._end(error)
            return
        if self._status is not None and (answer is None or len(self._data) < answer.size):
            return
        if self._status is None or answer is None or not answer.stays or len(self._data) > answer.size:
            self.close()
        self._data = b""
        if answer is not None:
            self._end(answer.status)

    def connection_lost(self, exc: Exception | None) -> None:
        """End what still waits for an answer."""
        self.gone.set_result(None)
        self._end(ConnectionResetError("the peer closed the connection"))

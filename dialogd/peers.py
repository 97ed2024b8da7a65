"""The only module that calls other daemons. Loopback addresses only; whoever does not answer is gone on without."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

from dialogd.protocol.model import Dialog

WAITS = (0.0, 0.2, 1.0)  # seconds before each attempt to tell a peer
ANSWER = 1.0  # seconds a peer has to answer
STOP_ANSWER = 0.5  # and to a stop, which is done in under a second whatever a peer does
LARGEST = 1024 * 1024  # bytes of an answer

_LENGTH = re.compile(r"\r\ncontent-length: (\d{1,9})\r\n")


class Peers:
    """The other agents' daemons, by the header's addresses; `overrides` are this daemon's own flags."""

    def __init__(self, me: str, overrides: Mapping[str, str]) -> None:
        self.me = me
        self.overrides = dict(overrides)
        self.reachable: dict[str, bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._client = _Client()

    def of(self, dialog: Dialog | None) -> dict[str, str]:
        """Agent id -> address of every other daemon."""
        urls = {a.id: a.url for a in dialog.header.agents} if dialog else {}
        urls.update(self.overrides)
        urls.pop(self.me, None)
        return {who: url.replace("//localhost:", "//127.0.0.1:") for who, url in urls.items()}

    def tell(self, dialog: Dialog | None) -> None:
        """Tell peers, in the background, that the file is worth a look; a hint that may get lost."""
        for who, url in self.of(dialog).items():
            self._spawn(self._notify(who, url, {"from": self.me}))

    def start(self, dialog: Dialog) -> None:
        """Pass a person's notify on to those who owe a turn: it starts the dialog there too."""
        for who, url in self.of(dialog).items():
            if who in dialog.state.owing:
                self._spawn(self._notify(who, url, {"from": self.me, "start": True}))

    def _spawn(self, telling: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(telling)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self, who: str, url: str, message: Mapping[str, object]) -> None:
        for wait in WAITS:
            if wait:
                await asyncio.sleep(wait)
            try:
                await self._client.ask("POST", f"{url}/notify", message)
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
        try:
            health = json.loads(await self._client.ask("GET", f"{url}/health"))
        except (OSError, ValueError):
            self.reachable[who] = False
            return False
        self.reachable[who] = True
        return (
            isinstance(health, dict)
            and health.get("id") == who
            and health.get("file") == file
            and bool(health.get("working_on"))
        )

    async def stop(self, dialog: Dialog | None, reason: str) -> None:
        """Ask every peer to stop too; they do not pass it on."""

        async def ask(url: str) -> None:
            with suppress(OSError):
                await self._client.ask("POST", f"{url}/stop", {"hop": 1, "reason": reason})

        asked = [asyncio.ensure_future(ask(url)) for url in self.of(dialog).values()]
        if asked:
            _, late = await asyncio.wait(asked, timeout=STOP_ANSWER)
            for task in late:
                task.cancel()

    async def close(self) -> None:
        """Give up what is under way and close the connections."""
        for task in list(self._tasks):
            task.cancel()
        self._client.close()


class _Client:
    """HTTP/1.1 to daemons, over connections that are kept. A general client would be the dearest part of a turn."""

    def __init__(self) -> None:
        self._idle: dict[str, list[_Connection]] = {}

    async def ask(self, method: str, url: str, message: Mapping[str, object] | None = None) -> bytes:
        """The body of the answer, whatever its status. Raises `OSError` when there is none within a second."""
        target = urlsplit(url)
        body = b"" if message is None else json.dumps(message).encode()
        kept = self._idle.setdefault(target.netloc, [])
        async with asyncio.timeout(ANSWER):
            while kept:
                # Its other end may have been closed meanwhile; then a new connection is asked the same.
                with suppress(OSError):
                    return await self._over(kept.pop(), method, target, body)
            return await self._over(await _Connection.open(target), method, target, body)

    async def _over(self, connection: _Connection, method: str, target: SplitResult, body: bytes) -> bytes:
        try:
            answer = await connection.ask(method, target, body)
        except BaseException:
            connection.close()
            raise
        if connection.is_reusable:
            self._idle[target.netloc].append(connection)
        else:
            connection.close()
        return answer

    def close(self) -> None:
        """Close the connections that are kept."""
        for connections in self._idle.values():
            while connections:
                connections.pop().close()


class _Connection:
    """One connection to a daemon, for one question at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.is_reusable = False

    @classmethod
    async def open(cls, target: SplitResult) -> _Connection:
        """Connect; raises `OSError`."""
        try:
            return cls(*await asyncio.open_connection(target.hostname, target.port))
        except ValueError as error:
            raise ConnectionError(f"{target.netloc}: {error}") from error

    async def ask(self, method: str, target: SplitResult, body: bytes) -> bytes:
        """Send one request and read the body of its answer; raises `OSError` when none comes that makes sense."""
        self.is_reusable = False
        kind = "Content-Type: application/json\r\n" if body else ""
        head = f"{method} {target.path} HTTP/1.1\r\nHost: {target.netloc}\r\n{kind}Content-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        try:
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = _LENGTH.search(head)
            if length is None or not head.startswith("http/1.1 ") or int(length[1]) > LARGEST:
                raise ConnectionError(f"{target.netloc} gave an answer that no daemon gives")
            answer = await self._reader.readexactly(int(length[1]))
        except (EOFError, asyncio.LimitOverrunError) as error:
            raise ConnectionError(f"{target.netloc} gave no whole answer") from error
        self.is_reusable = "\r\nconnection: close\r\n" not in head and not self._reader.at_eof()
        return answer

    def close(self) -> None:
        """Close it at once."""
        self._writer.transport.abort()

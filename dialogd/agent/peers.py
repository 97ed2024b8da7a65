"""The only module that calls other daemons: loopback addresses only, never waiting for one that does not answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from dialogd.errors import BadInput, NotRunning
from dialogd.protocol.header import LOOPBACK_URL
from dialogd.protocol.state import Dialog
from dialogd.store.child import end_tasks

if TYPE_CHECKING:
    import httpx2

WAITS = (0.0, 0.2, 1.0)  # seconds before each attempt to tell a peer
ANSWER = 1.0  # seconds a peer has to answer
START = 3.0  # seconds until an event stream begins
QUIET = 40.0  # seconds of silence after which a stream is dead: a daemon says something every 15
NO_WAIT = "respond-async"  # Prefer (RFC 7240): a peer is not kept waiting for what comes of its notify
NOT_MINE = 409  # the status with which a daemon refuses what names another dialog
STOP_ANSWER = 0.5  # and to a stop, which is done in under a second whatever a peer does

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Peers:
    """The daemons of the other agents at `file`: those that `running` knows, else where the header says.

    `overrides` are this daemon's own flags, which come first; `running` gives addresses by agent id.
    """

    def __init__(
        self, me: str, overrides: Mapping[str, str], file: str = "", running: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self.me = me
        self.file = file
        self.overrides = dict(overrides)
        self._running = running
        self.reachable: dict[str, bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._kept: dict[str, Connection] = {}  # one to each address that is idle
        self._client: httpx2.AsyncClient | None = None

    @property
    def own(self) -> str:
        """This daemon's address; "" where unknown."""
        return self._running().get(self.me, "").replace("//127.0.0.1:", "//localhost:")

    def of(self, dialog: Dialog | None) -> dict[str, str]:
        """Agent id -> address of every other daemon."""
        running = self._running()
        urls = {**running}
        if dialog is not None and dialog.state.hand.keys is None:  # else those in the header are of other machines
            urls = {agent.id: running.get(agent.id, agent.url) for agent in dialog.header.agents}
        urls.update(self.overrides)
        urls.pop(self.me, None)
        return {who: url.replace("//localhost:", "//127.0.0.1:").rstrip("/") for who, url in urls.items()}

    # -- telling: a hint that may get lost ------------------------------------------------------------------------

    def tell(self, dialog: Dialog | None) -> None:
        """Tell peers that the file is worth a look, without waiting for them."""
        for who, url in self.of(dialog).items():
            self._tell(who, url, dialog)

    def start(self, dialog: Dialog) -> None:
        """Pass a person's notify on to those who owe a turn: it starts the dialog there too."""
        for who, url in self.of(dialog).items():
            if who in dialog.state.owing:
                self._tell(who, url, dialog, start=True)

    def _tell(self, who: str, url: str, dialog: Dialog | None, *, start: bool = False) -> None:
        """Send a hint; over a connection that was kept at once, before anything else is done here.

        By hand, because an HTTP library costs more than all the rest of a turn.
        """
        body = json.dumps({"from": self.me, **({"start": True} if start else {}), **self._meant(dialog)})
        head = f"POST /notify HTTP/1.1\r\nHost: {url.partition('//')[2]}\r\nPrefer: {NO_WAIT}\r\n"
        hint = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
        kept = self._kept.pop(url, None)
        if kept is not None and kept[0].at_eof():
            kept[1].close()
            kept = None
        if kept is not None:
            kept[1].write(hint)
        self.spawn(self._hint(who, url, hint, kept))

    async def _hint(self, who: str, url: str, hint: bytes, sent: Connection | None) -> None:
        """See that a hint arrives, which was `sent` over a connection; send it again where that fails."""
        for wait in WAITS:
            await asyncio.sleep(wait if sent is None else 0)
            try:
                async with asyncio.timeout(ANSWER):
                    if sent is None:
                        sent = await self._connect(url)
                        sent[1].write(hint)
                    self.reachable[who] = await self._answer(url, sent) != NOT_MINE
            except (OSError, EOFError, ValueError, LookupError, asyncio.LimitOverrunError):
                self.reachable[who] = False
            if self.reachable[who]:
                return
            sent = None

    async def _connect(self, url: str) -> Connection:
        if (address := LOOPBACK_URL.fullmatch(url)) is None:
            raise OSError(f"{url} is no loopback address")
        return await asyncio.open_connection(address[1].strip("[]"), int(address[2]))

    async def _answer(self, url: str, connection: Connection) -> int:
        """The status of a daemon's answer to a hint; the connection is kept: every turn has one."""
        reader, writer = connection
        try:
            first, *headers = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
            values = dict(line.split(b": ", 1) for line in headers if b": " in line)
            await reader.readexactly(int(values[b"content-length"]))
            status = int(first.split()[1])
        except BaseException:
            writer.transport.abort()
            raise
        if url in self._kept or values.get(b"connection") == b"close":
            writer.close()
        else:
            self._kept[url] = connection
        return status

    def spawn(self, telling: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run something in the background, at most until `close`."""
        task = asyncio.ensure_future(telling)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- asking ---------------------------------------------------------------------------------------------------

    async def working(self, dialog: Dialog, agents: Iterable[str], file: str) -> frozenset[str]:
        """Those of `agents` whose own daemon says that it works on a turn of this very file."""
        found = await self.healths(dialog, file, agents)
        return frozenset(who for who, health in found.items() if (health or {}).get("working_on"))

    async def healths(
        self, dialog: Dialog | None, file: str, agents: Iterable[str] | None = None
    ) -> dict[str, dict[str, Any] | None]:
        """The health of every other daemon, or of these, by agent id; None for one that does not answer for it."""
        urls = {who: url for who, url in self.of(dialog).items() if agents is None or who in agents}
        answers = await asyncio.gather(*(self._health(who, url, file) for who, url in urls.items()))
        return dict(zip(urls, answers, strict=True))

    async def _health(self, who: str, url: str, file: str) -> dict[str, Any] | None:
        """The answer of `GET /health` of `who`'s daemon; None when there is none, or it is another's."""
        try:
            health = json.loads(await self._ask(who, "GET", f"{url}/health"))
        except (OSError, ValueError):
            self.reachable[who] = False
            return None
        if not isinstance(health, dict) or (health.get("id"), health.get("file")) != (who, file):
            return None
        return health

    async def approve_call(self, dialog: Dialog, who: str, call: str, *, refuse: bool) -> dict[str, Any]:
        """Pass the person's answer about a call of a tool on to `who`'s daemon; what that says.

        Raises `BadInput` as that daemon does, and `NotRunning` where none answers.
        """
        message = {"call": call, "refuse": refuse, **self._meant(dialog)}
        try:
            said = json.loads(await self._ask(who, "POST", f"{self.of(dialog)[who]}/approve-call", message))
            if "detail" in said:
                raise BadInput(str(said["detail"]), fix=str(said.get("fix", "")))
            return dict(said)
        except (OSError, KeyError, ValueError) as error:
            fix = f"`dialogd status` says whether it runs: {error}"
            raise NotRunning(f"the daemon of {who} does not answer", fix=fix) from None

    async def stop(self, dialog: Dialog | None, reason: str) -> None:
        """Ask every peer to stop too; they do not pass it on."""
        message = {"hop": 1, "reason": reason, **self._meant(dialog)}
        asked = [
            asyncio.ensure_future(self._ask(who, "POST", f"{url}/stop", message))
            for who, url in self.of(dialog).items()
        ]
        if asked:
            _, late = await asyncio.wait(asked, timeout=STOP_ANSWER)
            for task in late:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    def _meant(self, dialog: Dialog | None) -> dict[str, str]:
        """The file and dialog in a request, by which a daemon of another dialog refuses it."""
        named = {"file": self.file, "dialog": dialog.id if dialog is not None else ""}
        return {name: value for name, value in named.items() if value}

    async def _ask(self, who: str, method: str, url: str, message: Mapping[str, object] | None = None) -> bytes:
        """The body of the answer of `who`'s daemon. Raises `OSError` without one in a second, and for "not mine"."""
        import httpx2

        try:
            if LOOPBACK_URL.fullmatch(url.rpartition("/")[0]) is None:
                raise OSError(f"{url} is no loopback address")
            async with asyncio.timeout(ANSWER):
                answer = await self._http().request(method, url, json=message)
            if answer.status_code == NOT_MINE:
                raise OSError("the daemon of another dialog answers there")
        except (OSError, httpx2.HTTPError) as error:
            self.reachable[who] = False
            raise OSError(str(error)) from error
        self.reachable[who] = True
        return answer.content

    async def listen(self, url: str) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
        """What that daemon's event stream says as it comes, its own events only.

        Raises `OSError` when it does not answer with one, or has been silent for too long.
        """
        import httpx2

        http, headers = self._http(), {"Accept": "text/event-stream"}
        asked = http.build_request("GET", f"{url}/events", headers=headers, timeout=httpx2.Timeout(ANSWER, read=QUIET))
        try:
            async with asyncio.timeout(START):
                answer = await http.send(asked, stream=True)
            async with aclosing(answer):
                if answer.status_code != 200:
                    raise OSError(f"status {answer.status_code}")
                async for event in httpx2.EventSource(answer, max_event_size=None):
                    yield event
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
        await end_tasks(*self._tasks)
        for _, writer in self._kept.values():
            writer.transport.abort()
        await asyncio.sleep(0)
        if self._client is not None:
            await self._client.aclose()

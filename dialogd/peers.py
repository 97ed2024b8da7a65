"""The only module that calls other daemons. Loopback addresses only; whoever does not answer is gone on without."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterable, Mapping

import httpx2

from dialogd.protocol.model import Dialog

WAITS = (0.0, 0.2, 1.0)  # seconds before each attempt to tell a peer
ANSWER = 1.0  # seconds a peer has to answer


class Peers:
    """The other agents' daemons, by the header's addresses; `overrides` are this daemon's own flags."""

    def __init__(self, me: str, overrides: Mapping[str, str]) -> None:
        self.me = me
        self.overrides = dict(overrides)
        self.reachable: dict[str, bool] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._client: httpx2.AsyncClient | None = None

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
        body = json.dumps(message).encode()
        for wait in WAITS:
            if wait:
                await asyncio.sleep(wait)
            try:
                await self._http.post(f"{url}/notify", content=body, headers={"content-type": "application/json"})
            except httpx2.HTTPError:
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
            health = (await self._http.get(f"{url}/health")).json()
        except (httpx2.HTTPError, ValueError):
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
            try:
                await self._http.post(f"{url}/stop", json={"hop": 1, "reason": reason})
            except httpx2.HTTPError:
                return

        await asyncio.gather(*(ask(url) for url in self.of(dialog).values()))

    @property
    def _http(self) -> httpx2.AsyncClient:
        if self._client is None:
            # trust_env off: a proxy from the environment must never see loopback traffic.
            self._client = httpx2.AsyncClient(timeout=ANSWER, trust_env=False, verify=False)
        return self._client

    async def close(self) -> None:
        """Give up what is under way and close the connections."""
        for task in list(self._tasks):
            task.cancel()
        if self._client is not None:
            await self._client.aclose()
            self._client = None

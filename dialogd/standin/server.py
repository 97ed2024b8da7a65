"""The stand-in itself: a server on 127.0.0.1 with a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType

from dialogd.standin.answers import Script
from dialogd.standin.connection import Connection
from dialogd.standin.form import Json
from dialogd.standin.play import Step, json_body, play, whole
from dialogd.standin.seen import FORMS, Seen

MOST_SEEN = 2000
MOST_BYTES = 64 * 1024 * 1024  # of the requests that are kept
MOST_CONNECTIONS = 256


class StandIn:
    """Stands in for a model API until it is closed; `script` says what each request to a model is answered.

        with StandIn(in_order(Fail(529), Say("Hello."))) as server:
            client = AsyncAnthropic(base_url=server.url, api_key="fake")

    It speaks Messages, Chat Completions, Responses and generateContent, and answers by itself what asks no model
    (lists of models, counts of tokens). The script runs in the server's thread, one call at a time, and must not
    block; what it raises is raised again at the end of the `with`. With `key` every other key is refused.
    """

    def __init__(self, script: Script, *, key: str = "", models: tuple[str, ...] = ("stand-in",)) -> None:
        self._script = script
        self._key = key
        self._models = models
        self._seen: deque[Seen] = deque()
        self._lock = threading.Lock()
        self._bytes = 0
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []
        # With its protocol named, asyncio answers at once; else each answer on a kept connection waits for 40 ms.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="stand-in", daemon=True)
        self._thread.start()

    def __enter__(self) -> StandIn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None and self._failures:
            raise self._failures[0]

    @property
    def seen(self) -> list[Seen]:
        """The requests so far, oldest first; the oldest are forgotten beyond 2,000 or 64 MB."""
        with self._lock:
            return list(self._seen)

    @property
    def calls(self) -> list[Seen]:
        """Those that asked a model."""
        return [seen for seen in self.seen if seen.form]

    @property
    def open(self) -> int:
        """How many connections there are."""
        return len(self._tasks)

    def close(self) -> None:
        """End everything at once, hanging connections too. Does nothing when it was closed."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._socket)
        await self._closing.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        task = self._loop.create_task(Connection(reader, writer, self._answer).serve())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failures.append(error)

    def _answer(self, method: str, target: str, headers: dict[str, str], raw: bytes) -> Iterator[Step]:
        """Note a request and decide what it is answered."""
        path, _, query = target.partition("?")
        self._count += 1
        seen = Seen(method, path, headers, raw, time.monotonic(), self._count, query)
        self._remember(seen)
        if self._key and seen.key != self._key:
            form = FORMS.get(seen.form, FORMS["chat"])
            return json_body(form.failure(401, "", "This is not the key that the stand-in was given."), 401)
        if not seen.form:
            return self._by_itself(seen)
        if seen.body is None:
            return json_body(FORMS[seen.form].failure(400, "", "The body is no JSON object."), 400)
        return play(seen, self._script(seen))

    def _remember(self, seen: Seen) -> None:
        with self._lock:
            self._seen.append(seen)
            self._bytes += len(seen.raw)
            while len(self._seen) > MOST_SEEN or (self._bytes > MOST_BYTES and len(self._seen) > 1):
                self._bytes -= len(self._seen.popleft().raw)

    def _by_itself(self, seen: Seen) -> Iterator[Step]:
        """What asks no model: lists of models, counts of tokens, a look whether anybody is there."""
        if seen.path == "/" or (seen.method == "HEAD" and not seen.path.strip("/")):
            return whole(200, "text/plain", b"stand-in\n")
        if seen.path.endswith("/count_tokens") and seen.method == "POST":
            return json_body({"input_tokens": len(seen.raw) // 4})
        if seen.path.endswith(":countTokens") and seen.method == "POST":
            return json_body({"totalTokens": len(seen.raw) // 4})
        if seen.method in ("GET", "HEAD") and (found := self._list(seen.path)) is not None:
            return json_body(found)
        return json_body(FORMS["messages"].failure(404, "", f"{seen.method} {seen.path} is not here."), 404)

    def _list(self, path: str) -> Json | None:
        """A list of models, as whoever asks expects it."""
        if path == "/api/version":
            return {"version": "0.0.0"}
        if path == "/api/tags":
            return {"models": [{"name": name, "model": name} for name in self._models]}
        if path == "/v1beta/models":
            return {"models": [{"name": f"models/{name}"} for name in self._models]}
        if not path.endswith("/models"):
            return None
        entry = {"object": "model", "type": "model", "created": 1_700_000_000, "owned_by": "stand-in"}
        data = [{"id": name, "display_name": name, **entry} for name in self._models]
        ends = {"first_id": self._models[0], "last_id": self._models[-1]} if data else {}
        return {"object": "list", "data": data, "has_more": False, **ends}

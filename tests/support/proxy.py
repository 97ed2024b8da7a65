"""A network that can be made worse: carries TCP or Unix connections, and delays, freezes or cuts them when told to.

In the process of the tests, in a thread of its own:

    with Proxy(target) as proxy:        # to a (host, port) or the path of a Unix socket
        connect(proxy.port)
        proxy.freeze()

As a process of its own, for instance in another network namespace, told by lines on its standard input:

    python -m tests.support.proxy 127.0.0.1:7000 /tmp/server.sock <<< 'delay 40'
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

Address = tuple[str, int] | str | Path


class Proxy:
    """Carries connections from `listen` to `target`; what is said to it counts for all connections, also later ones."""

    def __init__(self, target: Address, listen: Address = ("127.0.0.1", 0)) -> None:
        self.target = target
        self.connections = 0  # how many were ever made
        self._delay = 0.0
        self._loses_answers = False
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._flows.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.port = self._do(self._listen(listen))

    def delay(self, milliseconds: float) -> None:
        """Whatever is sent arrives this much later, in each direction."""
        self._delay = milliseconds / 1000

    def freeze(self) -> None:
        """From now on nothing arrives, and nobody is told: as if the network had gone, or the peer were stopped."""
        self._call(self._flows.clear)

    def thaw(self) -> None:
        """End of `freeze`: what was sent meanwhile arrives."""
        self._call(self._flows.set)

    def cut(self) -> None:
        """End all connections; new ones can be made."""
        self._call(self._cut)

    def lose_answers(self, loses: bool = True) -> None:
        """The next bytes that the target sends do not arrive: both connections end instead. Once; False: not at all."""
        self._loses_answers = loses

    def close(self) -> None:
        """End all connections and take no more."""
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- in its thread ----------------------------------------------------------------------------------------------

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def _call(self, work: Callable[[], object]) -> None:
        async def call() -> None:
            work()

        self._do(call())

    async def _listen(self, listen: Address) -> int:
        if isinstance(listen, tuple):
            self._server = await asyncio.start_server(self._connected, *listen)
            port: int = self._server.sockets[0].getsockname()[1]
            return port
        self._server = await asyncio.start_unix_server(self._connected, listen)
        return 0

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there = writer
        try:
            await self._flows.wait()
            if isinstance(self.target, tuple):
                reader_there, there = await asyncio.open_connection(*self.target)
            else:
                reader_there, there = await asyncio.open_unix_connection(self.target)
            self._open |= {writer, there}
            ways = [self._carry(reader, there, False), self._carry(reader_there, writer, True)]
            tasks = {self._loop.create_task(way) for way in ways}
            self._tasks |= tasks
            await asyncio.wait(tasks)
            self._tasks -= tasks
        except (OSError, asyncio.CancelledError):
            pass  # nobody listens there, or this is the end: the client sees its connection end
        finally:
            self._abort(writer, there)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool) -> None:
        """One direction, until one end closes; bytes on their way do not wait for each other, as in a long cable."""
        cable: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def arrive() -> None:
            while True:
                due, data = await cable.get()
                await asyncio.sleep(due - self._loop.time())
                await self._flows.wait()
                if not data:
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()

        arriving = self._loop.create_task(arrive())
        with suppress(OSError):
            while True:
                data = await reader.read(65536)
                if is_answer and self._loses_answers and data:
                    self._loses_answers = False
                    self._abort(writer)
                    break
                cable.put_nowait((self._loop.time() + self._delay, data))
                if not data:
                    break
                await self._flows.wait()
        with suppress(OSError):
            if writer.is_closing():
                arriving.cancel()
            await arriving

    def _abort(self, *writers: asyncio.StreamWriter) -> None:
        for writer in writers:
            self._open.discard(writer)
            writer.transport.abort()

    def _cut(self) -> None:
        self._abort(*self._open)
        for task in self._tasks:
            task.cancel()

    async def _end(self) -> None:
        self._server.close()
        self._flows.set()
        self._cut()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    return (host, int(port)) if colon and "/" not in text else text


def main() -> None:
    """`LISTEN TARGET`, then lines: `delay 40`, `freeze`, `thaw`, `cut`, `lose_answers`; to the end of the input."""
    with Proxy(_address(sys.argv[2]), _address(sys.argv[1])) as proxy:
        print(proxy.port, flush=True)
        for line in sys.stdin:
            wish, *values = line.split()
            getattr(proxy, wish)(*map(float, values))
            print("done", flush=True)


if __name__ == "__main__":
    main()

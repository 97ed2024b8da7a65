"""uvicorn as a part of the daemon: guarded, quiet, owns no signals, ends in under a second with open streams."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager, suppress

import uvicorn
from starlette.types import ASGIApp

from dialogd.server.callers import UidOf, choose_lookup
from dialogd.server.guard import Guard, Limits
from dialogd.server.http_protocol import GuardedConfig, HttpProtocol
from dialogd.server.listen import BACKLOG, bind

__all__ = ["Server", "bind", "make_server"]

log = logging.getLogger("dialogd.server")

CALLBACK_SECONDS = 0.5
LOOK_SECONDS = 0.5


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
        await self._run_callbacks()
        await super().shutdown(sockets)

    async def _run_callbacks(self) -> None:
        tasks = [asyncio.ensure_future(callback()) for callback in self.on_shutdown]
        if not tasks:
            return
        done, late = await asyncio.wait(tasks, timeout=CALLBACK_SECONDS)
        for task in late:
            task.cancel()
            log.warning("a part of the daemon did not end in %s s and is left behind", CALLBACK_SECONDS)
        for task in done:
            if (error := task.exception()) is not None:
                log.error("a part of the daemon failed while it ended", exc_info=error)


def make_server(
    app: ASGIApp,
    listener: socket.socket,
    *,
    on_shutdown: Iterable[Callable[[], Awaitable[None]]] = (),
    limits: Limits | None = None,
    find_lookup: Callable[[], UidOf | None] = choose_lookup,
) -> Server:
    """Put the guard around `app` and return its server for `listener` (see `bind`); run it with `serve()`.

    `on_shutdown` callbacks end whatever would keep a response open; they get half a second.
    `find_lookup` returns the way to look up a caller's uid, None to let every local user in.
    """
    limits = limits or Limits()
    config = GuardedConfig(
        Guard(app, listener.getsockname()[1], limits),
        limits=limits,
        uid_of=find_lookup(),
        http=HttpProtocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=limits.header_bytes,
    )
    return Server(config, listener, on_shutdown)

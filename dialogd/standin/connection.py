"""One connection to the stand-in: HTTP by h11, steps carried out as they are told, faults and all."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus

import h11

from dialogd.standin.play import Close, Head, Noise, Rest, Step

READ = 256 * 1024
MOST_BODY = 32 * 1024 * 1024
MOST_HEADER = 256 * 1024

Answering = Callable[[str, str, dict[str, str], bytes], Iterator[Step]]


class _Over(Exception):
    """The connection is over: the client left, or the steps say so."""


class Connection:
    """Serves one client; `answer` turns method, target, headers and body into steps."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answering) -> None:
        self._reader = reader
        self._writer = writer
        self._answer = answer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEADER)
        writer.transport.set_write_buffer_limits(high=0)

    async def serve(self) -> None:
        """Answer request after request until one side has enough. Raises what `answer` raises."""
        try:
            with suppress(_Over, h11.RemoteProtocolError, ConnectionError):
                while True:
                    await self._one()
                    if (self._http.our_state, self._http.their_state) != (h11.DONE, h11.DONE):
                        break
                    self._http.start_next_cycle()
        finally:
            self._writer.transport.abort()

    async def _one(self) -> None:
        request, body = await self._request()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
        method, target = request.method.decode("ascii"), request.target.decode("latin-1")
        for step in self._answer(method, target, headers, body):
            if not (isinstance(step, bytes) and method == "HEAD"):
                await self._do(step)
        await self._send(h11.EndOfMessage())

    async def _request(self) -> tuple[h11.Request, bytes]:
        """The next request with all of its body."""
        request, parts, size = None, [], 0
        while True:
            event = await self._event()
            if isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
                size += len(event.data)
                if size > MOST_BODY:
                    raise _Over
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                return request, b"".join(parts)
            else:
                raise _Over

    async def _event(self) -> object:
        """The next thing that the client sends."""
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(await self._reader.read(READ))

    async def _do(self, step: Step) -> None:
        match step:
            case Head():
                await self._send(h11.Response(status_code=step.status, headers=_headers(step), reason=_reason(step)))
            case bytes():
                await self._send(h11.Data(data=step))
            case Noise():
                await self._write(step.data)
            case Rest():
                await self._rest(step.seconds)
            case Close.RESET:
                # A linger time of zero turns the closing into a reset.
                raw: socket.socket = self._writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raise _Over
            case Close.BREAK:
                raise _Over

    async def _send(self, event: h11.Event) -> None:
        if data := self._http.send(event):
            await self._write(data)

    async def _write(self, data: bytes) -> None:
        """Hand the bytes to the system, so that a closing afterwards does not lose them."""
        self._writer.write(data)
        await self._writer.drain()

    async def _rest(self, seconds: float) -> None:
        """Let time pass; a client that leaves ends it."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    data = await self._reader.read(READ)
            except TimeoutError:
                return
            if not data:
                raise _Over
            self._http.receive_data(data)


def _headers(head: Head) -> list[tuple[str, str]]:
    """What services send along, and how the body comes."""
    known = [("content-type", head.type), ("request-id", "req_standin"), ("x-request-id", "req_standin")]
    size = [] if head.length is None else [("content-length", str(head.length))]
    return [*known, *size, *head.headers]


def _reason(head: Head) -> str:
    try:
        return HTTPStatus(head.status).phrase
    except ValueError:
        return "Overloaded"

"""An ACP agent on its leash, and the JSON messages that go to it and come from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dialogd.backends.child import STDERR_TAIL, Child

LINE_CAP = 16 * 1024 * 1024  # bytes of one message
PATIENCE = 0.2  # seconds for the last words on stderr
NOISE_CAP = 64 * 1024  # bytes on stdout that are no message: a banner is let pass, a flood is not

# What an agent reports while it works, as far as it matters here; everything else is dropped unread.
_HEARD = frozenset({"agent_message_chunk", "tool_call", "usage_update"})


class Wire(Child):
    """A running agent; for the ACP package a `Transport`, by `send`, `receive` and `close`.

    It is served by the event loop, also between turns. Whoever made one awaits `end()`, whatever happens.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], cwd: Path) -> None:
        """Start the agent (its first word is a path). Raises OSError when no process can be started."""
        super().__init__(command, b"", environment, cwd)
        self._reader = asyncio.StreamReader(limit=LINE_CAP)
        self._ends: list[asyncio.BaseTransport] = []
        self._stdin: asyncio.WriteTransport | None = None
        self._noise = 0
        self.is_drained = asyncio.Event()
        self.over = False
        self.trouble = ""

    async def open(self) -> None:
        """Connect the pipes to the event loop."""
        loop, process = asyncio.get_running_loop(), self._process
        reader = asyncio.StreamReaderProtocol(self._reader)
        self._stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, process.stdin)
        self._ends.append(self._stdin)
        self._ends.append((await loop.connect_read_pipe(lambda: reader, process.stdout))[0])
        self._ends.append((await loop.connect_read_pipe(lambda: _Tail(self), process.stderr))[0])

    async def send(self, message: dict[str, Any]) -> None:
        """Write one message. Raises ConnectionError when the agent reads no more."""
        if self._stdin is None or self._stdin.is_closing():
            raise ConnectionError("the agent reads no more")
        self._stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end, of which `trouble` says the cause unless it is the agent's exit."""
        while not self.over:
            await asyncio.sleep(0)  # an agent that never pauses must not keep the loop
            line = await self._line()
            message = _message(line)
            if message is not None and _is_heard(message):
                return message
            if message is None and line.strip():
                self._note(line)
        return None

    async def close(self) -> None:
        """Nothing: `end` does it."""

    async def drained(self) -> None:
        """Wait until an agent that is gone has said its last on stderr."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.is_drained.wait(), PATIENCE)

    async def end(self) -> int:
        """End the agent and everything it started; the exit code. Takes under half a second, may be called twice."""
        self.over = True
        self._leash_is_gone()  # asks for `errno`
        for transport in self._ends:
            if isinstance(transport, asyncio.WriteTransport) and not transport.is_closing():
                transport.abort()
            elif not transport.is_closing():
                transport.close()
        self._ends.clear()
        return await super().end()

    async def _line(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            self.over = True
            return error.partial
        except asyncio.LimitOverrunError:
            self.over = True
            self.trouble = f"sent a message of over {LINE_CAP // 1024 // 1024} MiB"
            return b""

    def _note(self, line: bytes) -> None:
        self._noise += len(line)
        if self._noise > NOISE_CAP:
            self.over = True
            self.trouble = "prints on stdout what is no message of the protocol"


class _Tail(asyncio.Protocol):
    """Keeps the end of what an agent says on stderr."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def data_received(self, data: bytes) -> None:
        self._wire.stderr = (self._wire.stderr + data)[-STDERR_TAIL:]

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.is_drained.set()


def _message(line: bytes) -> dict[str, Any] | None:
    """The JSON-RPC message on a line; None where there is none that can be understood."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("id"), str | int | None):
        return None
    if not isinstance(value.get("error"), dict | None) or not isinstance(value.get("method"), str | None):
        return None
    if "method" not in value and "id" not in value:
        return None
    return _whole(value) if rb"\u" in line else value


def _is_heard(message: dict[str, Any]) -> bool:
    if message.get("method") != "session/update":
        return True
    params = message.get("params")
    update = params.get("update") if isinstance(params, dict) else None
    return isinstance(update, dict) and update.get("sessionUpdate") in _HEARD


def _whole(value: Any) -> Any:
    """The same with every half of a surrogate pair replaced: no such text can be written or hashed."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    return value

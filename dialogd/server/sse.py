"""Reading an event stream that somebody else writes: bounded, strict, and nothing kept of what is not wanted."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

LARGEST = 8 * 1024 * 1024  # bytes of one event


class Garbled(Exception):
    """It is no stream of events as daemons send it; the message says why, of the agent that it is to be of."""


class Reader:
    """Takes bytes and gives events of the `wanted` kinds; others are not even parsed."""

    def __init__(self, wanted: Collection[str]) -> None:
        self._wanted = wanted
        self._rest: list[bytes] = []
        self._kind = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
        """The events that are whole now: kind and data. Raises `Garbled`."""
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            whole = b"".join((*self._rest, line)).removesuffix(b"\r")
            self._rest.clear()
            self._count(len(line) + 1)
            if whole:
                self._line(whole)
                continue
            if self._kind in self._wanted:
                yield self._kind, _object(b"\n".join(self._data))
            self._kind, self._data, self._size = "", [], 0
        if rest:
            self._rest.append(rest)
            self._count(len(rest))

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > LARGEST:
            raise Garbled(f"its daemon sent an event of over {LARGEST // 1024 // 1024} MiB")

    def _line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._kind = value.decode("ascii", "replace")
        elif name == b"data":
            self._data.append(value)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Garbled("its daemon sends events that are no JSON objects")
    return value

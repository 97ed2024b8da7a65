"""What the four wire formats have in common: what is read from a request, what is told in an answer."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias

Json: TypeAlias = dict[str, Any]

SMALLEST_PIECE = 16  # characters of one event
MOST_PIECES = 200
THINKERS = frozenset({"assistant", "model"})


@dataclass(frozen=True, slots=True)
class Said:
    """What a request holds: the system prompt, (role, text) of each message, results of tools, tools offered."""

    system: str
    messages: tuple[tuple[str, str], ...]
    results: tuple[tuple[bool, str], ...] = ()
    tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """What is answered. `tool` is (name, input); `number` tells one request's ids from another's.

    Thoughts that are sealed are not shown, and come back all the same.
    """

    model: str
    number: int
    text: str
    stop: str
    tokens_in: int
    tokens_out: int
    cached: int = 0
    cache_write: int = 0
    thinking: str = ""
    is_sealed: bool = False
    tool: tuple[str, Mapping[str, Any] | str] | None = None
    boundary: int = 0  # a piece of the text ends after so many characters

    @property
    def seal(self) -> str:
        """What the service has sealed its thoughts with."""
        return base64.b64encode(hashlib.sha256(f"{self.number} {self.thinking}".encode()).digest()).decode()

    def pieces(self) -> Iterator[str]:
        step = max(SMALLEST_PIECE, len(self.text) // MOST_PIECES)
        for part in (self.text[: self.boundary], self.text[self.boundary :]):
            yield from (part[start : start + step] for start in range(0, len(part), step))


class Stage(Enum):
    """Where in a stream an event stands: before the text, in it, after it."""

    OPENING = 0
    TEXT = 1
    CLOSING = 2


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream, as it goes over the wire; `carries` characters of the text."""

    data: bytes
    stage: Stage = Stage.OPENING
    carries: int = 0


class Form(Protocol):
    """One wire format. `read` raises nothing: what it does not know it leaves out.

    `objection` says what is wrong with a request in which a call comes back without what the model thought before it,
    by the number of the reply; "" where nothing is.
    """

    def read(self, body: Json) -> Said: ...

    def objection(self, body: Json, thoughts: Mapping[int, Reply]) -> str: ...

    def stream(self, reply: Reply, body: Json) -> Iterator[Event]: ...

    def plain(self, reply: Reply, body: Json) -> object: ...

    def failure(self, status: int, kind: str, message: str) -> Json: ...

    def error_event(self, kind: str, message: str, failed: bool) -> bytes: ...


def number_in(id: object) -> int:
    """The number of the reply that an id of the stand-in's was given in; 0 for any other id."""
    found = re.fullmatch(r"[a-z]+_standin(\d{6})", str(id))
    return int(found[1]) if found else 0


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def sse(value: object, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    data = value if isinstance(value, str) else compact(value)
    return f"{head}data: {data}\n\n".encode()


def dicts(value: object) -> list[Json]:
    """The objects in a JSON list; nothing for anything else."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def text_of(content: object) -> str:
    """The text of a message's content: a text, or the text of its parts."""
    if isinstance(content, str):
        return content
    return "\n".join(text for part in dicts(content) if isinstance(text := part.get("text"), str))


def strings(values: Sequence[object]) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str))


def since_the_model(messages: Sequence[Json]) -> list[Json]:
    last = max((i for i, message in enumerate(messages) if message.get("role") in THINKERS), default=-1)
    return list(messages[last + 1 :])


def with_system(system: str, messages: Sequence[tuple[str, str]]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Move the messages that open a request and are no user's to its system prompt."""
    first = next((i for i, (role, _) in enumerate(messages) if role not in ("system", "developer")), len(messages))
    return "\n\n".join(text for text in (system, *(t for _, t in messages[:first])) if text), tuple(messages[first:])

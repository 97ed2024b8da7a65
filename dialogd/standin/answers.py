"""What a stand-in may be told to answer: a reply, a tool call, or one of the ways in which a model API fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from dialogd.standin.seen import Seen


@dataclass(frozen=True, slots=True)
class Say:
    """A reply.

    `stop` is Anthropic's word (`end_turn`, `max_tokens`, `refusal`, `content_filter` …; "" for none at all); other
    forms get their own word for it. `tokens_in` is all that was read, `cached` and `cache_write` included; by default
    a quarter of the characters. `seconds` is how long the text takes to stream.
    """

    text: str
    stop: str = "end_turn"
    tokens_in: int | None = None
    tokens_out: int | None = None
    cached: int = 0
    thinking: str = ""
    cache_write: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Use:
    """A call of a tool, after the text `say`. `input` is a text for a tool that takes plain text."""

    tool: str
    input: Mapping[str, Any] | str
    say: str = ""
    tokens_in: int | None = None
    tokens_out: int | None = None
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Fail:
    """An error status with the body that the service would send; `kind` and `message` default to what fits it.

    `retry_after` in seconds. With `html` the body is a proxy's page, with `garbage` it is broken JSON.
    """

    status: int
    kind: str = ""
    message: str = ""
    retry_after: float | None = None
    html: bool = False
    garbage: bool = False
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Drop:
    """The connection is closed before any header; with `reset` it is torn down."""

    reset: bool = False


@dataclass(frozen=True, slots=True)
class Hang:
    """The request is accepted, and nothing comes; after `seconds` the connection is closed."""

    seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection breaks off after so many characters of the text; half of them by default."""

    text: str
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Stall:
    """The stream rests for `seconds` after so many characters of the text (half by default), then goes on."""

    text: str
    after: int | None = None
    seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class EndEarly:
    """The stream ends as streams end, but in the middle: no stop reason, no closing events, no error."""

    text: str
    after: int | None = None


@dataclass(frozen=True, slots=True)
class ErrorEvent:
    """An error in the stream, after so many characters of `text` (any text, where none is given).

    With `failed` the Responses form says it as `response.failed` instead of `error`.
    """

    kind: str = "overloaded_error"
    message: str = "Overloaded"
    after: int = 0
    text: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Garbage:
    """An answer that nobody can read, under status 200.

    line   a stream with one line in it that is no JSON, complete otherwise
    utf8   a stream with a byte in it that is no UTF-8, complete otherwise
    body   broken JSON instead of an answer
    html   a page instead of an answer
    noise  bytes that are no HTTP
    """

    kind: Literal["line", "utf8", "body", "html", "noise"] = "body"
    text: str = "A text of some words."


@dataclass(frozen=True, slots=True)
class Raw:
    """Exactly this body."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"


Answer: TypeAlias = Say | Use | Fail | Drop | Hang | Cut | Stall | EndEarly | ErrorEvent | Garbage | Raw
Script: TypeAlias = "Callable[[Seen], Answer]"


def in_order(*answers: Answer) -> Script:
    """A script that gives these answers one after the other, and the last one for ever."""
    rest = list(answers)
    return lambda seen: rest.pop(0) if len(rest) > 1 else rest[0]

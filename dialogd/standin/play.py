"""From an answer to what happens on the wire, step by step; pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from dialogd.standin.answers import Answer, Cut, Drop, EndEarly, ErrorEvent, Fail, Garbage, Hang, Raw, Say, Stall, Use
from dialogd.standin.form import Event, Form, Reply, Stage, compact
from dialogd.standin.seen import FORMS, Seen

JSON, SSE, HTML = "application/json", "text/event-stream; charset=utf-8", "text/html; charset=utf-8"
PAGE = "<html><head><title>{0}</title></head><body><h1>{0}</h1><hr>stand-in</body></html>\n"
BROKEN = b'{"type": "message", "content": [{"type": "te'
NOISE = b"\x16\x03\x01\x02 this is no HTTP\r\n\r\n"
MARKED = "\ue000"  # stands in a text where a byte shall be that is no UTF-8


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers; with `length` the body's size is announced, else it comes in chunks."""

    status: int = 200
    type: str = SSE
    headers: tuple[tuple[str, str], ...] = ()
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Rest:
    """So many seconds in which nothing comes."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Noise:
    """Bytes past HTTP."""

    data: bytes


class Close(Enum):
    """An end that is none: the connection is closed, or torn down."""

    BREAK = 1
    RESET = 2


# Steps that run out end the answer in due form.
Step: TypeAlias = Head | bytes | Rest | Noise | Close


def play(seen: Seen, answer: Answer) -> Iterator[Step]:
    """The steps of an answer to this request, which asks a model."""
    form = FORMS[seen.form]
    match answer:
        case Fail():
            yield from _fail(form, answer)
        case Raw():
            yield from whole(answer.status, answer.content_type, answer.body)
        case Drop():
            yield Close.RESET if answer.reset else Close.BREAK
        case Hang():
            yield from (Rest(answer.seconds), Close.BREAK)
        case Garbage():
            yield from _garbage(form, seen, answer)
        case Say() | Use():
            yield from _told(form, seen, answer)
        case Cut() | Stall() | EndEarly() | ErrorEvent():
            yield from _broken(form, seen, answer)


def whole(status: int, type_: str, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> Iterator[Step]:
    """A body in one piece."""
    yield Head(status, type_, headers, len(body))
    yield body


def json_body(value: object, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Iterator[Step]:
    """A JSON body in one piece."""
    return whole(status, JSON, compact(value).encode(), headers)


def reply_of(seen: Seen, answer: Say | Use) -> Reply:
    """What is told, with the numbers that were not given."""
    text = answer.text if isinstance(answer, Say) else answer.say
    tokens_in = len(seen.prompt) // 4 if answer.tokens_in is None else answer.tokens_in
    tokens_out = len(text) // 4 + 1 if answer.tokens_out is None else answer.tokens_out
    model = seen.model or "stand-in"
    if isinstance(answer, Use):
        tool = (answer.tool, answer.input)
        return Reply(model, seen.number, text, "tool_use", tokens_in, tokens_out, answer.cached, tool=tool)
    return Reply(
        model,
        seen.number,
        text,
        answer.stop,
        tokens_in,
        tokens_out,
        answer.cached,
        answer.cache_write,
        answer.thinking,
    )


def _fail(form: Form, answer: Fail) -> Iterator[Step]:
    headers = answer.headers
    if answer.retry_after is not None:
        headers = (*headers, ("retry-after", f"{answer.retry_after:g}"))
    if answer.html:
        title = f"{answer.status} {answer.message or 'Bad Gateway'}"
        return whole(answer.status, HTML, PAGE.format(title).encode(), headers)
    if answer.garbage:
        return whole(answer.status, JSON, BROKEN, headers)
    return json_body(form.failure(answer.status, answer.kind, answer.message), answer.status, headers)


def _told(form: Form, seen: Seen, answer: Say | Use) -> Iterator[Step]:
    """A reply; its text takes the time that it was given."""
    reply = reply_of(seen, answer)
    seconds = answer.seconds if isinstance(answer, Say) else 0.0
    if not seen.stream:
        yield from (Rest(seconds),) if seconds else ()
        yield from json_body(form.plain(reply, seen.body or {}))
        return
    yield Head()
    pause = seconds / max(sum(1 for _ in reply.pieces()), 1)
    for event in form.stream(reply, seen.body or {}):
        if pause and event.stage is Stage.TEXT:
            yield Rest(pause)
        yield event.data


def _broken(form: Form, seen: Seen, answer: Cut | Stall | EndEarly | ErrorEvent) -> Iterator[Step]:
    """A reply up to a point, and what happens there."""
    text = answer.text or ("words and " * (answer.after or 0))[: answer.after]
    after = len(text) // 2 if answer.after is None else min(answer.after, len(text))
    reply = replace(reply_of(seen, Say(text)), boundary=after)
    if not seen.stream:
        yield from _broken_body(form, seen, answer, reply)
        return
    yield Head()
    events = form.stream(reply, seen.body or {})
    rest: list[Event] = []
    carried = 0
    for event in events:
        if event.stage is Stage.CLOSING or (event.stage is Stage.TEXT and carried >= after):
            rest.append(event)
            break
        carried += event.carries
        yield event.data
    match answer:
        case Cut():
            yield Close.BREAK
        case ErrorEvent():
            yield form.error_event(answer.kind, answer.message, answer.failed)
        case Stall():
            yield Rest(answer.seconds)
            yield from (event.data for event in (*rest, *events))


def _broken_body(form: Form, seen: Seen, answer: Cut | Stall | EndEarly | ErrorEvent, reply: Reply) -> Iterator[Step]:
    """The same for an answer in one piece: half of the body."""
    if isinstance(answer, ErrorEvent):
        yield from json_body(form.failure(500, answer.kind, answer.message), 500)
        return
    body = compact(form.plain(reply, seen.body or {})).encode()
    early = isinstance(answer, EndEarly)
    yield Head(200, JSON, (), None if early else len(body))
    yield body[: len(body) // 2]
    if isinstance(answer, Cut):
        yield Close.BREAK
    elif isinstance(answer, Stall):
        yield Rest(answer.seconds)
        yield body[len(body) // 2 :]


def _garbage(form: Form, seen: Seen, answer: Garbage) -> Iterator[Step]:
    if answer.kind == "noise":
        yield from (Noise(NOISE), Close.BREAK)
    elif answer.kind == "html":
        yield from whole(200, HTML, PAGE.format("Welcome to this network").encode())
    elif answer.kind == "body" or (answer.kind == "line" and not seen.stream):
        yield from whole(200, JSON, BROKEN)
    elif answer.kind == "line":
        yield from _with_a_bad_line(list(_told(form, seen, Say(answer.text))))
    else:
        half = len(answer.text) // 2
        marked = Say(answer.text[:half] + MARKED + answer.text[half:])
        for step in _told(form, seen, marked):
            yield step.replace(MARKED.encode(), b"\xff" * 3) if isinstance(step, bytes) else step


def _with_a_bad_line(steps: list[Step]) -> Iterator[Step]:
    """A stream with a line in its middle that is no JSON."""
    middle = len(steps) // 2
    for index, step in enumerate(steps):
        if index == middle:
            yield b"data: {not json\n\n"
        yield step

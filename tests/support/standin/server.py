"""What a stand-in may be told to answer: a reply, a tool call, or one of the ways in which a model API fails."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from http import HTTPStatus
from types import TracebackType
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qs

import h11

from tests.support.standin.chat import Chat
from tests.support.standin.form import Event, Form, Json, Reply, Said, Stage, compact
from tests.support.standin.generate_content import GenerateContent
from tests.support.standin.messages import Messages
from tests.support.standin.responses import Responses


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
    """A call of a tool, after the text `say`. `input` is a text for a tool that takes plain text.

    What was thought before it must come back unchanged with its result; so must thoughts that are sealed.
    """

    tool: str
    input: Mapping[str, Any] | str
    say: str = ""
    tokens_in: int | None = None
    tokens_out: int | None = None
    cached: int = 0
    thinking: str = ""
    is_sealed: bool = False


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

    utf8   a stream with a byte in it that is no UTF-8, complete otherwise
    body   broken JSON instead of an answer
    html   a page instead of an answer
    noise  bytes that are no HTTP
    """

    kind: Literal["utf8", "body", "html", "noise"] = "body"
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


# -- One request as the stand-in saw it, and which wire format it speaks ----------------------------------------------

FORMS: Mapping[str, Form] = {
    "messages": Messages(),
    "chat": Chat(),
    "responses": Responses(),
    "gemini": GenerateContent(),
}

_GEMINI = re.compile(r"/models/([^/:]+):(streamGenerateContent|generateContent)$")
_ENDINGS = {"/messages": "messages", "/chat/completions": "chat", "/responses": "responses"}
_NOTHING = Said("", ())


@dataclass(frozen=True)
class Seen:
    """A request. Header names are in lower case, `at` is a monotonic time in seconds, `number` counts from 1."""

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    raw: bytes = field(repr=False)
    at: float
    number: int
    query: str = ""

    @cached_property
    def body(self) -> Json | None:
        """The body as a JSON object, None when it is none."""
        try:
            value = json.loads(_unpacked(self.raw, self.headers.get("content-encoding", "")))
        except (ValueError, OSError, EOFError, zlib.error):
            return None
        return value if isinstance(value, dict) else None

    @property
    def form(self) -> str:
        """`messages`, `chat`, `responses`, `gemini`; "" for a request that asks no model."""
        if self.method != "POST":
            return ""
        if _GEMINI.search(self.path):
            return "gemini"
        return next((form for ending, form in _ENDINGS.items() if self.path.endswith(ending)), "")

    @property
    def stream(self) -> bool:
        """True when the answer is wanted as a stream."""
        if found := _GEMINI.search(self.path):
            return found[2] == "streamGenerateContent"
        return bool(self.body and self.body.get("stream"))

    @property
    def model(self) -> str:
        if found := _GEMINI.search(self.path):
            return found[1]
        return str((self.body or {}).get("model", ""))

    @property
    def key(self) -> str:
        """The key that was sent, in whichever way; "" without one."""
        named = self.headers.get("x-api-key") or self.headers.get("x-goog-api-key")
        bearer = self.headers.get("authorization", "").partition(" ")[2]
        return named or bearer or parse_qs(self.query).get("key", [""])[0]

    @cached_property
    def said(self) -> Said:
        return FORMS[self.form].read(self.body) if self.form and self.body else _NOTHING

    @property
    def system(self) -> str:
        return self.said.system

    @cached_property
    def prompt(self) -> str:
        """All text of the request's input: the system prompt, then every message, results of tools too."""
        return "\n\n".join(text for text in (self.system, *(text for _, text in self.said.messages)) if text)

    @property
    def last(self) -> str:
        return next((text for role, text in reversed(self.said.messages) if role == "user" and text), "")

    @property
    def tools(self) -> list[str]:
        return list(self.said.tools)

    @property
    def tool_results(self) -> list[tuple[bool, str]]:
        """(is an error, text) of each result of a tool since the model last spoke."""
        return list(self.said.results)


def _unpacked(raw: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.decompress(raw)
    return zlib.decompress(raw) if encoding == "deflate" else raw


# -- From an answer to what happens on the wire, step by step; pure ---------------------------------------------------

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
    yield Head(status, type_, headers, len(body))
    yield body


def json_body(value: object, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Iterator[Step]:
    return whole(status, JSON, compact(value).encode(), headers)


def reply_of(seen: Seen, answer: Say | Use) -> Reply:
    """What is told, with the numbers that were not given."""
    text = answer.text if isinstance(answer, Say) else answer.say
    tokens_in = len(seen.prompt) // 4 if answer.tokens_in is None else answer.tokens_in
    tokens_out = len(text) // 4 + 1 if answer.tokens_out is None else answer.tokens_out
    return Reply(
        seen.model or "stand-in",
        seen.number,
        text,
        "tool_use" if isinstance(answer, Use) else answer.stop,
        tokens_in,
        tokens_out,
        answer.cached,
        0 if isinstance(answer, Use) else answer.cache_write,
        answer.thinking,
        is_sealed=isinstance(answer, Use) and answer.is_sealed,
        tool=(answer.tool, answer.input) if isinstance(answer, Use) else None,
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
    elif answer.kind == "body":
        yield from whole(200, JSON, BROKEN)
    else:
        half = len(answer.text) // 2
        marked = Say(answer.text[:half] + MARKED + answer.text[half:])
        for step in _told(form, seen, marked):
            yield step.replace(MARKED.encode(), b"\xff" * 3) if isinstance(step, bytes) else step


# -- One connection to the stand-in -----------------------------------------------------------------------------------

READ = 256 * 1024
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
        request, parts = None, []
        while True:
            event = await self._event()
            if isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage) and request is not None:
                return request, b"".join(parts)
            else:
                raise _Over

    async def _event(self) -> object:
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


# -- The stand-in itself ----------------------------------------------------------------------------------------------


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
        self._seen: list[Seen] = []
        self._thoughts: dict[int, Reply] = {}  # before calls, by the number of the request
        self._lock = threading.Lock()
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
        with self._lock:
            return list(self._seen)

    @property
    def calls(self) -> list[Seen]:
        return [seen for seen in self.seen if seen.form]

    @property
    def open(self) -> int:
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
        with self._lock:
            seen = Seen(method, path, headers, raw, time.monotonic(), len(self._seen) + 1, query)
            self._seen.append(seen)
        if self._key and seen.key != self._key:
            form = FORMS.get(seen.form, FORMS["chat"])
            return json_body(form.failure(401, "", "This is not the key that the stand-in was given."), 401)
        if not seen.form:
            return self._by_itself(seen)
        if seen.body is None:
            return json_body(FORMS[seen.form].failure(400, "", "The body is no JSON object."), 400)
        if objection := FORMS[seen.form].objection(seen.body, self._thoughts):
            return json_body(FORMS[seen.form].failure(400, "", objection), 400)
        answer = self._script(seen)
        if isinstance(answer, Use) and answer.thinking:
            self._thoughts[seen.number] = reply_of(seen, answer)
        return play(seen, answer)

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

"""Model APIs by their SDKs: `anthropic` (Messages); `openai` (Responses, Chat Completions), and presets of it."""

from __future__ import annotations

import asyncio
import http.client
import importlib
import ipaddress
import json
import math
import os
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from operator import attrgetter
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import SplitResult, urlsplit

from dialogd.backends import BACKENDS, FREE, Backend, Found, NextRequest, Options, Price, Request, Tool, Usage, price_of
from dialogd.backends.parts import CHARACTERS_PER_TOKEN, Prompt, tokens_of
from dialogd.errors import BackendError, BadInput
from dialogd.protocol.model import digest
from dialogd.protocol.text import one_line

if TYPE_CHECKING:
    from anthropic.types import RawMessageStreamEvent
    from openai.types.chat import ChatCompletionChunk
    from openai.types.responses import ResponseStreamEvent

    from dialogd.backends.tools import OfferedTool, ToolResult

MAX_TOKENS = 8192  # of one reply, thinking included
LEAST_TOKENS = 16  # some services refuse to be asked for fewer
CONNECT = 10.0  # seconds
SILENCE = 600.0  # seconds without a byte; how long a turn may take is the dialog's own limit
UPDATE = 2_000  # characters after which what has been used is told again
QUOTED = 200  # characters of a service's own words

# -- What went wrong, in one kind of error ----------------------------------------------------------------------------

# What is left where a prompt is too long for a model whose window dialogd does not know better.
SHORTER = (
    "take turns out of what agents see (`dialogd strike N`), leave --project out (and with it its notes),"
    " choose a --model with a larger window, or begin a new dialog from a summary of this one"
)
TOO_LONG = re.compile(
    r"context_length|(?:context|maximum) (?:length|window|context)|too (?:long|large)|exceeds the maximum"
    r"|too many (?:input )?tokens",
    re.I,
)
_SPENT = re.compile(
    r"spend(?:ing)?[ _]limit|insufficient_quota|billing_(?:error|hard|not)|credit balance|(?:available|any) credits",
    re.I,
)
_POLICY = re.compile(r"content_filter|content_policy|_policy_?violation|bio_policy", re.I)
_ABOUT_TOOLS = re.compile(r"\btools?\b|tool_", re.I)


class Meaning(NamedTuple):
    """What an error is, whether the same call may succeed later, and what the person can do."""

    kind: str
    retryable: bool
    fix: str


_AGAIN = "ask again with `dialogd retry` once {vendor} is well"
_OTHER = "choose another --model"
_LONGER = "raise --max-tokens"
_SPEND = Meaning("limit", False, "raise the spending limit or add credit for the key in {variable}")
_REFUSED = Meaning("refusal", False, "put the question differently, or ask another model with --model")
_MOVED = Meaning("request", False, "set --base-url to where it has moved, if you trust that; nothing was sent there")
_WRONG_KEY = Meaning("auth", False, "check {variable}: that key was sent to {host}")
_NO_RIGHT = Meaning("auth", False, "the key in {variable} may not do this: check it, or choose another --model")
_UNKNOWN = "check the model ({model}), the address ({host}) and --api: one of them is unknown"
_OBJECTS = "it objects to the request: see --model, --effort, --max-tokens"

# The first row that fits a status and the service's words is what an error means.
ERRORS: tuple[tuple[range | tuple[int, ...], re.Pattern[str] | None, Meaning], ...] = (
    (range(300, 400), None, _MOVED),
    ((400, 402, 403, 429), _SPENT, _SPEND),
    ((402,), None, _SPEND),
    ((400, 413, 422), TOO_LONG, Meaning("request", False, SHORTER)),
    ((413,), None, Meaning("request", False, SHORTER)),
    ((400, 500), _POLICY, _REFUSED),
    ((401,), None, _WRONG_KEY),
    ((403,), None, _NO_RIGHT),
    ((404,), None, Meaning("request", False, _UNKNOWN)),
    ((408,), None, Meaning("timeout", True, _AGAIN)),
    ((429,), None, Meaning("busy", True, "let fewer agents use the key in {variable}, or wait a while")),
    ((409, 503, 529), None, Meaning("busy", True, _AGAIN)),
    (range(400, 500), None, Meaning("request", False, _OBJECTS)),
    (range(500, 1000), None, Meaning("failed", True, _AGAIN)),
)

# Errors that come as a word, in a stream that had begun well.
WORDS: Mapping[str, int] = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403,
    "not_found_error": 404, "timeout_error": 408, "rate_limit_error": 429, "rate_limit_exceeded": 429,
    "overloaded_error": 529,
}  # fmt: skip

# Why a reply ended that is not complete, in words of ours (`API.stops`).
ENDS: Mapping[str, tuple[Meaning, str]] = {
    "": (Meaning("cut", True, _AGAIN), "the stream of {vendor} ended before the reply did"),
    "length": (Meaning("cut", False, _LONGER), "the reply was cut at {most} tokens"),
    "window": (Meaning("cut", False, SHORTER), "the dialog and the reply outgrew the window of {model}"),
    "refusal": (_REFUSED, "{model} refused"),
    "tool": (Meaning("garbled", True, _OTHER), "{model} asked for a tool instead of answering"),
    "pause": (Meaning("cut", True, _AGAIN), "{vendor} paused the reply instead of ending it"),
    "empty": (Meaning("empty", True, f"{_OTHER}, or another --effort"), "{model} answered with no text"),
    "thought": (Meaning("cut", False, _LONGER), "{model} thought until its {most} tokens were used up"),
}
_CUT = frozenset({"", "length", "window"})  # ends that may have come in the middle of a word


class StreamError(Exception):
    """A service said in a stream that it failed; `body` holds its words."""

    def __init__(self, body: object) -> None:
        super().__init__("the service reported an error")
        self.body = body


class NotAStream(ValueError):
    """Something else came where a stream of events was expected."""


def failure(error: Exception, service: Service, reply: StreamedReply) -> BackendError:
    """What an SDK's exception means. Sets the reply's usage to nothing where nothing can have been billed."""
    clear_frames(error.__traceback__)  # a reader of the stream that they hold would stay open as long as the error
    status, body = getattr(error, "status_code", 200), getattr(error, "body", None)
    if isinstance(status, int) and status >= 300:
        reply.usage = Usage(service.model, 0, 0)
        cause = f"{service.vendor} answered {status}"
    elif body is not None:
        status = next((WORDS[word] for word in _names(body) if word in WORDS), 500)
        cause = f"{service.vendor} broke off the reply"
    else:
        return _broken(error, service, reply)
    said, headers = str(body)[:4000], getattr(getattr(error, "response", None), "headers", {})
    meaning = next(row for statuses, words, row in ERRORS if status in statuses and (not words or words.search(said)))
    if headers.get("x-should-retry") == "false":
        meaning = meaning._replace(retryable=False)
    found = _error(meaning, f"{cause}: {_quoted(body, service.secrets)}".removesuffix(": "), service, reply)
    found.retry_after = retry_after(headers) if found.retryable else None
    return found


def _broken(error: Exception, service: Service, reply: StreamedReply) -> BackendError:
    import httpx2

    while isinstance(error.__cause__, httpx2.HTTPError):
        error = error.__cause__
    vendor, meaning = service.vendor, Meaning("network", True, "check the network and the address ({host})")
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        reply.usage = Usage(service.model, 0, 0)
        cause = f"no connection to {vendor}: {str(error) or 'no answer'}"
    elif isinstance(error, httpx2.TimeoutException):
        meaning, cause = Meaning("timeout", True, _AGAIN), f"{vendor} fell silent"
    elif isinstance(error, httpx2.HTTPError):
        cause = f"the connection to {vendor} broke {'in mid-reply' if reply.written else 'before the reply began'}"
    else:
        meaning = Meaning("garbled", True, "check the address ({host}): does it speak this API?")
        what = str(error) if isinstance(error, NotAStream) else f"what cannot be read ({type(error).__name__})"
        cause = f"{vendor} sent {what}"
    return _error(meaning, cause, service, reply)


def ending(stop: str, service: Service, reply: StreamedReply, most: int) -> BackendError | None:
    """The error for a reply that ended for the reason `stop`, None if it is complete; `most` is without a budget."""
    if not reply.text.strip() and stop in ("done", "length"):
        stop = "thought" if stop == "length" else "refusal" if reply.detail else "empty"
    if stop == "done":
        return None
    unknown = Meaning("failed", True, _AGAIN), "{model} ended for a reason unknown here: {stop}"
    meaning, cause = ENDS.get(stop, unknown)
    if reply.most < most and stop in ("length", "thought"):
        meaning = meaning._replace(fix="raise the budget: it left this turn no more tokens")
    cause = cause.format(vendor=service.vendor, model=service.model, most=reply.most, stop=one_line(stop, 40))
    error = _error(meaning, cause, service, reply)
    error.is_whole = stop not in _CUT or not reply.text
    return error


def _error(meaning: Meaning, cause: str, service: Service, reply: StreamedReply) -> BackendError:
    variable = service.variable or "OPENAI_API_KEY, with the address in OPENAI_BASE_URL"
    fix = "put the key for {host} into {variable}" if meaning.kind == "auth" and not service.key else meaning.fix
    fix = fix.format(vendor=service.vendor, model=service.model, host=host_of(service.url), variable=variable)
    is_refused = meaning.kind == "refusal"
    if is_refused and reply.detail:
        cause = f"{cause}: {one_line(reply.detail, QUOTED, service.secrets)}"
    return BackendError(
        one_line(cause, 2 * QUOTED, service.secrets),
        fix=one_line(fix, 2 * QUOTED, service.secrets),
        retryable=meaning.retryable,
        partial="" if is_refused else reply.whole,  # what was refused is not offered again
        is_whole=not reply.text,
        kind=meaning.kind,
    )


def _inner(body: object) -> object:
    return body.get("error", body) if isinstance(body, dict) else body


def _names(body: object) -> list[str]:
    """The words that a program can read in an error: its code, its type."""
    inner = _inner(body)
    return [str(inner[name]) for name in ("code", "type") if inner.get(name)] if isinstance(inner, dict) else []


def _quoted(body: object, secrets: Sequence[str]) -> str:
    """What a service said, in one short line; of a page only its title."""
    inner = _inner(body)
    if isinstance(inner, dict):
        return one_line(str(inner.get("message") or " ".join(_names(body))), QUOTED, secrets)
    text = inner if isinstance(inner, str) else ""
    return "a page instead of an answer" if "<" in text[:200] else one_line(text, QUOTED, secrets)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The pause that a service asks for, in seconds. The SDKs take no notice of one that is longer than a minute."""
    milliseconds, text = headers.get("retry-after-ms", ""), headers.get("retry-after", "")
    try:
        wait = float(milliseconds) / 1000 if milliseconds else float(text)
    except ValueError:
        try:
            wait = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(wait, 0.0) if math.isfinite(wait) else None


# -- Who is asked -----------------------------------------------------------------------------------------------------

# A key goes to its own vendor: whatever is asked for, these hosts get the key in this variable and no other.
HOSTS: Mapping[str, tuple[str, str]] = {
    "api.anthropic.com": ("Anthropic", "ANTHROPIC_API_KEY"),
    "api.openai.com": ("OpenAI", "OPENAI_API_KEY"),
    "api.x.ai": ("xAI", "XAI_API_KEY"),
    "openrouter.ai": ("OpenRouter", "OPENROUTER_API_KEY"),
    "api.groq.com": ("Groq", "GROQ_API_KEY"),
    "api.mistral.ai": ("Mistral", "MISTRAL_API_KEY"),
    "api.deepseek.com": ("DeepSeek", "DEEPSEEK_API_KEY"),
    "generativelanguage.googleapis.com": ("Google", "GEMINI_API_KEY"),
}

# Tokens that a model can take in and write together, by how its name begins; the first that fits.
_OLD_CLAUDES = ("haiku-4", "opus-4-0", "opus-4-1", "opus-4-5", "sonnet-4-0", "sonnet-4-5")
WINDOWS: Mapping[str, int] = {
    **{f"claude-{old}": 200_000 for old in _OLD_CLAUDES},
    "claude-": 1_000_000, "gpt-5.5": 1_000_000, "gpt-6": 1_000_000, "gpt-5": 400_000,
    "grok-4.": 500_000, "grok-4": 256_000,
}  # fmt: skip
WINDOW = 100_000  # of a model that nobody here knows


@dataclass(frozen=True, slots=True)
class Service:
    """Who is asked, and with what."""

    vendor: str  # in words: `Anthropic`, `localhost:1234`
    url: str
    key: str = field(repr=False)  # "" where none is needed
    variable: str  # where the key stands, or should
    model: str
    more: tuple[str, ...] = field(default=(), repr=False)  # further secrets of the person's

    @property
    def secrets(self) -> tuple[str, ...]:
        """The key, a password in the URL, and what else the person holds."""
        return tuple(secret for secret in (self.key, urlsplit(self.url).password or "", *self.more) if secret)

    def is_at(self, *vendors: str) -> bool:
        """True for the own address of one of these vendors; False for a gateway, a local server, anything else."""
        return vendor_of(self.url) is not None and self.vendor in vendors


def service_of(url: str, keys: tuple[str, ...], variables: Mapping[str, str], model: str, beside: str = "") -> Service:
    """The service at `url` with the key that may go there. Raises `BadInput` where there is none.

    At an address in `HOSTS` it is that vendor's, else the first that is set of `keys`; at `beside`, which the person
    set together with `keys`, they may go to whoever is there.
    """
    parts = _split(url)
    if not parts.hostname or parts.scheme not in ("http", "https"):
        raise BadInput(f"{url!r} is not the address of a service", fix="write it like http://localhost:8000/v1")
    vendor, own = vendor_of(url) or (host_of(url), "")
    if own and own not in keys:
        keys = (own, *keys) if same_host(url, beside) else (own,)
    variable = next((name for name in keys if variables.get(name, "").strip()), keys[0] if keys else "")
    key = variables.get(variable, "").strip()
    if own and not key:
        raise BadInput(f"no key for {vendor}", fix=f"put {variable} into the environment or into .env")
    if not key.isascii() or any(not character.isprintable() or character == " " for character in key):
        raise BadInput(f"{variable} holds characters that no key has", fix="copy the key anew, in one line")
    return Service(vendor, url.strip().rstrip("/"), key, variable, model)


def vendor_of(url: str) -> tuple[str, str] | None:
    """Name and key variable of the vendor whose own address this is, or None."""
    host = (_split(url).hostname or "").lower()
    return next((HOSTS[known] for known in HOSTS if host == known or host.endswith(f".{known}")), None)


def host_of(url: str) -> str:
    """`localhost:1234`: where a URL leads, without user and password."""
    return _split(url).netloc.rpartition("@")[2]


def same_host(one: str, other: str) -> bool:
    return bool(one) and bool(other) and host_of(one).lower() == host_of(other).lower()


def is_loopback(url: str) -> bool:
    host = _split(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError:
        return urlsplit("")
    return parts


def headers_in(variables: Mapping[str, str], variable: str) -> dict[str, str]:
    """Headers that somebody wants sent along, `Name: value` one to a line; never one that carries the key."""
    pairs = (line.partition(":") for line in variables.get(variable, "").split("\n") if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs if name.strip().lower() != "authorization"}


def key_found(variables: Mapping[str, str], names: tuple[str, ...], package: str) -> Found:
    """Whether one of these variables holds a key, and which version of the SDK `package` would be used."""
    from importlib import metadata

    version = metadata.version(package)
    name = next((name for name in names if variables.get(name, "").strip()), "")
    if not name:
        return Found(False, "no key", version=version, fix=f"put {names[0]} into the environment or into .env")
    return Found(True, f"a key in {name}", pays=f"the key in {name}", version=version)


# -- One streamed reply -----------------------------------------------------------------------------------------------


class Use(NamedTuple):
    """A call of a tool that a model asks for; `arguments` as it wrote them."""

    id: str
    name: str
    arguments: str


class Exchange(NamedTuple):
    """What a model said when it asked for calls, in its API's own form, and what came of them."""

    said: list[dict[str, Any]]
    results: list[tuple[Use, ToolResult]]

    @property
    def tokens(self) -> int:
        """An estimate of what it adds to the next request."""
        return tokens_of(json.dumps(self.said)) + sum(tokens_of(told.text) for _, told in self.results)


@dataclass(slots=True)
class StreamedReply:
    """A reply as it arrives."""

    usage: Usage  # what the service reported of its use, estimated until then
    most: int  # tokens that it may have
    stop: str = ""  # the service's word for why it ended, "" as long as it has not
    detail: str = ""  # a refusal in the service's words
    before: str = ""  # what it wrote before it asked for calls of tools
    may_use: bool = False  # it may ask for calls: then `uses` are they, and `said` all of it as it is sent back
    uses: list[Use] = field(default_factory=list)
    said: list[dict[str, Any]] = field(default_factory=list)
    text: str = ""
    written: int = 0  # characters, with thoughts, which are paid for
    reported: int = 0

    @property
    def whole(self) -> str:
        """What has arrived, behind what was written before."""
        gap = "\n\n" if self.before.strip() and self.text.strip() else ""
        return f"{self.before}{gap}{self.text}"

    def add(self, text: str) -> str:
        """Take a piece of the reply and give it back."""
        self.text += text
        self.written += len(text)
        return text

    @property
    def used(self) -> Usage:
        """What has been used so far: as reported, else the prompt and all that was written."""
        if not self.usage.estimated or not self.written:
            return self.usage
        return replace(self.usage, tokens_out=self.written // CHARACTERS_PER_TOKEN + 1)


class Thoughts:
    """Removes the thinking that some local models write before their reply, as `<think>…</think>`."""

    def __init__(self, reply: StreamedReply) -> None:
        self._reply = reply
        self._held: str | None = ""  # None once the reply itself has begun

    def without(self, text: str, *, is_all: bool = False) -> str:
        """The part of the next piece that belongs to the reply; "" while nobody can know."""
        if self._held is not None:
            self._held += text
            text = self._held
            is_thought = text.lstrip().startswith("<think>")
            if is_thought or (not is_all and "<think>".startswith(text.lstrip())):
                thought, _, text = text.partition("</think>")
                text = text.lstrip()
                if not text and not is_all:
                    return ""
                self._reply.written += len(thought)
            self._held = None
        return self._reply.add(text)


class API(Backend):
    """A model API as a backend: one streamed reply per turn, of several requests where the model calls tools."""

    sdk: ClassVar[tuple[str, str, str]]  # the package, its client, its error; it is imported with the first call
    unasked: ClassVar[Mapping[str, str]]  # what that client would else take from this process's environment
    headers: ClassVar[str]  # the variable with headers of the person's
    stops: ClassVar[Mapping[str, str]]  # the service's words for why a reply ended, in those of `ENDS`
    path: str  # of the client's resource whose `create` takes the body

    def __init__(self, options: Options, service: Service, price: Price | None) -> None:
        self.service = replace(service, more=options.secrets)
        self.model = service.model
        self.price = price
        self.most_out = options.max_tokens or MAX_TOKENS
        name = self.model.rpartition("/")[2]
        self.room = next((size for start, size in WINDOWS.items() if name.startswith(start)), WINDOW) - self.most_out
        self.secrets = self.service.secrets
        self.silence = SILENCE
        self._options = options
        self._client: Any = None
        self._takes_tools = True

    def question(self, request: Request, prompt: Prompt, most: int) -> dict[str, Any]:
        """The body of a request for a reply of at most so many tokens."""
        raise NotImplementedError

    def with_tools(
        self, body: dict[str, Any], offered: Sequence[OfferedTool], so_far: Sequence[Exchange], *, may_call: bool
    ) -> dict[str, Any]:
        """That body with the tools, and with the calls that were made for it so far; without `may_call` the last."""
        raise NotImplementedError

    def reading(self, reply: StreamedReply) -> Callable[[Any], str]:
        """What takes each event into the reply and gives the text that it brought; None is the stream's end."""
        raise NotImplementedError

    def own_headers(self, omit: object) -> dict[str, Any]:
        """Headers of the person's, for this service; `omit` takes one out that the SDK would send."""
        return dict(headers_in(self._options.variables, self.headers))

    async def reply(self, request: Request) -> AsyncGenerator[str | Usage | Tool | NextRequest, None]:
        """Stream the model's text; what it calls tools for is made, and it is asked again. Raises `BackendError`."""
        yield Usage(self.model, calls=0)
        tools, prompt, so_far, before = request.tools, request.prompt(), list[Exchange](), ""
        if tools is not None and not tools.servers and (request.question or not self._takes_tools):
            tools = None  # an answer to a question has nobody to write to
        request = replace(request, tools=tools)
        try:
            if tools is not None:
                await tools.open(request.until)
                prompt = tools.within(prompt)
            while True:
                reply = self._begin(request, prompt, so_far, before)
                try:
                    async with aclosing(self._stream(request, prompt, so_far, reply)) as pieces:
                        async for piece in pieces:
                            yield piece
                except BackendError as error:
                    knows_none = error.kind == "request" and _ABOUT_TOOLS.search(error.cause)
                    if not knows_none or request.tools is None or request.tools.servers:
                        raise
                    self._takes_tools = False  # many a local model: nobody asked for those of the dialog
                    request, prompt = replace(request, tools=None), request.prompt()
                    continue
                if tools is None or not reply.uses:
                    return
                used, before = reply.used, reply.whole
                read, out = used.tokens_in or 0, used.tokens_out or 0
                usd = self.price.usd(read, out, used.cached or 0, used.cache_write or 0) if self.price else 0.0
                # What the next request reads, beside what the calls give.
                coming = max(prompt.tokens + _beside(request, so_far), read) + out
                request = self._must_pay(request.less(usd, read + out), coming, reply)
                results = []
                for use in reply.uses:
                    yield Tool(use.name)
                    results.append((use, await tools.call(use.name, use.arguments)))
                    yield Tool()
                so_far.append(Exchange(reply.said, results))
                self._must_pay(request, coming + sum(tokens_of(told.text) for _, told in results), reply)
                yield NextRequest()
        finally:
            if tools is not None:
                await tools.close()

    def _begin(self, request: Request, prompt: Prompt, so_far: Sequence[Exchange], before: str) -> StreamedReply:
        """A reply that is to come, with what it will at least cost, and may have, so that its turn can be paid."""
        reads, most = prompt.tokens + _beside(request, so_far), self.most_out
        at_least = max(reads, request.reads)
        if request.tokens is not None:
            most = min(most, request.tokens - at_least)
        if request.allowance is not None and self.price is not None:
            read = self.price.usd(at_least, 0)
            million = self.price.usd(at_least, 1_000_000) - read
            most = min(most, int((request.allowance - read) * 1_000_000 / million)) if million > 0 else most
        may_use = request.tools is not None and not request.tools.is_used_up
        guess = Usage(self.model, reads, 0, estimated=True)
        return StreamedReply(guess, max(most, LEAST_TOKENS), before=before, may_use=may_use)

    def _must_pay(self, left: Request, coming: int, reply: StreamedReply) -> Request:
        """Raise `BackendError` where what is left of the budget pays for no request that reads so much."""
        price = self.price
        is_paid = left.allowance is None or price is None or price.usd(coming, LEAST_TOKENS) <= left.allowance
        if not is_paid or (left.tokens is not None and coming + LEAST_TOKENS > left.tokens):
            raise BackendError(
                "the budget does not pay for another request after a call of a tool",
                fix="raise the budget: `dialogd limit`",
                partial=reply.whole,
                is_whole=True,
                kind="limit",
            )
        return left

    async def _stream(
        self, request: Request, prompt: Prompt, so_far: Sequence[Exchange], reply: StreamedReply
    ) -> AsyncGenerator[str | Usage, None]:
        """Stream one answer into `reply`, which has `uses` at its end where it asks for calls that it may make."""
        yield reply.used
        await asyncio.to_thread(importlib.import_module, self.sdk[0])  # takes seconds, in which the daemon must answer
        if self._client is None:
            self._client = self._connect()
        create, read = attrgetter(f"{self.path}.create")(self._client), self.reading(reply)
        body = self.question(request, prompt, reply.most)
        if request.tools is not None:
            body = self.with_tools(body, request.tools.offered, so_far, may_call=reply.may_use)
        gap = "\n\n" if reply.before.strip() else ""
        try:
            async with await create(stream=True, **body) as stream:
                kind = stream.response.headers.get("content-type", "")
                if kind.startswith(("text/html", "application/json")):  # the SDK would see a stream without events
                    raise NotAStream(f"{kind.partition(';')[0]} instead of a stream of events; is the address right?")
                # The stream and its own reader hold each other, and would stay open where a reply breaks off.
                events = getattr(stream, "_iterator")  # noqa: B009 - a name of the SDK's own
                async with aclosing(events):
                    async for event in events:
                        if text := read(event):
                            yield gap + text
                            gap = ""
                        if reply.written - reply.reported >= UPDATE:
                            reply.reported = reply.written
                            yield reply.used
            if text := read(None):
                yield gap + text
        except self._errors() as error:
            failed = failure(error, self.service, reply)
            yield reply.used
            raise failed from error
        yield reply.used
        stop = self.stops.get(reply.stop, reply.stop)
        if not (reply.uses and stop in ("tool", "done")) and (cut := ending(stop, self.service, reply, self.most_out)):
            raise cut

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _connect(self) -> Any:
        sdk = importlib.import_module(self.sdk[0])
        key = self.service.key or "none"  # the SDK insists on one
        ambient = dict.fromkeys(headers_in(os.environ, self.headers), sdk.omit)
        # No redirects, so that dialog and key go nowhere else; no certificates for plain HTTP.
        plain = {"verify": False} if self.service.url.lower().startswith("http:") else {}
        return getattr(sdk, self.sdk[1])(
            **self.unasked,
            api_key=key,
            base_url=self.service.url,
            max_retries=0,  # call.py tries again
            timeout=sdk.Timeout(self.silence, connect=CONNECT),
            default_headers={**ambient, **self.own_headers(sdk.omit), "Authorization": f"Bearer {key}"},
            http_client=sdk.DefaultAsyncHttpxClient(follow_redirects=False, **plain),
        )

    def _errors(self) -> tuple[type[Exception], ...]:
        """What the SDK raises: its own errors, those of the transport and of JSON, and what odd events lead to."""
        import httpx2

        own = getattr(importlib.import_module(self.sdk[0]), self.sdk[2])
        # Events are built without a check, so that one of another shape fails where it is read.
        return (own, httpx2.HTTPError, StreamError, ValueError, AttributeError, TypeError)


def _beside(request: Request, so_far: Sequence[Exchange]) -> int:
    """An estimate of the tokens that are read beside the prompt: the tools, and the calls so far."""
    offered = request.tools.offered if request.tools is not None else ()
    return sum(one.tokens for one in so_far) + sum(tokens_of(str(one)) for one in offered)


# -- Anthropic ---------------------------------------------------------------------------------------------------------

ANTHROPIC_URL = "https://api.anthropic.com"
ANTHROPIC_KEYS = BACKENDS["anthropic"].keys


class Anthropic(API):
    """Asks at `options.base_url`, else ANTHROPIC_BASE_URL, else Anthropic's own address."""

    name = "anthropic"
    costs = True
    sdk = ("anthropic", "AsyncAnthropic", "AnthropicError")
    unasked: ClassVar[Mapping[str, str]] = {"webhook_key": ""}
    headers = "ANTHROPIC_CUSTOM_HEADERS"
    path = "messages"
    stops: ClassVar[Mapping[str, str]] = {
        "end_turn": "done", "stop_sequence": "done", "max_tokens": "length", "pause_turn": "pause", "tool_use": "tool",
        "model_context_window_exceeded": "window",
    }  # fmt: skip

    def __init__(self, options: Options) -> None:
        elsewhere = options.variables.get("ANTHROPIC_BASE_URL", "").strip()
        url = options.base_url or elsewhere or ANTHROPIC_URL
        service = service_of(url, ANTHROPIC_KEYS, options.variables, options.model, beside=elsewhere)
        super().__init__(options, service, price_of(options.model, "Anthropic", options.price))

    @staticmethod
    def probe(variables: Mapping[str, str], _variant: str = "") -> Found:
        return key_found(variables, ANTHROPIC_KEYS, "anthropic")

    def question(self, request: Request, prompt: Prompt, most: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": most,
            "system": [_cached(prompt.system)],
            "messages": [{"role": "user", "content": _blocks(prompt)}],
        }
        return body | ({"output_config": {"effort": self._options.effort}} if self._options.effort else {})

    def with_tools(
        self, body: dict[str, Any], offered: Sequence[OfferedTool], so_far: Sequence[Exchange], *, may_call: bool
    ) -> dict[str, Any]:
        """That body with tools. What came of calls ends in a breakpoint of the cache, for the next request."""
        messages = list(body["messages"])
        for said, results in so_far:
            told = [
                {"type": "tool_result", "tool_use_id": use.id, "content": one.text or "(nothing)"}
                | ({"is_error": True} if one.is_error else {})
                for use, one in results
            ]
            blocks = [block for block in said if block and block.get("text") != ""]
            messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": told}]
        if so_far:
            messages[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        tools = [{"name": one.name, "description": one.description, "input_schema": one.schema} for one in offered]
        return body | {"messages": messages, "tools": tools} | ({} if may_call else {"tool_choice": {"type": "none"}})

    def reading(self, reply: StreamedReply) -> Callable[[Any], str]:
        return lambda event: _read_message(event, reply) if event is not None else ""

    def own_headers(self, omit: object) -> dict[str, Any]:
        """The person's headers, and the key in the header where older gateways look for it."""
        service = self.service
        is_old = service.key and vendor_of(service.url) is None and service.variable != ANTHROPIC_KEYS[1]
        return super().own_headers(omit) | ({"X-Api-Key": service.key} if is_old else {})


def _blocks(prompt: Prompt) -> list[dict[str, Any]]:
    """One block per part, with the cache breakpoint on the last one that never changes.

    The cache is looked up from its breakpoint backwards, up to twenty blocks, for what was written at an earlier one:
    so blocks are never merged, else their borders would move, and the few that are new never hide the old ones.
    """
    texts = [f"{part.text}\n\n" for part in prompt.parts]
    blocks = [{"type": "text", "text": text} for text in texts[:-1]]
    blocks += [_cached(text) for text in texts[-1:]]
    return [*blocks, {"type": "text", "text": prompt.now}]


def _cached(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}


# What of a block is sent back with what came of the calls in it; thoughts belong to them, and are signed.
_KEPT: Mapping[str, tuple[str, ...]] = {
    "text": ("type", "text"),
    "thinking": ("type", "thinking", "signature"),
    "redacted_thinking": ("type", "data"),
    "tool_use": ("type", "id", "name", "input"),
}


def _read_message(event: RawMessageStreamEvent, reply: StreamedReply) -> str:
    """Take an event into the reply; gives the text that it brought. Thinking is counted and left out."""
    block = reply.said[-1] if reply.said else {}
    if event.type == "content_block_delta":
        for name in ("text", "thinking", "signature", "partial_json") if block else ():
            if isinstance(piece := getattr(event.delta, name, None), str):
                block[name] = block.get(name, "") + piece
        if event.delta.type == "text_delta":
            return reply.add(event.delta.text)
        reply.written += len(getattr(event.delta, "thinking", ""))
    elif event.type == "content_block_start" and reply.may_use:
        begun = event.content_block.to_dict()
        reply.said.append({name: begun[name] for name in _KEPT.get(str(begun["type"]), ()) if name in begun})
    elif event.type == "content_block_stop" and block.get("type") == "tool_use":
        written = block.pop("partial_json", "") or json.dumps(block["input"])
        reply.uses.append(Use(str(block["id"]), str(block["name"]), written))
        block["input"] = _object(written)
    elif event.type in ("message_start", "message_delta"):
        told: Any = event.message.usage if event.type == "message_start" else event.usage
        if told.input_tokens is not None:  # the service counts cache reads and writes separately
            cached, written = told.cache_read_input_tokens or 0, told.cache_creation_input_tokens or 0
            tokens = told.input_tokens + cached + written
            reply.usage = replace(reply.usage, tokens_in=tokens, cached=cached, cache_write=written)
        if event.type == "message_delta":
            details, reply.stop = event.delta.stop_details, event.delta.stop_reason or ""
            reply.detail = (details.explanation or details.category or "") if details else ""
            reply.usage = replace(reply.usage, tokens_out=told.output_tokens, estimated=False)
    return ""


def _object(written: str) -> dict[str, Any]:
    """The service takes only an object; the model may have written anything."""
    try:
        found = json.loads(written)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# -- Ollama: where it listens, and which models it has ----------------------------------------------------------------

PORT = 11434
PATIENCE = 0.3  # seconds; it is on this machine
ROOM = 8_000  # tokens of a prompt: Ollama leaves out the beginning of a longer one, and says nothing


def address(variables: Mapping[str, str]) -> str:
    """The base URL that OLLAMA_HOST names (`host`, `host:port`, a URL), or the usual one."""
    named = variables.get("OLLAMA_HOST", "").strip() or "127.0.0.1"
    parts = _split(named if "://" in named else f"http://{named}")
    if not parts.scheme:
        return named  # refused, with its name, by whoever uses it
    host = parts.hostname or "127.0.0.1"
    host = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host  # where to ask
    port = parts.port or ({"http": 80, "https": 443}.get(parts.scheme, PORT) if "://" in named else PORT)
    return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}/v1"


def models(url: str) -> list[str] | None:
    """The models that chat and run here, newest first; None without an answer. Asks this machine only."""
    if not is_loopback(url):
        return None
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
    try:
        connection.request("GET", "/api/tags")
        found = json.loads(connection.getresponse().read(1_000_000))["models"]
        names = [str(model["name"]) for model in found]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()
    return [name for name in names if "embed" not in name and not name.endswith("cloud")]


def probe_ollama(variables: Mapping[str, str]) -> Found:
    url = address(variables)
    host = urlsplit(url).netloc
    if not is_loopback(url):
        return Found(True, f"OLLAMA_HOST names {host}, which is not this machine: it was not asked")
    found = models(url)
    if found is None:
        return Found(False, f"nobody answers on {host}", fix="start it: ollama serve")
    if not found:
        return Found(False, f"Ollama on {host} has no model", fix="get one, such as: ollama pull qwen3")
    return Found(True, f"Ollama on {host} with {', '.join(found[:3])}")


# -- The `openai` backend ---------------------------------------------------------------------------------------------

OPENAI_URL, XAI_URL = "https://api.openai.com/v1", "https://api.x.ai/v1"
VENDORS = ("OpenAI", "xAI")
THOUGHTS = ("reasoning_content", "reasoning")  # what servers of Chat Completions call them; no part of OpenAI's own


class OpenAI(API):
    """Asks at `options.base_url`, else at the variable's address: OPENAI_BASE_URL, XAI_BASE_URL, OLLAMA_HOST.

    Without a variant it is any server, and gets OPENAI_API_KEY only where OPENAI_BASE_URL names its address, too.
    """

    sdk = ("openai", "AsyncOpenAI", "OpenAIError")
    unasked: ClassVar[Mapping[str, str]] = {"admin_api_key": "", "webhook_secret": ""}
    headers = "OPENAI_CUSTOM_HEADERS"
    stops: ClassVar[Mapping[str, str]] = {
        "stop": "done", "max_output_tokens": "length", "content_filter": "refusal", "tool_calls": "tool",
        "function_call": "tool",
    }  # fmt: skip

    def __init__(self, options: Options) -> None:
        self.name = options.variant or "openai"
        self.costs = options.variant != "ollama"
        service = _service(options)
        price: Price | None = FREE
        if self.costs or options.price:
            vendor = BACKENDS[options.variant].vendor if options.variant else service.vendor
            price = price_of(service.model, vendor, options.price)
        super().__init__(options, service, price)
        if not self.costs:
            length = options.variables.get("OLLAMA_CONTEXT_LENGTH", "").strip()
            window = int(length) if length.isdecimal() and len(length) < 9 else 0
            self.room = max(window - self.most_out, window // 2) or ROOM
        self.api = options.api or ("responses" if service.is_at(*VENDORS) else "chat")
        self.path = "chat.completions" if self.api == "chat" else "responses"

    @staticmethod
    def probe(variables: Mapping[str, str], variant: str) -> Found:
        """Look for the variant's key, or for an Ollama on its port."""
        if variant == "ollama":
            return probe_ollama(variables)
        kind = BACKENDS[variant or "openai"]
        found = key_found(variables, kind.keys, "openai")
        url = variables.get(kind.addresses[0], "").strip()
        if not found.here and url and vendor_of(url) is None:
            return Found(True, f"{kind.addresses[0]} names {host_of(url)}, no key", version=found.version)
        return found

    def question(self, request: Request, prompt: Prompt, most: int) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model}
        effort = self._options.effort
        if self.service.is_at("OpenAI"):
            # OpenAI finds a prompt's beginning again by itself; this leads an agent's calls to where it was seen.
            body["prompt_cache_key"] = digest(f"{request.dialog.id}\n{request.agent.id}")[:32]
        if self.api == "chat":
            body["messages"] = [{"role": "system", "content": prompt.system}, {"role": "user", "content": prompt.body}]
            body["stream_options"] = {"include_usage": True}
            body["max_completion_tokens" if self.service.is_at(*VENDORS) else "max_tokens"] = most
            return body | ({"reasoning_effort": effort} if effort else {})
        body |= {"instructions": prompt.system, "input": prompt.body, "max_output_tokens": most}
        body["store"] = False  # else the vendor keeps the dialog for a month
        return body | ({"reasoning": {"effort": effort}} if effort else {})

    def with_tools(
        self, body: dict[str, Any], offered: Sequence[OfferedTool], so_far: Sequence[Exchange], *, may_call: bool
    ) -> dict[str, Any]:
        """That body with tools, and the calls so far. Thoughts go back as the service has sealed them."""
        choice: dict[str, Any] = {} if may_call else {"tool_choice": "none"}
        tools = [{"name": one.name, "description": one.description, "parameters": one.schema} for one in offered]
        if self.api == "chat":
            functions = [{"type": "function", "function": tool} for tool in tools]
            messages = list(body["messages"])
            for said, results in so_far:
                messages += said
                messages += [{"role": "tool", "tool_call_id": use.id, "content": _told(told)} for use, told in results]
            return body | {"messages": messages, "tools": functions} | choice
        flat = [{"type": "function", "strict": False} | tool for tool in tools]
        choice["include"] = ["reasoning.encrypted_content"]  # nothing is stored: thoughts come back with their calls
        if so_far:
            items: list[dict[str, Any]] = [{"role": "user", "content": body["input"]}]
            for said, results in so_far:
                items += said
                items += [
                    {"type": "function_call_output", "call_id": use.id, "output": _told(told)} for use, told in results
                ]
            choice["input"] = items
        return body | {"tools": flat} | choice

    def reading(self, reply: StreamedReply) -> Callable[[Any], str]:
        """The function that adds an event to the reply; local models' thoughts are left out."""
        if self.api != "chat":
            return lambda event: _read_event(event, reply) if event is not None else ""
        thoughts, asked, thought = Thoughts(reply), dict[int, Use](), dict[str, str]()

        def read(chunk: Any) -> str:
            if chunk is not None:
                return thoughts.without(_read_chunk(chunk, reply, asked, thought))
            rest = thoughts.without("", is_all=True)
            if asked:
                reply.uses = [use._replace(id=use.id or f"call_{at}") for at, use in sorted(asked.items())]
                calls = [
                    {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments or "{}"}}
                    for id_, name, arguments in reply.uses
                ]
                reply.said = [{**thought, "role": "assistant", "content": reply.text or None, "tool_calls": calls}]
            return rest

        return read

    def own_headers(self, omit: object) -> dict[str, Any]:
        """The person's headers, including organisation and project, where their OpenAI key goes; else none."""
        own: dict[str, Any] = {"OpenAI-Organization": omit, "OpenAI-Project": omit}
        if self.service.variable == "OPENAI_API_KEY":
            own |= super().own_headers(omit)
            for header, name in (("OpenAI-Organization", "OPENAI_ORG_ID"), ("OpenAI-Project", "OPENAI_PROJECT_ID")):
                if value := self._options.variables.get(name, "").strip():
                    own[header] = value
        return own


def _service(options: Options) -> Service:
    variables, kind = options.variables, BACKENDS[options.variant or "openai"]
    if options.variant == "ollama":
        url = options.base_url or address(variables)
        service = service_of(url, (), variables, options.model)
        found = [options.model] if options.model else models(url)
        if not found:
            raise BadInput(
                "no model was found in Ollama", fix="start it, get a model (`ollama pull qwen3`), or name one"
            )
        return replace(service, vendor="Ollama", model=found[0])
    elsewhere = variables.get(kind.addresses[0], "").strip()
    url = options.base_url or elsewhere or (XAI_URL if options.variant == "grok" else OPENAI_URL)
    is_theirs = bool(options.variant) or same_host(url, elsewhere)
    return service_of(url, kind.keys if is_theirs else (), variables, options.model, beside=elsewhere)


def _told(told: ToolResult) -> str:
    """A result as a text: neither API has a place that says it is an error."""
    return f"error: {told.text}" if told.is_error else told.text or "(nothing)"


def _read_chunk(
    chunk: ChatCompletionChunk, reply: StreamedReply, asked: dict[int, Use], thought: dict[str, str]
) -> str:
    """Add a chunk to the reply, to the calls that are asked for, and to what was thought; returns its text."""
    if chunk.usage is not None:
        read, written = chunk.usage.prompt_tokens_details, chunk.usage.completion_tokens
        _count(reply, chunk.usage.prompt_tokens, written, read)
    if not chunk.choices:
        return ""
    choice = chunk.choices[0]
    reply.stop = choice.finish_reason or reply.stop
    reply.detail += choice.delta.refusal or ""
    for piece in (choice.delta.tool_calls or ()) if reply.may_use else ():
        use, more = asked.get(piece.index, Use("", "", "")), piece.function
        name, arguments = (more.name or "", more.arguments or "") if more is not None else ("", "")
        asked[piece.index] = Use(use.id or piece.id or "", use.name + name, use.arguments + arguments)
    for name in THOUGHTS:
        words = getattr(choice.delta, name, None)
        if isinstance(words, str) and words:
            thought[name] = thought.get(name, "") + words
            reply.written += len(words)
    return choice.delta.content or ""


def _read_event(event: ResponseStreamEvent, reply: StreamedReply) -> str:
    if event.type == "response.output_text.delta":
        return reply.add(event.delta)
    if event.type == "response.output_item.done" and reply.may_use:
        _take(event.item.to_dict(), reply)
    elif event.type == "response.refusal.delta":
        reply.detail += event.delta
    elif event.type in ("response.reasoning_text.delta", "response.reasoning_summary_text.delta"):
        reply.written += len(event.delta)
    elif event.type in ("response.completed", "response.incomplete", "response.failed"):
        if told := event.response.usage:
            _count(reply, told.input_tokens, told.output_tokens, told.input_tokens_details)
        if event.type == "response.failed":
            raise StreamError(event.response.error.to_dict() if event.response.error else {})
        why = event.response.incomplete_details
        reply.stop = "done" if event.type == "response.completed" else (why and why.reason) or "incomplete"
    elif event.type == "error":
        raise StreamError({"code": event.code, "message": event.message})
    return ""


def _take(item: dict[str, Any], reply: StreamedReply) -> None:
    """Keep a finished item as it is sent back with what came of the calls; nothing is stored at the service."""
    kind = item.get("type")
    if kind == "function_call":
        use = Use(str(item.get("call_id")), str(item.get("name")), str(item.get("arguments") or "{}"))
        reply.uses.append(use)
        reply.said.append({"type": kind, "call_id": use.id, "name": use.name, "arguments": use.arguments})
    elif kind == "reasoning" and item.get("encrypted_content"):
        reply.said.append({name: item[name] for name in ("type", "id", "summary", "encrypted_content") if name in item})
    elif kind == "message":
        text = "".join(str(part.get("text", "")) for part in item.get("content", ()))
        if text:
            phase = {"phase": item["phase"]} if item.get("phase") else {}
            reply.said.append({"role": "assistant", "content": text, **phase})


def _count(reply: StreamedReply, tokens_in: int, tokens_out: int, read: Any) -> None:
    cached, written = getattr(read, "cached_tokens", None), getattr(read, "cache_write_tokens", None)
    reply.usage = Usage(reply.usage.model, tokens_in, tokens_out, cached, written)

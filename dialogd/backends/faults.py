"""What went wrong with a model API, in one kind of error: its status, its words, a broken stream, a strange ending."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from dialogd.backends.service import CONNECT, Reply, Service
from dialogd.errors import BackendError
from dialogd.protocol.redact import redact
from dialogd.protocol.text import one_line

QUOTED = 200  # characters of a service's own words

_AGAIN = "ask again with `dialogd retry` once {vendor} is well"
# What is left where a prompt is too long for a model whose window dialogd does not know better.
SHORTER = (
    "take turns out of what agents see (`dialogd strike N`), leave --project out (and with it its notes),"
    " choose a --model with a larger window, or begin a new dialog from a summary of this one"
)


class Meaning(NamedTuple):
    """What an error is, whether the same call may succeed later, and what the person can do."""

    kind: str
    retryable: bool
    fix: str


REQUEST = Meaning("request", False, "it objects to the request: see --model, --effort and --max-tokens")
LIMIT = Meaning("limit", False, "raise the spending limit or add credit for the key in {variable}")
REFUSAL = Meaning("refusal", False, "put the question differently, or ask another model with --model")
MOVED = Meaning("request", False, "set --base-url to where it has moved, if you trust that; nothing was sent there")
BUSY = Meaning("busy", True, _AGAIN)
FAILED = Meaning("failed", True, _AGAIN)

STATUS: Mapping[int, Meaning] = {
    401: Meaning("auth", False, "check {variable}: that key was sent to {host}"),
    402: LIMIT,
    403: Meaning("auth", False, "the key in {variable} may not do this: check it, or choose another --model"),
    404: Meaning("request", False, "check the model ({model}), the address ({host}) and --api: one of them is unknown"),
    408: Meaning("timeout", True, _AGAIN),
    409: BUSY,
    413: Meaning("request", False, SHORTER),
    429: Meaning("busy", True, "let fewer agents use the key in {variable}, or wait a while"),
    503: BUSY,
    529: BUSY,
}

NO_KEY = "put the key for {host} into {variable}"

# Errors that come as a word, in a stream that had begun well.
WORDS: Mapping[str, int] = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "timeout_error": 408,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded_error": 529,
}

_SPENT = re.compile(
    r"spend(?:ing)?[ _]limit|insufficient_quota|billing_(?:error|hard|not)|credit balance|(?:available|any) credits",
    re.I,
)
TOO_LONG = re.compile(
    r"context_length|(?:context|maximum) (?:length|window|context)|too (?:long|large)|exceeds the maximum"
    r"|too many (?:input )?tokens",
    re.I,
)
_POLICY = re.compile(r"content_filter|content_policy|_policy_?violation|bio_policy", re.I)

ENDS: Mapping[str, tuple[Meaning, str]] = {
    "": (Meaning("cut", True, _AGAIN), "the stream of {vendor} ended before the reply did"),
    "length": (Meaning("cut", False, "raise --max-tokens"), "the reply was cut at {most} tokens"),
    "window": (Meaning("cut", False, SHORTER), "the dialog and the reply outgrew the window of {model}"),
    "refusal": (REFUSAL, "{model} refused"),
    "tool": (Meaning("garbled", True, "choose another --model"), "{model} asked for a tool instead of answering"),
    "pause": (Meaning("cut", True, _AGAIN), "{vendor} paused the reply instead of ending it"),
    "empty": (Meaning("empty", True, "choose another --model, or another --effort"), "{model} answered with no text"),
    "thought": (Meaning("cut", False, "raise --max-tokens"), "{model} thought until its {most} tokens were used up"),
}
_CUT = frozenset({"", "length", "window"})  # ends that may have come in the middle of a word


class Told(Exception):
    """A service said in a stream that it failed; `body` holds its words."""

    def __init__(self, body: object) -> None:
        super().__init__("the service reported an error")
        self.body = body


class NotAStream(ValueError):
    """Something else came where a stream of events was expected."""


def stream_of(content_type: str) -> None:
    """Raise `NotAStream` for a page or an object: an SDK would read it as a stream without events."""
    if content_type.startswith(("text/html", "application/json")):
        raise NotAStream(f"{content_type.partition(';')[0]} instead of a stream of events; is the address right?")


def failure(error: Exception, service: Service, reply: Reply) -> BackendError:
    """What an SDK's exception means. Sets the reply's usage to nothing where nothing can have been billed."""
    status, body = getattr(error, "status_code", 200), getattr(error, "body", None)
    if isinstance(status, int) and status >= 300:
        reply.usage = replace(reply.usage, tokens_in=0, tokens_out=0, cached=None, cache_write=None, estimated=False)
        cause = f"{service.vendor} answered {status}"
        return _said(_meaning(status, body), cause, error, service, reply)
    if body is not None:
        status = next((WORDS[word] for word in _names(body) if word in WORDS), 500)
        return _said(_meaning(status, body), f"{service.vendor} broke off the reply", error, service, reply)
    return _broken(error, service, reply)


def ending(stop: str, service: Service, reply: Reply, most: int) -> BackendError | None:
    """What is wrong with a reply that ended for the reason `stop` (a key of `ENDS`, or `done`), None when nothing is.

    `most` is how many tokens a reply may have where no budget narrows it.
    """
    blank = not reply.text.strip()
    if stop == "done":
        stop = "done" if not blank else "refusal" if reply.detail else "empty"
    if stop == "length" and blank:
        stop = "thought"
    if stop == "done":
        return None
    meaning, cause = ENDS.get(stop, (FAILED, "{model} ended for a reason unknown here: {stop}"))
    if reply.most < most and stop in ("length", "thought"):
        meaning = meaning._replace(fix="raise the budget: it left this turn no more tokens")
    cause = cause.format(vendor=service.vendor, model=service.model, most=reply.most, stop=one_line(stop, 40))
    error = _error(meaning, cause, service, reply)
    error.is_whole = stop not in _CUT
    return error


def _said(meaning: Meaning, cause: str, error: Exception, service: Service, reply: Reply) -> BackendError:
    """An error in the service's own words, with the time it asked for."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    if headers.get("x-should-retry") == "false":
        meaning = meaning._replace(retryable=False)
    body = getattr(error, "body", None)
    words = _quoted(body, service.secrets)
    said = _error(meaning, f"{cause}: {words}" if words else cause, service, reply)
    said.retry_after = retry_after(headers) if said.retryable else None
    return said


def _broken(error: Exception, service: Service, reply: Reply) -> BackendError:
    """A connection that was not there, or broke, or brought what nobody can read."""
    import httpx2

    while error.__cause__ is not None and isinstance(error.__cause__, httpx2.HTTPError):
        error = error.__cause__
    vendor, fix = service.vendor, "check the network and the address ({host})"
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        reply.usage = replace(reply.usage, tokens_in=0, tokens_out=0, estimated=False)
        late = isinstance(error, httpx2.ConnectTimeout)
        cause = f"no connection to {vendor}" + (f" within {CONNECT:g} seconds" if late else f": {error}")
        return _error(Meaning("network", True, fix), cause, service, reply)
    if isinstance(error, httpx2.TimeoutException):
        return _error(Meaning("timeout", True, _AGAIN), f"{vendor} fell silent", service, reply)
    if isinstance(error, httpx2.HTTPError):
        cause = f"the connection to {vendor} broke " + ("in mid-reply" if reply.written else "before the reply began")
        return _error(Meaning("network", True, fix), cause, service, reply)
    kind = Meaning("garbled", True, "check the address ({host}): does it speak this API?")
    what = str(error) if isinstance(error, NotAStream) else "what is not JSON"
    if not isinstance(error, NotAStream | json.JSONDecodeError):
        what = f"what cannot be read ({type(error).__name__})"
    return _error(kind, f"{vendor} sent {what}", service, reply)


def _meaning(status: int, body: object) -> Meaning:
    said = str(body)[:4000]
    if status < 400:
        return MOVED
    if status in (400, 402, 403, 429) and _SPENT.search(said):
        return LIMIT
    if status in (400, 413, 422) and TOO_LONG.search(said):
        return STATUS[413]
    if status in (400, 500) and _POLICY.search(said):
        return REFUSAL
    return STATUS.get(status, FAILED if status >= 500 else REQUEST)


def _error(meaning: Meaning, cause: str, service: Service, reply: Reply) -> BackendError:
    variable = service.variable or "OPENAI_API_KEY, with the address in OPENAI_BASE_URL"
    words = NO_KEY if meaning.kind == "auth" and not service.key else meaning.fix
    fix = words.format(vendor=service.vendor, model=service.model, host=service.host, variable=variable)
    if meaning.kind == "refusal" and reply.detail:
        cause = f"{cause}: {_short(reply.detail, service.secrets)}"
    return BackendError(
        one_line(cause, 2 * QUOTED, service.secrets),
        fix=one_line(fix, 2 * QUOTED, service.secrets),
        retryable=meaning.retryable,
        partial="" if meaning.kind == "refusal" else reply.text,  # what was refused is not offered again
        kind=meaning.kind,
    )


def _inner(body: object) -> object:
    """`{"error": {…}}` and `{…}` alike."""
    return body.get("error", body) if isinstance(body, dict) else body


def _names(body: object) -> list[str]:
    """The words that a program can read in an error: its code, its type."""
    inner = _inner(body)
    return [str(inner[name]) for name in ("code", "type") if inner.get(name)] if isinstance(inner, dict) else []


def _short(text: str, secrets: Sequence[str]) -> str:
    """The beginning of a service's words; a key that the cut would halve is taken out while it is whole."""
    return one_line(text, QUOTED, secrets)


def _quoted(body: object, secrets: Sequence[str]) -> str:
    """What a service said, in one short line; of a page only its title."""
    inner = _inner(body)
    if isinstance(inner, dict):
        return _short(str(inner.get("message") or " ".join(_names(body))), secrets)
    text = redact(inner, secrets)[0] if isinstance(inner, str) else ""
    if "<" in text[:200]:
        title = re.search(r"<title[^>]*>([^<]{1,200})", text[:4000], re.I)
        return f"a page titled {one_line(title[1], 80)!r}" if title else "a page instead of an answer"
    return _short(text, secrets)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a service wants to be left alone: `retry-after-ms`, `retry-after` in seconds or as a date."""
    try:
        if milliseconds := headers.get("retry-after-ms"):
            wait = float(milliseconds) / 1000
        elif (text := headers.get("retry-after", "")).strip():
            wait = float(text)
        else:
            return None
    except ValueError:
        try:
            wait = parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return max(wait, 0.0) if math.isfinite(wait) else None

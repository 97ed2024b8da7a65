"""Every way in which a model API fails: what is said of it, whether it is tried again, what arrived, what it cost."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import AsyncGeneratorType

import pytest
import pytest_asyncio

from dialogd.agent.call import ATTEMPTS, Call
from dialogd.backends.apis import _quoted, retry_after
from dialogd.backends.coding_agent import failed
from dialogd.errors import BackendError
from tests.backends.apis import API, FORMS, KEY, TEXT, make, outcome, request
from tests.support.cases import cases
from tests.support.pair import stretched
from tests.support.standin import (
    Answer,
    Cut,
    Drop,
    EndEarly,
    ErrorEvent,
    Fail,
    Garbage,
    Hang,
    Raw,
    Say,
    Script,
    Seen,
    Stall,
    StandIn,
    Use,
    in_order,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

HALF = TEXT[:40]
SILENCE = 0.4  # seconds that a stream may rest in these tests, where nothing else wants to run


@dataclass(frozen=True)
class Fault:
    """What the service does, and what must come of it.

    `says` stands in the error's cause; `billed` is False where it is known that nothing was; `whole` says that the text
    is all there was to come.
    """

    name: str
    answer: Answer
    kind: str
    retryable: bool
    says: str = ""
    partial: str = ""
    billed: bool = True
    whole: bool = False
    retry_after: float | None = None
    forms: tuple[str, ...] = FORMS


def fails(status: int, kind: str, retryable: bool, **more: object) -> Fault:
    """A status that is an error."""
    return Fault(f"status {status}", Fail(status), kind, retryable, f"answered {status}", billed=False, **more)  # type: ignore[arg-type]


def spent(status: int, code: str) -> Raw:
    error = {"type": "rate_limit_error", "message": "Limit reached.", "details": {"error_code": code}}
    return Raw(json.dumps({"type": "error", "error": error}).encode(), status)


TOOLS = ("messages", "chat")
ALL_FAULTS = (
    fails(400, "request", False),
    fails(401, "auth", False),
    fails(402, "limit", False),
    fails(403, "auth", False),
    fails(404, "request", False),
    fails(413, "request", False),
    fails(422, "request", False),
    fails(429, "busy", True),
    fails(500, "failed", True),
    fails(503, "busy", True),
    fails(529, "busy", True),
    Fault("429, retry-after", Fail(429, retry_after=0.1), "busy", True, "429", billed=False, retry_after=0.1),
    Fault("529, retry-after", Fail(529, retry_after=0.1), "busy", True, "529", billed=False, retry_after=0.1),
    Fault("529, not again", Fail(529, headers=(("x-should-retry", "false"),)), "busy", False, "529", billed=False),
    Fault("502 with a page", Fail(502, html=True), "failed", True, "502: a page instead", billed=False),
    Fault("500 with broken JSON", Fail(500, garbage=True), "failed", True, "answered 500", billed=False),
    Fault("no quota", Fail(429, "insufficient_quota", retry_after=9), "limit", False, "429", billed=False),
    Fault("no credit", Fail(400, message="Your credit balance is too low"), "limit", False, "credit", billed=False),
    Fault("spend limit", spent(429, "enforced_spend_limit_reached"), "limit", False, "429", billed=False),
    Fault("policy", Fail(400, "content_policy_violation"), "refusal", False, "400", billed=False),
    Fault("drop", Drop(), "network", True, "broke before the reply began"),
    Fault("reset", Drop(reset=True), "network", True, "broke before the reply began"),
    Fault("hang", Hang(), "timeout", True, "fell silent"),
    Fault("stall", Stall(TEXT, 40), "timeout", True, "fell silent", HALF),
    Fault("stall at once", Stall(TEXT, 0), "timeout", True, "fell silent"),
    Fault("cut", Cut(TEXT, 40), "network", True, "broke in mid-reply", HALF),
    Fault("clean early end", EndEarly(TEXT, 40), "cut", True, "ended before the reply did", HALF),
    Fault("end at once", EndEarly(TEXT, 0), "cut", True, "ended before the reply did"),
    Fault("error event", ErrorEvent(after=40, text=TEXT), "busy", True, "broke off the reply: Overloaded", HALF),
    Fault("rate event", ErrorEvent("rate_limit_exceeded", "Slow down"), "busy", True, "Slow down"),
    Fault("unknown event", ErrorEvent("new_error", "What?"), "failed", True, "What?"),
    Fault("hopeless event", ErrorEvent("invalid_request_error", "No."), "request", False, "No."),
    Fault("failed", ErrorEvent("server_error", "Oh", 40, TEXT, failed=True), "failed", True, "Oh", HALF),
    Fault("bad JSON", Garbage("body"), "garbled", True, "application/json instead of a stream"),
    Fault("page", Garbage("html"), "garbled", True, "text/html instead of a stream"),
    Fault("no HTTP", Garbage("noise"), "network", True, "broke before the reply began"),
    Fault("refusal", Say("I will not.", "refusal"), "refusal", False, "refused"),
    Fault("filter", Say(HALF, "content_filter"), "refusal", False, "refused", forms=("chat", "responses")),
    Fault("length", Say(TEXT, "max_tokens"), "cut", False, "cut at 8192 tokens", TEXT),
    Fault("thought only", Say("", "max_tokens", thinking="Hm."), "cut", False, "thought until its 8192 tokens"),
    Fault("empty", Say(""), "empty", True, "no text"),
    Fault("blank", Say(" \n\n"), "empty", True, "no text", " \n\n"),
    Fault("tool", Use("read", {"path": "x"}, TEXT), "garbled", True, "tool", TEXT, whole=True, forms=TOOLS),
    Fault("pause", Say(TEXT, "pause_turn"), "cut", True, "paused", TEXT, whole=True, forms=("messages",)),
    Fault("window", Say(TEXT, "model_context_window_exceeded"), "cut", False, "window", TEXT, forms=("messages",)),
    Fault("unknown stop", Say(TEXT, "tired {x}"), "failed", True, "here: tired {x}", TEXT, whole=True, forms=FORMS[:2]),
)  # fmt: skip
ROWS = [
    pytest.param(
        form,
        fault,
        id=f"{form}: {fault.name}",
        marks=[pytest.mark.slow] if isinstance(fault.answer, Hang | Stall) and form != FORMS[0] else [],
    )
    for fault in ALL_FAULTS
    for form in fault.forms
]


LONG = (
    "prompt is too long: 210000 tokens > 200000 maximum",
    "This model's maximum context length is 32768 tokens. However, you requested 40000 tokens.",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
)


@cases("form", FORMS)
@cases("said", LONG)
async def test_a_prompt_that_is_too_long_gets_advice_that_shortens_it(form: str, said: str) -> None:
    with StandIn(in_order(Fail(400, message=said), Fail(400, message="top_k must be positive"))) as server:
        backend = make(form, server)
        long, other = [(await outcome(backend)).failed for _ in range(2)]
        await backend.close()
    assert (long.kind, long.retryable) == ("request", False)
    for words in ("`dialogd strike N`", "leave --project out", "a larger window", "from a summary of this one"):
        assert words in long.fix
        assert words not in other.fix


class Desk:
    """A stand-in, and a patient and a hurried backend for each form; shared, because making them costs the most."""

    def __init__(self) -> None:
        self._script: Script = in_order(Say(TEXT))
        self._before = 0
        self.server = StandIn(self._answer)
        self._patient = {form: make(form, self.server) for form in FORMS}
        self._hurried = {form: make(form, self.server) for form in FORMS}

    def _answer(self, seen: Seen) -> Answer:
        return self._script(seen)

    def against(self, form: str, *answers: Answer) -> API:
        """The backend, whose service gives these answers from now on, the last one for ever."""
        self._script = in_order(*answers)
        self._before = len(self.server.calls)
        rests = any(isinstance(answer, Hang | Stall) for answer in answers)
        backend = (self._hurried if rests else self._patient)[form]
        if rests:
            backend.silence = stretched(SILENCE)  # what was said before the rest must have arrived
        return backend

    @property
    def calls(self) -> list[Seen]:
        return self.server.calls[self._before :]

    async def close(self) -> None:
        """End everything."""
        for backend in (*self._patient.values(), *self._hurried.values()):
            await backend.close()
        self.server.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def desk() -> AsyncIterator[Desk]:
    """What the tests of this module share."""
    shared = Desk()
    yield shared
    await shared.close()


async def called(backend: API, deadline: float = 180.0) -> str:
    return await Call(backend, 0.01).ask(request(), deadline)


def whole_words(text: str) -> str:
    """A text that was broken off, without its last word: it may have been the beginning of a secret."""
    return re.sub(r"\S+$", "", text)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "fault"), ROWS)
async def test_a_fault_has_its_kind_its_words_and_its_attempts(desk: Desk, form: str, fault: Fault) -> None:
    """One call says what happened in the table's terms; the daemon asks three times where that may help, else once.

    What arrived is kept whole by the backend, and by whoever asked up to its last word where that may have been cut.
    """
    backend = desk.against(form, fault.answer)
    found = await outcome(backend)
    error = found.failed
    assert (error.kind, error.retryable, error.partial) == (fault.kind, fault.retryable, fault.partial)
    assert error.retry_after == fault.retry_after
    assert fault.says in error.cause
    assert found.usages[0].estimated
    assert ((found.usage.tokens_in or 0) > 0) == fault.billed
    for line in (error.cause, error.fix):
        assert line.strip()
        assert "\n" not in line
        assert not re.search(r"\{[a-w]", line), "a name that was not filled in"
        assert len(line) <= 400
    with pytest.raises(BackendError) as caught:
        await called(backend)
    kept = fault.partial if fault.whole else whole_words(fault.partial)
    assert (caught.value.kind, caught.value.partial) == (fault.kind, kept)
    assert len(desk.calls) == 1 + (ATTEMPTS if fault.retryable else 1)


@pytest.mark.parametrize("form", FORMS)
async def test_a_reply_that_breaks_off_leaves_nothing_open(desk: Desk, form: str) -> None:
    gc.disable()
    try:
        before = {id(one) for one in gc.get_objects() if type(one) is AsyncGeneratorType}
        found = await outcome(desk.against(form, ErrorEvent("server_error", "Oh", 40, TEXT, failed=True)))
        for _ in range(20):
            await asyncio.sleep(0)
        left = [one for one in gc.get_objects() if type(one) is AsyncGeneratorType and id(one) not in before]
        assert [one for one in left if one.ag_frame is not None] == []
        assert found.failed
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("answer", [Hang(), Stall(TEXT, 40)], ids=["hang", "stall"])
async def test_the_deadline_ends_every_wait(desk: Desk, form: str, answer: Answer) -> None:
    backend = desk.against(form, answer)
    await outcome(backend)  # the SDK is imported by now
    backend = make(form, desk.server)
    backend.silence = 600.0
    began = time.monotonic()
    with pytest.raises(BackendError) as caught:
        await called(backend, deadline=0.4)
    await backend.close()
    assert caught.value.kind == "timeout"
    assert caught.value.partial in ("", whole_words(HALF) if isinstance(answer, Stall) else "")  # what came by then
    assert 0.3 < time.monotonic() - began < 60  # and no ten minutes
    assert len(desk.calls) <= 2  # on a busy machine the time was over before the request


@cases("form", FORMS)
async def test_nobody_listening_is_told_with_the_address(form: str) -> None:
    backend = make(form, "http://127.0.0.1:9")
    found = await outcome(backend)
    await backend.close()
    assert (found.failed.kind, found.failed.retryable) == ("network", True)
    assert "127.0.0.1:9" in found.failed.cause
    assert (found.usage.tokens_in, found.usage.tokens_out, found.usage.estimated) == (0, 0, False)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "answer",
    [
        Fail(401, message=f"invalid x-api-key: {KEY}"),
        Fail(500, message=f"{KEY}\nand more {KEY}"),
        ErrorEvent("api_error", f"key {KEY} broke"),
        Say(f"I refuse {KEY}", "refusal"),
        Raw(f"<html><title>{KEY}</title></html>".encode(), 502, "text/html"),
        Raw(f"plain {KEY}".encode(), 503, "text/plain"),
    ],
    ids=["401", "500", "event", "refusal", "title", "text"],
)
async def test_no_error_quotes_the_key(desk: Desk, form: str, answer: Answer) -> None:
    backend = desk.against(form, answer)
    error = (await outcome(backend)).failed
    assert KEY not in f"{error.cause} {error.fix} {error}"
    assert KEY[-12:] not in f"{error.cause} {error.fix} {error}"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["line", "utf8"])
async def test_damaged_bytes_never_end_in_another_kind_of_error(desk: Desk, form: str, kind: str) -> None:
    backend = desk.against(form, Garbage(kind, TEXT))  # type: ignore[arg-type]
    found = await outcome(backend)
    assert found.error is None or (found.error.kind, found.error.retryable) == ("garbled", True)
    assert found.text[:8] in TEXT


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "event",
    ["5", "[]", "null", '"x"', "{}", '{"type":"message_start"}', '{"type":"response.completed"}', '{"choices":[{}]}'],
)
async def test_events_of_another_shape_are_garbled_or_cut(desk: Desk, form: str, event: str) -> None:
    body = f"event: message_start\ndata: {event}\n\n".encode()
    backend = desk.against(form, Raw(body, 200, "text/event-stream"))
    error = (await outcome(backend)).failed
    assert (error.kind, error.retryable) in {("garbled", True), ("cut", True)}


@pytest.mark.parametrize("form", FORMS)
async def test_a_failure_in_mid_reply_is_accounted_for(desk: Desk, form: str) -> None:
    backend = desk.against(form, Cut("word " * 4000, 12_000))
    found = await outcome(backend)
    assert found.usage.estimated
    assert (found.usage.tokens_in or 0) > 0
    assert (found.usage.tokens_out or 0) >= 3000
    assert len(found.usages) > 4, "told while it arrives: an interrupted call is accounted for by the last one"


@cases(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after": "7", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "Wed, 99 Oct 99999 07:28:00 GMT"}, None),
        ({"retry-after-ms": "soon"}, None),
    ],
)
async def test_a_wait_is_read_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers) == seconds


async def test_a_wait_until_a_date_ends_then() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert 57 <= (retry_after({"retry-after": date}) or 0) <= 60


@cases("before", [0, 60, 170, 180, 190])
async def test_no_part_of_a_secret_is_quoted_of_what_a_service_says(before: int) -> None:
    own, token = "correct-horse-battery-staple", "ghp_" + "Zq7Lm2Rt9Vx4Bn6Kc8Wd1Fg3Hj5Ps0YaTe4X"
    for secret in (own, token):
        text = f"{' ' * before}{secret} {'x' * before} {secret} y"
        quoted = [
            _quoted({"error": {"message": text}}, (own,)),
            _quoted(f"<html><title>{text}</title></html>", (own,)),
            str(failed("claude", text, 401, log_in="log in", secrets=(own,))),
        ]
        assert [part for part in (secret[:12], secret[9:21], secret[-12:]) for said in quoted if part in said] == []

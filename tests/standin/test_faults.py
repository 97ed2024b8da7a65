"""Each answer and each fault of the stand-in, as a plain HTTP client sees it, in every form."""

from __future__ import annotations

import json
import time

import httpx2
import pytest

from tests.standin.asking import FORMS, ask
from tests.support.cases import cases
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
    Stall,
    StandIn,
    in_order,
)

pytestmark = pytest.mark.slow  # a tool of the tests is tried here, no promise


TEXT = "Grüße: one, two, three, four, five, six, seven, eight.\n" * 3
ENDINGS = {
    "messages": b'data: {"type":"message_stop"}\n\n',
    "chat": b"data: [DONE]\n\n",
    "responses": b"event: response.completed\n",
    "gemini": b'"finishReason":"STOP"',
}
every_form = pytest.mark.parametrize("form", FORMS)


def once(answer: Answer) -> StandIn:
    """A stand-in that always answers this."""
    return StandIn(in_order(answer))


def is_complete(form: str, raw: bytes) -> bool:
    """True when the form's sign of a proper end is there."""
    return ENDINGS[form] in raw


@every_form
def test_a_reply_streams_in_pieces_and_ends_properly(form: str) -> None:
    """The text arrives whole, in many events, and the form's own ending follows."""
    with once(Say(TEXT)) as server:
        came = ask(server, form)
    assert (came.status, came.text, came.error) == (200, TEXT, None)
    assert came.headers["content-type"].startswith("text/event-stream")
    assert is_complete(form, came.raw)
    assert len(came.events) > 5


@every_form
def test_a_reply_comes_in_one_piece_where_no_stream_is_asked_for(form: str) -> None:
    """Plain JSON with the whole text and its size announced."""
    with once(Say(TEXT)) as server:
        came = ask(server, form, stream=False)
    assert came.headers["content-type"] == "application/json"
    assert int(came.headers["content-length"]) == len(came.raw)
    assert TEXT in json.dumps(json.loads(came.raw), ensure_ascii=False).replace("\\n", "\n")


@every_form
def test_a_long_reply_arrives_whole(form: str) -> None:
    """Two million characters are no more events than two thousand."""
    with once(Say("é" * 2_000_000)) as server:
        came = ask(server, form)
    assert came.text == "é" * 2_000_000
    assert len(came.events) < 300


@every_form
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 429, 500, 502, 503, 529])
def test_an_error_status_comes_with_the_body_of_its_service(form: str, status: int, stream: bool) -> None:
    """Status, kind, message and retry-after, whether a stream was asked for or not."""
    with once(Fail(status, "some_kind", "It failed.", retry_after=1.5)) as server:
        came = ask(server, form, stream=stream)
    error = json.loads(came.raw)["error"]
    assert (came.status, error["message"], came.headers["retry-after"]) == (status, "It failed.", "1.5")
    assert "some_kind" in error.values()


@cases(
    ("form", "status", "kind"),
    [
        ("messages", 401, "authentication_error"),
        ("messages", 529, "overloaded_error"),
        ("messages", 500, "api_error"),
        ("chat", 401, "invalid_api_key"),
        ("responses", 429, "rate_limit_exceeded"),
        ("gemini", 429, "RESOURCE_EXHAUSTED"),
    ],
)
def test_an_error_without_a_kind_gets_the_usual_one(form: str, status: int, kind: str) -> None:
    """What the service would say with that status."""
    with once(Fail(status)) as server:
        assert kind in json.loads(ask(server, form).raw)["error"].values()


@every_form
def test_an_error_can_be_a_page_or_broken_json(form: str) -> None:
    """A proxy's page, and a body that nobody can read."""
    with StandIn(in_order(Fail(502, html=True), Fail(500, garbage=True))) as server:
        page, broken = ask(server, form), ask(server, form)
    assert (page.status, page.headers["content-type"]) == (502, "text/html; charset=utf-8")
    assert page.raw.startswith(b"<html>")
    assert broken.status == 500
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken.raw)


@every_form
def test_a_dropped_connection_gives_no_header(form: str) -> None:
    """Closed, and torn down; the request was seen both times."""
    with StandIn(in_order(Drop(), Drop(reset=True))) as server:
        with pytest.raises(httpx2.RemoteProtocolError):
            ask(server, form)
        with pytest.raises(httpx2.ReadError):
            ask(server, form)
        assert len(server.calls) == 2


def test_a_hanging_server_answers_nothing_for_its_time() -> None:
    """A client runs into its own timeout; one that waits sees the connection close."""
    with StandIn(in_order(Hang(30), Hang(0.3))) as server:
        with pytest.raises(httpx2.ReadTimeout):
            ask(server, "messages", timeout=0.2)
        begun = time.monotonic()
        with pytest.raises(httpx2.RemoteProtocolError):
            ask(server, "messages")
        assert time.monotonic() - begun >= 0.3


@every_form
@pytest.mark.parametrize("after", [0, 20, None, 10_000])
def test_a_cut_stream_breaks_off_where_it_was_told(form: str, after: int | None) -> None:
    """So many characters of the text arrive, then the connection is gone without an end."""
    with once(Cut(TEXT, after)) as server:
        came = ask(server, form)
    assert isinstance(came.error, httpx2.RemoteProtocolError)
    assert came.text == TEXT[: len(TEXT) // 2 if after is None else after]
    assert not is_complete(form, came.raw)


@every_form
@pytest.mark.parametrize("after", [0, 20, None, 10_000])
def test_a_stream_that_ends_early_looks_like_one_that_ended(form: str, after: int | None) -> None:
    """The HTTP answer is complete; the form's own ending is missing."""
    with once(EndEarly(TEXT, after)) as server:
        came = ask(server, form)
    assert came.error is None
    assert came.text == TEXT[: len(TEXT) // 2 if after is None else after]
    assert not is_complete(form, came.raw)


@every_form
def test_a_stalled_stream_rests_and_goes_on(form: str) -> None:
    """Half of the text, a rest, the other half and a proper end."""
    with StandIn(in_order(Stall(TEXT, seconds=0.4), Stall(TEXT, 30, seconds=30))) as server:
        begun = time.monotonic()
        came = ask(server, form)
        assert time.monotonic() - begun >= 0.4
        stalled = ask(server, form, timeout=0.3)
    assert (came.text, came.error) == (TEXT, None)
    assert is_complete(form, came.raw)
    assert isinstance(stalled.error, httpx2.ReadTimeout)
    assert stalled.text == TEXT[:30]


@every_form
@pytest.mark.parametrize("after", [0, 25])
def test_an_error_event_ends_a_stream(form: str, after: int) -> None:
    """It comes after the text that it was told to come after, and nothing follows."""
    with once(ErrorEvent("overloaded_error", "Too much.", after)) as server:
        came = ask(server, form)
    last = came.events[-1]
    assert "Too much." in json.dumps(last)
    assert "overloaded_error" in json.dumps(last)
    assert len(came.text) == after
    assert (came.error, is_complete(form, came.raw)) == (None, False)


def test_a_response_can_fail_by_its_own_event() -> None:
    """`response.failed` carries the error."""
    with once(ErrorEvent("server_error", "Sorry.", failed=True)) as server:
        last = ask(server, "responses").events[-1]
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "server_error", "message": "Sorry."}


@every_form
def test_an_answer_in_one_piece_breaks_as_a_stream_does(form: str) -> None:
    """Cut, ended early, stalled: half of a body; an error event is an error status."""
    with StandIn(in_order(Cut(TEXT), EndEarly(TEXT), Stall(TEXT, seconds=0.2), ErrorEvent())) as server:
        cut, early, stalled, error = (ask(server, form, stream=False) for _ in range(4))
    assert isinstance(cut.error, httpx2.RemoteProtocolError)
    assert early.error is None
    with pytest.raises(json.JSONDecodeError):
        json.loads(early.raw)
    assert "eight" in json.dumps(json.loads(stalled.raw))
    assert error.status == 500


@every_form
def test_garbage_is_what_nobody_can_read(form: str) -> None:
    """A bad line, bad UTF-8, broken JSON, a page, and bytes that are no HTTP."""
    kinds = [Garbage("line", TEXT), Garbage("utf8", TEXT), Garbage("body"), Garbage("html"), Garbage("noise")]
    with StandIn(in_order(*kinds)) as server:
        line, utf8, body, page = (ask(server, form) for _ in range(4))
        with pytest.raises(httpx2.RemoteProtocolError):
            ask(server, form)
    assert b"data: {not json\n\n" in line.raw
    assert is_complete(form, line.raw)
    with pytest.raises(UnicodeDecodeError):
        utf8.raw.decode()
    assert is_complete(form, utf8.raw)
    with pytest.raises(json.JSONDecodeError):
        json.loads(body.raw)
    assert (page.status, page.raw[:6]) == (200, b"<html>")


def test_a_raw_answer_is_sent_as_it_is() -> None:
    """Status, type and bytes."""
    with once(Raw(b"\x00\xff", 418, "image/png")) as server:
        came = ask(server, "chat")
    assert (came.status, came.headers["content-type"], came.raw) == (418, "image/png", b"\x00\xff")


def test_a_slow_reply_takes_its_time() -> None:
    """The text is spread over the seconds it was given."""
    with once(Say(TEXT, seconds=0.4)) as server:
        begun = time.monotonic()
        assert ask(server, "messages").text == TEXT
        assert time.monotonic() - begun >= 0.4


def test_answers_in_order_end_with_the_last_for_ever() -> None:
    """One after the other; the last one stays."""
    with StandIn(in_order(Fail(500), Say("a"), Say("b"))) as server:
        assert [ask(server, "chat").text for _ in range(4)] == ["", "a", "b", "b"]

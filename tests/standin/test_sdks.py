"""What the official SDKs make of the stand-in: they accept its answers, and its faults are the ones they know."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tests.support.pair import PATIENCE, stretched
from tests.support.standin import (
    Answer,
    Cut,
    Drop,
    EndEarly,
    ErrorEvent,
    Fail,
    Garbage,
    Hang,
    Say,
    Stall,
    StandIn,
    Use,
    in_order,
)

pytestmark = pytest.mark.slow  # a tool of the tests is tried here, no promise


TEXT = "Grüße: one, two, three, four, five, six. " * 5
FULL = Say(TEXT, tokens_in=100, tokens_out=20, cached=60, cache_write=10, thinking="Hm.")
TOOL: Any = {"path": "a.txt"}

STATUSES = {400: "BadRequestError", 401: "AuthenticationError", 403: "PermissionDeniedError", 404: "NotFoundError"}
STATUSES |= {429: "RateLimitError", 500: "InternalServerError"}


def asked(prompt: str = "Hi.") -> Any:
    """The messages of a request."""
    return [{"role": "user", "content": prompt}]


@pytest.fixture
async def anthropic() -> AsyncIterator[Any]:
    """The SDK, with clients that are closed at the end."""
    import anthropic as sdk

    clients: list[sdk.AsyncAnthropic] = []

    def client(server: StandIn, **more: Any) -> sdk.AsyncAnthropic:
        clients.append(sdk.AsyncAnthropic(base_url=server.url, api_key="sk-ant-test", max_retries=0, **more))
        return clients[-1]

    yield client
    for opened in clients:
        await opened.close()


@pytest.fixture
async def openai() -> AsyncIterator[Any]:
    """The SDK, with clients that are closed at the end."""
    import openai as sdk

    clients: list[sdk.AsyncOpenAI] = []

    def client(server: StandIn, **more: Any) -> sdk.AsyncOpenAI:
        clients.append(sdk.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="sk-test", max_retries=0, **more))
        return clients[-1]

    yield client
    for opened in clients:
        await opened.close()


async def message(client: Any, got: list[str] | None = None, prompt: str = "Hi.") -> Any:
    """Stream one message; `got` takes the text as it comes."""
    async with client.messages.stream(model="claude-opus-5-5", max_tokens=100, messages=asked(prompt)) as stream:
        async for piece in stream.text_stream:
            if got is not None:
                got.append(piece)
        return await stream.get_final_message()


async def completion(client: Any, got: list[str] | None = None, prompt: str = "Hi.") -> list[Any]:
    """Stream one chat completion: its chunks."""
    options = {"include_usage": True}
    stream = await client.chat.completions.create(
        model="m", messages=asked(prompt), stream=True, stream_options=options
    )
    chunks = []
    async for chunk in stream:
        chunks.append(chunk)
        if got is not None and chunk.choices:
            got.append(chunk.choices[0].delta.content or "")
    return chunks


async def response(client: Any, got: list[str] | None = None) -> list[Any]:
    """Stream one response: its events."""
    events = []
    async for event in await client.responses.create(model="m", input="Hi.", stream=True):
        events.append(event)
        if got is not None and event.type == "response.output_text.delta":
            got.append(event.delta)
    return events


async def test_messages_are_read_whole(anthropic: Any) -> None:
    with StandIn(in_order(FULL)) as server:
        said = await message(anthropic(server))
        plain = await anthropic(server).messages.create(model="m", max_tokens=100, messages=asked())
        assert server.seen[0].key == "sk-ant-test"
    for found in (said, plain):
        assert [block.type for block in found.content] == ["thinking", "text"]
        assert (found.content[1].text, found.stop_reason) == (TEXT, "end_turn")
        usage = found.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (30, 60, 10)
        assert usage.output_tokens == 20


@pytest.mark.parametrize("stop", ["max_tokens", "refusal", "model_context_window_exceeded"])
async def test_messages_stop_for_the_reason_given(anthropic: Any, stop: str) -> None:
    with StandIn(in_order(Say("No", stop=stop), Say(""))) as server:
        said, silent = await message(anthropic(server)), await message(anthropic(server))
    assert said.stop_reason == stop
    assert (said.stop_details is not None) == (stop == "refusal")
    assert (silent.content, silent.stop_reason) == ([], "end_turn")


async def test_tokens_that_were_not_given_are_a_quarter_of_the_characters(anthropic: Any, openai: Any) -> None:
    with StandIn(in_order(Say("x" * 400))) as server:
        usage = (await message(anthropic(server), prompt="y" * 4000)).usage
        assert (usage.input_tokens, usage.output_tokens) == (1000, 101)
        last = (await completion(openai(server), prompt="y" * 4000))[-1]
        assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (1000, 101)


async def test_a_stream_can_end_without_a_reason(anthropic: Any, openai: Any) -> None:
    with StandIn(in_order(Say(TEXT, stop=""))) as server:
        assert (await message(anthropic(server))).stop_reason is None
        assert (await completion(openai(server)))[-2].choices[0].finish_reason is None
        assert (await response(openai(server)))[-1].type == "response.output_item.done"


async def test_a_tool_is_called_in_every_form(anthropic: Any, openai: Any) -> None:
    with StandIn(in_order(Use("read", TOOL, say="Wait."))) as server:
        said = await message(anthropic(server))
        chunks = await completion(openai(server))
        async with openai(server).responses.stream(model="m", input="Hi.") as stream:
            final = await stream.get_final_response()
    assert (said.content[1].name, said.content[1].input, said.stop_reason) == ("read", TOOL, "tool_use")
    calls = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert json.loads(calls[-2].delta.tool_calls[0].function.arguments) == TOOL
    assert calls[-1].finish_reason == "tool_calls"
    assert (final.output[1].name, json.loads(final.output[1].arguments)) == ("read", TOOL)


async def test_completions_are_read_whole(openai: Any) -> None:
    got: list[str] = []
    with StandIn(in_order(FULL)) as server:
        chunks = await completion(openai(server), got)
        plain = await openai(server).chat.completions.create(model="m", messages=asked())
    assert "".join(got) == plain.choices[0].message.content == TEXT
    assert (chunks[-2].choices[0].finish_reason, chunks[-1].choices) == ("stop", [])
    for usage in (chunks[-1].usage, plain.usage):
        assert (usage.prompt_tokens, usage.completion_tokens) == (100, 20)
        assert usage.prompt_tokens_details.cached_tokens == 60


@pytest.mark.parametrize(
    ("stop", "finish"), [("max_tokens", "length"), ("refusal", "stop"), ("content_filter", "content_filter")]
)
async def test_completions_stop_in_their_own_words(openai: Any, stop: str, finish: str) -> None:
    with StandIn(in_order(Say("No", stop=stop))) as server:
        chunks = await completion(openai(server))
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert choices[-1].finish_reason == finish
    assert "".join(choice.delta.refusal or "" for choice in choices) == ("No" if stop == "refusal" else "")


async def test_responses_are_read_whole(openai: Any) -> None:
    with StandIn(in_order(FULL)) as server:
        async with openai(server).responses.stream(model="m", input="Hi.") as stream:
            types = [event.type async for event in stream]
            final = await stream.get_final_response()
        plain = await openai(server).responses.create(model="m", input="Hi.")
    assert (types[0], types[-1]) == ("response.created", "response.completed")
    for found in (final, plain):
        assert (found.output_text, found.status) == (TEXT, "completed")
        assert [item.type for item in found.output] == ["reasoning", "message"]
        assert (found.usage.input_tokens, found.usage.output_tokens) == (100, 20)
        assert found.usage.input_tokens_details.cached_tokens == 60


@pytest.mark.parametrize(
    ("stop", "last", "why"),
    [
        ("max_tokens", "response.incomplete", "max_output_tokens"),
        ("content_filter", "response.incomplete", "content_filter"),
        ("refusal", "response.completed", ""),
    ],
)
async def test_responses_stop_in_their_own_words(openai: Any, stop: str, last: str, why: str) -> None:
    with StandIn(in_order(Say("No", stop=stop))) as server:
        events = await response(openai(server))
    assert events[-1].type == last
    details = events[-1].response.incomplete_details
    assert (details.reason if details else "") == why
    assert events[-1].response.output[0].content[0].type == ("refusal" if stop == "refusal" else "output_text")


@pytest.mark.parametrize(("status", "name"), STATUSES.items())
async def test_error_statuses_are_the_errors_they_should_be(
    anthropic: Any, openai: Any, status: int, name: str
) -> None:
    with StandIn(in_order(Fail(status, "some_kind", "It failed."))) as server:
        for ask, client in ((message, anthropic), (completion, openai), (response, openai)):
            with pytest.raises(Exception, match=r"It failed\.") as caught:
                await ask(client(server))
            assert (type(caught.value).__name__, caught.value.status_code) == (name, status)
            assert "some_kind" in (getattr(caught.value, "type", ""), getattr(caught.value, "code", ""))


FAULTS: list[tuple[Answer, str, str, str]] = [
    # answer, and the error in messages, completions, responses ("" for none)
    (Fail(529), "OverloadedError", "InternalServerError", "InternalServerError"),
    (Fail(502, html=True), "InternalServerError", "InternalServerError", "InternalServerError"),
    (Fail(500, garbage=True), "InternalServerError", "InternalServerError", "InternalServerError"),
    (Drop(), "APIConnectionError", "APIConnectionError", "APIConnectionError"),
    (Drop(reset=True), "APIConnectionError", "APIConnectionError", "APIConnectionError"),
    (Hang(), "APITimeoutError", "APITimeoutError", "APITimeoutError"),
    (Cut(TEXT), "RemoteProtocolError", "APIConnectionError", "APIConnectionError"),
    (Stall(TEXT), "ReadTimeout", "APITimeoutError", "APITimeoutError"),
    (EndEarly(TEXT), "", "", ""),
    (ErrorEvent(text=TEXT, after=50), "APIStatusError", "APIError", ""),
    (Garbage("utf8"), "UnicodeDecodeError", "UnicodeDecodeError", "UnicodeDecodeError"),
    (Garbage("body"), "AssertionError", "", ""),
    (Garbage("html"), "AssertionError", "", ""),
    (Garbage("noise"), "APIConnectionError", "APIConnectionError", "APIConnectionError"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault[0])[:40])
async def test_faults_are_the_ones_the_sdks_know(
    anthropic: Any, openai: Any, fault: tuple[Answer, str, str, str]
) -> None:
    answer, *names = fault
    timeout = stretched(0.5) if isinstance(answer, Hang | Stall) else PATIENCE
    asking = ((message, anthropic), (completion, openai), (response, openai))
    with StandIn(in_order(answer)) as server:
        for (ask, client), name in zip(asking, names, strict=True):
            got: list[str] = []
            raised = await failure(ask, client(server, timeout=timeout), got)
            assert raised == name
            if isinstance(answer, Cut | Stall | EndEarly):
                assert "".join(got) == TEXT[: len(TEXT) // 2]
        assert len(server.calls) == 3


async def failure(ask: Any, client: Any, got: list[str]) -> str:
    """The name of the error that asking ends in, "" for none."""
    import anthropic as a
    import openai as o

    try:
        await ask(client, got)
    except (a.AnthropicError, o.OpenAIError, httpx2.HTTPError, ValueError, AssertionError) as error:
        return type(error).__name__
    return ""

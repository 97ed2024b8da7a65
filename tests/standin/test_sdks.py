"""What the official SDKs make of the stand-in: they accept its answers (its faults: tests/backends/test_api_faults)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.standin import Say, StandIn, Use, in_order

pytestmark = pytest.mark.slow  # a tool of the tests is tried here, no promise


TEXT = "Grüße: one, two, three, four, five, six. " * 5
FULL = Say(TEXT, tokens_in=100, tokens_out=20, cached=60, cache_write=10, thinking="Hm.")
TOOL: Any = {"path": "a.txt"}


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

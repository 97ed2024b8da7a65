"""The `anthropic` backend: Claude through the Messages API, streamed by the official SDK."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dialogd.backends import Found, Options, Request, Usage
from dialogd.backends import service as services
from dialogd.backends.parts import Prompt
from dialogd.backends.prices import Price, price_of
from dialogd.backends.service import Limiter, Reply, ending, events_of, failure, stream_of

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.types import MessageDeltaUsage, RawMessageStreamEvent
    from anthropic.types import Usage as MessageUsage

URL = "https://api.anthropic.com"
KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")

# The service's words for why a reply ended, in those of faults.ENDS.
STOPS = {
    "end_turn": "done",
    "stop_sequence": "done",
    "max_tokens": "length",
    "model_context_window_exceeded": "window",
    "pause_turn": "pause",
    "tool_use": "tool",
}


class Anthropic:
    """Asks `options.model`, with at most `options.max_tokens` per reply, at `options.effort`.

    The address is `options.base_url`, else ANTHROPIC_BASE_URL, else Anthropic's own. The key is ANTHROPIC_API_KEY,
    else ANTHROPIC_AUTH_TOKEN, of `options.variables`; nothing is taken from anywhere else. `silence` is how many
    seconds a stream may rest. Raises `BadInput` for an address that is none, and for a missing key.
    """

    name = "anthropic"
    costs = True

    def __init__(self, options: Options) -> None:
        variables = options.variables
        elsewhere = variables.get("ANTHROPIC_BASE_URL", "").strip()
        url = options.base_url or elsewhere or URL
        service = services.service_of(url, KEYS, variables, options.model, beside=elsewhere)
        self.service = replace(service, more=options.secrets)
        self.model = options.model
        self.most_out = options.max_tokens or services.MAX_TOKENS
        self.room = services.window_of(self.model) - self.most_out
        self.price: Price | None = price_of(self.model, "Anthropic", options.price)
        self.secrets = self.service.secrets
        self.limiter = Limiter(self.service.host, self.service.key, options.state)
        self.silence = services.SILENCE
        self._effort = options.effort
        self._headers = services.own_headers(variables, "ANTHROPIC_CUSTOM_HEADERS")
        self._client: AsyncAnthropic | None = None

    async def reply(self, request: Request) -> AsyncGenerator[str | Usage, None]:
        """Stream the model's text. Raises `BackendError` for everything else than a reply that ended by itself."""
        prompt = request.prompt()
        reply = Reply.to(prompt, self.model, services.most_out(request, prompt, self.most_out, self.price))
        yield Usage(self.model, calls=0)
        await self.limiter.ready(request.until)
        yield reply.used
        client = await self._connected()
        try:
            async with await client.messages.create(stream=True, **self.question(prompt, reply.most)) as stream:
                stream_of(stream.response.headers.get("content-type", ""))
                async with events_of(stream) as events:
                    async for event in events:
                        if text := _read(event, reply):
                            yield text
                        if news := reply.news():
                            yield news
        except _errors() as error:
            failed = failure(error, self.service, reply)
            self.limiter.heed(failed)
            yield reply.used
            raise failed from error
        yield reply.used
        if unfinished := ending(STOPS.get(reply.stop, reply.stop), self.service, reply, self.most_out):
            raise unfinished

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def question(self, prompt: Prompt, most: int) -> dict[str, Any]:
        """The body of a request for a reply of at most so many tokens."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": most,
            "system": [_cached(prompt.system)],
            "messages": [{"role": "user", "content": _blocks(prompt)}],
        }
        if self._effort:
            body["output_config"] = {"effort": self._effort}
        return body

    async def _connected(self) -> AsyncAnthropic:
        """The client, made with the first call; importing the SDK takes seconds, so it is done beside the loop."""
        await asyncio.to_thread(importlib.import_module, "anthropic")
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _connect(self) -> AsyncAnthropic:
        import anthropic

        key = self.service.key
        headers: dict[str, Any] = dict.fromkeys(services.ambient_headers("ANTHROPIC_CUSTOM_HEADERS"), anthropic.omit)
        headers |= {**self._headers, "Authorization": f"Bearer {key}"}
        if not self.service.is_official and self.service.variable != KEYS[1]:
            headers["X-Api-Key"] = key  # gateways older than the SDK's bearer tokens look for it here
        return anthropic.AsyncAnthropic(
            api_key=key or "none",
            base_url=self.service.url,
            webhook_key="",
            max_retries=0,  # call.py tries again
            timeout=anthropic.Timeout(self.silence, connect=services.CONNECT),
            default_headers=headers,
            http_client=anthropic.DefaultAsyncHttpxClient(**self.service.transport),
        )


def probe(variables: Mapping[str, str], _variant: str) -> Found:
    """Look for a key."""
    return services.key_found(variables, KEYS, "anthropic")


def _blocks(prompt: Prompt) -> list[dict[str, Any]]:
    """One block per part, with the breakpoint of the cache on the last one that never changes.

    The next turn's request has these blocks again, then some new ones, then another `now`. The cache is looked up from
    its breakpoint backwards, block by block and up to twenty of them, for what was written at an earlier breakpoint:
    so blocks are never merged, else their borders would move, and the few that are new never hide the old ones.
    """
    texts = [f"{part.text}\n\n" for part in prompt.parts]
    blocks = [{"type": "text", "text": text} for text in texts[:-1]]
    blocks += [_cached(text) for text in texts[-1:]]
    return [*blocks, {"type": "text", "text": prompt.now}]


def _cached(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}


def _read(event: RawMessageStreamEvent, reply: Reply) -> str:
    """Take an event into the reply; gives the text that it brought. Thinking is counted and left out."""
    if event.type == "content_block_delta":
        if event.delta.type == "text_delta":
            return reply.add(event.delta.text)
        if event.delta.type == "thinking_delta":
            reply.think(event.delta.thinking)
    elif event.type == "message_start":
        _count(event.message.usage, reply)
    elif event.type == "message_delta":
        reply.stop = event.delta.stop_reason or ""
        details = event.delta.stop_details
        reply.detail = (details.explanation or details.category or "") if details else ""
        _count(event.usage, reply)
        reply.usage = replace(reply.usage, tokens_out=event.usage.output_tokens, estimated=False)
    return ""


def _count(told: MessageUsage | MessageDeltaUsage, reply: Reply) -> None:
    """Take in what was read; the service counts what came from the cache, or went there, by itself."""
    if told.input_tokens is not None:
        cached, written = told.cache_read_input_tokens or 0, told.cache_creation_input_tokens or 0
        tokens = told.input_tokens + cached + written
        reply.usage = replace(reply.usage, tokens_in=tokens, cached=cached, cache_write=written)


def _errors() -> tuple[type[Exception], ...]:
    """What the SDK raises: its own errors, leaked ones of the transport and of JSON, and what odd events lead to."""
    import anthropic
    import httpx2

    # Events are built without a check, so that one of another shape fails where it is read.
    return (anthropic.AnthropicError, httpx2.HTTPError, ValueError, AttributeError, TypeError)

"""The `anthropic` backend: Claude through the Messages API, streamed by the official SDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from dialogd.backends import Found, Options, Request
from dialogd.backends.parts import Prompt
from dialogd.backends.prices import price_of
from dialogd.backends.service import API, StreamedReply, key_found, service_of

if TYPE_CHECKING:
    from anthropic.types import MessageDeltaUsage, RawMessageStreamEvent
    from anthropic.types import Usage as MessageUsage

URL = "https://api.anthropic.com"
KEYS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")


class Anthropic(API):
    """Asks `options.model`, with at most `options.max_tokens` per reply, at `options.effort`.

    The address is `options.base_url`, else ANTHROPIC_BASE_URL, else Anthropic's own. The key is ANTHROPIC_API_KEY,
    else ANTHROPIC_AUTH_TOKEN, from `options.variables` only.
    Raises `BadInput` for an invalid address, and for a missing key.
    """

    name = "anthropic"
    costs = True
    sdk = ("anthropic", "AsyncAnthropic", "AnthropicError")
    unasked: ClassVar[Mapping[str, str]] = {"webhook_key": ""}
    headers = "ANTHROPIC_CUSTOM_HEADERS"
    stops: ClassVar[Mapping[str, str]] = {
        "end_turn": "done",
        "stop_sequence": "done",
        "max_tokens": "length",
        "model_context_window_exceeded": "window",
        "pause_turn": "pause",
        "tool_use": "tool",
    }

    def __init__(self, options: Options) -> None:
        elsewhere = options.variables.get("ANTHROPIC_BASE_URL", "").strip()
        url = options.base_url or elsewhere or URL
        service = service_of(url, KEYS, options.variables, options.model, beside=elsewhere)
        super().__init__(options, service, price_of(options.model, "Anthropic", options.price))

    @staticmethod
    def probe(variables: Mapping[str, str], _variant: str = "") -> Found:
        """Look for a key."""
        return key_found(variables, KEYS, "anthropic")

    def question(self, request: Request, prompt: Prompt, most: int) -> dict[str, Any]:
        """The body of a request for a reply of at most so many tokens."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": most,
            "system": [_cached(prompt.system)],
            "messages": [{"role": "user", "content": _blocks(prompt)}],
        }
        return body | ({"output_config": {"effort": self._options.effort}} if self._options.effort else {})

    def create(self, client: Any) -> Any:
        """Messages."""
        return client.messages.create

    def reading(self, reply: StreamedReply) -> Callable[[Any], str]:
        """What takes an event into the reply."""
        return lambda event: _read(event, reply) if event is not None else ""

    def own_headers(self, omit: object) -> dict[str, Any]:
        """The person's headers, and the key in the header where older gateways look for it."""
        is_old = self.service.key and not self.service.is_official and self.service.variable != KEYS[1]
        return super().own_headers(omit) | ({"X-Api-Key": self.service.key} if is_old else {})


def _blocks(prompt: Prompt) -> list[dict[str, Any]]:
    """One block per part, with the cache breakpoint on the last one that never changes.

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


def _read(event: RawMessageStreamEvent, reply: StreamedReply) -> str:
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


def _count(told: MessageUsage | MessageDeltaUsage, reply: StreamedReply) -> None:
    """Add up what was read; the service counts cache reads and writes separately."""
    if told.input_tokens is not None:
        cached, written = told.cache_read_input_tokens or 0, told.cache_creation_input_tokens or 0
        tokens = told.input_tokens + cached + written
        reply.usage = replace(reply.usage, tokens_in=tokens, cached=cached, cache_write=written)

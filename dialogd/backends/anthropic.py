"""The `anthropic` backend: Claude through the Messages API, streamed by the official SDK."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from dialogd.backends import Found, Options, Request
from dialogd.backends.parts import Prompt
from dialogd.backends.prices import price_of
from dialogd.backends.service import API, Exchange, StreamedReply, Use, key_found, service_of

if TYPE_CHECKING:
    from anthropic.types import MessageDeltaUsage, RawMessageStreamEvent
    from anthropic.types import Usage as MessageUsage

    from dialogd.backends.tools import OfferedTool

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
        choice = {} if may_call else {"tool_choice": {"type": "none"}}
        return body | {"messages": messages, "tools": tools} | choice

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
        if reply.may_use:
            _take(event.delta, reply)
        if event.delta.type == "text_delta":
            return reply.add(event.delta.text)
        if event.delta.type == "thinking_delta":
            reply.think(event.delta.thinking)
    elif event.type == "content_block_start" and reply.may_use:
        block: dict[str, Any] = event.content_block.to_dict()
        reply.said.append({name: block[name] for name in _KEPT.get(block["type"], ()) if name in block})
    elif event.type == "content_block_stop" and reply.said and reply.said[-1].get("type") == "tool_use":
        block = reply.said[-1]
        written = block["input"] if isinstance(block["input"], str) else json.dumps(block["input"])
        reply.uses.append(Use(str(block["id"]), str(block["name"]), written))
        block["input"] = _object(written)
    elif event.type == "message_start":
        _count(event.message.usage, reply)
    elif event.type == "message_delta":
        reply.stop = event.delta.stop_reason or ""
        details = event.delta.stop_details
        reply.detail = (details.explanation or details.category or "") if details else ""
        _count(event.usage, reply)
        reply.usage = replace(reply.usage, tokens_out=event.usage.output_tokens, estimated=False)
    return ""


# What of a block is sent back with what came of the calls in it; thoughts belong to them, and are signed.
_KEPT: Mapping[str, tuple[str, ...]] = {
    "text": ("type", "text"),
    "thinking": ("type", "thinking", "signature"),
    "redacted_thinking": ("type", "data"),
    "tool_use": ("type", "id", "name", "input"),
}


def _take(delta: Any, reply: StreamedReply) -> None:
    """Add a piece to the block that it belongs to, as that is sent back."""
    if not reply.said:
        return
    block = reply.said[-1]
    for name in ("text", "thinking", "signature"):
        if isinstance(piece := getattr(delta, name, None), str):
            block[name] = block.get(name, "") + piece
    if isinstance(piece := getattr(delta, "partial_json", None), str):
        block["input"] = (block["input"] if isinstance(block.get("input"), str) else "") + piece


def _object(written: str) -> dict[str, Any]:
    """Arguments as they are sent back: the service takes only an object, the model may have written anything."""
    try:
        found = json.loads(written or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _count(told: MessageUsage | MessageDeltaUsage, reply: StreamedReply) -> None:
    """Add up what was read; the service counts cache reads and writes separately."""
    if told.input_tokens is not None:
        cached, written = told.cache_read_input_tokens or 0, told.cache_creation_input_tokens or 0
        tokens = told.input_tokens + cached + written
        reply.usage = replace(reply.usage, tokens_in=tokens, cached=cached, cache_write=written)

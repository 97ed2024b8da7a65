"""Anthropic's Messages, as the service speaks it: one message, a stream of events, errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.support.standin.form import (
    Event,
    Json,
    Reply,
    Said,
    Stage,
    compact,
    dicts,
    number_in,
    since_the_model,
    sse,
    strings,
    text_of,
    with_system,
)

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
THOUGHTS = ("thinking", "redacted_thinking")


class Messages:
    """`POST /v1/messages`."""

    def read(self, body: Json) -> Said:
        messages = dicts(body.get("messages"))
        said = [(_role(message), _text(message.get("content"))) for message in messages]
        system, said_by_users = with_system(text_of(body.get("system")), said)
        blocks = [block for message in since_the_model(messages) for block in dicts(message.get("content"))]
        results = tuple(
            (block.get("is_error") is True, text_of(block.get("content")))
            for block in blocks
            if block.get("type") == "tool_result"
        )
        tools = strings([tool.get("name") for tool in dicts(body.get("tools"))])
        return Said(system, said_by_users, results, tools)

    def objection(self, body: Json, thoughts: Mapping[int, Reply]) -> str:
        """A message that calls a tool begins with the thoughts as they were signed."""
        for at, message in enumerate(dicts(body.get("messages"))):
            blocks = dicts(message.get("content"))
            calls = (number_in(block.get("id")) for block in blocks if block.get("type") == "tool_use")
            thought = next((thoughts[number] for number in calls if number in thoughts), None)
            if thought is None or blocks[0] == _thought(thought):
                continue
            if blocks[0].get("type") in THOUGHTS:
                return (
                    f"messages.{at}.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message"
                    " cannot be modified. These blocks must remain as they were in the original response."
                )
            return (
                f"messages.{at}.content.0.type: Expected `thinking` or `redacted_thinking`, but found"
                f" `{blocks[0].get('type')}`. When `thinking` is enabled, a final `assistant` message must start with a"
                " thinking block (preceding the lastmost set of `tool_use` and `tool_result` blocks)."
            )
        return ""

    def stream(self, reply: Reply, body: Json) -> Iterator[Event]:
        start: Json = {**_message(reply), "content": [], "stop_reason": None, "usage": _usage(reply, tokens_out=1)}
        yield Event(_event("message_start", message=start))
        yield Event(_event("ping"))
        index = 0
        if reply.thinking:
            yield from _thinking(reply)
            index += 1
        if reply.text:
            yield Event(_event("content_block_start", index=index, content_block={"type": "text", "text": ""}))
            for piece in reply.pieces():
                delta: Json = {"type": "text_delta", "text": piece}
                yield Event(_event("content_block_delta", index=index, delta=delta), Stage.TEXT, len(piece))
            yield Event(_event("content_block_stop", index=index), Stage.CLOSING)
            index += 1
        if reply.tool is not None:
            yield from _tool(reply, index)
        delta = {"stop_reason": _stop(reply), "stop_sequence": None, **_stop_details(reply)}
        yield Event(_event("message_delta", delta=delta, usage=_usage(reply)), Stage.CLOSING)
        yield Event(_event("message_stop"), Stage.CLOSING)

    def plain(self, reply: Reply, body: Json) -> object:
        content: list[Json] = []
        if reply.thinking:
            content.append(_thought(reply))
        if reply.text:
            content.append({"type": "text", "text": reply.text})
        if reply.tool is not None:
            content.append({**_tool_block(reply), "input": _input(reply)})
        return {
            **_message(reply),
            "content": content,
            "stop_reason": _stop(reply),
            **_stop_details(reply),
            "usage": _usage(reply),
        }

    def failure(self, status: int, kind: str, message: str) -> Json:
        kind = kind or KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
        error = {"type": kind, "message": message or kind.replace("_", " ").capitalize()}
        return {"type": "error", "error": error, "request_id": "req_standin"}

    def error_event(self, kind: str, message: str, failed: bool) -> bytes:
        return _event("error", error={"type": kind, "message": message})


def _event(name: str, **fields: object) -> bytes:
    return sse({"type": name, **fields}, name)


def _role(message: Json) -> str:
    """The role; `tool` for a message of nothing but results of tools."""
    types = {part.get("type") for part in dicts(message.get("content"))}
    return "tool" if types == {"tool_result"} else str(message.get("role"))


def _text(content: object) -> str:
    """The text of a message, with that of the results of tools in it."""
    if isinstance(content, str):
        return content
    parts = [part.get("content") if part.get("type") == "tool_result" else [part] for part in dicts(content)]
    return "\n".join(text for part in parts if (text := text_of(part)))


def _message(reply: Reply) -> Json:
    return {
        "id": f"msg_standin{reply.number:06}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "stop_sequence": None,
    }


def _usage(reply: Reply, tokens_out: int | None = None) -> Json:
    return {
        "input_tokens": max(reply.tokens_in - reply.cached - reply.cache_write, 0),
        "cache_creation_input_tokens": reply.cache_write,
        "cache_read_input_tokens": reply.cached,
        "cache_creation": {"ephemeral_5m_input_tokens": reply.cache_write, "ephemeral_1h_input_tokens": 0},
        "output_tokens": reply.tokens_out if tokens_out is None else tokens_out,
        "service_tier": "standard",
    }


def _stop(reply: Reply) -> str | None:
    return reply.stop or None


def _stop_details(reply: Reply) -> Json:
    if reply.stop != "refusal":
        return {}
    return {"stop_details": {"type": "refusal", "category": None, "explanation": "The stand-in refuses."}}


def _thinking(reply: Reply) -> Iterator[Event]:
    block = _thought(reply)
    begun = block if reply.is_sealed else {**block, "thinking": "", "signature": ""}
    yield Event(_event("content_block_start", index=0, content_block=begun))
    half = len(reply.thinking) // 2
    thoughts = () if reply.is_sealed else (reply.thinking[:half], reply.thinking[half:])
    for piece in thoughts:
        yield Event(_event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": piece}))
    if thoughts:
        signed = {"type": "signature_delta", "signature": reply.seal}
        yield Event(_event("content_block_delta", index=0, delta=signed))
    yield Event(_event("content_block_stop", index=0))


def _thought(reply: Reply) -> Json:
    if reply.is_sealed:
        return {"type": "redacted_thinking", "data": reply.seal}
    return {"type": "thinking", "thinking": reply.thinking, "signature": reply.seal}


def _tool_block(reply: Reply) -> Json:
    name = reply.tool[0] if reply.tool else ""
    return {"type": "tool_use", "id": f"toolu_standin{reply.number:06}", "name": name, "input": {}}


def _input(reply: Reply) -> Json:
    given = reply.tool[1] if reply.tool else {}
    return {"input": given} if isinstance(given, str) else dict(given)


def _tool(reply: Reply, index: int) -> Iterator[Event]:
    yield Event(_event("content_block_start", index=index, content_block=_tool_block(reply)), Stage.CLOSING)
    delta = {"type": "input_json_delta", "partial_json": compact(_input(reply))}
    yield Event(_event("content_block_delta", index=index, delta=delta), Stage.CLOSING)
    yield Event(_event("content_block_stop", index=index), Stage.CLOSING)

"""OpenAI's Chat Completions, as OpenAI, xAI, Ollama, vLLM and others speak it."""

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

STOPS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "refusal": "stop",
    "max_tokens": "length",
    "tool_use": "tool_calls",
}
KINDS = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    403: ("invalid_request_error", "unsupported_country_region_territory"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}


class Chat:
    """`POST /v1/chat/completions`."""

    def read(self, body: Json) -> Said:
        messages = dicts(body.get("messages"))
        said = [(str(message.get("role")), text_of(message.get("content"))) for message in messages]
        system, rest = with_system("", said)
        recent = since_the_model(messages)
        results = tuple((False, text_of(m.get("content"))) for m in recent if m.get("role") == "tool")
        functions = [tool.get("function") for tool in dicts(body.get("tools"))]
        return Said(system, rest, results, strings([tool.get("name") for tool in dicts(functions)]))

    def objection(self, body: Json, thoughts: Mapping[int, Reply]) -> str:
        """A message that calls a tool has the thoughts that led to it, as models behind this form that think want."""
        for at, message in enumerate(dicts(body.get("messages"))):
            for call in dicts(message.get("tool_calls")):
                thought = thoughts.get(number_in(call.get("id")))
                if thought is not None and message.get("reasoning_content") != thought.thinking:
                    return f"Missing `reasoning_content` field in the assistant message at message index {at}"
        return ""

    def stream(self, reply: Reply, body: Json) -> Iterator[Event]:
        yield Event(_chunk(reply, {"role": "assistant", "content": ""}))
        if reply.thinking:
            yield Event(_chunk(reply, {"reasoning_content": reply.thinking}))
        key = "refusal" if reply.stop == "refusal" else "content"
        for piece in reply.pieces():
            yield Event(_chunk(reply, {key: piece}), Stage.TEXT, len(piece))
        if reply.tool is not None:
            yield Event(_chunk(reply, {"tool_calls": [{"index": 0, **_call(reply)}]}), Stage.CLOSING)
        yield Event(_chunk(reply, {}, _stop(reply)), Stage.CLOSING)
        options = body.get("stream_options")
        if isinstance(options, dict) and options.get("include_usage"):
            usage = {**_head(reply, "chat.completion.chunk"), "choices": [], "usage": usage_of(reply)}
            yield Event(sse(usage), Stage.CLOSING)
        yield Event(sse("[DONE]"), Stage.CLOSING)

    def plain(self, reply: Reply, body: Json) -> object:
        message: Json = {"role": "assistant", "content": reply.text, "refusal": None}
        if reply.stop == "refusal":
            message |= {"content": None, "refusal": reply.text}
        if reply.thinking:
            message["reasoning_content"] = reply.thinking
        if reply.tool is not None:
            message |= {"content": reply.text or None, "tool_calls": [_call(reply)]}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _stop(reply)}
        return {**_head(reply, "chat.completion"), "choices": [choice], "usage": usage_of(reply)}

    def failure(self, status: int, kind: str, message: str) -> Json:
        return failure(status, kind, message)

    def error_event(self, kind: str, message: str, failed: bool) -> bytes:
        return sse({"error": {"message": message, "type": kind, "param": None, "code": kind}})


def failure(status: int, kind: str, message: str) -> Json:
    """The body of an OpenAI error; `kind` is its code."""
    type_, code = KINDS.get(status, ("server_error", None) if status >= 500 else ("invalid_request_error", None))
    type_, code = (kind, kind) if kind else (type_, code)
    return {
        "error": {"message": message or f"The stand-in answers {status}.", "type": type_, "param": None, "code": code}
    }


def usage_of(reply: Reply) -> Json:
    return {
        "prompt_tokens": reply.tokens_in,
        "completion_tokens": reply.tokens_out,
        "total_tokens": reply.tokens_in + reply.tokens_out,
        "prompt_tokens_details": {"cached_tokens": reply.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def _head(reply: Reply, kind: str) -> Json:
    return {"id": f"chatcmpl-standin{reply.number:06}", "object": kind, "created": 1_700_000_000, "model": reply.model}


def _chunk(reply: Reply, delta: Json, stop: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": stop}
    return sse({**_head(reply, "chat.completion.chunk"), "choices": [choice]})


def _stop(reply: Reply) -> str | None:
    return STOPS.get(reply.stop, reply.stop) or None


def _call(reply: Reply) -> Json:
    name, given = reply.tool or ("", {})
    arguments = given if isinstance(given, str) else compact(dict(given))
    return {
        "id": f"call_standin{reply.number:06}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }

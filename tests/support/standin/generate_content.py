"""Google's generateContent, as the Gemini API speaks it."""

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
    since_the_model,
    sse,
    strings,
    text_of,
)

STOPS = {
    "end_turn": "STOP",
    "stop_sequence": "STOP",
    "tool_use": "STOP",
    "max_tokens": "MAX_TOKENS",
    "refusal": "SAFETY",
}
KINDS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
CODES = {kind: status for status, kind in KINDS.items()}


class GenerateContent:
    """`POST /v1beta/models/NAME:streamGenerateContent?alt=sse` and `:generateContent`."""

    def read(self, body: Json) -> Said:
        contents = dicts(body.get("contents"))
        said = tuple((_role(content), _text(content.get("parts"))) for content in contents)
        system = body.get("systemInstruction") or body.get("system_instruction")
        parts = [part for content in since_the_model(contents) for part in dicts(content.get("parts"))]
        results = tuple(result for part in parts if (result := _result(part)) is not None)
        tools = [tool for group in dicts(body.get("tools")) for tool in _declarations(group)]
        names = strings([tool.get("name") for tool in tools])
        return Said(text_of(system.get("parts")) if isinstance(system, dict) else "", said, results, names)

    def objection(self, body: Json, thoughts: Mapping[int, Reply]) -> str:
        """Nothing: no participant of dialogd's own speaks this form."""
        return ""

    def stream(self, reply: Reply, body: Json) -> Iterator[Event]:
        if reply.thinking:
            yield Event(sse(_answer(reply, [{"text": reply.thinking, "thought": True}])))
        for piece in reply.pieces():
            yield Event(sse(_answer(reply, [{"text": piece}])), Stage.TEXT, len(piece))
        if reply.tool is not None:
            yield Event(sse(_answer(reply, [_call(reply)])), Stage.CLOSING)
        last = [] if reply.tool is not None else [{"text": ""}]
        yield Event(sse(_answer(reply, last, STOPS.get(reply.stop, reply.stop))), Stage.CLOSING)

    def plain(self, reply: Reply, body: Json) -> object:
        parts: list[Json] = [{"text": reply.thinking, "thought": True}] if reply.thinking else []
        parts += [{"text": reply.text}] if reply.text else []
        parts += [_call(reply)] if reply.tool is not None else []
        return _answer(reply, parts, STOPS.get(reply.stop, reply.stop))

    def failure(self, status: int, kind: str, message: str) -> Json:
        """The body of an error; `kind` is its status word."""
        word = kind or KINDS.get(status, "INTERNAL" if status >= 500 else "FAILED_PRECONDITION")
        return {"error": {"code": status, "message": message or f"The stand-in answers {status}.", "status": word}}

    def error_event(self, kind: str, message: str, failed: bool) -> bytes:
        return sse(self.failure(CODES.get(kind, 503), kind, message))


def _declarations(group: Json) -> list[Json]:
    return dicts(group.get("functionDeclarations") or group.get("function_declarations"))


def _role(content: Json) -> str:
    """The role; `tool` for a message of nothing but results of tools."""
    parts = dicts(content.get("parts"))
    return "tool" if parts and all(_result(part) for part in parts) else str(content.get("role") or "user")


def _text(parts: object) -> str:
    """The text of a message, with that of the results of tools in it."""
    texts = [result[1] if (result := _result(part)) else text_of([part]) for part in dicts(parts)]
    return "\n".join(text for text in texts if text)


def _result(part: Json) -> tuple[bool, str] | None:
    answer = part.get("functionResponse")
    response = answer.get("response") if isinstance(answer, dict) else None
    if not isinstance(response, dict):
        return None
    for key in ("error", "output"):
        if key in response:
            value = response[key]
            return key == "error", value if isinstance(value, str) else compact(value)
    return False, compact(response)


def _call(reply: Reply) -> Json:
    name, given = reply.tool or ("", {})
    arguments = {"input": given} if isinstance(given, str) else dict(given)
    return {"functionCall": {"id": f"call_standin{reply.number:06}", "name": name, "args": arguments}}


def _answer(reply: Reply, parts: list[Json], stop: str = "") -> Json:
    candidate: Json = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if stop:
        candidate["finishReason"] = stop
    usage = {
        "promptTokenCount": reply.tokens_in,
        "candidatesTokenCount": reply.tokens_out,
        "totalTokenCount": reply.tokens_in + reply.tokens_out,
        "cachedContentTokenCount": reply.cached,
    }
    return {
        "candidates": [candidate],
        "usageMetadata": usage,
        "modelVersion": reply.model,
        "responseId": f"standin{reply.number:06}",
    }

"""A model API on the loopback that plays a script, for proving a coding agent read-only.

It speaks Messages, Chat Completions, Responses and generateContent, always in streams, and only as far as that needs.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import takewhile
from types import TracebackType
from typing import Any

Json = dict[str, Any]
_PATH = re.compile(r"/(messages|chat/completions|responses)$|/models/([^/:]+):streamGenerateContent$")
_CALLS = frozenset({"function_call", "custom_tool_call", "local_shell_call", "reasoning"})


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of one of the agent's tools; a free text as its input is for Responses only."""

    tool: str
    input: Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request: the model, the whole body, and (is an error, text) of the tools that ran since the model spoke."""

    model: str
    text: str
    results: tuple[tuple[bool, str], ...]


class FakeService:
    """Serves at `url` until the end of the `with`; `script` answers each request with a call or a text, one at a time.

    What asks no model gets a count of tokens, or a 404. `fetched` are the paths of whatever was got or asked for there.
    """

    def __init__(self, script: Callable[[ModelRequest], ToolCall | str]) -> None:
        self._script = script
        self._lock = threading.Lock()
        self.fetched: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *given: _Handler(self, *given))
        self._server.daemon_threads, self._server.block_on_close = True, False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeService:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, raw: bytes) -> bytes | None:
        """The stream for a request to a model; None for any other request."""
        match = _PATH.search(path.partition("?")[0])
        if match is None:
            return None
        body: Json = json.loads(raw)
        model = match[2] or str(body.get("model"))
        items = body.get("messages") or body.get("contents") or body.get("input")
        results = tuple(_results(items if isinstance(items, list) else []))
        with self._lock:
            answer = self._script(ModelRequest(model, raw.decode("utf-8", "replace"), results))
        stream = {"messages": _messages, "chat/completions": _chat, "responses": _responses}.get(match[1], _generate)
        return "".join(_sse(event) for event in stream(model, answer)).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, service: FakeService, *given: Any) -> None:
        self._service = service
        super().__init__(*given)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        stream = self._service.answer(self.path, raw)
        counted = json.dumps({"input_tokens": 1, "totalTokens": 1}).encode()
        self._send(counted if stream is None else stream, "application/json" if stream is None else "text/event-stream")

    def do_GET(self) -> None:
        self._service.fetched.append(self.path)
        self._send(b"{}", "application/json", 404)

    do_HEAD = do_GET

    def _send(self, body: bytes, content_type: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle(self) -> None:
        """Serve the connection; an agent that is killed closes it in the middle."""
        try:
            super().handle()
        except ConnectionError:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""


def _results(items: list[Json]) -> Iterator[tuple[bool, str]]:
    """The results of tools since the model last spoke, oldest first."""
    new = takewhile(
        lambda item: item.get("role") not in ("assistant", "model") and item.get("type") not in _CALLS, items[::-1]
    )
    for item in [*new][::-1]:
        inner = [item.get("content"), item.get("parts")]
        for part in (item, *(part for parts in inner if isinstance(parts, list) for part in parts)):
            kind, response = str(part.get("type")), part.get("functionResponse")
            if part.get("role") == "tool":
                yield False, _text(part.get("content"))
            elif kind == "tool_result":
                yield part.get("is_error") is True, _text(part.get("content"))
            elif kind.endswith("_call_output"):
                yield part.get("status") == "failed" or part.get("success") is False, _text(part.get("output"))
            elif response:
                yield "error" in response["response"], _text(response["response"])


def _text(content: object) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _sse(event: Json | str) -> str:
    if isinstance(event, str):
        return f"data: {event}\n\n"
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n"


def _messages(model: str, answer: ToolCall | str) -> Iterator[Json]:
    is_call = isinstance(answer, ToolCall)
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": [], "usage": usage}
    yield {"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None}}
    if isinstance(answer, ToolCall):
        block: Json = {"type": "tool_use", "id": _new("toolu"), "name": answer.tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(answer.input)}
    else:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": answer}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    stop = {"stop_reason": "tool_use" if is_call else "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": usage}
    yield {"type": "message_stop"}


def _chat(model: str, answer: ToolCall | str) -> Iterator[Json | str]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}
    if isinstance(answer, ToolCall):
        function = {"name": answer.tool, "arguments": json.dumps(answer.input)}
        call = {"index": 0, "id": _new("call"), "type": "function", "function": function}
        delta: Json = {"role": "assistant", "content": None, "tool_calls": [call]}
    else:
        delta = {"role": "assistant", "content": answer}
    stop = "tool_calls" if isinstance(answer, ToolCall) else "stop"
    for part, reason in ((delta, None), ({}, stop)):
        yield {**head, "choices": [{"index": 0, "delta": part, "finish_reason": reason}]}
    yield {**head, "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
    yield "[DONE]"


def _responses(model: str, answer: ToolCall | str) -> Iterator[Json]:
    if isinstance(answer, ToolCall):
        item: Json = {"id": _new("fc"), "status": "completed", "name": answer.tool, "call_id": _new("call")}
        if isinstance(answer.input, str):
            item |= {"type": "custom_tool_call", "input": answer.input}
        else:
            item |= {"type": "function_call", "arguments": json.dumps(answer.input)}
    else:
        content = [{"type": "output_text", "text": answer, "annotations": []}]
        item = {"id": _new("msg"), "type": "message", "role": "assistant", "status": "completed", "content": content}
    usage: Json = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    response = {"id": _new("resp"), "object": "response", "created_at": 1, "model": model, "output": []}
    yield {"type": "response.created", "response": {**response, "status": "in_progress"}}
    yield {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    done = {**response, "status": "completed", "output": [item], "usage": usage}
    yield {"type": "response.completed", "response": done}


def _generate(model: str, answer: ToolCall | str) -> Iterator[Json]:
    part: Json = {"text": answer}
    if isinstance(answer, ToolCall):
        part = {"functionCall": {"id": _new("call"), "name": answer.tool, "args": answer.input}}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    candidate = {"content": {"parts": [part], "role": "model"}, "index": 0, "finishReason": "STOP"}
    yield {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model, "responseId": _new("id")}


def _new(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"

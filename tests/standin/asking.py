"""Requests in the four forms, and what comes back, seen by a plain HTTP client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2

from tests.support.standin import StandIn

FORMS = ("messages", "chat", "responses", "gemini")
PATHS = {
    "messages": "/v1/messages?beta=true",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "gemini": "/v1beta/models/gem:generateContent",
}
STREAMING = {**PATHS, "gemini": "/v1beta/models/gem:streamGenerateContent?alt=sse"}
SYSTEM, QUESTION = "Be brief.", "Where do sessions live?"


def body_of(form: str, *, stream: bool = True) -> dict[str, Any]:
    """A request with a system prompt and a question."""
    message = {"role": "user", "content": QUESTION}
    if form == "messages":
        return {"model": "m", "max_tokens": 9, "stream": stream, "system": SYSTEM, "messages": [message]}
    if form == "chat":
        system = {"role": "system", "content": SYSTEM}
        options = {"stream_options": {"include_usage": True}} if stream else {}
        return {"model": "m", "stream": stream, "messages": [system, message], **options}
    if form == "responses":
        return {"model": "m", "stream": stream, "instructions": SYSTEM, "input": [message]}
    contents = [{"role": "user", "parts": [{"text": QUESTION}]}]
    return {"systemInstruction": {"parts": [{"text": SYSTEM}]}, "contents": contents}


@dataclass(frozen=True)
class Came:
    """What a client got: status, headers, the body as far as it came, and what broke off, if anything did."""

    status: int
    headers: httpx2.Headers
    raw: bytes
    error: httpx2.HTTPError | None = None

    @property
    def events(self) -> list[Any]:
        """The data of each event of a stream, `[DONE]` left out."""
        lines = [line[6:] for line in self.raw.decode().split("\n") if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    @property
    def text(self) -> str:
        """The text of a stream, whatever its form."""
        return "".join(piece for event in self.events for piece in pieces(event))


def pieces(event: dict[str, Any]) -> Iterator[str]:
    """The text that an event of a stream carries."""
    if event.get("type") == "content_block_delta":
        yield event["delta"].get("text", "")
    elif event.get("type") == "response.output_text.delta":
        yield event["delta"]
    for choice in event.get("choices", []):
        yield choice["delta"].get("content") or ""
    for candidate in event.get("candidates", []):
        yield from (part.get("text", "") for part in candidate["content"]["parts"])


def ask(server: StandIn, form: str, *, stream: bool = True, timeout: float = 20.0) -> Came:
    """Ask once. Raises `httpx2.HTTPError` when not even headers come."""
    path = (STREAMING if stream else PATHS)[form]
    chunks: list[bytes] = []
    with (
        httpx2.Client(timeout=timeout, trust_env=False, verify=False) as client,
        client.stream("POST", server.url + path, json=body_of(form, stream=stream)) as response,
    ):
        try:
            for chunk in response.iter_raw():
                chunks.append(chunk)
        except httpx2.HTTPError as error:
            return Came(response.status_code, response.headers, b"".join(chunks), error)
        return Came(response.status_code, response.headers, b"".join(chunks))

"""One request as the stand-in saw it, and which wire format it speaks."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from urllib.parse import parse_qs

from dialogd.standin.chat import Chat
from dialogd.standin.form import Form, Json, Said
from dialogd.standin.gemini import Gemini
from dialogd.standin.messages import Messages
from dialogd.standin.responses import Responses

FORMS: Mapping[str, Form] = {
    "messages": Messages(),
    "chat": Chat(),
    "responses": Responses(),
    "gemini": Gemini(),
}

_GEMINI = re.compile(r"/models/([^/:]+):(streamGenerateContent|generateContent)$")
_ENDINGS = {"/messages": "messages", "/chat/completions": "chat", "/responses": "responses"}
_NOTHING = Said("", ())


@dataclass(frozen=True)
class Seen:
    """A request. Header names are in lower case, `at` is a monotonic time in seconds, `number` counts from 1."""

    method: str
    path: str
    headers: Mapping[str, str] = field(repr=False)
    raw: bytes = field(repr=False)
    at: float
    number: int
    query: str = ""

    @cached_property
    def body(self) -> Json | None:
        """The body as a JSON object, None when it is none."""
        try:
            value = json.loads(_unpacked(self.raw, self.headers.get("content-encoding", "")))
        except (ValueError, OSError, EOFError, zlib.error):
            return None
        return value if isinstance(value, dict) else None

    @property
    def form(self) -> str:
        """`messages`, `chat`, `responses`, `gemini`; "" for a request that asks no model."""
        if self.method != "POST":
            return ""
        if _GEMINI.search(self.path):
            return "gemini"
        return next((form for ending, form in _ENDINGS.items() if self.path.endswith(ending)), "")

    @property
    def stream(self) -> bool:
        """True when the answer is wanted as a stream."""
        if found := _GEMINI.search(self.path):
            return found[2] == "streamGenerateContent"
        return bool(self.body and self.body.get("stream"))

    @property
    def model(self) -> str:
        """The model that is asked."""
        if found := _GEMINI.search(self.path):
            return found[1]
        return str((self.body or {}).get("model", ""))

    @property
    def key(self) -> str:
        """The key that was sent, in whichever way; "" without one."""
        named = self.headers.get("x-api-key") or self.headers.get("x-goog-api-key")
        bearer = self.headers.get("authorization", "").partition(" ")[2]
        return named or bearer or parse_qs(self.query).get("key", [""])[0]

    @cached_property
    def said(self) -> Said:
        """What the request holds, whatever its form."""
        return FORMS[self.form].read(self.body) if self.form and self.body else _NOTHING

    @property
    def system(self) -> str:
        """The system prompt."""
        return self.said.system

    @cached_property
    def prompt(self) -> str:
        """All text of the request's input: the system prompt, then every message, results of tools too."""
        return "\n\n".join(text for text in (self.system, *(text for _, text in self.said.messages)) if text)

    @property
    def last(self) -> str:
        """The last text that is the user's."""
        return next((text for role, text in reversed(self.said.messages) if role == "user" and text), "")

    @property
    def tools(self) -> list[str]:
        """The names of the tools offered."""
        return list(self.said.tools)

    @property
    def tool_results(self) -> list[tuple[bool, str]]:
        """(is an error, text) of each result of a tool since the model last spoke."""
        return list(self.said.results)


def _unpacked(raw: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.decompress(raw)
    return zlib.decompress(raw) if encoding == "deflate" else raw

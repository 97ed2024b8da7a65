"""What Gemini CLI prints and keeps: its reply, what it used, and why it failed."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dialogd.backends import Usage
from dialogd.backends.cli_reader import Event, Reader, Words, failed
from dialogd.errors import BackendError


class Events(Reader):
    """stream-json: `init`, `message`, tools, `error`, one `result`.

    It leaves things out. A stream that broke off and was asked for again stands in it twice: the kept session has the
    text that counts. A reply that the service cut or blocked looks like any other: the telemetry has the reason. What
    waits to be printed at the end may be lost: with both of them it is not missed.
    """

    def __init__(self, words: Words, home: Path) -> None:
        super().__init__(words)
        self.telemetry = Path()
        self._home = home
        self._said: list[str] = []
        self._trouble = ""
        self._message = ""

    def take(self, event: Event) -> None:
        """Note one event."""
        kind = event.get("type")
        if kind == "init":
            self.session = str(event.get("session_id") or "")
        elif kind == "message" and event.get("role") == "assistant":
            self._said.append(str(event.get("content") or ""))
        elif kind == "tool_use":
            self._said.clear()
            self.tools.append(str(event.get("tool_name") or "a tool"))
        elif kind == "tool_result":
            self.tools.append("")
        elif kind == "error" and event.get("severity") == "error":
            self._trouble = str(event.get("message") or "")
        elif kind == "result":
            self._result(event)

    def end(self, code: int, said: str) -> None:
        """Look at what the stream does not say, then judge."""
        if self._message and self.failure is None:
            self.failure = _failure(self.words, self._message, code)
        else:
            reasons = _reasons(self.telemetry)
            kept = _kept(self._home, self.session)
            if self.text is not None or (code == 0 and reasons == {"stop"} and kept):
                self.text = kept or self.text
                self.failure = self.failure or _cut(reasons)
        super().end(code, said)

    def spent(self, before: Usage | None) -> Usage:
        """It counts by run; of a run that failed it says nothing, or 0."""
        return replace(self.total, estimated=self.text is None)

    def _result(self, event: Event) -> None:
        self.total = _usage(event.get("stats"))
        if event.get("status") == "success" and not event.get("error"):
            self.text = "".join(self._said)
            return
        error = event.get("error")
        said = str(error.get("message") or "") if isinstance(error, dict) else ""
        self._message = said or self._trouble or "it ended with an error"


def _usage(stats: object) -> Usage:
    """What a run used; what thinking took is the total's rest, and billed as output."""
    rows = stats if isinstance(stats, dict) else {}
    total, tokens_in, out, cached = (
        int(rows.get(name) or 0) for name in ("total_tokens", "input_tokens", "output_tokens", "cached")
    )
    models = rows.get("models")
    model = next(iter(models), "") if isinstance(models, dict) else ""
    return Usage(model, tokens_in, max(out, total - tokens_in), cached) if total else Usage(model)


def _kept(home: Path, session: str) -> str:
    """The last reply of a session as it was kept, "" when that cannot be found."""
    files = [*home.glob(f".gemini/tmp/*/chats/*{session[:8]}*.jsonl")] if session else []
    text = ""
    with suppress(OSError):
        for line in max(files, key=lambda path: path.stat().st_mtime_ns).read_bytes().split(b"\n") if files else ():
            with suppress(ValueError):
                row = json.loads(line)
                kind = row.get("type") if isinstance(row, dict) else None
                if kind in ("user", "gemini"):
                    text = row["content"] if kind == "gemini" and isinstance(row.get("content"), str) else ""
    return text


_REASONS = re.compile(rb'"finish_reasons": \[([^\]]*)\]')


def _reasons(telemetry: Path) -> set[str]:
    """How the last answer of the service ended, in the telemetry's words."""
    try:
        found = _REASONS.findall(telemetry.read_bytes())[-1:]
    except OSError:
        return set()
    return {word.strip(' \n"').lower() for text in found for word in text.decode("utf-8", "replace").split(",")}


def _cut(reasons: set[str]) -> BackendError | None:
    """The error of a reply that the service did not bring to its end."""
    if reasons & {"length", "max_tokens"}:
        cause, kind, fix = "the reply was cut at the most tokens it may have", "cut", "ask for less"
    elif reasons & {"content_filter", "safety", "recitation", "blocklist", "prohibited_content"}:
        cause, kind, fix = "the model refused", "refusal", "put the question differently, or choose another --model"
    else:
        return None
    return BackendError(f"gemini failed: {cause}", fix=fix, kind=kind)


def _failure(words: Words, message: str, code: int) -> BackendError:
    """The error that a result is. An exit code of 144 and above is the service's status, less 256."""
    found = re.search(r'"code":\s*(\d{3})', message)
    status = int(found[1]) if found else code + 256 if code >= 144 else None
    inner = re.search(r'"message":\s*("(?:[^"\\]|\\.)*")', message)
    said = (
        str(json.loads(inner[1])) if inner else message.split("\n", maxsplit=1)[0]
    )  # what follows is advice of its own
    if "empty response" in message:
        return BackendError("gemini answered with no text", fix="choose another --model", kind="empty", retryable=True)
    if "finish reason" in message or "terminated" in message:
        return BackendError(
            f"gemini failed: {said}", fix="ask again with `dialogd retry`", kind="network", retryable=True
        )
    if re.search(r"api key not valid", said, re.I):
        status = 401
    elif re.search(r"is not found|not supported for", said, re.I):
        status = 404
    error = failed(words, said, status)
    wait = re.search(r"retry in (\d+(?:\.\d+)?)\s*s", message, re.I)
    if status == 429 and (wait or error.kind != "limit"):
        return BackendError(
            error.cause,
            fix="ask again with `dialogd retry` in a while",
            kind="busy",
            retryable=True,
            retry_after=float(wait[1]) if wait else None,
        )
    return error

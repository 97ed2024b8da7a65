"""What a daemon says: one line per event on stderr, and a rotating log in the state directory."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from dialogd.events import Event
from dialogd.protocol.redact import redact

LOG_SIZE = 1_000_000  # bytes per file
LOG_FILES = 3

log = logging.getLogger("dialogd")


class _Json(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        event: Event | None = getattr(record, "event", None)
        fields = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **({"event": event.kind, **event.data} if event else getattr(record, "fields", {})),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


class _Plain(logging.Formatter):
    """`20:15:02 A  replying`; control characters of foreign text do not reach the terminal."""

    def __init__(self, me: str) -> None:
        super().__init__()
        self.me = me

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if not text.isprintable():
            text = "".join(c if c.isprintable() else "\ufffd" for c in text)
        line = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {self.me}  {text}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Safe(logging.Formatter):
    """Another formatter's line without secrets: whatever failed may quote one, tracebacks included."""

    def __init__(self, inner: logging.Formatter, secrets: Sequence[str]) -> None:
        super().__init__()
        self._inner = inner
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        line: str | None = getattr(record, "line", None)  # made once, for terminal and file
        if line is None:
            line = record.line = redact(self._inner.format(record), self._secrets)[0]
        return line


def set_up_logging(me: str, file: Path, *, json_lines: bool, debug: bool, secrets: Sequence[str] = ()) -> None:
    """Log to stderr and to `file`, which is rotated at 1 MB and kept three times; without `secrets`."""
    file.touch(mode=0o600, exist_ok=True)
    handlers: list[logging.Handler] = [
        logging.StreamHandler(sys.stderr),
        RotatingFileHandler(file, maxBytes=LOG_SIZE, backupCount=LOG_FILES - 1, encoding="utf-8"),
    ]
    formatter = _Safe(_Json() if json_lines else _Plain(me), secrets)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    for handler in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)
    root.setLevel(logging.WARNING)
    log.setLevel(logging.DEBUG if debug else logging.INFO)


def say(message: str, **fields: Any) -> None:
    """One line, for people and, with its fields, for programs."""
    log.info(message, extra={"fields": fields})


def say_event(event: Event) -> None:
    """The line that an event is worth, if any."""
    make = _LINES.get(event.kind)
    line = make(event.said) if make else ""
    if line:
        level = logging.WARNING if event.kind in ("error", "warning") else logging.INFO
        log.log(level, line, extra={"event": event})
    elif log.isEnabledFor(logging.DEBUG):
        log.debug("event %s %s", event.kind, event.data)


def _state(data: dict[str, Any]) -> str:
    state, reason = data.get("state"), data.get("reason", "")
    if state == "thinking":
        return f"replying: turn {data.get('turn', 0) + 1}"
    if state == "ended":
        return f"ended: {reason}"
    if state == "interrupted":
        return "interrupted: the turn passed while the reply was being written"
    return str(reason) if str(reason).startswith("waiting") else f"waiting: {reason}"


def _note(data: dict[str, Any]) -> str:
    marks = " ".join(data.get("marks", ()))
    return f"note by {data['by']}: {marks or data.get('text', '')[:80]}"


_LINES: dict[str, Callable[[dict[str, Any]], str]] = {
    "state": _state,
    "note": _note,
    "notified": lambda d: f"notified by {d['by']}",
    "appended": lambda d: f"appended turn {d['number']} in {d['ms'] / 1000:.1f} s",
    "dropped": lambda d: d["text"],
    "warning": lambda d: f"warning: {d['text']}",
    "draft": lambda d: f"kept a reply as a draft: {d['why']}",
    "error": lambda d: f"failed: {d['message']}; {d['fix']}",
    "telling": lambda d: f"notifying {', '.join(d['peers'])}",
    "ready": lambda d: f"listening on port {d['port']}, {d['id']} on {d['file']}, backend {d['backend']}",
}

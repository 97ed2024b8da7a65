"""What an ACP agent's refusals, ends and failures mean, as `BackendError`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dialogd.backends.command import last_line
from dialogd.backends.faults import SHORTER, TOO_LONG
from dialogd.errors import BackendError
from dialogd.protocol.redact import redact

if TYPE_CHECKING:
    from dialogd.backends.acp_wire import Wire

QUOTED = 200  # characters of an agent's own words

# kind, codes, words: the first line that fits. Agents hand on their service's status as the code, or say it in words.
_SIGNS = (
    ("auth", (-32000, 401, 403), r"authenticat|unauthori[sz]ed|api[ _-]?key|log ?in\b|credential|permission_denied"),
    ("limit", (402,), r"spend|billing|credit balance|insufficient_quota|quota exceeded"),
    ("busy", (429, 500, 502, 503, 504, 529), r"rate.?limit|overloaded|too many requests|unavailable|\b(429|5\d\d)\b"),
    ("network", (408,), r"econn|enotfound|network|fetch failed|socket|timed? ?out|disconnected"),
    ("request", (400, 404, 413, -32600, -32601, -32602), r"not found|too (long|large)|invalid"),
)
_FIXES = {
    "auth": "log in with the agent's own program{logins}, or give it its key",
    "limit": "raise the limit where the account is kept, or name another agent",
    "busy": "wait, then ask again with `dialogd retry`",
    "network": "look at the network, then ask again with `dialogd retry`",
    "request": "look at the agent's model and settings",
    "failed": "run the agent by hand and see why it fails",
}
_ENDS = {
    "max_tokens": ("the reply was cut off at the agent's limit of tokens", "cut", "ask for a shorter one"),
    "max_turn_requests": ("the agent stopped at its limit of requests", "cut", "raise it in the agent's settings"),
    "refusal": ("the model refuses to answer", "refusal", "say in the dialog what is meant, or name another agent"),
    "cancelled": ("the agent ended its turn unfinished", "cut", "ask again with `dialogd retry`"),
}


def refused(code: int, message: str, data: Any, logins: tuple[str, ...], secrets: Sequence[str] = ()) -> BackendError:
    """The error that an agent answered with, without `secrets`."""
    said = _line(_words(message, data), secrets)
    kind = next((kind for kind, codes, signs in _SIGNS if code in codes or re.search(signs, said, re.I)), "failed")
    ways = f" ({_line(', '.join(logins), secrets)})" if logins else ""
    fix = SHORTER if kind == "request" and TOO_LONG.search(said) else _FIXES[kind].format(logins=ways)
    retryable = kind in ("busy", "network", "failed")
    return BackendError(f"answered with an error: {said}", fix=fix, retryable=retryable, kind=kind)


def ended(program: str, wire: Wire, code: int, secrets: Sequence[str] = ()) -> BackendError:
    """The error of an agent that is gone, without `secrets`."""
    if wire.errno is not None:
        return BackendError(
            f"cannot run {program!r}: {os.strerror(wire.errno)}",
            fix="it must be a program for this machine, or a script whose first line names its interpreter (#!)",
        )
    if wire.trouble:
        return BackendError(wire.trouble, fix="start the agent so that it speaks ACP on stdout", kind="garbled")
    said = last_line(wire.stderr, secrets)
    return BackendError(
        f"ended in the middle, exit {code}" + (f": {said}" if said else ""),
        fix=f"run {program!r} by hand and see why it ends",
        retryable=True,
    )


def unreadable(error: ValueError, secrets: Sequence[str] = ()) -> BackendError:
    """The error of an agent whose answer is not what the protocol says, without `secrets`."""
    return BackendError(
        f"answered outside the protocol: {_line(str(error), secrets)}",
        fix="install another version of the agent",
        kind="garbled",
    )


def judge(stop_reason: str, text: str) -> None:
    """Raise `BackendError` unless the turn ended regularly, with text."""
    if stop_reason in _ENDS:
        cause, kind, fix = _ENDS[stop_reason]
        raise BackendError(cause, fix=fix, kind=kind, retryable=stop_reason == "cancelled")
    if not text.strip():
        raise BackendError("the reply was empty", fix="look at the agent's own log", kind="empty", retryable=True)


def _words(message: str, data: Any) -> str:
    """What the agent says, its details included."""
    details = data.get("details") or data.get("message") if isinstance(data, dict) else data
    return f"{message}: {details}" if isinstance(details, str) and details != message else message


def _line(text: str, secrets: Sequence[str]) -> str:
    """As one printable line, without secrets: those go before the line is cut."""
    safe = redact(text, secrets)[0]
    return " ".join("".join(c if c.isprintable() else " " for c in safe).split())[:QUOTED]

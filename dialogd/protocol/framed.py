"""What stands in a framed entry: its attributes, body, marks and TURN line; of a changed one, whether it is whole."""

from __future__ import annotations

import re
from collections.abc import Container

from dialogd.protocol.fold import ending
from dialogd.protocol.marks import canonical
from dialogd.protocol.model import Entry, Frame, Mark
from dialogd.protocol.text import unescape

_TURN_LINE = re.compile(r"TURN: ([A-Za-z][A-Za-z0-9_-]*(?:, [A-Za-z][A-Za-z0-9_-]*)*)")
# Readers count with these: anybody can write a frame, and what is no number there counts as not said.
_ENTRY = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_COUNT = re.compile(r"~?[0-9]{1,12}")
_NUMBERS = {"re": _ENTRY, "ms": re.compile(r"[0-9]{1,12}"), "in": _COUNT, "out": _COUNT}


def trimmed(inside: bytes) -> bytes:
    """What stands in a changed entry, without the blank lines and rules that lead to the next one."""
    lines = inside.split(b"\n")
    while len(lines) > 1 and not lines[-1].strip(b"- \t\r"):
        lines.pop()
    return b"\n".join(lines)


def is_whole(entry: Entry, *, cut: bool) -> bool:
    """True for an entry whose hash does not fit and that still has its last word: edited, not damaged."""
    if not entry.is_turn:
        return not cut
    end = ending(entry)
    # An agent's call for a deadlock stands above its TURN line: cut there, it would end the dialog alone.
    return entry.turn is not None or (end is not None and not (cut and end.name == "DEADLOCK"))


def frame_of(match: re.Match[bytes]) -> Frame:
    """The frame of the line that the grammar found."""
    attributes = match[4].decode("utf-8", "replace")
    known = dict(part.split("=", 1) for part in attributes.split(" ") if "=" in part)
    known |= {key: "" for key, form in _NUMBERS.items() if not form.fullmatch(known.get(key, ""))}
    named = {key: known.get(key, "") for key in ("re", "at", "ms", "calls", "model", "nonce", "usd")}
    return Frame(
        by=known["by"],
        size=int(known["bytes"]),
        sha=match[5].decode(),
        prev=known["prev"],
        tokens_in=known.get("in", ""),
        tokens_out=known.get("out", ""),
        **named,
    )


def content_of(text: str, kinds: Container[str] = ()) -> tuple[str, tuple[Mark, ...], tuple[str, ...] | None]:
    """Split a frame's inside into body, trailer marks and TURN line; `kinds` are the dialog's own contributions."""
    text = text.rstrip("\n")
    head, _, last = text.rpartition("\n")
    match = _TURN_LINE.fullmatch(last)
    turn = tuple(match[1].split(", ")) if match else None
    if match:
        text = head.rstrip("\n")
    marks: list[Mark] = []
    while True:
        head, _, last = text.rpartition("\n")
        mark = canonical(last, kinds)
        if mark is None:
            break
        marks.append(mark)
        text = head
    return unescape(text.strip("\n")), tuple(reversed(marks)), turn

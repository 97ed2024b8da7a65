"""The file format, written: entry -> bytes. The grammar stands in `grammar.py`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dialogd.protocol.model import Mark, digest
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import escape, one_line


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry to be written: everything but its place in the file.

    `number` 0 makes a note. `body` is clean text, not yet escaped; `attributes` are the frame's: re, at, ms,
    model, in, out, usd (empty ones are left out).
    """

    by: str
    name: str
    number: int = 0
    body: str = ""
    marks: tuple[Mark, ...] = ()
    turn: tuple[str, ...] | None = None
    attributes: tuple[tuple[str, str], ...] = ()


def render(draft: Draft, prev: str) -> bytes:
    """The bytes of an entry, heading to last newline; `prev` is the chain of the entry before, "" for none."""
    parts = [escape(draft.body.strip("\n"))] if draft.body.strip("\n") else []
    if draft.marks:
        parts.append("\n".join(str(mark) for mark in draft.marks))
    if draft.turn:
        parts.append(f"TURN: {', '.join(draft.turn)}")
    content = ("\n" + "\n\n".join(parts) + "\n").encode("utf-8", "replace")
    heading = f"Turn {draft.number}" if draft.number else "Note"
    attributes = "".join(f" {key}={_value(value)}" for key, value in draft.attributes if value)
    seal = (
        f"## {heading} — {one_line(draft.name, 80)}\n"
        f"<!-- dialogd by={draft.by}{attributes} bytes={len(content)} prev={prev}"
    ).encode("utf-8", "replace")
    return seal + f" sha={digest(seal + content)} -->\n".encode() + content


def joint(dialog: Dialog) -> bytes:
    """What stands between the file's present end and the next entry."""
    end = dialog.tail[-1:]
    return b"\n---\n\n" if end in (b"\n", b"") else b"\n\n---\n\n"


def _value(text: str) -> str:
    return re.sub(r"[^\x21-\x7e]|--|[<>]", "_", text)

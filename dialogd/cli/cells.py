"""How wide text is in a terminal, and what of it fits. Where terminals disagree, the wider answer."""

from __future__ import annotations

import unicodedata

_EMOJI = "\ufe0f"  # makes the character before it an emoji, which is two cells wide


def width(text: str) -> int:
    """The cells that a line of text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(char: str) -> int:
    if char.isascii() or char == _EMOJI:
        return 1
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def fit(text: str, cells: int) -> str:
    """The beginning of the text that fits into so many cells, with `…` where something is missing."""
    if width(text) <= cells:
        return text
    used = 0
    for index, char in enumerate(text):
        used += _cells(char)
        if used > cells - 1:
            return text[:index] + "…" if cells > 0 else ""
    return text


def tail(text: str, cells: int) -> str:
    """The end of the text that fits into so many cells, with `…` where something is missing."""
    if width(text) <= cells:
        return text
    used, start = 0, len(text)
    for index in range(len(text) - 1, -1, -1):
        used += _cells(text[index])
        if used > cells - 1:
            break
        start = index
    while start < len(text) and _cells(text[start]) == 0:  # a mark without its letter
        start += 1
    return "…" + text[start:] if cells > 0 else ""

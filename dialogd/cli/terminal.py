"""What reaches the terminal: text without control characters, JSON, a live last line, the bell; colours if wanted."""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from shutil import get_terminal_size

# C0 and C1 (but newline and tab), line separators, what turns the direction of writing, and half characters.
_UNSAFE = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff\\ud800-\\udfff]"
)
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def plain(text: str) -> str:
    """The text with every character that could steer a terminal made visible as U+FFFD."""
    return _UNSAFE.sub("\ufffd", text)


def line(text: str) -> str:
    """`plain`, on one line."""
    return " ".join(plain(text).split())


def as_json(value: object, *, indent: int | None = 2) -> str:
    """JSON that is readable, and safe to print: what could steer a terminal is written as an escape."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def show(text: str = "") -> None:
    """Print to stdout, at once."""
    print(text, flush=True)


def remark(text: str) -> None:
    """Print to stderr: what is no fact of the answer."""
    print(text, file=sys.stderr, flush=True)


class Screen:
    """Stdout as somebody sees it: finished text stays, the last line is replaced while it lives.

    Without a terminal there is no live line, no bell and no colour.
    """

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self.has_colour = self.is_terminal and not os.environ.get("NO_COLOR")
        self._live = ""

    def styled(self, text: str, *styles: str) -> str:
        """The text in that style, where colours are shown."""
        if not self.has_colour:
            return text
        return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"

    def write(self, text: str) -> None:
        """Print finished text above the live line. It must be `plain` already."""
        live = self._live
        self.clear()
        show(text)
        self.live(live)

    def live(self, text: str) -> None:
        """Replace the live line, cut to the width of the terminal."""
        if not self.is_terminal or text == self._live:
            return
        self._live = text
        sys.stdout.write("\r\x1b[2K" + self.styled(_cut(text, get_terminal_size().columns - 1), "dim"))
        sys.stdout.flush()

    def clear(self) -> None:
        """Take the live line away."""
        if self.is_terminal and self._live:
            sys.stdout.write("\r\x1b[2K")
            sys.stdout.flush()
        self._live = ""

    def bell(self) -> None:
        """Ring, where somebody may hear it."""
        if self.is_terminal:
            sys.stdout.write("\a")
            sys.stdout.flush()


def _cut(text: str, width: int) -> str:
    """The beginning of the text that fits into so many cells."""
    if len(text) * 2 <= width:
        return text
    used = 0
    for index, char in enumerate(text):
        used += 2 if unicodedata.east_asian_width(char) in "WF" else 0 if unicodedata.combining(char) else 1
        if used > width:
            return text[: index - 1] + "…"
    return text

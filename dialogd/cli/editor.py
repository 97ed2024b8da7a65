"""A line that a person types: what each key does to it, and what of it fits into the terminal. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dialogd.cli.cells import fit, tail, width
from dialogd.cli.terminal import plain

LONGEST = 100_000  # characters; what is pasted beyond is left out


@dataclass
class Line:
    """A prompt, the text so far and the place `at` which the next character goes."""

    prompt: str
    text: str = ""
    at: int = 0

    def press(self, key: str) -> str:
        """Do what the key does; gives `send` or `cancel` when the line is done with, else ""."""
        if key in ("enter", "esc"):
            return "send" if key == "enter" else "cancel"
        if key == "eof" and not self.text:
            return "cancel"
        if key.startswith("paste:"):
            self._insert(key[6:])
        elif len(key) == 1:
            self._insert(key)
        elif key in _EDITS:
            before, after = _EDITS[key](*self._parts())
            self.text, self.at = before + after, len(before)
        return ""

    def _insert(self, text: str) -> None:
        text = text.replace("\r\n", "\n").replace("\r", "\n")[: LONGEST - len(self.text)]
        self.text = self.text[: self.at] + text + self.text[self.at :]
        self.at += len(text)

    def view(self, cells: int) -> tuple[str, int]:
        """The line as it fits into so many cells, and the index in it of the character that the cursor stands on."""
        before, after = (plain(part).replace("\n", "⏎").replace("\t", " ") for part in self._parts())
        prompt = fit(self.prompt, max(cells // 2, 1))
        room = max(cells - width(prompt) - 1, 1)
        if width(before) + width(after) > room:
            before = tail(before, max(room - min(width(after), room // 3), 1))
            after = fit(after, max(room - width(before), 0))
        return f"{prompt}{before}{after} ", len(prompt) + len(before)

    def _parts(self) -> tuple[str, str]:
        return self.text[: self.at], self.text[self.at :]


def _start_of_last(text: str) -> int:
    """Where the last character begins, with the marks that belong to it."""
    start = len(text) - 1
    while start > 0 and width(text[start]) == 0:
        start -= 1
    return max(start, 0)


def _end_of_first(text: str) -> int:
    """Where the first character ends, with the marks that belong to it."""
    end = min(1, len(text))
    while end < len(text) and width(text[end]) == 0:
        end += 1
    return end


def _without_last_word(text: str) -> str:
    words = text.split()
    return text.rstrip()[: -len(words[-1])] if words else ""


# What a key makes of the text before the cursor and the text after it.
_EDITS: dict[str, Callable[[str, str], tuple[str, str]]] = {
    "backspace": lambda before, after: (before[: _start_of_last(before)], after),
    "word": lambda before, after: (_without_last_word(before), after),
    "clear": lambda _, after: ("", after),
    "delete": lambda before, after: (before, after[_end_of_first(after) :]),
    "kill": lambda before, _: (before, ""),
    "left": lambda before, after: (before[: (cut := _start_of_last(before))], before[cut:] + after),
    "right": lambda before, after: (before + after[: (cut := _end_of_first(after))], after[cut:]),
    "home": lambda before, after: ("", before + after),
    "end": lambda before, after: (before + after, ""),
}

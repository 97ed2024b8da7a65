"""What a person types in a terminal: a line that is edited, and the keys that the terminal sends."""

from __future__ import annotations

import codecs
import os
import re
import select
import signal
import sys
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from dialogd.cli.terminal import fit, plain, tail, width

LONGEST = 100_000  # characters; what is pasted beyond is left out


@dataclass
class Line:
    """A prompt, the text so far, and where `at` the next character goes."""

    prompt: str
    text: str = ""
    at: int = 0

    def press(self, key: str) -> str:
        """Apply the key; returns `send` or `cancel` when the line is finished, else ""."""
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
        """The part of the line that fits into so many cells, and the cursor's index in it."""
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


# What a key makes of the text before the cursor and the text after it.
_EDITS: dict[str, Callable[[str, str], tuple[str, str]]] = {
    "backspace": lambda before, after: (before[: _start_of_last(before)], after),
    "word": lambda before, after: (re.sub(r"\S+\s*$", "", before), after),
    "clear": lambda _, after: ("", after),
    "delete": lambda before, after: (before, after[_end_of_first(after) :]),
    "kill": lambda before, _: (before, ""),
    "left": lambda before, after: (before[: (cut := _start_of_last(before))], before[cut:] + after),
    "right": lambda before, after: (before + after[: (cut := _end_of_first(after))], after[cut:]),
    "home": lambda before, after: ("", before + after),
    "end": lambda before, after: (before + after, ""),
}


# -- The terminal's keyboard ------------------------------------------------------------------------------------------

ESCAPE_WAIT = 0.05  # seconds after which a lone Esc is the key, and not the beginning of another one
PASTE_CAP = 200_000  # characters

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[ -~]|[^\[O\x1b])")
_PASTED = re.compile(r"\x1b\[200~(.*?)\x1b\[201~", re.DOTALL)
_CODES = {
    "[A": "up", "[B": "down", "[C": "right", "[D": "left", "OC": "right", "OD": "left", "[H": "home", "[F": "end",
    "OH": "home", "OF": "end", "[1~": "home", "[7~": "home", "[4~": "end", "[8~": "end", "[3~": "delete",
}  # fmt: skip
_CONTROLS = {
    "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x01": "home", "\x05": "end",
    "\x02": "left", "\x06": "right", "\x0b": "kill", "\x15": "clear", "\x17": "word", "\x04": "eof", "\x0c": "redraw",
}  # fmt: skip


class Decoder:
    """Bytes to keys: a character, a name such as `enter` or `left`, or `paste:` and what was pasted. Pure."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""

    def feed(self, data: bytes) -> list[str]:
        """The keys that are complete with these bytes."""
        self._rest += self._decode(data)
        keys: list[str] = []
        while self._rest:
            if self._rest.startswith("\x1b"):
                key = self._sequence()
                if key is None:
                    break
            else:
                char, self._rest = self._rest[0], self._rest[1:]
                key = _CONTROLS.get(char, char if char.isprintable() or char == "\u200d" else "")
            keys += [key] if key else []
        return keys

    def _sequence(self) -> str | None:
        """The key of the sequence at the beginning, "" for one without a meaning here; None while it is incomplete."""
        if self._rest.startswith("\x1b[200~"):
            pasted = _PASTED.match(self._rest)
            if pasted is None:
                self._rest = self._rest[:PASTE_CAP]
                return None
            self._rest = self._rest[pasted.end() :]
            return f"paste:{pasted[1]}"
        if self._rest.startswith("\x1b\x1b"):
            self._rest = self._rest[1:]
            return "esc"
        match = _SEQUENCE.match(self._rest)
        if match is None:
            return None
        self._rest = self._rest[match.end() :]
        return _CODES.get(match[0][1:], "")

    @property
    def is_waiting(self) -> bool:
        """True in the middle of a sequence, or of what is pasted."""
        return self._rest.startswith("\x1b")

    def flush(self) -> list[str]:
        """The key when nothing follows: a lone Esc is Esc; half a sequence is nothing."""
        rest = self._rest
        if not rest.startswith("\x1b") or rest.startswith("\x1b[200~"):
            return []
        self._rest = ""
        return ["esc"] if rest == "\x1b" else []


class Keyboard:
    """Keys while the block lasts, where stdin and stdout are one's own terminal; else `read` only waits.

    Ctrl-Z suspends and `fg` goes on; in the background no key is read. `hide` removes the live line before
    another process gets the screen. `lines` reads whole lines where single keys cannot be had (`TERM=dumb`).
    """

    def __init__(self, hide: Callable[[], None], *, lines: bool = False) -> None:
        self._hide = hide
        dumb = os.environ.get("TERM") == "dumb"
        self.can_type = _both_terminals() and (lines or not dumb)
        self._has_keys = self.can_type and not dumb
        self.resized = False
        self._saved: list[Any] | None = None
        self._decoder = Decoder()
        self._handlers: dict[int, Any] = {}
        self._suspends = False

    def __enter__(self) -> Keyboard:
        if sys.stdout.isatty():
            self._handle(signal.SIGWINCH, self._on_resize)
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._handle(number, lambda number, _: sys.exit(128 + number))
            if self._has_keys:
                self._handle(signal.SIGTSTP, self._on_suspend)
        self._take()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._give_back()
        for number, before in self._handlers.items():
            signal.signal(number, before)

    def _handle(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        self._handlers[number] = signal.signal(number, handler)

    def _on_resize(self, _signal: int, _frame: FrameType | None) -> None:
        self.resized = True

    def _on_suspend(self, _signal: int, _frame: FrameType | None) -> None:
        self._suspends = True

    @property
    def in_front(self) -> bool:
        """False while this process is in the background of its terminal."""
        return not self.can_type or _is_in_front()

    def read(self, seconds: float) -> list[str]:
        """The keys that were pressed, waiting for some up to so many seconds."""
        if self._suspends:
            self._suspend()
        if not self.can_type or not _is_in_front():
            time.sleep(seconds)
            return []
        self._take()
        if not select.select([0], [], [], seconds)[0]:
            return []
        data = self._bytes()
        if not self._has_keys:
            return [f"line:{data.decode('utf-8', 'replace')}"] if data else []
        keys = self._decoder.feed(data)
        while self.can_type and self._decoder.is_waiting and select.select([0], [], [], ESCAPE_WAIT)[0]:
            keys += self._decoder.feed(self._bytes())
        return [*keys, *self._decoder.flush()]

    def _bytes(self) -> bytes:
        try:
            data = os.read(0, 65_536)
        except OSError:
            data = b""
        if not data:
            self.can_type = False  # the terminal is gone
        return data

    def _suspend(self) -> None:
        """Stop as Ctrl-Z does, with the terminal as it was; goes on here after `fg`."""
        self._suspends = False
        self._hide()
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._on_suspend)
        self.resized = True

    def _take(self) -> None:
        """Single keys, without echo; Ctrl-C and Ctrl-Z stay signals. What is pasted comes as one."""
        if self._saved is not None or not self._has_keys or not _is_in_front():
            return
        with suppress(termios.error):
            self._saved = termios.tcgetattr(0)
            now = termios.tcgetattr(0)
            now[3] &= ~(termios.ICANON | termios.ECHO)
            now[6][termios.VMIN], now[6][termios.VTIME] = 1, 0
            termios.tcsetattr(0, termios.TCSADRAIN, now)
            os.write(1, b"\x1b[?2004h")

    def _give_back(self) -> None:
        if self._saved is None:
            return
        with suppress(termios.error, OSError):
            os.write(1, b"\x1b[?2004l")
            termios.tcsetattr(0, termios.TCSADRAIN, self._saved)
        self._saved = None


def _both_terminals() -> bool:
    with suppress(ValueError, OSError):
        return sys.stdin.isatty() and sys.stdout.isatty()
    return False


def _is_in_front() -> bool:
    """True when keys are for this process."""
    with suppress(OSError):
        return os.tcgetpgrp(0) == os.getpgrp()
    return False

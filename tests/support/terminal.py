"""A program in a terminal of its own, as a person runs it: what it shows, and what is typed into it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.pair import PATIENCE, until

_CODES = re.compile(r"\x1b\[[0-9;?<>=]*[ -/]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()=>][A-Z0-9]?")

TRIES = 6  # to type a line


class Terminal:
    """Runs a command in a pseudo-terminal of 45 lines of 140 characters, until `close`."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(words[0], list(words), dict(environment))
        fcntl.ioctl(self._end, termios.TIOCSWINSZ, struct.pack("HHHH", 45, 140, 0, 0))
        self._said, self._typed = b"", 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._end, 65536):
                self._said += data

    @property
    def text(self) -> str:
        """All that was shown so far, without what moves and colours it."""
        return self._plain(0)

    @property
    def answer(self) -> str:
        """The same of what was shown since something was typed last."""
        return self._plain(self._typed)

    def _plain(self, begin: int) -> str:
        return " ".join(_CODES.sub(" ", self._said[begin:].decode("utf-8", "replace")).split())

    def until(self, shown: str, seconds: float = PATIENCE) -> None:
        """Wait until it has shown this since something was typed last, blanks aside."""
        wanted = "".join(shown.split())
        until(lambda: wanted in "".join(self.answer.split()), repr(shown), seconds, lambda: self.text[-3000:])

    def type(self, line: str) -> None:
        """Type a line, and enter it once the program shows it.

        What a busy program draws in between can tear the line apart: then it is taken back (Ctrl-U) and typed again.
        """
        for _ in range(TRIES - 1):
            self.press(line)
            with contextlib.suppress(AssertionError):
                self.until(line[-40:], PATIENCE / TRIES)
                self.press("\r")
                return
            self.press("\x15")
        self.press(line)
        self.until(line[-40:], PATIENCE / TRIES)
        self.press("\r")

    def press(self, keys: str) -> None:
        """Press keys: what is waited for next is shown after that."""
        self._typed = len(self._said)
        os.write(self._end, keys.encode())

    @property
    def has_ended(self) -> bool:
        """True once the program is gone and all that it showed is read: its terminal goes with it."""
        return self._is_gone and not self._reader.is_alive()

    @property
    def _is_gone(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        return True

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def close(self) -> None:
        self.kill()
        self._reader.join(PATIENCE)
        with contextlib.suppress(OSError):
            os.close(self._end)

"""A reply while it arrives, handed on in pieces: word by word, never a part of a secret, at most ten times a second."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence

from dialogd.protocol.redact import SHORTEST, key_begins, key_ends, key_may_begin, redact
from dialogd.protocol.text import clean

PAUSE = 0.1  # seconds between two pieces
LONGEST = 16 * 1024  # characters of a piece; more that comes at once is several
_END = 256  # characters in which the end of a secret of several lines is looked for

# Up to the last place where no secret goes on: keys are ASCII without blanks, but a password in an address may hold any
# letter.
_GAP = re.compile(r".*(?:[ \t\n]|[^\x00-\x7f])", re.S)
_BLANK = re.compile(r".*[ \t\n]", re.S)
_KEY = "[redacted: private key]"


class Pieces:
    """Hands on what `add` takes, cleaned and without secrets, as soon as it is certain.

    `hand_on(text, is_first)` gets each piece; together they are the reply. `finish` hands on the rest; whoever breaks
    off calls `abandon`. `pause` is in seconds. Secrets of one's own that hold blanks are kept together too.
    """

    def __init__(
        self, hand_on: Callable[[str, bool], None], secrets: Sequence[str] = (), *, pause: float = PAUSE
    ) -> None:
        self._hand_on = hand_on
        self._secrets = secrets
        self._pause = pause
        self._wide = [secret for secret in secrets if len(secret) >= SHORTEST and _GAP.search(secret)]
        self._ready: list[str] = []  # up to a gap
        self._word: list[str] = []  # after the last one
        self._edge = ""  # its last two characters
        self._is_address = False
        self._is_first = True
        self._is_secret = False  # within a secret of several lines, which is told already
        self._told_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, text: str) -> None:
        """Take what has arrived."""
        cut = _reach(_BLANK, text)
        is_address = "://" in self._edge + text[cut:] or (self._is_address and not cut)
        if not is_address:
            cut = _reach(_GAP, text)
        if cut:
            self._ready += [*self._word, text[:cut]]
            self._word = []
        if text[cut:]:
            self._word.append(text[cut:])
        self._edge = text[cut:][-2:] if cut else (self._edge + text)[-2:]
        self._is_address = is_address
        if cut and self._timer is None:
            wait = self._told_at + self._pause - time.monotonic()
            if wait <= 0:
                self._tell()
            else:
                self._timer = asyncio.get_running_loop().call_later(wait, self._tell)

    def finish(self) -> None:
        """Hand on the rest: nothing follows."""
        self.abandon()
        self._ready += self._word
        self._word = []
        self._give(self._without_key("".join(self._ready), is_end=True))
        self._ready = []

    def abandon(self) -> None:
        """Hand on nothing more by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self._timer, self._told_at = None, time.monotonic()
        self._give(self._without_key("".join(self._ready), is_end=False))

    def _give(self, text: str) -> None:
        text = redact(clean(text), self._secrets)[0]
        for start in range(0, len(text), LONGEST):
            self._hand_on(text[start : start + LONGEST], self._is_first)
            self._is_first = False

    def _without_key(self, text: str, *, is_end: bool) -> str:
        """What of the text is certain; what may be the beginning of a secret is kept for later.

        A secret of several lines is told as one from its beginning, and then swallowed: nobody knows when it ends.
        """
        said: list[str] = []
        while text:
            if self._is_secret:
                if not (over := key_ends(text)):
                    self._ready = [text[-_END:]]
                    return "".join(said)
                self._is_secret, text = False, text[over:]
            elif begins := key_begins(text):
                said += [text[: begins[0]], _KEY]
                self._is_secret, text = True, text[begins[1] :]
            else:
                kept = 0 if is_end else self._uncertain(text)
                self._ready = [text[len(text) - kept :]] if kept else []
                return "".join((*said, text[: len(text) - kept]))
        self._ready = []
        return "".join(said)

    def _uncertain(self, text: str) -> int:
        """How many characters at the end may be the beginning of a secret with gaps in it."""
        kept = key_may_begin(text)
        for secret in self._wide:
            sizes = range(min(len(secret) - 1, len(text)), kept, -1)
            kept = next((size for size in sizes if text.endswith(secret[:size])), kept)
        return kept


def beginning(text: str, secrets: Sequence[str] = ()) -> str:
    """The text of a reply that was broken off, without secrets, and without a last word that may have begun one."""
    said: list[str] = []
    pieces = Pieces(lambda piece, _: said.append(piece), secrets, pause=0.0)
    pieces.add(text)
    pieces.abandon()
    return "".join(said)


def _reach(pattern: re.Pattern[str], text: str) -> int:
    """How far the pattern matches from the beginning, 0 where it does not."""
    found = pattern.match(text)
    return found.end() if found else 0

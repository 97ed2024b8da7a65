"""What daemons say of a dialog while it goes on, heard in the background: how they are, and what is being written.

Only the live line is made of it. What stands in the dialog comes from the file, so nothing is lost here.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dialogd.cli.client import daemons, health, in_parallel
from dialogd.registry import Running
from dialogd.settings import Settings

ASK = 1.0  # seconds between two questions to the daemons
SILENCE = 30.0  # seconds without a word, not even a ping, after which a stream is given up
AGAIN = 0.5  # seconds before another stream is tried
TAIL = 400  # characters of what is being written that are kept
LONGEST_LINE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Heard:
    """The daemons that run and what each says of itself; None for one that does not answer. `at`: monotonic."""

    running: tuple[Running, ...]
    healths: Mapping[str, dict[str, Any] | None]
    at: float


@dataclass(frozen=True, slots=True)
class Writing:
    """A turn as far as it is written: how many words, and the last of them."""

    by: str
    turn: int
    words: int = 0
    tail: str = ""

    def plus(self, text: str) -> Writing:
        """With one more piece."""
        joined = bool(self.tail) and not self.tail[-1].isspace() and bool(text) and not text[0].isspace()
        return replace(self, words=self.words + len(text.split()) - joined, tail=(self.tail + text)[-TAIL:])


class Ears:
    """Listens to the daemons of one dialog file, from the first `listen` on until the process ends or `close`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.heard: Heard | None = None
        self.writing: Mapping[str, Writing] = {}
        self._news = threading.Event()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def listen(self, *, streams: bool) -> None:
        """Begin, if that is still to be done; with `streams` also to what is being written."""
        if self._threads:
            return
        work = [self._ask, *([self._follow] if streams else [])]
        self._threads = [threading.Thread(target=one, daemon=True) for one in work]
        for thread in self._threads:
            thread.start()

    def ask_now(self) -> None:
        """The dialog has changed: what the daemons say is old."""
        self._news.set()

    def close(self) -> None:
        """Hear nothing more."""
        self._over.set()
        self._news.set()

    def _ask(self) -> None:
        while not self._over.is_set():
            running = daemons(self.settings, self.settings.file)
            answers = in_parallel(health, running)
            pairs = zip(running, answers, strict=True)
            self.heard = Heard(running, {daemon.id: answer for daemon, answer in pairs}, time.monotonic())
            self._news.wait(ASK)
            self._news.clear()

    def _follow(self) -> None:
        """Read one daemon's stream, which tells what all of them say; when it ends another's."""
        while not self._over.is_set():
            heard = self.heard
            answering = [one for one in heard.running if heard.healths.get(one.id)] if heard else []
            for daemon in answering:
                try:
                    for kind, fact in _events(daemon.port):
                        self._take(kind, fact)
                except (OSError, http.client.HTTPException, ValueError):
                    continue
            self.writing = {}
            self._over.wait(AGAIN)

    def _take(self, kind: str, fact: Mapping[str, Any]) -> None:
        by, turn = fact.get("by"), fact.get("turn")
        if kind == "turn":
            self.writing = {who: one for who, one in self.writing.items() if who != by}
        if kind != "text" or not isinstance(by, str) or not isinstance(turn, int):
            return
        so_far = self.writing.get(by)
        if so_far is None or so_far.turn != turn or fact.get("reset"):
            so_far = Writing(by, turn)
        self.writing = {**self.writing, by: so_far.plus(str(fact.get("text", "")))}


def _events(port: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a daemon's stream, until it ends. Raises what `http.client` raises."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SILENCE)
    try:
        connection.request("GET", "/events?all=true")
        response = connection.getresponse()
        if response.status != 200:
            return
        fields: dict[str, str] = {}
        while raw := response.readline(LONGEST_LINE):
            name, _, value = raw.decode("utf-8", "replace").rstrip("\r\n").partition(": ")
            if name:
                fields[name] = value
                continue
            fact = json.loads(fields.get("data", "{}"))
            if isinstance(fact, dict):
                yield fields.get("event", ""), fact
            fields = {}
    finally:
        connection.close()

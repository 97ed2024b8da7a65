"""Daemons for the HTTP tests, whose agents think what the test types, and clients of theirs."""

from __future__ import annotations

import http.client
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.server.serving import Answer, sent
from tests.support.forked import fork
from tests.support.pair import PATIENCE, Daemon, Pair, until


class Thinking:
    """The command of an agent whose replies the test types: `thinking.call(1).end("I agree.")`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._calls: list[Typing] = []
        folder.mkdir()
        (folder / "calls").touch()
        script = folder / "think.sh"
        script.write_text(
            "cd " + shlex.quote(str(folder)) + " || exit 9\n"
            'number=$(($(wc -l <calls) + 1))\ncat >"prompt.$number"\nmkfifo "words.$number"\n'
            'echo $$ >>calls\nexec cat "words.$number"\n'
        )
        self.command = f"/bin/sh {shlex.quote(str(script))}"

    @property
    def pids(self) -> list[int]:
        """The process of each call so far."""
        return [int(line) for line in (self.folder / "calls").read_text().split()]

    def call(self, number: int) -> Typing:
        """The given call, counted from 1, once the agent thinks."""
        until(lambda: len(self.pids) >= number, f"call {number} of the backend", seconds=PATIENCE)
        typing = Typing(self.folder / f"words.{number}", self.pids[number - 1])
        self._calls.append(typing)
        return typing

    def close(self) -> None:
        """Let go of every call."""
        for typing in self._calls:
            typing.close()


class Typing:
    """One call of a `Thinking` backend, under way."""

    def __init__(self, fifo: Path, pid: int) -> None:
        self.pid = pid
        self._pipe = -1

        def opened() -> bool:
            with suppress(OSError):
                self._pipe = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            return self._pipe >= 0

        until(opened, f"somebody to read {fifo.name}", seconds=PATIENCE)
        os.set_blocking(self._pipe, True)

    def say(self, text: str) -> None:
        """Let the backend print this now."""
        left = text.encode()
        while left:
            left = left[os.write(self._pipe, left) :]

    def end(self, text: str = "") -> None:
        """Let the backend print this and end: the reply is complete."""
        self.say(text)
        self.close()

    def close(self) -> None:
        """Nothing more will be said."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    @property
    def is_alive(self) -> bool:
        """True while the process of this call lives."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True


def send(daemon: Daemon, line: str, body: object = None, kind: str = "", **headers: str) -> Answer:
    """One request to a daemon, `POST /notify`, as `sent` takes it."""
    return sent(daemon.port, line, body, kind, **headers)


@dataclass(frozen=True)
class Event:
    """One event as it came; `id` is "" where it had none."""

    kind: str
    data: dict[str, Any]
    id: str


class Stream:
    """A client of /events. `seen` is everything that it has read so far."""

    def __init__(self, daemon: Daemon, last_id: str = "", *, all_: bool = False) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=PATIENCE)
        path = "/events?all=true" if all_ else "/events"
        self._connection.request("GET", path, headers={"Last-Event-ID": last_id} if last_id else {})
        self._response = self._connection.getresponse()
        self.status = self._response.status
        self.seen: list[Event] = []

    def next(self) -> Event | None:
        """The next event; None at the end of the stream."""
        fields: dict[str, str] = {}
        while line := self._response.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            fields[name] = value
            if not name:  # a comment keeps the connection alive
                fields.clear()
        if not fields:
            return self.next() if self._response.fp is not None and not self._response.isclosed() else None
        event = Event(fields["event"], json.loads(fields.get("data", "{}")), fields.get("id", ""))
        self.seen.append(event)
        return event

    def until(self, kind: str, **fields: Any) -> Event:
        """Read on to the first event of this kind with these fields."""
        while event := self.next():
            if event.kind == kind and all(event.data.get(name) == value for name, value in fields.items()):
                return event
        raise AssertionError(f"the stream ended before {kind} {fields}: {self.seen}")

    def rest(self) -> list[Event]:
        """Read to the end of the stream."""
        return list(iter(self.next, None))

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The data of all events of one kind so far."""
        return [event.data for event in self.seen if event.kind == kind]

    def close(self) -> None:
        """Hang up."""
        self._response.close()
        self._connection.close()


@contextmanager
def listening(daemon: Daemon, last_id: str = "", *, all_: bool = False) -> Iterator[Stream]:
    """A client of /events that has read its first `state`."""
    stream = Stream(daemon, last_id, all_=all_)
    try:
        assert stream.status == 200
        assert stream.until("state") is stream.seen[0]
        yield stream
    finally:
        stream.close()


class Room(Pair):
    """Agents that think only what the test types, at one dialog that is written and not begun."""

    def __init__(self, folder: Path, agents: str = "AB", *, pace: float = 0, **options: Any) -> None:
        self.pace = pace
        self.minds = {who: Thinking(folder / f"mind-{who}") for who in agents}
        commands = {who: mind.command for who, mind in self.minds.items()}
        super().__init__(folder, agents, launch=fork, **{"command": commands, **options})

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, error, at)
        for mind in self.minds.values():
            mind.close()

    def words(self, agent: str) -> list[str]:
        """The command line of one daemon, with the pace."""
        return [*super().words(agent), "--pace", str(self.pace)]

    def open(self, agents: str = "A", turn: str = "A", **keys: object) -> None:
        """Start these daemons, and write the dialog; they know it."""
        self.start(agents)
        self.begin("Tabs or spaces?", turn, **keys)
        for daemon in (self[agent] for agent in agents):
            self.until(lambda daemon=daemon: "no_dialog" not in str(daemon.health()), f"{daemon.id} to read the dialog")

    @property
    def a(self) -> Daemon:
        """The first agent's daemon."""
        return self["A"]

    @property
    def b(self) -> Daemon:
        """The second agent's daemon."""
        return self["B"]

    def think(self, agent: str = "A") -> Typing:
        """Begin the dialog, or go on with it; the agent's next call, once it is under way."""
        number = len(self.minds[agent].pids) + 1
        self.notify(agent)
        return self.minds[agent].call(number)

    @property
    def text(self) -> str:
        """The file as it stands."""
        return self.file.read_text(encoding="utf-8")

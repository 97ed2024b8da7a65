"""A whole dialog without a terminal: cast, daemons, end; what happens is told instead of shown."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from dialogd import person
from dialogd.backends.seats import Cast
from dialogd.cli import options
from dialogd.cli.begin import new_cast
from dialogd.cli.client import daemons
from dialogd.cli.create import Wanted
from dialogd.cli.launch import Interrupt, Troupe
from dialogd.cli.situation import Situation
from dialogd.cli.watch import ASK, LOOK, Feed, as_fact
from dialogd.config import Settings
from dialogd.errors import DialogdError, StorageError
from dialogd.protocol import lifecycle
from dialogd.protocol.state import Dialog
from dialogd.store.folders import StateDir
from dialogd.store.registry import Running

Tell = Callable[[str, Mapping[str, Any]], None]  # a kind of event, and its data

LARGEST_LINE = 1024 * 1024  # bytes of one line of a stream that are read


def perform(
    settings: Settings, wanted: Wanted, pace: str, tell: Tell, interrupt: Interrupt, *, replace: bool = False
) -> None:
    """Hold the dialog to its end, or until `interrupt` is set: then it is stopped. No process is left either way.

    Raises what `dialogd run` refuses, and `DialogdError` for a daemon that could not be started or ended twice.
    """
    settings, cast = new_cast(settings, wanted, pace, replace=replace)
    stage = _Stage(settings, cast, tell)
    ending = "the program that ran it was cut off"
    try:
        stage.begin(interrupt)
        stage.watch(interrupt)
        ending = "the program that ran it closed it" if interrupt.is_set() else ""
    except DialogdError:
        ending = "error: a daemon could not be started, or ended twice"
        raise
    finally:
        try:
            if ending:
                with suppress(FileNotFoundError):
                    person.stop(stage.feed.log, ending)
        finally:
            stage.end()
    stage.close()


class _Stage:
    """One dialog while it is held: its daemons, what stands in the file, who listens to what is being written."""

    def __init__(self, settings: Settings, cast: Cast, tell: Tell) -> None:
        self.settings = settings
        self.cast = cast
        self.tell = tell
        self.feed = Feed(options.log_of(settings))
        self.troupe = Troupe(settings, cast)
        self._listeners: dict[int, threading.Thread] = {}
        self._told: object = None
        self._asked: tuple[float, Dialog | None] = (0.0, None)

    def begin(self, interrupt: Interrupt) -> None:
        """Say what begins, start every daemon, set the dialog going."""
        dialog = self.feed.log.read()
        seats = {seat.id: seat for seat in self.cast.seats}
        self.tell(
            "begun",
            {
                "file": str(self.settings.file),
                "dialog": dialog.id,
                "topic": dialog.header.topic,
                "agents": [
                    {"id": a.id, "name": a.name, "backend": seats[a.id].backend, "url": a.url}
                    for a in dialog.header.agents
                ],
            },
        )
        self.troupe.start(interrupt)
        self._listen()
        if not interrupt.is_set():
            self.troupe.notify()

    def watch(self, interrupt: Interrupt) -> None:
        """Tell what happens until the dialog ends, or somebody interrupts."""
        while not self._look():
            if dead := self.troupe.dead():
                if self._look():  # `dialogd stop` ends daemons too: then the file says so by now
                    return
                self.tell("warning", {"text": self.troupe.replace(dead[0])})
            self.troupe.greet()
            self._listen()
            if interrupt.wait(LOOK):
                return

    def _look(self) -> bool:
        """Tell what is new; True once the dialog has ended."""
        for news in self.feed.poll():
            if news.entry is None:
                self.tell("warning", {"text": news.text})
                continue
            fact = as_fact(news.entry)
            self.tell(str(fact.pop("event")), fact)
        dialog, now = self.feed.dialog, time.monotonic()
        if dialog is None:
            return False
        is_over = dialog.state.outcome is not None
        if dialog is not self._asked[1] or (not is_over and now - self._asked[0] >= ASK):
            self._asked = (now, dialog)
            running = () if is_over else daemons(self.settings, self.settings.file)
            self._state(Situation.of(dialog, self.settings.file, running, StateDir(self.settings.state_dir)))
        return is_over

    def _state(self, situation: Situation) -> None:
        """Tell how things stand, when that changed; seconds that merely pass are no change."""
        dialog = situation.dialog
        facts = {
            "phase": situation.phase,
            "lifecycle": lifecycle.phase(dialog),
            "turn": dialog.state.number,
            "turn_of": list(situation.turn_of),
            "needs_person": situation.needs_person(),
        }
        if facts == self._told:
            return
        self._told = facts
        more = {"reasons": list(situation.reasons()), "convergence": lifecycle.assessed(dialog)}
        self.tell("state", {**facts, **more})

    def _listen(self) -> None:
        """Listen to every daemon that answers and is not listened to."""
        for daemon in self.troupe.daemons.values():
            if daemon.pid not in self._listeners:
                thread = threading.Thread(target=_hear, args=(daemon, self.tell), daemon=True)
                self._listeners[daemon.pid] = thread
                thread.start()

    def end(self) -> None:
        """End every process, and with it every stream."""
        self.troupe.end()
        for thread in self._listeners.values():
            thread.join()

    def close(self) -> None:
        """Tell what was written last, and how it ended."""
        self._look()
        dialog = self.feed.dialog
        outcome = dialog.state.outcome if dialog else None
        if dialog is None or outcome is None:
            return
        end = {"outcome": outcome.name, "by": outcome.by, "entry": outcome.entry, "reason": outcome.reason}
        self.tell("ended", {**end, "turn": dialog.state.number, "file": str(self.settings.file), **self._plan(dialog)})

    def _plan(self, dialog: Dialog) -> dict[str, str | None]:
        """Where the plan of the ended dialog lies, as Markdown and as JSON; nowhere if none was wanted."""
        from dialogd.views.plan_files import keep, place

        settings = self.settings
        folder = place(settings.file, StateDir(settings.state_dir), settings.plan)
        try:
            kept = settings.plan and keep(dialog, settings.file, folder, datetime.now(UTC))
        except StorageError as error:
            self.tell("warning", {"text": f"{error}; {error.fix}"})
            kept = None
        page, facts = kept or (None, None)
        return {"plan": str(page) if page else None, "plan_json": str(facts) if facts else None}


def _hear(daemon: Running, tell: Tell) -> None:
    """Tell each line that the daemon's agent writes, until the daemon ends."""
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port)
    try:
        connection.request("GET", "/events", headers={"Accept": "text/event-stream"})
        stream, kind = connection.getresponse(), ""
        while raw := stream.readline(LARGEST_LINE):
            field, _, value = raw.decode("utf-8", "replace").rstrip("\n").partition(": ")
            if field == "event":
                kind = value
            elif field == "data" and kind == "text":
                tell("text", json.loads(value))
    except (OSError, http.client.HTTPException, ValueError, RuntimeError):
        return  # the daemon or the listening program ended: the file tells what was said
    finally:
        connection.close()

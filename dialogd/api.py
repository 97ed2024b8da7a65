"""dialogd from Python: read a dialog's file, run a whole dialog and get its events.

    dialog = dialogd.open("dialog.md")

    async for event in dialogd.run("Tabs or spaces?"):
        print(event.kind, event.data)

Such a dialog is like any other: `dialogd status` shows it too.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dialogd import person
from dialogd.cli import options
from dialogd.cli.create import SEATS, Start, listed, new_cast
from dialogd.cli.launch import FAILED, Daemons, Interrupt
from dialogd.cli.result import leave_plan
from dialogd.cli.watch import LOOK, Tell, Teller, events
from dialogd.config import Settings
from dialogd.errors import BadInput
from dialogd.protocol.state import Dialog
from dialogd.store.child import until_done
from dialogd.store.registry import Running

AUTO = "auto"
_NAMED = re.compile(r"[^:=]+=")  # A=claude, and not command:prog --flag=x

File = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a dialog.

    `kind` is begun, turn, note, text, state, question, warning or ended; `data` is JSON's kind of data; `at` is when it
    was noticed, in UTC.
    """

    kind: str
    data: Mapping[str, Any]
    at: datetime


def open(file: File) -> Dialog:
    """The dialog in a file as it stands: header, entries, and the state they fold to. Writes nothing into it.

    Raises `NotRunning` where there is no file, `NotADialog` and `UnsafeFile` for one that is no dialog or not to be
    trusted; each has a `fix`.
    """
    return options.dialog_at(options.log_of(options.settings_for(os.fspath(file))))


def say(file: File, text: str, *, to: str = "", note: bool = False) -> Dialog:
    """Speak as the person: a turn, or with `note` a note that nobody has to answer; returns the dialog after it.

    `to` names who answers. Raises what `open` raises, and `BadInput` for an unknown name or no text.
    """
    log = options.log_of(options.settings_for(os.fspath(file)))
    options.dialog_at(log)
    return person.say(log, text, to=to, note=note, secrets=options.own_secrets())


async def run(  # noqa: PLR0913 - what `dialogd run` takes as options
    topic: str,
    *,
    agents: str | Sequence[str] = AUTO,
    roles: Mapping[str, Any] | None = None,
    template: str | None = None,
    file: File | None = None,
    question: str | None = None,
    context: Sequence[File] = (),
    first: str | None = None,
    max_turns: int | None = None,
    max_rounds: int | None = None,
    max_time: str | None = None,
    timeout: str | None = None,  # noqa: ASYNC109 - that of each reply, as `--timeout`
    budget: str | None = None,
    pace: float | None = None,
    allow_defaults: bool = False,
    unattended: bool = False,
    replace: bool = False,
) -> AsyncGenerator[Event, None]:
    """Hold a whole dialog as `dialogd run` does, and yield what happens; the last event is `ended`.

    `agents` are backends, seated as A, B, C …, or `ID=BACKEND[:MODEL][@DIR]`; `"auto"` takes what is available. `roles`
    are what agents are in it, by their ids: a role's name, or a table as in a Setup. `pace` is in seconds, `max_time`
    and `timeout` are durations (`"30 minutes"`), `budget` an amount (`"$2.00"`). With `allow_defaults` a question's
    default counts once its deadline has passed; `unattended` has nothing wait for the person. Raises `DialogdError`
    where it cannot begin or go on. Closing the iterator stops the dialog and ends every process of it.
    """
    asked = {
        "question": question, "context": [os.fspath(path) for path in context] or None, "first": first,
        "max_turns": max_turns, "max_rounds": max_rounds, "max_time": max_time, "timeout": timeout, "budget": budget,
        "roles": roles, "allow_defaults": allow_defaults, "unattended": unattended, **_seats(agents),
    }  # fmt: skip
    wanted = Start(topic, template=template, **{name: value for name, value in asked.items() if value is not None})
    speed = None if pace is None else str(pace)
    settings = options.settings_for(None if file is None else os.fspath(file), pace=speed)
    heard = _heard(lambda tell, interrupt: _hold(settings, wanted, speed or "", tell, interrupt, replace=replace))
    async with aclosing(heard):
        async for event in heard:
            yield event


def _seats(agents: str | Sequence[str]) -> dict[str, Any]:
    """The agents as the command line takes them. Raises `BadInput` for none or too many."""
    if isinstance(agents, str):
        return {} if agents == AUTO else {"agents": agents}
    if not 0 < len(agents) <= len(SEATS):
        raise BadInput(f"{len(agents)} agents are named", fix='name 1 to 26: agents=["claude", "codex"]')
    return listed(agents)


def _hold(settings: Settings, wanted: Start, pace: str, tell: Tell, interrupt: Interrupt, *, replace: bool) -> None:
    """Hold the dialog to its end, or until `interrupt` is set: then it is stopped. No process is left either way.

    Raises what `dialogd run` refuses, and `DialogdError` for a daemon that could not be started or ended twice.
    """
    settings, cast = new_cast(settings, wanted, pace, replace=replace)
    teller, agents = Teller(settings, tell), Daemons(settings, cast)
    listeners: dict[int, threading.Thread] = {}
    dialog, seats = teller.feed.log.read(), {seat.id: seat for seat in cast.seats}
    known = [{"id": a.id, "name": a.name, "backend": seats[a.id].backend, "url": a.url} for a in dialog.header.agents]
    tell("begun", {"file": str(settings.file), "dialog": dialog.id, "topic": dialog.header.topic, "agents": known})

    def listen() -> None:
        """Listen to every daemon that answers and is not listened to."""
        for daemon in agents.running.values():
            if daemon.pid not in listeners:
                thread = threading.Thread(target=_hear, args=(daemon, tell), daemon=True)
                listeners[daemon.pid] = thread
                thread.start()

    closed, cut_off = "the program that ran it closed it", "the program that ran it was cut off"
    try:
        with agents.until_the_end(interrupt, closed=closed, cut_off=cut_off, failed=FAILED):
            agents.start(interrupt, ready=listen)
            while not teller.look() and not interrupt.is_set():
                agents.tend(teller.look, lambda text: tell("warning", {"text": text}))
                listen()
                interrupt.wait(LOOK)
    finally:
        for thread in listeners.values():
            thread.join()
    outcome, dialog = teller.look(), teller.feed.dialog or dialog
    if outcome is not None:
        end = {"outcome": outcome.name, "by": outcome.by, "entry": outcome.entry, "reason": outcome.reason}
        kept = leave_plan(settings, dialog, lambda text: tell("warning", {"text": text}))
        page, facts = map(str, kept) if kept else (None, None)
        ended = {**end, "turn": dialog.state.number, "file": str(settings.file), "plan": page, "plan_json": facts}
        tell("ended", ended)


def _hear(daemon: Running, tell: Tell) -> None:
    """Tell each piece that the daemon's agent writes, until the daemon ends."""
    with suppress(RuntimeError):  # the listening program ended: the file tells what was said
        for kind, data in events(daemon.port):
            if kind == "text":
                tell(kind, data)


async def _heard(work: Callable[[Tell, Interrupt], None]) -> AsyncGenerator[Event, None]:
    """What `work` tells while it runs in a thread of its own; closing this interrupts it and waits until it has ended.

    Raises what `work` raises.
    """
    loop, interrupt = asyncio.get_running_loop(), Interrupt()
    queue: asyncio.Queue[Event | None] = asyncio.Queue()

    def tell(kind: str, data: Mapping[str, Any]) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, Event(kind, data, datetime.now(UTC)))

    pool = ThreadPoolExecutor(1, thread_name_prefix="dialogd")
    running = loop.run_in_executor(pool, work, tell, interrupt)
    running.add_done_callback(lambda _: queue.put_nowait(None))
    pool.shutdown(wait=False)
    try:
        while (event := await queue.get()) is not None:
            yield event
    finally:
        interrupt.set()
        await until_done(running)
        running.result()

"""dialogd from Python: read a dialog's file, run a whole dialog and hear what happens in it.

    dialog = dialogd.open("dialog.md")

    async for event in dialogd.run("Tabs or spaces?"):
        print(event.kind, event.data)

What is written into a file stands there for every other surface too: `dialogd status` shows such a dialog like any.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dialogd import person
from dialogd.cli import options
from dialogd.cli.cast import SEATS
from dialogd.cli.create import Wanted
from dialogd.cli.launch import Interrupt
from dialogd.cli.performance import Tell, perform
from dialogd.errors import BadInput
from dialogd.protocol.state import Dialog

AUTO = "auto"
_NAMED = re.compile(r"[^:=]+=")  # A=claude, and not command:prog --flag=x

File = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a dialog.

    `kind` is begun, turn, note, text, state, warning or ended; `data` is JSON's kind of data; `at` is when it was
    noticed, in UTC.
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
    """Speak as the person: a turn, or with `note` a remark that costs nobody a call; gives the dialog after it.

    `to` names who answers. Raises what `open` raises, and `BadInput` for an unknown name or no text.
    """
    log = options.log_of(options.settings_for(os.fspath(file)))
    options.dialog_at(log)
    return person.say(log, text, to=to, note=note, secrets=options.own_secrets())


async def run(  # noqa: PLR0913 - what `dialogd run` takes as options
    topic: str,
    *,
    agents: str | Sequence[str] = AUTO,
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
    """Hold a whole dialog as `dialogd run` does, and tell what happens; the last event is `ended`.

    `agents` are backends, seated as A, B, C …, or `ID=BACKEND[:MODEL][@DIR]`; `"auto"` takes whoever is there. `pace`
    is in seconds, `max_time` and `timeout` are durations (`"30 minutes"`), `budget` an amount (`"$2.00"`). With
    `allow_defaults` a question's default counts once its deadline has passed; `unattended` has nothing wait for the
    person. Raises `DialogdError` where it cannot begin or go on. Closing the iterator stops the dialog and ends every
    process of it.
    """
    asked = {
        "question": question, "context": [os.fspath(path) for path in context] or None, "first": first,
        "max_turns": max_turns, "max_rounds": max_rounds, "max_time": max_time, "timeout": timeout, "budget": budget,
        "allow_defaults": allow_defaults, "unattended": unattended, **_seats(agents),
    }  # fmt: skip
    wanted = Wanted(topic, template=template, **{name: value for name, value in asked.items() if value is not None})
    speed = None if pace is None else str(pace)
    settings = options.settings_for(None if file is None else os.fspath(file), pace=speed)
    heard = _heard(lambda tell, interrupt: perform(settings, wanted, speed or "", tell, interrupt, replace=replace))
    async with aclosing(heard):
        async for event in heard:
            yield event


def _seats(agents: str | Sequence[str]) -> dict[str, Any]:
    """The agents as the command line takes them. Raises `BadInput` for a number of them that cannot be."""
    if isinstance(agents, str):
        return {} if agents == AUTO else {"agents": agents}
    if not 0 < len(agents) <= len(SEATS):
        raise BadInput(f"{len(agents)} agents are named", fix='name 1 to 26: agents=["claude", "codex"]')
    if not any(_NAMED.match(agent) or "," in agent for agent in agents):
        return {"agents": ",".join(agents)}
    return {"agent": [a if _NAMED.match(a) else f"{seat}={a}" for seat, a in zip(SEATS, agents, strict=False)]}


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
        await _ended(running)
        running.result()


async def _ended(running: asyncio.Future[None]) -> None:
    """Wait until that has ended; being cancelled meanwhile shortens nothing, or processes would be left."""
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled

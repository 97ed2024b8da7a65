"""The loop of one agent: read, decide, reply, append, tell. START READING HERE.

`step` asks `decide` and carries its answer out; `run` repeats it whenever somebody wakes it. Everything that counts
is in the file; what this object remembers can be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from dialogd.agent.call import Call
from dialogd.agent.clock import Seen
from dialogd.agent.events import Hub
from dialogd.agent.known import Known
from dialogd.agent.peers import Peers
from dialogd.agent.turn import STORAGE_WAIT, Options, Turns
from dialogd.backends import Backend
from dialogd.config import new_command
from dialogd.errors import DialogdError
from dialogd.protocol.decide import Action, Clock, Reply, Wait, Write, decide, patience
from dialogd.protocol.model import ANY, USER
from dialogd.protocol.signals import Signal, signals
from dialogd.protocol.state import Dialog
from dialogd.store.logfile import Addition, LogFile

T = TypeVar("T")

PAUSE = 5  # times `retry_wait`: before an agent that failed is asked again, with nobody between


class Agent:
    """One participant at one dialog file."""

    def __init__(self, me: str, file: LogFile, backend: Backend, peers: Peers, hub: Hub, options: Options) -> None:
        self.me = me
        self.file = file
        self.backend = backend
        self.peers = peers
        self.hub = hub
        self.options = options
        self.seen = Seen(options.pace, peers.own, PAUSE * options.retry_wait)
        self.known = Known(me, file, peers, hub, self.seen)
        self.turns = Turns(me, self.known, backend, options)
        self.action: Action = Wait("starting", "starting")
        self.is_stopping = False
        self._settled = asyncio.Condition()

    # -- the loop -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Step whenever woken, by a notify, the file watch or the poll, until `stop`."""
        while not self.is_stopping:
            self.known.wakes.clear()
            try:
                self.action = await self.step()
            except DialogdError as error:
                self.action = Wait("error", f"{error}; {error.fix}", STORAGE_WAIT)
            except OSError as error:
                self.action = Wait("error", f"{error.strerror}: {self.file.path}", STORAGE_WAIT)
            self.known.reporter.action(self.action, self.dialog)
            async with self._settled:
                self._settled.notify_all()
            if not isinstance(self.action, Reply | Write):
                timer = asyncio.get_running_loop().call_later(self._patience(), self.wake)
                await self.known.wakes.wait()
                timer.cancel()

    async def step(self) -> Action:
        """Read, decide, act once; gives what was decided."""
        dialog = await self.known.look_again()
        if dialog is None:
            return Wait(
                "no_dialog",
                f"there is no dialog at {self.file.path} yet; write one, or `{new_command(self.file.path)}`",
            )
        clock = await self.turns.priced(self.seen.clock(await self._working(dialog)), dialog)
        action = decide(dialog, self.me, clock)
        match action:
            case Reply(debt):
                return await self.turns.pay(dialog, debt)
            case Write(None):
                await self.on_disk(self.file.newline)
            case Write():
                await self._write(clock)
        return action

    def wake(self) -> None:
        """Look at the file soon."""
        self.known.wake()

    def _patience(self) -> float:
        seconds = self.action.seconds if isinstance(self.action, Wait) else None
        return self.options.poll if seconds is None else max(0.001, min(seconds, self.options.poll))

    async def _working(self, dialog: Dialog) -> frozenset[str]:
        """Ask the daemons of overdue agents whether they are at it; nobody is asked before that."""
        ages, late = self.seen.clock().ages, []
        for debt in dialog.state.debts:
            overdue = patience(dialog, debt)
            if overdue is not None and debt.agent != ANY and ages.get(debt.timer, 0.0) >= overdue:
                late.append(debt.agent)
        if not late or dialog.state.paused:
            return frozenset()
        return await self.peers.working(dialog, late, str(self.file.path))

    async def _write(self, clock: Clock) -> None:
        """Append the note that `decide` asked for, if it asks for it still once the lock is held."""

        def make(now: Dialog) -> Addition | None:
            again = decide(now, self.me, clock)
            return Addition(again.draft) if isinstance(again, Write) and again.draft is not None else None

        dialog = await self.on_disk(lambda: self.file.append(make, self.turns.journal))
        if dialog is not None:
            self.known.tell(dialog)

    # -- what others ask ------------------------------------------------------------------------------------------

    async def nudge(self, sender: str = "", *, start: bool = False) -> Action:
        """A notify: look now, and say what comes of it. A person's, or one with `start`, starts or revives a dialog."""
        self.wake()
        if self.call is not None:
            return self.action
        since = self.known.looks
        await asyncio.sleep(0)  # the loop first: its turn does not wait for this answer
        try:
            dialog = await self.known.look(since=since)
        except DialogdError as error:
            return Wait("error", f"{error}; {error.fix}")
        if dialog is None:
            return Wait(
                "no_dialog",
                f"there is no dialog at {self.file.path} yet; write one, or `{new_command(self.file.path)}`",
            )
        if start or sender in ("", USER):
            await self._begin(dialog, passed_on=start)
        return decide(dialog, self.me, self.seen.clock())

    async def _begin(self, dialog: Dialog, *, passed_on: bool) -> None:
        """Take the dialog as wanted, remember it, and tell the others who owe a turn."""
        self.seen.nudge()
        if dialog.state.outcome is not None:
            return
        if not dialog.state.spoken and not self.seen.started:
            self.seen.started = True
            await self.on_disk(lambda: self.turns.journal.record("started", dialog=dialog.id))
        self.wake()
        if not passed_on:
            self.peers.start(dialog)

    async def settled(self) -> None:
        """Wait until the loop has finished one more step."""
        async with self._settled:
            await self._settled.wait()

    async def stop(self) -> None:
        """End the loop and the call under way; nothing is appended any more."""
        self.is_stopping = True
        self.wake()
        async with self._settled:
            self._settled.notify_all()

    async def close(self) -> None:
        """Give back what was held."""
        await self.backend.close()
        await self.peers.close()
        self.known.close()

    @property
    def dialog(self) -> Dialog | None:
        """The dialog as last read; None while there is none."""
        return self.known.dialog

    async def look(self) -> Dialog | None:
        """The dialog as the file stands now."""
        return await self.known.look()

    async def on_disk(self, work: Callable[[], T]) -> T:
        """Run a blocking piece of work in the one thread that touches the disk."""
        return await self.known.on_disk(work)

    def missing(self, dialog: Dialog) -> str:
        """What is to be said of turns that a save has taken out; "" for none."""
        return self.known.missing(dialog)

    def noticed(self) -> list[Signal]:
        """The signals of the dialog as last read; none after the end: their advice is for those who go on."""
        dialog = self.dialog
        return list(signals(dialog)) if dialog is not None and dialog.state.outcome is None else []

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be written anywhere: what this environment holds, and what the backend does."""
        return (*self.options.secrets, *self.backend.secrets)

    @property
    def call(self) -> Call | None:
        """The call under way, or None."""
        return self.turns.call

"""The loop of one agent: read, decide, reply, append, tell. START READING HERE.

`step` asks `decide` and carries its answer out; `run` repeats it whenever somebody wakes it. Everything that counts
is in the file; what this object remembers can be lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from dialogd import person
from dialogd.agent.call import Call
from dialogd.agent.clock import Seen
from dialogd.agent.events import Hub
from dialogd.agent.reporting import Reporter
from dialogd.agent.turn import STORAGE_WAIT, Options, Turns
from dialogd.backends import Backend
from dialogd.errors import DialogdError
from dialogd.journal import DROPPED, Lost, still_lost
from dialogd.logfile import Addition, LogFile
from dialogd.peers import Peers
from dialogd.protocol.decide import Action, Clock, Reply, Wait, Write, decide, patience
from dialogd.protocol.model import ANY, USER, Condition
from dialogd.protocol.signals import Signal, signals
from dialogd.protocol.state import Dialog
from dialogd.settings import new_command

T = TypeVar("T")

_TORN = (Condition.DAMAGED, Condition.UNFINISHED)
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
        self.dialog: Dialog | None = None
        self.action: Action = Wait("starting", "starting")
        self.wakes = asyncio.Event()
        self.turns = Turns(me, file, backend, hub, options, self)
        self._settled = asyncio.Condition()
        self._high = self._announced = 0
        self._full_reads = 0  # of the file, as of the last look
        self._lost: tuple[Lost, ...] = ()
        self.reporter = Reporter(hub, me)
        self._looking = asyncio.Lock()  # one look at a time: an older reading must not be taken for a cut
        self._begun = self._done = 0  # looks are numbered: the last one that began, the last one that succeeded
        self._asked = 0  # the loop wants one that began after this one
        self.is_stopping = False
        self.on_written: Callable[[Dialog], None] = lambda _: None  # told of every entry that this daemon has written
        self.on_end: Callable[[Dialog], None] = lambda _: None  # told once it has ended, or its end was rejected
        # One thread: the disk is used in order, and never blocks the event loop.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="disk")

    # -- the loop -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Step whenever woken, by a notify, the file watch or the poll, until `stop`."""
        while not self.is_stopping:
            self.wakes.clear()
            try:
                self.action = await self.step()
            except DialogdError as error:
                self.action = Wait("error", f"{error}; {error.fix}", STORAGE_WAIT)
            except OSError as error:
                self.action = Wait("error", f"{error.strerror}: {self.file.path}", STORAGE_WAIT)
            self.reporter.action(self.action, self.dialog)
            async with self._settled:
                self._settled.notify_all()
            if not isinstance(self.action, Reply | Write):
                timer = asyncio.get_running_loop().call_later(self._patience(), self.wake)
                await self.wakes.wait()
                timer.cancel()

    async def step(self) -> Action:
        """Read, decide, act once; gives what was decided."""
        dialog = await self.look(since=self._asked)
        self._asked = self._begun
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
        self._asked = self._begun
        self.wakes.set()

    def _patience(self) -> float:
        seconds = self.action.seconds if isinstance(self.action, Wait) else None
        return self.options.poll if seconds is None else max(0.001, min(seconds, self.options.poll))

    # -- reading --------------------------------------------------------------------------------------------------

    async def look(self, *, sure: bool = False, since: int | None = None) -> Dialog | None:
        """Read the file; None while there is none. Notices new dialogs and cuts, and finishes torn tails.

        With `sure` what the person may have changed above is read again, as before a call that costs money.
        Any look that began after the look `since`, or after this call, serves everybody who waits for one.
        """
        since = self._begun if since is None else since
        async with self._looking:
            if self._done > since and not sure:
                return self.dialog
            self._begun += 1
            try:
                dialog = await self._read(sure=sure)
            except FileNotFoundError:
                if self.dialog is not None:
                    self.seen.began_anew()
                self.dialog, self._done = None, self._begun
                return None
            first = self.dialog is None
            if first or (dialog.last is not None and dialog.last.condition in _TORN):
                dialog = await self.on_disk(self.file.finish_torn)
            anew = not first and (dialog.state.number < self._high or self._is_another(dialog))
            if first or anew or self._has_lost(dialog):
                await self._check_identity(dialog, first=first)
            if anew:
                self.seen.began_anew()
            if not (self.seen.started or dialog.state.spoken):
                self.seen.started = await self.on_disk(lambda: self.file.journals.started(dialog.id))
            self._high = dialog.state.number
            self.reporter.dialog(dialog, self.file.full_reads)
            self._know(dialog)
            return dialog

    async def _read(self, *, sure: bool) -> Dialog:
        """The dialog as the file stands; where nobody has written to it since, without a way to the disk's thread."""
        known = self.file.known(sure=sure)
        return known if known is not None else await self.on_disk(lambda: self.file.read(sure=sure))

    async def take(self, dialog: Dialog) -> None:
        """Know the dialog as it stood after this daemon had written to it, unless a later look knows more."""
        async with self._looking:
            if self.dialog is not None and self.dialog.size < dialog.size and not self._is_reread:
                self._begun += 1
                self._know(dialog)

    def _know(self, dialog: Dialog) -> None:
        state = dialog.state
        before = self.dialog.state if self.dialog is not None else None
        is_news = state.outcome is not None and (before is None or before.outcome != state.outcome)
        if before is not None:  # what the person says of a result belongs to it
            is_news |= state.rejected not in ("", before.rejected) or state.approved not in ("", before.approved)
        self.seen.observe(dialog, self.file.path)
        self._announce(dialog)
        self.dialog, self._done, self._full_reads = dialog, self._begun, self.file.full_reads
        if is_news:
            self.on_end(dialog)

    def _is_another(self, dialog: Dialog) -> bool:
        """Another question stands in the file before anybody has answered: an `id` alone may change by an edit."""
        if self.dialog is None or any(entry.frame for entry in dialog.entries):
            return False
        return dialog.id != self.dialog.id

    @property
    def _is_reread(self) -> bool:
        """True when the file was read from its beginning since the last look: what stood there may have changed."""
        return self.file.full_reads != self._full_reads

    def _has_lost(self, dialog: Dialog) -> bool:
        """True when a turn that a daemon had written is there no longer."""
        if self.dialog is None or not self._is_reread:
            return False
        present = {entry.chain for entry in dialog.entries}
        return any(entry.frame and entry.is_turn and entry.chain not in present for entry in self.dialog.entries)

    async def _check_identity(self, dialog: Dialog, *, first: bool) -> None:
        """Tell of turns that were committed and are gone; a new dialog, or a person's cut, sets the journal aside."""
        for text in await self.on_disk(self.file.journals.odd) if first else ():
            self.hub.publish("warning", text=text)
        present = {entry.chain for entry in dialog.entries}
        committed = await self.on_disk(self.file.journals.committed)
        gone = [number for number, chain in sorted(committed.items()) if chain not in present]
        aside: Path | None = None
        if gone and (dialog.state.number < max(committed) or len(gone) == len(committed)):
            aside = await self.on_disk(lambda: self.file.set_aside(present))
            self.turns.forget()
        before = {one.chain for one in self._lost}
        self._lost = await self.on_disk(lambda: self.file.journals.lost(dialog))
        if any(one.chain not in before for one in self._lost):
            first_, last, text = self._lost[0].number, self._lost[-1].number, self.missing(dialog)
            self.hub.publish("dropped", first=first_, last=last, kept=str(self._lost[-1].kept), text=text)
        elif aside is not None:
            kept = aside / DROPPED
            text = f"turns {gone[0]} to {gone[-1]} are no longer in the file; their text is in {kept}"
            self.hub.publish("dropped", first=gone[0], last=gone[-1], kept=str(kept), text=text)

    def missing(self, dialog: Dialog) -> str:
        """What is to be said of turns that a save has taken out, with the command that puts them back; "" for none."""
        return person.taken_out(still_lost(self._lost, dialog), self.file.path)

    def _announce(self, dialog: Dialog) -> None:
        """Publish the entries that came since the last look, each once, also where others were taken out before it."""
        is_typing = dialog.last is not None and dialog.last.condition is Condition.UNFINISHED
        entries = dialog.entries[:-1] if is_typing else dialog.entries
        known = self._announced
        self._announced = len(entries)
        if self._begun <= 1:
            return  # what stood there before this daemon is no news
        if self.dialog is None or not self._is_reread:
            news = entries[known:]
        else:
            is_same = self.dialog.id == dialog.id
            told = Counter(entry.chain for entry in self.dialog.entries[:known] if entry.frame or is_same)
            news = tuple(entry for entry in entries if not _taken(told, entry.chain))
        for entry in news:
            self.reporter.entry(entry, dialog)

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
            self.tell(dialog)

    # -- what others ask ------------------------------------------------------------------------------------------

    async def nudge(self, sender: str = "", *, start: bool = False) -> Action:
        """A notify: look now, and say what comes of it. A person's, or one with `start`, starts or revives a dialog."""
        self.wake()
        if self.call is not None:
            return self.action
        since = self._begun
        await asyncio.sleep(0)  # the loop first: its turn does not wait for this answer
        try:
            dialog = await self.look(since=since)
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
        self._disk.shutdown(wait=False, cancel_futures=True)

    async def on_disk(self, work: Callable[[], T]) -> T:
        """Run a blocking piece of work in the one thread that touches the disk."""
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)

    def tell(self, dialog: Dialog | None) -> None:
        """Tell the peers that there is something new; a hint that may get lost."""
        if dialog is None:
            return
        # What was just appended counts as seen, and no look that began before it may be taken for the next one.
        self._high, self._asked = max(self._high, dialog.state.number), self._begun
        self.on_written(dialog)
        if peers := self.peers.of(dialog):
            self.hub.publish("telling", peers=sorted(peers))
            self.peers.tell(dialog)

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

    def is_typing(self, dialog: Dialog) -> bool:
        """True while somebody is typing at the end of the file."""
        return self.seen.is_typing(dialog)


def _taken(told: Counter[str], chain: str) -> bool:
    """Take one of these from what was told, if there is one."""
    told[chain] -= 1
    return told[chain] >= 0

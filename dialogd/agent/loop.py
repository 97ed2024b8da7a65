"""The loop of one agent: read, decide, reply, append, tell. START READING HERE.

`step` asks `decide` and carries its answer out; `run` repeats it whenever somebody wakes it. Everything that counts
is in the file; what this object remembers can be lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dialogd import person
from dialogd.agent.builder import Note
from dialogd.agent.events import Hub, Reporter
from dialogd.agent.peers import Peers
from dialogd.agent.turn import STORAGE_WAIT, Behavior, Speaker, Turn, in_thread
from dialogd.backends import Backend
from dialogd.config import new_command
from dialogd.errors import BackendError, DialogdError, StorageError
from dialogd.protocol.decide import Action, Clock, Reply, Wait, Work, Write, decide, patience
from dialogd.protocol.model import ANY, USER, Addition, Condition, Entry
from dialogd.protocol.order import is_open
from dialogd.protocol.state import Debt, Dialog
from dialogd.store.journal import DROPPED, Lost, still_lost
from dialogd.store.logfile import LogFile

T = TypeVar("T")

_TORN = (Condition.DAMAGED, Condition.UNFINISHED)


class Follower(Protocol):
    """Whoever acts on what this daemon writes and learns, such as the daemon that leaves the plan."""

    def written(self, dialog: Dialog) -> None:
        """This daemon has written an entry: the dialog with it."""

    def ended(self, dialog: Dialog) -> None:
        """The dialog has ended, or the person has judged its end; whoever wrote that."""


class Agent(Speaker):
    """One participant at one dialog file.

    `action` is what was last decided. `wakes` is set when the file is worth a look.
    """

    def __init__(self, me: str, file: LogFile, backend: Backend, peers: Peers, hub: Hub, behavior: Behavior) -> None:
        super().__init__(me, file, backend, peers, hub, behavior)
        self.followers: list[Follower] = []
        self.action: Action = Wait("starting", "starting")
        self.is_stopping = False
        self.wakes = asyncio.Event()
        self._settled = asyncio.Condition()
        self._reporter = Reporter(hub, me)
        self._turn: Turn | None = None  # the latest one; what is left to do of it can be done yet
        self._worked: tuple[object, Note] | None = None  # a build's work that is done; its note is not written yet
        self._lost: tuple[Lost, ...] = ()
        self._looking = asyncio.Lock()  # one look at a time: an older reading must not be taken for a cut
        self._looks = 0  # that succeeded, and writes, whose dialog is known as well as by a look
        self._asked = 0  # the loop wants a look after this one

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
            self._reporter.action(self.action, self.dialog)
            async with self._settled:
                self._settled.notify_all()
            if not isinstance(self.action, Reply | Write | Work):
                seconds = self.action.seconds if isinstance(self.action, Wait) else None
                await self._woken(self.behavior.poll if seconds is None else min(seconds, self.behavior.poll))

    async def step(self) -> Action:
        """Read, decide, act once; gives what was decided."""
        dialog = await self.look(since=self._asked)
        self._asked = self._latest
        action, clock = await self._decide(dialog)
        if isinstance(action, Reply) and self.backend.costs:  # before money is spent, what may have changed is read
            sure = await self.look(sure=True)
            if sure is not dialog:
                dialog = sure
                action, clock = await self._decide(dialog)
        match action:
            case Reply(debt) if dialog is not None:
                return await self._reply(dialog, debt)
            case Work() if dialog is not None:
                return await self._work(dialog, action, clock)
            case Write(None):
                await self.on_disk(self.file.newline)
            case Write():
                await self._write(clock)
        return action

    async def _decide(self, dialog: Dialog | None) -> tuple[Action, Clock]:
        """What to do now, and by which clock."""
        if dialog is None:
            return self._no_dialog(), self.seen.clock()
        clock, debt = self.seen.clock(), dialog.state.debt(self.me)
        if late := _overdue(dialog, clock):  # nobody is asked before that
            clock = replace(clock, working=await self.peers.working(dialog, late, str(self.file.path)))
        if debt is not None and dialog.state.outcome is None and self.is_limited(dialog):
            turn = self._turn if self._turn is not None and self._turn.debt.key == debt.key else None
            is_paid = turn is not None and turn.received is not None
            clock = await self.on_disk(lambda: self.priced(clock, dialog, debt, is_paid=is_paid))
        return decide(dialog, self.me, clock), clock

    def _no_dialog(self) -> Wait:
        how = new_command(self.file.path)
        return Wait("no_dialog", f"there is no dialog at {self.file.path} yet; write one, or `{how}`")

    async def _reply(self, dialog: Dialog, debt: Debt) -> Action:
        """Take the turn that pays the debt."""
        if self._turn is None or self._turn.debt.key != debt.key:
            self._turn = await Turn.begin(self, dialog, debt, self._while_open, self._turn)
        turn = self._turn
        try:
            written = await turn.take(dialog, debt)
            if isinstance(written, Wait):
                return written
            if written is not None:
                await self._wrote(written, turn)
        except StorageError as error:
            return Wait("storage", f"{error}; {error.fix}", STORAGE_WAIT)
        finally:
            self._turn = turn  # a look meanwhile may have set the journal aside; this reply is paid for
            if (doing := self.hub.standing.get(self.me)) is not None and doing.is_at_it:
                self.hub.agent(self.me, "idle")
        if written is not None and turn.received is None and is_open(written, self.me, debt):
            return await self.step()  # it was a digest: decide anew, and go on
        return Reply(debt)

    async def _work(self, dialog: Dialog, work: Work, clock: Clock) -> Action:
        """Do what a build asks this daemon for, and append the note that says what came of it."""
        if why := self.builder.refuses(dialog):
            return Wait("build", why)
        key = (work.debt.key, work.due, work.task)
        if self._worked is None or self._worked[0] != key:
            self._worked = None
            self.action = work  # what was decided before is told no more: a setup or a gate can take minutes
            self.hub.agent(self.me, "executing", turn=dialog.state.number, reason=f"{work.due.value[0]} {work.task.id}")
            try:
                found = await self._while_open(work.debt, self.builder.work(dialog, work, in_thread))
            except StorageError as error:
                return Wait("storage", f"{error}; {error.fix}", STORAGE_WAIT)
            finally:
                self.hub.agent(self.me, "idle")
            if found is None:
                return work
            self._worked = (key, found)
        note = self._worked[1]

        def make(now: Dialog) -> Addition | None:
            again = decide(now, self.me, clock)
            is_same = isinstance(again, Work) and (again.debt.key, again.due, again.task) == key
            return Addition(note(now)) if is_same else None

        written = await self.append(make)
        if written is not None:
            self._worked = None
            await self._wrote(written)
        return work

    async def _while_open(self, debt: Debt, answer: Coroutine[Any, Any, T]) -> T | None:
        """The answer of a call; None when the debt was closed meanwhile, which ends the call."""
        task = asyncio.ensure_future(answer)
        task.add_done_callback(lambda _: self.wakes.set())
        try:
            while not task.done():
                await self._woken(self.behavior.poll)
                self.wakes.clear()
                if not task.done() and not await self._is_open(debt) and not task.done():  # it may end meanwhile
                    return None
            return task.result()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, BackendError):
                await task

    async def _is_open(self, debt: Debt) -> bool:
        try:
            now = await self.look()
        except (DialogdError, OSError):
            return True  # a file in the middle of a save: the append itself compares again
        return now is None or is_open(now, self.me, debt)

    async def _write(self, clock: Clock) -> None:
        """Append the note that `decide` asked for, if it asks for it still once the lock is held."""

        def make(now: Dialog) -> Addition | None:
            again = decide(now, self.me, clock)
            return Addition(again.draft) if isinstance(again, Write) and again.draft is not None else None

        dialog = await self.append(make)
        if dialog is not None:
            await self._wrote(dialog)

    async def _wrote(self, dialog: Dialog, turn: Turn | None = None) -> None:
        """Take in what was just written, perhaps by a turn, and pass it on."""
        if turn is not None:
            turn.wrote(dialog)
        self._asked = self._latest  # no look that began before it may be taken for the next one
        for follower in self.followers:
            follower.written(dialog)
        if told := sorted(self.peers.of(dialog)):
            self.hub.publish("telling", peers=told)
        async with self._looking:
            if self.dialog is not None and self.dialog.size < dialog.size and self._is_read_on(dialog):
                self._know(dialog)
                # Woken by what was written after it, perhaps: then it may not be taken for a later look.
                self._asked = self._looks if self.wakes.is_set() else self._looks - 1

    # -- what others ask ------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look at the file soon."""
        self._asked = self._latest
        self.wakes.set()

    async def _woken(self, seconds: float) -> None:
        """Wait until somebody wakes this agent, so long at most."""
        timer = asyncio.get_running_loop().call_later(max(0.001, seconds), self.wake)
        await self.wakes.wait()
        timer.cancel()

    async def nudge(self, sender: str = "", *, start: bool = False) -> Action:
        """A notify: look now, and say what comes of it. A person's, or one with `start`, starts or revives a dialog."""
        self.wake()
        if self.call is not None:
            return self.action
        since = self._latest
        await asyncio.sleep(0)  # the loop first: its turn does not wait for this answer
        try:
            dialog = await self.look(since=since)
        except DialogdError as error:
            return Wait("error", f"{error}; {error.fix}")
        if dialog is None:
            return self._no_dialog()
        if start or sender in ("", USER):
            await self._begin(dialog, passed_on=start)
        return decide(dialog, self.me, self.seen.clock())

    async def _begin(self, dialog: Dialog, *, passed_on: bool) -> None:
        """Mark the dialog as started, remember that, and tell the others who owe a turn."""
        self.seen.nudge()
        if dialog.state.outcome is not None:
            return
        if not dialog.state.has_spoken and not self.seen.started:
            self.seen.started = True
            await self.on_disk(lambda: self.journal.record("started", dialog=dialog.id))
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
        self.disk.shutdown(wait=False)
        if self.file.mirror is not None:
            await in_thread(self.file.mirror.close)

    def missing(self, dialog: Dialog) -> str:
        """What is to be said of turns that a save has taken out, with the command that puts them back; "" for none."""
        return person.taken_out(still_lost(self._lost, dialog), self.file.path) if self._lost else ""

    # -- a look at the file ---------------------------------------------------------------------------------------

    @property
    def _latest(self) -> int:
        """The number of the latest look that began: one under way may have read already what is news now."""
        return self._looks + self._looking.locked()

    async def look(self, *, sure: bool = False, since: int | None = None) -> Dialog | None:
        """Read the file; None while there is none. Notices new dialogs and cuts, and finishes torn tails.

        With `sure` what the person may have changed above is read again, as before a call that costs money.
        Any look that began after the look `since`, or after this call, serves everybody who waits for one.
        """
        since = self._latest if since is None else since
        async with self._looking:
            if self._looks > since and not sure:
                return self.dialog
            try:
                dialog = await self.read(sure=sure)
            except FileNotFoundError:
                if self.dialog is not None:
                    self.seen.began_anew()
                self.dialog, self._looks = None, self._looks + 1
                return None
            known = self.dialog
            if known is None or (dialog.last is not None and dialog.last.condition in _TORN):
                dialog = await self.on_disk(self.file.finish_torn)
            anew = known is not None and (dialog.state.number < known.state.number or self._is_another(dialog))
            dropped: dict[str, Any] = {}
            if known is None or anew or self._has_lost(dialog):
                dropped = await self._check_identity(dialog, first=known is None)
            if anew:
                self.seen.began_anew()
            if not (self.seen.started or dialog.state.has_spoken):
                self.seen.started = await self.on_disk(lambda: self.file.journals.started(dialog.id))
            if dropped:  # told with the dialog known: whoever hears of it and asks is told the same
                self.hub.publish("dropped", **dropped)
            self._reporter.dialog(dialog, is_read_on=self._is_read_on(dialog))
            self._know(dialog)
            return dialog

    def _is_read_on(self, dialog: Dialog) -> bool:
        """True where what is known was read on; False where the whole file was read, so that all may have changed."""
        return self.dialog is not None and dialog.header_as_written is self.dialog.header_as_written

    def _know(self, dialog: Dialog) -> None:
        """Take the dialog as the one that stands in the file, and tell of what is new in it."""
        state = dialog.state
        before = self.dialog.state if self.dialog is not None else None
        is_news = state.outcome is not None and (before is None or before.outcome != state.outcome)
        if before is not None:  # what the person says of a result belongs to it
            is_news |= state.rejected not in ("", before.rejected) or state.approved not in ("", before.approved)
        self.seen.observe(dialog, self.file.path)
        for entry in self._news(dialog) if self._looks else ():  # what stood there before this daemon is no news
            self._reporter.entry(entry, dialog)
        self.dialog, self._looks = dialog, self._looks + 1
        if state.hand.keys is not None and (mirror := self.file.mirror) is not None:
            clock = asyncio.get_running_loop()
            mirror.follow(lambda: clock.call_soon_threadsafe(lambda: self.hub.publish("mirror", **mirror.standing())))
        if is_news:
            for follower in self.followers:
                follower.ended(dialog)

    def _news(self, dialog: Dialog) -> Sequence[Entry]:
        """The entries that came since the last look, each once, also where others were taken out before it."""
        entries, before = _finished(dialog), _finished(self.dialog)
        if self._is_read_on(dialog) or self.dialog is None:
            return entries[len(before) :]
        told = Counter(entry.chain for entry in before if entry.frame or self.dialog.id == dialog.id)
        came = []
        for entry in entries:
            told[entry.chain] -= 1
            if told[entry.chain] < 0:
                came.append(entry)
        return came

    def _is_another(self, dialog: Dialog) -> bool:
        """Another question stands in the file before anybody has answered: an `id` alone may change by an edit."""
        known = self.dialog
        if known is None or (
            known.header_as_written is dialog.header_as_written and known.entries[:1] == dialog.entries[:1]
        ):
            return False
        return not any(entry.frame for entry in dialog.entries) and dialog.id != known.id

    def _has_lost(self, dialog: Dialog) -> bool:
        """True when a turn that a daemon had written is there no longer."""
        if self.dialog is None or self._is_read_on(dialog):
            return False
        present = {entry.chain for entry in dialog.entries}
        return any(entry.frame and entry.is_turn and entry.chain not in present for entry in self.dialog.entries)

    async def _check_identity(self, dialog: Dialog, *, first: bool) -> dict[str, Any]:
        """What to tell of turns that were committed and are gone; {} for nothing new.

        A new dialog, or a person's cut, sets the journal aside, and what was left to do of a turn with it.
        """
        for text in await self.on_disk(self.file.journals.odd) if first else ():
            self.hub.publish("warning", text=text)
        committed = await self.on_disk(self.file.journals.committed)
        present = {entry.chain for entry in dialog.entries}
        if not present.issuperset(committed.values()):
            # A peer may have committed one since the file was read; what is gone now was there when it was committed.
            dialog = await self.on_disk(self.file.read)
            present = {entry.chain for entry in dialog.entries}
        gone = [number for number, chain in sorted(committed.items()) if chain not in present]
        aside: Path | None = None
        if gone and (dialog.state.number < max(committed) or len(gone) == len(committed)):
            aside = await self.on_disk(lambda: self.file.set_aside(present))
            self._turn = None
        before = {one.chain for one in self._lost}
        self._lost = await self.on_disk(lambda: self.file.lost(dialog))
        if any(one.chain not in before for one in self._lost):
            first_, last, text = self._lost[0].number, self._lost[-1].number, self.missing(dialog)
            return {"first": first_, "last": last, "kept": str(self._lost[-1].kept), "text": text}
        if aside is not None:
            kept = aside / DROPPED
            text = f"turns {gone[0]} to {gone[-1]} are no longer in the file; their text is in {kept}"
            return {"first": gone[0], "last": gone[-1], "kept": str(kept), "text": text}
        return {}


def _finished(dialog: Dialog | None) -> Sequence[Entry]:
    """The entries but for one that somebody types."""
    if dialog is None or dialog.last is None:
        return ()
    return dialog.entries[:-1] if dialog.last.condition is Condition.UNFINISHED else dialog.entries


def _overdue(dialog: Dialog, clock: Clock) -> list[str]:
    """The agents that others would call stalled by now."""
    late = []
    for debt in () if dialog.state.paused else dialog.state.debts.open:
        overdue = patience(dialog, debt)
        if overdue is not None and debt.agent != ANY and clock.ages.get(debt.timer, 0.0) >= overdue:
            late.append(debt.agent)
    return late

"""What this daemon knows of its dialog: it looks at the file, notices what came and what is gone, and tells of it.

Everything that counts is in the file; what is known here can be lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dialogd import person
from dialogd.agent.clock import Seen
from dialogd.agent.events import Hub
from dialogd.agent.peers import Peers
from dialogd.agent.reporting import Reporter
from dialogd.protocol.model import Condition
from dialogd.protocol.state import Dialog
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


class Known:
    """The dialog of agent `me` as last read, and everybody who is to hear of it.

    `wakes` is set when the file is worth a look. `times_set_aside` counts how often journals were set aside, because
    the turns in them are no longer in the file.
    """

    def __init__(self, me: str, file: LogFile, peers: Peers, hub: Hub, seen: Seen) -> None:
        self.file = file
        self.peers = peers
        self.hub = hub
        self.seen = seen
        self.dialog: Dialog | None = None
        self.wakes = asyncio.Event()
        self.followers: list[Follower] = []
        self.times_set_aside = 0
        self.reporter = Reporter(hub, me)
        self._high = self._announced = 0
        self._full_reads = 0  # of the file, by when it held what is known: one more may have changed all of it
        self._lost: tuple[Lost, ...] = ()
        self._looking = asyncio.Lock()  # one look at a time: an older reading must not be taken for a cut
        self._begun = self._done = 0  # looks are numbered: the last one that began, the last one that succeeded
        self._asked = 0  # the loop wants one that began after this one
        # One thread: the disk is used in order, and never blocks the event loop.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="disk")

    def wake(self) -> None:
        """Look at the file soon."""
        self._asked = self._begun
        self.wakes.set()

    async def look_again(self) -> Dialog | None:
        """The dialog as of a look that began after the last time that somebody woke the loop."""
        dialog = await self.look(since=self._asked)
        self._asked = self._begun
        return dialog

    @property
    def looks(self) -> int:
        """How many looks have begun."""
        return self._begun

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
                dialog, reads = await self._read(sure=sure)
            except FileNotFoundError:
                if self.dialog is not None:
                    self.seen.began_anew()
                self.dialog, self._done = None, self._begun
                return None
            first = self.dialog is None
            if first or (dialog.last is not None and dialog.last.condition in _TORN):
                dialog, reads = await self.on_disk(lambda: (self.file.finish_torn(), self.file.full_reads))
            anew = not first and (dialog.state.number < self._high or self._is_another(dialog))
            dropped: dict[str, Any] = {}
            if first or anew or self._has_lost(dialog, reads):
                dropped = await self._check_identity(dialog, first=first)
            if anew:
                self.seen.began_anew()
            if not (self.seen.started or dialog.state.spoken):
                self.seen.started = await self.on_disk(lambda: self.file.journals.started(dialog.id))
            if dropped:  # told with the dialog known: whoever hears of it and asks is told the same
                self.hub.publish("dropped", **dropped)
            self._high = dialog.state.number
            self.reporter.dialog(dialog, reads)
            self._know(dialog, reads)
            return dialog

    async def _read(self, *, sure: bool) -> tuple[Dialog, int]:
        """The dialog as the file stands, and how often the file had been read whole by then.

        Where nobody has written to it since, without a way to the disk's thread.
        """
        reads, known = self.file.full_reads, self.file.known(sure=sure)
        if known is not None:
            return known, reads
        # Counted in the disk's thread: there the next thing to do may have read all anew before this is heard of.
        return await self.on_disk(lambda: (self.file.read(sure=sure), self.file.full_reads))

    async def take(self, dialog: Dialog) -> None:
        """Know the dialog as it stood after this daemon had written to it, unless a later look knows more."""
        async with self._looking:
            reads = self.file.full_reads
            if self.dialog is not None and self.dialog.size < dialog.size and reads == self._full_reads:
                self._begun += 1
                self._know(dialog, reads)
                if self.wakes.is_set():  # by what was written after it, perhaps: it may not be taken for a later look
                    self._asked = self._begun

    def _know(self, dialog: Dialog, reads: int) -> None:
        state = dialog.state
        before = self.dialog.state if self.dialog is not None else None
        is_news = state.outcome is not None and (before is None or before.outcome != state.outcome)
        if before is not None:  # what the person says of a result belongs to it
            is_news |= state.rejected not in ("", before.rejected) or state.approved not in ("", before.approved)
        self.seen.observe(dialog, self.file.path)
        self._announce(dialog, reads)
        self.dialog, self._done, self._full_reads = dialog, self._begun, reads
        if is_news:
            for follower in self.followers:
                follower.ended(dialog)

    def _is_another(self, dialog: Dialog) -> bool:
        """Another question stands in the file before anybody has answered: an `id` alone may change by an edit."""
        if self.dialog is None or any(entry.frame for entry in dialog.entries):
            return False
        return dialog.id != self.dialog.id

    def _has_lost(self, dialog: Dialog, reads: int) -> bool:
        """True when a turn that a daemon had written is there no longer; only whole reads may have shown that."""
        if self.dialog is None or reads == self._full_reads:
            return False
        present = {entry.chain for entry in dialog.entries}
        return any(entry.frame and entry.is_turn and entry.chain not in present for entry in self.dialog.entries)

    async def _check_identity(self, dialog: Dialog, *, first: bool) -> dict[str, Any]:
        """What to tell of turns that were committed and are gone; {} for nothing new.

        A new dialog, or a person's cut, sets the journal aside.
        """
        for text in await self.on_disk(self.file.journals.odd) if first else ():
            self.hub.publish("warning", text=text)
        present = {entry.chain for entry in dialog.entries}
        committed = await self.on_disk(self.file.journals.committed)
        gone = [number for number, chain in sorted(committed.items()) if chain not in present]
        aside: Path | None = None
        if gone and (dialog.state.number < max(committed) or len(gone) == len(committed)):
            aside = await self.on_disk(lambda: self.file.set_aside(present))
            self.times_set_aside += 1
        before = {one.chain for one in self._lost}
        self._lost = await self.on_disk(lambda: self.file.journals.lost(dialog))
        if any(one.chain not in before for one in self._lost):
            first_, last, text = self._lost[0].number, self._lost[-1].number, self.missing(dialog)
            return {"first": first_, "last": last, "kept": str(self._lost[-1].kept), "text": text}
        if aside is not None:
            kept = aside / DROPPED
            text = f"turns {gone[0]} to {gone[-1]} are no longer in the file; their text is in {kept}"
            return {"first": gone[0], "last": gone[-1], "kept": str(kept), "text": text}
        return {}

    def missing(self, dialog: Dialog) -> str:
        """What is to be said of turns that a save has taken out, with the command that puts them back; "" for none."""
        return person.taken_out(still_lost(self._lost, dialog), self.file.path)

    def _announce(self, dialog: Dialog, reads: int) -> None:
        """Publish the entries that came since the last look, each once, also where others were taken out before it."""
        is_typing = dialog.last is not None and dialog.last.condition is Condition.UNFINISHED
        entries = dialog.entries[:-1] if is_typing else dialog.entries
        known = self._announced
        self._announced = len(entries)
        if self._begun <= 1:
            return  # what stood there before this daemon is no news
        if self.dialog is None or reads == self._full_reads:
            news = entries[known:]
        else:
            is_same = self.dialog.id == dialog.id
            told = Counter(entry.chain for entry in self.dialog.entries[:known] if entry.frame or is_same)
            news = tuple(entry for entry in entries if not _taken(told, entry.chain))
        for entry in news:
            self.reporter.entry(entry, dialog)

    def tell(self, dialog: Dialog | None) -> None:
        """Tell the peers that there is something new; a hint that may get lost."""
        if dialog is None:
            return
        # What was just appended counts as seen, and no look that began before it may be taken for the next one.
        self._high, self._asked = max(self._high, dialog.state.number), self._begun
        for follower in self.followers:
            follower.written(dialog)
        if peers := self.peers.of(dialog):
            self.hub.publish("telling", peers=sorted(peers))
            self.peers.tell(dialog)

    def is_typing(self, dialog: Dialog) -> bool:
        """True while somebody is typing at the end of the file."""
        return self.seen.is_typing(dialog)

    async def on_disk(self, work: Callable[[], T]) -> T:
        """Run a blocking piece of work in the one thread that touches the disk."""
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)

    def close(self) -> None:
        """Give the disk's thread back."""
        self._disk.shutdown(wait=False, cancel_futures=True)


def _taken(told: Counter[str], chain: str) -> bool:
    """Take one of these from what was told, if there is one."""
    told[chain] -= 1
    return told[chain] >= 0

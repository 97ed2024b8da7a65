"""Paying one debt: ask the backend, keep what it said, append it while the debt is open, else keep it as a draft."""

from __future__ import annotations

import secrets as random
from contextlib import suppress
from dataclasses import replace
from functools import partial

from dialogd.asking import Asking, Interrupted, Options, Room, beside, read
from dialogd.backends import Backend
from dialogd.bill import Bill, from_record
from dialogd.call import Call
from dialogd.errors import BackendError, DialogdError, StorageError
from dialogd.events import Hub
from dialogd.journal import Journal, Received
from dialogd.logfile import Addition, LogFile, Make
from dialogd.protocol import compose
from dialogd.protocol.closing import is_clear
from dialogd.protocol.decide import Action, Clock, Reply, Wait
from dialogd.protocol.marks import Reply as Text
from dialogd.protocol.model import Agent as Participant
from dialogd.protocol.model import Condition
from dialogd.protocol.render import Draft
from dialogd.protocol.rounds import is_apart, is_open, is_sealed_round
from dialogd.protocol.seal import seal, sealed_text
from dialogd.protocol.state import Debt, Dialog
from dialogd.reporting import standing
from dialogd.seen import duration, here, wall
from dialogd.tally import Tally

STORAGE_WAIT = 5.0  # seconds before a refused write is tried again


class Turns:
    """Takes the turns of agent `me`."""

    def __init__(self, me: str, file: LogFile, backend: Backend, hub: Hub, options: Options, room: Room) -> None:
        self.me = me
        self.file = file
        self.hub = hub
        self.room = room
        self.asking = Asking(me, file, backend, hub, options, room)
        self.journal: Journal = self.asking.journal
        self._pending: Received | None = None
        self._is_new = False  # the pending reply is not in the journal yet
        self._is_clear = False  # the journal is known to hold no reply and no draft for the next call
        self._unwritten: tuple[Debt, BackendError] | None = None

    @property
    def call(self) -> Call | None:
        """The call under way, or None."""
        return self.asking.call

    @property
    def tally(self) -> Tally:
        """What this daemon has done since it started."""
        return self.asking.tally

    def forget(self) -> None:
        """Another dialog stands in the file: what was received belongs to the old one."""
        self._pending = None

    async def priced(self, clock: Clock, dialog: Dialog) -> Clock:
        """The clock with what the turn that this agent owes will cost."""
        debt = dialog.state.debt(self.me)
        if debt is None or dialog.state.outcome is not None or not self.asking.is_limited(dialog):
            return clock
        is_paid = self._pending is not None and self._pending.debt == debt.key
        return await self.room.on_disk(lambda: self.asking.priced(clock, dialog, debt, is_paid=is_paid))

    async def pay(self, dialog: Dialog, debt: Debt) -> Action:
        """Pay a debt: call the backend, keep what it said, append it while the debt is open, tell the peers."""
        if self.file.suspect:
            return Wait("storage", f"{self.file.suspect}; check the disk, then restart this daemon", STORAGE_WAIT)
        if self._unwritten is not None and self._unwritten[0].key == debt.key:
            return await self._fail(*self._unwritten)
        received, drafts = await self._kept()
        if received is None or received.debt != debt.key:
            if received is not None:
                await self._landed(received)
                _, drafts = await self._kept()
            if dialog.state.seal(self.me) is not None:
                return await self._fail(debt, _lost(self.me))
            try:
                received = await self._receive(dialog, debt, drafts)
            except BackendError as error:
                return await self._fail(debt, error)
            if received is None:
                return _passed()
        if received.answer is None:
            try:
                confirmed = await self._confirm(dialog, debt, received)
            except BackendError as error:
                return await self._fail(debt, error)
            except StorageError as error:
                return Wait("storage", f"{error}; {error.fix}", STORAGE_WAIT)
            if confirmed is None:
                return _passed()
            received = confirmed
        action = await self._deliver(dialog, debt, received)
        self._rests()
        return action

    async def _confirm(self, dialog: Dialog, debt: Debt, received: Received) -> Received | None:
        """The reply with the answer to its closing question; None when the debt was closed meanwhile.

        The reply is kept before the question is asked, and the answer with the turn: a kill buys neither twice.
        """
        kinds = tuple(dialog.header.rules.kinds)
        if debt.is_ready or await beside(
            received.text, lambda: is_clear(dialog, self.me, read(received.text, kinds)[0])
        ):
            return received
        if self._is_new:
            await self.room.on_disk(lambda: self.journal.reply(received))
            self._is_new = False
        confirmed = await self.asking.confirmed(dialog, debt, received)
        if isinstance(confirmed, Interrupted):
            self.hub.agent(self.me, "idle")
            self.tally.ends["interrupted"] += 1
            await self._keep_draft(received, "its turn passed while it was asked about it")
            return None
        self._pending = confirmed
        await self.room.on_disk(lambda: self.journal.answer(confirmed))
        return confirmed

    def _rests(self) -> None:
        """Whatever came of the turn: the agent is at it no more."""
        if (doing := self.hub.state_of(self.me)) is not None and doing.is_at_it:
            self.hub.agent(self.me, "idle")

    async def _kept(self) -> tuple[Received | None, tuple[str, ...]]:
        """A reply that was received and not written, and the drafts that its agent was not shown again."""
        if self._is_clear:
            return self._pending, ()
        found, drafts = await self.room.on_disk(lambda: (self.journal.received(), self.journal.drafts()))
        self._is_clear = found is None and not drafts
        return self._pending or found, drafts

    async def _receive(self, dialog: Dialog, debt: Debt, drafts: tuple[str, ...]) -> Received | None:
        """Call the backend; None when the debt was closed meanwhile, and the call was ended for it."""
        received = await self.asking.reply(dialog, debt, drafts)
        if isinstance(received, Interrupted):
            self.hub.agent(self.me, "idle")
            self.tally.ends["interrupted"] += 1
            if received.text.strip():
                await self._keep_draft(Received(debt.key, received.text, {}, 0), "interrupted while it was written")
            how = {"state": "interrupted", "reason": "the turn passed while the reply was being written"}
            where = partial(standing, self.room.dialog, thinking=False)
            self.hub.publish("state", where, **how, by=self.me)
            return None
        if is_sealed_round(dialog, debt):
            received = replace(received, nonce=random.token_hex(16))
        self._pending, self._is_new = received, True
        if drafts:
            await self.room.on_disk(lambda: self.journal.record("sent", durable=False))
        return received

    async def _deliver(self, dialog: Dialog, debt: Debt, received: Received) -> Action:
        """Append a received reply while its debt is open; else keep it as a draft."""
        kinds = tuple(dialog.header.rules.kinds)
        try:
            reply, secrets = await beside(received.text, lambda: read(received.text, kinds))
        except BackendError as error:
            return await self._fail(debt, error)
        hold: Wait | None = None

        def make(now: Dialog) -> Addition | None:
            nonlocal hold
            hold = self._held(now) if is_open(now, self.me, debt) else None
            if hold or not is_open(now, self.me, debt):
                return None
            addition = self._drawn_up(now, debt, reply, received)
            return self._sealed(now, debt, received, addition.draft) or addition

        try:
            written = await self.room.on_disk(lambda: self._append(make, received))
        except StorageError as error:
            return Wait("storage", f"{error}; {error.fix}", STORAGE_WAIT)
        if hold:
            return hold
        if written is not None and is_open(written, self.me, debt):  # a seal: the text follows
            self.room.tell(written)
            await self.room.take(written)
            return Reply(debt)
        written = written or await self._landed(received)
        if written is None:
            return Wait("late", "the reply came after its turn had passed; kept as a draft", 0.001)
        await self._done(written, received, secrets)
        return Reply(debt)

    def _held(self, now: Dialog) -> Wait | None:
        """Why nobody may write at the end of the file, however open a debt is; None when one may."""
        if now.last is not None and now.last.condition is Condition.DAMAGED:
            return Wait("damaged", "the last entry was cut or overwritten after it was written", 1.0)
        return (
            Wait("unfinished", "somebody is typing at the end of the file", 1.0) if self.room.is_typing(now) else None
        )

    async def _done(self, dialog: Dialog, received: Received, secrets: int) -> None:
        """The reply stands in the file: count it and tell everybody."""
        self._pending = None
        self.tally.wrote(received.ms / 1000)
        self.tally.secrets += secrets
        entry = received.landed(dialog, self.me)  # the person may have added a turn of theirs by now
        self.hub.publish(
            "appended",
            number=entry.number if entry else dialog.state.number,
            ms=received.ms,
            usd=from_record(received.usage).known_usd,
            by=self.me,
        )
        self.room.tell(dialog)
        await self.room.take(dialog)

    def _sealed(self, dialog: Dialog, debt: Debt, received: Received, draft: Draft) -> Addition | None:
        """The seal that goes before this turn, while others of a sealed round have not sealed theirs."""
        mine = dialog.state.debt(self.me)
        if mine is None or mine.is_ready or not received.nonce or not is_sealed_round(dialog, mine):
            return None
        sha = seal(received.nonce, sealed_text(draft.body, draft.marks))
        could_read = self.asking.options.reads_files
        return Addition(compose.sealed_note(self.participant(dialog), debt, sha, wall(), could_read=could_read))

    def _append(self, make: Make, received: Received) -> Dialog | None:
        """Journal the reply if it is new, and append it; one flush, that of the intent to append, serves both."""
        if self._is_new:
            self.journal.reply(received, durable=False)
            self._is_new = False
        try:
            if (dialog := self.file.append(make, self.journal)) is None:
                self.journal.flush()
        except DialogdError:
            self._is_new = True  # how much of it is durable is not known: recorded again, never flushed again
            raise
        return dialog

    def _drawn_up(self, dialog: Dialog, debt: Debt, reply: Text, received: Received) -> Addition:
        mine = dialog.state.debt(self.me)
        is_sealed = mine is not None and (mine.is_ready or is_sealed_round(dialog, mine))
        written = compose.agent_turn(
            dialog,
            self.participant(dialog),
            debt,
            reply,
            answer=received.answer,
            attributes=(
                ("at", wall()),
                ("ms", str(received.ms)),
                ("nonce", received.nonce if is_sealed else ""),
                *self.asking.spent(from_record(received.usage)).attributes(),
            ),
            duration=duration(dialog),
            folder=self.file.attachments.name,
            here=here(),
        )
        return Addition(written.draft, written.attachment, written.overflow)

    async def _landed(self, received: Received) -> Dialog | None:
        """The dialog, when the file has this reply as a turn already; else None, and the reply is kept as a draft."""
        dialog = await self.room.look()
        entry = received.landed(dialog, self.me) if dialog is not None else None
        if entry is None:
            self.tally.ends["late"] += 1
            await self._keep_draft(received, "its turn had passed")
            return None
        self._pending = None
        await self.room.on_disk(lambda: self.journal.record("done", chain=entry.chain, number=entry.number))
        return dialog

    async def _keep_draft(self, received: Received, why: str) -> None:
        self._is_clear = False
        await self.room.on_disk(lambda: self.journal.draft(received, why))
        self._pending = None
        dialog = self.room.dialog
        is_kept_back = dialog is not None and is_apart(dialog, Debt(*received.debt))
        text = ""
        if not is_kept_back:
            with suppress(BackendError):
                text = (await beside(received.text, lambda: compose.received(received.text)))[0].body
        self.hub.publish("draft", by=self.me, why=why, text=text)

    async def _fail(self, debt: Debt, error: BackendError) -> Action:
        """Write down that this agent failed, if it is still asked."""
        if self._unwritten is None or self._unwritten[1] is not error:
            self.tally.failed(error.kind)
            what = {"type": error.kind, "message": error.cause, "fix": error.fix, "recoverable": error.retryable}
            self.hub.publish("error", by=self.me, **what)
            self.hub.agent(self.me, "failed", reason=error.cause)
        self._unwritten = debt, error  # kept while the disk refuses the note: the call is not made again for it
        if error.partial.strip():
            await self._keep_draft(Received(debt.key, error.partial, {}, 0), "cut short by an error")
            error.partial = ""

        hold: Wait | None = None

        def make(now: Dialog) -> Addition | None:
            nonlocal hold
            hold = self._held(now) if is_open(now, self.me, debt) else None
            if hold or not is_open(now, self.me, debt):
                return None
            attributes = (("at", wall()), *self.asking.spent(Bill()).attributes())
            return Addition(compose.error_note(now, self.me, error.cause, error.fix, attributes))

        written = await self.room.on_disk(lambda: self.file.append(make, self.journal))
        if hold:
            return hold
        self.room.tell(written)
        self._unwritten = None
        return Reply(debt)

    def participant(self, dialog: Dialog) -> Participant:
        """This agent as the header and its own flags describe it."""
        return self.asking.participant(dialog)


def _passed() -> Wait:
    return Wait("interrupted", "the turn passed while the reply was being written", 0.001)


def _lost(me: str) -> BackendError:
    return BackendError(
        "the answer that it had sealed is lost: its journal is gone", fix=f"`dialogd retry {me}` asks it anew"
    )

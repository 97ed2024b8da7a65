"""One turn: ask the backend, ask back where something is unclear, append the reply, or keep it as a draft."""

from __future__ import annotations

import asyncio
import secrets as random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from typing import TypeVar

from dialogd.agent import prompt
from dialogd.agent.call import Call, CallListener, ask, beginning, is_affordable
from dialogd.agent.clock import duration, here, wall
from dialogd.agent.costs import Bill, at_stake, forecast, from_record, reading, usual_cap
from dialogd.agent.known import Known
from dialogd.agent.reporting import Tally, standing
from dialogd.backends import Backend, Request
from dialogd.backends.parts import Prompt
from dialogd.errors import BackendError, DialogdError, StorageError
from dialogd.protocol import compose, verdict
from dialogd.protocol.admit import Admission, Matter, admit, question
from dialogd.protocol.decide import Action, Clock, Reply, Wait
from dialogd.protocol.model import Agent as Participant
from dialogd.protocol.model import Condition
from dialogd.protocol.money import Estimate, allowance, reached
from dialogd.protocol.order import is_apart, is_open, is_sealed_round
from dialogd.protocol.render import Draft
from dialogd.protocol.seal import seal, sealed_text
from dialogd.protocol.state import Debt, Dialog
from dialogd.store.journal import Journal, Received
from dialogd.store.logfile import Addition, Make

T = TypeVar("T")


async def aside(work: Callable[[], T]) -> T:
    """Do `work` in a thread of its own, and give what it gives. Raises what it raises.

    The loop's own threads are waited for at the end: a PDF of a long dialog would keep a stopped daemon for half a
    minute, and its seat with it.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except Exception as problem:  # told to whoever waits
            error = problem
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return await future


# -- Getting the reply that pays a debt -------------------------------------------------------------------------------

SMALL = 16 * 1024  # characters of a reply that is read on the event loop: that takes a few milliseconds
READING = 60.0  # seconds that the reading of one reply may take; it is done in less than one


@dataclass(frozen=True, slots=True)
class Options:
    """How an agent behaves, by its own flags; seconds. `name` and `role` override the header's.

    `title` is the family's name in headings where the header names nobody. `notes` is what its project says to agents.
    `secrets` are taken out of whatever it says or is told. `budget` (US dollars) and `tokens` cap what it may use in
    one dialog; with `is_capped` the usual limits do where nobody and no header set one. `reads_files`: its tools can.
    """

    name: str = ""
    role: str = ""
    pace: float = 2.0
    poll: float = 2.0
    retry_wait: float = 2.0
    title: str = "Claude"
    notes: str = field(default="", repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    budget: float | None = None
    tokens: int | None = None
    is_capped: bool = False
    digest: bool = False
    reads_files: bool = False


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The debt was closed while the reply was being written; `text` is as far as it came."""

    text: str


@dataclass(frozen=True, slots=True)
class Ruled:
    """A reply as it came and as it was ruled on; with how many secrets were taken out of it."""

    text: str
    secrets: int
    admission: Admission


async def beside(text: str, work: Callable[[], T]) -> T:
    """What the reply `text` says; a long one is read beside the event loop: the daemon answers meanwhile.

    Raises `BackendError` in the end.
    """
    if len(text) < SMALL:
        return work()
    try:
        async with asyncio.timeout(READING):
            return await aside(work)
    except TimeoutError:
        raise BackendError(
            f"the reply could not be read within {READING:g} s", fix="ask again with `dialogd retry`"
        ) from None


class Asking:
    """Asks the backend in the name of agent `me`."""

    def __init__(self, me: str, known: Known, backend: Backend, options: Options) -> None:
        self.me = me
        self.known = known
        self.file = known.file
        self.backend = backend
        self.hub = known.hub
        self.options = options
        self.journal: Journal = known.file.journals.of(me)
        self.tally = Tally()
        self.finished = prompt.Finished()
        self._ruled: Ruled | None = None  # the last reply
        self.call: Call | None = None

    async def reply(self, dialog: Dialog, debt: Debt, drafts: tuple[str, ...]) -> Received | Interrupted:
        """Ask, and ask back once where it is unclear. What it cost is kept, however it ends. Raises `BackendError`."""
        known = dialog
        if self.backend.costs:
            dialog = await self.known.look(sure=True) or dialog
        self.call = call = Call(self._book if self.backend.costs else None)
        where = partial(standing, dialog, thinking=True)
        self.hub.publish("state", where, state="thinking", reason="", turn=dialog.state.number)
        self.hub.agent(self.me, "thinking", turn=dialog.state.number + 1, seconds=0.0)
        got: Received | None = None
        try:
            if self.options.digest:
                dialog = await self._sum_up(call, dialog, debt)
            if (dialog is not known or call.bill.calls) and not self._is_wanted(dialog, debt):
                return Interrupted("")
            request = self.request(dialog, debt, drafts)
            text = await self._in_time(call, request, dialog, debt)
            said = text or beginning(call.text, self._secrets)
            text = None if text is None else await self._clarified(call, request, dialog, debt, text)
            if text is None:
                return Interrupted(said)
            if not text.strip():
                raise BackendError("the reply was empty, twice", fix="look at the backend's own log", kind="empty")
            got = Received(debt.key, text, asdict(call.bill), round(call.seconds * 1000))
            return got
        finally:
            self._account(call, answered=got is not None)

    async def _book(self, request: Request) -> None:
        """Journal the expected cost of the call before it is made, so that a call cut off by a crash is counted too.

        Raises `DialogdError`: what cannot be booked is not bought.
        """
        so_far = self.call.bill if self.call is not None else Bill()

        def book() -> None:
            bill = so_far.plus(at_stake(self.backend, request.prompt, request.dialog, self.me))
            self.journal.calling(asdict(bill), is_first=not so_far.calls)

        await self.known.on_disk(book)

    async def ruled(self, dialog: Dialog, text: str) -> Ruled:
        """What of a reply may count in `dialog`, read and ruled on once. Raises `BackendError`."""
        known, kinds = self._ruled, dialog.header.rules.kinds
        if known is not None and (known.text, known.admission.dialog.header.rules.kinds) != (text, kinds):
            known = None
        if known is not None and known.admission.dialog is dialog:
            return known

        def work() -> Ruled:
            if known is not None:
                return replace(known, admission=known.admission.within(dialog))
            reply, secrets = compose.received(text, kinds)
            return Ruled(text, secrets, admit(dialog, self.me, reply))

        self._ruled = ruled = await beside(text, work)
        return ruled

    async def confirmed(
        self, dialog: Dialog, debt: Debt, received: Received, found: Sequence[Matter]
    ) -> Received | Interrupted:
        """The reply with the answer to its closing question, "" where there is none.

        Whatever goes wrong, the reply stays: what is unclear in it does not count then.
        """
        self.call = call = Call(self._book if self.backend.costs else None)
        self.hub.agent(self.me, "thinking", turn=dialog.state.number + 1)
        got = False
        try:
            request = self._about(dialog, debt, received, found)
            if not is_affordable(self.backend, request, from_record(received.usage)):
                self.hub.publish("warning", text="the closing question cannot be paid; going on without")
                return replace(received, answer="")
            text = await self._in_time(call, request, dialog, debt, aloud=False, spent=received.ms / 1000)
            if text is None:
                return Interrupted(received.text)
            got = True
            both = from_record(received.usage).plus(call.bill)
            ms = received.ms + round(call.seconds * 1000)
            return replace(received, answer=text, usage=asdict(both), ms=ms)
        except BackendError as error:
            self.hub.publish("warning", text=f"no answer to the closing question: {error.cause}; going on without")
            return replace(received, answer="")
        finally:
            self._account(call, answered=got)

    def _about(self, dialog: Dialog, debt: Debt, received: Received, found: Sequence[Matter]) -> Request:
        """The closing question as it is asked."""
        turn = self.request(dialog, debt, ())

        @cache
        def rendered() -> Prompt:
            return prompt.confirmation(dialog, turn.agent, debt.re, received.text, found, secrets=self._secrets)

        return replace(turn, prompt=rendered, question=question(found))

    async def _clarified(self, call: Call, request: Request, dialog: Dialog, debt: Debt, text: str) -> str | None:
        """The reply; asked for once more when its body must be written anew, and kept as it came when that fails."""
        ruled = await self.ruled(dialog, text)
        lacking = verdict.lacks_body(dialog, self.me, ruled.admission.reply)
        if not lacking or (text.strip() and not is_affordable(self.backend, request, call.bill)):
            return text
        whole, me = request.prompt, request.agent
        back = replace(request, prompt=lambda: prompt.repair(whole(), me, debt.re, text, lacking))
        try:
            again = await self._in_time(call, back, dialog, debt)
        except BackendError as error:
            if not text.strip():
                raise
            self.hub.publish("warning", text=f"no answer to the question back: {error.cause}; going on without")
            return text
        return again if again is None or again.strip() else text

    def _account(self, call: Call, *, answered: bool) -> None:
        """Record what the call cost. Without an answer, the next entry of this agent accounts for it."""
        self.call = None
        self.tally.thinking += call.seconds
        self.tally.secrets += call.secrets
        self.tally.pay(call.bill)
        if not answered and (call.bill.calls or self.journal.is_calling):
            with suppress(DialogdError):  # a full disk must not hide why the call ended
                self.journal.record("spent", durable=False, usage=asdict(call.bill))

    async def _sum_up(self, call: Call, dialog: Dialog, debt: Debt) -> Dialog:
        """Append a digest of the turns that no longer fit into the prompt, if possible; gives the dialog after it."""
        me, notes = self.participant(dialog), self.options.notes
        wanted = prompt.digest(
            dialog, me, notes=notes, room=self.backend.room, secrets=self._secrets, finished=self.finished
        )
        if wanted is None or not self._is_affordable(dialog, debt, wanted[0]):
            return dialog
        request = replace(self.request(dialog, debt, ()), prompt=lambda: wanted[0])
        try:
            # It leaves time for the turn.
            text = await self._in_time(call, request, dialog, debt, aloud=False, part=0.5)
            body = (await beside(text or "", lambda: compose.received(text or "")))[0].body
        except BackendError as error:
            self.hub.publish("warning", text=f"no digest could be made: {error.cause}; going on without")
            return dialog
        bill = self.spent(call.bill)
        draft = prompt.digest_note(self.me, wanted[1], body, bill.words, (("at", wall()), *bill.attributes()))

        def make(now: Dialog) -> Addition | None:
            return Addition(draft) if body.strip() and is_open(now, self.me, debt) else None

        try:
            summed_up = await self.known.on_disk(lambda: self.file.append(make, self.journal))
        except DialogdError as error:
            self.hub.publish("warning", text=f"the digest could not be kept: {error}; going on without")
            return dialog
        if summed_up is None:
            return await self.known.look() or dialog
        self.tally.pay(call.bill)
        call.bill = Bill()
        self.known.tell(summed_up)
        return summed_up

    def spent(self, bill: Bill) -> Bill:
        """This bill, and all that this agent spent since its last entry: failed and interrupted calls too."""
        for record in reversed(self.journal.owed()):
            bill = from_record(record).plus(bill)
        return bill

    def is_limited(self, dialog: Dialog) -> bool:
        """True where what the coming turn will cost matters."""
        limits, cap = dialog.state.limits, self._cap(dialog)
        return (limits.budget, limits.tokens, cap.usd, cap.tokens) != (None,) * 4

    def priced(self, clock: Clock, dialog: Dialog, debt: Debt, *, is_paid: bool) -> Clock:
        """The clock with what the coming turn will cost. Reads the journal."""
        kept, cap = self.journal.received(), self._cap(dialog)
        owed = self._owed()
        return replace(
            clock,
            next=self._coming(dialog, debt),
            cut_off=Estimate(owed.usd, owed.tokens),
            cap=cap.usd,
            cap_tokens=cap.tokens,
            priced=self.backend.price is not None,
            paid=is_paid or (kept is not None and kept.debt == debt.key),
        )

    def _coming(self, dialog: Dialog, debt: Debt, *before: Prompt) -> Estimate:
        """What the turn, and calls `before` it, will cost, with all that is not accounted for yet."""
        owed = self._owed()
        whole = self.request(dialog, debt, ()).prompt
        return forecast(self.backend, whole, dialog, self.me, owed, *before)

    def _owed(self) -> Bill:
        """What calls came to of which no entry gives account yet."""
        return self.spent(self.call.bill if self.call else Bill())

    def _is_affordable(self, dialog: Dialog, debt: Debt, *before: Prompt) -> bool:
        if not self.is_limited(dialog):
            return True
        return not reached(dialog.state, self.me, self._coming(dialog, debt, *before), self._cap(dialog))

    def _is_wanted(self, dialog: Dialog, debt: Debt) -> bool:
        """True while the turn may still be bought, in a dialog that is not the one for which that was decided."""
        return is_open(dialog, self.me, debt) and not dialog.state.paused and self._is_affordable(dialog, debt)

    def _cap(self, dialog: Dialog) -> Estimate:
        """What this agent alone may spend in the dialog."""
        own = Estimate(self.options.budget, self.options.tokens)
        return usual_cap(dialog, own, self.backend) if self.options.is_capped else own

    def request(self, dialog: Dialog, debt: Debt, drafts: Sequence[str]) -> Request:
        """The turn that is asked for."""
        me = self.participant(dialog)
        allowed = allowance(dialog.state, self.me, self._cap(dialog))
        owed = self.spent(Bill()) if allowed != Estimate() else Bill()

        @cache
        def rendered() -> Prompt:
            return prompt.render(
                dialog,
                me,
                drafts,
                notes=self.options.notes,
                room=self.backend.room,
                secrets=self._secrets,
                finished=self.finished,
            )

        return Request(
            dialog,
            me,
            dialog.state.number + 1,
            self.file.path,
            rendered,
            re=debt.re,
            chain=debt.chain,
            allowance=None if allowed.usd is None else max(allowed.usd - owed.usd, 0.0),
            tokens=None if allowed.tokens is None else max(allowed.tokens - owed.tokens, 0),
            reads=reading(self.backend, dialog, self.me)[1],
        )

    @property
    def _secrets(self) -> tuple[str, ...]:
        return (*self.options.secrets, *self.backend.secrets)

    async def _in_time(
        self,
        call: Call,
        request: Request,
        dialog: Dialog,
        debt: Debt,
        *,
        aloud: bool = True,
        part: float = 1.0,
        spent: float = 0.0,
    ) -> str | None:
        """The backend's answer; None when the debt was closed meanwhile, which ends the call.

        It may take that `part` of the turn's time, of which `spent` seconds are gone.
        """
        listener = self._listener(request.turn, debt, dialog, aloud=aloud)
        limit = max(dialog.state.limits.timeout * part - spent, 0.0)
        wait, secrets = self.options.retry_wait, self.options.secrets
        task = asyncio.ensure_future(
            ask(self.backend, request, call, deadline=limit, retry_wait=wait, listener=listener, secrets=secrets)
        )
        try:
            while not task.done():
                woken = asyncio.ensure_future(self.known.wakes.wait())
                await asyncio.wait({task, woken}, timeout=self.options.poll, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                self.known.wakes.clear()
                if not task.done() and not await self._is_open(debt):
                    return None
            return task.result()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, BackendError):
                await task

    def _listener(self, turn: int, debt: Debt, dialog: Dialog, *, aloud: bool) -> CallListener:
        """Publishes the text while it arrives; not in a round whose answers must stay hidden from one another."""
        is_heard = aloud and not is_apart(dialog, debt)

        def text(piece: str, is_first: bool) -> None:
            if is_heard:
                self.hub.text(self.me, turn, piece, reset=is_first)

        def tool(name: str) -> None:
            self.hub.agent(self.me, "executing" if name else "thinking", turn=turn, reason=name if is_heard else "")

        return CallListener(text, tool)

    async def _is_open(self, debt: Debt) -> bool:
        try:
            now = await self.known.look()
        except (DialogdError, OSError):
            return True  # a file in the middle of a save: the append itself compares again
        return now is None or is_open(now, self.me, debt)

    def participant(self, dialog: Dialog) -> Participant:
        """This agent as the header and its own flags describe it."""
        found = dialog.header.agent(self.me) or Participant(self.me, "", "", is_named=False)
        named = found.name if found.is_named else f"{self.options.title} {self.me}"
        return replace(found, name=self.options.name or named, role=self.options.role or found.role)


# -- Paying one debt --------------------------------------------------------------------------------------------------

STORAGE_WAIT = 5.0  # seconds before a refused write is tried again


class Turns:
    """Takes the turns of agent `me`."""

    def __init__(self, me: str, known: Known, backend: Backend, options: Options) -> None:
        self.me = me
        self.known = known
        self.file = known.file
        self.hub = known.hub
        self.asking = Asking(me, known, backend, options)
        self.journal: Journal = self.asking.journal
        self._pending: Received | None = None
        self._held_since = 0  # how often journals had been set aside when it came
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

    async def priced(self, clock: Clock, dialog: Dialog) -> Clock:
        """The clock with what the turn that this agent owes will cost."""
        if self._held_since != self.known.times_set_aside:
            self._pending = None  # another dialog stands in the file, and it belongs to the old one
        debt = dialog.state.debt(self.me)
        if debt is None or dialog.state.outcome is not None or not self.asking.is_limited(dialog):
            return clock
        is_paid = self._pending is not None and self._pending.debt == debt.key
        return await self.known.on_disk(lambda: self.asking.priced(clock, dialog, debt, is_paid=is_paid))

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
        if debt.is_ready or not (found := (await self.asking.ruled(dialog, received.text)).admission.asked):
            return received
        if self._is_new:
            await self.known.on_disk(lambda: self.journal.reply(received))
            self._is_new = False
        confirmed = await self.asking.confirmed(dialog, debt, received, found)
        if isinstance(confirmed, Interrupted):
            self.hub.agent(self.me, "idle")
            self.tally.ends["interrupted"] += 1
            await self._keep_draft(received, "its turn passed while it was asked about it")
            return None
        self._hold(confirmed)
        await self.known.on_disk(lambda: self.journal.answer(confirmed))
        return confirmed

    def _hold(self, received: Received) -> None:
        """Keep a reply in hand until it stands in the file or is a draft."""
        self._pending, self._held_since = received, self.known.times_set_aside

    def _rests(self) -> None:
        """Mark the agent as idle, whatever came of the turn."""
        if (doing := self.hub.state_of(self.me)) is not None and doing.is_at_it:
            self.hub.agent(self.me, "idle")

    async def _kept(self) -> tuple[Received | None, tuple[str, ...]]:
        """A received reply that is not in the file yet, and the drafts that the agent has not been shown again."""
        if self._is_clear:
            return self._pending, ()
        found, drafts = await self.known.on_disk(lambda: (self.journal.received(), self.journal.drafts()))
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
            where = partial(standing, self.known.dialog, thinking=False)
            self.hub.publish("state", where, **how, by=self.me)
            return None
        if is_sealed_round(dialog, debt):
            received = replace(received, nonce=random.token_hex(16))
        self._hold(received)
        self._is_new = True
        if drafts:
            await self.known.on_disk(lambda: self.journal.record("sent", durable=False))
        return received

    async def _deliver(self, dialog: Dialog, debt: Debt, received: Received) -> Action:
        """Append a received reply while its debt is open; else keep it as a draft."""
        try:
            ruled = await self.asking.ruled(dialog, received.text)
        except BackendError as error:
            return await self._fail(debt, error)
        hold: Wait | None = None

        def make(now: Dialog) -> Addition | None:
            nonlocal hold
            hold = self._held(now) if is_open(now, self.me, debt) else None
            if hold or not is_open(now, self.me, debt):
                return None
            addition = self._drawn_up(ruled.admission.within(now), debt, received)
            return self._sealed(now, debt, received, addition.draft) or addition

        try:
            written = await self.known.on_disk(lambda: self._append(make, received))
        except StorageError as error:
            return Wait("storage", f"{error}; {error.fix}", STORAGE_WAIT)
        if hold:
            return hold
        if written is not None and is_open(written, self.me, debt):  # a seal: the text follows
            self.known.tell(written)
            await self.known.take(written)
            return Reply(debt)
        written = written or await self._landed(received)
        if written is None:
            return Wait("late", "the reply came after its turn had passed; kept as a draft", 0.001)
        await self._done(written, received, ruled.secrets)
        return Reply(debt)

    def _held(self, now: Dialog) -> Wait | None:
        """Why nothing may be appended now, although the debt is open; None when it may."""
        if now.last is not None and now.last.condition is Condition.DAMAGED:
            return Wait("damaged", "the last entry was cut or overwritten after it was written", 1.0)
        return (
            Wait("unfinished", "somebody is typing at the end of the file", 1.0) if self.known.is_typing(now) else None
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
        self.known.tell(dialog)
        await self.known.take(dialog)

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

    def _drawn_up(self, admission: Admission, debt: Debt, received: Received) -> Addition:
        dialog = admission.dialog
        mine = dialog.state.debt(self.me)
        is_sealed = mine is not None and (mine.is_ready or is_sealed_round(dialog, mine))
        written = compose.agent_turn(
            admission,
            self.participant(dialog),
            debt,
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
        dialog = await self.known.look()
        entry = received.landed(dialog, self.me) if dialog is not None else None
        if entry is None:
            self.tally.ends["late"] += 1
            await self._keep_draft(received, "its turn had passed")
            return None
        self._pending = None
        await self.known.on_disk(lambda: self.journal.record("done", chain=entry.chain, number=entry.number))
        return dialog

    async def _keep_draft(self, received: Received, why: str) -> None:
        self._is_clear = False
        await self.known.on_disk(lambda: self.journal.draft(received, why))
        self._pending = None
        dialog = self.known.dialog
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

        written = await self.known.on_disk(lambda: self.file.append(make, self.journal))
        if hold:
            return hold
        self.known.tell(written)
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

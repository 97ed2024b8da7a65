"""Getting the reply that pays a debt: what is asked, the call, the one question back, what it all came to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache, partial
from typing import Protocol, TypeVar

from dialogd import prompt, window
from dialogd.aside import aside
from dialogd.backends import Backend, Request
from dialogd.bill import Bill, from_record
from dialogd.call import Call, Ears, ask, is_affordable
from dialogd.errors import BackendError, DialogdError
from dialogd.events import Hub
from dialogd.forecast import at_stake, forecast, reading, usual_cap
from dialogd.journal import Journal, Received
from dialogd.logfile import Addition, LogFile
from dialogd.pieces import beginning
from dialogd.prompt import Prompt
from dialogd.protocol import closing, compose, verdict
from dialogd.protocol.decide import Clock
from dialogd.protocol.model import Agent as Participant
from dialogd.protocol.money import Estimate, allowance, reached
from dialogd.protocol.rounds import is_apart, is_open
from dialogd.protocol.state import Debt, Dialog
from dialogd.reporting import standing
from dialogd.seen import wall
from dialogd.tally import Tally

T = TypeVar("T")

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


class Room(Protocol):
    """What taking a turn needs of the agent around it."""

    wakes: asyncio.Event
    dialog: Dialog | None

    async def look(self, *, full: bool = False) -> Dialog | None: ...
    async def take(self, dialog: Dialog) -> None: ...
    def tell(self, dialog: Dialog | None) -> None: ...
    def is_typing(self, dialog: Dialog) -> bool: ...
    async def on_disk(self, work: Callable[[], T]) -> T: ...


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The debt was closed while the reply was being written; `text` is as far as it came."""

    text: str


read = lru_cache(maxsize=1)(compose.received)  # a reply is looked at more than once on its way into the file


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

    def __init__(self, me: str, file: LogFile, backend: Backend, hub: Hub, options: Options, room: Room) -> None:
        self.me = me
        self.file = file
        self.backend = backend
        self.hub = hub
        self.options = options
        self.room = room
        self.journal: Journal = file.journals.of(me)
        self.tally = Tally()
        self.finished = prompt.Finished()
        self.call: Call | None = None

    async def reply(self, dialog: Dialog, debt: Debt, drafts: tuple[str, ...]) -> Received | Interrupted:
        """Ask, and ask back once where it is unclear. What it cost is kept, however it ends. Raises `BackendError`."""
        known = dialog
        if self.backend.costs:
            dialog = await self.room.look(full=True) or dialog
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
        """Journal what the turn will have cost by the end of the call that goes out now: a kill in its middle counts.

        Raises `DialogdError`: what cannot be booked is not bought.
        """
        so_far = self.call.bill if self.call is not None else Bill()

        def book() -> None:
            bill = so_far.plus(at_stake(self.backend, request.prompt, request.dialog, self.me))
            self.journal.calling(asdict(bill), is_first=not so_far.calls)

        await self.room.on_disk(book)

    async def confirmed(self, dialog: Dialog, debt: Debt, received: Received) -> Received | Interrupted:
        """The reply with the answer to its closing question, "" where there is none; as it is where nothing is asked.

        Whatever goes wrong, the reply stays: what is unclear in it does not count then.
        """
        kinds = tuple(dialog.header.rules.kinds)
        found = await beside(received.text, lambda: closing.matters(dialog, self.me, read(received.text, kinds)[0]))
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

    def _about(self, dialog: Dialog, debt: Debt, received: Received, found: Sequence[closing.Matter]) -> Request:
        """The closing question as it is asked."""
        turn = self.request(dialog, debt, ())

        @cache
        def rendered() -> Prompt:
            return prompt.confirmation(dialog, turn.agent, debt.re, received.text, found, secrets=self._secrets)

        return replace(turn, prompt=rendered, question=closing.question(found))

    async def _clarified(self, call: Call, request: Request, dialog: Dialog, debt: Debt, text: str) -> str | None:
        """The reply, asked for anew once where it lacks what no line can add; as it came where that brings nothing."""
        kinds = tuple(dialog.header.rules.kinds)
        question = await beside(text, lambda: verdict.lacks_body(dialog, self.me, read(text, kinds)[0]))
        if not question or (text.strip() and not is_affordable(self.backend, request, call.bill)):
            return text
        whole, me = request.prompt, request.agent
        back = replace(request, prompt=lambda: prompt.repair(whole(), me, debt.re, text, question))
        try:
            again = await self._in_time(call, back, dialog, debt)
        except BackendError as error:
            if not text.strip():
                raise
            self.hub.publish("warning", text=f"no answer to the question back: {error.cause}; going on without")
            return text
        return again if again is None or again.strip() else text

    def _account(self, call: Call, *, answered: bool) -> None:
        """Keep what the call came to; an answer carries it along, anything else is owed to the next entry."""
        self.call = None
        self.tally.thinking += call.seconds
        self.tally.secrets += call.secrets
        self.tally.pay(call.bill)
        if not answered and (call.bill.calls or self.journal.is_calling):
            with suppress(DialogdError):  # a full disk must not hide why the call ended
                self.journal.record("spent", durable=False, usage=asdict(call.bill))

    async def _sum_up(self, call: Call, dialog: Dialog, debt: Debt) -> Dialog:
        """The dialog as it is now, with a digest of the turns that no longer fit; without one where that fails."""
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
        draft = window.digest_note(self.me, wanted[1], body, bill.words, (("at", wall()), *bill.attributes()))

        def make(now: Dialog) -> Addition | None:
            return Addition(draft) if body.strip() and is_open(now, self.me, debt) else None

        try:
            summed_up = await self.room.on_disk(lambda: self.file.append(make, self.journal))
        except DialogdError as error:
            self.hub.publish("warning", text=f"the digest could not be kept: {error}; going on without")
            return dialog
        if summed_up is None:
            return await self.room.look() or dialog
        self.tally.pay(call.bill)
        call.bill = Bill()
        self.room.tell(summed_up)
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
        """The backend's answer, unless the debt is closed while it is written: then the call is ended, None.

        It may take that `part` of the turn's time, of which `spent` seconds are gone.
        """
        ears = self._ears(request.turn, debt, dialog, aloud=aloud)
        limit = max(dialog.state.limits.timeout * part - spent, 0.0)
        wait, secrets = self.options.retry_wait, self.options.secrets
        task = asyncio.ensure_future(
            ask(self.backend, request, call, deadline=limit, retry_wait=wait, ears=ears, secrets=secrets)
        )
        try:
            while not task.done():
                woken = asyncio.ensure_future(self.room.wakes.wait())
                await asyncio.wait({task, woken}, timeout=self.options.poll, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                self.room.wakes.clear()
                if not task.done() and not await self._is_open(debt):
                    return None
            return task.result()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, BackendError):
                await task

    def _ears(self, turn: int, debt: Debt, dialog: Dialog, *, aloud: bool) -> Ears:
        """Who hears of the turn while it is made; nobody what is said apart from others who owe one too."""
        is_heard = aloud and not is_apart(dialog, debt)

        def text(piece: str, is_first: bool) -> None:
            if is_heard:
                self.hub.text(self.me, turn, piece, reset=is_first)

        def tool(name: str) -> None:
            self.hub.agent(self.me, "executing" if name else "thinking", turn=turn, reason=name if is_heard else "")

        return Ears(text, tool)

    async def _is_open(self, debt: Debt) -> bool:
        try:
            now = await self.room.look()
        except (DialogdError, OSError):
            return True  # a file in the middle of a save: the append itself compares again
        return now is None or is_open(now, self.me, debt)

    def participant(self, dialog: Dialog) -> Participant:
        """This agent as the header and its own flags describe it."""
        found = dialog.header.agent(self.me) or Participant(self.me, "", "", is_named=False)
        named = found.name if found.is_named else f"{self.options.title} {self.me}"
        return replace(found, name=self.options.name or named, role=self.options.role or found.role)

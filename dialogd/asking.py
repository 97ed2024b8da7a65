"""Getting the reply that pays a debt: what is asked, the call, the one question back, what it all came to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol, TypeVar

from dialogd import prompt, window
from dialogd.backends import Backend, Request
from dialogd.bill import Bill, from_record
from dialogd.call import Call, ask
from dialogd.errors import BackendError, DialogdError
from dialogd.events import Hub
from dialogd.forecast import forecast
from dialogd.journal import Journal, Received
from dialogd.logfile import Addition, LogFile
from dialogd.prompt import Prompt
from dialogd.protocol import compose, verdict
from dialogd.protocol.decide import Clock
from dialogd.protocol.model import Agent as Participant
from dialogd.protocol.model import Debt, Dialog
from dialogd.protocol.money import DEFAULT_CAP, DEFAULT_TOKENS, Estimate, allowance
from dialogd.seen import wall

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """How an agent behaves, by its own flags; seconds. `name` and `role` override the header's.

    `title` is the family's name in headings where the header names nobody. `notes` is what its project says to agents.
    `secrets` are taken out of whatever it says or is told. `budget` (US dollars) and `tokens` cap what it may use in
    one dialog; with `is_capped` the usual limits do where nobody and no header set one.
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


class Room(Protocol):
    """What taking a turn needs of the agent around it."""

    wakes: asyncio.Event

    async def look(self, *, full: bool = False) -> Dialog | None: ...
    async def take(self, dialog: Dialog) -> None: ...
    def tell(self, dialog: Dialog | None) -> None: ...
    def is_typing(self, dialog: Dialog) -> bool: ...
    async def on_disk(self, work: Callable[[], T]) -> T: ...


@dataclass(slots=True)
class Tally:
    """What this daemon has done since it started; `thinking` in seconds, `bill` of all its calls."""

    turns: int = 0
    thinking: float = 0.0
    bill: Bill = field(default_factory=Bill)
    secrets: int = 0


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The debt was closed while the reply was being written; `text` is as far as it came."""

    text: str


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
        self.call: Call | None = None

    async def reply(self, dialog: Dialog, debt: Debt, drafts: tuple[str, ...]) -> Received | Interrupted:
        """Ask, and ask back once where the reply is unclear. What it cost is kept, however it ends.

        Raises `BackendError`.
        """
        if self.backend.costs:
            dialog = await self.room.look(full=True) or dialog
        self.call = call = Call()
        self.hub.publish("state", state="thinking", turn=dialog.state.number + 1)
        got: Received | None = None
        try:
            if self.options.digest:
                dialog = await self._sum_up(call, dialog, debt)
            request = self.request(dialog, debt, drafts)
            text = await self._in_time(call, request, dialog, debt)
            question = verdict.unclear(dialog, compose.received(text)[0]) if text is not None else ""
            if text is not None and question:
                again = await self._in_time(call, self._asked_back(request, debt, text, question), dialog, debt)
                text = None if again is None else again or text
            if text is None:
                return Interrupted(call.text)
            if not text.strip():
                raise BackendError("the reply was empty, twice", fix="look at the backend's own log", kind="empty")
            got = Received(debt.key, text, asdict(call.bill), round(call.seconds * 1000))
            return got
        finally:
            self._account(call, answered=got is not None)

    def _account(self, call: Call, *, answered: bool) -> None:
        """Keep what the call came to; an answer carries it along, anything else is owed to the next entry."""
        self.call = None
        self.tally.thinking += call.seconds
        self.tally.secrets += call.secrets
        self.tally.bill = self.tally.bill.plus(call.bill)
        if not answered and call.bill.calls:
            with suppress(DialogdError):  # a full disk must not hide why the call ended
                self.journal.record("spent", durable=False, usage=asdict(call.bill))

    async def _sum_up(self, call: Call, dialog: Dialog, debt: Debt) -> Dialog:
        """The dialog with a digest of the turns that no longer fit, once there are any; without one where it fails."""
        me = self.participant(dialog)
        wanted = prompt.digest(dialog, me, notes=self.options.notes, room=self.backend.room, secrets=self._secrets)
        if wanted is None:
            return dialog
        asked, gone = wanted
        request = replace(self.request(dialog, debt, ()), prompt=lambda: asked)
        try:
            text = await self._in_time(call, request, dialog, debt, aloud=False)
        except BackendError as error:
            self.hub.publish("warning", text=f"no digest could be made: {error.cause}; going on without")
            return dialog
        body = compose.received(text or "")[0].body
        if not body.strip():
            return dialog
        bill = self.spent(call.bill)
        draft = window.digest_note(self.me, gone, body, bill.words, (("at", wall()), *bill.attributes()))

        def make(now: Dialog) -> Addition | None:
            return Addition(draft) if is_open(now, self.me, debt) else None

        summed_up = await self.room.on_disk(lambda: self.file.append(make, self.journal))
        if summed_up is None:
            return dialog
        self.tally.bill = self.tally.bill.plus(call.bill)
        call.bill = Bill()
        self.room.tell(summed_up)
        return summed_up

    def spent(self, bill: Bill) -> Bill:
        """This bill, and all that this agent spent since its last entry: failed and interrupted calls too."""
        for record in reversed(self.journal.owed()):
            bill = from_record(record).plus(bill)
        return bill

    def priced(self, clock: Clock, dialog: Dialog, debt: Debt, *, is_paid: bool) -> Clock:
        """The clock with what the coming turn will cost, where there is a budget. Reads the journal."""
        limits, cap = dialog.state.limits, self._cap(dialog)
        if (limits.budget, limits.tokens, cap.usd, cap.tokens) == (None, None, None, None):
            return clock
        whole = self.request(dialog, debt, ()).prompt()
        return replace(
            clock,
            next=forecast(self.backend, whole, dialog, self.me, self.spent(Bill())),
            cap=cap.usd,
            cap_tokens=cap.tokens,
            priced=self.backend.price is not None,
            paid=is_paid,
        )

    def _cap(self, dialog: Dialog) -> Estimate:
        """What this agent alone may spend in the dialog."""
        limits = dialog.state.limits
        own = Estimate(self.options.budget, self.options.tokens)
        if not self.options.is_capped or (limits.budget, limits.tokens, own.usd, own.tokens) != (None,) * 4:
            return own
        return Estimate(tokens=DEFAULT_TOKENS) if self.backend.price is None else Estimate(usd=DEFAULT_CAP)

    def request(self, dialog: Dialog, debt: Debt, drafts: Sequence[str]) -> Request:
        """The turn that is asked for."""
        me = self.participant(dialog)
        allowed = allowance(dialog.state, self.me, self._cap(dialog))

        def rendered() -> Prompt:
            return prompt.render(
                dialog, me, drafts, notes=self.options.notes, room=self.backend.room, secrets=self._secrets
            )

        return Request(
            dialog,
            me,
            dialog.state.number + 1,
            self.file.path,
            rendered,
            re=debt.re,
            chain=debt.chain,
            allowance=allowed.usd,
            tokens=allowed.tokens,
        )

    @property
    def _secrets(self) -> tuple[str, ...]:
        return (*self.options.secrets, *self.backend.secrets)

    @staticmethod
    def _asked_back(request: Request, debt: Debt, text: str, question: str) -> Request:
        """The one question back, where something needed was unclear."""
        whole, me = request.prompt, request.agent
        return replace(request, prompt=lambda: prompt.repair(whole(), me, debt.re, text, question))

    async def _in_time(
        self, call: Call, request: Request, dialog: Dialog, debt: Debt, *, aloud: bool = True
    ) -> str | None:
        """The backend's answer, unless the debt is closed while it is written: then the call is ended, None."""

        def on_line(line: str) -> None:
            if aloud:
                self.hub.publish("text", turn=request.turn, by=self.me, line=line)

        task = asyncio.ensure_future(
            ask(
                self.backend,
                request,
                call,
                deadline=dialog.state.limits.timeout,
                retry_wait=self.options.retry_wait,
                on_line=on_line,
                secrets=self.options.secrets,
            )
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
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError, BackendError):
                    await task

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


def is_open(dialog: Dialog, me: str, debt: Debt) -> bool:
    """The fence: a reply may be appended only while the very debt that it answers is open."""
    now = dialog.state.debt(me)
    return dialog.state.outcome is None and now is not None and now.key == debt.key

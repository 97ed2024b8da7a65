"""Paying one debt: ask the backend, keep what it said, append it while the debt is open, else keep it as a draft."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from dialogd import prompt
from dialogd.backends import Backend, Request, Usage
from dialogd.call import Call, ask
from dialogd.errors import BackendError, DialogdError, StorageError
from dialogd.events import Hub
from dialogd.journal import Journal, Received
from dialogd.logfile import Addition, LogFile
from dialogd.protocol import compose, verdict
from dialogd.protocol.decide import Action, Reply, Wait
from dialogd.protocol.marks import Reply as Text
from dialogd.protocol.model import Agent as Participant
from dialogd.protocol.model import Debt, Dialog
from dialogd.seen import duration, wall

T = TypeVar("T")
STORAGE_WAIT = 5.0  # seconds before a refused write is tried again
AT_ONCE = 0.001  # seconds: look again as soon as possible


@dataclass(frozen=True, slots=True)
class Options:
    """How an agent behaves, by its own flags; seconds. `name` and `role` override the header's."""

    name: str = ""
    role: str = ""
    pace: float = 2.0
    poll: float = 2.0
    retry_wait: float = 2.0


class Room(Protocol):
    """What taking a turn needs of the agent around it."""

    wakes: asyncio.Event

    async def look(self, *, full: bool = False) -> Dialog | None: ...
    def tell(self, dialog: Dialog | None) -> None: ...
    async def on_disk(self, work: Callable[[], T]) -> T: ...


@dataclass(slots=True)
class Tally:
    """What this daemon has done since it started; seconds and US dollars."""

    turns: int = 0
    thinking: float = 0.0
    usd: float = 0.0
    secrets: int = 0


class Turns:
    """Takes the turns of agent `me`."""

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
        self._pending: Received | None = None

    def forget(self) -> None:
        """Another dialog stands in the file: what was received belongs to the old one."""
        self._pending = None

    async def pay(self, dialog: Dialog, debt: Debt) -> Action:
        """Pay a debt: call the backend, keep what it said, append it while the debt is open, tell the peers."""
        received = self._pending or await self.room.on_disk(self.journal.received)
        if received is None or received.debt != debt.key:
            if received is not None:
                await self._keep_draft(received, "its turn had passed")
            try:
                received = await self._receive(dialog, debt)
            except BackendError as error:
                return await self._fail(debt, error)
            if received is None:
                return Wait("interrupted", "the turn passed while the reply was being written", 0.001)
        return await self._deliver(debt, received)

    async def _receive(self, dialog: Dialog, debt: Debt) -> Received | None:
        """Call the backend; None when the debt was closed meanwhile, and the call was ended for it."""
        if self.backend.costs:
            dialog = await self.room.look(full=True) or dialog
        drafts = await self.room.on_disk(self.journal.drafts)
        request = self._request(dialog, drafts)
        self.call = call = Call()
        self.hub.publish("state", state="thinking", turn=request.turn)
        try:
            text = await self._watched(call, request, dialog, debt)
            if text is None:
                return None
            reply, _ = compose.received(text)
            question = verdict.unclear(dialog, reply)
            if question:
                asked = self._asked_back(request, drafts, text, question)
                again = await self._watched(call, asked, dialog, debt)
                if again is None:
                    return None
                text = again or text
            if not text.strip():
                raise BackendError("the reply was empty, twice", fix="look at the backend's own log", retryable=False)
            received = Received(debt.key, text, _used(call.usage), round(call.seconds * 1000))
        finally:
            self.tally.thinking += call.seconds
            self.call = None
        self._pending = received
        await self.room.on_disk(lambda: self.journal.reply(received))
        if drafts:
            await self.room.on_disk(lambda: self.journal.record("sent", durable=False))
        return received

    def _request(self, dialog: Dialog, drafts: tuple[str, ...]) -> Request:
        me = self.participant(dialog)
        return Request(dialog, me, dialog.state.number + 1, self.file.path, lambda: prompt.render(dialog, me, drafts))

    @staticmethod
    def _asked_back(request: Request, drafts: tuple[str, ...], text: str, question: str) -> Request:
        """The one question back, where something needed was unclear."""
        dialog, me = request.dialog, request.agent
        return replace(request, prompt=lambda: prompt.repair(dialog, me, drafts, text, question))

    async def _watched(self, call: Call, request: Request, dialog: Dialog, debt: Debt) -> str | None:
        """The backend's answer, unless the debt is closed while it is written: then the call is ended, None."""
        task = asyncio.ensure_future(
            ask(
                self.backend,
                request,
                call,
                deadline=dialog.state.limits.timeout,
                retry_wait=self.options.retry_wait,
                on_line=lambda line: self.hub.publish("text", turn=request.turn, by=self.me, line=line),
            )
        )
        try:
            while not task.done():
                woken = asyncio.ensure_future(self.room.wakes.wait())
                await asyncio.wait({task, woken}, timeout=self.options.poll, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                self.room.wakes.clear()
                if not task.done() and not await self._is_open(debt):
                    await self._give_up(task, call, debt)
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

    async def _give_up(self, task: asyncio.Future[str], call: Call, debt: Debt) -> None:
        task.cancel()
        with suppress(asyncio.CancelledError, BackendError):
            await task
        if call.text.strip():
            await self._keep_draft(Received(debt.key, call.text, {}, 0), "interrupted while it was written")
        self.hub.publish("state", state="interrupted", by=self.me)

    async def _deliver(self, debt: Debt, received: Received) -> Action:
        """Append a received reply while its debt is open; else keep it as a draft."""
        reply, secrets = compose.received(received.text)
        attributes = _attributes(received)

        def make(now: Dialog) -> Addition | None:
            if not is_open(now, self.me, debt):
                return None
            written = compose.agent_turn(
                now,
                self.participant(now),
                debt,
                self._readable(now, reply),
                attributes=attributes,
                duration=duration(now),
                folder=self.file.attachments.name,
            )
            return Addition(written.draft, written.attachment, written.overflow)

        try:
            dialog = await self.room.on_disk(lambda: self.file.append(make, self.journal))
        except StorageError as error:
            return Wait("storage", f"{error}; {error.fix}", STORAGE_WAIT)
        self._pending = None
        if dialog is None:
            await self._keep_draft(received, "its turn had passed")
            return Wait("late", "the reply came after its turn had passed; kept as a draft", 0.001)
        self._count(received, secrets)
        self.hub.publish(
            "appended", number=dialog.state.number, ms=received.ms, usd=received.usage.get("usd"), by=self.me
        )
        self.room.tell(dialog)
        await self.room.look()
        return Reply(debt)

    def _readable(self, dialog: Dialog, reply: Text) -> Text:
        """An agreed text that stayed too long is no agreed text: it is never cut."""
        if verdict.unclear(dialog, reply) and reply.has("CONSENSUS_REACHED"):
            return replace(reply, marks=tuple(m for m in reply.marks if m.name != "CONSENSUS_REACHED"))
        return reply

    def _count(self, received: Received, secrets: int) -> None:
        self.tally.turns += 1
        self.tally.secrets += secrets
        self.tally.usd += received.usage.get("usd") or 0.0

    async def _keep_draft(self, received: Received, why: str) -> None:
        await self.room.on_disk(lambda: self.journal.draft(received, why))
        self._pending = None
        self.hub.publish("draft", by=self.me, why=why, text=compose.received(received.text)[0].body)

    async def _fail(self, debt: Debt, error: BackendError) -> Action:
        """Write down that this agent failed, if it is still asked."""
        if error.partial.strip():
            await self._keep_draft(Received(debt.key, error.partial, {}, 0), "cut short by an error")
        self.hub.publish("error", type="backend", message=error.cause, fix=error.fix, recoverable=error.retryable)

        def make(now: Dialog) -> Addition | None:
            if not is_open(now, self.me, debt):
                return None
            return Addition(compose.error_note(now, self.me, error.cause, error.fix, wall()))

        self.room.tell(await self.room.on_disk(lambda: self.file.append(make, self.journal)))
        return Reply(debt)

    def participant(self, dialog: Dialog) -> Participant:
        """This agent as the header and its own flags describe it."""
        found = dialog.header.agent(self.me) or Participant(self.me, f"Claude {self.me}", "")
        return replace(found, name=self.options.name or found.name, role=self.options.role or found.role)


def is_open(dialog: Dialog, me: str, debt: Debt) -> bool:
    """The fence: a reply may be appended only while the very debt that it answers is open."""
    now = dialog.state.debt(me)
    return dialog.state.outcome is None and now is not None and now.key == debt.key


def _used(usage: Usage) -> dict[str, Any]:
    return {
        "model": usage.model,
        "tokens_in": usage.tokens_in,
        "tokens_out": usage.tokens_out,
        "usd": usage.usd,
    }


def _attributes(received: Received) -> tuple[tuple[str, str], ...]:
    """The frame's account of one call; what is unknown is left out, never written as 0."""
    usage = received.usage
    usd = usage.get("usd")
    return (
        ("at", wall()),
        ("ms", str(received.ms)),
        ("model", str(usage.get("model") or "")),
        ("in", _known(usage.get("tokens_in"))),
        ("out", _known(usage.get("tokens_out"))),
        ("usd", "" if usd is None else f"{usd:.4f}".rstrip("0").rstrip(".")),
    )


def _known(count: int | None) -> str:
    return "" if count is None else str(count)

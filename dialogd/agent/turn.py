"""One turn: ask the backend, ask back where something is unclear, append the reply, or keep it as a draft."""

from __future__ import annotations

import asyncio
import math
import secrets as random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from dialogd.agent import prompt
from dialogd.agent.builder import NO_MATERIAL, Builder, Flags, Material
from dialogd.agent.call import (
    Bill,
    Call,
    Callbacks,
    at_stake,
    beginning,
    forecast,
    from_record,
    is_priced,
    reading,
)
from dialogd.agent.events import Counters, Hub, state_fields
from dialogd.agent.peers import Peers
from dialogd.backends import Backend, Delivery, Request
from dialogd.backends.parts import Prompt
from dialogd.backends.tools import ApprovalQueue, Called, Toolbox
from dialogd.config import ToolServer
from dialogd.errors import BackendError, DialogdError, StorageError
from dialogd.protocol import compose
from dialogd.protocol.admit import Admission, Matter, admit, question
from dialogd.protocol.build import Due, Submission, submitted
from dialogd.protocol.certificate import seal, sealed_text
from dialogd.protocol.decide import UNFINISHED_REST, Clock, Wait
from dialogd.protocol.model import Addition, Condition, Entry, Limits, Mark, Participant, system_note
from dialogd.protocol.order import is_apart, is_open, is_sealed_round
from dialogd.protocol.questions import NAME as QUESTION
from dialogd.protocol.state import DEFAULT_CAP, DEFAULT_TOKENS, Debt, Dialog, Estimate, allowance, reached
from dialogd.protocol.text import in_words, is_blank, redact
from dialogd.store.journal import Received
from dialogd.store.logfile import LogFile, Make, wall_time

T = TypeVar("T")

SMALL = 16 * 1024  # characters of a reply that is read on the event loop: that takes a few milliseconds
STORAGE_WAIT = 5.0  # seconds before a refused write is tried again
PAUSE = 5  # times `retry_wait`: before an agent that failed is asked again, with nobody between


async def in_thread(work: Callable[[], T]) -> T:
    """Do `work` in a thread of its own, and give what it gives. Raises what it raises.

    The loop's own threads are waited for at the end: a PDF of a long dialog would keep a stopped daemon for half a
    minute, and its seat with it.
    """
    pool = ThreadPoolExecutor(1, "in_thread")
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work)
    finally:
        pool.shutdown(wait=False)


@dataclass(frozen=True, slots=True)
class Behavior:
    """How an agent behaves, by its own flags; seconds. `name` and `role` override the header's.

    `title` is the family's name in headings where the header names nobody. `has` is what it has to look at, `notes`
    what its project says to agents.
    `secrets` are taken out of whatever it says or is told. `budget` (US dollars) and `tokens` cap what it may use in
    one dialog; with `is_capped` the usual limits do where nobody here set one. `reads_files`: its tools can.
    `has_shell`: where it may write, it can run commands.
    It is offered tools of its dialog and of `servers`, and may make `tool_calls` calls in one turn.
    """

    name: str = ""
    role: str = ""
    pace: float = 0.0
    poll: float = 2.0
    retry_wait: float = 2.0
    title: str = "Claude"
    has: str = ""
    notes: str = field(default="", repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    budget: float | None = None
    tokens: int | None = None
    is_capped: bool = False
    digest: bool = False
    reads_files: bool = False
    has_shell: bool = False
    servers: tuple[ToolServer, ...] = ()
    tool_calls: int = 0
    build: Flags = field(default_factory=Flags)


class Seen:
    """What the daemon of agent `me`, at `url`, has seen of the dialog, and when. Pauses do not count."""

    def __init__(self, me: str, pace: float, url: str = "", pause: float = 0.0) -> None:
        self.me = me
        self.pace = pace
        self.url = url
        self.pause = pause
        self._dialog: Dialog | None = None
        self._looked = time.monotonic()
        self._hurried = False
        self.began_anew()

    def began_anew(self) -> None:
        """Reset for another dialog in the file."""
        self.nudged = self.started = False
        self._spoke, self._said = 0, -math.inf
        self._first: dict[tuple[str, str, str], float] = {}
        self.lain, self._changed = 0.0, time.monotonic()

    def observe(self, dialog: Dialog, file: Path) -> None:
        """Take note of the dialog as it stands now."""
        now = time.monotonic()
        if self._dialog is None:
            with suppress(OSError):
                self.lain = max(0.0, time.time() - file.stat().st_mtime)
            self._changed = now - self.lain
        elif dialog is not self._dialog and dialog.size != self._dialog.size:
            self._changed, self.lain, self._hurried = now, 0.0, False
        spoke = dialog.state.floor.spoke_at.get(self.me, 0)
        if spoke != self._spoke:
            self._spoke, self._said = spoke, self._changed
        if dialog.state.paused:
            passed = now - self._looked
            self._first = {key: first + passed for key, first in self._first.items()}
        open_debts = {debt.timer for debt in dialog.state.debts.open}
        self._first = {key: self._first.get(key, now) for key in open_debts}
        self._dialog, self._looked = dialog, now

    def nudge(self) -> None:
        """Note a notify: unfinished text counts as finished, an old dialog is resumed."""
        self.nudged = self._hurried = True

    def is_typing(self, dialog: Dialog) -> bool:
        """True while the end of `dialog`, as just read, is unfinished text that has not rested long enough."""
        if dialog.last is None or dialog.last.condition is not Condition.UNFINISHED:
            return False
        known = self._dialog is not None and self._dialog.size == dialog.size
        return not known or self.rest < UNFINISHED_REST

    @property
    def rest(self) -> float:
        """Seconds since the file last changed; infinite after a notify."""
        return self._since(self._changed)

    def _since(self, moment: float) -> float:
        return math.inf if self._hurried else time.monotonic() - moment

    def clock(self) -> Clock:
        """What `decide` is told besides the file."""
        now = time.monotonic()
        return Clock(
            at=wall_time(),
            zone=datetime.astimezone,
            nudged=self.nudged,
            started=self.started,
            lain=self.lain,
            rest=self.rest,
            silent=self._since(self._said),
            ages={key: now - first for key, first in self._first.items()},
            pace=self.pace,
            url=self.url,
            pause=self.pause,
        )


def needs_cap(dialog: Dialog | None) -> bool:
    """True where the dialog has no budget that this person set: of a shared one it may be somebody else's."""
    limits = dialog.state.limits if dialog is not None and dialog.state.hand.keys is None else Limits()
    return (limits.budget, limits.tokens) == (None, None)


def duration(dialog: Dialog) -> str:
    """How long the dialog has taken so far, in words: since the header's `Started`, else since the first frame."""
    first = next((e.frame.at for e in dialog.entries if e.frame and e.frame.at), "")
    for text in (dialog.header.started, first):
        try:
            begun = datetime.fromisoformat(text.replace(" +", "+").replace(" -", "-").replace("Z", "+00:00"))
        except ValueError:
            continue
        begun = begun.astimezone() if begun.tzinfo is None else begun
        passed = (datetime.now(UTC) - begun).total_seconds()
        if passed >= 0:
            return in_words(max(passed, 1.0))
    return "unknown"


# -- What an agent has for all its turns ------------------------------------------------------------------------------


class Speaker:
    """An agent as its turns need it: its file and journal, its backend, what it may spend and what it has kept.

    `secrets` must not be written anywhere. `dialog` is the dialog as last read, None while there is none; `call` the
    call under way, or None. `has_kept` is False once its journal is known to hold no reply and no draft for the next
    turn.
    """

    def __init__(self, me: str, file: LogFile, backend: Backend, peers: Peers, hub: Hub, behavior: Behavior) -> None:
        self.me = me
        self.file = file
        self.backend = backend
        self.peers = peers
        self.hub = hub
        self.behavior = behavior
        self.journal = file.journals.of(me)
        self.seen = Seen(me, behavior.pace, peers.own, PAUSE * behavior.retry_wait)
        self.tally = Counters()
        self.secrets = (*behavior.secrets, *backend.secrets)
        self.prompts = prompt.Prompts(
            behavior.has, behavior.notes, backend.room, self.secrets, has_shell=behavior.has_shell
        )
        self.dialog: Dialog | None = None
        self.call: Call | None = None
        self.has_kept = True
        self.disk = ThreadPoolExecutor(1, "disk")  # one thread: it is used in order, and never blocks the event loop
        self.approvals = ApprovalQueue(me, hub.publish)
        self.builder = Builder(me, behavior.build, file.path, file.journals.folder.parents[1])

    async def on_disk(self, work: Callable[[], T]) -> T:
        """Run a blocking piece of work in the one thread that touches the disk."""
        return await asyncio.get_running_loop().run_in_executor(self.disk, work)

    def participant(self, dialog: Dialog) -> Participant:
        """This agent as the header and its own flags describe it."""
        found = dialog.header.agent(self.me) or Participant(self.me, "", "", is_named=False)
        named = found.name if found.is_named else f"{self.behavior.title} {self.me}"
        return replace(found, name=self.behavior.name or named, role=self.behavior.role or found.role)

    def request(
        self, dialog: Dialog, debt: Debt, drafts: Sequence[str] = (), material: Material = NO_MATERIAL
    ) -> Request:
        """The turn that pays the debt, as the backend is asked for it; its prompt is made when somebody looks."""
        me = self.participant(dialog)
        allowed = allowance(dialog.state, self.me, self.cap(dialog))
        is_limited = allowed != Estimate()
        owed = self.owed() if is_limited else Bill()
        return Request(
            dialog,
            me,
            dialog.state.number + 1,
            self.file.path,
            cache(lambda: self.prompts.turn(dialog, me, drafts, material.text)),
            re=debt.re,
            chain=debt.chain,
            allowance=allowed.usd,
            tokens=allowed.tokens,
            reads=reading(self.backend, dialog, self.me)[1] if is_limited else 0,
            workspace=material.workspace,
        ).less(owed.usd, owed.tokens)

    async def toolbox(self, dialog: Dialog, debt: Debt) -> Toolbox | None:
        """The tools for the turn that pays the debt, with the calls that no turn tells of yet; None without any.

        It may make as many as a turn may, beside those that were made for a debt before.
        """
        if not self.behavior.tool_calls or not (self.behavior.servers or len(dialog.header.agents) > 1):
            return None
        earlier = await self.on_disk(self.journal.calls)
        before = sum(tuple(one["debt"]) != debt.key for one in earlier)

        async def record(kind: str, **fields: Any) -> None:
            await self.on_disk(lambda: self.journal.record(kind, debt=list(debt.key), **fields))

        def does(who: str) -> str:
            standing = self.hub.standing.get(who)
            return standing.state if standing is not None else ""

        return Toolbox(
            self.behavior.servers,
            dialog,
            self.participant(dialog),
            self.behavior.tool_calls + before,
            self.approvals,
            record,
            self.hub.publish,
            [Called.of(one) for one in earlier],
            self.secrets,
            does,
        )

    # -- what its calls cost --------------------------------------------------------------------------------------

    @property
    def is_working(self) -> bool:
        """True while a reply is being written, or a build's work is done.

        Where somebody else writes it, from when they have fetched the turn.
        """
        return self.builder.is_busy or (self.call is not None and getattr(self.backend, "is_opened", True))

    async def keep_draft(self, received: Received, why: str) -> None:
        """Keep a reply that can't be appended any more, and show it to this agent with its next turn."""
        self.has_kept, text = True, ""
        await self.on_disk(lambda: self.journal.draft(received, why))
        if self.dialog is None or not is_apart(self.dialog, Debt(*received.debt)):
            text = compose.received(received.text)[0].body
        self.hub.publish("draft", by=self.me, why=why, text=text)

    async def keep_reply(self, dialog: Dialog, debt: Debt, text: str) -> None:
        """Keep a reply that came while nobody was asked for it: the turn that pays the debt will be this one."""
        bill = Bill(getattr(self.backend, "model", ""), calls=1)
        nonce = random.token_hex(16) if is_sealed_round(dialog, debt) else ""
        received = Received(debt.key, redact(text, self.secrets)[0], bill.record, 0, nonce)
        self.has_kept = True
        await self.on_disk(lambda: self.journal.reply(received))

    def begin_call(self) -> Call:
        """A new call. What costs money is booked before it is made."""
        book = self._book if self.backend.costs else None
        self.call = Call(self.backend, self.behavior.retry_wait, self.behavior.secrets, book)
        return self.call

    async def _book(self, request: Request) -> None:
        """Journal the expected cost of a call, so that one that is cut off by a crash is counted too.

        Raises `DialogdError`: what cannot be booked is not bought.
        """
        so_far = self.call.bill if self.call is not None else Bill()

        def book() -> None:
            bill = so_far.plus(at_stake(self.backend, request.prompt, request.dialog, self.me))
            self.journal.calling(bill.record, is_first=not so_far.calls)

        await self.on_disk(book)

    def end_call(self, call: Call, *, answered: bool) -> None:
        """Record what the call cost. Without an answer, the next entry of this agent accounts for it."""
        self.call = None
        self.tally.thinking += call.seconds
        self.tally.secrets += call.redacted
        self.tally.bill = self.tally.bill.plus(call.bill)
        if not answered and (call.bill.calls or self.journal.is_calling):
            with suppress(DialogdError):  # a full disk must not hide why the call ended
                self.journal.record("spent", durable=False, usage=call.bill.record)

    def owed(self, bill: Bill | None = None) -> Bill:
        """This bill, and all that was spent since this agent's last entry: failed and interrupted calls too."""
        bill = bill or Bill()
        for record in reversed(self.journal.owed()):
            bill = from_record(record).plus(bill)
        return bill

    def cap(self, dialog: Dialog) -> Estimate:
        """What this agent alone may spend in the dialog."""
        if self.behavior.is_capped and needs_cap(dialog):
            return Estimate(tokens=DEFAULT_TOKENS) if self.backend.price is None else Estimate(DEFAULT_CAP)
        return Estimate(self.behavior.budget, self.behavior.tokens)

    def is_limited(self, dialog: Dialog) -> bool:
        """True where what the coming turn will cost matters."""
        limits, cap = dialog.state.limits, self.cap(dialog)
        return (limits.budget, limits.tokens, cap.usd, cap.tokens) != (None,) * 4

    def priced(self, clock: Clock, dialog: Dialog, debt: Debt, *, is_paid: bool) -> Clock:
        """The clock with what the coming turn will cost. Reads the journal."""
        kept = self.journal.received()
        return replace(
            clock,
            next=forecast(self.backend, self.request(dialog, debt).prompt, dialog, self.me, self.owed()),
            cap=self.cap(dialog),
            priced=is_priced(self.backend),
            paid=is_paid or (kept is not None and kept.debt == debt.key),
        )

    def affords(self, dialog: Dialog, debt: Debt, call: Call, *before: Prompt) -> bool:
        """True while the turn, and calls `before` it, may still be bought after what `call` has cost so far."""
        if not self.is_limited(dialog):
            return True
        turn = self.request(dialog, debt).prompt
        coming = forecast(self.backend, turn, dialog, self.me, self.owed(call.bill), *before)
        return not reached(dialog.state, self.me, coming, self.cap(dialog))

    # -- what it writes -------------------------------------------------------------------------------------------

    async def append(self, make: Make) -> Dialog | None:
        """Append what `make` returns, and tell the peers of it; the dialog with it, None where that was nothing."""
        return await self.tell() if await self.on_disk(lambda: self.file.write(make, self.journal)) else None

    async def tell(self) -> Dialog:
        """Tell the peers that something was appended, by a hint that may get lost; the dialog with it.

        They are told before it is read here: they have work to do meanwhile.
        """
        self.peers.tell(self.dialog)
        return await self.read()

    async def read(self, *, sure: bool = False) -> Dialog:
        """The dialog as the file stands; where little was written to it since, without a way to the disk's thread."""
        known = self.file.quick_read(sure=sure)
        return known if known is not None else await self.on_disk(lambda: self.file.read(sure=sure))

    def held(self, dialog: Dialog) -> Wait | None:
        """Why nothing may be appended now, although the debt is open; None when it may."""
        if dialog.last is not None and dialog.last.condition is Condition.DAMAGED:
            return Wait("damaged", "the last entry was cut or overwritten after it was written", 1.0)
        if self.seen.is_typing(dialog):
            return Wait("unfinished", "somebody is typing at the end of the file", 1.0)
        return None


# -- One turn ---------------------------------------------------------------------------------------------------------


async def _with_git(work: Awaitable[T], failed: str) -> T:
    """What work with git gives. Raises `StorageError` where the disk is full, `BackendError` for all else."""
    try:
        return await work
    except StorageError:
        raise
    except DialogdError as error:
        raise BackendError(f"{failed}: {error}", fix=error.fix, kind="workspace") from error


WhileOpen = Callable[[Debt, Coroutine[Any, Any, str]], Awaitable[str | None]]
PASSED = Wait("interrupted", "the turn passed while the reply was being written", 0.001)


class Turn:
    """The turn by which an agent pays one debt. It is kept until the next one, so that a refused write can be repeated.

    `received` is its reply until that stands in the file or is a draft; `error` why there is none, until that is
    written. Both are None before the backend was asked, and once the turn is over. `while_open` gives the answer of a
    call, None when the debt was closed meanwhile.
    """

    def __init__(self, of: Speaker, debt: Debt, while_open: WhileOpen) -> None:
        self.of = of
        self.debt = debt
        self._while_open = while_open
        self.received: Received | None = None
        self.error: BackendError | None = None
        self._drafts: tuple[str, ...] = ()
        self._is_new = False  # the reply is not in the journal yet
        self._is_summed_up = False
        self._admission: Admission | None = None
        self._redacted = 0
        self._tools: Toolbox | None = None
        self._knocks = 0
        self._material = NO_MATERIAL
        self._submission: Submission | None = None
        self._is_submitted = False

    @classmethod
    async def begin(cls, of: Speaker, dialog: Dialog, debt: Debt, while_open: WhileOpen, last: Turn | None) -> Turn:
        """The turn for this debt, with the reply and the drafts that the journal has kept for it.

        A reply to another debt, of the `last` turn or of a daemon before, becomes a draft unless the file has it.
        """
        turn = cls(of, debt, while_open)
        found = last.received if last is not None else None
        if found is None and of.has_kept:
            found = await of.on_disk(of.journal.received)
        turn.received = found
        if found is not None and found.debt != debt.key:
            await turn._settle(dialog)
            turn.received = None
        if of.has_kept:
            turn._drafts = await of.on_disk(of.journal.drafts)
            of.has_kept = turn.received is not None or bool(turn._drafts)
        return turn

    async def take(self, dialog: Dialog, debt: Debt) -> Dialog | Wait | None:
        """Get the reply where it is not here yet, and append it while the debt is open: the dialog with it.

        That may also be the dialog with a digest, a seal or a failure before it, or None where nothing was to be
        written any more; a `Wait` says why nothing could be. Raises `StorageError`: what was bought is kept for the
        next time.
        """
        of, self.debt = self.of, debt
        if of.file.suspect:
            return Wait("storage", f"{of.file.suspect}; check the disk, then restart this daemon", STORAGE_WAIT)
        try:
            early = await self._get(dialog) if self.error is None else None
            if early is None and self.error is None and dialog.state.build:
                await self._submit(dialog)
            return early if early is not None else await self._append()
        except BackendError as error:
            of.tally.failed(error.kind)
            what = {"type": error.kind, "message": error.cause, "fix": error.fix, "recoverable": error.retryable}
            of.hub.publish("error", by=of.me, **what)
            of.hub.agent(of.me, "failed", reason=error.cause)
            self.error = error
            if error.partial.strip():
                self.received = self.received or Received(debt.key, error.partial, {}, 0)
            return await self._append()

    # -- the reply ------------------------------------------------------------------------------------------------

    async def _get(self, dialog: Dialog) -> Dialog | Wait | None:
        """Get the reply and the answer to its closing question. Not None where that did not come to an end."""
        if self.received is None:
            if dialog.state.debts.seal(self.of.me) is not None:
                raise BackendError(
                    "the answer that it had sealed is lost: its journal is gone",
                    fix=f"`dialogd retry {self.of.me}` asks it anew",
                )
            if (early := await self._ask(dialog)) is not None:
                return early
        assert self.received is not None
        kinds = dialog.header.rules.kinds
        if self._admission is None or self._admission.dialog.header.rules.kinds != kinds:
            await self._admit(dialog, self.received.text)
        elif self._admission.dialog is not dialog:
            self._admission = self._admission.within(dialog)
        assert self._admission is not None
        while not self.debt.is_ready and (found := self._admission.due(self.received.answers)):
            if (early := await self._confirm(dialog, self.received, found)) is not None:
                return early
        return None

    async def _submit(self, dialog: Dialog) -> None:
        """Commit what this turn of a build's lead left in its worktree; the reply is kept before that.

        Raises `BackendError`: without its commit the turn submits nothing.
        """
        of, received, admission = self.of, self.received, self._admission
        if self._is_submitted or received is None or not of.builder.submits(dialog):
            return
        if admission is not None and admission.counted(received.answers)[0].has(QUESTION):
            return  # its edits stay as they are
        await self._keep(received)
        self._submission = await _with_git(
            in_thread(lambda: of.builder.submit(dialog, self.debt)), "its work could not be committed"
        )
        self._is_submitted = True

    async def _keep(self, received: Received) -> None:
        """Journal a reply that is not there yet: from here on, a kill buys nothing twice."""
        if self._is_new:
            await self.of.on_disk(lambda: self.of.journal.reply(received))
            self._is_new = False

    async def _admit(self, dialog: Dialog, text: str) -> Admission:
        """Read a reply, and rule on what of it may count; a long one in a thread: the daemon answers meanwhile."""

        def work() -> tuple[Admission, int]:
            reply, redacted = compose.received(text, dialog.header.rules.kinds)
            return admit(dialog, self.of.me, reply), redacted

        admission, self._redacted = work() if len(text) < SMALL else await in_thread(work)
        self._admission = admission
        return admission

    async def _ask(self, dialog: Dialog) -> Dialog | Wait | None:
        """Ask the backend; once more where the body must be written anew. What it cost is kept, however it ends.

        A digest that must be written first is all that this does; its dialog is given. Raises `BackendError`.
        """
        of = self.of
        call = of.begin_call()
        if of.is_working:
            where = partial(state_fields, dialog, thinking=True)
            of.hub.publish("state", where, state="thinking", reason="", turn=dialog.state.number)
            of.hub.agent(of.me, "thinking", turn=dialog.state.number + 1, seconds=0.0)
        text: str | None = None
        try:
            if of.behavior.digest and not self._is_summed_up:
                early = await self._sum_up(call, dialog)
                self._is_summed_up = True
                if early is not None:
                    return early
                if call.bill.calls and not of.affords(dialog, self.debt, call):
                    return PASSED
            self._tools = await of.toolbox(dialog, self.debt)
            if dialog.state.build:
                self._material = await _with_git(of.builder.material(dialog, in_thread), "the work cannot be looked at")
            request = replace(of.request(dialog, self.debt, self._drafts, self._material), tools=self._tools)
            text = await self._in_time(call, request)
            said = beginning(call.text, of.secrets) if text is None else text
            text = None if text is None else await self._whole(call, request, text)
            if text is None:
                return await self._interrupted(said)
            if is_blank(text):
                raise BackendError("the reply was empty, twice", fix="look at the backend's own log", kind="empty")
            self.received = self._taken(call, dialog, text)
            self._is_new = True
        finally:
            of.end_call(call, answered=self.received is not None and self._is_new)
        if self._drafts:
            await of.on_disk(lambda: of.journal.record("sent", durable=False))
            self._drafts = ()
        return None

    def _taken(self, call: Call, dialog: Dialog, text: str) -> Received:
        """The reply as the journal keeps it."""
        nonce = random.token_hex(16) if is_sealed_round(dialog, self.debt) else ""
        calls = self._tools.quoted if self._tools is not None else ""
        return Received(self.debt.key, text, call.bill.record, round(call.seconds * 1000), nonce, calls=calls)

    async def _whole(self, call: Call, request: Request, text: str) -> str | None:
        """The reply; asked for once more when its body must be written anew, and kept as it came when that fails."""
        admission = await self._admit(request.dialog, text)
        lacking = compose.lacks_body(request.dialog, self.of.me, admission.reply)
        if not lacking or (not is_blank(text) and not call.affords(request)):
            return text
        if not (is_blank(text) or self.of.backend.costs):  # else two calls' bills would count twice after a kill
            first = self._taken(call, request.dialog, text)
            with suppress(DialogdError):  # without it, the turn is asked for again after a kill
                await self.of.on_disk(lambda: self.of.journal.reply(first))
        whole, re_ = request.prompt, self.debt.re
        back = replace(
            request,
            tools=None,
            lacking=lacking,
            prompt=lambda: prompt.repair(whole(), request.agent, re_, text, lacking),
        )
        try:
            again = await self._in_time(call, back)
        except BackendError as error:
            if is_blank(text):
                raise
            self.of.hub.publish("warning", text=f"no answer to the question back: {error.cause}; going on without")
            return text
        if again is None or is_blank(again):
            return again if again is None else text
        await self._admit(request.dialog, again)
        return again

    async def _in_time(
        self,
        call: Call,
        request: Request,
        *,
        aloud: bool = True,
        part: float = 1.0,
        spent: float = 0.0,
    ) -> str | None:
        """The backend's answer; None when the debt was closed meanwhile, which ends the call.

        It may take that `part` of the turn's time, of which `spent` seconds are gone. It is published while it
        arrives if it is said `aloud`; not in a round whose answers must stay hidden from one another.
        """
        of, dialog = self.of, request.dialog
        is_heard = aloud and not is_apart(dialog, self.debt)

        def hear(piece: str, is_first: bool) -> None:
            if is_heard:
                of.hub.text(of.me, request.turn, piece, reset=is_first)

        def use(tool: str) -> None:
            what = "executing" if tool else "thinking"
            of.hub.agent(of.me, what, turn=request.turn, reason=tool if is_heard else "")

        limit = max(dialog.state.limits.timeout_of(of.me) * part - spent, 0.0)
        return await self._while_open(
            self.debt, call.ask(request, limit, Callbacks(hear, use, partial(self._delivery, request)))
        )

    def _delivery(self, request: Request, news: Delivery) -> None:
        """Note what becomes of a turn to which somebody else replies. Losing that note costs no turn."""
        of, self._knocks = self.of, news.knocks
        what = {"turn": request.turn, "what": news.what, "knocks": news.knocks}
        of.hub.publish("delivery", agent=of.me, **what)
        if news.what == "opened":
            of.hub.agent(of.me, "thinking", turn=request.turn, seconds=0.0)

        def told(now: Dialog) -> Addition | None:
            is_due = is_open(now, of.me, self.debt) and of.held(now) is None
            return Addition(system_note(wall_time(), body=f"{of.me}: {news.text}.")) if is_due else None

        async def note() -> None:
            with suppress(DialogdError):
                await of.on_disk(lambda: of.journal.record("delivery", durable=False, **what))
                if news.text:
                    await of.append(told)

        of.peers.spawn(note())

    async def _interrupted(self, said: str) -> Wait:
        """The debt was closed while the reply was written: keep what there is of it."""
        of = self.of
        of.tally.ends["interrupted"] += 1
        if said.strip():
            self.received = Received(self.debt.key, said, {}, 0)
            await self._keep_draft("interrupted while it was written")
        where = partial(state_fields, of.dialog, thinking=False)
        of.hub.publish("state", where, state="interrupted", reason=PASSED.reason, by=of.me)
        return PASSED

    async def _sum_up(self, call: Call, dialog: Dialog) -> Dialog | Wait | None:
        """Append a digest of the turns that no longer fit into the prompt; None where it is gone on without one."""
        of = self.of
        wanted = of.prompts.digest(dialog, of.participant(dialog))
        if wanted is None or not of.affords(dialog, self.debt, call, wanted[0]):
            return None
        request = replace(of.request(dialog, self.debt), prompt=lambda: wanted[0])
        try:
            text = await self._in_time(call, request, aloud=False, part=0.5)  # it leaves time for the turn
            if text is None:
                return await self._interrupted("")
        except BackendError as error:
            of.hub.publish("warning", text=f"no digest could be made: {error.cause}; going on without")
            return None
        body = compose.received(text)[0].body
        if is_blank(body):
            return None
        bill = of.owed(call.bill)
        draft = prompt.digest_note(of.me, wanted[1], body, bill.words, (("at", wall_time()), *bill.attributes()))

        def make(now: Dialog) -> Addition | None:
            return Addition(draft) if is_open(now, of.me, self.debt) else None

        try:
            written = await of.append(make)
        except DialogdError as error:
            of.hub.publish("warning", text=f"the digest could not be kept: {error}; going on without")
            return None
        if written is None:
            return await self._interrupted("")
        of.tally.bill = of.tally.bill.plus(call.bill)
        call.bill = Bill()
        return written

    # -- the closing question -------------------------------------------------------------------------------------

    async def _confirm(self, dialog: Dialog, received: Received, found: Sequence[Matter]) -> Wait | None:
        """Ask what is unclear in the reply; "" is the answer where none comes: what is unclear does not count then.

        The reply, and the answer to an earlier question, are kept before this one is asked, and what it brings with
        the turn: a kill buys nothing twice.
        """
        of = self.of
        if received.answers:
            await of.on_disk(of.journal.flush)
        await self._keep(received)
        turn = of.request(dialog, self.debt)
        rendered = cache(lambda: of.prompts.confirmation(dialog, turn.agent, turn.re, received.text, found))
        request = replace(turn, prompt=rendered, question=question(found))
        of.hub.agent(of.me, "thinking", turn=request.turn)
        call, answer = of.begin_call(), None
        so_far = from_record(received.usage)
        try:
            if not call.affords(request, so_far):
                raise BackendError("it cannot be paid", fix="raise the budget: `dialogd limit`")
            answer = await self._in_time(call, request, aloud=False, spent=received.ms / 1000)
            if answer is None:
                of.tally.ends["interrupted"] += 1
                await self._keep_draft("its turn passed while it was asked about it")
                return PASSED
            ms = received.ms + round(call.seconds * 1000)
            received = replace(received, usage=so_far.plus(call.bill).record, ms=ms)
        except BackendError as error:
            of.hub.publish("warning", text=f"no answer to the closing question: {error.cause}; going on without")
        finally:
            of.end_call(call, answered=answer is not None)
        self.received = kept = replace(received, answers=(*received.answers, answer or ""))
        await of.on_disk(lambda: of.journal.answer(kept))
        return None

    # -- what is written ------------------------------------------------------------------------------------------

    async def _append(self) -> Dialog | Wait | None:
        """Append the reply, or why there is none, while the debt is open; else keep it as a draft."""
        of, seen = self.of, list[Dialog]()
        if self.error is not None and self.received is not None:
            await self._keep_draft("cut short by an error")

        def make(now: Dialog) -> Addition | None:
            seen.append(now)
            return self._drawn_up(now) if is_open(now, of.me, self.debt) and of.held(now) is None else None

        written = await of.tell() if await of.on_disk(lambda: self._write(make)) else None
        if written is None and is_open(seen[-1], of.me, self.debt):
            return of.held(seen[-1])
        if self.error is not None:
            self.error = None
            return written
        if written is None and await self._settle(seen[-1]) is None:
            return Wait("late", "the reply came after its turn had passed; kept as a draft", 0.001)
        return written or await of.tell()  # it had landed before: whoever wrote it may have told nobody

    def wrote(self, dialog: Dialog) -> None:
        """Count and publish the turn, if it is that of which the loop has told: not a seal, a digest or a failure."""
        of, received = self.of, self.received
        if received is None or is_open(dialog, of.me, self.debt):
            return
        self.received = None
        of.tally.ends["written"] += 1
        of.tally.secrets += self._redacted
        entry = received.landed(dialog, of.me)  # the person may have added a turn of theirs by now
        number, usd = entry.number if entry else dialog.state.number, from_record(received.usage).known_usd
        of.hub.publish("appended", number=number, ms=received.ms, usd=usd, by=of.me)

    def _write(self, make: Make) -> bool:
        """Journal the reply if it is new, and append it; one flush, that of the intent to append, serves both."""
        journal = self.of.journal
        try:
            if self.received is not None and self._is_new:
                journal.reply(self.received, durable=False)
                self._is_new = False
            has_landed = self.of.file.write(make, journal)
            if not has_landed:
                journal.flush()
        except DialogdError:
            # How much of it is durable is not known: recorded again, never flushed again.
            self._is_new = self.received is not None
            raise
        return has_landed

    def _drawn_up(self, now: Dialog) -> Addition:
        """The turn, the seal that goes before it while others of a sealed round owe theirs, or the failure."""
        of, received, mine = self.of, self.received, now.state.debt(self.of.me)
        knocks = ("knocks", str(self._knocks or ""))
        if self.error is not None:
            attributes = (("at", wall_time()), knocks, *of.owed().attributes())
            return Addition(compose.error_note(now, of.me, self.error.cause, self.error.fix, attributes))
        assert received is not None
        assert self._admission is not None
        assert mine is not None
        is_sealed = is_sealed_round(now, mine)
        written = compose.agent_turn(
            self._admission.within(now),
            of.participant(now),
            self.debt,
            answers=received.answers,
            calls=received.calls,
            done=self._done(now),
            attributes=(
                ("at", wall_time()),
                ("ms", str(received.ms)),
                knocks,
                ("nonce", received.nonce if mine.is_ready or is_sealed else ""),
                *of.owed(from_record(received.usage)).attributes(),
            ),
            duration=duration(now),
            folder=of.file.attachments.name,
            here=datetime.now().astimezone().isoformat(timespec="seconds"),
        )
        if is_sealed and not mine.is_ready and received.nonce:
            sha = seal(received.nonce, sealed_text(written.draft.body, written.draft.marks))
            note = compose.sealed_note(
                of.participant(now), self.debt, sha, wall_time(), could_read=of.behavior.reads_files
            )
            return Addition(note)
        return written

    def _done(self, now: Dialog) -> tuple[Mark, ...]:
        """The records of what this turn submitted."""
        rules, made = now.state.build.rules, self._submission
        if rules is None or made is None:
            return ()
        what, task = now.state.build.due_of(self.of.me)
        if what is not Due.WORK or task is None:
            return ()
        return submitted(task, made, now.state.table.next_ref, task.iteration)

    async def _settle(self, dialog: Dialog) -> Entry | None:
        """The turn as which the reply stands in the file already; without one it is kept as a draft."""
        of, received = self.of, self.received
        entry = received.landed(dialog, of.me) if received is not None else None
        if entry is None:
            of.tally.ends["late"] += 1
            await self._keep_draft("its turn had passed")
        else:
            await of.on_disk(lambda: of.journal.record("done", chain=entry.chain, number=entry.number))
        return entry

    async def _keep_draft(self, why: str) -> None:
        assert self.received is not None
        await self.of.keep_draft(self.received, why)
        self.received = None

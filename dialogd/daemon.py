"""The composition root: settings -> parts -> one running daemon; signals and exit codes."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from dialogd import person
from dialogd.agent import events
from dialogd.agent.events import Hub
from dialogd.agent.loop import Agent
from dialogd.agent.peers import Peers
from dialogd.agent.player import player, prepare
from dialogd.alerts import Alerts, chosen
from dialogd.backends.seats import Cast, remember_start
from dialogd.config import Settings, default_port
from dialogd.errors import BadInput, DialogdError, NotADialog
from dialogd.memory import keep as keep_copy
from dialogd.protocol.state import Dialog
from dialogd.server.routes import create_app
from dialogd.server.serving import Server, bind, make_server
from dialogd.server.wire import Halt, Stopped
from dialogd.store.disk import StateDir, real, shared_with_group
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile, watch
from dialogd.store.registry import Registry, carried
from dialogd.views.documents import disown, keep, place

T = TypeVar("T")

TELL_WAIT = 0.2  # seconds that the loop has to finish what it does beside a call
CLOSE_WAIT = 0.5  # seconds that a stop leaves for the disk before it answers
HALT_WAIT = 0.3  # seconds that a stop leaves for the alerts of an end just before it, and for the lock


def serve(settings: Settings, peers: Mapping[str, str], cast: Cast | None = None, *, may_rehearse: bool = True) -> int:
    """Run one agent's daemon until it is stopped; gives the exit code, 0 for any ordered end.

    `peers` are addresses by agent id that count before the header's. With the `cast` of the `run` that started it, it
    ends by itself a while after its dialog, where that process is gone. Raises `AlreadyRunning` for a taken port or
    seat, `BadInput` for settings that make no sense, an id that the dialog does not know, and where only scripted lines
    would be left that nobody asked for, unless it `may_rehearse`.
    """
    state = StateDir(settings.state_dir)
    file = real(settings.file)
    log = LogFile(file, Journals(state.dialog(file)))
    log.check()
    present = _known_dialog(log)
    port = _port(settings, present)
    plays = player(settings, present, state, file, may_rehearse=may_rehearse and log.mirror is None)
    with ExitStack() as stack:
        registry = Registry(state)
        stack.enter_context(registry.seat(settings.id, file))
        log.daemon_of = settings.id
        if log.mirror is not None:
            from dialogd.store.engine import EngineAway

            with suppress(EngineAway):  # it is asked again and again; what is here can be read meanwhile
                log.mirror.claim(settings.id)
        listener = stack.enter_context(bind(port, registry.listener))
        port = int(listener.getsockname()[1])
        log_file = state.logs / f"{settings.id}-{port}.log"
        secrets = (*plays.behavior.secrets, *plays.backend.secrets)
        is_json = settings.log_format == "json"
        events.set_up_logging(settings.id, log_file, json_lines=is_json, debug=settings.debug, secrets=secrets)
        plans = place(file, state, settings.plan) if settings.plan else None
        session, repo = settings.session.rstrip("?"), str(settings.repo or "")
        stack.enter_context(registry.entry(settings.id, port, file, log_file, plans, session, repo))
        hub = Hub(events.say_event, secrets=secrets)
        own = dataclasses.replace(settings, file=file)
        remember_start(state, own, present, peers)

        async def run() -> None:
            for remark in plays.remarks:
                events.say(remark)
            await prepare(plays, present, settings.id)
            others = Peers(settings.id, peers, str(file), lambda: registry.urls(file))
            agent = Agent(settings.id, log, plays.backend, others, hub, plays.behavior)
            alerts = Alerts(agent, f"http://localhost:{port}/", chosen(settings), secrets)
            await Daemon(agent, listener, port, state, alerts, plans).run(cast)

        asyncio.run(run())
    return 0


def _known_dialog(log: LogFile) -> Dialog | None:
    """The dialog, or None while the file is missing or empty; one that is no dialog, or unsafe, is refused."""
    try:
        return log.read()
    except NotADialog:
        if log.path.read_bytes().strip():
            raise
    except FileNotFoundError:
        if not log.path.parent.is_dir():
            raise BadInput(
                f"the folder {log.path.parent} does not exist", fix="make it, or name a file with --file"
            ) from None
    return None


def _port(settings: Settings, dialog: Dialog | None) -> int:
    """The port: a flag's or variable's, else the header's for this id, else 3001 and up by letter."""
    me = settings.id
    known = dialog.header.agent(me) if dialog else None
    if dialog is not None and known is None:
        ids = ", ".join(agent.id for agent in dialog.header.agents)
        raise BadInput(
            f"the dialog at {settings.file} has no agent {me!r}; its agents are {ids}",
            fix=f"start one of those, or add {me} to **Agents:** in the header",
        )
    usual = known.port if known is not None else default_port(me)
    port = usual if settings.port is None else settings.port
    if port is None:
        raise BadInput(f"which port should {me} use?", fix="name it with --port, or in **Agents:** in the header")
    return port


class Daemon:
    """One agent, its HTTP server, its file watch."""

    def __init__(
        self,
        agent: Agent,
        listener: socket.socket,
        port: int,
        state: StateDir,
        alerts: Alerts,
        plans: Path | None,
    ) -> None:
        """`plans` is where it leaves them, None: nowhere."""
        self.agent = agent
        self.alerts = alerts
        self.port = port
        self.state = state
        self.plans = plans
        self._disowned = ""
        self._over = asyncio.Event()
        app = create_app(agent, port, self.halt, state)
        self.server: Server = make_server(app, listener, on_shutdown=[agent.hub.close])
        self._loop: asyncio.Task[None] | None = None
        self._later: list[asyncio.Future[Any]] = []  # what follows from entries outside of the file
        agent.followers.append(self)

    async def run(self, cast: Cast | None = None) -> None:
        """Serve until a signal or a stop; left behind by the `run` of this cast, until a while after the dialog."""
        running = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` has it
                running.add_signal_handler(number, self._signalled, number)
        agent = self.agent
        serving = asyncio.create_task(self.server.serve())
        watching = asyncio.create_task(watch(agent.file.path, self._touched))
        leaving = asyncio.create_task(self._outlive(cast)) if cast is not None else None
        self._loop = asyncio.create_task(self._supervised())
        agent.hub.publish("ready", id=agent.me, port=self.port, file=str(agent.file.path), backend=agent.backend.name)
        if shared_with_group(agent.file.path):
            agent.hub.publish("warning", text=f"its group may write {agent.file.path}; chmod g-w keeps it out")
        await asyncio.wait({serving, asyncio.ensure_future(self._over.wait())}, return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        await self._end_loop()
        agent.hub.agent(agent.me, "stopped", reason="its daemon ends")
        self.server.leave()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(serving, 2)
        if leaving is not None:
            leaving.cancel()
        while self._later:  # what follows from a late end comes later
            late, self._later = self._later, []
            await asyncio.gather(*late)
        await self.alerts.close()
        await agent.close()
        self._sum_up()

    def _touched(self) -> None:
        """Look at the file where it is not as it was read, or as this daemon left it."""
        known = self.agent.dialog
        if known is None or self.agent.file.quick_read() is not known:
            self.agent.wake()

    async def _outlive(self, cast: Cast) -> None:
        """End when the dialog has been over for a while, with nothing new in it, and nobody is left to end this."""
        run, last, since = int(cast.by.partition(":")[0]), None, 0.0
        while True:
            await asyncio.sleep(min(self.agent.behavior.poll, cast.linger / 4))
            dialog = self.agent.dialog
            if os.getppid() == run or dialog is None or dialog.state.outcome is None or dialog is not last:
                last, since = dialog, time.monotonic()
            elif time.monotonic() - since > cast.linger:
                events.say(f"the dialog is over, and what started this daemon is gone (pid {run})")
                self._over.set()
                return

    def _signalled(self, number: signal.Signals) -> None:
        """End in order, and say what ended this daemon."""
        why = ": its terminal was closed" if number == signal.SIGHUP else ""
        events.say(f"ended by {number.name}{why}")
        self._over.set()

    # -- what follows from entries, outside of the file -----------------------------------------------------------

    def written(self, dialog: Dialog) -> None:
        """This daemon has written an entry."""
        self.alerts.written(dialog)
        state = dialog.state
        if state.outcome is not None:
            self._do_later(self._leave_plan(dialog))
        elif self.plans is not None and state.rejected not in ("", self._disowned):
            self._disowned, file, folder = state.rejected, self.agent.file.path, self.plans
            failed = "the plan of the rejected result stays as it is"
            self._do_later(self._disk(lambda: disown(dialog, file, folder), failed))

    def ended(self, dialog: Dialog) -> None:
        """The dialog has ended, or the person has rejected its result; whoever wrote that."""
        file = self.agent.file.path
        self._do_later(self._disk(lambda: keep_copy(dialog, file, self.state), "the dialog was not archived"))

    def _do_later(self, work: Coroutine[Any, Any, object]) -> None:
        self._later.append(asyncio.ensure_future(work))

    async def _disk(self, work: Callable[[], T], failed: str) -> T | None:
        """What the work gives, done in the disk's thread; None where that failed: `failed` is the warning."""
        try:
            return await self.agent.on_disk(work)
        except (DialogdError, OSError) as error:
            self.agent.hub.publish("warning", text=f"{failed}: {error}")
            return None

    async def _leave_plan(self, dialog: Dialog) -> None:
        """Write the plan of a dialog that this agent's entry ended, unless it is to leave none."""
        if (folder := self.plans) is None:
            return
        file, now = self.agent.file.path, datetime.now(UTC)
        if pair := await self._disk(lambda: keep(dialog, file, folder, now), "no plan was left"):
            events.say(f"plan: {pair[0]}", plan=str(pair[0]))

    async def _supervised(self) -> None:
        """The loop, started again after a bug: one bad moment must not silence an agent."""
        with suppress(DialogdError, OSError):
            await self.agent.look()
        self.agent.peers.tell(self.agent.dialog)  # that this daemon is ready
        while True:
            try:
                await self.agent.run()
                return
            except Exception:  # the supervisor: whatever it was, it is logged with its traceback
                events.log.exception("unexpected error; going on in a second")
                await asyncio.sleep(1)

    async def _end_loop(self) -> None:
        await self.agent.stop()
        if self._loop is not None:
            deadline = time.monotonic() + TELL_WAIT
            while self.agent.call is None and not self._loop.done() and time.monotonic() < deadline:
                await asyncio.wait({self._loop}, timeout=0.02)  # what is in the file is told: peers, plan, alerts
            self._loop.cancel()
            with suppress(asyncio.CancelledError):
                await self._loop

    async def halt(self, wanted: Halt) -> Stopped:
        """End the call and the dialog, archive it, tell the peers once, then end this daemon."""
        agent = self.agent
        self.alerts.patience, agent.file.lock.wait = HALT_WAIT, HALT_WAIT
        await self._end_loop()
        closing = asyncio.ensure_future(self._close(wanted))
        try:
            await asyncio.wait({closing}, timeout=CLOSE_WAIT)
            if wanted.hop == 0:
                await agent.peers.stop(agent.dialog, wanted.reason)
        finally:
            asyncio.get_running_loop().call_later(0.05, self._over.set)
        if closing.done():
            return closing.result()
        self._do_later(_ended(closing))  # this process stays until the disk has answered
        return Stopped(outcome=None, archive=None, note="the disk does not answer; the end is written once it does")

    async def _close(self, wanted: Halt) -> Stopped:
        """End the dialog in the file and copy it; its plan follows."""
        agent, before = self.agent, self.agent.dialog
        try:
            close = carried(lambda: person.stop(agent.file, wanted.reason, secrets=agent.secrets))
            dialog = await agent.on_disk(close)
            copy = await agent.on_disk(lambda: keep_copy(dialog, agent.file.path, self.state))
        except FileNotFoundError:
            return Stopped(outcome=None, archive=None)  # no dialog yet: the daemon stops all the same
        if before is None or before.state.outcome is None:
            self._do_later(self._leave_plan(dialog))
        outcome = dialog.state.outcome
        return Stopped(outcome=outcome.name if outcome else None, archive=str(copy))

    def _sum_up(self) -> None:
        agent, dialog = self.agent, self.agent.dialog
        outcome = dialog.state.outcome if dialog else None
        end = f"; the dialog is over: {outcome.words}" if outcome else ""
        tally, turns = agent.tally, agent.tally.ends["written"]
        events.say(
            f"stopped: {turns} turns written, {tally.thinking:.1f} s thinking, {tally.bill.words}{end}",
            turns=turns,
            usd=tally.bill.known_usd,
        )


async def _ended(closing: asyncio.Future[Stopped]) -> None:
    """Wait until a dialog was closed, or could not be, which is logged."""
    try:
        await closing
    except (DialogdError, OSError) as error:
        events.log.warning("the dialog is still open: %s", error)

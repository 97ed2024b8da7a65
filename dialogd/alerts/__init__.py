"""Alerts: what a daemon does to reach a person who is not looking, each time it has written an entry.

Only the daemon that wrote an entry raises its alert, so there is one, however many daemons run. Nothing here delays a
turn: each channel works through a short queue of its own, and its failure is a warning, once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dialogd.agent.clock import local
from dialogd.alerts.channels import Bell, Channel, Desktop, Webhook, hook, why_no_desktop
from dialogd.alerts.value import Alert, worth
from dialogd.protocol.model import SYSTEM, USER, Entry
from dialogd.protocol.state import Dialog
from dialogd.settings import HOOKS, Settings

if TYPE_CHECKING:
    from dialogd.agent.loop import Agent

PENDING = 16  # alerts that wait for one channel; a newer one pushes the oldest out
END_WAIT = 2.0  # seconds that a daemon which goes waits for the alerts of an end


def chosen(settings: Settings) -> tuple[Channel, ...]:
    """The channels that these settings name and this machine has."""
    found: list[Channel] = [hook(name, target) for name in HOOKS if (target := str(getattr(settings, name)))]
    if settings.desktop == "on" or (settings.desktop == "auto" and not why_no_desktop()[0]):
        found.append(Desktop())
    if settings.bell:
        found.append(Bell())
    return tuple(found)


class Alerts:
    """The alerts of one agent's daemon, whose page is at `url`. A channel that fails is a warning, once."""

    def __init__(self, agent: Agent, url: str, ways: Sequence[Channel], secrets: Sequence[str] = ()) -> None:
        self.me = agent.me
        self.file = agent.file.path
        self.url = url
        self.patience = END_WAIT
        self._secrets = secrets

        def warn(text: str) -> None:
            agent.hub.publish("warning", text=text)

        self._queues = [_Queue(way, warn) for way in ways]
        self._raised = ""

    def written(self, dialog: Dialog) -> None:
        """This daemon has written the dialog's latest entry: raise what it is worth."""
        entry = self._own(dialog)
        if entry is None or entry.chain == self._raised:
            return
        self._raised = entry.chain
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        file, secrets = str(self.file), self._secrets
        for alert in worth(dialog, entry, file=file, url=self.url, at=at, zone=local, secrets=secrets):
            for queue in self._queues:
                queue.put(alert)

    def _own(self, dialog: Dialog) -> Entry | None:
        """The entry that was written: the last one, or what others have written behind it meanwhile."""
        last = dialog.last
        if last is None or last.by in (self.me, SYSTEM):
            return last
        if last.by == USER:
            return None
        return next((entry for entry in reversed(dialog.entries) if entry.by == self.me), None)

    async def close(self) -> None:
        """Wait a short while for the alerts of an end, and give up the rest, with the commands they run."""
        ending = [task for queue in self._queues if (task := queue.last_words()) is not None]
        if ending:
            await asyncio.wait(ending, timeout=self.patience)
        await asyncio.gather(*(queue.close() for queue in self._queues))


class _Queue:
    """The alerts that wait for one channel, brought one after the other."""

    def __init__(self, channel: Channel, warn: Callable[[str], None]) -> None:
        self.channel = channel
        self._warn = warn
        self._waiting: deque[Alert] = deque()  # the first one is on its way
        self._worker: asyncio.Task[None] | None = None
        self._is_failing = self._is_full = False

    def put(self, alert: Alert) -> None:
        """Bring it, if the channel is for it, as soon as those before it are there."""
        if not self.channel.takes(alert):
            return
        if len(self._waiting) >= PENDING:
            del self._waiting[1]
            if not self._is_full:
                self._is_full = True
                self._warn(f"alerts: {self.channel.name} is too slow; some are left out")
        self._waiting.append(alert)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        while self._waiting:
            try:
                await self.channel.deliver(self._waiting[0])
                self._is_failing = False
            except Exception as error:  # a supervisor: whatever a foreign library or program does, dialogs go on
                if not self._is_failing:
                    self._is_failing = True
                    self._warn(f"alerts: {self.channel.name} ({self.channel.target}) {error}")
            self._waiting.popleft()

    def last_words(self) -> asyncio.Task[None] | None:
        """The work that is left where an end is among it; everything else is dropped."""
        if not any(alert.event == "end" for alert in self._waiting):
            return None
        first = self._waiting[0]
        ends = [alert for alert in list(self._waiting)[1:] if alert.event == "end"]
        self._waiting = deque([first, *ends])
        return self._worker

    async def close(self) -> None:
        """Give up what is on its way."""
        if self._worker is not None:
            self._worker.cancel()
            with suppress(asyncio.CancelledError):
                await self._worker
        if isinstance(self.channel, Webhook):
            await self.channel.close()

"""Alerts: what a daemon does to reach a person who is not looking, each time it has written an entry.

Only the daemon that wrote an entry raises its alert, so there is one, however many daemons run. Nothing here delays a
turn: each channel works through a short queue of its own, and its failure is a warning, once.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import shlex
import shutil
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dialogd.backends.command import INSTALL, NO_PROGRAM, clean_environment, last_line
from dialogd.backends.tools import PendingCall
from dialogd.config import HOOKS, Settings
from dialogd.errors import DialogdError
from dialogd.protocol import questions
from dialogd.protocol.model import SYSTEM, USER, Entry
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import Zone, one_line, visible
from dialogd.store.child import Child
from dialogd.store.logfile import wall_time
from dialogd.store.registry import HOOK

if TYPE_CHECKING:
    from dialogd.agent.loop import Agent

PENDING = 16  # alerts that wait for one channel; a newer one pushes the oldest out
END_WAIT = 4.0  # seconds that a daemon which goes waits for the alerts of an end
TEXT_LENGTH, REASON_LENGTH, TOPIC_LENGTH = 500, 300, 200  # characters
COMMAND_SECONDS, DESKTOP_SECONDS = 10.0, 5.0
OUTPUT_CAP = 1024 * 1024  # bytes that a command may print, which nobody reads
# What a command needs to reach the person's screen, beside what every command sees.
SCREEN = ("DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
Event = Literal["question", "stalled", "error", "end", "entry"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `agent` is whom it concerns, `text` what was said, `reason` why it matters; each on one line.

    `url` is the page of the daemon that raised it, `at` wall time in UTC. `by` (an ISO time) and `default` are those of
    a question. `is_main` is False for a second alert of the same entry, such as the failure with which a dialog ended.
    """

    event: Event
    dialog: str
    topic: str
    file: str
    agent: str
    turn: int
    text: str
    reason: str
    url: str
    at: str
    by: str = ""
    default: str = ""
    is_main: bool = True

    @property
    def json(self) -> bytes:
        """What commands are given: one JSON object, ASCII, with a newline."""
        facts = {"v": 1, **asdict(self)}
        del facts["is_main"]
        return json.dumps(facts).encode() + b"\n"


def worth(
    dialog: Dialog, entry: Entry, *, file: str, url: str, at: str, zone: Zone | None = None, secrets: Sequence[str] = ()
) -> list[Alert]:
    """The alerts that `entry`, the latest of `dialog`, is worth, the most pressing first; none for the person's own.

    Deadlines are said by the clock of `zone`.
    """
    if entry.by == USER:
        return []
    state, outcome = dialog.state, dialog.state.outcome
    found: list[tuple[Event, str, str]] = []
    asking, by, default = entry, "", ""
    if outcome is not None and outcome.entry == entry.id:
        found.append(("end", entry.by, f"{outcome.name}: {outcome.reason}" if outcome.reason else outcome.name))
    for who, cause, fix in entry.failures:
        found.append(("error", who, f"{who} failed: {cause}" + (f" ({fix})" if fix else "")))
    found += [("stalled", who, f"{who} gave no answer in time") for who in entry.silent]
    if not found and _waits_for_person(dialog, entry):
        reason = state.questions.text or state.escalation.why or "the next turn is yours"
        own = [question for question in state.questions.open if question.asker == state.questions.asker]
        if own:  # in a round another agent's turn may have come last
            asking = dialog.entry(own[-1].entry) or entry
            reason = _questions(dialog, at, zone, secrets)
            by = next((question.by for question in own if question.by), "")
            default = next((question.default for question in own if question.default), "")
        found.append(("question", state.questions.asker or entry.by, reason))
    marks = " ".join(map(str, asking.marks))
    found = found or [("entry", entry.by, marks)]
    facts: dict[str, Any] = {"file": file, "url": url, "at": at, "by": by, "default": default}
    facts["text"] = asking.body or marks
    return [_alert(dialog, secrets, *one, is_main=place == 0, **facts) for place, one in enumerate(found)]


def _alert(dialog: Dialog, secrets: Sequence[str], event: Event, agent: str, reason: str, **facts: Any) -> Alert:
    """An alert of this dialog; what was written there is one line each, without secrets."""

    def line(text: str, limit: int) -> str:
        return one_line(visible(text), limit, secrets)

    text, default = facts.pop("text"), facts.pop("default", "")
    return Alert(
        event=event,
        dialog=dialog.id,
        topic=line(dialog.header.topic, TOPIC_LENGTH),
        agent=agent,
        turn=dialog.state.number,
        text=line(text, TEXT_LENGTH),
        reason=line(reason, REASON_LENGTH),
        default=line(default, TEXT_LENGTH),
        **facts,
    )


def _waits_for_person(dialog: Dialog, entry: Entry) -> bool:
    """True when the dialog waits for the person since this entry, and not merely because it goes step by step."""
    state = dialog.state
    if set(state.owing) != {USER} or not any(debt.re == entry.id for debt in state.debts.open):
        return False
    return not state.hand.step or bool(state.questions.text) or state.escalation.to == USER


def _questions(dialog: Dialog, at: str, zone: Zone | None, secrets: Sequence[str]) -> str:
    """The open questions with deadline and default; where it is too long, the agents' own words are cut first."""
    asked, parts = dialog.state.questions.open, []
    room = max((REASON_LENGTH + 3) // len(asked) - 3, 30)  # for each, with what stands between them
    for question in asked:
        terms = one_line(questions.terms_in_words(dialog, question, at, zone), room * 2 // 3, secrets)
        said = one_line(visible(question.said), room - len(terms) - 3 if terms else room, secrets)
        parts.append(f"{said} ({terms})" if terms else said)
    return " / ".join(parts)


# -- Ways to reach the person -----------------------------------------------------------------------------------------


class Channel(NamedTuple):
    """One way to reach the person: the setting that names it, where it leads, and how an alert is brought.

    `deliver` takes some seconds at most. It raises `DialogdError` when that failed.
    """

    name: str
    target: str
    deliver: Callable[[Alert], Awaitable[None]]

    def wants(self, alert: Alert) -> bool:
        """True for what it is named for; `on_event` takes each entry once, bell and desktop what needs the person."""
        if self.name in HOOKS and self.name != "on_event":
            return self.name == f"on_{alert.event}"
        return alert.is_main and (self.name == "on_event" or alert.event != "entry")


def chosen(settings: Settings) -> list[Channel]:
    """The channels that these settings name and this machine has."""
    found = [command(name, words) for name in HOOKS if (words := str(getattr(settings, name)))]
    if settings.desktop == "on" or (settings.desktop == "auto" and not why_no_desktop()[0]):
        found.append(Channel("desktop", "the desktop", show))
    if settings.bell:
        found.append(Channel("bell", "the daemon's terminal", ring))
    return found


def command(name: str, line: str) -> Channel:
    """Runs a command of the person's, without a shell; the alert comes as JSON on stdin.

    It sees `PATH`, `HOME` and the like, what leads to the screen, and no key. After `COMMAND_SECONDS` it is ended with
    all that it started, and so is what it leaves behind when it ends by itself.
    """
    target, *words = shlex.split(line)

    async def run(alert: Alert) -> None:
        environment = clean_environment(os.environ) | {key: os.environ[key] for key in SCREEN if key in os.environ}
        environment[HOOK] = name
        found = shutil.which(target, path=environment.get("PATH", os.defpath))
        if found is None:
            raise DialogdError(f"command not found: {target!r}", fix=INSTALL)
        child, size = Child([found, *words], alert.json, environment, None), 0
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                while size <= OUTPUT_CAP and (chunk := await child.read()):
                    size += len(chunk)
        except TimeoutError:
            why = f"took more than {COMMAND_SECONDS:g} s and was ended"
            raise DialogdError(why, fix="make it hand on what takes longer") from None
        finally:
            code = await child.end()
        child.check(target, NO_PROGRAM)
        if code != 0:
            why = ": ".join(filter(None, (f"exited {code}", last_line(child.stderr))))
            raise DialogdError(why, fix="run it by hand with JSON on stdin")

    return Channel(name, target, run)


async def ring(_alert: Alert) -> None:
    """Ring in the daemon's own terminal, where it has one."""
    if sys.stdout.isatty():
        await asyncio.to_thread(os.write, sys.stdout.fileno(), b"\a")  # a terminal may be held by Ctrl-S


async def show(alert: Alert) -> None:
    """Show a notification on the desktop. Raises `DialogdError` when no desktop takes it."""
    words = {"question": "your turn", "stalled": "stalled", "error": "an agent failed", "end": "ended"}
    title = f"dialogd: {words.get(alert.event, 'news')}" + (f" ({alert.topic})" if alert.topic else "")
    sent: list[bool] = []
    try:
        async with asyncio.timeout(DESKTOP_SECONDS):
            notifier = await asyncio.to_thread(_notifier)
            await notifier.send(
                title=_without_markup(title),
                message=_without_markup(alert.reason or alert.text),
                on_dispatched=lambda: sent.append(True),
            )
    except TimeoutError:
        _notifier.cache_clear()
        raise DialogdError(f"no answer within {DESKTOP_SECONDS:g} s", fix="set `desktop = off`") from None
    if not sent:
        _notifier.cache_clear()  # a session bus that came back wants a new connection
        raise DialogdError("no desktop took the notification", fix="see that one runs, or set `desktop = off`")


@cache
def _notifier() -> Any:
    """The library's notifier, which would log each failure with a traceback; loading it takes a while."""
    from desktop_notifier import DesktopNotifier

    logging.getLogger("desktop_notifier").setLevel(logging.CRITICAL)
    return DesktopNotifier(app_name="dialogd")


def _without_markup(text: str) -> str:
    """The text with nothing in it that a notification server could take for markup, or for a link."""
    return text.replace("&", "\uff06").replace("<", "\u2039").replace(">", "\u203a")


def why_no_desktop() -> tuple[str, str]:
    """Why no notification can be shown on this machine, and what helps; two empty texts when one can."""
    if importlib.util.find_spec("desktop_notifier") is None:
        return "the desktop-notifier library is not installed", "pip install 'dialogd[desktop]'"
    if sys.platform != "darwin" and not os.environ.get("DBUS_SESSION_BUS_ADDRESS"):
        return "there is no session bus (DBUS_SESSION_BUS_ADDRESS)", "start the daemon in a desktop session"
    return "", ""


# -- One daemon's alerts ----------------------------------------------------------------------------------------------


class Alerts:
    """The alerts of one agent's daemon, whose page is at `url`. A channel that fails is a warning, once."""

    def __init__(self, agent: Agent, url: str, channels: Sequence[Channel], secrets: Sequence[str] = ()) -> None:
        self.url = url
        self.patience = END_WAIT
        self._agent, self._secrets = agent, secrets
        self._queues = [_Queue(channel, lambda text: agent.hub.publish("warning", text=text)) for channel in channels]
        self._raised = ""
        agent.approvals.followers.append(self.asked)

    def written(self, dialog: Dialog) -> None:
        """This daemon has written the dialog's latest entry: raise what it is worth."""
        me, entry = self._agent.me, dialog.last
        if entry is not None and entry.by not in (me, SYSTEM, USER):  # others have written behind it meanwhile
            entry = next((each for each in reversed(dialog.entries) if each.by == me), None)
        if not self._queues or entry is None or entry.chain == self._raised:
            return
        self._raised, file, at = entry.chain, str(self._agent.file.path), wall_time()
        for alert in worth(
            dialog, entry, file=file, url=self.url, at=at, zone=datetime.astimezone, secrets=self._secrets
        ):
            self._raise(alert)

    def asked(self, call: PendingCall) -> None:
        """This daemon's agent wants to call a tool: the person is asked, in time."""
        dialog, left = self._agent.dialog, call.data["seconds"]
        if dialog is None:
            return
        by = (datetime.now(UTC) + timedelta(seconds=left)).astimezone().isoformat(timespec="seconds")
        why = f"may it call {call.tool}? dialogd approve {call.id}"
        where = {"file": str(self._agent.file.path), "url": self.url, "at": wall_time(), "by": by}
        self._raise(_alert(dialog, self._secrets, "question", self._agent.me, why, text=call.arguments, **where))

    def _raise(self, alert: Alert) -> None:
        for queue in self._queues:
            queue.put(alert)

    async def close(self) -> None:
        """Wait a short while for the alerts of an end, and give up the rest, with the commands they run."""
        if ending := [work for queue in self._queues if (work := queue.keep_ends()) is not None]:
            await asyncio.wait(ending, timeout=self.patience)
        for queue in self._queues:
            if queue.work is not None:
                queue.work.cancel()
                with suppress(asyncio.CancelledError):
                    await queue.work


class _Queue:
    """The alerts that wait for one channel, brought one after the other."""

    def __init__(self, channel: Channel, warn: Callable[[str], None]) -> None:
        self.channel = channel
        self.work: asyncio.Task[None] | None = None
        self._warn = warn
        self._waiting: deque[Alert] = deque()  # the first one is on its way
        self._is_failing = self._is_full = False

    def put(self, alert: Alert) -> None:
        """Bring it, if the channel is for it, as soon as those before it are there."""
        if not self.channel.wants(alert):
            return
        if len(self._waiting) >= PENDING:
            del self._waiting[1]
            if not self._is_full:
                self._is_full = True
                self._warn(f"alerts: {self.channel.name} is too slow; some are left out")
        self._waiting.append(alert)
        if self.work is None or self.work.done():
            self.work = asyncio.ensure_future(self._bring())

    async def _bring(self) -> None:
        while self._waiting:
            try:
                await self.channel.deliver(self._waiting[0])
                self._is_failing = False
            except Exception as error:  # a supervisor: whatever a foreign library or program does, dialogs go on
                if not self._is_failing:
                    self._is_failing = True
                    self._warn(f"alerts: {self.channel.name} ({self.channel.target}) {error}")
            self._waiting.popleft()

    def keep_ends(self) -> asyncio.Task[None] | None:
        """Drop all that wait but the alerts of an end; the work that is left, None without one."""
        if not any(alert.event == "end" for alert in self._waiting):
            return None
        first, *rest = self._waiting
        self._waiting = deque([first, *(alert for alert in rest if alert.event == "end")])
        return self.work

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import urlsplit

from dialogd import person
from dialogd.agent.clock import local
from dialogd.backends.command import clean_environment, last_line
from dialogd.backends.keys import bare
from dialogd.backends.tools import PendingCall
from dialogd.config import HOOKS, Settings, is_url
from dialogd.errors import DialogdError
from dialogd.protocol import questions
from dialogd.protocol.model import SYSTEM, USER, Entry
from dialogd.protocol.state import Dialog, Question
from dialogd.protocol.text import one_line, visible
from dialogd.protocol.units import Zone
from dialogd.store.child import Child
from dialogd.store.origin import HOOK

if TYPE_CHECKING:
    import httpx2

    from dialogd.agent.loop import Agent


PENDING = 16  # alerts that wait for one channel; a newer one pushes the oldest out
END_WAIT = 4.0  # seconds that a daemon which goes waits for the alerts of an end


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
        self._agent = agent
        agent.desk.followers.append(self.asked)

    def written(self, dialog: Dialog) -> None:
        """This daemon has written the dialog's latest entry: raise what it is worth."""
        entry = self._own(dialog) if self._queues else None
        if entry is None or entry.chain == self._raised:
            return
        self._raised = entry.chain
        at = person.now()
        file, secrets = str(self.file), self._secrets
        for alert in worth(dialog, entry, file=file, url=self.url, at=at, zone=local, secrets=secrets):
            self._raise(alert)

    def asked(self, call: PendingCall) -> None:
        """This daemon's agent wants to call a tool: the person is asked, in time."""
        dialog, left = self._agent.dialog, call.facts["seconds"]
        if dialog is None:
            return
        by = (datetime.now(UTC) + timedelta(seconds=left)).astimezone().isoformat(timespec="seconds")
        alert = Alert(
            event="question",
            dialog=dialog.id,
            topic=one_line(visible(dialog.header.topic), TOPIC_LENGTH, self._secrets),
            file=str(self.file),
            agent=self.me,
            turn=dialog.state.number,
            text=one_line(visible(call.arguments), TEXT_LENGTH, self._secrets),
            reason=one_line(
                visible(f"may it call {call.tool}? dialogd approve {call.id}"), REASON_LENGTH, self._secrets
            ),
            url=self.url,
            at=person.now(),
            by=by,
        )
        self._raise(alert)

    def _raise(self, alert: Alert) -> None:
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
        if not wants(self.channel, alert):
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


# -- What an entry is worth telling a person who is not looking. Pure -------------------------------------------------

Event = Literal["question", "stalled", "error", "end", "entry"]

VERSION = 1
TEXT_LENGTH = 500  # characters of what was said
REASON_LENGTH = 300
TOPIC_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. `agent` is whom it concerns, `text` what was said, `reason` why it matters; each on one line.

    `url` is the page of the daemon that raised it, `at` wall time in UTC. `is_main` is False for a second alert of the
    same entry, such as the error of an agent with which the dialog ended. `by` (an ISO time) and `default` are those of
    a question, "" without.
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
    is_main: bool = True
    by: str = ""
    default: str = ""

    @property
    def json(self) -> bytes:
        """What hooks are given: one JSON object, ASCII, with a newline."""
        facts = {"v": VERSION, **asdict(self)}
        del facts["is_main"]
        return json.dumps(facts).encode() + b"\n"

    @property
    def title(self) -> str:
        """The alert in a few words."""
        words = {"question": "your turn", "stalled": "stalled", "error": "an agent failed", "end": "ended"}
        return f"dialogd: {words.get(self.event, 'news')}" + (f" ({self.topic})" if self.topic else "")


def worth(
    dialog: Dialog,
    entry: Entry,
    *,
    file: str,
    url: str,
    at: str,
    zone: Zone | None = None,
    secrets: Sequence[str] = (),
) -> tuple[Alert, ...]:
    """The alerts that `entry`, the latest of `dialog`, is worth, the most pressing first; none for the person's own.

    Deadlines are told by the clock of `zone`.
    """
    if entry.by == USER:
        return ()
    found: list[tuple[Event, str, str]] = [*_pressing(dialog, entry)] or [("entry", entry.by, _marks(entry))]
    alerts = (
        Alert(
            event=event,
            dialog=dialog.id,
            topic=one_line(visible(dialog.header.topic), TOPIC_LENGTH, secrets),
            file=file,
            agent=agent,
            turn=dialog.state.number,
            text=_said(entry, secrets),
            reason=one_line(visible(reason), REASON_LENGTH, secrets),
            url=url,
            at=at,
            is_main=place == 0,
        )
        for place, (event, agent, reason) in enumerate(found)
    )
    return tuple(_asking(dialog, alert, zone, secrets) if alert.event == "question" else alert for alert in alerts)


def _asking(dialog: Dialog, alert: Alert, zone: Zone | None, secrets: Sequence[str]) -> Alert:
    """The alert of a question, with the words of the entry that asks: in a round another may have come last."""
    questions = dialog.state.questions.open
    own = [question for question in questions if question.asker == dialog.state.questions.asker]
    entry = dialog.entry(own[-1].entry) if own else None
    if entry is None:
        return alert
    room = max((REASON_LENGTH + 3) // len(questions) - 3, 30)  # for each, with what stands between them
    reason = " / ".join(_question(dialog, each, alert.at, zone, room, secrets) for each in questions)
    return replace(
        alert,
        text=_said(entry, secrets),
        reason=one_line(visible(reason), REASON_LENGTH),
        by=next((question.by for question in own if question.by), ""),
        default=one_line(visible(next((each.default for each in own if each.default), "")), TEXT_LENGTH, secrets),
    )


def _question(dialog: Dialog, question: Question, at: str, zone: Zone | None, room: int, secrets: Sequence[str]) -> str:
    """A question with its deadline and default, in so many characters: its own words are the first to be cut."""
    terms = one_line(questions.terms_in_words(dialog, question, at, zone), room * 2 // 3, secrets)
    said = one_line(visible(question.said), room - len(terms) - 3 if terms else room, secrets)
    return f"{said} ({terms})" if terms else said


def _marks(entry: Entry) -> str:
    return " ".join(map(str, entry.marks))


def _said(entry: Entry, secrets: Sequence[str]) -> str:
    return one_line(visible(entry.body or _marks(entry)), TEXT_LENGTH, secrets)


def _pressing(dialog: Dialog, entry: Entry) -> Iterator[tuple[Event, str, str]]:
    """Event, agent and reason of what should reach the person: an end, a failure, a stall, a question."""
    outcome = dialog.state.outcome
    if outcome is not None and outcome.entry == entry.id:
        yield "end", entry.by, f"{outcome.name}: {outcome.reason}" if outcome.reason else outcome.name
    is_told = False
    for mark in entry.marks:
        if mark.name == "AGENT_ERROR":
            agent, cause, fix = (*mark.fields, "", "")[:3]
            yield "error", agent, f"{agent} failed: {cause}" + (f" ({fix})" if fix else "")
            is_told = True
        elif mark.name == "STALLED":
            yield "stalled", mark.fields[0], f"{mark.fields[0]} gave no answer in time"
            is_told = True
    if outcome is None and not is_told and _asks(dialog, entry):
        state = dialog.state
        yield (
            "question",
            state.questions.asker or entry.by,
            state.questions.text or state.escalation.why or "the next turn is yours",
        )


def _asks(dialog: Dialog, entry: Entry) -> bool:
    """True when the dialog waits for the person since this entry, and not merely because it goes step by step."""
    state = dialog.state
    if set(state.owing) != {USER} or not any(debt.re == entry.id for debt in state.debts.open):
        return False
    return not state.hand.step or bool(state.questions.text) or state.escalation.to == USER


# -- Ways to reach the person -----------------------------------------------------------------------------------------

COMMAND_SECONDS = 10.0
WEBHOOK_SECONDS = 5.0
DESKTOP_SECONDS = 5.0
OUTPUT_CAP = 1024 * 1024  # bytes that a command may print, which nobody reads

# What a command needs to reach the person's screen, beside what every command sees.
SCREEN = frozenset({"DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"})


class Channel(Protocol):
    """One way to reach the person. `name` is its setting, `target` where it leads, without secrets."""

    name: str
    target: str

    async def deliver(self, alert: Alert) -> None:
        """Bring it, within seconds. Raises `DialogdError` when that failed."""


def hook(name: str, target: str) -> Channel:
    """The hook that the setting `name` means: a URL is posted to, anything else is a command."""
    return Webhook(name, target) if is_url(target) else CommandAlert(name, target)


def wants(channel: Channel, alert: Alert) -> bool:
    """True for an alert that this channel is for.

    The hook `on_event` takes every entry, once; the other hooks what they are named for; what shows or rings what
    should reach the person, each entry once.
    """
    if channel.name.startswith("on_") and channel.name != "on_event":
        return channel.name == f"on_{alert.event}"
    return alert.is_main and (channel.name == "on_event" or alert.event != "entry")


class CommandAlert:
    """Runs a command of the person's, without a shell; the alert comes as JSON on stdin.

    It sees `PATH`, `HOME` and the like, what leads to the screen, and no key. After `COMMAND_SECONDS` it is ended with
    all that it started, and so is what it leaves behind when it ends by itself.
    """

    def __init__(self, name: str, command: str) -> None:
        self.name = name
        self._words = shlex.split(command)
        self.target = self._words[0]

    async def deliver(self, alert: Alert) -> None:
        """Run it once. Raises `DialogdError` when it is not there, fails or takes too long."""
        child = self._start(alert)
        is_late, size = False, 0
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                while size <= OUTPUT_CAP and (chunk := await child.read()):
                    size += len(chunk)
        except TimeoutError:
            is_late = True
        finally:
            code = await child.end()
        if is_late:
            raise DialogdError(
                f"took more than {COMMAND_SECONDS:g} s and was ended", fix="make it hand on what takes longer"
            )
        if child.errno is not None:
            raise DialogdError(
                f"cannot run {self.target!r}: {os.strerror(child.errno)}",
                fix="it must be a program, or a script whose first line names its interpreter (#!)",
            )
        if code != 0:
            said = last_line(child.stderr)
            raise DialogdError(
                f"exited {code}" + (f": {said}" if said else ""), fix="run it by hand with JSON on stdin"
            )

    def _start(self, alert: Alert) -> Child:
        environment = clean_environment(os.environ) | {key: os.environ[key] for key in SCREEN if key in os.environ}
        environment[HOOK] = self.name
        found = shutil.which(self.target, path=environment.get("PATH", os.defpath))
        if found is None:
            raise DialogdError(
                f"command not found: {self.target!r}",
                fix="install it, make it executable (chmod +x), or give its full path; no shell is used",
            )
        try:
            return Child([str(Path(found).absolute()), *self._words[1:]], alert.json, environment, None)
        except OSError as error:
            raise DialogdError(f"no process could be started: {error.strerror}", fix="look at `ulimit -a`") from error


class Webhook:
    """Posts the alert as JSON. Redirects are not followed; loopback addresses are reached without a proxy."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.target = bare(url)  # the path of a webhook is often its secret
        self._url = url
        self._http: httpx2.AsyncClient | None = None

    async def deliver(self, alert: Alert) -> None:
        """Post it once. Raises `DialogdError` without an answer of 2xx in `WEBHOOK_SECONDS`."""
        if self._http is None:
            self._http = await asyncio.to_thread(self._client)  # loading the library and certificates takes a while
        import httpx2

        kind = {"Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(WEBHOOK_SECONDS),
                self._http.stream("POST", self._url, content=alert.json, headers=kind) as answer,
            ):
                status = answer.status_code
        except TimeoutError:
            raise DialogdError(f"no answer within {WEBHOOK_SECONDS:g} s", fix="see whether it runs") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise DialogdError(f"cannot be reached: {type(error).__name__}", fix="see whether it runs") from None
        if not 200 <= status < 300:
            more = "; redirects are not followed" if 300 <= status < 400 else ""
            raise DialogdError(f"answered {status}{more}", fix="give the address that takes a POST of JSON")

    def _client(self) -> httpx2.AsyncClient:
        import httpx2

        is_near = urlsplit(self._url).hostname in ("localhost", "127.0.0.1", "::1")
        return httpx2.AsyncClient(timeout=WEBHOOK_SECONDS, trust_env=not is_near, follow_redirects=False)

    async def close(self) -> None:
        """Close its connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None


class Bell:
    """Rings in the daemon's own terminal."""

    name, target = "bell", "the daemon's terminal"

    async def deliver(self, alert: Alert) -> None:
        """Ring, where stdout is a terminal."""
        if sys.stdout.isatty():
            await asyncio.to_thread(os.write, sys.stdout.fileno(), b"\a")  # a terminal may be held by Ctrl-S


class Desktop:
    """Shows a notification, by the `desktop-notifier` library."""

    name, target = "desktop", "the desktop"

    def __init__(self) -> None:
        self._notifier: Any = None

    async def deliver(self, alert: Alert) -> None:
        """Show it. Raises `DialogdError` when no desktop takes it."""
        sent: list[bool] = []
        try:
            async with asyncio.timeout(DESKTOP_SECONDS):
                if self._notifier is None:
                    self._notifier = await asyncio.to_thread(_notifier)
                await self._notifier.send(
                    title=_unmarked(alert.title),
                    message=_unmarked(alert.reason or alert.text),
                    on_dispatched=lambda: sent.append(True),
                )
        except TimeoutError:
            self._notifier = None
            raise DialogdError(f"no answer within {DESKTOP_SECONDS:g} s", fix="set `desktop = off`") from None
        if not sent:
            self._notifier = None  # a session bus that came back wants a new connection
            raise DialogdError("no desktop took the notification", fix="see that one runs, or set `desktop = off`")


def _notifier() -> Any:
    """The library's notifier; it logs failures with tracebacks, which are told in one line here."""
    from desktop_notifier import DesktopNotifier

    logging.getLogger("desktop_notifier").setLevel(logging.CRITICAL)
    return DesktopNotifier(app_name="dialogd")


def _unmarked(text: str) -> str:
    """The text with nothing in it that a notification server could take for markup, or for a link."""
    return text.replace("&", "\uff06").replace("<", "\u2039").replace(">", "\u203a")


def why_no_desktop() -> tuple[str, str]:
    """Why no notification can be shown on this machine, and what helps; two empty texts when one can."""
    if importlib.util.find_spec("desktop_notifier") is None:
        return "the desktop-notifier library is not installed", "pip install 'dialogd[desktop]'"
    if sys.platform != "darwin" and not os.environ.get("DBUS_SESSION_BUS_ADDRESS"):
        return "there is no session bus (DBUS_SESSION_BUS_ADDRESS)", "start the daemon in a desktop session"
    return "", ""

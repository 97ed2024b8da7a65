"""Ways to reach the person: the desktop, the bell, a command of theirs, a webhook. Each takes a bounded time."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from dialogd.alerts.value import Alert
from dialogd.backends.child import Child
from dialogd.backends.command import clean_environment, last_line
from dialogd.errors import DialogdError
from dialogd.keys import bare

if TYPE_CHECKING:
    import httpx2

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

    def takes(self, alert: Alert) -> bool:
        """True for an alert that this channel is for."""

    async def deliver(self, alert: Alert) -> None:
        """Bring it, within seconds. Raises `DialogdError` when that failed."""


def hook(name: str, target: str) -> Channel:
    """The hook that the setting `name` means: a URL is posted to, anything else is a command."""
    return Webhook(name, target) if is_url(target) else Command(name, target)


def is_url(target: str) -> bool:
    """True for what is an address, and not a command."""
    return target.lower().startswith(("http://", "https://"))


def _is_for(name: str, alert: Alert) -> bool:
    """`on_event` takes every entry once; the others what they are named for."""
    return alert.is_main if name == "on_event" else name == f"on_{alert.event}"


class Command:
    """Runs a command of the person's, without a shell; the alert comes as JSON on stdin.

    It sees `PATH`, `HOME` and the like, what leads to the screen, and no key. After `COMMAND_SECONDS` it is ended with
    all that it started, and so is what it leaves behind when it ends by itself.
    """

    def __init__(self, name: str, command: str) -> None:
        self.name = name
        self._words = shlex.split(command)
        self.target = self._words[0]

    def takes(self, alert: Alert) -> bool:
        """What the setting is named for."""
        return _is_for(self.name, alert)

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
        self._judge(child, code, is_late=is_late)

    def _start(self, alert: Alert) -> Child:
        environment = _environment(os.environ)
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

    def _judge(self, child: Child, code: int, *, is_late: bool) -> None:
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


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What a hook's command sees of the daemon's environment."""
    return clean_environment(environment) | {key: environment[key] for key in SCREEN if key in environment}


class Webhook:
    """Posts the alert as JSON. Redirects are not followed; loopback addresses are reached without a proxy."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.target = bare(url)  # the path of a webhook is often its secret
        self._url = url
        self._http: httpx2.AsyncClient | None = None

    def takes(self, alert: Alert) -> bool:
        """What the setting is named for."""
        return _is_for(self.name, alert)

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

    def takes(self, alert: Alert) -> bool:
        """What should reach the person, each entry once."""
        return alert.is_main and alert.event != "entry"

    async def deliver(self, alert: Alert) -> None:
        """Ring, where stdout is a terminal."""
        if sys.stdout.isatty():
            await asyncio.to_thread(os.write, sys.stdout.fileno(), b"\a")  # a terminal may be held by Ctrl-S


class Desktop:
    """Shows a notification, by the `desktop-notifier` library."""

    name, target = "desktop", "the desktop"

    def __init__(self) -> None:
        self._notifier: Any = None

    def takes(self, alert: Alert) -> bool:
        """What should reach the person, each entry once."""
        return alert.is_main and alert.event != "entry"

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

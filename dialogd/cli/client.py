"""How the command line talks to daemons: which ones run at a file, and short questions over loopback."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from dialogd.config import Settings
from dialogd.errors import NotRunning, Refused
from dialogd.protocol.model import USER
from dialogd.store.folders import StateDir
from dialogd.store.registry import Registry, Running

T = TypeVar("T")

NOTIFY_SECONDS = 1.0  # a daemon answers in some milliseconds, where the machine is not busy
HEALTH_SECONDS = 1.5
LARGEST_ANSWER = 1024 * 1024


def daemons(settings: Settings, file: Path | None = None) -> tuple[Running, ...]:
    """This user's running daemons, by file and id: of one file, or all."""
    running = tuple(sorted(Registry(StateDir(settings.state_dir)).running(), key=lambda d: (d.file, d.id)))
    if file is None:
        return running
    return tuple(daemon for daemon in running if _real(Path(daemon.file)) == _real(file))


def _real(file: Path) -> Path:
    """One name per file, whatever way led to its folder; the file itself is never followed."""
    return file.parent.resolve() / file.name


def ask(
    port: int, method: str, path: str, body: Mapping[str, object] | None = None, *, seconds: float
) -> tuple[int, dict[str, Any]] | None:
    """Status and JSON of one request to a daemon, None without an answer in `seconds`. Knows no proxies."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
        response = connection.getresponse()
        answer = json.loads(response.read(LARGEST_ANSWER) or b"{}")
        return response.status, answer if isinstance(answer, dict) else {}
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def health(daemon: Running) -> dict[str, Any] | None:
    """What a daemon says about itself; None when it does not answer, or somebody else does."""
    answer = ask(daemon.port, "GET", "/health", seconds=HEALTH_SECONDS)
    if answer is None or answer[0] != 200 or answer[1].get("pid") != daemon.pid:
        return None
    return answer[1]


def healths(running: Iterable[Running]) -> dict[Running, dict[str, Any] | None]:
    """What each of these daemons says about itself, asked all at once."""
    asked = list(running)
    return dict(zip(asked, in_parallel(health, asked), strict=True))


def signalled(daemon: Running, number: signal.Signals) -> None:
    """Signal the daemon, unless its pid belongs to another process by now."""
    if daemon.is_alive():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(daemon.pid, number)


def gone(daemon: Running, deadline: float) -> bool:
    """True once the process has ended; looks until `deadline`."""
    while daemon.is_alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def accepted(daemon: Running, answer: tuple[int, dict[str, Any]] | None, *, fix: str, retry: str) -> dict[str, Any]:
    """What a daemon answered. Raises `Refused` with its reason, `NotRunning` without an answer.

    `fix` is said with the first where the daemon names none, `retry` with the second.
    """
    if answer is None:
        raise NotRunning(f"the daemon of {daemon.id} does not answer", fix=retry)
    status, found = answer
    if status >= 400:
        why = str(found.get("detail") or f"the daemon of {daemon.id} answered {status}")
        raise Refused(why, fix=str(found.get("fix") or fix))
    return found


def notify(running: Iterable[Running]) -> tuple[str, ...]:
    """Tell daemons to look at the file; gives the ids of those that answered. Best effort: they watch it anyway."""

    def tell(daemon: Running) -> str:
        answer = ask(daemon.port, "POST", "/notify", {"from": USER, "file": daemon.file}, seconds=NOTIFY_SECONDS)
        return daemon.id if answer is not None and answer[0] < 400 else ""

    return tuple(filter(None, in_parallel(tell, running)))


def in_parallel(work: Callable[[Running], T], running: Iterable[Running]) -> list[T]:
    """`work` on every daemon at once; results in their order."""
    items = list(running)
    if len(items) < 2:
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(items), 16)) as pool:
        return list(pool.map(work, items))

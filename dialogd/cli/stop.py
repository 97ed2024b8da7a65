"""`dialogd stop`: end dialogs and their daemons, also where none runs or one hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dialogd import person
from dialogd.cli import options
from dialogd.cli.client import ask, daemons, in_parallel
from dialogd.cli.plan import leave
from dialogd.cli.terminal import plain, remark, show
from dialogd.errors import DialogdError, NotRunning
from dialogd.memory import keep
from dialogd.registry import Running
from dialogd.settings import Settings
from dialogd.state import StateDir

PATIENCE = 1.5  # seconds that a daemon has to end before it is killed
LAST_WAIT = 2.0  # seconds that the system has to take a killed process away


def stop(file: options.FileOption = None) -> None:
    """Halt everything: every daemon of yours and its dialog. With --file only that dialog. The files stay.

    Dialogs are closed with [STOPPED] and copied to the archive. Exit code 3 when there was nothing to stop.
    """
    settings = options.settings_for(file)
    running = daemons(settings, settings.file if file is not None else None)
    ends = in_parallel(end_daemon, running)
    for daemon, how in zip(running, ends, strict=True):
        show(plain(f"{daemon.id} (pid {daemon.pid}, port {daemon.port}) {how}"))
    files = dict.fromkeys([settings.file, *(Path(daemon.file) for daemon in running)])
    served = {Path(daemon.file): daemon.plans for daemon in running}
    closed = [_close(settings, path, served) for path in files]
    if not running and not any(closed):
        raise NotRunning(
            f"nothing to stop: no daemon runs, and {settings.file} holds no open dialog",
            fix="name another file with --file; or begin a dialog: dialogd run TOPIC",
        )


def end_daemon(daemon: Running) -> str:
    """Ask a daemon to stop, and see to it that it does; says how it went."""
    deadline = time.monotonic() + PATIENCE
    wanted = {"hop": 0, "reason": "dialogd stop", "file": daemon.file}
    answer = ask(daemon.port, "POST", "/stop", wanted, seconds=PATIENCE)
    if answer is None or answer[0] >= 400:
        _signal(daemon, signal.SIGTERM)
    if _gone(daemon, deadline):
        return "stopped"
    _signal(daemon, signal.SIGKILL)
    if _gone(daemon, time.monotonic() + LAST_WAIT):
        return "did not answer and was killed"
    return "could not be ended; look at it with ps"


def _gone(daemon: Running, deadline: float) -> bool:
    """True once the process has ended; looks until `deadline`."""
    while daemon.is_alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _signal(daemon: Running, number: signal.Signals) -> None:
    """Signal the daemon, unless its pid belongs to another process by now."""
    if daemon.is_alive():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(daemon.pid, number)


def _close(settings: Settings, file: Path, served: Mapping[Path, str]) -> bool:
    """Close the dialog of that file and archive it; False when there is none, or it had ended with nobody there.

    `served` are the files that had daemons, each with the folder for its plan: theirs is the place, too.
    """
    log = options.log_of(options.settings_for(str(file)))
    try:
        before = log.read()
        if before.state.outcome is not None and file not in served:
            return False
        dialog = person.stop(log, "dialogd stop")
        copy = keep(dialog, file, StateDir(settings.state_dir))
    except FileNotFoundError:
        return False
    except DialogdError as error:
        remark(plain(f"note: {file} is left as it is: {error}"))
        return False
    name = dialog.state.outcome.name if dialog.state.outcome else "open"
    show(plain(f"{file} [{name}], copied to {copy}"))
    plan = settings.plan if file not in served else Path(served[file]) if served[file] else False
    if name == "STOPPED" and (page := leave(replace(settings, file=file, plan=plan), dialog)) is not None:
        show(plain(f"plan {page}"))
    return True

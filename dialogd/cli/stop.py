"""`dialogd stop`: end dialogs and their daemons, also where none runs or one hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import typer

from dialogd import person
from dialogd.cli import options
from dialogd.cli.client import ask, daemons, in_parallel
from dialogd.cli.outcome import leave_plan
from dialogd.cli.terminal import plain, remark, show
from dialogd.config import Settings
from dialogd.errors import DialogdError, NotRunning
from dialogd.memory import keep
from dialogd.protocol.state import Dialog
from dialogd.store.folders import StateDir
from dialogd.store.logfile import LogFile
from dialogd.store.registry import Running
from dialogd.views.plan import has_spoken

PATIENCE = 1.5  # seconds until a daemon that does not end is killed
LOCK_WAIT = 0.3  # seconds for which a stop waits for the lock of a dialog, which is held for milliseconds
LAST_WAIT = 2.0  # seconds that the system has to take a killed process away


def stop(file: options.FileOption = None) -> None:
    """Stop everything: all your daemons and their dialogs. With --file only that dialog. The files stay.

    Dialogs are closed with [STOPPED] and copied to the archive; a stop that was killed before that is finished. Exit
    code 3 when there was nothing to stop, 1 when a dialog is open still, or was not kept.
    """
    settings = options.settings_for(file)
    running = daemons(settings, settings.file if file is not None else None)
    ends = in_parallel(end_daemon, running)
    for daemon, how in zip(running, ends, strict=True):
        show(plain(f"{daemon.id} (pid {daemon.pid}, port {daemon.port}) {how}"))
    files = dict.fromkeys([settings.file, *(Path(daemon.file) for daemon in running)])
    served = {Path(daemon.file): daemon.plans for daemon in running}
    closed = [_close(settings, path, served) for path in files]
    if False in closed:
        raise typer.Exit(1)
    if not running and not any(closed):
        raise NotRunning(
            f"nothing to stop: no daemon runs, and {settings.file} holds no open dialog",
            fix="name another file with --file; or begin a dialog: dialogd run TOPIC",
        )


def end_daemon(daemon: Running) -> str:
    """Ask a daemon to stop, kill it if it does not; returns how it went."""
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


def _close(settings: Settings, file: Path, served: Mapping[Path, str]) -> bool | None:
    """Close the dialog of that file and archive it; True when done, also on behalf of an earlier stop that was killed.

    None when there was none open; False, with a message, when it is still open or was not archived.
    `served` are the files that had daemons, each with the folder for its plan.
    """
    try:
        log = options.log_of(options.settings_for(str(file)))
        before = log.read()
        if before.state.outcome is not None and file not in served and not person.is_unfinished(log, before):
            return None
    except FileNotFoundError:
        return None
    except DialogdError as error:
        remark(plain(f"note: {file} is left as it is: {error}"))
        return None
    log.lock.wait = LOCK_WAIT
    try:
        dialog = person.stop(log, "dialogd stop")
    except DialogdError as error:
        remark(plain(f"{file} is still open: {error}; {error.fix}; then say `dialogd stop` again"))
        return False
    return _keep(settings, log, dialog, served)


def _keep(settings: Settings, log: LogFile, dialog: Dialog, served: Mapping[Path, str]) -> bool:
    """Archive a closed dialog and write its plan; False, with a message, where that failed."""
    file, name = log.path, dialog.state.outcome.name if dialog.state.outcome else "open"
    try:
        copy = keep(dialog, file, StateDir(settings.state_dir))
    except (DialogdError, OSError) as error:
        why = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
        remark(
            plain(f"{file} [{name}] is closed, and has no copy in the archive: {why}; then say `dialogd stop` again")
        )
        return False
    show(plain(f"{file} [{name}], copied to {copy}"))
    plan = settings.plan if file not in served else Path(served[file]) if served[file] else False
    wanted = replace(settings, file=file, plan=plan)
    page = leave_plan(wanted, dialog) if name == "STOPPED" else None
    if page is not None:
        show(plain(f"plan {page}"))
    if page is not None or name != "STOPPED" or not plan or not has_spoken(dialog):
        with suppress(DialogdError):  # the next stop finds all of it done, and says so once more
            person.finished(log, dialog)
    return True

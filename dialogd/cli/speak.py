"""What the person says and does in a dialog: say, pause, retry, veto, strike, limit, approve and the like."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from dialogd import person
from dialogd.backends.seats import Seat
from dialogd.cli import options
from dialogd.cli.create import is_free, read_cast
from dialogd.cli.options import daemons, done, option, plain, remark, show
from dialogd.cli.result import keep_ended, leave_plan
from dialogd.cli.status import onwards
from dialogd.config import Settings, command_on, file_flag
from dialogd.errors import BadInput, DialogdError, NotRunning
from dialogd.memory import keep
from dialogd.protocol.certificate import where
from dialogd.protocol.fold import free_port
from dialogd.protocol.header import AGENT_ID
from dialogd.protocol.state import Dialog
from dialogd.store.disk import StateDir, archived
from dialogd.store.registry import Running, settle

# -- What is more on the command line than an act ---------------------------------------------------------------------

Guest = Annotated[str, typer.Argument(metavar="ID[=BACKEND[:MODEL]]", help="The new agent: C, or C=grok.")]
GuestName = Annotated[str, option("N", "Its name in headings.")]
GuestPort = Annotated[int | None, option("N", "Where its daemon listens.", least=1, most=65_535)]


def invite(agent: Guest, name: GuestName = "", port: GuestPort = None, file: options.FileOption = None) -> None:
    """Add an agent to the dialog.

    Its turn comes after the others'. Prints how to start its daemon.
    """
    settings, log, before = options.opened(file)
    is_seat = "=" in agent and not AGENT_ID.fullmatch(agent.strip())
    seat = read_cast(None, [agent])[0] if is_seat else Seat(agent.strip())
    given = name.strip() or (seat.name if seat.is_known else "")
    known = before.header.agent(seat.id) or next((one for one in before.state.hand.left if one.id == seat.id), None)
    who = seat.id
    if known is None or name.strip() or port is not None:
        who += f"{given and f' = {given}'} @ http://localhost:{port if port is not None else _port(before)}"
    after = person.invite(log, who, secrets=options.own_secrets())
    done(settings, after, f"{seat.id} takes part" + ("" if len(after.entries) > len(before.entries) else " already"))
    keys, its = after.state.hand.keys, f"dialogd share{file_flag(settings.file)} --seat {seat.id}"
    if keys is not None and seat.id not in keys.agents:
        remark(f"it has no key yet: {its}=here, or {its} for a seat on another machine")
    remark(f"start it in a terminal of its own: {command_on(settings.file, 'start', seat.id, *seat.flags())}")


def _port(dialog: Dialog) -> int:
    """The first port for one more agent that nobody listens on now."""
    taken = {agent.port for agent in dialog.everybody}
    first = free_port(dialog.header, dialog.state.hand.left)
    return next((p for p in range(first, first + 100) if p not in taken and is_free(p)), first)


def approve(
    call: Annotated[str, typer.Argument(metavar="[CALL]", help="A call of a tool that waits, such as A-3f9a1c.")] = "",
    refuse: Annotated[bool, typer.Option("--refuse", help="The call, or the only one, may not be made.")] = False,
    file: options.FileOption = None,
) -> None:
    """Accept the result, or let an agent call a tool.

    The result of a dialog that has ended; or a text that only absent agents have not signed, which ends the dialog.
    With CALL the tool that an agent asks for: `dialogd status` shows the calls that wait. Without an answer a call is
    refused in time for the agent's turn to end.
    """
    settings, log, before = options.opened(file)
    if call or refuse:
        _answer_call(settings, before, call, refuse=refuse)
        return
    after = person.approve(log)
    keep_ended(settings, after)
    if before.state.outcome is None:
        leave_plan(settings, after)
    what = "it was approved already" if before.state.approved else "approved"
    outcome = after.state.outcome
    show(plain(f"{what}: {outcome.words}, in {where(outcome.entry)}" if outcome else what))
    if outcome is not None and outcome.is_agreed and (way := onwards(after, settings.file)):
        remark(f"next: {way}")


def _answer_call(settings: Settings, dialog: Dialog, call: str, *, refuse: bool) -> None:
    """Let an agent call the tool that it asks for, or refuse it."""
    said = options.healths(daemons(settings, settings.file)).items()
    asked = {str(one.get("call")): (daemon, one) for daemon, health in said for one in (health or {}).get("calls", ())}
    if not asked:
        raise NotRunning("no call of a tool waits for you", fix="`dialogd status` shows when one does")
    if call not in asked and (call or len(asked) > 1):
        what = f"no call {call!r} waits for you" if call else "several calls wait for you"
        raise BadInput(what, fix=f"name one: {', '.join(asked)}")
    call = call or next(iter(asked))
    daemon, one = asked[call]
    body = {"call": call, "refuse": refuse, "file": daemon.file, "dialog": dialog.id}
    fix = "try it again; `dialogd status` says more"
    found = options.accepted(
        daemon, options.ask(daemon.port, "POST", "/approve-call", body, seconds=2.0), fix=fix, retry=fix
    )
    remark(f"{found['status']}: {one.get('tool')} {one.get('arguments')}")


# -- `dialogd stop`: end dialogs and their daemons, also where none runs or one hangs ---------------------------------

PATIENCE = 5.0  # seconds that a daemon has to end before it is killed; it needs less than one, but on a busy machine
LOCK_WAIT = 0.3  # seconds for which a stop waits for the lock of a dialog, which is held for milliseconds
LAST_WAIT = 2.0  # seconds that the system has to take a killed process away


def stop(file: options.FileOption = None) -> None:
    """Stop everything: all your daemons and their dialogs. With --file only that dialog. The files stay.

    From inside a session that holds a seat, without --file, only the dialog of that seat.
    Dialogs are closed and copied to the archive; a stop that was killed before that is finished. Exit
    code 3 when there was nothing to stop, 1 when a dialog is open still, or was not kept.
    """
    settings = options.settings_for(file)
    seat = settle(StateDir(settings.state_dir).registry).seat
    if file is None and seat is not None:
        file = seat.file
        settings = options.settings_for(file)
        remark(
            f"this session holds seat {seat.id}, so only its own dialog is stopped; all of them: in a terminal of yours"
        )
    running = daemons(settings, settings.file if file is not None else None)
    for daemon, how in zip(running, options.in_parallel(end_daemon, running), strict=True):
        show(plain(f"{daemon.id} (pid {daemon.pid}, port {daemon.port}) {how}"))
    served = {Path(daemon.file): daemon.plans for daemon in running}
    closed = [_close(settings, path, served) for path in dict.fromkeys([settings.file, *served])]
    if False in closed:
        raise typer.Exit(1)
    if not running and not any(closed):
        raise NotRunning(
            f"nothing to stop: no daemon runs, and {settings.file} holds no open dialog",
            fix="name another file with --file; or begin a dialog: dialogd run TOPIC",
        )


def end_daemon(daemon: Running) -> str:
    """Ask a daemon to stop, and see to it that it does; says how it went."""
    deadline = time.monotonic() + PATIENCE
    wanted = {"hop": 0, "reason": "dialogd stop", "file": daemon.file}
    answer = options.ask(daemon.port, "POST", "/stop", wanted, seconds=PATIENCE)
    if answer is None or answer[0] >= 400:
        options.signalled(daemon, signal.SIGTERM)
    if options.gone(daemon, deadline):
        return "stopped"
    options.signalled(daemon, signal.SIGKILL)
    is_gone = options.gone(daemon, time.monotonic() + LAST_WAIT)
    return "did not answer and was killed" if is_gone else "could not be ended; look at it with ps"


def _close(settings: Settings, file: Path, served: Mapping[Path, str]) -> bool | None:
    """Close the dialog of that file, and keep it: True when that was done, also for a stop that was killed before it.

    None when there is none, or it had ended and is kept; False when it is open still, or was not kept; said so.
    `served` are the files that had daemons, each with the folder for its plan: theirs is the place, too.
    """
    try:
        log, state = options.log_of(options.settings_for(str(file))), StateDir(settings.state_dir)
        before = log.read()
        if before.state.outcome is not None and file not in served and archived(before, file, state.archive).exists():
            return None
    except FileNotFoundError:
        return None
    except DialogdError as error:
        remark(f"note: {file} is left as it is: {error}")
        return None
    log.lock.wait = LOCK_WAIT
    try:
        dialog = person.stop(log, "dialogd stop")
    except DialogdError as error:
        remark(f"{file} is still open: {error}; {error.fix}; then say `dialogd stop` again")
        return False
    name = dialog.state.outcome.name if dialog.state.outcome else "open"
    plan = settings.plan if file not in served else Path(served[file]) if served[file] else False
    pages = leave_plan(replace(settings, file=file, plan=plan), dialog)
    try:
        copy = keep(dialog, file, state)  # last: what is kept is finished
    except (DialogdError, OSError) as error:
        why = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
        remark(f"{file} [{name}] is closed, and has no copy in the archive: {why}; then say `dialogd stop` again")
        return False
    show(plain(f"{file} [{name}], copied to {copy}"))
    if pages:
        show(plain(f"plan {pages[0]}"))
    return True

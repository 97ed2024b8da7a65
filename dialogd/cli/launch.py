"""`dialogd run` and `dialogd start`: daemons as child processes, or as processes that belong to nobody."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, make_dataclass
from itertools import chain
from math import inf
from pathlib import Path
from textwrap import shorten
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from dialogd import person
from dialogd.backends.auto import LAST_RESORT, LIVE, family_of
from dialogd.backends.open_sessions import of_key, wake, without_tokens
from dialogd.backends.readonly_proof import NO_SHELL
from dialogd.backends.seats import LINGER, Cast, Seat, saved_cast, start_flags
from dialogd.cli import options
from dialogd.cli.create import (
    AGREES,
    SEATS,
    Start,
    check_id,
    former_cast,
    named_now,
    new_cast,
    takes_options,
    warn_of_twins,
)
from dialogd.cli.options import Text, Texts, daemons, health, healths, notify, option, plain, remark, show
from dialogd.cli.status import Situation, ended, exit_code, next_step, onwards
from dialogd.config import SETTINGS, Setting, Settings, file_flag
from dialogd.errors import AlreadyRunning, BadInput, DialogdError, NotADialog, NotRunning, Refused
from dialogd.memory import Memory
from dialogd.protocol.certificate import certify
from dialogd.protocol.header import LOOPBACK_URL
from dialogd.protocol.lifecycle import continued
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import in_words
from dialogd.store.disk import StateDir, log_at, read_json, write_json
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile
from dialogd.store.registry import Running, is_inside, process_key, process_started
from dialogd.templates import alone

if TYPE_CHECKING:
    from dialogd.cli.watch import LiveView

PROGRAM = (sys.executable, "-P", "-m", "dialogd")  # -P: Python takes no module from the folder that this is called in
READY_SECONDS = 240.0  # a daemon answers within one, but for a coding agent's first start, which is a trial of seconds
LATE_SECONDS = 3.0
LATE = "still starting; a coding agent's first start takes longer: it is a trial, in which it must refuse to write"
END_SECONDS = 10.0  # a daemon ends in under one, where the machine is not busy; after that it is killed
LAST_WORDS = 2_000  # characters of what a process printed last
FAILED = "error: a daemon could not be started, or ended twice"  # why a dialog was stopped

Interrupt = threading.Event
T = TypeVar("T")
NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Spawned:
    """A daemon that this process started. What it prints goes to `output`, from `offset` on."""

    id: str
    process: subprocess.Popen[bytes]
    output: Path
    offset: int

    def last_lines(self, count: int = 8) -> str:
        """The end of what it printed."""
        return plain("\n".join(f"  {line}" for line in _printed(self.output, self.offset).splitlines()[-count:]))


def _printed(output: Path, since: int) -> str:
    """What stands in that file from that byte on."""
    try:
        return output.read_bytes()[since:].decode("utf-8", "replace")
    except OSError:
        return ""


def spawn(agent: str, words: Sequence[str], output: Path) -> Spawned:
    """Start a daemon in a session of its own: a Ctrl-C in this terminal does not reach it.

    It is no part of the coding session that this may run inside of, and is not given that session's tokens.
    """
    kept = log_at(output)
    try:
        offset = os.fstat(kept.fd).st_size
        process = subprocess.Popen(
            [*PROGRAM, *words],
            stdin=subprocess.DEVNULL,
            stdout=kept.fd,
            stderr=kept.fd,
            env=without_tokens(os.environ),
            start_new_session=True,
        )
    finally:
        kept.close()
    return Spawned(agent, process, output, offset)


def answering(child: Spawned, settings: Settings) -> Running | None:
    """The child's registration, once it answers."""
    mine = (daemon for daemon in daemons(settings) if daemon.pid == child.process.pid)
    return next((daemon for daemon in mine if health(daemon) is not None), None)


def until_ready(
    children: Iterable[Spawned], look: Callable[[Spawned], T | None], interrupt: Interrupt | None = None
) -> dict[str, T]:
    """Wait until `look` finds each child ready, or somebody interrupts; gives what it found, by id.

    Raises `DialogdError` with a child's last lines when it ends or takes far too long.
    """
    began, is_told, ready, missing = time.monotonic(), False, dict[str, T](), list(children)
    interrupt = interrupt or Interrupt()
    while missing and not interrupt.wait(0.05):
        for child in list(missing):
            if (found := look(child)) is not None:
                ready[child.id] = found
                missing.remove(child)
            elif (code := child.process.poll()) is not None:
                kinds: dict[int, type[DialogdError]] = {2: BadInput, 3: AlreadyRunning}
                raise kinds.get(code, DialogdError)(
                    f"the daemon of {child.id} ended at once ({died_of(code)}); it said:\n{child.last_lines()}",
                    fix=f"correct that and start it again (--port N takes another port); all it said: {child.output}",
                )
        taken = time.monotonic() - began
        if missing and taken > LATE_SECONDS and not is_told:
            is_told = True
            remark(LATE)
        if missing and taken > READY_SECONDS:
            mute = missing[0]
            raise DialogdError(
                f"the daemon of {mute.id} did not answer within {READY_SECONDS:g} s; it said:\n{mute.last_lines()}",
                fix=f"look into {mute.output}, or start it in a terminal of its own",
            )
    return ready


def died_of(code: int) -> str:
    """An exit status in words."""
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def end(children: Iterable[Spawned]) -> None:
    """End these processes, gently first; returns when they are gone."""
    running = [child for child in children if child.process.poll() is None]
    for child in running:
        child.process.terminate()
    deadline = time.monotonic() + END_SECONDS
    for child in running:
        try:
            child.process.wait(max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()


def browse(address: str) -> bool:
    """Show the address in the person's browser; False where there is none."""
    import webbrowser

    is_remote = sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if is_remote and not os.environ.get("BROWSER"):
        return False
    try:
        return webbrowser.open(address)
    except (webbrowser.Error, OSError):
        return False


# -- The daemons of one `run` -----------------------------------------------------------------------------------------


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """An event that Ctrl-C, SIGTERM and a closed terminal set, instead of ending this process on the spot."""
    event = Interrupt()

    def note(_signal: int, _frame: FrameType | None) -> None:
        event.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Daemons:
    """One daemon process per seat of the cast."""

    def __init__(self, settings: Settings, cast: Cast) -> None:
        self.settings = settings
        self.cast = cast
        self.log = options.log_of(settings)
        self.children: dict[str, Spawned] = {}
        self.running: dict[str, Running] = {}
        self._died: set[str] = set()

    @contextmanager
    def until_the_end(self, interrupt: Interrupt, *, closed: str, cut_off: str, failed: str) -> Iterator[None]:
        """Stop the dialog if the block leaves it open, for one of these reasons, and end every process."""
        ending = cut_off
        try:
            yield
            ending = closed if interrupt.is_set() else ""
        except DialogdError:
            ending = failed
            raise
        finally:
            try:
                if ending:
                    with suppress(FileNotFoundError):
                        person.stop(self.log, ending)
            finally:
                end(self.children.values())

    def start(self, interrupt: Interrupt, ready: Callable[[], None] = lambda: None) -> None:
        """Start them all, wait until each answers, call `ready`, and set the dialog going. Raises `DialogdError`.

        The cast is kept before, for `run --continue`, and so that they are known as started by this process.
        """
        known = dataclasses.replace(self.cast, by=process_key(os.getpid()))
        known.save(StateDir(self.settings.state_dir), self.settings.file)
        for seat in self.cast.seats:
            self.children[seat.id] = self._spawn(seat)
        self.running = until_ready(self.children.values(), lambda one: answering(one, self.settings), interrupt)
        said = "".join(_printed(one.output, one.offset) for one in self.children.values()).split("\n")
        for row in (row for row in said if NO_SHELL in row):  # else nobody sees it before a task is paid for
            remark(plain(row))
        ready()
        if not interrupt.is_set():
            notify(self.running.values())
            self._ask_sessions()

    def _ask_sessions(self) -> None:
        """Ask the open sessions that were picked from outside to take part: whoever is first is asked by its daemon."""
        from dialogd.backends.live import ASKS, UNASKED

        picked = [seat for seat in self.cast.seats if seat.session.endswith(UNASKED)]
        owing = self.log.read().state.owing if picked else ()
        for seat in (seat for seat in picked if seat.id not in owing):
            try:
                if (session := of_key(seat.session.removesuffix(UNASKED))) is not None:
                    asyncio.run(wake(session, ASKS))
            except (DialogdError, OSError) as error:
                remark(f"warning: {seat.id}: its session was not asked yet: {error}; it is once its turn comes")

    def _spawn(self, seat: Seat) -> Spawned:
        plan, file = self.settings.plan, self.settings.file
        words = ["start", seat.id, "--file", str(file), "--port", str(seat.port), *seat.flags()]
        words += ["--pace", self.cast.pace] if self.cast.pace else []
        words += ["--plan", str(plan)] if isinstance(plan, Path) else [] if plan else ["--plan", "no"]
        others = (one for one in self.cast.seats if one.id != seat.id)
        words += [word for one in others for word in ("--peer", f"{one.id}=http://localhost:{one.port}")]
        return spawn(seat.id, words, StateDir(self.settings.state_dir).dialog(file) / f"{seat.id}.out")

    def tend(self, look: Callable[[], object], say: Callable[[str], None]) -> None:
        """Start a daemon again that has ended while the dialog goes on, and notify it once it answers.

        `look` reads the file again, and gives how the dialog ended. Raises `DialogdError` on a daemon's second end.
        """
        dead = self.dead()
        if dead and not look():  # `dialogd stop` ends daemons too: then the file says so by now
            say(self._replace(dead[0]))
        for child in list(self.children.values()):
            is_new = child.id not in self.running and child.process.poll() is None
            if is_new and (daemon := answering(child, self.settings)) is not None:
                self.running[child.id] = daemon
                notify([daemon])

    def dead(self) -> list[Spawned]:
        """The daemons that have ended, and were not started again."""
        return [child for child in self.children.values() if child.process.poll() is not None]

    def _replace(self, dead: Spawned) -> str:
        """Restart a daemon that ended; returns a message. Raises `DialogdError` on its second end."""
        what = f"the daemon of {dead.id} ended unexpectedly ({died_of(dead.process.returncode)}); it said last:"
        if dead.id in self._died:
            again = continued(self.log.read(), file_flag(self.settings.file))
            raise DialogdError(
                f"{what}\n{dead.last_lines()}",
                fix=f"it was restarted once already; look into {dead.output}, then: {again}",
            )
        self._died.add(dead.id)
        self.children[dead.id] = self._spawn(next(seat for seat in self.cast.seats if seat.id == dead.id))
        self.running.pop(dead.id, None)
        return f"{what}\n{dead.last_lines()}\nstarting it again"


# -- `dialogd run` ----------------------------------------------------------------------------------------------------

Topic = Annotated[Text, typer.Argument(metavar="TOPIC", help="What it is about; with --continue: the file.")]


@dataclass(frozen=True, slots=True)
class Held:
    """How a dialog is held: where its file and its plan lie, who pays what, and how long its page stays."""

    pace: options.Pace = None
    file: options.FileOption = None
    replace: options.Replace = False
    go_on: Annotated[
        bool, option(None, "Start its agents again (run: or those you name), and go on.", "--continue")
    ] = False
    line: Annotated[
        Text, option("LINE", "Join the dialog of `dialogd share`, and run its seats of this machine.", "--with")
    ] = None
    linger: Annotated[
        Text, option("TIME", "How long the daemons and the page stay after the end: 1 hour, or `always`, until Ctrl-C.")
    ] = None
    opens: Annotated[bool, option(None, "Open the page in your browser, where there is one.", "--open/--no-open")] = (
        False
    )
    plan: options.Plan = None
    price: Annotated[
        Texts,
        option("[ID=]PRICE", "Dollars per million tokens, IN/OUT[/CACHED] or free, of one agent or all; repeat it."),
    ] = None

    @property
    def lasts(self) -> float:
        """For how many seconds after the end the page stays. Raises `BadInput`."""
        if self.linger is None:
            return 0.0
        return inf if self.linger == "always" else options.duration(self.linger, "--linger")

    def settings(self, named: str | None, budget: str | None = None) -> Settings:
        """The settings; to go on, the file may be `named`, and the `budget` is of each agent here, not the dialog's."""
        file, is_new = self.file or (named if self.go_on else None), not (self.go_on or self.line)
        return options.settings_for(file, pace=self.pace, plan=self.plan, budget=None if is_new else budget)


INTERRUPTED = 130
TEXT_LENGTH = 300  # characters of the decided text in the last lines; the file and the plan have all of it


@takes_options
def run(topic: Topic = None, *, wanted: Start, held: Held, trust_project: options.TrustProject = False) -> None:
    """Run a whole dialog: every agent, until it ends.

    Writes the file, starts a daemon per agent, and shows what they say. Ctrl-C stops the dialog and everything that was
    started. Takes /tmp/claude-dialog.md and ports 3001 … where they are free, else a file and ports of its own.
    """
    lasts = held.lasts
    with interruptible() as interrupt:
        settings = held.settings(topic, wanted.budget)
        if held.line is not None:
            from dialogd.cli.share import Line, joined
            from dialogd.protocol.keys import spoken

            named_now(wanted, Line.read(held.line).seats)  # who plays them is looked at before the line is used
            log, dialog, _ = joined(settings, held.line)
            remark(f"joined: {dialog.header.topic}; the head in words: {spoken(log.head[1])}")
        if held.line is not None or held.go_on:
            cast = former_cast(settings, held.pace, wanted)
        elif topic is None:
            raise BadInput("what should the dialog be about?", fix='name the topic: dialogd run "Tabs or spaces?"')
        else:
            settings, cast = new_cast(
                settings,
                dataclasses.replace(wanted, topic=topic),
                held.pace or "",
                replace=held.replace,
                prices=held.price or (),
                trust_project=trust_project,
            )
        is_new = not (held.go_on or held.line)
        raise typer.Exit(perform(settings, cast, interrupt, is_new=is_new, stay=lasts, opens=held.opens))


def perform(
    settings: Settings, cast: Cast, interrupt: Interrupt, *, is_new: bool, stay: float, opens: bool = False
) -> int:
    """Start all daemons, show the dialog to its end, stop them; returns the exit code."""
    from dialogd.cli.result import leave_plan
    from dialogd.cli.watch import LiveView

    file, port = shlex.quote(str(settings.file)), cast.seats[0].port
    show = LiveView(settings, hint="Ctrl-C stops the dialog", is_run=True)
    agents = Daemons(settings, dataclasses.replace(cast, linger=stay if 0 < stay < inf else LINGER))
    page, nudge = f"http://localhost:{port}", f"curl -X POST localhost:{port}/notify"
    show.say(f"file   {file}\nwatch  tail -f {file}\npage   {page}\nnudge  {nudge}\n")
    if not sys.stdin.isatty() and not show.log.read().header.is_unattended:
        remark(
            "note: without a terminal the dialog may wait for you when an agent asks or fails; --unattended never waits"
        )
    closed, cut_off = "interrupted by the person", "the command that ran it was cut off"
    try:
        with agents.until_the_end(interrupt, closed=closed, cut_off=cut_off, failed=FAILED if is_new else ""), show:
            agents.start(interrupt)
            if opens:
                browse(page)
            _watch(show, agents, interrupt, stay=stay)
    except DialogdError:
        if is_new:
            leave_plan(settings, show.log.read())
        raise
    show.close()
    code = _close(show, stay=stay)
    return INTERRUPTED if interrupt.is_set() and not (stay and show.outcome) else code


def _watch(show: LiveView, agents: Daemons, interrupt: Interrupt, *, stay: float) -> None:
    """Show the dialog until it ends or the person interrupts; with `stay`, until they do or every daemon is gone.

    `stay` is how many seconds it may have been over, with nothing new in it, before this ends.
    """
    from dialogd.cli.watch import LOOK

    def look() -> object:
        show.look()
        return show.outcome

    look()
    told, last, since = None, show.feed.dialog, time.monotonic()
    while (stay or show.outcome is None) and not interrupt.is_set():
        if show.outcome is not None and show.outcome != told:
            told = show.outcome
            until = "Ctrl-C" if stay == inf else f"Ctrl-C or {in_words(stay)} without anything new"
            show.say(f"{show.how_it_ended}; the page stays, to approve or reject, until {until}; then the daemons end")
        if show.outcome is None or show.feed.dialog is not last:
            last, since = show.feed.dialog, time.monotonic()
        elif time.monotonic() - since > stay:
            return
        show.listen(LOOK)
        show.look()
        agents.tend(look, show.say)
        if show.outcome is not None and len(agents.dead()) == len(agents.children):
            return


def _close(show: LiveView, *, stay: float) -> int:
    """Print how it ended; returns the exit code."""
    from dialogd.cli.result import keep_ended, leave_plan

    try:
        dialog = show.log.read()
    except FileNotFoundError:
        raise NotRunning(f"{show.settings.file} is gone", fix="dialogd run TOPIC begins another dialog") from None
    show.news()
    outcome, decided = dialog.state.outcome, certify(dialog)
    show.say(f"{ended(dialog) if outcome else 'not ended'} (turn {dialog.state.number} was the last)")
    if dialog.is_rehearsed:
        show.say("REHEARSAL: the lines were scripted, and nobody will recall them; how to get a model: dialogd doctor")
    if outcome is not None and decided is not None and decided.method != "mutual" and not decided.trees:
        text = f"{decided.ref}: {decided.text}".removeprefix(": ")
        show.say(f"text   {shorten(text, TEXT_LENGTH, placeholder=' …')}")
    show.say(f"file   {show.settings.file}")
    keep_ended(show.settings, dialog)
    if pages := leave_plan(show.settings, dialog):
        show.say(f"plan   {pages[0]}")
    if outcome is not None and outcome.is_agreed:
        if way := onwards(dialog, show.settings.file):
            show.say(f"build  {way}")
        if not stay:
            show.say("page   closed with the daemons; --linger 1h keeps both")
    if step := next_step(dialog, show.settings.file):
        show.say(f"next   {step}")
    return exit_code(outcome)


# -- A `run` that belongs to nobody -----------------------------------------------------------------------------------

BEGIN_SECONDS = 20.0  # that the file of a new dialog may take
BEGIN_LOOK = 0.1


def begin_apart(
    state: StateDir,
    words: Sequence[str],
    variables: Mapping[str, str] = NONE,
    name: str = "",
    *,
    given: str = "",
    seconds: float = BEGIN_SECONDS,
) -> Path:
    """Have a command that writes a new dialog carried out with a file of its own; gives that once it is written.

    Its process belongs to nobody: it goes on when the program that asked ends. It is `given` its standard input;
    `variables` are set for it beside the environment; `name` tells its file from others. Raises `Refused` with what it
    said where it did not begin.
    """
    file = state.sessions / f"dialog-{name or secrets.token_hex(4)}.md"
    log = LogFile(file, Journals(state.dialog(file)))

    def is_written() -> bool:
        with suppress(FileNotFoundError, NotADialog), log.locked():  # who makes a file holds its lock until it is whole
            return bool(log.read().entries)
        return False

    whole = [words[0], "--file", str(file), *words[1:]]
    _apart(state, whole, file, file.with_suffix(".out"), is_written, variables, given=given, seconds=seconds)
    return file


def continue_apart(settings: Settings, file: Path, words: Sequence[str]) -> None:
    """Have the dialog in that file, on which no daemon works, go on by `dialogd run --continue`, likewise apart.

    Returns once a daemon is there. Raises `Refused` with what `run` said where it did not go on.
    """
    state = StateDir(settings.state_dir)
    is_begun = file.parent == state.sessions
    output = file.with_suffix(".out") if is_begun else state.logs / f"{state.dialog(file).name}.out"
    run = ["run", "--continue", "--file", str(file), *words]
    _apart(state, run, file, output, lambda: bool(daemons(settings, file)))


def _apart(
    state: StateDir,
    words: Sequence[str],
    file: Path,
    output: Path,
    is_there: Callable[[], bool],
    variables: Mapping[str, str] = NONE,
    given: str = "",
    seconds: float = BEGIN_SECONDS,
) -> None:
    """Start `dialogd WORDS` as a process that belongs to nobody, given these words, and wait until `is_there`.

    Raises `Refused` with its last words where it ended first, `DialogdError` where it takes too long.
    """
    log_at(output).close()
    before, deadline = output.stat().st_size, time.monotonic() + seconds
    pid = on_its_own([*PROGRAM, *words], output, without_tokens(os.environ) | dict(variables), given)
    known = {"file": str(file), "pid": pid, "created": process_started(pid), "output": str(output)}
    write_json(state.sessions / f"{file.stem}.json", known)
    while not is_there():
        if process_started(pid) is None and not is_there():
            what, _, fix = _printed(output, before)[-LAST_WORDS:].partition("\n  fix: ")
            what = what.rpartition("error: ")[2].strip() or "the dialog could not be begun"
            raise Refused(what, fix=fix.strip() or f"look into {output}")
        if time.monotonic() > deadline:
            raise DialogdError(f"nothing came of it within {seconds:g} s", fix=f"look into {output}")
        time.sleep(BEGIN_LOOK)


def begun(state: StateDir) -> Iterator[tuple[Path, bool]]:
    """The files of the dialogs that programs began, each with whether its process runs; forgets those that are gone."""
    for path in sorted(state.sessions.glob("*.json")):
        found = read_json(path)
        try:
            file, pid, created = Path(found["file"]), int(found["pid"]), found["created"]
        except (TypeError, KeyError, ValueError, OverflowError):
            continue
        runs = created is not None and process_started(pid) == created
        if file.name and (runs or file.exists()):
            yield file, runs
        else:
            path.unlink(missing_ok=True)


def ongoing(settings: Settings, logs: dict[Path, LogFile] | None = None, *, asked: bool = True) -> list[Situation]:
    """The dialogs with daemons, and those that have not ended; `asked`: with what their daemons say now.

    What has ended and lies still goes into the archive. `logs` holds what was read until the next time.
    """
    state, memory, logs = StateDir(settings.state_dir), Memory(settings.state_dir), {} if logs is None else logs
    served: dict[Path, list[Running]] = {}
    for daemon in daemons(settings):
        served.setdefault(Path(daemon.file), []).append(daemon)
    runs, kept, found = dict(begun(state)), memory.sizes(), dict[Path, Dialog]()
    for file in dict.fromkeys((*served, *runs, settings.file)):
        with suppress(DialogdError, OSError):
            if file in served or file.stat().st_size not in kept.get(str(file), ()):
                log = logs.setdefault(file, options.log_of(settings, file))
                found[file] = log.read()
                if found[file].state.outcome is not None and file not in served:
                    memory.keep(found.pop(file), file)
    for file in {*logs} - {*found}:
        del logs[file]
    open_ones = [one for file in found if found[file].state.outcome is None for one in served.get(file, ())]
    said = healths(open_ones) if asked else {}
    return [
        Situation(dialog, file, tuple(served.get(file, ())), {d.id: said.get(d) for d in served.get(file, ())}, state,
                  runs.get(file, False))
        for file, dialog in found.items()
    ]  # fmt: skip


def on_its_own(words: Sequence[str], output: Path, environment: Mapping[str, str], given: str = "") -> int:
    """Start a program in a session of its own, child of nobody, that reads `given`; returns its process id."""
    script = 'exec 3<&0; out=$1; shift; umask 077; "$@" <&3 3<&- >>"$out" 2>&1 & echo $!'
    with tempfile.TemporaryFile() as source:  # it has no name: nothing is left, whoever is killed
        source.write(given.encode("utf-8", "replace"))
        source.seek(0)
        done = subprocess.run(
            ["/bin/sh", "-c", script, "sh", str(output), *words],
            stdin=source, capture_output=True, text=True, check=False, env=environment, start_new_session=True,
        )  # fmt: skip
    if done.returncode or not done.stdout.strip().isdigit():
        raise DialogdError(f"nothing can be started: {done.stderr.strip()}", fix="look at the limits of processes")
    return int(done.stdout)


# -- `dialogd start`: one agent's daemon, in this terminal or, with --detach, in the background -----------------------

# Settings that are options of the same name.
OWN = (
    "port", "backend", "command", "model", "name", "role", "pace", "project", "max_tokens", "effort", "base_url", "api",
    "session", "trust_project", "repo", "gate", "gate_sees", "setup", "setup_network", "price", "budget", "digest",
    "debug",
)  # fmt: skip


def _own_option(setting: Setting) -> tuple[str, Any, Any]:
    """The setting as a field that is an option, whose default stands for what is not given."""
    usual, name = getattr(Settings(), setting.name), f"--{setting.name.replace('_', '-')}"
    is_switch = isinstance(usual, bool)
    about = option(
        None if is_switch else setting.name.rpartition("_")[2].upper(),
        f"{setting.about[:1].upper()}{setting.about[1:]}.",
        name,
    )
    kind: Any = bool if is_switch else Texts if isinstance(usual, tuple) else Text
    return setting.name, Annotated[kind, about], field(default=False if is_switch else None)


if TYPE_CHECKING:
    OwnSettings = Any
else:
    OwnSettings = make_dataclass("OwnSettings", [_own_option(one) for one in SETTINGS if one.name in OWN])


@takes_options
def start(
    agent: Annotated[Text, typer.Argument(metavar="ID", help="The agent: A. Default: DIALOGD_ID.")] = None,
    *,
    peer: Annotated[
        Texts,
        option(
            "URL", "Another agent's daemon, URL or ID=URL. Default: from the running daemons, else the file.", "--peer"
        ),
    ] = None,
    resume: Annotated[Text, option("SESSION", "claude-code: join with the context of a session of yours.")] = None,
    go_on: Annotated[bool, option(None, "claude-code: the same, with your most recent session.", "--continue")] = False,
    file: options.FileOption = None,
    detach: Annotated[bool, option(None, "Run in the background; returns once it answers.", "--detach", "-d")] = False,
    plan: options.Plan = None,
    own: OwnSettings,
) -> None:
    """Run one agent's daemon, in a terminal of its own.

    Until Ctrl-C or `dialogd stop`. The dialog file may come later.
    """
    flags = {name: value or None for name, value in dataclasses.asdict(own).items()}
    settings = options.settings_for(file, id=agent, plan=plan, resume="last" if go_on else resume, **flags)
    if not settings.id:
        raise BadInput("which agent should this daemon speak for?", fix="name it: dialogd start A; or set DIALOGD_ID")
    # The cast of the `run` or `ask` that this process was started by: a session that holds a seat of the dialog starts
    # no other agent of it, but by one of those.
    kept = saved_cast(StateDir(settings.state_dir), settings.file)
    cast = kept if kept is not None and kept.by and kept.by == process_key(os.getppid()) else None
    if cast is None:
        person.own_words(options.log_of(settings), "start", settings.id)
    urls = peers(settings, peer or ())
    is_of_session = settings.backend == LIVE and bool(settings.session)
    if is_of_session and not is_inside(os.getpid(), settings.session):
        remark(f"{settings.id}: {AGREES}")
    if detach:
        daemon = detached(settings, urls)
        show(plain(f"{daemon.id} runs: pid {daemon.pid}, port {daemon.port}, log {daemon.log}"))
        remark(f"end it with: dialogd stop, or kill {daemon.pid}")
        with suppress(DialogdError, OSError):  # the daemon runs, whatever cannot be said of it
            _warn(settings)
        return
    if is_of_session:
        from dialogd.cli.seat import take

        settings = take(settings)
    from dialogd.daemon import serve

    if sys.stderr.isatty():  # nobody reads it where `run` starts agents, and it costs them time
        _warn(settings)
    beside = [
        str(one.get("backend") or LAST_RESORT) for one in healths(daemons(settings, settings.file)).values() if one
    ]
    is_alone = all(family_of(name) == LAST_RESORT for name in beside)
    code = serve(settings, urls, cast, may_rehearse=cast is not None or is_alone)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # taking the SDKs apart in memory would take longer than all else that a stop does


def detached(settings: Settings, urls: Mapping[str, str]) -> Running:
    """Start a daemon with these settings in the background, and wait until it answers."""
    state = StateDir(settings.state_dir)
    words = ["start", settings.id, "--file", str(settings.file), *chain(*start_flags(settings, urls))]
    child = spawn(settings.id, words, state.logs / f"{settings.id}-{state.dialog(settings.file).name}.out")
    try:
        return until_ready([child], lambda one: answering(one, settings))[child.id]
    except BaseException:  # a Ctrl-C while it starts ends it too
        end([child])
        raise


def _warn(settings: Settings) -> None:
    """Warn about what may prevent a decision: a single agent, or agents of one family."""
    with suppress(DialogdError, OSError):
        for text in alone(options.log_of(settings).read().header):
            remark(f"warning: {text}")
    answers = healths(daemons(settings, settings.file)).items()
    families = {daemon.id: family_of(str(answer.get("backend", ""))) for daemon, answer in answers if answer}
    warn_of_twins({**families, settings.id: families.get(settings.id) or family_of(settings.backend)}, only=settings.id)


def peers(settings: Settings, given: Sequence[str]) -> dict[str, str]:
    """Id -> URL of the peers in `--peer`; a bare URL belongs to the next agent without one. Raises `BadInput`."""
    named: dict[str, str] = {}
    bare: list[str] = []
    for text in given:
        agent, equals, url = text.rpartition("=")
        if equals:
            check_id(agent, f"--peer {text!r}", "write --peer B=http://localhost:3002")
        url = url.strip()
        url = f"localhost:{url}" if re.fullmatch(r"\d{1,5}", url) else url
        full = url if "://" in url else f"http://{url}"
        match = LOOPBACK_URL.fullmatch(full)
        if match is None or not 0 < int(match[2]) < 65_536:
            fix = "write a loopback address, such as http://localhost:3002"
            raise BadInput(f"--peer {url!r} is not on this machine", fix=fix)
        if equals:
            named[agent] = full.rstrip("/")
        else:
            bare.append(full.rstrip("/"))
    agents = list(SEATS)  # while there is no dialog
    with suppress(DialogdError, OSError):
        agents = [agent.id for agent in options.log_of(settings).read().header.agents]
    others = [who for who in agents if who != settings.id and who not in named]
    if len(bare) > len(others):
        what = f"--peer {bare[len(others)]}: the dialog has no further agent"
        raise BadInput(what, fix="write --peer ID=URL")
    return named | dict(zip(others, bare, strict=False))

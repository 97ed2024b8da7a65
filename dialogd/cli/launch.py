"""Daemons as child processes: start them, wait until they answer, end them with everything they started."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from itertools import chain, islice
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Annotated, Any, get_type_hints

import typer

from dialogd import person
from dialogd.backends import CODING
from dialogd.backends.auto import CHOSEN, LAST_RESORT, LIVE, family_of
from dialogd.backends.seats import Cast, Seat, saved_cast, start_flags
from dialogd.backends.sessions import of_key, wake, without_tokens
from dialogd.cli import options
from dialogd.cli.client import daemons, health, healths, notify
from dialogd.cli.create import AGREES, SEATS, warn_of_twins
from dialogd.cli.terminal import plain, remark, show
from dialogd.config import SETTINGS, Settings, file_flag
from dialogd.errors import AlreadyRunning, BadInput, DialogdError, NotADialog, Refused
from dialogd.protocol.header import AGENT_ID, LOOPBACK_URL
from dialogd.protocol.lifecycle import continued
from dialogd.protocol.model import RESERVED, WHY_RESERVED
from dialogd.protocol.text import one_line
from dialogd.store.caller import is_inside, process_key
from dialogd.store.disk import log_at, read_json, write_json
from dialogd.store.folders import StateDir
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile
from dialogd.store.registry import Running, process_started
from dialogd.templates.opening import alone

PROGRAM = (sys.executable, "-P", "-m", "dialogd")  # -P: Python takes no module from the folder that this is called in
READY_SECONDS = 240.0  # a daemon answers within one, but for a coding agent's first start, which is a trial of seconds
LATE_SECONDS = 3.0
TRIAL = "a coding agent's first start takes longer: it is a trial, in which it must refuse to write"
END_SECONDS = 10.0  # a daemon ends in under one, where the machine is not busy; after that it is killed
LARGEST_OUTPUT = 1024 * 1024  # bytes of an output file that are kept when it is used again
FAILED = "error: a daemon could not be started, or ended twice"  # why a dialog was stopped

Interrupt = threading.Event
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
        with suppress(OSError), self.output.open("rb") as source:
            source.seek(self.offset)
            lines = deque((line.decode("utf-8", "replace").rstrip("\n") for line in source), count)
            return plain("\n".join(f"  {line}" for line in lines))
        return ""


def spawn(agent: str, words: Sequence[str], output: Path) -> Spawned:
    """Start a daemon in a session of its own: a Ctrl-C in this terminal does not reach it.

    It is no part of the coding session that this may run inside of, and is not given that session's tokens.
    """
    kept = log_at(output)
    try:
        fd = kept.fd
        if os.fstat(fd).st_size > LARGEST_OUTPUT:
            os.ftruncate(fd, 0)
        offset = os.fstat(fd).st_size
        process = subprocess.Popen(
            [*PROGRAM, *words],
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            env=without_tokens(os.environ),
            start_new_session=True,
        )
    finally:
        kept.close()
    return Spawned(agent, process, output, offset)


def answering(child: Spawned, settings: Settings) -> Running | None:
    """The child's registration, once it answers. Raises `DialogdError` when it has ended."""
    code = child.process.poll()
    if code is not None:
        kinds: dict[int, type[DialogdError]] = {2: BadInput, 3: AlreadyRunning}
        raise kinds.get(code, DialogdError)(
            f"the daemon of {child.id} ended at once ({died_of(code)}); it said:\n{child.last_lines()}",
            fix=f"correct that and start it again; its whole output is in {child.output}",
        )
    for daemon in daemons(settings):
        if daemon.pid == child.process.pid and health(daemon) is not None:
            return daemon
    return None


def until_ready(
    children: Mapping[str, Spawned], settings: Settings, backends: Iterable[str], interrupt: Interrupt | None = None
) -> dict[str, Running]:
    """Wait until each child answers, or somebody interrupts; gives the daemons that do, by id.

    Raises `DialogdError` with a child's last lines when it ends or takes far too long.
    """
    began, is_told, ready = time.monotonic(), False, dict[str, Running]()
    interrupt = interrupt or Interrupt()
    while len(ready) < len(children) and not interrupt.is_set():
        late_ones = [child for who, child in children.items() if who not in ready]
        found = {child.id: answering(child, settings) for child in late_ones}
        ready |= {who: daemon for who, daemon in found.items() if daemon is not None}
        taken = time.monotonic() - began
        if taken > LATE_SECONDS and not is_told:
            is_told = True
            remark(late(backends))
        if taken > READY_SECONDS:
            mute = late_ones[0]
            raise DialogdError(
                f"the daemon of {mute.id} did not answer within {READY_SECONDS:g} s; it said:\n{mute.last_lines()}",
                fix=f"look into {mute.output}, or start it in a terminal of its own",
            )
        interrupt.wait(0.05)
    return ready


def late(backends: Iterable[str]) -> str:
    """The message about daemons that take long to start, by their backends; `auto` may mean any."""
    is_trial = any(name.partition(":")[0] in CODING | CHOSEN for name in backends)
    return f"still starting; {TRIAL}" if is_trial else "still starting"


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


def is_free(port: int) -> bool:
    """True when a daemon could listen on 127.0.0.1:`port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Free ports, all different; none that the system gives to connections: until a daemon listens, it would again."""
    return list(islice(filter(is_free, random.sample(range(10_000, 32_000), 22_000)), count))


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
        self.children: dict[str, Spawned] = {}
        self.running: dict[str, Running] = {}
        self._died: set[str] = set()
        self._told: set[int] = set()

    @contextmanager
    def until_the_end(
        self, log: LogFile, interrupt: Interrupt, *, closed: str, cut_off: str, failed: str
    ) -> Iterator[None]:
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
                        person.stop(log, ending)
            finally:
                end(self.children.values())

    def start(self, interrupt: Interrupt, ready: Callable[[], None] = lambda: None) -> None:
        """Start them all, wait until each answers, call `ready`, and set the dialog going. Raises `DialogdError`.

        The cast is kept before, for `run --continue`, and so that they are known as started by this process.
        """
        replace(self.cast, by=process_key(os.getpid())).save(StateDir(self.settings.state_dir), self.settings.file)
        for seat in self.cast.seats:
            self.children[seat.id] = self._spawn(seat)
        backends = [seat.backend or self.settings.backend for seat in self.cast.seats]
        self.running = until_ready(self.children, self.settings, backends, interrupt)
        ready()
        if not interrupt.is_set():
            notify(self.running.values())
            self._ask_sessions()

    def _ask_sessions(self) -> None:
        """Ask the open sessions that were picked from outside to take part: whoever is first is asked by its daemon."""
        from dialogd.backends.live import ASKS, UNASKED

        picked = [seat for seat in self.cast.seats if seat.session.endswith(UNASKED)]
        journals = Journals(StateDir(self.settings.state_dir).dialog(self.settings.file))
        owing = LogFile(self.settings.file, journals).read().state.owing if picked else ()
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

    def farewell(self, dead: Sequence[Spawned]) -> str:
        """The message that these daemons are gone and not started again; "" where it was said before."""
        new = [child for child in dead if child.process.pid not in self._told]
        self._told.update(child.process.pid for child in new)
        return "\n".join(f"the daemon of {one.id} ended ({died_of(one.process.returncode)})" for one in new)

    def _replace(self, dead: Spawned) -> str:
        """Restart a daemon that ended; returns a message. Raises `DialogdError` on its second end."""
        what = f"the daemon of {dead.id} ended unexpectedly ({died_of(dead.process.returncode)}); it said last:"
        if dead.id in self._died:
            file = self.settings.file
            again = continued(
                LogFile(file, Journals(StateDir(self.settings.state_dir).dialog(file))).read(), file_flag(file)
            )
            raise DialogdError(
                f"{what}\n{dead.last_lines()}",
                fix=f"it was restarted once already; look into {dead.output}, then: {again}",
            )
        self._died.add(dead.id)
        self.children[dead.id] = self._spawn(next(seat for seat in self.cast.seats if seat.id == dead.id))
        self.running.pop(dead.id, None)
        return f"{what}\n{dead.last_lines()}\nstarting it again"


# -- A `run` that belongs to nobody -----------------------------------------------------------------------------------

TOPIC = 120  # characters of a question that make the topic
BEGIN_SECONDS = 20.0  # that the file of a new dialog may take
BEGIN_LOOK = 0.1
LAST_WORDS = 2_000  # characters of what a process printed last


def run_apart(
    state: StateDir, question: str, words: Sequence[str], variables: Mapping[str, str] = NONE, name: str = ""
) -> Path:
    """Have a new dialog run by `dialogd run` with these options, and give its file once it is written.

    Its process belongs to nobody: it goes on when the program that asked ends. `variables` are set for it beside the
    environment; `name` tells its file from others. Raises `Refused` with what `run` said where it did not begin.
    """
    run = ["run", *words, "--question-file", "-", "--", one_line(question, TOPIC)]
    return begin_apart(state, run, variables, name, given=question)


def begin_apart(
    state: StateDir,
    words: Sequence[str],
    variables: Mapping[str, str] = NONE,
    name: str = "",
    *,
    given: str = "",
    seconds: float = BEGIN_SECONDS,
) -> Path:
    """The same of any command that writes a new dialog and takes `--file`: within `seconds`, given these words."""
    file = state.sessions / f"dialog-{name or secrets.token_hex(4)}.md"
    log = LogFile(file, Journals(state.dialog(file)))

    def is_written() -> bool:
        with suppress(FileNotFoundError, NotADialog), log.locked():  # who makes a file holds its lock until it is whole
            return bool(log.read().entries)
        return False

    whole = [words[0], "--file", str(file), *words[1:]]
    _apart(state, whole, file, file.with_suffix(".out"), variables, is_written, given=given, seconds=seconds)
    return file


def continue_apart(settings: Settings, file: Path, words: Sequence[str]) -> None:
    """Have the dialog in that file, on which no daemon works, go on by `dialogd run --continue`, likewise apart.

    Returns once a daemon is there. Raises `Refused` with what `run` said where it did not go on.
    """
    state = StateDir(settings.state_dir)
    is_begun = file.parent == state.sessions
    output = file.with_suffix(".out") if is_begun else state.logs / f"{state.dialog(file).name}.out"
    run = ["run", "--continue", "--file", str(file), *words]
    _apart(state, run, file, output, NONE, lambda: bool(daemons(settings, file)))


def _apart(
    state: StateDir,
    words: Sequence[str],
    file: Path,
    output: Path,
    variables: Mapping[str, str],
    is_there: Callable[[], bool],
    given: str = "",
    seconds: float = BEGIN_SECONDS,
) -> None:
    """Start `dialogd WORDS` as a process that belongs to nobody, note which it is, and wait until `is_there`.

    It reads `given` from its standard input.
    """
    log_at(output).close()
    before = output.stat().st_size
    pid = on_its_own([*PROGRAM, *words], output, without_tokens(os.environ) | dict(variables), given)
    known = {"file": str(file), "pid": pid, "created": process_started(pid), "output": str(output)}
    write_json(state.sessions / f"{file.stem}.json", known)
    _wait(is_there, pid, output, before, seconds)


def begun(state: StateDir) -> Iterator[tuple[Path, bool]]:
    """The files of the dialogs that programs began, each with whether its process runs; forgets those that are gone."""
    for path in sorted(state.sessions.glob("*.json")):
        found = read_json(path)
        try:
            file, pid, created = Path(found["file"]), int(found["pid"]), found["created"]
            is_there = file.exists()
        except (TypeError, KeyError, ValueError, OverflowError, OSError):
            continue
        if not file.is_absolute():
            continue
        runs = created is not None and process_started(pid) == created
        if not runs and not is_there:
            path.unlink(missing_ok=True)
            continue
        yield file, runs


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


def _wait(is_there: Callable[[], bool], pid: int, output: Path, since: int, seconds: float) -> None:
    """Wait until it is there. Raises `Refused` with the process's last words, from that byte on, where it ended first.

    `DialogdError` where it takes too long.
    """
    deadline = time.monotonic() + seconds
    while not is_there():
        if process_started(pid) is None and not is_there():
            said = ""
            with suppress(OSError):
                said = output.read_bytes()[since:].decode("utf-8", "replace")[-LAST_WORDS:]
            what, _, fix = said.partition("\n  fix: ")
            raise Refused(
                what.rpartition("error: ")[2].strip() or "the dialog could not be begun",
                fix=fix.strip() or f"look into {output}",
            )
        if time.monotonic() > deadline:
            raise DialogdError(f"nothing came of it within {seconds:g} s", fix=f"look into {output}")
        time.sleep(BEGIN_LOOK)


# -- `dialogd start`: one agent's daemon, in this terminal or, with --detach, in the background -----------------------

Peer = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="URL",
        help="Another agent's daemon, URL or ID=URL. Default: from the running daemons, else the file.",
    ),
]
Resume = Annotated[
    str | None,
    typer.Option("--resume", metavar="SESSION", help="claude-code: join with the context of a session of yours."),
]
GoOn = Annotated[bool, typer.Option("--continue", help="claude-code: the same, with your most recent session.")]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Run in the background; returns once it answers.")]

# Settings that are options of the same name.
OWN = (
    "port", "backend", "command", "model", "name", "role", "pace", "project", "max_tokens", "effort", "base_url", "api",
    "session", "trust_project", "repo", "gate", "gate_sees", "price", "budget", "digest", "debug",
)  # fmt: skip


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command an option for each of those settings; it is called with them by name, None where not given."""
    own = get_type_hints(command, include_extras=True)
    parameters = [one.replace(annotation=own[one.name]) for one in signature(command).parameters.values()]
    kept = [one for one in parameters if one.name != "given"]
    for setting in (one for one in SETTINGS if one.name in OWN):
        usual, flag = getattr(Settings(), setting.name), f"--{setting.name.replace('_', '-')}"
        kind: Any = bool if isinstance(usual, bool) else list[str] | None if isinstance(usual, tuple) else str | None
        about = f"{setting.about[:1].upper()}{setting.about[1:]}."
        metavar = None if kind is bool else setting.name.rpartition("_")[2].upper()
        option = Annotated[kind, typer.Option(flag, metavar=metavar, help=about)]
        default = False if kind is bool else None
        kept.append(Parameter(setting.name, Parameter.KEYWORD_ONLY, default=default, annotation=option))

    @wraps(command)
    def with_settings(*words: Any, **options_: Any) -> None:
        command(*words, given={name: options_.pop(name) or None for name in OWN}, **options_)

    with_settings.__signature__ = Signature(kept)  # type: ignore[attr-defined]
    with_settings.__annotations__ = {one.name: one.annotation for one in kept}
    return with_settings


@takes_settings
def start(
    agent: Annotated[str | None, typer.Argument(metavar="ID", help="The agent: A. Default: DIALOGD_ID.")] = None,
    *,
    given: Mapping[str, Any],
    peer: Peer = None,
    resume: Resume = None,
    go_on: GoOn = False,
    file: options.FileOption = None,
    detach: Detach = False,
    plan: options.Plan = None,
) -> None:
    """Run one agent's daemon, in a terminal of its own.

    Until Ctrl-C or `dialogd stop`. The dialog file may come later.
    """
    flags = {**given, "resume": "last" if go_on else resume}
    settings = options.settings_for(file, id=agent, plan=plan, **flags)
    if not settings.id:
        raise BadInput("which agent should this daemon speak for?", fix="name it: dialogd start A; or set DIALOGD_ID")
    cast = _cast_of_run(settings)
    if cast is None:
        person.own_words(options.log_of(settings), "start", settings.id)
    urls = peers(settings, peer or ())
    is_of_session = settings.backend == LIVE and bool(settings.session)
    if is_of_session and not is_inside(os.getpid(), settings.session):
        remark(f"{settings.id}: {AGREES}")
    if detach:
        _detached(settings, urls)
        return
    if is_of_session:
        from dialogd.cli.seat import take

        settings = take(settings)
    from dialogd.daemon import serve

    if sys.stderr.isatty():  # nobody reads it where `run` starts agents, and it costs them time
        _warn(settings)
    code = serve(settings, urls, cast, may_rehearse=cast is not None or not _is_beside_agents(settings))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # taking the SDKs apart in memory would take longer than all else that a stop does


def _is_beside_agents(settings: Settings) -> bool:
    """Whether agents that are no rehearsal run in this dialog already."""
    answers = healths(daemons(settings, settings.file)).values()
    return any(family_of(str(answer.get("backend") or LAST_RESORT)) != LAST_RESORT for answer in answers if answer)


def _cast_of_run(settings: Settings) -> Cast | None:
    """The cast of the `run` or `ask` that this process was started by; None where somebody else did.

    A session that holds a seat of the dialog starts no other agent of it, but by a `run` or `ask` of its own.
    """
    cast = saved_cast(StateDir(settings.state_dir), settings.file)
    return cast if cast is not None and cast.by and cast.by == process_key(os.getppid()) else None


def detached(settings: Settings, urls: Mapping[str, str]) -> Running:
    """Start a daemon with these settings in the background, and wait until it answers."""
    logs = StateDir(settings.state_dir).logs
    key = StateDir(settings.state_dir).dialog(settings.file).name
    words = ["start", settings.id, "--file", str(settings.file), *chain(*start_flags(settings, urls))]
    child = spawn(settings.id, words, logs / f"{settings.id}-{key}.out")
    try:
        return until_ready({child.id: child}, settings, [settings.backend])[child.id]
    except BaseException:  # a Ctrl-C while it starts ends it too
        end([child])
        raise


def _detached(settings: Settings, urls: Mapping[str, str]) -> None:
    """Start the same command in the background, and say how it is."""
    daemon = detached(settings, urls)
    show(plain(f"{daemon.id} runs: pid {daemon.pid}, port {daemon.port}, log {daemon.log}"))
    remark(f"end it with: dialogd stop, or kill {daemon.pid}")
    with suppress(DialogdError, OSError):  # the daemon runs, whatever cannot be said of it
        _warn(settings)


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
        agent, equals, url = text.partition("=")
        if equals and agent.upper() in RESERVED:
            raise BadInput(f"--peer {text!r}: the id {agent} is reserved: {WHY_RESERVED}", fix="name an agent: B=URL")
        if equals and not AGENT_ID.fullmatch(agent):
            raise BadInput(f"--peer {text!r}: {agent!r} is no agent's id", fix="write --peer B=http://localhost:3002")
        if equals:
            named[agent] = _loopback(url)
        else:
            bare.append(_loopback(text))
    try:
        agents = [agent.id for agent in options.log_of(settings).read().header.agents]
    except (DialogdError, OSError):
        agents = [*SEATS]  # while there is no dialog
    others = (who for who in agents if who != settings.id and who not in named)
    for url in bare:
        who = next(others, None)
        if who is None:
            raise BadInput(f"--peer {url}: the dialog has no further agent", fix="write --peer ID=URL")
        named[who] = url
    return named


def _loopback(url: str) -> str:
    """The URL in full; `3002` and `localhost:3002` will do."""
    full = url.strip()
    if re.fullmatch(r"\d{1,5}", full):
        full = f"localhost:{full}"
    if "://" not in full:
        full = f"http://{full}"
    match = LOOPBACK_URL.fullmatch(full)
    if match is None or not 0 < int(match[2]) < 65_536:
        raise BadInput(
            f"--peer {url!r} is not on this machine", fix="write a loopback address, such as http://localhost:3002"
        )
    return full.rstrip("/")

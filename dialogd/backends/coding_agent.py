"""What coding-agent CLIs share: looking at one, running it, reading what it prints, one run per turn."""

from __future__ import annotations

import asyncio
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from dialogd.backends import Found, Options, Request, Tool, Usage
from dialogd.backends.canary import Place, Turn, Verdict, prove
from dialogd.backends.child import Child, not_started
from dialogd.backends.command import clean_environment, last_line
from dialogd.backends.keys import bare
from dialogd.backends.parts import Prompt, tokens_of
from dialogd.backends.prices import Price, price_of
from dialogd.backends.service import SHORTER, TOO_LONG
from dialogd.backends.session import Plan, Sessions, checkpoint, plan, since, whole
from dialogd.errors import BackendError, BadInput
from dialogd.protocol.model import digest
from dialogd.protocol.redact import redact
from dialogd.protocol.text import one_line
from dialogd.store.disk import read_json, write_json
from dialogd.store.leftovers import note_made

VERSION_WAIT = 15.0  # seconds; on a busy machine the largest of these programs needs several
KNOWN_WAIT = 2.0  # seconds, where the last version of the same file is known
LONGEST = 4096  # bytes that a version may have; a program that prints more of them floods its output
MEMORY = "DIALOGD_STATE_DIR"  # the variable that says where versions are remembered

# How this machine reaches the network; no secrets in them, and without them some people's CLIs reach nothing.
NETWORK = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy", "SSL_CERT_FILE",
           "NODE_EXTRA_CA_CERTS")  # fmt: skip


class CLI(Protocol):
    """What a look needs to know of a CLI's class."""

    program: str
    vendor: str
    key: str
    log_in: str

    def login(self, environment: Mapping[str, str]) -> str: ...


def look(kind: CLI, variables: Mapping[str, str]) -> Found:
    """What a backend's `probe` says of a CLI: on PATH, its version, logged in or with a key, who pays."""
    from dialogd.backends.command import clean_environment

    found = shutil.which(kind.program, path=variables.get("PATH") or os.environ.get("PATH"))
    if found is None:
        return Found(False, f"{kind.program} is not on PATH", fix=f"install {kind.program}")
    environment = {**clean_environment(os.environ), **variables}
    version = _version(Path(found), environment, variables.get(MEMORY, ""))
    if not version:
        return Found(False, f"{kind.program} does not say its version", fix=f"run `{kind.program} --version` by hand")
    if login := kind.login(environment):
        pays = f"the key of your {kind.vendor} login" if "with a key" in login else f"your {kind.vendor} login"
        return Found(True, f"{kind.program} {version}, {login}", pays=pays, version=version)
    if variables.get(kind.key):
        return Found(True, f"{kind.program} {version}, with {kind.key}", pays=f"the key in {kind.key}", version=version)
    return Found(False, f"{kind.program} {version}, not logged in, no {kind.key}", version=version, fix=kind.log_in)


def _version(program: Path, environment: Mapping[str, str], state: str) -> str:
    """What the program says of itself; on a machine too busy to ask, what the same file said last.

    It is the same while path, size and time of change are. `state` is the state directory, "" for no memory.
    """
    memory = Path(state) / "programs" / f"{program.name}.json" if state else None
    mark = _mark(program)
    known = read_json(memory) if memory else None
    last = str(known.get("version") or "") if isinstance(known, dict) and mark and known.get("file") == mark else ""
    try:
        said = _asked(program, environment, KNOWN_WAIT if last else VERSION_WAIT)
    except OSError:
        return ""
    if said is None:
        return last
    version = version_in(said)
    if memory and version and version != last:
        with suppress(OSError):
            memory.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(memory, {"file": mark, "version": version})
    return version


def _asked(program: Path, environment: Mapping[str, str], seconds: float) -> bytes | None:
    """What `--version` prints, at most `LONGEST` bytes; b"" where it fails, None where it has no end in that time."""
    from dialogd.backends.command import clean_environment

    process = subprocess.Popen(
        [program, "--version"],
        env=clean_environment(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        start_new_session=True,
    )
    said, deadline = b"", time.monotonic() + seconds
    with process, selectors.DefaultSelector() as pipes:
        assert process.stdout is not None
        pipes.register(process.stdout, selectors.EVENT_READ)
        try:
            while len(said) < LONGEST:
                if not pipes.select(max(deadline - time.monotonic(), 0)):
                    return None
                if not (chunk := process.stdout.read(LONGEST)):
                    return said if process.wait(max(deadline - time.monotonic(), 0)) == 0 else b""
                said += chunk
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return b""


def _mark(program: Path) -> list[str | int]:
    """What tells a file from one that took its place: path behind the links, size, time of change in nanoseconds."""
    try:
        real = program.resolve()
        status = real.stat()
    except OSError:
        return []
    return [str(real), status.st_size, status.st_mtime_ns]


def version_in(said: bytes) -> str:
    """The version in what a program says of itself (`2.1.330 (Claude Code)`, `codex-cli 0.169.0`); "" without one."""
    return next((word for word in said.decode("utf-8", "replace").split() if word[:1].isdigit()), "")


# -- What a coding-agent CLI prints, line by line ---------------------------------------------------------------------

OUTPUT_CAP = 64 * 1024 * 1024  # bytes of stdout in one run; the files that it read are in there
LINES_CAP = 100_000  # of stdout in one run; a long one has a thousand
NOISE_CAP = 1024 * 1024  # bytes of stdout that are no event: warnings are let pass, a flood is not
QUOTED = 200  # characters of a CLI's own words
# What a session may count on from run to run; a run is one call, whatever was counted before it.
FIGURES = tuple(field.name for field in fields(Usage) if field.name not in ("model", "estimated", "calls"))

Event = Mapping[str, Any]


class LostSession(BackendError):
    """The CLI no longer has the session that was to be continued."""


@dataclass(frozen=True, slots=True)
class Words:
    """How a CLI is called in errors, how one logs in to it, and with a key of dialogd's giving where that goes."""

    program: str
    log_in: str
    keyed: bool = False  # it has a key of dialogd's giving, no login that it might renew
    variable: str = ""
    address: str = ""
    secrets: tuple[str, ...] = field(default=(), repr=False)  # taken out of what is quoted, before it is cut short


class Reader:
    """Takes the events of one run. A subclass notes what they say; success needs a positive sign, `text` set.

    `begun` is the session that it runs in, `session` the one that can be continued. `total` is what the CLI has counted
    in this session by now; `tools` are those that have begun to run since somebody looked, "" once one has ended;
    `hopeless` ends the run at once.
    """

    def __init__(self, words: Words) -> None:
        self.words = words
        self.text: str | None = None
        self.session = self.begun = ""
        self.total = Usage()
        self.failure: BackendError | None = None
        self.hopeless = False
        self.tools: list[str] = []
        self.size = 0
        self._rest: list[bytes] = []  # pieces of a line that has not ended
        self._noise = self._lines = 0
        self._refusals = 0

    def take(self, event: Event) -> None:
        """Note what one event says."""
        raise NotImplementedError

    def give_up(self, message: str, status: int | None = None) -> None:
        """The CLI would go on trying, in vain."""
        self.failure, self.hopeless = failed(self.words, message, status), True

    def refused(self, message: str, status: int | None = None) -> None:
        """The service refuses who asks. A key does not get better; a login may be renewed on the way, once."""
        self._refusals += 1
        if self.words.keyed or self._refusals > 1:
            self.give_up(message, status)

    def feed(self, chunk: bytes) -> None:
        """Take a piece of stdout: whole lines are events, what is no JSON is ignored."""
        self.size += len(chunk)
        *lines, last = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest = []
        self._rest += [last] if last else []
        self._noise += sum(len(line) + 1 for line in lines if not _is_event(line))
        noise = self._noise + (sum(map(len, self._rest)) if self._rest and not _is_event(self._rest[0]) else 0)
        self._lines += len(lines)
        if noise > NOISE_CAP or self._lines > LINES_CAP or self.size > OUTPUT_CAP:
            what = f"{NOISE_CAP >> 20} MiB that is no answer" if noise > NOISE_CAP else f"{OUTPUT_CAP >> 20} MiB"
            what = f"{LINES_CAP:,} lines" if self._lines > LINES_CAP else what
            self.failure = BackendError(
                f"{self.words.program} floods its output: it printed more than {what}, and was ended",
                fix=f"run `{self.words.program}` by hand, and see what it prints; or install another version",
                kind="garbled",
            )
            self.hopeless = True
            return
        for line in lines:
            for event in _events(line):
                self.take(event)

    def end(self, code: int, said: str) -> None:
        """The run is over. `said` is stderr's last line. Sets `failure` unless there is a reply."""
        for event in _events(b"".join(self._rest)) if not self.hopeless else ():
            self.take(event)
        if self.failure is None and self.text is None:
            self.failure = failed(self.words, said or f"exited {code} without a reply")
        elif self.failure is None and not (self.text or "").strip():
            self.failure = BackendError(
                f"{self.words.program} answered with no text",
                fix="choose another --model",
                kind="empty",
                retryable=True,
            )

    def spent(self, before: Usage | None) -> Usage:
        """What this run used, where the session had counted `before`."""
        return replace(since(self.total, before, FIGURES), estimated=self.text is None)


def _is_event(line: bytes) -> bool:
    return line.lstrip().startswith(b"{")


def _events(line: bytes) -> Iterator[Event]:
    if _is_event(line):
        try:
            event = json.loads(line)
        except ValueError:
            return
        if isinstance(event, dict):
            yield event


# (kind, may be tried again, statuses, words). The first that fits counts.
_RULES: tuple[tuple[str, bool, frozenset[int], str], ...] = (
    ("limit", False, frozenset({402}), r"(usage|spend(ing)?|monthly|weekly|5-hour|session) limit|limit reached|hit your"
     r"|quota|credit balance|out of credits|budget|billing"),
    ("cut", False, frozenset(), r"output token maximum|max_output_tokens"),
    ("auth", False, frozenset({401, 403}), r"not logged in|log ?in|api key|authenticat|unauthorized"
     r"|missing environment variable|token (has )?(expired|been revoked)"),
    ("request", False, frozenset({400, 404, 413, 422}), r"too (long|large)|context (window|length)|selected model"
     r"|model .*(not|does)|exceeds the maximum|invalid_request"),
    ("busy", True, frozenset({409, 429, 503, 529}), r"overloaded|rate.?limit|too many requests|at capacity"
     r"|high demand"),
    ("garbled", True, frozenset(), r"json|malformed"),
    ("network", True, frozenset(), r"connect|network|socket|stream (disconnected|closed)|error sending request|ECONN"
     r"|fetch failed|timed? ?out"),
)  # fmt: skip

_STATUS = re.compile(r"\b(?:status|error|HTTP)\D{0,12}([45]\d\d)\b", re.I)


def failed(words: Words, message: str, status: int | None = None) -> BackendError:
    """The error that a CLI's own words amount to; `status` where it names the service's."""
    if status is None and (found := _STATUS.search(message)):
        status = int(found[1])
    kind, again = _kind(message, status)
    quoted = one_line(message, QUOTED, words.secrets)
    cause = f"{words.program} failed: {quoted}" if quoted else f"{words.program} failed"
    if kind == "auth" and words.keyed:
        cause += f" ({status or 'refused'} from {words.address})"
    return BackendError(
        cause,
        fix=SHORTER if kind == "request" and TOO_LONG.search(message) else _fix(kind, words),
        retryable=again,
        kind=kind,
    )


def _kind(message: str, status: int | None) -> tuple[str, bool]:
    for kind, again, statuses, pattern in _RULES:
        wanted = status is None or status in statuses or kind == "limit"
        if (status in statuses) or (wanted and re.search(pattern, message, re.I)):
            return kind, again
    return "failed", status is None or status >= 500


def _fix(kind: str, words: Words) -> str:
    return {
        "limit": f"wait until the limit of your login or key is renewed, or raise it; `{words.program}` says which",
        "auth": f"check {words.variable}: that key was sent to {words.address}" if words.keyed else words.log_in,
        "request": "choose another --model",
        "cut": "raise --max-tokens, or ask for a shorter reply",
        "busy": "ask again with `dialogd retry` in a while",
        "network": "look at the connection, then ask again with `dialogd retry`",
    }.get(kind, f"run `{words.program}` by hand in the project, and see what it says")


# -- A coding-agent CLI on this machine -------------------------------------------------------------------------------

_PASSWORD = re.compile(r"://[^/@:]*:([^/@]+)@")  # of an address
_JOINER = "\u2060"  # a word joiner: no CLI takes `@` and this for the name of a file


class CLITool:
    """A coding agent's command line. Raises `BadInput` where it is not there, or the project is not.

    program   what is looked for on PATH
    vendor    whose prices count
    key       the variable with a key of its own, which it gets only while it is not logged in; `address` likewise
    own       further variables of its own that are passed on
    at_files  True when it attaches the file behind an `@` in a prompt
    forks     True when a session can be continued and still stay as it was
    one_file  True when it keeps all its sessions in one file
    joins     True when it can go on from a session of the person's
    levels    how many ways of reading only it has, the strictest first; the canary picks the first that holds
    confined  the levels below this one keep it from reading outside the project
    longest   characters that a prompt may have
    """

    name: ClassVar[str] = ""
    program: ClassVar[str] = ""
    vendor: ClassVar[str] = ""
    key: ClassVar[str] = ""
    address: ClassVar[str] = ""
    own: ClassVar[tuple[str, ...]] = ()
    at_files: ClassVar[bool] = False
    forks: ClassVar[bool] = True
    one_file: ClassVar[bool] = False
    joins: ClassVar[bool] = False
    levels: ClassVar[int] = 1
    confined: ClassVar[int] = 1
    longest: ClassVar[int] = 1_000_000
    log_in: ClassVar[str] = ""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.level = 0
        self._own_state = tempfile.TemporaryDirectory(prefix="dialogd-") if options.state is None else None
        self.state = options.state or Path(self._own_state.name if self._own_state else "")
        self.project = self._project()
        self.environment, self.paid = self._environment()
        password = _PASSWORD.search(self.base_url()) if self.paid else None
        held = (self.paid, *(password.groups() if password else ())) if self.paid else ()
        self.secrets = (*held, *options.secrets)
        self.chosen, self.effort = self.preferences()
        self.model = self.chosen
        self.price = self._price()
        self._path = self._program()
        if options.resume and not self.joins:
            raise BadInput(f"{self.name} cannot go on from a session of yours", fix="leave --resume out")
        for option, value in (("resume", options.resume), ("model", self.chosen), ("effort", self.effort)):
            if value.startswith("-"):  # it would be a flag of the program's, and perhaps undo those that keep it safe
                raise BadInput(f"--{option} {value!r} begins like a flag", fix=f"name a {option}")

    # What a CLI says of itself

    def arguments(self, turn: Turn) -> list[str]:
        """The words after the program. Nothing secret, and nothing of the dialog."""
        raise NotImplementedError

    def reader(self) -> Reader:
        """A new reader for one run."""
        raise NotImplementedError

    def settings(self, turn: Turn) -> dict[str, str]:
        """Variables of a run: no telemetry, no updates, few attempts."""
        return {}

    @classmethod
    def login(cls, environment: Mapping[str, str]) -> str:
        """How the person is logged in (`logged in with a Claude plan`), "" when not; no secret is read out."""
        return ""

    def missing(self, said: str) -> bool:
        """True when stderr's last line says that the session is not there."""
        return False

    def orders(self, place: Place) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """The tool calls, (name, input), by which the stand-in tries to write: all of them must be refused."""
        raise NotImplementedError

    def reads(self, path: Path) -> tuple[str, Mapping[str, Any]]:
        """The tool call that reads a file."""
        raise NotImplementedError

    def bait(self, marker: Path) -> Mapping[str, str]:
        """Files of a hostile project, by path: each makes `marker` if the CLI lets it."""
        return {}

    def preferences(self) -> tuple[str, str]:
        """The model and the effort to ask for, "" where the CLI is to choose."""
        return self.options.model, self.options.effort

    def session_file(self, session: str) -> Path | None:
        """The file in the person's home in which it keeps a session, alone or not; None where it keeps none there."""
        return None

    def joined(self) -> str:
        """The person's session to go on from."""
        return self.options.resume

    # One run

    async def run(self, turn: Turn, reader: Reader, before: Usage | None = None) -> AsyncGenerator[Usage | Tool, None]:
        """Run the CLI for `turn`. Yields what was used so far, and which tools run. Raises `BackendError`."""
        child = self._start(turn)
        used = guess = Usage(self.model, tokens_of(turn.text), 0, estimated=True)
        try:
            yield guess
            while not reader.hopeless and (chunk := await child.read()):
                reader.feed(chunk)
                while reader.tools:
                    yield Tool(reader.tools.pop(0))
                if (now := reader.spent(before)) != used and now.tokens_in is not None:
                    yield (used := now)
        finally:
            code = await child.end()
        if child.errno is not None:
            raise BackendError(f"cannot run {self.program!r}: {os.strerror(child.errno)}", fix="install it again")
        said = last_line(child.stderr, self.secrets)
        if turn.session and reader.text is None and self.missing(f"{reader.failure or ''} {said}"):
            raise self._lost(turn)
        reader.end(code, said)
        yield self._account(reader, reader.spent(before), guess)
        if reader.failure is not None:
            raise reader.failure

    def _account(self, reader: Reader, spent: Usage, guess: Usage) -> Usage:
        """What a run used; where it does not say, nothing was used by what was not let in, else a guess is kept."""
        if spent.tokens_in is not None:
            return spent
        kind = reader.failure.kind if reader.failure else ""
        return Usage(self.model, 0, 0) if kind in ("auth", "limit", "busy", "request") else guess

    def sendable(self, text: str) -> str:
        """The text so that the CLI attaches nothing on its own; a reply is turned back."""
        return text.replace("@", f"@{_JOINER}") if self.at_files else text

    def received(self, text: str) -> str:
        """A reply as it was meant."""
        return text.replace(f"@{_JOINER}", "@") if self.at_files else text

    def _start(self, turn: Turn) -> Child:
        environment = {
            **self.environment,
            **self.settings(turn),
            "TMPDIR": str(turn.folder),
            **self.options.environment,
        }
        try:
            return Child(
                [self._path, *self.arguments(turn)], turn.text.encode("utf-8", "replace"), environment, self.project
            )
        except OSError as error:
            raise not_started(error, self._path) from error

    def _lost(self, turn: Turn) -> BackendError:
        if turn.join:
            return BackendError(
                f"{self.program} has no session {turn.session!r} to go on from",
                fix="look for its id in the project, or leave --resume out",
                kind="request",
            )
        return LostSession(f"{self.program} lost its session", fix="ask again with `dialogd retry`", retryable=True)

    async def close(self) -> None:
        """Forget what only this process kept."""
        if self._own_state is not None:
            self._own_state.cleanup()

    # Set-up

    def _project(self) -> Path:
        project = self.options.project
        if project is not None and not project.is_dir():
            raise BadInput(
                f"the project {str(project)!r} is not a directory", fix="name an existing directory with --project"
            )
        empty = self.state / "empty"
        if project is None:
            empty.mkdir(mode=0o700, parents=True, exist_ok=True)
        return (project or empty).resolve()

    def _environment(self) -> tuple[dict[str, str], str]:
        """What a run sees, and the key that it is paid with, "" when that is not a key's matter."""
        given = self.options.variables
        passed = {name: given[name] for name in (*NETWORK, *self.own) if given.get(name)}
        environment = {**clean_environment(os.environ), **passed, **self.options.environment}
        login = self.login(environment)
        if self.options.base_url and (login or not given.get(self.key)):
            why = f"{self.program} is {login}" if login else f"there is none in {self.key or 'any variable'}"
            raise BadInput(
                f"--base-url is for a key, and {why}",
                fix="leave --base-url out" if login or not self.key else f"set {self.key}",
            )
        key = given.get(self.key, "") if self.key and not login else ""
        if key:
            environment[self.key] = key
            if base := self.base_url():
                environment[self.address] = base
        return environment, key

    def base_url(self) -> str:
        """Where the key goes, "" for the vendor's own address."""
        return self.options.base_url or self.options.variables.get(self.address, "") if self.address else ""

    def words(self) -> Words:
        """How errors call it."""
        address = bare(self.base_url()) or self.vendor or "its provider"
        return Words(self.program, self.log_in, bool(self.paid), self.key, address, self.secrets)

    def _program(self) -> str:
        found = shutil.which(self.program, path=self.environment.get("PATH"))
        if found is None:
            raise BadInput(f"{self.program} is not on PATH", fix=f"install {self.program}, or choose another backend")
        return str(Path(found).absolute())

    def _price(self) -> Price | None:
        return price_of(self.model, self.vendor, self.options.price) if self.model or self.options.price else None

    async def version(self) -> str:
        """What `--version` says, "" when it says nothing within 15 s."""
        child = Child([self._path, "--version"], b"", self.environment, self.state)
        said = b""
        try:
            async with asyncio.timeout(VERSION_WAIT):
                while len(said) < LONGEST and (chunk := await child.read()):
                    said += chunk
        except TimeoutError:
            said = b""
        finally:
            await child.end()
        return version_in(said) if len(said) < LONGEST else ""

    @property
    def path(self) -> Path:
        """The program, behind its links."""
        return Path(self._path).resolve()

    def double(self, place: Place, level: int) -> Self:
        """The same backend, with the same flags, for a rehearsal: a fake key, another home, another project."""
        options = replace(
            self.options,
            model=self.chosen,
            effort=self.effort,
            project=place.project,
            state=place.home,
            resume="",
            base_url=place.url,
            variables={self.key: "sk-ant-test-canary"},
            environment={**self.options.environment, "HOME": str(place.home)},
        )
        double = type(self)(options)
        double.level = level
        return double


# -- The base of coding-agent CLIs ------------------------------------------------------------------------------------

ROOM = 150_000  # tokens; what the smallest window of today's models leaves for a prompt


class AgentCLI(CLITool):
    """A coding agent's command line as a backend. What it does turn by turn; `CLITool` has the rest.

    Raises `BadInput` where it is not there, or its project is not.
    """

    costs = True
    most_out = 0
    room = ROOM

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._sessions = Sessions(options.state / f"{self.name}-sessions.json" if options.state else None)
        self._verdict: Verdict | None = None
        self._one = asyncio.Lock()

    async def prepare(self) -> None:
        """Prove, once per version and flags, that it cannot write. Takes seconds the first time.

        Raises `BackendError` of kind `unsafe` when it could, or when that cannot be told.
        """
        if self._verdict is None:
            verdict = await prove(self)
            if not verdict.safe:
                raise BackendError(
                    f"{self.program} {verdict.version} is not used: {verdict.why}",
                    fix=f"install another version of {self.program}, or use an API backend",
                    kind="unsafe",
                )
            self._verdict, self.level = verdict, verdict.level
            self.model = self.model or verdict.model
            self.price = self._price() or price_of(verdict.model, self.vendor)  # it may know models by words of its own

    async def reply(self, request: Request) -> AsyncGenerator[str | Usage | Tool, None]:
        """Run the CLI once and yield what it used and which tools ran, then its reply. Raises `BackendError`."""
        async with self._one:
            await self.prepare()
            prompt, me = request.prompt(), request.agent.id
            chosen = plan(prompt, me, self._basis(prompt), self._sessions.points)
            while True:
                reader = self.reader()
                try:
                    async with aclosing(self._run(prompt, chosen, request, reader)) as usages:
                        async for usage in usages:
                            yield usage
                    break
                except LostSession:
                    if chosen.after is None:
                        raise
                    self._sessions.drop(chosen.after.session)
                    chosen = Plan(whole(prompt))
            reply = self.received(reader.text or "")
            self._remember(prompt, request, reader, reply)
            yield reply

    async def _run(
        self, prompt: Prompt, chosen: Plan, request: Request, reader: Reader
    ) -> AsyncGenerator[Usage | Tool, None]:
        """One run of the CLI, whose output `reader` takes. Yields what was used and what ran; raises `BackendError`."""
        before = chosen.after.usage if chosen.after else None
        if chosen.after and not self.forks and not request.question:
            self._sessions.drop(chosen.after.session)  # from here on it has heard what it may never answer
        with tempfile.TemporaryDirectory(prefix="run-", dir=self.state, ignore_cleanup_errors=True) as folder:
            turn = self._turn(prompt, chosen, request, Path(folder))
            try:
                async with aclosing(self.run(turn, reader, before)) as usages:
                    async for usage in usages:
                        yield usage
            finally:
                if session := reader.session or reader.begun:
                    note_made(self.state, self.session_file(session), session if self.one_file else "")

    def _turn(self, prompt: Prompt, chosen: Plan, request: Request, folder: Path) -> Turn:
        system = folder / "system.md"
        system.write_text(prompt.system, encoding="utf-8", errors="replace", newline="\n")
        text, session, join = chosen.text, chosen.after.session if chosen.after else "", False
        if not session and self.options.resume:
            # The person's session goes on under the system prompt that it began with.
            session, join, text = self.joined(), True, f"{prompt.system}\n\n{chosen.text}"
        if len(text) > self.longest:
            raise BackendError(
                f"the prompt has {len(text):,} characters, and {self.program} takes {self.longest:,}",
                fix=SHORTER,
                kind="request",
            )
        return Turn(self.sendable(text), system, folder, session, join, request.allowance)

    def _remember(self, prompt: Prompt, request: Request, reader: Reader, reply: str) -> None:
        if request.question:  # what is gone on from is the reply, not what was asked about it
            after = plan(prompt, request.agent.id, self._basis(prompt), self._sessions.points).after
            if after is not None and not self.forks:
                self._sessions.add(replace(after, session=reader.session or after.session, usage=reader.total))
            return
        if reader.session:
            basis = self._basis(prompt)
            self._sessions.add(
                checkpoint(
                    prompt,
                    request.re,
                    basis,
                    session=reader.session,
                    reply=redact(reply, self.secrets)[0],
                    usage=reader.total,
                )
            )

    def _basis(self, prompt: Prompt) -> str:
        """What a session was begun under; another is of no use."""
        return digest(f"{prompt.system}\0{self.project}\0{self.options.resume}")

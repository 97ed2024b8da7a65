"""What coding-agent CLIs share: probing, one run per turn, reading its events, sessions.

A new one is a subclass of `AgentCLI` (names, paths, orders; arguments) and one of `Output` (what its events mean).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import tempfile
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Self

from dialogd.backends import MACHINE, WRITING, Backend, Found, Options, Price, Request, Tool, Usage, bare, price_of
from dialogd.backends.apis import QUOTED, SHORTER, TOO_LONG
from dialogd.backends.command import Messages, clean_environment, last_line, limits_of, missing
from dialogd.backends.open_sessions import UUID
from dialogd.backends.parts import Part, Prompt, tokens_of
from dialogd.backends.readonly_proof import KEY, NO_SHELL, Order, Proof, Run, Stage, Way, prove
from dialogd.errors import BackendError, BadInput
from dialogd.protocol.model import digest
from dialogd.protocol.text import one_line, redact
from dialogd.store.child import Child
from dialogd.store.disk import read_json, write_json, write_over
from dialogd.store.leftovers import note_made

VERSION_WAIT = 15.0  # seconds; on a busy machine the largest of these programs needs several
LONGEST = 4096  # bytes that a program may print when it is asked for its version
ROOM = 150_000  # tokens; what the smallest window of today's models leaves for a prompt

log = logging.getLogger("dialogd")

Event = Mapping[str, Any]

TEMPORARY = "/var/tmp"  # in a sandbox; Codex keeps links to itself in no folder below this
_PASSWORD = re.compile(r"://[^/@:]*:([^/@]+)@")  # of an address
_JOINER = "\u2060"  # a word joiner: no CLI takes `@` and this for the name of a file


# -- What a failure means, by the words of the program that tells it --------------------------------------------------

# (kind, may be tried again, statuses, words). The first that fits counts.
_RULES: tuple[tuple[str, bool, frozenset[int], str], ...] = (
    ("limit", False, frozenset({402}), r"(usage|spend(ing)?|monthly|weekly|5-hour|session) limit|limit reached|hit your"
     r"|quota|credit balance|out of credits|budget|billing"),
    ("cut", False, frozenset(), r"output token maximum|max_output_tokens"),
    ("auth", False, frozenset({401, 403}), r"not logged in|log ?in\b|api[ _-]?key|authenticat|unauthori[sz]ed"
     r"|credential|missing environment variable|token (has )?(expired|been revoked)|permission_denied"),
    ("request", False, frozenset({400, 404, 413, 422}), r"too (long|large)|context (window|length)|selected model"
     r"|model .*(not|does)|ModelNotFound|is not found|not supported for|exceeds the maximum|invalid_request"),
    ("busy", True, frozenset({409, 429, 503, 529}), r"overloaded|rate.?limit|too many requests|at capacity"
     r"|high demand|unavailable"),
    ("garbled", True, frozenset(), r"json|malformed"),
    ("network", True, frozenset({408}), r"connect|network|socket|stream (disconnected|closed)|error sending request"
     r"|ECONN|ENOTFOUND|fetch failed|timed? ?out"),
)  # fmt: skip
_STATUS = re.compile(r"\b(?:status|error|HTTP)\D{0,12}([45]\d\d)\b", re.I)

# Replies that a program ended by itself: what is said, and what to do.
_ENDS = {
    "limit": ("the turn would have passed its budget", "raise the budget, or end the dialog"),
    "refusal": ("the model refused", "put the question differently, or choose another --model"),
    "cut": ("the reply was cut at the most tokens it may have", "raise --max-tokens, or ask for a shorter reply"),
    "request": ("the prompt is too long", SHORTER),
    "network": ("the answer ended before its end", "ask again with `dialogd retry`"),
    "empty": ("it answered with no text", "choose another --model"),
}


def failed(
    program: str, message: str, status: int | None = None, *, log_in: str, secrets: Sequence[str] = ()
) -> BackendError:
    """The error for a program's message; `status` where it names the service's."""
    if status is None and (found := _STATUS.search(message)):
        status = int(found[1])
    told = ("limit",) if status is not None else tuple(kind for kind, *_ in _RULES)  # by words
    rules = (row for row in _RULES if status in row[2] or (row[0] in told and re.search(row[3], message, re.I)))
    kind, again, *_ = next(rules, ("failed", status is None or status >= 500))
    fix = {
        "limit": f"wait until the limit of your login or key is renewed, or raise it; `{program}` says which",
        "auth": log_in,
        "request": SHORTER if TOO_LONG.search(message) else "choose another --model",
        "cut": _ENDS["cut"][1],
        "busy": "ask again with `dialogd retry` in a while",
        "network": "look at the connection, then ask again with `dialogd retry`",
    }.get(kind, f"run `{program}` by hand in the project, and see what it says")
    cause = f"{program} failed: {one_line(message, QUOTED, secrets)}".removesuffix(": ")
    return BackendError(cause, fix=fix, retryable=again, kind=kind)


def ended(program: str, kind: str) -> BackendError:
    cause, fix = _ENDS[kind]
    return BackendError(f"{program} failed: {cause}", fix=fix, kind=kind, retryable=kind in ("network", "empty"))


# -- What a run prints ------------------------------------------------------------------------------------------------


def table(value: object, *path: str) -> Mapping[str, Any]:
    """The table at this path of keys below `value`; {} where there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def counts(figures: Mapping[str, Any], *names: str) -> list[int]:
    return [int(figures.get(name) or 0) for name in names]


class LostSession(BackendError):
    """The CLI no longer has the session that was to be continued."""


class Output:
    """Takes the events of one run. A subclass notes what they say; success needs a positive sign, `text` set."""

    def __init__(self, cli: AgentCLI) -> None:
        self.cli = cli
        self.folder = Path()  # the run's own
        self.joins = False  # the session is the person's, with a past of its own
        self.said: list[str] = []  # the reply as it comes
        self.text: str | None = None
        self.begun = ""  # the session that it runs in
        self.session = ""  # the one that can be continued
        self.total = Usage()  # what the CLI has counted in this session by now
        self.failure: BackendError | None = None
        self.hopeless = False  # the run is to be ended at once
        self.tools: list[str] = []  # that have begun to run since somebody looked, "" once one has ended
        self._refusals = 0

    def take(self, event: Event) -> None:
        raise NotImplementedError

    def refused(self, message: str, status: int | None = None) -> None:
        """Note that the service refuses the credentials. A key stays refused; a login may be renewed once."""
        self._refusals += 1
        if self.cli.paid or self._refusals > 1:
            self.failure, self.hopeless = self.cli.failed(message, status), True

    def end(self, code: int, said: str) -> None:
        """End the run; `said` is stderr's last line. Sets `failure` unless there is a reply."""
        if self.failure is None and self.text is None:
            self.failure = self.cli.failed(said or f"exited {code} without a reply")
        elif self.failure is None and not (self.text or "").strip():
            self.failure = ended(self.cli.program, "empty")

    def spent(self, before: Usage | None) -> Usage:
        """What this run used, where the session had counted `before`."""
        return replace(since(self.total, before), estimated=self.text is None)


# -- The base of coding-agent CLIs ------------------------------------------------------------------------------------


class AgentCLI(Backend):
    """A coding agent's command line as a backend. Raises `BadInput` without the program or the project."""

    name = ""
    program: ClassVar[str] = ""  # looked for on PATH
    package: ClassVar[str] = ""  # what npm calls it
    vendor: ClassVar[str] = ""  # whose prices count
    key: ClassVar[str] = ""  # the variable with a key of its own, which it gets only while it is not logged in
    address: ClassVar[str] = ""  # likewise
    own: ClassVar[tuple[str, ...]] = ()  # further variables of its own that are passed on
    keeps: ClassVar[tuple[str, str, str]] = ("", "", "")  # logins, sessions: a variable, a path below; one below home
    at_home: ClassVar[bool] = True  # False: it has a folder of its own for them, to which a login is lent
    logins: ClassVar[tuple[str, ...]] = ()  # the files there that hold a login
    settings_files: ClassVar[tuple[str, ...]] = ()  # and those by which something would run in the person's session
    session_files: ClassVar[str] = ""  # where it keeps each session there, as a pattern for its id
    log_in: ClassVar[str] = ""
    lost: ClassVar[str] = ""  # what it says, as an expression, when a session is not there
    longest: ClassVar[int] = 1_000_000  # characters that a prompt may have
    events: ClassVar[type[Output]] = Output
    at_files: ClassVar[bool] = False  # True when it attaches the file behind an `@` in a prompt
    forks: ClassVar[bool] = True  # True when a session can be continued and still stay as it was
    tells_model: ClassVar[bool] = True  # True when it asks the trial's service for the model that it would use itself

    # How it is proved to read only: by its tool that reads, and by all that must be refused. Where it `writes` in one
    # folder only by its own rules, also by those that make a file, change one, or get out.
    writes: ClassVar[bool] = False
    reads: ClassVar[Order]
    orders: ClassVar[tuple[Order, ...]] = ()
    commands: ClassVar[tuple[Order, ...]] = ()  # by which its shell is tried, where it is given one by us
    makes: ClassVar[tuple[Order, ...]] = ()
    changes: ClassVar[tuple[Order, ...]] = ()
    escapes: ClassVar[tuple[Order, ...]] = ()

    costs = True
    room = ROOM

    def __init__(self, options: Options) -> None:
        self.options = options
        assert options.state is not None
        self.state = options.state
        self.empty = self.state / "empty"
        self.empty.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.project = (options.project or self.empty).resolve()
        self.environment, self.paid = self._environment()
        self.persons = self.folder(self.environment)  # where the person's login lies
        password = _PASSWORD.search(self.base_url()) if self.paid else None
        self.secrets = (*filter(None, (self.paid, *(password.groups() if password else ()))), *options.secrets)
        self.chosen, self.effort = self.preferences()
        self.model = self.chosen
        self.price: Price | None = self._price()
        program = shutil.which(self.program, path=self.environment.get("PATH"))
        if program is None:
            fix = f"npm install -g {self.package}; or choose another backend"
            raise BadInput(f"{self.program} is not on PATH", fix=fix)
        self._path = Path(program).absolute()
        for option, value in (("resume", options.resume), ("model", self.chosen), ("effort", self.effort)):
            if value.startswith("-"):  # it would be a flag of the program's, and perhaps undo those that keep it safe
                raise BadInput(f"--{option} {value!r} begins like a flag", fix=f"name a {option}")
        self._sessions = Sessions(self.state / f"{self.name}-sessions.json")
        self._proof: Proof | None = None
        self._writes = False  # it was proved to do so in one folder only
        self._shell: bool | None = None  # its commands were proved to run in a sandbox of their own
        self._one = asyncio.Lock()

    # What a CLI says of itself

    def arguments(self, run: Run) -> list[str]:
        """The arguments, without secrets and without the dialog."""
        raise NotImplementedError

    def settings(self, run: Run) -> dict[str, str]:
        """Variables of a run: no telemetry, no updates, few attempts."""
        return {}

    def seat(self, run: Run) -> Path:
        return self.project if run.way is None else run.way.workspace.path

    @classmethod
    def login(cls, environment: Mapping[str, str]) -> str:
        """How the person is logged in (`logged in with a Claude plan`), "" when not; no secret is read out."""
        return ""

    @classmethod
    def installed(cls, program: Path) -> str:
        """The version if it can be found without running the program (links resolved), else ""."""
        return ""

    def furnish(self, home: Path, *, boxed: bool) -> None:
        """Put what it needs, besides logins, into a folder of its own."""

    def bait(self, marker: Path) -> Mapping[str, str]:
        """Files of a hostile project, by path: each makes `marker` if the CLI lets it."""
        return {}

    def preferences(self) -> tuple[str, str]:
        """The model and the effort to ask for, "" where the CLI is to choose."""
        return self.options.model, self.options.effort

    def session_file(self, session: str) -> Path | None:
        """The file in the person's home in which it keeps a session; None where it keeps none there."""
        is_one = self.session_files and UUID.fullmatch(session)
        return next(self.persons.glob(self.session_files.format(session)), None) if is_one else None

    def joined(self) -> str:
        """The session of the person's to go on from, "" for none."""
        return ""

    def trusts(self, run: Run) -> bool:
        """Whether what the project contains may run; what stands in a worktree is the agent's own."""
        return self.options.trust_project and run.way is None

    def around(self, run: Run, home: Path) -> dict[str, str]:
        """Variables by which each command that it runs in our sandbox gets one of its own, within that."""
        return {}

    # A look at it

    @classmethod
    def folder(cls, environment: Mapping[str, str]) -> Path:
        variable, below, usual = cls.keeps
        given = environment.get(variable)
        return Path(given, below) if given else Path(environment.get("HOME") or Path.home(), usual)

    @classmethod
    def probe(cls, variables: Mapping[str, str], _variant: str = "") -> Found:
        """Whether it is on PATH, its version, logged in or with a key, who pays."""
        program = cls.program
        path = shutil.which(program, path=variables.get("PATH") or os.environ.get("PATH"))
        if path is None:
            return Found(False, f"{program} is not on PATH", fix=f"npm install -g {cls.package}")
        environment = {**clean_environment(os.environ), **variables}
        version = cls.installed(Path(path).resolve()) or asyncio.run(_version(Path(path), environment))
        if not version:
            return Found(False, f"{program} does not say its version", fix=f"run `{program} --version` by hand")
        if login := cls.login(environment):
            own = " ".join(filter(None, ("your", cls.vendor, "login")))  # of some nobody knows whose it is
            pays = f"the key of {own}" if "with a key" in login else own
            return Found(True, f"{program} {version}, {login}", pays=pays, version=version)
        if variables.get(cls.key):
            return Found(True, f"{program} {version}, with {cls.key}", pays=f"the key in {cls.key}", version=version)
        return Found(False, f"{program} {version}, not logged in, no {cls.key}", version=version, fix=cls.log_in)

    async def version(self) -> str:
        """Its version, "" without an answer within 15 s."""
        return self.installed(self.path) or await _version(self._path, self.environment)

    @property
    def path(self) -> Path:
        return self._path.resolve()

    def base_url(self) -> str:
        """Where the key goes, "" for the vendor's own address."""
        return self.options.base_url or self.options.variables.get(self.address, "")

    def double(self, stage: Stage, *, writes: bool) -> Self:
        """The same backend with the same flags for the trial; where it `writes`, nobody trusts the project."""
        options = replace(
            self.options,
            model=self.chosen,
            effort=self.effort,
            project=stage.project,
            state=stage.home.parent / "agent" if writes else stage.home,
            trust_project=self.options.trust_project and not writes,
            resume="",
            base_url=stage.url,
            variables={self.key: KEY},
            environment={**self.options.environment, "HOME": str(stage.home)},
        )
        return type(self)(options)

    # Turns

    async def prepare(self) -> None:
        """Prove, once per version and flags, that it cannot write. Raises `BackendError` (`unsafe`) else."""
        if self._proof is None:
            fix = f"install another version of {self.program}, or use an API backend"
            self._proof = self._passed(await prove(self), "is not used", fix)

    async def prepare_to_write(self) -> None:
        """Make sure that it writes in a workspace and nowhere else: by the mounts of a sandbox, else by a trial."""
        if not (lacking := missing()):
            await self.prepare()  # for its own model
            if self._shell is None and self.commands:
                proof = await prove(self, writes=True, shell=True)
                self._shell = proof.safe
                if not proof.safe:
                    log.warning(f"warning: {self.program} {proof.version} {NO_SHELL}: {proof.why}; another version may")
        elif not self._writes:
            others = ", ".join(sorted(WRITING))
            fix = f"install bubblewrap, or another version of {self.program}; or name another of {others}"
            proof = await prove(self, writes=True)
            self._passed(replace(proof, why=f"{lacking}, and {proof.why}"), "is not used where it may write", fix)
            self._writes = True

    def _passed(self, proof: Proof, failed: str, fix: str) -> Proof:
        if not proof.safe:
            raise BackendError(f"{self.program} {proof.version} {failed}: {proof.why}", fix=fix, kind="unsafe")
        if self.tells_model:
            self.model = self.model or proof.model
            self.price = self._price() or price_of(proof.model, self.vendor)  # it may know models by words of its own
        return proof

    async def reply(self, request: Request) -> AsyncGenerator[str | Usage | Tool, None]:
        """Run the CLI once and yield what it used and which tools ran, then its reply. Raises `BackendError`."""
        async with self._one:
            way = None
            if request.workspace is not None:
                request.workspace.check([self.state / f"{self.name}-home"])
                await self.prepare_to_write()
                way = Way(request.workspace, boxed=not missing(), shell=bool(self._shell))
            else:
                await self.prepare()
            prompt, project = request.prompt(), self.project if way is None else way.workspace.path
            basis = digest(f"{prompt.rules}\0{project}\0{self.options.resume}")  # what a session is begun under
            chosen = plan(prompt, request.agent.id, basis, self._sessions.points)
            while True:
                reader = self.events(self)
                try:
                    async with aclosing(self._attempt(prompt, chosen, request, reader, way)) as pieces:
                        async for piece in pieces:
                            yield piece
                    break
                except LostSession:
                    if chosen.after is None:
                        raise
                    self._sessions.drop(chosen.after.session)
                    chosen = Continuation(whole(prompt))
            reply = reader.text or ""
            if self.at_files:
                reply = reply.replace(f"@{_JOINER}", "@")
            if not request.question and reader.session:
                said = redact(reply, self.secrets)[0]
                self._sessions.add(
                    checkpoint(prompt, request.re, basis, session=reader.session, reply=said, usage=reader.total)
                )
            elif request.question and chosen.after is not None and not self.forks:  # gone on from is the reply
                session = reader.session or chosen.after.session
                self._sessions.add(replace(chosen.after, session=session, usage=reader.total))
            yield reply

    async def _attempt(
        self, prompt: Prompt, chosen: Continuation, request: Request, reader: Output, way: Way | None
    ) -> AsyncGenerator[Usage | Tool, None]:
        text, session, join = chosen.text, chosen.after.session if chosen.after else "", False
        if session and not self.forks and not request.question:
            self._sessions.drop(session)  # from here on it has heard what it may never answer
        if not session and way is None and (session := self.joined()):
            # The person's session goes on under the system prompt that it began with.
            join, text = True, f"{prompt.rules}\n\n{chosen.text}"
        if len(text) > self.longest:
            why = f"the prompt has {len(text):,} characters, and {self.program} takes {self.longest:,}"
            raise BackendError(why, fix=SHORTER, kind="request")
        with tempfile.TemporaryDirectory(prefix="run-", dir=self.state, ignore_cleanup_errors=True) as name:
            folder = Path(name)
            system = folder / "system.md"
            system.write_text(prompt.rules, encoding="utf-8", errors="replace", newline="\n")
            run = Run(self.sendable(text), system, folder, session, join, request.allowance, way)
            try:
                async with aclosing(self.run(run, reader, chosen.after.usage if chosen.after else None)) as pieces:
                    async for piece in pieces:
                        yield piece
            finally:
                if made := reader.session or reader.begun:
                    note_made(self.state, self.session_file(made))

    def sendable(self, text: str) -> str:
        """The text with every `@` that would attach a file defused; undone in the reply."""
        return text.replace("@", f"@{_JOINER}") if self.at_files else text

    async def run(self, run: Run, reader: Output, before: Usage | None = None) -> AsyncGenerator[Usage | Tool, None]:
        """Run the CLI once. Yields what was used so far, and which tools run. Raises `BackendError`."""
        home = self.home(run)
        reader.folder, reader.joins = home if home is not None and run.way is not None else run.folder, run.join
        child = self._start(run, home)
        used = guess = Usage(self.model, tokens_of(run.text), 0, estimated=True)
        try:
            yield guess
            while not reader.hopeless and (event := await child.receive()) is not None:
                with suppress(ValueError):  # a figure that is none
                    reader.take(event)
                while reader.tools:
                    yield Tool(reader.tools.pop(0))
                if (now := reader.spent(before)) != used and now.tokens_in is not None:
                    yield (used := now)
        finally:
            code = await child.end()
            if home is not None:
                self._give_back(home)
        child.check(self.program, "install it again")
        if child.is_flooded:
            fix = f"run `{self.program}` by hand, and see what it prints; or install another version"
            raise BackendError(f"{self.program} floods its output, and was ended", fix=fix, kind="garbled")
        said = last_line(child.stderr, self.secrets)
        if run.session and reader.text is None and re.search(self.lost, f"{reader.failure or ''} {said}"):
            why = f"{self.program} has no session {run.session!r} to go on from"
            raise LostSession(why, fix="look for its id in the project, or leave --resume out", kind="request")
        reader.end(code, said)
        spent = reader.spent(before)
        if spent.tokens_in is None:  # nothing was used by what was not let in, else the guess is kept
            is_out = reader.failure is not None and reader.failure.kind in ("auth", "limit", "busy", "request")
            spent = Usage(self.model, 0, 0) if is_out else guess
        yield spent
        if reader.failure is not None:
            raise reader.failure

    def _start(self, run: Run, home: Path | None) -> Messages:
        environment = {**self.environment, **self.settings(run), "TMPDIR": str(run.folder), **self.options.environment}
        command, folder, limits = [str(self._path), *self.arguments(run)], self.seat(run), None
        if home is not None:
            boxed = run.way is not None and run.way.boxed
            self._lend(home, boxed=boxed)
            environment[self.keeps[0]] = str(home)
            if run.way is not None and boxed:
                limits = limits_of(run.way.workspace.path, home)
                pinned = [path for name in self.settings_files if (path := home / self.keeps[1] / name).is_file()]
                read = [self.path.parent, run.folder, *run.way.workspace.seen]
                command = run.way.workspace.confined(command, [home], read, pinned=pinned, cwd=folder)
                environment |= {"TMPDIR": TEMPORARY, **(self.around(run, home) if run.way.shell else {})}
        return Messages(command, run.text.encode("utf-8", "replace"), environment, folder, limits)

    def failed(self, message: str, status: int | None = None) -> BackendError:
        """The error for the CLI's message; a refused key is named, with the address it was sent to."""
        error = failed(self.program, message, status, log_in=self.log_in, secrets=self.secrets)
        if error.kind != "auth" or not self.paid:
            return error
        address = bare(self.base_url()) or self.vendor or "its provider"
        why = f"{error.cause} ({status or 'refused'} from {address})"
        return BackendError(why, fix=f"check {self.key}: that key was sent to {address}", kind="auth")

    # A folder of its own, where it does not use the person's: always in a sandbox, which keeps it from writing there

    def home(self, run: Run) -> Path | None:
        """What its variable leads to: one folder for reading, and another for what runs in a sandbox."""
        if run.way is not None and run.way.boxed:
            return self.state / f"{self.name}-home"
        return None if self.at_home else self.state / self.name

    def _lend(self, home: Path, *, boxed: bool) -> None:
        """Copy the person's login there: the file itself must be replaced when it is renewed, which no sandbox allows.

        What it renewed in a run whose daemon was killed is given back before.
        """
        folder = home / self.keeps[1]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._give_back(home)
        for name in self.logins:
            theirs = None if self.paid else _bytes(self.persons / name)
            with suppress(OSError):
                if theirs is None:
                    (folder / name).unlink(missing_ok=True)
                else:
                    write_over(theirs, folder / name)
                    write_over(_sha(theirs), folder / f"{name}.lent")
        self.furnish(home, boxed=boxed)

    def _give_back(self, home: Path) -> None:
        """Give a login that was renewed back to the person, unless theirs was renewed too."""
        folder = home / self.keeps[1]
        for name in self.logins:
            ours, theirs, lent = _bytes(folder / name), _bytes(self.persons / name), _bytes(folder / f"{name}.lent")
            if ours is None or theirs is None or _sha(theirs) != lent or _sha(ours) == lent:
                continue
            if table(read_json(folder / name)):  # whole
                with suppress(OSError):
                    write_over(ours, self.persons / name)
                    write_over(_sha(ours), folder / f"{name}.lent")

    # Set-up

    def _environment(self) -> tuple[dict[str, str], str]:
        """The environment of a run, and the key that pays, "" with a login."""
        given = self.options.variables
        passed = {name: given[name] for name in (*MACHINE, *self.own) if given.get(name)}
        environment = {**clean_environment(os.environ), **passed, **self.options.environment}
        login = self.login(environment)
        key = "" if login else given.get(self.key, "")
        if self.options.base_url and not key:
            why = f"{self.program} is {login}" if login else f"there is none in {self.key}"
            fix = "leave --base-url out" if login else f"set {self.key}"
            raise BadInput(f"--base-url is for a key, and {why}", fix=fix)
        if key:
            environment[self.key] = key
            if base := self.base_url():
                environment[self.address] = base
        return environment, key

    def _price(self) -> Price | None:
        return price_of(self.model, self.vendor, self.options.price) if self.model or self.options.price else None


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _sha(data: bytes) -> bytes:
    return sha256(data).hexdigest().encode()


# -- The version of a program -----------------------------------------------------------------------------------------


async def _version(program: Path, environment: Mapping[str, str]) -> str:
    child, said = Child([str(program), "--version"], b"", clean_environment(environment), None), b""
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(VERSION_WAIT):
                while len(said) <= LONGEST and (chunk := await child.read()):
                    said += chunk
    finally:
        code = await child.end()
    words = said.decode("utf-8", "replace").split() if code == 0 and len(said) <= LONGEST else []
    return next((word for word in words if word[:1].isdigit()), "")


# -- A session that goes on: which one still fits the dialog, and what it has not seen yet ----------------------------

POINTS = 50  # checkpoints
LINE_WITHIN = 2000  # characters at a reply's beginning among which the line is sought that identifies it

INTRO = "Here is a written dialog, from its beginning to now."
GOES_ON = "The dialog goes on."
ADDED = "Your last turn was added to it."
ASKED_BACK = "One thing about your last reply."


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A session after an answered turn."""

    session: str
    count: int  # of the parts that it has seen
    seen: str  # their shas
    re: str  # the debt that it answered
    system: str  # what it was begun under
    said: str = ""  # a line of its reply
    usage: Usage = field(default_factory=Usage)  # what the CLI has counted in it so far


@dataclass(frozen=True, slots=True)
class Continuation:
    """What to send: `text` to a fork of `after`'s session, or to a new session where there is none."""

    text: str
    after: Checkpoint | None = None


def plan(prompt: Prompt, me: str, system: str, checkpoints: Sequence[Checkpoint]) -> Continuation:
    """The shortest way to ask `prompt` of the agent `me`: after the newest checkpoint that fits, or from nothing.

    One fits when all that it saw is unchanged, and the agent's next turn is its reply; it has not seen that round's
    others.
    """
    parts, reply = split(prompt)
    for point in reversed(checkpoints):
        if point.system == system and reply is not None and point.said and _is_of(point, reply, me):
            return Continuation(f"{ASKED_BACK}\n\n{prompt.now}", point)
        saw = 0 < point.count <= len(parts) and _shas(parts[: point.count]) == point.seen
        if reply is not None or point.system != system or not saw:
            continue
        mine = next((index for index in range(point.count, len(parts)) if parts[index].by == me), None)
        if mine is not None and _is_of(point, parts[mine], me):
            new = (*parts[point.count : mine], *parts[mine + 1 :])
            marks = " ".join(parts[mine].marks.split())
            added = f"{ADDED} Marked by the daemon: {marks}" if marks else ADDED
            return Continuation("\n\n".join([f"{GOES_ON} {added}", *(part.text for part in new), prompt.now]), point)
    return Continuation(whole(prompt))


def whole(prompt: Prompt) -> str:
    return f"{INTRO}\n\n{prompt.body}" if split(prompt)[1] is None else prompt.body


def checkpoint(prompt: Prompt, re: str, system: str, *, session: str, reply: str, usage: Usage) -> Checkpoint:
    """What to remember of a turn that was answered. A question back is one turn with what it asks about."""
    parts, asked = split(prompt)
    return Checkpoint(session, len(parts), _shas(parts), asked.re if asked else re, system, _line(reply), usage)


def split(prompt: Prompt) -> tuple[tuple[Part, ...], Part | None]:
    """The parts of a dialog, and apart from them the reply that a question back is about."""
    last = prompt.parts[-1] if prompt.parts else None
    return (prompt.parts[:-1], last) if last is not None and last.id == "reply" else (prompt.parts, None)


def since(now: Usage, before: Usage | None) -> Usage:
    """`now` minus `before`; a figure smaller than before was reset, and is kept."""
    names = ("tokens_in", "tokens_out", "cached", "cache_write", "usd")
    figures = ((name, getattr(now, name), getattr(before, name, None)) for name in names)
    return replace(now, **{name: new - old for name, new, old in figures if None not in (new, old) and new >= old})


class Sessions:
    """The checkpoints of one agent, the newest last, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.points: tuple[Checkpoint, ...] = ()
        with suppress(KeyError, TypeError):
            rows = read_json(path) or ()
            self.points = tuple(Checkpoint(**{**row, "usage": Usage(**row["usage"])}) for row in rows)[-POINTS:]

    def add(self, point: Checkpoint) -> None:
        """Add a checkpoint, the only one of its session. If it cannot be written, it lasts as long as the process."""
        self.drop(point.session, point)

    def drop(self, session: str, *instead: Checkpoint) -> None:
        self.points = (*(point for point in self.points if point.session != session), *instead)[-POINTS:]
        write_json(self._path, [asdict(point) for point in self.points])


def _is_of(point: Checkpoint, part: Part, me: str) -> bool:
    return part.by == me and part.re == point.re and part.sound and point.said in part.text


def _shas(parts: Iterable[Part]) -> str:
    return digest("\n".join(part.sha for part in parts))


def _line(reply: str) -> str:
    """A line of the reply that the dialog keeps as it is: the longest near its beginning without brackets."""
    lines = (line.strip() for line in reply[:LINE_WITHIN].split("\n")[: -1 if len(reply) > LINE_WITHIN else None])
    return max((line for line in lines if "[" not in line), key=len, default="")[:200]

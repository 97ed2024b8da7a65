"""A coding-agent CLI on this machine: what it says of itself, its environment, one run of it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from dialogd.backends import Options, Tool, Usage
from dialogd.backends.canary import Place
from dialogd.backends.child import Child, not_started
from dialogd.backends.cli_probe import LONGEST, NETWORK, VERSION_WAIT, version_in
from dialogd.backends.cli_reader import LostSession, Reader, Words
from dialogd.backends.command import clean_environment, last_line
from dialogd.backends.parts import tokens_of
from dialogd.errors import BackendError, BadInput
from dialogd.keys import bare
from dialogd.prices import Price, price_of

_PASSWORD = re.compile(r"://[^/@:]*:([^/@]+)@")  # of an address
_JOINER = "\u2060"  # a word joiner: no CLI takes `@` and this for the name of a file


@dataclass(frozen=True, slots=True)
class Turn:
    """One run: `text` for stdin, `system` is the file of the system prompt, `folder` is its own and goes with it.

    `session` is to be forked, "" begins a new one. `join` says that it is the person's.
    """

    text: str
    system: Path
    folder: Path
    session: str = ""
    join: bool = False
    allowance: float | None = None


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

    def orders(self, place: Place) -> Sequence[tuple[str, Mapping[str, Any] | str]]:
        """The tool calls, (name, input), by which the stand-in tries to write: all of them must be refused."""
        raise NotImplementedError

    def reads(self, path: Path) -> tuple[str, Mapping[str, Any] | str]:
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

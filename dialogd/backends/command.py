"""The `command` backend: any program that reads a prompt on stdin and prints its reply."""

from __future__ import annotations

import codecs
import os
import re
import shlex
import shutil
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from dialogd.backends import Found, Options, Request, Tool, Usage
from dialogd.backends.prices import Price, parse_price
from dialogd.errors import BackendError, BadInput
from dialogd.protocol.text import redact
from dialogd.store.child import STDERR_TAIL, Child, not_started, too_greedy

OUTPUT_CAP = 4 * 1024 * 1024  # bytes
ERROR_LINE = 200  # characters of stderr's last line that an error quotes

# A command sees these and what the settings add, never the daemon's keys.
PASSED_ON = frozenset({"PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER", "LOGNAME", "SHELL", "TZ"})

_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-_])")


class Command:
    """Runs `options.command`, once per reply, in `options.project` (default: the daemon's directory), without a shell.

    It is told the dialog as its agent may see it, not the file. Whatever it starts ends with it. With a workspace it
    runs there, in a sandbox that lets it write nowhere else, without the home.
    """

    name = "command"
    costs = False
    most_out = 0
    room = 0
    give_one = "give one: --command 'prog args' (prompt on stdin, reply on stdout)"

    def __init__(self, options: Options) -> None:
        self.model = ""
        self.secrets = options.secrets
        self.price: Price | None = parse_price(options.price) if options.price else None
        self._words = split_command(options.command, type(self))
        self._project = options.project
        self._environment = {**clean_environment(os.environ), **options.environment}
        self._path = self._environment.get("PATH", os.defpath)
        if options.project is not None and not options.project.is_dir():
            why = f"the project {str(options.project)!r} is not a directory"
            raise BadInput(why, fix="name an existing directory with --project")
        try:
            self._program()
        except BackendError as error:
            raise BadInput(f"{error.cause} (PATH is {self._path})", fix=error.fix) from None

    @staticmethod
    def probe(_variables: Mapping[str, str], _variant: str) -> Found:
        return Found(True, "any program: prompt on stdin, reply on stdout", pays="whoever the command bills")

    async def reply(self, request: Request) -> AsyncGenerator[str | Usage | Tool, None]:
        """Stream what the command prints. Raises `BackendError` for everything else than text and exit code 0."""
        if request.workspace is not None:
            await self.prepare_to_write()
        child = self._start(request)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        parts: list[str] = []
        size = 0
        try:
            while size <= OUTPUT_CAP and (chunk := await child.read()):
                text = decoder.decode(chunk[: OUTPUT_CAP - size])
                size += len(chunk)
                parts.append(text)
                if text:
                    yield text
            if rest := decoder.decode(b"", final=True):
                parts.append(rest)
                yield rest
        finally:
            code = await child.end()
        if size > OUTPUT_CAP:
            why = f"printed more than {OUTPUT_CAP // 1024 // 1024} MiB and was ended"
            fix = f"make {self._words[0]!r} print its reply and nothing else"
            raise BackendError(why, fix=fix, partial="".join(parts))
        self._judge(child, code, "".join(parts))

    async def prepare_to_write(self) -> None:
        """Make sure of the sandbox that keeps it to one folder: it has no manners of its own that could be proved."""
        from dialogd.backends.sandbox import INSTALL, missing

        if lacking := missing():
            why = f"{self._words[0]!r} is not used where it may write: {lacking}"
            raise BackendError(why, fix=INSTALL, kind="unsafe")

    async def close(self) -> None:
        """Nothing is kept between replies."""

    def _start(self, request: Request) -> Child:
        program = self._program()
        told = {"AGENT": request.agent.id, "TURN": str(request.turn), "QUESTION": request.question}
        environment = {**self._environment, **{f"DIALOGD_{name}": value for name, value in told.items()}}
        words, folder, limits = [program, *self._words[1:]], self._project, None
        if request.workspace is not None:
            from dialogd.backends.sandbox import homes
            from dialogd.backends.sandbox import limits as most_of

            request.workspace.check()
            read = [*request.workspace.seen, *([] if folder is None else [folder])]
            words = request.workspace.confined(words, read=read, hidden=homes())
            folder = request.workspace.path
            environment["TMPDIR"], limits = "/tmp", most_of(request.workspace.path)
        prompt = request.prompt().text.encode("utf-8", "replace")
        try:
            return Child(words, prompt, environment, folder, limits)
        except OSError as error:
            raise not_started(error, program) from error

    def _judge(self, child: Child, code: int, text: str) -> None:
        """Raise `BackendError` unless the command did its work."""
        if child.errno is not None:
            raise BackendError(f"cannot run {self._words[0]!r}: {os.strerror(child.errno)}", fix=NO_PROGRAM)
        if child.passed:
            raise too_greedy(child, repr(self._words[0]))
        said = last_line(child.stderr, self.secrets)
        if code != 0:
            raise BackendError(
                f"exited {_exit(code)}: {said}" if said else f"exited {_exit(code)}",
                fix=f"run {self._words[0]!r} by hand, with a question on stdin, and see why it fails",
                retryable=True,
                partial=text,
            )
        if not text.strip():
            raise BackendError(
                f"printed nothing; on stderr: {said}" if said else "printed nothing",
                fix=f"make {self._words[0]!r} print its reply on stdout",
                retryable=True,
            )

    def _program(self) -> str:
        """The full path of the program; one named by a path is looked up from the project. Raises `BackendError`."""
        name = self._words[0]
        program = str((self._project or Path()) / name) if os.sep in name else name
        if found := shutil.which(program, path=self._path):
            return str(Path(found).absolute())
        is_there = os.sep in name and Path(program).exists()
        raise BackendError(f"{'not an executable file' if is_there else 'command not found'}: {name!r}", fix=INSTALL)


NO_PROGRAM = "it must be a program for this machine, or a script whose first line names its interpreter (#!)"
INSTALL = "install it, make it executable (chmod +x), or give its full path; no shell is used, so no ~ and no aliases"


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that is passed on to commands."""
    return {key: value for key, value in environment.items() if key in PASSED_ON or key.startswith("LC_")}


def last_line(stderr: bytes, secrets: Sequence[str] = ()) -> str:
    """The last line with text on it, printable, without secrets, at most `ERROR_LINE` characters; "" without one."""
    text = _ESCAPE_SEQUENCE.sub("", stderr.decode("utf-8", "replace"))
    if len(stderr) >= STDERR_TAIL:  # more was said before: the first word may be the end of a secret
        text = re.sub(r"\A\S+", "", text)
    text = redact(text, secrets)[0]
    lines = (" ".join("".join(c if c.isprintable() else " " for c in line).split()) for line in text.split("\n"))
    return next((line[:ERROR_LINE] for line in reversed(list(lines)) if line), "")


def split_command(command: str, backend: type[Command]) -> list[str]:
    """The words of a command line for this backend. Raises `BadInput` for one that names no program."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        why = f"the command {command!r} cannot be split into words: {error}"
        raise BadInput(why, fix="close every quote; a quote of its own is written \\' or \\\"") from error
    if not words or not words[0] or "\0" in command:
        raise BadInput(f"the {backend.name} backend has no command to run", fix=backend.give_one)
    return words


def _exit(code: int) -> str:
    """An exit code in words: `1`, `139 (SIGSEGV)`."""
    with suppress(ValueError):
        return f"{code} ({signal.Signals(code - 128).name})" if code > 128 else str(code)
    return str(code)

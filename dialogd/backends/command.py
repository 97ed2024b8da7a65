"""The `command` backend: any program that reads a prompt on stdin and prints its reply; and what it may write."""

from __future__ import annotations

import codecs
import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from dialogd.backends import Backend, Found, Options, Price, Request, Tool, Usage, parse_price
from dialogd.errors import BackendError, BadInput
from dialogd.protocol.text import redact
from dialogd.store.child import STDERR_TAIL, Child, Limits
from dialogd.store.registry import SANDBOX

OUTPUT_CAP = 4 * 1024 * 1024  # bytes
LARGEST = 16 * 1024 * 1024  # bytes of one message
NOISE = 1024 * 1024  # bytes of what is no message
ERROR_LINE = 200  # characters of stderr's last line that an error quotes

# A command sees these and what the settings add, never the daemon's keys.
PASSED_ON = frozenset({"PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER", "LOGNAME", "SHELL", "TZ"})

ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")


class Command(Backend):
    """Runs `options.command`, once per reply, in `options.project`, without a shell; in a workspace in the sandbox.

    It is told the dialog as its agent may see it, not the file. Whatever it starts ends with it.
    """

    name = "command"
    give_one = "give one: --command 'prog args' (prompt on stdin, reply on stdout)"

    def __init__(self, options: Options) -> None:
        self.model = ""
        self.secrets = options.secrets
        self.price: Price | None = parse_price(options.price) if options.price else None
        self._words = self.split(options.command)
        self._project = options.project
        self._environment = {**clean_environment(os.environ), **options.environment}
        self._path = self._environment.get("PATH", os.defpath)
        try:
            self._program()
        except BackendError as error:
            raise BadInput(f"{error.cause} (PATH is {self._path})", fix=error.fix) from None

    @staticmethod
    def probe(_variables: Mapping[str, str], _variant: str) -> Found:
        return Found(True, "any program: prompt on stdin, reply on stdout", pays="whoever the command bills")

    @classmethod
    def split(cls, command: str) -> list[str]:
        """The words of a command line for this backend. Raises `BadInput` for one that names no program."""
        try:
            words = shlex.split(command)
        except ValueError as error:
            why = f"the command {command!r} cannot be split into words: {error}"
            raise BadInput(why, fix="close every quote; a quote of its own is written \\' or \\\"") from error
        if not words or not words[0] or "\0" in command:
            raise BadInput(f"the {cls.name} backend has no command to run", fix=cls.give_one)
        return words

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
        if lacking := missing():
            why = f"{self._words[0]!r} is not used where it may write: {lacking}"
            raise BackendError(why, fix=BWRAP, kind="unsafe")

    def _start(self, request: Request) -> Child:
        program = self._program()
        told = {"AGENT": request.agent.id, "TURN": str(request.turn), "QUESTION": request.question}
        environment = {**self._environment, **{f"DIALOGD_{name}": value for name, value in told.items()}}
        words, folder, limits = [program, *self._words[1:]], self._project, None
        if request.workspace is not None:
            request.workspace.check()
            read = [*request.workspace.seen, *([] if folder is None else [folder])]
            words = request.workspace.confined(words, read=read, hidden=homes())
            folder = request.workspace.path
            environment["TMPDIR"], limits = "/tmp", limits_of(request.workspace.path)
        prompt = request.prompt().text.encode("utf-8", "replace")
        return Child(words, prompt, environment, folder, limits)

    def _judge(self, child: Child, code: int, text: str) -> None:
        child.check(self._words[0], NO_PROGRAM)
        said = last_line(child.stderr, self.secrets)
        if code != 0:
            raise BackendError(
                f"exited {code}: {said}" if said else f"exited {code}",
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
    text = ESCAPE_SEQUENCE.sub("", stderr.decode("utf-8", "replace"))
    if len(stderr) >= STDERR_TAIL:  # more was said before: the first word may be the end of a secret
        text = re.sub(r"\A\S+", "", text)
    text = redact(text, secrets)[0]
    lines = (" ".join("".join(c if c.isprintable() else " " for c in line).split()) for line in text.split("\n"))
    return next((line[:ERROR_LINE] for line in reversed(list(lines)) if line), "")


class Messages(Child):
    """A running program with which JSON objects are exchanged, one to a line."""

    def __init__(
        self,
        command: Sequence[str],
        stdin: bytes | None,
        environment: Mapping[str, str],
        cwd: Path | None,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(command, stdin, environment, cwd, limits)
        self._lines: deque[bytearray] = deque()
        self._rest = bytearray()  # a line that has not ended
        self._noise = 0  # bytes that are no message: a banner is let pass, a flood is not
        self.over = False

    @property
    def is_flooded(self) -> bool:
        return self._noise > NOISE or len(self._rest) > LARGEST

    def say(self, message: object) -> None:
        """Write one message. Raises ConnectionError when the program reads no more."""
        self.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end."""
        while True:
            while self._lines:
                line = self._lines.popleft()
                with suppress(ValueError, RecursionError):
                    if line.lstrip().startswith(b"{") and isinstance(found := json.loads(line), dict):
                        return found
                self._noise += len(line) + 1
            if self.over:
                return None
            chunk = await self.read()
            self._rest += chunk or b"\n"  # the last line needs no end
            if b"\n" in chunk or not chunk:
                *lines, self._rest = self._rest.split(b"\n")
                self._lines.extend(lines)
            self.over = self.over or not chunk or self.is_flooded

    async def end(self) -> int:
        self.over = True
        return await super().end()


# -- The sandbox: one rule for each path, and the deepest rule counts --------------------------------------------------

TRIAL = 20.0  # seconds for the trial; it takes hundredths
QUOTED = 200  # characters of what bubblewrap says
ANYBODY = "1000"  # an id as good as any other
TASKS = 2048  # processes and threads, or 256 for each processor, where that is more
FILES = 65_536  # that a process may have open
LEAST = 64 * 1024 * 1024  # bytes of the disk, however little is free
BWRAP = "install bubblewrap (the program is `bwrap`); it needs user namespaces"

# Sockets lie here, behind which stands what has no sandbox: the session's bus, containers, agents of keys.
_RUNNING = Path("/run")
_SYSTEM = (Path("/run/current-system"),)  # the programs of a NixOS
_NAMES = tuple(map(Path, ("/run/systemd/resolve/stub-resolv.conf", "/run/systemd/resolve/resolv.conf",
                          "/run/NetworkManager/resolv.conf", "/run/resolvconf/resolv.conf")))  # fmt: skip


@cache
def missing() -> str:
    """Why programs cannot be confined here, "" where they can: tried once, by running one that tries to get out."""
    if not sys.platform.startswith("linux"):
        return "bubblewrap is for Linux"
    if shutil.which("bwrap") is None:
        return "bubblewrap (`bwrap`) is not on PATH"
    with tempfile.TemporaryDirectory(prefix="dialogd-box-") as name:
        folder = Path(name).resolve()
        inside, outside, unseen = folder / "inside", folder / "outside", folder / "unseen"
        for path in (inside, outside, unseen):
            path.mkdir()
            (path / "old").touch()
        script = '(: >"$1/new") && ! (: >"$2/new") && [ -e "$2/old" ] && [ ! -e "$3/old" ] && echo confined'
        words = ["/bin/sh", "-c", script, "sh", *map(str, (inside, outside, unseen))]
        command = confined(words, cwd=inside, writable=[inside], read_only=[outside], hidden=[unseen], network=False)
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=TRIAL, cwd="/", env={}
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"bubblewrap could not be tried: {type(error).__name__}"
        if done.stdout == b"confined\n" and (inside / "new").exists() and not (outside / "new").exists():
            return ""
    said = " ".join(done.stderr.decode("utf-8", "replace").split())[:QUOTED]
    return f"bubblewrap does not work here: {said or f'it exited {done.returncode}'}"


def limits_of(*folders: Path) -> Limits:
    """What programs may take that can write in these folders: half of the machine's memory, half of what is free."""
    free = [found.f_bavail * found.f_frsize for found in map(os.statvfs, folders)]
    return Limits(_tasks(), memory() // 2, max(min(free) // 2, LEAST), FILES, folders)


@cache
def memory() -> int:
    """The memory of this machine, or of the container that this is, in bytes."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        with suppress(OSError, ValueError):  # "max"
            found.append(int(path.read_text("ascii")))
    return min(found)


def _tasks() -> int:
    return max(TASKS, 256 * (os.cpu_count() or 1))


@cache
def _sized() -> bool:
    """True when bubblewrap can limit the folders that it keeps in memory: not before 0.7, nor where it is setuid."""
    words = [shutil.which("bwrap") or "bwrap", "--ro-bind", "/", "/", "--size", "4096", "--tmpfs", "/tmp"]
    try:
        done = subprocess.run([*words, "/bin/sh", "-c", ":"], capture_output=True, check=False, timeout=TRIAL, env={})
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def confined(
    command: Sequence[str],
    *,
    cwd: Path,
    writable: Sequence[Path],
    read_only: Sequence[Path] = (),
    hidden: Sequence[Path] = (),
    instead: Mapping[Path, Path] | None = None,
    shown: Mapping[Path, Path] | None = None,
    network: bool,
    nested: bool = False,
) -> list[str]:
    """The words that run `command` in a sandbox; its environment is that of whoever runs them.

    The whole system is there to be read. `writable` paths, which must exist, can be written; `hidden` folders are
    empty and keep nothing, hidden files cannot be opened. Where a folder is a key of `instead`, another one stands, to
    be written; at each place of `shown`, a path without links, what it names, to be read. Of rules for a path and one
    above it the deeper counts, of two for the same path the stricter. /tmp, /dev, /proc, processes and, without
    `network`, the network are its own, and /run, where sockets lie, is empty. It ends with whoever started it, and has
    no terminal. The superuser's processes are counted by a `Child` alone. A `nested` one stands in another, whose
    processes it shares: it can read no memory and no environment of others.
    """
    rules: dict[Path, str] = {}
    shared = {Path("/tmp"), Path("/var/tmp"), Path(tempfile.gettempdir()), _RUNNING}
    visible = [*read_only, *_SYSTEM, *(_NAMES if network else ())]
    rules.update((path.resolve(), "--bind") for path in writable)
    rules.update((path.resolve(), "--ro-bind") for path in visible if path.exists())
    rules.update((path.resolve(), "--tmpfs") for path in (*shared, *hidden) if path.exists())
    others, shown = {path.resolve(): source.resolve() for path, source in (instead or {}).items()}, shown or {}
    covered = [path for path, kind in rules.items() if kind == "--tmpfs" and not others.keys().isdisjoint(path.parents)]
    rules = {path: kind for path, kind in rules.items() if path not in covered}
    rules |= dict.fromkeys(others, "--bind") | dict.fromkeys(shown, "--ro-bind")
    sources = {**others, **shown}
    rules.pop(Path("/"), None)  # which is to be read as it is
    words = [shutil.which("bwrap") or "bwrap", "--unshare-user", "--unshare-ipc", "--unshare-uts"]
    words += ["--unshare-cgroup-try", *([] if nested else ["--unshare-pid", "--as-pid-1"])]
    words += [] if network else ["--unshare-net"]
    words += ["--die-with-parent", *([] if nested else ["--new-session"]), "--cap-drop", "ALL"]
    words += ["--unsetenv", SANDBOX]  # for who asks what this is: see `caller_of`
    if os.getuid() == 0:  # the superuser's id cannot be passed on to a sandbox inside of this one, as Codex makes
        words += ["--uid", ANYBODY, "--gid", ANYBODY]
    size = ["--size", str(memory() // 4)] if _sized() else []
    words += ["--ro-bind", "/", "/", "--dev", "/dev", *size, "--perms", "1777", "--tmpfs", "/dev/shm"]
    words += ["--remount-ro", "/dev", *([] if nested else ["--proc", "/proc"])]
    if os.getuid() == 0 and not nested:  # whose id writes the settings of the kernel, whatever its rights
        words += ["--ro-bind", "/proc/sys", "/proc/sys"]
    for path, kind in sorted(rules.items(), key=lambda rule: len(rule[0].parts)):
        if kind != "--tmpfs":
            words += [kind, str(sources.get(path, path)), str(path)]
        elif path.is_dir():
            words += [*size, "--perms", "0700", kind, str(path)]
        else:
            words += ["--ro-bind", os.devnull, str(path)]
    most = 2 * _tasks()  # more than a `Child` counts, so that it sees them
    limit = f"ulimit -u {most} 2>/dev/null || ulimit -p {most} 2>/dev/null"  # each shell has one of them
    # Whose guard is gone before it is bound to that runs nothing: see `ALIVE` in dialogd/store/process_guard.py.
    alive = "[ ! -p /proc/self/fd/3 ] || echo >&3 || exit; exec 3>&-"
    script = f'{alive}; {limit}; "$@"; exit $?'  # no `exec`: as pid 1 it collects what ended
    return [*words, "--chdir", str(cwd.resolve()), "--", "/bin/sh", "-c", script, "sh", *command]


def homes() -> tuple[Path, ...]:
    """The home directories of this user: the one in the environment, and the one that the system knows."""
    found = [os.environ.get("HOME", "")]
    with suppress(KeyError):  # a user without an entry, as in containers
        found.append(pwd.getpwuid(os.getuid()).pw_dir)
    return tuple(dict.fromkeys(Path(path).resolve() for path in found if path and Path(path).resolve() != Path("/")))

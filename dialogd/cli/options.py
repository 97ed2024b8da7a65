"""What commands share: options, the settings they result in, the dialog's file, and its daemons."""

from __future__ import annotations

import codecs
import json as jsons
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from dialogd.backends import secrets
from dialogd.cli.terminal import as_json, plain, show
from dialogd.config import Settings, dotenv, load, new_command
from dialogd.errors import BadInput, NotRunning, Refused
from dialogd.protocol.model import USER
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import read_seconds
from dialogd.store.disk import StateDir
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile
from dialogd.store.registry import Registry, Running

T = TypeVar("T")

FileOption = Annotated[
    str | None,
    typer.Option("--file", metavar="F", help="The dialog file. Default: DIALOGD_FILE, else /tmp/claude-dialog.md."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print facts as JSON on stdout.")]


def option(metavar: str | None, about: str, *names: str, least: int | None = None) -> Any:
    """An option whose default is told in its text."""
    return typer.Option(*names, metavar=metavar, min=least, show_default=False, help=about)


Text = str | None
Texts = list[str] | None

ContextFiles = Annotated[Texts, option("FILE", "A file for the agents to read; repeat it for more.", "--context")]
FileArgument = Annotated[str | None, typer.Argument(metavar="FILE", help="The dialog file. Default: as --file.")]
Budget = Annotated[Text, option("AMOUNT", "What all agents together may spend: $2.00, 200k tokens. Default: no limit.")]
TrustProject = Annotated[
    bool, option(None, "Let the project's hooks, servers, plugins and scripts run. acp needs it.", "--trust-project")
]
Replace = Annotated[bool, option(None, "Archive and replace a dialog that has not ended.", "--replace")]
Plan = Annotated[Text, option("DIR|no", "Where the plan goes at the end. Default: beside the dialog file.")]
Pace = Annotated[Text, option("SECONDS", "Seconds from an agent's turn to its next, at the least. Default: 0.")]


def settings_for(file: str | None = None, **flags: object) -> Settings:
    """The settings of this command: these flags, then environment and files. The dialog's path is normalized."""
    if file and file.strip():  # without `..`, so that every command and daemon writes the same name for the same file
        file = os.path.normpath(Path.cwd() / Path(file).expanduser())
    return load({"file": file, **flags}, os.environ, Path.cwd())


def typed(text: str) -> str:
    """The words of a text argument; `-` reads standard input. Raises `BadInput` for bytes that are not UTF-8."""
    if text != "-":
        return text
    return in_utf8(sys.stdin.buffer.read(), "standard input").replace("\r\n", "\n")


def in_utf8(data: bytes, what: str, *, is_whole: bool = True) -> str:
    """The text of these bytes; the last character may be cut off if they are not complete. Raises `BadInput`."""
    try:
        return codecs.getincrementaldecoder("utf-8-sig")().decode(data, is_whole)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInput(
            f"{what} is not UTF-8: byte {data[error.start]:#04x} in line {line}",
            fix="convert it first, such as: iconv -f latin1 -t utf-8",
        ) from None


def duration(text: str, name: str) -> float:
    """The seconds that a time such as `5m` means. Raises `BadInput`, which says the option's name."""
    try:
        return read_seconds(text)
    except ValueError as error:
        raise BadInput(f"{name}: {error}", fix="write it like 5m, 90 seconds or 1 hour") from None


def answer(facts: object, lines: Iterable[str], *, json: bool) -> None:
    """Print what a command found out: the facts as JSON, or the lines."""
    if json:
        show(as_json(facts))
    elif text := "\n".join(lines):
        show(plain(text))


def opened(file: str | None) -> tuple[Settings, LogFile, Dialog]:
    """The settings of a command, its dialog file, and the dialog. Raises `NotRunning` where there is none."""
    settings = settings_for(file)
    log = log_of(settings)
    return settings, log, dialog_at(log)


def own_secrets() -> tuple[str, ...]:
    """The keys of this environment and folder, which must not be written anywhere."""
    return secrets(os.environ, dotenv(Path.cwd()))


def log_of(settings: Settings) -> LogFile:
    """The dialog file of these settings, which need not exist."""
    return LogFile(settings.file, Journals(StateDir(settings.state_dir).dialog(settings.file)))


def dialog_at(log: LogFile) -> Dialog:
    """The dialog as the file stands. Raises `NotRunning` when there is none, and what reading raises."""
    try:
        return log.read()
    except FileNotFoundError:
        raise NotRunning(
            f"there is no dialog at {log.path}",
            fix=f"begin one: dialogd run TOPIC, or {new_command(log.path)}; or name another file with --file",
        ) from None


# -- The daemons that run, and short questions to them ----------------------------------------------------------------

NOTIFY_SECONDS = 1.0  # a daemon answers in some milliseconds, where the machine is not busy
HEALTH_SECONDS = 1.5
LARGEST_ANSWER = 1024 * 1024


def daemons(settings: Settings, file: Path | None = None) -> tuple[Running, ...]:
    """This user's running daemons, by file and id: of one file, or all."""
    running = tuple(sorted(Registry(StateDir(settings.state_dir)).running(), key=lambda d: (d.file, d.id)))
    if file is None:
        return running
    return tuple(daemon for daemon in running if _real(Path(daemon.file)) == _real(file))


def _real(file: Path) -> Path:
    """One name per file, whatever way led to its folder; the file itself is never followed."""
    return file.parent.resolve() / file.name


def ask(
    port: int, method: str, path: str, body: Mapping[str, object] | None = None, *, seconds: float
) -> tuple[int, dict[str, Any]] | None:
    """Status and JSON of one request to a daemon, None without an answer in `seconds`. Knows no proxies."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        data = None if body is None else jsons.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
        response = connection.getresponse()
        answer = jsons.loads(response.read(LARGEST_ANSWER) or b"{}")
        return response.status, answer if isinstance(answer, dict) else {}
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()


def health(daemon: Running) -> dict[str, Any] | None:
    """What a daemon says about itself; None when it does not answer, or somebody else does."""
    answer = ask(daemon.port, "GET", "/health", seconds=HEALTH_SECONDS)
    if answer is None or answer[0] != 200 or answer[1].get("pid") != daemon.pid:
        return None
    return answer[1]


def healths(running: Iterable[Running]) -> dict[Running, dict[str, Any] | None]:
    """What each of these daemons says about itself, asked all at once."""
    asked = list(running)
    return dict(zip(asked, in_parallel(health, asked), strict=True))


def signalled(daemon: Running, number: signal.Signals) -> None:
    """Signal the daemon, unless its pid belongs to another process by now."""
    if daemon.is_alive():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(daemon.pid, number)


def gone(daemon: Running, deadline: float) -> bool:
    """True once the process has ended; looks until `deadline`."""
    while daemon.is_alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def accepted(daemon: Running, answer: tuple[int, dict[str, Any]] | None, *, fix: str, retry: str) -> dict[str, Any]:
    """What a daemon answered. Raises `Refused` with its reason, `NotRunning` without an answer.

    `fix` is said with the first where the daemon names none, `retry` with the second.
    """
    if answer is None:
        raise NotRunning(f"the daemon of {daemon.id} does not answer", fix=retry)
    status, found = answer
    if status >= 400:
        why = str(found.get("detail") or f"the daemon of {daemon.id} answered {status}")
        raise Refused(why, fix=str(found.get("fix") or fix))
    return found


def notify(running: Iterable[Running]) -> tuple[str, ...]:
    """Tell daemons to look at the file; gives the ids of those that answered. Best effort: they watch it anyway."""

    def tell(daemon: Running) -> str:
        answer = ask(daemon.port, "POST", "/notify", {"from": USER, "file": daemon.file}, seconds=NOTIFY_SECONDS)
        return daemon.id if answer is not None and answer[0] < 400 else ""

    return tuple(filter(None, in_parallel(tell, running)))


def in_parallel(work: Callable[[Running], T], running: Iterable[Running]) -> list[T]:
    """`work` on every daemon at once; results in their order."""
    items = list(running)
    if len(items) < 2:
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(len(items), 16)) as pool:
        return list(pool.map(work, items))

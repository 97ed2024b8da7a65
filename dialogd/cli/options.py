"""Options that several commands share, and the settings they result in."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from dialogd.backends import secrets
from dialogd.cli.terminal import as_json, plain, show
from dialogd.config import Settings, dotenv, load, new_command
from dialogd.errors import BadInput, NotRunning
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import read_seconds
from dialogd.store.folders import StateDir
from dialogd.store.journal import Journals
from dialogd.store.logfile import LogFile

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

"""`dialogd logs`: what an agent's daemon wrote into its log."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Annotated

import typer

from dialogd.backends.seats import start_again
from dialogd.cli import options
from dialogd.cli.client import daemons
from dialogd.cli.terminal import as_json, plain, remark, show
from dialogd.config import Settings
from dialogd.errors import NotRunning
from dialogd.store.folders import StateDir

Agent = Annotated[str, typer.Argument(metavar="ID", help="The agent, such as A.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on as the log grows.")]
Lines = Annotated[int, typer.Option("--lines", "-n", min=0, metavar="N", help="How many of the last lines.")]


def logs(
    agent: Agent,
    follow: Follow = False,
    lines: Lines = 50,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Print the end of the log of an agent's daemon, running or not."""
    settings = options.settings_for(file)
    path, is_running = _find(settings, agent, only_here=file is not None)
    with path.open("rb") as source:
        last = [plain(raw.decode("utf-8", "replace").rstrip("\r\n")) for raw in deque(source, lines)]
        at = source.tell()
    if json:
        show(as_json({"agent": agent, "log": str(path), "running": is_running, "lines": last}))
        return
    remark(plain(f"{path}{'' if is_running else ' (not running)'}"))
    if last:
        show("\n".join(last))
    if follow:
        _follow(path, at)


def _find(settings: Settings, agent: str, *, only_here: bool) -> tuple[Path, bool]:
    """The log of that agent: of the daemon that runs, at this file first; else the newest of that name."""
    running = [d for d in daemons(settings) if d.id.casefold() == agent.casefold() and d.log]
    here = [d for d in daemons(settings, settings.file) if d in running]
    for daemon in here or ([] if only_here else running):
        if Path(daemon.log).is_file():
            return Path(daemon.log), True
    folder = StateDir(settings.state_dir).logs
    found = [path for path in folder.glob("*.log") if path.name.casefold().startswith(f"{agent.casefold()}-")]
    if not found:
        again = start_again(StateDir(settings.state_dir), settings.file, None, agent)
        raise NotRunning(
            f"{agent} has no log in {folder}",
            fix=f"start it: {again}; or see `dialogd status`",
        )
    return max(found, key=lambda path: path.stat().st_mtime), False


def _follow(path: Path, at: int) -> None:
    """Print what is added, also after the log was rotated, until Ctrl-C."""
    rest = b""
    inode = path.stat().st_ino
    while True:
        time.sleep(0.2)
        try:
            now = path.stat()
            if now.st_ino != inode or now.st_size < at:
                inode, at, rest = now.st_ino, 0, b""
            with path.open("rb") as source:
                source.seek(at)
                rest += source.read()
                at = source.tell()
        except FileNotFoundError:
            continue
        *whole, rest = rest.split(b"\n")
        for raw in whole:
            show(plain(raw.decode("utf-8", "replace").rstrip("\r")))

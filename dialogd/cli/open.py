"""`dialogd open`: the page on which dialogs are found and started, in a browser."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

import typer

from dialogd.cli import options
from dialogd.cli.client import ask
from dialogd.cli.launch import end, spawn
from dialogd.config import Settings
from dialogd.errors import AlreadyRunning, DialogdError
from dialogd.store.folders import StateDir
from dialogd.store.registry import home_port

READY = 20.0  # seconds in which Home answers

Port = Annotated[int | None, typer.Option(metavar="N", help="Where it listens. Default: 2999.", show_default=False)]
Linger = Annotated[
    str, typer.Option(metavar="TIME", help="How long it stays when nobody looks. Default: 1 hour.", show_default=False)
]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Print the address, and open no browser.")]
Foreground = Annotated[bool, typer.Option("--foreground", help="Serve in this terminal, until Ctrl-C.")]


def open_home(
    port: Port = None,
    linger: Linger = "1 hour",
    no_browser: NoBrowser = False,
    foreground: Foreground = False,
    json: options.JsonOption = False,
) -> None:
    """Open the page on which dialogs are found, and started.

    At http://localhost:2999, from this machine only. It ends when nobody has looked at it for an hour; the dialogs that
    were started there go on without it.
    """
    settings = options.settings_for(None, home_port=port)
    stay = options.duration(linger, "--linger")
    if foreground:
        from dialogd.home.site import serve

        serve(settings, settings.home_port, stay)
        return
    where = _running(settings) or _started(settings, stay)
    is_shown = not no_browser and browse(where)
    facts = {"url": where, "browser": is_shown}
    options.answer(facts, [where], json=json)


def _running(settings: Settings) -> str:
    """The address of the Home that runs already, "" where none answers."""
    port = home_port(StateDir(settings.state_dir))
    return f"http://localhost:{port}/" if port is not None and _answers(port) else ""


def _answers(port: int) -> bool:
    answer = ask(port, "GET", "/health", seconds=2)
    return answer is not None and answer[1].get("service") == "dialogd home"


def _started(settings: Settings, linger: float) -> str:
    """Start Home in the background, and give its address once it answers. Raises `DialogdError` where it does not."""
    output = StateDir(settings.state_dir).logs / "home.out"
    words = ["open", "--foreground", "--port", str(settings.home_port), "--linger", f"{linger:g} seconds"]
    child = spawn("home", words, output)
    until = time.monotonic() + READY
    while time.monotonic() < until:
        if where := _running(settings):  # this one, or one that was started at the same time
            return where
        if (code := child.process.poll()) is not None:
            kind = AlreadyRunning if code == AlreadyRunning.exit_code else DialogdError
            raise kind(
                f"Home did not start; it said:\n{child.last_lines()}", fix="dialogd open --port N takes another port"
            )
        time.sleep(0.05)
    end([child])
    raise DialogdError(f"Home did not answer within {READY:g} s", fix=f"look into {output}")


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

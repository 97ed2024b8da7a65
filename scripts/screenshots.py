"""Takes the pictures of the documents anew: Home and the page in light, dark and on a phone, and the terminal view.

    python scripts/screenshots.py [--out docs/images] [--only home]

Two daemons hold a rehearsed dialog; Chromium shows the page, xterm on a screen of its own (Xvfb) the terminal view.
Debian, Ubuntu: apt install chromium xvfb xterm imagemagick. What is missing is said, and its pictures are left alone.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import own_python  # another Python is told which one to use

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ROOT = own_python.REPOSITORY
DIALOGD = (sys.executable, "-m", "dialogd")
TOPIC = "Where should user sessions live?"
SWITCHES = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")
PATIENCE = 60.0  # seconds
SCREEN = "1000x700"
EARLIER = ("Retry policy for payment calls", "Which license for the client library?")
ASKED = "Should the bridge own user sessions, or the framework? We have two weeks and one engineer."
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 2},
}


@dataclass(frozen=True)
class Stage:
    """A dialog file, the environment in which its daemons run, and their ports."""

    file: Path
    environment: dict[str, str]
    ports: tuple[int, int]

    def run(self, *words: str) -> subprocess.Popen[bytes]:
        """`dialogd WORDS` in the background."""
        command = [*DIALOGD, *words, "--file", str(self.file)]
        return subprocess.Popen(
            command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def post(self, path: str, body: str = "") -> None:
        """One request to the first daemon."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[0], timeout=5)
        connection.request("POST", path, body or None)
        connection.getresponse().read()
        connection.close()

    @property
    def text(self) -> str:
        """The file as it stands."""
        return self.file.read_text(encoding="utf-8") if self.file.exists() else ""


def until(condition: Callable[[], object], what: str) -> None:
    """Wait for something; raises `TimeoutError`."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {PATIENCE:g} s for {what}")
        time.sleep(0.05)


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def staged(folder: Path) -> Iterator[Stage]:
    """Two daemons at a rehearsed dialog that nobody has started."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DIALOGD_", "CLAUDE_"))}
    environment = {**kept, "DIALOGD_STATE_DIR": str(folder / "state"), "DIALOGD_PLAN": "0", "PYTHONPATH": str(ROOT)}
    file, ports = folder / "claude-dialog.md", (free_port(), free_port())
    stage = Stage(file, environment, ports)
    names = zip("AB", ("Claude", "Grok"), ports, strict=True)
    agents = ", ".join(f"{who} = {name} {who} @ http://localhost:{port}" for who, name, port in names)
    file.write_text(
        f"# Claude Autonomous Dialog\n\n**Topic:** {TOPIC}\n**Max Turns:** 20\n**Agents:** {agents}\n\n---\n\n"
        "## Turn 1 — User\n\n**Question:**\nDiscuss and agree on where user sessions should live.\n\nTURN: A\n",
        encoding="utf-8",
    )
    daemons = [stage.run("start", who, "--backend", "rehearsal:slow=9", "--pace", "0.5") for who in "AB"]
    try:
        yield stage
    finally:
        for daemon in daemons:
            with suppress(ProcessLookupError):
                os.kill(daemon.pid, signal.SIGTERM)
            daemon.wait(10)


def play(stage: Stage, turn: int) -> None:
    """Let the dialog go on until this turn is being written."""

    def is_up() -> bool:
        with suppress(OSError):
            for port in stage.ports:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        return False

    until(is_up, "the daemons")
    stage.post("/notify")
    until(lambda: f"## Turn {turn - 1} " in stage.text, f"turn {turn - 1}")
    time.sleep(1.5)  # some of the next turn is to be seen


def page_pictures(stage: Stage, out: Path, browser: Browser, names: Sequence[str], suffix: str = "") -> None:
    """The page in some of the looks: light, dark, phone."""
    for name in names:
        context = browser.new_context(**LOOKS[name])
        page = context.new_page()
        answer = page.goto(f"http://localhost:{stage.ports[0]}/")
        if answer is None or not answer.ok:
            raise RuntimeError(f"no page to take a picture of: {answer.text() if answer else 'no answer'}")
        page.wait_for_timeout(1200)
        page.screenshot(path=str(out / f"page-{name}{suffix}.png"))
        context.close()
        print(f"page-{name}{suffix}.png")


@contextmanager
def home(environment: dict[str, str], state: Path) -> Iterator[str]:
    """Home of a machine with two keys that nobody uses and no coding agent; gives its address."""
    port = free_port()
    more = {
        "DIALOGD_STATE_DIR": str(state), "PATH": str(state), "HOME": str(state), "OLLAMA_HOST": "127.0.0.1:1",
        "ANTHROPIC_API_KEY": "for-a-picture", "XAI_API_KEY": "for-a-picture",
    }  # fmt: skip
    process = subprocess.Popen(
        [*DIALOGD, "open", "--foreground", "--port", str(port)], env={**environment, **more},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def is_up() -> bool:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        return False

    try:
        until(is_up, "Home")
        yield f"http://localhost:{port}/"
    finally:
        process.terminate()
        process.wait(10)


def rehearse(stage: Stage, topics: Sequence[str]) -> None:
    """Hold these dialogs to their end, so that there are some to look back on."""
    for number, topic in enumerate(topics):
        file = stage.file.with_name(f"earlier-{number}.md")
        command = [*DIALOGD, "run", topic, "--agents", "rehearsal,rehearsal", "--pace", "0", "--file", str(file)]
        subprocess.run(command, env=stage.environment, stdin=subprocess.DEVNULL, capture_output=True, check=True)


def home_pictures(url: str, out: Path, browser: Browser, names: Sequence[str], asked: str = "") -> None:
    """Home, with a question that is being asked, or as it is found at first."""
    for name in names:
        context = browser.new_context(**LOOKS[name])
        page = context.new_page()
        page.goto(url)
        page.locator("#go:enabled").wait_for()
        page.locator("#question").fill(asked)
        page.wait_for_timeout(1500)  # until the estimate and the lists are there
        page.screenshot(path=str(out / f"home-{name if asked else 'first'}.png"), full_page=name != "phone")
        context.close()
        print(f"home-{name if asked else 'first'}.png")


def terminal_picture(stage: Stage, out: Path) -> None:
    """The terminal view in a real terminal on a screen of its own."""
    missing = [program for program in ("Xvfb", "xterm", "import") if shutil.which(program) is None]
    if missing:
        print(f"no picture of the terminal view: {', '.join(missing)} not installed", file=sys.stderr)
        return
    display = f":{90 + os.getpid() % 100}"
    screen = subprocess.Popen(["Xvfb", display, "-screen", "0", f"{SCREEN}x24"], stderr=subprocess.DEVNULL)
    environment = {**stage.environment, "DISPLAY": display, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    command = " ".join([*DIALOGD, "watch", "--file", str(stage.file)])
    until(lambda: Path(f"/tmp/.X11-unix/X{display[1:]}").exists(), "the screen")
    look = ["-fa", "DejaVu Sans Mono", "-fs", "11", "-bg", "#16181d", "-fg", "#e6e6e6", "-geometry", "108x34+4+4"]
    terminal = subprocess.Popen(["xterm", *look, "-e", "/bin/sh", "-c", command], env=environment)
    try:
        time.sleep(3)  # until it has drawn
        picture = str(out / "watch.png")
        subprocess.run(["import", "-window", "root", "-trim", picture], env=environment, check=True, timeout=20)
        print("watch.png")
    finally:
        for process in (terminal, screen):
            process.terminate()
            process.wait(10)


def main() -> int:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", help="where the pictures go")
    parser.add_argument("--only", choices=["home"], help="only these pictures")
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("no Chromium on PATH: apt install chromium", file=sys.stderr)
        return 1
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, staged(Path(folder)) as stage, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(SWITCHES))
        rehearse(stage, EARLIER)
        play(stage, 4)
        with home(stage.environment, Path(folder) / "state") as url:
            home_pictures(url, out, browser, ("light", "dark", "phone"), ASKED)
        with home(stage.environment, Path(folder) / "fresh") as url:
            home_pictures(url, out, browser, ("light",))
        if given.only:
            return 0
        terminal_picture(stage, out)
        page_pictures(stage, out, browser, ("light",))
        until(lambda: "## Turn 4 " in stage.text, "a text that waits for a signature")
        time.sleep(1.5)  # until the other one writes
        page_pictures(stage, out, browser, ("dark", "phone"))
        until(lambda: "\n[CONSENSUS_REACHED]" in stage.text, "the end")
        page_pictures(stage, out, browser, ("dark",), "-end")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

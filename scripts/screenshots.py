"""Takes the pictures of the documents anew: every state of the page and of Home, and the terminal view.

    python scripts/screenshots.py [--out docs/images] [--only pages|states|moving] [--name SCENE]

Two daemons hold a rehearsed dialog; `states.py` brings about everything else that docs/looks.md shows. Chromium shows
the page, xterm on a screen of its own (Xvfb) the terminal view.
Debian, Ubuntu: apt install chromium xvfb xterm imagemagick. What is missing is said, and its pictures are left alone.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import os
import shutil
import signal
import socket
import struct
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
    from playwright.sync_api import Browser, Page

ROOT = own_python.REPOSITORY
DIALOGD = (sys.executable, "-m", "dialogd")
TOPIC = "Where should user sessions live?"
SWITCHES = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync")
PATIENCE = 60.0  # seconds
SCREEN = "1000x700"
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
def staged(folder: Path, backend: str = "rehearsal:slow=9") -> Iterator[Stage]:
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
    daemons = [stage.run("start", who, "--backend", backend) for who in "AB"]
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
        paper = context.new_page()
        (out / f"page-{name}{suffix}.webp").write_bytes(together(paper, [page.screenshot()]))
        context.close()
        print(f"page-{name}{suffix}.webp")


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


# -- Pictures as small files ------------------------------------------------------------------------------------------

QUALITY = 0.78
# From [data, ...] of PNG files to one lossy WebP: side by side, `columns` in a row, each `scale` times as large.
TOGETHER = """async ([pictures, columns, scale, quality]) => {
    const images = await Promise.all(pictures.map(async (data) => {
        const image = new Image();
        image.src = "data:image/png;base64," + data;
        await image.decode();
        return image;
    }));
    const gap = images.length > 1 ? 12 : 0, rows = [];
    for (let i = 0; i < images.length; i += columns) rows.push(images.slice(i, i + columns));
    const high = (row) => Math.max(...row.map((one) => one.height * scale)) + gap;
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(...rows.map((row) => row.reduce((sum, one) => sum + one.width * scale + gap, -gap)));
    canvas.height = rows.reduce((sum, row) => sum + high(row), -gap);
    const drawing = canvas.getContext("2d");
    drawing.imageSmoothingQuality = "high";
    drawing.fillStyle = "#8a8d92";
    drawing.fillRect(0, 0, canvas.width, canvas.height);
    let y = 0;
    for (const row of rows) {
        let x = 0;
        for (const one of row) {
            drawing.drawImage(one, x, y, one.width * scale, one.height * scale);
            x += one.width * scale + gap;
        }
        y += high(row);
    }
    return canvas.toDataURL("image/webp", quality).split(",")[1];
}"""


def together(paper: Page, pictures: Sequence[bytes], columns: int = 1, scale: float = 1.0) -> bytes:
    """These PNG pictures as one WebP, so many in a row."""
    given = [base64.b64encode(picture).decode() for picture in pictures]
    return base64.b64decode(paper.evaluate(TOGETHER, [given, columns, scale, QUALITY]))


def state_pictures(out: Path, browser: Browser, only: str = "") -> None:
    """Every state that docs/looks.md shows; `only` those of one scene, by the name of its function in states.py."""
    import states

    paper = browser.new_page()
    for make, sheets in states.SHEETS:
        if not make.__name__.startswith(only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            studio = states.Studio(browser, Path(folder), home)
            make(studio)
        for name, (parts, columns, scale) in sheets.items():
            data = together(paper, [studio.pictures[part] for part in parts], columns, scale)
            (out / f"{name}.webp").write_bytes(data)
            print(f"{name}.webp, {len(data):,} bytes")
    paper.close()


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


# -- The moving picture -----------------------------------------------------------------------------------------------

EVERY = 0.9  # seconds between two pictures of it
SHOWN_FOR = 390  # milliseconds that each is shown: it runs faster than the rehearsal did
LAST_SHOWN_FOR = 5000
MOST_BYTES = 1_500_000
SIZE = {"width": 900, "height": 620}
# Of each picture the part that changed, as lossy WebP: [x, y, width, height, data].
CHANGES = """async ([before, now, quality]) => {
    const load = async (data) => {
        const image = new Image();
        image.src = "data:image/png;base64," + data;
        await image.decode();
        return image;
    };
    const image = await load(now), canvas = document.createElement("canvas");
    const [width, height] = [canvas.width, canvas.height] = [image.width, image.height];
    const drawing = canvas.getContext("2d", {willReadFrequently: true});
    const pixels = (one) => {
        drawing.drawImage(one, 0, 0);
        return new Uint32Array(drawing.getImageData(0, 0, width, height).data.buffer);
    };
    let [left, top, right, bottom] = [0, 0, width, height];
    if (before) {
        const old = pixels(await load(before)), fresh = pixels(image);
        [left, top, right, bottom] = [width, height, 0, 0];
        for (let y = 0, i = 0; y < height; y++) for (let x = 0; x < width; x++, i++) {
            if (old[i] === fresh[i]) continue;
            left = Math.min(left, x); right = Math.max(right, x + 1);
            top = Math.min(top, y); bottom = Math.max(bottom, y + 1);
        }
        if (right === 0) return null;
        left -= left % 2; top -= top % 2;  // the format's own unit
    }
    const part = document.createElement("canvas");
    [part.width, part.height] = [right - left, bottom - top];
    part.getContext("2d").drawImage(image, -left, -top);
    return [left, top, part.width, part.height, part.toDataURL("image/webp", quality).split(",")[1]];
}"""


def chunk(name: bytes, data: bytes) -> bytes:
    """One chunk of a RIFF file."""
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def moving(frames: Sequence[tuple[int, int, int, int, bytes, int]]) -> bytes:
    """An animated WebP, for ever again: each frame's place, size, own WebP file, and how long it is shown (ms)."""

    def in_three(number: int) -> bytes:
        return struct.pack("<I", number)[:3]

    _, _, width, height, _, _ = frames[0]
    parts = [
        chunk(b"VP8X", b"\x02\0\0\0" + in_three(width - 1) + in_three(height - 1)),
        chunk(b"ANIM", b"\xff" * 4 + b"\0\0"),
    ]
    for x, y, wide, high, picture, shown in frames:
        place = b"".join(map(in_three, (x // 2, y // 2, wide - 1, high - 1, shown)))
        at = picture.index(b"VP8 ")
        size = struct.unpack_from("<I", picture, at + 4)[0]
        parts.append(chunk(b"ANMF", place + b"\x02" + chunk(b"VP8 ", picture[at + 8 : at + 8 + size])))
    return chunk(b"RIFF", b"WEBP" + b"".join(parts))


def moving_picture(out: Path, browser: Browser) -> None:
    """A whole rehearsed dialog on the page, in half a minute: page.webp."""
    with tempfile.TemporaryDirectory() as folder, staged(Path(folder), "rehearsal:slow=5") as stage:
        context = browser.new_context(viewport=SIZE, color_scheme="light", reduced_motion="reduce")
        play(stage, 2)
        page = context.new_page()
        page.goto(f"http://localhost:{stage.ports[0]}/")
        pictures = []
        until(
            lambda: pictures.append(page.screenshot()) or time.sleep(EVERY) or "\n[CONSENSUS_REACHED]" in stage.text,
            "the end",
        )  # type: ignore[func-returns-value]
        for _ in range(3):
            time.sleep(EVERY)
            pictures.append(page.screenshot())
        context.close()
    paper, frames, before = browser.new_page(), list[tuple[int, int, int, int, bytes, int]](), ""
    for picture in pictures:
        now = base64.b64encode(picture).decode()
        found = paper.evaluate(CHANGES, [before, now, 0.65])
        if found is None:
            frames[-1] = (*frames[-1][:5], frames[-1][5] + SHOWN_FOR)
            continue
        x, y, wide, high, data = found
        frames.append((x, y, wide, high, base64.b64decode(data), SHOWN_FOR))
        before = now
    paper.close()
    frames[-1] = (*frames[-1][:5], LAST_SHOWN_FOR)
    made = moving(frames)
    if len(made) > MOST_BYTES:
        raise RuntimeError(f"page.webp would have {len(made):,} bytes, more than {MOST_BYTES:,}: take fewer pictures")
    (out / "page.webp").write_bytes(made)
    print(f"page.webp, {len(frames)} pictures, {len(made):,} bytes")


def main() -> int:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", help="where the pictures go")
    parser.add_argument("--only", choices=["pages", "states", "moving"], help="only these pictures")
    parser.add_argument("--name", default="", help="of the states only this scene, such as five or ends")
    given = parser.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("no Chromium on PATH: apt install chromium", file=sys.stderr)
        return 1
    from playwright.sync_api import sync_playwright

    if given.only in (None, "moving"):
        with sync_playwright() as playwright:
            moving_picture(out, playwright.chromium.launch(executable_path=chromium, args=list(SWITCHES)))
    if given.only == "moving":
        return 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(SWITCHES))
        if given.only in (None, "pages"):
            with tempfile.TemporaryDirectory() as folder, staged(Path(folder)) as stage:
                play(stage, 4)
                page_pictures(stage, out, browser, ("light",))
                until(lambda: "## Turn 4 " in stage.text, "a text that waits for a signature")
                time.sleep(1.5)  # until the other one writes
                page_pictures(stage, out, browser, ("phone",))
                terminal_picture(stage, out)
                until(lambda: "\n[CONSENSUS_REACHED]" in stage.text, "the end")
                page_pictures(stage, out, browser, ("dark",), "-end")
        if given.only in (None, "states"):
            state_pictures(out, browser, given.name)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Home in a real browser: what runs, what waits, what was, and the form that starts a dialog."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Response, expect

from dialogd.store.folders import StateDir
from dialogd.store.registry import Registry
from tests.page.browser import Visitor, open_visitor
from tests.page.test_looks import barriers
from tests.support.forked import fork
from tests.support.pair import Daemon, until

LOOKS = [(theme, width) for theme in ("light", "dark") for width in (1440, 1024, 390)]
WEIGHT = 150_000  # bytes of the page with all that it loads


class Home:
    """Home as a person's own, in an empty state directory, with nothing on PATH that could answer."""

    def __init__(self, folder: Path, more: Mapping[str, str]) -> None:
        self.folder = folder
        self.state_dir = folder / "state"
        (folder / "bin").mkdir()
        kept = {name: text for name, text in os.environ.items() if not name.startswith(("DIALOGD_", "CLAUDE_"))}
        self.environment = {
            **kept,
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "PATH": str(folder / "bin"),
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "DIALOGD_STATE_DIR": str(self.state_dir),
            "DIALOGD_PLAN": "0",
            "DIALOGD_PACE": "0",
            "OLLAMA_HOST": "127.0.0.1:1",
            **more,
        }
        # Bound, so that nobody else is given it; not listened on, so that Home may.
        self.reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.reserved.bind(("127.0.0.1", 0))
        self.port = int(self.reserved.getsockname()[1])
        words = ["open", "--foreground", "--port", str(self.port)]
        self.process = Daemon(
            "home", self.port, lambda output: fork(words, self.environment, folder, output), folder / "home.out"
        )

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://localhost:{self.port}/"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.process.start()

        def answers() -> bool:
            with suppress(OSError):
                return self.process.ask("GET", "/health", seconds=1.0)[0] == 200
            return False

        until(answers, "Home to answer", why=lambda: self.process.said)

    def close(self) -> None:
        """End it, and every daemon that it started."""
        for daemon in Registry(StateDir(self.state_dir)).running():
            with suppress(ProcessLookupError):
                os.kill(daemon.pid, signal.SIGKILL)
        if self.process.running:
            self.process.kill()
        self.reserved.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """Home on a machine where nobody can answer but a rehearsal."""
    home = Home(tmp_path, {})
    home.start()
    yield home
    home.close()


def test_who_comes_for_the_first_time_is_told_what_this_is(home: Home, visitor: Visitor) -> None:
    """Two sentences, the rehearsal beside them, and the question has the focus; no empty list is shown."""
    page = visitor.visit(home.url)
    expect(page.locator("#welcome")).to_be_visible()
    said = page.locator("#welcome > p").inner_text()
    assert said.count(". ") + said.endswith(".") == 2, said
    expect(page.locator("#welcome").get_by_role("button", name="Try it without any model")).to_be_visible()
    expect(page.locator("#question")).to_be_focused()
    for empty in ("#waiting", "#running", "#past"):
        expect(page.locator(empty)).to_be_hidden()


def test_home_weighs_little(home: Home, visitor: Visitor) -> None:
    """The page with everything that it loads is below 150 kB, and all of it comes from Home."""
    loaded: list[Response] = []

    def note(response: Response) -> None:
        loaded.append(response)

    visitor.context.on("response", note)
    page = visitor.visit(home.url)
    expect(page.locator("#go")).to_be_visible()
    page.wait_for_load_state("networkidle")
    own = [one for one in loaded if one.url.startswith(home.url)]
    sizes = {one.url: len(one.body()) for one in own}
    print(sizes)
    assert own == loaded
    assert any(url.endswith("/home/home.js") for url in sizes)
    assert sum(sizes.values()) < WEIGHT


def test_what_was_typed_survives_loading_the_page_again(home: Home, visitor: Visitor) -> None:
    """The question, the limits, and what was ticked."""
    page = visitor.visit(home.url)
    expect(page.locator("#question")).to_be_focused()
    page.locator("#question").fill("Tabs or spaces?")
    page.locator("#fold-limits summary").click()
    page.locator("#max_time").fill("30m")
    page.locator("#unattended").check()
    page.reload()
    expect(page.locator("#question")).to_have_value("Tabs or spaces?")
    expect(page.locator("#limits-now")).to_contain_text("30m in all")
    expect(page.locator("#max_time")).to_have_value("30m")
    expect(page.locator("#unattended")).to_be_checked()


def test_a_problem_stands_at_its_field(home: Home, visitor: Visitor) -> None:
    """Start without a question and without agents says so where they are missing, and puts the focus there."""
    page = visitor.visit(home.url)
    expect(page.locator("#question")).to_be_focused()
    page.locator("#go").click()
    expect(page.locator("#question-problem")).to_contain_text("Write what they should discuss")
    expect(page.locator("#question")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#question")).to_be_focused()
    page.locator("#question").fill("Tabs or spaces?")
    page.locator("#go").click()
    expect(page.locator("#agents-problem")).to_contain_text("Choose who takes part")
    page.locator("#fold-limits summary").click()
    page.locator("#max_turns").fill("many")
    page.locator("#fold-limits summary").click()
    page.locator("#go").click()
    expect(page.locator("#max_turns-problem")).to_contain_text("“many” is no number of turns")
    expect(page.locator("#max_turns")).to_be_focused()  # unfolded for that
    expect(page.locator("#max_turns")).to_have_value("many")
    expect(page.locator("#question-problem")).to_be_empty()
    expect(page.locator("#question")).to_have_value("Tabs or spaces?")


def unfold(page: Page) -> None:
    """Open all that is folded."""
    for fold in page.locator("main details").all():
        fold.evaluate("fold => fold.open = true")


@pytest.mark.parametrize(("theme", "width"), LOOKS)
def test_axe_finds_nothing_at_the_first_visit(home: Home, browser: Browser, theme: str, width: int) -> None:
    """Folded, unfolded, and with a problem; nothing reaches over the edge of the window."""
    visitor = open_visitor(
        browser,
        bypass_csp=True,
        color_scheme=theme,  # type: ignore[arg-type]
        viewport={"width": width, "height": 844},
    )
    page = visitor.visit(home.url)
    expect(page.locator("#welcome")).to_be_visible()
    expect(page.locator("#limits-now")).to_contain_text("turns")
    assert barriers(page) == []
    unfold(page)
    page.locator("#go").click()
    assert barriers(page) == []
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    visitor.context.close()
    visitor.is_clean()


def test_who_looks_is_told_when_home_has_ended(home: Home, visitor: Visitor) -> None:
    """The page says how to start it again, keeps what was typed, and goes on once it is there."""
    page = visitor.visit(home.url)
    expect(page.locator("#question")).to_be_focused()
    page.locator("#question").fill("Tabs or spaces?")
    visitor.expected = ("ERR_CONNECTION_REFUSED",)
    home.process.kill()
    expect(page.locator("#gone")).to_contain_text("dialogd open")
    expect(page.locator("#question")).to_have_value("Tabs or spaces?")
    home.start()
    expect(page.locator("#gone")).to_be_hidden()

"""A real browser before the page of a real daemon, and everything that it must never do."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, expect, sync_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Without these it looks for its maker's hosts at every start.
SWITCHES = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update",
    "--disable-background-networking", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
)  # fmt: skip
AXE = Path(__file__).resolve().parents[2] / ".axe" / "node_modules" / "axe-core" / "axe.min.js"
PATIENCE = 180_000  # milliseconds; a loaded machine is slow, not wrong

expect.set_options(timeout=PATIENCE)


def program() -> str:
    """The browser of this machine; "" without one."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), "")


@dataclass
class Visitor:
    """A person's browser at a page; `complaints` is what it found wrong, `strangers` where it wanted to go."""

    context: BrowserContext
    page: Page
    complaints: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()  # parts of complaints that a test brings about itself

    def visit(self, url: str) -> Page:
        """Open a page; a daemon's, until it knows how the dialog stands."""
        self.page.goto(url, wait_until="domcontentloaded")
        if self.page.locator("#say-text").count():
            expect(self.page.locator("body[data-phase]")).to_be_attached()
        return self.page

    @contextmanager
    def learns_of_others(self) -> Iterator[None]:
        """Wait until the page can find out which other daemons live: it fetches what asks them while its own lives."""
        with self.page.expect_response("**/page/probe.js", timeout=PATIENCE) as probe:
            yield
        probe.value.finished()

    def turn(self, number: int) -> Any:
        """The turn of that number, as it stands on the page."""
        return self.page.locator(f"#t{number}")

    @property
    def turns(self) -> list[int]:
        """The numbers of all turns on the page, in its order."""
        ids = self.page.eval_on_selector_all("[id^=t]", "all => all.map(one => one.id)")
        return [int(name[1:]) for name in ids if name[1:].isdigit()]

    def walk(self, look: Callable[[], object] = lambda: None) -> list[int]:
        """Read the dialog from its beginning to its end, as scrolling does; `look` at every part of it.

        Gives the numbers of all turns that were seen, each as often as there is an element of it at once.
        """
        self.page.keyboard.press("Home")
        expect(self.turn(1)).to_be_attached()
        seen: dict[int, int] = {}
        while True:
            here = self.turns
            seen |= {number: here.count(number) for number in here}
            look()
            self.page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
            if not self.page.evaluate("document.documentElement.classList.contains('detached')"):
                break
            expect(self.turn(here[-1] + 1)).to_be_attached()
        here = self.turns
        seen |= {number: here.count(number) for number in here}
        look()
        return [number for number, times in seen.items() for _ in range(times)]

    def open_tabs(self) -> Iterator[Any]:
        """Every tab beside the conversation, opened, with what is in it there."""
        for tab in self.page.locator("#panels [role=tab]:visible").all():
            tab.click()
            panel = self.page.locator(f"#{tab.get_attribute('aria-controls')}:not([aria-busy])")
            expect(panel.locator(".piece")).not_to_be_empty()
            yield tab

    def is_clean(self) -> None:
        """No script error, no refused load, no request but to this machine's own daemons."""
        found = [text for text in self.complaints if not any(part in text for part in self.expected)]
        assert found == []
        assert self.strangers == []


@contextmanager
def launched() -> Iterator[Browser]:
    """The browser of this machine, until the end of the block."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=list(SWITCHES))
        yield browser
        browser.close()


def open_visitor(browser: Browser, **options: Any) -> Visitor:
    """A fresh browser profile that watches over itself; `options` as Playwright's `new_context` takes them."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    visitor = Visitor(context, page)
    context.on("request", _asked_for(visitor))
    context.on("page", lambda opened: _watch(visitor, opened))
    _watch(visitor, page)
    return visitor


def _asked_for(visitor: Visitor) -> Callable[[Request], None]:
    """Looks only: a request held up for the test to let it go would stand still while the test waits for a file."""

    def check(request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme in ("http", "https") and address.hostname not in ("127.0.0.1", "localhost"):
            visitor.strangers.append(request.url)

    return check


def _watch(visitor: Visitor, page: Page) -> None:
    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            visitor.complaints.append(f"console: {message.text}")

    def asked(dialog: Any) -> None:
        visitor.complaints.append(f"a script ran: {dialog.message}")
        dialog.dismiss()

    page.on("console", said)
    page.on("pageerror", lambda error: visitor.complaints.append(f"script error: {error}"))
    page.on("dialog", asked)

"""The HTML: opened in a real Chromium."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dialogd.views.documents import export
from tests.export.dialogs import hostile

pytestmark = pytest.mark.slow
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser() -> str:
    """The Chromium of this machine."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no Chromium is installed")
    return found


def test_the_page_runs_nothing_asks_for_nothing_and_shows_everything(browser: str, tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    dialog = hostile()
    file = tmp_path / "page.html"
    file.write_bytes(export(dialog, "html"))
    events: list[str] = []
    with sync_api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=browser, args=QUIET)
        page = chromium.new_page()
        page.on("dialog", lambda one: (events.append("dialog"), one.dismiss()))
        page.on("request", lambda one: None if one.url == file.as_uri() else events.append(one.url))
        page.on("console", lambda one: events.append(one.text))
        page.on("pageerror", lambda one: events.append(str(one)))
        page.goto(file.as_uri())
        assert page.locator("article").count() == len(dialog.entries)
        assert page.locator("script, img, iframe, [onerror]").count() == 0
        size = page.locator("header h1").evaluate("e => getComputedStyle(e).lineHeight")
        assert size != "normal", "its own style is not refused by its own policy"
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for link in page.locator("nav a").all():
            assert page.locator(f"[id='{(link.get_attribute('href') or '')[1:]}']").count() == 1
        chromium.close()
    assert events == []

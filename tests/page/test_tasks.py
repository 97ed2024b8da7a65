"""The tasks of a build on the page: how each stands, what the person says of it, and what it changes, as text."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from dialogd.protocol.build import Due
from tests.build.site import PLAN, PRINT, READ, Site
from tests.page.browser import Visitor
from tests.page.test_hostile import is_unharmed

pytestmark = pytest.mark.browser
HOSTILE = {"<img src=x onerror=hacked=1>.html": "<script>hacked = 1</script>\n<img src=x onerror=hacked=1>\n"}
BIG = {"big.txt": "a line of a big file\n" * 20_000}


def test_tasks_are_confirmed_followed_and_read_on_the_page(tmp_path: Path, visitor: Visitor) -> None:
    """Their tab stands first; one press confirms them; scores, gate and the very diff are there, and nothing runs."""
    script = {"plan": PLAN, "001.1": {**READ, **HOSTILE}, "002.1": {**PRINT, **BIG}}
    site = Site(tmp_path, script)
    with site:
        site.open()
        site.until_due(Due.CONFIRM)
        page = visitor.visit(f"http://localhost:{site.daemons['M'].port}/")
        panel = page.locator("#panel-tasks")
        expect(page.locator("#panels [role=tab]").first).to_have_text("Tasks")
        expect(panel).to_contain_text("confirm, change or drop the proposed tasks: 001, 002")
        expect(panel).to_contain_text("negative ages are refused")
        panel.get_by_role("button", name="Confirm all").click()
        site.until_end()
        expect(panel.locator("h2")).to_have_text("Tasks 2 of 2 approved")
        expect(panel.locator("#task-001")).to_contain_text("86 of 100")
        expect(panel.locator("#task-001")).to_contain_text("gate passed")
        expect(panel).to_contain_text("dialogd build merge")
        expect(page.locator("#log")).to_contain_text("hands in task 001")
        expect(page.locator("#log")).to_contain_text("The gate passed on task 001")
        end = page.locator("#outcome")
        expect(end.locator("h2").first).to_have_text("2 of 2 tasks approved")
        expect(end).to_contain_text("It is built.")
        expect(end).to_contain_text("dialogd build merge")
        panel.get_by_role("link", name="001").click()
        expect(panel.locator(".diff").filter(has_text="age = int(text)")).to_have_count(1)
        expect(panel).to_contain_text("<script>hacked = 1</script>")
        is_unharmed(page)
        panel.get_by_role("link", name="Back to all tasks").click()
        panel.get_by_role("link", name="002").click()
        expect(panel).to_contain_text("Too long to be shown here")
        expect(panel).to_contain_text("big.txt")
        expect(panel.locator(".diff")).to_have_count(1)
        page.goto("about:blank")  # its daemons end now

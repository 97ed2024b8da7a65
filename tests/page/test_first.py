"""The page as it opens."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.page.browser import Visitor
from tests.server.daemon_process import Room


def test_it_opens(room: Room, visitor: Visitor) -> None:
    """The topic is its heading."""
    room.open("AB")
    page = visitor.visit(f"http://localhost:{room.a.port}/")
    expect(page.locator("h1")).to_contain_text("Tabs or spaces?")

"""Browsers and rooms for the page's tests; without a browser they are skipped, with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.page.browser import Visitor, launched, open_visitor, program
from tests.server.daemon_process import Room

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs a browser."""
    here = str(Path(__file__).parent) + os.sep
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests of a worker."""
    if not program():
        pytest.skip("no Chromium on PATH: Debian, Ubuntu: apt install chromium")
    with launched() as browser:
        yield browser


@pytest.fixture
def visitor(browser: Browser) -> Iterator[Visitor]:
    """A person before a browser; at the end nothing on the page has gone wrong."""
    visitor = open_visitor(browser)
    yield visitor
    visitor.context.close()
    visitor.is_clean()


@pytest.fixture
def phone(browser: Browser) -> Iterator[Visitor]:
    """A person with a phone of 390 pixels."""
    visitor = open_visitor(browser, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    yield visitor
    visitor.context.close()
    visitor.is_clean()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    """Two agents that think only what the test types."""
    with Room(tmp_path) as room:
        yield room

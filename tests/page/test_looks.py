"""Everybody can read and use the page: barriers, themes, widths, keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from dialogd.protocol.model import Mark
from tests.page.browser import AXE, Visitor, open_visitor
from tests.page.test_live import at
from tests.page.test_person import to_consensus
from tests.page.written import fill, prose
from tests.server.daemon_process import Room

LONG = "https://example.org/" + "a-very-long-path/" * 20
MARKS = (
    (Mark("PROPOSAL", "keep sessions in Postgres", "P1"), Mark("CONFIDENCE", "0.8")),
    (Mark("OBJECTION", "two weeks of data make a first choice permanent"), Mark("RE", "2, P1")),
    (Mark("CONCEDE", "an interface alone does not keep the way back open"), Mark("QUESTION", "how many users?")),
)


@pytest.fixture(params=["light", "dark"])
def reader(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Visitor]:
    """A person with a theme; axe may be put into the page."""
    visitor = open_visitor(browser, bypass_csp=True, color_scheme=request.param)
    yield visitor
    visitor.context.close()
    visitor.is_clean()


def barriers(page: Page) -> list[Any]:
    """What axe finds once nothing fades or moves any more, but for what always does: rule, element, why."""
    if not AXE.exists():
        pytest.skip("axe is not installed: `make test-page` brings it where npm is")
    page.evaluate(
        """() => Promise.allSettled(document.getAnimations()
            .filter((one) => one.effect.getComputedTiming().endTime < Infinity).map((one) => one.finished))"""
    )
    page.add_script_tag(path=str(AXE))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (one["id"], [(node["html"][:150], node["failureSummary"]) for node in one["nodes"]])
        for one in found["violations"]
    ]


def test_axe_finds_nothing_in_a_dialog_under_way(room: Room, reader: Visitor) -> None:
    fill(room, [prose(index) for index in range(12)], MARKS)
    room.start("AB")
    page = reader.visit(at(room))
    expect(reader.turn(13)).to_be_attached()
    room.minds["A"].call(1).say("Some words of mine are here already ")
    expect(page.locator("#live")).to_contain_text("Some words")
    assert barriers(page) == []
    for tab in reader.open_tabs():
        assert barriers(page) == [], tab.inner_text()
    page.locator("#more-open").click()
    assert barriers(page) == []
    page.keyboard.press("Escape")
    page.locator("#help-open").click()
    assert barriers(page) == []


def test_axe_finds_nothing_after_the_end(room: Room, reader: Visitor) -> None:
    room.open("AB")
    page = reader.visit(at(room))
    to_consensus(room)
    expect(page.locator("#outcome .because")).to_be_visible()
    assert barriers(page) == []
    for form in ("reject", "continue"):
        page.locator(f"#{form}-open").click()
        assert barriers(page) == [], form


def test_a_phone_never_scrolls_sideways(room: Room, phone: Visitor) -> None:
    wide = f"{LONG}\n\n```\n{'x' * 300}\n```\n\n|{'a|' * 20}\n|{'-|' * 20}\n|{'word|' * 20}\n\n{'W' * 400}"
    fill(room, [wide, *(prose(index) for index in range(5))], ((Mark("PROPOSAL", LONG, "P1"),), *MARKS[1:]))
    room.start("A")
    page = phone.visit(at(room))
    expect(phone.turn(7)).to_be_attached()

    def overhang() -> float:
        return float(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    assert overhang() <= 0
    page.locator("#panels-open").click()
    for tab in phone.open_tabs():
        assert overhang() <= 0, tab.inner_text()
    page.locator("#panels-open").click()
    page.locator("#more-open").click()
    assert overhang() <= 0
    page.keyboard.press("Escape")
    page.evaluate("scrollTo(0, 0)")
    assert overhang() <= 0


def test_five_agents_take_one_line_on_a_phone(tmp_path: Path, phone: Visitor) -> None:
    with Room(tmp_path, "ABCDE") as room:
        room.open("A")
        page = phone.visit(at(room))
        room.think()
        expect(page.locator('#agents [data-state="thinking"]')).to_be_attached()
        for who in "BCDE":  # nobody needs more room than a name
            room[who].start()
        names = page.locator("#agents .name")
        expect(page.locator("#agents .ails")).to_have_count(0)
        expect(names).to_have_text([f"Claude {who}" for who in "ABCDE"])
        tops = {round(box["y"]) for one in names.all() if (box := one.bounding_box())}
        assert len(tops) == 1
        assert page.evaluate(
            "[...document.querySelectorAll('#agents .name')].every((n) => n.scrollWidth <= n.clientWidth)"
        )
        page.goto("about:blank")


def test_the_keyboard_reaches_everything(room: Room, visitor: Visitor) -> None:
    room.open("AB")
    page = visitor.visit(at(room))
    room.think().end("Look:\n\n```python\nx = 1\n```\n")
    expect(visitor.turn(2)).to_be_visible()
    page.evaluate("document.body.focus()")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the conversation")
    page.keyboard.press("s")
    expect(page.locator("#say-text")).to_be_focused()
    page.keyboard.type("p")
    expect(page.locator("#say-text")).to_have_value("p")
    assert not room.dialog().state.paused
    page.keyboard.press("Escape")
    page.keyboard.press("p")
    room.until(lambda: room.dialog().state.paused, "the pause")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#help")).to_be_hidden()
    expect(visitor.turn(2).get_by_role("button", name="Copy this code")).to_be_attached()


def test_a_focus_in_a_bar_moves_nothing(room: Room, visitor: Visitor) -> None:
    fill(room, [prose(index) for index in range(12)])
    room.start("AB")
    page = visitor.visit(at(room))
    expect(visitor.turn(13)).to_be_in_viewport()
    room.minds["A"].call(1)
    expect(page.locator('#agents [data-state="thinking"]')).to_be_attached()
    expect(page.locator("#away")).not_to_be_empty()  # what stands above has come
    is_at_end = "() => document.documentElement.scrollHeight - scrollY - innerHeight < 2 && scrollY > 500"
    page.wait_for_function(is_at_end)
    for one in ("#pause", "#stop", "#help-open", "#say-text", "#more-open"):
        page.locator(one).focus()
        page.wait_for_function(is_at_end)
    page.locator("#help-open").click()
    page.keyboard.press("Escape")
    page.wait_for_function(is_at_end)


def test_code_is_copied(room: Room, browser: Browser) -> None:
    """The button beside a code block puts its text into the clipboard."""
    visitor = open_visitor(browser, permissions=["clipboard-read", "clipboard-write"])
    room.open("AB")
    page = visitor.visit(at(room))
    room.think().end("Look:\n\n```python\nx = 1\ny = 2\n```\n")
    button = visitor.turn(2).get_by_role("button", name="Copy this code")
    expect(button).to_be_attached()
    button.click()
    expect(button).not_to_have_text("Copy")
    assert page.evaluate("navigator.clipboard.readText()") == "x = 1\ny = 2\n"
    visitor.context.close()
    visitor.is_clean()

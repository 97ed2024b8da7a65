"""The page of a shared dialog: who sits where, how far behind it is, what is wrong, what was typed into the file."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.page.browser import Visitor, open_visitor
from tests.page.test_live import at
from tests.page.test_looks import barriers
from tests.server.daemon_process import Room
from tests.support.machines import NAME, Cast, Files


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The bare repository that carries the dialog."""
    subprocess.run(["git", "init", "--quiet", "--bare", "log.git"], cwd=tmp_path, check=True)
    return tmp_path / "log.git"


@pytest.fixture
def here(tmp_path: Path, repository: Path) -> Iterator[Room]:
    """The machine of Ada and of A; B and Bob are elsewhere, and it is B's turn."""
    cast = Cast(tmp_path / "keys")
    opening = cast.opening().replace(b"TURN: A", b"TURN: B")
    Files(tmp_path / "here", cast, "Ada", "A", f"git+file://{repository}").share(opening, "B")
    room = Room(tmp_path / "here", "A")
    with room:
        yield room


@pytest.fixture
def reader(browser: Browser) -> Iterator[Visitor]:
    """A person into whose page axe may be put."""
    visitor = open_visitor(browser, bypass_csp=True, viewport={"width": 1280, "height": 900})
    yield visitor
    visitor.context.close()
    visitor.is_clean()


def test_who_sits_elsewhere_has_no_daemon_here_and_nobody_says_so(here: Room, reader: Visitor) -> None:
    here.start("A")
    page = reader.visit(at(here))
    expect(page.locator("#shared-state")).to_contain_text("The whole log as of")
    expect(page.locator("#shared-seats")).to_have_text("Claude A sits here. Claude B sits elsewhere. People: Ada, Bob.")
    expect(page.locator("#shared-came")).to_contain_text("Nothing new for")
    expect(page.locator("#shared-log")).to_contain_text(NAME)
    assert len(page.locator("#shared-words").inner_text().split()) == 8
    card = page.locator('.agent[data-agent="B"]')
    expect(card.locator(".why")).to_have_text("on another machine")
    expect(card.locator(".word")).to_have_text("is next")
    expect(card).to_have_attribute("data-state", "idle")
    expect(page.locator("#phase-words")).to_contain_text("Waiting for Claude B, on another machine.")
    assert "dialogd start B" not in page.content()
    expect(page.locator("#shared-typed")).to_be_hidden()
    assert barriers(page) == []


def test_a_log_that_does_not_answer_is_told_in_the_colour_of_problems(
    here: Room, reader: Visitor, repository: Path, tmp_path: Path
) -> None:
    here.start("A")
    page = reader.visit(at(here))
    state = page.locator("#shared-state")
    expect(state).to_contain_text("The whole log as of")
    repository.rename(tmp_path / "away.git")
    expect(state).to_contain_text("No answer from git+file:///")
    expect(state).to_contain_text("what is here may not be all")
    expect(page.locator("#phase-words")).to_contain_text("there may be more than is here")
    bad = page.evaluate("getComputedStyle(document.body).getPropertyValue('--bad')")
    assert bad
    assert state.evaluate("one => getComputedStyle(one).color") == page.evaluate(
        "() => { const one = document.createElement('p'); one.style.color = 'var(--bad)'; document.body.append(one);"
        " return getComputedStyle(one).color }"
    )
    assert barriers(page) == []


@pytest.mark.slow
def test_a_log_that_went_back_is_an_alarm_with_what_ends_it(here: Room, reader: Visitor, repository: Path) -> None:
    here.start("A")
    page = reader.visit(at(here))
    page.locator("#say-text").fill("Mind the cost.")
    page.locator("#say-text").press("Enter")
    here.until(lambda: "Mind the cost." in here.text, "what was said")
    back = ["git", "update-ref", f"refs/heads/dialogd/{NAME}", f"refs/heads/dialogd/{NAME}~1"]
    subprocess.run(back, cwd=repository, check=True)
    expect(page.locator("#shared-state")).to_contain_text("the log ends at byte")
    expect(page.locator("#shared-state")).to_contain_text("To go on: ")
    expect(page.locator("#phase-words")).to_contain_text("The log ends at byte")
    expect(page.locator("#phase-words")).to_contain_text("To go on: nothing was changed here")
    assert page.title().startswith("(!) ")


def test_what_was_typed_into_the_file_stands_there_with_the_command_that_sends_it(here: Room, reader: Visitor) -> None:
    here.start("A")
    page = reader.visit(at(here))
    expect(page.locator("#shared-state")).to_contain_text("The whole log as of")
    here.types("\nWhat about Valkey?\n")
    typed = page.locator("#shared-typed")
    expect(typed.locator("code")).to_contain_text("dialogd say - --file")
    expect(typed).to_contain_text("dialog.md.d/typed-")
    assert "Valkey" not in here.text


def test_on_a_phone_nothing_is_wider_than_the_screen(here: Room, phone: Visitor, repository: Path) -> None:
    here.start("A")
    page = phone.visit(at(here))
    expect(page.locator("#phase-words")).to_contain_text("on another machine")
    page.get_by_role("button", name="Details", exact=True).click()
    expect(page.locator("#shared-state")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

"""What stands around the conversation: the head, the composer, what the person may do; and daemons that go."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.page.browser import Visitor
from tests.page.test_live import at
from tests.server.daemon_process import Room

GONE = ("ERR_", "403", "503")  # what a browser says of daemons that go, and of the probe for one that stays


# -- When a daemon dies ----------------------------------------------------------------------------------------------


def test_a_page_that_was_opened_before_the_dialog_goes_on_elsewhere(room: Room, visitor: Visitor) -> None:
    """It learnt only later who takes part, and moves to one of them with what was typed."""
    visitor.expected = GONE
    room.start("AB")
    page = visitor.visit(at(room, "A"))
    expect(page.locator("#phase-words")).to_contain_text("no dialog")
    room.begin("Tabs or spaces?")
    expect(visitor.turn(1)).to_be_visible(timeout=15_000)
    page.locator("#say-text").fill("Half a thought")
    room.a.kill()
    page.wait_for_url(at(room, "B"), timeout=20_000)
    expect(page.locator("#say-text")).to_have_value("Half a thought")
    expect(visitor.turn(1)).to_be_visible()


def test_a_page_goes_on_with_an_agent_that_was_invited_later(room: Room, visitor: Visitor) -> None:
    """The daemon of an agent that nobody knew of when the page was opened takes over."""
    visitor.expected = GONE
    room.start("A")
    room.begin("Tabs or spaces?", agents=f"A = Claude A @ {room.url('A')}")
    page = visitor.visit(at(room, "A"))
    expect(page.locator("#agents .agent")).to_have_count(1)
    room.a.ask("POST", "/invite", {"agent": f"B = Claude B @ {room.url('B')}"})
    expect(page.locator("#agents .agent")).to_have_count(2)
    room.start("B")
    expect(page.locator('#agents [data-agent="B"][data-state="idle"]')).to_be_attached(timeout=15_000)
    room.a.kill()
    page.wait_for_url(at(room, "B"), timeout=20_000)
    expect(visitor.turn(1)).to_be_visible()


def test_nobody_is_writing_when_the_daemon_is_gone(room: Room, visitor: Visitor) -> None:
    """A reply that was cut off by a kill is no longer shown as being written."""
    visitor.expected = GONE
    room.start("A")
    room.begin("Tabs or spaces?")
    page = visitor.visit(at(room))
    room.think().say("I was about to say ")
    expect(page.locator("#live")).to_contain_text("I was about to say", timeout=15_000)
    room.a.kill()
    expect(page.locator("#banner")).to_contain_text("has not answered")
    expect(page.locator("#live .entry")).to_have_count(0)


def test_nobody_is_writing_when_another_daemon_is_gone(room: Room, visitor: Visitor) -> None:
    """Nor is one whose own daemon was killed, on the page of another."""
    visitor.expected = GONE
    room.open("AB", turn="B")
    page = visitor.visit(at(room, "A"))
    room.think("B").say("I was about to say ")
    expect(page.locator("#live")).to_contain_text("I was about to say", timeout=15_000)
    room.b.kill()
    expect(page.locator("#live .entry")).to_have_count(0)


def test_nobody_is_writing_after_a_stop(room: Room, visitor: Visitor) -> None:
    """The dialog has ended in the middle of a reply: no card stays."""
    visitor.expected = GONE
    room.open("AB")
    page = visitor.visit(at(room))
    room.think().say("I was about to say ")
    expect(page.locator("#live")).to_contain_text("I was about to say", timeout=15_000)
    room.a.ask("POST", "/stop", {"reason": "lunch"})
    expect(page.locator("#outcome")).to_be_visible(timeout=15_000)
    expect(page.locator("#live .entry")).to_have_count(0)
    room.until(lambda: not room.a.running, "the daemon to end")
    page.wait_for_timeout(500)
    expect(page.locator("#live .entry")).to_have_count(0)

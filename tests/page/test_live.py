"""A dialog that a person watches and steps into, in a real browser."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from dialogd.store.disk import Lock
from dialogd.store.registry import start_of
from tests.page.browser import Visitor
from tests.server.daemon_process import Room
from tests.support.forked import fork
from tests.support.pair import Pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Two rehearsing agents that take their time: each turn streams for a second."""
    with Pair(tmp_path, backend="rehearsal:slow=1", launch=fork) as pair:
        yield pair


def at(pair: Pair, agent: str = "A") -> str:
    """The address of one daemon's page."""
    return f"http://localhost:{pair[agent].port}/"


def say(page: Page, text: str) -> None:
    """Type and send, as people do."""
    page.locator("#say-text").fill(text)
    page.locator("#say-text").press("Enter")


def test_a_whole_dialog_is_watched_to_its_end(pair: Pair, visitor: Visitor) -> None:
    pair.start()
    pair.begin("Tabs or spaces?")
    page = visitor.visit(at(pair))
    page.evaluate(
        """() => {
            window.seen = new Set();
            new MutationObserver(() => document.querySelectorAll("#live [data-by]").forEach((one) => {
                if (one.querySelector(".body").textContent.trim()) window.seen.add(one.dataset.by);
            })).observe(document.getElementById("live"), {subtree: true, childList: true, characterData: true});
        }"""
    )
    pair.notify()
    expect(page.locator("#outcome")).to_be_visible()
    pair.until(lambda: pair.outcome == "CONSENSUS_REACHED", "consensus")
    last = pair.number
    expect(visitor.turn(last)).to_be_visible()
    assert visitor.turns == list(range(1, last + 1))
    assert page.evaluate("[...window.seen].sort()") == ["A", "B"]
    expect(page.locator("#live .entry")).to_have_count(0)
    expect(page.locator("#outcome .people").first).to_contain_text("A")
    for number in range(2, last + 1):
        expect(visitor.turn(number).locator(".facts")).not_to_be_empty()


def test_what_is_being_written_by_another_daemon_is_shown(room: Room, visitor: Visitor) -> None:
    room.open("AB", turn="B")
    page = visitor.visit(at(room, "A"))
    typing = room.think("B")
    typing.say("The first words of B ")
    expect(page.locator("#live")).to_contain_text("The first words of B")
    expect(page.locator("#live .name")).to_have_text("Claude B")
    typing.end("and the last ones.\n")
    expect(visitor.turn(2)).to_contain_text("The first words of B and the last ones.")
    expect(page.locator("#live .entry")).to_have_count(0)


def test_saying_something_interrupts_the_call_under_way(room: Room, visitor: Visitor) -> None:
    room.open("AB")
    page = visitor.visit(at(room))
    typing = room.think()
    typing.say("I was about to say ")
    expect(page.locator("#live")).to_contain_text("I was about to say")
    say(page, "Consider **Redis** too.")
    expect(visitor.turn(2)).to_contain_text("Consider Redis too.")
    expect(page.locator("#say-text")).to_have_value("")
    room.until(lambda: not typing.is_alive, "the end of the call")
    room.minds["A"].call(2).end("Redis it is.\n")
    expect(visitor.turn(3)).to_contain_text("Redis it is.")
    assert visitor.turns == [1, 2, 3]


def test_what_is_being_sent_is_not_sent_again(room: Room, visitor: Visitor) -> None:
    room.open("AB", turn="USER")
    page = visitor.visit(at(room))
    button = page.locator("#say-send")
    room.until(lambda: page.evaluate("import('/page/head.js').then((head) => head.now() !== null)"), "the state")
    with Lock(room.file.with_name(f"{room.file.name}.lock")).held():
        say(page, "Only once, please.")
        expect(button).to_be_disabled()
        # As when a state comes that was asked for before: while the file is held, the daemon answers nothing new.
        page.evaluate("import('/page/head.js').then((head) => head.render(head.now()))")
        page.locator("#say-text").press("Control+Enter")
        page.locator("#say-text").press("Control+Enter")
        expect(button).to_be_disabled()
    expect(visitor.turn(2)).to_contain_text("Only once, please.")
    expect(button).to_be_enabled()
    assert room.text.count("Only once, please.") == 1


def test_a_refused_text_is_not_lost(room: Room, visitor: Visitor) -> None:
    visitor.expected = ("400",)
    room.open("AB")
    page = visitor.visit(at(room))
    say(page, "@Nobody Are you there?")
    expect(page.locator("#say-result")).to_contain_text("Nobody")
    expect(page.locator("#say-text")).to_have_value("@Nobody Are you there?")
    page.reload()
    expect(page.locator("#say-text")).to_have_value("@Nobody Are you there?")
    assert room.number == 1


def test_retry_and_skip(room: Room, visitor: Visitor) -> None:
    """A is passed over; B, whose turn it is then, is asked once more while it thinks."""
    room.open("AB")
    page = visitor.visit(at(room))
    first = room.think("A")
    page.locator('#agents [data-agent="A"]').hover()
    page.locator('[data-agent="A"] [data-do="skip"]').click()
    second = room.minds["B"].call(1)
    room.until(lambda: not first.is_alive, "the end of A's call")
    page.locator('#agents [data-agent="B"]').hover()
    page.locator('[data-agent="B"] [data-do="retry"]').click()
    room.until(lambda: not second.is_alive, "the end of B's first call")
    room.minds["B"].call(2).end("Spaces.\n")
    expect(visitor.turn(2)).to_contain_text("Spaces.")


def test_stop_asks_first_and_ends_everything(room: Room, visitor: Visitor) -> None:
    visitor.expected = ("ERR_", "403", "503")  # daemons that go, and the probe for one that stays
    room.open("AB")
    page = visitor.visit(at(room))
    room.think()
    page.locator("#stop").click()
    page.get_by_role("button", name="Keep going").click()
    assert not room.outcome
    page.locator("#stop").click()
    page.locator("#stop-reason").fill("lunch")
    page.get_by_role("button", name="Stop it").click()
    room.until(lambda: room.outcome == "STOPPED", "the end")
    assert "[STOPPED: lunch]" in room.text
    expect(page.locator("#banner")).to_contain_text("Stopped")
    room.until(lambda: not room.a.running and not room.b.running, "both daemons to end")


def test_a_daemon_that_is_killed_and_started_again_loses_nothing(room: Room, visitor: Visitor) -> None:
    visitor.expected = ("ERR_", "503")
    room.start("A")
    room.begin("Tabs or spaces?")
    page = visitor.visit(at(room))
    room.think().end("Tabs.\n")
    expect(visitor.turn(2)).to_be_visible()
    own = page.locator('#agents [data-agent="A"]')
    room.a.kill()
    expect(page.locator("#banner")).to_contain_text("has not answered")
    expect(page.locator("#phase-words")).to_contain_text("Not connected to Claude A's daemon")
    expect(own.locator(".word")).to_have_text("does not answer")
    expect(own).to_contain_text("start it again: dialogd start A")
    for control in ("#pause", "#stop", "#say-send"):
        expect(page.locator(control)).to_be_disabled()
    page.locator("#say-text").fill("Half a thought")
    with room.file.open("a") as file:
        file.write("\n---\n\n## Turn 3 — Claude B\n\nSpaces.\n\nTURN: A\n")
    room.a.start()
    room.a.until_ready()
    expect(visitor.turn(3)).to_contain_text("Spaces.")
    room.minds["A"].call(2).end("Spaces, then.\n")
    expect(visitor.turn(4)).to_contain_text("Spaces, then.")
    assert visitor.turns == [1, 2, 3, 4]
    expect(page.locator("#banner")).to_contain_text("answers again")
    expect(page.locator("#phase-words")).not_to_contain_text("Not connected")
    expect(own.locator(".word")).not_to_have_text("does not answer")
    for control in ("#pause", "#stop", "#say-send"):
        expect(page.locator(control)).to_be_enabled()
    expect(page.locator("#say-text")).to_have_value("Half a thought")


def test_when_its_daemon_dies_the_page_goes_on_with_another(room: Room, visitor: Visitor) -> None:
    visitor.expected = ("ERR_", "403")  # the probe learns that somebody is there, and no more
    room.open("AB")
    with visitor.learns_of_others():
        page = visitor.visit(at(room, "A"))
    room.think().end("Tabs.\n")
    thinking = room.minds["B"].call(1)
    expect(visitor.turn(2)).to_be_visible()
    page.locator("#say-text").fill("Half a thought")
    room.a.kill()
    page.wait_for_url(at(room, "B"))
    expect(page.locator("#banner")).to_contain_text("Claude A")
    expect(page.locator("#say-text")).to_have_value("Half a thought")
    thinking.end("Spaces.\n")
    expect(visitor.turn(3)).to_contain_text("Spaces.")
    assert visitor.turns == [1, 2, 3]


def test_another_dialog_in_the_file_takes_the_place_of_the_first(room: Room, visitor: Visitor) -> None:
    visitor.expected = ("status of", "ERR_")  # what is asked about the old dialog while the new one takes its place
    room.open("AB")
    page = visitor.visit(at(room))
    room.think().end("Tabs.\n")
    expect(visitor.turn(2)).to_be_visible()
    room.begin("Vim or Emacs?")
    expect(visitor.turn(1)).to_contain_text("Vim or Emacs?")
    expect(visitor.turn(2)).to_have_count(0)
    expect(page.locator("#topic")).to_have_text("Vim or Emacs?")


def test_a_browser_of_a_seated_session_is_not_the_persons(tmp_path: Path, visitor: Visitor) -> None:
    visitor.expected = ("409", "ERR_")  # what is refused; a daemon that goes
    neighbour = subprocess.Popen(["sleep", "600"])
    sessions = {"A": os.getpid(), "B": neighbour.pid}  # the browser is a child of this process
    flags = {who: ["--session", f"claude:{pid}:{start_of(pid)}"] for who, pid in sessions.items()}
    try:
        with Pair(tmp_path, backend="live", flags=flags, launch=fork) as pair:
            pair.start("A")
            pair.begin("Tabs or spaces?")
            page = visitor.visit(at(pair))
            say(page, "Use tabs.")
            expect(page.locator("#say-result")).to_contain_text("for the person alone")
            page.locator("#pause").click()
            expect(page.locator("#phase-words")).to_contain_text("Paused by A's session")
            expect(page.locator(".entry.note").first).to_contain_text("From A's session, not from you.")
            assert pair.number == 1
            visitor.visit("about:blank")  # it would go on with B's daemon by itself
            pair["A"].terminate()
            pair.start("B")  # of another session, beside which the browser runs
            page = visitor.visit(at(pair, "B"))
            say(page, "Use spaces.")
            expect(visitor.turn(2)).to_contain_text("Use spaces.")
    finally:
        neighbour.kill()
        neighbour.wait()

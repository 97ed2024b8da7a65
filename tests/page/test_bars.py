"""What stands around the conversation: the head, the composer, what the person may do; and daemons that go."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from dialogd.store.disk import StateDir
from dialogd.store.registry import HOME, home_port
from tests.page.browser import Visitor, open_visitor
from tests.page.test_live import at
from tests.page.test_person import AGREED, open_more, unfold
from tests.server.daemon_process import Room

GONE = ("ERR_", "403", "503")  # what a browser says of daemons that go, and of the probe for one that stays


# -- When a daemon dies ----------------------------------------------------------------------------------------------


def test_a_page_that_was_opened_before_the_dialog_goes_on_elsewhere(room: Room, visitor: Visitor) -> None:
    visitor.expected = GONE
    room.start("AB")
    page = visitor.visit(at(room, "A"))
    expect(page.locator("#phase-words")).to_contain_text("no dialog")
    with visitor.learns_of_others():
        room.begin("Tabs or spaces?")
    expect(visitor.turn(1)).to_be_visible()
    page.locator("#say-text").fill("Half a thought")
    room.a.kill()
    page.wait_for_url(at(room, "B"))
    expect(page.locator("#say-text")).to_have_value("Half a thought")
    expect(visitor.turn(1)).to_be_visible()


def test_a_page_goes_on_with_an_agent_that_was_invited_later(room: Room, visitor: Visitor) -> None:
    visitor.expected = GONE
    room.start("A")
    room.begin("Tabs or spaces?", agents=f"A = Claude A @ {room.url('A')}")
    page = visitor.visit(at(room, "A"))
    expect(page.locator("#agents .agent")).to_have_count(1)
    with visitor.learns_of_others():
        room.a.ask("POST", "/invite", {"agent": f"B = Claude B @ {room.url('B')}"})
    expect(page.locator("#agents .agent")).to_have_count(2)
    room.start("B")
    expect(page.locator('#agents [data-agent="B"][data-state="idle"]')).to_be_attached()
    room.a.kill()
    page.wait_for_url(at(room, "B"))
    expect(visitor.turn(1)).to_be_visible()


def test_when_no_daemon_answers_the_page_says_so_and_where_it_is_found(room: Room, visitor: Visitor) -> None:
    visitor.expected = GONE
    room.open("AB")
    with visitor.learns_of_others():
        page = visitor.visit(at(room, "A"))
    expect(page.locator('#agents [data-agent="B"][data-state="idle"]')).to_be_attached()
    room.b.kill()
    room.a.kill()
    expect(page.locator("#banner")).to_contain_text("Open it from Home: dialogd open")
    expect(page.locator("#banner").get_by_role("link")).to_have_count(0)
    room.b.start()
    room.b.until_ready()
    page.wait_for_url(at(room, "B"))


def test_nobody_is_writing_when_the_daemon_is_gone(room: Room, visitor: Visitor) -> None:
    visitor.expected = GONE
    room.start("A")
    room.begin("Tabs or spaces?")
    page = visitor.visit(at(room))
    room.think().say("I was about to say ")
    expect(page.locator("#live")).to_contain_text("I was about to say")
    room.a.kill()
    expect(page.locator("#banner")).to_contain_text("has not answered")
    expect(page.locator("#live .entry")).to_have_count(0)


def test_nobody_is_writing_when_another_daemon_is_gone(room: Room, visitor: Visitor) -> None:
    visitor.expected = GONE
    room.open("AB", turn="B")
    page = visitor.visit(at(room, "A"))
    room.think("B").say("I was about to say ")
    expect(page.locator("#live")).to_contain_text("I was about to say")
    room.b.kill()
    expect(page.locator("#live .entry")).to_have_count(0)


def test_nobody_is_writing_after_a_stop(room: Room, visitor: Visitor) -> None:
    visitor.expected = GONE
    room.open("AB")
    page = visitor.visit(at(room))
    room.think().say("I was about to say ")
    expect(page.locator("#live")).to_contain_text("I was about to say")
    room.a.ask("POST", "/stop", {"reason": "lunch"})
    expect(page.locator("#outcome")).to_be_visible()
    expect(page.locator("#live .entry")).to_have_count(0)
    room.until(lambda: not room.a.running, "the daemon to end")
    expect(page.locator("#banner")).to_contain_text("its daemons have ended")
    expect(page.locator("#live .entry")).to_have_count(0)


@pytest.fixture
def with_home(tmp_path: Path) -> Iterator[Room]:
    """A room whose Home takes any port; it ends with the test."""
    with Room(tmp_path, environment={"DIALOGD_HOME_PORT": "0"}) as room:
        yield room
        state = StateDir(room.state_dir)
        if home_port(state) is not None:
            os.kill(json.loads((state.root / HOME).read_text())["pid"], signal.SIGKILL)


def test_every_page_leads_to_home_and_back(with_home: Room, visitor: Visitor) -> None:
    visitor.expected = GONE
    room = with_home
    room.open("AB", turn="USER")
    page = visitor.visit(at(room))
    expect(page.locator("#house a")).to_have_text(["dialogd", "New dialog"])
    page.locator("#house").get_by_role("link", name="New dialog").click()
    page.wait_for_url(re.compile(r"http://localhost:\d+/#new"))
    assert page.url == f"http://localhost:{home_port(StateDir(room.state_dir))}/#new"
    page.locator("#waiting").get_by_role("link", name="Tabs or spaces?").click()
    page.wait_for_url(at(room))
    home = f"http://localhost:{home_port(StateDir(room.state_dir))}/"
    expect(page.locator("#house a").first).to_have_attribute("href", home)
    room.a.ask("POST", "/stop", {})
    room.until(lambda: not room.a.running and not room.b.running, "both daemons to end")
    banner = page.locator("#banner")
    expect(banner).to_contain_text("Stopped")
    expect(banner.get_by_role("link")).to_have_text("Open it from Home")
    else_ = page.locator("#outcome").get_by_role("link", name="Ask something else")
    expect(else_).to_have_attribute("href", f"{home}#new")
    banner.get_by_role("link").click()
    page.wait_for_url(home)
    expect(page.locator("#past")).to_contain_text("Tabs or spaces?")


# -- One sentence, and Start -----------------------------------------------------------------------------------------


def test_start_is_a_button_on_the_page_of_any_daemon(room: Room, visitor: Visitor) -> None:
    room.open("AB", turn="B")
    page = visitor.visit(at(room, "A"))
    expect(page.locator("#phase-words")).to_have_text("It has not begun. Press Start.")
    assert "curl" not in page.locator("#top").inner_text()
    page.get_by_role("button", name="Start", exact=True).click()
    room.minds["B"].call(1).end("Spaces.\n")
    expect(visitor.turn(2)).to_contain_text("Spaces.")
    expect(page.locator("#start")).to_be_hidden()


def test_a_dialog_that_has_rested_goes_on_by_a_button(room: Room, visitor: Visitor) -> None:
    said = "\n---\n\n## Turn 2 — Claude A\n\nTabs.\n\nTURN: B\n"
    room.file.write_text(room.opening("Tabs or spaces?", "A") + said)
    hours_ago = room.file.stat().st_mtime - 3 * 3600
    os.utime(room.file, (hours_ago, hours_ago))
    room.start("AB")
    page = visitor.visit(at(room, "A"))
    expect(page.locator("#phase-words")).to_contain_text("has rested for a while")
    page.get_by_role("button", name="Go on", exact=True).click()
    room.minds["B"].call(1).end("Spaces.\n")
    expect(visitor.turn(3)).to_contain_text("Spaces.")


def test_one_sentence_says_what_happens_and_what_is_needed(room: Room, visitor: Visitor) -> None:
    room.open("AB")
    page = visitor.visit(at(room))
    sentence = page.locator("#phase-words")
    typing = room.think()
    expect(sentence).to_have_text("Claude A is writing. Nothing is needed of you.")
    page.locator("#pause").click()
    expect(sentence).to_have_text("Paused, until you resume it; Claude A is writing. Press Resume to go on.")
    typing.end("Tabs.\n")
    expect(sentence).to_have_text("Paused, until you resume it. Press Resume to go on.")
    page.locator("#pause").click()
    room.minds["B"].call(1).end(AGREED)
    room.minds["A"].call(2).end("[AGREE: P1]\n")
    expect(sentence).to_have_text("Everyone agreed to the same text. Approve it, or say what is wrong.")


# -- The composer ----------------------------------------------------------------------------------------------------


def test_enter_sends_and_shift_enter_breaks_the_line(room: Room, visitor: Visitor) -> None:
    room.open("AB")
    page = visitor.visit(at(room))
    typing = room.think()
    button = page.locator("#say-send")
    expect(button).to_have_text("Send · interrupts Claude A")
    page.get_by_label("note", exact=True).check()
    expect(button).to_have_text("Add the note")
    page.get_by_label("note", exact=True).uncheck()
    page.locator("#say-text").focus()
    page.keyboard.type("Consider Redis,")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("and the cost.")
    expect(page.locator("#say-text")).to_have_value("Consider Redis,\nand the cost.")
    page.keyboard.press("Enter")
    expect(visitor.turn(2)).to_contain_text("and the cost.")
    room.until(lambda: not typing.is_alive, "the end of the call")
    assert "Consider Redis,\nand the cost." in room.text


def test_enter_belongs_to_an_input_method_while_it_composes(room: Room, visitor: Visitor) -> None:
    room.open("AB", turn="USER")
    page = visitor.visit(at(room))
    page.locator("#say-text").focus()
    keys = visitor.context.new_cdp_session(page)
    keys.send("Input.imeSetComposition", {"text": "空白", "selectionStart": 2, "selectionEnd": 2})
    enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 229}
    keys.send("Input.dispatchKeyEvent", {"type": "rawKeyDown", **enter})
    keys.send("Input.dispatchKeyEvent", {"type": "keyUp", **enter})
    keys.send("Input.insertText", {"text": "空白"})
    expect(page.locator("#say-text")).to_have_value("空白")
    assert room.number == 1
    page.keyboard.press("Enter")
    expect(visitor.turn(2)).to_contain_text("空白")


def test_on_a_phone_enter_breaks_the_line(room: Room, phone: Visitor) -> None:
    room.open("AB", turn="USER")
    page = phone.visit(at(room))
    box = page.locator("#say").bounding_box()
    assert box is not None
    assert 844 - (box["y"] + box["height"]) < 20
    page.locator("#say-text").tap()
    page.keyboard.type("One")
    page.keyboard.press("Enter")
    page.keyboard.type("two")
    expect(page.locator("#say-text")).to_have_value("One\ntwo")
    page.locator("#say-send").tap()
    expect(phone.turn(2)).to_contain_text("One")


def test_names_are_completed_by_keyboard(room: Room, visitor: Visitor) -> None:
    room.open("AB")
    page = visitor.visit(at(room))
    field, names = page.locator("#say-text"), page.get_by_role("listbox", name="Names")
    field.focus()
    page.keyboard.type("@")
    expect(names.get_by_role("option")).to_have_count(2)
    page.keyboard.press("Escape")
    expect(names).to_be_hidden()
    expect(field).to_be_focused()
    page.keyboard.press("Backspace")
    page.keyboard.type("@")
    page.keyboard.press("ArrowDown")
    expect(field).to_have_attribute("aria-activedescendant", "name-1")
    page.keyboard.press("Enter")
    expect(field).to_have_value("@Claude B ")
    expect(page.locator("#say-hint")).to_have_text("Claude B replies next.")
    page.keyboard.type("What do you and @cl")
    page.keyboard.press("Tab")
    expect(field).to_have_value("@Claude B What do you and @Claude A ")
    page.keyboard.press("Enter")
    room.minds["B"].call(1).end("Spaces.\n")
    expect(visitor.turn(3)).to_contain_text("Spaces.")


def draft(page: Page, words: str, options: str) -> None:
    """What an act beside a turn or a proposal asks of the composer."""
    page.evaluate(f"words => import('/page/composer.js').then((all) => all.draft(words, {options}))", words)


def test_a_draft_goes_into_the_composer(room: Room, visitor: Visitor) -> None:
    room.open("AB")
    page = visitor.visit(at(room))
    room.think().end("I have an idea.\n\n[PROPOSAL: use tabs]\n")
    expect(visitor.turn(2)).to_be_visible()
    page.locator("#say-text").fill("Look:")
    draft(page, "> I have an idea.", "{to: 'B'}")
    expect(page.locator("#say-text")).to_have_value("@Claude B Look:\n\n> I have an idea.")
    expect(page.locator("#say-text")).to_be_focused()
    page.locator("#say-text").fill("")
    draft(page, "", "{instead: 'P1'}")
    expect(page.locator("#draft-about")).to_contain_text("In the place of P1")
    page.get_by_role("button", name="Say it without that").click()
    expect(page.locator("#draft-about")).to_be_hidden()
    draft(page, "", "{instead: 'P1'}")
    page.keyboard.type("Use both.")
    page.keyboard.press("Enter")
    room.until(lambda: "[PROPOSAL P2: Use both." in room.text, "the proposal")
    expect(page.locator("#draft-about")).to_be_hidden()


# -- The sheet -------------------------------------------------------------------------------------------------------


def test_the_sheet_is_small_and_knows_the_ids(room: Room, phone: Visitor) -> None:
    room.open("AB")
    page = phone.visit(at(room))
    room.think().end("I have an idea.\n\n[PROPOSAL: use tabs]\n")
    expect(phone.turn(2)).to_be_visible()
    open_more(page)
    box = page.locator("#more").bounding_box()
    assert box is not None
    assert box["height"] < 844
    assert page.evaluate("document.getElementById('more').scrollHeight <= document.getElementById('more').clientHeight")
    veto = unfold(page, "/veto").locator("select option")
    expect(veto).to_have_text(["P1: use tabs"])
    expect(unfold(page, "/leave").locator("select option")).to_have_text(["Claude A (A)", "Claude B (B)"])
    turns = page.locator("#turns option")
    room.until(lambda: turns.evaluate_all("all => all.map(one => one.value)") == ["2", "1"], "the turns to choose from")
    page.keyboard.press("Escape")
    expect(page.locator("#more")).to_be_hidden()


# -- What is told to who looks elsewhere -----------------------------------------------------------------------------


def test_the_title_says_that_the_reader_is_needed(room: Room, visitor: Visitor) -> None:
    room.open("AB")
    page = visitor.visit(at(room))
    typing = room.think()
    expect(page).to_have_title("Tabs or spaces?")
    typing.end("How many?\n\n[QUESTION_FOR_USER: How many users?]\n")
    expect(page).to_have_title("(!) Tabs or spaces?")
    page.keyboard.press("s")
    page.keyboard.type("Ten.")
    page.keyboard.press("Enter")
    room.minds["A"].call(2).end("Then tabs.\n")
    expect(page).to_have_title("Tabs or spaces?")
    room.a.ask("POST", "/stop")
    expect(page).to_have_title("(done) Tabs or spaces?")
    visitor.expected = GONE


def test_notifications_come_when_they_were_asked_for(room: Room, browser: Browser) -> None:
    visitor = open_visitor(browser, permissions=["notifications"])
    visitor.context.add_init_script(
        """window.told = [];
        window.Notification = class extends Notification {
            constructor(title, more) { super(title, more); window.told.push([title, more.body]); }
        };
        document.hasFocus = () => false;"""
    )
    room.open("AB")
    page = visitor.visit(at(room))
    room.think().end("[QUESTION_FOR_USER: How many users?]\n")
    expect(page).to_have_title("(!) Tabs or spaces?")
    assert page.evaluate("window.told") == []
    page.keyboard.press("?")
    page.get_by_label("Notify me when I am needed and when it ends").check()
    page.keyboard.press("Escape")
    room.a.ask("POST", "/say", {"text": "Ten."})
    room.minds["A"].call(2).end("[QUESTION_FOR_USER: And how many turns?]\n")
    expect(page.locator("#question-text")).to_contain_text("And how many turns?")
    page.wait_for_function("() => window.told.length > 0")
    told = page.evaluate("window.told")
    assert told == [["Tabs or spaces?", "Claude A asks you a question. And how many turns?"]]
    visitor.context.close()
    visitor.is_clean()


# -- Two tabs --------------------------------------------------------------------------------------------------------


def test_two_tabs_show_the_same(room: Room, visitor: Visitor) -> None:
    visitor.expected = GONE
    room.open("AB")
    with visitor.learns_of_others():
        first = visitor.visit(at(room, "A"))
    second = visitor.context.new_page()
    with second.expect_response("**/page/probe.js") as probe:
        second.goto(at(room, "A"), wait_until="domcontentloaded")
    probe.value.finished()
    typing = room.think()
    typing.say("I was about to say ")
    for page in (first, second):
        expect(page.locator("#live")).to_contain_text("I was about to say")
    first.locator("#say-text").fill("Spaces, please.")
    second.locator("#say-text").fill("Half a thought")
    first.locator("#say-text").press("Enter")
    for page in (first, second):
        expect(page.locator("#t2")).to_contain_text("Spaces, please.")
        expect(page.locator("#live .entry")).to_have_count(0)
    expect(first.locator("#say-text")).to_have_value("")
    expect(second.locator("#say-text")).to_have_value("Half a thought")
    second.locator("#pause").click()
    expect(first.locator("#phase-words")).to_contain_text("Paused, until you resume it")
    room.a.kill()
    for page in (first, second):
        page.wait_for_url(at(room, "B"))
        expect(page.locator("#t2")).to_contain_text("Spaces, please.")
    expect(second.locator("#say-text")).to_have_value("Half a thought")

"""The conversation: acts beside turns and proposals, what streams, search, what is new."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from dialogd.protocol.model import Mark
from tests.page.browser import Visitor, open_visitor
from tests.page.test_live import at
from tests.page.written import fill, prose
from tests.server.daemon_process import Room

PROPOSED = ((Mark("PROPOSAL", "keep sessions in **Postgres**", "P1"), Mark("CONFIDENCE", "0.8")),)


@pytest.fixture
def talk(room: Room, visitor: Visitor) -> Page:
    """The page of a dialog with a proposal in turn 2, and eleven turns more."""
    fill(room, [prose(index) for index in range(12)], PROPOSED)
    room.start("A")
    page = visitor.visit(at(room))
    expect(visitor.turn(13)).to_be_attached()
    return page


def act(page: Page, name: str) -> None:
    """Press what stands beside a turn or a proposal, as keys reach it."""
    button = page.get_by_role("button", name=name, exact=True)
    button.focus()
    expect(button).to_be_visible()
    button.press("Enter")


def test_what_is_said_about_a_turn_begins_beside_it(talk: Page) -> None:
    words = talk.locator("#say-text")
    act(talk, "Reply to turn 4")
    expect(words).to_have_value("@Claude A On turn 4: ")
    expect(words).to_be_focused()
    words.fill("")
    act(talk, "Quote turn 3")
    assert words.input_value().startswith("> Point 1: a session store")
    words.fill("")
    act(talk, "Ask about P1")
    expect(words).to_have_value("@Claude A About P1: ")


def test_who_is_replied_to_is_known_at_once(room: Room, visitor: Visitor) -> None:
    fill(room, ["Two weeks of data."], PROPOSED)
    room.start("A")
    visitor.page.route("**/page/state", lambda _: None)
    page = visitor.page
    page.goto(at(room), wait_until="domcontentloaded")
    act(page, "Reply to turn 2")
    expect(page.locator("#say-text")).to_have_value("@Claude A On turn 2: ")
    page.unroute("**/page/state")


def test_a_proposal_is_ruled_out_and_another_suggested_where_it_stands(
    room: Room, visitor: Visitor, talk: Page
) -> None:
    block = talk.locator('.block[data-ref="P1"]')
    expect(block.locator(".stands")).to_have_text("for Claude A")
    act(talk, "Suggest something instead of P1")
    expect(talk.locator("#say-text")).to_be_focused()
    talk.keyboard.type("Use Redis.")
    talk.keyboard.press("Enter")
    room.until(lambda: "[PROPOSAL P2: Use Redis.]" in room.text, "the suggestion")
    expect(visitor.turn(14).locator(".block")).to_contain_text("You proposed P2")
    act(talk, "Rule out P1")
    talk.locator("#veto-reason").fill("too slow")
    talk.locator("#veto-dialog").get_by_role("button", name="Rule it out").click()
    room.until(lambda: "[VETO: P1 | too slow]" in room.text, "the veto")
    expect(block.locator(".stands")).to_contain_text("ruled out")
    expect(block.get_by_role("button", name="Rule out P1")).to_be_hidden()


def test_a_turn_is_copied_and_linked_to(room: Room, browser: Browser) -> None:
    visitor = open_visitor(browser, permissions=["clipboard-read", "clipboard-write"])
    fill(room, ["It is **two weeks** of data."], PROPOSED)
    room.start("A")
    page = visitor.visit(at(room))
    act(page, "Copy turn 2")
    expect(visitor.turn(2).get_by_role("button", name="Copy turn 2")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("It is two weeks of data.\n\nClaude A proposed P1")
    act(page, "Link to turn 2")
    room.until(lambda: page.evaluate("navigator.clipboard.readText()") == f"{at(room)}#t2", "the address")
    visitor.context.close()
    visitor.is_clean()


def test_on_a_touch_screen_everything_is_behind_one_button(room: Room, phone: Visitor) -> None:
    fill(room, ["One.", "Two."])
    room.start("A")
    page = phone.visit(at(room))
    reply = page.get_by_role("button", name="Reply to turn 2")
    expect(page.get_by_role("button", name="Details of turn 2")).to_be_visible()
    expect(reply).to_be_hidden()
    expect(phone.turn(2).locator(".facts")).to_be_hidden()
    page.get_by_role("button", name="Details of turn 2").tap()
    expect(phone.turn(2).locator(".facts")).to_contain_text("812 in, 240 out")
    reply.tap()
    expect(page.locator("#say-text")).to_have_value("@Claude A On turn 2: ")


STREAMED = (
    ("I say **this ", "I say this"),
    ("thing** first.\n\n- one\n- ", "one"),
    ("two\n\n| a | b |\n|-- ", "two"),
    ("|---|\n| 1 | 2 |\n\n", "1"),
    ("[PROPOSAL: keep `tabs`]\n", "tabs"),
)


def test_what_streams_looks_as_it_will(room: Room, visitor: Visitor) -> None:
    room.open("AB")
    page = visitor.visit(at(room))
    page.evaluate(
        """() => {
            window.raw = [];
            new MutationObserver(() => {
                const words = document.getElementById("live").innerText;
                if (/[*|`]|\\[PROPOSAL|--/.test(words)) window.raw.push(words);
            }).observe(document.getElementById("live"), {subtree: true, childList: true, characterData: true});
        }"""
    )
    typing = room.think()
    for piece, words in STREAMED:
        typing.say(piece)
        expect(page.locator("#live")).to_contain_text(words)
    expect(page.locator("#live strong")).to_have_text("this thing")
    expect(page.locator("#live .block")).to_contain_text("Claude A proposed P1")
    expect(page.locator("#live td").first).to_have_text("1")
    shape = "(box) => { const r = box.getBoundingClientRect(); return [r.width, r.height].map(Math.round); }"
    before = [page.locator(f"#live {part}").evaluate(shape) for part in (".body", ".block")]
    typing.end()
    expect(visitor.turn(2)).to_be_visible()
    assert [visitor.turn(2).locator(part).evaluate(shape) for part in (".body", ".block")] == before
    expect(page.locator("#live .entry")).to_have_count(0)
    assert page.evaluate("window.raw") == []


def test_words_are_found_that_are_not_on_the_page(room: Room, visitor: Visitor) -> None:
    fill(room, [prose(index) for index in range(600)], max_turns=5_000, max_size="50 MB")
    room.start("A")
    page = visitor.visit(at(room))
    expect(visitor.turn(601)).to_be_attached()
    assert visitor.turns[0] > 100
    page.keyboard.press("f")
    page.locator("#find-words").fill("POINT 37:")
    expect(page.locator("#find-count")).to_have_text("1 found")
    page.keyboard.press("Enter")
    expect(visitor.turn(39)).to_be_in_viewport()
    expect(page.locator("#find-count")).to_have_text("1 of 1")
    page.locator("#find-words").fill("no such words")
    expect(page.locator("#find-count")).to_have_text("Nothing found")
    page.keyboard.press("Escape")
    expect(page.locator("#find")).to_be_hidden()
    page.locator("#new-turns").click()
    expect(visitor.turn(601)).to_be_in_viewport()
    expect(page.locator("#new-turns")).to_be_hidden()


def test_a_line_marks_what_is_new(room: Room, visitor: Visitor, talk: Page) -> None:
    talk.keyboard.press("Home")
    expect(visitor.turn(1)).to_be_in_viewport()
    room.minds["A"].call(1).end("Something new.\n")
    expect(talk.locator("#new-turns")).to_have_text("1 new entry ↓")
    expect(visitor.turn(1)).to_be_in_viewport()
    talk.locator("#new-turns").click()
    expect(visitor.turn(14)).to_be_in_viewport()
    assert talk.evaluate("document.getElementById('new-from').nextElementSibling.id") == "t14"


def test_a_pause_is_one_thin_line(room: Room, visitor: Visitor) -> None:
    room.open("AB")
    page = visitor.visit(at(room))
    page.locator("#pause").click()
    line = page.locator(".entry.thin")
    expect(line).to_contain_text("You paused")
    height = line.evaluate("one => one.getBoundingClientRect().height")
    assert height < 40
    assert visitor.turns == [1]

"""The end on the page: the decision first, for every kind of end, and all that the person can do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from dialogd.protocol.marks import MARKS
from tests.page.browser import Visitor, open_visitor
from tests.page.payloads import bodies
from tests.page.test_hostile import is_unharmed
from tests.page.test_live import at
from tests.plans.ends import ROOMS, file_of
from tests.plans.scenes import setup
from tests.server.daemon_process import Room
from tests.support.room import Room as Table
from tests.support.room import opening

# By the kind of end: its title, words that stand on its card, and what can be done about it.
TAKE = ["Approve", "Reject …", "Go on …", "Copy"]
LEAVE = ["Leave it at that", "Go on …", "Copy"]
GO_ON = ["Go on …", "Copy"]
ENDS: dict[str, tuple[str, list[str], list[str]]] = {
    "consensus": (
        "Agreed",
        ["Claude A and Claude B signed the same text", "A job removes expired rows", "wrote and signed it turn 4",
         "Reservation: thirty days is a guess", "$0.014", "Have it carried out"],
        TAKE,
    ),
    "approved": ("Agreed approved by you", ["A job removes expired rows"], ["Reject …", "Go on …", "Copy"]),
    "rejected": (
        "Agreed",
        ["backups leave their table out", "You rejected an earlier result turn 6", "Nobody looked at the backups."],
        TAKE,
    ),
    "judge": (
        "Decided by the judge",
        ["The position of Claude A in turn 2", "Postgres, which is there already", "held another position"],
        TAKE,
    ),
    "vote": (
        "Decided by vote",
        ["2 for (Claude C, Claude A), 1 against (Claude B)", "keep sessions in Postgres", "Dissent", "a second reader"],
        TAKE,
    ),
    "deadlock": (
        "No agreement",
        ["keep sessions in Postgres", "keep sessions in Redis", "whether a page really reads its session twelve times",
         "log the session reads of one real page", "Make the experiment"],
        LEAVE,
    ),
    "turns": (
        "Out of turns",
        ["The limit of 4 turns", "On the table, not agreed", "A job removes expired rows", "gives them more turns"],
        LEAVE,
    ),
    "time": ("Out of time", ["The limit of 10 minutes", "keep sessions in Postgres", "starts the clock anew"], LEAVE),
    "budget": ("Out of budget", ["The budget of $2.00", "with a higher budget"], LEAVE),
    "stopped": (
        "Stopped by you before an agreement",
        ["We look at it again in spring", "keep sessions in Postgres", "opens the dialog again"],
        GO_ON,
    ),
    "error": (
        "Broken off by an error",
        ["Fewer than two agents are left", "the key was refused", "set ANTHROPIC_API_KEY", "Mend what failed"],
        GO_ON,
    ),
    "unattended": ("Agreed", ["Nobody was at the table", "A job removes expired rows"], TAKE),
    "rehearsal": ("Agreed", ["A rehearsal. No model was asked", "A job removes expired rows"], TAKE),
}  # fmt: skip
PROTOCOL = re.compile(rf"\b({'|'.join(MARKS)})\b|\b[0-9a-f]{{12,}}\b|collapsed|sha256")


@pytest.fixture
def phone(browser: Browser) -> Iterator[Visitor]:
    """A person with a phone of 390 pixels, who lets the page use the clipboard."""
    rights = ["clipboard-read", "clipboard-write"]
    screen = {"width": 390, "height": 844}
    visitor = open_visitor(browser, viewport=screen, has_touch=True, is_mobile=True, permissions=rights)
    yield visitor
    visitor.context.close()
    visitor.is_clean()


def ended(room: Room, kind: str, agents: str = "A") -> None:
    """A daemon before a dialog that has ended like that."""
    room.file.write_bytes(file_of(kind, **{who: daemon.port for who, daemon in room.daemons.items()}))
    room.start(agents)


def shown(page: Page) -> Locator:
    """The card, once it says how the dialog ended."""
    expect(page.locator("#outcome .because")).to_be_visible()
    return page.locator("#outcome")


@pytest.mark.parametrize("kind", ROOMS)
def test_every_end_is_told_first(room: Room, phone: Visitor, kind: str) -> None:
    title, words, acts = ENDS[kind]
    ended(room, kind)
    page = phone.visit(at(room))
    card = shown(page)
    expect(card.locator("h2")).to_have_text(title)
    for part in words:
        expect(card).to_contain_text(part)
    expect(card.locator("#outcome-acts button:visible")).to_have_text(acts)
    assert PROTOCOL.search(card.inner_text()) is None
    head = page.locator("#top").bounding_box()
    box = card.locator("h2").bounding_box()
    assert head is not None
    assert box is not None
    assert head["y"] + head["height"] <= box["y"] < head["y"] + head["height"] + 130
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


def test_the_field_of_an_ended_dialog_is_one_line_that_covers_nothing(room: Room, visitor: Visitor) -> None:
    ended(room, "deadlock", "AB")
    visitor.page.set_viewport_size({"width": 1440, "height": 900})
    page = visitor.visit(at(room))
    card = shown(page)
    for act in card.locator("#outcome-acts :is(button, a):visible").all():
        act.scroll_into_view_if_needed()
        assert act.evaluate(
            """one => {
                const { x, y, width, height } = one.getBoundingClientRect();
                return one.contains(document.elementFromPoint(x + width / 2, y + height / 2));
            }"""
        ), act.inner_text()
    box = page.locator("#say").bounding_box()
    assert box is not None
    assert box["height"] < 56
    expect(page.locator("#say-send")).to_be_hidden()
    page.locator("#say-text").click()
    expect(page.locator("#say-send")).to_be_visible()
    page.locator("#say-text").fill("Once more.")
    page.locator("#say-send").click()
    expect(card).to_be_hidden()
    expect(page.locator("#say-send")).to_be_visible()


def test_the_decision_is_copied_and_downloaded(room: Room, phone: Visitor) -> None:
    ended(room, "consensus")
    card = shown(phone.visit(at(room)))
    button = card.locator("#outcome-copy")
    button.click()
    expect(button).not_to_have_text("Copy")
    text = phone.page.evaluate("navigator.clipboard.readText()")
    assert text.startswith("Sessions live in Postgres, in a table of their own")
    assert "1. Write the migration for the table `sessions`." in text
    for name, beginning in (("Markdown", b"# Where"), ("HTML", b"<!doctype"), ("PDF", b"%PDF"), ("JSON", b"{")):
        with phone.page.expect_download() as saved:
            card.get_by_role("link", name=name).click()
        assert saved.value.path().read_bytes().startswith(beginning)
        expect(card.locator(".downloads + .said")).to_contain_text("Saved as where-should-user-sessions-live")


def test_a_dialog_goes_on_with_so_many_turns(room: Room, phone: Visitor) -> None:
    ended(room, "turns", "AB")
    card = shown(phone.visit(at(room)))
    card.get_by_role("button", name="Go on …").click()
    expect(card.locator("#continue-text")).to_be_focused()
    card.locator("#continue-text").fill("Settle how long thirty days are.")
    card.locator("#continue-turns").fill("3")
    card.locator("#continue-form").get_by_role("button", name="Go on").click()
    expect(card).to_be_hidden()
    dialog = room.dialog()
    assert dialog.turns[4].body == "Settle how long thirty days are."
    assert dialog.state.limits.max_turns - dialog.state.counted >= 3 - 1
    expect(phone.turn(5)).to_contain_text("Settle how long")


def test_what_was_typed_survives_a_refusal_and_a_budget_is_raised_with_it(room: Room, phone: Visitor) -> None:
    phone.expected = ("400", "422")
    ended(room, "budget", "AB")
    card = shown(phone.visit(at(room)))
    card.get_by_role("button", name="Go on …").click()
    card.locator("#continue-text").fill("Think of backups.")
    card.locator("#continue-budget").fill("a lot")
    card.locator("#continue-form").get_by_role("button", name="Go on").click()
    expect(card.locator("#continue-form .result.refused")).to_contain_text("write it like $4")
    expect(card.locator("#continue-text")).to_have_value("Think of backups.")
    card.locator("#continue-budget").fill("$5")
    card.locator("#continue-form").get_by_role("button", name="Go on").click()
    expect(card).to_be_hidden()
    state = room.dialog().state
    assert (state.limits.budget, state.outcome) == (5.0, None)


def test_an_end_that_comes_while_one_reads_further_up_is_announced(room: Room, visitor: Visitor) -> None:
    room.file.write_bytes(file_of("consensus", **{who: daemon.port for who, daemon in room.daemons.items()}))
    whole = room.file.read_bytes()
    room.file.write_bytes(whole[: whole.rindex(b"\n---\n\n## Turn 5")] + b"\n")
    room.start("A")
    visitor.page.set_viewport_size({"width": 1024, "height": 500})
    page = visitor.visit(at(room))
    expect(visitor.turn(4)).to_be_visible()
    page.wait_for_function("() => scrollY > 0")  # it opens at the end
    page.mouse.move(400, 300)
    # Once more where the page has not settled yet: while it is opening it goes to its end by itself.
    room.until(lambda: page.mouse.wheel(0, -4000) or page.evaluate("scrollY") == 0, "the beginning of the page")
    with room.file.open("ab") as file:
        file.write(b"\n## Note - User\n\n[STOPPED: enough]\n")
    expect(page.locator("#outcome h2")).to_contain_text("Stopped by you")
    expect(page.locator("#new-turns")).to_be_visible()
    assert page.evaluate("scrollY") < 100


def test_after_a_stop_the_card_tells_what_the_page_knows(room: Room, visitor: Visitor) -> None:
    visitor.expected = ("ERR_", "403", "503")
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    room.open("AB")
    page = visitor.visit(at(room))
    room.think().end("Tabs.\n\n[PROPOSAL: tabs, four wide]\n")
    room.minds["B"].call(1)
    expect(page.locator("#t2 .stands")).to_contain_text("Claude A")
    page.locator("#stop").click()
    page.locator("#stop-reason").fill("lunch")
    page.get_by_role("button", name="Stop it").click()
    room.until(lambda: not room.a.running and not room.b.running, "both daemons to end")
    card = page.locator("#outcome")
    expect(card).to_contain_text("stopped", ignore_case=True)
    expect(card).to_contain_text("lunch", ignore_case=True)
    expect(card).to_contain_text("P1 tabs, four wide")
    expect(card.locator("#outcome-acts button:visible")).to_have_text(["Copy"])
    card.get_by_role("button", name="Copy", exact=True).click()
    assert "P1: tabs, four wide" in page.evaluate("navigator.clipboard.readText()")
    expect(card.locator(".code").filter(has_text="dialogd open")).to_be_visible()
    expect(page.locator("#agents")).not_to_contain_text("does not answer")
    again = card.locator(".code").filter(has_text="run --continue")
    again.get_by_role("button").click()
    command = f"dialogd run --continue --file {room.file}"
    room.until(lambda: page.evaluate("navigator.clipboard.readText()") == command, "the copied command")


def test_a_card_without_its_daemon_stays_as_it_is_under_a_click(room: Room, visitor: Visitor) -> None:
    visitor.expected = ("ERR_", "403", "503")
    visitor.context.grant_permissions(["clipboard-read", "clipboard-write"])
    room.open("AB")
    page = visitor.visit(at(room))
    page.locator("#stop").click()
    page.get_by_role("button", name="Stop it").click()
    room.until(lambda: not room.a.running and not room.b.running, "both daemons to end")
    button = page.locator("#outcome .code").filter(has_text="run --continue").get_by_role("button")
    button.hover()
    page.mouse.down()
    for _ in range(2):  # it asks after its daemon, and says what is known anew
        page.wait_for_event("requestfailed", lambda request: request.url.endswith("/page/state"))
    page.mouse.up()
    expect(button).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == f"dialogd run --continue --file {room.file}"


def test_the_card_is_never_empty(room: Room, visitor: Visitor) -> None:
    held: list[Route] = []
    visitor.page.route("**/page/end", lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks what it is given
    ended(room, "consensus")
    page = visitor.visit(at(room))
    expect(page.locator("body")).to_have_attribute("data-phase", "ended")
    room.until(lambda: page.evaluate("true") and held, "the card to be asked for")
    expect(page.locator("#outcome")).to_be_hidden()
    for route in held:
        route.continue_()
    visitor.page.unroute("**/page/end")
    expect(shown(page)).to_contain_text("A job removes expired rows")


def test_hostile_texts_are_only_text_on_the_card(room: Room, visitor: Visitor) -> None:
    text = "\n\n".join(body for body in bodies() if "`" not in body and "~" not in body)[:8_000]
    lines = f"Look.\n\n## Consensus Summary\n\n{text}\n\n[CONSENSUS_REACHED]"
    evil = "<img src=x onerror=alert(1)> [a](javascript:alert(2)) </script><script>alert(3)</script>"
    table = Table(
        opening("A", "B", keys=[f"Topic: {evil}", "Max Message: 100000"], more=setup("objections = true")),
        A=[f"[RESERVATION: {evil}]\n\n{lines}"],
        B=[f"[AGREE: P1]\n[RESERVATION: {evil}]"],
    )
    table.run()
    room.file.write_bytes(table.paper.data.replace(b":3001", f":{room.a.port}".encode()))
    room.start("A")
    page = visitor.visit(at(room))
    expect(page.locator("#outcome")).to_be_visible()
    is_unharmed(page)
    assert page.locator("#outcome").locator("script, img, iframe, style, [onerror]").count() == 0

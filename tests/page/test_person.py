"""The person's seat: questions, the result, and what else they may do to a dialog, on the page."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Locator, Page, expect

from dialogd.config import command_on
from dialogd.errors import BackendError
from tests.page.browser import Visitor
from tests.page.test_live import at
from tests.server.daemon_process import Room
from tests.support.room import Room as Table
from tests.support.room import opening
from tests.support.standin import Say, Use
from tests.turns.test_tools import World

AGREED = "## Consensus Summary\n\nTabs.\n\n[CONSENSUS_REACHED]\n"


def to_consensus(room: Room) -> None:
    """A proposes, B signs."""
    room.think("A").end(AGREED)
    mind = room.minds["B"]
    calls = len(mind.pids)
    mind.call(calls + 1).end("I agree: it is one key.\n\n[CONSENSUS_REACHED]\n")
    mind.call(calls + 2).end("[AGREE: P1]\n")  # asked whether it is meant as it stands
    room.until(lambda: room.outcome == "CONSENSUS_REACHED", "consensus")


def test_a_question_is_answered(room: Room, visitor: Visitor) -> None:
    room.open("AB")
    page = visitor.visit(at(room))
    room.think().end("How many users are there?\n\n[QUESTION_FOR_USER: How many users? | in 2h | default: ten]\n")
    expect(page.locator("#question")).to_be_visible()
    expect(page.locator("#question-text")).to_contain_text("How many users?")
    expect(page.locator("#question-terms")).to_contain_text("in 2 hours")
    expect(page.locator("#composer textarea")).to_have_count(1)
    page.locator("#question").get_by_role("button", name="Use “ten”").click()
    field = page.get_by_role("textbox", name="Your answer to Claude A")
    expect(field).to_have_value("ten")
    field.fill("About a million.")
    page.get_by_role("button", name="Answer", exact=True).click()
    expect(visitor.turn(3)).to_contain_text("About a million.")
    expect(page.locator("#question")).to_be_hidden()
    room.minds["A"].call(2).end("Then Redis.\n")
    expect(visitor.turn(4)).to_contain_text("Then Redis.")


def test_a_question_runs_into_its_default(room: Room, visitor: Visitor) -> None:
    room.start("AB")
    asked = "[QUESTION_FOR_USER: How many users? | by 2026-01-01T12:00:00Z | default: ten]"
    text = room.opening("Tabs or spaces?", "A", setup="question_defaults = true")
    room.file.write_text(f"{text}\n---\n\n## Turn 2 — Claude A\n\nIt depends.\n\n{asked}\n\nTURN: USER\n")
    page = visitor.visit(at(room))
    room.notify()
    taken = page.locator('[data-mark="DEFAULT_TAKEN"]')
    expect(taken).to_contain_text("ten")
    expect(taken).to_have_count(1)
    room.minds["A"].call(1).end("Ten, then.\n")
    expect(visitor.turn(3)).to_contain_text("Ten, then.")


def test_an_approved_result_is_rejected_and_the_dialog_goes_on(room: Room, visitor: Visitor) -> None:
    room.open("AB")
    page = visitor.visit(at(room))
    to_consensus(room)
    page.get_by_role("button", name="Approve").click()
    expect(page.locator("#outcome h2")).to_contain_text("approved by you")
    assert "[APPROVED]" in room.text
    calls = {who: len(mind.pids) for who, mind in room.minds.items()}
    page.get_by_role("button", name="Reject …").click()
    page.locator("#reject-reason").fill("Nobody looked at the linter.")
    page.locator("#reject-form").get_by_role("button", name="Reject").click()
    expect(visitor.turn(4)).to_contain_text("Nobody looked at the linter.")
    expect(page.locator("#outcome")).to_be_hidden()
    room.until(lambda: any(len(mind.pids) > calls[who] for who, mind in room.minds.items()), "an agent to be asked")
    who = next(who for who, mind in room.minds.items() if len(mind.pids) > calls[who])
    room.minds[who].call(calls[who] + 1).end("The linter wants spaces.\n")
    expect(visitor.turn(5)).to_contain_text("The linter wants spaces.")


def open_more(page: Page) -> None:
    """The sheet with the further ways to step in."""
    page.locator("#more-open").click()
    expect(page.locator("#more")).to_be_visible()


def unfold(page: Page, form: str) -> Locator:
    """One of the acts on the sheet, opened: its form."""
    act = page.locator("#more details").filter(has=page.locator(f'form[data-post="{form}"]'))
    act.locator("summary").click()
    return act.locator("form")


def test_a_turn_is_withdrawn(room: Room, visitor: Visitor) -> None:
    room.open("AB")
    page = visitor.visit(at(room))
    room.think().end("Tabs are faster by half.\n")
    visitor.turn(2).get_by_role("button", name="Withdraw turn 2").click()
    page.locator("#strike-dialog").get_by_role("button", name="Withdraw it").click()
    expect(visitor.turn(2)).to_contain_text("Withdrawn by you")
    assert "[STRIKE: 2" in room.text


FORMS: tuple[tuple[str, dict[str, str], str], ...] = (
    ("/limit", {"value": "40"}, "[LIMIT: max_turns 40]"),
    ("/step", {}, "[STEP: on]"),
    ("/invite", {"agent": "C=Claude C"}, "[INVITE: C = Claude C @ http://localhost:"),
    ("/say", {"text": "Use both.", "instead": "P1"}, "[PROPOSAL P2: Use both."),
    ("/veto", {"proposal": "P2", "reason": "too slow"}, "[VETO: P2 | too slow]"),
    ("/leave", {}, "[LEAVE: A]"),
)


def test_the_persons_hand(room: Room, visitor: Visitor) -> None:
    """Each of the forms writes its mark, and says what came of it."""
    room.open("AB")
    page = visitor.visit(at(room))
    room.think().end("I have an idea.\n\n[PROPOSAL: use tabs]\n")
    expect(visitor.turn(2)).to_be_visible()
    for form, fields, written in FORMS:
        open_more(page)
        box = unfold(page, form)
        for name, value in fields.items():
            field = box.locator(f'[name="{name}"]')
            if field.evaluate("one => one.localName") == "select":
                field.select_option(value)
            else:
                field.fill(value)
        box.get_by_role("button").click()
        room.until(lambda written=written: written in room.text, written)
        expect(box.locator(".result")).not_to_be_empty()
        page.keyboard.press("Escape")
        expect(page.locator("#more")).to_be_hidden()


def test_an_agent_that_was_invited_says_how_to_start_it(room: Room, visitor: Visitor) -> None:
    room.open("AB")
    page = visitor.visit(at(room))
    open_more(page)
    form = unfold(page, "/invite")
    form.locator("[name=agent]").fill("C=Claude C")
    form.get_by_role("button").click()
    expect(form.locator(".result")).to_contain_text("How to start it")
    page.keyboard.press("Escape")
    guest = page.locator('#agents [data-agent="C"]')
    expect(guest.locator(".word")).to_have_text("does not answer")
    expect(guest.locator(".why")).to_have_text(
        f"no daemon of it answers; start it in a terminal of its own: {command_on(room.file, 'start', 'C')}"
    )


def test_an_agent_that_failed_twice_is_tried_again_replaced_or_left_out(room: Room, visitor: Visitor) -> None:
    down = BackendError("exit code 1", fix="look at its log")
    table = Table(room.opening("Tabs?", "A"), A=["One."], B=[down, down])
    table.run()
    room.file.write_bytes(table.paper.data)
    room.start("AB")
    page = visitor.visit(at(room))
    gone = page.locator('#agents [data-agent="B"]')
    expect(gone.locator(".acts button:visible")).to_have_text(["Retry", "Use another model", "Go on without"])
    expect(gone.locator(".why")).to_have_text(
        "failed or stalled twice in succession (exit code 1): nobody waits for it"
    )
    expect(page.locator("#top")).not_to_contain_text("dialogd retry")
    gone.get_by_role("button", name="Use another model").click()
    expect(page.locator("#more form[data-post='/invite'] [name=agent]")).to_be_focused()
    page.keyboard.press("Escape")
    gone.get_by_role("button", name="Go on without").click()
    room.until(lambda: "[LEAVE: B]" in room.text, "B to leave")
    expect(gone).to_be_hidden()


def test_a_search_is_narrowed_on_the_page(room: Room, visitor: Visitor) -> None:
    visitor.expected = ("400",)
    table = Table(opening("A", "B", keys=["Max Turns: 4"]), A=["Redis, says A."] * 2, B=["Redis? B says no."])
    table.run()
    folder = room.state_dir / "archive"
    room.open("AB")
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "one.md").write_bytes(table.paper.data)
    page = visitor.visit(at(room))
    page.get_by_role("tab", name="History").click()
    page.get_by_label("Words, or a question").fill("redis")
    page.get_by_label("Said by").fill("B")
    page.get_by_role("button", name="Search", exact=True).click()
    found = page.locator("#panel-history .past-list > li")
    expect(found).to_have_count(1)
    expect(found).to_contain_text("B says no")
    page.get_by_label("Not older than").fill("tea")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator("#panel-history > .said")).to_contain_text("write how long ago (90m, 2h, 7d)")
    expect(page.get_by_label("Not older than")).to_have_value("tea")
    expect(page.get_by_label("Said by")).to_have_value("B")


def test_a_tool_is_approved_and_another_refused(tmp_path: Path, visitor: Visitor) -> None:
    use, other = Use("tickets__add", {"a": 2, "b": 3}), Use("tickets__quote", {"text": "x" * 600})
    with World(tmp_path, use, other, Say("Tabs."), tools="") as world:
        world.pair.begin("Tabs or spaces?")
        world.pair.start("AB")
        page = visitor.visit(f"http://localhost:{world.pair['B'].port}/")
        world.pair.notify("A")
        expect(page.locator("#calls")).to_contain_text("tickets.add")
        expect(page.locator("#calls")).to_contain_text('{"a": 2, "b": 3}')
        page.get_by_role("form", name="Approve the call").get_by_role("button").click()
        expect(page.locator("#calls")).to_contain_text("x" * 600)
        page.get_by_role("form", name="Refuse the call").get_by_role("button").click()
        expect(page.locator("#calls")).to_be_hidden()
        expect(visitor.turn(2)).to_contain_text("approved by the person")
        expect(visitor.turn(2)).to_contain_text("the person refused this call")
        assert world.made == ["add 2 3"]
        page.close()

"""Long dialogs: whatever is read of them is there at once, and the page holds no more than a reader has around them."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import pytest
from playwright.sync_api import Response, expect

from tests.page.browser import Visitor
from tests.page.test_live import at
from tests.page.written import fill, prose
from tests.server.daemon_process import Room
from tests.support.pair import a_second

FRAMED, TYPED = 2_000, 5_000
MOST = 400  # entries on the page
AT_ONCE = 300  # milliseconds from the append to the sight of it, on a quiet machine as all times here
SOON = 2.0  # seconds
SCRIPT = 3.0  # seconds, to read all of two thousand turns


WEIGHT = 180_000  # bytes, unpacked


def test_the_page_weighs_little(room: Room, visitor: Visitor) -> None:
    room.open("A")
    loaded = list[Response]()
    visitor.context.on("response", lambda one: loaded.append(one))  # noqa: PLW0108 - a built-in function is refused
    page = visitor.visit(at(room))
    expect(page.locator("#panel-body h2")).to_be_visible()
    kinds = ("document", "stylesheet", "script")
    sizes = {one.url: len(one.body()) for one in loaded if one.request.resource_type in kinds}
    print(sum(sizes.values()), sizes)
    assert any(url.endswith("/page/entries.js") for url in sizes)
    assert sum(sizes.values()) < WEIGHT


def written(room: Room) -> int:
    """Two thousand turns by daemons."""
    fill(room, [prose(index) for index in range(FRAMED)], max_turns=9_000, max_size="50 MB")
    return FRAMED + 1


def typed(room: Room) -> int:
    """Five thousand turns by hand."""
    text = room.opening("Where should user sessions live?", "A", max_turns=9_000, max_size="50 MB")
    turns = (
        f"\n---\n\n## Turn {index + 2} — Claude {'AB'[index % 2]}\n\n{prose(index)}\n\nTURN: {'BA'[index % 2]}\n"
        for index in range(TYPED)
    )
    room.file.write_text(text + "".join(turns))
    return TYPED + 1


def timed(work: Callable[[], object]) -> float:
    """How many seconds that took."""
    began = time.monotonic()
    work()
    return time.monotonic() - began


@pytest.mark.parametrize("make", [written, typed])
def test_a_long_dialog(room: Room, visitor: Visitor, make: Callable[[Room], int]) -> None:
    """It opens at its end; a link, Home, End and a fast wheel lead anywhere; six new turns are each seen at once."""
    last = make(room)
    room.start("AB")
    session = visitor.context.new_cdp_session(visitor.page)
    session.send("Performance.enable")
    page = visitor.visit(at(room))
    expect(visitor.turn(last)).to_be_attached()

    def figure(name: str) -> float:
        return next(one["value"] for one in session.send("Performance.getMetrics")["metrics"] if one["name"] == name)

    def is_small() -> None:
        assert page.evaluate("document.querySelectorAll('#log .entry').length") <= MOST

    def shows(number: int) -> None:
        expect(visitor.turn(number)).to_be_in_viewport()
        is_small()

    def link() -> None:
        page.evaluate("location.hash = '#t50'")
        shows(50)

    def press(key: str, number: int) -> None:
        page.keyboard.press(key)
        shows(number)

    assert timed(link) < SOON * a_second()
    assert timed(lambda: press("Home", 1)) < SOON * a_second()
    assert timed(lambda: press("End", last)) < SOON * a_second()
    page.mouse.move(300, 300)
    before = last
    for _ in range(8):
        for _ in range(10):
            page.mouse.wheel(0, -5_000)
        room.until(lambda before=before: visitor.turns[0] < before, "turns further up")
        before = visitor.turns[0]
        is_small()
    assert before < last - 300
    if make is written:
        script = figure("ScriptDuration")
        assert visitor.walk(is_small) == list(range(1, last + 1))
        print(f"script {figure('ScriptDuration') - script:.3f} s, heap {figure('JSHeapUsedSize') / 1e6:.1f} MB")
        assert figure("ScriptDuration") - script < SCRIPT * a_second()
    session.send("HeapProfiler.collectGarbage")
    assert figure("JSHeapUsedSize") < 30e6
    assert figure("Nodes") < 120_000
    page.keyboard.press("End")
    shows(last)
    page.evaluate(
        """() => {
            window.shownAt = {};
            new MutationObserver(() => {
                const last = document.getElementById("log").lastElementChild;
                window.shownAt[last.id] ??= Date.now();
            }).observe(document.getElementById("log"), {childList: true});
        }"""
    )
    waits, calls = [], {"A": 0, "B": 0}
    room.notify("AB"[(last + 1) % 2])
    for number in range(last + 1, last + 7):
        who = "AB"[number % 2]
        calls[who] += 1
        room.minds[who].call(calls[who]).end(f"Turn {number} says little.\n")
        # An `expect` that has to wait describes the page as a screen reader has it, which takes a while.
        room.until(lambda turn=f"t{number}": page.evaluate("id => id in window.shownAt", turn), f"turn {number}")
        appended = room.file.stat().st_mtime_ns / 1e6
        waits.append(page.evaluate("id => window.shownAt[id]", f"t{number}") - appended)
    print(f"shown after {[round(wait) for wait in waits]} ms")
    assert median(waits) < AT_ONCE * a_second()

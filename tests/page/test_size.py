"""Two thousand turns: the page loads them in under a second of script time, and the next turn is there at once."""

from __future__ import annotations

from statistics import median

from playwright.sync_api import expect

from tests.page.browser import Visitor
from tests.page.test_live import at
from tests.page.written import fill, prose
from tests.server.daemon_process import Room

TURNS = 2_000
AT_ONCE = 200  # milliseconds from the append to the sight of it


def test_two_thousand_turns(room: Room, visitor: Visitor) -> None:
    """All of the history, page by page, costs less than a second of script; six new turns are each seen at once."""
    fill(room, [prose(index) for index in range(TURNS)], max_turns=5_000, max_size="50 MB")
    room.start("AB")
    session = visitor.context.new_cdp_session(visitor.page)
    session.send("Performance.enable")
    page = visitor.visit(at(room))
    expect(visitor.turn(TURNS + 1)).to_be_attached()
    visitor.load_all()
    assert visitor.turns == list(range(1, TURNS + 2))
    figures = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    print(f"script {figures['ScriptDuration']:.3f} s, layout {figures['LayoutDuration']:.3f} s")
    assert figures["ScriptDuration"] < 1.0
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
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
    room.notify("A")
    for number in range(TURNS + 2, TURNS + 8):
        who = "AB"[number % 2]
        calls[who] += 1
        room.minds[who].call(calls[who]).end(f"Turn {number} says little.\n")
        # An `expect` that has to wait describes the page as a screen reader has it: seconds, with so many turns.
        room.until(lambda turn=f"t{number}": page.evaluate("id => id in window.shownAt", turn), f"turn {number}")
        appended = room.file.stat().st_mtime_ns / 1e6
        waits.append(page.evaluate("id => window.shownAt[id]", f"t{number}") - appended)
    print(f"shown after {[round(wait) for wait in waits]} ms")
    assert median(waits) < AT_ONCE

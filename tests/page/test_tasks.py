"""A build on the page: its tasks, what the person says of them, its reviews, its end, the merge; all of it as text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from dialogd.protocol.build import APPROVED, DROPPED, MERGED, Due
from tests.page.browser import AXE, Visitor, open_visitor
from tests.page.test_hostile import is_unharmed
from tests.page.test_looks import barriers
from tests.tasks.actor import SCORE
from tests.tasks.site import BWRAP, PLAN, PRINT, READ, Site, git

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(BWRAP), reason=f"needs a sandbox: {BWRAP}"),
]
KEY = "sk-ant-api03-0123456789abcdefghijklmnopqrstuvwxyz"
RUN = "<img src=x onerror=hacked=1>"
HOSTILE = {f"{RUN}.html": f"<script>hacked = 1</script>\n{RUN}\n"}
BIG = {"big.txt": "a line of a big file\n" * 20_000}
FOUND = f"""It takes any number.

[FINDING: low | style | ages.py | 1 | a short name | ]
[FINDING: blocking | <script>hacked = 1</script> | {RUN}.html | 3 | {RUN} is in it | [a](javascript:hacked=1) {RUN}]
{SCORE.replace("20", "5", 1)}
[DECIDE: REF reject | {RUN} must go]"""
MENDED = f"[RESOLVED: 2 | {RUN} is gone]\n{SCORE}\n[DECIDE: REF approve]"
SCRIPT = {
    "plan": f"{PLAN}\n[TASK_PROPOSED: draw ages | {RUN} | none | 1 h]",
    "001.1": {**READ, **HOSTILE},
    "001.2": BIG,
    "review 001.1": FOUND,
    "review 001.2": MENDED,
    **{f"002.{n}": {**PRINT, "n": str(n)} for n in (1, 2, 3)},
    **{f"review 002.{n}": "no" for n in (1, 2, 3)},
}


def has_no_barriers(browser: Browser, address: str, *opened: str) -> None:
    """What axe finds in both themes, with these opened: nothing."""
    for theme in ("light", "dark") if AXE.exists() else ():
        reader = open_visitor(browser, bypass_csp=True, color_scheme=theme)
        page = reader.visit(address)
        expect(page.locator("#panel-tasks h2")).to_be_visible()
        for one in opened:
            page.locator(one).first.click()
        found = barriers(page)
        assert found == [], f"{theme}, {opened}: {found}"
        reader.context.close()


def test_a_build_is_held_on_the_page(tmp_path: Path, visitor: Visitor, browser: Browser) -> None:
    """From the plan to the merge: changed, dropped, confirmed, followed, accepted, carried over and merged by buttons.

    What agents write, in texts, findings, files and diffs, is text; nothing is known by its hash at first sight.
    """
    with Site(tmp_path, SCRIPT) as site:
        site.start()
        address = f"http://localhost:{site.daemons['M'].port}/"
        page = visitor.visit(address)  # before there is a dialog, and a build
        head, panel = page.locator("#phase-words"), page.locator("#panel-tasks")
        tab = page.locator("#panels [role=tab]").first
        expect(page.get_by_text("No dialog yet")).to_be_visible()
        expect(tab).to_be_hidden()
        site.open()
        expect(tab).to_have_text("Tasks")
        expect(tab).to_have_attribute("aria-selected", "true")
        expect(head).to_have_text("The build waits for you. Confirm, change or drop the proposed tasks: 001, 002, 003.")
        is_planned(page, site)
        has_no_barriers(browser, address, "#change-001 summary", "#drop-001 summary")

        site.waits_at("work 001.1", "review 001.1", "work 001.2")
        page.locator("#build-asks").get_by_role("button", name="Confirm all").click()
        site.until_asked("work 001.1")
        expect(head).to_have_text("Claude L is writing. Nothing is needed of you.")
        expect(page.locator("#build-asks")).to_be_hidden()
        site.waits_at("review 001.1", "work 001.2")
        site.until_asked("review 001.1")
        expect(head).to_contain_text("Claude M is writing.")
        expect(panel.locator("#task-001")).to_contain_text("in review · attempt 1 of 3")
        expect(panel.locator("#task-001")).to_contain_text("gate passed")
        site.waits_at("work 001.2")
        site.until_asked("work 001.2")
        is_sent_back(page)
        has_no_barriers(browser, address, "#panel-tasks a.get")

        site.waits_at()
        site.until(lambda: site.due is Due.STUCK, "a task that is stuck", seconds=180)
        expect(head).to_contain_text("Task 002 is stuck: retry it, drop it, or accept it as it is.")
        is_mended(page, site)
        is_read(page)
        page.locator("#build-asks").get_by_role("button", name="Accept it as it is").click()
        is_taken_over(page, site, browser, address)
        is_unharmed(page)
        page.goto("about:blank")  # its daemons end now


def test_what_is_to_be_typed_is_in_sight(tmp_path: Path, browser: Browser) -> None:
    """The form that Drop opens, at the last task of a low window; that for the gate, where it could not start."""
    plan = f"{PLAN}\n[TASK_PROPOSED: draw ages | {'; '.join('one of many' for _ in range(9))} | none | 1 h]"
    with Site(tmp_path, {"plan": plan, "001.1": READ, "review 001.1": "no"}, gate="no-such-runner") as site:
        site.start()
        site.open()
        reader = open_visitor(browser, viewport={"width": 1200, "height": 1000})
        page = reader.visit(f"http://localhost:{site.daemons['M'].port}/")
        panel = page.locator("#panel-tasks")
        for opens in (lambda: panel.locator("#drop-003 summary").click(), lambda: page.keyboard.press("Enter")):
            opens()
            expect(panel.locator("#why-003")).to_be_focused()
            expect(panel.get_by_role("button", name="Drop it")).to_be_in_viewport(ratio=1)
            panel.locator("#drop-003 summary").click()
        page.locator("#build-asks").get_by_role("button", name="Confirm all").click()
        gate = panel.locator("#tasks-needed").get_by_label("Command, for every tree")
        expect(gate).to_have_value("no-such-runner")
        expect(panel.locator("#change-gate")).to_have_count(0)
        gate.fill("true")
        panel.get_by_role("button", name="Change it").click()
        site.until(lambda: "[GATE: all | command | true]" in site.text, "the other gate")
        panel.locator("#tasks-needed").get_by_role("button", name="Try again").click()
        site.until(lambda: "[GATE: 001 | passed |" in site.text, "the test by it")
        expect(panel.locator("#change-gate")).to_have_count(1)
        reader.context.close()
        reader.is_clean()


def is_planned(page: Page, site: Site) -> None:
    """A task is changed in all its parts, and another one dropped; what is typed bears a file that grows."""
    panel = page.locator("#panel-tasks")
    panel.locator("#change-002 summary").click()
    panel.locator("#what-002").fill(f"show ages {RUN}")
    panel.locator("#criteria-002").fill(f"uses what task 1 reads\n\n{RUN}; all of them")
    site.types("[PAUSED]")
    expect(page.locator("#pause")).to_have_text("Resume")
    page.locator("#pause").click()
    expect(page.locator("#pause")).to_have_text("Pause")
    expect(panel.locator("#criteria-002")).to_have_value(f"uses what task 1 reads\n\n{RUN}; all of them")
    panel.locator("#hours-002").fill("2")
    panel.locator("#change-002").get_by_role("button").click()
    expect(panel.locator("#task-002 h3")).to_contain_text(f"show ages {RUN}")
    expect(panel.locator("#task-002 li")).to_have_text(["uses what task 1 reads", f"{RUN}, all of them"])
    task = site.tasks[1]
    assert (task.after, task.hours) == ((1,), 2)
    panel.locator("#drop-003 summary").click()
    panel.locator("#why-003").fill("not now | not yet")
    panel.locator("#drop-003").get_by_role("button").click()
    expect(panel.locator("#task-003")).to_contain_text("dropped")
    assert (site.tasks[2].state, site.tasks[2].why) == (DROPPED, "not now / not yet")
    expect(page.locator("#phase-words")).to_contain_text("Confirm, change or drop the proposed tasks: 001, 002.")


def is_sent_back(page: Page) -> None:
    """The review is one block: points, parts, the gravest finding first; the next attempt has a state of its own."""
    block = page.locator("#t4 .block")
    expect(block).to_have_count(1)
    expect(block.locator(".block-title")).to_contain_text("Claude M sent task 001 back 71 of 100")
    expect(block.locator(".block-text")).to_have_text(f"{RUN} must go")
    expect(block.locator(".score li")).to_have_count(5)
    expect(block.locator(".score li").first).to_contain_text("code quality")
    expect(block.locator(".score li").first).to_contain_text("5 of 25")
    expect(block.locator(".finding .severity")).to_have_text(["blocking", "low"])
    expect(block.locator(".finding").first.locator(".place")).to_have_text(f"{RUN}.html:3")
    expect(block.locator(".finding").first).to_contain_text(f"{RUN} is in it")
    row = page.locator("#panel-tasks #task-001")
    expect(row.locator(".state")).to_have_text(["at work · attempt 2 of 3"])
    expect(row).to_contain_text("71 of 100")
    gate = page.locator("#log .block", has_text="The gate passed on task 001").first
    expect(gate.locator("details.told")).not_to_have_attribute("open", "")
    gate.get_by_text("What it said").click()
    expect(gate).to_contain_text("in a sandbox")


def is_mended(page: Page, site: Site) -> None:
    """The old finding says that it is resolved, the approval what it names only on demand."""
    log = page.locator("#log")
    assert re.search("[0-9a-f]{12}", log.inner_text()) is None
    expect(log.locator("#t4 .finding.is-resolved")).to_contain_text("Resolved in turn 6")
    expect(log.locator("#t6 .block.good")).to_contain_text("Claude M approved task 001")
    expect(log.locator("#t6 .mended")).to_contain_text(f"{RUN} is gone")
    log.locator("#t6").get_by_text("What it names").click()
    expect(log.locator("#t6")).to_contain_text(f"tree {site.tasks[0].tree}")


def is_read(page: Page) -> None:
    """From the block in the talk to the task: its findings, its diff as text, what is too long, what happened."""
    panel = page.locator("#panel-tasks")
    page.locator("#t6 [data-do=task]").click()
    expect(panel.locator("h2")).to_contain_text("Task 001")
    expect(panel.locator(".diff").filter(has_text="age = int(text)")).to_have_count(1)
    expect(panel).to_contain_text("<script>hacked = 1</script>")
    expect(panel).to_contain_text("Too long to be shown here")
    expect(panel).to_contain_text("big.txt")
    expect(panel.locator(".finding")).to_have_count(3)  # one is of the daemon: a file that no finding names
    is_unharmed(page)
    panel.get_by_role("link", name="Back to all tasks").click()
    expect(panel.locator("#task-002")).to_contain_text("waits for you")


def is_taken_over(page: Page, site: Site, browser: Browser, address: str) -> None:
    """The end in words, a base that moved, the same work on it, and the merge of exactly what the sheet shows."""
    head, sheet, end = page.locator("#phase-words"), page.locator("#takeover"), page.locator("#outcome")
    site.until_end()
    expect(head).to_have_text("2 of 3 tasks approved. Look at what is approved, and merge it.")
    expect(end.locator("h2").first).to_have_text("2 of 3 tasks approved")
    expect(end).to_contain_text("It is built.")
    expect(page.locator("#panel-tasks #task-002")).to_contain_text("by you")
    has_no_barriers(browser, address, "#outcome [data-do=takeover]")
    git(site.repo, "commit", "-q", "--allow-empty", "-m", "Meanwhile")
    moved = git(site.repo, "rev-parse", "main")
    end.get_by_role("button", name="Merge …").click()
    expect(sheet.locator("h2")).to_have_text("Begin again from main?")
    expect(sheet).to_contain_text("Their approvals end with that")
    site.script.write_text(json.dumps({"summary": "Built anew."}))  # all reviews say yes
    sheet.get_by_role("button", name="Carry them over").click()
    site.until(lambda: f"[TASK: all | rebase | {moved}]" in site.text, "the rebase")
    site.until(lambda: "Built anew." in site.text, "the end of the work on the new base", seconds=180)
    expect(end).to_contain_text("Built anew.")
    assert [task.state for task in site.tasks] == [APPROVED, APPROVED, DROPPED]
    end.get_by_role("button", name="Merge …").click()
    expect(sheet.locator("h2")).to_have_text("Merge into main?")
    for words in ("moves forward to what was approved", "read ages", f"show ages {RUN}", "Nothing is pushed"):
        expect(sheet).to_contain_text(words)
    assert re.search("[0-9a-f]{12}", sheet.inner_text()) is None
    is_unharmed(page)
    first, last = site.tasks[:2]
    sheet.locator("summary").click()
    expect(sheet).to_contain_text(f"from commit {moved} to the files of commit {last.commit}.")
    assert git(site.repo, "rev-parse", "main") == moved
    sheet.get_by_role("button", name="Merge into main").click()
    expect(sheet).to_be_hidden()
    expect(head).to_have_text("2 of 3 tasks approved and merged.")
    expect(end.locator("h2").first).to_have_text("2 of 3 tasks approved and merged")
    assert git(site.repo, "log", "--reverse", "--format=%T", f"{moved}..main").split() == [first.tree, last.tree]
    assert git(site.repo, "status", "--porcelain") == ""
    assert [task.state for task in site.tasks] == [MERGED, MERGED, DROPPED]
    is_cleaned_up(page, site)


def is_cleaned_up(page: Page, site: Site) -> None:
    """What would go and what stays is shown, and asked; then it is gone."""
    sheet, button = page.locator("#takeover"), page.locator("#panel-tasks").get_by_role("button", name="Clean up …")
    first = next((site.repo.parent / "repo.dialogd").glob("task-001-*"))
    (first / "mine").write_text("mine")
    button.click()
    expect(sheet.locator("h2")).to_have_text("Clean up?")
    expect(sheet).to_contain_text(f"stays: {first.name}: {first} has edits that are in no commit")
    expect(sheet.locator("li").nth(1)).to_contain_text("goes: ")
    is_unharmed(page)
    sheet.get_by_role("button", name="Remove them").click()
    expect(sheet).to_be_hidden()
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    (first / "mine").unlink()
    button.click()
    sheet.get_by_role("button", name="Remove them").click()
    expect(sheet).to_be_hidden()
    assert not first.parent.exists()
    assert git(site.repo, "branch", "--list", "dialogd/*") == ""
    button.click()
    expect(sheet.locator("h2")).to_have_text("Nothing to clean up")
    sheet.press("Escape")


def test_a_gate_that_was_wrong_is_changed_on_the_page(tmp_path: Path, visitor: Visitor) -> None:
    """What is typed bears a file that grows, what is refused says why there; the new one runs by the person's press."""
    visitor.expected = ("status of 400",)
    script = {"plan": PLAN.splitlines()[0], "001.1": READ}
    with Site(tmp_path, script, gate="no-such-runner") as site:
        site.plan()
        site.until_due(Due.STUCK)
        page = visitor.visit(f"http://localhost:{site.daemons['M'].port}/")
        form = page.locator("#panel-tasks form[aria-label='Change what tests the tasks']")
        expect(form.locator("input[name=command]")).to_have_value("no-such-runner")
        form.locator("input[name=command]").fill(f"echo {KEY}")
        form.get_by_role("button", name="Change it").click()
        expect(form.get_by_role("status")).to_contain_text("a secret in it")
        assert "| command |" not in site.text
        gate = f"python3 -m unittest -q # {RUN}"
        form.locator("input[name=command]").fill(gate)
        site.types("[PAUSED]")
        expect(page.locator("#pause")).to_have_text("Resume")
        page.locator("#pause").click()
        expect(page.locator("#pause")).to_have_text("Pause")
        expect(form.locator("input[name=command]")).to_have_value(gate)
        form.get_by_role("button", name="Change it").click()
        site.until(lambda: f"[GATE: all | command | {gate}]" in site.text, "the other gate")
        page.locator("#build-asks").get_by_role("button", name="Try again").click()
        site.until_end()
        assert [(task.state, task.gate) for task in site.tasks] == [(APPROVED, "passed")]
        expect(form).to_be_hidden()  # it is over
        is_unharmed(page)
        page.goto("about:blank")

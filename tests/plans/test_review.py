"""What a review comes to: findings by number, which are resolved, and the score."""

from __future__ import annotations

import re

from dialogd.protocol.build import PARTS, score
from dialogd.protocol.grammar import parse
from dialogd.protocol.state import Dialog
from dialogd.views.documents import markdown
from dialogd.views.plan import Plan
from tests.plans.scenes import review
from tests.support.cases import cases

FULL = "code quality 80 | test coverage 70 | security 30 | documentation 60 | acceptance criteria 80"


def said(*turns: str) -> Dialog:
    """A hand-written dialog in which A and B said this, in turn."""
    text = "# D\n\n## Setup\n\n```toml\nreview = true\n```\n\n## Turn 1 — User\n\nReview it.\n\nTURN: A\n"
    for number, marks in enumerate(turns, 2):
        me, other = "AB"[number % 2], "BA"[number % 2]
        text += f"\n## Turn {number} — Claude {me}\n\nSee below.\n\n{marks}\n\nTURN: {other}\n"
    return parse(text.encode())


def test_findings_are_numbered_in_file_order_over_all_reviewers() -> None:
    dialog = said(
        "[FINDING: blocking | security | login.py | 41 | compared with == | compare_digest]\n"
        "[FINDING: minor | style | | | long lines]",
        "[FINDING: major | tests | test_login.py | | no test | write one | or two]",
    )
    assert [(f.number, f.by, f.turn, f.severity) for f in dialog.state.table.findings] == [
        (1, "A", 2, "blocking"), (2, "A", 2, "minor"), (3, "B", 3, "major"),
    ]  # fmt: skip
    first, second, third = dialog.state.table.findings
    assert (first.category, first.file, first.line, first.issue) == ("security", "login.py", "41", "compared with ==")
    assert first.suggestion == "compare_digest"
    assert (second.file, second.line, second.issue, second.suggestion) == ("", "", "long lines", "")
    assert third.suggestion == "write one | or two"
    assert [f.blocks for f in dialog.state.table.findings] == [True, False, False]


@cases(
    ("mark", "resolved_in"),
    [
        ("[RESOLVED: 1 | seen]", 4),
        ("[RESOLVED: #1]", 4),
        ("[RESOLVED: 01 | seen]", 4),
        ("[RESOLVED: 1 of 2 | seen]", 4),
        ("[RESOLVED: 2 | seen]", 0),
        ("[RESOLVED: 11 | seen]", 0),
        ("[RESOLVED: seen]", 0),
        ("[RESOLVED]", 0),
    ],
)
def test_a_finding_is_resolved_by_its_number(mark: str, resolved_in: int) -> None:
    (finding,) = said("[FINDING: critical | security | a.py | 1 | x | y]", "Done.", mark).state.table.findings
    assert (finding.resolved_in, finding.blocks) == (resolved_in, not resolved_in)


def test_only_who_raised_a_finding_resolves_it() -> None:
    dialog = said("[FINDING: blocking | security | a.py | 1 | x | y]", "[RESOLVED: 1 | it is fine]")
    assert [f.blocks for f in dialog.state.table.findings] == [True]
    assert "finding 1 blocks: x" in markdown(Plan(dialog)).partition("\n---\n")[0]


def test_a_finding_that_blocks_nothing_is_still_open() -> None:
    dialog = said("[FINDING: minor | style | a.py | 1 | x | y]\n[FINDING: note | style | a.py | 2 | x | y]", "Yes.")
    top = markdown(Plan(dialog)).partition("\n---\n")[0]
    assert "- **Not resolved, and blocking nothing:** findings 1 and 2, listed below" in top
    mended = said("[FINDING: minor | style | a.py | 1 | x | y]", "Done.", "[RESOLVED: 1 | seen]")
    assert "Not resolved" not in markdown(Plan(mended))


def test_the_score_is_the_mean_of_its_five_parts() -> None:
    once = score(said(f"[SCORE: {FULL}]"))
    assert (dict(once.parts), once.total) == (dict(zip(PARTS, (80, 70, 30, 60, 80), strict=True)), 64)
    better = FULL.replace("security 30", "Security: 90/100")
    twice = score(said(f"[SCORE: {FULL}]", f"[SCORE: {FULL}]", f"[SCORE: {better}]"))
    assert (twice.parts["security"], twice.total) == (60, 70)


def test_the_points_of_a_score_sum_up_to_it() -> None:
    drawn = Plan(review())
    assert drawn.score.total == sum(drawn.score.points.values()) == 64
    page = markdown(drawn)
    points = [float(row) for row in re.findall(r"^\| [a-z ]+ \| [\d.]+ \| ([\d.]+) \|$", page, re.M)]
    assert (len(points), sum(points)) == (5, 64)
    assert "| **64.00** |" in page


def test_a_score_with_a_part_missing_has_no_total() -> None:
    part = score(said("[SCORE: code quality 300 | charm 90 | security good]"))
    assert (dict(part.parts), part.total) == ({"code quality": 100}, None)
    assert score(said("[SCORE: lovely]")) is None
    assert score(said("No marks.")) is None


def test_a_review_stands_in_the_plan() -> None:
    page = markdown(Plan(review()))
    assert "**Review:** score 64 of 100; 2 findings, 1 open, 0 of them blocking" in page.partition("\n---\n")[0]
    assert "| 1 | blocking | security | login.py:41 | the token is compared with == |" in page
    assert "| turn 4: compare_digest is there |" in page

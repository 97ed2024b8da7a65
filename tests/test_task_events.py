"""What programs and `flow --project` are told of a build's tasks: the usual fields, as file, git and gate have them."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dialogd import person
from dialogd.errors import BackendError
from dialogd.memory.records import row_of
from dialogd.protocol import build
from dialogd.protocol.build import listed
from dialogd.protocol.model import Draft, Mark
from dialogd.server.page import end_piece
from dialogd.server.page_entries import in_ranks, talk_of
from dialogd.views.builds import Event, events, look_into, rows
from dialogd.views.documents import first_screen
from dialogd.views.flow import flow
from dialogd.views.plan import Plan
from tests.cli.test_build import Built, git, repo
from tests.protocol.test_build import GOOD, confirm, no, room, yes
from tests.support.room import Room

__all__ = ["repo"]  # a fixture
FOUND = "[FINDING: blocking | logic | 001.py | 3 | ages may be negative | refuse them]"
MENDED = "[RESOLVED: 1 | refused now]"


def told(of: Room, kind: str, task: str = "", repository: Path | None = None) -> list[dict[str, Any]]:
    """The fields of every event of that type."""
    every = events(of.dialog, look_into(repository))
    return [dict(e.fields) for e in every if e.type == kind and e.reference in (task, e.reference if not task else "")]


IMPROVE = "[IMPROVEMENT: performance | high | fewer reads | 3 h | read once | ages.py, show.py | one read; a test]"


def again() -> Room:
    """A task that the person has tried again after all its attempts."""
    made = confirm(room(no("P1"), no("P2"), no("P3")))
    made.scripts["M"] = [yes("P4"), yes("P5"), "Both.\n"]
    return confirm(made, "[TASK: 001 | retry]")


def failed() -> Room:
    """A gate that fails first."""
    made = room(yes("P1"), yes("P2"), yes("P3"), "Both.\n")
    made.gates = ["failed", "passed", "passed"]
    return confirm(made)


def improved() -> Room:
    """An improvement after the tasks."""
    made = confirm(room(yes("P1"), yes("P2"), IMPROVE, yes("P3"), "All.\n", rules="cycles = 1"))
    return confirm(made, "[TASK: 003 | confirmed]")


def by_hand() -> Room:
    """A task that the person accepts, and one that they drop."""
    made = confirm(room(no("P1"), no("P2"), no("P3"), "Nothing.\n"))
    person.tasks(made.log, "accept", "1")
    person.tasks(made.log, "drop", "2", "not now")
    return made


def reviewed() -> Room:
    """A task that needs two attempts, and another that needs one."""
    return confirm(room(no("P1", FOUND), yes("P2", MENDED), yes("P3"), "Both.\n"))


BUILDS = {"reviewed": reviewed, "again": again, "failed": failed, "improved": improved, "by hand": by_hand}
GOLDEN = Path(__file__).parent / "plans" / "events.jsonl"


def test_what_happened_to_tasks_is_told_in_the_usual_order_and_fields() -> None:
    """After a change that is meant: `UPDATE_GOLDENS=1`; a line is a build, its event, and the fields of that."""
    lines = []
    for name, make in BUILDS.items():
        every = events(make().dialog)
        assert len({event.id for event in every}) == len(every)
        lines += [json.dumps({"build": name, **asdict(event)}) for event in every]
    if os.environ.get("UPDATE_GOLDENS"):
        GOLDEN.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert lines == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_the_flow_has_the_sums_of_the_reviews() -> None:
    scores = [m.payload["score"] for m in flow(reviewed().dialog) if m.message_type == "SCORE"]
    assert scores == [71, 86, 86]


def test_an_agents_claims_about_sums_are_not_taken_over() -> None:
    boast = GOOD.replace("]", " | total 100]").replace("documentation 8", "documentation 99")
    made = confirm(room(f"[TASK: 001 | approved | score 100]\n{boast}\n[DECIDE: P1 approve]\n", yes("P2"), "Both.\n"))
    assert told(made, "PR_FEEDBACK")[0]["score"] == 88
    assert told(made, "TASK_COMPLETED")[0]["final_score"] == 88


def test_what_git_knows_is_told_as_git_tells_it(repo: Path) -> None:
    made = Built(repo, no("P1"), yes("P2"), yes("P3"), "Both.\n").confirmed()
    for submitted in told(made, "PR_SUBMITTED", repository=repo):
        numbers = git(repo, "diff", "--numstat", submitted["base"], submitted["commit"]).split("\n")
        letters = git(repo, "diff", "--name-status", submitted["base"], submitted["commit"]).split("\n")
        added, deleted = (sum(int(row.split("\t")[at]) for row in numbers) for at in (0, 1))
        assert (submitted["lines_added"], submitted["lines_deleted"]) == (added, deleted)
        assert submitted["files_changed"] == [row.split("\t")[1] for row in letters]
        assert submitted["files_added"] == sum(row.startswith("A") for row in letters)
        assert submitted["files_modified"] == sum(row.startswith("M") for row in letters)
        assert submitted["tree"] == git(repo, "rev-parse", f"{submitted['commit']}^{{tree}}")
        assert git(repo, "branch", "--contains", submitted["commit"], "--list", submitted["branch_name"])
    assert [done["files_generated"] for done in told(made, "TASK_COMPLETED", repository=repo)] == [
        ["001.py"],
        ["002.py"],
    ]


def test_what_nobody_knows_is_null_and_never_left_out(repo: Path, tmp_path: Path) -> None:
    made = Built(repo, yes("P1"), yes("P2"), "Both.\n").confirmed()
    for where in (None, tmp_path / "gone"):
        submitted = told(made, "PR_SUBMITTED", repository=where)[0]
        assert (submitted["files_changed"], submitted["lines_added"], submitted["lines_deleted"]) == (None, 1, 0)
        assert (submitted["files_added"], submitted["files_modified"]) == (None, None)
        (summary,) = {one.summary for one in events(made.dialog, look_into(where)) if one.type == "PR_SUBMITTED"}
        assert summary == "iteration 1: 1 file +1 -0"
        assert (submitted["pr_url"], submitted["pr_number"]) == (None, None)
        assert told(made, "TASK_COMPLETED", repository=where)[0]["files_generated"] is None


class Odd(Built):
    """A build whose daemon notes something of its own: findings with the second gate, an error where work begins."""

    found: tuple[Mark, ...] = ()
    error = ""

    def _worked(self, what: build.Due, task: build.Task) -> Draft:
        note, error = super()._worked(what, task), self.error
        if what is build.Due.GATE and task.iteration == 2:
            return replace(note, marks=(*note.marks, *self.found))
        if what is build.Due.ASSIGN and error:
            return build.error_note(self.dialog.state.build, task, "Refused", error, self.paper.at)
        return note


def test_an_error_is_told_with_what_it_kept(repo: Path) -> None:
    odd = Odd(repo)
    odd.error = "the branch was moved"
    odd.confirmed()
    (error,) = told(odd, "AGENT_ERROR")
    assert [error[name] for name in ("error_type", "error_message", "task_id", "recoverable", "context")] == [
        "Refused", "the branch was moved", "001", True, None,
    ]  # fmt: skip
    made = Built(repo)
    made.scripts["L"] = [BackendError("no credit", fix="buy some", kind="limit")]
    made.confirmed()
    (error,) = told(made, "AGENT_ERROR")
    assert (error["error_type"], error["task_id"], error["recoverable"]) == ("backend", "001", True)
    assert error["context"] == {"iteration": 1, "branch_name": "dialogd/task-001"}


def test_the_board_leaves_out_what_was_replaced(repo: Path) -> None:
    made = Built(repo, yes("P1"), yes("P2"), "Both.\n").confirmed()
    first, second = rows(made.dialog, look_into(repo, 1000))
    assert [first.task.number, second.task.number] == [1, 2]
    assert first.diff is not None
    assert [one.path for one in first.diff.files] == ["001.py"]
    assert "+# attempt 1" in first.diff.files[0].patch
    assert listed(made.dialog.state.build) == list(made.dialog.state.build.all)
    assert all(isinstance(event, Event) for event in first.events)


def test_a_finding_of_the_daemons_counts_in_the_same_numbers(repo: Path) -> None:
    mended = f"{MENDED}\n[RESOLVED: 2 | it is right so]"
    odd = Odd(repo, no("P1", FOUND), yes("P2", mended), yes("P3"), "Both.\n")
    odd.found = (Mark("FINDING", "medium | scope | other.py | | changed outside |"),)
    odd.confirmed()
    assert [(one.number, one.by, bool(one.resolved)) for one in odd.dialog.state.table.findings] == [
        (1, "M", True),
        (2, "SYSTEM", True),
    ]
    assert [one["category"] for one in told(odd, "PR_FEEDBACK")[1]["feedback"]] == ["scope"]


def test_the_card_of_the_end_and_the_list_of_dialogs_tell_the_tasks(repo: Path) -> None:
    made = Built(repo, yes("P1"), yes("P2"), "Both are *built*.\n").confirmed()
    card = end_piece(made.dialog, "/x/dialog.md")
    for words in ("2 of 2 tasks approved", "read ages", "86 of 100", "gate passed", "<em>built</em>"):
        assert words in card
    assert 'data-do="takeover">Merge' in card
    assert "nothing of it is on <b><bdi>main</bdi></b> yet" in card
    assert "worth it" not in card
    plan = first_screen(Plan(made.dialog, "/x/dialog.md"))
    assert "**Outcome:** decided: 2 of 2 tasks approved" in plan
    assert "- **001 read ages**: approved, 86 of 100, 1 iteration, gate passed, tree" in plan
    assert "worth it" not in plan
    assert row_of(made.dialog).decided == "2 of 2 tasks approved"


def test_marks_of_a_build_are_told_in_words() -> None:
    made = confirm(room(no("P1", FOUND), yes("P2", MENDED), yes("P3"), "Both.\n"))
    talk = talk_of(made.dialog)
    shown = [mark for entry in made.dialog.entries for mark in in_ranks(entry, entry.body, talk).marks]
    said = [mark.words.begins for mark in shown]
    for words in (
        "Claude M proposed a task, task 001", "Task 001 was handed in", "The gate passed on task 001",
        "Claude M sent task 001 back", "Claude M approved task 001", "You confirmed all tasks",
    ):  # fmt: skip
        assert words in said, (words, said)
    first, second, *_ = (mark for mark in shown if mark.points is not None)
    assert (first.words.begins, first.points, first.text) == ("Claude M sent task 001 back", 71, "the test is missing")
    assert first.score[0] == ("code quality", 5, 25)
    assert [(one.severity, one.file, one.line, bool(one.resolved)) for one in first.found] == [
        ("blocking", "001.py", "3", True)
    ]
    assert [(one.number, one.issue, one.resolved) for one in second.mended] == [
        (first.found[0].number, first.found[0].issue, first.found[0].resolved)
    ]
    assert re.search("tree [0-9a-f]{40}", second.words.facts)
    assert not [mark for mark in shown if re.search("[0-9a-f]{20}", f"{mark.words.says}{mark.text}{mark.terms}")]

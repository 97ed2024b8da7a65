"""A build on the page: its tasks, one of them with its diff, what the person is asked, what it came to, the merge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dialogd import person
from dialogd.errors import BadInput, DialogdError
from dialogd.protocol import build
from dialogd.protocol.build import APPROVED, CONFIRMED, MERGED, PROPOSED, RAN, STUCK, SUBMITTED, Due, Task, listed
from dialogd.protocol.review import findings
from dialogd.protocol.rules import Build
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import many, visible
from dialogd.server.page_entries import cast, fragment
from dialogd.store.logfile import LogFile
from dialogd.tasks.approvals import approvals
from dialogd.views.builds import Look, Row, rows, why_of
from dialogd.views.flow import SYSTEM_NAME, USER_NAME, names_of
from dialogd.views.plan import Plan
from dialogd.views.words import words_of

# States of a task, and what its gate said, in words; and the look of their pills.
_STATES = {
    "confirmed": "to be done",
    "assigned": "at work",
    "stuck": "waits for you",
    "error": "cannot go on",
    "merged": "merged",
}
_TONES = {
    **dict.fromkeys(("approved", "merged", "passed"), "state-approved"),
    **dict.fromkeys(("stuck", "error", "failed", "timeout"), "state-rejected"),
    **dict.fromkeys(("proposed", "asked", "untested"), "state-open"),
}


class Act(BaseModel):
    """A button for what a build asks of the person: what it is called, what it sends where, what it says then."""

    label: str
    path: str
    body: dict[str, str]
    done: str


def acts_of(tasks: build.Tasks) -> list[Act]:
    """What the person can answer to what the build waits for; [] where it does not wait for them."""
    what, task = tasks.due
    if what is Due.CONFIRM:
        return [_on("confirm", "", "Confirm all", "Confirmed: the work begins.")]
    if what is Due.ALLOW:
        return [
            Act(label="Run it, as me", path="/gate", body={"how": "run"}, done="It runs."),
            Act(label="Review it untested", path="/gate", body={"how": "untested"}, done="It is reviewed untested."),
        ]
    if what is not Due.STUCK or task is None:
        return []
    again = _on("retry", task.id, "Try again", "It is tried again.")
    taken = _on("accept", task.id, "Accept it as it is", "Accepted.")
    return [again, *([taken] if task.state == STUCK else []), _on("drop", task.id, "Drop it", "Dropped.")]


def _on(act: str, tasks: str, label: str, done: str) -> Act:
    return Act(label=label, path="/tasks", body={"act": act, "tasks": tasks}, done=done)


def asked(tasks: build.Tasks) -> tuple[str, str]:
    """What the build waits for the person with, and what they can do, in a sentence each; "" where it does not."""
    what, task = tasks.due
    if what is Due.GOAL:
        return f"{build.unplanned(tasks)}.", "Say what is to be done, in other words or as tasks."
    if what is Due.CONFIRM:
        count = sum(one.state == PROPOSED for one in tasks.all)
        it = "it" if count == 1 else "them"
        return f"{many(count, 'task')} {'is' if count == 1 else 'are'} proposed.", f"Confirm {it}, change or drop {it}."
    if what is Due.STUCK and task is not None and task.state == STUCK:
        words = f"Task {task.id} was not approved in {many(task.iteration - task.spent, 'attempt')}."
        return words, "Have it tried again, accept it as it is, or drop it."
    if what is Due.STUCK and task is not None:
        return f"Task {task.id} cannot go on: {why_of(task).rstrip('.')}.", "Mend that and try again, or drop it."
    if what is Due.ALLOW and task is not None:
        words = f"There is no sandbox for the gate of task {task.id}."
        return words, "It can run without one: what the agent wrote then runs as you. Or it stays untested."
    return "", ""


def under_way(tasks: build.Tasks, lead: str, moderator: str) -> str:
    """What is done now, in a sentence, with the names of who does it."""
    what, task = tasks.due
    at = f"task {task.id}, attempt {max(task.iteration, 1)} of {build.last_attempt(tasks, task)}" if task else ""
    return {
        Due.PLAN: f"{moderator} {'plans what you asked for' if tasks.is_wanted else 'splits the goal into tasks'}.",
        Due.ASSIGN: f"A worktree is being opened for task {task.id if task else ''}.",
        Due.WORK: f"{lead} works on {at}.",
        Due.GATE: f"The gate tests {at}.",
        Due.REVIEW: f"{moderator} reviews {at}.",
        Due.IMPROVE: f"{moderator} looks for an improvement.",
        Due.SUMMARY: f"{moderator} sums up.",
    }.get(what or Due.GOAL, "")


def doing(tasks: build.Tasks, who: str, *, is_writing: bool) -> str:
    """What that agent does for the build now, in a word or two; "" where it does nothing.

    Its daemon opens worktrees and runs the gate by itself, all else `is_writing`.
    """
    what, task = tasks.due
    if what is None or who != tasks.next_turn:
        return ""
    verb = {Due.ASSIGN: "begins", Due.WORK: "works on", Due.GATE: "tests", Due.REVIEW: "reviews"}.get(what, "writes")
    is_by_itself = what in (Due.ASSIGN, Due.GATE)
    return f"{verb} {task.id if task else ''}".strip() if is_writing or is_by_itself else ""


def ended(dialog: Dialog) -> tuple[str, str]:
    """What came of a build that has ended, and what is left to do, in a sentence each."""
    known = dialog.state.build
    ready = [task.id for task in known.all if task.state == APPROVED]
    words = build.came_of(known)
    if ready:
        they = "it" if len(ready) == 1 else "them"
        return (
            f"{words}; nothing of {they} is on {known.rules.branch if known.rules else ''} yet.",
            f"Look at {they}, and merge {they}.",
        )
    return f"{words}.", "" if any(one.state == MERGED for one in known.all) else "Say what they should do now."


# -- The board ------------------------------------------------------------------------------------------------------


def tasks_piece(dialog: Dialog, look: Look) -> str:
    """The board of a build's tasks."""
    rules = dialog.state.build.rules
    if rules is None:
        return fragment("silent", query="")
    found, known = rows(dialog, look), dialog.state.build
    is_over = dialog.state.outcome is not None
    ready = [row.task for row in found if row.task.state == APPROVED]
    return fragment(
        "tasks",
        rows=found,
        done=sum(row.task.state in (APPROVED, MERGED) for row in found),
        ready=len(ready),
        branch=rules.branch,
        needed=("", "") if is_over else asked(known),
        acts=[] if is_over else acts_of(known),
        over=is_over,
        **_words(rules),
    )


def _words(rules: Build) -> dict[str, Any]:
    """How the templates tell of tasks."""
    return {
        "why_of": why_of,
        "pills": lambda task: list(_pills(task, rules)),
        "facts": lambda row: " · ".join(filter(None, _facts(row))),
        "review": _review,
        "older": lambda task: ", ".join(f"{number:03}" for number in task.after) or "none",
    }


def _pills(task: Task, rules: Build) -> Iterator[tuple[str, str]]:
    """The state of a task and its gate, each in a word with its look."""
    of = f" · attempt {task.iteration} of {task.spent + rules.iterations}"
    if task.state == SUBMITTED:
        waits = "waits for you" if task.gate == "asked" else "in review" if task.gate in RAN else "being tested"
        yield waits + of, "state-open" if task.gate == "asked" else ""
    else:
        is_busy = task.state == build.ASSIGNED
        yield _STATES.get(task.state, task.state) + of * is_busy, _TONES.get(task.state, "")
    if task.commit and task.gate not in ("", "asked"):
        yield build.tested(task), _TONES.get(task.gate, "")
    if task.reviewer == "USER" and task.state in (APPROVED, MERGED):
        yield "by you", ""


def _review(task: Task) -> str:
    """What the last review came to; of an attempt that is over while the next one runs."""
    if task.score is None:
        return ""
    is_old = task.state == build.ASSIGNED
    return f"{'the attempt before: ' * is_old}{task.score} of 100"


def _facts(row: Row) -> Iterator[str]:
    """Score, size, what comes before it and the estimate."""
    task = row.task
    yield _review(task)
    if row.diff is not None and task.state != build.ASSIGNED:
        yield row.diff.stat.replace(" -", "\u00a0-")
    if task.state in (PROPOSED, CONFIRMED):
        yield f"after {', '.join(f'{number:03}' for number in task.after)}" if task.after else ""
        yield f"{task.hours:g} h" if task.hours else ""


def task_piece(dialog: Dialog, number: int, figures: Look, patches: Look) -> str:
    """One task with its diff, as text. Raises `BadInput` where there is none of that number."""
    rules = dialog.state.build.rules
    row = next((row for row in rows(dialog, figures) if row.task.number == number), None)
    if rules is None or row is None:
        raise BadInput(f"there is no task {number}", fix="look at them all: dialogd tasks")
    names = {**names_of(dialog), USER_NAME: "You", SYSTEM_NAME: "dialogd"}
    reviews = [event.fields for event in row.events if event.type == "PR_FEEDBACK"]
    return fragment(
        "task",
        row=row,
        task=row.task,
        diff=patches(row.task.base, row.task.commit) if row.task.commit else None,
        feedback=reviews[-1] if reviews else None,
        found=[one for one in findings(dialog) if one.entry in _entries(row)],
        criteria=rules.criteria,
        who=lambda one: names.get(one, one),
        called=lambda kind: kind.replace("PR_", "").replace("_", " ").lower(),
        visible=visible,
        lines=_patch_lines,
        size=lambda file: "binary" if file.added is None else f"{file.status} +{file.added} -{file.deleted}",
        **_words(rules),
    )


def _entries(row: Row) -> set[str]:
    """The entries in which something happened to a task."""
    return {event.entry for event in row.events}


_LINES_OF_PATCH = {"+": "added", "-": "deleted", "@": "place"}


def _patch_lines(patch: str) -> Iterator[tuple[str, str]]:
    """The lines of a patch as text, each with what it does."""
    for line in patch.removesuffix("\n").split("\n"):
        is_head = line.startswith(("+++ ", "--- "))
        yield ("" if is_head else _LINES_OF_PATCH.get(line[:1], "")), visible(line)


# -- The end, and what becomes of it ----------------------------------------------------------------------------------


def end_of_build(dialog: Dialog, plan: Plan, rules: Build, **told: Any) -> str:
    """The card of a build that has ended: what became of its tasks, the moderator's summary, how to take it over.

    `told` is what the cards of all ends tell: figures, failures, advice.
    """
    outcome, tasks = dialog.state.outcome, rows(dialog)
    said = next((e for e in reversed(dialog.turns) if outcome is not None and e.id == outcome.entry), None)
    words = words_of(said) if said is not None and said.by == rules.moderator else ""
    ready = [row.task for row in tasks if row.task.state == APPROVED]
    return fragment(
        "end_of_build",
        plan=plan,
        title=build.came_of(dialog.state.build),
        said=words,
        rows=tasks,
        untested=[task.id for task in ready if task.gate == "untested"],
        ready=bool(ready),
        branch=rules.branch,
        players=cast(dialog),
        source="\n".join(f"{task.id} {task.state}: {task.description}" for task in listed(dialog.state.build)),
        **told,
        **_words(rules),
    )


def takeover_piece(log: LogFile, repo: Path, onto: str) -> str:
    """What a merge would do, or, where the branch has moved, a rebase; else why neither can be done."""
    rules = person.rules_of_build(log.read())
    told: dict[str, Any] = {"repo": visible(str(repo)), "onto": onto, "what": None, "refused": None, "unsaid": []}
    told |= _words(rules)
    try:
        what = person.takeover(log, repo, onto)
        unsaid = [one.task.id for one in approvals(log.read()) if one.wants_word and one.task in what.approved]
        return fragment("takeover", **{**told, "what": what, "unsaid": unsaid})
    except DialogdError as error:
        told["refused"] = error
    try:
        moved = person.carried_over(log, repo, onto)
        return fragment("takeover", **{**told, "what": moved if moved.approved else None})
    except DialogdError:
        return fragment("takeover", **told)

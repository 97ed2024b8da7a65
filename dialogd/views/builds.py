"""The tasks of a build for people and programs: what happened to each, in the usual fields, and what git says of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dialogd.errors import DialogdError
from dialogd.protocol import build
from dialogd.protocol.build import Due, Finding, Task, Tasks, listed
from dialogd.protocol.marks import fields_of
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry, Mark, place
from dialogd.protocol.rules import Build
from dialogd.protocol.state import Dialog, Table
from dialogd.protocol.text import many, one_line
from dialogd.views.flow import NAMES

if TYPE_CHECKING:
    from dialogd.tasks.worktrees import Diff

SUMMARY = 100  # characters
PATCHES = 200_000  # characters of patches that are shown of a task; files beyond are named

Look = Callable[[str, str], "Diff | None"]  # what git says of `base..commit`; None where it cannot be asked

# What can happen to a task: from whom and to whom (M the moderator, L the lead, * who wrote it), and the usual fields.
_ENDED = "final_score total_iterations approved completion_time files_generated"
_KINDS: Mapping[str, tuple[str, str, str]] = {
    "AGENT_READY": ("*", "*", "agent_id task_id branch_name"),
    "TASK_PROPOSED": ("M", USER, "task_id description acceptance_criteria"),
    "IMPROVEMENT_REQUESTED": (
        "M", USER, "improvement_id description category priority impact effort_hours priority_score rationale"
        " affected_files acceptance_criteria",
    ),
    "TASK_ASSIGNED": ("M", "L", "task_id description acceptance_criteria dependencies estimated_hours"),
    "PR_SUBMITTED": (
        "L", "M", "task_id pr_url pr_number branch_name files_changed files_added files_modified files_deleted"
        " lines_added lines_deleted iteration proposal base commit tree",
    ),
    "GATE": ("*", "M", "task_id iteration state exit_code tree log"),
    "PR_FEEDBACK": (
        "M", "L", "task_id pr_url pr_number iteration score approved blocking_issues suggestions feedback"
        " criteria_scores",
    ),
    "PR_APPROVED": ("*", "L", "task_id pr_url pr_number score iteration approved_by commit tree gate"),
    "TASK_COMPLETED": ("*", USER, f"task_id {_ENDED}"),
    "IMPROVEMENT_COMPLETED": ("*", USER, f"improvement_id {_ENDED}"),
    "AGENT_ERROR": ("*", USER, "error_type error_message task_id task_description stack_trace recoverable context"),
    **dict.fromkeys(("TASK_CONFIRMED", "TASK_CHANGED", "TASK_RETRIED"), (USER, "L", "task_id description")),
    "TASK_REBASED": (USER, "L", "task_id description"),
    "TASK_MERGED": (USER, "L", "task_id description commit overruled"),
    "TASK_PUBLISHED": (USER, "L", "task_id description commit pr_url pr_number"),
}  # fmt: skip
_ASKS = frozenset({"TASK_PROPOSED", "TASK_ASSIGNED", "PR_SUBMITTED", "IMPROVEMENT_REQUESTED"})


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a task. `fields` are the usual ones of its `type`, None for what nobody knows.

    `from_agent` and `to_agent` are ids, `User` or `System`; `reference` is the task (`task-003`), "" for none.
    `correlation_id` is the same for all that happened to one task. `requires_response`: who it goes to has to act.
    """

    id: str
    type: str
    time: str
    from_agent: str
    to_agent: str
    reference: str
    correlation_id: str
    requires_response: bool
    summary: str
    fields: Mapping[str, Any]
    entry: str
    turn: int


def nothing(_base: str, _commit: str) -> Diff | None:
    """The look at git of somebody who has no repository."""
    return None


def look_into(repo: Path | None, limit: int = 0) -> Look:
    """A look at that repository; patches together have up to `limit` characters."""
    if repo is None:
        return nothing

    def diff(base: str, commit: str) -> Diff:
        from dialogd.tasks.worktrees import Worktrees

        return Worktrees(repo).diff(base, commit, limit)

    known = diff if limit else cache(diff)  # a commit stays what it is; patches are large, and not kept

    def look(base: str, commit: str) -> Diff | None:
        try:
            return known(base, commit)
        except DialogdError:
            return None

    return look


# -- What happened ----------------------------------------------------------------------------------------------------


def events(dialog: Dialog, look: Look = nothing) -> tuple[Event, ...]:
    """Everything that happened to the tasks of a build, in file order; () for a dialog that is none."""
    rules = dialog.state.build.rules
    return tuple(_Events(dialog, rules, look).all()) if rules is not None and dialog.entries else ()


class _Events:
    """Makes the events of a dialog, entry by entry."""

    def __init__(self, dialog: Dialog, rules: Build, look: Look) -> None:
        self.dialog, self.rules, self.look = dialog, rules, look
        self.table = Table()  # with the findings so far
        self.entry, self.turn, self.count = dialog.entries[0], 0, 0
        self.submitted: dict[int, str] = {}  # the entry of a task's last submission: its findings come after it

    def all(self) -> Iterator[Event]:
        tasks, is_planned = Tasks(rules=self.rules, is_alone=self.dialog.state.build.is_alone), False
        for entry in self.dialog.entries:
            if entry.condition in (Condition.DAMAGED, Condition.UNFINISHED):
                continue
            self.entry, self.turn, self.count = entry, entry.number or self.turn, 0
            before, tasks = tasks, build.folded(tasks, entry)
            self.table = build.reviewed(self.table, tasks, entry) if entry.by != USER else self.table
            if not is_planned and entry.is_turn and entry.by == self.rules.moderator:
                is_planned = True  # its first turn shows that it is there
                yield self.ready(self.rules.moderator, self.rules.lead, None, "it plans the tasks")
            for who, why, fix in entry.failures if entry.by == SYSTEM else ():
                yield self.error(who, before.due_of(who)[1], "backend", "; ".join(filter(None, (why, fix))))
            for task in tasks.all:
                old = before.of(task.number)
                # Who is to do it is told once a worktree is open.
                if old is None or task != replace(old, lead=task.lead):
                    yield from self.happened(entry, old, task)

    def event(self, kind: str, task: Task | None, summary: str, by: str = "", to: str = "", **more: Any) -> Event:
        """One event, with the fields that it has: from the task, and `more`."""
        entry = self.entry
        self.count += 1
        lead = (task and (task.lead or task.author)) or self.rules.lead
        whose = {"M": self.rules.moderator, "L": lead, "*": entry.by}
        first, second, names = _KINDS[kind]
        by, to = by or whose.get(first, first), to or whose.get(second, second)
        fields = {**(self.facts(task) if task else {}), "completion_time": entry.at or None, **more}
        reference = f"task-{task.id}" if task else ""
        asks = kind in _ASKS or more.get("state") == "asked" or (kind == "PR_FEEDBACK" and not more["approved"])
        number = f"{self.dialog.id}:{entry.id}.{self.count}"
        return Event(
            number, kind, entry.at, NAMES.get(by, by), NAMES.get(to, to), reference,
            f"{self.dialog.id}:{reference}" if reference else "", asks, one_line(summary, SUMMARY),
            {name: fields.get(name) for name in names.split()}, entry.id, self.turn,
        )  # fmt: skip

    def facts(self, task: Task) -> dict[str, Any]:
        """What is known of a task, by the names that fields have; its pull request whenever it was opened."""
        known = self.dialog.state.build.of(task.number) or task
        return {
            **dict.fromkeys(("task_id", "improvement_id"), task.id),
            **dict.fromkeys(("description", "task_description", "rationale"), task.description),
            **dict.fromkeys(("effort_hours", "estimated_hours"), task.hours),
            **dict.fromkeys(("score", "final_score"), task.score),
            **dict.fromkeys(("iteration", "total_iterations"), task.iteration),
            **{name: task.asks.get(name) or None for name in ("category", "priority", "impact")},
            "acceptance_criteria": list(task.criteria),
            "dependencies": [f"{number:03}" for number in task.after],
            "affected_files": [name.strip(" `") for name in re.split("[,;]", task.asks.get("files", "")) if name],
            "branch_name": task.branch, "proposal": task.ref, "base": task.base, "commit": task.commit,
            "tree": task.tree, "state": task.gate, "gate": task.gate or None, "log": task.log or None,
            "approved": task.state == build.APPROVED, "approved_by": NAMES.get(task.reviewer, task.reviewer),
            **_of_request(next((one for one in known.requests if one.commit == task.commit), None)),
        }  # fmt: skip

    def ready(self, by: str, to: str, task: Task | None, words: str) -> Event:
        return self.event("AGENT_READY", task, words, by, to, agent_id=by)

    def error(self, who: str, task: Task | None, kind: str, message: str) -> Event:
        context = {"iteration": task.iteration, "branch_name": task.branch} if task and task.branch else None
        return self.event(
            "AGENT_ERROR", task, message, who, error_type=kind or None, error_message=message,
            recoverable=self.entry.ending is None, context=context,
        )  # fmt: skip

    def happened(self, entry: Entry, old: Task | None, task: Task) -> Iterator[Event]:
        """What an entry did to a task, `old` before it."""
        if old is None:
            kind = "IMPROVEMENT_REQUESTED" if task.is_improvement else "TASK_PROPOSED"
            yield self.event(kind, task, task.description)
            return
        record = next((mark for mark in entry.all("TASK") if build.number_of(mark) == task.number), Mark("TASK", ""))
        _, state, *rest = (*fields_of(record), "")
        if entry.by == USER:
            yield from self.by_hand(old, task)
        elif task.state == build.ASSIGNED and old.state == build.CONFIRMED:
            yield self.ready(task.lead, self.rules.moderator, task, f"a worktree is open on {task.branch}")
            yield self.event("TASK_ASSIGNED", task, task.description)
        if task.ref != old.ref:
            self.submitted[task.number] = entry.id
            size = " ".join(fields_of(record)[-2:])  # `3 files +40 -2`, as git said it
            yield self.event("PR_SUBMITTED", task, f"iteration {task.iteration}: {size}", **self.size(task, size))
        if task.gate and task.gate != old.gate:
            yield self.tested(entry, task)
        if entry.by == self.rules.moderator and state.casefold() in ("changes", "approved", "stuck", "dropped"):
            yield self.reviewed(entry, old, rest, is_approved=state.casefold() == "approved")
        if task.state == old.state:
            return
        if task.state == build.APPROVED:
            points = f"{task.score} of 100" if task.score is not None else "no score"
            tested = "" if task.gate == "passed" else f", {build.tested(task)}"
            yield self.event("PR_APPROVED", task, f"tree {task.tree[:12]}, {points}{tested}")
        if task.state == build.APPROVED or (task.state == build.DROPPED and task.why != "replaced"):
            yield self.completed(entry, task)
        if task.state == build.ERROR:
            yield self.error(task.lead, old, rest[0], " | ".join(filter(None, rest[1:])))

    def by_hand(self, old: Task, task: Task) -> Iterator[Event]:
        """The person's word; what it approves or drops is told as an end too."""
        if task.carried and not old.carried:
            yield self.event("TASK_REBASED", task, f"to be done again on {self.dialog.state.build.base[:12]}")
        elif task.state == build.CONFIRMED and old.state == build.PROPOSED:
            yield self.event("TASK_CONFIRMED", task, task.description)
        elif task.state == build.MERGED:
            at = task.merged or task.commit
            words = ", ".join(filter(None, (f"commit {at[:12]}", task.why)))
            yield self.event(
                "TASK_MERGED", task, words, commit=at, overruled=task.why.removeprefix("although ") or None
            )
        elif old.state in (build.STUCK, build.ERROR) and task.state not in (old.state, build.APPROVED, build.DROPPED):
            yield self.event("TASK_RETRIED", task, old.why)
        elif task.requests != old.requests:
            opened = task.requests[-1]
            yield self.event("TASK_PUBLISHED", task, opened.url, commit=opened.commit, **_of_request(opened))
        elif task.state == old.state and task.state in (build.PROPOSED, build.CONFIRMED):
            yield self.event("TASK_CHANGED", task, task.description)

    def size(self, task: Task, size: str) -> dict[str, Any]:
        """What a submission changes, as git says it, else as far as its record does: how many lines."""
        diff = self.look(task.base, task.commit)
        if diff is None:
            lines = re.search(r"\+(\d+) -(\d+)", size)
            added, deleted = map(int, lines.groups()) if lines else (None, None)
            return {"lines_added": added, "lines_deleted": deleted}
        files = (*diff.files, *diff.omitted)
        counts = {"files_added": "A", "files_modified": "MRCT", "files_deleted": "D"}
        return {
            "files_changed": [one.path for one in files],
            **{name: sum(one.status in letters for one in files) for name, letters in counts.items()},
            "lines_added": sum(one.added or 0 for one in files),
            "lines_deleted": sum(one.deleted or 0 for one in files),
        }

    def tested(self, entry: Entry, task: Task) -> Event:
        mark = next((m for m in entry.all("GATE") if build.number_of(m) == task.number), Mark("GATE", ""))
        code = build.value_of(mark, "exit")
        words = {"run": "may run without a sandbox", "asked": "waits for the person's word"}.get(task.gate, task.gate)
        said = f"the gate: {words}" + (f", exit code {code}" if code else "")
        by, to = USER if entry.by == USER else SYSTEM, "" if task.gate in build.RAN else USER
        exit_code = int(code) if code.lstrip("-").isdecimal() else None
        return self.event("GATE", task, said, by, to, exit_code=exit_code, state=task.gate)

    def reviewed(self, entry: Entry, task: Task, rest: list[str], *, is_approved: bool) -> Event:
        """A review: what it found, and the findings that the daemon added to the submission."""
        since = place(self.submitted.get(task.number, entry.id))
        found = [one for one in self.table.findings if since < place(one.entry)]
        score, points = build.total(self.rules, entry.marks), build.points(self.rules, entry.marks)
        why = "; ".join(part for part in rest if part and not part.startswith(("iteration ", "score ")))
        verdict = "approved" if is_approved else why or "not approved"
        return self.event(
            "PR_FEEDBACK", task, f"{f'{score} of 100' if score is not None else 'no score'}, {verdict}",
            score=score, approved=is_approved,
            blocking_issues=[one.issue for one in self.table.blocking],
            suggestions=[one.suggestion for one in found if one.suggestion],
            feedback=[_feedback(one) for one in found],
            criteria_scores={name: points.get(name) for name in self.rules.criteria},
        )  # fmt: skip

    def completed(self, entry: Entry, task: Task) -> Event:
        diff = self.look(task.base, task.commit) if task.commit else None
        made = None if diff is None else [one.path for one in (*diff.files, *diff.omitted) if one.status == "A"]
        ended = "approved" if task.state == build.APPROVED else f"dropped{f': {task.why}' if task.why else ''}"
        kind, to = f"{'IMPROVEMENT' if task.is_improvement else 'TASK'}_COMPLETED", task.lead * (entry.by == USER)
        words = f"{ended}, {many(task.iteration, 'iteration')}"
        return self.event(kind, task, words, to=to, files_generated=made if task.commit else [])


def _of_request(request: build.Request | None) -> dict[str, Any]:
    return {"pr_url": request.url if request else None, "pr_number": request.number if request else None}


def _feedback(one: Finding) -> dict[str, Any]:
    told = {name: getattr(one, name) or None for name in ("severity", "category", "file")}
    line = int(one.line) if one.line.isdecimal() else None
    return {**told, "line": line, "issue": one.issue, "suggestion": one.suggestion or None}


# -- The board --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """A task as it stands, and what happened to it. `diff` is its last submission as git tells it, None without."""

    task: Task
    events: tuple[Event, ...]
    diff: Diff | None = None


def why_of(task: Task) -> str:
    """Why a task stands as it does, in words, without what is told beside it."""
    told = ("score ", "iteration ", "no score", "after ")
    parts = task.why.split(" | ")[task.state == build.ERROR :]  # the first one of an error is its kind
    return "; ".join(part for part in parts if not part.startswith(told))


def rows(dialog: Dialog, look: Look = nothing) -> list[Row]:
    """Every task with its history, in the order of their numbers."""
    every = events(dialog, look)
    found = []
    for task in listed(dialog.state.build):
        own = tuple(event for event in every if event.reference == f"task-{task.id}")
        found.append(Row(task, own, look(task.base, task.commit) if task.commit else None))
    return found


_DOES = {
    Due.PLAN: "plans the tasks",
    Due.ASSIGN: "begins",
    Due.WORK: "works on",
    Due.GATE: "tests",
    Due.REVIEW: "reviews",
    Due.IMPROVE: "looks for an improvement",
    Due.SUMMARY: "sums up",
}


def doing(tasks: Tasks, who: str, *, is_writing: bool) -> str:
    """What that agent does for the build now, in a word or two; "" where it does nothing.

    Its daemon opens worktrees, and runs setup and gate, by itself, all else `is_writing`.
    """
    what, task = tasks.due_of(who)
    if what is None or not (is_writing or what in (Due.ASSIGN, Due.GATE)):
        return ""
    does = "sets up" if what is Due.ASSIGN and tasks.rules is not None and tasks.rules.setup else _DOES.get(what, "")
    return f"{does} {task.id if task else ''}".strip()

"""The tasks of a build for people and programs: what happened to each, in the usual fields, and what git says of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dialogd.errors import DialogdError
from dialogd.protocol import build
from dialogd.protocol.build import APPROVED, ASSIGNED, CONFIRMED, DROPPED, ERROR, MERGED, PROPOSED, Task, Tasks
from dialogd.protocol.marks import fields_of
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry, Mark
from dialogd.protocol.review import Finding, findings
from dialogd.protocol.rules import Build
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import one_line
from dialogd.protocol.units import many

if TYPE_CHECKING:
    from dialogd.tasks.worktrees import Diff

SUMMARY = 100  # characters
PATCHES = 200_000  # characters of patches that are shown of a task; files beyond are named
NAMES = {USER: "User", SYSTEM: "System"}  # as in the flow
_ASKS = frozenset({"TASK_PROPOSED", "TASK_ASSIGNED", "PR_SUBMITTED", "IMPROVEMENT_REQUESTED"})
_REVIEWED = frozenset({"changes", "approved", "stuck", "dropped"})
_LINES = re.compile(r"\+(\d+) -(\d+)")

Look = Callable[[str, str], "Diff | None"]  # what git says of `base..commit`; None where it cannot be asked


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

    figures: dict[tuple[str, str], Diff] = {}  # a commit stays what it is; patches are large, and not kept

    def look(base: str, commit: str) -> Diff | None:
        from dialogd.tasks.worktrees import Worktrees

        if (base, commit) in figures:
            return figures[base, commit]
        try:
            diff = Worktrees(repo).diff(base, commit, limit)
        except DialogdError:
            return None
        if not limit:
            figures[base, commit] = diff
        return diff

    return look


# -- What happened ----------------------------------------------------------------------------------------------------


def events(dialog: Dialog, look: Look = nothing) -> tuple[Event, ...]:
    """Everything that happened to the tasks of a build, in file order; () for a dialog that is none."""
    rules = dialog.header.rules.build
    return tuple(_events(dialog, rules, look)) if rules is not None else ()


def _events(dialog: Dialog, rules: Build, look: Look) -> Iterator[Event]:
    told = _Told(dialog, rules, look)
    tasks = Tasks()
    for entry in dialog.entries:
        if entry.condition in (Condition.DAMAGED, Condition.UNFINISHED):
            continue
        told.turn = entry.number or told.turn
        before, tasks = tasks, build.folded(rules, tasks, entry, is_unattended=dialog.header.is_unattended)
        yield from told.planned(entry)
        yield from told.failures(entry, before)
        for task in tasks.all:
            old = before.of(task.number)
            if task != old:
                yield from told.happened(entry, old, task)


class _Told:
    """Makes the events of a dialog, entry by entry."""

    def __init__(self, dialog: Dialog, rules: Build, look: Look) -> None:
        self.dialog, self.rules, self.look = dialog, rules, look
        self.findings = findings(dialog)
        self.places = {entry.id: place for place, entry in enumerate(dialog.entries)}
        self.turn = self.count = 0
        self.entry, self.is_planned = "", False
        self.known = dialog.state.tasks  # also what was said of an earlier commit since: its pull request
        self.since: dict[int, str] = {}  # the entry of a task's last submission: its findings come after it

    def event(
        self, kind: str, entry: Entry, who: tuple[str, str], task: Task | None, summary: str, **fields: Any
    ) -> Event:
        """One event, with the fields that it has."""
        reference = f"task-{task.id}" if task else ""
        by, to = (NAMES.get(one, one) for one in who)
        correlation = f"{self.dialog.id}:{reference}" if reference else ""
        words = one_line(summary, SUMMARY)
        self.count = self.count + 1 if self.entry == entry.id else 1
        self.entry = entry.id
        number = f"{self.dialog.id}:{entry.id}.{self.count}"
        asks = kind in _ASKS or fields.get("state") == "asked" or (kind == "PR_FEEDBACK" and not fields["approved"])
        return Event(number, kind, entry.at, by, to, reference, correlation, asks, words, fields, entry.id, self.turn)

    def planned(self, entry: Entry) -> Iterator[Event]:
        """The moderator's first turn, which shows that it is there."""
        who = (self.rules.moderator, self.rules.lead)
        if not self.is_planned and entry.is_turn and entry.by == who[0]:
            self.is_planned = True
            yield self._ready(entry, who, None, "it plans the tasks")

    def _ready(self, entry: Entry, who: tuple[str, str], task: Task | None, words: str) -> Event:
        at = {"task_id": task.id if task else None, "branch_name": task.branch if task else None}
        return self.event("AGENT_READY", entry, who, task, words, agent_id=who[0], **at)

    def happened(self, entry: Entry, old: Task | None, task: Task) -> Iterator[Event]:
        """What an entry did to a task, `old` before it."""
        if old is None:
            yield self._asked(entry, task)
        elif entry.by == USER:
            yield from self._by_hand(entry, old, task)
        elif task.state == ASSIGNED and old.state == CONFIRMED:
            yield from self._assigned(entry, task)
        if old is not None and task.ref != old.ref:
            yield self._submitted(entry, task)
        if old is not None and task.gate and task.gate != old.gate:
            yield self._tested(entry, task)
        record = next((mark for mark in entry.all("TASK") if build.number_of(mark) == task.number), None)
        state = fields_of(record)[1].casefold() if record and "|" in record.value else ""
        if entry.by == self.rules.moderator and state in _REVIEWED and old is not None:
            yield self._reviewed(entry, old, is_approved=state == "approved")
        if old is None or task.state == old.state:
            return
        if task.state == APPROVED:
            yield self._approved(entry, task)
        if task.state == APPROVED or (task.state == DROPPED and task.why != "replaced"):
            yield self._completed(entry, task)
        if task.state == ERROR and record is not None:
            yield self._stopped(entry, old, record)

    def _asked(self, entry: Entry, task: Task) -> Event:
        who, criteria = (self.rules.moderator, USER), list(task.criteria)
        if not task.is_improvement:
            return self.event(
                "TASK_PROPOSED", entry, who, task, task.description, **_of_task(task), acceptance_criteria=criteria
            )
        return self.event(
            "IMPROVEMENT_REQUESTED",
            entry,
            who,
            task,
            task.description,
            improvement_id=task.id,
            description=task.description,
            category=task.asks["category"] or None,
            priority=task.asks["priority"] or None,
            impact=task.asks["impact"] or None,
            effort_hours=task.hours,
            priority_score=None,
            rationale=task.description,
            affected_files=_names(task.asks["files"]),
            acceptance_criteria=criteria,
        )

    def _by_hand(self, entry: Entry, old: Task, task: Task) -> Iterator[Event]:
        """The person's word; what it approves or drops is told as an end too."""
        kind, more = "", dict[str, Any]()
        if task.carried and not old.carried:
            kind, words = "TASK_REBASED", f"to be done again on {self.dialog.state.tasks.base[:12]}"
        elif task.state == CONFIRMED and old.state == PROPOSED:
            kind, words = "TASK_CONFIRMED", task.description
        elif task.state == MERGED:
            kind, words = "TASK_MERGED", ", ".join(filter(None, (f"commit {task.commit[:12]}", task.why)))
            more = {"commit": task.commit, "overruled": task.why.removeprefix("although ") or None}
        elif old.state in (build.STUCK, ERROR) and task.state not in (APPROVED, DROPPED):
            kind, words = "TASK_RETRIED", old.why
        elif task.requests != old.requests:
            kind, words = "TASK_PUBLISHED", task.requests[-1].url
            more = {"commit": task.requests[-1].commit, **_of_request(task.requests[-1])}
        elif task.state == old.state and task.state in (PROPOSED, CONFIRMED):
            kind, words = "TASK_CHANGED", task.description
        if kind:
            yield self.event(kind, entry, (USER, self.rules.lead), task, words, **_of_task(task), **more)

    def _assigned(self, entry: Entry, task: Task) -> Iterator[Event]:
        lead, moderator = self.rules.lead, self.rules.moderator
        yield self._ready(entry, (lead, moderator), task, f"a worktree is open on {task.branch}")
        yield self.event(
            "TASK_ASSIGNED",
            entry,
            (moderator, lead),
            task,
            task.description,
            **_of_task(task),
            acceptance_criteria=list(task.criteria),
            dependencies=[f"{number:03}" for number in task.after],
            estimated_hours=task.hours,
        )

    def _submitted(self, entry: Entry, task: Task) -> Event:
        self.since[task.number] = entry.id
        diff = self.look(task.base, task.commit)
        record = next((mark for mark in entry.all("TASK") if build.number_of(mark) == task.number), Mark("TASK", ""))
        size = " ".join(fields_of(record)[-2:])  # `3 files +40 -2`, as git said it
        figures = _figures(diff) if diff else _recorded(size)
        return self.event(
            "PR_SUBMITTED",
            entry,
            (self.rules.lead, self.rules.moderator),
            task,
            f"iteration {task.iteration}: {size}",
            task_id=task.id,
            **self._requested(task),
            branch_name=task.branch,
            **figures,
            iteration=task.iteration,
            proposal=task.ref,
            base=task.base,
            commit=task.commit,
            tree=task.tree,
        )

    def _requested(self, task: Task) -> dict[str, Any]:
        """The pull request of the task's commit, whenever it was opened."""
        known = self.known.of(task.number)
        return _of_request(next((one for one in known.requests if one.commit == task.commit), None) if known else None)

    def _tested(self, entry: Entry, task: Task) -> Event:
        mark = next((m for m in entry.all("GATE") if build.number_of(m) == task.number), Mark("GATE", ""))
        code = build.value_of(mark, "exit")
        words = {"run": "may run without a sandbox", "asked": "waits for the person's word"}.get(task.gate, task.gate)
        return self.event(
            "GATE",
            entry,
            (USER if entry.by == USER else SYSTEM, self.rules.moderator if task.gate in build.RAN else USER),
            task,
            f"the gate: {words}" + (f", exit code {code}" if code else ""),
            task_id=task.id,
            iteration=task.iteration,
            state=task.gate,
            exit_code=int(code) if code.lstrip("-").isdecimal() else None,
            tree=task.tree,
            log=task.log or None,
        )

    def _reviewed(self, entry: Entry, task: Task, *, is_approved: bool) -> Event:
        """A review: what it found, and the findings that the daemon added to the submission."""
        start, end = self.places[self.since.get(task.number, entry.id)], self.places[entry.id]
        found = [one for one in self.findings if start < self.places[one.entry] <= end]
        known = [one for one in self.findings if self.places[one.entry] <= end]
        score, points = build.total(self.rules, entry.marks), build.points(self.rules, entry.marks)
        mark = next(m for m in entry.all("TASK") if build.number_of(m) == task.number)
        why = "; ".join(part for part in fields_of(mark)[2:] if not part.startswith(("iteration ", "score ")))
        verdict = "approved" if is_approved else why or "not approved"
        return self.event(
            "PR_FEEDBACK",
            entry,
            (self.rules.moderator, self.rules.lead),
            task,
            f"{f'{score} of 100' if score is not None else 'no score'}, {verdict}",
            task_id=task.id,
            **self._requested(task),
            iteration=task.iteration,
            score=score,
            approved=is_approved,
            blocking_issues=[one.issue for one in known if one.blocks_after(entry.number)],
            suggestions=[one.suggestion for one in found if one.suggestion],
            feedback=[_feedback(one) for one in found],
            criteria_scores={name: points.get(name) for name in self.rules.criteria},
        )

    def _approved(self, entry: Entry, task: Task) -> Event:
        by = NAMES.get(task.reviewer, task.reviewer)
        tested = "" if task.gate == "passed" else f", {build.tested(task)}"
        return self.event(
            "PR_APPROVED",
            entry,
            (entry.by, self.rules.lead),
            task,
            f"tree {task.tree[:12]}, {f'{task.score} of 100' if task.score is not None else 'no score'}{tested}",
            task_id=task.id,
            **self._requested(task),
            score=task.score,
            iteration=task.iteration,
            approved_by=by,
            commit=task.commit,
            tree=task.tree,
            gate=task.gate or None,
        )

    def _completed(self, entry: Entry, task: Task) -> Event:
        diff = self.look(task.base, task.commit) if task.commit else None
        is_approved = task.state == APPROVED
        made = None if diff is None else [one.path for one in (*diff.files, *diff.omitted) if one.status == "A"]
        name = "improvement_id" if task.is_improvement else "task_id"
        ended = "approved" if is_approved else f"dropped{f': {task.why}' if task.why else ''}"
        return self.event(
            "IMPROVEMENT_COMPLETED" if task.is_improvement else "TASK_COMPLETED",
            entry,
            (entry.by, USER if entry.by != USER else self.rules.lead),
            task,
            f"{ended}, {many(task.iteration, 'iteration')}",
            **{name: task.id},
            final_score=task.score,
            total_iterations=task.iteration,
            approved=is_approved,
            completion_time=entry.at or None,
            files_generated=made if task.commit else [],
        )

    def _stopped(self, entry: Entry, old: Task, mark: Mark) -> Event:
        _, _, kind, *words = (*fields_of(mark), "", "")
        return self._error(entry, self.rules.lead, old, kind, " | ".join(filter(None, words)))

    def failures(self, entry: Entry, tasks: Tasks) -> Iterator[Event]:
        """What backends failed with, and the task that it kept."""
        task = build.due(self.rules, tasks)[1]
        for mark in entry.all("AGENT_ERROR") if entry.by == SYSTEM else ():
            who, *words = mark.fields
            yield self._error(entry, who, task, "backend", "; ".join(words))

    def _error(self, entry: Entry, who: str, task: Task | None, kind: str, message: str) -> Event:
        working = task is not None and bool(task.branch)
        return self.event(
            "AGENT_ERROR",
            entry,
            (who, USER),
            task,
            message,
            error_type=kind or None,
            error_message=message,
            task_id=task.id if task else None,
            task_description=task.description if task else None,
            stack_trace=None,
            recoverable=entry.ending is None,
            context={"iteration": task.iteration, "branch_name": task.branch} if task and working else None,
        )


def _of_task(task: Task) -> dict[str, Any]:
    return {"task_id": task.id, "description": task.description}


def _of_request(request: build.Request | None) -> dict[str, Any]:
    return {"pr_url": request.url if request else None, "pr_number": request.number if request else None}


def _names(files: str) -> list[str]:
    """The files that an improvement names, parted by commas or semicolons."""
    return [name for name in (part.strip(" `") for part in re.split("[,;]", files)) if name]


def _figures(diff: Diff) -> dict[str, Any]:
    """What a commit changes, as git says it; a renamed file counts as modified, binary ones have no lines."""
    files = (*diff.files, *diff.omitted)
    return {
        "files_changed": [one.path for one in files],
        "files_added": sum(one.status == "A" for one in files),
        "files_modified": sum(one.status not in ("A", "D") for one in files),
        "files_deleted": sum(one.status == "D" for one in files),
        "lines_added": sum(one.added or 0 for one in files),
        "lines_deleted": sum(one.deleted or 0 for one in files),
    }


def _recorded(size: str) -> dict[str, Any]:
    """What a commit changes, as far as its record says it: how many lines."""
    lines = _LINES.search(size)
    unknown = dict.fromkeys(("files_changed", "files_added", "files_modified", "files_deleted"))
    added, deleted = map(int, lines.groups()) if lines else (None, None)
    return {**unknown, "lines_added": added, "lines_deleted": deleted}


def _feedback(one: Finding) -> dict[str, Any]:
    line = int(one.line) if one.line.isdecimal() else None
    return {
        "severity": one.severity or None,
        "category": one.category or None,
        "file": one.file or None,
        "line": line,
        "issue": one.issue,
        "suggestion": one.suggestion or None,
    }


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
    parts = task.why.split(" | ")[task.state == ERROR :]  # the first one of an error is its kind
    return "; ".join(part for part in parts if not part.startswith(told))


def listed(tasks: Sequence[Task]) -> list[Task]:
    """The tasks without those that others took the place of."""
    return [task for task in tasks if not (task.state == DROPPED and task.why == "replaced")]


def rows(dialog: Dialog, look: Look = nothing) -> list[Row]:
    """Every task with its history, in the order of their numbers."""
    every = events(dialog, look)
    return [
        Row(
            task,
            tuple(event for event in every if event.reference == f"task-{task.id}"),
            look(task.base, task.commit) if task.commit else None,
        )
        for task in listed(dialog.state.tasks.all)
    ]

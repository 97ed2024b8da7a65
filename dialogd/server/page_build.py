"""A build's door: the routes by which the person acts on its tasks, and what the page shows of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import Field

from dialogd import person
from dialogd.agent.loop import Agent
from dialogd.errors import BadInput, DialogdError, Refused
from dialogd.protocol import build
from dialogd.protocol.build import (
    APPROVED,
    ASSIGNED,
    CONFIRMED,
    MERGED,
    PROPOSED,
    RAN,
    STUCK,
    SUBMITTED,
    Due,
    Task,
    findings,
)
from dialogd.protocol.rules import Build
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import visible
from dialogd.server import wire
from dialogd.server.page_entries import fragment
from dialogd.store.logfile import LogFile
from dialogd.tasks.approvals import approvals
from dialogd.views.builds import Look, Row, rows, why_of
from dialogd.views.flow import SYSTEM_NAME, USER_NAME, names_of
from dialogd.views.words import words_of

Write = Callable[..., Awaitable[wire.Done]]  # carries out a command of the person; unless `starts=False` it starts it


class OnTasks(wire.Meant):
    """What is said of a build's tasks; what a change leaves out stays as it is."""

    act: Literal["confirm", "drop", "retry", "accept", "change"]
    tasks: str | int = Field("", description="their numbers: 003, or 1, 3; empty: those that wait for it")
    reason: str = Field("", description="why, of a drop", max_length=1_000_000)
    description: str = Field("", description="of a change: what is to be done", max_length=100_000)
    criteria: list[str] = Field([], description="of a change: what must be true of it", max_length=100)
    after: str = Field("", description="of a change: which tasks come first, or none", max_length=1_000)
    hours: str = Field("", description="of a change: an estimate", max_length=20)


class OnGate(wire.Meant):
    """What becomes of the gate where there is no sandbox."""

    how: Literal["run", "untested"]


class OnBranch(wire.Meant):
    """What is to be done with what is approved: with exactly that commit, or not at all."""

    commit: str = Field(description="the commit that the branch is to go to; of a rebase where it is", max_length=64)
    onto: str = Field("", description="the branch; empty: the one that the build began from", max_length=250)


class Merge(OnBranch):
    """What is to be merged, and whether that overrules what speaks against it."""

    anyway: bool = Field(False, description="also what `dialogd verify` would refuse; the file says so")


def build_routes(app: FastAPI, agent: Agent, write: Write) -> None:
    """Add the routes of this module."""
    log, secrets = agent.file, agent.secrets

    @app.post("/tasks")
    async def tasks(said: OnTasks) -> wire.Done:
        """Confirm, change, drop, retry or accept tasks of a build."""
        named = str(said.tasks)
        if said.act == "change":
            parts = said.model_dump(include={"description", "criteria", "after", "hours"})
            return await write(lambda: person.change_task(log, named, secrets=secrets, **parts))
        return await write(lambda: person.tasks(log, said.act, named, said.reason, secrets=secrets))

    @app.post("/gate")
    async def gate(said: OnGate) -> wire.Done:
        """Let a build's gate run without a sandbox on the tree that waits, or have that tree reviewed untested."""
        return await write(lambda: person.gate(log, said.how))

    @app.post("/merge")
    async def merge(said: Merge) -> wire.Done:
        """Fast-forward the person's branch to the last approved commit, if that is the one which is named."""

        def merged() -> Dialog:
            repo = repository(log.read(), agent)
            what = person.takeover(log, repo, said.onto)
            _same(what.to, said.commit)
            return person.merge(log, repo, what, anyway=said.anyway)[0]

        return await write(merged, starts=False)

    @app.post("/rebase")
    async def rebase(said: OnBranch) -> wire.Done:
        """Carry approved tasks to where the person's branch is now, if that is the commit which is named."""

        def rebased() -> Dialog:
            at = person.carried_over(log, repository(log.read(), agent), said.onto).at
            _same(at, said.commit)
            return person.rebase(log, at)

        return await write(rebased)


def repository(dialog: Dialog, agent: Agent) -> Path:
    """The repository that this daemon was started with: what a file names is nothing to it. Raises `Refused`."""
    rules, builder = person.rules_of_build(dialog), agent.builder
    if (why := builder.refuses(rules)) or builder.repo is None:
        raise Refused(f"cannot be merged from here: {why}", fix="do it in a terminal: dialogd build merge")
    return builder.repo


def _same(commit: str, named: str) -> None:
    """Raise `Refused` where the person has seen another commit; the beginning of its id names it."""
    if len(named) < 7 or not commit.startswith(named):
        raise Refused(f"it would be commit {commit[:12]} now, not {named[:12]}", fix="look again, and name that one")


# -- What is done, and what is asked ----------------------------------------------------------------------------------

# Buttons for what a build asks of the person: what each is called, what it sends where, what it says then.
_CONFIRM = ("Confirm all", "/tasks", {"act": "confirm"}, "Confirmed: the work begins.")
_RETRY = ("Try again", "/tasks", {"act": "retry"}, "It is tried again.")
_ACCEPT = ("Accept it as it is", "/tasks", {"act": "accept"}, "Accepted.")
_DROP = ("Drop it", "/tasks", {"act": "drop"}, "Dropped.")
_RUN = ("Run it, as me", "/gate", {"how": "run"}, "It runs.")
_REVIEW = ("Review it untested", "/gate", {"how": "untested"}, "It is reviewed untested.")

_DOES = {
    Due.PLAN: "plans the tasks",
    Due.ASSIGN: "begins",
    Due.WORK: "works on",
    Due.GATE: "tests",
    Due.REVIEW: "reviews",
    Due.IMPROVE: "looks for an improvement",
    Due.SUMMARY: "sums up",
}


def acts_of(tasks: build.Tasks) -> list[dict[str, Any]]:
    """The buttons that answer what the build waits for; [] where it does not wait for the person."""
    what, task = tasks.due
    stuck = (_RETRY, *([_ACCEPT] if task is not None and task.state == STUCK else []), _DROP)
    found = {Due.CONFIRM: (_CONFIRM,), Due.ALLOW: (_RUN, _REVIEW), Due.STUCK: stuck}.get(what, ()) if what else ()
    named = {"tasks": task.id} if what is Due.STUCK and task is not None else {}
    return [
        {"label": label, "path": path, "body": {**body, **named}, "done": done} for label, path, body, done in found
    ]


def asked(tasks: build.Tasks) -> tuple[str, str]:
    """That the build waits for the person, and with what; "" where it does not."""
    question = build.question(tasks)
    return ("The build waits for you.", f"{question[0].upper()}{question[1:].rstrip('?.')}.") if question else ("", "")


def doing(tasks: build.Tasks, who: str, *, is_writing: bool) -> str:
    """What that agent does for the build now, in a word or two; "" where it does nothing.

    Its daemon opens worktrees and runs the gate by itself, all else `is_writing`.
    """
    what, task = tasks.due
    if what is None or who != tasks.next_turn or not (is_writing or what in (Due.ASSIGN, Due.GATE)):
        return ""
    return f"{_DOES.get(what, '')} {task.id if task else ''}".strip()


def under_way(tasks: build.Tasks, name: Callable[[str], str]) -> str:
    """What is done now, in a sentence."""
    what, task = tasks.due
    at = f" task {task.id}, attempt {max(task.iteration, 1)} of {build.last_attempt(tasks, task)}" if task else ""
    return f"{name(tasks.next_turn)} {_DOES[what]}{at}." if what in _DOES else ""


def ended(dialog: Dialog) -> tuple[str, str]:
    """What came of a build that has ended, and what is left to do, in a sentence each."""
    known = dialog.state.build
    ready = sum(task.state == APPROVED for task in known.all)
    they = "it" if ready == 1 else "them"
    if ready and known.rules:
        left = f"; nothing of {they} is on {known.rules.branch} yet."
        return f"{build.came_of(known)}{left}", f"Look at {they}, and merge {they}."
    is_merged = any(one.state == MERGED for one in known.all)
    return f"{build.came_of(known)}.", "" if is_merged else "Say what they should do now."


# -- The board ------------------------------------------------------------------------------------------------------

# States of a task, and what its gate said, in words; and the look of their pills.
_STATES = {"confirmed": "to be done", "assigned": "at work", "stuck": "waits for you", "error": "cannot go on"}
_TONES = {
    **dict.fromkeys(("approved", "merged", "passed"), "state-approved"),
    **dict.fromkeys(("stuck", "error", "failed", "timeout"), "state-rejected"),
    **dict.fromkeys(("proposed", "asked", "untested"), "state-open"),
}


def tasks_piece(dialog: Dialog, look: Look) -> str:
    """The board of a build's tasks."""
    known = dialog.state.build
    if known.rules is None:
        return fragment("silent", query="")
    found, is_over = rows(dialog, look), dialog.state.outcome is not None
    return fragment(
        "tasks",
        rows=found,
        done=sum(row.task.state in (APPROVED, MERGED) for row in found),
        ready=sum(row.task.state == APPROVED for row in found),
        branch=known.rules.branch,
        needed=("", "") if is_over else asked(known),
        acts=[] if is_over else acts_of(known),
        over=is_over,
        why_of=why_of,
        **_words(known.rules),
    )


def _words(rules: Build) -> dict[str, Any]:
    """How the templates tell of tasks."""
    return {
        "pills": lambda task: list(_pills(task, rules)),
        "facts": lambda row: " · ".join(filter(None, _facts(row))),
        "review": _review,
        "numbers": _before,
    }


def _pills(task: Task, rules: Build) -> Iterator[tuple[str, str]]:
    """The state of a task and its gate, each in a word with its look."""
    of = f" · attempt {task.iteration} of {task.spent + rules.iterations}"
    if task.state == SUBMITTED:
        waits = "waits for you" if task.gate == "asked" else "in review" if task.gate in RAN else "being tested"
        yield waits + of, "state-open" if task.gate == "asked" else ""
    else:
        yield _STATES.get(task.state, task.state) + of * (task.state == ASSIGNED), _TONES.get(task.state, "")
    if task.commit and task.gate not in ("", "asked"):
        yield build.tested(task), _TONES.get(task.gate, "")
    if task.reviewer == "USER" and task.state in (APPROVED, MERGED):
        yield "by you", ""


def _review(task: Task) -> str:
    """What the last review came to; of an attempt that is over while the next one runs."""
    before = "the attempt before: " if task.state == ASSIGNED else ""
    return f"{before}{task.score} of 100" if task.score is not None else ""


def _before(task: Task) -> str:
    return ", ".join(f"{number:03}" for number in task.after)


def _facts(row: Row) -> Iterator[str]:
    """Score, size, what comes before it and the estimate."""
    task = row.task
    yield _review(task)
    if row.diff is not None and task.state != ASSIGNED:
        yield row.diff.stat.replace(" -", "\u00a0-")
    if task.state in (PROPOSED, CONFIRMED):
        yield f"after {_before(task)}" if task.after else ""
        yield f"{task.hours:g} h" if task.hours else ""


def task_piece(dialog: Dialog, number: int, figures: Look, patches: Look) -> str:
    """One task with its diff, as text. Raises `BadInput` where there is none of that number."""
    rules = dialog.state.build.rules
    row = next((row for row in rows(dialog, figures) if row.task.number == number), None)
    if rules is None or row is None:
        raise BadInput(f"there is no task {number}", fix="look at them all: dialogd tasks")
    names = {**names_of(dialog), USER_NAME: "You", SYSTEM_NAME: "dialogd"}
    reviews = [event.fields for event in row.events if event.type == "PR_FEEDBACK"]
    entries = {event.entry for event in row.events}
    return fragment(
        "task",
        row=row,
        task=row.task,
        diff=patches(row.task.base, row.task.commit) if row.task.commit else None,
        feedback=reviews[-1] if reviews else None,
        found=[one for one in findings(dialog) if one.entry in entries],
        criteria=rules.criteria,
        who=lambda one: names.get(one, one),
        visible=visible,
        lines=_patch_lines,
        **_words(rules),
    )


def _patch_lines(patch: str) -> Iterator[tuple[str, str]]:
    """The lines of a patch as text, each with what it does."""
    for line in patch.removesuffix("\n").split("\n"):
        does = {"+": "added", "-": "deleted", "@": "place"}.get(line[:1], "")
        yield "" if line.startswith(("+++ ", "--- ")) else does, visible(line)


# -- The end, and what becomes of it ----------------------------------------------------------------------------------


def end_of_build(dialog: Dialog, rules: Build, **told: Any) -> str:
    """The card of a build that has ended: what became of its tasks, the moderator's summary, how to take it over.

    `told` is what the cards of all ends tell: plan, figures, failures, advice, players.
    """
    outcome, tasks = dialog.state.outcome, rows(dialog)
    said = next((e for e in reversed(dialog.turns) if outcome is not None and e.id == outcome.entry), None)
    ready = [row.task for row in tasks if row.task.state == APPROVED]
    return fragment(
        "end_of_build",
        title=build.came_of(dialog.state.build),
        said=words_of(said) if said is not None and said.by == rules.moderator else "",
        rows=tasks,
        untested=[task.id for task in ready if task.gate == "untested"],
        ready=bool(ready),
        branch=rules.branch,
        **told,
        **_words(rules),
    )


def takeover_piece(log: LogFile, repo: Path, onto: str) -> str:
    """What a merge would do, or, where the branch has moved, a rebase; else why neither can be done."""
    rules = person.rules_of_build(log.read())
    told: dict[str, Any] = {"repo": visible(str(repo)), "onto": onto, "what": None, "refused": None, "unsaid": []}
    try:
        told["what"] = what = person.takeover(log, repo, onto)
        told["unsaid"] = [one.task.id for one in approvals(log.read()) if one.wants_word and one.task in what.approved]
    except DialogdError as error:
        told["refused"] = error
        try:
            moved = person.carried_over(log, repo, onto)
            told["what"] = moved if moved.approved else None
        except DialogdError:
            pass  # what was refused first is told
    return fragment("takeover", **told, **_words(rules))

"""How a dialog stands on the page, its agents and its end; a build's door: its tasks, and the person's word on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import Field

from dialogd import person
from dialogd.agent.loop import Agent
from dialogd.backends.seats import start_again
from dialogd.errors import BadInput, DialogdError, Refused
from dialogd.protocol import build, lifecycle
from dialogd.protocol.build import Due, Task
from dialogd.protocol.decide import time_left
from dialogd.protocol.model import ANY, USER, Outcome
from dialogd.protocol.rules import Build
from dialogd.protocol.state import Dialog, Spent, in_dollars, total
from dialogd.protocol.text import dollars, in_words, listed, one_line, visible
from dialogd.server import wire
from dialogd.server.page_entries import Seats, cast, changed, fragment
from dialogd.store.disk import StateDir
from dialogd.store.logfile import LogFile, wall_time
from dialogd.store.registry import home_port
from dialogd.tasks.approvals import approvals
from dialogd.views.builds import Look, Row, doing, rows, why_of
from dialogd.views.flow import SYSTEM_NAME, USER_NAME, names_of
from dialogd.views.standing import phase, running
from dialogd.views.words import words_of

FRESH = 0.5  # seconds for which an answer of another daemon is good enough
PATIENCE = 0.3  # seconds to wait for one; a daemon that is slow is asked in the background
LIVE = "live session, keeps its own permissions (may write to its project)"

Healths = Mapping[str, Mapping[str, Any] | None]


class Neighbours:
    """The other daemons' last known health, asked rarely and with a short timeout."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._known: Healths = {}
        self._asked_at = 0.0
        self._asking: asyncio.Task[None] | None = None

    async def healths(self) -> Healths:
        """Answers of `GET /health` by agent id; None without an answer, missing while not asked yet."""
        if (self._asking is None or self._asking.done()) and time.monotonic() - self._asked_at > FRESH:
            self._asking = asyncio.create_task(self._ask())
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=PATIENCE)
        return self._known

    async def _ask(self) -> None:
        self._known = await self._agent.peers.healths(self._agent.dialog, str(self._agent.file.path))
        self._asked_at = time.monotonic()


# -- Where a dialog stands --------------------------------------------------------------------------------------------

_REHEARSAL = "A rehearsal, no model is asked. "
_START = {"not_started": "Start", "lain": "Go on"}  # what a daemon waits for, and the button that ends it
_NOTHING = {
    "start": "", "again": "", "home": 0, "phase": "no_dialog", "dialog": "", "topic": "", "agents": [], "total": 0,
    "where": "", "left": [], "cost": "", "tokens": 0, "questions": [], "calls": [], "outcome": None, "approved": "",
    "proposals": [], "step": False, "paused": False, "changed_from": 0, "changed": {}, "build": False, "acts": [],
}  # fmt: skip


def page_state(
    agent: Agent, own: wire.Health, state_dir: StateDir, healths: Healths, problem: str = ""
) -> dict[str, Any]:
    """Everything around the conversation, of the dialog as last read.

    `problem` says why it could not be read just now.
    """
    dialog, file = agent.dialog, str(agent.file.path)
    taken = {"allowed", "signals", "warnings", "turn", "turn_of", "file", "shared"}
    stands = {**_NOTHING, **own.model_dump(include=taken), "me": agent.me, "problem": problem}
    if dialog is None:
        words = problem or f"There is no dialog at {file} yet."
        needed = "" if problem else "Write one there, or by dialogd new: this page shows it at once."
        return stands | {"words": words, "needed": needed}
    state, players, healths = dialog.state, cast(dialog), {**healths, agent.me: own.model_dump()}
    agents = [_agent(agent, dialog, players, one.id, healths, state_dir) for one in dialog.header.agents]
    calls = [
        {**call, "name": players.name(str(call.get("agent")))}
        for who in dict.fromkeys((agent.me, *healths))
        for call in (healths[who] or {}).get("calls") or ()
    ]
    start = _start_button(dialog, healths)
    words, needed = _stand(dialog, healths, start, is_asked=bool(calls))
    changed_from, versions = changed(dialog)
    asked = [{**one.model_dump(), "name": players.name(one.asker)} for one in own.questions]
    is_rehearsal = dialog.is_rehearsed and state.outcome is None  # the card of the end says it by itself
    return stands | {
        "words": f"{_REHEARSAL if is_rehearsal else ''}{words}",
        "needed": needed,
        "start": start,
        "again": lifecycle.continued(dialog),
        "home": home_port(state_dir) or 0,
        "phase": phase(dialog, thinking=any(one["state"] == "thinking" for one in agents)),
        "dialog": dialog.id,
        "topic": dialog.header.topic or dialog.header.title,
        "agents": agents,
        "total": len(dialog.entries),
        "where": _sentence(lifecycle.in_words(dialog)) if state.outcome is None else "",
        "left": list(_left(dialog)),
        **_spent(total(state.spent)),
        "questions": asked,
        "calls": calls,
        "outcome": _outcome(dialog),
        "approved": state.approved,
        "proposals": [
            {"ref": made.ref, "words": one_line(made.text, 80)}
            for made in reversed(state.table.proposals)
            if made.ref not in state.table.vetoed
        ],
        "step": state.hand.step,
        "paused": state.paused,
        "changed_from": changed_from,
        "changed": versions,
        "build": bool(state.build),
        "acts": acts_of(state.build) if USER in state.owing and state.outcome is None else [],
    }


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _start_button(dialog: Dialog, healths: Healths) -> str:
    """What the button is called for which those who owe a turn wait; "" where they wait for nothing of the kind."""
    all_ = [agent.id for agent in dialog.header.agents]
    owing = all_ if ANY in dialog.state.owing else dialog.state.owing
    waits = ((healths.get(who) or {}).get("waiting") or {} for who in owing)
    return next((_START[one["status"]] for one in waits if one.get("status") in _START), "")


ANSWER = "Answer it below."


def _stand(dialog: Dialog, healths: Healths, start: str, *, is_asked: bool) -> tuple[str, str]:
    """What happens, and what is needed of the person, each in a sentence; "" where nothing is needed."""
    state, outcome, (waits, what) = dialog.state, dialog.state.outcome, asked(dialog.state.build)
    if outcome is not None:
        return _stand_at_end(dialog, outcome)
    if waits and USER in state.owing and not (is_asked or state.paused):
        return waits, what
    here = [agent.id for agent in dialog.header.agents if agent.id in healths]
    stands = running(dialog, {who: healths[who] for who in here}, is_starting=False, end="")
    gone = [who for who in here if who in state.owing and healths[who] is None]
    needs = {
        "Approve or refuse it.": is_asked,
        "Press Resume to go on.": state.paused,
        ANSWER: state.questions.text,
        f"Press {start}.": start,
        f"Start {listed(gone)}: the command stands at the name.": gone,
        "Write below, or let the next agent speak.": stands.waits_for_you,
    }
    needed = next((what for what, is_needed in needs.items() if is_needed), "")
    if needed == ANSWER:  # the question itself stands there
        name = cast(dialog).name(state.questions.asker) if state.questions.asker else "The dialog"
        return f"{name} asks you a question.", needed
    if start == _START["lain"]:
        return "This dialog has rested for a while.", needed
    return _sentence(stands.words), needed


def _stand_at_end(dialog: Dialog, outcome: Outcome) -> tuple[str, str]:
    if dialog.state.build:
        words, needed = ended(dialog.state.build)
        return words if outcome.is_complete else f"{_ended(outcome)} {words}", needed
    is_new = outcome.is_agreed and not dialog.state.approved
    return _ended(outcome), "Approve it, or say what is wrong." if is_new else ""


def _ended(outcome: Outcome) -> str:
    if outcome.from_session:
        return f"The dialog was stopped by {outcome.from_session}, not by you."
    return _sentence(outcome.words)


def _outcome(dialog: Dialog) -> dict[str, Any] | None:
    if (ended := dialog.state.outcome) is None:
        return None
    return {
        **{name: getattr(ended, name) for name in ("kind", "is_agreed", "reason", "entry")},
        "words": f"{_REHEARSAL if dialog.is_rehearsed else ''}{_ended(ended)}",
    }


def _left(dialog: Dialog) -> Iterator[dict[str, Any]]:
    """What is left of each limit: figures, `words` for people, `part` from 1 (all) down to 0."""
    state, limits, spent = dialog.state, dialog.state.limits, total(dialog.state.spent)
    remaining = time_left(dialog, wall_time())
    used: dict[str, tuple[float | None, float]] = {
        "turns": (limits.max_turns, state.counted),
        "rounds": (limits.max_rounds, state.floor.rounds),
        "time": (limits.max_time, (limits.max_time or 0.0) - remaining) if remaining is not None else (None, 0.0),
        "budget": (limits.budget, spent.usd),
        "tokens": (limits.tokens, spent.tokens),
        "size": (limits.max_size, dialog.size),
    }
    for name, (limit, gone) in used.items():
        if limit is None:
            continue
        left = max(0.0, float(limit - gone))
        words = {
            "time": f"{in_words(round(left))} left",
            "budget": f"{dollars(left)} of {dollars(limit)} left",
            "size": f"{left / 1000:,.0f} of {limit / 1000:,.0f} kB left",
        }.get(name, f"{left:,.0f} of {limit:,.0f} {name} left")
        yield {"name": name, "limit": limit, "left": left, "part": min(1.0, left / limit), "words": words}


# -- An agent, by what its daemon says --------------------------------------------------------------------------------

_USUAL = frozenset({"not_my_turn", "waiting_for_user", "paused", "not_started", "lain", "no_turn_yet", "unknown_turn"})


def _agent(
    agent: Agent, dialog: Dialog, players: Seats, who: str, healths: Healths, state_dir: StateDir
) -> dict[str, Any]:
    """What an agent is, does and has cost."""
    said, state = healths.get(who) or {}, dialog.state
    alive = bool(said) if who in healths else None
    owes, failed = bool({who, ANY} & set(state.owing)), who in state.debts.failed
    absent = lifecycle.why_absent(dialog, who, command=False)
    # An answer may be older than the turn that paid the debt: who owes nothing thinks no more.
    work = (said.get("working_on") or {}) if owes else {}
    told = agent.hub.standing.get(who)
    busy = told.state if told is not None and told.is_at_it else "thinking"
    start = start_again(state_dir, agent.file.path, dialog.id, who)
    waiting, reason = said.get("waiting") or {}, "" if work else absent
    if alive is False and not absent:
        reason = f"no daemon of it answers; start it in a terminal of its own: {start}"
    elif not (work or absent or failed) and waiting.get("status") not in _USUAL:
        reason = str(waiting.get("reason") or "")  # what everybody waits for is said once, at the top
    # At tasks it is also at it while its daemon runs the gate, and nothing is written.
    is_at_it = owes and alive is not False and not failed and not state.paused and state.outcome is None
    states = {busy: work, "absent": absent, "failed": failed, "stopped": alive is False, "idle": True}
    return {
        "id": who,
        "name": players.names[who],
        "seat": players.seats[who],
        "url": agent.peers.of(dialog).get(who, ""),
        "own": who == agent.me,
        "start": start,
        "alive": alive,
        "state": next(name for name, is_it in states.items() if is_it),
        "turn": work.get("turn"),
        "since": work.get("seconds"),
        "reason": reason,
        "doing": doing(state.build, who, is_writing=bool(work)) if is_at_it else "",
        "backend": LIVE if said.get("backend") == "live" else str(said.get("backend") or ""),
        "model": str(said.get("model") or ""),
        "owes": who in state.owing,
        "failed": failed,
        **_spent(state.spent.get(who, Spent())),
    }


def _spent(spent: Spent) -> dict[str, Any]:
    return {"cost": cost(spent), "tokens": spent.tokens}


def cost(spent: Spent) -> str:
    """The known spending in words; "" for none."""
    return in_dollars(spent).replace("unknown", "cost unknown") if spent.entries else ""


# -- A build: the routes by which the person acts on its tasks --------------------------------------------------------

Write = Callable[..., Awaitable[wire.Done]]  # carries out a command of the person; unless `starts=False` it starts it


class OnTasks(wire.Meant):
    """What is said of a build's tasks; what a change leaves out stays as it is."""

    act: Literal["confirm", "drop", "retry", "accept", "change", "clean"]
    tasks: str | int = Field("", description="their numbers: 003, or 1, 3; empty: those that wait for it")
    reason: str = Field("", description="why, of a drop or a retry", max_length=1_000_000)
    description: str = Field("", description="of a change: what is to be done", max_length=100_000)
    criteria: list[str] = Field([], description="of a change: what must be true of it", max_length=100)
    after: str = Field("", description="of a change: which tasks come first, or none", max_length=1_000)
    hours: str = Field("", description="of a change: an estimate", max_length=20)


class OnGate(wire.Meant):
    """What becomes of the gate where there is no sandbox; or another command for it."""

    how: Literal["run", "untested", "command"]
    command: str = Field("", description="of `command`: what tests the tasks from now on", max_length=10_000)


class OnBranch(wire.Meant):
    """What is to be done with what is approved: with exactly that commit, or not at all."""

    commit: str = Field(description="the commit that the branch is to go to; of a rebase where it is", max_length=64)
    onto: str = Field("", description="the branch; empty: the one that the build began from", max_length=250)


class Merge(OnBranch):
    """What is to be merged, and whether that overrules what speaks against it."""

    commits: bool = Field(False, description="keep each attempt as the commit that it is: a fast-forward")
    anyway: bool = Field(False, description="also what `dialogd tasks verify` would refuse; the file says so")


def build_routes(app: FastAPI, agent: Agent, write: Write) -> None:
    """Add the routes of this module."""
    log, secrets = agent.file, agent.secrets

    @app.post("/tasks")
    async def tasks(said: OnTasks) -> wire.Done:
        """Confirm, change, drop, retry or accept tasks of a build; clean up behind those that are over."""
        named = str(said.tasks)
        if said.act == "clean":
            return await write(lambda: person.clean_up(log, repository(log.read(), agent), named), starts=False)
        if said.act == "change":
            parts = said.model_dump(include={"description", "criteria", "after", "hours"})
            return await write(lambda: person.change_task(log, named, secrets=secrets, **parts))
        return await write(lambda: person.tasks(log, said.act, named, said.reason, secrets=secrets))

    @app.post("/gate")
    async def gate(said: OnGate) -> wire.Done:
        """Let a build's gate run without a sandbox on the tree that waits, review it untested, or change the gate."""
        if said.how == "command":
            return await write(lambda: person.another_gate(log, said.command, secrets=secrets))
        return await write(lambda: person.gate(log, said.how))

    @app.post("/merge")
    async def merge(said: Merge) -> wire.Done:
        """Bring what is approved to the person's branch, a commit for each task, if its last one is that named."""

        def merged() -> Dialog:
            repo = repository(log.read(), agent)
            what = person.takeover(log, repo, said.onto, commits=said.commits)
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
    builder = agent.builder
    if (why := builder.refuses(dialog)) or builder.flags.repo is None:
        raise Refused(f"cannot be done from here: {why}", fix="do it in a terminal: dialogd build, dialogd tasks")
    return builder.flags.repo


def _same(commit: str, named: str) -> None:
    """Raise `Refused` where the person has seen another commit; the beginning of its id names it."""
    if len(named) < 7 or not commit.startswith(named):
        raise Refused(f"it would be commit {commit[:12]} now, not {named[:12]}", fix="look again, and name that one")


# -- What is done, and what is asked ----------------------------------------------------------------------------------

# The buttons for what a build asks of the person: what each is called, what it sends where, what it says then.
_BUTTONS = {
    Due.CONFIRM: [("Confirm all", "/tasks", {"act": "confirm"}, "Confirmed: the work begins.")],
    Due.ALLOW: [
        ("Run it, as me", "/gate", {"how": "run"}, "It runs."),
        ("Review it untested", "/gate", {"how": "untested"}, "It is reviewed untested."),
    ],
    Due.STUCK: [
        ("Try again", "/tasks", {"act": "retry"}, "It is tried again."),
        ("Accept it as it is", "/tasks", {"act": "accept"}, "Accepted."),
        ("Drop it", "/tasks", {"act": "drop"}, "Dropped."),
    ],
}


def acts_of(tasks: build.Tasks) -> list[dict[str, Any]]:
    """The buttons that answer what the build waits for; [] where it does not wait for the person."""
    what, task = tasks.due_of(USER)
    named = {"tasks": task.id} if what is Due.STUCK and task is not None else {}
    return [
        {"label": label, "path": path, "body": {**body, **named}, "done": done}
        for label, path, body, done in (_BUTTONS.get(what, []) if what else [])
        if body != {"act": "accept"} or (task is not None and task.state == build.STUCK)
    ]


def asked(tasks: build.Tasks) -> tuple[str, str]:
    """That the build waits for the person, and with what; "" where it does not."""
    question = build.question(tasks)
    return ("The build waits for you.", _sentence(question.rstrip("?."))) if question else ("", "")


def ended(tasks: build.Tasks) -> tuple[str, str]:
    """What came of a build that has ended, and what is left to do, in a sentence each."""
    states = {task.state for task in tasks.all}
    left = "Look at what is approved, and merge it." if build.APPROVED in states else "Say what they should do now."
    return f"{build.came_of(tasks)}.", "" if build.MERGED in states and build.APPROVED not in states else left


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
        done=sum(row.task.state in build.KEPT for row in found),
        ready=sum(row.task.state == build.APPROVED for row in found),
        branch=known.rules.branch,
        left=any(row.task.branch and row.task.state in (build.MERGED, build.DROPPED) for row in found),
        gate=known.rules.gate,
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
    if task.state == build.SUBMITTED:
        waits = "waits for you" if task.gate == "asked" else "in review" if task.gate in build.RAN else "being tested"
        yield waits + of, "state-open" if task.gate == "asked" else ""
    else:
        yield _STATES.get(task.state, task.state) + of * (task.state == build.ASSIGNED), _TONES.get(task.state, "")
    if task.commit and task.gate not in ("", "asked"):
        yield build.tested(task), _TONES.get(task.gate, "")
    if task.reviewer == "USER" and task.state in build.KEPT:
        yield "by you", ""


def _review(task: Task) -> str:
    """What the last review came to."""
    return f"{task.score} of 100" if task.score is not None else ""


def _before(task: Task) -> str:
    return ", ".join(f"{number:03}" for number in task.after)


def _facts(row: Row) -> Iterator[str]:
    """Score, size, what comes before it and the estimate."""
    task = row.task
    yield _review(task)
    if row.diff is not None and task.state != build.ASSIGNED:
        yield row.diff.stat.replace(" -", "\u00a0-")
    if task.state in (build.PROPOSED, build.CONFIRMED):
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
        found=[one for one in dialog.state.table.findings if one.entry in entries],
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
    said = dialog.entry(outcome.entry) if outcome is not None else None
    ready = [row.task for row in tasks if row.task.state == build.APPROVED]
    return fragment(
        "end_of_build",
        title=build.came_of(dialog.state.build),
        decided=outcome is not None and outcome.is_agreed,
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

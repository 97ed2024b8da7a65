"""A build: tasks that a lead carries out and a moderator reviews. What became of each, and what is due. Pure.

[TASK_PROPOSED: description | criterion; criterion | after 1, 2 | 2 h]     by the moderator; 001, 002 … in file order
[IMPROVEMENT: category | priority | impact | hours | rationale | files | criterion; criterion]     likewise
[TASK: 001 | state | …] and [GATE: 001 | state | …]     records of daemons, and the person's word on them
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dialogd.protocol.marks import fields_of
from dialogd.protocol.model import SYSTEM, USER, Draft, Mark, Said
from dialogd.protocol.rules import Build, Rules

# States of a task, in the order in which it passes through them; the last ones are ends.
PROPOSED, CONFIRMED, ASSIGNED, SUBMITTED, STUCK, ERROR = (
    "proposed", "confirmed", "assigned", "submitted", "stuck", "error",
)  # fmt: skip
APPROVED, MERGED, DROPPED = "approved", "merged", "dropped"
UNDECIDED = "the reviewer did not decide, twice"
DONE = frozenset({APPROVED, MERGED, DROPPED})
UNDER_WAY = frozenset({ASSIGNED, SUBMITTED, STUCK, ERROR})  # at most one task is, and the base stays where it is then
GREEN = frozenset({"passed", "untested"})  # what the gate may have said of a tree that is approved
RAN = frozenset({"passed", "failed", "timeout", "untested"})  # the gate's results; "asked" and "run" come before them
SILENT = 2  # turns in a row in which the moderator plans, and proposes nothing

# What became of the tests of a tree, in the words of every place that shows it.
GATES = {
    "": "not tested yet",
    "passed": "gate passed",
    "failed": "gate failed",
    "timeout": "gate ran out of time",
    "asked": "gate waits for you",
    "run": "gate runs",
    "untested": "untested",
}

_NUMBERS = re.compile(r"\d{1,6}")
_URL = re.compile(r"https?://[!-~]+")
_HOURS = re.compile(r"\d{1,4}(?:\.\d{1,2})?")
_PART = re.compile(r"(.+?)[ :=]+(\d{1,3})(?:\.\d+)?(?: ?/ ?\d{1,3})?")


class Due(enum.Enum):
    """What a build waits for; the value says whose it is: `moderator`, `lead`, or the person (`USER`)."""

    PLAN = ("plan", "moderator")  # tasks are to be proposed, also for what the person wishes after the end
    GOAL = ("goal", USER)  # the moderator finds no task in it
    CONFIRM = ("confirm", USER)  # the proposed ones are to be confirmed, changed or dropped
    ASSIGN = ("assign", "lead")  # the lead's daemon opens a worktree for the next one
    WORK = ("work", "lead")  # the lead works on it
    GATE = ("gate", "lead")  # the lead's daemon runs the gate
    ALLOW = ("allow", USER)  # the gate cannot be run in a sandbox: may it run all the same?
    REVIEW = ("review", "moderator")
    STUCK = ("stuck", USER)  # a task failed too often, or could not be gone on with
    IMPROVE = ("improve", "moderator")  # one improvement, or a pass
    SUMMARY = ("summary", "moderator")  # the last word, which ends the build

    @property
    def by(self) -> str:
        """Whose it is: `moderator`, `lead`, or USER."""
        return self.value[1]


# What a daemon's record of a task counts as: whose it must be, what must be due of that task, the state after it.
_RECORDS: Mapping[str, tuple[str, Collection[Due], str]] = {
    "assigned": (SYSTEM, {Due.ASSIGN}, ASSIGNED),
    "submitted": ("lead", {Due.WORK}, SUBMITTED),
    "carried": (SYSTEM, {Due.ASSIGN}, SUBMITTED),  # a submission that was brought to another base
    "error": (SYSTEM, {Due.ASSIGN, Due.WORK, Due.GATE}, ERROR),
    "changes": ("moderator", {Due.REVIEW}, ASSIGNED),
    "approved": ("moderator", {Due.REVIEW}, APPROVED),
    "stuck": ("moderator", {Due.REVIEW}, STUCK),
    "dropped": ("moderator", {Due.REVIEW}, DROPPED),
}
# The person's words: the states in which each counts, and the state after it, "" for the same.
_WORDS: Mapping[str, tuple[Collection[str], str]] = {
    "confirmed": ({PROPOSED}, CONFIRMED),
    "changed": ({PROPOSED, CONFIRMED}, ""),
    "dropped": ({PROPOSED, CONFIRMED, DROPPED, *UNDER_WAY}, DROPPED),
    "retry": ({STUCK, ERROR}, ASSIGNED),
    "accepted": ({STUCK}, APPROVED),
    "published": ({PROPOSED, CONFIRMED, *UNDER_WAY, *DONE}, ""),
    "merged": ({APPROVED}, MERGED),
}


@dataclass(frozen=True, slots=True)
class Request:
    """A pull request that the person had opened for a commit of a task; `number` is None where nobody knows it."""

    url: str
    number: int | None
    commit: str


@dataclass(frozen=True, slots=True)
class Task:
    """One task, as the file tells of it.

    why        of its state, in words; of what is merged: what the person overruled
    after      numbers of the tasks that come first; `hours` as estimated
    iteration  which attempt it is, counted on whatever happens; those up to `spent` are of earlier rounds: each word of
               the person's to try it again, or on another base, begins a round
    base       the commit from which it started; `commit` and `tree` are what was submitted last, `ref` the proposal
               under which that is reviewed, `gate` what the gate said of it, `log` the hash of its output
    reviewer   whose word approved it: an agent's id, or USER; `is_named`: a record names the tree of that approval
    carried    the commits `base..commit` that are to be carried to another base; "" for none
    was        its state before an error, and before a review that did not decide; `undecided` counts those
    requests   the pull requests that were opened for its commits
    asks       for an improvement: category, priority, impact and files
    entries    the ids of the entries in which it was proposed, submitted last and reviewed last
    """

    number: int
    description: str
    criteria: tuple[str, ...] = ()
    after: tuple[int, ...] = ()
    hours: float | None = None
    state: str = PROPOSED
    why: str = ""
    iteration: int = 0
    spent: int = 0
    branch: str = ""
    base: str = ""
    commit: str = ""
    tree: str = ""
    ref: str = ""
    gate: str = ""
    log: str = ""
    score: int | None = None
    author: str = ""
    reviewer: str = ""
    is_named: bool = False
    carried: str = ""
    was: str = ""
    undecided: int = 0
    requests: tuple[Request, ...] = ()
    asks: Mapping[str, str] = field(default_factory=dict)
    entries: tuple[str, str, str] = ("", "", "")

    @property
    def id(self) -> str:
        """Its number as the file has it: `003`."""
        return f"{self.number:03}"

    @property
    def request(self) -> Request | None:
        """The pull request of the commit that was submitted last."""
        return next((one for one in self.requests if one.commit == self.commit), None)

    @property
    def is_improvement(self) -> bool:
        """True for an improvement."""
        return bool(self.asks)


@dataclass(frozen=True, slots=True)
class Tasks:
    """A build as it stands, False for a dialog that is none: its rules, and all tasks by number.

    `cycles` of improvement there were so far.
    `base` is the last approved commit, "" before the first one: then it is the build's own. `top` is the highest
    number that was given, also to a task of a struck turn. `is_wanted`: the person has said what they want beyond them,
    once they were done. `silent` counts the moderator's turns in a row that planned nothing.
    """

    all: tuple[Task, ...] = ()
    rules: Build | None = None
    cycles: int = 0
    base: str = ""
    top: int = 0
    is_wanted: bool = False
    silent: int = 0

    def __bool__(self) -> bool:
        return self.rules is not None

    @property
    def moderator(self) -> str:
        """Who plans and reviews; "" without a build."""
        return self.rules.moderator if self.rules else ""

    @property
    def lead(self) -> str:
        """Who carries tasks out; "" without a build."""
        return self.rules.lead if self.rules else ""

    @property
    def due(self) -> tuple[Due | None, Task | None]:
        """What is due, and of which task; nothing without a build."""
        return _due(self.rules, self) if self.rules else (None, None)

    @property
    def next_turn(self) -> str:
        """Whose turn it is: an agent's id, or USER; "" without a build."""
        what = self.due[0]
        return {"moderator": self.moderator, "lead": self.lead}.get(what.by, USER) if what else ""

    def reviewed_by(self, me: str) -> Task | None:
        """The task that `me` is to review now, or None."""
        what, task = self.due
        return task if what is Due.REVIEW and me == self.moderator else None

    def of(self, number: int) -> Task | None:
        """The task of that number, or None."""
        return next((task for task in self.all if task.number == number), None)

    def with_(self, task: Task, **changes: object) -> Tasks:
        """The same with this task changed."""
        new = replace(task, **changes)  # type: ignore[arg-type]
        return replace(self, all=tuple(new if one.number == task.number else one for one in self.all))


def _due(build: Build, tasks: Tasks) -> tuple[Due, Task | None]:
    current = next((task for task in tasks.all if task.state in UNDER_WAY), None)
    if current is not None:
        if current.state in (STUCK, ERROR):
            return Due.STUCK, current
        if current.state == ASSIGNED:
            return Due.WORK, current
        if current.gate in RAN:
            return Due.REVIEW, current
        return (Due.ALLOW if current.gate == "asked" else Due.GATE), current
    if not tasks.all or tasks.is_wanted:
        return (Due.PLAN if tasks.silent < SILENT else Due.GOAL), None
    if waiting := next((task for task in tasks.all if task.state == PROPOSED), None):
        return Due.CONFIRM, waiting
    if ready := next((task for task in tasks.all if task.state == CONFIRMED and _is_ready(tasks, task)), None):
        return Due.ASSIGN, ready
    has_result = any(task.state in (APPROVED, MERGED) for task in tasks.all)
    return (Due.IMPROVE if has_result and tasks.cycles < build.cycles else Due.SUMMARY), None


def _is_ready(tasks: Tasks, task: Task) -> bool:
    """True once the tasks before it have ended; they are all older, so that no two wait for one another."""
    return all(other is None or other.state in DONE for other in map(tasks.of, task.after))


def most_turns(tasks: Tasks) -> int:
    """The most turns that it may take from here: every attempt of every known task, its reviews, the summary."""
    each, cycles = (2 * tasks.rules.iterations, tasks.rules.cycles) if tasks.rules else (0, 0)
    open_ = [task for task in tasks.all if task.state not in DONE]
    work = sum(each - 2 * max(task.iteration - task.spent - 1, 0) for task in open_)
    return (not tasks.all or tasks.is_wanted) + max(work, 0) + max(cycles - tasks.cycles, 0) * (1 + each) + 1


def tested(task: Task) -> str:
    """What the gate said of what a task submitted, in words."""
    return GATES.get(task.gate, task.gate)


def red(tasks: Tasks) -> Task | None:
    """The approved task that a merge would end with, where its gate is red: only the person can overrule that."""
    ready = (task for task in tasks.all if task.state == APPROVED and task.commit == tasks.base)
    return next((task for task in ready if task.gate not in GREEN), None)


def last_attempt(tasks: Tasks, task: Task) -> int:
    """The number of the attempt after which the person decides."""
    return task.spent + (tasks.rules.iterations if tasks.rules else 0)


def expected(rules: Rules, count: int) -> Tasks:
    """Tasks of which nothing is known but how many there will be."""
    return Tasks(tuple(Task(number, "", state=CONFIRMED) for number in range(1, count + 1)), rules.build)


def is_last_word(tasks: Tasks, marks: Sequence[Mark]) -> bool:
    """True for a turn of the moderator's that ends the build: its summary, or the answer to a wish without a task."""
    what, _ = tasks.due
    is_answer = what is Due.PLAN and tasks.is_wanted and not any(mark.name == "TASK_PROPOSED" for mark in marks)
    return what is Due.SUMMARY or is_answer


# -- What the marks say -----------------------------------------------------------------------------------------------


def value_of(mark: Mark, key: str) -> str:
    """The value of a field that begins with `key` and a blank; "" without one."""
    found = (part for part in fields_of(mark) if part.casefold().startswith(f"{key} "))
    return next(found, "")[len(key) :].strip()


def _list(field_: str) -> tuple[str, ...]:
    return tuple(part for part in (" ".join(one.split()) for one in field_.split(";")) if part)


def proposed(mark: Mark, number: int, entry: str) -> Task:
    """The task that a TASK_PROPOSED or an IMPROVEMENT asks for; it can only come after older ones."""
    fields = (*fields_of(mark), *[""] * 7)
    if mark.name == "IMPROVEMENT":
        category, priority, impact, hours, rationale, files, criteria = fields[:7]
        asks = {"category": category, "priority": priority, "impact": impact, "files": files}
        return Task(number, rationale, _list(criteria), (), _hours(hours), asks=asks, entries=(entry, "", ""))
    description, criteria, after, hours = fields[:4]
    return Task(number, description, _list(criteria), _before(after, number), _hours(hours), entries=(entry, "", ""))


def _before(numbers: str, number: int) -> tuple[int, ...]:
    """The older tasks that a text names."""
    return tuple(dict.fromkeys(n for n in map(int, _NUMBERS.findall(numbers)) if 0 < n < number))


def _hours(text: str) -> float | None:
    match = _HOURS.search(text)
    return float(match[0]) if match else None


def points(build: Build, marks: Sequence[Mark]) -> dict[str, int]:
    """The points that a review gives, by criterion, none above its maximum; criteria that it leaves out are missing."""
    found: dict[str, int] = {}
    for mark in marks:
        for part in fields_of(mark) if mark.name == "SCORE" else ():
            match = _PART.fullmatch(part)
            name = "_".join(re.findall("[a-z]+", match[1].casefold())) if match else ""
            if match and name in build.criteria:
                found[name] = min(int(match[2]), build.criteria[name])
    return found


def total(build: Build, marks: Sequence[Mark]) -> int | None:
    """The score: the sum of all criteria; None where one is missing."""
    found = points(build, marks)
    return sum(found.values()) if len(found) == len(build.criteria) else None


def unscored(build: Build, marks: Sequence[Mark]) -> list[str]:
    """The criteria for which a review gives no points, in words."""
    found = points(build, marks)
    return [name.replace("_", " ") for name in build.criteria if name not in found]


def score_form(build: Build | None) -> str:
    """The SCORE that a review gives, with the most that each part may have; "" without a build."""
    if build is None:
        return ""
    parts = (f"{name.replace('_', ' ')} 0-{most}" for name, most in build.criteria.items())
    return f"[SCORE: {' | '.join(parts)}]"


def refused(tasks: Tasks, me: str, mark: Mark, earlier: Sequence[Mark]) -> str:
    """Why a mark of a build does not count, of agent `me`, after `earlier` ones of the same reply; "" where it does."""
    what, task = tasks.due
    fields = (*fields_of(mark), *[""] * 5)
    if mark.name in ("TASK_PROPOSED", "IMPROVEMENT", "SCORE", "FINDING", "RESOLVED") and me != tasks.moderator:
        return f"{tasks.moderator} alone reviews and proposes tasks"
    ref = mark.value.partition(" ")[0]
    is_it = what is Due.REVIEW and task is not None and task.ref == ref
    wrong = {
        "TASK_PROPOSED": (
            (
                what not in (Due.PLAN, Due.CONFIRM),
                "tasks are proposed before the work begins; the person may change them",
            ),
            (not fields[0], "it has no description"),
        ),
        "IMPROVEMENT": (
            (what is not Due.IMPROVE, "an improvement is proposed once all tasks are done"),
            (any(other.name == "IMPROVEMENT" for other in earlier), "one improvement per cycle"),
            (not fields[4], "it has no rationale"),
        ),
        "SCORE": ((what is not Due.REVIEW, "nothing is reviewed now"),),
        "DECIDE": ((not is_it, f"{ref or 'it'} is not what is reviewed now"),),
    }
    return next((why for is_so, why in wrong.get(mark.name, ()) if is_so), "")


# -- The fold ---------------------------------------------------------------------------------------------------------


def folded(tasks: Tasks, said: Said, *, is_unattended: bool, is_over: bool = False) -> Tasks:
    """The tasks after an entry. Records count where a daemon wrote them, the person's words where the person did.

    With `is_over` the moderator had said its last word: a turn of the person's, but one on tasks, is a wish for more.
    """
    build = tasks.rules
    if build is None:
        return tasks
    if is_over and said.by == USER and said.is_turn and said.ending is None and said.mark("TASK") is None:
        tasks = replace(tasks, is_wanted=True)
    if said.by == USER and said.is_turn:
        tasks = replace(tasks, silent=0)
    if said.by == build.moderator and said.is_turn:
        tasks = _planned(build, tasks, said)
    for mark in said.marks:
        if mark.name == "TASK":
            tasks = _task(build, tasks, said, mark)
        elif mark.name == "GATE":
            tasks = _gate(tasks, said, mark)
        elif mark.name == "APPROVED" and not said.by_hand:
            tasks = _named_tree(build, tasks, said, mark)
    if is_unattended:
        for task in tasks.all:
            if task.state == PROPOSED:
                tasks = tasks.with_(task, state=CONFIRMED)
            elif task.gate == "asked":  # the person left before they allowed it
                tasks = tasks.with_(task, gate="")
    return tasks


def _named_tree(build: Build, tasks: Tasks, said: Said, mark: Mark) -> Tasks:
    """After a record that names an approved tree: by the reviewer's daemon it approves, else the person's word did."""
    task = tasks.of(number_of(mark))
    if task is None or task.state not in (APPROVED, MERGED) or value_of(mark, "tree") != task.tree:
        return tasks
    if task.reviewer == USER and said.by in (USER, SYSTEM):
        return tasks.with_(task, is_named=True)
    if task.reviewer or said.by != build.moderator:
        return tasks
    return replace(tasks.with_(task, reviewer=said.by, is_named=True), base=task.commit)


def _planned(build: Build, tasks: Tasks, said: Said) -> Tasks:
    """After a turn of the moderator: the tasks that it proposes, in place of those that nobody has confirmed."""
    before, reviewed = tasks.due
    if before is Due.REVIEW and reviewed is not None and said.mark("QUESTION_FOR_USER") is None:
        score = total(build, said.marks)  # what it decides follows among its marks
        score = reviewed.score if score is None else score
        tasks = tasks.with_(reviewed, undecided=reviewed.undecided + 1, score=score)
    new = [mark for mark in said.written if mark.name in ("TASK_PROPOSED", "IMPROVEMENT")]
    if said.is_struck:
        return replace(tasks, top=tasks.top + len(new))
    if said.mark("QUESTION_FOR_USER") is None or new:
        tasks = replace(tasks, is_wanted=False)
    tasks = replace(tasks, silent=tasks.silent + 1 if before is Due.PLAN and not new else 0)
    if before is Due.IMPROVE:
        tasks = replace(tasks, cycles=tasks.cycles + 1)
    if any(mark.name == "TASK_PROPOSED" for mark in new):
        for task in [task for task in tasks.all if task.state == PROPOSED]:
            tasks = tasks.with_(task, state=DROPPED, why="replaced")
    for mark in new:
        task = proposed(mark, tasks.top + 1, said.id)
        tasks = replace(tasks, all=(*tasks.all, task), top=tasks.top + 1)
    return tasks


def number_of(mark: Mark) -> int:
    """The number of the task that a record is about (`001`, `task-001`); 0 for none."""
    match = _NUMBERS.search(fields_of(mark)[0])
    return int(match[0]) if match else 0


def _named(tasks: Tasks, mark: Mark) -> Iterator[Task]:
    """The tasks that a mark names: `001, 002`, or `all`."""
    head = fields_of(mark)[0]
    if head.casefold() == "all":
        yield from tasks.all
        return
    yield from filter(None, (tasks.of(int(number)) for number in dict.fromkeys(_NUMBERS.findall(head))))


def _task(build: Build, tasks: Tasks, said: Said, mark: Mark) -> Tasks:
    """After a record of a task, or the person's word on some. What follows from nothing, as of a struck turn, is none.

    Each event leads to the state that its table names; what else it changes stands here.
    """
    fields = (*fields_of(mark), *[""] * 6)
    event = fields[1].casefold()
    if said.by == USER:
        return _by_hand(tasks, mark, event, fields) if event in _WORDS or event == "rebase" else tasks
    what, task = tasks.due
    if said.by_hand or task is None or task.number != number_of(mark):
        return tasks
    if event == "submitted" and task.carried:
        event = "carried"
    whose, when, state = _RECORDS.get(event, ("", (), ""))
    if what not in when or said.by != {"lead": build.lead, "moderator": build.moderator}.get(whose, whose):
        return tasks
    rest, reviewed = " | ".join(fields_of(mark)[2:]), (*task.entries[:2], said.id)
    again = {"iteration": task.iteration + 1, "gate": ""}
    new: dict[str, Any] = {}
    match event:
        case "assigned":
            new = {"branch": value_of(mark, "branch"), "base": value_of(mark, "base"), "carried": "", **again}
            new["why"] = value_of(mark, "conflict")
        case "submitted" | "carried":
            new = _submission(task, said, mark, is_carried=event == "carried")
        case "changes":
            new = {"why": rest, "entries": reviewed, "score": _score(mark), **again}
        case "approved" if task.gate in GREEN:
            new = {"score": _score(mark), "why": "", "entries": reviewed}
        case "stuck" | "error" | "dropped":
            was = task.state if event == "error" or rest == UNDECIDED else ""
            new = {"why": rest, "was": was, "score": _score(mark) or task.score}
    return tasks.with_(task, state=state, **new) if new else tasks


def _score(mark: Mark) -> int | None:
    text = value_of(mark, "score")
    return int(text) if text.isdecimal() else None


def _submission(task: Task, said: Said, mark: Mark, *, is_carried: bool) -> dict[str, Any]:
    """What a submission changes; one that was carried to another base comes without a turn of the lead's."""
    ref = next((m.ref for m in said.marks if m.name == "PROPOSAL" and m.value.startswith(f"task-{task.id},")), "")
    known = {"branch": value_of(mark, "branch") or task.branch, "base": value_of(mark, "base") or task.base}
    made = {"commit": value_of(mark, "commit"), "tree": value_of(mark, "tree"), "ref": ref}
    anew = {"gate": "", "log": "", "carried": "", "score": None, "undecided": 0}
    by = {"author": task.author, "iteration": task.iteration + 1} if is_carried else {"author": said.by}
    return {**known, **made, **anew, **by, "entries": (task.entries[0], said.id, task.entries[2])}


def _gate(tasks: Tasks, said: Said, mark: Mark) -> Tasks:
    task, state = tasks.of(number_of(mark)), (*fields_of(mark), "")[1].casefold()
    if task is None or task.state != SUBMITTED or value_of(mark, "tree") not in ("", task.tree):
        return tasks
    if said.by == USER:
        allows = task.gate == "asked" and state in ("run", "untested")
        return tasks.with_(task, gate=state) if allows else tasks
    if said.by_hand or state not in {*RAN, "asked"}:
        return tasks
    return tasks.with_(task, gate=state, log=value_of(mark, "log"))


def _by_hand(tasks: Tasks, mark: Mark, event: str, fields: Sequence[str]) -> Tasks:
    """After what the person says of tasks."""
    if event == "rebase":
        is_busy = any(task.state in UNDER_WAY for task in tasks.all)
        return tasks if is_busy or not fields[2] else _rebased(tasks, fields[2])
    when, state = _WORDS[event]
    for task in [task for task in _named(tasks, mark) if task.state in when]:
        new: dict[str, Any] = {"state": state or task.state}
        match event:
            case "dropped":
                new["why"] = fields[2]
            case "changed":
                description, criteria, after, hours = fields[2:6]
                new |= {"description": description or task.description, "criteria": _list(criteria) or task.criteria}
                new |= {"after": _before(after, task.number) if after else task.after}
                new |= {"hours": _hours(hours) or task.hours}
            case "retry":  # where it was, or with all its attempts anew
                anew = {"iteration": task.iteration + 1, "spent": task.iteration, "gate": ""}
                new |= {"was": "", "undecided": 0, **({"state": task.was} if task.was else anew)}
            case "accepted":
                new["reviewer"] = USER
                tasks = replace(tasks, base=task.commit)
            case "published" if _URL.fullmatch(fields[2]):
                number = value_of(mark, "number")
                opened = Request(fields[2], int(number) if number.isdecimal() else None, value_of(mark, "commit"))
                new["requests"] = (*task.requests, opened)
            case "merged":
                against = value_of(mark, "although")  # what stood against it, and was overruled by the person
                new["why"] = f"although {against}" if against else ""
        tasks = tasks.with_(task, **new)
    return tasks


def accepted_in(said: Said, tasks: Tasks) -> frozenset[int]:
    """The numbers of the tasks that the person accepts in an entry that a command of theirs wrote."""
    words = [mark for mark in said.marks if mark.name == "TASK" and "accepted" in fields_of(mark)[1:2]]
    return frozenset(
        task.number for mark in words for task in _named(tasks, mark) if said.by == USER and not said.by_hand
    )


def _rebased(tasks: Tasks, base: str) -> Tasks:
    """After the person moved the base: what was approved on another one is gone through again, in its order."""
    for task in [task for task in tasks.all if task.state == APPROVED]:
        carried = f"{task.base}..{task.commit}"
        again = {"state": CONFIRMED, "carried": carried, "reviewer": "", "is_named": False, "gate": ""}
        tasks = tasks.with_(task, spent=task.iteration, **again)
    return replace(tasks, base=base)


# -- The review -------------------------------------------------------------------------------------------------------


def objections(
    build: Build, task: Task, marks: Sequence[Mark], blocking: Sequence[int], *, approves: bool
) -> list[str]:
    """What keeps the submitted task from being approved by a review of these marks, in words; [] where nothing does.

    `blocking` are the numbers of the findings that are open after it, `approves` says that the reviewer decided so.
    """
    score = total(build, marks)
    found = []
    if not approves:
        found.append("the reviewer does not approve")
    if task.gate not in GREEN:
        found.append(f"the gate {'ran out of time' if task.gate == 'timeout' else 'failed'}")
    if score is None:
        found.append(f"no score for {', '.join(unscored(build, marks))}")
    elif score < build.pass_score:
        found.append(f"{score} of 100 is below {build.pass_score}")
    if blocking:
        found.append(f"findings that block are open: {', '.join(map(str, blocking))}")
    return found


def records(build: Build, task: Task, marks: Sequence[Mark], why: Sequence[str], *, is_unattended: bool) -> list[Mark]:
    """The records of a review; `why` is what stands against an approval."""
    score = total(build, marks)
    said = f"score {score}" if score is not None else "no score"
    if not why:
        return [Mark("TASK", f"{task.id} | approved | {said} | iteration {task.iteration}"), approval(task, score)]
    reason, times = "; ".join(why), f"{task.iteration} iteration{'' if task.iteration == 1 else 's'}"
    if task.iteration < task.spent + build.iterations:
        what = f"changes | {said} | iteration {task.iteration}"
    else:
        what = f"dropped | {said} | not approved in {times}" if is_unattended else f"stuck | {said} | after {times}"
    return [Mark("TASK", f"{task.id} | {what} | {reason}")]


def undecided(task: Task) -> list[Mark]:
    """The record of a second review in succession that does not decide: the person is asked."""
    return [Mark("TASK", f"{task.id} | stuck | {UNDECIDED}")] if task.undecided else []


def approval(task: Task, score: int | None) -> Mark:
    """The record that names the exact tree; it is void for any other. A red gate's output is told as that."""
    gate = (task.log if task.gate == "passed" else f"{task.gate} {task.log}".strip()) or task.gate or "untested"
    return Mark(
        "APPROVED", f"task-{task.id} | tree {task.tree} | gate {gate} | score {score if score is not None else '-'}"
    )


def to_confirm(ids: Sequence[str]) -> str:
    """What the person is asked where these tasks are proposed."""
    return f"confirm, change or drop the proposed tasks: {', '.join(ids)}"


def question(tasks: Tasks) -> str:
    """What the person is asked where the build waits for them; "" where it does not."""
    what, task = tasks.due
    ids = [one.id for one in tasks.all if one.state == PROPOSED]
    number, is_stuck = (task.id, task.state == STUCK) if task else ("", False)
    ways = "retry it, drop it" + (", or accept it as it is" if is_stuck else "")
    return (
        {
            Due.GOAL: f"{unplanned(tasks)}: say what is to be done",
            Due.CONFIRM: to_confirm(ids),
            Due.STUCK: f"task {number} is {'stuck' if is_stuck else 'stopped by an error'}: {ways}",
            Due.ALLOW: f"may the gate of task {number} run without a sandbox? It runs what the agent wrote, as you",
        }.get(what, "")
        if what
        else ""
    )


def unplanned(tasks: Tasks) -> str:
    """Why nothing is built where the moderator finds no task, in words."""
    return f"{tasks.moderator} proposed no task in {SILENT} turns"


def ways(tasks: Tasks, named: str) -> tuple[str, ...]:
    """The commands that answer what it asks, whole, with `named` behind each, the usual one first; () for nothing."""
    what, task = tasks.due
    number, accept = (task.id, ("accept",) * (task.state == STUCK)) if task else ("", ())
    words: Mapping[Due, tuple[str, ...]] = {
        Due.CONFIRM: ("confirm", f'change {number} -d "…"', f"drop {number}"),
        Due.STUCK: ("retry", f"drop {number}", *accept),
        Due.ALLOW: ("gate run", "gate untested"),
    }
    return tuple(f"dialogd tasks {word}{named}" for word in (words.get(what, ()) if what else ()))


def ending(tasks: Tasks) -> tuple[str, str]:
    """The outcome of a build whose summary is given, and why."""
    kept, done = listed(tasks), [task for task in tasks.all if task.state in (APPROVED, MERGED)]
    return ("DECIDED" if done else "DEADLOCK"), f"{len(done)} of {len(kept)} tasks approved"


def came_of(tasks: Tasks) -> str:
    """What has become of a build by now, in a few words: how many tasks are approved, and how many of them merged."""
    merged = sum(task.state == MERGED for task in tasks.all)
    done = merged + sum(task.state == APPROVED for task in tasks.all)
    return ending(tasks)[1] + (" and merged" if merged == done else f", {merged} merged") * bool(merged)


def listed(tasks: Tasks) -> list[Task]:
    """The tasks without those that others took the place of."""
    return [task for task in tasks.all if not (task.state == DROPPED and task.why == "replaced")]


# -- What daemons write -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submission:
    """What git says of a submission: against `base`, on `branch`; a renamed file is one, binary ones have no lines."""

    branch: str
    commit: str
    tree: str
    base: str
    files: int = 0
    lines_added: int = 0
    lines_deleted: int = 0


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the gate said of a tree: `state` is passed, failed, timeout or untested.

    `code` is its exit code (128 + n after signal n), None where it was not run or its time was over. `seconds` it took;
    `log` hashes its output, byte for byte; `tail` is the end of that, without colours.
    """

    state: str
    code: int | None = None
    seconds: float = 0.0
    log: str = ""
    tail: str = ""


def submitted(task: Task, made: Submission, ref: str, iteration: int) -> tuple[Mark, Mark]:
    """The records of a submission: what git knows, and the proposal under which it is reviewed."""
    size = f"{made.files} file{'' if made.files == 1 else 's'} | +{made.lines_added} -{made.lines_deleted}"
    where = f"branch {made.branch} | base {made.base} | commit {made.commit} | tree {made.tree}"
    return (
        Mark("TASK", f"{task.id} | submitted | iteration {iteration} | {where} | {size}"),
        Mark("PROPOSAL", f"task-{task.id}, iteration {iteration}, tree {made.tree}", ref),
    )


def _note(at: str, marks: Sequence[Mark], body: str = "", turn: tuple[str, ...] | None = None) -> Draft:
    return Draft(SYSTEM, "System", body=body, marks=tuple(marks), turn=turn, attributes=(("at", at),))


def assigned_note(
    task: Task, branch: str, base: str, at: str, conflict: Sequence[str] = (), kept: Sequence[str] = ()
) -> Draft:
    """The note that a worktree is open; the lead's debt stays open. `conflict`: files that could not be carried.

    `kept` are names of what the branch held before.
    """
    said = f"{task.id} | assigned | iteration {task.iteration + 1} | branch {branch} | base {base}"
    said += f" | conflict {', '.join(conflict)}" if conflict else ""
    said += f" | kept {', '.join(kept)}" if kept else ""
    return _note(at, (Mark("TASK", said),), _kept(branch, kept))


def carried_note(task: Task, made: Submission, ref: str, at: str, kept: Sequence[str] = ()) -> Draft:
    """The note that what was approved on another base was carried over, and is to be tested and reviewed again."""
    body = f"Task {task.id} was carried to another base; its approval was for the old one. {_kept(made.branch, kept)}"
    return _note(at, submitted(task, made, ref, task.iteration + 1), body.rstrip())


def _kept(branch: str, names: Sequence[str]) -> str:
    return f"What {branch} held before is kept: git log {' '.join(names)}" if names else ""


def gate_note(build: Build, task: Task, result: GateResult, findings: Sequence[Mark], at: str) -> Draft:
    """The note with the gate's result, which passes the turn to the reviewer; `findings` are the daemon's own."""
    said = f"{task.id} | {result.state} | tree {task.tree}"
    said += f" | exit {result.code}" if result.code is not None else ""
    said += f" | {result.seconds:.0f} s | log {result.log}" if result.log else ""
    return _note(at, (Mark("GATE", said), *findings), result.tail, (build.moderator,))


def ask_gate_note(build: Build, task: Task, why: str, findings: Sequence[Mark], at: str) -> Draft:
    """The note that asks the person whether the gate may run without a sandbox, and `why` there is none."""
    body = f"The gate `{build.gate}` cannot run in a sandbox here: {why}. It runs what the agent wrote, as you."
    asks = f"may the gate of task {task.id} run without a sandbox on tree {task.tree[:12]}?"
    marks = (Mark("GATE", f"{task.id} | asked | tree {task.tree}"), Mark("QUESTION_FOR_USER", asks), *findings)
    return _note(at, marks, body, (USER,))


def accepted_note(tasks: Tasks, at: str) -> Draft | None:
    """The note that names the trees of what the person accepted by a typed word; None where each is named."""
    found = [task for task in tasks.all if task.state in (APPROVED, MERGED) and task.reviewer == USER]
    marks = [approval(task, task.score) for task in found if not task.is_named]
    return _note(at, marks, "Accepted by the person's word, which names no tree: it was this one.") if marks else None


def error_note(task: Task, kind: str, message: str, at: str, *, is_unattended: bool) -> Draft:
    """The note that a task cannot be gone on with: the person decides, or, with nobody at the table, it ends."""
    words = " ".join(message.split()).replace(" | ", " / ")
    record = Mark("TASK", f"{task.id} | error | {kind} | {words}")
    if is_unattended:
        return _note(at, (record, Mark("STOPPED", f"error: task {task.id}: {words}")))
    return _note(at, (record, Mark("QUESTION_FOR_USER", f"task {task.id} cannot go on: {words}")), turn=(USER,))


# What a daemon finds in a submission by itself: how grave it is, what is wrong with these files, what to do about it.
_FOUND = {
    "astray": ("medium", "changed outside the findings it answers: {}", ""),
    "raw": ("high", "no pointer, though its path belongs to Git LFS: {}",
            "leave it out: only the person's own git, with Git LFS, can commit it"),
    "idle": ("blocking", "nothing was changed: every file is as it was {}",
             "do what the task asks for: nothing else resolves this"),
}  # fmt: skip


def found(what: str, names: Collection[str] = (), since: str = "") -> tuple[Mark, ...]:
    """The daemon's finding on a submission: `raw` or `astray` files, if there are any, or that it is `idle`."""
    level, issue, fix = _FOUND[what]
    files = [name.replace("|", "/") for name in sorted(names)]
    words = issue.format(since or ", ".join(files[:10]) + (" …" if len(files) > 10 else ""))
    fields = (level, "scope", next(iter(files), ""), "", words, fix)
    text = " |".join(f" {one}" if one else "" for one in fields).strip()
    return (Mark("FINDING", text),) if files or since else ()

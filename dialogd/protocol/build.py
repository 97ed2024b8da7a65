"""A build: tasks that a lead carries out and a moderator reviews. What became of each, and what is due. Pure.

[TASK_PROPOSED: description | criterion; criterion | after 1, 2 | 2 h]     by the moderator; 001, 002 … in file order
[IMPROVEMENT: category | priority | impact | hours | rationale | files | criterion; criterion]     likewise
[TASK: 001 | state | …] and [GATE: 001 | state | …]     records of daemons, and the person's word on them
[GATE: all | command | make test]                       by the person: what tests the trees from there on
[FINDING: severity | category | file | line | issue | suggestion]     of any review; numbered 1, 2 … in file order
[RESOLVED: 2 | how]                                                   by the agent that raised it
[SCORE: code quality 80 | test coverage 70 | …]                       each part up to the most that it may have
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from dialogd.protocol.marks import asking, fields_of
from dialogd.protocol.model import SYSTEM, USER, Condition, Draft, Mark, Said, system_note, turn_number
from dialogd.protocol.rules import REVIEW, Build, Rules

if TYPE_CHECKING:
    from dialogd.protocol.state import Dialog, Table

# States of a task, in the order in which it passes through them; the last ones are ends.
PROPOSED, CONFIRMED, ASSIGNED, SUBMITTED, STUCK, ERROR = (
    "proposed", "confirmed", "assigned", "submitted", "stuck", "error",
)  # fmt: skip
APPROVED, MERGED, DROPPED = "approved", "merged", "dropped"
DONE = frozenset({APPROVED, MERGED, DROPPED})
KEPT = frozenset({APPROVED, MERGED})  # what has a result
UNDER_WAY = frozenset({ASSIGNED, SUBMITTED, STUCK, ERROR})  # at most one task of each lead is
UNDECIDED = "the reviewer did not decide, twice"
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
GREEN = frozenset({"passed", "untested"})  # what the gate may have said of a tree that is approved
RAN = frozenset({"passed", "failed", "timeout", "untested"})  # the gate's results; "asked" and "run" come before them

_NUMBERS = re.compile(r"\d{1,6}")
_HOURS = re.compile(r"\d{1,4}(?:\.\d{1,2})?")
_PART = re.compile(r"(.+?)[ :=]+(\d{1,3})(?:\.\d+)?(?: ?(?:/ ?\d{1,3}|%))?")


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


# What happens to a task, by who says it: when it counts, and the state that it leads to, "" for the same one.
# A daemon's record, under its own name or an agent's, counts while that is due of this very task …
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
# … and the person's word while the task is in one of these states.
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
    """One task, as the file tells of it."""

    number: int
    description: str
    criteria: tuple[str, ...] = ()
    after: tuple[int, ...] = ()  # numbers of the tasks that come first
    hours: float | None = None  # as estimated
    state: str = PROPOSED
    why: str = ""  # of its state, in words; of what is merged: what the person overruled
    iteration: int = 0  # which attempt it is, counted on whatever happens
    spent: int = 0  # those up to it are of earlier rounds: each `retry` or `rebase` begins one
    branch: str = ""
    base: str = ""  # the commit from which it started
    commit: str = ""  # what was submitted last
    tree: str = ""
    ref: str = ""  # the proposal under which that is reviewed
    gate: str = ""  # what the gate said of it
    log: str = ""  # the hash of its output
    score: int | None = None
    author: str = ""
    reviewer: str = ""  # whose word approved it: an agent's id, or USER
    carried: str = ""  # the commits `base..commit` that are to be carried to another base
    lead: str = ""  # whose it is, from when it is handed out
    is_behind: bool = False  # another one was approved since its base: what is submitted is carried on top of that
    was: str = ""  # its state before an error, and before a review that did not decide
    undecided: int = 0  # reviews that did not decide
    requests: tuple[Request, ...] = ()  # pull requests for its commits
    merged: str = ""  # the commit that has it in the person's branch
    asks: Mapping[str, str] = field(default_factory=dict)  # for an improvement: category, priority, impact and files
    entries: tuple[str, str, str] = ("", "", "")  # in which it was proposed, submitted last, reviewed last

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
        return bool(self.asks)

    @property
    def by(self) -> str:
        """Who is to go on with it: `moderator`, `lead`, or USER; "" where it is not handed out, or over."""
        return self.due.by if self.state in UNDER_WAY or (self.state == CONFIRMED and self.lead) else ""

    @property
    def due(self) -> Due:
        """What a task waits for that is handed out, or under way."""
        if self.state != SUBMITTED:
            return {CONFIRMED: Due.ASSIGN, ASSIGNED: Due.WORK}.get(self.state, Due.STUCK)
        return Due.REVIEW if self.gate in RAN else Due.ALLOW if self.gate == "asked" else Due.GATE


class Step(NamedTuple):
    """What is due of `who`, an agent's id or USER, and of which task."""

    due: Due
    task: Task | None
    who: str


@dataclass(frozen=True, slots=True)
class Tasks:
    """A build as it stands: its rules, and all tasks by number; False for a dialog that is none."""

    all: tuple[Task, ...] = ()
    rules: Build | None = None
    cycles: int = 0  # of improvement there were so far
    base: str = ""  # the last approved commit, once it is merged the one that has it; before the first the build's own
    stack: tuple[int, ...] = ()  # the numbers of what was approved, in the order in which it stands on one another
    reviewed: int = 0  # the number of the task that is under review
    gate_entry: str = ""  # in which the person gave the gate that `rules` has; "" for that of the header
    top: int = 0  # the highest number that was given, also to a task of a withdrawn turn
    is_wanted: bool = False  # the person has said what they want beyond them, once they were done
    silent: int = 0  # the moderator's turns in a row that planned nothing
    is_alone: bool = False  # nobody is at the table, who would confirm, allow or decide
    gone: frozenset[str] = frozenset()  # agents that have left, or are absent

    def __bool__(self) -> bool:
        return self.rules is not None

    @property
    def moderator(self) -> str:
        """Who plans and reviews; "" without a build."""
        return self.rules.moderator if self.rules else ""

    @property
    def leads(self) -> tuple[str, ...]:
        """Who carries tasks out; nobody without a build."""
        return self.rules.leads if self.rules else ()

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is due: at most one step of each agent, or one of the person's where no agent can go on."""
        if self.rules is None:
            return ()
        here = [task for task in self.all if task.state in UNDER_WAY]
        steps = [Step(task.due, task, task.lead) for task in self.all if task.by == "lead"]
        steps += [Step(Due.REVIEW, task, self.moderator) for task in here if task.number == self.reviewed]
        if steps:
            return tuple(steps)
        if here:
            what, about = here[0].due, here[0]
        elif not self.all or self.is_wanted:
            what, about = (Due.PLAN if self.silent < SILENT else Due.GOAL), None
        elif about := next((task for task in self.all if task.state == PROPOSED), None):
            what = Due.CONFIRM
        else:
            what = Due.IMPROVE if self.kept and self.cycles < self.rules.cycles else Due.SUMMARY
        return (Step(what, about, self.moderator if what.by == "moderator" else USER),)

    @property
    def start(self) -> str:
        """The commit from which the next task starts."""
        return self.base or (self.rules.base if self.rules else "")

    def due_of(self, who: str) -> tuple[Due | None, Task | None]:
        """What is due of this agent, or the person, and of which task; nothing where that is nothing."""
        here = [Step(task.due, task, USER) for task in self.all if task.by == USER]  # may be answered before
        steps = (*self.steps, *here)
        return next((step[:2] for step in steps if step.who == who), (None, None))

    @property
    def next_turns(self) -> tuple[str, ...]:
        """Whose turn it is: agents' ids, or USER; () without a build."""
        return tuple(step.who for step in self.steps)

    def others_than(self, now: Tasks) -> tuple[str, ...]:
        """The agents of which something else is due `now` than was: another step, task, or gate to run."""

        def due(tasks: Tasks, who: str) -> tuple[Due | None, int | None, str]:
            what, task = tasks.due_of(who)
            return what, task.number if task else None, tasks.gate_entry if what is Due.GATE else ""

        return tuple(who for who in (self.moderator, *self.leads) if due(self, who) != due(now, who))

    def is_ready(self, task: Task) -> bool:
        """True where everything that comes before a task is done."""
        # What comes first is older, so that no two wait for one another; what is not there any more holds nobody up.
        # What is carried to another base is so in its order.
        if task.state != CONFIRMED:
            return False
        below = [one for one in self.all if (one.carried or task.carried) and self._place(one) < self._place(task)]
        return all(one.state in DONE for one in (*below, *filter(None, map(self.of, task.after))))

    def _place(self, task: Task) -> int:
        return self.stack.index(task.number) if task.number in self.stack else len(self.stack)

    @property
    def kept(self) -> list[Task]:
        """Those that have a result, merged or not."""
        return [task for task in self.all if task.state in KEPT]

    def reviewed_by(self, me: str) -> Task | None:
        """The task that `me` is to review now, or None."""
        what, task = self.due_of(me)
        return task if what is Due.REVIEW else None

    def of(self, number: int) -> Task | None:
        """The task of that number, or None."""
        return next((task for task in self.all if task.number == number), None)

    def with_(self, task: Task, **changes: object) -> Tasks:
        """The same with this task changed."""
        new = replace(task, **changes)  # type: ignore[arg-type]
        return replace(self, all=tuple(new if one.number == task.number else one for one in self.all))


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


def listed(tasks: Tasks) -> list[Task]:
    """The tasks without those that others took the place of."""
    return [task for task in tasks.all if not (task.state == DROPPED and task.why == "replaced")]


# -- What the marks say -----------------------------------------------------------------------------------------------


def value_of(mark: Mark, key: str) -> str:
    """The value of a field that begins with `key` and a blank; "" without one."""
    found = (part for part in fields_of(mark) if part.casefold().startswith(f"{key} "))
    return next(found, "")[len(key) :].strip()


def number_of(mark: Mark) -> int:
    """The number of the task that a record is about (`001`, `task-001`); 0 for none."""
    match = _NUMBERS.search(fields_of(mark)[0])
    return int(match[0]) if match else 0


def proposed(mark: Mark, number: int, entry: str) -> Task:
    """The task that a TASK_PROPOSED or an IMPROVEMENT asks for; it can only come after older ones."""
    fields = (*fields_of(mark), *[""] * 7)
    if mark.name == "IMPROVEMENT":
        category, priority, impact, hours, description, files, criteria = fields[:7]
        after, asks = "", {"category": category, "priority": priority, "impact": impact, "files": files}
    else:
        (description, criteria, after, hours), asks = fields[:4], {}
    each, before = _list(criteria), _before(after, number)
    return Task(number, description, each, before, _hours(hours), asks=asks, entries=(entry, "", ""))


def _list(text: str) -> tuple[str, ...]:
    return tuple(part for part in (" ".join(one.split()) for one in text.split(";")) if part)


def _before(numbers: str, number: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(n for n in map(int, _NUMBERS.findall(numbers)) if 0 < n < number))


def _hours(text: str) -> float | None:
    match = _HOURS.search(text)
    return float(match[0]) if match else None


def points(build: Build, marks: Sequence[Mark]) -> dict[str, int]:
    """The points that a review gives, by criterion, none above its maximum; criteria that it leaves out are missing."""
    return _scored([part for mark in marks if mark.name == "SCORE" for part in fields_of(mark)], build.criteria)


def _scored(fields: Iterable[str], most: Mapping[str, int]) -> dict[str, int]:
    def plain(name: str) -> str:
        return "".join(re.findall("[a-z]+", name.casefold()))

    names, found = {plain(name): name for name in most}, [m for m in map(_PART.fullmatch, fields) if m]
    return {name: min(int(m[2]), most[name]) for m in found if (name := names.get(plain(m[1])))}


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
    parts = (f"{name.replace('_', ' ')} 0-{most}" for name, most in (build.criteria if build else {}).items())
    return f"[SCORE: {' | '.join(parts)}]" if build else ""


_MODERATORS = frozenset({"TASK_PROPOSED", "IMPROVEMENT", "SCORE", "FINDING", "RESOLVED"})


def refused(tasks: Tasks, me: str, mark: Mark, earlier: Sequence[Mark]) -> str:
    """Why a mark of a build does not count, of agent `me`, after `earlier` ones of the same reply; "" where it does."""
    if not tasks:
        return ""
    what, fields = tasks.due_of(tasks.moderator)[0] or tasks.due_of(USER)[0], (*fields_of(mark), *[""] * 5)
    if mark.name in _MODERATORS and me != tasks.moderator:
        return f"{tasks.moderator} alone reviews and proposes tasks"
    match mark.name:
        case "TASK_PROPOSED" if what not in (Due.PLAN, Due.CONFIRM):
            return "tasks are proposed before the work begins; the person may change them"
        case "TASK_PROPOSED" if not fields[0]:
            return "it has no description"
        case "IMPROVEMENT" if what is not Due.IMPROVE:
            return "an improvement is proposed once all tasks are done"
        case "IMPROVEMENT" if any(other.name == "IMPROVEMENT" for other in earlier):
            return "one improvement per cycle"
        case "IMPROVEMENT" if not fields[4]:
            return "it has no rationale"
        case "SCORE" if what is not Due.REVIEW:
            return "nothing is reviewed now"
        case "DECIDE":
            ref, task = mark.value.partition(" ")[0], tasks.reviewed_by(tasks.moderator)
            return "" if task is not None and task.ref == ref else f"{ref or 'it'} is not what is reviewed now"
    return ""


# -- The fold ---------------------------------------------------------------------------------------------------------


def folded(tasks: Tasks, said: Said, *, is_over: bool = False) -> Tasks:
    """The tasks after an entry. Records count where a daemon wrote them, the person's words where the person did."""
    # With `is_over` the moderator had said its last word: a turn of the person's, but one on tasks, is a wish for more.
    build = tasks.rules
    if build is None:
        return tasks
    if said.by == USER and said.is_turn:
        wishes = is_over and said.ending is None and said.mark("TASK") is None
        tasks = replace(tasks, silent=0, is_wanted=tasks.is_wanted or wishes)
    if said.by == tasks.moderator and said.is_turn:
        tasks = _planned(build, tasks, said)
    for mark in said.marks:
        if mark.name == "TASK":
            tasks = (_by_hand if said.by == USER else _recorded)(tasks, said, mark)
        elif mark.name == "GATE":
            tasks = _gate(tasks, said, mark)
        elif mark.name == "APPROVED" and not said.by_hand and said.by == tasks.moderator:
            task = tasks.of(number_of(mark))  # the record that names the tree: with it the approval counts
            if task and task.state in KEPT and not task.reviewer and value_of(mark, "tree") == task.tree:
                tasks = _on_top(tasks.with_(task, reviewer=said.by), task)
    return handed_out(tasks)


def _on_top(tasks: Tasks, task: Task) -> Tasks:
    """After a task was approved: its commit is what the others stand on."""
    for other in tasks.all:
        if other.state in UNDER_WAY and other.number != task.number:
            tasks = tasks.with_(other, is_behind=True)
    return replace(tasks, base=task.commit, stack=(*(n for n in tasks.stack if n != task.number), task.number))


def handed_out(tasks: Tasks) -> Tasks:
    """With a task for each lead that is there and has none, and for the moderator the next one to be reviewed."""
    for task in tasks.all if tasks.is_alone else ():  # nobody confirms a task, or allows a gate
        if task.state == PROPOSED or task.gate == "asked":
            state = CONFIRMED if task.state == PROPOSED else task.state
            tasks = tasks.with_(task, state=state, gate="" if task.gate == "asked" else task.gate)
    for task in tasks.all:
        if task.state == SUBMITTED and task.is_behind:  # an attempt is not spent by what was approved meanwhile
            new = {"carried": f"{task.base}..{task.commit}", "spent": task.spent + 1, "gate": "", "is_behind": False}
            tasks = tasks.with_(task, state=CONFIRMED, **new)
    waits = tasks.is_wanted or any(task.state == PROPOSED for task in tasks.all)
    for task in tasks.all:
        if task.lead and task.state in (PROPOSED, CONFIRMED) and (waits or not tasks.is_ready(task)):
            tasks = tasks.with_(task, lead="")
    busy, here = {task.lead for task in tasks.all if task.state not in DONE}, {*tasks.leads} - tasks.gone
    free = [who for who in tasks.leads if who not in busy and (who in here or not here)]
    # What a lead that is gone was at comes first; where nobody else is there it keeps that.
    orphans = [task for task in tasks.all if here and task.lead in tasks.gone and task.by == "lead"]
    ready = [task for task in tasks.all if tasks.is_ready(task) and not (task.lead or waits)]
    for task, who in zip([*orphans, *ready], free, strict=False):
        tasks = tasks.with_(task, lead=who)
    found = [task.number for task in tasks.all if task.state == SUBMITTED and task.due is Due.REVIEW]
    return replace(tasks, reviewed=tasks.reviewed if tasks.reviewed in found else next(iter(found), 0))


def _planned(build: Build, tasks: Tasks, said: Said) -> Tasks:
    """After a turn of the moderator: the tasks that it proposes, in place of those that nobody has confirmed."""
    before, reviewed = tasks.due_of(said.by)
    asks = said.asks
    if before is Due.REVIEW and reviewed is not None and not asks:
        score = total(build, said.marks)  # what it decides follows among its marks
        score = reviewed.score if score is None else score
        tasks = tasks.with_(reviewed, undecided=reviewed.undecided + 1, score=score)
    new = [mark for mark in said.written if mark.name in ("TASK_PROPOSED", "IMPROVEMENT")]
    if not said.counts:
        return replace(tasks, top=tasks.top + len(new))
    tasks = replace(
        tasks,
        is_wanted=tasks.is_wanted and asks and not new,
        silent=tasks.silent + 1 if before is Due.PLAN and not new else 0,
        cycles=tasks.cycles + (before is Due.IMPROVE),
    )
    if any(mark.name == "TASK_PROPOSED" for mark in new):
        for task in [task for task in tasks.all if task.state == PROPOSED]:
            tasks = tasks.with_(task, state=DROPPED, why="replaced")
    made = tuple(proposed(mark, tasks.top + at, said.id) for at, mark in enumerate(new, 1))
    return replace(tasks, all=(*tasks.all, *made), top=tasks.top + len(made))


def _recorded(tasks: Tasks, said: Said, mark: Mark) -> Tasks:
    """After a daemon's record. What follows from nothing, as of a withdrawn turn, is none."""
    event, number = (*fields_of(mark), "")[1].casefold(), number_of(mark)
    what, task, _ = next((step for step in tasks.steps if step.task and step.task.number == number), (None, None, ""))
    if said.by_hand or task is None:
        return tasks
    if event == "submitted" and task.carried:
        event = "carried"
    whose, when, state = _RECORDS.get(event, ("", (), ""))
    if what not in when or said.by != {"lead": task.lead, "moderator": tasks.moderator}.get(whose, whose):
        return tasks
    rest, reviewed = " | ".join(fields_of(mark)[2:]), (*task.entries[:2], said.id)
    named = value_of(mark, "score")
    score = int(named) if named.isdecimal() else None
    again = {"iteration": task.iteration + 1, "gate": ""}
    is_behind = not value_of(mark, "base").startswith(tasks.start)  # that was moved while its worktree was made
    trees = [value_of(one, "tree") for one in said.all("APPROVED") if number_of(one) == task.number]
    new: dict[str, Any] = {}
    match event:
        case "assigned":
            new = {"branch": value_of(mark, "branch"), "base": value_of(mark, "base"), "carried": "", **again}
            new |= {"why": value_of(mark, "conflict"), "is_behind": is_behind}
        case "submitted" | "carried":
            made = {key: value_of(mark, key) or getattr(task, key) for key in ("branch", "base")}
            made |= {key: value_of(mark, key) for key in ("commit", "tree")}
            name = f"task-{task.id},"
            made["ref"] = next((m.ref for m in said.marks if m.proposes and m.value.startswith(name)), "")
            new = {**made, "gate": "", "log": "", "carried": "", "score": None, "undecided": 0}
            # What was carried to another base comes without a turn of the lead's.
            anew = {"iteration": task.iteration + 1, "is_behind": is_behind}
            new |= anew if event == "carried" else {"author": said.by}
            new["entries"] = (task.entries[0], said.id, task.entries[2])
        case "changes":
            new = {"why": rest, "entries": reviewed, "score": score, **again}
        case "approved" if task.gate in GREEN and task.tree in trees:  # after a strike it may stand at another one
            new = {"score": score, "why": "", "entries": reviewed}
        case "stuck" | "error" | "dropped":
            was = task.state if event == "error" or rest == UNDECIDED else ""
            new = {"why": rest, "was": was, "score": score or task.score}
    return tasks.with_(task, state=state, **new) if new else tasks


def _another_gate(tasks: Tasks, build: Build, said: Said, command: str) -> Tasks:
    """After the person gave another gate: it tests what is not approved yet, whatever the one before said of that."""
    tasks = replace(tasks, rules=replace(build, gate=command), gate_entry=said.id)
    for task in tasks.all:
        if task.state in UNDER_WAY and SUBMITTED in (task.state, task.was):
            tasks = tasks.with_(task, gate="", log="")
    return tasks


def command_of(mark: Mark) -> str:
    """The command that a GATE of the person's gives for all trees; "" where it gives none."""
    head, state, command = (*(part.strip() for part in mark.value.split("|", 2)), "", "", "")[:3]
    return command if (head.casefold(), state.casefold()) == ("all", "command") else ""


def _gate(tasks: Tasks, said: Said, mark: Mark) -> Tasks:
    if tasks.rules is not None and said.is_persons and (command := command_of(mark)):
        return _another_gate(tasks, tasks.rules, said, command)
    task, state = tasks.of(number_of(mark)), (*fields_of(mark), "")[1].casefold()
    if task is None or task.state != SUBMITTED or value_of(mark, "tree") not in ("", task.tree):
        return tasks
    if said.by == USER:
        allows = task.gate == "asked" and state in ("run", "untested")
        return tasks.with_(task, gate=state) if allows else tasks
    if said.by_hand or state not in {*RAN, "asked"}:
        return tasks
    return tasks.with_(task, gate=state, log=value_of(mark, "log"))


def _by_hand(tasks: Tasks, said: Said, mark: Mark) -> Tasks:
    fields = (*fields_of(mark), *[""] * 6)
    event = fields[1].casefold()
    if event == "rebase":
        is_busy = any(task.state in UNDER_WAY for task in tasks.all)  # typed, it makes nobody begin on another commit
        return tasks if said.by_hand or is_busy or not fields[2] else _rebased(tasks, fields[2])
    when, state = _WORDS.get(event, ((), ""))
    for one in _named(tasks, mark):
        if (task := tasks.of(one.number)) is None or task.state not in when:
            continue
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
                new["why"] = fields[2] or task.why  # the person's reason is told to who tries it
            case "accepted" if not task.is_behind:
                new["reviewer"] = USER
                tasks = _on_top(tasks, task)
            case "accepted":  # it stands beside what was approved since, not on it
                new = {}
            case "published" if re.fullmatch(r"https?://[!-~]+", fields[2]):
                number = value_of(mark, "number")
                opened = Request(fields[2], int(number) if number.isdecimal() else None, value_of(mark, "commit"))
                new["requests"] = (*task.requests, opened)
            case "merged":
                against = value_of(mark, "although")  # what stood against it, and was overruled by the person
                new["why"] = f"although {against}" if against else ""
                commit = value_of(mark, "commit")
                if commit and not said.by_hand:  # a typed line makes nobody begin on another commit
                    new["merged"] = commit
                    tasks = replace(tasks, base=commit) if task.commit == tasks.base else tasks
        tasks = tasks.with_(task, **new)
    return tasks


def _named(tasks: Tasks, mark: Mark) -> Iterator[Task]:
    head = fields_of(mark)[0]
    if head.casefold() == "all":
        yield from tasks.all
    else:
        yield from filter(None, (tasks.of(int(number)) for number in dict.fromkeys(_NUMBERS.findall(head))))


def accepted_in(said: Said, tasks: Tasks) -> frozenset[int]:
    """The numbers of the tasks that the person accepts in an entry that a command of theirs wrote."""
    if said.by != USER or said.by_hand:
        return frozenset()
    words = [mark for mark in said.all("TASK") if "accepted" in fields_of(mark)[1:2]]
    return frozenset(task.number for mark in words for task in _named(tasks, mark))


def _rebased(tasks: Tasks, base: str) -> Tasks:
    """After the person moved the base: what was approved on another one is gone through again, in its order."""
    for task in [task for task in tasks.all if task.state == APPROVED]:
        carried = f"{task.base}..{task.commit}"
        tasks = tasks.with_(task, state=CONFIRMED, spent=task.iteration, carried=carried, reviewer="", gate="")
    for task in tasks.all:
        tasks = tasks.with_(task, lead="")
    return replace(tasks, base=base)


# -- The review -------------------------------------------------------------------------------------------------------


def objections(
    build: Build, task: Task, marks: Sequence[Mark], blocking: Sequence[int], *, approves: bool
) -> list[str]:
    """What keeps the submitted task from being approved by a review of these marks, in words; [] where nothing does."""
    score = total(build, marks)
    low = score is not None and score < build.pass_score
    return [
        *([] if approves else ["the reviewer does not approve"]),
        *([] if task.gate in GREEN else [f"the gate {'ran out of time' if task.gate == 'timeout' else 'failed'}"]),
        *([f"no score for {', '.join(unscored(build, marks))}"] if score is None else []),
        *([f"{score} of 100 is below {build.pass_score}"] if low else []),
        *([f"findings that block are open: {', '.join(map(str, blocking))}"] if blocking else []),
    ]


def records(tasks: Tasks, build: Build, task: Task, marks: Sequence[Mark], why: Sequence[str]) -> list[Mark]:
    """The records of a review; `why` is what stands against an approval."""
    score = total(build, marks)
    said = f"score {score}" if score is not None else "no score"
    if not why:
        return [Mark("TASK", f"{task.id} | approved | {said} | iteration {task.iteration}"), approval(task, score)]
    times = f"{task.iteration} iteration{'' if task.iteration == 1 else 's'}"
    if task.iteration < last_attempt(tasks, task):
        what = f"changes | {said} | iteration {task.iteration}"
    else:
        what = f"dropped | {said} | not approved in {times}" if tasks.is_alone else f"stuck | {said} | after {times}"
    return [Mark("TASK", f"{task.id} | {what} | {'; '.join(why)}")]


def undecided(task: Task) -> list[Mark]:
    """The record of a second review in succession that does not decide: the person is asked."""
    return [Mark("TASK", f"{task.id} | stuck | {UNDECIDED}")] if task.undecided else []


def approval(task: Task, score: int | None) -> Mark:
    """The record that names the exact tree; it is void for any other. A red gate's output is told as that."""
    gate = (task.log if task.gate == "passed" else f"{task.gate} {task.log}".strip()) or task.gate or "untested"
    points_ = score if score is not None else "-"
    return Mark("APPROVED", f"task-{task.id} | tree {task.tree} | gate {gate} | score {points_}")


def is_last_word(tasks: Tasks, marks: Sequence[Mark]) -> bool:
    """True for a turn of the moderator's that ends the build: its summary, or the answer to a wish without a task."""
    what, _ = tasks.due_of(tasks.moderator)
    is_answer = what is Due.PLAN and tasks.is_wanted and not any(mark.name == "TASK_PROPOSED" for mark in marks)
    return what is Due.SUMMARY or is_answer


# -- What the person is asked, and how it ends ------------------------------------------------------------------------


def to_confirm(ids: Sequence[str]) -> str:
    """What the person is asked where these tasks are proposed."""
    return f"confirm, change or drop the proposed tasks: {', '.join(ids)}"


def question(tasks: Tasks) -> str:
    """What the person is asked where the build waits for them; "" where it does not."""
    what, task = tasks.due_of(USER)
    if what is Due.GOAL:
        return f"{unplanned(tasks)}: say what is to be done"
    if what is Due.CONFIRM:
        return to_confirm([one.id for one in tasks.all if one.state == PROPOSED])
    if what is Due.STUCK and task is not None:
        is_stuck = task.state == STUCK
        ways_out = f"retry it{', drop it, or accept it as it is' if is_stuck else ' or drop it'}"
        return f"task {task.id} is {'stuck' if is_stuck else 'stopped by an error'}: {ways_out}"
    if what is Due.ALLOW and task is not None:
        return f"may the gate of task {task.id} run without a sandbox? It runs what the agent wrote, as you"
    return ""


def unplanned(tasks: Tasks) -> str:
    """Why nothing is built where the moderator finds no task, in words."""
    return f"{tasks.moderator} proposed no task in {SILENT} turns"


def ways(tasks: Tasks, named: str) -> tuple[str, ...]:
    """The commands that answer what it asks, whole, with `named` behind each, the usual one first; () for nothing."""
    what, task = tasks.due_of(USER)
    words: tuple[str, ...] = ()
    if what is Due.CONFIRM and task is not None:
        words = ("confirm", f'change {task.id} -d "…"', f"drop {task.id}")
    elif what is Due.STUCK and task is not None:
        another = ['gate "…"'] * (task.state == ERROR and "the gate " in task.why)  # it says nothing of the task
        words = ("retry", *another, f"drop {task.id}", *["accept"] * (task.state == STUCK))
    elif what is Due.ALLOW:
        words = ("gate run", "gate untested")
    return tuple(f"dialogd tasks {word}{named}" for word in words)


def ending(tasks: Tasks) -> tuple[str, str]:
    """The outcome of a build whose summary is given, and why."""
    done = len(tasks.kept)
    return ("DECIDED" if done else "DEADLOCK"), f"{done} of {len(listed(tasks))} tasks approved"


def came_of(tasks: Tasks) -> str:
    """What has become of a build by now, in a few words: how many tasks are approved, and how many of them merged."""
    merged = sum(task.state == MERGED for task in tasks.all)
    return ending(tasks)[1] + (" and merged" if merged == len(tasks.kept) else f", {merged} merged") * bool(merged)


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
    """What the gate said of a tree."""

    state: str  # passed, failed, timeout or untested
    code: int | None = None  # 128 + n after signal n; None where it was not run or its time was over
    seconds: float = 0.0
    log: str = ""  # the hash of its output, byte for byte
    tail: str = ""  # the end of that, without colours


def submitted(task: Task, made: Submission, ref: str, iteration: int) -> tuple[Mark, Mark]:
    """The records of a submission: what git knows, and the proposal under which it is reviewed."""
    size = f"{made.files} file{'' if made.files == 1 else 's'} | +{made.lines_added} -{made.lines_deleted}"
    where = f"branch {made.branch} | base {made.base} | commit {made.commit} | tree {made.tree}"
    return (
        Mark("TASK", f"{task.id} | submitted | iteration {iteration} | {where} | {size}"),
        Mark("PROPOSAL", f"task-{task.id}, iteration {iteration}, tree {made.tree}", ref),
    )


def assigned_note(
    task: Task, branch: str, base: str, at: str, conflict: Sequence[str] = (), kept: Sequence[str] = ()
) -> Draft:
    """The note that a worktree is open; the lead's debt stays open. `conflict`: files that could not be carried."""
    said = f"{task.id} | assigned | iteration {task.iteration + 1} | branch {branch} | base {base}"
    more = (f" | {what} {', '.join(names)}" for what, names in (("conflict", conflict), ("kept", kept)) if names)
    return system_note(at, (Mark("TASK", said + "".join(more)),), _kept(branch, kept))


def carried_note(task: Task, made: Submission, ref: str, at: str, kept: Sequence[str] = ()) -> Draft:
    """The note that what was approved on another base was carried over, and is to be tested and reviewed again."""
    body = f"Task {task.id} was carried to another base, and is tested and reviewed there. {_kept(made.branch, kept)}"
    return system_note(at, submitted(task, made, ref, task.iteration + 1), body.rstrip())


def _kept(branch: str, names: Sequence[str]) -> str:
    return f"What {branch} held before is kept: git log {' '.join(names)}" if names else ""


def gate_note(build: Build, task: Task, result: GateResult, findings: Sequence[Mark], at: str) -> Draft:
    """The note with the gate's result, which passes the turn to the reviewer; `findings` are the daemon's own."""
    said = f"{task.id} | {result.state} | tree {task.tree}"
    said += f" | exit {result.code}" if result.code is not None else ""
    said += f" | {result.seconds:.0f} s | log {result.log}" if result.log else ""
    return system_note(at, (Mark("GATE", said), *findings), result.tail, (build.moderator,))


def ask_gate_note(build: Build, task: Task, why: str, findings: Sequence[Mark], at: str) -> Draft:
    """The note that asks the person whether the gate may run without a sandbox, and `why` there is none."""
    body = f"The gate `{build.gate}` cannot run in a sandbox here: {why}. It runs what the agent wrote, as you."
    asks = f"may the gate of task {task.id} run without a sandbox on tree {task.tree[:12]}?"
    marks = (Mark("GATE", f"{task.id} | asked | tree {task.tree}"), asking(asks), *findings)
    return system_note(at, marks, body, (USER,))


def error_note(tasks: Tasks, task: Task, kind: str, message: str, at: str) -> Draft:
    """The note that a task cannot be gone on with: the person decides, or, with nobody at the table, it ends."""
    words = " ".join(message.split()).replace(" | ", " / ")
    record = Mark("TASK", f"{task.id} | error | {kind} | {words}")
    if tasks.is_alone:
        return system_note(at, (record, Mark("STOPPED", f"error: task {task.id}: {words}")))
    return system_note(at, (record, asking(f"task {task.id} cannot go on: {words}")), turn=(USER,))


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


# -- Findings and scores, of any review -------------------------------------------------------------------------------

PARTS = ("code quality", "test coverage", "security", "documentation", "acceptance criteria")


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding."""

    number: int
    by: str
    turn: int
    severity: str = ""
    category: str = ""
    file: str = ""
    line: str = ""
    issue: str = ""
    suggestion: str = ""
    resolved: str = ""  # how, in the words of who raised it; "" while it is open
    resolved_in: int = 0  # that turn
    entry: str = ""  # where it stands; of a note `turn` is the turn before it
    task: int = 0  # the number of the task that it is about, 0 where that is not said
    blocks: bool = False  # while it stands in the way of an approval


@dataclass(frozen=True, slots=True)
class Score:
    """The five parts, 0 to 100, each the mean of what the reviewers said last; `total` is None where one is missing."""

    parts: Mapping[str, float]

    @property
    def total(self) -> float | None:
        return fmean(self.parts.values()) if len(self.parts) == len(PARTS) else None

    @property
    def points(self) -> Mapping[str, float]:
        """What each part adds to the total, 0 to 20: together they are it."""
        return {name: value / len(PARTS) for name, value in self.parts.items()}


def reviewed(table: Table, tasks: Tasks, said: Said) -> Table:
    """The table with the findings of an entry, numbered from 1 in file order; `tasks` are those after the entry."""
    # Only who raised a finding can say that it is resolved; one of a daemon that blocks ends with the next submission.
    turn, about, raised, found = turn_number(said.id), task_of(said) or tasks.reviewed, table.raised, [*table.findings]
    if submissions(said):
        found = [
            replace(one, resolved="by the next submission", resolved_in=turn, blocks=False)
            if one.by == SYSTEM and one.blocks and one.task == about
            else one
            for one in found
        ]
    for mark in said.written:
        raised += mark.name == "FINDING"  # of a withdrawn turn, too: no number is given again
        if mark.name == "FINDING" and said.counts:
            one = finding(fields_of(mark))
            found.append(replace(one, number=raised, by=said.by, turn=turn, entry=said.id, task=about))
        elif mark.name == "RESOLVED" and said.counts:
            number, how = number_of(mark), " | ".join(fields_of(mark)[1:]) or "resolved"
            for at, one in enumerate(found):
                if one.number == number and (one.by == said.by or (one.by == SYSTEM and not one.blocks)):
                    found[at] = replace(one, resolved=how, resolved_in=said.number, blocks=False)
    is_same = raised == table.raised and found == [*table.findings]
    return table if is_same else replace(table, findings=tuple(found), raised=raised)


def task_of(said: Said) -> int:
    """The number of the task that an entry is about by its first record; 0 for none."""
    return next((number_of(mark) for mark in said.marks if mark.name in ("TASK", "GATE")), 0)


def level(mark: Mark) -> str:
    """The first field in small letters: of a finding how grave it is."""
    return _word(fields_of(mark)[0])


def _word(field: str) -> str:
    return field.strip(" \t*_`.!").casefold()


def finding(fields: tuple[str, ...]) -> Finding:
    """The finding that these fields of a mark tell of; what is too much belongs to the suggestion."""
    # With fewer than five nobody can tell which they are: all but the severity are then the issue.
    if len(fields) < 5:
        fields = (*fields[:1], *[""] * (4 - len(fields[:1])), " | ".join(part for part in fields[1:] if part))
    severity, category, file, line, issue, *rest = fields
    suggestion = " | ".join(part for part in rest if part)
    blocks = _word(severity) in REVIEW["FINDING"].blocks
    return Finding(0, "", 0, severity, category, file, line, issue, suggestion, blocks=blocks)


def score(dialog: Dialog) -> Score | None:
    """The score of the review: the mean of the five parts; None where nobody gave one, and in a build, task by task."""
    last: dict[str, Mapping[str, float]] = {}
    for entry in dialog.entries if not dialog.state.build else ():
        is_read = entry.is_turn and entry.condition not in (Condition.DAMAGED, Condition.UNFINISHED)
        for mark in entry.all("SCORE") if is_read else ():
            if parts := parts_of(fields_of(mark)):
                last[entry.by] = parts
    each = {name: [said[name] for said in last.values() if name in said] for name in PARTS}
    return Score({name: fmean(values) for name, values in each.items() if values}) if last else None


def total_of(text: str) -> float | None:
    """The total of one reviewer's score as its mark has it; None where a part is missing."""
    return Score(parts_of(tuple(field.strip() for field in text.split("|")))).total


def parts_of(fields: tuple[str, ...]) -> dict[str, float]:
    """The parts that one SCORE gives, 0 to 100; what it leaves out is missing."""
    return {name: float(value) for name, value in _scored(fields, dict.fromkeys(PARTS, 100)).items()}


def records_of_work(said: Said) -> tuple[Mark, ...]:
    """What a daemon adds to the turn that carried a task out: its record, and the text to be reviewed."""
    return tuple(m for m in said.marks if m.name == "TASK" or (m.proposes and m.value.startswith("task-")))


def submissions(said: Said) -> list[Mark]:
    """The records of submissions that a daemon wrote in an entry."""
    return [mark for mark in said.all("TASK") if not said.by_hand and "submitted" in fields_of(mark)[1:2]]

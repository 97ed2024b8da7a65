"""The one decision function: what should this agent's daemon do now? Pure; every surface only asks it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dialogd.protocol import questions
from dialogd.protocol.build import Due, Task
from dialogd.protocol.compose import (
    closing_note,
    decided_note,
    going_on,
    limit_mark,
    limit_note,
    stall_note,
    turns_limit,
)
from dialogd.protocol.lifecycle import cycle
from dialogd.protocol.marks import CYCLE
from dialogd.protocol.model import ANY, USER, Condition, Draft, Mark, Outcome
from dialogd.protocol.order import ways_out
from dialogd.protocol.state import Debt, Dialog, Estimate, reached
from dialogd.protocol.text import Zone, in_words, seconds_between

UNFINISHED_REST = 30.0  # seconds an unfinished text must rest before agents go on after it
STALL_GRACE = 60.0  # seconds a peer waits beyond the timeout before it calls an agent stalled
LAIN = 3600.0  # seconds after which a dialog that lay still waits for a notify


@dataclass(frozen=True, slots=True)
class Clock:
    """What a daemon knows beside the file; ages in seconds by its own monotonic clock, since it first saw the thing."""

    at: str = ""  # wall time
    zone: Zone | None = None  # the machine's, by which deadlines are told
    nudged: bool = True  # somebody told this daemon to look: a notify, `new --go`, `run`
    started: bool = False  # the journal remembers that somebody did
    lain: float = 0.0  # how long the file had lain still when this daemon first saw it
    rest: float = 0.0  # since the file last changed
    silent: float = math.inf  # since this agent's own last turn
    ages: Mapping[tuple[str, str, str], float] = field(default_factory=lambda: MappingProxyType({}))
    working: frozenset[str] = frozenset()  # agents whose own daemon says that they work on their debt
    pace: float = 0.0  # seconds between its own turns
    next: Estimate = field(default_factory=Estimate)  # what its turn will cost, and what it spent since its last entry
    cap: Estimate = field(default_factory=Estimate)  # what this agent alone may spend in the dialog
    priced: bool = True  # it is known what this agent's tokens cost
    paid: bool = False  # the reply is here already: nothing more has to be bought for it
    url: str = ""  # where this daemon listens, if it is one
    pause: float = 0.0  # seconds that an agent which failed waits before it is asked again


@dataclass(frozen=True, slots=True)
class Reply:
    """Ask the backend for the turn that pays this debt."""

    debt: Debt


@dataclass(frozen=True, slots=True)
class Write:
    """Append this note; None appends the newline that a finished hand-written text lacks."""

    draft: Draft | None
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing: `status` is a word for programs, `reason` one for people; look again in `seconds` at the latest."""

    status: str
    reason: str
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Work:
    """Do what a build asks this agent's daemon for: open the worktree of `task`, or run its gate. A note says so."""

    debt: Debt
    due: Due
    task: Task


@dataclass(frozen=True, slots=True)
class Stop:
    """The dialog is over."""

    outcome: Outcome


Action = Reply | Write | Work | Wait | Stop


def decide(dialog: Dialog, me: str, clock: Clock) -> Action:
    """What agent `me` does next. `me` may be no agent of the dialog: then it only watches."""
    state = dialog.state
    if state.outcome is not None:
        return Stop(state.outcome)
    if held := _tail(dialog, clock) or _hold(dialog, me, clock):
        return held
    if note := decided_note(dialog, clock.at):
        return Write(note, "decided by the signatures there are")
    return _limits(dialog, clock) or _turn(dialog, me, clock)


def _tail(dialog: Dialog, clock: Clock) -> Action | None:
    last = dialog.last
    if last is None:
        return Wait("no_turn_yet", "the file has a header and no turn yet; write `## Turn 1 — User` and a question")
    if last.condition is Condition.DAMAGED:
        return Wait(
            "damaged",
            f"the entry in line {last.line} was cut or overwritten after it was written; look at it, then go on with"
            " `dialogd say`, `dialogd retry` or a turn of your own",
        )
    if last.condition is Condition.UNFINISHED and clock.rest < UNFINISHED_REST:
        text = "; ".join(filter(None, ("somebody is typing at the end of the file", last.notice)))
        return Wait("unfinished", text, UNFINISHED_REST - clock.rest)
    if last.condition is Condition.UNFINISHED and last.turn is not None:
        return Write(None, "the last line lacked its newline")
    return None


def _hold(dialog: Dialog, me: str, clock: Clock) -> Action | None:
    state, header = dialog.state, dialog.header
    if state.paused:
        return Wait("paused", f"paused by {state.paused_by or 'the person'}; `dialogd resume` goes on")
    if any(agent.id == me for agent in state.hand.left):
        return Wait("left", f"{me} takes part no longer: the person let it leave; `dialogd invite {me}` has it back")
    if header.agent(me) is None:
        ids = ", ".join(agent.id for agent in header.agents)
        return Wait("unknown_agent", f"this dialog has no agent {me}; its agents are {ids}")
    if not (clock.nudged or clock.started or state.has_spoken):
        first = next((a for a in header.agents if a.id in state.owing), header.agents[0])
        return Wait("not_started", f"nobody has started it yet: curl -X POST {clock.url or first.url}/notify")
    lain = min(clock.lain, questions.overdue(dialog, clock.at))
    if not clock.nudged and lain > LAIN:
        return Wait("lain", f"it lay still for {in_words(lain)}; a notify goes on")
    return None


def _limits(dialog: Dialog, clock: Clock) -> Action | None:
    """A limit that a person's turn reached, or that was lowered, ends the dialog by a note."""
    state, limits = dialog.state, dialog.state.limits
    is_owed = any(who != USER for who in state.owing)
    if is_owed and state.counted >= limits.max_turns:
        return _end(dialog, limit_mark("turns", turns_limit(state)), clock)
    if is_owed and dialog.size >= limits.max_size:
        return _end(dialog, limit_mark("size", f"the limit of {limits.max_size:,} bytes"), clock)
    left = time_left(dialog, clock.at)
    if left is not None and left <= 0 and (state.has_spoken or state.debts.missed):
        if not state.closing:  # one last round sums up what there is
            note = closing_note(dialog, f"the time limit of {in_words(limits.max_time or 0.0)}", clock.at)
            return Write(note, "the time is over; one last round")
        if not is_owed:
            return _end(dialog, limit_mark("time", state.closing), clock)
    # With nobody at the table one last round breaks a cycle; the person was asked by the turn that closed it.
    if is_owed and dialog.header.is_unattended and not state.closing and (why := cycle(dialog)):
        return Write(closing_note(dialog, f"{CYCLE}{why}", clock.at), "a cycle; one last round")
    return None


def time_left(dialog: Dialog, at: str) -> float | None:
    """Seconds until `Max Time` is over at wall time `at`; None without such a limit, or without a beginning."""
    state = dialog.state
    if state.limits.max_time is None:
        return None
    first = next((e.at for e in dialog.entries if e.at and (not state.base or e.number > state.base)), "")
    for began in (state.began, "" if state.base else dialog.header.started, first):
        passed = seconds_between(began, at)
        if passed is not None:
            return state.limits.max_time - passed
    return None


def _end(dialog: Dialog, mark: Mark, clock: Clock) -> Write:
    return Write(limit_note(dialog, mark, clock.at), mark.value)


def _turn(dialog: Dialog, me: str, clock: Clock) -> Action:
    state, debts = dialog.state, dialog.state.debts
    mine = state.debt(me)
    all_ = dialog.header.speakers or (me,)
    able = [who for who in all_ if who not in state.absent] or all_
    if mine is None or not (mine.agent == me or me in able):
        return _others(dialog, clock)
    what, task = state.build.due_of(me)
    if task is not None and what in (Due.ASSIGN, Due.GATE):  # what its daemon does before its agent, or anybody, can
        return Work(mine, what, task)
    if not mine.is_ready and debts.seal(me) is not None:
        action = _others(dialog, clock)
        unsealed = ", ".join(who for who in state.owing if debts.seal(who) is None)
        seconds = action.seconds if isinstance(action, Wait) else None
        sealed = Wait("sealed", f"sealed its answer; waiting for {unsealed} to seal theirs", seconds)
        return action if isinstance(action, Write) else sealed
    if (stop := _budget(dialog, me, clock)) is not None:
        return stop
    if clock.silent < clock.pace and dialog.last is not None and dialog.last.by != USER:
        return Wait("pace", f"leaves {clock.pace:g} s between its turns", clock.pace - clock.silent)
    rest = clock.pause - clock.ages.get(mine.timer, 0.0)
    asks = dialog.entry(mine.re) if rest > 0 and not clock.paid and me in debts.failed else None
    if asks is not None and any(who == me for who, *_ in asks.failures):
        return Wait("pace", f"{me} failed; it is asked again after a pause", rest)
    return Reply(mine)


def _budget(dialog: Dialog, me: str, clock: Clock) -> Action | None:
    """A turn that the budget does not allow is not begun: the dialog ends, or waits for a price."""
    if clock.paid:
        return None
    state = dialog.state
    why = reached(state, me, clock.next, clock.cap)
    is_unpriced = not (clock.priced or (state.limits.budget is None and clock.cap.usd is None))
    unknown = f"nobody knows what {me}'s model costs"
    if is_unpriced and not why and dialog.header.is_unattended:
        why = unknown
    if why:
        return _end(dialog, limit_mark("budget", why), clock)
    fix = (
        f"start {me} with --price IN/OUT (dollars per million tokens), or set a budget in tokens:"
        " `[LIMIT: budget 200k tokens]`"
    )
    return Wait("unpriced", f"there is a budget in dollars, and {unknown}; {fix}") if is_unpriced else None


def _others(dialog: Dialog, clock: Clock) -> Action:
    """Whom this agent waits for, and whether one of them has to be called stalled."""
    state, header = dialog.state, dialog.header
    left: list[float] = []
    for debt in state.debts.open:
        age, overdue = clock.ages.get(debt.timer, 0.0), patience(dialog, debt)
        is_waiting = state.debts.seal(debt.agent) is not None and not debt.is_ready
        if overdue is None or is_waiting:
            continue
        if age >= overdue and debt.agent == ANY and (note := going_on(dialog, clock.at)):
            return Write(note, "nobody took the turn, and nobody is at the table")
        if age >= overdue and debt.agent not in clock.working:
            return Write(stall_note(dialog, debt.agent, clock.at), f"{debt.agent} gave no answer in {in_words(age)}")
        left.append(max(overdue - age, 1.0))
    if agents := ", ".join(who for who in state.owing if who != USER):
        late = ", ".join(debt.agent for debt in state.debts.open if debt.stalled)
        text = f"waiting for {agents}" + (f"; no answer in time from {late}" if late else "")
        return Wait("not_my_turn", text, min(left, default=None))
    if note := going_on(dialog, clock.at):
        return Write(note, "nobody is at the table; it goes on without the person")
    notice = dialog.last.notice if dialog.last else ""
    if not state.debts.open:
        return Wait("unknown_turn", "; ".join(filter(None, ("no turn is open", notice, "`dialogd say` goes on"))))
    # Everybody waits for the person; what they were asked runs into its default, where the header allows that.
    if (note := questions.due(dialog, clock.at)) is not None:
        return Write(note, "the person did not answer in time; the default is taken")
    why = questions.waiting(dialog, clock.at, clock.zone) or ways_out(header, state) or notice
    why = why or "it is the person's turn"
    return Wait("waiting_for_user", f"waiting for the person: {why}", questions.next_look(dialog, clock.at))


def patience(dialog: Dialog, debt: Debt) -> float | None:
    """The age in seconds at which others call this debt's agent stalled; None where they do not, or not any more."""
    # Unattended, an agent is called stalled twice and is then absent; an unclaimed `TURN: ANY` passes on.
    if debt.agent == USER or (not dialog.header.is_unattended and (debt.stalled or debt.agent == ANY)):
        return None
    return (dialog.state.limits.timeout_of(debt.agent) + STALL_GRACE) * (2 if debt.stalled else 1)

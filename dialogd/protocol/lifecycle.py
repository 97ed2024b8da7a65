"""Where a dialog stands, in one of four words, what is allowed there, and what can be noticed of it.

not begun ─ an agent speaks → under way ⇄ deciding ─ the end → over
                                  ↑                              │
                                  └─── a new turn of the person ──┘
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, takewhile
from typing import Any

from dialogd.errors import Refused
from dialogd.protocol import build
from dialogd.protocol.marks import AGAINST, read_vote
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry, Said, turn_number
from dialogd.protocol.order import awaited, is_takeable
from dialogd.protocol.state import Dialog, State, budget_standing, used

_IN_WORDS = {"floor": "ask for the floor", "tasks": "decide on tasks"}


def where(dialog: Dialog) -> str:
    """Where the dialog stands: not begun, under way, deciding or over."""
    if dialog.state.outcome is not None:
        return "over"
    if not dialog.state.has_spoken:
        return "not begun"
    return "deciding" if _decides_on(dialog) else "under way"


def _decides_on(dialog: Dialog) -> str:
    """What the dialog is deciding on, in words; "" while it goes to and fro."""
    state, judge = dialog.state, dialog.header.judge
    if state.closing:
        return f"one last round sums up, because of {state.closing}"
    if state.escalation.to:
        who = "the person" if state.escalation.to == USER else state.escalation.to
        return f"{who} is to decide" + (f": {state.escalation.why}" if state.escalation.why else "")
    if judge and judge in state.owing:
        return f"{judge} judges"
    if state.table.red_team:
        return f"the next turn argues against {state.table.red_team}"
    if (standing := state.table.standing) is not None:
        signers = ", ".join(who for who, _ in standing.signers) or "nobody yet"
        return f"the text {standing.proposal.ref} is to be signed; signed by {signers}"
    return ""


def in_words(dialog: Dialog) -> str:
    """The state and why, in plain words: `over: the dialog was stopped`."""
    state = dialog.state
    if state.outcome is not None:
        return f"{where(dialog)}: {state.outcome.words}"
    if not state.has_spoken:
        return f"{where(dialog)}: {'paused; ' if state.paused else ''}no agent has spoken yet"
    still = "paused" if state.paused else "" if set(state.owing) - {USER} else "it waits for you"
    found = "; ".join(filter(None, (still, _decides_on(dialog))))
    return f"{where(dialog)}: {found or 'the agents take their turns'}"


def answers(dialog: Dialog, named: str = "") -> tuple[str, ...]:
    """The commands for what the dialog waits for from the person, the usual one first; each can be typed as it stands.

    `named` stands behind each, such as ` --file F`.
    """
    state, say = dialog.state, f'dialogd say{named} "…"'
    if state.outcome is None and state.build:
        if lacking := awaited(dialog.header, state):
            return (f"dialogd {'retry' if dialog.header.agent(lacking[0]) else 'invite'} {lacking[0]}{named}",)
        if ways := build.ways(state.build, named):
            return (*ways, say) if state.questions.asker else ways
    return (say,)


def continued(dialog: Dialog, named: str = "") -> str:
    """The command that starts its agents again, and has a build go on that was stopped."""
    return f"dialogd {'run' if not dialog.state.build else 'build'} --continue{named}"


def from_sessions(dialog: Dialog) -> tuple[str, ...]:
    """What sessions that hold seats wrote by the person's hand, in words: `B's session, after turn 3: PAUSED`."""
    return tuple(
        f"{entry.from_session}, after turn {turn_number(entry.id)}: "
        + (", ".join(mark.name for mark in entry.written) or "a note")
        for entry in dialog.entries
        if entry.from_session
    )


def why_absent(dialog: Dialog, agent: str, *, command: bool = True) -> str:
    """Why nobody waits for that agent, what happened to it last, and the `command` that has it back."""
    if agent not in dialog.state.absent:
        return ""
    since = takewhile(lambda e: not (e.is_turn and e.by in (agent, USER)), reversed(dialog.entries))
    causes: list[str] = []
    for note in (entry for entry in since if entry.by == SYSTEM):
        causes += [cause for who, cause, _ in note.failures if who == agent]
        causes += ["no answer in time"] * (agent in note.silent)
    last = ", then ".join(dict.fromkeys(filter(None, reversed(causes[:2]))))
    ways = f"; dialogd retry {agent} asks it again" if command and dialog.state.outcome is None else ""
    return f"failed or stalled twice in succession{last and f' ({last})'}: nobody waits for it{ways}"


def commands(dialog: Dialog) -> tuple[str, ...]:
    """The person's own commands that make sense now."""
    state, leave = dialog.state, ("leave",) if len(dialog.header.agents) > 1 else ()
    if state.outcome is not None:
        decide = (*(() if state.approved else ("approve",)), "reject")
        return ("say", *decide, "strike", "limit", "invite", *leave)
    possible = {
        "approve": is_takeable(dialog.header, state),
        **dict.fromkeys(("say", "resume" if state.paused else "pause", "retry", "skip", "stop"), True),
        "floor": dialog.header.rules.order == "free",
        "pass": USER in state.owing,
        "tasks": bool(state.build),
        "veto": any(proposal.ref not in state.table.vetoed for proposal in state.table.proposals),
        **dict.fromkeys(("strike", "limit", "invite", *leave, "step"), True),
    }
    return tuple(name for name, is_possible in possible.items() if is_possible)


def refuse(dialog: Dialog, operation: str) -> None:
    """Raise `Refused` unless the dialog allows this act of the person now."""
    allowed, outcome = commands(dialog), dialog.state.outcome
    if operation in allowed:
        return
    stands, fix = in_words(dialog), f"what it allows now: {', '.join(allowed)}"
    if outcome is not None:
        stands, fix = where(dialog), 'open it again with a turn of yours: dialogd say "…"'
        if dialog.state.build and not outcome.is_complete:
            fix = f"have it go on first: {continued(dialog)}"
    elif operation == "floor":
        stands = f"{where(dialog)}, and its order is {dialog.header.rules.order}, not free"
        fix = 'speak now: dialogd say "…"; or begin a dialog with `order = "free"` in its Setup'
    raise Refused(f"cannot {_IN_WORDS.get(operation, operation)}: the dialog is {stands}", fix=fix)


# -- What can be noticed from outside: repetition, cycles, the budget, and how far the agents agree; it decides nothing

WINDOW = 12  # turns that are looked at, of many agents more
SAME = 0.85  # overlap from which two texts count as nearly the same
WARNINGS = (0.8, 0.5)  # parts of the budget whose spending is noticed
# Phrases of agreement and of disagreement. They are English, and known to be read wrongly ("I agree if …"): they stand
# in for marks where a reply has none, in this one figure.
AGREE = (
    "i agree", "we agree", "i accept", "you're right", "you are right", "good point", "let's proceed", "sounds good",
    "i concede",
)  # fmt: skip
DISAGREE = (
    "i disagree", "i don't agree", "i do not agree", "i object", "i'm not convinced", "i am not convinced",
    "however, i", "on the other hand", "i still think",
)  # fmt: skip
_YES, _NO = frozenset({"AGREE", "CONCEDE", "approve"}), frozenset({*AGAINST, "reject"})
_ADVICE = "call it a deadlock with both positions, the crux and the cheapest experiment that would settle it"


@dataclass(frozen=True, slots=True)
class Signal:
    """One observation: `kind` for programs, `text` for people and prompts, `agents` whom it concerns."""

    kind: str
    text: str
    agents: tuple[str, ...]


def signals(dialog: Dialog) -> tuple[Signal, ...]:
    """What can be noticed in the latest turns, most pressing first; nothing after the end."""
    if dialog.state.outcome is not None:
        return ()
    recent = [*islice(_turns(dialog, WINDOW * 3), WINDOW)][::-1]
    return tuple(filter(None, (_repeating(recent), _cycle(recent), budget(dialog.state))))


def convergence(dialog: Dialog) -> float | None:
    """How far the latest replies agree, 0 to 1; 1 once a decision was made, None before two agents have spoken."""
    # The mean over each agent's latest reply since the person spoke, bare passes left out: 1 for a yes, 0 for a no, a
    # half for both or neither.
    outcome, table, speakers = dialog.state.outcome, dialog.state.table, set(dialog.header.speakers)
    if outcome is not None and outcome.is_agreed:
        return 1.0
    signed = {who for who, _ in table.standing.signers} if table.standing else set()
    latest: dict[str, Entry] = {}
    for entry in _turns(dialog, 3 * max(WINDOW, len(speakers))):
        if entry.by in speakers and (entry.body.strip() or not all(mark.is_pass for mark in entry.marks)):
            latest.setdefault(entry.by, entry)
    stands = [1.0 if entry.by in signed else _stance(entry) for entry in latest.values()]
    return sum(stands) / len(stands) if len(stands) > 1 else None


def _stance(entry: Entry) -> float:
    """What a reply holds, 1 for a yes, 0 for a no: by its marks, else by its phrases outside of quotations."""
    kinds = {mark.name for mark in entry.marks} | {choice.choice for choice in read_vote(entry.marks).values()}
    yes, no = bool(kinds & _YES), bool(kinds & _NO)
    if not (yes or no):
        own = " ".join(line for line in entry.body.lower().split("\n") if not line.lstrip().startswith(">"))
        said = " ".join(own.replace("’", "'").split())
        yes, no = (any(re.search(rf"\b{phrase}\b", said) for phrase in phrases) for phrases in (AGREE, DISAGREE))
    return (1 + yes - no) / 2


def cycle(dialog: Dialog, *said: Said) -> str:
    """The cycle that the dialog is caught in with what is `said` next, in words; "" where it has not come three times.

    Only where its Setup wants cycles broken: looking for one takes time.
    """
    if dialog.header.setup.get("break_cycles") is not True:
        return ""
    recent = [*[*islice(_turns(dialog, WINDOW * 3), WINDOW)][::-1], *said]
    found = (signal for signal in (_cycle(recent), _repeating(recent)) if signal is not None)
    return next((s.text.partition("; ")[0] for s in found if s.kind == "deadlock_suggested"), "")


def budget(state: State) -> Signal | None:
    """Half of the budget is spent, or four fifths."""
    part = used(state) or 0.0
    reached = next((level for level in WARNINGS if part >= level), None)
    words = f"{reached:.0%} of the budget is spent: {budget_standing(state)}" if reached else ""
    return Signal("budget", words, ()) if words else None


def _turns(dialog: Dialog, most: int) -> Iterator[Entry]:
    since = takewhile(lambda e: not (e.by == USER and e.is_turn), islice(reversed(dialog.entries), most))
    return (e for e in since if e.is_turn and e.condition is not Condition.DAMAGED and e.counts)


def _repeating(recent: Sequence[Said]) -> Signal | None:
    """An agent's last three texts are nearly the same: a warning; four or more: a deadlock is suggested."""
    for agent in dict.fromkeys(entry.by for entry in reversed(recent)):
        own = [entry.body for entry in recent if entry.by == agent]
        same = 1
        while same < len(own) and overlap(own[-same], own[-same - 1]) >= SAME:
            same += 1
        said = f"{agent} has said nearly the same thing"
        if same > 3:
            return Signal("deadlock_suggested", f"{said} {same} times; {_ADVICE}", (agent,))
        if same == 3:
            return Signal("repetition", f"{said} three times", (agent,))
    return None


def _cycle(recent: Sequence[Said]) -> Signal | None:
    """The last turns repeat the turns before them: twice is a warning, three times suggests a deadlock."""
    for length in (2, 3, 4):
        rounds = 1
        while _repeats(recent, length, rounds):
            rounds += 1
        agents = tuple(dict.fromkeys(entry.by for entry in recent[-length:]))
        if rounds >= 3:
            return Signal("deadlock_suggested", f"the same {length} turns have come {rounds} times; {_ADVICE}", agents)
        if rounds == 2:
            return Signal("cycle", f"the last {length} turns repeat the {length} before them", agents)
    return None


def _repeats(recent: Sequence[Said], length: int, rounds: int) -> bool:
    start = len(recent) - length * (rounds + 1)
    pairs = zip(recent[start : start + length], recent[-length:], strict=True) if start >= 0 else ()
    return start >= 0 and all(a.by == b.by and overlap(a.body, b.body) >= SAME for a, b in pairs)


def overlap(one: str, other: str) -> float:
    """Intersection over union of the words of four letters or more; 1.0 for two texts without any."""
    a, b = _words(one), _words(other)
    return len(a & b) / len(a | b) if a | b else 1.0


@lru_cache(maxsize=8 * WINDOW)
def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w{4,}", text.lower()))


# -- What programs of others call it: the one mapping of names, through which every door passes ------------------------

LIFECYCLE = {
    "not begun": ("dormant", ("start", "configure", "add agent")),
    "under way": ("streaming", ("post", "read", "vote", "stop")),
    "deciding": ("converging", ("vote", "moderate", "decide")),
    "over": ("collapsed", ("harvest", "reset")),
}
SESSIONS = ("initializing", "spawning_agents", "running", "completing", "completed", "error", "timeout")
OPEN_SESSIONS = SESSIONS[:4]
AGENTS = ("idle", "thinking", "executing", "failed", "stopped", "elsewhere")
WORDS = ("text", "message", "content")


def lifecycle_of(dialog: Dialog | None) -> str | None:
    """Where a dialog stands: dormant, streaming, converging, collapsed; None without one."""
    return LIFECYCLE[where(dialog)][0] if dialog is not None else None


def allowed(dialog: Dialog | None) -> list[str]:
    """What is allowed now: the words of the lifecycle, then the person's commands."""
    return [*dict.fromkeys((*LIFECYCLE[where(dialog)][1], *commands(dialog)))] if dialog is not None else []


def session_state(dialog: Dialog | None, state: str) -> str:
    """One of `SESSIONS` for what runs on a dialog: `state` is starting, running, waiting, asleep or ended."""
    outcome = dialog.state.outcome if dialog is not None else None
    if outcome is not None:
        return {"time": "timeout", "error": "error"}.get(outcome.cause, "completed")
    if state == "starting":
        return "spawning_agents" if dialog is not None else "initializing"
    if state == "asleep" or dialog is None:
        return "error"
    return "completing" if dialog.state.closing else "running"


def agent_state(dialog: Dialog, agent: str, healths: Mapping[str, Any], elsewhere: Collection[str] = ()) -> str:
    """One of `AGENTS`: `healths` of agents with a daemon, None for no answer; `elsewhere` those on other machines."""
    if agent in dialog.state.absent or agent in dialog.state.debts.failed:
        return "failed"
    if dialog.state.outcome is not None or agent not in healths:
        return "elsewhere" if agent in elsewhere else "stopped"
    working = (healths[agent] or {}).get("working_on")
    return str(working.get("state") or "thinking") if working else "idle"


def worded(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a program sent, with its words under `name`, whichever of `WORDS` it calls them."""
    other = next((one for one in WORDS if one in given), name) if name not in given else name
    return {name if one == other else one: value for one, value in given.items()}

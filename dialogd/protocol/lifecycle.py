"""Where a dialog stands, in one of four words, and what is allowed there. Folded from the file, like everything.

not begun ─ an agent speaks → under way ⇄ deciding ─ the end → over
                                  ↑                              │
                                  └─── a new turn of the person ──┘
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from dialogd.errors import Refused
from dialogd.protocol import build
from dialogd.protocol.model import SYSTEM, USER
from dialogd.protocol.order import awaited, is_takeable
from dialogd.protocol.state import Dialog

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
    found, turn = [], 0
    for entry in dialog.entries:
        turn = entry.number or turn
        if entry.from_session:
            what = ", ".join(mark.name for mark in entry.written) or "a note"
            found.append(f"{entry.from_session}, after turn {turn}: {what}")
    return tuple(found)


def why_absent(dialog: Dialog, agent: str, *, command: bool = True) -> str:
    """Why nobody waits for that agent, what happened to it last, and the `command` that has it back.

    "" while it is not absent.
    """
    if agent not in dialog.state.absent:
        return ""
    since = itertools.takewhile(lambda e: not (e.is_turn and e.by in (agent, USER)), reversed(dialog.entries))
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
    allowed, outcome, order = commands(dialog), dialog.state.outcome, dialog.header.rules.order
    if operation in allowed:
        return
    stands, fix = in_words(dialog), f"what it allows now: {', '.join(allowed)}"
    if outcome is not None:
        stands, fix = where(dialog), 'open it again with a turn of yours: dialogd say "…"'
        if dialog.state.build and not outcome.is_complete:
            fix = f"have it go on first: {continued(dialog)}"
    elif operation == "floor":
        stands = f"{where(dialog)}, and its order is {order}, not free"
        fix = 'speak now: dialogd say "…"; or begin a dialog with `order = "free"` in its Setup'
    raise Refused(f"cannot {_IN_WORDS.get(operation, operation)}: the dialog is {stands}", fix=fix)


# -- What programs of others call it: the one mapping of names, through which every door passes ------------------------

LIFECYCLE = {
    "not begun": ("dormant", ("start", "configure", "add agent")),
    "under way": ("streaming", ("post", "read", "vote", "stop")),
    "deciding": ("converging", ("vote", "moderate", "decide")),
    "over": ("collapsed", ("harvest", "reset")),
}
SESSIONS = ("initializing", "spawning_agents", "running", "completing", "completed", "error", "timeout")
OPEN_SESSIONS = SESSIONS[:4]
AGENTS = ("idle", "thinking", "executing", "failed", "stopped")
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


def agent_state(dialog: Dialog, agent: str, healths: Mapping[str, Mapping[str, Any] | None]) -> str:
    """One of `AGENTS`: `healths` holds the agents with a daemon, None for one that does not answer."""
    if agent in dialog.state.absent or agent in dialog.state.debts.failed:
        return "failed"
    if dialog.state.outcome is not None or agent not in healths:
        return "stopped"
    working = (healths[agent] or {}).get("working_on")
    return str(working.get("state") or "thinking") if working else "idle"


def worded(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a program sent, with its words under `name`, whichever of `WORDS` it calls them."""
    other = next((one for one in WORDS if one in given), name) if name not in given else name
    return {name if one == other else one: value for one, value in given.items()}

"""The state of a dialog and its agents as the page shows it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dialogd.agent.loop import Agent
from dialogd.backends.seats import start_again
from dialogd.protocol import lifecycle
from dialogd.protocol.certificate import certify
from dialogd.protocol.decide import time_left
from dialogd.protocol.model import ANY, USER, Outcome
from dialogd.protocol.state import Dialog, Spent, in_dollars, total
from dialogd.protocol.text import dollars, in_words, listed, one_line
from dialogd.server import page_build, wire
from dialogd.server.page_entries import Seats, cast, changed
from dialogd.store.disk import StateDir
from dialogd.store.logfile import wall_time
from dialogd.store.registry import home_port
from dialogd.views.standing import phase

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
        if self._asking is None and time.monotonic() - self._asked_at > FRESH:
            self._asking = asyncio.create_task(self._ask())
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=PATIENCE)
        return self._known

    async def _ask(self) -> None:
        try:
            self._known = await self._agent.peers.healths(self._agent.dialog, str(self._agent.file.path))
            self._asked_at = time.monotonic()
        finally:
            self._asking = None


# -- Where a dialog stands --------------------------------------------------------------------------------------------

_REOPEN = "A word of yours opens it again; turns, rounds and time are counted anew, and a budget can be raised."
_REHEARSAL = "A rehearsal, no model is asked. "
_START = {"not_started": "Start", "lain": "Go on"}  # what a daemon waits for, and the button that ends it
_NOTHING = {
    "start": "", "again": "", "home": 0, "phase": "no_dialog", "dialog": "", "topic": "", "agents": [], "total": 0,
    "where": "", "limits": {}, "left": [], "usd": None, "cost": "", "tokens": 0, "question": None, "questions": [],
    "calls": [], "outcome": None, "approved": "", "proposals": [], "step": False, "paused": False, "changed_from": 0,
    "changed": {}, "build": False, "acts": [],
}  # fmt: skip


def page_state(
    agent: Agent, own: wire.Health, state_dir: StateDir, healths: Healths, problem: str = ""
) -> dict[str, Any]:
    """Everything around the conversation, of the dialog as last read.

    `problem` says why it could not be read just now.
    """
    dialog, file = agent.dialog, str(agent.file.path)
    taken = {"version", "lifecycle", "allowed", "signals", "warnings", "turn", "turn_of", "port", "file"}
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
    words, needed = _stand(dialog, players, agents, calls, start)
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
        "limits": asdict(state.limits),
        "left": list(_left(dialog)),
        **_spent(total(state.spent)),
        "question": asked[0] if asked else None,
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
        "acts": page_build.acts_of(state.build) if USER in state.owing and state.outcome is None else [],
    }


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _start_button(dialog: Dialog, healths: Healths) -> str:
    """What the button is called for which those who owe a turn wait; "" where they wait for nothing of the kind."""
    all_ = [agent.id for agent in dialog.header.agents]
    owing = all_ if ANY in dialog.state.owing else dialog.state.owing
    waits = ((healths.get(who) or {}).get("waiting") or {} for who in owing)
    return next((_START[one["status"]] for one in waits if one.get("status") in _START), "")


def _stand(
    dialog: Dialog, players: Seats, agents: Sequence[dict[str, Any]], calls: Sequence[dict[str, Any]], start: str
) -> tuple[str, str]:
    """What happens, and what is needed of the person, each in a sentence; "" where nothing is needed."""
    state, asked = dialog.state, page_build.asked(dialog.state.build)
    busy = [agent["name"] for agent in agents if agent["state"] in ("thinking", "executing")]
    writing = f"{listed(busy)} {_are(busy)} writing turn {state.number + 1}." if busy else ""
    if state.outcome is not None:
        return _stand_at_end(dialog, state.outcome)
    if calls:
        return f"{calls[0]['name']} wants to call {calls[0].get('tool')}.", "Approve or refuse it."
    if state.paused:
        by = state.paused_by or "you"
        return f"Paused by {by}. {writing}".strip(), "Press Resume to go on."
    if USER in state.owing and asked[0]:
        return asked
    if state.questions.text:
        asker = players.name(state.questions.asker) or "The dialog"
        return f"{asker} asks you a question.", "Answer it below."
    if start:
        owing = listed([players.name(who) for who in state.owing if who not in (USER, ANY)]) or "the first agent"
        words = "Nobody has started this dialog yet." if start == "Start" else "This dialog has rested for a while."
        return words, f"Press {start}, and {owing} will reply."
    if any(agent["doing"] for agent in agents):
        return page_build.under_way(state.build, players.name), ""
    return (writing, "") if writing else _owed(dialog, agents)


def _stand_at_end(dialog: Dialog, outcome: Outcome) -> tuple[str, str]:
    if dialog.state.build:
        words, needed = page_build.ended(dialog)
        return words if outcome.is_complete else f"{_ended(outcome)} {words}", needed
    is_new = outcome.is_agreed and not dialog.state.approved
    return _ended(outcome), "Approve it, or say what is wrong." if is_new else ""


def _owed(dialog: Dialog, agents: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Who is next while nobody writes, and what keeps them."""
    owing = [agent for agent in agents if agent["owes"]]
    names, gone = [one["name"] for one in owing], [one["name"] for one in owing if one["alive"] is False]
    failed = [one["name"] for one in owing if one["failed"]]
    absent = [one["name"] for one in agents if one["state"] == "absent"]
    if gone:
        words = f"Waiting for {listed(gone)}, whose daemon does not answer."
        needed = "Start it: the command that starts it stands at its name."
    elif failed:
        words, needed = f"{listed(failed)} failed.", "It is asked again by itself, unless you choose at its name."
    elif names:
        words, needed = f"{listed(names)} {_are(names)} next.", ""
    elif ANY in dialog.state.owing:
        words, needed = "Anybody may take the next turn.", ""
    elif dialog.state.owing:
        choose = f"Choose what becomes of {listed(absent)}, or write below."
        words, needed = "It is your turn.", choose if absent else "Write below, or let the next agent speak."
    else:
        words, needed = "Nobody has the next turn.", "Say something to go on."
    notice = dialog.last.notice if dialog.last is not None else ""
    return f"{words} {_sentence(notice)}" if notice else words, needed


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _ended(outcome: Outcome) -> str:
    if outcome.from_session:
        return f"The dialog was stopped by {outcome.from_session}, not by you."
    return _sentence(outcome.words)


def _outcome(dialog: Dialog) -> dict[str, Any] | None:
    if (ended := dialog.state.outcome) is None:
        return None
    is_agreed = ended.is_agreed
    certificate = certify(dialog) if is_agreed else None
    signers = certificate.signers if certificate else ()
    return {
        **{name: getattr(ended, name) for name in ("name", "reason", "by", "entry", "failed")},
        "words": f"{_REHEARSAL if dialog.is_rehearsed else ''}{_ended(ended)}",
        "signers": [f"{one.name} in turn {one.turn}" if one.turn else one.name for one in signers],
        "next": "" if is_agreed or dialog.state.approved else _REOPEN,
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
    told = agent.hub.state_of(who)
    # One that never spoke, and was never heard of: somebody has just been invited, or the dialog begins.
    is_new = who not in state.floor.spoke_at and who not in agent.peers.backends
    gone = ("unstarted" if is_new else "stopped") if alive is False else "idle"
    busy = told.state if told is not None and told.is_at_it else "thinking"
    start = start_again(state_dir, agent.file.path, dialog.id, who)
    waiting, reason = said.get("waiting") or {}, "" if work else absent
    if alive is False and not absent:
        how = "start it in a terminal of its own" if is_new else "its daemon does not answer; start it again"
        reason = f"{how}: {start}"
    elif not (work or absent or failed) and waiting.get("status") not in _USUAL:
        reason = str(waiting.get("reason") or "")  # what everybody waits for is said once, at the top
    # At tasks it is also at it while its daemon runs the gate, and nothing is written.
    is_at_it = owes and alive is not False and not failed and not state.paused and state.outcome is None
    return {
        "id": who,
        "name": players.names[who],
        "seat": players.seats[who],
        "url": agent.peers.of(dialog).get(who, ""),
        "own": who == agent.me,
        "start": start,
        "alive": alive,
        "state": busy if work else "absent" if absent else "failed" if failed else gone,
        "turn": work.get("turn"),
        "since": work.get("seconds"),
        "reason": reason,
        "doing": page_build.doing(state.build, who, is_writing=bool(work)) if is_at_it else "",
        "backend": LIVE if said.get("backend") == "live" else str(said.get("backend") or ""),
        "model": str(said.get("model") or ""),
        "owes": who in state.owing,
        "failed": failed,
        **_spent(state.spent.get(who, Spent())),
    }


def _spent(spent: Spent) -> dict[str, Any]:
    return {"usd": spent.usd if spent.entries > spent.unknown else None, "cost": cost(spent), "tokens": spent.tokens}


def cost(spent: Spent) -> str:
    """The known spending in words; "" for none."""
    return in_dollars(spent).replace("unknown", "cost unknown") if spent.entries else ""

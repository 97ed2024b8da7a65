"""The state of a dialog and its agents as the page shows it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dialogd.agent.loop import Agent
from dialogd.backends.auto import COMMANDS, SCENARIOS
from dialogd.backends.seats import start_again
from dialogd.config import start_command
from dialogd.person import now
from dialogd.protocol import lifecycle
from dialogd.protocol.certificate import certify
from dialogd.protocol.decide import time_left
from dialogd.protocol.model import AGREED, ANY, USER, whose
from dialogd.protocol.state import Dialog, Outcome, Spent, total
from dialogd.protocol.text import dollars, in_words, listed, one_line
from dialogd.server import page_build, wire
from dialogd.server.page_entries import Seats, cast, changed
from dialogd.store.folders import StateDir
from dialogd.store.registry import home_port
from dialogd.views.standing import phase

FRESH = 0.5  # seconds for which an answer of another daemon is good enough
PATIENCE = 0.3  # seconds to wait for one; a daemon that is slow is asked in the background

Healths = Mapping[str, dict[str, Any] | None]


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


def page_agents(
    agent: Agent, dialog: Dialog, players: Seats, healths: Healths, state_dir: StateDir
) -> list[dict[str, Any]]:
    """All agents that take part now, by what their daemons say; `healths` includes this daemon's own."""
    urls = agent.peers.of(dialog)
    return [
        {
            "id": one.id,
            "name": one.name,
            "seat": players.seats[one.id],
            "url": urls.get(one.id, ""),
            "own": one.id == agent.me,
            **_doing(agent, dialog, one.id, healths, _start(agent, dialog, one.id, state_dir)),
            **_spent(dialog.state.spent.get(one.id, Spent())),
        }
        for one in dialog.header.agents
    ]


def _start(agent: Agent, dialog: Dialog, who: str, state_dir: StateDir) -> str:
    """The command that starts an agent's daemon as it was last started, else with its backend."""
    path = agent.file.path
    name = {**agent.peers.backends, agent.me: agent.backend.name}.get(who, "")
    known, plain = start_again(state_dir, path, dialog.id, who), start_command(who, path)
    # What follows the colon of these is not told, and they are another agent without it.
    is_enough = name and name.partition(":")[0] not in COMMANDS | SCENARIOS
    return start_command(who, path, ["--backend", name]) if known == plain and is_enough else known


_USUAL = frozenset({"not_my_turn", "waiting_for_user", "paused", "not_started", "lain", "no_turn_yet", "unknown_turn"})
LIVE = "live session, keeps its own permissions (may write to its project)"


def _doing(agent: Agent, dialog: Dialog, who: str, healths: Healths, start: str) -> dict[str, Any]:
    """What an agent is doing, by its daemon's health."""
    said = healths.get(who) or {}
    alive = bool(said) if who in healths else None
    owes = bool({who, ANY} & set(dialog.state.owing))
    # An answer may be older than the turn that paid the debt: who owes nothing thinks no more.
    work, waiting = (said.get("working_on") or {}) if owes else {}, said.get("waiting") or {}
    told = agent.hub.state_of(who)
    busy = told.state if told is not None and told.is_at_it else "thinking"
    failed = who in dialog.state.debts.failed
    # At tasks it is also at it while its daemon runs the gate, and nothing is written.
    is_at_it = owes and alive is not False and not failed and not dialog.state.paused and dialog.state.outcome is None
    doing = page_build.doing(dialog.state.build, who, is_writing=bool(work)) if is_at_it else ""
    # One that never spoke, and was never heard of: somebody has just been invited, or the dialog begins.
    is_new = who not in dialog.state.floor.spoke_at and who not in agent.peers.backends
    gone, absent = "unstarted" if is_new else "stopped", lifecycle.why_absent(dialog, who, command=False)
    # What everybody waits for is said once, at the top; why an agent failed, in the conversation.
    usual = failed or waiting.get("status") in _USUAL
    reason = "" if work else absent or ("" if usual else str(waiting.get("reason") or ""))
    if alive is False and not absent:
        how = "start it in a terminal of its own" if is_new else "its daemon does not answer; start it again"
        reason = f"{how}: {start}"
    return {
        "start": start,
        "alive": alive,
        "state": busy if work else "absent" if absent else "failed" if failed else gone if alive is False else "idle",
        "turn": work.get("turn"),
        "since": work.get("seconds"),
        "reason": reason,
        "doing": doing,
        "backend": LIVE if said.get("backend") == "live" else str(said.get("backend") or ""),
        "model": str(said.get("model") or ""),
        "owes": who in dialog.state.owing,
        "failed": failed,
    }


def _spent(spent: Spent) -> dict[str, Any]:
    return {"usd": spent.usd if spent.entries > spent.unknown else None, "cost": cost(spent), "tokens": spent.tokens}


def cost(spent: Spent) -> str:
    """The known spending in words; "" for none."""
    if spent.unknown == spent.entries:
        return "cost unknown" if spent.entries else ""
    return f"{'' if spent.exact and not spent.unknown else 'about '}{dollars(spent.usd)}"


# -- Where a dialog stands, for the page ------------------------------------------------------------------------------

_REOPEN = "A word of yours opens it again; turns, rounds and time are counted anew, and a budget can be raised."
_REHEARSAL = "A rehearsal, no model is asked. "


def page_state(
    agent: Agent, own: wire.Health, state_dir: StateDir, healths: Healths, problem: str = ""
) -> dict[str, Any]:
    """Everything around the conversation, of the dialog as last read; docs/http.md says what each field means.

    `problem` says why it could not be read just now.
    """
    dialog, file = agent.dialog, str(agent.file.path)
    state = {
        **own.model_dump(include={"version", "lifecycle", "allowed", "signals", "warnings", "turn", "turn_of"}),
        "me": agent.me, "port": own.port, "file": file, "problem": problem, "start": "", "again": "", "home": 0,
        "phase": "no_dialog", "dialog": "", "topic": "", "agents": [], "total": 0, "where": "", "limits": {},
        "left": [], "usd": None, "cost": "", "tokens": 0, "question": None, "questions": [], "calls": [],
        "outcome": None, "approved": "", "proposals": [], "step": False, "paused": False, "changed_from": 0,
        "changed": {}, "build": False, "acts": [],
    }  # fmt: skip
    if dialog is None:
        words = problem or f"There is no dialog at {file} yet."
        needed = "" if problem else "Write one there, or by dialogd new: this page shows it at once."
        return state | {"words": words, "needed": needed}
    players, healths = cast(dialog), {**healths, agent.me: own.model_dump()}
    agents = page_agents(agent, dialog, players, healths, state_dir)
    calls, start = _calls(own, healths, players), _start_button(dialog, healths)
    words, needed = _stand(dialog, players, agents, calls, start)
    changed_from, versions = changed(dialog)
    asked = [{**one.model_dump(), "name": players.name(one.asker)} for one in own.questions]
    waits = USER in dialog.state.owing and dialog.state.outcome is None
    is_rehearsal = dialog.is_rehearsed and dialog.state.outcome is None  # the card of the end says it by itself
    return state | {
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
        "where": _where(dialog),
        "limits": asdict(dialog.state.limits),
        "left": list(_left(dialog)),
        **_spent(total(dialog.state.spent)),
        "question": asked[0] if asked else None,
        "questions": asked,
        "calls": calls,
        "outcome": _outcome(dialog),
        "approved": dialog.state.approved,
        "proposals": [
            {"ref": made.ref, "words": one_line(made.text, 80)}
            for made in reversed(dialog.state.table.proposals)
            if made.ref not in dialog.state.table.vetoed
        ],
        "step": dialog.state.hand.step,
        "paused": dialog.state.paused,
        "changed_from": changed_from,
        "changed": versions,
        "build": bool(dialog.state.build),
        "acts": page_build.acts_of(dialog.state.build) if waits else [],
    }


def _calls(own: wire.Health, healths: Healths, players: Seats) -> list[dict[str, Any]]:
    """The calls that wait for the person, of this daemon's agent and of the others."""
    others = (said.get("calls") for who, said in healths.items() if said and who != own.id)
    told = [*(one.model_dump() for one in own.calls), *(one for calls in others for one in calls or ())]
    return [{**one, "name": players.name(str(one.get("agent")))} for one in told]


_START = {"not_started": "Start", "lain": "Go on"}  # what a daemon waits for, and the button that ends it


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
    state = dialog.state
    if state.outcome is not None and state.build:
        words, needed = page_build.ended(dialog)
        why = "" if state.outcome.name in ("DECIDED", "DEADLOCK") else f"{_ended(state.outcome)} "
        return f"{why}{words}", needed
    if state.outcome is not None:
        is_agreed = state.outcome.is_agreed
        return _ended(state.outcome), "Approve it, or say what is wrong." if is_agreed and not state.approved else ""
    busy = [agent for agent in agents if agent["state"] in ("thinking", "executing")]
    writing = _writing(busy, state.number + 1)
    if calls:
        return f"{calls[0]['name']} wants to call {calls[0].get('tool')}.", "Approve or refuse it."
    if state.paused:
        by = whose(state.paused_via) if state.paused_via else "you"
        return f"Paused by {by}. {writing}".strip(), "Press Resume to go on."
    asker = players.name(state.questions.asker)
    if USER in state.owing and (told := page_build.asked(state.build))[0]:
        return told
    if state.questions.text:
        return f"{asker or 'The dialog'} asks you a question.", "Answer it below."
    if start:
        owing = listed([players.name(who) for who in state.owing if who not in (USER, ANY)]) or "the first agent"
        words = "Nobody has started this dialog yet." if start == "Start" else "This dialog has rested for a while."
        return words, f"Press {start}, and {owing} will reply."
    if state.build and any(agent["doing"] for agent in agents):
        return page_build.under_way(state.build, players.name), ""
    if writing:
        return writing, ""
    return _owed(dialog, players, agents)


def _owed(dialog: Dialog, players: Seats, agents: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Who is next while nobody writes, and what keeps them."""
    notice = dialog.last.notice if dialog.last is not None else ""
    odd = f" {notice[0].upper()}{notice[1:]}." if notice else ""
    owing = [agent for agent in agents if agent["owes"]]
    gone = [agent["name"] for agent in owing if agent["alive"] is False]
    if gone:
        command = "the command that starts it stands at its name" if len(gone) == 1 else "the commands stand below"
        return f"Waiting for {listed(gone)}, whose daemon does not answer.{odd}", f"Start it: {command}."
    if failed := [agent["name"] for agent in owing if agent["failed"]]:
        return f"{listed(failed)} failed.{odd}", "It is asked again by itself, unless you choose at its name."
    if owing:
        return f"{listed([agent['name'] for agent in owing])} {'is' if len(owing) == 1 else 'are'} next.{odd}", ""
    if ANY in dialog.state.owing:
        return f"Anybody may take the next turn.{odd}", ""
    if dialog.state.owing:
        absent = [agent["name"] for agent in agents if agent["state"] == "absent"]
        if absent:
            return f"It is your turn.{odd}", f"Choose what becomes of {listed(absent)}, or write below."
        return f"It is your turn.{odd}", "Write below, or let the next agent speak."
    return f"Nobody has the next turn.{odd}", "Say something to go on."


def _writing(busy: Sequence[dict[str, Any]], number: int) -> str:
    """Who is replying; "" for nobody."""
    if not busy:
        return ""
    return f"{listed([agent['name'] for agent in busy])} {'is' if len(busy) == 1 else 'are'} writing turn {number}."


def _where(dialog: Dialog) -> str:
    """The dialog's state in plain words; "" once it is over, which the head of the page says."""
    words = lifecycle.in_words(dialog)
    return "" if dialog.state.outcome is not None else f"{words[0].upper()}{words[1:]}."


def _ended(outcome: Outcome) -> str:
    if outcome.from_session:
        return f"The dialog was stopped by {outcome.from_session}, not by you."
    return f"{outcome.words[0].upper()}{outcome.words[1:]}."


def _outcome(dialog: Dialog) -> dict[str, Any] | None:
    ended = dialog.state.outcome
    if ended is None:
        return None
    is_agreed = ended.name in AGREED
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
    time = time_left(dialog, now())
    used: dict[str, tuple[float | None, float]] = {
        "turns": (limits.max_turns, state.counted),
        "rounds": (limits.max_rounds, state.floor.rounds),
        "time": (limits.max_time, (limits.max_time or 0.0) - time) if time is not None else (None, 0.0),
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

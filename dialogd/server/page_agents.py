"""The agents of a dialog as the page shows them: what each one does, since when, what keeps it, what it cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from dialogd.agent.loop import Agent
from dialogd.backends.auto import COMMANDS, SCENARIOS
from dialogd.backends.seats import start_again
from dialogd.config import start_command
from dialogd.protocol import lifecycle, money
from dialogd.protocol.model import ANY
from dialogd.protocol.state import Dialog, State
from dialogd.protocol.units import dollars
from dialogd.server.page_entries import Cast
from dialogd.store.folders import StateDir

FRESH = 0.5  # seconds for which an answer of another daemon is good enough
PATIENCE = 0.3  # seconds to wait for one; a daemon that is slow is asked in the background

Healths = Mapping[str, dict[str, Any] | None]


class PageAgent(BaseModel):
    """An agent and its daemon. `alive` is null until it was asked; `since` is for how many seconds it thinks.

    `start` is the command that starts its daemon, with what is known of what plays it.
    """

    id: str
    name: str
    seat: int
    url: str
    start: str
    own: bool
    alive: bool | None
    state: str
    turn: int | None
    since: float | None
    reason: str
    backend: str
    model: str
    usd: float | None
    cost: str
    tokens: int
    owes: bool
    failed: bool


class Neighbours:
    """What the other daemons last said of themselves: asked seldom, and never waited for long."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._known: Healths = {}
        self._asked_at = 0.0
        self._asking: asyncio.Task[None] | None = None

    async def healths(self) -> Healths:
        """By agent id, as `GET /health` answers; None for one that does not. One never asked before is missing."""
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


def page_agents(agent: Agent, dialog: Dialog, players: Cast, healths: Healths, state_dir: StateDir) -> list[PageAgent]:
    """Everybody who takes part now; `healths` has this daemon's own answer too."""
    urls = agent.peers.of(dialog)
    starts = _starts(agent, dialog, state_dir)
    return [
        PageAgent(
            id=one.id,
            name=one.name,
            seat=players.seats[one.id],
            url=urls.get(one.id, ""),
            start=starts[one.id],
            own=one.id == agent.me,
            **_doing(agent, dialog, one.id, healths, starts[one.id]),
            **_spent(dialog.state, one.id),
        )
        for one in dialog.header.agents
    ]


def _starts(agent: Agent, dialog: Dialog, state_dir: StateDir) -> dict[str, str]:
    """By agent id, the command that starts its daemon as it was last, else with the backend that it had."""
    path = agent.file.path
    backends = {**agent.peers.backends, agent.me: agent.backend.name}

    def start(who: str) -> str:
        known, name = start_again(state_dir, path, dialog.id, who), backends.get(who, "")
        # What follows the colon of these is not told, and they are another agent without it.
        is_enough = name and name.partition(":")[0] not in COMMANDS | SCENARIOS
        plain = start_command(who, path)
        return start_command(who, path, ["--backend", name]) if known == plain and is_enough else known

    return {one.id: start(one.id) for one in dialog.header.agents}


def _doing(agent: Agent, dialog: Dialog, who: str, healths: Healths, start: str) -> dict[str, Any]:
    """What an agent does, by its daemon's answer."""
    said = healths.get(who) or {}
    alive = bool(said) if who in healths else None
    owes = bool({who, ANY} & set(dialog.state.owing))
    # An answer may be older than the turn that paid the debt: who owes nothing thinks no more.
    work, waiting = (said.get("working_on") or {}) if owes else {}, said.get("waiting") or {}
    told = agent.hub.state_of(who)
    busy = told.state if told is not None and told.is_at_it else "thinking"
    failed = who in dialog.state.failed
    # One that never spoke, and was never heard of: somebody has just been invited, or the dialog begins.
    is_new = who not in dialog.state.spoke_at and who not in agent.peers.backends
    gone, absent = "unstarted" if is_new else "stopped", lifecycle.why_absent(dialog, who)
    word = busy if work else "absent" if absent else "failed" if failed else gone if alive is False else "idle"
    reason = "" if work else absent or str(waiting.get("reason") or "")
    if alive is False and not absent:
        how = "start it in a terminal of its own" if is_new else "its daemon does not answer; start it again"
        reason = f"{how}: {start}"
    return {
        "alive": alive,
        "state": word,
        "turn": work.get("turn"),
        "since": work.get("seconds"),
        "reason": reason,
        "backend": str(said.get("backend") or ""),
        "model": str(said.get("model") or ""),
        "owes": who in dialog.state.owing,
        "failed": failed,
    }


def _spent(state: State, who: str) -> dict[str, Any]:
    spent = state.spent.get(who)
    if spent is None:
        return {"usd": None, "cost": "", "tokens": 0}
    known = spent.entries > spent.unknown
    return {"usd": spent.usd if known else None, "cost": cost(state, who), "tokens": spent.tokens}


def cost(state: State, *agents: str) -> str:
    """What these agents are known to have cost, in words; "" before anything was spent."""
    spent = money.total({who: state.spent[who] for who in agents if who in state.spent})
    if not spent.entries:
        return ""
    if spent.unknown == spent.entries:
        return "cost unknown"
    about = "" if spent.exact and not spent.unknown else "about "
    return f"{about}{dollars(spent.usd)}"

"""How a daemon and its dialog are, in the words of the wire."""

from __future__ import annotations

import os
from typing import Any, Literal

from dialogd import __version__
from dialogd.agent.loop import Agent
from dialogd.backends.live import Live
from dialogd.protocol.decide import Stop, Wait
from dialogd.server import wire
from dialogd.views.standing import standing


def opening(agent: Agent, port: int) -> dict[str, Any]:
    """The data of the `state` event that a stream begins with: the word that later ones have too, and the health."""
    now = health(agent, port)
    word = "thinking" if now.working_on else now.waiting.status if now.waiting else now.phase
    reason = now.waiting.reason if now.waiting else ""
    return {"state": word, "reason": reason, **now.model_dump()}


def health(agent: Agent, port: int) -> wire.Health:
    """The answer of `GET /health`, from what is known without touching the disk."""
    dialog, call, working = agent.dialog, agent.call, None
    me = dialog.header.agent(agent.me) if dialog else None
    if call and agent.is_working:
        does = agent.hub.state_of(agent.me)
        what: Literal["thinking", "executing"]
        what = "executing" if does is not None and does.state == "executing" else "thinking"
        number = dialog.state.number if dialog else 0
        working = wire.Working(turn=number + 1, seconds=round(call.seconds, 1), state=what)
    stands = standing(dialog, thinking=agent.is_working)
    if isinstance(agent.action, Stop):
        stands["outcome"] = agent.action.outcome.name
    return wire.Health(
        **stands,
        id=agent.me,
        name=agent.behavior.name or (me.name if me else f"Claude {agent.me}"),
        port=port,
        pid=os.getpid(),
        version=__version__,
        file=str(agent.file.path),
        working_on=working,
        delivery=_delivery(agent),
        waiting=_waiting(agent),
        calls=[wire.CallAsked(**asked.data) for asked in agent.approvals.open.values()],
        backend=agent.backend.name,
        model=agent.backend.model,
        peers=_peers(agent),
        turns_written=agent.tally.turns,
        secrets_redacted=agent.tally.secrets,
        warnings=[*filter(None, [agent.missing(dialog)]), *dialog.header.warnings] if dialog else [],
        usd=agent.tally.bill.known_usd,
    )


def _delivery(agent: Agent) -> wire.Delivery | None:
    """What becomes of the turn that a live seat owes."""
    live = agent.backend
    if not isinstance(live, Live) or live.owed is None:
        return None
    owed = live.owed
    return wire.Delivery(debt=owed.debt, session=live.session, knocks=owed.knocks, opened=owed.is_opened)


def _waiting(agent: Agent) -> wire.Waiting | None:
    """What it waits for, while it does."""
    if agent.call is not None and not agent.is_working:
        return wire.Waiting(status="unopened", reason=_unopened(agent))
    if agent.call is not None or not isinstance(agent.action, Wait):
        return None
    return wire.Waiting(status=agent.action.status, reason=agent.action.reason)


def _unopened(agent: Agent) -> str:
    """What is known of a live seat that owes a turn and has not fetched it."""
    found = _delivery(agent)
    if isinstance(agent.backend, Live) and agent.backend.owed is not None and agent.backend.owed.waits:
        return agent.backend.owed.waits
    if found is None or not found.session:
        return f"nobody has fetched its turn yet: dialogd live turn --id {agent.me}"
    knocks = {0: "its session is being knocked at", 1: "its session was knocked at one time"}
    return (
        f"{knocks.get(found.knocks, f'its session was knocked at {found.knocks} times')}, and has not opened the turn"
    )


def _peers(agent: Agent) -> dict[str, wire.Peer]:
    """The other daemons by their agents' ids, and whether they were reached."""
    of = agent.peers.of(agent.dialog)
    return {who: wire.Peer(url=url, reachable=agent.peers.reachable.get(who)) for who, url in of.items()}

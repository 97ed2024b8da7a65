"""How a daemon and its dialog are, in the words of the wire."""

from __future__ import annotations

import os
from typing import Any

from dialogd import __version__
from dialogd.agent import Agent
from dialogd.protocol.decide import Stop, Wait
from dialogd.protocol.model import USER, Dialog
from dialogd.server import wire


def phase(dialog: Dialog | None, *, thinking: bool) -> str:
    """One word for where the dialog stands: no_dialog, thinking, waiting, paused, waiting_for_user, ended, error."""
    if dialog is None:
        return "no_dialog"
    state = dialog.state
    if state.outcome is not None:
        return "error" if state.outcome.failed else "ended"
    if state.paused:
        return "paused"
    if thinking:
        return "thinking"
    return "waiting_for_user" if state.owing and set(state.owing) <= {USER} else "waiting"


def opening(agent: Agent, port: int) -> dict[str, Any]:
    """The data of the `state` event that a stream begins with: the word that later ones have too, and the health."""
    now = health(agent, port)
    word = "thinking" if now.working_on else now.waiting.status if now.waiting else now.phase
    return {"state": word, **now.model_dump()}


def health(agent: Agent, port: int) -> wire.Health:
    """The answer of `GET /health`, from what is known without touching the disk."""
    dialog, call = agent.dialog, agent.call
    waiting = None
    if call is None and isinstance(agent.action, Wait):
        waiting = wire.Waiting(status=agent.action.status, reason=agent.action.reason)
    state = dialog.state if dialog else None
    me = dialog.header.agent(agent.me) if dialog else None
    outcome = agent.action.outcome if isinstance(agent.action, Stop) else (state.outcome if state else None)
    return wire.Health(
        id=agent.me,
        name=agent.options.name or (me.name if me else f"Claude {agent.me}"),
        port=port,
        pid=os.getpid(),
        version=__version__,
        file=str(agent.file.path),
        dialog=dialog.id if dialog else None,
        topic=dialog.header.topic if dialog else "",
        turn=state.number if state else 0,
        turn_of=list(state.owing) if state else [],
        phase=phase(dialog, thinking=call is not None),
        working_on=wire.Working(turn=(state.number if state else 0) + 1, seconds=round(call.seconds, 1))
        if call
        else None,
        waiting=waiting,
        outcome=outcome.name if outcome else None,
        backend=agent.backend.name,
        model=agent.backend.model,
        peers={
            who: wire.Peer(url=url, reachable=agent.peers.reachable.get(who))
            for who, url in agent.peers.of(dialog).items()
        },
        turns_written=agent.turns.tally.turns,
        secrets_redacted=agent.turns.tally.secrets,
        signals=[wire.Noticed(kind=s.kind, text=s.text, agents=list(s.agents)) for s in agent.noticed()],
        warnings=list(dialog.header.warnings) if dialog else [],
        usd=agent.turns.tally.bill.known_usd,
    )

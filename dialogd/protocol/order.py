"""Who speaks next."""

from __future__ import annotations

from dataclasses import replace

from dialogd.protocol.model import ANY, USER, Header, State


def next_agent(header: Header, state: State, after: str) -> str:
    """The agent that follows `after` in the header's order, passing over those that failed.

    `alternate` (two agents) and `round-robin` (any number) are the same cycle. An unknown `after` means the
    first agent. Gives USER when no agent is left to ask: alone in the dialog, or all others failed.
    """
    ids = [agent.id for agent in header.agents]
    start = ids.index(after) + 1 if after in ids else 0
    cycle = [*ids[start:], *ids[:start]]
    return next((i for i in cycle if i != after and i not in state.failed), USER)


def turn_after(header: Header, state: State, me: str) -> tuple[str, ...]:
    """Whom the TURN line of `me`'s turn names: the rest of the round, the person who was asked, or the next."""
    rest = tuple(d.agent for d in state.debts if d.agent not in (me, ANY))
    if rest:
        return rest
    if state.question or header.setup.get("step") is True:
        return (USER,)
    return (next_agent(header, state, me),)


def reopened(header: Header, state: State) -> tuple[str, ...]:
    """Whom a person's turn passes to when they name nobody: who owed, who asked, or the next in order.

    Always an agent: the person's turn gives those that failed another chance, and one that is alone the word again.
    """
    owing = tuple(a for a in state.owing if a != USER)
    if owing:
        return owing
    if state.asker and header.agent(state.asker):
        return (state.asker,)
    following = next_agent(header, replace(state, failed=frozenset()), state.last_agent)
    return (following if following != USER else header.agents[0].id,)

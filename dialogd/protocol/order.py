"""Who speaks next.

alternate    in the order of the header
round-robin  in the order of the roles' priority, highest first
priority     whose weight, times the turns it has waited, is highest: nobody waits for ever
free         whom the word was handed to or who asked for it, else who spoke longest ago
parallel     everybody at once: a round
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from dialogd.protocol.model import USER, Header
from dialogd.protocol.roster import judge, speakers
from dialogd.protocol.state import State


def following(header: Header, state: State, after: str) -> tuple[str, ...]:
    """Whom the order names after a turn of `after`; absent agents are passed over.

    An unknown `after` means that the order begins. Whom something was escalated to comes first, and a judge that has
    read the positions in one order reads them in the other; one that asked the person goes on without an answer. Gives
    USER when no agent is left to ask.
    """
    if state.escalated not in ("", USER, after, *state.absent):
        return (state.escalated,)
    if after and after == judge(header) and (len(state.judged) == 1 or after in {*state.askers} - state.told):
        return (after,)
    all_ = speakers(header)
    able = [who for who in all_ if who not in state.absent]
    if not able:
        return (USER,)
    if len(all_) == 1:
        return (all_[0],) if after != all_[0] or state.limits.max_rounds is not None else (USER,)
    if header.rules.order == "parallel":
        return tuple(able) if len(able) > 1 or after != able[0] else (USER,)
    return (_single(header, state, all_, after),)


def _single(header: Header, state: State, all_: Sequence[str], after: str) -> str:
    match header.rules.order:
        case "free":
            return _free(state, all_, after)
        case "priority":
            return _heaviest(header, state, all_, after)
        case "round-robin":
            by_priority = sorted(all_, key=lambda who: -header.rules.role(who).priority)
            return _cycle(state, by_priority, after)
        case _:
            return _cycle(state, all_, after)


def _cycle(state: State, ids: Sequence[str], after: str) -> str:
    start = ids.index(after) + 1 if after in ids else 0
    return next((i for i in [*ids[start:], *ids[:start]] if i != after and i not in state.absent), USER)


def _heaviest(header: Header, state: State, ids: Sequence[str], after: str) -> str:
    able = [who for who in ids if who != after and who not in state.absent]

    def pending(who: str) -> tuple[float, bool]:
        waited = state.number - state.chance_at.get(who, 0)
        return header.rules.role(who).weight * waited, who not in state.spoke

    return max(able, key=pending, default=USER)


def _free(state: State, ids: Sequence[str], after: str) -> str:
    able = [who for who in ids if who != after and who not in state.absent]
    wanted = next((who for who in state.queue if who in able or (who == USER and USER not in state.owing)), None)
    return wanted or min(able, key=lambda who: (state.chance_at.get(who, 0), who in state.spoke), default=USER)


def reopened(header: Header, state: State) -> tuple[str, ...]:
    """Whom a person's turn passes to when they name nobody: who owed, who asked, or the next in order.

    Always an agent: the person's turn gives those that failed another chance, and one that is alone the word again.
    """
    owing = tuple(a for a in state.owing if a != USER)
    if owing:
        return owing
    askers = tuple(who for who in state.askers if header.agent(who))
    if header.rules.order != "parallel" and askers:
        return askers
    named = following(
        header, state.but(missed=MappingProxyType({}), queue=(), escalated="", judged=()), state.last_agent
    )
    return named if USER not in named else (speakers(header) or (header.agents[0].id,))[:1]

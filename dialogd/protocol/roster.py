"""Who takes part in what: who gets turns, who votes, who moderates, who judges. From the header alone."""

from __future__ import annotations

from collections.abc import Iterable

from dialogd.protocol.model import Header
from dialogd.protocol.roles import MODERATE, VOTE


def speakers(header: Header) -> tuple[str, ...]:
    """Agents that get turns, in the header's order: all but observers, and the judge, who comes last."""
    rules = header.rules
    return tuple(a.id for a in header.agents if rules.role(a.id).speaks and a.id != judge(header))


def voters(header: Header) -> tuple[str, ...]:
    """Agents whose vote or signature counts: those whose role may vote; never the judge."""
    rules = header.rules
    return tuple(a.id for a in header.agents if rules.role(a.id).may(VOTE) and a.id != judge(header))


def judge(header: Header) -> str:
    """The agent that takes no part and judges at the end; "" without one."""
    return header.rules.judge if header.rules.verdict == "judge" else ""


def moderator(header: Header) -> str:
    """Who decides what the others could not: the agent of highest priority that may moderate; "" without one."""
    rules = header.rules
    able = [a.id for a in header.agents if rules.role(a.id).may(MODERATE) and a.id != judge(header)]
    return max(able, key=lambda who: rules.role(who).priority, default="")


def weight(header: Header, agents: Iterable[str]) -> float:
    """What the votes of these agents weigh together."""
    return sum(header.rules.role(agent).weight for agent in agents)

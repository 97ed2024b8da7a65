"""Roles: what an agent may do in a dialog, how much its vote weighs, and how it is asked to think."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

READ_ALL = "READ_ALL"  # its prompt holds the whole dialog
READ_OWN = "READ_OWN"  # its prompt holds the question, its own turns and decisions
POST = "POST"
CRITIQUE = "CRITIQUE"
PROPOSE = "PROPOSE"
VOTE = "VOTE"
MODERATE = "MODERATE"
DECIDE = "DECIDE"
PERMISSIONS = (READ_ALL, READ_OWN, POST, CRITIQUE, PROPOSE, VOTE, MODERATE, DECIDE)

# Who was given no role may take part like anybody; moderating and deciding are given, never assumed.
USUAL = frozenset({READ_ALL, POST, CRITIQUE, PROPOSE, VOTE})

STANDARD: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "analyst": frozenset({READ_ALL, POST, PROPOSE}),
        "critic": frozenset({READ_ALL, CRITIQUE, VOTE}),
        "synthesizer": frozenset({READ_ALL, POST, DECIDE}),
        "moderator": frozenset({READ_ALL, MODERATE, DECIDE}),
        "observer": frozenset({READ_ALL}),
    }
)

PERSONALITIES: Mapping[str, str] = MappingProxyType(
    {
        "pragmatic engineer": "asks what the smallest thing is that works, what it costs to run, and how to undo it",
        "perfectionist": "accepts no gap: names each case that is not covered, and what would cover it",
        "security expert": "asks who could abuse it, what they would gain, and which check would stop them",
        "user advocate": "speaks for whoever uses it: what they see, what confuses them, what they lose when it fails",
        "devil's advocate": "argues against what the others lean to, as strongly as honesty allows, until it holds",
    }
)

# What a mark needs: one of these permissions. A mark that is not here is free to every agent that has the word.
NEEDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "IDEA": frozenset({POST, PROPOSE}),
        "SYNTHESIS": frozenset({POST, MODERATE, DECIDE}),
        "CRITIQUE": frozenset({CRITIQUE}),
        "OBJECTION": frozenset({CRITIQUE, VOTE}),
        "PROPOSAL": frozenset({PROPOSE}),
        "VOTE": frozenset({VOTE}),
        "DECIDE": frozenset({DECIDE, MODERATE}),
    }
)
OWN_KINDS = (POST, PROPOSE, CRITIQUE, MODERATE)  # one of these for a dialog's own kinds of contribution


@dataclass(frozen=True, slots=True)
class Role:
    """What one agent is in a dialog. `weight` is that of its vote, `priority` its place in a round: higher first."""

    name: str = ""
    permissions: frozenset[str] = USUAL
    weight: float = 1.0
    priority: int = 0
    specialization: str = ""
    personality: str = ""
    responsibilities: tuple[str, ...] = ()

    def may(self, *permissions: str) -> bool:
        """True when the role has one of these permissions."""
        return not self.permissions.isdisjoint(permissions)

    def may_use(self, mark: str) -> bool:
        """True when the role may use marks of that name."""
        needed = NEEDS.get(mark)
        return needed is None or self.may(*needed)

    @property
    def speaks(self) -> bool:
        """True when it gets turns: it may do more than read."""
        return self.may(POST, CRITIQUE, PROPOSE, VOTE, MODERATE, DECIDE)

    @property
    def reads_all(self) -> bool:
        """True when its prompt holds what the others say; one that may read all is not held to its own."""
        return READ_ALL in self.permissions or READ_OWN not in self.permissions

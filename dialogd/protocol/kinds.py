"""Kinds of contribution: each is a row of data, those of every dialog, of reviews, and of one dialog alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

NAME = re.compile(r"[A-Z][A-Z_]{1,39}")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of contribution. `fields` name what stands between its bars, in order.

    numbers   what its daemon-given numbers begin with (`P1`), "" where it has none
    counts    True when it is a contribution of its own on a board; what only goes with others is not
    clears    True when it takes all signatures off the text on the table
    blocks    first fields, in lower case, with which it keeps approvals from counting until it is resolved
    levels    first fields that it may have at all; () for any
    resolves  True when its first field is the number of what it resolves
    """

    meaning: str
    fields: tuple[str, ...] = ()
    numbers: str = ""
    counts: bool = True
    clears: bool = False
    blocks: frozenset[str] = frozenset()
    levels: tuple[str, ...] = ()
    resolves: bool = False


CONTRIBUTIONS: Mapping[str, Kind] = MappingProxyType(
    {
        "PROPOSAL": Kind("something to decide; the daemon writes its number", numbers="P"),
        "OBJECTION": Kind("a reason against; clears the signatures", counts=False, clears=True),
        "CONCEDE": Kind("gives up a point, with the reason", counts=False),
        "QUESTION": Kind("asked of the other agents"),
        "EVIDENCE": Kind("a fact, with its source"),
        "IDEA": Kind("a thought, not yet a proposal"),
        "CRITIQUE": Kind("what is weak in something said"),
        "SYNTHESIS": Kind("several points brought together"),
        "RESERVATION": Kind("the strongest objection that a signer still has; the signature stands", counts=False),
        "RE": Kind("what this answers: turns and proposals", counts=False),
        "CONFIDENCE": Kind("how sure the agent is, 0 to 1", counts=False),
    }
)

SEVERITIES = ("blocking", "blocker", "critical", "high", "major", "medium", "moderate", "minor", "low", "nit", "info")
REVIEW: Mapping[str, Kind] = MappingProxyType(
    {
        "FINDING": Kind(
            "one finding; severity `blocking` keeps approvals from counting until you resolve it",
            ("severity", "category", "file", "line", "issue", "suggestion"),
            numbers="F",
            blocks=frozenset({"blocking", "blocker", "critical"}),
            levels=SEVERITIES,
        ),
        "RESOLVED": Kind("your own finding of that number blocks no longer", ("number", "how"), resolves=True),
        "SCORE": Kind(
            "your score, each part from 0 to 100",
            ("code quality N", "test coverage N", "security N", "documentation N", "acceptance criteria N"),
        ),
    }
)

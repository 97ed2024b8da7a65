"""The marks of a review, as reviewers write them: how grave a finding is, and which are open. Pure."""

from __future__ import annotations

import re

from dialogd.protocol.model import Entry, Mark
from dialogd.protocol.state import State

BLOCKING = frozenset({"blocking", "blocker", "critical"})
SEVERITIES = ("blocking", "blocker", "critical", "high", "major", "medium", "moderate", "minor", "low", "nit", "info")
_LABEL = re.compile(r"severity\s*[:=]\s*", re.I)


def kind_fields(mark: Mark) -> tuple[str, ...]:
    """A KIND mark's kind and fields, split at every bar, without emphasis."""
    return tuple(part.strip(" \t*_`") for part in mark.value.split("|"))


def severity(field: str) -> str:
    """How grave a finding is, in lower case, without a label before it: `Severity: **Blocking**.` is `blocking`."""
    return _LABEL.sub("", field, count=1).strip(" \t*_`.!").casefold()


def is_finding(mark: Mark) -> bool:
    """True for a mark that is a numbered finding."""
    return mark.name == "KIND" and kind_fields(mark)[0] == "FINDING"


def reviewed(state: State, entry: Entry) -> State:
    """The state with the findings of a review: those that block, until the agent that raised them is content."""
    if entry.is_struck:  # its findings are gone, their numbers are not given again
        return state.but(findings=state.findings + sum(is_finding(mark) for mark in entry.withdrawn))
    for mark in entry.all("KIND"):
        kind, *fields = kind_fields(mark)
        if kind == "FINDING":
            number = state.findings + 1
            blocks = bool(fields) and severity(fields[0]) in BLOCKING
            more = ((number, entry.by),) if blocks else ()
            state = state.but(findings=number, blocking=(*state.blocking, *more))
        elif kind == "RESOLVED" and fields:
            digits = "".join(c for c in fields[0] if c.isdecimal())
            kept = tuple(open_ for open_ in state.blocking if (str(open_[0]), open_[1]) != (digits, entry.by))
            state = state.but(blocking=kept)
    return state

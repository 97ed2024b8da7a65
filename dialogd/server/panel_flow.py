"""The message flow of a dialog as the page shows it: some messages at a time, of all agents and kinds or of one."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode

from dialogd.protocol.state import Dialog
from dialogd.views.flow import Message, flow

PAGE = 40  # messages at a time


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages: of this agent and kind ("" for all), up to place `before` (None: the last ones)."""

    agent: str = ""
    kind: str = ""
    before: int | None = None


@dataclass(frozen=True, slots=True)
class View:
    """Messages from place `first` on, out of `total`; `older` and `newer` are what `before` is for the next ones.

    `agents` are who spoke: id and name."""

    messages: tuple[Message, ...]
    first: int
    total: int
    older: int | None
    newer: int | None
    agents: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...]
    agent: str
    kind: str

    def query(self, before: int) -> str:
        """The query of a link to other messages of the same kind."""
        return urlencode({"agent": self.agent, "kind": self.kind, "before": before})


def view(dialog: Dialog, wanted: Wanted) -> View:
    """The messages that are wanted."""
    every = flow(dialog)
    found = [message for message in every if _takes(wanted, message)]
    end = len(found) if wanted.before is None else max(1, min(wanted.before, len(found)))
    first = max(0, end - PAGE)
    return View(
        messages=tuple(found[first:end]),
        first=first,
        total=len(found),
        older=first if first > 0 else None,
        newer=min(end + PAGE, len(found)) if end < len(found) else None,
        agents=tuple({message.from_agent: message.from_name for message in every}.items()),
        kinds=tuple(sorted({message.message_type for message in every})),
        agent=wanted.agent,
        kind=wanted.kind,
    )


def _takes(wanted: Wanted, message: Message) -> bool:
    named = (message.from_agent, *message.to_agent.split(", "))
    return (not wanted.agent or wanted.agent in named) and wanted.kind in ("", message.message_type)

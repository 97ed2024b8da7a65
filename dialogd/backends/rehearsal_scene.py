"""What a rehearsed agent sees of a dialog: its last entries, read from the end, so that length costs nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from dialogd.backends import Request
from dialogd.protocol.model import ANY, USER, Agent, Entry
from dialogd.protocol.state import Proposal, State

LOOK_BACK = 24  # entries, and proposals
QUOTE = 80  # characters

_LABEL = re.compile(r"^\s*\*\*\w[\w ]*:\*\*", re.M)


@dataclass(frozen=True)
class Scene:
    """The dialog since it was opened, or opened again, as far as `LOOK_BACK` reaches; oldest first.

    Each part is read when a script asks for it.
    """

    request: Request

    @property
    def me(self) -> Agent:
        """Whose lines are wanted."""
        return self.request.agent

    @property
    def agents(self) -> tuple[Agent, ...]:
        """The cast."""
        return self.request.dialog.header.agents

    @property
    def turn(self) -> int:
        """The number of the turn that is wanted."""
        return self.request.turn

    @property
    def state(self) -> State:
        """What the dialog has come to."""
        return self.request.dialog.state

    @cached_property
    def topic(self) -> str:
        """The topic, or the question, shortened to be quoted."""
        dialog = self.request.dialog
        question = dialog.entries[0].body if dialog.entries else ""
        return quote(dialog.header.topic or question) or "this question"

    @cached_property
    def fresh(self) -> str:
        """What the person said, in a turn or a note, since an agent last spoke; "" when they said nothing."""
        for entry in islice(reversed(self.request.dialog.entries), LOOK_BACK):
            if entry.is_turn and entry.by != USER:
                break
            if entry.by == USER and entry.number != 1 and entry.body.strip():
                return quote(entry.body)
        return ""

    @cached_property
    def spoken(self) -> tuple[Entry, ...]:
        """The agents' turns."""
        return tuple(entry for entry in self._entries if entry.is_turn and entry.by != USER)

    @cached_property
    def raised(self) -> tuple[Entry, ...]:
        """The agents' turns that object."""
        return tuple(entry for entry in self.spoken if entry.mark("OBJECTION") or entry.mark("CRITIQUE"))

    @cached_property
    def points(self) -> tuple[Entry, ...]:
        """The person's turns after the opening question."""
        return tuple(e for e in self._entries if e.by == USER and e.number > 1 and e.body.strip())

    @cached_property
    def draft(self) -> Proposal | None:
        """The newest consensus text that was proposed, also before the dialog was opened again."""
        return next((proposal for proposal in self._proposals if proposal.sha), None)

    @cached_property
    def lead(self) -> Proposal | None:
        """The first plain proposal."""
        own = (p for p in reversed(self._proposals) if not p.sha and turn_of(p.entry) > self.state.base)
        return next(own, None)

    @cached_property
    def earlier(self) -> Proposal | None:
        """The last plain proposal from before the dialog was opened again."""
        return next((p for p in self._proposals if not p.sha and turn_of(p.entry) <= self.state.base), None)

    @cached_property
    def _entries(self) -> list[Entry]:
        recent = islice(reversed(self.request.dialog.entries), LOOK_BACK)
        return [entry for entry in recent if turn_of(entry.id) > self.state.base][::-1]

    @cached_property
    def _proposals(self) -> tuple[Proposal, ...]:
        """Newest first."""
        return tuple(islice(reversed(self.state.proposals), LOOK_BACK))

    @property
    def seat(self) -> int:
        """The agent's place in the header, from 0."""
        return next((i for i, agent in enumerate(self.agents) if agent.id == self.me.id), 0)

    @property
    def first_in_line(self) -> bool:
        """True unless somebody before this agent owes a turn of the same round."""
        owing = [who for who in self.state.owing if who not in (USER, ANY)]
        return not owing or owing[0] == self.me.id or self.me.id not in owing

    def name(self, agent: str) -> str:
        """What an agent is called; the person is `the person`."""
        if agent == USER:
            return "the person"
        return next((a.name for a in self.agents if a.id == agent), agent)


def turn_of(entry_id: str) -> int:
    """The number of the turn that an entry is, or stands after."""
    head = entry_id.partition(".")[0]
    return int(head) if head.isdigit() else 0


def quote(text: str, limit: int = QUOTE) -> str:
    """The beginning of a text on one line, fit to stand between “ and ” and in a mark."""
    head = _LABEL.sub(" ", text[: 10 * limit])
    plain = "".join(c if c.isprintable() else " " for c in head).translate(_HARMLESS)
    flat = " ".join(plain.split()).strip("’ ").removesuffix(".")
    if len(flat) <= limit:
        return flat
    return flat[: limit - 1].rsplit(" ", 1)[0].rstrip(",;:. ") + "…"


_HARMLESS = str.maketrans({"[": "(", "]": ")", "|": "/", "“": "’", "”": "’", '"': "’", "#": " ", "*": " ", "`": "’"})

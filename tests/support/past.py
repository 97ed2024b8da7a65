"""Dialogs that have been: whole files as daemons leave them, for an archive to be filled with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dialogd.protocol.grammar import render
from dialogd.protocol.marks import same_text
from dialogd.protocol.model import USER, Draft, Mark, digest

_SHA = re.compile(rb" sha=([0-9a-f]+) -->\n")
BEGAN = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
NAMES = {"A": "Claude A", "B": "Claude B"}


@dataclass(frozen=True, slots=True)
class Past:
    """A dialog of A and B that ended in consensus over `decision`, after `said`, one turn after the other.

    Without a decision it was stopped. `began` is when; a turn takes a minute. `model` is what the frames name.
    """

    id: str
    topic: str
    question: str
    said: Sequence[str]
    decision: str = ""
    began: datetime = BEGAN
    model: str = ""

    def file(self) -> bytes:
        header = (
            f"# Claude Autonomous Dialog\n\n**Topic:** {self.topic}\n"
            f"**Started:** {self.began:%Y-%m-%d %H:%M:%S} +00:00\n**Dialog:** {self.id}\n\n---\n\n"
        )
        data = f"{header}## Turn 1 — User\n\n{self.question}\n\nTURN: A\n".encode()
        chain = ""
        for draft in self._drafts():
            written = render(draft, chain)
            found = _SHA.search(written)
            chain = found[1].decode() if found else ""
            data += b"\n---\n\n" + written
        return data

    def _drafts(self) -> list[Draft]:
        drafts: list[Draft] = []
        who, other = "A", "B"
        for text in self.said:
            drafts.append(self._turn(len(drafts) + 2, who, text, (), (other,)))
            who, other = other, who
        if not self.decision:
            at = (("at", self._at(len(drafts) + 2)),)
            return [*drafts, Draft(USER, "User", 0, "", (Mark("STOPPED", "dialogd stop"),), None, at)]
        number = len(drafts) + 2
        text = f"That is what I read out of this.\n\n## Consensus Summary\n\n{self.decision}"
        proposed = Mark("CONSENSUS_PROPOSED", digest(same_text(self.decision)), "P1")
        evidence = f"signed by {who} in turn {number}, {other} in turn {number + 1}"
        decided = Mark("DECISION", f"approved | mutual | {evidence}", "P1")
        agrees = (Mark("AGREE", "P1 | it holds"), decided, Mark("CONSENSUS_REACHED"))
        return [
            *drafts,
            self._turn(number, who, text, (proposed,), (other,)),
            self._turn(number + 1, other, "I sign it as it stands.", agrees, None),
        ]

    def _turn(self, number: int, who: str, text: str, marks: tuple[Mark, ...], turn: tuple[str, ...] | None) -> Draft:
        spent = (("ms", "4000"), ("calls", "1"), ("in", "800"), ("out", "200"), ("usd", "0.004"))
        attributes = (("re", str(number - 1)), ("at", self._at(number)), ("model", self.model), *spent)
        return Draft(who, NAMES[who], number, text, marks, turn, attributes)

    def _at(self, number: int) -> str:
        return (self.began + timedelta(minutes=number)).strftime("%Y-%m-%dT%H:%M:%SZ")

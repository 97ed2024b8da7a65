"""What the person withdrew, for who reads on: which turns were struck and why, which marks a veto refuses. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dialogd.protocol import ballots
from dialogd.protocol.hand import NO_REASON, split, turns_in
from dialogd.protocol.hashing import digest
from dialogd.protocol.marks import Reply, same_text
from dialogd.protocol.model import USER, Condition, Entry, Mark
from dialogd.protocol.state import Dialog


@dataclass(frozen=True, slots=True)
class Strike:
    """That `turn` was struck in `entry`, for this reason ("" where none was given)."""

    turn: int
    reason: str
    entry: Entry

    @property
    def in_words(self) -> str:
        """What stands in the place of the turn's text."""
        return f"turn {self.turn} was withdrawn by the person" + (f": {self.reason}" if self.reason else "")


def strikes(dialog: Dialog) -> Mapping[int, Strike]:
    """The turns that were struck, by number; of several strikes the first."""
    found: dict[int, Strike] = {}
    for entry in dialog.entries if dialog.state.struck else ():
        if entry.by != USER or entry.condition is Condition.DAMAGED:
            continue
        for mark in entry.written:
            if mark.name == "STRIKE":
                for turn in sorted(turns_in(mark, dialog.state.number) & dialog.state.struck):
                    found.setdefault(turn, Strike(turn, split(mark)[1], entry))
    return MappingProxyType(found)


def vetoes(dialog: Dialog) -> Mapping[str, str]:
    """The reason of each veto ("" where none was given), by proposal."""
    said = ((d.ref, d.reason) for d in dialog.state.decisions if d.method == "veto")
    reasons = {ref: reason for ref, reason in said if reason != NO_REASON}
    return MappingProxyType({ref: reasons.get(ref, "") for ref in dialog.state.vetoed})


def why_vetoed(dialog: Dialog, mark: Mark, reply: Reply) -> str:
    """Why a mark of an agent's reply does not count: the person ruled out what it is about; "" where they did not."""
    if not dialog.state.vetoed:
        return ""
    known = vetoes(dialog)
    ref = next((ref for ref in _about(dialog, mark, reply) if ref in known), "")
    return f"{ref} was ruled out by the person" + (f": {known[ref]}" if known[ref] else "") if ref else ""


def _about(dialog: Dialog, mark: Mark, reply: Reply) -> Iterator[str]:
    """The proposals that a mark says yes or no to, or whose very text it puts anew."""
    match mark.name:
        case "AGREE":
            yield from (ref for ref in dialog.state.vetoed if ref in ballots.agreed(mark))
        case "VOTE":
            yield from (choice.ref for choice in (ballots.vote(mark),) if choice)
        case "DECIDE" if (choice := ballots.decision(mark)) is not None:
            yield choice.ref
        case "PROPOSAL":
            yield from _same(dialog, mark.value)
        case "CONSENSUS_REACHED" if reply.summary:
            yield from _same(dialog, reply.summary)


def _same(dialog: Dialog, text: str) -> Iterator[str]:
    """The proposals that were ruled out and have this very text."""
    sha = digest(same_text(text))
    for proposal in dialog.state.proposals:
        if proposal.ref in dialog.state.vetoed and sha == (proposal.sha or digest(same_text(proposal.text))):
            yield proposal.ref

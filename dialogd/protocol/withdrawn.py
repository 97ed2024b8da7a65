"""What the person struck, vetoed, rejected or approved, for who reads on. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from dialogd.protocol import marks
from dialogd.protocol.fold import steps
from dialogd.protocol.interventions import NO_REASON, split, turns_in
from dialogd.protocol.marks import Reply, same_text
from dialogd.protocol.model import USER, Condition, Entry, Mark, digest
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
    for entry in dialog.entries if dialog.state.hand.struck else ():
        if entry.by != USER or entry.condition is Condition.DAMAGED:
            continue
        for mark in entry.written:
            if mark.name == "STRIKE":
                for turn in sorted(turns_in(mark, dialog.state.number) & dialog.state.hand.struck):
                    found.setdefault(turn, Strike(turn, split(mark)[1], entry))
    return MappingProxyType(found)


def vetoes(dialog: Dialog) -> Mapping[str, str]:
    """The reason of each veto ("" where none was given), by proposal."""
    said = ((d.ref, d.reason) for d in dialog.state.table.decisions if d.method == "veto")
    reasons = {ref: reason for ref, reason in said if reason != NO_REASON}
    return MappingProxyType({ref: reasons.get(ref, "") for ref in dialog.state.table.vetoed})


def why_vetoed(dialog: Dialog, mark: Mark, reply: Reply) -> str:
    """Why a mark of an agent's reply does not count: the person ruled out what it is about; "" where they did not."""
    if not dialog.state.table.vetoed:
        return ""
    known = vetoes(dialog)
    ref = next((ref for ref in _about(dialog, mark, reply) if ref in known), "")
    return f"{ref} was ruled out by the person" + (f": {known[ref]}" if known[ref] else "") if ref else ""


def _about(dialog: Dialog, mark: Mark, reply: Reply) -> Iterator[str]:
    """The proposals that a mark says yes or no to, or whose very text it puts anew."""
    match mark.name:
        case "AGREE":
            yield from (ref for ref in dialog.state.table.vetoed if ref in marks.agreed(mark))
        case "VOTE":
            yield from (choice.ref for choice in (marks.vote(mark),) if choice)
        case "DECIDE" if (choice := marks.decision(mark)) is not None:
            yield choice.ref
        case "PROPOSAL":
            yield from _same(dialog, mark.value)
        case "CONSENSUS_REACHED" if reply.summary:
            yield from _same(dialog, reply.summary)


def _same(dialog: Dialog, text: str) -> Iterator[str]:
    """The proposals that were ruled out and have this very text."""
    sha = digest(same_text(text))
    for proposal in dialog.state.table.proposals:
        if proposal.ref in dialog.state.table.vetoed and sha == (proposal.sha or digest(same_text(proposal.text))):
            yield proposal.ref


# -- What the person makes of a result --------------------------------------------------------------------------------

WENT_ON = "the dialog went on after it"
NOT_TAKEN = "the person did not take it"


@dataclass(frozen=True, slots=True)
class Rejection:
    """That the person rejected a result: the turn in which, when ("" by hand), why, and the entry that had ended it.

    `outcome` is the name of the mark that had ended the dialog.
    """

    turn: int
    at: str
    reason: str
    ended_in: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Reopening:
    """That a dialog which the entry `ended_in` had ended was opened again, by the entry `by`.

    `rejection` is the person's, where that is why.
    """

    ended_in: str
    by: str
    rejection: Rejection | None


@dataclass(frozen=True, slots=True)
class AsOfNow:
    """How a decision stands by what came after it: its outcome, and why.

    `rejected_in` is the turn in which the person did not take it, `superseded` says in words that the dialog was
    opened again after it; "" where that is not so.
    """

    outcome: str
    reason: str
    rejected_in: str = ""
    superseded: str = ""


class Standing:
    """What a decision with these fields came to; `rejected_in` is "" or 0 where the person did not reject it."""

    __slots__ = ()
    outcome: str
    rejected_in: str | int
    superseded: str

    @property
    def made(self) -> str:
        """What was decided, whatever came after it."""
        return "approved" if self.rejected_in else self.outcome

    @property
    def stands(self) -> str:
        """What it comes to, in one word: its outcome, or `superseded`."""
        return "superseded" if self.superseded else self.outcome


def reason(entry: Entry) -> str:
    """Why the person rejected the result in this turn, in one line."""
    mark = entry.mark("REJECTED")
    words = mark.value if mark is not None else ""
    return words or " ".join(entry.body.split())


def rejections(dialog: Dialog) -> tuple[Rejection, ...]:
    """Every result that the person rejected, first to last."""
    if not any(entry.by == USER and entry.mark("REJECTED") for entry in dialog.entries):
        return ()
    return rejections_in(reopenings(dialog))


def rejections_in(opened: Mapping[str, Reopening]) -> tuple[Rejection, ...]:
    """The rejections among a dialog's `reopenings`, for whoever has these already: they cost a fold."""
    return tuple(each.rejection for each in opened.values() if each.rejection is not None)


def reopenings(dialog: Dialog) -> Mapping[str, Reopening]:
    """Every end after which the dialog was opened again, first to last, by the id of the entry that had ended it."""
    ends = [entry.ending is not None for entry in dialog.entries]
    first = ends.index(True) if True in ends else len(ends)
    if not any(entry.by == USER for entry in dialog.entries[first + 1 :]):
        return {}
    return {each.ended_in: each for each in _reopenings(dialog)}


def _reopenings(dialog: Dialog) -> Iterator[Reopening]:
    for entry, _, before, after in steps(dialog):
        outcome = before.outcome
        if outcome is None or after.outcome is not None:
            continue
        rejection = None
        if entry.by == USER and entry.is_turn and entry.mark("REJECTED") is not None:
            at = entry.frame.at if entry.frame is not None else ""
            rejection = Rejection(entry.number, at, reason(entry), outcome.entry, outcome.name)
        yield Reopening(outcome.entry, entry.id, rejection)


def as_of_now(opened: Mapping[str, Reopening], entry: str, outcome: str, why: str) -> AsOfNow:
    """How what was decided with that outcome in that entry, for that reason, stands; `opened` are the reopenings.

    The person rejects what was approved; what was not is only left behind.
    """
    found = opened.get(entry)
    if found is None:
        return AsOfNow(outcome, why)
    if found.rejection is None or outcome != "approved":
        return AsOfNow(outcome, why, superseded=WENT_ON)
    words = f"{NOT_TAKEN}: {found.rejection.reason}" if found.rejection.reason else NOT_TAKEN
    return AsOfNow("rejected", words, rejected_in=found.by)


def rejected(dialog: Dialog) -> Rejection | None:
    """The rejection by which the dialog was opened for the last time; None where it was not."""
    if not dialog.state.rejected:
        return None
    return next((each for each in reversed(rejections(dialog)) if str(each.turn) == dialog.state.rejected), None)


def as_ended(dialog: Dialog, entry_id: str) -> Dialog:
    """The dialog as it stood when that entry ended it."""
    entries: list[Entry] = []
    for entry, header, _, after in steps(dialog):
        entries.append(entry)
        if entry.id == entry_id:
            return replace(dialog, header=header, entries=tuple(entries), state=after)
    return dialog

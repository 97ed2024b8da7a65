"""The position ledger: what each agent held of each proposal, since when, and what made it change its mind.

Positions come from marks alone, as they stand in the file. A change wants a cause in the same reply: `[EVIDENCE]`, or
`[RE]` of something else than the proposal itself. One with neither is flagged: noticed, and nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from dialogd.protocol import ballots
from dialogd.protocol.model import USER, Condition, Entry
from dialogd.protocol.state import Dialog, Proposal

FOR, AGAINST, OPEN, CONCEDED = "for", "against", "open", "conceded"
_STANCES = MappingProxyType({"approve": FOR, "reject": AGAINST, "abstain": OPEN})


@dataclass(frozen=True, slots=True)
class Position:
    """What `agent` held of the proposal `ref` from `turn` on: for, against, open or conceded.

    `cause` is the EVIDENCE, or else the RE, of a change; `flagged` is True for a change that has neither. A first
    position has no cause and is never flagged.
    """

    agent: str
    ref: str
    stance: str
    turn: int
    cause: str = ""
    flagged: bool = False


def positions(dialog: Dialog, last: int | None = None) -> tuple[Position, ...]:
    """Every position that an agent took and each change of it, in order.

    `last` limits this to so many of the latest entries: what was held before them is not known then.
    """
    entries = dialog.entries if last is None else dialog.entries[-last:]
    raised = _raised(dialog.state.proposals, {entry.id for entry in entries})
    held: dict[tuple[str, str], str] = {}
    found: list[Position] = []
    text = ""  # the number of the consensus text on the table
    agents = {agent.id for agent in dialog.everybody}
    for entry in entries:
        if entry.condition in (Condition.DAMAGED, Condition.UNFINISHED):
            continue
        if entry.by in agents and entry.is_turn and not entry.is_struck:
            stances = _stances(entry, raised, text)
            found += _taken(entry, stances, held)
            held |= {(entry.by, ref): stance for ref, stance in stances.items()}
        text = _on_the_table(entry, raised, text)
    return tuple(found)


def latest(ledger: Iterable[Position]) -> Mapping[tuple[str, str], Position]:
    """The last position of each agent on each proposal, by agent and ref."""
    return MappingProxyType({(position.agent, position.ref): position for position in ledger})


def _raised(proposals: Sequence[Proposal], entries: set[str]) -> Mapping[str, list[Proposal]]:
    """The proposals that these entries made, by entry; later ones are looked at first, so that few need few."""
    raised: dict[str, list[Proposal]] = {}
    for proposal in reversed(proposals):
        if proposal.entry not in entries:
            break
        raised.setdefault(proposal.entry, []).insert(0, proposal)
    return raised


def _stances(entry: Entry, raised: Mapping[str, Sequence[Proposal]], text: str) -> dict[str, str]:
    """The stances of one turn by proposal; an objection beats a yes in the same reply."""
    stances = {proposal.ref: FOR for proposal in raised.get(entry.id, ())}
    for mark in entry.all("AGREE"):
        stances |= dict.fromkeys(ballots.agreed(mark), FOR)
    stances |= {ref: _STANCES[choice.choice] for ref, choice in ballots.cast(entry.marks).items()}
    for mark in entry.all("DECIDE"):
        choice = ballots.decision(mark)
        if choice is not None and choice.ref:
            stances[choice.ref] = _STANCES[choice.choice]
    answered = _answered(entry, raised)
    for mark in entry.all("CONCEDE"):
        named = ballots.objected(mark)
        stances |= dict.fromkeys(named or [ref for ref in answered if ref not in stances], CONCEDED)
    for mark in entry.all("OBJECTION"):
        refs = ballots.objected(mark) or answered or ([text] if text else [])
        stances |= dict.fromkeys(refs, AGAINST)
    return stances


def _answered(entry: Entry, raised: Mapping[str, Sequence[Proposal]]) -> list[str]:
    """The proposals that a reply's RE names, by number or else by the turn that made them."""
    turns: list[int] = []
    refs: list[str] = []
    for mark in entry.all("RE"):
        found = ballots.references(mark)
        turns += found[0]
        refs += found[1]
    return refs or [proposal.ref for turn in turns for proposal in raised.get(str(turn), ()) if turn != entry.number]


def _taken(entry: Entry, stances: Mapping[str, str], held: Mapping[tuple[str, str], str]) -> Iterator[Position]:
    """The positions of a turn that are new or changed."""
    for ref, stance in stances.items():
        before = held.get((entry.by, ref))
        if before is None:
            yield Position(entry.by, ref, stance, entry.number)
        elif before != stance:
            cause = _cause(entry, ref)
            yield Position(entry.by, ref, stance, entry.number, cause, flagged=not cause)


def _cause(entry: Entry, ref: str) -> str:
    """What a reply gives as the cause of a change on `ref`; "" when that is nothing, or only the proposal itself."""
    evidence = [mark.value for mark in entry.all("EVIDENCE") if mark.value]
    if evidence:
        return "; ".join(f"EVIDENCE: {value}" for value in evidence)
    named = [(mark, *ballots.references(mark)) for mark in entry.all("RE")]
    causes = [f"RE: {mark.value}" for mark, turns, refs in named if mark.value and (turns or set(refs) != {ref})]
    return "; ".join(causes)


def _on_the_table(entry: Entry, raised: Mapping[str, Sequence[Proposal]], text: str) -> str:
    """The number of the consensus text that is on the table after this entry."""
    cleared = entry.mark("OBJECTION") or any(mark.ref == text for mark in entry.all("DECISION"))
    if cleared or (entry.by == USER and entry.is_turn):
        text = ""
    return next((proposal.ref for proposal in reversed(raised.get(entry.id, ())) if proposal.sha), text)

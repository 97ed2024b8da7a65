"""What was objected to, what became of it, and who still stands against what was decided. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dialogd.plan.outcome import method
from dialogd.plan.reading import turns_of
from dialogd.plan.value import Agreed, Conflict, Decided, Said
from dialogd.protocol import ballots
from dialogd.protocol.ledger import Position, latest
from dialogd.protocol.model import Entry, Mark
from dialogd.protocol.state import Dialog, Proposal

RAISED = ("OBJECTION", "CRITIQUE")


def referred(entry: Entry) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The turns and proposals that an entry says it answers."""
    found = [ballots.references(mark) for mark in entry.all("RE")]
    return tuple(n for turns, _ in found for n in turns), tuple(ref for _, refs in found for ref in refs)


Made = Sequence[tuple[int, Proposal]]  # the proposals with their turns


def made(dialog: Dialog) -> Made:
    """Every proposal with the number of its turn."""
    return tuple((_turn(proposal.entry), proposal) for proposal in dialog.state.proposals)


def conflicts(dialog: Dialog, agreed: Agreed | None, decisions: Sequence[Decided]) -> tuple[Conflict, ...]:
    """Every objection and critique, in order, with what became of it."""
    found, proposals = [], made(dialog)
    conceded = tuple((entry, mark) for entry in turns_of(dialog) for mark in entry.all("CONCEDE"))
    for entry in turns_of(dialog):
        for mark in (mark for mark in entry.marks if mark.name in RAISED):
            about = aims(proposals, entry, mark)
            said = Said(mark.name, entry.by, entry.number, mark.value)
            sides = {said.by, *(p.by for _, p in proposals if p.ref in about)} if conceded else set()
            given_up = _conceded(said, about, [(e, m) for e, m in conceded if e.by in sides])
            how = given_up or _decided(said, about, decisions) or _signed(said, agreed)
            found.append(Conflict(said, about, how))
    return tuple(found)


def aims(proposals: Made, entry: Entry, mark: Mark) -> tuple[str, ...]:
    """The proposals that an objection is about: those it names, those of the turns it answers, else the last one."""
    turns, refs = referred(entry)
    if named := tuple(dict.fromkeys((*([mark.ref] if mark.ref else []), *refs))):
        return named
    before = [(turn, p.ref) for turn, p in proposals if turn < entry.number and p.by != entry.by]
    return tuple(ref for turn, ref in before if turn in turns) or tuple(ref for _, ref in before[-1:])


def _conceded(said: Said, about: Sequence[str], conceded: Sequence[tuple[Entry, Mark]]) -> str:
    """Who gave up the point later: the one who raised it, or whose proposal it was."""
    for entry, mark in conceded:
        if entry.number > said.turn and _is_meant(entry, mark, said, about):
            return f"conceded by {entry.by} in turn {entry.number}: {mark.value}".rstrip(": ")
    return ""


def _is_meant(entry: Entry, mark: Mark, said: Said, about: Sequence[str]) -> bool:
    """A concession names the proposal or the turn of the objection, or nothing at all."""
    turns, refs = referred(entry)
    own = ballots.references(mark)
    turns, refs = (*turns, *own[0]), (*refs, *own[1], *ballots.objected(mark))
    return said.turn in turns or bool(set(refs) & set(about)) or not (turns or refs)


def _decided(said: Said, about: Sequence[str], decisions: Sequence[Decided]) -> str:
    for decision in decisions:
        if decision.ref in about and decision.turn >= said.turn and decision.outcome in ("approved", "rejected"):
            then = f", and rejected by the person in turn {decision.rejected_in}" if decision.rejected_in else ""
            return f"{decision.ref} was {decision.made} in turn {decision.turn}, {method(decision.method)}{then}"
    return ""


def _signed(said: Said, agreed: Agreed | None) -> str:
    for signer in agreed.signers if agreed else ():
        if signer.agent == said.by and signer.turn > said.turn:
            return f"{said.by} signed {agreed.ref if agreed else ''} in turn {signer.turn}"
    return ""


def dissent(
    dialog: Dialog, agreed: Agreed | None, decisions: Sequence[Decided], positions: Sequence[Position]
) -> tuple[Said, ...]:
    """Who is against, or has a reservation about, what was decided; each agent's last word on it."""
    approved = [agreed.ref] if agreed else []
    approved += [d.ref for d in decisions if d.outcome == "approved" and d.ref not in approved]
    found: list[Said] = []
    for signer in agreed.signers if agreed else ():
        if signer.reservation:
            found.append(Said("RESERVATION", signer.agent, signer.turn, signer.reservation))
    for ref in approved:
        found += _against(dialog, ref, decisions, positions)
    if agreed is not None and not agreed.ref:
        found += _other_sides(dialog, agreed)
    if approved:
        found += (said for said in _reservations(dialog) if all(said.by != known.by for known in found))
    return tuple(found)


def _against(dialog: Dialog, ref: str, decisions: Sequence[Decided], positions: Sequence[Position]) -> Iterator[Said]:
    """Whose last position on a proposal is a no, with the reason of that turn."""
    votes = {vote.agent: vote for d in decisions if d.ref == ref for vote in d.votes if vote.choice == "reject"}
    for (agent, about), position in latest(positions).items():
        if about == ref and position.stance == "against":
            entry = dialog.entry(str(position.turn))
            mark = entry.mark("OBJECTION") if entry is not None else None
            reason = votes[agent].reason if agent in votes else mark.value if mark else ""
            yield Said("AGAINST", agent, position.turn, f"{ref}: {reason}" if reason else ref)


def _other_sides(dialog: Dialog, chosen: Agreed) -> Iterator[Said]:
    """What the agents proposed last whose position the judge did not choose."""
    last = {p.by: p for p in dialog.state.proposals if p.by != chosen.by and not p.sha}
    for p in last.values():
        yield Said("OTHER_SIDE", p.by, _turn(p.entry), f"{p.ref}: {p.text}")


def _reservations(dialog: Dialog) -> Iterator[Said]:
    """Each agent's last reservation."""
    last: dict[str, Said] = {}
    for entry in turns_of(dialog):
        for mark in entry.all("RESERVATION"):
            last[entry.by] = Said("RESERVATION", entry.by, entry.number, mark.value)
    yield from last.values()


def _turn(entry_id: str) -> int:
    head = entry_id.partition(".")[0]
    return int(head) if head.isdigit() else 0

"""What was contributed, who stands where on each proposal and since when, and what was decided: from marks alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from dialogd.protocol import marks
from dialogd.protocol.certificate import certify, own_words
from dialogd.protocol.fold import steps
from dialogd.protocol.marks import contributes
from dialogd.protocol.model import USER, Condition, Entry
from dialogd.protocol.state import Ballot, Decision, Dialog, Proposal

FOR, AGAINST, OPEN, CONCEDED = "for", "against", "open", "conceded"
_STANCES = MappingProxyType({"approve": FOR, "reject": AGAINST, "abstain": OPEN})


@dataclass(frozen=True, slots=True)
class Position:
    """What `agent` held of the proposal `ref` from `turn` on: for, against, open or conceded."""

    agent: str
    ref: str
    stance: str
    turn: int


def positions(dialog: Dialog, last: int | None = None) -> tuple[Position, ...]:
    """Every position that an agent took and each change of it, in order."""
    # `last` limits this to so many of the latest entries: what was held before them is not known then.
    entries, made = dialog.entries if last is None else dialog.entries[-last:], dialog.state.table.proposals
    ids, raised = {entry.id for entry in entries}, dict[str, list[Proposal]]()
    for proposal in reversed(made):  # later ones are looked at first, so that few entries need few
        if proposal.entry not in ids:
            break
        raised.setdefault(proposal.entry, []).insert(0, proposal)
    held: dict[tuple[str, str], str] = {}
    found: list[Position] = []
    text = ""  # the number of the consensus text on the table
    agents = {agent.id for agent in dialog.everybody}
    for entry in entries:
        if entry.condition in (Condition.DAMAGED, Condition.UNFINISHED):
            continue
        if entry.by in agents and entry.is_turn and entry.counts:
            for ref, stance in _stances(entry, raised, text, made).items():
                if held.get((entry.by, ref)) != stance:
                    found.append(Position(entry.by, ref, stance, entry.number))
                held[entry.by, ref] = stance
        is_decided = any(mark.ref == text for mark in entry.decisions)
        if entry.objects or is_decided or (entry.by == USER and entry.is_turn):
            text = ""
        text = next((proposal.ref for proposal in reversed(raised.get(entry.id, ())) if proposal.sha), text)
    return tuple(found)


def latest(ledger: Iterable[Position]) -> Mapping[tuple[str, str], Position]:
    """The last position of each agent on each proposal, by agent and ref."""
    return {(position.agent, position.ref): position for position in ledger}


def changes(ledger: Iterable[Position]) -> Iterator[tuple[Position, str]]:
    """Each position that is not the first of its agent on a proposal, and the stance that it held before."""
    held: dict[tuple[str, str], str] = {}
    for position in ledger:
        if before := held.get((position.agent, position.ref)):
            yield position, before
        held[position.agent, position.ref] = position.stance


def _stances(
    entry: Entry, raised: Mapping[str, Sequence[Proposal]], text: str, made: Sequence[Proposal]
) -> dict[str, str]:
    """The stances of one turn by proposal; an objection beats a yes in the same reply."""
    stances = {proposal.ref: FOR for proposal in raised.get(entry.id, ())}
    stances |= dict.fromkeys((ref for mark in entry.marks for ref in marks.agreed(mark)), FOR)
    choices = {**marks.read_vote(entry.marks), **marks.read_decisions(entry.marks)}
    stances |= {ref: _STANCES[choice.choice] for ref, choice in choices.items()}
    # What its RE names: proposals by number, else those that were made in the turns.
    turns, by_number = marks.referred(entry)
    by_turn = [p.ref for turn in turns if turn != entry.number for p in raised.get(str(turn), ())]
    for mark in entry.all("CONCEDE"):
        given_up = marks.objected(mark) or [ref for ref in by_number or by_turn if ref not in stances]
        stances |= dict.fromkeys(given_up, CONCEDED)
    for mark in entry.all("OBJECTION"):
        about = (marks.objected(mark), by_number, by_turn, [text] if text else [])
        own = {proposal.ref for proposal in made if proposal.by == entry.by}  # that would be conceded
        others = ([ref for ref in refs if ref not in own] for refs in about)
        stances |= dict.fromkeys(next(filter(None, others), []), AGAINST)
    return stances


# -- The board --------------------------------------------------------------------------------------------------------

TEXT = "TEXT"  # the kind of a turn without typed contributions


@dataclass(frozen=True, slots=True)
class Contribution:
    """One contribution of an agent."""

    turn: int
    agent: str
    kind: str  # a mark's name, the dialog's own kind, or `TEXT` for a plain turn
    text: str
    refs: tuple[str, ...]  # the turns and proposals that it refers to: `3`, `P1`
    confidence: float | None  # 0 to 1
    round: int  # from 1
    ref: str = ""  # the number of a proposal


@dataclass(frozen=True, slots=True)
class Proposed:
    """One proposal, with who is for and against it now, its votes and its decision."""

    ref: str
    agent: str
    entry: str
    text: str
    round: int
    refs: tuple[str, ...] = ()  # the turns and proposals that it refers to
    supporters: tuple[str, ...] = ()
    opponents: tuple[str, ...] = ()
    votes: tuple[Ballot, ...] = ()
    decision: str = ""  # approved, rejected, undecided, vetoed, superseded; "" while open


class AnyDecision:
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


@dataclass(frozen=True, slots=True)
class Decided(AnyDecision):
    """One decision: about `ref`, by which method, on which evidence and why, in which entry."""

    ref: str
    outcome: str  # an approval that the person did not take is `rejected`, for their reason
    method: str
    evidence: str
    reason: str
    entry: str
    round: int
    rejected_in: str = ""  # their turn
    superseded: str = ""  # that the dialog was opened again after it, in words


def rounds_of(dialog: Dialog) -> Mapping[str, int]:
    """The round that each entry belongs to, from 1, by entry id; a reopened dialog counts anew."""
    return _walked(dialog)[0]


def _walked(dialog: Dialog) -> tuple[Mapping[str, int], Mapping[str, tuple[Ballot, ...]]]:
    """Each entry's round, from 1, and the votes that counted by proposal: of its poll as decided, or as it stands."""
    rounds: dict[str, int] = {}
    votes: dict[str, tuple[Ballot, ...]] = {}
    for entry, header, before, after in steps(dialog):
        opens = entry.by == USER and entry.is_turn
        rounds[entry.id] = (after if opens else before).floor.rounds + 1
        counted = before.polls.voted(entry) if entry.is_turn and entry.by in header.voters else before.polls
        votes |= {poll.ref: poll.ballots for poll in (*counted.open, *after.polls.open)}
    return rounds, votes


def contributions(dialog: Dialog) -> tuple[Contribution, ...]:
    """What the agents contributed, in order; a turn that only passes contributes nothing."""
    rounds, numbers, found = rounds_of(dialog), dict[str, list[str]](), list[Contribution]()
    for proposal in dialog.state.table.proposals:
        if not proposal.sha:
            numbers.setdefault(proposal.entry, []).append(proposal.ref)
    for entry in dialog.turns:
        if entry.by == USER or entry.condition is Condition.UNFINISHED or not entry.counts:
            continue
        sure = next(iter(marks.confidences(entry)), None)
        body, refs = own_words(entry.body), iter(numbers.get(entry.id, ()))
        plain = Contribution(entry.number, entry.by, TEXT, body, _about(entry), sure, rounds[entry.id])
        typed = [mark for mark in entry.marks if contributes(mark)]
        for mark in typed:
            ref = next(refs, mark.ref) if mark.proposes else ""
            found.append(replace(plain, kind=mark.name, text=mark.value, ref=ref))
        if not typed and body.strip() and not entry.passes:
            found.append(plain)
    return tuple(found)


def _about(entry: Entry) -> tuple[str, ...]:
    turns, refs = marks.referred(entry)
    return tuple(dict.fromkeys((*map(str, turns), *refs)))


def proposals(dialog: Dialog) -> tuple[Proposed, ...]:
    """Every numbered proposal and consensus text, with who is for and against it as they stand now."""
    rounds, votes = _walked(dialog)
    entries, rules = {entry.id: entry for entry in dialog.entries}, dialog.header.rules
    decided = by_ref(decisions(dialog))
    sides: dict[tuple[str, str], tuple[str, ...]] = {}
    for (who, ref), held in latest(positions(dialog)).items():
        sides[ref, held.stance] = (*sides.get((ref, held.stance), ()), who)
    return tuple(
        Proposed(
            p.ref,
            p.by,
            p.entry,
            p.text,
            rounds[p.entry],
            refs=_about(entries[p.entry]),
            supporters=sides.get((p.ref, FOR), ()),
            opponents=sides.get((p.ref, AGAINST), ()),
            votes=tuple(replace(b, weight=rules.weight([b.agent])) for b in votes.get(p.ref, ())),
            decision=in_a_word(decided.get(p.ref)),
        )
        for p in dialog.state.table.proposals
    )


def decisions(dialog: Dialog) -> tuple[Decided, ...]:
    """Every decision in order; an agreement that no DECISION mark tells of (written by hand, by a person) included."""
    # Folds the dialog anew: ask once for an answer.
    c, made = certify(dialog), [*dialog.state.table.decisions]
    if c is not None and all(d.entry != c.decided_in for d in made):
        signers = ", ".join(f"{s.agent} in turn {s.turn}" if s.turn else s.agent for s in c.signers)
        evidence = f"{'by' if c.method == 'person' else 'signed by'} {signers}"
        made.append(Decision(c.ref, "approved", c.method, evidence, "", c.decided_in))
    if not made:
        return ()
    rounds, opened = rounds_of(dialog), reopenings(dialog)
    stands = [(d, as_of_now(opened, d.entry, d.outcome, d.reason)) for d in made]
    return tuple(
        Decided(d.ref, now.outcome, d.method, d.evidence, now.reason, d.entry, rounds.get(d.entry, 0),
                now.rejected_in, now.superseded)
        for d, now in stands
    )  # fmt: skip


def by_ref(made: Sequence[Decided]) -> Mapping[str, Decided]:
    """The decision that counts, by proposal: the person's veto, else the last one."""
    return {d.ref: d for d in made} | {d.ref: d for d in made if d.method == "veto"}


def in_a_word(made: Decided | None) -> str:
    """What a proposal comes to by its decision: that one's word, `vetoed`, or "" without one."""
    return "" if made is None else "vetoed" if made.method == "veto" else made.stands


# -- What the person makes of a result --------------------------------------------------------------------------------

WENT_ON = "the dialog went on after it"
NOT_TAKEN = "the person did not take it"


@dataclass(frozen=True, slots=True)
class Reopening:
    """That a dialog which the entry `ended_in` had ended was opened again, by the entry `by`."""

    ended_in: str
    by: str
    outcome: str  # the name of the mark that had ended it
    turn: int = 0  # the person's, where they rejected the result by it
    at: str = ""  # "" by hand
    reason: str = ""


@dataclass(frozen=True, slots=True)
class AsOfNow:
    """How a decision stands by what came after it: its outcome, and why."""

    outcome: str
    reason: str
    rejected_in: str = ""  # the turn in which the person did not take it
    superseded: str = ""  # that the dialog was opened again after it, in words


def reason(entry: Entry) -> str:
    """Why the person rejected the result in this turn, in one line."""
    mark = entry.mark("REJECTED")
    return (mark.value if mark is not None else "") or " ".join(entry.body.split())


def reopenings(dialog: Dialog) -> Mapping[str, Reopening]:
    """Every end after which the dialog was opened again, first to last, by the id of the entry that had ended it."""
    first = next((at for at, entry in enumerate(dialog.entries) if entry.ending is not None), len(dialog.entries))
    if not any(entry.by == USER for entry in dialog.entries[first + 1 :]):
        return {}
    found: dict[str, Reopening] = {}
    for entry, _, before, after in steps(dialog):
        end = before.outcome
        if end is not None and after.outcome is None:
            why = (entry.number, entry.at, reason(entry)) if entry.rejects and entry.counts else ()
            found[end.entry] = Reopening(end.entry, entry.id, end.name, *why)
    return found


def as_of_now(opened: Mapping[str, Reopening], entry: str, outcome: str, why: str) -> AsOfNow:
    """How what was decided with that outcome in that entry, for that reason, stands; `opened` are the reopenings."""
    found = opened.get(entry)
    if found is None:
        return AsOfNow(outcome, why)
    if not found.turn or outcome != "approved":
        return AsOfNow(outcome, why, superseded=WENT_ON)
    words = f"{NOT_TAKEN}: {found.reason}" if found.reason else NOT_TAKEN
    return AsOfNow("rejected", words, rejected_in=found.by)


def rejected(dialog: Dialog) -> Reopening | None:
    """The rejection by which the dialog was opened for the last time; None where it was not."""
    found = reopenings(dialog).values() if dialog.state.rejected else ()
    return next((one for one in found if str(one.turn) == dialog.state.rejected), None)


def as_ended(dialog: Dialog, entry_id: str) -> Dialog:
    """The dialog as it stood when that entry ended it."""
    entries: list[Entry] = []
    for entry, header, _, after in steps(dialog):
        entries.append(entry)
        if entry.id == entry_id:
            return replace(dialog, header=header, entries=tuple(entries), state=after)
    return dialog

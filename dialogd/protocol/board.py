"""The board: what was contributed, proposed and decided in a dialog, as views over its entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from dialogd.protocol import ballots
from dialogd.protocol.certificate import Certificate, certify
from dialogd.protocol.fold import fold
from dialogd.protocol.ledger import AGAINST, FOR, latest, positions
from dialogd.protocol.marks import contributes
from dialogd.protocol.model import USER, Condition, Entry
from dialogd.protocol.refold import steps
from dialogd.protocol.result import Reopening, Standing, as_of_now, reopenings
from dialogd.protocol.roster import weight
from dialogd.protocol.seal import own_words
from dialogd.protocol.state import Ballot, Decision, Dialog

TEXT = "TEXT"  # the kind of a turn without typed contributions


@dataclass(frozen=True, slots=True)
class Contribution:
    """One contribution of an agent. `kind` is a mark's name, the dialog's own kind, or `TEXT` for a plain turn.

    `refs` are the turns and proposals it refers to (`3`, `P1`), `confidence` 0 to 1 or None, `round` counts from 1,
    `ref` is the number of a proposal.
    """

    turn: int
    agent: str
    kind: str
    text: str
    refs: tuple[str, ...]
    confidence: float | None
    round: int
    ref: str = ""


@dataclass(frozen=True, slots=True)
class Cast(Ballot):
    """A vote and what it weighs."""

    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Proposed:
    """One proposal: who made it, in which entry and round, who is for and against it now, its votes and its decision.

    `refs` are the turns and proposals it refers to; `decision` is approved, rejected, undecided, vetoed, superseded
    (the dialog was opened again after it), "" while open.
    """

    ref: str
    agent: str
    entry: str
    text: str
    round: int
    refs: tuple[str, ...] = ()
    supporters: tuple[str, ...] = ()
    opponents: tuple[str, ...] = ()
    votes: tuple[Cast, ...] = ()
    decision: str = ""


@dataclass(frozen=True, slots=True)
class Decided(Standing):
    """One decision: what was decided about `ref`, by which method, on which evidence and why, in which entry.

    An approval that the person did not take is `rejected`, for their reason, in their turn `rejected_in` ("" else).
    `superseded` says in words that the dialog was opened again after it, "" where it stands.
    """

    ref: str
    outcome: str
    method: str
    evidence: str
    reason: str
    entry: str
    round: int
    rejected_in: str = ""
    superseded: str = ""


def rounds_of(dialog: Dialog) -> Mapping[str, int]:
    """The round that each entry belongs to, from 1, by entry id; a reopened dialog counts anew."""
    return _walked(dialog)[0]


def _walked(dialog: Dialog) -> tuple[Mapping[str, int], Mapping[str, tuple[Ballot, ...]]]:
    """Each entry's round, and the votes that counted by proposal: of its poll as it was decided, or as it stands."""
    rounds: dict[str, int] = {}
    votes: dict[str, tuple[Ballot, ...]] = {}
    for entry, header, before, after in steps(dialog):
        opens = entry.by == USER and entry.is_turn
        rounds[entry.id] = (after if opens else before).rounds + 1
        counting = after
        if entry.mark("DECISION"):
            others = tuple(mark for mark in entry.marks if mark.name != "DECISION")
            counting = fold(header, before, replace(entry, marks=others, turn=(USER,)))
        votes |= {poll.ref: poll.ballots for poll in counting.polls}
    return MappingProxyType(rounds), MappingProxyType(votes)


def contributions(dialog: Dialog) -> tuple[Contribution, ...]:
    """What the agents contributed, in order; a turn that only passes contributes nothing."""
    rounds = rounds_of(dialog)
    numbers = _numbers(dialog)
    return tuple(
        one
        for entry in dialog.turns
        if entry.by != USER and entry.condition is not Condition.UNFINISHED and not entry.is_struck
        for one in _of(entry, rounds[entry.id], numbers.get(entry.id, ()))
    )


def _numbers(dialog: Dialog) -> dict[str, tuple[str, ...]]:
    """The numbers that each entry's PROPOSAL marks got, in order."""
    found: dict[str, tuple[str, ...]] = {}
    for proposal in dialog.state.proposals:
        if not proposal.sha:
            found[proposal.entry] = (*found.get(proposal.entry, ()), proposal.ref)
    return found


def _of(entry: Entry, number: int, refs: tuple[str, ...]) -> Iterator[Contribution]:
    about = _about(entry)
    sure = next((c for m in entry.all("CONFIDENCE") if (c := ballots.confidence(m)) is not None), None)
    body = own_words(entry.body)
    plain = Contribution(entry.number, entry.by, TEXT, body, about, sure, number)
    typed = [mark for mark in entry.marks if contributes(mark)]
    free = iter(refs)
    for mark in typed:
        ref = next(free, mark.ref) if mark.name == "PROPOSAL" else ""
        yield replace(plain, kind=mark.name, text=mark.value, ref=ref)
    if not typed and body.strip() and not entry.mark("PASS"):
        yield plain


def _about(entry: Entry) -> tuple[str, ...]:
    """The turns and proposals that the entry refers to."""
    named = [ballots.references(mark) for mark in entry.all("RE")]
    turns = [str(turn) for turns, _ in named for turn in turns]
    return tuple(dict.fromkeys([*turns, *(ref for _, refs in named for ref in refs)]))


def proposals(dialog: Dialog) -> tuple[Proposed, ...]:
    """Every numbered proposal and consensus text, with who is for and against it as they stand now."""
    rounds, votes = _walked(dialog)
    entries = {entry.id: entry for entry in dialog.entries}
    decided = by_ref(tuple(_decisions(dialog, certify(dialog), rounds, reopenings(dialog))))
    sides: dict[tuple[str, str], tuple[str, ...]] = {}
    for (who, ref), held in latest(positions(dialog)).items():
        sides[ref, held.stance] = (*sides.get((ref, held.stance), ()), who)
    return tuple(
        Proposed(
            ref=p.ref,
            agent=p.by,
            entry=p.entry,
            text=p.text,
            round=rounds[p.entry],
            refs=_about(entries[p.entry]),
            supporters=sides.get((p.ref, FOR), ()),
            opponents=sides.get((p.ref, AGAINST), ()),
            votes=tuple(
                Cast(b.agent, b.choice, b.reason, b.turn, weight(dialog.header, [b.agent]))
                for b in votes.get(p.ref, ())
            ),
            decision=in_a_word(decided.get(p.ref)),
        )
        for p in dialog.state.proposals
    )


def decisions(dialog: Dialog, opened: Mapping[str, Reopening] | None = None) -> tuple[Decided, ...]:
    """Every decision in order; an agreement that no DECISION mark tells of (written by hand, by a person) included.

    `opened` are the dialog's `reopenings`, where they are known already. Folds the dialog anew: ask once for an answer.
    """
    c = certify(dialog)
    if c is None and not dialog.state.decisions:
        return ()
    return tuple(_decisions(dialog, c, rounds_of(dialog), reopenings(dialog) if opened is None else opened))


def by_ref(made: Sequence[Decided]) -> Mapping[str, Decided]:
    """The decision that counts, by proposal: the person's veto, else the last one."""
    return {d.ref: d for d in made} | {d.ref: d for d in made if d.method == "veto"}


def in_a_word(made: Decided | None) -> str:
    """What a proposal comes to by its decision: that one's word, `vetoed`, or "" without one."""
    return "" if made is None else "vetoed" if made.method == "veto" else made.stands


def _decisions(
    dialog: Dialog, c: Certificate | None, rounds: Mapping[str, int], opened: Mapping[str, Reopening]
) -> Iterator[Decided]:
    yield from (_decided(decision, rounds, opened) for decision in dialog.state.decisions)
    if c is not None and all(d.entry != c.decided_in for d in dialog.state.decisions):
        signers = ", ".join(f"{s.agent} in turn {s.turn}" if s.turn else s.agent for s in c.signers)
        evidence = f"{'by' if c.method == 'person' else 'signed by'} {signers}"
        yield _decided(Decision(c.ref, "approved", c.method, evidence, "", c.decided_in), rounds, opened)


def _decided(d: Decision, rounds: Mapping[str, int], opened: Mapping[str, Reopening]) -> Decided:
    now = as_of_now(opened, d.entry, d.outcome, d.reason)
    number = rounds.get(d.entry, 0)
    return Decided(
        d.ref, now.outcome, d.method, d.evidence, now.reason, d.entry, number, now.rejected_in, now.superseded
    )

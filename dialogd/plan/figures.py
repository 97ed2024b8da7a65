"""The metrics of a dialog; `value.Metrics` defines each. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from dialogd.plan.reading import turns_of
from dialogd.plan.value import Account, Agreed, Conflict, Decided, Latency, Metrics
from dialogd.protocol import ballots
from dialogd.protocol.board import contributions
from dialogd.protocol.ledger import Position, latest
from dialogd.protocol.money import total
from dialogd.protocol.roster import voters
from dialogd.protocol.spent import Spent
from dialogd.protocol.state import Dialog

_MS = re.compile(r"[0-9]{1,12}")


def metrics(
    dialog: Dialog,
    agreed: Agreed | None,
    decisions: Sequence[Decided],
    conflicts: Sequence[Conflict],
    positions: Sequence[Position],
) -> Metrics:
    """All of them."""
    made = Counter(contribution.agent for contribution in contributions(dialog))
    names = [agent.id for agent in dialog.header.agents]
    said = (ballots.confidence(mark) for entry in turns_of(dialog) for mark in entry.all("CONFIDENCE"))
    confidences = [confidence for confidence in said if confidence is not None]
    decided = {d.ref for d in decisions if d.outcome in ("approved", "rejected")} | ({agreed.ref} if agreed else set())
    proposed = {proposal.ref for proposal in dialog.state.proposals} | decided
    return Metrics(
        contributions_total=made.total(),
        contributions_per_agent={who: made[who] for who in (*names, *(other for other in made if other not in names))},
        rounds_completed=dialog.state.rounds,
        proposals_made=len(proposed),
        decisions_reached=len(decided),
        conflicts_resolved=sum(bool(conflict.how) for conflict in conflicts),
        consensus_rate=_consensus_rate(dialog, agreed, decisions, positions),
        average_confidence=fmean(confidences) if confidences else None,
        spent=_account(total(dialog.state.spent)),
        spent_per_agent={who: _account(dialog.state.spent[who]) for who in _in_order(dialog)},
        latency=_latency(dialog),
    )


def _in_order(dialog: Dialog) -> tuple[str, ...]:
    """Who spent something: agents as the header lists them, then others."""
    names = dict.fromkeys((*(agent.id for agent in dialog.header.agents), *dialog.state.spent))
    return tuple(name for name in names if name in dialog.state.spent)


def _consensus_rate(
    dialog: Dialog, agreed: Agreed | None, decisions: Sequence[Decided], positions: Sequence[Position]
) -> float | None:
    able = voters(dialog.header)
    approved = {d.ref for d in decisions if d.outcome == "approved"} | ({agreed.ref} if agreed else set())
    if not approved or not able:
        return None
    return fmean(len(_behind(ref, agreed, decisions, positions) & set(able)) / len(able) for ref in sorted(approved))


def _behind(ref: str, agreed: Agreed | None, decisions: Sequence[Decided], positions: Sequence[Position]) -> set[str]:
    """Who stands behind a proposal: who signed it, or whose last word on it is a yes."""
    signed = {signer.agent for signer in agreed.signers} if agreed is not None and agreed.ref == ref else set()
    cast = (vote for d in decisions if (d.ref, d.outcome) == (ref, "approved") for vote in d.votes)
    votes = {vote.agent for vote in cast if vote.choice == "approve"}
    stances = latest(positions)
    return signed | votes | {who for (who, about), p in stances.items() if about == ref and p.stance == "for"}


def _account(spent: Spent) -> Account:
    is_counted = bool(spent.entries) and not (spent.uncounted and not spent.tokens)
    return Account(
        tokens_in=spent.tokens_in if is_counted else None,
        tokens_out=spent.tokens_out if is_counted else None,
        usd=spent.usd if spent.entries > spent.unknown else None,
        is_exact=spent.exact and not spent.unknown,
    )


def _latency(dialog: Dialog) -> Latency:
    seconds = [int(e.frame.ms) / 1000 for e in dialog.entries if e.frame is not None and _MS.fullmatch(e.frame.ms)]
    if not seconds:
        return Latency(None, None, None)
    return Latency(sum(seconds), fmean(seconds), max(seconds))


def shares(counts: Mapping[str, int]) -> str:
    """`A 4, B 3`."""
    return ", ".join(f"{who} {number}" for who, number in counts.items())

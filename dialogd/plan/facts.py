"""The plan for programs: one JSON object. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dialogd.plan.value import Account, Plan
from dialogd.protocol.model import Entry

FORMAT = "dialogd-plan/1"


def as_json(plan: Plan) -> dict[str, Any]:
    """Everything that the page says, and the exact texts; null for what nobody knows."""
    state = plan.dialog.state
    outcome = state.outcome
    return {
        "format": FORMAT,
        "task": plan.task,
        "dialog": plan.dialog.id,
        "file": plan.file,
        "began": plan.began or None,
        "ended": plan.ended or None,
        "rounds": state.rounds,
        "turns": state.number,
        "outcome": {
            "name": outcome.name if outcome else None,
            "by": outcome.by if outcome else None,
            "reason": outcome.reason if outcome else None,
            "in_words": plan.headline,
        },
        "consensus_reached": outcome is not None and outcome.name == "CONSENSUS_REACHED",
        "approved": asdict(plan.approved) if plan.approved else None,
        "rejections": [asdict(item) for item in plan.rejections],
        "agents": _agents(plan),
        "agreed": asdict(plan.agreed) if plan.agreed else None,
        "on_the_table": asdict(plan.on_the_table) if plan.on_the_table else None,
        **{key: [asdict(item) for item in items] for key, items in _lists(plan).items()},
        "worth": asdict(plan.worth),
        "findings": [{**asdict(item), "blocks": item.blocks} for item in plan.findings],
        "score": {"parts": dict(plan.score.parts), "points": dict(plan.score.points), "total": plan.score.total}
        if plan.score
        else None,
        "signals": asdict(plan.signals),
        "metrics": _metrics(plan),
        "certificate": plan.certificate,
        "synthesis": {**asdict(plan.synthesis), "signed_by": []} if plan.synthesis else None,
        "conversation": [entry_facts(entry) for entry in plan.dialog.entries],
    }  # fmt: skip


def _lists(plan: Plan) -> dict[str, Sequence[Any]]:
    """What the plan lists, by its name."""
    return {
        "decisions": plan.decisions,
        "views": plan.views,
        "key_agreements": plan.agreements,
        "key_disagreements": plan.conflicts,
        "dissent": plan.dissent,
        "position_changes": plan.changes,
        "positions": plan.positions,
        "crux": plan.crux,
        "experiments": plan.experiments,
        "open_questions": plan.questions,
        "next_steps": plan.steps,
    }


def _agents(plan: Plan) -> list[dict[str, str]]:
    header = plan.dialog.header
    return [{"id": a.id, "name": a.name, "role": header.rules.role(a.id).name or a.role} for a in header.agents]


def _metrics(plan: Plan) -> dict[str, Any]:
    m = plan.metrics
    return {
        "contributions_total": m.contributions_total,
        "contributions_per_agent": dict(m.contributions_per_agent),
        "rounds_completed": m.rounds_completed,
        "proposals_made": m.proposals_made,
        "decisions_reached": m.decisions_reached,
        "conflicts_resolved": m.conflicts_resolved,
        "consensus_rate": m.consensus_rate,
        "average_confidence": m.average_confidence,
        "tokens": _tokens(m.spent),
        "cost": _cost(m.spent),
        "latency": asdict(m.latency),
        "per_agent": {who: {"tokens": _tokens(a), "cost": _cost(a)} for who, a in m.spent_per_agent.items()},
    }


def _tokens(account: Account) -> dict[str, int | None]:
    return {"in": account.tokens_in, "out": account.tokens_out}


def _cost(account: Account) -> dict[str, float | bool | None]:
    return {"usd": account.usd, "exact": account.is_exact}


def entry_facts(entry: Entry) -> dict[str, Any]:
    """An entry by its fields, for every command that prints one; `turn` is whose turn follows, `sha` its hash.

    `struck`: the person withdrew it, so that `marks` has none of its own.
    """
    return {
        "id": entry.id,
        "number": entry.number,
        "by": entry.by,
        "name": entry.name,
        "at": (entry.frame.at if entry.frame else "") or None,
        "condition": entry.condition.value,
        "struck": entry.is_struck,
        "text": entry.body,
        "marks": [str(mark) for mark in entry.marks],
        "turn": list(entry.turn) if entry.turn is not None else None,
        "sha": entry.chain,
    }

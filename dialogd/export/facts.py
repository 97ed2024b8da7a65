"""A dialog as JSON: everything that stands in the file, and what it comes to. `schema.json` describes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dialogd.flow import flow
from dialogd.protocol import board
from dialogd.protocol.certificate import certify
from dialogd.protocol.ledger import positions
from dialogd.protocol.lifecycle import phase
from dialogd.protocol.model import Entry
from dialogd.protocol.money import total
from dialogd.protocol.spent import Spent
from dialogd.protocol.state import Dialog

VERSION = 1


def as_json(dialog: Dialog, attachments: Mapping[str, str]) -> str:
    """One JSON object; ends with a newline."""
    return json.dumps(facts(dialog, attachments), ensure_ascii=True, indent=1) + "\n"


def facts(dialog: Dialog, attachments: Mapping[str, str]) -> dict[str, Any]:
    """The dialog as one object of plain values."""
    certificate = certify(dialog)
    return {
        "v": VERSION,
        "dialog": dialog.id,
        "topic": dialog.header.topic,
        "header": _header(dialog),
        "state": _state(dialog),
        "entries": [_entry(entry) for entry in dialog.entries],
        "proposals": [_plain(asdict(proposal)) for proposal in board.proposals(dialog)],
        "decisions": [asdict(decision) for decision in board.decisions(dialog)],
        "positions": [asdict(position) for position in positions(dialog)],
        "messages": [asdict(message) for message in flow(dialog)],
        "certificate": certificate.as_json() if certificate is not None else None,
        "attachments": [{"name": name, "text": text} for name, text in attachments.items()],
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Tuples as lists, as they come out of JSON."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _header(dialog: Dialog) -> dict[str, Any]:
    header = dialog.header
    return {
        "title": header.title,
        "started": header.started,
        "agents": [{"id": a.id, "name": a.name, "url": a.url, "role": a.role} for a in header.agents],
        "limits": asdict(header.limits),
        "text": header.text,
        "warnings": list(header.warnings),
    }


def _state(dialog: Dialog) -> dict[str, Any]:
    state, outcome = dialog.state, dialog.state.outcome
    return {
        "phase": phase(dialog),
        "turn": state.number,
        "turn_of": list(state.owing),
        "paused": state.paused,
        "question": state.question,
        "asker": state.asker,
        "rounds": state.rounds,
        "limits": asdict(state.limits),
        "outcome": None if outcome is None else {**asdict(outcome), "failed": outcome.failed},
        "approved": state.approved,
        "vetoed": list(state.vetoed),
        "spent": {who: _spent(spent) for who, spent in state.spent.items()},
        "total": _spent(total(state.spent)),
    }


def _spent(spent: Spent) -> dict[str, Any]:
    """An account: null for what nobody knows at all."""
    return {
        "usd": None if spent.entries == spent.unknown else spent.usd,
        "tokens_in": None if spent.uncounted and not spent.tokens else spent.tokens_in,
        "tokens_out": None if spent.uncounted and not spent.tokens else spent.tokens_out,
        "exact": spent.exact and not spent.unknown,
    }


def _entry(entry: Entry) -> dict[str, Any]:
    frame = entry.frame
    return {
        "id": entry.id,
        "number": entry.number,
        "by": entry.by,
        "name": entry.name,
        "text": entry.body,
        "marks": [{"name": m.name, "ref": m.ref, "value": m.value, "line": str(m)} for m in entry.written],
        "turn": list(entry.turn) if entry.turn is not None else None,
        "condition": entry.condition.value,
        "struck": entry.is_struck,
        "notice": entry.notice,
        "line": entry.line,
        "chain": entry.chain,
        "frame": None if frame is None else asdict(frame),
    }

"""From a dialog to what the index keeps of it: itself in a row, its entries, its decisions. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from dialogd.memory.decided import Made, decided
from dialogd.plan.outcome import headline
from dialogd.plan.value import Agreed, Decided, Signed
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry
from dialogd.protocol.money import total
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import clean, one_line

TOPIC = 300  # characters
RECALLED = "**Recalled from earlier dialogs"  # how the block begins that `--recall` writes into turn 1
_BLOCK = re.compile(rf"^{re.escape(RECALLED)}.*\n(?:\n|>.*(?:\n|$))*", re.M)
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.\d{1,6})? ?(Z|[+-]\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class Said:
    """An entry as it is searched: its id, its turn, who wrote it, when, its text with its marks."""

    entry: str
    turn: int
    by: str
    at: str
    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """A dialog as the index keeps it. `first` is the hash of the first agent's entry: where it is the same, two files
    of one id hold the same dialog, and the one with the greater `last` (time of its last entry, entries) stands for it.
    """

    id: str
    first: str
    last: tuple[str, int]
    topic: str
    question: str
    started: str
    ended: str
    outcome: str
    reason: str
    headline: str
    agents: tuple[str, ...]
    turns: int
    usd: float | None
    is_exact: bool
    tokens: int | None
    approved: bool
    said: tuple[Said, ...]
    made: tuple[Made, ...]


def facts(dialog: Dialog) -> Facts:
    """Everything that is kept of a dialog."""
    state, spent = dialog.state, total(dialog.state.spent)
    entries = [entry for entry in dialog.entries if entry.condition is not Condition.DAMAGED]
    last = next((at for entry in reversed(entries) if (at := moment(entry))), "")
    mine = next((entry for entry in entries if entry.is_turn and entry.by not in (USER, SYSTEM)), None)
    ends = dialog.entry(state.outcome.entry) if state.outcome else None
    said, made = tuple(_said(entries)), decided(dialog)
    return Facts(
        id=dialog.id,
        first=mine.chain if mine else "",
        last=(last, len(dialog.entries)),
        topic=_topic(dialog, said),
        question=said[0].text if said and said[0].by == USER else "",
        started=iso(dialog.header.started) or next((at for entry in entries if (at := moment(entry))), ""),
        ended=(moment(ends) or last) if ends else "",
        outcome=state.outcome.name if state.outcome else "",
        reason=one_line(state.outcome.reason) if state.outcome else "",
        headline=one_line(_headline(dialog, made)),
        agents=tuple(agent.id for agent in dialog.header.agents),
        turns=state.number,
        usd=spent.usd if spent.entries > spent.unknown else None,
        is_exact=spent.exact and not spent.unknown,
        tokens=spent.tokens if spent.entries > spent.uncounted else None,
        approved=bool(state.approved),
        said=said,
        made=made,
    )


def _topic(dialog: Dialog, said: Sequence[Said]) -> str:
    """The header's topic; where it has none, the beginning of the question, or the title."""
    question = next((line for item in said[:1] for line in item.text.split("\n") if line.strip()), "")
    return one_line(dialog.header.topic, TOPIC) or one_line(question or dialog.header.title, TOPIC)


def _headline(dialog: Dialog, made: Sequence[Made]) -> str:
    """How it ended, or stands, in words."""
    decisions = tuple(
        Decided(m.ref, "", m.text, m.status, m.method, m.evidence, m.reason, int(m.entry.partition(".")[0]))
        for m in made
    )
    last = next((m for m in reversed(made) if m.status == "approved" and not m.superseded), None)
    signers = tuple(Signed(who.agent, who.turn, who.reservation) for who in last.behind) if last else ()
    agreed = Agreed(last.ref, last.text, "", last.method, last.entry, "", signers) if last else None
    return headline(dialog, agreed, decisions)


def _said(entries: Sequence[Entry]) -> Iterator[Said]:
    """What agents and the person said; what was struck is withdrawn, and what was recalled is another dialog's."""
    for entry in entries:
        if entry.by == SYSTEM or entry.is_struck:
            continue
        body = entry.body if entry.number != 1 else _BLOCK.sub("", entry.body)
        marks = "\n".join(str(mark) for mark in entry.marks) if entry.frame is not None else ""
        text = clean(f"{body}\n{marks}").replace("\ufffd", " ").strip()
        if text:
            yield Said(entry.id, int(entry.id.partition(".")[0]), entry.by, moment(entry), text)


def moment(entry: Entry) -> str:
    """When an entry was written, by its frame: ISO in UTC, "" where it says nothing that makes sense."""
    return iso(entry.frame.at) if entry.frame is not None else ""


def iso(text: str) -> str:
    """A time with its offset, in UTC: `2026-11-21T19:00:00Z`; "" for anything else."""
    match = _ISO.fullmatch(text.strip())
    if match is None:
        return ""
    try:
        at = datetime.fromisoformat(f"{match[1]}T{match[2]}{match[3].replace('Z', '+00:00')}")
        return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError):
        return ""

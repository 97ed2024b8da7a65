"""What every export says of a dialog, before it is written in one of the formats."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dialogd.protocol import board
from dialogd.protocol.hashing import digest
from dialogd.protocol.lifecycle import in_words as phase_in_words
from dialogd.protocol.marks import MARKS
from dialogd.protocol.model import Condition, Entry
from dialogd.protocol.money import in_dollars, in_tokens, total
from dialogd.protocol.state import Dialog
from dialogd.protocol.units import dollars, in_words

STATES = {
    Condition.EDITED: "changed after it was written",
    Condition.DAMAGED: "damaged: it counts for nothing",
    Condition.UNFINISHED: "unfinished",
}
WITHDRAWN = "withdrawn by the person: its marks do not count"


@dataclass(frozen=True, slots=True)
class Part:
    """One entry. `anchor` is `t7` or `n7-2`, `caption` says when, how long and what it cost, `note` how it stands.

    `turn` is whom it passes to, "" for nobody; `marks` are those that stand below its text.
    """

    anchor: str
    title: str
    speaker: str
    caption: str
    note: str
    text: str
    marks: tuple[str, ...]
    turn: str


@dataclass(frozen=True, slots=True)
class Document:
    """All of it, in the order of the page. `proposals` are rows: number, by, text, decision, for, against."""

    title: str
    facts: tuple[tuple[str, str], ...]
    decisions: tuple[str, ...]
    proposals: tuple[tuple[str, ...], ...]
    parts: tuple[Part, ...]
    attachments: tuple[tuple[str, str], ...]
    header: str
    dialog: Dialog


PROPOSALS = ("number", "by", "proposal", "decision", "for", "against")


def draw_up(dialog: Dialog, attachments: Mapping[str, str]) -> Document:
    """The document of a dialog; links to its attachments lead to where they stand in it."""
    names = tuple(attachments)
    return Document(
        title=" ".join((dialog.header.topic or dialog.header.title or "A dialog").split()),
        facts=tuple((name, value) for name, value in _facts(dialog) if value),
        decisions=tuple(_decisions(dialog)),
        proposals=tuple(_proposals(dialog)),
        parts=tuple(_part(entry, names) for entry in dialog.entries),
        attachments=tuple((name, attachments[name]) for name in names),
        header=dialog.header.text.strip("\n"),
        dialog=dialog,
    )


def anchor_of(name: str) -> str:
    """Where an attachment stands in the document; another one for every name."""
    stem = name.removesuffix(".md")
    plain = re.sub(r"[^0-9A-Za-z]+", "-", stem).lower()
    return f"attachment-{plain}" if plain == stem else f"attachment-{plain}-{digest(name)[:6]}"


def _facts(dialog: Dialog) -> Iterator[tuple[str, str]]:
    state, spent = dialog.state, total(dialog.state.spent)
    yield (
        "Outcome",
        phase_in_words(dialog) + (f" ({state.outcome.reason})" if state.outcome and state.outcome.reason else ""),
    )
    cast = {agent.id: agent.name for agent in (*dialog.header_as_written.agents, *dialog.header.agents)}
    gone = [who for who in cast if dialog.header.agent(who) is None]
    yield "Participants", ", ".join(f"{who} ({name}{', left' if who in gone else ''})" for who, name in cast.items())
    yield "Started", dialog.header.started
    end = dialog.entry(state.outcome.entry) if state.outcome else None
    yield "Ended", _time(end) if end else ""
    yield "Turns", state.turns_in_words
    is_known = spent.entries > spent.unknown or spent.tokens
    yield "Spent", f"{in_dollars(spent)}, {in_tokens(spent)}" if is_known else ""
    yield "Open question", state.question
    yield "Dialog", dialog.id


def _decisions(dialog: Dialog) -> Iterator[str]:
    texts = {proposal.ref: proposal.text for proposal in dialog.state.proposals}
    for made in board.decisions(dialog):
        about = " ".join(texts.get(made.ref, "").split())
        why = "; ".join(part for part in (made.method, made.evidence, made.reason, made.superseded) if part)
        yield " ".join(part for part in (made.ref, made.stands, f"({why})" if why else "", about) if part)


def _proposals(dialog: Dialog) -> Iterator[tuple[str, ...]]:
    for p in board.proposals(dialog):
        stands = p.decision or "open"
        yield p.ref, p.agent, " ".join(p.text.split()), stands, ", ".join(p.supporters), ", ".join(p.opponents)


def _part(entry: Entry, attachments: tuple[str, ...]) -> Part:
    notes = [WITHDRAWN if entry.is_struck else "", STATES.get(entry.condition, ""), entry.notice]
    kind = f"Turn {entry.number}" if entry.is_turn else "Note"
    who = entry.name if entry.by in (entry.name.upper(), "USER", "SYSTEM") else f"{entry.name} ({entry.by})"
    return Part(
        anchor=f"t{entry.number}" if entry.is_turn else f"n{entry.id.replace('.', '-')}",
        title=f"{kind} — {' '.join(who.split()) or entry.by}",
        speaker=entry.by,
        caption=" · ".join(_caption(entry)),
        note="; ".join(note for note in notes if note),
        text=linked(entry.body, attachments),
        marks=tuple(str(mark) for mark in entry.written) if entry.frame else (),
        turn=", ".join(entry.turn or ()),
    )


def _time(entry: Entry) -> str:
    return entry.frame.at.replace("T", " ").replace("Z", " UTC") if entry.frame else ""


def _caption(entry: Entry) -> Iterator[str]:
    frame = entry.frame
    if frame is None:
        yield "by hand"
        return
    if frame.at:
        yield _time(entry)
    if frame.ms.isdigit():
        yield f"took {in_words(int(frame.ms) / 1000)}"
    if frame.model:
        yield frame.model
    if frame.tokens_in or frame.tokens_out:
        yield f"{frame.tokens_in or '?'} tokens in, {frame.tokens_out or '?'} out"
    try:
        yield from [("~" if frame.usd[0] == "~" else "") + dollars(float(frame.usd.lstrip("~")))] if frame.usd else []
    except (ValueError, OverflowError):
        yield frame.usd


def linked(text: str, attachments: tuple[str, ...]) -> str:
    """The text with its links to attachments led to where those stand in the document."""
    for name in attachments:
        if name in text:
            text = re.sub(rf"\]\([^()\s]*\.d/{re.escape(name)}\)", f"](#{anchor_of(name)})", text)
    return text


def meaning(mark: str) -> str:
    """The name of a mark's line that stands in a document: `PROPOSAL P1`."""
    head = mark[1:].partition(":")[0].rstrip("]")
    return head if head.split(" ")[0] in MARKS else ""

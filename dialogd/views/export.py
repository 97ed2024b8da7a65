"""A dialog exported as a document: Markdown, HTML, PDF or JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dialogd.errors import BadInput
from dialogd.protocol import board
from dialogd.protocol.board import positions
from dialogd.protocol.certificate import certify
from dialogd.protocol.lifecycle import in_words as phase_in_words
from dialogd.protocol.lifecycle import phase
from dialogd.protocol.model import Condition, Entry, digest
from dialogd.protocol.money import in_dollars, in_tokens, total
from dialogd.protocol.state import Dialog, Spent
from dialogd.protocol.text import one_line
from dialogd.protocol.units import dollars, in_words
from dialogd.views.flow import as_svg, flow
from dialogd.views.markup import fill, safe, to_html
from dialogd.views.plan_page import fenced, inline, quoted

STATES = {
    Condition.EDITED: "changed after it was written",
    Condition.DAMAGED: "damaged: it counts for nothing",
    Condition.UNFINISHED: "unfinished",
}
WITHDRAWN = "withdrawn by the person: its marks do not count"


@dataclass(frozen=True, slots=True)
class Part:
    """One entry. `anchor` is `t7` or `n7-2`, `caption` has time, duration and cost, `note` its condition.

    `turn` is who is next, "" for nobody; `marks` are those below its text.
    """

    anchor: str
    title: str
    caption: str
    is_withdrawn: bool
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
    """The document of a dialog; links to attachments lead to its appendix."""
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
    """The unique anchor of an attachment in the document."""
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
    yield "Open question", state.questions.text
    yield "Dialog", dialog.id


def _decisions(dialog: Dialog) -> Iterator[str]:
    texts = {proposal.ref: proposal.text for proposal in dialog.state.table.proposals}
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
        caption=" · ".join(_caption(entry)),
        is_withdrawn=entry.is_struck,
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
    """The text with links to attachments replaced by links into the document."""
    for name in attachments:
        if name in text:
            text = re.sub(rf"\]\([^()\s]*\.d/{re.escape(name)}\)", f"](#{anchor_of(name)})", text)
    return text


# -- A dialog as HTML -------------------------------------------------------------------------------------------------

PICTURED = 100  # messages in the picture


def as_html(document: Document) -> str:
    """One page, readable on a screen and on paper. Its policy allows its own style and nothing else."""
    folder = Path(__file__).parent
    css = (folder / "export.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return fill(
        folder,
        "export.html",
        document=document,
        policy=safe(f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"),
        css=safe(css),
        columns=PROPOSALS,
        anchor_of=anchor_of,
        picture=safe(as_svg(flow(document.dialog), limit=PICTURED)),
        markdown=lambda text: safe(to_html(text)),
    )


# -- A dialog as JSON -------------------------------------------------------------------------------------------------

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
        "proposals": [asdict(proposal) for proposal in board.proposals(dialog)],
        "decisions": [asdict(decision) for decision in board.decisions(dialog)],
        "positions": [asdict(position) for position in positions(dialog)],
        "messages": [asdict(message) for message in flow(dialog)],
        "certificate": certificate.as_json() if certificate is not None else None,
        "attachments": [{"name": name, "text": text} for name, text in attachments.items()],
    }


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
        "question": state.questions.text,
        "asker": state.questions.asker,
        "rounds": state.floor.rounds,
        "limits": asdict(state.limits),
        "outcome": None if outcome is None else {**asdict(outcome), "failed": outcome.failed},
        "approved": state.approved,
        "vetoed": list(state.table.vetoed),
        "spent": {who: _spent(spent) for who, spent in state.spent.items()},
        "total": _spent(total(state.spent)),
    }


def _spent(spent: Spent) -> dict[str, Any]:
    """The spending of an entry: null for unknown."""
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
        "frame": None if frame is None else {**asdict(frame), "re": entry.re},
    }


# -- A dialog as one Markdown document --------------------------------------------------------------------------------

ALL = 1_000_000_000  # characters: nothing is cut
# Where a link, or the definition of one, would lead to anything but a page, an address or a place in the document;
# `//host` is whatever the reader's program takes it for.
_LINK = re.compile(r"\](?=\([ \t]*+(?:\n[ \t>]*+)?+<?+(?:\s*+[/\\]{2}|(?!https?://|mailto:|#)[^()\n]*[:&]))", re.I)
_DEFINED = re.compile(r"^((?:[ \t>*+-]|\d{1,9}[.)])*)\[(?=[^\]\n]{1,999}\]:)", re.M)

# Signs of a heading that would not be shown, or change how others are. Behind these, `inline` sees to tags and images.
_EATEN = re.compile(
    r"\\(?=[!-/:-@[-`{-~])|[*~](?! )|(?<=\S)[*~]|(?<![^\W_])_(?! )|(?<=\S)_(?![^\W_])"
    r"|`|\[|&(?=#?\w+;)|(?<!#)#++$"
)


def as_markdown(document: Document) -> str:
    """The whole document; ends with a newline."""
    facts = "\n".join(f"- **{name}:** {_line(value)}" for name, value in document.facts)
    parts = [f"# {_line(_shown(document.title))}", facts, *_decided(document)]
    parts += ["## The dialog", *(block for part in document.parts for block in _markdown_part(part))]
    if document.attachments:
        parts.append("## Attachments")
    for name, text in document.attachments:  # a heading whose anchor on code hosts is `anchor_of`
        parts += [f"### {anchor_of(name).replace('attachment-', 'Attachment ', 1)}", quoted(_guarded(text))]
    parts += ["## Header and rules", fenced(document.header)]
    return "\n\n".join(parts) + "\n"


def _shown(title: str) -> str:
    """A title escaped for a Markdown heading; a single bracket needs no escaping."""
    title = one_line(title, ALL)
    links = title.rfind("](")

    def kept(match: re.Match[str]) -> str:
        is_alone = match[0] == "[" and match.start() > links
        return match[0] if is_alone else "".join(f"\\{sign}" for sign in match[0])

    return _EATEN.sub(kept, title)


def _decided(document: Document) -> Iterator[str]:
    if document.decisions:
        yield "## Decisions"
        yield "\n".join(f"- {_line(decision)}" for decision in document.decisions)
    if document.proposals:
        yield "## Proposals"
        yield "\n".join(
            f"- **{ref}** by {by}: {_line(text)} ({_stands(rest)})" for ref, by, text, *rest in document.proposals
        )


def _stands(rest: list[str]) -> str:
    decision, *sides = rest
    named = [f"{name} {_line(who)}" for name, who in zip(PROPOSALS[-2:], sides, strict=True) if who]
    return "; ".join([decision, *named])


def _markdown_part(part: Part) -> Iterator[str]:
    yield f"### {_line(part.title)}"
    if part.caption:
        yield f"*{_line(part.caption)}*"
    if part.note:
        yield f"**{_line(part.note)}**"
    if part.text.strip():
        yield quoted(_guarded(part.text))
    if part.marks:
        yield "\n".join(f"- {_line(mark)}" for mark in part.marks)
    if part.turn:
        yield f"→ {_line(part.turn)}"


def _line(text: str) -> str:
    return inline(_guarded(text), ALL)


def _guarded(text: str) -> str:
    """The text without links that could run something, and without link definitions."""
    return _DEFINED.sub(r"\1\\[", _LINK.sub(r"]\\", text))


# -- The formats that a dialog can be exported to, and the one function for all of them -------------------------------

FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "md": "text/markdown; charset=utf-8",
        "html": "text/html; charset=utf-8",
        "pdf": "application/pdf",
        "json": "application/json",
    }
)
NONE: Mapping[str, str] = MappingProxyType({})
PART = 40  # characters of a topic, and of an id, in a file's name


def export(dialog: Dialog, to: str, *, attachments: Mapping[str, str] = NONE) -> bytes:
    """The dialog as a document of its own; `to` is one of `FORMATS`, `attachments` are texts by name.

    Raises `BadInput` for another format, `NotInstalled` for a PDF without Typst.
    """
    if to not in FORMATS:
        raise BadInput(f"nothing is exported as {to!r}", fix=f"name one of: {', '.join(FORMATS)}")
    if to == "json":
        return as_json(dialog, attachments).encode()
    document = draw_up(dialog, attachments)
    if to == "pdf":
        from dialogd.views.export_pdf import as_pdf

        return as_pdf(document)
    return (as_markdown if to == "md" else as_html)(document).encode("utf-8", "replace")


def not_shown(dialog: Dialog, to: str, *, attachments: Mapping[str, str] = NONE) -> str:
    """A message naming the characters that no font here has; "" for none."""
    if to != "pdf":
        return ""
    from dialogd.views.export_pdf import in_words, unshown

    return in_words(unshown(draw_up(dialog, attachments)))


def file_name(dialog: Dialog, to: str) -> str:
    """`TOPIC-DIALOG.FORMAT`: a name that is valid on every system and in HTTP headers."""
    parts = (_plain(dialog.header.topic.lower()) or "dialog", _plain(dialog.id))
    return f"{'-'.join(filter(None, parts))}.{to}"


def _plain(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z]+", "-", text).strip("-")[:PART].strip("-")

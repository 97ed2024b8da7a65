"""A dialog as one HTML file: no script, no request, readable on a screen and on paper."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from dialogd.protocol.text import visible
from dialogd.views.export import PROPOSALS, WITHDRAWN, Document, Part, anchor_of
from dialogd.views.flow import as_svg, flow
from dialogd.views.markup import to_html

FEW = 60  # entries whose list of contents stands open
PICTURED = 100  # messages in the picture


def as_html(document: Document) -> str:
    """The whole page; ends with a newline. Its policy allows its own style and nothing else."""
    css = Path(__file__).with_name("export.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        '<head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="referrer" content="no-referrer">',
        f"<title>{_text(document.title)}</title>",
        f"<style>{css}</style></head>",
        "<body>",
        *_head(document),
        "<main>",
        *_decided(document),
        *_flow(document),
        '<h2 id="dialog">The dialog</h2>',
        *(line for part in document.parts for line in _part(part)),
        *_end(document),
        "</main>",
        "</body></html>",
    ]
    return "\n".join(lines) + "\n"


def _head(document: Document) -> Iterator[str]:
    yield f'<header><h1 dir="auto">{_text(document.title)}</h1>'
    yield "<dl>"
    yield from (f'<dt>{_text(name)}</dt><dd dir="auto">{_text(value)}</dd>' for name, value in document.facts)
    yield "</dl></header>"
    is_open = " open" if len(document.parts) <= FEW else ""
    yield f'<nav aria-label="Contents"><details{is_open}><summary>Contents</summary><ol>'
    for anchor, title in _contents(document):
        yield f'<li><a href="#{anchor}"><bdi>{_text(title)}</bdi></a></li>'
    yield "</ol></details></nav>"


def _contents(document: Document) -> Iterator[tuple[str, str]]:
    if document.decisions:
        yield "decisions", "Decisions"
    if document.proposals:
        yield "proposals", "Proposals"
    yield from ((part.anchor, part.title) for part in document.parts)
    yield from ((anchor_of(name), f"Attachment {name}") for name, _ in document.attachments)
    yield "header", "Header and rules"


def _decided(document: Document) -> Iterator[str]:
    if document.decisions:
        yield '<h2 id="decisions">Decisions</h2><ul>'
        yield from (f'<li dir="auto">{_text(decision)}</li>' for decision in document.decisions)
        yield "</ul>"
    if document.proposals:
        yield '<h2 id="proposals">Proposals</h2>'
        yield "<table><thead>" + _row(PROPOSALS, "th") + "</thead><tbody>"
        yield from (_row(row, "td") for row in document.proposals)
        yield "</tbody></table>"


def _row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f'<{tag} dir="auto">{_text(cell)}</{tag}>' for cell in cells) + "</tr>"


def _flow(document: Document) -> Iterator[str]:
    picture = as_svg(flow(document.dialog), limit=PICTURED)
    if picture:
        yield f"<details><summary>Message flow</summary>{picture}</details>"


def _part(part: Part) -> Iterator[str]:
    kind = "withdrawn" if part.note.startswith(WITHDRAWN) else "entry"
    yield f'<article id="{part.anchor}" class="{kind}"><h3><bdi>{_text(part.title)}</bdi></h3>'
    yield f'<p class="caption">{_text(part.caption)}</p>'
    if part.note:
        yield f'<p class="state">{_text(part.note)}</p>'
    if part.text.strip():
        yield f'<div class="said" dir="auto">{to_html(part.text)}</div>'
    if part.marks:
        yield '<ul class="marks">' + "".join(f'<li dir="auto">{_text(mark)}</li>' for mark in part.marks) + "</ul>"
    if part.turn:
        yield f'<p class="turn">→ {_text(part.turn)}</p>'
    yield "</article>"


def _end(document: Document) -> Iterator[str]:
    if document.attachments:
        yield "<h2>Attachments</h2>"
    for name, text in document.attachments:
        yield f'<article id="{anchor_of(name)}"><h3>{_text(name)}</h3>'
        yield f'<div class="said" dir="auto">{to_html(text)}</div></article>'
    yield f'<h2 id="header">Header and rules</h2><pre dir="auto">{_text(document.header)}</pre>'


def _text(text: str) -> str:
    return escape(visible(text))

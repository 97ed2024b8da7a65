"""A dialog as one Markdown document: headings are the document's, what was said stands in block quotes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dialogd.export.content import PROPOSALS, Document, Part, anchor_of
from dialogd.plan.quoting import fenced, inline, quoted
from dialogd.protocol.text import one_line

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
    parts = [f"# {_line(_shown(document.title))}", *_facts(document), *_decided(document)]
    parts += ["## The dialog", *(block for part in document.parts for block in _part(part))]
    if document.attachments:
        parts.append("## Attachments")
    for name, text in document.attachments:
        parts += [f"### {_title(name)}", _said(text)]
    parts += ["## Header and rules", fenced(document.header)]
    return "\n\n".join(parts) + "\n"


def _shown(title: str) -> str:
    """A title whose every sign is seen in a heading; a bracket alone needs nothing."""
    title = one_line(title, ALL)
    links = title.rfind("](")

    def kept(match: re.Match[str]) -> str:
        is_alone = match[0] == "[" and match.start() > links
        return match[0] if is_alone else "".join(f"\\{sign}" for sign in match[0])

    return _EATEN.sub(kept, title)


def _facts(document: Document) -> Iterator[str]:
    yield "\n".join(f"- **{name}:** {_line(value)}" for name, value in document.facts)


def _decided(document: Document) -> Iterator[str]:
    if document.decisions:
        yield "## Decisions"
        yield "\n".join(f"- {_line(decision)}" for decision in document.decisions)
    if document.proposals:
        yield "## Proposals"
        yield "\n".join(
            f"- **{ref}** by {by}: {_line(text)} ({_stands(rest)})" for ref, by, text, *rest in _rows(document)
        )


def _rows(document: Document) -> tuple[tuple[str, ...], ...]:
    return document.proposals


def _stands(rest: list[str]) -> str:
    decision, *sides = rest
    named = [f"{name} {_line(who)}" for name, who in zip(PROPOSALS[-2:], sides, strict=True) if who]
    return "; ".join([decision, *named])


def _title(name: str) -> str:
    """A heading whose anchor on code hosts is `anchor_of`."""
    return anchor_of(name).replace("attachment-", "Attachment ", 1)


def _part(part: Part) -> Iterator[str]:
    yield f"### {_line(part.title)}"
    if part.caption:
        yield f"*{_line(part.caption)}*"
    if part.note:
        yield f"**{_line(part.note)}**"
    if part.text.strip():
        yield _said(part.text)
    if part.marks:
        yield "\n".join(f"- {_line(mark)}" for mark in part.marks)
    if part.turn:
        yield f"→ {_line(part.turn)}"


def _said(text: str) -> str:
    return quoted(_guarded(text))


def _line(text: str) -> str:
    return inline(_guarded(text), ALL)


def _guarded(text: str) -> str:
    """The text without links that could run something, and without definitions that hide what they say."""
    return _DEFINED.sub(r"\1\\[", _LINK.sub(r"]\\", text))

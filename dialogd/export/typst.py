"""A document as Typst source in which every text is a string: nothing that an agent wrote is ever code."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from dialogd.export.content import PROPOSALS, Document, Part, anchor_of
from dialogd.markup import parsed
from dialogd.protocol.text import visible

if TYPE_CHECKING:
    from markdown_it.token import Token

DEEPEST, QUOTES = 24, 7  # elements, and quotes, in one another: with more Typst gives up on the whole document
RUN = 60  # characters without a blank, after which a line may break: a page has an edge
_RUN = re.compile(rf"\S{{{RUN}}}(?=\S)")
_BREAK = "\u200b"
_PAGE = re.compile(r"(?:https?://|mailto:)\S+", re.I)
_LANG = re.compile(r"[A-Za-z0-9+#-]{1,20}")

_STYLE = """\
#set document(title: {title}, date: none)
#set page(paper: "a4", margin: (x: 2cm, y: 2.2cm), numbering: "1 / 1")
#set text(size: 10pt, lang: "en", ligatures: false, hyphenate: false, font: ("Libertinus Serif", "DejaVu Sans"))
#set par(justify: false)
#set enum(full: false)
#set table(stroke: 0.5pt + luma(170), inset: 4pt)
#show raw: set text(size: 8.5pt, ligatures: false)
#show raw.where(block: true): block.with(fill: luma(244), inset: 6pt, radius: 2pt, width: 100%)
#show quote.where(block: true): block.with(stroke: (left: 2pt + luma(190)), inset: (left: 8pt))
#show heading.where(level: 2): set text(size: 11.5pt)
#show link: underline
"""


def string(text: str) -> str:
    """A text as a Typst string literal, which a line can break anywhere in a very long run."""
    text = _RUN.sub(lambda match: match[0] + _BREAK, visible(text))
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "    ") + '"'


def source(document: Document, notice: str = "") -> str:
    """The whole source. `notice` stands below the title: what the reader must know of this very file."""
    anchors = frozenset(anchor_of(name) for name, _ in document.attachments)
    lines = [_STYLE.replace("{title}", string(document.title))]
    lines.append(f"#text(size: 18pt, weight: 700, {string(document.title)})\n")
    lines += [f"#block(fill: luma(235), inset: 6pt, {string(notice)})\n"] if notice else []
    cells = (f"text(fill: luma(90), {string(name)}), {string(value)}" for name, value in document.facts)
    lines.append(f"#grid(columns: (auto, 1fr), gutter: 6pt, {', '.join(cells)})\n")
    lines += _decided(document)
    lines.append('#outline(title: "Contents", depth: 2)\n#pagebreak(weak: true)\n')
    lines.append('#heading(level: 1, "The dialog")\n')
    lines += (line for part in document.parts for line in _part(part, anchors))
    lines += ['#heading(level: 1, "Attachments")\n'] if document.attachments else []
    for name, text in document.attachments:
        lines.append(f"#heading(level: 2, {string(name)}) #label({string(anchor_of(name))})\n")
        lines.append(said(text, anchors))
    lines.append(f'#heading(level: 1, "Header and rules")\n#raw(block: true, {string(document.header)})\n')
    return "".join(lines)


def _decided(document: Document) -> Iterator[str]:
    if document.decisions:
        items = ", ".join(string(decision) for decision in document.decisions)
        yield f'#heading(level: 1, "Decisions")\n#list({items})\n'
    if document.proposals:
        rows = (string(cell) for row in document.proposals for cell in row)
        heads = ", ".join(f"strong({string(name)})" for name in PROPOSALS)
        columns = "(auto, auto, 1fr, auto, auto, auto)"
        yield f'#heading(level: 1, "Proposals")\n#table(columns: {columns}, table.header({heads}), {", ".join(rows)})\n'


def _part(part: Part, anchors: Collection[str]) -> Iterator[str]:
    yield f"#heading(level: 2, {string(part.title)})\n"
    yield f"#text(size: 8.5pt, fill: luma(90), {string(part.caption)})\n\n" if part.caption else ""
    yield f"#strong({string(part.note)})\n\n" if part.note else ""
    yield said(part.text, anchors) if part.text.strip() else ""
    if part.marks:
        marks = ", ".join(f"raw({string(mark)})" for mark in part.marks)
        yield f"#block(stack(spacing: 5pt, {marks}))\n"
    yield f"#text(size: 8.5pt, fill: luma(90), {string('→ ' + part.turn)})\n\n" if part.turn else ""


def said(text: str, anchors: Collection[str] = ()) -> str:
    """What somebody wrote; as it stands, where Markdown would hide some of it."""
    tokens = parsed(visible(text))
    if tokens is None or _is_deep(tokens):
        return f"#raw(block: true, {string(text)})\n"
    return "#[#{\n" + "".join(_Writer(anchors).written(tokens)) + "}]\n\n"


def _is_deep(tokens: Iterable[Token]) -> bool:
    """True where more elements stand in one another than Typst takes."""
    quotes = 0
    for token in tokens:
        quotes += token.nesting * (token.tag == "blockquote")
        inside = max((child.level for child in token.children or ()), default=0)
        if quotes > QUOTES or token.level + inside > DEEPEST:
            return True
    return False


_OPEN, _CLOSE = "[#{\n", "}]"  # a block of content, which may be empty
_AROUND: Mapping[str, str] = {
    "paragraph": "par(",
    "blockquote": "quote(block: true, ",
    "em": "emph(",
    "strong": "strong(",
    "s": "strike(",
}


class _Writer:
    """Writes tokens of Markdown; remembers how each open link is to be closed."""

    def __init__(self, anchors: Collection[str]) -> None:
        self.anchors = anchors
        self.links: list[str] = []

    def written(self, tokens: Iterable[Token]) -> Iterator[str]:
        """The source of these tokens, in code mode."""
        tokens = list(tokens)
        for place, token in enumerate(tokens):
            kind, _, end = token.type.rpartition("_")
            if token.type == "inline":
                yield from self.written(token.children or ())
            elif end in ("open", "close") and kind in _AROUND:
                yield self._around(token, kind, end)
            elif token.type == "table_open":
                yield f"table(columns: {_columns(tokens[place:])}, "
            elif token.type in ("link_open", "link_close"):
                yield self._link(token)
            else:
                yield _PLAIN.get(token.type, _nothing)(token)

    def _around(self, token: Token, kind: str, end: str) -> str:
        if token.hidden:  # the paragraph of a tight list
            return "" if end == "open" else "parbreak()\n"
        return _AROUND[kind] + _OPEN if end == "open" else f"{_CLOSE})\n"

    def _link(self, token: Token) -> str:
        if token.type == "link_close":
            return self.links.pop()
        href, name = str(token.attrs.get("href", "")), str(token.attrs.get("title", ""))
        if href[1:] in self.anchors and href.startswith("#"):
            self.links.append(f"{_CLOSE})\n")
            return f"link(label({string(href[1:])}), {_OPEN}"
        told = " ".join(filter(None, [href if token.markup != "autolink" else "", name]))
        after = f"text(size: 0.85em, {string(f' ({told})')})\n" if told else ""
        if not _PAGE.fullmatch(href):
            self.links.append(f"{_CLOSE}\n{after}")
            return _OPEN
        self.links.append(f"{_CLOSE})\n{after}")
        return f"link({string(href).replace(_BREAK, '')}, {_OPEN}"


def _columns(tokens: Iterable[Token]) -> int:
    """How many columns the table has that these tokens begin with."""
    count = 0
    for token in tokens:
        if token.type == "thead_close":
            break
        count += token.type == "th_open"
    return max(count, 1)


def _nothing(token: Token) -> str:
    return ""


def _text(token: Token) -> str:
    return f"{string(token.content)}\n" if token.content else ""


def _raw(token: Token) -> str:
    """Code, below what stands after its fence; coloured where that begins with the name of a language."""
    about = token.info.strip()
    word = about.partition(" ")[0].lower()
    lang = f"lang: {string(word)}, " if _LANG.fullmatch(word) else ""
    above = f"text(size: 0.85em, {string(about)})\nparbreak()\n" if about else ""
    return f"{above}raw(block: true, {lang}{string(token.content.removesuffix(chr(10)))})\n"


def _start(token: Token) -> str:
    return f"enum(tight: false, start: {int(token.attrs.get('start', 1))}, "


_PLAIN: Mapping[str, Callable[[Token], str]] = {
    "text": _text,
    "softbreak": lambda _: '" "\n',
    "hardbreak": lambda _: "linebreak()\n",
    "code_inline": lambda token: f"raw({string(token.content)})\n",
    "fence": _raw,
    "code_block": _raw,
    "hr": lambda _: "line(length: 100%, stroke: 0.5pt)\n",
    "heading_open": lambda token: f"heading(level: {min(2 + int(token.tag[1]), 6)}, outlined: false, {_OPEN}",
    "heading_close": lambda _: f"{_CLOSE})\n",
    "bullet_list_open": lambda _: "list(tight: false, ",
    "bullet_list_close": lambda _: ")\n",
    "ordered_list_open": _start,
    "ordered_list_close": lambda _: ")\n",
    "list_item_open": lambda _: _OPEN,
    "list_item_close": lambda _: f"{_CLOSE}, ",
    "table_close": lambda _: ")\n",
    "th_open": lambda _: f"strong({_OPEN}",
    "th_close": lambda _: f"{_CLOSE}), ",
    "td_open": lambda _: _OPEN,
    "td_close": lambda _: f"{_CLOSE}, ",
}

"""A document as PDF, by Typst."""

from __future__ import annotations

import re
import struct
import tempfile
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dialogd.errors import DialogdError, NotInstalled
from dialogd.protocol.text import visible
from dialogd.views.export import HASHES, PROPOSALS, RECORDS, Document, Piece, anchor_of
from dialogd.views.markup import bounded, parsed

if TYPE_CHECKING:
    import typst
    from markdown_it.token import Token


# What Typst's own fonts show, as good as all of it: Latin, Greek, Cyrillic; punctuation to geometric shapes.
_EMBEDDED = (range(0x0530), range(0x1E00, 0x2600))
_SHOWN = frozenset("LNPS")  # first letters of the categories that have a glyph of their own


def missing(text: str, fonts: Iterable[str]) -> str:
    """The characters of a text, each once, that neither Typst's own fonts nor these font files show."""
    wanted = {
        ord(char)
        for char in set(text)
        if unicodedata.category(char)[0] in _SHOWN and not any(ord(char) in known for known in _EMBEDDED)
    }
    for path in sorted(set(fonts)):
        if not wanted:
            break
        wanted -= _shown_by(Path(path), wanted)
    return "".join(map(chr, sorted(wanted)))


def in_words(chars: str, most: int = 6) -> str:
    """Characters for a person, by kind: `3 of HANGUL (U+AD6D …)`; themselves they cannot be shown."""
    kinds: dict[str, list[str]] = {}
    for char in chars:
        kinds.setdefault(unicodedata.name(char, "UNKNOWN").split(" ")[0].split("-")[0], []).append(f"U+{ord(char):04X}")
    named = [f"{len(codes)} of {kind} ({codes[0]}{' …' if len(codes) > 1 else ''})" for kind, codes in kinds.items()]
    return ", ".join(named[:most]) + (f" and {len(named) - most} more kinds" if len(named) > most else "")


def _shown_by(path: Path, wanted: set[int]) -> set[int]:
    """Which of these code points a font file has a glyph for; none, where it cannot be read."""
    try:
        data = path.read_bytes()
        starts = [0]
        if data[:4] == b"ttcf":
            count = struct.unpack_from(">I", data, 8)[0]
            starts = list(struct.unpack_from(f">{min(count, 64)}I", data, 12))
        return {code for start in starts for table in _tables(data, start) for code in _within(data, table, wanted)}
    except (OSError, struct.error):
        return set()


def _tables(data: bytes, start: int) -> Iterator[int]:
    """Offsets of the character tables of the font that begins at `start`."""
    for number in range(struct.unpack_from(">H", data, start + 4)[0]):
        tag, _, offset, _ = struct.unpack_from(">4sIII", data, start + 12 + 16 * number)
        if tag == b"cmap":
            for entry in range(struct.unpack_from(">H", data, offset + 2)[0]):
                yield offset + struct.unpack_from(">I", data, offset + 8 + 8 * entry)[0]


def _within(data: bytes, table: int, wanted: set[int]) -> Iterator[int]:
    """The wanted code points in one character table; formats 4 and 12 are those that fonts use."""
    form = struct.unpack_from(">H", data, table)[0]
    if form == 12:
        count = struct.unpack_from(">I", data, table + 12)[0]
        for first, last, _ in struct.iter_unpack(">III", data[table + 16 : table + 16 + 12 * count]):
            yield from (code for code in wanted if first <= code <= last)
    elif form == 4:
        half = struct.unpack_from(">H", data, table + 6)[0] // 2
        ends = struct.unpack_from(f">{half}H", data, table + 14)
        firsts = struct.unpack_from(f">{half}H", data, table + 16 + 2 * half)
        for first, last in zip(firsts, ends, strict=True):
            yield from (code for code in wanted if first <= code <= last < 0xFFFF)


# -- A document as Typst source in which every text is a string -------------------------------------------------------

DEEPEST, QUOTES = 24, 7  # elements, and quotes, in one another: with more Typst gives up on the whole document
CONTENTS = 12  # entries from which a list of them is worth its place
RUN = 60  # characters without a blank, after which a line may break: a page has an edge
_RUN = re.compile(rf"\S{{{RUN}}}(?=\S)")
_BREAK = "\u200b"
_PAGE = re.compile(r"(?:https?://|mailto:)\S+", re.I)
_LANG = re.compile(r"[A-Za-z0-9+#-]{1,20}")

_STYLE = """\
#set document(title: {title}, date: none)
#set page(paper: "a4", margin: (x: 2.6cm, top: 2.4cm, bottom: 2.6cm), numbering: "1 / 1")
#set text(size: 10.5pt, lang: "en", ligatures: false, hyphenate: false, font: ("Libertinus Serif", "DejaVu Sans"))
#set par(justify: false, leading: 0.72em, spacing: 1.05em)
#set enum(full: false)
#set table(stroke: 0.5pt + luma(190), inset: 4pt)
#show table: set par(leading: 0.5em)
#show raw: set text(size: 8.5pt, ligatures: false)
#show raw.where(block: true): block.with(fill: luma(246), inset: 6pt, radius: 2pt, width: 100%)
#show quote.where(block: true): block.with(stroke: (left: 2pt + luma(170)), inset: (left: 10pt, y: 2pt))
#show heading: set block(above: 1.7em, below: 0.8em, sticky: true)
#show heading.where(level: 1): set text(size: 14pt)
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
    lines.append(f"#block(below: 1.2em, text(size: 20pt, weight: 700, {string(document.title)}))\n")
    lines += [f"#strong({string(document.kind + '.')})\n\n"] if document.kind else []
    lines += [f"#block(fill: luma(235), inset: 6pt, {string(notice)})\n"] if notice else []
    lines.append(said(document.summary, anchors, below=-1))
    cells = (f"text(fill: luma(90), {string(name)}), {string(value)}" for name, value in document.facts)
    lines.append('#heading(level: 1, "About this dialog")\n')
    lines.append(f"#grid(columns: (auto, 1fr), gutter: 7pt, {', '.join(cells)})\n")
    lines += _proposed(document)
    if len(document.parts) > CONTENTS:
        lines.append('#outline(title: "Contents", depth: 2)\n')
    lines.append('#pagebreak(weak: true)\n#heading(level: 1, "The conversation")\n')
    lines += (line for part in document.parts for line in _part(part, anchors))
    lines += ['#heading(level: 1, "Attachments")\n'] if document.attachments else []
    for name, text in document.attachments:
        lines.append(f"#heading(level: 2, {string(name)}) #label({string(anchor_of(name))})\n")
        lines.append(said(text, anchors))
    return "".join((*lines, *_appendix(document)))


def _proposed(document: Document) -> Iterator[str]:
    if document.proposals:
        rows = (string(cell) for row in document.proposals for cell in row)
        heads = ", ".join(f"strong({string(name)})" for name in PROPOSALS)
        columns = "(auto, auto, 1fr, auto, auto, auto)"
        yield '#heading(level: 1, "Proposals")\n'
        yield f"#text(size: 9pt, table(columns: {columns}, table.header({heads}), {', '.join(rows)}))\n"


def _appendix(document: Document) -> Iterator[str]:
    """Rules, figures and hashes, in small type."""
    yield '#pagebreak(weak: true)\n#heading(level: 1, "Appendix: rules, figures and hashes")\n'
    yield f"{''.join(f'#par({string(rule)})' for rule in document.rules if rule)}\n"
    yield f"#raw(block: true, {string(document.header)})\n"
    rows = (string(cell) for row in document.records for cell in row)
    heads = ", ".join(f"strong({string(name)})" for name in RECORDS)
    columns = "(auto, auto, auto, auto, auto, auto, auto, 1fr)"
    yield f"#text(size: 7pt, table(columns: {columns}, table.header({heads}), {', '.join(rows)}))\n"
    yield f"#par({string(HASHES.replace('`', ''))})\n"


def _part(part: Piece, anchors: Collection[str]) -> Iterator[str]:
    yield f"#heading(level: 2, {string(part.title)})\n"
    yield f"#block(sticky: true, text(size: 8.5pt, fill: luma(90), {string(part.caption)}))\n" if part.caption else ""
    yield f"#strong({string(part.note)})\n\n" if part.note else ""
    yield said(part.text, anchors) if part.text.strip() else ""
    if part.told:
        told = ", ".join(string(sentence) for sentence in part.told)
        yield f"#text(size: 9.5pt, fill: luma(60), list(tight: true, {told}))\n"


def said(text: str, anchors: Collection[str] = (), below: int = 2) -> str:
    """What somebody wrote; as it stands, where Markdown would hide some of it.

    Its headings stand `below` levels below those that they say they are.
    """
    head, rest = bounded(visible(text))
    tokens = parsed(head)
    if tokens is None or _is_deep(tokens):
        return _as_written(text)
    written = "#[#{\n" + "".join(_Writer(anchors, below).written(tokens)) + "}]\n\n"
    return f"{written}{_as_written(rest)}" if rest else written


def _as_written(text: str) -> str:
    return f"#raw(block: true, {string(text)})\n"


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

    def __init__(self, anchors: Collection[str], below: int = 2) -> None:
        self.anchors, self.below = anchors, below
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
            elif token.type == "heading_open":
                level = max(1, min(self.below + int(token.tag[1]), 6))
                yield f"heading(level: {level}, outlined: false, {_OPEN}"
            else:
                yield _PLAIN[token.type](token) if token.type in _PLAIN else ""

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


def _raw(token: Token) -> str:
    """Code, below what stands after its fence; coloured where that begins with the name of a language."""
    about = token.info.strip()
    word = about.partition(" ")[0].lower()
    lang = f"lang: {string(word)}, " if _LANG.fullmatch(word) else ""
    above = f"text(size: 0.85em, {string(about)})\nparbreak()\n" if about else ""
    return f"{above}raw(block: true, {lang}{string(token.content.removesuffix(chr(10)))})\n"


_PLAIN: Mapping[str, Callable[[Token], str]] = {
    "text": lambda token: f"{string(token.content)}\n" if token.content else "",
    "softbreak": lambda _: '" "\n',
    "hardbreak": lambda _: "linebreak()\n",
    "code_inline": lambda token: f"raw({string(token.content)})\n",
    "fence": _raw,
    "code_block": _raw,
    "hr": lambda _: "line(length: 100%, stroke: 0.5pt)\n",
    "heading_close": lambda _: f"{_CLOSE})\n",
    "bullet_list_open": lambda _: "list(tight: false, ",
    "bullet_list_close": lambda _: ")\n",
    "ordered_list_open": lambda token: f"enum(tight: false, start: {int(token.attrs.get('start', 1))}, ",
    "ordered_list_close": lambda _: ")\n",
    "list_item_open": lambda _: _OPEN,
    "list_item_close": lambda _: f"{_CLOSE}, ",
    "table_close": lambda _: ")\n",
    "th_open": lambda _: f"strong({_OPEN}",
    "th_close": lambda _: f"{_CLOSE}), ",
    "td_open": lambda _: _OPEN,
    "td_close": lambda _: f"{_CLOSE}, ",
}


# -- A document as PDF ------------------------------------------------------------------------------------------------

_INSTEAD = "export to html, open the page in a browser and print it to a file"


def as_pdf(document: Document) -> bytes:
    """What Typst makes of it. It sees one text and an empty folder, and no text of an agent's is code to it.

    Raises `NotInstalled` where Typst is not installed, `DialogdError` where it fails.
    """
    fonts = _fonts()
    if fonts is None:
        raise NotInstalled(
            "a PDF is made by Typst, which is not installed", fix=f"pip install 'dialogd[pdf]'; or {_INSTEAD}"
        )
    import typst

    notice = ""
    if gone := unshown(document):
        notice = (
            "No font of the machine that made this file has some characters, and nothing or boxes stand for them:"
            f" {in_words(gone)}. An export to HTML has them."
        )
    with tempfile.TemporaryDirectory(prefix="dialogd-pdf-") as empty:
        text = source(document, notice).encode("utf-8", "replace")
        try:
            folder = cast("Any", empty)  # its types want one kind for both, the program does not
            made = typst.compile(text, root=folder, font_paths=fonts, format="pdf")
        except typst.TypstError as error:
            raise DialogdError(f"Typst made no PDF: {error}", fix=_INSTEAD) from error
    if not isinstance(made, bytes):
        raise DialogdError("Typst made no PDF", fix=_INSTEAD)
    return made


@lru_cache(maxsize=1)
def _fonts() -> typst.Fonts | None:
    """Typst's fonts and the machine's; None where Typst is not installed."""
    try:
        import typst
    except ImportError:
        return None
    return typst.Fonts()


def unshown(document: Document) -> str:
    """The characters of a document that no font here shows."""
    texts = [document.title, document.header, *(text for _, text in document.attachments)]
    texts += [text for part in document.parts for text in (part.title, part.text, *part.told)]
    fonts = _fonts()
    return missing("".join(texts), [font.path for font in fonts.fonts() if font.path] if fonts else [])

"""Agents' Markdown made harmless: as a part of a Markdown page, and as safe HTML; nothing is hidden.

For HTML both steps are needed: the renderer drops HTML but passes remote images; the sanitizer alone would let an agent
write markup.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from html import escape, unescape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from dialogd.backends import parts
from dialogd.protocol.text import one_line, visible

if TYPE_CHECKING:
    from jinja2 import Environment
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

# -- in a Markdown page -----------------------------------------------------------------------------------------------

# A fence at the very beginning of a line is one to every reader of Markdown. What one behind blanks or a list's sign
# opens and closes depends on what stands around it: a text with such a fence is taken to have none.
_DOUBTFUL = re.compile(r"[ \t>*+\d.)-]+(?:`{3,}|~{3,})")
_FENCED = re.compile(r"(`{3,}|~{3,})(.*)")
# What would open a tag, a comment or an image, or define a link for the whole page.
BACKSLASHED = r"\\\1"
_INLINE = re.compile(r"(?<!\\)(\\*)(<(?=[A-Za-z/!?])|!(?=\[))")
_DEFINITION = re.compile(r"^([ \t]*)\[(?=[^\]]{1,999}\]:)")
_TITLE = re.compile(r"^ {0,3}#{1,6}[ \t]+([^ \t#].*?)[ \t]*#*[ \t]*$")
# Other headings: those in lists, empty ones, and the line of = or - below a text.
_HEADING = re.compile(r"^((?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t])*)(#{1,6}(?:[ \t]|$)|=+[ \t]*$|-+[ \t]*$)")


# Where a link, or the definition of one, would lead to anything but a page, an address or a place in the document;
# `//host` is whatever the reader's program takes it for.
_LEADS = re.compile(r"\](?=\([ \t]*+(?:\n[ \t>]*+)?+<?+(?:\s*+[/\\]{2}|(?!https?://|mailto:|#)[^()\n]*[:&]))", re.I)
_DEFINED = re.compile(r"^((?:[ \t>*+-]|\d{1,9}[.)])*)\[(?=[^\]\n]{1,999}\]:)", re.M)


def _backslashed(match: re.Match[str]) -> str:
    """The sign behind a backslash of ours, unless its author's own has that effect: two would undo each other."""
    before, sign = match.groups()
    return f"{before}{'' if len(before) % 2 else chr(92)}{sign}"


def quoted(text: str) -> str:
    """A text as a block quote. Outside of fenced code, headings become bold and tags and images lose their effect."""
    return "\n".join(f"> {line}".rstrip() for line in _safe_lines(visible(text).strip("\n").split("\n")))


def _safe_lines(lines: Sequence[str]) -> Iterator[str]:
    fence, is_clear = "", not any(_DOUBTFUL.match(line) for line in lines)
    for line in lines:
        match = _FENCED.fullmatch(line) if is_clear else None
        if fence:
            closes = match is not None and match[1].startswith(fence) and not match[2].strip()
            fence = "" if closes else fence
            yield line
        elif match is not None and not (match[1][0] == "`" and "`" in match[2]):
            fence = match[1]
            yield line
        else:
            yield _harmless(line)


def _harmless(line: str) -> str:
    if (title := _TITLE.match(line)) is not None:
        return f"**{_INLINE.sub(_backslashed, title[1]).strip('*_ ')}**"
    return _HEADING.sub(r"\1\\\2", _DEFINITION.sub(r"\1\\[", _INLINE.sub(_backslashed, line)))


def inline(text: str, limit: int = 500) -> str:
    """A text on one line, without tags and images, fit for a sentence, a list or a heading."""
    return _INLINE.sub(_backslashed, one_line(visible(text), limit))


def guarded(text: str) -> str:
    """The text without links that could run something, and without link definitions."""
    return _DEFINED.sub(r"\1\\[", _LEADS.sub(r"]\\", text))


def fenced(text: str) -> str:
    """A text between fences of tildes that nothing in it can close."""
    return parts.fenced(visible(text))


def cell(text: str) -> str:
    """A text as a cell of a table."""
    return inline(text).replace("|", r"\|") or "–"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; "" without rows."""
    cells = [list(map(cell, row)) for row in rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)) if rows else ""


# -- as HTML -----------------------------------------------------------------------------------------------------------

LARGEST = 200_000  # characters of one text that are rendered; what follows is shown as it stands
MOST_SIGNS = 10_000  # likewise, ends of lines included: signs are what takes time, and an essay has few
MOST_CELLS = 20_000  # of a text's tables: a row of two characters may stand for hundreds

_TAGS = {
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre",
    "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip
_ATTRIBUTES = {"a": {"href", "title"}, "code": {"class"}, "ol": {"start"}}
_SCHEMES = {"http", "https", "mailto"}
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.I)
_LANGUAGE = re.compile(r"[\w+#.-]{0,16}")  # after a fence: more than that is said and not meant for a highlighter


@lru_cache(maxsize=1)
def parser() -> MarkdownIt:
    """The one parser: CommonMark with tables and strikethrough; without HTML, images and links defined elsewhere."""
    from markdown_it import MarkdownIt

    class Parser(MarkdownIt):
        def validateLink(self, url: str) -> bool:
            # `//host` leads wherever its page lies: to a web server, and from a saved file to a share of the network.
            # An address that the sanitiser would take away is not to be hidden behind a word either.
            scheme = _SCHEME.match(url)
            is_known = scheme is None or scheme[1].lower() in _SCHEMES
            return super().validateLink(url) and is_known and not url.startswith("//")

    return Parser("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable(["image", "reference"])


def rendered(text: str) -> str:
    """The text as HTML without scripts, images, styles or anything else that loads something.

    Where Markdown would hide some of it, it is shown as written.
    """
    text = visible(text)
    head, rest = bounded(text)
    tokens = parsed(head)
    if tokens is None:
        return _as_written(text)
    html = _reduced(parser().renderer.render(list(_told(tokens)), parser().options, {}))
    return f"{html}{_as_written(rest)}" if rest else html


to_html = lru_cache(maxsize=4096)(rendered)  # entries never change


def _as_written(text: str) -> str:
    return f'<pre><code class="as-written">{escape(text)}</code></pre>'


def _reduced(rendered: str) -> str:
    import nh3

    return nh3.clean(
        rendered,
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes=_SCHEMES,
        link_rel="noopener noreferrer nofollow",
    )


def _told(tokens: Iterable[Token]) -> Iterator[Token]:
    """The tokens, with attributes as text too: titles of links, what follows a fence."""
    from markdown_it.token import Token

    for token in tokens:
        if token.children:
            token.children = list(_with_titles(token.children))
        elif token.type == "fence" and not _LANGUAGE.fullmatch(token.info.strip()):
            text = Token("text", "", 0, content=token.info.strip())
            yield Token("paragraph_open", "p", 1)
            yield Token("inline", "", 0, content=text.content, children=[text])
            yield Token("paragraph_close", "p", -1)
        yield token


def _with_titles(tokens: Iterable[Token]) -> Iterator[Token]:
    from markdown_it.token import Token

    title = ""
    for token in tokens:
        yield token
        if token.type == "link_open":
            title = str(token.attrs.get("title", ""))
        elif token.type == "link_close" and title:
            yield Token("text", "", 0, content=f" ({title})")


# -- what is still being written --------------------------------------------------------------------------------------

_FENCE = re.compile(r" {0,3}(```+|~~~+)")
_NO_WORDS = re.compile(
    r"[\s\d\-=#>*+_.)|~`:]*"
)  # may become a list, a heading, a rule, a fence, a table: nobody knows yet
_TRIED = re.compile(r"[\s*_`+-]*\[[^\]]*")  # a mark, perhaps, or a link
_LINK = re.compile(r"!?\[([^\[\]\n]*)(?:\]\([^()\n]*|\]|)\Z")
_EMPHASIS = re.compile(r"(?<=\S)[*~`]+|[*~`]+(?=\S)|(?<!\w)_+(?=\S)|(?<=\S)_+(?!\w)")


def so_far(text: str) -> str:
    """The beginning of a Markdown text, such that what it shows stays there when the rest has come.

    A paragraph that goes on has no emphasis, code and half links yet; what nobody can tell is left out: the beginning
    of a list, of a table, of a mark.
    """
    *lines, last = text.split("\n")
    fence, after = "", 0
    for number, line in enumerate(lines, 1):
        match = _FENCE.match(line)
        if match and not fence:
            fence = match[1]
        elif match and match[1].startswith(fence) and not line.strip().strip(fence[0]):
            fence, after = "", number
    if fence:
        return "\n".join((*lines, "" if fence.startswith(last.strip() or " ") else last))
    if _NO_WORDS.fullmatch(last) or _TRIED.fullmatch(last) or _FENCE.match(last):
        last = ""
    lines.append(last)
    start = max(after, next((at + 1 for at in range(len(lines) - 2, -1, -1) if not lines[at].strip()), 0))
    if lines[start].lstrip().startswith("|") and len(lines) - start <= 2:
        return "\n".join(lines[:start])  # a table, once its second line is whole
    # Only in a line that goes on may a link or a mark lack its end. What is emphasised is shown so once it is whole.
    lines[-1] = _LINK.sub(r"\1", last.rstrip().rstrip("*_~`"))
    return "\n".join((*lines[:start], *(_EMPHASIS.sub("", line) for line in lines[start:])))


# -- what can be seen --------------------------------------------------------------------------------------------------


_SIGN = re.compile(r"[!-/:-@\[-`{-~\n]")
_DELIMITERS = re.compile(r"^[ \t>:|-]*-[ \t:|-]*$", re.M)


def bounded(text: str) -> tuple[str, str]:
    """The text's beginning, which is rendered, up to a whole line where there is one, and the rest, which is not."""
    ends = (match.end() for match in islice(_SIGN.finditer(text), MOST_SIGNS, None))
    end = min(LARGEST, next(ends, len(text)))
    if end >= len(text):
        return text, ""
    end = text.rfind("\n", 0, end) + 1 or end
    return text[:end], text[end:]


def parsed(text: str) -> list[Token] | None:
    """The tokens of a text; None where Markdown would hide some of it, so that it is shown as written.

    Hidden would be: cells beyond a table's last column, links without words, lists and quotes nested too deeply. A text
    with far too many cells is shown as written, too.
    """
    columns = max((row.count("|") + 1 for row in _DELIMITERS.findall(text)), default=0)
    if columns * text.count("\n") > MOST_CELLS:
        return None
    tokens = parser().parse(text)
    missing = Counter(_plain(text))
    missing.subtract(Counter(_plain("".join(_seen(tokens)))))
    # All signs of Markdown are ASCII, and neither letters nor digits.
    is_hidden = (n > 0 and (c.isalnum() or not (c.isascii() or c.isspace())) for c, n in missing.items())
    return None if any(is_hidden) else tokens


def _plain(text: str) -> str:
    """A text without the ways to write a character otherwise."""
    return unquote(unescape(text))


def _seen(tokens: Iterable[Token]) -> Iterator[str]:
    """Everything in these tokens that a reader sees, once each, link targets included."""
    address, words = "", ""
    for token in tokens:
        if token.children is not None:
            yield from _seen(token.children)
            yield "\n"
        elif token.type == "link_open":
            is_told = token.markup == "autolink"  # its words are its address
            address, words = "" if is_told else " ".join(str(one) for one in token.attrs.values()), ""
        elif token.type == "link_close":
            # Nobody finds a link without a word that can be seen.
            yield f" {address} " if any(c.isprintable() and not c.isspace() for c in words) else ""
        elif token.type in ("softbreak", "hardbreak"):
            yield "\n"
        else:
            words += token.content
            yield token.content
            yield f"\n{token.info}\n" if token.info else ""


# -- templates ---------------------------------------------------------------------------------------------------------


def fill(folder: Path, name: str, **values: Any) -> str:
    """The HTML template of that name, filled; every text is escaped and made visible, unless it is `safe`."""
    return templates(folder, escapes=True).get_template(name).render(**values)


@lru_cache(maxsize=4)
def templates(folder: Path, *, escapes: bool) -> Environment:
    """The templates of a folder, each name in which must have a value; `escapes`: of texts that become HTML."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(folder),
        autoescape=escapes,
        finalize=lambda value: visible(value) if escapes and type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )


def safe(html: str) -> Any:
    """HTML by `to_html` or a template, which a template inserts unchanged."""
    from markupsafe import Markup

    return Markup(html)

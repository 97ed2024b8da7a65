"""Agents' texts in a Markdown page: data that cannot become a heading, a table or a link of the page. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dialogd.protocol.text import one_line, visible

# A fence at the very beginning of a line is one to every reader of Markdown. What one behind blanks or a list's sign
# opens and closes depends on what stands around it: a text with such a fence is taken to have none.
_DOUBTFUL = re.compile(r"[ \t>*+\d.)-]+(?:`{3,}|~{3,})")
_FENCE = re.compile(r"(`{3,}|~{3,})(.*)")
# What would open a tag, a comment or an image, or define a link for the whole page.
BACKSLASHED = r"\\\1"
_INLINE = re.compile(r"(?<!\\)(\\*)(<(?=[A-Za-z/!?])|!(?=\[))")
_DEFINITION = re.compile(r"^([ \t]*)\[(?=[^\]]{1,999}\]:)")
_TITLE = re.compile(r"^ {0,3}#{1,6}[ \t]+([^ \t#].*?)[ \t]*#*[ \t]*$")
# Other headings: those in lists, empty ones, and the line of = or - below a text.
_HEADING = re.compile(r"^((?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t])*)(#{1,6}(?:[ \t]|$)|=+[ \t]*$|-+[ \t]*$)")


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
        match = _FENCE.fullmatch(line) if is_clear else None
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


def fenced(text: str) -> str:
    """A text between fences of tildes that nothing in it can close."""
    text = visible(text)
    longest = max((len(run) for run in re.findall(r"~{3,}", text)), default=2)
    fence = "~" * (longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table; nothing without rows."""
    if not rows:
        return
    yield f"| {' | '.join(head)} |"
    yield _row(["---"] * len(head))
    yield from map(_row, rows)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(inline(cell).replace('|', chr(92) + '|') or '–' for cell in cells)} |"

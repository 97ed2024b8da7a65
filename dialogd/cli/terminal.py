"""The width of text in a terminal, and the part of it that fits. Where terminals disagree, the wider answer."""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from dialogd.protocol.text import UNSEEN

_EMOJI = "\ufe0f"  # makes the character before it an emoji, which is two cells wide


def width(text: str) -> int:
    """The cells that a line of text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(char: str) -> int:
    if char.isascii() or char == _EMOJI:
        return 1
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def fit(text: str, cells: int) -> str:
    """The beginning of the text that fits into so many cells, with `…` where something is missing."""
    if width(text) <= cells:
        return text
    used = 0
    for index, char in enumerate(text):
        used += _cells(char)
        if used > cells - 1:
            return text[:index] + "…" if cells > 0 else ""
    return text


def tail(text: str, cells: int) -> str:
    """The end of the text that fits into so many cells, with `…` where something is missing."""
    if width(text) <= cells:
        return text
    used, start = 0, len(text)
    for index in range(len(text) - 1, -1, -1):
        used += _cells(text[index])
        if used > cells - 1:
            break
        start = index
    while start < len(text) and _cells(text[start]) == 0:  # a mark without its letter
        start += 1
    return "…" + text[start:] if cells > 0 else ""


# -- What reaches the terminal ----------------------------------------------------------------------------------------

# C0 and C1 (but newline and tab), line separators, what turns the direction of writing or hides text, half characters.
_UNSAFE = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ud800-\udfff{UNSEEN}]")
_STYLES = {
    "bold": "1", "dim": "2", "italic": "3", "cursor": "7",
    "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35",
    "cyan": "36", "bright green": "92", "bright blue": "94", "bright magenta": "95", "bright cyan": "96",
}  # fmt: skip
AGENT_COLOURS = ("cyan", "magenta", "green", "blue", "bright cyan", "bright magenta", "bright green", "bright blue")

BAR = "│ "  # before the lines of a quotation
READABLE = 88  # cells of a line of a document, however wide the terminal
Span = tuple[str, tuple[str, ...]]  # text and its styles


def plain(text: str) -> str:
    """The text with every character that could steer a terminal made visible as U+FFFD."""
    return _UNSAFE.sub("\ufffd", text)


def line(text: str) -> str:
    """`plain` text on one line."""
    return " ".join(plain(text).split())


def as_json(value: object, *, indent: int | None = 2) -> str:
    """Readable JSON that is safe to print: characters that could steer a terminal are escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], text)


def table(rows: Iterable[Sequence[str]], widest: int = 1000) -> Iterator[str]:
    """Rows as lines with aligned columns, all but the last at most `widest` cells wide."""
    cells = [[line(cell) for cell in row] for row in rows]
    widths = [min(max(map(width, column)), widest) for column in zip(*cells, strict=True)][:-1]
    for row in cells:
        short = map(fit, row, widths)
        padded = [text + " " * (wide - width(text)) for text, wide in zip(short, widths, strict=True)]
        yield "  ".join([*padded, row[-1]]).rstrip()


# -- Markdown, lightly ------------------------------------------------------------------------------------------------

_MARKED = re.compile(
    r"`(?P<code>[^`\n]+)`|\*\*(?P<bold>\S(?:[^*\n]*\S)?)\*\*|(?<!\w)(?:\*(?P<star>[^\s*](?:[^*\n]*[^\s*])?)\*"
    r"|_(?P<under>[^\s_](?:[^_\n]*[^\s_])?)_)(?!\w)"
)
_MARKED_STYLES = {"code": "cyan", "bold": "bold", "star": "italic", "under": "italic"}
_BEGINNING = re.compile(r"[ \t]*(?:(?P<head>#{1,6})|(?P<item>[-*+]|\d{1,3}[.)]))[ \t]+(?=\S)")
_QUOTE = re.compile(r"[ \t]{0,3}>[ \t]?")
_FENCE = re.compile(r"[ \t]{0,3}(?P<fence>`{3,}|~{3,})[^`]*")
_LABELLED = re.compile(r"\*\*[^*]+:\*\* ")  # such lines stand below each other
_HEAD = re.compile(r" +|\S+ {2,}|-- |>> ")
_RULE = re.compile(r"[ \t]*(?:-[ \t]*){3,}|[ \t]*(?:\*[ \t]*){3,}")


def wrapped(
    text: str, cells: int, *, first: str = "", rest: str = "", styles: tuple[str, ...] = ()
) -> Iterator[list[Span]]:
    """Lines of that text at most so many cells wide, broken between words; bold, italic and code as styles.

    The first one begins with `first`, the others with `rest`. A word too long for a line is broken within.
    """
    line_, used, is_empty = [(first, styles)], width(first), True
    for whole, look, is_joined in _words(text, styles):
        word, gap = whole, "" if is_empty or is_joined else " "
        if not is_empty and used + len(gap) + width(word) > cells:
            yield line_
            line_, used, gap, is_empty = [(rest, styles)], width(rest), "", True
        while is_empty and cells > width(rest) and (head := _beginning(word, cells - used)) != word:
            yield [*line_, (head, look)]
            line_, used, word = [(rest, styles)], width(rest), word[len(head) :]
        if line_[-1][1] == look:
            line_[-1] = (line_[-1][0] + gap + word, look)
        else:
            line_.append((gap + word, look))
        used, is_empty = used + len(gap) + width(word), False
    yield line_


def _words(text: str, styles: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """Words with their styles; True for one that follows the one before without a blank."""
    at, spans = 0, list[Span]()
    for match in _MARKED.finditer(text):
        spans.append((text[at : match.start()], styles))
        kind = str(match.lastgroup)
        spans.append((match[kind], (*styles, _MARKED_STYLES[kind])))
        at = match.end()
    ends_in_blank = True
    for piece, look in (*spans, (text[at:], styles)):
        for index, word in enumerate(piece.split()):
            yield word, look, index == 0 and not (ends_in_blank or piece[0].isspace())
        ends_in_blank = piece[-1].isspace() if piece else ends_in_blank


def folded(text: str, cells: int) -> str:
    """A line broken between its words, at most so many cells wide; what follows stands below its first words.

    A word that is too long stays whole: it may be a path that somebody copies.
    """
    head = (_HEAD.match(text) or [""])[0]
    first, *words = text[len(head) :].split(" ")
    rows = [head + first]
    for word in words:
        if width(f"{rows[-1]} {word}") > cells:
            rows.append(" " * len(head) + word)
        else:
            rows[-1] += f" {word}"
    return "\n".join(rows)


def _beginning(word: str, cells: int) -> str:
    """As much of a word as fits, one character at least."""
    used = 0
    for index, char in enumerate(word):
        used += _cells(char)
        if used > cells and index:
            return word[:index]
    return word


def markdown(text: str, cells: int, margin: str = "") -> Iterator[list[Span]]:
    """A text in Markdown as lines for a terminal so many cells wide: paragraphs, headings, lists, quotations, code.

    Every line begins with `margin`. Tables, HTML and all else stand as they are written: rich, which drops tags, would
    show less than the text says.
    """
    for first, words, styles in _blocks(text.split("\n")):
        if styles == ("code",):
            rest = words or " "
            while rest:
                head = _beginning(rest, max(cells - width(margin + first) - 2, 8))
                yield [(f"{margin}{first}  {head}".rstrip(), ("cyan",))]
                rest = rest[len(head) :]
        elif styles == ("raw",):
            row = f"{margin}{first}{words}".rstrip() if first or words else ""
            yield [(row, ("dim",) if words and not words.strip("─") else ())]
        else:
            bar = BAR * first.startswith(BAR)
            hang = bar + " " * (width(first) - width(bar))
            yield from wrapped(words, cells, first=margin + first, rest=margin + hang, styles=styles)


def _blocks(rows: Iterable[str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """What a text consists of: what stands before it (`• `), its words, their style; `code` and `raw` are one line."""
    fence, held, now, before = "", list[str](), ("", tuple[str, ...]()), ""
    for written in (row.rstrip("\r").expandtabs(4) for row in rows):
        quote = _QUOTE.match(written) if before or not fence else None
        bar, row = (BAR, written[quote.end() :]) if quote else ("", written)
        opening, block, bare = _FENCE.fullmatch(row), _BEGINNING.match(row), row.strip()
        is_raw = not bare or bare.startswith("|") or _RULE.fullmatch(row) is not None
        if held and (fence or opening or block or is_raw or now[1] or bar != before or _LABELLED.match(bare)):
            yield now[0], " ".join(held), now[1]
            held = []
        fence, before = fence if bar == before else "", bar  # a quotation that ends closes its code
        if fence and not (bare.startswith(fence) and not bare.strip(fence[0])):
            yield bar, row, ("code",)
        elif fence or opening:
            fence = "" if fence else str(opening and opening["fence"])
        elif is_raw:
            yield bar, "─" * 8 if _RULE.fullmatch(row) else row.rstrip(), ("raw",)
        else:
            now = _begins(bar, row, block) if block else now if held else (bar, ())
            held.append(row[block.end() :].strip() if block else bare)
    if held:
        yield now[0], " ".join(held), now[1]


def _begins(bar: str, row: str, block: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    """What stands before a heading or an item of a list, quoted or not, and the style of its words."""
    if block["head"]:
        return bar, ("bold",)
    indent = " " * (len(row) - len(row.lstrip()))
    return f"{bar}{indent}{'•' if block['item'] in '-*+' else block['item']} ", ()


def show(text: str = "") -> None:
    """Print to stdout, at once."""
    print(text, flush=True)


def remark(text: str) -> None:
    """Print a remark to stderr."""
    print(plain(text), file=sys.stderr, flush=True)


def colour_of(agent: str) -> str:
    """The colour of an agent's name: the same in every dialog, different for neighbouring letters."""
    place = ord(agent.upper()) - ord("A") if len(agent) == 1 and agent.isascii() else sum(agent.encode())
    return AGENT_COLOURS[place % len(AGENT_COLOURS)]


class Screen:
    """Stdout with a live last line below finished text.

    The hidden cursor stays where the live line begins, so that all of it can be removed, also after a narrower
    terminal has wrapped it. Without a terminal there is no live line, no bell and no escape sequence.
    """

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self.has_colour = self.is_terminal and not os.environ.get("NO_COLOR")
        self.is_held = False  # in the background there is no live line
        self._live: tuple[str, int | None] = ("", None)

    @property
    def columns(self) -> int:
        """How wide the terminal is now, in cells."""
        try:
            return os.get_terminal_size(sys.stdout.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    def styled(self, text: str, *styles: str) -> str:
        """The text in that style, where colours are shown."""
        if not self.has_colour or not styles or not text:
            return text
        return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"

    def document(self, text: str) -> None:
        """Print a document in Markdown, laid out for reading."""
        for spans in markdown(plain(text), min(self.columns, READABLE)):
            self.write(*spans)

    def write(self, *spans: Span | str) -> None:
        """Print finished text above the live line, without control characters."""
        live = self._live
        self.clear()
        pairs = [(span, ()) if isinstance(span, str) else span for span in spans]
        show("".join(self.styled(plain(text), *styles) for text, styles in pairs))
        self.live(*live)

    def live(self, text: str, cursor: int | None = None) -> None:
        """Replace the live line, which must fit; `cursor` is the index of the marked character."""
        if not self.is_terminal or self.is_held or (text, cursor) == self._live:
            return
        if not text:
            self.clear()
            return
        self._live = (text, cursor)
        shown = plain(text)
        if cursor is None:
            shown = self.styled(shown, "dim")
        else:
            mark = f"\x1b[7m{shown[cursor : cursor + 1]}\x1b[0m"
            shown = f"{shown[:cursor]}{mark}{shown[cursor + 1 :]}"
        sys.stdout.write(f"\x1b[?25l\r\x1b[J{shown}\r")
        sys.stdout.flush()

    def redraw(self) -> None:
        """Redraw the live line, after another process had the terminal or its size changed."""
        live, self._live = self._live, ("", None)
        if self.is_terminal and not self.is_held:
            sys.stdout.write("\r\x1b[J")
            self.live(*live)

    def clear(self) -> None:
        """Remove the live line, and show the cursor again."""
        if self.is_terminal and self._live[0]:
            sys.stdout.write("\r\x1b[J\x1b[?25h")
            sys.stdout.flush()
        self._live = ("", None)

    def bell(self) -> None:
        """Ring the terminal's bell."""
        if self.is_terminal:
            sys.stdout.write("\a")
            sys.stdout.flush()

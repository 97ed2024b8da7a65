"""What reaches the terminal: nothing in it steers one. Its width, tables and documents are rich's."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING, ClassVar

from dialogd.protocol.text import UNSEEN, moment_of

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.markdown import Markdown

# C0 and C1 (but newline and tab), line separators, what turns the direction of writing or hides text, half characters.
_UNSAFE = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ud800-\udfff{UNSEEN}]")
AGENT_COLOURS = (
    "cyan", "magenta", "green", "blue", "bright_cyan", "bright_magenta", "bright_green", "bright_blue",
)  # fmt: skip
READABLE = 88  # cells of a line of a document, however wide the terminal


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


def show(text: str = "") -> None:
    """Print to stdout, at once."""
    print(text, flush=True)


def remark(text: str) -> None:
    """Print a remark to stderr."""
    print(plain(text), file=sys.stderr, flush=True)


# rich is imported where it is needed: most commands print a line or two, and should start at once.


def width(text: str) -> int:
    """The cells that a line of text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def fit(text: str, cells: int) -> str:
    """The beginning of the text that fits into so many cells, with `…` where something is missing."""
    if width(text) <= cells:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, cells - 1).rstrip() + "…" if cells > 0 else ""


def tail(text: str, cells: int) -> str:
    """The end of the text that fits into so many cells, with `…` where something is missing."""
    if width(text) <= cells:
        return text
    while text and width(text) > cells - 1:
        text = text[1:]
    return "…" + text if cells > 0 else ""


def table(rows: Iterable[Sequence[str]], widest: int = 1000) -> Iterator[str]:
    """Rows as lines with aligned columns, all but the last at most `widest` cells wide."""
    cells = [[line(cell) for cell in row] for row in rows]
    widths = [min(max(map(width, column)), widest) for column in zip(*cells, strict=True)][:-1]
    for row in cells:
        short = map(fit, row, widths)
        padded = [text + " " * (wide - width(text)) for text, wide in zip(short, widths, strict=True)]
        yield "  ".join([*padded, row[-1]]).rstrip()


def clock(at: str, unknown: str = "--:--:--") -> str:
    """A time of the file as this machine's clock shows it."""
    moment = moment_of(at)
    return moment.astimezone().strftime("%H:%M:%S") if moment is not None else unknown


def colour_of(agent: str) -> str:
    """The colour of an agent's name: the same in every dialog, different for neighbouring letters."""
    place = ord(agent.upper()) - ord("A") if len(agent) == 1 and agent.isascii() else sum(agent.encode())
    return AGENT_COLOURS[place % len(AGENT_COLOURS)]


def write(*parts: RenderableType, widest: int = READABLE) -> None:
    """Print what rich lays out: in a terminal as wide as that, without guesses at what words mean."""
    from rich.console import Console

    is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    out = Console(highlight=False, markup=False, emoji=False, color_system=None if is_plain else "standard")
    with out.capture() as laid_out:
        for part in parts:
            out.print(part, width=columns(widest), crop=False)
    sys.stdout.write(re.sub(r" +$", "", laid_out.get(), flags=re.MULTILINE))  # in one go: other threads print too
    sys.stdout.flush()


def columns(widest: int = READABLE) -> int:
    """The cells of a line of text here, which are not too many to read."""
    return max(min(get_terminal_size().columns, widest) - 1, 20)


def markdown(text: str) -> Markdown:
    """Markdown as rich lays it out, but that tags are shown, headings stand at the left, and code is as it is."""
    from markdown_it import MarkdownIt
    from rich.markdown import CodeBlock, Heading, Markdown
    from rich.text import Text

    class Left(Heading):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            self.text.justify = "left"
            yield self.text

    class Code(CodeBlock):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for row in str(self.text).rstrip().split("\n"):
                yield Text(f"  {row}", "cyan")

    class Shown(Markdown):
        elements: ClassVar = {**Markdown.elements, "heading_open": Left, "fence": Code, "code_block": Code}

    # Lines of their own stay that: a person's list without bullets, the closing lines of a dialog.
    shown, parser = Shown("", hyperlinks=False), MarkdownIt("commonmark", {"html": False}).enable(["table"])
    shown.parsed = parser.parse(re.sub(r"(?m)^(\*\*[^*\n]+:\*\* .*)$", r"\1  ", text))
    return shown

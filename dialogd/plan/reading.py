"""What is read out of the agents' texts: the beginning of a turn, and what stands under a name such as Next steps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

from dialogd.protocol.marks import SUMMARY, outside_fences, tolerant
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry
from dialogd.protocol.state import Dialog

WORDS = 120  # of an agent's view
SUBSTANCE = 8  # words from which a turn says something

STEPS = r"(?:recommended |proposed |agreed |immediate )?(?:next steps?|action items?|actions?|to-?dos?|follow-?ups?)"
CRUX = r"(?:the )?crux"
EXPERIMENT = r"(?:the )?(?:(?:cheapest )?experiment|cheapest test)(?: that would settle (?:it|this|that))?"

_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,3}[.)])[ \t]+(?:\[[ xX]\][ \t]+)?(\S.*)")
_HEADING = re.compile(r"[ \t]*#{1,6}[ \t]+\S.*|[ \t]*(\*\*|__)[^*_]+\1[ \t]*:?[ \t]*")
_BEFORE = r"[ \t]*(?:#{1,6}[ \t]*|[-*+][ \t]+)?[*_]{0,3}"
_CLOSING = re.compile(r"\n*(?:---\n+)?\*\*Total turns:\*\* .*", re.DOTALL)
_SENTENCE = re.compile(r"[.!?…][”’\"')\]*_]*(?=\s)")


def turns_of(dialog: Dialog, agent: str = "") -> Iterator[Entry]:
    """The agents' turns that count, or those of one agent, in order."""
    for entry in dialog.turns:
        if entry.condition is Condition.UNFINISHED or entry.by in (USER, SYSTEM) or entry.is_struck:
            continue
        if agent in ("", entry.by):
            yield entry


def listed(names: Sequence[str]) -> str:
    """`A`, `A and B`, `A, B and C`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def own_words(entry: Entry) -> str:
    """A turn's text without what a daemon closed the dialog with, and without lines that are marks."""
    return without_marks(_CLOSING.sub("", entry.body))


def without_marks(text: str) -> str:
    """A text without the lines that are marks: those written by hand stand in it."""
    lines = text.split("\n")
    gone = {index for index, line in outside_fences(lines, forgiving=True) if tolerant(line) is not None}
    kept = "\n".join(line for index, line in enumerate(lines) if index not in gone)
    return re.sub(r"\n{3,}", "\n\n", kept).strip("\n") if gone else text.strip("\n")


def before_summary(text: str) -> str:
    """What stands before a text's consensus summary; all of it without one."""
    lines = text.split("\n")
    found = next((i for i, line in outside_fences(lines, forgiving=False) if SUMMARY.fullmatch(line)), None)
    return "\n".join(lines[:found]).strip()


def is_substantial(text: str) -> bool:
    """True for a text that says something: more than a yes."""
    return len(text.split()) >= SUBSTANCE


def beginning(text: str, words: int = WORDS) -> tuple[str, bool]:
    """The first `words` words, cut at the end of a sentence where there is one; and whether anything was cut."""
    matches = list(re.finditer(r"\S+", text))
    if len(matches) <= words:
        return text, False
    head = text[: matches[words - 1].end()]
    ends = [match.end() for match in _SENTENCE.finditer(head + " ")]
    paragraph = head.rfind("\n\n")
    end = max([*ends, paragraph], default=0)
    return (head[:end].rstrip() if end > len(head) // 3 else f"{head} …"), True


def labelled(text: str, label: str) -> tuple[str, ...]:
    """What stands under a heading, a bold line or a name with a colon that `label` (a pattern) describes.

    The items of the list there, else the rest of the line, else the paragraph; () where nothing has that name.
    """
    name = re.compile(rf"{_BEFORE}{label}\b[*_]{{0,3}}[ \t]*(:?)[*_]{{0,3}}(.*)", re.I)
    lines = text.split("\n")
    for index, line in outside_fences(lines, forgiving=False):
        match = name.fullmatch(line)
        if match is None or not (match[1] or _is_title(line, match[2])):
            continue
        rest = match[2].strip(" \t*_") if match[1] else ""
        if rest:
            return (rest,)
        if found := tuple(_below(lines[index + 1 :])):
            return found
    return ()


def _is_title(line: str, rest: str) -> bool:
    """True for a heading or a bold line that says little more than the name."""
    return _HEADING.fullmatch(line) is not None and len(rest.split()) <= 4


def _below(lines: list[str]) -> Iterator[str]:
    """The items of the list with which these lines begin, else their first paragraph."""
    block = list(takewhile(lambda line: not _HEADING.fullmatch(line), lines))
    first = next((line for line in block if line.strip()), "")
    if _ITEM.fullmatch(first):
        yield from _items(block)
    elif first:
        rest = block[block.index(first) :]
        yield " ".join(line.strip() for line in takewhile(str.strip, rest))


def _items(lines: list[str]) -> Iterator[str]:
    """The items of a list, each with the indented lines that go on with it; ends where other text begins."""
    item = ""
    for line in (line for line in lines if line.strip()):
        match = _ITEM.fullmatch(line)
        if match is None and not line[:1].isspace():
            break
        if match is None:
            item = f"{item} {line.strip()}"
            continue
        if item:
            yield item
        item = match[1].strip()
    yield item

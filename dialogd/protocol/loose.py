"""Marks in a reply that stand alone on their line, but not as bare as the format asks: read them all the same.

Headings, task boxes, emoji, HTML emphasis, a label, full-width or escaped brackets, several marks on one line. What is
struck out, quoted, hidden in a comment or followed by more text is none.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

from dialogd.protocol.model import Mark

# Marks that decide something: read only where nothing else on the line can change what they mean.
CAREFUL = frozenset({"VOTE", "DECIDE", "AGREE", "CONSENSUS_REACHED"})

_OPENS = "[【\uff3b\u3014"
_FULL_WIDTH = str.maketrans("【\uff3b\u3014】\uff3d\u3015\uff1a\uff5c", "[[[]]]:|")
_ESCAPED = re.compile(r"\\([\[\]_*|:#`])")
_SYMBOL = r"[^\x00-\x7f\w“”„«»\u2018’\u201a\u2039\u203a「」『』❌🚫👎✗✘✖🤔❓❔⁉‽¿\uff5e]"
_TAG = r"</?(?:b|strong|em|i|u|p|li|ul|ol|code|span|div|mark|br|h[1-6])[ ]?/?>"
_BEFORE = re.compile(
    rf"(?:[\s*_`]|#{{1,6}}(?=\s)|[-+](?=\s)|\d{{1,3}}[.)](?=\s)|\[[ xX]\](?=\s)|{_TAG}|{_SYMBOL})*+", re.I
)
_LABEL = re.compile(
    r"(?:(?:my|our|the|a|so|thus|therefore|final|formal|official|here|is|this|are|for|on|P\d{1,6})[ ]){0,5}"
    r"(?:vote|ballot|position|decision|verdict|marks?|answer|signature|conclusion|status)[ *_`]{0,4}:[\s*_`]*+",
    re.I,
)
_AFTER = re.compile(rf"[\s*_`.,;:!\\]|{_SYMBOL}")
_CLOSING = re.compile(rf"{_TAG}$", re.I)
_NEXT = re.compile(r"\](?:[\s*_`,;.|&+·•]|and\b|und\b){0,6}\[[\s*_`]{0,4}(?=([A-Za-z][A-Za-z_ -]{1,40}))")
_NAME = re.compile(r"[A-Za-z][A-Za-z_-]{0,40}(?:[ \t][A-Za-z_-]{1,40}){0,3}")
_REF = re.compile(r"P\d{1,6}(?!\w)", re.I)
_CHOICE = r"(?:approve|reject|abstain)"
_BARE = re.compile(
    r"(?:(?:so|my|our|final|formal|official)[ ]){0,3}((?-i:DECIDE)|VOTE)[*_`]{0,3}[ ]?[:–—-][*_`]{0,3}[ ]?"
    rf"((?:P\d{{1,6}}[ :=–—-]{{1,3}}{_CHOICE}|{_CHOICE}[ ]P\d{{1,6}})[ *_`]{{0,3}}(?:\|.*)?)",
    re.I,
)
_SAYS_SO = re.compile(r"vote|decide", re.I)
_BARE_LINE = 2000  # characters; what is longer is no line of a name and a choice
_HIDES = re.compile(r"\s*<(?:(!--)|(think|thinking|thought|reasoning|scratchpad|analysis)>)", re.I)


def could_be(line: str) -> bool:
    """False for a line in which no mark can stand; cheap."""
    return any(sign in line for sign in _OPENS) or (len(line) < _BARE_LINE and bool(_SAYS_SO.search(line)))


def loose(line: str, known: Container[str]) -> tuple[Mark, ...]:
    """The marks that a line consists of, decorated as it may be; () when it says anything else. Names are `known`."""
    text = line.translate(_FULL_WIDTH)
    if "\\[" in text and "\\]" in text:
        text = _ESCAPED.sub(r"\1", text)
    text = text[_BEFORE.match(text).end() :]  # type: ignore[union-attr]
    bare = _BARE.fullmatch(_trimmed(text)) if len(text) < _BARE_LINE else None
    if bare:
        return (Mark(bare[1].upper(), " ".join(bare[2].strip(" *_`").split())),)
    label = _LABEL.match(text)
    text = _trimmed(text[label.end() :] if label else text)
    if not (text.startswith("[") and text.endswith("]")):
        return ()
    marks = [_one(part, known) for part in _parts(text, known)]
    return tuple(mark for mark in marks if mark) if all(marks) else ()


def _trimmed(text: str) -> str:
    """The text without what may follow a mark: emphasis, dots, emoji, closing tags."""
    for _ in range(8):
        end = len(text)
        while end and _AFTER.fullmatch(text, end - 1, end):
            end -= 1
        text = text[:end]
        tag = _CLOSING.search(text, max(0, end - 12))
        if tag is None:
            return text
        text = text[: tag.start()]
    return text


def _parts(text: str, known: Container[str]) -> Iterable[str]:
    """What stands between the brackets of each mark in a row of them."""
    start = 1
    for match in _NEXT.finditer(text):
        if _name(match[1], known)[0]:
            yield text[start : match.start()]
            start = match.end()
    yield text[start:-1]


def _name(text: str, known: Container[str]) -> tuple[str, int]:
    """The longest known name that a text begins with, and where it ends; "" without one."""
    match = _NAME.match(text)
    words = list(re.finditer(r"[^ \t]+", match[0])) if match else []
    for word in reversed(words):
        name = re.sub(r"[ \t-]+", "_", text[: word.end()].strip("*_` ")).upper()
        if name in known:
            return name, word.end()
    return "", 0


def _one(inner: str, known: Container[str]) -> Mark | None:
    """The mark between two brackets: a name, perhaps a ref, a value behind a colon or, where that is clear, a blank."""
    inner = inner.strip(" \t*_`")
    name, end = _name(inner, known)
    rest = inner[end:].strip(" \t*_`")
    if not name or (name in CAREFUL and closes_early(inner)):
        return None
    if rest.startswith(":"):
        return Mark(name, " ".join(rest[1:].strip(" \t*_`").split()))
    ref = _REF.match(rest)
    after = rest[ref.end() :].lstrip(" \t*_`") if ref else ""
    if ref and after[:1] in ("", ":"):
        return Mark(name, " ".join(after[1:].split()), ref[0].upper())
    if name in CAREFUL - {"CONSENSUS_REACHED"} and _REF.search(rest):
        return Mark(name, " ".join(rest.lstrip(" \t=|>→–—-").split()))
    return None if _trimmed(rest) else Mark(name)


def closes_early(value: str) -> bool:
    """True when the bracket of the mark with this value closes before its end: text, or another mark, follows."""
    depth = 0
    for sign in re.finditer(r"[\[\]]", value):
        depth += 1 if sign[0] == "[" else -1
        if depth < 0:
            return bool(value[sign.end() :].strip(" \t]"))
    return False


def visible(lines: Iterable[tuple[int, str]]) -> Iterable[tuple[int, str]]:
    """The lines that no HTML comment and no block of thoughts hides; one that nothing closes hides all that follows."""
    closing = ""
    for index, line in lines:
        if closing:
            closing = "" if closing in line.casefold() else closing
            continue
        match = _HIDES.match(line)
        end = ("-->" if match[1] else f"</{match[2].casefold()}>") if match else ""
        if end and end not in line.casefold():
            closing = end
        else:
            yield index, line

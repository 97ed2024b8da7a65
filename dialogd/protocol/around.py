"""What stands around a mark that decides something: the sentence before it, and what follows it."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping

_MOST = 400  # characters that are kept of what is said on one side
_RULE = re.compile(r"[-*_=#~ \t]+|[ \t]*>.*")  # lines that say nothing of their own: rules, and what is quoted
_CLOSING = "*_`\"'”’)]}"
_BEGINS = re.compile(r"(?:[-+*•]|\d{1,3}[.)]|#{1,6}|\|)[ \t]")
_LOOK = str.maketrans({"’": "'", "\u2018": "'", "\u02bc": "'", "*": "", "_": " ", "`": "", "\u00a0": " "})


def around(lines: Mapping[int, str], marks: Container[int]) -> dict[int, tuple[str, str]]:
    """By line of marks: what is said right before it and right behind it, a wrapped sentence as one line.

    `lines` are those that a reader sees, in order, `marks` the indices of the lines that are marks: they are passed
    over, and so are rules, quotations, what is fenced or hidden, and one empty line at a time.
    """
    numbered = list(lines.items())
    before, after = _nearest(numbered, marks), _nearest(reversed(numbered), marks, is_upwards=True)
    return {index: (before[index].translate(_LOOK), after[index].translate(_LOOK)) for index in before}


def _nearest(lines: Iterable[tuple[int, str]], marks: Container[int], *, is_upwards: bool = False) -> dict[int, str]:
    """What was said last when each line of marks comes; "" behind two empty lines."""
    found: dict[int, str] = {}
    said, last, empty, place = "", "", 0, -1
    for index, line in lines:
        text = line.strip()
        is_rule = index not in marks and bool(text) and bool(_RULE.fullmatch(text))
        if is_rule or abs(index - place) > 1:
            last, empty = "", 0
        place = index
        if is_rule:
            continue
        if index in marks:
            found[index] = said
        elif text:
            is_one = bool(last) and (_goes_on(text, last) if is_upwards else _goes_on(last, text))
            said = (f"{text} {said}" if is_upwards else f"{said} {text}") if is_one else text
            said = said if len(said) <= _MOST else said[:_MOST] if is_upwards else said[:4] + said[4 - _MOST :]
        elif empty:
            said = ""
        last = "" if index in marks else text
        empty = 0 if text else empty + 1
    return found


def _goes_on(line: str, following: str) -> bool:
    """True when a line goes on in the one right below it: a wrapped sentence."""
    if following[:1].islower():
        return True
    words = line.rstrip(_CLOSING)
    is_ended = words != line or words[-1:] in tuple(".!?:;")
    return not (is_ended or _BEGINS.match(line) or _BEGINS.match(following))

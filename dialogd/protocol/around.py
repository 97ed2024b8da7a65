"""What stands around a mark that decides something: the sentence before it, and what follows it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

_MOST = 400  # characters that are kept of what is said on one side
_LOOK = str.maketrans({"’": "'", "\u2018": "'", "\u02bc": "'", "*": "", "_": " ", "`": "", "\u00a0": " "})


def around(lines: Sequence[str], marks: Container[int]) -> dict[int, tuple[str, str]]:
    """By line of marks: what is said right before it and right behind it, a wrapped sentence as one line.

    `marks` are the indices of the lines that are marks: they are passed over, and so is one empty line at a time.
    """
    numbered = list(enumerate(lines))
    before, after = _nearest(numbered, marks), _nearest(reversed(numbered), marks, is_upwards=True)
    return {index: (before[index].translate(_LOOK), after[index].translate(_LOOK)) for index in before}


def _nearest(lines: Iterable[tuple[int, str]], marks: Container[int], *, is_upwards: bool = False) -> dict[int, str]:
    """What was said last when each line of marks comes; "" behind two empty lines."""
    found: dict[int, str] = {}
    said, last, empty = "", "", 0
    for index, line in lines:
        text = line.strip()
        if index in marks:
            found[index] = said
        elif text:
            is_one = (last if is_upwards else text)[:1].islower() and bool(last)  # the rest of a wrapped sentence
            said = (f"{text} {said}" if is_upwards else f"{said} {text}") if is_one else text
            said = said if len(said) <= _MOST else said[:_MOST] if is_upwards else said[:4] + said[4 - _MOST :]
        elif empty:
            said = ""
        last = "" if index in marks else text
        empty = 0 if text else empty + 1
    return found

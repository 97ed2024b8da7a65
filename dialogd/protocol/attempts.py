"""Lines that look as if they were meant as a mark which decides something, and could not be read as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from dialogd.protocol.loose import visible
from dialogd.protocol.marks import outside_fences

_SEEN = 600  # characters of a line that are looked at
_CHOICE = (
    r"(?:approve[sd]?|reject(?:s|ed)?|abstain(?:s|ed)?|yes|no|aye|nay|accept(?:s|ed)?|[+\u2212-]1|👍|👎|✅|❌)(?!\w)"
)
_OPEN = r"[\[({<【\uff3b\u3014「{]\W{0,5}"
_SAYS = (
    r"^\W{0,16}(?:\d{1,3}\W{1,3})?"
    r"(?:(?:so|my|i|we|hereby|therefore|thus|final|formal|vote|and|fully|also|then|will)\W{1,4}){0,4}"
)


def _shape(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), re.I)


_ALONE: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "VOTE": _shape(
            rf"{_OPEN}VOTES?\b",
            r"[\[【\uff3b]\W{0,5}(?:approve|reject|abstain|aye|nay)\b",
            rf"{_SAYS}(?:vote[sd]?|voting|ballot)\b.{{0,60}}?(?:P\d|{_CHOICE})",
            rf"{_SAYS}(?:approve|reject|accept|abstain|support|oppose)\b.{{0,40}}?\bP\d",
            rf"{_SAYS}P\d{{1,6}}[ *_`]{{0,4}}[:=|→–—-]\W{{0,6}}{_CHOICE}",
            rf"\bvotes?\W{{1,6}}{_CHOICE}",
        ),
        "DECIDE": _shape(
            rf"{_OPEN}DECI(?:DE|SION)\b",
            rf"{_SAYS}(?:decide|decision|ruling|verdict)\b.{{0,60}}?(?:P\d|{_CHOICE})",
            rf"\bdeci(?:de|sion)\W{{1,6}}{_CHOICE}",
            r"^\W{0,16}(?:(?:my|final|the)\W){0,2}(?:decision|verdict|ruling|winner)\W{1,6}(?:agent )?\w{1,20}\W{0,4}$",
        ),
        "AGREE": _shape(
            rf"{_OPEN}AGREED?\b",
            rf"{_SAYS}(?:agree[sd]?|sign(?:ed)?|accept(?:ed)?)\b.{{0,30}}?\bP\d",
        ),
        "CONSENSUS_REACHED": _shape(
            rf"{_OPEN}CONSENSUS[ _-]REACHED\b",
            r"^\W{0,16}consensus[ _-]reached\W{0,8}$",
            r"(?-i:\bCONSENSUS_REACHED)\W{0,8}$",
        ),
    }
)
# A line that talks about a mark does not attempt it.
_ABOUT = re.compile(
    r"\b(?:not|never|no|cannot|without|before|until|when|if|once|unless|would|could|should|after|writes?|wrote|writing"
    r"|marks?|your|you|they|their|use|using|expects?|see)\b|n['’]t\b",
    re.I,
)
_QUOTED = re.compile(r"[ \t]*(?:(?:[-*+•]|\d{1,3}[.)])[ \t]+)?(?:>|&gt;)")


def attempts(body: str, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Name and line of each attempt at one of these marks, outside fences, comments and quotes; clipped."""
    wanted = [(name, _ALONE[name]) for name in names if name in _ALONE]
    if not wanted:
        return
    for _, line in visible(outside_fences(body.split("\n"), forgiving=False)):
        text = line[:_SEEN].strip()
        if not text or _QUOTED.match(text):
            continue
        for name, shape in wanted:
            match = shape.search(text)
            if match is not None and not _ABOUT.search(text, 0, match.start()):
                yield name, text[:160]
                break

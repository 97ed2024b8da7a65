"""Secrets that must not reach the file: known key shapes, replaced by what kind of secret stood there."""

from __future__ import annotations

import re
from collections.abc import Sequence

SHORTEST = 8  # characters: a shorter secret of one's own would take words out of every text

# Prefixes as their vendors document them; entropy guesses are left out, because hashes in a discussion are text.
_SHAPES = {
    "anthropic key": r"sk-ant-[A-Za-z0-9_-]{16,}",
    "openai key": r"sk-(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9_-]{24,}",  # without a digit it is a name, such as sk-learn
    "xai key": r"xai-[A-Za-z0-9]{20,}",
    "google key": r"AIza[A-Za-z0-9_-]{35}",
    "github token": r"(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})",
    "aws key": r"(?:AKIA|ASIA)[A-Z0-9]{16}",
    "slack token": r"xox[abprs]-[A-Za-z0-9-]{10,}",
    "private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    "jwt": r"eyJ[A-Za-z0-9_-]{10,500}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    "url password": r"(?<=://)[^\s/:@]{1,64}:[^\s/@]{3,}(?=@)",
}
_NAMES = tuple(_SHAPES)
_OWN = "own key"
_PLACE = re.compile(rf"\[redacted: (?:{'|'.join((_OWN, *_NAMES))})\]")
_ANY = re.compile("|".join(rf"(?<![A-Za-z0-9])({shape})" for shape in _SHAPES.values()))
# How any of them begins. Nearly every text holds none of these: then no regular expression is tried at all.
_HEADS = (
    *("sk-", "xai-", "AIza", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "AKIA", "ASIA"),
    *("xoxa-", "xoxb-", "xoxp-", "xoxr-", "xoxs-", "-----BEGIN ", "eyJ", "://"),
)
_HEAD = re.compile(r"sk-|xai-|AIza|gh[pousr]_|github_pat_|A[KS]IA|xox[abprs]-|-----BEGIN |eyJ|://()")


def redact(text: str, own: Sequence[str] = ()) -> tuple[str, int]:
    """Replace every secret by `[redacted: KIND]`; gives the text and how many there were.

    `own` are secrets that somebody here holds, whatever they look like.
    """
    found = 0
    for secret in sorted(own, key=len, reverse=True) if own else ():  # one may be the beginning of another
        if len(secret) >= SHORTEST and secret in text:
            found += text.count(secret)
            text = text.replace(secret, f"[redacted: {_OWN}]")
    for head in _HEADS:
        if head in text:
            return _without_shapes(text, found)
    return text, found


def _without_shapes(text: str, found: int) -> tuple[str, int]:
    """The text without what looks like a key; `found` secrets were taken out before."""
    parts: list[str] = []
    done, head = 0, _HEAD.search(text)
    while head is not None:
        begin, after = head.start(), head.start() + 1
        match = _ANY.match(text, begin if head.lastindex is None else head.end())
        if match is not None:
            parts += [text[done : match.start()], f"[redacted: {_NAMES[(match.lastindex or 1) - 1]}]"]
            done = after = match.end()
            found += 1
        head = _HEAD.search(text, after)
    return "".join((*parts, text[done:])), found


def places(text: str) -> int:
    """How many places of a text read as `redact` leaves them; whoever wrote it may have put such words there."""
    return len(_PLACE.findall(text))


_BEGINS = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_ENDS = re.compile(r"-----END [A-Z ]*PRIVATE KEY-----")
_MAY_BEGIN = re.compile(r"-----BEGIN [A-Z ]*-{0,4}\Z")


def key_begins(text: str) -> tuple[int, int] | None:
    """Where the first line of the first private key begins and ends, for readers that see a text bit by bit."""
    found = _BEGINS.search(text)
    return found.span() if found else None


def key_ends(text: str) -> int:
    """Where the first private key's last line ends; 0 where none does."""
    found = _ENDS.search(text)
    return found.end() if found else 0


def key_may_begin(text: str) -> int:
    """How many characters at the end of the text may be the beginning of a private key's first line."""
    found = _MAY_BEGIN.search(text)
    return len(text) - found.start() if found else 0

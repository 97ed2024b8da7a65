"""What text may carry into the file: no control characters, structure only escaped, no secrets.

Lines are split on `\\n` and on nothing else: two readers that disagree about lines are how turns get forged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_BLANKS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
# What turns the direction of writing, breaks a line for some readers only, or cannot be seen; inside of brackets.
# Without the joiners (U+200C, U+200D) and variation selectors, which scripts and emoji are written with.
UNSEEN = (
    r"\u00ad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\uffa0\ufff9-\ufffb"
    r"\U000e0000-\U000e007f"
)
_UNSEEN = re.compile(f"[{UNSEEN}]")

# What would read as structure at the start of a line: entry headings, TURN lines, marks, frames. Wider than any
# reader, and free of the mark table, so that a file written today reads the same tomorrow. Runs are possessive (`*+`):
# where two of them could share a run, one long line would cost its length squared.
_STRUCTURE = (
    r"(?:#{1,6}[ \t]*+(?:turn|note|user|system)\b"
    r"|[*_`>#~ \t-]*+turn[*_` \t]*+:"
    r"|[*_`~]{0,4}\[[ \t]*+(?-i:[A-Z][A-Z_]+)(?:[ \t]+P\d{1,6})?[ \t]*+(?::.*)?\]"
    r"[ \t]*+(?:[*_`~.,;:!]{1,6}[ \t]*+)?$"
    r"|<!--[ \t]*+dialogd\b)"
)
_ESCAPE = re.compile(rf"^([ \t]*+)(\\*{_STRUCTURE})", re.M | re.I)
_UNESCAPE = re.compile(rf"^([ \t]*+)\\(\\*{_STRUCTURE})", re.M | re.I)


def clean(text: str) -> str:
    """CRLF to LF; every other control character, lone CR and NUL among them, becomes U+FFFD."""
    text = _BLANKS.sub("\ufffd", text.replace("\r\n", "\n"))
    return _SURROGATES.sub("\ufffd", text)


def visible(text: str) -> str:
    """`clean`, and U+FFFD for what changes how the rest is read without being seen: for whatever shows a text."""
    return _UNSEEN.sub("\ufffd", clean(text))


_NOTHING = re.compile(rf"[\s\x00-\x1f\x7f-\x9f\ufeff\ud800-\udfff\ufffd\u200c\u200d\ufe00-\ufe0f{UNSEEN}]*")


def is_blank(text: str) -> bool:
    """True where nothing of it can be seen."""
    return _NOTHING.fullmatch(text) is not None


def escape(text: str) -> str:
    """Put one backslash before each line that would read as structure."""
    return _ESCAPE.sub(r"\1\\\2", text)


def unescape(text: str) -> str:
    """Take exactly one backslash off each line that `escape` put one on."""
    return _UNESCAPE.sub(r"\1\2", text) if "\\" in text else text


def one_line(text: str, limit: int = 500, secrets: Sequence[str] = ()) -> str:
    """A value for a mark: one line, no control characters, no secrets, at most `limit` code points.

    Secrets go first: of one that is cut, nobody sees any more that it was one.
    """
    flat = " ".join(redact(clean(text), secrets)[0].split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


# -- Secrets: known key shapes, replaced by what kind of secret stood there -------------------------------------------

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


def redact(text: str, own: Sequence[str] = ()) -> tuple[str, int]:
    """Replace every secret by `[redacted: KIND]`; gives the text and how many there were.

    `own` are secrets that somebody here holds, whatever they look like.
    """
    found = 0
    for secret in sorted(own, key=len, reverse=True) if own else ():  # one may be the beginning of another
        if len(secret) >= SHORTEST and secret in text:
            found += text.count(secret)
            text = text.replace(secret, f"[redacted: {_OWN}]")
    if any(head in text for head in _HEADS):
        text, shapes = _ANY.subn(lambda match: f"[redacted: {_NAMES[(match.lastindex or 1) - 1]}]", text)
        found += shapes
    return text, found


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

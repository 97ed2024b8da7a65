"""What text may carry into the file: control characters, escapes, redaction's neighbours; all reversible or visible.

Lines are split on `\\n` and on nothing else: two readers that disagree about lines are how turns get forged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dialogd.protocol.redact import redact

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

"""Seals: an agent binds itself to its first answer by a hash, before anybody's answer can be read.

seal = SHA-256 over nonce and text, in hex
text = the body, an empty line, and the agent's own marks in canonical form
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace

from dialogd.protocol.marks import MARKS, Who
from dialogd.protocol.model import Mark

# What a daemon makes of these, or writes of its own, depends on what stands in the file by then.
_LEFT_OUT = frozenset(
    {"AGREE", "CONSENSUS_REACHED", "CONSENSUS_PROPOSED", "DEADLOCK", "VOTE", "DECIDE", "ESCALATE", "QUESTION_FOR_USER"}
)
_CLOSING = re.compile(r"\n*^---\n\n\*\*Total turns:\*\* [0-9]+\n\*\*Duration:\*\* .*\n\*\*Outcome:\*\* .*\Z", re.M)


def own_words(body: str) -> str:
    """A turn's body without the lines that a daemon writes under the one that ends the dialog."""
    return _CLOSING.sub("", body).strip("\n")


def sealed_text(body: str, marks: Iterable[Mark]) -> str:
    """What a seal is made over: the body, then the agent's own marks; proposals without the number they get."""
    lines = [
        mark.line or str(replace(mark, ref="") if mark.name == "PROPOSAL" else mark)
        for mark in marks
        if mark.name not in _LEFT_OUT and (mark.name not in MARKS or Who.AGENT in MARKS[mark.name].who)
    ]
    return "\n\n".join(part for part in (body.strip("\n"), "\n".join(lines)) if part)


def seal(nonce: str, text: str) -> str:
    """The hash that an agent publishes first: 64 hex digits."""
    return hashlib.sha256((nonce + text).encode("utf-8", "replace")).hexdigest()

"""Seals: an agent binds itself to its first answer by a hash, before anybody's answer can be read.

seal = SHA-256 over nonce and text, in hex
text = the body, an empty line, and the agent's own marks in canonical form
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dialogd.protocol.marks import MARKS, Who
from dialogd.protocol.model import Condition, Entry, Mark
from dialogd.protocol.state import Dialog

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
        str(replace(mark, ref="") if mark.name == "PROPOSAL" else mark)
        for mark in marks
        if mark.name not in _LEFT_OUT and (mark.name not in MARKS or Who.AGENT in MARKS[mark.name].who)
    ]
    return "\n\n".join(part for part in (body.strip("\n"), "\n".join(lines)) if part)


def seal(nonce: str, text: str) -> str:
    """The hash that an agent publishes first: 64 hex digits."""
    return hashlib.sha256((nonce + text).encode("utf-8", "replace")).hexdigest()


# -- Sealed first answers, checked from the file alone ----------------------------------------------------------------

COULD_READ = "could read files"


@dataclass(frozen=True, slots=True)
class SealedAnswer:
    """One agent's answer in a sealed round, opened by the entry `re`; `note` holds its seal, `turn` (0: none) its text.

    `status` is fits, waiting (the text may still come), void (it did not come), replaced (sealed once more), broken
    (text and seal do not fit, or one was changed) or unsealed. `why` says it in words.
    """

    agent: str
    re: str
    note: str
    turn: int
    status: str
    why: str
    is_independent: bool = False
    could_read: bool = False

    @property
    def is_harm(self) -> bool:
        """True when something was changed, or is not what it claims to be."""
        return self.status == "broken"


def answers(dialog: Dialog) -> tuple[SealedAnswer, ...]:
    """Every seal of the file and what became of it, then what was answered in the same rounds without one."""
    agents = {agent.id for agent in dialog.everybody}
    framed = [e for e in dialog.entries if e.condition is not Condition.UNFINISHED and e.frame and e.by in agents]
    notes = [e for e in framed if not e.is_turn and e.mark("SEALED")]
    turns = [e for e in framed if e.is_turn]
    last = {(note.by, note.re): note.id for note in notes}
    found = [_checked(dialog, note, turns, is_last=last[note.by, note.re] == note.id) for note in notes]
    rounds = {re for _, re in last}
    for turn in turns:
        opens = turn.frame is not None and bool(turn.frame.nonce)
        if (turn.by, turn.re) not in last and (turn.re in rounds or opens):
            words = "opens a seal that does not stand in the file" if opens else "answers without a seal"
            status = "broken" if opens else "unsealed"
            found.append(SealedAnswer(turn.by, turn.re, "", turn.number, status, f"turn {turn.number} {words}"))
    return tuple(found)


def _checked(dialog: Dialog, note: Entry, turns: Sequence[Entry], *, is_last: bool) -> SealedAnswer:
    sha, *more = note.all("SEALED")[0].fields
    answer = next((t for t in turns if t.start > note.start and (t.by, t.re) == (note.by, note.re)), None)
    status, why = ("replaced", "it was sealed once more") if not is_last else _status(dialog, note, sha, answer)
    number = answer.number if answer is not None and is_last else 0
    earlier = []
    if status == "fits":
        asked = dialog.entry(note.re)
        since = asked.start if asked is not None else 0
        earlier = [f"{turn.by}'s in turn {turn.number}" for turn in turns if since < turn.start < note.start]
        before = f", and {', '.join(earlier)} stood in the file before that"
        alone = ", which stood before any answer: independent"
        why = f"turn {number} fits its seal in note {note.id}{before if earlier else alone}"
    is_independent = status == "fits" and not earlier
    return SealedAnswer(note.by, note.re, note.id, number, status, why, is_independent, COULD_READ in more)


def _status(dialog: Dialog, note: Entry, sha: str, answer: Entry | None) -> tuple[str, str]:
    if note.condition is not Condition.SOUND:
        return "broken", f"the seal in note {note.id} was changed since it was written"
    if answer is None:
        if any(seal.entry == note.id for seal in dialog.state.debts.seals):
            return "waiting", "its text is to follow"
        is_lost = any(e.condition is Condition.DAMAGED and (e.by, e.re) == (note.by, note.re) for e in dialog.entries)
        return ("broken", "its text was cut or overwritten") if is_lost else ("void", "its text did not come")
    if answer.frame is None or not answer.frame.nonce:
        return "broken", f"turn {answer.number} answers, and opens no seal"
    now = seal(answer.frame.nonce, sealed_text(answer.body, answer.written))
    if now != sha:
        edited = ", which was edited since it was written," if answer.condition is not Condition.SOUND else ""
        words = f"the text in turn {answer.number}{edited} does not fit its seal"
        return "broken", f"{words}: sealed {sha[:16]}…, this text gives {now[:16]}…"
    return "fits", ""

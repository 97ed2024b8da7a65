"""Whether marks that decide something mean what they say, by what stands around them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dialogd.protocol.before import is_attributed, is_not_meant, is_supposed
from dialogd.protocol.behind import is_qualified, is_taken_back
from dialogd.protocol.choices import decision, votes
from dialogd.protocol.loose import CAREFUL
from dialogd.protocol.model import Mark
from dialogd.protocol.wording import APPROVE, is_denied

_NOBODY = re.compile(r"\W*(?:none|neither|nobody|undecided)\b", re.I)


def is_doubtful(marks: Sequence[Mark], before: str, after: str) -> bool:
    """True when what stands around marks that decide something takes them back, or says that they are another's.

    A yes is also doubtful where that supposes or denies it; beside a no the same words only say it again.
    """
    if is_attributed(before) or is_not_meant(before, after) or is_taken_back(after):
        return True
    if any(mark.name == "CONSENSUS_REACHED" and is_denied(mark.value) for mark in marks):
        return True
    said = " ".join(map(str, marks))
    is_yes = any(mark.name in CAREFUL and not _is_no(mark) for mark in marks)
    return is_yes and (is_supposed(before, said) or is_qualified(after, said))


def _is_no(mark: Mark) -> bool:
    """True for a vote that approves nothing, and for a decision against something or for nobody."""
    if mark.name == "VOTE":
        chosen = votes(mark)
        return bool(chosen) and all(choice.choice != APPROVE for choice in chosen)
    if mark.name != "DECIDE":
        return False
    chosen_one = decision(mark)
    return _NOBODY.match(mark.value) is not None or (chosen_one is not None and chosen_one.choice != APPROVE)

"""Every row of the words table, as it reads: one golden file for all surfaces."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from dialogd.protocol.marks import canonical
from dialogd.protocol.model import Said
from dialogd.protocol.rules import REVIEW
from dialogd.views.words import ROWS, Context, Wording, worded

GOLDEN = Path(__file__).with_name("words.md")
NAMES = {"A": "Claude A", "B": "Claude B", "USER": "you", "SYSTEM": "dialogd"}
KNOWN = Context(lambda who: NAMES.get(who, who), {"P1": "keep **tabs**", "P9": "task-001, iteration 1, tree 5d"})
LINE = re.compile(r"- (\w+) `(\[.+\])`")


def told() -> Iterator[tuple[str, list[Wording]]]:
    """Each line of the golden file up to its mark, and what that mark says."""
    for line in GOLDEN.read_text(encoding="utf-8").split("\n"):
        if match := LINE.match(line):
            mark = canonical(match[2], ("COST", *REVIEW, "TASK_PROPOSED", "IMPROVEMENT"))
            assert mark is not None, line
            is_note = match[1] in ("USER", "SYSTEM")
            said = Said("4", 0 if is_note else 4, match[1], "", "", (mark,), None if is_note else ("B",))
            yield match[0], list(worded(said, KNOWN))


def test_every_mark_reads_as_the_golden_file_has_it() -> None:
    lines = [f"{head}: {'; '.join(f'{one.rank}: {one}' for one in found) or 'nothing'}" for head, found in told()]
    if os.environ.get("UPDATE_GOLDENS"):
        GOLDEN.write_text("# Marks in words\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
    assert "\n".join(lines) == GOLDEN.read_text(encoding="utf-8").partition("\n\n")[2].rstrip("\n")


def test_every_row_is_in_the_golden_file() -> None:
    shown = {one.key for _, found in told() for one in found}
    assert set(ROWS) - shown == {"TEXT"}


def test_no_hash_is_read_before_it_is_asked_for() -> None:
    assert not [one for _, found in told() for one in found if re.search("[0-9a-f]{12}", str(one))]

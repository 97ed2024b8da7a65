"""How many examples a property is tried on: an eighth in the fast lane, all with `--hypothesis-profile=full`.

They are the same each time; `--hypothesis-profile=search` tries as many as chance chooses.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

SHARE = 8  # the fast lane tries one example in so many
FEWEST = 10
USUAL = 100  # where a test names no number


def fast(full: int) -> int:
    """How many of `full` examples the fast lane tries."""
    return min(full, max(FEWEST, full // SHARE))


def examples(full: int, **more: Any) -> settings:
    """Settings of a test that tries `full` examples where time does not matter; `more` goes to hypothesis."""
    all_of_them = settings.get_current_profile_name() in ("full", "search")
    return settings(max_examples=full if all_of_them else fast(full), **more)

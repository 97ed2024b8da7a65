"""What a daemon has done since it started: numbers for the log, `/health` and `/metrics`."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from dialogd.bill import Bill

BUCKETS = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0)  # seconds of a turn


@dataclass(slots=True)
class Durations:
    """How long something took, counted in buckets: as many as `BUCKETS`, and one for all that took longer."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    sum: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds


@dataclass(slots=True)
class Tally:
    """What this daemon has done; `thinking` in seconds, `bill` of all its calls, `unpriced` of unknown cost.

    `ends` counts calls by how they ended (written, interrupted, late, failed), `errors` failures by their kind.
    """

    turns: int = 0
    thinking: float = 0.0
    bill: Bill = field(default_factory=Bill)
    secrets: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    durations: Durations = field(default_factory=Durations)

    def wrote(self, seconds: float) -> None:
        """Count a turn that stands in the file; its call took so long."""
        self.turns += 1
        self.ends["written"] += 1
        self.durations.add(seconds)

    def failed(self, kind: str) -> None:
        """Count a call that failed for good."""
        self.ends["failed"] += 1
        self.errors[kind] += 1

    def pay(self, bill: Bill) -> None:
        """Add what calls came to."""
        self.bill = self.bill.plus(bill)

    @property
    def unpriced(self) -> int:
        """Calls whose price nobody knows."""
        return self.bill.calls - self.bill.usd_known

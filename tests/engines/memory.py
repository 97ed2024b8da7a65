"""An engine in this process's memory: for tests of what stands on engines, and to show the contract's own soundness."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from dialogd.errors import BadInput, StorageError
from dialogd.store.engine import ENGINES, NOTHING, Differs, EngineAway, Place, Row, SeatTaken

LEASE = 60.0  # seconds


@dataclass
class Log:
    """What the engine keeps of one log."""

    rows: list[Row] = field(default_factory=list)
    seats: set[str] = field(default_factory=set)
    leases: dict[str, tuple[str, float]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def head(self) -> tuple[int, str]:
        return (self.rows[-1].end, self.rows[-1].sha) if self.rows else (0, NOTHING)


LOGS: MutableMapping[tuple[str, str], Log] = {}  # by URL and name; tests may look, forge and cut


@contextmanager
def registered() -> Iterator[None]:
    """Open `memory://…` by this engine."""
    ENGINES["memory"] = "tests.engines.memory:Memory"
    try:
        yield
    finally:
        del ENGINES["memory"]
        LOGS.clear()


class Memory:
    """One log in memory, opened. `is_away`: no call is answered; `loses_answer`: the next put's answer is lost."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.is_away = self.loses_answer = self._is_closed = False
        if place.is_new:
            self.log = LOGS.setdefault((place.url, place.name), Log())
            self.log.seats |= {*place.seats, *place.others}
        elif (place.url, place.name) not in LOGS:
            raise BadInput(f"there is no log {place.name}", fix="ask for its line again")
        self.log = LOGS[place.url, place.name]
        self._seen = self.log.head
        with self.log.changed:
            self._hold()

    def _hold(self) -> None:
        seat = self.place.daemon_of
        holder, until = self.log.leases.get(seat, ("", 0.0))
        if seat and holder not in ("", self.place.holder) and until > time.monotonic():
            raise SeatTaken(f"the seat {seat} has a daemon on {holder}", fix="stop that one")
        if seat:
            self.log.leases[seat] = (self.place.holder, time.monotonic() + LEASE)

    def _ask(self) -> None:
        if self.is_away or self._is_closed:
            raise EngineAway("no answer", fix="wait until the engine is back")

    def fetch(self, at: int, sha: str) -> Sequence[Row]:
        """See `Engine`."""
        self._ask()
        with self.log.changed:
            self._seen = self.log.head
            known = [(0, NOTHING), *((row.end, row.sha) for row in self.log.rows)]
            if (at, sha) not in known:
                raise Differs(*self.log.head)
            return self.log.rows[known.index((at, sha)) :]

    def put(self, row: Row, before: str, whole: bytes = b"") -> bool:
        """See `Engine`."""
        self._ask()
        with self.log.changed:
            self._hold()
            if row.seat not in self.log.seats:
                raise StorageError(f"there is no seat {row.seat}", fix="write for a seat of yours")
            if self.log.head != (row.at, before):
                return False
            self.log.rows.append(row)
            self.log.changed.notify_all()
        if self.loses_answer:
            self.loses_answer = False
            raise EngineAway("the answer was lost", fix="look whether the row is there")
        return True

    def wait(self, seconds: float) -> bool:
        """See `Engine`."""
        self._ask()
        with self.log.changed:
            self._hold()
            self.log.changed.wait_for(lambda: self._is_closed or self.log.head != self._seen, seconds)
            self._seen = self.log.head
        return not self._is_closed

    def close(self) -> None:
        """See `Engine`."""
        with self.log.changed:
            if not self._is_closed and self.log.leases.get(self.place.daemon_of, ("", 0))[0] == self.place.holder:
                del self.log.leases[self.place.daemon_of]
            self._is_closed = True
            self.log.changed.notify_all()

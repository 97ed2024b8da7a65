"""What calls came to: tokens and dollars, summed, and honest about what nobody said. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dialogd.backends import Usage
from dialogd.prices import FREE, Price


@dataclass(frozen=True, slots=True)
class Bill:
    """The sum of some calls; `usd` in US dollars. The `…_known` count the calls that said something about it."""

    model: str = ""
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cached: int = 0
    usd: float = 0.0
    tokens_known: int = 0
    usd_known: int = 0
    is_estimated: bool = False

    def plus(self, other: Bill) -> Bill:
        """Both together."""
        return Bill(
            model=other.model or self.model,
            calls=self.calls + other.calls,
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            cached=self.cached + other.cached,
            usd=self.usd + other.usd,
            tokens_known=self.tokens_known + other.tokens_known,
            usd_known=self.usd_known + other.usd_known,
            is_estimated=self.is_estimated or other.is_estimated,
        )

    def attributes(self) -> tuple[tuple[str, str], ...]:
        """The frame's account: what is unknown is left out, never 0; `~` begins what is not exact."""
        if not self.calls:
            return ()
        tokens, dollars = self._mark(self.tokens_known), self._mark(self.usd_known)
        counted = bool(self.tokens_known)
        return (
            ("calls", str(self.calls)),
            ("model", self.model),
            ("in", f"{tokens}{self.tokens_in}" if counted else ""),
            ("cached", f"{tokens}{self.cached}" if counted and self.cached else ""),
            ("out", f"{tokens}{self.tokens_out}" if counted else ""),
            ("usd", f"{dollars}{_dollars(self.usd)}" if self.usd_known else ""),
        )

    @property
    def tokens(self) -> int:
        """All known tokens, both ways."""
        return self.tokens_in + self.tokens_out

    @property
    def known_usd(self) -> float | None:
        """US dollars, as far as they are known; None when no call said anything about it."""
        return round(self.usd, 6) if self.usd_known else None

    @property
    def words(self) -> str:
        """What it cost, for people: `$0.0031`, `about $0.0031`, `cost unknown`."""
        if not self.calls:
            return "nothing spent"
        if not self.usd_known:
            return "cost unknown"
        return f"{'about ' if self._mark(self.usd_known) else ''}${_dollars(self.usd)}"

    def _mark(self, known: int) -> str:
        return "~" if self.is_estimated or known < self.calls else ""


MOST = 1e12  # tokens or dollars of one call; more is a slip, or somebody who wants to spoil the account


def is_possible(usage: Usage) -> bool:
    """False for an account that cannot be true: a figure below zero, without end, or no number at all."""
    figures = (usage.tokens_in, usage.tokens_out, usage.cached, usage.cache_write, usage.usd)
    return all(
        figure is None or (isinstance(figure, int | float) and not isinstance(figure, bool) and 0 <= figure < MOST)
        for figure in figures
    )


def of_call(usage: Usage, price: Price | None) -> Bill:
    """The bill of one call, priced by `price` where the service named no price itself; empty where nobody was asked."""
    if not usage.calls:
        return Bill()
    tokens = usage.tokens_in is not None and usage.tokens_out is not None
    tokens_in, tokens_out = usage.tokens_in or 0, usage.tokens_out or 0
    usd = usage.usd
    if usd is None and price is not None and (tokens or price == FREE):
        usd = price.usd(tokens_in, tokens_out, usage.cached or 0, usage.cache_write or 0)
    return Bill(
        model=usage.model,
        calls=1,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        cached=usage.cached or 0,
        usd=usd or 0.0,
        tokens_known=int(tokens),
        usd_known=int(usd is not None),
        is_estimated=usage.estimated and bool(usd or tokens_in),
    )


def from_record(record: Mapping[str, Any]) -> Bill:
    """A bill as a journal keeps it; what is not understood counts as not said."""
    bill = Bill()
    known = {
        name: record[name]
        for name in Bill.__dataclass_fields__
        if (type(record.get(name)), type(getattr(bill, name))) in _SAME and _is_possible(record[name])
    }
    return replace(bill, **known)


_SAME = {(str, str), (bool, bool), (int, int), (float, float), (int, float)}  # as written, and as a field has it


def _is_possible(value: Any) -> bool:
    return isinstance(value, str) or 0 <= value < MOST


def _dollars(amount: float) -> str:
    """`0.0061`, `0`: six digits after the point at most."""
    return f"{amount:.6f}".rstrip("0").rstrip(".") or "0"

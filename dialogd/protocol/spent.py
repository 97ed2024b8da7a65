"""What was spent: one agent's account, the sum of what its entries' frames say."""

from __future__ import annotations

import re
from dataclasses import dataclass

_COUNT = re.compile(r"~?([0-9]{1,12})")
_DOLLARS = re.compile(r"(~?)([0-9]{1,9}(?:\.[0-9]{1,12})?)")


@dataclass(frozen=True, slots=True)
class Spent:
    """What an agent has spent, as far as the frames say.

    `micros` are millionths of a US dollar: whole numbers, so that a sum depends on no order. `exact` is False once a
    part was estimated. `unknown` counts entries whose price nobody knows, `uncounted` those whose tokens nobody knows.
    """

    entries: int = 0
    micros: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    exact: bool = True
    unknown: int = 0
    uncounted: int = 0

    @property
    def usd(self) -> float:
        """The known part in US dollars."""
        return self.micros / 1e6

    @property
    def tokens(self) -> int:
        """The known part in tokens, both ways."""
        return self.tokens_in + self.tokens_out

    def plus(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(
            entries=self.entries + other.entries,
            micros=self.micros + other.micros,
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            exact=self.exact and other.exact,
            unknown=self.unknown + other.unknown,
            uncounted=self.uncounted + other.uncounted,
        )


def account(tokens_in: str, tokens_out: str, usd: str) -> Spent:
    """One entry's account, from its frame's `in`, `out` and `usd`; what makes no sense counts as not said."""
    counts = [_COUNT.fullmatch(text) for text in (tokens_in, tokens_out)]
    price = _DOLLARS.fullmatch(usd)
    return Spent(
        entries=1,
        micros=round(float(price[2]) * 1e6) if price else 0,
        tokens_in=int(counts[0][1]) if counts[0] else 0,
        tokens_out=int(counts[1][1]) if counts[1] else 0,
        exact=price is None or not price[1],
        unknown=int(price is None),
        uncounted=int(None in counts),
    )

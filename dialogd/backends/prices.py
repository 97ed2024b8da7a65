"""Token prices: list prices by model, and the person's own."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from dialogd.errors import BadInput

MOST = 100_000.0  # dollars per million tokens; more is a slip of the pen
_NUMBER = re.compile(r"[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}")

# Under which name the price list knows a vendor.
_PROVIDERS = MappingProxyType({"anthropic": "anthropic", "openai": "openai", "xai": "x-ai", "google": "google"})


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens. `cached` and `write` fall back to `tokens_in` where nothing else is known."""

    tokens_in: float
    tokens_out: float
    cached: float | None = None
    write: float | None = None
    source: str = ""
    over: int = 0  # a request with more tokens of input costs what `beyond` says, all of it
    beyond: Price | None = None

    def usd(self, tokens_in: int, tokens_out: int, cached: int = 0, cache_write: int = 0) -> float:
        """The cost of one request; `tokens_in` includes cached and written tokens."""
        if self.beyond is not None and tokens_in > self.over:
            return self.beyond.usd(tokens_in, tokens_out, cached, cache_write)
        rest = max(tokens_in - cached - cache_write, 0)
        read = self.tokens_in if self.cached is None else self.cached
        write = self.tokens_in if self.write is None else self.write
        return (rest * self.tokens_in + cached * read + cache_write * write + tokens_out * self.tokens_out) / 1e6


FREE = Price(0.0, 0.0, source="free")


def price_of(
    model: str, vendor: str, override: str = "", table: Mapping[str, str] = MappingProxyType({})
) -> Price | None:
    """What `model` of `vendor` costs; None when nobody knows. Raises `BadInput` for a price that cannot be read.

    `override` counts before `table` (model name to price, both as people write them), that before the price list.
    """
    if override.strip():
        return parse_price(override)
    name = model.strip().lower()
    own = next((text for known, text in table.items() if name and known.strip().lower() == name), None)
    if own is not None:
        return parse_price(own, f"the price of {model}")
    provider = _PROVIDERS.get(vendor.lower())
    return _listed(name, provider) if provider and name else None


def parse_price(text: str, what: str = "the price") -> Price:
    """Read `IN/OUT`, `IN/OUT/CACHED` (dollars per million tokens) or `free`. Raises `BadInput`, naming `what` it is."""
    if text.strip().lower() == "free":
        return FREE
    parts = [part.strip().removeprefix("$").strip() for part in text.split("/")]
    numbers = [float(part) if _NUMBER.fullmatch(part) else math.inf for part in parts]
    if len(numbers) not in (2, 3) or max(numbers) > MOST:
        raise BadInput(
            f"{what} {text[:60]!r} cannot be read",
            fix="write IN/OUT or IN/OUT/CACHED in dollars per million tokens, such as 3/15 or 3/15/0.3; or free",
        )
    if not any(numbers):
        return FREE
    return Price(numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else None, source="given")


@lru_cache(maxsize=64)
def _listed(model: str, provider: str) -> Price | None:
    """Today's offline list price; None for a model that is not in it, or is not billed by tokens both ways."""
    try:
        from genai_prices.data_snapshot import get_snapshot

        _, found = get_snapshot().find_provider_model(model, None, provider, None)
    except (ImportError, LookupError):
        return None
    listed = found.get_prices(datetime.now(UTC))
    names = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
    rates = [getattr(listed, name) for name in names]
    if rates[0] is None or rates[1] is None:
        return None
    starts = [tier.start for rate in rates for tier in getattr(rate, "tiers", ())]
    beyond = _at(rates, max(starts) + 1) if starts else None
    return replace(_at(rates, 0), over=min(starts, default=0), beyond=beyond)


def _at(rates: Sequence[Any], tokens: int) -> Price:
    """The rates for a request of so many tokens of input; some depend on its length."""
    now: list[float | None] = []
    for rate in rates:
        passed = [tier.price for tier in getattr(rate, "tiers", ()) if tokens > tier.start]
        found = passed[-1] if passed else getattr(rate, "base", rate)
        now.append(None if found is None else float(found))
    return Price(now[0] or 0.0, now[1] or 0.0, now[2], now[3], "list price")

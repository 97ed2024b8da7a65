"""The cost of past calls, and a forecast for the next turn. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

from dialogd.backends import Backend, Usage
from dialogd.backends.parts import Prompt
from dialogd.backends.prices import FREE, Price
from dialogd.protocol.money import DEFAULT_CAP, DEFAULT_TOKENS, Estimate
from dialogd.protocol.state import Dialog, Spent, account


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

    @property
    def record(self) -> dict[str, Any]:
        """As the journal keeps it."""
        return {name: getattr(self, name) for name in self.__slots__}

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
        """The frame's attributes: unknown figures are left out, never 0; `~` begins inexact ones."""
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
        """Known US dollars; None when no call reported any."""
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
    """False for impossible figures: negative, infinite, or no number."""
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
    """A bill as a journal keeps it; what cannot be read counts as unknown."""
    known: dict[str, Any] = {}
    for field in fields(Bill):
        value: Any = record.get(field.name)
        usual = type(field.default)
        is_fit = type(value) is usual or (type(value) is int and usual is float)
        if is_fit and (isinstance(value, str) or 0 <= value < MOST):
            known[field.name] = value
    return Bill(**known)


def _dollars(amount: float) -> str:
    """`0.0061`, `0`: six digits after the point at most."""
    return f"{amount:.6f}".rstrip("0").rstrip(".") or "0"


# -- What the coming turn will cost, as far as that can be known before it is bought. Pure ----------------------------

LEAST_REPLY = 1_000  # tokens: a turn that has no room for so short a reply is not bought
MARGIN = 1.25  # over the dearest of an agent's last turns, where a program calls its model as often as it likes
LOOKED_AT = 5  # turns


def forecast(
    backend: Backend, prompt: Callable[[], Prompt], dialog: Dialog, me: str, owed: Bill, *before: Prompt
) -> Estimate:
    """What agent `me` must be able to pay for its next turn, with what it `owed` for earlier calls; None if unknown.

    `prompt` makes the prompt, where that matters. `before` are other calls that the turn needs. An API's reply can be
    kept as short as the rest of the budget allows, so only a short one must fit, beside what is read: the prompt, or
    what its last turns read where that was more. A coding agent cannot be limited so: the
    cost of its last turns is used instead. A free backend may report no tokens: they count once it has reported some.
    """
    told, calls, price = _told(dialog, me), 1 + len(before), backend.price
    if price == FREE and not told:
        return Estimate(usd=0.0, tokens=None)
    if told and not backend.most_out:
        dearest = _dearest(told)
        return Estimate(dearest.usd * MARGIN * calls + owed.usd, round(dearest.tokens * MARGIN) * calls + owed.tokens)
    reply = min(backend.most_out or LEAST_REPLY, LEAST_REPLY)
    asked = [call.tokens for call in (prompt(), *before)]
    read_usd, read_tokens = reading(backend, dialog, me)
    tokens = sum(max(tokens, read_tokens) + reply for tokens in asked) + owed.tokens
    if price is None:
        return Estimate(None, tokens)
    usd = sum(max(price.usd(tokens, 0), read_usd) + price.usd(0, reply) for tokens in asked)
    return Estimate(usd + owed.usd, tokens)


def reading(backend: Backend, dialog: Dialog, me: str) -> tuple[float, int]:
    """Dollars and tokens of what an API call of agent `me` reads, by its last turns.

    A gateway adds prompts of its own to each. Nothing where none were reported yet, and for a program, whose turn is
    any number of calls.
    """
    usd, tokens = 0.0, 0
    for spent, calls in _told(dialog, me) if backend.most_out else ():
        written = backend.price.usd(0, spent.tokens_out) if backend.price else 0.0
        usd, tokens = max(usd, (spent.usd - written) / calls), max(tokens, spent.tokens_in // calls)
    return usd * MARGIN, round(tokens * MARGIN)


def at_stake(backend: Backend, prompt: Callable[[], Prompt], dialog: Dialog, me: str) -> Bill:
    """The estimate that counts until a call's bill is known: by its prompt, and what its last turns read and wrote.

    A program counts as the dearest of its last turns, once there is one.
    """
    told, price = _told(dialog, me), backend.price
    dearest = _dearest(told) if told else Spent(unknown=1)
    usd = None if dearest.unknown else dearest.usd
    tokens_in, tokens_out = dearest.tokens_in, dearest.tokens_out
    if backend.most_out or not told:
        read_usd, read_tokens = reading(backend, dialog, me)
        tokens_in, tokens_out = prompt().tokens, max((s.tokens_out for s, _ in told), default=LEAST_REPLY)
        usd = max(price.usd(tokens_in, 0), read_usd) + price.usd(0, tokens_out) if price is not None else usd
        tokens_in = max(tokens_in, read_tokens)
    return Bill(
        model=backend.model,
        calls=1,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        usd=usd or 0.0,
        tokens_known=1,
        usd_known=int(usd is not None),
        is_estimated=True,
    )


def is_priced(backend: Backend) -> bool:
    """True where a budget in dollars can be kept: its price is known, or somebody else replies, at their own cost."""
    return backend.price is not None or hasattr(backend, "is_opened")


def usual_cap(dialog: Dialog, own: Estimate, backend: Backend) -> Estimate:
    """What an agent may spend on a paid key: its `own` cap, else the default one, unless the dialog has a budget."""
    limits = dialog.state.limits
    if (limits.budget, limits.tokens, own.usd, own.tokens) != (None,) * 4:
        return own
    return Estimate(tokens=DEFAULT_TOKENS) if backend.price is None else Estimate(usd=DEFAULT_CAP)


def _told(dialog: Dialog, me: str) -> list[tuple[Spent, int]]:
    """What the latest turns of agent `me` cost, and in how many calls; without those that do not say."""
    mine = (entry.frame for entry in dialog.latest_turns if entry.by == me and entry.frame is not None)
    found = [(account(f.tokens_in, f.tokens_out, f.usd), f.calls) for f in islice(mine, LOOKED_AT)]
    told = [(spent, calls) for spent, calls in found if spent.micros or spent.tokens]
    return [(spent, max(int(calls[:6]), 1) if calls.isdecimal() else 1) for spent, calls in told]


def _dearest(told: list[tuple[Spent, int]]) -> Spent:
    return max((spent for spent, _ in told), key=lambda spent: (spent.micros, spent.tokens))

"""Budgets: what a dialog has spent, what is left, and whether the next turn may still be bought. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

from dialogd.protocol.model import SYSTEM, USER, Entry, Header, Limits
from dialogd.protocol.state import Spent, State, account
from dialogd.protocol.text import dollars

N = TypeVar("N", int, float)

# What may be used on a paid key in a dialog for which nobody set a budget.
DEFAULT_CAP = 5.0  # US dollars
DEFAULT_TOKENS = 1_000_000  # where the price is unknown

# Notes of the daemon that give account of an agent: the one that their first field names.
_ACCOUNTS = ("AGENT_ERROR", "DIGEST")


@dataclass(frozen=True, slots=True)
class Estimate:
    """What something costs, or may cost: US dollars, and tokens both ways; None where nobody knows or limits it."""

    usd: float | None = None
    tokens: int | None = None


NOTHING = Estimate(0.0, 0)


def accounted(header: Header, spent: Mapping[str, Spent], entry: Entry) -> Mapping[str, Spent]:
    """What was spent, with what the entry's frame says; a hand-made entry costs nobody anything."""
    who, frame = payer(header, entry), entry.frame
    if who is None or frame is None:
        return spent
    return {**spent, who: spent.get(who, Spent()).plus(account(frame.tokens_in, frame.tokens_out, frame.usd))}


def payer(header: Header, entry: Entry) -> str | None:
    """Whose spending the entry gives account of; None when it gives none."""
    frame = entry.frame
    if frame is None or entry.by == USER:
        return None
    if entry.is_turn:
        return entry.by if entry.by != SYSTEM else None
    if not (frame.calls or frame.tokens_in or frame.tokens_out or frame.usd):
        return None
    named = (mark.fields[0] for mark in entry.marks if mark.name in _ACCOUNTS)
    return next((who for who in named if header.agent(who)), None)


def total(spent: Mapping[str, Spent]) -> Spent:
    """What all agents have spent together."""
    return reduce(Spent.plus, spent.values(), Spent())


def share(state: State, limits: Limits, owing: int) -> Estimate:
    """What each of so many agents that owe a turn may use: what is left of the dialog's budget, divided evenly."""
    gone, among = total(state.spent), max(owing, 1)
    return Estimate(
        usd=None if limits.budget is None else max(_micros(limits.budget) - gone.micros, 0) // among / 1e6,
        tokens=None if limits.tokens is None else max(limits.tokens - gone.tokens, 0) // among,
    )


def allowance(state: State, me: str, cap: Estimate) -> Estimate:
    """What agent `me` may use for the turn it owes: its share of the dialog's budget, or less by a `cap` of its own."""
    mine, own = share(state, state.limits, _owing(state)), state.spent.get(me, Spent())
    usd = None if cap.usd is None else max(_micros(cap.usd) - own.micros, 0) / 1e6
    tokens = None if cap.tokens is None else max(cap.tokens - own.tokens, 0)
    return Estimate(_least(mine.usd, usd), _least(mine.tokens, tokens))


def reached(state: State, me: str, turn: Estimate, cap: Estimate, cut_off: Estimate = NOTHING) -> str:
    """Why agent `me` may not buy the `turn` it owes, in words for `[STOPPED: budget: …]`; "" when it may.

    It may not when the turn would pass its share of the dialog's budget, or the `cap` of its own, or when nothing is
    left. A turn whose cost is unknown is bought while something is left. `cut_off` is the part of `turn` that calls of
    which no entry gives account have cost: they were interrupted, died with their daemon, or came too late.
    """
    gone, own = total(state.spent), state.spent.get(me, Spent())
    budget = Estimate(state.limits.budget, state.limits.tokens)
    words = _passed("the budget", gone, budget, turn, cut_off, _owing(state))
    return words or _passed(f"{me}'s own budget", own, cap, turn, cut_off, 1)


def _passed(what: str, spent: Spent, budget: Estimate, turn: Estimate, cut_off: Estimate, owing: int) -> str:
    """Which of the two amounts does not allow for the turn, in words."""
    if budget.usd is not None:
        left, needed, lost = _micros(budget.usd) - spent.micros, _micros(turn.usd or 0.0), _micros(cut_off.usd or 0.0)
        if left <= 0 or needed * owing > left:
            words = f"{what} of {dollars(budget.usd)}: {in_dollars(spent)} spent"
            return words + _beyond(spent.micros, left, needed, lost, owing, lambda micros: dollars(micros / 1e6))
    if budget.tokens is not None:
        left, needed, lost = budget.tokens - spent.tokens, turn.tokens or 0, cut_off.tokens or 0
        if left <= 0 or needed * owing > left:
            words = f"{what} of {budget.tokens:,} tokens: {in_tokens(spent)} used"
            return words + _beyond(spent.tokens, left, needed, lost, owing, "{:,}".format)
    return ""


def _beyond(gone: int, left: int, needed: int, lost: int, owing: int, said: Callable[[int], str]) -> str:
    """With calls of which nothing stands in the file; and how the turn is too much for what is left."""
    words = ""
    if lost:
        whole = said(gone + lost)
        words = f" on what stands in the file, about {whole} with calls that were cut off or came too late,"
        words += " those without a bill by estimate"
    left, needed = left - lost, max(needed - lost, 0)
    if left <= 0:
        return words
    among = f", and the {said(left)} left is for {owing} turns" if owing > 1 else ""
    return f"{words}; the next turn would take about {said(needed)}{among}"


def used(state: State) -> float | None:
    """How much of the dialog's budget is gone, 1.0 for all of it; of two amounts the fuller one, None without any."""
    limits, gone = state.limits, total(state.spent)
    parts = [
        gone.usd / limits.budget if limits.budget else None,
        gone.tokens / limits.tokens if limits.tokens else None,
    ]
    return max((part for part in parts if part is not None), default=None)


def standing(state: State) -> str:
    """How the dialog's budget stands, in words: `$1.62 of $2.00, 90,000 of 200,000 tokens`; "" without one."""
    limits, gone = state.limits, total(state.spent)
    parts = [
        f"{in_dollars(gone)} of {dollars(limits.budget)}" if limits.budget else "",
        f"{in_tokens(gone)} of {limits.tokens:,} tokens" if limits.tokens else "",
    ]
    return ", ".join(part for part in parts if part)


def in_dollars(spent: Spent) -> str:
    """What was spent, in words: `$0.34`, `about $0.34`, `at least $0.34`, `unknown`; `nothing` before any entry."""
    if not spent.entries:
        return "nothing"
    if spent.unknown == spent.entries:
        return "unknown"
    return f"{'at least ' if spent.unknown else ''}{'' if spent.exact else 'about '}{dollars(spent.usd)}"


def in_tokens(spent: Spent) -> str:
    """What was used, in words: `12,000`, `at least 12,000`, `unknown`; `0` before any entry."""
    if spent.uncounted and not spent.tokens:
        return "unknown"
    return f"{'at least ' if spent.uncounted else ''}{spent.tokens:,}"


LOOKED_AT = 1_000  # turns of one agent; in a longer dialog the rest counts like the last of these


def estimate(turns: int, agents: int, cost: Callable[[int, int], float], *, start: int, said: int, out: int) -> float:
    """What one of so many agents will spend at most, roughly, in a dialog of so many turns, in US dollars.

    `cost` prices a request by its tokens in and out. A prompt has `start` tokens before anybody has replied, and `said`
    more for each turn since; a reply has `out`. What a cache saves is left out.
    """
    own = math.ceil(max(turns - 1, 0) / max(agents, 1))
    whole, last = 0.0, 0.0
    for turn in range(min(own, LOOKED_AT)):
        before = min((turn + 1) * agents - 1, turns - 2)
        last = cost(start + said * before, out)
        whole += last
    return whole + last * max(own - LOOKED_AT, 0)


def _owing(state: State) -> int:
    """How many agents owe a turn."""
    return sum(who != USER for who in state.owing)


def _micros(usd: float) -> int:
    return round(usd * 1e6)


def _least(one: N | None, other: N | None) -> N | None:
    return min((amount for amount in (one, other) if amount is not None), default=None)

"""What the coming turn will cost, as far as that can be known before it is bought. Pure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from dialogd.backends import Backend
from dialogd.bill import Bill
from dialogd.parts import Prompt, tokens_of
from dialogd.prices import FREE
from dialogd.protocol.model import Frame
from dialogd.protocol.money import DEFAULT_CAP, DEFAULT_TOKENS, Estimate
from dialogd.protocol.spent import Spent, account
from dialogd.protocol.state import Dialog

LEAST_REPLY = 1_000  # tokens: a turn that has no room for so short a reply is not bought
MARGIN = 1.25  # over the dearest of an agent's last turns, where a program calls its model as often as it likes
LOOKED_AT = 5  # turns


def forecast(
    backend: Backend, prompt: Callable[[], Prompt], dialog: Dialog, me: str, owed: Bill, *before: Prompt
) -> Estimate:
    """What agent `me` must be able to pay for its next turn, with what it `owed` for calls before; None: nobody knows.

    `prompt` makes the prompt, where that matters. `before` are other calls that the turn needs. An API's reply can be
    kept as short as the rest of the budget allows, so only a short one must fit, beside what is read: the prompt, or
    what its last turns read where that was more. A coding agent cannot be held to that: what its last turns cost is
    taken instead, once there is one. What is free may tell no tokens either: they count once it has told some.
    """
    told, calls = _turns(dialog, me), 1 + len(before)
    if backend.price == FREE and not told:
        return Estimate(usd=0.0, tokens=None)
    if told and not backend.most_out:
        dearest = max(told, key=lambda spent: (spent.micros, spent.tokens))
        return Estimate(dearest.usd * MARGIN * calls + owed.usd, round(dearest.tokens * MARGIN) * calls + owed.tokens)
    reply = min(backend.most_out or LEAST_REPLY, LEAST_REPLY)
    price, asked = backend.price, [tokens_of(call.text) for call in (prompt(), *before)]
    read_usd, read_tokens = reading(backend, dialog, me)
    tokens = sum(max(tokens, read_tokens) for tokens in asked)
    if price is None:
        return Estimate(None, tokens + reply * calls + owed.tokens)
    usd = sum(max(price.usd(tokens, 0), read_usd) + price.usd(0, reply) for tokens in asked)
    return Estimate(usd + owed.usd, tokens + reply * calls + owed.tokens)


def reading(backend: Backend, dialog: Dialog, me: str) -> tuple[float, int]:
    """Dollars and tokens of what an API call of agent `me` reads, by its last turns.

    A gateway adds prompts of its own to each. Nothing where nobody has told yet, and for a program, whose turn is as
    many calls as it likes.
    """
    usd, tokens = 0.0, 0
    for frame in _frames(dialog, me) if backend.most_out else ():
        spent = account(frame.tokens_in, frame.tokens_out, frame.usd)
        calls = max(int(frame.calls[:6]), 1) if frame.calls.isdecimal() else 1
        written = backend.price.usd(0, spent.tokens_out) if backend.price else 0.0
        usd, tokens = max(usd, (spent.usd - written) / calls), max(tokens, spent.tokens_in // calls)
    return usd * MARGIN, round(tokens * MARGIN)


def at_stake(backend: Backend, prompt: Callable[[], Prompt], dialog: Dialog, me: str) -> Bill:
    """What a call counts as until its real bill is known: by its prompt, and by what its last turns read and wrote.

    A program, which calls its model as often as it likes, counts as its dearest turn of late, once there is one.
    """
    told, price = _turns(dialog, me), backend.price
    dearest = max(told, key=lambda spent: (spent.micros, spent.tokens), default=Spent(unknown=1))
    usd = None if dearest.unknown else dearest.usd
    tokens_in, tokens_out = dearest.tokens_in, dearest.tokens_out
    if backend.most_out or not told:
        read_usd, read_tokens = reading(backend, dialog, me)
        tokens_in, tokens_out = tokens_of(prompt().text), max((s.tokens_out for s in told), default=LEAST_REPLY)
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


def usual_cap(dialog: Dialog, own: Estimate, backend: Backend) -> Estimate:
    """What an agent may spend on a paid key: its `own` cap, else the usual one, unless the dialog has a budget."""
    limits = dialog.state.limits
    if (limits.budget, limits.tokens, own.usd, own.tokens) != (None,) * 4:
        return own
    return Estimate(tokens=DEFAULT_TOKENS) if backend.price is None else Estimate(usd=DEFAULT_CAP)


def _frames(dialog: Dialog, me: str) -> list[Frame]:
    mine = (entry.frame for entry in reversed(dialog.turns) if entry.by == me and entry.frame is not None)
    return list(islice(mine, LOOKED_AT))


def _turns(dialog: Dialog, me: str) -> list[Spent]:
    told = (account(frame.tokens_in, frame.tokens_out, frame.usd) for frame in _frames(dialog, me))
    return [spent for spent in told if spent.micros or spent.tokens]

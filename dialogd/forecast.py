"""What the coming turn will cost, as far as that can be known before it is bought. Pure."""

from __future__ import annotations

from itertools import islice

from dialogd.backends import Backend
from dialogd.bill import Bill
from dialogd.parts import Prompt, tokens_of
from dialogd.prices import FREE
from dialogd.protocol.model import Dialog
from dialogd.protocol.money import Estimate
from dialogd.protocol.spent import Spent, account

LEAST_REPLY = 1_000  # tokens: a turn that has no room for so short a reply is not bought
MARGIN = 1.25  # over the dearest of an agent's last turns, where a program calls its model as often as it likes
LOOKED_AT = 5  # turns


def forecast(backend: Backend, prompt: Prompt, dialog: Dialog, me: str, owed: Bill) -> Estimate:
    """What agent `me` must be able to pay for its next turn, with what it `owed` for calls before; None: nobody knows.

    An API's reply can be kept as short as the rest of the budget allows, so only a short one must fit. A coding agent
    cannot be held to that: what its last turns cost is taken instead, once there is one.
    """
    tokens = tokens_of(prompt.text)
    if backend.price == FREE:
        return Estimate(usd=0.0, tokens=None)
    before = [] if backend.most_out else _turns(dialog, me)
    if before:
        dearest = max(before, key=lambda spent: (spent.micros, spent.tokens))
        return Estimate(dearest.usd * MARGIN + owed.usd, round(dearest.tokens * MARGIN) + owed.tokens)
    reply = min(backend.most_out or LEAST_REPLY, LEAST_REPLY)
    usd = None if backend.price is None else backend.price.usd(tokens, reply) + owed.usd
    return Estimate(usd, tokens + reply + owed.tokens)


def _turns(dialog: Dialog, me: str) -> list[Spent]:
    mine = (entry.frame for entry in reversed(dialog.turns) if entry.by == me and entry.frame is not None)
    told = (account(frame.tokens_in, frame.tokens_out, frame.usd) for frame in islice(mine, LOOKED_AT))
    return [spent for spent in told if spent.micros or spent.tokens]

"""`dialogd cost`: what a dialog has cost so far, by agent; and what a new one may come to."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from dialogd.agent.money import Bill, from_record
from dialogd.cli import options
from dialogd.cli.terminal import as_json, line, plain, show
from dialogd.protocol.money import estimate, in_dollars, standing, total, used
from dialogd.protocol.state import Dialog, Spent
from dialogd.protocol.units import dollars
from dialogd.store.logfile import LogFile

if TYPE_CHECKING:
    from dialogd.backends.auto import Choice
    from dialogd.backends.prices import Price
    from dialogd.backends.seats import Seat
    from dialogd.config import Settings
    from dialogd.templates.opening import Opening

RULES = 1_500  # tokens of a prompt that stand in no file: who an agent is, the marks, what is asked of it
SAID = 1_000  # tokens by which a turn lengthens the prompts after it: over 400 words and their marks
PROGRAM = 12_000  # tokens of a coding agent's own prompt: instructions and tools
CALLS = 3  # of the model in a coding agent's turn that looks something up
MOST_OUT = 8_192  # tokens of a reply, where nobody says
_NO_PRICES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Account:
    """One agent's part, or all of it."""

    id: str
    name: str
    turns: int
    spent: Spent


def cost(
    path: Annotated[str | None, typer.Argument(metavar="FILE", help="The dialog file. Default: as --file.")] = None,
    file: options.FileOption = None,
    json: options.JsonOption = False,
) -> None:
    """Show what a dialog has cost so far: turns, tokens and dollars of each agent, and how the budget stands.

    What nobody knows is called unknown. Exit code 3 where there is no dialog.
    """
    settings = options.settings_for(path if path is not None else file)
    log = options.log_of(settings)
    dialog = options.dialog_at(log)
    loose = _loose(log, dialog)
    accounts = tuple(_accounts(dialog))
    turns = sum(account.turns for account in accounts)
    whole = Account("", "in all", turns, total(dialog.state.spent))
    if json:
        show(as_json(_facts(settings.file, dialog, accounts, whole, loose)))
    else:
        lines = [*_lines(settings.file, dialog, accounts, whole)]
        lines += [
            f"  not in the file: {who} {bill.words}, for calls that brought no entry" for who, bill in loose.items()
        ]
        show(plain("\n".join(lines)))


def _loose(log: LogFile, dialog: Dialog) -> dict[str, Bill]:
    """What agents have spent that no entry accounts for: calls that were interrupted or stopped, by their journals."""
    bills = {a.id: [from_record(record) for record in log.journals.of(a.id).owed()] for a in dialog.everybody}
    return {who: reduce(Bill.plus, found) for who, found in bills.items() if found}


def _accounts(dialog: Dialog) -> Iterator[Account]:
    """One for each agent of the header, and for whoever else has spoken with a frame."""
    names = {agent.id: agent.name for agent in dialog.everybody}
    for who in (*names, *(other for other in dialog.state.spent if other not in names)):
        turns = sum(entry.by == who for entry in dialog.turns)
        yield Account(who, names.get(who, who), turns, dialog.state.spent.get(who, Spent()))


def _facts(
    file: Path, dialog: Dialog, accounts: tuple[Account, ...], whole: Account, loose: Mapping[str, Bill]
) -> dict[str, object]:
    limits = dialog.state.limits
    return {
        "file": str(file),
        "dialog": dialog.id,
        "agents": [{"id": account.id, "name": account.name, **_fact(account)} for account in accounts],
        "total": _fact(whole),
        "budget": {"usd": limits.budget, "tokens": limits.tokens},
        "used": used(dialog.state),
        "not_in_file": {who: {"calls": bill.calls, "usd": bill.known_usd} for who, bill in loose.items()},
    }


def _fact(account: Account) -> dict[str, object]:
    """An account for programs: null for what nobody knows at all."""
    spent = account.spent
    return {
        "turns": account.turns,
        "tokens_in": None if spent.uncounted and not spent.tokens else spent.tokens_in,
        "tokens_out": None if spent.uncounted and not spent.tokens else spent.tokens_out,
        "usd": None if spent.entries and spent.unknown == spent.entries else spent.usd,
        "exact": spent.exact and not spent.unknown,
        "entries": spent.entries,
        "entries_without_price": spent.unknown,
        "entries_without_tokens": spent.uncounted,
    }


def _lines(file: Path, dialog: Dialog, accounts: tuple[Account, ...], whole: Account) -> Iterator[str]:
    yield f"{file} (dialog {dialog.id})"
    rows = [("", "turns", "tokens in", "tokens out", "dollars"), *(_row(account) for account in (*accounts, whole))]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for label, *cells, money in rows:
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join((f"  {label:{widths[0]}}", *numbers, money))
    if budget := standing(dialog.state):
        yield f"  budget: {budget} ({used(dialog.state) or 0.0:.0%})"


def _row(account: Account) -> tuple[str, str, str, str, str]:
    spent = account.spent
    label = f"{line(account.id)}  {line(account.name)}" if account.id else account.name
    known = not (spent.uncounted and not spent.tokens)
    tokens = [f"{number:,}" if known else "unknown" for number in (spent.tokens_in, spent.tokens_out)]
    partly = f" ({spent.unknown} of {spent.entries} entries unknown)" if 0 < spent.unknown < spent.entries else ""
    return label, str(account.turns), tokens[0], tokens[1], in_dollars(spent) + partly


def estimate_of(
    opening: Opening, seats: Sequence[Seat], choices: Mapping[str, Choice], settings: Settings, table: Mapping[str, str]
) -> str:
    """`estimate_line` for a cast: the agents whose tokens somebody pays for. `table` are prices by model.

    Raises `BadInput` for a price that cannot be read.
    """
    from dialogd.backends import CODING

    prices = prices_of(seats, choices, settings, table)
    programs = frozenset(who for who in prices if choices[who].backend in CODING)
    return estimate_line(opening, prices, settings.max_tokens, programs)


def prices_of(
    seats: Sequence[Seat], choices: Mapping[str, Choice], settings: Settings, table: Mapping[str, str] = _NO_PRICES
) -> dict[str, Price | None]:
    """What the tokens of those agents cost whose tokens somebody pays for, by id; None where nobody knows."""
    from dialogd.backends.auto import price_for
    from dialogd.store.folders import StateDir

    agents = StateDir(settings.state_dir).agents
    return {
        seat.id: price_for(
            choices[seat.id], seat.model or settings.model, seat.price or settings.price, agents=agents, table=table
        )
        for seat in seats
        if choices[seat.id].is_metered or seat.price or settings.price
    }


def estimate_line(
    opening: Opening, prices: Mapping[str, Price | None], most_out: int = 0, programs: Collection[str] = ()
) -> str:
    """What a new dialog may cost, in a line; "" when nobody costs anything.

    `prices` are those of the agents that cost money, by id, None for an unknown one; `most_out` is how many tokens a
    reply may have, 0 for the usual number. `programs` are those that are coding agents: each call of theirs has a
    prompt of their own, and how many a turn takes is theirs to say.
    """
    from dialogd.backends.parts import tokens_of
    from dialogd.templates.opening import compose

    start, out = RULES + tokens_of(compose(opening)), most_out or MOST_OUT

    def dear(who: str, price: Price) -> float:
        begun, calls = (start + PROGRAM, CALLS) if who in programs else (start, 1)

        def cost(tokens_in: int, tokens_out: int) -> float:
            return price.usd(tokens_in, 0) * calls + price.usd(0, tokens_out)

        return estimate(opening.max_turns, len(opening.agents), cost, start=begun, said=min(SAID, out), out=out)

    known = {who: dear(who, price) for who, price in prices.items() if price is not None}
    strangers = " and ".join(who for who, price in prices.items() if price is None)
    if not any(known.values()):
        return f"estimate: unknown, for nobody knows the price of {strangers}" if strangers else ""
    parts = ", ".join(f"{who} {_cents(usd)}" for who, usd in known.items())
    whole = sum(known.values())
    many = " and ".join(who for who in known if who in programs)
    most = "about" if many else "at most about"
    text = f"estimate: {most} {_cents(whole)} for {opening.max_turns} turns ({parts})"
    text += f"; more where {many} calls its model more than {CALLS} times a turn" if many else ""
    text += f"; unknown: {strangers}" if strangers else ""
    if opening.budget is not None and opening.budget < whole:
        text += f"; the budget of {dollars(opening.budget)} ends it before that"
    return text


def _cents(usd: float) -> str:
    return dollars(math.ceil(usd * 100) / 100)

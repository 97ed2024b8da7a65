"""The live line: who does what since when, how far, what it cost, what is left; in the cells there are. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dialogd.cli.cells import fit, tail, width
from dialogd.cli.ears import Writing
from dialogd.cli.situation import Situation
from dialogd.cli.terminal import line
from dialogd.protocol.money import in_dollars, total
from dialogd.protocol.state import State
from dialogd.protocol.units import dollars

BETWEEN = " · "
SHORTEST_TAIL = 16  # cells; fewer of the last words tell nothing


def glance(situation: Situation, writing: Mapping[str, Writing], *, older: float, cells: int, hint: str = "") -> str:
    """One line. `older` is how many seconds ago the daemons were asked; what matters least is left out first."""
    state = situation.dialog.state
    busy = [*_busy(situation, writing, older)]
    first = [*(["paused"] if state.paused and busy else []), *(busy or situation.reasons())]
    shown = [BETWEEN.join(map(line, first))]
    if width(shown[0]) > cells:
        return fit(shown[0], cells)
    for part in (_turns(state), _spent(state), _left(state), hint):
        if part and width(BETWEEN.join([*shown, part])) <= cells:
            shown.append(part)
    words = _last_words(situation, writing)
    room = cells - width(BETWEEN.join([*shown, ""])) - 2
    if words and room >= SHORTEST_TAIL:
        shown.insert(1, f"“{tail(words, room)}”")
    return BETWEEN.join(shown)


def _busy(situation: Situation, writing: Mapping[str, Writing], older: float) -> Iterator[str]:
    """Each agent that works on a turn: since when, and how many words there are."""
    for agent, answer in situation.healths.items():
        work = (answer or {}).get("working_on")
        if not isinstance(work, dict):
            continue
        turn, since = work.get("turn"), _clock(float(work.get("seconds") or 0.0) + older)
        so_far = writing.get(agent)
        if so_far is None or so_far.turn != turn or not so_far.words:
            yield f"{agent} thinks about turn {turn}, {since}"
        else:
            yield f"{agent} writes turn {turn}, {since}, {so_far.words:,} word{'s' if so_far.words > 1 else ''}"


def _clock(seconds: float) -> str:
    """`0:07`, `1:02:03`."""
    whole = int(seconds)
    minutes = f"{whole // 60 % 60}:{whole % 60:02}"
    return minutes if whole < 3600 else f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _last_words(situation: Situation, writing: Mapping[str, Writing]) -> str:
    """The end of what is being written, where one agent alone writes."""
    now = [one for one in writing.values() if one.turn > situation.dialog.state.number]
    return line(now[0].tail) if len(now) == 1 else ""


def _turns(state: State) -> str:
    return f"turn {state.turns_in_words}"


def _spent(state: State) -> str:
    """What all turns together cost and took."""
    gone = total(state.spent)
    tokens = f"{gone.tokens:,} tokens" if gone.tokens else ""
    return ", ".join(filter(None, (in_dollars(gone) if gone.micros else "", tokens)))


def _left(state: State) -> str:
    """What is left of the budget."""
    gone, limits = total(state.spent), state.limits
    if limits.budget is not None:
        return f"{dollars(max(limits.budget - gone.usd, 0.0))} left"
    return f"{max(limits.tokens - gone.tokens, 0):,} tokens left" if limits.tokens is not None else ""

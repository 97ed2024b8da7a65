"""Which entries an agent's prompt may hold: all, but for a round it still owes to; or only its own. Pure."""

from __future__ import annotations

from dialogd.protocol.model import SYSTEM, USER, Condition, Entry, Header
from dialogd.protocol.roster import judge
from dialogd.protocol.state import Debt, Dialog


def reads_all(header: Header, agent: str) -> bool:
    """True when that agent is shown what the others say."""
    return header.rules.role(agent).reads_all


def may_read(dialog: Dialog, entry: Entry, agent: str) -> bool:
    """True for an entry of which `agent` may read something, once its own answers to the same question are in."""
    if entry.condition is Condition.DAMAGED or _is_seal(entry):
        return False
    return entry.by in (agent, USER) or reads_all(dialog.header, agent) or bool(decisions(entry))


def is_shown(dialog: Dialog, entry_id: str, agent: str) -> bool:
    """False for an entry that the agent is not to know of yet: nobody signs or votes on what the round still hides."""
    entry = dialog.entry(entry_id)
    return entry is None or not is_of_the_round(entry, agent, dialog.state.debt(agent))


def only_decisions(dialog: Dialog, entry: Entry, agent: str) -> bool:
    """True for an entry of which `agent` is shown the decisions alone."""
    return entry.by not in (agent, USER) and not reads_all(dialog.header, agent)


def decisions(entry: Entry) -> str:
    """The decisions that stand in an entry, one a line; "" without one."""
    return "\n".join(map(str, entry.all("DECISION")))


def readable(dialog: Dialog, agent: str, author: str) -> bool:
    """True when a digest by that author holds no more, and no less, than `agent` may read."""
    return author == agent or (reads_all(dialog.header, agent) and reads_all(dialog.header, author))


def is_of_the_round(entry: Entry, agent: str, debt: Debt | None) -> bool:
    """True for what another agent has answered already in the round that `agent` still owes its answer to."""
    if debt is None or entry.frame is None or entry.by in (agent, USER, SYSTEM):
        return False
    return entry.is_turn and entry.frame.re == debt.re and bool(debt.re)


def _is_seal(entry: Entry) -> bool:
    return not entry.is_turn and entry.mark("SEALED") is not None


def judgements(dialog: Dialog, agent: str) -> frozenset[str]:
    """The judge's own answers since judging began: asked again, it does not know what it said."""
    given = len(dialog.state.judged) if agent == judge(dialog.header) else 0
    own = [entry.id for entry in dialog.turns if entry.by == agent] if given else []
    return frozenset(own[-given:] if given else ())

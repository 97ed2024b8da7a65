"""Positions, proposals and votes of a dialog as the rows that the page shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dialogd.protocol import board, lifecycle
from dialogd.protocol.board import Position, latest, positions
from dialogd.protocol.certificate import recorded
from dialogd.protocol.signals import Signal, signals
from dialogd.protocol.state import Dialog, Proposal
from dialogd.server.page_entries import cast
from dialogd.views.plan import method

MOST = 100  # rows of a table, unless all are asked for


@dataclass(frozen=True, slots=True)
class Column:
    """An agent as a column; `tone` is the class of its colour."""

    id: str
    name: str
    tone: str


@dataclass(frozen=True, slots=True)
class Cell:
    """What one agent holds of one proposal: its stance since which turn, its vote, the turn in which it signed."""

    agent: Column
    position: Position | None
    ballot: board.Cast | None
    signed: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """A proposal: `state` is open, approved, rejected, undecided, vetoed, superseded, replaced or cleared.

    `turn` is where it was made, `decided` the decision's turn or None; `made`, `how` and `why` say what was decided,
    how and why, and what came after it.
    """

    ref: str
    text: str
    by: str
    turn: int
    is_text: bool
    state: str
    made: str
    how: str
    why: str
    decided: int | None
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """An agent's stance that is new or another than `before` ("" for a first one)."""

    position: Position
    before: str
    agent: Column


@dataclass(frozen=True, slots=True)
class Board:
    """What the panel shows; `rows` and `changes` are newest first, `left_out` says how many of each are not here.

    `weak` is what words alone suggest, None before two agents have spoken.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    changes: tuple[Changed, ...]
    left_out: tuple[int, int]
    flagged: int
    weak: Mapping[str, str | int | float] | None
    noticed: tuple[Signal, ...]


def view(dialog: Dialog, most: int | None = MOST) -> Board:
    """The board of a dialog; at most so many rows of each table, None for all."""
    ledger = positions(dialog)
    rows = tuple(_rows(dialog, ledger))[::-1]
    changes = tuple(_changes(dialog, ledger))[::-1]
    kept = len(rows) if most is None else most, len(changes) if most is None else most
    return Board(
        columns=columns(dialog, (position.agent for position in ledger)),
        rows=rows[: kept[0]],
        changes=changes[: kept[1]],
        left_out=(max(0, len(rows) - kept[0]), max(0, len(changes) - kept[1])),
        flagged=sum(change.position.flagged for change in changes),
        weak=lifecycle.assessed(dialog),
        noticed=signals(dialog) if dialog.state.outcome is None else (),  # their advice is for those who go on
    )


def columns(dialog: Dialog, others: Iterable[str]) -> tuple[Column, ...]:
    """The agents of the header in its order, then others that took a position."""
    players = cast(dialog)
    everybody = dict.fromkeys((*(agent.id for agent in dialog.header.agents), *others))
    return tuple(Column(who, players.name(who), players.tone(who)) for who in everybody)


def _rows(dialog: Dialog, ledger: Sequence[Position]) -> Iterator[Row]:
    """Every proposal, oldest first."""
    agents = columns(dialog, (position.agent for position in ledger))
    held, decided = latest(ledger), board.by_ref(board.decisions(dialog))
    votes = _votes(dialog)
    newest = next((p.ref for p in reversed(dialog.state.proposals) if p.sha), "")
    for made in dialog.state.proposals:
        decision = decided.get(made.ref)
        signed = _signed(dialog, made, decision)
        yield Row(
            ref=made.ref,
            text=made.text,
            by=made.by,
            turn=turn_of(made.entry),
            is_text=bool(made.sha),
            state=_state(dialog, made, decision, newest),
            made=decision.made if decision else "",
            how=method(decision.method) if decision else "",
            why="; ".join(filter(None, (decision.evidence, decision.reason, decision.superseded))) if decision else "",
            decided=turn_of(decision.entry) if decision else None,
            cells=tuple(
                Cell(a, held.get((a.id, made.ref)), votes.get(made.ref, {}).get(a.id), signed.get(a.id)) for a in agents
            ),
        )


def _votes(dialog: Dialog) -> Mapping[str, Mapping[str, board.Cast]]:
    """The votes that counted, by proposal and agent. Only where there are polls: they are found by folding anew."""
    if dialog.header.rules.verdict != "vote":
        return {}
    return {made.ref: {ballot.agent: ballot for ballot in made.votes} for made in board.proposals(dialog)}


def turn_of(entry: str) -> int:
    """The turn that an entry is, or stands after."""
    head = entry.split(".", maxsplit=1)[0]
    return int(head) if head.isdigit() else 0


def _signed(dialog: Dialog, made: Proposal, decision: board.Decided | None) -> dict[str, int]:
    """Who signed the text, in which turn."""
    standing = dialog.state.standing
    if not made.sha:
        return {}
    if decision is not None and decision.made == "approved":
        return dict(recorded(dialog.entries, made.ref, decision.method, decision.evidence))
    return dict(standing.signers) if standing is not None and standing.proposal.ref == made.ref else {}


def _state(dialog: Dialog, made: Proposal, decision: board.Decided | None, newest: str) -> str:
    """One word for what became of a proposal; a text goes when another takes its place, or when it is cleared."""
    if decision is not None:
        return board.in_a_word(decision)
    standing = dialog.state.standing
    if not made.sha or (standing is not None and standing.proposal.ref == made.ref):
        return "open"
    return "replaced" if made.ref != newest else "cleared"


def _changes(dialog: Dialog, ledger: Sequence[Position]) -> Iterator[Changed]:
    """Every position in order, with the one that the agent held before."""
    agents = {column.id: column for column in columns(dialog, (position.agent for position in ledger))}
    before: dict[tuple[str, str], str] = {}
    for position in ledger:
        yield Changed(position, before.get((position.agent, position.ref), ""), agents[position.agent])
        before[position.agent, position.ref] = position.stance

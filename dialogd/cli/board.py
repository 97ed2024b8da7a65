"""`dialogd board`: what was contributed, proposed and decided in a dialog."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from dialogd.cli import options
from dialogd.cli.terminal import as_json, line, show
from dialogd.errors import BadInput
from dialogd.protocol import board as views
from dialogd.protocol.board import Contribution, Decided, Proposed
from dialogd.protocol.grammar import who
from dialogd.protocol.rules import CONTRIBUTIONS
from dialogd.protocol.state import Dialog

WIDTH = 100  # columns
WIDEST = 16  # of a column that is not the last
DECISION = "DECISION"
_REF = re.compile(r"P(\d{1,6})|(?:turn )?(\d{1,9}(?:\.\d{1,9})?)", re.I)

Agent = Annotated[
    str | None, typer.Option("--agent", metavar="ID", help="Only what this agent made or took a side in.")
]
Type = Annotated[
    str | None, typer.Option("--type", metavar="TYPE", help="Only this type: PROPOSAL, IDEA, TEXT, DECISION …")
]
Round = Annotated[int | None, typer.Option("--round", min=1, metavar="N", help="Only this round.")]
Ref = Annotated[
    str | None, typer.Option("--ref", metavar="REF", help="Only this proposal (P1) or turn (3), and what refers to it.")
]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to show; "" and None: everything."""

    agent: str = ""
    kind: str = ""
    round: int | None = None
    ref: str = ""

    def takes(self, number: int, kind: str, agents: Sequence[str], refs: Sequence[str]) -> bool:
        """True when a row of this round and type, of these agents, about these turns and proposals, is wanted."""
        return (
            self.round in (None, number)
            and self.kind in ("", kind)
            and (not self.agent or self.agent in agents)
            and (not self.ref or self.ref in refs)
        )


@dataclass(frozen=True, slots=True)
class Board:
    """The rows that are wanted."""

    contributions: tuple[Contribution, ...]
    proposals: tuple[Proposed, ...]
    decisions: tuple[Decided, ...]


def board(
    file: options.FileOption = None,
    agent: Agent = None,
    kind: Type = None,
    number: Round = None,
    ref: Ref = None,
    json: options.JsonOption = False,
) -> None:
    """Show what was contributed, proposed and decided. Filters combine. Exit code 3 where there is no dialog."""
    settings = options.settings_for(file)
    dialog = options.dialog_at(options.log_of(settings))
    wanted = Wanted(
        agent=_agent(dialog, agent) if agent is not None else "",
        kind=_kind(dialog, kind) if kind is not None else "",
        round=number,
        ref=_ref(ref) if ref is not None else "",
    )
    rows = chosen(dialog, wanted)
    if json:
        show(as_json({"file": str(settings.file), "dialog": dialog.id, **asdict(rows)}))
    else:
        show("\n".join(_tables(rows, is_all=wanted == Wanted())))


def chosen(dialog: Dialog, wanted: Wanted) -> Board:
    """The rows of the board that are wanted."""
    made = views.proposals(dialog)
    sides = {p.ref: (p.agent, *p.supporters, *p.opponents, *(vote.agent for vote in p.votes)) for p in made}
    stands = {p.ref: p.entry for p in made}
    speakers = {entry.id: entry.by for entry in dialog.entries}
    return Board(
        tuple(
            c
            for c in views.contributions(dialog)
            if wanted.takes(c.round, c.kind, (c.agent,), (str(c.turn), c.ref, *c.refs))
        ),
        tuple(p for p in made if wanted.takes(p.round, "PROPOSAL", sides[p.ref], (p.ref, p.entry, *p.refs))),
        tuple(
            d
            for d in views.decisions(dialog)
            if wanted.takes(
                d.round, DECISION, (speakers[d.entry], *sides.get(d.ref, ())), (d.ref, d.entry, stands.get(d.ref, ""))
            )
        ),
    )


def _agent(dialog: Dialog, name: str) -> str:
    ids, strangers = who(dialog.header, name)
    if strangers or len(ids) != 1:
        known = ", ".join(f"{agent.id} ({agent.name})" for agent in dialog.header.agents)
        raise BadInput(f"this dialog has no agent {name!r}", fix=f"name one of: {known}")
    return ids[0]


def _kind(dialog: Dialog, name: str) -> str:
    kind = re.sub(r"[\s-]+", "_", name.strip()).upper()
    own = {*dialog.header.rules.kinds, *(c.kind for c in views.contributions(dialog))}
    known = {name for name, kind in CONTRIBUTIONS.items() if kind.counts} | own | {views.TEXT, DECISION}
    if kind not in known:
        raise BadInput(f"no contribution is of type {name!r}", fix=f"name one of: {', '.join(sorted(known))}")
    return kind


def _ref(text: str) -> str:
    match = _REF.fullmatch(" ".join(text.split()))
    if match is None:
        raise BadInput(f"{text!r} is neither a proposal nor a turn", fix="write it like P1 or 3")
    return f"P{int(match[1])}" if match[1] else match[2]


def _tables(rows: Board, *, is_all: bool) -> Iterator[str]:
    """The three tables."""
    if is_all and not (rows.contributions or rows.proposals or rows.decisions):
        yield "this dialog has no contributions, no proposals and no decisions yet"
        return
    yield from _table("contributions", "turn round by type to sure text", map(_contribution, rows.contributions))
    yield ""
    yield from _table("proposals", "ref by entry round decision for against votes", map(_proposal, rows.proposals))
    yield ""
    yield from _table("decisions", "ref outcome method entry round evidence", map(_decision, rows.decisions))


# One row: its cells, and what stands in a line of its own below them.
Row = tuple[tuple[str, ...], str]


def _contribution(c: Contribution) -> Row:
    kind = f"{c.kind} {c.ref}".strip()
    sure = "" if c.confidence is None else f"{c.confidence:g}"
    return (str(c.turn), str(c.round), c.agent, kind, ", ".join(c.refs), sure, c.text), ""


def _proposal(p: Proposed) -> Row:
    votes = ", ".join(f"{v.agent} {v.choice}{'' if v.weight == 1 else f' (weight {v.weight:g})'}" for v in p.votes)
    sides = ", ".join(p.supporters), ", ".join(p.opponents)
    return (p.ref, p.agent, p.entry, str(p.round), p.decision or "open", *sides, votes), p.text


def _decision(d: Decided) -> Row:
    why = f"superseded: {d.superseded}" if d.superseded else d.reason
    return (d.ref, d.stands, d.method, d.entry, str(d.round), d.evidence), why


def _table(title: str, heads: str, rows: Iterator[Row]) -> Iterator[str]:
    """A table with its title; "none" without rows."""
    listed = [(tuple(line(cell) for cell in cells), line(below)) for cells, below in rows]
    if not listed:
        yield f"{title}: none"
        return
    cells = [tuple(heads.split()), *(cells for cells, _ in listed)]
    widths = [min(max(map(_width, column)), WIDEST) for column in zip(*cells, strict=True)]
    yield f"{title}: {len(listed)}"
    for row, below in zip(cells, ["", *(below for _, below in listed)], strict=True):
        yield _cut("  " + "  ".join(map(_padded, row[:-1], widths[:-1])) + f"  {row[-1]}", WIDTH).rstrip()
        if below:
            yield _cut(f"      {below}", WIDTH)


def _padded(text: str, width: int) -> str:
    short = _cut(text, width)
    return short + " " * (width - _width(short))


def _width(text: str) -> int:
    """How many cells of a terminal the text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)


def _cut(text: str, width: int) -> str:
    """The beginning of the text that fits into so many cells."""
    if _width(text) <= width:
        return text
    short = text[:width]
    while _width(short) >= width:
        short = short[:-1]
    return short + "…"

"""What a dialog decided, by its marks: decisions, agreed texts, deadlocks; what the person took or refused. Pure.

What was struck or vetoed is no decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dialogd.memory.values import PastDecision, iso
from dialogd.protocol.board import WENT_ON, Reopening, as_of_now, reopenings
from dialogd.protocol.certificate import certify, recorded, signer, unrecorded, until
from dialogd.protocol.model import turn_number
from dialogd.protocol.state import Dialog
from dialogd.protocol.table import Decision
from dialogd.protocol.text import clean, redact
from dialogd.views.plan import Plan, Signed, without_marks

MOST = 200  # decisions of one dialog; the last ones
TEXT = 20_000  # characters of one text


@dataclass(frozen=True, slots=True)
class Made:
    """A decision where the dialog made it: in the entry with the id `entry`, at that `place` among all."""

    place: int
    entry: str
    decision: PastDecision


def decided(dialog: Dialog, topic: str) -> tuple[Made, ...]:
    """What the dialog decided, in order; `topic` is what it is listed by."""
    places = {entry.id: index for index, entry in enumerate(dialog.entries)}
    kinds = (_recorded(dialog, topic, places), _unrecorded(dialog, topic), _deadlock(dialog, topic, places))
    found = sorted((made for kind in kinds for made in kind if made.decision.text.strip()), key=lambda made: made.place)
    opened = reopenings(dialog) if found else {}
    return tuple(replace(made, decision=_as_it_stands(dialog, made, found, opened)) for made in found[-MOST:])


def _recorded(dialog: Dialog, topic: str, places: dict[str, int]) -> Iterator[Made]:
    """What the daemons' marks record, each proposal's last decision."""
    last = {(record.ref or record.entry): record for record in dialog.state.table.decisions}
    for record in last.values():
        if record.ref not in dialog.state.table.vetoed and record.entry in places:
            yield _read(dialog, topic, record, places[record.entry])


def _read(dialog: Dialog, topic: str, record: Decision, place: int) -> Made:
    entries = dialog.entries[: place + 1]
    proposal = next((p for p in dialog.state.table.proposals if p.ref == record.ref), None)
    behind = _behind(dialog, recorded(entries, record.ref, record.method, record.evidence))
    text = _plain(dialog, proposal.text, proposal.entry) if proposal else ""
    if not text and (certificate := certify(until(dialog, place + 1))) is not None:
        text = certificate.text if certificate.decided_in == record.entry else ""
    decision = PastDecision(
        dialog=dialog.id,
        topic=topic,
        ref=record.ref,
        status=record.outcome,
        text=cut(text or record.reason),
        method=record.method,
        behind=behind,
        evidence=record.evidence,
        reason=record.reason,
        turns=_turns(proposal.entry if proposal else "", record.entry, behind),
        at=iso(entries[place].at),
    )
    return Made(place, record.entry, decision)


def _unrecorded(dialog: Dialog, topic: str) -> Iterator[Made]:
    """Ends by agreement that no decision records: the person's, and those typed by hand."""
    for place, c in unrecorded(dialog):
        if c.ref not in dialog.state.table.vetoed:
            entry = dialog.entries[place]
            behind = tuple(Signed(s.agent, s.turn, s.reservation) for s in c.signers)
            turns, text = _turns(c.stands_in, entry.id, behind), cut(c.text)
            how = ("approved", text, c.method, behind, c.evidence, c.reason, turns, iso(entry.at))
            yield Made(place, entry.id, PastDecision(dialog.id, topic, c.ref, *how))


def _deadlock(dialog: Dialog, topic: str, places: dict[str, int]) -> Iterator[Made]:
    """A deadlock that the dialog ended in: the crux, the positions, what would settle it."""
    outcome = dialog.state.outcome
    if outcome is None or outcome.name != "DEADLOCK" or outcome.entry not in places:
        return
    drawn = Plan(dialog)
    crux, positions = drawn.crux, drawn.positions
    lines = [
        *(f"Crux: {said.text}" for said in crux),
        *(f"{said.by}: {said.text}" for said in positions),
        *(f"What would settle it: {said.text}" for said in drawn.experiments),
    ]
    behind = tuple(Signed(agent, dialog.state.floor.spoke_at.get(agent, 0)) for agent in dialog.state.table.deadlock)
    said_in = tuple(sorted({said.turn for said in (*crux, *positions)}))
    turns = said_in or _turns("", outcome.entry, behind)
    text = cut("\n".join(lines) or outcome.reason or "no agreement was in sight")
    place = places[outcome.entry]
    how = (text, "deadlock", behind, "", outcome.reason, turns, iso(dialog.entries[place].at))
    yield Made(place, outcome.entry, PastDecision(dialog.id, topic, "", "undecided", *how))


def _as_it_stands(dialog: Dialog, made: Made, found: Sequence[Made], opened: Mapping[str, Reopening]) -> PastDecision:
    """The decision with what came after it: a refusal of the person's, an approval, a dialog that went on."""
    decision = made.decision
    if made.entry not in opened:
        approval = dialog.state.approved if decision.status == "approved" else ""
        after = any(entry.id == approval for entry in dialog.entries[made.place + 1 :]) if approval else False
        return replace(decision, approved=after)
    now = as_of_now(opened, made.entry, decision.status, decision.reason)
    later = next((turn_number(other.entry) for other in found if other.place > made.place), 0)
    again = f", and decided again in turn {later}" if later else ""
    return replace(decision, status=now.outcome, reason=now.reason, superseded=f"{WENT_ON}{again}")


def _behind(dialog: Dialog, named: Iterator[tuple[str, int]]) -> tuple[Signed, ...]:
    return tuple(Signed(who, turn, signer(dialog, who, turn).reservation) for who, turn in named)


def _plain(dialog: Dialog, text: str, entry_id: str) -> str:
    """A proposal's text; what was typed by hand still has its marks among its lines."""
    entry = dialog.entry(entry_id)
    return without_marks(text) if entry is not None and entry.frame is None else text


def _turns(stands: str, entry: str, behind: Sequence[Signed]) -> tuple[int, ...]:
    """The turns in which a decision was written, signed and made."""
    numbers = {turn_number(stands), turn_number(entry), *(b.turn for b in behind)}
    return tuple(sorted(numbers - {0}))


def cut(text: str) -> str:
    """A text as it is kept: its beginning, and of a secret nothing."""
    return redact(clean(text))[0].replace("\ufffd", " ").strip()[:TEXT]

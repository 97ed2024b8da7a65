"""What a dialog decided, by its marks: decisions, agreed texts, deadlocks; what the person took or refused. Pure.

What was struck or vetoed is no decision.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dialogd.memory.values import Behind
from dialogd.plan import open_ends
from dialogd.plan.reading import CRUX, without_marks
from dialogd.protocol.certificate import Certificate, certify, until
from dialogd.protocol.fold import ending
from dialogd.protocol.model import USER, Condition, Entry
from dialogd.protocol.signers import recorded, signer
from dialogd.protocol.state import Decision, Dialog
from dialogd.protocol.text import clean

MOST = 200  # decisions of one dialog; the last ones
TEXT = 20_000  # characters of one text


@dataclass(frozen=True, slots=True)
class Made:
    """A decision as a dialog made it; the fields are those of `values.Decision`.

    It stands in the entry with the id `entry`, at that `place` among all.
    """

    place: int
    entry: str
    ref: str
    status: str
    text: str
    method: str
    behind: tuple[Behind, ...]
    evidence: str
    reason: str
    turns: tuple[int, ...]
    superseded: str = ""
    approved: bool = False


def decided(dialog: Dialog) -> tuple[Made, ...]:
    """What the dialog decided, in order."""
    places = {entry.id: index for index, entry in enumerate(dialog.entries)}
    found = sorted((*_recorded(dialog, places), *_unrecorded(dialog), *_deadlock(dialog, places)), key=_place)
    found = [made for made in found if made.text.strip()]
    return tuple(_as_it_stands(dialog, made, found) for made in found[-MOST:])


def _place(made: Made) -> int:
    return made.place


def _recorded(dialog: Dialog, places: dict[str, int]) -> Iterator[Made]:
    """What the daemons' marks record, each proposal's last decision."""
    last = {(decision.ref or decision.entry): decision for decision in dialog.state.decisions}
    for decision in last.values():
        if decision.ref not in dialog.state.vetoed and decision.entry in places:
            yield _read(dialog, decision, places[decision.entry])


def _read(dialog: Dialog, decision: Decision, index: int) -> Made:
    entries = dialog.entries[: index + 1]
    proposal = open_ends.by_ref(dialog).get(decision.ref)
    behind = _behind(dialog, recorded(entries, decision.ref, decision.method, decision.evidence))
    text = _plain(dialog, proposal.text, proposal.entry) if proposal else ""
    if not text and (certificate := certify(until(dialog, index + 1))) is not None:
        text = certificate.text if certificate.decided_in == decision.entry else ""
    stands = proposal.entry if proposal else ""
    return Made(
        index,
        decision.entry,
        decision.ref,
        decision.outcome,
        _cut(text or decision.reason),
        decision.method,
        behind,
        decision.evidence,
        decision.reason,
        _turns(stands, decision.entry, behind),
    )


def _unrecorded(dialog: Dialog) -> Iterator[Made]:
    """Ends by agreement that no decision records: the person's, and those typed by hand."""
    recorded_in = {decision.entry for decision in dialog.state.decisions}
    for index, entry in enumerate(dialog.entries):
        end = ending(entry) if _counts(entry) else None
        if end is None or end.name not in ("CONSENSUS_REACHED", "DECIDED") or entry.id in recorded_in:
            continue
        certificate = certify(until(dialog, index + 1))
        if (
            certificate is not None
            and certificate.decided_in == entry.id
            and certificate.ref not in dialog.state.vetoed
        ):
            yield _certified(index, certificate)


def _certified(index: int, c: Certificate) -> Made:
    behind = tuple(Behind(s.agent, s.turn, s.reservation) for s in c.signers)
    turns = _turns(c.stands_in, c.decided_in, behind)
    return Made(index, c.decided_in, c.ref, "approved", _cut(c.text), c.method, behind, c.evidence, c.reason, turns)


def _deadlock(dialog: Dialog, places: dict[str, int]) -> Iterator[Made]:
    """A deadlock that the dialog ended in: the crux, the positions, what would settle it."""
    outcome = dialog.state.outcome
    if outcome is None or outcome.name != "DEADLOCK" or outcome.entry not in places:
        return
    crux, positions = open_ends.marked(dialog, "CRUX", CRUX), open_ends.positions_of(dialog)
    lines = [
        *(f"Crux: {said.text}" for said in crux),
        *(f"{said.by}: {said.text}" for said in positions),
        *(f"What would settle it: {said.text}" for said in open_ends.experiments(dialog)),
    ]
    behind = tuple(Behind(agent, dialog.state.spoke_at.get(agent, 0)) for agent in dialog.state.deadlock)
    said_in = tuple(sorted({said.turn for said in (*crux, *positions)}))
    turns = said_in or _turns("", outcome.entry, behind)
    text = _cut("\n".join(lines) or outcome.reason or "no agreement was in sight")
    yield Made(
        places[outcome.entry], outcome.entry, "", "undecided", text, "deadlock", behind, "", outcome.reason, turns
    )


def _as_it_stands(dialog: Dialog, made: Made, found: Sequence[Made]) -> Made:
    """The decision with what came after it: a refusal of the person's, an approval, a dialog that went on."""
    refused = _refusal(dialog, made)
    if refused is not None:
        reason = next((mark.value for mark in refused.all("REJECTED") if mark.value), "")
        made = replace(made, status="rejected", reason=f"the person did not take it{f': {reason}' if reason else ''}")
    is_earlier = dialog.state.base > 0 and open_ends.turn_of(made.entry) <= dialog.state.base
    if not is_earlier:
        approval = dialog.state.approved if made.status == "approved" else ""
        after = any(entry.id == approval for entry in dialog.entries[made.place + 1 :]) if approval else False
        return replace(made, approved=after)
    later = next((open_ends.turn_of(other.entry) for other in found if other.place > made.place), 0)
    again = f", and decided again in turn {later}" if later else ""
    return replace(made, superseded=f"the dialog went on after it{again}")


def _refusal(dialog: Dialog, made: Made) -> Entry | None:
    """The note by which the person refused the end that this decision is, before the next end."""
    if ending(dialog.entries[made.place]) is None:
        return None
    for entry in dialog.entries[made.place + 1 :]:
        if entry.by == USER and entry.mark("REJECTED") is not None and _counts(entry):
            return entry
        if ending(entry) is not None and _counts(entry):
            return None
    return None


def _behind(dialog: Dialog, named: Iterator[tuple[str, int]]) -> tuple[Behind, ...]:
    return tuple(Behind(who, turn, signer(dialog, who, turn).reservation) for who, turn in named)


def _counts(entry: Entry) -> bool:
    return entry.condition not in (Condition.DAMAGED, Condition.UNFINISHED)


def _plain(dialog: Dialog, text: str, entry_id: str) -> str:
    """A proposal's text; what was typed by hand still has its marks among its lines."""
    entry = dialog.entry(entry_id)
    return without_marks(text) if entry is not None and entry.frame is None else text


def _turns(stands: str, entry: str, behind: Sequence[Behind]) -> tuple[int, ...]:
    """The turns in which a decision was written, signed and made."""
    numbers = {open_ends.turn_of(stands), open_ends.turn_of(entry), *(b.turn for b in behind)}
    return tuple(sorted(numbers - {0}))


def _cut(text: str) -> str:
    return clean(text).replace("\ufffd", " ").strip()[:TEXT]

"""Certificates: which exact text was agreed, by whom, when, with which objections, over which chain of entries.

A certificate is computed from the file alone. It records, it does not authenticate: whoever can write the file can
write a frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from dialogd.protocol.fold import ending, fold
from dialogd.protocol.hashing import digest
from dialogd.protocol.marks import read_reply, same_text, summary_of
from dialogd.protocol.model import USER, Condition, Entry, Mark
from dialogd.protocol.refold import steps
from dialogd.protocol.roster import voters
from dialogd.protocol.signers import Signer, position, recorded, signer
from dialogd.protocol.state import Dialog, Proposal, State

RECORDS = "a certificate records, it does not authenticate: whoever can write the file can write a frame"


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was agreed. `sha` is the recorded hash of the text, the computed one where none is recorded.

    `method` is mutual, vote, moderator, decide, judge, person or by hand. `decided_in` and `stands_in` are ids of
    entries, `decided_at` wall time; `chain` is the hash of the first entry and of the deciding one, `links` those of
    all `entries` up to it, `header` the hash of the header, which no frame covers. `ref` is "" where the text is no
    proposal; `text` is "" where it no longer stands in the file.
    """

    ref: str
    text: str
    sha: str
    method: str
    decided_at: str
    decided_in: str
    signers: tuple[Signer, ...]
    chain: tuple[str, str]
    entries: int
    dialog: str
    evidence: str = ""
    reason: str = ""
    stands_in: str = ""
    header: str = ""
    links: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The certificate as it is kept: the fields by name, and what it is worth."""
        facts = asdict(self)
        lists = {"chain": list(self.chain), "links": list(self.links), "signers": list(facts["signers"])}
        return {**facts, **lists, "note": RECORDS}

    @property
    def title(self) -> str:
        """What was agreed, in words: `P4 in turn 5`."""
        return f"{self.ref or 'the text'} in {where(self.stands_in)}" if self.stands_in else self.ref or "the text"


def where(entry_id: str) -> str:
    """An entry's id in words: `turn 7`, `note 7.2`."""
    return f"note {entry_id}" if "." in entry_id else f"turn {entry_id}"


def certify(dialog: Dialog) -> Certificate | None:
    """The certificate of the last approval in the file, or of the end by agreement; None while nothing was decided."""
    states: list[State] = []
    for index in range(len(dialog.entries) - 1, -1, -1):
        entry = dialog.entries[index]
        mark = _approval(dialog, entry) if _counts(entry) else None
        if mark is not None:
            return _drawn_up(dialog, index, _as_recorded(dialog, index, mark))
        if _agrees(entry):
            states = states or [before for _, _, before, _ in steps(dialog)]
            core = _without_decision(dialog, index, states[index])
            if core is not None:
                return _drawn_up(dialog, index, core)
    return None


def unrecorded(dialog: Dialog) -> Iterator[tuple[int, Certificate]]:
    """Each end by agreement that no decision records, by its place among the entries, as it was certified then."""
    recorded_in = {decision.entry for decision in dialog.state.decisions}
    for index, (entry, _, before, _) in enumerate(steps(dialog)):
        if _agrees(entry) and entry.id not in recorded_in:
            then = until(dialog, index + 1)
            core = _without_decision(then, index, before)
            if core is not None:
                yield index, _drawn_up(then, index, core)


def _counts(entry: Entry) -> bool:
    return entry.condition not in (Condition.DAMAGED, Condition.UNFINISHED) and not entry.is_struck


def _agrees(entry: Entry) -> bool:
    """True for an end by agreement."""
    end = ending(entry) if _counts(entry) else None
    return end is not None and end.name in ("CONSENSUS_REACHED", "DECIDED")


@dataclass(frozen=True, slots=True)
class _Core:
    """What was decided, before it is dated: `proposal` is None where its text is gone."""

    proposal: Proposal | None
    ref: str
    method: str
    signers: tuple[Signer, ...]
    evidence: str = ""
    reason: str = ""


def _approval(dialog: Dialog, entry: Entry) -> Mark | None:
    """The approval in this entry that counts; what ends the dialog goes before what one agent decides by the way."""
    counted = {d.ref for d in dialog.state.decisions if d.entry == entry.id and d.outcome == "approved"}
    marks = [m for m in entry.all("DECISION") if m.ref in counted and m.fields[0] == "approved"]
    return next((m for m in marks if m.fields[1:2] != ("decide",)), marks[0] if marks else None)


def _as_recorded(dialog: Dialog, index: int, mark: Mark) -> _Core:
    _, method, evidence, reason = (*mark.fields, "", "", "")[:4]
    entries = dialog.entries[: index + 1]
    signers = tuple(signer(dialog, who, turn) for who, turn in recorded(entries, mark.ref, method, evidence))
    proposal = _proposal(dialog, index, mark.ref) if mark.ref else _position(dialog, evidence)
    if not mark.ref and proposal is None:
        proposal = Proposal("", "", "", str(position(evidence)[1] or ""))
    return _Core(proposal, mark.ref, method, signers, evidence, reason)


def _proposal(dialog: Dialog, index: int, ref: str) -> Proposal | None:
    """The proposal of that number that stood when it was decided."""
    ids = {entry.id for entry in dialog.entries[: index + 1]}
    return next((p for p in reversed(dialog.state.proposals) if p.ref == ref and p.entry in ids), None)


def _position(dialog: Dialog, evidence: str) -> Proposal | None:
    """What the agent whose position a judge chose had said."""
    who, number = position(evidence)
    entry = next((e for e in dialog.turns if (e.by, e.number) == (who, number)), None)
    return Proposal("", who, entry.body, entry.id) if entry else None


def _without_decision(dialog: Dialog, index: int, before: State) -> _Core | None:
    """What an end without a DECISION mark agrees to: the person's own summary, else the text on the table."""
    entry = dialog.entries[index]
    after = fold(dialog.header, before, replace(entry, turn=(USER,)))  # as if it went on: its text and signature count
    standing = before.standing if entry.by == USER else after.standing
    me = signer(dialog, entry.by, entry.number, entry)
    if entry.by == USER and summary_of(entry.body):
        return _Core(Proposal("", USER, summary_of(entry.body), entry.id), "", "person", (me,))
    if standing is None:
        return None
    signers = tuple(signer(dialog, who, turn) for who, turn in standing.signers)
    method = "mutual" if set(voters(dialog.header)) <= {s.agent for s in signers} else "by hand"
    if entry.by == USER:
        method, signers = "person", (*signers, me)
    return _Core(standing.proposal, standing.proposal.ref, method, signers)


def until(dialog: Dialog, count: int) -> Dialog:
    """The dialog with its first `count` entries alone, to be certified as it was then."""
    return replace(dialog, entries=dialog.entries[:count])


def _drawn_up(dialog: Dialog, index: int, core: _Core) -> Certificate:
    entry, proposal = dialog.entries[index], core.proposal
    text, sha = (proposal.text, proposal.sha) if proposal else ("", "")
    stands = dialog.entry(proposal.entry) if proposal else None
    if stands is not None and stands.frame is None:  # typed by hand: the marks are still among its lines
        text, sha = read_reply(text).body, ""
    links = tuple(e.chain for e in dialog.entries[: index + 1])
    return Certificate(
        ref=core.ref,
        text=text,
        sha=sha or (digest(same_text(text)) if text else ""),
        method=core.method,
        decided_at=entry.frame.at if entry.frame else "",
        decided_in=entry.id,
        signers=core.signers,
        chain=(links[0], links[-1]),
        entries=index + 1,
        dialog=dialog.id,
        evidence=core.evidence,
        reason=core.reason,
        stands_in=proposal.entry if proposal else "",
        header=digest(dialog.header.text),
        links=links,
    )

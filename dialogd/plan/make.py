"""From a dialog to its plan: marks and text only, no model. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from dialogd.plan import open_ends
from dialogd.plan.conflicts import conflicts, dissent
from dialogd.plan.figures import metrics
from dialogd.plan.outcome import headline
from dialogd.plan.reading import before_summary, beginning, is_substantial, own_words, turns_of
from dialogd.plan.value import Agreed, Approval, Change, Decided, Plan, Said, Signals, Signed, View, Vote
from dialogd.plan.worth import worth
from dialogd.protocol import ballots, review
from dialogd.protocol.certificate import Certificate, certify
from dialogd.protocol.convergence import assess
from dialogd.protocol.ledger import Position, positions
from dialogd.protocol.model import USER, Entry
from dialogd.protocol.result import Reopening, as_of_now, rejections_in, reopenings
from dialogd.protocol.roster import weight
from dialogd.protocol.state import Decision, Dialog

STANDS = ("RESERVATION", "OBJECTION", "CONCEDE")


def has_spoken(dialog: Dialog) -> bool:
    """True once any agent has: before that there is nothing to plan from."""
    return any(True for _ in turns_of(dialog))


def draw_up(dialog: Dialog, file: str = "") -> Plan:
    """The plan of a dialog as it stands. `file` is how the dialog's file is named in it."""
    certificate = certify(dialog)
    opened = reopenings(dialog)
    agreed = _agreed(dialog, certificate, opened)
    now = None if agreed is not None and agreed.is_earlier else agreed  # what counts since the dialog was opened
    decisions = tuple(_decisions(dialog, opened))
    stances = positions(dialog)
    found, quarrels = review.findings(dialog), conflicts(dialog, agreed, decisions)
    tried, state = open_ends.experiments(dialog), dialog.state
    return Plan(
        dialog=dialog,
        file=file,
        task=dialog.header.topic or _question(dialog),
        began=dialog.header.started or _first_at(dialog),
        ended=ended_at(dialog),
        outcome=state.outcome.name if state.outcome else "",
        headline=headline(dialog, agreed, decisions),
        agreed=agreed,
        on_the_table=_on_the_table(dialog) if now is None else None,
        decisions=decisions,
        views=tuple(_views(dialog)),
        agreements=tuple(_agreements(now, decisions)),
        conflicts=quarrels,
        dissent=dissent(dialog, agreed, decisions, stances),
        changes=tuple(_changes(stances)),
        positions=open_ends.positions_of(dialog),
        crux=open_ends.cruxes(dialog),
        experiments=tried,
        questions=open_ends.questions(dialog, now, decisions, stances, found),
        steps=open_ends.steps(dialog, now, tried),
        worth=worth(dialog, now, decisions),
        findings=found,
        score=review.score(dialog),
        signals=_signals(dialog),
        metrics=metrics(dialog, agreed, decisions, quarrels, stances),
        certificate=certificate.as_json() if certificate else None,
        approved=_approval(dialog),
        rejections=rejections_in(opened),
    )


def ended_at(dialog: Dialog) -> str:
    """When the dialog ended, as its file says; "" while it goes on, or where its end was written by hand."""
    entry = dialog.entry(dialog.state.outcome.entry) if dialog.state.outcome else None
    return entry.frame.at if entry is not None and entry.frame is not None else ""


def _approval(dialog: Dialog) -> Approval | None:
    note = dialog.entry(dialog.state.approved) if dialog.state.approved else None
    return Approval(note.id, note.frame.at if note.frame is not None else "") if note is not None else None


def _question(dialog: Dialog) -> str:
    """The opening question, without what leads to it; what stands above the first turn where nobody asked one."""
    first = dialog.entries[0].body if dialog.entries and dialog.entries[0].by == USER else ""
    for text in (first, dialog.header.title, dialog.header.text):
        lines = (line.strip() for line in text.split("\n"))
        if found := next((line for line in lines if line.strip("-* ") and not line.endswith(":**")), ""):
            return found
    return ""


def _first_at(dialog: Dialog) -> str:
    return next((entry.frame.at for entry in dialog.entries if entry.frame is not None and entry.frame.at), "")


def _agreed(dialog: Dialog, certificate: Certificate | None, opened: Mapping[str, Reopening]) -> Agreed | None:
    if certificate is None:
        return None
    c = certificate
    signers = tuple(Signed(s.agent, s.turn, s.reservation) for s in c.signers)
    entry = dialog.entry(c.stands_in)
    return Agreed(
        ref=c.ref,
        text=c.text,
        sha=c.sha,
        method=c.method,
        decided_in=c.decided_in,
        decided_at=c.decided_at,
        signers=signers,
        by=entry.by if entry else "",
        stands_in=c.stands_in,
        is_earlier=open_ends.turn_of(c.decided_in) <= dialog.state.base,
        is_rejected=c.decided_in in opened and opened[c.decided_in].rejection is not None,
    )


def _on_the_table(dialog: Dialog) -> Agreed | None:
    """The text that waits for signatures, or did at the end."""
    standing = dialog.state.standing
    if standing is None:
        return None
    signers = tuple(Signed(who, turn) for who, turn in standing.signers)
    return Agreed(standing.proposal.ref, standing.proposal.text, standing.proposal.sha, "", "", "", signers)


def _decisions(dialog: Dialog, opened: Mapping[str, Reopening]) -> Iterator[Decided]:
    made = open_ends.by_ref(dialog)
    for decision in dialog.state.decisions:
        proposal = made.get(decision.ref)
        turn = open_ends.turn_of(decision.entry)
        now = as_of_now(opened, decision.entry, decision.outcome, decision.reason)
        yield Decided(
            ref=decision.ref,
            by=proposal.by if proposal else "",
            text=proposal.text if proposal else "",
            outcome=now.outcome,
            method=decision.method,
            evidence=decision.evidence,
            reason=now.reason,
            turn=turn,
            votes=tuple(_votes(dialog, decision, turn)),
            rejected_in=open_ends.turn_of(now.rejected_in),
            superseded=now.superseded,
        )


def _votes(dialog: Dialog, decision: Decision, until: int) -> Iterable[Vote]:
    """Each agent's last vote on the proposal before it was decided."""
    last: dict[str, Vote] = {}
    for entry in turns_of(dialog):
        if entry.number > until:
            break
        for mark in entry.all("VOTE"):
            vote = ballots.vote(mark)
            if vote is not None and vote.ref == decision.ref:
                last[entry.by] = Vote(
                    entry.by, vote.choice, entry.number, vote.reason, weight(dialog.header, [entry.by])
                )
    return last.values()


def _views(dialog: Dialog) -> Iterator[View]:
    names = {agent.id: agent.name for agent in dialog.header.agents}
    for who in dict.fromkeys((*names, *(entry.by for entry in turns_of(dialog)))):
        turns = tuple(turns_of(dialog, who))
        number, text = _last_of_substance(turns)
        if not text:
            continue
        stands = {m.name: Said(m.name, who, e.number, m.value) for e in turns for m in e.marks if m.name in STANDS}
        yield View(who, names.get(who, who), number, *beginning(text), tuple(sorted(stands.values(), key=_when)))


def _last_of_substance(turns: Sequence[Entry]) -> tuple[int, str]:
    """Number and text of the last turn that says something beside an agreed text; else of the last one at all."""
    texts = [(entry.number, own_words(entry)) for entry in turns]
    heads = [(number, before_summary(text)) for number, text in texts]
    for found in (*reversed(heads), *reversed(texts)):
        if is_substantial(found[1]):
            return found
    return max(reversed(texts), key=lambda found: len(found[1].split()), default=(0, ""))


def _when(said: Said) -> int:
    return said.turn


def _agreements(agreed: Agreed | None, decisions: Sequence[Decided]) -> Iterator[Said]:
    """What was approved and stands: who proposed it, and the turn that decided. A text in full stands elsewhere."""
    for d in {decision.ref: decision for decision in decisions if decision.ref}.values():
        if d.stands == "approved" and (agreed is None or d.ref != agreed.ref):
            yield Said("APPROVED", d.by, d.turn, _named(d.ref, d.text))
    if agreed is not None:
        what = _named(agreed.ref, agreed.text) if agreed.ref else f"what stands in turn {agreed.stands_in}"
        yield Said("APPROVED", agreed.by, open_ends.turn_of(agreed.decided_in), what)


def _named(ref: str, text: str) -> str:
    return f"{ref}: {text}" if text and "\n" not in text.strip() else f"the text {ref}"


def _changes(stances: Sequence[Position]) -> Iterator[Change]:
    """Each stance that is not the first an agent took on a proposal."""
    before: dict[tuple[str, str], str] = {}
    for p in stances:
        known = before.get((p.agent, p.ref), "")
        if known and known != p.stance:
            yield Change(p.agent, p.ref, known, p.stance, p.turn, p.cause, p.flagged)
        before[p.agent, p.ref] = p.stance


def _signals(dialog: Dialog) -> Signals:
    found = assess(dialog)
    return Signals(
        found.advice, found.reason, found.agreements, found.disagreements, found.convergence, found.confidence
    )

"""What is still open, and what comes next: questions without an answer, undecided proposals, next steps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dialogd.plan.conflicts import referred
from dialogd.plan.reading import CRUX, EXPERIMENT, STEPS, labelled, own_words, turns_of
from dialogd.plan.value import Agreed, Decided, Said, Step
from dialogd.protocol.ledger import Position, latest
from dialogd.protocol.marks import crux, experiment, same_text
from dialogd.protocol.model import Mark
from dialogd.protocol.review import Finding
from dialogd.protocol.state import Dialog, Proposal

LAST_TURNS = 4  # that are looked through for next steps


def questions(
    dialog: Dialog,
    agreed: Agreed | None,
    decisions: Sequence[Decided],
    positions: Sequence[Position],
    findings: Sequence[Finding],
) -> tuple[Said, ...]:
    """What the marks leave open, most pressing first."""
    return (
        *_for_the_person(dialog),
        *(() if agreed else cruxes(dialog)),
        *_unanswered(dialog),
        *_undecided(dialog, agreed, decisions, positions),
        *(Said("FINDING", f.by, f.turn, f"finding {f.number} blocks: {f.issue}") for f in findings if f.blocks),
    )


def _for_the_person(dialog: Dialog) -> Iterator[Said]:
    for question in dialog.state.questions:
        yield Said("QUESTION_FOR_USER", question.asker or "a daemon", turn_of(question.entry), question.said)


def _unanswered(dialog: Dialog) -> Iterator[Said]:
    """Questions to the other agents, in turns that nobody else answered by number."""
    answered: dict[int, set[str]] = {}
    for entry in turns_of(dialog):
        for number in referred(entry)[0]:
            answered.setdefault(number, set()).add(entry.by)
    for entry in turns_of(dialog):
        if not answered.get(entry.number, set()) - {entry.by}:
            yield from (Said("QUESTION", entry.by, entry.number, mark.value) for mark in entry.all("QUESTION"))


def _undecided(
    dialog: Dialog, agreed: Agreed | None, decisions: Sequence[Decided], positions: Sequence[Position]
) -> Iterator[Said]:
    """Proposals that nothing was decided about. What everybody signed, or a judge chose, settles them all."""
    done = {d.ref for d in decisions if d.outcome in ("approved", "rejected")}
    done |= set(dialog.state.vetoed)
    stances = latest(positions)
    texts = {same_text(p.text).casefold() for p in dialog.state.proposals if p.ref in done and p.text.strip()}
    if agreed is not None and (agreed.method in ("mutual", "person", "by hand") or not agreed.ref):
        return
    for proposal in dialog.state.proposals:
        position = stances.get((proposal.by, proposal.ref))
        given_up = position is not None and position.stance == "conceded"
        decided = proposal.ref in done or same_text(proposal.text).casefold() in texts
        if not (given_up or decided or _is_replaced(dialog, proposal)):
            text = f"{proposal.ref}: {proposal.text}" if not proposal.sha else f"the text {proposal.ref}"
            yield Said("PROPOSAL", proposal.by, turn_of(proposal.entry), text)


def _is_replaced(dialog: Dialog, proposal: Proposal) -> bool:
    """True for a consensus text after which another one was put on the table."""
    texts = [p.ref for p in dialog.state.proposals if p.sha]
    return bool(proposal.sha) and proposal.ref != texts[-1]


def cruxes(dialog: Dialog) -> tuple[Said, ...]:
    """The questions on which the disagreement turns."""
    return _named(dialog, "CRUX", crux, CRUX)


def experiments(dialog: Dialog) -> tuple[Said, ...]:
    """The cheapest experiments that would settle it."""
    return _named(dialog, "EXPERIMENT", experiment, EXPERIMENT)


def _named(dialog: Dialog, name: str, read: Callable[[Iterable[Mark]], Iterable[str]], label: str) -> tuple[Said, ...]:
    """What each agent's last deadlock names; where it names none, what its last turn says under `label`.

    What several say in the same words stands once, under all their names.
    """
    found: list[Said] = []
    for agent in dict.fromkeys(entry.by for entry in turns_of(dialog)):
        turns = tuple(turns_of(dialog, agent))
        said = [Said(name, agent, e.number, text) for e in turns for text in read(e.marks)]
        texts = labelled(own_words(turns[-1]), label)
        found += said[-1:] or [Said(name, agent, turns[-1].number, text) for text in texts[:1]]
    same: dict[str, Said] = {}
    for item in found:
        key = " ".join(item.text.casefold().split()).rstrip(".")
        known = same.get(key)
        same[key] = replace(known, by=f"{known.by}, {item.by}") if known else item
    return tuple(same.values())


def positions_of(dialog: Dialog) -> tuple[Said, ...]:
    """Each agent's last position: its last plain proposal, and its last objection after that."""
    found: list[Said] = []
    for agent in dict.fromkeys(entry.by for entry in turns_of(dialog)):
        last: dict[str, Said] = {}
        for entry in turns_of(dialog, agent):
            for mark in entry.marks:
                if mark.name == "PROPOSAL":
                    last = {"PROPOSAL": Said("PROPOSAL", agent, entry.number, mark.value)}
                elif mark.name == "OBJECTION":
                    last["OBJECTION"] = Said("OBJECTION", agent, entry.number, mark.value)
        found += last.values()
    return tuple(found)


def steps(dialog: Dialog, agreed: Agreed | None, tried: Sequence[Said]) -> tuple[Step, ...]:
    """Next steps: those of the agreed text, else of the last turns that name any, else the experiments."""
    if agreed is not None and (found := labelled(agreed.text, STEPS)):
        return tuple(Step(text, "the agreed text") for text in found)
    for entry in tuple(turns_of(dialog))[: -LAST_TURNS - 1 : -1]:
        if found := labelled(own_words(entry), STEPS):
            return tuple(Step(text, f"turn {entry.number}, by {entry.by}") for text in found)
    if agreed is not None:
        return ()
    return tuple(Step(said.text, f"turn {said.turn}, by {said.by}: what would settle it") for said in tried)


def turn_of(entry_id: str) -> int:
    """The number of the turn that an entry is, or stands after; 0 before any."""
    head = entry_id.partition(".")[0]
    return int(head) if head.isdigit() else 0


def by_ref(dialog: Dialog) -> Mapping[str, Proposal]:
    """The proposals by number."""
    return {proposal.ref: proposal for proposal in dialog.state.proposals}

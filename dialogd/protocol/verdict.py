"""Is it over, and why: what an agent's marks come to when its turn is written.

Consensus is mutual and exact: the same text, by its hash, signed by every agent. An objection beats a signature in
the same reply; an agent that says nothing has not agreed. Nobody ends a dialog alone, except the person.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dialogd.protocol.fold import next_ref, refers_to
from dialogd.protocol.hashing import digest
from dialogd.protocol.marks import Reply, same_text
from dialogd.protocol.model import USER, Dialog, Mark, Standing, State
from dialogd.protocol.order import turn_after


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the daemon writes under a reply: its marks, numbered and completed, and how the turn ends.

    `turn` is None when the turn ends the dialog; then `outcome` names the mark and `why` is the reason in words.
    """

    marks: tuple[Mark, ...]
    turn: tuple[str, ...] | None
    outcome: str = ""
    why: str = ""


def unclear(dialog: Dialog, reply: Reply) -> str:
    """What must be asked back once before this reply can count, in words for the agent; "" when it is clear."""
    if not reply.body.strip() and not reply.marks:
        return "Your reply was empty. Answer with your contribution, or with the single line [PASS]."
    if _claims_consensus(reply) and not reply.summary and dialog.state.standing is None:
        return (
            "You wrote [CONSENSUS_REACHED], but there is no agreed text yet. Send your reply again with a section"
            " `## Consensus Summary` that states exactly what is agreed, then [CONSENSUS_REACHED]; or without the mark."
        )
    limit = dialog.state.limits.max_message
    if _claims_consensus(reply) and len(reply.body) > limit:
        return f"An agreed text is never cut, and yours has over {limit} characters. Send the reply again, shorter."
    return ""


def _claims_consensus(reply: Reply) -> bool:
    return reply.has("CONSENSUS_REACHED") and not (reply.has("OBJECTION") or reply.has("DEADLOCK"))


def rule(dialog: Dialog, me: str, reply: Reply) -> Ruling:
    """What `reply` by `me` comes to in `dialog` as it stands now. Pure; called again if the dialog has moved on."""
    state = dialog.state
    marks = [*_numbered(state, reply), *_consensus(state, me, reply, len(dialog.header.agents))]
    signed = _all_signed(dialog, me, marks, state.number + 1)
    if signed is not None:
        ref, names = signed
        decision = Mark("DECISION", f"approved | mutual | signed by {names}", ref)
        return Ruling((*marks, decision), None, "CONSENSUS_REACHED", f"consensus on {ref}, signed by {names}")
    if reply.has("DEADLOCK") and _everybody(dialog, {*state.deadlock, me}):
        without = tuple(mark for mark in marks if mark.name != "DEADLOCK")
        return Ruling(without, None, "DEADLOCK", f"deadlock, called by {', '.join((*state.deadlock, me))}")
    if state.counted + 1 >= state.limits.max_turns:
        return Ruling(tuple(marks), None, "MAX_TURNS_REACHED", f"the limit of {state.limits.max_turns} turns")
    return Ruling(tuple(marks), _whose_turn(dialog, me, reply))


def _whose_turn(dialog: Dialog, me: str, reply: Reply) -> tuple[str, ...]:
    state: State = dialog.state
    alone = len(dialog.header.agents) < 2
    asks = reply.has("QUESTION_FOR_USER") or (alone and (reply.has("CONSENSUS_REACHED") or reply.has("DEADLOCK")))
    if asks:
        state = replace(state, question="asked")
    turn = turn_after(dialog.header, state, me)
    return turn or (USER,)


def _numbered(state: State, reply: Reply) -> list[Mark]:
    """The reply's marks in canonical form; proposals get their numbers, claims of consensus are judged apart."""
    marks: list[Mark] = []
    number = int(next_ref(state)[1:]) if reply.has("PROPOSAL") else 0
    for mark in reply.marks:
        if mark.name == "PROPOSAL":
            marks.append(Mark("PROPOSAL", mark.value, f"P{number}"))
            number += 1
        elif mark.name != "CONSENSUS_REACHED":
            marks.append(mark)
    return marks


def _consensus(state: State, me: str, reply: Reply, voters: int) -> list[Mark]:
    """The mark that a claim of consensus becomes: a signature, a new text to sign, or nothing."""
    if not _claims_consensus(reply) or voters < 2:
        return []
    standing, text = state.standing, same_text(reply.summary)
    if standing is not None and (not text or digest(text) == standing.proposal.sha):
        agreed = any(refers_to(mark, standing.proposal.ref) for mark in reply.marks if mark.name == "AGREE")
        return [] if agreed or standing.signed_by(me) else [Mark("AGREE", standing.proposal.ref)]
    if not text:
        return []
    proposals = sum(mark.name == "PROPOSAL" for mark in reply.marks)
    return [Mark("CONSENSUS_PROPOSED", digest(text), f"P{int(next_ref(state)[1:]) + proposals}")]


def _all_signed(dialog: Dialog, me: str, marks: list[Mark], number: int) -> tuple[str, str] | None:
    """The number of the text that everybody has signed once these marks stand, and who signed where."""
    standing: Standing | None = dialog.state.standing
    names = {mark.name for mark in marks}
    if standing is None or names & {"OBJECTION", "DEADLOCK", "CONSENSUS_PROPOSED"}:
        return None
    signs = any(refers_to(mark, standing.proposal.ref) for mark in marks if mark.name == "AGREE")
    signers = dict(standing.signers)
    if signs:
        signers.setdefault(me, number)
    if not signs or not _everybody(dialog, set(signers)):
        return None
    return standing.proposal.ref, ", ".join(f"{who} in turn {turn}" for who, turn in signers.items())


def _everybody(dialog: Dialog, who: set[str]) -> bool:
    """True when all agents are among `who`, and they are at least two."""
    agents = {agent.id for agent in dialog.header.agents}
    return len(agents) >= 2 and agents <= who

"""Is it over, and why: what an agent's marks come to when its turn is written.

Consensus is mutual and exact: the same text, by its hash, signed by every agent. An objection beats a signature in
the same reply; an agent that says nothing has not agreed. Nobody ends a dialog alone, except the person, and whom
the dialog's rule names. The other rules stand in `settle.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dialogd.protocol import marks
from dialogd.protocol.admit import Refusal, claims_consensus, shown, signed
from dialogd.protocol.fold import foreseen
from dialogd.protocol.marks import Reply, same_text
from dialogd.protocol.model import USER, Mark, digest
from dialogd.protocol.questions import NAME as QUESTION
from dialogd.protocol.questions import Question
from dialogd.protocol.settle import end_of, onward, settled
from dialogd.protocol.state import Dialog, State
from dialogd.protocol.voting import next_ref


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the daemon writes under a reply: its marks, numbered and completed, and how the turn ends.

    `turn` is None when the turn ends the dialog; then `outcome` names the mark and `why` is the reason in words.
    """

    marks: tuple[Mark, ...]
    turn: tuple[str, ...] | None
    outcome: str = ""
    why: str = ""


def lacks_body(dialog: Dialog, me: str, reply: Reply) -> str:
    """Why the reply must be written anew, in words for its agent; "" when it need not. Asked for once, before all else.

    An empty reply, a consensus without its text, an agreed text or a proposal that is too long: those are never cut.
    """
    if not reply.body.strip() and not reply.marks:
        return "Your reply was empty. Answer with your contribution, or with the single line [PASS]."
    limit, mark = dialog.state.limits.max_message, Mark("CONSENSUS_REACHED")
    if claims_consensus(reply) and not reply.summary and not signed(dialog, me, mark, reply):
        return (
            "You wrote [CONSENSUS_REACHED], but there is no agreed text yet. Send your reply again with a section"
            " `## Consensus Summary` that states exactly what is agreed, then [CONSENSUS_REACHED]; or without the mark."
        )
    if claims_consensus(reply) and len(reply.body) > limit:
        return f"An agreed text is never cut, and yours has over {limit} characters. Send the reply again, shorter."
    if any(mark.name == "PROPOSAL" and len(mark.value) > limit for mark in reply.marks):
        return f"A proposal is never cut, and yours has over {limit} characters. Send the reply again, shorter."
    return ""


def rule(dialog: Dialog, me: str, reply: Reply, refused: Sequence[Refusal] = (), *, is_last: bool = False) -> Ruling:
    """What the admitted `reply` of `me` comes to in `dialog` as it stands now; `refused` is what did not count of it.

    Pure; called again if the dialog has moved on. `is_last` says that the file has room for no other turn.
    """
    header, before = dialog.header, dialog.state
    marks = [*_numbered(before, reply), *_consensus(dialog, me, reply), *shown(refused), *_unanswered(dialog, reply)]
    after = _after(dialog, me, reply, marks)
    found = settled(dialog, me, after, marks, is_last=is_last)
    if found:
        marks += found
        after = _after(dialog, me, reply, marks)
    outcome, why = end_of(header, found)
    if outcome:
        return Ruling(tuple(marks), None, outcome, why)
    if reply.has("DEADLOCK") and not _is_first(dialog, me) and _all_call_it(dialog, {*before.deadlock, me}):
        if header.judge and header.judge not in before.absent and after.counted < after.limits.max_turns:
            return Ruling(tuple(marks), (header.judge,))
        last = sorted(marks, key=lambda mark: mark.name == "DEADLOCK")  # its own call, with its crux, is the end
        return Ruling(tuple(last), None, "DEADLOCK", f"deadlock, called by {', '.join((*before.deadlock, me))}")
    if me != USER and not header.is_unattended and _waits_for_person(dialog, reply):
        after = replace(after, questions=after.questions or (Question("asked"),))
    step = onward(header, before, after, me, is_decided=_decides(found))
    return Ruling((*marks, *step.marks), step.turn, step.outcome, step.why)


def _unanswered(dialog: Dialog, reply: Reply) -> list[Mark]:
    """What is said under a question to the person where nobody is at the table: it goes back."""
    if not (dialog.header.is_unattended and reply.has(QUESTION)):
        return []
    return [
        Mark("REFUSED", f"{QUESTION} | nobody is at the table: take your default, or decide, and say what you assume")
    ]


def _after(dialog: Dialog, me: str, reply: Reply, marks: Sequence[Mark]) -> State:
    """The state once the turn stands in the file, before anybody is named in its TURN line."""
    number, debt = dialog.state.number + 1, dialog.state.debt(me)
    re = debt.re if debt else ""
    return foreseen(dialog.header, dialog.state, me, marks, number=number, body=reply.body, re=re)


def _waits_for_person(dialog: Dialog, reply: Reply) -> bool:
    """Nobody agrees alone: where fewer than two may sign, an agent's end waits for the person."""
    is_alone = dialog.header.rules.verdict == "mutual" and len(dialog.header.voters) < 2
    return is_alone and (reply.has("CONSENSUS_REACHED") or reply.has("DEADLOCK"))


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


def _consensus(dialog: Dialog, me: str, reply: Reply) -> list[Mark]:
    """The mark that a claim of consensus becomes: a signature, a new text to sign, or nothing."""
    state, rules = dialog.state, dialog.header.rules
    if not claims_consensus(reply) or (rules.verdict == "mutual" and len(dialog.header.voters) < 2):
        return []
    standing, text = state.standing, same_text(reply.summary)
    if standing is not None and signed(dialog, me, Mark("CONSENSUS_REACHED"), reply):
        agreed = any(standing.proposal.ref in marks.agreed(mark) for mark in reply.marks)
        return [] if agreed or standing.signed_by(me) else [Mark("AGREE", standing.proposal.ref)]
    if not text:
        return []
    proposals = sum(mark.name == "PROPOSAL" for mark in reply.marks)
    return [Mark("CONSENSUS_PROPOSED", digest(text), f"P{int(next_ref(state)[1:]) + proposals}")]


def _decides(found: Sequence[Mark]) -> bool:
    """True when one of these is a decision of the agent itself, not a count of votes."""
    return any(mark.name == "DECISION" and mark.fields[1:2] in (("moderator",), ("decide",)) for mark in found)


def _is_first(dialog: Dialog, me: str) -> bool:
    """True when `me` gives a first answer that it had sealed: those decide nothing."""
    debt = dialog.state.debt(me)
    return dialog.header.rules.sealed and debt is not None and debt.is_ready


def _all_call_it(dialog: Dialog, who: set[str]) -> bool:
    """True when all that may vote (all agents, where nobody may) call it a deadlock, and they are at least two.

    Nobody waits for who is absent.
    """
    able = set(dialog.header.voters) or {agent.id for agent in dialog.header.agents}
    able -= dialog.state.absent
    return len(able) >= 2 and able <= who

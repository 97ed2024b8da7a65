"""Where an agent stands in the turn it owes, and what this turn is for: the end of a prompt, new each time. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dialogd import view
from dialogd.parts import fenced
from dialogd.protocol.asked import answered_by_default
from dialogd.protocol.certificate import certify, where
from dialogd.protocol.model import USER, Agent, Entry
from dialogd.protocol.result import rejected
from dialogd.protocol.review import findings
from dialogd.protocol.roster import judge, speakers, voters
from dialogd.protocol.rounds import is_sealed_round
from dialogd.protocol.ruled_out import vetoes
from dialogd.protocol.signals import Signal, signals
from dialogd.protocol.state import Dialog, Proposal
from dialogd.protocol.text import one_line

SHOWN = 10  # proposals that whoever has to decide is shown
WORDS = "200 to 400 words"


def now(dialog: Dialog, agent: Agent, drafts: Sequence[str]) -> str:
    """The last section of the prompt for the turn that `agent` owes. A judge is shown no drafts."""
    me = agent.id
    if me == judge(dialog.header):
        return "\n\n".join([f"# Your turn\n\n{_turn(dialog)}", *_judging(dialog)])
    lines = ["# Your turn", f"{_turn(dialog)} {_task(dialog, me)}", *_where(dialog), *_refused(dialog, me)]
    lines += [*_not_answered(dialog, me), *_rejected(dialog, me)]
    lines += [*_to_sign(dialog, me), *_to_vote(dialog, me), *_to_decide(dialog, me), *_to_attack(dialog, me)]
    lines += [*_ruled_out(dialog), *_blocking(dialog, me), *_closing(dialog)]
    lines += [f"Noticed: {signal.text}." for signal in signals(dialog) if _concerns(dialog, signal, me)]
    lines += [f"Written by you, not sent, because the dialog had moved on:\n\n{fenced(draft)}" for draft in drafts]
    return "\n\n".join(lines)


def _turn(dialog: Dialog) -> str:
    state = dialog.state
    left = max(state.limits.max_turns - state.counted - 1, 0)
    words = dialog.header.setup.get("words")
    length = one_line(words, 60) if isinstance(words, str) and words.strip() else WORDS
    more = f"{left} more {'follows' if left == 1 else 'follow'} after it at most"
    return f"This is turn {state.number + 1}; {more}. Write {length}."


def _task(dialog: Dialog, me: str) -> str:
    if _is_sealed(dialog, me):
        return (
            "It is a sealed first answer: nobody sees the others' before all have given theirs. Give your own position"
            " with [CONFIDENCE: …], your reasons, and what would change your mind."
        )
    if not view.reads_all(dialog.header, me):
        return "Say what your own work comes to, and end with your position or the next step."
    return "Answer the last points of the others, and end with your position or the next step."


def _is_sealed(dialog: Dialog, me: str) -> bool:
    debt = dialog.state.debt(me)
    return debt is not None and is_sealed_round(dialog, debt)


def _where(dialog: Dialog) -> Iterator[str]:
    """Round and phase, where there are any to be told."""
    state, rules = dialog.state, dialog.header.rules
    most, number = state.limits.max_rounds, state.rounds + 1
    if most is not None:
        left = max(most - number, 0)
        yield f"Round {number} of {max(most, number)}: {_count(left, 'more round')} at most after it."
    elif rules.phases:
        yield f"Round {number}."
    at = rules.phase(state.rounds)
    if at < 0:
        return
    phase, last = rules.phases[at], at + 1 == len(rules.phases)
    text = f"Phase {at + 1} of {len(rules.phases)}: {phase.name}."
    if phase.description:
        text += f" What comes out of it: {phase.description.rstrip('.')}."
    if last:
        yield f"{text} It is the last one."
    else:
        left = sum(each.rounds for each in rules.phases[: at + 1]) - state.rounds
        ends = "with this round" if left == 1 else f"in {left} rounds"
        yield f"{text} It ends {ends}; then {rules.phases[at + 1].name}."


def _refused(dialog: Dialog, me: str) -> Iterator[str]:
    last = next(_turns_of(dialog, me), None)
    if last is not None and (marks := last.all("REFUSED")):
        said = "\n".join(": ".join(mark.fields) for mark in marks)
        yield f"Of your last turn this did not count:\n\n{fenced(said)}"


def _not_answered(dialog: Dialog, me: str) -> Iterator[str]:
    """What the agent asked the person, where its default was taken."""
    for question in answered_by_default(dialog, me):
        said = fenced(question.default)
        yield f"The person did not answer by {question.by}; your default was taken, and is not their word:\n\n{said}"


def _rejected(dialog: Dialog, me: str) -> Iterator[str]:
    """The result that the person did not take: its whole text in the agent's first turn after that."""
    found = rejected(dialog)
    if found is None:
        return
    yield (
        f"The person rejected the earlier result ({found.outcome} in {where(found.ended_in)}), for the reason in turn"
        f" {found.turn}: whatever was agreed before is not agreed. Say what changes, and why it meets the reason."
    )
    agreed = certify(dialog) if dialog.state.turns_of.get(me, 0) == 0 else None
    if agreed is None or not agreed.text or not view.is_shown(dialog, agreed.stands_in, me):
        return
    if int(agreed.decided_in.partition(".")[0] or 0) <= dialog.state.base:
        yield f"The rejected text, {agreed.title}:\n\n{fenced(agreed.text)}"


def _to_sign(dialog: Dialog, me: str) -> Iterator[str]:
    """The text on the table, where this agent has still to sign it; quoted for who is not shown others' turns."""
    standing, header = dialog.state.standing, dialog.header
    if standing is None or header.rules.verdict != "mutual" or me not in voters(header):
        return
    if standing.signed_by(me) or not view.is_shown(dialog, standing.proposal.entry, me):
        return
    ref = standing.proposal.ref
    how = f"`[AGREE: {ref}]` with your reason, an objection, or a better text of your own."
    if standing.replaced >= 2:
        how = f"it was replaced {standing.replaced} times by now, so sign {ref} as it stands, or object with a reason."
    if header.rules.objections:
        how += " A signature needs `[RESERVATION: your strongest remaining objection]` beside it."
    yield f"The text {ref} waits for your signature: {how}"
    if not view.reads_all(header, me):
        yield f"The text {ref}:\n\n{fenced(standing.proposal.text)}"


def _to_vote(dialog: Dialog, me: str) -> Iterator[str]:
    header = dialog.header
    for poll in dialog.state.polls if me in voters(header) else ():
        proposal = _proposal(dialog, poll.ref)
        if proposal is None or any(ballot.agent == me for ballot in poll.ballots):
            continue
        if not view.is_shown(dialog, proposal.entry, me):
            continue
        line = f"`[VOTE: {poll.ref} approve | your reason]`, or `reject`, or `abstain`."
        if header.rules.objections:
            line += " To approve, name your strongest remaining objection too: `[RESERVATION: …]`."
        yield f"The proposal {poll.ref} waits for your vote: {line}\n\n{fenced(proposal.text)}"


def _to_decide(dialog: Dialog, me: str) -> Iterator[str]:
    """What the others could not decide, when it is this agent's to decide."""
    state, rules = dialog.state, dialog.header.rules
    if not state.escalated or state.escalated != me:
        return
    asked = next((entry for entry in reversed(dialog.turns) if entry.by == USER and not entry.is_struck), None)
    yield "The others could not decide, so you do: `[DECIDE: P1 approve | your reason]`, or `reject`."
    if state.escalation:
        yield f"Why it comes to you:\n\n{fenced(state.escalation)}"
    if asked is not None:
        yield f"The question, of turn {asked.number}:\n\n{fenced(asked.body)}"
    failed = [decision for decision in state.decisions if decision.outcome != "approved"]
    if failed:
        lines = (f"{d.ref} {d.outcome}: {d.method}, {d.evidence} ({d.reason})" for d in failed)
        yield "Decided against, or not at all, so far:\n\n" + fenced("\n".join(lines))
    for proposal in _undecided(dialog):
        yield f"The proposal {proposal.ref}:\n\n{fenced(proposal.text)}"
    if rules.guidelines:
        yield f"Go by this: {rules.guidelines}"


def _undecided(dialog: Dialog) -> list[Proposal]:
    """The last proposals since the dialog began anew that nobody approved."""
    approved = {decision.ref for decision in dialog.state.decisions if decision.outcome == "approved"}
    new = (p for p in dialog.state.proposals if int(p.entry.partition(".")[0]) > dialog.state.base)
    return [p for p in new if p.ref not in approved and p.ref not in dialog.state.vetoed][-SHOWN:]


def _to_attack(dialog: Dialog, me: str) -> Iterator[str]:
    """The red-team turn: what was agreed at once is argued against before it counts."""
    found = re.search(r"P\d+", dialog.state.red_team)
    proposal = _proposal(dialog, found[0]) if found else None
    if proposal is None or not view.is_shown(dialog, proposal.entry, me):
        return
    ref = proposal.ref
    against = (
        "object with `[OBJECTION: …]` if it does not hold" if _may_object(dialog, me) else "say so if it does not hold"
    )
    yield (
        f"Agreement on {ref} came at once, so this turn is to test it. Argue against {ref} as strongly as honesty"
        f" allows: how would it fail, who is hurt, what was not checked? Then {against}, else say why it holds.\n\n"
        f"{fenced(proposal.text)}"
    )


def _may_object(dialog: Dialog, me: str) -> bool:
    return dialog.header.rules.role(me).may_use("OBJECTION")


def _ruled_out(dialog: Dialog) -> Iterator[str]:
    """What the person vetoed: nobody has to try it again."""
    rows = [f"{ref}{reason and f': {reason}'}" for ref, reason in vetoes(dialog).items()][-SHOWN:]
    if rows:
        yield "Ruled out by the person, so that it can't be agreed on any more:\n\n" + fenced("\n".join(rows))


def _blocking(dialog: Dialog, me: str) -> Iterator[str]:
    """The findings of a review that stand in the way of an approval; of the others' only the numbers to some."""
    if not dialog.state.blocking:
        return
    whole = view.reads_all(dialog.header, me)
    rows = []
    for finding in findings(dialog):
        if finding.blocks and view.is_shown(dialog, str(finding.turn), me):
            text = f": {finding.issue}" if whole or finding.by == me else ""
            rows.append(f"{finding.number}, raised by {'you' if finding.by == me else finding.by}{text}")
    if rows:
        yield "Findings that block an approval until who raised them says that they are resolved:\n\n" + fenced(
            "\n".join(rows)
        )


def _closing(dialog: Dialog) -> Iterator[str]:
    if dialog.state.closing:
        yield (
            f"This is the closing round ({one_line(dialog.state.closing, 200)}); the dialog ends after it. Sum up what"
            " there is: what is agreed, what is open, your position and its best reasons. Bring nothing new; sign or"
            " vote where you can. Where you still differ, name the crux and the cheapest experiment that would settle"
            " it."
        )


def _judging(dialog: Dialog) -> Iterator[str]:
    """The positions, in the header's order for the first reading and turned round for the second."""
    ids = [who for who in speakers(dialog.header) if _last_of(dialog, who) is not None]
    is_second = len(dialog.state.judged) % 2 == 1
    yield (
        "Judge: whose position holds? Go by the arguments and the evidence, not by order, length or name. Write"
        " `[DECIDE: ID | your reason]` with the id of the agent whose position holds, or `[DECIDE: none | your"
        " reason]`. The positions, each as its agent left it:"
    )
    for who in reversed(ids) if is_second else ids:
        yield f"## The position of {who}\n\n{fenced(_position(dialog, who))}"


def _position(dialog: Dialog, who: str) -> str:
    """An agent's last turn that says something, and its last proposal or yes where that stands in an earlier one."""
    last = _last_of(dialog, who)
    if last is None:
        return ""
    texts = [last.body, *(str(mark) for mark in last.marks if mark.name not in _NOT_ITS_OWN)]
    for name in ("PROPOSAL", "AGREE"):
        turn = next((e for e in _turns_of(dialog, who) if e.mark(name) is not None), None)
        if turn is not None and turn is not last:
            texts += [f"(turn {turn.number}) {mark}" for mark in turn.all(name)]
    return "\n\n".join(text for text in texts if text.strip())


_NOT_ITS_OWN = frozenset({"DECISION", "REFUSED", "ROUND", "ESCALATE"})


def _last_of(dialog: Dialog, who: str) -> Entry | None:
    """The agent's last turn since the dialog began anew; one that only passes is its last where it has no other."""
    turns = list(_turns_of(dialog, who))
    return next((e for e in turns if e.mark("PASS") is None or e.body.strip()), turns[0] if turns else None)


def _turns_of(dialog: Dialog, who: str) -> Iterator[Entry]:
    """The agent's turns since the dialog began anew, latest first."""
    own = (e for e in reversed(dialog.turns) if e.by == who and not e.is_struck)
    return (e for e in own if e.number > dialog.state.base)


def _proposal(dialog: Dialog, ref: str) -> Proposal | None:
    return next((p for p in reversed(dialog.state.proposals) if p.ref == ref), None)


def _concerns(dialog: Dialog, signal: Signal, me: str) -> bool:
    if not view.reads_all(dialog.header, me):
        return signal.kind == "repetition" and signal.agents == (me,)
    own = ("repetition", "absent_vote")
    return signal.kind not in (*own, "budget") or (signal.kind in own and me in signal.agents)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"

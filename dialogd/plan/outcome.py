"""How a dialog ended, or stands, in one sentence for somebody who has not read it. Pure."""

from __future__ import annotations

from dialogd.plan.reading import listed
from dialogd.plan.value import Agreed, Decided
from dialogd.protocol.convergence import counted, latest_replies
from dialogd.protocol.model import USER
from dialogd.protocol.roster import voters
from dialogd.protocol.state import Dialog, Outcome

METHODS = {
    "mutual": "everybody signed the same text",
    "vote": "by vote",
    "moderator": "by the moderator",
    "decide": "by an agent that may decide",
    "judge": "by the judge",
    "person": "by the person's word",
    "by hand": "written by hand, without everybody's signature",
}
_LIMITS = {
    "MAX_TURNS_REACHED": "the limit of turns or rounds",
    "time": "the time limit",
    "budget": "the budget",
    "size": "the size limit",
}


def headline(dialog: Dialog, agreed: Agreed | None, decisions: tuple[Decided, ...]) -> str:
    """The outcome and why; that of a rehearsal says so first."""
    rehearsed = "REHEARSAL, no model was asked: " if dialog.is_rehearsed else ""
    return f"{rehearsed}{_headline(dialog, agreed, decisions)}"


def _headline(dialog: Dialog, agreed: Agreed | None, decisions: tuple[Decided, ...]) -> str:
    outcome = dialog.state.outcome
    if outcome is None:
        return f"not ended: {_waiting(dialog)}"
    last = next((d for d in reversed(decisions) if str(d.turn) == outcome.entry), None)
    reason = outcome.reason.strip()
    if outcome.name == "CONSENSUS_REACHED":
        return _consensus(dialog, agreed, outcome)
    if outcome.name == "DECIDED":
        return f"decided {_how(last)}" if last is not None else f"decided: {reason}".removesuffix(": ")
    if outcome.name == "DEADLOCK":
        called = f"called by {listed(dialog.state.deadlock)}" if dialog.state.deadlock else ""
        why = _how(last) if last is not None else called or reason
        return f"deadlock, nothing was agreed: {why}".removesuffix(": ")
    if outcome.is_limit:
        decided = "without an agreement" if agreed is None else "after a decision"
        by_words = f"; {IN_WORDS_ALONE}" if agreed is None and _agreed_in_words_alone(dialog) else ""
        return f"ended {decided} by {outcome.why or _LIMITS[outcome.cause or outcome.name]}{by_words}"
    return _stopped(outcome, reason)


IN_WORDS_ALONE = "the agents agreed in words, and nobody wrote a mark that says so: nothing was put up or signed"
_POSITIONS = frozenset(
    {"AGREE", "CONSENSUS_PROPOSED", "DEADLOCK", "OBJECTION", "PROPOSAL", "VOTE", "DECIDE", "REFUSED"}
)


def _agreed_in_words_alone(dialog: Dialog) -> bool:
    """True where every agent's last reply agrees by its phrases, none disagrees, and no mark takes a position."""
    last = latest_replies(dialog)
    counts = [counted(entry) for entry in last]
    marks = {mark.name for entry in dialog.turns if entry.by != USER for mark in entry.marks}
    agree = len(last) > 1 and all(yes and not no for yes, no in counts)
    return agree and not marks & _POSITIONS


def method(name: str) -> str:
    """How something was decided, in words."""
    return METHODS.get(name, f"by {name}" if name else "")


def _how(decision: Decided) -> str:
    what = f"{decision.ref} was {decision.outcome}, {decision.evidence}"
    if not decision.ref:
        chosen = decision.outcome == "approved"
        what = f"the position of {decision.evidence}" if chosen else f"{decision.outcome}, {decision.evidence}"
    return f"{method(decision.method)}: {what}"


def _consensus(dialog: Dialog, agreed: Agreed | None, outcome: Outcome) -> str:
    if agreed is None or agreed.method != "mutual":
        by = "the person" if outcome.by == USER else outcome.by
        return f"consensus, as {by} wrote it; not everybody signed the text"
    who = [f"{signer.agent} in turn {signer.turn}" for signer in agreed.signers]
    left = listed(tuple(one for one in voters(dialog.header) if all(one != s.agent for s in agreed.signers)))
    how = "everybody who was left signed the same text" if left else METHODS["mutual"]
    text = f"consensus: {how}, {agreed.ref or 'as it stands'} ({', '.join(who)})"
    return f"{text}; left out, being absent: {left}" if left else text


def _stopped(outcome: Outcome, reason: str) -> str:
    if outcome.failed:
        return f"broken off by an {reason}"
    by = "the person" if outcome.by == USER else "a daemon"
    return f"stopped by {by} before an agreement" + (f": {reason}" if reason else "")


def _waiting(dialog: Dialog) -> str:
    state = dialog.state
    number = state.number + 1
    agents = tuple(who for who in state.owing if who != USER)
    paused = "it is paused, and " if state.paused else ""
    if state.question:
        who = listed(state.askers) or "the dialog"
        return f"{paused}{who} {'wait' if len(state.askers) > 1 else 'waits'} for the person's answer"
    if agents:
        return f"{paused}turn {number} is owed by {listed(agents)}"
    return f"{paused}it is the person's turn" if USER in state.owing else f"{paused}nobody's turn is named"

"""What a dialog's rules need of a reply, and it lacks: questions that its agent is asked back once."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dialogd.protocol import ballots
from dialogd.protocol.consent import refers_to
from dialogd.protocol.marks import Reply
from dialogd.protocol.model import Mark
from dialogd.protocol.polls import picked, positioned
from dialogd.protocol.reviewing import SEVERITIES, kind_fields, severity
from dialogd.protocol.roster import judge, voters
from dialogd.protocol.rounds import CONTRIBUTIONS
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import one_line


def missing(dialog: Dialog, me: str, reply: Reply) -> Iterator[str]:
    """What this dialog's rules need of the reply, and it lacks: questions for its agent."""
    rules, state = dialog.header.rules, dialog.state
    if me == judge(dialog.header):
        ids = positioned(dialog.header, state)
        if not picked(reply.marks, ids) and not reply.has("QUESTION_FOR_USER"):
            yield "Judge: write [DECIDE: A | reason] with the id of the agent whose position holds, or [DECIDE: none]."
        return
    board = rules.board
    contributes = any(mark.name in CONTRIBUTIONS for mark in reply.marks)
    is_sure = any(ballots.confidence(mark) is not None for mark in reply.marks if mark.name == "CONFIDENCE")
    if board is not None and board.require_confidence and contributes and not is_sure:
        yield "Say how sure you are: [CONFIDENCE: 0.8], from 0 to 1."
    if reply.has("DEADLOCK") and not (reply.has("CRUX") and reply.has("EXPERIMENT")):
        yield "A deadlock names what it turns on, [CRUX: …], and the cheapest test to settle it, [EXPERIMENT: …]."
    if state.is_asked_to_decide(me) and not reply.has("DECIDE") and not reply.has("ESCALATE"):
        yield "It is yours to decide: [DECIDE: P1 approve | reason] or reject; or [ESCALATE: why you cannot]."
    if rules.review and any(_is_unknown(mark) for mark in reply.marks if mark.name == "KIND"):
        yield f"The severity of a finding is one of {', '.join(SEVERITIES)}: [FINDING: blocking | category | file | …]."
    yield from _lost(dialog, me, reply)


def _is_unknown(mark: Mark) -> bool:
    """True for a finding whose severity is no known word."""
    kind, *parts = kind_fields(mark)
    return kind == "FINDING" and severity(parts[0] if parts else "") not in SEVERITIES


def unsigned(dialog: Dialog, me: str, reply: Reply) -> Iterator[str]:
    """The first line of a plain dialog's reply that looks like a signature, or a claim of agreement, and was not read.

    Only while it would change something: for a text on the table that is not signed yet, or one that the reply states.
    """
    standing, against = dialog.state.standing, reply.has("OBJECTION") or reply.has("DEADLOCK")
    is_needed = standing is not None and not standing.signed_by(me)
    names = ("AGREE", "CONSENSUS_REACHED") if is_needed else ("CONSENSUS_REACHED",) if reply.summary else ()
    lines = () if against else ballots.suspects(reply.body, names, reply.marks)
    yield from [_unread(line) for line in lines if not _in_part(line, standing.proposal.ref if standing else "")][:1]


_PART = re.compile(r"\b(?:but|except|however|although|though|apart from|most|mostly|partly)\b|\bP\d+['’]s\b", re.I)


def _in_part(line: str, ref: str) -> bool:
    """True for words that agree to something else than this text, or to a part of it: `I agree with most of P1`."""
    named = re.findall(r"\bP\d+", line.upper())
    return bool(_PART.search(line)) or bool(named and ref and ref not in named)


def _unread(line: str) -> str:
    return (
        f"This could not be read: {one_line(line, 100)!r}. A mark stands alone on its line, [NAME: value], and nothing"
        " around it supposes it, denies it or takes it back."
    )


def _lost(dialog: Dialog, me: str, reply: Reply) -> Iterator[str]:
    """Lines that look like marks which were needed, and could not be read."""
    names = ["VOTE", "DECIDE", "AGREE", "CONSENSUS_REACHED"]
    role = dialog.header.rules.role(me)
    useful = [name for name in names if role.may_use(name)]
    for line in ballots.suspects(reply.body, useful, reply.marks):
        yield _unread(line)
    voting = me in voters(dialog.header) and dialog.state.polls
    agreed = [m for m in reply.marks if m.name == "AGREE" for poll in dialog.state.polls if refers_to(m, poll.ref)]
    if voting and agreed and not reply.has("VOTE"):
        yield "Proposals are voted on here; an [AGREE] is no vote: [VOTE: P1 approve | reason]."

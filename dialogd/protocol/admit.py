"""What of a reply may count: each mark against the role of its agent, the state and the limits of its dialog.

In a plain dialog everything that an agent may write counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dialogd.protocol import ballots, lifecycle
from dialogd.protocol.consent import refers_to
from dialogd.protocol.hashing import digest
from dialogd.protocol.marks import Reply, same_text
from dialogd.protocol.model import Mark
from dialogd.protocol.questions import NAME as QUESTION
from dialogd.protocol.roles import MODERATE, PROPOSE, VOTE
from dialogd.protocol.roster import judge, moderator
from dialogd.protocol.rounds import CONTRIBUTIONS, is_sealed_round
from dialogd.protocol.ruled_out import why_vetoed
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import one_line

MOST_REFUSALS = 20  # marks that are named one by one


@dataclass(frozen=True, slots=True)
class Refusal:
    """A mark that does not count, and why, in words for its agent and for readers."""

    mark: Mark
    why: str

    @property
    def said(self) -> str:
        """The mark as it was meant, in a few words."""
        words = f"{self.mark.name} {self.mark.ref}".strip()
        return one_line(f"{words} {self.mark.value}".strip(), 60).replace("|", "/")

    @property
    def is_shortened(self) -> bool:
        """True when `said` is not all of it."""
        return self.said.endswith("…")

    def as_mark(self) -> Mark:
        """What the daemon writes about it."""
        return Mark("REFUSED", f"{self.said} | {self.why}")


@dataclass(frozen=True, slots=True)
class _Said:
    """One reply, and what its votes and decisions come to together: read once, however many there are."""

    reply: Reply
    votes: Mapping[str, ballots.Choice]
    decisions: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, dialog: Dialog, reply: Reply) -> _Said:
        decisions: dict[str, frozenset[str]] = {}
        for mark in reply.marks:
            choice = ballots.decision(mark) if mark.name == "DECIDE" else None
            if choice is not None:
                decisions[choice.ref] = decisions.get(choice.ref, frozenset()) | {choice.choice}
        return cls(reply, _votes(dialog, reply.marks), decisions)


def admitted(dialog: Dialog, me: str, reply: Reply) -> tuple[Reply, tuple[Refusal, ...]]:
    """The reply with the marks that count, in the form that the file has, and those that do not."""
    refused: list[Refusal] = []
    kept: list[Mark] = []
    is_plain, room = dialog.header.rules.is_plain, _room(dialog, me)
    full, said, length = room, _Said.of(dialog, reply), 0
    for mark in reply.marks:
        length += len(str(mark))
        why = _too_long(dialog, length) or why_vetoed(dialog, mark, reply) or _condition(dialog, mark)
        why = why or _to_nobody(dialog, me, mark)
        why = why or ("" if is_plain else _why_not(dialog, me, mark, said))
        if not why and mark.name in CONTRIBUTIONS:
            why, room = (_full(dialog, me, full), room) if room <= 0 else ("", room - 1)
        if why:
            refused.append(Refusal(mark, why))
        elif mark.name == "VOTE" and not is_plain:
            kept += [choice.mark("VOTE") for choice in _votes(dialog, [mark]).values()]
        else:
            kept.append(mark)
    return replace(reply, marks=tuple(kept)), tuple(refused)


def shown(refused: Sequence[Refusal]) -> tuple[Mark, ...]:
    """The marks that say what did not count; of very many the first, and how many more."""
    marks = tuple(refusal.as_mark() for refusal in refused[:MOST_REFUSALS])
    more = len(refused) - len(marks)
    return (*marks, Mark("REFUSED", f"{more} more marks | {refused[-1].why}")) if more else marks


def left_in_words(refused: Sequence[Refusal]) -> str:
    """What did not count and is too long to be named whole: it stays text, so that nothing is lost."""
    return "\n".join(str(r.mark) for index, r in enumerate(refused) if index >= MOST_REFUSALS or r.is_shortened)


def _too_long(dialog: Dialog, length: int) -> str:
    """Why a mark does not count that comes when the marks before it, and it, are longer than a message may be."""
    most = dialog.state.limits.max_message
    return f"the marks of a turn have at most {most:,} characters together" if length > most else ""


def claims_consensus(reply: Reply) -> bool:
    """True when the reply says that everybody agrees, and nothing against it."""
    return reply.has("CONSENSUS_REACHED") and not (reply.has("OBJECTION") or reply.has("DEADLOCK"))


def is_signature(dialog: Dialog, mark: Mark, reply: Reply) -> bool:
    """True when this mark would sign the text on the table."""
    standing = dialog.state.standing
    if standing is None:
        return False
    if mark.name == "AGREE":
        return refers_to(mark, standing.proposal.ref)
    same = not reply.summary or digest(same_text(reply.summary)) == standing.proposal.sha
    return mark.name == "CONSENSUS_REACHED" and same


def _to_nobody(dialog: Dialog, me: str, mark: Mark) -> str:
    """Why a mark does not count that is for the person, where nobody is at the table; one question may be asked."""
    header, state = dialog.header, dialog.state
    if not header.is_unattended:
        return ""
    if mark.name == QUESTION and me in state.askers:
        return "nobody is at the table, as the last question was told: decide without the person"
    above = moderator(header)
    if mark.name == "ESCALATE" and (above in ("", me) or above in state.absent):
        return "nobody is at the table, and nobody else moderates: decide among yourselves"
    return ""


def _why_not(dialog: Dialog, me: str, mark: Mark, said: _Said) -> str:
    """Why a mark of this agent does not count; "" when it does."""
    header = dialog.header
    role, rules = header.rules.role(me), header.rules
    called = f" ({role.name})" if role.name else ""
    if me == judge(header):
        return lifecycle.marks_refused(dialog, me, mark.name) or _asks_first(me, mark, said)
    if not role.may_use(mark.name):
        return f"{me} may not use {mark.name}{called}"
    if _is_sealed(dialog, me):  # what counts must not depend on what others of the round have written by then
        return _sealed(dialog, me, mark, said)
    if why := lifecycle.marks_refused(dialog, me, mark.name):
        return why
    if mark.name == "RE" and rules.board is not None and not rules.board.allow_references:
        return "this dialog allows no references"
    if mark.name == "TO" and rules.order != "free" and not role.may(MODERATE):
        return f"the order is {rules.order}: nobody hands the word on"
    checks = {"VOTE": _vote, "DECIDE": _decide, "CONSENSUS_REACHED": _consensus, "AGREE": _agree}
    check = checks.get(mark.name)
    return check(dialog, me, mark, said) if check else ""


def _asks_first(me: str, mark: Mark, said: _Said) -> str:
    """Why a judgement does not count that comes with a question to the person."""
    asks = mark.name == "DECIDE" and said.reply.has(QUESTION)
    return f"{me} asks the person first, and judges once they have answered" if asks else ""


def _sealed(dialog: Dialog, me: str, mark: Mark, said: _Said) -> str:
    if mark.name in ("VOTE", "AGREE", "DECIDE"):
        return "first answers are sealed: nothing can be answered yet"
    return _text(dialog, me, said) if mark.name == "CONSENSUS_REACHED" else ""


def _condition(dialog: Dialog, mark: Mark) -> str:
    """Why an AGREE to the text on the table is no signature: it has an if or a but."""
    standing = dialog.state.standing
    if mark.name != "AGREE" or standing is None or not refers_to(mark, standing.proposal.ref):
        return ""
    ref = standing.proposal.ref
    if ref in ballots.agreed(mark):
        return ""
    return f"a signature has no condition: write [AGREE: {ref} | reason], or [OBJECTION: …]"


def _votes(dialog: Dialog, marks: Sequence[Mark]) -> Mapping[str, ballots.Choice]:
    """The clear votes among these marks, by proposal; one without a number is for the only one that is open."""
    open_ = dialog.state.polls
    return ballots.cast(marks, only=open_[0].ref if len(open_) == 1 else "")[0]


def _consensus(dialog: Dialog, me: str, mark: Mark, said: _Said) -> str:
    if is_signature(dialog, mark, said.reply):
        return _agree(dialog, me, mark, said)
    return _text(dialog, me, said)


def _text(dialog: Dialog, me: str, said: _Said) -> str:
    """Why this reply puts no text on the table; who does so under `mutual` signs it by that."""
    rules = dialog.header.rules
    role = rules.role(me)
    if len(said.reply.body) > dialog.state.limits.max_message:
        return "an agreed text is never cut, and this one is too long"
    if not role.may(PROPOSE):
        return f"{me} may not put a text on the table ({role.name or 'no PROPOSE'})"
    signs = rules.verdict == "mutual" and role.may(VOTE) and claims_consensus(said.reply)
    return _without_reservation(dialog, said.reply) if signs else ""


def _agree(dialog: Dialog, me: str, mark: Mark, said: _Said) -> str:
    rules = dialog.header.rules
    if not is_signature(dialog, mark, said.reply) or rules.verdict != "mutual":
        return ""
    if not rules.role(me).may(VOTE):
        return f"{me} may not sign ({rules.role(me).name or 'no VOTE'})"
    return _without_reservation(dialog, said.reply)


def _without_reservation(dialog: Dialog, reply: Reply) -> str:
    lacking = dialog.header.rules.objections and not any(m.value for m in reply.marks if m.name == "RESERVATION")
    return "its strongest remaining objection is not named: [RESERVATION: …]" if lacking else ""


def _vote(dialog: Dialog, _: str, mark: Mark, said: _Said) -> str:
    if dialog.header.rules.verdict != "vote":
        return "nothing is voted on in this dialog"
    meant = _votes(dialog, [mark])
    if not meant or len(meant) < len(ballots.votes(mark)) or any(ref not in said.votes for ref in meant):
        return "unclear: write [VOTE: P1 approve | reason], approve, reject or abstain, once, and nothing against it"
    open_ = [poll.ref for poll in dialog.state.polls]
    closed = [ref for ref in meant if ref not in open_]
    if closed:
        return f"{', '.join(closed)} is not open for votes; open: {', '.join(open_) or 'none'}"
    if any(choice.choice == "approve" for choice in meant.values()):
        return _without_reservation(dialog, said.reply)
    return ""


def _decide(dialog: Dialog, me: str, mark: Mark, said: _Said) -> str:
    choice, state = ballots.decision(mark), dialog.state
    if choice is None or len(said.decisions.get(choice.ref, ())) > 1:
        return "unclear: write [DECIDE: P1 approve | reason] or reject"
    if all(proposal.ref != choice.ref for proposal in state.proposals):
        return f"there is no {choice.ref}"
    known = next((d for d in state.decisions if d.ref == choice.ref and d.is_final), None)
    if known is not None:
        return f"{choice.ref} was decided in {known.entry}"
    if dialog.header.rules.verdict == "vote" and state.escalated != me:
        return f"{choice.ref} is the voters' to decide, until their votes fail"
    return ""


def _room(dialog: Dialog, me: str) -> int:
    """How many contributions this agent may still make now."""
    board, state = dialog.header.rules.board, dialog.state
    if board is None:
        return 1_000_000
    if _is_sealed(dialog, me):
        return board.max_contributions_per_round
    own = board.max_contributions_per_round - state.in_round.get(me, 0)
    return min(own, board.blackboard_capacity - state.contributed)


def _is_sealed(dialog: Dialog, me: str) -> bool:
    debt = dialog.state.debt(me)
    return debt is not None and is_sealed_round(dialog, debt)


def _full(dialog: Dialog, me: str, room: int) -> str:
    board = dialog.header.rules.board
    if board is None:
        return ""
    if dialog.state.contributed + max(room, 0) >= board.blackboard_capacity:
        return f"the blackboard is full: {board.blackboard_capacity} contributions"
    return f"{me} has made {board.max_contributions_per_round} contributions in this round, the most there may be"

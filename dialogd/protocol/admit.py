"""What of a reply may count: each mark against the role of its agent, the state and the limits of its dialog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dialogd.protocol import lifecycle, marks
from dialogd.protocol.header import judge, moderator, speakers, voters
from dialogd.protocol.marks import MARKS, Reply, Who, contributes, same_text
from dialogd.protocol.model import USER, Mark, digest
from dialogd.protocol.order import is_sealed_round
from dialogd.protocol.questions import NAME as QUESTION
from dialogd.protocol.review import level
from dialogd.protocol.rules import CONTRIBUTIONS, MODERATE, OWN_KINDS, PROPOSE, VOTE
from dialogd.protocol.state import Dialog, Standing
from dialogd.protocol.text import one_line
from dialogd.protocol.voting import positioned
from dialogd.protocol.withdrawn import why_vetoed

MOST_REFUSALS = 20  # marks that are named one by one


@dataclass(frozen=True, slots=True)
class Refusal:
    """A mark that does not count, and why, in words for readers. `stays` is True where it stands in the body anyway."""

    mark: Mark
    why: str
    stays: bool = False

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


def admitted(dialog: Dialog, me: str, reply: Reply) -> tuple[Reply, tuple[Refusal, ...]]:
    """The reply with the marks that count, and those that do not."""
    refused = [Refusal(mark, _strange(mark), stays=True) for mark in reply.strange]
    kept: list[Mark] = []
    room = full = _room(dialog, me)
    length = 0
    for mark in reply.marks:
        length += len(str(mark))
        why = _too_long(dialog, length) or why_vetoed(dialog, mark, reply) or _to_nobody(dialog, me, mark)
        why = why or _why_not(dialog, me, mark, reply)
        if not why and contributes(mark):
            why, room = (_full(dialog, me, full), room) if room <= 0 else ("", room - 1)
        if why:
            refused.append(Refusal(mark, why))
        else:
            kept.append(mark)
    return replace(reply, marks=tuple(kept), strange=()), tuple(refused)


def shown(refused: Sequence[Refusal]) -> tuple[Mark, ...]:
    """The marks that say what did not count; of very many the first, and how many more."""
    marks = tuple(refusal.as_mark() for refusal in refused[:MOST_REFUSALS])
    more = len(refused) - len(marks)
    return (*marks, Mark("REFUSED", f"{more} more marks | {refused[-1].why}")) if more else marks


def left_in_words(refused: Sequence[Refusal]) -> str:
    """What did not count and is too long to be named whole: it stays text, so that nothing is lost."""
    return "\n".join(
        str(r.mark) for index, r in enumerate(refused) if not r.stays and (index >= MOST_REFUSALS or r.is_shortened)
    )


def _strange(mark: Mark) -> str:
    """Why a bracketed name that an agent cannot use does not count."""
    if mark.name not in MARKS:
        return f"no mark is called {mark.name}"
    return f"{'daemons' if Who.DAEMON in MARKS[mark.name].who else 'the person'} alone may write that"


def _too_long(dialog: Dialog, length: int) -> str:
    """Why a mark does not count that comes when the marks before it, and it, are longer than a message may be."""
    most = dialog.state.limits.max_message
    return f"the marks of a turn have at most {most:,} characters together" if length > most else ""


def claims_consensus(reply: Reply) -> bool:
    """True when the reply says that everybody agrees, and nothing against it."""
    return reply.has("CONSENSUS_REACHED") and not (reply.has("OBJECTION") or reply.has("DEADLOCK"))


def on_the_table(dialog: Dialog, me: str) -> Standing | None:
    """The text that agent `me` signs without naming it: the one that lay there when its turn was asked for."""
    standing, debt = dialog.state.standing, dialog.state.debt(me)
    if standing is None or debt is None:
        return standing
    return standing if _at(standing.proposal.entry) <= _at(debt.re) else None


def _at(entry: str) -> tuple[int, int]:
    number, _, note = entry.partition(".")
    return (int(number), int(note or 0)) if number.isdecimal() and (note or "0").isdecimal() else (0, 0)


def signed(dialog: Dialog, me: str, mark: Mark, reply: Reply) -> str:
    """The number of the text on the table that this mark would sign; "" where it signs none."""
    standing = dialog.state.standing if mark.name == "AGREE" else on_the_table(dialog, me)
    if standing is None:
        return ""
    ref = standing.proposal.ref
    if mark.name == "AGREE":
        return ref if ref in marks.agreed(mark) else ""
    same = not reply.summary or digest(same_text(reply.summary)) == standing.proposal.sha
    return ref if mark.name == "CONSENSUS_REACHED" and same else ""


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


def _why_not(dialog: Dialog, me: str, mark: Mark, reply: Reply) -> str:
    """Why a mark of this agent does not count; "" when it does."""
    header = dialog.header
    role, rules = header.rules.role(me), header.rules
    called = f" ({role.name})" if role.name else ""
    if me == judge(header):
        return lifecycle.marks_refused(dialog, me, mark.name) or _judges(dialog, me, mark, reply)
    if not (role.may_use(mark.name) if mark.name in MARKS else role.may(*OWN_KINDS)):
        return f"{me} may not use {mark.name}{called}"
    if is_first_answer(dialog, me) and mark.name in ("VOTE", "AGREE", "DECIDE"):
        # What counts must not depend on what others of the round have written by then.
        return "first answers are sealed: nothing can be answered yet"
    if not is_first_answer(dialog, me) and (why := lifecycle.marks_refused(dialog, me, mark.name)):
        return why
    if mark.name == "RE" and rules.board is not None and not rules.board.allow_references:
        return "this dialog allows no references"
    checks = {
        "VOTE": _vote,
        "DECIDE": _decide,
        "CONSENSUS_REACHED": _consensus,
        "AGREE": _agree,
        "TO": _to,
        "CONFIDENCE": _confidence,
    }
    check = checks.get(mark.name)
    if check is not None:
        return check(dialog, me, mark, reply)
    return _contribution(dialog, mark, reply) if contributes(mark) else ""


def _judges(dialog: Dialog, me: str, mark: Mark, reply: Reply) -> str:
    """Why a mark of the judge's does not count."""
    if mark.name != "DECIDE":
        return ""
    if reply.has(QUESTION):
        return f"{me} asks the person first, and judges once they have answered"
    ids = positioned(dialog.header, dialog.state)
    return "" if marks.pick(mark, ids) else f"it names none of {', '.join((*ids, 'none'))}"


def _contribution(dialog: Dialog, mark: Mark, reply: Reply) -> str:
    """Why a contribution does not count: it lacks what its kind, or this dialog, asks for."""
    rules = dialog.header.rules
    kind = CONTRIBUTIONS.get(mark.name) or rules.kinds.get(mark.name)
    if kind is not None and kind.levels and level(mark) not in kind.levels:
        return f"its {kind.fields[0]} is none of {', '.join(kind.levels)}"
    sure = any(marks.confidence(m) is not None for m in reply.marks if m.name == "CONFIDENCE")
    if rules.board is not None and rules.board.require_confidence and not sure:
        return "this dialog asks how sure you are: [CONFIDENCE: 0.8] beside it"
    return ""


def _confidence(_: Dialog, __: str, mark: Mark, ___: Reply) -> str:
    return "" if marks.confidence(mark) is not None else "it is no number from 0 to 1"


def _to(dialog: Dialog, me: str, mark: Mark, _: Reply) -> str:
    rules = dialog.header.rules
    ids = [USER, *speakers(dialog.header)]
    if not marks.to(mark, ids):
        return f"nobody here is called that; there are {', '.join(ids)}"
    if rules.order != "free" and not rules.role(me).may(MODERATE):
        return f"the order is {rules.order}: nobody hands the word on"
    return ""


def _consensus(dialog: Dialog, me: str, mark: Mark, reply: Reply) -> str:
    if signed(dialog, me, mark, reply):
        return _signs(dialog, me, reply)
    if not reply.summary:
        return "there is no text on the table, and no `## Consensus Summary` above it: nothing to agree on"
    rules = dialog.header.rules
    role = rules.role(me)
    if len(reply.body) > dialog.state.limits.max_message:
        return "an agreed text is never cut, and this one is too long"
    if not role.may(PROPOSE):
        return f"{me} may not put a text on the table ({role.name or 'no PROPOSE'})"
    signs = rules.verdict == "mutual" and role.may(VOTE) and claims_consensus(reply)
    return _without_reservation(dialog, reply) if signs else ""


def _agree(dialog: Dialog, me: str, mark: Mark, reply: Reply) -> str:
    known = {proposal.ref for proposal in dialog.state.proposals}
    strange = [ref for ref in marks.agreed(mark) if ref not in known]
    if strange:
        return f"there is no {', '.join(strange)}"
    return _signs(dialog, me, reply) if signed(dialog, me, mark, reply) else ""


def _signs(dialog: Dialog, me: str, reply: Reply) -> str:
    """Why agent `me` does not sign the text on the table."""
    rules = dialog.header.rules
    if rules.verdict != "mutual":
        return ""
    if not rules.role(me).may(VOTE):
        return f"{me} may not sign ({rules.role(me).name or 'no VOTE'})"
    return _without_reservation(dialog, reply)


def lacks_reservation(dialog: Dialog, reply: Reply) -> bool:
    """True for a reply whose yes must name the strongest objection left, and that does not."""
    return dialog.header.rules.objections and not any(m.value for m in reply.marks if m.name == "RESERVATION")


def _without_reservation(dialog: Dialog, reply: Reply) -> str:
    lacking = lacks_reservation(dialog, reply)
    return "its strongest remaining objection is not named: [RESERVATION: …]" if lacking else ""


def _vote(dialog: Dialog, me: str, mark: Mark, reply: Reply) -> str:
    if dialog.header.rules.verdict != "vote":
        return "nothing is voted on in this dialog"
    choice = marks.vote(mark)
    open_ = [poll.ref for poll in dialog.state.polls]
    if choice is None or choice.ref not in open_:
        ref = choice.ref if choice else "it"
        return f"{ref} is not open for votes; open: {', '.join(open_) or 'none'}"
    return _without_reservation(dialog, reply) if choice.choice == marks.APPROVE else ""


def _decide(dialog: Dialog, me: str, mark: Mark, _: Reply) -> str:
    choice, state = marks.decision(mark), dialog.state
    if choice is None:
        return "it is not of the form [DECIDE: P1 approve | reason], or reject"
    if all(proposal.ref != choice.ref for proposal in state.proposals):
        return f"there is no {choice.ref}"
    known = next((d for d in state.decisions if d.ref == choice.ref and d.is_final), None)
    if known is not None:
        return f"{choice.ref} was decided in {known.entry}"
    if dialog.header.rules.verdict == "vote" and state.escalated != me:
        return f"{choice.ref} is the voters' to decide, until their votes fail"
    return ""


def may_vote(dialog: Dialog, me: str) -> bool:
    """True for an agent whose vote counts, while something is open."""
    return dialog.header.rules.verdict == "vote" and me in voters(dialog.header) and bool(dialog.state.polls)


def _room(dialog: Dialog, me: str) -> int:
    """How many contributions this agent may still make now."""
    board, state = dialog.header.rules.board, dialog.state
    if board is None:
        return 1_000_000
    if is_first_answer(dialog, me):
        return board.max_contributions_per_round
    own = board.max_contributions_per_round - state.in_round.get(me, 0)
    return min(own, board.blackboard_capacity - state.contributed)


def is_first_answer(dialog: Dialog, me: str) -> bool:
    """True while agent `me` owes a sealed first answer."""
    debt = dialog.state.debt(me)
    return debt is not None and is_sealed_round(dialog, debt)


def _full(dialog: Dialog, me: str, room: int) -> str:
    board = dialog.header.rules.board
    if board is None:
        return ""
    if dialog.state.contributed + max(room, 0) >= board.blackboard_capacity:
        return f"the blackboard is full: {board.blackboard_capacity} contributions"
    return f"{me} has made {board.max_contributions_per_round} contributions in this round, the most there may be"

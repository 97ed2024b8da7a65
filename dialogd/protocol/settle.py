"""What is decided once an agent's turn stands: by signatures, votes, the moderator, or the judge.

Every decision is written as a mark: `[DECISION P1: outcome | method | evidence | reason]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dialogd.protocol import ballots
from dialogd.protocol.consent import signing
from dialogd.protocol.model import ANY, USER, Header, Mark
from dialogd.protocol.onward import awaited, limit_reached
from dialogd.protocol.polls import Tally, is_closed, tally
from dialogd.protocol.roster import judge, voters, weight
from dialogd.protocol.state import Dialog, Poll, Standing, State

_ENDS = {"mutual": ("mutual",), "vote": ("vote", "moderator"), "moderator": ("moderator",), "judge": ("judge",)}


def settled(dialog: Dialog, me: str, after: State, marks: Sequence[Mark], *, is_last: bool = False) -> list[Mark]:
    """The marks that the daemon adds because of what `marks` of `me` come to; `after` is the state with them.

    `is_last` says that nobody speaks after them, for a reason that `after` does not tell.
    """
    header, debt = dialog.header, dialog.state.debt(me)
    if header.rules.sealed and debt is not None and debt.is_ready:
        return []  # first answers decide nothing: they were given without the others'
    if me == judge(header):
        return list(_judged(dialog.state, after, me))
    found = list(_deciders(dialog, me, after, marks))
    match header.rules.verdict:
        case "mutual":
            found += _signed(dialog, me, after, marks)
        case "vote":
            found += counted(dialog, me, after, is_last=is_last)
    return found


def end_of(header: Header, found: Sequence[Mark]) -> tuple[str, str]:
    """The outcome that these decisions end the dialog with, by its rule, and why; "" twice when they do not."""
    rules = header.rules
    for mark in found:
        outcome, method, evidence = (*mark.fields, "", "", "")[:3]
        if mark.name != "DECISION" or method not in _ENDS[rules.verdict]:
            continue
        if outcome == "undecided":
            return "DEADLOCK", f"undecided: {evidence}"
        if outcome == "approved" and (rules.board is None or rules.board.terminate_on_consensus):
            if method == "mutual":
                return "CONSENSUS_REACHED", f"consensus on {mark.ref}, {evidence}"
            return "DECIDED", f"{mark.ref or evidence.split(';')[0]} {outcome} by {method}: {evidence}"
    return "", ""


def as_it_stands(dialog: Dialog) -> list[Mark]:
    """What the votes or signatures in hand come to where a limit ends the dialog and no turn follows."""
    match dialog.header.rules.verdict:
        case _ if dialog.state.red_team:
            return []  # nobody has argued against it yet
        case "mutual":
            return list(_signed(dialog, "", dialog.state, ()))
        case "vote":
            return list(counted(dialog, "", dialog.state, is_last=True))
        case _:
            return []


def without(dialog: Dialog, agent: str, after: State) -> list[Mark]:
    """What is decided now that `agent` is passed over; `after` is the state in which it is."""
    match dialog.header.rules.verdict:
        case "mutual":
            return list(_signed(dialog, "", after, ()))
        case "vote":
            return list(counted(dialog, agent, after))
        case _:
            return []


def taken(dialog: Dialog) -> list[Mark]:
    """The decision that the person made by taking the text on the table."""
    standing = dialog.state.standing
    if not dialog.state.approved or standing is None:
        return []
    why = "approved | person | {} | the person took the text as it stands"
    return [Mark("DECISION", why.format(_signatures(dialog.header, standing)), standing.proposal.ref)]


def _signatures(header: Header, standing: Standing) -> str:
    """Who signed a text in which turn, and which voters did not."""
    signers, able = dict(standing.signers), voters(header)
    signed = ", ".join(f"{who} in turn {turn}" for who, turn in signers.items() if who in able)
    left = ", ".join(who for who in able if who not in signers)
    return f"signed by {signed}" + (f"; left out, being absent: {left}" if left else "")


def _signed(dialog: Dialog, me: str, after: State, marks: Sequence[Mark]) -> Iterator[Mark]:
    """The text on the table, once everybody who may sign has signed it."""
    standing, names = after.standing, {mark.name for mark in marks}
    able = set(signing(dialog.header, after))
    if standing is None or len(able) < 2 or names & {"OBJECTION", "DEADLOCK", "CONSENSUS_PROPOSED"}:
        return
    signers, ref = dict(standing.signers), standing.proposal.ref
    signs = any(ref in ballots.agreed(mark) for mark in marks if mark.name == "AGREE")
    # Who left, or is left out, may have been the last to sign.
    is_plain = dialog.header.rules.is_plain and not (after.hand.left or after.absent)
    if not able <= set(signers) or not (signs or not is_plain):
        return
    held = _held(dialog, after, ref)
    if held is not None:
        yield from held if signs else ()
        return
    everybody = "everybody" if set(voters(dialog.header)) <= set(signers) else "everybody who is left"
    why = f"{_signatures(dialog.header, standing)} | {everybody} signed this very text"
    yield Mark("DECISION", f"approved | mutual | {why}", ref)


def _held(dialog: Dialog, after: State, ref: str, *, is_last: bool = False) -> tuple[Mark, ...] | None:
    """What keeps an approval from counting yet; None when nothing does."""
    rules, state = dialog.header.rules, dialog.state
    if rules.review and after.blocking:
        open_ = ", ".join(str(number) for number, _ in after.blocking)
        return (Mark("REFUSED", f"approval of {ref} | findings that block are open: {open_}"),)
    if rules.board is not None and after.contributed < rules.board.minimum_contributions:
        why = f"an end needs {rules.board.minimum_contributions} contributions, there are {after.contributed}"
        return (Mark("REFUSED", f"approval of {ref} | {why}"),)
    first = 2 if rules.sealed else 1  # turns of each agent in the very first exchange
    at_once = bool(after.turns_of) and max(after.turns_of.values()) <= first
    if rules.red_team and not (after.is_tested or is_last) and (at_once or state.red_team):  # a pass argues nothing
        return (Mark("ROUND", f"red team | {ref}"),)
    return None


def counted(dialog: Dialog, me: str, after: State, *, is_last: bool = False) -> Iterator[Mark]:
    """The votes that are over: at most one is won, by the rule `winner`; when enough have failed the moderator decides.

    A round is heard to its end first: what the others of it say is on its way, and may be the dissent worth reading.
    """
    header = dialog.header
    is_last = is_last or bool(limit_reached(dialog.state, after, me, header)[0])
    if not is_last and awaited(header, after):
        return  # the person, or the end, comes before a count that only absence decides
    if not is_last and any(debt.agent not in (me, USER, ANY) for debt in after.debts):
        return
    over = [p for p in after.polls if is_closed(header, p, after.absent) or (is_last and p.ballots)]
    counts = {poll.ref: tally(header, poll) for poll in over}
    held = {ref: _held(dialog, after, ref, is_last=is_last) for ref, count in counts.items() if count.is_approved}
    free = [ref for ref, what in held.items() if what is None]
    won = _winner(header, {ref: counts[ref] for ref in free})
    known = {poll.ref for poll in dialog.state.polls if is_closed(header, poll, dialog.state.absent)}
    failed = False
    for poll in over:
        count = counts[poll.ref]
        if poll.ref == won:
            yield _of_vote(header, poll.ref, "approved", count.evidence, _why_approved(header, won, free))
            return
        if count.is_approved:
            yield from (held[poll.ref] or ()) if poll.ref not in known else ()
            continue
        failed = True
        yield _of_vote(header, poll.ref, "rejected", count.evidence, _why_rejected(header, poll, count))
    enough = header.rules.escalation_threshold
    if failed and after.failed_votes + 1 >= enough and not is_last:
        yield Mark("ESCALATE", f"{enough} vote{'' if enough == 1 else 's'} failed")


def _winner(header: Header, approved: Mapping[str, Tally]) -> str:
    """Which of these, in the order in which they were proposed, wins by the dialog's rule; "" where there is none."""
    if header.rules.winner == "first":
        return next(iter(approved), "")
    return max(approved, key=lambda ref: weight(header, approved[ref].approve), default="")  # the earlier of equals


def _why_approved(header: Header, won: str, approved: Sequence[str]) -> str:
    why = f"at least {header.rules.threshold:.0%} for it"
    others = [ref for ref in approved if ref != won]
    rule = "the first wins" if header.rules.winner == "first" else "the most for it wins, of equals the first"
    return f"{why}, and for {', '.join(others)}: {rule}" if others else why


def _why_rejected(header: Header, poll: Poll, count: Tally) -> str:
    share = f"{header.rules.threshold:.0%}"
    if any(who not in poll.heard for who in count.absent):
        return f"the missing votes cannot bring it to {share} by two agents"
    if not count.is_quorate:
        return "fewer votes than the quorum"
    return f"less than {share} for it" if len(count.approve) != 1 or count.reject else "one agent alone is for it"


def _of_vote(header: Header, ref: str, outcome: str, evidence: str, reason: str) -> Mark:
    return Mark("DECISION", f"{outcome} | vote | {evidence} | {reason}", ref)


def _deciders(dialog: Dialog, me: str, after: State, marks: Sequence[Mark]) -> Iterator[Mark]:
    """What this agent decides by itself, as its role allows; the first decision on a proposal counts."""
    rules, state = dialog.header.rules, dialog.state
    may_end = rules.verdict == "moderator" or (rules.verdict == "vote" and state.escalated == me)
    done: set[str] = set()
    for mark in marks:
        choice = ballots.decision(mark) if mark.name == "DECIDE" else None
        if choice is None or choice.ref in done or not rules.role(me).may("DECIDE", "MODERATE"):
            continue
        done.add(choice.ref)
        counts = may_end or (rules.review and after.blocking)
        held = _held(dialog, after, choice.ref, is_last=True) if counts and choice.choice == "approve" else None
        if held is not None:
            yield from held
            continue
        outcome = "approved" if choice.choice == "approve" else "rejected"
        method = "moderator" if may_end else "decide"
        evidence = f"by {me} in turn {state.number + 1}"
        yield Mark("DECISION", f"{outcome} | {method} | {evidence} | {choice.reason or 'no reason given'}", choice.ref)


def _judged(before: State, after: State, me: str) -> Iterator[Mark]:
    """The judge's decision, once it has read the positions in both orders."""
    if len(after.judged) < 2:
        return
    (first, _), (second, reason) = after.judged[-2:]
    turns = f"read in both orders by {me} in turns {before.number} and {before.number + 1}"
    if first == second and first not in ("", "none"):
        turn = after.spoke_at.get(first, 0)
        yield Mark("DECISION", f"approved | judge | {first} in turn {turn}; {turns} | {reason or 'no reason given'}")
    else:
        said = ", then ".join(answer or "nothing clear" for answer in (first, second))
        why = "its answer flipped with the order" if first != second else "no position held"
        yield Mark("DECISION", f"undecided | judge | {said}; {turns} | {why}")

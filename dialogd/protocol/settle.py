"""What an agent's turn leads to: a decision, an end, or the next turn. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dialogd.protocol.marks import agreed, decision
from dialogd.protocol.model import ANY, USER, Header, Mark
from dialogd.protocol.order import following
from dialogd.protocol.questions import without_fields
from dialogd.protocol.rules import DECIDE, MODERATE
from dialogd.protocol.state import SINCE, Dialog, Poll, Standing, State
from dialogd.protocol.units import many
from dialogd.protocol.voting import Tally, can_pass, is_closed, signing, tally


@dataclass(frozen=True, slots=True)
class Step:
    """What is written under an entry: `marks`, and `turn`, or None when it ends with `outcome` for the reason `why`."""

    marks: tuple[Mark, ...] = ()
    turn: tuple[str, ...] | None = None
    outcome: str = ""
    why: str = ""


def limit_reached(before: State, after: State, me: str, header: Header) -> tuple[str, str]:
    """The outcome of the limit that `after` has reached, and the limit in words; "" twice while there is room."""
    limits = after.limits
    if after.counted >= limits.max_turns:
        return "MAX_TURNS_REACHED", turns_limit(after)
    is_last_resort = me in (before.escalated, header.judge) and not _rest(after, me)
    if after.rounds == before.rounds and not is_last_resort:
        return "", ""
    if after.closing:
        return "STOPPED", f"time: {after.closing}"
    if limits.max_rounds is not None and after.rounds >= limits.max_rounds:
        return "MAX_TURNS_REACHED", f"the limit of {many(limits.max_rounds, 'round')}"
    return "", ""


def awaited(header: Header, state: State) -> tuple[str, ...]:
    """The absent agents without which nothing can be decided any more: whoever goes on only pays."""
    rules, absent, one = header.rules, state.absent, header.judge
    able = header.voters
    here = [who for who in able if who not in absent]
    if not absent:
        return ()
    if one:
        return (one,) if one in absent else ()
    if rules.verdict == "moderator":
        able = tuple(agent.id for agent in header.agents if rules.role(agent.id).may(DECIDE, MODERATE))
        return able if able and set(able) <= absent else ()
    if rules.verdict == "vote":
        above = header.moderator
        votes = ({*here, *(ballot.agent for ballot in poll.ballots)} for poll in state.polls)
        is_open = any(can_pass(header, agents) for agents in (here, *votes)) or (above and above not in absent)
        return () if is_open else tuple(who for who in able if who in absent)
    if state.standing is not None:
        missing = tuple(who for who in able if not state.standing.signed_by(who))
        return missing if len(able) > 1 and set(missing) <= absent else ()
    return tuple(who for who in able if who in absent) if len(here) < 2 and header.is_unattended else ()


def is_takeable(header: Header, state: State) -> bool:
    """True where the person can take the text on the table before the end: all have signed it but who is absent."""
    if state.outcome is not None or state.standing is None or header.rules.verdict != "mutual":
        return False
    return all(state.standing.signed_by(who) or who in state.absent for who in header.voters)


def ways_out(header: Header, state: State) -> str:
    """What the person can do where only absent agents are missing, in words; "" where they are not."""
    names = awaited(header, state)
    if not names:
        return ""
    standing = state.standing if is_takeable(header, state) else None
    signed = ""
    if standing is not None:
        signed = f"{standing.proposal.ref} is signed by {', '.join(who for who, _ in standing.signers)}; "
    are = "are" if len(names) > 1 else "is"
    ways = [f"`retry {who}` asks it again, `leave {who}` goes on without it" for who in names]
    if standing is not None:
        ways.append(f"`approve` takes {standing.proposal.ref} as it stands")
    return f"{signed}{', '.join(names)} {are} absent, and nothing can be decided without: {', '.join(ways)}"


def turns_limit(state: State) -> str:
    """The limit of turns in words; they are counted anew after a reopening."""
    return f"the limit of {many(state.limits.max_turns, 'turn')}" + (f" {SINCE}" if state.base else "")


def onward(header: Header, before: State, after: State, me: str, *, is_decided: bool = False) -> Step:
    """How the dialog goes on after an entry of `me` that does not end it by its rule.

    `before` and `after` are the states around the entry; `after` holds no debt that the entry itself opens.
    `is_decided` says that the entry holds a decision.
    """
    outcome, why = limit_reached(before, after, me, header)
    rest = tuple(who for who in _rest(after, me) if who != USER or not header.is_unattended)
    if outcome and not rest and not _is_hard(after):
        last = _last_resort(header, before, after, outcome, why)
        if last is not None:
            return last
    if outcome:
        return Step(outcome=outcome, why=why)
    marks = tuple(_phase(header, before, after))
    above = () if is_decided else tuple(_passed_up(before, after, me))
    if header.is_unattended:
        return Step(marks, rest) if rest else _alone(header, before, after, me, marks, above)
    marks = (*marks, *above)
    return Step(marks, rest) if rest else _next(header, after, me, marks)


def _rest(after: State, me: str) -> tuple[str, ...]:
    """Who else still owes a turn."""
    return tuple(d.agent for d in after.debts if d.agent not in (me, ANY))


def _is_hard(after: State) -> bool:
    """True at the limit of turns, which nothing goes beyond."""
    return after.counted >= after.limits.max_turns


def _last_resort(header: Header, before: State, after: State, outcome: str, why: str) -> Step | None:
    """Who has the last word where this dialog's rule gives it to one: the judge, the moderator, or the person."""
    board, one = header.rules.board, header.judge
    if one and one not in after.absent and len(after.judged) < 2:
        waits = one in after.askers and not header.is_unattended
        return Step((), (USER,) if waits else (one,))
    above = header.moderator if header.rules.verdict == "moderator" else ""
    if above and not before.escalated and above not in after.absent and not _has_decided(after):
        return Step((Mark("ESCALATE", why),), (above,))
    if header.is_unattended:
        return None
    if board is not None and not board.terminate_on_rounds and outcome == "MAX_TURNS_REACHED":
        return Step((Mark("QUESTION_FOR_USER", f"{why} is reached: how is it to go on?"),), (USER,))
    return None


def _has_decided(after: State) -> bool:
    """True when something was approved since the dialog was last opened."""
    found = (decision.entry for decision in after.decisions if decision.outcome == "approved")
    return any(int(entry.partition(".")[0] or 0) > after.base for entry in found)


def _phase(header: Header, before: State, after: State) -> Iterator[Mark]:
    """The phase that begins with what follows."""
    rules = header.rules
    now = rules.phase(after.rounds)
    if now > rules.phase(before.rounds) >= 0:
        yield Mark("ROUND", f"phase | {rules.phases[now].name}")


def _passed_up(before: State, after: State, me: str) -> Iterator[Mark]:
    """What the moderator was to decide, and did not, is the person's."""
    if me and before.escalated == me and not after.escalated:
        yield Mark("ESCALATE", f"{me} did not decide: {before.escalation}")
        yield Mark("QUESTION_FOR_USER", f"{me} did not decide; please do: {without_fields(before.escalation)}")


def _next(header: Header, after: State, me: str, marks: tuple[Mark, ...]) -> Step:
    """Whose turn it is once nobody owes one."""
    asked = any(mark.name == "QUESTION_FOR_USER" for mark in marks)
    if after.question or asked or after.step:
        return Step(marks, (USER,))
    if after.escalated == USER:
        return Step((*marks, Mark("QUESTION_FOR_USER", without_fields(after.escalation) or "please decide")), (USER,))
    if after.escalated:
        return Step(marks, (after.escalated,))
    if after.is_quiet and not header.rules.is_plain:
        question = Mark("QUESTION_FOR_USER", "everybody passed: close the dialog, or say what is missing")
        return Step((*marks, question), (USER,))
    if ways := ways_out(header, after):
        return Step((*marks, Mark("QUESTION_FOR_USER", ways)), (USER,))
    return Step(marks, following(header, after, me))


def _alone(
    header: Header, before: State, after: State, me: str, marks: tuple[Mark, ...], above: tuple[Mark, ...]
) -> Step:
    """How it goes on with nobody at the table: what would wait for the person goes back, or ends the dialog.

    `above` is what the moderator leaves to the person.
    """
    back = tuple(who for who in after.askers if who not in {*after.told, *after.absent} and header.agent(who))
    if back:
        return Step(marks, back)
    if after.escalated not in ("", USER):
        return Step(marks, (after.escalated,))
    outcome, why = _end_alone(header, before, after, above)
    if outcome:
        return _last_resort(header, before, after, outcome, why) or Step(marks, outcome=outcome, why=why)
    return Step(marks, following(header, after, me))


def _end_alone(header: Header, before: State, after: State, above: tuple[Mark, ...]) -> tuple[str, str]:
    """The outcome where only the person could help, and why; "" twice while the agents can go on."""
    everybody = header.speakers
    here = [who for who in everybody if who not in after.absent]
    if above:
        return "DEADLOCK", without_fields(above[0].value)
    if after.escalated == USER:
        return "DEADLOCK", f"nobody could decide: {without_fields(after.escalation)}"
    if len(here) < 2 and not (len(everybody) == 1 and here and after.limits.max_rounds is not None):
        absent = ", ".join(who for who in everybody if who in after.absent)
        why = f"absent: {absent}" if absent else "nobody else takes part"
        return "STOPPED", f"error: fewer than two agents are left; {why}"
    if names := ", ".join(awaited(header, after)):
        return "STOPPED", f"error: nothing can be decided without {names}; absent: {', '.join(sorted(after.absent))}"
    if after.is_quiet:
        return "DEADLOCK", "everybody passed"
    return "", ""


# -- What is decided once an agent's turn stands ----------------------------------------------------------------------

_ENDS = {"mutual": ("mutual",), "vote": ("vote", "moderator"), "moderator": ("moderator",), "judge": ("judge",)}


def settled(dialog: Dialog, me: str, after: State, marks: Sequence[Mark], *, is_last: bool = False) -> list[Mark]:
    """The marks that the daemon adds because of what `marks` of `me` come to; `after` is the state with them.

    `is_last` says that nobody speaks after them, for a reason that `after` does not tell.
    """
    header, debt = dialog.header, dialog.state.debt(me)
    if header.rules.sealed and debt is not None and debt.is_ready:
        return []  # first answers decide nothing: they were given without the others'
    if me == header.judge:
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
    signers, able = dict(standing.signers), header.voters
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
    signs = any(ref in agreed(mark) for mark in marks if mark.name == "AGREE")
    # Who left, or is left out, may have been the last to sign.
    is_plain = dialog.header.rules.is_plain and not (after.hand.left or after.absent)
    if not able <= set(signers) or not (signs or not is_plain):
        return
    held = _held(dialog, after, ref)
    if held is not None:
        yield from held if signs else ()
        return
    everybody = "everybody" if set(dialog.header.voters) <= set(signers) else "everybody who is left"
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
    # Of equals the earlier one.
    return max(approved, key=lambda ref: header.rules.weight(approved[ref].approve), default="")


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
        choice = decision(mark) if mark.name == "DECIDE" else None
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

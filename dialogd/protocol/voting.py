"""Proposals, signatures, votes and escalation: what each entry changes in them, and how a vote is counted. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dialogd.protocol import marks
from dialogd.protocol.marks import Choice, pick, prose, read_vote, same_text, summary_of
from dialogd.protocol.model import USER, Entry, Header, Mark, digest
from dialogd.protocol.state import Ballot, Decision, Poll, Proposal, Standing, State


def signing(header: Header, state: State) -> tuple[str, ...]:
    """Who has to sign a text: all who may vote; with nobody at the table not who is absent, while two are left."""
    able = header.voters
    here = tuple(who for who in able if who not in state.absent)
    return here if header.is_unattended and len(here) > 1 else able


def positions(header: Header, state: State, entry: Entry) -> State:
    """Proposals, signatures, objections and calls for a deadlock of one agent turn."""
    state = proposed(state, entry)
    if entry.mark("OBJECTION"):
        state = state.but(standing=None)
    called = entry.mark("DEADLOCK") is not None
    against = called or entry.mark("OBJECTION") is not None
    text = entry.mark("CONSENSUS_PROPOSED")
    if text is not None:
        state = _propose(header, state, entry, text.ref, text.value)
    elif entry.frame is None and entry.mark("CONSENSUS_REACHED") and entry.turn is not None and not against:
        state = _asked_by_hand(header, state, entry)
    if not against and entry.by in header.voters:
        state = _sign(state, entry)
    deadlock = (*_others(state.deadlock, entry.by), entry.by) if called else ()
    return state if deadlock == state.deadlock else state.but(deadlock=deadlock)


def proposed(state: State, entry: Entry) -> State:
    """The state with the entry's numbered proposals."""
    if entry.mark("PROPOSAL") is None:
        return state
    return state.but(proposals=(*state.proposals, *_proposals(state, entry)))


def _proposals(state: State, entry: Entry) -> Iterator[Proposal]:
    """The entry's proposals; those typed by hand get the next free numbers."""
    marks = entry.all("PROPOSAL")
    free = 0 if all(mark.ref for mark in marks) else int(next_ref(state)[1:])
    for mark in marks:
        ref = mark.ref or f"P{free}"
        free = max(free, int(ref[1:]) + 1)
        yield Proposal(ref, entry.by, mark.value, entry.id)


def reserved(state: State, entry: Entry) -> State:
    """The state in which the numbers of a struck turn's proposals are taken: nobody's yes to them counts for others."""
    names = [mark.name for mark in entry.withdrawn]
    put = [mark for mark in entry.withdrawn if mark.name in ("PROPOSAL", "CONSENSUS_PROPOSED")]
    by_hand = entry.frame is None and entry.by != USER and "CONSENSUS_REACHED" in names and entry.turn is not None
    refs = [mark.ref for mark in put] + ([""] if by_hand and summary_of(prose(entry.body)) else [])
    top = int(next_ref(state)[1:]) - 1
    for ref in refs:
        top = max(top, int(ref[1:])) if ref else top + 1
    return state if not refs else state.but(hand=replace(state.hand, top=top))


def _asked_by_hand(header: Header, state: State, entry: Entry) -> State:
    summary = summary_of(prose(entry.body))
    if summary and (state.standing is None or digest(same_text(summary)) != state.standing.proposal.sha):
        return _propose(header, state, entry, next_ref(state), digest(same_text(summary)))
    if state.standing is not None and not state.standing.signed_by(entry.by) and entry.by in header.voters:
        signers = (*state.standing.signers, (entry.by, entry.number))
        return state.but(standing=replace(state.standing, signers=signers))
    return state


def _propose(header: Header, state: State, entry: Entry, ref: str, sha: str) -> State:
    body = entry.body if entry.frame is not None else prose(entry.body)
    proposal = Proposal(ref, entry.by, summary_of(body) or body, entry.id, sha)
    replaced = state.standing.replaced + 1 if state.standing else 0
    signers = ((entry.by, entry.number),) if entry.by in header.voters else ()
    standing = Standing(proposal, signers, replaced)
    return state.but(proposals=(*state.proposals, proposal), standing=standing)


def _sign(state: State, entry: Entry) -> State:
    standing = state.standing
    if standing is None or standing.signed_by(entry.by):
        return state
    if any(standing.proposal.ref in marks.agreed(mark) for mark in entry.all("AGREE")):
        return state.but(standing=replace(standing, signers=(*standing.signers, (entry.by, entry.number))))
    return state


def _others(signers: tuple[str, ...], agent: str) -> tuple[str, ...]:
    return tuple(s for s in signers if s != agent)


def next_ref(state: State) -> str:
    """The number that the next proposal gets: P1, P2 …"""
    highest = max((int(p.ref[1:]) for p in state.proposals if p.ref[1:].isdigit()), default=0)
    return f"P{max(highest, state.hand.top) + 1}"


# -- Votes, decisions, escalation, the judge's answers ----------------------------------------------------------------

_COUNTED = re.compile(r"\bin turns? (\d{1,9})(?: and (\d{1,9}))?")  # the turns that a decision says it counts
_ROUNDING = 1 - 1e-9  # three thirds are a whole


@dataclass(frozen=True, slots=True)
class Tally:
    """How a poll stands: who said what, by name; `weights` of approval, rejection, all voters; None: all the same."""

    approve: tuple[str, ...]
    reject: tuple[str, ...]
    abstain: tuple[str, ...]
    absent: tuple[str, ...]
    is_quorate: bool
    is_approved: bool
    weights: tuple[float, float, float] | None = None

    @property
    def evidence(self) -> str:
        """The count in words: `2 for (A, B), 1 against (C), absent: D`; where votes differ `; weight 4 to 1 of 6`."""
        words = [f"{len(names)} {what} ({', '.join(names)})" for what, names in self._cast if names]
        words += [f"absent: {', '.join(self.absent)}"] if self.absent else []
        count = ", ".join(words) or "nobody voted"
        return count + ("; weight {:g} to {:g} of {:g}".format(*self.weights) if self.weights else "")

    @property
    def _cast(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return ("for", self.approve), ("against", self.reject), ("abstained", self.abstain)


def tally(header: Header, poll: Poll) -> Tally:
    """Count a poll as it stands."""
    names = {choice: _who(poll.ballots, choice) for choice in ("approve", "reject", "abstain")}
    cast = {ballot.agent for ballot in poll.ballots}
    everybody = header.voters
    yes, no, whole = (header.rules.weight(who) for who in (names["approve"], names["reject"], everybody))
    is_quorate = header.rules.weight(cast) >= header.rules.quorum * whole * _ROUNDING
    enough = yes + no > 0 and yes >= header.rules.threshold * (yes + no) * _ROUNDING
    return Tally(
        approve=names["approve"],
        reject=names["reject"],
        abstain=names["abstain"],
        absent=tuple(who for who in everybody if who not in cast),
        is_quorate=is_quorate,
        is_approved=is_quorate and enough and len(names["approve"]) >= 2,  # nobody decides alone
        weights=(yes, no, whole) if len({header.rules.weight([who]) for who in everybody}) > 1 else None,
    )


def is_closed(header: Header, poll: Poll, absent: Collection[str] = ()) -> bool:
    """True when everybody has voted or had the chance to, or when the missing votes cannot change the outcome.

    Nobody waits for the votes of `absent` agents; the quorum counts them.
    """
    missing = [who for who in header.voters if all(ballot.agent != who for ballot in poll.ballots)]
    if all(who in poll.heard or who in absent for who in missing) and (poll.heard or poll.ballots):
        return True
    cases = (poll, _if(poll, missing, "approve"), _if(poll, missing, "reject"))
    return bool(poll.ballots) and len({tally(header, case).is_approved for case in cases}) == 1


def can_pass(header: Header, agents: Collection[str]) -> bool:
    """True when a vote can be won by these agents' votes alone: they reach the quorum, and are two."""
    able = header.voters
    here = [who for who in able if who in agents]
    return len(here) > 1 and header.rules.weight(here) >= header.rules.quorum * header.rules.weight(able) * _ROUNDING


def _if(poll: Poll, missing: Iterable[str], choice: str) -> Poll:
    return replace(poll, ballots=(*poll.ballots, *(Ballot(who, choice, "", 0) for who in missing)))


def _who(cast: Iterable[Ballot], choice: str) -> tuple[str, ...]:
    return tuple(ballot.agent for ballot in cast if ballot.choice == choice)


def opened(header: Header, state: State, new: Iterable[Proposal], number: int) -> State:
    """The state with a poll for each new proposal, where proposals are voted on."""
    if header.rules.verdict != "vote":
        return state
    return state.but(polls=(*state.polls, *(Poll(proposal.ref, number) for proposal in new)))


def voted(header: Header, state: State, entry: Entry) -> State:
    """The state with an agent turn's votes, and with who has had the chance to vote."""
    if entry.by not in header.voters or not state.polls:
        return state
    cast = read_vote(entry.marks)
    seen = int(entry.frame.re.split(".")[0] or 0) if entry.frame is not None else entry.number
    return state.but(polls=tuple(_with(poll, cast, entry, seen) for poll in state.polls))


def _with(poll: Poll, cast: Mapping[str, Choice], entry: Entry, seen: int) -> Poll:
    if seen < poll.turn:  # it was asked before the proposal stood in the file
        return poll
    choice = cast.get(poll.ref)
    if choice is None:  # a vote stands until its agent votes anew
        return poll if entry.by in poll.heard else replace(poll, heard=poll.heard | {entry.by})
    others = (ballot for ballot in poll.ballots if ballot.agent != entry.by)
    mine = Ballot(entry.by, choice.choice, choice.reason, entry.number)
    return replace(poll, ballots=(*others, mine), heard=poll.heard | {entry.by})


def decided(header: Header, state: State, entry: Entry) -> State:
    """The state with the entry's decisions: the first on a proposal counts, and closes its poll.

    Votes that fail in the same entry are one failed vote.
    """
    failed_before = state.failed_votes
    for mark in entry.all("DECISION"):
        outcome, method, evidence, reason = (*mark.fields, "", "", "", "")[:4]
        if mark.ref and any(d.ref == mark.ref and d.is_final for d in state.decisions):
            continue
        if state.struck and rests_on_struck(state, mark.ref, evidence):
            continue
        failed = method == "vote" and outcome != "approved"
        state = state.but(
            decisions=(*state.decisions, Decision(mark.ref, outcome, method, evidence, reason, entry.id)),
            polls=tuple(poll for poll in state.polls if poll.ref != mark.ref),
            failed_votes=failed_before + 1 if failed else 0,
        )
        is_settled = entry.turn is not None and method != "decide"
        if is_settled and state.standing is not None and state.standing.proposal.ref == mark.ref:
            state = state.but(standing=None)
    return state


def rests_on_struck(state: State, ref: str, evidence: str) -> bool:
    """True when a decision on the proposal `ref` is nothing any more: its text is struck, or a turn it counts."""
    if not state.struck:
        return False
    if ref and all(proposal.ref != ref for proposal in state.proposals):
        return True
    return any(int(number) in state.struck for pair in _COUNTED.findall(evidence) for number in pair if number)


def escalated(header: Header, state: State, entry: Entry) -> State:
    """The state with who has to decide what the others could not: the moderator, then the person."""
    if header.rules.is_plain:
        return state
    comes_back = header.is_unattended and entry.mark("QUESTION_FOR_USER") is not None
    if state.escalated == entry.by and _asked(entry) >= state.escalated_at and not comes_back:
        state = state.but(escalated="", escalation="")
    mark = entry.mark("ESCALATE")
    if mark is None:
        return state
    above = header.moderator
    can = above != entry.by or above in (entry.turn or ())  # its own turn may be the one that reached the limit
    who = above if above and can and above not in state.absent else USER
    return state.but(escalated=who, escalation=mark.value, escalated_at=state.number, failed_votes=0)


def positioned(header: Header, state: State) -> tuple[str, ...]:
    """The agents whose position a judge can choose: those that have spoken."""
    return tuple(agent.id for agent in header.agents if agent.id in state.spoke_at and agent.id != header.judge)


def _asked(entry: Entry) -> int:
    """The turn after which this one was asked for."""
    return int(entry.frame.re.split(".")[0] or 0) if entry.frame is not None else entry.number


def judged(header: Header, state: State, entry: Entry) -> State:
    """The state with the judge's answer: whose position, or `none`; "" where it says nothing clear.

    What others say after it makes it old: both answers are about the same positions. So does its question to the
    person: it answers anew once it knows what it lacked.
    """
    if entry.by != header.judge or entry.mark("QUESTION_FOR_USER") is not None:
        return state.but(judged=()) if state.judged else state
    answer = picked(entry.all("DECIDE"), positioned(header, state))
    return state.but(judged=(*state.judged, answer or ("", "")))


def picked(marks: Iterable[Mark], ids: Sequence[str]) -> tuple[str, str] | None:
    """Whose position the DECIDE marks of one reply pick, and why; None where none does, or they differ."""
    answers = [pick(mark, ids) for mark in marks if mark.name == "DECIDE"]
    first = answers[0] if answers else None
    return first if first and all(answer and answer[0] == first[0] for answer in answers) else None

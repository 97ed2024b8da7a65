"""Votes: the polls that are open, and how one is counted. Absent is not a vote. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from dialogd.protocol.marks import read_vote
from dialogd.protocol.model import Header, Said

_ROUNDING = 1 - 1e-9  # three thirds are a whole


@dataclass(frozen=True, slots=True)
class Ballot:
    """One vote: `choice` is approve, reject or abstain, as it was cast in that turn."""

    agent: str
    choice: str
    reason: str
    turn: int


@dataclass(frozen=True, slots=True)
class Poll:
    """An open vote on proposal `ref`, put in turn `turn`."""

    ref: str
    turn: int
    ballots: tuple[Ballot, ...] = ()

    def without(self, agent: str) -> Poll:
        """The poll without the vote of that agent."""
        return replace(self, ballots=tuple(b for b in self.ballots if b.agent != agent))

    def cast(self, ballot: Ballot) -> Poll:
        """The poll with this vote, in place of the same agent's last one."""
        return replace(self, ballots=(*self.without(ballot.agent).ballots, ballot))


@dataclass(frozen=True, slots=True)
class Polls:
    """The open votes, and the proposals that wait for the phase in which they are put to the vote.

    since   the turn in which the last one was put; `heard` are the voters that had a turn since, having seen it
    failed  counts votes that failed since the last decision that was not one
    """

    open: tuple[Poll, ...] = ()
    waiting: tuple[str, ...] = ()
    since: int = 0
    heard: frozenset[str] = frozenset()
    failed: int = 0

    def opened(self, turn: int) -> Polls:
        """With a poll for each proposal that waited: all voters are heard anew."""
        new = (Poll(ref, turn) for ref in self.waiting)
        return replace(self, open=(*self.open, *new), waiting=(), since=turn, heard=frozenset())

    def voted(self, said: Said) -> Polls:
        """After a turn of an agent that may vote: a vote stands until its agent votes anew.

        Who was asked before a proposal stood in the file has not seen it.
        """
        votes = read_vote(said.marks)

        def after(poll: Poll) -> Poll:
            vote = votes.get(poll.ref) if said.asked_after >= poll.turn else None
            return poll.cast(Ballot(said.by, vote.choice, vote.reason, said.number)) if vote else poll

        heard = self.heard | {said.by} if said.asked_after >= self.since else self.heard
        return replace(self, open=tuple(map(after, self.open)), heard=heard)

    def closed(self, ref: str) -> Polls:
        """Without the poll on that proposal."""
        waiting = tuple(one for one in self.waiting if one != ref)
        return replace(self, open=tuple(poll for poll in self.open if poll.ref != ref), waiting=waiting)

    def anew(self, turn: int) -> Polls:
        """After a person's turn: every vote is cast again."""
        return replace(self, open=tuple(Poll(poll.ref, turn) for poll in self.open), since=turn, heard=frozenset())

    def left(self, agent: str) -> Polls:
        """Without the votes of an agent that has left."""
        return replace(self, open=tuple(poll.without(agent) for poll in self.open), heard=self.heard - {agent})

    def over(self, header: Header, absent: Collection[str]) -> tuple[str, ...]:
        """Those on which all voters who are there have voted; all, once they had a turn since the last one was put."""
        there = {*header.voters} - {*absent}
        cast = {poll.ref: {ballot.agent for ballot in poll.ballots} for poll in self.open if there}
        return tuple(ref for ref, voted in cast.items() if there <= self.heard or there <= voted)


@dataclass(frozen=True, slots=True)
class Tally:
    """How a poll stands: who said what, by name; `weights` of approval, rejection, all voters; None: all the same.

    `silent` did not vote, `absent` could not; `is_enough` says that the share for it reaches the threshold.
    """

    approve: tuple[str, ...]
    reject: tuple[str, ...]
    abstain: tuple[str, ...]
    silent: tuple[str, ...]
    absent: tuple[str, ...]
    is_quorate: bool
    is_enough: bool
    weights: tuple[float, float, float] | None = None

    @property
    def evidence(self) -> str:
        """The count in words: `2 for (A, B), no vote: C, absent: D`; where votes differ `; weight 4 to 1 of 6`."""
        cast = (("for", self.approve), ("against", self.reject), ("abstained", self.abstain))
        words = [f"{len(names)} {what} ({', '.join(names)})" for what, names in cast if names]
        left = (("no vote", self.silent), ("absent", self.absent))
        words += [f"{what}: {', '.join(names)}" for what, names in left if names]
        count = ", ".join(words) or "nobody voted"
        return count + ("; weight {:g} to {:g} of {:g}".format(*self.weights) if self.weights else "")

    @property
    def is_approved(self) -> bool:
        """True where it is won; nobody decides alone."""
        return self.is_quorate and self.is_enough and len(self.approve) >= 2


def tally(header: Header, poll: Poll, gone: Collection[str] = ()) -> Tally:
    """Count a poll as it stands, while those are `gone`."""
    names = {
        choice: tuple(ballot.agent for ballot in poll.ballots if ballot.choice == choice)
        for choice in ("approve", "reject", "abstain")
    }
    cast = {ballot.agent for ballot in poll.ballots}
    everybody = header.voters
    yes, no, whole = (header.rules.weight(who) for who in (names["approve"], names["reject"], everybody))
    is_quorate = header.rules.weight(cast) >= header.rules.quorum * whole * _ROUNDING
    enough = yes + no > 0 and yes >= header.rules.threshold * (yes + no) * _ROUNDING
    return Tally(
        approve=names["approve"],
        reject=names["reject"],
        abstain=names["abstain"],
        silent=tuple(who for who in everybody if who not in cast and who not in gone),
        absent=tuple(who for who in everybody if who not in cast and who in gone),
        is_quorate=is_quorate,
        is_enough=enough,
        weights=(yes, no, whole) if len({header.rules.weight([who]) for who in everybody}) > 1 else None,
    )


def can_pass(header: Header, agents: Collection[str]) -> bool:
    """True when a vote can be won by these agents' votes alone: they reach the quorum, and are two."""
    able = header.voters
    here = [who for who in able if who in agents]
    return len(here) > 1 and header.rules.weight(here) >= header.rules.quorum * header.rules.weight(able) * _ROUNDING

"""Proposals, the text on the table, who signed it, and calls for a deadlock: what each agent turn changes in them.

Daemon-written turns carry numbered, canonical marks; turns written by hand carry whatever the person typed,
so the same rules number and sign for them here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dialogd.protocol import ballots
from dialogd.protocol.hashing import digest
from dialogd.protocol.marks import prose, same_text, summary_of
from dialogd.protocol.model import USER, Entry, Header
from dialogd.protocol.roster import voters
from dialogd.protocol.state import Proposal, Standing, State


def signing(header: Header, state: State) -> tuple[str, ...]:
    """Who has to sign a text: all who may vote; with nobody at the table not who is absent, while two are left."""
    able = voters(header)
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
    if not against and entry.by in voters(header):
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
    free = int(next_ref(state)[1:])
    for mark in entry.all("PROPOSAL"):
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
    if state.standing is not None and not state.standing.signed_by(entry.by) and entry.by in voters(header):
        signers = (*state.standing.signers, (entry.by, entry.number))
        return state.but(standing=replace(state.standing, signers=signers))
    return state


def _propose(header: Header, state: State, entry: Entry, ref: str, sha: str) -> State:
    body = entry.body if entry.frame is not None else prose(entry.body)
    proposal = Proposal(ref, entry.by, summary_of(body) or body, entry.id, sha)
    replaced = state.standing.replaced + 1 if state.standing else 0
    signers = ((entry.by, entry.number),) if entry.by in voters(header) else ()
    standing = Standing(proposal, signers, replaced)
    return state.but(proposals=(*state.proposals, proposal), standing=standing)


def _sign(state: State, entry: Entry) -> State:
    standing = state.standing
    if standing is None or standing.signed_by(entry.by):
        return state
    if any(standing.proposal.ref in ballots.agreed(mark) for mark in entry.all("AGREE")):
        return state.but(standing=replace(standing, signers=(*standing.signers, (entry.by, entry.number))))
    return state


def _others(signers: tuple[str, ...], agent: str) -> tuple[str, ...]:
    return tuple(s for s in signers if s != agent)


def next_ref(state: State) -> str:
    """The number that the next proposal gets: P1, P2 …"""
    highest = max((int(p.ref[1:]) for p in state.proposals if p.ref[1:].isdigit()), default=0)
    return f"P{max(highest, state.hand.top) + 1}"

"""Was the debate worth it: what a plain vote of the first answers would have said, at what cost. Pure.

A plain vote: every agent one voice, the most voices win, a tie decides nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from dialogd.plan.conflicts import aims, made
from dialogd.plan.open_ends import by_ref, turn_of
from dialogd.plan.outcome import method
from dialogd.plan.reading import listed, turns_of
from dialogd.plan.value import Agreed, Comparison, Cost, Decided, Said, Worth
from dialogd.protocol import ballots
from dialogd.protocol.kinds import CONTRIBUTIONS, REVIEW
from dialogd.protocol.marks import contributes
from dialogd.protocol.model import Entry, Mark
from dialogd.protocol.roster import judge, speakers
from dialogd.protocol.spent import Spent, account
from dialogd.protocol.state import Dialog

UNCHANGED = "nobody changed a vote afterwards"
_MS = re.compile(r"[0-9]{1,12}")


def worth(dialog: Dialog, agreed: Agreed | None, decisions: Sequence[Decided]) -> Worth:
    """The comparisons that votes or first choices allow, else why there is none."""
    whole = cost(dialog.entries)
    first = _first_turns(dialog)
    if dialog.state.outcome is None:
        return Worth((), whole, "the dialog has not ended, so there is no outcome to compare with")
    if len(first) < 2:
        return Worth((), whole, "fewer than two agents answered")
    chosen = {who: _choice(dialog, entry) for who, entry in first.items()}
    silent = [who for who, choice in chosen.items() if choice is None]
    found = []
    if not silent:
        found.append(_by_choices(dialog, first, {w: c for w, c in chosen.items() if c}, agreed, decisions))
    by_votes = _by_votes(dialog, decisions)
    if by_votes is not None and (not found or by_votes.remark != UNCHANGED):
        found.append(by_votes)
    if found:
        return Worth(tuple(found), whole)
    turns = listed([f"{who} (turn {first[who].number})" for who in silent])
    return Worth((), whole, f"the first answer of {turns} names no choice by a mark")


def _first_turns(dialog: Dialog) -> Mapping[str, Entry]:
    first: dict[str, Entry] = {}
    for entry in turns_of(dialog):
        if entry.by != judge(dialog.header) and entry.by in speakers(dialog.header):
            first.setdefault(entry.by, entry)
    return first


Choice = tuple[str, str]  # what makes two choices the same, and how the choice is called


def _choice(dialog: Dialog, entry: Entry) -> Choice | None:
    """What an agent's first turn is for, or against: its first vote, proposal, agreement, objection, or KIND."""
    own = iter(p for p in dialog.state.proposals if p.entry == entry.id)
    for mark in entry.marks:
        if mark.name in ("PROPOSAL", "CONSENSUS_PROPOSED"):
            proposal = next(own, None)
            return _of_proposal(dialog, proposal.ref) if proposal else _of_text(mark.value)
        if mark.name in ("VOTE", "AGREE") and (choice := _of_vote(dialog, mark)) is not None:
            return choice
        if mark.name == "OBJECTION" and (refs := aims(made(dialog), entry, mark)):
            key, name = _of_proposal(dialog, refs[0])
            return f"against {key}", f"against {name}"
        if contributes(mark) and mark.name not in CONTRIBUTIONS and not _is_of_review(dialog, mark):
            return _of_text(mark.value)
    return None


def _is_of_review(dialog: Dialog, mark: Mark) -> bool:
    """True for a finding or a score: what a reviewer saw is no choice."""
    return dialog.header.rules.review and mark.name in REVIEW


def _of_vote(dialog: Dialog, mark: Mark) -> Choice | None:
    if mark.name == "AGREE":
        refs = ([mark.ref] if mark.ref else []) + list(ballots.references(mark)[1])
        return _of_proposal(dialog, refs[0]) if refs else None
    vote = ballots.vote(mark)
    if vote is None or vote.choice not in ("approve", "reject"):
        return None
    key, name = _of_proposal(dialog, vote.ref)
    return (key, name) if vote.choice == "approve" else (f"against {key}", f"against {name}")


def _of_proposal(dialog: Dialog, ref: str) -> Choice:
    proposal = by_ref(dialog).get(ref)
    return (_key(proposal.text), ref) if proposal is not None and proposal.text.strip() else (ref, ref)


def _of_text(text: str) -> Choice:
    return _key(text), f"“{text}”"


def _key(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold())) or text


def _by_choices(
    dialog: Dialog,
    first: Mapping[str, Entry],
    chosen: Mapping[str, Choice],
    agreed: Agreed | None,
    decisions: Sequence[Decided],
) -> Comparison:
    """A plain vote of the first answers against what was decided in the end."""
    counts = Counter(key for key, _ in chosen.values())
    names = dict(reversed(tuple(chosen.values())))
    top, voices = counts.most_common(1)[0]
    tied = [key for key, number in counts.items() if number == voices]
    verdict = "" if len(tied) > 1 else top
    said = f"a tie between {listed([names[key] for key in tied])}: nothing decided"
    final, ref = _final(dialog, agreed, decisions)
    same: bool | None = final == verdict
    remark = ""
    if final and verdict and final not in counts:
        same, remark = None, f"{ref} is a text that no first answer held; whether it says the same, marks cannot tell"
    return Comparison(
        basis=_basis(dialog, first),
        choices=tuple(Said("FIRST", who, first[who].number, name) for who, (_, name) in chosen.items()),
        verdict=said if len(tied) > 1 else f"{names[top]}, with {voices} of {len(chosen)} voices",
        outcome=_words(ref, agreed, decisions),
        same=same,
        first=cost(first.values()),
        remark=remark,
    )


def _basis(dialog: Dialog, first: Mapping[str, Entry]) -> str:
    """How independent the first answers were."""
    seals = {e.by: mark for e in dialog.entries if not e.is_turn and (mark := e.mark("SEALED"))}
    if set(first) <= set(seals):
        able = [who for who, mark in seals.items() if len(mark.fields) > 1]  # the seat's tools could have read the file
        return f"the sealed first answers{f' ({listed(able)} could read files)' if able else ''}"
    answered = {entry.frame.re if entry.frame else "" for entry in first.values()}
    if len(answered) == 1 and answered != {""}:
        return "the first answers, given without knowing the others'"
    early = min(first.values(), key=lambda entry: entry.number)
    return f"the first answers (only {early.by}'s was given without knowing another)"


def _final(dialog: Dialog, agreed: Agreed | None, decisions: Sequence[Decided]) -> Choice:
    """What was decided in the end; "" twice for nothing."""
    if agreed is not None and not agreed.ref:
        own = [p.ref for p in dialog.state.proposals if p.by == agreed.by and not p.sha]
        name = f"the position of {agreed.by} in turn {agreed.stands_in}"
        return (_of_proposal(dialog, own[-1])[0], name) if own else (_key(agreed.text), name)
    ref = agreed.ref if agreed else next((d.ref for d in reversed(decisions) if d.stands == "approved"), "")
    return (_of_proposal(dialog, ref)[0], ref) if ref else ("", "")


def _words(name: str, agreed: Agreed | None, decisions: Sequence[Decided]) -> str:
    if not name:
        return "nothing was decided"
    how = agreed.method if agreed else next(d.method for d in decisions if d.ref == name)
    return f"{name}, {method(how)}"


def _by_votes(dialog: Dialog, decisions: Sequence[Decided]) -> Comparison | None:
    """The first vote of each voter against the decision, on the proposal that was voted on last."""
    polled = [d for d in decisions if d.method == "vote"]
    if not polled:
        return None
    decision = next((d for d in reversed(polled) if d.made == "approved"), polled[-1])
    first: dict[str, Said] = {}
    for entry in turns_of(dialog):
        for mark in entry.all("VOTE"):
            vote = ballots.vote(mark)
            if vote is not None and vote.ref == decision.ref and entry.number <= decision.turn:
                first.setdefault(entry.by, Said("VOTE", entry.by, entry.number, vote.choice))
    if len(first) < 2:
        return None
    last = {vote.agent: vote.choice for vote in decision.votes}
    changed = [who for who, said in first.items() if last.get(who, said.text) != said.text]
    counts = Counter(said.text for said in first.values())
    lead = counts["approve"] - counts["reject"]
    verdict = "approved" if lead > 0 else "rejected" if lead < 0 else "undecided"
    until = max(said.turn for said in first.values())
    return Comparison(
        basis=f"the first vote of each voter on {decision.ref}",
        choices=tuple(first.values()),
        verdict=f"{verdict}, {counts['approve']} for and {counts['reject']} against",
        outcome=f"{decision.made}: {decision.evidence}",
        same=verdict == decision.made,
        first=cost(entry for entry in dialog.entries if turn_of(entry.id) <= until),
        remark=f"{listed(changed)} changed the vote" if changed else UNCHANGED,
    )


def cost(entries: Iterable[Entry]) -> Cost:
    """What these entries came to, as far as their frames say."""
    turns, spent, times = 0, Spent(), []
    for entry in entries:
        frame = entry.frame
        if frame is None or not (frame.ms or frame.calls or frame.tokens_in or frame.usd):
            continue
        turns += entry.is_turn
        spent = spent.plus(account(frame.tokens_in, frame.tokens_out, frame.usd))
        times += [int(frame.ms)] if _MS.fullmatch(frame.ms) else []
    return Cost(
        turns,
        usd=None if spent.unknown == spent.entries else spent.usd,
        tokens=None if (spent.uncounted and not spent.tokens) or not spent.entries else spent.tokens,
        seconds=sum(times) / 1000 if times else None,
    )

"""The table: the proposals, the text that is to be signed, what was decided, and what stands in the way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from dialogd.protocol.marks import UNSIGNED, agreed, is_called, prose, round_of, same_text, summary_of
from dialogd.protocol.model import USER, Mark, Said, digest
from dialogd.protocol.text import is_blank

_COUNTED = re.compile(r"\bin turns? (\d{1,9})(?: and (\d{1,9}))?")  # the turns that a decision says it counts


@dataclass(frozen=True, slots=True)
class Proposal:
    """A numbered proposal. `sha` is the hash of the exact text, for consensus proposals."""

    ref: str
    by: str
    text: str
    entry: str
    sha: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """The consensus text on the table: who signed it in which turn; `replaced` counts earlier texts."""

    proposal: Proposal
    signers: tuple[tuple[str, int], ...]
    replaced: int = 0

    def signed_by(self, agent: str) -> bool:
        """True when `agent` has signed this very text."""
        return any(who == agent for who, _ in self.signers)


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about `ref`: `outcome` is approved, rejected or undecided."""

    ref: str
    outcome: str
    method: str
    evidence: str
    reason: str
    entry: str

    @property
    def is_final(self) -> bool:
        """True when nobody decides it again: it was approved, or an agent that may has rejected it."""
        return self.outcome == "approved" or self.method in ("moderator", "decide", "review")


@dataclass(frozen=True, slots=True)
class Table:
    """Proposals, signatures, decisions and findings.

    deadlock   who called it a deadlock, since the last word against it
    red_team   the proposal that the next turn is to argue against; `is_tested`: such a turn was taken
    judged     the judge's answers so far: position, reason
    findings   how many there are; `blocking`: number and author of those that keep an approval from counting
    top        the highest number that a proposal had, also one of a struck turn: no other gets it
    """

    proposals: tuple[Proposal, ...] = ()
    standing: Standing | None = None
    decisions: tuple[Decision, ...] = ()
    deadlock: tuple[str, ...] = ()
    red_team: str = ""
    is_tested: bool = False
    judged: tuple[tuple[str, str], ...] = ()
    findings: int = 0
    blocking: tuple[tuple[int, str], ...] = ()
    top: int = 0

    @property
    def next_ref(self) -> str:
        """The number that the next proposal gets: P1, P2 …"""
        return f"P{self.top + 1}"

    @property
    def vetoed(self) -> tuple[str, ...]:
        """The proposals that the person ruled out."""
        return tuple([decision.ref for decision in self.decisions if decision.method == "veto"])

    def proposed(self, said: Said) -> Table:
        """With the entry's numbered proposals."""
        new = tuple(self._new(said))
        return self._with(*new) if new else self

    def _with(self, *new: Proposal) -> Table:
        """With these proposals too."""
        top = max(self.top, *(int(p.ref[1:]) for p in new if p.ref[1:].isdigit()), 0)
        return replace(self, proposals=(*self.proposals, *new), top=top)

    def _new(self, said: Said) -> Iterator[Proposal]:
        """The entry's proposals that have a text; those typed by hand get the next free numbers."""
        marks = _proposals(said.marks)
        free = 0 if all(mark.ref for mark in marks) else int(self.next_ref[1:])
        for mark in marks:
            ref = mark.ref or f"P{free}"
            free = max(free, int(ref[1:]) + 1)
            yield Proposal(ref, said.by, mark.value, said.id)

    def spoken(self, said: Said, *, may_vote: bool, made: int) -> Table:
        """After an agent's turn that made so many contributions."""
        table, standing = self.proposed(said), self.standing
        objects, calls = said.mark("OBJECTION") is not None, any(map(is_called, said.marks))
        calls = calls and all(mark.fields[:1] != ("undecided",) for mark in said.all("DECISION"))  # the judge's
        if objects:
            standing = None
        claims = said.by_hand and said.turn is not None and said.mark("CONSENSUS_REACHED") is not None
        text = _text(said, table, standing, claims=claims and not (objects or calls))
        if text is not None:
            signs = may_vote and all(UNSIGNED not in mark.fields for mark in said.all("CONSENSUS_PROPOSED"))
            signers = ((said.by, said.number),) if signs else ()
            standing = Standing(text, signers, standing.replaced + 1 if standing is not None else 0)
            table = table._with(text)
        can_sign = may_vote and not (objects or calls)
        if can_sign and standing is not None and not standing.signed_by(said.by):
            ref = standing.proposal.ref
            if claims or any(ref in agreed(mark) for mark in said.all("AGREE")):
                standing = replace(standing, signers=(*standing.signers, (said.by, said.number)))
        deadlock = (*(who for who in self.deadlock if who != said.by), said.by) if calls else ()
        asks = round_of(said.marks, "red team")
        red_team = asks if asks is not None else "" if made else self.red_team
        is_tested = self.is_tested or bool(self.red_team and made)
        now = (standing, deadlock, red_team, is_tested)
        if now == (self.standing, self.deadlock, self.red_team, self.is_tested):
            return table
        return replace(table, standing=standing, deadlock=deadlock, red_team=red_team, is_tested=is_tested)

    def reserved(self, said: Said) -> Table:
        """After a struck turn: the numbers of its proposals are not given again."""
        names = [mark.name for mark in said.withdrawn]
        texts = [mark for mark in said.withdrawn if mark.name == "CONSENSUS_PROPOSED"]
        refs = [mark.ref for mark in (*_proposals(said.withdrawn), *texts)]
        claims = said.by_hand and said.by != USER and said.turn is not None and "CONSENSUS_REACHED" in names
        if claims and summary_of(prose(said.body)):
            refs.append("")
        top = self.top
        for ref in refs:
            top = max(top, int(ref[1:])) if ref else top + 1
        return replace(self, top=top) if refs else self

    def cleared(self) -> Table:
        """After a person's turn: signatures, calls for a deadlock, and what was to be argued against or judged."""
        return replace(self, standing=None, deadlock=(), red_team="", judged=())

    def decided(self, mark: Mark, said: Said, struck: frozenset[int]) -> Table:
        """With the decision of that mark: the first one on a proposal counts; not one that rests on what is struck."""
        outcome, method, evidence, reason = (*mark.fields, "", "", "", "")[:4]
        if mark.ref and any(d.ref == mark.ref and d.is_final for d in self.decisions):
            return self
        if self.rests_on(struck, mark.ref, evidence):
            return self
        decision = Decision(mark.ref, outcome, method, evidence, reason, said.id)
        is_settled = said.turn is not None and method != "decide"
        standing = self._without(mark.ref) if is_settled else self.standing
        return replace(self, decisions=(*self.decisions, decision), standing=standing)

    def rests_on(self, struck: frozenset[int], ref: str, evidence: str) -> bool:
        """True when a decision on the proposal `ref` is nothing any more: its text is struck, or a turn it counts."""
        if not struck:
            return False
        if ref and all(proposal.ref != ref for proposal in self.proposals):
            return True
        return any(int(number) in struck for pair in _COUNTED.findall(evidence) for number in pair if number)

    def ruled_out(self, ref: str, reason: str, said: Said, after: int) -> Table:
        """With a veto: nothing that was, or is to be, decided on that proposal counts."""
        ruling = Decision(ref, "rejected", "veto", f"by the person after turn {after}", reason, said.id)
        return replace(
            self,
            decisions=(*(decision for decision in self.decisions if decision.ref != ref), ruling),
            standing=self._without(ref),
            red_team="" if re.search(rf"\b{ref}\b", self.red_team) else self.red_team,
        )

    def left(self, who: str, *, was_judge: bool) -> Table:
        """Without what an agent that has left stands for."""
        return replace(
            self,
            deadlock=tuple(one for one in self.deadlock if one != who),
            blocking=tuple(finding for finding in self.blocking if finding[1] != who),
            judged=() if was_judge else self.judged,
        )

    def _without(self, ref: str) -> Standing | None:
        """The text that is to be signed, unless it is that one."""
        return None if self.standing is not None and self.standing.proposal.ref == ref else self.standing


def _proposals(marks: Iterable[Mark]) -> list[Mark]:
    """Those of the marks that propose something; nothing without a text can be decided."""
    return [mark for mark in marks if mark.name == "PROPOSAL" and not is_blank(mark.value)]


def _text(said: Said, table: Table, standing: Standing | None, *, claims: bool) -> Proposal | None:
    """The consensus text that an agent's turn puts on the table; None where it puts none, or the same."""
    mark = said.mark("CONSENSUS_PROPOSED")
    if mark is not None:
        body = prose(said.body) if said.by_hand else said.body
        text = summary_of(body) or body
        return None if is_blank(text) else Proposal(mark.ref, said.by, text, said.id, mark.fields[0])
    summary = summary_of(prose(said.body)) if claims else ""
    sha = digest(same_text(summary))
    if not summary or (standing is not None and sha == standing.proposal.sha):
        return None
    return Proposal(table.next_ref, said.by, summary, said.id, sha)

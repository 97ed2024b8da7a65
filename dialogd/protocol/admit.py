"""What of a reply may count, and what its agent is asked about it first: once, in one line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from dialogd.protocol import build, lifecycle
from dialogd.protocol.build import level
from dialogd.protocol.fold import vetoes
from dialogd.protocol.marks import (
    APPROVE,
    CHOOSING,
    DECIDING,
    FENCE,
    MARKS,
    TAKEN,
    UNSIGNED,
    ParsedReply,
    Who,
    agreed,
    confidence,
    contributes,
    decision,
    is_yes,
    literal,
    objected,
    pick,
    read_reply,
    references,
    same_text,
    to,
    vote,
    without_turn_line,
)
from dialogd.protocol.marks import (
    refused as did_not_count,
)
from dialogd.protocol.model import USER, Mark, digest, place
from dialogd.protocol.order import is_sealed_round, positioned
from dialogd.protocol.questions import NAME as QUESTION
from dialogd.protocol.questions import unheard
from dialogd.protocol.rules import CONTRIBUTIONS, DECIDE, MODERATE, OWN_KINDS, PROPOSE, VOTE
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import is_blank, one_line

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


def shown(refused: Sequence[Refusal]) -> tuple[Mark, ...]:
    """The marks that say what did not count; of very many the first, and how many more."""
    marks = tuple(did_not_count(refusal.said, refusal.why) for refusal in refused[:MOST_REFUSALS])
    more = len(refused) - len(marks)
    return (*marks, did_not_count(f"{more} more marks", refused[-1].why)) if more else marks


def left_in_words(refused: Sequence[Refusal]) -> str:
    """What did not count and is too long to be named whole: it stays text, so that nothing is lost."""
    lost = (r for i, r in enumerate(refused) if not r.stays and (i >= MOST_REFUSALS or r.said.endswith("…")))
    return "\n".join(str(refusal.mark) for refusal in lost)


def claims_consensus(reply: ParsedReply) -> bool:
    """True when the reply says that everybody agrees, and nothing against it."""
    return reply.has("CONSENSUS_REACHED") and not (reply.has("OBJECTION") or reply.has("DEADLOCK"))


# -- Which marks count ------------------------------------------------------------------------------------------------


class MarkPolicy:
    """Which marks of agent `me` count in `dialog` as it stands: by its role, the dialog's rules and its state."""

    # role           its role; `is_judge`: it judges
    # answers_first  it owes a sealed first answer
    # text           what it signs without naming it: the text that lay there when its turn was asked for
    # choices        what a judge may choose

    def __init__(self, dialog: Dialog, me: str) -> None:
        self.dialog, self.me = dialog, me
        self.header, self.state, self.rules = dialog.header, dialog.state, dialog.header.rules
        self.role = self.rules.role(me)
        self.is_judge = me == self.header.judge
        debt, standing = self.state.debt(me), self.state.table.standing
        self.answers_first = debt is not None and is_sealed_round(dialog, debt)
        is_later = standing is not None and debt is not None and place(standing.proposal.entry) > place(debt.re)
        self.text = None if is_later else standing
        self.choices = (*positioned(self.header, self.state), "none")

    def signed(self, mark: Mark, reply: ParsedReply) -> str:
        """The number of the text on the table that this mark would sign; "" where it signs none."""
        standing = self.state.table.standing if mark.name == "AGREE" else self.text
        if standing is None:
            return ""
        ref = standing.proposal.ref
        if mark.name == "AGREE":
            return ref if ref in agreed(mark) else ""
        same = not reply.summary or digest(same_text(reply.summary)) == standing.proposal.sha
        return ref if mark.name == "CONSENSUS_REACHED" and same else ""

    def lacks_reservation(self, reply: ParsedReply) -> bool:
        """True for a reply whose yes must name the strongest objection left, and that does not."""
        return self.rules.objections and all(is_blank(m.value) for m in reply.marks if m.name == "RESERVATION")

    def admitted(self, reply: ParsedReply) -> tuple[ParsedReply, tuple[Refusal, ...]]:
        """The reply with the marks that count, and those that do not."""
        refused = [Refusal(mark, _strange(mark), stays=True) for mark in reply.strange]
        kept: list[Mark] = []
        most, made, length = self.state.limits.max_message, 0, 0
        for mark in reply.marks:
            length += len(str(mark))
            why = f"the marks of a turn have at most {most:,} characters together" if length > most else ""
            why = why or self._overruled(mark, reply) or self._refused(mark, reply)
            why = why or build.refused(self.state.build, self.me, mark, kept)
            if not why and contributes(mark):
                why = self._full(made)
                made += not why
            if why:
                refused.append(Refusal(mark, why))
            else:
                kept.append(mark)
        return replace(reply, marks=tuple(kept), strange=()), tuple(refused)

    def _overruled(self, mark: Mark, reply: ParsedReply) -> str:
        about = {*agreed(mark), _ref(mark)}
        ruled_out = vetoes(self.dialog)
        claimed = reply.summary if mark.name == "CONSENSUS_REACHED" else ""
        text = (mark.value if mark.proposes else claimed) if ruled_out else ""
        if text:  # the same text put anew
            sha = digest(same_text(text))
            about |= {p.ref for p in self.state.table.proposals if sha == (p.sha or digest(same_text(p.text)))}
        for ref, why in ruled_out.items():
            if ref in about:
                return f"{ref} was ruled out by the person" + (f": {why}" if why else "")
        return unheard(self.header, self.state, self.me, mark)

    def _full(self, made: int) -> str:
        """Why the board takes no contribution more of this agent, which `made` so many in this reply."""
        if self.rules.board is None:
            return ""
        room = self.rules.board.blackboard_capacity
        if self.answers_first:  # what counts of it must not depend on what others of the round have written by then
            left = room // max(len(self.header.speakers), 1)
            return "" if made < left else f"of {room} contributions on the blackboard {left} are for each first answer"
        return "" if made < room - self.state.floor.contributed else f"the blackboard is full: {room} contributions"

    def too_late(self, name: str) -> str:
        """Why marks of that name are not taken as the dialog stands; "" where they are."""
        is_judging = self.is_judge and self.me in self.state.owing
        if self.rules.is_plain or not (self.state.escalation.to == self.me or is_judging or self.state.closing):
            return ""
        due = "escalated" if self.state.escalation.to == self.me else "judging" if is_judging else "closing"
        if name in TAKEN[due]:
            return ""
        return f"the dialog is {lifecycle.in_words(self.dialog)}; it takes {', '.join(sorted(TAKEN[due]))}"

    def _refused(self, mark: Mark, reply: ParsedReply) -> str:
        if mark.name not in DECIDING and is_blank(mark.value) and not (mark.name == "RE" and mark.ref):
            return f"it says nothing: it is written [{mark.name}: …]"
        late = self.too_late(mark.name)
        if self.is_judge:
            return late or (self._judges(mark, reply) if mark.name == "DECIDE" else "")
        if not (self.role.may_use(mark.name) if mark.name in MARKS else self.role.may(*OWN_KINDS)):
            return f"{self.me} may not use {mark.name}" + (f" ({self.role.name})" if self.role.name else "")
        if self.answers_first:
            if mark.name in ("VOTE", "AGREE", "DECIDE"):
                return "first answers are sealed: nothing can be answered yet"
            late = ""
        return late or self._says(mark, reply)

    def _says(self, mark: Mark, reply: ParsedReply) -> str:
        match mark.name:
            case "VOTE":
                return self._votes(mark, reply)
            case "DECIDE":
                return self._decides(mark)
            case "CONSENSUS_REACHED":
                return self._claims(mark, reply)
            case "AGREE":
                known = {proposal.ref for proposal in self.state.table.proposals}
                if strange := [ref for ref in agreed(mark) if ref not in known]:
                    return f"there is no {', '.join(strange)}"
                return self._signs(reply) if self.signed(mark, reply) else ""
            case "CONFIDENCE" if confidence(mark) is None:
                return "it is no number from 0 to 1"
            case "TO":
                ids = [USER, *self.header.speakers]
                if not to(mark, ids):
                    return f"nobody here is called that; there are {', '.join(ids)}"
                can = self.rules.order == "free" or self.role.may(MODERATE)
                return "" if can else f"the order is {self.rules.order}: nobody hands the floor on"
        if not contributes(mark):
            return ""
        kind = CONTRIBUTIONS.get(mark.name) or self.rules.kinds.get(mark.name)
        if kind is not None and kind.levels and level(mark) not in kind.levels:
            return f"its {kind.fields[0]} is none of {', '.join(kind.levels)}"
        return ""

    def _judges(self, mark: Mark, reply: ParsedReply) -> str:
        if reply.has(QUESTION):
            return f"{self.me} asks the person first, and judges once they have answered"
        return "" if pick(mark, self.choices[:-1]) else f"it names none of {', '.join(self.choices)}"

    def _votes(self, mark: Mark, reply: ParsedReply) -> str:
        if self.rules.verdict != "vote":
            return "nothing is voted on in this dialog"
        choice = vote(mark)
        open_ = [poll.ref for poll in self.state.polls.open]
        if choice is None or choice.ref not in open_:
            ref = choice.ref if choice else "it"
            if ref in self.state.polls.waiting:
                return f"{ref} is put to the vote in {self.rules.phases[self.rules.voting].name}"
            return f"{ref} is not open for votes; open: {', '.join(open_) or 'none'}"
        return self._without_reservation(reply) if choice.choice == APPROVE else ""

    def _decides(self, mark: Mark) -> str:
        choice, table, above = decision(mark), self.state.table, self.state.escalation.to
        if choice is None:
            return "it is not of the form [DECIDE: P1 approve | reason], or reject"
        if all(proposal.ref != choice.ref for proposal in table.proposals):
            return f"there is no {choice.ref}"
        if known := next((d for d in table.decisions if d.ref == choice.ref and d.is_final), None):
            return f"{choice.ref} was decided in {known.entry}"
        if self.rules.verdict != "vote" or above == self.me:
            return ""
        if above:
            return f"it was handed to {'the person' if above == USER else above}, who decides now"
        most, failed = self.rules.escalation_threshold, self.state.polls.failed
        return f"{choice.ref} is the voters' to decide, until {most} votes have failed; so far {failed} did"

    def _claims(self, mark: Mark, reply: ParsedReply) -> str:
        if self.signed(mark, reply):
            return self._signs(reply)
        if not reply.summary:
            return "there is no text on the table, and no `## Consensus Summary` above it: nothing to agree on"
        if len(reply.body) > self.state.limits.max_message:
            return "an agreed text is never cut, and this one is too long"
        if not self.role.may(PROPOSE):
            return f"{self.me} may not put a text on the table ({self.role.name or 'no PROPOSE'})"
        signs = mark.value != UNSIGNED and self.role.may(VOTE) and claims_consensus(reply)
        return self._signs(reply) if signs else ""

    def _signs(self, reply: ParsedReply) -> str:
        if self.rules.verdict != "mutual":
            return ""
        if not self.role.may(VOTE):
            return f"{self.me} may not sign ({self.role.name or 'no VOTE'})"
        return self._without_reservation(reply)

    def _without_reservation(self, reply: ParsedReply) -> str:
        return (
            "its strongest remaining objection is not named: [RESERVATION: …]" if self.lacks_reservation(reply) else ""
        )

    def forms(self, name: str, ref: str) -> tuple[str, ...]:
        """The lines with which the agent may say where it stands on a proposal; () where it may say nothing."""
        if name == "DECIDE" and self.role.may(DECIDE, MODERATE):
            return (f"[DECIDE: {ref} approve]", f"[DECIDE: {ref} reject]")
        if self.answers_first:
            return ()
        if self.rules.verdict == "vote" and self.me in self.header.voters and self.state.polls.open:
            agrees = (f"[AGREE: {ref}]",) if name == "AGREE" else ()  # which accepts it, and is no vote
            return (*(f"[VOTE: {ref} {choice}]" for choice in ("approve", "reject", "abstain")), *agrees)
        return (f"[AGREE: {ref}]", OBJECT) if name in ("AGREE", "CONSENSUS_REACHED") else ()

    def has_agreed(self, ref: str) -> bool:
        """True when the agent's yes to the proposal stands in the file already: it is not asked about again."""
        standing = self.state.table.standing
        if standing is not None and standing.proposal.ref == ref:
            return standing.signed_by(self.me)
        if poll := next((poll for poll in self.state.polls.open if poll.ref == ref), None):
            return any(b.agent == self.me and b.choice == APPROVE for b in poll.ballots)
        for entry in (e for e in reversed(self.dialog.entries) if e.is_turn):
            if entry.by == self.me and any(ref in agreed(mark) for mark in entry.marks):
                return True
            if entry.by == USER:
                return False
        return False


def _strange(mark: Mark) -> str:
    if mark.name not in MARKS:
        return f"no mark is called {mark.name}"
    return f"{'daemons' if Who.DAEMON in MARKS[mark.name].who else 'the person'} alone may write that"


# -- The closing question ---------------------------------------------------------------------------------------------

MOST = 5  # matters of one question; what is beyond stays unclear
MOST_NAMED = 50  # marks among the words of an answer that are looked at
TEXT = "the text"  # what a CONSENSUS_REACHED over a new summary is about
DECISION = "the decision"
PASS = "[PASS]"
OBJECT = "[OBJECTION: what must change]"
DEADLOCKED = "[DEADLOCK: the crux | the cheapest experiment]"
BESIDE = "asked whether it is meant as it stands, its agent wrote other words beside the yes: that line alone is clear"

# What may stand above an answer and says nothing in it: comments and thoughts in any tag, and one heading.
_ASIDE = re.compile(r"\s*(?:<!--.*?-->|<([a-z][\w:-]*)(?:\s[^<>]*)?>.*?</\1\s*>)(?=\s*\S)", re.I | re.S)
_HEADING = re.compile(r"\s*#{1,6}[ \t][^\n\[]*\n(?=\s*\S)")
_STOP = re.compile(r"(?<=[\]*_`])[.。][ \t]*\Z")  # a full stop right behind a mark
_BRACKETED = re.compile(r"\[[^\[\]\n]*\]")


@dataclass(frozen=True, slots=True)
class Matter:
    """One thing that must be clear."""

    about: str  # a proposal's number, `the text`, `the decision`, or a mark's name
    said: str  # the matter in words for the agent
    forms: tuple[str, ...]  # the lines with which it may answer
    marks: tuple[Mark, ...] = ()  # those of the reply that hang on it
    tried: tuple[str, ...] = ()  # lines of it that began like one
    stands: bool = False  # silence leaves the marks as they are

    def answers(self, marks: Sequence[Mark]) -> list[Mark]:
        """Those of the marks that may answer it: they choose on what one of its forms does."""
        forms = {_key(form) for form in map(literal, self.forms) if form is not None}
        return [mark for mark in marks if _key(mark) in forms]


@dataclass(frozen=True, slots=True)
class Admission:
    """What of the `reply` of agent `me` may count in `dialog`, and what it must be asked about first."""

    dialog: Dialog
    me: str
    reply: ParsedReply
    kept: ParsedReply  # once a reservation that its yes lacks is named
    refused: tuple[Refusal, ...]
    tried: tuple[tuple[str, str], ...]  # its attempts at marks
    unclear: tuple[Matter, ...]  # everything that must be clear and is not

    def within(self, dialog: Dialog) -> Admission:
        """The same reply in the dialog as it is now."""
        return self if dialog is self.dialog else admit(dialog, self.me, self.reply)

    def due(self, answers: Sequence[str]) -> tuple[Matter, ...]:
        """What is to be asked next: all that is unclear, then once more what was answered with a yes among other words.

        `answers` are those that came so far, "" for a question without one. It follows from the reply and what its
        agent was asked, not from who else has signed.
        """
        asked = self.unclear[:MOST]
        if len(answers) != 1:
            return () if answers else asked
        read, _ = self._read(answers)
        again = []
        for matter in asked:
            if not read.to(matter) and (yes := read.named(matter)):
                said = (
                    f" Your answer was {one_line(answers[0], 200)!r}: the words beside `{_bare(yes)}` may be a"
                    " condition, so it is no yes yet. If you have no condition, that line alone is clear."
                )
                again.append(replace(matter, said=matter.said + said))
        return tuple(again)

    def _read(self, answers: Sequence[str]) -> tuple[_Answer, _Answer]:
        """The answer to the closing question, and the one where that was put once more."""
        first, second = (_Answer.of(answer, tuple(self.dialog.header.rules.kinds)) for answer in (*answers, "", "")[:2])
        return first, second

    def counted(self, answers: Sequence[str] = ()) -> tuple[ParsedReply, tuple[Refusal, ...]]:
        """What counts after the `answers` to the closing question, and what does not."""
        reply, unclear = self._settled(answers)
        policy = MarkPolicy(self.dialog, self.me)
        is_as_it_was = (reply.marks, reply.body) == (self.reply.marks, self.reply.body)
        if is_as_it_was and not policy.lacks_reservation(self.reply):
            return replace(self.kept, tried=()), (*unclear, *self.refused)
        kept, refused = policy.admitted(reply)
        return kept, (*unclear, *refused)

    def _settled(self, answers: Sequence[str]) -> tuple[ParsedReply, tuple[Refusal, ...]]:
        """The reply after the answers to its closing question, and what of it stayed unclear."""
        reply = self.reply
        read, second = self._read(answers)
        gone: dict[Mark, None] = {}
        new: dict[Mark, None] = {}
        refused: list[Refusal] = []
        for number, matter in enumerate(self.unclear):
            chosen = read.to(matter) or (second.to(matter) if read.named(matter) else ()) if number < MOST else ()
            passes = all(mark.is_pass for mark in chosen)
            gone |= dict.fromkeys(mark for mark in reply.marks if str(mark) in matter.tried)
            if chosen:
                said = {_bare(mark) for mark in matter.marks}
                gone |= dict.fromkeys(_dropped(matter, chosen))
                new |= dict.fromkeys(mark for mark in chosen if not mark.is_pass and _bare(mark) not in said)
                if passes:
                    yes = [mark for mark in matter.marks if is_yes(mark)]
                    refused += _refusals(yes, matter.tried, "asked about it, its agent does not say yes now")
            elif not matter.stands:
                unclear = [mark for mark in matter.marks if is_yes(mark) or len(_votes(matter.marks)) > 1]
                gone |= dict.fromkeys(unclear)
                refused += _refusals(unclear, matter.tried, (read if second.is_empty else second).why(matter))
            if matter.about == TEXT and passes:
                new[Mark("CONSENSUS_REACHED", UNSIGNED)] = None
        named = (m for m in (*read.marks, *second.marks) if m.name == "RESERVATION" and not is_blank(m.value))
        if not reply.has("RESERVATION") and (reservation := next(named, None)):
            new[reservation] = None
        asked = {line for matter in self.unclear for line in matter.tried}
        left = [line for _, line in self.tried if line not in asked]  # there is no form for them here, or too many
        refused += _refusals((), left, "it has not the form, or the place, of a mark that counts here")
        replaced = "\n".join(str(mark) for mark in gone)
        # What is replaced goes before a summary, which reaches to the body's end.
        parts = (replaced, reply.body) if reply.summary else (reply.body, replaced)
        marks = dict.fromkeys((*(mark for mark in reply.marks if mark not in gone), *new))
        return replace(reply, body="\n\n".join(filter(None, parts)), marks=tuple(marks), tried=()), tuple(refused)


def admit(dialog: Dialog, me: str, reply: ParsedReply) -> Admission:
    """Rule on a reply of agent `me`: what may count, and what must be asked."""
    doubts = _Doubts(dialog, me, reply)
    return Admission(dialog, me, reply, doubts.kept, doubts.refused, doubts.tried, tuple(doubts.found()))


def question(found: Sequence[Matter]) -> str:
    """What the agent is asked, in words for it."""
    if len(found) == 1:
        return f"{found[0].said} Answer with one line, and with no other word: {_or(found[0].forms)}."
    asked = "\n".join(f"{number}. {m.said} {_or(m.forms)}" for number, m in enumerate(found, 1))
    return f"Answer with one line for each of these, and with no other word:\n\n{asked}"


def _or(forms: Sequence[str]) -> str:
    shown = [f"`{form}`" + (" (not now; the text stays)" if form == PASS else "") for form in forms]
    return f"{', '.join(shown[:-1])} or {shown[-1]}" if len(shown) > 1 else "".join(shown)


def _dropped(matter: Matter, chosen: Sequence[Mark]) -> Iterator[Mark]:
    """The marks of a matter that its answer takes the place of: a yes drops what opposes it, a no every yes."""
    is_for = any(map(is_yes, chosen))
    names, said = {one.name for one in chosen}, {_bare(one) for one in chosen}
    for mark in matter.marks:
        signs = mark.name == "CONSENSUS_REACHED" and not matter.stands and "AGREE" in names
        is_named = mark.name == "DEADLOCK" and "DEADLOCK" in names
        opposes = is_for or is_named or is_yes(mark) or mark.name in ("VOTE", "DECIDE")
        if opposes and not signs and _bare(mark) not in said:
            yield mark


def _refusals(marks: Sequence[Mark], lines: Sequence[str], why: str) -> Iterator[Refusal]:
    """What does not count and stands in the body, as the agent wrote it: marks, and lines that were meant as some."""
    meant = (Mark(one_line(line.strip(" \t*_`#>-").strip("[]"), 100)) for line in lines)
    yield from (Refusal(mark, why, stays=True) for mark in (*marks, *meant))


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer to a closing question, read: its marks, whether it holds anything else, and those among its words."""

    marks: tuple[Mark, ...]
    is_clean: bool
    is_empty: bool
    among: tuple[Mark, ...]

    @classmethod
    def of(cls, text: str, kinds: Sequence[str]) -> _Answer:
        """Read it without what may stand above it, the one fence around all of it, and a `TURN:` line below."""
        at, is_headed = 0, False
        while above := _ASIDE.match(text, at) or (None if is_headed else _HEADING.match(text, at)):
            at, is_headed = above.end(), is_headed or above.re is _HEADING
        rows = without_turn_line(text[at:].strip()).split("\n")
        if len(rows) > 1 and (match := FENCE.fullmatch(rows[0])) and rows[-1].strip() == match[1]:
            rows = rows[1:-1]
        lines = [_STOP.sub("", row) for row in rows if row.strip()]
        read = [read_reply(line, kinds).marks if literal(line) is not None else () for line in lines]
        found = islice(_BRACKETED.finditer("\n".join(rows)), MOST_NAMED)
        among = tuple(mark for one in found for mark in read_reply(one[0], kinds).marks)
        return cls(tuple(mark for marks in read for mark in marks), all(len(m) == 1 for m in read), not lines, among)

    def why(self, matter: Matter) -> str:
        """Why what it leaves unclear does not count."""
        if self.named(matter) is not None:
            return BESIDE
        said = "gave no answer" if self.is_empty else "gave no clear answer"
        return f"asked whether it is meant as it stands, its agent {said}"

    def to(self, matter: Matter) -> tuple[Mark, ...]:
        """The marks that answer a matter; () where none does, or not clearly. A no beside a yes beats it."""
        fitting = matter.answers(self.marks)
        against = [mark for mark in fitting if not is_yes(mark) and not mark.is_pass]
        yes = [mark for mark in fitting if is_yes(mark)]
        if against:
            return () if len(_votes(against)) > 1 else tuple(against)
        if not yes:
            return tuple(fitting[:1])
        is_bare = all(str(mark) == _bare(mark) or mark in matter.marks for mark in yes)  # or has its reply's reason
        is_clear = self.is_clean and len(set(map(_bare, yes))) == 1 and is_bare
        return tuple(yes[:1]) if is_clear and not any(m.is_pass for m in fitting) else ()

    def named(self, matter: Matter) -> Mark | None:
        """The yes to a matter that it names among other words; None where it names none, or another answer too."""
        fitting = {_bare(mark): mark for mark in matter.answers(self.among)}
        return next((mark for mark in fitting.values() if is_yes(mark)), None) if len(fitting) == 1 else None


def _key(mark: Mark) -> tuple[str, str]:
    return mark.name, _ref(mark) or (_bare(mark) if mark.name in CHOOSING else "")


def _ref(mark: Mark) -> str:
    choice = vote(mark) if mark.name in ("VOTE", "DECIDE") else None
    return choice.ref if choice else next(iter(agreed(mark)), "")


def _bare(mark: Mark) -> str:
    return f"[{mark.name}: {mark.value.partition('|')[0].strip()}]" if mark.name in CHOOSING else str(mark)


def _votes(marks: Sequence[Mark]) -> set[str]:
    return {choice.choice for mark in marks if mark.name in ("VOTE", "DECIDE") and (choice := vote(mark))}


class _Doubts(MarkPolicy):
    """What must be clear about a `reply` and is not; `kept` is what of it may count."""

    def __init__(self, dialog: Dialog, me: str, reply: ParsedReply) -> None:
        super().__init__(dialog, me)
        self.reply = reply
        named = Mark("RESERVATION", "to be named")  # where a yes lacks one, that is asked for, too
        lacks = self.lacks_reservation(reply)
        kept, self.refused = self.admitted(replace(reply, marks=(*reply.marks, named)) if lacks else reply)
        self.kept = replace(kept, marks=tuple(mark for mark in kept.marks if mark is not named))
        self.tried = tuple(self._tried())
        self.asks_about_words = self.header.setup.get("confirm") is not False
        lacking = " Below a yes this dialog asks for a line `[RESERVATION: the strongest objection left]`."
        self.reservation = lacking if self.lacks_reservation(self.kept) else ""

    def _tried(self) -> Iterator[tuple[str, str]]:
        """The attempts of the reply at marks, by name and line, that no mark of it says already."""
        said = {_bare(mark) for mark in self.kept.marks}
        for name, line in self.reply.tried[: 4 * MOST]:
            mark = literal(line)
            again = read_reply(str(mark)).marks if mark is not None else ()
            if name != "PASS" and not (again and _bare(again[0]) in said):
                yield name, line
        for mark in self.reply.marks:  # a judgement in the form of a decision on a proposal, or the other way round
            is_other = mark.name == "DECIDE" and (decision(mark) is None) != self.is_judge
            if is_other and mark not in self.kept.marks:
                yield mark.name, str(mark)

    def found(self) -> Iterator[Matter]:
        """Everything about the reply that must be clear and is not."""
        if self.is_judge:
            yield from self._judgement()
            return
        found = [*self._new_text(), *self._proposals()]
        about = {matter.about for matter in found}
        found += [matter for matter in self._due() if matter.about not in about]
        asked = {line for matter in found for line in matter.tried}
        left: dict[str, list[str]] = {}
        for name, line in self.tried:
            if line not in asked:
                left.setdefault(name, []).append(line)
        yield from found
        for name, lines in left.items():
            if forms := self._legal(name):
                said = (
                    f"This line of your reply could not be read: {one_line(lines[0], 100)!r}. Such a mark has one form,"
                    " and stands among the last lines of a reply."
                )
                yield Matter(name, said, tuple(dict.fromkeys((*forms, PASS))), tried=tuple(lines))

    def _against(self, ref: str) -> list[Mark]:
        """Marks that oppose a yes to `ref` ("" for a new text) in the same reply."""
        text = self.text.proposal.ref if ref and self.text else ""
        answered = {r for mark in self.kept.marks if mark.name == "RE" for r in references(mark)[1]}
        found = [mark for mark in self.kept.marks if mark.name in ("DEADLOCK", "PASS")]
        for mark in (mark for mark in self.reply.marks if mark.name == "OBJECTION"):  # one without words, too
            named = set(objected(mark)) or answered
            if not named or ref in named or ref == text:
                found.append(mark)
        return found

    def _new_text(self) -> Iterator[Matter]:
        """A new text that the reply puts on the table, and signs by that."""
        kept = self.kept
        mark = next((m for m in kept.marks if m.name == "CONSENSUS_REACHED"), None)
        may_sign = self.rules.verdict == "mutual" and self.role.may(VOTE)
        if mark is None or not kept.summary or self.signed(mark, kept) or not may_sign:
            return
        against = self._against("")
        if against or (self.reply.words(states_text=True) and self.asks_about_words):
            said = "Your reply puts the text under its `## Consensus Summary` on the table and signs it,"
            said += " without any condition."
            if against:
                said += f" Beside it stands {', '.join(f'`[{mark.name}]`' for mark in against)}."
            forms = ("[CONSENSUS_REACHED]", OBJECT, *_deadlock(against), PASS)
            yield Matter(TEXT, said + self.reservation, forms, (mark, *against))

    def _proposals(self) -> Iterator[Matter]:
        about: dict[str, list[Mark]] = {}
        for mark in self.kept.marks:
            ref = self.signed(mark, self.kept) if mark.name == "CONSENSUS_REACHED" else _ref(mark)
            if ref:
                about.setdefault(ref, []).append(mark)
        tried: dict[str, list[tuple[str, str]]] = {}
        known = {proposal.ref for proposal in self.state.table.proposals}
        for name, line in self.tried:
            named = {*re.findall(r"P\d{1,6}", line.upper())} & known
            if len(named) == 1 and self.forms(name, ref := named.pop()):
                tried.setdefault(ref, []).append((name, line))
                about.setdefault(ref, [])
        for ref, marks in about.items():
            yield from self._proposal(ref, marks, tried.get(ref, []))

    def _proposal(self, ref: str, marks: Sequence[Mark], tried: Sequence[tuple[str, str]]) -> Iterator[Matter]:
        yes = [mark for mark in marks if is_yes(mark)]
        against = self._against(ref) if yes else []
        words = self.reply.words(states_text=any(mark.name == "CONSENSUS_REACHED" for mark in yes))
        asks = bool(yes) and (bool(words) or any(str(mark) != _bare(mark) for mark in yes))
        asks = asks and self.asks_about_words and not self.has_agreed(ref)
        standing, verdict = self.state.table.standing, self.rules.verdict
        signs = verdict == "mutual" and standing is not None and standing.proposal.ref == ref
        needs = signs or (verdict == "vote" and any(mark.name == "VOTE" for mark in yes))
        lacks = self.reservation if yes and needs else ""
        if against or len(_votes(marks)) > 1 or (yes and len(yes) < len(marks)):
            said = f"Your reply says both yes and no about {ref}."
        elif yes and (asks or lacks or tried):
            verb = "signs" if yes[0].name not in ("VOTE", "DECIDE") else "approves"
            said = f"Your reply {verb} {ref} as it stands, without any condition."
        elif tried:
            said = f"This line of your reply could not be read where it stands: {one_line(tried[0][1], 100)!r}."
        else:
            return
        names = [mark.name for mark in marks if mark.name != "CONSENSUS_REACHED"] or ["AGREE" for _ in marks]
        forms = self.forms((names or [tried[0][0]])[0], ref)
        lines = tuple(line for _, line in tried)
        yield Matter(ref, said + lacks, (*forms, *_deadlock(against), PASS), (*marks, *against), lines)

    def _due(self) -> Iterator[Matter]:
        """What the reply owes: where it stands on a text, a decision, the crux of a deadlock."""
        kept, text, table = self.kept, self.text, self.state.table
        asks = kept.has(QUESTION)
        # From the second replacement of a text on: a yes or an objection to the one on the table.
        is_open = text is not None and text.replaced > 1 and not text.signed_by(self.me)
        may_sign = self.rules.verdict == "mutual" and self.role.may(VOTE)
        says = asks or kept.has("OBJECTION") or kept.has("DEADLOCK")
        says = says or any(self.signed(mark, kept) for mark in kept.marks)
        if text is not None and is_open and may_sign and not says:
            ref = text.proposal.ref
            said = f"The text was replaced {text.replaced} times. Sign {ref} as it stands, or object."
            own = tuple(mark for mark in kept.marks if mark.name == "CONSENSUS_REACHED")
            yield Matter(ref, said, (f"[AGREE: {ref}]", OBJECT), own, stands=True)
        task = self.state.build.reviewed_by(self.me)
        if asks or kept.has("DECIDE") or kept.has("ESCALATE"):
            pass
        elif task is not None:
            said = "It is yours to decide on the submitted task, and your reply does not."
            yield Matter(task.ref, said, self.forms("DECIDE", task.ref), stands=True)
        elif self.state.is_asked_to_decide(self.me):
            done = {*table.vetoed, *(decision.ref for decision in table.decisions if decision.is_final)}
            open_ = [proposal.ref for proposal in table.proposals if proposal.ref not in done][-MOST:]
            forms = [f"[DECIDE: {ref} {choice}]" for ref in open_ for choice in ("approve", "reject")]
            said = "It is yours to decide, and your reply does not."
            yield Matter(DECISION, said, (*forms, "[ESCALATE: why you cannot]"), stands=True)
        # What a deadlock turns on, and what would settle it; in a plain dialog a bare one will do.
        marks = tuple(m for m in kept.marks if m.name == "DEADLOCK" and len([f for f in m.fields if f]) < 2)
        if marks and not self.rules.is_plain:
            what = "the one question on which it turns, and the cheapest experiment that would settle it"
            yield Matter("DEADLOCK", f"A deadlock names {what}.", (DEADLOCKED,), marks, stands=True)

    def _judgement(self) -> Iterator[Matter]:
        """The judge's choice: it is named every position, never its own choice alone."""
        marks = tuple(mark for mark in self.kept.marks if mark.name == "DECIDE")
        choices = {_bare(mark) for mark in marks}
        words = self.reply.words() or any(str(mark) != _bare(mark) for mark in marks)
        if self.kept.has(QUESTION):
            return
        if len(choices) > 1:
            said = "Your reply names more than one position."
        elif not choices:
            said = "You are the judge, and your reply does not say whose position holds."
        elif any(map(is_yes, marks)) and words and self.asks_about_words:
            said = "Your reply decides, without any condition, whose position holds."
        else:
            return
        lines = tuple(line for name, line in self.tried if name == "DECIDE")
        yield Matter(DECISION, said, tuple(f"[DECIDE: {who}]" for who in self.choices), marks, lines)

    def _legal(self, name: str) -> Sequence[str]:
        known = [proposal.ref for proposal in self.state.table.proposals][-MOST:]
        match name:
            case "AGREE" | "CONSENSUS_REACHED" if name == "AGREE" or self.text:
                refs = [self.text.proposal.ref] if self.text else known
                return [form for ref in refs for form in self.forms("AGREE", ref)]
            case "CONSENSUS_REACHED":
                return ["[CONSENSUS_REACHED]"] if self.role.may(PROPOSE) else []
            case "VOTE" | "DECIDE":
                refs = [poll.ref for poll in self.state.polls.open] if name == "VOTE" else known
                return [form for ref in refs for form in self.forms(name, ref)]
            case "TO":
                can = self.rules.order == "free" or self.role.may(MODERATE)
                return [f"[TO: {agent.id}]" for agent in self.header.agents if can and agent.id != self.me]
        return {
            "DEADLOCK": [DEADLOCKED],
            "ESCALATE": ["[ESCALATE: why]"],
            QUESTION: [f"[{QUESTION}: text | in 2h | default: what you do otherwise]"],
            "PASS": [PASS],
        }.get(name, [])


def _deadlock(against: Sequence[Mark]) -> tuple[str, ...]:
    return tuple(str(mark) for mark in against if mark.name == "DEADLOCK")

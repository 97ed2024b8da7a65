"""What of a reply may count, and what its agent is asked about it first: once, in one line. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dialogd.protocol import lifecycle
from dialogd.protocol.interventions import vetoes
from dialogd.protocol.marks import (
    APPROVE,
    DECIDING,
    FENCE,
    MARKS,
    Reply,
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
)
from dialogd.protocol.model import USER, Mark, digest
from dialogd.protocol.order import is_sealed_round, positioned
from dialogd.protocol.questions import NAME as QUESTION
from dialogd.protocol.review import level
from dialogd.protocol.rules import CONTRIBUTIONS, DECIDE, MODERATE, OWN_KINDS, PROPOSE, VOTE
from dialogd.protocol.state import Dialog
from dialogd.protocol.table import Standing
from dialogd.protocol.text import one_line

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
        why = _too_long(dialog, length) or _why_vetoed(dialog, mark, reply) or _to_nobody(dialog, me, mark)
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
    standing, debt = dialog.state.table.standing, dialog.state.debt(me)
    if standing is None or debt is None:
        return standing
    return standing if _at(standing.proposal.entry) <= _at(debt.re) else None


def _at(entry: str) -> tuple[int, int]:
    number, _, note = entry.partition(".")
    return (int(number), int(note or 0)) if number.isdecimal() and (note or "0").isdecimal() else (0, 0)


def signed(dialog: Dialog, me: str, mark: Mark, reply: Reply) -> str:
    """The number of the text on the table that this mark would sign; "" where it signs none."""
    standing = dialog.state.table.standing if mark.name == "AGREE" else on_the_table(dialog, me)
    if standing is None:
        return ""
    ref = standing.proposal.ref
    if mark.name == "AGREE":
        return ref if ref in agreed(mark) else ""
    same = not reply.summary or digest(same_text(reply.summary)) == standing.proposal.sha
    return ref if mark.name == "CONSENSUS_REACHED" and same else ""


def _why_vetoed(dialog: Dialog, mark: Mark, reply: Reply) -> str:
    """Why a mark of an agent's reply does not count: the person ruled out what it is about; "" where they did not."""
    if not dialog.state.table.vetoed:
        return ""
    known = vetoes(dialog)
    ref = next((ref for ref in _about(dialog, mark, reply) if ref in known), "")
    return f"{ref} was ruled out by the person" + (f": {known[ref]}" if known[ref] else "") if ref else ""


def _about(dialog: Dialog, mark: Mark, reply: Reply) -> Iterator[str]:
    """The proposals that a mark says yes or no to, or whose very text it puts anew."""
    match mark.name:
        case "AGREE":
            yield from (ref for ref in dialog.state.table.vetoed if ref in agreed(mark))
        case "VOTE":
            yield from (choice.ref for choice in (vote(mark),) if choice)
        case "DECIDE" if (choice := decision(mark)) is not None:
            yield choice.ref
        case "PROPOSAL":
            yield from _same(dialog, mark.value)
        case "CONSENSUS_REACHED" if reply.summary:
            yield from _same(dialog, reply.summary)


def _same(dialog: Dialog, text: str) -> Iterator[str]:
    """The proposals that were ruled out and have this very text."""
    sha = digest(same_text(text))
    for proposal in dialog.state.table.proposals:
        if proposal.ref in dialog.state.table.vetoed and sha == (proposal.sha or digest(same_text(proposal.text))):
            yield proposal.ref


def _to_nobody(dialog: Dialog, me: str, mark: Mark) -> str:
    """Why a mark does not count that is for the person, where nobody is at the table; one question may be asked."""
    header, state = dialog.header, dialog.state
    if not header.is_unattended:
        return ""
    if mark.name == QUESTION and me in state.questions.askers:
        return "nobody is at the table, as the last question was told: decide without the person"
    above = header.moderator
    if mark.name == "ESCALATE" and (above in ("", me) or above in state.absent):
        return "nobody is at the table, and nobody else moderates: decide among yourselves"
    return ""


def _why_not(dialog: Dialog, me: str, mark: Mark, reply: Reply) -> str:
    """Why a mark of this agent does not count; "" when it does."""
    header = dialog.header
    role, rules = header.rules.role(me), header.rules
    called = f" ({role.name})" if role.name else ""
    if me == header.judge:
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
    return "" if pick(mark, ids) else f"it names none of {', '.join((*ids, 'none'))}"


def _contribution(dialog: Dialog, mark: Mark, reply: Reply) -> str:
    """Why a contribution does not count: it lacks what its kind, or this dialog, asks for."""
    rules = dialog.header.rules
    kind = CONTRIBUTIONS.get(mark.name) or rules.kinds.get(mark.name)
    if kind is not None and kind.levels and level(mark) not in kind.levels:
        return f"its {kind.fields[0]} is none of {', '.join(kind.levels)}"
    sure = any(confidence(m) is not None for m in reply.marks if m.name == "CONFIDENCE")
    if rules.board is not None and rules.board.require_confidence and not sure:
        return "this dialog asks how sure you are: [CONFIDENCE: 0.8] beside it"
    return ""


def _confidence(_: Dialog, __: str, mark: Mark, ___: Reply) -> str:
    return "" if confidence(mark) is not None else "it is no number from 0 to 1"


def _to(dialog: Dialog, me: str, mark: Mark, _: Reply) -> str:
    rules = dialog.header.rules
    ids = [USER, *dialog.header.speakers]
    if not to(mark, ids):
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
    known = {proposal.ref for proposal in dialog.state.table.proposals}
    strange = [ref for ref in agreed(mark) if ref not in known]
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
    choice = vote(mark)
    open_ = [poll.ref for poll in dialog.state.polls.open]
    if choice is None or choice.ref not in open_:
        ref = choice.ref if choice else "it"
        return f"{ref} is not open for votes; open: {', '.join(open_) or 'none'}"
    return _without_reservation(dialog, reply) if choice.choice == APPROVE else ""


def _decide(dialog: Dialog, me: str, mark: Mark, _: Reply) -> str:
    choice, state = decision(mark), dialog.state
    if choice is None:
        return "it is not of the form [DECIDE: P1 approve | reason], or reject"
    if all(proposal.ref != choice.ref for proposal in state.table.proposals):
        return f"there is no {choice.ref}"
    known = next((d for d in state.table.decisions if d.ref == choice.ref and d.is_final), None)
    if known is not None:
        return f"{choice.ref} was decided in {known.entry}"
    if dialog.header.rules.verdict == "vote" and state.escalation.to != me:
        return f"{choice.ref} is the voters' to decide, until their votes fail"
    return ""


def may_vote(dialog: Dialog, me: str) -> bool:
    """True for an agent whose vote counts, while something is open."""
    return dialog.header.rules.verdict == "vote" and me in dialog.header.voters and bool(dialog.state.polls.open)


def _room(dialog: Dialog, me: str) -> int:
    """How many contributions this agent may still make now."""
    board, state = dialog.header.rules.board, dialog.state
    if board is None:
        return 1_000_000
    if is_first_answer(dialog, me):
        return board.max_contributions_per_round
    own = board.max_contributions_per_round - state.floor.in_round.get(me, 0)
    return min(own, board.blackboard_capacity - state.floor.contributed)


def is_first_answer(dialog: Dialog, me: str) -> bool:
    """True while agent `me` owes a sealed first answer."""
    debt = dialog.state.debt(me)
    return debt is not None and is_sealed_round(dialog, debt)


def _full(dialog: Dialog, me: str, room: int) -> str:
    board = dialog.header.rules.board
    if board is None:
        return ""
    if dialog.state.floor.contributed + max(room, 0) >= board.blackboard_capacity:
        return f"the blackboard is full: {board.blackboard_capacity} contributions"
    return f"{me} has made {board.max_contributions_per_round} contributions in this round, the most there may be"


# -- The closing question ---------------------------------------------------------------------------------------------

MOST = 5  # matters of one question; what is beyond stays unclear
TEXT = "the text"  # what a CONSENSUS_REACHED over a new summary is about
DECISION = "the decision"

_THOUGHTS = re.compile(r"<(think|thinking|thought|reasoning|scratchpad|analysis)>.*?</\1>\s*", re.I | re.S)
_PASS = "[PASS]"


@dataclass(frozen=True, slots=True)
class Matter:
    """One thing that must be clear: a proposal's number, `the text`, `the decision`, or a mark's name.

    `said` is the matter in words for the agent, `forms` are the lines with which it may answer. `marks` are those of
    the reply that hang on it, `tried` its lines that began like one. `stands` is true where silence leaves the marks
    as they are.
    """

    about: str
    said: str
    forms: tuple[str, ...]
    marks: tuple[Mark, ...] = ()
    tried: tuple[str, ...] = ()
    stands: bool = False


@dataclass(frozen=True, slots=True)
class Admission:
    """What of the `reply` of agent `me` may count in `dialog`, and what it must be asked about first.

    `kept` is what may count, once a reservation that its yes lacks is named; `refused` what did not, `tried` its
    attempts at marks, `unclear` everything that must be clear and is not.
    """

    dialog: Dialog
    me: str
    reply: Reply
    kept: Reply
    refused: tuple[Refusal, ...]
    tried: tuple[tuple[str, str], ...]
    unclear: tuple[Matter, ...]

    @property
    def asked(self) -> tuple[Matter, ...]:
        """What the closing question has to name; () when everything is clear. What is beyond `MOST` stays unclear.

        It follows from the reply and what its agent was asked, not from who else has signed.
        """
        return self.unclear[:MOST]

    def within(self, dialog: Dialog) -> Admission:
        """The same reply in the dialog as it is now; nothing is done where that is the one it was admitted in."""
        return self if dialog is self.dialog else admit(dialog, self.me, self.reply)

    def counted(self, answer: str | None) -> tuple[Reply, tuple[Refusal, ...]]:
        """What counts after the `answer` to the closing question, and what does not; None where it was not asked."""
        reply, unclear = self._settled(answer)
        is_as_it_was = (reply.marks, reply.body) == (self.reply.marks, self.reply.body)
        if is_as_it_was and not lacks_reservation(self.dialog, self.reply):
            return replace(self.kept, tried=()), (*unclear, *self.refused)
        kept, refused = admitted(self.dialog, self.me, reply)
        return kept, (*unclear, *refused)

    def _settled(self, answer: str | None) -> tuple[Reply, tuple[Refusal, ...]]:
        """The reply after the `answer` to its closing question, and what of it stayed unclear.

        Without an answer (None, or "") every matter stays unclear. All marks that were not asked about stay as they
        were; what is replaced stands in the body.
        """
        reply = self.reply
        read = _Answer.of(answer or "", tuple(self.dialog.header.rules.kinds))
        gone: dict[Mark, None] = {}
        new: dict[Mark, None] = {}
        refused: list[Refusal] = []
        for number, matter in enumerate(self.unclear):
            chosen = read.to(matter) if number < MOST else ()
            gone |= dict.fromkeys(mark for mark in reply.marks if str(mark) in matter.tried)
            if chosen:
                gone |= dict.fromkeys(_dropped(matter, chosen))
                new |= dict.fromkeys(mark for mark in chosen if mark.name != "PASS" and not _is_said(mark, matter))
                if all(mark.name == "PASS" for mark in chosen):
                    yes = tuple(mark for mark in matter.marks if is_yes(mark))
                    refused += _refusals(replace(matter, marks=yes), "asked about it, its agent does not say yes now")
            elif not matter.stands:
                unclear = tuple(mark for mark in matter.marks if is_yes(mark) or len(_votes(matter.marks)) > 1)
                gone |= dict.fromkeys(unclear)
                refused += _refusals(replace(matter, marks=unclear), read.why)
        if read.reservation is not None and not reply.has("RESERVATION"):
            new[read.reservation] = None
        refused += self._left()
        replaced = "\n".join(str(mark) for mark in gone)
        # What is replaced goes before a summary, which reaches to the body's end.
        body = "\n\n".join(
            part for part in ((replaced, reply.body) if reply.summary else (reply.body, replaced)) if part
        )
        marks = (*(mark for mark in reply.marks if mark not in gone), *new)
        return replace(reply, body=body, marks=tuple(dict.fromkeys(marks)), tried=()), tuple(refused)

    def _left(self) -> Iterator[Refusal]:
        """Attempts that were not asked about, because there is no form for them here, or too many."""
        asked = {line for matter in self.unclear for line in matter.tried}
        for _, line in self.tried:
            if line not in asked:
                yield Refusal(
                    _as_mark(line), "it has not the form, or the place, of a mark that counts here", stays=True
                )


def admit(dialog: Dialog, me: str, reply: Reply) -> Admission:
    """Rule on a reply of agent `me`: what may count, and what must be asked."""
    named = Mark("RESERVATION", "to be named")  # where a yes lacks one, that is asked for, too
    probe = replace(reply, marks=(*reply.marks, named)) if lacks_reservation(dialog, reply) else reply
    kept, refused = admitted(dialog, me, probe)
    kept = replace(kept, marks=tuple(mark for mark in kept.marks if mark is not named))
    tried = tuple(_tried(dialog, me, reply, kept))
    return Admission(dialog, me, reply, kept, refused, tried, tuple(_unclear(dialog, me, reply, kept, tried)))


def _unclear(dialog: Dialog, me: str, reply: Reply, kept: Reply, tried: Sequence[tuple[str, str]]) -> Iterator[Matter]:
    """Everything about the reply that must be clear and is not."""
    if me == dialog.header.judge:
        yield from _judgement(dialog, reply, kept, tried)
        return
    found = [*_texts(dialog, me, reply, kept), *_proposals(dialog, me, reply, kept, tried)]
    about = {matter.about for matter in found}
    due = (*_replaced(dialog, me, kept), *_decision(dialog, me, kept), *_crux(dialog, kept))
    found += [matter for matter in due if matter.about not in about]
    rest = [(name, line) for name, line in tried if not any(line in matter.tried for matter in found)]
    yield from (*found, *_attempts(dialog, me, rest))


def question(found: Sequence[Matter]) -> str:
    """What the agent is asked, in words for it."""
    if len(found) == 1:
        return f"{found[0].said} Answer with one line, and with no other word: {_or(found[0].forms)}."
    asked = "\n".join(f"{number}. {m.said} {_or(m.forms)}" for number, m in enumerate(found, 1))
    return f"Answer with one line for each of these, and with no other word:\n\n{asked}"


def confirmed(found: Sequence[Matter]) -> str:
    """The answer of an agent that means its yes as it stands, and has nothing to add: for scripted ones."""
    lines = []
    for matter in found:
        if not all(map(is_yes, matter.marks)):
            continue
        said = {_bare(mark) for mark in matter.marks}
        if "[CONSENSUS_REACHED]" in said and matter.about != TEXT:
            said.add(f"[AGREE: {matter.about}]")
        lines += [form for form in matter.forms if form in said]
    return "\n".join(dict.fromkeys(lines))


def _dropped(matter: Matter, chosen: Sequence[Mark]) -> Iterator[Mark]:
    """The marks of a matter that its answer takes the place of: a yes drops what opposes it, a no every yes."""
    is_for = any(map(is_yes, chosen))
    for mark in matter.marks:
        is_same = any(_bare(mark) == _bare(one) for one in chosen)
        signs = mark.name == "CONSENSUS_REACHED" and not matter.stands
        is_same = is_same or (signs and any(one.name == "AGREE" for one in chosen))
        is_named = mark.name == "DEADLOCK" and any(one.name == "DEADLOCK" for one in chosen)
        if not is_same and (is_for or is_named or is_yes(mark) or mark.name in ("VOTE", "DECIDE")):
            yield mark


def _refusals(matter: Matter, why: str) -> Iterator[Refusal]:
    """What of a matter does not count. It stands in the body, as the agent wrote it."""
    for mark in matter.marks:
        yield Refusal(mark, why, stays=True)
    for line in matter.tried:
        yield Refusal(_as_mark(line), why, stays=True)


def _as_mark(line: str) -> Mark:
    """An attempt as a mark, to be named in a refusal."""
    return Mark(one_line(line.strip(" \t*_`#>-").strip("[]"), 100))


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer to a closing question, read: its marks, and whether it holds anything else."""

    marks: tuple[Mark, ...]
    is_clean: bool
    is_empty: bool

    @classmethod
    def of(cls, text: str, kinds: Sequence[str]) -> _Answer:
        lines = [line for line in _unwrapped(text).split("\n") if line.strip()]
        marks: list[Mark] = []
        is_clean = True
        for line in lines:
            read = read_reply(line, kinds).marks if literal(line) is not None else ()
            marks += read
            is_clean = is_clean and len(read) == 1
        return cls(tuple(marks), is_clean, not lines)

    @property
    def why(self) -> str:
        """Why what it leaves unclear does not count."""
        if self.is_empty:
            return "asked whether it is meant as it stands, its agent gave no answer"
        return "asked whether it is meant as it stands, its agent gave no clear answer"

    @property
    def reservation(self) -> Mark | None:
        """The strongest objection left, where the answer names it beside a yes."""
        return next((mark for mark in self.marks if mark.name == "RESERVATION" and mark.value), None)

    def to(self, matter: Matter) -> tuple[Mark, ...]:
        """The marks that answer a matter; () where none does, or not clearly. A no beside a yes beats it."""
        fitting = [mark for mark in self.marks if _fits(mark, matter)]
        against = [mark for mark in fitting if not is_yes(mark) and mark.name != "PASS"]
        yes = [mark for mark in fitting if is_yes(mark)]
        if against:
            return () if len(_votes(against)) > 1 else tuple(against)
        if yes:
            is_clear = self.is_clean and len(set(map(_bare, yes))) == 1 and all(map(_is_bare, yes))
            return tuple(yes[:1]) if is_clear and not any(m.name == "PASS" for m in fitting) else ()
        return tuple(fitting[:1])


def _unwrapped(text: str) -> str:
    """An answer without its thoughts, and without the one fence around all of it."""
    text = text.strip()
    thoughts = _THOUGHTS.match(text)
    lines = text[thoughts.end() if thoughts else 0 :].split("\n")
    if len(lines) > 1 and (match := FENCE.fullmatch(lines[0])) and lines[-1].strip() == match[1]:
        lines = lines[1:-1]
    return "\n".join(lines)


def _fits(mark: Mark, matter: Matter) -> bool:
    """True for a mark with which that matter may be answered."""
    names = {(literal(form) or Mark("")).name for form in matter.forms}
    if mark.name not in names:
        return False
    if mark.name in ("AGREE", "VOTE") or (mark.name == "DECIDE" and decision(mark) is not None):
        ref = _ref(mark)
        forms = (literal(form) for form in matter.forms)
        return any(form is not None and form.name == mark.name and _ref(form) == ref for form in forms)
    return not (mark.name == "DECIDE" and all(_bare(mark) != form for form in matter.forms))


def _is_said(mark: Mark, matter: Matter) -> bool:
    """True where the answer only says again what the reply has said, perhaps with its reason."""
    return any(_bare(mark) == _bare(own) for own in matter.marks)


def _ref(mark: Mark) -> str:
    """The proposal that an AGREE, VOTE or DECIDE names; "" for none."""
    if mark.name == "AGREE":
        return next(iter(agreed(mark)), "")
    choice = vote(mark) if mark.name in ("VOTE", "DECIDE") else None
    return choice.ref if choice else ""


def _bare(mark: Mark) -> str:
    """The mark without its reason."""
    if mark.name in ("AGREE", "VOTE", "DECIDE"):
        return f"[{mark.name}: {mark.value.partition('|')[0].strip()}]"
    return str(mark)


def _is_bare(mark: Mark) -> bool:
    return str(mark) == _bare(mark)


def _votes(marks: Sequence[Mark]) -> set[str]:
    """The different choices among votes and decisions on one proposal."""
    return {choice.choice for mark in marks if mark.name in ("VOTE", "DECIDE") and (choice := vote(mark))}


def _or(forms: Sequence[str]) -> str:
    shown = [f"`{form}`" + (" (not now; the text stays)" if form == _PASS else "") for form in forms]
    return f"{', '.join(shown[:-1])} or {shown[-1]}" if len(shown) > 1 else "".join(shown)


# -- the matters of a reply -------------------------------------------------------------------------------------------


def _tried(dialog: Dialog, me: str, reply: Reply, kept: Reply) -> list[tuple[str, str]]:
    """The attempts of a reply that no mark of it says already."""
    said = {_bare(mark) for mark in kept.marks}
    found = []
    for name, line in reply.tried[: 4 * MOST]:
        mark = literal(line)
        again = read_reply(str(mark)).marks if mark is not None else ()
        if name != "PASS" and not (again and _bare(again[0]) in said):
            found.append((name, line))
    is_judge = me == dialog.header.judge
    for mark in reply.marks:  # a judgement in the form of a decision on a proposal, or the other way round
        if mark.name == "DECIDE" and mark not in kept.marks and (decision(mark) is None) != is_judge:
            found.append((mark.name, str(mark)))
    return found


def _wants_confirmation(dialog: Dialog) -> bool:
    return dialog.header.setup.get("confirm") is not False


def _against(kept: Reply, ref: str, standing: str) -> list[Mark]:
    """Marks that oppose a yes to `ref` in the same reply."""
    answered = {r for mark in kept.marks if mark.name == "RE" for r in references(mark)[1]}
    found = [mark for mark in kept.marks if mark.name in ("DEADLOCK", "PASS")]
    for mark in kept.marks:
        if mark.name == "OBJECTION":
            named = set(objected(mark)) or answered
            if not named or ref in named or ref == standing:
                found.append(mark)
    return found


def _texts(dialog: Dialog, me: str, reply: Reply, kept: Reply) -> Iterator[Matter]:
    """A new text that the reply puts on the table, and signs by that."""
    header = dialog.header
    mark = next((m for m in kept.marks if m.name == "CONSENSUS_REACHED"), None)
    may_sign = header.rules.verdict == "mutual" and header.rules.role(me).may(VOTE)
    if mark is None or not kept.summary or signed(dialog, me, mark, kept) or not may_sign:
        return
    against = _against(kept, "", "")
    words = reply.words(states_text=True)
    if not against and not (words and _wants_confirmation(dialog)):
        return
    said = "Your reply puts the text under its `## Consensus Summary` on the table and signs it, without any condition."
    forms = ("[CONSENSUS_REACHED]", "[OBJECTION: what must change]", *_deadlock(against), _PASS)
    yield Matter(TEXT, _beside(said, against) + _reservation(dialog, kept), forms, (mark, *against))


def _proposals(
    dialog: Dialog, me: str, reply: Reply, kept: Reply, tried: Sequence[tuple[str, str]]
) -> Iterator[Matter]:
    """Each proposal that the reply says yes to, votes on in two ways, or tries to."""
    standing = on_the_table(dialog, me)
    table = standing.proposal.ref if standing else ""
    about: dict[str, list[Mark]] = {}
    for mark in kept.marks:
        ref = signed(dialog, me, mark, kept) if mark.name == "CONSENSUS_REACHED" else _ref(mark)
        if ref:
            about.setdefault(ref, []).append(mark)
    lines: dict[str, list[str]] = {}
    known = {proposal.ref for proposal in dialog.state.table.proposals}
    for name, line in tried:
        named = [ref for ref in dict.fromkeys(re.findall(r"P\d{1,6}", line.upper())) if ref in known]
        if len(named) == 1 and _forms(dialog, me, name, named[0]):
            lines.setdefault(named[0], []).append(line)
            about.setdefault(named[0], [])
    for ref, marks in about.items():
        yield from _proposal(dialog, me, (reply, kept), ref, marks, lines.get(ref, ()), table)


def _proposal(
    dialog: Dialog,
    me: str,
    read: tuple[Reply, Reply],
    ref: str,
    marks: Sequence[Mark],
    lines: Sequence[str],
    table: str,
) -> Iterator[Matter]:
    reply, kept = read
    yes = [mark for mark in marks if is_yes(mark)]
    against = _against(kept, ref, table) if yes else []
    opposes = bool(against) or len(_votes(marks)) > 1 or (bool(yes) and any(not is_yes(mark) for mark in marks))
    words = reply.words(states_text=any(mark.name == "CONSENSUS_REACHED" for mark in yes))
    asks = bool(yes) and (bool(words) or not all(map(_is_bare, yes))) and not _stands(dialog, me, ref)
    lacks = bool(yes) and _needs_reservation(dialog, ref, yes) and lacks_reservation(dialog, kept)
    if not (opposes or lines or lacks or (asks and _wants_confirmation(dialog))):
        return
    if opposes:
        said = f"Your reply says both yes and no about {ref}."
    elif yes:
        verb = {"VOTE": "approves", "DECIDE": "approves"}.get(yes[0].name, "signs")
        said = f"Your reply {verb} {ref} as it stands, without any condition."
    else:
        said = f"This line of your reply could not be read where it stands: {one_line(lines[0], 100)!r}."
    name = next((mark.name for mark in marks if mark.name != "CONSENSUS_REACHED"), "AGREE" if marks else "")
    forms = _forms(dialog, me, name or _name_of(lines), ref)
    forms = (*forms[:-1], *_deadlock(against), forms[-1])
    said += _reservation(dialog, kept) if yes and _needs_reservation(dialog, ref, yes) else ""
    yield Matter(ref, said, forms, (*marks, *against), tuple(lines))


def _name_of(lines: Sequence[str]) -> str:
    return next((name for line in lines for name, _ in read_reply(line).tried), "") or next(
        (mark.name for line in lines if (mark := literal(line)) is not None), "AGREE"
    )


def _beside(said: str, against: Sequence[Mark]) -> str:
    return f"{said} Beside it stands {', '.join(f'`[{mark.name}]`' for mark in against)}." if against else said


def _reservation(dialog: Dialog, kept: Reply) -> str:
    """What this dialog asks for beside a yes, where the reply lacks it."""
    lacks = lacks_reservation(dialog, kept)
    return " Below a yes this dialog asks for a line `[RESERVATION: the strongest objection left]`." if lacks else ""


def _deadlock(against: Sequence[Mark]) -> tuple[str, ...]:
    return tuple(str(mark) for mark in against if mark.name == "DEADLOCK")


def _needs_reservation(dialog: Dialog, ref: str, yes: Sequence[Mark]) -> bool:
    if dialog.header.rules.verdict == "vote":
        return any(mark.name == "VOTE" for mark in yes)
    standing = dialog.state.table.standing
    return dialog.header.rules.verdict == "mutual" and standing is not None and standing.proposal.ref == ref


def _forms(dialog: Dialog, me: str, name: str, ref: str) -> tuple[str, ...]:
    """The lines with which agent `me` may say where it stands on a proposal; () where it may say nothing."""
    rules = dialog.header.rules
    if name == "DECIDE" and rules.role(me).may(DECIDE, MODERATE):
        return (f"[DECIDE: {ref} approve]", f"[DECIDE: {ref} reject]", _PASS)
    if may_vote(dialog, me) and not is_first_answer(dialog, me):
        agrees = (f"[AGREE: {ref}]",) if name == "AGREE" else ()  # which accepts it, and is no vote
        return (*(f"[VOTE: {ref} {choice}]" for choice in ("approve", "reject", "abstain")), *agrees, _PASS)
    if name in ("AGREE", "CONSENSUS_REACHED") and not is_first_answer(dialog, me):
        return (f"[AGREE: {ref}]", "[OBJECTION: what must change]", _PASS)
    return ()


def _stands(dialog: Dialog, me: str, ref: str) -> bool:
    """True when this agent's yes to the proposal stands in the file already: it is not asked about again."""
    standing = dialog.state.table.standing
    if standing is not None and standing.proposal.ref == ref:
        return standing.signed_by(me)
    for poll in dialog.state.polls.open:
        if poll.ref == ref:
            return any(b.agent == me and b.choice == APPROVE for b in poll.ballots)
    since = (e for e in reversed(dialog.entries) if e.is_turn)
    for entry in since:
        if entry.by == me and any(ref in agreed(mark) for mark in entry.marks):
            return True
        if entry.by == "USER":
            return False
    return False


def _replaced(dialog: Dialog, me: str, kept: Reply) -> Iterator[Matter]:
    """From the second replacement of a text on: a yes or an objection to the one on the table is due."""
    standing, rules = on_the_table(dialog, me), dialog.header.rules
    if standing is None or standing.replaced < 2 or standing.signed_by(me) or rules.verdict != "mutual":
        return
    if not rules.role(me).may(VOTE) or any(kept.has(name) for name in ("OBJECTION", "DEADLOCK", QUESTION)):
        return
    ref = standing.proposal.ref
    if any(signed(dialog, me, mark, kept) for mark in kept.marks):
        return
    said = f"The text was replaced {standing.replaced} times. Sign {ref} as it stands, or object."
    own = tuple(mark for mark in kept.marks if mark.name == "CONSENSUS_REACHED")
    yield Matter(ref, said, (f"[AGREE: {ref}]", "[OBJECTION: what must change]"), own, stands=True)


def _decision(dialog: Dialog, me: str, kept: Reply) -> Iterator[Matter]:
    """A decision from whom it was asked for."""
    state = dialog.state
    if not state.is_asked_to_decide(me) or any(kept.has(name) for name in ("DECIDE", "ESCALATE", QUESTION)):
        return
    decided = {decision.ref for decision in state.table.decisions if decision.is_final}
    open_ = [p.ref for p in state.table.proposals if p.ref not in decided and p.ref not in state.table.vetoed][-MOST:]
    forms = [f"[DECIDE: {ref} {choice}]" for ref in open_ for choice in ("approve", "reject")]
    said = "It is yours to decide, and your reply does not."
    yield Matter(DECISION, said, (*forms, "[ESCALATE: why you cannot]"), stands=True)


def _crux(dialog: Dialog, kept: Reply) -> Iterator[Matter]:
    """What a deadlock turns on, and what would settle it; in a plain dialog a bare one will do."""
    marks = tuple(mark for mark in kept.marks if mark.name == "DEADLOCK" and len(list(filter(None, mark.fields))) < 2)
    if marks and not dialog.header.rules.is_plain:
        said = "A deadlock names the one question on which it turns, and the cheapest experiment that would settle it."
        yield Matter("DEADLOCK", said, ("[DEADLOCK: the crux | the cheapest experiment]",), marks, stands=True)


def _judgement(dialog: Dialog, reply: Reply, kept: Reply, tried: Sequence[tuple[str, str]]) -> Iterator[Matter]:
    """The judge's choice: it is named every position, never its own choice alone."""
    if kept.has(QUESTION):
        return
    ids = (*positioned(dialog.header, dialog.state), "none")
    forms = tuple(f"[DECIDE: {who}]" for who in ids)
    marks = tuple(mark for mark in kept.marks if mark.name == "DECIDE")
    lines = tuple(line for name, line in tried if name == "DECIDE")
    choices = {_bare(mark) for mark in marks}
    words = reply.words() or not all(map(_is_bare, marks))
    asks = any(map(is_yes, marks)) and words and _wants_confirmation(dialog)
    if len(choices) == 1 and not asks:
        return
    if len(choices) > 1:
        said = "Your reply names more than one position."
    elif choices:
        said = "Your reply decides, without any condition, whose position holds."
    else:
        said = "You are the judge, and your reply does not say whose position holds."
    yield Matter(DECISION, said, forms, marks, lines)


def _attempts(dialog: Dialog, me: str, tried: Sequence[tuple[str, str]]) -> Iterator[Matter]:
    """What else began like a deciding mark and was none."""
    by_name: dict[str, list[str]] = {}
    for name, line in tried:
        by_name.setdefault(name, []).append(line)
    for name, lines in by_name.items():
        forms = tuple(_attempted_forms(dialog, me, name))
        if not forms:
            continue
        said = (
            f"This line of your reply could not be read: {one_line(lines[0], 100)!r}. Such a mark has one form, and"
            " stands among the last lines of a reply."
        )
        yield Matter(name, said, (*forms, *([_PASS] if _PASS not in forms else [])), tried=tuple(lines))


def _attempted_forms(dialog: Dialog, me: str, name: str) -> Iterator[str]:
    """The legal forms of a mark of that name here."""
    refs = [poll.ref for poll in dialog.state.polls.open]
    standing = on_the_table(dialog, me)
    if name == "AGREE" or (name == "CONSENSUS_REACHED" and standing is not None):
        refs = [standing.proposal.ref] if standing else [p.ref for p in dialog.state.table.proposals][-MOST:]
        yield from (form for ref in refs for form in _forms(dialog, me, "AGREE", ref) if form != _PASS)
    elif name == "VOTE":
        yield from (form for ref in refs for form in _forms(dialog, me, "VOTE", ref) if form != _PASS)
    elif name == "DECIDE":
        known = [p.ref for p in dialog.state.table.proposals][-MOST:]
        yield from (form for ref in known for form in _forms(dialog, me, "DECIDE", ref) if form != _PASS)
    elif name == "TO":
        ids = [agent.id for agent in dialog.header.agents if agent.id != me]
        can = dialog.header.rules.order == "free" or dialog.header.rules.role(me).may(MODERATE)
        yield from (f"[TO: {who}]" for who in ids if can)
    elif name == "CONSENSUS_REACHED" and not dialog.header.rules.role(me).may(PROPOSE):
        return
    elif name in DECIDING:
        yield {
            "CONSENSUS_REACHED": "[CONSENSUS_REACHED]",
            "DEADLOCK": "[DEADLOCK: the crux | the cheapest experiment]",
            "ESCALATE": "[ESCALATE: why]",
            QUESTION: f"[{QUESTION}: text | in 2h | default: what you do otherwise]",
            "PASS": _PASS,
        }[name]

"""Who said what to whom: a dialog as messages, and these as a Mermaid sequence diagram. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from dialogd.protocol import build, marks, questions
from dialogd.protocol.marks import MARKS, Who
from dialogd.protocol.model import ANY, SYSTEM, USER, Condition, Entry, Mark
from dialogd.protocol.review import total_of
from dialogd.protocol.rules import Build
from dialogd.protocol.state import Dialog, Proposal
from dialogd.views.words import by_name, called, first_words, row_of, tried, words_of

FOLDED = frozenset({"RE", "CONFIDENCE", "TO"})  # they say something about the other marks of their turn
LEADING = re.compile(r"[ \t]*(P\d{1,6}(?:(?:[ ,&+]+|[ ]and[ ])P\d{1,6})*)(?!\w)[ \t]*[:,.|–—-]*[ \t]*", re.I)


def kind_of(mark: Mark) -> tuple[str, str]:
    """A mark's type and text."""
    if mark.name == questions.NAME:
        return mark.name, questions.parse(mark).said
    return mark.name, mark.value


def named_by(mark: Mark) -> tuple[str, ...]:
    """The proposals and turns that a mark itself names."""
    if mark.ref:
        return (mark.ref,)
    if mark.name == "STRIKE":
        return tuple(re.findall(r"\d{1,9}", mark.value)[:1])
    if mark.name == "AGREE" and (agreed := marks.agreed(mark)):
        return tuple(agreed)
    match = LEADING.match(mark.value)
    return tuple(ref.upper() for ref in re.findall(r"P\d{1,6}", match[1], re.I)) if match else ()


def cited_by(entry: Entry) -> tuple[str, ...]:
    """The proposals, then the turns, that the entry's RE names."""
    found = [marks.references(mark) for mark in entry.all("RE")]
    return tuple(dict.fromkeys([*(ref for _, refs in found for ref in refs), *(str(t) for ts, _ in found for t in ts)]))


def confidence_of(entry: Entry) -> float | None:
    mark = entry.mark("CONFIDENCE")
    return marks.confidence(mark) if mark is not None else None


def only_passes(entry: Entry) -> bool:
    """True for a turn that says nothing but that there is nothing to add."""
    is_pass = entry.mark("PASS") is not None and all(m.name == "PASS" or m.name in FOLDED for m in entry.marks)
    return is_pass and not words_of(entry).strip()


# -- A dialog as messages ---------------------------------------------------------------------------------------------

TEXT = "TEXT"  # the type of a turn without marks that say something
USER_NAME, SYSTEM_NAME = "User", "System"

ASKING = frozenset({"QUESTION", questions.NAME, "ESCALATE"})
_TO_ALL = frozenset({"DECISION", "DECIDED", "ROUND", "DIGEST"})


class Payload(TypedDict):
    """What a message carries beside its envelope.

    `reference` is its own number (`P1`), or what it refers to; `turn` the number of its turn, or of the one before a
    note; `answers` the id of the message it answers; `score` the total of a review's score; `is_withdrawn` says that
    the person struck or vetoed it.
    """

    summary: str
    reference: str
    text: str
    turn: int
    entry: str
    answers: str
    confidence: float | None
    score: float | None
    is_open: bool
    is_withdrawn: bool


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `from_agent` and `to_agent` are agents' ids, `User` or `System`; several are joined by ", ".

    `from_name` and `to_names` are what people call them. `to_agent` is "" where it goes to all, `timestamp` "" where
    the file has none. `correlation_id` is the id of the message that the chain of answers began with; "" where this one
    answers nothing. `requires_response`: it asks, or gives somebody the turn by name.
    """

    message_id: str
    message_type: str
    from_agent: str
    to_agent: str
    timestamp: str
    correlation_id: str
    requires_response: bool
    payload: Payload
    from_name: str = ""
    to_names: tuple[str, ...] = ()


def flow(dialog: Dialog) -> tuple[Message, ...]:
    """Every message of the dialog, in order. Damaged entries and one that is being typed say nothing."""
    walk = _Walk(dialog)
    for entry in dialog.entries:
        if entry.condition not in (Condition.DAMAGED, Condition.UNFINISHED):
            walk.take(entry)
    names, vetoed = names_of(dialog), frozenset(dialog.state.table.vetoed)
    rules = dialog.header.rules.build
    return tuple(_finished(one, names, vetoed, rules) for one in walk.said)


@dataclass(slots=True, eq=False)
class _Said:
    """A message being built: `answers` is the one it answers, `root` the first one of that chain of answers.

    While it is open it waits for one of `asked`, for all of them where its turn names them by `[TO]`, or, where nobody
    is named, for anybody else.
    """

    entry: Entry
    turn: int
    kind: str
    speaker: str
    reference: str
    text: str
    summary: str
    refs: tuple[str, ...]
    id: str = ""
    to: tuple[str, ...] = ()
    answers: _Said | None = None
    root: _Said | None = None
    asked: set[str] = field(default_factory=set)
    is_open: bool = False


class _Walk:
    """What was said so far, and which of it waits for an answer."""

    def __init__(self, dialog: Dialog) -> None:
        self.dialog = dialog
        self.said: list[_Said] = []
        self.open: list[_Said] = []
        self.places: dict[str, _Said] = {}  # of proposals by number, of turns by theirs
        self.proposals: dict[str, list[Proposal]] = {}
        cast = (*dialog.header_as_written.agents, *dialog.header.agents)
        self.ids = list(dict.fromkeys(agent.id for agent in cast))  # of everybody who took part at any time
        self.turn = 0
        for proposal in dialog.state.table.proposals:
            self.proposals.setdefault(proposal.entry, []).append(proposal)

    def take(self, entry: Entry) -> None:
        """Add what one entry says."""
        self.turn = entry.number if entry.is_turn else self.turn
        closed = self._answered(entry)
        parts = list(self._parts(entry, is_answer=closed is not None))
        if parts and entry.is_turn:
            self.places.setdefault(str(entry.number), parts[0])
        for number, one in enumerate(parts, 1):
            one.id = f"{self.dialog.id}:{entry.id}.{number}"
            self._connect(one, closed if number == 1 else None)
        self.said += parts

    def _parts(self, entry: Entry, *, is_answer: bool) -> Iterator[_Said]:
        """The messages of one entry, without their addressees; what answers a question is said by its text too."""
        text, speaker = words_of(entry), entry.from_session or _name(entry.by)
        saying = [mark for mark in entry.written if mark.name not in FOLDED]
        says = any(entry.by == SYSTEM or not _is_daemons(mark) for mark in saying)
        if text and (not says or is_answer or entry.by == USER):
            cited = cited_by(entry)
            yield _Said(entry, self.turn, TEXT, speaker, ", ".join(cited), text, first_words(text), cited)
        numbered = iter([p for p in self.proposals.get(entry.id, ()) if not p.sha])
        for mark in saying:
            own = next(numbered, None) if mark.name == "PROPOSAL" else None
            yield self._of_mark(entry, mark, mark.ref or (own.ref if own else ""))

    def _of_mark(self, entry: Entry, mark: Mark, ref: str) -> _Said:
        kind, text = kind_of(mark)
        refs = () if row_of(mark.name).makes else named_by(mark)
        if mark.name == "CONSENSUS_PROPOSED":
            text = next((p.text for p in self.proposals.get(entry.id, ()) if p.ref == ref), "")
        own = ref or ", ".join(refs)
        words = LEADING.sub("", text, count=1) if refs else text
        if kind == "DECISION":  # what everybody signed is told by who signed it
            words = text.replace(" | mutual | ", " | ", 1)
        elif kind == "REFUSED":
            words = tried(text)
        speaker = SYSTEM_NAME if _is_daemons(mark) else _name(entry.by)
        cited = refs or (() if speaker == SYSTEM_NAME else cited_by(entry))
        return _Said(entry, self.turn, kind, speaker, own or ", ".join(cited), text, first_words(words), cited)

    def _connect(self, one: _Said, closed: _Said | None) -> None:
        """Say what a message answers, to whom it goes and whether it waits for an answer."""
        found = closed or next((self.places[ref] for ref in one.refs if ref in self.places), None)
        one.answers = found if found is not one else None
        one.root = one.answers.root if one.answers else one
        one.to = self._addressed(one)
        if row_of(one.kind).makes and one.reference:
            self.places[one.reference.split(",")[0]] = one
        if one.kind in ASKING and not one.entry.is_struck:
            one.is_open, one.asked = True, set(one.to)
            self.open.append(one)

    def _addressed(self, one: _Said) -> tuple[str, ...]:
        entry = one.entry
        if one.kind == questions.NAME:
            return (USER_NAME,)
        if one.kind in _TO_ALL:
            return ()
        to = () if one.speaker == SYSTEM_NAME else entry.all("TO")  # that is the agent's word, not the daemon's
        named = [who for mark in to for who in marks.to(mark, self.ids)] or list(entry.turn or ())
        if not named and one.answers is not None:
            named = [one.answers.speaker]
        found = dict.fromkeys(_name(who) for who in named if who not in (ANY, entry.by))
        others = {who for who in self.ids if who != entry.by}
        return () if len(others) > 1 and set(found) >= others else tuple(found)

    def _answered(self, entry: Entry) -> _Said | None:
        """Close the questions that this entry answers; gives the first of them."""
        closed = [question for question in self.open if self._closes(entry, question)]
        for question in closed:
            question.is_open = False
        self.open = [question for question in self.open if question.is_open]
        return closed[0] if closed else None

    def _closes(self, entry: Entry, question: _Said) -> bool:
        speaker = _name(entry.by)
        if question.kind == questions.NAME and entry.mark("DEFAULT_TAKEN") is not None:
            return True
        speaks = entry.is_turn or (entry.by == USER and entry.turn is not None)
        if not speaks or entry.is_struck or speaker == question.speaker:
            return False
        if question.kind == "QUESTION" and not self._is_about(entry, question):
            return False
        if not question.asked:
            return True
        is_asked = speaker in question.asked
        question.asked.discard(speaker)
        return is_asked and not (question.asked and question.entry.mark("TO") is not None)

    def _is_about(self, entry: Entry, question: _Said) -> bool:
        """True unless the turn only passes, or says by its RE that it is about other things."""
        if only_passes(entry):
            return False
        about = {str(question.turn), *question.refs, *(p.ref for p in self.proposals.get(question.entry.id, ()))}
        cited = cited_by(entry)
        return not cited or not about.isdisjoint(cited)


def _finished(one: _Said, names: Mapping[str, str], vetoed: Collection[str], rules: Build | None) -> Message:
    entry = one.entry
    score = None
    if one.kind == "SCORE":
        score = total_of(one.text) if rules is None else build.total(rules, [Mark("SCORE", one.text)])
    # What opens a debt by name: a person's turn that passes it to agents, an agent's with `[TO: B]`.
    passes = one.speaker != SYSTEM_NAME and entry.is_turn and bool(set(entry.turn or ()) - {USER})
    is_task = passes and (entry.mark("TO") is not None or (entry.by == USER and one.kind == TEXT))
    return Message(
        message_id=one.id,
        message_type=one.kind,
        from_agent=one.speaker,
        to_agent=", ".join(one.to),
        timestamp=entry.at,
        correlation_id=one.root.id if one.answers and one.root else "",
        requires_response=one.kind in ASKING or is_task,
        payload=Payload(
            summary=by_name(one.summary, lambda who: names.get(who, who)) if one.kind == "DECISION" else one.summary,
            reference=one.reference,
            text=one.text,
            turn=one.turn,
            entry=entry.id,
            answers=one.answers.id if one.answers else "",
            confidence=confidence_of(entry) if one.speaker == entry.by else None,
            score=score,
            is_open=one.is_open,
            is_withdrawn=entry.is_struck or (row_of(one.kind).makes and one.reference in vetoed),
        ),
        from_name=names.get(one.speaker, one.speaker),
        to_names=tuple(names.get(who, who) for who in one.to),
    )


def names_of(dialog: Dialog) -> Mapping[str, str]:
    """What everybody is called, by id: as in the last heading of theirs; with the id behind it where two share one."""
    found = {agent.id: agent.name or agent.id for agent in dialog.everybody}
    for entry in dialog.turns:
        if entry.by != USER and entry.name and (entry.frame is not None or entry.by not in found):
            found[entry.by] = entry.name
    often = Counter(name.casefold() for name in (*found.values(), USER_NAME, SYSTEM_NAME))
    return {who: name if often[name.casefold()] == 1 else f"{name} ({who})" for who, name in found.items()}


# Written by a daemon for its agent, out of what the agent said.
_OF_AGENTS = frozenset({"CONSENSUS_PROPOSED", "SEALED"})
_NAMES: Mapping[str, str] = {USER: USER_NAME, SYSTEM: SYSTEM_NAME}


def _is_daemons(mark: Mark) -> bool:
    return mark.name in MARKS and MARKS[mark.name].who is Who.DAEMON and mark.name not in _OF_AGENTS


def _name(who: str) -> str:
    return _NAMES.get(who, who)


# -- Messages as a Mermaid sequence diagram, as code hosts render it --------------------------------------------------

# Letters of all scripts and these stand for themselves; everything else is written by its number, because Mermaid
# ends a label at some signs, and reads others as markup, formulas, directives or references.
_UNSAFE = re.compile(r"[^\w .,/()!?+=*-]|_{2,}")
_KEYWORD = re.compile(r"\b(e)(nd)\b", re.I)


def participants(messages: Iterable[Message]) -> tuple[str, ...]:
    """Everybody who spoke or was spoken to, by first appearance: the person first, the system last."""
    found: dict[str, None] = {}
    for message in messages:
        found.update(dict.fromkeys([message.from_agent, *others(message)]))
    agents = [who for who in found if who not in ("User", "System")]
    return (*(w for w in ("User",) if w in found), *agents, *(w for w in ("System",) if w in found))


def names(messages: Iterable[Message]) -> dict[str, str]:
    """What everybody is called who spoke or was spoken to, by id."""
    found: dict[str, str] = {}
    for message in messages:
        found |= {message.from_agent: message.from_name, **dict(zip(others(message), message.to_names, strict=True))}
    return found


def others(message: Message) -> list[str]:
    """Whom a message names as addressees."""
    return [who for who in message.to_agent.split(", ") if who]


def as_mermaid(messages: Sequence[Message]) -> str:
    """A `sequenceDiagram`; ends with a newline. Participants have names of their own making, so that any name works."""
    lanes = {who: f"p{number}" for number, who in enumerate(participants(messages), 1)}
    people = names(messages)
    lines = ["sequenceDiagram", *(f"    participant {alias} as {label(people[who])}" for who, alias in lanes.items())]
    for message in messages:
        lines += _arrows(message, lanes)
    return "\n".join(lines) + "\n"


def _arrows(message: Message, lanes: dict[str, str]) -> Iterator[str]:
    speaker = lanes[message.from_agent]
    text = label(title(message))
    targets = [lanes[who] for who in others(message) if who != message.from_agent]
    for target in targets:
        yield f"    {speaker}{'-->>' if message.payload['is_withdrawn'] else '->>'}{target}: {text}"
    if not targets:
        ends = list(dict.fromkeys([next(iter(lanes.values())), list(lanes.values())[-1]]))
        yield f"    Note over {','.join(ends)}: {label(message.from_name)}: {text}"


def title(message: Message) -> str:
    """A message in one line: what it is, its reference and summary."""
    said = message.payload
    parts = [called(message.message_type), said["reference"], said["summary"]]
    suffix = " (withdrawn)" if said["is_withdrawn"] else " (open)" if said["is_open"] else ""
    return " ".join(part for part in parts if part) + suffix


def label(text: str) -> str:
    """A text that Mermaid shows as it is: on one line, without anything it would read as syntax."""
    flat = " ".join(text.split())
    coded = _UNSAFE.sub(lambda match: "".join(f"#{ord(char)};" for char in match[0]), flat)
    return _KEYWORD.sub(lambda match: f"{match[1]}#{ord(match[2][0])};{match[2][1]}", coded) or " "

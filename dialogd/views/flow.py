"""Who said what to whom: a dialog as messages, and these as a Mermaid sequence diagram. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from dialogd.protocol import build, marks, questions
from dialogd.protocol.marks import MARKS, Who
from dialogd.protocol.model import ANY, SYSTEM, USER, Condition, Entry, Mark
from dialogd.protocol.review import total_of
from dialogd.protocol.state import Dialog, Proposal
from dialogd.views.words import by_name, called, first_words, row_of, tried, words_of

FOLDED = frozenset({"RE", "CONFIDENCE", "TO"})  # they say something about the other marks of their turn
LEADING = re.compile(r"[ \t]*(P\d{1,6}(?:(?:[ ,&+]+|[ ]and[ ])P\d{1,6})*)(?!\w)[ \t]*[:,.|–—-]*[ \t]*", re.I)


def named_by(mark: Mark) -> tuple[str, ...]:
    """The proposals and turns that a mark itself names."""
    if mark.ref:
        return (mark.ref,)
    if mark.name == "STRIKE":
        return tuple(re.findall(r"\d{1,9}", mark.value)[:1])
    match = LEADING.match(mark.value)
    return marks.agreed(mark) or (tuple(re.findall(r"P\d{1,6}", match[1].upper())) if match else ())


def cited_by(entry: Entry) -> tuple[str, ...]:
    """The proposals, then the turns, that the entry's RE names."""
    found = [marks.references(mark) for mark in entry.all("RE")]
    return tuple(dict.fromkeys([*(ref for _, refs in found for ref in refs), *(str(t) for ts, _ in found for t in ts)]))


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


@dataclass(slots=True)
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
    return tuple(walk.said)


@dataclass(slots=True)
class _Open:
    """A question that waits: for one of `asked`, for all where its turn names them, for anybody else without any."""

    message: Message
    entry: Entry
    asked: set[str]
    about: set[str]


class _Walk:
    """What was said so far, and which of it waits for an answer."""

    def __init__(self, dialog: Dialog) -> None:
        self.dialog, self.names = dialog, names_of(dialog)
        self.said: list[Message] = []
        self.open: list[_Open] = []
        self.places: dict[str, Message] = {}  # of proposals by number, of turns by theirs
        self.proposals: dict[str, list[Proposal]] = {}
        cast = (*dialog.header_as_written.agents, *dialog.header.agents)
        self.ids = list(dict.fromkeys(agent.id for agent in cast))  # of everybody who took part at any time
        self.turn = 0
        for proposal in dialog.state.table.proposals:
            self.proposals.setdefault(proposal.entry, []).append(proposal)

    def take(self, entry: Entry) -> None:
        """Add what one entry says: its text where no mark of it says something, or it answers; then its marks."""
        self.turn = entry.number if entry.is_turn else self.turn
        closed, before = self._answered(entry), len(self.said)
        text, cited = words_of(entry), cited_by(entry)
        saying = [mark for mark in entry.written if mark.name not in FOLDED]
        says = any(entry.by == SYSTEM or not _is_daemons(mark) for mark in saying)
        if text and (not says or closed is not None or entry.by == USER):
            speaker = entry.from_session or _name(entry.by)
            self._add(entry, 1, TEXT, speaker, text, first_words(text), ", ".join(cited), cited, closed)
        numbered = iter([p for p in self.proposals.get(entry.id, ()) if not p.sha])
        for mark in saying:
            own = next(numbered, None) if mark.name == "PROPOSAL" else None
            number = len(self.said) - before + 1
            self._add_mark(entry, number, mark, mark.ref or (own.ref if own else ""), closed if number == 1 else None)
        if entry.is_turn and len(self.said) > before:
            self.places.setdefault(str(entry.number), self.said[before])

    def _add_mark(self, entry: Entry, number: int, mark: Mark, ref: str, closed: Message | None) -> None:
        is_made = row_of(mark.name).makes
        text, refs = questions.parse(mark).said if mark.name == questions.NAME else mark.value, named_by(mark)
        if is_made:
            refs = ()
            text = next((p.text for p in self.proposals.get(entry.id, ()) if p.sha and p.ref == ref), text)
        words = LEADING.sub("", text, count=1) if refs else text
        if mark.name == "DECISION":  # what everybody signed is told by who signed it
            words = text.replace(" | mutual | ", " | ", 1)
        elif mark.name == "REFUSED":
            words = tried(text)
        summary = first_words(words)
        if mark.name == "DECISION":
            summary = by_name(summary, lambda who: self.names.get(who, who))
        speaker = SYSTEM_NAME if _is_daemons(mark) else _name(entry.by)
        cited = refs or (() if speaker == SYSTEM_NAME else cited_by(entry))
        self._add(entry, number, mark.name, speaker, text, summary, ref or ", ".join(cited), cited, closed)

    def _add(
        self, entry: Entry, number: int, kind: str, speaker: str, text: str, summary: str, reference: str,
        refs: Sequence[str], closed: Message | None,
    ) -> None:  # fmt: skip
        found = closed or next((self.places[ref] for ref in refs if ref in self.places), None)
        to, is_made, asks = self._addressed(entry, kind, speaker, found), row_of(kind).makes, kind in ASKING
        # What opens a debt by name: a person's turn that passes it to agents, an agent's with `[TO: B]`.
        passes = speaker != SYSTEM_NAME and entry.is_turn and bool(set(entry.turn or ()) - {USER})
        is_task = passes and (entry.mark("TO") is not None or (entry.by == USER and kind == TEXT))
        sure = entry.mark("CONFIDENCE")
        rules, score = self.dialog.state.build.rules, None
        if kind == "SCORE":
            score = total_of(text) if rules is None else build.total(rules, [Mark(kind, text)])
        message = Message(
            f"{self.dialog.id}:{entry.id}.{number}", kind, speaker, ", ".join(to), entry.at,
            correlation_id=(found.correlation_id or found.message_id) if found else "",
            requires_response=asks or is_task,
            payload=Payload(
                summary=summary, reference=reference, text=text, turn=self.turn, entry=entry.id,
                answers=found.message_id if found else "",
                confidence=marks.confidence(sure) if sure is not None and speaker == entry.by else None,
                score=score,
                is_open=asks and not entry.is_struck,
                is_withdrawn=entry.is_struck or (is_made and reference in self.dialog.state.table.vetoed),
            ),
            from_name=self.names.get(speaker, speaker),
            to_names=tuple(self.names.get(who, who) for who in to),
        )  # fmt: skip
        self.said.append(message)
        if is_made and reference:
            self.places[reference.split(",", maxsplit=1)[0]] = message
        if message.payload["is_open"]:
            about = {str(self.turn), *refs, *(p.ref for p in self.proposals.get(entry.id, ()))}
            self.open.append(_Open(message, entry, set(to), about))

    def _addressed(self, entry: Entry, kind: str, speaker: str, answers: Message | None) -> tuple[str, ...]:
        if kind == questions.NAME:
            return (USER_NAME,)
        if kind in _TO_ALL:
            return ()
        to = () if speaker == SYSTEM_NAME else entry.all("TO")  # that is the agent's word, not the daemon's
        named = [who for mark in to for who in marks.to(mark, self.ids)] or list(entry.turn or ())
        if not named and answers is not None:
            named = [answers.from_agent]
        found = dict.fromkeys(_name(who) for who in named if who not in (ANY, entry.by))
        others = {who for who in self.ids if who != entry.by}
        return () if len(others) > 1 and set(found) >= others else tuple(found)

    def _answered(self, entry: Entry) -> Message | None:
        """Close the questions that this entry answers; gives the first of them."""
        closed = [question for question in self.open if self._closes(entry, question)]
        self.open = [question for question in self.open if question not in closed]
        for question in closed:
            question.message.payload["is_open"] = False
        return closed[0].message if closed else None

    def _closes(self, entry: Entry, question: _Open) -> bool:
        speaker, kind = _name(entry.by), question.message.message_type
        if kind == questions.NAME and entry.mark("DEFAULT_TAKEN") is not None:
            return True
        speaks = entry.is_turn or (entry.by == USER and entry.turn is not None)
        if not speaks or entry.is_struck or speaker == question.message.from_agent:
            return False
        cited = cited_by(entry)  # a turn that only passes, or says that it is about other things, answers no question
        if kind == "QUESTION" and (only_passes(entry) or (cited and question.about.isdisjoint(cited))):
            return False
        if not question.asked:
            return True
        is_asked = speaker in question.asked
        question.asked.discard(speaker)
        return is_asked and not (question.asked and question.entry.mark("TO") is not None)


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

"""A dialog as messages: one for each mark that says something, one for the text of a turn without such marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from dialogd.flow.reading import (
    FOLDED,
    LEADING,
    cited_by,
    confidence_of,
    first_words,
    kind_of,
    named_by,
    only_passes,
    words_of,
)
from dialogd.protocol import ballots, questions
from dialogd.protocol.marks import MARKS, Who
from dialogd.protocol.model import ANY, SYSTEM, USER, Condition, Entry, Mark
from dialogd.protocol.review import total_of
from dialogd.protocol.state import Dialog, Proposal

TEXT = "TEXT"  # the type of a turn without marks that say something
USER_NAME, SYSTEM_NAME = "User", "System"

ASKING = frozenset({"QUESTION", questions.NAME, "ESCALATE"})
_NAMING = frozenset({"PROPOSAL", "CONSENSUS_PROPOSED"})  # their ref is their own number
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
    return tuple(walk.messages())


@dataclass(slots=True)
class _Said:
    """A message in the making; `answers` is the place of the one it answers, or None."""

    id: str
    kind: str
    speaker: str
    entry: Entry
    turn: int
    reference: str
    text: str
    summary: str
    to: tuple[str, ...] = ()
    answers: int | None = None
    refs: tuple[str, ...] = ()
    is_open: bool = False


@dataclass(slots=True)
class _Asked:
    """A question that waits for `who`; with `all_of` for each of them, else for one. Nobody named: anybody else."""

    at: int
    who: set[str]
    all_of: bool


@dataclass(slots=True)
class _Walk:
    """What was said so far, and which of it waits for an answer."""

    dialog: Dialog
    said: list[_Said] = field(default_factory=list)
    asked: list[_Asked] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)  # of proposals by number, of turns by theirs
    proposals: dict[str, list[Proposal]] = field(default_factory=dict)
    ids: list[str] = field(default_factory=list)  # of everybody who took part at any time
    turn: int = 0

    def __post_init__(self) -> None:
        cast = (*self.dialog.header_as_written.agents, *self.dialog.header.agents)
        self.ids = list(dict.fromkeys(agent.id for agent in cast))
        for proposal in self.dialog.state.proposals:
            self.proposals.setdefault(proposal.entry, []).append(proposal)

    def take(self, entry: Entry) -> None:
        """Add what one entry says."""
        self.turn = entry.number if entry.is_turn else self.turn
        first, closed = len(self.said), self._answered(entry)
        for number, one in enumerate(self._parts(entry, is_answer=closed is not None), 1):
            one.id = f"{self.dialog.id}:{entry.id}.{number}"
            self.said.append(one)
        if len(self.said) == first:
            return
        if entry.is_turn:
            self.places.setdefault(str(entry.number), first)
        for place in range(first, len(self.said)):
            self._connect(self.said[place], place, closed if place == first else None)

    def _parts(self, entry: Entry, *, is_answer: bool) -> Iterator[_Said]:
        """The messages of one entry, without their addressees; what answers a question is said by its text too."""
        text = words_of(entry)
        saying = [mark for mark in entry.written if mark.name not in FOLDED]
        says = any(entry.by == SYSTEM or not _is_daemons(mark) for mark in saying)
        if text and (not says or is_answer or entry.by == USER):
            cited = cited_by(entry)
            yield _Said(
                "", TEXT, _speaker(entry), entry, self.turn, ", ".join(cited), text, first_words(text), refs=cited
            )
        numbered = iter([p for p in self.proposals.get(entry.id, ()) if not p.sha])
        for mark in saying:
            own = next(numbered, None) if mark.name == "PROPOSAL" else None
            yield self._of_mark(entry, mark, mark.ref or (own.ref if own else ""))

    def _of_mark(self, entry: Entry, mark: Mark, ref: str) -> _Said:
        kind, text = kind_of(mark)
        refs = () if mark.name in _NAMING else named_by(mark)
        if mark.name == "CONSENSUS_PROPOSED":
            text = next((p.text for p in self.proposals.get(entry.id, ()) if p.ref == ref), "")
        own = ref or ", ".join(refs)
        words = LEADING.sub("", text, count=1) if refs else text
        speaker = SYSTEM_NAME if _is_daemons(mark) else _speaker(entry)
        cited = refs or (() if speaker == SYSTEM_NAME else cited_by(entry))
        return _Said("", kind, speaker, entry, self.turn, own or ", ".join(cited), text, first_words(words), refs=cited)

    def _connect(self, one: _Said, place: int, closed: int | None) -> None:
        """Say what a message answers, to whom it goes and whether it waits for an answer."""
        places = [self.places[ref] for ref in one.refs if ref in self.places]
        answers = closed if closed is not None else next(iter(places), None)
        one.answers = answers if answers is not None and answers < place else None
        one.to = self._addressed(one)
        if one.kind in ("PROPOSAL", "CONSENSUS_PROPOSED") and one.reference:
            self.places[one.reference.split(",")[0]] = place
        if one.kind in ASKING and not one.entry.is_struck:
            one.is_open = True
            self.asked.append(_Asked(place, set(one.to), all_of=one.entry.mark("TO") is not None))

    def _addressed(self, one: _Said) -> tuple[str, ...]:
        entry, ids = one.entry, self.ids
        if one.kind == questions.NAME:
            return (USER_NAME,)
        if one.kind in _TO_ALL:
            return ()
        to = () if one.speaker == SYSTEM_NAME else entry.all("TO")  # that is the agent's word, not the daemon's
        named = [who for mark in to for who in ballots.to(mark, ids)] or list(entry.turn or ())
        if not named and one.answers is not None:
            named = [self.said[one.answers].speaker]
        found = dict.fromkeys(_name(who) for who in named if who not in (ANY, entry.by))
        others = {who for who in ids if who != entry.by}
        return () if len(others) > 1 and set(found) >= others else tuple(found)

    def _answered(self, entry: Entry) -> int | None:
        """Close the questions that this entry answers; gives the place of the first of them."""
        closed = [one for one in self.asked if self._closes(entry, one)]
        self.asked = [one for one in self.asked if one not in closed]
        for one in closed:
            self.said[one.at].is_open = False
        return closed[0].at if closed else None

    def _closes(self, entry: Entry, asked: _Asked) -> bool:
        question, speaker = self.said[asked.at], _speaker(entry)
        if question.kind == questions.NAME and entry.mark("DEFAULT_TAKEN") is not None:
            return True
        speaks = entry.is_turn or (entry.by == USER and entry.turn is not None)
        if not speaks or entry.is_struck or speaker == question.speaker:
            return False
        if question.kind == "QUESTION" and not self._answers(entry, question):
            return False
        if not asked.who:
            return True
        is_asked = speaker in asked.who
        asked.who.discard(speaker)
        return is_asked and not (asked.all_of and asked.who)

    def _answers(self, entry: Entry, question: _Said) -> bool:
        """True unless the turn only passes, or says by its RE that it is about other things."""
        if only_passes(entry):
            return False
        about = {str(question.turn), *question.refs, *(p.ref for p in self.proposals.get(question.entry.id, ()))}
        cited = cited_by(entry)
        return not cited or not about.isdisjoint(cited)

    def messages(self) -> Iterator[Message]:
        """What was said, as it stands now."""
        vetoed = frozenset(self.dialog.state.vetoed)
        roots: list[int] = []
        names = names_of(self.dialog)
        for place, one in enumerate(self.said):
            roots.append(place if one.answers is None else roots[one.answers])
            withdrawn = one.entry.is_struck or (one.kind in _NAMING and one.reference in vetoed)
            yield Message(
                message_id=one.id,
                message_type=one.kind,
                from_agent=one.speaker,
                to_agent=", ".join(one.to),
                timestamp=one.entry.frame.at if one.entry.frame else "",
                correlation_id="" if one.answers is None else self.said[roots[place]].id,
                requires_response=one.kind in ASKING or _is_task(one),
                payload=Payload(
                    summary=one.summary,
                    reference=one.reference,
                    text=one.text,
                    turn=one.turn,
                    entry=one.entry.id,
                    answers="" if one.answers is None else self.said[one.answers].id,
                    confidence=confidence_of(one.entry) if one.speaker == one.entry.by else None,
                    score=total_of(one.text) if one.kind == "SCORE" else None,
                    is_open=one.is_open,
                    is_withdrawn=withdrawn,
                ),
                from_name=names.get(one.speaker, one.speaker),
                to_names=tuple(names.get(who, who) for who in one.to),
            )


def names_of(dialog: Dialog) -> Mapping[str, str]:
    """What everybody is called, by id: as in the last heading of theirs; with the id behind it where two share one."""
    found = {agent.id: agent.name for agent in (*dialog.header_as_written.agents, *dialog.header.agents)}
    for entry in dialog.turns:
        if entry.by in found and entry.frame is not None and entry.name:
            found[entry.by] = entry.name
    often = Counter(name.casefold() for name in (*found.values(), USER_NAME, SYSTEM_NAME))
    return {who: name if often[name.casefold()] == 1 else f"{name} ({who})" for who, name in found.items()}


def _is_task(one: _Said) -> bool:
    """True for what opens a debt by name: a person's turn that passes it to agents, an agent's with `[TO: B]`."""
    if one.speaker == SYSTEM_NAME or not one.entry.is_turn:
        return False
    passed = set(one.entry.turn or ()) - {USER}
    return bool(passed) and (one.entry.mark("TO") is not None or (one.entry.by == USER and one.kind == TEXT))


# Written by a daemon for its agent, out of what the agent said.
_OF_AGENTS = frozenset({"CONSENSUS_PROPOSED", "SEALED"})
_NAMES: Mapping[str, str] = {USER: USER_NAME, SYSTEM: SYSTEM_NAME}


def _is_daemons(mark: Mark) -> bool:
    return mark.name in MARKS and MARKS[mark.name].who is Who.DAEMON and mark.name not in _OF_AGENTS


def _name(who: str) -> str:
    return _NAMES.get(who, who)


def _speaker(entry: Entry) -> str:
    return _name(entry.by)

"""Who said what to whom, as messages and as a Mermaid sequence diagram; and what happened since some turn. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Any

from dialogd.errors import BadInput
from dialogd.protocol import build, lifecycle, marks, questions
from dialogd.protocol.build import total_of
from dialogd.protocol.decide import Clock, Wait, decide
from dialogd.protocol.marks import MARKS, Who
from dialogd.protocol.model import ANY, OUTCOMES, SYSTEM, USER, Condition, Entry, Mark, turn_number
from dialogd.protocol.state import Dialog, Proposal, Spent, accounted, in_dollars, total
from dialogd.protocol.text import Zone, one_line, seconds_between
from dialogd.views.words import (
    ASKING,
    FOLDED,
    LEADING,
    OF_AGENTS,
    SILENT,
    TAKEN,
    TO_ALL,
    called,
    context_of,
    first_words,
    gist,
    named_by,
    row_of,
    worded,
    words_of,
)

# -- A dialog as messages ---------------------------------------------------------------------------------------------

TEXT = "TEXT"  # the type of a turn without marks that say something
USER_NAME, SYSTEM_NAME = "User", "System"
NAMES: Mapping[str, str] = {USER: USER_NAME, SYSTEM: SYSTEM_NAME}


@dataclass(slots=True)
class Message:
    """One message; docs/results.md says what its payload holds. `to_agent`: ids joined by ", ", "" for all.

    `timestamp` is "" where unknown, `correlation_id` the first of the chain of answers, "" where this answers nothing.
    """

    message_id: str
    message_type: str
    from_agent: str
    to_agent: str
    timestamp: str
    correlation_id: str
    requires_response: bool
    payload: dict[str, Any]
    from_name: str = ""
    to_names: tuple[str, ...] = ()

    @property
    def others(self) -> list[str]:
        """Whom it names as addressees."""
        return [who for who in self.to_agent.split(", ") if who]

    @property
    def title(self) -> str:
        """It in one line: what it is, its reference and summary."""
        said = self.payload
        state = "(withdrawn)" if said["is_withdrawn"] else "(open)" if said["is_open"] else ""
        return " ".join(filter(None, (called(self.message_type), said["reference"], said["summary"], state)))


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
        cast = (*dialog.header_as_written.agents, *dialog.header.agents)
        self.ids = list(dict.fromkeys(agent.id for agent in cast))  # of everybody who took part at any time
        self.turn = 0
        self.proposals: dict[str, list[Proposal]] = {}  # by the entry that made them
        for proposal in dialog.state.table.proposals:
            self.proposals.setdefault(proposal.entry, []).append(proposal)

    def take(self, entry: Entry) -> None:
        """Add what one entry says: its text where no mark of it says something, or it answers; then its marks."""
        self.turn = entry.number if entry.is_turn else self.turn
        closed, before, text, cited = self._answered(entry), len(self.said), words_of(entry), _cited_by(entry)
        saying = [mark for mark in entry.written if mark.name not in FOLDED]
        says = any(entry.by == SYSTEM or not _is_daemons(mark) for mark in saying)
        if text and (not says or closed is not None or entry.by == USER):
            speaker = entry.from_session or _name(entry.by)
            self._add(entry, 1, TEXT, speaker, text, first_words(text), ", ".join(cited), cited, closed)
        made = self.proposals.get(entry.id, [])
        texts, numbered = {p.ref: p.text for p in made if p.sha}, iter([p.ref for p in made if not p.sha])
        for mark in saying:
            row, number, speaker = row_of(mark.name), len(self.said) - before + 1, _name(entry.by)
            speaker = SYSTEM_NAME if _is_daemons(mark) else speaker
            ref = mark.ref or (next(numbered, "") if row.makes else "")
            text = questions.parse(mark).said if mark.name == questions.NAME else texts.get(ref, mark.value)
            refs = () if row.makes else named_by(mark)
            cited = refs or (() if speaker == SYSTEM_NAME else _cited_by(entry))
            summary = gist(mark, LEADING.sub("", text, count=1) if refs else text, self.names)
            first = closed if number == 1 else None
            self._add(entry, number, mark.name, speaker, text, summary, ref or ", ".join(cited), cited, first)
        if entry.is_turn and len(self.said) > before:
            self.places.setdefault(str(entry.number), self.said[before])

    def _add(
        self, entry: Entry, number: int, kind: str, speaker: str, text: str, summary: str, reference: str,
        refs: Sequence[str], closed: Message | None,
    ) -> None:  # fmt: skip
        found = closed or next((self.places[ref] for ref in refs if ref in self.places), None)
        to, is_made, asks = self._addressed(entry, kind, speaker, found), row_of(kind).makes, kind in ASKING
        # What opens a debt by name: a person's turn that passes it to agents, an agent's with `[TO: B]`.
        passes = speaker != SYSTEM_NAME and entry.is_turn and bool(set(entry.turn or ()) - {USER})
        is_task = passes and (entry.mark("TO") is not None or (entry.by == USER and kind == TEXT))
        sure, rules, score = marks.confidences(entry), self.dialog.state.build.rules, None
        if kind == "SCORE":
            score = total_of(text) if rules is None else build.total(rules, [Mark(kind, text)])
        message = Message(
            f"{self.dialog.id}:{entry.id}.{number}", kind, speaker, ", ".join(to), entry.at,
            correlation_id=(found.correlation_id or found.message_id) if found else "",
            requires_response=asks or is_task,
            payload={
                "summary": summary, "reference": reference, "text": text, "turn": self.turn, "entry": entry.id,
                "answers": found.message_id if found else "",
                "confidence": sure[0] if sure and speaker == entry.by else None,
                "score": score,
                "is_open": asks and entry.counts,
                "is_withdrawn": not entry.counts or (is_made and reference in self.dialog.state.table.vetoed),
            },
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
        if kind in TO_ALL:
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
        if kind == questions.NAME and entry.mark(TAKEN) is not None:
            return True
        speaks = entry.is_turn or (entry.by == USER and entry.turn is not None)
        if not speaks or not entry.counts or speaker == question.message.from_agent:
            return False
        # A turn that only passes, or says that it is about other things, answers no question.
        passes = not words_of(entry).strip() and all(mark.name in SILENT for mark in entry.marks)
        cited = _cited_by(entry)
        is_elsewhere = passes or (cited and question.about.isdisjoint(cited))
        if kind == "QUESTION" and is_elsewhere:
            return False
        if not question.asked:
            return True
        is_asked = speaker in question.asked
        question.asked.discard(speaker)
        return is_asked and not (question.asked and question.entry.mark("TO") is not None)


def _cited_by(entry: Entry) -> tuple[str, ...]:
    """The proposals, then the turns, that the entry's RE names."""
    turns, refs = marks.referred(entry)
    return tuple(dict.fromkeys((*refs, *map(str, turns))))


def names_of(dialog: Dialog) -> Mapping[str, str]:
    """What everybody is called, by id: as in the last heading of theirs; with the id behind it where two share one."""
    found = {agent.id: agent.name or agent.id for agent in dialog.everybody}
    for entry in dialog.turns:
        if entry.by != USER and entry.name and (entry.frame is not None or entry.by not in found):
            found[entry.by] = entry.name
    often = Counter(name.casefold() for name in (*found.values(), USER_NAME, SYSTEM_NAME))
    return {who: name if often[name.casefold()] == 1 else f"{name} ({who})" for who, name in found.items()}


def _is_daemons(mark: Mark) -> bool:
    return mark.name in MARKS and MARKS[mark.name].who is Who.DAEMON and mark.name not in OF_AGENTS


def _name(who: str) -> str:
    return NAMES.get(who, who)


# -- Messages as a Mermaid sequence diagram, as code hosts render it --------------------------------------------------

# Letters of all scripts and these stand for themselves; everything else is written by its number, because Mermaid
# ends a label at some signs, and reads others as markup, formulas, directives or references.
_UNSAFE = re.compile(r"[^\w .,/()!?+=*-]|_{2,}")
_KEYWORD = re.compile(r"\b(e)(nd)\b", re.I)


def as_mermaid(messages: Sequence[Message]) -> str:
    """A `sequenceDiagram`; ends with a newline. Participants have names of their own making, so that any name works."""
    people: dict[str, str] = {}
    for message in messages:
        people |= {message.from_agent: message.from_name, **dict(zip(message.others, message.to_names, strict=True))}
    # By first appearance, but the person first, the system last.
    order = {USER_NAME: 0, SYSTEM_NAME: 2}
    lanes = {who: f"p{number}" for number, who in enumerate(sorted(people, key=lambda who: order.get(who, 1)), 1)}
    lines = ["sequenceDiagram", *(f"    participant {alias} as {label(people[who])}" for who, alias in lanes.items())]
    for message in messages:
        speaker, text = lanes[message.from_agent], label(message.title)
        arrow = "-->>" if message.payload["is_withdrawn"] else "->>"
        targets = [lanes[who] for who in message.others if who != message.from_agent]
        lines += [f"    {speaker}{arrow}{target}: {text}" for target in targets]
        if not targets:
            ends = ",".join(dict.fromkeys(("p1", f"p{len(lanes)}")))
            lines.append(f"    Note over {ends}: {label(message.from_name)}: {text}")
    return "\n".join(lines) + "\n"


def label(text: str) -> str:
    """A text that Mermaid shows as it is: on one line, without anything it would read as syntax."""
    flat = " ".join(text.split())
    coded = _UNSAFE.sub(lambda match: "".join(f"#{ord(char)};" for char in match[0]), flat)
    return _KEYWORD.sub(lambda match: f"{match[1]}#{ord(match[2][0])};{match[2][1]}", coded) or " "


# -- What happened since a turn, or a time ---------------------------------------------------------------------------

TIMES = "how long ago (90m, 2h, 7d), today, yesterday, or a time (2026-11-21T19:00)"

_PART = r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?)"
_SPAN = re.compile(rf"{_PART}(?:,?(?: and)? ?{_PART})*(?: ago)?")
_PARTS = re.compile(_PART)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def last_word(dialog: Dialog) -> int:
    """The turn at which the person last wrote something, 0 where they never did."""
    return next((turn_number(entry.id) for entry in reversed(dialog.entries) if entry.is_persons), 0)


def since_turn(dialog: Dialog, text: str, now_iso: str, zone: Zone) -> int:
    """The turn that `7`, `turn 7` or a time, as `moment` reads it, means: the last one before that.

    `now_iso` is the time now, with the person's offset. Raises `BadInput`.
    """
    words = " ".join(text.split()).casefold()
    if match := re.fullmatch(r"(?:turn\s+)?#?(\d{1,9})", words):
        return int(match[1])
    then = moment(words, datetime.fromisoformat(now_iso), zone)
    if then is None:
        raise BadInput(f"{one_line(text, 60)!r} is neither a turn nor a time", fix=f"write a turn (7), {TIMES}")
    found = 0
    for entry in dialog.entries:
        passed = seconds_between(entry.at, then.isoformat())
        if passed is not None and passed < 0:
            break
        found = turn_number(entry.id) if passed is not None else found  # when a turn was typed by hand, nobody knows
    return found


def moment(text: str, now: datetime, zone: Zone) -> datetime | None:
    """The time that `2h`, `1h 30m ago`, `7d`, `today`, `yesterday`, a date or a time means; None for anything else.

    A time without an offset is in `zone`.
    """
    words = " ".join(text.split()).casefold()
    try:
        if words in ("today", "yesterday"):
            return zone(datetime.combine(zone(now).date() - timedelta(days=words == "yesterday"), time()))
        if _SPAN.fullmatch(words):
            parts = [timedelta(**{_UNITS[unit[0]]: float(number)}) for number, unit in _PARTS.findall(words)]
            return now - sum(parts, timedelta())
        found = datetime.fromisoformat(words.upper()) if re.match("[0-9]{4}-", words) else None
        return found if found is None or found.tzinfo else zone(found)
    except (ValueError, OverflowError):
        return None


# -- While you were away ----------------------------------------------------------------------------------------------

MOST = 4  # items of one kind in the text
WIDTH = 200  # characters of an item

_WAITING = frozenset({"waiting_for_user", "unknown_turn", "damaged", "no_turn_yet", "unfinished", "paused"})
# The kinds of news (`Row.news`) and their titles, the most important first.
TITLES = {
    "asked_you": "asked you",
    "ended": "ended",
    "decided": "decided",
    "rejected": "rejected by you",
    "errors": "errors and stalls",
    "objections": "objections",
    "conceded": "conceded",
    "proposed": "proposed",
    "asked": "asked each other",
    "withdrawn": "withdrawn by you",
    "people": "joined and left",
    "limits": "limits and pauses",
}


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that happened: its turn (of a note, the one before), who wrote it, a sentence. `at` may be ""."""

    turn: int
    by: str
    text: str
    at: str = ""
    is_withdrawn: bool = False


@dataclass(frozen=True, slots=True)
class Away:
    """What happened after turn `since`: items by the kinds of `TITLES`, and what these entries cost.

    `now` is the dialog's state in words, `needed` what it waits for from the person, with commands ("" for nothing).
    """

    since: int
    turns: int
    items: Mapping[str, Sequence[Item]]
    spent: Spent
    now: str
    needed: str

    def sections(self) -> tuple[tuple[str, Sequence[Item]], ...]:
        """Title and items of everything that is not empty."""
        return tuple((title, items) for kind, title in TITLES.items() if (items := self.items[kind]))


def away(dialog: Dialog, since: int, zone: Zone | None = None) -> Away:
    """What happened in the entries after turn `since`; 0 is the whole dialog. `zone` is the reader's clock."""
    entries, names = after(dialog, since), {**names_of(dialog), USER: "the person", SYSTEM: "the daemon"}
    known = context_of(dialog, lambda who: names.get(who, who))
    unanswered = {question.entry for question in dialog.state.questions.open}
    items: dict[str, list[Item]] = {section: [] for section in TITLES}
    spent: Mapping[str, Spent] = {}
    for entry in entries:
        spent = accounted(dialog.header, spent, entry)
        for one in worded(entry, known):
            row, is_end = row_of(one.mark.name), one.mark.name in OUTCOMES
            if not row.news or (is_end and entry.ending is None):
                continue
            if row.news == "asked_you" and entry.id not in unanswered:
                continue
            is_withdrawn = not entry.counts or (row.makes and one.mark.ref in dialog.state.table.vetoed)
            text = one_line(str(one), WIDTH)
            items[row.news].append(Item(turn_number(entry.id), _name(entry.by), text, entry.at, is_withdrawn))
    turns, now = sum(entry.is_turn for entry in entries), one_line(lifecycle.in_words(dialog))
    return Away(since, turns, items, total(spent), now, _needed(dialog, zone))


def after(dialog: Dialog, since: int) -> tuple[Entry, ...]:
    """The entries after turn `since` that count."""
    counted = (entry for entry in dialog.entries if entry.condition not in (Condition.DAMAGED, Condition.UNFINISHED))
    return tuple(e for e in counted if turn_number(e.id) >= since + e.is_turn)


def _needed(dialog: Dialog, zone: Zone | None) -> str:
    """What the dialog waits for from the person, in words; "" for nothing."""
    state, end = dialog.state, dialog.state.outcome
    if end is not None:
        if state.approved or not (end.is_agreed or end.is_deadlock or end.is_limit):
            return ""
        if not end.is_agreed:
            return "say how it ends: `dialogd approve` closes it as it is, `dialogd say …` opens it again"
        return "look at the result: `dialogd approve` takes it, `dialogd reject WHY` sends the agents back to it"
    if state.questions.text:
        words = questions.waiting(dialog, "", zone)
        said = f"answer {state.questions.asker}: {words}" if state.questions.asker else words
        return one_line(f"{said}: `{lifecycle.answers(dialog)[0]}`" if state.build else said)
    agents = dialog.header.agents
    me = next((who for who in state.owing if who != USER), agents[0].id if agents else "")
    action = decide(dialog, me, Clock(rest=1e9))
    return one_line(action.reason) if isinstance(action, Wait) and action.status in _WAITING else ""


def as_text(news: Away, most: int = MOST, width: int = 100) -> str:
    """One screen of text: the state and what is needed first, then at most `most` items of each kind."""
    turns = "nothing was written" if not news.turns else f"{news.turns} turn{'s' if news.turns > 1 else ''}"
    money = f", {in_dollars(news.spent)}" if news.spent.entries > news.spent.unknown else ""
    since = f"since turn {news.since}" if news.since else "since the beginning"
    lines = [f"{since}: {turns}{money}", f"now: {news.now}", f"needed from you: {news.needed or 'nothing'}"]
    for title, items in news.sections():
        lines += ["", f"{title}: {len(items)}" if len(items) > 1 else f"{title}:"]
        shown = items if len(items) <= most + 1 else items[-most:]
        lines += [f"  and {len(items) - len(shown)} earlier"] if len(shown) < len(items) else []
        for item in shown:
            withdrawn = " (withdrawn)" if item.is_withdrawn else ""
            lines.append(f"  {one_line(f'turn {item.turn}: {item.text}', width - 2 - len(withdrawn))}{withdrawn}")
    return "\n".join(lines)

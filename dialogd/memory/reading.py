"""What the memory keeps of a dialog: its row in lists, its entries as they are searched, what it decided by its marks.

What was struck or vetoed is no decision.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from dialogd.memory.values import DialogRow, PastDecision, iso
from dialogd.protocol.board import WENT_ON, Reopening, as_of_now, reopenings
from dialogd.protocol.build import came_of
from dialogd.protocol.certificate import certify, recorded, signer, unrecorded, until
from dialogd.protocol.grammar import parse
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry, Mark, turn_number
from dialogd.protocol.money import total
from dialogd.protocol.state import Decision, Dialog
from dialogd.protocol.text import clean, one_line, redact
from dialogd.store.disk import distrust
from dialogd.views.flow import FOLDED
from dialogd.views.plan import Plan, Signed, without_marks
from dialogd.views.words import by_name

LARGEST = 64 * 1024 * 1024  # bytes of a file that is read
TOPIC = 300  # characters
NAME_LENGTH = 100  # characters of an agent's name
GIST = 240  # characters of a decided text
LONGEST = 200_000  # characters of a message that are searched
NONE: Mapping[str, str] = MappingProxyType({})
RECALLED = "**Recalled from earlier dialogs"  # how the block begins that `--recall` writes into turn 1
_CUT = re.compile(r"\n\n\*\([\d,]+ more characters: \[the whole text\]\(.*/([0-9a-f]+\.md)\)\)\*")  # by `compose.cut`
_BLOCK = re.compile(rf"^{re.escape(RECALLED)}.*\n(?:\n|>.*(?:\n|$))*", re.M)


@dataclass(frozen=True, slots=True)
class SearchedEntry:
    """An entry as it is searched: its id, its turn, who wrote it, when, its text with its marks."""

    entry: str
    turn: int
    by: str
    at: str
    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """A dialog as the index keeps it. `first` is the hash of the first agent's entry: where it is the same, two files
    of one id hold the same dialog, and the one with the greater `last` (time of its last entry, entries) stands for it.
    """

    row: DialogRow
    first: str
    last: tuple[str, int]
    question: str
    said: tuple[SearchedEntry, ...]
    made: tuple[Made, ...]


def facts(dialog: Dialog, attachments: Mapping[str, str] = NONE) -> Facts:
    """Everything that is kept of a dialog; `attachments` hold the texts of messages that were cut, by name.

    Its row lacks the paths of the file and of the copy.
    """
    entries = _sound(dialog)
    last = next((at for entry in reversed(entries) if (at := iso(entry.at))), "")
    mine = next((entry for entry in entries if entry.is_turn and entry.by not in (USER, SYSTEM)), None)
    said, row = tuple(_said(entries, attachments)), row_of(dialog)
    made = decided(dialog, row.topic)
    question = said[0].text if said and said[0].by == USER else ""
    made = () if dialog.is_rehearsed else made  # scripted lines decide nothing, whatever they say
    return Facts(row, mine.chain if mine else "", (last, len(dialog.entries)), question, said, made)


def _decided(dialog: Dialog, plan: Plan) -> str:
    """What was decided, in a few words; of a build how many tasks were approved."""
    if dialog.state.build:
        return came_of(dialog.state.build) if dialog.state.build.all and plan.outcome else ""
    return _gist(plan.agreed.text) if plan.agreed is not None else ""


def row_of(dialog: Dialog, file: Path | None = None) -> DialogRow:
    """The row of a dialog that stands in this file, without the path of a copy."""
    state, spent, entries = dialog.state, total(dialog.state.spent), _sound(dialog)
    ends = dialog.entry(state.outcome.entry) if state.outcome else None
    last = next((at for entry in reversed(entries) if (at := iso(entry.at))), "") if ends else ""
    plan = Plan(dialog)
    models = {entry.by: entry.frame.model for entry in entries if entry.frame is not None and entry.frame.model}
    return DialogRow(
        id=dialog.id,
        topic=_topic(dialog, entries),
        started=iso(dialog.header.started) or next((at for entry in entries if (at := iso(entry.at))), ""),
        ended=(iso(ends.at) or last) if ends else "",
        state="ended" if state.outcome else "open",
        outcome=state.outcome.name if state.outcome else "",
        reason=one_line(state.outcome.reason) if state.outcome else "",
        headline=one_line(plan.headline),
        agents=tuple(agent.id for agent in dialog.header.agents),
        turns=state.number,
        usd=spent.usd if spent.entries > spent.unknown else None,
        is_exact=spent.exact and not spent.unknown,
        tokens=spent.tokens if spent.entries > spent.uncounted else None,
        approved=bool(state.approved),
        is_rehearsal=dialog.is_rehearsed,
        file=str(file or ""),
        names=tuple(one_line(agent.name, NAME_LENGTH) for agent in dialog.header.agents),
        models=tuple(models.get(agent.id, "") for agent in dialog.header.agents),
        decided=_decided(dialog, plan),
    )


def _gist(text: str) -> str:
    """The beginning of a text, in a line: its words, without headings and the signs of Markdown."""
    from dialogd.views.markup import parser

    words, is_heading = list[str](), False
    for token in parser().parse(text[: GIST * 10]):
        is_heading = token.type == "heading_open" or (is_heading and token.type != "heading_close")
        if token.type == "inline" and not is_heading:
            words += ["".join(" " if one.type.endswith("break") else one.content for one in token.children or ())]
    return one_line(" ".join(words), GIST)


def _sound(dialog: Dialog) -> list[Entry]:
    """The entries that are whole."""
    return [entry for entry in dialog.entries if entry.condition is not Condition.DAMAGED]


def _topic(dialog: Dialog, entries: Sequence[Entry]) -> str:
    """The header's topic; where it has none, the beginning of the question, or the title."""
    if topic := one_line(dialog.header.topic, TOPIC):
        return topic
    first = next(_said(entries, NONE), None)
    question = next((line for line in first.text.split("\n") if line.strip()), "") if first is not None else ""
    return one_line(question or dialog.header.title, TOPIC)


def _said(entries: Sequence[Entry], attachments: Mapping[str, str]) -> Iterator[SearchedEntry]:
    """What agents and the person said, without withdrawn turns and quotes by `--recall`."""
    names = {entry.by: entry.name for entry in entries if entry.frame is not None and entry.name}
    for entry in entries:
        if entry.by == SYSTEM or entry.is_struck:
            continue
        body = _whole(entry.body, attachments) if entry.number != 1 else _BLOCK.sub("", entry.body)
        saying = [mark for mark in entry.marks if mark.name not in FOLDED] if entry.frame is not None else []
        marks = "\n".join(_in_words(mark, names) for mark in saying)
        text = clean(f"{body}\n{marks}").replace("\ufffd", " ").strip()
        if text:
            yield SearchedEntry(entry.id, int(entry.id.partition(".")[0]), entry.by, iso(entry.at), text)


def _in_words(mark: Mark, names: Mapping[str, str]) -> str:
    """A mark as it is searched and shown: without brackets, capitals and hashes; a decision with names for ids."""
    name = f"{mark.name.replace('_', ' ').capitalize()} {mark.ref}".strip()
    fields = mark.fields if mark.name != "CONSENSUS_PROPOSED" else ()
    if mark.name == "DECISION":  # what everybody signed is told by who signed it
        fields = tuple(by_name(field, lambda who: names.get(who, who)) for field in fields if field != "mutual")
    return ": ".join(filter(None, (name, "; ".join(fields))))


def _whole(body: str, attachments: Mapping[str, str]) -> str:
    """A message as it was before it was cut, if its attachment is there and fits; else as it is."""
    link = _CUT.search(body)
    text = attachments.get(link[1], "") if link else ""
    if link is None or not text.startswith(body[: link.start()]):
        return body
    return f"{text[:LONGEST]}{body[link.end() :]}"


def read_dialog(path: Path) -> Dialog:
    """The dialog in a file of one's own. Raises `DialogdError` for one that is none, `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        problem = distrust(status)
        if problem is not None or status.st_size > LARGEST:
            raise OSError(f"{path} {problem[0] if problem else f'is larger than {LARGEST:,} bytes'}")
        return parse(file.read(LARGEST))


# -- What it decided --------------------------------------------------------------------------------------------------

MOST = 200  # decisions of one dialog; the last ones
TEXT = 20_000  # characters of one text


@dataclass(frozen=True, slots=True)
class Made:
    """A decision where the dialog made it: in the entry with the id `entry`, at that `place` among all."""

    place: int
    entry: str
    decision: PastDecision


def decided(dialog: Dialog, topic: str) -> tuple[Made, ...]:
    """What the dialog decided, in order; `topic` is what it is listed by."""
    places = {entry.id: index for index, entry in enumerate(dialog.entries)}
    kinds = (_recorded(dialog, topic, places), _unrecorded(dialog, topic), _deadlock(dialog, topic, places))
    found = sorted((made for kind in kinds for made in kind if made.decision.text.strip()), key=lambda made: made.place)
    opened = reopenings(dialog) if found else {}
    return tuple(replace(made, decision=_as_it_stands(dialog, made, found, opened)) for made in found[-MOST:])


def _recorded(dialog: Dialog, topic: str, places: dict[str, int]) -> Iterator[Made]:
    """What the daemons' marks record, each proposal's last decision."""
    last = {(record.ref or record.entry): record for record in dialog.state.table.decisions}
    for record in last.values():
        if record.ref not in dialog.state.table.vetoed and record.entry in places:
            yield _read(dialog, topic, record, places[record.entry])


def _read(dialog: Dialog, topic: str, record: Decision, place: int) -> Made:
    entries = dialog.entries[: place + 1]
    proposal = next((p for p in dialog.state.table.proposals if p.ref == record.ref), None)
    behind = _behind(dialog, recorded(entries, record.ref, record.method, record.evidence))
    text = _plain(dialog, proposal.text, proposal.entry) if proposal else ""
    if not text and (certificate := certify(until(dialog, place + 1))) is not None:
        text = certificate.text if certificate.decided_in == record.entry else ""
    decision = PastDecision(
        dialog=dialog.id,
        topic=topic,
        ref=record.ref,
        status=record.outcome,
        text=cut(text or record.reason),
        method=record.method,
        behind=behind,
        evidence=record.evidence,
        reason=record.reason,
        turns=_turns(proposal.entry if proposal else "", record.entry, behind),
        at=iso(entries[place].at),
    )
    return Made(place, record.entry, decision)


def _unrecorded(dialog: Dialog, topic: str) -> Iterator[Made]:
    """Ends by agreement that no decision records: the person's, and those typed by hand."""
    for place, c in unrecorded(dialog):
        if c.ref not in dialog.state.table.vetoed:
            entry = dialog.entries[place]
            behind = tuple(Signed(s.agent, s.turn, s.reservation) for s in c.signers)
            turns, text = _turns(c.stands_in, entry.id, behind), cut(c.text)
            how = ("approved", text, c.method, behind, c.evidence, c.reason, turns, iso(entry.at))
            yield Made(place, entry.id, PastDecision(dialog.id, topic, c.ref, *how))


def _deadlock(dialog: Dialog, topic: str, places: dict[str, int]) -> Iterator[Made]:
    """A deadlock that the dialog ended in: the crux, the positions, what would settle it."""
    outcome = dialog.state.outcome
    if outcome is None or outcome.name != "DEADLOCK" or outcome.entry not in places:
        return
    drawn = Plan(dialog)
    crux, positions = drawn.crux, drawn.positions
    lines = [
        *(f"Crux: {said.text}" for said in crux),
        *(f"{said.by}: {said.text}" for said in positions),
        *(f"What would settle it: {said.text}" for said in drawn.experiments),
    ]
    behind = tuple(Signed(agent, dialog.state.floor.spoke_at.get(agent, 0)) for agent in dialog.state.table.deadlock)
    said_in = tuple(sorted({said.turn for said in (*crux, *positions)}))
    turns = said_in or _turns("", outcome.entry, behind)
    text = cut("\n".join(lines) or outcome.reason or "no agreement was in sight")
    place = places[outcome.entry]
    how = (text, "deadlock", behind, "", outcome.reason, turns, iso(dialog.entries[place].at))
    yield Made(place, outcome.entry, PastDecision(dialog.id, topic, "", "undecided", *how))


def _as_it_stands(dialog: Dialog, made: Made, found: Sequence[Made], opened: Mapping[str, Reopening]) -> PastDecision:
    """The decision with what came after it: a refusal of the person's, an approval, a dialog that went on."""
    decision = made.decision
    if made.entry not in opened:
        approval = dialog.state.approved if decision.status == "approved" else ""
        after = any(entry.id == approval for entry in dialog.entries[made.place + 1 :]) if approval else False
        return replace(decision, approved=after)
    now = as_of_now(opened, made.entry, decision.status, decision.reason)
    later = next((turn_number(other.entry) for other in found if other.place > made.place), 0)
    again = f", and decided again in turn {later}" if later else ""
    return replace(decision, status=now.outcome, reason=now.reason, superseded=f"{WENT_ON}{again}")


def _behind(dialog: Dialog, named: Iterator[tuple[str, int]]) -> tuple[Signed, ...]:
    return tuple(Signed(who, turn, signer(dialog, who, turn).reservation) for who, turn in named)


def _plain(dialog: Dialog, text: str, entry_id: str) -> str:
    """A proposal's text; what was typed by hand still has its marks among its lines."""
    entry = dialog.entry(entry_id)
    return without_marks(text) if entry is not None and entry.frame is None else text


def _turns(stands: str, entry: str, behind: Sequence[Signed]) -> tuple[int, ...]:
    """The turns in which a decision was written, signed and made."""
    numbers = {turn_number(stands), turn_number(entry), *(b.turn for b in behind)}
    return tuple(sorted(numbers - {0}))


def cut(text: str) -> str:
    """A text as it is kept: its beginning, and of a secret nothing."""
    return redact(clean(text))[0].replace("\ufffd", " ").strip()[:TEXT]

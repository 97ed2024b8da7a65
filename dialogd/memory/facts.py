"""From a dialog to what the index keeps of it: itself in a row, its entries, its decisions. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from dialogd.memory.decided import Made, decided
from dialogd.memory.times import iso, moment
from dialogd.memory.values import Decision, Row
from dialogd.plan.outcome import headline
from dialogd.plan.value import Agreed, Decided, Signed
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry
from dialogd.protocol.money import total
from dialogd.protocol.state import Dialog
from dialogd.protocol.text import clean, one_line

TOPIC = 300  # characters
LONGEST = 200_000  # characters of a message that are searched
NONE: Mapping[str, str] = MappingProxyType({})
RECALLED = "**Recalled from earlier dialogs"  # how the block begins that `--recall` writes into turn 1
_CUT = re.compile(r"\n\n\*\([\d,]+ more characters: \[the whole text\]\(.*/([0-9a-f]+\.md)\)\)\*")  # by `compose.cut`
_BLOCK = re.compile(rf"^{re.escape(RECALLED)}.*\n(?:\n|>.*(?:\n|$))*", re.M)


@dataclass(frozen=True, slots=True)
class Said:
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

    row: Row
    first: str
    last: tuple[str, int]
    question: str
    said: tuple[Said, ...]
    made: tuple[Made, ...]


def facts(dialog: Dialog, attachments: Mapping[str, str] = NONE) -> Facts:
    """Everything that is kept of a dialog; `attachments` hold the texts of messages that were cut, by name.

    Its row says neither where it stood nor where its copy lies.
    """
    state, spent = dialog.state, total(dialog.state.spent)
    entries = [entry for entry in dialog.entries if entry.condition is not Condition.DAMAGED]
    last = next((at for entry in reversed(entries) if (at := moment(entry))), "")
    mine = next((entry for entry in entries if entry.is_turn and entry.by not in (USER, SYSTEM)), None)
    ends = dialog.entry(state.outcome.entry) if state.outcome else None
    said = tuple(_said(entries, attachments))
    topic = _topic(dialog, said)
    made = decided(dialog, topic)
    row = Row(
        id=dialog.id,
        topic=topic,
        started=iso(dialog.header.started) or next((at for entry in entries if (at := moment(entry))), ""),
        ended=(moment(ends) or last) if ends else "",
        state="ended" if state.outcome else "open",
        outcome=state.outcome.name if state.outcome else "",
        reason=one_line(state.outcome.reason) if state.outcome else "",
        headline=one_line(_headline(dialog, made)),
        agents=tuple(agent.id for agent in dialog.header.agents),
        turns=state.number,
        usd=spent.usd if spent.entries > spent.unknown else None,
        is_exact=spent.exact and not spent.unknown,
        tokens=spent.tokens if spent.entries > spent.uncounted else None,
        approved=bool(state.approved),
        is_rehearsal=dialog.is_rehearsed,
    )
    question = said[0].text if said and said[0].by == USER else ""
    made = () if dialog.is_rehearsed else made  # scripted lines decide nothing, whatever they say
    return Facts(row, mine.chain if mine else "", (last, len(dialog.entries)), question, said, made)


def _topic(dialog: Dialog, said: Sequence[Said]) -> str:
    """The header's topic; where it has none, the beginning of the question, or the title."""
    question = next((line for item in said[:1] for line in item.text.split("\n") if line.strip()), "")
    return one_line(dialog.header.topic, TOPIC) or one_line(question or dialog.header.title, TOPIC)


def _headline(dialog: Dialog, made: Sequence[Made]) -> str:
    """How it ended, or stands, in words."""
    found = [(m.entry, m.decision) for m in made]
    decisions = tuple(
        Decided(d.ref, "", d.text, d.status, d.method, d.evidence, d.reason, int(entry.partition(".")[0]))
        for entry, d in found
    )
    stands = ((entry, d) for entry, d in reversed(found) if d.status == "approved" and not d.superseded)
    agreed = next((_agreed(entry, d) for entry, d in stands), None)
    return headline(dialog, agreed, decisions)


def _agreed(entry: str, d: Decision) -> Agreed:
    signers = tuple(Signed(who.agent, who.turn, who.reservation) for who in d.behind)
    return Agreed(d.ref, d.text, "", d.method, entry, "", signers)


def _said(entries: Sequence[Entry], attachments: Mapping[str, str]) -> Iterator[Said]:
    """What agents and the person said; what was struck is withdrawn, and what was recalled is another dialog's."""
    for entry in entries:
        if entry.by == SYSTEM or entry.is_struck:
            continue
        body = _whole(entry.body, attachments) if entry.number != 1 else _BLOCK.sub("", entry.body)
        marks = "\n".join(str(mark) for mark in entry.marks) if entry.frame is not None else ""
        text = clean(f"{body}\n{marks}").replace("\ufffd", " ").strip()
        if text:
            yield Said(entry.id, int(entry.id.partition(".")[0]), entry.by, moment(entry), text)


def _whole(body: str, attachments: Mapping[str, str]) -> str:
    """A message as it was before it was cut; as it stands where its attachment is missing or holds something else."""
    link = _CUT.search(body)
    text = attachments.get(link[1], "") if link else ""
    if link is None or not text.startswith(body[: link.start()]):
        return body
    return f"{text[:LONGEST]}{body[link.end() :]}"

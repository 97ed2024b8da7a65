"""Entries as the page shows them: safe HTML, marks apart from the words, and what is odd about them, in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from pydantic import BaseModel

from dialogd.protocol.marks import MARKS, prose
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry, Mark
from dialogd.protocol.state import Dialog
from dialogd.protocol.units import dollars
from dialogd.server.templating import fill, safe
from dialogd.views.markup import to_html

LAST = 200  # entries that the page begins with
MOST = 500  # entries of one answer
TONES = 10  # colours; agents beyond share them, and are told apart by their names
WATCHED = 1000  # of the last entries: those whose showing may change while a page is open

_IN_WORDS = {
    Condition.BY_HAND: "Written by hand.",
    Condition.EDITED: "Edited after it was written; it counts as it now stands.",
    Condition.DAMAGED: "Cut or overwritten after it was written; it counts for nothing.",
    Condition.UNFINISHED: "Not finished yet: somebody is typing at the end of the file.",
}
_TAG = re.compile(r"<h([1-6])>(.*?)</h\1>|<(a) [^>]*></a>|<th></th>|<pre>|</pre>|<table>|</table>|<a href=\"http", re.S)
_REPLACED = {
    "<th></th>": "<td></td>",
    "<pre>": '<div class="code"><pre tabindex="0">',
    "</pre>": "</pre></div>",
    "<table>": '<div class="wide" tabindex="0" role="group" aria-label="Table"><table>',
    "</table>": "</table></div>",
    '<a href="http': '<a target="_blank" href="http',
}


class PageMark(BaseModel):
    """A mark: its name, the proposal that it names, its value."""

    name: str
    ref: str
    value: str


class PageEntry(BaseModel):
    """One entry. `html` is all of it, ready to be shown; `version` changes whenever that does.

    `tokens_in`, `tokens_out`, `ms` and `usd` are as the frame says, "" when it does not.
    """

    index: int
    id: str
    number: int
    by: str
    name: str
    html: str
    marks: list[PageMark]
    turn: list[str] | None
    condition: str
    struck: bool
    at: str
    ms: str
    tokens_in: str
    tokens_out: str
    usd: str
    model: str
    chain: str
    version: str


class PageEntries(BaseModel):
    """Some entries, out of `total`. `anchor` is the `chain` of the entry before the first one asked for."""

    dialog: str
    total: int
    anchor: str
    entries: list[PageEntry]


@dataclass(frozen=True, slots=True)
class Cast:
    """Who is shown in which colour and under which name; seats never change while a dialog goes on."""

    seats: Mapping[str, int]
    names: Mapping[str, str]

    def tone(self, who: str) -> str:
        """The class that colours what `who` wrote."""
        if who in (USER, SYSTEM):
            return "person" if who == USER else "system"
        return f"agent-{self.seats[who] % TONES}" if who in self.seats else "system"

    def name(self, who: str) -> str:
        """What `who` is called; the person is `you`."""
        return "you" if who == USER else self.names.get(who, who)


def cast(dialog: Dialog) -> Cast:
    """Everybody who takes or took part, in the order in which they came: those who leave keep their seats."""
    agents = (*dialog.header_as_written.agents, *dialog.header.agents)
    names = {agent.id: agent.name for agent in agents}
    seats: dict[str, int] = {}
    for who in (*(agent.id for agent in dialog.header_as_written.agents), *_came(dialog), *names):
        seats.setdefault(who, len(seats))
    return Cast(seats, names)


def _came(dialog: Dialog) -> Iterator[str]:
    """The ids of those who came later, by invitation or by taking the word, in order."""
    for entry in dialog.entries:
        if entry.is_turn and entry.by != USER:
            yield entry.by
        yield from (mark.value.split("=")[0].strip() for mark in entry.marks if mark.name == "INVITE")


def window(dialog: Dialog | None, after: int | None, before: int | None, limit: int) -> PageEntries:
    """The first entries behind index `after`, else the last ones, before index `before` where it is given."""
    if dialog is None:
        return PageEntries(dialog="", total=0, anchor="", entries=[])
    total = len(dialog.entries)
    end = total if before is None else max(0, min(before, total))
    start = max(0, end - limit)
    if after is not None:
        start = max(0, min(after + 1, end))
        end = min(end, start + limit)
    players = cast(dialog)
    return PageEntries(
        dialog=dialog.id,
        total=total,
        anchor=_chain(dialog.entries[start - 1]) if start else "",
        entries=[as_shown(dialog.entries[index], index, players) for index in range(start, end)],
    )


def as_shown(entry: Entry, index: int, players: Cast) -> PageEntry:
    """One entry, rendered."""
    frame = entry.frame
    facts: dict[str, Any] = {
        "index": index,
        "id": entry.id,
        "number": entry.number,
        "by": entry.by,
        "name": "You" if entry.by == USER and entry.name.casefold() == "user" else entry.name,
        "marks": [PageMark(name=m.name, ref=m.ref, value=m.value) for m in entry.marks],
        "turn": list(entry.turn) if entry.turn is not None else None,
        "condition": entry.condition.value,
        "struck": entry.is_struck,
        "at": frame.at if frame else "",
        "ms": frame.ms if frame else "",
        "tokens_in": frame.tokens_in if frame else "",
        "tokens_out": frame.tokens_out if frame else "",
        "usd": frame.usd if frame else "",
        "model": frame.model if frame else "",
        "chain": _chain(entry),
        "version": version(entry),
    }
    return PageEntry(**facts, html=_article(entry, facts, players))


def _article(entry: Entry, facts: Mapping[str, Any], players: Cast) -> str:
    """The entry as an element of its own."""
    # A daemon keeps marks out of the body; a person writes them between the words.
    body = prose(entry.body) if entry.frame is None or entry.condition is not Condition.SOUND else entry.body
    return fill(
        "entry.html",
        entry=facts,
        anchor=f"t{entry.number}" if entry.is_turn else f"n{entry.id}",
        tone=players.tone(entry.by),
        title=f"Turn {entry.number}" if entry.is_turn else "Note",
        body=safe(presentable(to_html(body))),
        chips=[_chip(mark) for mark in entry.marks],
        next=[players.name(who) for who in entry.turn or ()],
        condition=_IN_WORDS.get(entry.condition, ""),
        notice=entry.notice,
        figures=figures(facts),
    )


def _chip(mark: Mark) -> dict[str, str]:
    about = MARKS[mark.name].meaning if mark.name in MARKS else ""
    words = mark.name.replace("_", " ").capitalize()
    return {"name": mark.name, "words": words, "ref": mark.ref, "value": mark.value, "about": about}


def presentable(html: str) -> str:
    """What `to_html` made, as a part of a page: headings in order below the entry's own, wide things in boxes."""
    level = 3

    def replaced(match: re.Match[str]) -> str:
        nonlocal level
        if match[3]:
            return ""  # a link without words leads nobody anywhere
        if match[1] is None:
            return _REPLACED[match[0]]
        text = presentable(match[2])
        if not text.strip():
            return ""
        level = min(int(match[1]) + 3, level + 1, 6)
        return f"<h{level}>{text}</h{level}>"

    return _TAG.sub(replaced, html)


def figures(facts: Mapping[str, Any]) -> list[str]:
    """Tokens, cost, time and model of an entry, each in a few words; what nobody said is left out."""
    found = []
    if facts["tokens_in"] and facts["tokens_out"]:
        found.append(f"{_number(facts['tokens_in'])} in, {_number(facts['tokens_out'])} out")
    if amount := _figure(facts["usd"]):
        found.append(f"{amount[0]}{dollars(amount[1])}")
    if took := _figure(facts["ms"]):
        found.append(_seconds(took[1] / 1000))
    if facts["model"]:
        found.append(str(facts["model"]))
    return found


def _figure(text: str) -> tuple[str, float] | None:
    """`about ` or "" and the number that a frame's attribute says; None where it is none."""
    match = re.fullmatch(r"(~?)(\d{1,12}(?:\.\d{1,12})?)", text)
    return ("about " if match[1] else "", float(match[2])) if match else None


def _number(text: str) -> str:
    figure = _figure(text)
    return f"{figure[0]}{figure[1]:,.0f}" if figure else text


def _seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def version(entry: Entry) -> str:
    """A word that changes when the entry is shown otherwise than before; "" for one as its daemon wrote it."""
    struck = "struck" if entry.is_struck else ""
    if entry.condition is Condition.SOUND:
        return struck
    text = f"{entry.body}\n{entry.marks}\n{entry.turn}"
    return f"{entry.condition.value}-{crc32(text.encode('utf-8', 'replace')):x}{struck}".replace(" ", "-")


def changed(dialog: Dialog) -> tuple[int, dict[str, str]]:
    """The first index that is looked at, and by index the version of each entry not shown as its daemon wrote it."""
    first = max(0, len(dialog.entries) - WATCHED)
    found = ((index, version(dialog.entries[index])) for index in range(first, len(dialog.entries)))
    return first, {str(index): word for index, word in found if word}


def _chain(entry: Entry) -> str:
    return entry.chain[:16]

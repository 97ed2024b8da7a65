"""Entries as the page shows them: safe HTML, their words first, then what their marks say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

from pydantic import BaseModel

from dialogd.protocol.marks import prose
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry, whose
from dialogd.protocol.seal import own_words
from dialogd.protocol.state import Dialog
from dialogd.protocol.units import dollars
from dialogd.server.page_marks import Talk, in_ranks, talk_of
from dialogd.views.markup import fill, safe, to_html

LAST = 200  # entries that the page begins with
MOST = 500  # entries of one answer
TONES = 10  # colours; agents beyond share them, and are told apart by their names
WATCHED = 1000  # of the last entries: those whose showing may change while a page is open

template = partial(fill, Path(__file__).parent / "templates")

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
    html: str = ""
    marks: list[PageMark]
    turn: list[str] | None
    condition: str
    struck: bool
    at: str = ""
    ms: str = ""
    tokens_in: str = ""
    tokens_out: str = ""
    usd: str = ""
    model: str = ""
    chain: str
    version: str


class PageEntries(BaseModel):
    """Some entries, out of `total`. `anchor` is the `chain` of the entry before the first one asked for."""

    dialog: str = ""
    total: int = 0
    anchor: str = ""
    entries: list[PageEntry] = []


@dataclass(frozen=True, slots=True)
class Cast:
    """The agents' colours and names; seats never change during a dialog."""

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
    """Everybody who takes or took part, in order of arrival; those who leave keep their seats."""
    agents = (*dialog.header_as_written.agents, *dialog.header.agents)
    names = {agent.id: agent.name for agent in agents}
    seats: dict[str, int] = {}
    for who in (*(agent.id for agent in dialog.header_as_written.agents), *_came(dialog), *names):
        seats.setdefault(who, len(seats))
    return Cast(seats, names)


def _came(dialog: Dialog) -> Iterator[str]:
    """The ids of those who joined later, by invitation or by taking a turn, in order."""
    for entry in dialog.entries:
        if entry.is_turn and entry.by != USER:
            yield entry.by
        yield from (mark.value.split("=")[0].strip() for mark in entry.marks if mark.name == "INVITE")


def window(dialog: Dialog | None, after: int | None, before: int | None, limit: int) -> PageEntries:
    """The first entries after index `after`, else the last ones, before index `before` if given."""
    if dialog is None:
        return PageEntries()
    total = len(dialog.entries)
    end = total if before is None else max(0, min(before, total))
    start = max(0, end - limit)
    if after is not None:
        start = max(0, min(after + 1, end))
        end = min(end, start + limit)
    players, talk = cast(dialog), talk_of(dialog)
    return PageEntries(
        dialog=dialog.id,
        total=total,
        anchor=_chain(dialog.entries[start - 1]) if start else "",
        entries=[as_shown(dialog.entries[index], index, players, talk) for index in range(start, end)],
    )


def as_shown(entry: Entry, index: int, players: Cast, talk: Talk | None = None, *, is_past: bool = False) -> PageEntry:
    """One entry, rendered; `is_past`: of an earlier dialog, without controls."""
    frame = entry.frame
    facts = (
        {name: getattr(frame, name) for name in ("at", "ms", "tokens_in", "tokens_out", "usd", "model")}
        if frame
        else {}
    )
    shown = PageEntry(
        index=index,
        id=entry.id,
        number=entry.number,
        by=entry.by,
        name="You" if entry.by == USER and entry.name.casefold() == "user" else entry.name,
        marks=[PageMark(name=m.name, ref=m.ref, value=m.value) for m in entry.marks],
        turn=list(entry.turn) if entry.turn is not None else None,
        condition=entry.condition.value,
        struck=entry.is_struck,
        chain=_chain(entry),
        version=version(entry),
        **facts,
    )
    # A daemon keeps marks out of the body; a person writes them between the words.
    is_typed = frame is None or entry.condition is not Condition.SOUND
    body = prose(entry.body) if is_typed else entry.body
    is_own = entry.by == USER and entry.condition is Condition.BY_HAND  # nobody wonders at that
    words = body if entry.turn is not None else own_words(body)
    ranks = in_ranks(entry, words, talk or Talk(players.names))
    shown.html = template(
        "entry.html",
        entry=shown,
        shown=ranks,
        is_past=is_past,
        anchor=f"{'past-' if is_past else 't' if entry.is_turn else 'n'}{entry.id}",
        tone="system" if entry.via else players.tone(entry.by),
        initial="Y" if entry.by == USER and not entry.via else "" if entry.by == SYSTEM else entry.by[:2],
        next=_next(entry, players),
        odd=[
            "" if is_own else _IN_WORDS.get(entry.condition, ""),
            entry.notice,
            f"From {whose(entry.via)}, not from you." * bool(entry.via),
        ],
        facts=[
            *([_IN_WORDS[entry.condition]] if is_own else []),
            *figures(shown),
            *_closing(body, words),
            *([f"hash {entry.chain}"] if entry.chain else []),
        ],
        **_with(players, talk),
    )
    return shown


def _closing(body: str, words: str) -> list[str]:
    """What a daemon wrote under the words that ended the dialog: its turns, its duration, its outcome."""
    return [f"{name}: {value}" for name, value in re.findall(r"^\*\*(.+?):\*\* (.*)$", body[len(words) :], re.M)]


def _with(players: Cast, talk: Talk | None) -> dict[str, Any]:
    """What the templates of an entry need besides its own values."""
    return {
        "players": players,
        "standings": talk.standings if talk is not None else {},
        "markdown": markdown,
        "inline": inline,
    }


def markdown(text: str) -> Any:
    """Markdown as a part of the page."""
    return safe(presentable(to_html(text)))


def inline(text: str) -> Any:
    """Markdown for the middle of a line, where it is one paragraph."""
    html = presentable(to_html(text)).strip()
    is_one = html.startswith("<p>") and html.endswith("</p>") and html.count("<p>") == 1
    return safe(html[3:-4] if is_one else html)


def _next(entry: Entry, players: Cast) -> str:
    """Who is next, where that does not go without saying."""
    named = entry.turn or ()
    if not entry.is_turn or (len(players.seats) <= 2 and USER not in named):
        return ""
    return f"next: {', '.join(players.name(who) for who in named)}" if named else ""


def presentable(html: str) -> str:
    """The HTML of `to_html` as part of a page: headings below the entry's own, wide elements in scrollable boxes."""
    level = 3

    def replaced(match: re.Match[str]) -> str:
        nonlocal level
        if match[3]:
            return ""  # nobody can see or click a link without words
        if match[1] is None:
            return _REPLACED[match[0]]
        text = presentable(match[2])
        if not text.strip():
            return ""
        level = min(int(match[1]) + 3, level + 1, 6)
        return f"<h{level}>{text}</h{level}>"

    return _TAG.sub(replaced, html)


def figures(entry: PageEntry) -> Iterator[str]:
    """Tokens, cost, time and model of an entry, each in a few words; unknown ones are left out."""
    if entry.tokens_in and entry.tokens_out:
        yield f"{_number(entry.tokens_in)} in, {_number(entry.tokens_out)} out"
    if amount := _figure(entry.usd):
        yield f"{amount[0]}{dollars(amount[1])}"
    if took := _figure(entry.ms):
        seconds = took[1] / 1000
        yield f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if entry.model:
        yield entry.model


def _figure(text: str) -> tuple[str, float] | None:
    """`about ` or "", and the number of a frame's attribute; None where it is no number."""
    match = re.fullmatch(r"(~?)(\d{1,12}(?:\.\d{1,12})?)", text)
    return ("about " if match[1] else "", float(match[2])) if match else None


def _number(text: str) -> str:
    figure = _figure(text)
    return f"{figure[0]}{figure[1]:,.0f}" if figure else text


def version(entry: Entry) -> str:
    """A word that changes when the entry is shown differently; "" for one as its daemon wrote it."""
    struck = "struck" if entry.is_struck else ""
    if entry.condition is Condition.SOUND:
        return struck
    text = f"{entry.body}\n{entry.marks}\n{entry.turn}"
    return f"{entry.condition.value}-{crc32(text.encode('utf-8', 'replace')):x}{struck}".replace(" ", "-")


def changed(dialog: Dialog) -> tuple[int, dict[str, str]]:
    """The first index considered, and by index the version of each entry not shown as its daemon wrote it."""
    first = max(0, len(dialog.entries) - WATCHED)
    found = ((index, version(dialog.entries[index])) for index in range(first, len(dialog.entries)))
    return first, {str(index): word for index, word in found if word}


def _chain(entry: Entry) -> str:
    return entry.chain[:16]

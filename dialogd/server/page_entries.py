"""Entries as the page shows them: safe HTML, their words first, then what their marks say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

from pydantic import BaseModel

from dialogd.protocol.marks import prose, read_reply
from dialogd.protocol.model import SYSTEM, USER, Condition, Entry, Said, whose
from dialogd.protocol.review import Finding, findings
from dialogd.protocol.seal import own_words
from dialogd.protocol.state import Dialog
from dialogd.protocol.units import dollars
from dialogd.server.page_marks import BLOCK, EntryShown, Talk, as_streamed, at_first, in_ranks, standings, talk_of
from dialogd.views.markup import fill, rendered, safe, so_far, to_html
from dialogd.views.sentences import words_of

LAST = 100  # entries that the page begins with
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
class Seats:
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


def cast(dialog: Dialog) -> Seats:
    """Everybody who takes or took part, in order of arrival; those who leave keep their seats."""
    agents = (*dialog.header_as_written.agents, *dialog.header.agents)
    names = {agent.id: agent.name for agent in agents}
    seats: dict[str, int] = {}
    for who in (*(agent.id for agent in dialog.header_as_written.agents), *_came(dialog), *names):
        seats.setdefault(who, len(seats))
    return Seats(seats, names)


def _came(dialog: Dialog) -> Iterator[str]:
    """The ids of those who joined later, by invitation or by taking a turn, in order."""
    for entry in dialog.entries:
        if entry.is_turn and entry.by != USER:
            yield entry.by
        yield from (mark.value.split("=")[0].strip() for mark in entry.marks if mark.name == "INVITE")


class PageWriting(BaseModel):
    """The turn that an agent writes, as far as it has come: `chars` characters of it are in `html`."""

    by: str
    turn: int = 0
    chars: int = 0
    html: str = ""


class PageStanding(BaseModel):
    """Who stands behind a proposal now: its state in a word, "" while it is open, and the words as HTML."""

    state: str
    html: str


class PageHit(BaseModel):
    """A place where searched words stand: the entry's anchor, who said it, and the words with what is around them."""

    anchor: str
    name: str
    tone: str
    before: str
    words: str
    after: str


class PageHits(BaseModel):
    """Where searched words stand, from the beginning on; of more than `total` says, the last ones."""

    total: int
    hits: list[PageHit]


def around(dialog: Dialog | None, wanted: str, limit: int) -> PageEntries:
    """The entries around the one of that id (`7`, `4.1`); none where there is no such entry."""
    found = (index for index, entry in enumerate(dialog.entries if dialog else ()) if entry.id == wanted)
    index = next(found, None)
    if dialog is None or index is None:
        return PageEntries(dialog=dialog.id if dialog else "", total=len(dialog.entries) if dialog else 0)
    return window(dialog, max(-1, index - limit // 2 - 1), None, limit)


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


def as_shown(entry: Entry, index: int, players: Seats, talk: Talk | None = None, *, is_past: bool = False) -> PageEntry:
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
        version=version(entry, talk.of(entry.id) if talk else ()),
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
            *_of_blocks(ranks),
            *([f"hash {entry.chain}"] if entry.chain else []),
        ],
        **_with(players, talk),
    )
    return shown


def _of_blocks(ranks: EntryShown) -> list[str]:
    """What is told of its blocks on demand."""
    return [mark.facts for mark in ranks.of(BLOCK) if mark.facts and not mark.task]


def _closing(body: str, words: str) -> list[str]:
    """What a daemon wrote under the words that ended the dialog: its turns, its duration, its outcome."""
    return [f"{name}: {value}" for name, value in re.findall(r"^\*\*(.+?):\*\* (.*)$", body[len(words) :], re.M)]


def _with(players: Seats, talk: Talk | None) -> dict[str, Any]:
    """What the templates of an entry need besides its own values."""
    return {
        "players": players,
        "standings": talk.standings if talk is not None else {},
        "markdown": markdown,
        "inline": inline,
    }


def fragment(name: str, **values: Any) -> str:
    """The template `panels/NAME.html` with these values, with `markdown` and `when` to write texts and times."""
    return template(f"panels/{name}.html", markdown=markdown, when=when, **values)


def when(at: str) -> str:
    """A time of the file for people, `2026-11-21 19:00 UTC`; anything else unchanged, cut short."""
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        return at[:40]
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if moment.tzinfo else f"{moment:%Y-%m-%d %H:%M}"


def markdown(text: str) -> Any:
    """Markdown as a part of the page: sanitised, with its headings below the panel's."""
    return safe(presentable(to_html(text)))


def inline(text: str) -> Any:
    """Markdown for the middle of a line, where it is one paragraph."""
    html = presentable(to_html(text)).strip()
    is_one = html.startswith("<p>") and html.endswith("</p>") and html.count("<p>") == 1
    return safe(html[3:-4] if is_one else html)


def _next(entry: Entry, players: Seats) -> str:
    """Who is next, where that does not go without saying."""
    named = entry.turn or ()
    is_plain = len(players.seats) <= 2 and USER not in named
    if not entry.is_turn or is_plain or entry.mark("QUESTION_FOR_USER") is not None:
        return ""
    return f"next: {', '.join(players.name(who) for who in named)}" if named else ""


def as_written(dialog: Dialog, who: str, turn: int, text: str, chars: int) -> PageWriting:
    """The turn that `who` writes as it will be shown, as far as that can be told from its beginning."""
    reply = read_reply(text if text.endswith("\n") else so_far(text), dialog.header.rules.kinds)
    players, talk, number = cast(dialog), talk_of(dialog), dialog.state.table.next_ref
    marks = tuple(as_streamed(reply.marks, reply.summary, number))
    said = Said("", turn, who, talk.names.get(who, who), so_far(f"{reply.body}\n"), marks, (who,))

    def fresh(words: str) -> Any:
        return safe(presentable(rendered(words)))  # of the text of a moment nothing is kept

    html = template(
        "writing.html",
        by=who,
        called=talk.names.get(who, who),
        turn=turn,
        tone=players.tone(who),
        initial=who[:2],
        is_cut=chars > len(text),
        shown=in_ranks(said, said.body, talk),
        **{**_with(players, talk), "markdown": fresh, "standings": at_first(who, marks)},
    )
    return PageWriting(by=who, turn=turn, chars=chars, html=html)


def standings_shown(dialog: Dialog | None) -> dict[str, PageStanding]:
    """Who stands behind which proposal, by its number."""
    if dialog is None:
        return {}
    players = cast(dialog)
    return {
        ref: PageStanding(state=now.state, html=template("standing.html", now=now, players=players))
        for ref, now in standings(dialog).items()
    }


def found(dialog: Dialog | None, words: str, limit: int) -> PageHits:
    """Where these words stand in the dialog, whatever their case, in text or mark."""
    wanted, players, hits = " ".join(words.split()), cast(dialog) if dialog else None, []
    if dialog is None or players is None or not wanted:
        return PageHits(total=0, hits=[])
    look = re.compile(re.escape(wanted), re.I)  # in the text as it stands: in another case it may be longer
    for entry in dialog.entries:
        said = " ".join((entry.name, words_of(entry), *(f"{mark.ref} {mark.value}" for mark in entry.written)))
        text = " ".join(said.split())
        if (hit := look.search(text)) is None:
            continue
        at, end = hit.span()
        anchor = f"{'t' if entry.is_turn else 'n'}{entry.id}"
        name = "You" if entry.by == USER and not entry.via else entry.name
        around_it = (text[max(0, at - 60) : at], text[at:end], text[end : end + 100])
        hits.append((anchor, name, "system" if entry.via else players.tone(entry.by), *around_it))
    named = ("anchor", "name", "tone", "before", "words", "after")
    return PageHits(total=len(hits), hits=[PageHit(**dict(zip(named, hit, strict=True))) for hit in hits[-limit:]])


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


def version(entry: Entry, found: Sequence[Finding] = ()) -> str:
    """A word that changes when the entry is shown differently; "" for one as its daemon wrote it.

    `found` are its findings: what is resolved of them is shown.
    """
    struck = "-".join(["struck"] * entry.is_struck + [f"resolved-{one.number}" for one in found if one.resolved])
    if entry.condition is Condition.SOUND:
        return struck
    text = f"{entry.body}\n{entry.marks}\n{entry.turn}"
    return f"{entry.condition.value}-{crc32(text.encode('utf-8', 'replace')):x}{struck}".replace(" ", "-")


def changed(dialog: Dialog) -> tuple[int, dict[str, str]]:
    """The first index considered, and by index the version of each entry not shown as its daemon wrote it."""
    first, raised = max(0, len(dialog.entries) - WATCHED), dict[str, list[Finding]]()
    for one in findings(dialog) if dialog.state.table.findings else ():
        raised.setdefault(one.entry, []).append(one)
    entries = enumerate(dialog.entries[first:], first)
    found = ((index, version(entry, raised.get(entry.id, ()))) for index, entry in entries)
    return first, {str(index): word for index, word in found if word}


def _chain(entry: Entry) -> str:
    return entry.chain[:16]
